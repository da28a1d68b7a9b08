//! Splits both sides of a join into pairs of utility files.

use std::fs;
use std::path::{Path, PathBuf};

use super::block::hash;
use super::side::Side;
use super::{JoinKind, PARTITIONS_MAX, PARTITIONS_WANTED, Task};
use crate::dataset::{PAGE_BYTES_MIN, PAGE_HEADER_BYTES, Writer};
use crate::error::{Error, Result};
use crate::scratch::ScratchDir;

/// Whose rows are split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Left,
    Right,
}

/// How many files a side is split into, the same for both, and their page size.
#[derive(Clone, Copy, Debug)]
struct Layout {
    parts: u64,
    page_bytes: u64,
}

impl Task<'_, '_> {
    /// Splits two files of `rows` rows on the smaller side into about `parts` pairs, and joins those.
    pub fn split(
        &mut self,
        (left, right): (&Path, &Path),
        parts: u64,
        level: u64,
        rows: u64,
    ) -> Result<()> {
        let (lefts, rights) = {
            let (left, right) = (self.left.open(left)?, self.right.open(right)?);
            let layout = self.layout(&left, &right, parts);
            (
                self.split_side(left, Which::Left, layout, level)?,
                self.split_side(right, Which::Right, layout, level)?,
            )
        };
        for (left, right) in lefts.iter().zip(&rights) {
            self.joined.partitions += 1;
            self.join(left, right, level + 1, Some(rows))?;
            for path in [left, right] {
                fs::remove_file(path).map_err(Error::io("remove", path))?;
            }
        }
        Ok(())
    }

    /// How many files each side is split into, at most about `parts`, such that a page of each fits in
    /// the sort memory.
    fn layout(&self, left: &Side, right: &Side, parts: u64) -> Layout {
        let row_bytes = left.needed.row_bytes().max(right.needed.row_bytes()) + PAGE_HEADER_BYTES;
        let memory = self.memory.0;
        let fitting = memory / parts.clamp(2, PARTITIONS_WANTED) / PAGE_BYTES_MIN * PAGE_BYTES_MIN;
        let least = (row_bytes as u64).next_multiple_of(PAGE_BYTES_MIN);
        let page_bytes = self.page_bytes.min(fitting).max(least);
        Layout { parts: parts.min(memory / page_bytes).clamp(2, PARTITIONS_MAX), page_bytes }
    }

    /// Writes each row of a file to the utility file that its key's hash tells.
    fn split_side(
        &mut self,
        mut side: Side,
        which: Which,
        layout: Layout,
        level: u64,
    ) -> Result<Vec<PathBuf>> {
        let (paths, mut writers) = self.writers(&side, layout)?;
        let mut key = vec![0; side.codec.key_bytes()];
        let mut needed = vec![0; side.needed.row_bytes()];
        let mut selected = vec![0; side.selected.row_bytes()];
        let alone = which == Which::Left && matches!(self.kind, JoinKind::Left | JoinKind::Anti);
        while let Some(rows) = side.reader.next_rows()? {
            for row in rows.iter() {
                if side.codec.encode(row, &mut key) {
                    side.needed.copy(row, &mut needed);
                    let part = ((hash(&key, level + 1) >> 32) * layout.parts) >> 32;
                    writers[part as usize].push(&needed)?;
                } else if alone {
                    side.selected.copy(row, &mut selected);
                    self.output.alone(&selected)?;
                }
            }
            self.count(rows.count());
        }
        writers.into_iter().try_for_each(|writer| writer.finish().map(drop))?;
        Ok(paths)
    }

    /// Writers of utility files for `side`.
    fn writers(&mut self, side: &Side, layout: Layout) -> Result<(Vec<PathBuf>, Vec<Writer>)> {
        let schema = side.needed_schema()?;
        if self.scratch.is_none() {
            self.scratch = Some(ScratchDir::create(self.util, "join")?);
        }
        let directory = self.scratch.as_ref().map_or(self.util, ScratchDir::path).to_owned();
        let (mut paths, mut writers) = (Vec::new(), Vec::new());
        for _ in 0..layout.parts {
            let path = directory.join(format!("part-{:05}", self.files));
            self.files += 1;
            writers.push(Writer::create(&path, schema.clone(), layout.page_bytes)?);
            paths.push(path);
        }
        Ok((paths, writers))
    }
}
