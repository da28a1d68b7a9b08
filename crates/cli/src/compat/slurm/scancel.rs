//! scancel.

use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer, Ask, Refusal, RefusalKind};
use forebay_grid::event::Verb;
use forebay_grid::vocabulary::Target;

use super::super::row::{client, rows};
use super::super::signal::verb_of;
use super::super::words::{Grammar, Opt, Style, Takes, Until, harmless, read, refused};
use super::choice::{Choice, targets};

use Takes::{Nothing, Value};

const OPTIONS: &[Opt] = &[
    read("account", 'A', Value),
    harmless("batch", 'b', Nothing),
    read("clusters", 'M', Value),
    harmless("ctld", ' ', Nothing),
    harmless("full", 'f', Nothing),
    harmless("hurry", 'H', Nothing),
    refused("interactive", 'i', Nothing, "see with squeue what would be cancelled"),
    read("me", ' ', Nothing),
    read("name", 'n', Value),
    read("jobname", ' ', Value),
    read("nodelist", 'w', Value),
    read("partition", 'p', Value),
    refused("qos", 'q', Value, "a grid has no QOS; use --partition, --account, --name or --user"),
    read("quiet", 'Q', Nothing),
    read("signal", 's', Value),
    read("state", 't', Value),
    read("user", 'u', Value),
    read("verbose", 'v', Nothing),
    read("version", 'V', Nothing),
    refused("wckey", ' ', Value, "a grid has no workload characterization keys; use --account"),
];

/// Variables that stand for an option that is not given, behind `SCANCEL_`.
const VARIABLES: &[(&str, &str)] = &[
    ("ACCOUNT", "account"),
    ("NAME", "name"),
    ("PARTITION", "partition"),
    ("STATE", "state"),
    ("USER", "user"),
    ("VERBOSE", "verbose"),
];

const GRAMMAR: Grammar =
    Grammar { command: "scancel", style: Style::Gnu, until: Until::End, tables: &[OPTIONS] };

/// Does something to a job; whether it was there. One that has ended already needs nothing.
///
/// # Errors
/// If the controller refused it, or does not answer.
pub fn command(client: &mut Client, target: Target, verb: Verb) -> Result<bool> {
    match client.ask(&Ask::Command { target, verb }) {
        Ok(Answer::Obeyed { .. }) => Ok(true),
        Ok(answer) => bail!("unexpected answer: {answer:?}"),
        Err(error) => match error.downcast_ref::<Refusal>() {
            Some(refusal) if refusal.kind == RefusalKind::NoJob => Ok(false),
            Some(refusal) if refusal.kind == RefusalKind::WrongState => Ok(true),
            _ => Err(error),
        },
    }
}

/// Runs it; the exit code is 1 if something was refused.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    let mut given = GRAMMAR.read_command(arguments)?;
    given.fill_from("SCANCEL_", VARIABLES);
    given.value("clusters").map_or(Ok(()), super::spec::refuse_other_clusters)?;
    if let Some(name) = given.value("jobname").map(str::to_owned) {
        given.set("name", name);
    }
    let verb =
        given.value("signal").map_or(Ok(Verb::Kill), |signal| verb_of("--signal=", signal))?;
    let choice = Choice::of(&given)?;
    let ids: Vec<&str> = given
        .words
        .iter()
        .flat_map(|word| word.split([',', ' ']))
        .filter(|id| !id.is_empty())
        .collect();
    if let Some(id) = ids.iter().find(|id| !id.starts_with(|first: char| first.is_ascii_digit())) {
        bail!("Invalid job id {id}");
    }
    ensure!(!ids.is_empty() || !choice.is_everything(), "No job identification provided");
    let mut client = client()?;
    let named = targets(&ids, &mut client)?;
    let chosen = if choice.is_everything() {
        named.clone().unwrap_or_default()
    } else {
        let found = rows(&mut client, named.as_deref(), false)?;
        let mut chosen: Vec<Target> =
            found.into_iter().filter(|row| choice.takes(row)).map(|row| row.target).collect();
        chosen.dedup();
        chosen
    };
    let mut code = ExitCode::SUCCESS;
    for target in chosen {
        match command(&mut client, target, verb) {
            Ok(true) => {}
            // As Slurm: a job that is gone needs nothing, and is named only if that is wanted.
            Ok(false) if named.is_some() && given.has("verbose") => {
                note!(
                    "scancel: error: Kill job error on job id {target}: Invalid job id specified"
                );
            }
            Ok(false) => {}
            Err(error) => {
                code = ExitCode::from(1);
                note!(
                    "scancel: error: Kill job error on job id {target}: {}",
                    crate::output::chain(&error)
                );
            }
        }
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_end_stop_or_continue_a_job() {
        for (signal, verb) in [
            ("SIGTERM", Verb::Kill),
            ("kill", Verb::Kill),
            ("STOP", Verb::Hold),
            ("18", Verb::Release),
        ] {
            assert_eq!(verb_of("--signal=", signal).unwrap(), verb);
        }
        let usr1 = Verb::Signal(forebay_grid::event::JobSignal::Usr1);
        assert_eq!(verb_of("--signal=", "USR1").unwrap(), usr1);
        assert!(verb_of("--signal=", "SEGV").is_err());
    }
}
