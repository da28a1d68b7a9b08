//! What a client has done by itself in directories that are delegated to it, until the owner knows; and what of it the owner has
//! carried out.
//!
//! - **In order, and once.** Each change has a number that grows for as long as the client lives, whatever journal it is of. A report that
//!   has no answer is repeated, and the owner carries out only what comes after the last number that it has carried out.
//! - **Void together.** What was granted may be void, by an eviction or a new epoch, while a report is under way: nothing that was not
//!   reported by then is reported again, and whoever relied on it is told.

use std::collections::BTreeMap;

use crate::fault::{self, Fault};

/// A place in the order of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(pub u64);

/// Changes of one report, until it is answered.
#[derive(Debug)]
pub struct Part<C> {
    life: u64,
    /// In order.
    pub changes: Vec<(Place, C)>,
}

/// Changes that the owner does not know of.
#[derive(Debug)]
pub struct Journal<C> {
    next: u64,
    waiting: BTreeMap<Place, C>,
    /// Changes of the report that is under way.
    under_way: usize,
    /// A report has no answer yet.
    is_reporting: bool,
    /// Grows when everything is lost.
    life: u64,
}

impl<C> Default for Journal<C> {
    fn default() -> Journal<C> {
        Journal::from(0)
    }
}

impl<C> Journal<C> {
    /// An empty one whose places begin at `first`, or at 1.
    #[must_use]
    pub fn from(first: u64) -> Journal<C> {
        let (next, waiting) = (first.max(1), BTreeMap::new());
        Journal { next, waiting, under_way: 0, is_reporting: false, life: 0 }
    }

    /// Whether there is nothing to report: the next change is the first one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it is known of every change whether the owner knows it: a report that was sent before everything was lost may or may not
    /// have been carried out.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.is_empty() && !self.is_reporting
    }

    /// Changes that the owner may not know of.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len() + self.under_way
    }

    /// A change was made.
    pub fn add(&mut self, change: C) -> Place {
        let place = Place(self.next);
        self.next += 1;
        self.waiting.insert(place, change);
        place
    }

    /// A change that is not part of a report.
    #[must_use]
    pub fn get(&self, place: Place) -> Option<&C> {
        self.waiting.get(&place)
    }

    /// Changes that are not part of a report.
    pub fn waiting(&self) -> impl Iterator<Item = &C> {
        self.waiting.values()
    }

    /// A change comes to nothing, and is not reported.
    pub fn remove(&mut self, place: Place) -> Option<C> {
        self.waiting.remove(&place)
    }

    /// Takes the next change for a report; all of them are to be named in [`Journal::report`].
    pub fn pop(&mut self) -> Option<(Place, C)> {
        self.waiting.pop_first()
    }

    /// A report with these changes is sent. There is one at a time.
    pub fn report(&mut self, changes: Vec<(Place, C)>) -> Part<C> {
        (self.under_way, self.is_reporting) = (changes.len(), !changes.is_empty());
        Part { life: self.life, changes }
    }

    /// Whether everything was lost since a report was sent.
    #[must_use]
    pub fn is_void(&self, part: &Part<C>) -> bool {
        part.life != self.life
    }

    /// A report was answered.
    pub fn reported(&mut self, part: &Part<C>) {
        self.is_reporting = false;
        if !self.is_void(part) {
            self.under_way = 0;
        }
    }

    /// A report has no answer: its changes are reported again. Returns them if everything was lost meanwhile.
    pub fn put_back(&mut self, part: Part<C>) -> Vec<C> {
        self.is_reporting = false;
        if self.is_void(&part) {
            return part.changes.into_iter().map(|(_, change)| change).collect();
        }
        self.under_way = 0;
        self.waiting.extend(part.changes);
        Vec::new()
    }

    /// Everything is lost, what is part of a report included. Returns the rest of it.
    pub fn lose(&mut self) -> Vec<C> {
        self.life += 1;
        self.under_way = 0;
        let lost = std::mem::take(&mut self.waiting).into_values();
        lost.filter(|_| !fault::is(Fault::LossUntold)).collect()
    }
}

/// What the owner does with a change that was reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is carried out.
    New,
    /// It was carried out before: the answer was lost.
    Again,
    /// What was delegated is with others by now.
    Void,
}

/// What the owner has carried out of one client's reports.
#[derive(Clone, Copy, Debug, Default)]
pub struct CarriedOut(u64);

impl CarriedOut {
    /// A change is reported. `counts` says whether what the client was granted then still counts.
    pub fn judge(&mut self, number: u64, counts: bool) -> Verdict {
        if number <= self.0 && !fault::is(Fault::ReportCarriedOutAgain) {
            return Verdict::Again;
        }
        if !counts {
            return Verdict::Void;
        }
        self.0 = self.0.max(number);
        Verdict::New
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(journal: &mut Journal<char>) -> Part<char> {
        let changes = std::iter::from_fn(|| journal.pop()).collect();
        journal.report(changes)
    }

    #[test]
    fn changes_are_reported_in_order_until_they_are_answered() {
        let mut journal = Journal::default();
        for change in "abc".chars() {
            journal.add(change);
        }
        let part = take(&mut journal);
        journal.add('d');
        assert_eq!(journal.len(), 4);
        assert!(journal.put_back(part).is_empty());
        let part = take(&mut journal);
        let reported: String = part.changes.iter().map(|(_, change)| *change).collect();
        assert_eq!(reported, "abcd");
        journal.reported(&part);
        assert!(journal.is_empty());
    }

    #[test]
    fn a_loss_during_a_report_leaves_nothing_and_what_comes_later_is_another_matter() {
        let mut journal = Journal::default();
        journal.add('a');
        let part = take(&mut journal);
        journal.add('b');
        assert_eq!(journal.lose(), ['b']);
        assert!(journal.is_empty(), "the next change is the first one: it wakes who reports");
        assert!(!journal.is_settled(), "a sync must wait: the report may fail");
        journal.add('c');
        assert_eq!(journal.put_back(part), ['a'], "it is lost as well");
        assert_eq!(journal.len(), 1);
        let part = take(&mut journal);
        assert_eq!(part.changes.len(), 1);
        journal.reported(&part);
        assert!(journal.is_settled());
    }

    #[test]
    fn a_change_is_carried_out_once_and_only_while_it_counts() {
        let mut done = CarriedOut::default();
        assert_eq!(done.judge(5, true), Verdict::New);
        assert_eq!(done.judge(6, false), Verdict::Void);
        assert_eq!(done.judge(5, false), Verdict::Again);
        assert_eq!(done.judge(7, true), Verdict::New);
        assert_eq!(done.judge(6, true), Verdict::Again);
    }
}
