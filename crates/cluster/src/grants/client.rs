//! The client's side: what it may cache, and what a recall must invalidate before it is acknowledged.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::{GrantNumber, Item, RecallNumber};
use crate::fault::{self, Fault};
use crate::time::Moment;

forebay_base::id! {
    /// A request that may be answered with grants, in the order in which they were sent.
    Ticket(u64)
}

/// What is to be done, in order. Nothing here waits: what invalidates the kernel's caches runs on threads of its own, with no
/// lock held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Invalidate in the kernel: entries for good, not only their timeouts, because a look-up that is under way would renew
    /// them. Report [`Cache::invalidated`] when it is done. Anything that was given to the kernel before counts.
    ///
    /// A notification about an entry waits for changes of that directory that are under way on this node, and such a change
    /// may be waiting for a recall that waits for the other node in the same way. FUSE_NOTIFY_INC_EPOCH (Linux 6.16) takes
    /// no lock; without it [`Cache::tick`] acknowledges once the kernel's timeouts are over.
    Invalidate {
        /// To be named in the report.
        recall: RecallNumber,
        /// What.
        items: Vec<Item>,
    },
    /// Answer the recall.
    Acknowledge(RecallNumber),
}

/// Recalls that are remembered while requests are under way. Beyond it their answers are not cached at all.
const REMEMBERED_MAX: usize = 4096;

/// What one client caches of one fileset of one server, in all its sessions: [`Cache::lost`] ends one. A new cache in its
/// place would take answers to former requests for answers to its own.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    held: BTreeMap<Item, GrantNumber>,
    /// Requests under way.
    tickets: BTreeSet<Ticket>,
    next: Ticket,
    /// What was recalled, or changed by this client, and the first request that was sent afterwards.
    recalled: VecDeque<(Ticket, Item)>,
    /// Answers to requests before this one are not cached.
    nothing_before: Ticket,
    /// What this client is changing.
    changing: BTreeMap<Item, usize>,
    /// Recalls that are not acknowledged, and when the timeouts that the kernel was given are over.
    invalidating: BTreeMap<RecallNumber, Moment>,
    vouched_until: Moment,
}

impl Cache {
    /// A client without grants.
    #[must_use]
    pub fn new() -> Cache {
        Cache::default()
    }

    /// Until when grants may be used.
    #[must_use]
    pub fn vouched_until(&self) -> Moment {
        self.vouched_until
    }

    /// Whether an item that the client cached may be used now.
    #[must_use]
    pub fn may_use(&self, item: &Item, now: Moment) -> bool {
        let lapsed = now >= self.vouched_until && !fault::is(Fault::LapseIgnored);
        !lapsed && self.held.contains_key(item)
    }

    /// Whether an item was granted and not recalled, whoever vouches for it.
    #[must_use]
    pub fn holds(&self, item: &Item) -> bool {
        self.held.contains_key(item)
    }

    /// The grant of an item; number 0 for what this client has changed by itself, and of which the owner does not know yet.
    #[must_use]
    pub fn granted(&self, item: &Item) -> Option<GrantNumber> {
        self.held.get(item).copied()
    }

    /// The timeout to give to the kernel together with an item now; zero: the kernel is to ask each time. Compare the clock
    /// once more after the kernel has it, and invalidate if it was too late.
    #[must_use]
    pub fn timeout(&self, item: &Item, now: Moment) -> Duration {
        if self.held.contains_key(item) { self.vouched_until.left(now) } else { Duration::ZERO }
    }

    /// The owner vouches until this moment; a smaller one than before does not count.
    pub fn vouched(&mut self, until: Moment) {
        self.vouched_until = self.vouched_until.max(until);
    }

    /// A request is sent that may be answered with grants.
    pub fn begin(&mut self) -> Ticket {
        let ticket = self.next;
        self.next = Ticket(ticket.0 + 1);
        self.tickets.insert(ticket);
        ticket
    }

    /// A request was answered. Returns the items that may be cached; the others were recalled meanwhile and are only for
    /// who asked.
    pub fn answered(&mut self, ticket: Ticket, grants: Vec<(Item, GrantNumber)>) -> Vec<Item> {
        let mut used = Vec::new();
        for (item, number) in grants {
            let blocked = self.crossed(ticket, &item) || self.changing.contains_key(&item);
            if self.tickets.contains(&ticket) && !blocked {
                used.push(item.clone());
                self.held.insert(item, number);
            }
        }
        self.end(ticket);
        used
    }

    /// A request has no answer.
    pub fn failed(&mut self, ticket: Ticket) {
        self.end(ticket);
    }

    fn end(&mut self, ticket: Ticket) {
        self.tickets.remove(&ticket);
        let oldest = self.tickets.first().copied().unwrap_or(self.next);
        while self.recalled.front().is_some_and(|(after, _)| *after <= oldest) {
            self.recalled.pop_front();
        }
    }

    /// Whether the item was recalled, or changed by this client, after the request was sent.
    fn crossed(&self, ticket: Ticket, item: &Item) -> bool {
        let recalled = self.recalled.iter().rev().take_while(|(after, _)| *after > ticket);
        let crossed =
            ticket < self.nothing_before || recalled.map(|(_, it)| it).any(|it| it == item);
        crossed && !fault::is(Fault::CrossedRecallIgnored)
    }

