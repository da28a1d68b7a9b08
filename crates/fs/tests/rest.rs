//! Filesets that nobody uses are closed, and are as they were when somebody does.

mod support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forebay_base::seed::Dice;
use forebay_base::{FilesetId, Ino};
use forebay_disk::Sync;
use forebay_fs::FsError;
use forebay_fs::record::{Durability, MountState, Placement};
use forebay_fs::recovery::read_superblock;
use support::{READ, READ_WRITE, Rig, Shorthand as _, User, at_the_owner};

/// Any time since the last look is enough.
const AT_ONCE: Duration = Duration::ZERO;

fn make_filesets(fs: &User, count: usize) -> Vec<Ino> {
    let make = |number| {
        let name = format!("fileset-{number}");
        fs.create_fileset(&name, Durability::Strict, Placement::Direct, 0o755).unwrap();
        fs.fileset(&name)
    };
    (0..count).map(make).collect()
}

#[test]
fn a_thousand_filesets_that_nobody_uses_take_no_memory_and_lose_nothing() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let tops = make_filesets(&fs, 1000);
    let files: Vec<Ino> = tops
        .iter()
        .map(|top| {
            let file = fs.make_file(*top, "file");
            fs.write_file(file, 0, &top.0.to_le_bytes());
            // The kernel knows it until it is told to forget it.
            fs.lookup(*top, b"file").unwrap().ino
        })
        .collect();
    assert_eq!(fs.open_filesets(), 1001);
    assert_eq!(fs.close_unused(Duration::from_secs(1)), 0, "all were used a moment ago");
    let used = fs.cache_usage();
    assert_eq!(fs.close_unused(AT_ONCE), 1000);
    assert_eq!(fs.open_filesets(), 1);
    let (inodes, bytes) = fs.cache_usage();
    assert!(inodes < 10 && bytes < used.1 / 5, "{inodes} inodes of {bytes} bytes stay");
    assert_eq!(fs.disk_status()[0].objects_in_use, 1000);
    let usage: u64 = fs.fileset_status().iter().filter_map(|one| one.files).sum();
    assert_eq!(usage, 4 + 2 * 1000);
    for (top, file) in tops.iter().zip(&files) {
        assert_eq!(fs.attributes(*file).unwrap().size, 8);
        assert_eq!(fs.contents(*file), top.0.to_le_bytes());
        assert_eq!(fs.make_file(*top, "second").fileset(), top.fileset());
    }
    // A file that loses its name lives until the kernel forgets it, however often its fileset rested.
    fs.close_unused(AT_ONCE);
    for (number, (top, file)) in tops.iter().zip(&files).enumerate() {
        if number % 2 == 0 {
            fs.unlink(*top, b"file").unwrap();
            assert_eq!(fs.attributes(*file).unwrap().nlink, 0);
            fs.close_unused(AT_ONCE);
            assert_eq!(fs.attributes(*file).unwrap().nlink, 0);
        }
        fs.forget(*file, 1);
    }
    assert!(matches!(fs.attributes(files[0]), Err(FsError::Stale)));
    fs.close_unused(AT_ONCE);
    assert_eq!(fs.open_filesets(), 1);
    rig.close(fs);
    for top in &tops {
        let superblock = read_superblock(&rig.store_of(top.fileset())).unwrap();
        assert_eq!(superblock.state, MountState::Clean, "what rested is left in order");
    }
    let fs = rig.open();
    assert_eq!(fs.open_filesets(), 1);
    assert_eq!(fs.names(tops[1]), ["file", "second"]);
    rig.close(fs);
}

#[test]
fn a_fileset_that_rested_counts_as_open_in_a_crash() {
    at_the_owner(|rig| {
        let fs = rig.open();
        let data = fs.fileset("data");
        let file = fs.make_file(data, "file");
        fs.write_file(file, 0, b"content");
        assert_eq!(fs.close_unused(AT_ONCE), 1);
        rig.crash_process(fs);
        let superblock = read_superblock(&rig.store_of(FilesetId(1))).unwrap();
        assert_eq!(superblock.state, MountState::Mounted);
        let fs = rig.open();
        fs.sweep().unwrap();
        assert_eq!(fs.open_filesets(), 2, "it was opened to be swept");
        assert_eq!(fs.contents(file), b"content", "what rests is committed");
        rig.close(fs);
    });
}

