//! The tables of a summary, one function each.
//!
//! Rows begin with subject and round where there are several of them. Shares are given in percent,
//! amounts in GB (10^9 bytes), rates in MB/s (10^6 bytes).

mod environment;
mod hosts;
mod published;

pub use environment::environment;
pub use hosts::hosts;
pub use published::published;

use std::collections::BTreeMap;

use forebay_analytics::{Cell, Table};

use super::sheet::Rows;
use super::verdict::describe_failure;
use super::{
    FigureSort, Flow, Group, Period, PeriodBasis, RunSummary, Sheet, SizeBucket, Summary, Totals,
};
use crate::record::{DeviceScope, Record};

fn minutes(seconds: f64) -> Cell {
    (seconds / 60.0).into()
}

fn percent(share: Option<f64>) -> Cell {
    share.map(|share| share * 100.0).into()
}

fn gigabytes(bytes: impl Into<Option<u64>>) -> Cell {
    bytes.into().map(|bytes| bytes as f64 / 1e9).into()
}

fn number(count: usize) -> Cell {
    (count as u64).into()
}

/// The figures of whole runs, with median and spread if there are several rounds.
#[must_use]
pub fn overview(summary: &Summary, record: &Record) -> Sheet {
    let (several, rounds) = (summary.subjects.len() > 1, summary.has_rounds());
    let mut columns = vec!["figure".to_owned(), "unit".to_owned()];
    for subject in &summary.subjects {
        let name = if several { subject.label.clone() } else { "value".to_owned() };
        if rounds {
            let label = if several { format!("{name} ") } else { String::new() };
            columns.extend(["median", "min", "max", "MAD"].map(|part| format!("{label}{part}")));
        } else {
            columns.push(name);
        }
    }
    let mut table = Table { columns, ..Table::default() };
    let figures = summary.subjects.first().map_or(&[][..], |subject| &subject.figures);
    for spread in figures.iter().filter(|spread| !spread.figure.is_of_part()) {
        let mut row: Vec<Cell> =
            vec![spread.figure.label.as_str().into(), spread.figure.unit.into()];
        let mut known = false;
        for subject in &summary.subjects {
            let spread = subject.spread(&spread.figure.key);
            known |= spread.is_some();
            row.push(spread.map(|spread| spread.median).into());
            if rounds {
                row.push(spread.map(|spread| spread.min).into());
                row.push(spread.map(|spread| spread.max).into());
                row.push(spread.map(|spread| spread.mad).into());
            }
        }
        if known {
            table.push(row);
        }
    }
    let mut notes = Vec::new();
    if rounds {
        notes.push("Medians over rounds; MAD is the median absolute deviation.".to_owned());
    }
    if !record.workload.study.is_empty() {
        notes.push(format!(
            "The study, at scale 1 on its own grid: {}. This was run at scale {}.",
            record.workload.study.trim_end_matches('.'),
            Cell::from(record.workload.scale).show(Sheet::DIGITS)
        ));
    }
    notes.push(Flow::DEFINITION.to_owned());
    notes.extend(summary.subjects.iter().filter(|subject| !subject.left_out.is_empty()).map(
        |subject| {
            format!("{}: {} interrupted rounds are omitted.", subject.label, subject.left_out.len())
        },
    ));
    Sheet { name: "overview", title: "Summary".to_owned(), notes, table }
}

/// The jobs that did not end well.
#[must_use]
pub fn failures(record: &Record) -> Sheet {
    let mut table = Table::new(&[
        "subject",
        "round",
        "stage",
        "job",
        "class",
        "node",
        "end",
        "steps that ended",
    ]);
    for run in &record.runs {
        let label = record.subjects.get(run.subject).map_or("", |subject| subject.label.as_str());
        for (stage, job) in run.stages.iter().flat_map(|s| s.jobs.iter().map(move |job| (s, job))) {
            let Some(end) = describe_failure(&job.exit) else { continue };
            table.push(vec![
                label.into(),
                u64::from(run.round).into(),
                stage.name.as_str().into(),
                job.name.as_str().into(),
                job.class.as_str().into(),
                u64::from(job.node).into(),
                end.into(),
                number(job.steps.len()),
            ]);
        }
    }
    Sheet { name: "failures", title: "Failed jobs".to_owned(), notes: Vec::new(), table }
}

