//! The archive disk: what it gives back is what was written, or an error that names the object. Stores that lose, cut, spoil or
//! replace objects are found out before anything is served, and before a writer is told that its object is safe.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_base::{FilesetId, ObjectId, Timestamp};
use forebay_disk::archive::ArchiveDisk;
use forebay_disk::archive::bucket::Bucket;
use forebay_disk::archive::directory::DirectoryBucket;
use forebay_disk::archive::memory::{Lie, MemoryBucket};
use forebay_disk::directory::Label;
use forebay_disk::{Disk, DiskError, Object, Seek, Sync};
use rand::{Rng as _, SeedableRng as _};

const FRAME: usize = 1 << 20;

fn label() -> Label {
    Label { file_system: "fs".to_owned(), disk: "cold".to_owned() }
}

fn disk_in(bucket: &MemoryBucket) -> ArchiveDisk {
    ArchiveDisk::format(bucket, &label(), "memory").unwrap();
    ArchiveDisk::open(Box::new(bucket.clone()), label(), "memory")
}

fn number(local: u64) -> ObjectId {
    ObjectId::of(FilesetId(1), local)
}

fn name_in(bucket: &MemoryBucket) -> String {
    let mut names = bucket.names();
    names.retain(|(name, _)| name.starts_with("objects/"));
    assert_eq!(names.len(), 1, "{names:?}");
    names.remove(0).0
}

/// Writes an object with a hole after each piece.
fn write(
    disk: &ArchiveDisk,
    id: ObjectId,
    pieces: &[(u64, Vec<u8>)],
    size: u64,
) -> forebay_disk::Result<Arc<dyn Object>> {
    let object = disk.create(id)?;
    for (offset, bytes) in pieces {
        assert_eq!(object.write_at(*offset, bytes)?, bytes.len());
    }
    object.set_size(size)?;
    object.set_modified(Timestamp::new(77, 5))?;
    disk.publish(id, &*object)?;
    object.sync(Sync::All)?;
    Ok(object)
}

fn read(disk: &ArchiveDisk, id: ObjectId) -> forebay_disk::Result<Vec<u8>> {
    let object = disk.read_archived(id)?;
    let size = object.attributes()?.size;
    let mut bytes = vec![9; usize::try_from(size).unwrap()];
    let mut done = 0;
    while done < bytes.len() {
        let end = bytes.len().min(done + 333_333);
        done += object.read_at(done as u64, &mut bytes[done..end])?;
    }
    Ok(bytes)
}

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    (0..length).map(|_| random.random()).collect()
}

#[test]
fn what_was_written_reads_back_with_its_holes() {
    let bucket = MemoryBucket::default();
    let disk = disk_in(&bucket);
    let pieces = [
        (0, noise(1, 10)),
        (FRAME as u64 - 5, noise(2, 2 * FRAME + 11)),
        (9 * FRAME as u64 + 3, b"the end".to_vec()),
    ];
    let size = 11 * FRAME as u64 + 1;
    let mut expected = vec![0; usize::try_from(size).unwrap()];
    for (offset, bytes) in &pieces {
        let at = usize::try_from(*offset).unwrap();
        expected[at..at + bytes.len()].copy_from_slice(bytes);
    }
    let written = write(&disk, number(1), &pieces, size).unwrap();
    assert_eq!(read(&disk, number(1)).unwrap(), expected);
    let found = disk.attributes(number(1)).unwrap().unwrap();
    assert_eq!((found.size, found.modified), (size, Timestamp::new(77, 5)));
    assert_eq!(written.attributes().unwrap(), found);
    assert_eq!(found.allocated_bytes, bucket.names().last().unwrap().1 as u64);
    let object = disk.read_archived(number(1)).unwrap();
    assert_eq!(object.seek(Seek::Hole, 0), Ok(4 * FRAME as u64));
    assert_eq!(object.seek(Seek::Data, 4 * FRAME as u64), Ok(9 * FRAME as u64));
    assert_eq!(object.seek(Seek::Data, 10 * FRAME as u64), Err(DiskError::NoSuchOffset));
    assert_eq!(object.seek(Seek::Hole, 10 * FRAME as u64 + 7), Ok(10 * FRAME as u64 + 7));
    let mut all = Vec::new();
    disk.list_of(FilesetId(1), &mut |id| {
        all.push(id);
        true
    })
    .unwrap();
    assert_eq!(all, [number(1)]);
    assert_eq!(disk.open(number(1)).err(), Some(DiskError::Archived(number(1))));
}

