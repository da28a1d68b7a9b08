//! `forebay stat`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_engine::home::GridHome;
use forebay_engine::protocol::JobView;
use forebay_engine::protocol::client::Client;
use forebay_fs::stats::{OPERATIONS, Operation, Percentiles};
use serde::Serialize;

use crate::attribution::{self, Activity, By, Users, Whose, Work};
use crate::control::{self, Answer, Ask, Counters, SessionCounters};
use crate::mounts;
use crate::output::{Table, bytes};
use crate::running::{self, Meter, Rates, Used};

/// Show the activity of a mounted file system: operations, bytes, latencies, kernel requests, and in a cluster
/// the sessions with other nodes.
///
/// A row of a server counts the calls to it, and the requests that needed none because this node cached what they asked for. A row
/// of a client counts what it may cache of the filesets of this node (grants), and what was taken back from it (recalls).
///
/// Without --interval it prints the counts since the mount. With --interval it prints one report per interval, with
/// the counts of that interval. Only reads and writes that the daemon performs are counted. On the direct path
/// the kernel performs them: bytes_written is then the growth of files, and reads do not appear.
///
/// With --by, operations and bytes are attributed to the fileset, user or job that caused them on this machine. The job of a
/// process is that of its control group, or of its environment (FOREBAY_JOB, SLURM_JOB_ID, LSB_JOBID); - stands for no job, ? for a
/// process that had ended before it was looked up. The user (kernel) stands for operations without a process, such as
/// closes. Growth of a file is attributed to the process that opened it for writing last.
///
/// With --by job or user, running jobs of the grid have a list of their own: bytes and calls of reads and writes in any file system, as
/// the kernel counts them for the processes of the job. They include native filesets and the direct path, which never reach the daemon;
/// FROM DISK is what memory did not hold. With --interval this list shows rates: what each job uses per second between the last two reports
/// of its host, which come every 2 seconds. What jobs create, open and remove in native filesets is not counted anywhere.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay stat /mnt/forebay
  forebay stat /mnt/forebay --interval 1 --count 10
  forebay stat /mnt/forebay --by job --interval 5   which jobs cause operations and bytes
  forebay stat /mnt/forebay --interval 5 --json   one JSON object per line")]
pub struct Stat {
    /// Mount point of the file system.
    mountpoint: PathBuf,
    /// Seconds between reports, 0.01 to 86400.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    interval: Option<Duration>,
    /// Number of reports; without it, reports continue until Ctrl-C.
    #[arg(long, requires = "interval", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Show who caused operations and bytes instead: by fileset, user or job.
    #[arg(long)]
    by: Option<By>,
    /// Folder of the grid whose running jobs --by shows too [default: the environment variable FOREBAY_GRID, or the home folder of the
    /// file system].
    #[arg(long, value_name = "ROOT", requires = "by")]
    grid: Option<PathBuf>,
    /// Print JSON, one object per report.
    #[arg(long)]
    json: bool,
}

/// A number of seconds.
pub fn seconds(text: &str) -> Result<Duration, String> {
    text.parse::<f64>()
        .ok()
        .filter(|seconds| (0.01..=86_400.0).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "expected a number of seconds, 0.01 to 86400".to_owned())
}

/// What happened in an interval.
#[derive(Serialize)]
struct Report {
    seconds: f64,
    filesets: Vec<FilesetReport>,
    total: Counts,
    latency: BTreeMap<&'static str, Percentiles>,
    /// Requests of the kernel, by their names in the FUSE protocol.
    requests: BTreeMap<String, u64>,
    /// Sessions with other nodes of the cluster.
    sessions: Vec<SessionCounters>,
}

#[derive(Serialize)]
struct FilesetReport {
    name: String,
    #[serde(flatten)]
    counts: Counts,
}

/// Who caused what in an interval.
#[derive(Serialize)]
struct Causes {
    seconds: f64,
    by: By,
    rows: Vec<Caused>,
    /// What running jobs of the grid used; none without a grid, and by fileset.
    #[serde(skip_serializing_if = "Option::is_none")]
    running: Option<Vec<RunningRow>>,
}

#[derive(Serialize)]
struct Caused {
    #[serde(flatten)]
    whose: Whose,
    #[serde(flatten)]
    work: Work,
}

#[derive(Serialize)]
struct RunningRow {
    #[serde(flatten)]
    whose: Whose,
    #[serde(flatten)]
    used: Running,
}

