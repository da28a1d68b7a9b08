//! Limits and what they bound: the inode cache, large directories, names, filesets and their counters.

mod support;

use std::ops::ControlFlow;

use forebay_base::{ByteSize, Ino};
use forebay_fs::record::{Durability, Kind, Placement, Superblock, decode};
use forebay_fs::{FilesetStatus, FsError, New, Replace, SetAttributes, key};
use forebay_store::Store as _;
use support::{
    READ, ROOT, Rig, Shorthand as _, USER, User, WRITE, directory, file, on_disks_of_the_owner,
};

#[test]
fn a_small_cache_serves_a_tree_of_a_hundred_thousand_files_within_its_bound() {
    const DIRECTORIES: u64 = 100;
    const FILES: u64 = 1000;
    let rig = Rig::in_memory();
    rig.settings_mut(|settings| settings.inode_cache_max = ByteSize::mib(1));
    let fs = rig.open();
    let work = fs.fileset("work");
    // One listing may take this much beyond the bound until the next inode is looked at.
    let bound = (1 << 20) + 200 * usize::try_from(FILES).unwrap();
    let assert_bounded = |fs: &User| {
        let (inodes, bytes) = fs.cache_usage();
        assert!(bytes <= bound, "{inodes} inodes take {bytes} bytes");
    };
    for number in 0..DIRECTORIES {
        let ino = fs.make_directory(work, &format!("directory-{number}"));
        for number in 0..FILES {
            fs.make_file(ino, &format!("file-{number}"));
        }
        assert_bounded(&fs);
        fs.commit().unwrap();
    }
    rig.close(fs);
    let fs = rig.open();
    for number in (0..DIRECTORIES).rev() {
        let ino = fs.find(work, &format!("directory-{number}")).unwrap();
        assert_eq!(fs.attributes(ino).unwrap().size, FILES);
        let file = fs.find(ino, &format!("file-{}", number * 7 % FILES)).unwrap();
        assert_eq!(fs.attributes(file).unwrap().nlink, 1);
        assert_eq!(fs.find(ino, "no such file"), None);
        assert_bounded(&fs);
        let mut listed = 0;
        fs.read_directory(ino, 0, &mut |item| {
            listed += 1;
            let found = fs.listed_attributes(ino, item).unwrap().unwrap();
            fs.forget(found.ino, 1);
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(listed, FILES + 2);
        assert_bounded(&fs);
    }
    rig.close(fs);
}

#[test]
fn one_directory_of_many_files_keeps_to_the_bound_of_the_cache() {
    const FILES: usize = 60_000;
    let rig = Rig::in_memory();
    rig.settings_mut(|settings| settings.inode_cache_max = ByteSize::mib(1));
    let fs = rig.open();
    let work = fs.fileset("work");
    let ino = fs.make_directory(work, "directory");
    let mut most = 0;
    for number in 0..FILES {
        fs.make_file(ino, &format!("file-{number}"));
        most = most.max(fs.cache_usage().1);
    }
    // The whole directory would take four times as much.
    assert!(most <= 3 << 19, "the cache took {most} bytes");
    assert_eq!(fs.attributes(ino).unwrap().size, FILES as u64);
    assert_eq!(fs.names(ino).len(), FILES);
    rig.close(fs);
}

#[test]
fn a_directory_above_the_load_limit_is_listed_without_being_cached() {
    let rig = Rig::in_memory();
    rig.settings_mut(|settings| settings.directory_load_max = 100);
    let fs = rig.open();
    let work = fs.fileset("work");
    let (large, small) = (fs.make_directory(work, "large"), fs.make_directory(work, "small"));
    for number in 0..5000 {
        fs.make_file(large, &format!("{number:05}"));
    }
    for number in 0..100 {
        fs.make_file(small, &format!("{number:05}"));
    }
    let expected: Vec<String> = (0..5000).map(|number| format!("{number:05}")).collect();
    assert_eq!(fs.names(large), expected, "from memory");
    fs.drop_caches();
    fs.drop_caches();
    assert_eq!(fs.names(large), expected, "from what is not committed yet");
    rig.close(fs);
    let fs = rig.open();
    let before = fs.cache_usage().1;
    assert_eq!(fs.names(large), expected, "from the store");
    assert!(fs.cache_usage().1 < before + 10_000, "it was cached");
    assert_eq!(fs.names(small), expected[..100]);
    assert!(fs.cache_usage().1 > before + 5_000, "a small one is cached");
    for number in (0..5000).step_by(2) {
        fs.unlink(large, format!("{number:05}").as_bytes()).unwrap();
    }
    let odd: Vec<String> = expected.iter().skip(1).step_by(2).cloned().collect();
    assert_eq!(fs.names(large), odd, "from both");
    rig.close(fs);
}

#[test]
fn names_are_of_one_to_255_bytes_of_anything_but_slash_and_nul() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let data = fs.fileset("data");
    let longest = [0xff; 255];
    let ino = fs.create(data, &longest, file(0o644), ROOT).unwrap().ino;
    fs.forget(ino, 1);
    assert_eq!(fs.lookup(data, &longest).unwrap().ino, ino);
    fs.forget(ino, 1);
    let too_long = [b'x'; 256];
    let refused = |found: Result<(), FsError>| {
        assert!(matches!(found, Err(FsError::NameTooLong)), "{found:?}");
    };
    refused(fs.create(data, &too_long, file(0o644), ROOT).map(drop));
    refused(fs.lookup(data, &too_long).map(drop));
    refused(fs.link(ino, data, &too_long).map(drop));
    refused(fs.rename(data, &longest, data, &too_long, Replace::Allowed));
    for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
        let found = fs.create(data, bad, file(0o644), ROOT);
        assert!(matches!(found, Err(FsError::Invalid)), "{bad:?}: {found:?}");
    }
    rig.close(fs);
}

