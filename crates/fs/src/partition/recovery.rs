//! Opening a fileset, after an orderly end or a crash, and closing it.
//!
//! The store is always a consistent cut, so there is nothing to replay. What a crash leaves behind:
//! - records whose file was written after the record: they are compared with their object when the
//!   inode is next loaded (`Partition::reconcile`); the object's size is the truth;
//! - objects that no record refers to: the sweep removes them in the background.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use forebay_base::hash::HashKey;
use forebay_base::{DiskId, Epoch, FilesetId, Ino};
use forebay_disk::DiskError;
use forebay_store::{Batch, Store, Stores};
use parking_lot::Mutex;

use crate::commit::{CommitTurn, is_full};
use crate::error::{FsError, Result};
use crate::gate::Gate;
use crate::grants::Granting;
use crate::inode::{Inode, State};
use crate::key::{self, Key, Term};
use crate::number::{NUMBER_MAX, NumberRange, RESERVE};
use crate::object::Objects;
use crate::partition::copies::Copies;
use crate::partition::fenced::Fenced;
use crate::partition::quota::read_quotas;
use crate::partition::snapshots::Sharing;
use crate::partition::{Choices, Partition, Sweep, signed};
use crate::record::{
    DiskRecord, DiskUsage, FilesetSettings, InodeRecord, MountState, ObjectRef, Superblock, Usage,
    decode, encode,
};
use crate::shared::Shared;
use crate::stats::Counters;
use crate::writeset::{UsageOfDisks, WriteSet};

/// Records read from the store at a time in a scan.
const SCAN_CHUNK: usize = 4096;

/// Reads the superblock.
///
/// # Errors
/// [`FsError::Damaged`] if there is none; what the store says.
pub fn read_superblock(store: &dyn Store) -> Result<Superblock> {
    let bytes = store
        .get(key::SUPERBLOCK)?
        .ok_or_else(|| FsError::Damaged("the store holds no file system".to_owned()))?;
    decode("superblock", &bytes)
}

/// What a scan calls with each key and value.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;

/// Calls `visit` with every pair whose key begins with `prefix`, in key order.
///
/// # Errors
/// What the store or `visit` says.
pub fn scan_prefix(store: &dyn Store, prefix: &[u8], visit: &mut Visit<'_>) -> Result<()> {
    let (mut from, to) = key::prefix_range(prefix);
    loop {
        let rows = store.scan(&from, &to, SCAN_CHUNK)?;
        for (key, value) in &rows {
            visit(key, value)?;
        }
        let Some((last, _)) = rows.last().filter(|_| rows.len() == SCAN_CHUNK) else {
            return Ok(());
        };
        from.clone_from(last);
        from.push(0);
    }
}

/// What the fileset of a store holds, also on each disk.
pub(crate) fn read_usage(store: &dyn Store) -> Result<(Usage, UsageOfDisks)> {
    let usage = match store.get(key::USAGE)? {
        Some(value) => decode::<Usage>("usage", &value)?,
        None => Usage::default(),
    };
    let mut disks = UsageOfDisks::default();
    scan_prefix(store, &[key::DISK_USAGE], &mut |key, value| {
        if let Some(Key::DiskUsage(id)) = key::parse(key) {
            disks.insert(id, decode("disk usage", value)?);
        }
        Ok(())
    })?;
    Ok((usage, disks))
}

/// Counts what files take in archives, where an earlier version of this program counted objects alone. Each file lies there as its
/// record says, as nobody changes it.
fn count_archived(store: &dyn Store, disks: &mut UsageOfDisks, objects: &Objects) -> Result<()> {
    let is_unknown = |disk: DiskId, usage: &DiskUsage| {
        usage.files.is_none() && usage.objects > 0 && objects.is_archive(disk)
    };
    let unknown = disks.iter().filter(|(disk, usage)| is_unknown(**disk, usage));
    let mut counted: UsageOfDisks =
        unknown.map(|(disk, _)| (*disk, DiskUsage::default())).collect();
    if counted.is_empty() {
        return Ok(());
    }
    scan_prefix(store, &[key::INODE], &mut |_, value| {
        let record: InodeRecord = decode("inode", value)?;
        if let Some(usage) = record.layout.object().and_then(|at| counted.get_mut(&at.disk)) {
            usage.add(1, signed(record.size), signed(record.allocated_bytes));
        }
        Ok(())
    })?;
    for (disk, found) in counted {
        disks.entry(disk).or_default().files = found.files;
    }
    Ok(())
}

