//! `forebay fsck`.

mod unreachable;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use forebay_fs::fsck::{Archives, Options, Outcome, Repair};

use crate::home::{Checked, Home};

/// Check an unmounted file system and, with --repair, repair it.
///
/// Verifies the stores of all filesets, and checks that directory entries, link counts, sizes, usage counters and
/// objects all agree. A check changes nothing. Each fileset is repaired separately: a repair writes a fresh store and
/// keeps the old one beside it. A fileset with records of another version of Forebay is left unchanged. Exit codes:
/// 0 clean, 1 damage found and repaired, 4 damage found and not repaired, 2 not checked.
///
/// A cluster is checked on any one node, while no node has mounted it and all nodes with disks run (`forebay cluster start`).
/// Before a repair, the names of the fileset are kept as a backup (ROOT/kept-N).
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay fsck /srv/forebay
  forebay fsck /srv/forebay --repair
  forebay fsck /srv/forebay --archive
  forebay fsck /srv/forebay --json | jq .findings
  forebay fsck grid1 --fileset data
  forebay fsck grid1 --unreachable")]
pub struct Fsck {
    /// Home folder of the file system, or name of the cluster.
    root: PathBuf,
    /// Repair damage. Files that lost their names are put into lost+found at the top of their fileset.
    #[arg(long)]
    repair: bool,
    /// Check this fileset only; / for the root fileset.
    #[arg(long, value_name = "NAME", conflicts_with = "unreachable")]
    fileset: Option<String>,
    /// In a mounted cluster, list the files whose bytes cannot be reached, because the node of their disk is not running
    /// (unreachable) or no node has the disk any more (LOST). Checks nothing else. Exit codes: 0 none, 4 some.
    #[arg(long, conflicts_with = "repair")]
    unreachable: bool,
    /// Also ask archives: each archived file must have its object there, whole and of its size, and objects to which no
    /// file refers are reported (removed with --repair). Takes two requests to the store for each archived file.
    #[arg(long, conflicts_with = "unreachable")]
    archive: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Fsck {
    pub fn run(self) -> Result<ExitCode> {
        let home = Home::at(&self.root)?;
        if self.unreachable {
            let node = home.node().context(
                "--unreachable applies only to the file system of a cluster; on one machine `forebay status` reports missing disks",
            )?;
            return unreachable::run(node, self.json);
        }
        let json = self.json;
        let mut progress = |line: &str| {
            if !json {
                note!("   {line}");
            }
        };
        let repair = if self.repair { Repair::Found } else { Repair::Never };
        let mut options = Options {
            repair,
            records_lost: false,
            archives: if self.archive { Archives::Checked } else { Archives::Trusted },
            stores: None,
            fileset: None,
            disks: None,
            filesets: None,
            progress: &mut progress,
        };
        let checked = home.check(self.fileset.as_deref(), &mut options)?;
        if self.json {
            print_json(&checked)?;
        } else {
            print(&checked)?;
        }
        Ok(match checked.report.outcome() {
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

/// Prints what came of a check, for programs.
pub fn print_json(checked: &Checked) -> Result<()> {
    let mut value = serde_json::to_value(&checked.report)?;
    value["outcome"] = word(checked.report.outcome()).into();
    value["kept_stores"] = serde_json::to_value(&checked.kept)?;
    crate::output::put_json(&value)?;
    Ok(())
}

/// Prints what came of a check, for people.
pub fn print(checked: &Checked) -> Result<()> {
    let report = &checked.report;
    for finding in &report.findings {
        let done = if finding.repaired { " (repaired)" } else { "" };
        let path = finding.path.as_ref().map_or_else(String::new, |path| format!("{path}: "));
        outln!("{path}{}{done}", finding.detail);
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
    for kept in &checked.kept {
        outln!("the old store is kept as {}; remove it when you no longer need it", kept.display());
    }
    if report.outcome() == Outcome::Left && report.counts.inodes == 0 {
        // There was nothing to count.
        outln!("{}", word(report.outcome()));
        return Ok(());
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
    if counts.archived > 0 {
        outln!("{} files lie in archives", counts.archived);
    }
    Ok(())
}
