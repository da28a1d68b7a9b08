//! Which controller leads, as etcd says: read once, then watched.
//!
//! If it is the one of this node, the lookout also looks whether its process is there: the lease of one that was killed is ended at
//! once, so that another controller need not wait for its end. A process is gone when nobody holds its lock, which it took before
//! it led: whatever process takes the lock next leads below another lease.

use std::path::PathBuf;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use forebay_base::NodeId;
use forebay_etcd::{Client, Event, Keys, LeaseId, Pair};
use forebay_node::members::record::{Key, decode};
use forebay_node::tunnel::{Tag, Tunnels};

use super::UNTIED;
use crate::cluster::leader::LeaderRecord;
use crate::files::is_unheld;
use crate::home::GridHome;

/// How often connections to former leaders are looked for.
const LOOK: Duration = Duration::from_secs(1);

/// How often the process of a controller of this node that leads is looked for, and how long etcd may take to end its lease.
const LOOK_HERE: Duration = Duration::from_millis(200);
const RELEASE: Duration = Duration::from_secs(1);

/// A controller that leads.
#[derive(Clone, Debug)]
pub struct Leader {
    /// What it says of itself.
    pub record: LeaderRecord,
    /// Its term.
    pub term: Tag,
    /// Below which it leads.
    lease: Option<LeaseId>,
}

/// Who leads.
pub struct Lookout {
    client: Client,
    key: Vec<u8>,
    /// This node, and the folder and the lock of its controller.
    node: NodeId,
    root: PathBuf,
    lock: PathBuf,
    leader: Mutex<Option<Leader>>,
    changed: Condvar,
    /// The revision that the first look was from.
    from: i64,
}

/// The leader that a key names, with its term.
fn read(pair: Option<&Pair>) -> Option<Leader> {
    let pair = pair?;
    let record = decode(&pair.key, &pair.value).inspect_err(|error| {
        tracing::error!("{error}; this node is ignored in the search for the controller");
    });
    Some(Leader { record: record.ok()?, term: pair.create_revision, lease: pair.lease })
}

impl Lookout {
    /// Looks for the first time.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub fn new(tunnels: &Tunnels, home: &GridHome) -> Result<Lookout> {
        let book = tunnels.book();
        let client = book.client().clone();
        let key = book.names().key(Key::GridLeader);
        let from = client.revision()? + 1;
        // What happens in between is told once more.
        let leader = Mutex::new(read(client.get(key.clone())?.as_ref()));
        Ok(Lookout {
            client,
            key,
            node: tunnels.node().node,
            root: home.folder().to_owned(),
            lock: home.lock(),
            leader,
            changed: Condvar::new(),
            from,
        })
    }

    /// Who leads, and in which term.
    pub fn leader(&self) -> Option<Leader> {
        self.leader.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until that changes, for so long at most.
    pub fn wait(&self, time: Duration) {
        let leader = self.leader.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.changed.wait_timeout(leader, time);
    }

    fn set(&self, leader: Option<Leader>) {
        *self.leader.lock().unwrap_or_else(PoisonError::into_inner) = leader;
        self.changed.notify_all();
    }

    /// Follows etcd for good, and cuts connections to leaders that lead no more.
    pub fn watch(&self, tunnels: &Tunnels) {
        let watch = self.client.watch(Keys::one(self.key.clone()), self.from);
        let mut has_gap = false;
        loop {
            match watch.next(if self.leads_here().is_some() { LOOK_HERE } else { LOOK }) {
                Some(Event::Put(pair)) => self.set(read(Some(&pair))),
                Some(Event::Deleted { .. }) => self.set(None),
                Some(Event::Gap { .. }) => has_gap = true,
                None => {}
            }
            // A gap is told once: what was missed is asked for until etcd answers.
            if has_gap {
                match self.client.get(self.key.clone()) {
                    Ok(found) => {
                        self.set(read(found.as_ref()));
                        has_gap = false;
                    }
                    Err(error) => tracing::warn!("the leading controller is not known: {error}"),
                }
            }
            let term = self.leader().map(|leader| leader.term);
            tunnels.keep(|tag| tag == UNTIED || Some(tag) == term);
            self.release();
        }
    }

    /// The lease of a controller of this node that leads.
    fn leads_here(&self) -> Option<LeaseId> {
        let leader = self.leader()?;
        let is_here = leader.record.node == self.node && leader.record.root == self.root;
        leader.lease.filter(|_| is_here)
    }

    /// Ends the lease of a controller of this node whose process is gone.
    fn release(&self) {
        // The lease is known before the lock is looked at: it is that of a process that held the lock.
        let Some(lease) = self.leads_here().filter(|_| is_unheld(&self.lock)) else { return };
        match self.client.with_timeout(RELEASE).lease_revoke(lease) {
            Ok(()) => {
                tracing::info!(
                    "the controller of this node is gone: its lease was ended, so that another one leads at once"
                );
                self.set(None);
            }
            // It is tried again, or the lease ends by itself.
            Err(error) => tracing::debug!("the lease of a controller that is gone: {error}"),
        }
    }
}
