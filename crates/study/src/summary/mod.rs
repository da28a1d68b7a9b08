//! What people compare, computed from a [`Record`] and nothing else.
//!
//! [`Summary::of`] sums up each run, and over the rounds of each subject; [`Summary::sheets`] are its
//! tables, the same for page, terminal and CSV. docs/formats/figures.md defines every figure. A figure
//! that the record does not carry is `None`, never zero. MB are 10^6 bytes. Medians stand with their
//! spread; where a mean of ratios is given, its name says so.

mod busy;
mod figure;
mod flow;
mod hosts;
mod rate;
mod sheet;
mod stage;
mod step_figures;
pub mod tables;
mod totals;
mod verdict;

pub use hosts::{HostSummary, Rate};
pub use rate::{RateSource, StageRate, Streams};
pub use sheet::Sheet;
pub use totals::kind_name;
pub use verdict::{Level, Verdict};

use forebay_analytics::histogram::Bucket;
use serde::Serialize;

use crate::record::{Exit, JobKind, Record, Run, Sample};
use crate::statistics::{Spread, ratio};

/// A study summed up.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// What it comes to, the most important first.
    pub verdicts: Vec<Verdict>,
    /// Every run, in the record's order.
    pub runs: Vec<RunSummary>,
    /// Every subject over its rounds, in the record's order; subjects without a run are left out.
    pub subjects: Vec<SubjectSummary>,
}

/// A subject over its rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SubjectSummary {
    /// Index in [`Record::subjects`].
    pub subject: usize,
    /// Its label.
    pub label: String,
    /// Rounds that count: those whose jobs all ended by themselves, or all if there is none.
    pub rounds: Vec<u32>,
    /// Rounds that do not count, because jobs were never started or ended by a signal.
    pub left_out: Vec<u32>,
    /// Where its data lie, for people.
    pub storage: String,
    /// Its figures over the rounds that count; the same figures in the same order for every subject
    /// whose runs have the same stages and steps.
    pub figures: Vec<FigureSpread>,
}

/// A figure over the rounds of a subject.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FigureSpread {
    /// What it is; its value is the median.
    pub figure: Figure,
    /// Median and spread; `None` if no round has it.
    pub spread: Option<Spread>,
}

/// Whether more is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// More is better.
    Higher,
    /// Less is better.
    Lower,
    /// Neither: it describes.
    Neither,
}

/// A figure of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Its name, stable: lower case and underscores; for figures of steps with stage and step before.
    pub key: String,
    /// Its name for people.
    pub label: String,
    /// Its unit; empty for plain numbers.
    pub unit: &'static str,
    /// Whether more is better.
    pub better: Better,
    /// Its value; `None` if the record does not carry it.
    pub value: Option<f64>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunSummary {
    /// Index in [`Record::subjects`].
    pub subject: usize,
    /// The subject's label.
    pub label: String,
    /// Number of the round, from 0.
    pub round: u32,
    /// Whether every job was started and ended by itself, well or not: an interrupted run is none.
    pub undisturbed: bool,
    /// Seconds from the start of the first stage to the end of the last.
    pub seconds: f64,
    /// All jobs.
    pub jobs: Totals,
    /// Jobs by class, in the order of the classes' names.
    pub classes: Vec<Group>,
    /// Jobs by kind: I/O, computation, memory.
    pub kinds: Vec<Group>,
    /// Jobs by logical node.
    pub nodes: Vec<Group>,
    /// What each host did, if the jobs ran on hosts of a cluster's grid.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostSummary>,
    /// How alike the nodes are, if there are several: in the stage in which they differ most, since not
    /// every node is in every stage.
    pub uniformity: Option<Uniformity>,
    /// When most jobs ran at once, stage by stage.
    pub busy: Vec<Period>,
    /// Bytes that jobs read and wrote by system calls. Nothing is sustained over stages that do different
    /// things ([`RunSummary::stages_alike`]): each of them has a rate of its own.
    pub file: Flow,
    /// Bytes read from and written to devices; `None` if no devices were watched.
    pub device: Option<Flow>,
    /// Whether all stages run the same classes of jobs.
    pub stages_alike: bool,
    /// Sustained MB/s at the file level for each physical core.
    pub mb_per_second_per_core: Option<f64>,
    /// Part of the bytes read at the file level that no device had to read; see the definitions.
    pub cache_hit_ratio: Option<f64>,
    /// What the devices' requests took.
    pub latency: DeviceLatency,
    /// Mean request sizes by how often.
    pub request_sizes: Vec<SizeBucket>,
    /// What the processors did in the busy periods; `None` without samples there.
    pub processor: Option<Processor>,
    /// Part of the processors' time that programs other than the jobs used.
    pub foreign_share: Option<f64>,
    /// Times of calls that steps measured.
    pub call_latencies: Vec<CallLatency>,
    /// Figures that steps measured.
    pub step_figures: Vec<StepFigure>,
    /// The stages.
    pub stages: Vec<StageSummary>,
}

