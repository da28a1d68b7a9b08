//! What status and monitors show of archives, and when a recall is durable.

use std::time::Duration;

use forebay_base::{DiskId, Ino};
use forebay_fs::record::{DiskUsage, Occupancy, Premigrated};
use forebay_fs::{ArchiveStatus, DiskStatus, Migrated, Moves, key};
use forebay_store::{Batch, Store as _};

use crate::cold::{COLD, Cold, archive, with_archived_file};
use crate::support::{self, READ, Shorthand as _, User};

const PREMIGRATED: Migrated = Migrated::Premigrated { bytes: 7 };

fn status(fs: &User) -> DiskStatus {
    fs.disk_status().into_iter().find(|disk| disk.uuid == COLD).unwrap()
}

fn traffic(fs: &User) -> ArchiveStatus {
    status(fs).archive.unwrap()
}

fn in_archive(fs: &User) -> (u64, bool) {
    let Occupancy { bytes, stored_bytes } = status(fs).files.unwrap();
    (bytes, stored_bytes > 0)
}

#[test]
fn what_lies_in_an_archive_is_counted_at_once_and_over_a_mount() {
    let cold = Cold::new();
    let fs = cold.open();
    assert_eq!(in_archive(&fs), (0, false));
    let ino = fs.make_file(Ino::ROOT, "zeros");
    fs.write_file(ino, 0, &vec![7; 1 << 20]);
    let other = fs.make_file(Ino::ROOT, "other");
    fs.write_file(other, 0, b"four");
    archive(&fs, ino);
    archive(&fs, other);
    assert_eq!(in_archive(&fs), ((1 << 20) + 4, true));
    let Occupancy { bytes, stored_bytes } = status(&fs).files.unwrap();
    assert!(stored_bytes * 100 < bytes, "it is compressed: {stored_bytes}");
    cold.close(fs);
    let fs = cold.open();
    assert_eq!(in_archive(&fs), ((1 << 20) + 4, true));
    fs.recall(ino, None).unwrap();
    assert_eq!(in_archive(&fs).0, 4);
    fs.unlink(Ino::ROOT, b"other").unwrap();
    fs.commit().unwrap();
    assert_eq!(in_archive(&fs), (0, false));
    let here = fs.disk_status().into_iter().find(|disk| disk.uuid != COLD).unwrap();
    assert_eq!(here.files.unwrap().bytes, 1 << 20);
    cold.close(fs);
}

#[test]
fn premigrated_files_are_counted_until_they_are_written_removed_or_evicted() {
    let cold = Cold::new();
    let counted = |fs: &User| {
        let Premigrated { files, bytes, stored_bytes } = status(fs).premigrated.unwrap();
        assert_eq!(stored_bytes > 0, files > 0);
        (files, bytes, status(fs).files.unwrap().bytes)
    };
    let fs = cold.open();
    assert_eq!(counted(&fs), (0, 0, 0));
    let [first, second, _third] = ["first", "second", "third"].map(|name| {
        let ino = fs.make_file(Ino::ROOT, name);
        fs.write_file(ino, 0, b"content");
        assert_eq!(fs.premigrate_files("archive", &[ino]).unwrap(), [PREMIGRATED]);
        ino
    });
    assert_eq!(counted(&fs), (3, 21, 0));
    fs.migrate_files("archive", &[first]).unwrap();
    assert_eq!(counted(&fs), (2, 14, 7));
    fs.commit().unwrap();
    cold.close(fs);
    assert_eq!(cold.look().premigrated.map(|all| (all.files, all.bytes)), Some((2, 14)));
    let fs = cold.open();
    assert_eq!(counted(&fs), (2, 14, 7), "over a mount");
    fs.write_file(second, 0, b"CONTENT");
    fs.unlink(Ino::ROOT, b"third").unwrap();
    fs.commit().unwrap();
    fs.make_copies().unwrap();
    assert_eq!(counted(&fs), (0, 0, 7));
    assert_eq!(fs.premigrate_files("archive", &[second]).unwrap(), [PREMIGRATED]);
    fs.commit().unwrap();
    cold.crash(fs, None);
    let fs = cold.open();
    assert_eq!(counted(&fs), (1, 7, 7), "after a crash");
    cold.close(fs);
}

#[test]
fn files_that_went_and_came_failures_and_requests_are_counted() {
    let (cold, fs, ino) = with_archived_file();
    let moved = Moves { files: 1, bytes: 7, failures: 0 };
    assert_eq!((traffic(&fs).archived, traffic(&fs).recalled), (moved, Moves::default()));
    assert!(traffic(&fs).requests.puts > 0 && traffic(&fs).requests.gets > 0);
    assert!(traffic(&fs).requests.sent_bytes > 0 && traffic(&fs).requests.received_bytes > 0);
    assert_eq!(traffic(&fs).requests.failures, 0);
    cold.bucket.set_away(true);
    assert!(fs.open_file(ino, READ, support::ROOT).is_err());
    assert_eq!(traffic(&fs).recalled, Moves { failures: 1, ..Moves::default() });
    assert!(traffic(&fs).requests.failures > 0);
    let other = fs.make_file(Ino::ROOT, "other");
    fs.write_file(other, 0, b"other");
    fs.migrate_files("archive", &[other]).unwrap();
    assert_eq!(traffic(&fs).archived, Moves { failures: 1, ..moved });
    cold.bucket.set_away(false);
    assert_eq!(fs.contents(ino), b"content");
    assert_eq!(traffic(&fs).recalled, Moves { failures: 1, ..moved });
    fs.commit().unwrap();
    cold.close(fs);
}

#[test]
fn counts_of_an_earlier_version_are_completed_for_archives_at_the_first_mount() {
    let (cold, fs, ino) = with_archived_file();
    let known = status(&fs).files;
    cold.close(fs);
    // Version 2 had the number of objects alone.
    let changes = [DiskId(0), DiskId(1)].map(|disk| {
        let objects = u8::from(disk == DiskId(1));
        (key::disk_usage(disk), Some(vec![2, objects]))
    });
    let batch = Batch { requires: Vec::new(), changes: changes.into() };
    cold.rig.store_of(Ino::ROOT.fileset()).commit(&batch).unwrap();
    cold.assert_clean();
    let fs = cold.open();
    assert!(known.is_some_and(|files| files.bytes == 7));
    assert_eq!(status(&fs).files, known);
    fs.recall(ino, None).unwrap();
    assert_eq!(status(&fs).files, DiskUsage::default().files);
    fs.commit().unwrap();
    cold.close(fs);
}

#[test]
fn a_recall_that_a_program_waits_for_is_committed_without_waiting_for_the_interval() {
    let cold = Cold::new();
    cold.rig.settings_mut(|settings| settings.commit_interval = Duration::from_secs(3600));
    let fs = cold.open();
    let ino = fs.make_file(Ino::ROOT, "file");
    fs.write_file(ino, 0, b"content");
    archive(&fs, ino);
    let background = fs.at_owner().start_background().unwrap();
    fs.recall(ino, None).unwrap();
    // Its object in the archive goes after the commit.
    while !cold.objects().is_empty() {
        std::thread::yield_now();
    }
    background.stop();
    cold.crash(fs, None);
    let fs = cold.open();
    assert!(!fs.place_of(ino).unwrap().is_archived);
    assert_eq!(fs.contents(ino), b"content");
    cold.close(fs);
}
