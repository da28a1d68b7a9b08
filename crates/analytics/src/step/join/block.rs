//! Rows of one side in memory, found by their keys; and the two ways to join with them.

use forebay_base::ByteSize;
use rustc_hash::FxHasher;
use std::hash::Hasher as _;

use super::side::Side;
use super::{JoinKind, Task};
use crate::error::Result;

/// What is known of a row in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No partner was met yet.
    Alone,
    /// A partner was met.
    Met,
    /// A part of its key is missing: it is found by nobody.
    Unfindable,
}

/// Ends a chain of rows.
const END: u32 = u32::MAX;

/// Rows of one side with their keys, up to a bound on their memory. Rows whose keys fall into one
/// bucket are chained in their order.
pub(super) struct Block {
    key_bytes: usize,
    row_bytes: usize,
    rows_max: usize,
    keys: Vec<u8>,
    rows: Vec<u8>,
    states: Vec<State>,
    /// The first row of every bucket; a power of two of them.
    heads: Vec<u32>,
    /// The next row of the same bucket.
    next: Vec<u32>,
}

/// The hash of a key: `seed` 0 for buckets, others for the levels of splitting.
#[inline]
pub(super) fn hash(key: &[u8], seed: u64) -> u64 {
    let mut hasher = FxHasher::with_seed(seed as usize);
    hasher.write(key);
    hasher.finish()
}

/// Memory of a row of `side` in a block: key, row, state, link and at most two buckets.
fn bytes_of_row(side: &Side) -> u64 {
    let links = size_of::<State>() + 3 * size_of::<u32>();
    (side.codec.key_bytes() + side.selected.row_bytes() + links) as u64
}

impl Block {
    /// Memory that all rows of `side` take.
    pub fn bytes_of(side: &Side) -> u64 {
        side.reader.rows().saturating_mul(bytes_of_row(side))
    }

    /// Room for rows of `side` in `memory`, for one at least.
    pub fn new(side: &Side, memory: ByteSize) -> Block {
        let rows_max = (memory.0 / bytes_of_row(side)).clamp(1, u64::from(END) - 1) as usize;
        let capacity = rows_max.min(usize::try_from(side.reader.rows()).unwrap_or(rows_max));
        let (key_bytes, row_bytes) = (side.codec.key_bytes(), side.selected.row_bytes());
        Block {
            key_bytes,
            row_bytes,
            rows_max,
            keys: Vec::with_capacity(capacity * key_bytes),
            rows: Vec::with_capacity(capacity * row_bytes),
            states: Vec::with_capacity(capacity),
            heads: Vec::new(),
            next: Vec::with_capacity(capacity),
        }
    }

    /// Takes rows until the block is full or the side ends, and makes them findable. False if there was
    /// no row left.
    pub fn fill(&mut self, side: &mut Side) -> Result<bool> {
        self.keys.clear();
        self.rows.clear();
        self.states.clear();
        while self.states.len() < self.rows_max && side.reader.advance()? {
            let row = side.reader.current();
            let start = self.keys.len();
            self.keys.resize(start + self.key_bytes, 0);
            let whole = side.codec.encode(row, &mut self.keys[start..]);
            self.states.push(if whole { State::Alone } else { State::Unfindable });
            side.selected.append(row, &mut self.rows);
        }
        let count = self.states.len();
        self.heads.clear();
        self.heads.resize(count.next_power_of_two(), END);
        self.next.clear();
        self.next.resize(count, END);
        // From the last to the first, so that chains run from the first to the last.
        for row in (0..count).rev().filter(|&row| self.states[row] != State::Unfindable) {
            let bucket = self.bucket(&self.keys[row * self.key_bytes..(row + 1) * self.key_bytes]);
            self.next[row] = std::mem::replace(&mut self.heads[bucket], row as u32);
        }
        Ok(count > 0)
    }

    #[inline]
    fn bucket(&self, key: &[u8]) -> usize {
        hash(key, 0) as usize & (self.heads.len() - 1)
    }

