//! Requests and answers between nodes, and how they are encoded.
//!
//! A head is one version byte and the encoded [`Head`] or [`Answer`] (postcard); bytes of files travel beside it. What
//! a peer sends is never trusted: it is bounded by what arrived, decoding it never panics, and what is left over or
//! missing makes it an error.

use forebay_base::{DiskId, Epoch, FilesetId, Ino, ObjectId};
use forebay_cluster::grants::GrantNumber;
use forebay_disk::{Allocate, Seek, Sync};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::changes::{Change, ChangeAnswer};
use super::disk_orders::{DiskAnswer, DiskOrder, HelpOrder, HelpReport};
use crate::attributes::{Attributes, SetAttributes};
use crate::clients::Handles;
use crate::error::FsError;
use crate::grants::Granted;
use crate::locks::{Kind as LockKind, Range, Ticket};
use crate::native::NewFileset;
use crate::object::SeenObject;
use crate::ops::{Access, DirectoryItem, New, Replace, Reported, SetMode, Statistics};
use crate::partition::Caller;
use crate::record::{DiskRecord, Durability, FilesetSettings, Kind, ObjectRef, Placement, Usage};

/// Version of requests and answers.
pub(crate) const VERSION: u8 = 7;
/// Longest head, in bytes: an extended attribute, or a part of a listing, is at most 64 KiB; lists of filesets grow.
pub(crate) const HEAD_MAX: usize = 64 << 20;
/// Most bytes of a file in one request or answer.
pub(crate) const PAYLOAD_MAX: usize = 8 << 20;

/// A request, and what the kernel of the asking node has forgotten since the one before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Head {
    /// The owner's epoch when the files of the asking node were opened there, or opened again: in another one they are
    /// not, and nothing is carried out. 0 for a fileset without epochs.
    pub epoch: Epoch,
    pub forgotten: Vec<(Ino, u64)>,
    /// The latest grant that the asking node has heard of: of what it changes it has given up all up to this one.
    pub seen: GrantNumber,
    pub request: Request,
}

/// What is to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NewInode {
    pub kind: Kind,
    pub mode: u16,
    pub umask: u16,
    pub rdev: u32,
    pub target: Vec<u8>,
}

impl NewInode {
    pub fn of(new: New<'_>) -> NewInode {
        let New { kind, mode, umask, rdev, target } = new;
        NewInode { kind, mode, umask, rdev, target: target.to_vec() }
    }

    pub fn as_new(&self) -> New<'_> {
        let NewInode { kind, mode, umask, rdev, ref target } = *self;
        New { kind, mode, umask, rdev, target }
    }
}

/// Whose lock it is: of a program of the asking node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LockAsked {
    pub ino: Ino,
    pub owner: u64,
    pub pid: u32,
    pub range: Range,
    /// `None` unlocks.
    pub kind: Option<LockKind>,
    /// flock, not fcntl: they do not know of each other.
    pub whole: bool,
    pub waits: bool,
}

