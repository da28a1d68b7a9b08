//! The way from the shim of a job to its client on another node: the relay of this node is asked for it.

use std::os::unix::net::UnixStream;

use anyhow::{Context as _, Result};
use forebay_grid::vocabulary::HostName;
use serde::{Deserialize, Serialize};

use crate::home::GridHome;
use crate::protocol::caller::Identity;
use crate::protocol::socket;
use crate::trust;
use crate::user::Account;

/// A client that is looked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClientWanted {
    /// The user of the job, whose client it must be.
    pub identity: Identity,
    /// Path of the unix socket on which it listens.
    pub socket: String,
}

/// What a shim asks the relay of its node.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    /// The node of the client.
    pub node: HostName,
    /// The client.
    pub wanted: ClientWanted,
}

/// Connects a shim to the client of its job on another node. The relay there has made sure that it is the user's own.
///
/// # Errors
/// Why there is nobody.
pub fn connect(
    home: &GridHome,
    node: &HostName,
    path: &str,
    account: &Account,
) -> Result<UnixStream> {
    let stream = socket::connect(&home.streams()).with_context(|| {
        format!("the relay of this node does not answer ({})", home.folder().display())
    })?;
    trust::check_peer(&stream)?;
    let identity = Identity::here(account.uid, account.gid)?;
    let wanted = ClientWanted { identity, socket: path.to_owned() };
    socket::write_framed(&stream, &Request { node: node.clone(), wanted })?;
    let reply: Result<(), String> = socket::read_framed(&stream)?;
    reply.map_err(|reason| {
        anyhow::anyhow!("the client of this job, on node {node}, cannot be reached: {reason}")
    })?;
    Ok(stream)
}
