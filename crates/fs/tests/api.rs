//! Rules of files, names and objects, one test each, through the API and without a kernel.

mod support;

use std::ops::ControlFlow;

use forebay_base::{DiskId, Timestamp};
use forebay_disk::{Seek, Sync};
use forebay_fs::key::Key;
use forebay_fs::{Access, FsError, SetAttributes, SetTime};
use support::{
    READ, READ_WRITE, ROOT, Rig, Shorthand as _, TRUNCATE, WRITE, file, on_both_ways,
    on_disks_of_the_owner,
};

#[test]
fn create_and_unlink_between_two_commits_leave_nothing_in_the_store() {
    on_both_ways(|rig| {
        let (fs, store) = rig.open_watched();
        let work = fs.fileset("work");
        fs.commit().unwrap();
        store.take();
        for number in 0..50 {
            let ino = fs.make_file(work, &format!("temporary-{number}"));
            fs.write_file(ino, 0, b"soon gone");
            fs.unlink(work, format!("temporary-{number}").as_bytes()).unwrap();
        }
        fs.commit().unwrap();
        let keys = store.take_keys();
        let counts = [Key::Usage, Key::DiskUsage(DiskId(0))];
        assert!(
            keys.iter().all(|key| *key == Key::Inode(work) || counts.contains(key)),
            "more than the directory was committed: {keys:?}"
        );
        assert_eq!(rig.objects(), []);
        rig.close(fs);
    });
}

#[test]
fn truncating_open_of_a_closed_file_takes_a_fresh_object() {
    on_both_ways(|rig| {
        let fs = rig.open();
        let ino = fs.make_file(fs.fileset("data"), "file");
        fs.write_file(ino, 0, b"the first content");
        fs.commit().unwrap();
        let before = rig.object_of(ino).unwrap();
        fs.overwrite(ino, b"second");
        fs.commit().unwrap();
        let after = rig.object_of(ino).unwrap();
        assert_ne!(before, after);
        assert_eq!(rig.objects(), [after], "the old object is removed once the new one counts");
        assert_eq!(fs.contents(ino), b"second");
        rig.close(fs);
    });
}

#[test]
fn truncating_open_of_an_open_file_keeps_its_object() {
    on_both_ways(|rig| {
        let fs = rig.open();
        let ino = fs.make_file(fs.fileset("data"), "file");
        fs.write_file(ino, 0, b"the first content");
        fs.commit().unwrap();
        let before = rig.object_of(ino).unwrap();
        let reader = fs.open(ino, READ);
        fs.overwrite(ino, b"second");
        assert_eq!(reader.contents(), b"second");
        reader.close();
        fs.commit().unwrap();
        assert_eq!(rig.object_of(ino), Some(before));
        rig.close(fs);
    });
}

#[test]
fn every_object_that_is_handed_out_is_empty() {
    on_both_ways(|rig| {
        let fs = rig.open();
        let work = fs.fileset("work");
        for round in 0..40_u8 {
            let name = format!("file-{}", round % 7);
            let ino = fs.find(work, &name).unwrap_or_else(|| fs.make_file(work, &name));
            let handle = fs.open(ino, TRUNCATE);
            assert_eq!(handle.contents(), b"");
            handle.write(u64::from(round) * 100, &[round; 1000]);
            handle.close();
            if round % 3 == 0 {
                fs.unlink(work, name.as_bytes()).unwrap();
            }
            if round % 5 == 0 {
                fs.commit().unwrap();
            }
        }
        rig.close(fs);
    });
}

#[test]
fn a_file_that_stays_empty_has_no_object_after_its_close() {
    on_both_ways(|rig| {
        let fs = rig.open();
        let work = fs.fileset("work");
        let ino = fs.make_file(work, "empty");
        for access in [WRITE, READ, READ_WRITE, TRUNCATE] {
            fs.open(ino, access).close();
        }
        fs.commit().unwrap();
        assert_eq!(rig.object_of(ino), None);
        assert_eq!(rig.objects(), []);
        assert_eq!(fs.objects().open_count(), 0);
        rig.close(fs);
    });
}

