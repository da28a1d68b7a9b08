//! Opening and closing regular files: which way their bytes go, and which object holds them.
//!
//! All handles of this node's kernel go the same way at any one time (it allows no mixture): the way is
//! chosen at the first open, and can change when the last handle is closed. Handles of other nodes have no part in
//! that: their bytes go through the object's file, which is one with what the kernel reads and writes there itself. `O_TRUNC` of a file that
//! nobody else has open takes a fresh object: truncating and rewriting one would make ext4 and XFS
//! write it back at close (auto_da_alloc, XFS_ITRUNCATED).

use std::sync::Arc;

use forebay_base::{ClientId, DiskId, Ino};
use forebay_disk::ObjectAttributes;

use crate::caching::queue::Change;
use crate::error::{FsError, Result};
use crate::grants::Item;
use crate::inode::{FileBody, State, Way};
use crate::object::{LiveObject, SeenObject};
use crate::partition::{Caller, Partition};
use crate::record::ObjectRef;
use crate::stale::Stale;
use crate::stats::Operation;

/// What an open asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Access {
    /// Reading.
    pub read: bool,
    /// Writing.
    pub write: bool,
    /// Cutting the file to nothing; also without writing, as open(2) allows.
    pub truncate: bool,
    /// Running the file as a program.
    pub execute: bool,
    /// Every write is to be on stable storage when it returns (O_SYNC, O_DSYNC).
    pub synchronous: bool,
}

/// How an open file's bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The kernel's registration of the object on the direct path; `None` on the served path.
    pub registration: Option<u32>,
    /// Pages that the kernel cached of this file are still right (served path).
    pub keep_pages: bool,
    /// The kernel must not cache its bytes at all: other programs change them without a word to it.
    pub uncached: bool,
    /// Which owner of the fileset opened it: 0 where owners do not change. A handle of a lineage that broke is stale.
    pub lineage: u32,
    /// How the object is reached without the owner of the fileset, which is another node, if it is. The end of such a
    /// handle is told with [`Namespace::let_go_of`](crate::Namespace::let_go_of).
    pub home: Option<Home>,
}

/// How a node reaches the object of a file that another node owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// On a disk of its own: it reads and writes it.
    Here,
    /// On a disk of a third node: it reads it there, and writes by way of the owner.
    There,
}

/// Who opens a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opener<'a> {
    /// The kernel of this node.
    Kernel,
    /// Another node.
    Node(NodeOpener<'a>),
}

/// Another node that opens a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeOpener<'a> {
    pub client: ClientId,
    /// Its disks, where new bytes are to lie.
    pub disks: &'a [DiskId],
    /// The object that it has made on one of them for a new file.
    pub made: Option<SeenObject>,
    /// It has made the file, too, and reports that now: the object is taken wherever it lies.
    pub reports: bool,
}

impl Opener<'_> {
    /// The disks of another node, where new bytes are to lie.
    fn disks(&self) -> &[DiskId] {
        match self {
            Opener::Kernel => &[],
            Opener::Node(by) => by.disks,
        }
    }
}

/// Who closes a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closer {
    /// The kernel of this node.
    Kernel,
    /// Another node; how its object was left, if that is on a disk of that node.
    Node(Option<SeenObject>),
    /// Nobody: another node had it open, and is gone.
    Lost,
}

impl Partition {
    /// Opens a regular file. Every open must be closed once, with the same access.
    ///
    /// # Errors
    /// [`FsError::Stale`], [`FsError::Invalid`] for other kinds, [`FsError::ExecutableBusy`] for cutting a
    /// program that runs, [`FsError::NoSpace`] if the file needs an object and there is no room for one,
    /// [`FsError::Io`].
    pub fn open_file(&self, ino: Ino, access: Access, caller: Caller) -> Result<Opened> {
        if access.write {
            self.make_room_for_writer();
        }
        if access.write || access.truncate {
            self.part_from_snapshots(ino)?;
        }
        self.part_for_open(ino, access)?;
        let open = || self.with_space(|| self.open_now(ino, access, caller, Opener::Kernel));
        Ok(self.with_copies(ino, access.write || access.truncate, open)?.0)
    }

