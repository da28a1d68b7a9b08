//! What is kept of one inode.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_base::Ino;
use forebay_disk::ObjectAttributes;

use super::names::AllNames;
use crate::attributes::Attributes;
use crate::ops::DirectoryItem;
use crate::record::ObjectRef;
use crate::remote::NearFiles;

/// Extended attributes, access control lists among them.
#[derive(Debug, Default)]
pub(super) struct Xattrs {
    /// `None` for one that the inode does not have.
    pub values: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    pub names: Option<Vec<u8>>,
}

impl Xattrs {
    /// Memory that they take, in bytes.
    pub fn cost(&self) -> usize {
        let of =
            |(name, value): (&Vec<u8>, &Option<Vec<u8>>)| cost_of_xattr(name, value.as_deref());
        self.values.iter().map(of).sum::<usize>() + self.names.as_ref().map_or(0, Vec::len)
    }
}

/// Memory that an extended attribute takes, in bytes.
pub(super) fn cost_of_xattr(name: &[u8], value: Option<&[u8]>) -> usize {
    COST_OF_ONE + name.len() + value.map_or(0, <[u8]>::len)
}

/// What a change of a name by this node leaves as it is in the directory, if nobody else changes that meanwhile.
#[derive(Debug, Default)]
pub(super) struct Unchanged {
    pub names: Option<AllNames>,
    pub xattrs: Xattrs,
}

/// What an inode or a name costs beside its bytes.
pub(super) const COST_OF_ONE: usize = 300;

/// What is kept of an inode.
#[derive(Default)]
pub(super) struct KeptInode {
    pub attributes: Option<Attributes>,
    /// Where its object lies, if this node may go there itself.
    pub home: Option<ObjectRef>,
    /// This node alone writes it, on a disk of its own: how the object was when the attributes were told. Size and times are
    /// those of the object.
    pub own: Option<ObjectAttributes>,
    pub xattrs: Xattrs,
    pub link: Option<Vec<u8>>,
    pub listing: Option<Arc<Vec<DirectoryItem>>>,
    pub names: Option<AllNames>,
    /// This node has made it in this directory, which was delegated to it: nobody else knows of it as long as that is so.
    pub made_in: Option<Ino>,
    /// The kernel knows the inode: it was told of it, with these attributes or earlier ones.
    pub is_told: bool,
    /// How often the owner has told this node of the inode since it is kept.
    pub told: u64,
    /// The whole content of a small file. Whoever changes it recalls the grant of the attributes first.
    pub bytes: Option<Arc<[u8]>>,
    /// Which one this is of those that were kept of the inode.
    pub stamp: u64,
    pub cost: usize,
}

impl KeptInode {
    /// The attributes as they are now.
    pub fn shown(&self, ino: Ino, near: &NearFiles) -> Option<Attributes> {
        let attributes = self.attributes?;
        let Some(before) = self.own else { return Some(attributes) };
        Some(as_written(attributes, before, near.look_open(ino)?.attributes))
    }
}

/// Attributes of a file whose object has become another one, as its owner shows them.
pub(super) fn as_written(
    attributes: Attributes,
    before: ObjectAttributes,
    now: ObjectAttributes,
) -> Attributes {
    let (size, allocated_bytes) = (now.size, now.allocated_bytes);
    let mut shown = Attributes { size, allocated_bytes, ..attributes };
    if now.modified != before.modified || now.size != before.size {
        shown.modified = now.modified;
        shown.changed = shown.changed.max(now.modified);
    }
    shown
}
