//! One file that two nodes read, write, truncate and map under a lock, compared with memory after each call.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Mutex;

use forebay_e2e::{Cluster, seed, setting};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Largest size of the file.
const BYTES_MAX: usize = 256 << 10;
/// Largest piece of a call.
const PIECE_MAX: usize = 40_000;

fn open(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).open(path).expect("opens")
}

/// Makes one call, on the file and in memory, or compares a part of both.
fn exercise(file: &File, path: &Path, model: &mut Vec<u8>, random: &mut StdRng) {
    let offset = random.random_range(0..BYTES_MAX - PIECE_MAX);
    let length = random.random_range(1..=PIECE_MAX);
    let end = offset + length;
    match random.random_range(0..10) {
        0..4 => {
            let mut piece = vec![0; length];
            random.fill(&mut piece[..]);
            file.write_all_at(&piece, offset as u64).expect("writes");
            if model.len() < end {
                model.resize(end, 0);
            }
            model[offset..end].copy_from_slice(&piece);
        }
        4 => {
            file.set_len(offset as u64).expect("truncates");
            model.resize(offset, 0);
        }
        5 => {
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(file, how, offset as u64, length as u64).expect("punches a hole");
            let end = end.min(model.len());
            model[offset.min(end)..end].fill(0);
        }
        6 => file.sync_all().expect("syncs"),
        7 if !model.is_empty() => {
            // A mapping may be old that was made before another node wrote: this one is new.
            let (fresh, length) = (open(path), model.len());
            let (protection, flags) = (ProtFlags::READ, MapFlags::SHARED);
            // SAFETY: the mapping is read below within its length, and nobody truncates the file under the lock.
            let found = unsafe {
                let start = mmap(std::ptr::null_mut(), length, protection, flags, &fresh, 0);
                let start = start.expect("maps");
                let bytes = std::slice::from_raw_parts(start.cast::<u8>(), length).to_vec();
                munmap(start, length).expect("unmaps");
                bytes
            };
            assert!(found == *model, "a mapping shows other bytes");
        }
        _ => {
            let mut piece = vec![0; length];
            let count = file.read_at(&mut piece, offset as u64).expect("reads");
            let there = model.len().saturating_sub(offset).min(length);
            assert_eq!(count, there, "a read at {offset} of a file of {} bytes", model.len());
            let expected = model.get(offset..offset + there).unwrap_or_default();
            assert!(piece[..there] == *expected, "a read shows other bytes");
        }
    }
    assert_eq!(file.metadata().expect("stats").len(), model.len() as u64, "the size");
}

#[test]
fn two_nodes_exercise_one_file_under_a_lock_and_find_every_byte() {
    let cluster = Cluster::start(2);
    let calls = setting("FOREBAY_E2E_FSX_OPERATIONS", 100_000) / 100;
    let seed = seed("cluster");
    let model = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for node in 0..2 {
            let path = cluster.mountpoint(node).join("data/exercised");
            let (model, mut random) =
                (&model, StdRng::seed_from_u64(seed.wrapping_add(node as u64)));
            scope.spawn(move || {
                let file = open(&path);
                for _ in 0..calls {
                    flock(&file, FlockOperation::LockExclusive).expect("locks");
                    {
                        let model = model.try_lock();
                        let mut model = model.expect("only one node at a time has the lock");
                        exercise(&file, &path, &mut model, &mut random);
                    }
                    flock(&file, FlockOperation::Unlock).expect("unlocks");
                }
            });
        }
    });
}
