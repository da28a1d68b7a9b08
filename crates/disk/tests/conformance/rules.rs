//! What every disk promises.

use std::sync::atomic::{AtomicBool, Ordering};

use forebay_base::ObjectId;
use forebay_disk::{Allocate, Disk, DiskError, Object, Seek, Sync};

use super::{TIB, listed, published, read};

/// Bytes that tell where they were meant to be.
fn pattern(seed: u64, length: usize) -> Vec<u8> {
    (seed..).map(|i| (i % 251) as u8).take(length).collect()
}

/// Runs an allocation; `false` where the disk cannot do it, which only tmpfs may say, and only of
/// zeroing a range.
fn allocated(disk: &dyn Disk, object: &dyn Object, what: Allocate, range: (u64, u64)) -> bool {
    match object.allocate(what, range.0, range.1) {
        Ok(()) => true,
        Err(DiskError::Unsupported) => {
            let zeroes = matches!(what, Allocate::ZeroRange | Allocate::ZeroRangeKeepSize);
            assert!(zeroes && disk.describe().kind == "tmpfs", "{what:?} is not supported");
            false
        }
        Err(error) => panic!("{what:?}: {error}"),
    }
}

pub fn a_fresh_object_is_empty(disk: &dyn Disk) {
    for id in 1..50 {
        let object = disk.create(ObjectId(id)).unwrap();
        assert_eq!(object.attributes().unwrap().size, 0);
        assert_eq!(read(&*object, 0, 10), b"");
        object.write_at(0, &[7; 10_000]).unwrap();
        if id % 2 == 0 {
            disk.publish(ObjectId(id), &*object).unwrap();
            disk.remove(ObjectId(id)).unwrap();
        }
    }
}

pub fn what_is_written_reads_back(disk: &dyn Disk) {
    let object = published(disk, 1);
    let data = pattern(0, 3_000_000);
    object.write_at(0, &data).unwrap();
    assert_eq!(read(&*object, 0, data.len()), data);
    object.write_at(4090, b"across a page").unwrap();
    object.write_at(2_999_990, b"across the end").unwrap();
    assert_eq!(read(&*object, 4090, 13), b"across a page");
    assert_eq!(read(&*object, 2_999_990, 100), b"across the end");
    assert_eq!(read(&*object, 4080, 10), data[4080..4090]);
    assert_eq!(read(&*object, 4103, 5000), data[4103..9103]);
    object.write_at(0, b"").unwrap();
    object.write_at(9_000_000, b"").unwrap();
    assert_eq!(object.attributes().unwrap().size, 3_000_004);
    let again = disk.open(ObjectId(1)).unwrap();
    assert_eq!(read(&*again, 4090, 13), b"across a page");
}

pub fn a_read_is_short_only_at_the_end(disk: &dyn Disk) {
    let object = published(disk, 1);
    object.write_at(0, b"0123456789").unwrap();
    assert_eq!(read(&*object, 0, 10), b"0123456789");
    assert_eq!(read(&*object, 7, 10), b"789");
    assert_eq!(read(&*object, 10, 10), b"");
    assert_eq!(read(&*object, 11, 10), b"");
    assert_eq!(read(&*object, u64::MAX, 10), b"");
    assert_eq!(read(&*object, 5, 0), b"");
}

pub fn holes_read_as_zeros(disk: &dyn Disk) {
    let object = published(disk, 1);
    object.write_at(1_000_000, b"island").unwrap();
    assert_eq!(read(&*object, 0, 1000), [0; 1000]);
    assert_eq!(read(&*object, 999_998, 8), b"\0\0island");
    object.set_size(2_000_000).unwrap();
    assert_eq!(read(&*object, 1_000_006, 2_000_000), vec![0; 999_994]);
    assert!(object.attributes().unwrap().allocated_bytes < 200_000);
}

