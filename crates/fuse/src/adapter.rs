//! From requests to operations: decodes a request, calls the file system, encodes the answer.
//!
//! It knows nothing of how requests arrive: any transport hands it bytes and a reply buffer.

mod files;
mod flags;
mod init;
mod lanes;
mod locks;
mod names;
mod requests;
#[cfg(test)]
mod tests;
mod xattrs;

use std::sync::Arc;
use std::time::Duration;

use forebay_base::in_flight::{self, Asker};
use forebay_base::{Clock, Ino, Timestamp};
use forebay_fs::stats::Operation;
use forebay_fs::{
    Access, Attributes, Caller, FsError, KeepName, NameKept, Namespace, Opened, SetAttributes,
    SetId, SetTime,
};

use crate::abi::{
    self, EntryOut, GetattrIn, InHeader, SetattrIn, StatfsOut, StatxIn, StatxOut, StatxTime, opcode,
};
use crate::activity::Activities;
use crate::activity::askers::Askers;
use crate::activity::ledger::{Ledger, Who};
use crate::adapter::requests::Requests;
use crate::reply::{Reply, Ttl};
use crate::request::{Answer, Body, Errno};
use crate::settings::Settings;
use crate::top::{Top, ino_of};

pub(crate) use init::payload_max;
pub(crate) use lanes::Lane;
pub(crate) use locks::PLACES_WITH_LOCKS;

/// What the transport does with a handled request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Send the reply with this errno (0: none).
    Reply(i32),
    /// The request has no answer.
    NoReply,
}

/// The file system as the kernel sees it.
pub struct Adapter {
    pub(crate) fs: Arc<Namespace>,
    pub(crate) settings: Settings,
    clock: Arc<dyn Clock>,
    ttl: Ttl,
    session: init::Session,
    requests: Requests,
    activities: Activities,
    ledger: Arc<Ledger>,
    top: Arc<Top>,
    locks: locks::LockSession,
}

/// Everything of a request but its body.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    /// The kernel's number of the inode.
    pub number: u64,
    pub ino: Ino,
    pub caller: Caller,
    pub who: Who,
    pub unique: u64,
}

impl Adapter {
    /// An adapter of `fs`.
    pub fn new(fs: Arc<Namespace>, settings: Settings, clock: Arc<dyn Clock>) -> Adapter {
        let ttl = Ttl(settings.kernel_ttl);
        let (session, requests) = (init::Session::default(), Requests::default());
        let locks = locks::LockSession::default();
        let (activities, ledger) = (Activities::default(), Arc::<Ledger>::default());
        fs.set_growth(Arc::clone(&ledger) as _);
        let top = Arc::default();
        Adapter { fs, settings, clock, ttl, session, requests, activities, ledger, top, locks }
    }

    /// Which of the kernel's inodes is the root directory.
    pub(crate) fn top(&self) -> &Arc<Top> {
        &self.top
    }

    /// Answer that tells of an inode under a name in a directory.
    pub(crate) fn entry(&self, name: (Ino, &[u8]), attributes: &Attributes) -> EntryOut {
        let kept = match attributes.name {
            KeepName::AsSet => self.fs.keeps_name(name, attributes.ino),
            KeepName::Never | KeepName::Lasting => NameKept::AsLent,
        };
        let entry = self.ttl.entry(attributes);
        let entry = match kept {
            NameKept::AsLent => entry,
            NameKept::For(time) => entry.named_for(time),
            NameKept::Never => entry.named_for(Duration::ZERO),
        };
        EntryOut { nodeid: self.top.number_of(attributes.ino), ..entry }
    }

    /// Answer that says that there is nothing under a name in a directory.
    pub(crate) fn absent(&self, name: (Ino, &[u8])) -> EntryOut {
        self.fs.keeps_own(name.0, Some(name)).map_or(self.ttl, Ttl).absent()
    }

    /// How long the kernel may keep attributes that it has asked for alone.
    fn ttl_of(&self, attributes: &Attributes) -> Ttl {
        let own = if attributes.cacheable { self.fs.keeps_own(attributes.ino, None) } else { None };
        own.map_or(self.ttl, Ttl)
    }

    /// Requests since the session began: how many of each kind, by their names in the protocol.
    #[must_use]
    pub fn requests(&self) -> Vec<(&'static str, u64)> {
        self.requests.read()
    }

    /// What was asked of each fileset since the session began.
    pub(crate) fn activities(&self) -> &Activities {
        &self.activities
    }

    /// Who causes what.
    pub(crate) fn askers(&self) -> Askers {
        Askers::new(Arc::clone(&self.ledger), Arc::clone(&self.clock))
    }

    /// The daemon moved bytes of a file for a request.
    pub(crate) fn moved(&self, request: Request, ino: Ino, read: u64, written: u64) {
        self.activities.of(ino).moved(read, written);
        self.ledger.bytes(request.who, ino.fileset(), read, written);
    }

