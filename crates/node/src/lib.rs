//! A node of a cluster: its certificates, its sessions with other nodes, and its membership.
//!
//! - [`authority`]: who vouches for nodes, and how further ones join.
//! - [`session`]: calls between nodes over TLS, carried out once.
//!
//! Only this crate knows TLS and the frames between nodes.

pub mod authority;
pub mod error;
pub mod session;
pub mod settings;

pub use error::{Error, Result};
pub use settings::Settings;
