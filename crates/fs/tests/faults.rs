//! What happens when the store or a disk fails or is full, and when another owner takes over.

mod support;

use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use forebay_base::{ByteSize, FailPoints};
use forebay_disk::Sync;
use forebay_disk::faulty::{Fault as DiskFault, FaultyDisk};
use forebay_fs::reserve::Reserve;
use forebay_fs::{FsError, SetAttributes};
use forebay_store::faulty::{Fault, FaultyStore};
use forebay_store::memory::MemoryStore;
use support::{
    READ, READ_WRITE, ROOT, Rig, Shorthand as _, TRUNCATE, User, WRITE, at_the_owner, file,
    on_both_ways,
};

fn with_faulty_store(rig: &Rig) -> (User, Arc<FaultyStore<MemoryStore>>) {
    let store = Arc::new(FaultyStore::new(rig.store.clone()));
    let parts = rig.parts_with(Arc::clone(&store) as _, rig.disk.as_disk(), FailPoints::none());
    (rig.open_parts(parts), store)
}

fn with_faulty_disk(rig: &Rig) -> (User, FaultyDisk) {
    let disk = FaultyDisk::new(rig.disk.as_disk());
    let store = Arc::new(rig.store.clone());
    let parts = rig.parts_with(store, Arc::new(disk.clone()), FailPoints::none());
    (rig.open_parts(parts), disk)
}

fn disk_errors(fs: &User) -> (u64, Option<String>) {
    let status = fs.disk_status().remove(0);
    (status.errors, status.last_error)
}

#[test]
fn commits_that_fail_lose_nothing_and_succeed_later() {
    for fault in [Fault::Full, Fault::Io] {
        on_both_ways(|rig| {
            let (fs, store) = with_faulty_store(rig);
            let data = fs.fileset("data");
            let old = fs.make_file(data, "old");
            fs.write_file(old, 0, b"old");
            let removed = fs.make_file(data, "removed");
            fs.write_file(removed, 0, b"removed");
            fs.commit().unwrap();
            store.fail_commits(u64::MAX, fault);
            for round in 0..5_u8 {
                let ino = fs.make_file(data, &format!("file-{round}"));
                fs.write_file(ino, 0, &[round; 100]);
                let short = fs.make_file(data, "short-lived");
                fs.write_file(short, 0, b"short-lived");
                assert!(fs.commit().is_err());
                fs.unlink(data, b"short-lived").unwrap();
                fs.overwrite(old, &[round; 10]);
                fs.write_file(ino, 50, &[round; 100]);
                assert!(matches!(
                    (fs.sync_directory(data), fault),
                    (Err(FsError::NoSpace), Fault::Full) | (Err(FsError::Io(_)), Fault::Io)
                ));
                if round == 2 {
                    fs.unlink(data, b"removed").unwrap();
                }
            }
            let health = fs.commit_health();
            assert!(health.pending > 0 && health.last_error.is_some());
            store.heal();
            fs.commit().unwrap();
            let health = fs.commit_health();
            assert_eq!((health.pending, health.last_error), (0, None));
            rig.close(fs);
            let fs = rig.open();
            assert_eq!(fs.contents(old), [4; 10]);
            let names = ["file-0", "file-1", "file-2", "file-3", "file-4", "old"];
            assert_eq!(fs.names(data), names);
            for round in 0..5_u8 {
                let ino = fs.find(data, &format!("file-{round}")).unwrap();
                assert_eq!(fs.contents(ino), [round; 150]);
            }
            rig.close(fs);
        });
    }
}

#[test]
fn a_commit_that_failed_is_not_tried_again_by_each_request() {
    let rig = Rig::in_memory();
    rig.settings_mut(|settings| settings.uncommitted_max = 10);
    let (fs, store) = with_faulty_store(&rig);
    let data = fs.fileset("data");
    store.fail_commits(1, Fault::Io);
    for number in 0..9 {
        fs.make_file(data, &format!("file-{number}"));
        fs.after_request();
    }
    // Time stands still: no interval has passed since the first failure, and a second try would succeed.
    assert!(fs.commit_health().last_error.is_some());
    fs.sync_directory(data).unwrap();
    assert_eq!(fs.commit_health().last_error, None);
    rig.close(fs);
}

