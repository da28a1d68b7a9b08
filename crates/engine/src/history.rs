//! What the history adds to answers: attempts that ended, and what they used, for those who may see it.

use anyhow::Result;
use forebay_grid::account::AttemptRecord;
use forebay_grid::grid::State;
use forebay_grid::spec::Usage;
use forebay_grid::vocabulary::{Attempt, Target, TaskId, UserName};

use crate::engine::Engine;
use crate::message::{Answer, Start};

/// An answer about one job, with what the last start of each task that it shows used. `used` is asked for
/// the starts that are shown, and for no others.
pub fn with_usage(
    engine: &dyn Engine,
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
        && let Some((task, attempt)) = last_end(engine, target)
        && let Some(usage) = used(task, attempt)?
    {
        reasons.push(use_of_time(&usage));
    }
    Ok(answer)
}

/// The last start of a task that has ended. Of a whole array it would not be clear which element is meant.
fn last_end(engine: &dyn Engine, target: Target) -> Option<(TaskId, Attempt)> {
    if target.index.is_none() && engine.spec(target.job)?.array.is_some() {
        return None;
    }
    let task = TaskId { job: target.job, index: target.index.unwrap_or(0) };
    let state = engine.state(task)?;
    let attempts = state.last_start().attempts;
    let ended = match state {
        State::Pending { .. } | State::Held { .. } | State::Finished { .. } => attempts,
        State::Starting { .. }
        | State::Running { .. }
        | State::Suspended { .. }
        | State::Unknown { .. } => attempts.saturating_sub(1),
    };
    Some((task, Attempt(ended)))
}

/// Where the time of an attempt went, in words.
fn use_of_time(usage: &Usage) -> String {
    let waited = match (usage.io_wait_seconds, usage.io_pressure_seconds) {
        (Some(seconds), _) => format!("waited {seconds:.3} s for I/O"),
        (None, Some(seconds)) => format!("was slowed by I/O for {seconds:.3} s"),
        (None, None) => "waited for I/O for a time that is not known (by its host's kernel, or as it had children; the \
                 agent's log says what is known there)"
            .to_owned(),
    };
    format!(
        "its last finished start took {:.3} s, used {:.3} s of processor time and {waited}",
        usage.real_seconds,
        usage.cpu_seconds()
    )
}

/// The attempts that `user` may see.
pub fn answer(
    engine: &dyn Engine,
    user: &UserName,
    target: Target,
    mut attempts: Vec<AttemptRecord>,
    next: Option<Start>,
) -> Answer {
    let known = engine.owner(target.job).is_some_and(|owner| engine.may_see(user, owner));
    attempts.retain(|attempt| engine.may_see(user, &attempt.user));
    if attempts.is_empty() && !known {
        Answer::no_job(target)
    } else {
        Answer::History { attempts, next }
    }
}
