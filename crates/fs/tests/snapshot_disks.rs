//! Disks with objects of snapshots: they are emptied and taken away like others, and the snapshots hold what they held.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_base::{FailPoints, Ino, ObjectId};
use forebay_disk::Disk;
use forebay_disk::memory::MemoryDisk;
use forebay_fs::fsck::{self, Outcome, Repair};
use forebay_fs::record::{DEFAULT_POOL, DiskUse};
use forebay_fs::tasks::TaskState;
use forebay_fs::{Attributes, FsError, NewDisk, Parts, SetAttributes};
use support::snapshots::{World, list, seen, snapshot, take, tree_of};
use support::{Handle, READ, READ_WRITE, Rig, Shorthand as _, User, fsck_of};

const FIRST: &str = "disk-one";
const SECOND: &str = "disk-two";

/// A file system, and a second disk that may become one of it.
struct Pair {
    rig: Rig,
    second: MemoryDisk,
}

impl Pair {
    fn new() -> Pair {
        let rig = Rig::in_memory();
        let second = MemoryDisk::new(1 << 40, Arc::clone(&rig.clock) as Arc<_>);
        Pair { rig, second }
    }

    fn first(&self) -> &MemoryDisk {
        let support::TestDisk::Memory(first) = &self.rig.disk else { panic!("it is in memory") };
        first
    }

    fn parts(&self, points: &FailPoints) -> Parts {
        let store = self.rig.store.reopen_with_fail_points(points.clone());
        let first = Arc::new(self.first().reopen_with_fail_points(points.clone()));
        let mut parts = self.rig.parts_with(Arc::new(store), first, points.clone());
        parts.disks.push((SECOND.to_owned(), self.second_disk(points)));
        parts
    }

    fn second_disk(&self, points: &FailPoints) -> Arc<dyn Disk> {
        Arc::new(self.second.reopen_with_fail_points(points.clone()))
    }

    fn open(&self) -> User {
        self.rig.open_parts(self.parts(&FailPoints::none()))
    }

    fn add_second(&self, fs: &User) {
        let new = NewDisk {
            uuid: SECOND.to_owned(),
            location: "there".to_owned(),
            pool: DEFAULT_POOL.to_owned(),
            group: String::new(),
        };
        fs.add_disk(&new, self.second_disk(&FailPoints::none())).unwrap();
    }

    fn close(&self, fs: User) {
        fs.close().unwrap();
        drop(fs);
        let second: Arc<dyn Disk> = Arc::new(self.second.clone());
        let disks: Vec<fsck::NamedDisk> =
            vec![(FIRST.to_owned(), self.rig.disk.as_disk()), (SECOND.to_owned(), second)];
        let report = fsck_of(&self.rig.stores(), &disks, Repair::Never, false);
        assert_eq!(report.outcome(), Outcome::Clean, "{:#?}", report.findings);
    }

    fn crash(&self, fs: User, machine: Option<u64>) {
        drop(fs);
        for disk in [self.first(), &self.second] {
            match machine {
                Some(seed) => disk.crash_machine(seed),
                None => disk.crash_process(),
            }
        }
    }
}

fn objects_on(disk: &dyn Disk) -> Vec<ObjectId> {
    let mut found = Vec::new();
    disk.list(&mut |id| {
        found.push(id);
        true
    })
    .unwrap();
    found
}

/// Empties a disk and takes it away.
fn take_away(fs: &User, which: &str) {
    let number = fs.drain_disk(which, None).unwrap();
    fs.work_through(number, &mut |_| {}).unwrap();
    fs.remove_disk(which).unwrap();
}

/// Files of a fileset, and two snapshots that have something of every kind: what only they have, what they share with the fileset, what was
/// rewritten since, and what was open for writing at their moment.
fn fill(fs: &User) -> Handle {
    let data = fs.fileset("data");
    for name in ["same", "rewritten", "removed", "cut", "open"] {
        let ino = fs.make_file(data, name);
        fs.write_file(ino, 0, format!("the bytes of {name}").as_bytes());
    }
    let sparse = fs.make_file(data, "sparse");
    fs.write_file(sparse, 1 << 22, b"the end");
    let open = fs.open(fs.find(data, "open").unwrap(), READ_WRITE);
    open.write(4, b"BYTES");
    take(fs, "one");
    open.write(0, b"later than the snapshot");
    fs.write_file(fs.find(data, "rewritten").unwrap(), 0, b"second");
    take(fs, "two");
    fs.unlink(data, b"removed").unwrap();
    let size = SetAttributes { size: Some(3), ..Default::default() };
    fs.set_attributes(fs.find(data, "cut").unwrap(), size).unwrap();
    fs.write_file(fs.find(data, "rewritten").unwrap(), 0, b"third");
    fs.commit().unwrap();
    open
}

