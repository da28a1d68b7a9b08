//! Rules of modes, owners, times, extended attributes and access control lists.

mod support;

use forebay_base::{Ino, Timestamp};
use forebay_fs::key::Key;
use forebay_fs::record::Kind;
use forebay_fs::{Access, FsError, New, SetAttributes, SetId, SetMode, SetTime, SetXattr, acl};
use support::{
    READ, READ_WRITE, ROOT, Rig, Shorthand as _, USER, User, WRITE, directory, file, on_both_ways,
    on_disks_of_the_owner,
};

fn set<'a>(name: &'a [u8], value: &'a [u8], mode: SetMode) -> SetXattr<'a> {
    SetXattr { name, value, mode, kill_set_gid: false }
}

fn names(fs: &User, ino: Ino) -> Vec<String> {
    let list = String::from_utf8(fs.list_xattrs(ino).unwrap()).unwrap();
    list.split_terminator('\0').map(str::to_owned).collect()
}

/// A list in the encoding of Linux: tag, permission, id.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, permission, id) in entries {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&permission.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value
}

const NOBODY: u32 = u32::MAX;

/// Owner all, user 1000 `user`, group read and execute, mask all, others nothing.
fn named_list(user: u16) -> Vec<u8> {
    list(&[
        (0x01, 7, NOBODY),
        (0x02, user, 1000),
        (0x04, 5, NOBODY),
        (0x10, 7, NOBODY),
        (0x20, 0, NOBODY),
    ])
}

fn mode_of(fs: &User, ino: Ino) -> u16 {
    fs.attributes(ino).unwrap().mode
}

fn change_mode(fs: &User, ino: Ino, mode: u16) {
    let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
    fs.set_attributes(ino, set).unwrap();
}

#[test]
fn attributes_are_kept_listed_and_removed() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let ino = fs.make_file(fs.fileset("data"), "file");
    fs.set_xattr(ino, set(b"user.a", b"1", SetMode::Any)).unwrap();
    fs.set_xattr(ino, set(b"user.b", b"", SetMode::Create)).unwrap();
    fs.set_xattr(ino, set(b"user.a", b"2", SetMode::Replace)).unwrap();
    let refused = fs.set_xattr(ino, set(b"user.a", b"3", SetMode::Create));
    assert!(matches!(refused, Err(FsError::Exists)));
    let refused = fs.set_xattr(ino, set(b"user.c", b"3", SetMode::Replace));
    assert!(matches!(refused, Err(FsError::NoAttribute)));
    rig.close(fs);
    let fs = rig.open();
    assert_eq!(names(&fs, ino), ["user.a", "user.b"]);
    assert_eq!(fs.xattr(ino, b"user.a").unwrap(), b"2");
    assert_eq!(fs.xattr(ino, b"user.b").unwrap(), b"");
    assert!(matches!(fs.xattr(ino, b"user.c"), Err(FsError::NoAttribute)));
    fs.remove_xattr(ino, b"user.a").unwrap();
    assert!(matches!(fs.remove_xattr(ino, b"user.a"), Err(FsError::NoAttribute)));
    assert_eq!(names(&fs, ino), ["user.b"]);
    rig.close(fs);
}

#[test]
fn attributes_beyond_their_limits_are_refused() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let ino = fs.make_file(fs.fileset("data"), "file");
    let longest = [b"user.".as_slice(), &[b'x'; 250]].concat();
    fs.set_xattr(ino, set(&longest, &[7; 65_536], SetMode::Any)).unwrap();
    let longer = [longest.as_slice(), b"x"].concat();
    let refused = fs.set_xattr(ino, set(&longer, b"", SetMode::Any));
    assert!(matches!(refused, Err(FsError::NameTooLong)));
    let refused = fs.set_xattr(ino, set(b"nonsense.x", b"", SetMode::Any));
    assert!(matches!(refused, Err(FsError::Unsupported)));
    let refused = fs.set_xattr(ino, set(b"user.a", &[7; 65_537], SetMode::Any));
    assert!(matches!(refused, Err(FsError::AttributeTooLarge)));
    assert_eq!(fs.xattr(ino, &longest).unwrap(), [7; 65_536]);
    rig.close(fs);
}

