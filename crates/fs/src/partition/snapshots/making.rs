//! Making a snapshot: while the requests of the fileset wait at its gate, everything is committed, files that are open for
//! writing are copied, and the store is frozen. Then the requests go on, and the rest is done beside them.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_base::Ino;

use crate::error::{FsError, Result};
use crate::gate::Gate;
use crate::inode::{FileBody, Inode, State};
use crate::key;
use crate::object::LiveObject;
use crate::partition::Partition;
use crate::record::{ObjectRef, encode};
use crate::snapshot::{KeptCopy, SnapshotRecord, SnapshotStage};
use crate::writeset::Known;

/// Requests wait at a gate until this is dropped.
pub(crate) struct Waiting<'a>(&'a Gate);

impl Waiting<'_> {
    pub fn at(gate: &Gate) -> Waiting<'_> {
        gate.wait();
        Waiting(gate)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// An object, and the copy of it that a snapshot has.
type Copied = (ObjectRef, Arc<LiveObject>);

/// A snapshot that is being made.
pub(crate) struct Cut {
    number: u64,
    record: SnapshotRecord,
    /// Files that were open for writing: their objects, and the copies that the snapshot has of them.
    copies: Vec<Copied>,
    /// How far objects were shared before.
    below: u64,
    newest: u64,
    apart: HashSet<u64>,
}

/// A file that somebody may be writing.
enum Written {
    No,
    /// It has this object.
    Open(Arc<LiveObject>),
}

impl Partition {
    /// What can be done before requests wait: bytes that were written are on their way to the disk, and little is uncommitted.
    ///
    /// # Errors
    /// [`FsError::Refused`] if the name is taken, or is none; what a commit says.
    pub(crate) fn prepare_snapshot(&self, name: &str) -> Result<()> {
        crate::snapshot::check_name(name)?;
        if self.sharing.known.lock().all.values().any(|record| record.name == name) {
            return Err(FsError::Refused(format!(
                "there is a snapshot \"{name}\" already: delete it first, or choose another name"
            )));
        }
        for inode in self.cached() {
            let written = self.written(&inode, &mut inode.lock());
            if let Written::Open(live) = written {
                // What cannot be synced is told to whoever syncs it.
                let _ = self.shared.objects.sync_unasked(&live);
            }
        }
        self.commit()
    }

    /// The moment of the snapshot. All requests have ended and wait.
    ///
    /// # Errors
    /// What the store or a disk says: there is no snapshot then.
    pub(crate) fn cut_snapshot(&self, name: &str, waiting: Waiting<'_>) -> Result<Cut> {
        let _turn = self.hold_turn();
        self.refresh_writers();
        self.commit_held()?;
        self.shared.fail_points.reach("snapshot.begun")?;
        let (copies, unreferred) = self.copy_written()?;
        let disks = {
            let writes = self.writes.lock();
            let used = writes.usage_of_disks().iter().filter(|(_, usage)| usage.objects > 0);
            let mut disks: Vec<_> = used.map(|(disk, _)| *disk).collect();
            disks.extend(copies.iter().map(|(_, copy)| copy.at.disk));
            disks.sort_unstable();
            disks.dedup();
            disks
        };
        let record = SnapshotRecord {
            name: name.to_owned(),
            created: self.now(),
            stage: SnapshotStage::Made,
            below: self.object_numbers.next(),
            usage: self.usage(),
            disks,
        };
        let number = self.sharing.known.lock().highest + 1;
        let is_shared = match self.frozen.freeze_shared(self.number, number) {
            Ok(is_shared) => is_shared,
            Err(error) => {
                copies.iter().for_each(|(_, copy)| self.give_up_copy(copy));
                return Err(error.into());
            }
        };
        let cut = self.share(number, record, (copies, unreferred));
        drop(waiting);
        if !is_shared
            && let Err(error) = self.frozen.freeze_copied(self.number, number, &*self.store)
        {
            self.undo_cut(&cut);
            return Err(error.into());
        }
        Ok(cut)
    }

    /// From now on the objects of the snapshot are shared.
    fn share(
        &self,
        number: u64,
        record: SnapshotRecord,
        (copies, unreferred): (Vec<Copied>, Vec<ObjectRef>),
    ) -> Cut {
        // Files without a name may be closed at any time, and whoever commits that asks afterwards whether their objects are shared.
        let writes = self.writes.lock();
        let mut known = self.sharing.known.lock();
        let below = self.sharing.below.load(Ordering::Acquire);
        let (newest, before) = (known.newest, std::mem::take(&mut known.apart));
        // An earlier snapshot may refer to the object of a file that has lost its name since.
        let is_free = |at: &ObjectRef| at.id.local() >= below || before.contains(&at.id.local());
        let free = unreferred.into_iter().chain(writes.pending_removals()).filter(is_free);
        let copied = copies.iter().map(|(at, _)| *at);
        known.apart = copied.chain(free).map(|at| at.id.local()).collect();
        known.newest = number;
        known.highest = number;
        self.sharing.below.store(record.below, Ordering::Release);
        Cut { number, record, copies, below, newest, apart: before }
    }

