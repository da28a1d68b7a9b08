//! Short of space: what is kept aside for commits, and what was given up comes back for whoever needs it.

mod support;

use std::sync::Arc;
use std::time::Duration;

use forebay_base::{ByteSize, FailPoints};
use forebay_disk::faulty::{Fault, FaultyDisk};
use forebay_fs::{FsError, Replace};
use support::{READ, READ_WRITE, ROOT, Rig, Shorthand as _, TRUNCATE, User, WRITE};

const MIB: usize = 1 << 20;

/// A file system on a disk of `mib` MiB that commits only when it is told to or space is wanted.
fn rig_of(mib: u64, reserve_mib: u64) -> Rig {
    let rig = Rig::of_capacity(mib << 20);
    rig.settings_mut(|settings| {
        settings.commit_interval = Duration::from_mins(1);
        settings.disk_reserve = ByteSize::mib(reserve_mib);
    });
    rig
}

fn free_bytes(rig: &Rig) -> u64 {
    rig.disk.as_disk().capacity().unwrap().free_bytes
}

fn make_committed(fs: &User, name: &str, bytes: usize) -> forebay_base::Ino {
    let ino = fs.make_file(fs.fileset("data"), name);
    fs.write_file(ino, 0, &vec![1; bytes]);
    fs.commit().unwrap();
    ino
}

/// Whether a file of `bytes` can be made and written as a whole.
fn fits(fs: &User, name: &str, bytes: usize) -> bool {
    let ino = fs.make_file(fs.fileset("data"), name);
    let Ok(handle) = fs.open_as(ino, WRITE, ROOT) else { return false };
    let written = handle.try_write(0, &vec![2; bytes]);
    handle.close();
    written.is_ok()
}

#[test]
fn names_of_objects_are_paid_from_the_reserve_of_their_disk() {
    let rig = rig_of(64, 8);
    let disk = FaultyDisk::new(rig.disk.as_disk());
    let store = Arc::new(rig.store.clone());
    let fs = rig.open_parts(rig.parts_with(store, Arc::new(disk.clone()), FailPoints::none()));
    let status = fs.disk_status().remove(0);
    assert_eq!((status.reserve_bytes, status.reserve_held_bytes), (8 << 20, 8 << 20));
    let ino = fs.make_file(fs.fileset("data"), "file");
    fs.write_file(ino, 0, b"content");
    // The directory would need a block each time: everything that is kept aside is not enough.
    disk.fail(Fault::PublishFull);
    assert!(matches!(fs.commit(), Err(FsError::NoSpace)));
    assert_eq!(fs.disk_status()[0].reserve_held_bytes, 0);
    // As long as so little is kept aside, there are no more objects whose names could be needed.
    let refused = fs.make_file(fs.fileset("data"), "refused");
    assert!(matches!(fs.open_as(refused, WRITE, ROOT), Err(FsError::NoSpace)));
    disk.heal();
    fs.commit().unwrap();
    assert_eq!(fs.contents(ino), b"content");
    rig.close(fs);
}

#[test]
fn the_reserve_is_filled_up_before_anybody_else_has_what_is_freed() {
    let rig = rig_of(32, 4);
    let fs = rig.open();
    let background = fs.fs.start_background().unwrap();
    let ino = make_committed(&fs, "file", 8 * MIB);
    let disk = rig.disk.as_disk();
    disk.give_reserve(u64::MAX);
    background.stop();
    rig.close(fs);
    // It was given away without the knowledge of the file system; the next one finds it so and fills it up.
    let fs = rig.open();
    assert_eq!(fs.disk_status()[0].reserve_held_bytes, 4 << 20);
    assert_eq!(fs.contents(ino).len(), 8 * MIB);
    rig.close(fs);
}

#[test]
fn a_writer_who_finds_no_space_has_what_waits_for_a_commit() {
    let rig = rig_of(32, 1);
    let fs = rig.open();
    let data = fs.fileset("data");
    let open = make_committed(&fs, "open", 10 * MIB);
    // Removed while it is open: its bytes wait for a commit from its close on.
    let handle = fs.open(open, READ);
    fs.unlink(data, b"open").unwrap();
    let filler = fs.make_file(data, "filler");
    let writer = fs.open(filler, READ_WRITE);
    writer.write(0, &vec![3; 16 * MIB]);
    handle.close();
    assert!(free_bytes(&rig) < 10 << 20);
    writer.write(16 << 20, &vec![3; 10 * MIB]);
    assert!(writer.try_write(26 << 20, &vec![3; 10 * MIB]).is_err(), "the disk is full indeed");
    writer.close();
    rig.close(fs);
}

