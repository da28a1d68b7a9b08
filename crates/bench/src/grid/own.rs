//! A grid of the benchmark's own: one host with as many slots as there are cores.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use forebay_engine::files::holder;
use forebay_engine::home::GridHome;
use forebay_engine::protocol::client::Client;
use forebay_process::memory;
use tempfile::TempDir;

use crate::external;

/// A grid that runs as long as this lives.
pub struct Running {
    folder: TempDir,
    program: PathBuf,
}

impl Running {
    /// Starts one with these settings.
    pub fn start(program: &Path, scratch: &Path, settings: &str) -> Result<Running> {
        let folder = tempfile::Builder::new().prefix("g").tempdir_in(scratch)?;
        let running = Running { folder, program: program.to_owned() };
        std::fs::create_dir_all(running.root().join("grid"))?;
        std::fs::write(running.root().join("grid/grid.toml"), settings)?;
        external::run(program, [Path::new("up"), &running.root()])?;
        Ok(running)
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    /// A folder for the output of jobs.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A connection to its controller.
    pub fn client(&self) -> Result<Client> {
        Client::connect(&GridHome::of(&self.root())?)
    }

    /// A `forebay` command on this grid.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).env("FOREBAY_GRID", self.root()).current_dir(self.folder());
        command
    }

    /// Memory of the controller: its proportional set size in bytes.
    pub fn controller_memory(&self) -> Result<u64> {
        let home = GridHome::of(&self.root())?;
        let pid = holder(&home.lock()).context("the controller does not run")?;
        memory::share(pid).context("the memory of the controller cannot be read")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let down = [Path::new("down"), &self.root(), Path::new("--now")];
        if let Err(error) = external::run(&self.program, down) {
            eprintln!("forebay-bench: {error:#}");
        }
    }
}
