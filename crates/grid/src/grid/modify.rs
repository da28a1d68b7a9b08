//! Changing jobs that were submitted.
//!
//! A job is taken out of all that follows from the ledger, changed there, and taken in again as it is then: nothing
//! depends on how it was before. Tasks on hosts keep what they hold.

use crate::environment::Environment;
use crate::event::{Effect, Outcome, Refusal};
use crate::footprint;
use crate::grid::Grid;
use crate::grid::cycle::Waiter;
use crate::grid::possible::check_singleton;
use crate::grid::submit::Search;
use crate::journal::{Change, Modified};
use crate::ledger::Job;
use crate::modify::{Changes, Rank, Set};
use crate::parse::dependency::Condition;
use crate::parse::period::Period;
use crate::spec::JobSpec;
use crate::vocabulary::{JobId, Target, UserName};

impl Grid {
    pub(super) fn modify(
        &mut self,
        by: &UserName,
        job: JobId,
        changes: &Changes,
        out: &mut Outcome,
    ) -> Result<Effect, Refusal> {
        let modified = self.plan(by, job, changes)?;
        let before = &self.ledger.jobs[&job];
        let tasks = before.tally.all() - before.tally.ended();
        self.index.take_out(&self.ledger, job, before);
        self.record(Change::Modified(Box::new(modified)), out);
        self.index.add_job(&self.ledger, job, &self.ledger.jobs[&job]);
        self.index.stir();
        // It may have come to a queue whose run window is closed, or left one.
        self.follow_run_window(self.ledger.jobs[&job].queue, out);
        Ok(Effect::Obeyed { tasks })
    }

    /// The job as it will be, if the user may have it so.
    fn plan(&self, by: &UserName, id: JobId, changes: &Changes) -> Result<Modified, Refusal> {
        let target = Target::from(id);
        let job = self.job_for(by, target)?;
        if job.tally.is_finished() {
            return Err(Refusal::WrongState { target, state: "has ended" });
        }
        if changes.is_empty() {
            return Err(Refusal::Invalid("nothing to change was given".to_owned()));
        }
        let waiting = job.tally.pending + job.tally.held;
        // A service starts again.
        if waiting == 0 && changes.concern_starts_only() && job.spec.service.is_none() {
            let fault = format!("job {id} is running: this would matter to its start only");
            return Err(Refusal::Invalid(fault));
        }
        if changes.warning.is_some() && job.tally.active > 0 {
            let fault =
                format!("job {id} is running: the warning of a job that runs cannot be changed");
            return Err(Refusal::Invalid(fault));
        }
        if changes.running_max.is_some() && job.spec.array.is_none() {
            return Err(Refusal::Invalid(format!("job {id} is not an array")));
        }
        if changes.depends.is_some() && self.index.flow_of.contains_key(&id) {
            let fault = format!("job {id} is a step of a flow, which says what it waits for");
            return Err(Refusal::Invalid(fault));
        }
        let mut spec = changes.of(&job.spec);
        if let Some(rank) = changes.rank {
            spec.priority = self.priority_of(id, rank, &spec);
        }
        let owner = self.ledger.user_of(job).clone();
        let queue_is_new = spec.queue != job.spec.queue;
        let queue = if queue_is_new { self.check_intake(by, &mut spec)? } else { job.queue };
        self.check_spec(queue, &spec, changes.deadline.is_some())?;
        if changes.reservation.is_some() {
            self.check_reservation(&owner, &spec)?;
        }
        if let Some(name) = job.spec.reservation.as_ref().filter(|_| job.tally.active > 0)
            && (changes.time_limit.is_some() || changes.reservation.is_some())
        {
            let fault = format!("job {id} runs in reservation {name}, which says for how long");
            return Err(Refusal::Invalid(fault));
        }
        let condition = self.planned_condition((by, &owner), (id, job), changes, &spec)?;
        let bytes = footprint::bytes_of(&spec, condition.as_ref());
        let before = footprint::bytes_of(&job.spec, job.condition.as_ref());
        self.check_bytes(Some(job.user), bytes.saturating_sub(before))?;
        let is_free = job.spec.reservation.is_none();
        let limit_ms = (is_free && (changes.time_limit.is_some() || queue_is_new)).then(|| {
            let limit = self.limit_in(queue, spec.time_limit).map(Period::as_ms);
            limit.map_or(Set::Nothing, Set::To)
        });
        // Environment and script are not changed, so the record does not hold them once more.
        spec.environment = Environment::default();
        spec.script = None;
        Ok(Modified { job: id, spec, condition, limit_ms })
    }

    /// What the job will wait for.
    fn planned_condition(
        &self,
        (by, owner): (&UserName, &UserName),
        (id, job): (JobId, &Job),
        changes: &Changes,
        spec: &JobSpec,
    ) -> Result<Option<Condition<Target>>, Refusal> {
        let waiter = |condition| Waiter { id, user: job.user, name: &spec.name, condition };
        let depends = match &changes.depends {
            None => {
                if let Some(condition) = &job.condition {
                    check_singleton(spec, condition)?;
                    // Another name may be one for whose jobs others wait, or that this one has to wait for.
                    if spec.name != job.spec.name {
                        self.check_cycle(waiter(condition))?;
                    }
                }
                return Ok(job.condition.clone());
            }
            Some(Set::Nothing) => return Ok(None),
            Some(Set::To(depends)) => depends,
        };
        let mut search = Search::new(by, self.ledger.users.find(owner));
        let condition = self.look_up(&depends.0, &mut search)?;
        self.check_cycle(waiter(&condition))?;
        self.check_condition(spec, Some(&condition))?;
        Ok(Some(condition))
    }

    /// The priority by which a job goes before or behind all others of its user that wait in its queue.
    fn priority_of(&self, id: JobId, rank: Rank, spec: &JobSpec) -> i32 {
        let user = self.ledger.jobs[&id].user;
        let others = self.index.open.keys().filter(|other| **other != id).filter_map(|other| {
            let job = &self.ledger.jobs[other];
            let waits = job.tally.pending + job.tally.held > 0;
            (job.user == user && waits && job.spec.queue == spec.queue)
                .then_some((job.spec.priority, *other))
        });
        match rank {
            // Among equals the lower number goes first.
            Rank::Top => others
                .max_by_key(|(priority, other)| (*priority, std::cmp::Reverse(*other)))
                .map_or(spec.priority, |(priority, other)| {
                    let least = if id < other { priority } else { priority.saturating_add(1) };
                    spec.priority.max(least)
                }),
            Rank::Bottom => others
                .min_by_key(|(priority, other)| (*priority, std::cmp::Reverse(*other)))
                .map_or(spec.priority, |(priority, other)| {
                    let most = if id > other { priority } else { priority.saturating_sub(1) };
                    spec.priority.min(most)
                }),
        }
    }
}