#[test]
fn what_cannot_be_committed_has_a_bound_and_giving_space_back_goes_on() {
    for fault in [Fault::Full, Fault::Io] {
        let rig = Rig::in_memory();
        rig.settings_mut(|settings| settings.uncommitted_max = 100);
        let (fs, store) = with_faulty_store(&rig);
        let data = fs.fileset("data");
        let old = fs.make_file(data, "old");
        fs.write_file(old, 0, b"old");
        fs.commit().unwrap();
        store.fail_commits(u64::MAX, fault);
        let mut made = 0;
        let refused = loop {
            match fs.create(data, format!("file-{made}").as_bytes(), file(0o644), ROOT) {
                Ok(file) => fs.forget(file.ino, 1),
                Err(error) => break error,
            }
            fs.after_request();
            made += 1;
            assert!(made < 300, "{} records are not committed", fs.commit_health().pending);
        };
        assert!(matches!(
            (&refused, fault),
            (FsError::NoSpace, Fault::Full) | (FsError::Io(_), Fault::Io)
        ));
        let rename = fs.rename(data, b"old", data, b"new", forebay_fs::Replace::Allowed);
        assert!(rename.is_err() && fs.link(old, data, b"link").is_err());
        assert!(fs.create_unnamed(data, file(0o644), ROOT).is_err());
        fs.unlink(data, b"old").unwrap();
        fs.unlink(data, b"file-0").unwrap();
        assert_eq!(fs.names(data).len(), made - 1);
        store.heal();
        fs.commit().unwrap();
        fs.make_file(data, "again");
        rig.close(fs);
    }
}

#[test]
fn a_change_of_filesets_that_cannot_be_committed_is_not_made_or_says_that_it_is() {
    use forebay_fs::record::{Durability, Placement};
    let rig = Rig::in_memory();
    let (fs, store) = with_faulty_store(&rig);
    store.fail_commits(u64::MAX, Fault::Full);
    let create = || fs.create_fileset("new", Durability::Strict, Placement::Direct, 0o755);
    for _ in 0..2 {
        let said = create().unwrap_err().to_string();
        assert!(said.contains("no space") && !said.contains("was made"), "{said}");
        assert_eq!(fs.fileset_status().len(), 4);
    }
    let set = || fs.set_fileset("data", Some(Durability::Scratch), None);
    let said = set().unwrap_err().to_string();
    assert!(said.contains("was made") && said.contains("no space"), "{said}");
    store.heal();
    create().unwrap();
    rig.close(fs);
    let fs = rig.open();
    assert!(fs.find(forebay_base::Ino::ROOT, "new").is_some());
    assert_eq!(fs.fileset_status()[1].durability, Durability::Scratch);
    rig.close(fs);
}

#[test]
fn objects_that_cannot_be_closed_are_not_joined_by_new_ones() {
    at_the_owner(|rig| {
        const OPEN_MAX: usize = 64;
        rig.settings_mut(|settings| settings.open_objects_max = OPEN_MAX);
        let (fs, disk) = with_faulty_disk(rig);
        let data = fs.fileset("data");
        disk.fail(DiskFault::PublishIo);
        let mut refused = None;
        for number in 0..2 * OPEN_MAX {
            let ino = fs.make_file(data, &format!("file-{number}"));
            match fs.open_as(ino, WRITE, ROOT) {
                Ok(handle) => {
                    handle.write(0, b"content");
                    handle.close();
                }
                Err(error) => refused = Some(error),
            }
            fs.after_request();
        }
        assert!(matches!(refused, Some(FsError::Io(_))), "{refused:?}");
        assert!(fs.objects().open_count() <= OPEN_MAX + 1, "{}", fs.objects().open_count());
        assert_eq!(disk_errors(&fs).0, 1, "one try while no time passes");
        disk.heal();
        rig.close(fs);
    });
}

