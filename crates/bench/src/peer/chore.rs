//! Loads that other programs do: tar, git, rm, sqlite3 and `forebay bench`, each run by a worker in a
//! directory on the subject.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use serde::{Deserialize, Serialize};

use crate::external::find;
use crate::figure::{Figure, Figures};

/// Seconds after which a run of `forebay bench` is given up.
const BENCH_LIMIT_SECONDS: &str = "300";

/// What other programs are to do in a directory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Chore {
    /// Unpack a source tree of so many files, ask git for its status twice (the first time it reads
    /// every file, since all are new to its index), and remove it.
    Tree {
        /// The archive.
        archive: PathBuf,
        /// How many files are in it.
        files: u64,
    },
    /// Insert so many rows into a database, each in a transaction of its own, synced as by default.
    Insert {
        /// How many rows.
        rows: u64,
    },
    /// Run a workload of `forebay bench`.
    Bench {
        /// The `forebay` command.
        program: PathBuf,
        /// Which workload.
        workload: String,
        /// At what scale.
        scale: String,
        /// Where the result goes: a folder that does not exist.
        result: PathBuf,
        /// What the outcome is.
        figure: Figure,
    },
}

/// What `forebay bench run --json` says, as far as it is used here.
#[derive(Deserialize)]
struct Summary {
    runs: Vec<Run>,
}

#[derive(Deserialize)]
struct Run {
    seconds: f64,
    jobs: RunJobs,
}

#[derive(Deserialize)]
struct RunJobs {
    failed: u64,
    not_started: u64,
}

impl Chore {
    /// Does it in `directory`.
    ///
    /// # Errors
    /// If a program is missing or fails, or answers with what cannot be right.
    pub fn carry_out(&self, directory: &Path) -> Result<Figures> {
        match self {
            Chore::Tree { archive, files } => work_on_tree(directory, archive, *files),
            Chore::Insert { rows } => insert(directory, *rows),
            Chore::Bench { program, workload, scale, result, figure } => {
                let text = output(
                    Command::new("timeout")
                        .arg(BENCH_LIMIT_SECONDS)
                        .arg(program)
                        .args(["bench", "run", workload, "--scale", scale, "--json", "--on"])
                        .arg(directory)
                        .arg("--out")
                        .arg(result),
                );
                // The report is of no interest here.
                let _ = fs::remove_dir_all(result);
                Ok(Figures::from([(*figure, runs_per_hour(&text?)?)]))
            }
        }
    }
}

fn work_on_tree(directory: &Path, archive: &Path, files: u64) -> Result<Figures> {
    let tree = directory.join("tree");
    fs::create_dir(&tree).with_context(|| tree.display().to_string())?;
    let mut figures = Figures::new();
    let mut measure = |figure, command: &mut Command| -> Result<String> {
        let start = SystemClock.instant();
        let said = output(command)?;
        let seconds = (SystemClock.instant() - start).as_secs_f64();
        figures.insert(figure, files as f64 / seconds);
        Ok(said)
    };
    let unpack = ["--extract", "--no-same-owner", "--file"];
    measure(
        Figure::Untar,
        Command::new(find("tar")?).args(unpack).arg(archive).arg("--directory").arg(&tree),
    )?;
    let git = find("git")?;
    for figure in [Figure::GitStatusFirst, Figure::GitStatus] {
        let mut status = Command::new(&git);
        status.arg("-C").arg(&tree).args(["status", "--porcelain"]);
        // Settings of the user are not part of the load.
        status.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        let changed = measure(figure, &mut status)?;
        if !changed.is_empty() {
            let line = changed.lines().next().unwrap_or_default();
            bail!("git finds the tree changed that was just unpacked: {line}");
        }
    }
    measure(Figure::RemoveTree, Command::new(find("rm")?).arg("-r").arg(&tree))?;
    Ok(figures)
}

fn insert(directory: &Path, rows: u64) -> Result<Figures> {
    let (database, script) = (directory.join("rows.db"), directory.join("rows.sql"));
    let sqlite = || -> Result<Command> { Ok(Command::new(find("sqlite3")?)) };
    let table = "CREATE TABLE rows (id INTEGER PRIMARY KEY, name TEXT, value REAL);";
    output(sqlite()?.arg("-batch").arg(&database).arg(table))?;
    let mut out = Vec::new();
    for row in 0..rows {
        writeln!(out, "INSERT INTO rows (name, value) VALUES ('row {row}', {row}.5);")?;
    }
    fs::write(&script, out).with_context(|| script.display().to_string())?;
    let start = SystemClock.instant();
    output(sqlite()?.arg("-batch").arg(&database).stdin(File::open(&script)?))?;
    let seconds = (SystemClock.instant() - start).as_secs_f64();
    let there = output(sqlite()?.arg("-batch").arg(&database).arg("SELECT count(*) FROM rows;"))?;
    if there.trim() != rows.to_string() {
        bail!("{} rows are in the database where {rows} were inserted", there.trim());
    }
    Ok(Figures::from([(Figure::Sqlite, rows as f64 / seconds)]))
}

/// Reads what `forebay bench run --json` says.
fn runs_per_hour(text: &str) -> Result<f64> {
    let summary: Summary = serde_json::from_str(text).context("the summary of forebay bench")?;
    let [run] = &summary.runs[..] else {
        bail!("forebay bench tells of {} runs", summary.runs.len())
    };
    if run.jobs.failed + run.jobs.not_started > 0 {
        bail!("{} jobs failed, {} were not started", run.jobs.failed, run.jobs.not_started);
    }
    Ok(3600.0 / run.seconds)
}

/// Runs a program to its end and returns what it wrote to standard output.
fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} failed ({}): {}", output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_counts_only_if_all_its_jobs_ended_well() {
        let text = |failed: u64, waiting: u64| {
            format!(
                r#"{{"verdicts":[],"runs":[{{"subject":0,"seconds":7.2,
                "jobs":{{"jobs":8,"failed":{failed},"not_started":{waiting}}}}}]}}"#
            )
        };
        assert!((runs_per_hour(&text(0, 0)).unwrap() - 500.0).abs() < 1e-9);
        for text in [text(1, 0), text(0, 1), "{}".to_owned(), r#"{"runs":[]}"#.to_owned()] {
            assert!(runs_per_hour(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn rows_and_trees_are_worked_on_and_measured() {
        let folder = tempfile::tempdir().unwrap();
        let figures = Chore::Insert { rows: 3 }.carry_out(folder.path()).unwrap();
        assert!(figures[&Figure::Sqlite] > 0.0);
        let archive = super::super::tree::archive(folder.path(), 25).unwrap();
        let figures = Chore::Tree { archive, files: 25 }.carry_out(folder.path()).unwrap();
        assert_eq!(figures.len(), 4);
        assert!(!folder.path().join("tree").exists());
    }
}