pub fn an_object_of_five_tebibytes_is_sparse(disk: &dyn Disk) {
    let object = published(disk, 1);
    object.set_size(5 * TIB).unwrap();
    object.write_at(4 * TIB + 5, b"far out").unwrap();
    object.write_at(5 * TIB - 3, b"end").unwrap();
    let attributes = object.attributes().unwrap();
    assert_eq!(attributes.size, 5 * TIB);
    assert!(attributes.allocated_bytes < 1 << 20);
    assert_eq!(read(&*object, 4 * TIB + 3, 9), b"\0\0far out");
    assert_eq!(read(&*object, 5 * TIB - 5, 9), b"\0\0end");
    assert_eq!(read(&*object, 2 * TIB, 3), [0; 3]);
    object.set_size(1).unwrap();
    assert_eq!(object.attributes().unwrap().size, 1);
}

pub fn offsets_beyond_any_disk_are_refused(disk: &dyn Disk) {
    let object = published(disk, 1);
    for offset in [u64::MAX, i64::MAX as u64, i64::MAX as u64 + 1] {
        assert_eq!(object.write_at(offset, b"beyond"), Err(DiskError::TooLarge), "{offset}");
        assert_eq!(object.allocate(Allocate::Extend, offset, 9), Err(DiskError::TooLarge));
    }
    assert_eq!(object.set_size(u64::MAX), Err(DiskError::TooLarge));
    assert_eq!(object.seek(Seek::Data, u64::MAX), Err(DiskError::NoSuchOffset));
    assert_eq!(object.attributes().unwrap().size, 0);
}

pub fn cutting_and_growing_again_shows_zeros(disk: &dyn Disk) {
    let object = published(disk, 1);
    object.write_at(0, &[9; 20_000]).unwrap();
    object.set_size(5000).unwrap();
    assert_eq!(read(&*object, 0, 20_000), [9; 5000]);
    object.set_size(20_000).unwrap();
    assert_eq!(read(&*object, 0, 5000), [9; 5000]);
    assert_eq!(read(&*object, 5000, 20_000), [0; 15_000]);
    object.set_size(0).unwrap();
    assert_eq!(read(&*object, 0, 1), b"");
    object.write_at(3, b"x").unwrap();
    assert_eq!(read(&*object, 0, 9), b"\0\0\0x");
}

pub fn extend_grows_the_object(disk: &dyn Disk) {
    let object = published(disk, 1);
    object.write_at(0, b"head").unwrap();
    assert!(allocated(disk, &*object, Allocate::Extend, (2, 50_000)));
    let attributes = object.attributes().unwrap();
    assert_eq!(attributes.size, 50_002);
    assert!(attributes.allocated_bytes >= 50_000);
    assert_eq!(read(&*object, 0, 10), b"head\0\0\0\0\0\0");
    assert!(allocated(disk, &*object, Allocate::Extend, (0, 10)));
    assert_eq!(object.attributes().unwrap().size, 50_002);
}

pub fn keep_size_keeps_it(disk: &dyn Disk) {
    let object = published(disk, 1);
    object.write_at(0, b"head").unwrap();
    assert!(allocated(disk, &*object, Allocate::KeepSize, (0, 100_000)));
    let attributes = object.attributes().unwrap();
    assert_eq!(attributes.size, 4);
    assert!(attributes.allocated_bytes >= 100_000);
    assert_eq!(read(&*object, 0, 10), b"head");
    object.write_at(50_000, b"x").unwrap();
    assert_eq!(read(&*object, 49_999, 9), b"\0x");
}

pub fn a_punched_hole_reads_as_zeros(disk: &dyn Disk) {
    let object = published(disk, 1);
    object.write_at(0, &[5; 100_000]).unwrap();
    assert!(allocated(disk, &*object, Allocate::PunchHole, (10_000, 50_000)));
    assert_eq!(read(&*object, 0, 10_000), [5; 10_000]);
    assert_eq!(read(&*object, 10_000, 50_000), [0; 50_000]);
    assert_eq!(read(&*object, 60_000, 50_000), [5; 40_000]);
    // Beyond the end a hole changes nothing.
    assert!(allocated(disk, &*object, Allocate::PunchHole, (99_999, 1_000_000)));
    assert_eq!(object.attributes().unwrap().size, 100_000);
    assert_eq!(read(&*object, 99_998, 9), [5, 0]);
}

