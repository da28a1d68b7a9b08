//! A file system on several disks, each of which can be lost.

use std::sync::Arc;

use forebay_base::{DiskId, FailPoints, Ino};
use forebay_disk::faulty::FaultyDisk;
use forebay_disk::memory::MemoryDisk;
use forebay_disk::{Disk, Sync};
use forebay_fs::fsck::{self, Outcome, Repair};
use forebay_fs::key;
use forebay_fs::record::{CopiesRecord, ObjectRef, decode};
use forebay_fs::{NewDisk, Parts};
use forebay_store::Store as _;

use crate::support::files::Files;
use crate::support::{self, Rig, User, fsck_of};

pub(crate) const NAMES: [&str; 4] = ["disk-one", "disk-two", "disk-three", "disk-four"];

/// A file system on several disks, each of which can be lost.
pub(crate) struct Array {
    pub(crate) rig: Rig,
    /// All disks but the first.
    others: Vec<MemoryDisk>,
}

impl Array {
    /// On `count` disks that fail alone, with two copies of the files of `data`.
    pub(crate) fn new(count: usize) -> Array {
        let array = Array::without_copies(count);
        let fs = array.open();
        fs.set_fileset_copies("data", 2).unwrap();
        array.close(fs);
        array
    }

    pub(crate) fn without_copies(count: usize) -> Array {
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

    pub(crate) fn memory(&self, number: usize) -> &MemoryDisk {
        match (number, &self.rig.disk) {
            (0, support::TestDisk::Memory(first)) => first,
            (0, support::TestDisk::Directory(..) | support::TestDisk::Striped(_)) => {
                panic!("it is in memory")
            }
            (number, _) => &self.others[number - 1],
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.others.len() + 1
    }

    /// What it stands on, but for the disks that are `lost`.
    pub(crate) fn parts(&self, points: &FailPoints, lost: &[usize]) -> Parts {
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

    pub(crate) fn open(&self) -> User {
        self.open_without(&[])
    }

    pub(crate) fn open_without(&self, lost: &[usize]) -> User {
        self.rig.open_parts(self.parts(&FailPoints::none(), lost))
    }

    /// With a disk that fails on purpose.
    pub(crate) fn open_with_faults(&self, number: usize) -> (User, FaultyDisk) {
        let mut parts = self.parts(&FailPoints::none(), &[]);
        let faulty = FaultyDisk::new(Arc::clone(&parts.disks[number].1));
        parts.disks[number].1 = Arc::new(faulty.clone());
        (self.rig.open_parts(parts), faulty)
    }

    pub(crate) fn assert_clean_without(&self, lost: &[usize]) {
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

    pub(crate) fn close(&self, fs: User) {
        fs.close().unwrap();
        drop(fs);
        self.assert_clean_without(&[]);
    }

    pub(crate) fn crash(&self, fs: User, machine: Option<u64>) {
        drop(fs);
        for number in 0..self.count() {
            match machine {
                Some(seed) => self.memory(number).crash_machine(seed),
                None => self.memory(number).crash_process(),
            }
        }
    }

    pub(crate) fn object_of(&self, ino: Ino) -> ObjectRef {
        self.rig.record(ino).unwrap().layout.object().unwrap()
    }

    /// The copies of a file as they were committed.
    pub(crate) fn copies_of(&self, ino: Ino) -> Option<CopiesRecord> {
        let key = key::copies(self.object_of(ino).id);
        let found = self.rig.store_of(ino.fileset()).get(&key).unwrap()?;
        Some(decode("copies", &found).unwrap())
    }

    /// Changes a byte of an object without anybody knowing.
    pub(crate) fn spoil(&self, at: ObjectRef) {
        let object = self.memory(usize::from(at.disk.0)).open(at.id).unwrap();
        let mut byte = [0];
        let size = object.attributes().unwrap().size;
        object.read_at(size / 2, &mut byte).unwrap();
        object.write_at(size / 2, &[byte[0] ^ 1]).unwrap();
        object.sync(Sync::All).unwrap();
    }
}

pub(crate) fn new_disk(number: usize, group: &str) -> NewDisk {
    NewDisk {
        uuid: NAMES[number].to_owned(),
        location: format!("place-{number}"),
        pool: "default".to_owned(),
        group: group.to_owned(),
    }
}

/// Makes all copies that are due.
pub(crate) fn copy_all(fs: &User) -> u64 {
    fs.commit().unwrap();
    let copied = fs.make_copies().unwrap();
    fs.commit().unwrap();
    copied
}

pub(crate) fn assert_have_copies(array: &Array, files: &Files, copies: usize) {
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

pub(crate) fn objects_in(array: &Array) -> usize {
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