#[test]
fn an_unlinked_open_file_keeps_its_bytes_until_it_is_closed() {
    on_both_ways(|rig| {
        let fs = rig.open();
        let data = fs.fileset("data");
        let ino = fs.make_file(data, "file");
        let handle = fs.open(ino, READ_WRITE);
        handle.write(0, b"before");
        fs.commit().unwrap();
        fs.unlink(data, b"file").unwrap();
        fs.commit().unwrap();
        handle.write(6, b" and after");
        fs.drop_caches();
        assert_eq!(handle.contents(), b"before and after");
        assert_eq!(fs.attributes(ino).unwrap().nlink, 0);
        assert_eq!(rig.record(ino), None);
        handle.close();
        assert!(matches!(fs.attributes(ino), Err(FsError::Stale)));
        fs.commit().unwrap();
        assert_eq!(rig.objects(), []);
        rig.close(fs);
    });
}

#[test]
fn a_size_that_only_a_seek_has_seen_is_not_lost() {
    on_both_ways(|rig| {
        let fs = rig.open();
        let ino = fs.make_file(fs.fileset("data"), "file");
        let handle = fs.open(ino, READ_WRITE);
        handle.write(0, b"eight by");
        assert_eq!(fs.seek(ino, Seek::Hole, 0).unwrap(), 8);
        handle.close();
        rig.close(fs);
        let fs = rig.open();
        assert_eq!(fs.contents(ino), b"eight by");
        rig.close(fs);
    });
}

#[test]
fn a_size_that_only_a_refused_change_has_seen_is_not_lost() {
    on_both_ways(|rig| {
        let fs = rig.open();
        let ino = fs.make_file(fs.fileset("data"), "file");
        let handle = fs.open(ino, READ_WRITE);
        handle.write(0, b"eight by");
        let too_large = SetAttributes { size: Some(u64::MAX), ..SetAttributes::default() };
        assert!(matches!(fs.set_attributes(ino, too_large), Err(FsError::TooLarge)));
        handle.close();
        rig.close(fs);
        let fs = rig.open();
        assert_eq!(fs.contents(ino), b"eight by");
        rig.close(fs);
    });
}

#[test]
fn a_size_that_only_a_copy_has_seen_is_not_lost() {
    on_both_ways(|rig| {
        let fs = rig.open();
        let data = fs.fileset("data");
        let (source, target) = (fs.make_file(data, "source"), fs.make_file(data, "target"));
        let handles = [fs.open(source, READ_WRITE), fs.open(target, READ_WRITE)];
        handles[0].write(0, b"eight by");
        assert_eq!(fs.copy_range((source, 2), (target, 4), 100).unwrap(), 6);
        assert_eq!(handles[1].contents(), b"\0\0\0\0ght by");
        handles.into_iter().for_each(support::Handle::close);
        rig.close(fs);
        let fs = rig.open();
        assert_eq!(fs.contents(source), b"eight by");
        assert_eq!(fs.contents(target), b"\0\0\0\0ght by");
        rig.close(fs);
    });
}

const LONG_AGO: Timestamp = Timestamp { seconds: -86_400, nanoseconds: 123_456_789 };

fn set_modified(time: Timestamp) -> SetAttributes {
    SetAttributes { modified: Some(SetTime::To(time)), ..SetAttributes::default() }
}

