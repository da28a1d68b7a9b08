//! What requests leave to others: they leave the store alone where memory can tell.

mod support;

use support::{Rig, Shorthand as _};

#[test]
fn a_name_that_is_missing_from_a_small_directory_is_looked_for_in_the_store_once() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let work = fs.fileset("work");
    for number in 0..100 {
        fs.make_file(work, &format!("file-{number}"));
    }
    rig.close(fs);
    let (fs, store) = rig.open_watched();
    let work = fs.fileset("work");
    store.take_scans();
    for number in 0..1000 {
        assert_eq!(fs.find(work, &format!("temp-{number}")), None);
    }
    assert!(fs.find(work, "file-7").is_some());
    assert_eq!(store.take_scans(), 1);
    rig.close(fs);
}

#[test]
fn a_large_directory_is_cached_once_that_many_names_were_looked_for_in_it() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let work = fs.fileset("work");
    for number in 0..3200 {
        fs.make_file(work, &format!("file-{number}"));
    }
    rig.close(fs);
    for (load_max, scans) in [(65_536, 199 + 1..=199 + 2), (100, 1000..=1000)] {
        rig.settings_mut(|settings| settings.directory_load_max = load_max);
        let (fs, store) = rig.open_watched();
        let work = fs.fileset("work");
        store.take_scans();
        for number in 0..1000 {
            assert_eq!(fs.find(work, &format!("temp-{number}")), None);
        }
        let found = store.take_scans();
        assert!(scans.contains(&found), "{found} scans");
        rig.close(fs);
    }
}
