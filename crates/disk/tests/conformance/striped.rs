//! What only a striped disk promises: objects whose parts a crash left at different lengths, and parts in directories.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_base::seed::{self, Dice};
use forebay_base::{FailPoints, ObjectId};
use forebay_disk::directory::{DirectoryDisk, Label};
use forebay_disk::memory::MemoryDisk;
use forebay_disk::striped::{Part, StripedDisk, place};
use forebay_disk::{Allocate, Disk, DiskError, Object, Seek, Sync};

use super::{GIB, label, listed, memory_disk, published, read, striped_disk, striped_over};

const WIDTH: usize = 3;
const UNIT: u64 = 4096;
/// Random objects of a test.
const SEEDS: u64 = 300;

/// Directories of disks that a striped one may lie over.
pub fn members_in(path: &Path, count: usize) -> Vec<PathBuf> {
    let make = |number: usize| {
        let member = path.join(format!("member-{number}"));
        std::fs::create_dir(&member).unwrap();
        let label = Label { disk: format!("member-{number}"), ..label() };
        DirectoryDisk::format(&member, &label).unwrap();
        member
    };
    (0..count).map(make).collect()
}

fn disks() -> Vec<MemoryDisk> {
    (0..WIDTH).map(|_| memory_disk(GIB)).collect()
}

/// What an object holds, whole.
fn whole(object: &dyn Object) -> Vec<u8> {
    let size = object.attributes().unwrap().size;
    read(object, 0, usize::try_from(size).unwrap() + 10)
}

/// A change of an object and of what it is to hold; all that is ever written is not 0.
fn change(dice: &mut Dice, object: &dyn Object, expected: &mut Vec<u8>) {
    let most = 6 * usize::try_from(UNIT).unwrap();
    let (at, length) = (dice.index(most), 1 + dice.index(most));
    let bytes = vec![1 + dice.index(255) as u8; length];
    let end = at + length;
    match dice.index(6) {
        0 | 1 => {
            assert_eq!(object.write_at(at as u64, &bytes), Ok(length));
            expected.resize(expected.len().max(end), 0);
            expected[at..end].copy_from_slice(&bytes);
        }
        2 => {
            assert_eq!(object.append(&bytes), Ok(length));
            expected.extend_from_slice(&bytes);
        }
        3 => {
            object.set_size(at as u64).unwrap();
            expected.resize(at, 0);
        }
        4 => {
            object.allocate(Allocate::PunchHole, at as u64, length as u64).unwrap();
            let to = end.min(expected.len());
            expected[at.min(to)..to].fill(0);
        }
        _ => {
            object.allocate(Allocate::Extend, at as u64, length as u64).unwrap();
            expected.resize(expected.len().max(end), 0);
        }
    }
}

fn assert_tells_holes(object: &dyn Object, expected: &[u8]) {
    for at in (0..expected.len() as u64).step_by(1000) {
        let data = object.seek(Seek::Data, at).unwrap_or(expected.len() as u64);
        let passed = &expected[at as usize..data as usize];
        assert!(passed.iter().all(|byte| *byte == 0), "data at or after {at} was passed over");
        let hole = object.seek(Seek::Hole, at).unwrap();
        assert!(hole >= at && hole <= expected.len() as u64);
    }
}

#[test]
fn random_changes_of_a_striped_object_equal_those_of_bytes_in_memory() {
    for seed in seed::several(SEEDS, "cargo test -p forebay-disk --test conformance random_changes")
    {
        let (mut dice, disk) = (Dice::of(seed), striped_over(&disks(), UNIT));
        let (object, mut expected) = (published(&disk, 1), Vec::new());
        for _ in 0..30 {
            change(&mut dice, &*object, &mut expected);
            assert!(whole(&*object) == expected, "seed {seed}");
        }
        assert_tells_holes(&*object, &expected);
        let copy = disk.create(ObjectId(2)).unwrap();
        let length = expected.len() as u64;
        assert_eq!(copy.copy_from(&*object, 0, 0, length + 10), Ok(length));
        assert!(whole(&*copy) == expected, "seed {seed}");
    }
}

/// Whether bytes after a crash are a state between those of the latest sync and those that were there: each byte is one that
/// was there, or was never written to the disk.
fn is_between(found: &[u8], synced: &[u8], before: &[Vec<u8>]) -> bool {
    found.iter().enumerate().all(|(at, byte)| {
        let was = |state: &Vec<u8>| state.get(at).copied().unwrap_or(0) == *byte;
        before.iter().any(was) || synced.get(at).copied().unwrap_or(0) == *byte || *byte == 0
    })
}

