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

/// What was read of files where they lie in an archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartialReads {
    /// Ranges that were fetched: requests to the store, for one frame or several.
    pub ranges: u64,
    /// Frames in them, of 1 MiB of a file each.
    pub frames: u64,
    /// Bytes of files in them.
    pub bytes: u64,
    /// Reads that were answered with frames that were fetched before.
    pub hits: u64,
    /// Reads that failed.
    pub failures: u64,
}

#[derive(Debug, Default)]
pub(crate) struct PartialCounter {
    ranges: AtomicU64,
    frames: AtomicU64,
    bytes: AtomicU64,
    hits: AtomicU64,
    failures: AtomicU64,
}

impl PartialCounter {
    /// One range was fetched.
    pub fn fetched(&self, frames: u64, bytes: u64) {
        self.ranges.fetch_add(1, Ordering::Relaxed);
        self.frames.fetch_add(frames, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    pub fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    pub fn read(&self) -> PartialReads {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PartialReads {
            ranges: read(&self.ranges),
            frames: read(&self.frames),
            bytes: read(&self.bytes),
            hits: read(&self.hits),
            failures: read(&self.failures),
        }
    }
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
    /// What was read of files there.
    pub partial: PartialCounter,
}