    /// Whether a request may take long, so that others should not wait behind it.
    pub(crate) fn is_slow(header: &InHeader, mut body: Body<'_>) -> bool {
        match header.opcode {
            opcode::FSYNC
            | opcode::FSYNCDIR
            | opcode::READ
            | opcode::WRITE
            | opcode::FALLOCATE
            | opcode::COPY_FILE_RANGE
            | opcode::COPY_FILE_RANGE_64
            | opcode::SYNCFS
            | opcode::SETLKW => true,
            // Its first field are the flags: a cut waits for the release of a close before it.
            opcode::OPEN => {
                body.take::<u32>().is_ok_and(|flags| flags.cast_signed() & libc::O_TRUNC != 0)
            }
            // Its first field says what is set: only a size changes the object.
            opcode::SETATTR => {
                body.take::<u32>().is_ok_and(|valid| valid & abi::setattr::SIZE != 0)
            }
            _ => false,
        }
    }

    /// Whether a request that is quick otherwise may wait for a commit, as space is short.
    pub(crate) fn may_wait_for_space(&self, header: &InHeader) -> bool {
        let frees_or_takes = matches!(
            header.opcode,
            opcode::UNLINK | opcode::RENAME | opcode::RENAME2 | opcode::OPEN | opcode::CREATE
        );
        frees_or_takes && self.fs.is_short_of_space()
    }

    /// Whether a request that is quick otherwise may wait for a disk: all of a native fileset, and opens where files may lie in
    /// an archive.
    pub(crate) fn may_wait_for_disk(&self, header: &InHeader) -> bool {
        let may_recall =
            matches!(header.opcode, opcode::OPEN | opcode::LSEEK) && self.fs.has_archives();
        may_recall || !self.fs.keeps_names(ino_of(header.nodeid))
    }

    /// Carries out one request; the answer's body is in `reply` then.
    pub(crate) fn handle(&self, header: &InHeader, body: Body<'_>, reply: &mut Reply) -> Outcome {
        let started = self.clock.instant();
        self.requests.count(header.opcode);
        self.fs.begin_answer();
        let request = Request {
            number: header.nodeid,
            ino: ino_of(header.nodeid),
            caller: Caller { uid: header.uid, gid: header.gid },
            who: Who::of(header.pid, header.uid),
            unique: header.unique,
        };
        let _in_flight = in_flight::begin(in_flight::Request {
            operation: opcode::name(header.opcode),
            ino: request.ino,
            asker: Asker::Process(header.pid),
            arrived: started,
        });
        let outcome = match self.dispatch(header.opcode, request, body, reply) {
            Ok(outcome) => outcome,
            Err(Errno(errno)) => Outcome::Reply(errno),
        };
        if let Some(operation) = operation_of(header.opcode) {
            let took = self.clock.instant().saturating_duration_since(started);
            let Outcome::Reply(errno) = outcome else { return outcome };
            self.activities.of(request.ino).record(operation, took, errno);
            self.ledger.operation(request.who, request.ino.fileset(), took);
        }
        outcome
    }

