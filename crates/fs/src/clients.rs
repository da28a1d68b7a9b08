//! What other nodes hold of the filesets of this one: references of their kernels and opens, by client.
//!
//! An inode counts all references and handles, whoever has them, so that nothing on the way of a local request changes.
//! This table says which of them belong to other nodes. It is empty where there are none: what it does not hold is
//! this node's kernel's ([`ClientId::LOCAL`]).
//!
//! A client that was dropped is refused until it begins a session anew (a node that was frozen beyond its lease goes on in the
//! same life), and its earlier lives for ever. What it held is released once its last request has ended, so that nothing of a
//! request under way outlives the release.

use std::collections::HashMap;

use forebay_base::{ClientId, FilesetId, Ino, NodeId};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::ops::Access;

/// Handles of one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Handles {
    /// All.
    pub all: u32,
    /// Those that can write.
    pub writers: u32,
    /// Those of running programs.
    pub executors: u32,
}

impl Handles {
    /// Adds one.
    pub fn add(&mut self, access: Access) {
        self.all += 1;
        self.writers += u32::from(access.write);
        self.executors += u32::from(access.execute);
    }

    /// Takes one away. Whether there was one.
    pub fn take(&mut self, access: Access) -> bool {
        let had = self.all > 0;
        self.all = self.all.saturating_sub(1);
        self.writers = self.writers.saturating_sub(u32::from(access.write));
        self.executors = self.executors.saturating_sub(u32::from(access.execute));
        had
    }

    /// The handles one by one: how each was opened, as far as the owner of the file needs to know.
    pub fn each(self) -> impl Iterator<Item = Access> {
        (0..self.all).map(move |number| Access {
            read: true,
            write: number < self.writers,
            execute: number < self.executors,
            ..Access::default()
        })
    }
}

/// What a client holds.
#[derive(Default)]
pub(crate) struct Held {
    /// How often its kernel was told of an inode and did not forget it yet.
    pub references: FxHashMap<Ino, u64>,
    /// Files that it has open.
    pub opens: FxHashMap<Ino, Handles>,
    /// Handles in `opens`.
    handles: usize,
    /// Requests under way.
    requests: usize,
    is_dropped: bool,
    /// It has begun a session since it was dropped, and is let in again when its last request from before has ended.
    comes_back: bool,
}

impl Held {
    fn len(&self) -> usize {
        self.references.len() + self.handles
    }
}

#[derive(Default)]
struct Table {
    clients: HashMap<ClientId, Held>,
    /// The newest life of each node that was dropped.
    dropped: HashMap<NodeId, u64>,
}

impl Table {
    /// Lets a life in again that was dropped, but not those before it.
    fn let_in(&mut self, client: ClientId) {
        if self.dropped.get(&client.node) == Some(&client.incarnation) {
            match client.incarnation.checked_sub(1) {
                Some(before) => self.dropped.insert(client.node, before),
                None => self.dropped.remove(&client.node),
            };
        }
    }
}

/// What all other nodes hold.
#[derive(Default)]
pub(crate) struct Clients(Mutex<Table>);

/// A client was dropped: it holds nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dropped;

/// Why a client may not hold one more thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotHeld {
    /// It was dropped.
    Dropped,
    /// It holds as much as one client may.
    Full,
}

impl Clients {
    /// A request of `client` begins.
    pub fn enter(&self, client: ClientId) -> Result<(), Dropped> {
        let mut table = self.0.lock();
        if table.dropped.get(&client.node).is_some_and(|life| client.incarnation <= *life) {
            return Err(Dropped);
        }
        table.clients.entry(client).or_default().requests += 1;
        Ok(())
    }

    /// Whether `client` was dropped meanwhile.
    pub fn check(&self, client: ClientId) -> Result<(), Dropped> {
        let table = self.0.lock();
        let is_there = table.clients.get(&client).is_some_and(|held| !held.is_dropped);
        if is_there { Ok(()) } else { Err(Dropped) }
    }

