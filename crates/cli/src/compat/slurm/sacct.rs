//! sacct.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use forebay_grid::state::JobState;
use forebay_grid::vocabulary::Moment;

use super::super::columns::{Room, Side};
use super::super::row::{Row, client, me, rows};
use super::super::words::{Given, Grammar, Opt, Style, Takes, Until, harmless, ignored, read};
use super::choice::{Choice, targets};
use super::units::since;
use super::{field, now};

use Takes::{Maybe, Nothing, Value};

const OPTIONS: &[Opt] = &[
    read("accounts", 'A', Value),
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
    read("format", 'o', Value),
    read("helpformat", 'e', Nothing),
    read("jobs", 'j', Value),
    harmless("local", ' ', Nothing),
    read("long", 'l', Nothing),
    read("name", ' ', Value),
    harmless("noconvert", ' ', Nothing),
    read("nodelist", 'N', Value),
    read("noheader", 'n', Nothing),
    read("parsable", 'p', Nothing),
    read("parsable2", 'P', Nothing),
    read("partition", 'r', Value),
    ignored("qos", 'q', Value),
    read("starttime", 'S', Value),
    read("state", 's', Value),
    harmless("truncate", 'T', Nothing),
    harmless("units", ' ', Value),
    read("user", 'u', Value),
    read("uid", ' ', Value),
    harmless("verbose", 'v', Nothing),
    read("version", 'V', Nothing),
    ignored("wckeys", 'W', Maybe),
];

const GRAMMAR: Grammar =
    Grammar { command: "sacct", style: Style::Gnu, until: Until::End, tables: &[OPTIONS] };

const FORMAT: &str = "jobid,jobname,partition,account,alloccpus,state,exitcode";
const BRIEF: &str = "jobid,state,exitcode";
const LONG: &str = "jobid,jobidraw,jobname,partition,maxrss,averss,ntasks,alloccpus,elapsed,state,\
                    exitcode,reqmem,alloctres";

/// One column: its field, its heading, its room.
struct Column {
    name: String,
    heading: &'static str,
    room: Room,
}

/// Reads `JobID,State%20,Account%-30`.
fn columns(format: &str) -> Result<Vec<Column>> {
    let column = |part: &str| {
        let (name, width) = part.split_once('%').unwrap_or((part, ""));
        let plain = field::plain(name);
        let known = field::FIELDS.iter().find(|(known, ..)| *known == plain);
        let Some((_, _, heading, usual)) = known else {
            bail!("Invalid field requested: \"{name}\"");
        };
        let width: i32 = match width {
            "" => *usual,
            width => width.parse().with_context(|| format!("invalid width \"{width}\""))?,
        };
        let side = if width < 0 { Side::Left } else { Side::Right };
        let room = Room { width: Some(width.unsigned_abs() as usize), side };
        Ok(Column { name: plain, heading, room })
    };
    format.split(',').map(str::trim).filter(|part| !part.is_empty()).map(column).collect()
}

/// How a line is put together.
#[derive(Clone, Copy)]
enum Layout<'a> {
    Columns,
    /// With what stands between cells, and whether it ends each line as well.
    Parsable {
        delimiter: &'a str,
        ends: &'a str,
    },
}

impl Layout<'_> {
    fn line(self, columns: &[Column], cells: &[String]) -> String {
        match self {
            Layout::Columns => {
                let fitted = columns
                    .iter()
                    .zip(cells)
                    .map(|(column, cell)| column.room.fit(cell, Some('+')) + " ");
                fitted.collect::<String>() + "\n"
            }
            Layout::Parsable { delimiter, ends } => cells.join(delimiter) + ends + "\n",
        }
    }
}

/// The value of a field: of a job, or of its batch step.
fn cell(row: &Row, column: &Column, step: Option<&str>, now: Moment) -> String {
    let value = |name: &str| field::value(row, name, now).unwrap_or_default();
    match (&column.name[..], step) {
        ("jobid" | "jobidraw", Some(step)) => format!("{}.{step}", value(&column.name)),
        ("jobname", Some(step)) => step.to_owned(),
        ("partition" | "user" | "timelimit" | "uid" | "qos", Some(_)) => String::new(),
        ("maxrss" | "averss" | "ntasks", None) => String::new(),
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
    let given = GRAMMAR.read(arguments)?;
    if given.has("version") {
        outln!("slurm {}", super::SLURM_VERSION);
        return Ok(ExitCode::SUCCESS);
    }
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
    let delimiter = given.value("delimiter").unwrap_or("|");
    let layout = match (given.has("parsable2"), given.has("parsable")) {
        (true, _) => Layout::Parsable { delimiter, ends: "" },
        (false, true) => Layout::Parsable { delimiter, ends: delimiter },
        (false, false) => Layout::Columns,
    };
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
    let mut text = String::new();
    if !given.has("noheader") {
        text += &headings(layout, &columns);
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

/// The lines above the others: the names, and rules below them where there are columns.
fn headings(layout: Layout<'_>, columns: &[Column]) -> String {
    let headings: Vec<String> = columns.iter().map(|column| column.heading.to_owned()).collect();
    let text = layout.line(columns, &headings);
    match layout {
        Layout::Parsable { .. } => text,
        Layout::Columns => {
            let rule = |column: &Column| "-".repeat(column.room.width.unwrap_or(0));
            text + &layout.line(columns, &columns.iter().map(rule).collect::<Vec<_>>())
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_stand_above_rules_as_wide_as_their_columns() {
        let columns = columns("JobID,State%12,Account%-5").unwrap();
        let cells = ["12_3", "CANCELLED by 1000", "a"].map(str::to_owned);
        assert_eq!(Layout::Columns.line(&columns, &cells), "12_3         CANCELLED b+ a     \n");
        let parsable = Layout::Parsable { delimiter: "|", ends: "|" };
        assert_eq!(parsable.line(&columns, &cells), "12_3|CANCELLED by 1000|a|\n");
        assert!(super::columns("NoSuch").is_err());
    }
}
