//! What a benchmark stands on: the command that it measures, and a place to make things.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use tempfile::TempDir;

/// Options of every benchmark that measures Forebay itself.
#[derive(Args, Debug)]
pub struct Ground {
    /// Where to make things: a directory on a disk with room, with a short path.
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/tmp")]
    scratch: PathBuf,
    /// The forebay command [default: the one beside this program].
    #[arg(long, value_name = "PROGRAM")]
    forebay: Option<PathBuf>,
}

impl Ground {
    /// The command.
    ///
    /// # Errors
    /// If there is none.
    pub fn program(&self) -> Result<PathBuf> {
        let program = match &self.forebay {
            Some(program) => program.clone(),
            None => std::env::current_exe()?.with_file_name("forebay"),
        };
        if !program.is_file() {
            bail!("there is no {}: build it, or give --forebay", program.display());
        }
        Ok(program.canonicalize()?)
    }

    /// Makes a directory of its own, which goes away with what is returned.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn directory(&self, prefix: &str) -> Result<TempDir> {
        let made = tempfile::Builder::new().prefix(prefix).tempdir_in(&self.scratch);
        made.with_context(|| format!("cannot use --scratch {}", self.scratch.display()))
    }

    /// The directory that was given for such directories.
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }
}
