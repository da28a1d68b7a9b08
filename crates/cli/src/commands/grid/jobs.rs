//! What there is to see: `forebay jobs`, `hosts`, `queues`, `history`, `explain`, `output`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{
    Answer, Ask, Containment, HostView, JobView, QueueView, Refusal, explain,
};
use forebay_grid::account::AttemptRecord;
use forebay_grid::spec::{Exit, Usage};
use forebay_grid::vocabulary::{Moment, Target};
use forebay_study::fullstimer;

use super::detail::{self, Choice};
use super::{Listing, Which, checkpoint, no_sense, or_dash, print_json};
use crate::output::{Table, bytes, on_one_line};

/// The most lines of a table of jobs, if nothing else is said.
const LINES_MAX: u32 = 1000;

/// List jobs: your own, or everybody's for an admin.
///
/// Lists unfinished jobs; add --all for finished ones, or name jobs. The waiting elements of an array share one
/// line.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay jobs
  forebay jobs 12                     one job, with the times it used
  forebay jobs 12 '17[3]' -l
  forebay jobs --queue night --state pending
  forebay jobs --all --name 'load*' --user ann
  forebay jobs --all --json")]
pub struct Jobs {
    #[command(flatten)]
    listing: Listing,
    /// Jobs, or elements of arrays: 12 or '12[3]'.
    #[arg(value_parser = |text: &str| text.parse::<Target>())]
    jobs: Vec<Target>,
    /// Also list finished jobs.
    #[arg(long)]
    all: bool,
    /// Show every submit option and timestamp, one block per job.
    #[arg(short, long)]
    long: bool,
    #[command(flatten)]
    choice: Choice,
    /// Show at most this many lines, and report how many more there are; 0 shows all [default: 1000; all
    /// with --json].
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

/// List the counted resources of the grid: licences that all hosts share, and devices such as gpu of each host.
///
/// The settings name them (grid.toml: [resources], and resources of a [[host]]); forebay submit --resource asks for
/// them.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  forebay resources\n  forebay resources --json")]
pub struct Resources {
    #[command(flatten)]
    listing: Listing,
}

impl Resources {
    pub fn run(self) -> Result<ExitCode> {
        let wanted = |answer| match answer {
            Answer::Resources { resources } => Ok(resources),
            answer => Err(no_sense(&answer)),
        };
        self.listing.print(&Ask::Resources, wanted, |resources| {
            let mut table = Table::new(&["resource", "host", "total", "used", "free"]);
            for of in resources {
                table.row(vec![
                    of.name.to_string(),
                    or_dash(of.host),
                    of.total.to_string(),
                    of.used.to_string(),
                    of.total.saturating_sub(of.used).to_string(),
                ]);
            }
            table
        })
    }
}

/// Show every finished start of a job, with the time, memory and I/O that it used.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay history 12
  forebay history '12[3]' --json
  forebay history 12 --fullstimer >job12.log")]
pub struct History {
    #[command(flatten)]
    listing: Listing,
    /// Print a log in the style of FULLSTIMER instead: times, memory, faults, switches and bytes of each start.
    #[arg(long, conflicts_with = "json")]
    fullstimer: bool,
    /// A job, or one element: 12 or '12[3]'.
    #[arg(value_parser = |text: &str| text.parse::<Target>())]
    job: Target,
}

/// Explain why a job waits, host by host, or why it ran where it ran.
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

/// Print the output of a job; for an array, that of each element after a line with its number.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay output 12
  forebay output 12 --errors     the file given with -e
  forebay output '12[3]' -f      follow it until the job ends")]
pub struct Output {
    #[command(flatten)]
    which: Which,
    /// A job, or one element: 12 or '12[3]'.
    #[arg(value_parser = |text: &str| text.parse::<Target>())]
    job: Target,
    /// Follow the output until the job ends.
    #[arg(short, long)]
    follow: bool,
    /// Print the error file of a job that was submitted with -e.
    #[arg(long, conflicts_with = "json")]
    errors: bool,
    /// Print JSON: the output and error files, and whether the job has ended; a list for an array.
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
        let mut client = self.listing.which.client()?;
        let (mut jobs, mut more) = (Vec::new(), 0);
        let targets: Vec<Option<Target>> = match self.jobs.is_empty() {
            true => vec![None],
            false => self.jobs.iter().copied().map(Some).collect(),
        };
        for target in targets {
            // What is chosen is known only when all has been seen.
            let asked = most.filter(|_| self.choice.is_everything());
            let found = client.jobs(target, self.all, asked);
            let (found, total) = found.map_err(|error| match target {
                Some(target) => self.listing.which.or_forgotten(target, error),
                None => error,
            })?;
            more += total.saturating_sub(found.len() as u64);
            jobs.extend(found.into_iter().filter(|job| self.choice.takes(job)));
        }
        if let Some(most) = most.map(|most| most as usize).filter(|most| jobs.len() > *most) {
            more += (jobs.len() - most) as u64;
            jobs.truncate(most);
        }
        let now = Moment::from(SystemClock.now());
        if self.long && !self.listing.json {
            for job in &jobs {
                let shipped = checkpoint::of_job(&self.listing.which.home()?, &job.id, now);
                out!("{}", detail::block(job, &shipped, now));
            }
            return Ok(ExitCode::SUCCESS);
        }
        let detail = if self.jobs.is_empty() { Detail::None } else { Detail::Times };
        let shown = self.listing.show(jobs, |jobs| table_of_jobs(jobs, detail, now))?;
        if more > 0 {
            note!("{more} more; --limit 0 shows all of them");
        }
        Ok(shown)
    }
}