    /// The first row with this key at or after a place in a chain.
    #[inline]
    fn find(&self, mut place: u32, key: &[u8]) -> Option<usize> {
        while place != END {
            let row = place as usize;
            if &self.keys[row * self.key_bytes..(row + 1) * self.key_bytes] == key {
                return Some(row);
            }
            place = self.next[row];
        }
        None
    }

    /// The first row with this key.
    #[inline]
    fn first(&self, key: &[u8]) -> Option<usize> {
        self.find(self.heads[self.bucket(key)], key)
    }

    /// The next row with the key of `row`.
    #[inline]
    fn following(&self, row: usize, key: &[u8]) -> Option<usize> {
        self.find(self.next[row], key)
    }

    #[inline]
    fn row(&self, row: usize) -> &[u8] {
        &self.rows[row * self.row_bytes..(row + 1) * self.row_bytes]
    }
}

impl Task<'_, '_> {
    /// Joins with all of the right side in memory.
    pub fn with_right_kept(&mut self, left: &mut Side, right: &mut Side) -> Result<()> {
        let mut block = Block::new(right, self.memory);
        block.fill(right)?;
        self.count(block.states.len());
        let mut key = vec![0; left.codec.key_bytes()];
        let mut left_row = vec![0; left.selected.row_bytes()];
        while let Some(rows) = left.reader.next_rows()? {
            for row in rows.iter() {
                let whole = left.codec.encode(row, &mut key);
                let mut found = if whole { block.first(&key) } else { None };
                let wanted = match self.kind {
                    JoinKind::Left => true,
                    JoinKind::Inner | JoinKind::Semi => found.is_some(),
                    JoinKind::Anti => found.is_none(),
                };
                if !wanted {
                    continue;
                }
                left.selected.copy(row, &mut left_row);
                if found.is_none() || self.kind == JoinKind::Semi {
                    self.output.alone(&left_row)?;
                    continue;
                }
                while let Some(right_row) = found {
                    self.output.pair(&left_row, block.row(right_row))?;
                    found = block.following(right_row, &key);
                }
            }
            self.count(rows.count());
        }
        Ok(())
    }

    /// Joins with the left side in memory, all of it or a block at a time.
    pub fn with_left_kept(&mut self, left: &mut Side, right: &mut Side) -> Result<()> {
        let mut block = Block::new(left, self.memory);
        let several = Block::bytes_of(left) > self.memory.0;
        while block.fill(left)? {
            self.count(block.states.len());
            self.joined.blocks += u64::from(several);
            right.reader.seek(0)?;
            self.meet(&mut block, right)?;
            let wanted = match self.kind {
                JoinKind::Inner => continue,
                JoinKind::Semi => |state| state == State::Met,
                JoinKind::Left | JoinKind::Anti => |state| state != State::Met,
            };
            for row in (0..block.states.len()).filter(|&row| wanted(block.states[row])) {
                self.output.alone(block.row(row))?;
            }
        }
        Ok(())
    }

    /// Lets every right row meet its partners in a block of left rows.
    fn meet(&mut self, block: &mut Block, right: &mut Side) -> Result<()> {
        let mut key = vec![0; right.codec.key_bytes()];
        let mut right_row = vec![0; right.selected.row_bytes()];
        let pairs = matches!(self.kind, JoinKind::Inner | JoinKind::Left);
        while let Some(rows) = right.reader.next_rows()? {
            for row in rows.iter() {
                if !right.codec.encode(row, &mut key) {
                    continue;
                }
                let mut found = block.first(&key);
                if found.is_some() && pairs {
                    right.selected.copy(row, &mut right_row);
                }
                while let Some(left_row) = found {
                    block.states[left_row] = State::Met;
                    if pairs {
                        self.output.pair(block.row(left_row), &right_row)?;
                    }
                    found = block.following(left_row, &key);
                }
            }
            self.count(rows.count());
        }
        Ok(())
    }
}
