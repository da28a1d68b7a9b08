//! `forebay stat`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_fs::stats::{OPERATIONS, Operation, Percentiles};
use serde::Serialize;

use crate::control::{self, Answer, Ask, Counters, NodeCounters};
use crate::mounts;
use crate::output::{Table, bytes};

/// Show the activity of a mounted file system: operations, bytes, latencies and requests of the kernel.
///
/// Without --interval it prints the counts since the mount. With it, it prints one report per interval, with
/// the counts of that interval. Reads and writes are those that the daemon carries out. On the direct path
/// the kernel carries them out itself: bytes_written is then the growth of files, and reads do not appear.
///
/// In a cluster, the last table counts for each other node: calls to it for files that it owns, requests that were
/// answered from what this node caches of them, what it may cache of the files of this node, and what was recalled.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay stat /mnt/forebay
  forebay stat /mnt/forebay --interval 1 --count 10
  forebay stat /mnt/forebay --interval 5 --json   one JSON object per line")]
pub struct Stat {
    /// Where the file system is mounted.
    mountpoint: PathBuf,
    /// Seconds between reports, 0.01 to 86400.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    interval: Option<Duration>,
    /// Number of reports; without it, reports continue until Ctrl-C.
    #[arg(long, requires = "interval", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print JSON, one object per report.
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
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
    /// What went between this node and each other one, by its number.
    nodes: BTreeMap<u32, NodeCounters>,
}

#[derive(Serialize)]
struct FilesetReport {
    name: String,
    #[serde(flatten)]
    counts: Counts,
}

/// Counts by name.
type Counts = BTreeMap<&'static str, u64>;

impl Stat {
    pub fn run(self) -> Result<ExitCode> {
        let home = mounts::at(&self.mountpoint)?.home;
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
        _ => bail!("the daemon answered without counters; is it of another version?"),
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
    let earlier = |node: &u32| before.and_then(|before| before.nodes.get(node)).copied();
    let nodes = now.nodes.iter();
    let nodes = nodes.map(|(node, one)| (*node, one.since(earlier(node).unwrap_or_default())));
    Report { seconds, filesets, total, latency, requests, nodes: nodes.collect() }
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
    let span = if report.seconds > 0.0 {
        format!("in {:.2} s", report.seconds)
    } else {
        "since the mount".to_owned()
    };
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
    let mut shown =
        format!("{span}\n{}\n{}\n{}\n", table.render(), latency.render(), requests.render());
    if !report.nodes.is_empty() {
        let mut nodes = Table::new(&["NODE", "CALLS", "CACHED", "GRANTS", "RECALLS", "EVICTIONS"]);
        for (node, one) in &report.nodes {
            let counts = [u64::from(*node), one.calls, one.cached, one.grants, one.recalls];
            let mut cells: Vec<String> = counts.iter().map(u64::to_string).collect();
            cells.push(one.evictions.to_string());
            nodes.row(cells);
        }
        shown.push_str(&format!("{}\n", nodes.render()));
    }
    shown
}
