//! The kernel front end: the FUSE protocol, its transport, and mounting.
//!
//! Reading order: [`abi`] (the protocol), [`Adapter`] (requests to operations), [`transport`] (how they
//! arrive: over /dev/fuse, over io_uring), [`session`] (begin and end), [`mount`], [`top`]
//! (which of the kernel's inodes is the root directory). Only this crate knows
//! errno and FUSE; the adapter knows nothing of how requests arrive.
//!
//! Why not a library for the protocol: docs/adr/0003-own-fuse-protocol.md.

pub mod abi;
pub mod activity;
mod adapter;
mod device;
mod errno;
pub mod mount;
mod reply;
mod request;
pub mod session;
pub mod settings;
pub mod top;
pub mod transport;

pub use adapter::Adapter;
pub use device::Device;
pub use session::{DirectPath, Ending, Opening, Session};
pub use settings::Settings;
pub use transport::Transport;