/// Sizes and times of the files of a snapshot.
fn attributes_in(fs: &User, name: &str) -> Vec<(String, u64, Attributes)> {
    let top = snapshot(fs, name).unwrap();
    let seen = |name: String| {
        let attributes = fs.attributes(fs.find(top, &name).unwrap()).unwrap();
        (name, attributes.size, Attributes { ino: Ino(0), ..attributes })
    };
    fs.names(top).into_iter().filter(|name| name != "sparse").map(seen).collect()
}

#[test]
fn a_disk_with_objects_of_snapshots_is_emptied_and_taken_away() {
    let pair = Pair::new();
    let fs = pair.open();
    fill(&fs).close();
    let names = ["one", "two"];
    let before = names.map(|name| attributes_in(&fs, name));
    let small = |name: &str| {
        let mut tree = seen(&fs, name);
        let sparse = tree.remove("/sparse").unwrap().unwrap();
        assert!(sparse.ends_with(b"the end") && sparse.len() == (1 << 22) + 7);
        tree
    };
    let trees = names.map(small);
    pair.add_second(&fs);
    let reader = fs.open(fs.find(snapshot(&fs, "one").unwrap(), "removed").unwrap(), READ);
    assert_eq!(reader.read(0, 9), b"the bytes");
    let number = fs.drain_disk(FIRST, None).unwrap();
    let waits = fs.work_through(number, &mut |_| {});
    assert!(
        matches!(&waits, Err(FsError::Refused(why)) if why.contains("in snapshots")),
        "{waits:?}"
    );
    assert_eq!(reader.read(0, 20), b"the bytes of removed", "its reader finds the copy");
    reader.close();
    // A snapshot that is made meanwhile holds what is there.
    take(&fs, "three");
    fs.work_through(number, &mut |_| {}).unwrap();
    fs.remove_disk(FIRST).unwrap();
    assert_eq!(objects_on(pair.first()), []);
    assert_eq!(names.map(small), trees);
    assert_eq!(names.map(|name| attributes_in(&fs, name)), before);
    assert_eq!(seen(&fs, "three"), tree_of(&fs, fs.fileset("data")));
    pair.close(fs);
    let fs = pair.open();
    assert_eq!(names.map(|name| attributes_in(&fs, name)), before);
    // What goes with the snapshots goes, and the fileset keeps its own.
    for name in ["two", "one", "three"] {
        fs.at_owner().delete_snapshot("data", name).unwrap();
    }
    pair.close(fs);
    assert_eq!(objects_on(&pair.second).len(), 5);
}

#[test]
fn a_disk_with_kept_copies_alone_is_not_empty() {
    let pair = Pair::new();
    let fs = pair.open();
    let data = fs.fileset("data");
    let ino = fs.make_file(data, "file");
    fs.write_file(ino, 0, b"first");
    take(&fs, "one");
    pair.add_second(&fs);
    // Nothing of the snapshot lay on the second disk at its moment; the copy that it keeps does.
    let number = fs.drain_disk(FIRST, None).unwrap();
    fs.work_through(number, &mut |_| {}).unwrap();
    fs.use_disk_again(FIRST).unwrap();
    assert_eq!(objects_on(&pair.second).len(), 2);
    take_away(&fs, SECOND);
    assert_eq!(objects_on(&pair.second), []);
    assert_eq!(seen(&fs, "one"), tree_of(&fs, data));
    pair.close(fs);
}

#[test]
fn an_archive_with_objects_of_snapshots_is_emptied() {
    let rig = Rig::in_memory().with_archive();
    let fs = rig.open();
    let data = fs.fileset("data");
    let ino = fs.make_file(data, "file");
    fs.write_file(ino, 0, b"content");
    fs.commit().unwrap();
    fs.migrate_files("archive", &[ino]).unwrap();
    assert!(fs.place_of(ino).unwrap().is_archived);
    take(&fs, "one");
    fs.unlink(data, b"file").unwrap();
    fs.commit().unwrap();
    let number = fs.drain_disk("bucket", Some(DEFAULT_POOL)).unwrap();
    fs.work_through(number, &mut |_| {}).unwrap();
    fs.remove_disk("bucket").unwrap();
    assert_eq!(seen(&fs, "one")["/file"].as_deref(), Some(&b"content"[..]));
    fs.close().unwrap();
}

