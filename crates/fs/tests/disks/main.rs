//! Disks that come and go, pools of disks, and tasks that move files between them: whatever programs do meanwhile, and
//! wherever the power is cut.

mod nearly_full;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_base::seed::Dice;
use forebay_base::time::StepClock;
use forebay_base::{FailPoints, FilesetId, Ino, ObjectId};
use forebay_disk::memory::MemoryDisk;
use forebay_disk::{Disk, Sync};
use forebay_fs::fsck::{self, Outcome, Repair};
use forebay_fs::record::{DEFAULT_POOL, DiskUse, Durability, Placement};
use forebay_fs::tasks::TaskState;
use forebay_fs::{FsError, NewDisk, NewFileset, Parts};
use support::files::{assert_holds, bytes_of, fill, refused};
use support::{READ, READ_WRITE, ROOT, Rig, Shorthand as _, User, WRITE, fsck_of};

const FIRST: &str = "disk-one";
const SECOND: &str = "disk-two";

/// A file system on one disk, and a second disk that may become one of it.
pub(crate) struct Pair {
    pub(crate) rig: Rig,
    second: MemoryDisk,
}

impl Pair {
    fn new() -> Pair {
        Pair::of_capacity(1 << 40)
    }

    pub(crate) fn of_capacity(bytes: u64) -> Pair {
        let rig = Rig::of_capacity(bytes);
        let second = MemoryDisk::new(bytes, Arc::clone(&rig.clock) as Arc<_>);
        Pair { rig, second }
    }

    pub(crate) fn parts(&self, points: &FailPoints) -> Parts {
        let store = self.rig.store.reopen_with_fail_points(points.clone());
        let support::TestDisk::Memory(first) = &self.rig.disk else { panic!("it is in memory") };
        let first = Arc::new(first.reopen_with_fail_points(points.clone()));
        let mut parts = self.rig.parts_with(Arc::new(store), first, points.clone());
        parts.disks.push((SECOND.to_owned(), self.second_disk(points)));
        parts
    }

    fn second_disk(&self, points: &FailPoints) -> Arc<dyn Disk> {
        Arc::new(self.second.reopen_with_fail_points(points.clone()))
    }

    pub(crate) fn open(&self) -> User {
        self.rig.open_parts(self.parts(&FailPoints::none()))
    }

    /// With the second disk in a pool.
    pub(crate) fn open_with_both(&self, pool: &str) -> User {
        let fs = self.open();
        fs.add_disk(&new_disk(pool), self.second_disk(&FailPoints::none())).unwrap();
        fs
    }

    fn disks(&self) -> Vec<fsck::NamedDisk> {
        let second: Arc<dyn Disk> = Arc::new(self.second.clone());
        vec![(FIRST.to_owned(), self.rig.disk.as_disk()), (SECOND.to_owned(), second)]
    }

    pub(crate) fn assert_clean(&self) {
        let names = support::check::name_problems(&self.rig.stores());
        assert!(names.is_empty(), "{names:#?}");
        let report = fsck_of(&self.rig.stores(), &self.disks(), Repair::Never, false);
        assert_eq!(report.outcome(), Outcome::Clean, "{:#?}", report.findings);
    }

    pub(crate) fn close(&self, fs: User) {
        fs.close().unwrap();
        drop(fs);
        self.assert_clean();
    }

    pub(crate) fn crash(&self, fs: User, machine: Option<u64>) {
        drop(fs);
        let support::TestDisk::Memory(first) = &self.rig.disk else { panic!("it is in memory") };
        for disk in [first, &self.second] {
            match machine {
                Some(seed) => disk.crash_machine(seed),
                None => disk.crash_process(),
            }
        }
    }
}

fn new_disk(pool: &str) -> NewDisk {
    NewDisk {
        uuid: SECOND.to_owned(),
        location: "there".to_owned(),
        pool: pool.to_owned(),
        group: String::new(),
    }
}

fn objects_on(disk: &dyn Disk) -> Vec<ObjectId> {
    let mut found = Vec::new();
    disk.list(&mut |id| {
        found.push(id);
        true
    })
    .unwrap();
    found.sort_unstable();
    found
}

fn state_of(fs: &User, number: u64) -> TaskState {
    fs.task_status().into_iter().find(|task| task.id == number).unwrap().state
}

