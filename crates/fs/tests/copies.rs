//! Copies of files in other failure groups: made of files at rest and at fsync, taken when an object is lost, compared with
//! checksums; wherever the power is cut, and whichever disk is lost.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_base::seed::Dice;
use forebay_base::{DiskId, FailPoints, Ino};
use forebay_disk::faulty::{Fault, FaultyDisk};
use forebay_disk::memory::MemoryDisk;
use forebay_disk::{Disk, Sync};
use forebay_fs::fsck::{self, Outcome, Repair};
use forebay_fs::key;
use forebay_fs::record::{CopiesRecord, Durability, ObjectRef, decode, encode};
use forebay_fs::tasks::TaskState;
use forebay_fs::{FsError, NewDisk, Parts};
use forebay_store::{Batch, Store};
use support::{READ, Rig, Shorthand as _, User, WRITE, fsck_of};

const NAMES: [&str; 4] = ["disk-one", "disk-two", "disk-three", "disk-four"];

/// A file system on several disks, each of which can be lost.
struct Array {
    rig: Rig,
    /// All disks but the first.
    others: Vec<MemoryDisk>,
}

impl Array {
    /// On `count` disks that fail alone, with two copies of the files of `data`.
    fn new(count: usize) -> Array {
        let array = Array::without_copies(count);
        let fs = array.open();
        fs.set_fileset_copies("data", 2).unwrap();
        array.close(fs);
        array
    }

    fn without_copies(count: usize) -> Array {
        let rig = Rig::in_memory();
        let new = |_| MemoryDisk::new(1 << 40, Arc::clone(&rig.clock) as Arc<_>);
        let others = (1..count).map(new).collect();
        let array = Array { rig, others };
        let fs = array.rig.open();
        for number in 1..count {
            fs.add_disk(&new_disk(number, ""), Arc::new(array.memory(number).clone())).unwrap();
        }
        fs.close().unwrap();
        array
    }

    fn memory(&self, number: usize) -> &MemoryDisk {
        match (number, &self.rig.disk) {
            (0, support::TestDisk::Memory(first)) => first,
            (0, support::TestDisk::Directory(..) | support::TestDisk::Striped(_)) => {
                panic!("it is in memory")
            }
            (number, _) => &self.others[number - 1],
        }
    }

    fn count(&self) -> usize {
        self.others.len() + 1
    }

    /// What it stands on, but for the disks that are `lost`.
    fn parts(&self, points: &FailPoints, lost: &[usize]) -> Parts {
        let store = Arc::new(self.rig.store.reopen_with_fail_points(points.clone()));
        let disk = |number: usize| -> Arc<dyn Disk> {
            Arc::new(self.memory(number).reopen_with_fail_points(points.clone()))
        };
        let mut parts = self.rig.parts_with(store, disk(0), points.clone());
        parts.disks = (0..self.count())
            .filter(|number| !lost.contains(number))
            .map(|number| (NAMES[number].to_owned(), disk(number)))
            .collect();
        parts
    }

    fn open(&self) -> User {
        self.open_without(&[])
    }

    fn open_without(&self, lost: &[usize]) -> User {
        self.rig.open_parts(self.parts(&FailPoints::none(), lost))
    }

    /// With a disk that fails on purpose.
    fn open_with_faults(&self, number: usize) -> (User, FaultyDisk) {
        let mut parts = self.parts(&FailPoints::none(), &[]);
        let faulty = FaultyDisk::new(Arc::clone(&parts.disks[number].1));
        parts.disks[number].1 = Arc::new(faulty.clone());
        (self.rig.open_parts(parts), faulty)
    }

