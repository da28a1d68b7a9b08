//! Charts of the hosts of a run, and of the network.

use maud::{Markup, html};

use crate::chart::figure::{Caption, Ink};
use crate::chart::time::{Series, TimeAxis, TimeChart};
use crate::chart::unit::Unit;
use crate::record::{HostRun, Run, Sample};

const HEIGHT: f64 = 130.0;

/// Hosts that are drawn; more cannot be told apart.
const HOSTS_MAX: usize = Ink::COUNT;

/// The network of the run, and what each host did, as far as that is known.
pub fn charts(run: &Run, axis: &TimeAxis) -> Markup {
    let per_second = |value: fn(&Sample) -> Option<u64>| {
        move |sample: &Sample| Some(value(sample)? as f64 / sample.seconds.max(f64::MIN_POSITIVE))
    };
    let received = per_second(|sample| sample.network_received_bytes);
    let sent = per_second(|sample| sample.network_sent_bytes);
    let file = per_second(|sample| Some(sample.file_read_bytes + sample.file_written_bytes));
    let busy = |sample: &Sample| Some(sample.cpu_user + sample.cpu_system);
    let rates = Unit::BytesPerSecond;
    let network = vec![
        series("received", Ink::BLUE, rates, &run.samples, &received),
        series("sent", Ink::VERMILION, rates, &run.samples, &sent),
    ];
    let hosts = |title: &str, note: &str, unit, value: &dyn Fn(&Sample) -> Option<f64>| {
        chart(axis, title, &format!("{note}{}", omitted(run)), unit, by_host(run, unit, value))
    };
    html! {
        (chart(axis, "Network", "Bytes of all programs over the network interfaces.", rates, network))
        @if !run.hosts.is_empty() {
            (hosts("Throughput by host", "Bytes that the jobs of each host read and wrote by system calls.", rates, &file))
            (hosts("Processors by host", "Fraction of the processors' time in user mode and in the kernel.", Unit::Share, &busy))
            (hosts("Received by host", "Bytes that each host received over the network.", rates, &received))
            (hosts("Sent by host", "Bytes that each host sent over the network.", rates, &sent))
        }
    }
}

fn omitted(run: &Run) -> String {
    match run.hosts.len().checked_sub(HOSTS_MAX) {
        Some(more) if more > 0 => format!(" {more} more hosts are in the table."),
        Some(_) | None => String::new(),
    }
}

/// Nothing if no value is known.
fn chart(axis: &TimeAxis, title: &str, note: &str, unit: Unit, series: Vec<Series>) -> Markup {
    let known = series.iter().flat_map(|one| &one.points).any(|point| point.1.is_finite());
    let caption = Caption::new(title, note);
    let chart = TimeChart { caption, unit, axis, height: HEIGHT, series, rules: Vec::new() };
    let drawn = if known { chart.lines() } else { None };
    html! { @if let Some(drawn) = drawn { (drawn) } }
}

fn by_host(run: &Run, unit: Unit, value: &dyn Fn(&Sample) -> Option<f64>) -> Vec<Series> {
    let drawn = run.hosts.iter().take(HOSTS_MAX).enumerate();
    drawn
        .map(|(place, host): (usize, &HostRun)| {
            series(&host.host, Ink::number(place), unit, &host.samples, value)
        })
        .collect()
}

fn series(
    label: &str,
    ink: Ink,
    unit: Unit,
    samples: &[Sample],
    value: &dyn Fn(&Sample) -> Option<f64>,
) -> Series {
    let middle = |sample: &Sample| sample.at_seconds - sample.seconds / 2.0;
    let points: Vec<(f64, f64)> =
        samples.iter().map(|sample| (middle(sample), value(sample).unwrap_or(f64::NAN))).collect();
    let known = || points.iter().map(|point| point.1).filter(|value| value.is_finite());
    let (count, sum) = (known().count(), known().sum::<f64>());
    let figures = if count == 0 {
        String::new()
    } else {
        let peak = known().fold(0.0, f64::max);
        format!("mean {}, peak {}", unit.show(sum / count as f64), unit.show(peak))
    };
    Series { label: label.to_owned(), ink, figures, points }
}
