//! An open object of a remote disk.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use forebay_base::{ObjectId, Timestamp};
use parking_lot::Mutex;

use super::link::{Link, Told};
use super::wire::{Answer, Handle, Machine, ObjectRequest, Request, TRANSFER_MAX};
use crate::{Allocate, DiskError, Object, ObjectAttributes, Result, Seek, Sync};

/// Bytes that one request copies, at most: an answer must not take longer than nodes wait for one.
const COPY_MAX: u64 = 64 << 20;

/// As [`COPY_MAX`], of what a node has to fetch from another one.
const FETCH_MAX: u64 = 8 << 20;

/// How often a request is sent with a new handle.
const ATTEMPTS: usize = 4;

struct State {
    id: Option<ObjectId>,
    handle: Handle,
    /// The life of the other machine in which the handle was opened.
    machine: Machine,
    published: bool,
    /// The first life of the other machine in which bytes were written that no sync has covered.
    unsynced: Option<Machine>,
    /// The machine died since: what was written may be gone, and no sync may succeed any more.
    lost: bool,
    /// Something of it was changed by way of this object.
    changed: bool,
}

/// An open object of a [`RemoteDisk`](super::RemoteDisk). When the daemon of the other node was started again, a published
/// object is opened again without being noticed.
pub struct RemoteObject {
    link: Arc<Link>,
    state: Mutex<State>,
    /// Held while a handle is replaced, so that one thread does it.
    reopening: Mutex<()>,
}

impl RemoteObject {
    /// A new object without a number.
    pub(super) fn fresh(link: &Arc<Link>, handle: Handle, machine: Machine) -> RemoteObject {
        RemoteObject::new(
            link,
            State {
                id: None,
                handle,
                machine,
                published: false,
                unsynced: None,
                lost: false,
                changed: false,
            },
        )
    }

    /// A new object that has its name, which no sync has covered yet.
    pub(super) fn named(
        link: &Arc<Link>,
        id: ObjectId,
        handle: Handle,
        machine: Machine,
    ) -> RemoteObject {
        RemoteObject::new(
            link,
            State {
                id: Some(id),
                handle,
                machine,
                published: true,
                unsynced: Some(machine),
                lost: false,
                changed: false,
            },
        )
    }

    /// A published object. What was written through an earlier handle and not synced counts.
    pub(super) fn opened(
        link: &Arc<Link>,
        id: ObjectId,
        handle: Handle,
        machine: Machine,
    ) -> RemoteObject {
        let unsynced = link.unsynced_since(id);
        RemoteObject::new(
            link,
            State {
                id: Some(id),
                handle,
                machine,
                published: true,
                unsynced,
                lost: unsynced.is_some_and(|since| since != machine),
                changed: false,
            },
        )
    }

    fn new(link: &Arc<Link>, state: State) -> RemoteObject {
        RemoteObject {
            link: Arc::clone(link),
            state: Mutex::new(state),
            reopening: Mutex::default(),
        }
    }

    /// Asks the node of the disk, with a new handle if it knows this one no more.
    fn ask(&self, what: &ObjectRequest, payload: &[u8]) -> Result<Told> {
        for _ in 0..ATTEMPTS {
            let handle = self.state.lock().handle;
            if handle == Handle::NONE {
                self.reopen(handle)?;
                continue;
            }
            let request = Request::Object { handle, what: what.clone() };
            let told = self.link.ask(request, payload.to_vec())?;
            match told.answer {
                Answer::NoHandle => self.reopen(handle)?,
                _ => return Ok(told),
            }
        }
        Err(self.link.confused("its node forgets every object right after it is opened"))
    }

    /// Replaces a handle that the node of the disk has forgotten.
    fn reopen(&self, forgotten: Handle) -> Result<()> {
        let _one_at_a_time = self.reopening.lock();
        let (id, published) = {
            let state = self.state.lock();
            if state.handle != forgotten {
                return Ok(());
            }
            (state.id, state.published)
        };
        let Some(id) = id.filter(|_| published) else {
            return Err(self.link.confused(
                "the daemon of its node was started again, and an object that was not published is lost",
            ));
        };
        let told = self.link.ask(Request::Open(id), Vec::new())?;
        let Answer::Handle(handle) = told.answer else {
            return Err(self.link.unexpected(&told.answer));
        };
        let mut state = self.state.lock();
        state.handle = handle;
        state.machine = told.machine;
        state.lost |= state.unsynced.is_some_and(|since| since != told.machine);
        Ok(())
    }

