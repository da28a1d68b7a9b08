//! The answers to other nodes: their requests carried out on the filesets of this one.

use std::ops::ControlFlow;
use std::sync::Arc;

use forebay_base::channel::{CallError, Message, Service};
use forebay_base::in_flight::{self, Asker};
use forebay_base::{ClientId, Epoch, Ino};
use forebay_cluster::grants::GrantNumber;

use super::wire::{
    Answer, Beside, Head, LockAnswer, LockAsked, LockFound, PAYLOAD_MAX, Reply, Request, decode,
    encode,
};
use super::{LOCK_POLL, locking};
use crate::attributes::{Attributes, SetId};
use crate::clients::{Held, NotHeld};
use crate::directory::check_name;
use crate::error::{FsError, Result};
use crate::grants::{Changing, Granted, Touched};
use crate::locks::Locks;
use crate::namespace::Namespace;
use crate::ops::{Access, Closer, NodeOpener, Replace, SetXattr};
use crate::owner::{At, Owner, Route};
use crate::partition::Caller;
use crate::stale::Stale;
use crate::untold::Telling;

/// A name in a directory.
type Place = (Ino, Vec<u8>);

/// Entries of one part of a listing, at most.
const ITEMS_AT_ONCE: usize = 4096;

/// Bytes of the names in one part of a listing, about: an answer has room for several times as many.
const NAMES_BYTES_AT_ONCE: usize = 256 << 10;

/// Answers requests of other nodes for files.
pub struct FilesService {
    fs: Arc<Namespace>,
}

/// One request being carried out.
pub(super) struct Work<'a> {
    pub(super) fs: &'a Namespace,
    pub(super) client: ClientId,
    /// The epoch in which it takes this node for the owner.
    epoch: Epoch,
    /// The latest grant that the client had heard of when it asked.
    pub(super) seen: GrantNumber,
    payload: Vec<u8>,
    /// Bytes beside the answer.
    bytes: Vec<u8>,
    /// What the client may cache of the answer.
    pub(super) granted: Granted,
    /// And of the directory in which it has changed a name.
    pub(super) beside: Option<Beside>,
    /// The change that was carried out, until everything is granted that may be cached of it.
    pub(super) changing: Option<Changing>,
    /// What this node's kernel may hold although it changed.
    pub(super) stale: Vec<Stale>,
    /// Names that are changed, until the kernel was told.
    pub(super) telling: Option<Telling<'a>>,
    /// The client reports what it has done already.
    pub(super) reports: bool,
}

impl FilesService {
    /// Answers for the filesets that `fs` owns.
    #[must_use]
    pub fn new(fs: Arc<Namespace>) -> FilesService {
        FilesService { fs }
    }

    fn release(&self, client: ClientId, held: &Held) {
        self.fs.release_locks_of_client(client);
        for (ino, handles) in &held.opens {
            let Some(owner) = self.fs.owner_without_gate(*ino) else { continue };
            for access in handles.each() {
                if let Err(error) = owner.close_for_node(*ino, access, Closer::Lost) {
                    tracing::debug!(%ino, %error, "a file of a dropped node was not closed in order");
                }
            }
        }
        for (ino, count) in &held.references {
            self.fs.forget(*ino, *count);
        }
    }

    fn leave(&self, client: ClientId) {
        if let Some(held) = self.fs.clients().leave(client) {
            self.release(client, &held);
        }
    }
}

/// The request of a client has ended, however it did.
struct Leaving<'a>(&'a FilesService, ClientId);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.leave(self.1);
    }
}

fn evicted(client: ClientId) -> CallError {
    CallError::Evicted(format!(
        "node {} was dropped, and everything that it held was released",
        client.node
    ))
}

