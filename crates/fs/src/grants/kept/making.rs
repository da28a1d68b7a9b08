//! What this node makes, removes and renames by itself in directories that are delegated to it.

use std::sync::Arc;

use forebay_base::{Ino, Timestamp};
use forebay_cluster::Moment;

use super::{Kept, State};
use crate::attributes::{Attributes, KeepName};
use crate::grants::inode::COST_OF_ONE;
use crate::grants::journal::NeverKnown;
use crate::grants::{Item, Looked};
use crate::inode::{MODE_BITS, SET_GID, SET_UID, TARGET_MAX};
use crate::object::{LiveObject, SeenObject};
use crate::ops::{Access, New, Reported};
use crate::partition::Caller;
use crate::record::Kind;
use crate::remote::changes::Change;
use crate::remote::wire::NewInode;

/// What is to be made here.
pub(crate) struct MakeHere<'a> {
    pub parent: Ino,
    pub name: &'a [u8],
    pub new: New<'a>,
    pub caller: Caller,
    /// Its number.
    pub ino: Ino,
    /// How a file is opened, and its object, as that was just made.
    pub opened: Option<(Access, &'a Arc<LiveObject>, SeenObject)>,
    pub time: Timestamp,
}

impl Kept {
    /// Whether something can be made here.
    pub fn may_make_here(&self, parent: Ino, name: &[u8]) -> bool {
        let now = self.now();
        self.state.lock().above_new((parent, name), now).is_some()
    }

    /// Makes something. `None` if the owner is to do that.
    pub fn make_here(&self, make: &MakeHere<'_>) -> Option<Attributes> {
        let mut state = self.state.lock();
        let now = self.now();
        let above = state.above_new((make.parent, make.name), now)?;
        let attributes = make.attributes(&above)?;
        state.add_made(make, attributes);
        let was_empty = state.journal.is_empty();
        let live = make.opened.map(|(_, live, _)| live);
        state.journal.made(make.ino, live, make.change());
        state.bound();
        drop(state);
        self.changed_here(make.parent, was_empty);
        Some(attributes)
    }

    /// Whether a file or a symlink can be removed here, if nobody has it open: its number.
    pub fn may_remove_here(&self, parent: Ino, name: &[u8]) -> Option<Ino> {
        let mut state = self.state.lock();
        let now = self.now();
        state.removable(parent, name, now)
    }

    /// Removes a file that `is_open` says nobody has open, or a symlink. `None` if the owner is to do that.
    pub fn remove_here(
        &self,
        parent: Ino,
        name: &[u8],
        is_open: impl Fn(Ino) -> bool,
    ) -> Option<Option<NeverKnown>> {
        let mut state = self.state.lock();
        let now = self.now();
        let ino = state.removable(parent, name, now)?;
        if is_open(ino) || state.journal.is_full() {
            return None;
        }
        let time = self.clock.now();
        state.drop_removed((parent, name), ino, time);
        let was_empty = state.journal.is_empty();
        let unlink = Change::Removed { parent, name: name.to_vec(), ino };
        let removed = state.journal.removed(ino, unlink);
        drop(state);
        self.changed_here(parent, was_empty);
        Some(removed)
    }

    /// Removes a directory that is delegated to this node as well, and empty. Whether it did.
    pub fn remove_directory_here(&self, parent: Ino, name: &[u8]) -> bool {
        let mut state = self.state.lock();
        let now = self.now();
        let Some(ino) = state.removable_directory(parent, name, now) else { return false };
        let time = self.clock.now();
        let mut below = vec![Item::Directory(ino)];
        let names = state.names.get(&ino).into_iter().flat_map(|names| names.keys());
        below.extend(names.map(|name| Item::Entry(ino, name.clone())));
        state.drop_values(&below);
        let _ = state.cache.forget(below);
        state.drop_removed((parent, name), ino, time);
        if let Some(above) = state.inodes.get_mut(&parent).and_then(|kept| kept.attributes.as_mut())
        {
            above.nlink = above.nlink.saturating_sub(1);
        }
        let was_empty = state.journal.is_empty();
        let remove = Change::DirectoryRemoved { parent, name: name.to_vec(), ino };
        let _ = state.journal.removed(ino, remove);
        drop(state);
        self.changed_here(parent, was_empty);
        true
    }

