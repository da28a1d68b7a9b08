//! What a file system refuses to open, and that refusing changes nothing.

mod support;

use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;

use forebay_base::{Epoch, FailPoints, FilesetId, Ino};
use forebay_fs::fsck::Repair;
use forebay_fs::record::{MountState, Superblock, encode};
use forebay_fs::recovery::read_superblock;
use forebay_fs::{Access, FsError, Namespace, key};
use forebay_store::{Batch, Store as _, Stores as _};
use parking_lot::Mutex;
use support::tapped::{Step, TappedDisk};
use support::{READ, ROOT, Rig, Shorthand as _, WRITE, at_the_owner, on_both_ways};

fn put(rig: &Rig, fileset: FilesetId, key: Vec<u8>, value: Vec<u8>) {
    let changes = [(key, Some(value))].into();
    let batch = Batch { requires: Vec::new(), changes };
    rig.store_of(fileset).commit(&batch).unwrap();
}

fn superblock(rig: &Rig, fileset: FilesetId) -> Superblock {
    read_superblock(&rig.store_of(fileset)).unwrap()
}

const DATA: FilesetId = FilesetId(1);

#[test]
fn a_refused_open_leaves_a_clean_file_system_clean() {
    for damaged in [key::fileset(DATA), key::USAGE.to_vec()] {
        let rig = Rig::in_memory();
        put(&rig, FilesetId::ROOT, damaged, vec![2, 0xff, 0xff]);
        let before = superblock(&rig, FilesetId::ROOT);
        assert!(matches!(Namespace::open(rig.parts()), Err(FsError::Damaged(_))));
        assert_eq!(superblock(&rig, FilesetId::ROOT), before);
        assert_eq!(before.state, MountState::Clean);
    }
}

#[test]
fn a_fileset_that_cannot_be_opened_is_left_alone_and_keeps_no_other_from_use() {
    type Damages = [(fn(&Rig), bool); 3];
    let damages: Damages = [
        (|rig| put(rig, DATA, key::USAGE.to_vec(), vec![2, 0xff, 0xff]), false),
        (|rig| put(rig, DATA, key::SUPERBLOCK.to_vec(), vec![7]), true),
        (|rig| rig.stores().remove(DATA).unwrap(), false),
    ];
    for (damage, unknown) in damages {
        let rig = Rig::in_memory();
        damage(&rig);
        let rows = || rig.store_of(DATA).scan(b"", &[0xff; 64], usize::MAX).unwrap();
        let before = rows();
        let fs = rig.open();
        let refused = fs.lookup(Ino::ROOT, b"data");
        match refused {
            Err(FsError::UnknownVersion(_)) => assert!(unknown),
            Err(FsError::Damaged(_)) => assert!(!unknown),
            other => panic!("{other:?}"),
        }
        assert_eq!(fs.names(Ino::ROOT), ["data", "util", "work"], "it is still listed");
        let ino = fs.make_file(fs.fileset("work"), "file");
        fs.write_file(ino, 0, b"as ever");
        let status = fs.fileset_status();
        let problems: Vec<bool> = status.iter().map(|it| it.problem.is_some()).collect();
        assert_eq!(problems, [false, true, false, false], "{status:?}");
        fs.fs.close().unwrap();
        assert_eq!(rows(), before, "nothing is written to it");
    }
}

#[test]
fn a_fileset_that_nobody_uses_is_not_opened() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    assert_eq!((fs.open_filesets(), fs.fileset_status().len()), (1, 4));
    assert_eq!(fs.names(Ino::ROOT), ["data", "util", "work"], "a listing opens none");
    for item in fs.items(Ino::ROOT) {
        fs.listed_attributes(Ino::ROOT, &item).unwrap();
    }
    fs.statistics().unwrap();
    assert_eq!(fs.open_filesets(), 1);
    fs.fileset("work");
    assert_eq!(fs.open_filesets(), 2);
    rig.close(fs);
    assert_eq!(superblock(&rig, FilesetId(2)).epoch, Epoch(2));
    assert_eq!(superblock(&rig, DATA).epoch, Epoch(1), "as mkfs left it");
}

