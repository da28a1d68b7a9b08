//! Partial recalls: files that are read where they lie, frame by frame.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use forebay_base::{ByteSize, Ino};
use forebay_disk::Seek;
use forebay_fs::record::Durability;
use forebay_fs::settings::RecallMode;
use forebay_fs::{FsError, PartialReads, SetAttributes};

use crate::cold::{COLD, Cold, archive};
use crate::support::{self, READ, READ_WRITE, Rig, Shorthand as _, TRUNCATE, User};

const MIB: usize = 1 << 20;

/// Opened for reading, files of at least 1 MiB stay in the archive.
pub(crate) fn partial() -> Cold {
    of(Cold::new())
}

pub(crate) fn of(cold: Cold) -> Cold {
    cold.rig.settings_mut(|settings| {
        settings.recall_mode = RecallMode::Partial;
        settings.partial_recall_min = ByteSize::mib(1);
    });
    cold
}

/// Bytes of which no two frames are the same, and which cannot be compressed to nothing.
fn content(frames: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..frames * MIB).map(|at| if at % 64 == 0 { next() } else { (at / 64) as u8 }).collect()
}

fn archived_file(fs: &User, name: &str, bytes: &[u8]) -> Ino {
    let ino = fs.make_file(Ino::ROOT, name);
    fs.write_file(ino, 0, bytes);
    archive(fs, ino);
    ino
}

fn read(fs: &User) -> PartialReads {
    let all = fs.disk_status();
    let found = all.into_iter().find(|disk| disk.uuid == COLD).unwrap();
    found.archive.unwrap().partial
}

fn is_archived(fs: &User, ino: Ino) -> bool {
    fs.place_of(ino).unwrap().is_archived
}

#[test]
fn only_the_frames_that_are_read_are_fetched_and_once() {
    let cold = partial();
    let fs = cold.open();
    let bytes = content(40);
    let ino = archived_file(&fs, "file", &bytes);
    let gets = cold.bucket.gets();
    let handle = fs.open(ino, READ);
    assert_eq!(cold.bucket.gets(), gets, "opening it asks nothing of the archive");
    let footer = bytes.len() - 100;
    assert_eq!(handle.read(footer as u64, 200), &bytes[footer..]);
    assert_eq!(cold.bucket.gets() - gets, 3, "footer, index and one frame");
    let one = PartialReads { ranges: 1, frames: 1, bytes: MIB as u64, ..PartialReads::default() };
    assert_eq!(read(&fs), one);
    assert_eq!(handle.read((39 * MIB) as u64, 5), &bytes[39 * MIB..39 * MIB + 5]);
    assert_eq!(read(&fs), PartialReads { hits: 1, ..one });
    // Across two frames, with one request.
    let at = 20 * MIB - 7;
    assert_eq!(handle.read(at as u64, 14), &bytes[at..at + 14]);
    assert_eq!((read(&fs).ranges, read(&fs).frames), (2, 3));
    assert_eq!(handle.read(bytes.len() as u64, 10), b"");
    assert_eq!(handle.read(5, 0), b"");
    assert_eq!(handle.read(u64::MAX, 10), b"");
    handle.close();
    assert!(is_archived(&fs, ino));
    // The next one finds what is kept.
    let handle = fs.open(ino, READ);
    assert_eq!(handle.read(at as u64, 14), &bytes[at..at + 14]);
    handle.close();
    assert_eq!((read(&fs).ranges, cold.bucket.gets() - gets), (2, 4));
    cold.close(fs);
}

#[test]
fn small_files_and_files_that_are_opened_for_writing_are_recalled_as_a_whole() {
    let cold = partial();
    let fs = cold.open();
    let bytes = content(3);
    let small = archived_file(&fs, "small", &bytes[..MIB - 1]);
    assert_eq!(fs.contents(small), &bytes[..MIB - 1]);
    assert!(!is_archived(&fs, small));
    let written = archived_file(&fs, "written", &bytes);
    let reader = fs.open(written, READ);
    assert_eq!(reader.read(0, 10), &bytes[..10]);
    let writer = fs.open(written, READ_WRITE);
    assert!(!is_archived(&fs, written));
    writer.write(3, b"xyz");
    let changed = [&bytes[..3], b"xyz", &bytes[6..]].concat();
    assert!(reader.contents() == changed, "who has it open reads what is written");
    writer.close();
    reader.close();
    let cut = archived_file(&fs, "cut", &bytes);
    let reader = fs.open(cut, READ);
    let set = SetAttributes { size: Some(5), ..SetAttributes::default() };
    fs.set_attributes(cut, set).unwrap();
    assert_eq!(reader.contents(), &bytes[..5]);
    reader.close();
    cold.close(fs);
    assert_eq!(cold.objects(), Vec::<String>::new());
}

