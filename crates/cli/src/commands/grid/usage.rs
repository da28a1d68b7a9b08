//! `forebay usage`.

use std::process::ExitCode;

use anyhow::Result;
use forebay_engine::protocol::{Answer, Ask, UsageKey, UsageQuery, UsageRow};

use super::{Which, no_sense, or_dash, print_json};
use crate::output::{Table, bytes};

/// Sum up resource usage: your own, or everybody's for an admin.
///
/// Every finished start of a job counts, on the day of its end in the grid's time zone. "jobs" is the number of
/// finished jobs; each element of an array is one job. "wait" is the median time from submission to the
/// first start, exact to 2 %.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay usage
  forebay usage --by user,queue --since 2026-11-01 --until 2026-11-30
  forebay usage --by day --csv
  forebay usage --by project,host --json")]
pub struct Usage {
    #[command(flatten)]
    which: Which,
    /// Keys to group by, in this order: user, queue, day, host, project.
    #[arg(long, value_name = "KEYS", default_value = "user", value_delimiter = ',', value_parser = key)]
    by: Vec<UsageKey>,
    /// First day, such as 2026-11-01.
    #[arg(long, value_name = "DAY", value_parser = day)]
    since: Option<jiff::civil::Date>,
    /// Last day, inclusive.
    #[arg(long, value_name = "DAY", value_parser = day)]
    until: Option<jiff::civil::Date>,
    /// Print comma-separated values with full numbers.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn day(text: &str) -> Result<jiff::civil::Date, String> {
    text.parse().map_err(|_| "expected a day such as 2026-11-01".to_owned())
}

fn key(text: &str) -> Result<UsageKey, String> {
    Ok(match text {
        "user" => UsageKey::User,
        "queue" => UsageKey::Queue,
        "day" => UsageKey::Day,
        "host" => UsageKey::Host,
        "project" => UsageKey::Project,
        _ => return Err("expected user, queue, day, host or project".to_owned()),
    })
}

fn name(key: UsageKey) -> &'static str {
    match key {
        UsageKey::User => "user",
        UsageKey::Queue => "queue",
        UsageKey::Day => "day",
        UsageKey::Host => "host",
        UsageKey::Project => "project",
    }
}

fn value(row: &UsageRow, key: UsageKey) -> String {
    let value = match key {
        UsageKey::User => row.user.as_ref().map(ToString::to_string),
        UsageKey::Queue => row.queue.as_ref().map(ToString::to_string),
        UsageKey::Day => row.day.map(|day| day.to_string()),
        UsageKey::Host => row.host.as_ref().map(ToString::to_string),
        UsageKey::Project => row.project.clone().filter(|project| !project.is_empty()),
    };
    value.unwrap_or_else(|| "-".to_owned())
}

impl Usage {
    pub fn run(self) -> Result<ExitCode> {
        let query = UsageQuery { by: self.by.clone(), since: self.since, until: self.until };
        let rows = match self.which.ask(&Ask::Usage { query })? {
            Answer::Usage { rows } => rows,
            answer => return Err(no_sense(&answer)),
        };
        if self.json {
            return print_json(&rows);
        }
        if self.csv {
            out!("{}", csv(&rows, &self.by));
        } else {
            out!("{}", table(&rows, &self.by).render());
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// How long they waited for I/O, with of how many starts that is known unless it is of all.
fn io_wait(row: &UsageRow) -> String {
    let of = match row.io_wait_attempts {
        known if known < row.attempts => format!(" of {known}"),
        _ => String::new(),
    };
    or_dash(row.io_wait_seconds.map(|seconds| format!("{seconds:.3}{of}")))
}

fn csv(rows: &[UsageRow], by: &[UsageKey]) -> String {
    let mut heading: Vec<&str> = by.iter().map(|key| name(*key)).collect();
    heading.extend([
        "jobs",
        "failed",
        "attempts",
        "real_seconds",
        "user_seconds",
        "system_seconds",
        "cpu_per_real",
        "slot_seconds",
        "io_wait_seconds",
        "io_wait_attempts",
        "read_bytes",
        "written_bytes",
        "peak_memory_bytes",
        "wait_median_seconds",
        "wait_max_seconds",
    ]);
    let mut text = heading.join(",") + "\n";
    let or_empty = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
    for row in rows {
        // Names and projects have no commas; quotes are doubled.
        let quoted = |text: String| {
            if text.contains('"') { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
        };
        let mut cells: Vec<String> = by.iter().map(|key| quoted(value(row, *key))).collect();
        cells.extend([row.jobs, row.failed, row.attempts].map(|count| count.to_string()));
        let seconds = [row.real_seconds, row.user_seconds, row.system_seconds];
        cells.extend(seconds.map(|seconds| seconds.to_string()));
        cells.push(or_empty(row.cpu_per_real));
        cells.push(row.slot_seconds.to_string());
        cells.push(or_empty(row.io_wait_seconds));
        cells.push(row.io_wait_attempts.to_string());
        let sizes = [row.read_bytes, row.written_bytes, row.peak_memory_bytes];
        cells.extend(sizes.map(|size| size.to_string()));
        cells.extend([row.wait_median_seconds, row.wait_max_seconds].map(or_empty));
        text.push_str(&cells.join(","));
        text.push('\n');
    }
    text
}

fn table(rows: &[UsageRow], by: &[UsageKey]) -> Table {
    let mut heading: Vec<&str> = by.iter().map(|key| name(*key)).collect();
    heading.extend(["jobs", "failed", "starts", "real s", "user s", "sys s", "cpu/real", "io s"]);
    heading.extend(["read", "written", "peak mem", "wait s", "max wait s"]);
    let mut table = Table::new(&heading);
    let seconds = |value: f64| format!("{value:.3}");
    for row in rows {
        let mut cells: Vec<String> = by.iter().map(|key| value(row, *key)).collect();
        cells.extend([row.jobs, row.failed, row.attempts].map(|count| count.to_string()));
        cells.extend([row.real_seconds, row.user_seconds, row.system_seconds].map(seconds));
        cells.push(or_dash(row.cpu_per_real.map(|ratio| format!("{ratio:.2}"))));
        cells.push(io_wait(row));
        cells.extend([row.read_bytes, row.written_bytes, row.peak_memory_bytes].map(bytes));
        cells.push(or_dash(row.wait_median_seconds.map(seconds)));
        cells.push(or_dash(row.wait_max_seconds.map(seconds)));
        table.row(cells);
    }
    table
}
