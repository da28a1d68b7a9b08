//! Open files of another node's fileset: opened with a call or by a grant, made, read, written and closed.
//!
//! **By a grant.** A file that is opened for reading, whose attributes the owner has granted and whose object this node
//! reaches itself, is open without a call: nobody can change its object, or give it back, without a recall of the grant.
//! Before that is answered the owner is told what is open ([`RemoteOwner::register`]). What stays open for longer is told within a
//! second or two, so that it does not depend on grants for long.
//!
//! The same holds for a small file whose content this node keeps, as it has read it before: whoever changes it recalls the grant.
//!
//! **Made here.** The object of a new file is made on a disk of this node, with a number of a range that the owner gave, and its
//! owner is told with the request that makes the file.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_base::{DiskId, Ino, ObjectId};
use forebay_cluster::Moment;

use super::RemoteOwner;
use super::blocks::{BlockFile, Content, Fetched};
use super::changes::Change;
use super::here::seen_when_made;
use super::owner::{MadeHere, accepted, learn_made, not_kept, senseless};
use super::request::Room;
use super::wire::{Answer, NewInode, Reply, Request};
use crate::attributes::{Attributes, SetId};
use crate::closes::await_closes;
use crate::error::{FsError, Result};
use crate::grants::{KeptContent, Learned, NameChange, OwnChange, Touched};
use crate::object::{LiveObject, SeenObject};
use crate::ops::{Access, Home, New, Opened};
use crate::owner::At;
use crate::partition::Caller;
use crate::pieces::put_piece;
use crate::record::ObjectRef;

/// How long an owner that gave no numbers, or has no use for objects made here, is not asked again.
const NUMBERS_PAUSE: Duration = Duration::from_secs(5);

/// Numbers for objects that this node makes itself, and the disks on which they are to lie.
#[derive(Default)]
pub(super) struct Numbers {
    next: u64,
    left: u32,
    /// Of inodes.
    next_ino: u64,
    inos_left: u32,
    disks: Vec<DiskId>,
    /// Before then the owner is not asked.
    rests_until: Moment,
    /// Some were used lately.
    is_used: bool,
}

impl Numbers {
    /// As many as there are numbers of objects; `None` if there are none.
    pub fn take_ino(&mut self) -> Option<Ino> {
        let left = self.inos_left.checked_sub(1)?;
        let ino = Ino(self.next_ino);
        (self.next_ino, self.inos_left, self.is_used) = (self.next_ino + 1, left, true);
        Some(ino)
    }
}

