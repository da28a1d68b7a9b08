//! What there is to see: `forebay jobs`, `hosts`, `queues`, `history`, `explain`, `output`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use forebay_engine::client::{Client, Refusal};
use forebay_engine::message::{Answer, Ask, HostView, JobView, QueueView};
use forebay_grid::account::AttemptRecord;
use forebay_grid::spec::Usage;
use forebay_grid::vocabulary::Target;

use super::{Listing, Which, no_sense, or_dash, print_json};
use crate::output::{Table, bytes};

/// The most lines of a table of jobs, if nothing else is said.
const LINES_MAX: u32 = 1000;

/// List jobs: your own, or everybody's for an admin.
///
/// Without a job: those that have not ended. Elements of an array that wait share a line.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay jobs
  forebay jobs 12
  forebay jobs --limit 20
  forebay jobs --all --json")]
pub struct Jobs {
    #[command(flatten)]
    listing: Listing,
    /// One job, or one element: 12 or '12[3]'.
    #[arg(value_parser = |text: &str| text.parse::<Target>())]
    job: Option<Target>,
    /// Also jobs that have ended.
    #[arg(long)]
    all: bool,
    /// Show at most so many lines, and how many more there are; 0 shows all of them. 1000 if left out, and
    /// all of them as JSON.
    #[arg(long, value_name = "LINES")]
    limit: Option<u32>,
}

/// List the hosts of the grid.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  forebay hosts\n  forebay hosts --json")]
pub struct Hosts {
    #[command(flatten)]
    listing: Listing,
}

/// List the queues of the grid.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  forebay queues\n  forebay queues --json")]
pub struct Queues {
    #[command(flatten)]
    listing: Listing,
}

/// Show every start of a job that has ended, with what it used.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  forebay history 12\n  forebay history '12[3]' --json")]
pub struct History {
    #[command(flatten)]
    listing: Listing,
    /// A job, or one element: 12 or '12[3]'.
    #[arg(value_parser = |text: &str| text.parse::<Target>())]
    job: Target,
}

/// Say why a job waits, host by host, or why it ran where it ran.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  forebay explain 12\n  forebay explain '12[3]'")]
pub struct Explain {
    #[command(flatten)]
    which: Which,
    /// A job, or one element: 12 or '12[3]'.
    #[arg(value_parser = |text: &str| text.parse::<Target>())]
    job: Target,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Print the output of a job.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  forebay output 12\n  forebay output 12 -f     until it has ended"
)]
pub struct Output {
    #[command(flatten)]
    which: Which,
    /// A job, or one element: 12 or '12[3]'.
    #[arg(value_parser = |text: &str| text.parse::<Target>())]
    job: Target,
    /// Go on until the job has ended.
    #[arg(short, long)]
    follow: bool,
    /// Print JSON: the files of output and errors, and whether the job has ended.
    #[arg(long, conflicts_with = "follow")]
    json: bool,
}

/// A command on one line of a table, which a script in it would break.
fn one_line(command: &[String]) -> String {
    const CHARACTERS_MAX: usize = 60;
    let words = command.iter().flat_map(|word| word.split_whitespace());
    let line = words.collect::<Vec<&str>>().join(" ");
    match line.char_indices().nth(CHARACTERS_MAX) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

impl Jobs {
    pub fn run(self) -> Result<ExitCode> {
        // A script that reads JSON takes it for everything.
        let default = if self.listing.json { 0 } else { LINES_MAX };
        let most = Some(self.limit.unwrap_or(default)).filter(|most| *most > 0);
        let (jobs, total) = self.listing.which.client()?.jobs(self.job, self.all, most)?;
        let more = total.saturating_sub(jobs.len() as u64);
        let detail = if self.job.is_some() { Detail::Times } else { Detail::None };
        let shown = self.listing.show(jobs, |jobs| table_of_jobs(jobs, detail))?;
        if more > 0 {
            note!("{more} more; --limit 0 shows all of them");
        }
        Ok(shown)
    }
}

impl Hosts {
    pub fn run(self) -> Result<ExitCode> {
        let wanted = |answer| match answer {
            Answer::Hosts { hosts } => Ok(hosts),
            answer => Err(no_sense(&answer)),
        };
        self.listing.print(&Ask::Hosts, wanted, table_of_hosts)
    }
}

impl Queues {
    pub fn run(self) -> Result<ExitCode> {
        let wanted = |answer| match answer {
            Answer::Queues { queues } => Ok(queues),
            answer => Err(no_sense(&answer)),
        };
        self.listing.print(&Ask::Queues, wanted, table_of_queues)
    }
}

impl History {
    pub fn run(self) -> Result<ExitCode> {
        let attempts = self.listing.which.client()?.history(self.job)?;
        self.listing.show(attempts, table_of_attempts)
    }
}

/// What a list says besides.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Detail {
    None,
    Times,
}

/// Headings of [`times`].
const TIMES: [&str; 3] = ["real s", "cpu s", "io s"];

fn seconds(value: f64) -> String {
    format!("{value:.3}")
}

/// The times that a job used, as cells.
fn times(used: Option<&Usage>) -> [String; 3] {
    [
        or_dash(used.map(|used| seconds(used.real_seconds))),
        or_dash(used.map(|used| seconds(used.cpu_seconds()))),
        or_dash(used.and_then(|used| used.io_wait_seconds).map(seconds)),
    ]
}

