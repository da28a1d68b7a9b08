//! The local engine: the grid of this machine decides, and keeps everything itself.
//!
//! Here, in the journal and in its snapshot alone the grid's own records are looked into; everybody else asks
//! through [`Engine`].

mod flow;
mod listing;
mod view;

use std::collections::BTreeSet;

use forebay_grid::config::General;
use forebay_grid::event::About;
use forebay_grid::flow::event::FlowState;
use forebay_grid::flow::ledger::{FlowRun, Schedule};
use forebay_grid::flow::schedule::{Trigger, When};
use forebay_grid::flow::{FlowId, ScheduleId};
use forebay_grid::grid::State;
use forebay_grid::hosts::Reach;
use forebay_grid::service::ServiceState;
use forebay_grid::spec::JobSpec;
use forebay_grid::task::{Post, Task};
use forebay_grid::vocabulary::{HostName, JobId, Moment, TaskId, UserName};
use forebay_grid::{Event, Grid, Job, Ledger, Outcome};

use crate::engine::Watch;
use crate::engine::{Engine, JobEnd};
use crate::protocol::{Answer, AreaState, Ask, RefusalKind};

impl Engine for Grid {
    fn apply(&mut self, now: Moment, event: Event, out: &mut Outcome) {
        Grid::apply(self, now, event, out);
    }

    fn next_wake(&self) -> Moment {
        Grid::next_wake(self)
    }

    fn now(&self) -> Moment {
        Grid::now(self)
    }

    fn skip_time(&mut self, milliseconds: u64, out: &mut Outcome) {
        Grid::skip_time(self, milliseconds, out);
    }

    fn excuse_silence(&mut self, milliseconds: u64) {
        Grid::excuse_silence(self, milliseconds);
    }

    fn untold(&self) -> Vec<JobId> {
        Grid::untold(self).collect()
    }

    fn snapshot(&self) -> Option<&Ledger> {
        Some(self.ledger())
    }

    fn settings(&self) -> &General {
        &self.ledger().config().general
    }

    fn answer(&self, user: &UserName, ask: &Ask) -> Answer {
        answer(self, user, ask)
    }

    fn owner(&self, job: JobId) -> Option<&UserName> {
        self.ledger().job(job).map(|job| self.ledger().user_of(job))
    }

    fn may_see_job(&self, user: &UserName, job: JobId) -> bool {
        self.ledger().job(job).is_some_and(|job| self.sees_job(user, job))
    }

    fn spec(&self, job: JobId) -> Option<&JobSpec> {
        self.ledger().job(job).map(Job::spec)
    }

    fn service(&self, job: JobId) -> Option<ServiceState> {
        self.ledger().job(job).and_then(Job::service)
    }

    fn submitted(&self, job: JobId) -> Option<Moment> {
        self.ledger().job(job).map(Job::submitted)
    }

    fn about(&self, job: JobId) -> Option<About> {
        Grid::about(self, job)
    }

    fn end(&self, job: JobId) -> Option<JobEnd> {
        let job = self.ledger().job(job).filter(|job| job.tally().is_finished())?;
        let ends = job.tasks().filter_map(|(_, task)| match task {
            Task::Finished(finish) => Some(finish.ended),
            Task::Pending(_) | Task::Held(_) | Task::Active(_) => None,
        });
        Some(JobEnd { value: job.exit_value(), at: ends.max().unwrap_or_default() })
    }

    fn state(&self, task: TaskId) -> Option<State> {
        Grid::state(self, task)
    }

    fn place_of(&self, task: TaskId) -> Option<(HostName, u32)> {
        let run = self.ledger().task(task).and_then(Task::run)?;
        Some((self.state(task)?.last_start().host?, run.requeues))
    }

    fn flow(&self, flow: FlowId) -> Option<(&UserName, FlowState)> {
        let run: &FlowRun = self.ledger().flow(flow)?;
        Some((self.ledger().user_of_flow(run), run.state()))
    }

    fn away(&self) -> BTreeSet<HostName> {
        self.hosts().filter(|host| host.reach == Reach::Away).map(|host| host.name).collect()
    }

