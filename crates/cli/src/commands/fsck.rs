//! `forebay fsck`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use forebay_fs::fsck::{Options, Outcome, Repair, Report, check};

use crate::home::Home;

/// Check an unmounted file system, and repair it if asked.
///
/// Proves that every entry, link count, size, usage counter and object agrees with every other. Exit
/// codes: 0 clean, 1 damage found and repaired, 4 damage found and left, 2 not checked.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay fsck /srv/grid
  forebay fsck /srv/grid --repair
  forebay fsck /srv/grid --json | jq .findings")]
pub struct Fsck {
    /// Home folder of the file system.
    root: PathBuf,
    /// Repair what is damaged. Files that lost their names are put into /lost+found.
    #[arg(long)]
    repair: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Fsck {
    pub fn run(self) -> Result<ExitCode> {
        let home = Home::at(&self.root)?;
        let open = home.open()?;
        let json = self.json;
        let mut progress = |line: &str| {
            if !json {
                note!("   {line}");
            }
        };
        let repair = if self.repair { Repair::Found } else { Repair::Never };
        let mut options = Options { repair, progress: &mut progress };
        let report = check(&*open.store, &open.disks, &mut options)?;
        if self.json {
            print_json(&report)?;
        } else {
            print(&report)?;
        }
        Ok(match report.outcome() {
            Outcome::Clean => ExitCode::SUCCESS,
            Outcome::Repaired => ExitCode::from(1),
            Outcome::Left => ExitCode::from(4),
        })
    }
}

fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Clean => "clean",
        Outcome::Repaired => "repaired",
        Outcome::Left => "damaged",
    }
}

fn print_json(report: &Report) -> Result<()> {
    let mut value = serde_json::to_value(report)?;
    value["outcome"] = word(report.outcome()).into();
    crate::output::put_json(&value)?;
    Ok(())
}

fn print(report: &Report) -> Result<()> {
    for finding in &report.findings {
        let done = if finding.repaired { " (repaired)" } else { "" };
        outln!("{}{done}", finding.detail);
    }
    let unseen = report.findings_total.saturating_sub(report.findings.len() as u64);
    if unseen > 0 {
        outln!("and {unseen} more");
    }
    for note in &report.notes {
        outln!("note: {note}");
    }
    let unseen = report.notes_total.saturating_sub(report.notes.len() as u64);
    if unseen > 0 {
        outln!("and {unseen} more notes");
    }
    let counts = &report.counts;
    outln!(
        "{}: {} inodes, {} entries, {} objects, {} in files",
        word(report.outcome()),
        counts.inodes,
        counts.entries,
        counts.objects,
        crate::output::bytes(counts.bytes)
    );
    Ok(())
}
