//! What the work areas of running jobs hold: a thread measures one after the other, for about a hundredth of its time.
//!
//! So what is known of an area is as old as the pauses make it: some seconds on a host with few files, and a hundred times
//! as long as measuring all areas takes on others. Short jobs are not measured.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use forebay_grid::vocabulary::{Attempt, TaskId};

use super::Input;
use crate::area::bytes_below;
use crate::run::uptime_ms;

/// How long after its start a job is measured first, and how long after one measurement the next is made at the earliest.
const FIRST_MS: u64 = 2000;
const AGAIN_MS: u64 = 5000;
/// How often it is looked whether one is due: nobody wakes the thread, as most jobs are over before it is their turn.
const PAUSE: Duration = Duration::from_secs(1);
/// How much longer than a measurement the pause after it is.
const SHARE: u32 = 100;

/// And at most so long: a file system that did not answer for minutes leaves areas unbounded no longer than this.
const REST_MAX: Duration = Duration::from_secs(600);

/// Measures the areas of what it is told.
#[derive(Default)]
pub struct Space {
    jobs: Mutex<BTreeMap<(TaskId, Attempt), Job>>,
}

struct Job {
    areas: [PathBuf; 2],
    due_ms: u64,
}

impl Space {
    /// Starts the thread, which says by `inputs` what it measured.
    ///
    /// # Errors
    /// If there are no threads left.
    pub fn begin(inputs: Sender<Input>) -> Result<Arc<Space>> {
        let space = Arc::new(Space::default());
        let own = Arc::clone(&space);
        std::thread::Builder::new()
            .name("space".to_owned())
            .spawn(move || own.work(&inputs))
            .context("no thread can be started")?;
        Ok(space)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(TaskId, Attempt), Job>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A job runs in these areas.
    pub fn add(&self, run: (TaskId, Attempt), work: PathBuf, util: PathBuf) {
        let job = Job { areas: [work, util], due_ms: uptime_ms() + FIRST_MS };
        self.lock().insert(run, job);
    }

    /// A job has ended.
    pub fn remove(&self, run: (TaskId, Attempt)) {
        self.lock().remove(&run);
    }

    fn work(&self, inputs: &Sender<Input>) {
        loop {
            let Some((run, areas)) = self.due() else {
                std::thread::sleep(PAUSE);
                continue;
            };
            let begun_ms = uptime_ms();
            let bytes = areas.iter().map(|area| bytes_below(area)).fold(0, u64::saturating_add);
            let took_ms = uptime_ms().saturating_sub(begun_ms);
            if inputs.send(Input::Area { run, bytes }).is_err() {
                return;
            }
            if let Some(job) = self.lock().get_mut(&run) {
                job.due_ms = uptime_ms() + AGAIN_MS;
            }
            let rest = Duration::from_millis(took_ms) * SHARE;
            std::thread::sleep(rest.min(REST_MAX));
        }
    }

    /// The job whose turn it is.
    fn due(&self) -> Option<((TaskId, Attempt), [PathBuf; 2])> {
        let jobs = self.lock();
        let (run, job) = jobs.iter().min_by_key(|(_, job)| job.due_ms)?;
        (job.due_ms <= uptime_ms()).then(|| (*run, job.areas.clone()))
    }
}
