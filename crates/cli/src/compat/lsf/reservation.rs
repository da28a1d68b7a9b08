//! brsvadd, brsvdel, brsvs: advance reservations.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer, Ask, HostView};
use forebay_grid::advance::AdvanceReservation;
use forebay_grid::vocabulary::{HostName, Moment, ReservationName, UserName};
use jiff::tz::TimeZone;

use super::super::row::{client, me};
use super::super::words::{Given, Grammar, Opt, Style, Takes, Until, harmless, read, refused};
use super::bsub::moment;
use crate::commands::grid::reservation::{all, create, delete};
use crate::output::Table;

use Takes::{Nothing, Value};

const OPTIONS: &[Opt] = &[
    read("b", ' ', Value),
    harmless("d", ' ', Value),
    read("e", ' ', Value),
    refused("g", ' ', Value, "name users with -u"),
    read("m", ' ', Value),
    read("n", ' ', Value),
    read("N", ' ', Value),
    harmless("o", ' ', Nothing),
    refused("q", ' ', Value, "name users with -u"),
    refused("R", ' ', Value, "name hosts with -m"),
    refused("s", ' ', Nothing, "close hosts with badmin or forebay host close"),
    refused("t", ' ', Value, "a reservation of a Forebay grid is not repeated: give -b and -e"),
    read("u", ' ', Value),
];

fn words(command: &'static str, arguments: &[String]) -> Result<Given> {
    let grammar = Grammar { command, style: Style::Lsf, until: Until::End, tables: &[OPTIONS] };
    grammar.read(arguments)
}

/// Names in an option, with blanks or commas between them.
fn names<T: std::str::FromStr<Err = String>>(given: &Given, option: &str) -> Result<Vec<T>> {
    let text = given.value(option).unwrap_or_default();
    let names = text.split([' ', ',']).filter(|name| !name.is_empty());
    names.map(|name| name.parse().map_err(anyhow::Error::msg)).collect()
}

fn hosts(client: &mut Client) -> Result<Vec<HostView>> {
    match client.ask(&Ask::Hosts)? {
        Answer::Hosts { hosts, .. } => Ok(hosts),
        answer => bail!("unexpected answer: {answer:?}"),
    }
}

/// A name that is free: `user#0`, as LSF names them.
fn free_name(user: &str, known: &[AdvanceReservation]) -> Result<ReservationName> {
    for number in 0..=known.len() {
        let name: ReservationName =
            format!("{user}-{number}").parse().map_err(anyhow::Error::msg)?;
        if known.iter().all(|other| other.name != name) {
            return Ok(name);
        }
    }
    bail!("no name is free: name the reservation with -N")
}

/// Runs brsvadd. Slots (`-n`) are those of all hosts together, taken from the hosts in their order alike.
pub fn brsvadd(arguments: &[String]) -> Result<ExitCode> {
    let given = words("brsvadd", arguments)?;
    let mut client = client()?;
    let known = all(client.ask(&Ask::Reservations)?)?;
    let users: Vec<UserName> = names(&given, "u")?;
    let users =
        if users.is_empty() { vec![me().parse().map_err(anyhow::Error::msg)?] } else { users };
    let mut wanted: Vec<HostName> = names(&given, "m")?;
    let there = hosts(&mut client)?;
    if wanted.is_empty() || wanted.iter().any(|host| host.as_str() == "all") {
        wanted = there.iter().map(|host| host.name.clone()).collect();
    }
    let slots = given.value("n").map(|text| {
        let number = text.parse::<u32>().ok().filter(|number| *number > 0);
        number.with_context(|| format!("{text}: Bad processor number"))
    });
    let slots = slots.transpose()?.map(|slots| each_of(slots, &wanted, &there)).transpose()?;
    let start = moment(&given, "b")?.context("the begin time (-b) is missing")?;
    let end = moment(&given, "e")?.context("the end time (-e) is missing")?;
    let name = match given.value("N") {
        Some(name) => name.parse().map_err(anyhow::Error::msg)?,
        None => free_name(users[0].as_str(), &known)?,
    };
    create(
        &mut client,
        AdvanceReservation {
            name: ReservationName::clone(&name),
            users,
            hosts: wanted,
            slots,
            start,
            end,
        },
    )?;
    outln!("Reservation {name} is created");
    Ok(ExitCode::SUCCESS)
}

/// Slots of each host, if all together are to be so many.
fn each_of(slots: u32, wanted: &[HostName], there: &[HostView]) -> Result<u32> {
    let count = u32::try_from(wanted.len())?.max(1);
    let whole: u32 = there.iter().filter(|h| wanted.contains(&h.name)).map(|h| h.slots).sum();
    ensure!(slots <= whole, "the hosts have {whole} slots together, so {slots} cannot be reserved");
    ensure!(
        slots.is_multiple_of(count),
        "-n {slots}: a reservation of a Forebay grid has the same number of slots on each host: give a multiple of {count}, \
         or name one host with -m"
    );
    Ok(slots / count)
}

/// Runs brsvdel.
pub fn brsvdel(arguments: &[String]) -> Result<ExitCode> {
    let given = words("brsvdel", arguments)?;
    ensure!(!given.words.is_empty(), "the name of a reservation is missing");
    let mut client = client()?;
    for word in &given.words {
        delete(&mut client, word.parse().map_err(anyhow::Error::msg)?)?;
        outln!("Reservation {word} is being deleted");
    }
    Ok(ExitCode::SUCCESS)
}

/// A moment as brsvs shows it: `11/25/20/30`.
fn short(at: Moment) -> String {
    let time = i64::try_from(at.0 / 1000).ok().and_then(|s| jiff::Timestamp::from_second(s).ok());
    let text = |time: jiff::Timestamp| {
        time.to_zoned(TimeZone::system()).strftime("%-m/%-d/%-H/%-M").to_string()
    };
    time.map(text).unwrap_or_default()
}

/// Runs brsvs.
pub fn brsvs(arguments: &[String]) -> Result<ExitCode> {
    let given = words("brsvs", arguments)?;
    let mut client = client()?;
    let wanted = |of: &AdvanceReservation| {
        given.words.is_empty() || given.words.iter().any(|word| word == of.name.as_str())
    };
    let found: Vec<_> = all(client.ask(&Ask::Reservations)?)?.into_iter().filter(wanted).collect();
    if found.is_empty() {
        note!("No reservation found");
        return Ok(ExitCode::SUCCESS);
    }
    let there = hosts(&mut client)?;
    let mut table = Table::new(&["RSVID", "TYPE", "USER", "NCPUS", "RSV_HOSTS", "TIME_WINDOW"]);
    for of in found {
        let slots = |name: &HostName| {
            let host = there.iter().find(|host| host.name == *name);
            of.slots_of(name, host.map_or(0, |host| host.slots)).unwrap_or(0)
        };
        let users: Vec<&str> = of.users.iter().map(UserName::as_str).collect();
        let hosts = of.hosts.iter().map(|name| format!("{name}:{}", slots(name)));
        table.row(vec![
            of.name.to_string(),
            "user".to_owned(),
            users.join(" "),
            of.hosts.iter().map(slots).sum::<u32>().to_string(),
            hosts.collect::<Vec<_>>().join(" "),
            format!("{}-{}", short(of.start), short(of.end)),
        ]);
    }
    out!("{}", table.render());
    Ok(ExitCode::SUCCESS)
}
