//! `scontrol update` and `scontrol top`.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer, Ask};
use forebay_grid::event::QueueVerb;
use forebay_grid::journal::HostSwitch;
use forebay_grid::modify::{Changes, Rank, Set};
use forebay_grid::parse::features::Features;
use forebay_grid::parse::period::Period;
use forebay_grid::spec::Rerun;
use forebay_grid::vocabulary::{JobId, Moment, QueueName};

use super::super::row::{client, known};
use super::units::{begin_time, memory, time_limit};
use super::{choice, dependency, hostlist, resources};
use crate::commands::grid::modify::change;

/// Carries out `scontrol update NAME=VALUE...`; the exit code is 1 if something was refused.
///
/// # Errors
/// If it is not clear what is to be changed.
pub fn update(words: &[&str]) -> Result<ExitCode> {
    let mut given = Vec::new();
    for word in words {
        let (key, value) = word.split_once('=').with_context(|| {
            format!("{word}: write NAME=VALUE, such as: scontrol update JobId=12 TimeLimit=60")
        })?;
        given.push((key.to_ascii_lowercase(), value));
    }
    let Some(((what, names), rest)) = given.split_first() else {
        bail!("what to change is missing, such as: scontrol update JobId=12 TimeLimit=60");
    };
    let mut client = client()?;
    match &what[..] {
        "jobid" | "job" => {
            let ids: Vec<&str> = names.split(',').collect();
            let jobs = jobs(&ids, &mut client)?;
            let mut changes = Changes::default();
            let mut more = None;
            for (key, value) in rest {
                match difference(key, value)? {
                    Some(minutes) => more = Some(minutes),
                    None => set(&mut changes, key, value, &mut client)?,
                }
            }
            ensure!(more.is_some() || !changes.is_empty(), "nothing to change was given");
            let Some(more) = more else { return change_all(&mut client, jobs, &changes) };
            let mut code = ExitCode::SUCCESS;
            for job in jobs {
                let time_limit = Some(Set::To(limit_with(&mut client, job, more)?));
                let changes = Changes { time_limit, ..changes.clone() };
                let changed = change_all(&mut client, vec![job], &changes)?;
                code = if changed == ExitCode::SUCCESS { code } else { changed };
            }
            Ok(code)
        }
        "partitionname" | "partition" => {
            let queue: QueueName = names.parse().map_err(anyhow::Error::msg)?;
            for verb in queue_verbs(state_of(rest)?)? {
                obey(&mut client, &Ask::Queue { queue: queue.clone(), verb: *verb })?;
            }
            Ok(ExitCode::SUCCESS)
        }
        "nodename" | "node" => {
            let is_reason = |(key, _): &&(String, &str)| key == "reason";
            if rest.iter().any(|given| is_reason(&given)) {
                note!("scontrol: warning: Reason= has no effect: a Forebay grid keeps none");
            }
            let rest: Vec<(String, &str)> =
                rest.iter().filter(|given| !is_reason(given)).cloned().collect();
            let state = match &state_of(&rest)?.to_ascii_uppercase()[..] {
                "DRAIN" | "DOWN" | "FAIL" => HostSwitch::Closed,
                "RESUME" | "IDLE" | "UNDRAIN" => HostSwitch::Open,
                other => bail!("State={other}: choose DRAIN or RESUME"),
            };
            for name in hostlist::expand(names)? {
                let host = name.parse().map_err(anyhow::Error::msg)?;
                obey(&mut client, &Ask::Host { host, state })?;
            }
            Ok(ExitCode::SUCCESS)
        }
        _ => bail!("{what}: a Forebay grid changes JobId=, PartitionName= and NodeName="),
    }
}

/// Moves jobs before all others of their user in their queue; the first one that is named goes first.
///
/// # Errors
/// If a job is not one.
pub fn top(words: &[&str]) -> Result<ExitCode> {
    let ids: Vec<&str> = words.iter().flat_map(|word| word.split(',')).collect();
    let mut client = client()?;
    let mut jobs = jobs(&ids, &mut client)?;
    jobs.reverse();
    let changes = Changes { rank: Some(Rank::Top), ..Changes::default() };
    change_all(&mut client, jobs, &changes)
}