#[test]
fn bytes_of_a_removed_file_are_free_when_its_removal_returns_on_a_disk_that_is_nearly_full() {
    let rig = rig_of(32, 1);
    let fs = rig.open();
    let data = fs.fileset("data");
    for round in 0..5 {
        make_committed(&fs, "file", 20 * MIB);
        // The kernel has not forgotten it.
        let known = fs.lookup(data, b"file").unwrap().ino;
        let free = free_bytes(&rig);
        fs.unlink(data, b"file").unwrap();
        assert!(free_bytes(&rig) >= free + (20 << 20), "round {round}");
        let again = fs.open_as(known, READ, ROOT).map(|_| ());
        assert!(matches!(again, Err(FsError::Stale)), "{again:?}");
        fs.forget(known, 1);
    }
    rig.close(fs);
}

#[test]
fn bytes_of_a_replaced_file_are_free_when_the_rename_returns_on_a_disk_that_is_nearly_full() {
    let rig = rig_of(32, 1);
    let fs = rig.open();
    let data = fs.fileset("data");
    make_committed(&fs, "old", 12 * MIB);
    for round in 0..5 {
        assert!(fits(&fs, "new", 12 * MIB), "round {round}");
        fs.commit().unwrap();
        fs.rename(data, b"new", data, b"old", Replace::Allowed).unwrap();
    }
    rig.close(fs);
}

#[test]
fn a_file_is_cut_in_place_on_a_disk_that_is_nearly_full() {
    let rig = rig_of(32, 1);
    let fs = rig.open();
    let ino = make_committed(&fs, "file", 20 * MIB);
    for _ in 0..5 {
        let handle = fs.open(ino, TRUNCATE);
        handle.write(0, &vec![4; 20 * MIB]);
        handle.close();
    }
    rig.close(fs);
}

#[test]
fn bytes_given_back_before_their_time_are_those_of_a_committed_removal() {
    // The power goes at each step of the commit for which a removal waits.
    for point in ["commit.start", "commit.published", "commit.stored", "reclaim.removed"] {
        let rig = rig_of(32, 1);
        let fs = rig.open();
        make_committed(&fs, "file", 20 * MIB);
        fs.close().unwrap();
        drop(fs);
        let points = FailPoints::cut_at(point, 0);
        let fs = rig.open_armed(&points).unwrap();
        let data = fs.fileset("data");
        let _ = fs.unlink(data, b"file");
        rig.crash_machine(fs, 7);
        let fs = rig.open();
        fs.sweep().unwrap();
        let found = fs.find(fs.fileset("data"), "file");
        if let Some(ino) = found {
            assert_eq!(fs.contents(ino), vec![1; 20 * MIB], "cut at {point}");
        }
        rig.close(fs);
    }
}

#[test]
fn no_objects_are_kept_ready_where_space_is_short() {
    let rig = rig_of(64, 8);
    rig.settings_mut(|settings| {
        settings.spare_objects = 64;
        settings.commit_interval = Duration::from_millis(50);
    });
    let mut parts = rig.parts();
    // Looks at the disk are some time apart.
    parts.clock = Arc::new(forebay_base::time::SystemClock);
    let fs = rig.open_parts(parts);
    let background = fs.fs.start_background().unwrap();
    let spares = |wanted: bool| {
        let mut patience = 12_000;
        while (fs.objects().spare_count() > 0) != wanted {
            patience -= 1;
            assert!(patience > 0, "{} spares", fs.objects().spare_count());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    spares(true);
    let ino = fs.make_file(fs.fileset("data"), "file");
    fs.write_file(ino, 0, &vec![1; 40 * MIB]);
    spares(false);
    assert!(fits(&fs, "another", MIB), "files are made all the same");
    fs.unlink(fs.fileset("data"), b"file").unwrap();
    fs.commit().unwrap();
    spares(true);
    background.stop();
    rig.close(fs);
}
