//! What a request of another node is called, and what it is about; for those who look at requests in flight.

use forebay_base::Ino;

use super::wire::{LockAsked, Request};

/// Among which requests it has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Those that may wait for recalls.
    Ordinary,
    /// Those that others may wait for: for a recall, whose answer comes after it, or for a lock.
    Release,
}

impl Request {
    /// Its name, as `forebay waiters` shows it.
    pub fn name(&self) -> &'static &'static str {
        match self {
            Request::Lookup { .. } | Request::LookAt { .. } => &"lookup",
            Request::Create { .. } | Request::CreateFile { .. } => &"create",
            Request::CreateUnnamed { .. } => &"tmpfile",
            Request::Link { .. } => &"link",
            Request::Unlink { .. } => &"unlink",
            Request::RemoveDirectory { .. } => &"rmdir",
            Request::Rename { .. } => &"rename",
            Request::ReadLink { .. } => &"readlink",
            Request::OpenDirectory { .. } => &"opendir",
            Request::ReadDirectory { .. } => &"readdir",
            Request::Attributes { .. } => &"getattr",
            Request::SetAttributes { .. } | Request::KillSetId { .. } => &"setattr",
            Request::Xattr { .. } | Request::ListXattrs { .. } => &"getxattr",
            Request::SetXattr { .. } | Request::RemoveXattr { .. } => &"setxattr",
            Request::Open { .. } | Request::Register { .. } | Request::Reopen { .. } => &"open",
            Request::Close { .. } => &"release",
            Request::Read { .. } => &"read",
            Request::Write { .. } => &"write",
            Request::Allocate { .. } => &"fallocate",
            Request::Seek { .. } => &"lseek",
            Request::CopyRange { .. } => &"copy_file_range",
            Request::SyncFile { .. } => &"fsync",
            Request::SyncDirectory { .. } => &"fsyncdir",
            Request::Lock(_) | Request::AwaitLock { .. } => &"setlkw",
            Request::Census { .. } => &"census",
            Request::Journal { .. } => &"journal",
            _ => &"other",
        }
    }

    /// Whether the owner must know first what the asking node has done by itself.
    pub fn comes_after_reports(&self) -> bool {
        match self {
            Request::Journal { .. } | Request::Vouch { .. } | Request::Reopen { .. } => false,
            Request::Numbers { returned, .. } => *returned,
            _ => true,
        }
    }

    /// Where it has room, unless the caller knows better. Carrying out a release waits for nobody but disks.
    pub fn room(&self) -> Room {
        match self {
            Request::Journal { .. }
            | Request::Register { .. }
            | Request::CancelLock { .. }
            | Request::ReleaseLocks { .. } => Room::Release,
            Request::Lock(asked) if asked.kind.is_none() => Room::Release,
            _ => Room::Ordinary,
        }
    }

    /// Whether it can be repeated at the next owner although it may have been carried out: it changes nothing, or nothing that
    /// outlives the owner, or the session in which it was sent.
    pub fn is_repeatable(&self) -> bool {
        match self {
            Request::Open { access, .. } => !access.truncate,
            Request::Register { .. }
            | Request::CreateUnnamed { .. }
            | Request::Reopen { .. }
            | Request::Lock(_)
            | Request::TestLock(_) => true,
            request => request.changes_nothing(),
        }
    }

    /// Whether it can be repeated at the next owner if it was not carried out. To sync a directory there would say nothing of
    /// changes that were lost with the former one.
    pub fn is_repeatable_unsent(&self) -> bool {
        !matches!(self, Request::SyncDirectory { .. } | Request::SyncFile { .. })
    }

    /// The file or directory that it names; the top of its fileset where it names none.
    pub fn target(&self) -> Ino {
        match self {
            Request::Lookup { parent, .. }
            | Request::Create { parent, .. }
            | Request::CreateFile { parent, .. }
            | Request::CreateUnnamed { parent, .. }
            | Request::Unlink { parent, .. }
            | Request::RemoveDirectory { parent, .. }
            | Request::CheckLeaves { parent, .. } => *parent,
            Request::Rename { from, .. } => from.0,
            Request::CopyRange { to, .. } => to.0,
            Request::LookAt { ino }
            | Request::Link { ino, .. }
            | Request::ReadLink { ino }
            | Request::OpenDirectory { ino }
            | Request::ReadDirectory { ino, .. }
            | Request::Attributes { ino, .. }
            | Request::SetAttributes { ino, .. }
            | Request::KillSetId { ino }
            | Request::Xattr { ino, .. }
            | Request::ListXattrs { ino }
            | Request::SetXattr { ino, .. }
            | Request::RemoveXattr { ino, .. }
            | Request::Open { ino, .. }
            | Request::Register { ino, .. }
            | Request::Close { ino, .. }
            | Request::Read { ino, .. }
            | Request::Write { ino, .. }
            | Request::Allocate { ino, .. }
            | Request::Seek { ino, .. }
            | Request::SyncFile { ino, .. }
            | Request::SyncDirectory { ino }
            | Request::Lock(LockAsked { ino, .. })
            | Request::AwaitLock { ino, .. }
            | Request::CancelLock { ino, .. }
            | Request::TestLock(LockAsked { ino, .. })
            | Request::ReleaseLocks { ino, .. }
            | Request::Statistics { ino } => *ino,
            Request::Reopen { fileset, .. }
            | Request::Forget { fileset }
            | Request::Expect { fileset }
            | Request::OpenAhead { fileset, .. }
            | Request::Numbers { fileset, .. }
            | Request::Usage { fileset }
            | Request::Census { fileset, .. }
            | Request::Retire { fileset, .. }
            | Request::Apply { fileset, .. }
            | Request::Journal { fileset, .. } => Ino::top_of(*fileset),
            _ => Ino::ROOT,
        }
    }
}
