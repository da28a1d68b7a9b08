//! Which tasks squeue, sacct and scancel are about.

use anyhow::{Result, ensure};
use forebay_engine::protocol::client::Client;
use forebay_grid::vocabulary::Target;

use super::super::row::{Row, me};
use super::super::words::Given;
use super::{dependency, field, state};

/// What has to hold of a task; an empty list allows all.
#[derive(Default)]
pub struct Choice {
    users: Vec<String>,
    partitions: Vec<String>,
    names: Vec<String>,
    states: Vec<String>,
    hosts: Vec<String>,
    accounts: Vec<String>,
}

impl Choice {
    /// What the options say that squeue, sacct and scancel have in common.
    ///
    /// # Errors
    /// If a state is not one.
    pub fn of(given: &Given) -> Result<Choice> {
        let list = |option| given.list(option).into_iter().map(str::to_owned).collect::<Vec<_>>();
        let mut states = [list("states"), list("state")].concat();
        if states.iter().any(|state| state.eq_ignore_ascii_case("all")) {
            states.clear();
        }
        if let Some(bad) = states.iter().find(|name| !state::is_known(name)) {
            anyhow::bail!("Invalid job state specified: {bad}");
        }
        let mut users = [list("user"), list("uid")].concat();
        if given.has("me") {
            users.push(me());
        }
        Ok(Choice {
            users,
            partitions: list("partition"),
            names: list("name"),
            states,
            hosts: list("nodelist"),
            accounts: [list("account"), list("accounts")].concat(),
        })
    }

    /// Whether nothing is asked of a task.
    pub fn is_everything(&self) -> bool {
        let lists =
            [&self.users, &self.partitions, &self.names, &self.states, &self.hosts, &self.accounts];
        lists.iter().all(|list| list.is_empty())
    }

    /// Whether a state was asked for that only tasks have which ended.
    pub fn is_about_states(&self) -> bool {
        !self.states.is_empty()
    }

    /// Whether a task is one of them.
    pub fn takes(&self, row: &Row) -> bool {
        let within =
            |list: &[String], value: &str| list.is_empty() || list.iter().any(|one| one == value);
        let of_state = |name: &String| state::is_called(state::of(row), name);
        let host = row.view.host.as_ref().map(ToString::to_string).unwrap_or_default();
        let user = row.view.user.to_string();
        let is_user = || {
            self.users.iter().any(|known| {
                *known == field::value(row, "uid", row.view.submitted).unwrap_or_default()
            })
        };
        (within(&self.users, &user) || is_user())
            && within(&self.partitions, &row.view.queue.to_string())
            && within(&self.names, &field::name(row))
            && within(&self.hosts, &host)
            && within(&self.accounts, &row.asked.project)
            && (self.states.is_empty() || self.states.iter().any(of_state))
    }
}

/// The jobs and elements that ids name; none if no id was given.
///
/// # Errors
/// If one is not an id.
pub fn targets(ids: &[&str], client: &mut Client) -> Result<Option<Vec<Target>>> {
    if ids.is_empty() {
        return Ok(None);
    }
    let mut all: Vec<Target> = Vec::new();
    for id in join_brackets(ids) {
        let found = dependency::targets(&id, client)?;
        ensure!(!found.is_empty(), "Invalid job id specified: {id}");
        for target in found {
            if !all.contains(&target) {
                all.push(target);
            }
        }
    }
    Ok(Some(all))
}

/// Ids that were split at the commas in their brackets, whole again.
fn join_brackets(parts: &[&str]) -> Vec<String> {
    let mut ids: Vec<String> = Vec::new();
    for part in parts {
        match ids.last_mut() {
            Some(open) if open.contains('[') && !open.contains(']') => {
                open.push(',');
                open.push_str(part);
            }
            _ => ids.push((*part).to_owned()),
        }
    }
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_keep_their_brackets() {
        assert_eq!(join_brackets(&["1", "2_[3", "5-6]", "7"]), ["1", "2_[3,5-6]", "7"]);
    }
}