pub fn a_zeroed_range_reads_as_zeros(disk: &dyn Disk) {
    let object = published(disk, 1);
    object.write_at(0, &[5; 20_000]).unwrap();
    if !allocated(disk, &*object, Allocate::ZeroRangeKeepSize, (100, 9000)) {
        return;
    }
    assert_eq!(read(&*object, 99, 9002), [&[5][..], &[0; 9000], &[5]].concat());
    assert!(allocated(disk, &*object, Allocate::ZeroRangeKeepSize, (19_999, 50_000)));
    assert_eq!(object.attributes().unwrap().size, 20_000);
    assert_eq!(read(&*object, 19_998, 9), [5, 0]);
    assert!(allocated(disk, &*object, Allocate::ZeroRange, (19_000, 11_000)));
    assert_eq!(object.attributes().unwrap().size, 30_000);
    assert_eq!(read(&*object, 18_999, 20_000), [&[5][..], &[0; 11_000]].concat());
}

pub fn an_empty_allocation_is_invalid(disk: &dyn Disk) {
    let object = published(disk, 1);
    for what in [Allocate::Extend, Allocate::KeepSize, Allocate::PunchHole] {
        assert_eq!(object.allocate(what, 5, 0), Err(DiskError::Invalid), "{what:?}");
    }
}

pub fn seek_tells_data_from_holes(disk: &dyn Disk) {
    let object = published(disk, 1);
    for target in [Seek::Data, Seek::Hole] {
        assert_eq!(object.seek(target, 0), Err(DiskError::NoSuchOffset));
    }
    let island = 16 << 20;
    object.write_at(island, &[1; 65_536]).unwrap();
    let end = 64 << 20;
    object.set_size(end).unwrap();
    assert_eq!(object.seek(Seek::Hole, 0), Ok(0));
    assert_eq!(object.seek(Seek::Data, 0), Ok(island));
    assert_eq!(object.seek(Seek::Data, island + 7), Ok(island + 7));
    assert_eq!(object.seek(Seek::Hole, island), Ok(island + 65_536));
    assert_eq!(object.seek(Seek::Hole, island + 65_535), Ok(island + 65_536));
    assert_eq!(object.seek(Seek::Data, island + 65_536), Err(DiskError::NoSuchOffset));
    assert_eq!(object.seek(Seek::Hole, end - 1), Ok(end - 1));
    object.write_at(end, b"tail").unwrap();
    assert_eq!(object.seek(Seek::Hole, end), Ok(end + 4), "the end counts as a hole");
    for target in [Seek::Data, Seek::Hole] {
        assert_eq!(object.seek(target, end + 4), Err(DiskError::NoSuchOffset));
        assert_eq!(object.seek(target, end + 5), Err(DiskError::NoSuchOffset));
    }
}

/// Copies as a caller has to: in steps, until nothing comes.
fn copy(to: &dyn Object, from: &dyn Object, offsets: (u64, u64), length: u64) -> u64 {
    let mut copied = 0;
    while copied < length {
        match to.copy_from(from, offsets.0 + copied, offsets.1 + copied, length - copied).unwrap() {
            0 => break,
            bytes => copied += bytes,
        }
    }
    copied
}

