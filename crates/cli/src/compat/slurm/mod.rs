//! The commands of Slurm on a Forebay grid.
//!
//! `options.rs` has the options of a job, `spec.rs` makes a job of the grid from them; `state.rs` and `field.rs` are the
//! one place that says what a task is called in Slurm's words.

mod accounts;
mod choice;
mod dependency;
mod field;
mod hostlist;
mod json;
mod options;
mod report;
mod reservation;
mod resources;
mod sacct;
mod salloc;
pub mod sbatch;
mod scancel;
mod scontrol;
mod sinfo;
pub mod spec;
mod sprio;
mod squeue;
mod sreport;
mod sreport_amounts;
mod srun;
mod sstat;
mod state;
mod units;
mod update;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_grid::vocabulary::Moment;

use super::words::Given;
use super::{Call, Name};

/// The version whose output this is like.
pub const SLURM_VERSION: &str = "22.05.8";

/// What a grid is called as a cluster.
const CLUSTER: &str = "forebay";

/// The commands.
pub const NAMES: &[Name] = &[
    Name { name: "sbatch", call: sbatch::run as Call, fault: 1 },
    Name { name: "squeue", call: squeue::run, fault: 1 },
    Name { name: "scancel", call: scancel::run, fault: 1 },
    Name { name: "sacct", call: sacct::run, fault: 1 },
    Name { name: "sinfo", call: sinfo::run, fault: 1 },
    Name { name: "scontrol", call: scontrol::run, fault: 1 },
    Name { name: "srun", call: srun::run, fault: 1 },
    Name { name: "salloc", call: salloc::run, fault: 1 },
    Name { name: "sstat", call: sstat::run, fault: 1 },
    Name { name: "sprio", call: sprio::run, fault: 1 },
    Name { name: "sreport", call: sreport::run, fault: 1 },
    Name { name: "sacctmgr", call: accounts::sacctmgr, fault: 1 },
    Name { name: "sshare", call: accounts::sshare, fault: 1 },
];

/// Prints a list once, or every so many seconds with the time above it, as `--iterate` says.
fn iterated(given: &Given, list: impl Fn() -> Result<ExitCode>) -> Result<ExitCode> {
    let Some(text) = given.value("iterate") else { return list() };
    let seconds = text.parse::<u64>().ok().filter(|seconds| *seconds > 0);
    let seconds = seconds.with_context(|| format!("--iterate={text}: expected seconds"))?;
    loop {
        outln!("{}", units::date(now()));
        list()?;
        outln!("");
        std::thread::sleep(Duration::from_secs(seconds));
    }
}

/// The time.
fn now() -> Moment {
    Moment::from(SystemClock.now())
}

/// What goes to a terminal or a tool: control characters of names are escaped, but for the unit separator, which callers
/// put between columns.
fn plain_output(text: &str) -> String {
    let parts: Vec<_> = text.split('\u{1f}').map(|part| crate::output::escaped(part)).collect();
    parts.join("\u{1f}")
}
