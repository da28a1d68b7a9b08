//! Which runs of rows an extract reads: an iterator in constant memory, however many there are.

use std::hash::Hasher as _;

use rand::{Rng as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;
use siphasher::sip::SipHasher13;

use super::BlockOrder;

/// Neighbouring rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// The first, counted from 0.
    pub first: u64,
    /// How many.
    pub count: u64,
}

/// The runs of an extract.
pub(super) struct Blocks {
    /// Rows of the data set.
    rows: u64,
    /// Rows of a run.
    run_rows: u64,
    picks: Picks,
}

enum Picks {
    /// Runs at equal distances.
    Steps { next: u64, period: u64 },
    /// So many random blocks front to back, by selection sampling (Knuth, "The Art of Computer
    /// Programming", volume 2, 3.4.2, algorithm S).
    Ascending { random: Xoshiro256PlusPlus, block: u64, blocks: u64, wanted: u64 },
    /// The first blocks of a random order of all.
    Shuffled { shuffle: Shuffle, next: u64, wanted: u64 },
}

impl Blocks {
    /// `count` rows from `first` on.
    pub fn range(first: u64, count: u64, rows: u64) -> Blocks {
        let picks = Picks::Steps { next: first, period: u64::MAX };
        let end = first.saturating_add(count).min(rows);
        Blocks { rows: end, run_rows: count, picks }
    }

    /// Runs of `run_rows` rows that make up `part` of all; extract `number` starts where one with a
    /// smaller number skips.
    pub fn skip_sequential(part: f64, run_rows: u64, number: u64, rows: u64) -> Blocks {
        let period = ((run_rows as f64 / part).round() as u64).max(run_rows);
        // More runs than a period has places start over: these extracts read the same rows.
        let next = number % (period / run_rows) * run_rows;
        Blocks { rows, run_rows, picks: Picks::Steps { next, period } }
    }

    /// `part` of all blocks of `block_rows` rows.
    pub fn random(part: f64, block_rows: u64, order: BlockOrder, seed: u64, rows: u64) -> Blocks {
        let blocks = rows.div_ceil(block_rows);
        let wanted = ((blocks as f64 * part).round() as u64).clamp(1.min(blocks), blocks);
        let picks = match order {
            BlockOrder::Ascending => {
                let random = Xoshiro256PlusPlus::seed_from_u64(seed);
                Picks::Ascending { random, block: 0, blocks, wanted }
            }
            BlockOrder::Random => {
                Picks::Shuffled { shuffle: Shuffle::new(blocks, seed), next: 0, wanted }
            }
        };
        Blocks { rows, run_rows: block_rows, picks }
    }
}

impl Iterator for Blocks {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        let first = match &mut self.picks {
            Picks::Steps { next, period } => {
                let first = *next;
                *next = next.saturating_add(*period);
                first
            }
            Picks::Ascending { random, block, blocks, wanted } => {
                while *wanted > 0 && random.random_range(0..*blocks - *block) >= *wanted {
                    *block += 1;
                }
                if *wanted == 0 {
                    return None;
                }
                (*wanted, *block) = (*wanted - 1, *block + 1);
                (*block - 1) * self.run_rows
            }
            Picks::Shuffled { next, wanted, .. } if next == wanted => return None,
            Picks::Shuffled { shuffle, next, .. } => {
                *next += 1;
                shuffle.at(*next - 1) * self.run_rows
            }
        };
        let count = self.run_rows.min(self.rows.saturating_sub(first));
        (count > 0).then_some(Run { first, count })
    }
}

/// A random order of the numbers below `length`: a Feistel network of four rounds over the next power
/// of four, walked until it falls below `length` (J. Black, P. Rogaway, "Ciphers with Arbitrary Finite
/// Domains", CT-RSA 2002).
struct Shuffle {
    length: u64,
    half_bits: u32,
    seed: u64,
}

impl Shuffle {
    fn new(length: u64, seed: u64) -> Shuffle {
        let bits = u64::BITS - length.saturating_sub(1).leading_zeros();
        Shuffle { length, half_bits: bits.div_ceil(2).max(1), seed }
    }

    /// The number at `place`, which is below `length`.
    fn at(&self, place: u64) -> u64 {
        let mut number = self.mix(place);
        while number >= self.length {
            number = self.mix(number);
        }
        number
    }

    fn mix(&self, number: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (number >> self.half_bits, number & mask);
        for round in 0..4 {
            let mut hasher = SipHasher13::new_with_keys(self.seed, round);
            hasher.write_u64(right);
            (left, right) = (right, left ^ (hasher.finish() & mask));
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(blocks: Blocks) -> Vec<u64> {
        blocks.flat_map(|run| run.first..run.first + run.count).collect()
    }

    #[test]
    fn skipping_extracts_share_no_row_and_miss_none() {
        let mut all: Vec<u64> = (0..4)
            .flat_map(|number| rows(Blocks::skip_sequential(0.25, 10, number, 995)))
            .collect();
        all.sort_unstable();
        assert_eq!(all, (0..995).collect::<Vec<_>>());
        let first = rows(Blocks::skip_sequential(0.25, 10, 4, 995));
        assert_eq!(first, rows(Blocks::skip_sequential(0.25, 10, 0, 995)));
        assert_eq!(rows(Blocks::skip_sequential(1.0, 7, 3, 20)), (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn random_blocks_are_distinct_and_as_many_as_asked() {
        for (seed, length) in [(1, 1), (2, 2), (3, 3), (4, 1000), (5, 1025)] {
            let shuffle = Shuffle::new(length, seed);
            let mut all: Vec<u64> = (0..length).map(|place| shuffle.at(place)).collect();
            assert!(length < 100 || !all.is_sorted(), "seed {seed}");
            all.sort_unstable();
            assert_eq!(all, (0..length).collect::<Vec<_>>(), "seed {seed}");
        }
        for order in [BlockOrder::Random, BlockOrder::Ascending] {
            let picked = rows(Blocks::random(0.1, 1, order, 7, 5000));
            let mut distinct = picked.clone();
            distinct.sort_unstable();
            assert_eq!(order == BlockOrder::Ascending, distinct == picked);
            distinct.dedup();
            assert_eq!((distinct.len(), *distinct.last().unwrap() < 5000), (500, true));
            assert_eq!(rows(Blocks::random(1.0, 64, order, 7, 5000)).len(), 5000);
            assert_eq!(rows(Blocks::random(0.5, 1, order, 7, 0)), [0_u64; 0]);
        }
    }

    #[test]
    fn random_rows_come_from_everywhere() {
        for order in [BlockOrder::Random, BlockOrder::Ascending] {
            let mut tenths = [0_u32; 10];
            for seed in 0..20 {
                for row in rows(Blocks::random(0.1, 1, order, seed, 1000)) {
                    tenths[(row / 100) as usize] += 1;
                }
            }
            // 200 each are expected, with a standard deviation of 13.
            assert!(tenths.iter().all(|&count| (140..260).contains(&count)), "{tenths:?}");
        }
    }
}