fn obey(client: &mut Client, ask: &Ask) -> Result<()> {
    match client.ask(ask)? {
        Answer::Obeyed { .. } => Ok(()),
        answer => bail!("unexpected answer: {answer:?}"),
    }
}

/// The only thing that is changed of partitions and nodes.
fn state_of<'a>(given: &[(String, &'a str)]) -> Result<&'a str> {
    match given {
        [(key, value)] if key == "state" => Ok(value),
        _ => bail!("only State= can be changed; the rest is in grid.toml"),
    }
}

fn queue_verbs(state: &str) -> Result<&'static [QueueVerb]> {
    Ok(match &state.to_ascii_uppercase()[..] {
        "UP" => &[QueueVerb::Open, QueueVerb::Activate],
        "DOWN" => &[QueueVerb::Open, QueueVerb::Inactivate],
        "DRAIN" => &[QueueVerb::Close, QueueVerb::Activate],
        "INACTIVE" => &[QueueVerb::Close, QueueVerb::Inactivate],
        other => bail!("State={other}: choose UP, DOWN, DRAIN or INACTIVE"),
    })
}

/// The seconds of `TimeLimit=+30` or `-1:00:00`, by which a limit is changed; none if it is not one of these.
fn difference(key: &str, value: &str) -> Result<Option<i64>> {
    let sign = match value.chars().next() {
        Some('+') => 1,
        Some('-') => -1,
        _ => return Ok(None),
    };
    if key != "timelimit" {
        return Ok(None);
    }
    let read = time_limit(&value[1..]).map_err(anyhow::Error::msg)?;
    let period = read.with_context(|| format!("{key}={value}: invalid value"))?;
    Ok(Some(sign * i64::try_from(period.as_ms() / 1000)?))
}

/// The limit of a job, so much longer.
fn limit_with(client: &mut Client, job: JobId, seconds: i64) -> Result<Period> {
    let rows = known(client, job.into())?.context("Invalid job id specified")?;
    let limit = rows.first().and_then(|row| row.asked.time_limit_seconds);
    let limit = super::units::whole_seconds(limit);
    let limit = limit
        .with_context(|| format!("job {job} has no time limit of its own: give a whole one"))?;
    let changed = i64::try_from(limit)?.checked_add(seconds).filter(|changed| *changed > 0);
    let changed =
        changed.with_context(|| format!("job {job}: its time limit is only {limit} s"))?;
    Ok(Period::seconds(u64::try_from(changed)?))
}

/// Whole jobs.
fn jobs(ids: &[&str], client: &mut Client) -> Result<Vec<JobId>> {
    let targets = choice::targets(ids, client)?.context("a job is missing")?;
    let mut jobs = Vec::new();
    for target in targets {
        ensure!(
            target.index.is_none(),
            "{target}: an element of an array cannot be changed by itself; name the array"
        );
        jobs.push(target.job);
    }
    Ok(jobs)
}

fn change_all(client: &mut Client, jobs: Vec<JobId>, changes: &Changes) -> Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for job in jobs {
        if let Err(error) = change(client, job, changes.clone()) {
            note!("scontrol: error: job {job}: {}", crate::output::chain(&error));
            code = ExitCode::from(1);
        }
    }
    Ok(code)
}

fn or_nothing<T>(value: Option<T>) -> Set<T> {
    value.map_or(Set::Nothing, Set::To)
}

fn moment(key: &str, value: &str) -> Result<Set<Moment>> {
    let at = begin_time(value, super::now(), &jiff::tz::TimeZone::system());
    Ok(Set::To(at.with_context(|| format!("{key}={value}: invalid time"))?))
}

