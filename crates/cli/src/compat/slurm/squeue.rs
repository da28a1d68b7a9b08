//! squeue.

use std::cmp::Ordering;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use forebay_grid::state::JobState;
use forebay_grid::vocabulary::Moment;

use super::super::columns::{Piece, Room, Side, line, pieces};
use super::super::row::{Row, client, estimate, rows};
use super::super::words::{
    Given, Grammar, Opt, Style, Takes, Until, harmless, ignored, read, refused,
};
use super::choice::{Choice, targets};
use super::units::date;
use super::{field, now, state};

use Takes::{Maybe, Nothing, Value};

const OPTIONS: &[Opt] = &[
    read("account", 'A', Value),
    harmless("all", 'a', Nothing),
    read("array", 'r', Nothing),
    harmless("array-unique", ' ', Nothing),
    harmless("clusters", 'M', Value),
    harmless("federation", ' ', Nothing),
    read("format", 'o', Value),
    read("Format", 'O', Value),
    harmless("hide", ' ', Nothing),
    read("iterate", 'i', Value),
    read("jobs", 'j', Maybe),
    read("json", ' ', Maybe),
    read("licenses", 'L', Value),
    harmless("local", ' ', Nothing),
    read("long", 'l', Nothing),
    read("me", ' ', Nothing),
    read("name", 'n', Value),
    harmless("noconvert", ' ', Nothing),
    read("nodelist", 'w', Value),
    read("noheader", 'h', Nothing),
    read("partition", 'p', Value),
    harmless("priority", 'P', Nothing),
    ignored("qos", 'q', Value),
    read("reservation", 'R', Value),
    harmless("sibling", ' ', Nothing),
    read("sort", 'S', Value),
    read("start", ' ', Nothing),
    read("states", 't', Value),
    refused("steps", 's', Maybe, "use sstat"),
    read("user", 'u', Value),
    harmless("verbose", 'v', Nothing),
    read("version", 'V', Nothing),
    refused("yaml", ' ', Maybe, "use --json"),
];

const GRAMMAR: Grammar =
    Grammar { command: "squeue", style: Style::Gnu, until: Until::End, tables: &[OPTIONS] };

/// Variables that stand for an option that is not given, behind `SQUEUE_`.
const VARIABLES: &[(&str, &str)] = &[
    ("ACCOUNT", "account"),
    ("ARRAY", "array"),
    ("FORMAT", "format"),
    ("FORMAT2", "Format"),
    ("LICENSES", "licenses"),
    ("NAMES", "name"),
    ("PARTITION", "partition"),
    ("SORT", "sort"),
    ("STATES", "states"),
    ("USERS", "user"),
];

const FORMAT: &str = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R";
const LONG: &str = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R";
const START: &str = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R";

/// The letters of `-o`: the field and its heading.
const LETTERS: &[(char, &str, &str)] = &[
    ('a', "account", "ACCOUNT"),
    ('A', "jobidraw", "JOBID"),
    ('B', "batchhost", "EXEC_HOST"),
    ('c', "reqcpus", "MIN_CPUS"),
    ('C', "reqcpus", "CPUS"),
    ('D', "nnodes", "NODES"),
    ('e', "end", "END_TIME"),
    ('E', "dependency", "DEPENDENCY"),
    ('F', "arrayjobid", "ARRAY_JOB_ID"),
    ('g', "group", "GROUP"),
    ('G', "group", "GROUP"),
    ('i', "jobid", "JOBID"),
    ('j', "jobname", "NAME"),
    ('k', "comment", "COMMENT"),
    ('K', "arraytaskid", "ARRAY_TASK_ID"),
    ('l', "timelimitshort", "TIME_LIMIT"),
    ('L', "timeleft", "TIME_LEFT"),
    ('m', "reqmem", "MIN_MEMORY"),
    ('M', "timeused", "TIME"),
    ('n', "asked", "REQ_NODES"),
    ('N', "nodelist", "NODELIST"),
    ('o', "command", "COMMAND"),
    ('p', "priority", "PRIORITY"),
    ('P', "partition", "PARTITION"),
    ('q', "qos", "QOS"),
    ('Q', "priority", "PRIORITY"),
    ('r', "reason", "REASON"),
    ('R', "nodelistreason", "NODELIST(REASON)"),
    ('S', "start", "START_TIME"),
    ('t', "statecompact", "ST"),
    ('T', "state", "STATE"),
    ('u', "user", "USER"),
    ('U', "uid", "UID"),
    ('V', "submit", "SUBMIT_TIME"),
    ('w', "wckey", "WCKEY"),
    ('Y', "asked", "SCHEDNODES"),
    ('Z', "workdir", "WORK_DIR"),
];

