//! Objects of shared disks that a fenced node may still write.
//!
//! A node that has lost its lease may go on writing: the kernel writes open files of the direct path without its daemon, and
//! nobody can take them from it. What it writes to a disk of its own comes back with it. A disk that all nodes reach has no
//! node to come back with, so an object that such a node may write is replaced by a copy before anybody writes to the file
//! again: the first change of it does that, if nobody has the file open. Until then the file is what the object is.
//!
//! Which objects these are follows from their numbers, which are never used twice. After an owner that ended in a crash they are all
//! that were made before: its programs, and nodes that it knew of, may have had any of them open. While an owner lives they are those
//! that a node had open, or may have mapped, when it was dropped. An owner that leaves in order names those that are in such use
//! just then: the next one does not know it until each node says what it has open, and a node may be gone before.
//! All that is one record in the store ([`key::FENCED`](crate::key::FENCED)).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_base::{ClientId, Ino, ObjectId};
use forebay_disk::Sync;
use parking_lot::Mutex;
use rustc_hash::FxHashSet;

use super::Partition;
use super::relocate::{Resting, TheCopies};
use crate::error::{FsError, Result};
use crate::grants::Item;
use crate::inode::FileBody;
use crate::key;
use crate::object::LiveObject;
use crate::record::{DiskRecord, ObjectRef};
use crate::stale::Stale;

/// Objects that are replaced at the same time.
const REPLACING: usize = 16;

/// Objects that are named one by one; when there are more, all that were made so far count.
const NAMED_MAX: usize = 65_536;

/// Which objects of shared disks may be written by nodes that are none any more.
#[derive(Debug, Default)]
pub(crate) struct Fenced {
    /// All with a lower number.
    below: AtomicU64,
    /// And these.
    objects: Mutex<FxHashSet<ObjectId>>,
    /// Objects that a node may have mapped for writing and closed since: they count when it is gone.
    mapped: Mutex<FxHashSet<(ClientId, ObjectId)>>,
    /// What the store has.
    stored: Mutex<Bound>,
    /// Held by whoever replaces one, each for some objects: those that come meanwhile find it done.
    replacing: [Mutex<()>; REPLACING],
}

/// The record in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bound {
    below: u64,
    /// In order.
    objects: Vec<ObjectId>,
}

impl Bound {
    /// As the store has it: numbers of 8 bytes, big endian, the bound first.
    pub fn to_bytes(&self) -> Vec<u8> {
        let numbers = [self.below].into_iter().chain(self.objects.iter().map(|id| id.0));
        numbers.flat_map(u64::to_be_bytes).collect()
    }

    /// Reads the record; `None` if it is none.
    pub fn from_bytes(bytes: &[u8]) -> Option<Bound> {
        let (numbers, rest) = bytes.as_chunks::<8>();
        let (below, objects) = numbers.split_first()?;
        let number = |bytes: &[u8; 8]| u64::from_be_bytes(*bytes);
        let objects = objects.iter().map(|bytes| ObjectId(number(bytes))).collect();
        rest.is_empty().then(|| Bound { below: number(below), objects })
    }

    /// All objects below a number.
    pub fn all_below(below: u64) -> Bound {
        Bound { below, objects: Vec::new() }
    }
}

impl Fenced {
    /// As an owner finds it: what the store has, unless the one before has crashed, when no object of `limit` or above was made.
    pub fn found(
        stored: Option<&[u8]>,
        disks: &[DiskRecord],
        (crashed, limit): (bool, u64),
    ) -> Result<Fenced> {
        let damaged = || FsError::Damaged("the record of fenced objects cannot be read".to_owned());
        let before =
            stored.map(|bytes| Bound::from_bytes(bytes).ok_or_else(damaged)).transpose()?;
        let has_shared = disks.iter().any(|disk| disk.shared_directory().is_some());
        let bound = match before {
            _ if crashed && has_shared => Bound::all_below(limit),
            before => before.unwrap_or_default(),
        };
        let fenced = Fenced::default();
        fenced.below.store(bound.below, Ordering::Relaxed);
        fenced.objects.lock().extend(bound.objects.iter().copied());
        *fenced.stored.lock() = bound;
        Ok(fenced)
    }

