//! What a study and the watchers of its hosts write to each other.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::record::{DeviceScope, Host, Sample};

/// Bytes read, bytes written, read calls, write calls of a job so far.
pub type Row = [u64; 4];

/// What the study wants of all watchers: written anew every few seconds, as a sign of life.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orders {
    /// Grows with each writing.
    pub beat: u64,
    /// Number of the settling that is wanted: dirty pages of the storage are to be written back.
    pub settle: u64,
    /// Whether the caches are to be emptied as well.
    pub drop_caches: bool,
    /// Whether the watchers are to end.
    pub end: bool,
}

/// A line of a watcher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// The first line: the host.
    Host(Box<Introduction>),
    /// It has settled.
    Settled {
        /// Number of the settling.
        settle: u64,
        /// Why it could not.
        fault: Option<String>,
    },
    /// What it did in an interval.
    Second(Box<Second>),
    /// The last line: it ends because the study said so.
    End,
}

/// A host as its watcher finds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Introduction {
    /// The host.
    pub host: Host,
    /// Number of its network namespace: hosts of one machine that share it share its interfaces.
    pub network: u64,
    /// Devices below the storage, on this host.
    pub device_scope: DeviceScope,
    /// Files of the study on the storage that it does not see.
    pub missing: Vec<PathBuf>,
}

/// An interval on a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// What the machine did; `at_seconds` is seconds since the epoch by the clock of the host, and nothing is known of jobs.
    pub sample: Sample,
    /// The jobs that were there at its end, by the file of their records below the result, with what they have done so far.
    pub jobs: BTreeMap<String, Row>,
}

/// The file with the orders.
#[must_use]
pub fn orders_path(folder: &Path) -> PathBuf {
    folder.join("orders.json")
}

/// The file with the lines of a host's watcher.
#[must_use]
pub fn lines_path(folder: &Path, host: &str) -> PathBuf {
    folder.join(format!("{host}.lines"))
}

impl Orders {
    /// Reads them.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Record`].
    pub fn read(folder: &Path) -> Result<Orders> {
        let path = orders_path(folder);
        let text = fs::read_to_string(&path).map_err(Error::io("read", &path))?;
        serde_json::from_str(&text)
            .map_err(|error| Error::Record { path, reason: error.to_string() })
    }

    /// Writes them; whoever reads meanwhile sees these or the ones before.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, folder: &Path) -> Result<()> {
        let path = orders_path(folder);
        let draft = folder.join(".orders.draft");
        let text = serde_json::to_vec(self)
            .map_err(|error| Error::Record { path: path.clone(), reason: error.to_string() })?;
        fs::write(&draft, text).map_err(Error::io("write", &draft))?;
        fs::rename(&draft, &path).map_err(Error::io("write", &path))
    }
}
