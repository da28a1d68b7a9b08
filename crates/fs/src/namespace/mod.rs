//! The namespace: everything that enters from outside comes here, and goes to the owner of its fileset.
//!
//! The front end, `stat`, `status` and the commands of filesets know this type alone. An operation names inodes, and
//! the upper 16 bits of an inode's number say which fileset owns it (`forebay_base::id`), so finding the owner is a
//! shift and a look into a table. The table is replaced as a whole when a fileset comes or goes: a request takes no
//! lock and allocates nothing on its way.
//!
//! The namespace itself holds no state of files; what survives a crash is its owners' business.

mod operations;

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwap, Guard};
use forebay_base::{Epoch, FilesetId, Ino};

use crate::commit::CommitHealth;
use crate::error::{FsError, Result};
use crate::native::NativeOwner;
use crate::object::{DirectAccess, Objects};
use crate::ops::{DiskStatus, FilesetStatus};
use crate::partition::{Partition, Parts};
use crate::record::{Durability, Placement};
use crate::recovery::Background;
use crate::reserve::Reserve;
use crate::settings::Settings;
use crate::stale::Stale;
use crate::stats::Latency;

/// Who answers for a fileset.
#[derive(Clone)]
pub enum Owner {
    /// A partition of this process.
    Local(Arc<Partition>),
    /// A directory of a local disk, served.
    Native(Arc<NativeOwner>),
}

/// The owners by the number of their fileset.
#[derive(Default)]
struct Routes(Vec<Option<Owner>>);

impl Routes {
    fn get(&self, fileset: FilesetId) -> Option<&Owner> {
        self.0.get(usize::from(fileset.0))?.as_ref()
    }

    /// The same owners but for one.
    fn with(&self, fileset: FilesetId, owner: Option<&Owner>) -> Routes {
        let place = usize::from(fileset.0);
        let mut all = self.0.clone();
        if all.len() <= place {
            all.resize(place + 1, None);
        }
        all[place] = owner.cloned();
        Routes(all)
    }
}

/// The owner that a request goes to; it stays reachable until this is dropped.
struct Route {
    routes: Guard<Arc<Routes>>,
    fileset: FilesetId,
}

impl Deref for Route {
    type Target = Owner;

    fn deref(&self) -> &Owner {
        self.routes.get(self.fileset).expect("a route leads to an owner")
    }
}

/// A mounted file system, without a kernel.
pub struct Namespace {
    routes: ArcSwap<Routes>,
    root: Arc<Partition>,
    /// Top directories of native filesets: the inode that stands for one in the root fileset, and its own.
    pub(crate) native_tops: ArcSwap<Vec<(Ino, Ino)>>,
    /// The kernel's side of the direct path, for native filesets that are yet to come.
    pub(crate) direct: OnceLock<Arc<dyn DirectAccess>>,
}

impl Namespace {
    /// Opens a file system and becomes its owner: every earlier owner is fenced off.
    ///
    /// # Errors
    /// [`FsError::Damaged`] if the store holds no (readable) file system; [`FsError::Refused`] if a disk
    /// is missing; [`FsError::Fenced`] if another owner came in between.
    pub fn open(parts: Parts) -> Result<Arc<Namespace>> {
        let root = Partition::open(parts)?;
        let namespace = Namespace {
            routes: ArcSwap::default(),
            root: Arc::clone(&root),
            native_tops: ArcSwap::default(),
            direct: OnceLock::new(),
        };
        namespace.set_owner(FilesetId::ROOT, Some(Owner::Local(root)));
        namespace.open_native_filesets();
        Ok(Arc::new(namespace))
    }

    /// Has the requests of a fileset go to `owner` from now on, or to nobody.
    pub(crate) fn set_owner(&self, fileset: FilesetId, owner: Option<Owner>) {
        self.routes.rcu(|routes| routes.with(fileset, owner.as_ref()));
    }

    /// The owner of an inode.
    fn owner(&self, ino: Ino) -> Result<Route> {
        self.owner_of(ino.fileset())
    }

    fn owner_of(&self, fileset: FilesetId) -> Result<Route> {
        let route = Route { routes: self.routes.load(), fileset };
        // The fileset is gone, and its inodes with it.
        if route.routes.get(fileset).is_none() { Err(FsError::Stale) } else { Ok(route) }
    }

    // --- what is known of the whole ---

