//! `forebay top`.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_engine::home::GridHome;
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer as Told, Ask as Question, HostState, JobView};
use serde::Serialize;

use super::stat::seconds;
use super::waiters::home_of;
use crate::attribution::{self, Activity, By, Users, Whose, Work};
use crate::control::{self, Answer, Ask};
use crate::home::Home;
use crate::mounts;
use crate::output::{Table, bytes, put, put_json_line};
use crate::running::{self, Meter, Rates};

/// Show what a file system and a grid are doing now, and who causes it.
///
/// Shows operations and bytes per second, latencies by fileset and operation, the users and jobs behind them, requests that
/// have waited for over a second, and running jobs. TIME is the total time of all operations in each second: 2.0 means that
/// two were in progress on average. Reads on the direct path and everything in bound native filesets never reach the
/// daemon, so the first lists lack them. The list of jobs has the processor time of each, the share of the time in which something of
/// it waited for I/O, and the bytes and calls with which its processes read and wrote in any file system, native filesets included;
/// DISK is what they read from local disks, because memory did not hold it. What jobs create, open and remove in native filesets is
/// not counted anywhere.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay top
  forebay top /mnt/forebay --interval 5
  forebay top --once --json | jq '.causes[0]'     who causes most, over one interval
  forebay top --grid /srv/jobs                    a grid without a file system")]
pub struct Top {
    /// Mount point or home folder [default: with --grid that of the grid, else the only file system that is mounted on this
    /// machine].
    file_system: Option<PathBuf>,
    /// Folder of the grid [default: that of the file system, or the environment variable FOREBAY_GRID].
    #[arg(long, value_name = "ROOT")]
    grid: Option<PathBuf>,
    /// Length of an interval in seconds, 0.01 to 86400.
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    interval: Duration,
    /// Show one interval and exit.
    #[arg(long)]
    once: bool,
    /// Maximum number of lines of each list.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    lines: u16,
    /// Print JSON, one object per interval, with all lines.
    #[arg(long)]
    json: bool,
}

/// What was found at one time.
struct Look {
    at: Instant,
    activity: Activity,
    waiting: usize,
    jobs: Vec<JobView>,
    hosts: Option<Hosts>,
}

#[derive(Clone, Copy, Serialize)]
struct Hosts {
    hosts: usize,
    unreachable: usize,
    slots: u32,
    used_slots: u32,
    pending_tasks: u64,
}

/// One interval.
#[derive(Serialize)]
struct Report {
    seconds: f64,
    total: Work,
    operations: Vec<Operation>,
    causes: Vec<CauseReport>,
    /// Requests that have waited for over a second.
    waiting: usize,
    grid: Option<Hosts>,
    jobs: Vec<Job>,
}

#[derive(Serialize)]
struct Operation {
    fileset: String,
    operation: String,
    count: u64,
    seconds: f64,
    p50_us: f64,
    p99_us: f64,
}

#[derive(Serialize)]
struct CauseReport {
    #[serde(flatten)]
    whose: Whose,
    #[serde(flatten)]
    work: Work,
}

#[derive(Serialize)]
struct Job {
    job: String,
    user: String,
    queue: String,
    host: String,
    peak_memory_bytes: Option<u64>,
    #[serde(flatten)]
    rates: Rates,
}

/// Where to look.
struct Places {
    home: Option<Home>,
    grid: Option<GridHome>,
}

impl Top {
    pub fn run(self) -> Result<ExitCode> {
        let places = self.places()?;
        let (clock, mut users, mut meter) = (SystemClock, Users::default(), Meter::default());
        let mut before = places.look()?;
        meter.take(&before.jobs);
        loop {
            std::thread::sleep(
                (before.at + self.interval).saturating_duration_since(clock.instant()),
            );
            let now = places.look()?;
            meter.take(&now.jobs);
            let report = report(&before, &now, &meter, &mut users);
            if self.json {
                put_json_line(&report)?;
            } else {
                if !self.once && std::io::stdout().is_terminal() {
                    // Home, and clear to the end of the screen.
                    put(b"\x1b[H\x1b[2J")?;
                }
                out!("{}", self.render(&report, &places));
            }
            if self.once {
                return Ok(ExitCode::SUCCESS);
            }
            before = now;
        }
    }

