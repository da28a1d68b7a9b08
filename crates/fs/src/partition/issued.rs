//! Numbers of objects and inodes that other nodes have, to make objects on disks of their own without asking first, and files in
//! directories that are delegated to them.
//!
//! A range belongs to one life of a node, and ends with this opening of the fileset: an object that was made with one of its
//! numbers and that no record refers to yet must never be taken for one that a crash has left behind, nor the other way
//! round. So they are all void before a sweep looks at objects that were made since the opening.

use std::sync::Arc;

use forebay_base::{ClientId, DiskId, Ino, ObjectId};
use rustc_hash::FxHashSet;

use crate::error::{FsError, Result};
use crate::number::NumberRange;
use crate::object::{FsDisk, LiveObject, SeenObject};
use crate::partition::Partition;

/// Numbers in a range.
const RANGE: u64 = 1024;
/// Ranges of one client that are remembered: requests with numbers of those before may be under way, and as many files as a
/// node may make before it reports them (`JOURNAL_MAX` in `grants/journal.rs`).
const RANGES_MAX: usize = 16;

/// A range, and whose it is.
#[derive(Debug)]
pub(super) struct Issued {
    client: ClientId,
    first: u64,
    first_ino: u64,
    /// Inode numbers that were used, by their place in the range.
    used: FxHashSet<u64>,
}

/// Numbers for a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NumbersForNode {
    pub first: ObjectId,
    pub first_ino: Ino,
    /// How many of each.
    pub count: u32,
}

impl Issued {
    fn holds(&self, client: ClientId, number: u64) -> bool {
        self.client == client && (self.first..self.first + RANGE).contains(&number)
    }
}

impl Partition {
    /// Those among the disks of a node on which new objects of it are to lie. From their answers it is known in which life of
    /// its machine they are made.
    pub(crate) fn disks_for_node(&self, disks: &[DiskId]) -> Vec<DiskId> {
        let objects = &self.shared.objects;
        let suits = |disk: &DiskId| {
            objects.disk(*disk).is_ok_and(|of| {
                self.suits_node(of, disks) && of.takes_new() && of.disk.capacity().is_ok()
            })
        };
        disks.iter().copied().filter(suits).collect()
    }

    /// Gives a node a range of numbers: the first one, and how many. The way to this partition must be held, so that none is
    /// given while it is settled.
    ///
    /// # Errors
    /// [`FsError::NoSpace`](crate::FsError::NoSpace) if commits fail.
    pub(crate) fn issue_numbers(&self, client: ClientId) -> Result<NumbersForNode> {
        let first = self.take_row(&self.object_numbers)?;
        let first_ino = self.take_row(&self.ino_numbers)?;
        let mut issued = self.issued.lock();
        issued.push(Issued { client, first, first_ino, used: FxHashSet::default() });
        if issued.iter().filter(|range| range.client == client).count() > RANGES_MAX
            && let Some(oldest) = issued.iter().position(|range| range.client == client)
        {
            issued.remove(oldest);
        }
        Ok(NumbersForNode {
            first: ObjectId::of(self.number, first),
            first_ino: Ino::of(self.number, first_ino),
            count: u32::try_from(RANGE).unwrap_or(u32::MAX),
        })
    }

    fn take_row(&self, numbers: &NumberRange) -> Result<u64> {
        let first = numbers.take_row(RANGE)?;
        if numbers.is_low() {
            self.shared.crowd.raise();
        }
        Ok(first)
    }

    /// Uses an inode number that a client was given.
    ///
    /// # Errors
    /// [`FsError::Invalid`] if it was not given this one, or has used it.
    pub(crate) fn use_ino(&self, ino: Ino, client: ClientId) -> Result<()> {
        let mut issued = self.issued.lock();
        let holds = |range: &&mut Issued| {
            range.client == client
                && (range.first_ino..range.first_ino + RANGE).contains(&ino.local())
        };
        let range = issued.iter_mut().find(holds).filter(|_| self.owns(ino));
        let is_new = range.is_some_and(|range| range.used.insert(ino.local() - range.first_ino));
        if is_new { Ok(()) } else { Err(FsError::Invalid) }
    }

    /// Whether a new file of a node with `disks` may lie on this disk.
    pub(super) fn suits_node(&self, of: &FsDisk, disks: &[DiskId]) -> bool {
        disks.contains(&of.id) && of.pool() == self.pool()
    }

    /// The object that a node has made itself, if its number is one that it was given.
    pub(crate) fn take_made(
        &self,
        made: SeenObject,
        client: ClientId,
        disks: &[DiskId],
        reports: bool,
    ) -> Option<Arc<LiveObject>> {
        let is_its = made.at.id.fileset() == self.number
            && self.issued.lock().iter().any(|range| range.holds(client, made.at.id.local()));
        let suits = |of: &FsDisk| match reports {
            // It may hold bytes already.
            true => disks.contains(&of.id),
            false => of.takes_new() && of.space.takes_objects() && self.suits_node(of, disks),
        };
        if is_its { self.shared.objects.take_made(made, suits) } else { None }
    }

    /// A client has no more use for its numbers.
    pub(crate) fn numbers_returned(&self, client: ClientId) {
        self.issued.lock().retain(|range| range.client != client);
    }

    /// A client is gone: it may have made objects of which nobody was told.
    pub(crate) fn numbers_lost(&self, client: ClientId) {
        let mut issued = self.issued.lock();
        let before = issued.len();
        issued.retain(|range| range.client != client);
        if issued.len() < before {
            self.shared.objects.leave_behind(self.number);
            // It may have files open for writing that it has not reported yet.
            self.fence_all();
        }
    }

    /// No number that was given is used any more.
    pub(super) fn void_numbers(&self) {
        self.issued.lock().clear();
    }
}
