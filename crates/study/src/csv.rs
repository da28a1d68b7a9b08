//! A study as CSV: one file for each table of its summary, and the record's samples, jobs and steps.
//!
//! Files begin with a line of names; numbers are exact, unknown values are empty. The only part of a
//! summary that writes files.

use std::path::{Path, PathBuf};

use forebay_analytics::{Cell, Table};

use crate::compare::Comparison;
use crate::error::Result;
use crate::record::{Exit, JobRecord, Record, Run, Sample, Stage};
use crate::summary::{Summary, kind_name};

/// Writes all files into `directory`, which must exist, and says which.
///
/// # Errors
/// [`crate::Error::Workload`] if a file cannot be written.
pub fn write(record: &Record, summary: &Summary, directory: &Path) -> Result<Vec<PathBuf>> {
    let mut tables: Vec<(&str, Table)> =
        summary.sheets(record).into_iter().map(|sheet| (sheet.name, sheet.table)).collect();
    tables.extend([("samples", samples(record)), ("jobs", jobs(record)), ("steps", steps(record))]);
    let mut paths = Vec::new();
    for (name, table) in tables {
        let path = directory.join(format!("{name}.csv"));
        table.write_csv(&path)?;
        paths.push(path);
    }
    Ok(paths)
}

/// Writes the tables of a comparison into `directory`, which must exist, and says which.
///
/// # Errors
/// As [`write()`].
pub fn write_comparison(comparison: &Comparison, directory: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for sheet in comparison.sheets() {
        let path = directory.join(format!("{}.csv", sheet.name));
        sheet.table.write_csv(&path)?;
        paths.push(path);
    }
    Ok(paths)
}

/// What a column is called, and its cell of a thing.
type Column<T> = (&'static str, fn(&T) -> Cell);

fn table<T>(before: &[&str], columns: &[Column<T>]) -> Table {
    let names: Vec<&str> =
        before.iter().copied().chain(columns.iter().map(|column| column.0)).collect();
    Table::new(&names)
}

fn cells<'a, T>(
    before: impl IntoIterator<Item = Cell>,
    columns: &'a [Column<T>],
    thing: &'a T,
) -> Vec<Cell> {
    before.into_iter().chain(columns.iter().map(|column| column.1(thing))).collect()
}

/// Subject and round of a run.
fn place(record: &Record, run: &Run) -> [Cell; 2] {
    let label = record.subjects.get(run.subject).map(|subject| subject.label.as_str());
    [label.into(), u64::from(run.round).into()]
}

const SAMPLE: &[Column<Sample>] = &[
    ("at_seconds", |s| s.at_seconds.into()),
    ("seconds", |s| s.seconds.into()),
    ("jobs_waiting", |s| u64::from(s.jobs_waiting).into()),
    ("jobs_running", |s| u64::from(s.jobs_running).into()),
    ("jobs_done", |s| u64::from(s.jobs_done).into()),
    ("file_read_bytes", |s| s.file_read_bytes.into()),
    ("file_written_bytes", |s| s.file_written_bytes.into()),
    ("file_read_calls", |s| s.file_read_calls.into()),
    ("file_write_calls", |s| s.file_write_calls.into()),
    ("device_read_bytes", |s| s.device_read_bytes.into()),
    ("device_written_bytes", |s| s.device_written_bytes.into()),
    ("device_reads", |s| s.device_reads.into()),
    ("device_writes", |s| s.device_writes.into()),
    ("device_read_seconds", |s| s.device_read_seconds.into()),
    ("device_write_seconds", |s| s.device_write_seconds.into()),
    ("device_busy", |s| s.device_busy.into()),
    ("cpu_user", |s| s.cpu_user.into()),
    ("cpu_system", |s| s.cpu_system.into()),
    ("cpu_io_wait", |s| s.cpu_io_wait.into()),
    ("cpu_idle", |s| s.cpu_idle.into()),
    ("cpu_steal", |s| s.cpu_steal.into()),
    ("pressure_io_some", |s| s.pressure_io_some.into()),
    ("pressure_io_full", |s| s.pressure_io_full.into()),
    ("dirty_bytes", |s| s.dirty_bytes.into()),
    ("writeback_bytes", |s| s.writeback_bytes.into()),
    ("cached_bytes", |s| s.cached_bytes.into()),
    ("available_bytes", |s| s.available_bytes.into()),
];

/// The record's samples, one row each.
#[must_use]
pub fn samples(record: &Record) -> Table {
    let mut table = table(&["subject", "round"], SAMPLE);
    for run in &record.runs {
        for sample in &run.samples {
            table.push(cells(place(record, run), SAMPLE, sample));
        }
    }
    table
}

