//! What the partitions of one file system share: disks and the supply of objects, the memory for cached inodes, the
//! bound of open objects, settings, time, and the thread that commits.
//!
//! A fileset that is not open has no part in any of this, so it costs nothing.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

use forebay_base::{Clock, FailPoints};
use parking_lot::{Condvar, Mutex};

use crate::cache::InodeCache;
use crate::clients::Clients;
use crate::gate::Lease;
use crate::growth::Growth;
use crate::idle::IdleObjects;
use crate::namespace::{AwayDisks, Cluster};
use crate::object::Objects;
use crate::owner::Owners;
use crate::reserve::Reserve;
use crate::settings::Settings;
use crate::stale::StaleList;
use crate::untold::Untold;
use crate::writeset::Crowd;

/// What the partitions of one file system share.
pub(crate) struct Shared {
    pub settings: Settings,
    pub clock: Arc<dyn Clock>,
    pub fail_points: FailPoints,
    pub reserve: Reserve,
    pub objects: Objects,
    /// Inodes of all partitions, within one bound.
    pub inodes: InodeCache,
    /// Objects of closed files of all partitions: there is one bound of open objects.
    pub idle: IdleObjects,
    /// What the kernel must forget: things that changed behind its back.
    pub stale: StaleList,
    /// Names that other nodes are changing, of which the kernel does not know yet.
    pub untold: Untold,
    /// The second in which a file with bytes last lost its last name.
    pub last_left: AtomicI64,
    pub owners: Owners,
    /// Raised when some partition has so much uncommitted that it should commit.
    pub crowd: Arc<Crowd>,
    pub bell: Bell,
    /// How long this node may answer, in a cluster.
    pub lease: Option<Arc<Lease>>,
    /// The cluster, if other nodes use the filesets of this one, or may.
    pub cluster: Option<Arc<dyn Cluster>>,
    /// What other nodes hold.
    pub clients: Clients,
    /// Disks whose nodes do not answer.
    pub away: AwayDisks,
    /// Who is told how much files grow, if anybody is.
    pub growth: OnceLock<Arc<dyn Growth>>,
}

/// Wakes the thread that commits, and ends it.
#[derive(Default)]
pub(crate) struct Bell {
    stopping: AtomicBool,
    rung: AtomicBool,
    lock: Mutex<()>,
    heard: Condvar,
}

/// Why the thread that commits was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waking {
    /// It is time for everybody.
    Interval,
    /// Somebody wants a commit before its time, or objects to be closed.
    Rung,
    /// The threads are to end.
    Stop,
}

impl Bell {
    /// Has the thread look now.
    pub fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            drop(self.lock.lock());
            self.heard.notify_all();
        }
    }

    /// Ends the threads.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        drop(self.lock.lock());
        self.heard.notify_all();
    }

    /// Whether the threads are to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Waits until it is rung, or for `limit`.
    pub fn wait(&self, limit: std::time::Duration) -> Waking {
        let mut guard = self.lock.lock();
        let mut timed_out = false;
        if !self.is_stopping() && !self.rung.load(Ordering::Acquire) {
            timed_out = self.heard.wait_for(&mut guard, limit).timed_out();
        }
        if self.is_stopping() {
            Waking::Stop
        } else if timed_out {
            Waking::Interval
        } else {
            Waking::Rung
        }
    }

    /// Waits until the threads are to end, or for `limit`.
    pub fn wait_for_stop(&self, limit: std::time::Duration) {
        let mut guard = self.lock.lock();
        if !self.is_stopping() {
            self.heard.wait_for(&mut guard, limit);
        }
    }

    /// What it was rung for is done. Whoever rings from now on is heard again.
    pub fn quiet(&self) {
        self.rung.store(false, Ordering::Release);
    }
}

impl Shared {
    /// Whether bytes and names can change without a word to the kernel of this node: it caches no pages then that are
    /// not those of the object's own file.
    pub fn has_other_nodes(&self) -> bool {
        self.cluster.is_some()
    }

    /// Fills up what was given away of the reserves, before anybody else has the space.
    pub fn restore_reserves(&self) {
        self.reserve.hold();
        self.objects.restore_reserves();
    }

    /// Has everything come back that waits for a commit or to be closed, in whichever fileset. Returns whether there
    /// was anything. Holds no locks when called.
    pub fn recover_space(&self) -> bool {
        let removals: Vec<_> = self
            .owners
            .partitions()
            .into_iter()
            .filter(|partition| partition.has_removals())
            .collect();
        if removals.is_empty() && self.objects.reclaim_backlog() == 0 {
            return false;
        }
        // A commit that fails is not tried again by each request.
        for partition in removals.iter().filter(|partition| !partition.commits_rest()) {
            let _ = partition.commit();
        }
        self.objects.finish_reclaim();
        self.restore_reserves();
        self.objects.give_up_spares();
        true
    }

    /// Has everything committed soon whose objects wait to be removed.
    pub fn want_removals(&self) {
        for partition in self.owners.partitions() {
            if partition.has_removals() && !partition.commits_rest() {
                partition.want_commit();
            }
        }
    }
}