#[test]
fn a_disk_that_is_added_takes_new_files_at_once_and_is_there_after_a_mount() {
    let pair = Pair::new();
    let fs = pair.open_with_both(DEFAULT_POOL);
    let data = fs.fileset("data");
    let files = fill(&fs, data, 10);
    fs.sync_all().unwrap();
    assert!(!objects_on(&pair.second).is_empty());
    let status = fs.disk_status();
    assert_eq!(status.iter().map(|disk| disk.pool.as_str()).collect::<Vec<_>>(), [DEFAULT_POOL; 2]);
    pair.close(fs);
    let fs = pair.open();
    assert_holds(&fs, &files);
    assert_eq!(fs.disk_status().len(), 2);
    let again = refused(fs.add_disk(&new_disk("flash"), pair.second_disk(&FailPoints::none())));
    assert!(again.contains("is one already"), "{again}");
    pair.close(fs);
}

#[test]
fn new_files_lie_in_the_pool_of_their_fileset() {
    let pair = Pair::new();
    let fs = pair.open_with_both("archive");
    let (data, work) = (fs.fileset("data"), fs.fileset("work"));
    fill(&fs, data, 5);
    fs.sync_all().unwrap();
    assert_eq!(objects_on(&pair.second), []);
    fs.set_fileset_pool("work", "archive").unwrap();
    let files = fill(&fs, work, 5);
    fs.sync_all().unwrap();
    let of_work = |id: &ObjectId| id.fileset() == work.fileset();
    assert!(objects_on(&pair.second).iter().all(of_work));
    assert_eq!(objects_on(&*pair.rig.disk.as_disk()).iter().filter(|id| of_work(id)).count(), 0);
    assert_eq!(fs.fileset_status()[2].pool.as_deref(), Some("archive"));
    pair.close(fs);
    // It is a setting of the fileset, kept with it.
    let fs = pair.open();
    let before = objects_on(&pair.second).len();
    fs.make_file(work, "one more");
    fs.write_file(fs.find(work, "one more").unwrap(), 0, b"bytes");
    fs.sync_all().unwrap();
    assert_eq!(objects_on(&pair.second).len(), before + 1);
    assert_holds(&fs, &files);
    let new = NewFileset {
        name: "cold".to_owned(),
        durability: Durability::Strict,
        placement: Placement::Direct,
        disk: None,
        pool: Some("archive".to_owned()),
        mode: 0o755,
    };
    fs.add_fileset(&new).unwrap();
    let cold = fs.make_file(fs.fileset("cold"), "file");
    fs.write_file(cold, 0, b"bytes");
    fs.sync_all().unwrap();
    assert_eq!(objects_on(&pair.second).len(), before + 2);
    pair.close(fs);
}

#[test]
fn no_fileset_is_left_without_a_disk_for_its_new_files() {
    let pair = Pair::new();
    let fs = pair.open();
    assert!(refused(fs.set_fileset_pool("data", "flash")).contains("choose from default"));
    assert!(refused(fs.drain_disk(FIRST, None)).contains("add a disk to that pool first"));
    fs.add_disk(&new_disk("archive"), pair.second_disk(&FailPoints::none())).unwrap();
    assert!(refused(fs.drain_disk(FIRST, Some("archive"))).contains("the last one of pool"));
    assert!(refused(fs.label_disk(FIRST, Some("flash"), None)).contains("the last one of pool"));
    fs.label_disk(SECOND, Some(DEFAULT_POOL), Some("rack-2")).unwrap();
    assert_eq!(fs.disk_status()[1].group, "rack-2");
    fs.label_disk(FIRST, Some("flash"), None).unwrap();
    for bad in ["", "a b", "a/b", &"x".repeat(65)] {
        refused(fs.label_disk(FIRST, Some(bad), None));
    }
    assert!(refused(fs.remove_disk(FIRST)).contains("drain"));
    assert!(refused(fs.remove_disk("nothing")).contains("choose from"));
    pair.close(fs);
}