#[test]
fn targets_of_symlinks_are_of_one_to_4095_bytes() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let data = fs.fileset("data");
    let make = |name: &[u8], target: &[u8]| {
        let new = New { kind: Kind::Symlink, target, ..file(0o777) };
        fs.create(data, name, new, ROOT).inspect(|made| fs.forget(made.ino, 1))
    };
    let longest = make(b"longest", &[b'x'; 4095]).unwrap();
    assert_eq!(longest.size, 4095);
    assert_eq!(fs.read_link(longest.ino).unwrap(), [b'x'; 4095]);
    assert!(matches!(make(b"longer", &[b'x'; 4096]), Err(FsError::NameTooLong)));
    assert!(matches!(make(b"empty", b""), Err(FsError::NotFound)));
    rig.close(fs);
}

/// Two pairs of names that share their 56 bits of hash under the key of sevens, found by search.
const ALIKE: [[&str; 2]; 2] =
    [["7399b9e0de3705", "17f203f1089f92"], ["188f4826d260fa", "56a01f045c6a18"]];

#[test]
fn names_of_one_hash_live_side_by_side() {
    let rig = Rig::with_hash_key([7; 16]);
    let fs = rig.open();
    let data = fs.fileset("data");
    let other = fs.make_directory(data, "other");
    for [one, two] in ALIKE {
        let inos = [one, two].map(|name| fs.make_file(other, name));
        let offsets: Vec<u64> = fs
            .items(other)
            .iter()
            .filter(|item| inos.contains(&item.ino))
            .map(|item| item.next_offset)
            .collect();
        assert_eq!(offsets[1] - offsets[0], 1, "their hashes are equal");
        for evict in [false, true] {
            if evict {
                fs.commit().unwrap();
                fs.drop_caches();
                fs.drop_caches();
            }
            assert_eq!([one, two].map(|name| fs.find(other, name)), inos.map(Some));
        }
        fs.unlink(other, one.as_bytes()).unwrap();
        assert_eq!((fs.find(other, one), fs.find(other, two)), (None, Some(inos[1])));
        fs.rename(other, two.as_bytes(), other, one.as_bytes(), Replace::Allowed).unwrap();
        assert_eq!((fs.find(other, one), fs.find(other, two)), (Some(inos[1]), None));
        let again = fs.make_file(other, two);
        fs.rename(other, two.as_bytes(), other, one.as_bytes(), Replace::Exchange).unwrap();
        assert_eq!((fs.find(other, one), fs.find(other, two)), (Some(again), Some(inos[1])));
        fs.rename(other, two.as_bytes(), other, one.as_bytes(), Replace::Allowed).unwrap();
        assert_eq!((fs.find(other, one), fs.find(other, two)), (Some(inos[1]), None));
    }
    rig.close(fs);
}

