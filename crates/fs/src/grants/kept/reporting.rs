//! What this node has done by itself, as it is reported, and what is lost of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_base::Ino;
use forebay_cluster::grants::GrantNumber;
use forebay_cluster::grants::client::Ticket;
use forebay_cluster::grants::reports::Part;

use super::{Kept, State};
use crate::grants::Item;
use crate::object::LiveObject;
use crate::remote::changes::{Change, ChangeAnswer, LossOf};

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
    /// Names, or attributes; nothing for a close.
    pub of: Option<LossOf>,
    /// What it is about.
    pub what: String,
    pub why: String,
}

impl Kept {
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
            if let Some(kept) = state.inodes.get_mut(ino) {
                kept.home = None;
            }
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
        state.note_lost(&lost);
    }

    /// A report was answered. Returns what is lost.
    pub fn reported(&self, report: &Report, answers: &[ChangeAnswer]) -> Vec<Lost> {
        let mut state = self.state.lock();
        state.journal.reported(&report.part);
        let mut lost = Vec::new();
        let mut items: BTreeMap<Item, Option<GrantNumber>> = BTreeMap::new();
        for ((_, change), answer) in report.part.changes.iter().zip(answers) {
            let ChangeAnswer { granted, directory, .. } = answer;
            let numbers = [granted.entry, granted.attributes, granted.directory, *directory];
            state.heard.hear(numbers.into_iter().flatten());
            let is_of_term = granted.term == report.term && state.term == report.term;
            let why = change.lost(answer);
            let may_use = is_of_term && why.is_none();
            let attributes = granted.attributes.filter(|_| may_use);
            // Each change has ended what was granted before it, but for a close.
            if attributes.is_some() || !matches!(change, Change::Closed { .. }) {
                items.insert(Item::Attributes(change.inode()), attributes);
            }
            if let Some(ino) = change.made_directory() {
                items.insert(Item::Directory(ino), granted.directory.filter(|_| may_use));
            }
            let what = || state.label(change.target());
            lost.extend(why.map(|why| Lost { of: change.loss(), what: what(), why }));
        }
        // What was changed once more is used until that is reported.
        let waiting = state.journal.waiting();
        let is_settled = |item: &Item| match item {
            Item::Attributes(ino) => !waiting.contains(ino),
            Item::Directory(_) | Item::Entry(..) => true,
        };
        let items = items.into_iter().filter(|(item, _)| is_settled(item));
        let mut gone = state.cache.reported(report.ticket, items);
        let directories: Vec<Ino> = gone.iter().filter_map(Item::directory).collect();
        for directory in directories {
            // The owner has made it, and not delegated it.
            let more = state.give_up(directory);
            let _ = state.cache.forget(more.clone());
            gone.extend(more);
        }
        state.drop_values(&gone);
        lost
    }

    /// What is lost, of which nobody was told, by what the directories and files are called.
    pub fn take_lost(&self) -> BTreeMap<LossOf, String> {
        if !self.has_delegations() {
            return BTreeMap::new();
        }
        std::mem::take(&mut self.state.lock().lost)
    }
}

impl State {
    /// These are lost.
    pub(super) fn note_lost(&mut self, losses: &[LossOf]) {
        for of in losses {
            let (LossOf::Names(ino) | LossOf::Attributes(ino)) = of;
            let label = self.label(*ino);
            self.lost.entry(*of).or_insert(label);
        }
    }

    /// What an inode is called in the log: its name, if it is known, and its number.
    fn label(&self, ino: Ino) -> String {
        let mut names = self.names.values().flatten();
        match names.find(|(_, to)| **to == Some(ino)) {
            Some((name, _)) => format!("\"{}\" (inode {ino})", name.escape_ascii()),
            None => format!("inode {ino}"),
        }
    }
}