const JOB: &[Column<JobRecord>] = &[
    ("job", |j| j.name.as_str().into()),
    ("class", |j| j.class.as_str().into()),
    ("kind", |j| kind_name(j.kind).into()),
    ("node", |j| u64::from(j.node).into()),
    ("session", |j| j.session.map(u64::from).into()),
    ("due_seconds", |j| j.due_seconds.into()),
    ("start_seconds", |j| j.start_seconds.into()),
    ("end_seconds", |j| j.end_seconds.into()),
    ("exit", |j| exit(&j.exit).into()),
    ("message", |j| match &j.exit {
        Exit::Failure { message, .. } => message.as_str().into(),
        Exit::Success | Exit::Signal { .. } | Exit::NotStarted => Cell::Missing,
    }),
    ("real_seconds", |j| j.usage.real_seconds.into()),
    ("user_seconds", |j| j.usage.user_seconds.into()),
    ("system_seconds", |j| j.usage.system_seconds.into()),
    ("cpu_per_real", |j| j.usage.cpu_per_real().into()),
    ("peak_memory_bytes", |j| j.usage.peak_memory_bytes.into()),
    ("minor_faults", |j| j.usage.minor_faults.into()),
    ("major_faults", |j| j.usage.major_faults.into()),
    ("voluntary_switches", |j| j.usage.voluntary_switches.into()),
    ("involuntary_switches", |j| j.usage.involuntary_switches.into()),
    ("read_bytes", |j| j.usage.read_bytes.into()),
    ("written_bytes", |j| j.usage.written_bytes.into()),
    ("read_calls", |j| j.usage.read_calls.into()),
    ("write_calls", |j| j.usage.write_calls.into()),
    ("device_read_bytes", |j| j.usage.device_read_bytes.into()),
    ("device_written_bytes", |j| j.usage.device_written_bytes.into()),
    ("io_wait_seconds", |j| j.usage.io_wait_seconds.into()),
    ("processor_wait_seconds", |j| j.usage.processor_wait_seconds.into()),
];

/// "success", "exit 3", "signal 9", "not started".
fn exit(exit: &Exit) -> String {
    match exit {
        Exit::Success => "success".to_owned(),
        Exit::Failure { code, .. } => format!("exit {code}"),
        Exit::Signal { signal } => format!("signal {signal}"),
        Exit::NotStarted => "not started".to_owned(),
    }
}

/// Every run's jobs with their stage.
fn with_stages(run: &Run) -> impl Iterator<Item = (&Stage, &JobRecord)> {
    run.stages.iter().flat_map(|stage| stage.jobs.iter().map(move |job| (stage, job)))
}

/// The record's jobs, one row each.
#[must_use]
pub fn jobs(record: &Record) -> Table {
    let mut table = table(&["subject", "round", "stage"], JOB);
    for run in &record.runs {
        for (stage, job) in with_stages(run) {
            let before = place(record, run).into_iter().chain([stage.name.as_str().into()]);
            table.push(cells(before, JOB, job));
        }
    }
    table
}

type Step = forebay_workload::program::StepRecord;

const STEP: &[Column<Step>] = &[
    ("step", |s| s.resources.step.as_str().into()),
    ("kind", |s| s.kind.as_str().into()),
    ("start_seconds", |s| s.start_seconds.into()),
    ("rows", |s| s.outcome.rows.into()),
    ("real_seconds", |s| s.resources.real_seconds.into()),
    ("user_seconds", |s| s.resources.user_seconds.into()),
    ("system_seconds", |s| s.resources.system_seconds.into()),
    ("cpu_per_real", |s| s.resources.cpu_per_real().into()),
    ("peak_memory_bytes", |s| s.resources.peak_memory_bytes.into()),
    ("minor_faults", |s| s.resources.minor_faults.into()),
    ("major_faults", |s| s.resources.major_faults.into()),
    ("voluntary_switches", |s| s.resources.voluntary_switches.into()),
    ("involuntary_switches", |s| s.resources.involuntary_switches.into()),
    ("read_bytes", |s| s.resources.read_bytes.into()),
    ("written_bytes", |s| s.resources.written_bytes.into()),
    ("figures", |s| figures(s).into()),
];

/// `name=value` of every figure, separated by spaces.
fn figures(step: &Step) -> String {
    let shown: Vec<String> =
        step.outcome.figures.iter().map(|(name, value)| format!("{name}={value}")).collect();
    shown.join(" ")
}

/// The record's steps, one row each.
#[must_use]
pub fn steps(record: &Record) -> Table {
    let mut table = table(&["subject", "round", "stage", "job"], STEP);
    for run in &record.runs {
        for (stage, job) in with_stages(run) {
            for step in &job.steps {
                let names = [stage.name.as_str().into(), job.name.as_str().into()];
                table.push(cells(place(record, run).into_iter().chain(names), STEP, step));
            }
        }
    }
    table
}