    fn assert_clean_without(&self, lost: &[usize]) {
        let names = support::check::name_problems(&self.rig.stores());
        assert!(names.is_empty(), "{names:#?}");
        if lost.is_empty() {
            let disks: Vec<&dyn Disk> =
                (0..self.count()).map(|number| self.memory(number) as &dyn Disk).collect();
            let problems = support::check::problems(&self.rig.stores(), &disks);
            assert!(problems.is_empty(), "{problems:#?}");
        }
        let there = (0..self.count()).filter(|number| !lost.contains(number));
        let disks: Vec<fsck::NamedDisk> = there
            .map(|number| (NAMES[number].to_owned(), Arc::new(self.memory(number).clone()) as _))
            .collect();
        let report = fsck_of(&self.rig.stores(), &disks, Repair::Never, false);
        assert_eq!(report.outcome(), Outcome::Clean, "{:#?}", report.findings);
    }

    fn close(&self, fs: User) {
        fs.close().unwrap();
        drop(fs);
        self.assert_clean_without(&[]);
    }

    fn crash(&self, fs: User, machine: Option<u64>) {
        drop(fs);
        for number in 0..self.count() {
            match machine {
                Some(seed) => self.memory(number).crash_machine(seed),
                None => self.memory(number).crash_process(),
            }
        }
    }

    fn object_of(&self, ino: Ino) -> ObjectRef {
        self.rig.record(ino).unwrap().layout.object().unwrap()
    }

    /// The copies of a file as they were committed.
    fn copies_of(&self, ino: Ino) -> Option<CopiesRecord> {
        let key = key::copies(self.object_of(ino).id);
        let found = self.rig.store_of(ino.fileset()).get(&key).unwrap()?;
        Some(decode("copies", &found).unwrap())
    }

    /// Changes a byte of an object without anybody knowing.
    fn spoil(&self, at: ObjectRef) {
        let object = self.memory(usize::from(at.disk.0)).open(at.id).unwrap();
        let mut byte = [0];
        let size = object.attributes().unwrap().size;
        object.read_at(size / 2, &mut byte).unwrap();
        object.write_at(size / 2, &[byte[0] ^ 1]).unwrap();
        object.sync(Sync::All).unwrap();
    }
}

fn new_disk(number: usize, group: &str) -> NewDisk {
    NewDisk {
        uuid: NAMES[number].to_owned(),
        location: format!("place-{number}"),
        pool: "default".to_owned(),
        group: group.to_owned(),
    }
}

fn refused<T: std::fmt::Debug>(outcome: forebay_fs::Result<T>) -> String {
    match outcome {
        Err(FsError::Refused(why)) => why,
        other => panic!("not refused: {other:?}"),
    }
}

/// Contents with holes that follow from a number.
fn bytes_of(number: u64) -> Vec<u8> {
    let mut dice = Dice::of(number);
    let most = [10, 5000, 300_000][dice.index(3)];
    let length = 1 + dice.index(most);
    let byte = |at: usize| if at / 8192 % 3 == 1 { 0 } else { (at as u64 * 7 + number) as u8 };
    (0..length).map(byte).collect()
}

type Files = BTreeMap<Ino, Vec<u8>>;

fn fill(fs: &User, parent: Ino, count: u64) -> Files {
    let mut files = Files::new();
    for number in 0..count {
        let ino = fs.make_file(parent, &format!("file-{number}"));
        let bytes = bytes_of(number);
        fs.write_file(ino, 0, &bytes);
        files.insert(ino, bytes);
    }
    files
}

/// Makes all copies that are due.
fn copy_all(fs: &User) -> u64 {
    fs.commit().unwrap();
    let copied = fs.make_copies().unwrap();
    fs.commit().unwrap();
    copied
}

fn assert_holds(fs: &User, files: &Files) {
    for (ino, bytes) in files {
        assert!(fs.contents(*ino) == *bytes, "inode {ino} has changed");
    }
}

