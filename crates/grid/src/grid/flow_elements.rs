//! What flows decide for single elements of steps: which are skipped because of their partners (`[*]`), what did not run although nothing
//! went wrong, and what runs again.
//!
//! An element is skipped alone, with the cause that its dependency can never be met. A step that is skipped as a whole is marked in its run.

use std::collections::{BTreeMap, BTreeSet};

use crate::depend::{Verdict, verdict, verdict_of_pairs};
use crate::event::Outcome;
use crate::flow::asks_for_failure;
use crate::flow::ledger::{FlowRun, FlowStep};
use crate::grid::Grid;
use crate::grid::flow::is_skipped;
use crate::ledger::Job;
use crate::parse::dependency::{Condition, Test};
use crate::task::{Step, Task};
use crate::vocabulary::{JobId, Target, TaskId};

/// What of a step did not run although nothing went wrong: all that it waited for in vain was somebody's failure.
#[derive(Default)]
pub(super) struct Excuse {
    /// Whether that holds of all of it that has not succeeded.
    pub is_whole: bool,
    /// Places of skipped elements of which it holds.
    elements: BTreeSet<u32>,
}

/// Excuses of steps, and of those before them.
type Excuses = BTreeMap<JobId, Excuse>;

/// The steps to run again, each with its place in the run and the places of its tasks.
pub(super) type Again = BTreeMap<JobId, (u32, BTreeSet<u32>)>;

impl Grid {
    /// Skips elements of steps whose partners can never be as required.
    pub(super) fn skip_elements(&mut self, out: &mut Outcome) {
        while let Some(TaskId { job: id, .. }) = self.index.vain_elements.first().copied() {
            let next = TaskId { job: JobId(id.0 + 1), index: 0 };
            let others = self.index.vain_elements.split_off(&next);
            let tasks = std::mem::replace(&mut self.index.vain_elements, others);
            let Some(job) = self.ledger.jobs.get(&id) else { continue };
            let places = self.places_in_vain(job, &tasks);
            if !places.is_empty() {
                self.change_waiting(id, places, Step::NeverMet, out);
            }
        }
    }

    /// Lets skipped elements wait again whose partners can be as required after all.
    pub(super) fn unskip_elements(&mut self, id: JobId, out: &mut Outcome) {
        let job = &self.ledger.jobs[&id];
        let pairs = job.condition.as_ref().map(Condition::pairs).unwrap_or_default();
        if pairs.is_empty() {
            return;
        }
        let can_start =
            |place: u32| verdict_of_pairs(&self.ledger, &pairs, (job, place)) != Verdict::Never;
        let skipped = places_of(job, is_skipped).filter(|place| can_start(*place));
        let tasks: Vec<TaskId> =
            skipped.map(|place| TaskId { job: id, index: job.index_at(place) }).collect();
        for task in tasks {
            self.step(task, Step::Requeued, out);
        }
    }

    /// By step: what of it did not run although nothing went wrong.
    pub(super) fn excuses(&self, run: &FlowRun) -> Excuses {
        let mut excuses = Excuses::new();
        for step in &run.steps {
            let excuse = self.excuse_of(step, &self.ledger.jobs[&step.job], &excuses);
            excuses.insert(step.job, excuse);
        }
        excuses
    }

    fn excuse_of(&self, step: &FlowStep, job: &Job, before: &Excuses) -> Excuse {
        let Some(condition) = &job.condition else { return Excuse::default() };
        let pairs = condition.pairs();
        let skipped = places_of(job, is_skipped);
        let elements: BTreeSet<u32> =
            skipped.filter(|place| self.is_excused((job, *place), &pairs, before)).collect();
        // A condition that can hold again (somebody had a job requeued) makes the step run again.
        let is_vain = |of| verdict(&self.ledger, self.now, of) == Verdict::Never;
        let mut fine = step.skipped && is_vain(condition);
        condition.leaves(&mut |leaf| {
            let Condition::Is(test, target) = leaf else { return };
            fine &=
                !is_vain(leaf) || asks_for_failure(*test) || self.excuses_target(before, *target);
        });
        let unexcused = places_of(job, is_skipped).any(|place| !elements.contains(&place));
        let failed = job.tally.failed as usize;
        let is_whole = fine && !unexcused || failed > 0 && elements.len() == failed;
        Excuse { is_whole, elements }
    }