    /// The record that belongs into the store, if there is anything to record.
    pub fn record(&self) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        let bound = self.stored.lock();
        (*bound != Bound::default()).then(|| (key::FENCED.to_vec(), Some(bound.to_bytes())))
    }

    fn holds(&self, id: ObjectId) -> bool {
        id.local() < self.below.load(Ordering::Acquire) || self.objects.lock().contains(&id)
    }
}

impl Partition {
    /// Whether an object may be written by a node that was fenced.
    pub(crate) fn is_fenced(&self, at: ObjectRef) -> bool {
        self.shared.objects.is_shared(at.disk) && self.fenced.holds(at.id)
    }

    /// A file is closed because the node that had it open for writing is gone.
    pub(crate) fn note_lost_writer(&self, file: &FileBody) {
        if let Some(at) = file.object.filter(|at| self.shared.objects.is_shared(at.disk)) {
            self.fenced.objects.lock().insert(at.id);
        }
    }

    /// A node has opened an object in a way that lets its programs map it for writing.
    pub(crate) fn note_mapper(&self, client: ClientId, at: ObjectRef) {
        if !self.shared.objects.is_shared(at.disk) {
            return;
        }
        let mut mapped = self.fenced.mapped.lock();
        mapped.insert((client, at.id));
        if mapped.len() > NAMED_MAX {
            mapped.clear();
            self.fence_all();
        }
    }

    /// A client is gone: mappings that outlived its file descriptors may still be written.
    pub(crate) fn fence_mapper(&self, client: ClientId) {
        let mut mapped = self.fenced.mapped.lock();
        let mut objects = self.fenced.objects.lock();
        objects.extend(mapped.extract_if(|(by, _)| *by == client).map(|(_, id)| id));
    }

    /// Any object that was made so far may be written by a node that is none any more.
    pub(crate) fn fence_all(&self) {
        if self.shared.objects.has_shared() {
            self.fenced.below.fetch_max(self.object_numbers.next(), Ordering::AcqRel);
        }
    }

    /// What the store is to have when this owner leaves in order, if it has something else.
    pub(crate) fn fence_to_store(&self) -> Option<Bound> {
        if !self.shared.objects.has_shared() {
            return None;
        }
        let fenced = &self.fenced;
        let below = fenced.below.load(Ordering::Acquire);
        let mut objects: Vec<ObjectId> = fenced.objects.lock().iter().copied().collect();
        objects.extend(fenced.mapped.lock().iter().map(|(_, id)| *id));
        for inode in self.cached() {
            let state = inode.lock();
            let written = state.file().filter(|file| file.opens.is_written());
            let at = written.and_then(|file| file.object);
            objects.extend(at.filter(|at| self.shared.objects.is_shared(at.disk)).map(|at| at.id));
        }
        objects.retain(|id| id.local() >= below);
        objects.sort_unstable();
        objects.dedup();
        let bound = if objects.len() > NAMED_MAX {
            Bound::all_below(self.object_numbers.next())
        } else {
            Bound { below, objects }
        };
        (bound != *fenced.stored.lock()).then_some(bound)
    }

    /// The store has this.
    pub(crate) fn fence_is_stored(&self, bound: Bound) {
        *self.fenced.stored.lock() = bound;
    }

    /// Somebody is about to write to a file: if a fenced node may write its object, and nobody has the file open, its bytes
    /// are in another object when this returns. No lock may be held.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::Io`]: nothing may be written to the file.
    pub(crate) fn part_from_fenced(&self, ino: Ino) -> Result<()> {
        if !self.shared.objects.has_shared() {
            return Ok(());
        }
        let at = self.inode(ino)?.lock().file().and_then(|file| file.object);
        let Some(at) = at.filter(|at| self.is_fenced(*at)) else { return Ok(()) };
        let turn = usize::try_from(at.id.local()).unwrap_or(0) % REPLACING;
        let _one_at_a_time = self.fenced.replacing[turn].lock();
        let Some(resting) = self.begin_parting(ino)? else { return Ok(()) };
        let parted = self.with_space(|| self.copy_fenced(&resting));
        let new = parted.inspect_err(|_| self.give_up_move(&resting))?;
        self.shared.fail_points.reach("fenced.copied")?;
        if self.turn_to_parted(&resting, &new)? {
            self.fenced.objects.lock().remove(&resting.object());
            tracing::info!(%ino, object = %resting.object(), "replaced what a fenced node may write");
        } else {
            self.give_up_copy(&new);
        }
        self.shared.objects.drop_handle(new);
        Ok(())
    }