/// What another node asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Request {
    // Names.
    Lookup {
        parent: Ino,
        name: Vec<u8>,
    },
    LookAt {
        ino: Ino,
    },
    Create {
        parent: Ino,
        name: Vec<u8>,
        new: NewInode,
        caller: Caller,
        /// The asking node has made the file already, and reports it in a [`Request::Journal`].
        reported: Option<Reported>,
    },
    CreateUnnamed {
        parent: Ino,
        new: NewInode,
        caller: Caller,
    },
    Link {
        ino: Ino,
        parent: Ino,
        name: Vec<u8>,
    },
    /// `known` is what the asking node believes that the name leads to: of that it has given up what it was granted.
    Unlink {
        parent: Ino,
        name: Vec<u8>,
        known: Vec<Ino>,
    },
    RemoveDirectory {
        parent: Ino,
        name: Vec<u8>,
        known: Vec<Ino>,
    },
    /// With somebody in `whiteout`, it leaves a whiteout of theirs.
    Rename {
        from: (Ino, Vec<u8>),
        to: (Ino, Vec<u8>),
        replace: Replace,
        whiteout: Option<Caller>,
        known: Vec<Ino>,
    },
    CheckLeaves {
        parent: Ino,
        name: Vec<u8>,
    },
    ReadLink {
        ino: Ino,
    },
    OpenDirectory {
        ino: Ino,
    },
    ReadDirectory {
        ino: Ino,
        offset: u64,
    },
    // Attributes. The asking node has `seen` the object just now, if it writes it on a disk of its own.
    Attributes {
        ino: Ino,
        seen: Option<SeenObject>,
    },
    SetAttributes {
        ino: Ino,
        set: SetAttributes,
        seen: Option<SeenObject>,
    },
    KillSetId {
        ino: Ino,
    },
    Xattr {
        ino: Ino,
        name: Vec<u8>,
    },
    ListXattrs {
        ino: Ino,
    },
    SetXattr {
        ino: Ino,
        name: Vec<u8>,
        value: Vec<u8>,
        mode: SetMode,
        kill_set_gid: bool,
    },
    RemoveXattr {
        ino: Ino,
        name: Vec<u8>,
    },
    // Open files.
    Open {
        ino: Ino,
        access: Access,
        caller: Caller,
    },
    /// It has a file open by a grant, for reading.
    Register {
        ino: Ino,
        access: Access,
    },
    /// `left` is how the object of a file was left that the asking node has written on a disk of its own.
    Close {
        ino: Ino,
        access: Access,
        left: Option<SeenObject>,
    },
    /// The fileset has another owner: these files were open before. They are again if nothing was lost since `crash`.
    Reopen {
        fileset: FilesetId,
        crash: Epoch,
        files: Vec<(Ino, Handles)>,
    },
    Read {
        ino: Ino,
        offset: u64,
        length: u32,
    },
    /// The bytes are beside it. Without an offset they go to the end.
    Write {
        ino: Ino,
        offset: Option<u64>,
        kills_set_id: bool,
    },
    Allocate {
        ino: Ino,
        what: Allocate,
        offset: u64,
        length: u64,
    },
    Seek {
        ino: Ino,
        target: Seek,
        offset: u64,
    },
    CopyRange {
        from: (Ino, u64),
        to: (Ino, u64),
        length: u64,
    },
    SyncFile {
        ino: Ino,
        what: Sync,
        seen: Option<SeenObject>,
    },
    SyncDirectory {
        ino: Ino,
    },
    // Locks.
    Lock(LockAsked),
    /// Waits on, for a short while, for a lock that was not to be had at once.
    AwaitLock {
        ino: Ino,
        ticket: Ticket,
    },
    /// Gives up waiting.
    CancelLock {
        ino: Ino,
        ticket: Ticket,
    },
    TestLock(LockAsked),
    ReleaseLocks {
        ino: Ino,
        owner: u64,
        whole: bool,
    },
    // Filesets.
    /// Only what comes with the request.
    Forget {
        fileset: FilesetId,
    },
    /// For how long the owner vouches for what the asking node caches.
    Vouch {
        fileset: FilesetId,
    },
    Statistics {
        ino: Ino,
    },
    Usage {
        fileset: FilesetId,
    },
    Catalogue,
    AddFileset(NewFileset),
    SetFileset {
        name: String,
        durability: Option<Durability>,
        placement: Option<Placement>,
    },
    RemoveFileset {
        name: String,
    },
    /// A node brings a disk.
    AddDisk {
        uuid: String,
        location: String,
    },
    /// To the owner of a fileset that is to be removed: it empties it out and lets it go.
    Retire {
        fileset: FilesetId,
        name: String,
    },
    /// To the owner of a fileset: its settings have changed.
    Apply {
        fileset: FilesetId,
        settings: FilesetSettings,
    },
    /// To every node: native filesets have come or gone.
    Native,
    /// Makes a regular file and opens it. The asking node has made the object itself, if `made` says so.
    CreateFile {
        parent: Ino,
        name: Vec<u8>,
        new: NewInode,
        caller: Caller,
        access: Access,
        made: Option<SeenObject>,
        /// The asking node has made the file already, and reports it in a [`Request::Journal`].
        reported: Option<Reported>,
    },
    /// Numbers for files and objects that the asking node makes by itself; with `returned`, it has no more use for those that it
    /// has.
    Numbers {
        fileset: FilesetId,
        returned: bool,
    },
    /// Something about disks or tasks.
    Disks(DiskOrder),
    /// To every node: disks have come, changed or gone.
    DisksChanged,
    /// To an owner of filesets: a task of the root's owner.
    Help(HelpOrder),
    /// What the files of a fileset hold. Counting takes longer than a call may: the first request begins it, further ones with the
    /// ticket of its answer ask for the result.
    Census {
        fileset: FilesetId,
        ticket: Option<u64>,
    },
    /// What the asking node has done by itself in directories that were delegated to it in this `term`, in order. Each change has a
    /// number that grows for as long as the node lives, and is carried out once.
    Journal {
        fileset: FilesetId,
        term: u64,
        changes: Vec<(u64, Change)>,
    },
    /// To the node that is to own a fileset next, from its owner, which still answers: what can be read ahead.
    Expect {
        fileset: FilesetId,
    },
    /// To the same node: the owner has closed the store, and is naming that node the owner in this epoch.
    OpenAhead {
        fileset: FilesetId,
        epoch: Epoch,
    },
}

