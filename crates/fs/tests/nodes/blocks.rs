//! Larger files whose bytes lie on another node: they are read in blocks, which are kept and fetched ahead, and nothing old is read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_base::Ino;
use forebay_base::seed::Dice;
use forebay_fs::{Namespace, SetAttributes};

use crate::site::{Site, write};
use crate::support::{READ, READ_WRITE, ROOT, Shorthand as _};
use crate::{ONE, THREE, TWO};

const MIB: usize = 1 << 20;

/// Content that differs from place to place.
fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 5 % 253) as u8).collect()
}

/// Reads an open file from one end to the other, `step` bytes at a time.
fn read_through(fs: &Namespace, ino: Ino, step: usize) -> Vec<u8> {
    let (mut found, mut buffer) = (Vec::new(), vec![0; step]);
    loop {
        let read = fs.read(ino, found.len() as u64, &mut buffer).unwrap();
        if read == 0 {
            return found;
        }
        found.extend_from_slice(&buffer[..read]);
    }
}

/// Reads a file that is opened for it.
fn read_all(fs: &Namespace, ino: Ino, step: usize) -> Vec<u8> {
    fs.open_file(ino, READ, ROOT).unwrap();
    let found = read_through(fs, ino, step);
    fs.close_file(ino, READ).unwrap();
    found
}

#[test]
fn a_large_file_of_another_node_takes_few_calls_and_none_when_it_is_read_again() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let data = one.fileset("data");
    let bytes = content(5 * MIB + 77);
    let ino = one.make_file(data, "file");
    write(&one, ino, 0, &bytes);
    let calls = || site.nodes.calls.load(Ordering::Relaxed);
    two.lookup(Ino::ROOT, b"data").unwrap();
    two.lookup(data, b"file").unwrap();
    let before = calls();
    assert!(read_all(&two, ino, 4096) == bytes);
    let first = calls() - before;
    // At most one for each of 81 blocks, if the machine is too busy to fetch ahead, and some to open it.
    assert!((5..100).contains(&first), "{first} calls for {} reads", bytes.len() / 4096);
    let before = calls();
    assert!(read_all(&two, ino, 4096) == bytes);
    let again = calls() - before;
    assert!(again <= 2, "{again} calls for what was read before");
    // A look at one place fetches what is there.
    let other = one.make_file(data, "other");
    write(&one, other, 0, &bytes);
    two.lookup(data, b"other").unwrap();
    two.open_file(other, READ, ROOT).unwrap();
    let payload = || site.nodes.payload.load(Ordering::Relaxed);
    let before = payload();
    assert_eq!(two.read(other, 3 << 20, &mut [0; 10]).unwrap(), 10);
    assert_eq!(payload() - before, 64 << 10);
    two.close_file(other, READ).unwrap();
}

#[test]
fn what_any_node_writes_into_a_large_file_is_read_by_all_in_the_next_instant() {
    let site = Site::new();
    let all = [site.join(ONE), site.join(TWO), site.join(THREE)];
    let data = all[0].fileset("data");
    let mut dice = Dice::of(20_261_128);
    // On the disk of the owner, and on that of another node.
    for maker in [0, 1] {
        let mut bytes = content(MIB);
        let ino = all[maker].make_file(data, &format!("file-{maker}"));
        write(&all[maker], ino, 0, &bytes);
        // One reader has it open all the time.
        all[2].lookup(data, format!("file-{maker}").as_bytes()).unwrap();
        all[2].open_file(ino, READ, ROOT).unwrap();
        for round in 0..60_u8 {
            let by = &all[dice.index(3)];
            let length = 1 + dice.index(100_000);
            let offset = dice.index(bytes.len() + 1000);
            match dice.below(4) {
                0 => {
                    let size = Some(offset as u64);
                    by.set_attributes(ino, SetAttributes { size, ..SetAttributes::default() })
                        .unwrap();
                    bytes.resize(offset, 0);
                }
                _ => {
                    by.open_file(ino, READ_WRITE, ROOT).unwrap();
                    let written = vec![round; length];
                    assert_eq!(by.write(ino, offset as u64, &written).unwrap(), length);
                    bytes.resize(bytes.len().max(offset + length), 0);
                    bytes[offset..offset + length].copy_from_slice(&written);
                    for fs in &all {
                        assert!(
                            read_all(fs, ino, 300_000) == bytes,
                            "while it is open, round {round}"
                        );
                    }
                    by.close_file(ino, READ_WRITE).unwrap();
                }
            }
            for fs in &all {
                fs.lookup(data, format!("file-{maker}").as_bytes()).unwrap();
                assert!(read_all(fs, ino, 70_001) == bytes, "round {round}");
            }
            assert!(read_through(&all[2], ino, 4096) == bytes, "by an old handle, round {round}");
        }
        all[2].close_file(ino, READ).unwrap();
    }
}

#[test]
fn readers_of_a_large_file_that_is_written_all_the_time_see_nothing_go_back() {
    const BYTES: usize = 400_000;
    let site = Site::new();
    let all = [site.join(ONE), site.join(TWO), site.join(THREE)];
    let data = all[0].fileset("data");
    let ino = all[0].make_file(data, "file");
    write(&all[0], ino, 0, &[0; BYTES]);
    for fs in &all {
        fs.lookup(data, b"file").unwrap();
        fs.open_file(ino, READ, ROOT).unwrap();
    }
    let (written, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    // What was written of a place before a read began is the least that it may find there.
    let reader = |fs: &Arc<Namespace>| {
        let mut count = 0_u64;
        while !is_over.load(Ordering::Relaxed) {
            let offset = (count * 40_961) % (BYTES as u64 - 8);
            let least = written.load(Ordering::SeqCst);
            let mut found = [0; 8];
            assert_eq!(fs.read(ino, offset / 8 * 8, &mut found).unwrap(), 8);
            let found = u64::from_le_bytes(found);
            assert!(found >= least, "{found} after {least}");
            count += 1;
        }
        count
    };
    std::thread::scope(|scope| {
        let readers = [&all[1], &all[2], &all[1]].map(|fs| scope.spawn(move || reader(fs)));
        for round in 1..=30_u64 {
            let by = &all[round as usize % 3];
            write(by, ino, 0, &round.to_le_bytes().repeat(BYTES / 8));
            written.store(round, Ordering::SeqCst);
            // The grants come back, and blocks with them.
            for fs in &all {
                fs.attributes(ino).unwrap();
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        is_over.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.join().unwrap() > 10);
        }
    });
}