#[test]
fn a_time_that_was_set_stays_when_the_file_is_opened_again() {
    on_both_ways(|rig| {
        let fs = rig.open();
        let ino = fs.make_file(fs.fileset("data"), "file");
        fs.write_file(ino, 0, b"content");
        fs.set_attributes(ino, set_modified(LONG_AGO)).unwrap();
        fs.open(ino, WRITE).close();
        assert_eq!(fs.attributes(ino).unwrap().modified, LONG_AGO, "after an open");
        fs.commit().unwrap();
        fs.drop_caches();
        fs.open(ino, WRITE).close();
        assert_eq!(fs.attributes(ino).unwrap().modified, LONG_AGO, "after an eviction");
        rig.close(fs);
        let fs = rig.open();
        let handle = fs.open(ino, READ_WRITE);
        assert_eq!(fs.attributes(ino).unwrap().modified, LONG_AGO, "after a remount");
        handle.write(0, b"C");
        assert_ne!(fs.attributes(ino).unwrap().modified, LONG_AGO, "after a write");
        handle.close();
        rig.close(fs);
    });
}

#[test]
fn a_time_set_after_served_writes_stays_when_the_file_goes_the_direct_way() {
    let rig = Rig::in_directory();
    let fs = rig.open();
    let data = fs.fileset("data");
    let ino = fs.make_file(data, "file");
    let handle = fs.open(ino, Access { synchronous: true, ..WRITE });
    assert!(!handle.is_direct(), "what is synchronous is written the served way");
    handle.write(0, b"content");
    handle.close();
    fs.set_attributes(ino, set_modified(LONG_AGO)).unwrap();
    let handle = fs.open(ino, WRITE);
    assert!(handle.is_direct());
    assert_eq!(fs.attributes(ino).unwrap().modified, LONG_AGO);
    handle.close();
    assert_eq!(fs.attributes(ino).unwrap().modified, LONG_AGO);
    rig.close(fs);
}

#[test]
fn writing_nothing_changes_nothing() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let ino = fs.make_file(fs.fileset("data"), "file");
    let handle = fs.open(ino, WRITE);
    fs.write(ino, 100, b"").unwrap();
    assert_eq!(fs.attributes(ino).unwrap().size, 0);
    handle.close();
    rig.close(fs);
}

#[test]
fn a_file_cut_by_name_does_not_keep_an_object_open() {
    on_both_ways(|rig| {
        rig.settings_mut(|settings| settings.open_objects_max = 64);
        let fs = rig.open();
        let data = fs.fileset("data");
        for number in 0..200 {
            let ino = fs.make_file(data, &format!("file-{number}"));
            let size = SetAttributes { size: Some(1000), ..SetAttributes::default() };
            fs.set_attributes(ino, size).unwrap();
            fs.after_request();
        }
        assert!(fs.objects().open_count() <= 65, "{} are open", fs.objects().open_count());
        rig.close(fs);
    });
}

#[test]
fn offsets_of_a_listing_stay_valid_while_entries_come_and_go() {
    /// With as many that go they are more than are gathered at once.
    const STAY: usize = 500;
    on_both_ways(|rig| {
        for load_max in [0, 1 << 20] {
            rig.settings_mut(|settings| settings.directory_load_max = load_max);
            let fs = rig.open();
            let name = format!("directory-{load_max}");
            let directory = fs.make_directory(fs.fileset("work"), &name);
            for number in 0..STAY {
                fs.make_file(directory, &format!("stays-{number}"));
                fs.make_file(directory, &format!("goes-{number}"));
            }
            let mut seen = Vec::new();
            let mut offset = 0;
            for round in 0.. {
                let before = seen.len();
                fs.read_directory(directory, offset, &mut |item| {
                    offset = item.next_offset;
                    seen.push(String::from_utf8(item.name.clone()).unwrap());
                    if seen.len() < before + 7 {
                        ControlFlow::Continue(())
                    } else {
                        ControlFlow::Break(())
                    }
                })
                .unwrap();
                if seen.len() == before {
                    break;
                }
                if round < STAY {
                    fs.unlink(directory, format!("goes-{round}").as_bytes()).unwrap();
                    fs.make_file(directory, &format!("comes-{round}"));
                }
                match round % 50 {
                    0 => fs.drop_caches(),
                    25 => fs.commit().unwrap(),
                    _ => {}
                }
            }
            let mut stayed: Vec<&String> =
                seen.iter().filter(|name| name.starts_with("stays-")).collect();
            assert_eq!(stayed.len(), STAY, "each entry that was always there is seen once");
            stayed.sort();
            stayed.dedup();
            assert_eq!(stayed.len(), STAY);
            seen.sort();
            let all = seen.len();
            seen.dedup();
            assert_eq!(seen.len(), all, "nothing is seen twice");
            rig.close(fs);
        }
    });
}

