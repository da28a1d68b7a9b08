//! What Slurm's commands are told, and what their answers mean. No I/O.

use std::path::Path;

use forebay_base::ByteSize;
use forebay_grid::event::Loss;
use forebay_grid::parse::resources::GPU;
use forebay_grid::slurm::with_features;
use forebay_grid::spec::{Exit, Sharing, short_reason};

use super::super::End;
use crate::run::Task;

/// How `squeue` writes what it knows of a job. The reason, which may hold anything, comes last.
pub const FORMAT: &str = "%i|%T|%N|%k|%r";

/// What a job of Slurm is said to be, so that it is found again: the grid and the start of a task.
pub fn mark(grid: &str, name: &str) -> String {
    format!("forebay:{grid}:{name}")
}

/// The arguments of `sbatch` for a task, whose folder all nodes reach.
///
/// # Errors
/// If Slurm cannot be told what it needs.
pub fn submission(task: &Task, mark: &str, folder: &Path) -> Result<Vec<String>, Refused> {
    let (launch, spec) = (&task.launch, &task.launch.spec);
    let name = if spec.name.is_empty() { "forebay" } else { &spec.name };
    let mut arguments = vec![
        "--parsable".to_owned(),
        // The grid starts it again, as its class says.
        "--no-requeue".to_owned(),
        "--export=ALL".to_owned(),
        "--chdir=/".to_owned(),
        format!("--output={}", percent(&folder.join("log").display().to_string())),
        format!("--comment={mark}"),
        format!("--job-name={name}"),
        "--nodes=1".to_owned(),
        "--ntasks=1".to_owned(),
        format!("--cpus-per-task={}", launch.slots.max(1)),
    ];
    if let Some(ByteSize(bytes)) = spec.memory {
        arguments.push(format!("--mem={}M", bytes.div_ceil(1 << 20).max(1)));
    }
    if let Some(limit) = launch.time_limit {
        // The grid ends it in time. Slurm counts in minutes, and what the start of the job takes as well.
        arguments.push(format!("--time={}", limit.as_ms().div_ceil(60_000) + 1));
    }
    let gpus = spec.resources.of(GPU);
    if gpus > 0 {
        arguments.push(format!("--gres=gpu:{gpus}"));
    }
    if spec.sharing == Sharing::Exclusive {
        arguments.push("--exclusive".to_owned());
    }
    let of_queue = launch.wrap.as_ref().map_or(&[][..], |wrap| &wrap.slurm);
    let of_queue = with_features(of_queue, spec.features.as_ref()).map_err(Refused::Never)?;
    arguments.extend(of_queue);
    Ok(arguments)
}

/// A path in which Slurm replaces nothing.
fn percent(path: &str) -> String {
    path.replace('%', "%%")
}

/// The script that holds a task in its allocation.
pub fn script(program: &Path, argument: &str, folder: &Path) -> String {
    let word = |path: &Path| format!("'{}'", path.display().to_string().replace('\'', r"'\''"));
    format!("#!/bin/sh\nexec {} {argument} --allocation {}\n", word(program), word(folder))
}

/// The number in the answer of `sbatch --parsable`: alone, or before the name of the cluster.
pub fn number(answer: &str) -> Option<u64> {
    answer.trim().split(';').next()?.parse().ok()
}

/// Why `sbatch` did not take a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It may take it later, or has taken it and could not say so.
    Later(String),
    /// It never takes this one.
    Never(String),
}

/// What Slurm says when it cannot decide now.
const PASSING: [&str; 10] = [
    "Unable to contact slurm controller",
    "Socket timed out",
    "Zero Bytes were transmitted",
    "Transport endpoint",
    "temporarily unable to accept job",
    "Resource temporarily unavailable",
    "Protocol authentication error",
    "Invalid authentication credential",
    "Unable to resolve",
    "job submit limit",
];

/// What its errors mean.
pub fn refused(errors: &str) -> Refused {
    let lines = errors.lines().map(|line| line.trim_start_matches("sbatch: error: ").trim());
    let said = lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
    let said = if said.is_empty() { "it says nothing".to_owned() } else { said };
    if PASSING.iter().any(|passing| said.contains(passing)) {
        Refused::Later(said)
    } else {
        Refused::Never(said)
    }
}