#[test]
fn attributes_of_removed_inodes_leave_the_store() {
    let rig = Rig::in_memory();
    let (fs, store) = rig.open_watched();
    let data = fs.fileset("data");
    let old = fs.make_file(data, "old");
    for number in 0..300 {
        let name = format!("user.{number}");
        fs.set_xattr(old, set(name.as_bytes(), b"value", SetMode::Any)).unwrap();
    }
    fs.commit().unwrap();
    let new = fs.make_file(data, "new");
    fs.set_xattr(new, set(b"user.a", b"value", SetMode::Any)).unwrap();
    store.take();
    fs.unlink(data, b"new").unwrap();
    fs.unlink(data, b"old").unwrap();
    fs.commit().unwrap();
    let gone = |key: &Key| matches!(key, Key::Xattr(ino, _) if *ino == old);
    assert_eq!(store.take_keys().iter().filter(|key| gone(key)).count(), 300);
    rig.close(fs);
}

#[test]
fn an_open_file_without_a_name_has_attributes_that_the_store_never_sees() {
    on_disks_of_the_owner(|rig| {
        let fs = rig.open();
        let data = fs.fileset("data");
        let ino = fs.make_file(data, "file");
        fs.set_xattr(ino, set(b"user.kept", b"1", SetMode::Any)).unwrap();
        let handle = fs.open(ino, READ_WRITE);
        fs.commit().unwrap();
        fs.unlink(data, b"file").unwrap();
        assert_eq!(fs.xattr(ino, b"user.kept").unwrap(), b"1");
        fs.set_xattr(ino, set(b"user.late", b"2", SetMode::Create)).unwrap();
        fs.set_xattr(ino, set(acl::ACCESS, &named_list(7), SetMode::Any)).unwrap();
        change_mode(&fs, ino, 0o700);
        assert_eq!(names(&fs, ino), ["system.posix_acl_access", "user.kept", "user.late"]);
        fs.commit().unwrap();
        fs.remove_xattr(ino, b"user.kept").unwrap();
        assert_eq!(names(&fs, ino), ["system.posix_acl_access", "user.late"]);
        rig.crash_process_under(fs, handle);
        let fs = rig.open();
        fs.sweep().unwrap();
        rig.close(fs);
    });
}

#[test]
fn a_file_made_without_a_name_brings_its_attributes_when_it_gets_one() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let data = fs.fileset("data");
    fs.set_xattr(data, set(acl::DEFAULT, &named_list(6), SetMode::Any)).unwrap();
    let lost = fs.create_unnamed(data, file(0o666), USER).unwrap().ino;
    let ino = fs.create_unnamed(data, file(0o666), USER).unwrap().ino;
    fs.set_xattr(ino, set(b"user.a", b"1", SetMode::Create)).unwrap();
    fs.commit().unwrap();
    rig.assert_clean();
    fs.link(ino, data, b"file").unwrap();
    fs.forget(ino, 2);
    fs.forget(lost, 1);
    rig.close(fs);
    let fs = rig.open();
    assert_eq!(names(&fs, ino), ["system.posix_acl_access", "user.a"]);
    assert_eq!(mode_of(&fs, ino), 0o660);
    rig.close(fs);
}

#[test]
fn a_list_that_is_refused_leaves_the_mode_as_it_is() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let ino = fs.make_file(fs.fileset("data"), "file");
    let refused = fs.set_xattr(ino, set(acl::ACCESS, &named_list(7), SetMode::Replace));
    assert!(matches!(refused, Err(FsError::NoAttribute)));
    let refused = fs.set_xattr(ino, set(acl::ACCESS, b"no list", SetMode::Any));
    assert!(matches!(refused, Err(FsError::Invalid)));
    let refused = fs.set_xattr(ino, set(acl::DEFAULT, &named_list(7), SetMode::Any));
    assert!(matches!(refused, Err(FsError::NotPermitted)));
    assert_eq!(mode_of(&fs, ino), 0o644);
    rig.close(fs);
}

#[test]
fn a_list_and_the_mode_follow_each_other() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let ino = fs.make_file(fs.fileset("data"), "file");
    fs.set_xattr(ino, set(acl::ACCESS, &named_list(6), SetMode::Any)).unwrap();
    assert_eq!(mode_of(&fs, ino), 0o770);
    change_mode(&fs, ino, 0o751);
    let value = fs.xattr(ino, acl::ACCESS).unwrap();
    let expected = list(&[
        (0x01, 7, NOBODY),
        (0x02, 6, 1000),
        (0x04, 5, NOBODY),
        (0x10, 5, NOBODY),
        (0x20, 1, NOBODY),
    ]);
    assert_eq!(value, expected, "the group bits are the mask");
    let plain = list(&[(0x01, 6, NOBODY), (0x04, 4, NOBODY), (0x20, 0, NOBODY)]);
    fs.set_xattr(ino, set(acl::ACCESS, &plain, SetMode::Any)).unwrap();
    assert_eq!(mode_of(&fs, ino), 0o640);
    assert_eq!(names(&fs, ino), [""; 0], "a list that the mode says is not kept");
    change_mode(&fs, ino, 0o2755);
    let kill = SetXattr { kill_set_gid: true, ..set(acl::ACCESS, &plain, SetMode::Any) };
    fs.set_xattr(ino, kill).unwrap();
    assert_eq!(mode_of(&fs, ino), 0o640);
    rig.close(fs);
}