fn assert_have_copies(array: &Array, files: &Files, copies: usize) {
    for (ino, bytes) in files {
        let record = array.copies_of(*ino).unwrap_or_else(|| panic!("inode {ino} has no copies"));
        assert!(!record.is_behind, "{record:?}");
        assert_eq!(record.copies.len(), copies, "{record:?}");
        let mut disks: Vec<DiskId> = record.copies.iter().map(|at| at.disk).collect();
        disks.push(array.object_of(*ino).disk);
        disks.sort_unstable();
        disks.dedup();
        assert_eq!(disks.len(), copies + 1, "each on a disk of its own");
        for at in &record.copies {
            let object = array.memory(usize::from(at.disk.0)).open(at.id).unwrap();
            let mut found = vec![0; bytes.len() + 1];
            let read = object.read_at(0, &mut found).unwrap();
            assert!(found[..read] == **bytes, "the copy of inode {ino} differs");
        }
    }
}

fn objects_in(array: &Array) -> usize {
    let mut found = 0;
    for number in 0..array.count() {
        array
            .memory(number)
            .list(&mut |_| {
                found += 1;
                true
            })
            .unwrap();
    }
    found
}

#[test]
fn files_at_rest_are_copied_to_other_failure_groups_and_the_copies_go_with_them() {
    let array = Array::new(3);
    let fs = array.open();
    let data = fs.fileset("data");
    let files = fill(&fs, data, 12);
    assert!(copy_all(&fs) > 0);
    assert_have_copies(&array, &files, 1);
    assert_eq!(copy_all(&fs), 0, "nothing is copied twice");
    // A quota counts the file, whatever its copies.
    let bytes: u64 = files.values().map(|bytes| bytes.len() as u64).sum();
    let found = fs.fileset_status().into_iter().find(|it| it.name == "data").unwrap();
    assert_eq!((found.bytes, found.copies), (Some(bytes), Some(2)));
    // A file that is written is copied again, and the former copy goes.
    let (ino, _) = files.first_key_value().unwrap();
    let before = array.copies_of(*ino).unwrap();
    fs.write_file(*ino, 0, b"other bytes");
    fs.commit().unwrap();
    assert!(array.copies_of(*ino).unwrap().is_behind);
    copy_all(&fs);
    assert_ne!(array.copies_of(*ino).unwrap().copies, before.copies);
    // What is removed takes its copies along.
    for number in 0..12 {
        fs.unlink(data, format!("file-{number}").as_bytes()).unwrap();
    }
    fs.commit().unwrap();
    fs.drop_caches();
    copy_all(&fs);
    array.close(fs);
    assert_eq!(objects_in(&array), 0);
}

#[test]
fn three_copies_lie_in_three_failure_groups_and_a_smaller_number_gives_space_back() {
    let array = Array::new(3);
    let fs = array.open();
    fs.set_fileset_copies("data", 3).unwrap();
    let files = fill(&fs, fs.fileset("data"), 5);
    copy_all(&fs);
    assert_have_copies(&array, &files, 2);
    fs.set_fileset_copies("data", 2).unwrap();
    copy_all(&fs);
    assert_have_copies(&array, &files, 1);
    fs.set_fileset_copies("data", 1).unwrap();
    copy_all(&fs);
    assert!(files.keys().all(|ino| array.copies_of(*ino).is_none()));
    array.close(fs);
    assert_eq!(objects_in(&array), 5);
}

#[test]
fn copies_that_a_pool_cannot_take_are_refused_with_the_reason() {
    let array = Array::without_copies(2);
    let fs = array.open();
    let why = refused(fs.set_fileset_copies("data", 3));
    assert!(why.contains("3 failure groups") && why.contains("has 2"), "{why}");
    assert!(refused(fs.set_fileset_copies("data", 4)).contains("choose 1, 2 or 3"));
    assert!(refused(fs.set_fileset_copies("nothing", 2)).contains("no fileset"));
    for name in &NAMES[..2] {
        fs.label_disk(name, None, Some("shelf")).unwrap();
    }
    let why = refused(fs.set_fileset_copies("data", 2));
    assert!(why.contains("has 1"), "{why}");
    assert!(refused(fs.scrub(None)).contains("--copies 2"));
    array.close(fs);
}

