//! What the controller counts for monitors: jobs taken, started and ended, how long they waited, commits of the journal.
//!
//! Nothing here lasts: counts begin with the process. Nothing is decided by them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_grid::Effect;
use forebay_grid::journal::{Change, Record};
use forebay_grid::vocabulary::{Attempt, Moment, QueueName, TaskId};
use forebay_metrics::Histogram;

use crate::engine::Engine;

/// Edges of times that jobs wait, in seconds.
const WAITS: &[f64] =
    &[0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0];
/// Edges of times of the controller and of hosts, in seconds.
const QUICK: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// What is counted of one queue.
#[derive(Clone, Debug)]
pub struct QueueFigures {
    /// Tasks of jobs that were submitted to it.
    pub submitted: u64,
    /// Starts of tasks.
    pub launched: u64,
    /// Attempts that ended, by what became of the task.
    pub ended: BTreeMap<&'static str, u64>,
    /// Processor time of attempts that ended.
    pub processor_seconds: f64,
    /// Bytes that they read by system calls.
    pub read_bytes: u64,
    /// Bytes that they wrote likewise.
    pub written_bytes: u64,
    /// How long their threads waited for block devices, as far as the kernel says.
    pub io_wait_seconds: f64,
    /// From the submission of a job to the first start of its task.
    pub waited: Histogram,
    /// From the order to a host to the host's word that the task runs.
    pub dispatch: Histogram,
}

impl Default for QueueFigures {
    fn default() -> QueueFigures {
        QueueFigures {
            submitted: 0,
            launched: 0,
            ended: BTreeMap::new(),
            processor_seconds: 0.0,
            read_bytes: 0,
            written_bytes: 0,
            io_wait_seconds: 0.0,
            waited: Histogram::new(WAITS),
            dispatch: Histogram::new(QUICK),
        }
    }
}

/// What is counted.
#[derive(Clone, Debug)]
pub struct Counted {
    /// By queue.
    pub queues: BTreeMap<QueueName, QueueFigures>,
    /// Commits of the journal.
    pub commits: Histogram,
    /// Records that they held.
    pub records: u64,
}

impl Default for Counted {
    fn default() -> Counted {
        Counted { queues: BTreeMap::new(), commits: Histogram::new(QUICK), records: 0 }
    }
}

/// What the controller counts. Others may look at it.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    counted: Arc<Mutex<Counted>>,
    /// Tasks that hosts were told to start: since when, and of which queue.
    starting: HashMap<TaskId, (Attempt, Moment, QueueName)>,
}

impl Figures {
    /// What was counted so far.
    #[must_use]
    pub fn read(&self) -> Counted {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records became durable.
    pub(super) fn committed(&self, took: Duration, records: &[Record]) {
        if records.is_empty() {
            return;
        }
        let mut counted = self.lock();
        counted.commits.add(took.as_secs_f64());
        counted.records += records.len() as u64;
        for record in records {
            if let Change::Submitted(submitted) = &record.change
                && let Some(queue) = &submitted.spec.queue
            {
                let queue = counted.queues.entry(queue.clone()).or_default();
                queue.submitted += u64::from(submitted.spec.tasks());
            }
        }
    }

    /// An effect is carried out.
    pub(super) fn note(&mut self, engine: &dyn Engine, effect: &Effect, now: Moment) {
        match effect {
            Effect::Launch { task, attempt, .. } => {
                let Some(queue) = engine.spec(task.job).and_then(|spec| spec.queue.clone()) else {
                    return;
                };
                self.starting.insert(*task, (*attempt, now, queue.clone()));
                let mut counted = self.lock();
                let figures = counted.queues.entry(queue).or_default();
                figures.launched += 1;
                if let (Attempt(1), Some(submitted)) = (*attempt, engine.submitted(task.job)) {
                    figures.waited.add(seconds(now.since(submitted)));
                }
            }
            Effect::Ended(record) => {
                self.starting.remove(&record.task);
                let mut counted = self.lock();
                let figures = counted.queues.entry(record.queue.clone()).or_default();
                *figures.ended.entry(record.state()).or_default() += 1;
                if let Some(usage) = &record.usage {
                    figures.processor_seconds += usage.cpu_seconds();
                    figures.read_bytes += usage.read_bytes.unwrap_or(0);
                    figures.written_bytes += usage.written_bytes.unwrap_or(0);
                    figures.io_wait_seconds += usage.io_wait_seconds.unwrap_or(0.0);
                }
            }
            _ => {}
        }
    }

    /// A host has started a task.
    pub(super) fn started(&mut self, task: TaskId, attempt: Attempt, now: Moment) {
        let Some((ordered, since, _)) = self.starting.get(&task) else { return };
        if *ordered != attempt {
            return;
        }
        let took = seconds(now.since(*since));
        if let Some((.., queue)) = self.starting.remove(&task) {
            self.lock().queues.entry(queue).or_default().dispatch.add(took);
        }
    }
}

fn seconds(milliseconds: u64) -> f64 {
    Duration::from_millis(milliseconds).as_secs_f64()
}
