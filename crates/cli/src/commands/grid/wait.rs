//! Waiting for the end of jobs, elements of arrays and runs of flows: `forebay wait`; how a job ended, in words.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use forebay_engine::protocol::client::{Client, is_no_job};
use forebay_engine::protocol::flow::FlowAsk;
use forebay_engine::protocol::{Answer, Ask, JobView, Refusal, RefusalKind, explain};
use forebay_grid::account::AttemptRecord;
use forebay_grid::flow::FlowId;
use forebay_grid::spec::Exit;
use forebay_grid::state::JobState;
use forebay_grid::vocabulary::{JobId, Target, TaskId};

use super::{Which, flow, no_sense};
use crate::output::put_json_line;

/// How a job ended whose work areas held too much.
pub(super) const AREA_LIMIT: &str =
    "was killed: its work areas held more than area_limit of its queue";

/// How a job ended that had to have ended by a time.
pub(super) const DEADLINE: &str = "was killed at its --deadline";

/// The exit code of what is not known, as wait of a shell has it.
pub(super) const UNKNOWN: u8 = 127;

/// Wait until jobs, elements of arrays or runs of flows have ended.
///
/// Exits with the exit code of the job or the element; of a run 0 if it succeeded, 1 if it failed or was killed. Of several, with the first
/// that is not 0, in the order in which they are named, runs last. An array has ended when all of its elements have; its exit code is that of the
/// first one that failed.
///
/// Jobs may be waited for before and after their end, also while the controller restarts. The end of a job that the grid has forgotten is looked
/// up in the history, which has no elements that were never started: if elements are missing there and all others succeeded, the end of the array is
/// not known. An unknown job is reported at once on standard error and counts as exit code 127, as in a shell; the others are waited for.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay wait 12
  forebay wait 12 '13[5]' 17 && ./publish.sh
  forebay wait --flow 3
  forebay wait 12 --json")]
pub struct Wait {
    #[command(flatten)]
    which: Which,
    /// Jobs or elements: 12, or 12[3].
    #[arg(required_unless_present = "flow")]
    jobs: Vec<Target>,
    /// Number of a run of a flow; may be repeated.
    #[arg(long, value_name = "RUN", value_parser = |text: &str| text.parse::<FlowId>())]
    flow: Vec<FlowId>,
    /// Print JSON: one object per line, as each one ends; "exit" is null if it is not known.
    #[arg(long)]
    json: bool,
}

/// Something that ends.
#[derive(Clone, Copy)]
enum Awaited {
    Job(Target),
    Run(FlowId),
}

impl Awaited {
    /// Whether the grid, or its history, knows it.
    fn is_known(self, client: &mut Client) -> Result<bool> {
        let looked = match self {
            Awaited::Job(target) => client.jobs(Some(target), true, Some(1)).map(drop),
            Awaited::Run(run) => client.ask(&Ask::Flow { flow: FlowAsk::Show(run) }).map(drop),
        };
        match (looked, self) {
            (Ok(()), _) => Ok(true),
            (Err(error), Awaited::Job(target)) if is_no_job(&error) => {
                Ok(!client.last_attempts(target)?.is_empty())
            }
            (Err(error), Awaited::Run(_)) if is_no_flow(&error) => Ok(false),
            (Err(error), _) => Err(error),
        }
    }

    /// Waits for the end, says how it was unless it was an end by itself, and gives the exit code. Of what was forgotten meanwhile it is
    /// said that its end is not known.
    fn end(self, which: &Which) -> Result<Option<u8>> {
        match self {
            Awaited::Job(target) => {
                let value = which.wait_for(target)?;
                if value.is_some() {
                    which.say_end(target);
                }
                Ok(value)
            }
            Awaited::Run(run) => match flow::wait(which, run) {
                Ok(value) => Ok(Some(value)),
                Err(error) if is_no_flow(&error) => {
                    self.say_unknown();
                    Ok(None)
                }
                Err(error) => Err(error),
            },
        }
    }

    fn say_unknown(self) {
        note!(
            "forebay: {self} is not known: there is none with this number, or the grid and its history have forgotten it"
        );
    }

    /// As JSON has it.
    fn line(self, exit: Option<u8>) -> serde_json::Value {
        match self {
            Awaited::Job(Target { job, index: None }) => {
                serde_json::json!({ "job": job, "exit": exit })
            }
            Awaited::Job(Target { job, index: Some(index) }) => {
                serde_json::json!({ "job": job, "index": index, "exit": exit })
            }
            Awaited::Run(run) => serde_json::json!({ "flow": run, "exit": exit }),
        }
    }
}

