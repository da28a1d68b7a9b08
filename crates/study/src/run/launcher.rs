//! The seam through which a run has its jobs started.
//!
//! A launcher takes jobs, starts each when and where it sees fit, and says when it started and how it
//! ended. The runner never looks behind it, so a grid can be one. A job that was submitted is reported
//! as ended exactly once; if it was started, as started before that.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebay_process::accounting::Counters;

use crate::error::Result;
use crate::record::{Exit, Usage};

/// A job to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Its number, by which events name it; unique as long as the launcher is used.
    pub number: usize,
    /// Its name, for people.
    pub name: String,
    /// The logical node on which it belongs.
    pub node: u32,
    /// Program and arguments.
    pub command: Vec<OsString>,
    /// The file that takes what it prints.
    pub output: PathBuf,
}

/// What became of a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Its process runs.
    Started {
        /// The job.
        number: usize,
        /// Since when.
        at: Instant,
        /// Its process, if it runs on this machine.
        pid: Option<u32>,
    },
    /// It has ended and nothing of it runs any more.
    Ended {
        /// The job.
        number: usize,
        /// Since when.
        at: Instant,
        /// How.
        exit: Exit,
        /// The host that ran it, where that is not this machine or one of several.
        host: Option<String>,
        /// What it used.
        usage: Box<Usage>,
        /// Its counters at the end, if they could be read.
        last: Option<Counters>,
    },
}

/// Starts jobs.
pub trait Launcher {
    /// Says how many logical nodes there are from now on, and how many jobs each runs at once at most;
    /// called while there are no jobs.
    fn set_slots(&mut self, nodes: u32, concurrent: u32);

    /// Takes a job; it is started as soon as there is room for it.
    ///
    /// # Errors
    /// If it can never be started.
    fn submit(&mut self, launch: Launch) -> Result<()>;

    /// Waits until something has happened to a job, but no longer than `limit`; may return nothing.
    ///
    /// # Errors
    /// If the launcher has lost track of its jobs.
    fn wait(&mut self, limit: Duration) -> Result<Vec<Event>>;

    /// Ends all jobs, those that wait too, and returns when they have ended.
    fn stop(&mut self) -> Vec<Event>;
}

impl<L: Launcher + ?Sized> Launcher for &mut L {
    fn set_slots(&mut self, nodes: u32, concurrent: u32) {
        (**self).set_slots(nodes, concurrent);
    }

    fn submit(&mut self, launch: Launch) -> Result<()> {
        (**self).submit(launch)
    }

    fn wait(&mut self, limit: Duration) -> Result<Vec<Event>> {
        (**self).wait(limit)
    }

    fn stop(&mut self) -> Vec<Event> {
        (**self).stop()
    }
}
