//! Content that is cheap to make and tells where it belongs.

use rand::rngs::StdRng;
use rand::{RngCore as _, SeedableRng as _};

/// Every so many bytes begin with their offset in the file.
const STAMP_EVERY: usize = 4096;

/// A block of noise, which does not compress, stamped with its place in the file.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    block: Vec<u8>,
}

impl Pattern {
    /// A block of `bytes` bytes; the same seed gives the same noise.
    pub fn new(bytes: usize, seed: u64) -> Pattern {
        let mut block = vec![0; bytes];
        StdRng::seed_from_u64(seed).fill_bytes(&mut block);
        Pattern { block }
    }

    /// The first `length` bytes of the block as they belong at `offset`.
    pub fn at(&mut self, offset: u64, length: usize) -> &[u8] {
        let block = &mut self.block[..length];
        for (unit, at) in block.chunks_mut(STAMP_EVERY).zip((offset..).step_by(STAMP_EVERY)) {
            let stamp = at.to_le_bytes();
            let length = unit.len().min(stamp.len());
            unit[..length].copy_from_slice(&stamp[..length]);
        }
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_depends_on_its_place() {
        let mut pattern = Pattern::new(10_000, 1);
        let first = pattern.at(0, 10_000).to_vec();
        assert_ne!(pattern.at(4096, 10_000), first);
        assert_eq!(pattern.at(0, 10_000), first);
        assert_eq!(pattern.at(0, 5), &first[..5]);
        assert_eq!(first[4096..4104], 4096_u64.to_le_bytes());
    }
}