fn table_of_jobs(jobs: Vec<JobView>, detail: Detail) -> Table {
    let mut heading =
        vec!["job", "name", "user", "queue", "state", "tasks", "host", "starts", "exit"];
    if detail == Detail::Times {
        heading.extend(TIMES);
    }
    let mut table = Table::new(&heading);
    for job in jobs {
        let mut row = vec![
            job.id,
            if job.name.is_empty() { one_line(&job.command) } else { job.name },
            job.user.to_string(),
            job.queue.to_string(),
            job.state,
            job.tasks.to_string(),
            or_dash(job.host),
            job.attempts.to_string(),
            or_dash(job.exit),
        ];
        if detail == Detail::Times {
            row.extend(times(job.usage.as_ref()));
        }
        table.row(row);
    }
    table
}

fn table_of_hosts(hosts: Vec<HostView>) -> Table {
    let heading =
        ["host", "state", "switch", "slots", "used", "r15s", "r1m", "ut", "pg", "io", "free"];
    let mut table = Table::new(&heading);
    for host in hosts {
        table.row(vec![
            host.name.to_string(),
            host.state,
            format!("{:?}", host.switch).to_lowercase(),
            host.slots.to_string(),
            host.used_slots.to_string(),
            or_dash(host.load.map(|load| format!("{:.2}", load.r15s))),
            or_dash(host.load.map(|load| format!("{:.2}", load.r1m))),
            or_dash(host.load.map(|load| format!("{:.0}%", load.ut * 100.0))),
            or_dash(host.load.map(|load| format!("{:.1}", load.pg))),
            or_dash(host.load.map(|load| format!("{:.0}", load.io))),
            or_dash(host.load.map(|load| bytes((load.mem * 1_048_576.0) as u64))),
        ]);
    }
    table
}

fn table_of_queues(queues: Vec<QueueView>) -> Table {
    let mut table = Table::new(&["queue", "priority", "takes", "starts", "windows", "slots"]);
    for queue in queues {
        let word = |yes: bool, one: &str, other: &str| (if yes { one } else { other }).to_owned();
        table.row(vec![
            queue.name.to_string(),
            or_dash(queue.priority),
            word(queue.open, "open", "closed"),
            word(queue.active, "active", "inactive"),
            word(queue.windows_open, "open", "closed"),
            queue.used_slots.to_string(),
        ]);
    }
    table
}

fn table_of_attempts(attempts: Vec<AttemptRecord>) -> Table {
    let mut heading = vec!["job", "start", "host", "exit", "fate"];
    heading.extend(TIMES);
    heading.push("memory");
    let mut table = Table::new(&heading);
    for attempt in attempts {
        let used = attempt.usage.as_ref();
        let mut row = vec![
            attempt.task.to_string(),
            attempt.attempt.to_string(),
            attempt.host.to_string(),
            or_dash(attempt.outcome()),
            attempt.state().to_owned(),
        ];
        row.extend(times(used));
        row.push(or_dash(used.and_then(|used| used.peak_memory_bytes).map(bytes)));
        table.row(row);
    }
    table
}

impl Explain {
    pub fn run(self) -> Result<ExitCode> {
        let answer = self.which.ask(&Ask::Explain { target: self.job })?;
        let Answer::Explained { reasons, hosts } = &answer else { return Err(no_sense(&answer)) };
        if self.json {
            return print_json(&serde_json::json!({ "reasons": reasons, "hosts": hosts }));
        }
        for reason in reasons {
            outln!("{reason}");
        }
        for verdict in hosts {
            let said = verdict.obstacle.as_deref().unwrap_or("could take it");
            outln!("  {}: {said}", verdict.host);
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Output {
    fn view(&self, client: &mut Client) -> Result<JobView> {
        // Of an array, the first element that does not wait.
        let (mut jobs, _) = client.jobs(Some(self.job), true, Some(1))?;
        jobs.pop().with_context(|| format!("nothing is known of job {}", self.job))
    }

    /// Whether the job has ended. While the controller is away it has not, as far as anybody knows.
    fn has_ended(&self, client: &mut Client) -> Result<bool> {
        match self.view(client) {
            Err(error) if !error.is::<Refusal>() => {
                if let Ok(again) = self.which.client() {
                    *client = again;
                }
                Ok(false)
            }
            seen => Ok(seen?.ended.is_some()),
        }
    }

    pub fn run(self) -> Result<ExitCode> {
        const PAUSE: Duration = Duration::from_millis(100);
        let mut client = self.which.client()?;
        let seen = self.view(&mut client)?;
        let path = seen.output;
        if path.is_empty() {
            bail!("job {} is interactive: its output went to its client", self.job);
        }
        if self.json {
            let ended = seen.ended.is_some();
            let told = serde_json::json!({
                "job": seen.id, "output": path, "error": seen.error, "ended": ended,
            });
            return print_json(&told);
        }
        let mut file = None;
        loop {
            // Asked before reading: what it wrote last is in the file then.
            let ended = !self.follow || self.has_ended(&mut client)?;
            if file.is_none() {
                match std::fs::File::open(&path) {
                    Ok(opened) => file = Some(opened),
                    Err(error) if ended => return Err(error).context(path),
                    Err(_) => {}
                }
            }
            if let Some(file) = &mut file {
                crate::output::put_all(file)?;
            }
            if ended {
                return Ok(ExitCode::SUCCESS);
            }
            std::thread::sleep(PAUSE);
        }
    }
}
