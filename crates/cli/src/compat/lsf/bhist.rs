//! bhist: how long jobs waited and ran, and with `-l` each of their starts.

use std::process::ExitCode;

use anyhow::Result;
use forebay_grid::account::AttemptRecord;
use forebay_grid::vocabulary::Moment;

use super::super::row::{Row, client};
use super::super::words::{Given, Grammar, Opt, Style, Takes, Until, harmless, read, refused};
use super::bacct::span;
use super::bjobs::{chosen, heading, requirements};
use super::{NOTHING, day, now, state};

use Takes::{Nothing, Value};

const FILES: &str = "the grid keeps one history: forebay history shows it";

const OPTIONS: &[Opt] = &[
    read("a", 'a', Nothing),
    refused("app", ' ', Value, "jobs are not chosen by application profile"),
    harmless("b", 'b', Nothing),
    read("C", 'C', Value),
    harmless("cname", ' ', Nothing),
    read("D", 'D', Value),
    read("d", 'd', Nothing),
    read("e", 'e', Nothing),
    refused("f", 'f', Value, FILES),
    refused("G", 'G', Value, "jobs are not chosen by user group; use -u"),
    read("g", 'g', Value),
    harmless("gpu", ' ', Nothing),
    harmless("hms", ' ', Nothing),
    read("J", 'J', Value),
    refused("Jd", ' ', Value, "jobs are not chosen by description; use -J"),
    read("l", 'l', Nothing),
    refused("Lp", ' ', Value, "jobs are not chosen by licence project"),
    read("m", 'm', Value),
    harmless("N", 'N', Value),
    harmless("n", 'n', Value),
    read("P", 'P', Value),
    read("p", 'p', Nothing),
    read("q", 'q', Value),
    read("r", 'r', Nothing),
    read("S", 'S', Value),
    read("s", 's', Nothing),
    read("T", 'T', Value),
    refused("t", 't', Nothing, "use -l, which shows the starts of each job"),
    harmless("UF", ' ', Nothing),
    read("u", 'u', Value),
    harmless("w", 'w', Nothing),
    harmless("X", 'X', Nothing),
];

const GRAMMAR: Grammar =
    Grammar { command: "bhist", style: Style::Lsf, until: Until::End, tables: &[OPTIONS] };

/// States of jobs that an option chooses, in LSF's words.
const STATES: [(&str, &[&str]); 5] = [
    ("d", &["DONE", "EXIT"]),
    ("e", &["EXIT"]),
    ("p", &["PEND", "PSUSP"]),
    ("r", &["RUN", "UNKWN"]),
    ("s", &["PSUSP", "USUSP"]),
];

/// Spans of time in which something of a job has to lie.
struct Spans {
    submitted: Option<(Moment, Moment)>,
    started: Option<(Moment, Moment)>,
    ended: Option<(Moment, Moment)>,
    lived: Option<(Moment, Moment)>,
}

impl Spans {
    fn of(given: &Given) -> Result<Spans> {
        let read = |option: &str| given.value(option).map(span).transpose();
        Ok(Spans {
            submitted: read("S")?,
            started: read("D")?,
            ended: read("C")?,
            lived: read("T")?,
        })
    }

    fn take(&self, row: &Row) -> bool {
        let holds = |span: Option<(Moment, Moment)>, at: Option<Moment>| {
            span.is_none_or(|(from, to)| at.is_some_and(|at| from <= at && at <= to))
        };
        let (submitted, ended) = (row.view.submitted, row.view.ended);
        holds(self.submitted, Some(submitted))
            && holds(self.started, row.view.started)
            && holds(self.ended, ended)
            && self
                .lived
                .is_none_or(|(from, to)| submitted <= to && ended.is_none_or(|ended| ended >= from))
    }
}

/// The most jobs of a table of which all starts are looked up; of more it is the last one.
const STARTS_MAX: usize = 1000;

