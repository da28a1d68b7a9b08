//! Charts of a run that have no time axis: sizes, latencies, shares of classes and nodes, scaling.

use forebay_base::ByteSize;
use maud::{Markup, html};

use super::page::{chart_or, gone};
use crate::chart::bars::{Extent, Group as BarGroup, Value, bars};
use crate::chart::curve::{Curve, Measured};
use crate::chart::figure::{Caption, Ink};
use crate::chart::histogram::{Distribution, Histogram, Seen, Spacing};
use crate::chart::unit::Unit;
use crate::record::Run;
use crate::summary::{CallLatency, Group, RateSource, RunSummary, SizeBucket, StageSummary};

/// Most charts of latencies; the table has all.
const LATENCY_CHARTS_MAX: usize = 8;

const HEIGHT: f64 = 150.0;

/// What streams reached by the size of their calls, and by how many there were.
#[must_use]
pub fn sweeps(stages: &[StageSummary]) -> Markup {
    let by_block = by_block(stages);
    let by_streams = by_streams(stages);
    let chart = |title: &str, note: &str, groups: &[BarGroup]| {
        (groups.len() > 1)
            .then(|| bars(&Caption::new(title, note), groups, Extent::Common))
            .flatten()
    };
    let note = "Total rate of all streams, each reading or writing its file sequentially.";
    let blocks = chart("Rate by block size", note, &by_block);
    let streams = chart("Rate by number of streams", note, &by_streams);
    html! {
        @if blocks.is_some() || streams.is_some() {
            div class="pair" {
                @if let Some(blocks) = blocks { (blocks) }
                @if let Some(streams) = streams { (streams) }
            }
        }
    }
}

/// Rates of one direction: bytes per call, streams, bytes per second, and the direction.
fn swept(stages: &[StageSummary]) -> Vec<(u64, usize, f64, &'static str)> {
    let of = |stage: &StageSummary| {
        let (rate, streams) = (stage.rate.as_ref()?, stage.streams.filter(|one| one.sequential)?);
        let one_way =
            rate.source == RateSource::Streams && ["read", "written"].contains(&rate.what);
        one_way.then_some((streams.block_bytes?, streams.count, rate.value * 1e6, rate.what))
    };
    stages.iter().filter_map(of).collect()
}