#[test]
fn an_evicted_directory_gives_a_name_of_the_same_hash_a_slot_of_its_own() {
    let rig = Rig::with_hash_key([7; 16]);
    let fs = rig.open();
    let data = fs.fileset("data");
    let [one, two] = ALIKE[0];
    let first = fs.make_file(data, one);
    rig.close(fs);
    let fs = rig.open();
    let second = fs.make_file(data, two);
    assert_eq!((fs.find(data, one), fs.find(data, two)), (Some(first), Some(second)));
    rig.close(fs);
}

fn status(fs: &User, name: &str) -> FilesetStatus {
    fs.fileset_status().into_iter().find(|status| status.name == name).expect("it is there")
}

fn refusal(found: Result<(), FsError>) -> String {
    match found {
        Err(FsError::Refused(why)) => why,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn filesets_are_made_changed_and_removed() {
    let rig = Rig::in_directory();
    let fs = rig.open();
    fs.create_fileset("new", Durability::Scratch, Placement::Served, 0o700).unwrap();
    rig.close(fs);
    let fs = rig.open();
    let found = status(&fs, "new");
    assert_eq!((found.durability, found.placement), (Durability::Scratch, Placement::Served));
    let root = fs.fileset("new");
    assert_eq!(fs.attributes(root).unwrap().mode, 0o700);
    let ino = fs.make_file(root, "file");
    let handle = fs.open(ino, WRITE);
    assert!(!handle.is_direct());
    handle.write(0, b"served");
    handle.close();
    fs.set_fileset("new", Some(Durability::Strict), Some(Placement::Direct)).unwrap();
    let handle = fs.open(ino, READ);
    assert!(handle.is_direct(), "settings count for files opened from now on");
    assert_eq!(handle.contents(), b"served");
    handle.close();
    assert!(refusal(fs.remove_fileset("new")).contains("holds 1 files"));
    fs.unlink(root, b"file").unwrap();
    fs.remove_fileset("new").unwrap();
    assert_eq!(fs.find(Ino::ROOT, "new"), None);
    rig.close(fs);
    let fs = rig.open();
    let names: Vec<String> = fs.fileset_status().into_iter().map(|status| status.name).collect();
    assert_eq!(names, ["/", "data", "work", "util"]);
    rig.close(fs);
}

#[test]
fn fileset_changes_that_make_no_sense_are_refused_with_the_reason() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    fs.make_directory(Ino::ROOT, "taken");
    let make =
        |name: &str| refusal(fs.create_fileset(name, Durability::Strict, Placement::Direct, 0o755));
    for bad in ["", "..", ".hidden", "a/b", "with space", "ä", &"x".repeat(256)] {
        assert!(make(bad).contains("is not a valid name for a fileset"));
    }
    for taken in ["data", "taken"] {
        assert!(make(taken).contains("already exists"));
    }
    assert!(refusal(fs.set_fileset("nowhere", None, None)).contains("data, work, util"));
    assert!(refusal(fs.remove_fileset("nowhere")).contains("no fileset"));
    assert!(refusal(fs.remove_fileset("/")).contains("root fileset"));
    rig.close(fs);
}

#[test]
fn the_root_of_a_fileset_is_busy_and_stays() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let data = fs.fileset("data");
    let busy =
        |found: Result<(), FsError>| assert!(matches!(found, Err(FsError::Busy)), "{found:?}");
    busy(fs.remove_directory(Ino::ROOT, b"work"));
    busy(fs.rename(Ino::ROOT, b"work", Ino::ROOT, b"other", Replace::Allowed));
    busy(fs.rename(Ino::ROOT, b"work", data, b"work", Replace::Allowed));
    fs.make_directory(Ino::ROOT, "directory");
    busy(fs.rename(Ino::ROOT, b"directory", Ino::ROOT, b"work", Replace::Allowed));
    busy(fs.rename(Ino::ROOT, b"directory", Ino::ROOT, b"work", Replace::Exchange));
    let found = fs.unlink(Ino::ROOT, b"work");
    assert!(matches!(found, Err(FsError::IsDirectory)));
    rig.close(fs);
}

