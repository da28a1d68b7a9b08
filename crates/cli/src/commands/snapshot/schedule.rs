//! `forebay snapshot schedule`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use clap::Subcommand;
use forebay_base::time::{Clock as _, SystemClock};

use super::time;
use crate::commands::disk::changed;
use crate::control::{self, Answer, Ask};
use crate::daemon::schedules::remove;
use crate::home::Home;
use crate::output::Table;
use crate::schedules::{Interval, Schedule, Schedules, read_interval, shown};

#[derive(Subcommand)]
pub enum Action {
    /// Give a fileset these schedules. Those that it had and that are not named end.
    ///
    /// Times are those of UTC: every 1h is on the hour, every 1d at midnight. Snapshots of schedules that end stay.
    #[command(after_help = "Examples:
  forebay snapshot schedule set /srv/forebay data --every 1h --keep 24
  forebay snapshot schedule set /srv/forebay data --every 1h --keep 24 --every 1d --keep 7")]
    Set {
        /// Home folder of the file system.
        root: PathBuf,
        /// Name of the fileset; / for the root fileset.
        fileset: String,
        /// Interval from 10s to 366d, such as 15m, 1h, 1d or 1w. May be given several times, each with its --keep.
        #[arg(long, value_name = "TIME", required = true, value_parser = read_interval)]
        every: Vec<u64>,
        /// How many snapshots of that interval are kept.
        #[arg(long, value_name = "NUMBER", required = true, value_parser = clap::value_parser!(u64).range(1..=1000))]
        keep: Vec<u64>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// List schedules with the time of the next snapshot, the latest one, and what failed.
    #[command(after_help = "Examples:
  forebay snapshot schedule list /srv/forebay
  forebay snapshot schedule list /srv/forebay data --json")]
    List {
        /// Home folder of the file system.
        root: PathBuf,
        /// Name of the fileset, / for the root fileset [default: all].
        fileset: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// End the schedules of a fileset. Its snapshots stay.
    #[command(after_help = "Examples:\n  forebay snapshot schedule remove /srv/forebay data")]
    Remove {
        /// Home folder of the file system.
        root: PathBuf,
        /// Name of the fileset; / for the root fileset.
        fileset: String,
    },
}

impl Action {
    pub fn run(self) -> Result<ExitCode> {
        match self {
            Action::Set { root, fileset, every, keep, json } => {
                ensure!(
                    every.len() == keep.len(),
                    "--every is there {} times and --keep {} times: write one --keep for each --every",
                    every.len(),
                    keep.len()
                );
                let pairs = every.into_iter().zip(keep);
                let intervals: Vec<Interval> =
                    pairs.map(|(every_seconds, keep)| Interval { every_seconds, keep }).collect();
                show(&set(&root, &fileset, &intervals)?, json)?;
            }
            Action::List { root, fileset, json } => show(&list(&root, fileset.as_deref())?, json)?,
            Action::Remove { root, fileset } => {
                end(&root, &fileset)?;
                outln!("fileset {fileset} has no schedules any more; its snapshots stay");
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn schedules(answer: Answer) -> Result<Vec<Schedule>> {
    match answer {
        Answer::Schedules { schedules } => Ok(schedules),
        _ => bail!("the daemon answered without schedules; does it run another version?"),
    }
}

fn set(root: &Path, fileset: &str, intervals: &[Interval]) -> Result<Vec<Schedule>> {
    let ask = Ask::SetSchedules { fileset: fileset.to_owned(), intervals: intervals.to_vec() };
    let said = changed(root, &ask, |fs| {
        fs.snapshots(Some(fileset))?;
        let home = Home::at(root)?;
        let mut all = Schedules::read(&home)?;
        let most = home.settings()?.daemon.snapshot_schedules_max;
        all.set(fileset, intervals, SystemClock.now().seconds, most)?;
        Ok(all.list(Some(fileset)))
    });
    match said? {
        Ok(answer) => schedules(answer),
        Err(here) => Ok(here),
    }
}

fn list(root: &Path, fileset: Option<&str>) -> Result<Vec<Schedule>> {
    let home = Home::at(root)?;
    let _lock = match home.try_lock()? {
        Some(lock) => lock,
        None => {
            let ask = Ask::Schedules { fileset: fileset.map(str::to_owned) };
            return schedules(control::ask(home.root(), &ask)?);
        }
    };
    Ok(Schedules::read(&home)?.list(fileset))
}

fn end(root: &Path, fileset: &str) -> Result<()> {
    let home = Home::at(root)?;
    let Some(_lock) = home.try_lock()? else {
        let ask = Ask::RemoveSchedules { fileset: fileset.to_owned() };
        return match control::ask(home.root(), &ask)? {
            Answer::Done => Ok(()),
            _ => bail!("the daemon's answer cannot be understood; does it run another version?"),
        };
    };
    remove(&mut Schedules::read(&home)?, fileset)
}

fn show(schedules: &[Schedule], json: bool) -> Result<()> {
    if json {
        return crate::output::put_json(&schedules);
    }
    let mut table = Table::new(&["FILESET", "EVERY", "KEEP", "NEXT", "LATEST", "STATE"]);
    for schedule in schedules {
        table.row(vec![
            schedule.fileset.clone(),
            shown(schedule.interval.every_seconds),
            schedule.interval.keep.to_string(),
            time(schedule.next_seconds),
            schedule.latest.clone().unwrap_or_else(|| "-".to_owned()),
            if schedule.error.is_some() { "FAILING" } else { "ready" }.to_owned(),
        ]);
    }
    out!("{}", table.render());
    for schedule in schedules {
        if let Some(error) = &schedule.error {
            let every = shown(schedule.interval.every_seconds);
            outln!("the latest attempt for {} every {every} failed: {error}", schedule.fileset);
        }
    }
    Ok(())
}
