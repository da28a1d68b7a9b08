//! Watches the machine while jobs run: once an interval, a [`Sample`].
//!
//! One thread reads `/proc/stat`, `/proc/diskstats`, `/proc/meminfo`, `/proc/pressure/io` and the counters
//! of the running jobs. A tick that comes late makes a longer interval, whose length the sample tells.
//! The bytes and calls of all samples are exactly those of the jobs: what a job did after the last look
//! at it comes with its last counters. What is first seen after the interval in which it happened, as of a
//! job that another program started, is spread evenly over the time since the job was last seen, so that no
//! second is credited with the bytes of others. [`Sampler::mark`] ends a sample at the border of a stage, so
//! that none crosses it. Memory: one sample per interval (about 250 bytes), a few open
//! files per running job.

mod ledger;
pub mod snapshot;

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_base::Clock;
use forebay_process::accounting::Counters;
use forebay_process::disks::Selection;
use forebay_process::family::Family;

use crate::error::{Error, Result};
use crate::record::{DeviceScope, Sample};
use ledger::Ledger;
pub(crate) use ledger::{Seen, row, spread};
use snapshot::{Device, Interface, JobCounts, Memory, Pressure, Processor, Snapshot};

/// Shortest interval: the kernel counts processor time in steps of up to 10 ms.
pub const INTERVAL_MIN: Duration = Duration::from_millis(20);

/// Watches the machine until it is stopped or dropped.
pub struct Sampler {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    clock: Arc<dyn Clock>,
    /// Time zero of the samples.
    origin: Instant,
    interval: Duration,
    state: Mutex<State>,
    stopped: Condvar,
}

struct State {
    selection: Selection,
    families: HashMap<u32, Family>,
    ledger: Ledger,
    jobs: JobCounts,
    /// Start of the latest sample.
    before: Snapshot,
    /// End of the latest sample.
    now: Snapshot,
    samples: Vec<Sample>,
    /// Samples before the latest mark, which none that follows may be added to.
    marked: usize,
    /// When the next sample is due.
    due: Instant,
    stop: bool,
}

impl Sampler {
    /// Starts to watch. Seconds are counted from `origin`, which is now or earlier.
    ///
    /// # Errors
    /// [`Error::Io`] if no thread can be started.
    pub fn start(
        interval: Duration,
        scope: &DeviceScope,
        origin: Instant,
        clock: Arc<dyn Clock>,
    ) -> Result<Sampler> {
        let mut selection = selection_of(scope);
        let seconds = clock.instant().saturating_duration_since(origin).as_secs_f64();
        let now = look(seconds, &mut selection);
        let state = State {
            selection,
            families: HashMap::new(),
            ledger: Ledger::default(),
            jobs: JobCounts::default(),
            before: now.clone(),
            now,
            samples: Vec::new(),
            marked: 0,
            due: clock.instant() + interval.max(INTERVAL_MIN),
            stop: false,
        };
        let shared = Arc::new(Shared {
            clock,
            origin,
            interval: interval.max(INTERVAL_MIN),
            state: Mutex::new(state),
            stopped: Condvar::new(),
        });
        let thread = std::thread::Builder::new().name("sampler".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.run()
        });
        let thread = thread.map_err(Error::io("start the thread of", "sampler".as_ref()))?;
        Ok(Sampler { shared, thread: Some(thread) })
    }

    /// A job's process was started at `at`; it is counted from then on.
    pub fn job_started(&self, pid: u32, at: Instant) {
        let number = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
        let family = number.and_then(Family::of);
        let seconds = self.shared.seconds_of(at);
        let mut state = self.shared.lock();
        state.ledger.start(pid, seconds);
        if let Some(family) = family {
            state.families.insert(pid, family);
        }
    }

    /// A job's process ended at `at` with these counters. It may have been reaped before.
    pub fn job_ended(&self, pid: u32, at: Instant, last: Option<&Counters>) {
        let seconds = self.shared.seconds_of(at);
        let mut state = self.shared.lock();
        state.families.remove(&pid);
        state.ledger.end(pid, seconds, last.map(row));
    }

    /// A job that could not be watched ran from `start` to `end` and ended with these counters.
    pub fn job_unseen(&self, start: Instant, end: Instant, last: &Counters) {
        let (from, to) = (self.shared.seconds_of(start), self.shared.seconds_of(end));
        self.shared.lock().ledger.credit(Seen { from, to, row: row(last) });
    }

    /// Ends the sample under way: what follows is in the next one, which is due an interval from now. A
    /// rest of less than half an interval goes to the sample before it, unless a mark is in between.
    pub fn mark(&self) {
        let mut state = self.shared.lock();
        state.finish(self.shared.seconds(), self.shared.interval.as_secs_f64() / 2.0);
        state.marked = state.samples.len();
        state.due = self.shared.clock.instant() + self.shared.interval;
    }

    /// How many jobs are in which state from now on.
    pub fn set_jobs(&self, waiting: u32, running: u32, done: u32) {
        self.shared.lock().jobs = JobCounts { waiting, running, done };
    }

    /// The latest sample.
    #[must_use]
    pub fn latest(&self) -> Option<Sample> {
        self.shared.lock().samples.last().cloned()
    }

    /// Stops and hands out all samples. The last ends now; it is the longer one if less than half an
    /// interval has passed since the one before it.
    #[must_use]
    pub fn stop(mut self) -> Vec<Sample> {
        self.end();
        let mut state = self.shared.lock();
        let seconds = self.shared.seconds();
        // What comes after the last stage is nobody's.
        state.marked = 0;
        state.finish(seconds, self.shared.interval.as_secs_f64() / 2.0);
        state.settle();
        std::mem::take(&mut state.samples)
    }

    fn end(&mut self) {
        self.shared.lock().stop = true;
        self.shared.stopped.notify_all();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said why.
            let _ = thread.join();
        }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seconds(&self) -> f64 {
        self.seconds_of(self.clock.instant())
    }

    fn seconds_of(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.origin).as_secs_f64()
    }

    fn run(&self) {
        let mut state = self.lock();
        while !state.stop {
            let (now, due) = (self.clock.instant(), state.due);
            if now < due {
                let waited = self.stopped.wait_timeout(state, due - now);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            state.tick(self.seconds_of(now));
            state.due = next_due(due, now, self.interval);
        }
    }
}

