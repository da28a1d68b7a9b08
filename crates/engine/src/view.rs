//! What there is to see, for those who may see it: users see their own jobs, admins all.

use anyhow::Result;
use forebay_grid::Grid;
use forebay_grid::Job;
use forebay_grid::account::AttemptRecord;
use forebay_grid::grid::{Explanation, State};
use forebay_grid::hosts::Reach;
use forebay_grid::journal::{Intake, Starts};
use forebay_grid::spec::Usage;
use forebay_grid::task::{Cause, Task};
use forebay_grid::vocabulary::{Attempt, JobId, Target, TaskId, UserName};

use crate::listing;
use crate::message::{
    Answer, Ask, HostView, JobView, QueueView, Start, Verdict, error_path, output_path,
};

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
        Ask::Jobs { target, ended, page } => listing::jobs(grid, user, (*target, *ended), *page),
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

pub(crate) fn no_job(target: Target) -> Answer {
    Answer::Refused { reason: format!("there is no job {target}") }
}

pub(crate) fn view(grid: &Grid, id: TaskId, job: &Job) -> JobView {
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

/// An answer about one job, with what the last start of each task that it shows used. `used` is asked for
/// the starts that are shown, and for no others.
pub fn with_usage(
    grid: &Grid,
    target: Target,
    mut answer: Answer,
    used: impl Fn(TaskId, Attempt) -> Result<Option<Usage>>,
) -> Result<Answer> {
    if let Answer::Jobs { jobs, .. } = &mut answer {
        for line in jobs.iter_mut().filter(|line| line.ended.is_some()) {
            let Ok(Target { job, index }) = line.id.parse() else { continue };
            let task = TaskId { job, index: index.unwrap_or(0) };
            line.usage = used(task, Attempt(line.attempts))?;
        }
    }
    if let Answer::Explained { reasons, .. } = &mut answer
        && let Some((task, attempt)) = last_end(grid, target)
        && let Some(usage) = used(task, attempt)?
    {
        reasons.push(use_of_time(&usage));
    }
    Ok(answer)
}

/// The last start of a task that has ended. Of a whole array it would not be clear which element is meant.
fn last_end(grid: &Grid, target: Target) -> Option<(TaskId, Attempt)> {
    let job = grid.ledger().job(target.job)?;
    if target.index.is_none() && job.spec().array.is_some() {
        return None;
    }
    let task = TaskId { job: target.job, index: target.index.unwrap_or(0) };
    let attempts = match job.task(task.index)? {
        Task::Pending(waiting) | Task::Held(waiting) => waiting.attempts,
        Task::Active(run) => run.attempt.0.saturating_sub(1),
        Task::Finished(finish) => finish.attempts,
    };
    Some((task, Attempt(attempts)))
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
    next: Option<Start>,
) -> Answer {
    let ledger = grid.ledger();
    let known = ledger.job(target.job).is_some_and(|job| may_see(grid, user, ledger.user_of(job)));
    attempts.retain(|attempt| may_see(grid, user, &attempt.user));
    if attempts.is_empty() && !known { no_job(target) } else { Answer::History { attempts, next } }
}
