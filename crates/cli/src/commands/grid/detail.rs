//! Which jobs `forebay jobs` shows, and all that is known of one.

use forebay_base::ByteSize;
use forebay_engine::protocol::JobView;
use forebay_grid::group::JobGroup;
use forebay_grid::spec::{Input, Rerun};
use forebay_grid::state::JobState;
use forebay_grid::vocabulary::Moment;

use super::or_dash;
use crate::output::{bytes, on_one_line};

/// Which jobs a command is about: what holds of all elements of an array.
#[derive(clap::Args)]
pub struct Chosen {
    /// Only jobs of this queue.
    #[arg(short, long, value_name = "QUEUE")]
    queue: Option<String>,
    /// Only jobs of this user.
    #[arg(short, long, value_name = "USER")]
    user: Option<String>,
    /// Only jobs with this name; a trailing * matches anything.
    #[arg(short = 'J', long, value_name = "NAME")]
    name: Option<String>,
    /// Only jobs in this job group or in one below it.
    #[arg(long, value_name = "PATH", value_parser = |text: &str| text.parse::<JobGroup>())]
    group: Option<JobGroup>,
}

/// Which jobs are shown.
#[derive(clap::Args)]
pub struct Choice {
    #[command(flatten)]
    chosen: Chosen,
    /// Only jobs in these states, such as pending,running; for states of finished jobs add --all.
    #[arg(short, long, value_name = "STATES", value_delimiter = ',')]
    state: Vec<JobState>,
}

impl Chosen {
    /// Whether there is no filter.
    pub fn is_everything(&self) -> bool {
        self.queue.is_none() && self.user.is_none() && self.name.is_none() && self.group.is_none()
    }

    /// Whether a job is one of them.
    pub fn takes(&self, job: &JobView) -> bool {
        let named = |pattern: &String| match pattern.strip_suffix('*') {
            Some(start) => job.name.starts_with(start),
            None => job.name == *pattern,
        };
        self.queue.as_ref().is_none_or(|queue| job.queue.to_string() == *queue)
            && self.user.as_ref().is_none_or(|user| job.user.to_string() == *user)
            && self.name.as_ref().is_none_or(named)
            && self
                .group
                .as_ref()
                .is_none_or(|group| job.group.as_ref().is_some_and(|own| own.is_within(group)))
    }
}

impl Choice {
    /// Whether there is no filter.
    pub fn is_everything(&self) -> bool {
        self.chosen.is_everything() && self.state.is_empty()
    }

    /// Whether a job is shown.
    pub fn takes(&self, job: &JobView) -> bool {
        self.chosen.takes(job) && (self.state.is_empty() || self.state.contains(&job.state))
    }
}

/// A moment in the reader's time zone (TZ, or /etc/localtime): `2027-01-01T07:00:00+01:00`.
pub fn time(at: Moment) -> String {
    let time = i64::try_from(at.0 / 1000).ok().and_then(|s| jiff::Timestamp::from_second(s).ok());
    let Some(time) = time else { return "never".to_owned() };
    time.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
}

/// How long a job has run, or ran last: hours, minutes and seconds.
pub fn took(job: &JobView, now: Moment) -> String {
    let seconds = job.started.map(|started| job.ended.unwrap_or(now).since(started) / 1000);
    or_dash(seconds.map(|s| format!("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)))
}

/// All that is known of a job, a line for each thing; `shipped` is what is known of its checkpoints.
pub fn block(job: &JobView, shipped: &[String], now: Moment) -> String {
    let mut lines = vec![
        ("job", job.id.clone()),
        ("name", job.name.clone()),
        ("user", job.user.to_string()),
        ("queue", job.queue.to_string()),
        ("state", job.state.to_string()),
        ("tasks", job.tasks.to_string()),
        ("command", job.command.join(" ")),
        ("submitted", time(job.submitted)),
        ("started", job.started.map(time).unwrap_or_default()),
        ("ended", job.ended.map(time).unwrap_or_default()),
        ("took", took(job, now)),
        ("host", job.host.as_ref().map(ToString::to_string).unwrap_or_default()),
        ("starts", job.attempts.to_string()),
        ("exit", job.exit.as_ref().map(ToString::to_string).unwrap_or_default()),
        ("slots", job.slots.to_string()),
    ];
    if let Some(asked) = &job.asked {
        let yes = |is: bool| if is { "yes".to_owned() } else { String::new() };
        lines.extend([
            (
                "memory",
                asked.memory_bytes.map(|bytes| ByteSize(bytes).to_string()).unwrap_or_default(),
            ),
            ("hosts", asked.hosts.clone()),
            ("depends", asked.depends.clone().unwrap_or_default()),
            ("priority", asked.priority.to_string()),
            ("project", asked.project.clone()),
            ("group", job.group.as_ref().map(ToString::to_string).unwrap_or_default()),
            ("time limit", asked.time_limit_seconds.map(|s| format!("{s} s")).unwrap_or_default()),
            ("rerunnable", rerun(asked.rerun).to_owned()),
            ("requeue exit", asked.requeue_exits.clone()),
            ("checkpoint", yes(asked.checkpoint)),
            ("begin", asked.begin.map(time).unwrap_or_default()),
            ("deadline", asked.deadline.map(time).unwrap_or_default()),
            ("resources", asked.resources.clone()),
            ("exclusive", yes(asked.exclusive)),
            ("pre", asked.pre.clone().unwrap_or_default()),
            ("post", asked.post.clone().unwrap_or_default()),
            ("profile", asked.profile.clone().unwrap_or_default()),
            ("io heavy", yes(asked.io_heavy)),
            ("inputs", asked.inputs.iter().map(input).collect::<Vec<_>>().join(", ")),
            ("warning", asked.warning.clone().unwrap_or_default()),
            ("features", asked.features.clone().unwrap_or_default()),
            ("reservation", asked.reservation.clone().unwrap_or_default()),
            ("directory", asked.directory.clone()),
        ]);
    }
    lines.extend(shipped.iter().map(|shipped| ("shipped", shipped.clone())));
    if let Some(used) = &job.usage {
        let cpu = format!("{:.3} s", used.cpu_seconds());
        lines.push(("cpu time", cpu));
        lines.push(("peak memory", used.peak_memory_bytes.map(bytes).unwrap_or_default()));
        lines.push(("read", used.read_bytes.map(bytes).unwrap_or_default()));
        lines.push(("written", used.written_bytes.map(bytes).unwrap_or_default()));
        lines.push(("from disk", used.device_read_bytes.map(bytes).unwrap_or_default()));
    }
    lines.push(("output", job.output.clone()));
    lines.push(("errors", job.error.clone().unwrap_or_default()));
    let known = lines.into_iter().filter(|(_, value)| !value.is_empty());
    let line = |(name, value): (&str, String)| format!("{name:<13} {}\n", on_one_line(&value));
    let mut text: String = known.map(line).collect();
    text.push('\n');
    text
}

/// An input, and on which host it lay.
fn input(input: &Input) -> String {
    match &input.home {
        Some(home) => format!("{} ({home})", input.path),
        None => input.path.clone(),
    }
}

/// Whether a job may be started again, in the words of messages.
fn rerun(rerun: Rerun) -> &'static str {
    match rerun {
        Rerun::AsQueue => "as_queue",
        Rerun::Rerunnable => "rerunnable",
        Rerun::Once => "once",
    }
}