/// Sums over jobs. Jobs that were never started count in [`Totals::jobs`] and nowhere else; jobs that
/// failed count with what they used.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Totals {
    /// Jobs.
    pub jobs: usize,
    /// Those that ended with an exit code or by a signal.
    pub failed: usize,
    /// Those that were never started.
    pub not_started: usize,
    /// Real times, added up.
    pub real_seconds: f64,
    /// User times, added up.
    pub user_seconds: f64,
    /// System times, added up.
    pub system_seconds: f64,
    /// Real times over jobs.
    pub real: Option<Spread>,
    /// CPU/real as the mean of the jobs' ratios.
    pub cpu_per_real_mean_of_jobs: Option<f64>,
    /// CPU/real from the sums: all processor time by all real time.
    pub cpu_per_real_of_sums: Option<f64>,
    /// Bytes read by system calls, by the jobs that know; `None` if none does.
    pub read_bytes: Option<u64>,
    /// Bytes written by system calls, by the jobs that know.
    pub written_bytes: Option<u64>,
    /// Jobs that ran and whose bytes are not known: then sums of bytes are lower bounds.
    pub bytes_unknown: usize,
    /// Part of the real time in which jobs waited for I/O, of the jobs that know.
    pub io_wait_share: Option<f64>,
    /// Part of the real time in which jobs could have run and waited for a processor, of the jobs that know.
    pub processor_wait_share: Option<f64>,
    /// Part of the real time in which those jobs neither ran nor waited for a processor: they waited for I/O,
    /// a daemon, a lock, or had nothing to do.
    pub off_processor_share: Option<f64>,
    /// The largest peak memory of a job.
    pub peak_memory_bytes: Option<u64>,
}

/// Jobs with something in common.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    /// The class, the kind or the node.
    pub name: String,
    /// The kind, for classes and kinds.
    pub kind: Option<JobKind>,
    /// Their sums.
    pub totals: Totals,
}

/// How alike nodes are: of their sums of real time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Uniformity {
    /// Seconds over nodes.
    pub real_seconds: Spread,
    /// The largest sum by the smallest; `None` if that is zero.
    pub max_per_min: Option<f64>,
    /// CPU/real (from the sums) over nodes.
    pub cpu_per_real: Option<Spread>,
}

/// From one second of the run to another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Period {
    /// When it begins.
    pub start_seconds: f64,
    /// When it ends.
    pub end_seconds: f64,
    /// The number of jobs at once that makes the plateau.
    pub plateau_jobs: usize,
    /// How it was found.
    pub basis: PeriodBasis,
}

/// How a busy period was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PeriodBasis {
    /// From the first to the last moment at the plateau.
    Plateau,
    /// There is no plateau: from the first job's start to the last job's end.
    AllJobs,
}

/// Bytes over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Flow {
    /// Samples in the busy periods; short ones at the borders of stages do not count.
    pub samples: usize,
    /// Median of the busy periods' seconds, read and written together, in MB/s.
    pub sustained_mb_per_second: Option<f64>,
    /// Median of what was read; medians of parts do not add up.
    pub sustained_read_mb_per_second: Option<f64>,
    /// Median of what was written.
    pub sustained_write_mb_per_second: Option<f64>,
    /// Rates over the seconds of the busy periods, each weighted by its length; their median is what is
    /// sustained.
    pub busy: Option<Spread>,
    /// The best second of the whole run, in MB/s.
    pub best_1_second: Option<f64>,
    /// The best ten seconds on end.
    pub best_10_seconds: Option<f64>,
    /// Bytes read in all.
    pub read_bytes: u64,
    /// Bytes written in all.
    pub written_bytes: u64,
    /// What is read of all bytes, 0 to 1.
    pub read_share: Option<f64>,
}

/// What the requests of devices took, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DeviceLatency {
    /// Mean over all read requests.
    pub read_mean_ms: Option<f64>,
    /// 95 of 100 seconds with read requests had a mean up to this.
    pub read_p95_ms: Option<f64>,
    /// Mean over all write requests.
    pub write_mean_ms: Option<f64>,
    /// 95 of 100 seconds with write requests had a mean up to this.
    pub write_p95_ms: Option<f64>,
}

