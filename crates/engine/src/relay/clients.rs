//! Streams of interactive jobs between nodes: from the shim of a job, by way of two relays, to the client on another node.

use std::os::unix::net::UnixStream;

use anyhow::{Result, ensure};

use super::{Relay, UNTIED, Wanted};
use crate::protocol::socket;
use crate::terminal::far::{ClientWanted, Request};
use crate::terminal::job;
use crate::trust;
use crate::user;

/// Connects to a client on this node for a job on node `from`.
///
/// # Errors
/// If nobody listens there, or somebody else than the job's user.
pub(super) fn reach(from: &str, wanted: &ClientWanted) -> Result<UnixStream> {
    wanted.identity.check_here(from)?;
    let account = user::account_of(&wanted.identity.user)?;
    ensure!(
        account.uid == wanted.identity.uid,
        "user {} has a different number here",
        wanted.identity.user
    );
    job::connect(&wanted.socket, &account)
}

impl Relay {
    /// A shim that looks for the client of its job, from beginning to end.
    pub(super) fn serve_shim(&self, stream: &UnixStream) -> Result<()> {
        trust::check_peer(stream)?;
        let request: Request = socket::read_framed(stream)?;
        let dialled = match self.tunnels.named(request.node.as_str()) {
            Some(node) => self
                .tunnels
                .dial(node, self.port, &Wanted::Client(request.wanted))
                .map_err(|error| error.to_string()),
            None => Err(format!("node {} is not a member of the cluster", request.node)),
        };
        let reply = dialled.as_ref().map(|_| ()).map_err(Clone::clone);
        socket::write_framed(stream, &reply)?;
        let Ok(tunnel) = dialled else { return Ok(()) };
        Ok(self.tunnels.carry(tunnel, stream, UNTIED)?)
    }
}