    fn dispatch(
        &self,
        code: u32,
        request: Request,
        body: Body<'_>,
        reply: &mut Reply,
    ) -> Answer<Outcome> {
        let done = match code {
            opcode::FORGET | opcode::BATCH_FORGET => {
                self.forget(code, request, body)?;
                return Ok(Outcome::NoReply);
            }
            opcode::INTERRUPT => {
                self.interrupt(body)?;
                return Ok(Outcome::NoReply);
            }
            opcode::INIT => self.init(body, reply),
            opcode::DESTROY | opcode::RELEASEDIR => Ok(()),
            opcode::LOOKUP => self.lookup(request, body, reply),
            opcode::GETATTR => self.getattr(request, body, reply),
            opcode::STATX => self.statx(request, body, reply),
            opcode::SETATTR => self.setattr(request, body, reply),
            opcode::STATFS => self.statfs(request, reply),
            opcode::READLINK => self.readlink(request, reply),
            opcode::SYMLINK => self.symlink(request, body, reply),
            opcode::MKNOD => self.mknod(request, body, reply),
            opcode::MKDIR => self.mkdir(request, body, reply),
            opcode::UNLINK => self.unlink(request, body),
            opcode::RMDIR => self.rmdir(request, body),
            opcode::RENAME | opcode::RENAME2 => self.rename(code, request, body),
            opcode::LINK => self.link(request, body, reply),
            opcode::OPENDIR => self.open_directory(request, reply),
            opcode::READDIR => self.readdir(request, body, reply),
            opcode::READDIRPLUS => self.readdirplus(request, body, reply),
            opcode::OPEN => self.open(request, body, reply),
            opcode::CREATE => self.create(request, body, reply),
            opcode::TMPFILE => self.tmpfile(request, body, reply),
            opcode::RELEASE => self.release(request, body),
            opcode::READ => self.read(request, body, reply),
            opcode::WRITE => self.write(request, body, reply),
            opcode::FSYNC => self.fsync(request, body),
            opcode::FSYNCDIR => Ok(self.fs.sync_directory(request.ino)?),
            opcode::SYNCFS => Ok(self.fs.sync_for_programs()?),
            opcode::FALLOCATE => self.fallocate(request, body),
            opcode::IOCTL => self.ioctl(request, body, reply),
            opcode::LSEEK => self.lseek(request, body, reply),
            opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
                self.copy_file_range(code, request, body, reply)
            }
            opcode::GETXATTR => self.getxattr(request, body, reply),
            opcode::LISTXATTR => self.listxattr(request, body, reply),
            opcode::SETXATTR => self.setxattr(request, body),
            opcode::REMOVEXATTR => self.removexattr(request, body),
            opcode::GETLK => self.get_lock(request, body, reply),
            opcode::SETLK => self.set_lock(request, body, locks::Wait::Never),
            opcode::SETLKW => self.set_lock(request, body, locks::Wait::Allowed),
            opcode::FLUSH if self.fs.keeps_locks() => self.flush(request, body),
            // FLUSH: nothing is buffered here, so there is nothing to report at close. ACCESS: the
            // kernel checks permissions. The rest is not offered. The kernel asks each but once.
            _ => Err(Errno(libc::ENOSYS)),
        };
        done.map(|()| Outcome::Reply(0))
    }

    fn forget(&self, code: u32, request: Request, mut body: Body<'_>) -> Answer<()> {
        if code == opcode::FORGET {
            self.fs.forget(request.ino, body.take::<abi::ForgetIn>()?.nlookup);
            return Ok(());
        }
        for _ in 0..body.take::<abi::BatchForgetIn>()?.count {
            let one: abi::ForgetOne = body.take()?;
            self.fs.forget(ino_of(one.nodeid), one.nlookup);
        }
        Ok(())
    }

    fn getattr(&self, request: Request, mut body: Body<'_>, reply: &mut Reply) -> Answer<()> {
        let _: GetattrIn = body.take()?;
        let attributes = self.fs.getattr(request.ino)?;
        reply.push(&self.ttl_of(&attributes).attributes(&attributes));
        Ok(())
    }

    fn statx(&self, request: Request, mut body: Body<'_>, reply: &mut Reply) -> Answer<()> {
        let _: StatxIn = body.take()?;
        let of = self.fs.getattr(request.ino)?;
        let time = |time: Timestamp| StatxTime {
            tv_sec: time.seconds,
            tv_nsec: time.nanoseconds,
            reserved: 0,
        };
        let plain = crate::reply::attr(&of);
        let (attr_valid, attr_valid_nsec) = self.ttl_of(&of).parts(&of);
        reply.push(&StatxOut {
            attr_valid,
            attr_valid_nsec,
            mask: abi::STATX_BASIC_AND_BTIME,
            blksize: plain.blksize,
            nlink: plain.nlink,
            uid: plain.uid,
            gid: plain.gid,
            mode: u16::try_from(plain.mode).unwrap_or(0),
            ino: plain.ino,
            size: plain.size,
            blocks: plain.blocks,
            atime: time(of.accessed),
            btime: time(of.created),
            ctime: time(of.changed),
            mtime: time(of.modified),
            rdev_major: libc::major(of.rdev.into()),
            rdev_minor: libc::minor(of.rdev.into()),
            ..StatxOut::default()
        });
        Ok(())
    }

    fn setattr(&self, request: Request, mut body: Body<'_>, reply: &mut Reply) -> Answer<()> {
        use crate::abi::setattr as bit;
        let asked: SetattrIn = body.take()?;
        let has = |bits: u32| asked.valid & bits != 0;
        let time = |set: u32, now: u32, seconds: u64, nanoseconds: u32| {
            let to = Timestamp::new(seconds.cast_signed(), nanoseconds);
            has(set).then_some(if has(now) { SetTime::Now } else { SetTime::To(to) })
        };
        let set = SetAttributes {
            mode: has(bit::MODE).then_some(u16::try_from(asked.mode & 0o7777).unwrap_or(0)),
            uid: has(bit::UID).then_some(asked.uid),
            gid: has(bit::GID).then_some(asked.gid),
            size: has(bit::SIZE).then_some(asked.size),
            accessed: time(bit::ATIME, bit::ATIME_NOW, asked.atime, asked.atimensec),
            modified: time(bit::MTIME, bit::MTIME_NOW, asked.mtime, asked.mtimensec),
            set_id: if has(bit::KILL_SUIDGID) {
                SetId::Kill
            } else if has(bit::ANY) {
                SetId::Keep
            } else {
                // All that is left of a removal of privileges (file_remove_privs) under HANDLE_KILLPRIV_V2, as of
                // a chown that changes nothing. The kernel takes the mode of the answer, whichever way bytes go.
                SetId::KillIfWritten { gid: request.caller.gid }
            },
        };
        let change = || self.fs.set_attributes_here(request.ino, set);
        let attributes = self.recalled(request, change)?;
        reply.push(&self.ttl.attributes(&attributes));
        Ok(())
    }

    fn statfs(&self, request: Request, reply: &mut Reply) -> Answer<()> {
        const BLOCK: u64 = 4096;
        let found = self.fs.statistics_at(request.ino)?;
        let space = found.capacity;
        reply.push(&StatfsOut {
            blocks: space.total_bytes / BLOCK,
            bfree: space.free_bytes / BLOCK,
            bavail: space.available_bytes / BLOCK,
            files: found.inodes.saturating_add(space.free_objects),
            ffree: space.free_objects,
            bsize: 4096,
            namelen: u32::try_from(forebay_fs::NAME_MAX).unwrap_or(0),
            frsize: 4096,
            ..StatfsOut::default()
        });
        Ok(())
    }
}

