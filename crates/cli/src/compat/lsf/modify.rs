//! bmod, bswitch, btop and bbot.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Refusal, RefusalKind};
use forebay_grid::modify::{Changes, Rank, Set};
use forebay_grid::parse::resources::Resources;
use forebay_grid::spec::{Rerun, Sharing};
use forebay_grid::vocabulary::{JobId, QueueName};

use super::super::row::{client, rows};
use super::super::words::{Given, Grammar, Opt, Style, Takes, Until, harmless, read, refused};
use super::bsub::{moment, warning};
use super::group;
use super::requirement::Needs;
use super::state::{self, targets};
use super::units::{memory, run_limit, unit_for_limits};
use crate::commands::grid::modify::change;

use Takes::{Nothing, Value};

const FILES: &str = "the files of a job are chosen when it is submitted";

/// Options of bmod; those that end in n take something away.
const BMOD: &[Opt] = &[
    read("b", ' ', Value),
    read("bn", ' ', Nothing),
    refused("e", ' ', Value, FILES),
    refused("E", ' ', Value, "submit the job again"),
    read("g", ' ', Value),
    read("gn", ' ', Nothing),
    read("gpu", ' ', Value),
    read("gpun", ' ', Nothing),
    read("J", ' ', Value),
    read("M", ' ', Value),
    read("Mn", ' ', Nothing),
    read("m", ' ', Value),
    read("mn", ' ', Nothing),
    read("n", ' ', Value),
    refused("o", ' ', Value, FILES),
    read("P", ' ', Value),
    read("q", ' ', Value),
    read("R", ' ', Value),
    read("Rn", ' ', Nothing),
    read("r", ' ', Nothing),
    read("rn", ' ', Nothing),
    read("sp", ' ', Value),
    read("spn", ' ', Nothing),
    read("t", ' ', Value),
    read("tn", ' ', Nothing),
    read("U", ' ', Value),
    read("Un", ' ', Nothing),
    read("W", ' ', Value),
    read("Wn", ' ', Nothing),
    read("w", ' ', Value),
    read("wa", ' ', Value),
    read("wan", ' ', Nothing),
    read("wn", ' ', Nothing),
    read("wt", ' ', Value),
    read("wtn", ' ', Nothing),
    read("x", ' ', Nothing),
    read("xn", ' ', Nothing),
    refused("Z", ' ', Value, "the command of a job cannot be changed"),
];

const GRAMMAR: Grammar =
    Grammar { command: "bmod", style: Style::Lsf, until: Until::End, tables: &[BMOD] };

/// A value of an option, or nothing by the one that takes it away.
fn set<T>(
    given: &Given,
    (option, without): (&'static str, &'static str),
    read: impl FnOnce(&str) -> Result<Option<T>>,
) -> Result<Option<Set<T>>> {
    if given.has(without) {
        return Ok(Some(Set::Nothing));
    }
    let Some(text) = given.value(option) else { return Ok(None) };
    Ok(Some(read(text)?.map_or(Set::Nothing, Set::To)))
}