/// Columns of [`totals`].
const TOTALS: [&str; 17] = [
    "jobs",
    "failed",
    "real min",
    "user min",
    "system min",
    "CPU/real of sums",
    "CPU/real mean of jobs",
    "I/O wait %",
    "processor wait %",
    "median real s",
    "lower quartile s",
    "upper quartile s",
    "longest real s",
    "read GB",
    "written GB",
    "peak memory MB",
    "not started",
];

fn totals(totals: &Totals) -> Vec<Cell> {
    vec![
        number(totals.jobs),
        number(totals.failed),
        minutes(totals.real_seconds),
        minutes(totals.user_seconds),
        minutes(totals.system_seconds),
        totals.cpu_per_real_of_sums.into(),
        totals.cpu_per_real_mean_of_jobs.into(),
        percent(totals.io_wait_share),
        percent(totals.processor_wait_share),
        totals.real.map(|real| real.median).into(),
        totals.real.map(|real| real.lower_quartile).into(),
        totals.real.map(|real| real.upper_quartile).into(),
        totals.real.map(|real| real.max).into(),
        gigabytes(totals.read_bytes),
        gigabytes(totals.written_bytes),
        totals.peak_memory_bytes.map(|bytes| bytes as f64 / 1e6).into(),
        number(totals.not_started),
    ]
}

/// What must be known of sums of bytes.
fn unknown_bytes(summary: &Summary) -> Option<String> {
    let unknown: usize = summary.runs.iter().map(|run| run.jobs.bytes_unknown).sum();
    (unknown > 0).then(|| {
        format!("The bytes of {unknown} jobs are not known: sums of bytes are lower bounds.")
    })
}

const CPU_PER_REAL: &str = "CPU/real of sums is all processor time divided by all real time; the mean \
    of jobs is the mean of each job's ratio, in which short jobs weigh as much as long ones.";

/// All jobs of each run.
#[must_use]
pub fn job_totals(summary: &Summary) -> Sheet {
    let mut rows = Rows::new(summary, &[&["wall s"], &TOTALS[..]].concat());
    for run in &summary.runs {
        rows.push(run, [vec![run.seconds.into()], totals(&run.jobs)].concat());
    }
    let mut notes = vec![CPU_PER_REAL.to_owned()];
    notes.extend(unknown_bytes(summary));
    rows.sheet("job_totals", "Jobs", notes)
}

fn groups(summary: &Summary, what: &[&str], of: fn(&RunSummary) -> &[Group]) -> Rows {
    let mut rows = Rows::new(summary, &[what, &TOTALS[..]].concat());
    for run in &summary.runs {
        for group in of(run) {
            let mut row: Vec<Cell> = vec![group.name.as_str().into()];
            if what.len() > 1 {
                row.push(group.kind.map(super::kind_name).into());
            }
            row.extend(totals(&group.totals));
            rows.push(run, row);
        }
    }
    rows
}

/// Jobs by class.
#[must_use]
pub fn classes(summary: &Summary) -> Sheet {
    groups(summary, &["class", "kind"], |run| &run.classes).sheet(
        "classes",
        "Jobs by class",
        unknown_bytes(summary).into_iter().collect(),
    )
}

/// Jobs by kind.
#[must_use]
pub fn kinds(summary: &Summary) -> Sheet {
    groups(summary, &["kind"], |run| &run.kinds).sheet("kinds", "Jobs by kind", Vec::new())
}