impl RemoteOwner {
    /// A change of this node's own is sent: what it touches is not used any more, and what is open by a grant of it is open at the
    /// owner.
    pub(super) fn changing(&self, touched: &Touched<'_>) -> Result<OwnChange<'_>> {
        let own = self.kept.changing(touched);
        touched.inodes.iter().try_for_each(|ino| self.register(*ino))?;
        Ok(own)
    }

    // --- opening ---

    pub(crate) fn open_file(&self, ino: Ino, access: Access, caller: Caller) -> Result<Opened> {
        // What a new owner does not take over breaks the lineage. That does not concern a handle which is opened there.
        self.assert_if_needed()?;
        // A lineage that breaks meanwhile makes the handle stale.
        let lineage = self.open_files.lineage();
        let changes = access.write || access.truncate;
        if !changes && let Some(opened) = self.open_by_grant(ino, access, lineage)? {
            return Ok(opened);
        }
        let _own = if changes { Some(self.changing(&Touched::inode(ino))?) } else { None };
        let request = Request::Open { ino, access, caller };
        let mut place = None;
        let answer = self.ask_and_note(request, |answer| {
            if let Ok(Answer::Opened { crash, home }) = answer {
                place = self.note_opened(ino, access, (*crash, *home));
            }
        })?;
        if !matches!(answer, Answer::Opened { .. }) {
            return senseless(&answer);
        }
        self.opened(ino, access, (place, None), lineage)
    }

    /// Notes a handle that the owner has opened: where its object is to be reached, if not by way of the owner.
    fn note_opened(
        &self,
        ino: Ino,
        access: Access,
        (crash, home): (forebay_base::Epoch, Option<ObjectRef>),
    ) -> Option<(ObjectRef, Home)> {
        let place = home.and_then(|at| Some((at, self.near.home_of(at)?)));
        let is_here = matches!(place, Some((_, Home::Here)));
        // What is to be on stable storage at each write goes by way of the owner, as the name does.
        let wanted = is_here && !(access.write && access.synchronous);
        let is_near = self.open_files.opened(ino, access, crash, wanted);
        place.filter(|_| is_near || !is_here)
    }

    /// What the kernel is told of a handle that is noted.
    pub(super) fn opened(
        &self,
        ino: Ino,
        access: Access,
        (place, made): (Option<(ObjectRef, Home)>, Option<Arc<LiveObject>>),
        lineage: u32,
    ) -> Result<Opened> {
        let home = place.and_then(|place| self.near.open(ino, place, lineage, made));
        if self.open_files.lineage() != lineage {
            if home.is_some() {
                self.near.let_go_of(ino);
            }
            let _ = self.close_file(ino, access, None);
            return Err(FsError::Stale);
        }
        let registration = home.filter(|home| *home == Home::Here);
        let registration = registration.and_then(|_| self.near.registration(ino));
        let uncached = registration.is_none();
        if access.read && access.write && !uncached {
            self.near.may_be_mapped(ino);
        }
        Ok(Opened { registration, keep_pages: false, uncached, lineage, home })
    }

    fn open_by_grant(&self, ino: Ino, access: Access, lineage: u32) -> Result<Option<Opened>> {
        let note = |at: Option<ObjectRef>| {
            let place = match at {
                Some(at) => Some((at, self.near.home_of(at)?)),
                // Its content is kept here.
                None => None,
            };
            let is_here = place.is_some_and(|(_, home)| home == Home::Here);
            self.open_files.opened_by_grant(ino, access, is_here)?;
            Some(place)
        };
        let Some(place) = self.known(|| self.kept.open_granted(ino, note))? else {
            return Ok(None);
        };
        let Some(place) = place else {
            if self.open_files.lineage() == lineage {
                let (registration, keep_pages, uncached, home) = (None, false, true, None);
                return Ok(Some(Opened { registration, keep_pages, uncached, lineage, home }));
            }
            self.close_file(ino, access, None)?;
            return Ok(None);
        };
        if let Some(home) = self.near.open(ino, place, lineage, self.kept.object_of(ino)) {
            if self.open_files.lineage() == lineage {
                let registration =
                    if home == Home::Here { self.near.registration(ino) } else { None };
                let uncached = registration.is_none();
                let (keep_pages, home) = (false, Some(home));
                return Ok(Some(Opened { registration, keep_pages, uncached, lineage, home }));
            }
            self.near.let_go_of(ino);
        }
        // The owner knows more.
        if !self.open_files.closed_by_grant(ino, access) {
            let _ = self.close_file(ino, access, None);
        }
        Ok(None)
    }

    /// Waits a little for handles that are open by a grant. The kernel tells of the end of one after close(2) has returned, and a
    /// program that then removes the file may be quicker: to tell the owner of such a handle takes two calls.
    pub(super) fn await_closes(&self, ino: Ino) {
        await_closes(|| self.open_files.granted(ino).is_none());
    }

    /// Tells the owner of the handles of a file that are open by its grant.
    ///
    /// # Errors
    /// What it says.
    pub(super) fn register(&self, ino: Ino) -> Result<()> {
        if self.open_files.granted(ino).is_none() {
            return Ok(());
        }
        let _one_at_a_time = self.registering.lock();
        while let Some(access) = self.open_files.granted(ino) {
            let request = Request::Register { ino, access };
            let mut is_open = true;
            let answer = self.ask_and_note(request, |answer| {
                if let Ok(Answer::Opened { .. }) = answer {
                    is_open = self.open_files.registered(ino, access);
                }
            });
            match answer {
                Ok(Answer::Opened { .. }) if is_open => {}
                Ok(Answer::Opened { .. }) => {
                    // It was closed meanwhile. A recall may wait for this.
                    let close = Request::Close { ino, access, left: None };
                    self.do_it_in(Room::Release, close)?;
                }
                Ok(other) => return senseless(&other),
                Err(FsError::Stale) => {
                    // It was removed while this node could not be asked.
                    self.open_files.closed_by_grant(ino, access);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Tells the owner of everything that is open by its grants.
    pub(crate) fn register_all(&self) {
        for ino in self.open_files.all_granted() {
            if let Err(error) = self.register(ino) {
                tracing::debug!(%ino, %error, "the owner does not know yet what is open");
            }
        }
    }

    // --- making ---

    /// Makes a file and opens it.
    pub(crate) fn create_file(
        &self,
        parent: Ino,
        name: &[u8],
        new: New<'_>,
        (access, caller): (Access, Caller),
    ) -> Result<(Attributes, Opened)> {
        self.assert_if_needed()?;
        let lineage = self.open_files.lineage();
        if let Some(made) = self.create_here((parent, name), new, (access, caller), lineage)? {
            return Ok(made);
        }
        let live = if access.write && !access.synchronous { self.make_object() } else { None };
        let made = live.as_ref().map(seen_when_made);
        let own = self.changing(&Touched::new_name(parent, name))?;
        let new = NewInode::of(new);
        let (name_sent, reported) = (name.to_vec(), None);
        let request =
            Request::CreateFile { parent, name: name_sent, new, caller, access, made, reported };
        let mut place = None;
        let reply = self.changing_names(&[parent], || {
            let _under_way = self.open_files.under_way();
            let (reply, _) = self.exchange(request, Vec::new())?;
            if let Answer::Created { attributes, crash, home, .. } = &reply.answer {
                place = self.note_opened(attributes.ino, access, (*crash, *home));
            }
            Ok(reply)
        });
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) => {
                if matches!(error, FsError::Moved) {
                    self.give_up(live);
                }
                // Otherwise the owner may have made the file: what refers to nothing is swept.
                return Err(error);
            }
        };
        let Reply { answer, granted, beside } = reply;
        match accepted(answer) {
            Ok(Answer::Created { attributes, uses_made, .. }) => {
                let ino = attributes.ino;
                let change = NameChange::Made(parent, name.to_vec(), ino);
                let file = made.map(|made| (attributes, made.attributes));
                let made_here = MadeHere { file, ..MadeHere::default() };
                learn_made(own, granted, beside, (change, made_here));
                let live = if uses_made { live } else { self.give_up(live) };
                let opened = self.opened(ino, access, (place, live), lineage)?;
                Ok((not_kept(attributes), opened))
            }
            Ok(other) => senseless(&other),
            Err(error) => {
                self.give_up(live);
                Err(error)
            }
        }
    }

    /// Makes an object for a new file on a disk of this node. `None` if the owner is to do that.
    pub(super) fn make_object(&self) -> Option<Arc<LiveObject>> {
        let shared = self.near.shared()?;
        let disks = {
            let mut numbers = self.numbers.lock();
            self.fill(&mut numbers)?;
            numbers.disks.clone()
        };
        let made = shared.objects.make_named(
            |of| of.is_near && disks.contains(&of.id),
            || self.take_number().ok_or(FsError::NoSpace),
        );
        made.ok()
    }

    /// Takes an object for a new file from those that this node has in stock, without a name so far.
    pub(super) fn take_fresh(&self) -> Option<Arc<LiveObject>> {
        let shared = self.near.shared()?;
        let disks = {
            let mut numbers = self.numbers.lock();
            self.fill(&mut numbers)?;
            numbers.disks.clone()
        };
        shared.objects.take_fresh_on(&disks, || self.take_number().ok_or(FsError::NoSpace))
    }

    fn take_number(&self) -> Option<ObjectId> {
        let mut numbers = self.numbers.lock();
        self.fill(&mut numbers)?;
        let number = numbers.next;
        numbers.next += 1;
        numbers.left -= 1;
        numbers.is_used = true;
        Some(ObjectId(number))
    }

    /// Makes sure that there are numbers.
    pub(super) fn fill(&self, numbers: &mut Numbers) -> Option<()> {
        let now = self.kept.moment();
        if now < numbers.rests_until {
            return None;
        }
        if numbers.left == 0 || numbers.inos_left == 0 {
            let fileset = self.fileset;
            let answer = self.ask(Request::Numbers { fileset, returned: false });
            numbers.rests_until = now + NUMBERS_PAUSE;
            let Ok(Answer::Numbers { first, first_ino, count, disks }) = answer else {
                return None;
            };
            (numbers.next, numbers.left) = (first.0, count);
            (numbers.next_ino, numbers.inos_left) = (first_ino.0, count);
            numbers.disks = disks;
            if numbers.left == 0 || numbers.disks.is_empty() {
                return None;
            }
            numbers.rests_until = Moment::default();
        }
        Some(())
    }

    /// Gives numbers back of which none was used since the last time: the owner of a node that is lost with numbers has to look for
    /// objects that belong to nothing.
    pub(crate) fn return_unused_numbers(&self) {
        let is_used = std::mem::take(&mut self.numbers.lock().is_used);
        if !is_used {
            self.return_numbers();
        }
    }

    /// Tells the owner that its numbers are not used any more.
    pub(crate) fn return_numbers(&self) {
        let mut numbers = self.numbers.lock();
        if numbers.next == 0 {
            return;
        }
        *numbers = Numbers::default();
        // An owner that does not answer looks for what may be left, and is not waited for.
        if self.kept.is_vouched() {
            let fileset = self.fileset;
            let _ = self.ask(Request::Numbers { fileset, returned: true });
        }
    }

    /// Removes an object that no file refers to.
    pub(super) fn give_up(&self, live: Option<Arc<LiveObject>>) -> Option<Arc<LiveObject>> {
        if let (Some(live), Some(shared)) = (live, self.near.shared()) {
            let (at, is_published) = (live.at, live.is_published());
            shared.objects.drop_handle(live);
            if is_published {
                shared.objects.remove(crate::writeset::Removal { at, bytes: 0 });
            }
        }
        None
    }

    // --- using ---

    pub(crate) fn is_open(&self, ino: Ino) -> bool {
        self.open_files.is_open(ino)
    }

    /// Closes a handle; `left` is how its object was left, if it is on a disk of this node.
    pub(crate) fn close_file(
        &self,
        ino: Ino,
        access: Access,
        left: Option<SeenObject>,
    ) -> Result<()> {
        if self.open_files.closed_by_grant(ino, access) || !self.open_files.is_open(ino) {
            return Ok(());
        }
        if !self.is_asserted.load(Ordering::Acquire) {
            self.assert_open_files()?;
        }
        let left = if access.write { left.or_else(|| self.seen(ino)) } else { None };
        if access.write {
            self.kept.written(ino, left.map(|left| left.attributes));
        }
        if self.close_here(ino, access, left) {
            return Ok(());
        }
        let asking = self.kept.begin();
        let reply = {
            let _under_way = self.open_files.under_way();
            let reply = self.exchange(Request::Close { ino, access, left }, Vec::new());
            let has_moved = match &reply {
                Ok((reply, _)) => matches!(reply.answer, Answer::NotMine),
                Err(error) => matches!(error, FsError::Moved),
            };
            if !has_moved {
                self.open_files.closed(ino, access);
            }
            reply?.0
        };
        match accepted(reply.answer)? {
            Answer::Done => Ok(()),
            Answer::Attributes(attributes) => {
                asking.answered(reply.granted, Learned::Attributes(attributes));
                Ok(())
            }
            other => senseless(&other),
        }
    }

    /// Closes a handle of a file that the owner does not know yet: it hears of both together.
    fn close_here(&self, ino: Ino, access: Access, left: Option<SeenObject>) -> bool {
        let _under_way = self.open_files.under_way();
        let is_noted = self.kept.close_here(ino, Change::Closed { ino, access, left });
        if is_noted {
            self.open_files.closed(ino, access);
        }
        is_noted
    }

    /// Reads a small file as a whole, to keep its content.
    fn read_whole(
        &self,
        ino: Ino,
        (size, stamp): (usize, u64),
        buffer: &mut [u8],
    ) -> Result<usize> {
        let length = u32::try_from(size.max(buffer.len())).unwrap_or(u32::MAX);
        let request = Request::Read { ino, offset: 0, length };
        let (answer, bytes) = self.ask_with(request, Vec::new())?;
        match answer {
            Answer::Count(count) if count == bytes.len() as u64 => {
                if bytes.len() == size {
                    self.kept.keep_bytes(ino, stamp, &bytes);
                }
                let read = buffer.len().min(bytes.len());
                buffer[..read].copy_from_slice(&bytes[..read]);
                Ok(read)
            }
            other => senseless(&other),
        }
    }

    /// Fetches blocks of a file.
    ///
    /// # Errors
    /// What the owner, or the node of the bytes, says.
    pub(super) fn fetch_blocks(&self, file: &BlockFile, blocks: &Range<u64>) -> Result<Fetched> {
        let (offset, length) = file.bytes_of(blocks);
        let mut bytes = vec![0; length];
        let mut read = 0;
        while read < length {
            let more = self.read_there(file.ino, offset + read as u64, &mut bytes[read..])?;
            if more == 0 {
                break;
            }
            read += more;
        }
        bytes.truncate(read);
        let is_current = self.kept.has_content(file.ino, file.content.stamp);
        Ok(Fetched { bytes, is_current })
    }

    /// Reads a file of which what is read may be kept. `None` if that is to be read at its place.
    fn read_blocks(
        self: &Arc<Self>,
        (ino, size, stamp): (Ino, u64, u64),
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<Option<usize>> {
        let (blocks, reader) = &self.blocks;
        let file = BlockFile { ino, content: Content { reader: *reader, stamp }, size };
        let fetch = |wanted: &Range<u64>| self.fetch_blocks(&file, wanted);
        let read = blocks.read(&file, (offset, &mut *buffer), &fetch)?;
        if let Some(read) = read {
            blocks.note_read(self, &file, (offset, read));
        }
        Ok(read)
    }

    pub(crate) fn read(
        self: &Arc<Self>,
        ino: Ino,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        let is_far = !self.near.is_here(ino);
        let read = match self.known(|| self.kept.content(ino, is_far))? {
            Some(KeptContent::Whole(bytes)) => {
                Some(put_piece((0, &*bytes), (offset, &mut *buffer)))
            }
            Some(KeptContent::Blocks { size, stamp }) => {
                self.read_blocks((ino, size, stamp), offset, &mut *buffer)?
            }
            None => None,
        };
        read.map_or_else(|| self.read_there(ino, offset, buffer), Ok)
    }

    /// Reads at the place of the bytes.
    fn read_there(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        if let Some(read) = self.near.read(ino, self.open_files.lineage(), offset, buffer) {
            return read;
        }
        self.register(ino)?;
        if let (0, Some((size, stamp))) = (offset, self.kept.wants_bytes(ino)) {
            return self.read_whole(ino, (size, stamp), buffer);
        }
        let length = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
        let (answer, bytes) = self.ask_with(Request::Read { ino, offset, length }, Vec::new())?;
        match (answer, buffer.get_mut(..bytes.len())) {
            (Answer::Count(count), Some(place)) if count == bytes.len() as u64 => {
                place.copy_from_slice(&bytes);
                Ok(bytes.len())
            }
            (other, _) => senseless(&other),
        }
    }

    pub(crate) fn write(&self, ino: Ino, at: At, data: &[u8], set_id: SetId) -> Result<usize> {
        let kill = || self.kill_set_id(ino);
        let lineage = self.open_files.lineage();
        if let Some(written) = self.near.write(ino, lineage, (at, data), set_id, kill) {
            return written;
        }
        let offset = match at {
            At::Offset(offset) => Some(offset),
            At::End(_) => None,
        };
        let request = Request::Write { ino, offset, kills_set_id: set_id != SetId::Keep };
        let count = self.ask_count(request, data.to_vec())?;
        usize::try_from(count).ok().filter(|count| *count <= data.len()).ok_or_else(|| {
            FsError::Io(format!("node {} has written more than it was sent", self.node()))
        })
    }
}
