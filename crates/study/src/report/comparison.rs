//! Studies or storages side by side: what it comes to, paired bars, tables of ratios.

use maud::{Markup, html};

use super::overview::{definitions, standing};
use super::page::{Head, Section, Standing, chart_or, page, shell_line, verdicts};
use super::{environment, figures, sheet};
use crate::chart::bars::{Extent, Group, Value, bars};
use crate::chart::figure::{Caption, Ink};
use crate::chart::unit::Unit;
use crate::compare::{Compared, Comparison};
use crate::error::Result;
use crate::record::Record;
use crate::summary::{Better, Summary};

/// Most figures in a chart; tables have all.
const DRAWN_MAX: usize = 16;

/// The page that shows studies side by side.
///
/// # Errors
/// [`Error::Incomparable`](crate::Error::Incomparable) if there are fewer than two sides or workloads
/// differ.
pub fn comparison(records: &[(String, Record)]) -> Result<Markup> {
    let named: Vec<(&str, &Record)> =
        records.iter().map(|(label, record)| (label.as_str(), record)).collect();
    let compared = Comparison::of_studies(&named)?;
    let each = |show: &dyn Fn(&Record) -> Markup| {
        html! {
            @for (label, record) in records { h3 class="subject" { (label) } (show(record)) }
        }
    };
    let section = |name, title, body| Section { name, title, body };
    let sections = [
        section("verdict", "Verdict", verdicts(&compared.verdicts)),
        section("charts", "Charts", charts(&compared)),
        section(
            "tables",
            "Tables",
            html! {
                @for one in &compared.sheets() { (sheet::sheet(one)) }
            },
        ),
        section(
            "studies",
            "The individual studies",
            each(&|record| {
                let summary = Summary::of(record);
                html! { (verdicts(&summary.verdicts)) div class="apart" {} (figures::key_figures(&summary)) }
            }),
        ),
        section("environment", "Environments", each(&environment::environment)),
        section("notes", "Definitions", definitions()),
        section(
            "repeat",
            "Run them again",
            each(&|record| {
                html! {
                    pre class="command" { (shell_line(&record.command)) }
                }
            }),
        ),
    ];
    Ok(page(&head(records), &sections))
}

fn head(records: &[(String, Record)]) -> Head {
    let labels: Vec<&str> = records.iter().map(|(label, _)| label.as_str()).collect();
    let reasons: Vec<String> = records
        .iter()
        .filter_map(|(label, record)| match standing(record) {
            Standing::Complete => None,
            Standing::Partial(reasons) => Some(format!("{label}: {}", reasons.join(" "))),
        })
        .collect();
    let told = |(label, record): &(String, Record)| {
        let workload = &record.workload;
        format!("{label}: {}, scale {}, started {}", workload.name, workload.scale, record.started)
    };
    Head {
        kicker: "Forebay comparison".to_owned(),
        title: listed(&labels),
        under: records.iter().map(told).collect(),
        standing: if reasons.is_empty() { Standing::Complete } else { Standing::Partial(reasons) },
    }
}

/// `a`, `a and b`, `a, b and c`.
fn listed(labels: &[&str]) -> String {
    match labels {
        [others @ .., last] if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        _ => labels.concat(),
    }
}

/// The storages of one study side by side.
#[must_use]
pub fn storages(compared: &Comparison) -> Markup {
    html! {
        (verdicts(&compared.verdicts))
        div class="apart" {}
        (charts(compared))
        @for one in &compared.sheets() { (sheet::sheet(one)) }
    }
}

/// Paired bars of what has a better and a worse: of the whole runs, then of stages and steps.
fn charts(compared: &Comparison) -> Markup {
    let chart = |title: &str, keep: fn(&Compared) -> bool| {
        let groups: Vec<Group> = compared
            .figures
            .iter()
            .filter(|one| one.figure.better != Better::Neither && keep(one))
            .map(|one| group(one, compared))
            .filter(|group| {
                group.values.iter().filter(|value| value.middle.is_finite()).count() > 1
            })
            .filter(|group| group.values.iter().any(|value| value.middle > 0.0))
            .collect();
        let mut note =
            "Medians over rounds; whiskers from the least to the greatest. Each figure has \
            its own scale; ↑ more is better, ↓ less is better."
                .to_owned();
        if groups.len() > DRAWN_MAX {
            note += &format!(" {} more figures are in the table.", groups.len() - DRAWN_MAX);
        }
        bars(&Caption::new(title, &note), &groups[..groups.len().min(DRAWN_MAX)], Extent::Own)
    };
    let whole = chart("Side by side", |one| !one.figure.is_of_part());
    let parts = chart("Stages and steps side by side", |one| one.figure.is_of_part());
    html! {
        (chart_or(whole, "Side by side", "no figure was measured on more than one side."))
        @if let Some(parts) = parts { (parts) }
    }
}

fn group(one: &Compared, compared: &Comparison) -> Group {
    let (factor, unit) = match unit_of(one.figure.unit) {
        (factor, Unit::Plain) if counts(one) => (factor, Unit::Count),
        other => other,
    };
    let values =
        one.spreads.iter().zip(&compared.sides).enumerate().map(|(i, (spread, side))| Value {
            middle: spread.map_or(f64::NAN, |spread| spread.median * factor),
            spread: spread.map(|spread| (spread.min * factor, spread.max * factor)),
            ink: Ink::number(i),
            series: side.label.clone(),
        });
    let better = match one.figure.better {
        Better::Higher => "\u{a0}↑",
        Better::Lower => "\u{a0}↓",
        Better::Neither => "",
    };
    Group { label: format!("{}{better}", one.figure.label), unit, values: values.collect() }
}

/// Whether a figure is whole on all sides, and in all rounds.
fn counts(one: &Compared) -> bool {
    let spreads = one.spreads.iter().flatten();
    spreads.flat_map(|spread| [spread.min, spread.median, spread.max]).all(|n| n.fract() == 0.0)
}

/// The chart's unit for a unit's name, and the factor to it.
fn unit_of(name: &str) -> (f64, Unit) {
    match name {
        "MB/s" => (1e6, Unit::BytesPerSecond),
        "s" => (1.0, Unit::Seconds),
        "ms" => (1e-3, Unit::Seconds),
        "min" => (60.0, Unit::Seconds),
        "%" => (0.01, Unit::Share),
        _ => (1.0, Unit::Plain),
    }
}