impl Request {
    /// Whether it makes no difference how often it is carried out: then it can be repeated at another owner.
    pub fn changes_nothing(&self) -> bool {
        match self {
            Request::Lookup { .. }
            | Request::LookAt { .. }
            | Request::CheckLeaves { .. }
            | Request::ReadLink { .. }
            | Request::OpenDirectory { .. }
            | Request::ReadDirectory { .. }
            | Request::Attributes { .. }
            | Request::Xattr { .. }
            | Request::ListXattrs { .. }
            | Request::Read { .. }
            | Request::Seek { .. }
            | Request::Vouch { .. }
            | Request::Statistics { .. }
            | Request::Usage { .. }
            | Request::Census { .. }
            | Request::Catalogue => true,
            Request::Create { .. }
            | Request::CreateUnnamed { .. }
            | Request::Link { .. }
            | Request::Unlink { .. }
            | Request::RemoveDirectory { .. }
            | Request::Rename { .. }
            | Request::SetAttributes { .. }
            | Request::KillSetId { .. }
            | Request::SetXattr { .. }
            | Request::RemoveXattr { .. }
            | Request::Open { .. }
            | Request::Register { .. }
            | Request::Close { .. }
            | Request::Reopen { .. }
            | Request::Write { .. }
            | Request::Allocate { .. }
            | Request::CopyRange { .. }
            | Request::SyncFile { .. }
            | Request::SyncDirectory { .. }
            | Request::Lock(_)
            | Request::AwaitLock { .. }
            | Request::CancelLock { .. }
            | Request::TestLock(_)
            | Request::ReleaseLocks { .. }
            | Request::Forget { .. }
            | Request::AddFileset(_)
            | Request::SetFileset { .. }
            | Request::RemoveFileset { .. }
            | Request::AddDisk { .. }
            | Request::Retire { .. }
            | Request::Apply { .. }
            | Request::Native
            | Request::Expect { .. }
            | Request::OpenAhead { .. }
            | Request::CreateFile { .. }
            | Request::Numbers { .. }
            | Request::Disks(_)
            | Request::DisksChanged
            | Request::Help(_)
            | Request::Journal { .. } => false,
        }
    }
}

/// What the root's owner knows of the whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Whole {
    pub uuid: String,
    pub filesets: Vec<(FilesetId, FilesetSettings)>,
    pub disks: Vec<DiskRecord>,
}

/// How the request for a lock stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LockAnswer {
    Granted,
    Waiting(Ticket),
    /// Somebody else has it.
    Refused,
}

/// Who has a lock, as F_GETLK tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LockFound {
    pub range: Range,
    pub kind: LockKind,
    pub pid: u32,
}

/// What is answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Done,
    Attributes(Attributes),
    /// The name leads into another fileset.
    Elsewhere(Ino),
    Bytes(Vec<u8>),
    /// A part of a listing. There may be no more entries after one that is not the last.
    Items {
        items: Vec<DirectoryItem>,
        is_last: bool,
    },
    Opened {
        crash: Epoch,
        /// Where the object lies, if that is not a disk of the owner: the asking node may read it there, and write it if
        /// the disk is its own.
        home: Option<ObjectRef>,
    },
    /// What was open before is open here, in this epoch, and nothing was lost since `crash`.
    Reopened {
        crash: Epoch,
        epoch: Epoch,
    },
    /// Bytes were moved, or found; those of a read are beside it.
    Count(u64),
    Vouched {
        word_ms: u64,
        term: u64,
    },
    Statistics(Statistics),
    Usage(Usage),
    Lock(LockAnswer),
    Found(Option<LockFound>),
    Whole(Whole),
    Disk(DiskRecord),
    Retired {
        first_ino: u64,
        first_object: u64,
    },
    /// The operation was refused.
    Refused(FsError),
    /// This node does not own the fileset: ask again who does.
    NotMine,
    /// As [`Answer::Opened`], of a file that was made.
    Created {
        attributes: Attributes,
        crash: Epoch,
        home: Option<ObjectRef>,
        /// The file has the object that the asking node has made.
        uses_made: bool,
    },
    /// Numbers of objects from `first` on, and the disks of the asking node on which they are to lie; as many numbers of inodes.
    Numbers {
        first: ObjectId,
        first_ino: Ino,
        count: u32,
        disks: Vec<DiskId>,
    },
    Disks(DiskAnswer),
    Helped(HelpReport),
    /// A count is under way, or done: then its result is beside it.
    Census {
        ticket: u64,
        done: bool,
    },
    /// The answers to what was reported, in order.
    Journal(Vec<ChangeAnswer>),
}

/// What is granted beside that of an answer: the directory in which a name was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Beside {
    pub number: GrantNumber,
    pub attributes: Attributes,
    /// Nobody else has changed a name of it since the asking node was last granted it.
    pub continues: bool,
}

/// An answer, and what of it may be cached.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Reply {
    pub answer: Answer,
    pub granted: Granted,
    pub beside: Option<Beside>,
}

/// Encodes a head.
pub(crate) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    bytes.extend(postcard::to_allocvec(value).expect("these types always have an encoding"));
    bytes
}

/// Decodes a head.
///
/// # Errors
/// A text, if the bytes are not one of this version.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    if bytes.len() > HEAD_MAX {
        return Err(format!("a head of {} bytes is too long", bytes.len()));
    }
    let (version, rest) = bytes.split_first().ok_or("an empty head")?;
    if *version != VERSION {
        return Err(format!(
            "version {version} is not supported; this node uses version {VERSION}"
        ));
    }
    match postcard::take_from_bytes(rest) {
        Ok((value, [])) => Ok(value),
        Ok((_, left)) => Err(format!("{} bytes too many", left.len())),
        Err(error) => Err(error.to_string()),
    }
}