    /// What a file has to be told to be renamed here, in place of another one: both numbers. `None` if the owner is to do that.
    pub fn may_rename_here(&self, directory: Ino, old: &[u8], new: &[u8]) -> Option<Vec<Ino>> {
        let mut state = self.state.lock();
        let now = self.now();
        state.renamable(directory, (old, new), now)
    }

    /// Gives a file another name in its directory, in place of a file that `is_open` says nobody has open. Whether it did.
    pub fn rename_here(
        &self,
        directory: Ino,
        (old, new): (&[u8], &[u8]),
        is_open: impl Fn(Ino) -> bool,
    ) -> bool {
        let mut state = self.state.lock();
        let now = self.now();
        let Some(known) = state.renamable(directory, (old, new), now) else { return false };
        let (moved, replaced) = (known[0], known.get(1).copied());
        if replaced.is_some_and(is_open) || state.journal.is_full() {
            return false;
        }
        let time = self.clock.now();
        if let Some(replaced) = replaced {
            state.drop_removed((directory, new), replaced, time);
        }
        state.drop_name((directory, old), time);
        state.add_name((directory, new), moved, time);
        state.cache.change_here([Item::Attributes(moved)]);
        if let Some(found) = state.inodes.get_mut(&moved).and_then(|kept| kept.attributes.as_mut())
        {
            found.changed = found.changed.max(time);
        }
        let was_empty = state.journal.is_empty();
        let (old, new) = (old.to_vec(), new.to_vec());
        let rename = Change::Renamed { directory, old, new, known: known.clone(), time };
        state.journal.renamed(directory, &known, rename);
        drop(state);
        self.changed_here(directory, was_empty);
        true
    }

    /// The object of a file that the owner does not know of.
    pub fn object_of(&self, ino: Ino) -> Option<Arc<LiveObject>> {
        if self.has_delegations() { self.state.lock().journal.object_of(ino) } else { None }
    }

    /// A handle is closed. Whether the owner is told with the report of the file.
    pub fn close_here(&self, ino: Ino, close: Change) -> bool {
        self.has_delegations() && self.state.lock().journal.closed(ino, close)
    }
}

impl MakeHere<'_> {
    fn change(&self) -> Change {
        Change::Made {
            parent: self.parent,
            name: self.name.to_vec(),
            new: NewInode::of(self.new),
            caller: self.caller,
            reported: Reported { ino: self.ino, time: self.time },
            opened: self.opened.map(|(access, _, made)| (access, made)),
        }
    }

    /// As the owner makes it; `None` for a file that runs as its owner or group, which nobody may keep, and for what is made elsewhere.
    fn attributes(&self, above: &Attributes) -> Option<Attributes> {
        let New { kind, mode, umask, rdev, target } = self.new;
        let mode = mode & MODE_BITS & !(umask & 0o777);
        let inherits_group = above.mode & SET_GID != 0;
        let (mode, nlink) = match kind {
            Kind::File if mode & (SET_UID | SET_GID) == 0 && self.opened.is_some() => (mode, 1),
            Kind::Directory if inherits_group => (mode | SET_GID, 2),
            Kind::Directory => (mode, 2),
            Kind::Symlink if (1..=TARGET_MAX).contains(&target.len()) => (0o777, 1),
            _ => return None,
        };
        let allocated_bytes = self.opened.map_or(0, |(_, _, made)| made.attributes.allocated_bytes);
        Some(Attributes {
            ino: self.ino,
            kind,
            mode,
            nlink,
            uid: self.caller.uid,
            gid: if inherits_group { above.gid } else { self.caller.gid },
            rdev,
            size: if kind == Kind::Symlink { target.len() as u64 } else { 0 },
            allocated_bytes,
            accessed: self.time,
            modified: self.time,
            changed: self.time,
            created: self.time,
            cacheable: true,
            name: KeepName::Never,
        })
    }
}

impl State {
    /// The attributes of a directory in which this node may make something of this name now.
    fn above_new(&mut self, (parent, name): (Ino, &[u8]), now: Moment) -> Option<Attributes> {
        let above = self.delegated(parent, now)?;
        let is_absent = self.lacks(parent, name) == Looked::Kept(());
        (is_absent && !self.journal.is_full()).then_some(above)
    }

