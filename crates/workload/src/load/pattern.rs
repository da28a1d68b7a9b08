//! Content that is cheap to make, does not compress, and tells where it belongs.
//!
//! Content is noise. Every unit of 4 KiB begins with a seal of 20 bytes, little-endian: its offset in
//! the file (8), the seed of the file (8), and the CRC-32 of the rest of the unit and of those 16 bytes,
//! in this order (4). So a unit that was changed, that lies elsewhere, or that belongs to another file
//! is told, and no two units of a file are equal. A unit that is cut off has the beginning of its seal.

use std::fs::File;
use std::io::Write as _;
use std::ops::{Deref, DerefMut};
use std::path::Path;

use rand::rngs::StdRng;
use rand::{RngCore as _, SeedableRng as _};

use forebay_analytics::error::{Error, Result};
use forebay_analytics::temporary::Content;

/// Every so many bytes begin with a seal. Also the unit of direct I/O.
pub(crate) const UNIT_BYTES: usize = 4096;
/// The least noise: a file of small blocks shall not compress in records of usual sizes either.
const NOISE_BYTES_MIN: usize = 256 << 10;
/// Offset and seed in a seal.
const PLACE_BYTES: usize = 16;
/// A seal.
const SEAL_BYTES: usize = 20;

/// Bytes that begin on a page, as direct I/O wants them.
#[derive(Debug)]
pub(crate) struct PageBuffer {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl PageBuffer {
    /// A buffer of `length` zeros.
    pub fn new(length: usize) -> PageBuffer {
        let bytes = vec![0; length + UNIT_BYTES];
        // The vector never grows, so that its bytes stay where they are.
        let start = bytes.as_ptr().align_offset(UNIT_BYTES);
        PageBuffer { bytes, start, length }
    }
}

impl Deref for PageBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }
}

impl DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

/// Noise that is sealed for the place where it is to be written.
#[derive(Debug)]
pub(crate) struct Pattern {
    noise: PageBuffer,
    seed: u64,
    /// CRC-32 of each unit without its seal.
    sums: Vec<u32>,
}

impl Pattern {
    /// Content in pieces of up to `bytes` bytes; the same seed gives the same noise. Takes the memory of
    /// one piece, and 256 KiB at least.
    pub fn new(bytes: usize, seed: u64) -> Pattern {
        let mut noise = PageBuffer::new(bytes.next_multiple_of(UNIT_BYTES).max(NOISE_BYTES_MIN));
        StdRng::seed_from_u64(seed).fill_bytes(&mut noise);
        let sums =
            noise.chunks(UNIT_BYTES).map(|unit| crc32fast::hash(&unit[SEAL_BYTES..])).collect();
        Pattern { noise, seed, sums }
    }

    /// `length` bytes as they belong at `offset`; at most as many as were announced. They begin on a
    /// page.
    pub fn at(&mut self, offset: u64, length: usize) -> &[u8] {
        let units = self.sums.len();
        let wanted = length.div_ceil(UNIT_BYTES);
        let first = (offset / UNIT_BYTES as u64 % units as u64) as usize;
        let first = first.min(units - wanted);
        let start = first * UNIT_BYTES;
        let piece = &mut self.noise[start..start + length];
        let mut at = offset;
        for (unit, sum) in piece.chunks_mut(UNIT_BYTES).zip(&self.sums[first..]) {
            let seal = seal(at, self.seed, *sum);
            let length = unit.len().min(SEAL_BYTES);
            unit[..length].copy_from_slice(&seal[..length]);
            at += UNIT_BYTES as u64;
        }
        piece
    }

    /// Writes `bytes` bytes from the start of `file`, named `path`, in calls of `call_bytes`.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write_file(
        &mut self,
        file: &mut File,
        path: &Path,
        bytes: u64,
        call_bytes: usize,
    ) -> Result<()> {
        for offset in (0..bytes).step_by(call_bytes) {
            let length = (bytes - offset).min(call_bytes as u64) as usize;
            file.write_all(self.at(offset, length)).map_err(Error::io("write", path))?;
        }
        Ok(())
    }
}

fn seal(offset: u64, seed: u64, sum: u32) -> [u8; SEAL_BYTES] {
    let mut seal = [0; SEAL_BYTES];
    seal[..8].copy_from_slice(&offset.to_le_bytes());
    seal[8..PLACE_BYTES].copy_from_slice(&seed.to_le_bytes());
    let mut hasher = crc32fast::Hasher::new_with_initial(sum);
    hasher.update(&seal[..PLACE_BYTES]);
    seal[PLACE_BYTES..].copy_from_slice(&hasher.finalize().to_le_bytes());
    seal
}