#[test]
fn a_fileset_of_which_something_is_in_use_stays_open() {
    at_the_owner(|rig| {
        let fs = rig.open();
        let data = fs.fileset("data");
        let (file, gone) = (fs.make_file(data, "file"), fs.make_file(data, "gone"));
        let handle = fs.open(file, READ_WRITE);
        handle.write(0, b"content");
        assert_eq!(fs.close_unused(AT_ONCE), 0, "a file is open");
        handle.write(7, b" and more");
        assert_eq!(handle.contents(), b"content and more");
        handle.close();
        assert_eq!(fs.lookup(data, b"gone").unwrap().ino, gone);
        fs.unlink(data, b"gone").unwrap();
        assert_eq!(fs.close_unused(AT_ONCE), 0, "a file without a name lives on");
        fs.forget(gone, 1);
        assert_eq!(fs.close_unused(AT_ONCE), 1);
        assert_eq!(fs.contents(file), b"content and more");
        rig.close(fs);
    });
}

#[test]
fn filesets_rest_and_are_used_by_many_at_the_same_time() {
    let test = "rest filesets_rest_and_are_used_by_many_at_the_same_time";
    let seed = support::seeds(1, test).start;
    at_the_owner(|rig| {
        let fs = rig.open();
        let tops = make_filesets(&fs, 6);
        let (rests, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let written: Vec<AtomicU64> = (0..24).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    rests.fetch_add(fs.close_unused(AT_ONCE) as u64, Ordering::Relaxed);
                    std::thread::yield_now();
                }
            });
            let workers: Vec<_> = (0..4_usize)
                .map(|worker| {
                    let (fs, tops, written) = (&fs, &tops, &written);
                    let mut dice = Dice::of(seed + worker as u64);
                    scope.spawn(move || {
                        for round in 0..300_u64 {
                            let place = usize::try_from(dice.below(6)).unwrap();
                            let top = tops[place];
                            let name = format!("file-{worker}");
                            let file =
                                fs.find(top, &name).unwrap_or_else(|| fs.make_file(top, &name));
                            let handle = fs.open(file, READ_WRITE);
                            handle.write(8 * (round % 4), &round.to_le_bytes());
                            if dice.below(3) == 0 {
                                fs.sync_file(file, Sync::All).unwrap();
                            }
                            handle.close();
                            let read = fs.open(file, READ);
                            let offset = 8 * (round % 4);
                            assert_eq!(read.read(offset, 8), round.to_le_bytes());
                            read.close();
                            let temporary = format!("temporary-{worker}");
                            fs.make_file(top, &temporary);
                            fs.unlink(top, temporary.as_bytes()).unwrap();
                            written[worker * 6 + place].store(round + 1, Ordering::Relaxed);
                            // Between uses there is time to rest.
                            std::thread::sleep(Duration::from_micros(dice.below(300)));
                        }
                    })
                })
                .collect();
            let outcomes: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
            stop.store(true, Ordering::Relaxed);
            outcomes.into_iter().for_each(|outcome| outcome.unwrap());
        });
        println!("filesets rested {} times", rests.load(Ordering::Relaxed));
        assert!(rests.load(Ordering::Relaxed) > 10, "some rest meanwhile");
        for worker in 0..4 {
            for (place, top) in tops.iter().enumerate() {
                let latest = written[worker * 6 + place].load(Ordering::Relaxed);
                let Some(round) = latest.checked_sub(1) else { continue };
                let file = fs.find(*top, &format!("file-{worker}")).unwrap();
                let offset = usize::try_from(8 * (round % 4)).unwrap();
                assert_eq!(fs.contents(file)[offset..offset + 8], round.to_le_bytes());
            }
        }
        rig.close(fs);
    });
}
