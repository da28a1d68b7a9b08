//! bkill, bstop, bresume, brequeue.

use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use forebay_engine::protocol::{Answer, Ask, Refusal, RefusalKind};
use forebay_grid::event::Verb;
use forebay_grid::vocabulary::Target;

use super::super::row::{client, rows};
use super::super::signal::verb_of;
use super::super::words::{Grammar, Opt, Style, Takes, Until, harmless, read};
use super::state::{self, targets};

use Takes::{Nothing, Value};

const OPTIONS: &[Opt] = &[
    harmless("a", ' ', Nothing),
    harmless("app", ' ', Value),
    harmless("b", ' ', Nothing),
    harmless("C", ' ', Value),
    harmless("d", ' ', Nothing),
    harmless("e", ' ', Nothing),
    harmless("g", ' ', Value),
    harmless("H", ' ', Nothing),
    read("J", ' ', Value),
    read("m", ' ', Value),
    harmless("p", ' ', Nothing),
    read("P", ' ', Value),
    read("q", ' ', Value),
    harmless("r", ' ', Nothing),
    read("s", ' ', Value),
    harmless("stat", ' ', Value),
    read("u", ' ', Value),
    read("V", ' ', Nothing),
];

/// Does something to the jobs that are named or chosen, and says so of each.
fn run(command: &'static str, verb: Verb, done: &str, arguments: &[String]) -> Result<ExitCode> {
    let grammar = Grammar { command, style: Style::Lsf, until: Until::End, tables: &[OPTIONS] };
    let given = grammar.read(arguments)?;
    if given.has("V") {
        note!("{}", super::VERSION);
        return Ok(ExitCode::SUCCESS);
    }
    let verb = given.value("s").map_or(Ok(verb), |signal| verb_of("-s ", signal))?;
    let mut client = client()?;
    let mut wanted: Vec<Target> = Vec::new();
    let mut is_named = false;
    for word in given.words.iter().flat_map(|word| word.split_whitespace()) {
        let found = targets(word)?;
        is_named |= !found.is_empty();
        wanted.extend(found);
    }
    if !is_named {
        let chooses =
            !given.words.is_empty() || ["J", "m", "P", "q", "u"].iter().any(|o| given.has(o));
        ensure!(chooses, "Job ID or selection options are missing");
        let found = rows(&mut client, None, false)?;
        wanted.extend(found.iter().filter(|row| state::takes(row, &given)).map(|row| row.target));
        wanted.dedup();
        if wanted.is_empty() {
            note!("No matching job found");
            return Ok(ExitCode::from(255));
        }
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
    run("bkill", Verb::Kill, "terminated", arguments)
}

/// Runs bstop.
pub fn bstop(arguments: &[String]) -> Result<ExitCode> {
    run("bstop", Verb::Hold, "stopped", arguments)
}

/// Runs bresume.
pub fn bresume(arguments: &[String]) -> Result<ExitCode> {
    run("bresume", Verb::Release, "resumed", arguments)
}

/// Runs brequeue.
pub fn brequeue(arguments: &[String]) -> Result<ExitCode> {
    run("brequeue", Verb::Requeue, "requeued", arguments)
}
