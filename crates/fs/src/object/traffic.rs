//! What went into an archive and came back since the mount, for `status` and monitors.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// Files that went one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moves {
    /// Files.
    pub files: u64,
    /// Sum of their sizes, in bytes.
    pub bytes: u64,
    /// How often it failed.
    pub failures: u64,
}

#[derive(Debug, Default)]
pub(crate) struct MoveCounter {
    files: AtomicU64,
    bytes: AtomicU64,
    failures: AtomicU64,
}

impl MoveCounter {
    pub fn moved(&self, bytes: u64) {
        self.files.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    pub fn read(&self) -> Moves {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Moves { files: read(&self.files), bytes: read(&self.bytes), failures: read(&self.failures) }
    }
}

/// Both ways of an archive.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// Files that were moved there.
    pub archived: MoveCounter,
    /// Files that were brought back.
    pub recalled: MoveCounter,
}
