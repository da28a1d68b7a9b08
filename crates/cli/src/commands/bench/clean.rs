//! `forebay bench clean`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use forebay_study::run::{Areas, Leftover, Runner};
use serde::Serialize;

use crate::output::{Table, bytes};

/// Remove the directories that a killed run left behind.
///
/// A run removes everything it created, unless it is killed (kill -9, a crash of the machine). Only
/// directories directly below PATH that carry the mark of a run are considered, and only those whose run is
/// dead are removed. Exit codes: 0 done, 1 a directory could not be removed.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay bench clean /mnt/forebay/data /mnt/forebay/work --dry-run     only list them
  forebay bench clean /mnt/forebay/data /mnt/forebay/work")]
pub struct Clean {
    /// Directories given to --on, --work, --util or --against.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Only list the directories.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What became of a directory.
#[derive(Serialize)]
struct Line {
    #[serde(flatten)]
    leftover: Leftover,
    outcome: Outcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Removed,
    WouldBeRemoved,
    Kept,
    Failed,
}

impl Line {
    fn describe(&self) -> String {
        let why = match self.leftover.runner {
            Runner::Dead => "it has changed in the meantime".to_owned(),
            Runner::Alive => {
                format!("its run is still active (process {})", self.leftover.mark.pid)
            }
            Runner::Elsewhere => {
                format!(
                    "its run was on the host {}: run this command there",
                    self.leftover.mark.host
                )
            }
        };
        match self.outcome {
            Outcome::Removed => "removed".to_owned(),
            Outcome::WouldBeRemoved => "would be removed".to_owned(),
            Outcome::Kept => format!("kept: {why}"),
            Outcome::Failed => format!("FAILED: {}", self.reason.as_deref().unwrap_or_default()),
        }
    }
}

impl Clean {
    pub fn run(self) -> Result<ExitCode> {
        let mut lines = Vec::new();
        for leftover in find(&self.paths)? {
            lines.push(self.clean(leftover));
        }
        let failed = lines.iter().any(|line| line.outcome == Outcome::Failed);
        if self.json {
            crate::output::put_json(&lines)?;
        } else if lines.is_empty() {
            outln!("Nothing was left behind.");
        } else {
            let mut table = Table::new(&["directory", "size", "run began", "outcome"]);
            for line in &lines {
                table.row(vec![
                    line.leftover.path.display().to_string(),
                    bytes(line.leftover.bytes),
                    line.leftover.mark.started.clone(),
                    line.describe(),
                ]);
            }
            out!("{}", table.render());
        }
        Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    fn clean(&self, leftover: Leftover) -> Line {
        let (outcome, reason) = match (leftover.runner, self.dry_run) {
            (Runner::Alive | Runner::Elsewhere, _) => (Outcome::Kept, None),
            (Runner::Dead, true) => (Outcome::WouldBeRemoved, None),
            (Runner::Dead, false) => match leftover.remove() {
                Ok(true) => (Outcome::Removed, None),
                Ok(false) => (Outcome::Kept, None),
                Err(error) => (Outcome::Failed, Some(error.to_string())),
            },
        };
        Line { leftover, outcome, reason }
    }
}

/// What runs left in directories, each directory once.
fn find(paths: &[PathBuf]) -> Result<Vec<Leftover>> {
    let mut found: Vec<Leftover> = Vec::new();
    for path in paths {
        found.extend(Leftover::find(path)?);
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found.dedup_by(|a, b| a.path == b.path);
    Ok(found)
}

/// Names what killed runs left in the areas of a run that begins.
pub fn mention(subjects: &[Areas]) {
    let mut areas: Vec<PathBuf> = subjects
        .iter()
        .flat_map(|areas| [areas.data.clone(), areas.work.clone(), areas.util.clone()])
        .collect();
    areas.sort();
    areas.dedup();
    for area in areas {
        // A directory that cannot be listed cannot be used either, and the run says so.
        let found = Leftover::find(&area).unwrap_or_default();
        let dead: Vec<&Leftover> = found.iter().filter(|one| one.runner == Runner::Dead).collect();
        if dead.is_empty() {
            continue;
        }
        let size: u64 = dead.iter().map(|one| one.bytes).sum();
        let names: Vec<String> = dead.iter().map(|one| one.path.display().to_string()).collect();
        note!(
            "forebay: a run that was killed left {} ({}); remove with: forebay bench clean {}",
            names.join(", "),
            bytes(size),
            area.display()
        );
    }
}