    /// Takes a cut back that did not become a snapshot.
    pub(crate) fn undo_cut(&self, cut: &Cut) {
        let mut known = self.sharing.known.lock();
        known.newest = cut.newest;
        // What was taken apart since is so from the earlier ones, too.
        known.apart.extend(&cut.apart);
        self.sharing.below.store(cut.below, Ordering::Release);
        drop(known);
        cut.copies.iter().for_each(|(_, copy)| self.give_up_copy(copy));
        // Objects that were dropped meanwhile stayed.
        self.shared.objects.leave_behind(self.number);
        if let Err(error) = self.frozen.remove_frozen(self.number, cut.number) {
            tracing::warn!(fileset = %self.number, %error, "a copy of the store was left behind");
        }
    }

    /// Has the snapshot be there after a crash. Requests go on meanwhile.
    ///
    /// # Errors
    /// What the store or a disk says: there is no snapshot then.
    pub(crate) fn finish_snapshot(&self, cut: &Cut) -> Result<()> {
        let finished = self.frozen.finish_frozen(self.number, cut.number).map_err(FsError::from);
        let finished = finished.and_then(|()| {
            self.shared.fail_points.reach("snapshot.frozen")?;
            self.shared.objects.sync_disks()?;
            self.register(cut)
        });
        // Where it is not known whether the store has it, nothing is taken back: the next mount knows.
        if finished.is_err() && self.gate.closed().is_none() {
            self.undo_cut(cut);
        }
        finished
    }

    fn register(&self, cut: &Cut) -> Result<()> {
        let mut keys = vec![key::snapshot(cut.number)];
        {
            let _turned = self.sharing.reading.write();
            let mut writes = self.writes.lock();
            writes.put(keys[0].clone(), encode(&cut.record), Known::Absent);
            for (at, copy) in &cut.copies {
                let key = key::kept(at.id, cut.number);
                writes.put(key.clone(), encode(&KeptCopy::new(copy.at)), Known::Absent);
                keys.push(key);
            }
            self.sharing.turns.fetch_add(1, Ordering::AcqRel);
        }
        if let Err(error) = self.commit() {
            if self.gate.closed().is_some() {
                return Err(error);
            }
            let mut writes = self.writes.lock();
            keys.into_iter().for_each(|key| writes.delete(key));
            return Err(error);
        }
        self.sharing.known.lock().all.insert(cut.number, cut.record.clone());
        self.shared.fail_points.reach("snapshot.made")?;
        Ok(())
    }

    /// Copies of all files that somebody may be writing, and the objects of files without a name or without any byte.
    fn copy_written(&self) -> Result<(Vec<Copied>, Vec<ObjectRef>)> {
        let (mut written, mut unreferred) = (Vec::new(), Vec::new());
        for inode in self.cached() {
            let mut state = inode.lock();
            let Some(at) = state.file().and_then(|file| file.object) else { continue };
            if state.nlink == 0 {
                unreferred.push(at);
            } else if let Written::Open(live) = self.written(&inode, &mut state) {
                written.push(live);
            } else if state.file().is_some_and(FileBody::is_unpublished) {
                unreferred.push(at);
            }
        }
        written.extend(self.still_mapped()?);
        let mut copies: Vec<Copied> = Vec::new();
        let mut seen = HashSet::new();
        for live in written {
            if !seen.insert(live.at) {
                continue;
            }
            match self.copy_whole(&live) {
                Ok(copy) => copies.push((live.at, copy)),
                Err(error) => {
                    copies.iter().for_each(|(_, copy)| self.give_up_copy(copy));
                    return Err(error);
                }
            }
        }
        Ok((copies, unreferred))
    }

    fn written(&self, inode: &Inode, state: &mut State) -> Written {
        let Some(file) = state.file().filter(|file| file.object.is_some()) else {
            return Written::No;
        };
        let Some(live) = file.live.as_ref() else { return Written::No };
        let is_written = file.opens.is_written()
            || (file.was_mappable && live.is_open_elsewhere())
            || self.sharing.mapped.lock().contains(&inode.ino);
        if is_written { Written::Open(Arc::clone(live)) } else { Written::No }
    }

    /// Objects of files that nobody has open, and that are mapped all the same.
    fn still_mapped(&self) -> Result<Vec<Arc<LiveObject>>> {
        let inos: Vec<Ino> = self.sharing.mapped.lock().iter().copied().collect();
        let mut found = Vec::new();
        for ino in inos {
            let inode = match self.inode(ino) {
                Err(FsError::Stale) => None,
                inode => Some(inode?),
            };
            let live = inode.and_then(|inode| {
                let mut state = inode.lock();
                let file = state.file_mut().filter(|file| file.object.is_some())?;
                let live = self.make_live(file).ok()?;
                if file.opens.handles == 0 {
                    self.shared.idle.closed(ino, file);
                }
                Some(live)
            });
            match live.filter(|live| live.is_open_elsewhere()) {
                Some(live) => found.push(live),
                None => drop(self.sharing.mapped.lock().remove(&ino)),
            }
        }
        Ok(found)
    }
}
