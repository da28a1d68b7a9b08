//! What requests leave to others: commits to the commit thread, closing to the reclaim thread, and the
//! store alone where memory can tell.

mod support;

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use forebay_base::{FailPoints, Ino};
use forebay_disk::Allocate;
use parking_lot::Mutex;
use support::tapped::{Step, TappedDisk};
use support::{READ, READ_WRITE, Rig, Shorthand as _, User, on_both_ways};

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

/// Has `act` move bytes of a file that a disk lets wait at `step`, and meanwhile `look` at it.
fn while_bytes_move(
    rig: &Rig,
    steps: &'static [Step],
    act: impl FnOnce(&User, Ino, Ino) + Send,
    look: impl FnOnce(&User, Ino, Ino) + Send,
) {
    let (reached, is_there) = mpsc::channel();
    let (go, may_go) = mpsc::channel::<()>();
    let gate = Mutex::new(None);
    let gate: Arc<Mutex<Option<mpsc::Receiver<()>>>> = Arc::new(gate);
    let at_gate = Arc::clone(&gate);
    let disk = TappedDisk::new(rig.disk.as_disk(), move |step| {
        if steps.contains(&step)
            && let Some(may_go) = at_gate.lock().take()
        {
            reached.send(()).unwrap();
            let _ = may_go.recv();
        }
    });
    let parts = rig.parts_with(Arc::new(rig.store.clone()), Arc::new(disk), FailPoints::none());
    let fs = rig.open_parts(parts);
    let data = fs.fileset("data");
    let [source, target] = ["source", "target"].map(|name| fs.make_file(data, name));
    fs.write_file(source, 0, b"content");
    let handles = [fs.open(source, READ), fs.open(target, READ_WRITE)];
    *gate.lock() = Some(may_go);
    let (looked, has_looked) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| act(&fs, source, target));
        is_there.recv_timeout(LIMIT).expect("bytes move");
        scope.spawn(|| {
            look(&fs, data, source);
            fs.attributes(target).unwrap();
            fs.find(data, "target").unwrap();
            fs.commit().unwrap();
            looked.send(()).unwrap();
        });
        let has_looked = has_looked.recv_timeout(Duration::from_secs(20));
        drop(go);
        has_looked.expect("nobody waits for bytes that move");
    });
    handles.into_iter().for_each(support::Handle::close);
    assert_eq!(fs.contents(target), b"content");
    rig.close(fs);
}

#[test]
fn a_copy_that_takes_long_holds_up_nobody() {
    on_both_ways(|rig| {
        let copy = |fs: &User, source, target| {
            assert_eq!(fs.copy_range((source, 0), (target, 0), 100).unwrap(), 7);
        };
        while_bytes_move(rig, &[Step::Copy, Step::Write], copy, |fs, data, _| {
            fs.unlink(data, b"source").unwrap();
            fs.make_file(data, "another");
        });
    });
}

#[test]
fn a_write_that_takes_long_holds_up_nobody() {
    let rig = Rig::in_memory();
    let write = |fs: &User, _, target| {
        assert_eq!(fs.write(target, 0, b"content").unwrap(), 7);
    };
    while_bytes_move(&rig, &[Step::Write], write, |fs, data, _| {
        fs.make_file(data, "another");
    });
}

#[test]
fn an_allocation_that_takes_long_holds_up_nobody() {
    on_both_ways(|rig| {
        let allocate = |fs: &User, source, target| {
            fs.allocate(target, Allocate::Extend, 0, 7).unwrap();
            assert_eq!(fs.attributes(target).unwrap().size, 7);
            fs.copy_range((source, 0), (target, 0), 7).unwrap();
        };
        while_bytes_move(rig, &[Step::Allocate], allocate, |_, _, _| {});
    });
}
