//! The commands of Slurm and LSF, as other names of this program.
//!
//! `forebay compat install DIR` makes symbolic links to this program under those names. Called by one of them it reads
//! the options that the command of that system has, does on a grid what they ask for, and prints what the command would
//! print, so that tools and scripts written for that system work as they are. docs/compat.md says what is understood.

mod columns;
mod input;
pub mod lsf;
mod row;
mod signal;
pub mod slurm;
mod words;

pub use row::me;
pub use words::addresses;

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use forebay_engine::protocol::client::Client;
use forebay_grid::spec::JobSpec;

use crate::output::Unprinted;

/// What a command does with its arguments.
pub type Call = fn(&[String]) -> Result<ExitCode>;

/// A command of another system.
#[derive(Clone, Copy)]
pub struct Name {
    /// Name by which the program is called.
    pub name: &'static str,
    /// What it does.
    pub call: Call,
    /// Its exit code if it fails.
    pub fault: u8,
}

/// All of them.
pub fn names() -> impl Iterator<Item = &'static Name> {
    slurm::NAMES.iter().chain(lsf::NAMES)
}

/// The command by whose name this program was called, if it is one.
pub fn called(program: &OsStr) -> Option<&'static Name> {
    let name = Path::new(program).file_name()?;
    names().find(|known| name == known.name)
}

/// Whether a script has lines of options of Slurm or LSF.
pub fn has_other_lines(script: &str) -> bool {
    slurm::sbatch::has_options(script) || lsf::bsub::has_options(script)
}

/// What the lines of options of Slurm or LSF in a script say of its job.
///
/// # Errors
/// If one is bad or refused, or there are both.
pub fn of_other_lines(script: &str, client: &mut Client) -> Result<JobSpec> {
    match (slurm::sbatch::has_options(script), lsf::bsub::has_options(script)) {
        (true, true) => anyhow::bail!("the script has both #SBATCH and #BSUB lines: keep one kind"),
        (_, true) => {
            let given = lsf::bsub::options_of(script)?;
            lsf::bsub::refuse_input(&given)?;
            lsf::bsub::job(&given, client)
        }
        (_, false) => {
            let given = slurm::sbatch::options_of(script)?;
            slurm::spec::refuse_input(&given)?;
            slurm::spec::job("sbatch", &given, client)
        }
    }
}

/// Prints the version of Slurm's or LSF's commands, where those print it.
fn print_version(style: words::Style) -> Result<ExitCode> {
    match style {
        words::Style::Gnu => outln!("slurm {}", slurm::SLURM_VERSION),
        words::Style::Lsf => note!("{}", lsf::VERSION),
    }
    Ok(ExitCode::SUCCESS)
}

impl Name {
    /// Does what the command does; its exit code.
    pub fn run(&self, arguments: impl Iterator<Item = std::ffi::OsString>) -> ExitCode {
        let words: Result<Vec<String>, _> =
            arguments.map(std::ffi::OsString::into_string).collect();
        let done = match words {
            Ok(words) if words == ["--help"] => self.help(),
            Ok(words) => (self.call)(&words),
            Err(word) => Err(anyhow::anyhow!("{}: not UTF-8", word.display())),
        };
        let done = done.or_else(|error| match error.downcast_ref() {
            Some(words::VersionAsked(style)) => print_version(*style),
            None => Err(error),
        });
        done.unwrap_or_else(|error| {
            if error.downcast_ref::<Unprinted>().is_some_and(Unprinted::is_reader_gone) {
                return ExitCode::from(141);
            }
            row::fault(self.fault, self.name, &error)
        })
    }

    fn help(&self) -> Result<ExitCode> {
        outln!(
            "{} on a Forebay grid (the one that FOREBAY_GRID names). It takes the options of the command of the same name; \
             docs/compat.md lists those that are understood.",
            self.name
        );
        Ok(ExitCode::SUCCESS)
    }
}
