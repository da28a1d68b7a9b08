//! Operations on jobs.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use forebay_engine::protocol::client::{Client, makes_no_sense};
use forebay_engine::protocol::{Answer, Ask, JobView, Page};
use forebay_grid::event::{JobSignal, Verb};
use forebay_grid::group::JobGroup;
use forebay_grid::spec::{INPUTS_MAX, Input};
use forebay_grid::state::JobState;
use forebay_grid::vocabulary::{QueueName, Target, TaskId, UserName};
use uuid::Uuid;

use super::changes::{JobChanges, NewSignal};
use super::operation::{Call, sent};
use super::views::{Accepted, Attempt, AttemptList, Job, JobList, NewJob, Obeyed, Output, Reasons};
use crate::app::{App, Who};
use crate::http::Reply;
use crate::problem::Problem;

/// The most lines of a page.
const PAGE_MAX: u32 = 1000;
/// The most pages of the controller that are looked through for one page of jobs that are chosen.
const PAGES_MAX: u32 = 20;
/// The most bytes of output that are sent at once.
pub const OUTPUT_MAX: u64 = 1 << 20;
/// How many are sent if nothing is said.
const OUTPUT_BYTES: u64 = 64 << 10;

type Done = Result<Reply, Problem>;

pub(super) fn list(call: &Call<'_>) -> Done {
    let most = call.parameter::<u32>("limit")?.unwrap_or(100).clamp(1, PAGE_MAX);
    let task = |Target { job, index }| TaskId { job, index: index.unwrap_or(0) };
    let from = call.parameter::<Target>("page")?.map(task);
    let choice = Choice::of(call)?;
    let ended = call.is_set("ended")?;
    if choice.is_everything() {
        return all(call, from, most, ended);
    }
    let mut client = call.app.client(call.who)?;
    let (mut chosen, mut from) = (Vec::new(), from);
    for _ in 0..PAGES_MAX {
        let page = Page { from, most: Some(PAGE_MAX), ..Page::default() };
        let (jobs, next) = match client.ask(&Ask::Jobs { target: None, ended, page })? {
            Answer::Jobs { jobs, next, .. } => (jobs, next),
            answer => return Err(makes_no_sense(&answer).into()),
        };
        for job in jobs {
            if !choice.takes(&job) {
                continue;
            }
            let before = chosen.last().map(|last: &Job| &last.id[..]);
            if chosen.len() >= most as usize && !belongs_to(&job.id, before) {
                return sent(200, &JobList { next: Some(job.id), jobs: chosen, total: None });
            }
            chosen.push(Job::from(job));
        }
        from = next;
        if from.is_none() {
            break;
        }
    }
    let next = from.map(|task| task.to_string());
    sent(200, &JobList { jobs: chosen, next, total: None })
}

/// Whether a line stands for all elements of an array that wait alike, and the line before is one of the same array. Its id is
/// that of the array, so a page that began with it would begin with the first element.
fn belongs_to(id: &str, before: Option<&str>) -> bool {
    before.is_some_and(|before| before.split('[').next() == Some(id))
}

/// A page of all jobs, which ends where the controller ends it: the elements of an array that wait may add two lines.
fn all(call: &Call<'_>, from: Option<TaskId>, most: u32, ended: bool) -> Done {
    let page = Page { from, most: Some(most), ..Page::default() };
    match call.app.client(call.who)?.ask(&Ask::Jobs { target: None, ended, page })? {
        Answer::Jobs { jobs, next, total } => {
            let next = next.map(|task| task.to_string());
            sent(200, &JobList { jobs: jobs.into_iter().map(Job::from).collect(), next, total })
        }
        answer => Err(makes_no_sense(&answer).into()),
    }
}

/// Which jobs of a list are wanted.
struct Choice {
    group: Option<JobGroup>,
    queue: Option<QueueName>,
    user: Option<UserName>,
    name: Option<String>,
    states: Vec<JobState>,
}

impl Choice {
    fn of(call: &Call<'_>) -> Result<Choice, Problem> {
        let states = call.request.parameter("state").unwrap_or_default();
        let states = states.split(',').filter(|word| !word.is_empty()).map(|word| {
            word.parse::<JobState>()
                .map_err(|error| Problem::not_understood(format!("state=\"{word}\": {error}")))
        });
        Ok(Choice {
            group: call.parameter("group")?,
            queue: call.parameter("queue")?,
            user: call.parameter("user")?,
            name: call.parameter("name")?,
            states: states.collect::<Result<_, _>>()?,
        })
    }