#[test]
fn an_acknowledged_data_sync_covers_an_object_that_a_commit_has_published() {
    for seed in support::seeds(
        20,
        "api an_acknowledged_data_sync_covers_an_object_that_a_commit_has_published",
    ) {
        let rig = Rig::in_memory();
        let fs = rig.open();
        let ino = fs.make_file(fs.fileset("data"), "file");
        let handle = fs.open(ino, WRITE);
        handle.write(0, b"published by a commit");
        fs.commit().unwrap();
        handle.write(0, b"PUBLISHED");
        fs.sync_file(ino, Sync::Data).unwrap();
        rig.crash_machine_under(fs, seed, handle);
        let fs = rig.open();
        assert_eq!(fs.contents(ino), b"PUBLISHED by a commit", "seed {seed}");
        fs.sweep().unwrap();
        rig.close(fs);
    }
}

#[test]
fn an_acknowledged_data_sync_covers_a_size_that_shrank() {
    for seed in support::seeds(20, "api an_acknowledged_data_sync_covers_a_size_that_shrank") {
        let rig = Rig::in_memory();
        let fs = rig.open();
        let ino = fs.make_file(fs.fileset("data"), "file");
        let handle = fs.open(ino, WRITE);
        handle.write(0, &[7; 10_000]);
        fs.sync_file(ino, Sync::All).unwrap();
        let shorter = SetAttributes { size: Some(5), ..SetAttributes::default() };
        fs.set_attributes(ino, shorter).unwrap();
        fs.sync_file(ino, Sync::Data).unwrap();
        rig.crash_machine_under(fs, seed, handle);
        let fs = rig.open();
        assert_eq!(fs.contents(ino), [7; 5], "seed {seed}");
        rig.close(fs);
    }
}

#[test]
fn a_data_sync_commits_what_it_takes_to_find_the_bytes_and_nothing_else() {
    for seed in support::seeds(
        20,
        "api a_data_sync_commits_what_it_takes_to_find_the_bytes_and_nothing_else",
    ) {
        let rig = Rig::in_memory();
        let fs = rig.open();
        let data = fs.fileset("data");
        let pending = || fs.commit_health().pending;
        let ino = fs.make_file(data, "file");
        let handle = fs.open(ino, WRITE);
        handle.write(0, b"first");
        fs.sync_file(ino, Sync::Data).unwrap();
        assert_eq!(pending(), 0, "the new file is committed");
        fs.make_file(data, "another");
        handle.write(0, b"FIRST");
        fs.sync_file(ino, Sync::Data).unwrap();
        assert_ne!(pending(), 0, "another file is nothing to it");
        handle.write(5, b" and longer");
        fs.sync_file(ino, Sync::Data).unwrap();
        assert_eq!(pending(), 0, "the new size is committed");
        handle.write(0, b"third");
        fs.sync_file(ino, Sync::All).unwrap();
        assert_eq!(pending(), 0, "the new times are committed");
        fs.make_file(data, "lost");
        handle.write(0, b"LAST ");
        fs.sync_file(ino, Sync::Data).unwrap();
        rig.crash_machine_under(fs, seed, handle);
        let fs = rig.open();
        assert_eq!(fs.contents(ino), b"LAST  and longer", "seed {seed}");
        assert!(fs.lookup(fs.fileset("data"), b"another").is_ok(), "seed {seed}");
        fs.sweep().unwrap();
        rig.close(fs);
    }
}

