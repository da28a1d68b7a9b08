//! The file system: a namespace in memory over a transactional store, and objects on disks.
//!
//! Reading order: [`Namespace`] (where everything enters) and [`Partition`] (who does the work, one for each fileset),
//! [`record`] and [`key`] (what survives), `inode` and `directory` (what is in memory), [`writeset`] and
//! `partition/commit` (how memory becomes durable), [`object`] (where bytes are), `partition/ops/` (one file per
//! operation), [`recovery`] (opening after a crash), `shortage` (what happens when space is short), [`fsck`].
//!
//! Invariants:
//! - Every change reaches the write set in the same critical section that changed memory, all records of
//!   one operation together: any batch is a consistent cut.
//! - Who waits for the lock of an inode holds that of no other; the lock of the write set comes after them. No store is
//!   read or written with an inode's lock held, and no disk with that of a directory.
//! - A record that is committed refers only to published objects.
//! - A partition refers to no other, but for the names of filesets in the root directory.
//! - Nothing here knows of FUSE, sockets or errno.

pub mod acl;
mod ahead;
mod attributes;
mod cache;
pub mod caching;
pub mod census;
mod changes;
pub mod checksum;
mod clients;
mod closes;
mod directory;
pub mod error;
pub mod fsck;
mod gate;
pub mod grants;
mod growth;
mod idle;
mod inode;
pub mod key;
pub mod locks;
mod lru;
mod made_up;
pub mod mkfs;
mod namespace;
pub mod native;
pub mod number;
pub mod object;
pub mod offline;
mod owner;
mod partition;
mod pieces;
pub mod policy;
pub mod quota;
mod readings;
pub mod record;
pub mod remote;
pub mod reserve;
pub mod settings;
mod shared;
pub mod snapshot;
pub mod space;
mod stale;
pub mod stats;
mod stock;
pub mod tasks;
mod untold;
pub mod writeset;

pub use partition::recovery;
pub(crate) use partition::{commit, ops, shortage};

pub use attributes::{Attributes, KeepName, SetAttributes, SetId, SetTime};
pub use cache::INODE_COST;
pub use caching::{CacheMode, CacheStatus, HomeNeed, WriteBackSettings, WriteBackStatus};
pub use closes::await_closes;
pub use commit::CommitHealth;
pub use directory::NAME_MAX;
pub use error::{FsError, Result};
pub use growth::Growth;
pub use locks::LockRequest;
pub use namespace::metrics;
pub use namespace::{
    Background, Cluster, Conflict, Evicted, FilePlace, Flushing, HandOver, Interruption,
    KernelCache, KernelTimes, LostDisk, LostFile, Migrated, NameKept, Namespace, NewDisk, Parts,
    Residence, UnreachableFile, Whose,
};
pub use native::NewFileset;
pub use object::{DirectAccess, Moves, PartialReads, SeenObject};
pub use ops::{
    Access, ArchiveStatus, DirectoryItem, DiskStatus, FilesetStatus, Home, New, Opened, Replace,
    SetMode, SetXattr, Statistics,
};
pub use owner::Owner;
pub use partition::damage::DamagedFile;
pub use partition::{Caller, Partition};
pub use remote::{FilesService, RemoteOwner};
pub use settings::Settings;
pub use stale::Stale;
