//! How many bytes of messages each user may have on the way: of lines that have no end yet, and of questions that wait
//! for their answers.
//!
//! What a connection holds of itself is bounded (a line of ordinary length, and [`AWAITED_BYTES_MAX`] of questions), and
//! so are connections. What is longer is counted here, for all connections of a user together. Nobody waits: what does
//! not fit is refused, as waiting for oneself would never end.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, bail};
use forebay_base::ByteSize;
use rustix::process::Uid;

/// Bytes of a line that no budget is asked for.
pub(crate) const FREE_BYTES: u64 = 64 << 10;

/// The most bytes of questions of one connection that wait for their answers, but for the last one.
pub(crate) const AWAITED_BYTES_MAX: u64 = 1 << 20;

/// What users have on the way.
pub(crate) struct Budget {
    most: AtomicU64,
    used: Mutex<HashMap<Uid, u64>>,
}

impl Budget {
    /// One of so many bytes for each user.
    pub fn new(most: ByteSize) -> Budget {
        Budget { most: AtomicU64::new(most.0), used: Mutex::default() }
    }

    /// So many bytes for each user from now on.
    pub fn set(&self, most: ByteSize) {
        self.most.store(most.0, Ordering::Relaxed);
    }
}

/// The part of a budget that one connection has.
pub(crate) struct Share {
    budget: Arc<Budget>,
    uid: Uid,
    bytes: u64,
}

impl Share {
    /// Nothing, of a user.
    pub fn of(budget: &Arc<Budget>, uid: Uid) -> Share {
        Share { budget: Arc::clone(budget), uid, bytes: 0 }
    }

    /// Grows to so many bytes.
    ///
    /// # Errors
    /// If the user has too many already: nothing was taken then.
    pub fn grow_to(&mut self, bytes: u64) -> Result<()> {
        let more = bytes.saturating_sub(self.bytes);
        if more == 0 {
            return Ok(());
        }
        let most = self.budget.most.load(Ordering::Relaxed);
        let mut used = self.budget.used.lock().unwrap_or_else(PoisonError::into_inner);
        let now = used.get(&self.uid).copied().unwrap_or(0);
        if now.saturating_add(more) > most {
            drop(used);
            bail!(
                "user {} has {} of messages in progress, and this one needs {more} B more: at most {} are accepted \
                 (user_messages_bytes_max of this grid); try again when the earlier ones are answered",
                self.uid.as_raw(),
                ByteSize(now),
                ByteSize(most)
            );
        }
        used.insert(self.uid, now + more);
        drop(used);
        self.bytes += more;
        Ok(())
    }

    /// What it has, as a share of its own; this one has nothing then.
    pub fn split_off(&mut self) -> Option<Share> {
        let bytes = std::mem::take(&mut self.bytes);
        (bytes > 0).then(|| Share { budget: Arc::clone(&self.budget), uid: self.uid, bytes })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        let mut used = self.budget.used.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(now) = used.get_mut(&self.uid) {
            *now -= self.bytes;
            if *now == 0 {
                used.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_budget_for_all_connections_and_gets_back_what_is_done() {
        let budget = Arc::new(Budget::new(ByteSize(1000)));
        let (ann, bob) = (Uid::from_raw(7), Uid::from_raw(8));
        let (mut one, mut two) = (Share::of(&budget, ann), Share::of(&budget, ann));
        one.grow_to(600).unwrap();
        let reason = two.grow_to(500).unwrap_err().to_string();
        for part in ["user 7", "600 B", "1000 B", "user_messages_bytes_max"] {
            assert!(reason.contains(part), "{part}: {reason}");
        }
        two.grow_to(400).unwrap();
        Share::of(&budget, bob).grow_to(1000).unwrap();
        let kept = one.split_off().unwrap();
        assert!(one.split_off().is_none() && one.grow_to(1).is_err());
        drop(kept);
        one.grow_to(600).unwrap();
        drop((one, two));
        assert!(budget.used.lock().unwrap().is_empty(), "nothing is counted that is done");
    }
}