#[test]
fn files_go_on_when_a_disk_is_lost_and_are_copied_again() {
    let array = Array::new(3);
    let fs = array.open();
    let files = fill(&fs, fs.fileset("data"), 20);
    copy_all(&fs);
    array.close(fs);
    for lost in 0..3 {
        // It is there again afterwards, as it was.
        let fs = array.open_without(&[lost]);
        assert_holds(&fs, &files);
        copy_all(&fs);
        fs.close().unwrap();
        drop(fs);
        let fs = array.open();
        assert_holds(&fs, &files);
        fs.sweep().unwrap();
        copy_all(&fs);
        assert_have_copies(&array, &files, 1);
        array.close(fs);
    }
    let fs = array.open_without(&[1]);
    let lost = fs.give_up_disk(NAMES[1], 10).unwrap();
    assert_eq!((lost.total, lost.files.len()), (0, 0), "no file is lost with it");
    copy_all(&fs);
    assert_have_copies(&array, &files, 1);
    assert_holds(&fs, &files);
    fs.remove_disk(NAMES[1]).unwrap();
    fs.close().unwrap();
    drop(fs);
    array.assert_clean_without(&[1]);
}

#[test]
fn what_was_written_since_the_latest_copy_comes_back_older_only_when_its_disk_is_given_up() {
    let array = Array::new(2);
    let fs = array.open();
    let data = fs.fileset("data");
    let handle = fs.create_file(data, "log", WRITE).unwrap();
    let ino = fs.find(data, "log").unwrap();
    handle.write(0, b"acknowledged");
    fs.sync_file(ino, Sync::Data).unwrap();
    handle.write(0, b"ACKNOWLEDGED and more");
    handle.close();
    fs.commit().unwrap();
    let lost = usize::from(array.object_of(ino).disk.0);
    array.close(fs);
    let fs = array.open_without(&[lost]);
    assert!(fs.open_as(ino, READ, support::ROOT).is_err(), "nobody has said that it is lost");
    let listed = fs.give_up_disk(NAMES[lost], 10).unwrap();
    assert_eq!(listed.files[0].path.as_deref(), Some("/data/log"));
    assert_eq!(fs.contents(ino), b"acknowledged");
    let status = fs.fileset_status().into_iter().find(|it| it.name == "data").unwrap();
    assert_eq!(status.damaged.len(), 1, "{status:?}");
    fs.close().unwrap();
}

#[test]
fn what_an_fsync_has_acknowledged_survives_the_loss_of_any_one_disk() {
    for lost in 0..3 {
        let array = Array::new(3);
        let fs = array.open();
        let data = fs.fileset("data");
        let mut files = Files::new();
        for number in 0..9 {
            let ino = fs.make_file(data, &format!("file-{number}"));
            let handle = fs.open(ino, WRITE);
            handle.write(0, &bytes_of(number));
            fs.sync_file(ino, Sync::All).unwrap();
            fs.sync_file(ino, Sync::Data).unwrap();
            files.insert(ino, bytes_of(number));
            if number % 2 == 0 {
                handle.close();
            }
        }
        array.crash(fs, Some(lost));
        let lost = usize::try_from(lost).unwrap();
        let fs = array.open_without(&[lost]);
        fs.give_up_disk(NAMES[lost], 10).unwrap();
        assert_holds(&fs, &files);
        fs.sweep().unwrap();
        copy_all(&fs);
        assert_have_copies(&array, &files, 1);
        assert_holds(&fs, &files);
        fs.close().unwrap();
        drop(fs);
        array.assert_clean_without(&[lost]);
    }
}

