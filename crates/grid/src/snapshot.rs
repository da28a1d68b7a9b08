//! The ledger in pieces, so that a snapshot writes what has changed and not everything: each job, each run of a
//! flow and each schedule is one, and the rest is one, the head. Environments are apart from their jobs, as many jobs
//! have the same one.
//!
//! The serde form of [`Ledger`] is the head. [`Touched`] says which pieces records have changed; all
//! pieces together, put into a head, give the same ledger.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::depend::Tally;
use crate::environment::Environment;
use crate::flow::event::FlowChange;
use crate::flow::ledger::{FlowRun, Schedule};
use crate::flow::{FlowId, ScheduleId};
use crate::journal::{Change, Record};
use crate::ledger::{Job, Ledger};
use crate::parse::dependency::Condition;
use crate::service::ServiceState;
use crate::spec::JobSpec;
use crate::task::Task;
use crate::vocabulary::{JobId, Moment, QueueId, Target, UserId};

/// A job without its environment, to be written. It reads back as a [`Job`]: the fields are the same, in
/// the same order.
#[derive(Debug, Serialize)]
pub struct JobPiece<'a> {
    user: UserId,
    queue: QueueId,
    submitted: Moment,
    spec: JobSpec,
    condition: &'a Option<Condition<Target>>,
    tasks: &'a [Task],
    tally: &'a Tally,
    service: Option<ServiceState>,
    told: Option<Moment>,
}

impl Job {
    /// Its piece of a snapshot, which lacks the environment.
    #[must_use]
    pub fn piece(&self) -> JobPiece<'_> {
        let Job { user, queue, submitted, spec, condition, tasks, tally, service, told } = self;
        let (user, queue, submitted, service) = (*user, *queue, *submitted, *service);
        let spec = JobSpec { environment: Environment::default(), ..(**spec).clone() };
        JobPiece { user, queue, submitted, spec, condition, tasks, tally, service, told: *told }
    }
}

impl Ledger {
    /// Puts a job into a head that was read.
    pub fn put_job(&mut self, id: JobId, mut job: Job, environment: Environment) {
        job.spec.environment = environment;
        self.jobs.insert(id, job);
    }

    /// Puts a run of a flow into a head that was read.
    pub fn put_flow(&mut self, id: FlowId, run: FlowRun) {
        self.flows.runs.insert(id, run);
    }

    /// Puts a schedule into a head that was read.
    pub fn put_schedule(&mut self, id: ScheduleId, schedule: Schedule) {
        self.flows.schedules.insert(id, schedule);
    }

    /// A schedule, if it is known.
    #[must_use]
    pub fn schedule(&self, id: ScheduleId) -> Option<&Schedule> {
        self.flows.schedules.get(&id)
    }
}

/// Pieces that records have changed; the head always counts as changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Jobs that changed, came or went.
    pub jobs: BTreeSet<JobId>,
    /// Runs of flows that changed, came or went.
    pub flows: BTreeSet<FlowId>,
    /// Schedules that changed, came or went.
    pub schedules: BTreeSet<ScheduleId>,
    /// Whether a flow was forgotten, and with it jobs that are not among the ones above.
    pub flow_forgotten: bool,
}

impl Touched {
    /// Takes note of a record.
    pub fn add(&mut self, record: &Record) {
        match &record.change {
            Change::Configured(_)
            | Change::HostKnown(_)
            | Change::Leased(_)
            | Change::Reserved(_)
            | Change::Unreserved(_)
            | Change::Engine { .. }
            | Change::Group { .. }
            | Change::GroupDeleted { .. }
            | Change::Queue { .. }
            | Change::Host { .. } => {}
            Change::Submitted(submitted) => {
                self.jobs.insert(submitted.job);
            }
            Change::Service { job, .. } | Change::Told { job, .. } => {
                self.jobs.insert(*job);
            }
            Change::Modified(modified) => {
                self.jobs.insert(modified.job);
            }
            Change::Waiting { job, .. } | Change::Forgotten(job) => {
                self.jobs.insert(*job);
            }
            Change::Task { task, .. } => {
                self.jobs.insert(task.job);
            }
            Change::Flow(change) => self.add_flow(change),
        }
    }

    fn add_flow(&mut self, change: &FlowChange) {
        match change {
            FlowChange::Skipped { flow, .. }
            | FlowChange::Ended { flow, .. }
            | FlowChange::Reopened(flow)
            | FlowChange::Killed(flow)
            | FlowChange::Rerun { flow, .. } => {
                self.flows.insert(*flow);
            }
            FlowChange::Started(started) => {
                self.flows.insert(started.flow);
                self.jobs.extend(started.steps.iter().map(|(_, submitted)| submitted.job));
                self.schedules.extend(started.firing.iter().map(|firing| firing.schedule));
            }
            FlowChange::Forgotten(flow) => {
                self.flows.insert(*flow);
                self.flow_forgotten = true;
            }
            FlowChange::Scheduled { schedule, .. }
            | FlowChange::Unscheduled(schedule)
            | FlowChange::Passed { schedule, .. }
            | FlowChange::Held(schedule)
            | FlowChange::Released(schedule)
            | FlowChange::Unseen { schedule, .. } => {
                self.schedules.insert(*schedule);
            }
        }
    }
}