#[test]
fn a_drained_disk_is_empty_and_every_file_is_where_it_was() {
    let pair = Pair::new();
    let fs = pair.open();
    let (data, work) = (fs.fileset("data"), fs.fileset("work"));
    let mut files = fill(&fs, data, 30);
    files.append(&mut fill(&fs, work, 30));
    let sparse = fs.make_file(data, "sparse");
    fs.write_file(sparse, 1 << 30, b"the end");
    fs.commit().unwrap();
    let before: Vec<_> = files.keys().map(|ino| fs.attributes(*ino).unwrap()).collect();
    fs.add_disk(&new_disk(DEFAULT_POOL), pair.second_disk(&FailPoints::none())).unwrap();
    let number = fs.drain_disk(FIRST, None).unwrap();
    assert!(refused(fs.drain_disk(FIRST, None)).contains("already"));
    let mut seen = Vec::new();
    fs.work_through(number, &mut |status| seen.push(status.progress.files)).unwrap();
    assert_eq!(seen.last(), Some(&61));
    assert_eq!(state_of(&fs, number), TaskState::Done);
    assert_eq!(objects_on(&*pair.rig.disk.as_disk()), []);
    let after: Vec<_> = files.keys().map(|ino| fs.attributes(*ino).unwrap()).collect();
    for (before, after) in before.iter().zip(&after) {
        let times = |of: &forebay_fs::Attributes| (of.size, of.modified, of.changed, of.nlink);
        assert_eq!(times(before), times(after));
    }
    assert_holds(&fs, &files);
    assert_eq!(fs.attributes(sparse).unwrap().size, (1 << 30) + 7);
    assert!(pair.second.attributes(*objects_on(&pair.second).last().unwrap()).unwrap().is_some());
    // New files go elsewhere meanwhile and afterwards.
    fill(&fs, fs.make_directory(data, "more"), 10);
    fs.sync_all().unwrap();
    assert_eq!(objects_on(&*pair.rig.disk.as_disk()), []);
    assert_eq!(fs.remove_disk(FIRST).unwrap().uuid, FIRST);
    assert_eq!(fs.disk_status().len(), 1);
    pair.close(fs);
    // The disk is gone for good, and nobody misses it.
    let mut parts = pair.parts(&FailPoints::none());
    parts.disks.remove(0);
    let fs = pair.rig.open_parts(parts);
    assert_holds(&fs, &files);
    assert_eq!(fs.disk_status().len(), 1);
    assert!(fs.was_removed(FIRST) && !fs.was_removed(SECOND));
    fs.close().unwrap();
    drop(fs);
    let report = fsck_of(&pair.rig.stores(), &pair.disks()[1..], Repair::Never, false);
    assert_eq!(report.outcome(), Outcome::Clean, "{:#?}", report.findings);
}

#[test]
fn times_of_a_moved_file_stay_after_a_crash() {
    let pair = Pair::new();
    let fs = pair.open_with_both(DEFAULT_POOL);
    let files = fill(&fs, fs.fileset("data"), 8);
    fs.sync_all().unwrap();
    let before: Vec<_> = files.keys().map(|ino| fs.attributes(*ino).unwrap()).collect();
    let number = fs.drain_disk(FIRST, None).unwrap();
    fs.work_through(number, &mut |_| {}).unwrap();
    pair.crash(fs, Some(7));
    let fs = pair.open();
    let after: Vec<_> = files.keys().map(|ino| fs.attributes(*ino).unwrap()).collect();
    for (before, after) in before.iter().zip(&after) {
        assert_eq!((before.modified, before.changed), (after.modified, after.changed));
    }
    assert_holds(&fs, &files);
    fs.sweep().unwrap();
    pair.close(fs);
}

#[test]
fn a_file_that_is_open_is_moved_when_it_is_closed() {
    let pair = Pair::new();
    let fs = pair.open();
    let data = fs.fileset("data");
    let files = fill(&fs, data, 3);
    let (open, removed) = (*files.keys().next().unwrap(), fs.make_file(data, "removed"));
    fs.write_file(removed, 0, b"without a name");
    fs.sync_all().unwrap();
    let (reads, nameless) = (fs.open(open, READ), fs.open(removed, READ_WRITE));
    fs.unlink(data, b"removed").unwrap();
    fs.add_disk(&new_disk(DEFAULT_POOL), pair.second_disk(&FailPoints::none())).unwrap();
    let number = fs.drain_disk(FIRST, None).unwrap();
    let waits = refused(fs.work_through(number, &mut |_| {}));
    assert!(waits.contains("1 file is in use") && waits.contains("data/file-0"), "{waits}");
    assert!(refused(fs.remove_disk(FIRST)).contains("not empty"));
    assert_eq!(reads.contents(), bytes_of(0));
    reads.close();
    let waits = refused(fs.work_through(number, &mut |_| {}));
    assert!(waits.contains("open"), "{waits}");
    nameless.write(0, b"still mine");
    assert_eq!(nameless.read(0, 10), b"still mine");
    nameless.close();
    fs.work_through(number, &mut |_| {}).unwrap();
    assert_holds(&fs, &files);
    fs.remove_disk(FIRST).unwrap();
    fs.close().unwrap();
}

