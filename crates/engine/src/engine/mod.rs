//! The engine seam: what the controller asks of what decides which job runs where and when.
//!
//! The controller takes what comes in, makes it durable and carries it out; an engine decides, and answers what can
//! be answered from its decisions alone. This crate has one, the local engine (`forebay_grid::Grid`, in
//! `local/`); tests bring one of their own. Here is all that an engine is asked for: nothing outside `local/`, the
//! journal and its snapshot looks into a job, a queue or a host of the grid.
//!
//! # Crash contract
//! - Deciding does nothing outside the engine. What shall happen is in the [`Outcome`]: the controller commits
//!   all its records and attempts that ended ([`Effect::Ended`](forebay_grid::Effect::Ended)) together, and only
//!   then carries its effects out, each once and in their order.
//! - If the process dies before the commit, nothing was decided: nobody has been told. If it dies after
//!   it, the rest of the effects is lost. Orders are then decided again from what hosts say when they join
//!   ([`Event::HostJoined`]); whoever waits for an answer asks again.
//! - A commit that fails ends the controller, as the engine is ahead of the journal then. An engine that is made
//!   again from the records that were committed answers as this one did, but for what hosts have to say first.
//! - Questions change nothing, and none takes longer than a page of a list and a look at each job.
//! - The times that it is told never go back.
//!
//! An engine whose decisions are kept elsewhere has no records and no snapshot; its attempts that ended are in
//! the history and the sums all the same.

mod local;

use std::collections::BTreeSet;

use forebay_grid::config::General;
use forebay_grid::event::About;
use forebay_grid::flow::event::FlowState;
use forebay_grid::flow::{FlowId, ScheduleId};
use forebay_grid::grid::State;
use forebay_grid::service::ServiceState;
use forebay_grid::spec::JobSpec;
use forebay_grid::vocabulary::{HostName, JobId, Moment, TaskId, UserName};
use forebay_grid::{Event, Ledger, Outcome};

use crate::protocol::{Answer, AreaState, Ask};

/// Files that somebody waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// For which schedule.
    pub schedule: ScheduleId,
    /// Whose it is.
    pub user: UserName,
    /// An absolute path, in which `*` stands for anything but `/`.
    pub pattern: String,
}

/// How a job or a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobEnd {
    /// Its exit value: 0, or the first that is not 0 of its tasks. A task that was killed while it waited, or
    /// whose host was lost, counts as killed by force.
    pub value: u8,
    /// When the last of its tasks ended.
    pub at: Moment,
}

/// What decides, behind the controller.
pub trait Engine: Send {
    /// Lets time pass until `now` and takes the event. What it leads to is added to `out`. A command gives one
    /// answer; an event that is stale changes nothing.
    fn apply(&mut self, now: Moment, event: Event, out: &mut Outcome);

    /// When [`Event::Tick`] is due at the latest, as far as no event comes before.
    fn next_wake(&self) -> Moment;

    /// The latest time that it was told, or that one of its records was made.
    fn now(&self) -> Moment;

    /// The clock was set forward, so less time passed than it says: no lease and no time limit ends sooner for it.
    fn skip_time(&mut self, milliseconds: u64, out: &mut Outcome);

    /// Nobody listened for a while: hosts are not silent because of it.
    fn excuse_silence(&mut self, milliseconds: u64);

    /// Everything that its records have led to, to be written in their place. None if it keeps no records.
    fn snapshot(&self) -> Option<&Ledger>;

    /// The settings that hold for the controller itself.
    fn settings(&self) -> &General;

    /// Answers what only looks and needs no history: lists of jobs, hosts, queues, flows and schedules, and why
    /// a job waits or ran where it ran, as far as the user may see it. Everything else is refused.
    fn answer(&self, user: &UserName, ask: &Ask) -> Answer;

    /// Whose job it is, if it is known.
    fn owner(&self, job: JobId) -> Option<&UserName>;

    /// What was asked for with a job, if it is known.
    fn spec(&self, job: JobId) -> Option<&JobSpec>;

    /// How a job is doing as a service, if it is one.
    fn service(&self, _job: JobId) -> Option<ServiceState> {
        None
    }

    /// When a job was submitted, if it is known.
    fn submitted(&self, _job: JobId) -> Option<Moment> {
        None
    }

    /// What messages say of a job, if it is known.
    fn about(&self, _job: JobId) -> Option<About> {
        None
    }

    /// How a job ended; none if it is not known or not all of it has ended.
    fn end(&self, job: JobId) -> Option<JobEnd>;

    /// How a task ended; none if it is not known or has not ended.
    fn task_end(&self, task: TaskId) -> Option<JobEnd> {
        match self.state(task)? {
            State::Finished { exit, cause, ended, .. } => {
                Some(JobEnd { value: cause.exit_value(exit.as_ref()), at: ended })
            }
            State::Pending { .. }
            | State::Held { .. }
            | State::Starting { .. }
            | State::Running { .. }
            | State::Suspended { .. }
            | State::Unknown { .. } => None,
        }
    }

    /// Jobs that have ended and notify somebody, as far as nobody was told yet.
    fn untold(&self) -> Vec<JobId> {
        Vec::new()
    }

    /// How a task is, if it is known.
    fn state(&self, task: TaskId) -> Option<State>;

    /// The host on which a task is, and how often it had been requeued before; none if it is on none.
    fn place_of(&self, _task: TaskId) -> Option<(HostName, u32)> {
        None
    }

    /// Whose run of a flow it is, and what became of it, if it is known.
    fn flow(&self, flow: FlowId) -> Option<(&UserName, FlowState)>;

    /// Hosts of which it is not known what they do.
    fn away(&self) -> BTreeSet<HostName>;

    /// How a work area is that was made for a task after it had been requeued so often.
    fn area_state(&self, task: TaskId, requeues: u32) -> AreaState;

    /// Tasks that have ended whose work areas nobody has reported to be removed, and how often they had been
    /// requeued.
    fn left_work(&self) -> Vec<(TaskId, u32)>;

    /// The files that flows wait for.
    fn watches(&self) -> Vec<Watch>;

    /// Whether a user may see a job.
    fn may_see_job(&self, user: &UserName, job: JobId) -> bool {
        self.owner(job).is_some_and(|owner| self.may_see(user, owner))
    }

    /// Whether a user may see what is this owner's: users see their own, admins all.
    fn may_see(&self, user: &UserName, owner: &UserName) -> bool {
        user == owner || self.settings().admins.contains(user)
    }
}