    /// As [`Partition::open_file`], for another node. To be closed with [`Partition::close_for_node`].
    ///
    /// # Errors
    /// As [`Partition::open_file`].
    pub(crate) fn open_for_node(
        &self,
        ino: Ino,
        access: Access,
        caller: Caller,
        by: NodeOpener<'_>,
    ) -> Result<Option<ObjectRef>> {
        if access.write {
            self.make_room_for_writer();
        }
        self.part_for_open(ino, access)?;
        let opened = self.with_space(|| self.open_now(ino, access, caller, Opener::Node(by)))?;
        if let Some(at) = opened.1.filter(|_| access.read && access.write) {
            self.note_mapper(by.client, at);
        }
        Ok(opened.1)
    }

    /// Before a file is opened for writing: a fenced node must not write what is written then. One that is truncated gets another
    /// object anyway.
    fn part_for_open(&self, ino: Ino, access: Access) -> Result<()> {
        if access.write && !access.truncate { self.part_from_fenced(ino) } else { Ok(()) }
    }

    /// How the bytes of the kernel go; where those of another node are, if it may go there itself.
    fn open_now(
        &self,
        ino: Ino,
        access: Access,
        caller: Caller,
        by: Opener<'_>,
    ) -> Result<(Opened, Option<ObjectRef>)> {
        let inode = self.inode(ino)?;
        let mut state = inode.lock();
        // Its bytes were given back when its last name went: the name is to be looked up again.
        let is_given_back = state.nlink == 0 && state.size > 0;
        let file = state.file_mut().ok_or(FsError::Invalid)?;
        if is_given_back && file.object.is_none() {
            return Err(FsError::Stale);
        }
        if file.object.is_none() && !access.truncate && self.is_unfetched(&state) {
            return Err(FsError::Archived);
        }
        let room = if access.write { self.quota_room(&state) } else { u64::MAX };
        let is_direct = state.file().is_some_and(|file| file.opens.way == Some(Way::Direct));
        if room == 0 && is_direct && !access.truncate {
            // The kernel would write without asking, as it does for those who have the file open.
            return Err(FsError::QuotaExceeded);
        }
        let file = state.file_mut().ok_or(FsError::Invalid)?;
        if access.truncate {
            // The kernel looks for itself only before opens for writing; it asks us before it looks at
            // an open for reading that also cuts. Where it has looked, a release may still be on its way.
            if !access.write && file.opens.executors > 0 {
                return Err(FsError::ExecutableBusy);
            }
            self.truncate_for_open(ino, &mut state, by)?;
        } else {
            self.make_live_for(ino, &mut state, access, by)?;
        }
        self.take_unseen_growth(ino, &mut state);
        if state
            .file()
            .and_then(|file| file.live.as_ref())
            .is_some_and(|live| live.is_written_at_home())
        {
            self.refresh(ino, &mut state)?;
        }
        if access.write && state.file().is_some_and(|file| file.is_cut) {
            return Err(FsError::Io(format!(
                "inode {ino}: its object has lost bytes; fsck --repair adjusts the file to it"
            )));
        }
        self.count(Operation::Open);
        let is_roomy = room > self.shared.settings.quota_margin.0;
        let way = self.choose_way(&state, access, is_roomy);
        if access.truncate && caller.uid != 0 && state.kill_set_id() {
            self.put_inode(&mut self.writes.lock(), ino, &mut state);
        }
        if by != Opener::Kernel {
            self.publish_shared(ino, &mut state)?;
        }
        let file = state.file_mut().ok_or(FsError::Invalid)?;
        Ok(match by {
            Opener::Kernel => (self.add_handle(ino, file, way, access), None),
            Opener::Node(_) => self.add_handle_of_node(file, access, is_roomy),
        })
    }

