//! sprio: what decides which waiting job goes next.
//!
//! A grid serves queues by priority; in a queue users take turns, as they come or by fair share; of a user goes what he wants most. So the
//! priority of a job is its place in that order: the job with the highest one goes first.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use forebay_engine::protocol::{Answer, Ask};
use forebay_grid::state::JobState;
use forebay_grid::vocabulary::{JobId, Target};

use super::super::columns::{Piece, line, pieces};
use super::super::row::{Row, client, rows};
use super::super::words::{Grammar, Opt, Style, Takes, Until, harmless, read};
use super::choice::{Choice, targets};
use super::field;

use Takes::{Maybe, Nothing, Value};

const OPTIONS: &[Opt] = &[
    harmless("clusters", 'M', Value),
    harmless("federation", ' ', Nothing),
    read("format", 'o', Value),
    read("jobs", 'j', Maybe),
    harmless("local", ' ', Nothing),
    read("long", 'l', Nothing),
    read("noheader", 'h', Nothing),
    read("norm", 'n', Nothing),
    read("partition", 'p', Value),
    harmless("sibling", ' ', Nothing),
    harmless("sort", 'S', Value),
    read("user", 'u', Value),
    harmless("verbose", 'v', Nothing),
    read("version", 'V', Nothing),
    harmless("weights", 'w', Nothing),
];

const GRAMMAR: Grammar =
    Grammar { command: "sprio", style: Style::Gnu, until: Until::End, tables: &[OPTIONS] };

const FORMAT: &str = "%.15i %9r %.10Y %.10S %.10F %.10P";
const LONG: &str = "%.15i %9r %.8u %.10Y %.10S %.10A %.10B %.10F %.10J %.10P %.10Q %.11N %.20T";
const NORM: &str = "%.15i %9r %.10y %.10f %.10p";

/// The letters of `-o` and their headings.
const LETTERS: &[(char, &str)] = &[
    ('a', "AGE"),
    ('A', "AGE"),
    ('b', "ASSOC"),
    ('B', "ASSOC"),
    ('c', "CLUSTER"),
    ('f', "FAIRSHARE"),
    ('F', "FAIRSHARE"),
    ('i', "JOBID"),
    ('j', "JOBSIZE"),
    ('J', "JOBSIZE"),
    ('N', "NICE"),
    ('p', "PARTITION"),
    ('P', "PARTITION"),
    ('q', "QOS"),
    ('Q', "QOS"),
    ('r', "PARTITION"),
    ('S', "SITE"),
    ('t', "TRES"),
    ('T', "TRES"),
    ('u', "USER"),
    ('y', "PRIORITY"),
    ('Y', "PRIORITY"),
];

/// What the order of waiting jobs depends on.
#[derive(Clone, Debug, PartialEq)]
struct Waiting {
    job: JobId,
    user: String,
    queue: (i64, String),
    own: i32,
    /// Priority of its user, where users take turns by fair share.
    fair_share: Option<f64>,
}

/// The jobs in the order in which they go.
fn order(waiting: &[Waiting]) -> Vec<JobId> {
    let mut queues: BTreeMap<(i64, &str), BTreeMap<&str, Vec<&Waiting>>> = BTreeMap::new();
    for one in waiting {
        let queue = (-one.queue.0, &one.queue.1[..]);
        queues.entry(queue).or_default().entry(&one.user).or_default().push(one);
    }
    let mut order = Vec::with_capacity(waiting.len());
    for (_, mut users) in queues {
        for own in users.values_mut() {
            // Taken from the end.
            own.sort_by_key(|one| (one.own, std::cmp::Reverse(one.job)));
        }
        while let Some(user) = next(&users) {
            let user = user.to_owned();
            order.extend(users.get_mut(&user[..]).and_then(Vec::pop).map(|one| one.job));
        }
    }
    order
}

/// Whose turn it is.
fn next<'a>(users: &BTreeMap<&'a str, Vec<&Waiting>>) -> Option<&'a str> {
    let heads = users.iter().filter_map(|(user, own)| Some((*user, *own.last()?)));
    let first = heads.min_by(|(_, one), (_, other)| {
        let share = |of: &Waiting| of.fair_share.unwrap_or(0.0);
        share(other).total_cmp(&share(one)).then(one.job.cmp(&other.job))
    });
    first.map(|(user, _)| user)
}