    /// The file system and the grid that are meant, of which there must be one.
    fn places(&self) -> Result<Places> {
        let named =
            self.grid.clone().or_else(|| std::env::var_os("FOREBAY_GRID").map(PathBuf::from));
        // The folder of a grid may be the home folder of its file system.
        let of_grid = named.as_deref().filter(|root| mounts_of(root));
        let file_system = self.file_system.as_deref().or(of_grid);
        let home = match home_of(file_system) {
            // Any file system of the machine may have nothing to do with a grid that was asked for by its folder.
            Ok(_) if self.grid.is_some() && file_system.is_none() => None,
            Ok(home) => Some(home),
            // Which grid to show was said, and no file system.
            Err(_) if named.is_some() && self.file_system.is_none() => None,
            Err(error) => return Err(error),
        };
        let beside = home.as_ref().and_then(|home| GridHome::of(home.root()).ok());
        let grid = match named {
            Some(root) => Some(GridHome::of(&root)?),
            None => beside.filter(Client::is_answered),
        };
        Ok(Places { home, grid })
    }

    fn render(&self, report: &Report, places: &Places) -> String {
        let name = |home: &Home| home.root().display().to_string();
        let mut text = format!(
            "{}  {:.1} s  {:.0} operations/s  read {}/s  written {}/s  waiting {}\n",
            places.home.as_ref().map_or_else(|| "no file system".to_owned(), name),
            report.seconds,
            rate(report.total.operations, report.seconds),
            bytes_rate(report.total.read_bytes, report.seconds),
            bytes_rate(report.total.written_bytes, report.seconds),
            report.waiting
        );
        let lines = usize::from(self.lines);
        for table in [operations(report, lines), causes(report, lines)].into_iter().flatten() {
            text += &format!("\n{table}");
        }
        if places.home.is_some() {
            text += &format!("{}\n", running::NOT_SEEN);
        }
        if let Some(grid) = &report.grid {
            text += &format!(
                "\ngrid  {} hosts, {} unreachable  {} of {} slots in use  {} tasks wait\n",
                grid.hosts, grid.unreachable, grid.used_slots, grid.slots, grid.pending_tasks
            );
            text += &jobs(report, lines).unwrap_or_default();
        }
        text
    }
}

/// Whether a folder is the home folder of a file system that is mounted.
fn mounts_of(root: &Path) -> bool {
    Home::at(root).is_ok_and(|home| mounts::of_home(&home).is_some())
}

impl Places {
    fn look(&self) -> Result<Look> {
        let (activity, waiting) = match &self.home {
            Some(home) => (attribution::read(home.root())?, waiting(home.root())?),
            None => (Activity::default(), 0),
        };
        let (jobs, hosts) = match &self.grid {
            Some(grid) => of_grid(grid).map(|(jobs, hosts)| (jobs, Some(hosts)))?,
            None => (Vec::new(), None),
        };
        Ok(Look { at: SystemClock.instant(), activity, waiting, jobs, hosts })
    }
}

/// Requests that have waited for over a second.
fn waiting(home: &Path) -> Result<usize> {
    match control::ask(home, &Ask::Waits { min_ms: 1000 })? {
        Answer::Waits { waits } => Ok(waits.len()),
        _ => bail!("the daemon's answer lacks a list; is it a different version?"),
    }
}

/// The jobs of the asker that run, or everybody's for an admin; and how busy the grid is.
fn of_grid(grid: &GridHome) -> Result<(Vec<JobView>, Hosts)> {
    let mut client = Client::connect(grid)?;
    let jobs = running::jobs(&mut client)?;
    let (hosts, queues) = match (client.ask(&Question::Hosts)?, client.ask(&Question::Queues)?) {
        (Told::Hosts { hosts, .. }, Told::Queues { queues, .. }) => (hosts, queues),
        _ => bail!("the controller's answer lacks hosts and queues; is it a different version?"),
    };
    let busy = Hosts {
        hosts: hosts.len(),
        unreachable: hosts.iter().filter(|host| host.state != HostState::Up).count(),
        slots: hosts.iter().map(|host| host.slots).sum(),
        used_slots: hosts.iter().map(|host| host.used_slots).sum(),
        pending_tasks: queues.iter().map(|queue| queue.pending_tasks).sum(),
    };
    Ok((jobs, busy))
}

fn report(before: &Look, now: &Look, meter: &Meter, users: &mut Users) -> Report {
    let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
    let causes: Vec<CauseReport> =
        attribution::grouped(&now.activity, &before.activity, By::All, users)
            .into_iter()
            .map(|(whose, work)| CauseReport { whose, work })
            .collect();
    let mut operations: Vec<Operation> =
        now.activity.operations.iter().filter_map(|row| operation(row, &before.activity)).collect();
    operations.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
    let mut jobs: Vec<Job> = now.jobs.iter().map(|job| job_row(job, meter)).collect();
    jobs.sort_by(|one, other| {
        let used = |job: &Job| job.rates.processors.unwrap_or(0.0);
        used(other).total_cmp(&used(one))
    });
    let total = total(&causes);
    Report { seconds, total, operations, causes, waiting: now.waiting, grid: now.hosts, jobs }
}

