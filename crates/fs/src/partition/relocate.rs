//! Moving the object of a file at rest to another disk.
//!
//! The object is copied while the file is not in use: nobody has it open, and no mapping is left of it. The copy is made
//! without any lock, published and synced. Then the record of the file turns to the copy, and the old object is removed
//! after the commit of that batch, as always. If anybody has used the file meanwhile the copy is given up: programs never
//! wait for a move, and never see one.
//!
//! What survives a crash: the file, in its old object or in the new one. The other one belongs to nothing, and the sweep
//! removes it.

use std::sync::Arc;

use forebay_base::{DiskId, Ino};
use forebay_disk::{DiskError, ObjectAttributes, Seek, Sync};

use crate::error::{FsError, Result};
use crate::inode::State;
use crate::key::{self, Key};
use crate::object::{FsDisk, LiveObject};
use crate::partition::Partition;
use crate::record::{CopiesRecord, InodeRecord, ObjectRef, decode};
use crate::writeset::Removal;

/// Bytes that are copied at a time.
const CHUNK: u64 = 1 << 20;

/// What became of one file that was to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// It lies elsewhere now; so many bytes were copied.
    Whole(u64),
    /// It lies in an archive alone now, where so many bytes of it lay already.
    Evicted(u64),
    /// A program uses it, or has used it since its copy was begun.
    InUse,
    /// It does not lie there any more.
    Gone,
    /// A snapshot refers to its object: to move the file into an archive would free nothing.
    Shared,
    /// Somebody has said that it stays out of archives.
    Pinned,
}