/// Flag of an open for execution (__FMODE_EXEC of `include/linux/fs.h`); it reaches OPEN.
const FMODE_EXEC: i32 = 0x20;

/// What an open asks for, out of its flags.
pub(crate) fn access_of(flags: u32) -> Access {
    let flags = flags.cast_signed();
    let mode = flags & libc::O_ACCMODE;
    Access {
        read: mode != libc::O_WRONLY,
        write: mode != libc::O_RDONLY,
        truncate: flags & libc::O_TRUNC != 0,
        execute: flags & FMODE_EXEC != 0,
        synchronous: flags & libc::O_DSYNC != 0,
    }
}

/// Bits of a file handle that say how the file was opened; then comes a number of its own where locks need one, and in
/// the upper half the lineage.
const ACCESS_BITS: u32 = 4;
/// The object of another node's file is on a disk of this one.
const AT_HOME: u64 = 8;
const LINEAGE_SHIFT: u32 = 32;

/// The file handle that stands for an open: all that a release needs to know.
pub(crate) fn handle_of(access: Access, opened: &Opened, serial: u32) -> u64 {
    let bits =
        u64::from(access.read) | u64::from(access.write) << 1 | u64::from(access.execute) << 2;
    let home = if opened.home.is_some() { AT_HOME } else { 0 };
    let serial = (u64::from(serial) << ACCESS_BITS) & ((1 << LINEAGE_SHIFT) - 1);
    bits | home | serial | u64::from(opened.lineage) << LINEAGE_SHIFT
}

/// Whether a file handle stands for an object on a disk of this node, of a file of another one.
pub(crate) fn is_at_home(handle: u64) -> bool {
    handle & AT_HOME != 0
}

/// The access that a file handle stands for.
pub(crate) fn access_of_handle(handle: u64) -> Access {
    let has = |bit: u64| handle & bit != 0;
    Access { read: has(1), write: has(2), execute: has(4), ..Access::default() }
}

/// The lineage of an open file: 0 where owners do not change.
pub(crate) fn lineage_of_handle(handle: u64) -> u32 {
    u32::try_from(handle >> LINEAGE_SHIFT).unwrap_or(0)
}

fn operation_of(code: u32) -> Option<Operation> {
    Some(match code {
        opcode::LOOKUP => Operation::Lookup,
        opcode::GETATTR | opcode::STATX => Operation::Getattr,
        opcode::OPEN => Operation::Open,
        opcode::RELEASE => Operation::Close,
        opcode::CREATE | opcode::MKNOD | opcode::MKDIR | opcode::SYMLINK | opcode::TMPFILE => {
            Operation::Create
        }
        opcode::UNLINK | opcode::RMDIR => Operation::Unlink,
        opcode::RENAME | opcode::RENAME2 => Operation::Rename,
        opcode::LINK => Operation::Link,
        opcode::READDIR | opcode::READDIRPLUS => Operation::Readdir,
        opcode::READ => Operation::Read,
        opcode::WRITE => Operation::Write,
        opcode::SETATTR => Operation::InodeUpdate,
        opcode::GETXATTR | opcode::SETXATTR | opcode::LISTXATTR | opcode::REMOVEXATTR => {
            Operation::Xattr
        }
        opcode::FSYNC | opcode::FSYNCDIR | opcode::SYNCFS => Operation::Sync,
        _ => return None,
    })
}

/// `NotFound` as a cached "there is nothing"; other errors as they are.
pub(crate) fn absent_or(error: FsError) -> Answer<()> {
    match error {
        FsError::NotFound => Ok(()),
        other => Err(other.into()),
    }
}
