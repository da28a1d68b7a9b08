//! busers and blimits: how much users have, and how much users and queues may have.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use forebay_engine::protocol::{Answer, Ask, LimitsView, QueueView};

use super::super::row::{Row, client, me, rows};
use super::super::words::{Grammar, Opt, Style, Takes, Until, harmless, read};
use super::{NOTHING, state};

use Takes::{Nothing, Value};

const BUSERS: &[Opt] = &[harmless("w", ' ', Nothing)];

const BLIMITS: &[Opt] = &[
    harmless("a", ' ', Nothing),
    harmless("c", ' ', Nothing),
    harmless("w", ' ', Nothing),
    read("q", ' ', Value),
];

/// Slots of a user by the states of his jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Slots {
    waiting: u64,
    running: u64,
    suspended: u64,
}

/// What each user has, as far as this one may see it.
fn by_user(rows: &[Row]) -> BTreeMap<String, Slots> {
    let mut users: BTreeMap<String, Slots> = BTreeMap::new();
    for row in rows {
        let slots = u64::from(row.view.slots) * u64::from(row.view.tasks);
        let of = users.entry(row.view.user.to_string()).or_default();
        match state::of(row.view.state) {
            "PEND" | "PSUSP" => of.waiting += slots,
            "USUSP" => of.suspended += slots,
            "RUN" | "UNKWN" => of.running += slots,
            _ => {}
        }
    }
    users
}

fn line(user: &str, most: Option<u32>, of: Slots) -> String {
    let most = most.map_or_else(|| NOTHING.to_owned(), |most| most.to_string());
    format!(
        "{user:<19} {NOTHING:>7} {most:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} \n",
        of.waiting + of.running + of.suspended,
        of.waiting,
        of.running,
        0,
        of.suspended,
        0
    )
}

/// Runs busers: this user, those that are named, or all that have jobs which this one may see.
pub fn busers(arguments: &[String]) -> Result<ExitCode> {
    let grammar =
        Grammar { command: "busers", style: Style::Lsf, until: Until::End, tables: &[BUSERS] };
    let given = grammar.read(arguments)?;
    let mut client = client()?;
    let Answer::Limits { limits: LimitsView { user_slots_max, .. } } = client.ask(&Ask::Limits)?
    else {
        bail!("the controller is a different version");
    };
    let known = by_user(&rows(&mut client, None, false)?);
    let wanted: Vec<String> = match &given.words[..] {
        [] => vec![me()],
        [all] if all == "all" => known.keys().cloned().collect(),
        names => names.to_vec(),
    };
    for name in &wanted {
        let is_there = known.contains_key(name)
            || forebay_process::user::number_of(name).is_ok_and(|number| number.is_some());
        ensure!(is_there, "{name}: Bad user name");
    }
    let mut text = String::from(
        "USER/GROUP             JL/P    MAX  NJOBS   PEND    RUN  SSUSP  USUSP    RSV \n",
    );
    for name in &wanted {
        text += &line(name, user_slots_max, known.get(name).copied().unwrap_or_default());
    }
    out!("{text}");
    Ok(ExitCode::SUCCESS)
}

/// A line for each limit of slots that the settings have.
fn limits_of(limits: &LimitsView, queues: &[QueueView], own: Slots, user: &str) -> String {
    let used = own.running + own.suspended;
    let row = |name: &str, user: &str, queue: &str, slots: String| {
        format!("{name:<19} {user:<10} {queue:<15} {:<10} {slots}\n", "-")
    };
    let mut text = String::new();
    if let Some(most) = limits.user_slots_max {
        text += &row("user_slots_max", user, NOTHING, format!("{used}/{most}"));
    }
    for queue in queues {
        let name = queue.name.to_string();
        if let Some(most) = queue.slots_max {
            text += &row("slots_max", NOTHING, &name, format!("{}/{most}", queue.used_slots));
        }
        if let Some(most) = queue.user_slots_max {
            text += &row("user_slots_max", "each", &name, format!("{NOTHING}/{most}"));
        }
        if let Some(most) = queue.host_slots_max {
            text += &row("host_slots_max", NOTHING, &name, format!("{NOTHING}/{most} a host"));
        }
    }
    text
}

/// Runs blimits: limits of slots, with what is used of them.
pub fn blimits(arguments: &[String]) -> Result<ExitCode> {
    let grammar =
        Grammar { command: "blimits", style: Style::Lsf, until: Until::End, tables: &[BLIMITS] };
    let given = grammar.read(arguments)?;
    let mut client = client()?;
    let (Answer::Limits { limits }, Answer::Queues { mut queues, .. }) =
        (client.ask(&Ask::Limits)?, client.ask(&Ask::Queues)?)
    else {
        bail!("the controller is a different version");
    };
    queues.retain(|queue| given.value("q").is_none_or(|name| name == queue.name.as_str()));
    let user = me();
    let own = by_user(&rows(&mut client, None, false)?).get(&user).copied().unwrap_or_default();
    let text = limits_of(&limits, &queues, own, &user);
    if text.is_empty() {
        outln!("No resource usage found.");
        return Ok(ExitCode::SUCCESS);
    }
    out!(
        "\nINTERNAL RESOURCE LIMITS:\n\nNAME                USERS      QUEUES          HOSTS      SLOTS\n{text}"
    );
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_a_user_stand_below_their_headings() {
        let of = Slots { waiting: 3, running: 2, suspended: 1 };
        let said = line("ann", Some(40), of);
        let cells: Vec<&str> = said.split_whitespace().collect();
        assert_eq!(cells, ["ann", "-", "40", "6", "3", "2", "0", "1", "0"]);
        let heading =
            "USER/GROUP             JL/P    MAX  NJOBS   PEND    RUN  SSUSP  USUSP    RSV \n";
        assert_eq!(said.len(), heading.len());
    }
}