    /// Another node finds an object of a disk that all reach by its name.
    fn publish_shared(&self, ino: Ino, state: &mut State) -> Result<()> {
        let live = state.file().and_then(|file| file.live.clone());
        let young = live.filter(|live| !live.is_published() && state.nlink > 0);
        let Some(live) = young.filter(|live| self.shared.objects.is_shared(live.at.disk)) else {
            return Ok(());
        };
        // Only objects that a record refers to are published.
        self.put_inode(&mut self.writes.lock(), ino, state);
        self.shared.objects.publish(&live)
    }

    /// Makes sure that a file that is being opened has an open object, if it needs one.
    fn make_live_for(
        &self,
        ino: Ino,
        state: &mut State,
        access: Access,
        by: Opener<'_>,
    ) -> Result<()> {
        let file = state.file_mut().ok_or(FsError::Invalid)?;
        if file.object.is_some() {
            if !access.write && by == Opener::Kernel && self.is_read_in_archive(state) {
                return Ok(());
            }
            let file = state.file_mut().ok_or(FsError::Invalid)?;
            return self.make_live(file).map(drop);
        }
        if !access.write && by != Opener::Kernel {
            // Where its bytes will lie is decided by its first writer.
            return Ok(());
        }
        self.choose_pool(None, state);
        let file = state.file_mut().ok_or(FsError::Invalid)?;
        let made = match by {
            Opener::Node(NodeOpener { client, disks, made: Some(made), reports }) => {
                self.take_made(made, client, disks, reports)
            }
            Opener::Node(_) | Opener::Kernel => None,
        };
        let pool = self.pool_of(file);
        match made.map_or_else(|| self.take_object_on(by.disks(), pool), Ok) {
            Ok(live) => set_live(file, live),
            // Nothing is needed to read an empty file: a full disk must not refuse that.
            Err(FsError::NoSpace) if !access.write => return Ok(()),
            Err(error) => return Err(error),
        }
        let is_published = file.live.as_ref().is_some_and(|live| live.is_published());
        if is_published && state.nlink > 0 {
            // Nothing else would remove it after a crash.
            self.put_inode(&mut self.writes.lock(), ino, state);
        }
        Ok(())
    }

    /// Whether anybody has a file open.
    #[must_use]
    pub fn is_open(&self, ino: Ino) -> bool {
        let Some(inode) = self.shared.inodes.peek(ino) else { return false };
        let state = inode.lock();
        state.file().is_some_and(|file| file.opens.handles > 0)
    }

    /// Makes sure that the file has an open object.
    pub(crate) fn make_live(&self, file: &mut FileBody) -> Result<Arc<LiveObject>> {
        if let Some(live) = file.live.clone() {
            // Whoever needs it may change it.
            file.copy = 0;
            return Ok(live);
        }
        let live = match file.object {
            Some(at) => self.shared.objects.open(at)?,
            None => self.take_object(self.pool_of(file))?,
        };
        set_live(file, Arc::clone(&live));
        Ok(live)
    }

    /// Takes the size of an object that was just opened and is not what the record says: users of a daemon
    /// that died went on to write after the file was first compared. Nobody cuts an object: one that is
    /// shorter has lost bytes, and the file must not look as if it ended there.
    pub(crate) fn take_unseen_growth(&self, ino: Ino, state: &mut State) {
        let Some(file) = state.file() else { return };
        let found = file.seen;
        let Some(live) = file.live.as_ref().filter(|live| live.is_published()) else { return };
        if file.opens.handles > 0 || found.size == state.size {
            return;
        }
        if found.size < state.size {
            let (object, recorded, size) = (live.at.id, state.size, found.size);
            if let Some(file) = state.file_mut().filter(|file| !file.is_cut) {
                tracing::error!(%ino, %object, recorded, size, "an object has lost bytes: run fsck");
                self.damage.note(ino, "an object has lost bytes: run fsck");
                file.is_cut = true;
            }
            return;
        }
        state.size = found.size;
        state.allocated_bytes = found.allocated_bytes;
        state.modified = state.modified.max(found.modified);
        state.changed = state.changed.max(found.modified);
        self.put_inode(&mut self.writes.lock(), ino, state);
        self.shared.stale.add([Stale::Attributes(ino)]);
        self.take_back(vec![Item::Attributes(ino)]);
    }