    /// The inode that a name of a delegated directory leads to, with its attributes.
    fn named(&mut self, (parent, name): (Ino, &[u8]), now: Moment) -> Option<Attributes> {
        self.delegated(parent, now)?;
        let ino = self.names.get(&parent)?.get(name).copied().flatten()?;
        self.settled(ino, now)
    }

    fn removable(&mut self, parent: Ino, name: &[u8], now: Moment) -> Option<Ino> {
        let found = self.named((parent, name), now)?;
        let is_plain = matches!(found.kind, Kind::File | Kind::Symlink) && found.nlink == 1;
        is_plain.then_some(found.ino)
    }

    fn removable_directory(&mut self, parent: Ino, name: &[u8], now: Moment) -> Option<Ino> {
        let found = self.named((parent, name), now)?;
        let is_empty = found.kind == Kind::Directory && found.size == 0;
        let may = is_empty && self.delegated(found.ino, now).is_some() && !self.journal.is_full();
        may.then_some(found.ino)
    }

    fn renamable(
        &mut self,
        directory: Ino,
        (old, new): (&[u8], &[u8]),
        now: Moment,
    ) -> Option<Vec<Ino>> {
        let moved = self.removable(directory, old, now)?;
        if self.lacks(directory, new) == Looked::Kept(()) {
            return Some(vec![moved]);
        }
        let replaced = self.removable(directory, new, now)?;
        (replaced != moved).then(|| vec![moved, replaced])
    }

    fn add_made(&mut self, make: &MakeHere<'_>, attributes: Attributes) {
        let (parent, ino, kind) = (make.parent, make.ino, make.new.kind);
        self.cache.change_here([Item::Attributes(ino)]);
        self.add_name((parent, make.name), ino, make.time);
        match make.opened {
            Some((_, _, made)) => {
                self.keep_attributes(attributes, Some(made.at));
                self.keep_own(ino, made.attributes);
                self.keep_bare(ino);
            }
            None => self.keep_new(attributes),
        }
        if kind == Kind::Directory {
            self.cache.change_here([Item::Directory(ino)]);
            if let Some(above) = self.inodes.get_mut(&parent).and_then(|it| it.attributes.as_mut())
            {
                above.nlink += 1;
            }
        }
        let link = (kind == Kind::Symlink).then(|| make.new.target.to_vec());
        self.keep(ino, make.new.target.len(), |kept| {
            kept.made_in = Some(parent);
            kept.link = link;
        });
    }

    /// A name leads to an inode from now on, and led nowhere before.
    fn add_name(&mut self, (parent, name): (Ino, &[u8]), ino: Ino, time: Timestamp) {
        let entry = Item::Entry(parent, name.into());
        self.cache.change_here([entry.clone()]);
        self.learn_name(&[entry], (parent, name.to_vec()), Some(ino));
        let cost = self.change_directory(parent, time, |names, above| {
            above.size += 1;
            names.map_or(0, |names| names.insert(name))
        });
        self.keep(parent, cost, |_| {});
    }

    /// A name leads nowhere from now on.
    fn drop_name(&mut self, (parent, name): (Ino, &[u8]), time: Timestamp) {
        let entry = [Item::Entry(parent, name.into())];
        self.drop_values(&entry);
        self.cache.change_here(entry.clone());
        let _ = self.cache.forget(entry);
        let cost = self.change_directory(parent, time, |names, above| {
            above.size = above.size.saturating_sub(1);
            names.map_or(0, |names| names.remove(name))
        });
        if let Some(above) = self.inodes.get_mut(&parent) {
            above.cost = above.cost.saturating_sub(cost);
        }
        self.cost = self.cost.saturating_sub(cost);
    }

    /// A name leads nowhere from now on, and the inode that it led to has no other.
    fn drop_removed(&mut self, place: (Ino, &[u8]), ino: Ino, time: Timestamp) {
        let item = [Item::Attributes(ino)];
        self.drop_values(&item);
        self.cache.change_here(item.clone());
        let _ = self.cache.forget(item);
        self.drop_name(place, time);
    }

    /// Extended attributes that a new inode does not have, and for which the kernel asks.
    pub(super) fn keep_bare(&mut self, ino: Ino) {
        let absent = [crate::acl::ACCESS, crate::acl::DEFAULT];
        self.keep(ino, absent.len() * COST_OF_ONE, |kept| {
            let values = absent.iter().map(|name| (name.to_vec(), None));
            kept.xattrs.values.extend(values);
        });
    }
}