#[test]
fn new_files_inherit_the_default_list_and_new_directories_pass_it_on() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let data = fs.fileset("data");
    let plain = fs.make_file(data, "before");
    assert_eq!(mode_of(&fs, plain), 0o644, "without a list the umask counts");
    fs.set_xattr(data, set(acl::DEFAULT, &named_list(6), SetMode::Any)).unwrap();
    let made = fs.create(data, b"file", file(0o666), USER).unwrap();
    fs.forget(made.ino, 1);
    assert_eq!(made.mode, 0o660, "with one it does not");
    assert_eq!(names(&fs, made.ino), ["system.posix_acl_access"]);
    let below = fs.create(data, b"directory", directory(0o777), USER).unwrap();
    fs.forget(below.ino, 1);
    assert_eq!(below.mode, 0o770);
    assert_eq!(names(&fs, below.ino), ["system.posix_acl_access", "system.posix_acl_default"]);
    let link = New { kind: Kind::Symlink, target: b"x", ..file(0o777) };
    let link = fs.create(data, b"link", link, USER).unwrap();
    fs.forget(link.ino, 1);
    assert_eq!((link.mode, names(&fs, link.ino).len()), (0o777, 0));
    let deep = fs.create(below.ino, b"deep", file(0o600), USER).unwrap();
    fs.forget(deep.ino, 1);
    assert_eq!(deep.mode, 0o600);
    assert_eq!(names(&fs, deep.ino), ["system.posix_acl_access"]);
    rig.close(fs);
}

#[test]
fn a_set_group_directory_gives_its_group_and_its_bit_to_directories() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let shared = fs.make_directory(fs.fileset("data"), "shared");
    let owner = SetAttributes { gid: Some(50), mode: Some(0o2775), ..SetAttributes::default() };
    fs.set_attributes(shared, owner).unwrap();
    let made = fs.create(shared, b"file", file(0o644), USER).unwrap();
    assert_eq!((made.uid, made.gid, made.mode), (1000, 50, 0o644));
    let below = fs.create(shared, b"directory", directory(0o755), USER).unwrap();
    assert_eq!((below.uid, below.gid, below.mode), (1000, 50, 0o2755));
    for ino in [made.ino, below.ino] {
        fs.forget(ino, 1);
    }
    rig.close(fs);
}

#[test]
fn a_write_by_a_user_takes_the_set_id_bits_away() {
    on_both_ways(|rig| {
        let fs = rig.open();
        let ino = fs.make_file(fs.fileset("data"), "file");
        change_mode(&fs, ino, 0o6755);
        let handle = fs.open_as(ino, WRITE, USER).unwrap();
        assert_eq!(mode_of(&fs, ino), 0o6755, "an open is no write");
        fs.write_unprivileged(ino, 0, b"x").unwrap();
        assert_eq!(mode_of(&fs, ino), 0o755);
        handle.close();
        change_mode(&fs, ino, 0o6745);
        let truncate = Access { truncate: true, ..WRITE };
        fs.open_as(ino, truncate, USER).unwrap().close();
        assert_eq!(mode_of(&fs, ino), 0o2745, "set-group-id without execution means locking");
        change_mode(&fs, ino, 0o6755);
        fs.overwrite(ino, b"by the superuser");
        assert_eq!(mode_of(&fs, ino), 0o6755);
        let owner = SetAttributes { uid: Some(7), set_id: SetId::Kill, ..SetAttributes::default() };
        fs.set_attributes(ino, owner).unwrap();
        assert_eq!(mode_of(&fs, ino), 0o755);
        rig.close(fs);
    });
}