pub fn copies_reach_as_far_as_the_source(disk: &dyn Disk) {
    let (source, target) = (published(disk, 1), disk.create(ObjectId(2)).unwrap());
    let data = pattern(3, 3_000_000);
    source.write_at(0, &data).unwrap();
    target.write_at(0, b"head").unwrap();
    assert_eq!(copy(&*target, &*source, (1000, 8192), 2_000_000), 2_000_000);
    assert_eq!(target.attributes().unwrap().size, 2_008_192);
    assert_eq!(read(&*target, 0, 6), b"head\0\0");
    assert_eq!(read(&*target, 8192, 3_000_000), data[1000..2_001_000]);
    assert_eq!(copy(&*target, &*source, (2_999_995, 5), 100), 5);
    assert_eq!(read(&*target, 5, 6), [&data[2_999_995..], b"\0"].concat());
    assert_eq!(target.copy_from(&*source, 3_000_000, 0, 10), Ok(0));
    assert_eq!(target.copy_from(&*source, u64::MAX, 0, 10), Ok(0));
    assert_eq!(target.copy_from(&*source, 0, 0, 0), Ok(0));
    assert_eq!(target.copy_from(&*source, 0, u64::MAX, 9), Err(DiskError::TooLarge));
    // Within one object.
    assert_eq!(copy(&*source, &*source, (0, 5_000_000), 4096), 4096);
    assert_eq!(read(&*source, 5_000_000, 4096), data[..4096]);
}

pub fn sizes_and_times_are_told(disk: &dyn Disk) {
    let object = disk.create(ObjectId(1)).unwrap();
    let born = object.attributes().unwrap().modified;
    assert!(born.seconds > 0);
    object.write_at(0, &[1; 8192]).unwrap();
    object.sync(Sync::All).unwrap();
    let attributes = object.attributes().unwrap();
    assert_eq!(attributes.size, 8192);
    assert!(attributes.allocated_bytes >= 8192);
    assert!(attributes.modified >= born);
    disk.publish(ObjectId(1), &*object).unwrap();
    assert_eq!(disk.attributes(ObjectId(1)), Ok(Some(attributes)));
    read(&*object, 0, 100);
    assert_eq!(object.attributes().unwrap(), attributes, "reading changes nothing");
}

pub fn a_published_object_is_found(disk: &dyn Disk) {
    let object = disk.create(ObjectId(77)).unwrap();
    object.write_at(0, b"before").unwrap();
    disk.publish(ObjectId(77), &*object).unwrap();
    object.write_at(6, b" and after").unwrap();
    drop(object);
    let object = disk.open(ObjectId(77)).unwrap();
    assert_eq!(read(&*object, 0, 99), b"before and after");
    object.write_at(0, b"B").unwrap();
    assert_eq!(disk.attributes(ObjectId(77)).unwrap().unwrap().size, 16);
    assert_eq!(listed(disk), [77]);
}

pub fn a_fresh_object_is_found_nowhere(disk: &dyn Disk) {
    let object = disk.create(ObjectId(5)).unwrap();
    object.write_at(0, b"secret").unwrap();
    object.sync(Sync::All).unwrap();
    assert_eq!(listed(disk), Vec::<u64>::new());
    assert_eq!(disk.attributes(ObjectId(5)), Ok(None));
    assert_eq!(disk.open(ObjectId(5)).err(), Some(DiskError::NotFound(ObjectId(5))));
}

pub fn a_dropped_fresh_object_leaves_nothing(disk: &dyn Disk) {
    let before = disk.capacity().unwrap();
    for id in 0..100 {
        let object = disk.create(ObjectId(id)).unwrap();
        object.write_at(0, &[1; 4096]).unwrap();
    }
    disk.sync().unwrap();
    assert_eq!(listed(disk), Vec::<u64>::new());
    let after = disk.capacity().unwrap();
    // Others may use the file system as well, so only roughly.
    assert!(after.total_bytes == before.total_bytes);
    let object = disk.create(ObjectId(5)).unwrap();
    disk.publish(ObjectId(5), &*object).unwrap();
    assert_eq!(object.attributes().unwrap().size, 0);
}

pub fn an_object_can_be_made_with_its_name(disk: &dyn Disk) {
    let object = disk.create_named(ObjectId(9)).unwrap();
    assert_eq!((object.attributes().unwrap().size, listed(disk)), (0, vec![9]));
    object.write_at(0, b"found by its number").unwrap();
    object.sync(Sync::All).unwrap();
    let again = disk.open(ObjectId(9)).unwrap();
    assert_eq!(read(&*again, 0, 99), b"found by its number");
    drop((object, again));
    disk.remove(ObjectId(9)).unwrap();
    assert!(listed(disk).is_empty());
}

