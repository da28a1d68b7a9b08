//! The members of the cluster, for who may open a stream: read once, then watched.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::Duration;

use forebay_base::NodeId;
use forebay_etcd::Keys;
use parking_lot::RwLock;

use super::Tunnels;
use crate::error::{Error, Result};
use crate::members::Book;

/// How long the thread that watches waits without looking whether it is needed still.
const LOOK: Duration = Duration::from_secs(5);

/// Pause before members are read again that could not be read.
const PAUSE: Duration = Duration::from_secs(1);

/// Name and address of each member.
pub struct Members {
    known: RwLock<BTreeMap<NodeId, (String, String)>>,
    /// The revision that they are from.
    revision: RwLock<i64>,
}

impl Members {
    /// All members.
    pub fn read(book: &Book) -> Result<Members> {
        let members = Members { known: RwLock::default(), revision: RwLock::default() };
        members.refresh(book)?;
        Ok(members)
    }

    fn refresh(&self, book: &Book) -> Result<()> {
        let (sight, view) = book.read()?;
        let nodes = sight.nodes.into_iter();
        *self.known.write() =
            nodes.map(|(node, record)| (node, (record.name, record.address))).collect();
        *self.revision.write() = i64::try_from(view.revision.0).unwrap_or(i64::MAX);
        Ok(())
    }

    /// Whether it is a member.
    pub fn knows(&self, node: NodeId) -> bool {
        self.known.read().contains_key(&node)
    }

    /// The member with this name.
    pub fn named(&self, name: &str) -> Option<NodeId> {
        let known = self.known.read();
        known.iter().find(|(_, (own, _))| own == name).map(|(node, _)| *node)
    }

    /// Name and address of a member. One that has just joined is looked for in etcd.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is not a member; otherwise etcd does not answer.
    pub fn find(&self, book: &Book, node: NodeId) -> Result<(String, String)> {
        if let Some(found) = self.known.read().get(&node) {
            return Ok(found.clone());
        }
        match book.node(node)? {
            Some((record, _)) => {
                let found = (record.name, record.address);
                self.known.write().insert(node, found.clone());
                Ok(found)
            }
            None => Err(Error::Invalid(format!(
                "node {node} is not a member of the cluster: it was removed"
            ))),
        }
    }
}

/// Keeps the members of `tunnels` up to date, and cuts the streams of those that were removed.
pub fn watch(tunnels: &Weak<Tunnels>) {
    let Some((client, prefix, mut from)) = tunnels.upgrade().map(|tunnels| {
        let prefix = [&tunnels.book.names().root()[..], b"nodes/"].concat();
        (tunnels.book.client().clone(), prefix, *tunnels.members.revision.read() + 1)
    }) else {
        return;
    };
    loop {
        let watch = client.watch(Keys::prefix(prefix.clone()), from);
        loop {
            let heard = watch.next(LOOK);
            let Some(tunnels) = tunnels.upgrade() else { return };
            if heard.is_none() {
                continue;
            }
            if let Err(error) = tunnels.members.refresh(&tunnels.book) {
                tracing::warn!("reading the members of the cluster again: {error}");
                std::thread::sleep(PAUSE);
                // From where it was: what was missed is told once more.
                break;
            }
            from = *tunnels.members.revision.read() + 1;
            tunnels.cut(|open| !tunnels.members.knows(open.node));
        }
    }
}