/// Reads the term.
///
/// # Errors
/// [`FsError::Damaged`] if there is none; what the store says.
pub fn read_term(store: &dyn Store) -> Result<Term> {
    let found = store.get(key::TERM)?;
    found
        .as_deref()
        .and_then(Term::from_bytes)
        .ok_or_else(|| FsError::Damaged("the store has no term".to_owned()))
}

/// Reads what [`Partition::open`] reads, so that it finds it in memory. What cannot be read it says itself.
pub(crate) fn read_ahead(store: &dyn Store) {
    let _ = read_superblock(store);
    let _ = read_usage(store);
    let _ = read_quotas(store);
    let _ = Sharing::read(store);
    let _ = read_term(store);
}

/// Marks a fileset as left in order that its owner of `epoch` has closed, on disks that were synced since.
///
/// # Errors
/// [`FsError::Fenced`] if another owner came in between; what the store says.
pub(crate) fn mark_left(store: &dyn Store, epoch: Epoch) -> Result<()> {
    let (superblock, term) = (read_superblock(store)?, read_term(store)?);
    if superblock.epoch != epoch || term.epoch != epoch {
        return Err(FsError::Fenced);
    }
    let left = Superblock { state: MountState::Clean, sweep_due: false, ..superblock };
    let next = Term { batch: term.batch + 1, ..term };
    let batch = Batch {
        requires: vec![(key::TERM.to_vec(), Some(term.to_bytes()))],
        changes: [
            (key::TERM.to_vec(), Some(next.to_bytes())),
            (key::SUPERBLOCK.to_vec(), Some(encode(&left))),
        ]
        .into(),
    };
    Ok(store.commit(&batch)?)
}

/// A limit of numbers moved ahead.
fn raise(limit: u64) -> Result<u64> {
    limit
        .checked_add(RESERVE)
        .filter(|raised| *raised <= NUMBER_MAX)
        .ok_or_else(|| FsError::Damaged(format!("superblock: a limit of numbers is {limit}")))
}

/// What a partition is opened with.
pub(crate) struct Opening<'a> {
    pub number: FilesetId,
    /// Identity of the file system.
    pub uuid: &'a str,
    pub shared: &'a Arc<Shared>,
    pub store: Arc<dyn Store>,
    /// All stores: those of its snapshots are among them.
    pub stores: &'a Arc<dyn Stores>,
    /// Name and settings in force.
    pub settings: FilesetSettings,
    pub counters: Arc<Counters>,
    /// The disks of the file system.
    pub disks: &'a [DiskRecord],
    /// The epoch of this owner, where a cluster assigns it; otherwise it is the next one.
    pub epoch: Option<Epoch>,
    /// The epoch in which this process itself closed it in order, if it did: no crash has come since.
    pub rested_in: Option<Epoch>,
}