#[test]
fn the_kernel_takes_set_id_bits_only_of_a_file_that_is_open_for_writing() {
    on_both_ways(|rig| {
        let fs = rig.open();
        let ino = fs.make_file(fs.fileset("data"), "file");
        change_mode(&fs, ino, 0o6745);
        let take = || {
            let set_id = SetId::KillIfWritten { gid: USER.gid };
            fs.set_attributes(ino, SetAttributes { set_id, ..SetAttributes::default() })
                .unwrap()
                .mode
        };
        assert_eq!(take(), 0o6745, "anybody may ask for it");
        let reader = fs.open_as(ino, READ, USER).unwrap();
        assert_eq!(take(), 0o6745);
        let writer = fs.open_as(ino, WRITE, USER).unwrap();
        assert_eq!(mode_of(&fs, ino), 0o6745, "an open is no write");
        assert_eq!(take(), 0o745);
        writer.close();
        reader.close();
        rig.close(fs);
        let fs = rig.open();
        assert_eq!(mode_of(&fs, ino), 0o745);
        rig.close(fs);
    });
}

#[test]
fn set_group_id_without_execution_stays_when_a_member_of_the_group_writes() {
    on_both_ways(|rig| {
        let fs = rig.open();
        let ino = fs.make_file(fs.fileset("data"), "file");
        let writer = fs.open_as(ino, WRITE, ROOT).unwrap();
        for (mode, by_member, by_others) in
            [(0o6644, 0o2644, 0o644), (0o6654, 0o654, 0o654), (0o2644, 0o2644, 0o644)]
        {
            for (gid, expected) in [(0, by_member), (USER.gid, by_others)] {
                change_mode(&fs, ino, mode);
                let set_id = SetId::KillIfWritten { gid };
                let set = SetAttributes { set_id, ..SetAttributes::default() };
                let found = fs.set_attributes(ino, set).unwrap().mode;
                assert_eq!(found, expected, "{mode:o}, group {gid}");
            }
        }
        writer.close();
        rig.close(fs);
    });
}

#[test]
fn the_kernel_keeps_no_attributes_of_a_file_that_runs_as_somebody_else() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let data = fs.fileset("data");
    let ino = fs.make_file(data, "file");
    for (mode, cacheable) in
        [(0o755, true), (0o4644, false), (0o2755, false), (0o2645, true), (0o1777, true)]
    {
        change_mode(&fs, ino, mode);
        assert_eq!(fs.attributes(ino).unwrap().cacheable, cacheable, "{mode:o}");
    }
    let directory = fs.make_directory(data, "directory");
    change_mode(&fs, directory, 0o6755);
    assert!(fs.attributes(directory).unwrap().cacheable);
    rig.close(fs);
}

#[test]
fn times_are_kept_to_the_nanosecond_and_before_1970() {
    on_both_ways(|rig| {
        let fs = rig.open();
        let ino = fs.make_file(fs.fileset("data"), "file");
        let accessed = Timestamp { seconds: -1, nanoseconds: 999_999_999 };
        let modified = Timestamp { seconds: 1 << 40, nanoseconds: 1 };
        let times = SetAttributes {
            accessed: Some(SetTime::To(accessed)),
            modified: Some(SetTime::To(modified)),
            ..SetAttributes::default()
        };
        fs.set_attributes(ino, times).unwrap();
        rig.close(fs);
        let fs = rig.open();
        let found = fs.attributes(ino).unwrap();
        assert_eq!((found.accessed, found.modified), (accessed, modified));
        let now = SetAttributes { modified: Some(SetTime::Now), ..SetAttributes::default() };
        let found = fs.set_attributes(ino, now).unwrap();
        assert_eq!(found.modified, found.changed);
        rig.close(fs);
    });
}

#[test]
fn the_kernel_is_told_at_the_close_of_times_that_only_a_commit_has_seen() {
    let rig = Rig::in_directory();
    let fs = rig.open();
    let ino = fs.make_file(fs.fileset("data"), "file");
    let handle = fs.open(ino, READ_WRITE);
    handle.write(0, b"content");
    fs.commit().unwrap();
    handle.close();
    assert_eq!(fs.take_stale_attributes(), [ino]);
    let handle = fs.open(ino, READ_WRITE);
    handle.write(0, b"another");
    fs.attributes(ino).unwrap();
    handle.close();
    assert_eq!(fs.take_stale_attributes(), [], "it has asked itself");
    rig.close(fs);
}

