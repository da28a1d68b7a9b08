//! Removing a snapshot: its objects go that nobody else refers to.
//!
//! An object belongs to one inode, from one moment to another. So the snapshots that refer to it are neighbours, and besides a
//! snapshot's own records it takes those of the next older one and of the next newer one, or of the fileset, to know what only
//! it has.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_base::Ino;
use forebay_store::{Store, StoreError};

use crate::error::Result;
use crate::key::{self, Key};
use crate::partition::{Partition, Row};
use crate::record::{InodeRecord, ObjectRef, decode, encode};
use crate::snapshot::{KeptCopies, SnapshotRecord, SnapshotStage};
use crate::writeset::{Known, Removal};

/// Records that are compared at a time.
const CHUNK: usize = 4096;

/// A snapshot beside the one that is removed, with its number.
type Neighbour = Option<(u64, Arc<dyn Store>)>;

impl Partition {
    /// Removes a snapshot that nobody reads any more, or goes on with that; returns how many objects went with it.
    ///
    /// # Errors
    /// What a store says; to be called again then.
    pub(crate) fn remove_snapshot(&self, number: u64, record: &SnapshotRecord) -> Result<u64> {
        let removing = SnapshotRecord { stage: SnapshotStage::Removing, ..record.clone() };
        self.writes.lock().put(key::snapshot(number), encode(&removing), Known::MayExist);
        self.commit()?;
        self.shared.fail_points.reach("snapshot.removing")?;
        let kept = self.kept_copies()?;
        {
            let mut known = self.sharing.known.lock();
            known.all.insert(number, removing);
            self.sharing.follow(&mut known, &kept);
        }
        // Whatever was dropped until now, and kept for it, is dropped in the store.
        self.commit()?;
        let mut removed = match self.frozen_store(number) {
            Ok(store) => self.remove_what_only_it_has(number, &*store, &kept)?,
            Err(StoreError::Missing(_)) => 0,
            Err(error) => return Err(error.into()),
        };
        self.shared.fail_points.reach("snapshot.emptied")?;
        removed += self.remove_unneeded_copies()?;
        self.sharing.open.lock().let_go(number);
        self.frozen.remove_frozen(self.number, number)?;
        self.shared.fail_points.reach("snapshot.unfrozen")?;
        self.writes.lock().delete(key::snapshot(number));
        self.commit()?;
        let mut known = self.sharing.known.lock();
        known.all.remove(&number);
        if known.all.is_empty() {
            // Objects of files that had no name at its moment may have stayed.
            self.shared.objects.leave_behind(self.number);
        }
        Ok(removed)
    }

    fn neighbours(&self, number: u64) -> Result<(Neighbour, Neighbour)> {
        let bounds = self.sharing.known.lock().bounds();
        let open = |beside: Option<u64>| {
            let opened =
                beside.map(|beside| Ok::<_, crate::FsError>((beside, self.frozen_store(beside)?)));
            opened.transpose()
        };
        let older = bounds.range(..number).next_back().map(|(beside, _)| *beside);
        let newer = bounds.range(number + 1..).next().map(|(beside, _)| *beside);
        Ok((open(older)?, open(newer)?))
    }

    fn remove_what_only_it_has(
        &self,
        number: u64,
        store: &dyn Store,
        kept: &KeptCopies,
    ) -> Result<u64> {
        let mut removed = 0;
        self.without_newer(number, store, kept, &mut |at, has_older| {
            if !has_older {
                self.copies().dropped(at.id);
                self.shared.objects.remove_now(Removal { at, bytes: 0 });
                removed += 1;
            }
        })?;
        Ok(removed)
    }

