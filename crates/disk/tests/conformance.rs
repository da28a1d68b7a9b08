//! One suite that every disk passes (`rules`), and what only some promise (`directory`, `memory`).
//!
//! A rule is a function over an empty disk; the macro at the end runs every rule on every disk. The
//! directory disks lie in the system's directory for temporary files: set `TMPDIR` to try the suite
//! on another file system.

use std::path::Path;
use std::sync::Arc;

use forebay_base::ObjectId;
use forebay_base::time::StepClock;
use forebay_disk::directory::{DirectoryDisk, Label};
use forebay_disk::faulty::FaultyDisk;
use forebay_disk::memory::MemoryDisk;
use forebay_disk::striped::{Part, StripedDisk, place};
use forebay_disk::{Disk, Object};

#[path = "conformance/directory.rs"]
mod directory_only;
#[path = "conformance/memory.rs"]
mod memory_only;
#[path = "conformance/remote.rs"]
mod remote_only;
#[path = "conformance/rules.rs"]
mod rules;
#[path = "conformance/striped.rs"]
mod striped_only;

const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

fn label() -> Label {
    Label { file_system: "6f1c0a52-0a8e-4b52-9c4b-3c2b6f0f7a11".to_owned(), disk: "d1".to_owned() }
}

fn memory_disk(capacity_bytes: u64) -> MemoryDisk {
    MemoryDisk::new(capacity_bytes, Arc::new(StepClock::new(1_000_000)))
}

/// A disk over `width` others in memory, with units of one page.
fn striped_disk(width: usize) -> StripedDisk {
    striped_over(&(0..width).map(|_| memory_disk(GIB)).collect::<Vec<_>>(), 4096)
}

fn striped_over(disks: &[MemoryDisk], unit_bytes: u64) -> StripedDisk {
    let part = |(place, disk): (usize, &MemoryDisk)| Part {
        name: format!("disk {place}"),
        disk: Arc::new(disk.clone()),
    };
    StripedDisk::over(disks.iter().enumerate().map(part).collect(), unit_bytes).unwrap()
}

/// A fresh object that is published at once.
fn published(disk: &dyn Disk, id: u64) -> Arc<dyn Object> {
    let object = disk.create(ObjectId(id)).unwrap();
    disk.publish(ObjectId(id), &*object).unwrap();
    object
}

fn read(object: &dyn Object, offset: u64, length: usize) -> Vec<u8> {
    let mut buffer = vec![0xee; length];
    let read = object.read_at(offset, &mut buffer).unwrap();
    buffer.truncate(read);
    buffer
}

fn listed(disk: &dyn Disk) -> Vec<u64> {
    let mut ids = Vec::new();
    disk.list(&mut |id| {
        ids.push(id.0);
        true
    })
    .unwrap();
    ids.sort_unstable();
    ids
}

macro_rules! disks {
    ($($disk:ident => $make:expr;)*) => {$(
        mod $disk {
            use super::*;

            disks!(@rules $make;
                a_fresh_object_is_empty
                what_is_written_reads_back
                a_read_is_short_only_at_the_end
                holes_read_as_zeros
                an_object_of_five_tebibytes_is_sparse
                offsets_beyond_any_disk_are_refused
                cutting_and_growing_again_shows_zeros
                extend_grows_the_object
                keep_size_keeps_it
                a_punched_hole_reads_as_zeros
                a_zeroed_range_reads_as_zeros
                an_empty_allocation_is_invalid
                seek_tells_data_from_holes
                copies_reach_as_far_as_the_source
                sizes_and_times_are_told
                a_published_object_is_found
                a_fresh_object_is_found_nowhere
                a_dropped_fresh_object_leaves_nothing
                an_object_can_be_made_with_its_name
                a_number_is_published_once
                publishing_replaces_nothing
                an_open_handle_outlives_removal
                removing_an_absent_object_is_allowed
                an_absent_object_is_told_apart
                objects_across_folders_are_listed
                a_visitor_can_stop_the_list
                ten_thousand_objects_are_listed
                emptied_and_filled_again_the_disk_works
                syncs_are_accepted
                space_is_told
                space_is_kept_aside_and_given_back_in_parts
                the_disk_describes_itself
                threads_share_a_disk
                handles_share_an_object
            );
        }
    )*};
    (@rules $make:expr; $($rule:ident)*) => {$(
        #[test]
        fn $rule() {
            let folder = tempfile::tempdir().unwrap();
            let make: fn(&Path) -> Box<dyn Disk> = $make;
            rules::$rule(&*make(folder.path()));
        }
    )*};
}

disks! {
    remote => |_| Box::new(remote_only::Home::new(memory_disk(GIB)).disk());
    memory => |_| Box::new(memory_disk(GIB));
    directory => |path| {
        DirectoryDisk::format(path, &label()).unwrap();
        Box::new(DirectoryDisk::open(path, &label()).unwrap())
    };
    directory_with_named_fresh_objects => |path| {
        DirectoryDisk::format(path, &label()).unwrap();
        Box::new(DirectoryDisk::open_with_named_fresh_objects(path, &label()).unwrap())
    };
    striped_over_two => |_| Box::new(striped_disk(2));
    striped_over_three => |_| Box::new(striped_disk(3));
    faulty_striped_without_faults => |_| Box::new(FaultyDisk::new(Arc::new(striped_disk(3))));
    striped_over_directories => |path| {
        let members = striped_only::members_in(path, 2);
        place::format(&members, &label()).unwrap();
        Box::new(place::open(&members, 64 << 10, &label()).unwrap())
    };
    faulty_memory_without_faults => |_| Box::new(FaultyDisk::new(Arc::new(memory_disk(GIB))));
    faulty_directory_without_faults => |path| {
        DirectoryDisk::format(path, &label()).unwrap();
        Box::new(FaultyDisk::new(Arc::new(DirectoryDisk::open(path, &label()).unwrap())))
    };
}
