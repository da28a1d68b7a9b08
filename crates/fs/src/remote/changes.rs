//! What a node has done by itself, as it reports it to the owner.

use forebay_base::{Ino, Timestamp};
use forebay_cluster::grants::GrantNumber;
use serde::{Deserialize, Serialize};

use super::wire::{Answer, NewInode, Reply};
use crate::attributes::SetAttributes;
use crate::error::FsError;
use crate::grants::Granted;
use crate::object::SeenObject;
use crate::ops::{Access, Reported};
use crate::partition::Caller;
use crate::record::Kind;

/// One change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Change {
    /// A file, a directory or a symlink was made; a file was opened with an object of the reporting node. Of one that was closed empty the
    /// owner need not know that.
    Made {
        parent: Ino,
        name: Vec<u8>,
        new: NewInode,
        caller: Caller,
        reported: Reported,
        opened: Option<(Access, SeenObject)>,
    },
    /// A file or a symlink was removed.
    Removed { parent: Ino, name: Vec<u8>, ino: Ino },
    /// An empty directory was removed.
    DirectoryRemoved { parent: Ino, name: Vec<u8>, ino: Ino },
    /// A file got another name in its directory. `known` is that file, and the one that had the new name.
    Renamed { directory: Ino, old: Vec<u8>, new: Vec<u8>, known: Vec<Ino>, time: Timestamp },
    /// Attributes were set, but not the size, when the object was as `seen`.
    Set { ino: Ino, set: SetAttributes, seen: Option<SeenObject>, time: Timestamp },
    /// A handle with which a file was made was closed.
    Closed { ino: Ino, access: Access, left: Option<SeenObject> },
}

/// What is lost with a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LossOf {
    /// Names in this directory.
    Names(Ino),
    /// Attributes that were set of this inode.
    Attributes(Ino),
}

impl Change {
    /// What is lost with it. A close is not: the owner closes what a node had open.
    pub fn loss(&self) -> Option<LossOf> {
        match self {
            Change::Set { ino, .. } => Some(LossOf::Attributes(*ino)),
            other => other.directory().map(LossOf::Names),
        }
    }

    /// The directory in which it has changed a name, or the inode.
    pub fn target(&self) -> Ino {
        self.directory().unwrap_or_else(|| self.inode())
    }

    /// The directory in which it has changed a name.
    pub fn directory(&self) -> Option<Ino> {
        match self {
            Change::Made { parent, .. }
            | Change::Removed { parent, .. }
            | Change::DirectoryRemoved { parent, .. }
            | Change::Renamed { directory: parent, .. } => Some(*parent),
            Change::Set { .. } | Change::Closed { .. } => None,
        }
    }

    /// The inode that it has made or changed.
    pub fn inode(&self) -> Ino {
        match self {
            Change::Made { reported, .. } => reported.ino,
            Change::Removed { ino, .. }
            | Change::DirectoryRemoved { ino, .. }
            | Change::Set { ino, .. }
            | Change::Closed { ino, .. } => *ino,
            Change::Renamed { known, directory, .. } => {
                known.first().copied().unwrap_or(*directory)
            }
        }
    }

    /// Bytes of names and targets in it: what it takes in a report, but for little.
    pub fn bytes(&self) -> usize {
        match self {
            Change::Made { name, new, .. } => name.len() + new.target.len(),
            Change::Removed { name, .. } | Change::DirectoryRemoved { name, .. } => name.len(),
            Change::Renamed { old, new, .. } => old.len() + new.len(),
            Change::Set { .. } | Change::Closed { .. } => 0,
        }
    }

    /// The inode that it has made.
    pub fn made(&self) -> Option<Ino> {
        matches!(self, Change::Made { .. }).then(|| self.inode())
    }

    /// The directory that it has made.
    pub fn made_directory(&self) -> Option<Ino> {
        match self {
            Change::Made { new, .. } if new.kind == Kind::Directory => self.made(),
            _ => None,
        }
    }

    /// What has to become of it at the owner.
    pub fn expected(&self) -> Expected {
        match self {
            Change::Closed { .. } => Expected::Anything,
            Change::Made { opened: Some(_), .. } => Expected::MadeWithObject,
            Change::Made { opened: None, .. }
            | Change::Removed { .. }
            | Change::DirectoryRemoved { .. }
            | Change::Renamed { .. }
            | Change::Set { .. } => Expected::Done,
        }
    }

    /// Why it is lost with this answer, if it is.
    pub fn lost(&self, answer: &ChangeAnswer) -> Option<String> {
        self.expected().missed(&answer.outcome)
    }
}

/// What has to become of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// It is not lost, whatever the owner says.
    Anything,
    Done,
    /// A file has the object that the reporting node has made.
    MadeWithObject,
}

impl Expected {
    /// Why a change with this outcome is lost, if it is.
    pub fn missed(self, outcome: &Outcome) -> Option<String> {
        match (self, outcome) {
            (Expected::Anything, _)
            | (Expected::Done, Outcome::Done | Outcome::Made { .. })
            | (Expected::MadeWithObject, Outcome::Made { uses_object: true }) => None,
            (_, Outcome::Refused(error)) => Some(error.to_string()),
            (_, Outcome::Made { .. }) => Some("the owner did not take its object".to_owned()),
            (_, Outcome::Done) => Some("the owner gave an unexpected answer".to_owned()),
        }
    }

    /// The outcome of one that was carried out before, and not lost.
    pub fn again(self) -> Outcome {
        match self {
            Expected::Anything | Expected::Done => Outcome::Done,
            Expected::MadeWithObject => Outcome::Made { uses_object: true },
        }
    }
}

/// What became of a change at the owner.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Outcome {
    Done,
    /// A file is there; whether with the object that the reporting node has made.
    Made {
        uses_object: bool,
    },
    Refused(FsError),
}

/// The answer to a change, and what of it may be cached from now on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ChangeAnswer {
    pub outcome: Outcome,
    pub granted: Granted,
    /// The directory in which a name was changed is granted.
    pub directory: Option<GrantNumber>,
}

impl ChangeAnswer {
    /// Nothing is granted with it.
    pub fn plain(outcome: Outcome) -> ChangeAnswer {
        ChangeAnswer { outcome, granted: Granted::default(), directory: None }
    }

    /// What the answer to the same request says.
    pub fn of(reply: Reply) -> ChangeAnswer {
        let outcome = match reply.answer {
            Answer::Created { uses_made, .. } => Outcome::Made { uses_object: uses_made },
            Answer::Refused(error) => Outcome::Refused(error),
            Answer::NotMine => Outcome::Refused(FsError::Moved),
            _ => Outcome::Done,
        };
        let directory = reply.beside.map(|beside| beside.number);
        ChangeAnswer { outcome, granted: reply.granted, directory }
    }
}
