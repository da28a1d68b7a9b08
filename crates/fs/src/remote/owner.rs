//! A fileset of another node, as this one uses it: every operation is a request to its owner.
//!
//! What the owner grants with its answers is kept here ([`Kept`]) until it is recalled; the kernel may keep nothing. What is
//! known here beside that is what this node holds there: its open files, to open them again where the fileset gets another
//! owner in order, and what its kernel has forgotten, which goes with the next request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use forebay_base::channel::{CallError, Message};
use forebay_base::in_flight::{self, WaitsFor};
use forebay_base::{Channel, Epoch, FilesetId, Ino, NodeId};
use forebay_cluster::grants::{GrantNumber, RecallNumber};
use forebay_disk::{Allocate, Seek, Sync};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

use super::NearFiles;
use super::unsynced::Unsynced;
use super::wire::{
    Answer, Head, LockAnswer, LockAsked, LockFound, NewInode, Reply, Request, decode, encode,
};
use crate::attributes::{Attributes, KeepName, SetAttributes, SetId};
use crate::clients::Handles;
use crate::error::{FsError, Result};
use crate::grants::{Item, Kept, Touched};
use crate::locks::{Ticket, Waited};
use crate::ops::{Access, Home, New, Opened, Replace, SetXattr, Statistics};
use crate::owner::At;
use crate::partition::Caller;
use crate::record::Usage;

/// Forgotten inodes after which they are told without waiting for a request.
const FORGOTTEN_MAX: usize = 512;
/// Files that one request opens again.
const REOPENED_AT_ONCE: usize = 4096;

/// What this node has open of a fileset that another node owns, whoever that is.
#[derive(Default)]
pub(crate) struct OpenFiles {
    /// Grows when what was open is lost: handles from before are stale then.
    lineage: AtomicU32,
    state: Mutex<OpenState>,
    /// Names that programs of this node have changed.
    unsynced: Unsynced,
    /// Held for reading from the request that opens or closes a file until that is noted here; for writing by whoever
    /// tells the next owner what is open.
    under_way: RwLock<()>,
}

#[derive(Default)]
struct OpenState {
    /// The latest crash of the fileset as far as is known: nothing was lost as long as it is the same.
    crash: Option<Epoch>,
    files: FxHashMap<Ino, OpenFile>,
}

/// How a file is open.
#[derive(Clone, Copy, Default)]
struct OpenFile {
    handles: Handles,
    /// All of them on its object, which is on a disk of this node.
    is_near: bool,
}

impl OpenFiles {
    /// The lineage of what is opened now.
    pub fn lineage(&self) -> u32 {
        // 0 stands for handles where owners do not change.
        self.lineage.load(Ordering::Acquire).wrapping_add(1).max(1)
    }

    /// What was open is lost.
    pub fn lose(&self) {
        self.lineage.fetch_add(1, Ordering::AcqRel);
        self.state.lock().files.clear();
    }

    /// This node was the owner, and names in these directories are lost with what was open.
    pub fn lose_with_names(&self, directories: impl IntoIterator<Item = Ino>) {
        self.lose();
        self.unsynced.lose(directories);
        // The next owner knows of another crash.
        self.state.lock().crash = None;
    }

    /// An owner says which the latest crash was. After another one than before, names are lost that were not synced.
    pub fn hear_of_crash(&self, crash: Epoch) {
        let before = self.state.lock().crash.replace(crash);
        if before.is_some_and(|before| before != crash) {
            self.unsynced.lose([]);
        }
    }

    /// Names of this node's programs that may not be durable.
    pub fn unsynced(&self) -> &Unsynced {
        &self.unsynced
    }

    /// Notes a handle, and whether it is one on an object of this node: if the file is not open yet and that is
    /// `wanted`, or the others are. The kernel allows no mixture.
    fn opened(&self, ino: Ino, access: Access, crash: Epoch, wanted: bool) -> bool {
        let mut state = self.state.lock();
        // While files are open it is that of when they were opened.
        if state.crash.is_none() {
            state.crash = Some(crash);
        }
        let file = state.files.entry(ino).or_default();
        if file.handles.all == 0 {
            file.is_near = wanted;
        }
        file.handles.add(access);
        file.is_near
    }