/// The step at which the power goes.
fn drain_until_cut(pair: &Pair, point: &str, passes: u64, machine: Option<u64>) {
    let fs = pair.open();
    fill(&fs).close();
    let names = ["one", "two"];
    let before = names.map(|name| attributes_in(&fs, name));
    let data = tree_of(&fs, fs.fileset("data"));
    let trees = names.map(|name| seen(&fs, name));
    fs.sync_all().unwrap();
    pair.add_second(&fs);
    pair.close(fs);
    let points = FailPoints::cut_at(point, passes);
    let fs = pair.rig.open_parts(pair.parts(&points));
    let done = fs
        .drain_disk(FIRST, None)
        .and_then(|number| fs.work_through(number, &mut |_| {}))
        .and_then(|()| fs.remove_disk(FIRST));
    assert!(done.is_ok() || points.is_cut(), "{done:?}");
    assert!(points.is_cut() || point == "never", "{point} was not reached");
    points.cut_now();
    pair.crash(fs, machine);
    let fs = pair.open();
    fs.sweep().unwrap();
    let check = |fs: &User| {
        assert_eq!(names.map(|name| seen(fs, name)), trees);
        assert_eq!(names.map(|name| attributes_in(fs, name)), before);
        assert_eq!(tree_of(fs, fs.fileset("data")), data);
    };
    check(&fs);
    finish_drain(&fs);
    check(&fs);
    assert_eq!(objects_on(pair.first()), []);
    pair.close(fs);
}

/// Does what a crash has left to do of a drain.
fn finish_drain(fs: &User) {
    if fs.was_removed(FIRST) {
        return;
    }
    let unfinished = fs.task_status().into_iter().find(|task| task.state == TaskState::Running);
    match unfinished {
        Some(task) => fs.work_through(task.id, &mut |_| {}).unwrap(),
        None if fs.disk_named(FIRST).unwrap().used == DiskUse::Normal => {
            let number = fs.drain_disk(FIRST, None).unwrap();
            fs.work_through(number, &mut |_| {}).unwrap();
        }
        None => {}
    }
    fs.remove_disk(FIRST).unwrap();
}

#[test]
fn a_crash_at_any_step_of_a_drain_loses_nothing_of_snapshots() {
    let first = support::seeds(1, "snapshot_disks a_crash_at_any_step_of_a_drain").start;
    let points = [
        ("move.copied", 0),
        ("move.turned", 2),
        ("snapshot.move.copied", 0),
        ("snapshot.move.copied", 5),
        ("snapshot.move.synced", 0),
        ("snapshot.move.synced", 5),
        ("snapshot.move.turned", 0),
        ("snapshot.move.turned", 5),
        ("commit.start", 3),
        ("commit.stored", 5),
        ("commit.done", 7),
        ("reclaim.removed", 0),
        ("reclaim.removed", 9),
        ("disk.write", 8),
        ("disk.set_modified", 9),
        ("disk.publish", 9),
        ("disk.sync", 9),
        ("disk.remove", 7),
        ("store.commit.before", 9),
        ("store.commit.after", 9),
        ("task.ending", 0),
        ("disk.removing", 0),
        ("disk.removed", 0),
        ("never", 0),
    ];
    for (point, passes) in points {
        for seed in first..first + 3 {
            println!("cut at {point} after {passes} passes, seed {seed}");
            drain_until_cut(&Pair::new(), point, passes, (seed > first).then_some(seed));
        }
    }
}

/// Programs, snapshots and drains in random order; the power goes at `point`.
fn live_through(seed: u64, point: &str, machine: Option<u64>) {
    println!("cut at {point}, seed {seed}, machine {machine:?}");
    let pair = Pair::new();
    let mut world = World::of(pair.open(), seed);
    pair.add_second(world.fs());
    pair.close(world.fs.take().unwrap());
    for _life in 0..3 {
        // The first commits are those of the opening.
        let passes = world.dice.index(4) as u64 + u64::from(point.starts_with("store.")) * 4;
        let points = FailPoints::cut_at(point, passes);
        world.fs = Some(pair.rig.open_parts(pair.parts(&points)));
        for _ in 0..150 {
            let done = if world.dice.index(25) == 0 { drain(&mut world) } else { world.step() };
            assert!(done.is_ok() || points.is_cut(), "{done:?} although the power is on");
            if points.is_cut() {
                break;
            }
        }
        points.cut_now();
        world.handles.clear();
        pair.crash(world.fs.take().unwrap(), machine);
        world.fs = Some(pair.open());
        world.settle();
        for _ in 0..40 {
            world.step().unwrap();
        }
        drain(&mut world).unwrap();
        world.check();
        world.handles.drain(..).for_each(Handle::close);
        pair.close(world.fs.take().unwrap());
    }
}

/// Drains that came to their end.
static DRAINED: AtomicU64 = AtomicU64::new(0);

