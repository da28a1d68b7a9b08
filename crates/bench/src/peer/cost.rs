//! What a load costs in processor time, and who spends it.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use serde::Serialize;

use super::cell::Cell;
use crate::processor::{Times, machine_ticks};

/// Processor time of one measurement, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cost {
    /// From beginning to end, on the clock.
    pub wall_seconds: f64,
    /// The processes of the load, in their own code.
    pub load_user_seconds: f64,
    /// The processes of the load, in the kernel.
    pub load_system_seconds: f64,
    /// The subject's daemons, in their own code.
    pub daemon_user_seconds: f64,
    /// The subject's daemons, in the kernel.
    pub daemon_system_seconds: f64,
    /// Everybody else: the kernel's own threads, and other programs.
    pub rest_seconds: f64,
}

/// The processor clocks at one time.
#[derive(Debug)]
struct Clocks {
    machine: u64,
    own: Times,
    daemons: BTreeMap<u32, Times>,
}

/// A measurement under way.
#[derive(Debug)]
pub struct Meter {
    start: std::time::Instant,
    before: Clocks,
}

impl Meter {
    /// Begins now, before any process of the load has started.
    ///
    /// # Errors
    /// If /proc cannot be read.
    pub fn begin(cell: &Cell) -> Result<Meter> {
        Ok(Meter { start: SystemClock.instant(), before: Clocks::read(cell)? })
    }

    /// The cost until now. All processes of the load have ended.
    ///
    /// # Errors
    /// If /proc cannot be read.
    pub fn end(&self, cell: &Cell) -> Result<Cost> {
        let now = Clocks::read(cell)?;
        let wall_seconds = (SystemClock.instant() - self.start).as_secs_f64();
        Ok(Clocks::between(&self.before, &now, wall_seconds))
    }
}

impl Clocks {
    fn read(cell: &Cell) -> Result<Clocks> {
        let processes = cell.processes()?.into_iter();
        Ok(Clocks {
            machine: machine_ticks()?,
            own: Times::own().context("cannot read the times of this process")?,
            // One that has ended meanwhile is left out.
            daemons: processes.filter_map(|id| Some((id, Times::of(id)?))).collect(),
        })
    }

    /// The difference of two readings. A daemon that was started in between counts from zero; what one
    /// that ended in between spent is in the rest.
    fn between(before: &Clocks, after: &Clocks, wall_seconds: f64) -> Cost {
        let seconds = |ticks: u64| ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
        let mut daemons = Times::default();
        for (id, now) in &after.daemons {
            let then = before.daemons.get(id).copied().unwrap_or_default();
            daemons.user += now.user.saturating_sub(then.user);
            daemons.system += now.system.saturating_sub(then.system);
        }
        let load_user = after.own.children_user - before.own.children_user;
        let load_system = after.own.children_system - before.own.children_system;
        let known = load_user + load_system + daemons.user + daemons.system;
        Cost {
            wall_seconds,
            load_user_seconds: seconds(load_user),
            load_system_seconds: seconds(load_system),
            daemon_user_seconds: seconds(daemons.user),
            daemon_system_seconds: seconds(daemons.system),
            rest_seconds: seconds((after.machine - before.machine).saturating_sub(known)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemons_are_told_from_the_load_and_from_the_rest() {
        let tick = rustix::param::clock_ticks_per_second();
        let times = |user, system, children_user, children_system| Times {
            user,
            system,
            children_user,
            children_system,
        };
        let daemon = |user, system| times(user * tick, system * tick, 0, 0);
        let before = Clocks {
            machine: 100 * tick,
            own: times(5, 5, 10 * tick, 20 * tick),
            daemons: BTreeMap::from([(7, daemon(50, 60)), (8, daemon(9, 9))]),
        };
        let after = Clocks {
            machine: 120 * tick,
            own: times(6, 6, 11 * tick, 22 * tick),
            daemons: BTreeMap::from([(7, daemon(53, 64)), (9, daemon(1, 0))]),
        };
        let expected = Cost {
            wall_seconds: 10.0,
            load_user_seconds: 1.0,
            load_system_seconds: 2.0,
            daemon_user_seconds: 4.0,
            daemon_system_seconds: 4.0,
            rest_seconds: 9.0,
        };
        assert_eq!(Clocks::between(&before, &after, 10.0), expected);
    }
}