/// Fields that squeue alone has: letter, name for `-O` in lower case, heading, and what Slurm shows of a job that asked for none of
/// it. No job here asks for any but a reservation and a priority ([`cell`]).
const ABSENT: &[(char, &str, &str, &str)] = &[
    ('d', "mintmpdisk", "MIN_TMP_DISK", "0"),
    ('f', "feature", "FEATURES", "(null)"),
    ('h', "oversubscribe", "OVER_SUBSCRIBE", "OK"),
    ('H', "sockets", "SOCKETS_PER_NODE", "*"),
    ('I', "cores", "CORES_PER_SOCKET", "*"),
    ('J', "threads", "THREADS_PER_CORE", "*"),
    ('O', "contiguous", "CONTIGUOUS", "0"),
    ('s', "selectjobinfo", "SELECT_JOBINFO", ""),
    ('v', "reservation", "RESERVATION", "(null)"),
    ('W', "licenses", "LICENSES", "(null)"),
    ('x', "excnodes", "EXC_NODES", ""),
    ('X', "corespec", "CORE_SPEC", "N/A"),
    ('y', "nice", "NICE", "0"),
    ('z', "sct", "S:C:T", "*:*:*"),
    (' ', "schednodes", "SCHEDNODES", "(null)"),
    (' ', "tres-per-node", "TRES_PER_NODE", "N/A"),
];

/// The field of a letter, and its heading.
fn of_letter(letter: char) -> Option<(&'static str, &'static str)> {
    let known = LETTERS.iter().find(|(known, ..)| *known == letter);
    let known = known.map(|(_, name, heading)| (*name, *heading));
    let absent = || ABSENT.iter().find(|(known, ..)| *known == letter && letter != ' ');
    known.or_else(|| absent().map(|(_, name, heading, _)| (*name, *heading)))
}

/// Such a field: its heading, and what is shown.
fn absent(name: &str) -> Option<(&'static str, &'static str)> {
    let found = ABSENT.iter().find(|(_, known, ..)| *known == name);
    found.map(|(_, _, heading, shown)| (*heading, *shown))
}

/// Hosts on which it does not run.
fn excluded(row: &Row) -> String {
    let names = row.asked.hosts.split(' ').filter_map(|word| word.strip_prefix('~'));
    names.collect::<Vec<_>>().join(",")
}

/// The value of a field as squeue writes it, where sacct writes it in another way.
fn cell(row: &Row, name: &str, now: Moment) -> Option<String> {
    match name {
        "arraytaskid" if row.is_several() && row.index().is_none() => {
            let most = row.running_max().map(|most| format!("%{most}")).unwrap_or_default();
            Some(format!("{}{most}", row.elements()))
        }
        "start" if row.estimate.is_some() => Some(super::units::moment(row.estimate, "N/A")),
        "asked" => Some(row.asked.hosts.clone()),
        "feature" if row.asked.features.is_some() => field::value(row, "constraints", now),
        "licenses" if !row.asked.resources.is_empty() => Some(row.asked.resources.clone()),
        "excnodes" => Some(excluded(row)),
        "reservation" if row.asked.reservation.is_some() => row.asked.reservation.clone(),
        // A job that asked for a higher number has a lower priority.
        "nice" => Some((-i64::from(row.asked.priority)).to_string()),
        "timelimitshort" | "timelimit" => {
            let limit = super::units::whole_seconds(row.asked.time_limit_seconds);
            Some(limit.map_or_else(|| "UNLIMITED".to_owned(), super::units::short_span))
        }
        "start" | "end" | "nodelist" | "batchhost" | "dependency" | "account" | "comment"
        | "wckey" => {
            let value = field::value(row, name, now)?;
            let empty = match name {
                "nodelist" => "",
                "batchhost" => "n/a",
                "start" | "end" => "N/A",
                _ => "(null)",
            };
            Some(if value.is_empty() || value == "Unknown" { empty.to_owned() } else { value })
        }
        "maxrss" | "averss" => Some(String::new()),
        _ => match absent(name) {
            Some((_, shown)) => Some(shown.to_owned()),
            None => field::value(row, name, now),
        },
    }
}

/// A line for each row, and one of headings.
fn of_letters(format: &str, rows: &[Row], given: &Given, now: Moment) -> Result<String> {
    let pieces = pieces(format);
    for piece in &pieces {
        if let Piece::Column(letter, _) = piece {
            ensure!(of_letter(*letter).is_some(), "Invalid job format specification: {letter}");
        }
    }
    let mut text = String::new();
    if !given.has("noheader") {
        text += &line(&pieces, |letter| {
            of_letter(letter).map_or("", |(_, heading)| heading).to_owned()
        });
        text.push('\n');
    }
    for row in rows {
        let of = |letter| of_letter(letter).and_then(|(name, _)| cell(row, name, now));
        text += &line(&pieces, |letter| of(letter).unwrap_or_default());
        text.push('\n');
    }
    Ok(text)
}