fn total(causes: &[CauseReport]) -> Work {
    causes.iter().fold(Work::default(), |sum, cause| Work {
        operations: sum.operations + cause.work.operations,
        nanoseconds: sum.nanoseconds + cause.work.nanoseconds,
        read_bytes: sum.read_bytes + cause.work.read_bytes,
        written_bytes: sum.written_bytes + cause.work.written_bytes,
    })
}

fn operation(row: &attribution::OperationRow, before: &Activity) -> Option<Operation> {
    let same = |it: &&attribution::OperationRow| {
        (&it.fileset, &it.operation) == (&row.fileset, &row.operation)
    };
    let (found, seconds) = row.since(before.operations.iter().find(same));
    (found.count > 0).then(|| Operation {
        fileset: row.fileset.clone(),
        operation: row.operation.clone(),
        count: found.count,
        seconds,
        p50_us: found.p50_us,
        p99_us: found.p99_us,
    })
}

fn job_row(job: &JobView, meter: &Meter) -> Job {
    Job {
        job: job.id.clone(),
        user: job.user.to_string(),
        queue: job.queue.to_string(),
        host: job.host.as_ref().map(ToString::to_string).unwrap_or_default(),
        peak_memory_bytes: job.usage.and_then(|usage| usage.peak_memory_bytes),
        rates: meter.rates(job).unwrap_or_default(),
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn rate(count: u64, seconds: f64) -> f64 {
    count as f64 / seconds.max(1e-9)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "for people")]
fn bytes_rate(count: u64, seconds: f64) -> String {
    bytes(rate(count, seconds).round() as u64)
}

fn operations(report: &Report, lines: usize) -> Option<String> {
    let mut table = Table::new(&["FILESET", "OPERATION", "OPS/s", "TIME", "P50 us", "P99 us"]);
    for row in report.operations.iter().take(lines) {
        table.row(vec![
            row.fileset.clone(),
            row.operation.clone(),
            format!("{:.1}", rate(row.count, report.seconds)),
            format!("{:.3}", row.seconds / report.seconds.max(1e-9)),
            format!("{:.1}", row.p50_us),
            format!("{:.1}", row.p99_us),
        ]);
    }
    (!report.operations.is_empty()).then(|| table.render())
}

fn causes(report: &Report, lines: usize) -> Option<String> {
    let mut table = Table::new(&["USER", "JOB", "FILESET", "OPS/s", "TIME", "READ/s", "WRITTEN/s"]);
    for CauseReport { whose, work } in report.causes.iter().take(lines) {
        table.row(vec![
            whose.user.clone(),
            whose.job.clone(),
            whose.fileset.clone(),
            format!("{:.1}", rate(work.operations, report.seconds)),
            format!("{:.3}", work.seconds() / report.seconds.max(1e-9)),
            bytes_rate(work.read_bytes, report.seconds),
            bytes_rate(work.written_bytes, report.seconds),
        ]);
    }
    (!report.causes.is_empty()).then(|| table.render())
}

fn jobs(report: &Report, lines: usize) -> Option<String> {
    let mut table = Table::new(&[
        "JOB",
        "USER",
        "QUEUE",
        "HOST",
        "PROCESSORS",
        "I/O WAIT",
        "PEAK MEMORY",
        "READ/s",
        "WRITTEN/s",
        "CALLS/s",
        "DISK/s",
    ]);
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "for people")]
    let size = |rate: Option<f64>| or_dash(rate.map(|it| bytes(it.round() as u64)));
    for job in report.jobs.iter().take(lines) {
        table.row(vec![
            job.job.clone(),
            job.user.clone(),
            job.queue.clone(),
            job.host.clone(),
            or_dash(job.rates.processors.map(|used| format!("{used:.2}"))),
            or_dash(job.rates.io_wait.map(|share| format!("{:.0} %", share * 100.0))),
            or_dash(job.peak_memory_bytes.map(bytes)),
            size(job.rates.read_bytes_per_second),
            size(job.rates.written_bytes_per_second),
            or_dash(job.rates.calls_per_second.map(|calls| format!("{calls:.0}"))),
            size(job.rates.device_read_bytes_per_second),
        ]);
    }
    (!report.jobs.is_empty()).then(|| format!("{}\n{}", running::OF_JOBS, table.render()))
}
