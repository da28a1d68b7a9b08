//! Filesets beside each other: each is committed, recovered, swept and stopped by itself, and comes and goes in steps that
//! a crash cannot break.

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;

use forebay_base::{FailPoints, FilesetId, Ino, ObjectId};
use forebay_disk::Sync;
use forebay_fs::fsck::{Outcome, Repair};
use forebay_fs::record::{Durability, FilesetRecord, Placement, Stage, decode, encode};
use forebay_fs::{FsError, key, offline};
use forebay_store::faulty::{Fault, FaultyStore};
use forebay_store::{Batch, Store as _, Stores as _};
use support::{
    Rig, Shorthand as _, User, WRITE, at_the_owner, on_both_ways, on_disks_of_the_owner,
};

const DATA: FilesetId = FilesetId(1);
const WORK: FilesetId = FilesetId(2);

fn create(fs: &User, name: &str) -> forebay_fs::Result<()> {
    fs.create_fileset(name, Durability::Strict, Placement::Direct, 0o755)
}

/// Puts an object on the disk that no record knows of.
fn leave_object(rig: &Rig, id: ObjectId) {
    let disk = rig.disk.as_disk();
    let object = disk.create(id).unwrap();
    object.write_at(0, b"left behind").unwrap();
    disk.publish(id, &*object).unwrap();
}

/// After a crash in the middle of a change of filesets: whether "new" is there, and whole either way.
fn settled(rig: &Rig) -> bool {
    let fs = rig.open();
    let top = fs.find(Ino::ROOT, "new");
    if let Some(top) = top {
        let ino = fs.make_file(top, "file");
        fs.write_file(ino, 0, b"content");
        assert_eq!(fs.contents(ino), b"content");
        fs.unlink(top, b"file").unwrap();
    } else {
        // The name and the number can be used again.
        create(&fs, "new").unwrap();
        fs.remove_fileset("new").unwrap();
    }
    fs.sweep().unwrap();
    rig.close(fs);
    let stages = offline::all_filesets(&rig.store_of(FilesetId::ROOT)).unwrap();
    let is_settled = |stage| matches!(stage, Stage::Made | Stage::Removed);
    assert!(stages.iter().all(|(_, record)| is_settled(record.stage)), "{stages:?}");
    top.is_some()
}

#[test]
fn making_a_fileset_survives_a_crash_at_each_step() {
    let mut outcomes = BTreeSet::new();
    for point in [
        "fileset.noted",
        "fileset.stored",
        "fileset.named",
        "store.commit.before",
        "store.commit.after",
    ] {
        for passes in 0..12 {
            let rig = Rig::in_memory();
            let points = FailPoints::cut_at(point, passes);
            let Ok(fs) = rig.open_armed(&points) else { continue };
            let made = create(&fs, "new");
            rig.crash_process(fs);
            let is_there = settled(&rig);
            assert!(is_there || made.is_err(), "{point}, {passes}: what is made is there");
            outcomes.insert((made.is_ok(), is_there));
        }
    }
    assert!(outcomes.contains(&(false, false)) && outcomes.contains(&(true, true)), "{outcomes:?}");
}

#[test]
fn removing_a_fileset_survives_a_crash_at_each_step() {
    let mut outcomes = BTreeSet::new();
    for point in ["fileset.unnamed", "fileset.removed", "store.commit.before", "store.commit.after"]
    {
        for passes in 0..16 {
            let rig = Rig::in_memory();
            let fs = rig.open();
            create(&fs, "new").unwrap();
            rig.close(fs);
            let Ok(fs) = rig.open_armed(&FailPoints::cut_at(point, passes)) else { continue };
            let removed = fs.remove_fileset("new");
            rig.crash_process(fs);
            let is_there = settled(&rig);
            assert!(!is_there || removed.is_err(), "{point}, {passes}: what is removed is gone");
            outcomes.insert((removed.is_ok(), is_there));
        }
    }
    assert!(outcomes.contains(&(false, true)) && outcomes.contains(&(true, false)), "{outcomes:?}");
}