#[test]
fn a_crash_of_one_fileset_makes_no_record_of_another_suspect() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    fs.fileset("data");
    rig.close(fs);
    let fs = rig.open();
    fs.fileset("work");
    rig.crash_process(fs);
    let fs = rig.open();
    fs.sweep().unwrap();
    rig.close(fs);
    assert_eq!(superblock(&rig, DATA).crashed_epoch, Epoch(0));
    assert_eq!(superblock(&rig, FilesetId(2)).crashed_epoch, Epoch(2));
}

#[test]
fn limits_at_the_end_of_all_numbers_are_damage() {
    for limit in [u64::MAX, (1 << 47) - 1] {
        let rig = Rig::in_memory();
        let broken = Superblock { ino_limit: limit, ..superblock(&rig, FilesetId::ROOT) };
        put(&rig, FilesetId::ROOT, key::SUPERBLOCK.to_vec(), encode(&broken));
        assert!(matches!(Namespace::open(rig.parts()), Err(FsError::Damaged(_))), "{limit}");
    }
}

#[test]
fn cutting_a_program_that_runs_is_refused() {
    on_both_ways(|rig| {
        let fs = rig.open();
        let ino = fs.make_file(fs.fileset("data"), "program");
        fs.write_file(ino, 0, b"code");
        let running = Access { execute: true, ..READ };
        fs.open_file(ino, running, ROOT).unwrap();
        let cut = Access { truncate: true, ..READ };
        assert!(matches!(fs.open_file(ino, cut, ROOT), Err(FsError::ExecutableBusy)));
        fs.close_file(ino, running).unwrap();
        assert_eq!(fs.contents(ino), b"code");
        fs.open_file(ino, cut, ROOT).unwrap();
        fs.close_file(ino, cut).unwrap();
        assert_eq!(fs.contents(ino), b"", "reading may cut, as open(2) says");
        rig.close(fs);
    });
}

#[test]
fn files_that_are_still_written_when_the_mount_ends_are_compared_by_the_next_one() {
    let rig = Rig::in_directory();
    let fs = rig.open();
    let data = fs.fileset("data");
    let ino = fs.make_file(data, "file");
    let handle = fs.open(ino, WRITE);
    handle.write(0, b"known");
    let mut kept = handle.kept_by_the_kernel();
    fs.fs.close().unwrap();
    drop((handle, fs));
    std::io::Write::write_all(&mut kept, b", and not known").unwrap();
    drop(kept);
    let fs = rig.open();
    assert_eq!(fs.attributes(ino).unwrap().size, 20);
    assert_eq!(fs.contents(ino), b"known, and not known");
    rig.close(fs);
}

#[test]
fn a_file_that_is_written_and_closed_while_the_mount_ends_is_compared_by_the_next_one() {
    let rig = Rig::in_directory();
    let kept: Arc<Mutex<Option<File>>> = Arc::default();
    let to_write = Arc::clone(&kept);
    // The size is in the store by then: it grows, and nobody has it open any more afterwards.
    let disk = TappedDisk::new(rig.disk.as_disk(), move |step| {
        if let (Step::SyncDisk, Some(mut kept)) = (step, to_write.lock().take()) {
            kept.write_all(b", and not known").unwrap();
        }
    });
    let parts = rig.parts_with(Arc::new(rig.store.clone()), Arc::new(disk), FailPoints::none());
    let fs = rig.open_parts(parts);
    let ino = fs.make_file(fs.fileset("data"), "file");
    let handle = fs.open(ino, WRITE);
    handle.write(0, b"known");
    *kept.lock() = Some(handle.kept_by_the_kernel());
    fs.fs.close().unwrap();
    drop((handle, fs));
    assert!(kept.lock().is_none(), "the file was written while the mount ended");
    let fs = rig.open();
    assert_eq!(fs.attributes(ino).unwrap().size, 20);
    assert_eq!(fs.contents(ino), b"known, and not known");
    rig.close(fs);
}

