//! What a job uses while it runs: a thread of its shim looks from time to time.
//!
//! It tells the agent, which passes it on (bytes and calls are those of processes that live and the children they waited for;
//! the end of the job has better ones), keeps the most memory that all processes of the job had together, and ends a job of which
//! something was killed because its memory was over its limit. It looks 0.1 s after the start first, then ever less often, up
//! to once a second, and never for more than about a hundredth of the time.
//!
//! Memory is what the processes have resident, each page counted once however many of them share it (`Pss` of
//! `smaps_rollup`); of a job of one process, its resident pages. The page cache is not in it. What lives for less than
//! the time between two looks is seen by the kernel's own peak of each process only.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use anyhow::{Context as _, Result};
use forebay_process::accounting::Counters;
use forebay_process::stat::Stat;
use forebay_process::{descendants, memory};
use rustix::process::Pid;

use crate::cgroup::{Group, Processor};
use crate::run::request::{Now, Word};
use crate::run::uptime_ms;

/// The first look, and the time between later ones at most.
const FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How often the agent is told at most.
const TELL_MS: u64 = 2000;
/// How much longer than a look the time up to the next one is.
const SHARE: u32 = 100;

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The thread, and what it looks at.
pub struct Sampler {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    job: Option<Job>,
    /// The number of the job, which tells a look at an earlier one.
    number: u64,
    /// When the thread looks next by itself; none if it waits to be woken.
    looks_ms: Option<u64>,
}

/// The job that runs.
struct Job {
    group: Option<Arc<Group>>,
    begun_ms: u64,
    seen: Seen,
}

/// What was seen of a job.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The most memory of all processes together.
    pub memory_bytes: u64,
    /// Bytes and calls up to now, as far as they were seen.
    counters: Option<Counters>,
    /// Processor time of processes without a group: of each as it was last seen.
    processes: HashMap<Pid, f64>,
    /// That of processes that were gone when they were next looked for.
    gone_seconds: f64,
}

impl Seen {
    /// Processor seconds that were seen, as far as no group counts them.
    pub fn processor_seconds(&self) -> f64 {
        self.gone_seconds + self.processes.values().sum::<f64>()
    }
}

impl Sampler {
    /// Starts the thread.
    ///
    /// # Errors
    /// If there are no threads left.
    pub fn begin() -> Result<Arc<Sampler>> {
        let sampler = Arc::new(Sampler { state: Mutex::default(), changed: Condvar::new() });
        let own = Arc::clone(&sampler);
        std::thread::Builder::new()
            .name("usage".to_owned())
            .spawn(move || own.work())
            .context("no thread can be started")?;
        Ok(sampler)
    }

    /// A job runs. The thread is woken only if it would not look in time: most jobs of a busy host are shorter than that.
    pub fn watch(&self, group: Option<Arc<Group>>) {
        let begun_ms = uptime_ms();
        let mut state = self.lock();
        state.number += 1;
        state.job = Some(Job { group, begun_ms, seen: Seen::default() });
        if state.looks_ms.is_none_or(|looks_ms| looks_ms > begun_ms + millis(FIRST)) {
            self.changed.notify_one();
        }
    }

