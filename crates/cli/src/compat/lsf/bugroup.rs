//! bugroup: groups of users. They are those of the system: a grid has none of its own.

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use forebay_process::user::{Account, UserGroup, group_named, group_numbered};

use super::super::row::me;
use super::super::words::{Grammar, Opt, Style, Takes, Until, harmless, refused};

use Takes::Nothing;

const OPTIONS: &[Opt] = &[
    refused("l", ' ', Nothing, "groups have no shares; shares of users are in grid.toml"),
    harmless("r", ' ', Nothing),
    harmless("w", ' ', Nothing),
];

/// A line for each group: its members, and this user if it is the first group of its account.
fn list(groups: &[UserGroup], user: &str, first: Option<u32>) -> String {
    let mut text = format!("{:<13} {}\n", "GROUP_NAME", "USERS");
    for group in groups {
        let mut members: Vec<&str> = group.members.iter().map(String::as_str).collect();
        if Some(group.gid) == first && !members.contains(&user) {
            members.push(user);
        }
        members.sort_unstable();
        text += format!("{:<13} {}", group.name, members.join(" ")).trim_end();
        text.push('\n');
    }
    text
}

/// Runs bugroup: the groups of this user, or those that are named.
pub fn bugroup(arguments: &[String]) -> Result<ExitCode> {
    let grammar =
        Grammar { command: "bugroup", style: Style::Lsf, until: Until::End, tables: &[OPTIONS] };
    let given = grammar.read(arguments)?;
    let user = me();
    let account = Account::named(&user).context("the user database does not answer")?;
    let mut groups = Vec::new();
    if given.words.is_empty() {
        for gid in account.iter().flat_map(|account| &account.groups) {
            groups.extend(group_numbered(*gid).context("the user database does not answer")?);
        }
        ensure!(!groups.is_empty(), "No user group found");
    }
    for name in &given.words {
        let found = group_named(name).context("the user database does not answer")?;
        groups.push(found.with_context(|| format!("{name}: No such user group"))?);
    }
    groups.sort_by(|a, b| a.name.cmp(&b.name));
    groups.dedup_by(|a, b| a.name == b.name);
    out!("{}", list(&groups, &user, account.map(|account| account.gid)));
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_listed_in_its_first_group_as_well() {
        let group = |name: &str, gid, members: &[&str]| UserGroup {
            name: name.to_owned(),
            gid,
            members: members.iter().map(|name| (*name).to_owned()).collect(),
        };
        let groups = [group("ann", 7, &[]), group("lab", 8, &["bob", "ann"])];
        assert_eq!(
            list(&groups, "ann", Some(7)),
            "GROUP_NAME    USERS\nann           ann\nlab           ann bob\n"
        );
        assert_eq!(list(&groups[..1], "bob", Some(9)), "GROUP_NAME    USERS\nann\n");
    }
}