/// Jobs by logical node, if there are several.
#[must_use]
pub fn nodes(summary: &Summary, record: &Record) -> Sheet {
    let several = summary.runs.iter().any(|run| run.nodes.len() > 1);
    let rows = groups(summary, &["node"], |run| if run.nodes.len() > 1 { &run.nodes } else { &[] });
    let mut notes = Vec::new();
    if several {
        notes.push(format!("Logical nodes are {}.", record.nodes_are()));
    }
    for run in &summary.runs {
        let Some(uniformity) = run.uniformity else { continue };
        let shown = |value: f64| Cell::from(value).show(3);
        let real = uniformity.real_seconds;
        let ratio = uniformity.max_per_min.map_or(".".to_owned(), shown);
        notes.push(format!(
            "{}: real time of the nodes of a stage from {} to {} min, max/min {ratio}; of several stages, the \
             one in which nodes differ most.",
            summary.run_name(run),
            shown(real.min / 60.0),
            shown(real.max / 60.0)
        ));
    }
    rows.sheet("nodes", "Uniformity of nodes", notes)
}

impl Flow {
    /// What sustained means.
    pub const DEFINITION: &str = "Sustained is the median of the seconds of the busy period: from the \
        moment when the number of jobs at once first reaches nine tenths of its plateau (the largest \
        number that is held for a tenth of the time) until it finally falls below; of all time from the \
        first job's start to the last one's end, if that would be less than a quarter of it.";

    fn cells(&self) -> Vec<Cell> {
        vec![
            number(self.samples),
            self.sustained_mb_per_second.into(),
            self.busy.map(|busy| busy.lower_quartile).into(),
            self.busy.map(|busy| busy.upper_quartile).into(),
            self.sustained_read_mb_per_second.into(),
            self.sustained_write_mb_per_second.into(),
            self.best_1_second.into(),
            self.best_10_seconds.into(),
            gigabytes(self.read_bytes),
            gigabytes(self.written_bytes),
            percent(self.read_share),
        ]
    }
}

fn shown_periods(periods: &[Period]) -> String {
    let of = |period: &Period| {
        let basis = match period.basis {
            PeriodBasis::Plateau => "",
            PeriodBasis::AllJobs => " (no plateau)",
        };
        format!("{:.0} - {:.0} s{basis}", period.start_seconds, period.end_seconds)
    };
    periods.iter().map(of).collect::<Vec<_>>().join(", ")
}

/// Throughput of each run at the file and the device level.
#[must_use]
pub fn throughput(summary: &Summary) -> Sheet {
    let mut rows = Rows::new(
        summary,
        &[
            "level",
            "samples",
            "sustained MB/s",
            "lower quartile",
            "upper quartile",
            "sustained read",
            "sustained write",
            "best 1 s",
            "best 10 consecutive s",
            "read GB",
            "written GB",
            "read %",
            "sustained MB/s per core",
            "busy period",
        ],
    );
    for run in &summary.runs {
        if run.jobs.ran() == 0 {
            continue;
        }
        let levels = [("file", Some(&run.file)), ("device", run.device.as_ref())];
        for (level, flow) in levels.into_iter().filter_map(|(name, flow)| Some((name, flow?))) {
            let per_core = if level == "file" { run.mb_per_second_per_core } else { None };
            let mut row = vec![level.into()];
            row.extend(flow.cells());
            row.extend([per_core.into(), shown_periods(&run.busy).into()]);
            rows.push(run, row);
        }
    }
    let notes = vec![
        Flow::DEFINITION.to_owned(),
        "Medians of reading and writing do not add up to that of both. The file level includes bytes that \
         the page cache served and absorbed."
            .to_owned(),
    ];
    rows.sheet("throughput", "Throughput", notes)
}

