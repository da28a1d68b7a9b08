//! What a node has done by itself, as it reports it to the owner.

use forebay_base::Ino;
use forebay_cluster::grants::GrantNumber;
use serde::{Deserialize, Serialize};

use super::wire::{Answer, NewInode, Reply, Request};
use crate::error::FsError;
use crate::grants::Granted;
use crate::object::SeenObject;
use crate::ops::{Access, Reported};
use crate::partition::Caller;

/// One change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Change {
    /// A file was made and opened, with an object of the reporting node.
    Made {
        parent: Ino,
        name: Vec<u8>,
        new: NewInode,
        caller: Caller,
        access: Access,
        made: SeenObject,
        reported: Reported,
    },
    /// A file was removed.
    Removed { parent: Ino, name: Vec<u8>, ino: Ino },
    /// A handle with which a file was made was closed.
    Closed { ino: Ino, access: Access, left: Option<SeenObject> },
}

impl Change {
    /// The request that does the same.
    pub fn request(self) -> Request {
        match self {
            Change::Made { parent, name, new, caller, access, made, reported } => {
                let (made, reported) = (Some(made), Some(reported));
                Request::CreateFile { parent, name, new, caller, access, made, reported }
            }
            Change::Removed { parent, name, ino } => {
                Request::Unlink { parent, name, known: vec![ino] }
            }
            Change::Closed { ino, access, left } => Request::Close { ino, access, left },
        }
    }

    /// The directory in which it has changed a name, or the file.
    pub fn target(&self) -> Ino {
        match self {
            Change::Made { parent, .. } | Change::Removed { parent, .. } => *parent,
            Change::Closed { ino, .. } => *ino,
        }
    }

    /// The directory in which it has changed a name.
    pub fn directory(&self) -> Option<Ino> {
        match self {
            Change::Made { parent, .. } | Change::Removed { parent, .. } => Some(*parent),
            Change::Closed { .. } => None,
        }
    }

    /// The file that it has made.
    pub fn made(&self) -> Option<Ino> {
        match self {
            Change::Made { reported, .. } => Some(reported.ino),
            Change::Removed { .. } | Change::Closed { .. } => None,
        }
    }

    /// Why it is lost with this answer, if it is.
    pub fn lost(&self, answer: &ChangeAnswer) -> Option<String> {
        match (self, &answer.outcome) {
            (Change::Closed { .. }, _)
            | (Change::Made { .. }, Outcome::Made { uses_object: true })
            | (Change::Removed { .. }, Outcome::Done) => None,
            (_, Outcome::Refused(error)) => Some(error.to_string()),
            (_, Outcome::Made { .. }) => Some("the owner did not take its object".to_owned()),
            (_, Outcome::Done) => Some("the owner gave an unexpected answer".to_owned()),
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
