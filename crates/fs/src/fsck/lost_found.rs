//! `lost+found`, at the top of the fileset: where inodes without a name and objects without a file get one.

use forebay_base::{Ino, Timestamp};

use super::repair::Patch;
use crate::error::{FsError, Result};
use crate::key;
use crate::ops::fileset_root;
use crate::record::{EntryRecord, InodeRecord, Kind, Layout, ObjectRef, encode};

/// Names that are tried in turn before it is given up.
pub(super) const NAMES_MAX: u32 = 10_000;

/// The directory, once it was found or made.
#[derive(Default)]
pub(super) struct LostFound {
    ino: Option<Ino>,
}

impl LostFound {
    /// The time of what repair makes: that of the root directory, as there is no clock here.
    pub fn time(&self, patch: &Patch<'_>) -> Result<Timestamp> {
        Ok(patch.inode(patch.top())?.map(|root| root.changed).unwrap_or_default())
    }

    /// Names an inode `#ino`.
    pub fn attach(&mut self, patch: &mut Patch<'_>, ino: Ino) -> Result<()> {
        let Some(mut record) = patch.inode(ino)? else { return Ok(()) };
        let above = self.directory(patch)?;
        add(patch, above, ino, record.kind, &format!("#{ino}"))?;
        if record.kind == Kind::Directory {
            record.parent = above;
            patch.set(key::inode(ino), Some(encode(&record)));
        }
        Ok(())
    }

    /// Makes an object a file named `#object-number`, for root only.
    pub fn rescue(&mut self, patch: &mut Patch<'_>, at: ObjectRef, size: u64) -> Result<()> {
        let above = self.directory(patch)?;
        let ino = take_ino(patch);
        let time = self.time(patch)?;
        let epoch = patch.superblock.epoch;
        let record = InodeRecord {
            kind: Kind::File,
            nlink: 1,
            size,
            parent: Ino(0),
            layout: Layout::Whole(at),
            mode: 0o600,
            ..fileset_root(patch.superblock.fileset, 0, time).record(epoch)
        };
        patch.set(key::inode(ino), Some(encode(&record)));
        add(patch, above, ino, Kind::File, &format!("#object-{}", at.id))
    }

    fn directory(&mut self, patch: &mut Patch<'_>) -> Result<Ino> {
        if let Some(ino) = self.ino {
            return Ok(ino);
        }
        for attempt in 0..NAMES_MAX {
            let name = numbered("lost+found", attempt);
            let found = patch.find(patch.top(), &name)?;
            let ino = match &found {
                None => make(patch, self.time(patch)?, &name)?,
                Some(entry) => {
                    let record = patch.inode(entry.ino)?;
                    record.is_some_and(|record| record.kind == Kind::Directory).then_some(entry.ino)
                }
            };
            if ino.is_some() {
                self.ino = ino;
            }
            if let Some(ino) = ino {
                return Ok(ino);
            }
        }
        Err(FsError::Damaged("there is no room for a lost+found directory".to_owned()))
    }
}

pub(super) fn numbered(name: &str, attempt: u32) -> Vec<u8> {
    match attempt {
        0 => name.as_bytes().to_vec(),
        _ => format!("{name}.{attempt}").into_bytes(),
    }
}

/// Takes an inode number that was never used.
fn take_ino(patch: &mut Patch<'_>) -> Ino {
    let ino = Ino::of(patch.superblock.fileset, patch.superblock.ino_limit);
    patch.superblock.ino_limit += 1;
    let bytes = encode(&patch.superblock);
    patch.set(key::SUPERBLOCK.to_vec(), Some(bytes));
    ino
}

fn make(patch: &mut Patch<'_>, time: Timestamp, name: &[u8]) -> Result<Option<Ino>> {
    let ino = take_ino(patch);
    let entry = EntryRecord { ino, kind: Kind::Directory, name: name.to_vec() };
    if !patch.add_entry(patch.top(), &entry)? {
        return Ok(None);
    }
    let fileset = patch.superblock.fileset;
    let record = fileset_root(fileset, 0o700, time).record(patch.superblock.epoch);
    patch.set(key::inode(ino), Some(encode(&record)));
    Ok(Some(ino))
}

fn add(patch: &mut Patch<'_>, above: Ino, ino: Ino, kind: Kind, name: &str) -> Result<()> {
    for attempt in 0..NAMES_MAX {
        let name = numbered(name, attempt);
        if patch.add_entry(above, &EntryRecord { ino, kind, name })? {
            return Ok(());
        }
    }
    Err(FsError::Damaged(format!("there is no room for {name} in lost+found")))
}
