//! What other nodes cache of the filesets of this one (`Granting`), and what this one caches of theirs (`Kept`).
//!
//! The rules are the state machines of `forebay_cluster::grants`; here are their clocks, threads and messages
//! (docs/protocol.md, "Grants").
//!
//! - **The owner** grants an item before it reads what it answers, so that no change can come in between unseen. A change
//!   recalls the items that it touches from all other nodes, without a lock and without a way to the owner
//!   (`Route`) held, and passes the gate afterwards. Changes of one name follow each other, because
//!   what the name leads to is touched as well.
//! - **The client** keeps what it was granted in the daemon, and uses it while the owner vouches for it. It lends it to its
//!   kernel for a moment at a time, and takes that back before it answers a recall (`remote/lent.rs`).
//! - **A client that does not answer a recall** is not waited for once the owner's word for it has lapsed: all that it was granted
//!   in this fileset is void then (`Granted::term`). It keeps its files and locks.
//! - A file that anybody has open for writing is not granted.
//!
//! In a file system without a cluster none of this exists. In a cluster whose other nodes have asked for nothing, a change looks at
//! one flag.
//!
//! **What survives a crash**: nothing. An owner that starts again within its lease waits until what it vouched for has lapsed.

mod heard;
mod inode;
mod journal;
mod kept;
mod learned;
mod names;
mod owner;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_base::{ClientId, FilesetId, Ino};
use forebay_cluster::Settings;
pub(crate) use forebay_cluster::grants::Item;
use forebay_cluster::grants::{GrantNumber, RecallNumber};
use serde::{Deserialize, Serialize};

use crate::record::ObjectRef;

pub(crate) use journal::{CHANGES_AT_ONCE, NeverKnown};
pub(crate) use kept::{Kept, KeptContent, Looked, Lost, MakeHere, Named, OwnChange, Report};
pub(crate) use learned::Learned;
pub(crate) use names::{NAMES_MAX, NameChange};
pub(crate) use owner::{Changer, Changing, Granting};

/// For whom no grant is spared: a change takes those of everybody.
pub(crate) const NOBODY: ClientId =
    ClientId { node: forebay_base::NodeId(u32::MAX), incarnation: 0 };

/// The grants that come with an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Granted {
    /// Of the name that was asked for.
    pub entry: Option<GrantNumber>,
    /// Of the inode that was asked for, or that the name leads to.
    pub attributes: Option<GrantNumber>,
    /// Where the object of that inode lies, if it is a file that is granted and its client may go there itself.
    pub home: Option<ObjectRef>,
    /// A directory that was made is delegated to its client.
    pub directory: Option<GrantNumber>,
    /// Grows when the owner takes back all that the client was granted, without its answer.
    pub term: u64,
}

/// Why items are recalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Why {
    /// The fileset is handed over, or there are too many grants: a name still leads where it led.
    Release,
    /// They are about to change.
    Change,
}

/// What an owner asks of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Recall {
    pub fileset: FilesetId,
    pub why: Why,
    pub recalls: Vec<(RecallNumber, Vec<Item>)>,
}

/// What a change touches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Touched<'a> {
    /// Names that lead elsewhere afterwards, each with its directory.
    pub names: Vec<(Ino, &'a [u8])>,
    /// Inodes whose attributes, listing, extended attributes or bytes change.
    pub inodes: Vec<Ino>,
    /// Whether what the names lead to changes as well: the number of its links, or its time.
    pub targets: bool,
    /// What the one who changes believes that the names lead to: of that it has given up what it was granted, too.
    pub known: Vec<Ino>,
}

impl<'a> Touched<'a> {
    /// An inode.
    pub fn inode(ino: Ino) -> Touched<'a> {
        Touched { inodes: vec![ino], ..Touched::default() }
    }

    /// A name that did not lead anywhere.
    pub fn new_name(parent: Ino, name: &'a [u8]) -> Touched<'a> {
        Touched { names: vec![(parent, name)], inodes: vec![parent], ..Touched::default() }
    }

    /// Names that may lead somewhere, and what they lead to.
    pub fn names<const N: usize>(names: [(Ino, &'a [u8]); N]) -> Touched<'a> {
        let mut inodes: Vec<Ino> = names.iter().map(|(parent, _)| *parent).collect();
        inodes.dedup();
        Touched { names: names.to_vec(), inodes, targets: true, known: Vec::new() }
    }

    /// Where it is believed to be known what the names lead to.
    pub fn known(self, known: Vec<Ino>) -> Touched<'a> {
        Touched { known, ..self }
    }

    /// As items.
    pub fn items(&self) -> Vec<Item> {
        let names = self.names.iter().map(|(parent, name)| Item::Entry(*parent, (*name).into()));
        let mut items: Vec<Item> = names.collect();
        items.extend(self.inodes.iter().map(|ino| Item::Attributes(*ino)));
        items.sort_unstable();
        items.dedup();
        items
    }
}

/// What there is to count of one other node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantFigures {
    /// Items that it may cache now.
    pub grants: u64,
    /// Directories among them that are delegated to it.
    pub directories: u64,
    /// Items that were recalled from it.
    pub recalls: u64,
    /// How often all of its grants in a fileset were void because it did not answer a recall in time.
    pub evictions: u64,
}

/// Requests for files of one other node.
#[derive(Default)]
pub(crate) struct Traffic {
    calls: AtomicU64,
    hits: AtomicU64,
}

impl Traffic {
    pub(super) fn called(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    /// Those that were sent.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Those that were answered from what is cached here.
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }
}

/// Times and bounds of grants.
fn settings() -> Settings {
    let defaults = Settings::default();
    // The owner stops vouching a second after a recall; when its word has lapsed it waits no longer.
    let recall_timeout = defaults.lapse() + defaults.keepalive;
    Settings { recall_timeout, ..defaults }
}

/// The longest time that a change waits for another node.
#[must_use]
pub fn recall_wait_max() -> Duration {
    settings().recall_timeout
}
