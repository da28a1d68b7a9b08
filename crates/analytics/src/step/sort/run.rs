//! One run: rows in memory and the order of their keys.

use forebay_base::ByteSize;

use crate::dataset::{Reader, Writer};
use crate::error::Result;
use crate::key::KeyCodec;
use crate::step::Progress;

/// Rows between two calls of the progress callback.
const PROGRESS_ROWS: u64 = 4096;

/// Stands for a row while rows are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    /// The first of the key's bytes that differ between rows, as big endian numbers.
    prefix: [u64; 2],
    /// Which row; ordering by it too makes an unstable sort stable.
    index: u32,
}

/// Bytes of [`Entry::prefix`].
const PREFIX_BYTES: usize = 16;

/// Rows with their keys, up to a bound on their memory.
pub(super) struct RunBuffer {
    row_bytes: usize,
    key_bytes: usize,
    rows_max: usize,
    rows: Vec<u8>,
    keys: Vec<u8>,
    entries: Vec<Entry>,
}

impl RunBuffer {
    /// A buffer for as many rows of `reader` as fit in `memory`.
    pub fn new(reader: &Reader, codec: &KeyCodec, memory: ByteSize) -> RunBuffer {
        let (row_bytes, key_bytes) = (reader.schema().row_bytes(), codec.key_bytes());
        let per_row = row_bytes + key_bytes + size_of::<Entry>();
        // At least two rows, however wide; at most what an entry's index can tell apart.
        let rows_max = (memory.as_usize() / per_row).clamp(2, u32::MAX as usize);
        let capacity = rows_max.min(usize::try_from(reader.rows()).unwrap_or(rows_max));
        RunBuffer {
            row_bytes,
            key_bytes,
            rows_max,
            rows: Vec::with_capacity(capacity * row_bytes),
            keys: Vec::with_capacity(capacity * key_bytes),
            entries: Vec::with_capacity(capacity),
        }
    }

    /// The most rows of a run.
    pub fn rows_max(&self) -> u64 {
        self.rows_max as u64
    }

    /// Takes rows until the buffer is full or the input ends. True if rows are left in the input.
    pub fn fill(&mut self, reader: &mut Reader, codec: &KeyCodec) -> Result<bool> {
        let mut taken = self.entries.len();
        while taken < self.rows_max && reader.advance()? {
            self.rows.extend_from_slice(reader.current());
            let start = self.keys.len();
            self.keys.resize(start + self.key_bytes, 0);
            codec.encode(reader.current(), &mut self.keys[start..]);
            self.entries.push(Entry { prefix: [0; 2], index: taken as u32 });
            taken += 1;
        }
        Ok((taken as u64) < reader.rows())
    }

    /// Empties the buffer and keeps its memory.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.keys.clear();
        self.entries.clear();
    }

    /// Orders the rows. Bytes of the key that are the same in all rows decide nothing and are left
    /// out of the entries' prefixes, so that most comparisons need no more than those.
    pub fn sort(&mut self) {
        let (keys, key_bytes) = (&self.keys, self.key_bytes);
        let differing = differing_bytes(keys, key_bytes);
        let in_prefix = &differing[..differing.len().min(PREFIX_BYTES)];
        for (entry, key) in self.entries.iter_mut().zip(keys.chunks_exact(key_bytes)) {
            let mut prefix = [0; PREFIX_BYTES];
            for (byte, &position) in prefix.iter_mut().zip(in_prefix) {
                *byte = key[position];
            }
            let number = u128::from_be_bytes(prefix);
            entry.prefix = [(number >> 64) as u64, number as u64];
        }
        if differing.len() <= PREFIX_BYTES {
            self.entries.sort_unstable();
        } else {
            let key = |entry: &Entry| {
                let start = entry.index as usize * key_bytes;
                &keys[start..start + key_bytes]
            };
            self.entries.sort_unstable_by(|a, b| {
                a.prefix
                    .cmp(&b.prefix)
                    .then_with(|| key(a).cmp(key(b)))
                    .then_with(|| a.index.cmp(&b.index))
            });
        }
    }

    /// Writes the rows in order.
    pub fn write(
        &self,
        writer: &mut Writer,
        done: &mut u64,
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        for entry in &self.entries {
            let start = entry.index as usize * self.row_bytes;
            writer.push(&self.rows[start..start + self.row_bytes])?;
            *done += 1;
            if done.is_multiple_of(PROGRESS_ROWS) {
                progress(*done);
            }
        }
        Ok(())
    }
}

/// Positions of the bytes that are not the same in all keys.
fn differing_bytes(keys: &[u8], key_bytes: usize) -> Vec<usize> {
    let mut differs = vec![0_u8; key_bytes];
    if let Some(first) = keys.get(..key_bytes) {
        for key in keys.chunks_exact(key_bytes) {
            for ((differs, a), b) in differs.iter_mut().zip(key).zip(first) {
                *differs |= a ^ b;
            }
        }
    }
    (0..key_bytes).filter(|&position| differs[position] != 0).collect()
}
