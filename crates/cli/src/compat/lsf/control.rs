//! bkill, bstop, bresume, brequeue.

use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer, Ask, Refusal, RefusalKind};
use forebay_grid::event::Verb;
use forebay_grid::vocabulary::Target;

use super::super::row::{Row, client, rows};
use super::super::signal::verb_of;
use super::super::words::{Given, Grammar, Opt, Style, Takes, Until, harmless, read, refused};
use super::state::{self, targets};

use Takes::{Nothing, Value};

/// Which jobs. What would choose fewer jobs than are chosen here is refused, as others would be hit.
const CHOICE: &[Opt] = &[
    refused(
        "app",
        ' ',
        Value,
        "jobs are not chosen by application profile; use -g, -J, -m, -P, -q or -u",
    ),
    read("g", ' ', Value),
    refused("G", ' ', Value, "jobs are not chosen by user group; use -u"),
    read("J", ' ', Value),
    read("m", ' ', Value),
    read("P", ' ', Value),
    read("q", ' ', Value),
    read("u", ' ', Value),
];

const BKILL: &[Opt] = &[
    harmless("b", ' ', Nothing),
    harmless("C", ' ', Value),
    harmless("d", ' ', Nothing),
    harmless("r", ' ', Nothing),
    read("s", ' ', Value),
    read("stat", ' ', Value),
];

const BSTOP: &[Opt] = &[harmless("a", ' ', Nothing), harmless("C", ' ', Value)];

const BREQUEUE: &[Opt] = &[
    read("a", ' ', Nothing),
    read("d", ' ', Nothing),
    read("e", ' ', Nothing),
    refused("H", ' ', Nothing, "run bstop as soon as the job waits"),
    read("p", ' ', Nothing),
    read("r", ' ', Nothing),
];

/// The states of jobs that the options choose, in LSF's words; any if none.
fn states(given: &Given) -> Result<Option<Vec<&'static str>>> {
    let mut states = Vec::new();
    match given.value("stat").map(str::to_ascii_lowercase).as_deref() {
        None => {}
        Some("run") => states.push("RUN"),
        Some("pend") => states.push("PEND"),
        Some("susp") => states.extend(["PSUSP", "USUSP"]),
        Some(other) => bail!("-stat {other}: choose from run, pend and susp"),
    }
    let chosen: [(&str, &[&str]); 4] =
        [("d", &["DONE"]), ("e", &["EXIT"]), ("p", &["PEND", "PSUSP"]), ("r", &["RUN", "USUSP"])];
    for (option, of_option) in chosen {
        states.extend(of_option.iter().filter(|_| given.has(option)));
    }
    Ok(Some(states).filter(|states| !states.is_empty() && !given.has("a")))
}

/// The jobs that are named or chosen.
fn chosen(client: &mut Client, given: &Given) -> Result<Vec<Target>> {
    let mut named: Vec<Target> = Vec::new();
    for word in given.words.iter().flat_map(|word| word.split_whitespace()) {
        named.extend(targets(word)?);
    }
    let states = states(given)?;
    let has_ended = |state: &&str| ["DONE", "EXIT"].contains(state);
    let ended = given.has("a") || states.iter().flatten().any(has_ended);
    let is_chosen = |row: &Row| {
        states.as_ref().is_none_or(|states| states.contains(&state::of(row.view.state)))
    };
    if !named.is_empty() {
        if states.is_none() {
            return Ok(named);
        }
        let found = rows(client, Some(&named[..]), true)?;
        return Ok(found.iter().filter(|row| is_chosen(row)).map(|row| row.target).collect());
    }
    let chooses = !given.words.is_empty()
        || states.is_some()
        || ["a", "g", "J", "m", "P", "q", "u"].iter().any(|option| given.has(option));
    ensure!(chooses, "Job ID or selection options are missing");
    let found = rows(client, None, ended)?;
    let taken = found.iter().filter(|row| state::takes(row, given) && is_chosen(row));
    let mut taken: Vec<Target> = taken.map(|row| row.target).collect();
    taken.dedup();
    Ok(taken)
}

/// Does something to the jobs that are named or chosen, and says so of each.
fn run(
    command: &'static str,
    own: &'static [&'static [Opt]],
    (verb, done): (Verb, &str),
    arguments: &[String],
) -> Result<ExitCode> {
    let grammar = Grammar { command, style: Style::Lsf, until: Until::End, tables: own };
    let given = grammar.read(arguments)?;
    let verb = given.value("s").map_or(Ok(verb), |signal| verb_of("-s ", signal))?;
    let mut client = client()?;
    let wanted = chosen(&mut client, &given)?;
    if wanted.is_empty() {
        note!("No matching job found");
        return Ok(ExitCode::from(255));
    }
    let mut code = ExitCode::SUCCESS;
    for target in wanted {
        match client.ask(&Ask::Command { target, verb }) {
            Ok(Answer::Obeyed { .. }) => outln!("Job <{target}> is being {done}"),
            Ok(answer) => bail!("unexpected answer: {answer:?}"),
            Err(error) => {
                code = ExitCode::from(255);
                match error.downcast_ref::<Refusal>() {
                    Some(refusal) if refusal.kind == RefusalKind::NoJob => {
                        note!("Job <{target}>: No matching job found");
                    }
                    Some(refusal)
                        if refusal.kind == RefusalKind::WrongState && verb == Verb::Kill =>
                    {
                        note!("Job <{target}>: Job has already finished");
                    }
                    Some(refusal) => note!("Job <{target}>: {refusal}"),
                    None => return Err(error),
                }
            }
        }
    }
    Ok(code)
}

/// Runs bkill.
pub fn bkill(arguments: &[String]) -> Result<ExitCode> {
    run("bkill", &[CHOICE, BKILL], (Verb::Kill, "terminated"), arguments)
}

/// Runs bstop.
pub fn bstop(arguments: &[String]) -> Result<ExitCode> {
    run("bstop", &[CHOICE, BSTOP], (Verb::Hold, "stopped"), arguments)
}

/// Runs bresume.
pub fn bresume(arguments: &[String]) -> Result<ExitCode> {
    run("bresume", &[CHOICE, BSTOP], (Verb::Release, "resumed"), arguments)
}

/// Runs brequeue.
pub fn brequeue(arguments: &[String]) -> Result<ExitCode> {
    run("brequeue", &[CHOICE, BREQUEUE], (Verb::Requeue, "requeued"), arguments)
}
