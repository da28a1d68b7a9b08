//! A node of a cluster: its certificates, its sessions with other nodes, and its membership.
//!
//! - [`authority`]: who vouches for nodes, and how further ones join.
//! - [`session`]: calls between nodes over TLS, carried out once.
//! - [`tunnel`]: streams of bytes between nodes, for programs that speak over sockets.
//! - [`home`]: the folder of a node.
//! - [`monitors`]: TLS with which a node serves metrics.
//! - [`members`]: membership and ownership with etcd; [`Member`] is a node at work.
//!
//! Only this crate knows the certificates of a cluster and the frames between nodes.

pub mod authority;
pub mod error;
pub mod etcd_member;
pub mod etcd_page;
pub mod home;
pub mod members;
pub mod metrics;
pub mod monitors;
pub mod session;
pub mod settings;
pub mod setup;
pub mod tunnel;

pub use error::{Error, Result};
pub use home::NodeHome;
pub use members::{Member, MemberStart, Ownership};
pub use settings::Settings;

/// Times of membership and ownership that nodes use unless a test shortens them.
#[must_use]
pub fn protocol_settings() -> forebay_cluster::Settings {
    forebay_cluster::Settings::default()
}