    /// Nothing that was asked before now may be cached for this item.
    fn bar(&mut self, item: Item) {
        if self.tickets.is_empty() {
            return;
        }
        self.recalled.push_back((self.next, item));
        if self.recalled.len() > REMEMBERED_MAX {
            self.recalled.clear();
            self.nothing_before = self.next;
        }
    }

    /// The owner recalls items.
    pub fn recall(&mut self, recall: RecallNumber, items: Vec<Item>) -> Vec<Effect> {
        for item in &items {
            self.held.remove(item);
            self.bar(item.clone());
        }
        self.invalidating.insert(recall, self.vouched_until);
        let invalidate = Effect::Invalidate { recall, items };
        if fault::is(Fault::AcknowledgedEarly) {
            return vec![Effect::Acknowledge(recall), invalidate];
        }
        vec![invalidate]
    }

    /// The kernel has dropped what a recall named.
    pub fn invalidated(&mut self, recall: RecallNumber) -> Vec<Effect> {
        let known = self.invalidating.remove(&recall);
        if known.is_some() && !fault::is(Fault::AcknowledgedEarly) {
            vec![Effect::Acknowledge(recall)]
        } else {
            Vec::new()
        }
    }

    /// Recalls that wait for the kernel although it has stopped using what they name, because its timeouts are over, are
    /// acknowledged.
    pub fn tick(&mut self, now: Moment) -> Vec<Effect> {
        if fault::is(Fault::KernelAlone) {
            return Vec::new();
        }
        let over = self.invalidating.extract_if(.., |_, lapse| now >= *lapse);
        over.map(|(recall, _)| Effect::Acknowledge(recall)).collect()
    }

    /// When [`Cache::tick`] is due at the latest.
    #[must_use]
    pub fn next_wake(&self) -> Moment {
        self.invalidating.values().min().copied().unwrap_or(Moment(Duration::MAX))
    }

    /// A change of these items is sent: this client's own grants on them are over. Its answer is reported with
    /// [`Cache::changed`].
    pub fn changing(&mut self, items: &[Item]) -> Ticket {
        if !fault::is(Fault::OwnGrantKept) {
            for item in items {
                self.held.remove(item);
                *self.changing.entry(item.clone()).or_default() += 1;
            }
        }
        self.begin()
    }

    /// A change was answered, with grants, or failed. Requests that were sent before may have been answered before the change:
    /// none of that is cached.
    pub fn changed(
        &mut self,
        ticket: Ticket,
        items: &[Item],
        grants: Vec<(Item, GrantNumber)>,
    ) -> Vec<Item> {
        // One of a session that was lost is not counted any more: it must not end another one's.
        let counted = if self.tickets.contains(&ticket) { items } else { &[] };
        for item in counted {
            if let Some(count) = self.changing.get_mut(item) {
                *count -= 1;
                if *count == 0 {
                    self.changing.remove(item);
                }
            }
        }
        let used = self.answered(ticket, grants);
        for item in items {
            self.bar(item.clone());
        }
        used
    }

    /// Whether this client is changing an item, by a request to the owner.
    #[must_use]
    pub fn is_changing(&self, item: &Item) -> bool {
        self.changing.contains_key(item)
    }

    /// This client changes these items by itself, in a directory that is delegated to it: nothing that was asked before is cached for
    /// them. What they are from now on may be used as long as the directory is delegated.
    pub fn change_here(&mut self, items: impl IntoIterator<Item = Item>) {
        for item in items {
            self.bar(item.clone());
            self.held.insert(item, GrantNumber(0));
        }
    }

    /// What this client changed by itself was reported with the request of `ticket`. `granted` says which of these items the owner
    /// grants from now on. Returns those that may not be used any more.
    pub fn reported(
        &mut self,
        ticket: Ticket,
        items: impl IntoIterator<Item = (Item, Option<GrantNumber>)>,
    ) -> Vec<Item> {
        let mut lost = Vec::new();
        for (item, granted) in items {
            let is_without_grant = self.held.get(&item) == Some(&GrantNumber(0));
            let blocked = self.crossed(ticket, &item) || self.changing.contains_key(&item);
            match granted.filter(|_| self.tickets.contains(&ticket) && !blocked) {
                Some(number) if is_without_grant => drop(self.held.insert(item, number)),
                None if is_without_grant => {
                    self.held.remove(&item);
                    lost.push(item);
                }
                _ => {}
            }
        }
        self.end(ticket);
        lost
    }

    /// The kernel has forgotten these items by itself. Returns what to give back to the owner.
    pub fn forget(&mut self, items: impl IntoIterator<Item = Item>) -> Vec<(Item, GrantNumber)> {
        let held = items.into_iter().filter_map(|item| self.held.remove_entry(&item));
        held.collect()
    }

    /// The session is over: everything is to be invalidated in the kernel, and answers that still come are not cached.
    pub fn lost(&mut self) {
        let next = self.next;
        *self = Cache { next, nothing_before: next, ..Cache::default() };
    }
}