impl Service for FilesService {
    fn serve(&self, from: ClientId, request: Message) -> std::result::Result<Message, CallError> {
        let Head { epoch, forgotten, seen, request: asked } =
            decode(&request.head).map_err(CallError::Refused)?;
        if request.payload.len() > PAYLOAD_MAX {
            return Err(CallError::Refused(format!(
                "{} bytes in one request are too many",
                request.payload.len()
            )));
        }
        let _in_flight = in_flight::begin(in_flight::Request {
            operation: asked.name(),
            ino: asked.target(),
            asker: Asker::Node(from.node),
            arrived: self.fs.instant(),
        });
        self.fs.clients().enter(from).map_err(|_| evicted(from))?;
        let _leaving = Leaving(self, from);
        for (ino, count) in forgotten {
            let count = self.fs.clients().forget(from, ino, count);
            if count > 0 {
                self.fs.forget(ino, count);
            }
        }
        let mut work = Work::new(&self.fs, from, (epoch, seen));
        work.payload = request.payload;
        let reply = work.answer(asked);
        Ok(Message { head: encode(&reply), payload: work.bytes })
    }

    fn welcome(&self, client: ClientId) {
        self.fs.clients().welcome(client);
    }

    fn drop_client(&self, client: ClientId) {
        self.fs.end_grants_of(client);
        self.fs.end_numbers_of(client);
        if let Some(held) = self.fs.clients().drop_client(client) {
            self.release(client, &held);
        }
    }
}

impl<'a> Work<'a> {
    /// A request of a client that takes this node for the owner in an epoch, and had heard of grants up to `seen`.
    pub(super) fn new(
        fs: &'a Namespace,
        client: ClientId,
        (epoch, seen): (Epoch, GrantNumber),
    ) -> Work<'a> {
        Work {
            fs,
            client,
            epoch,
            seen,
            payload: Vec::new(),
            bytes: Vec::new(),
            granted: Granted::default(),
            beside: None,
            changing: None,
            stale: Vec::new(),
            telling: None,
            reports: false,
        }
    }
}