#[test]
fn a_file_that_is_replaced_recalled_or_removed_under_its_readers_is_what_it_became() {
    let cold = partial();
    let fs = cold.open();
    let bytes = content(4);
    let [replaced, recalled, removed] =
        ["replaced", "recalled", "removed"].map(|name| archived_file(&fs, name, &bytes));
    let all = [replaced, recalled, removed];
    let readers = all.map(|ino| fs.open(ino, READ));
    readers.iter().for_each(|reader| assert_eq!(reader.read(0, 10), &bytes[..10]));
    let gets = cold.bucket.gets();
    fs.open(replaced, TRUNCATE).close();
    assert_eq!((readers[0].contents(), cold.bucket.gets()), (Vec::new(), gets));
    fs.write_file(replaced, 0, b"new");
    assert_eq!(readers[0].contents(), b"new");
    fs.recall(recalled, None).unwrap();
    fs.commit().unwrap();
    assert!(readers[1].contents() == bytes);
    fs.unlink(Ino::ROOT, b"removed").unwrap();
    fs.commit().unwrap();
    assert!(readers[2].contents() == bytes, "it lives on while it is open");
    readers.into_iter().for_each(support::Handle::close);
    cold.close(fs);
    assert_eq!(cold.objects(), Vec::<String>::new());
}

#[test]
fn a_file_without_a_name_is_recalled_for_a_writer_and_leaves_nothing() {
    let cold = partial();
    let fs = cold.open();
    let bytes = content(2);
    let ino = archived_file(&fs, "file", &bytes);
    let reader = fs.open(ino, READ);
    fs.unlink(Ino::ROOT, b"file").unwrap();
    let writer = fs.open(ino, READ_WRITE);
    writer.write(0, b"still");
    assert_eq!(reader.read(0, 5), b"still");
    fs.commit().unwrap();
    writer.close();
    reader.close();
    cold.close(fs);
    assert_eq!((cold.objects(), cold.rig.objects()), (Vec::new(), Vec::new()));
}

#[test]
fn a_file_without_a_name_is_read_on_when_what_a_crash_has_left_is_removed() {
    let cold = partial();
    let fs = cold.open();
    let bytes = content(2);
    let ino = archived_file(&fs, "file", &bytes);
    fs.commit().unwrap();
    cold.crash(fs, None);
    let fs = cold.open();
    let reader = fs.open(ino, READ);
    fs.unlink(Ino::ROOT, b"file").unwrap();
    fs.commit().unwrap();
    fs.sweep().unwrap();
    fs.objects().sync_disks().unwrap();
    assert!(reader.contents() == bytes);
    reader.close();
    cold.close(fs);
    assert_eq!(cold.objects(), Vec::<String>::new());
}

#[test]
fn a_program_that_reads_on_has_the_next_frames_fetched_and_each_but_once() {
    let cold = partial();
    let fs = cold.open();
    let bytes = content(30);
    let ino = archived_file(&fs, "file", &bytes);
    let background = fs.at_owner().start_background().unwrap();
    let handle = fs.open(ino, READ);
    for at in (0..bytes.len()).step_by(MIB / 8) {
        assert_eq!(handle.read(at as u64, MIB / 8), &bytes[at..at + MIB / 8]);
    }
    handle.close();
    // Those who fetch ahead count what they have kept.
    background.stop();
    let found = read(&fs);
    assert_eq!((found.frames, found.bytes), (30, bytes.len() as u64));
    assert!(found.ranges < 20, "{found:?}");
    assert!(is_archived(&fs, ino));
    cold.close(fs);
}

#[test]
fn a_file_is_read_on_where_no_thread_can_be_started() {
    let cold = partial();
    cold.rig.settings_mut(|settings| settings.recall_threads = 0);
    let fs = cold.open();
    let bytes = content(6);
    let ino = archived_file(&fs, "file", &bytes);
    let background = fs.at_owner().start_background().unwrap();
    assert!(fs.contents(ino) == bytes);
    assert_eq!(read(&fs).frames, 6);
    background.stop();
    cold.close(fs);
}

