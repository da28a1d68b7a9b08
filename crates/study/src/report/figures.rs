//! The key figures: what people ask for first, over the rounds of a storage.

use maud::{Markup, html};

use crate::chart::unit::{Unit, range, span};
use crate::statistics::Spread;
use crate::summary::{RunSummary, SubjectSummary, Summary};

/// How a figure is written.
#[derive(Clone, Copy)]
enum Form {
    Unit(Unit),
    Span,
    MegabytesPerSecond,
}

/// A figure, its form, and where a run has it.
type Key = (&'static str, Form, fn(&RunSummary) -> Option<f64>);

const KEYS: [Key; 11] = [
    ("sustained at the file level, read and written", Form::MegabytesPerSecond, |run| {
        run.file.sustained_mb_per_second
    }),
    ("best 10 consecutive seconds", Form::MegabytesPerSecond, |run| run.file.best_10_seconds),
    ("sustained per physical core", Form::MegabytesPerSecond, |run| run.mb_per_second_per_core),
    ("sustained at the devices", Form::MegabytesPerSecond, |run| {
        run.device.as_ref()?.sustained_mb_per_second
    }),
    ("CPU/real, from the sums of all jobs", Form::Unit(Unit::Plain), |run| {
        run.jobs.cpu_per_real_of_sums
    }),
    ("from start to end", Form::Span, |run| Some(run.seconds)),
    ("sum of the real times of all jobs", Form::Span, |run| Some(run.jobs.real_seconds)),
    ("of the bytes were read, the rest written", Form::Unit(Unit::Share), |run| {
        run.file.read_share
    }),
    ("of the bytes read did not come from the devices", Form::Unit(Unit::Share), |run| {
        run.cache_hit_ratio
    }),
    ("of the jobs' time was spent waiting for I/O", Form::Unit(Unit::Share), |run| {
        run.jobs.io_wait_share
    }),
    ("of the jobs' time was spent waiting for a processor", Form::Unit(Unit::Share), |run| {
        run.jobs.processor_wait_share
    }),
];

impl Form {
    fn show(self, value: f64) -> String {
        match self {
            Form::Unit(unit) => unit.show(value),
            Form::Span => span(value),
            Form::MegabytesPerSecond => Unit::BytesPerSecond.show(value * 1e6),
        }
    }

    fn range(self, low: f64, high: f64) -> String {
        match self {
            Form::Unit(unit) => range(unit, low, high),
            Form::Span => format!("{} to {}", span(low), span(high)),
            Form::MegabytesPerSecond => range(Unit::BytesPerSecond, low * 1e6, high * 1e6),
        }
    }
}

/// The key figures of every storage.
#[must_use]
pub fn key_figures(summary: &Summary) -> Markup {
    html! {
        @for subject in &summary.subjects {
            @if summary.subjects.len() > 1 { h3 class="subject" { (subject.label) } }
            (of_subject(subject, &rounds_of(summary, subject)))
        }
        @if summary.subjects.iter().any(|subject| subject.rounds.len() > 1) {
            p class="note" { "Medians over the rounds, with the least and the greatest below." }
        }
    }
}

/// The runs of a subject that count.
#[must_use]
pub fn rounds_of<'a>(summary: &'a Summary, subject: &SubjectSummary) -> Vec<&'a RunSummary> {
    let counts =
        |run: &&RunSummary| run.subject == subject.subject && subject.rounds.contains(&run.round);
    summary.runs.iter().filter(counts).collect()
}

fn of_subject(subject: &SubjectSummary, runs: &[&RunSummary]) -> Markup {
    html! {
        dl class="key-figures" {
            @for (label, form, value) in KEYS {
                @if let Some(spread) = Spread::of(runs.iter().filter_map(|run| value(run))) {
                    div {
                        dt { (label) }
                        dd { (form.show(spread.median)) }
                        @if form.show(spread.min) != form.show(spread.max) {
                            dd class="note" { (form.range(spread.min, spread.max)) }
                        }
                    }
                }
            }
            @if let [first, ..] = runs {
                div {
                    dt { "jobs" @if runs.len() > 1 { " in each of " (subject.rounds.len()) " rounds" } }
                    dd { (Unit::Count.show(first.jobs.jobs as f64)) }
                    @let failed: usize = runs.iter().map(|run| run.jobs.failed).sum();
                    @let missing: usize = runs.iter().map(|run| run.jobs.not_started).sum();
                    @if failed > 0 { dd class="note bad" { (failed) " failed" } }
                    @if missing > 0 { dd class="note bad" { (missing) " never started" } }
                }
            }
        }
    }
}
