//! Replacing a file by renaming another over it, without a sync, as editors and configuration tools do.

mod support;

use forebay_fs::record::Kind;
use forebay_fs::{FsError, Replace};
use support::{Rig, Shorthand as _, USER, User, on_both_ways};

#[test]
fn after_a_crash_a_replaced_name_holds_the_old_bytes_or_the_new_ones() {
    let (old, new) = (vec![b'o'; 9000], vec![b'n'; 20_000]);
    for seed in support::seeds(
        60,
        "replace after_a_crash_a_replaced_name_holds_the_old_bytes_or_the_new_ones",
    ) {
        let rig = Rig::in_memory();
        let fs = rig.open();
        let data = fs.fileset("data");
        let first = fs.make_file(data, "settings");
        fs.write_file(first, 0, &old);
        fs.sync_all().unwrap();
        let second = fs.make_file(data, "settings.new");
        fs.write_file(second, 0, &new);
        fs.rename(data, b"settings.new", data, b"settings", Replace::Allowed).unwrap();
        let committed = seed % 2 == 0;
        if committed {
            fs.commit().unwrap();
        }
        rig.crash_machine(fs, seed);
        let fs = rig.open();
        fs.sweep().unwrap();
        let ino = fs.lookup(fs.fileset("data"), b"settings").unwrap().ino;
        let wanted = if committed { &new } else { &old };
        assert_eq!(&fs.contents(ino), wanted, "seed {seed}");
        rig.close(fs);
    }
}

#[test]
fn a_file_that_is_replaced_again_before_the_commit_is_not_kept_open_for_it() {
    on_both_ways(|rig| {
        let fs = rig.open();
        let data = fs.fileset("data");
        for number in 0..200_u8 {
            let ino = fs.make_file(data, "new");
            fs.write_file(ino, 0, &[number; 100]);
            fs.rename(data, b"new", data, b"name", Replace::Allowed).unwrap();
        }
        let open = fs.fs.objects().open_count();
        assert!(open < 20, "{open} objects are open for one file");
        fs.commit().unwrap();
        let ino = fs.find(data, "name").unwrap();
        assert_eq!(fs.contents(ino), [199; 100]);
        rig.close(fs);
    });
}

#[test]
fn a_rename_with_whiteout_leaves_a_device_that_hides_the_name() {
    on_both_ways(|rig| {
        let fs = rig.open();
        let data = fs.fileset("data");
        let (one, other) = (fs.make_directory(data, "one"), fs.make_directory(data, "other"));
        let file = fs.make_file(one, "file");
        let below = fs.make_directory(one, "below");
        fs.make_file(other, "taken");
        let leave = |from, to, replace| fs.rename_with_whiteout(from, to, replace, USER);
        let refused = leave((one, b"file"), (other, b"taken"), Replace::Refused);
        assert!(matches!(refused, Err(FsError::Exists)));
        let refused = leave((one, b"file"), (other, b"taken"), Replace::Exchange);
        assert!(matches!(refused, Err(FsError::Invalid)));
        leave((one, b"file"), (other, b"taken"), Replace::Allowed).unwrap();
        leave((one, b"below"), (one, b"renamed"), Replace::Refused).unwrap();
        let look = |fs: &User| {
            let find = |parent, name: &[u8]| {
                let found = fs.lookup(parent, name).unwrap();
                fs.forget(found.ino, 1);
                found
            };
            for name in [&b"file"[..], b"below"] {
                let left = find(one, name);
                assert_eq!((left.kind, left.rdev, left.mode), (Kind::CharDevice, 0, 0));
                assert_eq!((left.uid, left.gid, left.nlink), (1000, 1000, 1));
            }
            assert_eq!(find(other, b"taken").ino, file);
            assert_eq!(find(one, b"renamed").ino, below);
            assert_eq!(fs.attributes(one).unwrap().nlink, 3);
        };
        look(&fs);
        rig.close(fs);
        let fs = rig.open();
        look(&fs);
        rig.close(fs);
    });
}
