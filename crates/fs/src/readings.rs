//! Reads of a directory's entries that are under way, and what changed meanwhile.
//!
//! A store may take long, and nobody else is to wait for it. So a read is announced under the directory's lock, done
//! without it, and put together under the lock again: what changed meanwhile counts, the rest is as it was read.

use std::collections::BTreeMap;

use crate::directory::Child;

/// Number of a read among those of its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

/// A read that is under way.
struct Reading {
    ticket: Ticket,
    /// Cookies that are read, both included.
    range: (u64, u64),
    /// Entries in the range that changed since the read was announced; `None` for one that is gone.
    changed: BTreeMap<u64, Option<Child>>,
}

/// The reads of one directory that are under way.
#[derive(Default)]
pub(crate) struct Readings {
    next: u64,
    running: Vec<Reading>,
}

impl Readings {
    /// Announces a read of the entries with these cookies, both included.
    pub fn begin(&mut self, range: (u64, u64)) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        self.running.push(Reading { ticket, range, changed: BTreeMap::new() });
        ticket
    }

    /// Notes that the entry at `cookie` is `now` another one, or gone.
    pub fn note(&mut self, cookie: u64, now: Option<&Child>) {
        for reading in &mut self.running {
            if (reading.range.0..=reading.range.1).contains(&cookie) {
                reading.changed.insert(cookie, now.cloned());
            }
        }
    }

    /// What changed since a read was announced.
    pub fn changes(&self, ticket: Ticket) -> BTreeMap<u64, Option<Child>> {
        let reading = self.running.iter().find(|reading| reading.ticket == ticket);
        reading.map(|reading| reading.changed.clone()).unwrap_or_default()
    }

    /// From here on only this part of what was read matters.
    pub fn narrow(&mut self, ticket: Ticket, range: (u64, u64)) {
        if let Some(reading) = self.running.iter_mut().find(|reading| reading.ticket == ticket) {
            reading.range = range;
            reading.changed.retain(|cookie, _| (range.0..=range.1).contains(cookie));
        }
    }

    /// A read is over.
    pub fn end(&mut self, ticket: Ticket) {
        self.running.retain(|reading| reading.ticket != ticket);
    }

    /// Whether somebody reads all of this range.
    pub fn covers(&self, range: (u64, u64)) -> bool {
        self.running.iter().any(|at| at.range.0 <= range.0 && range.1 <= at.range.1)
    }

    /// Whether no read is under way.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }
}