#[test]
fn files_that_programs_use_while_they_are_moved_lose_and_tear_no_write() {
    let first = support::seeds(
        3,
        "disks files_that_programs_use_while_they_are_moved_lose_and_tear_no_write",
    );
    for seed in first {
        let pair = Pair::new();
        let fs = pair.open_with_both(DEFAULT_POOL);
        let background = fs.fs.start_background().unwrap();
        let data = fs.fileset("data");
        let inos: Vec<Ino> =
            (0..16).map(|number| fs.make_file(data, &format!("file-{number}"))).collect();
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (fs, inos, ended) = (&fs, &inos, &ended);
            let writers: Vec<_> = (0..3_usize)
                .map(|writer| {
                    scope.spawn(move || {
                        let mut dice = Dice::of(seed * 10 + writer as u64);
                        // Each has files of its own, so that it knows what is in them.
                        let own: Vec<Ino> = inos.iter().copied().skip(writer).step_by(3).collect();
                        let mut truth: BTreeMap<Ino, Vec<u8>> =
                            own.iter().map(|ino| (*ino, Vec::new())).collect();
                        for _ in 0..300 {
                            let ino = own[dice.index(own.len())];
                            use_file(fs, ino, truth.get_mut(&ino).unwrap(), &mut dice);
                        }
                        truth
                    })
                })
                .collect();
            let mover = scope.spawn(|| {
                let mut turns = 0;
                while !ended.load(Ordering::Relaxed) || turns < 2 {
                    let from = [FIRST, SECOND][turns % 2];
                    let number = fs.drain_disk(from, None).unwrap();
                    while fs.work_through(number, &mut |_| {}).is_err()
                        && state_of(fs, number) == TaskState::Running
                    {}
                    if state_of(fs, number) == TaskState::Running {
                        fs.cancel_task(number).unwrap();
                    } else {
                        // It is empty, and is used again.
                        fs.use_disk_again(from).unwrap();
                    }
                    turns += 1;
                }
                turns
            });
            let truths: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
            ended.store(true, Ordering::Relaxed);
            assert!(mover.join().unwrap() >= 2);
            truths.iter().for_each(|truth| assert_holds(fs, truth));
        });
        background.stop();
        pair.close(fs);
    }
}

/// Does something with a file of which `truth` is what it holds.
fn use_file(fs: &User, ino: Ino, truth: &mut Vec<u8>, dice: &mut Dice) {
    match dice.index(10) {
        0..5 => {
            let (at, byte) = (dice.index(truth.len() + 1), u8::try_from(dice.index(256)).unwrap());
            let data = vec![byte; 1 + dice.index(9000)];
            fs.write_file(ino, at as u64, &data);
            truth.resize(truth.len().max(at + data.len()), 0);
            truth[at..at + data.len()].copy_from_slice(&data);
        }
        5 => {
            let data = vec![u8::try_from(dice.index(256)).unwrap(); dice.index(5000)];
            fs.overwrite(ino, &data);
            *truth = data;
        }
        6 => {
            let size = dice.index(truth.len() + 1);
            let set = forebay_fs::SetAttributes { size: Some(size as u64), ..Default::default() };
            fs.set_attributes(ino, set).unwrap();
            truth.truncate(size);
        }
        7 => {
            let handle = fs.open(ino, WRITE);
            fs.sync_file(ino, Sync::All).unwrap();
            handle.close();
        }
        8 => fs.drop_caches(),
        _ => assert!(fs.contents(ino) == *truth, "inode {ino} has changed"),
    }
}

