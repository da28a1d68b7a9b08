//! Charts of one run over its time: throughput, processors, jobs, devices, memory.

use maud::{Markup, html};

use super::hosts;
use super::page::{chart_or, gone};
use crate::chart::figure::{Caption, Ink};
use crate::chart::gantt::{Bar, Gantt, Outcome};
use crate::chart::time::{Band, Rule, Series, TimeAxis, TimeChart, Zero};
use crate::chart::unit::Unit;
use crate::record::{DeviceScope, Exit, JobKind, JobRecord, Run, Sample};
use crate::statistics::{weighted_mean, weighted_median};
use crate::summary::RunSummary;

/// Height of charts in pixels.
const TALL: f64 = 170.0;
const LOW: f64 = 110.0;

/// Seconds with less than so many bytes read say nothing about the cache.
const READ_MIN_BYTES: u64 = 1_000_000;

/// A run as it is drawn.
pub struct Timeline<'a> {
    run: &'a Run,
    summary: &'a RunSummary,
    memory_bytes: u64,
    axis: TimeAxis,
}

impl<'a> Timeline<'a> {
    /// The run with what it comes to.
    #[must_use]
    pub fn new(run: &'a Run, summary: &'a RunSummary, memory_bytes: u64) -> Timeline<'a> {
        let sampled = run.samples.last().map_or(0.0, |sample| sample.at_seconds);
        let bands = run.stages.iter().map(|stage| Band {
            label: stage.name.clone(),
            start: stage.start_seconds,
            end: stage.end_seconds,
        });
        let axis =
            TimeAxis { end: run.seconds.max(sampled), bands: bands.collect(), zero: Zero::Start };
        Timeline { run, summary, memory_bytes, axis }
    }

    /// All charts over time.
    #[must_use]
    pub fn charts(&self) -> Markup {
        html! {
            (self.stages())
            @if self.run.samples.is_empty() {
                (gone("Throughput, processors, devices and memory", "the run has no samples."))
            } @else {
                (self.throughput())
                (self.processors())
                (hosts::charts(self.run, &self.axis))
            }
            (self.jobs())
            @if !self.run.samples.is_empty() {
                (self.requests())
                (self.memory())
                (self.cache())
                (self.pressure())
            }
        }
    }

    fn stages(&self) -> Markup {
        html! {
            @if self.axis.bands.len() > 1 && self.axis.numbered() {
                ol class="stages" { @for band in &self.axis.bands { li { (band.label) } } }
            }
        }
    }

    fn chart(&self, title: &str, note: &str, unit: Unit, series: Vec<Series>) -> TimeChart<'_> {
        let caption = Caption::new(title, note);
        TimeChart { caption, unit, axis: &self.axis, height: TALL, series, rules: Vec::new() }
    }

    /// A value of every sample, in the middle of its interval; before a hole in the samples stands a gap.
    fn points(&self, value: impl Fn(&Sample) -> Option<f64>) -> Vec<(f64, f64)> {
        let mut points = Vec::with_capacity(self.run.samples.len());
        let mut ended = 0.0;
        for sample in &self.run.samples {
            let start = sample.at_seconds - sample.seconds;
            if start > ended + 1.5 * self.run.interval_seconds.max(sample.seconds) {
                points.push(((ended + start) / 2.0, f64::NAN));
            }
            ended = sample.at_seconds;
            points.push((
                sample.at_seconds - sample.seconds / 2.0,
                value(sample).unwrap_or(f64::NAN),
            ));
        }
        points
    }

    /// Something per second, with median over the busy periods and the highest second.
    fn rate(&self, label: &str, ink: Ink, unit: Unit, count: impl Fn(&Sample) -> f64) -> Series {
        let per_second =
            |sample: &Sample| (sample.seconds > 0.0).then(|| count(sample) / sample.seconds);
        self.series(label, ink, unit, per_second)
    }

    fn series(
        &self,
        label: &str,
        ink: Ink,
        unit: Unit,
        value: impl Fn(&Sample) -> Option<f64>,
    ) -> Series {
        let points = self.points(value);
        let weights = self.weights();
        // A median over stages that do different things is nobody's.
        let counted = if self.summary.stages_alike { &weights[..] } else { &[] };
        let figures = figures_of(&points, counted, &self.summary.busy, unit);
        Series { label: label.to_owned(), ink, figures, points }
    }

    /// The length of every sample, by its middle.
    fn weights(&self) -> Vec<(f64, f64)> {
        self.points(|sample| Some(sample.seconds))
    }

    fn throughput(&self) -> Markup {
        let rates = Unit::BytesPerSecond;
        let file = vec![
            self.rate("read", Ink::BLUE, rates, |sample| sample.file_read_bytes as f64),
            self.rate("written", Ink::VERMILION, rates, |sample| sample.file_written_bytes as f64),
        ];
        let note = "Bytes that the jobs read and wrote by system calls. Medians are over the busy periods.";
        let file = self.chart("Throughput at the file level", note, rates, file).lines();
        let scope = match &self.run.device_scope {
            DeviceScope::Devices(names) => {
                format!("Bytes that went from and to {}.", names.join(", "))
            }
            DeviceScope::AllDisks => {
                "Bytes of all disks of the machine, because it is not known which \
                of them lie below the storage."
                    .to_owned()
            }
            DeviceScope::None => String::new(),
        };
        let title = "Throughput at the devices";
        let device = if self.run.device_scope == DeviceScope::None {
            gone(title, "there are no block devices to watch below this storage.")
        } else {
            let device = vec![
                self.rate("read", Ink::BLUE, rates, |sample| sample.device_read_bytes as f64),
                self.rate("written", Ink::VERMILION, rates, |s| s.device_written_bytes as f64),
            ];
            chart_or(self.chart(title, &scope, rates, device).lines(), title, NOTHING)
        };
        html! { (chart_or(file, "Throughput at the file level", NOTHING)) (device) }
    }

    fn processors(&self) -> Markup {
        let part = |label: &str, ink, value: fn(&Sample) -> f64| {
            let points = self.points(|sample| Some(value(sample)));
            let inside = within(&points, &self.weights(), &self.summary.busy);
            let mean = weighted_mean(inside);
            let figures =
                mean.map_or(String::new(), |mean| format!("mean {}", Unit::Share.show(mean)));
            Series { label: label.to_owned(), ink, figures, points }
        };
        let mut parts = vec![
            part("user", Ink::BLUE, |sample| sample.cpu_user),
            part("system", Ink::SKY, |sample| sample.cpu_system),
            part("waiting for I/O", Ink::VERMILION, |sample| sample.cpu_io_wait),
        ];
        if self.run.samples.iter().any(|sample| sample.cpu_steal >= 0.001) {
            parts.push(part("stolen", Ink::PURPLE, |sample| sample.cpu_steal));
        }
        parts.push(part("idle", Ink("idle"), |sample| sample.cpu_idle));
        let note = "Fractions of the time of all processors. Means are over the busy periods.";
        let chart = self.chart("Processors", note, Unit::Share, parts).stack();
        chart_or(chart, "Processors", NOTHING)
    }

    fn jobs(&self) -> Markup {
        let count = |label: &str, ink, value: fn(&Sample) -> u32| {
            let points = self.points(|sample| Some(f64::from(value(sample))));
            let most = points.iter().map(|point| point.1).fold(0.0, f64::max);
            let figures = format!("at most {}", Unit::Count.show(most));
            Series { label: label.to_owned(), ink, figures, points }
        };
        let counts = vec![
            count("running", Ink::BLUE, |sample| sample.jobs_running),
            count("waiting", Ink::ORANGE, |sample| sample.jobs_waiting),
        ];
        let chart = self.chart("Jobs running and waiting", "", Unit::Count, counts);
        let counts = TimeChart { height: LOW, ..chart }.stack();
        html! {
            @if let Some(counts) = counts { (counts) }
            (chart_or(self.gantt(), "Every job over time", "no job was started."))
        }
    }

    /// Every job that was started, coloured by class as far as there are colours, else by kind.
    fn gantt(&self) -> Option<Markup> {
        let started = || self.run.jobs().filter(|job| job.start_seconds.is_some());
        let mut groups: Vec<String> = Vec::new();
        for job in started() {
            if !groups.contains(&job.class) {
                groups.push(job.class.clone());
            }
        }
        let by_class = groups.len() <= Ink::COUNT;
        if by_class {
            groups.sort();
        } else {
            groups = KINDS.iter().map(|kind| kind_name(*kind).to_owned()).collect();
        }
        let place = |job: &JobRecord| {
            let name = if by_class { job.class.as_str() } else { kind_name(job.kind) };
            groups.iter().position(|group| group == name).unwrap_or(0)
        };
        let mut bars: Vec<Bar> = started().map(|job| self.bar(job, place(job))).collect();
        bars.sort_by(|a, b| a.start.total_cmp(&b.start).then(a.end.total_cmp(&b.end)));
        let by = if by_class { "by class" } else { "by the resource that its class needs most" };
        let mut note =
            format!("One bar for each job, in the order of their starts, coloured {by}.");
        if bars.iter().any(|bar| bar.start - bar.due > self.axis.end / 200.0) {
            note += " A thin line before a bar shows how long the job waited for its start.";
        }
        let missing = self.run.jobs().count() - bars.len();
        if missing > 0 {
            note += &format!(" {missing} jobs were never started.");
        }
        let caption = Caption::new("Every job over time", &note);
        Gantt { caption, axis: &self.axis, groups, bars }.draw()
    }

    fn bar(&self, job: &JobRecord, group: usize) -> Bar {
        let start = job.start_seconds.unwrap_or(job.due_seconds);
        let outcome = match job.exit {
            Exit::Success => Outcome::Well,
            Exit::Failure { .. } | Exit::Signal { .. } | Exit::NotStarted => Outcome::Failed,
        };
        let end = job.end_seconds.unwrap_or(self.axis.end);
        Bar { name: job.name.clone(), group, due: job.due_seconds, start, end, outcome }
    }

    fn requests(&self) -> Markup {
        if self.run.device_scope == DeviceScope::None {
            return gone(
                "Requests of devices",
                "there are no block devices to watch below this storage.",
            );
        }
        let counts = vec![
            self.rate("read", Ink::BLUE, Unit::PerSecond, |sample| sample.device_reads as f64),
            self.rate("written", Ink::VERMILION, Unit::PerSecond, |s| s.device_writes as f64),
        ];
        let mean = |sum: f64, count: u64| (count > 0).then(|| sum / count as f64);
        let times = vec![
            self.series("read", Ink::BLUE, Unit::Seconds, |sample| {
                mean(sample.device_read_seconds, sample.device_reads)
            }),
            self.series("write", Ink::VERMILION, Unit::Seconds, |sample| {
                mean(sample.device_write_seconds, sample.device_writes)
            }),
        ];
        let busy =
            vec![self.series("busiest device", Ink::BLUE, Unit::Share, |s| Some(s.device_busy))];
        let low = |chart: TimeChart<'_>| TimeChart { height: LOW, ..chart }.lines();
        let none = "no request reached a device.";
        let times_note =
            "Mean over the requests of each interval; gaps mark intervals without requests.";
        html! {
            (chart_or(low(self.chart("Device requests", "", Unit::PerSecond, counts)), "Device requests", none))
            (chart_or(low(self.chart("Device latency", times_note, Unit::Seconds, times)), "Device latency", none))
            (chart_or(low(self.chart("Devices in use", "Fraction of the time with a request in progress.", Unit::Share, busy)), "Devices in use", none))
        }
    }

    fn memory(&self) -> Markup {
        let size = |label: &str, ink, value: fn(&Sample) -> u64| {
            self.series(label, ink, Unit::Bytes, |sample| Some(value(sample) as f64))
        };
        let dirty = vec![
            size("dirty", Ink::VERMILION, |sample| sample.dirty_bytes),
            size("under way to devices", Ink::SKY, |sample| sample.writeback_bytes),
        ];
        let cached = vec![
            size("page cache", Ink::BLUE, |sample| sample.cached_bytes),
            size("available", Ink::GREEN, |sample| sample.available_bytes),
        ];
        let note = "Page cache with changes that have not reached a device.";
        let dirty =
            TimeChart { height: LOW, ..self.chart("Dirty memory", note, Unit::Bytes, dirty) };
        let memory = self.memory_bytes as f64;
        let rules =
            vec![Rule { at: memory, label: format!("memory {}", Unit::Bytes.show(memory)) }];
        let cached = self.chart("Page cache and available memory", "", Unit::Bytes, cached);
        let cached = TimeChart { height: LOW, rules, ..cached };
        html! {
            (chart_or(dirty.lines(), "Dirty memory", NOTHING))
            (chart_or(cached.lines(), "Page cache and available memory", NOTHING))
        }
    }

    fn cache(&self) -> Markup {
        let title = "Reads served by the page cache";
        if self.run.device_scope == DeviceScope::None {
            return gone(title, "the bytes read by devices are not known.");
        }
        let hit = self.series("from the cache", Ink::GREEN, Unit::Share, |sample| {
            (sample.file_read_bytes >= READ_MIN_BYTES).then(|| {
                (1.0 - sample.device_read_bytes as f64 / sample.file_read_bytes as f64).max(0.0)
            })
        });
        let note = "Fraction of the bytes read at the file level that no device read in the same interval; \
            read-ahead counts early, and other programs count too.";
        let chart = TimeChart { height: LOW, ..self.chart(title, note, Unit::Share, vec![hit]) };
        chart_or(chart.lines(), title, "no interval read a megabyte or more.")
    }

    fn pressure(&self) -> Markup {
        let known = |value: fn(&Sample) -> Option<f64>, label: &str, ink| {
            self.series(label, ink, Unit::Share, value)
        };
        let series = vec![
            known(|sample| sample.pressure_io_some, "some task waited", Ink::ORANGE),
            known(|sample| sample.pressure_io_full, "all tasks waited", Ink::VERMILION),
        ];
        let note = "Fraction of the time in which tasks were held up by I/O, as reported by the kernel (PSI).";
        let chart = self.chart("I/O pressure", note, Unit::Share, series);
        let chart = TimeChart { height: LOW, ..chart }.lines();
        chart_or(chart, "I/O pressure", "the kernel does not report it.")
    }
}