#[test]
fn a_crash_of_the_machine_leaves_no_foreign_byte_and_what_was_synced() {
    for seed in
        seed::several(SEEDS, "cargo test -p forebay-disk --test conformance a_crash_of_the_machine")
    {
        let (mut dice, below) = (Dice::of(seed), disks());
        let disk = striped_over(&below, UNIT);
        let (object, mut now) = (published(&disk, 1), Vec::new());
        for _ in 0..dice.index(12) {
            change(&mut dice, &*object, &mut now);
        }
        object.sync(Sync::All).unwrap();
        let (synced, mut states) = (now.clone(), vec![now.clone()]);
        for _ in 0..dice.index(6) {
            change(&mut dice, &*object, &mut now);
            states.push(now.clone());
        }
        drop(object);
        below.iter().enumerate().for_each(|(place, disk)| disk.crash_machine(seed + place as u64));

        let object = disk.open(ObjectId(1)).unwrap();
        let mut found = whole(&*object);
        assert!(is_between(&found, &synced, &states), "seed {seed}");
        let least = states.iter().map(Vec::len).min().unwrap();
        assert!(found.len() >= least, "seed {seed}: {} of {least} bytes", found.len());
        // What the crash left beyond the end never becomes part of it.
        let size = found.len() as u64;
        if dice.toss() {
            object.set_size(size + 9 * UNIT).unwrap();
            found.resize(found.len() + 9 * UNIT as usize, 0);
        } else {
            object.write_at(size + 3 * UNIT, b"far").unwrap();
            found.resize(found.len() + 3 * UNIT as usize, 0);
            found.extend_from_slice(b"far");
        }
        assert!(whole(&*object) == found, "seed {seed}: bytes that were cut or lost are back");
        for _ in 0..10 {
            change(&mut dice, &*object, &mut found);
            assert!(whole(&*object) == found, "seed {seed}");
        }
    }
}

#[test]
fn a_cut_that_a_killed_process_left_half_done_ends_between_the_two_sizes() {
    for passes in 0..WIDTH as u64 {
        let below = disks();
        let points = FailPoints::cut_at("disk.set_size", passes);
        let armed: Vec<_> =
            below.iter().map(|disk| disk.reopen_with_fail_points(points.clone())).collect();
        let object = published(&striped_over(&armed, UNIT), 1);
        let bytes: Vec<u8> = (0..100_000).map(|at| (at % 251) as u8 + 1).collect();
        object.write_at(0, &bytes).unwrap();
        assert!(object.set_size(10_000).is_err());
        drop(object);
        below.iter().for_each(MemoryDisk::crash_process);
        let object = striped_over(&below, UNIT).open(ObjectId(1)).unwrap();
        let found = whole(&*object);
        assert!((10_000..=100_000).contains(&found.len()), "{passes}: {}", found.len());
        assert!(found == bytes[..found.len()], "{passes}: no byte was lost before the end");
        object.set_size(100_000).unwrap();
        let after = whole(&*object);
        assert!(after[found.len()..].iter().all(|byte| *byte == 0), "{passes}");
    }
}

#[test]
fn an_object_of_which_some_parts_have_no_name_does_not_exist_and_can_be_removed() {
    for passes in 1..WIDTH as u64 {
        let below = disks();
        let points = FailPoints::cut_at("disk.publish", passes);
        let armed: Vec<_> =
            below.iter().map(|disk| disk.reopen_with_fail_points(points.clone())).collect();
        let disk = striped_over(&armed, UNIT);
        let object = disk.create(ObjectId(7)).unwrap();
        object.write_at(0, &[5; 50_000]).unwrap();
        assert!(disk.publish(ObjectId(7), &*object).is_err());
        drop(object);
        below.iter().for_each(MemoryDisk::crash_process);
        let disk = striped_over(&below, UNIT);
        assert_eq!(listed(&disk), [7], "what is left is found");
        assert_eq!(disk.attributes(ObjectId(7)), Ok(None));
        assert_eq!(disk.open(ObjectId(7)).err(), Some(DiskError::NotFound(ObjectId(7))));
        disk.remove(ObjectId(7)).unwrap();
        assert_eq!(listed(&disk), Vec::<u64>::new());
    }
}

#[test]
fn a_publication_that_was_refused_is_continued_or_leaves_nothing() {
    let below = disks();
    let taken = published(&below[1], 7);
    let disk = striped_over(&below, UNIT);
    let object = disk.create(ObjectId(7)).unwrap();
    assert_eq!(disk.publish(ObjectId(7), &*object), Err(DiskError::Exists(ObjectId(7))));
    drop(object);
    assert_eq!(listed(&below[0]), Vec::<u64>::new());
    drop(taken);
    below[1].remove(ObjectId(7)).unwrap();

    let points = FailPoints::cut_at("disk.publish", 1);
    let armed: Vec<_> =
        below.iter().map(|disk| disk.reopen_with_fail_points(points.clone())).collect();
    let object = striped_over(&armed, UNIT).create(ObjectId(8)).unwrap();
    object.write_at(0, &[1; 20_000]).unwrap();
    assert!(striped_over(&armed, UNIT).publish(ObjectId(8), &*object).is_err());
    // The same names, with the power on again.
    disk.publish(ObjectId(8), &*object).unwrap();
    assert_eq!(disk.attributes(ObjectId(8)).unwrap().unwrap().size, 20_000);
}