#[test]
fn an_object_of_another_size_than_its_file_is_an_error_each_time() {
    let [cold, other] = [partial(), partial()];
    let bytes = content(3);
    let archived = |cold: &Cold, bytes: &[u8]| {
        let fs = cold.open();
        let ino = archived_file(&fs, "file", bytes);
        (fs, ino)
    };
    let ((fs, ino), (others, its)) = (archived(&cold, &bytes), archived(&other, &bytes[..2 * MIB]));
    assert_eq!(cold.objects(), other.objects());
    let mut shorter = Vec::new();
    other.bucket.change(&other.objects()[0], |bytes| shorter.clone_from(bytes));
    cold.bucket.change(&cold.objects()[0], |bytes| *bytes = shorter);
    let handle = fs.open(ino, READ);
    for _ in 0..2 {
        for offset in [0, 2 * MIB as u64] {
            let found = fs.read(ino, offset, &mut [0; 10]);
            assert!(matches!(&found, Err(FsError::Io(why)) if why.contains("fsck")), "{found:?}");
        }
        let found = fs.seek(ino, Seek::Hole, 0);
        assert!(matches!(&found, Err(FsError::Io(why)) if why.contains("fsck")), "{found:?}");
    }
    handle.close();
    assert!(others.contents(its) == bytes[..2 * MIB]);
    other.close(others);
    fs.unlink(Ino::ROOT, b"file").unwrap();
    cold.close(fs);
}

#[test]
fn a_reader_who_waits_for_an_archive_reads_what_was_written_meanwhile() {
    let cold = partial();
    cold.rig.settings_mut(|settings| settings.away_timeout = Duration::from_secs(600));
    let fs = cold.open();
    let bytes = content(2);
    let ino = archived_file(&fs, "file", &bytes);
    let handle = fs.open(ino, READ);
    cold.bucket.set_away(true);
    std::thread::scope(|scope| {
        let (done, is_done) = mpsc::channel();
        let fs = &fs;
        scope.spawn(move || {
            let mut buffer = [0; 10];
            let read = fs.read(ino, 0, &mut buffer).unwrap();
            done.send(buffer[..read].to_vec()).unwrap();
        });
        while fs.away_disks().is_empty() {
            std::thread::yield_now();
        }
        let writer = fs.open(ino, TRUNCATE);
        writer.write(0, b"new");
        let found = is_done.recv_timeout(Duration::from_secs(60));
        cold.bucket.set_away(false);
        assert!(matches!(found.as_deref(), Ok(b"new" | b"")), "{found:?}");
        writer.close();
    });
    handle.close();
    cold.close(fs);
}

#[test]
fn readers_of_the_same_frames_have_them_fetched_once() {
    let cold = partial();
    let fs = cold.open();
    let bytes = content(6);
    let ino = archived_file(&fs, "file", &bytes);
    let background = fs.at_owner().start_background().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| assert!(fs.contents(ino) == bytes));
        }
    });
    background.stop();
    assert_eq!(read(&fs).frames, 6);
    cold.close(fs);
}

#[test]
fn what_is_kept_in_memory_is_bounded_and_fetched_again() {
    let cold = partial();
    cold.rig.settings_mut(|settings| settings.partial_recall_cache = ByteSize::mib(4));
    let fs = cold.open();
    let bytes = content(12);
    let ino = archived_file(&fs, "file", &bytes);
    for _ in 0..2 {
        assert!(fs.contents(ino) == bytes);
    }
    assert!(read(&fs).frames > 12, "{:?}", read(&fs));
    cold.close(fs);
    // One whose index would take more than half of that.
    cold.rig.settings_mut(|settings| settings.partial_recall_cache = ByteSize(900));
    let fs = cold.open();
    assert!(fs.contents(ino) == bytes);
    assert!(!is_archived(&fs, ino));
    cold.close(fs);
}