/// What `squeue` says of one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub id: u64,
    pub state: String,
    pub node: String,
    pub mark: String,
    pub reason: String,
}

/// All that it says. Lines of other jobs may be anything.
pub fn rows(answer: &str) -> Vec<Row> {
    let row = |line: &str| {
        let mut parts = line.splitn(5, '|').map(str::to_owned);
        let id = parts.next()?.trim().parse().ok()?;
        let (state, node, mark) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Row { id, state, node, mark, reason: parts.next()? })
    };
    answer.lines().filter_map(row).collect()
}

/// How far a job is that is in a state of Slurm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// It waits.
    Waits,
    /// Its processes may run.
    Runs,
    /// Slurm has seen the end of its processes.
    Over,
    /// Slurm has given it up, and its processes may run.
    GivenUp,
}

impl Row {
    pub fn reached(&self) -> Reached {
        match self.state.as_str() {
            "PENDING" | "CONFIGURING" | "REQUEUED" | "REQUEUE_HOLD" | "REQUEUE_FED"
            | "SPECIAL_EXIT" | "RESV_DEL_HOLD" => Reached::Waits,
            "BOOT_FAIL" | "NODE_FAIL" | "REVOKED" => Reached::GivenUp,
            "COMPLETED" | "FAILED" | "CANCELLED" | "TIMEOUT" | "PREEMPTED" | "DEADLINE"
            | "OUT_OF_MEMORY" => Reached::Over,
            // Also those of later versions.
            _ => Reached::Runs,
        }
    }

    /// Whether somebody holds it.
    pub fn is_held(&self) -> bool {
        self.reason.starts_with("JobHeld")
    }

    /// In words.
    pub fn note(&self) -> String {
        let Row { id, state, node, reason, .. } = self;
        match self.reached() {
            Reached::Waits if reason.is_empty() || reason == "None" => {
                format!("Slurm job {id} waits")
            }
            Reached::Waits => format!("Slurm job {id} waits: {reason}"),
            Reached::Runs if state == "RUNNING" => format!("Slurm job {id} runs on {node}"),
            Reached::Runs | Reached::Over | Reached::GivenUp => {
                format!("Slurm job {id} is {state} on {node}")
            }
        }
    }
}

/// How a start ended of whose end only Slurm knows.
pub struct Unsaid<'a> {
    pub id: u64,
    /// The last state that Slurm named.
    pub state: &'a str,
    pub reason: &'a str,
    /// Whether the job had begun.
    pub started: bool,
    /// Memory that it asked for.
    pub memory: Option<ByteSize>,
    /// The last line of what its holder wrote, if anything.
    pub log: &'a str,
}

impl Unsaid<'_> {
    pub fn end(&self) -> End {
        let exited = |exit| End::Exited { exit, usage: None };
        let Unsaid { id, state, reason, log, .. } = self;
        let why = if reason.is_empty() || *reason == "None" {
            String::new()
        } else {
            format!(" ({reason})")
        };
        let log = if log.is_empty() { String::new() } else { format!(": {log}") };
        let before =
            || short_reason(format!("Slurm job {id} ended as {state}{why} before it began{log}"));
        match (*state, self.started) {
            ("CANCELLED", _) | ("TIMEOUT" | "DEADLINE", true) => exited(Exit::Signal(15)),
            ("OUT_OF_MEMORY", _) => {
                exited(Exit::MemoryLimit(self.memory.map_or(0, |memory| memory.0)))
            }
            (_, true) => End::Lost(Loss::Slurm(short_reason(format!("{state}{why}")))),
            // What is wrong with a node need not be wrong with the next one.
            ("NODE_FAIL" | "BOOT_FAIL" | "PREEMPTED" | "REVOKED" | UNKNOWN, false) => {
                End::Lost(Loss::Unable(before()))
            }
            (_, false) if reason.contains("JobLaunchFailure") || !log.is_empty() => {
                End::Lost(Loss::Unable(before()))
            }
            (_, false) => exited(Exit::NotStarted(before())),
        }
    }
}

/// In place of the state of a job that Slurm does not know any more.
pub const UNKNOWN: &str = "UNKNOWN";

#[cfg(test)]
#[path = "command_tests.rs"]
mod tests;
