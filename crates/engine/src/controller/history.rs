//! What the history adds to answers: attempts that ended, and what they used, for those who may see it.

use anyhow::Result;
use forebay_grid::account::AttemptRecord;
use forebay_grid::grid::State;
use forebay_grid::spec::Usage;
use forebay_grid::vocabulary::{Attempt, Target, TaskId, UserName};

use crate::engine::Engine;
use crate::protocol::{Answer, Start};

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
    if let Answer::Explained { used: usage, .. } = &mut answer
        && let Some((task, attempt)) = last_end(engine, target)
    {
        *usage = used(task, attempt)?.map(Box::new);
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

/// The attempts that `user` may see.
pub fn answer(
    engine: &dyn Engine,
    user: &UserName,
    target: Target,
    mut attempts: Vec<AttemptRecord>,
    next: Option<Start>,
) -> Answer {
    let known = engine.may_see_job(user, target.job);
    attempts.retain(|attempt| known || engine.may_see(user, &attempt.user));
    if attempts.is_empty() && !known {
        Answer::no_job(target)
    } else {
        Answer::History { attempts, next }
    }
}