impl Partition {
    /// Opens a fileset and becomes its owner: every earlier owner is fenced off.
    ///
    /// # Errors
    /// [`FsError::Damaged`] if the store holds no (readable) fileset, or another one; [`FsError::Fenced`] if another
    /// owner came in between.
    pub(crate) fn open(opening: Opening<'_>) -> Result<Arc<Partition>> {
        let Opening { number, uuid, shared, store, settings, counters, disks, epoch, .. } = opening;
        let (rested_in, frozen) = (opening.rested_in, Arc::clone(opening.stores));
        let before = read_superblock(&*store)?;
        if before.uuid != uuid {
            return Err(FsError::Damaged(format!(
                "the store of fileset {number} belongs to the file system {}",
                before.uuid
            )));
        }
        if before.fileset != number {
            return Err(FsError::Damaged(format!(
                "the store of fileset {number} is that of fileset {}",
                before.fileset
            )));
        }
        // Another owner came later, and has it already.
        if epoch.is_some_and(|epoch| epoch <= before.epoch) {
            return Err(FsError::Fenced);
        }
        shared.fail_points.reach("recovery.start")?;
        let has_rested = rested_in == Some(before.epoch);
        let crashed = before.state == MountState::Mounted && !has_rested;
        let superblock = Superblock {
            epoch: epoch.unwrap_or_else(|| before.epoch.next()),
            state: MountState::Mounted,
            crashed_epoch: if crashed { before.epoch } else { before.crashed_epoch },
            ino_limit: raise(before.ino_limit)?,
            object_limit: raise(before.object_limit)?,
            settings: settings.clone(),
            disks: disks.to_vec(),
            ..before.clone()
        };
        // Whatever cannot be read is found before anything is changed.
        let (usage, mut usage_of_disks) = read_usage(&*store)?;
        count_archived(&*store, &mut usage_of_disks, &shared.objects)?;
        let quotas = read_quotas(&*store)?;
        let sharing = Sharing::read(&*store)?;
        let fence = store.get(key::FENCED)?;
        let fenced = Fenced::found(fence.as_deref(), disks, (crashed, before.object_limit))?;
        let copies = Copies::read(&*store, &settings, before.object_limit, &shared.objects)?;
        let term_before = read_term(&*store)?;
        if term_before.epoch != before.epoch {
            return Err(FsError::Damaged(format!(
                "the term is of epoch {}, the superblock of epoch {}",
                term_before.epoch, before.epoch
            )));
        }
        let term = Term { epoch: superblock.epoch, batch: 0 };
        let taken_over = Batch {
            requires: vec![(key::TERM.to_vec(), Some(term_before.to_bytes()))],
            changes: [
                (key::TERM.to_vec(), Some(term.to_bytes())),
                (key::SUPERBLOCK.to_vec(), Some(encode(&superblock))),
            ]
            .into_iter()
            .chain(fenced.record())
            .collect(),
        };
        shared.reserve.spend(|| store.commit(&taken_over), is_full)?;
        let granting = shared.cluster.as_ref().map(|cluster| {
            let (clock, lease) = (&shared.clock, shared.lease.as_ref());
            Granting::new(number, superblock.epoch, clock, lease, cluster)
        });
        let mut writes = WriteSet::new(usage, usage_of_disks, Arc::clone(&shared.crowd));
        writes.quotas = quotas;
        let partition = Partition {
            number,
            granting,
            limited: AtomicBool::new(false),
            is_cache: AtomicBool::new(false),
            write_back: std::sync::OnceLock::new(),
            quota_changes: Mutex::default(),
            sharing,
            copies,
            frozen,
            gate: Gate::with(shared.lease.clone()),
            term: Mutex::new(term),
            epoch: superblock.epoch,
            hash_key: HashKey(superblock.hash_key),
            choices: Choices::of(&settings, &shared.objects),
            counters,
            suspect_epoch: superblock.crashed_epoch,
            first_new_ino: before.ino_limit,
            writes: Mutex::new(writes),
            turn: CommitTurn::new(shared.clock.instant()),
            commit_wanted: AtomicBool::new(false),
            ino_numbers: NumberRange::new(before.ino_limit, superblock.ino_limit),
            object_numbers: NumberRange::new(before.object_limit, superblock.object_limit),
            fenced,
            issued: Mutex::default(),
            writers: Mutex::default(),
            directory_moves: Mutex::default(),
            damage: super::damage::Damage::default(),
            names_lapse: AtomicBool::new(false),
            kept_until_ns: AtomicU64::new(0),
            sweep: Mutex::new(Sweep {
                done: has_rested || (!crashed && !before.sweep_due),
                below: before.object_limit,
            }),
            superblock: Mutex::new(superblock),
            store,
            shared: Arc::clone(shared),
        };
        partition.note_quotas(&partition.writes.lock());
        Ok(Arc::new(partition))
    }