pub fn a_number_is_published_once(disk: &dyn Disk) {
    let object = published(disk, 5);
    object.write_at(0, b"first").unwrap();
    let exists = Err(DiskError::Exists(ObjectId(5)));
    assert_eq!(disk.publish(ObjectId(5), &*object), exists);
    drop(object);
    assert_eq!(read(&*disk.open(ObjectId(5)).unwrap(), 0, 9), b"first");
}

pub fn publishing_replaces_nothing(disk: &dyn Disk) {
    let (one, two) = (disk.create(ObjectId(5)).unwrap(), published(disk, 6));
    disk.publish(ObjectId(5), &*one).unwrap();
    one.write_at(0, b"one").unwrap();
    two.write_at(0, b"two").unwrap();
    let rival = disk.create(ObjectId(5)).unwrap();
    rival.write_at(0, b"rival").unwrap();
    assert_eq!(disk.publish(ObjectId(5), &*rival), Err(DiskError::Exists(ObjectId(5))));
    drop(rival);
    assert_eq!(read(&*disk.open(ObjectId(5)).unwrap(), 0, 9), b"one");
    assert_eq!(listed(disk), [5, 6]);
}

pub fn an_open_handle_outlives_removal(disk: &dyn Disk) {
    let object = published(disk, 5);
    object.write_at(0, b"still").unwrap();
    disk.remove(ObjectId(5)).unwrap();
    assert_eq!(disk.attributes(ObjectId(5)), Ok(None));
    assert_eq!(listed(disk), Vec::<u64>::new());
    object.write_at(5, b" here").unwrap();
    object.sync(Sync::All).unwrap();
    assert_eq!(read(&*object, 0, 99), b"still here");
    assert_eq!(object.attributes().unwrap().size, 10);
}

pub fn removing_an_absent_object_is_allowed(disk: &dyn Disk) {
    disk.remove(ObjectId(5)).unwrap();
    published(disk, 5);
    disk.remove(ObjectId(5)).unwrap();
    disk.remove(ObjectId(5)).unwrap();
    assert_eq!(disk.open(ObjectId(5)).err(), Some(DiskError::NotFound(ObjectId(5))));
}

pub fn an_absent_object_is_told_apart(disk: &dyn Disk) {
    published(disk, 4096);
    for id in [0, 5, 4097, u64::MAX] {
        let id = ObjectId(id);
        assert_eq!(disk.open(id).err(), Some(DiskError::NotFound(id)));
        assert_eq!(disk.attributes(id), Ok(None));
    }
}

pub fn objects_across_folders_are_listed(disk: &dyn Disk) {
    let ids = [0, 1, 4095, 4096, 8191, 1 << 32, (1 << 52) - 1, 1 << 52, u64::MAX];
    for id in ids {
        published(disk, id).write_at(0, &id.to_be_bytes()).unwrap();
    }
    assert_eq!(listed(disk), ids);
    for id in ids {
        let object = disk.open(ObjectId(id)).unwrap();
        assert_eq!(read(&*object, 0, 8), id.to_be_bytes());
    }
    disk.remove(ObjectId(4096)).unwrap();
    disk.remove(ObjectId(u64::MAX)).unwrap();
    assert_eq!(listed(disk), [0, 1, 4095, 8191, 1 << 32, (1 << 52) - 1, 1 << 52]);
}

pub fn a_visitor_can_stop_the_list(disk: &dyn Disk) {
    (0..10).for_each(|i| drop(published(disk, i * 3000)));
    for wanted in 1..=10 {
        let mut seen = 0;
        disk.list(&mut |_| {
            seen += 1;
            seen < wanted
        })
        .unwrap();
        assert_eq!(seen, wanted);
    }
}

pub fn ten_thousand_objects_are_listed(disk: &dyn Disk) {
    let ids: Vec<u64> = (0..10_000).map(|i| i + 1000).collect();
    ids.iter().for_each(|id| drop(published(disk, *id)));
    assert_eq!(listed(disk), ids);
}