    /// A request of `client` has ended. What is to be released now, if the client was dropped meanwhile and this was its
    /// last request.
    pub fn leave(&self, client: ClientId) -> Option<Held> {
        let mut table = self.0.lock();
        let held = table.clients.get_mut(&client)?;
        held.requests = held.requests.saturating_sub(1);
        if !held.is_dropped || held.requests > 0 {
            return None;
        }
        let held = table.clients.remove(&client)?;
        if held.comes_back {
            table.let_in(client);
        }
        Some(held)
    }

    /// `client` begins a session: it is not refused any more because an earlier session of it was dropped.
    pub fn welcome(&self, client: ClientId) {
        let mut table = self.0.lock();
        match table.clients.get_mut(&client) {
            Some(held) if held.is_dropped => held.comes_back = true,
            _ => table.let_in(client),
        }
    }

    /// Refuses `client` from now on. What is to be released, unless requests of it are under way: the last one does it.
    pub fn drop_client(&self, client: ClientId) -> Option<Held> {
        let mut table = self.0.lock();
        let life = table.dropped.entry(client.node).or_insert(client.incarnation);
        *life = client.incarnation.max(*life);
        let held = table.clients.get_mut(&client)?;
        (held.is_dropped, held.comes_back) = (true, false);
        if held.requests == 0 { table.clients.remove(&client) } else { None }
    }

    fn hold(
        &self,
        client: ClientId,
        most: usize,
        add: impl FnOnce(&mut Held),
    ) -> Result<(), NotHeld> {
        let mut table = self.0.lock();
        let held = table.clients.get_mut(&client).ok_or(NotHeld::Dropped)?;
        if held.len() >= most {
            return Err(NotHeld::Full);
        }
        add(held);
        Ok(())
    }

    /// The kernel of `client` was told of an inode once more; `most` is what a client may hold.
    pub fn refer(&self, client: ClientId, ino: Ino, most: usize) -> Result<(), NotHeld> {
        self.hold(client, most, |held| *held.references.entry(ino).or_insert(0) += 1)
    }

    /// `client` has opened a file once more; `most` is what a client may hold.
    pub fn open(
        &self,
        client: ClientId,
        ino: Ino,
        access: Access,
        most: usize,
    ) -> Result<(), NotHeld> {
        self.hold(client, most, |held| {
            held.opens.entry(ino).or_default().add(access);
            held.handles += 1;
        })
    }

    /// `client` closes a file. Whether it had it open.
    pub fn close(&self, client: ClientId, ino: Ino, access: Access) -> bool {
        let mut table = self.0.lock();
        let Some(held) = table.clients.get_mut(&client) else { return false };
        let Some(handles) = held.opens.get_mut(&ino) else { return false };
        let had = handles.take(access);
        if handles.all == 0 {
            held.opens.remove(&ino);
        }
        held.handles = held.handles.saturating_sub(usize::from(had));
        had
    }

    /// Whether `client` holds an inode: its kernel was told of it, or has it open. It outlives its last name then.
    pub fn holds(&self, client: ClientId, ino: Ino) -> bool {
        let table = self.0.lock();
        table
            .clients
            .get(&client)
            .is_some_and(|held| held.references.contains_key(&ino) || held.opens.contains_key(&ino))
    }

    /// Whether `client` has a file open.
    pub fn has_open(&self, client: ClientId, ino: Ino) -> bool {
        let table = self.0.lock();
        table.clients.get(&client).is_some_and(|held| held.opens.contains_key(&ino))
    }

    /// The kernel of `client` forgets an inode `count` times; as often as it was told of it at most, which is returned.
    pub fn forget(&self, client: ClientId, ino: Ino, count: u64) -> u64 {
        let mut table = self.0.lock();
        let Some(held) = table.clients.get_mut(&client) else { return 0 };
        let Some(told) = held.references.get_mut(&ino) else { return 0 };
        let forgotten = count.min(*told);
        *told -= forgotten;
        if *told == 0 {
            held.references.remove(&ino);
        }
        forgotten
    }

