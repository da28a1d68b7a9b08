//! What there is to see, for those who may see it: users see their own jobs, admins all.

use std::collections::HashMap;

use forebay_grid::Grid;
use forebay_grid::Job;
use forebay_grid::account::AttemptRecord;
use forebay_grid::grid::{Explanation, State};
use forebay_grid::hosts::Reach;
use forebay_grid::journal::{Intake, Starts};
use forebay_grid::spec::Usage;
use forebay_grid::task::{Cause, Task};
use forebay_grid::vocabulary::{JobId, Target, TaskId, UserName};

use crate::message::{Answer, Ask, HostView, JobView, QueueView, Verdict, error_path, output_path};

pub fn may_see(grid: &Grid, user: &UserName, owner: &UserName) -> bool {
    user == owner || grid.ledger().config().general.admins.contains(user)
}

/// The exit value of a job: 0, or the first that is not 0 of its tasks. A task that was killed while it
/// waited, or whose host was lost, counts as killed by force.
pub fn exit_value(grid: &Grid, job: JobId) -> Option<u8> {
    const KILLED: u8 = 137;
    let job = grid.ledger().job(job)?;
    let values = job.tasks().map(|(_, task)| match task {
        Task::Finished(finish) => match (&finish.exit, finish.cause) {
            (Some(exit), Cause::Exited | Cause::AttemptsMax) => exit.value(),
            (Some(exit), _) => Some(exit.value()).filter(|value| *value != 0).unwrap_or(KILLED),
            (None, _) => KILLED,
        },
        Task::Pending(_) | Task::Held(_) | Task::Active(_) => 0,
    });
    Some(values.into_iter().find(|value| *value != 0).unwrap_or(0))
}

/// Answers what only looks.
pub fn answer(grid: &Grid, user: &UserName, ask: &Ask) -> Answer {
    match ask {
        Ask::Jobs { target, ended } => jobs(grid, user, *target, *ended),
        Ask::Hosts => Answer::Hosts { hosts: hosts(grid, user) },
        Ask::Queues => Answer::Queues { queues: queues(grid) },
        Ask::Explain { target } => explain(grid, user, *target),
        Ask::Ping => Answer::Here,
        Ask::Submit { .. }
        | Ask::Command { .. }
        | Ask::Queue { .. }
        | Ask::Host { .. }
        | Ask::History { .. }
        | Ask::Wait { .. }
        | Ask::Flow { .. }
        | Ask::Watch { .. }
        | Ask::Sessions { .. }
        | Ask::Usage { .. }
        | Ask::Join { .. } => Answer::Refused { reason: "this cannot be asked here".to_owned() },
    }
}

fn no_job(target: Target) -> Answer {
    Answer::Refused { reason: format!("there is no job {target}") }
}

fn jobs(grid: &Grid, user: &UserName, target: Option<Target>, ended: bool) -> Answer {
    let ledger = grid.ledger();
    let mut jobs = Vec::new();
    if let Some(target) = target {
        let known = ledger.job(target.job).filter(|job| may_see(grid, user, ledger.user_of(job)));
        let Some(job) = known else { return no_job(target) };
        add_job(grid, target, job, true, &mut jobs);
        if jobs.is_empty() {
            return no_job(target);
        }
    } else {
        for (id, job) in ledger.jobs() {
            let wanted = ended || !job.tally().is_finished();
            if wanted && may_see(grid, user, ledger.user_of(job)) {
                add_job(grid, id.into(), job, ended, &mut jobs);
            }
        }
    }
    Answer::Jobs { jobs }
}

/// Adds a line for each task of a job, but one for all elements of an array that wait alike.
fn add_job(grid: &Grid, target: Target, job: &Job, ended: bool, lines: &mut Vec<JobView>) {
    let first = lines.len();
    for (index, task) in job.tasks() {
        if target.index.is_some_and(|wanted| wanted != index)
            || (matches!(task, Task::Finished(_)) && !ended)
        {
            continue;
        }
        let waits = matches!(task, Task::Pending(_) | Task::Held(_));
        let mut line = view(grid, TaskId { job: target.job, index }, job);
        if waits && index != 0 && target.index.is_none() {
            line.id = target.job.to_string();
            let alike = |other: &&mut JobView| other.id == line.id && other.state == line.state;
            if let Some(same) = lines[first..].iter_mut().find(alike) {
                same.tasks += 1;
                continue;
            }
        }
        lines.push(line);
    }
}