/// Says beside a list what is wrong with the grid as a whole.
fn note_trouble(trouble: Option<String>) {
    trouble.into_iter().for_each(|trouble| note!("forebay: {trouble}"));
}

impl Hosts {
    pub fn run(self) -> Result<ExitCode> {
        let wanted = |answer| match answer {
            Answer::Hosts { hosts, trouble } => {
                note_trouble(trouble);
                Ok(hosts)
            }
            answer => Err(no_sense(&answer)),
        };
        self.listing.print(&Ask::Hosts, wanted, |hosts| {
            hosts.iter().for_each(note_missing_limits);
            table_of_hosts(hosts)
        })
    }
}

/// Says beside the list what a host cannot limit, and why.
fn note_missing_limits(host: &HostView) {
    for (what, reason) in &host.missing_limits {
        note!("forebay: {}: {}: {reason}", host.name, what.lost());
    }
}

impl Queues {
    pub fn run(self) -> Result<ExitCode> {
        let wanted = |answer| match answer {
            Answer::Queues { queues, trouble } => {
                note_trouble(trouble);
                Ok(queues)
            }
            answer => Err(no_sense(&answer)),
        };
        self.listing.print(&Ask::Queues, wanted, table_of_queues)
    }
}

impl History {
    pub fn run(self) -> Result<ExitCode> {
        let attempts = self.listing.which.client()?.history(self.job)?;
        if attempts.is_empty() {
            note!("forebay: job {0} has no finished start yet; see forebay jobs {0}", self.job);
        }
        if self.fullstimer {
            for attempt in &attempts {
                out!("{}", fullstimer_of(attempt));
            }
            return Ok(ExitCode::SUCCESS);
        }
        self.listing.show(attempts, table_of_attempts)
    }
}