    fn area_state(&self, id: TaskId, requeues: u32) -> AreaState {
        let task = self.ledger().task(id);
        let now = task.map(|task| match task {
            Task::Pending(waiting) | Task::Held(waiting) => waiting.requeues,
            Task::Active(run) => run.requeues,
            Task::Finished(finish) => finish.requeues,
        });
        // What an earlier life of the task has left was told to go when that ended.
        let is_former = now.is_some_and(|now| now != requeues);
        match task {
            Some(Task::Active(_) | Task::Pending(_) | Task::Held(_)) if is_former => {
                AreaState::BeingRemoved
            }
            Some(Task::Active(_)) => match self.state(id) {
                Some(State::Unknown { .. }) => AreaState::Unknown,
                _ => AreaState::Running,
            },
            Some(Task::Pending(_) | Task::Held(_)) => AreaState::Kept,
            Some(Task::Finished(finish)) if finish.post == Post::Awaited => AreaState::BeingRemoved,
            Some(Task::Finished(_)) | None => AreaState::Orphaned,
        }
    }

    fn left_work(&self) -> Vec<(TaskId, u32)> {
        let mut left = Vec::new();
        for (id, job) in self.ledger().jobs() {
            for (index, task) in job.tasks() {
                if let Task::Finished(finish) = task
                    && finish.post == Post::Awaited
                {
                    left.push((TaskId { job: id, index }, finish.requeues));
                }
            }
        }
        left
    }

    fn watches(&self) -> Vec<Watch> {
        let ledger = self.ledger();
        let watch = |(schedule, entry): (ScheduleId, &Schedule)| match &entry.spec().trigger {
            Some(Trigger { when: When::File(pattern), .. }) => {
                let user = ledger.user_of_schedule(entry).clone();
                Some(Watch { schedule, user, pattern: pattern.clone() })
            }
            Some(_) | None => None,
        };
        let free = ledger.schedules().filter(|(id, _)| ledger.held(*id).is_none());
        free.filter_map(watch).collect()
    }
}

/// Answers what only looks.
fn answer(grid: &Grid, user: &UserName, ask: &Ask) -> Answer {
    match ask {
        Ask::Jobs { target, ended, page } => listing::jobs(grid, user, (*target, *ended), *page),
        Ask::Services { ended } => listing::services(grid, user, *ended),
        Ask::Hosts => Answer::Hosts { hosts: view::hosts(grid, user), trouble: None },
        Ask::Queues => Answer::Queues { queues: view::queues(grid), trouble: None },
        Ask::Resources => Answer::Resources { resources: view::resources(grid) },
        Ask::Limits => Answer::Limits { limits: view::limits(grid) },
        Ask::Try { spec } => match grid.try_out(user, (**spec).clone()) {
            Ok(trial) => Answer::Tried { queue: trial.queue, host: trial.host, start: trial.start },
            Err(refusal) => Answer::Refused(refusal.into()),
        },
        Ask::Reservations => {
            Answer::Reservations { reservations: grid.reservations().cloned().collect() }
        }
        Ask::Groups => Answer::Groups { groups: view::groups(grid, user) },
        Ask::Explain { target } => view::explain(grid, user, *target),
        Ask::Flow { flow } => flow::answer(grid, user, flow),
        Ask::Submit { .. }
        | Ask::Command { .. }
        | Ask::Modify { .. }
        | Ask::Queue { .. }
        | Ask::Host { .. }
        | Ask::Reserve { .. }
        | Ask::Unreserve { .. }
        | Ask::Group { .. }
        | Ask::History { .. }
        | Ask::Wait { .. }
        | Ask::WaitElement { .. }
        | Ask::For { .. }
        | Ask::Ping
        | Ask::Reload
        | Ask::Watch { .. }
        | Ask::Sessions { .. }
        | Ask::KeepCheckpoint { .. }
        | Ask::Usage { .. }
        | Ask::Join { .. } => {
            Answer::refused(RefusalKind::NotUnderstood, "this request is not supported here")
        }
    }
}
