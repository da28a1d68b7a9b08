//! The bytes of one object in memory, as they are and as a crash of the machine would leave them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use forebay_base::Timestamp;
use forebay_base::seed::Dice;

use crate::{DiskError, Result, Seek, Sync};

/// Size of a page in bytes: what is allocated, and kept or lost in a crash, as a whole.
pub(super) const PAGE_BYTES: u64 = 4096;

type Page = Arc<[u8; PAGE_BYTES as usize]>;

#[derive(Clone, Debug, Default)]
struct Image {
    pages: BTreeMap<u64, Page>,
    size: u64,
    modified: Timestamp,
}

/// What an object holds.
#[derive(Debug, Default)]
pub(super) struct Content {
    live: Image,
    /// What a crash of the machine leaves for certain.
    durable: Image,
    /// Pages in which the two may differ.
    dirty: BTreeSet<u64>,
}

fn zero_page() -> Page {
    static ZERO: OnceLock<Page> = OnceLock::new();
    Arc::clone(ZERO.get_or_init(|| Arc::new([0; PAGE_BYTES as usize])))
}

/// The pages that a range touches, from the first to the one after the last.
fn pages_of(offset: u64, length: u64) -> std::ops::Range<u64> {
    match length {
        0 => 0..0,
        _ => offset / PAGE_BYTES..(offset + length - 1) / PAGE_BYTES + 1,
    }
}

/// The part of `page` within `offset..end`, as indexes into the page.
fn within(page: u64, offset: u64, end: u64) -> std::ops::Range<usize> {
    let start = page * PAGE_BYTES;
    let clip = |at: u64| usize::try_from(at.clamp(start, start + PAGE_BYTES) - start).unwrap_or(0);
    clip(offset)..clip(end)
}

impl Image {
    /// Drops what lies beyond `size` bytes, so that growing again shows zeros.
    fn clip(&mut self, size: u64) {
        self.pages.split_off(&size.div_ceil(PAGE_BYTES));
        let last = size / PAGE_BYTES;
        if let Some(page) = self.pages.get_mut(&last) {
            Arc::make_mut(page)[within(last, size, u64::MAX)].fill(0);
        }
        self.size = size;
    }

    /// Sets page `index` to what it is in `other`.
    fn take_page(&mut self, index: u64, other: &Image) {
        match other.pages.get(&index) {
            Some(page) => self.pages.insert(index, Arc::clone(page)),
            None => self.pages.remove(&index),
        };
    }
}

impl Content {
    /// Length in bytes.
    pub(super) fn size(&self) -> u64 {
        self.live.size
    }

    /// Time of the last change.
    pub(super) fn modified(&self) -> Timestamp {
        self.live.modified
    }

    /// Notes a change.
    pub(super) fn touch(&mut self, now: Timestamp) {
        self.live.modified = now;
    }

    /// Pages that hold something, or are reserved.
    pub(super) fn page_count(&self) -> u64 {
        self.live.pages.len() as u64
    }

