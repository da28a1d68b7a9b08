//! `forebay bench`: the workloads of the published studies, on any storage.

pub(super) mod clean;
mod compare;
mod display;
mod grid;
mod hosts;
mod launcher;
mod list;
mod mounts;
mod report;
pub(super) mod result;
mod run;
mod show;
pub(super) mod watch;
mod watch_host;
mod workload;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

/// Run published analytics workloads on any storage, and compare the results.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay bench list                               the workloads
  forebay bench show mixed --scale 0.01            its jobs, sizes and plan
  forebay bench run mixed --on /mnt/forebay/data   run it, with a report
  forebay bench run probe --on /mnt/xfs --against /mnt/forebay/data --rounds 5
  forebay bench compare before/ after/             two results side by side
  forebay bench report before/                     the report again, from the recorded data
  forebay bench clean /mnt/forebay/data            remove what a killed run left there")]
pub struct Bench {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    List(list::List),
    Show(show::Show),
    Run(Box<run::Run>),
    Compare(compare::Compare),
    Report(report::Report),
    Clean(clean::Clean),
    #[command(hide = true)]
    WatchHost(watch_host::WatchHost),
}

impl Bench {
    pub fn run(self) -> Result<ExitCode> {
        match self.command {
            Command::List(command) => command.run(),
            Command::Show(command) => command.run(),
            Command::Run(command) => command.run(),
            Command::Compare(command) => command.run(),
            Command::Report(command) => command.run(),
            Command::Clean(command) => command.run(),
            Command::WatchHost(command) => command.run(),
        }
    }
}
