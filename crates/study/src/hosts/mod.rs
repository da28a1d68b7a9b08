//! Watching the hosts of a study whose jobs run on several machines.
//!
//! On each host runs a [`watcher`], a job of the grid: it describes its machine and writes a line a second into a file
//! of the result's folder, which all hosts share. [`Hosts`] is the side of the study: it reads those files, has
//! the hosts settle before a run, and makes of their seconds the samples of the run, those of each host and those
//! of all together. Nothing but the shared folder connects the two: [`message`] is what they write to each other.
//!
//! A watcher ends when the study says so, and by itself when the study has given no sign of life for two minutes: a study
//! that was killed holds no slots for longer. Seconds of different hosts are put together by the clocks of the hosts, which
//! must agree. Memory: one second of one host takes about 300 bytes, for as long as the run lasts.

mod combine;
mod follower;
pub mod message;
mod study;
pub mod watcher;

pub use combine::{Series, combine, edges};
pub use study::{HostJob, Hosts, Watched};

/// Folder of the watchers' files in a result, while the study runs.
pub const FOLDER: &str = "hosts";
