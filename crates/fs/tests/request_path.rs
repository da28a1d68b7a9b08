//! What requests leave to others: commits to the commit thread, closing to the reclaim thread, and the
//! store alone where memory can tell.

mod support;

use std::time::Duration;

use support::{Rig, Shorthand as _, on_both_ways};

/// For what a thread does in its own time.
const LIMIT: Duration = Duration::from_secs(60);

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

#[test]
fn changes_beyond_the_bound_are_committed_by_the_commit_thread() {
    let rig = Rig::in_memory();
    rig.settings_mut(|settings| {
        settings.uncommitted_max = 50;
        settings.commit_interval = Duration::from_secs(60);
    });
    let (fs, store) = rig.open_watched();
    let background = fs.fs.start_background().unwrap();
    let work = fs.fileset("work");
    store.take();
    for number in 0..30 {
        fs.make_file(work, &format!("file-{number}"));
    }
    assert!(store.take().is_empty(), "nobody was asked to commit yet");
    fs.after_request();
    let mut waited = Duration::ZERO;
    while fs.commit_health().pending > 0 && waited < LIMIT {
        std::thread::sleep(Duration::from_millis(5));
        waited += Duration::from_millis(5);
    }
    assert_eq!(fs.commit_health().pending, 0);
    assert!(!store.take().is_empty());
    background.stop();
    rig.close(fs);
}

#[test]
fn changes_far_beyond_the_bound_are_committed_before_the_request_ends() {
    let rig = Rig::in_memory();
    rig.settings_mut(|settings| settings.uncommitted_max = 50);
    let fs = rig.open();
    // In the background, but nobody is there: only the request itself can commit.
    fs.objects().start();
    let work = fs.fileset("work");
    for number in 0..40 {
        fs.make_file(work, &format!("file-{number}"));
    }
    fs.after_request();
    assert!(fs.commit_health().pending > 80, "twice the bound may wait");
    for number in 40..60 {
        fs.make_file(work, &format!("file-{number}"));
    }
    fs.after_request();
    assert_eq!(fs.commit_health().pending, 0);
    fs.objects().stop();
    rig.close(fs);
}

#[test]
fn objects_that_wait_to_be_closed_leave_the_idle_ones_open() {
    on_both_ways(|rig| {
        rig.settings_mut(|settings| settings.open_objects_max = 64);
        let fs = rig.open();
        // In the background, but nobody is there: dropped objects stay in the queue.
        fs.objects().start();
        let data = fs.fileset("data");
        let kept = fs.make_file(data, "kept");
        fs.write_file(kept, 0, b"kept");
        for number in 0..200 {
            let name = format!("temp-{number}");
            let ino = fs.make_file(data, &name);
            fs.write_file(ino, 0, b"gone soon");
            fs.unlink(data, name.as_bytes()).unwrap();
            fs.after_request();
        }
        assert!(fs.objects().open_count() > 200);
        assert!(fs.objects().in_use_count() < 64);
        assert!(rig.objects().is_empty(), "the kept file was closed, and so published");
        fs.objects().stop();
        rig.close(fs);
    });
}