#[test]
fn a_damaged_frame_is_an_error_and_the_others_are_read() {
    let cold = partial();
    let fs = cold.open();
    let bytes = content(5);
    let ino = archived_file(&fs, "file", &bytes);
    fs.commit().unwrap();
    let name = &cold.objects()[0];
    let length = cold.bucket.names().iter().find(|(it, _)| it == name).unwrap().1;
    cold.bucket.change(name, |bytes| bytes[length / 2] ^= 1);
    let handle = fs.open(ino, READ);
    let mut failed = 0;
    for frame in 0..5 {
        let mut buffer = vec![0; 100];
        match fs.read(ino, (frame * MIB) as u64, &mut buffer) {
            Ok(read) => assert_eq!(buffer[..read], bytes[frame * MIB..frame * MIB + 100]),
            Err(FsError::Io(why)) => {
                assert!(why.contains("objects/") && why.contains("frame 2"), "{why}");
                failed += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!((failed, read(&fs).failures), (1, 1));
    handle.close();
    cold.close(fs);
}

#[test]
fn an_archive_that_does_not_answer_gives_reads_an_error_that_names_it_and_they_work_again_afterwards()
 {
    let cold = partial();
    let fs = cold.open();
    let bytes = content(3);
    let ino = archived_file(&fs, "file", &bytes);
    let handle = fs.open(ino, READ);
    assert_eq!(handle.read(0, 10), &bytes[..10]);
    cold.bucket.set_away(true);
    let mut buffer = [0; 10];
    let Err(FsError::Io(why)) = fs.read(ino, (2 * MIB) as u64, &mut buffer) else {
        panic!("it was read")
    };
    assert!(
        why.contains("bucket") && why.contains("objects/") && why.contains("away_timeout"),
        "{why}"
    );
    assert_eq!(handle.read(10, 10), &bytes[10..20], "what was fetched is read");
    cold.bucket.set_away(false);
    assert!(handle.contents() == bytes);
    handle.close();
    // One that is missing.
    cold.bucket.lose(&cold.objects()[0]);
    let other = fs.open(ino, READ);
    fs.drop_caches();
    assert_eq!(other.read(0, 4), &bytes[..4]);
    other.close();
    fs.unlink(Ino::ROOT, b"file").unwrap();
    cold.close(fs);
}

#[test]
fn holes_are_found_without_their_bytes_and_copies_go_through_memory() {
    let cold = partial();
    let fs = cold.open();
    let ino = fs.make_file(Ino::ROOT, "sparse");
    fs.write_file(ino, (6 * MIB) as u64, &content(1));
    archive(&fs, ino);
    let handle = fs.open(ino, READ);
    assert_eq!(fs.seek(ino, Seek::Data, 5).unwrap(), (6 * MIB) as u64);
    assert_eq!(fs.seek(ino, Seek::Hole, 5).unwrap(), 5);
    assert!(matches!(fs.seek(ino, Seek::Data, 1 << 40), Err(FsError::NoSuchOffset)));
    assert_eq!(read(&fs).ranges, 0);
    assert_eq!(handle.read(0, 3 * MIB), vec![0; 3 * MIB]);
    assert_eq!(read(&fs).ranges, 0, "there is nothing to fetch of zeros");
    let copy = fs.make_file(Ino::ROOT, "copy");
    let writer = fs.open(copy, READ_WRITE);
    let copied = fs.copy_range((ino, 0), (copy, 0), 10);
    assert!(matches!(copied, Err(FsError::CrossFileset)), "{copied:?}");
    writer.close();
    handle.close();
    fs.set_fileset("", Some(Durability::Strict), None).unwrap();
    let handle = fs.open(ino, READ);
    fs.sync_file(ino, forebay_disk::Sync::All).unwrap();
    handle.close();
    cold.close(fs);
}

#[test]
fn a_snapshot_has_the_frames_that_are_read_fetched_and_no_others() {
    let cold = Cold::new();
    let fs = cold.open();
    let data = fs.fileset("data");
    let bytes = content(20);
    let ino = fs.make_file(data, "file");
    fs.write_file(ino, 0, &bytes);
    archive(&fs, ino);
    fs.create_snapshot("data", "one").unwrap();
    let list = fs.find(data, ".snapshots").unwrap();
    let kept = fs.find(fs.find(list, "one").unwrap(), "file").unwrap();
    let handle = fs.open(kept, READ);
    let at = 15 * MIB + 9;
    assert_eq!(handle.read(at as u64, 9), &bytes[at..at + 9]);
    assert_eq!((read(&fs).ranges, read(&fs).frames), (1, 1));
    // To copy it in the thread that answers the kernel would fetch there.
    let copy = fs.make_file(data, "copy");
    let writer = fs.open(copy, READ_WRITE);
    let gets = cold.bucket.gets();
    let copied = fs.copy_range((kept, 0), (copy, 0), 10);
    assert!(matches!(copied, Err(FsError::CrossFileset)), "{copied:?}");
    assert_eq!(cold.bucket.gets(), gets);
    writer.close();
    // The file itself is recalled and written: the snapshot keeps the object.
    fs.write_file(ino, 0, b"CONTENT");
    fs.commit().unwrap();
    assert!(handle.contents() == bytes);
    handle.close();
    fs.delete_snapshot("data", "one").unwrap();
    cold.close(fs);
    assert_eq!(cold.objects(), Vec::<String>::new());
}

#[test]
fn readers_of_a_file_that_is_archived_and_recalled_all_the_time_read_the_same() {
    let cold = of(Cold::beside(Rig::in_directory()));
    let fs = cold.open();
    let background = fs.at_owner().start_background().unwrap();
    let bytes = content(3);
    let ino = fs.make_file(Ino::ROOT, "file");
    fs.write_file(ino, 0, &bytes);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !ends.load(Ordering::Acquire) {
                    assert!(fs.contents(ino) == bytes);
                }
            });
        }
        for _ in 0..40 {
            // Not while somebody has it open.
            let _ = fs.migrate_files("archive", &[ino]).unwrap();
            std::thread::yield_now();
            fs.recall(ino, None).unwrap();
            fs.commit().unwrap();
        }
        ends.store(true, Ordering::Release);
    });
    background.stop();
    cold.close(fs);
}
