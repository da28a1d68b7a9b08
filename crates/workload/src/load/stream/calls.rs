//! Which call comes next: pure, so that the measured loop only calls.

use rand::Rng as _;
use rand::rngs::StdRng;

use super::{Access, BLOCK_BYTES_MIN, Stream};

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
}

/// One call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub direction: Direction,
    pub offset: u64,
    pub length: usize,
}

/// Places of the calls in the file.
#[derive(Debug)]
enum Order {
    /// Both directions from where they are to the end and from the start again.
    Sequential {
        read_at: u64,
        write_at: u64,
    },
    Random(Box<StdRng>),
}

/// The calls of a stream, in order. Every call lies within the file.
#[derive(Debug)]
pub(super) struct Calls {
    file_bytes: u64,
    /// The sizes that calls may have.
    sizes: Vec<u64>,
    order: Order,
    read_percent: u64,
    /// Hundredths of a read that the calls so far leave over.
    reads_due: u64,
    /// Bytes that are still to be moved.
    left: u64,
}

impl Calls {
    /// The calls of `stream` on a file of `file_bytes`; without end if it ends by time only.
    pub fn new(stream: &Stream, file_bytes: u64, random: StdRng) -> Calls {
        let read_percent = match stream.pattern {
            Access::Read | Access::RandomRead => 100,
            Access::Write | Access::RandomWrite => 0,
            Access::Mixed | Access::RandomMixed => stream.read_percent,
        };
        let first = stream.block_bytes.0;
        let order = if stream.pattern.is_random() {
            Order::Random(Box::new(random))
        } else {
            let middle = file_bytes / 2 / first * first;
            let write_at = if stream.pattern == Access::Mixed { middle } else { 0 };
            Order::Sequential { read_at: 0, write_at }
        };
        let most = stream.block_bytes_most();
        let sizes = std::iter::successors(Some(first), |size| Some(size * 2))
            .take_while(|size| *size < most)
            .chain([most]);
        let passes = match (stream.passes, stream.duration_seconds) {
            (Some(passes), _) => Some(passes),
            (None, Some(_)) => None,
            (None, None) => Some(1),
        };
        Calls {
            file_bytes,
            sizes: sizes.map(|size| size.min(file_bytes)).collect(),
            order,
            read_percent,
            reads_due: 0,
            left: passes.map_or(u64::MAX, |passes| file_bytes.saturating_mul(passes)),
        }
    }

    /// Reads are spread evenly: after any number of calls the share is off by less than a call.
    fn direction(&mut self) -> Direction {
        self.reads_due += self.read_percent;
        if self.reads_due >= 100 {
            self.reads_due -= 100;
            Direction::Read
        } else {
            Direction::Write
        }
    }
}

impl Iterator for Calls {
    type Item = Call;

    fn next(&mut self) -> Option<Call> {
        if self.left == 0 {
            return None;
        }
        let direction = self.direction();
        let (offset, length) = match &mut self.order {
            Order::Sequential { read_at, write_at } => {
                let at = match direction {
                    Direction::Read => read_at,
                    Direction::Write => write_at,
                };
                let offset = *at;
                let length = self.sizes[0].min(self.file_bytes - offset).min(self.left);
                *at = if offset + length == self.file_bytes { 0 } else { offset + length };
                (offset, length)
            }
            Order::Random(random) => {
                // One size lies on its multiples; of several each lies anywhere on a unit.
                let (size, grain) = match self.sizes[..] {
                    [size] => (size, size),
                    _ => (self.sizes[random.random_range(0..self.sizes.len())], BLOCK_BYTES_MIN),
                };
                let place = random.random_range(0..=(self.file_bytes - size) / grain);
                (place * grain, size.min(self.left))
            }
        };
        self.left -= length;
        Some(Call { direction, offset, length: length as usize })
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use forebay_base::ByteSize;
    use rand::SeedableRng as _;

    use super::*;

    fn stream(pattern: Access, block_kib: u64) -> Stream {
        let file = PathBuf::from("f");
        let block_bytes = ByteSize::kib(block_kib);
        Stream { block_bytes, ..Stream::new(file, ByteSize::kib(40), pattern) }
    }

    /// Direction, offset and length in KiB.
    fn calls(stream: &Stream, file_kib: u64) -> Vec<(char, u64, usize)> {
        Calls::new(stream, file_kib << 10, StdRng::seed_from_u64(4))
            .map(|call| {
                let direction = if call.direction == Direction::Read { 'r' } else { 'w' };
                (direction, call.offset >> 10, call.length >> 10)
            })
            .collect()
    }

    #[test]
    fn sequential_calls_go_round_the_file_and_end_exactly() {
        let mut write = stream(Access::Write, 16);
        write.passes = Some(2);
        let pass = [('w', 0, 16), ('w', 16, 16), ('w', 32, 8)];
        assert_eq!(calls(&write, 40), [pass, pass].concat());
    }

    #[test]
    fn mixed_calls_are_two_sequences_with_the_wanted_share() {
        let mut mixed = stream(Access::Mixed, 8);
        assert_eq!(
            calls(&mixed, 40),
            [('w', 16, 8), ('r', 0, 8), ('w', 24, 8), ('r', 8, 8), ('w', 32, 8)]
        );
        mixed.read_percent = 70;
        mixed.passes = Some(20);
        let reads = calls(&mixed, 40).iter().filter(|call| call.0 == 'r').count();
        assert_eq!(reads, 70);
    }

    #[test]
    fn random_calls_lie_on_blocks_and_reach_the_whole_file() {
        let mut random = stream(Access::RandomRead, 8);
        random.passes = Some(40);
        let mut offsets: Vec<u64> = calls(&random, 44).iter().map(|call| call.1).collect();
        assert_eq!(offsets.len(), 220);
        offsets.sort_unstable();
        offsets.dedup();
        assert_eq!(offsets, [0, 8, 16, 24, 32]);
    }

    #[test]
    fn sizes_of_a_range_double_and_all_occur_within_the_file() {
        let mut random = stream(Access::RandomWrite, 8);
        random.block_bytes_max = Some(ByteSize::kib(48));
        random.passes = Some(50);
        let calls = calls(&random, 1024);
        assert_eq!(calls.iter().map(|call| call.2).sum::<usize>(), 50 * 1024);
        let most = calls.len() as f64 / 4.0 * 1.2;
        for size in [8, 16, 32, 48] {
            let count = calls.iter().filter(|call| call.2 == size).count() as f64;
            assert!(count > most / 1.5 && count < most, "{count} of {size} KiB");
        }
        assert!(calls.iter().all(|call| call.1 % 4 == 0 && call.1 + call.2 as u64 <= 1024));
    }

    #[test]
    fn a_file_smaller_than_a_block_takes_one_call_a_pass() {
        assert_eq!(calls(&stream(Access::Read, 1024), 4), [('r', 0, 4)]);
        assert_eq!(calls(&stream(Access::RandomRead, 1024), 4), [('r', 0, 4)]);
    }
}
