//! Those who are told something later: of the end of a job or of a flow, or of all that happens to a job.
//!
//! They are known by what they listen for and by their connection, so that nobody is kept whose connection has
//! ended. Memory: one channel for each question that is open, at most as many as connections may have open.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::mpsc::Sender;

use crate::protocol::Answer;

/// Those who listen for things of one kind.
pub(crate) struct Listeners<K> {
    by_key: BTreeMap<K, BTreeMap<u64, Vec<Sender<Answer>>>>,
    by_connection: HashMap<u64, BTreeSet<K>>,
}

impl<K> Default for Listeners<K> {
    fn default() -> Listeners<K> {
        Listeners { by_key: BTreeMap::new(), by_connection: HashMap::new() }
    }
}

impl<K: Ord + Copy> Listeners<K> {
    /// One more, who asked on a connection.
    pub fn add(&mut self, key: K, connection: u64, reply: Sender<Answer>) {
        self.by_key.entry(key).or_default().entry(connection).or_default().push(reply);
        self.by_connection.entry(connection).or_default().insert(key);
    }

    /// What anybody listens for.
    pub fn keys(&self) -> impl Iterator<Item = K> {
        self.by_key.keys().copied()
    }

    /// Whether anybody listens for this.
    pub fn has(&self, key: K) -> bool {
        self.by_key.contains_key(&key)
    }

    /// Whether somebody on this connection listens for this.
    pub fn has_from(&self, key: K, connection: u64) -> bool {
        self.by_connection.get(&connection).is_some_and(|keys| keys.contains(&key))
    }

    /// Tells all who listen for this; they go on listening.
    pub fn tell(&self, key: K, answer: &Answer) {
        for reply in self.by_key.get(&key).into_iter().flat_map(BTreeMap::values).flatten() {
            // Whoever asked may be gone: the end of the connection is on its way then.
            let _ = reply.send(answer.clone());
        }
    }

    /// Tells all who listen for this the last that there is to tell.
    pub fn tell_last(&mut self, key: K, answer: &Answer) {
        self.tell(key, answer);
        for connection in self.by_key.remove(&key).unwrap_or_default().into_keys() {
            if let Some(keys) = self.by_connection.get_mut(&connection) {
                keys.remove(&key);
                if keys.is_empty() {
                    self.by_connection.remove(&connection);
                }
            }
        }
    }

    /// Forgets who asked on a connection that has ended.
    pub fn forget(&mut self, connection: u64) {
        for key in self.by_connection.remove(&connection).unwrap_or_default() {
            if let Some(listening) = self.by_key.get_mut(&key) {
                listening.remove(&connection);
                if listening.is_empty() {
                    self.by_key.remove(&key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    #[test]
    fn each_is_told_until_the_end_or_until_its_connection_has_ended_and_nobody_is_kept() {
        let mut listeners = Listeners::default();
        let mut listen = |key: u32, connection: u64| -> Receiver<Answer> {
            let (reply, answers) = channel();
            listeners.add(key, connection, reply);
            answers
        };
        let (one, again, other) = (listen(1, 10), listen(1, 10), listen(1, 11));
        let both = listen(2, 10);
        listeners.tell(1, &Answer::Here);
        assert_eq!([&one, &again, &other, &both].map(|told| told.try_iter().count()), [1, 1, 1, 0]);
        assert!(listeners.has_from(2, 10) && !listeners.has_from(2, 11));
        listeners.forget(10);
        for gone in [&one, &again, &both] {
            assert!(gone.recv().is_err(), "its sender is kept");
        }
        assert!(listeners.has(1) && !listeners.has(2));
        listeners.tell_last(1, &Answer::Here);
        assert_eq!(other.iter().count(), 1);
        listeners.forget(12);
        assert!(listeners.by_key.is_empty() && listeners.by_connection.is_empty());
    }
}
