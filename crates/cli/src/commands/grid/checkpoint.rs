//! `forebay checkpoint`.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Subcommand;
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_engine::checkpoint::ship::{self, Until};
use forebay_engine::checkpoint::snapshot::Taken;
use forebay_engine::checkpoint::{Setup, Shelf, Summary, of_task, setup_of};
use forebay_engine::home::GridHome;
use forebay_grid::vocabulary::{Moment, Target, TaskId};
use serde_json::json;

use super::areas::age;
use super::detail::time;
use crate::checkpoint::{Job, Steps, Wait, take};
use crate::output::{Table, bytes, chain};

/// Record finished steps of a job, so that a restarted script can resume where it left off.
///
/// For use inside a job that was submitted with --checkpoint: its work area, which holds the records, is kept
/// when the job restarts. Where hosts have a place for checkpoints (`forebay agent --checkpoints`), `done` also copies
/// what has changed in the work area, and ships it there in the background: a job whose host died starts on another
/// one with the work area of the last step that was shipped.
///
/// Exit codes: 2 on an error; `has` exits with 0 if the step has finished, 1 if not.
#[derive(clap::Args)]
#[command(after_help = "Examples, in a script that was submitted with --checkpoint:
  forebay checkpoint has load || { ./load && forebay checkpoint done load; }
  forebay checkpoint done sort --wait --verbose
  forebay checkpoint list
  forebay checkpoint clear load")]
pub struct Checkpoint {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Record that a step has finished, and ship what has changed in the work area.
    #[command(
        after_help = "Examples:\n  ./load && forebay checkpoint done load\n  forebay checkpoint done load --wait"
    )]
    Done {
        /// Name of the step.
        step: String,
        /// Wait until the checkpoint is shipped and would survive this host; at most a minute for another host to copy it. If it
        /// does not, the command fails, and the step has finished nevertheless.
        #[arg(long)]
        wait: bool,
        /// Print what the checkpoint costs.
        #[arg(short, long)]
        verbose: bool,
        /// Print JSON: what the checkpoint costs, or null where jobs have no place for checkpoints.
        #[arg(long)]
        json: bool,
    },
    /// Test whether a step has finished.
    #[command(after_help = "Examples:\n  forebay checkpoint has load || ./load")]
    Has {
        /// Name of the step.
        step: String,
    },
    /// List the finished steps, and the last checkpoint that was shipped.
    #[command(after_help = "Examples:\n  forebay checkpoint list --json")]
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Forget the named finished steps, or all.
    #[command(
        after_help = "Examples:\n  forebay checkpoint clear\n  forebay checkpoint clear load"
    )]
    Clear {
        /// Names of the steps.
        steps: Vec<String>,
    },
    /// Ship what waits in the work area. `done` starts this.
    #[command(hide = true)]
    Ship,
}

