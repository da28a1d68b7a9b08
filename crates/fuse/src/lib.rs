//! The kernel front end: the FUSE protocol, its transport, and mounting.
//!
//! Reading order: [`abi`] (the protocol), [`Adapter`] (requests to operations), [`session`] (threads on
//! the device), [`mount`]. Only this crate knows errno and FUSE; the adapter knows nothing of how
//! requests arrive, so that another transport can hand them in.
//!
//! Why not a library for the protocol: docs/adr/0003-own-fuse-protocol.md.

pub mod abi;
mod adapter;
mod device;
mod errno;
pub mod mount;
mod reply;
mod request;
pub mod session;

pub use adapter::Adapter;
pub use device::Device;
pub use session::{DirectPath, Opening, Session};