/// Empties one of the disks as far as open files allow, and uses it again.
fn drain(world: &mut World) -> forebay_fs::Result<()> {
    let which = [FIRST, SECOND][world.dice.index(2)];
    let fs = world.fs().clone();
    if fs.disk_named(which)?.used == DiskUse::Draining {
        let unfinished = fs.task_status().into_iter().find(|task| !task.state.has_ended());
        return match unfinished {
            Some(task) => fs.cancel_task(task.id),
            None => fs.use_disk_again(which),
        };
    }
    let other = if which == FIRST { SECOND } else { FIRST };
    if fs.disk_named(other)?.used == DiskUse::Draining {
        return Ok(());
    }
    let number = fs.drain_disk(which, None)?;
    match fs.work_through(number, &mut |_| {}) {
        Ok(()) => {
            DRAINED.fetch_add(1, Ordering::Relaxed);
            fs.use_disk_again(which)
        }
        // The kernel knows a file without a name, or somebody has one open.
        Err(FsError::Refused(_)) => fs.cancel_task(number),
        other => other,
    }
}

#[test]
fn snapshots_hold_what_they_held_wherever_disks_are_drained_and_the_power_goes() {
    let seeds = support::seeds(4, "snapshot_disks snapshots_hold_what_they_held");
    let points = [
        "snapshot.move.copied",
        "snapshot.move.synced",
        "snapshot.move.turned",
        "snapshot.made",
        "snapshot.parted",
        "snapshot.emptied",
        "move.turned",
        "reclaim.removed",
        "store.commit.after",
        "never",
    ];
    for point in points {
        for seed in seeds.clone() {
            live_through(seed, point, None);
            live_through(seed, point, Some(seed));
        }
    }
    let drained = DRAINED.load(Ordering::Relaxed);
    assert!(drained > 50, "only {drained} drains came to their end");
}

#[test]
fn a_snapshot_list_stays_in_order_after_a_drain() {
    let pair = Pair::new();
    let fs = pair.open();
    fill(&fs).close();
    pair.add_second(&fs);
    take_away(&fs, FIRST);
    assert_eq!(fs.names(list(&fs)), ["one", "two"]);
    fs.close().unwrap();
}

/// Bytes of a file that say how often it was written.
fn count_of(bytes: &[u8]) -> u64 {
    let first: [u8; 8] = bytes[..8].try_into().unwrap();
    assert!(bytes.chunks(8).all(|chunk| chunk == first), "the file is torn");
    u64::from_le_bytes(first)
}

#[test]
fn snapshots_that_are_made_while_files_are_written_and_moved_hold_their_moment() {
    const FILES: usize = 6;
    let pair = Pair::new();
    let fs = pair.open();
    pair.add_second(&fs);
    let data = fs.fileset("data");
    let inos: Vec<Ino> = (0..FILES)
        .map(|number| {
            let ino = fs.make_file(data, &format!("file-{number}"));
            fs.write_file(ino, 0, &[0; 8000]);
            ino
        })
        .collect();
    let written: Vec<AtomicU64> = (0..FILES).map(|_| AtomicU64::new(0)).collect();
    let begun: Vec<AtomicU64> = (0..FILES).map(|_| AtomicU64::new(0)).collect();
    let ended = AtomicBool::new(false);
    let counts = |of: &[AtomicU64]| -> Vec<u64> {
        of.iter().map(|count| count.load(Ordering::SeqCst)).collect()
    };
    std::thread::scope(|scope| {
        let (fs, ended, written, begun) = (&fs, &ended, &written, &begun);
        scope.spawn(move || {
            let mut count = 0_u64;
            while !ended.load(Ordering::SeqCst) {
                count += 1;
                for (number, ino) in inos.iter().enumerate().skip(count as usize % 2).step_by(2) {
                    begun[number].store(count, Ordering::SeqCst);
                    fs.write_file(*ino, 0, &count.to_le_bytes().repeat(1000));
                    written[number].store(count, Ordering::SeqCst);
                }
            }
        });
        scope.spawn(move || {
            for turn in 0.. {
                if ended.load(Ordering::SeqCst) && turn % 2 == 0 {
                    break;
                }
                let which = [FIRST, SECOND][turn % 2];
                let number = fs.drain_disk(which, None).unwrap();
                match fs.work_through(number, &mut |_| {}) {
                    Ok(()) => fs.use_disk_again(which).unwrap(),
                    Err(_) => fs.cancel_task(number).unwrap(),
                }
            }
        });
        let mut moments = Vec::new();
        for number in 0..40 {
            let name = format!("snapshot-{number}");
            let least = counts(written);
            take(fs, &name);
            moments.push((name, least, counts(begun)));
            if number % 3 == 2 {
                let (name, ..) = moments.remove(0);
                fs.delete_snapshot("data", &name).unwrap();
            }
        }
        ended.store(true, Ordering::SeqCst);
        for (name, least, most) in &moments {
            for (number, bytes) in seen(fs, name).into_values().enumerate() {
                let count = count_of(&bytes.unwrap());
                let moment = least[number]..=most[number];
                assert!(
                    moment.contains(&count),
                    "{name}, file {number}: {count} not in {moment:?}"
                );
            }
        }
    });
    pair.close(fs);
}
