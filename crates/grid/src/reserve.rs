//! Reservations: a host that is kept for a job which does not fit yet, so that jobs after it cannot delay it.
//!
//! Pure arithmetic; `grid/reserve.rs` decides for which jobs and on which hosts. Nothing here lasts: holds are
//! worked out anew in each round of dispatch, and for how long a job has been passed begins anew with the controller.

use std::collections::BTreeMap;

use crate::ready::Entry;
use crate::vocabulary::{HostId, JobId, Moment, QueueId, ResourceName, UserId};

/// What a job takes of a host, or what is left of it. `u64::MAX` stands for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Room {
    pub slots: u64,
    pub memory_bytes: u64,
    /// Slots that the queue of the reserved job may use on the host.
    pub queue_slots: u64,
    /// Counted resources of the host, in the order in which the reserved job asks for them.
    pub resources: [u64; RESOURCES_MAX],
}

/// Of how many counted resources of a host room is kept for a job; others may take more kinds than that.
pub(crate) const RESOURCES_MAX: usize = 4;

impl Room {
    fn with(self, other: Room, join: fn(u64, u64) -> u64) -> Room {
        let mut resources = self.resources;
        for (own, other) in resources.iter_mut().zip(other.resources) {
            *own = join(*own, other);
        }
        Room {
            resources,
            slots: join(self.slots, other.slots),
            memory_bytes: join(self.memory_bytes, other.memory_bytes),
            queue_slots: join(self.queue_slots, other.queue_slots),
        }
    }

    /// What is left without `other`; nothing of what is short.
    pub fn without(self, other: Room) -> Room {
        self.with(other, u64::saturating_sub)
    }

    pub fn has(self, need: Room) -> bool {
        self.slots >= need.slots
            && self.memory_bytes >= need.memory_bytes
            && self.queue_slots >= need.queue_slots
            && self.resources.iter().zip(need.resources).all(|(own, need)| *own >= need)
    }

    /// Whether `taken` takes nothing of what is used up: of each kind either none, or no more than there is.
    fn spares(self, taken: Room) -> bool {
        let fine = |spare: u64, taken: u64| taken == 0 || taken <= spare;
        fine(self.slots, taken.slots)
            && fine(self.memory_bytes, taken.memory_bytes)
            && fine(self.queue_slots, taken.queue_slots)
            && self.resources.iter().zip(taken.resources).all(|(own, taken)| fine(*own, taken))
    }
}

/// A job that runs on a host: what it gives back, and when at the latest, if that is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving {
    pub at: Option<Moment>,
    pub room: Room,
}

/// When a host has room for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// Now.
    Now,
    /// At this time at the latest; this is left beside it then.
    By(Moment, Room),
    /// Nobody can say when. This is short now, and this can be spared.
    Unknown { short: Room, spare: Room },
}

/// When a host with `free` room has room for `need`, if `leaving` are the jobs on it and no other comes.
pub(crate) fn fit(free: Room, mut leaving: Vec<Leaving>, need: Room) -> Fit {
    if free.has(need) {
        return Fit::Now;
    }
    leaving.sort_by_key(|run| run.at.unwrap_or(Moment::NEVER));
    let mut room = free;
    let mut known = leaving.iter().filter_map(|run| Some((run.at?, run.room))).peekable();
    while let Some((at, given)) = known.next() {
        room = room.with(given, u64::saturating_add);
        if known.peek().is_none_or(|(next, _)| *next > at) && room.has(need) {
            return Fit::By(at, room.without(need));
        }
    }
    Fit::Unknown { short: need.without(free), spare: free.without(need) }
}

/// A host that is kept for a job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    pub host: HostId,
    pub queue: QueueId,
    pub user: UserId,
    pub entry: Entry,
    pub slots: u32,
    /// When the job starts at the latest; none if jobs without a known end are in its way.
    pub start: Option<Moment>,
    /// What others may take for as long as they like.
    pub spare: Room,
}

impl Hold {
    /// Whether a job that ends then, if that is known, and takes this cannot delay the start.
    pub fn lets(&self, ends: Option<Moment>, taken: Room) -> bool {
        self.is_over_before_start(ends) || self.spare.spares(taken)
    }