#[test]
fn a_synced_write_in_one_fileset_publishes_no_young_file_of_another() {
    on_disks_of_the_owner(|rig| {
        let (fs, store) = rig.open_watched();
        let (data, work) = (fs.fileset("data"), fs.fileset("work"));
        let database = fs.make_file(data, "database");
        let handle = fs.open(database, WRITE);
        fs.commit().unwrap();
        store.take();
        let mut young = Vec::new();
        for number in 0..200_u64 {
            let name = format!("temporary-{number}");
            let ino = fs.make_file(work, &name);
            fs.write_file(ino, 0, b"soon gone");
            young.push(name);
            handle.write(number * 8, b"inserted");
            fs.sync_file(database, if number % 2 == 0 { Sync::All } else { Sync::Data }).unwrap();
            if young.len() > 20 {
                fs.unlink(work, young.remove(0).as_bytes()).unwrap();
            }
            fs.after_request();
        }
        let published = rig.objects();
        assert_eq!(published.len(), 1, "the database alone: {published:?}");
        assert!(published.iter().all(|id| id.fileset() == DATA));
        let committed = store.take();
        assert!(committed.len() >= 100, "each insert is durable");
        for batch in &committed {
            let is_data = |key: &Vec<u8>| key[..2] == DATA.0.to_be_bytes();
            assert!(batch.changes.keys().all(is_data), "nothing of another fileset is committed");
        }
        handle.close();
        rig.close(fs);
    });
}

#[test]
fn two_filesets_on_one_disk_are_swept_at_the_same_time_and_lose_nothing() {
    for _ in 0..20 {
        let rig = Rig::in_directory();
        let fs = rig.open();
        let tops = [fs.fileset("data"), fs.fileset("work")];
        let mut kept = Vec::new();
        for top in tops {
            for number in 0..20 {
                let ino = fs.make_file(top, &format!("kept-{number}"));
                fs.write_file(ino, 0, b"kept");
                kept.push(ino);
            }
        }
        fs.commit().unwrap();
        rig.crash_process(fs);
        let left: Vec<ObjectId> = (1000..1040)
            .map(|number| ObjectId::of(if number % 2 == 0 { DATA } else { WORK }, number))
            .collect();
        left.iter().for_each(|id| leave_object(&rig, *id));
        let fs = rig.open();
        std::thread::scope(|scope| {
            for (fileset, top) in [DATA, WORK].into_iter().zip(tops) {
                let fs = &fs;
                scope.spawn(move || fs.sweep_fileset(fileset).unwrap());
                scope.spawn(move || {
                    for number in 0..20 {
                        let ino = fs.make_file(top, &format!("new-{number}"));
                        fs.write_file(ino, 0, b"new");
                        fs.commit().unwrap();
                    }
                });
            }
        });
        let objects = rig.objects();
        assert!(left.iter().all(|id| !objects.contains(id)), "what belongs to nothing is gone");
        kept.iter().for_each(|ino| assert_eq!(fs.contents(*ino), b"kept"));
        rig.close(fs);
    }
}

#[test]
fn a_sweep_of_one_fileset_leaves_objects_of_others_alone() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    fs.fileset("data");
    rig.crash_process(fs);
    // Nobody's, but not of this fileset: that of a fileset that this file system does not know any more.
    let foreign = ObjectId::of(FilesetId(77), 5);
    let own = ObjectId::of(DATA, 5);
    for id in [foreign, own] {
        leave_object(&rig, id);
    }
    let fs = rig.open();
    fs.sweep().unwrap();
    assert_eq!(rig.objects(), [foreign]);
    fs.fs.close().unwrap();
}

#[test]
fn a_commit_of_unknown_outcome_is_asked_for() {
    for (fault, is_there) in [(Fault::UnknownKept, true), (Fault::UnknownLost, false)] {
        at_the_owner(|rig| {
            let store = Arc::new(FaultyStore::new(rig.store.clone()));
            let parts =
                rig.parts_with(Arc::clone(&store) as _, rig.disk.as_disk(), FailPoints::none());
            let fs = rig.open_parts(parts);
            let data = fs.fileset("data");
            let ino = fs.make_file(data, "file");
            fs.write_file(ino, 0, b"content");
            store.fail_commits(1, fault);
            assert_eq!(fs.sync_file(ino, Sync::All).is_ok(), is_there, "{fault:?}");
            assert_eq!(rig.record(ino).is_some(), is_there);
            assert_eq!(fs.contents(ino), b"content");
            fs.make_file(data, "another");
            fs.commit().unwrap();
            assert!(rig.record(ino).is_some());
            rig.close(fs);
        });
    }
}