    /// Compares an inode with its object, as a crash came after its record was written: the object's
    /// size is the truth. An object that is missing was never synced: the file is empty then.
    pub(crate) fn reconcile(&self, ino: Ino, state: &mut State) -> Result<()> {
        let Some(at) = state.file().and_then(|file| file.object) else { return Ok(()) };
        if self.shared.objects.is_archive(at.disk) {
            // Nobody writes to it, and the record came after it was proven.
            return Ok(());
        }
        let found = match self.shared.objects.attributes(at) {
            // What is on a disk that is not there cannot be compared; it stays to be compared.
            Err(FsError::Absent(_) | FsError::Away { .. }) => return Ok(()),
            // Whoever needs it turns to a copy.
            Err(_) | Ok(None) if self.copies.is_in_use() && self.copies_of(at.id)?.is_some() => {
                return Ok(());
            }
            found => found?,
        };
        let Some(found) = found else {
            tracing::warn!(%ino, object = %at.id, "contents were not synced before the crash");
            self.damage.note(ino, "contents were not synced before the crash");
            let disk = self.shared.objects.disk(at.disk)?;
            let mut writes = self.writes.lock();
            match state.file_mut() {
                // Some of them may be there. It was just loaded: nobody has it open.
                Some(file) if disk.is_striped => drop(self.drop_object(&mut writes, file, 0)),
                Some(file) => file.object = None,
                None => {}
            }
            state.size = 0;
            state.allocated_bytes = 0;
            self.put_inode(&mut writes, ino, state);
            return Ok(());
        };
        // Nothing that is recorded sets the inode's change time before the object's.
        if found.size != state.size || found.modified > state.changed {
            state.size = found.size;
            state.allocated_bytes = found.allocated_bytes;
            state.modified = state.modified.max(found.modified);
            state.changed = state.changed.max(found.modified);
            self.put_inode(&mut self.writes.lock(), ino, state);
        }
        Ok(())
    }

    /// Removes the fileset's objects that no record refers to, if the last owner crashed. Only objects made before
    /// this opening are looked at: they can lose their last reference but never gain one. Those of other filesets
    /// are not seen.
    ///
    /// # Errors
    /// What the store or a disk says; the next opening sweeps again if this one does not end in order.
    pub fn sweep(&self) -> Result<()> {
        let mut sweep = self.sweep.lock();
        if sweep.done {
            return Ok(());
        }
        // An object that moves from the fileset to a new snapshot meanwhile would be seen with neither.
        let _no_new_snapshot = self.sharing().begin_change();
        // Before the inodes: a file that turns to a copy meanwhile is seen with one of them.
        let copies = self.referenced_copies()?;
        let mut referenced = self.referenced_objects()?;
        self.drop_copies_of_nobody(&copies, &referenced, sweep.below);
        referenced.extend(copies.into_iter().flat_map(|(_, copies)| copies));
        // After the records: one that has lost its name since is among those.
        referenced.extend(self.read_in_archives());
        referenced.sort_unstable();
        let (mut removed, mut complete) = (0_u64, true);
        for (disk_id, disk) in self.shared.objects.numbered_disks() {
            let mut orphans = Vec::new();
            let listed = disk.disk.list_of(self.number, &mut |id| {
                let at = ObjectRef { disk: disk_id, id };
                if id.local() < sweep.below && referenced.binary_search(&at).is_err() {
                    orphans.push(id);
                }
                true
            });
            match listed {
                // It will not come back.
                Err(_) if !disk.is_expected() => {}
                Err(DiskError::Absent(_) | DiskError::Away { .. }) => complete = false,
                Err(_) if disk.is_failing() => complete = false,
                listed => listed?,
            }
            for id in orphans {
                disk.disk.remove(id)?;
                removed += 1;
            }
        }
        self.shared.fail_points.reach("recovery.swept")?;
        sweep.done = complete;
        self.remove_unneeded_copies_of_files()?;
        tracing::info!(fileset = %self.number, removed, "swept objects that the crash left behind");
        Ok(())
    }

    /// Whether objects that belong to nothing were removed since the opening, on all disks.
    pub(crate) fn is_swept(&self) -> bool {
        self.sweep.lock().done
    }

    /// Whether there may be objects that belong to nothing.
    pub(crate) fn is_unswept(&self) -> bool {
        !self.is_swept() || self.shared.objects.has_left_behind(self.number)
    }