/// What running jobs use.
#[derive(Serialize)]
#[serde(untagged)]
enum Running {
    /// Since each began.
    Whole(Used),
    /// Per second.
    Rates(Rates),
}

/// What is known at one time of who causes what.
#[derive(Default)]
struct Look {
    activity: Activity,
    /// Jobs that run; none without a grid.
    jobs: Option<Vec<JobView>>,
}

impl Look {
    /// What the daemon of the file system says, and the controller of a grid beside it.
    fn at(home: &Path, grid: Option<&GridHome>, is_named: bool) -> Result<Look> {
        Ok(Look { activity: attribution::read(home)?, jobs: jobs_of(grid, is_named)? })
    }

    /// What was caused since an earlier time, and what running jobs use: per second by a meter, without one since each began.
    fn since(
        &self,
        before: &Look,
        (by, seconds): (By, f64),
        meter: Option<&Meter>,
        users: &mut Users,
    ) -> Causes {
        let rows = attribution::grouped(&self.activity, &before.activity, by, users);
        let row = |whose, used| RunningRow { whose, used };
        let running = self.jobs.as_ref().map(|jobs| match meter {
            None => {
                let rows = running::totals(jobs, by).into_iter();
                rows.map(|(whose, used)| row(whose, Running::Whole(used))).collect()
            }
            Some(meter) => {
                let rows = running::rates(jobs, meter, by).into_iter();
                rows.map(|(whose, rates)| row(whose, Running::Rates(rates))).collect()
            }
        });
        Causes {
            seconds,
            by,
            rows: rows.into_iter().map(|(whose, work)| Caused { whose, work }).collect(),
            running,
        }
    }
}

/// Jobs that run in a grid. One that nobody named may be silent, as when its controller restarts: the file system is what was asked about.
fn jobs_of(grid: Option<&GridHome>, is_named: bool) -> Result<Option<Vec<JobView>>> {
    let ask = |grid| running::jobs(&mut Client::connect(grid)?);
    match grid.map(ask) {
        Some(Err(_)) if !is_named => Ok(None),
        jobs => jobs.transpose(),
    }
}

/// Counts by name.
type Counts = BTreeMap<&'static str, u64>;

