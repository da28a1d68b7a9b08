//! The log of what a job used in the style of FULLSTIMER, beside its output, for queues that want it.
//!
//! It is the user's file: written with his rights, readable as his umask says. `forebay step` adds a block for each step while the job runs
//! (it finds the path in [`VARIABLE`]); the shim adds that of the job at its end. What cannot be written is said in the log
//! of the agent, and ends no job.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use forebay_base::Usage;
use forebay_base::fullstimer::Block;
use forebay_grid::dialect::OldOutput;
use forebay_grid::spec::Exit;
use forebay_process::user::Account;

use crate::run::Task;

/// Where the program of a job finds the path of the log.
pub const VARIABLE: &str = "FOREBAY_FULLSTIMER";

/// What is added to the name of the output.
const SUFFIX: &str = ".fullstimer";

/// Where the log of a job is; none if its queue wants none, or its output is not a file.
pub fn path(task: &Task) -> Option<PathBuf> {
    let launch = &task.launch;
    launch.wrap.as_ref().filter(|wrap| wrap.fullstimer)?;
    let output = launch.spec.output_path(launch.task, Some(&task.host));
    let is_file = !output.is_empty() && !output.starts_with("/dev/");
    is_file.then(|| Path::new(&launch.spec.directory).join(format!("{output}{SUFFIX}")))
}

/// Removes the log of an earlier job with the same output, before the first start of a job.
pub fn begin(task: &Task, account: &Account) {
    let Some(path) = path(task) else { return };
    if task.launch.attempt.0 > 1 || task.launch.spec.old_output() == OldOutput::Kept {
        return;
    }
    let removed = account.act(|| fs::remove_file(&path));
    match removed.and_then(|removed| removed) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => say(task, &path, &error),
        Ok(()) | Err(_) => {}
    }
}

/// Adds what the job used.
pub fn end(task: &Task, account: &Account, exit: &Exit, usage: &Usage, unix_seconds: i64) {
    let Some(path) = path(task) else { return };
    let text = text(task, exit, usage, unix_seconds);
    let write = || -> io::Result<()> {
        let mode = 0o666 & !(task.launch.spec.umask & 0o777);
        let mut file = OpenOptions::new().append(true).create(true).mode(mode).open(&path)?;
        file.write_all(text.as_bytes())
    };
    if let Err(error) = account.act(write).and_then(|written| written) {
        say(task, &path, &error);
    }
}

fn text(task: &Task, exit: &Exit, usage: &Usage, unix_seconds: i64) -> String {
    let launch = &task.launch;
    let mut text = String::new();
    let at = jiff::Timestamp::from_second(unix_seconds).ok().map(|at| at.to_string());
    let name = match launch.spec.name.as_str() {
        "" => String::new(),
        name => format!(" ({name})"),
    };
    let title =
        format!("Job {}{name}, start {}, on {} used", launch.task, launch.attempt, task.host);
    Block::of(usage, at).write(&title, &mut text);
    text += &format!("\nNOTE: The job ended: {exit}.\n");
    text
}

fn say(task: &Task, path: &Path, error: &io::Error) {
    tracing::warn!(task = %task.launch.task, "the log of the job {} cannot be written: {error}", path.display());
}