#[test]
fn names_coming_and_going_show_in_the_times_of_their_directory() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let data = fs.fileset("data");
    let (one, other) = (fs.make_directory(data, "one"), fs.make_directory(data, "other"));
    let times = || [one, other].map(|ino| fs.attributes(ino).unwrap().modified);
    let mut before = times();
    let mut check = |what: &str, changes: [bool; 2]| {
        let now = times();
        let changed = [now[0] > before[0], now[1] > before[1]];
        assert_eq!(changed, changes, "{what}");
        before = now;
    };
    let ino = fs.make_file(one, "file");
    check("create", [true, false]);
    fs.rename(one, b"file", other, b"file", forebay_fs::Replace::Allowed).unwrap();
    check("rename", [true, true]);
    fs.link(ino, one, b"link").unwrap();
    fs.forget(ino, 1);
    check("link", [true, false]);
    let changed = fs.attributes(ino).unwrap().changed;
    fs.unlink(other, b"file").unwrap();
    check("unlink", [false, true]);
    assert!(fs.attributes(ino).unwrap().changed > changed);
    fs.write_file(ino, 0, b"x");
    check("write", [false, false]);
    fs.items(one);
    check("listing", [false, false]);
    rig.close(fs);
}

#[test]
fn the_extended_attributes_of_an_inode_have_a_bound_together() {
    on_both_ways(|rig| {
        let fs = rig.open();
        let data = fs.fileset("data");
        let named = fs.make_file(data, "file");
        let unnamed = fs.create_unnamed(data, file(0o600), ROOT).unwrap().ino;
        let large = vec![7; 65_536];
        for ino in [named, unnamed] {
            let set = |number: usize, value: &[u8]| {
                fs.set_xattr(ino, set(format!("user.{number}").as_bytes(), value, SetMode::Any))
            };
            let fit = (0..100).take_while(|number| set(*number, &large).is_ok()).count();
            assert_eq!(fit, 15, "of 64 KiB and a name each, in 1 MiB");
            assert!(matches!(set(fit, &large), Err(FsError::NoSpace)));
            set(0, &large).expect("one of the same size takes its place");
            set(fit, b"small").expect("there is room for a small one");
            fs.remove_xattr(ino, b"user.0").unwrap();
            set(fit + 1, &large).expect("there is room again");
        }
        fs.forget(unnamed, 1);
        rig.close(fs);
    });
}

#[test]
fn setting_many_small_attributes_reads_each_but_once() {
    let rig = Rig::in_memory();
    let (fs, store) = rig.open_watched();
    let ino = fs.make_file(fs.fileset("data"), "file");
    let put = |number: usize, value: &[u8]| {
        fs.set_xattr(ino, set(format!("user.{number}").as_bytes(), value, SetMode::Any))
    };
    store.take_scans();
    for number in 0..16_000 {
        put(number, b"value").unwrap();
    }
    assert!(store.take_scans() < 10, "all attributes are read again and again");
    fs.commit().unwrap();
    fs.drop_caches();
    store.take_scans();
    for number in 0..16_000 {
        put(number, b"other").unwrap();
    }
    // Once, 256 at a time.
    assert!(store.take_scans() < 100, "all attributes are read again and again");
    assert_eq!(fs.xattr(ino, b"user.15999").unwrap(), b"other");
    rig.close(fs);
}

#[test]
fn the_bound_of_attributes_is_the_same_whether_or_not_they_were_just_read() {
    on_both_ways(|rig| {
        let fs = rig.open();
        let ino = fs.make_file(fs.fileset("data"), "file");
        let put = |name: &str, length: usize| {
            fs.set_xattr(ino, set(name.as_bytes(), &vec![1; length], SetMode::Any))
        };
        // Largest value that fits beside the others.
        let room = || {
            let (mut fits, mut refused) = (0, 65_537);
            while refused - fits > 1 {
                let middle = usize::midpoint(fits, refused);
                if put("user.probe", middle).is_ok() { fits = middle } else { refused = middle }
            }
            fs.remove_xattr(ino, b"user.probe").unwrap();
            fits
        };
        for number in 0..30 {
            put(&format!("user.{number}"), 34_000).unwrap();
        }
        let mut rooms = vec![room()];
        for (number, length) in [(0, 30_000), (1, 34_001), (2, 0), (0, 34_000), (2, 33_000)] {
            put(&format!("user.{number}"), length).unwrap();
            rooms.push(room());
        }
        fs.remove_xattr(ino, b"user.1").unwrap();
        put("user.1", 34_000).unwrap();
        rooms.push(room());
        let first = rooms[0];
        let expected = [0, 4000, 3999, 37_999, 33_999, 999, 1000];
        let expected = expected.map(|more: usize| (first + more).min(65_536));
        assert_eq!(rooms, expected);
        fs.drop_caches();
        assert_eq!(room(), first + 1000);
        rig.close(fs);
    });
}
