//! `forebay areas`.

use std::process::ExitCode;

use anyhow::Result;
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_engine::protocol::{Answer, AreaKind, AreaState, AreaView, Ask, Orphans};
use forebay_grid::vocabulary::Moment;

use super::{Which, no_sense, or_dash, print_json};
use crate::output::{Table, bytes, on_one_line};

/// List the work areas of jobs: your own, or everybody's for an admin.
///
/// Each job has one area for temporary data sets (WORK) and one for utility files (UTIL). An area is running,
/// kept (its job will start again), unknown (its job was on a host that is unreachable), orphaned (its job is
/// gone) or being removed. Areas on unreachable hosts are not listed; those hosts are named on standard error,
/// or under "unknown" with --json. Hosts remove orphans when they join and at every reap_interval; --reap does
/// so now, and fails while a host is unreachable. Exit codes: 0 done, 1 a reachable host could not read or
/// remove an area, 2 refused.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay areas
  forebay areas --all --json
  forebay areas --reap   remove the areas whose jobs are gone")]
pub struct Areas {
    #[command(flatten)]
    which: Which,
    /// Remove orphaned areas, and list them.
    #[arg(long)]
    reap: bool,
    /// Also list areas that are being removed.
    #[arg(long)]
    all: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Areas {
    pub fn run(self) -> Result<ExitCode> {
        let orphans = if self.reap { Orphans::Removed } else { Orphans::Listed };
        let answer = self.which.ask(&Ask::Sessions { orphans })?;
        let Answer::Sessions { mut areas, removed, unknown, faults } = answer else {
            return Err(no_sense(&answer));
        };
        if !self.all {
            areas.retain(|area| area.state != AreaState::BeingRemoved);
        }
        for host in &unknown {
            note!("forebay: {host} is unreachable: its areas are not known");
        }
        for fault in &faults {
            note!("forebay: {fault}");
        }
        let code = ExitCode::from(u8::from(!faults.is_empty()));
        if self.json {
            print_json(&serde_json::json!({
                "areas": areas, "removed": removed, "unknown": unknown, "faults": faults
            }))?;
            return Ok(code);
        }
        let now = SystemClock.now().into();
        if self.reap {
            for area in &removed {
                let size = or_dash(area.bytes.map(bytes));
                let path = area.path.display().to_string();
                outln!("removed: {} of {}, {size}", on_one_line(&path), area.user);
            }
            if removed.is_empty() {
                outln!("nothing to remove");
            }
        } else {
            out!("{}", table(&areas, now).render());
        }
        Ok(code)
    }
}

fn table(areas: &[AreaView], now: Moment) -> Table {
    let mut table = Table::new(&["job", "user", "kind", "host", "size", "age", "state", "path"]);
    for area in areas {
        let kind = match area.kind {
            AreaKind::Work => "work",
            AreaKind::Util => "util",
        };
        let state = match area.state {
            AreaState::Running => "running",
            AreaState::Kept => "kept",
            AreaState::Unknown => "unknown",
            AreaState::Orphaned => "orphaned",
            AreaState::BeingRemoved => "being removed",
        };
        table.row(vec![
            area.job.clone(),
            area.user.to_string(),
            kind.to_owned(),
            area.host.to_string(),
            or_dash(area.bytes.map(bytes)),
            age(now.since(area.made) / 1000),
            state.to_owned(),
            area.path.display().to_string(),
        ]);
    }
    table
}

/// Days, hours, minutes and seconds as Slurm writes them.
fn age(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let clock = format!("{}:{:02}:{:02}", hours % 24, minutes % 60, seconds % 60);
    if days == 0 { clock } else { format!("{days}-{clock}") }
}

#[cfg(test)]
mod tests {
    #[test]
    fn ages_are_written_as_times_of_jobs_are_read() {
        for (seconds, text) in [(0, "0:00:00"), (3725, "1:02:05"), (90_061, "1-1:01:01")] {
            assert_eq!(super::age(seconds), text);
        }
    }
}