    fn is_everything(&self) -> bool {
        let Choice { group, queue, user, name, states } = self;
        group.is_none() && queue.is_none() && user.is_none() && name.is_none() && states.is_empty()
    }

    fn takes(&self, job: &JobView) -> bool {
        let is_within =
            |group: &JobGroup| job.group.as_ref().is_some_and(|own| own.is_within(group));
        let is_named = |pattern: &String| match pattern.strip_suffix('*') {
            Some(start) => job.name.starts_with(start),
            None => job.name == *pattern,
        };
        self.group.as_ref().is_none_or(is_within)
            && self.queue.as_ref().is_none_or(|queue| *queue == job.queue)
            && self.user.as_ref().is_none_or(|user| *user == job.user)
            && self.name.as_ref().is_none_or(is_named)
            && (self.states.is_empty() || self.states.contains(&job.state))
    }
}

/// What a job reads, with where it lies as far as the user may see it.
fn inputs(call: &Call<'_>, paths: &[String], directory: &str) -> Result<Vec<Input>, Problem> {
    if paths.is_empty() {
        return Ok(Vec::new());
    }
    if paths.len() > INPUTS_MAX {
        let count = paths.len();
        return Err(Problem::invalid(format!("{count} inputs: a job names at most {INPUTS_MAX}")));
    }
    let paths: Vec<PathBuf> = paths.iter().map(|path| Path::new(directory).join(path)).collect();
    let invalid = |error: anyhow::Error| Problem::invalid(format!("inputs: {error:#}"));
    call.app.as_user(call.who, || forebay_engine::inputs::inputs(&paths).map_err(invalid))
}

pub(super) fn submit(call: &Call<'_>) -> Done {
    let mut job: NewJob = call.body()?;
    let paths = job.inputs.take().unwrap_or_default();
    let mut spec = job.into_spec(&call.who.user, &call.app.account(call.who)?)?;
    spec.inputs = inputs(call, &paths, &spec.directory)?;
    let key = match call.request.header("idempotency-key") {
        None => Uuid::new_v4(),
        Some(text) => Uuid::parse_str(text).map_err(|error| {
            Problem::not_understood(format!("Idempotency-Key: \"{text}\" is not a UUID: {error}"))
        })?,
    };
    let ask = Ask::Submit { spec: Box::new(spec), key: Some(key) };
    match call.app.client(call.who)?.ask(&ask)? {
        Answer::Accepted { job } => {
            let reply = sent(201, &Accepted { job: job.0 })?;
            Ok(reply.with("location", format!("/api/v1/jobs/{job}")))
        }
        answer => Err(makes_no_sense(&answer).into()),
    }
}

/// The lines of one job or element, with its options in the first one.
pub fn lines(app: &App, who: &Who, target: Target) -> Result<Vec<JobView>, Problem> {
    Ok(app.client(who)?.jobs(Some(target), true, None)?.0)
}

pub(super) fn show(call: &Call<'_>) -> Done {
    let jobs = lines(call.app, call.who, call.part(0, "job")?)?;
    let jobs: Vec<Job> = jobs.into_iter().map(Job::from).collect();
    let total = Some(jobs.len() as u64);
    sent(200, &JobList { jobs, next: None, total })
}

/// Why a job waits, or ran where it ran.
pub fn reasons(client: &mut Client, target: Target) -> Result<Reasons, Problem> {
    match client.ask(&Ask::Explain { target })? {
        Answer::Explained { explanation, used } => Ok(Reasons::of(&explanation, used.as_deref())),
        answer => Err(makes_no_sense(&answer).into()),
    }
}

pub(super) fn explain(call: &Call<'_>) -> Done {
    let target = call.part(0, "job")?;
    sent(200, &reasons(&mut call.app.client(call.who)?, target)?)
}

pub(super) fn history(call: &Call<'_>) -> Done {
    let target = call.part(0, "job")?;
    let attempts = call.app.client(call.who)?.history(target)?;
    sent(200, &AttemptList { attempts: attempts.into_iter().map(Attempt::from).collect() })
}

/// Which file of a job is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Its output.
    Output,
    /// Its errors.
    Errors,
}