/// One column of `-O`: its field, its heading, its room, and what follows it.
struct Long {
    name: String,
    heading: String,
    room: Room,
    after: String,
}

/// Reads what follows a name in `-O`: `:10`, `:.8|` or nothing. 20 characters wide unless it says so; a text behind the width follows
/// the column.
pub fn room(text: &str) -> Result<(Room, &str)> {
    let (side, rest) = match text.strip_prefix('.') {
        Some(rest) => (Side::Right, rest),
        None => (Side::Left, text),
    };
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let width = match &rest[..digits] {
        "" if rest.is_empty() => Some(20),
        "" => None,
        digits => Some(digits.parse().context("invalid width")?),
    };
    Ok((Room { width, side }, &rest[digits..]))
}

/// Reads `JobID:10,State:.8,Name`: 20 characters wide unless it says so; a text behind the width follows the column.
fn long_columns(format: &str) -> Result<Vec<Long>> {
    let column = |part: &str| {
        let (name, room) = part.split_once(':').unwrap_or((part, ""));
        // Here the number alone; JobArrayID is what others call JobID.
        let plain = match field::plain(name) {
            id if id == "jobid" && !name.eq_ignore_ascii_case("jobarrayid") => {
                "jobidraw".to_owned()
            }
            plain => plain,
        };
        let heading = field::FIELDS
            .iter()
            .find(|(known, ..)| *known == plain)
            .map(|(_, heading, ..)| *heading)
            .or_else(|| absent(&plain).map(|(heading, _)| heading));
        let extra = ["nodelistreason", "timeused", "timeleft", "statecompact"];
        ensure!(
            heading.is_some() || extra.contains(&&plain[..]),
            "Invalid job format specification: {name}"
        );
        let (room, after) = self::room(room)?;
        let heading = match &plain[..] {
            "nodelistreason" => "NODELIST(REASON)",
            "timeleft" => "TIME_LEFT",
            "statecompact" => "ST",
            _ => heading.unwrap_or("TIME"),
        };
        Ok(Long { name: plain, heading: heading.to_owned(), room, after: after.to_owned() })
    };
    format.split(',').map(str::trim).filter(|part| !part.is_empty()).map(column).collect()
}

fn of_names(format: &str, rows: &[Row], given: &Given, now: Moment) -> Result<String> {
    let columns = long_columns(format)?;
    let mut text = String::new();
    let mut add = |cells: &mut dyn Iterator<Item = String>| {
        for (column, cell) in columns.iter().zip(cells) {
            text.push_str(&column.room.fit(&cell, None));
            text.push_str(&column.after);
        }
        text.push('\n');
    };
    if !given.has("noheader") {
        add(&mut columns.iter().map(|column| column.heading.clone()));
    }
    for row in rows {
        add(&mut columns.iter().map(|column| cell(row, &column.name, now).unwrap_or_default()));
    }
    Ok(text)
}

/// Sorts rows as `--sort=P,-t,i` says: by the letters of `-o`, each with a minus for the greatest first.
fn sort(rows: &mut [Row], keys: &str, now: Moment) -> Result<()> {
    let read = |key: &str| {
        let letter = key.trim().trim_start_matches(['+', '-']).chars().next();
        let field = letter.and_then(of_letter).map(|(name, _)| name);
        let field = field.with_context(|| format!("Invalid sort specification: {key}"))?;
        Ok((field, key.trim().starts_with('-')))
    };
    let keys = keys.split(',').map(read).collect::<Result<Vec<_>>>()?;
    rows.sort_by(|one, other| {
        let by = |(field, is_reversed): &(&str, bool)| {
            let value = |row: &Row| match *field {
                "jobid" => row_number(row),
                field => cell(row, field, now).unwrap_or_default(),
            };
            let order = compare(&value(one), &value(other));
            if *is_reversed { order.reverse() } else { order }
        };
        keys.iter().map(by).fold(Ordering::Equal, Ordering::then)
    });
    Ok(())
}

fn row_number(row: &Row) -> String {
    row.number().to_string()
}

/// Numbers by their size, all else by its letters.
pub fn compare(one: &str, other: &str) -> Ordering {
    match (one.parse::<f64>(), other.parse::<f64>()) {
        (Ok(one), Ok(other)) => one.total_cmp(&other),
        _ => one.cmp(other),
    }
}