#[test]
fn empty_files_and_files_of_zeros_take_no_frames() {
    let bucket = MemoryBucket::default();
    let disk = disk_in(&bucket);
    write(&disk, number(1), &[], 0).unwrap();
    assert_eq!(read(&disk, number(1)).unwrap(), b"");
    write(&disk, number(2), &[(0, vec![0; 3 * FRAME])], 5 * FRAME as u64).unwrap();
    assert_eq!(read(&disk, number(2)).unwrap(), vec![0; 5 * FRAME]);
    assert!(bucket.names().iter().all(|(_, size)| *size < 200));
}

#[test]
fn a_store_that_loses_cuts_or_spoils_what_it_took_is_found_out_before_the_writer_is_told_so() {
    for lie in [Lie::LosesPuts, Lie::CutsPuts, Lie::SpoilsPuts] {
        let bucket = MemoryBucket::default();
        let disk = disk_in(&bucket);
        bucket.set_lie(lie);
        let written = write(&disk, number(1), &[(0, noise(3, 3 * FRAME))], 3 * FRAME as u64);
        assert!(written.is_err(), "{lie:?}");
    }
}

#[test]
fn no_damaged_byte_is_ever_served() {
    let content = noise(4, 2 * FRAME + 99);
    let bucket = MemoryBucket::default();
    let disk = disk_in(&bucket);
    write(&disk, number(1), &[(0, content.clone())], content.len() as u64).unwrap();
    let name = name_in(&bucket);
    let whole = bucket.get(&name, None).unwrap();
    let mut random = rand::rngs::StdRng::seed_from_u64(5);
    for round in 0..200 {
        let at = random.random_range(0..whole.len());
        bucket.change(&name, |bytes| {
            bytes.clone_from(&whole);
            if round % 4 == 0 {
                bytes.truncate(at);
            } else {
                bytes[at] ^= 1 << random.random_range(0..8);
            }
        });
        match read(&disk, number(1)) {
            Err(DiskError::Io(why)) => assert!(why.contains(&name), "{why}"),
            // The head is for people alone.
            Ok(bytes) => assert!(at < 48 && bytes == content, "byte {at}"),
            other => panic!("byte {at}: {other:?}"),
        }
    }
    bucket.change(&name, |bytes| bytes.clone_from(&whole));
    assert_eq!(read(&disk, number(1)).unwrap(), content);
}

#[test]
fn frames_are_fetched_with_one_request_and_each_is_checked_by_itself() {
    let bucket = MemoryBucket::default();
    let disk = disk_in(&bucket);
    let bytes = noise(3, 3 * FRAME);
    let pieces = [(0, bytes[..FRAME].to_vec()), (2 * FRAME as u64, bytes[FRAME..].to_vec())];
    write(&disk, number(1), &pieces, 4 * FRAME as u64).unwrap();
    let object = disk.read_archived(number(1)).unwrap();
    assert_eq!([0, 1, 2, 3, 4].map(|it| object.has_frame(it)), [true, false, true, true, false]);
    let gets = bucket.gets();
    let found = object.fetch_frames(0..3).unwrap();
    let expected = [(0, Ok(bytes[..FRAME].to_vec())), (2, Ok(bytes[FRAME..2 * FRAME].to_vec()))];
    assert!(found == expected && bucket.gets() == gets + 1);
    assert!(object.fetch_frames(1..2).unwrap().is_empty());
    assert!(object.fetch_frames(4..9).unwrap().is_empty() && bucket.gets() == gets + 1);
    // Noise is stored as it is: the middle of the three frames.
    bucket.change(&name_in(&bucket), |stored| stored[FRAME + FRAME / 2] ^= 1);
    let found = object.fetch_frames(0..4).unwrap();
    let is_sound =
        |(number, bytes): &(u64, forebay_disk::Result<Vec<u8>>)| (*number, bytes.is_ok());
    let sound: Vec<(u64, bool)> = found.iter().map(is_sound).collect();
    assert_eq!(sound, [(0, true), (2, false), (3, true)]);
    bucket.lose(&name_in(&bucket));
    assert_eq!(object.fetch_frames(0..1).err(), Some(DiskError::NotFound(number(1))));
}

#[test]
fn another_object_under_the_name_is_refused_and_a_missing_one_is_named() {
    let bucket = MemoryBucket::default();
    let disk = disk_in(&bucket);
    write(&disk, number(1), &[(0, b"one".to_vec())], 3).unwrap();
    let name = name_in(&bucket);
    let one = bucket.get(&name, None).unwrap();
    write(&disk, number(2), &[(0, b"two".to_vec())], 3).unwrap();
    let other = bucket
        .names()
        .into_iter()
        .map(|(name, _)| name)
        .find(|it| it.starts_with("objects/") && *it != name);
    bucket.change(&other.unwrap(), |bytes| bytes.clone_from(&one));
    let why = read(&disk, number(2)).unwrap_err().to_string();
    assert!(why.contains("another object"), "{why}");
    bucket.lose(&name);
    assert_eq!(read(&disk, number(1)), Err(DiskError::NotFound(number(1))));
}