/// Adds a disk, drains the first one into it, and removes that, until the power goes. Returns the files that were synced
/// before, and whether all was done.
fn drain_until_cut(
    pair: &Pair,
    point: &str,
    passes: u64,
    machine: Option<u64>,
) -> (BTreeMap<Ino, Vec<u8>>, bool) {
    let fs = pair.open();
    let mut files = fill(&fs, fs.fileset("data"), 6);
    files.append(&mut fill(&fs, fs.fileset("util"), 6));
    pair.close(fs);
    let points = FailPoints::cut_at(point, passes);
    let fs = pair.rig.open_parts(pair.parts(&points));
    let done = fs
        .add_disk(&new_disk(DEFAULT_POOL), pair.second_disk(&points))
        .and_then(|()| fs.drain_disk(FIRST, None))
        .and_then(|number| fs.work_through(number, &mut |_| {}))
        .and_then(|()| fs.remove_disk(FIRST));
    assert!(done.is_ok() || points.is_cut(), "{done:?}");
    let was_cut = points.is_cut();
    assert!(was_cut || point == "never", "{point} was not reached");
    points.cut_now();
    pair.crash(fs, machine);
    (files, done.is_ok())
}

#[test]
fn a_crash_at_any_step_of_a_drain_loses_nothing_and_the_next_mount_goes_on() {
    let first = support::seeds(1, "disks a_crash_at_any_step_of_a_drain_loses_nothing").start;
    let points = [
        ("disk.added", 0),
        ("disk.draining", 0),
        ("move.copied", 0),
        ("move.copied", 7),
        ("move.synced", 0),
        ("move.synced", 7),
        ("move.turned", 0),
        ("move.turned", 7),
        ("commit.start", 1),
        ("commit.published", 1),
        ("commit.stored", 1),
        ("commit.done", 1),
        ("reclaim.removed", 0),
        ("reclaim.removed", 5),
        ("task.ending", 0),
        ("disk.removing", 0),
        ("disk.removed", 0),
        ("disk.write", 3),
        ("disk.set_modified", 4),
        ("disk.publish", 4),
        ("disk.sync", 4),
        ("disk.remove", 3),
        ("store.commit.before", 6),
        ("store.commit.after", 6),
        ("store.commit.before", 7),
        ("store.commit.after", 7),
        ("never", 0),
    ];
    let mut ends = 0;
    for (point, passes) in points {
        for seed in first..first + 3 {
            println!("cut at {point} after {passes} passes, seed {seed}");
            let machine = (seed > first).then_some(seed);
            let pair = Pair::new();
            let (files, done) = drain_until_cut(&pair, point, passes, machine);
            ends += u32::from(done);
            let fs = pair.open();
            assert_holds(&fs, &files);
            fs.sweep().unwrap();
            finish_drain(&pair, &fs);
            assert_holds(&fs, &files);
            assert_eq!(objects_on(&*pair.rig.disk.as_disk()), []);
            fs.close().unwrap();
            drop(fs);
            pair.assert_clean();
        }
    }
    assert!(ends < 10, "where something was cut not all was done");
}

/// Does what a crash has left to do of a drain.
fn finish_drain(pair: &Pair, fs: &User) {
    if fs.was_removed(FIRST) {
        return;
    }
    if !fs.has_disk(SECOND) {
        fs.add_disk(&new_disk(DEFAULT_POOL), pair.second_disk(&FailPoints::none())).unwrap();
    }
    let first = fs.disk_named(FIRST).unwrap();
    let unfinished = fs.task_status().into_iter().find(|task| task.state == TaskState::Running);
    match unfinished {
        Some(task) => fs.work_through(task.id, &mut |_| {}).unwrap(),
        None if first.used == DiskUse::Normal => {
            let number = fs.drain_disk(FIRST, None).unwrap();
            fs.work_through(number, &mut |_| {}).unwrap();
        }
        None => {}
    }
    fs.remove_disk(FIRST).unwrap();
}