const NOTHING: &str = "the samples contain no values to draw.";

const KINDS: [JobKind; 3] = [JobKind::Io, JobKind::Computation, JobKind::Memory];

/// The kind for people.
#[must_use]
pub fn kind_name(kind: JobKind) -> &'static str {
    match kind {
        JobKind::Io => "input and output",
        JobKind::Computation => "computation",
        JobKind::Memory => "memory",
    }
}

/// The values in the busy periods with their weights; all if there are no such periods. The same seconds
/// as those of tables.
fn within(
    points: &[(f64, f64)],
    weights: &[(f64, f64)],
    busy: &[crate::summary::Period],
) -> Vec<(f64, f64)> {
    let inside = |at: f64| busy.iter().any(|p| (p.start_seconds..p.end_seconds).contains(&at));
    let finite = || {
        let both = points.iter().zip(weights);
        both.filter(|(point, _)| point.1.is_finite())
            .map(|(point, weight)| (point.0, point.1, weight.1))
    };
    let of = |(_, value, weight): (f64, f64, f64)| (value, weight);
    let values: Vec<(f64, f64)> = finite().filter(|point| inside(point.0)).map(of).collect();
    if values.is_empty() { finite().map(of).collect() } else { values }
}

fn figures_of(
    points: &[(f64, f64)],
    weights: &[(f64, f64)],
    busy: &[crate::summary::Period],
    unit: Unit,
) -> String {
    let highest = points.iter().map(|point| point.1).fold(f64::NAN, f64::max);
    match weighted_median(within(points, weights, busy)) {
        Some(middle) => format!("median {}, peak {}", unit.show(middle), unit.show(highest)),
        None if highest.is_finite() => format!("peak {}", unit.show(highest)),
        None => String::new(),
    }
}
