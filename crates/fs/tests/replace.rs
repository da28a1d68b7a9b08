//! Replacing a file by renaming another over it, without a sync, as editors and configuration tools do.

mod support;

use forebay_fs::Replace;
use support::{Rig, Shorthand as _};

#[test]
fn after_a_crash_a_replaced_name_holds_the_old_bytes_or_the_new_ones() {
    let (old, new) = (vec![b'o'; 9000], vec![b'n'; 20_000]);
    for seed in 0..60 {
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