/// The log of one start in the style of FULLSTIMER.
fn fullstimer_of(attempt: &AttemptRecord) -> String {
    let title = format!(
        "Job {} ({}), start {}, on {} used",
        attempt.task, attempt.name, attempt.attempt, attempt.host
    );
    #[expect(clippy::cast_precision_loss, reason = "a time for people")]
    let ended = attempt.ended.0 as f64 / 1000.0;
    match &attempt.usage {
        Some(usage) => fullstimer::of_job(&title, usage, ended),
        None => format!("\nNOTE: {title}: not known, as its host did not report it.\n"),
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

/// The times that a job used, as cells. What its threads waited for I/O is not known of every kernel and job; the time in
/// which anything in it waited is shown then.
fn times(used: Option<&Usage>) -> [String; 3] {
    [
        or_dash(used.map(|used| seconds(used.real_seconds))),
        or_dash(used.map(|used| seconds(used.cpu_seconds()))),
        or_dash(
            used.and_then(|used| used.io_wait_seconds.or(used.io_pressure_seconds)).map(seconds),
        ),
    ]
}

fn table_of_jobs(jobs: Vec<JobView>, detail: Detail, now: Moment) -> Table {
    let mut heading = vec![
        "job",
        "name",
        "user",
        "queue",
        "state",
        "tasks",
        "host",
        "starts",
        "submitted",
        "took",
    ];
    if detail == Detail::Times {
        heading.extend(TIMES);
    }
    // Last, as reasons may be long.
    heading.push("exit");
    let mut table = Table::new(&heading);
    for job in jobs {
        let took = detail::took(&job, now);
        let mut row = vec![
            job.id,
            if job.name.is_empty() { one_line(&job.command) } else { job.name },
            job.user.to_string(),
            job.queue.to_string(),
            job.state.to_string(),
            job.tasks.to_string(),
            or_dash(job.host),
            job.attempts.to_string(),
            detail::time(job.submitted),
            took,
        ];
        if detail == Detail::Times {
            row.extend(times(job.usage.as_ref()));
        }
        row.push(or_dash(job.exit));
        table.row(row);
    }
    table
}

fn table_of_hosts(hosts: Vec<HostView>) -> Table {
    let mut heading = vec![
        "host", "state", "switch", "slots", "used", "r15s", "r1m", "ut", "pg", "io", "free",
        "jobs in",
    ];
    // Most grids have none.
    let have_features = hosts.iter().any(|host| !host.features.is_empty());
    heading.extend(have_features.then_some("features"));
    let mut table = Table::new(&heading);
    for host in hosts {
        let features = have_features.then(|| match host.features.is_empty() {
            true => "-".to_owned(),
            false => host.features.join(","),
        });
        let mut row = vec![
            host.name.to_string(),
            host.state.word().to_owned(),
            format!("{:?}", host.switch).to_lowercase(),
            host.slots.to_string(),
            host.used_slots.to_string(),
            or_dash(host.load.map(|load| format!("{:.2}", load.r15s))),
            or_dash(host.load.map(|load| format!("{:.2}", load.r1m))),
            or_dash(host.load.map(|load| format!("{:.0}%", load.ut * 100.0))),
            or_dash(host.load.map(|load| format!("{:.1}", load.pg))),
            or_dash(host.load.map(|load| format!("{:.0}", load.io))),
            or_dash(host.load.map(|load| bytes((load.mem * 1_048_576.0) as u64))),
            or_dash(host.containment.map(|containment| match containment {
                Containment::Tree => "process trees, --mem not enforced",
                Containment::Group => "cgroups, --mem not enforced",
                Containment::GroupWithMemory => "cgroups, --mem enforced",
                Containment::Slurm => "Slurm",
            })),
        ];
        row.extend(features);
        table.row(row);
    }
    table
}

fn table_of_queues(queues: Vec<QueueView>) -> Table {
    let mut table = Table::new(&[
        "queue", "priority", "takes", "starts", "windows", "slots", "max", "per user", "per host",
        "pending", "held", "on hosts",
    ]);
    for queue in queues {
        let word = |yes: bool, one: &str, other: &str| (if yes { one } else { other }).to_owned();
        table.row(vec![
            queue.name.to_string(),
            or_dash(queue.priority),
            word(queue.open, "open", "closed"),
            word(queue.active, "active", "inactive"),
            word(queue.windows_open, "open", "closed"),
            queue.used_slots.to_string(),
            or_dash(queue.slots_max),
            or_dash(queue.user_slots_max),
            or_dash(queue.host_slots_max),
            queue.pending_tasks.to_string(),
            queue.held_tasks.to_string(),
            queue.active_tasks.to_string(),
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
        let answer = self.which.ask(&Ask::Explain { target: self.job });
        let answer = answer.map_err(|error| self.which.or_forgotten(self.job, error))?;
        let Answer::Explained { explanation, used } = &answer else {
            return Err(no_sense(&answer));
        };
        let mut reasons = explain::reasons(explanation, used.as_deref());
        let (home, now) = (self.which.home()?, Moment::from(SystemClock.now()));
        reasons.extend(checkpoint::of_job(&home, &self.job.to_string(), now));
        let hosts = explain::hosts(explanation);
        if self.json {
            let said = |(host, obstacle)| serde_json::json!({ "host": host, "obstacle": obstacle });
            let hosts: Vec<_> = hosts.into_iter().map(said).collect();
            return print_json(&serde_json::json!({
                "reasons": reasons,
                "hosts": hosts,
                "explanation": explanation,
            }));
        }
        for reason in &reasons {
            outln!("{}", on_one_line(reason));
        }
        for (host, obstacle) in hosts {
            let said = obstacle.as_deref().unwrap_or("could take it");
            outln!("  {host}: {}", on_one_line(said));
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Output {
    /// That of a job as a whole.
    pub fn of(which: Which, job: Target, follow: bool, errors: bool) -> Output {
        Output { which, job, follow, errors, json: false }
    }

    fn view(&self, client: &mut Client) -> Result<JobView> {
        // Of an array, the first element that does not wait.
        let (mut jobs, _) = client.jobs(Some(self.job), true, Some(1))?;
        jobs.pop().with_context(|| format!("nothing is known of job {}", self.job))
    }

    /// Whether the job has ended. While the controller is unreachable, it is taken as not ended.
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

    /// The file that is wanted of a job.
    fn path(&self, seen: &JobView) -> Result<String> {
        match (&seen.error, self.errors) {
            _ if seen.output.is_empty() => {
                bail!(
                    "job {} is interactive: its output went to the terminal of forebay run",
                    seen.id
                )
            }
            (Some(path), true) => Ok(path.clone()),
            (None, true) => {
                bail!("job {} writes errors to its output file: omit --errors", seen.id)
            }
            (_, false) => Ok(seen.output.clone()),
        }
    }

    pub fn run(self) -> Result<ExitCode> {
        let mut client = self.which.client()?;
        let seen = client.jobs(Some(self.job), true, None);
        let (mut seen, _) = seen.map_err(|error| self.which.or_forgotten(self.job, error))?;
        let is_array = self.job.index.is_none()
            && seen.iter().any(|line| line.tasks > 1 || line.id != self.job.to_string());
        if self.json {
            let told = |line: &JobView| {
                serde_json::json!({
                    "job": line.id, "output": line.output, "error": line.error,
                    "ended": line.ended.is_some(),
                })
            };
            let told: Vec<serde_json::Value> = seen.iter().map(told).collect();
            return if is_array { print_json(&told) } else { print_json(&told[0]) };
        }
        if is_array {
            return self.print_elements(&seen);
        }
        let seen = seen.pop().with_context(|| format!("nothing is known of job {}", self.job))?;
        if seen.attempts == 0 && !self.follow {
            bail!("job {} has no output: it is {} and was never started", self.job, seen.state);
        }
        self.print_one(&mut client, &seen)
    }

    /// Prints the output of all elements that have started.
    fn print_elements(&self, seen: &[JobView]) -> Result<ExitCode> {
        if self.follow {
            bail!("job {0} is an array: -f follows one element, such as '{0}[1]'", self.job);
        }
        let mut paths = std::collections::BTreeSet::new();
        for line in seen.iter().filter(|line| line.attempts > 0) {
            let path = self.path(line)?;
            // Without %I in its name a file is that of all elements.
            if !paths.insert(path.clone()) {
                continue;
            }
            match std::fs::File::open(&path) {
                Ok(mut file) => {
                    outln!("== {}: {}", line.id, on_one_line(&path));
                    crate::output::put_all(&mut file)?;
                }
                Err(error) => note!("forebay: {}: {path}: {error}", line.id),
            }
        }
        let waiting: u32 = seen.iter().filter(|line| line.attempts == 0).map(|l| l.tasks).sum();
        if waiting > 0 {
            note!("forebay: {waiting} elements of job {} have not started", self.job);
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Prints the output of a job without elements, or of one element.
    fn print_one(&self, client: &mut Client, seen: &JobView) -> Result<ExitCode> {
        const PAUSE: Duration = Duration::from_millis(100);
        let path = self.path(seen)?;
        let mut file = None;
        loop {
            // Asked before reading: what it wrote last is in the file then.
            let ended = !self.follow || self.has_ended(client)?;
            if file.is_none() {
                match std::fs::File::open(&path) {
                    Ok(opened) => file = Some(opened),
                    Err(error) if ended => {
                        if let Some(Exit::NotStarted(reason)) = &seen.exit {
                            bail!("job {} has no output: it was not started: {reason}", self.job);
                        }
                        return Err(error).context(path);
                    }
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