impl Stat {
    pub fn run(self) -> Result<ExitCode> {
        let home = mounts::at(&self.mountpoint)?.home;
        if let Some(by) = self.by {
            return self.attribute(&home, by);
        }
        let Some(interval) = self.interval else {
            let now = read(&home)?;
            self.print(&report(None, &now, None))?;
            return Ok(ExitCode::SUCCESS);
        };
        let clock = SystemClock;
        let (mut before, mut since) = (read(&home)?, clock.instant());
        let mut left = self.count;
        while left != Some(0) {
            std::thread::sleep((since + interval).saturating_duration_since(clock.instant()));
            let (now, at): (Counters, Instant) = (read(&home)?, clock.instant());
            self.print(&report(Some(&before), &now, Some(at - since)))?;
            (before, since) = (now, at);
            left = left.map(|left| left - 1);
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Reports who caused what.
    fn attribute(&self, home: &Path, by: By) -> Result<ExitCode> {
        let (clock, mut users, mut meter) = (SystemClock, Users::default(), Meter::default());
        let grid = match by {
            By::Fileset => {
                ensure!(
                    self.grid.is_none(),
                    "--grid: jobs have no filesets; use --by job or --by user"
                );
                None
            }
            By::Job | By::User | By::All => running::grid_beside(home, self.grid.as_deref())?,
        };
        let look = || Look::at(home, grid.as_ref(), self.grid.is_some());
        let Some(interval) = self.interval else {
            self.print_causes(&look()?.since(&Look::default(), (by, 0.0), None, &mut users))?;
            return Ok(ExitCode::SUCCESS);
        };
        let (mut before, mut since) = (look()?, clock.instant());
        meter.take(before.jobs.as_deref().unwrap_or_default());
        let mut left = self.count;
        while left != Some(0) {
            std::thread::sleep((since + interval).saturating_duration_since(clock.instant()));
            let (now, at): (Look, Instant) = (look()?, clock.instant());
            // What is known of jobs stays while their controller does not answer.
            if let Some(jobs) = &now.jobs {
                meter.take(jobs);
            }
            let span = (by, (at - since).as_secs_f64());
            self.print_causes(&now.since(&before, span, Some(&meter), &mut users))?;
            (before, since) = (now, at);
            left = left.map(|left| left - 1);
        }
        Ok(ExitCode::SUCCESS)
    }

    fn print_causes(&self, causes: &Causes) -> Result<()> {
        if self.json {
            crate::output::put_json_line(causes)?;
        } else {
            out!("{}", render_causes(causes));
        }
        Ok(())
    }

    fn print(&self, report: &Report) -> Result<()> {
        if self.json {
            crate::output::put_json_line(report)?;
        } else {
            out!("{}", render(report));
        }
        Ok(())
    }
}

fn read(home: &Path) -> Result<Counters> {
    match control::ask(home, &Ask::Counters)? {
        Answer::Counters(counters) => Ok(counters),
        _ => bail!("the daemon's answer lacks counters; is it a different version?"),
    }
}

fn difference(now: &[u64], before: Option<&Vec<u64>>) -> Vec<u64> {
    let before = |index: usize| before.and_then(|b| b.get(index)).copied().unwrap_or(0);
    now.iter().enumerate().map(|(index, now)| now.saturating_sub(before(index))).collect()
}

fn report(before: Option<&Counters>, now: &Counters, took: Option<Duration>) -> Report {
    let mut total = Counts::new();
    let mut filesets = Vec::new();
    for (name, counts) in &now.filesets {
        let earlier = before.and_then(|before| {
            before.filesets.iter().find(|(other, _)| other == name).map(|(_, counts)| counts)
        });
        let counts: Counts =
            OPERATIONS.iter().map(|(_, name)| *name).zip(difference(counts, earlier)).collect();
        for (operation, count) in &counts {
            *total.entry(operation).or_default() += count;
        }
        if !name.is_empty() {
            filesets.push(FilesetReport { name: name.clone(), counts });
        }
    }
    let latency = OPERATIONS
        .iter()
        .enumerate()
        .filter_map(|(index, (_, name))| {
            let earlier = before.and_then(|before| before.latencies.get(index));
            let found = Percentiles::of(&difference(now.latencies.get(index)?, earlier));
            (found.count > 0).then_some((*name, found))
        })
        .collect();
    let earlier = |kind: &str| before.and_then(|before| before.requests.get(kind)).copied();
    let since = |(kind, count): (&String, &u64)| {
        (kind.clone(), count.saturating_sub(earlier(kind).unwrap_or(0)))
    };
    let requests = now.requests.iter().map(since).filter(|(_, count)| *count > 0).collect();
    let seconds = took.map_or(0.0, |took| took.as_secs_f64());
    let sessions = now.sessions.iter().map(|session| since_before(session, before)).collect();
    Report { seconds, filesets, total, latency, requests, sessions }
}

/// A session with the calls of an interval. One that began anew counts from its beginning.
fn since_before(now: &SessionCounters, before: Option<&Counters>) -> SessionCounters {
    let same = |it: &&SessionCounters| (it.node, it.is_client) == (now.node, now.is_client);
    let earlier = before.and_then(|before| before.sessions.iter().find(same));
    let since = |of: fn(&SessionCounters) -> u64| {
        let earlier = earlier.map_or(0, of);
        if of(now) >= earlier { of(now) - earlier } else { of(now) }
    };
    SessionCounters {
        calls: since(|it| it.calls),
        served: since(|it| it.served),
        cached: since(|it| it.cached),
        recalls: since(|it| it.recalls),
        evictions: since(|it| it.evictions),
        ..now.clone()
    }
}

/// The columns that name who it was.
fn heading(by: By) -> &'static [&'static str] {
    match by {
        By::Fileset => &["FILESET"],
        By::User => &["USER"],
        By::Job | By::All => &["JOB", "USER"],
    }
}

/// The cells below them.
fn names(by: By, whose: &Whose) -> Vec<String> {
    match by {
        By::Fileset => vec![whose.fileset.clone()],
        By::User => vec![whose.user.clone()],
        By::Job | By::All => vec![whose.job.clone(), whose.user.clone()],
    }
}

fn render_causes(causes: &Causes) -> String {
    let by = causes.by;
    let mut table =
        Table::new(&[heading(by), &["OPERATIONS", "TIME s", "READ", "WRITTEN"]].concat());
    for Caused { whose, work } in &causes.rows {
        let mut cells = names(by, whose);
        cells.extend([
            work.operations.to_string(),
            format!("{:.3}", work.seconds()),
            bytes(work.read_bytes),
            bytes(work.written_bytes),
        ]);
        table.row(cells);
    }
    let mut text = format!("{}\n{}{}\n", span(causes.seconds), table.render(), running::NOT_SEEN);
    if let Some(rows) = causes.running.as_ref().filter(|rows| !rows.is_empty()) {
        let (since, columns) = match causes.seconds > 0.0 {
            true => ("Per second, as their hosts reported last.", &running::RATES_HEADING),
            false => ("Since each began.", &running::HEADING),
        };
        let mut of_jobs = Table::new(&[heading(by), columns].concat());
        for RunningRow { whose, used } in rows {
            let cells = match used {
                Running::Whole(used) => running::cells(used),
                Running::Rates(rates) => running::rates_cells(rates),
            };
            of_jobs.row([names(by, whose), cells.to_vec()].concat());
        }
        text += &format!("\n{} {since}\n{}", running::OF_JOBS, of_jobs.render());
    }
    text
}

/// Over which time something was counted.
fn span(seconds: f64) -> String {
    if seconds > 0.0 { format!("in {seconds:.2} s") } else { "since the mount".to_owned() }
}

/// Sessions with other nodes, a row for each.
fn render_sessions(sessions: &[SessionCounters]) -> String {
    if sessions.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        "NODE",
        "ITS PART",
        "CALLS TO IT",
        "WAITING",
        "CALLS SERVED",
        "IN SERVICE",
        "ROUND TRIP us",
        "INODES HELD",
        "FILES OPEN",
        "CACHED HERE",
        "GRANTS",
        "DIRECTORIES",
        "RECALLS",
        "EVICTIONS",
    ]);
    for session in sessions {
        table.row(vec![
            session.name.clone(),
            if session.is_client { "client" } else { "server" }.to_owned(),
            session.calls.to_string(),
            session.waiting_calls.to_string(),
            session.served.to_string(),
            session.served_now.to_string(),
            session.round_trip_us.to_string(),
            session.inodes.to_string(),
            session.open_files.to_string(),
            session.cached.to_string(),
            session.grants.to_string(),
            session.directories.to_string(),
            session.recalls.to_string(),
            session.evictions.to_string(),
        ]);
    }
    format!("{}\n", table.render())
}

