//! Requests under way whose answers may be kept, and changes of this node's own.

use std::sync::atomic::Ordering;

use forebay_base::Ino;
use forebay_cluster::grants::client::Ticket;

use super::{Kept, State};
use crate::grants::heard::UnderWay;
use crate::grants::inode::Unchanged;
use crate::grants::{Granted, Item, Learned, Touched};

impl Kept {
    /// A request is sent whose answer may be kept.
    pub fn begin(&self) -> Asking<'_> {
        Asking { kept: self, ticket: self.state.lock().cache.begin() }
    }

    /// A change by this node is sent: what it touches is not used any more.
    pub fn changing(&self, touched: &Touched<'_>) -> OwnChange<'_> {
        let items = touched.items();
        let mut state = self.state.lock();
        // They may have been recalled, and nobody may vouch for them: then none come back with the answer.
        let is_granted = |item: &&Item| state.cache.holds(item);
        let granted: Vec<Item> = items.iter().filter(is_granted).cloned().collect();
        let before = state.take_unchanged(&granted);
        let ticket = state.cache.changing(&items);
        let under_way = state.heard.begin();
        state.drop_values(&items);
        drop(state);
        self.lent.changing(directories_of(&items), &touched.inodes);
        OwnChange { kept: self, items, ticket: Some(ticket), under_way, before }
    }
}

/// A request under way whose answer may be kept.
pub(crate) struct Asking<'a> {
    kept: &'a Kept,
    ticket: Ticket,
}

impl Asking<'_> {
    /// It has an answer, with these grants of what it is about.
    pub fn answered(self, granted: Granted, learned: Learned) {
        if !granted.any() {
            return;
        }
        let mut state = self.kept.state.lock();
        let Some(grants) = state.granted(granted, &learned) else { return };
        let used = state.cache.answered(self.ticket, grants);
        if !used.is_empty() {
            state.learn(&used, learned, granted.home);
        }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        // Nothing happens if it was answered.
        self.kept.state.lock().cache.failed(self.ticket);
    }
}

/// A change of this node's own that is under way.
pub(crate) struct OwnChange<'a> {
    kept: &'a Kept,
    items: Vec<Item>,
    /// `None` once it has an answer.
    ticket: Option<Ticket>,
    under_way: UnderWay,
    /// What is known of the directories, as they were before.
    before: Vec<(Ino, Unchanged)>,
}

impl OwnChange<'_> {
    /// It has an answer, with these grants of what it is about.
    pub fn answered(mut self, granted: Granted, learned: Learned) {
        let Some(ticket) = self.ticket.take() else { return };
        let mut state = self.kept.state.lock();
        let grants = if granted.any() || learned.grants_directory() {
            state.granted(granted, &learned)
        } else {
            None
        };
        let used = state.cache.changed(ticket, &self.items, grants.unwrap_or_default());
        if !used.is_empty() {
            state.put_back(std::mem::take(&mut self.before), &learned, &used);
            if used.iter().any(|item| matches!(item, Item::Directory(_))) {
                self.kept.has_delegations.store(true, Ordering::Relaxed);
            }
            state.learn(&used, learned, granted.home);
        }
    }
}

impl Drop for OwnChange<'_> {
    fn drop(&mut self) {
        let mut state = self.kept.state.lock();
        if let Some(ticket) = self.ticket {
            let _ = state.cache.changed(ticket, &self.items, Vec::new());
        }
        state.heard.end(self.under_way);
        drop(state);
        self.kept.lent.changed(directories_of(&self.items));
    }
}

/// The directories of names, one for each name.
fn directories_of(items: &[Item]) -> impl Iterator<Item = Ino> {
    items.iter().filter_map(|item| match item {
        Item::Entry(parent, _) => Some(*parent),
        Item::Attributes(_) | Item::Directory(_) => None,
    })
}

impl State {
    /// Takes what a change of names may leave as it is.
    fn take_unchanged(&mut self, items: &[Item]) -> Vec<(Ino, Unchanged)> {
        let mut taken = Vec::new();
        for item in items {
            let Item::Attributes(ino) = item else { continue };
            // What is listed is as good as all names.
            let _ = self.lacks(*ino, b"");
            let Some(kept) = self.inodes.get_mut(ino) else { continue };
            let (names, xattrs) = (kept.names.take(), std::mem::take(&mut kept.xattrs));
            taken.push((*ino, Unchanged { names, xattrs }));
        }
        taken
    }

    /// Puts it back as it is after the change.
    fn put_back(&mut self, taken: Vec<(Ino, Unchanged)>, learned: &Learned, used: &[Item]) {
        let Learned::Change { change, continues: true, directory, .. } = learned else { return };
        for (ino, Unchanged { names, xattrs }) in taken {
            let is_it = directory.is_some_and(|(_, found)| found.ino == ino);
            if !is_it || !used.contains(&Item::Attributes(ino)) {
                continue;
            }
            self.keep(ino, xattrs.cost(), |kept| kept.xattrs = xattrs);
            if let Some(all) = names.and_then(|all| all.after(change, ino)) {
                self.keep(ino, all.cost(), |kept| kept.names = Some(all));
            }
        }
    }
}
