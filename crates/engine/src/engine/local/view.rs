//! What there is to see, for those who may see it: users see their own jobs, admins all.

use std::collections::BTreeMap;

use forebay_grid::Grid;
use forebay_grid::Job;
use forebay_grid::config::{Dispatch, RerunDefault};
use forebay_grid::grid::State;
use forebay_grid::hosts::Reach;
use forebay_grid::journal::{Intake, Starts};
use forebay_grid::parse::period::Period;
use forebay_grid::spec::{Checkpoint, Sharing};
use forebay_grid::state::JobState;
use forebay_grid::task::{Cause, Run, Stops, Task};
use forebay_grid::vocabulary::{JobId, QueueName, Target, TaskId, UserName};

use crate::protocol::{
    Answer, Asked, GroupView, HostState, HostView, JobView, LimitsView, QueueView, ResourceView,
    Runs, ServiceView,
};

/// One task, as a line of a list.
pub(super) fn view(grid: &Grid, id: TaskId, job: &Job) -> JobView {
    let ledger = grid.ledger();
    let spec = job.spec();
    let state = grid.state(id);
    let start = state.as_ref().map(State::last_start).unwrap_or_default();
    let mut line = JobView {
        id: id.to_string(),
        name: spec.name.clone(),
        user: ledger.user_of(job).clone(),
        queue: ledger.queue_of(job).clone(),
        state: JobState::Pending,
        tasks: 1,
        attempts: start.attempts,
        slots: spec.slots(),
        exit: None,
        submitted: job.submitted(),
        started: start.started,
        ended: None,
        command: spec.command.clone(),
        output: spec.output_path(id, start.host.as_ref()),
        error: spec.error_path(id, start.host.as_ref()),
        host: start.host,
        usage: None,
        asked: None,
        service: service(grid, job),
        group: spec.group.clone(),
    };
    let Some(state) = state else { return line };
    line.state = match state {
        State::Pending { .. } => JobState::Pending,
        State::Held { .. } => JobState::Held,
        State::Starting { .. } => JobState::Starting,
        State::Running { .. } => JobState::Running,
        State::Suspended { .. } => JobState::Suspended,
        State::Unknown { .. } => JobState::Unknown,
        State::Finished { exit, cause, ended, .. } => {
            let state = cause.state(exit.as_ref());
            (line.exit, line.ended) = (exit, Some(ended));
            // The flow did so, as it could never have started; nobody killed it.
            let never_began = cause == Cause::Killed && line.attempts == 0;
            if never_began && grid.is_skipped(id.job) { JobState::Skipped } else { state }
        }
    };
    line
}

/// What is known here of a job as a service.
fn service(grid: &Grid, job: &Job) -> Option<Box<ServiceView>> {
    let service = job.spec().service.as_ref()?;
    let state = job.service().unwrap_or_default();
    Some(Box::new(ServiceView {
        name: service.name.clone(),
        port: state.port,
        address: None,
        ready: None,
        why: None,
        failures: state.failures,
        next_start: state.not_before.filter(|at| *at > grid.now()),
        address_file: service.address_file.clone(),
    }))
}

/// Counts a task that is on a host, so many times.
fn add_run(runs: &mut Runs, run: &Run, times: u64) {
    let stops = run.stops();
    let count = match (stops.is_empty(), stops.has(Stops::ASKED)) {
        (true, _) => &mut runs.running,
        (false, true) => &mut runs.stopped_by_user,
        (false, false) => &mut runs.stopped_by_grid,
    };
    *count += times;
}

/// The tasks of a host, with their jobs.
fn on_host<'g>(grid: &'g Grid, tasks: &[TaskId]) -> impl Iterator<Item = (&'g Job, &'g Run)> {
    tasks.iter().filter_map(move |id| {
        let job = grid.ledger().job(id.job)?;
        match job.task(id.index)? {
            Task::Active(run) => Some((job, run.as_ref())),
            Task::Pending(_) | Task::Held(_) | Task::Finished(_) => None,
        }
    })
}

