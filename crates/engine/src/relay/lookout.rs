//! Which controller leads, as etcd says: read once, then watched.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use forebay_etcd::{Client, Event, Keys, Pair};
use forebay_node::members::Book;
use forebay_node::members::record::{Key, decode};
use forebay_node::tunnel::{Tag, Tunnels};

use super::UNTIED;
use crate::cluster::leader::LeaderRecord;

/// How often connections to former leaders are looked for.
const LOOK: Duration = Duration::from_secs(1);

type Leader = Option<(LeaderRecord, Tag)>;

/// Who leads.
pub struct Lookout {
    client: Client,
    key: Vec<u8>,
    leader: Mutex<Leader>,
    changed: Condvar,
    /// The revision that the first look was from.
    from: i64,
}

/// The leader that a key names, with its term.
fn read(pair: Option<&Pair>) -> Leader {
    let pair = pair?;
    let record = decode(&pair.key, &pair.value).inspect_err(|error| {
        tracing::error!("{error}; this node is ignored in the search for the controller")
    });
    Some((record.ok()?, pair.create_revision))
}

impl Lookout {
    /// Looks for the first time.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub fn new(book: &Book) -> Result<Lookout> {
        let client = book.client().clone();
        let key = book.names().key(Key::GridLeader);
        let from = client.revision()? + 1;
        // What happens in between is told once more.
        let leader = Mutex::new(read(client.get(key.clone())?.as_ref()));
        Ok(Lookout { client, key, leader, changed: Condvar::new(), from })
    }

    /// Who leads, and in which term.
    pub fn leader(&self) -> Leader {
        self.leader.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until that changes, for so long at most.
    pub fn wait(&self, time: Duration) {
        let leader = self.leader.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.changed.wait_timeout(leader, time);
    }

    fn set(&self, leader: Leader) {
        *self.leader.lock().unwrap_or_else(PoisonError::into_inner) = leader;
        self.changed.notify_all();
    }

    /// Follows etcd for good, and cuts connections to leaders that lead no more.
    pub fn watch(&self, tunnels: &Tunnels) {
        let watch = self.client.watch(Keys::one(self.key.clone()), self.from);
        loop {
            match watch.next(LOOK) {
                Some(Event::Put(pair)) => self.set(read(Some(&pair))),
                Some(Event::Deleted { .. }) => self.set(None),
                Some(Event::Gap { .. }) => match self.client.get(self.key.clone()) {
                    Ok(found) => self.set(read(found.as_ref())),
                    Err(error) => tracing::warn!("the leading controller is not known: {error}"),
                },
                None => {}
            }
            let term = self.leader().map(|(_, term)| term);
            tunnels.keep(|tag| tag == UNTIED || Some(tag) == term);
        }
    }
}
