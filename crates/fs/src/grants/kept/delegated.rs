//! Directories that are delegated to this node: it makes and removes files there by itself, and reports that later.
//!
//! All that is kept of such a directory, its attributes and its names, may be used because nobody else is told of the directory before it
//! is taken back. A file that was made here may be used until it was reported; from then on as the owner has granted it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_base::{Ino, Timestamp};
use forebay_cluster::Moment;
use forebay_cluster::grants::client::Ticket;
use forebay_cluster::grants::reports::Part;

use super::{Kept, State};
use crate::attributes::{Attributes, KeepName};
use crate::grants::journal::NeverKnown;
use crate::grants::names::{AllNames, NAMES_MAX};
use crate::grants::{Item, Looked};
use crate::inode::{MODE_BITS, SET_GID, SET_UID};
use crate::object::{LiveObject, SeenObject};
use crate::ops::{Access, New, Reported};
use crate::partition::Caller;
use crate::record::Kind;
use crate::remote::changes::{Change, ChangeAnswer};
use crate::remote::wire::NewInode;

/// A file that is to be made here.
pub(crate) struct MakeHere<'a> {
    pub parent: Ino,
    pub name: &'a [u8],
    pub new: New<'a>,
    pub caller: Caller,
    pub access: Access,
    /// Its number, and its object, as that was just made.
    pub ino: Ino,
    pub live: &'a Arc<LiveObject>,
    pub made: SeenObject,
    pub time: Timestamp,
}

/// A report to the owner.
pub(crate) struct Report {
    /// Objects that must have their names before the owner hears of them.
    pub objects: Vec<Arc<LiveObject>>,
    /// Objects of files that are empty: nobody needs them.
    pub unused: Vec<Arc<LiveObject>>,
    ticket: Ticket,
    /// The term in which the directories were delegated.
    pub term: u64,
    part: Part<Change>,
}

impl Report {
    pub fn changes(&self) -> Vec<(u64, Change)> {
        self.part.changes.iter().map(|(place, change)| (place.0, change.clone())).collect()
    }
}

/// What the owner has not carried out.
pub(crate) struct Lost {
    pub directory: Option<Ino>,
    pub why: String,
}

impl Kept {
    /// Whether any directory was delegated to this node.
    pub fn has_delegations(&self) -> bool {
        self.has_delegations.load(Ordering::Relaxed)
    }

    /// Whether a file can be made here.
    pub fn may_make_here(&self, parent: Ino, name: &[u8]) -> bool {
        let now = self.now();
        self.state.lock().above_new((parent, name), now).is_some()
    }

    /// Makes a file. `None` if the owner is to do that.
    pub fn make_here(&self, make: &MakeHere<'_>) -> Option<Attributes> {
        let mut state = self.state.lock();
        let now = self.now();
        let above = state.above_new((make.parent, make.name), now)?;
        let attributes = make.attributes(&above)?;
        state.add_made(make, attributes);
        let was_empty = state.journal.is_empty();
        state.journal.made(make.ino, make.live, make.change());
        state.bound();
        drop(state);
        self.changed_here(make.parent, was_empty);
        Some(attributes)
    }

    /// Whether a file can be removed here, if nobody has it open: its number.
    pub fn may_remove_here(&self, parent: Ino, name: &[u8]) -> Option<Ino> {
        let mut state = self.state.lock();
        let now = self.now();
        state.removable(parent, name, now)
    }