#[test]
fn a_crash_after_failed_commits_leaves_the_last_good_one() {
    let rig = Rig::in_memory();
    let (fs, store) = with_faulty_store(&rig);
    let data = fs.fileset("data");
    let ino = fs.make_file(data, "file");
    fs.write_file(ino, 0, b"good");
    fs.commit().unwrap();
    store.fail_commits(u64::MAX, Fault::Full);
    fs.overwrite(ino, b"never committed");
    fs.make_file(data, "never");
    assert!(fs.commit().is_err());
    fs.unlink(data, b"file").unwrap();
    assert!(fs.commit().is_err());
    rig.crash_process(fs);
    let fs = rig.open();
    assert_eq!(fs.names(data), ["file"]);
    assert_eq!(fs.contents(ino), b"good");
    rig.close(fs);
}

#[test]
fn a_read_that_the_store_fails_is_an_error_and_the_next_one_is_not() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let data = fs.fileset("data");
    fs.make_file(data, "file");
    rig.close(fs);
    let (fs, store) = with_faulty_store(&rig);
    store.fail_reads(u64::MAX);
    assert!(matches!(fs.lookup(data, b"file"), Err(FsError::Io(_))));
    assert!(matches!(fs.create(data, b"new", file(0o644), ROOT), Err(FsError::Io(_))));
    store.heal();
    assert!(fs.find(data, "file").is_some());
    fs.make_file(data, "new");
    rig.close(fs);
}

#[test]
fn the_reserve_is_given_away_when_the_store_is_full() {
    let rig = Rig::in_memory();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("reserve");
    let store = Arc::new(FaultyStore::new(rig.store.clone()));
    let mut parts = rig.parts_with(Arc::clone(&store) as _, rig.disk.as_disk(), FailPoints::none());
    parts.reserve = Reserve::at(&path, ByteSize::kib(64));
    let fs = rig.open_parts(parts);
    assert!(fs.reserve_is_held() && std::fs::metadata(&path).unwrap().blocks() >= 128);
    fs.make_file(fs.fileset("data"), "file");
    store.fail_commits(1, Fault::Full);
    fs.commit().unwrap();
    assert!(!fs.reserve_is_held() && std::fs::metadata(&path).unwrap().blocks() == 0);
    rig.close(fs);
}

#[test]
fn a_second_owner_fences_the_first() {
    at_the_owner(|rig| {
        let first = rig.open();
        let data = first.fileset("data");
        let ino = first.make_file(data, "committed");
        first.write_file(ino, 0, b"committed");
        first.commit().unwrap();
        let lost = first.make_file(data, "too late");
        first.write_file(lost, 0, b"too late");
        first.unlink(data, b"committed").unwrap();
        let second = rig.open();
        assert_eq!(second.fileset("data"), data, "each fileset has an owner of its own");
        assert!(matches!(first.commit(), Err(FsError::Fenced)));
        assert!(matches!(first.sync_directory(data), Err(FsError::Fenced)));
        assert!(matches!(first.close(), Err(FsError::Fenced)));
        assert_eq!(second.names(data), ["committed"]);
        let new = second.make_file(data, "new");
        assert_ne!(new, lost, "numbers of the fenced owner are not given out again");
        second.write_file(new, 0, b"new");
        drop(first);
        assert_eq!(second.contents(ino), b"committed");
        rig.close(second);
    });
}

#[test]
fn a_full_disk_refuses_the_writer_and_gives_space_back_after_deletes() {
    let rig = Rig::of_capacity(1 << 20);
    let fs = rig.open();
    let data = fs.fileset("data");
    let kept = fs.make_file(data, "kept");
    fs.write_file(kept, 0, &[1; 100_000]);
    let mut made = 0;
    let refused = loop {
        let ino = fs.make_file(data, &format!("filler-{made}"));
        made += 1;
        let handle = match fs.open_as(ino, WRITE, ROOT) {
            Ok(handle) => handle,
            Err(error) => break error,
        };
        let written = handle.try_write(0, &[2; 50_000]);
        handle.close();
        if let Err(error) = written {
            break error;
        }
        assert!(made < 100, "the disk never fills up");
    };
    assert!(matches!(refused, FsError::NoSpace));
    assert_eq!(fs.contents(kept), [1; 100_000]);
    fs.make_directory(data, "names still go");
    fs.commit().unwrap();
    for number in 0..made {
        fs.unlink(data, format!("filler-{number}").as_bytes()).unwrap();
    }
    fs.commit().unwrap();
    fs.write_file(kept, 100_000, &[3; 700_000]);
    rig.close(fs);
    let fs = rig.open();
    assert_eq!(fs.attributes(kept).unwrap().size, 800_000);
    rig.close(fs);
}

