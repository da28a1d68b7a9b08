//! Reading a store whose file is damaged, and writing what it held into a fresh one.
//!
//! The engine refuses a damaged file as a whole. Here its tree is walked page by page, trusting nothing:
//! - A page with one wrong bit is put right: its checksum, which stands in its parent, tells which.
//! - Of a page with more damage, pairs and children that make sense are taken. Children have checksums of
//!   their own.
//! - For the keys of a page that is lost (zeroed, cut off), all pages of the file that the tree does not lead
//!   to are looked through. They hold old versions of leaves too: of several values of a key the newest
//!   counts, as [`Judge`] has it, and pairs that were removed shortly before may come back.
//!
//! The damaged file is only read. Memory: the numbers of all pages, and the pairs of lost pages.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use super::header::{HEADER_BYTES, Header, PAGE_BYTES, Root};
use super::page::{self, Kind};
use super::{PAIRS_NAME, RedbStore, translate};
use crate::{Batch, Bytes, Result, Store as _, StoreError};

/// Deepest tree that is followed.
const DEPTH_MAX: usize = 64;
/// Pairs that are committed together.
const BATCH_MAX: usize = 20_000;

/// What only the owner of the pairs knows.
pub trait Judge {
    /// Whether a pair can be one.
    fn is_plausible(&self, key: &[u8], value: &[u8]) -> bool;
    /// Whether `second` is a newer value of `key` than `first`.
    fn is_newer(&self, key: &[u8], first: &[u8], second: &[u8]) -> bool;
}

/// A range of keys of which pairs are lost, unless an old page held them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRange {
    /// The keys come after this one.
    pub after: Bytes,
    /// The last of them; `None`: to the end.
    pub through: Option<Bytes>,
}

/// What came of reading a damaged store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Salvage {
    /// Pairs that were read.
    pub pairs: u64,
    /// Pages in which one wrong bit was put right: nothing is lost of them.
    pub corrected_pages: u64,
    /// Pages that were read although their checksums are wrong: any pair of them may be wrong.
    pub doubtful_pages: u64,
    /// Key ranges of pages that cannot be read.
    pub lost: Vec<LostRange>,
    /// Pairs of those ranges that were found in pages outside the tree.
    pub found_again: u64,
}

impl Salvage {
    /// Whether pairs may be missing or wrong.
    #[must_use]
    pub fn is_lossy(&self) -> bool {
        self.doubtful_pages > 0 || !self.lost.is_empty()
    }
}

/// Writes what can be read of the store in the file at `from` into a new store at `to`.
///
/// # Errors
/// [`StoreError::Damaged`] if no pair can be read; [`StoreError::Full`] or [`StoreError::Io`] of either
/// file. Nothing is left at `to` then.
pub fn salvage(from: &Path, to: &Path, judge: &dyn Judge) -> Result<Salvage> {
    let file = File::open(from).map_err(|error| translate(from, &error.into()))?;
    let length = file.metadata().map_err(|error| translate(from, &error.into()))?.len();
    let mut header = [0; HEADER_BYTES];
    read_available(&file, 0, &mut header);
    let store = RedbStore::create(to)?;
    let mut walk = Walk {
        file,
        length,
        judge,
        to: &store,
        seen: HashSet::new(),
        batch: BTreeMap::new(),
        result: Salvage::default(),
        tables: None,
        depth: 0,
        in_pairs: false,
    };
    let copied = walk.copy(&Header::parse(header));
    let result = std::mem::take(&mut walk.result);
    drop(walk);
    match copied.and_then(|()| store.close()) {
        Ok(()) if result.pairs > 0 => Ok(result),
        other => {
            drop(store);
            // The error that matters is the one of the copy.
            let _ = std::fs::remove_file(to);
            other?;
            let path = from.display();
            Err(StoreError::Damaged(format!("{path}: nothing in it can be read as a store")))
        }
    }
}

/// Reads what there is; the rest stays as it is.
fn read_available(file: &File, offset: u64, out: &mut [u8]) {
    let mut done = 0;
    while done < out.len() {
        match file.read_at(&mut out[done..], offset + done as u64) {
            Ok(0) => return,
            Ok(count) => done += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            // A sector that cannot be read is damage like any other: the next may be fine.
            Err(_) => done = (done / 512 + 1) * 512,
        }
    }
}

/// Keys that a part of the tree may hold.
#[derive(Clone, Debug, Default)]
struct Bounds {
    after: Option<Bytes>,
    through: Option<Bytes>,
}

impl Bounds {
    fn hold(&self, key: &[u8]) -> bool {
        self.after.as_deref().is_none_or(|after| key > after)
            && self.through.as_deref().is_none_or(|through| key <= through)
    }
}

struct Walk<'a> {
    file: File,
    length: u64,
    judge: &'a dyn Judge,
    to: &'a RedbStore,
    /// Places of pages that the tree leads to.
    seen: HashSet<u64>,
    batch: BTreeMap<Bytes, Option<Bytes>>,
    result: Salvage,
    /// The root of the table, once it was found in the tree of tables.
    tables: Option<Root>,
    depth: usize,
    /// The tree that is walked is that of the pairs, not that of the tables.
    in_pairs: bool,
}

