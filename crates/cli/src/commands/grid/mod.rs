//! The commands of the grid.

mod batch;
pub mod checkpoint;
pub mod daemons;
pub mod flow;
mod job_file;
pub mod jobs;
pub mod placement;
pub mod run;
pub mod sessions;
pub mod submit;
pub mod switch;
pub mod updown;
pub mod usage;

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use forebay_engine::client::Client;
use forebay_engine::home::GridHome;
use forebay_engine::message::{Answer, Ask};

/// Which grid.
#[derive(clap::Args, Clone)]
pub struct Which {
    /// Folder of the grid; the variable FOREBAY_GRID if left out.
    #[arg(long, value_name = "ROOT")]
    grid: Option<PathBuf>,
}

impl Which {
    /// Connects to its controller.
    fn client(&self) -> Result<Client> {
        Client::connect(&home_of(self.grid.clone())?)
    }

    /// Asks its controller once.
    fn ask(&self, ask: &Ask) -> Result<Answer> {
        self.client()?.ask(ask)
    }
}

/// The grid of a folder that was given, or of FOREBAY_GRID.
pub fn home_of(given: Option<PathBuf>) -> Result<GridHome> {
    let root = given.or_else(|| std::env::var_os("FOREBAY_GRID").map(PathBuf::from));
    let root = root.context("which grid? give --grid ROOT, or set FOREBAY_GRID")?;
    GridHome::of(&root)
}

/// An answer that does not fit the question.
fn no_sense(answer: &Answer) -> anyhow::Error {
    anyhow::anyhow!("the controller's answer makes no sense: {answer:?}")
}