    pub fn closed(&self, ino: Ino, access: Access) {
        let mut state = self.state.lock();
        if let Some(OpenFile { handles, .. }) = state.files.get_mut(&ino) {
            handles.take(access);
            if handles.all == 0 {
                state.files.remove(&ino);
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.state.lock().files.is_empty()
    }

    fn is_open(&self, ino: Ino) -> bool {
        self.state.lock().files.contains_key(&ino)
    }

    /// Waits until every open and close under way is noted, and keeps others from beginning. An owner that gives a
    /// fileset up in order answers them at once; where one is not answered in time, what is open is lost.
    pub fn settled(&self) -> Option<impl Drop> {
        let settled = self.under_way.try_write_for(SETTLED_WAIT);
        if settled.is_none() {
            self.lose();
        }
        settled
    }

    /// What is open, and the latest crash when it was opened.
    pub fn all(&self) -> (Epoch, Vec<(Ino, Handles)>) {
        let state = self.state.lock();
        (
            state.crash.unwrap_or(Epoch(0)),
            state.files.iter().map(|(ino, file)| (*ino, file.handles)).collect(),
        )
    }

    /// Takes over what was open where this node was the owner.
    pub fn take_over(&self, crash: Epoch, files: Vec<(Ino, Handles)>) {
        let open = |(ino, handles)| (ino, OpenFile { handles, is_near: false });
        let files = files.into_iter().map(open).collect();
        *self.state.lock() = OpenState { crash: Some(crash), files };
    }

    /// Forgets what is open: this node is the owner now, and its partition knows.
    pub fn hand_on(&self) {
        self.state.lock().files.clear();
    }
}

/// A fileset of another node.
pub struct RemoteOwner {
    pub(super) fileset: FilesetId,
    node: NodeId,
    channel: Arc<dyn Channel>,
    open_files: Arc<OpenFiles>,
    near: Arc<NearFiles>,
    /// The files that were open before this node became the owner are open there, too, in this epoch of it.
    pub(super) is_asserted: AtomicBool,
    epoch: AtomicU64,
    asserting: Mutex<()>,
    forgotten: Mutex<Vec<(Ino, u64)>>,
    pub(super) kept: Kept,
}

/// What the kernel is told: it may keep nothing.
pub(super) fn not_kept(attributes: Attributes) -> Attributes {
    Attributes { cacheable: false, name: KeepName::Never, ..attributes }
}

/// An answer that is not a refusal.
pub(super) fn accepted(answer: Answer) -> Result<Answer> {
    match answer {
        Answer::Refused(error) => Err(error),
        Answer::NotMine => Err(FsError::Moved),
        answer => Ok(answer),
    }
}

/// An answer that does not fit its request: the other node is broken.
pub(super) fn senseless<T>(answer: &Answer) -> Result<T> {
    Err(FsError::Io(format!("the owner of the fileset sent an unexpected answer: {answer:?}")))
}

/// Tells another node something that is no operation of a fileset.
///
/// # Errors
/// Why it has not heard it.
pub(crate) fn tell(channel: &dyn Channel, request: Request) -> std::result::Result<(), String> {
    let (epoch, seen) = (Epoch(0), GrantNumber(0));
    let head = encode(&Head { epoch, forgotten: Vec::new(), seen, request });
    let answered = channel.call(Message { head, payload: Vec::new() });
    match decode::<Reply>(&answered.map_err(|error| error.to_string())?.head)?.answer {
        Answer::Done => Ok(()),
        Answer::Refused(error) => Err(error.to_string()),
        other => Err(format!("not an answer: {other:?}")),
    }
}

impl RemoteOwner {
    pub(crate) fn new(
        fileset: FilesetId,
        node: NodeId,
        channel: Arc<dyn Channel>,
        open_files: Arc<OpenFiles>,
        near: Arc<NearFiles>,
        kept: Kept,
    ) -> RemoteOwner {
        RemoteOwner {
            fileset,
            node,
            channel,
            open_files,
            near,
            is_asserted: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            asserting: Mutex::default(),
            forgotten: Mutex::default(),
            kept,
        }
    }

    /// The owner takes back what it granted.
    pub(crate) fn recalled(&self, recall: RecallNumber, items: Vec<Item>) {
        self.kept.recalled(recall, items);
    }

    /// Whether what this node has open is open there, too.
    pub(crate) fn is_asserted(&self) -> bool {
        self.is_asserted.load(Ordering::Acquire)
    }

    /// The node.
    pub fn node(&self) -> NodeId {
        self.node
    }

    // --- asking ---

    fn send(&self, request: Request, payload: Vec<u8>) -> Result<(Answer, Vec<u8>)> {
        let (reply, payload) = self.exchange(request, payload)?;
        Ok((accepted(reply.answer)?, payload))
    }

    pub(super) fn exchange(&self, request: Request, payload: Vec<u8>) -> Result<(Reply, Vec<u8>)> {
        let seen = self.kept.sending();
        let forgotten = std::mem::take(&mut *self.forgotten.lock());
        let epoch = Epoch(self.epoch.load(Ordering::Acquire));
        let (repeatable, unsent) = (request.is_repeatable(), request.is_repeatable_unsent());
        let head = encode(&Head { epoch, forgotten, seen, request });
        let _waits = in_flight::waits_for(|| WaitsFor::Node(self.node));
        let answered =
            self.channel.call(Message { head, payload }).map_err(|error| match error {
                // Whoever owns the fileset next, or the same node when it is back, answers it as well.
                CallError::Unreachable(_) if repeatable => FsError::Moved,
                // It was not carried out.
                CallError::Unsent(_) if unsent => FsError::Moved,
                CallError::Unreachable(why) | CallError::Unsent(why) => FsError::Io(format!(
                    "node {}, which owns fileset {}, cannot be reached: {why}",
                    self.node, self.fileset
                )),
                CallError::Evicted(_) => {
                    self.open_files.lose();
                    self.kept.lose();
                    FsError::Stale
                }
                CallError::Refused(why) => FsError::Io(format!(
                    "node {} does not understand a request: {why}; does it run a different version?",
                    self.node
                )),
            })?;
        let reply = decode::<Reply>(&answered.head).map_err(|why| {
            FsError::Io(format!("node {} sent an answer that cannot be read: {why}", self.node))
        })?;
        Ok((reply, answered.payload))
    }

    fn ask_with(&self, request: Request, payload: Vec<u8>) -> Result<(Answer, Vec<u8>)> {
        if !self.is_asserted.load(Ordering::Acquire) {
            self.assert_open_files()?;
        }
        self.send(request, payload)
    }

    pub(crate) fn ask(&self, request: Request) -> Result<Answer> {
        Ok(self.ask_with(request, Vec::new())?.0)
    }

    /// Sends a request that opens or closes a file, and notes what came of it before anybody can ask what is open.
    fn ask_and_note(&self, request: Request, note: impl FnOnce(&Result<Answer>)) -> Result<Answer> {
        if !self.is_asserted.load(Ordering::Acquire) {
            self.assert_open_files()?;
        }
        let _under_way = self.open_files.under_way.read();
        let answer = self.send(request, Vec::new()).map(|(answer, _)| answer);
        note(&answer);
        answer
    }

    pub(super) fn do_it(&self, request: Request) -> Result<()> {
        match self.ask(request)? {
            Answer::Done => Ok(()),
            other => senseless(&other),
        }
    }

    fn ask_attributes(&self, request: Request) -> Result<Attributes> {
        match self.ask(request)? {
            Answer::Attributes(attributes) => Ok(not_kept(attributes)),
            other => senseless(&other),
        }
    }

    fn ask_count(&self, request: Request, payload: Vec<u8>) -> Result<u64> {
        match self.ask_with(request, payload)?.0 {
            Answer::Count(count) => Ok(count),
            other => senseless(&other),
        }
    }

    /// Opens again what was open before the fileset came to this owner. Where something was lost on the way, all of it
    /// is stale.
    pub(crate) fn assert_open_files(&self) -> Result<()> {
        let _one_at_a_time = self.asserting.lock();
        if self.is_asserted.load(Ordering::Acquire) {
            return Ok(());
        }
        let _settled = self.open_files.settled();
        let (mut crash, mut files) = self.open_files.all();
        loop {
            // At least one request: its answer tells the epoch.
            let part = files.split_off(files.len().saturating_sub(REOPENED_AT_ONCE));
            let count = part.len();
            let request = Request::Reopen { fileset: self.fileset, crash, files: part };
            match self.send(request, Vec::new()) {
                Ok((Answer::Reopened { crash, epoch }, _)) => {
                    self.open_files.hear_of_crash(crash);
                    self.epoch.store(epoch.0, Ordering::Release);
                }
                Ok((other, _)) => return senseless(&other),
                Err(FsError::Stale) if count > 0 => {
                    tracing::warn!(fileset = %self.fileset, node = %self.node, "open files are stale: the fileset lost changes");
                    self.open_files.lose();
                    (crash, files) = (Epoch(0), Vec::new());
                    continue;
                }
                Err(error) => return Err(error),
            }
            if files.is_empty() {
                break;
            }
        }
        self.is_asserted.store(true, Ordering::Release);
        Ok(())
    }

    // --- names ---

    /// Notes before a change of names that it may be lost, and afterwards once more: the loss may come in between.
    fn changing_names<T>(&self, parents: &[Ino], change: impl FnOnce() -> Result<T>) -> Result<T> {
        let note = || parents.iter().for_each(|parent| self.open_files.unsynced.note(*parent));
        note();
        let changed = change();
        if changed.is_ok() {
            note();
        }
        changed
    }

    /// Syncs, and with it all changes of names that were answered before.
    fn syncing(&self, request: Request) -> Result<()> {
        let through = self.open_files.unsynced.answered();
        self.do_it(request)?;
        self.open_files.unsynced.synced(through);
        Ok(())
    }

    pub(crate) fn create(
        &self,
        parent: Ino,
        name: &[u8],
        new: New<'_>,
        caller: Caller,
    ) -> Result<Attributes> {
        let _own = self.kept.changing(&Touched::new_name(parent, name));
        let (name, new) = (name.to_vec(), NewInode::of(new));
        let request = Request::Create { parent, name, new, caller };
        self.changing_names(&[parent], || self.ask_attributes(request))
    }

    pub(crate) fn create_unnamed(
        &self,
        parent: Ino,
        new: New<'_>,
        caller: Caller,
    ) -> Result<Attributes> {
        self.ask_attributes(Request::CreateUnnamed { parent, new: NewInode::of(new), caller })
    }

    pub(crate) fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attributes> {
        let mut touched = Touched::new_name(parent, name);
        touched.inodes.push(ino);
        let _own = self.kept.changing(&touched);
        let request = Request::Link { ino, parent, name: name.to_vec() };
        self.changing_names(&[parent], || self.ask_attributes(request))
    }

    pub(crate) fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let _own = self.kept.changing(&Touched::names([(parent, name)]));
        let request = Request::Unlink { parent, name: name.to_vec() };
        self.changing_names(&[parent], || self.do_it(request))
    }

    pub(crate) fn remove_directory(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let _own = self.kept.changing(&Touched::names([(parent, name)]));
        let request = Request::RemoveDirectory { parent, name: name.to_vec() };
        self.changing_names(&[parent], || self.do_it(request))
    }

    pub(crate) fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        replace: Replace,
        whiteout: Option<Caller>,
    ) -> Result<()> {
        let _own = self.kept.changing(&Touched::names([from, to]));
        let (from, to) = ((from.0, from.1.to_vec()), (to.0, to.1.to_vec()));
        let parents = [from.0, to.0];
        let request = Request::Rename { from, to, replace, whiteout };
        self.changing_names(&parents, || self.do_it(request))
    }

