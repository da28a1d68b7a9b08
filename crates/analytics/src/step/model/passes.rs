//! Passes over the rows of a model.

use super::super::Progress;
use super::frame::{Frame, is_missing};
use crate::dataset::{Field, Reader};
use crate::error::Result;
use crate::key::{KeyCodec, SortKey};

/// Keys of the values of one column.
pub(crate) struct Keys {
    field: Field,
    codec: KeyCodec,
    key: Vec<u8>,
}

impl Keys {
    /// Keys of `column`.
    pub fn new(reader: &Reader, column: &str) -> Result<Keys> {
        let codec = KeyCodec::new(reader, &[SortKey::ascending(column)])?;
        let key = vec![0; codec.key_bytes()];
        Ok(Keys { field: reader.field(column)?, codec, key })
    }

    /// The key of a row; `None` if the value is missing.
    #[inline]
    pub fn of(&mut self, row: &[u8]) -> Option<&[u8]> {
        if is_missing(&self.field, row) {
            return None;
        }
        self.codec.encode(row, &mut self.key);
        Some(&self.key)
    }
}

/// Reads the rows of a frame again and again: from the file, or from memory once read if they fit.
pub(crate) struct Passes {
    /// What is read of a row.
    pub frame: Frame,
    /// Passes made, the frame's own first one included.
    pub count: u64,
    memory_bytes: u64,
    kept: Option<Vec<f64>>,
    done: u64,
}

impl Passes {
    /// Passes that keep the rows if they fit in `memory_bytes`; 0 to read the file every time.
    pub fn new(frame: Frame, memory_bytes: u64) -> Passes {
        let done = frame.rows + frame.missing;
        Passes { frame, count: 1, memory_bytes, kept: None, done }
    }

    /// Bytes of all rows when kept.
    fn needed_bytes(&self) -> u64 {
        self.frame.rows.saturating_mul(self.frame.width() as u64 * 8)
    }

    /// Hands the vector of every row without missing values to `visit`, in order.
    pub fn for_each(
        &mut self,
        progress: &mut Progress<'_>,
        mut visit: impl FnMut(&[f64]),
    ) -> Result<()> {
        self.count += 1;
        let width = self.frame.width();
        if let Some(kept) = &self.kept {
            kept.chunks_exact(width).for_each(visit);
            self.done += self.frame.rows;
            progress(self.done);
            return Ok(());
        }
        let keep = self.needed_bytes() <= self.memory_bytes;
        let mut kept = Vec::new();
        if keep {
            kept.reserve_exact(self.frame.rows as usize * width);
        }
        let mut reader = Reader::open(self.frame.path())?;
        let mut values = vec![0.0; width];
        while let Some(rows) = reader.next_rows()? {
            for row in rows.iter() {
                if self.frame.read(row, &mut values) {
                    visit(&values);
                    if keep {
                        kept.extend_from_slice(&values);
                    }
                }
            }
            self.done += rows.count() as u64;
            progress(self.done);
        }
        self.kept = keep.then_some(kept);
        Ok(())
    }

    /// The same from the file, with the key of the row's value in `column`; rows where that is missing
    /// are left out.
    pub fn for_each_keyed(
        &mut self,
        column: &str,
        progress: &mut Progress<'_>,
        mut visit: impl FnMut(&[u8], &[f64]) -> Result<()>,
    ) -> Result<()> {
        self.count += 1;
        let mut reader = Reader::open(self.frame.path())?;
        let mut keys = Keys::new(&reader, column)?;
        let mut values = vec![0.0; self.frame.width()];
        while let Some(rows) = reader.next_rows()? {
            for row in rows.iter() {
                if self.frame.read(row, &mut values)
                    && let Some(key) = keys.of(row)
                {
                    visit(key, &values)?;
                }
            }
            self.done += rows.count() as u64;
            progress(self.done);
        }
        Ok(())
    }
}