/// What bmod's options change.
fn changes(given: &Given) -> Result<Changes> {
    let needs = Needs::of(given)?;
    let limit = |text: &str| memory(text, unit_for_limits().unwrap_or('K'));
    let memory = set(given, ("M", "Mn"), limit)?.or(needs.memory.map(Set::To));
    needs.warn(GRAMMAR.command, memory.as_ref().and_then(Set::value));
    // -J "%20" changes how many elements run at once, and nothing else.
    let (name, throttle) = match given.value("J") {
        Some(text) => match text.rsplit_once('%') {
            Some((name, most)) => (Some(name), Some(most)),
            None => (Some(text), None),
        },
        None => (None, None),
    };
    ensure!(
        name.is_none_or(|name| !name.contains('[')),
        "-J: the elements of an array cannot be changed; -J \"%20\" changes how many run at once"
    );
    let warning = match given.has("wan") || given.has("wtn") {
        true => Some(Set::Nothing),
        false => warning(given)?.map(Set::To),
    };
    let features = match given.has("Rn") {
        true => Some(Set::Nothing),
        false => needs.features.map(Set::To),
    };
    let is_fewer = given.has("Rn") || given.has("gpun");
    let resources = (!needs.resources.is_empty()).then_some(needs.resources);
    let flag = |yes: &str, no: &str| match (given.has(yes), given.has(no)) {
        (true, _) => Some(true),
        (false, true) => Some(false),
        (false, false) => None,
    };
    let number = |option: &str| -> Result<Option<i32>> {
        let read = |text: &str| text.parse().with_context(|| format!("-{option} {text}"));
        given.value(option).map(read).transpose()
    };
    let slots = given.value("n").map(|text| {
        let least = text.split(',').next().unwrap_or_default();
        let slots = least.parse::<u32>().ok().filter(|slots| *slots > 0);
        slots.with_context(|| format!("{text}: Bad processor number"))
    });
    let name = name.filter(|name| !name.is_empty()).map(str::to_owned);
    let throttle = throttle.map(|most| most.parse().with_context(|| format!("-J %{most}")));
    Ok(Changes {
        queue: given.value("q").map(str::parse).transpose().map_err(anyhow::Error::msg)?,
        name,
        slots: slots.transpose()?,
        hosts: match given.has("mn") {
            true => Some("all".parse()?),
            false => given.value("m").map(str::parse).transpose()?,
        },
        memory,
        resources: resources.or(is_fewer.then(Resources::default)),
        sharing: flag("x", "xn")
            .map(|alone| if alone { Sharing::Exclusive } else { Sharing::Shared }),
        depends: set(given, ("w", "wn"), |text| Ok(Some(text.parse()?)))?,
        begin: set(given, ("b", "bn"), |_| moment(given, "b"))?,
        deadline: set(given, ("t", "tn"), |_| moment(given, "t"))?,
        time_limit: set(given, ("W", "Wn"), run_limit)?,
        priority: if given.has("spn") { Some(0) } else { number("sp")? },
        project: given.value("P").map(str::to_owned),
        rerun: flag("r", "rn").map(|again| if again { Rerun::Rerunnable } else { Rerun::Once }),
        group: set(given, ("g", "gn"), |text| {
            if text == "/" { Ok(None) } else { group::path(text).map(Some) }
        })?,
        reservation: set(given, ("U", "Un"), |text| {
            text.parse().map(Some).map_err(anyhow::Error::msg)
        })?,
        warning,
        features,
        running_max: throttle.transpose()?.map(Set::To),
        rank: None,
    })
}

/// The jobs that words name.
fn jobs(words: &[String]) -> Result<Vec<JobId>> {
    let mut jobs = Vec::new();
    for word in words.iter().flat_map(|word| word.split_whitespace()) {
        for target in targets(word)? {
            ensure!(
                target.index.is_none(),
                "{word}: an element of an array cannot be changed by itself; name the array"
            );
            jobs.push(target.job);
        }
    }
    ensure!(!jobs.is_empty(), "Job ID is missing");
    Ok(jobs)
}

/// Changes each job, and says so in LSF's words; the exit code is 255 if one was refused.
fn change_all(
    client: &mut Client,
    jobs: Vec<JobId>,
    changes: &Changes,
    done: &str,
) -> Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for job in jobs {
        match change(client, job, changes.clone()) {
            Ok(_) => outln!("{}", done.replace("{}", &job.to_string())),
            Err(error) => {
                code = ExitCode::from(255);
                match error.downcast_ref::<Refusal>() {
                    Some(refusal) if refusal.kind == RefusalKind::NoJob => {
                        note!("Job <{job}>: No matching job found");
                    }
                    Some(refusal) if refusal.kind == RefusalKind::WrongState => {
                        note!("Job <{job}>: Job has already finished");
                    }
                    Some(refusal) => note!("Job <{job}>: {refusal}"),
                    None => return Err(error),
                }
            }
        }
    }
    Ok(code)
}

/// Runs bmod.
pub fn bmod(arguments: &[String]) -> Result<ExitCode> {
    let given = GRAMMAR.read(arguments)?;
    let changes = changes(&given)?;
    ensure!(!changes.is_empty(), "No parameters to modify are given");
    change_all(
        &mut client()?,
        jobs(&given.words)?,
        &changes,
        "Parameters of job <{}> are being changed",
    )
}