#[test]
fn readers_go_on_when_a_disk_fails_under_them_and_new_files_lie_elsewhere() {
    let array = Array::new(3);
    let fs = array.open();
    let data = fs.fileset("data");
    let files = fill(&fs, data, 9);
    copy_all(&fs);
    array.close(fs);
    let (fs, faulty) = array.open_with_faults(1);
    let open: Vec<_> = files.keys().map(|ino| (*ino, fs.open(*ino, READ))).collect();
    for fault in [Fault::ReadIo, Fault::WriteIo, Fault::OpenIo, Fault::SyncIo, Fault::RemoveIo] {
        faulty.fail(fault);
    }
    for (ino, handle) in open {
        assert!(handle.contents() == files[&ino], "inode {ino} has changed");
        handle.close();
    }
    assert_holds(&fs, &files);
    copy_all(&fs);
    // From now on nothing is put there, and what an fsync promises is kept.
    let ino = fs.make_file(data, "new");
    for number in 0..6 {
        let handle = fs.open(ino, WRITE);
        handle.write(0, &bytes_of(number));
        fs.sync_file(ino, Sync::All).unwrap();
        handle.close();
    }
    copy_all(&fs);
    assert_have_copies(&array, &files, 1);
    let on_it = |ino: &Ino| {
        let own = array.object_of(*ino);
        array.copies_of(*ino).unwrap().copies.iter().chain([&own]).any(|at| at.disk == DiskId(1))
    };
    assert!(!files.keys().any(on_it));
    faulty.heal();
    fs.close().unwrap();
    drop(fs);
    let fs = array.open();
    assert_holds(&fs, &files);
    array.close(fs);
}

#[test]
fn a_scrub_finds_and_repairs_damaged_bytes_and_names_what_cannot_be_repaired() {
    let array = Array::new(3);
    let fs = array.open();
    let files = fill(&fs, fs.fileset("data"), 12);
    copy_all(&fs);
    array.close(fs);
    let inos: Vec<Ino> = files.keys().copied().collect();
    let copy = |ino: Ino| array.copies_of(ino).unwrap().copies[0];
    array.spoil(array.object_of(inos[1]));
    array.spoil(copy(inos[3]));
    array.spoil(array.object_of(inos[5]));
    array.spoil(copy(inos[5]));
    let missing = copy(inos[7]);
    array.memory(usize::from(missing.disk.0)).remove(missing.id).unwrap();
    let fs = array.open();
    let number = fs.scrub(Some("data")).unwrap();
    fs.work_through(number, &mut |_| {}).unwrap();
    let task = fs.task_status().into_iter().find(|task| task.id == number).unwrap();
    assert_eq!((task.state, task.progress.files), (TaskState::Done, 12));
    fs.commit().unwrap();
    let damaged = fs.fileset_status().into_iter().flat_map(|it| it.damaged);
    assert_eq!(damaged.map(|file| file.ino).collect::<Vec<_>>(), [inos[5].0]);
    let sound: Files = files.into_iter().filter(|(ino, _)| *ino != inos[5]).collect();
    assert_holds(&fs, &sound);
    assert_have_copies(&array, &sound, 1);
    array.close(fs);
}

#[test]
fn a_drain_moves_copies_off_a_disk_as_well() {
    let array = Array::new(3);
    let fs = array.open();
    let files = fill(&fs, fs.fileset("data"), 12);
    copy_all(&fs);
    let number = fs.drain_disk(NAMES[1], None).unwrap();
    fs.work_through(number, &mut |_| {}).unwrap();
    fs.remove_disk(NAMES[1]).unwrap();
    copy_all(&fs);
    assert_holds(&fs, &files);
    assert_have_copies(&array, &files, 1);
    let two = MemoryDisk::new(1 << 30, Arc::clone(&array.rig.clock) as Arc<_>);
    assert!(refused(fs.add_disk(&new_disk(1, ""), Arc::new(two))).contains("already"));
    // Two groups are left: copies of the second one can go nowhere.
    let number = fs.drain_disk(NAMES[2], None).unwrap();
    let why = refused(fs.work_through(number, &mut |_| {}));
    assert!(why.contains("failure groups"), "{why}");
    fs.cancel_task(number).unwrap();
    fs.close().unwrap();
}

