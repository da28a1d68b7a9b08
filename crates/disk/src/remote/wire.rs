//! What is said between a disk's users and its node: postcard heads
//! (<https://postcard.jamesmunns.com/wire-format>), bytes of objects as payloads.
//!
//! Kinds are numbered by their place: new ones come at the end, and a change of an old one raises [`VERSION`].

use forebay_base::{FilesetId, ObjectId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{Allocate, Capacity, Description, DiskError, ObjectAttributes, Seek, Sync};

/// Version of the messages; both sides must speak the same.
pub(super) const VERSION: u8 = 3;

/// Bytes of an object in one message, at most.
pub const TRANSFER_MAX: usize = 1 << 20;

/// One life of the machine that a disk is on, as in `/proc/sys/kernel/random/boot_id`, and in answers of the disk's file
/// system: what was written in one life and not synced may be gone in the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine(pub u128);

impl Machine {
    /// Of an answer for which no disk was asked: it says nothing about any life.
    pub(super) const UNKNOWN: Machine = Machine(u128::MAX);
}

/// One life of the service that has a disk: no two may have the same, whether in one process or in different ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Life(pub u64);

/// An open object at the node of its disk. One that the node has forgotten never stands for another object: its users are
/// not told when it is forgotten, and go on to use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Handle {
    pub life: Life,
    /// Counted over all clients from 1, and never used twice in a life.
    pub number: u64,
}

impl Handle {
    /// What stands for the handle of an object that was not opened yet.
    pub const NONE: Handle = Handle { life: Life(0), number: 0 };
}

/// A request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Asked {
    pub version: u8,
    /// Uuid of the disk.
    pub disk: String,
    /// Handles that are not needed any more.
    pub closed: Vec<Handle>,
    pub request: Request,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Request {
    /// Nothing but the handles to close.
    Close,
    CreateFresh,
    Open(ObjectId),
    Publish {
        id: ObjectId,
        handle: Handle,
    },
    Remove(ObjectId),
    Attributes(ObjectId),
    /// Numbers above `after`, the lowest first, as many as a message holds: 8 bytes each, little endian.
    List {
        fileset: Option<FilesetId>,
        after: Option<ObjectId>,
    },
    Sync,
    Capacity,
    KeepReserve(u64),
    GiveReserve(u64),
    Describe,
    /// What follows concerns one open object.
    Object {
        handle: Handle,
        what: ObjectRequest,
    },
    /// An object that is published from the beginning. If there is one already, an earlier request has made it.
    CreateNamed(ObjectId),
    RemoveAll(Vec<ObjectId>),
}

impl Request {
    /// Whether it concerns an object that was opened before.
    pub fn names_a_handle(&self) -> bool {
        matches!(self, Request::Publish { .. } | Request::Object { .. })
    }

    /// Whether carrying it out may take calls to the disks of other nodes. All other requests wait for nobody's call.
    pub fn waits_for_others(&self) -> bool {
        matches!(self, Request::Object { what: ObjectRequest::Fetch { .. }, .. })
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum ObjectRequest {
    Read {
        offset: u64,
        length: u32,
    },
    Write {
        offset: u64,
    },
    SetSize(u64),
    Allocate {
        what: Allocate,
        offset: u64,
        length: u64,
    },
    Seek {
        target: Seek,
        offset: u64,
    },
    CopyFrom {
        source: Handle,
        source_offset: u64,
        offset: u64,
        length: u64,
    },
    Sync(Sync),
    Attributes,
    HasOtherWriters,
    Append,
    SetModified(Timestamp),
    /// The node fetches bytes of an object of another disk, wherever that is, and writes them to this one.
    Fetch {
        disk: String,
        source: ObjectId,
        offset: u64,
        length: u64,
    },
}

/// An answer, with the life of the machine that gave it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Answered {
    pub machine: Machine,
    pub answer: Answer,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Answer {
    Done,
    Handle(Handle),
    Number(u64),
    Attributes(Option<ObjectAttributes>),
    Capacity(Capacity),
    Description(Description),
    OtherWriters(bool),
    Failed(DiskError),
    /// The node knows no such handle of this client: its daemon was started again, or it has dropped the client.
    NoHandle,
    /// What could not be removed of several objects, and why.
    Kept(Vec<(ObjectId, DiskError)>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_read_back_as_they_were_written() {
        let handle = |number| Handle { life: Life(u64::MAX), number };
        let object = |what| Request::Object { handle: handle(7), what };
        let requests = [
            Request::Close,
            Request::CreateFresh,
            Request::Open(ObjectId(9)),
            Request::Publish { id: ObjectId(u64::MAX), handle: handle(1) },
            Request::List { fileset: Some(FilesetId(3)), after: None },
            Request::KeepReserve(1 << 40),
            object(ObjectRequest::Read { offset: 1 << 50, length: 12 }),
            object(ObjectRequest::Allocate { what: Allocate::PunchHole, offset: 1, length: 2 }),
            object(ObjectRequest::Sync(Sync::Data)),
            object(ObjectRequest::SetModified(Timestamp::new(5, 6))),
            object(ObjectRequest::Fetch {
                disk: "e".to_owned(),
                source: ObjectId(14),
                offset: 1,
                length: 2,
            }),
            Request::CreateNamed(ObjectId(11)),
            Request::RemoveAll(vec![ObjectId(12), ObjectId(13)]),
        ];
        for request in requests {
            let closed = vec![handle(1), handle(2)];
            let asked = Asked { version: VERSION, disk: "d".to_owned(), closed, request };
            let bytes = postcard::to_stdvec(&asked).unwrap();
            assert_eq!(postcard::from_bytes::<Asked>(&bytes).unwrap(), asked);
        }
        let failed = Answer::Failed(DiskError::Refused("no".to_owned()));
        let kept = Answer::Kept(vec![(ObjectId(3), DiskError::Full)]);
        for answer in [Answer::Done, Answer::Attributes(None), Answer::NoHandle, failed, kept] {
            let answered = Answered { machine: Machine(u128::MAX), answer };
            let bytes = postcard::to_stdvec(&answered).unwrap();
            assert_eq!(postcard::from_bytes::<Answered>(&bytes).unwrap(), answered);
        }
    }
}
