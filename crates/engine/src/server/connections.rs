//! How many connections each user has: nobody's many keep others out, and never those of the agents.
//!
//! Agents and root come first: a part of the connections is theirs alone. Every other user has a share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Resource, Uid, getrlimit};

/// The most connections at a time; each has a thread.
const OPEN_MAX: usize = 2048;

/// Descriptors of one connection, and those for everything else.
const DESCRIPTORS_EACH: u64 = 2;
const DESCRIPTORS_ELSE: u64 = 64;

/// Connections that are open.
pub(crate) struct Connections {
    most: usize,
    own: Uid,
    open: Mutex<HashMap<Uid, usize>>,
}

/// One of them, while it is held.
pub(crate) struct Admitted {
    connections: Arc<Connections>,
    uid: Uid,
}

impl Connections {
    /// As many as this process has descriptors for.
    pub fn new() -> Connections {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = descriptors.saturating_sub(DESCRIPTORS_ELSE) / DESCRIPTORS_EACH;
        let most = usize::try_from(most).unwrap_or(usize::MAX).clamp(16, OPEN_MAX);
        Connections::of(most, rustix::process::geteuid())
    }

    fn of(most: usize, own: Uid) -> Connections {
        Connections { most, own, open: Mutex::default() }
    }

    /// The most connections of users that are neither root nor the controller's own.
    fn most_of_others(&self) -> usize {
        self.most - self.most / 4
    }

    /// The most connections of one of them.
    fn most_of_one(&self) -> usize {
        self.most / 8
    }

    fn is_trusted(&self, uid: Uid) -> bool {
        uid.is_root() || uid == self.own
    }

    /// Counts one more connection of a user, or says why there can be none.
    pub fn admit(self: &Arc<Self>, uid: Uid) -> Result<Admitted, String> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let of_user = open.get(&uid).copied().unwrap_or(0);
        let all: usize = open.values().sum();
        let is_other = |entry: &(&Uid, &usize)| !self.is_trusted(*entry.0);
        let of_others: usize = open.iter().filter(is_other).map(|(_, count)| count).sum();
        let most_of_one = self.most_of_one();
        if !self.is_trusted(uid) && of_user >= most_of_one {
            return Err(format!(
                "user {} has {of_user} connections open, and the limit is {most_of_one} per user",
                uid.as_raw()
            ));
        }
        if all >= self.most || (!self.is_trusted(uid) && of_others >= self.most_of_others()) {
            return Err(format!("{all} connections are open: try again later"));
        }
        open.insert(uid, of_user + 1);
        drop(open);
        Ok(Admitted { connections: Arc::clone(self), uid })
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut open = self.connections.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(raw: u32) -> Uid {
        Uid::from_raw(raw)
    }

    #[test]
    fn a_user_has_a_share_and_agents_find_room_when_all_others_have_theirs() {
        let connections = Arc::new(Connections::of(80, uid(7)));
        let mut held = Vec::new();
        for user in 100..200 {
            while let Ok(one) = connections.admit(uid(user)) {
                held.push(one);
            }
            assert!(held.len() <= (user as usize - 99) * 10, "a user has at most 10");
        }
        assert_eq!(held.len(), 60);
        for own in [7, 0].into_iter().cycle().take(20) {
            held.push(connections.admit(uid(own)).unwrap_or_else(|reason| panic!("{reason}")));
        }
        assert!(connections.admit(uid(0)).is_err_and(|reason| reason.contains("80 connections")));
        held.clear();
        assert!(connections.open.lock().unwrap().is_empty(), "what has ended is not counted");
        assert!(connections.admit(uid(100)).is_ok());
    }
}
