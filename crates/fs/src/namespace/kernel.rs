//! The kernel of this node: what it caches of the filesets that this node owns, and for how long it may.
//!
//! On one machine the kernel keeps names and attributes for a set time, as all changes pass through it. In a cluster it is notified
//! of the changes of other nodes, but a daemon that is frozen notifies nobody, and another node may own the fileset by then. So the kernel
//! keeps nothing beyond the lease of the node, and before a fileset is handed over it has forgotten its names (docs/adr/0092).

use std::sync::Arc;
use std::time::Duration;

use forebay_base::{FilesetId, Ino};
use forebay_cluster::Moment;

use super::Namespace;
use crate::grants::Item;
use crate::owner::Owner;
use crate::partition::Partition;
use crate::stale::Stale;

/// How long an answer may take from here into the kernel.
pub(crate) const ANSWER_TIME: Duration = Duration::from_millis(100);
/// What the kernel keeps for long it has forgotten this long before the lease of the node is over, unless the answer was late.
const RESERVE: Duration = Duration::from_millis(500);
/// How often a thread that waits for the kernel looks whether the file system is still mounted.
const LOOK: Duration = Duration::from_millis(100);

/// What the kernel of this node caches of the filesets that it owns. May be called from any thread that answers no
/// request of the kernel; returns when the kernel has forgotten.
pub trait KernelCache: Send + Sync {
    /// Forget attributes and access lists of an inode.
    fn forget_attributes(&self, ino: Ino);
    /// Forget what is known of a name.
    fn forget_entry(&self, parent: Ino, name: &[u8]);
    /// Ask again for a name that leads where it led; what is mounted or in use below it stays.
    fn ask_again_for_entry(&self, parent: Ino, name: &[u8]);
    /// Forget the listing of a directory.
    fn forget_listing(&self, ino: Ino);
    /// Whether it still asks: the file system is mounted.
    fn is_mounted(&self) -> bool;
}

/// How long the kernel may keep names and attributes in a cluster; nothing at all where it is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelTimes {
    /// Of filesets of other nodes, and names that lead from one fileset into another.
    pub lent: Duration,
    /// Of filesets of this node, as long as its lease lasts.
    pub own: Duration,
}

/// The same for all filesets.
impl From<Duration> for KernelTimes {
    fn from(time: Duration) -> KernelTimes {
        KernelTimes { lent: time, own: time }
    }
}

/// How long the kernel may keep a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameKept {
    /// Not at all: its fileset is being handed over.
    Never,
    /// As long as names of the filesets of other nodes; on one machine, as long as all.
    AsLent,
    /// So long, in a fileset of this node.
    For(Duration),
}

/// The kernel of this node.
pub(super) struct Kernel {
    pub cache: Arc<dyn KernelCache>,
    times: KernelTimes,
}

impl Namespace {
    /// What the kernel may hold although it changed; the front end tells it.
    #[must_use]
    pub fn take_stale(&self) -> Vec<Stale> {
        self.shared.stale.take()
    }

    /// As [`Namespace::take_stale`], but only inodes whose attributes are stale: quick if there are none.
    #[must_use]
    pub fn take_stale_attributes(&self) -> Vec<Ino> {
        self.shared.stale.take_attributes()
    }

    /// As [`Namespace::take_stale`], but only directories that were moved.
    #[must_use]
    pub fn take_stale_listings(&self) -> Vec<Ino> {
        self.shared.stale.take_listings()
    }

    /// As [`Namespace::take_stale`], but only pages that nobody will need soon.
    #[must_use]
    pub fn take_stale_pages(&self) -> Vec<(Ino, u64, u64)> {
        self.shared.stale.take_pages()
    }

    /// Whether the kernel may hold something that changed.
    #[must_use]
    pub fn has_stale(&self) -> bool {
        !self.shared.stale.is_empty()
    }

    /// From now on the kernel is told of changes that other nodes make. It keeps what it was told for `times`.
    pub fn set_kernel_cache(&self, cache: Arc<dyn KernelCache>, times: impl Into<KernelTimes>) {
        let times = times.into();
        if let Some(membership) = &self.cluster {
            membership.lent.lend_to(&cache, times.lent, &self.shared.clock);
        }
        let _ = self.kernel.set(Kernel { cache, times });
    }

    pub(super) fn kernel(&self) -> Option<&dyn KernelCache> {
        self.kernel.get().map(|kernel| &*kernel.cache)
    }