    /// Pages that a write to the range would have to add.
    pub(super) fn missing_pages(&self, offset: u64, length: u64) -> u64 {
        let touched = pages_of(offset, length);
        let there = self.live.pages.range(touched.clone()).count() as u64;
        touched.end - touched.start - there
    }

    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let left = self.live.size.saturating_sub(offset);
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let buffer = &mut buffer[..length];
        buffer.fill(0);
        let end = offset.saturating_add(length as u64);
        for (index, page) in self.live.pages.range(pages_of(offset, length as u64)) {
            let part = within(*index, offset, end);
            let at = usize::try_from(index * PAGE_BYTES + part.start as u64 - offset).unwrap_or(0);
            buffer[at..at + part.len()].copy_from_slice(&page[part]);
        }
        length
    }

    /// Writes where the caller has checked the range and the space.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        for index in pages_of(offset, data.len() as u64) {
            let page = self.live.pages.entry(index).or_insert_with(zero_page);
            let part = within(index, offset, end);
            let at = usize::try_from(index * PAGE_BYTES + part.start as u64 - offset).unwrap_or(0);
            let length = part.len();
            Arc::make_mut(page)[part].copy_from_slice(&data[at..at + length]);
            self.dirty.insert(index);
        }
        if !data.is_empty() {
            self.live.size = self.live.size.max(end);
        }
    }

    pub(super) fn set_size(&mut self, size: u64) {
        if size < self.live.size {
            self.dirty.extend(self.live.pages.range(size / PAGE_BYTES..).map(|(index, _)| index));
            self.live.clip(size);
        }
        self.live.size = size;
    }

    /// Reserves the range, as zeros where it holds nothing.
    pub(super) fn reserve(&mut self, offset: u64, length: u64) {
        for index in pages_of(offset, length) {
            self.live.pages.entry(index).or_insert_with(zero_page);
            self.dirty.insert(index);
        }
    }

    /// Makes the range read as zeros, dropping whole pages.
    pub(super) fn punch(&mut self, offset: u64, length: u64) {
        let end = offset + length;
        let touched: Vec<u64> =
            self.live.pages.range(pages_of(offset, length)).map(|(index, _)| *index).collect();
        for index in touched {
            let part = within(index, offset, end);
            if part.len() as u64 == PAGE_BYTES {
                self.live.pages.remove(&index);
            } else if let Some(page) = self.live.pages.get_mut(&index) {
                Arc::make_mut(page)[part].fill(0);
            }
            self.dirty.insert(index);
        }
    }

    pub(super) fn seek(&self, target: Seek, offset: u64) -> Result<u64> {
        if offset >= self.live.size {
            return Err(DiskError::NoSuchOffset);
        }
        let first = offset / PAGE_BYTES;
        match target {
            Seek::Data => {
                let mut pages = self.live.pages.range(first..);
                let (index, _) = pages.next().ok_or(DiskError::NoSuchOffset)?;
                Some((index * PAGE_BYTES).max(offset))
                    .filter(|found| *found < self.live.size)
                    .ok_or(DiskError::NoSuchOffset)
            }
            Seek::Hole => {
                let pages = self.live.pages.range(first..).map(|(index, _)| *index);
                let run = pages.zip(first..).take_while(|(index, expected)| index == expected);
                let hole = (first + run.count() as u64) * PAGE_BYTES;
                Ok(hole.max(offset).min(self.live.size))
            }
        }
    }

    /// Makes the content durable; with [`Sync::Data`] all but a size that shrank, and the times.
    pub(super) fn sync(&mut self, what: Sync) {
        let shrank = self.live.size < self.durable.size;
        let keeps_tail = what == Sync::Data && shrank;
        let synced: Vec<u64> = match keeps_tail {
            true => self.dirty.range(..self.live.size.div_ceil(PAGE_BYTES)).copied().collect(),
            false => std::mem::take(&mut self.dirty).into_iter().collect(),
        };
        for index in synced {
            self.durable.take_page(index, &self.live);
            self.dirty.remove(&index);
        }
        if !keeps_tail {
            self.durable.size = self.live.size;
        }
        if what == Sync::All {
            self.durable.modified = self.live.modified;
        }
    }

    /// What the machine finds after a crash: each page and the size that no sync covered are kept or
    /// lost, as the dice fall.
    pub(super) fn crash(&mut self, dice: &mut Dice) {
        let mut found = self.durable.clone();
        for index in std::mem::take(&mut self.dirty) {
            if dice.toss() {
                found.take_page(index, &self.live);
            }
        }
        let sizes = (self.live.size.min(found.size), self.live.size.max(found.size));
        let size = match (dice.toss(), dice.toss()) {
            (false, _) => found.size,
            (true, false) => self.live.size,
            (true, true) => dice.between(sizes.0, sizes.1),
        };
        found.clip(size);
        if dice.toss() {
            found.modified = self.live.modified;
        }
        self.live = found.clone();
        self.durable = found;
    }
}
