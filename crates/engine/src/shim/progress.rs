//! How far a child has come on its way to be a job, so that what stopped it can be named.
//!
//! It is told through memory that the child shares with its parent: a child of fork(2), which has a copy, is taken
//! to have come to its program.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use forebay_process::Error;

use crate::run::Task;

/// What a child is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Part {
    /// Its program; the rest is done, or was not begun.
    Program,
    /// To become its user.
    User,
    /// To enter its working directory.
    Directory,
    /// To open the file of its output.
    Output,
    /// To open the file of its errors.
    Error,
}

/// Where a child is.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<AtomicU8>);

impl Progress {
    /// The child comes to this. It allocates nothing.
    pub fn reach(&self, part: Part) {
        self.0.store(part as u8, Ordering::Relaxed);
    }

    fn part(&self) -> Part {
        let parts = [Part::User, Part::Directory, Part::Output, Part::Error];
        let number = self.0.load(Ordering::Relaxed);
        parts.into_iter().find(|part| *part as u8 == number).unwrap_or(Part::Program)
    }

    /// The error of a child that could not be started, with the name of what it was about.
    pub fn name(&self, task: &Task, error: Error) -> Error {
        let launch = &task.launch;
        let spec = &launch.spec;
        let source = match error {
            Error::Io { source, .. } => source,
            error @ Error::NotHeld { .. } => return error,
        };
        let (action, path) = match self.part() {
            Part::Program => ("start", spec.command.first().cloned()),
            Part::User => ("become user", Some(launch.user.to_string())),
            Part::Directory => ("enter the working directory", Some(spec.directory.clone())),
            Part::Output => {
                ("open the output", Some(spec.output_path(launch.task, Some(&task.host))))
            }
            Part::Error => ("open the error file", spec.error_path(launch.task, Some(&task.host))),
        };
        Error::Io { action, path: path.map(PathBuf::from).unwrap_or_default(), source }
    }
}