#[test]
fn files_can_be_emptied_and_empty_ones_read_when_no_object_can_be_made() {
    on_both_ways(|rig| {
        let (fs, disk) = with_faulty_disk(rig);
        let data = fs.fileset("data");
        let ino = fs.make_file(data, "file");
        fs.write_file(ino, 0, b"content");
        let empty = fs.make_file(data, "empty");
        fs.commit().unwrap();
        disk.fail(DiskFault::CreateFull);
        assert_eq!(fs.contents(empty), b"");
        let reader = fs.open(empty, READ);
        assert_eq!(reader.read(0, 100), b"");
        let refused = fs.open_as(empty, WRITE, ROOT).map(drop);
        assert!(matches!(refused, Err(FsError::NoSpace)));
        let longer = SetAttributes { size: Some(10), ..SetAttributes::default() };
        assert!(matches!(fs.set_attributes(empty, longer), Err(FsError::NoSpace)));
        reader.close();
        fs.open(ino, TRUNCATE).close();
        assert_eq!(fs.attributes(ino).unwrap().size, 0);
        assert_eq!(fs.contents(ino), b"");
        disk.heal();
        fs.overwrite(ino, b"again");
        rig.close(fs);
    });
}

#[test]
fn errors_of_a_disk_reach_the_caller_and_show_in_the_status() {
    let rig = Rig::in_memory();
    let (fs, disk) = with_faulty_disk(&rig);
    let data = fs.fileset("data");
    let ino = fs.make_file(data, "file");
    let handle = fs.open(ino, READ_WRITE);
    handle.write(0, b"content");
    assert_eq!(disk_errors(&fs), (0, None));
    disk.fail(DiskFault::ReadIo);
    assert!(matches!(fs.read(ino, 0, &mut [0; 10]), Err(FsError::Io(_))));
    disk.fail(DiskFault::WriteIo);
    assert!(matches!(fs.write(ino, 0, b"lost"), Err(FsError::Io(_))));
    let shorter = SetAttributes { size: Some(1), ..SetAttributes::default() };
    assert!(matches!(fs.set_attributes(ino, shorter), Err(FsError::Io(_))));
    disk.fail(DiskFault::SyncIo);
    assert!(matches!(fs.sync_file(ino, Sync::All), Err(FsError::Io(_))));
    let (errors, last) = disk_errors(&fs);
    assert_eq!(errors, 4);
    assert!(last.unwrap().contains("SyncIo"));
    disk.heal();
    assert_eq!(handle.contents(), b"content");
    handle.close();
    let handle = fs.open(ino, READ_WRITE);
    fs.sync_file(ino, Sync::All).unwrap();
    handle.close();
    rig.close(fs);
}

#[test]
fn a_write_of_which_a_part_fits_says_how_much() {
    let rig = Rig::in_memory();
    let (fs, disk) = with_faulty_disk(&rig);
    let ino = fs.make_file(fs.fileset("data"), "file");
    let handle = fs.open(ino, READ_WRITE);
    disk.fail(DiskFault::WriteHalf);
    assert_eq!(fs.write(ino, 0, &[1; 100]).unwrap(), 50);
    assert_eq!(fs.attributes(ino).unwrap().size, 50);
    disk.fail(DiskFault::WriteFull);
    assert!(matches!(fs.write(ino, 50, &[1; 50]), Err(FsError::NoSpace)));
    disk.heal();
    assert_eq!(handle.contents(), [1; 50]);
    handle.close();
    rig.close(fs);
}