/// A cell of a job: `place` is its place among `all`, counted from 0.
fn cell(row: &Row, letter: char, (place, all): (usize, usize), queue: Option<u32>) -> String {
    let name = |name| field::value(row, name, row.view.submitted).unwrap_or_default();
    let share = row.asked.fair_share;
    match letter {
        'i' => row.target.job.to_string(),
        'r' => name("partition"),
        'u' => name("user"),
        'c' => name("cluster"),
        'Y' => (all - place).to_string(),
        'y' => fraction(all - place, all),
        'F' => share.map_or_else(|| "0".to_owned(), |share| format!("{:.0}", share * 1000.0)),
        'f' => share.map_or_else(|| "0.0000000".to_owned(), |share| format!("{share:.7}")),
        'P' | 'p' => queue.unwrap_or(0).to_string(),
        // A job that asked for a higher number has a lower priority.
        'N' => (-i64::from(row.asked.priority)).to_string(),
        'T' | 't' => String::new(),
        _ => "0".to_owned(),
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn fraction(part: usize, whole: usize) -> String {
    format!("{:.10}", part as f64 / whole.max(1) as f64)
}

/// Runs it; the exit code is 1 if a job was named that does not wait.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    let given = GRAMMAR.read_command(arguments)?;
    let usual = match (given.has("norm"), given.has("long")) {
        (true, _) => NORM,
        (false, true) => LONG,
        (false, false) => FORMAT,
    };
    let pieces = pieces(given.value("format").unwrap_or(usual));
    for piece in &pieces {
        if let Piece::Column(letter, _) = piece {
            let known = LETTERS.iter().any(|(known, _)| known == letter);
            ensure!(known, "Invalid job format specification: {letter}");
        }
    }
    let mut client = client()?;
    let Answer::Queues { queues, .. } = client.ask(&Ask::Queues)? else {
        bail!("the controller is a different version");
    };
    let of_queue = |row: &Row| queues.iter().find(|queue| queue.name == row.view.queue);
    let priority = |row: &Row| of_queue(row).and_then(|queue| queue.priority);
    let mut ids = given.list("jobs");
    ids.extend(given.words.iter().flat_map(|word| word.split(',')));
    let named = targets(&ids, &mut client)?;
    let pending = |row: &Row| row.view.state == JobState::Pending;
    let mut found = rows(&mut client, None, false)?;
    found.retain(pending);
    found.dedup_by_key(|row| row.target.job);
    let waiting: Vec<Waiting> = found
        .iter()
        .map(|row| Waiting {
            job: row.target.job,
            user: row.view.user.to_string(),
            queue: (priority(row).map_or(-1, i64::from), row.view.queue.to_string()),
            own: row.asked.priority,
            fair_share: row.asked.fair_share,
        })
        .collect();
    let order = order(&waiting);
    let places: BTreeMap<JobId, usize> = order.iter().copied().zip(0..).collect();
    let choice = Choice::of(&given)?;
    let is_named = |row: &Row| {
        let of = |target: &Target| target.job == row.target.job;
        named.as_ref().is_none_or(|named| named.iter().any(of))
    };
    found.retain(|row| choice.takes(row) && is_named(row));
    ensure!(
        named.is_none() || !found.is_empty(),
        "Unable to find jobs matching user/id(s) specified"
    );
    let mut text = String::new();
    if !given.has("noheader") {
        let heading = |letter| LETTERS.iter().find(|(known, _)| *known == letter);
        text += &line(&pieces, |letter| heading(letter).map_or("", |(_, text)| *text).to_owned());
        text.push('\n');
    }
    for row in &found {
        let place = (places[&row.target.job], places.len());
        text += &line(&pieces, |letter| cell(row, letter, place, priority(row)));
        text.push('\n');
    }
    crate::output::put(super::plain_output(&text).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_ordered_by_queue_turn_and_own_priority() {
        let one = |job, user: &str, queue: (i64, &str), own, fair_share| Waiting {
            job: JobId(job),
            user: user.to_owned(),
            queue: (queue.0, queue.1.to_owned()),
            own,
            fair_share,
        };
        let of = |waiting: &[Waiting]| order(waiting).iter().map(|job| job.0).collect::<Vec<_>>();
        let normal = (10, "normal");
        let jobs = [
            one(1, "ann", normal, 0, None),
            one(2, "ann", normal, 5, None),
            one(3, "bob", normal, 0, None),
            one(4, "bob", (20, "urgent"), 0, None),
        ];
        // Ann's turn begins with what she wants most, which came after her first job and before Bob's.
        assert_eq!(of(&jobs), [4, 2, 1, 3]);
        let shared = [
            one(1, "ann", normal, 0, Some(0.2)),
            one(2, "ann", normal, 0, Some(0.2)),
            one(3, "bob", normal, 0, Some(0.9)),
        ];
        assert_eq!(of(&shared), [3, 1, 2]);
        assert_eq!(of(&[]), [0; 0]);
    }
}