/// The next tick after one at `now` that was due at `due`: on the beat, and at least half an interval
/// away.
fn next_due(due: Instant, now: Instant, interval: Duration) -> Instant {
    let late = now.saturating_duration_since(due);
    let missed = (late.as_secs_f64() / interval.as_secs_f64() + 0.5).floor();
    due + interval.mul_f64(missed + 1.0)
}

impl State {
    fn tick(&mut self, seconds: f64) {
        self.observe_jobs(seconds);
        let now = look(seconds, &mut self.selection);
        let traffic = self.ledger.take(self.now.at_seconds);
        let sample = now.since(&self.now, traffic, self.jobs);
        self.samples.push(sample);
        self.before = std::mem::replace(&mut self.now, now);
        for seen in self.ledger.take_late() {
            spread(&mut self.samples, &seen);
        }
    }

    fn observe_jobs(&mut self, seconds: f64) {
        let mut text = String::new();
        for (&pid, family) in &self.families {
            if let Some(counters) = family.look(&mut text) {
                self.ledger.observe(pid, seconds, row(&counters));
            }
        }
    }

    /// Ends a sample. A rest that is too short to tell a rate goes to the sample before, unless that
    /// belongs to what was before the latest mark.
    fn finish(&mut self, seconds: f64, rest_seconds_min: f64) {
        if seconds - self.now.at_seconds < rest_seconds_min
            && self.samples.len() > self.marked
            && let Some(last) = self.samples.pop()
        {
            self.ledger.add_back(&last);
            self.now = self.before.clone();
        }
        self.tick(seconds);
    }

    fn settle(&mut self) {
        self.ledger.settle(&mut self.samples);
    }
}

/// The devices of a scope.
pub(crate) fn selection_of(scope: &DeviceScope) -> Selection {
    match scope {
        DeviceScope::None => Selection::None,
        DeviceScope::Devices(names) => Selection::These(names.iter().cloned().collect()),
        DeviceScope::AllDisks => Selection::all_disks(),
    }
}

/// Looks at the machine.
pub(crate) fn look(at_seconds: f64, selection: &mut Selection) -> Snapshot {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let interfaces = network_interfaces();
    Snapshot {
        at_seconds,
        processor: Processor::parse(&read("/proc/stat")),
        devices: match selection {
            Selection::None => Default::default(),
            Selection::These(_) | Selection::Disks { .. } => {
                Device::parse_all(&read("/proc/diskstats"), |name| selection.has(name))
            }
        },
        memory: Memory::parse(&read("/proc/meminfo")),
        pressure: Pressure::parse(&read("/proc/pressure/io")),
        network: Interface::parse_all(&read("/proc/self/net/dev"), |name| {
            interfaces.iter().any(|counted| counted == name)
        }),
    }
}

/// The network interfaces whose bytes count: those of hardware, because what virtual ones move goes through these too; all but the
/// loopback where none is of hardware, as in a container.
pub(crate) fn network_interfaces() -> Vec<String> {
    let text = fs::read_to_string("/proc/self/net/dev").unwrap_or_default();
    let all = Interface::parse_all(&text, |name| name != "lo").unwrap_or_default();
    let is_hardware =
        |name: &String| Path::new("/sys/class/net").join(name).join("device").exists();
    let hardware: Vec<String> = all.keys().filter(|name| is_hardware(name)).cloned().collect();
    if hardware.is_empty() { all.into_keys().collect() } else { hardware }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::time::StepClock;

    #[test]
    fn ticks_stay_on_the_beat_and_never_follow_each_other_closely() {
        let start = StepClock::new(0).instant();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let interval = Duration::from_secs(1);
        for (now, next) in [(1000, 2000), (1400, 2000), (1600, 3000), (4200, 5000), (4700, 6000)] {
            let due = next_due(at(1000), at(now), interval);
            let off = (due - start).as_secs_f64() - f64::from(next) / 1000.0;
            assert!(off.abs() < 1e-6, "{now}: {off}");
        }
    }
}
