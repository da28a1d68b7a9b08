//! The top directory of a native fileset of a cluster: it lists the directories of the nodes, each a native fileset of its
//! own on a disk of its node.
//!
//! It is made of the catalogue alone, on every node for itself: nobody owns it, it holds nothing else, and nothing in it can
//! be changed but by making and removing filesets. Its attributes are the same for as long as the mount lives, and the
//! kernel keeps them as long: so the way to a node directory that is bound needs no daemon.

use std::sync::Arc;

use forebay_base::{FilesetId, Ino, Timestamp};

use crate::attributes::{Attributes, KeepName};
use crate::error::{FsError, Result};
use crate::made_up;
use crate::ops::Found;
use crate::owner::Visit;

/// Permission bits of the directory.
const MODE: u16 = 0o755;

/// Which node directories there are, in order of their numbers: the name of the node, and the number of the fileset.
pub(crate) type Listing = dyn Fn() -> Vec<(String, FilesetId)> + Send + Sync;

/// The top directory of one native fileset.
pub struct NodeDirectories {
    ino: Ino,
    made: Timestamp,
    listing: Arc<Listing>,
}

impl NodeDirectories {
    /// The directory with this number.
    pub(crate) fn new(ino: Ino, made: Timestamp, listing: Arc<Listing>) -> NodeDirectories {
        NodeDirectories { ino, made, listing }
    }

    pub(super) fn lookup(&self, name: &[u8]) -> Result<Found> {
        let all = (self.listing)();
        let found = all.into_iter().find(|(node, _)| node.as_bytes() == name);
        found.map(|(_, id)| Found::Elsewhere(Ino::top_of(id))).ok_or(FsError::NotFound)
    }

    pub(super) fn attributes(&self) -> Attributes {
        made_up::attributes(self.ino, MODE, self.made, KeepName::Lasting)
    }

    pub(super) fn list(&self, offset: u64, visit: &mut Visit<'_>) {
        made_up::list((self.ino, Ino::ROOT), (self.listing)().into_iter(), offset, visit);
    }
}
