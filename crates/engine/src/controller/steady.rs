//! The controller's time: the wall clock, as long as it goes as clocks do.
//!
//! Windows and schedules follow the wall clock, which somebody may set. Leases of agents count seconds that
//! really passed. So a wall clock that was set forward is followed, and the difference is told: no lease is
//! over because of it, and no time limit of a job. One that was set back is not followed: time goes on at its own pace until the wall clock
//! has caught up, because windows, limits and the journal know no way back.

use std::sync::Arc;
use std::time::Instant;

use forebay_base::Clock;
use forebay_grid::vocabulary::Moment;

/// Differences below this are the clock's own steps and small corrections, which are followed.
const SET_MS: u64 = 1000;

/// Where the controller's time comes from.
pub struct Steady {
    clock: Arc<dyn Clock>,
    last: (Moment, Instant),
}

/// What time it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Never before an earlier one.
    pub now: Moment,
    /// By how much the wall clock was set forward since the last reading.
    pub set_forward_ms: u64,
}

impl Steady {
    pub fn new(clock: Arc<dyn Clock>) -> Steady {
        let last = (clock.now().into(), clock.instant());
        Steady { clock, last }
    }

    /// It is this late already, whatever the wall clock says.
    pub fn not_before(&mut self, now: Moment) {
        self.last.0 = self.last.0.max(now);
    }

    /// A reading of what only ever passes, to measure by.
    pub fn instant(&self) -> Instant {
        self.clock.instant()
    }

    /// What time it is, without taking note of it.
    pub fn look(&self) -> Reading {
        let (wall, instant): (Moment, _) = (self.clock.now().into(), self.clock.instant());
        self.reading(wall, instant)
    }

    /// What time it is now.
    pub fn read(&mut self) -> Reading {
        let (wall, instant): (Moment, _) = (self.clock.now().into(), self.clock.instant());
        let reading = self.reading(wall, instant);
        self.last = (reading.now, instant);
        reading
    }

    fn reading(&self, wall: Moment, instant: Instant) -> Reading {
        let (before, at) = self.last;
        let passed = instant.saturating_duration_since(at).as_millis();
        let expected = before.after(u64::try_from(passed).unwrap_or(u64::MAX));
        let ahead = wall.since(expected);
        if ahead >= SET_MS {
            Reading { now: wall, set_forward_ms: ahead }
        } else if expected.since(wall) >= SET_MS {
            Reading { now: expected, set_forward_ms: 0 }
        } else {
            Reading { now: wall.max(before), set_forward_ms: 0 }
        }
    }
}