#[test]
fn a_fileset_whose_commit_stays_unknown_is_stopped_and_no_other() {
    for fault in [Fault::UnknownKept, Fault::UnknownLost] {
        let rig = Rig::in_memory();
        let store = Arc::new(FaultyStore::new(rig.store.clone()));
        let parts = rig.parts_with(Arc::clone(&store) as _, rig.disk.as_disk(), FailPoints::none());
        let fs = rig.open_parts(parts);
        let (data, work) = (fs.fileset("data"), fs.fileset("work"));
        let before = fs.make_file(data, "before");
        fs.commit().unwrap();
        let ino = fs.make_file(data, "file");
        store.fail_commits(1, fault);
        store.fail_reads(u64::MAX);
        let failed = fs.sync_directory(data).unwrap_err();
        assert!(failed.to_string().contains("not known"), "{failed}");
        store.heal();
        // What it remembers may not be what is stored: it answers nothing.
        for ino in [data, before, ino] {
            let refused = fs.attributes(ino).unwrap_err().to_string();
            assert!(refused.contains("stopped"), "{refused}");
        }
        assert!(fs.fileset_status()[1].problem.is_some());
        let other = fs.make_file(work, "as ever");
        fs.commit().unwrap_err();
        assert!(rig.record(other).is_some(), "others are committed");
        assert!(fs.fs.close().is_err());
        drop(fs);
        let fs = rig.open();
        assert_eq!(fs.find(data, "file").is_some(), fault == Fault::UnknownKept);
        assert_eq!(fs.find(data, "before"), Some(before));
        fs.sweep().unwrap();
        rig.close(fs);
    }
}

#[test]
fn a_fenced_fileset_answers_nothing_but_that_it_is() {
    let rig = Rig::in_memory();
    let first = rig.open();
    let (data, work) = (first.fileset("data"), first.fileset("work"));
    let ino = first.make_file(data, "file");
    first.commit().unwrap();
    let handle = first.open(ino, WRITE);
    let second = rig.open();
    second.fileset("data");
    first.make_file(data, "too late");
    assert!(matches!(first.sync_directory(data), Err(FsError::Fenced)));
    assert!(matches!(first.attributes(ino), Err(FsError::Fenced)));
    assert!(matches!(first.lookup(data, b"file"), Err(FsError::Fenced)));
    assert!(matches!(first.lookup(Ino::ROOT, b"data"), Err(FsError::Fenced)));
    assert!(matches!(first.read(ino, 0, &mut [0; 8]), Err(FsError::Fenced)));
    // What ends must end all the same.
    handle.close();
    first.forget(ino, 1);
    first.make_file(work, "another fileset");
    drop(first);
    second.fs.close().unwrap();
}

#[test]
fn files_on_a_disk_that_is_not_there_are_refused_and_their_removal_is_finished_later() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let data = fs.fileset("data");
    let (kept, removed) = (fs.make_file(data, "kept"), fs.make_file(data, "removed"));
    fs.write_file(kept, 0, b"kept");
    fs.write_file(removed, 0, b"removed");
    rig.close(fs);
    let mut parts = rig.parts();
    parts.disks.clear();
    let fs = rig.open_parts(parts);
    assert_eq!(fs.attributes(kept).unwrap().size, 4, "names are there");
    let refused = fs.open_as(kept, support::READ, support::ROOT).map(drop).unwrap_err();
    assert!(matches!(&refused, FsError::Absent(why) if why.contains("disk-one")), "{refused}");
    let ino = fs.make_file(data, "empty");
    let refused = fs.open_as(ino, WRITE, support::ROOT).map(drop).unwrap_err();
    assert!(matches!(refused, FsError::Absent(_)), "{refused}");
    fs.unlink(data, b"removed").unwrap();
    let status = fs.disk_status();
    assert_eq!(status[0].kind, "absent");
    assert!(status[0].advice[0].contains("is not there"), "{status:?}");
    fs.fs.close().unwrap();
    drop(fs);
    assert_eq!(rig.objects().len(), 2);
    let fs = rig.open();
    assert_eq!(fs.contents(kept), b"kept");
    fs.sweep().unwrap();
    assert_eq!(rig.objects().len(), 1, "the disk is there again");
    rig.close(fs);
}

