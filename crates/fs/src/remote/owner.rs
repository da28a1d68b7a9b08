//! A fileset of another node, as this one uses it: every operation is a request to its owner.
//!
//! What the owner grants with its answers is kept here ([`Kept`]) until it is recalled, and lent to the kernel. What is
//! known here beside that is what this node holds there: its open files, to open them again where the fileset gets another
//! owner in order, and what its kernel has forgotten, which goes with the next request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forebay_base::channel::{CallError, Message};
use forebay_base::in_flight::{self, WaitsFor};
use forebay_base::{Channel, Epoch, FilesetId, Ino, NodeId};
use forebay_cluster::grants::{GrantNumber, RecallNumber};
use forebay_disk::{Allocate, ObjectAttributes, Seek, Sync};
use parking_lot::Mutex;

use super::files::Numbers;
use super::request::Room;
use super::wire::{
    Answer, Beside, Head, LockAnswer, LockAsked, LockFound, NewInode, Reply, Request, decode,
    encode,
};
use super::{Blocks, NearFiles, OpenFiles};
use crate::attributes::{Attributes, KeepName};
use crate::census::FilesetCensus;
use crate::error::{FsError, Result};
use crate::grants::{Granted, Item, Kept, Learned, NameChange, OwnChange, Touched};
use crate::locks::{Ticket, Waited};
use crate::object::SeenObject;
use crate::ops::{New, Replace, Statistics};
use crate::partition::Caller;
use crate::record::Usage;

/// Forgotten inodes after which they are told without waiting for a request.
const FORGOTTEN_MAX: usize = 512;
/// Files that one request opens again.
const REOPENED_AT_ONCE: usize = 4096;

/// A fileset of another node.
pub struct RemoteOwner {
    pub(super) fileset: FilesetId,
    node: NodeId,
    channel: Arc<dyn Channel>,
    pub(super) open_files: Arc<OpenFiles>,
    pub(super) near: Arc<NearFiles>,
    /// Blocks of files that are read, and the number of this reader of them.
    pub(super) blocks: (Arc<Blocks>, u64),
    /// Numbers for objects that this node makes itself.
    pub(super) numbers: Mutex<Numbers>,
    /// Held by whoever tells the owner of files that are open by its grants.
    pub(super) registering: Mutex<()>,
    /// Held by whoever reports what this node has done by itself.
    pub(super) reporting: Mutex<()>,
    /// The files that were open before this node became the owner are open there, too, in this epoch of it.
    pub(super) is_asserted: AtomicBool,
    epoch: AtomicU64,
    asserting: Mutex<()>,
    forgotten: Mutex<Vec<(Ino, u64)>>,
    pub(super) kept: Kept,
}

/// What the kernel is told of something that was not granted before: it may keep nothing.
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

/// Keeps what was granted with the answer to a change of names.
pub(super) fn learn(
    own: OwnChange<'_>,
    granted: Granted,
    beside: Option<Beside>,
    change: NameChange,
) {
    learn_made(own, granted, beside, (change, MadeHere::default()));
}

/// What was made with a name.
#[derive(Default)]
pub(super) struct MadeHere {
    /// A file, with how its object was that this node has made.
    pub file: Option<(Attributes, ObjectAttributes)>,
    /// A directory that is delegated to this node.
    pub delegated: Option<Attributes>,
}

/// As [`learn`], of what was made.
pub(super) fn learn_made(
    own: OwnChange<'_>,
    granted: Granted,
    beside: Option<Beside>,
    (change, MadeHere { file, delegated }): (NameChange, MadeHere),
) {
    let directory = beside.map(|beside| (beside.number, beside.attributes));
    let continues = beside.is_some_and(|beside| beside.continues);
    let made = delegated.map(Box::new);
    let learned = Learned::Change { change, directory, continues, file, made };
    own.answered(granted, learned);
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
    match ask_node(channel, request)? {
        Answer::Done => Ok(()),
        other => Err(format!("not an answer: {other:?}")),
    }
}

