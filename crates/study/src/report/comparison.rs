//! Studies or storages side by side: ratios and paired bars.

use forebay_workload::Table;
use maud::{Markup, html};

use super::overview::{definitions, standing};
use super::page::{Head, Section, Standing, chart_or, gone, page, shell_line, verdicts};
use super::{environment, figures, sheet};
use crate::chart::bars::{Extent, Group, Value, bars};
use crate::chart::figure::{Caption, Ink};
use crate::chart::unit::{Unit, digits};
use crate::record::Record;
use crate::summary::{Better, FigureSpread, SubjectSummary, Summary};

/// Most figures that are drawn; the table has all.
const DRAWN_MAX: usize = 14;

/// What is compared: a storage of a study, over its rounds.
pub struct Entry<'a> {
    label: String,
    ink: Ink,
    subject: &'a SubjectSummary,
}

impl<'a> Entry<'a> {
    /// All storages of all studies, named by the study's label and, where it has several, their own.
    #[must_use]
    pub fn of(records: &[(String, &Record)], summaries: &'a [Summary]) -> Vec<Entry<'a>> {
        let mut entries: Vec<Entry<'a>> = Vec::new();
        for ((label, _), summary) in records.iter().zip(summaries) {
            for subject in &summary.subjects {
                let label = match (label.as_str(), summary.subjects.len()) {
                    ("", _) => subject.label.clone(),
                    (label, 1) => label.to_owned(),
                    (label, _) => format!("{label}, {}", subject.label),
                };
                entries.push(Entry { label, ink: Ink::number(entries.len()), subject });
            }
        }
        entries
    }

    fn figure(&self, key: &str) -> Option<&'a FigureSpread> {
        self.subject.figures.iter().find(|one| one.figure.key == key)
    }
}

/// The page that shows studies side by side.
#[must_use]
pub fn comparison(records: &[(String, Record)]) -> Markup {
    let summaries: Vec<Summary> = records.iter().map(|(_, record)| Summary::of(record)).collect();
    let named: Vec<(String, &Record)> =
        records.iter().map(|(label, record)| (label.clone(), record)).collect();
    let entries = Entry::of(&named, &summaries);
    let each = |show: &dyn Fn(&Record, &Summary) -> Markup| {
        html! {
            @for ((label, record), summary) in records.iter().zip(&summaries) {
                h3 class="subject" { (label) }
                (show(record, summary))
            }
        }
    };
    let section = |name, title, body| Section { name, title, body };
    let sections = [
        section("compared", "Compared", html! { (differences(records)) (paired(&entries)) }),
        section("verdict", "Verdicts", each(&|_, summary| verdicts(&summary.verdicts))),
        section("figures", "Key figures", each(&|_, summary| figures::key_figures(summary))),
        section("environment", "Environments", each(&|record, _| environment::environment(record))),
        section("notes", "Definitions", definitions()),
        section(
            "repeat",
            "Run them again",
            each(&|record, _| {
                html! {
                    pre { (shell_line(&record.command)) }
                }
            }),
        ),
    ];
    page(&head(records), &sections)
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
        format!("{label}: {}, scale {}, begun {}", workload.name, workload.scale, record.started)
    };
    Head {
        kicker: "Forebay comparison".to_owned(),
        title: labels.join(" and "),
        under: records.iter().map(told).collect(),
        standing: if reasons.is_empty() { Standing::Complete } else { Standing::Partial(reasons) },
    }
}