/// Whether a task has one of the reservations and one of the resources that were named, if some were.
fn has_what_is_named(row: &Row, given: &Given) -> bool {
    let (reservations, licenses) = (given.list("reservation"), given.list("licenses"));
    let mut names = row.asked.resources.split(',').filter_map(|part| part.split(':').next());
    let reservation = row.asked.reservation.as_deref();
    (reservations.is_empty() || reservation.is_some_and(|name| reservations.contains(&name)))
        && (licenses.is_empty() || names.any(|name| licenses.contains(&name)))
}

/// Runs it; the exit code is 1 if jobs were named and none of them is known.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    let mut given = GRAMMAR.read_command(arguments)?;
    given.fill_from("SQUEUE_", VARIABLES);
    super::iterated(&given, || list(&given))
}

fn list(given: &Given) -> Result<ExitCode> {
    let choice = Choice::of(given)?;
    let mut client = client()?;
    // `--job 1,2` and `--job` with the ids in the next word are both written.
    let ids: Vec<&str> = given
        .list("jobs")
        .into_iter()
        .chain(given.words.iter().flat_map(|word| word.split(',')))
        .collect();
    let targets = targets(&ids, &mut client)?;
    let shows_ended = choice.is_about_states() || given.has("states");
    let found = rows(&mut client, targets.as_deref(), shows_ended || targets.is_some())?;
    ensure!(
        targets.is_none() || !found.is_empty(),
        "slurm_load_jobs error: Invalid job id specified"
    );
    let shown =
        |row: &Row| (shows_ended || row.view.ended.is_none()) && has_what_is_named(row, given);
    let mut found: Vec<Row> =
        found.into_iter().filter(|row| shown(row) && choice.takes(row)).collect();
    if given.has("array") {
        found = found.into_iter().flat_map(Row::into_elements).collect();
    }
    // As Slurm: what waits before what runs, what is held after what may start.
    found.sort_by_key(|row| (state::order(row.view.state), row.view.state == JobState::Held));
    let now = now();
    if given.has("start") {
        // As with --states=PENDING and --sort=S, unless something else is said.
        let waits = |row: &Row| matches!(row.view.state, JobState::Pending | JobState::Held);
        found.retain(|row| given.has("states") || waits(row));
        estimate(&mut client, &mut found, now)?;
    }
    let by_start = given.has("start").then_some("S");
    if let Some(keys) = given.value("sort").or(by_start) {
        sort(&mut found, keys, now)?;
    }
    if given.has("json") {
        out!("{}", super::json::squeue(&found, now));
        return Ok(ExitCode::SUCCESS);
    }
    let text = match (given.value("Format"), given.value("format")) {
        (Some(names), _) => of_names(names, &found, given, now)?,
        (None, Some(format)) => of_letters(format, &found, given, now)?,
        (None, None) if given.has("long") => {
            let lines = of_letters(LONG, &found, given, now)?;
            if given.has("noheader") { lines } else { format!("{}\n{lines}", date(now)) }
        }
        (None, None) if given.has("start") => of_letters(START, &found, given, now)?,
        (None, None) => of_letters(FORMAT, &found, given, now)?,
    };
    // Unit separators that a caller wrote into its format stay what they are.
    crate::output::put(super::plain_output(&text).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_of_long_formats_have_widths_and_what_follows_them() {
        let columns = long_columns("JobID:10,State:.8|,Name,UserName:\u{1f}").unwrap();
        let seen: Vec<_> = columns
            .iter()
            .map(|c| {
                (c.name.as_str(), c.heading.as_str(), c.room.width, c.room.side, c.after.as_str())
            })
            .collect();
        assert_eq!(
            seen,
            [
                ("jobidraw", "JOBID", Some(10), Side::Left, ""),
                ("state", "STATE", Some(8), Side::Right, "|"),
                ("jobname", "NAME", Some(20), Side::Left, ""),
                ("user", "USER", None, Side::Left, "\u{1f}"),
            ]
        );
        assert!(long_columns("NoSuch").is_err());
    }

    #[test]
    fn numbers_are_sorted_by_size_and_words_by_letters() {
        assert_eq!(compare("9", "10"), Ordering::Less);
        assert_eq!(compare("9", "a"), Ordering::Less);
        assert_eq!(compare("b", "a"), Ordering::Greater);
        assert!(sort(&mut [], "P,-t,+i", Moment(0)).is_ok());
        assert!(sort(&mut [], "ä", Moment(0)).is_err());
    }

    #[test]
    fn the_headings_are_those_of_squeue() {
        let text = of_letters(FORMAT, &[], &Given::default(), Moment(0)).unwrap();
        let slurm = "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)\n";
        assert_eq!(text, slurm);
        assert!(of_letters("%ä", &[], &Given::default(), Moment(0)).is_err());
    }
}