#[test]
fn what_users_of_a_dead_daemon_go_on_to_write_is_found_when_the_file_is_opened() {
    let rig = Rig::in_directory();
    let fs = rig.open();
    let ino = fs.make_file(fs.fileset("data"), "file");
    let handle = fs.open(ino, WRITE);
    handle.write(0, b"first");
    fs.commit().unwrap();
    let mut kept = handle.kept_by_the_kernel();
    rig.crash_process_under(fs, handle);
    let fs = rig.open();
    kept.write_all(b", second").unwrap();
    assert_eq!(fs.attributes(ino).unwrap().size, 13);
    kept.write_all(b", third").unwrap();
    drop(kept);
    assert_eq!(fs.attributes(ino).unwrap().size, 13, "it was compared, and is not open");
    assert_eq!(fs.contents(ino), b"first, second, third");
    assert_eq!(fs.take_stale_attributes(), [ino]);
    rig.close(fs);
    let fs = rig.open();
    assert_eq!(fs.contents(ino), b"first, second, third");
    rig.close(fs);
}

#[test]
fn a_sweep_that_fails_keeps_nothing_from_being_committed() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let damaged = fs.make_file(fs.fileset("data"), "damaged");
    fs.commit().unwrap();
    rig.crash_process(fs);
    put(&rig, DATA, key::inode(damaged), vec![2, 0xff]);
    let fs = rig.open();
    let ino = fs.make_file(fs.fileset("data"), "made after the crash");
    fs.write_file(ino, 0, b"kept");
    let closed = fs.fs.close();
    assert!(matches!(closed, Err(FsError::Damaged(_))), "{closed:?}");
    drop(fs);
    let fs = rig.open();
    assert_eq!(fs.contents(ino), b"kept");
}

#[test]
fn a_file_whose_object_was_cut_gives_an_error_beyond_its_end_until_it_is_repaired() {
    at_the_owner(|rig| {
        let fs = rig.open();
        let ino = fs.make_file(fs.fileset("data"), "file");
        fs.write_file(ino, 0, &[7; 10_000]);
        rig.close(fs);
        let object = rig.object_of(ino).unwrap();
        rig.disk.as_disk().open(object).unwrap().set_size(6_000).unwrap();

        let fs = rig.open();
        assert_eq!(fs.attributes(ino).unwrap().size, 10_000, "it does not look shorter");
        let reading = fs.open(ino, READ);
        assert!(!reading.is_direct(), "the kernel would see an end where there is none");
        let mut buffer = vec![0; 4096];
        assert_eq!(fs.read(ino, 0, &mut buffer).unwrap(), 4096);
        assert_eq!(buffer, [7; 4096]);
        assert!(matches!(fs.read(ino, 4096, &mut buffer), Err(FsError::Io(_))));
        assert!(matches!(fs.read(ino, 8192, &mut buffer), Err(FsError::Io(_))));
        assert_eq!(fs.read(ino, 10_000, &mut buffer).unwrap(), 0, "the end of the file");
        assert!(matches!(fs.open_as(ino, WRITE, ROOT), Err(FsError::Io(_))));
        reading.close();
        fs.fs.close().unwrap();
        drop(fs);

        let report = rig.fsck(Repair::Found, false);
        assert_eq!(report.findings[0].path.as_deref(), Some("/data/file"), "{report:#?}");
        let fs = rig.open();
        assert_eq!(fs.contents(ino), [7; 6_000]);
        fs.write_file(ino, 6_000, &[8; 10]);
        rig.close(fs);
    });
}

#[test]
fn a_cut_file_is_whole_again_once_it_is_emptied() {
    on_both_ways(|rig| {
        let fs = rig.open();
        let ino = fs.make_file(fs.fileset("data"), "file");
        fs.write_file(ino, 0, &[7; 10_000]);
        rig.close(fs);
        let object = rig.object_of(ino).unwrap();
        rig.disk.as_disk().open(object).unwrap().set_size(6_000).unwrap();
        let fs = rig.open();
        fs.overwrite(ino, &[9; 20]);
        assert_eq!(fs.contents(ino), [9; 20]);
        rig.close(fs);
    });
}
