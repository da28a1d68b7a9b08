//! What dependency conditions say of jobs: met, not yet, or never.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ledger::{Job, Ledger};
use crate::parse::dependency::{Condition, Countable, Test};
use crate::task::{Finish, Phase, Post, Task};
use crate::vocabulary::{JobId, Moment, Target};

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It can no longer come true, unless somebody requeues what it waits for.
    Never,
    /// It does not hold yet.
    Unmet,
    /// It holds.
    Met,
}

impl Verdict {
    fn of(met: bool, possible: bool) -> Verdict {
        match (met, possible) {
            (true, _) => Verdict::Met,
            (false, true) => Verdict::Unmet,
            (false, false) => Verdict::Never,
        }
    }
}

/// How many tasks of a job are how far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Tasks that wait for their turn.
    pub pending: u32,
    /// Tasks that wait to be released.
    pub held: u32,
    /// Tasks that were given to a host.
    pub active: u32,
    /// Those of them that the host has started.
    pub running: u32,
    /// Tasks that ended by themselves with exit value 0.
    pub done: u32,
    /// Tasks that ended otherwise.
    pub failed: u32,
    /// Done tasks whose work area is gone.
    pub post_done: u32,
    /// Tasks whose work area could not be removed.
    pub post_failed: u32,
    /// Failed tasks by exit value; those without one do not count.
    pub exits: BTreeMap<u8, u32>,
}

impl Tally {
    /// All tasks.
    #[must_use]
    pub fn all(&self) -> u32 {
        self.pending + self.held + self.active + self.done + self.failed
    }

    /// Tasks that ended.
    #[must_use]
    pub fn ended(&self) -> u32 {
        self.done + self.failed
    }

    /// Whether every task ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.pending + self.held + self.active == 0
    }

    pub(crate) fn add(&mut self, task: &Task) {
        self.change(task, |count| *count += 1);
    }

    pub(crate) fn remove(&mut self, task: &Task) {
        self.change(task, |count| *count -= 1);
        if let Task::Finished(finish) = task
            && let Some(value) = failed_value(finish)
            && self.exits.get(&value) == Some(&0)
        {
            self.exits.remove(&value);
        }
    }

    fn change(&mut self, task: &Task, mut by_one: impl FnMut(&mut u32)) {
        match task {
            Task::Pending(_) => by_one(&mut self.pending),
            Task::Held(_) => by_one(&mut self.held),
            Task::Active(run) => {
                by_one(&mut self.active);
                if run.phase != Phase::Starting {
                    by_one(&mut self.running);
                }
            }
            Task::Finished(finish) => {
                by_one(if finish.is_done() { &mut self.done } else { &mut self.failed });
                if finish.is_done() && finish.post == Post::Done {
                    by_one(&mut self.post_done);
                }
                if finish.post == Post::Failed {
                    by_one(&mut self.post_failed);
                }
                if let Some(value) = failed_value(finish) {
                    by_one(self.exits.entry(value).or_insert(0));
                }
            }
        }
    }

    fn verdict(&self, test: Test) -> Verdict {
        let all = self.all();
        let ended = self.ended() == all;
        match test {
            Test::Done => Verdict::of(self.done == all, self.failed == 0),
            Test::Ended => Verdict::of(ended, true),
            // Since when is another question.
            Test::Started | Test::StartedFor(_) => {
                Verdict::of(self.running + self.ended() == all, true)
            }
            Test::Exit(None) => Verdict::of(ended && self.failed > 0, !ended),
            Test::Exit(Some(comparison)) => {
                // A done task has the exit value 0.
                let zero = self.done > 0 && comparison.holds(0);
                let mut values = self.exits.keys();
                let found = zero || values.any(|value| comparison.holds(u32::from(*value)));
                Verdict::of(ended && found, !ended)
            }
            Test::PostDone => {
                Verdict::of(self.post_done == all, self.failed + self.post_failed == 0)
            }
            Test::PostErr => Verdict::of(self.post_failed > 0, self.post_done < all),
            Test::Number(countable, comparison) => {
                let count = match countable {
                    Countable::Done => self.done,
                    Countable::Exit => self.failed,
                    Countable::Ended => self.ended(),
                    Countable::Started => self.running + self.ended(),
                };
                Verdict::of(comparison.holds(count), !ended)
            }
        }
    }
}

fn failed_value(finish: &Finish) -> Option<u8> {
    if finish.is_done() { None } else { Some(finish.exit.as_ref()?.value()) }
}