#[test]
fn a_full_disk_below_refuses_the_rest_of_a_write() {
    let below = [memory_disk(GIB), memory_disk(10 * UNIT), memory_disk(GIB)];
    let disk = striped_over(&below, UNIT);
    assert_eq!(disk.capacity().unwrap().total_bytes, 30 * UNIT);
    let object = published(&disk, 1);
    let bytes: Vec<u8> = (0..40 * UNIT).map(|at| (at % 251) as u8).collect();
    let written = object.write_at(0, &bytes).unwrap();
    assert!((30 * UNIT as usize..=31 * UNIT as usize).contains(&written), "{written}");
    assert_eq!(object.attributes().unwrap().size, written as u64);
    let rest = object.write_at(written as u64, &bytes[written..]);
    assert_eq!(rest, Err(DiskError::Full));
    assert!(whole(&*object) == bytes[..written]);
}

#[test]
fn writers_of_different_ranges_do_not_disturb_each_other() {
    let disk = striped_disk(WIDTH);
    published(&disk, 1);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let disk = &disk;
            scope.spawn(move || {
                let object = disk.open(ObjectId(1)).unwrap();
                for number in 0..100 {
                    let at = (4 * number + thread) * 1000;
                    let bytes = [thread as u8 + 1; 1000];
                    assert_eq!(object.write_at(at, &bytes), Ok(1000));
                    assert!(object.attributes().unwrap().size >= at + 1000);
                    assert_eq!(read(&*object, at, 1000), bytes);
                }
            });
        }
    });
    let found = whole(&*disk.open(ObjectId(1)).unwrap());
    assert_eq!(found.len(), 400_000);
    for (place, block) in found.chunks(1000).enumerate() {
        assert!(block.iter().all(|byte| *byte == (place % 4) as u8 + 1), "block {place}");
    }
}

#[test]
fn parts_in_directories_are_found_again_and_those_of_others_refused() {
    let folder = tempfile::tempdir().unwrap();
    let members = members_in(folder.path(), 3);
    place::format(&members, &label()).unwrap();
    let bytes: Vec<u8> = (0..3_000_000).map(|at| (at % 253) as u8).collect();
    {
        let disk = place::open(&members, 64 << 10, &label()).unwrap();
        let object = published(&disk, 1);
        object.write_at(0, &bytes).unwrap();
        object.sync(Sync::All).unwrap();
        assert!(object.file().is_none() && !object.has_other_writers());
        let again = place::open(&members, 64 << 10, &label()).map(drop);
        assert!(matches!(again, Err(DiskError::Refused(_))), "it is in use: {again:?}");
    }
    let disk = place::open(&members, 64 << 10, &label()).unwrap();
    assert!(whole(&*disk.open(ObjectId(1)).unwrap()) == bytes);
    drop(disk);
    let exchanged = [members[1].clone(), members[0].clone(), members[2].clone()];
    let refused = place::open(&exchanged, 64 << 10, &label()).map(drop);
    assert!(matches!(refused, Err(DiskError::Refused(_))), "{refused:?}");
    assert!(place::unformat(&members, &label()).is_err(), "it holds an object");
    let disk = place::open(&members, 64 << 10, &label()).unwrap();
    disk.remove(ObjectId(1)).unwrap();
    drop(disk);
    assert_eq!(place::found_in(&members[0]), [label().disk]);
    place::unformat(&members, &label()).unwrap();
    assert!(members.iter().all(|member| place::found_in(member).is_empty()));
    // What an interrupted formatting left is removed as well.
    place::format(&members[..2], &label()).unwrap();
    place::unformat(&members, &label()).unwrap();
}

#[test]
fn a_bad_width_or_unit_is_refused() {
    let part = || Part { name: "a".to_owned(), disk: Arc::new(memory_disk(GIB)) };
    for (width, unit) in [(0, 4096), (1, 4096), (65, 4096), (2, 0), (2, 1000), (2, 128 << 20)] {
        let refused = StripedDisk::over((0..width).map(|_| part()).collect(), unit).map(drop);
        assert!(matches!(refused, Err(DiskError::Refused(_))), "{width} {unit}: {refused:?}");
    }
}
