//! Jobs that would wait for themselves: through the jobs that conditions name, or through `singleton()` for earlier jobs
//! with the same name.
//!
//! A job that is submitted cannot: no job waits for one that is not there yet. One that is modified or requeued can. Jobs
//! that have ended wait for nothing; when they are requeued, they are looked at again.

use std::collections::{BTreeMap, BTreeSet};

use crate::event::Refusal;
use crate::grid::Grid;
use crate::ledger::Job;
use crate::parse::dependency::Condition;
use crate::vocabulary::{JobId, Target, UserId};

/// The most jobs of a cycle that are named.
const SHOWN_MAX: usize = 8;

/// A job as it will be, if nothing waits in a circle.
#[derive(Clone, Copy)]
pub(super) struct Waiter<'a> {
    pub id: JobId,
    pub user: UserId,
    pub name: &'a str,
    pub condition: &'a Condition<Target>,
}

/// Why one job waits for another.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Link {
    /// Its condition names it.
    Named,
    /// It has the same name and was submitted before.
    SameName,
}

/// What was found on the way, and from where.
#[derive(Default)]
struct Walk<'a> {
    from: BTreeMap<JobId, (JobId, Link)>,
    next: Vec<JobId>,
    /// Names with the job up to which all unfinished jobs were found: another look begins there.
    names: BTreeMap<(UserId, &'a str), JobId>,
    /// Jobs that are taken to wait, though they have ended.
    again: BTreeSet<JobId>,
}

impl Walk<'_> {
    fn find(&mut self, job: JobId, from: JobId, link: Link) {
        self.from.entry(job).or_insert_with(|| {
            self.next.push(job);
            (from, link)
        });
    }

    /// The jobs of a cycle from its first one to that again, each with why the one before waits for it.
    fn path(&self, first: JobId) -> Vec<(JobId, Link)> {
        let mut path = Vec::new();
        let mut at = first;
        while let Some((from, link)) = self.from.get(&at) {
            path.push((at, *link));
            at = *from;
            if at == first {
                break;
            }
        }
        path.reverse();
        path
    }
}

impl Grid {
    /// Refuses a job that would wait for itself, through however many others.
    pub(super) fn check_cycle(&self, waiter: Waiter<'_>) -> Result<(), Refusal> {
        if !self.may_be_awaited(waiter) {
            return Ok(());
        }
        self.walk_from(waiter, Walk::default())
    }

    /// Refuses steps of a flow that are all to wait again if one of them would wait for itself. A step names steps before it only, so
    /// that takes one with `singleton()`.
    pub(super) fn check_cycles_again(&self, again: &BTreeSet<JobId>) -> Result<(), Refusal> {
        let conditions = || {
            let jobs = again.iter().map(|id| (*id, &self.ledger.jobs[id]));
            jobs.filter_map(|(id, job)| Some((id, job, job.condition.as_ref()?)))
        };
        if !conditions().any(|(_, _, condition)| condition.has_singleton()) {
            return Ok(());
        }
        for (id, job, condition) in conditions() {
            let waiter = Waiter { id, user: job.user, name: &job.spec.name, condition };
            self.walk_from(waiter, Walk { again: again.clone(), ..Walk::default() })?;
        }
        Ok(())
    }

    fn walk_from<'a>(&'a self, waiter: Waiter<'a>, mut walk: Walk<'a>) -> Result<(), Refusal> {
        self.follow(waiter, waiter, &mut walk);
        while let Some(id) = walk.next.pop() {
            if id == waiter.id {
                return Err(Refusal::Invalid(told(id, &walk.path(id))));
            }
            let waits = |job: &&Job| !job.tally.is_finished() || walk.again.contains(&id);
            let Some(job) = self.ledger.jobs.get(&id).filter(waits) else { continue };
            if let Some(condition) = &job.condition {
                let (user, name) = (job.user, job.spec.name.as_str());
                self.follow(Waiter { id, user, name, condition }, waiter, &mut walk);
            }
        }
        Ok(())
    }

    /// Whether any job may wait for one: a condition names it, or a later job has its name.
    fn may_be_awaited(&self, Waiter { id, user, name, condition }: Waiter<'_>) -> bool {
        let (next, end) = (JobId(id.0 + 1), JobId(u64::MAX));
        self.index.dependents.contains_key(&id)
            || condition.jobs().contains(&id)
            || self.index.names.unfinished_between(user, name, next, end).next().is_some()
    }

    /// Finds what a job waits for; `changed` is how one of all jobs will be.
    fn follow<'a>(&'a self, of: Waiter<'a>, changed: Waiter<'a>, walk: &mut Walk<'a>) {
        of.condition.leaves(&mut |leaf| match leaf {
            Condition::Is(_, target) | Condition::Each(_, target) => {
                walk.find(target.job, of.id, Link::Named);
            }
            Condition::Singleton => {
                let is_same = (changed.user, changed.name) == (of.user, of.name);
                if is_same && changed.id < of.id {
                    walk.find(changed.id, of.id, Link::SameName);
                }
                for id in walk.again.clone().range(..of.id) {
                    let job = &self.ledger.jobs[id];
                    if (job.user, job.spec.name.as_str()) == (of.user, of.name) {
                        walk.find(*id, of.id, Link::SameName);
                    }
                }
                let done = walk.names.get(&(of.user, of.name)).copied().unwrap_or_default();
                for job in self.index.names.unfinished_between(of.user, of.name, done, of.id) {
                    // It may have another name by now.
                    if job != changed.id {
                        walk.find(job, of.id, Link::SameName);
                    }
                }
                walk.names.insert((of.user, of.name), done.max(of.id));
            }
            Condition::All(_) | Condition::Any(_) => {}
        });
    }

    /// As [`Grid::check_cycle`], of a job as it is.
    pub(super) fn check_cycle_of(&self, id: JobId, job: &Job) -> Result<(), Refusal> {
        let Some(condition) = &job.condition else { return Ok(()) };
        self.check_cycle(Waiter { id, user: job.user, name: &job.spec.name, condition })
    }
}

/// A cycle in words.
fn told(job: JobId, path: &[(JobId, Link)]) -> String {
    let mut told = format!("job {job} would wait for itself");
    if path.len() == 1 {
        return told;
    }
    for (place, (next, link)) in path.iter().take(SHOWN_MAX).enumerate() {
        told += if place == 0 { ": it waits for job " } else { ", which waits for job " };
        told += &next.to_string();
        if *link == Link::SameName {
            told += " (same name, singleton())";
        }
    }
    if path.len() > SHOWN_MAX {
        told += &format!(", and so on through {} jobs", path.len());
    }
    told
}
