//! The commands of the grid.

pub mod areas;
mod batch;
pub mod checkpoint;
pub mod clock;
pub mod daemons;
mod detail;
pub mod flow;
pub mod group;
mod job_file;
pub mod jobs;
mod memory;
pub mod modify;
mod nodes;
pub mod placement;
pub mod reservation;
pub mod run;
pub mod service;
pub mod submit;
mod supervise;
pub mod switch;
pub mod updown;
pub mod usage;
pub mod wait;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use forebay_engine::home::GridHome;
use forebay_engine::protocol::client::{Client, makes_no_sense as no_sense};
use forebay_engine::protocol::{Answer, Ask, JobView, Refusal, RefusalKind, explain};
use forebay_grid::spec::Exit;
use forebay_grid::state::JobState;
use forebay_grid::vocabulary::{JobId, Target};

use crate::output::{Table, put_json};

/// A moment in the reader's time zone.
pub fn time_of(moment: forebay_grid::vocabulary::Moment) -> String {
    detail::time(moment)
}

/// How a job ended whose work areas held too much.
const AREA_LIMIT: &str = "was killed: its work areas held more than area_limit of its queue";

/// How a job ended that had to have ended by a time.
const DEADLINE: &str = "was ended: its --deadline has come";

/// Which grid.
#[derive(clap::Args, Clone, Default)]
pub struct Which {
    /// Folder of the grid [default: the environment variable FOREBAY_GRID].
    #[arg(long, value_name = "ROOT")]
    grid: Option<PathBuf>,
}

impl Which {
    /// Its folder.
    fn home(&self) -> Result<GridHome> {
        home_of(self.grid.clone())
    }

    /// Connects to its controller.
    fn client(&self) -> Result<Client> {
        Client::connect(&self.home()?)
    }

    /// Asks its controller, which is known to be there, what is answered when something has ended. If it goes
    /// away it is asked again once it is back: the end of a job waits for nobody's connection.
    fn wait(&self, ask: &Ask) -> Result<Answer> {
        const PAUSE: Duration = Duration::from_millis(200);
        loop {
            match self.ask(ask) {
                Err(error) if !error.is::<Refusal>() => std::thread::sleep(PAUSE),
                answer => return answer,
            }
        }
    }

    /// Says how a job ended that did not end by itself, as far as that can be known: its exit value says less.
    fn say_end(&self, job: JobId) {
        let lines = self.client().and_then(|mut client| client.jobs(Some(job.into()), true, None));
        let ended_otherwise = |line: &&JobView| {
            !matches!(line.state, JobState::Done | JobState::Exited)
                || matches!(line.exit, Some(Exit::NotStarted(_) | Exit::MemoryLimit(_)))
        };
        let Ok((lines, _)) = lines else { return };
        let mut others = lines.iter().filter(ended_otherwise);
        let Some(first) = others.next() else { return };
        let how = match (&first.exit, first.state) {
            (Some(Exit::NotStarted(reason)), _) => format!("was not started: {reason}"),
            (Some(exit @ Exit::MemoryLimit(_)), _) => format!("was killed: {exit}"),
            (_, JobState::Killed) => "was killed".to_owned(),
            (_, JobState::TimeLimit) => "reached its time limit".to_owned(),
            (_, JobState::AreaLimit) => AREA_LIMIT.to_owned(),
            (_, JobState::Deadline) => DEADLINE.to_owned(),
            (_, JobState::HostLost) => {
                "was lost: its host or the process that held it failed".to_owned()
            }
            (_, JobState::DependencyNever) => format!("was not started: {}", self.why_never(job)),
            (_, state) => format!("ended as {state}"),
        };
        let more = match others.count() {
            0 => String::new(),
            more => {
                format!("; so were {more} more elements of the array, or they were not started")
            }
        };
        note!("forebay: job {} {how}{more}", first.id);
    }

    /// Why a job ended without having run, as far as that is known still.
    fn why_never(&self, job: JobId) -> String {
        match self.ask(&Ask::Explain { target: job.into() }) {
            Ok(Answer::Explained { explanation, used }) => {
                explain::reasons(&explanation, used.as_deref()).join("; ")
            }
            Ok(_) | Err(_) => "its dependency can no longer become true".to_owned(),
        }
    }

    /// What was said against a job, or where it is still known: a job that ended is forgotten before its history.
    fn or_forgotten(&self, target: Target, error: anyhow::Error) -> anyhow::Error {
        let refusal = error.downcast_ref::<Refusal>();
        let refused = refusal.is_some_and(|refusal| refusal.kind == RefusalKind::NoJob);
        let history = || self.client()?.history(target);
        if refused && history().is_ok_and(|attempts| !attempts.is_empty()) {
            return error.context(format!(
                "job {target} has finished, and only its history is still known: forebay history {target} (the \
                 settings finished_age and finished_max determine how long finished jobs are kept)"
            ));
        }
        error
    }

    /// Asks its controller once.
    fn ask(&self, ask: &Ask) -> Result<Answer> {
        self.client()?.ask(ask)
    }
}

/// A command that asks a grid's controller and prints the answer.
#[derive(clap::Args, Clone)]
pub struct Listing {
    #[command(flatten)]
    which: Which,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Listing {
    /// Asks, takes out of the answer what is wanted, and prints that: as JSON, or as a table for people.
    fn print<T: serde::Serialize>(
        &self,
        ask: &Ask,
        wanted: impl FnOnce(Answer) -> Result<T>,
        table: impl FnOnce(T) -> Table,
    ) -> Result<ExitCode> {
        self.show(wanted(self.which.ask(ask)?)?, table)
    }

    /// Prints the answer: as JSON, or as a table for people.
    fn show<T: serde::Serialize>(
        &self,
        told: T,
        table: impl FnOnce(T) -> Table,
    ) -> Result<ExitCode> {
        if self.json {
            return print_json(&told);
        }
        out!("{}", table(told).render());
        Ok(ExitCode::SUCCESS)
    }
}

/// Prints what scripts read.
fn print_json(value: &impl serde::Serialize) -> Result<ExitCode> {
    put_json(value)?;
    Ok(ExitCode::SUCCESS)
}

/// A cell of a table.
fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// The grid of a folder that was given, or of FOREBAY_GRID.
pub fn home_of(given: Option<PathBuf>) -> Result<GridHome> {
    let (source, root) = match (given, std::env::var_os("FOREBAY_GRID")) {
        (Some(root), _) => ("--grid", root),
        (None, Some(root)) => ("FOREBAY_GRID", PathBuf::from(root)),
        (None, None) => bail!("no grid was named: give --grid ROOT, or set FOREBAY_GRID"),
    };
    GridHome::of(&root).context(source)
}
