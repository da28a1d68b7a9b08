//! `forebay scrub`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use super::disk::{Show, task};
use crate::control::Ask;

/// Compare files and their copies with their checksums, and repair what differs.
///
/// Reads all files at rest of filesets with two or three copies (`forebay fileset set --copies`), whose checksums were taken when the copies
/// were made. Damaged or missing bytes are made again from a sound copy; `forebay status` lists files of which no copy is
/// sound. This is a task (`forebay tasks`), within its speed; files that programs have open are skipped. Run it
/// regularly, for example monthly.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay scrub /srv/forebay
  forebay scrub /srv/forebay --fileset data --wait")]
pub struct Scrub {
    /// Home folder of the file system.
    root: PathBuf,
    /// Fileset [default: all].
    #[arg(long)]
    fileset: Option<String>,
    /// Wait until it is done, and report progress.
    #[arg(long)]
    wait: bool,
    /// Print the task as JSON.
    #[arg(long)]
    json: bool,
}

impl Scrub {
    pub fn run(self) -> Result<ExitCode> {
        let Scrub { root, fileset, wait, json } = self;
        let ask = Ask::Scrub { fileset: fileset.clone() };
        task(&root, &ask, |fs| Ok(fs.scrub(fileset.as_deref())?), Show { wait, json })?;
        Ok(ExitCode::SUCCESS)
    }
}