/// What makes studies hard to compare.
fn differences(records: &[(String, Record)]) -> Markup {
    let differs = |value: &dyn Fn(&Record) -> String| {
        let mut values: Vec<String> = records.iter().map(|(_, record)| value(record)).collect();
        values.dedup();
        (values.len() > 1).then(|| values.join(" / "))
    };
    type Told<'a> = &'a dyn Fn(&Record) -> String;
    let checks: [(&str, Told<'_>); 6] = [
        ("Workloads", &|record| record.workload.name.clone()),
        ("Scales", &|record| record.workload.scale.to_string()),
        ("Seeds", &|record| record.workload.seed.to_string()),
        ("Hosts", &|record| record.machine.host.clone()),
        ("Physical cores", &|record| record.machine.cores.to_string()),
        ("Versions of Forebay", &|record| record.version.clone()),
    ];
    html! {
        @for (what, value) in checks {
            @if let Some(values) = differs(value) { (gone(&format!("{what} differ"), &values)) }
        }
    }
}

/// Paired bars of what has a better and a worse, then all figures with their ratios.
#[must_use]
pub fn paired(entries: &[Entry<'_>]) -> Markup {
    let Some(first) = entries.first() else {
        return gone("Comparison", "there is no run to compare.");
    };
    let keys: Vec<&FigureSpread> = first.subject.figures.iter().collect();
    let drawn: Vec<Group> = keys
        .iter()
        .filter(|one| one.figure.better != Better::Neither)
        .map(|one| group(one, entries))
        .filter(|group| group.values.iter().filter(|value| value.middle.is_finite()).count() > 1)
        .filter(|group| group.values.iter().any(|value| value.middle > 0.0))
        .take(DRAWN_MAX)
        .collect();
    let caption = Caption::new(
        "Side by side",
        "Medians over rounds; whiskers from the least to the greatest. Each figure has its own scale.",
    );
    html! {
        (chart_or(bars(&caption, &drawn, Extent::Own), "Side by side", "no figure was measured for more than one."))
        div class="sheet" {
            h3 { "Ratios" }
            p class="note" {
                "Medians over rounds, and their ratio to " (first.label) ". A ratio is marked with * where \
                 the ranges of the rounds do not touch; with one round there is no range to go by."
            }
            (sheet::table(&ratios(&keys, entries)))
        }
    }
}

fn group(one: &FigureSpread, entries: &[Entry<'_>]) -> Group {
    let (factor, unit) = unit_of(one.figure.unit);
    let values = entries.iter().map(|entry| {
        let spread = entry.figure(&one.figure.key).and_then(|figure| figure.spread);
        Value {
            middle: spread.map_or(f64::NAN, |spread| spread.median * factor),
            spread: spread.map(|spread| (spread.min * factor, spread.max * factor)),
            ink: entry.ink,
            series: entry.label.clone(),
        }
    });
    let better = match one.figure.better {
        Better::Higher => "\u{a0}↑",
        Better::Lower => "\u{a0}↓",
        Better::Neither => "",
    };
    Group { label: format!("{}{better}", one.figure.label), unit, values: values.collect() }
}

/// The chart's unit for a unit's name, and the factor to it.
fn unit_of(name: &str) -> (f64, Unit) {
    match name {
        "MB/s" => (1e6, Unit::BytesPerSecond),
        "s" => (1.0, Unit::Seconds),
        "ms" => (1e-3, Unit::Seconds),
        "min" => (60.0, Unit::Seconds),
        "B" => (1.0, Unit::Bytes),
        "%" => (0.01, Unit::Share),
        _ => (1.0, Unit::Plain),
    }
}

fn ratios(keys: &[&FigureSpread], entries: &[Entry<'_>]) -> Table {
    let (first, others) = entries.split_first().expect("the caller has an entry");
    let mut columns = vec!["figure".to_owned(), "unit".to_owned(), first.label.clone()];
    for other in others {
        columns.push(other.label.clone());
        columns.push(format!("{} : {}", other.label, first.label));
    }
    let mut table = Table { columns, rows: Vec::new() };
    for one in keys {
        let key = &one.figure.key;
        let base = first.figure(key).and_then(|figure| figure.spread);
        let mut row = vec![
            one.figure.label.as_str().into(),
            one.figure.unit.into(),
            base.map(|spread| spread.median).into(),
        ];
        for other in others {
            let spread = other.figure(key).and_then(|figure| figure.spread);
            row.push(spread.map(|spread| spread.median).into());
            let ratio = base.zip(spread).filter(|(base, _)| base.median != 0.0);
            row.push(
                ratio
                    .map(|(base, spread)| {
                        let apart = base.count > 1
                            && spread.count > 1
                            && (spread.min > base.max || spread.max < base.min);
                        let mark = if apart { "*" } else { "\u{2007}" };
                        format!("{}{mark}", digits(spread.median / base.median))
                    })
                    .into(),
            );
        }
        table.push(row);
    }
    table
}
