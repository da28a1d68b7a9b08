//! The commands of the grid.

mod batch;
pub mod daemons;
pub mod flow;
pub mod jobs;
pub mod submit;
pub mod switch;
pub mod updown;

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use forebay_engine::client::Client;
use forebay_engine::home::GridHome;
use forebay_engine::message::{Answer, Ask};

/// Which grid.
#[derive(clap::Args)]
pub struct Which {
    /// Folder of the grid; the variable FOREBAY_GRID if left out.
    #[arg(long, value_name = "ROOT")]
    grid: Option<PathBuf>,
}

impl Which {
    /// Connects to its controller.
    fn client(&self) -> Result<Client> {
        let variable = || std::env::var_os("FOREBAY_GRID").map(PathBuf::from);
        let root = self.grid.clone().or_else(variable);
        let root = root.context("which grid? give --grid ROOT, or set FOREBAY_GRID")?;
        Client::connect(&GridHome::of(&root)?)
    }

    /// Asks its controller once.
    fn ask(&self, ask: &Ask) -> Result<Answer> {
        self.client()?.ask(ask)
    }
}

/// An answer that does not fit the question.
fn no_sense(answer: &Answer) -> anyhow::Error {
    anyhow::anyhow!("the controller's answer makes no sense: {answer:?}")
}