#[test]
fn a_thousand_filesets_cost_nothing_until_they_are_used() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    for number in 0..1000 {
        create(&fs, &format!("fileset-{number}")).unwrap();
    }
    rig.close(fs);
    let fs = rig.open();
    assert_eq!(fs.fileset_status().len(), 1004);
    assert_eq!(fs.names(Ino::ROOT).len(), 1003);
    assert_eq!((fs.open_filesets(), fs.cache_usage().0), (1, 1));
    let top = fs.fileset("fileset-500");
    fs.make_file(top, "file");
    assert_eq!(fs.open_filesets(), 2);
    rig.close(fs);
    assert_eq!(rig.stores().list().unwrap().len(), 1004);
}

#[test]
fn a_record_that_says_wrongly_that_a_fileset_is_not_complete_costs_no_file() {
    for stage in [Stage::Making, Stage::Removing, Stage::Removed] {
        let rig = Rig::in_memory();
        let fs = rig.open();
        let ino = fs.make_file(fs.fileset("data"), "file");
        fs.write_file(ino, 0, b"content");
        rig.close(fs);
        let root = rig.store_of(FilesetId::ROOT);
        let value = root.get(&key::fileset(DATA)).unwrap().unwrap();
        let record: FilesetRecord = decode("fileset", &value).unwrap();
        let wrong = encode(&FilesetRecord { stage, ..record });
        let changes = [(key::fileset(DATA), Some(wrong))].into();
        root.commit(&Batch { requires: vec![], changes }).unwrap();
        let fs = rig.open();
        assert!(fs.lookup(Ino::ROOT, b"data").is_err());
        fs.fs.close().unwrap();
        drop(fs);
        let report = rig.fsck(Repair::Found, false);
        assert_eq!(report.outcome(), Outcome::Repaired, "{stage:?}: {report:#?}");
        let fs = rig.open();
        assert_eq!(fs.contents(ino), b"content", "{stage:?}");
        rig.close(fs);
    }
}

#[test]
fn a_listing_goes_on_where_a_fileset_cannot_answer() {
    let rig = Rig::in_memory();
    let first = rig.open();
    let data = first.fileset("data");
    let second = rig.open();
    second.fileset("data");
    first.make_file(data, "too late");
    first.sync_directory(data).unwrap_err();
    for item in first.items(Ino::ROOT) {
        let found = first.listed_attributes(Ino::ROOT, &item);
        assert!(found.is_ok(), "{found:?}");
    }
    drop(first);
    second.fs.close().unwrap();
}

/// Writes another record of a fileset; none removes it.
fn set_record(rig: &Rig, id: FilesetId, record: Option<&FilesetRecord>) {
    let root = rig.store_of(FilesetId::ROOT);
    let changes = [(key::fileset(id), record.map(encode))].into();
    root.commit(&Batch { requires: vec![], changes }).unwrap();
}

fn record_of(rig: &Rig, id: FilesetId) -> FilesetRecord {
    let value = rig.store_of(FilesetId::ROOT).get(&key::fileset(id)).unwrap().unwrap();
    decode("fileset", &value).unwrap()
}

#[test]
fn fsck_finds_a_native_fileset_whose_record_is_lost_or_wrong() {
    let rig = Rig::in_directory();
    let fs = rig.open();
    fs.create_fileset("fast", Durability::Scratch, Placement::Native, 0o755).unwrap();
    let tree = fs.native_filesets().remove(0).tree.unwrap().unwrap();
    std::fs::write(tree.join("file"), "content").unwrap();
    rig.close(fs);
    let id = FilesetId(4);
    let right = record_of(&rig, id);
    assert_eq!(right.settings.placement, Placement::Native);
    let wrong = |change: &dyn Fn(&mut FilesetRecord)| {
        let mut record = right.clone();
        change(&mut record);
        Some(record)
    };
    for record in [
        None,
        wrong(&|record| record.settings.placement = Placement::Served),
        wrong(&|record| record.settings.disk = Some("another".to_owned())),
        wrong(&|record| record.settings.disk = None),
    ] {
        set_record(&rig, id, record.as_ref());
        let report = rig.fsck(Repair::Found, false);
        assert_eq!(report.outcome(), Outcome::Repaired, "{record:?}: {report:#?}");
        assert_eq!(record_of(&rig, id), right);
        assert_eq!(std::fs::read(tree.join("file")).unwrap(), b"content");
    }
    let fs = rig.open();
    assert!(fs.find(Ino::ROOT, "fast").is_some());
    rig.close(fs);
}

