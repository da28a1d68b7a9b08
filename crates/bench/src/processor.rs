//! Who uses the processor while something is measured.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_process::stat::Stat;
use rustix::process::Pid;
use serde::Serialize;

use crate::interrupt::Interrupt;

/// Other programs may use so many cores, on average, before a measurement counts as disturbed. Loads
/// of other programs are told by their user time: the kernel works for the measured load as well.
pub const DISTURBED_CORES: f64 = 0.1;

/// How long to look whether the machine is quiet.
const LOOK: Duration = Duration::from_secs(1);
/// Longest wait for a quiet machine.
const QUIET_WAIT_MAX: Duration = Duration::from_secs(300);

/// Cores that were busy, on average.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Usage {
    /// All of them.
    pub busy_cores: f64,
    /// Those that the daemon used.
    pub daemon_cores: f64,
    /// Those that the user code of other programs used.
    pub other_cores: f64,
}

/// The processor clocks at one time, in ticks.
#[derive(Clone, Copy, Debug)]
struct Ticks {
    machine: u64,
    machine_user: u64,
    own_user: u64,
    daemon: u64,
    daemon_user: u64,
}

/// A span of time whose processor use is of interest.
#[derive(Debug)]
pub struct Span {
    start: std::time::Instant,
    before: Ticks,
    daemon: Option<u32>,
}

impl Span {
    /// Begins now; with the process id of the daemon if there is one.
    ///
    /// # Errors
    /// If /proc cannot be read.
    pub fn begin(daemon: Option<u32>) -> Result<Span> {
        Ok(Span { start: SystemClock.instant(), before: read(daemon)?, daemon })
    }

    /// Who used the processor until now. The children of this process have ended.
    ///
    /// # Errors
    /// If /proc cannot be read.
    pub fn end(&self) -> Result<Usage> {
        let (now, before) = (read(self.daemon)?, &self.before);
        let seconds = (SystemClock.instant() - self.start).as_secs_f64().max(1e-3);
        let cores =
            |ticks: u64| ticks as f64 / rustix::param::clock_ticks_per_second() as f64 / seconds;
        let ours = (now.own_user - before.own_user) + (now.daemon_user - before.daemon_user);
        Ok(Usage {
            busy_cores: cores(now.machine - before.machine),
            daemon_cores: cores(now.daemon - before.daemon),
            other_cores: cores((now.machine_user - before.machine_user).saturating_sub(ours)),
        })
    }
}

/// Waits until other programs leave the machine alone, but not forever.
///
/// # Errors
/// After a signal.
pub fn wait_for_quiet(interrupt: &Interrupt) -> Result<()> {
    let mut waited = Duration::ZERO;
    loop {
        let span = Span::begin(None)?;
        interrupt.sleep(LOOK)?;
        waited += LOOK;
        if span.end()?.other_cores <= DISTURBED_CORES || waited >= QUIET_WAIT_MAX {
            return Ok(());
        }
    }
}

/// Ticks that the cores of the machine were busy since it started, and those in user code among them.
fn busy_ticks() -> Result<(u64, u64)> {
    let all = fs::read_to_string("/proc/stat")?;
    let line = all.lines().next().unwrap_or_default();
    // user nice system idle iowait irq softirq steal; guests are part of user and nice
    let ticks: Vec<u64> =
        line.split_whitespace().skip(1).filter_map(|text| text.parse().ok()).collect();
    let [user, nice, system, _idle, _iowait, irq, softirq, steal, ..] = ticks[..] else {
        anyhow::bail!("/proc/stat has an unknown form");
    };
    Ok((user + nice + system + irq + softirq + steal, user + nice))
}

/// Ticks that the cores of the machine were busy since it started.
///
/// # Errors
/// If /proc cannot be read.
pub fn machine_ticks() -> Result<u64> {
    busy_ticks().map(|(busy, _)| busy)
}

fn read(daemon: Option<u32>) -> Result<Ticks> {
    let (machine, machine_user) = busy_ticks()?;
    let own = Times::own().context("cannot read the times of this process")?;
    let daemon = daemon.map_or(Some(Times::default()), Times::of);
    let daemon = daemon.context("cannot read the times of the daemon")?;
    Ok(Ticks {
        machine,
        machine_user,
        own_user: own.user + own.children_user,
        daemon: daemon.user + daemon.system,
        daemon_user: daemon.user,
    })
}

/// Processor times of a process, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// In its own code.
    pub user: u64,
    /// In the kernel.
    pub system: u64,
    /// Of its children that have ended and were waited for, in their code.
    pub children_user: u64,
    /// Of the same, in the kernel.
    pub children_system: u64,
}

impl Times {
    /// Of a process; none if it is not there.
    #[must_use]
    pub fn of(pid: u32) -> Option<Times> {
        Stat::of(Pid::from_raw(i32::try_from(pid).ok()?)?).map(Times::from)
    }

    /// Of this process; none if /proc cannot be read.
    #[must_use]
    pub fn own() -> Option<Times> {
        Stat::own().map(Times::from)
    }
}

impl From<Stat> for Times {
    fn from(stat: Stat) -> Times {
        Times {
            user: stat.user_ticks,
            system: stat.system_ticks,
            children_user: stat.children_user_ticks,
            children_system: stat.children_system_ticks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_can_be_read() {
        let usage = Span::begin(Some(std::process::id())).unwrap().end().unwrap();
        assert!(usage.busy_cores >= 0.0 && usage.other_cores >= 0.0);
    }
}