    fn is_over_before_start(&self, ends: Option<Moment>) -> bool {
        ends.zip(self.start).is_some_and(|(ends, start)| ends <= start)
    }

    /// Follows the start of a job that it let pass.
    pub fn take(&mut self, ends: Option<Moment>, taken: Room) {
        if !self.is_over_before_start(ends) {
            self.spare = self.spare.without(taken);
        }
    }
}

/// A job that others pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passed {
    pub since: Moment,
    /// The host that was kept for it last.
    pub host: Option<HostId>,
}

impl Passed {
    /// Whether no host is kept for it although it was passed for as long as it may be.
    pub fn begins_to_be_kept(&self, after_ms: u64, now: Moment) -> bool {
        self.host.is_none() && self.since.after(after_ms) <= now
    }
}

/// Jobs that others pass, and the hosts that are kept for them.
#[derive(Debug, Default)]
pub(crate) struct Reserve {
    /// Not more than `reserved_jobs_max`, and those of former rounds.
    pub passed: BTreeMap<JobId, Passed>,
    /// By the latest round. One for a host at most.
    pub holds: Vec<Hold>,
    /// By the latest round: the first job that is short of a resource which all hosts share.
    pub short: BTreeMap<ResourceName, JobId>,
    /// Jobs whose resource others have taken meanwhile, and since when they do.
    pub short_since: BTreeMap<JobId, Moment>,
}

impl Reserve {
    pub fn hold_on(&self, host: HostId) -> Option<&Hold> {
        self.holds.iter().find(|hold| hold.host == host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(slots: u64) -> Room {
        Room { slots, memory_bytes: u64::MAX, queue_slots: u64::MAX, ..Room::default() }
    }

    fn takes(slots: u64) -> Room {
        Room { slots, ..Room::default() }
    }

    fn run(at: Option<u64>, slots: u64) -> Leaving {
        Leaving { at: at.map(Moment), room: takes(slots) }
    }

    #[test]
    fn a_job_fits_once_enough_of_those_before_it_have_left() {
        assert_eq!(fit(slots(2), vec![run(Some(1), 9)], takes(2)), Fit::Now);
        let runs = vec![run(Some(50), 3), run(None, 4), run(Some(20), 1), run(Some(50), 1)];
        let Fit::By(at, spare) = fit(slots(0), runs.clone(), takes(3)) else { panic!() };
        assert_eq!((at, spare.slots), (Moment(50), 2), "all that end together give their slots");
        let Fit::By(at, _) = fit(slots(0), runs.clone(), takes(1)) else { panic!() };
        assert_eq!(at, Moment(20));
        let Fit::Unknown { short, spare } = fit(slots(1), runs, takes(7)) else { panic!() };
        assert_eq!((short.slots, spare.slots), (6, 0));
    }

    #[test]
    fn what_is_not_short_may_be_taken() {
        let need = Room { slots: 1, memory_bytes: 60, queue_slots: 1, ..Room::default() };
        let free = Room { slots: 8, memory_bytes: 10, queue_slots: u64::MAX, ..Room::default() };
        let Fit::Unknown { spare, .. } = fit(free, Vec::new(), need) else { panic!() };
        assert!(spare.spares(takes(7)) && !spare.spares(takes(8)));
        assert!(!spare.spares(Room { memory_bytes: 1, ..takes(1) }), "memory is what it waits for");
    }

    #[test]
    fn a_hold_lets_pass_what_is_over_before_the_start_or_takes_what_is_spared() {
        let entry = Entry { priority: std::cmp::Reverse(0), job: JobId(1), place: None };
        let mut hold = Hold {
            host: HostId(0),
            queue: QueueId(0),
            user: UserId(0),
            entry,
            slots: 4,
            start: Some(Moment(100)),
            spare: takes(2),
        };
        assert!(hold.lets(Some(Moment(100)), takes(9)) && !hold.lets(Some(Moment(101)), takes(9)));
        hold.take(Some(Moment(100)), takes(9));
        assert!(hold.lets(None, takes(2)), "what is over by then took nothing of the spare");
        hold.take(None, takes(2));
        assert!(!hold.lets(None, takes(1)));
        hold.start = None;
        assert!(!hold.lets(Some(Moment(1)), takes(1)));
    }
}
