//! What dependency conditions say of jobs: met, not yet, or never.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::parse::dependency::{Condition, Countable, Test};
use crate::task::{Finish, Phase, Post, Task};
use crate::vocabulary::{JobId, Target};

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
            Test::Started => Verdict::of(self.running + self.ended() == all, true),
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

/// Tells the tally of the tasks that a target names, if they are known.
pub(crate) type Tallies<'a> = &'a dyn Fn(Target, &mut dyn FnMut(&Tally));

impl Condition<Target> {
    /// Whether it holds, where `tally` counts the tasks that a target names. A job that is no longer
    /// known can tell nothing any more.
    pub(crate) fn verdict(&self, tally: Tallies<'_>) -> Verdict {
        match self {
            Condition::All(parts) => {
                parts.iter().map(|part| part.verdict(tally)).min().unwrap_or(Verdict::Met)
            }
            Condition::Any(parts) => {
                parts.iter().map(|part| part.verdict(tally)).max().unwrap_or(Verdict::Never)
            }
            Condition::Is(test, target) => {
                let mut verdict = Verdict::Never;
                tally(*target, &mut |tally| verdict = tally.verdict(*test));
                verdict
            }
        }
    }

    /// Conditions of single jobs, each with its verdict.
    pub(crate) fn leaves<'a>(&'a self, found: &mut dyn FnMut(&'a Condition<Target>)) {
        match self {
            Condition::All(parts) | Condition::Any(parts) => {
                parts.iter().for_each(|part| part.leaves(found));
            }
            Condition::Is(..) => found(self),
        }
    }

    /// Every job that it asks of; a job may come several times.
    pub(crate) fn jobs(&self) -> Vec<JobId> {
        let mut jobs = Vec::new();
        self.leaves(&mut |leaf| {
            if let Condition::Is(_, target) = leaf {
                jobs.push(target.job);
            }
        });
        jobs
    }
}
