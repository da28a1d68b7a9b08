//! `scontrol create reservation`, `show reservation` and `delete reservation`.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer, Ask};
use forebay_grid::advance::AdvanceReservation;
use forebay_grid::vocabulary::{HostName, Moment, ReservationName, UserName};
use jiff::tz::TimeZone;

use super::super::row::client;
use super::units::{begin_time, long_span, moment, time_limit};
use super::{hostlist, now};
use crate::commands::grid::reservation::{
    all, create as create_one, delete as delete_one, end_of, list,
};

/// What was given of a reservation.
#[derive(Default)]
struct Wanted {
    name: Option<ReservationName>,
    users: Vec<UserName>,
    hosts: Vec<HostName>,
    start: Option<Moment>,
    end: Option<Moment>,
    lasts: Option<forebay_grid::parse::period::Period>,
    slots: Option<u32>,
}

fn time(key: &str, text: &str) -> Result<Moment> {
    begin_time(text, now(), &TimeZone::system())
        .with_context(|| format!("{key}={text}: Invalid time specification"))
}

impl Wanted {
    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let told = anyhow::Error::msg;
        match key {
            "reservationname" | "reservation" => self.name = Some(value.parse().map_err(told)?),
            "users" | "user" => {
                self.users =
                    value.split(',').map(str::parse).collect::<Result<_, _>>().map_err(told)?;
            }
            "nodes" | "node" => {
                let names = hostlist::expand(value)?;
                self.hosts = names
                    .iter()
                    .map(|name| name.parse())
                    .collect::<Result<_, _>>()
                    .map_err(told)?;
            }
            "starttime" => self.start = Some(time("StartTime", value)?),
            "endtime" => self.end = Some(time("EndTime", value)?),
            "duration" => {
                let lasts = time_limit(value).map_err(told)?;
                self.lasts =
                    Some(lasts.context("Duration: a reservation of a Forebay grid has an end")?);
            }
            "corecnt" => {
                let number = value.parse().ok().filter(|number| *number > 0);
                self.slots =
                    Some(number.with_context(|| format!("CoreCnt={value}: expected a number"))?);
            }
            "flags" => {
                let unknown = value.split(',').find(|flag| {
                    !["IGNORE_JOBS", "SPEC_NODES", "FLEX"].contains(&&*flag.to_ascii_uppercase())
                });
                if let Some(flag) = unknown {
                    bail!("Flags={flag}: not supported by a Forebay grid");
                }
            }
            "accounts" | "account" | "partitionname" | "partition" | "features" | "licenses"
            | "nodecnt" => bail!("{key}: name users with Users= and hosts with Nodes="),
            _ => bail!("invalid entity: {key}"),
        }
        Ok(())
    }
}

/// Creates one from words such as `StartTime=now Duration=60`; `reservation` may come first as a word.
///
/// # Errors
/// If something is missing, or it is refused.
pub fn create(words: &[&str]) -> Result<ExitCode> {
    let words = words.strip_prefix(&["reservation"]).unwrap_or(words);
    let mut wanted = Wanted::default();
    for word in words {
        let (key, value) = word.split_once('=').with_context(|| {
            format!("{word}: write NAME=VALUE, such as: scontrol create reservation StartTime=now Duration=60 Users=ann Nodes=n1")
        })?;
        wanted.set(&key.to_ascii_lowercase(), value)?;
    }
    let Wanted { name, users, mut hosts, start, end, lasts, slots } = wanted;
    ensure!(!users.is_empty(), "Users= is missing");
    ensure!(!hosts.is_empty(), "Nodes= is missing");
    let mut client = client()?;
    if hosts.iter().any(|host| host.as_str().eq_ignore_ascii_case("all")) {
        let Answer::Hosts { hosts: there, .. } = client.ask(&Ask::Hosts)? else {
            bail!("the controller is a different version");
        };
        hosts = there.into_iter().map(|host| host.name).collect();
    }
    let name = name.map_or_else(|| free_name(&users[0], &mut client), Ok)?;
    let start = start.context("StartTime= is missing, such as StartTime=now")?;
    let end = end_of(start, end, lasts).context("give EndTime= or Duration=")?;
    create_one(
        &mut client,
        AdvanceReservation { name: name.clone(), users, hosts, slots, start, end },
    )?;
    outln!("Reservation created: {name}");
    Ok(ExitCode::SUCCESS)
}

