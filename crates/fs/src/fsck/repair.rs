//! Applying fixes: in batches that require the term, each fix whole within one batch.

use std::collections::BTreeMap;

use forebay_base::hash::HashKey;
use forebay_base::{FilesetId, Ino};
use forebay_store::{Batch, Store};

use super::NamedDisk;
use super::contents::in_order;
use super::image::make_normal;
use super::lost_found::{LostFound, NAMES_MAX, numbered};
use super::plan::{Edit, Fix};
use crate::directory::Bucket;
use crate::error::{FsError, Result};
use crate::key::{self, Key, Term};
use crate::ops::fileset_root;
use crate::record::{
    EntryRecord, FilesetRecord, InodeRecord, Kind, Layout, ObjectRef, Superblock, decode, encode,
};
use crate::recovery::read_term;

/// Changes that are committed together.
const BATCH_MAX: usize = 1000;

/// Changes that are not committed yet, over the store.
pub(super) struct Patch<'a> {
    store: &'a dyn Store,
    term: Term,
    pub superblock: Superblock,
    pub hash_key: HashKey,
    changes: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl Patch<'_> {
    /// The top directory of the fileset.
    pub fn top(&self) -> Ino {
        Ino::top_of(self.superblock.fileset)
    }

    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.changes.get(key) {
            Some(value) => Ok(value.clone()),
            None => Ok(self.store.get(key)?),
        }
    }

    pub fn set(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        self.changes.insert(key, value);
    }

    /// The record of an inode, if it can be read.
    pub fn inode(&self, ino: Ino) -> Result<Option<InodeRecord>> {
        Ok(self.get(&key::inode(ino))?.and_then(|bytes| decode("inode", &bytes).ok()))
    }

    /// Entries of the bucket of `name` with their cookies. Those that cannot be read are `None`.
    fn bucket(&self, parent: Ino, name: &[u8]) -> Result<BTreeMap<u64, Option<EntryRecord>>> {
        let bucket = Bucket::of(&self.hash_key, name);
        let (from, to) = key::entries(parent, bucket.first(), bucket.last());
        let mut rows: BTreeMap<Vec<u8>, Option<Vec<u8>>> = self
            .store
            .scan(&from, &to, 1024)?
            .into_iter()
            .map(|(key, value)| (key, Some(value)))
            .collect();
        rows.extend(self.changes.range(from..to).map(|(key, value)| (key.clone(), value.clone())));
        let entry = |(key, value): (Vec<u8>, Option<Vec<u8>>)| {
            let Some(Key::Entry(_, cookie)) = key::parse(&key) else { return None };
            Some((cookie, decode("entry", &value?).ok()))
        };
        Ok(rows.into_iter().filter_map(entry).collect())
    }

    /// The entry of `name`, if there is one.
    pub fn find(&self, parent: Ino, name: &[u8]) -> Result<Option<EntryRecord>> {
        let entries = self.bucket(parent, name)?.into_values().flatten();
        Ok(entries.into_iter().find(|entry| entry.name == name))
    }

    /// Adds an entry where its name is looked for. `false` if the name is taken, or there is no room.
    pub fn add_entry(&mut self, parent: Ino, entry: &EntryRecord) -> Result<bool> {
        let taken = self.bucket(parent, &entry.name)?;
        let bucket = Bucket::of(&self.hash_key, &entry.name);
        if taken.values().flatten().any(|other| other.name == entry.name) {
            return Ok(false);
        }
        let free = (bucket.first()..=bucket.last()).find(|cookie| !taken.contains_key(cookie));
        let Some(cookie) = free else { return Ok(false) };
        self.set(key::entry(parent, cookie), Some(encode(entry)));
        Ok(true)
    }

    fn commit(&mut self) -> Result<()> {
        let changes = std::mem::take(&mut self.changes);
        if changes.is_empty() {
            return Ok(());
        }
        let term = self.term.to_bytes();
        let batch = Batch { requires: vec![(key::TERM.to_vec(), Some(term))], changes };
        Ok(self.store.commit(&batch)?)
    }

    fn edit(&mut self, ino: Ino, edit: Edit) -> Result<()> {
        let Some(mut record) = self.inode(ino)? else { return Ok(()) };
        match edit {
            Edit::Kind(kind) => record.kind = kind,
            Edit::Parent(parent) => record.parent = parent,
            Edit::Links(links) => record.nlink = links,
            Edit::Size(size) => record.size = size,
            Edit::Xattrs(count) => record.xattrs = count,
            Edit::Object(at) => record.layout = Layout::Whole(at),
            Edit::NoObject => {
                record.layout = Layout::None;
                record.size = 0;
            }
            Edit::NoGroupAccess => record.mode &= !0o070,
            Edit::Normal(epoch, is_cache) => make_normal(&mut record, epoch, is_cache),
        }
        self.set(key::inode(ino), Some(encode(&record)));
        Ok(())
    }

    /// Moves an entry to where its name is looked for. If the name is there already, it goes.
    fn place(&mut self, parent: Ino, cookie: u64) -> Result<()> {
        let from = key::entry(parent, cookie);
        let Some(bytes) = self.get(&from)? else { return Ok(()) };
        self.set(from, None);
        if let Ok(entry) = decode::<EntryRecord>("entry", &bytes) {
            self.add_entry(parent, &entry)?;
        }
        Ok(())
    }

    /// Gives a fileset a name in the root directory, and its record that name.
    fn name_fileset(&mut self, id: FilesetId, mut record: FilesetRecord) -> Result<()> {
        let wanted = record.settings.name.clone();
        for attempt in 0..NAMES_MAX {
            let name = numbered(&wanted, attempt);
            let entry =
                EntryRecord { ino: Ino::top_of(id), kind: Kind::Directory, name: name.clone() };
            if self.add_entry(self.top(), &entry)? {
                record.settings.name = String::from_utf8_lossy(&name).into_owned();
                self.set(key::fileset(id), Some(encode(&record)));
                return Ok(());
            }
        }
        Err(FsError::Damaged(format!("there is no room for {wanted} at the top level")))
    }

    fn entry_kind(&mut self, parent: Ino, cookie: u64, kind: Kind) -> Result<()> {
        let at = key::entry(parent, cookie);
        let Some(bytes) = self.get(&at)? else { return Ok(()) };
        if let Ok(entry) = decode::<EntryRecord>("entry", &bytes) {
            self.set(at, Some(encode(&EntryRecord { kind, ..entry })));
        }
        Ok(())
    }
}