impl Work<'_> {
    /// Carries out a request. What it changed is known to the kernel of this node afterwards.
    pub(super) fn answer(&mut self, request: Request) -> Reply {
        self.answer_by(|work| work.carry_out(request))
    }

    /// As [`Work::answer`], of what `carry_out` does.
    pub(super) fn answer_by(
        &mut self,
        carry_out: impl FnOnce(&mut Self) -> Result<Answer>,
    ) -> Reply {
        let answer = carry_out(self).unwrap_or_else(|error| match error {
            FsError::Moved => Answer::NotMine,
            error => Answer::Refused(error),
        });
        // The kernel may wait for others who change the same name.
        self.changing = None;
        // Before anybody can rely on the change: whoever looks on this node from now on sees it.
        self.fs.tell_own_kernel(&self.stale);
        self.telling = None;
        Reply { answer, granted: self.granted, beside: self.beside }
    }

    /// Another one that belongs to the same request.
    pub(super) fn part(&self) -> Work<'_> {
        Work { reports: true, ..Work::new(self.fs, self.client, (self.epoch, self.seen)) }
    }

    /// Carries out `operation` at the owner of an inode, if that is this node.
    pub(super) fn at<T>(&self, ino: Ino, operation: impl FnOnce(&Owner) -> Result<T>) -> Result<T> {
        operation(&*self.route(ino)?)
    }

    /// The way to the owner of an inode, if that is this node in the epoch that the client means.
    pub(super) fn route(&self, ino: Ino) -> Result<Route> {
        let route = self.fs.own(ino)?;
        self.check_epoch(&route)?;
        Ok(route)
    }

    pub(super) fn check_epoch(&self, owner: &Owner) -> Result<()> {
        let is_same = match owner {
            Owner::Local(partition) => partition.epoch() == self.epoch,
            Owner::Native(_) => self.fs.life() == self.epoch,
            Owner::Remote(_) => false,
        };
        if is_same { Ok(()) } else { Err(FsError::Moved) }
    }

    pub(super) fn most(&self) -> usize {
        self.fs.settings().client_holds_max
    }

    pub(super) fn not_held<T>(&self, why: NotHeld) -> Result<T> {
        Err(match why {
            NotHeld::Dropped => FsError::Stale,
            NotHeld::Full => FsError::TooManyFiles(format!(
                "node {} already holds {} inodes and open files of another node (client_holds_max)",
                self.client.node,
                self.most()
            )),
        })
    }

    /// Carries out what tells the kernel of the client of an inode, and notes that, before the fileset can go anywhere.
    pub(super) fn tell_at(
        &self,
        ino: Ino,
        find: impl FnOnce(&Owner) -> Result<Attributes>,
    ) -> Result<Answer> {
        self.at(ino, |owner| self.tell(find(owner)?))
    }

    /// As [`Work::tell_at`] of a change.
    fn tell_change(
        &mut self,
        ino: Ino,
        touched: &Touched<'_>,
        change: impl FnOnce(&Owner) -> Result<Attributes>,
    ) -> Result<Answer> {
        self.change(ino, touched, |work, owner| work.tell(change(owner)?))
    }

    pub(super) fn tell(&self, attributes: Attributes) -> Result<Answer> {
        match self.fs.clients().refer(self.client, attributes.ino, self.most()) {
            Ok(()) => Ok(Answer::Attributes(attributes)),
            Err(why) => {
                self.fs.forget(attributes.ino, 1);
                self.not_held(why)
            }
        }
    }

    pub(super) fn changed(&mut self, ino: Ino) {
        self.stale.push(Stale::Attributes(ino));
    }

    pub(super) fn changed_name(&mut self, parent: Ino, name: &[u8]) {
        self.stale.push(Stale::Entry(parent, name.to_vec()));
        self.changed(parent);
    }

    /// Refuses what the client does not have open. While that is looked up the fileset can go nowhere: what is open at
    /// another owner by now is not stale.
    fn check_open(&self, ino: Ino) -> Result<()> {
        let is_open = self.at(ino, |_| Ok(self.fs.clients().has_open(self.client, ino)))?;
        if is_open { Ok(()) } else { Err(FsError::Stale) }
    }

    fn carry_out(&mut self, request: Request) -> Result<Answer> {
        match request {
            Request::Lookup { .. }
            | Request::LookAt { .. }
            | Request::Create { .. }
            | Request::CreateFile { .. }
            | Request::CreateUnnamed { .. }
            | Request::Link { .. }
            | Request::Unlink { .. }
            | Request::RemoveDirectory { .. }
            | Request::Rename { .. }
            | Request::CheckLeaves { .. }
            | Request::ReadLink { .. }
            | Request::OpenDirectory { .. }
            | Request::ReadDirectory { .. } => self.names(request),
            Request::Attributes { .. }
            | Request::SetAttributes { .. }
            | Request::KillSetId { .. }
            | Request::Xattr { .. }
            | Request::ListXattrs { .. }
            | Request::SetXattr { .. }
            | Request::RemoveXattr { .. } => self.attributes(request),
            Request::Open { .. }
            | Request::Register { .. }
            | Request::Close { .. }
            | Request::Reopen { .. }
            | Request::Read { .. }
            | Request::Write { .. }
            | Request::Allocate { .. }
            | Request::Seek { .. }
            | Request::CopyRange { .. }
            | Request::SyncFile { .. }
            | Request::SyncDirectory { .. } => self.files(request),
            Request::Lock(_)
            | Request::AwaitLock { .. }
            | Request::CancelLock { .. }
            | Request::TestLock(_)
            | Request::ReleaseLocks { .. } => self.locks(&request),
            Request::Journal { fileset, term, changes } => self.journal(fileset, term, changes),
            Request::Forget { .. }
            | Request::Vouch { .. }
            | Request::Numbers { .. }
            | Request::Statistics { .. }
            | Request::Usage { .. }
            | Request::Census { .. }
            | Request::Catalogue
            | Request::AddFileset(_)
            | Request::SetFileset { .. }
            | Request::RemoveFileset { .. }
            | Request::AddDisk { .. }
            | Request::Retire { .. }
            | Request::Apply { .. }
            | Request::Disks(_)
            | Request::DisksChanged
            | Request::Help(_)
            | Request::Expect { .. }
            | Request::OpenAhead { .. }
            | Request::Native => self.filesets(request),
        }
    }

    fn names(&mut self, request: Request) -> Result<Answer> {
        match request {
            Request::Lookup { parent, name } => self.lookup(parent, &name),
            Request::LookAt { ino } => self.look_at(ino),
            Request::Create { parent, name, new, caller, reported } => {
                check_name(&name)?;
                self.changed_name(parent, &name);
                self.create((parent, &name), &new, caller, reported)
            }
            Request::CreateFile { parent, name, new, caller, access, made, reported } => {
                check_name(&name)?;
                self.changed_name(parent, &name);
                self.create_file((parent, &name), &new, access, (caller, made, reported))
            }
            Request::CreateUnnamed { parent, new, caller } => {
                self.tell_at(parent, |owner| owner.create_unnamed(parent, new.as_new(), caller))
            }
            Request::Link { ino, parent, name } => self.link(ino, parent, &name),
            Request::Unlink { parent, name, known } => {
                let touched = Touched::names([(parent, name.as_slice())]).known(known);
                self.change(parent, &touched, |_, owner| owner.unlink(parent, &name))?;
                self.changed_name(parent, &name);
                self.grant_directory(parent);
                Ok(Answer::Done)
            }
            Request::RemoveDirectory { parent, name, known } => {
                let touched = Touched::names([(parent, name.as_slice())]).known(known);
                self.change(parent, &touched, |_, owner| owner.remove_directory(parent, &name))?;
                self.changed_name(parent, &name);
                self.grant_directory(parent);
                Ok(Answer::Done)
            }
            Request::Rename { from, to, replace, whiteout, known } => {
                self.rename((&from, &to), replace, whiteout, known)
            }
            Request::CheckLeaves { parent, name } => {
                self.at(parent, |owner| owner.check_leaves(parent, &name)).map(|()| Answer::Done)
            }
            Request::ReadLink { ino } => {
                let found = self.read_granted(ino, |owner| owner.read_link(ino), Result::is_ok);
                found.map(Answer::Bytes)
            }
            Request::OpenDirectory { ino } => {
                self.at(ino, |owner| owner.open_directory(ino)).map(|()| Answer::Done)
            }
            Request::ReadDirectory { ino, offset } => self.list(ino, offset),
            _ => Err(FsError::Invalid),
        }
    }

    fn link(&mut self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Answer> {
        check_name(name)?;
        if ino.fileset() != parent.fileset() {
            return Err(FsError::CrossFileset);
        }
        self.changed_name(parent, name);
        self.changed(ino);
        let mut touched = Touched::new_name(parent, name);
        touched.inodes.push(ino);
        let linked = self.tell_change(parent, &touched, |owner| owner.link(ino, parent, name))?;
        self.grant_new(parent, name, ino);
        Ok(linked)
    }

    fn rename(
        &mut self,
        (from, to): (&Place, &Place),
        replace: Replace,
        whiteout: Option<Caller>,
        known: Vec<Ino>,
    ) -> Result<Answer> {
        check_name(&to.1)?;
        if from.0.fileset() != to.0.fileset() {
            return Err(FsError::CrossFileset);
        }
        let (old, new) = ((from.0, from.1.as_slice()), (to.0, to.1.as_slice()));
        let touched = Touched::names([old, new]).known(known);
        self.change(from.0, &touched, |_, owner| match whiteout {
            None => owner.rename(old, new, replace),
            Some(caller) => owner.rename_with_whiteout(old, new, replace, caller),
        })?;
        self.changed_name(old.0, old.1);
        self.changed_name(new.0, new.1);
        if old.0 == new.0 {
            self.grant_directory(old.0);
        }
        Ok(Answer::Done)
    }

    fn list(&mut self, ino: Ino, offset: u64) -> Result<Answer> {
        let mut items = Vec::new();
        let mut bytes = 0;
        let list = |owner: &Owner| {
            owner.read_directory(ino, offset, &mut |item| {
                if items.len() == ITEMS_AT_ONCE || bytes >= NAMES_BYTES_AT_ONCE {
                    return ControlFlow::Break(());
                }
                bytes += item.name.len();
                items.push(item.clone());
                ControlFlow::Continue(())
            })
        };
        self.read_granted(ino, list, Result::is_ok)?;
        let is_last = items.len() < ITEMS_AT_ONCE && bytes < NAMES_BYTES_AT_ONCE;
        Ok(Answer::Items { items, is_last })
    }

    fn attributes(&mut self, request: Request) -> Result<Answer> {
        match request {
            Request::Attributes { ino, seen } => {
                let seen = self.its_own(seen);
                self.read_attributes(ino, |owner| owner.attributes_for_node(ino, seen))
                    .map(Answer::Attributes)
            }
            Request::SetAttributes { ino, set, seen } => {
                self.changed(ino);
                let seen = self.its_own(seen);
                let set =
                    |_: &Work<'_>, owner: &Owner| owner.set_attributes_for_node(ino, set, seen);
                self.change(ino, &Touched::inode(ino), set).map(Answer::Attributes)
            }
            Request::KillSetId { ino } => {
                self.changed(ino);
                self.change(ino, &Touched::inode(ino), |_, owner| owner.kill_set_id(ino))
                    .map(|()| Answer::Done)
            }
            Request::Xattr { ino, name } => {
                let found = self.read_granted(
                    ino,
                    |owner| owner.xattr(ino, &name),
                    |found| matches!(found, Ok(_) | Err(FsError::NoAttribute)),
                );
                found.map(Answer::Bytes)
            }
            Request::ListXattrs { ino } => {
                let found = self.read_granted(ino, |owner| owner.list_xattrs(ino), Result::is_ok);
                found.map(Answer::Bytes)
            }
            Request::SetXattr { ino, name, value, mode, kill_set_gid } => {
                self.changed(ino);
                let set = SetXattr { name: &name, value: &value, mode, kill_set_gid };
                self.change(ino, &Touched::inode(ino), |_, owner| owner.set_xattr(ino, set))
                    .map(|()| Answer::Done)
            }
            Request::RemoveXattr { ino, name } => {
                self.changed(ino);
                self.change(ino, &Touched::inode(ino), |_, owner| owner.remove_xattr(ino, &name))
                    .map(|()| Answer::Done)
            }
            _ => Err(FsError::Invalid),
        }
    }

    fn files(&mut self, request: Request) -> Result<Answer> {
        match request {
            Request::Open { ino, access, caller } => self.open(ino, access, caller),
            // It waits for nobody: one who writes has recalled what others were granted.
            Request::Register { access, .. } if access.write || access.truncate => {
                Err(FsError::Invalid)
            }
            Request::Register { ino, access } => self.open(ino, access, Caller::default()),
            Request::Close { ino, access, left } => self.close(ino, access, left),
            Request::Reopen { fileset, crash, files } => {
                self.epoch = self.fs.own_epoch(fileset)?;
                if !files.is_empty() {
                    self.fs.check_unbroken(fileset, crash)?;
                }
                for (ino, handles) in files {
                    if ino.fileset() != fileset {
                        return Err(FsError::Invalid);
                    }
                    if self.fs.clients().has_open(self.client, ino) {
                        continue;
                    }
                    for access in handles.each() {
                        self.open(ino, access, Caller::default())?;
                    }
                }
                Ok(Answer::Reopened { crash: self.fs.crash_of(fileset), epoch: self.epoch })
            }
            Request::Read { ino, offset, length } => {
                self.check_open(ino)?;
                let length = usize::try_from(length).unwrap_or(PAYLOAD_MAX).min(PAYLOAD_MAX);
                let mut bytes = vec![0; length];
                let read = self.at(ino, |owner| owner.read(ino, offset, &mut bytes))?;
                bytes.truncate(read);
                self.bytes = bytes;
                Ok(Answer::Count(read as u64))
            }
            Request::Write { ino, offset, kills_set_id } => {
                self.check_open(ino)?;
                // Also if it fails: a part may have been written.
                self.changed(ino);
                let set_id = if kills_set_id { SetId::Kill } else { SetId::Keep };
                let written = self.at(ino, |owner| match offset {
                    Some(offset) => owner.write(ino, At::Offset(offset), &self.payload, set_id),
                    None => owner.append_for_node(ino, &self.payload, set_id),
                })?;
                Ok(Answer::Count(written as u64))
            }
            Request::Allocate { ino, what, offset, length } => {
                self.check_open(ino)?;
                self.changed(ino);
                self.at(ino, |owner| owner.allocate(ino, what, offset, length))?;
                Ok(Answer::Done)
            }
            Request::Seek { ino, target, offset } => {
                self.check_open(ino)?;
                self.at(ino, |owner| owner.seek(ino, target, offset)).map(Answer::Count)
            }
            Request::CopyRange { from, to, length } => {
                self.check_open(from.0)?;
                self.check_open(to.0)?;
                self.changed(to.0);
                self.at(from.0, |_| Ok(()))?;
                self.at(to.0, |_| Ok(()))?;
                self.fs.copy_range(from, to, length).map(Answer::Count)
            }
            Request::SyncFile { ino, what, seen } => {
                self.check_open(ino)?;
                let seen = self.its_own(seen);
                self.at(ino, |owner| owner.sync_for_node(ino, what, seen)).map(|()| Answer::Done)
            }
            Request::SyncDirectory { ino } => {
                self.at(ino, |owner| owner.sync_directory(ino)).map(|()| Answer::Done)
            }
            _ => Err(FsError::Invalid),
        }
    }

    fn open(&mut self, ino: Ino, access: Access, caller: Caller) -> Result<Answer> {
        if access.truncate || access.write {
            // From now on it may change without a word to this node.
            self.changed(ino);
        }
        let disks = self.fs.disks_of(self.client.node);
        let by = NodeOpener { client: self.client, disks: &disks, made: None, reports: false };
        let open = |work: &Work<'_>, owner: &Owner| work.open_at(owner, ino, access, caller, by);
        let home = if access.write || access.truncate {
            self.change(ino, &Touched::inode(ino), open)?
        } else {
            self.at(ino, |owner| open(self, owner))?
        };
        Ok(Answer::Opened { crash: self.fs.crash_of(ino.fileset()), home })
    }

    fn own_locks(&self, ino: Ino) -> Result<Arc<Locks>> {
        self.at(ino, |_| Ok(()))?;
        self.fs.own_locks(ino)
    }

    fn locks(&self, request: &Request) -> Result<Answer> {
        match *request {
            Request::Lock(asked) => {
                let locks = self.own_locks(asked.ino)?;
                let LockAsked { kind, waits, range, .. } = asked;
                let (file, holder) = locking::of(self.client, asked);
                let Some(kind) = kind else {
                    return locks.unlock(file, holder, range).map(|()| Answer::Done);
                };
                self.check_open(asked.ino)?;
                let ask = locking::ask(self.client, asked, kind);
                Ok(Answer::Lock(match locks.lock(file, ask, waits) {
                    Ok(None) => LockAnswer::Granted,
                    Ok(Some(ticket)) => LockAnswer::Waiting(ticket),
                    Err(FsError::Locked) => LockAnswer::Refused,
                    Err(error) => return Err(error),
                }))
            }
            Request::AwaitLock { ino, ticket } => {
                let locks = self.own_locks(ino)?;
                let waited = locks.wait(ticket, Some(LOCK_POLL), &|| false)?;
                Ok(Answer::Lock(locking::answer(waited, ticket)))
            }
            Request::CancelLock { ino, ticket } => {
                let is_granted = self.own_locks(ino)?.cancel(ticket)?;
                Ok(Answer::Lock(if is_granted { LockAnswer::Granted } else { LockAnswer::Refused }))
            }
            Request::TestLock(asked) => {
                let kind = asked.kind.ok_or(FsError::Invalid)?;
                let (file, _) = locking::of(self.client, asked);
                let found = self.own_locks(asked.ino)?;
                let found = found.test(file, locking::ask(self.client, asked, kind))?;
                let told = found.map(|held| LockFound {
                    range: held.range,
                    kind: held.kind,
                    // A process of another node means nothing there.
                    pid: if held.holder.client == self.client { held.pid } else { 0 },
                });
                Ok(Answer::Found(told))
            }
            Request::ReleaseLocks { ino, owner, whole } => {
                let (file, holder) = locking::holder(self.client, ino, owner, whole);
                self.own_locks(ino)?.release(file, holder);
                Ok(Answer::Done)
            }
            _ => Err(FsError::Invalid),
        }
    }

    fn filesets(&mut self, request: Request) -> Result<Answer> {
        match request {
            Request::Forget { .. } => Ok(Answer::Done),
            Request::Vouch { fileset } => self.vouch(fileset),
            Request::Numbers { fileset, returned } => self.numbers(fileset, returned),
            Request::Statistics { ino } => {
                drop(self.fs.own(ino)?);
                self.fs.statistics_at(ino).map(Answer::Statistics)
            }
            Request::Usage { fileset } => self.fs.own_usage(fileset).map(Answer::Usage),
            Request::Census { fileset, ticket } => {
                let (answer, bytes) = self.fs.census_for_node(fileset, ticket)?;
                self.bytes = bytes;
                Ok(answer)
            }
            Request::Catalogue => self.fs.whole().map(Answer::Whole),
            Request::AddFileset(new) => {
                self.at_root(|fs| fs.add_fileset(&new)).map(|()| Answer::Done)
            }
            Request::SetFileset { name, durability, placement } => {
                let set = self.at_root(|fs| fs.set_fileset(&name, durability, placement));
                set.map(|()| Answer::Done)
            }
            Request::RemoveFileset { name } => {
                self.at_root(|fs| fs.remove_fileset(&name)).map(|()| Answer::Done)
            }
            Request::AddDisk { uuid, location } => {
                self.at_root(|fs| fs.register_disk(&uuid, &location)).map(Answer::Disk)
            }
            Request::Disks(order) => {
                self.by_order(|fs| fs.carry_out_order(order)).map(Answer::Disks)
            }
            Request::DisksChanged => self.fs.hear_of_disks().map(|()| Answer::Done),
            Request::Help(order) => self.fs.help(&order).map(Answer::Helped),
            Request::Retire { fileset, name } => {
                let (first_ino, first_object) = self.fs.retire(fileset, &name)?;
                Ok(Answer::Retired { first_ino, first_object })
            }
            Request::Apply { fileset, settings } => {
                self.fs.apply_settings(fileset, &settings).map(|()| Answer::Done)
            }
            Request::Expect { fileset } => self.fs.expect(fileset).map(|()| Answer::Done),
            Request::OpenAhead { fileset, epoch } => self.fs.open_ahead(fileset, epoch),
            Request::Native => {
                self.stale.extend(self.fs.hear_of_native()?);
                Ok(Answer::Done)
            }
            _ => Err(FsError::Invalid),
        }
    }
}
