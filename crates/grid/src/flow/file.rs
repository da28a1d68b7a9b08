//! The file of a flow: TOML, checked as a whole, with the line of what is wrong. See docs/formats/flow.md.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, de};
use toml::Spanned;

use super::schedule::{CivilTime, Missed, Overlap, Trigger, When};
use super::{FLOW_BYTES_MAX, Fault, FlowSpec, bytes_of, too_many_bytes};
use crate::config::ConfigError;
use crate::group::JobGroup;
use crate::parse::array::ArraySpec;
use crate::parse::cron::Schedule as Cron;
use crate::parse::dependency::{Condition, Dependency};
use crate::parse::features::Features;
use crate::parse::hosts::HostList;
use crate::parse::line_of;
use crate::parse::memory::Memory;
use crate::parse::period::Period;
use crate::parse::requeue::RequeueExits;
use crate::parse::resources::Resources;
use crate::parse::zone::Zone;
use crate::spec::{Checkpoint, JobSpec, Rerun, Sharing};
use crate::vocabulary::{ProfileName, QueueName};
use crate::warning::Warning;

/// The most bytes of a file.
pub const FILE_BYTES_MAX: usize = 4 << 20;

/// What the file need not say, as whoever gives it has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// The working directory; others are taken from here.
    pub directory: String,
    /// The file mode creation mask.
    pub umask: u32,
    /// Variables that each job gets.
    pub environment: Vec<(String, String)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    flow: Spanned<Options>,
    schedule: Option<Spanned<Timetable>>,
    #[serde(rename = "job", default)]
    jobs: Jobs,
}

/// All `[[job]]`.
#[derive(Default)]
struct Jobs(Vec<Spanned<Options>>);

impl<'de> Deserialize<'de> for Jobs {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Jobs, D::Error> {
        from.deserialize_any(JobsVisitor)
    }
}

/// Takes a list of jobs; of a table it says how it becomes one.
struct JobsVisitor;

impl<'de> Visitor<'de> for JobsVisitor {
    type Value = Jobs;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[[job]] for each job")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut jobs: A) -> Result<Jobs, A::Error> {
        let mut all = Vec::new();
        while let Some(job) = jobs.next_element()? {
            all.push(job);
        }
        Ok(Jobs(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut tables: A) -> Result<Jobs, A::Error> {
        let first = tables.next_entry::<String, toml::Value>()?;
        Err(de::Error::custom(match first {
            Some((name, toml::Value::Table(_))) => {
                format!(
                    "[job.{name}]: jobs are a list; write [[job]] with name = \"{name}\" below it"
                )
            }
            Some(_) | None => "[job]: jobs are a list; write [[job]]".to_owned(),
        }))
    }
}

/// `[[job]]`; and `[flow]`: its name, and what holds for jobs that do not say otherwise.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    name: Spanned<String>,
    /// Of a job only, like the next two.
    command: Option<Spanned<Words>>,
    after: Option<Spanned<Words>>,
    array: Option<Spanned<String>>,
    queue: Option<QueueName>,
    slots: Option<Spanned<u32>>,
    hosts: Option<HostList>,
    memory: Option<Memory>,
    priority: Option<i32>,
    rerunnable: Option<bool>,
    requeue_exit: Option<RequeueExits>,
    #[serde(default)]
    environment: BTreeMap<String, String>,
    time_limit: Option<Period>,
    output: Option<String>,
    error: Option<String>,
    directory: Option<String>,
    checkpoint: Option<bool>,
    resource: Option<Resources>,
    exclusive: Option<bool>,
    io_heavy: Option<bool>,
    feature: Option<Features>,
    warn: Option<Warning>,
    project: Option<String>,
    profile: Option<ProfileName>,
    group: Option<JobGroup>,
    pre: Option<String>,
    post: Option<String>,
}

/// One text or several.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
enum Words {
    One(String),
    Many(Vec<String>),
}

/// `[schedule]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Timetable {
    cron: Option<Cron>,
    at: Option<CivilTime>,
    file: Option<Spanned<String>>,
    zone: Option<Zone>,
    catch_up: Option<Spanned<bool>>,
    overlap: Option<Spanned<bool>>,
}

/// A fault and the byte of the file at which it is.
struct Blame {
    byte: usize,
    reason: String,
}

fn blame<T>(at: &Spanned<T>, reason: impl Into<String>) -> Blame {
    Blame { byte: at.span().start, reason: reason.into() }
}