/// What becomes of the copies of a file whose object is exchanged.
#[derive(Clone, Copy)]
pub(super) enum TheCopies<'a> {
    /// It has none, or they go with the former object.
    Unknown,
    /// They are copies of the other object from now on.
    Follow(&'a CopiesRecord),
    /// One of them is the other object; the rest goes.
    Go(&'a CopiesRecord),
}

/// Says after each piece of a copy whether it goes on, and takes its time for that.
pub(crate) type Pace<'a> = dyn Fn(u64) -> Result<()> + 'a;

/// The object of a file that nobody uses, about to be copied.
pub(crate) struct Resting {
    pub ino: Ino,
    pub(super) old: Arc<LiveObject>,
    pub(super) seen: ObjectAttributes,
    pub(super) copy: u64,
}

impl Resting {
    /// Where it lies.
    pub fn place(&self) -> crate::record::ObjectRef {
        self.old.at
    }

    /// The object.
    pub fn object(&self) -> forebay_base::ObjectId {
        self.old.at.id
    }
}

impl Partition {
    /// Where the object of a file lies that is in memory, and the size of the file.
    pub(crate) fn place_and_size(&self, ino: Ino) -> Option<(ObjectRef, u64)> {
        let inode = self.shared.inodes.peek(ino)?;
        let state = inode.lock();
        Some((state.file()?.object?, state.size))
    }

    /// Begins to move a file away from a disk; what it turns out to be instead if that is not possible.
    ///
    /// # Errors
    /// [`FsError::Io`] if its object cannot be opened, or has lost bytes.
    pub(crate) fn begin_move(
        &self,
        ino: Ino,
        from: DiskId,
    ) -> Result<std::result::Result<Resting, Moved>> {
        let inode = match self.inode(ino) {
            Err(FsError::Stale) => return Ok(Err(Moved::Gone)),
            inode => inode?,
        };
        let mut state = inode.lock();
        if !is_on(&state, from) {
            return Ok(Err(Moved::Gone));
        }
        let Some(file) = state.file_mut() else { return Ok(Err(Moved::Gone)) };
        if file.opens.handles > 0 {
            return Ok(Err(Moved::InUse));
        }
        if file.object.is_some_and(|at| !self.shared.objects.is_own(at.disk))
            && ino.local() < self.first_new_ino
            && !self.knows_what_is_open()
        {
            // The node of the disk, or any that reaches it, may write it for programs that had it open at an earlier owner.
            return Ok(Err(Moved::InUse));
        }
        let was_open = file.live.is_some();
        let old = self.make_live(file)?;
        self.take_unseen_growth(ino, &mut state);
        let is_cut = state.file().is_some_and(|file| file.is_cut);
        let is_young = !old.is_published() || old.is_open_elsewhere();
        if is_cut || is_young {
            if !was_open && let Some(file) = state.file_mut() {
                file.live = None;
                self.shared.objects.drop_handle(old);
            }
            return if is_cut {
                Err(FsError::Io(format!("inode {ino}: its object has lost bytes; run fsck")))
            } else {
                Ok(Err(Moved::InUse))
            };
        }
        let seen = self.shared.objects.observe(old.at.disk, old.object.attributes())?;
        let copy = self.shared.objects.next_copy();
        if let Some(file) = state.file_mut() {
            file.copy = copy;
            self.shared.idle.closed(ino, file);
        }
        Ok(Ok(Resting { ino, old, seen, copy }))
    }

    /// Copies a resting file to one of the disks that `suit`. Nothing refers to the copy yet. Holds no lock.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::Io`], what `pace` says: nothing is left of the copy then.
    pub(crate) fn copy_resting(
        &self,
        resting: &Resting,
        suits: impl Fn(&FsDisk) -> bool,
        pace: &Pace<'_>,
    ) -> Result<Arc<LiveObject>> {
        self.copy_resting_seen(resting, suits, pace, &mut |_, _| {})
    }

    /// As [`Partition::copy_resting`]; `see` sees what is copied, with its place.
    pub(crate) fn copy_resting_seen(
        &self,
        resting: &Resting,
        suits: impl Fn(&FsDisk) -> bool,
        pace: &Pace<'_>,
        see: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<Arc<LiveObject>> {
        let objects = &self.shared.objects;
        let new = objects.make_for_move(resting.old.at.disk, suits, || self.take_object_id())?;
        self.copy_object_seen((&resting.old, resting.seen.size), &new, pace, see)?;
        let timed = new.object.set_modified(resting.seen.modified);
        objects.observe(new.at.disk, timed)?;
        self.shared.fail_points.reach("move.copied")?;
        // Whether a store has taken it is not known if it did not answer.
        objects.publish(&new).inspect_err(|_| {
            self.give_up_copy(&new);
            objects.leave_behind(self.number());
        })?;
        let synced = objects.sync(&new, Sync::All).and_then(|()| {
            self.shared.fail_points.reach("move.synced")?;
            Ok(())
        });
        synced.inspect_err(|_| self.give_up_copy(&new))?;
        Ok(new)
    }

    /// Copies the first `size` bytes of an object.
    pub(crate) fn copy_object(
        &self,
        (old, size): (&LiveObject, u64),
        new: &LiveObject,
        pace: &Pace<'_>,
    ) -> Result<()> {
        self.copy_object_seen((old, size), new, pace, &mut |_, _| {})
    }

    fn copy_object_seen(
        &self,
        (old, size): (&LiveObject, u64),
        new: &LiveObject,
        pace: &Pace<'_>,
        see: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<()> {
        let mut write = |at, bytes: &[u8]| {
            see(at, bytes);
            self.write_all(new, at, bytes)
        };
        self.read_or_fetch((old, size), Some(new), pace, &mut write)?;
        self.shared.objects.set_size(new, size)
    }

    /// Visits what there is of the first `size` bytes of an object, with its place; holes are passed over.
    pub(super) fn read_through(
        &self,
        (old, size): (&LiveObject, u64),
        pace: &Pace<'_>,
        visit: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.read_or_fetch((old, size), None, pace, visit)
    }

    /// As [`Partition::read_through`]. What the node of `target` has fetched there by itself is not visited.
    fn read_or_fetch(
        &self,
        (old, size): (&LiveObject, u64),
        target: Option<&LiveObject>,
        pace: &Pace<'_>,
        visit: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut buffer = vec![0; usize::try_from(CHUNK.min(size)).unwrap_or(0)];
        let mut at = 0;
        while at < size {
            let (data, end) = self.next_data(old, at, size)?;
            at = data;
            while at < end {
                if let Some(new) = target
                    && let Some(fetched) = self.fetched_by_target(old, new, (at, end - at))?
                {
                    at += fetched;
                    pace(fetched)?;
                    continue;
                }
                let wanted = usize::try_from((end - at).min(CHUNK)).unwrap_or(buffer.len());
                let read = old.object.read_at(at, &mut buffer[..wanted]);
                let read = self.shared.objects.observe(old.at.disk, read)?;
                if read == 0 {
                    return Err(FsError::Io(format!("object {} has become shorter", old.at.id)));
                }
                visit(at, &buffer[..read])?;
                at += read as u64;
                pace(read as u64)?;
            }
        }
        Ok(())
    }

    /// Has the node of a copy fetch bytes by itself, if the copy lies on another node's disk. How many; none if that node
    /// cannot, and they are to go by way of this one.
    fn fetched_by_target(
        &self,
        old: &LiveObject,
        new: &LiveObject,
        (offset, length): (u64, u64),
    ) -> Result<Option<u64>> {
        let from = self.shared.objects.disk(old.at.disk)?;
        let Some(target) = new.object.remote().filter(|_| !from.is_near && !from.is_archive())
        else {
            return Ok(None);
        };
        match target.fetch(&from.uuid, old.at.id, offset, length) {
            Ok(0) => Err(FsError::Io(format!("object {} has become shorter", old.at.id))),
            Ok(fetched) => Ok(Some(fetched)),
            // It runs without a mount, does not reach that node, or is of an earlier version.
            Err(_) => Ok(None),
        }
    }

    /// The next range of an object that holds data, from `at` on.
    fn next_data(&self, old: &LiveObject, at: u64, size: u64) -> Result<(u64, u64)> {
        let sought = |target, from| match old.object.seek(target, from) {
            Err(DiskError::NoSuchOffset) => Ok(size),
            Err(DiskError::Unsupported) if target == Seek::Data => Ok(from),
            Err(DiskError::Unsupported) => Ok(size),
            found => self.shared.objects.observe(old.at.disk, found),
        };
        let data = sought(Seek::Data, at)?.min(size);
        let end = if data < size { sought(Seek::Hole, data)?.min(size) } else { size };
        Ok((data, end))
    }

    pub(super) fn write_all(&self, new: &LiveObject, mut at: u64, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let written = new.object.write_at(at, bytes);
            let written = self.shared.objects.observe(new.at.disk, written)?;
            if written == 0 {
                return Err(FsError::NoSpace);
            }
            bytes = bytes.get(written..).unwrap_or_default();
            at += written as u64;
        }
        Ok(())
    }

    /// Has the record of a file turn to its copy, unless anybody has used the file since that was begun.
    ///
    /// # Errors
    /// [`FsError::Io`].
    pub(crate) fn finish_move(&self, resting: &Resting, new: &Arc<LiveObject>) -> Result<Moved> {
        let moved = self.turn_to_copy(resting, new);
        if !matches!(moved, Ok(Moved::Whole(_))) {
            self.give_up_copy(new);
        }
        self.shared.fail_points.reach("move.turned")?;
        moved
    }

    fn turn_to_copy(&self, resting: &Resting, new: &LiveObject) -> Result<Moved> {
        let Resting { ino, old, seen, copy } = resting;
        let ino = *ino;
        let (_turn, copies) = self.copies_to_follow(old.at.id, new.at)?;
        // One that was dropped from memory meanwhile may have been in use.
        let Some(inode) = self.shared.inodes.peek(ino) else { return Ok(Moved::InUse) };
        let mut state = inode.lock();
        if !is_on(&state, old.at.disk) {
            return Ok(Moved::Gone);
        }
        let Some(file) = state.file_mut() else { return Ok(Moved::Gone) };
        if file.copy != *copy {
            return Ok(Moved::InUse);
        }
        file.copy = 0;
        let undisturbed = file.opens.handles == 0 && file.object == Some(old.at);
        if !undisturbed || old.is_open_elsewhere() {
            return Ok(Moved::InUse);
        }
        let now = self.shared.objects.observe(old.at.disk, old.object.attributes())?;
        if (now.size, now.modified) != (seen.size, seen.modified) {
            return Ok(Moved::InUse);
        }
        let found = self.shared.objects.observe(new.at.disk, new.object.attributes())?;
        let copies = copies.as_ref().map_or(TheCopies::Unknown, TheCopies::Follow);
        self.exchange_object(ino, &mut state, (new.at, found), copies);
        Ok(Moved::Whole(seen.size))
    }

    /// Has the record of a file turn to another object, which was `found` so. The former one goes after the commit.
    pub(super) fn exchange_object(
        &self,
        ino: Ino,
        state: &mut State,
        (new, found): (ObjectRef, ObjectAttributes),
        copies: TheCopies<'_>,
    ) {
        let from = state.file().and_then(|file| file.object);
        let allocated = state.allocated_bytes;
        let Some(file) = state.file_mut() else { return };
        let mut writes = self.writes.lock();
        let dropped = self.drop_object(&mut writes, file, allocated);
        file.object = Some(new);
        file.see(found);
        file.settle();
        state.allocated_bytes = found.allocated_bytes;
        self.take_late(&mut writes, new.id);
        self.put_inode(&mut writes, ino, state);
        match (from, copies) {
            (Some(from), TheCopies::Follow(record)) => {
                self.copies_follow(&mut writes, (from.id, new.id), record);
            }
            (Some(from), TheCopies::Go(record)) => {
                self.copies_go(&mut writes, from.id, (record, new));
            }
            (None, _) | (_, TheCopies::Unknown) => {}
        }
        drop(writes);
        self.copies().may_need(ino);
        dropped.into_iter().for_each(|live| self.shared.objects.drop_handle(live));
    }

    /// Whether anybody has used a file since its copy was begun.
    pub(crate) fn is_disturbed(&self, resting: &Resting) -> bool {
        let inode = self.shared.inodes.peek(resting.ino);
        inode.is_none_or(|inode| inode.lock().file().is_none_or(|file| file.copy != resting.copy))
    }

    /// Ends a move that came to nothing.
    pub(crate) fn give_up_move(&self, resting: &Resting) {
        if let Some(inode) = self.shared.inodes.peek(resting.ino)
            && let Some(file) = inode.lock().file_mut()
            && file.copy == resting.copy
        {
            file.copy = 0;
        }
    }

    /// Removes a copy to which nothing refers.
    pub(crate) fn give_up_copy(&self, new: &LiveObject) {
        self.shared.objects.remove_now(Removal { at: new.at, bytes: 0 });
    }

    /// Whether every node has had the time to say what it has open since an earlier owner.
    fn knows_what_is_open(&self) -> bool {
        self.granting().is_none_or(|granting| granting.knows_what_is_open())
    }

    /// Lets go of all objects on a disk that is lost: what needs one of them fails from now on.
    pub(crate) fn let_go_of_all_on(&self, disk: DiskId) {
        for inode in self.cached() {
            let mut state = inode.lock();
            let Some(file) =
                state.file_mut().filter(|file| file.object.is_some_and(|at| at.disk == disk))
            else {
                continue;
            };
            if let Some(live) = file.live.take() {
                self.shared.objects.drop_handle(live);
            }
        }
    }

    /// Files with an object on a disk, those without a name and not committed ones included, those of snapshots not.
    pub(crate) fn left_on(&self, disk: DiskId) -> u64 {
        let nameless = self.cached_on(disk).0.len() as u64;
        self.objects_on(disk).max(nameless)
    }

    /// Files in memory with an object on a disk, those without a name included, and how many of them are open.
    pub(crate) fn cached_on(&self, disk: DiskId) -> (Vec<Ino>, u64) {
        let (mut found, mut open) = (Vec::new(), 0);
        for inode in self.cached() {
            let state = inode.lock();
            let Some(file) = state.file() else { continue };
            if file.object.is_some_and(|at| at.disk == disk) {
                found.push(inode.ino);
                open += u64::from(file.opens.handles > 0);
            }
        }
        (found, open)
    }

    /// Committed files with an object on a disk, in order of their numbers from `from` on: at most `most`, and where to
    /// go on.
    ///
    /// # Errors
    /// [`FsError::Io`], [`FsError::Damaged`].
    pub(crate) fn stored_on(
        &self,
        disk: DiskId,
        from: Option<Vec<u8>>,
        most: usize,
    ) -> Result<(Vec<Ino>, Option<Vec<u8>>)> {
        self.stored_inodes(from, most, |record| {
            record.layout.object().is_some_and(|at| at.disk == disk)
        })
    }

    /// Committed inodes that are `meant`, in order of their numbers from `from` on: at most `most`, and where to go on.
    ///
    /// # Errors
    /// [`FsError::Io`], [`FsError::Damaged`].
    pub(crate) fn stored_inodes(
        &self,
        from: Option<Vec<u8>>,
        most: usize,
        meant: impl Fn(&InodeRecord) -> bool,
    ) -> Result<(Vec<Ino>, Option<Vec<u8>>)> {
        let (first, to) = key::prefix_range(&[key::INODE]);
        let mut from = from.unwrap_or(first);
        let rows = self.store().scan(&from, &to, most)?;
        let mut found = Vec::new();
        for (key, value) in &rows {
            let Some(Key::Inode(ino)) = key::parse(key) else { continue };
            if meant(&decode("inode", value)?) {
                found.push(ino);
            }
        }
        let Some((last, _)) = rows.last().filter(|_| rows.len() == most) else {
            return Ok((found, None));
        };
        from.clone_from(last);
        from.push(0);
        Ok((found, Some(from)))
    }
}

/// Whether a file with a name lies on a disk.
fn is_on(state: &State, disk: DiskId) -> bool {
    let object = state.file().and_then(|file| file.object);
    state.nlink > 0 && object.is_some_and(|at| at.disk == disk)
}
