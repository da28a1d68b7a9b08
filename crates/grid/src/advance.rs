//! Advance reservations: slots of hosts that are set aside for some users from a time on until another.
//!
//! Kept in the journal until their end, or until they are given up. Not to be confused with the hosts that are kept for
//! jobs which do not fit yet, see `reserve.rs`.

use serde::{Deserialize, Serialize};

use crate::vocabulary::{HostName, Moment, ReservationName, UserName};

/// The most reservations that are known at a time, and the most hosts or users of one.
pub const RESERVATIONS_MAX: usize = 1000;

/// One reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdvanceReservation {
    /// Its name.
    pub name: ReservationName,
    /// Whose jobs may use it.
    pub users: Vec<UserName>,
    /// Hosts of which it has slots.
    pub hosts: Vec<HostName>,
    /// How many of each host; all of them if none.
    #[serde(default)]
    pub slots: Option<u32>,
    /// From when on.
    pub start: Moment,
    /// Until when. Jobs in it end then.
    pub end: Moment,
}

impl AdvanceReservation {
    /// Slots that it has of a host with so many, if it has any of that host.
    #[must_use]
    pub fn slots_of(&self, host: &HostName, whole: u32) -> Option<u32> {
        let own = self.slots.map_or(whole, |slots| slots.min(whole));
        self.hosts.contains(host).then_some(own)
    }

    /// Whether it has its slots at a moment.
    #[must_use]
    pub fn holds_at(&self, at: Moment) -> bool {
        self.start <= at && at < self.end
    }

    /// Why it cannot be, as far as it shows by itself.
    pub(crate) fn fault(&self, now: Moment) -> Option<String> {
        let name = &self.name;
        let many = |what: &str, count: usize| {
            (count == 0 || count > RESERVATIONS_MAX)
                .then(|| format!("reservation {name}: it needs 1 to {RESERVATIONS_MAX} {what}"))
        };
        if let Some(fault) =
            many("users", self.users.len()).or_else(|| many("hosts", self.hosts.len()))
        {
            return Some(fault);
        }
        if self.slots == Some(0) {
            return Some(format!(
                "reservation {name}: it needs at least 1 slot of each host; without a number it has all"
            ));
        }
        if self.end <= self.start {
            return Some(format!("reservation {name}: it must end after it starts"));
        }
        (self.end <= now).then(|| format!("reservation {name}: it would have ended already"))
    }
}
