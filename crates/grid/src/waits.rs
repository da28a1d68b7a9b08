//! What one job waits for, kept up as the jobs that it waits for change.
//!
//! A condition may name 10,000 jobs, each of which changes several times. So a change looks at the leaves
//! of the job that changed, and at what stands above them as far as it changes too: never at the others.
//!
//! Memory: about 64 bytes for each leaf.

use crate::depend::Verdict;
use crate::parse::dependency::{Condition, Test};
use crate::vocabulary::{JobId, Moment, Target};

/// A condition with the verdicts of its parts. Without one everything holds.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// Those that join others, each after the one that it is part of; the first is the whole.
    joints: Vec<Joint>,
    /// In the order of their jobs.
    leaves: Vec<Leaf>,
    /// Parts that hold when it is the turn of the job among those with its name.
    singletons: Vec<u32>,
    turn: Turn,
}

/// Whether it is the turn of a job among those with its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It is not.
    #[default]
    Later,
    /// It is.
    Now,
}

impl Turn {
    fn verdict(self) -> Verdict {
        match self {
            Turn::Later => Verdict::Unmet,
            Turn::Now => Verdict::Met,
        }
    }
}

#[derive(Debug)]
struct Joint {
    part_of: Option<u32>,
    joins: Joins,
    never: u32,
    unmet: u32,
    met: u32,
}

#[derive(Clone, Copy, Debug)]
enum Joins {
    All,
    Any,
}

#[derive(Debug)]
struct Leaf {
    target: Target,
    test: Test,
    part_of: u32,
    verdict: Verdict,
    /// When it will hold or has come to hold, if that is a question of time only.
    due: Option<Moment>,
}

impl Joint {
    fn verdict(&self) -> Verdict {
        let order = match self.joins {
            Joins::All => [(self.never, Verdict::Never), (self.unmet, Verdict::Unmet)],
            Joins::Any => [(self.met, Verdict::Met), (self.unmet, Verdict::Unmet)],
        };
        let found = order.into_iter().find(|(parts, _)| *parts > 0);
        let rest = match self.joins {
            Joins::All => Verdict::Met,
            Joins::Any => Verdict::Never,
        };
        found.map_or(rest, |(_, verdict)| verdict)
    }

    fn parts(&mut self, verdict: Verdict) -> &mut u32 {
        match verdict {
            Verdict::Never => &mut self.never,
            Verdict::Unmet => &mut self.unmet,
            Verdict::Met => &mut self.met,
        }
    }
}

impl Waits {
    /// A condition where `of` says what holds of a job or an element now.
    pub fn new(
        condition: &Condition<Target>,
        turn: Turn,
        mut of: impl FnMut(Test, Target, &mut Option<Moment>) -> Verdict,
    ) -> Waits {
        let mut waits = Waits { turn, ..Waits::default() };
        waits.joints.push(Joint { part_of: None, joins: Joins::All, never: 0, unmet: 0, met: 0 });
        waits.add(condition, 0, &mut of);
        waits.leaves.sort_by_key(|leaf| leaf.target.job);
        waits
    }

    fn add(
        &mut self,
        condition: &Condition<Target>,
        part_of: u32,
        of: &mut dyn FnMut(Test, Target, &mut Option<Moment>) -> Verdict,
    ) {
        let (joins, parts) = match condition {
            Condition::All(parts) => (Joins::All, parts),
            Condition::Any(parts) => (Joins::Any, parts),
            Condition::Is(test, target) => {
                let (test, target) = (*test, *target);
                let mut due = None;
                let verdict = of(test, target, &mut due);
                self.leaves.push(Leaf { target, test, part_of, verdict, due });
                *self.joints[part_of as usize].parts(verdict) += 1;
                return;
            }
            // Each element waits for its own; the job does not.
            Condition::Each(..) => {
                *self.joints[part_of as usize].parts(Verdict::Met) += 1;
                return;
            }
            Condition::Singleton => {
                self.singletons.push(part_of);
                *self.joints[part_of as usize].parts(self.turn.verdict()) += 1;
                return;
            }
        };
        let own = self.joints.len() as u32;
        self.joints.push(Joint { part_of: Some(part_of), joins, never: 0, unmet: 0, met: 0 });
        for part in parts {
            self.add(part, own, of);
        }
        let verdict = self.joints[own as usize].verdict();
        *self.joints[part_of as usize].parts(verdict) += 1;
    }

    /// Whether the whole condition holds.
    pub fn verdict(&self) -> Verdict {
        self.joints.first().map_or(Verdict::Met, Joint::verdict)
    }