    pub(crate) fn check_leaves(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.do_it(Request::CheckLeaves { parent, name: name.to_vec() })
    }

    // --- attributes ---

    pub(crate) fn set_attributes(&self, ino: Ino, set: SetAttributes) -> Result<Attributes> {
        let _own = self.kept.changing(&Touched::inode(ino));
        self.ask_attributes(Request::SetAttributes { ino, set })
    }

    pub(crate) fn kill_set_id(&self, ino: Ino) -> Result<()> {
        let _own = self.kept.changing(&Touched::inode(ino));
        self.do_it(Request::KillSetId { ino })
    }

    pub(crate) fn set_xattr(&self, ino: Ino, set: SetXattr<'_>) -> Result<()> {
        let _own = self.kept.changing(&Touched::inode(ino));
        let SetXattr { name, value, mode, kill_set_gid } = set;
        let (name, value) = (name.to_vec(), value.to_vec());
        self.do_it(Request::SetXattr { ino, name, value, mode, kill_set_gid })
    }

    pub(crate) fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        let _own = self.kept.changing(&Touched::inode(ino));
        self.do_it(Request::RemoveXattr { ino, name: name.to_vec() })
    }

    // --- open files ---

    pub(crate) fn open_file(&self, ino: Ino, access: Access, caller: Caller) -> Result<Opened> {
        // A lineage that breaks meanwhile makes the handle stale.
        let lineage = self.open_files.lineage();
        let changes = access.write || access.truncate;
        let _own = changes.then(|| self.kept.changing(&Touched::inode(ino)));
        let request = Request::Open { ino, access, caller };
        let mut place = None;
        let answer = self.ask_and_note(request, |answer| {
            if let Ok(Answer::Opened { crash, home }) = answer {
                place = home.and_then(|at| Some((at, self.near.home_of(at)?)));
                let is_here = matches!(place, Some((_, Home::Here)));
                // What is to be on stable storage at each write goes by way of the owner, as the name does.
                let wanted = is_here && !(access.write && access.synchronous);
                let is_near = self.open_files.opened(ino, access, *crash, wanted);
                place = place.filter(|_| is_near || !is_here);
            }
        })?;
        if !matches!(answer, Answer::Opened { .. }) {
            return senseless(&answer);
        }
        let home = place.and_then(|place| self.near.open(ino, place, lineage));
        if self.open_files.lineage() != lineage {
            home.iter().for_each(|_| self.near.let_go_of(ino));
            let _ = self.close_file(ino, access);
            return Err(FsError::Stale);
        }
        let registration = home.filter(|home| *home == Home::Here);
        let registration = registration.and_then(|_| self.near.registration(ino));
        let uncached = registration.is_none();
        Ok(Opened { registration, keep_pages: false, uncached, lineage, home })
    }

    pub(crate) fn is_open(&self, ino: Ino) -> bool {
        self.open_files.is_open(ino)
    }

    pub(crate) fn close_file(&self, ino: Ino, access: Access) -> Result<()> {
        if !self.open_files.is_open(ino) {
            return Ok(());
        }
        let answer = self.ask_and_note(Request::Close { ino, access }, |answer| {
            if !matches!(answer, Err(FsError::Moved)) {
                self.open_files.closed(ino, access);
            }
        })?;
        if matches!(answer, Answer::Done) { Ok(()) } else { senseless(&answer) }
    }

    pub(crate) fn read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        if let Some(read) = self.near.read(ino, self.open_files.lineage(), offset, buffer) {
            return read;
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
            FsError::Io(format!("node {} has written more than it was sent", self.node))
        })
    }

    pub(crate) fn allocate(
        &self,
        ino: Ino,
        what: Allocate,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        self.do_it(Request::Allocate { ino, what, offset, length })
    }

    pub(crate) fn seek(&self, ino: Ino, target: Seek, offset: u64) -> Result<u64> {
        self.ask_count(Request::Seek { ino, target, offset }, Vec::new())
    }

    pub(crate) fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), length: u64) -> Result<u64> {
        self.ask_count(Request::CopyRange { from, to, length }, Vec::new())
    }

    pub(crate) fn sync_file(&self, ino: Ino, what: Sync) -> Result<()> {
        match what {
            Sync::All => self.syncing(Request::SyncFile { ino, what }),
            Sync::Data => self.do_it(Request::SyncFile { ino, what }),
        }
    }

    pub(crate) fn sync_directory(&self, ino: Ino) -> Result<()> {
        self.syncing(Request::SyncDirectory { ino })
    }

    // --- locks ---

    pub(crate) fn lock(&self, asked: LockAsked) -> Result<Option<Ticket>> {
        match self.ask(Request::Lock(asked))? {
            Answer::Lock(LockAnswer::Granted) | Answer::Done => Ok(None),
            Answer::Lock(LockAnswer::Waiting(ticket)) => Ok(Some(ticket)),
            Answer::Lock(LockAnswer::Refused) => Err(FsError::Locked),
            other => senseless(&other),
        }
    }

    pub(crate) fn await_lock(
        &self,
        ino: Ino,
        ticket: Ticket,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Waited> {
        while !is_over() {
            match self.ask(Request::AwaitLock { ino, ticket })? {
                Answer::Lock(LockAnswer::Granted) => return Ok(Waited::Granted),
                // The owner has let the request wait for a while already.
                Answer::Lock(LockAnswer::Waiting(_)) => std::thread::sleep(LOCK_PAUSE),
                other => return senseless(&other),
            }
        }
        Ok(Waited::Waiting)
    }

    pub(crate) fn cancel_lock(&self, ino: Ino, ticket: Ticket) -> Result<bool> {
        match self.ask(Request::CancelLock { ino, ticket })? {
            Answer::Lock(LockAnswer::Granted) => Ok(true),
            Answer::Lock(_) => Ok(false),
            other => senseless(&other),
        }
    }

    pub(crate) fn test_lock(&self, asked: LockAsked) -> Result<Option<LockFound>> {
        match self.ask(Request::TestLock(asked))? {
            Answer::Found(found) => Ok(found),
            other => senseless(&other),
        }
    }

    pub(crate) fn release_locks(&self, ino: Ino, owner: u64, whole: bool) -> Result<()> {
        self.do_it(Request::ReleaseLocks { ino, owner, whole })
    }

    // --- what the kernel holds, and the whole ---

    /// The kernel forgets `count` of the times it was told of an inode: the owner hears of it with the next request.
    pub fn forget(&self, ino: Ino, count: u64) {
        let count = self.kept.forget(ino, count);
        if count == 0 {
            return;
        }
        let mut forgotten = self.forgotten.lock();
        forgotten.push((ino, count));
        if forgotten.len() >= FORGOTTEN_MAX {
            drop(forgotten);
            self.tell_forgotten();
        }
    }

    /// Tells the owner what the kernel has forgotten, if anything.
    pub(crate) fn tell_forgotten(&self) {
        if !self.forgotten.lock().is_empty() {
            // An owner that cannot be reached keeps more than it must, until it drops this node.
            let _ = self.ask(Request::Forget { fileset: self.fileset });
        }
    }

    pub(crate) fn statistics(&self, ino: Ino) -> Result<Statistics> {
        match self.ask(Request::Statistics { ino })? {
            Answer::Statistics(found) => Ok(found),
            other => senseless(&other),
        }
    }

    pub(crate) fn usage(&self) -> Result<Usage> {
        match self.ask(Request::Usage { fileset: self.fileset })? {
            Answer::Usage(usage) => Ok(usage),
            other => senseless(&other),
        }
    }
}

/// How long the next owner waits for opens and closes that the one before has not answered.
const SETTLED_WAIT: Duration = Duration::from_secs(1);
/// How long a request rests that waits for a lock of another node, between asking.
const LOCK_PAUSE: Duration = Duration::from_millis(2);