#[test]
fn copies_of_another_version_are_refused_by_every_reader() {
    let array = Array::new(2);
    let fs = array.open();
    let data = fs.fileset("data");
    let files = fill(&fs, data, 1);
    copy_all(&fs);
    array.close(fs);
    let (ino, _) = files.first_key_value().unwrap();
    let key = key::copies(array.object_of(*ino).id);
    let mut value = encode(&array.copies_of(*ino).unwrap());
    value[0] = 200;
    let batch = Batch { requires: Vec::new(), changes: [(key, Some(value))].into() };
    array.rig.store_of(data.fileset()).commit(&batch).unwrap();
    let disks: Vec<fsck::NamedDisk> = (0..2)
        .map(|number| (NAMES[number].to_owned(), Arc::new(array.memory(number).clone()) as _))
        .collect();
    let report = fsck_of(&array.rig.stores(), &disks, Repair::Found, false);
    assert!(report.findings.iter().any(|found| found.damage == fsck::report::Damage::Version));
    let lost = usize::from(array.object_of(*ino).disk.0);
    let fs = array.open_without(&[lost]);
    let refused = fs.open_as(*ino, READ, support::ROOT).err().unwrap();
    assert!(matches!(refused, FsError::UnknownVersion(_)), "{refused}");
}

#[test]
fn fsck_finds_missing_copies_and_has_them_made_again() {
    let array = Array::new(2);
    let fs = array.open();
    let files = fill(&fs, fs.fileset("data"), 4);
    copy_all(&fs);
    array.close(fs);
    let (ino, _) = files.first_key_value().unwrap();
    let missing = array.copies_of(*ino).unwrap().copies[0];
    array.memory(usize::from(missing.disk.0)).remove(missing.id).unwrap();
    let disks: Vec<fsck::NamedDisk> = (0..2)
        .map(|number| (NAMES[number].to_owned(), Arc::new(array.memory(number).clone()) as _))
        .collect();
    let report = fsck_of(&array.rig.stores(), &disks, Repair::Found, false);
    assert!(report.findings.iter().any(|it| it.damage == fsck::report::Damage::Copies));
    array.assert_clean_without(&[]);
    let fs = array.open();
    assert_holds(&fs, &files);
    copy_all(&fs);
    assert_have_copies(&array, &files, 1);
    array.close(fs);
}

/// Fills and copies until the power is cut at a point; the contents that each file may have.
fn copy_until_cut(array: &Array, point: &str, passes: u64) -> BTreeMap<Ino, Vec<Vec<u8>>> {
    let fs = array.open();
    let data = fs.fileset("data");
    let files = fill(&fs, data, 6);
    copy_all(&fs);
    fs.sync_all().unwrap();
    let mut may_be: BTreeMap<Ino, Vec<Vec<u8>>> =
        files.into_iter().map(|(ino, bytes)| (ino, vec![bytes])).collect();
    array.close(fs);
    let points = FailPoints::cut_at(point, passes);
    let fs = array.rig.open_parts(array.parts(&points, &[]));
    let inos: Vec<Ino> = may_be.keys().copied().collect();
    let mut change = || -> forebay_fs::Result<()> {
        for (number, ino) in (50..).zip(&inos) {
            let bytes = bytes_of(number);
            let known = may_be.get_mut(ino).unwrap();
            let handle = fs.open_as(*ino, support::WRITE, support::ROOT)?;
            // Any part of it may be there.
            let mut mixed = known[0].clone();
            mixed.resize(mixed.len().max(bytes.len()), 0);
            mixed[..bytes.len()].copy_from_slice(&bytes);
            let written = handle.try_write(0, &bytes);
            let synced = written.and_then(|()| fs.sync_file(*ino, Sync::All));
            if synced.is_ok() {
                *known = vec![mixed];
            } else {
                known.push(mixed);
            }
            let closed = fs.close_file(*ino, support::WRITE);
            synced.and(closed)?;
        }
        fs.commit()?;
        fs.make_copies()?;
        let number = fs.scrub(None)?;
        fs.work_through(number, &mut |_| {})?;
        fs.unlink(data, b"file-0")?;
        fs.commit()?;
        fs.make_copies()?;
        Ok(())
    };
    let done = change();
    assert!(done.is_ok() || points.is_cut(), "{done:?}");
    assert!(points.is_cut() || point == "never", "{point} was not reached");
    points.cut_now();
    let gone = fs.find(data, "file-0").is_none();
    if gone {
        may_be.remove(&inos[0]);
    }
    drop(fs);
    may_be
}