impl std::fmt::Display for Awaited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Awaited::Job(target) => write!(f, "job {target}"),
            Awaited::Run(run) => write!(f, "flow {run}"),
        }
    }
}

fn is_no_flow(error: &anyhow::Error) -> bool {
    let refusal = error.downcast_ref::<Refusal>();
    refusal.is_some_and(|refusal| refusal.kind == RefusalKind::NoFlow)
}

impl Wait {
    pub fn run(self) -> Result<ExitCode> {
        // A grid that is not there is said at once. Later it may be unreachable for a while.
        let mut client = self.which.client()?;
        let jobs = self.jobs.iter().copied().map(Awaited::Job);
        let mut awaited = Vec::new();
        for one in jobs.chain(self.flow.iter().copied().map(Awaited::Run)) {
            let is_known = one.is_known(&mut client)?;
            if !is_known {
                one.say_unknown();
            }
            awaited.push((one, is_known));
        }
        drop(client);
        let mut first = 0;
        for (one, is_known) in awaited {
            let exit = if is_known { one.end(&self.which)? } else { None };
            if self.json {
                put_json_line(&one.line(exit))?;
            }
            first = if first == 0 { exit.unwrap_or(UNKNOWN) } else { first };
        }
        Ok(ExitCode::from(first))
    }
}

/// Waits for the end of a job of the grid that the environment names, also while the controller restarts; its exit code, as `forebay wait` has it.
///
/// # Errors
/// If the job is refused, or its history cannot be read.
pub fn exit_of(job: JobId) -> Result<ExitCode> {
    let value = Which::default().wait_for(job.into())?;
    Ok(ExitCode::from(value.unwrap_or(UNKNOWN)))
}

/// The exit code of a job or an element that the grid has forgotten, by the last attempts in its history: that of the first element that failed.
/// None if the history does not have it, or lacks elements while all others succeeded.
fn end_in_history(target: Target, last: &[AttemptRecord]) -> Option<u8> {
    let first = last.first()?;
    // Indices of arrays start at 1.
    let is_one = target.index.is_some() || first.task.index == 0;
    let is_whole = is_one || usize::try_from(first.tasks) == Ok(last.len());
    let failed = last.iter().map(AttemptRecord::exit_value).find(|value| *value != 0);
    failed.or(is_whole.then_some(0))
}

/// How a task ended.
struct TaskEnd {
    id: String,
    state: JobState,
    exit: Option<Exit>,
}

impl From<JobView> for TaskEnd {
    fn from(line: JobView) -> TaskEnd {
        TaskEnd { id: line.id, state: line.state, exit: line.exit }
    }
}

impl From<AttemptRecord> for TaskEnd {
    fn from(last: AttemptRecord) -> TaskEnd {
        TaskEnd { id: last.task.to_string(), state: last.last_state(), exit: last.exit }
    }
}

impl Which {
    /// Asks its controller, which is known to be there, what is answered when something has ended. If it goes
    /// away it is asked again once it is back: the end of a job waits for nobody's connection.
    pub(super) fn wait(&self, ask: &Ask) -> Result<Answer> {
        const PAUSE: Duration = Duration::from_millis(200);
        loop {
            match self.ask(ask) {
                Err(error) if !error.is::<Refusal>() => std::thread::sleep(PAUSE),
                answer => return answer,
            }
        }
    }

    /// Waits for the end of a job or an element; its exit code. Of one that is no longer known the history says it; if it cannot, that is
    /// said.
    pub(super) fn wait_for(&self, target: Target) -> Result<Option<u8>> {
        let ask = match target {
            Target { job, index: None } => Ask::Wait { job },
            Target { job, index: Some(index) } => Ask::WaitElement { task: TaskId { job, index } },
        };
        match self.wait(&ask) {
            Ok(Answer::Ended { value }) => Ok(Some(value)),
            Ok(answer) => Err(no_sense(&answer)),
            Err(error) if is_no_job(&error) => {
                let last = self.client()?.last_attempts(target)?;
                let value = end_in_history(target, &last);
                if last.is_empty() {
                    Awaited::Job(target).say_unknown();
                } else if value.is_none() {
                    note!(
                        "forebay: the end of job {target} is not known: the grid has forgotten it, and its history does not have all of its \
                         elements, such as those that were killed before they started"
                    );
                }
                Ok(value)
            }
            Err(error) => Err(error),
        }
    }

