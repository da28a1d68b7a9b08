//! Moving what snapshots hold to another disk: objects that their records refer to, and kept copies.
//!
//! The bytes are copied to an object without a name, with no lock held: nobody writes to what a snapshot refers to. Then, while no
//! snapshot is made or removed, the copy gets its name, is synced, and one record has the snapshots turn to it. After the commit of
//! that record the former object goes, unless the file in the fileset still has it.
//!
//! What survives a crash: the snapshots, with the former object or with the copy. The other one belongs to nothing, and the sweep
//! removes it.

use std::collections::HashSet;
use std::sync::Arc;

use forebay_base::{DiskId, Ino, ObjectId};
use forebay_disk::{DiskError, Sync};
use forebay_store::StoreError;

use crate::error::{FsError, Result};
use crate::key::{self, Key};
use crate::object::{FsDisk, LiveObject};
use crate::partition::Partition;
use crate::partition::relocate::{Moved, Pace, Resting};
use crate::record::{InodeRecord, ObjectRef, decode, encode};
use crate::snapshot::{KeptCopy, SnapshotStage};
use crate::writeset::{Known, Removal};

/// Records of a snapshot that are read at a time.
const CHUNK: usize = 4096;

/// What snapshots hold on a disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    at: ObjectRef,
    /// The newest snapshot that has it.
    through: u64,
    how: How,
}

#[derive(Clone, Copy, Debug)]
enum How {
    /// Records of an inode refer to it. That was found out when `newest` was the newest snapshot.
    Referred { ino: Ino, newest: u64 },
    /// It is what snapshots have instead of an object.
    Kept { of: ObjectId, copy: KeptCopy },
}

impl Held {
    /// The inode, if it is known.
    pub fn ino(&self) -> Option<Ino> {
        match self.how {
            How::Referred { ino, .. } => Some(ino),
            How::Kept { .. } => None,
        }
    }
}

impl Partition {
    /// What snapshots hold on a disk that takes nothing new: of much, `most` objects. A snapshot that holds nothing there says so from
    /// now on. `None` if a snapshot is being made or removed.
    ///
    /// # Errors
    /// What a store says.
    pub(crate) fn try_held_on(&self, disk: DiskId, most: usize) -> Result<Option<Vec<Held>>> {
        let Some(_no_changes) = self.sharing.changes.try_lock() else { return Ok(None) };
        self.find_held(disk, most).map(Some)
    }

    /// As [`Partition::try_held_on`]; waits until no snapshot is being made or removed.
    ///
    /// # Errors
    /// As [`Partition::try_held_on`].
    pub(crate) fn held_on(&self, disk: DiskId, most: usize) -> Result<Vec<Held>> {
        let _no_changes = self.sharing.begin_change();
        self.find_held(disk, most)
    }

    fn find_held(&self, disk: DiskId, most: usize) -> Result<Vec<Held>> {
        let newest = self.sharing.known.lock().newest;
        let kept = self.kept_copies()?;
        let as_held = |(of, through, copy): (ObjectId, u64, KeptCopy)| Held {
            at: copy.at,
            through,
            how: How::Kept { of, copy },
        };
        let mut found: Vec<Held> = kept.on(disk).map(as_held).take(most).collect();
        let (mut seen, mut without) = (HashSet::new(), Vec::new());
        // The newest first: the first one that refers to an object is the one that counts.
        for (number, record) in self.sharing.list().into_iter().rev() {
            if !record.disks.contains(&disk) {
                continue;
            }
            let store = match self.frozen_store(number) {
                Err(StoreError::Missing(_)) if record.stage == SnapshotStage::Removing => continue,
                store => store?,
            };
            let mut has_any = false;
            let (mut from, to) = key::prefix_range(&[key::INODE]);
            loop {
                if found.len() >= most {
                    return Ok(found);
                }
                let rows = store.scan(&from, &to, CHUNK)?;
                for (key, value) in &rows {
                    let Some(Key::Inode(ino)) = key::parse(key) else { continue };
                    let object = decode::<InodeRecord>("inode", value)?.layout.object();
                    let Some(at) = object.filter(|at| at.disk == disk) else { continue };
                    if kept.resolve(at, number) != at {
                        continue;
                    }
                    has_any = true;
                    if seen.insert(at) {
                        let how = How::Referred { ino, newest };
                        found.push(Held { at, through: number, how });
                    }
                }
                let Some((last, _)) = rows.last().filter(|_| rows.len() == CHUNK) else { break };
                from.clone_from(last);
                from.push(0);
            }
            if !has_any {
                without.push(number);
            }
        }
        self.leave_disk(disk, &without)?;
        found.truncate(most);
        Ok(found)
    }

    /// Notes that nothing of some snapshots lies on a disk any more.
    fn leave_disk(&self, disk: DiskId, snapshots: &[u64]) -> Result<()> {
        if snapshots.is_empty() {
            return Ok(());
        }
        let mut writes = self.writes.lock();
        let mut known = self.sharing.known.lock();
        for number in snapshots {
            let Some(record) = known.all.get_mut(number) else { continue };
            record.disks.retain(|other| *other != disk);
            writes.put(key::snapshot(*number), encode(record), Known::MayExist);
        }
        drop((known, writes));
        self.commit()
    }

