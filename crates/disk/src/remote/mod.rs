//! A disk of another node: [`RemoteDisk`] asks the [`DiskService`] of the node that it belongs to, over a
//! [`Channel`](forebay_base::Channel).
//!
//! **What a crash of the other node does.** When its daemon dies, published objects keep every byte written, and fresh ones
//! are gone, as the crash contract of the disk seam says. Handles are opened again without being noticed: one that the node has
//! forgotten names the [`Life`] in which it was opened, and is never taken for that of another object. When its machine
//! dies, what was written since the last sync may be gone, although this process lives on: the next sync of such an
//! object fails, and so does the next sync of the disk ([`Machine`]). A sync never reports as durable what a
//! crash of the other machine may have taken.
//!
//! **A node that is away** gives [`DiskError::Away`](crate::DiskError::Away) with the name of the disk and the reason.
//! Whether such a write or removal was carried out is not known; it will not be carried out later.
//!
//! Bytes travel as payloads of at most [`TRANSFER_MAX`]. What is read or written here goes through the file of the object on
//! its node, so it is coherent with programs there that read and write the object themselves.

mod disk;
mod link;
mod object;
mod service;
mod wire;

pub use disk::RemoteDisk;
pub use object::RemoteObject;
pub use service::{DiskService, HANDLES_MAX};
pub use wire::{Life, Machine, TRANSFER_MAX};