#[test]
fn a_store_that_does_not_answer_is_away_until_it_answers() {
    let bucket = MemoryBucket::default();
    let disk = disk_in(&bucket);
    write(&disk, number(1), &[(0, b"one".to_vec())], 3).unwrap();
    bucket.set_away(true);
    assert!(matches!(read(&disk, number(1)), Err(DiskError::Away { disk, .. }) if disk == "cold"));
    assert!(matches!(disk.create(number(2)).err(), Some(DiskError::Away { .. })));
    assert!(matches!(disk.capacity(), Err(DiskError::Away { .. })));
    bucket.set_away(false);
    disk.capacity().unwrap();
    assert_eq!(read(&disk, number(1)).unwrap(), b"one");
}

#[test]
fn a_place_without_the_label_is_away_and_one_of_another_disk_is_refused() {
    let bucket = MemoryBucket::default();
    let disk = disk_in(&bucket);
    write(&disk, number(1), &[(0, b"one".to_vec())], 3).unwrap();
    let text = bucket.get("forebay-disk.toml", None).unwrap();
    bucket.lose("forebay-disk.toml");
    assert!(matches!(disk.create(number(2)).err(), Some(DiskError::Away { .. })));
    // Whether an object is missing is not known then either.
    bucket.lose(&name_in(&bucket));
    assert!(matches!(read(&disk, number(1)), Err(DiskError::Away { .. })));
    let other = Label { disk: "other".to_owned(), ..label() };
    bucket.put("forebay-disk.toml", other.text().as_bytes()).unwrap();
    assert!(matches!(read(&disk, number(1)), Err(DiskError::Absent(_))));
    bucket.put("forebay-disk.toml", &text).unwrap();
    assert_eq!(read(&disk, number(1)), Err(DiskError::NotFound(number(1))));
    let foreign = ArchiveDisk::format(&bucket, &other, "memory").unwrap_err().to_string();
    assert!(foreign.contains("already"), "{foreign}");
}

#[test]
fn an_upload_that_is_given_up_leaves_nothing_to_read() {
    let bucket = MemoryBucket::default();
    let disk = disk_in(&bucket);
    let object = disk.create(number(1)).unwrap();
    object.write_at(0, &noise(6, 12 * FRAME)).unwrap();
    drop(object);
    assert_eq!(read(&disk, number(1)), Err(DiskError::NotFound(number(1))));
    assert_eq!(bucket.names().len(), 1);
}

#[allow(clippy::disallowed_methods, reason = "time limits of tests need the machine's clock")]
fn await_that(what: impl Fn() -> bool) {
    let begun = Instant::now();
    while !what() {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn removals_wait_for_a_store_that_does_not_answer() {
    let bucket = MemoryBucket::default();
    let disk = disk_in(&bucket);
    write(&disk, number(1), &[(0, b"one".to_vec())], 3).unwrap();
    bucket.set_away(true);
    disk.remove(number(1)).unwrap();
    assert!(disk.has_removals(FilesetId(1)) && !disk.has_removals(FilesetId(2)));
    bucket.set_away(false);
    await_that(|| !disk.has_removals(FilesetId(1)));
    assert_eq!(bucket.names().len(), 1);
}

#[test]
fn a_directory_holds_what_was_put_and_forgets_what_was_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cold");
    let open = || ArchiveDisk::open(Box::new(DirectoryBucket::at(&path)), label(), "there");
    assert!(ArchiveDisk::format(&DirectoryBucket::at(&path), &label(), "there").is_err());
    std::fs::create_dir(&path).unwrap();
    ArchiveDisk::format(&DirectoryBucket::at(&path), &label(), "there").unwrap();
    let disk = open();
    let content = noise(7, 20 * FRAME);
    write(&disk, number(1), &[(0, content.clone())], content.len() as u64).unwrap();
    assert_eq!(read(&disk, number(1)).unwrap(), content);
    let unfinished = disk.create(number(2)).unwrap();
    unfinished.write_at(0, &content).unwrap();
    std::mem::forget(unfinished);
    let uploads = || std::fs::read_dir(path.join("uploads")).unwrap().count();
    assert_eq!(uploads(), 1);
    let again = open();
    assert_eq!(read(&again, number(1)).unwrap(), content);
    assert_eq!(uploads(), 0);
    // As if it were not mounted.
    std::fs::rename(&path, folder.path().join("away")).unwrap();
    assert!(matches!(read(&again, number(1)), Err(DiskError::Away { .. })));
    std::fs::create_dir(&path).unwrap();
    assert!(matches!(again.create(number(3)).err(), Some(DiskError::Away { .. })));
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0);
}