/// Takes over one `NAME=VALUE` of a job.
fn set(changes: &mut Changes, key: &str, value: &str, client: &mut Client) -> Result<()> {
    let refused = || format!("{key}={value}: invalid value");
    match key {
        "partition" => changes.queue = Some(value.parse().map_err(anyhow::Error::msg)?),
        "jobname" | "name" => changes.name = Some(value.to_owned()),
        "account" => changes.project = Some(value.to_owned()),
        "numcpus" | "mincpusnode" => {
            let least = value.split('-').next().unwrap_or_default();
            changes.slots = Some(least.parse().with_context(refused)?);
        }
        "minmemorynode" => {
            changes.memory = Some(or_nothing(memory(value).map_err(anyhow::Error::msg)?));
        }
        "timelimit" => {
            changes.time_limit = Some(or_nothing(time_limit(value).map_err(anyhow::Error::msg)?));
        }
        "priority" => {
            // Slurm's numbers are of another scale; what counts here is the order.
            changes.priority = Some(value.parse::<i32>().with_context(refused)?);
        }
        "nice" => {
            let nice: i32 = value.parse().with_context(refused)?;
            changes.priority = Some(nice.saturating_neg());
        }
        "reqnodelist" | "nodelist" => {
            let names = hostlist::expand(value)?;
            ensure!(names.len() <= 1, "{key}={value}: a job runs on one host, so name one");
            changes.hosts = Some(names.first().map_or("all", String::as_str).parse()?);
        }
        "excnodelist" => {
            let names = hostlist::expand(value)?;
            let without: Vec<String> = names.iter().map(|name| format!("~{name}")).collect();
            changes.hosts = Some(format!("all {}", without.join(" ")).trim().parse()?);
        }
        "dependency" if value.is_empty() => changes.depends = Some(Set::Nothing),
        "dependency" => changes.depends = Some(Set::To(dependency::read(value, client)?)),
        "starttime" | "eligibletime" => changes.begin = Some(moment(key, value)?),
        "deadline" => changes.deadline = Some(moment(key, value)?),
        "features" => {
            let read = Some(value).filter(|value| !value.is_empty());
            let read = read.map(Features::of_slurm);
            changes.features = Some(or_nothing(read.transpose().with_context(refused)?));
        }
        "gres" | "licenses" | "trespernode" => {
            ensure!(
                changes.resources.is_none(),
                "{key}={value}: give Gres and Licenses together in one of them"
            );
            let all = resources::list(key, value)?;
            changes.resources = Some(all.into_iter().collect());
        }
        "reservation" | "reservationname" => {
            let name = Some(value).filter(|name| !name.is_empty()).map(str::parse).transpose();
            changes.reservation = Some(or_nothing(name.map_err(anyhow::Error::msg)?));
        }
        "requeue" => {
            changes.rerun = Some(match value {
                "0" => Rerun::Once,
                "1" => Rerun::Rerunnable,
                _ => bail!(refused()),
            });
        }
        "arraytaskthrottle" => {
            let most: u32 = value.parse().with_context(refused)?;
            changes.running_max = Some(or_nothing(Some(most).filter(|most| *most > 0)));
        }
        _ => bail!("{key}: this cannot be changed on a Forebay grid"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_limit_may_be_changed_by_a_difference() {
        let of = |key, value| difference(key, value).unwrap();
        assert_eq!(
            (of("timelimit", "+30"), of("timelimit", "-1:00:00")),
            (Some(1800), Some(-3600))
        );
        assert_eq!((of("timelimit", "30"), of("nice", "-5")), (None, None));
        assert!(difference("timelimit", "+x").is_err());
    }

    #[test]
    fn states_of_partitions_are_two_switches() {
        assert_eq!(queue_verbs("drain").unwrap(), [QueueVerb::Close, QueueVerb::Activate]);
        assert!(queue_verbs("x").is_err());
        assert_eq!(state_of(&[("state".into(), "UP")]).unwrap(), "UP");
        assert!(state_of(&[("maxtime".into(), "1")]).is_err());
    }
}