impl FlowSpec {
    /// Reads and checks the file of a flow.
    ///
    /// # Errors
    /// The first fault, with its line.
    pub fn read(text: &str, around: &Surroundings) -> Result<FlowSpec, ConfigError> {
        if text.len() > FILE_BYTES_MAX {
            let reason = format!("a flow file has at most {FILE_BYTES_MAX} bytes");
            return Err(ConfigError { line: None, reason });
        }
        let file: File = toml::from_str(text).map_err(|error| ConfigError {
            line: error.span().map(|span| line_of(text, span.start)),
            reason: error.message().to_owned(),
        })?;
        file.spec(around).map_err(|Blame { byte, reason }| ConfigError {
            line: Some(line_of(text, byte)),
            reason,
        })
    }
}

impl File {
    fn spec(&self, around: &Surroundings) -> Result<FlowSpec, Blame> {
        let head = self.flow.get_ref();
        head.of_all_jobs()?;
        let (mut steps, mut bytes) = (Vec::new(), 0);
        for job in &self.jobs.0 {
            let step = spec(job, head, around)?;
            // What the flow says of all jobs is there once for each: looked at before memory is full.
            bytes += bytes_of(&step);
            if bytes > FLOW_BYTES_MAX {
                return Err(blame(job, too_many_bytes()));
            }
            steps.push(step);
        }
        let spec = FlowSpec {
            name: head.name.get_ref().clone(),
            steps,
            trigger: self.schedule.as_ref().map(trigger).transpose()?,
        };
        spec.plan().map_err(|fault| self.place(&fault))?;
        Ok(spec)
    }

    /// Where a fault is.
    fn place(&self, fault: &Fault) -> Blame {
        let Some(entry) = fault.step.map(|step| self.jobs.0[step].get_ref()) else {
            return blame(&self.flow.get_ref().name, &fault.reason);
        };
        match (fault.key, &entry.after, &entry.command) {
            ("after", Some(after), _) => blame(after, &fault.reason),
            ("command", _, Some(command)) => blame(command, &fault.reason),
            _ => blame(&entry.name, &fault.reason),
        }
    }
}

fn trigger(table: &Spanned<Timetable>) -> Result<Trigger, Blame> {
    let Timetable { cron, at, file, zone, catch_up, overlap } = table.get_ref();
    let when = match (cron, at, file) {
        (Some(cron), None, None) => When::Cron(Box::new(cron.clone())),
        (None, Some(time), None) => When::At(*time),
        (None, None, Some(pattern)) => {
            let text = pattern.get_ref();
            if let Some(fault) = pattern_fault(text) {
                return Err(blame(pattern, format!("file = \"{text}\": {fault}")));
            }
            When::File(text.clone())
        }
        _ => return Err(blame(table, "a schedule needs exactly one of cron, at and file")),
    };
    if let (When::File(_), Some(setting)) = (&when, catch_up.as_ref().or(overlap.as_ref())) {
        let reason =
            "catch_up and overlap apply to cron and at only: every file that arrives starts a run";
        return Err(blame(setting, reason));
    }
    let is = |setting: &Option<Spanned<bool>>, default| {
        setting.as_ref().map_or(default, |setting| *setting.get_ref())
    };
    // Nothing else would ever start what has one time only.
    let catch_up = is(catch_up, matches!(when, When::At(_)));
    Ok(Trigger {
        when,
        zone: zone.clone(),
        missed: if catch_up { Missed::CatchUp } else { Missed::PassOver },
        overlap: if is(overlap, true) { Overlap::Start } else { Overlap::PassOver },
    })
}

/// Why a pattern cannot be looked for.
pub(crate) fn pattern_fault(pattern: &str) -> Option<&'static str> {
    if !pattern.starts_with('/') || pattern.ends_with('/') {
        return Some("expected the absolute path of a file, with * for anything but /");
    }
    if pattern.len() > 4096 || pattern.contains('\0') {
        return Some("a path has at most 4096 bytes and no NUL byte");
    }
    if pattern.split('/').any(|part| part == "..") {
        return Some("a path to watch must not contain ..");
    }
    None
}

impl Options {
    /// Refuses what cannot hold for all jobs of a flow.
    fn of_all_jobs(&self) -> Result<(), Blame> {
        let one = |key| {
            format!(
                "{key}: not allowed in [flow], whose keys apply to all jobs; write it below a [[job]]"
            )
        };
        match self {
            Options { command: Some(command), .. } => Err(blame(command, one("command"))),
            Options { after: Some(after), .. } => Err(blame(after, one("after"))),
            Options { array: Some(array), .. } => Err(blame(array, one("array"))),
            Options { .. } => Ok(()),
        }
    }
}