#[test]
fn links_and_renames_across_filesets_are_refused() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let (data, work) = (fs.fileset("data"), fs.fileset("work"));
    let ino = fs.make_file(data, "file");
    let taken = fs.make_file(work, "taken");
    let crosses = |found: Result<(), FsError>| {
        assert!(matches!(found, Err(FsError::CrossFileset)), "{found:?}");
    };
    for target in [work, Ino::ROOT] {
        crosses(fs.link(ino, target, b"link").map(drop));
        crosses(fs.rename(data, b"file", target, b"file", Replace::Allowed));
    }
    crosses(fs.rename(data, b"file", work, b"taken", Replace::Allowed));
    crosses(fs.rename(data, b"file", work, b"taken", Replace::Exchange));
    assert_eq!((fs.find(data, "file"), fs.find(work, "taken")), (Some(ino), Some(taken)));
    rig.close(fs);
}

#[test]
fn a_number_of_a_removed_fileset_starts_from_nothing() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let mut numbers = std::collections::BTreeSet::new();
    for _ in 0..3 {
        fs.create_fileset("passing", Durability::Scratch, Placement::Direct, 0o755).unwrap();
        let root = fs.fileset("passing");
        assert_eq!(
            (status(&fs, "passing").files, status(&fs, "passing").bytes),
            (Some(1), Some(0))
        );
        let ino = fs.make_file(root, "file");
        fs.write_file(ino, 0, b"content");
        let open = fs.open(ino, READ);
        fs.unlink(root, b"file").unwrap();
        let refused = fs.remove_fileset("passing").unwrap_err().to_string();
        assert!(refused.contains("open files"), "{refused}");
        assert_eq!(open.contents(), b"content");
        open.close();
        fs.remove_fileset("passing").unwrap();
        assert!(numbers.insert(ino), "an inode number is never given twice");
        assert!(matches!(fs.attributes(ino), Err(FsError::Stale)));
    }
    rig.close(fs);
}