    /// Whether all that a skipped element waits for in vain is somebody's failure.
    fn is_excused(
        &self,
        (job, place): (&Job, u32),
        pairs: &[(Test, JobId)],
        before: &Excuses,
    ) -> bool {
        let in_vain = |(test, other): &&(Test, JobId)| {
            verdict_of_pairs(&self.ledger, &[(*test, *other)], (job, place)) == Verdict::Never
        };
        let excused = |(test, other): &(Test, JobId)| {
            let partner =
                self.ledger.jobs.get(other).and_then(|other| other.partner_of(job, place));
            asks_for_failure(*test)
                || before.get(other).is_some_and(|excuse| {
                    excuse.is_whole || partner.is_some_and(|place| excuse.elements.contains(&place))
                })
        };
        let mut vain = pairs.iter().filter(in_vain).peekable();
        vain.peek().is_some() && vain.all(excused)
    }

    /// Whether a step or an element that a condition names did not run although nothing went wrong.
    fn excuses_target(&self, before: &Excuses, Target { job, index }: Target) -> bool {
        before.get(&job).is_some_and(|excuse| {
            let place = index.and_then(|index| self.ledger.jobs[&job].place_of(index));
            excuse.is_whole || place.is_some_and(|place| excuse.elements.contains(&place))
        })
    }

    /// What of a run that has ended runs again. Steps that failed, were killed or skipped do, of an array the elements that did. So does
    /// whatever comes after these: an element after its partner, and a step after another one as a whole.
    pub(super) fn again(&self, run: &FlowRun) -> Again {
        let excuses = self.excuses(run);
        let mut again = Again::new();
        for (number, step) in run.steps.iter().enumerate() {
            let (job, excuse) = (&self.ledger.jobs[&step.job], &excuses[&step.job]);
            let condition = job.condition.as_ref();
            let pairs = condition.map(Condition::pairs).unwrap_or_default();
            let mut is_whole =
                step.skipped && pairs.iter().any(|(_, other)| again.contains_key(other));
            condition.into_iter().for_each(|condition| {
                condition.leaves(&mut |leaf| {
                    is_whole |= matches!(leaf, Condition::Is(_, target) if again.contains_key(&target.job));
                });
            });
            let follows = |place: u32| {
                pairs.iter().any(|(_, other)| {
                    let partner = self.ledger.jobs[other].partner_of(job, place);
                    let places = again.get(other).map(|(_, places)| places);
                    places.zip(partner).is_some_and(|(places, partner)| places.contains(&partner))
                })
            };
            let failed = |place: u32, task: &Task| {
                let is_done = matches!(task, Task::Finished(finish) if finish.is_done());
                !is_done && !excuse.is_whole && !excuse.elements.contains(&place)
            };
            let wanted =
                |(place, task): &(u32, &Task)| is_whole || follows(*place) || failed(*place, task);
            let tasks = (0..).zip(&job.tasks).filter(wanted);
            let places: BTreeSet<u32> = tasks.map(|(place, _)| place).collect();
            if !places.is_empty() {
                again.insert(step.job, (number as u32, places));
            }
        }
        again
    }

    /// Jobs of a run that wait again if one of them is requeued: that one, and those of which something was skipped.
    pub(super) fn waits_again(&self, run: &FlowRun, job: JobId) -> BTreeSet<JobId> {
        let skipped = |step: &&FlowStep| {
            step.skipped || self.ledger.jobs[&step.job].tasks.iter().any(is_skipped)
        };
        run.steps.iter().filter(skipped).map(|step| step.job).chain([job]).collect()
    }
}

/// Places of the tasks of a job that are so.
fn places_of(job: &Job, is: fn(&Task) -> bool) -> impl Iterator<Item = u32> {
    (0..).zip(&job.tasks).filter(move |(_, task)| is(task)).map(|(place, _)| place)
}
