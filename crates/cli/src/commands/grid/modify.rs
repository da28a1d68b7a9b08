//! What changes jobs that were submitted: `forebay modify` and `switch`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer, Ask};
use forebay_grid::group::JobGroup;
use forebay_grid::modify::{Changes, Rank, Set};
use forebay_grid::parse::dependency::Dependency;
use forebay_grid::parse::features::Features;
use forebay_grid::parse::hosts::HostList;
use forebay_grid::parse::memory::Memory;
use forebay_grid::parse::period::Period;
use forebay_grid::parse::resources::Resources;
use forebay_grid::spec::{Rerun, Sharing};
use forebay_grid::vocabulary::{JobId, Moment, QueueName, ReservationName};
use forebay_grid::warning::Warning;

use super::{Which, clock, no_sense};

/// Change unfinished jobs; the value none removes what an option had set.
///
/// What decides where and when a job starts applies to tasks that have not started yet. The queue, the time limit and
/// the deadline apply to running tasks as well. A whole array is changed, not its elements.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay modify 12 --time-limit '4 h'            also while it runs
  forebay modify 12 13 -n 2 --mem 4G --begin 22:00
  forebay modify 17 --running-max 20              how many elements of an array run at once
  forebay modify 12 --top                         before your other jobs in its queue
  forebay modify 12 --depends none --deadline none")]
pub struct Modify {
    #[command(flatten)]
    which: Which,
    /// Jobs to change.
    #[arg(required = true, value_parser = job)]
    jobs: Vec<JobId>,
    #[command(flatten)]
    options: Options,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct Options {
    /// Queue to move it to.
    #[arg(short, long, value_parser = |text: &str| text.parse::<QueueName>())]
    queue: Option<QueueName>,
    /// Number of slots.
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    slots: Option<u32>,
    /// Hosts it may run on, with preferences; 'all' for every host of its queue.
    #[arg(short = 'm', long, value_parser = |text: &str| text.parse::<HostList>())]
    hosts: Option<HostList>,
    /// Memory to reserve, written as for submit; or none.
    #[arg(long, value_name = "SIZE", value_parser = |text: &str| set(text, |text| text.parse::<Memory>()))]
    mem: Option<Set<Memory>>,
    /// Counted resources, such as gpu:2,sas:1; or none.
    #[arg(long, value_name = "LIST", value_parser = |text: &str| set(text, |text| text.parse::<Resources>()))]
    resource: Option<Set<Resources>>,
    /// Whether it has its host to itself while it runs.
    #[arg(short = 'x', long, value_name = "yes|no", value_parser = yes_or_no)]
    exclusive: Option<bool>,
    /// Name of the job.
    #[arg(short = 'J', long)]
    name: Option<String>,
    /// Condition to wait for; or none.
    #[arg(short = 'w', long, value_name = "CONDITION", value_parser = |text: &str| set(text, |text| text.parse::<Dependency>()))]
    depends: Option<Set<Dependency>>,
    /// Start at this time at the earliest; or none.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = |text: &str| set(text, clock::read))]
    begin: Option<Set<Moment>>,
    /// End at this time; or none.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = |text: &str| set(text, clock::read))]
    deadline: Option<Set<Moment>>,
    /// Time limit; or none for that of its queue.
    #[arg(long, value_name = "TIME", value_parser = |text: &str| set(text, |text| text.parse::<Period>()))]
    time_limit: Option<Set<Period>>,
    /// Advance reservation in which it runs; or none.
    #[arg(long, value_name = "NAME", value_parser = |text: &str| set(text, |text| text.parse::<ReservationName>()))]
    reservation: Option<Set<ReservationName>>,
    /// Job group in which it is; or none.
    #[arg(long, value_name = "PATH", value_parser = |text: &str| set(text, |text| text.parse::<JobGroup>()))]
    group: Option<Set<JobGroup>>,
    /// Signal before it is ended, written as for submit; or none.
    #[arg(long, value_name = "SIGNAL[@TIME]", value_parser = |text: &str| set(text, |text| text.parse::<Warning>()))]
    warn: Option<Set<Warning>>,
    /// Features that its host must have, written as for submit; or none.
    #[arg(long, value_name = "FEATURES", value_parser = |text: &str| set(text, |text| text.parse::<Features>()))]
    feature: Option<Set<Features>>,
    /// Priority among your own jobs, higher first.
    #[arg(long, allow_hyphen_values = true)]
    priority: Option<i32>,
    /// Project it is charged to.
    #[arg(short = 'P', long)]
    project: Option<String>,
    /// Whether it starts again if its host is lost.
    #[arg(long, value_name = "yes|no", value_parser = yes_or_no)]
    rerunnable: Option<bool>,
    /// Move it before all jobs of its user that wait in its queue: its priority becomes high enough for that.
    #[arg(long, conflicts_with = "priority")]
    top: bool,
    /// Move it behind all jobs of its user that wait in its queue: its priority becomes low enough for that.
    #[arg(long, conflicts_with_all = ["priority", "top"])]
    bottom: bool,
    /// How many elements of the array may run at once; or none.
    #[arg(long, value_name = "NUMBER", value_parser = |text: &str| set(text, |text| text.parse::<u32>()))]
    running_max: Option<Set<u32>>,
}

/// A job as a whole.
fn job(text: &str) -> Result<JobId, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.map(JobId).ok_or_else(|| {
        format!("\"{text}\" is not the number of a job; an element of an array cannot be changed by itself")
    })
}

