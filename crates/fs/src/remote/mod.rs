//! Filesets of other nodes.
//!
//! One node owns a fileset. On every other one, [`Owner::Remote`](crate::Owner) sends each operation to it over a
//! [`Channel`](forebay_base::Channel); there, a [`FilesService`] carries it out for its client. What was granted with an
//! answer is kept by the daemon of the other node until it is recalled ([`crate::grants`]); its kernel keeps names and attributes
//! for a moment at a time (`lent.rs`), and no pages but those of mappings.
//!
//! **Near bytes.** New bytes of another node go to a disk of that node, and it is told where: it reads and writes the object
//! itself, on the direct path where it has one (`near.rs`). The owner reaches the object by way of that node
//! ([`RemoteDisk`](forebay_disk::remote::RemoteDisk)), as third nodes do by way of the owner. While it is open for writing there,
//! the owner asks for its size and times whenever they matter.
//!
//! **Other bytes.** What another node reads and writes goes through the file descriptor of the object at the owner. Programs
//! of the owner may have the same file open on the direct path meanwhile: both meet in the page cache of the object's
//! file, so there is one truth. What the owner serves itself, its kernel does not cache while there may be other nodes.
//! What another node reads of a file that nobody writes is kept there in blocks, and fetched ahead (`blocks.rs`).
//! An append is decided at the owner, in one step with those of all others.
//!
//! **The owner's own kernel** keeps names and attributes. A change by another node is answered only after the owner's
//! kernel has been told to forget what changed ([`KernelCache`](crate::KernelCache)).
//!
//! **Clients.** The references, handles and locks of another node belong to it as a client, and go with it
//! ([`FilesService::drop_client`](forebay_base::channel::Service::drop_client)). A request of a client that was dropped
//! is refused as evicted: what it had open is stale.
//!
//! **Owners change** in order ([`Namespace::hand_over`](crate::Namespace::hand_over)): then nothing is lost, and the
//! others open again at the new owner what they had open. Or the owner dies or is fenced: then what was not committed
//! is lost as in a crash, and handles are stale. The new owner tells which it was, by the latest crash that its store
//! knows of.
//!
//! **What survives a crash**: nothing of all this.
//!
//! # How a daemon puts it together
//! - A [`Cluster`](crate::Cluster) says who owns a fileset and how other nodes and their disks are reached. The members
//!   of the cluster (etcd, leases) stand behind it; its answers come from memory, as requests wait for them.
//! - [`Namespace::join`](crate::Namespace::join) opens the namespace with it: the node's own disks are registered at the
//!   root's owner, and the catalogue is read there, or from the root's store where the node owns it.
//! - A [`FilesService`] over the namespace is registered with the node's sessions as
//!   [`ServiceId::Files`](forebay_base::channel::ServiceId), before the first other node may call. Calls may wait (for a
//!   gate, for a store): the sessions need more threads than one for them. A [`CacheService`] answers the recalls of
//!   other nodes as [`ServiceId::Cache`](forebay_base::channel::ServiceId).
//! - Where the members say that owners changed: [`Namespace::owner_changed`](crate::Namespace::owner_changed), for each
//!   fileset. Before this node's own lease could be over for others:
//!   [`Namespace::pause`](crate::Namespace::pause); when it is sure again, [`Namespace::resume`](crate::Namespace::resume).
//! - To move a fileset: [`Namespace::hand_over`](crate::Namespace::hand_over) on the owner, then the transaction that
//!   names the new one, then `owner_changed` everywhere. If the transaction fails, `owner_changed` on the owner opens it
//!   again at the next request.
//! - [`Namespace::set_kernel_cache`](crate::Namespace::set_kernel_cache) once there is a mount.

mod blocks;
mod cache;
pub(crate) mod changes;
mod delegating;
pub(crate) mod disk_orders;
mod files;
mod granting;
mod here;
mod keeping;
mod lent;
mod locking;
mod near;
mod open_files;
mod opening;
mod owner;
mod request;
mod service;
mod setting;
#[cfg(test)]
mod tests;
mod unsynced;
pub(crate) mod wire;

use std::time::Duration;

pub(crate) use blocks::Blocks;
pub use cache::CacheService;
pub(crate) use here::{REPORT_DELAY, ReportBell};
pub(crate) use lent::Lent;
pub(crate) use near::NearFiles;
pub(crate) use open_files::OpenFiles;
pub use owner::RemoteOwner;
pub(crate) use owner::{ask_node, tell};
pub use service::FilesService;
pub(crate) use wire::{Answer, LockAsked, Request, Whole};

/// How long the owner has a request of another node wait for a lock before it answers that it still waits.
pub(crate) const LOCK_POLL: Duration = Duration::from_millis(100);
