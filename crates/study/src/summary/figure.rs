//! The figures of a run that are compared over rounds, subjects and studies, in one table.

use super::{Better, Figure, FigureSort, FigureSpread, RateSource, RunSummary, Totals};
use crate::statistics::Spread;

/// A figure that every run has.
struct Definition {
    key: &'static str,
    label: &'static str,
    unit: &'static str,
    better: Better,
    of: fn(&RunSummary) -> Option<f64>,
}

macro_rules! figures {
    ($($key:literal, $label:literal, $unit:literal, $better:ident, $of:expr;)+) => {
        &[$(Definition {
            key: $key,
            label: $label,
            unit: $unit,
            better: Better::$better,
            of: $of,
        }),+]
    };
}

/// The figures of whole runs, in the order of tables.
const DEFINITIONS: &[Definition] = figures! {
    "wall_seconds", "wall time", "s", Lower, |run| Some(run.seconds);
    "jobs", "jobs", "", Neither, |run| Some(run.jobs.jobs as f64);
    "failed_jobs", "failed jobs", "", Lower, |run| Some(run.jobs.failed as f64);
    "jobs_per_minute", "successful jobs per minute", "1/min", Higher, RunSummary::jobs_per_minute;
    "real_minutes", "sum of real times", "min", Lower, |run| minutes(&run.jobs, run.jobs.real_seconds);
    "user_minutes", "sum of user times", "min", Neither, |run| minutes(&run.jobs, run.jobs.user_seconds);
    "system_minutes", "sum of system times", "min", Lower,
        |run| minutes(&run.jobs, run.jobs.system_seconds);
    "cpu_per_real_of_sums", "CPU/real from the sums", "", Higher, |run| run.jobs.cpu_per_real_of_sums;
    "cpu_per_real_mean_of_jobs", "CPU/real, mean of the jobs' ratios", "", Higher,
        |run| run.jobs.cpu_per_real_mean_of_jobs;
    "io_wait_percent", "real time waiting for I/O", "%", Lower, |run| percent(run.jobs.io_wait_share);
    "processor_wait_percent", "real time waiting for a processor", "%", Lower,
        |run| percent(run.jobs.processor_wait_share);
    "off_processor_percent", "real time neither running nor waiting for a processor", "%", Lower,
        |run| percent(run.jobs.off_processor_share);
    "node_max_per_min", "real time of nodes, max/min", "", Lower, |run| run.uniformity?.max_per_min;
    "file_sustained_mb_per_second", "file level, sustained", "MB/s", Higher,
        |run| run.file.sustained_mb_per_second;
    "file_best_1_second", "file level, best second", "MB/s", Higher, |run| run.file.best_1_second;
    "file_best_10_seconds", "file level, best 10 consecutive seconds", "MB/s", Higher,
        |run| run.file.best_10_seconds;
    "mb_per_second_per_core", "sustained per physical core", "MB/s", Higher,
        |run| run.mb_per_second_per_core;
    "file_read_gb", "file level, read", "GB", Neither, |run| gigabytes(run.file.read_bytes);
    "file_written_gb", "file level, written", "GB", Neither, |run| gigabytes(run.file.written_bytes);
    "file_read_percent", "file level, read share", "%", Neither,
        |run| percent(run.file.read_share);
    "device_sustained_mb_per_second", "devices, sustained", "MB/s", Neither,
        |run| run.device.as_ref()?.sustained_mb_per_second;
    "device_best_1_second", "devices, best second", "MB/s", Neither,
        |run| run.device.as_ref()?.best_1_second;
    "device_best_10_seconds", "devices, best 10 consecutive seconds", "MB/s", Neither,
        |run| run.device.as_ref()?.best_10_seconds;
    "device_read_gb", "devices, read", "GB", Neither,
        |run| gigabytes(run.device.as_ref()?.read_bytes);
    "device_written_gb", "devices, written", "GB", Neither,
        |run| gigabytes(run.device.as_ref()?.written_bytes);
    "cache_hit_percent", "bytes read that did not come from devices", "%", Neither,
        |run| percent(run.cache_hit_ratio);
    "device_read_ms", "device read latency, mean", "ms", Lower, |run| run.latency.read_mean_ms;
    "device_read_p95_ms", "device read latency, p95 of 1 s means", "ms", Lower,
        |run| run.latency.read_p95_ms;
    "device_write_ms", "device write latency, mean", "ms", Lower, |run| run.latency.write_mean_ms;
    "device_write_p95_ms", "device write latency, p95 of 1 s means", "ms", Lower,
        |run| run.latency.write_p95_ms;
    "cpu_user_percent", "CPU user", "%", Neither, |run| percent(Some(run.processor?.user));
    "cpu_system_percent", "CPU system", "%", Neither,
        |run| percent(Some(run.processor?.system));
    "cpu_io_wait_percent", "CPU I/O wait", "%", Neither,
        |run| percent(Some(run.processor?.io_wait));
    "cpu_idle_percent", "CPU idle", "%", Neither, |run| percent(Some(run.processor?.idle));
    "cpu_steal_percent", "CPU steal", "%", Neither,
        |run| percent(Some(run.processor?.steal));
    "foreign_cpu_percent", "CPU used by programs other than the jobs", "%", Neither,
        |run| percent(run.foreign_share);
    "pressure_io_some_percent", "time in which some task waited for I/O", "%", Neither,
        |run| percent(run.processor?.pressure_some);
    "pressure_io_full_percent", "time in which all tasks waited for I/O", "%", Neither,
        |run| percent(run.processor?.pressure_full);
};