#[test]
fn a_task_is_paused_resumed_and_cancelled_also_over_a_mount() {
    let pair = Pair::new();
    let fs = pair.open_with_both(DEFAULT_POOL);
    let files = fill(&fs, fs.fileset("data"), 10);
    fs.sync_all().unwrap();
    let number = fs.drain_disk(FIRST, None).unwrap();
    fs.pause_task(number).unwrap();
    assert!(matches!(fs.work_through(number, &mut |_| {}), Err(FsError::Busy)));
    fs.set_task_speed(number, 1 << 40).unwrap();
    pair.close(fs);
    let fs = pair.open();
    let found = fs.task_status();
    assert_eq!((found.len(), found[0].state, found[0].speed), (1, TaskState::Paused, 1 << 40));
    assert_eq!(found[0].title, "drain here");
    assert!(found[0].files_left.is_some());
    fs.resume_task(number).unwrap();
    fs.cancel_task(number).unwrap();
    assert_eq!(fs.disk_status()[0].used, DiskUse::Normal);
    assert!(refused(fs.resume_task(number)).contains("has ended"));
    assert!(refused(fs.pause_task(99)).contains("there is no task 99"));
    assert_holds(&fs, &files);
    // A disk that was not drained after all can be.
    let again = fs.drain_disk(FIRST, None).unwrap();
    assert_eq!(again, number + 1);
    fs.work_through(again, &mut |_| {}).unwrap();
    assert_eq!(state_of(&fs, again), TaskState::Done);
    pair.close(fs);
}

