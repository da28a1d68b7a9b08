//! `forebay group`: paths by which a user's jobs are chosen and limited together.

use std::process::ExitCode;
use std::str::FromStr;

use anyhow::Result;
use clap::Subcommand;
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer, Ask, GroupView};
use forebay_grid::group::{GroupVerb, JobGroup};

use super::{Listing, Which, no_sense, or_dash};
use crate::output::Table;

/// List job groups, limit how many of their jobs run at once, and delete them.
///
/// A job group is a path such as /risk/daily that you give to jobs (forebay submit --group). Groups lie in each other like directories,
/// and each user has groups of his own. `forebay jobs`, `kill`, `hold`, `release`, `requeue` and `signal` choose the jobs of a group and of
/// those below it with --group.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay submit --group /risk/daily -- ./model.sh
  forebay group limit /risk 5
  forebay group list
  forebay kill --group /risk
  forebay group delete /risk")]
pub struct Group {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    List(List),
    Limit(Limit),
    Delete(Delete),
}

/// List your job groups: those with a limit, and those of jobs that the grid knows.
///
/// Tasks that wait, run, are suspended and have ended are those of the group itself. USED counts what runs or is suspended there and in
/// groups below it, which is what the limit is for.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  forebay group list\n  forebay group list --json")]
struct List {
    #[command(flatten)]
    listing: Listing,
}

/// Limit how many tasks of a group and of those below it are on hosts at once.
///
/// Each element of an array is a task. Running tasks are left alone. With 0 nothing of the group starts.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  forebay group limit /risk 5\n  forebay group limit /risk none"
)]
struct Limit {
    #[command(flatten)]
    which: Which,
    /// Path of the group.
    #[arg(value_parser = |text: &str| text.parse::<JobGroup>())]
    group: JobGroup,
    /// Number of tasks, or none.
    #[arg(value_name = "N|none")]
    limit: Most,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Delete a group and those below it, with their limits.
///
/// Refused while jobs in them have not ended. Jobs that have ended keep the path.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  forebay group delete /risk")]
struct Delete {
    #[command(flatten)]
    which: Which,
    /// Path of the group.
    #[arg(value_parser = |text: &str| text.parse::<JobGroup>())]
    group: JobGroup,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A limit, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Most(Option<u32>);

impl FromStr for Most {
    type Err = String;

    fn from_str(text: &str) -> Result<Most, String> {
        if text == "none" {
            return Ok(Most(None));
        }
        let number = text.parse().map(|number| Most(Some(number)));
        number.map_err(|_| "expected a number of tasks, or none".to_owned())
    }
}

impl Group {
    pub fn run(self) -> Result<ExitCode> {
        match self.verb {
            Verb::List(list) => list.run(),
            Verb::Limit(limit) => limit.run(),
            Verb::Delete(delete) => delete.run(),
        }
    }
}

/// Changes a group of the user.
///
/// # Errors
/// If it is refused.
pub fn change(client: &mut Client, group: JobGroup, verb: GroupVerb) -> Result<()> {
    match client.ask(&Ask::Group { group, verb })? {
        Answer::Obeyed { .. } => Ok(()),
        answer => Err(no_sense(&answer)),
    }
}

/// The groups of the user.
///
/// # Errors
/// If the controller is a different version.
pub fn all(answer: Answer) -> Result<Vec<GroupView>> {
    match answer {
        Answer::Groups { groups } => Ok(groups),
        answer => Err(no_sense(&answer)),
    }
}

impl List {
    fn run(self) -> Result<ExitCode> {
        self.listing.print(&Ask::Groups, all, |groups| {
            let mut table =
                Table::new(&["group", "pending", "running", "suspended", "ended", "used", "limit"]);
            for of in groups {
                table.row(vec![
                    of.group.to_string(),
                    of.pending.to_string(),
                    of.running.to_string(),
                    of.suspended.to_string(),
                    of.ended.to_string(),
                    of.used.to_string(),
                    or_dash(of.limit),
                ]);
            }
            table
        })
    }
}

impl Limit {
    fn run(self) -> Result<ExitCode> {
        let Most(limit) = self.limit;
        change(&mut self.which.client()?, self.group.clone(), GroupVerb::Limit { limit })?;
        if self.json {
            let told = serde_json::json!({ "group": self.group, "limit": limit });
            return super::print_json(&told);
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Delete {
    fn run(self) -> Result<ExitCode> {
        change(&mut self.which.client()?, self.group.clone(), GroupVerb::Delete)?;
        if self.json {
            return super::print_json(&serde_json::json!({ "group": self.group }));
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_number_or_none() {
        assert_eq!(("5".parse(), "none".parse()), (Ok(Most(Some(5))), Ok(Most(None))));
        assert!("-1".parse::<Most>().is_err() && "".parse::<Most>().is_err());
    }
}
