//! Rows by group, for models with a random effect of the group.
//!
//! Rows in any order are read into memory, ordered by group, within a stated bound. Rows that are
//! sorted by the group are read again in every pass, one group in memory at a time; the order is
//! checked.

use std::collections::HashMap;

use forebay_base::ByteSize;

use super::super::Progress;
use super::super::summary::Order;
use super::frame::Frame;
use super::passes::Keys;
use crate::dataset::Reader;
use crate::error::{Error, Result};

/// Memory for rows or groups unless told otherwise: 2 GiB.
pub(crate) const MEMORY_DEFAULT: ByteSize = ByteSize::gib(2);

/// The groups of a frame's rows.
pub(crate) struct Groups {
    /// What is read of a row.
    pub frame: Frame,
    column: String,
    memory: ByteSize,
    kept: Option<Kept>,
    /// Groups, once they were all seen.
    pub count: u64,
    /// Passes over the groups so far.
    pub passes: u64,
    done: u64,
}

/// All rows, ordered by group.
struct Kept {
    values: Vec<f64>,
    /// Where each group starts, and the end.
    starts: Vec<usize>,
}

impl Groups {
    /// Groups by the values of `column`; with [`Order::Any`] all rows are read now.
    ///
    /// # Errors
    /// [`Error::Memory`] if the rows are in any order and do not fit; those of reading.
    pub fn new(
        frame: Frame,
        column: &str,
        order: Order,
        memory: ByteSize,
        progress: &mut Progress<'_>,
    ) -> Result<Groups> {
        let done = frame.rows + frame.missing;
        let column = column.to_owned();
        let mut groups = Groups { frame, column, memory, kept: None, count: 0, passes: 0, done };
        match order {
            Order::Any => groups.keep(progress)?,
            Order::Sorted => {}
        }
        Ok(groups)
    }

    /// Two passes: how many rows each group has, then every row to its place.
    fn keep(&mut self, progress: &mut Progress<'_>) -> Result<()> {
        let width = self.frame.width();
        let needed = self.frame.rows.saturating_mul(width as u64 * 8);
        self.check_memory("the rows of the model", needed)?;
        let mut places: HashMap<Box<[u8]>, usize> = HashMap::new();
        let mut starts: Vec<usize> = vec![0];
        self.for_each_row(progress, |key, _| {
            if let Some(&group) = places.get(key) {
                starts[group + 1] += 1;
            } else {
                places.insert(key.to_vec().into_boxed_slice(), starts.len() - 1);
                starts.push(1);
            }
            Ok(())
        })?;
        for group in 1..starts.len() {
            starts[group] += starts[group - 1];
        }
        let mut next = starts.clone();
        let rows = starts[starts.len() - 1];
        let mut values = vec![0.0; rows * width];
        let path = self.frame.path().to_owned();
        self.for_each_row(progress, |key, row| {
            // Rows that were not there in the pass before: the file changed under our feet.
            let place = places.get(key).copied().filter(|&group| next[group] < starts[group + 1]);
            let group = place.ok_or_else(|| Error::Damaged {
                path: path.clone(),
                page: 0,
                reason: "changed while it was being read".to_owned(),
            })?;
            let at = next[group] * width;
            values[at..at + width].copy_from_slice(row);
            next[group] += 1;
            Ok(())
        })?;
        self.count = starts.len() as u64 - 1;
        self.kept = Some(Kept { values, starts });
        Ok(())
    }

    fn check_memory(&self, what: &'static str, needed: u64) -> Result<()> {
        if needed <= self.memory.0 {
            return Ok(());
        }
        Err(Error::Memory {
            what,
            needed: ByteSize(needed),
            memory: self.memory,
            instead: "sort by the group and set order = \"sorted\", or allow more",
        })
    }

    fn for_each_row(
        &mut self,
        progress: &mut Progress<'_>,
        mut visit: impl FnMut(&[u8], &[f64]) -> Result<()>,
    ) -> Result<()> {
        let mut reader = Reader::open(self.frame.path())?;
        let mut keys = Keys::new(&reader, &self.column)?;
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

    /// Hands the rows of every group, one after another, to `visit`.
    ///
    /// # Errors
    /// [`Error::NotSorted`] if rows said to be sorted are not; [`Error::Memory`] if one group does not
    /// fit; those of reading.
    pub fn for_each(
        &mut self,
        progress: &mut Progress<'_>,
        mut visit: impl FnMut(&[f64]),
    ) -> Result<()> {
        self.passes += 1;
        if let Some(kept) = &self.kept {
            let width = self.frame.width();
            kept.starts.windows(2).for_each(|ends| {
                visit(&kept.values[ends[0] * width..ends[1] * width]);
            });
            self.done += self.frame.rows;
            progress(self.done);
            return Ok(());
        }
        let (path, memory) = (self.frame.path().to_owned(), self.memory);
        let (mut group, mut last, mut row, mut count) = (Vec::new(), Vec::new(), 0_u64, 0_u64);
        self.for_each_row(progress, |key, values| {
            row += 1;
            if last != key {
                if row > 1 && key < &last[..] {
                    return Err(Error::NotSorted { path: path.clone(), row });
                }
                last.clear();
                last.extend_from_slice(key);
                if !group.is_empty() {
                    visit(&group);
                    group.clear();
                }
                count += 1;
            }
            group.extend_from_slice(values);
            if group.len() as u64 * 8 > memory.0 {
                return Err(Error::Memory {
                    what: "the rows of one group",
                    needed: ByteSize(group.len() as u64 * 8),
                    memory,
                    instead: "allow more",
                });
            }
            Ok(())
        })?;
        if !group.is_empty() {
            visit(&group);
        }
        self.count = count;
        Ok(())
    }
}