fn view(grid: &Grid, id: TaskId, job: &Job) -> JobView {
    let ledger = grid.ledger();
    let spec = job.spec();
    let mut line = JobView {
        id: id.to_string(),
        name: spec.name.clone(),
        user: ledger.user_of(job).clone(),
        queue: ledger.queue_of(job).clone(),
        state: String::new(),
        tasks: 1,
        host: None,
        attempts: 0,
        slots: spec.slots(),
        exit: None,
        submitted: job.submitted(),
        started: None,
        ended: None,
        command: spec.command.clone(),
        output: output_path(spec, id),
        error: error_path(spec, id),
        usage: None,
    };
    let Some(state) = grid.state(id) else { return line };
    let start = state.last_start();
    (line.attempts, line.host, line.started) = (start.attempts, start.host, start.started);
    let word = match state {
        State::Pending { .. } => "pending",
        State::Held { .. } => "held",
        State::Starting { .. } => "starting",
        State::Running { .. } => "running",
        State::Suspended { .. } => "suspended",
        State::Unknown { .. } => "unknown",
        State::Finished { exit, cause, ended, .. } => {
            let good = exit.as_ref().is_some_and(|exit| exit.value() == 0);
            (line.exit, line.ended) = (exit, Some(ended));
            match cause {
                Cause::Exited if good => "done",
                Cause::Exited => "exited",
                Cause::Killed => "killed",
                Cause::TimeLimit => "time_limit",
                Cause::HostLost => "host_lost",
                Cause::AttemptsMax => "attempts_max",
            }
        }
    };
    line.state = word.to_owned();
    line
}

fn hosts(grid: &Grid, user: &UserName) -> Vec<HostView> {
    let ledger = grid.ledger();
    let seen = |task: &&TaskId| {
        ledger.job(task.job).is_some_and(|job| may_see(grid, user, ledger.user_of(job)))
    };
    grid.hosts()
        .map(|host| HostView {
            name: host.name,
            state: match host.reach {
                Reach::Up => "up",
                Reach::Away => "away",
                Reach::Gone => "gone",
            }
            .to_owned(),
            switch: host.switch,
            slots: host.slots,
            used_slots: host.used_slots,
            memory_bytes: host.memory_bytes,
            used_memory_bytes: host.used_memory_bytes,
            load: host.load,
            tasks: host.tasks.iter().filter(seen).map(ToString::to_string).collect(),
        })
        .collect()
}

fn queues(grid: &Grid) -> Vec<QueueView> {
    grid.queues()
        .map(|queue| QueueView {
            name: queue.name,
            priority: queue.priority,
            open: queue.switch.intake == Intake::Open,
            active: queue.switch.starts == Starts::Active,
            windows_open: queue.windows_open,
            used_slots: queue.used_slots,
        })
        .collect()
}

fn explain(grid: &Grid, user: &UserName, target: Target) -> Answer {
    let ledger = grid.ledger();
    let known = ledger.job(target.job).filter(|job| may_see(grid, user, ledger.user_of(job)));
    let Some(job) = known else { return no_job(target) };
    // Of a whole array, the first element that has not ended speaks for the others.
    let open = || job.tasks().find(|(_, task)| !matches!(task, Task::Finished(_)));
    let index = target.index.or_else(|| Some(open()?.0)).unwrap_or_else(|| job.index_at(0));
    match grid.explain(TaskId { job: target.job, index }) {
        None => no_job(target),
        Some(Explanation::NeverRan) => {
            let reasons = vec!["it ended without having run".to_owned()];
            Answer::Explained { reasons, hosts: Vec::new() }
        }
        Some(Explanation::Placed(placement)) => {
            Answer::Explained { reasons: vec![placement.to_string()], hosts: Vec::new() }
        }
        Some(Explanation::Waits { reasons, hosts }) => Answer::Explained {
            reasons: reasons.iter().map(ToString::to_string).collect(),
            hosts: hosts
                .into_iter()
                .map(|verdict| Verdict {
                    host: verdict.host,
                    obstacle: verdict.obstacle.map(|obstacle| obstacle.to_string()),
                })
                .collect(),
        },
    }
}

/// An answer about one job, with what the last start of each of its tasks used.
pub fn with_usage(mut answer: Answer, attempts: &[AttemptRecord]) -> Answer {
    // In the order of element and attempt: the last one of a task stands.
    let used: HashMap<String, Option<Usage>> =
        attempts.iter().map(|attempt| (attempt.task.to_string(), attempt.usage)).collect();
    if let Answer::Jobs { jobs } = &mut answer {
        for job in jobs.iter_mut().filter(|job| job.ended.is_some()) {
            job.usage = used.get(&job.id).copied().flatten();
        }
    }
    // Of a whole array it would not be clear which element is meant.
    if let Answer::Explained { reasons, .. } = &mut answer
        && used.len() == 1
        && let Some(usage) = attempts.last().and_then(|attempt| attempt.usage)
    {
        reasons.push(use_of_time(&usage));
    }
    answer
}

/// Where the time of an attempt went, in words.
fn use_of_time(usage: &Usage) -> String {
    let waited = match usage.io_wait_seconds {
        Some(seconds) => format!("waited {seconds:.3} s for I/O"),
        None => "waited for I/O for a time that is not known".to_owned(),
    };
    format!(
        "its last start that ended took {:.3} s, computed {:.3} s and {waited}",
        usage.real_seconds,
        usage.cpu_seconds()
    )
}

/// The attempts that `user` may see.
pub fn history(
    grid: &Grid,
    user: &UserName,
    target: Target,
    mut attempts: Vec<AttemptRecord>,
) -> Answer {
    let ledger = grid.ledger();
    let known = ledger.job(target.job).is_some_and(|job| may_see(grid, user, ledger.user_of(job)));
    attempts.retain(|attempt| may_see(grid, user, &attempt.user));
    if attempts.is_empty() && !known { no_job(target) } else { Answer::History { attempts } }
}
