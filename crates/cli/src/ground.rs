//! What a mount stands on: the stores in its home folder, or those of a cluster.

use std::sync::{Arc, Weak};

use anyhow::Result;
use forebay_fs::Namespace;
use forebay_fuse::Session;
use forebay_node::Member;

use crate::home::{Home, Lock, OpenHome, OpenMember, Settings};
use crate::member::{self, Joined};

/// What the file system stands on.
pub enum Ground {
    /// Stores in the home folder.
    Alone(Box<OpenHome>),
    /// Those of a cluster.
    Member(Box<OpenMember>),
}

/// What is held until the file system is closed.
pub struct Held {
    /// Keeps others out.
    lock: Lock,
    joined: Option<Joined>,
}

impl Ground {
    /// Opens what the home folder says, without changing anything.
    ///
    /// # Errors
    /// If it is mounted, or the settings are bad.
    pub fn open(home: &Home) -> Result<Ground> {
        Ok(match home.node() {
            None => Ground::Alone(Box::new(home.open()?)),
            Some(node) => Ground::Member(Box::new(home.open_member(node)?)),
        })
    }

    /// The settings, which may still be changed.
    pub fn settings(&mut self) -> &mut Settings {
        match self {
            Ground::Alone(open) => &mut open.settings,
            Ground::Member(open) => &mut open.settings,
        }
    }

    /// Opens the file system, without a kernel.
    ///
    /// # Errors
    /// If it is damaged, or the cluster cannot be reached.
    pub fn into_file_system(self, home: &Home) -> Result<(Arc<Namespace>, Held)> {
        let (fs, lock, joined) = match self {
            Ground::Alone(open) => {
                let (fs, lock) = open.into_file_system(home)?;
                (fs, lock, None)
            }
            Ground::Member(open) => {
                let (fs, lock, joined) = member::join(*open, home)?;
                (fs, lock, Some(joined))
            }
        };
        Ok((fs, Held { lock, joined }))
    }
}

impl Held {
    /// The node, if this is one of a cluster.
    pub fn member(&self) -> Option<Weak<Member>> {
        self.joined.as_ref().map(Joined::member)
    }

    /// The session that serves the file system, whose processes the node reports.
    pub fn set_session(&self, session: &Arc<Session>) {
        if let Some(joined) = &self.joined {
            joined.set_session(session);
        }
    }

    /// Leaves the other nodes, if there are any.
    pub fn leave(&self) {
        if let Some(joined) = &self.joined {
            joined.leave();
        }
    }

    /// The file system is closed: others may have it, and the node goes on without it.
    ///
    /// # Errors
    /// If the daemon of the node does not start.
    pub fn end(self) -> Result<()> {
        drop(self.lock);
        self.joined.map_or(Ok(()), Joined::end)
    }
}