/// A group of bars for each value of `by`, in its order.
fn swept_groups<K: Ord + Copy>(
    swept: &[(u64, usize, f64, &'static str)],
    by: impl Fn(&(u64, usize, f64, &'static str)) -> K,
    label: impl Fn(K) -> String,
) -> Vec<BarGroup> {
    let mut keys: Vec<K> = swept.iter().map(&by).collect();
    keys.sort_unstable();
    keys.dedup();
    let value = |one: &(u64, usize, f64, &'static str)| Value {
        middle: one.2,
        spread: None,
        ink: if one.3 == "read" { Ink::BLUE } else { Ink::VERMILION },
        series: one.3.to_owned(),
    };
    let group = |key: K| {
        let mut ones: Vec<_> = swept.iter().filter(|one| by(one) == key).collect();
        ones.sort_by_key(|one| one.3);
        BarGroup {
            label: label(key),
            unit: Unit::BytesPerSecond,
            values: ones.into_iter().map(value).collect(),
        }
    };
    keys.into_iter().map(group).collect()
}

fn by_block(stages: &[StageSummary]) -> Vec<BarGroup> {
    let mut swept = swept(stages);
    let most = swept.iter().map(|one| one.1).max().unwrap_or(0);
    swept.retain(|one| one.1 == most);
    swept_groups(&swept, |one| one.0, |block| ByteSize(block).to_string())
}

fn by_streams(stages: &[StageSummary]) -> Vec<BarGroup> {
    let mut swept = swept(stages);
    // The size that most numbers of streams were tried with.
    let numbers = |block: u64| {
        let of_block = swept.iter().filter(|one| one.0 == block);
        of_block.map(|one| one.1).collect::<std::collections::BTreeSet<_>>().len()
    };
    let Some(block) = swept.iter().map(|one| one.0).max_by_key(|block| numbers(*block)) else {
        return Vec::new();
    };
    swept.retain(|one| one.0 == block);
    let size = ByteSize(block);
    let label = |streams: usize| match streams {
        1 => format!("1 stream of {size}"),
        _ => format!("{streams} streams of {size}"),
    };
    swept_groups(&swept, |one| one.1, label)
}

/// All charts of a run without a time axis.
#[must_use]
pub fn charts(run: &Run, summary: &RunSummary) -> Markup {
    html! {
        (sizes(&summary.request_sizes))
        (latencies(&summary.call_latencies))
        div class="pair" {
            (cpu_per_real(run))
            (groups("Real time by class", "Sum over the jobs of each class.", &summary.classes))
            @if summary.nodes.len() > 1 {
                (groups("Real time by node", "Sum over the jobs of each logical node; equal nodes should have equal sums.", &summary.nodes))
            }
        }
    }
}

fn sizes(buckets: &[SizeBucket]) -> Markup {
    type Count = fn(&SizeBucket) -> u64;
    let distribution = |label: &str, ink, count: Count| {
        let seen = buckets
            .iter()
            .map(|bucket| Seen { value: bucket.upto_bytes as f64, count: count(bucket) as f64 });
        let total: u64 = buckets.iter().map(count).sum();
        let figures = format!("{} in all", Unit::Count.show(total as f64));
        Distribution { label: label.to_owned(), ink, figures, seen: seen.collect() }
    };
    let chart = |title: &str, note: &str, reads: Count, writes: Count| {
        let series = vec![
            distribution("reads", Ink::BLUE, reads),
            distribution("writes", Ink::VERMILION, writes),
        ];
        let caption = Caption::new(title, note);
        let spacing = Spacing::Logarithmic;
        let unit = Unit::Bytes;
        let drawn = Histogram { caption, unit, spacing, height: HEIGHT, series }.draw();
        chart_or(drawn, title, "none were counted.")
    };
    html! {
        div class="pair" {
            (chart("Sizes of calls", "System calls by the mean size of their job; each bar covers sizes from half of its label up to the label.",
                |bucket| bucket.file_reads, |bucket| bucket.file_writes))
            (chart("Sizes of device requests", "Requests by the mean size of their interval.",
                |bucket| bucket.device_reads, |bucket| bucket.device_writes))
        }
    }
}

/// One chart for each step that measured calls, its calls over each other.
fn latencies(calls: &[CallLatency]) -> Markup {
    if calls.is_empty() {
        return gone("Latency of calls", "no step of this workload measures single calls.");
    }
    let mut steps: Vec<(&str, &str)> = Vec::new();
    for call in calls {
        if !steps.contains(&(&call.stage, &call.step)) {
            steps.push((&call.stage, &call.step));
        }
    }
    html! {
        div class="pair" {
            @for (stage, step) in steps.iter().take(LATENCY_CHARTS_MAX) {
                (latency(stage, step, calls))
            }
        }
        @if steps.len() > LATENCY_CHARTS_MAX {
            (gone("Latency of calls", &format!("{} more steps are in the table.", steps.len() - LATENCY_CHARTS_MAX)))
        }
    }
}

fn latency(stage: &str, step: &str, calls: &[CallLatency]) -> Markup {
    let of = calls.iter().filter(|call| call.stage == stage && call.step == step);
    let series = of.enumerate().map(|(i, call)| Distribution {
        label: call.call.clone(),
        ink: match call.call.as_str() {
            "read" => Ink::BLUE,
            "write" => Ink::VERMILION,
            _ => Ink::number(i),
        },
        figures: format!(
            "median {}, 99 % up to {}",
            Unit::Seconds.show(call.p50_ms / 1e3),
            Unit::Seconds.show(call.p99_ms / 1e3)
        ),
        seen: call
            .buckets
            .iter()
            .map(|bucket| Seen { value: bucket.upto as f64 / 1e9, count: bucket.count as f64 })
            .collect(),
    });
    let title = if stage == step {
        format!("Latency of calls: {step}")
    } else {
        format!("Latency of calls: {stage}, {step}")
    };
    let histogram = Histogram {
        caption: Caption::new(&title, ""),
        unit: Unit::Seconds,
        spacing: Spacing::Logarithmic,
        height: HEIGHT,
        series: series.collect(),
    };
    chart_or(histogram.draw(), &title, "no call was timed.")
}

/// How well the jobs' cores were fed.
fn cpu_per_real(run: &Run) -> Markup {
    let ratios = run
        .jobs()
        .filter(|job| job.usage.real_seconds > 0.0)
        .map(|job| (job.usage.user_seconds + job.usage.system_seconds) / job.usage.real_seconds);
    let seen: Vec<Seen> = ratios.map(|value| Seen { value, count: 1.0 }).collect();
    let figures = format!("{} jobs", Unit::Count.show(seen.len() as f64));
    let distribution = Distribution { label: "jobs".to_owned(), ink: Ink::BLUE, figures, seen };
    let title = "CPU/real of jobs";
    let note = "Processor time divided by real time: near 1 if the core was fed, low if it waited.";
    let histogram = Histogram {
        caption: Caption::new(title, note),
        unit: Unit::Plain,
        spacing: Spacing::Linear,
        height: HEIGHT,
        series: vec![distribution],
    };
    chart_or(histogram.draw(), title, "no job ran.")
}

fn groups(title: &str, note: &str, groups: &[Group]) -> Markup {
    let mut sorted: Vec<&Group> = groups.iter().collect();
    if groups.iter().any(|group| group.kind.is_some()) {
        sorted.sort_by(|a, b| b.totals.real_seconds.total_cmp(&a.totals.real_seconds));
    }
    let rows: Vec<BarGroup> = sorted
        .iter()
        .map(|group| BarGroup {
            label: group.name.clone(),
            unit: Unit::Seconds,
            values: vec![Value {
                middle: group.totals.real_seconds,
                spread: None,
                ink: Ink::BLUE,
                series: String::new(),
            }],
        })
        .collect();
    let drawn = bars(&Caption::new(title, note), &rows, Extent::Common);
    chart_or(drawn, title, "no job ran.")
}

/// Throughput and jobs against the size of the stages, where they differ in size.
#[must_use]
pub fn scaling(stages: &[StageSummary]) -> Markup {
    let sized: Vec<&StageSummary> = stages.iter().filter(|stage| stage.scaling.is_some()).collect();
    if sized.len() < 2 {
        return html! {};
    }
    let curve = |title: &str, unit, value: &dyn Fn(&StageSummary) -> Option<f64>| {
        let measured = sized.iter().map(|stage| Measured {
            size: stage.scaling.map_or(f64::NAN, |scaling| scaling.size),
            label: stage.name.clone(),
            value: value(stage).unwrap_or(f64::NAN),
        });
        let caption = Caption::new(title, "");
        let drawn = Curve { caption, unit, height: 220.0, measured: measured.collect() }.draw();
        chart_or(drawn, title, "fewer than two sizes were measured.")
    };
    html! {
        div class="pair" {
            (curve("Scaling of throughput", Unit::BytesPerSecond, &|stage| {
                stage.file.sustained_mb_per_second.map(|rate| rate * 1e6)
            }))
            (curve("Scaling of jobs per minute", Unit::Plain, &|stage| stage.jobs_per_minute))
        }
    }
}