    /// The way of new handles. `is_roomy` tells that no quota is nearly used up: otherwise each write is to be seen.
    fn choose_way(&self, state: &State, access: Access, is_roomy: bool) -> Way {
        let Some(file) = state.file() else { return Way::Served };
        if let Some(way) = file.opens.way {
            return way;
        }
        // The served path sees each write, and syncs where that is promised.
        let must_see_writes = access.write && access.synchronous && self.is_strict();
        let direct = self.shared.settings.direct
            && self.prefers_direct()
            && !must_see_writes
            && is_roomy
            && !file.is_cut
            && file.live.as_ref().is_some_and(|live| live.registration().is_some());
        if direct { Way::Direct } else { Way::Served }
    }

    fn add_handle(&self, ino: Ino, file: &mut FileBody, way: Way, access: Access) -> Opened {
        if let (0, Some(live)) = (file.opens.handles, &file.live) {
            live.opened_anew();
        }
        let first_writer = access.write && file.opens.writers == 0;
        file.opens.way = Some(way);
        file.opens.handles += 1;
        file.opens.writers += u32::from(access.write);
        file.opens.executors += u32::from(access.execute);
        let is_mappable = way == Way::Direct && access.write && access.read;
        if let Some(live) = file.live.as_ref().filter(|_| is_mappable) {
            self.shared.objects.may_be_mapped(live);
        }
        file.opens.mappers += u32::from(is_mappable);
        file.was_mappable |= is_mappable;
        if way == Way::Served {
            let uncached = self.shared.has_other_nodes();
            let keep_pages = std::mem::replace(&mut file.pages_valid, !uncached) && !uncached;
            return Opened { registration: None, keep_pages, uncached, lineage: 0, home: None };
        }
        file.pages_valid = false;
        if first_writer {
            self.writers.lock().insert(ino);
        }
        let registration = file.live.as_ref().and_then(|live| live.registration());
        Opened { registration, keep_pages: false, uncached: false, lineage: 0, home: None }
    }

    /// Adds a handle of another node: it takes no part in the way of the kernel's.
    fn add_handle_of_node(
        &self,
        file: &mut FileBody,
        access: Access,
        is_roomy: bool,
    ) -> (Opened, Option<ObjectRef>) {
        if let (0, Some(live)) = (file.opens.handles, &file.live) {
            live.opened_anew();
        }
        file.opens.handles += 1;
        file.opens.of_nodes += 1;
        file.opens.writers_of_nodes += u32::from(access.write);
        file.opens.executors += u32::from(access.execute);
        let live = file.live.as_ref().filter(|live| live.is_published());
        let far = live.filter(|live| !self.shared.objects.is_own(live.at.disk));
        if let Some(live) = far.filter(|_| access.write) {
            // Whichever node it is: what is open since an earlier owner goes on as it did there.
            live.set_written_at_home(true);
        }
        let can_go = !file.is_cut && self.prefers_direct() && is_roomy;
        let place = far.map(|live| live.at).filter(|_| can_go);
        let (registration, keep_pages, uncached) = (None, false, true);
        (Opened { registration, keep_pages, uncached, lineage: 0, home: None }, place)
    }