    /// The job has ended; what was seen of it.
    pub fn leave(&self) -> Seen {
        self.lock().job.take().map(|job| job.seen).unwrap_or_default()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        loop {
            let mut state = self.lock();
            while state.job.is_none() {
                state.looks_ms = None;
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let number = state.number;
            let group = state.job.as_ref().and_then(|job| job.group.as_ref().map(Arc::downgrade));
            let begun_ms = state.job.as_ref().map_or(0, |job| job.begun_ms);
            drop(state);
            self.follow(number, begun_ms, group.as_ref());
        }
    }

    /// Waits until a job should be looked at; whether it still runs then.
    fn wait(&self, number: u64, pause: Duration) -> bool {
        let mut state = self.lock();
        let runs = |state: &State| state.number == number && state.job.is_some();
        state.looks_ms = Some(uptime_ms() + millis(pause));
        // An end wakes nobody, and neither does a next job that this look comes in time for.
        let waited = self.changed.wait_timeout_while(state, pause, |state| runs(state));
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        runs(&state)
    }

    /// Looks at a job until it has ended.
    fn follow(&self, number: u64, begun_ms: u64, group: Option<&Weak<Group>>) {
        let mut told_ms = uptime_ms();
        let since = Duration::from_millis(told_ms.saturating_sub(begun_ms));
        let mut pause = FIRST.saturating_sub(since);
        let mut is_first = true;
        loop {
            if !self.wait(number, pause) {
                return;
            }
            let begun_ms = uptime_ms();
            // It is removed with its job, which does not wait for this.
            let held = group.map(Weak::upgrade);
            let group = match &held {
                Some(None) => return,
                Some(Some(group)) => Some(&**group),
                None => None,
            };
            if let Some(group) = group
                && group.exceeded().is_some()
            {
                group.kill();
            }
            let look = Look::at(group);
            drop(held);
            let took = Duration::from_millis(uptime_ms().saturating_sub(begun_ms));
            let mut state = self.lock();
            if state.number != number {
                return;
            }
            let Some(job) = state.job.as_mut() else { return };
            let now = job.take(look);
            drop(state);
            if begun_ms.saturating_sub(told_ms) >= TELL_MS || is_first {
                told_ms = begun_ms;
                // It may be gone, or not listen.
                let _ = Word::Using { now }.say(rustix::stdio::stdout());
            }
            pause = (pause.max(FIRST / 2) * 2).min(PAUSE_MAX).max(took * SHARE);
            is_first = false;
        }
    }
}

impl Job {
    /// Takes note of a look; what the job has used up to now.
    fn take(&mut self, look: Look) -> Now {
        self.seen.memory_bytes = self.seen.memory_bytes.max(look.memory_bytes);
        let processor = match look.processor {
            Some(processor) => processor,
            None => {
                let before = std::mem::replace(&mut self.seen.processes, look.processes);
                let gone = before.iter().filter(|(pid, _)| !self.seen.processes.contains_key(pid));
                self.seen.gone_seconds += gone.map(|(_, seconds)| seconds).sum::<f64>();
                let user_seconds = self.seen.processor_seconds();
                Processor { user_seconds, system_seconds: 0.0 }
            }
        };
        // A process that ends and that nobody of the job waits for takes its bytes along.
        if let Some(counters) = look.counters {
            let before = self.seen.counters.unwrap_or_default();
            self.seen.counters = Some(before.most(&counters));
        }
        let pair = |of: fn(&Counters) -> (u64, u64)| self.seen.counters.as_ref().map(of);
        let ms = |seconds: f64| (seconds * 1000.0) as u64;
        Now {
            real_ms: uptime_ms().saturating_sub(self.begun_ms),
            user_ms: ms(processor.user_seconds),
            system_ms: ms(processor.system_seconds),
            memory_bytes: self.seen.memory_bytes,
            bytes: pair(|it| (it.read_bytes, it.written_bytes)),
            io_ms: look.io_seconds.map(ms),
            calls: pair(|it| (it.read_calls, it.write_calls)),
            device_bytes: pair(|it| (it.device_read_bytes, it.device_written_bytes())),
        }
    }
}

/// What there is at one time.
struct Look {
    memory_bytes: u64,
    processor: Option<Processor>,
    /// What the processes that live have read and written; none if the kernel does not count it.
    counters: Option<Counters>,
    io_seconds: Option<f64>,
    /// Without a group: processor seconds of each process.
    processes: HashMap<Pid, f64>,
}

impl Look {
    fn at(group: Option<&Group>) -> Look {
        let living = group.map_or_else(descendants::processes, Group::processes);
        let memory_bytes = match living[..] {
            [one] => memory::resident(one).unwrap_or(0),
            _ => {
                living.iter().filter_map(|&pid| memory::share(pid).or(memory::resident(pid))).sum()
            }
        };
        let processor = group.and_then(Group::processor);
        let processes = match processor {
            Some(_) => HashMap::new(),
            None => living
                .iter()
                .filter_map(|pid| Some((*pid, Stat::of(*pid)?.processor_seconds())))
                .collect(),
        };
        let counters = living.iter().filter_map(|&pid| Counters::of_process(pid)).reduce(
            |mut sum, counters| {
                sum.add(&counters);
                sum
            },
        );
        let io_seconds = group.and_then(Group::io_pressure_seconds);
        Look { memory_bytes, processor, counters, io_seconds, processes }
    }
}
