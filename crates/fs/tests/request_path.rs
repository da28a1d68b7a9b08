//! What requests leave to others: commits to the commit thread, closing to the reclaim thread, and the
//! store alone where memory can tell.

mod support;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use forebay_base::{FailPoints, Ino};
use forebay_disk::{Allocate, Sync};
use forebay_fs::{DirectoryItem, SetAttributes};
use forebay_store::faulty::FaultyStore;
use parking_lot::Mutex;
use support::tapped::{Step, TappedDisk, TappedStore};
use support::{
    READ, READ_WRITE, Rig, Shorthand as _, User, at_the_owner, on_both_ways, on_disks_of_the_owner,
};

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
    // A batch that is under way is no longer pending, and not there yet.
    let mut waited = Duration::ZERO;
    let mut batches = store.take();
    while batches.is_empty() && waited < LIMIT {
        std::thread::sleep(Duration::from_millis(5));
        waited += Duration::from_millis(5);
        batches = store.take();
    }
    assert!(!batches.is_empty());
    assert_eq!(fs.commit_health().pending, 0);
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
    on_disks_of_the_owner(|rig| {
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

#[test]
fn attributes_of_a_listing_are_read_from_the_store_at_once() {
    const FILES: usize = 700;
    let rig = Rig::in_memory();
    let fs = rig.open();
    let work = fs.fileset("work");
    for number in 0..FILES {
        fs.make_file(work, &format!("file-{number}"));
    }
    rig.close(fs);
    let (fs, store) = rig.open_watched();
    let work = fs.fileset("work");
    // One is in memory already, with a change that is not committed; another is gone.
    let changed = fs.find(work, "file-1").unwrap();
    fs.set_attributes(changed, SetAttributes { mode: Some(0o600), ..SetAttributes::default() })
        .unwrap();
    fs.unlink(work, b"file-2").unwrap();
    store.take_gets();
    let mut seen = Vec::new();
    let mut see = |item: &DirectoryItem| {
        let found = fs.listed_attributes(work, item).unwrap().unwrap();
        fs.forget(found.ino, 1);
        seen.push((item.name.clone(), found.mode));
        ControlFlow::Continue(())
    };
    fs.read_directory_ahead(work, 0, FILES, &mut see).unwrap();
    seen.retain(|(name, _)| name.starts_with(b"file"));
    assert_eq!(seen.len(), FILES - 1);
    for (name, mode) in &seen {
        assert_eq!(*mode == 0o600, name == b"file-1", "{name:?}");
    }
    let (alone, at_once) = store.take_gets();
    assert!(alone <= 1, "{alone} inodes were read one by one");
    assert!((1..=3).contains(&at_once), "{at_once} reads of many");
    rig.close(fs);
}

#[test]
fn inodes_that_cannot_be_read_at_once_are_read_one_by_one_and_told_of() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let work = fs.fileset("work");
    for number in 0..20 {
        fs.make_file(work, &format!("file-{number}"));
    }
    rig.close(fs);
    let store = Arc::new(FaultyStore::new(rig.store.clone()));
    let parts = rig.parts_with(Arc::clone(&store) as _, rig.disk.as_disk(), FailPoints::none());
    let fs = rig.open_parts(parts);
    let work = fs.fileset("work");
    fs.names(work);
    store.fail_reads(2);
    let (mut failed, mut found) = (0, 0);
    let mut see = |item: &DirectoryItem| {
        match fs.listed_attributes(work, item) {
            Ok(attributes) => {
                fs.forget(attributes.unwrap().ino, 1);
                found += 1;
            }
            Err(_) => failed += 1,
        }
        ControlFlow::Continue(())
    };
    fs.read_directory_ahead(work, 0, 100, &mut see).unwrap();
    assert_eq!((failed, found), (1, 21), "the read of all failed, and one of those alone");
    rig.close(fs);
}

#[test]
fn a_file_is_synced_while_its_name_is_committed() {
    at_the_owner(|rig| {
        // Either waits for the other: one after the other they would wait for ever.
        let [commits, syncs] = [(); 2].map(|()| mpsc::channel::<()>());
        let (commit_begins, sync_begins) = (commits.0, syncs.0);
        let (commit_begun, sync_begun) = (Mutex::new(commits.1), Mutex::new(syncs.1));
        let armed = Arc::new(AtomicBool::new(false));
        let is_armed = Arc::clone(&armed);
        let disk = TappedDisk::new(rig.disk.as_disk(), move |step| {
            if step == Step::Sync && is_armed.load(Ordering::Acquire) {
                sync_begins.send(()).unwrap();
                commit_begun.lock().recv_timeout(LIMIT).expect("the commit is under way");
            }
        });
        let is_armed = Arc::clone(&armed);
        let store = TappedStore::new(rig.store.clone(), move || {
            if is_armed.load(Ordering::Acquire) {
                commit_begins.send(()).unwrap();
                sync_begun.lock().recv_timeout(LIMIT).expect("the sync is under way");
            }
        });
        let parts = rig.parts_with(Arc::new(store), Arc::new(disk), FailPoints::none());
        let fs = rig.open_parts(parts);
        let data = fs.fileset("data");
        for what in [Sync::Data, Sync::All] {
            let file = fs.make_file(data, &format!("{what:?}"));
            fs.write_file(file, 0, b"durable");
            armed.store(true, Ordering::Release);
            fs.sync_file(file, what).unwrap();
            armed.store(false, Ordering::Release);
        }
        rig.close(fs);
    });
}
