//! Disks whose nodes do not answer: requests that need bytes on them wait, for `away_timeout` from when the first of them
//! noticed it, and then fail until the disk is back.
//!
//! Only what may be carried out twice waits: whether it was carried out when the answer failed to come is not known. While a
//! disk is away one thread looks whether it is back, and wakes those who wait. Nothing of this costs anything as long as all
//! disks answer. It survives no crash.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use forebay_base::Ino;
use forebay_base::in_flight::{self, WaitsFor};
use forebay_disk::DiskError;
use parking_lot::{Condvar, Mutex};

use super::Namespace;
use crate::error::{FsError, Result};
use crate::owner::Owner;
use crate::shared::Shared;

/// How often it is looked whether a disk is back.
const LOOK: Duration = Duration::from_millis(500);

/// Since when each disk is away, by its identity.
#[derive(Default)]
pub(crate) struct AwayDisks {
    since: Mutex<HashMap<String, Instant>>,
    changed: Condvar,
}

/// Which disk does not answer, and why.
struct AwayDisk {
    uuid: String,
    location: String,
    why: String,
}

impl Namespace {
    /// As [`Namespace::at`], for what needs the bytes of a file and may be carried out twice: waits for a disk whose node does
    /// not answer.
    pub(super) fn at_bytes<T>(
        &self,
        ino: Ino,
        mut operation: impl FnMut(&Owner) -> Result<T>,
    ) -> Result<T> {
        match self.at(ino, &mut operation) {
            Err(FsError::Away { disk, location, why }) => {
                let away = AwayDisk { uuid: disk, location, why };
                self.wait_for_disk(away, &mut || self.at(ino, &mut operation))
            }
            done => done,
        }
    }

    /// Repeats a request until the disk is back, or its time is over.
    #[cold]
    fn wait_for_disk<T>(
        &self,
        mut away: AwayDisk,
        again: &mut dyn FnMut() -> Result<T>,
    ) -> Result<T> {
        let shown = format!("disk {} ({}), which is unreachable", away.uuid, away.location);
        let _waits = in_flight::waits_for(|| WaitsFor::Disk(shown.into()));
        let timeout = self.settings().away_timeout;
        let begun = self.instant();
        loop {
            // One that is away for this node only through the owner may be noticed anew again and again.
            let since = self.away_since(&away).min(begun);
            let left = (since + timeout).saturating_duration_since(self.instant());
            if left.is_zero() {
                let AwayDisk { uuid, location, why } = away;
                return Err(FsError::Io(format!(
                    "disk {uuid} ({location}) is unreachable: {why}; this has lasted for more than {timeout:?} (away_timeout)"
                )));
            }
            self.shared.away.wait(&away.uuid, left.min(LOOK));
            match again() {
                Err(FsError::Away { disk, location, why }) => {
                    away = AwayDisk { uuid: disk, location, why };
                }
                done => return done,
            }
        }
    }

    /// Since when a disk is away. From the first time on a thread looks whether it is back.
    fn away_since(&self, away: &AwayDisk) -> Instant {
        let now = self.instant();
        let mut since = self.shared.away.since.lock();
        if let Some(since) = since.get(&away.uuid) {
            return *since;
        }
        tracing::warn!(disk = away.uuid, at = away.location, "unreachable: {}", away.why);
        let (shared, uuid) = (Arc::downgrade(&self.shared), away.uuid.clone());
        let looking = std::thread::Builder::new().name("away".to_owned());
        match looking.spawn(move || look_for(&shared, &uuid)) {
            Ok(_) => {
                since.insert(away.uuid.clone(), now);
            }
            // Each request waits by itself then.
            Err(error) => tracing::warn!(%error, "no thread looks for the disk"),
        }
        now
    }

    /// The disks that do not answer, as far as requests have noticed, by their identities.
    #[must_use]
    pub fn away_disks(&self) -> Vec<String> {
        self.shared.away.since.lock().keys().cloned().collect()
    }
}

impl AwayDisks {
    /// Waits until a disk is back, or a little.
    fn wait(&self, uuid: &str, limit: Duration) {
        let mut since = self.since.lock();
        if since.contains_key(uuid) {
            self.changed.wait_for(&mut since, limit);
        }
    }

    fn is_back(&self, uuid: &str) {
        self.since.lock().remove(uuid);
        self.changed.notify_all();
    }
}

/// Looks for a disk until it is back, or the file system is closed.
fn look_for(shared: &Weak<Shared>, uuid: &str) {
    loop {
        std::thread::sleep(LOOK);
        let Some(shared) = shared.upgrade() else { return };
        let found = shared.objects.disks.iter().find(|disk| disk.uuid == uuid);
        let answered = found.map(|disk| disk.disk.capacity());
        if !matches!(answered, Some(Err(DiskError::Away { .. }))) {
            tracing::info!(disk = uuid, "the disk answers again");
            shared.away.is_back(uuid);
            return;
        }
    }
}
