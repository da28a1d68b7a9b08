//! What only a disk in memory promises: crashes, and an exact capacity.

use std::collections::BTreeSet;
use std::sync::Arc;

use forebay_base::time::StepClock;
use forebay_base::{FailPoints, ObjectId, seed};
use forebay_disk::memory::MemoryDisk;
use forebay_disk::{Allocate, Disk, DiskError, Sync};

use super::{GIB, listed, memory_disk, published, read};

const SEEDS: u64 = 200;

/// Seeds from a fresh one on; `FOREBAY_SEED` picks the first.
fn seeds(count: u64, test: &str) -> std::ops::Range<u64> {
    seed::several(count, &format!("cargo test -p forebay-disk --test {test}"))
}

#[test]
fn a_full_disk_refuses_what_adds_bytes() {
    let disk = memory_disk(10 * 4096);
    let object = published(&disk, 1);
    object.write_at(0, &[1; 9 * 4096]).unwrap();
    assert_eq!(object.write_at(9 * 4096 - 1, &[2; 4098]), Err(DiskError::Full));
    assert_eq!(object.attributes().unwrap().size, 9 * 4096, "refused as a whole");
    object.write_at(0, &[3; 9 * 4096]).unwrap();
    assert_eq!(object.allocate(Allocate::KeepSize, 0, 11 * 4096), Err(DiskError::Full));
    object.write_at(9 * 4096, &[1; 4096]).unwrap();
    assert_eq!(disk.capacity().unwrap().free_bytes, 0);
    assert_eq!(disk.create(ObjectId(2)).err(), Some(DiskError::Full));
    object.set_size(4096).unwrap();
    assert_eq!(disk.capacity().unwrap().free_bytes, 9 * 4096);
    disk.remove(ObjectId(1)).unwrap();
    assert_eq!(disk.capacity().unwrap().free_bytes, 9 * 4096, "still open");
    drop(object);
    assert_eq!(disk.capacity().unwrap().free_bytes, 10 * 4096);
}

#[test]
fn a_killed_process_keeps_published_bytes_and_loses_fresh_objects() {
    let disk = memory_disk(GIB);
    let (kept, fresh) = (published(&disk, 1), disk.create(ObjectId(2)).unwrap());
    kept.write_at(0, b"every byte").unwrap();
    fresh.write_at(0, &[1; 100_000]).unwrap();
    fresh.sync(Sync::All).unwrap();
    disk.crash_process();
    assert!(matches!(kept.read_at(0, &mut [0]), Err(DiskError::Io(_))));
    assert!(matches!(fresh.write_at(0, b"x"), Err(DiskError::Io(_))));
    drop((kept, fresh));
    assert_eq!(listed(&disk), [1]);
    assert_eq!(read(&*disk.open(ObjectId(1)).unwrap(), 0, 99), b"every byte");
    assert_eq!(disk.capacity().unwrap().free_bytes, GIB - 4096);
}

#[test]
fn a_crashed_machine_keeps_what_a_sync_of_the_object_covered() {
    for seed in
        seeds(SEEDS, "conformance a_crashed_machine_keeps_what_a_sync_of_the_object_covered")
    {
        let disk = memory_disk(GIB);
        let object = published(&disk, 1);
        object.write_at(0, &[1; 20_000]).unwrap();
        object.sync(Sync::All).unwrap();
        object.write_at(20_000, &[2; 20_000]).unwrap();
        disk.crash_machine(seed);
        let object = disk.open(ObjectId(1)).unwrap();
        assert_eq!(read(&*object, 0, 20_000), [1; 20_000], "seed {seed}");
        let tail = read(&*object, 20_000, 99_999);
        assert!(tail.len() <= 20_000 && tail.iter().all(|byte| [0, 2].contains(byte)));
    }
}

#[test]
fn a_crashed_machine_keeps_what_a_sync_of_the_disk_covered() {
    for seed in seeds(SEEDS, "conformance a_crashed_machine_keeps_what_a_sync_of_the_disk_covered")
    {
        let disk = memory_disk(GIB);
        for id in 0..20_u64 {
            published(&disk, id).write_at(0, &id.to_be_bytes()).unwrap();
        }
        disk.remove(ObjectId(3)).unwrap();
        disk.sync().unwrap();
        disk.crash_machine(seed);
        let kept: Vec<u64> = (0..20).filter(|id| *id != 3).collect();
        assert_eq!(listed(&disk), kept, "seed {seed}");
        for id in kept {
            assert_eq!(read(&*disk.open(ObjectId(id)).unwrap(), 0, 9), id.to_be_bytes());
        }
    }
}

#[test]
fn a_data_sync_covers_bytes_and_growth_but_not_the_name() {
    let mut named = 0;
    for seed in seeds(SEEDS, "conformance a_data_sync_covers_bytes_and_growth_but_not_the_name") {
        let disk = memory_disk(GIB);
        let object = published(&disk, 1);
        object.write_at(0, &[1; 10_000]).unwrap();
        object.sync(Sync::Data).unwrap();
        disk.crash_machine(seed);
        match disk.open(ObjectId(1)) {
            Ok(object) => {
                assert_eq!(read(&*object, 0, 99_999), [1; 10_000], "seed {seed}");
                named += 1;
            }
            Err(error) => assert_eq!(error, DiskError::NotFound(ObjectId(1))),
        }
    }
    assert!((1..SEEDS).contains(&named), "the name was always kept, or always lost");
}