    /// Copies what snapshots hold to one of the disks that `suit`. Nothing refers to the copy yet, and it has no name: if it is dropped it
    /// is gone.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::Io`], what `pace` says.
    pub(crate) fn copy_held(
        &self,
        held: &Held,
        suits: impl Fn(&FsDisk) -> bool,
        pace: &Pace<'_>,
    ) -> Result<(Arc<LiveObject>, u64)> {
        let objects = &self.shared.objects;
        let seen = objects.attributes(held.at)?.ok_or_else(|| {
            FsError::Io(format!("object {} of a snapshot does not exist: run fsck", held.at.id))
        })?;
        let old = objects.open_to_read(held.at)?;
        let number = || self.take_object_id();
        let suits = |of: &FsDisk| !of.is_archive() && of.id != held.at.disk && suits(of);
        let new = objects.make_for_move(held.at.disk, suits, number)?;
        self.copy_object((&old, seen.size), &new, pace)?;
        self.set_time_of_copy(&new, seen.modified)?;
        // What takes long is done before anybody waits.
        objects.sync_unasked(&new)?;
        self.shared.fail_points.reach("snapshot.move.copied")?;
        Ok((new, seen.size))
    }

    pub(super) fn set_time_of_copy(
        &self,
        new: &LiveObject,
        modified: forebay_base::Timestamp,
    ) -> Result<()> {
        match new.object.set_modified(modified) {
            Err(DiskError::Unsupported) => Ok(()),
            timed => self.shared.objects.observe(new.at.disk, timed),
        }
    }

    /// For a file that is about to be moved: what the snapshots that share its object are to have instead, sharing the blocks of the
    /// copy that the file is about to have. `None` if they do not share it, or that disk cannot share blocks.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::Io`].
    pub(crate) fn copy_for_snapshots(
        &self,
        resting: &Resting,
        moved: &LiveObject,
    ) -> Result<Option<(Held, Arc<LiveObject>)>> {
        let at = resting.old.at;
        if !self.sharing.is_shared(at.id) || self.shared.objects.is_archive(moved.at.disk) {
            return Ok(None);
        }
        let newest = self.sharing.known.lock().newest;
        let how = How::Referred { ino: resting.ino, newest };
        let number = || self.take_object_id();
        let beside = |of: &FsDisk| of.id == moved.at.disk;
        let new = self.shared.objects.make_for_copy(moved.at.disk, beside, number)?;
        match new.object.share_from(&*moved.object) {
            Err(DiskError::Unsupported) => return Ok(None),
            shared => self.shared.objects.observe(new.at.disk, shared)?,
        }
        self.set_time_of_copy(&new, resting.seen.modified)?;
        Ok(Some((Held { at, through: newest, how }, new)))
    }

    /// Has the snapshots turn to a copy of what they hold, unless that has changed meanwhile. No snapshot may be made or removed
    /// meanwhile: see [`super::Sharing::begin_change`].
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::Io`].
    pub(crate) fn turn_to_held(&self, held: &Held, new: &LiveObject) -> Result<Moved> {
        match held.how {
            How::Kept { of, copy } => self.turn_kept(held, (of, copy), new),
            How::Referred { ino, newest } => self.turn_referred(held, (ino, newest), new),
        }
    }

    fn turn_kept(
        &self,
        held: &Held,
        (of, copy): (ObjectId, KeptCopy),
        new: &LiveObject,
    ) -> Result<Moved> {
        let key = key::kept(of, held.through);
        let found = self.read_key(&key)?;
        let found = found.map(|value| decode::<KeptCopy>("a copy that a snapshot keeps", &value));
        if found.transpose()? != Some(copy) {
            return Ok(Moved::Gone);
        }
        self.name_copy(key, KeptCopy { at: new.at, made: copy.made }, new)?;
        self.shared.objects.remove_now(Removal { at: held.at, bytes: 0 });
        Ok(Moved::Whole(0))
    }

    fn turn_referred(
        &self,
        held: &Held,
        (ino, newest): (Ino, u64),
        new: &LiveObject,
    ) -> Result<Moved> {
        let Held { at, through, .. } = *held;
        let _one_for_each = self.sharing.begin_parting(at.id);
        {
            let known = self.sharing.known.lock();
            let is_made = |number| {
                known.all.get(&number).is_some_and(|record| record.stage == SnapshotStage::Made)
            };
            // A newer one may refer to it, too.
            if known.newest != newest || !is_made(through) {
                return Ok(Moved::Gone);
            }
        }
        // Somebody may have written to it since, and the snapshots have a copy.
        if self.resolve(at, through)? != at {
            return Ok(Moved::Gone);
        }
        self.name_copy(key::kept(at.id, through), KeptCopy::new(new.at), new)?;
        // Whatever removes it from the fileset from now on removes it from its disk.
        self.set_apart(ino, at)?;
        Ok(Moved::Whole(0))
    }

    /// Has a record name a copy, durably.
    fn name_copy(&self, key: Vec<u8>, copy: KeptCopy, new: &LiveObject) -> Result<()> {
        let objects = &self.shared.objects;
        objects.publish(new).inspect_err(|_| {
            self.give_up_copy(new);
            objects.leave_behind(self.number());
        })?;
        objects.sync(new, Sync::All).inspect_err(|_| self.give_up_copy(new))?;
        self.shared.fail_points.reach("snapshot.move.synced")?;
        {
            // Whoever reads the former object for a snapshot has ended, and the next one finds the copy.
            let _turned = self.sharing.reading.write();
            self.writes.lock().put(key, encode(&copy), Known::MayExist);
            self.sharing.turns.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
        }
        // A later commit has the record: the former object belongs to nothing then.
        self.commit().inspect_err(|_| objects.leave_behind(self.number()))?;
        Ok(self.shared.fail_points.reach("snapshot.move.turned")?)
    }
}
