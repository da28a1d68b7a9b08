//! `forebay compat`.

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;

use crate::compat::lsf::site::write_settings;
use crate::compat::{called, names};
use crate::output::put_json;

/// Use the commands of Slurm and LSF on a grid: sbatch, squeue, sacct, bsub, bjobs and others.
///
/// Tools and scripts written for these systems then run on a Forebay grid unchanged. The commands act on the grid that the
/// environment variable FOREBAY_GRID names. docs/compat.md lists the options that each command understands.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay compat install ~/grid-bin
  export PATH=~/grid-bin:$PATH FOREBAY_GRID=/srv/jobs
  sbatch --array=0-9 --wrap 'echo $SLURM_ARRAY_TASK_ID'
  squeue; sacct")]
pub struct Compat {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Create symbolic links to this program in a directory, one for each command.
    ///
    /// Only links of earlier installs are replaced: if another file has one of the names, nothing is changed and the
    /// command fails.
    #[command(after_help = "Examples:\n  forebay compat install ~/grid-bin")]
    Install {
        /// Directory for the links; it is created if it does not exist.
        directory: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Run one of the commands without a link.
    #[command(hide = true, disable_help_flag = true)]
    Call {
        /// Name of the command.
        name: String,
        /// Its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

impl Compat {
    pub fn run(self) -> Result<ExitCode> {
        match self.command {
            Verb::Install { directory, json } => install(&directory, json),
            Verb::Call { name, arguments } => {
                let Some(command) = called(name.as_ref()) else {
                    bail!("{name}: not a command of Slurm or LSF that Forebay has");
                };
                Ok(command.run(arguments.into_iter()))
            }
        }
    }
}

/// Whether a path is a link that an install may replace.
fn is_replaceable(path: &Path) -> bool {
    let leads_to = std::fs::read_link(path).ok();
    leads_to.is_some_and(|to| to.file_name().is_some_and(|name| name == "forebay"))
}

fn install(directory: &Path, json: bool) -> Result<ExitCode> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let shown = directory.display();
    std::fs::create_dir_all(directory).with_context(|| format!("cannot create {shown}"))?;
    for name in names() {
        let path = directory.join(name.name);
        if path.symlink_metadata().is_ok() && !is_replaceable(&path) {
            bail!(
                "{} exists and is not a link to forebay: choose another directory",
                path.display()
            );
        }
    }
    for name in names() {
        let path = directory.join(name.name);
        // Replaced in one step, so that a command that is called meanwhile is found.
        let fresh = directory.join(format!(".{}.new", name.name));
        let _ = std::fs::remove_file(&fresh);
        let made = symlink(&program, &fresh).and_then(|()| std::fs::rename(&fresh, &path));
        made.with_context(|| format!("cannot create {}", path.display()))?;
    }
    write_settings(directory)?;
    let made: Vec<&str> = names().map(|name| name.name).collect();
    if json {
        put_json(&serde_json::json!({ "directory": directory, "commands": made }))?;
    } else {
        outln!("{shown}: {}", made.join(" "));
    }
    Ok(ExitCode::SUCCESS)
}
