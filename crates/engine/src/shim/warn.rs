//! The warning of a job that its end is near: which signal, and which of its processes get it.

use std::path::PathBuf;

use forebay_grid::warning::{Warned, Warning};
use forebay_grid::wrap::Wrap;
use forebay_process::descendants::{children_of, signal_those};
use rustix::process::{Pid, Signal};

use crate::run::Task;

/// A variable that the processes of a step have, and a job outside of steps does not.
const OF_A_STEP: &[u8] = b"SLURM_STEP_ID=";

/// How a job is warned.
#[derive(Clone, Copy, Debug)]
pub struct Warn {
    pub signal: Signal,
    to: Warned,
    /// Whether a shell of ours stands around its program.
    is_wrapped: bool,
}

impl Warn {
    /// As a job wants it.
    pub fn of(task: &Task) -> Option<Warn> {
        let Warning { signal, to, .. } = task.launch.spec.warning?;
        let is_wrapped = task.launch.wrap.as_deref().is_some_and(Wrap::surrounds);
        Some(Warn { signal: Signal::from_named_raw(signal.number().into())?, to, is_wrapped })
    }

    /// Warns some processes of the job whose first one this is, unless all are to be warned; whether it did.
    pub fn reach_some(self, first: Pid) -> bool {
        match self.to {
            Warned::All => return false,
            Warned::Program if self.is_wrapped => {
                let programs = children_of(first);
                signal_those(|process| programs.contains(&process), self.signal);
            }
            Warned::Program => signal_those(|process| process == first, self.signal),
            Warned::Steps => signal_those(is_of_a_step, self.signal),
        }
        true
    }
}

/// Whether a process was started by srun.
fn is_of_a_step(process: Pid) -> bool {
    let path = PathBuf::from(format!("/proc/{}/environ", process.as_raw_nonzero()));
    let Ok(variables) = std::fs::read(path) else { return false };
    variables.split(|byte| *byte == 0).any(|variable| variable.starts_with(OF_A_STEP))
}
