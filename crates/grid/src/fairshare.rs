//! Fair share: what users used, decaying, and what priority that leaves them.

use serde::{Deserialize, Serialize};

use crate::config::FairShare;
use crate::vocabulary::Moment;

/// What a user used, as it counts at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Used {
    slot_ms: f64,
    cpu_seconds: f64,
    at: Moment,
}

/// Slots in use by a user now, such that their time is known without a look at each job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InUse {
    /// Slots.
    pub slots: u64,
    /// Sum over jobs of slots times the moment at which they were launched.
    pub slots_launched: u128,
}

impl InUse {
    pub fn add(&mut self, slots: u32, launched: Moment) {
        self.slots += u64::from(slots);
        self.slots_launched += u128::from(slots) * u128::from(launched.0);
    }

    pub fn remove(&mut self, slots: u32, launched: Moment) {
        self.slots -= u64::from(slots);
        self.slots_launched -= u128::from(slots) * u128::from(launched.0);
    }

    fn slot_ms(self, now: Moment) -> f64 {
        let until_now = u128::from(self.slots) * u128::from(now.0);
        until_now.saturating_sub(self.slots_launched) as f64
    }
}

fn decay(half_life_ms: u64, passed_ms: u64) -> f64 {
    (-(passed_ms as f64) / half_life_ms as f64).exp2()
}

impl Used {
    /// Adds what an attempt used that ended at `at`.
    pub fn add(&mut self, at: Moment, half_life_ms: u64, slot_ms: f64, cpu_seconds: f64) {
        let kept = decay(half_life_ms, at.since(self.at));
        self.slot_ms = self.slot_ms * kept + slot_ms;
        self.cpu_seconds = self.cpu_seconds * kept + cpu_seconds;
        self.at = self.at.max(at);
    }

    /// Priority of a user with `shares`: higher goes first.
    pub fn priority(&self, now: Moment, rules: &FairShare, shares: u32, in_use: InUse) -> f64 {
        let kept = decay(rules.half_life.as_ms(), now.since(self.at));
        let slot_hours = (self.slot_ms * kept + in_use.slot_ms(now)) / 3_600_000.0;
        let cpu_hours = self.cpu_seconds * kept / 3600.0;
        let weighed = rules.run_time_weight * slot_hours
            + rules.cpu_time_weight * cpu_hours
            + rules.running_weight * (1 + in_use.slots) as f64;
        // With all weights zero users differ in their shares only.
        f64::from(shares) / weighed.max(1e-9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::period::Period;

    const HOUR: u64 = 3_600_000;

    fn rules() -> FairShare {
        FairShare { half_life: Period(HOUR), ..FairShare::default() }
    }

    #[test]
    fn use_counts_half_after_each_half_life() {
        let mut used = Used::default();
        used.add(Moment(0), HOUR, 8.0 * HOUR as f64, 0.0);
        // 1 / (0.7 * hours + 3): 8 hours at first, 2 after two half-lives.
        for (passed, expected) in [(0, 1.0 / 8.6), (2 * HOUR, 1.0 / 4.4)] {
            let got = used.priority(Moment(passed), &rules(), 1, InUse::default());
            assert!((got - expected).abs() < 1e-12, "{got} {expected}");
        }
    }

    #[test]
    fn running_slots_count_with_their_time() {
        let mut in_use = InUse::default();
        in_use.add(4, Moment(HOUR));
        in_use.add(2, Moment(2 * HOUR));
        in_use.remove(2, Moment(2 * HOUR));
        // Four slots for two hours: 8 slot hours, 5 slots of weight 3.
        let got = Used::default().priority(Moment(3 * HOUR), &rules(), 10, in_use);
        assert!((got - 10.0 / (0.7 * 8.0 + 15.0)).abs() < 1e-12, "{got}");
    }
}