#[test]
fn usage_is_exact() {
    on_disks_of_the_owner(|rig| {
        let fs = rig.open();
        let data = fs.fileset("data");
        let expect = |fs: &User, files: u64, bytes: u64, what: &str| {
            let found = status(fs, "data");
            assert_eq!((found.files, found.bytes), (Some(files), Some(bytes)), "{what}");
        };
        expect(&fs, 1, 0, "an empty fileset has its root");
        let ino = fs.make_file(data, "file");
        fs.write_file(ino, 0, &[1; 1000]);
        expect(&fs, 2, 1000, "a write");
        fs.forget(fs.link(ino, data, b"link").unwrap().ino, 1);
        expect(&fs, 2, 1000, "a link is no file");
        let huge = SetAttributes { size: Some(1 << 40), ..SetAttributes::default() };
        fs.set_attributes(ino, huge).unwrap();
        expect(&fs, 2, 1 << 40, "holes count");
        fs.unlink(data, b"file").unwrap();
        expect(&fs, 2, 1 << 40, "one name of two");
        fs.overwrite(ino, &[2; 10]);
        expect(&fs, 2, 10, "a truncation");
        let below = fs.make_directory(data, "directory");
        let second = fs.make_file(below, "second");
        fs.write_file(second, 90, &[3; 10]);
        expect(&fs, 4, 110, "a hole and a directory");
        fs.rename(below, b"second", data, b"link", Replace::Allowed).unwrap();
        expect(&fs, 3, 100, "a rename over another file");
        let unnamed = fs.create_unnamed(data, file(0o600), USER).unwrap().ino;
        fs.write_file(unnamed, 0, &[4; 50]);
        expect(&fs, 3, 100, "a file without a name");
        fs.forget(fs.link(unnamed, data, b"named").unwrap().ino, 2);
        expect(&fs, 4, 150, "its first name");
        rig.close(fs);
        let fs = rig.open();
        expect(&fs, 4, 150, "a remount");
        let handle = fs.open(second, WRITE);
        handle.write(100, &[5; 100]);
        fs.commit().unwrap();
        expect(&fs, 4, 250, "a commit looks at files that are being written");
        handle.close();
        assert_eq!(fs.statistics().unwrap().inodes, 4 + 1 + 2, "with the other filesets");
        rig.close(fs);
    });
}

#[test]
fn files_as_large_as_can_be_do_not_break_the_count() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let data = fs.fileset("data");
    let small = fs.make_file(data, "small");
    fs.write_file(small, 0, &[1; 1000]);
    let before = status(&fs, "data");
    let huge = SetAttributes { size: Some(i64::MAX as u64), ..SetAttributes::default() };
    let names: Vec<String> = (0..4).map(|number| format!("huge-{number}")).collect();
    for name in &names {
        let ino = fs.make_file(data, name);
        fs.set_attributes(ino, huge).unwrap();
    }
    for name in &names {
        fs.unlink(data, name.as_bytes()).unwrap();
    }
    assert_eq!(status(&fs, "data"), before);
    rig.close(fs);
}

#[test]
fn a_directory_in_a_removed_directory_is_refused() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let data = fs.fileset("data");
    let (outer, inner) = {
        let outer = fs.create(data, b"outer", directory(0o755), ROOT).unwrap().ino;
        (outer, fs.create(outer, b"inner", directory(0o755), ROOT).unwrap().ino)
    };
    let ino = fs.make_file(data, "file");
    fs.make_directory(data, "directory");
    fs.remove_directory(outer, b"inner").unwrap();
    fs.remove_directory(data, b"outer").unwrap();
    fs.forget(outer, 1);
    let gone =
        |found: Result<(), FsError>| assert!(matches!(found, Err(FsError::NotFound)), "{found:?}");
    gone(fs.create(inner, b"x", file(0o644), ROOT).map(drop));
    gone(fs.link(ino, inner, b"x").map(drop));
    gone(fs.create_unnamed(inner, file(0o644), ROOT).map(drop));
    gone(fs.rename(data, b"file", inner, b"x", Replace::Allowed));
    gone(fs.rename(data, b"directory", inner, b"x", Replace::Allowed));
    gone(fs.rename(inner, b"x", data, b"y", Replace::Allowed));
    assert_eq!(fs.names(inner), [""; 0]);
    fs.forget(inner, 1);
    rig.close(fs);
}

#[test]
fn files_without_names_do_not_use_up_the_numbers() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let work = fs.fileset("work");
    let limit = || {
        let bytes = rig.store_of(work.fileset()).get(key::SUPERBLOCK).unwrap().unwrap();
        decode::<Superblock>("superblock", &bytes).unwrap().ino_limit
    };
    fs.commit().unwrap();
    let before = limit();
    let mut commits = 0;
    while limit() == before {
        let ino = fs.create_unnamed(work, file(0o600), ROOT).unwrap().ino;
        fs.forget(ino, 1);
        if fs.is_over_limits() {
            commits += 1;
            assert_eq!(commits, 1, "one commit moves the limit");
            fs.after_request();
        }
    }
    rig.close(fs);
}
