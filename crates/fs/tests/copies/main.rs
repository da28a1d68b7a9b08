//! Copies of files in other failure groups: made of files at rest and at fsync, taken when an object is lost, compared with
//! checksums; wherever the power is cut, and whichever disk is lost.

mod array;
mod losses;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;

use array::{Array, NAMES, assert_have_copies, copy_all, new_disk, objects_in};
use forebay_base::{DiskId, Ino};
use forebay_disk::faulty::Fault;
use forebay_disk::memory::MemoryDisk;
use forebay_disk::{Disk, Sync};
use forebay_fs::FsError;
use forebay_fs::fsck::{self, Repair};
use forebay_fs::key;
use forebay_fs::record::{Durability, encode};
use forebay_fs::tasks::TaskState;
use forebay_store::{Batch, Store};
use support::files::{Files, assert_holds, bytes_of, fill, refused};
use support::{READ, Shorthand as _, WRITE, fsck_of};

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
