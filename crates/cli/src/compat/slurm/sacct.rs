//! sacct.

use std::process::ExitCode;

use anyhow::Result;
use forebay_grid::state::JobState;
use forebay_grid::vocabulary::Moment;

use super::super::row::{Row, client, me, rows};
use super::super::words::{
    Given, Grammar, Opt, Style, Takes, Until, harmless, ignored, read, refused,
};
use super::choice::{Choice, targets};
use super::report::{Column, Layout};
use super::units::since;
use super::{field, now, report};

use Takes::{Maybe, Nothing, Value};

const OPTIONS: &[Opt] = &[
    read("accounts", 'A', Value),
    refused("associations", 'x', Value, NOT_CHOSEN),
    refused("batch-script", 'B', Nothing, "the script of a job is not shown"),
    read("allclusters", 'L', Nothing),
    read("allocations", 'X', Nothing),
    read("allusers", 'a', Nothing),
    harmless("array", ' ', Nothing),
    read("brief", 'b', Nothing),
    harmless("clusters", 'M', Value),
    harmless("completion", 'c', Nothing),
    read("delimiter", ' ', Value),
    harmless("duplicates", 'D', Nothing),
    read("endtime", 'E', Value),
    refused("env-vars", ' ', Nothing, "the environment of a job is not shown"),
    harmless("federation", ' ', Nothing),
    refused("file", 'f', Value, "records come from the grid alone"),
    refused("flags", 'F', Value, NOT_CHOSEN),
    read("format", 'o', Value),
    refused("gid", 'g', Value, NOT_CHOSEN),
    read("helpformat", 'e', Nothing),
    read("jobs", 'j', Value),
    read("json", ' ', Maybe),
    harmless("local", ' ', Nothing),
    read("long", 'l', Nothing),
    read("name", ' ', Value),
    refused("ncpus", 'I', Value, NOT_CHOSEN),
    refused("nnodes", 'i', Value, NOT_CHOSEN),
    harmless("noconvert", ' ', Nothing),
    read("nodelist", 'N', Value),
    read("noheader", 'n', Nothing),
    read("parsable", 'p', Nothing),
    read("parsable2", 'P', Nothing),
    read("partition", 'r', Value),
    ignored("qos", 'q', Value),
    refused("reason", 'R', Value, NOT_CHOSEN),
    read("starttime", 'S', Value),
    read("state", 's', Value),
    refused("timelimit-max", 'K', Value, NOT_CHOSEN),
    refused("timelimit-min", 'k', Value, NOT_CHOSEN),
    harmless("truncate", 'T', Nothing),
    harmless("units", ' ', Value),
    read("user", 'u', Value),
    read("uid", ' ', Value),
    harmless("use-local-uid", ' ', Nothing),
    harmless("verbose", 'v', Nothing),
    read("version", 'V', Nothing),
    ignored("wckeys", 'W', Maybe),
    harmless("whole-hetjob", ' ', Maybe),
    refused("yaml", ' ', Maybe, "use --json"),
];

const NOT_CHOSEN: &str = "jobs are chosen by -A, -j, --name, -N, -r, -s and -u";

const GRAMMAR: Grammar =
    Grammar { command: "sacct", style: Style::Gnu, until: Until::End, tables: &[OPTIONS] };

const FORMAT: &str = "jobid,jobname,partition,account,alloccpus,state,exitcode";
const BRIEF: &str = "jobid,state,exitcode";
const LONG: &str = "jobid,jobidraw,jobname,partition,maxrss,averss,ntasks,alloccpus,elapsed,state,\
                    exitcode,reqmem,alloctres";

/// Reads `JobID,State%20,Account%-30`.
fn columns(format: &str) -> Result<Vec<Column>> {
    report::columns(format, field::plain, |plain| {
        let known = field::FIELDS.iter().find(|(known, ..)| *known == plain);
        known.map(|(_, _, heading, usual)| (*heading, *usual))
    })
}

