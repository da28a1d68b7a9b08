//! When jobs may begin and by when they must have ended, for jobs that say so.

use std::collections::BTreeSet;

use crate::ledger::Job;
use crate::vocabulary::{JobId, Moment};

/// Times of jobs that have not ended.
#[derive(Debug, Default)]
pub(crate) struct Times {
    /// Jobs that wait for their time, by it.
    begins: BTreeSet<(Moment, JobId)>,
    /// Jobs that must end, by when.
    deadlines: BTreeSet<(Moment, JobId)>,
}

impl Times {
    /// Takes in a job that has not ended; whether it waits for its time, as far as it was not looked at.
    pub fn open(&mut self, id: JobId, job: &Job) -> bool {
        let begin = job.begin();
        self.begins.extend(begin.map(|at| (at, id)));
        self.deadlines.extend(job.spec.deadline.map(|at| (at, id)));
        begin.is_some()
    }

    /// Takes out a job that has ended.
    pub fn close(&mut self, id: JobId, job: &Job) {
        if let Some(at) = job.begin() {
            self.begins.remove(&(at, id));
        }
        if let Some(at) = job.spec.deadline {
            self.deadlines.remove(&(at, id));
        }
    }

    /// The next job whose time has come, once.
    pub fn take_begun(&mut self, now: Moment) -> Option<JobId> {
        let (_, id) = *self.begins.first().filter(|(at, _)| *at <= now)?;
        self.begins.pop_first();
        Some(id)
    }

    /// The next job that must have ended by now, once.
    pub fn take_late(&mut self, now: Moment) -> Option<JobId> {
        let (_, id) = *self.deadlines.first().filter(|(at, _)| *at <= now)?;
        self.deadlines.pop_first();
        Some(id)
    }

    /// When a job is due next.
    pub fn next(&self) -> Moment {
        let firsts = [self.begins.first(), self.deadlines.first()];
        firsts.into_iter().flatten().map(|(at, _)| *at).min().unwrap_or(Moment::NEVER)
    }
}