impl Checkpoint {
    pub fn run(self) -> Result<ExitCode> {
        let job = Job::present();
        let job = job.context("not running inside a grid job: FOREBAY_JOB and WORK are not set")?;
        let steps = Steps::of(&job)?;
        match self.verb {
            Verb::Done { step, wait, verbose, json } => {
                steps.done(&job, &step)?;
                if !job.keeps_steps {
                    let id = &job.id;
                    note!(
                        "forebay: job {id} was submitted without --checkpoint: its steps are forgotten when it restarts"
                    );
                }
                let wait = if wait { Wait::UntilShipped } else { Wait::No };
                let taken = if job.keeps_steps { take(&job, &step, wait)? } else { None };
                if json {
                    crate::output::put_json(&taken)?;
                } else if verbose {
                    out!("{}", cost(taken.as_ref()));
                }
            }
            Verb::Has { step } => {
                return Ok(ExitCode::from(u8::from(!steps.has(&step)?)));
            }
            Verb::List { json } => print(&job, &steps, json)?,
            Verb::Clear { steps: named } => {
                let all = || -> Result<Vec<String>> {
                    Ok(steps.list()?.into_iter().map(|step| step.step).collect())
                };
                let named = if named.is_empty() { all()? } else { named };
                named.iter().try_for_each(|step| steps.clear(step))?;
            }
            Verb::Ship => ship::run(&job.work, Until::Done)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn cost(taken: Option<&Taken>) -> String {
    let Some(taken) = taken else {
        return "no checkpoint: this host has no place for them (forebay agent --checkpoints)\n"
            .to_owned();
    };
    let how = match taken.copied_bytes {
        0 => "cloned",
        copied if copied == taken.changed_bytes => "copied, as the file system cannot clone",
        _ => "cloned or copied",
    };
    let skipped = match taken.skipped {
        0 => String::new(),
        skipped => format!("; {skipped} sockets, pipes or devices were skipped"),
    };
    let files = match taken.changed_files {
        1 => "1 changed file".to_owned(),
        files => format!("{files} changed files"),
    };
    format!(
        "checkpoint {}: {} in {files} of {} in all, {how} in {:.3} s{skipped}\n",
        taken.number,
        bytes(taken.changed_bytes),
        bytes(taken.bytes),
        millis(taken.pause_ms),
    )
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn millis(milliseconds: u64) -> f64 {
    milliseconds as f64 / 1000.0
}

/// What is known of a checkpoint, in words.
pub fn words(shipped: &Summary, now: Moment) -> String {
    let kept = match (&shipped.kept_on, shipped.counts) {
        (Some(host), _) => format!(", copied by {host}"),
        (None, true) => String::new(),
        (None, false) => ", not copied by another host yet".to_owned(),
    };
    format!(
        "checkpoint {} after step {}: {} ({} had changed), taken on {} {} ago{kept}",
        shipped.number,
        shipped.step,
        bytes(shipped.bytes),
        bytes(shipped.changed_bytes),
        shipped.host,
        age(now.since(shipped.taken) / 1000),
    )
}

/// What is known on this machine of the checkpoints of a job or element, in words.
pub fn of_job(home: &GridHome, job: &str, now: Moment) -> Vec<String> {
    let Ok(Target { job, index }) = job.parse::<Target>() else { return Vec::new() };
    let task = TaskId { job, index: index.unwrap_or(0) };
    match of_task(home, task) {
        Ok(shipped) => shipped.iter().flatten().map(|shipped| words(shipped, now)).collect(),
        Err(error) => vec![format!("its checkpoints cannot be read: {}", chain(&error))],
    }
}

fn print(job: &Job, steps: &Steps, json: bool) -> Result<()> {
    let steps = steps.list()?;
    let setup = setup_of(&job.work)?;
    let latest = |setup: &Setup| Shelf::at(&setup.place).latest(setup.bounds.elsewhere);
    let shipped = setup.as_ref().map(latest).transpose()?;
    let restored = setup.and_then(|setup| setup.restored);
    let trouble = ship::trouble(&job.work)?;
    if json {
        return crate::output::put_json(&json!({
            "steps": steps, "shipped": shipped, "restored": restored, "trouble": trouble
        }));
    }
    let mut table = Table::new(&["step", "start", "finished"]);
    for step in steps {
        let finished = Moment(u64::try_from(step.finished_seconds)?.saturating_mul(1000));
        table.row(vec![step.step, step.attempt.to_string(), time(finished)]);
    }
    out!("{}", table.render());
    let now = SystemClock.now().into();
    for shipped in shipped.iter().flatten() {
        outln!("shipped: {}", words(shipped, now));
    }
    if let Some(restored) = restored {
        let from = restored.number.map_or("nothing".to_owned(), |number| number.to_string());
        let (size, took) = (bytes(restored.bytes), millis(restored.milliseconds));
        outln!("work area: brought back from checkpoint {from}, {size} in {took:.3} s");
        for lost in restored.lost {
            note!("forebay: not readable when this start began: {lost}");
        }
    }
    if let Some(trouble) = trouble {
        note!("forebay: checkpoint {}: {}", trouble.number, trouble.reason);
    }
    Ok(())
}
