//! Bytes that prove where they come from.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Makes a file of these bytes, which are durable then.
///
/// # Panics
/// If that fails.
#[track_caller]
pub fn write_synced(path: &Path, bytes: &[u8]) {
    let mut file = File::create(path).expect("creates");
    file.write_all(bytes).expect("writes");
    file.sync_all().expect("syncs");
}

/// `length` bytes that differ from those of another `seed`, and at every place from those of another
/// place: a block that lands in the wrong file or at the wrong offset is seen.
#[must_use]
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    for (index, word) in bytes.chunks_mut(8).enumerate() {
        let value = mix(seed ^ mix(index as u64)).to_le_bytes();
        word.copy_from_slice(&value[..word.len()]);
    }
    bytes
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Reads `length` bytes at `offset`.
///
/// # Panics
/// If the file does not hold them.
#[track_caller]
#[must_use]
pub fn read_at(file: &File, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, offset)
        .unwrap_or_else(|error| panic!("cannot read {length} bytes at {offset}: {error}"));
    bytes
}

/// Checks that two runs of bytes are equal; names the first difference, not all the bytes.
///
/// # Panics
/// If they differ.
#[track_caller]
pub fn assert_same(actual: &[u8], expected: &[u8], what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}: another length");
    if let Some(at) = actual.iter().zip(expected).position(|(a, b)| a != b) {
        let end = (at + 16).min(actual.len());
        panic!(
            "{what}: bytes differ from offset {at}: {:02x?} instead of {:02x?}",
            &actual[at..end],
            &expected[at..end]
        );
    }
}