/// The stages, if a run has several.
#[must_use]
pub fn stages(summary: &Summary, record: &Record) -> Sheet {
    let mut rows = Rows::new(
        summary,
        &[
            "stage",
            "nodes",
            "sessions",
            "at once per node",
            "jobs",
            "failed",
            "wall s",
            "rate",
            "unit",
            "what",
            "samples",
            "file MB/s",
            "file read",
            "file write",
            "device MB/s",
            "jobs/min",
            "size",
            "MB/s against first",
            "efficiency %",
            "jobs/min against first",
            "jobs efficiency %",
        ],
    );
    let several = summary.runs.iter().filter(|run| run.stages.len() > 1);
    for (run, stage) in several.flat_map(|run| run.stages.iter().map(move |stage| (run, stage))) {
        let scaling = stage.scaling;
        rows.push(
            run,
            vec![
                stage.name.as_str().into(),
                u64::from(stage.nodes).into(),
                stage.sessions.map(u64::from).into(),
                u64::from(stage.concurrent).into(),
                number(stage.jobs.jobs),
                number(stage.jobs.failed),
                stage.seconds.into(),
                stage.rate.as_ref().map(|rate| rate.value).into(),
                stage.rate.as_ref().map(|rate| rate.unit).into(),
                stage.rate.as_ref().map(|rate| rate.what).into(),
                number(stage.file.samples),
                stage.file.sustained_mb_per_second.into(),
                stage.file.sustained_read_mb_per_second.into(),
                stage.file.sustained_write_mb_per_second.into(),
                stage.device.as_ref().and_then(|flow| flow.sustained_mb_per_second).into(),
                stage.jobs_per_minute.into(),
                scaling.map(|scaling| scaling.size).into(),
                scaling.and_then(|scaling| scaling.throughput).into(),
                percent(scaling.and_then(|scaling| scaling.throughput_efficiency)),
                scaling.and_then(|scaling| scaling.jobs).into(),
                percent(scaling.and_then(|scaling| scaling.jobs_efficiency)),
            ],
        );
    }
    let mut notes = vec![
        "The rate of a stage is the total that its streams measured, without the preparation of files; \
         otherwise the median of its samples, if there are enough. File and device MB/s are sustained over the busy period \
         of the stage."
            .to_owned(),
    ];
    if summary.runs.iter().flat_map(|run| &run.stages).any(|stage| stage.scaling.is_some()) {
        notes.push(format!(
            "Sizes and figures against the first stage are multiples of that stage's; efficiency is the \
             gain divided by the size. Nodes are {}.",
            record.nodes_are()
        ));
    }
    rows.sheet("stages", "Stages", notes)
}

/// What steps measured themselves, such as the rates of probes.
#[must_use]
pub fn step_figures(summary: &Summary) -> Sheet {
    let columns = ["stage", "step", "figure", "jobs", "sum", "per second", "median", "min", "max"];
    let mut rows = Rows::new(summary, &columns);
    for run in &summary.runs {
        for figure in &run.step_figures {
            rows.push(
                run,
                vec![
                    figure.stage.as_str().into(),
                    figure.step.as_str().into(),
                    figure.name.as_str().into(),
                    number(figure.spread.count),
                    figure.sum.into(),
                    figure.per_second.into(),
                    figure.spread.median.into(),
                    figure.spread.min.into(),
                    figure.spread.max.into(),
                ],
            );
        }
    }
    let not_together = summary
        .runs
        .iter()
        .flat_map(|run| &run.step_figures)
        .any(|figure| figure.sort == FigureSort::Rate && figure.sum.is_none());
    let mut notes = vec![
        "Rates are summed over jobs whose steps ran at the same time; counts are summed over jobs and \
         divided by the seconds of the stage."
            .to_owned(),
    ];
    if not_together {
        notes.push("Rates without a sum did not run at the same time.".to_owned());
    }
    rows.sheet("step_figures", "Measured by steps", notes)
}

/// Times of calls that steps measured.
#[must_use]
pub fn call_latencies(summary: &Summary) -> Sheet {
    let columns =
        ["stage", "step", "call", "calls", "p50 ms", "p95 ms", "p99 ms", "p99.9 ms", "max ms"];
    let mut rows = Rows::new(summary, &columns);
    for run in &summary.runs {
        for latency in &run.call_latencies {
            rows.push(
                run,
                vec![
                    latency.stage.as_str().into(),
                    latency.step.as_str().into(),
                    latency.call.as_str().into(),
                    latency.count.into(),
                    latency.p50_ms.into(),
                    latency.p95_ms.into(),
                    latency.p99_ms.into(),
                    latency.p999_ms.into(),
                    latency.max_ms.into(),
                ],
            );
        }
    }
    let notes = vec![
        "Of all calls of all jobs together; each is the upper bound of the histogram's bucket."
            .to_owned(),
    ];
    rows.sheet("call_latencies", "Times of calls", notes)
}