/// Slots of the tasks of a host.
fn slots_of(grid: &Grid, tasks: &[TaskId]) -> Runs {
    let mut runs = Runs::default();
    for (job, run) in on_host(grid, tasks) {
        add_run(&mut runs, run, job.spec().slots().into());
    }
    runs
}

/// Tasks on hosts, by their queue.
fn runs_of_queues(grid: &Grid) -> BTreeMap<&QueueName, Runs> {
    let mut runs: BTreeMap<&QueueName, Runs> = BTreeMap::new();
    for host in grid.hosts() {
        for (job, run) in on_host(grid, &host.tasks) {
            add_run(runs.entry(grid.ledger().queue_of(job)).or_default(), run, 1);
        }
    }
    runs
}

pub(super) fn hosts(grid: &Grid, user: &UserName) -> Vec<HostView> {
    let ledger = grid.ledger();
    let seen = |task: &&TaskId| ledger.job(task.job).is_some_and(|job| grid.sees_job(user, job));
    grid.hosts()
        .map(|host| HostView {
            features: grid.features_of(&host.name).iter().map(ToString::to_string).collect(),
            name: host.name,
            state: match host.reach {
                Reach::Up => HostState::Up,
                Reach::Away => HostState::Unreachable,
                Reach::Gone => HostState::Gone,
            },
            switch: host.switch,
            slots: host.slots,
            used_slots: host.used_slots,
            memory_bytes: host.memory_bytes,
            used_memory_bytes: host.used_memory_bytes,
            load: host.load,
            runs: slots_of(grid, &host.tasks),
            tasks: host.tasks.iter().filter(seen).map(ToString::to_string).collect(),
            containment: None,
            missing_limits: Default::default(),
        })
        .collect()
}

/// What a job asks for.
pub(super) fn asked(grid: &Grid, job: &Job) -> Asked {
    let spec = job.spec();
    Asked {
        memory_bytes: spec.memory.map(|memory| memory.0),
        hosts: spec.hosts.to_string(),
        depends: spec.depends.as_ref().map(ToString::to_string),
        priority: spec.priority,
        project: spec.project.clone(),
        time_limit_seconds: spec.time_limit.map(seconds),
        rerun: spec.rerun,
        requeue_exits: spec.requeue_exits.to_string(),
        checkpoint: spec.checkpoint == Checkpoint::Steps,
        directory: spec.directory.clone(),
        dialect: spec.dialect.clone(),
        array: spec.array.as_ref().map(ToString::to_string),
        elements: Vec::new(),
        begin: spec.begin,
        deadline: spec.deadline,
        resources: spec.resources.to_string(),
        exclusive: spec.sharing == Sharing::Exclusive,
        pre: spec.pre.clone(),
        post: spec.post.clone(),
        profile: spec.profile.as_ref().map(ToString::to_string),
        io_heavy: spec.io_heavy,
        reservation: spec.reservation.as_ref().map(ToString::to_string),
        inputs: spec.inputs.clone(),
        fair_share: grid.fair_share(job),
        warning: spec.warning.map(|warning| warning.to_string()),
        features: spec.features.as_ref().map(ToString::to_string),
        waits: None,
    }
}

/// Counted resources of the grid and of its hosts.
pub(super) fn resources(grid: &Grid) -> Vec<ResourceView> {
    let view = |seen: forebay_grid::grid::ResourceView| ResourceView {
        name: seen.name,
        host: seen.host,
        total: seen.total,
        used: seen.used,
    };
    grid.resources().into_iter().map(view).collect()
}