    /// Settings in force.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        self.root.settings()
    }

    /// Objects and disks, for status.
    #[must_use]
    pub fn objects(&self) -> &Objects {
        self.root.objects()
    }

    /// Opens the direct path: from now on the kernel reads and writes objects itself.
    pub fn set_direct_access(&self, direct: Arc<dyn DirectAccess>) {
        let _ = self.direct.set(Arc::clone(&direct));
        self.give_direct_access_to_native(&direct);
        self.root.objects().set_direct_access(direct);
    }

    /// Whether names in a directory change through this file system alone.
    #[must_use]
    pub fn keeps_names(&self, directory: Ino) -> bool {
        !matches!(self.owners_of(directory), Some(Owner::Native(_)))
    }

    /// The owner of an inode, if there is one.
    pub(crate) fn owners_of(&self, ino: Ino) -> Option<Owner> {
        self.routes.load().get(ino.fileset()).cloned()
    }

    /// All owners.
    pub(crate) fn owners(&self) -> Vec<Owner> {
        self.routes.load().0.iter().flatten().cloned().collect()
    }

    /// The partition of the root fileset.
    pub(crate) fn root(&self) -> &Arc<Partition> {
        &self.root
    }

    /// Latency histograms, in the order of [`OPERATIONS`](crate::stats::OPERATIONS). The front end records into them.
    #[must_use]
    pub fn latencies(&self) -> &[Latency] {
        self.root.latencies()
    }

    /// Identity of the file system.
    #[must_use]
    pub fn uuid(&self) -> String {
        self.root.uuid()
    }

    /// Bytes that the store occupies; 0 if it cannot say.
    #[must_use]
    pub fn store_bytes(&self) -> u64 {
        self.root.store_bytes()
    }

    /// Space kept aside in the home folder.
    #[must_use]
    pub fn reserve(&self) -> &Reserve {
        self.root.reserve()
    }

    /// Whether space is kept aside for commits on a full disk.
    #[must_use]
    pub fn reserve_is_held(&self) -> bool {
        self.root.reserve_is_held()
    }

    /// Whether space of some disk is short, so that removals and opens may wait for a commit.
    #[must_use]
    pub fn is_short_of_space(&self) -> bool {
        self.root.is_short_of_space()
    }

    /// The epoch of this owner.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.root.epoch()
    }

    /// Cached inodes, and bytes of memory they are reckoned at.
    #[must_use]
    pub fn cache_usage(&self) -> (usize, usize) {
        self.root.cache_usage()
    }

    /// Drops all cached state that can be read again.
    pub fn drop_caches(&self) {
        self.root.drop_caches();
    }

    /// How commits are doing.
    #[must_use]
    pub fn commit_health(&self) -> CommitHealth {
        self.root.commit_health()
    }

    /// The disks with what they hold.
    #[must_use]
    pub fn disk_status(&self) -> Vec<DiskStatus> {
        self.root.disk_status()
    }

    // --- what the kernel may hold although it changed ---

    /// What the kernel may hold although it changed; the front end tells it.
    #[must_use]
    pub fn take_stale(&self) -> Vec<Stale> {
        self.root.take_stale()
    }

    /// As [`Namespace::take_stale`], but only inodes whose attributes are stale: quick if there are none.
    #[must_use]
    pub fn take_stale_attributes(&self) -> Vec<Ino> {
        self.root.take_stale_attributes()
    }

    /// Whether the kernel may hold something that changed.
    #[must_use]
    pub fn has_stale(&self) -> bool {
        self.root.has_stale()
    }

    // --- commits, background and end ---

    /// Makes everything done so far durable, apart from the contents of files.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::Io`], [`FsError::Fenced`]; the changes stay pending and are
    /// committed later if that becomes possible.
    pub fn commit(&self) -> Result<()> {
        self.root.commit()
    }

    /// Commits everything done so far, and makes the disks durable.
    ///
    /// # Errors
    /// As [`Namespace::commit`].
    pub fn sync_all(&self) -> Result<()> {
        self.root.sync_all()
    }

    /// What the front end calls after each request, with no locks held: keeps uncommitted changes and
    /// open objects within their bounds.
    pub fn after_request(&self) {
        self.root.after_request();
    }

    /// Whether [`Namespace::after_request`] has something to do.
    #[must_use]
    pub fn is_over_limits(&self) -> bool {
        self.root.is_over_limits()
    }

    /// Commits everything done so far, and copies the store into a new file; returns the number of records.
    ///
    /// # Errors
    /// As [`Namespace::commit`]; [`FsError::Refused`] if there is a file of that name.
    pub fn back_up(
        &self,
        file: &std::path::Path,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<u64> {
        self.root.back_up(file, progress)
    }

    /// Starts the threads that commit, supply, reclaim and sweep.
    ///
    /// # Errors
    /// [`FsError::Io`] if the system gives no threads.
    pub fn start_background(&self) -> Result<Background> {
        self.root.start_background()
    }

    /// Removes objects that no record refers to, if the last owner crashed.
    ///
    /// # Errors
    /// What a store or a disk says; the next mount sweeps again if this one does not end in order.
    pub fn sweep(&self) -> Result<()> {
        self.root.sweep()
    }

    /// Commits everything, syncs the disks and marks the file system clean. No request may be under way, and
    /// the background threads must have ended.
    ///
    /// # Errors
    /// What a store or a disk says: the file system then counts as crashed.
    pub fn close(&self) -> Result<()> {
        self.root.close()
    }

    // --- filesets ---

    /// All filesets with what they hold.
    #[must_use]
    pub fn fileset_status(&self) -> Vec<FilesetStatus> {
        self.root.fileset_status()
    }

    /// Counters of each fileset since the mount, in the order of
    /// [`OPERATIONS`](crate::stats::OPERATIONS); the last row, without a name, is the system's own.
    #[must_use]
    pub fn counters(&self) -> Vec<(String, Vec<u64>)> {
        self.root.counters()
    }

    /// Makes a fileset with a top-level directory of the same name.
    ///
    /// # Errors
    /// [`FsError::Refused`] for a bad name or one that is taken.
    pub fn create_fileset(
        &self,
        name: &str,
        durability: Durability,
        placement: Placement,
        mode: u16,
    ) -> Result<()> {
        self.root.create_fileset(name, durability, placement, mode)
    }

    /// Changes a fileset's settings; they take effect for files opened from now on.
    ///
    /// # Errors
    /// [`FsError::Refused`] if there is no such fileset.
    pub fn set_fileset(
        &self,
        name: &str,
        durability: Option<Durability>,
        placement: Option<Placement>,
    ) -> Result<()> {
        self.root.set_fileset(name, durability, placement)
    }

    /// Removes an empty fileset and its directory.
    ///
    /// # Errors
    /// [`FsError::Refused`] if there is none, it is the root fileset, or not empty.
    pub fn remove_fileset(&self, name: &str) -> Result<()> {
        self.root.remove_fileset(name)?;
        self.drop_native(name);
        Ok(())
    }
}
