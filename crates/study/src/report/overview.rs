//! The report of one study, from the verdict down to the command that repeats it.

use maud::{Markup, html};

use super::comparison::storages;
use super::page::{Head, Section, Standing, gone, page, shell_line, verdicts};
use super::run::Timeline;
use super::{RUNS_MAX, distribution, environment, figures, sheet};
use crate::compare::Comparison;
use crate::record::{Record, Run, State};
use crate::summary::{RunSummary, Summary};

/// The report of `record`.
#[must_use]
pub fn report(record: &Record) -> Markup {
    let summary = Summary::of(record);
    let sheets = summary.sheets(record);
    let section = |name, title, body| Section { name, title, body };
    // One storage alone is no comparison, and no fault.
    let compared = Comparison::of_subjects(record).map_or(html! {}, |compared| storages(&compared));
    let sections = [
        section("verdict", "Verdict", verdicts(&summary.verdicts)),
        section("figures", "Key figures", figures::key_figures(&summary)),
        section("compared", "Storages compared", compared),
        section("charts", "Charts", runs(record, &summary)),
        section(
            "tables",
            "Tables",
            html! {
                // The environment has a part of its own.
                @for one in sheets.iter().filter(|one| one.name != "environment") { (sheet::sheet(one)) }
            },
        ),
        section("environment", "Environment", environment::environment(record)),
        section("notes", "Notes and definitions", notes(record)),
        section("repeat", "Run it again", repeat(record)),
    ];
    page(&head(record), &sections)
}

/// Whether a study ran to its end.
#[must_use]
pub fn standing(record: &Record) -> Standing {
    match &record.state {
        State::Complete => Standing::Complete,
        State::Partial { reason } => Standing::Partial(vec![reason.clone()]),
    }
}

fn head(record: &Record) -> Head {
    let workload = &record.workload;
    let labels: Vec<String> = record
        .subjects
        .iter()
        .map(|subject| format!("{} ({})", subject.data.path.display(), subject.data.file_system))
        .collect();
    let rounds = record.runs.iter().map(|run| run.round + 1).max().unwrap_or(0);
    let rounds = if rounds > 1 { format!(", {rounds} rounds") } else { String::new() };
    let title =
        if workload.title.is_empty() { workload.name.clone() } else { workload.title.clone() };
    Head {
        kicker: format!("Forebay study · {}", workload.name),
        title,
        under: vec![
            format!("On {} · {}", labels.join(" and "), hosts_of(record)),
            format!(
                "Scale {} of the study{rounds} · started {} · Forebay {}",
                workload.scale, record.started, record.version
            ),
        ],
        standing: standing(record),
    }
}

/// The machine, or the hosts, for people.
fn hosts_of(record: &Record) -> String {
    let names: Vec<&str> = record.hosts.iter().map(|host| host.name.as_str()).collect();
    match names.len() {
        0 => record.machine.host.clone(),
        1..=6 => format!("hosts {}", names.join(", ")),
        count => format!("{count} hosts"),
    }
}

/// The charts of every run: the first of each storage open, others folded.
fn runs(record: &Record, summary: &Summary) -> Markup {
    let runs: Vec<(&Run, &RunSummary)> = record.runs.iter().zip(&summary.runs).collect();
    if runs.is_empty() {
        return gone("Charts", "no run was made.");
    }
    let mut seen: Vec<usize> = Vec::new();
    html! {
        @for (run, summed) in runs.iter().take(RUNS_MAX) {
            @let drawn = html! {
                (distribution::scaling(&summed.stages))
                (distribution::sweeps(&summed.stages))
                (Timeline::new(run, summed, record.memory_bytes()).charts())
                (distribution::charts(run, summed))
            };
            @if runs.len() == 1 {
                (drawn)
            } @else {
                @let first = !seen.contains(&run.subject);
                @let () = seen.push(run.subject);
                details class="run" open=[first.then_some("open")] {
                    summary { b { (summed.label) ", round " (run.round + 1) } " · " (run.cache.describe()) }
                    div class="run-head" {}
                    (drawn)
                }
            }
        }
        @if runs.len() > RUNS_MAX {
            (gone("More runs", &format!("{} more runs are in the tables.", runs.len() - RUNS_MAX)))
        }
    }
}

fn notes(record: &Record) -> Markup {
    let workload = &record.workload;
    html! {
        @if !workload.study.is_empty() { p { (workload.study) } }
        @if !workload.notes.is_empty() {
            ul { @for note in &workload.notes { li { (note) } } }
        }
        (definitions())
    }
}

/// What the words of every page mean.
#[must_use]
pub fn definitions() -> Markup {
    let words = [
        ("MB/s", "Millions of bytes per second. KiB, MiB and GiB are powers of 1024."),
        (
            "Busy period",
            "For each stage, the time in which most of its jobs ran at once; a table gives its start and end.",
        ),
        (
            "Sustained",
            "The median of the seconds of the busy periods, read and written together, each second weighted by its length. Stages that do different things each have a rate, but no common one.",
        ),
        (
            "Rate of a stage",
            "The total that its streams measured, from their first call to the end of their last, without the preparation of files. For other stages, the median of the samples.",
        ),
        (
            "File level",
            "Bytes that the jobs read and wrote by system calls; the page cache may have served them.",
        ),
        (
            "Device level",
            "Bytes from and to block devices, including read-ahead, late writes and the I/O of other programs.",
        ),
        (
            "CPU/real",
            "Processor time divided by real time. From the sums: all processor time of the jobs divided by all their real time; the mean of the jobs' ratios is a different number, and is named so.",
        ),
        (
            "Per core",
            "Per physical core of the machine; the studies require 100 MB/s, newer guidance 150.",
        ),
        (
            "Curves",
            "Long runs are thinned out: the line is the mean of a stretch, the band around it reaches from the least to the greatest value in it, so that no peak is lost; stacked areas show means. Tables and result.json are not thinned out.",
        ),
    ];
    html! {
        dl class="facts" {
            @for (word, meaning) in words { dt { (word) } dd { (meaning) } }
        }
    }
}

fn repeat(record: &Record) -> Markup {
    html! {
        @if record.command.is_empty() {
            (gone("Command", "it was not recorded."))
        } @else {
            pre class="command" { (shell_line(&record.command)) }
        }
        footer {
            "Created by Forebay " (record.version) " from result.json, which is stored beside this page and \
             holds every number; the tables are there as CSV."
        }
    }
}