/// Checks whole units that were read at `offset` of `path`, whose content has the seed `seed`.
///
/// # Errors
/// [`Error::WrongContent`] with the offset of the first wrong unit and what is wrong with it.
pub(crate) fn check(path: &Path, seed: u64, offset: u64, bytes: &[u8]) -> Result<()> {
    for (unit, at) in bytes.chunks_exact(UNIT_BYTES).zip((offset..).step_by(UNIT_BYTES)) {
        let (seal, rest) = unit.split_at(SEAL_BYTES);
        let sum = crc32fast::hash(rest);
        if *seal != self::seal(at, seed, sum) {
            let reason = format!("offset {at}: {}", difference(seal, at, seed, sum));
            return Err(Error::WrongContent { path: path.to_owned(), reason });
        }
    }
    Ok(())
}

/// Says how a wrong unit is wrong.
fn difference(seal: &[u8], offset: u64, seed: u64, sum: u32) -> String {
    let number = |part: &[u8]| part.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let (there, seed_there) = (number(&seal[..8]), number(&seal[8..PLACE_BYTES]));
    if *seal != self::seal(there, seed_there, sum) {
        "the checksum does not match".to_owned()
    } else if there != offset {
        format!("holds what belongs at offset {there}")
    } else {
        format!("was written with the seed {seed_there}, not {seed}")
    }
}

/// Bits of a place that are left to the offset in a file.
const OFFSET_BITS: u32 = 40;

/// Noise that tells which file and place it belongs to; the block must be as long as a page.
impl Content for Pattern {
    fn begin(&mut self, _number: u64) -> Result<()> {
        Ok(())
    }

    fn fill(&mut self, number: u64, offset: u64, page: &mut [u8]) {
        let place = (number << OFFSET_BITS).wrapping_add(offset);
        page.copy_from_slice(self.at(place, page.len()));
    }

    fn take(&mut self, _number: u64, _offset: u64, _page: &[u8]) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_depends_on_its_place_and_on_nothing_before() {
        let mut pattern = Pattern::new(10_000, 1);
        let first = pattern.at(0, 10_000).to_vec();
        assert_ne!(pattern.at(4096, 10_000), first);
        assert_eq!(pattern.at(0, 10_000), first);
        assert_eq!(pattern.at(0, 5), &first[..5]);
        assert_eq!(first[4096..4104], 4096_u64.to_le_bytes());
        let whole = Pattern::new(10_000, 1).at(0, 8192).to_vec();
        pattern.at(3 << 18, 4100);
        assert_eq!(pattern.at(0, 8192), whole, "a cut unit leaves no trace");
    }

    #[test]
    fn pieces_begin_on_pages_wherever_they_belong() {
        let mut pattern = Pattern::new(1 << 20, 3);
        for (offset, length) in [(0, 1 << 20), (4096, 4096), (1 << 40, 1 << 20), (77 << 12, 8192)] {
            let piece = pattern.at(offset, length);
            assert_eq!((piece.len(), piece.as_ptr().align_offset(UNIT_BYTES)), (length, 0));
            check(Path::new("f"), 3, offset, piece).unwrap();
        }
    }

    #[test]
    fn small_blocks_do_not_compress_together() {
        use flate2::{Compression, write::ZlibEncoder};
        let mut pattern = Pattern::new(4096, 5);
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        for offset in (0..128 << 10).step_by(4096) {
            encoder.write_all(pattern.at(offset, 4096)).unwrap();
        }
        assert!(encoder.finish().unwrap().len() > 127 << 10);
    }

    #[test]
    fn a_wrong_unit_is_named_with_its_fault() {
        let mut pattern = Pattern::new(16_384, 9);
        let good = pattern.at(8192, 16_384).to_vec();
        let reason = |bytes: &[u8], seed| match check(Path::new("f"), seed, 8192, bytes) {
            Err(Error::WrongContent { reason, .. }) => reason,
            other => panic!("{other:?}"),
        };
        // Every byte of a unit is covered: seal, first and last byte of the rest.
        for at in [4096, 4105, 4112, 4116, 8191] {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert_eq!(reason(&bad, 9), "offset 12288: the checksum does not match", "{at}");
        }
        let mut swapped = good.clone();
        swapped[4096..12_288].rotate_left(4096);
        assert_eq!(reason(&swapped, 9), "offset 12288: holds what belongs at offset 16384");
        assert_eq!(reason(&good, 7), "offset 8192: was written with the seed 9, not 7");
        check(Path::new("f"), 9, 8192, &good).unwrap();
    }
}