/// Whether the options choose the state of a job: without any, what has not ended, or all if one names the times of its end.
fn takes_state(given: &Given, row: &Row) -> bool {
    let wanted: Vec<&str> = STATES
        .iter()
        .filter(|(option, _)| given.has(option))
        .flat_map(|(_, states)| states.iter().copied())
        .collect();
    if given.has("a") {
        return true;
    }
    if wanted.is_empty() {
        return row.view.ended.is_none() || given.has("C") || given.has("T");
    }
    wanted.contains(&state::of(row.view.state))
}

/// Seconds in which a job waited and ran, by its starts that have ended and its present one.
fn seconds(row: &Row, attempts: &[AttemptRecord], now: Moment) -> (u64, u64) {
    let ran =
        |attempt: &AttemptRecord| attempt.started.map_or(0, |started| attempt.ended.since(started));
    let before: u64 = attempts.iter().map(ran).sum();
    let is_recorded = row.view.ended.is_some() && !attempts.is_empty();
    let last = row.view.started.filter(|_| !is_recorded);
    let ran = before + last.map_or(0, |started| row.view.ended.unwrap_or(now).since(started));
    let all = row.view.ended.unwrap_or(now).since(row.view.submitted);
    (all.saturating_sub(ran) / 1000, ran / 1000)
}

/// A line for each start and end of a job.
fn events(row: &Row, attempts: &[AttemptRecord]) -> String {
    let started = |at: Moment, host: &dyn std::fmt::Display| {
        format!("{}: Started {} Task(s) on Host(s) <{host}>;\n", day(at), row.view.slots)
    };
    let mut text = String::new();
    for attempt in attempts {
        text += &started(attempt.started.unwrap_or(attempt.launched), &attempt.host);
        let exit = attempt.exit.as_ref().map_or(String::new(), |exit| format!(" ({exit})"));
        text += &format!("{}: Ended: {}{exit};\n", day(attempt.ended), attempt.state());
    }
    if let (Some(at), Some(host), None) = (row.view.started, &row.view.host, row.view.ended) {
        text += &started(at, host);
    }
    text
}

/// The head of the table of times. How long jobs were suspended is not recorded.
const SUMMARY: &str =
    "JOBID   USER    JOB_NAME  PEND    PSUSP   RUN     USUSP   SSUSP   UNKWN   TOTAL\n";

fn summary(row: &Row, (waited, ran): (u64, u64)) -> String {
    let name: String = state::name(row).chars().take(9).collect();
    format!(
        "{:<7} {:<7} {:<9} {waited:<7} {NOTHING:<7} {ran:<7} {NOTHING:<7} {NOTHING:<7} {NOTHING:<7} {}\n",
        row.view.id,
        row.view.user,
        name,
        waited + ran
    )
}

/// Runs bhist; the exit code is 255 if no job is found, or one that was named is not.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    let given = GRAMMAR.read(arguments)?;
    let spans = Spans::of(&given)?;
    let mut client = client()?;
    let (mut found, unknown) = chosen(&given, &mut client, true)?;
    for id in &unknown {
        note!("Job <{id}> is not found");
    }
    let is_named = !given.words.is_empty() && given.words.iter().all(|word| word != "0");
    found.retain(|row| spans.take(row) && (is_named || takes_state(&given, row)));
    if found.is_empty() {
        note!("No matching job found");
        return Ok(ExitCode::from(255));
    }
    let now = now();
    let mut text = String::new();
    if !given.has("l") {
        text += "Summary of time in seconds spent in various states:\n";
        text += SUMMARY;
    }
    for row in &found {
        let is_short = given.has("l") || found.len() <= STARTS_MAX;
        let attempts = if is_short { client.history(row.target)? } else { Vec::new() };
        let times = seconds(row, &attempts, now);
        if given.has("l") {
            text += &(heading(row, now) + &events(row, &attempts) + &requirements(row));
            text += &format!("\n{SUMMARY}{}", summary(row, times));
        } else {
            text += &summary(row, times);
        }
    }
    crate::output::put(crate::output::escaped(&text).as_bytes())?;
    Ok(if unknown.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(255) })
}