#[test]
fn bytes_synced_before_a_file_got_its_name_are_durable_once_the_name_is() {
    for seed in support::seeds(
        20,
        "api bytes_synced_before_a_file_got_its_name_are_durable_once_the_name_is",
    ) {
        let rig = Rig::in_memory();
        let fs = rig.open();
        let data = fs.fileset("data");
        let ino = fs.create_unnamed(data, file(0o600), ROOT).unwrap().ino;
        let handle = fs.open(ino, WRITE);
        handle.write(0, b"written and synced, then named");
        fs.sync_file(ino, Sync::All).unwrap();
        fs.link(ino, data, b"named").unwrap();
        fs.sync_directory(data).unwrap();
        rig.crash_machine_under(fs, seed, handle);
        let fs = rig.open();
        assert_eq!(fs.contents(ino), b"written and synced, then named", "seed {seed}");
        rig.close(fs);
    }
}

#[test]
fn a_write_that_only_the_object_knows_of_after_a_crash_shows_in_the_time() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let data = fs.fileset("data");
    let (written, kept) = (fs.make_file(data, "written"), fs.make_file(data, "kept"));
    for ino in [written, kept] {
        fs.write_file(ino, 0, b"content");
        fs.set_attributes(ino, set_modified(LONG_AGO)).unwrap();
    }
    fs.commit().unwrap();
    fs.write_file(written, 0, b"CONTENT");
    rig.crash_process(fs);
    let fs = rig.open();
    assert_eq!(fs.contents(written), b"CONTENT");
    assert!(fs.attributes(written).unwrap().modified > LONG_AGO);
    assert_eq!(fs.attributes(kept).unwrap().modified, LONG_AGO);
    rig.close(fs);
}

#[test]
fn objects_of_files_without_a_name_go_at_an_orderly_end() {
    on_both_ways(|rig| {
        let fs = rig.open();
        let data = fs.fileset("data");
        let ino = fs.create(data, b"file", file(0o644), ROOT).unwrap().ino;
        fs.write_file(ino, 0, b"content");
        fs.commit().unwrap();
        fs.unlink(data, b"file").unwrap();
        // The kernel is told no more of inodes it knew when a file system goes away.
        rig.close(fs);
        assert_eq!(rig.objects(), []);
    });
}

#[test]
fn only_a_file_made_without_a_name_gets_its_first_one_later() {
    on_disks_of_the_owner(|rig| {
        let fs = rig.open();
        let data = fs.fileset("data");
        let ino = fs.create_unnamed(data, file(0o600), ROOT).unwrap().ino;
        fs.write_file(ino, 0, b"unnamed");
        fs.commit().unwrap();
        assert_eq!((rig.record(ino), rig.objects().len()), (None, 0));
        assert_eq!(fs.link(ino, data, b"named").unwrap().nlink, 1);
        fs.forget(ino, 2);
        assert_eq!(fs.contents(ino), b"unnamed");
        let handle = fs.open(ino, READ);
        fs.unlink(data, b"named").unwrap();
        assert!(matches!(fs.link(ino, data, b"again"), Err(FsError::NotFound)));
        handle.close();
        rig.close(fs);
        assert_eq!(rig.objects(), []);
    });
}

#[test]
fn a_large_offset_is_too_large_and_changes_nothing() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let ino = fs.make_file(fs.fileset("data"), "file");
    let handle = fs.open(ino, WRITE);
    for offset in [u64::MAX, i64::MAX as u64] {
        assert!(matches!(fs.write(ino, offset, b"x"), Err(FsError::TooLarge)));
    }
    assert_eq!(fs.attributes(ino).unwrap().size, 0);
    handle.close();
    rig.close(fs);
}
