//! Contexts, clocks and counters for the tests.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_analytics::Result;
use forebay_analytics::amount::Scale;
use forebay_base::time::{Clock, SystemClock, Timestamp};
use forebay_workload::program::{Buffers, Context, Job, NamedStep, Outcome, Places, Program, Step};

/// The context of job `number` of `count` with its areas below `root`.
pub fn context<'a>(root: &Path, number: u64, count: u64, clock: &'a dyn Clock) -> Context<'a> {
    let place = |name| root.join(name);
    Context {
        places: Places { data: place("data"), work: place("work"), util: place("util") },
        job: Job { name: format!("probe-{number}"), class: "probe".into(), number, count },
        seed: 7,
        scale: Scale::FULL,
        buffers: Buffers::default(),
        clock,
    }
}

/// Runs one step as a program of its own.
pub fn run_in(context: &Context<'_>, step: Step) -> Result<Outcome> {
    let named = NamedStep { name: None, table: None, step };
    let program = Program { name: "probe".into(), steps: vec![named] };
    let mut outcome = None;
    program
        .run(context, &mut |_, _| {}, &mut |record| outcome = Some(record.outcome), &mut |_| {})
        .map_err(|error| match error {
            forebay_workload::Error::Step { source, .. } => source,
            other => panic!("{other}"),
        })?;
    Ok(outcome.expect("a program that ends well has recorded its step"))
}

/// Runs the step that `settings` (TOML) describe as the only job.
pub fn run(root: &Path, settings: &str) -> Result<Outcome> {
    let step: Step = toml::from_str(settings).unwrap();
    run_in(&context(root, 0, 1, &SystemClock), step)
}

/// Files below a directory, those of directories too.
pub fn files_below(directory: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut files = Vec::new();
    for entry in entries.map(|entry| entry.unwrap()) {
        if entry.file_type().unwrap().is_dir() {
            files.extend(files_below(&entry.path()));
        } else {
            files.push(entry.file_name().into_string().unwrap());
        }
    }
    files.sort();
    files
}

/// Bytes that this thread has read and written, as the kernel counts them.
pub struct Moved {
    /// By system calls.
    pub read: u64,
    /// By system calls.
    pub written: u64,
    /// From disks.
    pub fetched: u64,
}

impl Moved {
    /// What `work` moves.
    pub fn by<T>(work: impl FnOnce() -> T) -> (T, Moved) {
        let (before, own) = Moved::so_far();
        let result = work();
        let (after, _) = Moved::so_far();
        let moved = Moved {
            // The kernel counts the reading of its counters too.
            read: after.read - before.read - own,
            written: after.written - before.written,
            fetched: after.fetched - before.fetched,
        };
        (result, moved)
    }

    /// The counters, and the bytes that reading them takes.
    fn so_far() -> (Moved, u64) {
        let text = std::fs::read_to_string("/proc/thread-self/io").unwrap();
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().parse().unwrap()
        };
        let moved = Moved {
            read: field("rchar:"),
            written: field("wchar:"),
            fetched: field("read_bytes:"),
        };
        (moved, text.len() as u64)
    }
}

/// A clock whose every reading is 10 ms after the one before.
pub struct TickClock {
    start: Instant,
    ticks: AtomicU64,
}

impl TickClock {
    pub fn new() -> TickClock {
        TickClock { start: SystemClock.instant(), ticks: AtomicU64::new(0) }
    }
}

impl Clock for TickClock {
    fn now(&self) -> Timestamp {
        Timestamp::new(0, 0)
    }

    fn instant(&self) -> Instant {
        self.start + Duration::from_millis(10) * self.ticks.fetch_add(1, Ordering::SeqCst) as u32
    }
}