#[test]
fn a_fileset_with_a_store_does_not_become_native_by_a_wrong_record() {
    on_both_ways(|rig| {
        let fs = rig.open();
        let ino = fs.make_file(fs.fileset("data"), "file");
        fs.write_file(ino, 0, b"content");
        rig.close(fs);
        for id in [FilesetId::ROOT, DATA] {
            let right = record_of(rig, id);
            let mut wrong = right.clone();
            wrong.settings.placement = Placement::Native;
            set_record(rig, id, Some(&wrong));
            let report = rig.fsck(Repair::Found, false);
            assert_eq!(report.outcome(), Outcome::Repaired, "{report:#?}");
            assert_eq!(record_of(rig, id), right);
        }
        let fs = rig.open();
        assert_eq!(fs.contents(ino), b"content");
        rig.close(fs);
    });
}

/// A file system in which "data" has lost its store.
fn with_a_lost_fileset(rig: &Rig) -> Ino {
    let fs = rig.open();
    let (data, work) = (fs.fileset("data"), fs.fileset("work"));
    let file = fs.make_file(data, "file");
    fs.write_file(file, 0, b"lost");
    let kept = fs.make_file(work, "kept");
    fs.write_file(kept, 0, b"kept");
    rig.close(fs);
    rig.stores().remove(DATA).unwrap();
    file
}

#[test]
fn a_fileset_without_a_store_is_removed_as_lost_and_no_other_way() {
    at_the_owner(|rig| {
        let lost = with_a_lost_fileset(rig);
        let fs = rig.open();
        let message = fs.remove_fileset("data").unwrap_err().to_string();
        assert!(message.contains("missing") && message.contains("--lost"), "{message}");
        let message = fs.remove_lost_fileset("work").unwrap_err().to_string();
        assert!(message.contains("not lost"), "{message}");
        assert!(fs.remove_lost_fileset("/").is_err() && fs.remove_lost_fileset("none").is_err());
        fs.remove_lost_fileset("data").unwrap();
        assert_eq!(fs.find(Ino::ROOT, "data"), None);
        assert!(matches!(fs.attributes(lost), Err(FsError::Stale)));
        // The name is free again; the number is not.
        create(&fs, "data").unwrap();
        let data = fs.fileset("data");
        assert_ne!(data.fileset(), DATA);
        assert!(matches!(fs.attributes(lost), Err(FsError::Stale)));
        let kept = fs.find(fs.fileset("work"), "kept").unwrap();
        assert_eq!(fs.contents(kept), b"kept");
        rig.close(fs);
        assert!(rig.objects().iter().all(|id| id.fileset() == WORK), "its objects are gone");
        let fs = rig.open();
        create(&fs, "more").unwrap();
        assert_ne!(fs.fileset("more").fileset(), DATA);
        rig.close(fs);
    });
}

#[test]
fn a_damaged_store_is_not_given_up_by_command() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    fs.make_file(fs.fileset("data"), "file");
    rig.close(fs);
    let changes = [(key::SUPERBLOCK.to_vec(), Some(b"not a superblock".to_vec()))].into();
    rig.store_of(DATA).commit(&Batch { requires: Vec::new(), changes }).unwrap();
    let fs = rig.open();
    let message = fs.remove_lost_fileset("data").unwrap_err().to_string();
    assert!(message.contains("fsck") && message.contains("backup"), "{message}");
    assert!(fs.find(Ino::ROOT, "work").is_some());
}

#[test]
fn removing_a_lost_fileset_survives_a_crash_at_each_step() {
    let mut outcomes = BTreeSet::new();
    for point in ["fileset.unnamed", "fileset.removed", "store.commit.before", "store.commit.after"]
    {
        for passes in 0..12 {
            let rig = Rig::in_memory();
            with_a_lost_fileset(&rig);
            let Ok(fs) = rig.open_armed(&FailPoints::cut_at(point, passes)) else { continue };
            let removed = fs.remove_lost_fileset("data");
            rig.crash_process(fs);
            let fs = rig.open();
            let is_there = fs.names(Ino::ROOT).contains(&"data".to_owned());
            assert!(!is_there || removed.is_err(), "{point}, {passes}: what is removed is gone");
            if is_there {
                fs.remove_lost_fileset("data").unwrap();
            }
            fs.sweep().unwrap();
            rig.close(fs);
            assert!(rig.objects().iter().all(|id| id.fileset() == WORK), "{point}, {passes}");
            outcomes.insert((removed.is_ok(), is_there));
        }
    }
    assert!(outcomes.contains(&(false, true)) && outcomes.contains(&(true, false)), "{outcomes:?}");
}
