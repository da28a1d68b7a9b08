//! What the answers of an owner say that a client may keep.

use std::sync::Arc;

use forebay_base::Ino;
use forebay_cluster::grants::GrantNumber;
use forebay_disk::ObjectAttributes;

use super::Item;
use super::names::NameChange;
use crate::attributes::Attributes;
use crate::ops::DirectoryItem;

/// What an answer says.
pub(crate) enum Learned {
    /// What a name leads to, with the attributes if it is of this fileset.
    Name(Ino, Vec<u8>, Option<(Ino, Option<Attributes>)>),
    Attributes(Attributes),
    /// What became of a change of names, and how the directory is. If it `continues`, nobody else has changed a name of it.
    Change {
        change: NameChange,
        directory: Option<(GrantNumber, Attributes)>,
        continues: bool,
        /// A file that was made, and how its object was that this node has made.
        file: Option<(Attributes, ObjectAttributes)>,
        /// A directory that was made.
        made: Option<Box<Attributes>>,
    },
    Xattr(Ino, Vec<u8>, Option<Vec<u8>>),
    XattrNames(Ino, Vec<u8>),
    Link(Ino, Vec<u8>),
    Listing(Ino, Arc<Vec<DirectoryItem>>),
}

impl Learned {
    /// The grant of the directory in which a name was changed.
    pub(super) fn directory(&self) -> Option<(Item, GrantNumber)> {
        match self {
            Learned::Change { directory, .. } => {
                directory.map(|(number, found)| (Item::Attributes(found.ino), number))
            }
            Learned::Name(..)
            | Learned::Attributes(_)
            | Learned::Xattr(..)
            | Learned::XattrNames(..)
            | Learned::Link(..)
            | Learned::Listing(..) => None,
        }
    }

    /// The directory that may have been delegated.
    pub(super) fn delegated(&self) -> Option<Item> {
        match self {
            Learned::Change { made, .. } => made.as_ref().map(|made| Item::Directory(made.ino)),
            Learned::Name(..)
            | Learned::Attributes(_)
            | Learned::Xattr(..)
            | Learned::XattrNames(..)
            | Learned::Link(..)
            | Learned::Listing(..) => None,
        }
    }

    pub(super) fn grants_directory(&self) -> bool {
        self.directory().is_some()
    }

    /// The name and the inode that it is about.
    pub(super) fn items(&self) -> (Option<Item>, Option<Item>) {
        match self {
            Learned::Name(parent, name, target) => {
                let entry = Item::Entry(*parent, name.as_slice().into());
                let known = target.filter(|(_, attributes)| attributes.is_some());
                (Some(entry), known.map(|(ino, _)| Item::Attributes(ino)))
            }
            Learned::Attributes(attributes) => (None, Some(Item::Attributes(attributes.ino))),
            Learned::Change { change, file, made, .. } => {
                let entry = match change {
                    NameChange::Made(parent, name, _) => {
                        Some(Item::Entry(*parent, name.as_slice().into()))
                    }
                    NameChange::Removed(..) | NameChange::Moved { .. } => None,
                };
                let inode = file.map(|(file, _)| file.ino).or(made.as_ref().map(|made| made.ino));
                (entry, inode.map(Item::Attributes))
            }
            Learned::Xattr(ino, ..)
            | Learned::XattrNames(ino, _)
            | Learned::Link(ino, _)
            | Learned::Listing(ino, _) => (None, Some(Item::Attributes(*ino))),
        }
    }
}