pub fn emptied_and_filled_again_the_disk_works(disk: &dyn Disk) {
    for round in 0..3_u64 {
        let ids: Vec<u64> = (0..6000).map(|i| round * 2000 + i * 2).collect();
        ids.iter().for_each(|id| drop(published(disk, *id)));
        ids.iter().for_each(|id| disk.remove(ObjectId(*id)).unwrap());
        assert_eq!(listed(disk), Vec::<u64>::new());
    }
    published(disk, 3);
    assert_eq!(listed(disk), [3]);
}

pub fn syncs_are_accepted(disk: &dyn Disk) {
    let object = disk.create(ObjectId(9)).unwrap();
    object.sync(Sync::All).unwrap();
    object.write_at(0, b"data").unwrap();
    object.sync(Sync::Data).unwrap();
    disk.publish(ObjectId(9), &*object).unwrap();
    object.sync(Sync::All).unwrap();
    disk.remove(ObjectId(9)).unwrap();
    object.sync(Sync::All).unwrap();
    disk.sync().unwrap();
}

pub fn space_is_told(disk: &dyn Disk) {
    let capacity = disk.capacity().unwrap();
    assert!(capacity.total_bytes > 0);
    assert!(capacity.free_bytes <= capacity.total_bytes);
    assert!(capacity.available_bytes <= capacity.free_bytes);
    assert!(capacity.free_objects <= capacity.total_objects);
    assert!(capacity.free_objects > 0);
}

pub fn space_is_kept_aside_and_given_back_in_parts(disk: &dyn Disk) {
    const MIB: u64 = 1 << 20;
    assert_eq!(disk.give_reserve(MIB), 0);
    assert_eq!(disk.keep_reserve(3 * MIB), Ok(3 * MIB));
    assert_eq!(disk.give_reserve(MIB), MIB);
    assert_eq!(disk.keep_reserve(4 * MIB), Ok(4 * MIB));
    assert_eq!(disk.keep_reserve(2 * MIB), Ok(2 * MIB));
    assert_eq!((disk.give_reserve(u64::MAX), disk.give_reserve(1)), (2 * MIB, 0));
    assert!(listed(disk).is_empty());
}

pub fn the_disk_describes_itself(disk: &dyn Disk) {
    let description = disk.describe();
    assert!(!description.location.is_empty());
    assert!(!description.kind.is_empty());
    assert!(description.advice.iter().all(|advice| !advice.is_empty()));
}

pub fn threads_share_a_disk(disk: &dyn Disk) {
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            scope.spawn(move || {
                for i in 0..300 {
                    let id = thread + 4 * i;
                    let object = disk.create(ObjectId(id)).unwrap();
                    object.write_at(0, &id.to_be_bytes()).unwrap();
                    disk.publish(ObjectId(id), &*object).unwrap();
                    let again = disk.open(ObjectId(id)).unwrap();
                    assert_eq!(read(&*again, 0, 9), id.to_be_bytes());
                    if i % 3 == 0 {
                        disk.remove(ObjectId(id)).unwrap();
                    }
                    if i % 100 == 0 {
                        disk.list(&mut |_| true).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(listed(disk).len(), 800);
}

pub fn handles_share_an_object(disk: &dyn Disk) {
    published(disk, 1);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let object = disk.open(ObjectId(1)).unwrap();
            for i in 0..500_u64 {
                object.write_at(i * 100, &pattern(i, 100)).unwrap();
            }
            done.store(true, Ordering::Release);
        });
        let object = disk.open(ObjectId(1)).unwrap();
        let mut size = 0;
        while !done.load(Ordering::Acquire) {
            let now = object.attributes().unwrap().size;
            assert!(now >= size, "the object shrank");
            size = now;
        }
        for i in 0..500 {
            assert_eq!(read(&*object, i * 100, 100), pattern(i, 100));
        }
    });
}