#[test]
fn a_crash_at_any_step_of_copying_loses_nothing_and_leaves_nothing() {
    let first = support::seeds(1, "copies a_crash_at_any_step_of_copying").start;
    let points = [
        ("copy.written", 0),
        ("copy.written", 4),
        ("copy.synced", 0),
        ("copy.synced", 4),
        ("copy.noted", 0),
        ("copy.noted", 4),
        ("copy.replaced", 0),
        ("commit.start", 2),
        ("commit.published", 2),
        ("commit.stored", 2),
        ("commit.done", 2),
        ("reclaim.removed", 0),
        ("reclaim.removed", 3),
        ("disk.write", 9),
        ("disk.publish", 2),
        ("disk.sync", 3),
        ("disk.sync", 6),
        ("disk.remove", 1),
        ("store.commit.before", 5),
        ("store.commit.after", 5),
        ("never", 0),
    ];
    for (point, passes) in points {
        for seed in first..first + 4 {
            println!("cut at {point} after {passes} passes, seed {seed}");
            let array = Array::new(3);
            let may_be = copy_until_cut(&array, point, passes);
            let machine = (seed % 2 == 1).then_some(seed);
            for number in 0..3 {
                match machine {
                    Some(seed) => array.memory(number).crash_machine(seed),
                    None => array.memory(number).crash_process(),
                }
            }
            // With a disk lost as well, or with all of them.
            let lost: Vec<usize> =
                (seed % 4 >= 2).then_some((seed % 3) as usize).into_iter().collect();
            let fs = array.open_without(&lost);
            lost.iter().for_each(|number| drop(fs.give_up_disk(NAMES[*number], 5).unwrap()));
            let mut files = Files::new();
            for (ino, known) in may_be {
                if fs.attributes(ino).is_err() {
                    // It was removed, and nobody was told.
                    continue;
                }
                let found = fs.contents(ino);
                let is_fine = known.contains(&found) || (machine.is_some() && known.len() > 1);
                assert!(is_fine, "inode {ino} is neither what it was nor what it was to be");
                files.insert(ino, found);
            }
            fs.sweep().unwrap();
            copy_all(&fs);
            assert_holds(&fs, &files);
            assert_have_copies(&array, &files, 1);
            fs.close().unwrap();
            drop(fs);
            array.assert_clean_without(&lost);
        }
    }
}

/// What is known of one file in the random test.
#[derive(Clone, Default)]
struct Known {
    now: Vec<u8>,
    /// What it may hold once its disk is lost: its latest acknowledged content and all since.
    may_be: Vec<Vec<u8>>,
}