/// Asks another node something that is no operation of a fileset.
///
/// # Errors
/// Why it has not answered, or has refused.
pub(crate) fn ask_node(
    channel: &dyn Channel,
    request: Request,
) -> std::result::Result<Answer, String> {
    let (epoch, seen) = (Epoch(0), GrantNumber(0));
    let head = encode(&Head { epoch, forgotten: Vec::new(), seen, request });
    let answered = channel.call(Message { head, payload: Vec::new() });
    match decode::<Reply>(&answered.map_err(|error| error.to_string())?.head)?.answer {
        Answer::Refused(error) => Err(error.to_string()),
        Answer::NotMine => Err("it has another owner now".to_owned()),
        answer => Ok(answer),
    }
}

impl RemoteOwner {
    pub(crate) fn new(
        fileset: FilesetId,
        node: NodeId,
        channel: Arc<dyn Channel>,
        open_files: Arc<OpenFiles>,
        (near, blocks): (Arc<NearFiles>, &Arc<Blocks>),
        kept: Kept,
    ) -> RemoteOwner {
        RemoteOwner {
            fileset,
            node,
            channel,
            open_files,
            near,
            blocks: (Arc::clone(blocks), blocks.new_reader()),
            numbers: Mutex::default(),
            registering: Mutex::default(),
            reporting: Mutex::default(),
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

    /// Files that are open by grants of these items are open at the owner afterwards.
    ///
    /// # Errors
    /// What the owner says to that: the recall is not over then.
    pub(crate) fn register_opens(&self, items: &[Item]) -> Result<()> {
        let of = |item: &Item| match item {
            Item::Attributes(ino) => Some(*ino),
            Item::Entry(..) | Item::Directory(_) => None,
        };
        items.iter().filter_map(of).try_for_each(|ino| self.register(ino))
    }

    /// Directories that were delegated to this node go back: the owner knows afterwards what was done there. Returns what else is not
    /// used any more, as the kernel may have been lent it.
    ///
    /// # Errors
    /// What the owner says to that: the recall is not over then.
    pub(crate) fn return_directories(&self, items: &[Item]) -> Result<Vec<Item>> {
        if !items.iter().any(|item| matches!(item, Item::Directory(_))) {
            return Ok(Vec::new());
        }
        self.report()?;
        Ok(self.kept.return_directories(items))
    }

    /// It is not asked any more: nothing is lent that it has granted.
    pub(crate) fn lose_grants(&self) {
        self.kept.lose();
        self.note_broken();
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

    /// Asks the owner, which knows by then what this node has done by itself.
    pub(super) fn exchange(&self, request: Request, payload: Vec<u8>) -> Result<(Reply, Vec<u8>)> {
        if request.comes_after_reports() {
            self.report()?;
        }
        let reply = self.exchange_now(request, payload)?;
        if matches!(reply.0.answer, Answer::Refused(FsError::TooManyFiles(_))) {
            // What is kept need not hold anything: the next request has room.
            self.kept.let_go_of_retained();
        }
        Ok(reply)
    }

    pub(super) fn exchange_now(
        &self,
        request: Request,
        payload: Vec<u8>,
    ) -> Result<(Reply, Vec<u8>)> {
        let room = request.room();
        self.exchange_in(room, request, payload)
    }

    /// As [`RemoteOwner::do_it`], for a request on which a recall may wait.
    pub(super) fn do_it_in(&self, room: Room, request: Request) -> Result<()> {
        self.report()?;
        match accepted(self.exchange_in(room, request, Vec::new())?.0.answer)? {
            Answer::Done => Ok(()),
            other => senseless(&other),
        }
    }

    fn exchange_in(
        &self,
        room: Room,
        request: Request,
        payload: Vec<u8>,
    ) -> Result<(Reply, Vec<u8>)> {
        let seen = self.kept.sending();
        let mut forgotten = Vec::new();
        if request.comes_after_reports() {
            // The owner knows these inodes by now.
            forgotten = std::mem::take(&mut *self.forgotten.lock());
            forgotten.extend(self.kept.take_released().into_iter().map(|ino| (ino, 1)));
        }
        let epoch = Epoch(self.epoch.load(Ordering::Acquire));
        let (repeatable, unsent) = (request.is_repeatable(), request.is_repeatable_unsent());
        let head = encode(&Head { epoch, forgotten, seen, request });
        let _waits = in_flight::waits_for(|| WaitsFor::Node(self.node));
        let message = Message { head, payload };
        let answered = match room {
            Room::Release => self.channel.release(message),
            Room::Ordinary => self.channel.call(message),
        };
        let answered = answered.map_err(|error| match error {
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

    /// Before a new owner is asked for anything else: what is open is open there too, or lost.
    pub(super) fn assert_if_needed(&self) -> Result<()> {
        if self.is_asserted() { Ok(()) } else { self.assert_open_files() }
    }

    pub(super) fn ask_with(&self, request: Request, payload: Vec<u8>) -> Result<(Answer, Vec<u8>)> {
        self.assert_if_needed()?;
        self.send(request, payload)
    }

    pub(crate) fn ask(&self, request: Request) -> Result<Answer> {
        Ok(self.ask_with(request, Vec::new())?.0)
    }

    /// Sends a request that opens or closes a file, and notes what came of it before anybody can ask what is open.
    pub(super) fn ask_and_note(
        &self,
        request: Request,
        note: impl FnOnce(&Result<Answer>),
    ) -> Result<Answer> {
        self.assert_if_needed()?;
        let _under_way = self.open_files.under_way();
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

    /// How the object of a file that is open here is, if it is on a disk of this node.
    pub(super) fn seen(&self, ino: Ino) -> Option<SeenObject> {
        self.near.look_at(ino, self.open_files.lineage())
    }

    pub(super) fn ask_attributes(&self, request: Request) -> Result<Attributes> {
        match self.ask(request)? {
            Answer::Attributes(attributes) => Ok(not_kept(attributes)),
            other => senseless(&other),
        }
    }

    /// As [`RemoteOwner::ask`], with what was granted.
    fn ask_for_reply(&self, request: Request) -> Result<Reply> {
        self.assert_if_needed()?;
        let (Reply { answer, granted, beside }, _) = self.exchange(request, Vec::new())?;
        Ok(Reply { answer: accepted(answer)?, granted, beside })
    }

    pub(super) fn ask_count(&self, request: Request, payload: Vec<u8>) -> Result<u64> {
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
        self.open_files.all_are_registered();
        self.is_asserted.store(true, Ordering::Release);
        Ok(())
    }

    // --- names ---

    /// Notes before a change of names that it may be lost, and afterwards once more: the loss may come in between.
    pub(super) fn changing_names<T>(
        &self,
        parents: &[Ino],
        change: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let unsynced = self.open_files.unsynced();
        let note = || parents.iter().for_each(|parent| unsynced.note(*parent));
        note();
        let changed = change();
        if changed.is_ok() {
            note();
        }
        changed
    }

    /// Syncs, and with it all changes of names that were answered before.
    fn syncing(&self, request: Request) -> Result<()> {
        let through = self.open_files.unsynced().answered();
        self.do_it(request)?;
        self.open_files.unsynced().synced(through);
        Ok(())
    }

    pub(crate) fn create(
        &self,
        parent: Ino,
        name: &[u8],
        new: New<'_>,
        caller: Caller,
    ) -> Result<Attributes> {
        if let Some(made) = self.make_here((parent, name), new, caller) {
            return Ok(made);
        }
        let own = self.changing(&Touched::new_name(parent, name))?;
        let new = NewInode::of(new);
        let reported = None;
        let request = Request::Create { parent, name: name.to_vec(), new, caller, reported };
        let reply = self.changing_names(&[parent], || self.ask_for_reply(request))?;
        match reply.answer {
            Answer::Attributes(made) => {
                let change = NameChange::Made(parent, name.to_vec(), made.ino);
                let delegated = reply.granted.directory.map(|_| made);
                let made_here = MadeHere { delegated, ..MadeHere::default() };
                learn_made(own, reply.granted, reply.beside, (change, made_here));
                Ok(not_kept(made))
            }
            other => senseless(&other),
        }
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
        let own = self.changing(&touched)?;
        let request = Request::Link { ino, parent, name: name.to_vec() };
        let reply = self.changing_names(&[parent], || self.ask_for_reply(request))?;
        match reply.answer {
            Answer::Attributes(linked) => {
                let change = NameChange::Made(parent, name.to_vec(), ino);
                learn(own, reply.granted, reply.beside, change);
                Ok(not_kept(linked))
            }
            other => senseless(&other),
        }
    }

    pub(crate) fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        if self.remove_here(parent, name) {
            return Ok(());
        }
        self.remove(parent, name, |name, known| Request::Unlink { parent, name, known })
    }

    pub(crate) fn remove_directory(&self, parent: Ino, name: &[u8]) -> Result<()> {
        if self.remove_directory_here(parent, name) {
            return Ok(());
        }
        self.remove(parent, name, |name, known| Request::RemoveDirectory { parent, name, known })
    }

    fn remove(
        &self,
        parent: Ino,
        name: &[u8],
        request: impl FnOnce(Vec<u8>, Vec<Ino>) -> Request,
    ) -> Result<()> {
        let known: Vec<Ino> = self.kept.leads_to(parent, name).into_iter().collect();
        known.iter().for_each(|ino| self.await_closes(*ino));
        let mut touched = Touched::names([(parent, name)]);
        touched.inodes.extend(&known);
        let own = self.changing(&touched)?;
        let request = request(name.to_vec(), known);
        let reply = self.changing_names(&[parent], || self.ask_for_reply(request))?;
        match reply.answer {
            Answer::Done => {
                let change = NameChange::Removed(parent, name.to_vec());
                learn(own, reply.granted, reply.beside, change);
                Ok(())
            }
            other => senseless(&other),
        }
    }

    pub(crate) fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        replace: Replace,
        whiteout: Option<Caller>,
    ) -> Result<()> {
        if whiteout.is_none() && self.rename_here(from, to, replace) {
            return Ok(());
        }
        let leads_to = |(parent, name): (Ino, &[u8])| self.kept.leads_to(parent, name);
        let known: Vec<Ino> = [from, to].into_iter().filter_map(leads_to).collect();
        let mut touched = Touched::names([from, to]);
        touched.inodes.extend(&known);
        let own = self.changing(&touched)?;
        let parents = [from.0, to.0];
        let (old, new) = (from.1.to_vec(), to.1.to_vec());
        let keeps_old = whiteout.is_some() || replace == Replace::Exchange;
        let change = NameChange::Moved { directory: from.0, old, new, keeps_old };
        let (from, to) = ((from.0, from.1.to_vec()), (to.0, to.1.to_vec()));
        let request = Request::Rename { from, to, replace, whiteout, known };
        let reply = self.changing_names(&parents, || self.ask_for_reply(request))?;
        match reply.answer {
            Answer::Done => {
                learn(own, reply.granted, reply.beside, change);
                Ok(())
            }
            other => senseless(&other),
        }
    }

    pub(crate) fn check_leaves(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.do_it(Request::CheckLeaves { parent, name: name.to_vec() })
    }

    // --- open files (see also `files.rs`) ---

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
        self.register(ino)?;
        self.ask_count(Request::Seek { ino, target, offset }, Vec::new())
    }

    pub(crate) fn copy_range(&self, from: (Ino, u64), to: (Ino, u64), length: u64) -> Result<u64> {
        self.register(from.0)?;
        self.ask_count(Request::CopyRange { from, to, length }, Vec::new())
    }

    pub(crate) fn sync_file(&self, ino: Ino, what: Sync) -> Result<()> {
        self.register(ino)?;
        let request = Request::SyncFile { ino, what, seen: self.seen(ino) };
        match what {
            Sync::All => self.syncing(request),
            Sync::Data => self.do_it(request),
        }
    }

    pub(crate) fn sync_directory(&self, ino: Ino) -> Result<()> {
        self.syncing(Request::SyncDirectory { ino })
    }

    // --- locks ---

    pub(crate) fn lock(&self, asked: LockAsked) -> Result<Option<Ticket>> {
        self.register(asked.ino)?;
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
        if !self.forgotten.lock().is_empty() || self.kept.has_released() {
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

    /// Has the owner count, or asks for the count of a ticket: its ticket, and the result once it is done.
    pub(crate) fn census(&self, ticket: Option<u64>) -> Result<(u64, Option<FilesetCensus>)> {
        match self.ask_with(Request::Census { fileset: self.fileset, ticket }, Vec::new())? {
            (Answer::Census { ticket, done: false }, _) => Ok((ticket, None)),
            (Answer::Census { ticket, done: true }, bytes) => {
                let count = decode(&bytes).map_err(|why| {
                    FsError::Io(format!(
                        "node {} sent a count that cannot be read: {why}",
                        self.node
                    ))
                })?;
                Ok((ticket, Some(count)))
            }
            (other, _) => senseless(&other),
        }
    }
}

/// How long a request rests that waits for a lock of another node, between asking.
const LOCK_PAUSE: Duration = Duration::from_millis(2);