impl Walk<'_> {
    fn copy(&mut self, header: &Header) -> Result<()> {
        for slot in header.in_order() {
            let Some(tables) = slot.tables else { continue };
            let before = self.result.clone();
            self.tree(tables, &Bounds::default())?;
            if self.tables.is_some() {
                break;
            }
            // The losses of a tree that is not followed do not count.
            self.result = before;
        }
        self.in_pairs = true;
        match self.tables {
            Some(root) => self.tree(root, &Bounds::default())?,
            None => self.result.lost.push(LostRange { after: Vec::new(), through: None }),
        }
        self.commit()?;
        if !self.result.lost.is_empty() {
            self.look_outside()?;
        }
        Ok(())
    }

    /// Reads a page; `true` if it is as its parent says, or was put right.
    fn read(&mut self, root: Root) -> Option<(Vec<u8>, bool)> {
        let place = page::place(root.page).filter(|place| place.start < self.length)?;
        if !self.seen.insert(place.start) {
            return None;
        }
        let available = place.end.min(self.length) - place.start;
        let mut bytes = vec![0; usize::try_from(available).ok()?];
        read_available(&self.file, place.start, &mut bytes);
        if page::verifies(&bytes, root.checksum) {
            return Some((bytes, true));
        }
        if page::correct(&mut bytes, root.checksum) {
            self.result.corrected_pages += 1;
            return Some((bytes, true));
        }
        Some((bytes, false))
    }

    fn tree(&mut self, root: Root, bounds: &Bounds) -> Result<()> {
        let Some((bytes, is_right)) = self.read(root).filter(|_| self.depth < DEPTH_MAX) else {
            self.lost(bounds);
            return Ok(());
        };
        match page::kind(&bytes) {
            Some(Kind::Branch) => self.branch(&bytes, is_right, bounds),
            Some(Kind::Leaf) => self.leaf(&bytes, is_right, bounds),
            None => {
                self.lost(bounds);
                Ok(())
            }
        }
    }

    fn branch(&mut self, bytes: &[u8], is_right: bool, bounds: &Bounds) -> Result<()> {
        let children = page::children(bytes);
        if !is_right {
            self.doubtful(bounds);
        }
        let mut below = bounds.clone();
        self.depth += 1;
        for (child, through) in children {
            // In a damaged branch keys may be wrong: what its children hold is judged by its own bounds.
            if is_right {
                below.through =
                    through.map_or_else(|| bounds.through.clone(), |key| Some(key.to_vec()));
            }
            self.tree(child, &below)?;
            if is_right {
                below.after = below.through.clone();
            }
        }
        self.depth -= 1;
        Ok(())
    }

    fn leaf(&mut self, bytes: &[u8], is_right: bool, bounds: &Bounds) -> Result<()> {
        if !is_right {
            self.doubtful(bounds);
        }
        for (key, value) in page::pairs(bytes) {
            if !self.in_pairs {
                if key == PAIRS_NAME.as_bytes() {
                    self.tables = value.get(10..).and_then(Root::parse).filter(|_| value[9] != 0);
                }
            } else if is_right || (bounds.hold(key) && self.judge.is_plausible(key, value)) {
                self.put(key, value)?;
            }
        }
        Ok(())
    }

    /// Notes a page of which not everything may have been read.
    fn doubtful(&mut self, bounds: &Bounds) {
        self.result.doubtful_pages += 1;
        self.lost(bounds);
    }

    fn lost(&mut self, bounds: &Bounds) {
        let after = bounds.after.clone().unwrap_or_default();
        let range = LostRange { after, through: bounds.through.clone() };
        if self.in_pairs && !self.result.lost.contains(&range) {
            self.result.lost.push(range);
        }
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.result.pairs += 1;
        self.batch.insert(key.to_vec(), Some(value.to_vec()));
        if self.batch.len() >= BATCH_MAX { self.commit() } else { Ok(()) }
    }

    fn commit(&mut self) -> Result<()> {
        let changes = std::mem::take(&mut self.batch);
        if changes.is_empty() {
            return Ok(());
        }
        self.to.commit(&Batch { requires: Vec::new(), changes })
    }

    /// Takes the pairs of lost ranges from leaves that the tree does not lead to.
    fn look_outside(&mut self) -> Result<()> {
        let mut found: BTreeMap<Bytes, Bytes> = BTreeMap::new();
        let mut offset = PAGE_BYTES;
        while offset < self.length {
            if !self.seen.contains(&offset) {
                self.look_into(offset, &mut found);
            }
            offset += PAGE_BYTES;
        }
        for (key, value) in found {
            // What the tree led to is newer.
            if self.to.get(&key)?.is_none() {
                self.result.found_again += 1;
                self.put(&key, &value)?;
            }
        }
        self.commit()
    }

    fn look_into(&self, offset: u64, found: &mut BTreeMap<Bytes, Bytes>) {
        let lost = |key: &[u8]| {
            self.result.lost.iter().any(|range| {
                key > range.after.as_slice()
                    && range.through.as_deref().is_none_or(|through| key <= through)
            })
        };
        // Leaves of one large value take several pages.
        for order in 0..6 {
            let bytes = PAGE_BYTES << order;
            let mut page = vec![0; usize::try_from(bytes).unwrap_or(0)];
            read_available(&self.file, offset, &mut page);
            if page::kind(&page) != Some(Kind::Leaf) {
                return;
            }
            if !page::is_leaf(&page) {
                continue;
            }
            for (key, value) in page::pairs(&page) {
                if !lost(key) || !self.judge.is_plausible(key, value) {
                    continue;
                }
                let is_newer = |first: &Bytes| self.judge.is_newer(key, first, value);
                if found.get(key).is_none_or(is_newer) {
                    found.insert(key.to_vec(), value.to_vec());
                }
            }
            return;
        }
    }
}
