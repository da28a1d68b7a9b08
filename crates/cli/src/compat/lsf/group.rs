//! bgadd, bgmod, bgdel, bjgroup: job groups. Each user has a tree of his own; LSF has one for all.

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use forebay_engine::protocol::{Ask, GroupView};
use forebay_grid::group::{GroupVerb, JobGroup};

use super::super::row::{client, me};
use super::super::words::{Given, Grammar, Opt, Style, Takes, Until, harmless, read, refused};
use crate::commands::grid::group::{all, change};

use Takes::{Nothing, Value};

const CHANGES: &[Opt] = &[
    read("L", ' ', Value),
    read("Ln", ' ', Nothing),
    refused("sla", ' ', Value, "a grid has no service classes"),
    refused("u", ' ', Value, "a user changes only groups of his own"),
];

const BJGROUP: &[Opt] = &[
    read("N", ' ', Nothing),
    read("noheader", ' ', Nothing),
    harmless("s", ' ', Nothing),
    read("u", ' ', Value),
];

fn words(
    command: &'static str,
    tables: &'static [&'static [Opt]],
    arguments: &[String],
) -> Result<Given> {
    let grammar = Grammar { command, style: Style::Lsf, until: Until::End, tables };
    grammar.read(arguments)
}

/// The group that a command names. One slash at its end is passed over.
///
/// # Errors
/// If it is not a path.
pub fn path(text: &str) -> Result<JobGroup> {
    plain(text).parse().map_err(anyhow::Error::msg)
}

/// A path without quotes around it and without a slash at its end.
pub fn plain(text: &str) -> &str {
    let text = text.trim_matches(['"', '\'']);
    text.strip_suffix('/').filter(|short| !short.is_empty()).unwrap_or(text)
}

fn named(given: &Given) -> Result<JobGroup> {
    path(given.words.first().context("Job group name is missing")?)
}

fn limit(given: &Given) -> Result<Option<u32>> {
    let read = |text: &str| {
        text.parse::<u32>().with_context(|| format!("-L {text}: expected a number of jobs"))
    };
    given.value("L").filter(|_| !given.has("Ln")).map(read).transpose()
}

/// Runs bgadd.
pub fn bgadd(arguments: &[String]) -> Result<ExitCode> {
    let given = words("bgadd", &[CHANGES], arguments)?;
    let group = named(&given)?;
    change(&mut client()?, group.clone(), GroupVerb::Add { limit: limit(&given)? })?;
    outln!("Job group <{group}> was added.");
    Ok(ExitCode::SUCCESS)
}

/// Runs bgmod.
pub fn bgmod(arguments: &[String]) -> Result<ExitCode> {
    let given = words("bgmod", &[CHANGES], arguments)?;
    ensure!(given.has("L") || given.has("Ln"), "-L or -Ln is missing");
    let group = named(&given)?;
    change(&mut client()?, group.clone(), GroupVerb::Limit { limit: limit(&given)? })?;
    outln!("Job group <{group}> was modified.");
    Ok(ExitCode::SUCCESS)
}

/// Runs bgdel; with `0` all groups of the user that have no unfinished jobs.
pub fn bgdel(arguments: &[String]) -> Result<ExitCode> {
    let given = words("bgdel", &[CHANGES], arguments)?;
    let mut client = client()?;
    let groups = match given.words.first().map(String::as_str) {
        Some("0") => {
            let idle = |of: &GroupView| of.pending + of.running + of.suspended == 0 && of.used == 0;
            let found = all(client.ask(&Ask::Groups)?)?;
            found.into_iter().filter(idle).map(|of| of.group).collect()
        }
        _ => vec![named(&given)?],
    };
    for group in groups {
        change(&mut client, group.clone(), GroupVerb::Delete)?;
        outln!("Job group <{group}> was deleted.");
    }
    Ok(ExitCode::SUCCESS)
}

/// The list of bjgroup.
fn table(groups: &[GroupView], user: &str, is_headed: bool) -> String {
    let mut text = String::new();
    if is_headed {
        text += "GROUP_NAME             NJOBS   PEND    RUN  SSUSP  USUSP FINISH   SLA   JLIMIT OWNER\n";
    }
    for of in groups {
        let most = of.limit.map_or_else(|| super::NOTHING.to_owned(), |most| most.to_string());
        text += &format!(
            "{:<20} {:>7} {:>6} {:>6} {:>6} {:>6} {:>6} {:>5} {:>8} {user}\n",
            of.group,
            of.pending + of.running + of.suspended + of.ended,
            of.pending,
            of.running,
            0,
            of.suspended,
            of.ended,
            "()",
            format!("{}/{most}", of.used),
        );
    }
    text
}

/// Runs bjgroup: the groups of this user, or those that are named.
pub fn bjgroup(arguments: &[String]) -> Result<ExitCode> {
    let given = words("bjgroup", &[BJGROUP], arguments)?;
    let user = me();
    ensure!(
        given.value("u").is_none_or(|wanted| wanted == user || wanted == "all"),
        "-u {}: a user sees only groups of his own",
        given.value("u").unwrap_or_default()
    );
    let mut groups = all(client()?.ask(&Ask::Groups)?)?;
    let wanted = given.words.iter().map(|word| path(word)).collect::<Result<Vec<JobGroup>>>()?;
    groups.retain(|of| wanted.is_empty() || wanted.contains(&of.group));
    if groups.is_empty() {
        note!("No job group found");
        return Ok(if wanted.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(255) });
    }
    out!("{}", table(&groups, &user, !given.has("noheader")));
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_listed_as_bjgroup_lists_them() {
        let group = GroupView {
            group: path("/a/b/").unwrap(),
            limit: Some(10),
            used: 3,
            pending: 5,
            running: 2,
            suspended: 1,
            ended: 4,
        };
        let said = table(&[group], "ann", true);
        let lines: Vec<Vec<&str>> = said.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["/a/b", "12", "5", "2", "0", "1", "4", "()", "3/10", "ann"]);
        assert_eq!(lines[0].len(), lines[1].len());
        let at = |line: &str, word: &str| line.find(word).map(|at| at + word.len());
        let mut each = said.lines();
        let (heading, row) = (each.next().unwrap(), each.next().unwrap());
        assert_eq!(at(heading, "NJOBS"), at(row, " 12"), "{said}");
        assert_eq!(at(heading, "JLIMIT"), at(row, "3/10"), "{said}");
        assert!(path("/").is_err() && path("a").is_err());
    }
}