    /// How the tasks of a job ended, as far as that is known.
    fn ends_of(&self, target: Target) -> Result<Vec<TaskEnd>> {
        let mut client = self.client()?;
        match client.jobs(Some(target), true, None) {
            Ok((lines, _)) => Ok(lines.into_iter().map(TaskEnd::from).collect()),
            Err(error) if is_no_job(&error) => {
                Ok(client.last_attempts(target)?.into_iter().map(TaskEnd::from).collect())
            }
            Err(error) => Err(error),
        }
    }

    /// Says how a job ended that did not end by itself, as far as that can be known: its exit value says less.
    pub(super) fn say_end(&self, target: Target) {
        let ended_otherwise = |end: &TaskEnd| {
            !matches!(end.state, JobState::Done | JobState::Exited)
                || matches!(
                    end.exit,
                    Some(Exit::NotStarted(_) | Exit::MemoryLimit(_) | Exit::ProcessLimit { .. })
                )
        };
        let Ok(ends) = self.ends_of(target) else { return };
        let mut others = ends.into_iter().filter(ended_otherwise);
        let Some(first) = others.next() else { return };
        let how = match (&first.exit, first.state) {
            (Some(Exit::NotStarted(reason)), _) => format!("was not started: {reason}"),
            (Some(exit @ Exit::MemoryLimit(_)), _) => format!("was killed: {exit}"),
            (Some(exit @ Exit::ProcessLimit { .. }), _) => format!("failed: {exit}"),
            (_, JobState::Killed) => "was killed".to_owned(),
            (_, JobState::TimeLimit) => "reached its time limit".to_owned(),
            (_, JobState::AreaLimit) => AREA_LIMIT.to_owned(),
            (_, JobState::Deadline) => DEADLINE.to_owned(),
            (_, JobState::HostLost) => {
                "was lost: its host or the process that held it failed".to_owned()
            }
            (_, JobState::DependencyNever) => {
                format!("was not started: {}", self.why_never(target))
            }
            (_, state) => format!("ended as {state}"),
        };
        let more = match others.count() {
            0 => String::new(),
            more => {
                format!("; so were {more} more elements of the array, or they were not started")
            }
        };
        note!("forebay: job {} {how}{more}", first.id);
    }

    /// Why a job ended without having run, as far as that is known still.
    pub(super) fn why_never(&self, target: Target) -> String {
        match self.ask(&Ask::Explain { target }) {
            Ok(Answer::Explained { explanation, used }) => {
                explain::reasons(&explanation, used.as_deref()).join("; ")
            }
            Ok(_) | Err(_) => "its dependency can no longer become true".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_grid::task::{Cause, Fate};
    use forebay_grid::vocabulary::{Attempt, Moment};

    use super::*;

    fn ended(index: u32, tasks: u32, code: u8) -> AttemptRecord {
        AttemptRecord {
            task: TaskId { job: JobId(3), index },
            tasks,
            name: "a".to_owned(),
            user: "ann".parse().unwrap(),
            queue: "normal".parse().unwrap(),
            project: String::new(),
            host: "h1".parse().unwrap(),
            attempt: Attempt(1),
            slots: 1,
            submitted: Moment(1),
            launched: Moment(2),
            started: Some(Moment(3)),
            ended: Moment(4),
            exit: Some(Exit::Code(code)),
            loss: None,
            usage: None,
            fate: Fate::Finished(Cause::Exited),
        }
    }

    #[test]
    fn an_array_without_its_killed_elements_in_the_history_has_not_succeeded() {
        let (array, third): (Target, Target) = ("3".parse().unwrap(), "3[3]".parse().unwrap());
        let good = |count: u32, tasks| (1..=count).map(move |index| ended(index, tasks, 0));
        let end = |target, last: Vec<AttemptRecord>| end_in_history(target, &last);
        assert_eq!(end(array, good(3, 3).collect()), Some(0));
        assert_eq!(end(array, good(2, 3).collect()), None);
        assert_eq!(
            end(array, good(1, 3).chain([ended(3, 3, 5), ended(4, 3, 6)]).collect()),
            Some(5)
        );
        assert_eq!(end(third, vec![ended(3, 9, 0)]), Some(0));
        assert_eq!(end(third, Vec::new()), None);
        // Entries of versions that did not say how many there are.
        assert_eq!(end(array, vec![ended(0, 0, 0)]), Some(0));
        assert_eq!(end(array, good(3, 0).collect()), None);
    }
}