fn render(report: &Report) -> String {
    let mut heading = vec!["FILESET"];
    heading.extend(OPERATIONS.iter().map(|(_, name)| *name));
    let mut table = Table::new(&heading);
    let row = |name: &str, counts: &Counts| {
        let mut cells = vec![name.to_owned()];
        for (operation, text) in OPERATIONS {
            let count = counts.get(text).copied().unwrap_or(0);
            let is_bytes = matches!(operation, Operation::BytesRead | Operation::BytesWritten);
            cells.push(if is_bytes { bytes(count) } else { count.to_string() });
        }
        cells
    };
    for fileset in &report.filesets {
        table.row(row(&fileset.name, &fileset.counts));
    }
    table.row(row("total", &report.total));
    let span = span(report.seconds);
    let mut latency = Table::new(&["OPERATION", "COUNT", "P50 us", "P90 us", "P99 us", "MAX us"]);
    for (name, found) in &report.latency {
        let mut cells = vec![(*name).to_owned(), found.count.to_string()];
        let values = [found.p50_us, found.p90_us, found.p99_us, found.max_us];
        cells.extend(values.iter().map(|value| format!("{value:.1}")));
        latency.row(cells);
    }
    let mut requests = Table::new(&["REQUEST", "COUNT"]);
    for (kind, count) in &report.requests {
        requests.row(vec![kind.clone(), count.to_string()]);
    }
    format!(
        "{span}\n{}\n{}\n{}\n{}",
        table.render(),
        latency.render(),
        requests.render(),
        render_sessions(&report.sessions)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_that_nobody_named_may_be_silent_and_one_that_was_named_may_not() {
        let folder = tempfile::tempdir().unwrap();
        let silent = GridHome::of(folder.path()).unwrap();
        assert!(jobs_of(None, false).unwrap().is_none());
        assert!(jobs_of(Some(&silent), false).unwrap().is_none());
        let refused = format!("{:#}", jobs_of(Some(&silent), true).unwrap_err());
        assert!(refused.contains("is the grid up?"), "{refused}");
    }
}
