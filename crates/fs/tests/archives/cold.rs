//! A file system with an archive in memory.

use std::sync::Arc;

use forebay_base::{FailPoints, Ino};
use forebay_disk::Disk;
use forebay_disk::archive::ArchiveDisk;
use forebay_disk::archive::memory::MemoryBucket;
use forebay_disk::directory::Label;
use forebay_fs::fsck::{Archives, NamedDisk, Outcome, Repair};
use forebay_fs::{Migrated, NewDisk, Parts, Result};

use crate::support::{self, Rig, Shorthand as _, User, fsck_with};

pub(crate) const COLD: &str = "cold";

pub(crate) fn label() -> Label {
    Label { file_system: "file-system-one".to_owned(), disk: COLD.to_owned() }
}

/// A file system on one disk, with an archive.
pub(crate) struct Cold {
    pub(crate) rig: Rig,
    pub(crate) bucket: MemoryBucket,
}

impl Cold {
    pub(crate) fn new() -> Cold {
        Cold::of_capacity(1 << 40)
    }

    pub(crate) fn of_capacity(bytes: u64) -> Cold {
        Cold::beside(Rig::of_capacity(bytes))
    }

    pub(crate) fn beside(rig: Rig) -> Cold {
        let cold = Cold { rig, bucket: MemoryBucket::default() };
        cold.rig.settings_mut(|settings| settings.away_timeout = std::time::Duration::ZERO);
        ArchiveDisk::format(&cold.bucket, &label(), "bucket").unwrap();
        let fs = cold.rig.open_parts(cold.rig.parts());
        fs.add_disk(&new_disk("archive"), cold.archive(&FailPoints::none())).unwrap();
        fs.close().unwrap();
        cold
    }

    pub(crate) fn archive(&self, points: &FailPoints) -> Arc<dyn Disk> {
        let bucket = Box::new(self.bucket.with_fail_points(points.clone()));
        Arc::new(ArchiveDisk::open(bucket, label(), "bucket"))
    }

    pub(crate) fn parts(&self, points: &FailPoints) -> Parts {
        let store = self.rig.store.reopen_with_fail_points(points.clone());
        let first: Arc<dyn Disk> = match &self.rig.disk {
            support::TestDisk::Memory(first) => {
                Arc::new(first.reopen_with_fail_points(points.clone()))
            }
            support::TestDisk::Directory(..) | support::TestDisk::Striped(_) => {
                self.rig.disk.as_disk()
            }
        };
        let mut parts = self.rig.parts_with(Arc::new(store), first, points.clone());
        parts.disks.push((COLD.to_owned(), self.archive(points)));
        parts
    }

    pub(crate) fn open(&self) -> User {
        self.try_open(&FailPoints::none()).unwrap()
    }

    pub(crate) fn try_open(&self, points: &FailPoints) -> Result<User> {
        self.rig.try_open_parts(self.parts(points))
    }

    pub(crate) fn crash(&self, fs: User, machine: Option<u64>) {
        drop(fs);
        let support::TestDisk::Memory(first) = &self.rig.disk else { panic!("it is in memory") };
        machine.map_or_else(|| first.crash_process(), |seed| first.crash_machine(seed));
    }

    pub(crate) fn fsck(&self, repair: Repair) -> forebay_fs::fsck::Report {
        let none = FailPoints::none();
        let mut disks: Vec<NamedDisk> = vec![
            ("disk-one".to_owned(), self.rig.disk.as_disk()),
            (COLD.to_owned(), self.archive(&none)),
        ];
        disks.extend(self.rig.second_disk(&none).map(|disk| ("disk-two".to_owned(), disk)));
        fsck_with(&self.rig.stores(), &disks, (repair, false), Archives::Checked)
    }

    pub(crate) fn assert_clean(&self) {
        let report = self.fsck(Repair::Never);
        assert_eq!(report.outcome(), Outcome::Clean, "{:#?}", report.findings);
    }

    pub(crate) fn close(&self, fs: User) {
        fs.close().unwrap();
        drop(fs);
        self.assert_clean();
    }

    /// What can be said of the archive without a mount.
    pub(crate) fn look(&self) -> forebay_fs::DiskStatus {
        let disks = [
            ("disk-one".to_owned(), self.rig.disk.as_disk()),
            (COLD.to_owned(), self.archive(&FailPoints::none())),
        ];
        let found = forebay_fs::offline::look(&self.rig.stores(), &disks).unwrap();
        found.disks.into_iter().find(|disk| disk.uuid == COLD).unwrap()
    }

    pub(crate) fn objects(&self) -> Vec<String> {
        let names = self.bucket.names().into_iter().map(|(name, _)| name);
        names.filter(|name| name.starts_with("objects/")).collect()
    }
}

pub(crate) fn new_disk(pool: &str) -> NewDisk {
    NewDisk {
        uuid: COLD.to_owned(),
        location: "bucket".to_owned(),
        pool: pool.to_owned(),
        group: String::new(),
    }
}

pub(crate) fn archive(fs: &User, ino: Ino) {
    let outcome = fs.migrate_files("archive", &[ino]).unwrap();
    assert!(matches!(outcome[..], [Migrated::Moved { .. }]), "{outcome:?}");
    assert!(fs.place_of(ino).unwrap().is_archived);
}

/// With a file of the content "content", which lies in the archive.
pub(crate) fn with_archived_file() -> (Cold, User, Ino) {
    let cold = Cold::new();
    let fs = cold.open();
    let ino = fs.make_file(Ino::ROOT, "file");
    fs.write_file(ino, 0, b"content");
    archive(&fs, ino);
    (cold, fs, ino)
}