    /// Forgets what clients hold of a fileset that this node does not own any more.
    pub fn forget_fileset(&self, fileset: FilesetId) {
        let mut table = self.0.lock();
        for held in table.clients.values_mut() {
            held.references.retain(|ino, _| ino.fileset() != fileset);
            held.opens.retain(|ino, _| ino.fileset() != fileset);
            held.handles = held.opens.values().map(|handles| handles.all as usize).sum();
        }
    }

    /// How often the kernel of `client` was told of an inode and did not forget it yet.
    pub fn references(&self, client: ClientId, ino: Ino) -> u64 {
        let table = self.0.lock();
        let held = table.clients.get(&client).and_then(|held| held.references.get(&ino));
        held.copied().unwrap_or(0)
    }

    /// Each client with the inodes it refers to and its open handles.
    pub fn usage(&self) -> Vec<(ClientId, usize, usize)> {
        let table = self.0.lock();
        let mut usage: Vec<_> = table
            .clients
            .iter()
            .map(|(client, held)| (*client, held.references.len(), held.handles))
            .collect();
        usage.sort_unstable();
        usage
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Access =
        Access { read: true, write: false, truncate: false, execute: false, synchronous: false };
    const FILE: Ino = Ino(7);

    fn client(incarnation: u64) -> ClientId {
        ClientId { node: NodeId(3), incarnation }
    }

    #[test]
    fn what_a_client_holds_is_released_after_its_last_request() {
        let clients = Clients::default();
        clients.enter(client(1)).unwrap();
        clients.refer(client(1), FILE, 10).unwrap();
        clients.open(client(1), FILE, READ, 10).unwrap();
        assert!(clients.drop_client(client(1)).is_none(), "a request is under way");
        assert_eq!(clients.enter(client(1)), Err(Dropped));
        let held = clients.leave(client(1)).unwrap();
        assert_eq!((held.references[&FILE], held.opens[&FILE].all), (1, 1));
        assert!(clients.usage().is_empty());
        assert_eq!(clients.enter(client(1)), Err(Dropped), "it has begun no session since");
        clients.enter(client(2)).unwrap();
    }

    #[test]
    fn a_life_that_was_dropped_is_let_in_when_it_begins_a_session_anew_and_earlier_ones_are_not() {
        let clients = Clients::default();
        clients.enter(client(5)).unwrap();
        clients.leave(client(5));
        clients.drop_client(client(5)).unwrap();
        assert_eq!(clients.enter(client(5)), Err(Dropped));
        clients.welcome(client(4));
        assert_eq!(clients.enter(client(4)), Err(Dropped), "a later life was here");
        clients.welcome(client(5));
        clients.enter(client(5)).unwrap();
        assert_eq!(clients.enter(client(4)), Err(Dropped));
        // A request from before the drop keeps it out until it has ended.
        clients.drop_client(client(5));
        clients.welcome(client(5));
        assert_eq!(clients.enter(client(5)), Err(Dropped));
        clients.leave(client(5)).unwrap();
        clients.enter(client(5)).unwrap();
    }

    #[test]
    fn a_client_holds_no_more_than_it_may_and_gives_back_no_more_than_it_holds() {
        let clients = Clients::default();
        clients.enter(client(1)).unwrap();
        clients.refer(client(1), FILE, 2).unwrap();
        clients.refer(client(1), FILE, 2).unwrap();
        clients.open(client(1), FILE, READ, 2).unwrap();
        assert_eq!(clients.open(client(1), FILE, READ, 2), Err(NotHeld::Full));
        assert_eq!(clients.forget(client(1), FILE, 5), 2);
        assert_eq!(clients.forget(client(1), FILE, 1), 0);
        assert!(clients.close(client(1), FILE, READ) && !clients.close(client(1), FILE, READ));
        assert!(!clients.has_open(client(1), FILE));
    }
}
