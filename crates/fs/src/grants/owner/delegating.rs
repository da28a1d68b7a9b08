//! Directories that are delegated to one client, which changes names there by itself (`kept/delegated.rs`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_base::{ClientId, Ino};
use forebay_cluster::grants::GrantNumber;
use forebay_cluster::grants::owner::Event;
use parking_lot::Mutex;

use super::{Granting, ReportsOf, Table};
use crate::grants::Item;

impl Granting {
    /// Delegates a directory that `client` has just made, if `is_its_alone` says afterwards that nobody else was told of it. Whoever is
    /// told of it later takes it back first ([`Granting::take_directory_back`]).
    pub fn delegate(
        self: &Arc<Self>,
        client: ClientId,
        ino: Ino,
        is_its_alone: impl FnOnce() -> bool,
    ) -> Option<GrantNumber> {
        let item = Item::Directory(ino);
        // Before the look at it: who comes in between finds it delegated.
        self.delegates.store(true, Ordering::SeqCst);
        let number = self.grant(client, &item)?;
        if is_its_alone() {
            return Some(number);
        }
        let mut table = self.table.lock();
        self.step(&mut table, Event::Returned(client, vec![(item, number)]));
        None
    }

    /// Whether a directory is delegated to another client than this one.
    pub fn is_delegated(&self, by: ClientId, ino: Ino) -> bool {
        self.delegates.load(Ordering::SeqCst)
            && self.table.lock().grants.others_have(by, &Item::Directory(ino))
    }

    /// To be held while changes are carried out that a client reports.
    pub fn reports_of(&self, client: ClientId) -> Arc<Mutex<ReportsOf>> {
        Arc::clone(self.reports.lock().entry(client).or_default())
    }

    /// Whether what a client was granted in this term may still count.
    pub fn is_of_term(&self, client: ClientId, term: u64) -> bool {
        let table = self.table.lock();
        table.clients.get(&client).is_some_and(|known| !known.is_leaving && known.term == term)
    }

    /// Takes a directory back from the client to which it is delegated, and waits until that has reported what it did there. No lock may
    /// be held. Whether any client had it.
    pub fn take_directory_back(self: &Arc<Self>, by: ClientId, ino: Ino) -> bool {
        if !self.is_delegated(by, ino) {
            return false;
        }
        let mut table = self.table.lock();
        let change = self.change(&mut table, by, vec![Item::Directory(ino)]);
        self.pass(&mut table, change);
        true
    }

    /// A directory is gone, and was delegated to `client`.
    pub fn forget_directory(self: &Arc<Self>, client: ClientId, ino: Ino) {
        let mut table = self.table.lock();
        let change = self.change(&mut table, client, vec![Item::Directory(ino)]);
        self.pass(&mut table, change);
    }

    /// Takes all directories back, from whoever they are delegated to.
    pub fn take_directories_back(self: &Arc<Self>) {
        if !self.delegates.load(Ordering::SeqCst) {
            return;
        }
        let mut table = self.table.lock();
        let all = table.grants.directories();
        let change = self.change(&mut table, super::NOBODY, all);
        self.pass(&mut table, change);
    }
}

impl Table {
    /// Directories among these items that are delegated to others than `by`, as items.
    pub(super) fn delegated(&self, by: ClientId, items: &[Item]) -> Vec<Item> {
        let directory = |item: &Item| match item {
            Item::Attributes(ino) => Some(Item::Directory(*ino)),
            Item::Entry(..) | Item::Directory(_) => None,
        };
        let directories = items.iter().filter_map(directory);
        directories.filter(|item| self.grants.others_have(by, item)).collect()
    }
}