/// A job as its own table has it, and for what that leaves open as the flow has it.
fn spec(job: &Spanned<Options>, head: &Options, around: &Surroundings) -> Result<JobSpec, Blame> {
    let own = job.get_ref();
    let or = |own: &Option<String>, of_flow: &Option<String>| own.clone().or(of_flow.clone());
    let slots = own.slots.as_ref().or(head.slots.as_ref());
    if let Some(slots) = slots.filter(|slots| *slots.get_ref() == 0) {
        return Err(blame(slots, "slots = 0: must be at least 1"));
    }
    let mut environment: BTreeMap<String, String> = around.environment.iter().cloned().collect();
    for (key, value) in head.environment.iter().chain(&own.environment) {
        if key.is_empty() || key.contains(['=', '\0']) {
            let reason = format!("environment: \"{key}\" is not a valid name for a variable");
            return Err(blame(&own.name, reason));
        }
        environment.insert(key.clone(), value.clone());
    }
    let directory = or(&own.directory, &head.directory).unwrap_or_default();
    let directory = std::path::Path::new(&around.directory).join(directory);
    let checkpoint = own.checkpoint.or(head.checkpoint).unwrap_or(false);
    let requeue_exits = own.requeue_exit.as_ref().or(head.requeue_exit.as_ref());
    Ok(JobSpec {
        command: match own.command.as_ref().map(Spanned::get_ref) {
            None => return Err(blame(job, format!("job {} has no command", own.name.get_ref()))),
            Some(Words::One(text)) => vec!["/bin/sh".to_owned(), "-c".to_owned(), text.clone()],
            Some(Words::Many(words)) => words.clone(),
        },
        queue: own.queue.clone().or_else(|| head.queue.clone()),
        name: own.name.get_ref().clone(),
        slots: slots.map_or(1, |slots| *slots.get_ref()),
        hosts: own.hosts.clone().or_else(|| head.hosts.clone()).unwrap_or_default(),
        memory: own.memory.or(head.memory).map(|Memory(bytes)| bytes),
        array: own.array.as_ref().map(array).transpose()?,
        depends: own.after.as_ref().map(dependency).transpose()?.flatten(),
        priority: own.priority.or(head.priority).unwrap_or(0),
        rerun: match own.rerunnable.or(head.rerunnable) {
            None => Rerun::AsQueue,
            Some(true) => Rerun::Rerunnable,
            Some(false) => Rerun::Once,
        },
        requeue_exits: requeue_exits.cloned().unwrap_or_default(),
        environment: environment.into_iter().collect(),
        time_limit: own.time_limit.or(head.time_limit),
        output: or(&own.output, &head.output),
        error: or(&own.error, &head.error),
        directory: directory.to_string_lossy().trim_end_matches('/').to_owned(),
        umask: around.umask,
        checkpoint: if checkpoint { Checkpoint::Steps } else { Checkpoint::None },
        resources: own.resource.clone().or_else(|| head.resource.clone()).unwrap_or_default(),
        sharing: match own.exclusive.or(head.exclusive) {
            Some(true) => Sharing::Exclusive,
            Some(false) | None => Sharing::Shared,
        },
        io_heavy: own.io_heavy.or(head.io_heavy).unwrap_or(false),
        features: own.feature.clone().or_else(|| head.feature.clone()),
        warning: own.warn.or(head.warn),
        project: or(&own.project, &head.project).unwrap_or_default(),
        profile: own.profile.clone().or_else(|| head.profile.clone()),
        group: own.group.clone().or_else(|| head.group.clone()),
        pre: or(&own.pre, &head.pre),
        post: or(&own.post, &head.post),
        ..JobSpec::default()
    })
}

/// `1-100%10`, with or without the brackets that the command line has.
fn array(given: &Spanned<String>) -> Result<ArraySpec, Blame> {
    let text = given.get_ref();
    let whole = if text.starts_with('[') {
        text.clone()
    } else {
        match text.split_once('%') {
            Some((elements, most)) => format!("[{elements}]%{most}"),
            None => format!("[{text}]"),
        }
    };
    whole.parse().map_err(|error| blame(given, format!("array: {error}")))
}

/// All of the conditions; none of an empty list.
fn dependency(given: &Spanned<Words>) -> Result<Option<Dependency>, Blame> {
    let texts = match given.get_ref() {
        Words::One(text) => std::slice::from_ref(text),
        Words::Many(texts) => texts,
    };
    let mut parts = Vec::new();
    for text in texts {
        let dependency: Dependency =
            text.parse().map_err(|error| blame(given, format!("after: {error}")))?;
        parts.push(dependency.0);
    }
    Ok(match parts.len() {
        0 => None,
        1 => Some(Dependency(parts.remove(0))),
        _ => Some(Dependency(Condition::All(parts))),
    })
}