/// What holds of a job or an element at a time. A job that is no longer known can tell nothing any more. If it is a question of time only, it is
/// added to `dues` when it will hold, and of which job. `due` keeps that time from one look to the next, so that not each of them goes through all tasks.
pub(crate) fn look(
    ledger: &Ledger,
    now: Moment,
    (test, target): (Test, Target),
    due: &mut Option<Moment>,
    dues: &mut Vec<(Moment, JobId)>,
) -> Verdict {
    let Some(job) = ledger.jobs.get(&target.job) else { return Verdict::Never };
    let mut tally = Tally::default();
    let (tally, tasks) = match target.index {
        None => (&job.tally, &job.tasks[..]),
        Some(index) => {
            let Some(task) = job.task(index) else { return Verdict::Never };
            tally.add(task);
            (&tally, std::slice::from_ref(task))
        }
    };
    let verdict = tally.verdict(test);
    let Test::StartedFor(period) = test else { return verdict };
    if verdict != Verdict::Met {
        *due = None;
        return verdict;
    }
    let at = *due.get_or_insert_with(|| {
        let last = tasks.iter().filter_map(Task::begun).max().unwrap_or_default();
        last.after(period.as_ms())
    });
    if at <= now {
        return Verdict::Met;
    }
    dues.push((at, target.job));
    Verdict::Unmet
}

/// Whether a condition holds at a time: looks at all of it. Of what it says of elements with the same index only whether the other job is known
/// is looked at, of the turn of a job nothing.
pub(crate) fn verdict(ledger: &Ledger, now: Moment, condition: &Condition<Target>) -> Verdict {
    if condition.pairs().iter().any(|(_, other)| !ledger.jobs.contains_key(other)) {
        return Verdict::Never;
    }
    condition.verdict(&|test, target| look(ledger, now, (test, target), &mut None, &mut Vec::new()))
}

/// Whether the element at a place of a job may start, as far as its partners are concerned.
pub(crate) fn verdict_of_pairs(
    ledger: &Ledger,
    pairs: &[(Test, JobId)],
    (job, place): (&Job, u32),
) -> Verdict {
    let each = pairs.iter().map(|(test, other)| {
        let Some(partner) = ledger.jobs.get(other) else { return Verdict::Never };
        let Some(place) = partner.partner_of(job, place) else { return Verdict::Never };
        let mut tally = Tally::default();
        tally.add(&partner.tasks[place as usize]);
        tally.verdict(*test)
    });
    each.min().unwrap_or(Verdict::Met)
}

impl<R> Condition<R> {
    /// Conditions of single jobs, each with its verdict.
    pub(crate) fn leaves<'a>(&'a self, found: &mut dyn FnMut(&'a Condition<R>)) {
        match self {
            Condition::All(parts) | Condition::Any(parts) => {
                parts.iter().for_each(|part| part.leaves(found));
            }
            Condition::Is(..) | Condition::Singleton | Condition::Each(..) => found(self),
        }
    }

    /// Whether it is about the jobs with the same name.
    pub(crate) fn has_singleton(&self) -> bool {
        let mut found = false;
        self.leaves(&mut |leaf| found |= matches!(leaf, Condition::Singleton));
        found
    }

    /// How many of its conditions on elements with the same index have to be met in any case.
    pub(crate) fn pairs_of_all(&self) -> usize {
        match self {
            Condition::All(parts) => parts.iter().map(Condition::pairs_of_all).sum(),
            Condition::Each(..) => 1,
            Condition::Any(_) | Condition::Is(..) | Condition::Singleton => 0,
        }
    }
}

impl Condition<Target> {
    fn verdict(&self, of: &dyn Fn(Test, Target) -> Verdict) -> Verdict {
        match self {
            Condition::All(parts) => {
                parts.iter().map(|part| part.verdict(of)).min().unwrap_or(Verdict::Met)
            }
            Condition::Any(parts) => {
                parts.iter().map(|part| part.verdict(of)).max().unwrap_or(Verdict::Never)
            }
            Condition::Is(test, target) => of(*test, *target),
            Condition::Singleton | Condition::Each(..) => Verdict::Unmet,
        }
    }

    /// What it says of elements with the same index.
    pub(crate) fn pairs(&self) -> Vec<(Test, JobId)> {
        let mut pairs = Vec::new();
        self.leaves(&mut |leaf| {
            if let Condition::Each(test, target) = leaf {
                pairs.push((*test, target.job));
            }
        });
        pairs
    }

    /// What it is for one element, where `index` gives that of its partner in another job.
    pub(crate) fn of_element(&self, index: &dyn Fn(JobId) -> Option<u32>) -> Condition<Target> {
        let all =
            |parts: &[Condition<Target>]| parts.iter().map(|part| part.of_element(index)).collect();
        match self {
            Condition::All(parts) => Condition::All(all(parts)),
            Condition::Any(parts) => Condition::Any(all(parts)),
            Condition::Each(test, target) => {
                Condition::Is(*test, Target { job: target.job, index: index(target.job) })
            }
            Condition::Is(..) | Condition::Singleton => self.clone(),
        }
    }

    /// Every job that it asks of; a job may come several times.
    pub(crate) fn jobs(&self) -> Vec<JobId> {
        let mut jobs = Vec::new();
        self.leaves(&mut |leaf| {
            if let Condition::Is(_, target) | Condition::Each(_, target) = leaf {
                jobs.push(target.job);
            }
        });
        jobs
    }
}
