//! Values that take so many bytes at most: the least recently used go first.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

struct Kept<V> {
    value: V,
    bytes: u64,
    /// Turn of its latest use.
    turn: u64,
}

/// Values by keys, of so many bytes at most; what was kept last stays in any case.
pub(crate) struct Lru<K, V> {
    bytes_max: u64,
    parts: HashMap<K, Kept<V>>,
    by_use: BTreeMap<u64, K>,
    turn: u64,
    bytes: u64,
}

impl<K: Copy + Eq + Hash, V: Clone> Lru<K, V> {
    pub fn of(bytes_max: u64) -> Lru<K, V> {
        Lru { bytes_max, parts: HashMap::new(), by_use: BTreeMap::new(), turn: 0, bytes: 0 }
    }

    /// A value, which counts as used now.
    pub fn find(&mut self, key: &K) -> Option<V> {
        let kept = self.parts.get_mut(key)?;
        self.by_use.remove(&kept.turn);
        self.turn += 1;
        kept.turn = self.turn;
        self.by_use.insert(self.turn, *key);
        Some(kept.value.clone())
    }

    pub fn has(&self, key: &K) -> bool {
        self.parts.contains_key(key)
    }

    /// Keeps a value that takes so many bytes.
    pub fn keep(&mut self, key: K, value: V, bytes: u64) {
        self.turn += 1;
        self.bytes += bytes;
        self.by_use.insert(self.turn, key);
        if let Some(former) = self.parts.insert(key, Kept { value, bytes, turn: self.turn }) {
            self.by_use.remove(&former.turn);
            self.bytes -= former.bytes;
        }
        while self.bytes > self.bytes_max && self.parts.len() > 1 {
            let Some((_, key)) = self.by_use.pop_first() else { return };
            self.bytes -= self.parts.remove(&key).map_or(0, |kept| kept.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_go_first_and_the_bound_holds() {
        let mut cache = Lru::of(30);
        for key in 0..3 {
            cache.keep(key, (), 10);
        }
        assert!(cache.find(&0).is_some());
        cache.keep(3, (), 10);
        assert_eq!([0, 1, 2, 3].map(|key| cache.has(&key)), [true, false, true, true]);
        cache.keep(3, (), 10);
        assert_eq!(
            [0, 2, 3].map(|key| cache.has(&key)),
            [true; 3],
            "the same one again takes nothing"
        );
        cache.keep(4, (), 1000);
        assert_eq!([0, 2, 3, 4].map(|key| cache.has(&key)), [false, false, false, true]);
        assert_eq!(cache.bytes, 1000);
        cache.keep(5, (), 10);
        assert_eq!((cache.has(&4), cache.bytes), (false, 10));
        assert_eq!(cache.parts.len(), cache.by_use.len());
    }
}