/// The value of a field: of a job, or of its batch step.
fn cell(row: &Row, column: &Column, step: Option<&str>, now: Moment) -> String {
    let value = |name: &str| field::value(row, name, now).unwrap_or_default();
    match (&column.name[..], step) {
        ("jobid" | "jobidraw", Some(step)) => format!("{}.{step}", value(&column.name)),
        ("jobname", Some(step)) => step.to_owned(),
        ("partition" | "user" | "timelimit" | "uid" | "qos", Some(_)) => String::new(),
        (
            "maxrss" | "averss" | "ntasks" | "avecpu" | "mincpu" | "maxpages" | "avediskread"
            | "avediskwrite" | "maxdiskread" | "maxdiskwrite" | "maxrssnode" | "maxrsstask",
            None,
        ) => String::new(),
        ("state", None) if row.view.state == JobState::Killed => {
            format!("CANCELLED by {}", value("uid"))
        }
        ("nodelist", _) if value("nodelist").is_empty() => "None assigned".to_owned(),
        // A killed job has no value of its own.
        ("exitcode", None) if row.view.state == JobState::Killed => "0:0".to_owned(),
        (name, _) => value(name),
    }
}

/// Whether a task was there in a span of time.
fn is_within(row: &Row, from: Option<Moment>, to: Option<Moment>) -> bool {
    from.is_none_or(|from| row.view.ended.is_none_or(|ended| ended >= from))
        && to.is_none_or(|to| row.view.submitted <= to)
}

/// Runs it.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    let given = GRAMMAR.read_command(arguments)?;
    if given.has("helpformat") {
        let names: Vec<&str> = field::FIELDS.iter().map(|(_, _, heading, _)| *heading).collect();
        outln!("{}", names.join("\n"));
        return Ok(ExitCode::SUCCESS);
    }
    let by_variable = std::env::var("SACCT_FORMAT").ok();
    let usual = match (given.has("brief"), given.has("long")) {
        (true, _) => BRIEF,
        (_, true) => LONG,
        _ => FORMAT,
    };
    let format = given.value("format").or(by_variable.as_deref()).unwrap_or(usual);
    let columns = columns(format)?;
    let layout = Layout::of(&given);
    let choice = Choice::of(&given)?;
    let now = now();
    let moment = |option: &str| {
        let read = given.value(option).map(|text| since(text, now)).transpose();
        read.map_err(anyhow::Error::msg)
    };
    let mut client = client()?;
    let targets = targets(&given.list("jobs"), &mut client)?;
    // Without jobs and times Slurm shows those of today.
    let today = || since("today", now).ok().filter(|_| targets.is_none());
    let (from, to) = (moment("starttime")?.or_else(today), moment("endtime")?);
    let is_mine =
        given.has("user") || given.has("uid") || given.has("allusers") || targets.is_some();
    let me = me();
    let found = rows(&mut client, targets.as_deref(), true)?;
    let found = found.into_iter().filter(|row| {
        choice.takes(row) && is_within(row, from, to) && (is_mine || row.view.user.as_str() == me)
    });
    if given.has("json") {
        out!("{}", super::json::sacct(&found.collect::<Vec<_>>(), now));
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    if !given.has("noheader") {
        text += &layout.headings(&columns);
    }
    for row in found {
        for step in steps(&given, &row) {
            let cells: Vec<String> =
                columns.iter().map(|column| cell(&row, column, step, now)).collect();
            text += &layout.line(&columns, &cells);
        }
    }
    crate::output::put(super::plain_output(&text).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Which lines a task has: its own, and that of its batch step once it has started. Ids with a step want that one alone.
fn steps(given: &Given, row: &Row) -> Vec<Option<&'static str>> {
    let of_ids: Vec<&str> =
        given.list("jobs").iter().filter_map(|id| Some(id.split_once('.')?.1)).collect();
    let has_batch = row.view.started.is_some() && !given.has("allocations");
    let batch = has_batch.then_some(Some("batch"));
    match &of_ids[..] {
        [] => [Some(None), batch].into_iter().flatten().collect(),
        wanted => batch.into_iter().filter(|_| wanted.contains(&"batch")).collect(),
    }
}