/// Sizes from above half of `upto_bytes` up to and including it, or zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SizeBucket {
    /// The largest size of the bucket: zero or a power of two.
    pub upto_bytes: u64,
    /// Read calls at the file level, by the mean size of their job.
    pub file_reads: u64,
    /// Write calls at the file level, by the mean size of their job.
    pub file_writes: u64,
    /// Read requests of devices, by the mean size of their second.
    pub device_reads: u64,
    /// Write requests of devices, by the mean size of their second.
    pub device_writes: u64,
}

/// What the processors did in the busy periods: parts of all processor time, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Processor {
    /// In user mode.
    pub user: f64,
    /// In the kernel.
    pub system: f64,
    /// Idle with a request to a device under way.
    pub io_wait: f64,
    /// Idle.
    pub idle: f64,
    /// Taken by other virtual machines.
    pub steal: f64,
    /// Part of the time in which some task waited for I/O.
    pub pressure_some: Option<f64>,
    /// Part of the time in which all tasks that were not idle waited for I/O.
    pub pressure_full: Option<f64>,
}

/// Times of calls that steps measured, all steps of one name in a stage together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CallLatency {
    /// The stage.
    pub stage: String,
    /// The step's name.
    pub step: String,
    /// The call: `read`, `write`, `create`, ...
    pub call: String,
    /// The distribution, in nanoseconds.
    pub buckets: Vec<Bucket>,
    /// How many calls.
    pub count: u64,
    /// Half of the calls took up to so many milliseconds (the upper bound of a bucket).
    pub p50_ms: f64,
    /// 95 of 100.
    pub p95_ms: f64,
    /// 99 of 100.
    pub p99_ms: f64,
    /// 999 of 1000.
    pub p999_ms: f64,
    /// All.
    pub max_ms: f64,
}

/// What a figure of a step counts, known by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FigureSort {
    /// Something per second (`_per_second`, `iops`): adds up over streams that run at the same time.
    Rate,
    /// A number of things (`files`, `calls`, `operations`, `bytes`): adds up over jobs.
    Count,
    /// Anything else: does not add up.
    Other,
}

/// A figure that steps measured, all steps of one name in a stage together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepFigure {
    /// The stage.
    pub stage: String,
    /// The step's name.
    pub step: String,
    /// The figure's name, with its unit.
    pub name: String,
    /// What it counts.
    pub sort: FigureSort,
    /// Over jobs; where a job has several such steps, their median.
    pub spread: Spread,
    /// The sum over jobs: of rates only if the steps ran at the same time, of counts always.
    pub sum: Option<f64>,
    /// For counts: the sum by the seconds of the stage.
    pub per_second: Option<f64>,
}

/// One stage.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageSummary {
    /// Its name.
    pub name: String,
    /// Logical nodes.
    pub nodes: u32,
    /// Sessions, where the workload has them.
    pub sessions: Option<u32>,
    /// Jobs at once on each node, at most.
    pub concurrent: u32,
    /// Its length.
    pub seconds: f64,
    /// Its jobs.
    pub jobs: Totals,
    /// When most of its jobs ran at once.
    pub busy: Option<Period>,
    /// The one rate that stands for it; `None` if it was too short to tell.
    pub rate: Option<StageRate>,
    /// What its streams were, if it is one of streams.
    pub streams: Option<Streams>,
    /// Bytes at the file level.
    pub file: Flow,
    /// Bytes at the device level.
    pub device: Option<Flow>,
    /// Jobs that succeeded, per minute.
    pub jobs_per_minute: Option<f64>,
    /// Against the first stage, where stages differ in size.
    pub scaling: Option<Scaling>,
}

/// A stage against the first one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Scaling {
    /// How many times the first stage's nodes (or sessions, or jobs at once) it has.
    pub size: f64,
    /// Sustained MB/s by the first stage's.
    pub throughput: Option<f64>,
    /// That by `size`.
    pub throughput_efficiency: Option<f64>,
    /// Jobs per minute by the first stage's.
    pub jobs: Option<f64>,
    /// That by `size`.
    pub jobs_efficiency: Option<f64>,
}

impl Summary {
    /// Sums up a study.
    #[must_use]
    pub fn of(record: &Record) -> Summary {
        let runs: Vec<RunSummary> =
            record.runs.iter().map(|run| RunSummary::of(run, record)).collect();
        let subjects: Vec<SubjectSummary> = (0..record.subjects.len())
            .filter_map(|subject| SubjectSummary::of(subject, record, &runs))
            .collect();
        let verdicts = verdict::of(record, &runs, &subjects);
        Summary { verdicts, runs, subjects }
    }