    /// Carries out a change. What changes while a sync is on its way may not be covered by it, so the object counts as
    /// unsynced from before the change until a sync that began after it.
    fn change(&self, what: &ObjectRequest, payload: &[u8]) -> Result<Told> {
        {
            let mut state = self.state.lock();
            let machine = state.machine;
            state.unsynced.get_or_insert(machine);
            state.changed = true;
        }
        let told = self.ask(what, payload)?;
        self.state.lock().unsynced.get_or_insert(told.machine);
        self.link.changed(told.machine);
        Ok(told)
    }

    /// Has the node of this object fetch bytes of an object of another disk by itself, and write them at the same offset. Returns
    /// how many, at most `length`.
    ///
    /// # Errors
    /// [`DiskError::Unsupported`], [`DiskError::Refused`] if that node cannot; what the disks say.
    pub fn fetch(&self, disk: &str, source: ObjectId, offset: u64, length: u64) -> Result<u64> {
        let (disk, length) = (disk.to_owned(), length.min(FETCH_MAX));
        let told = self.change(&ObjectRequest::Fetch { disk, source, offset, length }, &[])?;
        self.number_of(&told)
    }

    fn number_of(&self, told: &Told) -> Result<u64> {
        match told.answer {
            Answer::Number(number) => Ok(number),
            ref other => Err(self.link.unexpected(other)),
        }
    }

    fn done(&self, told: &Told) -> Result<()> {
        match told.answer {
            Answer::Done => Ok(()),
            ref other => Err(self.link.unexpected(other)),
        }
    }

    /// Gives the object its durable name.
    pub(super) fn publish(&self, id: ObjectId) -> Result<()> {
        let handle = {
            let state = self.state.lock();
            if state.published {
                return Err(DiskError::Exists(id));
            }
            state.handle
        };
        let told = self.link.ask(Request::Publish { id, handle }, Vec::new())?;
        match told.answer {
            Answer::Done => {}
            Answer::NoHandle => return self.find_published(id, handle),
            ref other => return Err(self.link.unexpected(other)),
        }
        self.link.changed(told.machine);
        let mut state = self.state.lock();
        state.published = true;
        state.unsynced.get_or_insert(told.machine);
        Ok(())
    }

    /// An earlier request may have published the object although its answer was lost. Numbers are never used twice, so
    /// an object of this number is this one.
    fn find_published(&self, id: ObjectId, handle: Handle) -> Result<()> {
        {
            let mut state = self.state.lock();
            state.id = Some(id);
            state.published = true;
        }
        let found = self.reopen(handle);
        self.state.lock().published = found.is_ok();
        found
    }

    /// Whether anything of it was changed by way of this object, or may have been.
    #[must_use]
    pub fn was_changed(&self) -> bool {
        self.state.lock().changed
    }

    /// Programs of the disk's own node write the object without a word to this one: what they wrote in this life of its
    /// machine is as unsynced as what was written here.
    pub fn written_at_home(&self) {
        let mut state = self.state.lock();
        let machine = state.machine;
        state.unsynced.get_or_insert(machine);
        drop(state);
        self.link.changed(machine);
    }

    fn settle(&self, machine: Machine, covered: Option<Machine>) -> Result<()> {
        let mut state = self.state.lock();
        state.lost |= covered.is_some_and(|since| since != machine);
        if state.lost {
            state.unsynced = state.unsynced.or(covered);
            return Err(self.link.confused(
                "its machine was restarted after an object was written, and unsynced data may be lost",
            ));
        }
        if let Some(id) = state.id.filter(|_| state.published && state.unsynced.is_none()) {
            self.link.settled(id);
        }
        Ok(())
    }
}

