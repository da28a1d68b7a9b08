//! Checksums of files at rest.

use xxhash_rust::xxh3::Xxh3;

/// Bytes that are looked at together.
const BLOCK: usize = 4096;

/// The checksum of a file: XXH3 of its size and of its blocks of 4 KiB that are not all zeros, each after its number; the last
/// one is filled up with zeros. So a hole and the zeros that it stands for have the same checksum.
pub struct Checksum {
    hasher: Xxh3,
    block: Vec<u8>,
    number: u64,
}

impl Default for Checksum {
    fn default() -> Checksum {
        Checksum { hasher: Xxh3::new(), block: vec![0; BLOCK], number: 0 }
    }
}

impl Checksum {
    /// Adds bytes that lie beyond those that were added before.
    pub fn add(&mut self, at: u64, bytes: &[u8]) {
        let (mut at, mut bytes) = (at, bytes);
        while !bytes.is_empty() {
            let within = usize::try_from(at % BLOCK as u64).unwrap_or(0);
            self.turn_to(at / BLOCK as u64);
            let (now, rest) = bytes.split_at(bytes.len().min(BLOCK - within));
            if now.len() == BLOCK {
                hash(&mut self.hasher, self.number, now);
            } else {
                self.block[within..within + now.len()].copy_from_slice(now);
            }
            at += now.len() as u64;
            bytes = rest;
        }
    }

    /// The checksum of a file of `size` bytes.
    #[must_use]
    pub fn finish(mut self, size: u64) -> u64 {
        self.turn_to(u64::MAX);
        self.hasher.update(&size.to_le_bytes());
        self.hasher.digest()
    }

    fn turn_to(&mut self, number: u64) {
        if number != self.number {
            hash(&mut self.hasher, self.number, &self.block);
            self.block.fill(0);
            self.number = number;
        }
    }
}

fn hash(hasher: &mut Xxh3, number: u64, block: &[u8]) {
    if block.iter().any(|byte| *byte != 0) {
        hasher.update(&number.to_le_bytes());
        hasher.update(block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pieces: &[(u64, &[u8])], size: u64) -> u64 {
        let mut checksum = Checksum::default();
        pieces.iter().for_each(|(at, bytes)| checksum.add(*at, bytes));
        checksum.finish(size)
    }

    #[test]
    fn a_checksum_depends_on_bytes_places_and_size_and_not_on_pieces_or_holes() {
        let bytes: Vec<u8> = (0..20_000_u32).map(|at| (at * 7 % 251) as u8).collect();
        let whole = of(&[(0, &bytes)], 20_000);
        assert_eq!(whole, of(&[(0, &bytes[..5000]), (5000, &bytes[5000..])], 20_000));
        assert_eq!(whole, of(&[(0, &bytes[..4096]), (4096, &bytes[4096..])], 20_000));
        assert_ne!(whole, of(&[(0, &bytes)], 20_001));
        assert_ne!(whole, of(&[(1, &bytes)], 20_000));
        let mut other = bytes.clone();
        other[12_345] ^= 1;
        assert_ne!(whole, of(&[(0, &other)], 20_000));
        let mut padded = vec![0; 8192];
        padded.extend(&bytes);
        padded.extend([0; 9000]);
        let size = padded.len() as u64;
        assert_eq!(of(&[(0, &padded)], size), of(&[(8192, &bytes)], size));
        assert_eq!(of(&[], 5), of(&[(0, &[0; 5])], 5));
    }
}