    /// Its tables, in the order in which a report shows them; tables without rows are left out.
    #[must_use]
    pub fn sheets(&self, record: &Record) -> Vec<Sheet> {
        let mut sheets = vec![
            tables::overview(self, record),
            tables::failures(record),
            tables::published(self, record),
            tables::job_totals(self),
            tables::classes(self),
            tables::kinds(self),
            tables::nodes(self, record),
            tables::hosts(self),
            tables::throughput(self),
            tables::stages(self, record),
            tables::step_figures(self),
            tables::call_latencies(self),
            tables::devices(self, record),
            tables::request_sizes(self),
            tables::processor(self),
            tables::environment(record),
        ];
        sheets.retain(|sheet| !sheet.table.rows.is_empty());
        sheets
    }
}

impl SubjectSummary {
    fn of(subject: usize, record: &Record, runs: &[RunSummary]) -> Option<SubjectSummary> {
        let of_subject: Vec<&RunSummary> =
            runs.iter().filter(|run| run.subject == subject).collect();
        let (mut counted, mut left_out): (Vec<&RunSummary>, Vec<&RunSummary>) =
            of_subject.into_iter().partition(|run| run.undisturbed);
        if counted.is_empty() {
            std::mem::swap(&mut counted, &mut left_out);
        }
        let rounds = |runs: &[&RunSummary]| runs.iter().map(|run| run.round).collect();
        Some(SubjectSummary {
            subject,
            label: counted.first()?.label.clone(),
            rounds: rounds(&counted),
            left_out: rounds(&left_out),
            storage: storage(record, subject),
            figures: figure::over_rounds(&counted),
        })
    }

    /// The figure with this key over the rounds; `None` if no round has it.
    #[must_use]
    pub fn spread(&self, key: &str) -> Option<Spread> {
        self.figures.iter().find(|spread| spread.figure.key == key)?.spread
    }
}

/// The storages of a subject for people: those that differ from the first area's.
fn storage(record: &Record, subject: usize) -> String {
    let Some(subject) = record.subjects.get(subject) else { return String::new() };
    let areas = [("data", &subject.data), ("work", &subject.work), ("util", &subject.util)];
    let describe = |storage: &crate::record::Storage| {
        format!("{} ({})", storage.path.display(), storage.file_system)
    };
    if areas.iter().all(|(_, storage)| storage.mountpoint == subject.data.mountpoint) {
        return describe(&subject.data);
    }
    let each: Vec<String> =
        areas.iter().map(|(area, storage)| format!("{area} on {}", describe(storage))).collect();
    each.join(", ")
}

impl RunSummary {
    fn of(run: &Run, record: &Record) -> RunSummary {
        let stages = stage::of_run(run);
        let busy: Vec<Period> = stages.iter().filter_map(|stage| stage.busy).collect();
        let samples: Vec<&Sample> = run.samples.iter().collect();
        let file = Flow::of_jobs(&samples, &busy, run.jobs());
        let device = Flow::of_devices(&samples, &busy, &run.device_scope);
        let stages_alike = stage::alike(&run.stages);
        let kept = |flow: Flow| if stages_alike { flow } else { flow.without_sustained() };
        let (file, device) = (kept(file), device.map(kept));
        let nodes = totals::by_node(run.jobs());
        let cores = f64::from(record.cores());
        RunSummary {
            subject: run.subject,
            label: record.subjects.get(run.subject).map_or_else(
                || format!("subject {}", run.subject + 1),
                |subject| subject.label.clone(),
            ),
            round: run.round,
            undisturbed: run.jobs().all(|job| match job.exit {
                Exit::Success | Exit::Failure { .. } => true,
                Exit::Signal { .. } | Exit::NotStarted => false,
            }),
            seconds: run.seconds,
            jobs: Totals::of(run.jobs()),
            classes: totals::by_class(run.jobs()),
            kinds: totals::by_kind(run.jobs()),
            uniformity: Uniformity::of_stages(&run.stages),
            nodes,
            mb_per_second_per_core: file.sustained_mb_per_second.and_then(|mb| ratio(mb, cores)),
            cache_hit_ratio: flow::cache_hit_ratio(&file, device.as_ref()),
            latency: DeviceLatency::of(&run.samples, &run.device_scope),
            request_sizes: flow::request_sizes(run),
            processor: Processor::of(&run.samples, &busy),
            foreign_share: Processor::foreign(run, record.cpus()),
            hosts: hosts::of_run(run, record, &busy),
            stages_alike,
            call_latencies: run.stages.iter().flat_map(step_figures::call_latencies).collect(),
            step_figures: run.stages.iter().flat_map(step_figures::step_figures).collect(),
            busy,
            file,
            device,
            stages,
        }
    }

    /// Jobs that succeeded, per minute.
    #[must_use]
    pub fn jobs_per_minute(&self) -> Option<f64> {
        ratio(self.jobs.succeeded() as f64 * 60.0, self.seconds)
    }
}