    /// Visits the objects that a snapshot refers to, without copies, and neither the next newer one nor the fileset does; with
    /// whether the next older one has it.
    pub(super) fn without_newer(
        &self,
        number: u64,
        store: &dyn Store,
        kept: &KeptCopies,
        visit: &mut dyn FnMut(ObjectRef, bool),
    ) -> Result<()> {
        let (older, newer) = self.neighbours(number)?;
        let (mut from, to) = key::prefix_range(&[key::INODE]);
        loop {
            let rows = store.scan(&from, &to, CHUNK)?;
            let own = own_objects(&rows, number, kept)?;
            let keys: Vec<Vec<u8>> = own.keys().map(|ino| key::inode(*ino)).collect();
            let in_older = match &older {
                Some((_, store)) => objects_at(&**store, &keys)?,
                None => vec![None; keys.len()],
            };
            let in_newer = match &newer {
                Some((_, store)) => objects_at(&**store, &keys)?,
                None => objects_at(&*self.store, &keys)?,
            };
            for ((at, older_at), newer_at) in own.values().zip(in_older).zip(in_newer) {
                // One that was written in between has left a copy to the older one.
                let has_older = older.as_ref().is_some_and(|(beside, _)| {
                    older_at == Some(*at) && kept.resolve(*at, *beside) == *at
                });
                if newer_at != Some(*at) {
                    visit(*at, has_older);
                }
            }
            let Some((last, _)) = rows.last().filter(|_| rows.len() == CHUNK) else {
                return Ok(());
            };
            from.clone_from(last);
            from.push(0);
        }
    }

    /// Removes the copies that snapshots had instead of objects and no snapshot needs any more.
    fn remove_unneeded_copies(&self) -> Result<u64> {
        let bounds = self.sharing.known.lock().bounds();
        let kept = self.kept_copies()?;
        let unneeded = kept.unneeded(&bounds);
        let of_late = kept.no_longer_late(&bounds).map(key::late);
        let of_copies = unneeded.iter().map(|(object, through, _)| key::kept(*object, *through));
        let keys: Vec<Vec<u8>> = of_copies.chain(of_late).collect();
        if keys.is_empty() {
            return Ok(0);
        }
        {
            let mut writes = self.writes.lock();
            keys.into_iter().for_each(|key| writes.delete(key));
        }
        self.commit()?;
        for (_, _, at) in &unneeded {
            self.shared.objects.remove_now(Removal { at: *at, bytes: 0 });
        }
        Ok(unneeded.len() as u64)
    }

    /// Puts right what a crash left of snapshots that were being made or removed.
    ///
    /// # Errors
    /// What a store says.
    pub(crate) fn finish_snapshots(&self) -> Result<()> {
        let Some(_one_at_a_time) = self.sharing.changes.try_lock() else { return Ok(()) };
        let all = self.sharing.list();
        for (number, record) in &all {
            if record.stage == SnapshotStage::Removing {
                self.remove_snapshot(*number, record)?;
            }
        }
        for number in self.frozen.list_frozen(self.number)? {
            if all.iter().all(|(known, _)| *known != number) {
                self.frozen.remove_frozen(self.number, number)?;
            }
        }
        self.remove_unneeded_copies()?;
        Ok(())
    }
}

/// The objects of records that the snapshot has to itself and its neighbours, without copies.
fn own_objects(rows: &[Row], number: u64, kept: &KeptCopies) -> Result<BTreeMap<Ino, ObjectRef>> {
    let mut own = BTreeMap::new();
    for (key, value) in rows {
        let Some(Key::Inode(ino)) = key::parse(key) else { continue };
        let object = decode::<InodeRecord>("inode", value)?.layout.object();
        own.extend(object.filter(|at| kept.resolve(*at, number) == *at).map(|at| (ino, at)));
    }
    Ok(own)
}

/// The objects of inodes as a store has them.
fn objects_at(store: &dyn Store, keys: &[Vec<u8>]) -> Result<Vec<Option<ObjectRef>>> {
    let object = |value: Option<Vec<u8>>| match value {
        Some(value) => Ok(decode::<InodeRecord>("inode", &value)?.layout.object()),
        None => Ok(None),
    };
    store.get_all(keys)?.into_iter().map(object).collect()
}