    /// A file that nobody has open, about to get another object; `None` if that is not to be.
    fn begin_parting(&self, ino: Ino) -> Result<Option<Resting>> {
        let inode = self.inode(ino)?;
        let mut state = inode.lock();
        let nlink = state.nlink;
        let Some(file) = state.file_mut() else { return Ok(None) };
        let is_at_rest = nlink > 0 && file.opens.handles == 0 && !file.is_cut;
        if !is_at_rest || !file.object.is_some_and(|at| self.is_fenced(at)) {
            return Ok(None);
        }
        let old = self.make_live(file)?;
        self.take_unseen_growth(ino, &mut state);
        let seen = self.shared.objects.observe(old.at.disk, old.object.attributes())?;
        let copy = self.shared.objects.next_copy();
        let Some(file) = state.file_mut().filter(|file| !file.is_cut) else { return Ok(None) };
        file.copy = copy;
        self.shared.idle.closed(ino, file);
        Ok(Some(Resting { ino, old, seen, copy }))
    }

    /// A durable copy. What the fenced node writes meanwhile may be in it or not.
    fn copy_fenced(&self, resting: &Resting) -> Result<Arc<LiveObject>> {
        let new = self.copy_whole(&resting.old)?;
        let synced = self.shared.objects.sync(&new, Sync::All);
        synced.inspect_err(|_| self.give_up_copy(&new))?;
        Ok(new)
    }

    /// Has the record of a file turn to its copy, unless somebody has used it meanwhile. Whether it did.
    fn turn_to_parted(&self, resting: &Resting, new: &LiveObject) -> Result<bool> {
        let Some(inode) = self.shared.inodes.peek(resting.ino) else { return Ok(false) };
        let mut state = inode.lock();
        let Some(file) = state.file_mut() else { return Ok(false) };
        if file.copy != resting.copy {
            return Ok(false);
        }
        file.copy = 0;
        if file.opens.handles > 0 || file.object != Some(resting.old.at) {
            return Ok(false);
        }
        let found = self.shared.objects.observe(new.at.disk, new.object.attributes())?;
        if state.size != found.size {
            state.size = found.size;
            self.shared.stale.add([Stale::Attributes(resting.ino)]);
            self.take_back(vec![Item::Attributes(resting.ino)]);
        }
        self.exchange_object(resting.ino, &mut state, (new.at, found), TheCopies::Unknown);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_reads_back_and_garbage_is_refused() {
        for objects in [vec![], vec![ObjectId(7)], vec![ObjectId(3), ObjectId(u64::MAX)]] {
            let bound = Bound { below: 1 << 40, objects };
            let bytes = bound.to_bytes();
            assert_eq!(Bound::from_bytes(&bytes), Some(bound));
            assert_eq!(Bound::from_bytes(&bytes[1..]), None);
        }
        assert_eq!(Bound::from_bytes(b""), None);
        let shared =
            DiskRecord::new(forebay_base::DiskId(0), "a", &DiskRecord::shared_location("/a"));
        let found = |stored: Option<&[u8]>, crashed| {
            Fenced::found(stored, std::slice::from_ref(&shared), (crashed, 100))
        };
        assert!(matches!(found(Some(b"?"), false), Err(FsError::Damaged(_))));
        assert!(found(None, false).unwrap().record().is_none());
        let after_crash = found(None, true).unwrap();
        assert!(after_crash.holds(ObjectId(99)) && !after_crash.holds(ObjectId(100)));
        let named = Bound { below: 5, objects: vec![ObjectId(50)] }.to_bytes();
        let in_order = found(Some(&named), false).unwrap();
        let held: Vec<u64> = (0..100).filter(|id| in_order.holds(ObjectId(*id))).collect();
        assert_eq!(held, [0, 1, 2, 3, 4, 50]);
    }
}