/// Applies fixes in order. `superblock` is the one that the pass went by which planned them.
///
/// # Errors
/// [`FsError::Fenced`] if another owner came in; what the store or a disk says.
pub(super) fn apply(
    store: &dyn Store,
    disks: &[NamedDisk],
    superblock: Superblock,
    fixes: Vec<Fix>,
) -> Result<()> {
    let disks = in_order(&superblock, disks);
    let hash_key = HashKey(superblock.hash_key);
    let term = read_term(store)?;
    if term.epoch != superblock.epoch {
        return Err(FsError::Fenced);
    }
    let mut patch = Patch { store, term, superblock, hash_key, changes: BTreeMap::new() };
    let mut lost_found = LostFound::default();
    let mut removals: Vec<ObjectRef> = Vec::new();
    for fix in fixes {
        match fix {
            Fix::Superblock(superblock) => {
                patch.set(key::SUPERBLOCK.to_vec(), Some(encode(&superblock)));
                patch.superblock = superblock;
            }
            Fix::Set(key, value) => patch.set(key, value),
            Fix::Inode(ino, edit) => patch.edit(ino, edit)?,
            Fix::Place { parent, cookie } => patch.place(parent, cookie)?,
            Fix::EntryKind { parent, cookie, kind } => patch.entry_kind(parent, cookie, kind)?,
            Fix::Directory { ino, parent } => {
                let time = lost_found.time(&patch)?;
                let mode = if ino == patch.top() { 0o755 } else { 0o700 };
                let fileset = patch.superblock.fileset;
                let record = fileset_root(fileset, mode, time).record(patch.superblock.epoch);
                let record = InodeRecord { parent, ..record };
                patch.set(key::inode(ino), Some(encode(&record)));
            }
            Fix::NameFileset(id, record) => patch.name_fileset(id, record)?,
            Fix::Attach(ino) => lost_found.attach(&mut patch, ino)?,
            Fix::Rescue { at, size } => lost_found.rescue(&mut patch, at, size)?,
            Fix::Remove(at) => removals.push(at),
        }
        if patch.changes.len() >= BATCH_MAX {
            patch.commit()?;
        }
    }
    patch.commit()?;
    // An owner that came in meanwhile must not lose objects to this repair.
    if read_term(store)? != patch.term {
        return Err(FsError::Fenced);
    }
    for at in removals {
        // Whatever the records say: another fileset's objects are not ours to remove.
        let is_own = at.id.fileset() == patch.superblock.fileset;
        if let Some(Some(disk)) = disks.get(&at.disk).filter(|_| is_own) {
            disk.remove(at.id)?;
        }
    }
    // An archive removes in the background.
    for disk in disks.values().flatten().filter(|disk| disk.is_archive()) {
        disk.sync()?;
    }
    Ok(())
}