#[test]
fn files_hold_what_was_acknowledged_whatever_disk_is_lost_at_whatever_moment() {
    for seed in support::seeds(12, "copies files_hold_what_was_acknowledged") {
        let mut dice = Dice::of(seed);
        let array = Array::new(4);
        let mut lost: Vec<usize> = Vec::new();
        let mut fs = array.open();
        let mut known: BTreeMap<Ino, Known> = BTreeMap::new();
        let data = fs.fileset("data");
        for step in 0..150_u64 {
            let inos: Vec<Ino> = known.keys().copied().collect();
            let some = (!inos.is_empty()).then(|| inos[dice.index(inos.len().max(1))]);
            match (dice.index(12), some) {
                (0 | 1, _) | (_, None) => {
                    let ino = fs.make_file(data, &format!("new-{step}"));
                    fs.write_file(ino, 0, &bytes_of(step));
                    let now = bytes_of(step);
                    known.insert(ino, Known { may_be: vec![Vec::new(), now.clone()], now });
                }
                (2 | 3, Some(ino)) => {
                    let of = known.get_mut(&ino).unwrap();
                    let (bytes, at) = (bytes_of(seed + step), dice.index(of.now.len() + 10));
                    fs.write_file(ino, at as u64, &bytes);
                    of.now.resize(of.now.len().max(at + bytes.len()), 0);
                    of.now[at..at + bytes.len()].copy_from_slice(&bytes);
                    of.may_be.push(of.now.clone());
                }
                (4, Some(ino)) => {
                    fs.overwrite(ino, &bytes_of(step));
                    let now = bytes_of(step);
                    let of = known.get_mut(&ino).unwrap();
                    // A new object, of which nothing is acknowledged: it may be lost as a whole.
                    *of = Known { may_be: vec![Vec::new(), now.clone()], now };
                }
                (5 | 6, Some(ino)) => {
                    let handle = fs.open(ino, WRITE);
                    fs.sync_file(ino, Sync::Data).unwrap();
                    handle.close();
                    let of = known.get_mut(&ino).unwrap();
                    of.may_be = vec![of.now.clone()];
                }
                (7 | 8, _) => {
                    copy_all(&fs);
                    known.values_mut().for_each(|of| of.may_be = vec![of.now.clone()]);
                }
                (9, Some(ino)) => {
                    let name =
                        fs.names(data).into_iter().find(|name| fs.find(data, name) == Some(ino));
                    fs.unlink(data, name.unwrap().as_bytes()).unwrap();
                    known.remove(&ino);
                }
                (10, _) => {
                    let number = fs.scrub(None).unwrap();
                    fs.commit().unwrap();
                    fs.work_through(number, &mut |_| {}).unwrap();
                }
                (_, _) => {
                    fs.sync_all().unwrap();
                    let machine = dice.toss().then_some(seed + step);
                    array.crash(fs, machine);
                    if lost.len() < 2 && dice.toss() {
                        let number = (0..4).find(|number| !lost.contains(number)).unwrap();
                        lost.push(number);
                    }
                    fs = array.open_without(&lost);
                    for number in &lost {
                        fs.give_up_disk(NAMES[*number], 5).unwrap();
                    }
                    known.retain(|ino, of| match fs.open_as(*ino, READ, support::ROOT) {
                        Ok(handle) => {
                            let found = handle.contents();
                            handle.close();
                            assert!(of.may_be.contains(&found), "seed {seed}, step {step}, {ino}");
                            of.now.clone_from(&found);
                            of.may_be = vec![found];
                            true
                        }
                        Err(_) => {
                            assert!(of.may_be[0].is_empty(), "seed {seed}, step {step}, {ino}");
                            false
                        }
                    });
                    fs.sweep().unwrap();
                    // Before the next one is lost.
                    copy_all(&fs);
                    known.values_mut().for_each(|of| of.may_be = vec![of.now.clone()]);
                }
            }
            for (ino, of) in &known {
                assert!(fs.contents(*ino) == of.now, "seed {seed}, step {step}, inode {ino}");
            }
        }
        fs.close().unwrap();
        drop(fs);
        array.assert_clean_without(&lost);
    }
}

#[test]
fn a_scratch_fileset_is_copied_in_the_background_alone() {
    let array = Array::new(2);
    let fs = array.open();
    fs.set_fileset("data", Some(Durability::Scratch), None).unwrap();
    let data = fs.fileset("data");
    let ino = fs.make_file(data, "file");
    fs.write_file(ino, 0, b"bytes");
    fs.sync_file(ino, Sync::All).unwrap();
    fs.commit().unwrap();
    assert!(array.copies_of(ino).is_none());
    copy_all(&fs);
    assert_have_copies(&array, &[(ino, b"bytes".to_vec())].into(), 1);
    array.close(fs);
}
