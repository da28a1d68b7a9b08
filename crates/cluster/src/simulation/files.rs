//! The abstract file system above: objects of one value each, that are made, written, read, removed and synced.
//!
//! A directory is such an object, too: its value stands for all its names. It is delegated to the client that has made it, which changes
//! it by itself from then on and reports that later.

use std::collections::BTreeMap;

use forebay_base::{Epoch, Ino};

use crate::grants::{GrantNumber, Item, RecallNumber};
use crate::time::Moment;

/// An object of a fileset. Even ones are names (made and removed), odd ones files (written), and those from [`DIRECTORIES`] on
/// directories, which are delegated.
pub type Object = u8;

/// The first directory.
pub const DIRECTORIES: Object = 100;

/// What a client may be granted of an object.
pub fn item(object: Object) -> Item {
    if is_directory(object) {
        Item::Directory(Ino(u64::from(object)))
    } else if is_name(object) {
        Item::Entry(Ino::ROOT, Box::new([object]))
    } else {
        Item::Attributes(Ino(u64::from(object)))
    }
}

pub fn is_name(object: Object) -> bool {
    object.is_multiple_of(2) && !is_directory(object)
}

pub fn is_directory(object: Object) -> bool {
    object >= DIRECTORIES
}

/// An operation of a program. Its number is the value that it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    pub number: u64,
    pub object: Object,
    pub verb: Verb,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Read,
    Write,
    Create,
    Remove,
    /// Opens a file for writing.
    Open,
    /// Writes to a file that the client has open: nobody is granted anything of it.
    WriteOpen,
    Close,
    /// Makes what was written in an epoch durable.
    Sync(Epoch),
}

impl Verb {
    /// Whether a kernel holds a lock meanwhile that a notification may wait for.
    pub fn locks(self) -> bool {
        matches!(self, Verb::Read | Verb::Create | Verb::Remove)
    }

    /// Whether it changes what others may have cached.
    pub fn changes(self) -> bool {
        matches!(self, Verb::Write | Verb::Create | Verb::Remove | Verb::Open | Verb::WriteOpen)
    }
}

/// What the owner answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The value, with a grant.
    Value(Option<u64>, Option<GrantNumber>),
    /// It was done, in this epoch.
    Done(Epoch, Option<GrantNumber>),
    /// The name exists, or does not; the file is not open.
    Not,
    /// The handle's epoch is over.
    Stale,
    /// Another node is the owner, or will be: nothing was carried out.
    Moved,
}

/// What goes through sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    Ask(forebay_base::FilesetId, Op),
    Reply(Reply),
    Recall(forebay_base::FilesetId, RecallNumber, Vec<Item>),
    /// The client's kernel has forgotten an item.
    Return(forebay_base::FilesetId, Item, GrantNumber),
    Acknowledge,
    /// What the client has done by itself in directories that were delegated to it in this epoch, in order and numbered.
    Report(forebay_base::FilesetId, Epoch, Vec<(u64, Op)>),
    /// It is carried out; or not, because what was delegated is void.
    Reported(bool),
}

/// One object at its owner or in the store: its value, and the operations that made it so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub value: Option<u64>,
    pub lineage: Vec<u64>,
}

pub type States = BTreeMap<Object, State>;

impl State {
    /// Carries out a change; false if it does not apply.
    pub fn change(&mut self, op: Op) -> bool {
        let value = match (op.verb, self.value) {
            (Verb::Write | Verb::WriteOpen, _) | (Verb::Create, None) => Some(op.number),
            (Verb::Remove, Some(_)) => None,
            _ => return false,
        };
        self.value = value;
        self.lineage.push(op.number);
        true
    }
}

/// What a client's kernel holds of an item, and until when.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    pub value: Option<u64>,
    pub until: Moment,
}