#[test]
fn too_many_open_files_are_no_failure_of_a_disk() {
    let rig = Rig::in_memory();
    let (fs, disk) = with_faulty_disk(&rig);
    let ino = fs.make_file(fs.fileset("data"), "file");
    disk.fail(DiskFault::TooManyFiles);
    let refused = fs.open_as(ino, WRITE, ROOT).map(drop);
    assert!(matches!(refused, Err(FsError::TooManyFiles(_))), "{refused:?}");
    assert_eq!(disk_errors(&fs), (0, None));
    disk.heal();
    fs.write_file(ino, 0, b"content");
    rig.close(fs);
}

#[test]
fn a_failed_sync_is_told_to_all_who_have_the_file_open_and_tried_in_full_after_them() {
    for seed in support::seeds(
        20,
        "faults a_failed_sync_is_told_to_all_who_have_the_file_open_and_tried_in_full_after_them",
    ) {
        let rig = Rig::in_memory();
        let (fs, disk) = with_faulty_disk(&rig);
        let ino = fs.make_file(fs.fileset("data"), "file");
        let (handle, other) = (fs.open(ino, WRITE), fs.open(ino, READ));
        handle.write(0, b"content");
        disk.fail(DiskFault::SyncIo);
        assert!(fs.sync_file(ino, Sync::Data).is_err());
        disk.heal();
        for what in [Sync::Data, Sync::All, Sync::Data] {
            assert!(matches!(fs.sync_file(ino, what), Err(FsError::Io(_))));
        }
        handle.close();
        assert!(fs.sync_file(ino, Sync::Data).is_err(), "somebody still has it open");
        other.close();
        let handle = fs.open(ino, WRITE);
        fs.sync_file(ino, Sync::Data).unwrap();
        rig.crash_machine_under(fs, seed, handle);
        let fs = rig.open();
        assert_eq!(fs.contents(ino), b"content", "seed {seed}");
        rig.close(fs);
    }
}

#[test]
fn whoever_syncs_a_replacement_that_could_not_be_synced_is_told() {
    on_both_ways(|rig| {
        let (fs, disk) = with_faulty_disk(rig);
        let data = fs.fileset("data");
        fs.make_file(data, "name");
        let ino = fs.make_file(data, "new");
        fs.write_file(ino, 0, b"content");
        fs.rename(data, b"new", data, b"name", forebay_fs::Replace::Allowed).unwrap();
        disk.fail(DiskFault::SyncIo);
        fs.commit().unwrap();
        disk.heal();
        // Opened only now, as nobody has been told yet.
        let handle = fs.open(ino, READ);
        assert!(matches!(fs.sync_file(ino, Sync::All), Err(FsError::Io(_))));
        handle.close();
        let handle = fs.open(ino, READ);
        fs.sync_file(ino, Sync::All).unwrap();
        handle.close();
        rig.close(fs);
    });
}

#[test]
fn a_file_that_was_synced_without_a_name_keeps_its_bytes_with_one_whatever_failed_between() {
    for seed in support::seeds(
        20,
        "faults a_file_that_was_synced_without_a_name_keeps_its_bytes_with_one_whatever_failed_between",
    ) {
        let rig = Rig::in_memory();
        let (fs, disk) = with_faulty_disk(&rig);
        let data = fs.fileset("data");
        let ino = fs.create_unnamed(data, file(0o644), ROOT).unwrap().ino;
        let handle = fs.open(ino, WRITE);
        handle.write(0, b"content");
        fs.sync_file(ino, Sync::All).unwrap();
        fs.link(ino, data, b"name").unwrap();
        disk.fail(DiskFault::SyncIo);
        assert!(fs.sync_directory(data).is_err());
        disk.heal();
        fs.sync_directory(data).unwrap();
        rig.crash_machine_under(fs, seed, handle);
        let fs = rig.open();
        assert_eq!(fs.contents(ino), b"content", "seed {seed}");
        rig.close(fs);
    }
}