    /// For how long the kernel may keep what this thread's answer says: that a name in a directory leads to an inode, or, without a
    /// name, the attributes of one that the kernel knows. None: as long as of the filesets of other nodes. To be called once it is certain that
    /// the answer says it.
    ///
    /// Attributes that come with a name are not kept for long: an invalidation does not reach an inode that the kernel has yet to make.
    pub fn keeps_own(&self, ino: Ino, name: Option<(Ino, &[u8])>) -> Option<Duration> {
        self.cluster.as_ref()?;
        // Held until the time is noted: a handover waits for that before it looks.
        let owner = self.shared.owners.find(ino.fileset());
        let Some(Owner::Local(partition)) = owner.as_deref() else { return None };
        self.keeps_of(partition, ino, name)
    }

    /// For how long the kernel may keep a name in a directory that leads to `ino`. To be called as [`Namespace::keeps_own`].
    pub fn keeps_name(&self, name: (Ino, &[u8]), ino: Ino) -> NameKept {
        if self.cluster.is_none() {
            return NameKept::AsLent;
        }
        let owner = self.shared.owners.find(ino.fileset());
        let Some(Owner::Local(partition)) = owner.as_deref() else { return NameKept::AsLent };
        if partition.names_lapse() {
            return NameKept::Never;
        }
        self.keeps_of(partition, ino, Some(name)).map_or(NameKept::AsLent, NameKept::For)
    }

    /// See [`Namespace::keeps_own`]: of a fileset that this node owns. Its route is held.
    fn keeps_of(
        &self,
        partition: &Partition,
        ino: Ino,
        name: Option<(Ino, &[u8])>,
    ) -> Option<Duration> {
        let (Some(membership), Some(kernel)) = (&self.cluster, self.kernel.get()) else {
            return None;
        };
        if name.is_some_and(|(parent, _)| parent.fileset() != ino.fileset()) {
            return None;
        }
        if partition.names_lapse() || !partition.gate().is_open() {
            return None;
        }
        let now = self.shared.clock.boottime();
        let lease = self.shared.lease.as_ref().map_or(Duration::MAX, |lease| lease.left());
        let time = kernel.times.own.min(lease.saturating_sub(RESERVE));
        if time <= kernel.times.lent {
            return None;
        }
        partition.note_kept_until(now + time + ANSWER_TIME);
        let item = match name {
            Some((parent, name)) => Item::Entry(parent, name.into()),
            None => Item::Attributes(ino),
        };
        membership.lent.give(item, Moment(now)).then_some(time)
    }

    /// Whether the kernel may keep that there is nothing under a name in `directory`.
    #[must_use]
    pub fn may_keep_absence(&self, directory: Ino) -> bool {
        self.keeps_names(directory)
            && (self.cluster.is_none() || !self.names_lapse(directory.fileset()))
    }

    fn names_lapse(&self, fileset: FilesetId) -> bool {
        let owner = self.shared.owners.find(fileset);
        matches!(owner.as_deref(), Some(Owner::Local(partition)) if partition.names_lapse())
    }

    /// Returns when the kernel keeps no name of a fileset of this node: from now on it is allowed to keep none that it is told, and
    /// those that it was told lapse meanwhile. Requests are answered meanwhile.
    ///
    /// Names are not taken from the kernel one by one, as a request that waits for the next owner would be in the way, nor all at
    /// once (FUSE_NOTIFY_INC_EPOCH), as that would also take the names on the way to native filesets, and with them what is
    /// mounted there.
    pub(super) fn let_names_lapse(&self, partition: &Partition) {
        let Some(kernel) = self.kernel.get().filter(|kernel| !kernel.times.lent.is_zero()) else {
            return;
        };
        partition.lapse_names(true);
        // Requests on their way may have seen it otherwise.
        self.shared.owners.drain();
        let kept = partition.kept_until().saturating_sub(self.shared.clock.boottime());
        let mut left = kept.max(kernel.times.lent) + ANSWER_TIME;
        while !left.is_zero() && kernel.cache.is_mounted() {
            let pause = left.min(LOOK);
            std::thread::sleep(pause);
            left -= pause;
        }
    }

    /// The kernel must ask again for everything of a fileset but its names, which it does not keep any more.
    pub(super) fn tell_kernel_of_all(&self, id: FilesetId) {
        let Some(kernel) = self.kernel() else { return };
        for ino in self.shared.inodes.remembered(id) {
            // With the listing of a directory, or the pages of a file.
            kernel.forget_listing(ino);
        }
    }
}