/// The end of what a job has written, read with the rights of who asks.
pub fn tail(
    app: &App,
    who: &Who,
    (target, stream): (Target, Stream),
    (from, bytes): (Option<u64>, u64),
) -> Result<Output, Problem> {
    let (mut jobs, _) = app.client(who)?.jobs(Some(target), true, Some(1))?;
    let Some(job) = jobs.pop() else {
        return Err(Problem::own("no_output", format!("nothing is known of job {target}")));
    };
    let none = |reason: &str| Problem::own("no_output", format!("job {} {reason}", job.id));
    let path = match (stream, job.error) {
        _ if job.output.is_empty() => {
            return Err(none("is interactive: its output went to its terminal"));
        }
        (Stream::Errors, Some(path)) => path,
        (Stream::Errors, None) => return Err(none("writes errors to its output file")),
        (Stream::Output, _) => job.output.clone(),
    };
    if job.attempts == 0 {
        return Err(none("was never started"));
    }
    let ended = job.ended.is_some();
    app.as_user(who, || {
        let read = || -> std::io::Result<(u64, u64, Vec<u8>)> {
            use std::os::unix::fs::OpenOptionsExt as _;
            // A pipe in its place keeps nobody waiting.
            let mut file = std::fs::OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
                .open(&path)?;
            let about = file.metadata()?;
            if !about.is_file() {
                return Err(std::io::Error::other("it is not a regular file"));
            }
            let length = about.len();
            let offset = from.unwrap_or(length.saturating_sub(bytes)).min(length);
            file.seek(SeekFrom::Start(offset))?;
            let mut text = Vec::new();
            file.take(bytes).read_to_end(&mut text)?;
            Ok((length, offset, text))
        };
        let (length, offset, text) = read().map_err(|error| {
            Problem::own("no_output", format!("{path} cannot be read: {error}"))
        })?;
        let text = String::from_utf8_lossy(&text).into_owned();
        Ok(Output { path, length, offset, text, ended })
    })
}

pub(super) fn output(call: &Call<'_>) -> Done {
    let stream = match call.request.parameter("stream") {
        None | Some("output") => Stream::Output,
        Some("errors") => Stream::Errors,
        Some(other) => {
            let reason = format!("stream=\"{other}\": choose output or errors");
            return Err(Problem::not_understood(reason));
        }
    };
    let bytes = call.parameter::<u64>("bytes")?.unwrap_or(OUTPUT_BYTES).clamp(1, OUTPUT_MAX);
    let part = (call.parameter("offset")?, bytes);
    sent(200, &tail(call.app, call.who, (call.part(0, "job")?, stream), part)?)
}

/// Does something to a job.
pub fn command(app: &App, who: &Who, target: Target, verb: Verb) -> Result<u32, Problem> {
    match app.client(who)?.ask(&Ask::Command { target, verb })? {
        Answer::Obeyed { tasks } => Ok(tasks),
        answer => Err(makes_no_sense(&answer).into()),
    }
}

fn obey(call: &Call<'_>, verb: Verb) -> Done {
    let tasks = command(call.app, call.who, call.part(0, "job")?, verb)?;
    sent(200, &Obeyed { tasks })
}

pub(super) fn kill(call: &Call<'_>) -> Done {
    obey(call, Verb::Kill)
}

pub(super) fn hold(call: &Call<'_>) -> Done {
    obey(call, Verb::Hold)
}

pub(super) fn release(call: &Call<'_>) -> Done {
    obey(call, Verb::Release)
}

pub(super) fn requeue(call: &Call<'_>) -> Done {
    obey(call, Verb::Requeue)
}

pub(super) fn signal(call: &Call<'_>) -> Done {
    let NewSignal { signal } = call.body()?;
    let signal = signal.parse::<JobSignal>().map_err(Problem::invalid)?;
    obey(call, Verb::Signal(signal))
}

pub(super) fn modify(call: &Call<'_>) -> Done {
    let Target { job, index } = call.part(0, "job")?;
    if index.is_some() {
        return Err(Problem::invalid("an element of an array cannot be changed by itself"));
    }
    let changes = Box::new(call.body::<JobChanges>()?.into_changes()?);
    match call.app.client(call.who)?.ask(&Ask::Modify { job, changes })? {
        Answer::Obeyed { tasks } => sent(200, &Obeyed { tasks }),
        answer => Err(makes_no_sense(&answer).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_does_not_end_before_the_waiting_elements_of_its_last_array() {
        assert!(belongs_to("12", Some("12[100]")) && belongs_to("12", Some("12")));
        assert!(!belongs_to("12", Some("11")) && !belongs_to("12", Some("112[1]")));
        assert!(!belongs_to("12[5]", Some("12[4]")) && !belongs_to("12", None));
    }
}