#[test]
fn a_crashed_machine_may_lose_what_no_sync_covered() {
    let mut outcomes = BTreeSet::new();
    // One of 32 keeps all: so many that one of them does.
    for seed in seeds(3 * SEEDS, "conformance a_crashed_machine_may_lose_what_no_sync_covered") {
        let disk = memory_disk(GIB);
        let object = published(&disk, 1);
        object.write_at(0, &[1; 8192]).unwrap();
        object.sync(Sync::All).unwrap();
        object.write_at(0, &[2; 16_384]).unwrap();
        object.set_size(12_000).unwrap();
        published(&disk, 2);
        disk.crash_machine(seed);
        let object = disk.open(ObjectId(1)).unwrap();
        outcomes.insert((listed(&disk), read(&*object, 0, 99_999)));
        let content = read(&*object, 0, 99_999);
        assert!(content.len() >= 8192 && content.len() <= 16_384, "seed {seed}");
    }
    assert!(outcomes.len() > 20, "only {} outcomes", outcomes.len());
    assert!(outcomes.iter().any(|(ids, _)| *ids == [1]));
    assert!(outcomes.iter().any(|(ids, _)| *ids == [1, 2]));
    let all_kept: Vec<u8> = vec![2; 12_000];
    assert!(outcomes.iter().any(|(_, content)| *content == all_kept));
    assert!(outcomes.iter().any(|(_, content)| *content == [1; 8192]));
}

#[test]
fn a_crashed_machine_may_undo_a_removal() {
    let mut undone = 0;
    for seed in seeds(SEEDS, "conformance a_crashed_machine_may_undo_a_removal") {
        let disk = memory_disk(GIB);
        published(&disk, 1).write_at(0, b"back again").unwrap();
        disk.sync().unwrap();
        disk.remove(ObjectId(1)).unwrap();
        assert_eq!(disk.capacity().unwrap().free_bytes, GIB);
        disk.crash_machine(seed);
        if listed(&disk) == [1] {
            undone += 1;
            assert_eq!(read(&*disk.open(ObjectId(1)).unwrap(), 0, 99), b"back again");
            assert_eq!(disk.capacity().unwrap().free_bytes, GIB - 4096);
        }
    }
    assert!((1..SEEDS).contains(&undone));
}

#[test]
fn what_a_crash_left_is_durable() {
    for seed in seeds(SEEDS, "conformance what_a_crash_left_is_durable") {
        let disk = memory_disk(GIB);
        for id in 0..5 {
            published(&disk, id).write_at(0, &[1; 30_000]).unwrap();
        }
        disk.crash_machine(seed);
        let found = |disk: &MemoryDisk| -> Vec<(u64, Vec<u8>)> {
            listed(disk)
                .into_iter()
                .map(|id| (id, read(&*disk.open(ObjectId(id)).unwrap(), 0, 99_999)))
                .collect()
        };
        let left = found(&disk);
        disk.crash_machine(seed + 1);
        assert_eq!(found(&disk), left, "seed {seed}");
    }
}

#[test]
fn the_same_seed_crashes_the_same_way() {
    let crash = |seed| {
        let disk = memory_disk(GIB);
        for id in 0..20 {
            published(&disk, id).write_at(0, &[1; 30_000]).unwrap();
        }
        disk.crash_machine(seed);
        listed(&disk)
            .into_iter()
            .map(|id| (id, read(&*disk.open(ObjectId(id)).unwrap(), 0, 99_999)))
            .collect::<Vec<_>>()
    };
    assert_eq!(crash(7), crash(7));
    assert_ne!(crash(7), crash(8));
}

#[test]
fn without_power_nothing_changes_any_more() {
    let points = FailPoints::cut_at("disk.publish", 1);
    let clock = Arc::new(StepClock::new(1));
    let disk = MemoryDisk::with_fail_points(GIB, clock, points);
    let one = published(&disk, 1);
    one.write_at(0, b"before").unwrap();
    let two = disk.create(ObjectId(2)).unwrap();
    let off = DiskError::Io("power is off".to_owned());
    assert_eq!(disk.publish(ObjectId(2), &*two), Err(off.clone()));
    assert_eq!(one.write_at(0, b"after"), Err(off.clone()));
    assert_eq!(one.set_size(0), Err(off.clone()));
    assert_eq!(one.allocate(Allocate::Extend, 0, 1), Err(off.clone()));
    assert_eq!(one.sync(Sync::All), Err(off.clone()));
    assert_eq!(disk.remove(ObjectId(1)), Err(off.clone()));
    assert_eq!(disk.sync(), Err(off.clone()));
    assert_eq!(disk.create(ObjectId(3)).err(), Some(off));
    assert_eq!(read(&*one, 0, 9), b"before");

    disk.crash_process();
    let disk = disk.reopen();
    assert_eq!(listed(&disk), [1]);
    published(&disk, 2).write_at(0, b"power is back").unwrap();
    assert_eq!(read(&*disk.open(ObjectId(1)).unwrap(), 0, 9), b"before");
}
