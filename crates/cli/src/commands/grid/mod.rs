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

use anyhow::{Context as _, Result, bail};
use forebay_engine::home::GridHome;
use forebay_engine::protocol::client::{Client, is_no_job, makes_no_sense as no_sense};
use forebay_engine::protocol::{Answer, Ask};
use forebay_grid::vocabulary::Target;

use crate::output::{Table, put_json};

/// A moment in the reader's time zone.
pub fn time_of(moment: forebay_grid::vocabulary::Moment) -> String {
    detail::time(moment)
}

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

    /// What was said against a job, or where it is still known: a job that ended is forgotten before its history.
    fn or_forgotten(&self, target: Target, error: anyhow::Error) -> anyhow::Error {
        let history = || self.client()?.history(target);
        if is_no_job(&error) && history().is_ok_and(|attempts| !attempts.is_empty()) {
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