/// Limits and times of the settings that concern users.
pub(super) fn limits(grid: &Grid) -> LimitsView {
    let config = grid.ledger().config();
    let general = &config.general;
    let (dispatch_seconds, accept_rounds) = match general.dispatch {
        Dispatch::Event => (0.0, 0),
        Dispatch::Interval { sleep, accept } => (seconds(sleep), accept),
    };
    let default = config.queues.iter().find(|queue| queue.name == *config.queue_default());
    LimitsView {
        finished_age_seconds: seconds(general.finished_age),
        tasks_max: general.tasks_max,
        user_tasks_max: general.user_tasks_max,
        user_slots_max: general.user_slots_max,
        dispatch_seconds,
        accept_rounds,
        profiles: config.profiles.iter().map(|profile| profile.name.clone()).collect(),
        rerun: default.is_some_and(|queue| queue.rerun == RerunDefault::Rerunnable),
        submit_filter: general.submit_filter.is_some(),
    }
}

/// The job groups of a user.
pub(super) fn groups(grid: &Grid, user: &UserName) -> Vec<GroupView> {
    let view = |seen: forebay_grid::grid::GroupView| {
        let [pending, running, suspended, ended] = seen.counts;
        let (group, limit, used) = (seen.group, seen.limit, seen.used);
        GroupView { group, limit, used, pending, running, suspended, ended }
    };
    grid.groups(user).into_iter().map(view).collect()
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn seconds(period: Period) -> f64 {
    period.as_ms() as f64 / 1000.0
}

/// Takes as long as there are jobs.
pub(super) fn queues(grid: &Grid) -> Vec<QueueView> {
    let ledger = grid.ledger();
    let mut counts: BTreeMap<&QueueName, [u64; 3]> = BTreeMap::new();
    for (_, job) in ledger.jobs_from(JobId(0)) {
        let tally = job.tally();
        let counts = counts.entry(ledger.queue_of(job)).or_default();
        for (count, more) in counts.iter_mut().zip([tally.pending, tally.held, tally.active]) {
            *count += u64::from(more);
        }
    }
    let runs = runs_of_queues(grid);
    let settings =
        |name: &QueueName| ledger.config().queues.iter().find(|queue| queue.name == *name);
    grid.queues()
        .map(|queue| QueueView {
            slots_max: settings(&queue.name).and_then(|settings| settings.slots_max),
            user_slots_max: settings(&queue.name).and_then(|settings| settings.user_slots_max),
            host_slots_max: settings(&queue.name).and_then(|settings| settings.host_slots_max),
            hosts: settings(&queue.name).map(|s| s.hosts.to_string()).unwrap_or_default(),
            time_limit_max_seconds: settings(&queue.name)
                .and_then(|settings| settings.time_limit_max)
                .map(seconds),
            pending_tasks: counts.get(&queue.name).map_or(0, |counts| counts[0]),
            held_tasks: counts.get(&queue.name).map_or(0, |counts| counts[1]),
            active_tasks: counts.get(&queue.name).map_or(0, |counts| counts[2]),
            runs: runs.get(&queue.name).copied().unwrap_or_default(),
            is_default: *ledger.config().queue_default() == queue.name,
            name: queue.name,
            priority: queue.priority,
            open: queue.switch.intake == Intake::Open,
            active: queue.switch.starts == Starts::Active,
            windows_open: queue.windows_open,
            used_slots: queue.used_slots,
        })
        .collect()
}

pub(super) fn explain(grid: &Grid, user: &UserName, target: Target) -> Answer {
    let ledger = grid.ledger();
    let known = ledger.job(target.job).filter(|job| grid.sees_job(user, job));
    let Some(job) = known else { return Answer::no_job(target) };
    // Of a whole array, the first element that has not ended speaks for the others.
    let open = || job.tasks().find(|(_, task)| !matches!(task, Task::Finished(_)));
    let index = target.index.or_else(|| Some(open()?.0)).unwrap_or_else(|| job.index_at(0));
    match grid.explain(TaskId { job: target.job, index }) {
        None => Answer::no_job(target),
        Some(explanation) => Answer::Explained { explanation, used: None },
    }
}
