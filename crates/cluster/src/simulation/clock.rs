//! Clocks of nodes, which start anywhere and differ in rate.

use std::time::Duration;

use crate::time::Moment;

/// A node's clock.
#[derive(Clone, Copy, Debug)]
pub struct NodeClock {
    /// What it showed at the beginning.
    pub start: Duration,
    /// By how many parts per million it is fast.
    pub fast_ppm: i64,
    /// How long it has stood still: only machines whose host stops them.
    pub stood: Duration,
}

impl NodeClock {
    /// What the clock shows at a true time.
    pub fn show(&self, time: Duration) -> Moment {
        let nanos = i128::try_from((time - self.stood).as_nanos()).expect("a short run");
        let shown = nanos + nanos * i128::from(self.fast_ppm) / 1_000_000;
        Moment(self.start + Duration::from_nanos(u64::try_from(shown).expect("clocks run forward")))
    }

    /// The true time at which the clock shows `moment`, or just after.
    pub fn when(&self, moment: Moment) -> Duration {
        let nanos = i128::try_from(moment.since(Moment(self.start)).as_nanos())
            .unwrap_or(i128::MAX / 2_000_000);
        let time = nanos * 1_000_000 / (1_000_000 + i128::from(self.fast_ppm)) + 1000;
        Duration::from_nanos(u64::try_from(time).unwrap_or(u64::MAX)).saturating_add(self.stood)
    }
}