    /// Cuts a file to nothing at its open.
    fn truncate_for_open(&self, ino: Ino, state: &mut State, by: Opener<'_>) -> Result<()> {
        let cut_in_place = self.is_cut_in_place(state);
        self.choose_pool(None, state);
        let bytes = state.allocated_bytes;
        let file = state.file_mut().ok_or(FsError::Invalid)?;
        let is_fenced = file.object.is_some_and(|at| self.is_fenced(at));
        let parts = is_fenced && file.opens.handles == 0;
        let fresh = if !parts && (cut_in_place || self.needs_its_object(file)?) {
            None
        } else {
            match self.take_object_on(by.disks(), self.pool_of(file)) {
                // Cutting the old object makes room on a full disk.
                Err(FsError::NoSpace) if file.object.is_some() && !parts => None,
                fresh => Some(fresh?),
            }
        };
        if fresh.is_none() {
            let live = self.make_live(file)?;
            self.shared.objects.set_size(&live, 0)?;
            file.see(self.shared.objects.observe(live.at.disk, live.object.attributes())?);
        }
        file.pages_valid = false;
        file.is_cut = false;
        // The old object goes in the batch in which the record turns to the new one.
        let mut writes = self.writes.lock();
        let mut dropped = None;
        if let Some(fresh) = fresh {
            dropped = self.drop_object(&mut writes, file, bytes);
            set_live(file, fresh);
        }
        state.size = 0;
        state.allocated_bytes = 0;
        state.touch(self.now());
        self.put_inode(&mut writes, ino, state);
        self.queue_change(&mut writes, || Change::Bytes(ino));
        drop(writes);
        dropped.into_iter().for_each(|live| self.shared.objects.drop_handle(live));
        Ok(())
    }

    /// Whether a file that is cut to nothing has to keep its object: somebody has it open, or a shared
    /// mapping outlived its file descriptor and must stay part of the file.
    fn needs_its_object(&self, file: &mut FileBody) -> Result<bool> {
        if file.object.is_none() && file.opens.handles == 0 {
            return Ok(false);
        }
        if file.opens.handles > 0 && !self.lies_in_archive(file) {
            return Ok(true);
        }
        match self.make_live(file) {
            // Nobody can have mapped it, and those who read it there read the other object from now on.
            Err(FsError::Archived) => Ok(false),
            live => Ok(live?.is_open_elsewhere()),
        }
    }

    /// Closes one handle of a file.
    ///
    /// # Errors
    /// [`FsError::Io`] if the object cannot be asked for its size; the handle is closed all the same.
    pub fn close_file(&self, ino: Ino, access: Access) -> Result<()> {
        self.close_by(ino, access, Closer::Kernel)
    }

    /// As [`Partition::close_file`], for another node.
    ///
    /// # Errors
    /// As [`Partition::close_file`].
    pub(crate) fn close_for_node(&self, ino: Ino, access: Access, by: Closer) -> Result<()> {
        self.close_by(ino, access, by)
    }

    fn close_by(&self, ino: Ino, access: Access, by: Closer) -> Result<()> {
        let inode = self.inode(ino)?;
        let mut state = inode.lock();
        self.count(Operation::Close);
        let mut is_open_there = None;
        let refreshed = match by {
            // A node that is gone does not answer, and may have many files open: it is asked when somebody looks.
            Closer::Lost => Ok(()),
            Closer::Node(left) => {
                let left = left.filter(|left| is_as_seen(&state, *left) && access.write);
                is_open_there = left.map(|left| left.is_open);
                self.refresh_by(ino, &mut state, left)
            }
            Closer::Kernel => self.refresh(ino, &mut state),
        };
        let Some(file) = state.file_mut() else { return Ok(()) };
        if by == Closer::Lost && access.write {
            self.note_lost_writer(file);
        }
        let opens = &mut file.opens;
        opens.handles = opens.handles.saturating_sub(1);
        opens.executors = opens.executors.saturating_sub(u32::from(access.execute));
        let writers = match by {
            Closer::Kernel => &mut opens.writers,
            Closer::Node(_) | Closer::Lost => &mut opens.writers_of_nodes,
        };
        *writers = writers.saturating_sub(u32::from(access.write));
        if by != Closer::Kernel {
            opens.of_nodes = opens.of_nodes.saturating_sub(1);
            let is_last = access.write && opens.writers_of_nodes == 0;
            if matches!(by, Closer::Node(_)) && is_last && refreshed.is_ok() {
                // Its size and times were just taken.
                file.live.iter().for_each(|live| live.set_written_at_home(false));
            }
        } else if opens.way == Some(Way::Direct) && access.write {
            if opens.writers == 0 {
                self.writers.lock().remove(&ino);
            }
            if access.read {
                opens.mappers = opens.mappers.saturating_sub(1);
                if std::mem::take(&mut file.times_untold) {
                    self.shared.stale.add([Stale::Attributes(ino)]);
                }
            }
        }
        if file.opens.handles == file.opens.of_nodes {
            file.opens.way = None;
        }
        if file.opens.handles == 0 {
            self.last_close(ino, &mut state, access, is_open_there);
        }
        self.dispose_if_dead(ino, &mut state);
        refreshed
    }