    /// Removes a file that `is_open` says nobody has open. `None` if the owner is to do that.
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
        let items = [Item::Entry(parent, name.into()), Item::Attributes(ino)];
        state.drop_values(&items);
        state.cache.change_here(items.clone());
        let _ = state.cache.forget(items);
        let cost = state.change_directory(parent, time, |names, size| {
            *size = size.saturating_sub(1);
            names.map_or(0, |names| names.remove(name))
        });
        if let Some(above) = state.inodes.get_mut(&parent) {
            above.cost = above.cost.saturating_sub(cost);
        }
        state.cost = state.cost.saturating_sub(cost);
        let was_empty = state.journal.is_empty();
        let unlink = Change::Removed { parent, name: name.to_vec(), ino };
        let removed = state.journal.removed(ino, unlink);
        drop(state);
        self.changed_here(parent, was_empty);
        Some(removed)
    }

    /// The object of a file that the owner does not know of.
    pub fn object_of(&self, ino: Ino) -> Option<Arc<LiveObject>> {
        if self.has_delegations() { self.state.lock().journal.object_of(ino) } else { None }
    }

    /// A handle is closed. Whether the owner is told with the report of the file.
    pub fn close_here(&self, ino: Ino, close: Change) -> bool {
        self.has_delegations() && self.state.lock().journal.closed(ino, close)
    }

    /// Names of a directory were changed here; the first change since all were reported wakes who reports them.
    fn changed_here(&self, directory: Ino, is_first: bool) {
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

    // --- reporting ---

    /// Whether there is something that the owner may not know, or that is lost and of which nobody was told.
    pub fn has_journal(&self) -> bool {
        let is_open = |state: &State| !state.journal.is_settled() || !state.lost.is_empty();
        self.has_delegations() && is_open(&self.state.lock())
    }

    /// What is to be reported next. `is_open` says whether somebody here has a file open.
    pub fn take_report(&self, is_open: impl Fn(Ino) -> bool) -> Option<Report> {
        let mut state = self.state.lock();
        // Nobody opens a file by what is kept of it as long as the lock is held.
        let (part, emptied) = state.journal.take(is_open);
        if part.changes.is_empty() {
            return None;
        }
        for ino in &emptied {
            state.keep(*ino, 0, |kept| kept.home = None);
        }
        let ticket = state.cache.begin();
        let object = |ino: Ino| state.journal.object_of(ino);
        let unused = emptied.into_iter().filter_map(object).collect();
        let opened = |change: &Change| matches!(change, Change::Made { opened: Some(_), .. });
        let made = part.changes.iter().filter(|(_, change)| opened(change));
        let objects = made.filter_map(|(_, change)| change.made().and_then(object)).collect();
        Some(Report { objects, unused, ticket, term: state.term, part })
    }

    /// A report has no answer: it is repeated, unless what was delegated is void by now.
    pub fn not_reported(&self, report: Report) {
        let mut state = self.state.lock();
        state.cache.failed(report.ticket);
        let lost = state.journal.put_back(report.part);
        state.lost.extend(lost);
    }

    /// A report was answered. Returns what is lost.
    pub fn reported(&self, report: &Report, answers: &[ChangeAnswer]) -> Vec<Lost> {
        let mut state = self.state.lock();
        state.journal.reported(&report.part);
        let mut lost = Vec::new();
        let mut files = Vec::new();
        for ((_, change), answer) in report.part.changes.iter().zip(answers) {
            let ChangeAnswer { granted, directory, .. } = answer;
            let numbers = [granted.entry, granted.attributes, *directory];
            state.heard.hear(numbers.into_iter().flatten());
            let is_of_term = granted.term == report.term && state.term == report.term;
            let why = change.lost(answer);
            if let Some(ino) = change.made() {
                let may_use = is_of_term && why.is_none();
                files.push((Item::Attributes(ino), granted.attributes.filter(|_| may_use)));
            }
            lost.extend(why.map(|why| Lost { directory: change.directory(), why }));
        }
        let gone = state.cache.reported(report.ticket, files);
        state.drop_values(&gone);
        lost
    }

    /// Directories are taken back, and what was changed there is reported. What else was used because of them is not used any more:
    /// returns it, as the kernel may have been lent it.
    pub fn return_directories(&self, items: &[Item]) -> Vec<Item> {
        let directories = items.iter().filter_map(|item| match item {
            Item::Directory(ino) => Some(*ino),
            Item::Attributes(_) | Item::Entry(..) => None,
        });
        let mut state = self.state.lock();
        let mut all = Vec::new();
        for directory in directories {
            all.push(Item::Attributes(directory));
            let names = state.names.get(&directory);
            let names = names.into_iter().flat_map(|names| names.keys());
            all.extend(names.map(|name| Item::Entry(directory, name.clone())));
        }
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

    /// Directories in which names are lost, of which nobody was told.
    pub fn take_lost(&self) -> Vec<Ino> {
        if !self.has_delegations() {
            return Vec::new();
        }
        std::mem::take(&mut self.state.lock().lost)
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
            opened: Some((self.access, self.made)),
        }
    }

    /// As the owner makes it; `None` for what runs as its owner or group, which nobody may keep.
    fn attributes(&self, above: &Attributes) -> Option<Attributes> {
        let New { kind, mode, umask, rdev, .. } = self.new;
        let mode = mode & MODE_BITS & !(umask & 0o777);
        if kind != Kind::File || mode & (SET_UID | SET_GID) != 0 {
            return None;
        }
        let gid = if above.mode & SET_GID != 0 { above.gid } else { self.caller.gid };
        Some(Attributes {
            ino: self.ino,
            kind,
            mode,
            nlink: 1,
            uid: self.caller.uid,
            gid,
            rdev,
            size: 0,
            allocated_bytes: self.made.attributes.allocated_bytes,
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
    /// The attributes of a directory that is delegated to this node, if it may change names there now.
    fn delegated(&self, directory: Ino, now: Moment) -> Option<Attributes> {
        let own = Item::Attributes(directory);
        let may = self.cache.may_use(&Item::Directory(directory), now);
        if !may || !self.cache.may_use(&own, now) || self.cache.is_changing(&own) {
            return None;
        }
        let kept = self.inodes.get(&directory)?;
        let has_room = kept.names.as_ref().is_none_or(|names| names.len() < NAMES_MAX);
        kept.attributes.filter(|found| found.nlink > 0 && has_room)
    }

    /// The attributes of a directory in which this node may make a file of this name now.
    fn above_new(&mut self, (parent, name): (Ino, &[u8]), now: Moment) -> Option<Attributes> {
        let above = self.delegated(parent, now)?;
        let is_absent = self.lacks(parent, name) == Looked::Kept(());
        (is_absent && !self.journal.is_full()).then_some(above)
    }

    fn removable(&mut self, parent: Ino, name: &[u8], now: Moment) -> Option<Ino> {
        self.delegated(parent, now)?;
        let ino = self.names.get(&parent)?.get(name).copied().flatten()?;
        let item = Item::Attributes(ino);
        let found = self.inodes.get(&ino)?.attributes?;
        let is_plain = found.kind == Kind::File && found.nlink == 1;
        let may_use = self.cache.may_use(&item, now) && !self.cache.is_changing(&item);
        (is_plain && may_use).then_some(ino)
    }

    /// A directory that was made was delegated with the answer.
    pub(super) fn keep_delegated(&mut self, made: Attributes) {
        self.keep_attributes(made, None);
        self.keep(made.ino, 0, |kept| {
            kept.is_told = true;
            kept.told += 1;
        });
    }

    fn add_made(&mut self, make: &MakeHere<'_>, attributes: Attributes) {
        let (parent, ino) = (make.parent, make.ino);
        let entry = Item::Entry(parent, make.name.into());
        self.cache.change_here([entry.clone(), Item::Attributes(ino)]);
        self.learn_name(&[entry], (parent, make.name.to_vec()), Some(ino));
        let cost = self.change_directory(parent, make.time, |names, size| {
            *size += 1;
            names.map_or(0, |names| names.insert(make.name))
        });
        self.keep(parent, cost, |_| {});
        self.keep_attributes(attributes, Some(make.made.at));
        self.keep_own(ino, make.made.attributes);
    }

    /// A directory has one name more or less: `change` does that to all its names, if they are known, and to their number. Returns
    /// what it says.
    fn change_directory(
        &mut self,
        ino: Ino,
        time: Timestamp,
        change: impl FnOnce(Option<&mut AllNames>, &mut u64) -> usize,
    ) -> usize {
        self.cache.change_here([Item::Attributes(ino)]);
        let Some(kept) = self.inodes.get_mut(&ino) else { return 0 };
        kept.listing = None;
        let Some(found) = &mut kept.attributes else { return 0 };
        found.modified = found.modified.max(time);
        found.changed = found.changed.max(time);
        change(kept.names.as_mut(), &mut found.size)
    }
}
