//! Jobs by their user and name: all that are known, those that have not ended, and the one that may run where only one may.
//!
//! Memory: two or three entries of a tree for each job with a name. Each change looks at a few of them, however many there are.

use std::collections::{BTreeMap, BTreeSet};

use crate::ledger::Job;
use crate::vocabulary::{JobId, UserId};

/// Jobs of one user with the same name.
#[derive(Debug, Default)]
struct Namesakes {
    all: BTreeSet<JobId>,
    unfinished: BTreeSet<JobId>,
    /// Those with a task on a host.
    active: BTreeSet<JobId>,
}

impl Namesakes {
    /// The first that has not ended, unless another one is on a host.
    fn next(&self) -> Option<JobId> {
        let first = *self.unfinished.first()?;
        self.active.iter().all(|job| *job == first).then_some(first)
    }

    /// One that keeps a job from being the next.
    fn in_the_way_of(&self, id: JobId) -> Option<JobId> {
        let earlier = self.unfinished.first().filter(|first| **first < id);
        earlier.or_else(|| self.active.iter().find(|job| **job != id)).copied()
    }
}

/// The job that was the next one of its name before a change, and the one that is now.
pub(crate) type Turn = (Option<JobId>, Option<JobId>);

/// Jobs by their user and name; those without a name are not among them.
#[derive(Debug, Default)]
pub(crate) struct Names {
    by_name: BTreeMap<(UserId, String), Namesakes>,
}

impl Names {
    /// Takes a job in, or brings it up to date.
    pub fn note(&mut self, id: JobId, job: &Job) -> Turn {
        if job.spec.name.is_empty() {
            return (None, None);
        }
        let namesakes = self.by_name.entry(key(job)).or_default();
        let before = namesakes.next();
        namesakes.all.insert(id);
        let mut keep = |set: fn(&mut Namesakes) -> &mut BTreeSet<JobId>, is_in: bool| {
            let set = set(namesakes);
            if is_in {
                set.insert(id)
            } else {
                set.remove(&id)
            };
        };
        keep(|namesakes| &mut namesakes.unfinished, !job.tally.is_finished());
        keep(|namesakes| &mut namesakes.active, job.tally.active > 0);
        (before, namesakes.next())
    }

    /// Takes a job out.
    pub fn remove(&mut self, id: JobId, job: &Job) -> Turn {
        let key = key(job);
        let Some(namesakes) = self.by_name.get_mut(&key) else { return (None, None) };
        let before = namesakes.next();
        namesakes.all.remove(&id);
        namesakes.unfinished.remove(&id);
        namesakes.active.remove(&id);
        let after = namesakes.next();
        if namesakes.all.is_empty() {
            self.by_name.remove(&key);
        }
        (before, after)
    }

    /// Another job of the user with its name that has not ended and was submitted before it, or is on a host.
    pub fn in_the_way_of(&self, id: JobId, job: &Job) -> Option<JobId> {
        self.by_name.get(&key(job))?.in_the_way_of(id)
    }

    /// Jobs of a user with a name that have not ended and were submitted before one, from another one on.
    pub fn unfinished_between(
        &self,
        user: UserId,
        name: &str,
        first: JobId,
        before: JobId,
    ) -> impl Iterator<Item = JobId> {
        let found = self.by_name.get(&(user, name.to_owned())).filter(|_| first < before);
        found
            .into_iter()
            .flat_map(move |namesakes| namesakes.unfinished.range(first..before))
            .copied()
    }

    /// Whether a user has a job with a name that has not ended.
    pub fn any_unfinished(&self, user: UserId, name: &str) -> bool {
        let found = self.by_name.get(&(user, name.to_owned()));
        found.is_some_and(|namesakes| !namesakes.unfinished.is_empty())
    }

    /// Names of a user that begin so, with their jobs.
    pub fn beginning_with<'a>(
        &'a self,
        user: UserId,
        prefix: &'a str,
    ) -> impl Iterator<Item = (&'a String, &'a BTreeSet<JobId>)> {
        let from = self.by_name.range((user, prefix.to_owned())..);
        from.take_while(move |((owner, name), _)| *owner == user && name.starts_with(prefix))
            .map(|((_, name), namesakes)| (name, &namesakes.all))
    }
}

fn key(job: &Job) -> (UserId, String) {
    (job.user, job.spec.name.clone())
}