/// Page cache and devices.
#[must_use]
pub fn devices(summary: &Summary, record: &Record) -> Sheet {
    let mut rows = Rows::new(
        summary,
        &[
            "not from devices %",
            "read mean ms",
            "read p95 ms",
            "write mean ms",
            "write p95 ms",
            "watched",
        ],
    );
    let mut notes = vec![
        "Not from devices: 1 - bytes read from devices / bytes that jobs read, between 0 and 1. It \
         is the page cache's share only if nothing else read from the devices; unused read-ahead lowers it, \
         and so does a daemon that reads more than was requested."
            .to_owned(),
        "p95: 95 of 100 seconds with requests had a mean time up to this.".to_owned(),
    ];
    for (run, of_record) in summary.runs.iter().zip(&record.runs) {
        let watched = match &of_record.device_scope {
            DeviceScope::Devices(names) => names.join(" "),
            DeviceScope::AllDisks => {
                let note = "It is not known which devices lie below the storage, so all disks were monitored.";
                if !notes.iter().any(|known| known == note) {
                    notes.push(note.to_owned());
                }
                "all disks".to_owned()
            }
            DeviceScope::None => continue,
        };
        rows.push(
            run,
            vec![
                percent(run.cache_hit_ratio),
                run.latency.read_mean_ms.into(),
                run.latency.read_p95_ms.into(),
                run.latency.write_mean_ms.into(),
                run.latency.write_p95_ms.into(),
                watched.into(),
            ],
        );
    }
    rows.sheet("devices", "Page cache and devices", notes)
}

/// Sizes of calls and requests, all runs of a subject together.
#[must_use]
pub fn request_sizes(summary: &Summary) -> Sheet {
    let columns =
        ["subject", "up to bytes", "file reads", "file writes", "device reads", "device writes"];
    let mut table = Table::new(&columns);
    for subject in &summary.subjects {
        let mut buckets: BTreeMap<u64, SizeBucket> = BTreeMap::new();
        let runs = summary.runs.iter().filter(|run| run.subject == subject.subject);
        for bucket in runs.flat_map(|run| &run.request_sizes) {
            let have =
                buckets.entry(bucket.upto_bytes).or_insert(SizeBucket::empty(bucket.upto_bytes));
            have.add(bucket);
        }
        for bucket in buckets.values() {
            table.push(vec![
                subject.label.as_str().into(),
                bucket.upto_bytes.into(),
                bucket.file_reads.into(),
                bucket.file_writes.into(),
                bucket.device_reads.into(),
                bucket.device_writes.into(),
            ]);
        }
    }
    let notes = vec![
        "Mean sizes: calls by the mean of their job, requests of devices by the mean of their second; \
         single calls and requests are not recorded."
            .to_owned(),
    ];
    Sheet { name: "request_sizes", title: "Sizes of requests".to_owned(), notes, table }
}

/// What the processors did.
#[must_use]
pub fn processor(summary: &Summary) -> Sheet {
    let columns = [
        "user %",
        "system %",
        "I/O wait %",
        "idle %",
        "steal %",
        "some task waited for I/O %",
        "all tasks waited for I/O %",
    ];
    let mut rows = Rows::new(summary, &columns);
    for run in &summary.runs {
        let Some(processor) = run.processor else { continue };
        let shares = [
            Some(processor.user),
            Some(processor.system),
            Some(processor.io_wait),
            Some(processor.idle),
            Some(processor.steal),
            processor.pressure_some,
            processor.pressure_full,
        ];
        rows.push(run, shares.into_iter().map(percent).collect());
    }
    let notes = vec![
        "Of all processors over the busy periods. The waits of tasks are pressure stall information (PSI)."
            .to_owned(),
    ];
    rows.sheet("processor", "Processors", notes)
}
