//! Native filesets: plain directories of a local disk.
//!
//! A native fileset has no names in memory, no store and no objects: it is a directory tree on one of the file
//! system's disks, with all that the disk's own file system does and promises. Root's mount binds it at its place in
//! the namespace, so that programs use it with nothing of ours in between. Where it is not bound, [`NativeTree`]
//! serves the same tree:
//!
//! - Nothing leads out of it: every step goes from a descriptor of a directory to one name in it, never over a link,
//!   a mount or `..`. What the kernel was told of stays reachable where it is moved, as with any open file.
//! - Nothing is kept of names and attributes, and the kernel may keep neither: other programs change the tree
//!   natively.
//! - The kernel checks who may do what; what is made belongs to the caller from its first moment (`caller`).
//! - A crash leaves what the disk's file system leaves.
//!
//! In a cluster a native fileset has a directory for each node (`nodes`): those are native filesets, too.
//!
//! Reading order: `place` (where it lies on its disk), `system` (single steps), `known` (numbers), `tree`, then
//! the operations. Locks on files taken here and natively do not know of each other.

mod attributes;
mod caller;
mod files;
mod filesets;
mod known;
mod names;
mod nodes;
mod opens;
mod place;
mod system;
mod tree;

pub use filesets::{NativeFileset, NativeOwner, NewFileset};
pub(crate) use known::FIRST_SPARE;
pub(crate) use nodes::Listing;
pub use nodes::NodeDirectories;
pub use place::{FOLDER, MARK, Mark, NativePlace, TREE};
pub use tree::NativeTree;

/// Kinds of local file systems (`Description::kind` of their disks) that a native fileset can lie on: each has owners,
/// modes, links and stable offsets of directories, and belongs to this machine alone.
const LOCAL: [&str; 9] =
    ["xfs", "ext4", "btrfs", "f2fs", "zfs", "bcachefs", "tmpfs", "ramfs", "overlayfs"];

/// Whether a native fileset can lie on a disk of this kind.
#[must_use]
pub fn suits(kind: &str) -> bool {
    LOCAL.contains(&kind)
}