#[test]
fn an_object_that_cannot_be_published_holds_the_commit_up_and_no_more() {
    at_the_owner(|rig| {
        let (fs, disk) = with_faulty_disk(rig);
        let data = fs.fileset("data");
        let ino = fs.make_file(data, "file");
        fs.write_file(ino, 0, b"content");
        disk.fail(DiskFault::PublishIo);
        assert!(matches!(fs.commit(), Err(FsError::Io(_))));
        assert_eq!(disk_errors(&fs).0, 1);
        assert_eq!(fs.contents(ino), b"content");
        disk.heal();
        fs.commit().unwrap();
        rig.close(fs);
        let fs = rig.open();
        assert_eq!(fs.contents(ino), b"content");
        rig.close(fs);
    });
}

#[test]
fn an_object_that_could_not_be_removed_goes_at_the_end() {
    at_the_owner(|rig| {
        let (fs, disk) = with_faulty_disk(rig);
        let data = fs.fileset("data");
        let ino = fs.make_file(data, "file");
        fs.write_file(ino, 0, b"content");
        fs.commit().unwrap();
        disk.fail(DiskFault::RemoveIo);
        fs.unlink(data, b"file").unwrap();
        fs.commit().unwrap();
        assert_eq!(disk_errors(&fs).0, 1);
        assert_eq!(rig.objects().len(), 1);
        disk.heal();
        rig.close(fs);
        assert_eq!(rig.objects(), []);
    });
}

#[test]
fn background_threads_end_whenever_they_are_told_and_leave_no_stock() {
    for round in 0..300_u64 {
        let rig = Rig::in_memory();
        let fs = rig.open();
        let background = fs.fs.start_background().unwrap();
        std::thread::sleep(std::time::Duration::from_micros(round % 30 * 10));
        background.stop();
        assert_eq!(fs.objects().spare_count(), 0);
        assert_eq!(fs.objects().open_count(), 0);
        rig.close(fs);
    }
}

#[test]
fn the_supply_does_not_ask_a_full_disk_all_the_time() {
    let rig = Rig::in_memory();
    rig.settings_mut(|settings| settings.spare_objects = 8);
    let (fs, disk) = with_faulty_disk(&rig);
    disk.fail_after(DiskFault::CreateFull, 3);
    let background = fs.fs.start_background().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    background.stop();
    let tries = disk.struck();
    assert!(tries < 20, "{tries} tries in 0.3 s");
    disk.heal();
    rig.close(fs);
}

#[test]
fn the_supply_is_woken_after_every_rest() {
    let rig = Rig::in_memory();
    rig.settings_mut(|settings| settings.spare_objects = 8);
    let fs = rig.open();
    let background = fs.fs.start_background().unwrap();
    let work = fs.fileset("work");
    let pause = std::time::Duration::from_micros(100);
    for round in 0..60 {
        // Half of the stock is there again however many were taken, and whether the thread pauses or rests.
        for _ in 0..300_000 {
            if fs.objects().spare_count() >= 4 {
                break;
            }
            std::thread::sleep(pause);
        }
        assert!(fs.objects().spare_count() >= 4, "in round {round}");
        if round % 2 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        for number in 0..5 + round % 4 {
            let ino = fs.make_file(work, &format!("file-{round}-{number}"));
            fs.write_file(ino, 0, b"content");
        }
    }
    background.stop();
    rig.close(fs);
}

#[test]
fn the_supply_keeps_objects_in_stock_and_takes_them_back_at_the_end() {
    on_both_ways(|rig| {
        rig.settings_mut(|settings| settings.spare_objects = 8);
        let fs = rig.open();
        let background = fs.fs.start_background().unwrap();
        let work = fs.fileset("work");
        for number in 0..200 {
            let ino = fs.make_file(work, &format!("file-{number}"));
            fs.write_file(ino, 0, &number.to_string().into_bytes());
            if number % 2 == 0 {
                fs.unlink(work, format!("file-{number}").as_bytes()).unwrap();
            }
        }
        assert!(fs.objects().spare_count() <= 8);
        background.stop();
        assert_eq!(fs.objects().spare_count(), 0);
        assert_eq!(fs.names(work).len(), 100);
        rig.close(fs);
        assert_eq!(rig.kernel.registrations(), 0);
        assert_eq!(rig.objects().len(), 100);
    });
}
