//! Directories that no store holds: the daemon makes them up, with the tops of filesets as entries.

use forebay_base::{FilesetId, Ino, Timestamp};

use crate::attributes::{Attributes, KeepName};
use crate::directory::{AFTER_DOT, AFTER_DOT_DOT};
use crate::ops::DirectoryItem;
use crate::owner::Visit;
use crate::record::Kind;

/// Attributes of such a directory, which belongs to root.
pub(crate) fn attributes(ino: Ino, mode: u16, made: Timestamp, name: KeepName) -> Attributes {
    Attributes {
        ino,
        kind: Kind::Directory,
        mode,
        // The number of subdirectories is not told (as btrfs does it): it would change.
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        allocated_bytes: 0,
        accessed: made,
        modified: made,
        changed: made,
        created: made,
        cacheable: true,
        name,
    }
}

/// Lists such a directory and its entries from a position on. Each entry keeps its place, whatever comes and goes beside it.
pub(crate) fn list<N: AsRef<str>>(
    (ino, parent): (Ino, Ino),
    entries: impl Iterator<Item = (N, FilesetId)>,
    offset: u64,
    visit: &mut Visit<'_>,
) {
    let item = |ino, name: &str, next_offset| DirectoryItem {
        ino,
        kind: Kind::Directory,
        name: name.as_bytes().to_vec(),
        next_offset,
    };
    let place = |id: FilesetId| AFTER_DOT_DOT + 1 + u64::from(id.0);
    let mut all: Vec<DirectoryItem> =
        entries.map(|(name, id)| item(Ino::top_of(id), name.as_ref(), place(id))).collect();
    all.sort_unstable_by_key(|item| item.next_offset);
    let dots = [item(ino, ".", AFTER_DOT), item(parent, "..", AFTER_DOT_DOT)];
    for item in dots.into_iter().chain(all).filter(|item| item.next_offset > offset) {
        if visit(&item).is_break() {
            return;
        }
    }
}