/// A name that is free: `ann_1`, as Slurm names them.
fn free_name(user: &UserName, client: &mut Client) -> Result<ReservationName> {
    let known = all(client.ask(&Ask::Reservations)?)?;
    for number in 1..=known.len() + 1 {
        let name: ReservationName =
            format!("{user}_{number}").parse().map_err(anyhow::Error::msg)?;
        if known.iter().all(|other| other.name != name) {
            return Ok(name);
        }
    }
    bail!("no name is free: give ReservationName=")
}

/// Deletes `reservation=NAME`, `ReservationName=NAME` or `reservation NAME`.
///
/// # Errors
/// If there is none of that name.
pub fn delete(words: &[&str]) -> Result<ExitCode> {
    let name = match words {
        [word] => word
            .split_once('=')
            .filter(|(key, _)| {
                ["reservation", "reservationname"].contains(&&*key.to_ascii_lowercase())
            })
            .map(|(_, name)| name),
        [word, name] if word.eq_ignore_ascii_case("reservation") => Some(*name),
        _ => None,
    };
    let name = name.context("write: scontrol delete ReservationName=NAME")?;
    delete_one(&mut client()?, name.parse().map_err(anyhow::Error::msg)?)?;
    Ok(ExitCode::SUCCESS)
}

/// All reservations that are not over, or one.
///
/// # Errors
/// If there is none of that name.
pub fn show(
    client: &mut Client,
    names: &[&str],
    block: impl Fn(&[Vec<(&str, String)>]) -> String,
) -> Result<String> {
    let known = all(client.ask(&Ask::Reservations)?)?;
    let wanted = |of: &&AdvanceReservation| names.is_empty() || names.contains(&of.name.as_str());
    let found: Vec<&AdvanceReservation> = known.iter().filter(wanted).collect();
    if found.is_empty() {
        ensure!(names.is_empty(), "Reservation {} not found", names.join(","));
        return Ok("No reservations in the system\n".to_owned());
    }
    let Answer::Hosts { hosts, .. } = client.ask(&Ask::Hosts)? else {
        bail!("the controller is a different version");
    };
    let now = now();
    let one = |of: &&AdvanceReservation| {
        let slots = hosts.iter().filter_map(|host| of.slots_of(&host.name, host.slots));
        let cores: u32 = slots.sum();
        block(&[
            vec![
                ("ReservationName", of.name.to_string()),
                ("StartTime", moment(Some(of.start), "Unknown")),
                ("EndTime", moment(Some(of.end), "Unknown")),
                ("Duration", long_span(of.end.since(of.start) / 1000)),
            ],
            vec![
                ("Nodes", list(&of.hosts)),
                ("NodeCnt", of.hosts.len().to_string()),
                ("CoreCnt", cores.to_string()),
                ("Features", "(null)".to_owned()),
                ("PartitionName", "(null)".to_owned()),
                ("Flags", "SPEC_NODES".to_owned()),
            ],
            vec![("TRES", format!("cpu={cores}"))],
            vec![
                ("Users", list(&of.users)),
                ("Groups", "(null)".to_owned()),
                ("Accounts", "(null)".to_owned()),
                ("Licenses", "(null)".to_owned()),
                ("State", if of.holds_at(now) { "ACTIVE" } else { "INACTIVE" }.to_owned()),
                ("BurstBuffer", "(null)".to_owned()),
                ("Watts", "n/a".to_owned()),
            ],
            vec![("MaxStartDelay", "(null)".to_owned())],
        ])
    };
    Ok(found.iter().map(one).collect())
}