    /// Looks again at what is said of one job; whether the whole is another than before.
    pub fn look_again(
        &mut self,
        job: JobId,
        mut of: impl FnMut(Test, Target, &mut Option<Moment>) -> Verdict,
    ) -> bool {
        let before = self.verdict();
        let first = self.leaves.partition_point(|leaf| leaf.target.job < job);
        let Waits { joints, leaves, .. } = self;
        for leaf in leaves[first..].iter_mut().take_while(|leaf| leaf.target.job == job) {
            let now = of(leaf.test, leaf.target, &mut leaf.due);
            let old = std::mem::replace(&mut leaf.verdict, now);
            replace(joints, leaf.part_of, old, now);
        }
        self.verdict() != before
    }

    /// Follows the turn of the job among those with its name; whether the whole is another than before.
    pub fn take_turn(&mut self, turn: Turn) -> bool {
        let (before, old) = (self.verdict(), std::mem::replace(&mut self.turn, turn));
        for part_of in &self.singletons {
            replace(&mut self.joints, *part_of, old.verdict(), turn.verdict());
        }
        self.verdict() != before
    }
}

/// A part of a joint has another verdict: so may all above it.
fn replace(joints: &mut [Joint], mut at: u32, mut old: Verdict, mut now: Verdict) {
    while old != now {
        let joint = &mut joints[at as usize];
        let before = joint.verdict();
        *joint.parts(old) -= 1;
        *joint.parts(now) += 1;
        let Some(above) = joint.part_of else { return };
        (at, old, now) = (above, before, joint.verdict());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const VERDICTS: [Verdict; 3] = [Verdict::Never, Verdict::Unmet, Verdict::Met];

    fn leaf(job: u64) -> Condition<Target> {
        Condition::Is(Test::Ended, JobId(job).into())
    }

    fn whole(condition: &Condition<Target>, now: &BTreeMap<JobId, Verdict>) -> Verdict {
        let each = |parts: &[Condition<Target>]| -> Vec<Verdict> {
            parts.iter().map(|part| whole(part, now)).collect()
        };
        match condition {
            Condition::All(parts) => each(parts).into_iter().min().unwrap_or(Verdict::Met),
            Condition::Any(parts) => each(parts).into_iter().max().unwrap_or(Verdict::Never),
            Condition::Is(_, target) => now[&target.job],
            Condition::Singleton => now[&JobId(0)],
            Condition::Each(..) => Verdict::Met,
        }
    }

    fn conditions() -> impl Strategy<Value = Condition<Target>> {
        let single = prop_oneof![5 => (1_u64..6).prop_map(leaf), 1 => Just(Condition::Singleton)];
        single.prop_recursive(4, 32, 5, |part| {
            let parts = proptest::collection::vec(part, 0..5);
            (any::<bool>(), parts).prop_map(|(all, parts)| {
                if all { Condition::All(parts) } else { Condition::Any(parts) }
            })
        })
    }

    proptest! {
        #[test]
        fn changes_one_by_one_give_what_a_look_at_everything_gives(
            condition in conditions(),
            changes in proptest::collection::vec((0_u64..6, 0_usize..3), 0..40),
        ) {
            let mut now: BTreeMap<JobId, Verdict> =
                (0..6).map(|job| (JobId(job), Verdict::Unmet)).collect();
            let mut waits = Waits::new(&condition, Turn::Later, |_, target, _| now[&target.job]);
            prop_assert_eq!(waits.verdict(), whole(&condition, &now));
            for (job, verdict) in changes {
                let before = waits.verdict();
                let verdict = VERDICTS[verdict];
                let changed = if job == 0 {
                    let turn = if verdict == Verdict::Met { Turn::Now } else { Turn::Later };
                    now.insert(JobId(job), turn.verdict());
                    waits.take_turn(turn)
                } else {
                    now.insert(JobId(job), verdict);
                    waits.look_again(JobId(job), |_, target, _| now[&target.job])
                };
                prop_assert_eq!(waits.verdict(), whole(&condition, &now));
                prop_assert_eq!(changed, waits.verdict() != before);
            }
        }
    }

    #[test]
    fn a_change_of_one_of_many_jobs_looks_at_that_one() {
        let all = Condition::All((1..=10_000).map(leaf).collect());
        let mut waits = Waits::new(&all, Turn::Later, |_, _, _| Verdict::Unmet);
        let mut looks = 0;
        for job in (1..=10_000).rev() {
            let changed = waits.look_again(JobId(job), |_, target, _| {
                assert_eq!(target.job, JobId(job));
                looks += 1;
                Verdict::Met
            });
            assert_eq!(changed, job == 1);
        }
        assert_eq!((looks, waits.verdict()), (10_000, Verdict::Met));
    }
}
