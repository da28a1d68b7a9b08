//! The top directory of a native fileset of a cluster: it lists the directories of the nodes, each a native fileset of its
//! own on a disk of its node.
//!
//! It is made of the catalogue alone, on every node for itself: nobody owns it, it holds nothing else, and nothing in it can
//! be changed but by making and removing filesets. Its attributes are the same for as long as the mount lives, and the
//! kernel keeps them as long: so the way to a node directory that is bound needs no daemon.

use std::ops::ControlFlow;
use std::sync::Arc;

use forebay_base::{FilesetId, Ino, Timestamp};

use crate::attributes::{Attributes, KeepName};
use crate::error::{FsError, Result};
use crate::ops::{DirectoryItem, Found};
use crate::owner::Visit;
use crate::record::Kind;

/// Permission bits of the directory.
const MODE: u16 = 0o755;
/// Entries of a listing before the node directories: `.` and `..`.
const DOTS: u64 = 2;

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
        Attributes {
            ino: self.ino,
            kind: Kind::Directory,
            mode: MODE,
            // The number of subdirectories is not told (as btrfs does it): it would change.
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            allocated_bytes: 0,
            accessed: self.made,
            modified: self.made,
            changed: self.made,
            created: self.made,
            cacheable: true,
            name: KeepName::Lasting,
        }
    }

    pub(super) fn list(&self, offset: u64, visit: &mut Visit<'_>) {
        let item = |ino, name: &[u8], next_offset| DirectoryItem {
            ino,
            kind: Kind::Directory,
            name: name.to_vec(),
            next_offset,
        };
        let dots = [item(self.ino, b".", 1), item(Ino::ROOT, b"..", DOTS)];
        // Each keeps its place in the listing, whatever comes and goes beside it.
        let nodes = (self.listing)()
            .into_iter()
            .map(|(node, id)| item(Ino::top_of(id), node.as_bytes(), DOTS + 1 + u64::from(id.0)));
        for item in dots.into_iter().chain(nodes).filter(|item| item.next_offset > offset) {
            if matches!(visit(&item), ControlFlow::Break(())) {
                return;
            }
        }
    }
}