/// Whether every run has a figure with this key.
#[cfg(test)]
pub(super) fn is_known(key: &str) -> bool {
    DEFINITIONS.iter().any(|definition| definition.key == key)
}

fn minutes(jobs: &Totals, seconds: f64) -> Option<f64> {
    (jobs.ran() > 0).then_some(seconds / 60.0)
}

fn percent(share: Option<f64>) -> Option<f64> {
    share.map(|share| share * 100.0)
}

fn gigabytes(bytes: u64) -> Option<f64> {
    Some(bytes as f64 / 1e9)
}

impl Figure {
    /// Whether it is one of a stage or a step, and not of the run as a whole.
    #[must_use]
    pub fn is_of_part(&self) -> bool {
        self.key.contains('/')
    }
}

impl RunSummary {
    /// Its figures: those that every run has, then the real time of a job of each class, then those of
    /// stages if there are several, then what steps measured.
    #[must_use]
    pub fn figures(&self) -> Vec<Figure> {
        let whole = DEFINITIONS.iter().map(|definition| Figure {
            key: definition.key.to_owned(),
            label: definition.label.to_owned(),
            unit: definition.unit,
            better: definition.better,
            value: (definition.of)(self),
        });
        let mut figures: Vec<Figure> = whole.collect();
        self.push_classes(&mut figures);
        if self.stages.len() > 1 {
            self.push_stages(&mut figures);
        }
        self.push_steps(&mut figures);
        figures
    }

    /// The real time of a job of each class: what users of a program see.
    fn push_classes(&self, figures: &mut Vec<Figure>) {
        for class in &self.classes {
            figures.push(Figure {
                key: format!("class/{}/real_seconds", class.name),
                label: format!("{}: real time of a job", class.name),
                unit: "s",
                better: Better::Lower,
                value: class.totals.real.map(|real| real.median),
            });
        }
    }

    fn push_stages(&self, figures: &mut Vec<Figure>) {
        for stage in &self.stages {
            let mut push = |key: &str, label: &str, unit, better, value| {
                let (key, label) =
                    (format!("{}/{key}", stage.name), format!("{}: {label}", stage.name));
                figures.push(Figure { key, label, unit, better, value });
            };
            // How long streams took for their bytes says less than the rate that they measured.
            if let Some(rate) = stage.rate.as_ref().filter(|r| r.source == RateSource::Streams) {
                let label = format!("{} by all streams", rate.what);
                push("rate", &label, rate.unit, Better::Higher, Some(rate.value));
                continue;
            }
            let sustained = stage.file.sustained_mb_per_second;
            push("wall_seconds", "wall time", "s", Better::Lower, Some(stage.seconds));
            push("file_sustained_mb_per_second", "sustained", "MB/s", Better::Higher, sustained);
            push("jobs_per_minute", "jobs", "1/min", Better::Higher, stage.jobs_per_minute);
        }
    }

    fn push_steps(&self, figures: &mut Vec<Figure>) {
        for step in &self.step_figures {
            let (value, better) = match step.sort {
                FigureSort::Rate => (step.sum.unwrap_or(step.spread.median), Better::Higher),
                FigureSort::Count | FigureSort::Other => continue,
            };
            let all = if step.sum.is_some() { "all jobs" } else { "median of jobs" };
            figures.push(Figure {
                key: format!("{}/{}/{}", step.stage, step.step, step.name),
                label: format!("{}: {}, {}, {all}", step.stage, step.step, step.name),
                unit: "",
                better,
                value: Some(value),
            });
        }
        for step in &self.step_figures {
            if let Some(per_second) = step.per_second {
                figures.push(Figure {
                    key: format!("{}/{}/{}_per_second_of_stage", step.stage, step.step, step.name),
                    label: format!("{}: {}, {} per second", step.stage, step.step, step.name),
                    // The figure's name says of what.
                    unit: if step.name.ends_with("bytes") { "bytes/s" } else { "1/s" },
                    better: Better::Higher,
                    value: Some(per_second),
                });
            }
        }
        for calls in &self.call_latencies {
            for (part, value) in [("p50", calls.p50_ms), ("p99", calls.p99_ms)] {
                figures.push(Figure {
                    key: format!("{}/{}/{}_{part}_ms", calls.stage, calls.step, calls.call),
                    label: format!("{}: {}, {} {part}", calls.stage, calls.step, calls.call),
                    unit: "ms",
                    better: Better::Lower,
                    value: Some(value),
                });
            }
        }
    }
}

/// Every figure of `runs` over them, in the order in which they appear first.
pub(super) fn over_rounds(runs: &[&RunSummary]) -> Vec<FigureSpread> {
    let by_run: Vec<Vec<Figure>> = runs.iter().map(|run| run.figures()).collect();
    let mut figures: Vec<FigureSpread> = Vec::new();
    for figure in by_run.iter().flatten() {
        if figures.iter().any(|known| known.figure.key == figure.key) {
            continue;
        }
        let same = by_run.iter().filter_map(|of_run| {
            of_run.iter().find(|other| other.key == figure.key).and_then(|other| other.value)
        });
        let spread = Spread::of(same);
        let value = spread.map(|spread| spread.median);
        figures.push(FigureSpread { figure: Figure { value, ..figure.clone() }, spread });
    }
    figures
}