impl Object for RemoteObject {
    fn number(&self, id: ObjectId) {
        self.state.lock().id = Some(id);
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        for part in buffer.chunks_mut(TRANSFER_MAX) {
            let Some(at) = offset.checked_add(done as u64) else { break };
            let length = u32::try_from(part.len()).unwrap_or(u32::MAX);
            let told = self.ask(&ObjectRequest::Read { offset: at, length }, &[])?;
            self.done(&told)?;
            let read = told.payload.len();
            let Some(into) = part.get_mut(..read) else {
                return Err(self.link.confused("its node sent more bytes than were requested"));
            };
            into.copy_from_slice(&told.payload);
            done += read;
            if read < part.len() {
                break;
            }
        }
        Ok(done)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<usize> {
        if data.is_empty() {
            return Ok(0);
        }
        let mut done = 0;
        for part in data.chunks(TRANSFER_MAX) {
            let at = offset.checked_add(done as u64).ok_or(DiskError::TooLarge);
            let written = at.and_then(|offset| {
                let told = self.change(&ObjectRequest::Write { offset }, part)?;
                self.number_of(&told)
            });
            match written {
                Ok(written) => {
                    let written =
                        usize::try_from(written).map_or(part.len(), |w| w.min(part.len()));
                    done += written;
                    if written < part.len() {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn append(&self, data: &[u8]) -> Result<usize> {
        if data.is_empty() {
            return Ok(0);
        }
        // One request, so that it is one step: the rest is for the next append.
        let part = &data[..data.len().min(TRANSFER_MAX)];
        let told = self.change(&ObjectRequest::Append, part)?;
        let written = self.number_of(&told)?;
        Ok(usize::try_from(written).map_or(part.len(), |written| written.min(part.len())))
    }

    fn set_size(&self, size: u64) -> Result<()> {
        self.done(&self.change(&ObjectRequest::SetSize(size), &[])?)
    }

    fn allocate(&self, what: Allocate, offset: u64, length: u64) -> Result<()> {
        self.done(&self.change(&ObjectRequest::Allocate { what, offset, length }, &[])?)
    }

    fn seek(&self, target: Seek, offset: u64) -> Result<u64> {
        self.number_of(&self.ask(&ObjectRequest::Seek { target, offset }, &[])?)
    }

    fn copy_from(
        &self,
        source: &dyn Object,
        source_offset: u64,
        offset: u64,
        length: u64,
    ) -> Result<u64> {
        let source = source.remote().filter(|source| Arc::ptr_eq(&source.link, &self.link));
        let source = source.ok_or(DiskError::Unsupported)?;
        let mut copied = 0;
        while copied < length {
            let handle = source.state.lock().handle;
            let from = source_offset.checked_add(copied).ok_or(DiskError::TooLarge)?;
            let request = ObjectRequest::CopyFrom {
                source: handle,
                source_offset: from,
                offset: offset.checked_add(copied).ok_or(DiskError::TooLarge)?,
                length: (length - copied).min(COPY_MAX),
            };
            // Asked for by itself: a source whose handle was forgotten gets a new one first.
            source.ask(&ObjectRequest::Attributes, &[])?;
            if source.state.lock().handle != handle {
                continue;
            }
            let told = self.change(&request, &[])?;
            match self.number_of(&told)? {
                0 => break,
                some => copied += some,
            }
        }
        Ok(copied)
    }

    fn sync(&self, what: Sync) -> Result<()> {
        let covered = self.state.lock().unsynced.take();
        let synced = self.ask(&ObjectRequest::Sync(what), &[]);
        let settled = synced.and_then(|told| {
            self.done(&told)?;
            self.settle(told.machine, covered)
        });
        if settled.is_err() {
            let mut state = self.state.lock();
            state.unsynced = covered.or(state.unsynced);
        }
        settled
    }

    fn attributes(&self) -> Result<ObjectAttributes> {
        match self.ask(&ObjectRequest::Attributes, &[])?.answer {
            Answer::Attributes(Some(attributes)) => Ok(attributes),
            ref other => Err(self.link.unexpected(other)),
        }
    }

    fn set_modified(&self, modified: Timestamp) -> Result<()> {
        self.done(&self.change(&ObjectRequest::SetModified(modified), &[])?)
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn has_other_writers(&self) -> bool {
        match self.ask(&ObjectRequest::HasOtherWriters, &[]) {
            Ok(Told { answer: Answer::OtherWriters(others), .. }) => others,
            Ok(_) | Err(_) => true,
        }
    }

    fn remote(&self) -> Option<&RemoteObject> {
        Some(self)
    }
}

impl Drop for RemoteObject {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        if let (Some(id), true, Some(machine)) = (state.id, state.published, state.unsynced) {
            self.link.closed_unsynced(id, machine);
        }
        self.link.close(state.handle);
    }
}