    fn referenced_objects(&self) -> Result<Vec<ObjectRef>> {
        let mut referenced = Vec::new();
        scan_prefix(&*self.store, &[key::INODE], &mut |_, value| {
            // A record that cannot be read may refer to any object: fsck must look first.
            referenced.extend(decode::<InodeRecord>("inode", value)?.layout.object());
            Ok(())
        })?;
        self.add_objects_of_snapshots(&mut referenced)?;
        referenced.sort_unstable();
        Ok(referenced)
    }

    /// The cached inodes of the fileset.
    pub(crate) fn cached(&self) -> Vec<Arc<Inode>> {
        self.shared.inodes.of(self.number)
    }

    /// Drops the objects of inodes without a name: the kernel forgets in silence what it knows of a file
    /// system that is unmounted.
    fn drop_nameless(&self) {
        for inode in self.cached() {
            let mut state = inode.lock();
            if state.nlink == 0
                && let Some(file) = state.file_mut()
            {
                let dropped = self.drop_object(&mut self.writes.lock(), file, 0);
                dropped.into_iter().for_each(|live| self.shared.objects.drop_handle(live));
            }
        }
    }

    /// Closes the objects of all files. The kernel takes down the rings of a process in the background, after
    /// its end, and with them what was registered: the disk could not be unmounted until then.
    pub(crate) fn let_go(&self) {
        for inode in self.cached() {
            if let Some(file) = inode.lock().file_mut() {
                file.live = None;
            }
        }
    }

    /// Whether any file of the fileset is open.
    pub(crate) fn has_open_files(&self) -> bool {
        self.cached().iter().any(|inode| inode.lock().handles() > 0)
    }

    /// Whether the kernel still writes to objects itself: after an unmount by force, or an abort of the
    /// connection, files that are open on the direct path stay writable, and nobody tells us.
    fn is_still_written(&self) -> bool {
        let writers: Vec<Ino> = self.writers.lock().iter().copied().collect();
        writers.into_iter().filter_map(|ino| self.shared.inodes.peek(ino)).any(|inode| {
            let state = inode.lock();
            let live = state.file().and_then(|file| file.live.as_ref());
            live.is_some_and(|live| live.has_other_users())
        })
    }

    /// Commits everything, and removes what belongs to nothing. No request may be under way. Returns whether the
    /// store can be marked clean: not while files are still being written.
    ///
    /// # Errors
    /// What the store or a disk says: the fileset then counts as crashed.
    pub(crate) fn settle(&self) -> Result<bool> {
        if let Some(why) = self.gate.closed() {
            return Err(why);
        }
        self.void_numbers();
        self.drop_nameless();
        // Before sizes are taken: nobody can open a file any more, so those that nobody writes now stay as
        // they are, while one that is closed during the rest may have grown after its size was taken.
        let still_written = self.is_still_written();
        // First of all: whatever hinders the rest, what was done is kept.
        self.commit()?;
        self.store_fence()?;
        self.sweep()?;
        self.remove_unneeded_copies_of_files()?;
        self.shared.objects.finish_reclaim();
        if self.shared.objects.has_left_behind(self.number) {
            // Nothing is pending any more: what no record refers to now, belongs to nothing. What a later owner makes, should this
            // process stand still in between, has higher numbers.
            *self.sweep.lock() = Sweep { done: false, below: self.object_numbers.limit() };
            self.sweep()?;
            if self.sweep.lock().done {
                self.shared.objects.none_left_behind(self.number);
            }
        }
        Ok(!still_written)
    }

    /// Marks a fileset that is settled, on disks that were synced since, as left in order; `others_unswept` tells in
    /// the root fileset that others need a sweep.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn mark_clean(&self, others_unswept: bool) -> Result<()> {
        self.store_clean(others_unswept || self.is_unswept())
    }

    /// Ends the use of the store.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn close_store(&self) -> Result<()> {
        Ok(self.store.close()?)
    }

    /// Leaves less to do for [`Partition::close_store`] and for whoever opens the store next.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn shorten_log(&self) -> Result<()> {
        Ok(self.store.shorten_log()?)
    }

    /// Numbers that the fileset never used: of inodes and of objects.
    pub(crate) fn unused_numbers(&self) -> (u64, u64) {
        (self.ino_numbers.limit(), self.object_numbers.limit())
    }
}
