//! Those who watch jobs: they are told how a job is, and what happens to it until it has ended.
//!
//! A notice may come twice, to one who watches again after the controller was away; none is left out.
//! Memory: one channel for each watched job of a connection, and a process number for each task that runs.

use std::collections::HashMap;
use std::sync::mpsc::Sender;

use forebay_grid::account::AttemptRecord;
use forebay_grid::grid::State;
use forebay_grid::vocabulary::{Attempt, JobId, TaskId};

use crate::controller::listeners::Listeners;
use crate::engine::{Engine, JobEnd};
use crate::protocol::{Answer, Notice};

/// Everybody who watches.
#[derive(Default)]
pub(crate) struct Watches {
    jobs: Listeners<JobId>,
    pids: HashMap<(TaskId, Attempt), u32>,
}

impl Watches {
    /// The most tasks, and about the most starts, of a job that can be watched.
    pub const TASKS_MAX: u32 = 1000;

    pub fn too_many(job: JobId) -> String {
        let most = Watches::TASKS_MAX;
        format!(
            "job {job} has more than {most} tasks or starts and cannot be watched; wait for its end"
        )
    }

    /// Tells how a job is, with the attempts that have ended, and from now on what happens to it.
    pub fn add(
        &mut self,
        engine: &dyn Engine,
        (job, connection): (JobId, u64),
        ended: Vec<AttemptRecord>,
        reply: Sender<Answer>,
    ) {
        let notices = ended.into_iter().map(|record| Notice::Ended { record: Box::new(record) });
        let tasks = engine.spec(job).into_iter().flat_map(|spec| {
            (0..spec.tasks()).map(move |place| TaskId { job, index: spec.index_at(place) })
        });
        let running = tasks.filter_map(|task| self.running(engine, task));
        for notice in notices.chain(running) {
            let _ = reply.send(Answer::Noticed { notice });
        }
        match finished(engine, job) {
            Some(notice) => {
                let _ = reply.send(Answer::Noticed { notice });
            }
            // Whoever asks again on the same connection is told once of what comes.
            None if self.jobs.has_from(job, connection) => {}
            None => self.jobs.add(job, connection, reply),
        }
    }

    fn running(&self, engine: &dyn Engine, task: TaskId) -> Option<Notice> {
        let (host, attempt, at) = match engine.state(task)? {
            State::Running { host, attempt, started }
            | State::Suspended { host, attempt, started, .. } => (host, attempt, started),
            State::Pending { .. }
            | State::Held { .. }
            | State::Starting { .. }
            | State::Unknown { .. }
            | State::Finished { .. } => return None,
        };
        let pid = self.pids.get(&(task, attempt)).copied();
        Some(Notice::Started { task, attempt, host, at, pid })
    }

    /// Whether anybody watches a job.
    pub fn has(&self, job: JobId) -> bool {
        self.jobs.has(job)
    }

    /// A host has started a task, and said as which process.
    pub fn started(&mut self, engine: &dyn Engine, run: (TaskId, Attempt), pid: Option<u32>) {
        self.pids.extend(pid.map(|pid| (run, pid)));
        let (task, _) = run;
        if self.jobs.has(task.job)
            && let Some(notice) = self.running(engine, task)
        {
            self.jobs.tell(task.job, &Answer::Noticed { notice });
        }
    }

    /// An attempt ended.
    pub fn ended(&mut self, record: Box<AttemptRecord>) {
        let job = record.task.job;
        self.pids.remove(&(record.task, record.attempt));
        self.jobs.tell(job, &Answer::Noticed { notice: Notice::Ended { record } });
    }

    /// All tasks of a job have ended.
    pub fn finished(&mut self, job: JobId, JobEnd { value, at }: JobEnd) {
        let notice = Notice::Finished { job, value, at };
        self.jobs.tell_last(job, &Answer::Noticed { notice });
    }

    /// A connection has ended.
    pub fn forget(&mut self, connection: u64) {
        self.jobs.forget(connection);
    }
}

fn finished(engine: &dyn Engine, job: JobId) -> Option<Notice> {
    engine.end(job).map(|JobEnd { value, at }| Notice::Finished { job, value, at })
}
