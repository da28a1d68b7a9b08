//! Loads: I/O of a known shape without analytics, measured.
//!
//! A load takes a directory and a clock, makes a scratch directory of its own there, and returns
//! figures; it never prints, and removes everything it made, also after an error. Files grow as they
//! are written and nothing is synced unless a setting says so. Where a figure needs caches to be
//! empty the caller hands in what drops them, since only it may know how (and may need privileges);
//! without it that figure is `None`.
//!
//! [`Names`], [`Stream`] and [`TempFiles`] are steps of programs, too: each process of a run is one.

pub mod calibration;
mod meeting;
pub mod metadata;
pub mod names;
pub mod sequential;
pub mod storm;
pub mod stream;
pub mod temp_files;

pub(crate) mod numbered;
pub(crate) mod pattern;

use std::io;
use std::path::Path;
use std::thread;

use forebay_base::{ByteSize, Clock};
use serde::{Deserialize, Serialize};

pub use calibration::Calibration;
pub use meeting::{Group, Together};
pub use metadata::Metadata;
pub use names::Names;
pub use sequential::Sequential;
pub use storm::Storm;
pub use stream::{Stream, StreamResult};
pub use temp_files::TempFiles;

use crate::resource::ratio;
use forebay_analytics::error::{Error, Result};

/// Empties the caches between the load and the disks.
pub type DropCaches<'a> = dyn FnMut() -> io::Result<()> + 'a;

/// Bytes moved and the time it took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Transfer {
    /// Bytes moved.
    pub bytes: u64,
    /// Seconds on the clock.
    pub seconds: f64,
    /// Million bytes per second.
    pub mb_per_second: f64,
}

impl Transfer {
    fn new(bytes: u64, seconds: f64) -> Transfer {
        Transfer { bytes, seconds, mb_per_second: ratio(bytes as f64 / 1e6, seconds) }
    }
}

/// Operations done and the time it took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Operations {
    /// Operations done.
    pub count: u64,
    /// Seconds on the clock.
    pub seconds: f64,
    /// Operations per second.
    pub per_second: f64,
}

impl Operations {
    fn new(count: u64, seconds: f64) -> Operations {
        Operations { count, seconds, per_second: ratio(count as f64, seconds) }
    }
}

/// Runs `work` and returns what it returns and the seconds it took.
fn timed<T>(clock: &dyn Clock, work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let start = clock.instant();
    let result = work()?;
    Ok((result, clock.instant().saturating_duration_since(start).as_secs_f64()))
}

/// Runs `work` in `workers` threads, each with its number from 0; the first error wins.
fn in_threads<T: Send>(workers: u32, work: impl Fn(u32) -> Result<T> + Sync) -> Result<Vec<T>> {
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> =
            (0..workers).map(|worker| scope.spawn(move || work(worker))).collect();
        threads
            .into_iter()
            .map(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
            .collect()
    })
}

fn drop_caches(drop: &mut DropCaches<'_>, target: &Path) -> Result<()> {
    drop().map_err(Error::io("drop the caches of", target))
}

/// Refuses a number of bytes outside `least..=most`.
pub(crate) fn check_bytes(
    setting: &'static str,
    value: ByteSize,
    least: u64,
    most: u64,
) -> Result<()> {
    if (least..=most).contains(&value.0) {
        return Ok(());
    }
    Err(Error::Setting {
        setting,
        value: value.to_string(),
        allowed: format!("from {} to {}", ByteSize(least), ByteSize(most)),
    })
}

/// Refuses zero.
pub(crate) fn check_count(setting: &'static str, value: u64) -> Result<()> {
    if value > 0 {
        return Ok(());
    }
    Err(Error::Setting { setting, value: "0".to_owned(), allowed: "at least 1".to_owned() })
}