/// Options of bswitch, which chooses jobs as bkill does.
const BSWITCH: &[Opt] = &[
    read("J", ' ', Value),
    read("m", ' ', Value),
    read("q", ' ', Value),
    read("u", ' ', Value),
    refused("app", ' ', Value, "jobs are not chosen by application profile"),
    read("g", ' ', Value),
    refused("G", ' ', Value, "jobs are not chosen by user group; use -u"),
];

/// Runs bswitch.
pub fn bswitch(arguments: &[String]) -> Result<ExitCode> {
    let given = Grammar { command: "bswitch", tables: &[BSWITCH], ..GRAMMAR }.read(arguments)?;
    let Some((queue, words)) = given.words.split_first() else { bail!("Queue name is missing") };
    let queue: QueueName = queue.parse().map_err(anyhow::Error::msg)?;
    let mut client = client()?;
    let is_choice = words.iter().all(|word| word == "0");
    let jobs = if is_choice {
        ensure!(
            !words.is_empty() || ["g", "J", "m", "q", "u"].iter().any(|option| given.has(option)),
            "Job ID or selection options are missing"
        );
        let found = rows(&mut client, None, false)?;
        let found = found.iter().filter(|row| state::takes(row, &given));
        let mut jobs: Vec<JobId> = found.map(|row| row.target.job).collect();
        jobs.dedup();
        jobs
    } else {
        jobs(words)?
    };
    if jobs.is_empty() {
        note!("No matching job found");
        return Ok(ExitCode::from(255));
    }
    let done = format!("Job <{{}}> is switched to queue <{queue}>");
    change_all(&mut client, jobs, &Changes { queue: Some(queue), ..Changes::default() }, &done)
}

/// Moves a job; a position that is not 1 is refused.
fn ranked(command: &'static str, rank: Rank, end: &str, arguments: &[String]) -> Result<ExitCode> {
    const OPTIONS: &[Opt] = &[harmless("u", ' ', Value)];
    let given = Grammar { command, tables: &[OPTIONS], ..GRAMMAR }.read(arguments)?;
    let position = given.words.get(1).map_or("1", String::as_str);
    ensure!(
        position == "1" && given.words.len() <= 2,
        "{}: a Forebay grid moves a job to the {end} only",
        given.words[1..].join(" ")
    );
    let jobs = jobs(&given.words[..given.words.len().min(1)])?;
    let changes = Changes { rank: Some(rank), ..Changes::default() };
    let done = format!("Job <{{}}> has been moved to position 1 from {end}.");
    change_all(&mut client()?, jobs, &changes, &done)
}

/// Runs btop.
pub fn btop(arguments: &[String]) -> Result<ExitCode> {
    ranked("btop", Rank::Top, "top", arguments)
}

/// Runs bbot.
pub fn bbot(arguments: &[String]) -> Result<ExitCode> {
    ranked("bbot", Rank::Bottom, "bottom", arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Result<Changes> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        changes(&GRAMMAR.read(&words)?)
    }

    #[test]
    fn options_change_a_job_and_those_with_n_take_away() {
        let changes =
            of(&["-n", "2", "-W", "1:30", "-R", "rusage[mem=512,sas=1]", "-x", "7"]).unwrap();
        assert_eq!((changes.slots, changes.sharing), (Some(2), Some(Sharing::Exclusive)));
        assert_eq!(changes.resources.unwrap().to_string(), "sas:1");
        assert!(changes.memory.is_some() && changes.time_limit.is_some() && changes.name.is_none());
        let changes = of(&["-Wn", "-wn", "-bn", "-xn", "-Rn", "7"]).unwrap();
        assert_eq!(changes.time_limit, Some(Set::Nothing));
        assert_eq!((changes.depends, changes.begin), (Some(Set::Nothing), Some(Set::Nothing)));
        assert_eq!(changes.resources, Some(Resources::default()));
        assert!(of(&["7"]).unwrap().is_empty());
    }

    #[test]
    fn a_throttle_is_changed_and_elements_are_not() {
        let changes = of(&["-J", "%20", "7"]).unwrap();
        assert_eq!((changes.running_max, changes.name), (Some(Set::To(20)), None));
        assert!(of(&["-J", "a[1-3]", "7"]).is_err());
        assert_eq!(of(&["-J", "b", "7"]).unwrap().name.as_deref(), Some("b"));
    }
}
