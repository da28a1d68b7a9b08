//! Places by which requests come: entries of a ring, threads on the device.
//!
//! A request that waits long keeps its place, and others need places meanwhile: what waits for a lock ends with a request that
//! unlocks. So a part of each lane is kept for others, and who waits for a lock is refused beyond the rest: locks may be held for ever.
//!
//! What waits for an archive, or for the home of a cache, also waits in kept places as long as waits of the lane end: for a single
//! program that reads a large file, the kernel reads ahead with more requests than a lane has places. Once none has ended for
//! [`PATIENCE`], such requests are refused until one ends, so that a store that hangs does not keep others waiting.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use forebay_base::Clock;
use forebay_fs::Interruption;

/// How long a request waits in a kept place while no wait of its lane ends.
const PATIENCE: Duration = Duration::from_secs(1);
/// Places of a lane that are kept: for who unlocks, and for who closes.
const KEPT: usize = 2;

thread_local! {
    static LANE: RefCell<Option<Lane>> = const { RefCell::new(None) };
}

/// Places of which some may be taken up by waits.
#[derive(Clone, Debug)]
pub(crate) struct Lane(Arc<State>);

#[derive(Debug)]
struct State {
    /// Waits that are not in kept places, at most.
    most: usize,
    waiting: AtomicUsize,
    /// Waits that have ended.
    ended: AtomicU64,
    /// None has ended for so long that kept places are not used.
    is_stuck: AtomicBool,
}

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    /// A lock of a program, perhaps for ever.
    Lock,
    /// An archive, or the home of a cache.
    Store,
}

/// The place of a request that waits; none on a thread that belongs to no lane.
pub(super) struct Place(Option<Taken>);

struct Taken {
    lane: Lane,
    is_kept: bool,
    /// Waits that had ended when it began to wait, or when the last one was seen to end.
    seen: u64,
}

impl Lane {
    /// A lane of so many places.
    pub(crate) fn of(places: usize) -> Lane {
        let (waiting, ended) = (AtomicUsize::new(0), AtomicU64::new(0));
        let most = places.saturating_sub(KEPT);
        Lane(Arc::new(State { most, waiting, ended, is_stuck: AtomicBool::new(false) }))
    }

    /// Makes it the lane of this thread.
    pub(crate) fn enter(&self) {
        LANE.with(|lane| *lane.borrow_mut() = Some(self.clone()));
    }

    fn ended(&self) -> u64 {
        self.0.ended.load(Ordering::Acquire)
    }

    fn take(&self, what: For) -> Option<Taken> {
        let room = |waiting: usize| (waiting < self.0.most).then_some(waiting + 1);
        let has_room =
            self.0.waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, room).is_ok();
        let may_be_kept = what == For::Store && !self.0.is_stuck.load(Ordering::Acquire);
        (has_room || may_be_kept).then(|| Taken {
            lane: self.clone(),
            is_kept: !has_room,
            seen: self.ended(),
        })
    }
}

impl Place {
    /// The place of this thread's request; none if too many wait.
    pub fn take(what: For) -> Option<Place> {
        match LANE.with(|lane| lane.borrow().clone()) {
            Some(lane) => Some(Place(Some(lane.take(what)?))),
            None => Some(Place(None)),
        }
    }

    /// What ends the wait of its request.
    pub fn interruption(&self, clock: &Arc<dyn Clock>) -> Interruption {
        match &self.0 {
            Some(taken) if taken.is_kept => Interruption::after(PATIENCE, clock),
            _ => Interruption::default(),
        }
    }

    /// Its request has waited as long as one waits in a kept place: whether it may wait on, because others have ended meanwhile.
    pub fn may_wait_on(&mut self) -> bool {
        let Some(taken) = &mut self.0 else { return true };
        let ended = taken.lane.ended();
        let may_wait_on = ended != taken.seen;
        taken.seen = ended;
        if !may_wait_on {
            taken.lane.0.is_stuck.store(true, Ordering::Release);
        }
        may_wait_on
    }

    /// What it waited for is there, or nobody waits for it any more.
    pub fn end(self) {
        if let Some(Taken { lane, .. }) = &self.0 {
            lane.0.ended.fetch_add(1, Ordering::AcqRel);
            lane.0.is_stuck.store(false, Ordering::Release);
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if !self.is_kept {
            self.lane.0.waiting.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(lane: &Lane, what: For) -> Option<Place> {
        lane.take(what).map(|taken| Place(Some(taken)))
    }

    #[test]
    fn locks_never_take_kept_places() {
        let lane = Lane::of(4);
        let taken = [place(&lane, For::Lock), place(&lane, For::Store)];
        assert!(taken.iter().all(Option::is_some));
        assert!(place(&lane, For::Lock).is_none());
        drop(taken);
        assert!(place(&lane, For::Lock).is_some());
    }

    #[test]
    fn kept_places_are_used_while_waits_end_and_not_once_none_has_ended() {
        let lane = Lane::of(3);
        let first = place(&lane, For::Store).expect("has room");
        let mut kept = place(&lane, For::Store).expect("waits in a kept place");
        let other = place(&lane, For::Store).expect("waits in a kept place");
        other.end();
        assert!(kept.may_wait_on(), "another one has ended");
        assert!(!kept.may_wait_on(), "none has ended since");
        assert!(place(&lane, For::Store).is_none(), "further ones are refused at once");
        first.end();
        assert!(place(&lane, For::Store).is_some_and(|place| !place.0.expect("has one").is_kept));
        assert!(place(&lane, For::Lock).is_some(), "all places were given back");
    }

    #[test]
    fn a_lane_without_places_for_waits_still_serves_a_store_that_answers() {
        let lane = Lane::of(1);
        assert!(place(&lane, For::Lock).is_none());
        let mut only = place(&lane, For::Store).expect("waits in a kept place");
        assert!(!only.may_wait_on());
        assert!(place(&lane, For::Store).is_none());
    }
}