#[test]
fn the_background_drains_a_disk_by_itself() {
    let pair = Pair::new();
    let mut parts = pair.parts(&FailPoints::none());
    // A task that has to wait looks again some time later.
    parts.clock = Arc::new(forebay_base::time::SystemClock);
    let fs = pair.rig.open_parts(parts);
    fs.add_disk(&new_disk(DEFAULT_POOL), pair.second_disk(&FailPoints::none())).unwrap();
    let background = fs.fs.start_background().unwrap();
    let files = fill(&fs, fs.fileset("data"), 40);
    let number = fs.drain_disk(FIRST, None).unwrap();
    let deadline = 600;
    for _ in 0..deadline {
        if state_of(&fs, number) == TaskState::Done {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(state_of(&fs, number), TaskState::Done, "{:?}", fs.task_status());
    assert_holds(&fs, &files);
    fs.remove_disk(FIRST).unwrap();
    background.stop();
    fs.close().unwrap();
}

#[test]
fn a_drain_that_finds_no_room_says_so_and_goes_on_when_there_is_some() {
    let pair = Pair::of_capacity(3 << 20);
    let fs = pair.open();
    let data = fs.fileset("data");
    let ino = fs.make_file(data, "large");
    let bytes = vec![7; 2 << 20];
    fs.write_file(ino, 0, &bytes);
    fs.sync_all().unwrap();
    let full = pair.second.create(ObjectId(1 << 50)).unwrap();
    full.write_at(0, &vec![1; 2 << 20]).unwrap();
    fs.add_disk(&new_disk(DEFAULT_POOL), pair.second_disk(&FailPoints::none())).unwrap();
    let number = fs.drain_disk(FIRST, None).unwrap();
    let waits = refused(fs.work_through(number, &mut |_| {}));
    assert!(waits.contains("no space left"), "{waits}");
    assert_eq!(fs.contents(ino), bytes);
    assert_eq!(objects_on(&pair.second), []);
    drop(full);
    fs.work_through(number, &mut |_| {}).unwrap();
    assert_eq!(fs.contents(ino), bytes);
    pair.close(fs);
}

#[test]
fn rebalancing_brings_the_disks_of_a_pool_to_the_same_fill() {
    let pair = Pair::of_capacity(64 << 20);
    let fs = pair.open();
    let data = fs.fileset("data");
    let mut files = BTreeMap::new();
    for number in 0..40_u8 {
        let ino = fs.make_file(data, &format!("file-{number}"));
        let bytes = vec![number; 1 << 20];
        fs.write_file(ino, 0, &bytes);
        files.insert(ino, bytes);
    }
    fs.sync_all().unwrap();
    assert!(refused(fs.rebalance(DEFAULT_POOL)).contains("fewer than two disks"));
    fs.add_disk(&new_disk(DEFAULT_POOL), pair.second_disk(&FailPoints::none())).unwrap();
    let number = fs.rebalance(DEFAULT_POOL).unwrap();
    assert!(refused(fs.rebalance(DEFAULT_POOL)).contains("does that already"));
    fs.work_through(number, &mut |_| {}).unwrap();
    let (first, second) =
        (objects_on(&*pair.rig.disk.as_disk()).len(), objects_on(&pair.second).len());
    assert!((19..=21).contains(&first) && first + second == 40, "{first} and {second}");
    assert_holds(&fs, &files);
    // Nothing is left to do.
    let again = fs.rebalance(DEFAULT_POOL).unwrap();
    fs.work_through(again, &mut |_| {}).unwrap();
    assert_eq!(objects_on(&pair.second).len(), second);
    pair.close(fs);
}

#[test]
fn a_lost_disk_takes_its_files_along_and_no_others() {
    let pair = Pair::new();
    let fs = pair.open_with_both("archive");
    let (data, work) = (fs.fileset("data"), fs.fileset("work"));
    fs.set_fileset_pool("work", "archive").unwrap();
    let (kept, gone) = (fill(&fs, data, 4), fill(&fs, work, 3));
    assert!(refused(fs.give_up_disk(SECOND, 10)).contains("is there"));
    pair.close(fs);
    let mut parts = pair.parts(&FailPoints::none());
    parts.disks.truncate(1);
    let fs = pair.rig.open_parts(parts);
    assert!(refused(fs.give_up_disk(SECOND, 10)).contains("the last one of pool"));
    fs.set_fileset_pool("work", DEFAULT_POOL).unwrap();
    let lost = fs.give_up_disk(SECOND, 2).unwrap();
    assert_eq!((lost.total, lost.files.len(), lost.unknown.len()), (3, 2, 0));
    assert!(lost.files[0].path.as_deref().unwrap().ends_with("work/file-0"));
    assert_eq!(fs.disk_status()[1].used, DiskUse::Lost);
    assert_holds(&fs, &kept);
    for ino in gone.keys() {
        assert!(matches!(fs.open_as(*ino, READ, ROOT), Err(FsError::Absent(_))));
    }
    assert!(refused(fs.remove_disk(SECOND)).contains("still have their names"));
    fs.close().unwrap();
    drop(fs);
    // A check knows of it, and the next mount does not wait for the disk.
    let report = fsck_of(&pair.rig.stores(), &pair.disks()[..1], Repair::Never, false);
    assert_eq!(report.outcome(), Outcome::Clean, "{:#?}", report.findings);
    let mut parts = pair.parts(&FailPoints::none());
    parts.disks.truncate(1);
    let fs = pair.rig.open_parts(parts);
    for number in 0..3 {
        fs.unlink(work, format!("file-{number}").as_bytes()).unwrap();
    }
    fs.remove_disk(SECOND).unwrap();
    assert_holds(&fs, &kept);
    fs.close().unwrap();
    drop(fs);
    let report = fsck_of(&pair.rig.stores(), &pair.disks()[..1], Repair::Never, false);
    assert_eq!(report.outcome(), Outcome::Clean, "{:#?}", report.findings);
}

#[test]
fn a_removed_disk_keeps_its_number() {
    let pair = Pair::new();
    let fs = pair.open_with_both("archive");
    let number = fs.drain_disk(SECOND, Some(DEFAULT_POOL)).unwrap();
    fs.work_through(number, &mut |_| {}).unwrap();
    fs.remove_disk(SECOND).unwrap();
    let third = MemoryDisk::new(1 << 30, Arc::clone(&pair.rig.clock) as Arc<StepClock> as Arc<_>);
    let new = NewDisk { uuid: "disk-three".to_owned(), ..new_disk("archive") };
    fs.add_disk(&new, Arc::new(third.clone())).unwrap();
    assert_eq!(fs.disk_named("disk-three").unwrap().id.0, 2);
    assert!(refused(fs.disk_named(SECOND)).contains("there is no disk"));
    assert_eq!(fs.disk_named("disk-t").unwrap().uuid, "disk-three");
    fs.close().unwrap();
    drop(fs);
    let superblock = forebay_fs::recovery::read_superblock(&pair.rig.store_of(FilesetId::ROOT));
    let found: Vec<_> =
        superblock.unwrap().disks.iter().map(|disk| (disk.id.0, disk.used)).collect();
    assert_eq!(found, [(0, DiskUse::Normal), (1, DiskUse::Removed), (2, DiskUse::Normal)]);
}
