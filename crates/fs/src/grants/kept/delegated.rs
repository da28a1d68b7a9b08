//! Directories that are delegated to this node: it makes, changes and removes what is in them by itself, and reports that later.
//!
//! All that is kept of such a directory, its attributes and its names, may be used because nobody else is told of the directory before it
//! is taken back. What was made here may be used until it was reported; from then on as the owner has granted it. A directory that was
//! made in a delegated one is delegated as well: until the owner has said so, as long as the one above is.

use std::sync::atomic::Ordering;

use forebay_base::{Ino, Timestamp};
use forebay_cluster::Moment;
use forebay_cluster::grants::GrantNumber;

use super::{Kept, State};
use crate::attributes::Attributes;
use crate::grants::Item;
use crate::grants::names::{AllNames, NAMES_MAX};

impl Kept {
    /// Whether any directory was delegated to this node.
    pub fn has_delegations(&self) -> bool {
        self.has_delegations.load(Ordering::Relaxed)
    }

    /// Names of a directory were changed here; the first change since all were reported wakes who reports them.
    pub(super) fn changed_here(&self, directory: Ino, is_first: bool) {
        self.traffic.hit();
        self.lent.changing(std::iter::once(directory), &[]);
        self.lent.changed(std::iter::once(directory));
        if is_first {
            self.bell.ring();
        }
    }

    /// Nothing is changed here in a directory any more: what files inherit from it is to change.
    pub fn end_delegation(&self, ino: Ino) {
        if self.has_delegations() {
            let _ = self.state.lock().cache.forget([Item::Directory(ino)]);
        }
    }

    /// The present time, as files show it.
    pub fn time(&self) -> Timestamp {
        self.clock.now()
    }

    /// Directories are taken back, and what was changed there is reported. What else was used because of them is not used any more:
    /// returns it, as the kernel may have been lent it.
    pub fn return_directories(&self, items: &[Item]) -> Vec<Item> {
        let directories = items.iter().filter_map(Item::directory);
        let mut state = self.state.lock();
        let all: Vec<Item> = directories.flat_map(|directory| state.give_up(directory)).collect();
        state.drop_values(&all);
        let _ = state.cache.forget(all.clone());
        all
    }

    /// Changes in these directories are lost: nothing is kept of them.
    pub fn lose_directories(&self, directories: &[Ino]) {
        let items: Vec<Item> = directories.iter().map(|ino| Item::Directory(*ino)).collect();
        self.return_directories(&items);
        let _ = self.state.lock().cache.forget(items);
    }
}

impl State {
    /// Whether a directory is delegated to this node now.
    pub(super) fn is_delegated(&self, directory: Ino, now: Moment) -> bool {
        let mut at = directory;
        loop {
            let item = Item::Directory(at);
            if !self.cache.may_use(&item, now) {
                return false;
            }
            if self.cache.granted(&item) != Some(GrantNumber(0)) {
                return true;
            }
            // The owner does not know it yet.
            let Some(above) = self.inodes.get(&at).and_then(|kept| kept.made_in) else {
                return false;
            };
            at = above;
        }
    }

    /// The attributes of a directory that is delegated to this node, if it may change names there now.
    pub(super) fn delegated(&self, directory: Ino, now: Moment) -> Option<Attributes> {
        let own = Item::Attributes(directory);
        let may = self.is_delegated(directory, now);
        if !may || !self.cache.may_use(&own, now) || self.cache.is_changing(&own) {
            return None;
        }
        let kept = self.inodes.get(&directory)?;
        let has_room = kept.names.as_ref().is_none_or(|names| names.len() < NAMES_MAX);
        kept.attributes.filter(|found| found.nlink > 0 && has_room)
    }

    /// Attributes that may be used now, and that no request changes.
    pub(super) fn settled(&self, ino: Ino, now: Moment) -> Option<Attributes> {
        let item = Item::Attributes(ino);
        let may_use = self.cache.may_use(&item, now) && !self.cache.is_changing(&item);
        self.inodes.get(&ino)?.attributes.filter(|_| may_use)
    }

    /// A directory or a symlink was made, and only this node knows of it.
    pub(super) fn keep_new(&mut self, made: Attributes) {
        self.keep_attributes(made, None);
        self.keep(made.ino, 0, |kept| {
            kept.is_told = true;
            kept.told += 1;
        });
        self.keep_bare(made.ino);
    }

    /// A directory has one name more or less: `change` does that to all its names, if they are known, and to its attributes. Returns
    /// what it says.
    pub(super) fn change_directory(
        &mut self,
        ino: Ino,
        time: Timestamp,
        change: impl FnOnce(Option<&mut AllNames>, &mut Attributes) -> usize,
    ) -> usize {
        self.cache.change_here([Item::Attributes(ino)]);
        let Some(kept) = self.inodes.get_mut(&ino) else { return 0 };
        kept.listing = None;
        let Some(found) = &mut kept.attributes else { return 0 };
        found.modified = found.modified.max(time);
        found.changed = found.changed.max(time);
        change(kept.names.as_mut(), found)
    }

    /// A directory is not delegated any more: what was kept only because it was, as items.
    pub(super) fn give_up(&mut self, directory: Ino) -> Vec<Item> {
        let mut all = vec![Item::Attributes(directory)];
        let Some(names) = self.names.get(&directory) else { return all };
        for ino in names.values().flatten() {
            // Others may know it from now on.
            if let Some(kept) = self.inodes.get_mut(ino) {
                kept.made_in = None;
            }
        }
        all.extend(names.keys().map(|name| Item::Entry(directory, name.clone())));
        all
    }
}
