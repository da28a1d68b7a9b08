//! `forebay doctor`.

mod cluster;
mod mutes;
mod shared;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use forebay_advisor::checks::Line;
use forebay_advisor::mute::{self, Mutes};
use forebay_advisor::{Examined, Finding, Host, Severity, checks, examine, script, studies};

use crate::output::Table;

/// Check this host for problems that slow analytics down or endanger data.
///
/// Looks at the kernel, processors, memory, disks, network, limits and FUSE, and at the directories given, or with --cluster at the
/// cluster of which this host is a node (as root). Nothing is changed:
/// each finding comes with the command that fixes it, and --fix-script writes a script that makes all fixes permanent.
/// Exit codes: 0 no findings or only advice, 1 warnings or problems found, 2 not checked.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay doctor
  forebay doctor /srv/forebay /mnt/nvme0   also look at these directories and their disks
  forebay doctor --fix-script fix.sh && less fix.sh
  forebay doctor --explain memory/dirty
  forebay doctor --mute memory/swappiness --until 2027-03-31 --reason 'the database wants it'
  forebay doctor --studies                 what the published studies tuned, and what still holds
  forebay doctor --shared /nfs --with /nfs2      is this storage fit for data that hosts share?
  forebay doctor --shared /nfs --with host2:/nfs   the same from two hosts
  forebay doctor --cluster                 nodes, certificates, versions and clocks, and etcd
  forebay doctor --cluster --hosts         the same, and the host of each node")]
pub struct Doctor {
    /// Directories in which programs read or write.
    paths: Vec<PathBuf>,
    /// Also show checks that passed, and those that could not be made.
    #[arg(long)]
    all: bool,
    /// Write a shell script of the fixes to this file.
    #[arg(long, value_name = "FILE")]
    fix_script: Option<PathBuf>,
    /// Explain what a check looks at and why.
    #[arg(long, value_name = "CODE", conflicts_with_all = ["fix_script", "shared", "mute", "unmute", "studies"])]
    explain: Option<String>,
    /// Show what the published studies tuned, and whether it still holds.
    #[arg(long)]
    studies: bool,
    #[command(flatten)]
    mutes: mutes::MuteOptions,
    #[command(flatten)]
    shared: shared::SharedOptions,
    #[command(flatten)]
    cluster: cluster::ClusterOptions,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Doctor {
    pub fn run(self) -> Result<ExitCode> {
        if let Some(code) = &self.explain {
            return explain(code, self.json);
        }
        if self.studies {
            return show_studies(self.json);
        }
        if let Some(code) = self.mutes.change()? {
            return Ok(code);
        }
        if let Some(code) = self.shared.run(self.json)? {
            return Ok(code);
        }
        let mutes = self.mutes.read()?;
        let examined = match self.cluster.examine()? {
            Some(examined) => examined,
            None => examine(&Host::here(&self.paths)?),
        };
        let (examined, muted) = without_muted(examined, &mutes);
        if let Some(path) = &self.fix_script {
            write_script(path, &examined.findings)?;
        }
        if self.json {
            let mut value = serde_json::to_value(&examined)?;
            value["muted"] = serde_json::to_value(&muted)?;
            crate::output::put_json(&value)?;
        } else {
            print(&examined, muted.len(), self.all)?;
        }
        let found = examined.findings.iter().any(|finding| finding.severity > Severity::Advice);
        Ok(if found { ExitCode::from(1) } else { ExitCode::SUCCESS })
    }
}

/// Takes the findings that are muted today out, and returns them.
fn without_muted(mut examined: Examined, mutes: &Mutes) -> (Examined, Vec<Finding>) {
    let today = mutes::today();
    let is_muted = |finding: &Finding| mute::is_muted(mutes, finding.code, &today);
    let (muted, shown) = examined.findings.into_iter().partition(is_muted);
    examined.findings = shown;
    (examined, muted)
}

fn write_script(path: &Path, findings: &[Finding]) -> Result<()> {
    let written = std::fs::write(path, script::write(findings));
    written.with_context(|| format!("cannot write {}", path.display()))?;
    note!("{} is written: read it, then run it as root", path.display());
    Ok(())
}

fn print(examined: &Examined, muted: usize, all: bool) -> Result<()> {
    for finding in &examined.findings {
        outln!("{}: {} ({})", finding.severity.word(), finding.title, finding.code);
        outln!("  found: {}", finding.evidence);
        outln!("  why:   {}", finding.why);
        outln!("  do:    {}\n", finding.fix.line());
    }
    if all {
        print_lines("passed", &examined.fine)?;
        print_lines("not checked", &examined.unknown)?;
    }
    let count =
        |severity| examined.findings.iter().filter(|finding| finding.severity == severity).count();
    let (problems, warnings) = (count(Severity::Problem), count(Severity::Warning));
    outln!(
        "problems: {problems}, warnings: {warnings}, advice: {}, passed: {}, not checked: {}, muted: {muted}",
        count(Severity::Advice),
        examined.fine.len(),
        examined.unknown.len(),
    );
    Ok(())
}

fn print_lines(heading: &str, lines: &[Line]) -> Result<()> {
    outln!("{heading}:");
    let mut table = Table::new(&["  check", "seen"]);
    for line in lines {
        table.row(vec![format!("  {}", line.code), line.text.clone()]);
    }
    outln!("{}", table.render());
    Ok(())
}

fn explain(code: &str, json: bool) -> Result<ExitCode> {
    let checks = checks::known();
    let Some(check) = checks.iter().find(|check| check.code == code) else {
        let codes: Vec<&str> = checks.iter().map(|check| check.code).collect();
        bail!("there is no check \"{code}\"; choose from {}", codes.join(", "));
    };
    if json {
        let value =
            serde_json::json!({ "code": check.code, "title": check.title, "why": check.why });
        crate::output::put_json(&value)?;
    } else {
        outln!("{} ({})\n{}", check.title, check.code, check.why);
    }
    Ok(ExitCode::SUCCESS)
}

fn show_studies(json: bool) -> Result<ExitCode> {
    if json {
        crate::output::put_json(&studies::SETTINGS)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["then", "today", "does it still hold?", "check"]);
    for setting in studies::SETTINGS {
        let check = setting.check.unwrap_or("-");
        let cells = [setting.then, setting.today, setting.still_true, check];
        table.row(cells.into_iter().map(str::to_owned).collect());
    }
    outln!("{}", table.render().trim_end());
    Ok(ExitCode::SUCCESS)
}
