//! Finished jobs that may be forgotten, and in which order they go.
//!
//! A job goes when it is too old, when its user's finished jobs are too many, and when all of them are. In the last case
//! they go of the user who has the most: nobody's many drive out another one's few.

use std::collections::BTreeSet;

use crate::config::General;
use crate::footprint::Footprint;
use crate::ledger::Job;
use crate::vocabulary::{JobId, Moment, UserId};

/// Finished jobs, but for those that are kept as something waits for them.
#[derive(Debug, Default)]
pub(crate) struct Finished {
    by_age: BTreeSet<(Moment, JobId)>,
    users: Vec<OfUser>,
    /// Users by how many tasks and bytes theirs have; those that have none are not in it.
    by_tasks: BTreeSet<(u64, UserId)>,
    by_bytes: BTreeSet<(u64, UserId)>,
    tasks: u64,
    bytes: u64,
}

#[derive(Debug, Default)]
struct OfUser {
    by_age: BTreeSet<(Moment, JobId)>,
    tasks: u64,
    footprint: Footprint,
}

impl Finished {
    /// Takes a job in that ended at a time; whether it was not there.
    pub fn insert(&mut self, at: Moment, id: JobId, job: &Job) -> bool {
        if !self.by_age.insert((at, id)) {
            return false;
        }
        self.change(job, |user| {
            user.by_age.insert((at, id));
            user.tasks += u64::from(job.tally.all());
            user.footprint.add(job);
        });
        true
    }

    /// Takes a job out that ended at a time; whether it was there.
    pub fn remove(&mut self, at: Moment, id: JobId, job: &Job) -> bool {
        if !self.by_age.remove(&(at, id)) {
            return false;
        }
        self.change(job, |user| {
            user.by_age.remove(&(at, id));
            user.tasks -= u64::from(job.tally.all());
            user.footprint.remove(job);
        });
        true
    }

    /// When the oldest of them ended.
    pub fn oldest(&self) -> Option<Moment> {
        self.by_age.first().map(|(at, _)| *at)
    }

    /// The job that has to be forgotten next, if any has by these settings.
    pub fn next_to_go(&self, general: &General, now: Moment) -> Option<JobId> {
        let bytes = (self.bytes, general.finished_bytes_max.0, general.user_finished_bytes_max.0);
        let tasks =
            (self.tasks, u64::from(general.finished_max), u64::from(general.user_finished_max));
        let over = [(&self.by_tasks, tasks), (&self.by_bytes, bytes)];
        let of_user = over.into_iter().find_map(|(users, (all, most, most_of_one))| {
            let (most_now, user) = users.last()?;
            (all > most || *most_now > most_of_one).then_some(*user)
        });
        let oldest = match of_user {
            Some(user) => self.users[user.0 as usize].by_age.first(),
            None => {
                self.by_age.first().filter(|(at, _)| at.after(general.finished_age.as_ms()) <= now)
            }
        };
        oldest.map(|(_, id)| *id)
    }

    fn change(&mut self, job: &Job, change: impl FnOnce(&mut OfUser)) {
        let id = job.user;
        if self.users.len() <= id.0 as usize {
            self.users.resize_with(id.0 as usize + 1, OfUser::default);
        }
        let user = &mut self.users[id.0 as usize];
        let before = (user.tasks, user.footprint.bytes());
        change(user);
        let after = (user.tasks, user.footprint.bytes());
        self.tasks = self.tasks - before.0 + after.0;
        self.bytes = self.bytes - before.1 + after.1;
        for (users, before, after) in
            [(&mut self.by_tasks, before.0, after.0), (&mut self.by_bytes, before.1, after.1)]
        {
            users.remove(&(before, id));
            if after > 0 {
                users.insert((after, id));
            }
        }
    }
}