    /// As [`Partition::refresh`], by what the only node that writes the file has just seen at its home, if that is so.
    pub(crate) fn refresh_by(
        &self,
        ino: Ino,
        state: &mut State,
        seen: Option<SeenObject>,
    ) -> Result<()> {
        match seen.filter(|seen| is_as_seen(state, *seen)) {
            Some(seen) => {
                self.take_seen(ino, state, seen.attributes);
                Ok(())
            }
            None => self.refresh(ino, state),
        }
    }

    /// Nobody has the file open any more. `is_open_there` says whether somebody still may write it at its home, if that is known.
    fn last_close(&self, ino: Ino, state: &mut State, access: Access, is_open_there: Option<bool>) {
        let (size, linked) = (state.size, state.nlink > 0);
        let Some(file) = state.file_mut() else { return };
        if file.live.as_ref().is_some_and(|live| live.stream.ended()) && linked {
            self.shared.stale.add([Stale::Pages(ino, 0, size)]);
        }
        // A shared mapping outlives its file descriptor, and would lose its file.
        let live = file.live.as_ref();
        let is_far = live.is_some_and(|live| live.object.remote().is_some());
        let is_mapped = || {
            let can_be = is_far || access.read && access.write;
            // The node counts handles of its own for this one among those that are open there: such an answer is to be asked for.
            let may_be = can_be && is_open_there != Some(false);
            may_be && live.is_some_and(|live| live.is_open_elsewhere())
        };
        let untouched = |seen: ObjectAttributes| seen.size == 0 && seen.allocated_bytes == 0;
        let is_fresh = live.is_some_and(|live| {
            // On the disk of another node it has had its name from the beginning, and that may have written it since.
            let is_new = !live.is_published() || is_far && !live.is_written_at_home();
            is_new && untouched(live.opened_attributes) && untouched(file.seen)
        });
        if size == 0 && is_fresh && !is_mapped() {
            // A file that stays empty needs no object.
            let mut writes = self.writes.lock();
            let dropped = self.drop_object(&mut writes, file, 0);
            file.settle();
            self.put_inode(&mut writes, ino, state);
            drop(writes);
            dropped.into_iter().for_each(|live| self.shared.objects.drop_handle(live));
        } else if linked {
            self.shared.idle.closed(ino, file);
        }
    }
}

/// Whether a file is as the node of its disk has seen it: that is the only one who writes it, nobody has changed it by way of
/// this node, and no later look of that node is known.
fn is_as_seen(state: &State, seen: SeenObject) -> bool {
    let Some(file) = state.file() else { return false };
    let Some(live) = file.live.as_ref().filter(|live| live.at == seen.at) else { return false };
    // To be noted in any case.
    let is_latest = live.is_latest_look(seen.look);
    let is_untouched = live.object.remote().is_some_and(|object| !object.was_changed());
    let is_only_writer = file.opens.writers == 0 && file.opens.writers_of_nodes == 1;
    is_latest && is_untouched && is_only_writer && live.is_written_at_home()
}

/// From now on the bytes of a file are in `live`.
fn set_live(file: &mut FileBody, live: Arc<LiveObject>) {
    file.object = Some(live.at);
    file.see(live.opened_attributes);
    file.live = Some(live);
}