/// A value, or the word none.
fn set<T, E>(text: &str, read: impl FnOnce(&str) -> Result<T, E>) -> Result<Set<T>, E> {
    if text == "none" { Ok(Set::Nothing) } else { read(text).map(Set::To) }
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("choose yes or no".to_owned()),
    }
}

impl From<Options> for Changes {
    fn from(options: Options) -> Changes {
        Changes {
            queue: options.queue,
            name: options.name,
            slots: options.slots,
            hosts: options.hosts,
            memory: options.mem.map(|memory| memory.map(|Memory(bytes)| bytes)),
            resources: options.resource.map(|resources| resources.value().unwrap_or_default()),
            sharing: options
                .exclusive
                .map(|alone| if alone { Sharing::Exclusive } else { Sharing::Shared }),
            depends: options.depends,
            begin: options.begin,
            deadline: options.deadline,
            time_limit: options.time_limit,
            reservation: options.reservation,
            group: options.group,
            warning: options.warn,
            features: options.feature,
            priority: options.priority,
            project: options.project,
            rerun: options
                .rerunnable
                .map(|again| if again { Rerun::Rerunnable } else { Rerun::Once }),
            running_max: options.running_max,
            rank: match (options.top, options.bottom) {
                (true, _) => Some(Rank::Top),
                (false, true) => Some(Rank::Bottom),
                (false, false) => None,
            },
        }
    }
}

/// Changes one job; how many of its tasks have not ended.
pub fn change(client: &mut Client, job: JobId, changes: Changes) -> Result<u32> {
    match client.ask(&Ask::Modify { job, changes: Box::new(changes) })? {
        Answer::Obeyed { tasks } => Ok(tasks),
        answer => Err(no_sense(&answer)),
    }
}

/// Changes each job; exit code 2 if one was refused, with the others changed.
fn change_all(which: &Which, jobs: &[JobId], changes: &Changes, json: bool) -> Result<ExitCode> {
    let mut client = which.client()?;
    let mut code = ExitCode::SUCCESS;
    for &job in jobs {
        match change(&mut client, job, changes.clone()) {
            Ok(tasks) if json => {
                crate::output::put_json_line(&serde_json::json!({ "job": job, "tasks": tasks }))?;
            }
            Ok(_) => {}
            Err(error) => {
                note!("forebay: job {job}: {}", crate::output::chain(&error));
                code = ExitCode::from(2);
            }
        }
    }
    Ok(code)
}

impl Modify {
    pub fn run(self) -> Result<ExitCode> {
        let changes = Changes::from(self.options);
        if changes.is_empty() {
            bail!("nothing to change was given, such as --time-limit '4 h'");
        }
        change_all(&self.which, &self.jobs, &changes, self.json)
    }
}

/// Move jobs to another queue, whether they wait or run; running ones keep running.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  forebay switch night 12 13")]
pub struct Switch {
    #[command(flatten)]
    which: Which,
    /// Queue to move them to.
    #[arg(value_parser = |text: &str| text.parse::<QueueName>())]
    queue: QueueName,
    /// Jobs to move.
    #[arg(required = true, value_parser = job)]
    jobs: Vec<JobId>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Switch {
    pub fn run(self) -> Result<ExitCode> {
        let changes = Changes { queue: Some(self.queue), ..Changes::default() };
        change_all(&self.which, &self.jobs, &changes, self.json)
    }
}
