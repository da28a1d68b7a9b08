//! `forebay checkpoint`.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Subcommand;
use forebay_grid::vocabulary::Moment;

use super::detail::time;
use crate::checkpoint::{Job, Steps};
use crate::output::Table;

/// Record finished steps of a job, so that a restarted script can resume where it left off.
///
/// For use inside a job that was submitted with --checkpoint: its work area, which holds the records, is kept
/// when the job restarts. Exit codes: 2 on an error; `has` exits with 0 if the step has finished, 1 if not.
#[derive(clap::Args)]
#[command(after_help = "Examples, in a script that was submitted with --checkpoint:
  forebay checkpoint has load || { ./load && forebay checkpoint done load; }
  forebay checkpoint list
  forebay checkpoint clear load")]
pub struct Checkpoint {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Record that a step has finished.
    #[command(after_help = "Examples:\n  ./load && forebay checkpoint done load")]
    Done {
        /// Name of the step.
        step: String,
    },
    /// Test whether a step has finished.
    #[command(after_help = "Examples:\n  forebay checkpoint has load || ./load")]
    Has {
        /// Name of the step.
        step: String,
    },
    /// List the finished steps.
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
}

impl Checkpoint {
    pub fn run(self) -> Result<ExitCode> {
        let job = Job::present();
        let job = job.context("not running inside a grid job: FOREBAY_JOB and WORK are not set")?;
        let steps = Steps::of(&job)?;
        match self.verb {
            Verb::Done { step } => {
                steps.done(&job, &step)?;
                if !job.keeps_steps {
                    let id = &job.id;
                    note!(
                        "forebay: job {id} was submitted without --checkpoint: its steps are forgotten when it restarts"
                    );
                }
            }
            Verb::Has { step } => {
                return Ok(ExitCode::from(u8::from(!steps.has(&step)?)));
            }
            Verb::List { json } => print(&steps, json)?,
            Verb::Clear { steps: named } => {
                let all = || -> Result<Vec<String>> {
                    Ok(steps.list()?.into_iter().map(|step| step.step).collect())
                };
                let named = if named.is_empty() { all()? } else { named };
                named.iter().try_for_each(|step| steps.clear(step))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn print(steps: &Steps, json: bool) -> Result<()> {
    let steps = steps.list()?;
    if json {
        crate::output::put_json(&steps)?;
        return Ok(());
    }
    let mut table = Table::new(&["step", "start", "finished"]);
    for step in steps {
        let finished = Moment(u64::try_from(step.finished_seconds)?.saturating_mul(1000));
        table.row(vec![step.step, step.attempt.to_string(), time(finished)]);
    }
    out!("{}", table.render());
    Ok(())
}
