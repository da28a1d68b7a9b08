//! Questions that only look, until they are answered: a few at a time, so that events and reports of
//! agents never wait for many of them, and of each user in turn, so that nobody's many hold up another's one.
//!
//! Memory: what connections may have open at once.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::mpsc::Sender;

use forebay_grid::vocabulary::UserName;

use crate::protocol::{Answer, Ask};

/// One question, or the end of the connection on which some came: what was asked there before is answered first.
pub(crate) struct Lookup {
    pub user: UserName,
    pub connection: u64,
    pub question: Question,
}

/// What is asked.
pub(crate) enum Question {
    Ask { ask: Ask, reply: Sender<Answer> },
    Closed,
}

/// Questions of all users.
#[derive(Default)]
pub(crate) struct Lookups {
    by_user: BTreeMap<UserName, VecDeque<Lookup>>,
    /// Whose turn was last.
    last: Option<UserName>,
}

impl Lookups {
    pub fn add(&mut self, lookup: Lookup) {
        self.by_user.entry(lookup.user.clone()).or_default().push_back(lookup);
    }

    pub fn is_empty(&self) -> bool {
        self.by_user.is_empty()
    }

    /// The oldest question of the user whose turn it is.
    pub fn next(&mut self) -> Option<Lookup> {
        let after = self.last.take().map_or(Bound::Unbounded, Bound::Excluded);
        let mut users = self.by_user.range((after, Bound::Unbounded)).map(|(user, _)| user);
        let user = users.next().or_else(|| self.by_user.keys().next())?.clone();
        let waiting = self.by_user.get_mut(&user)?;
        let lookup = waiting.pop_front();
        if waiting.is_empty() {
            self.by_user.remove(&user);
        }
        self.last = Some(user);
        lookup
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn users_are_answered_in_turn_and_each_in_order() {
        let mut lookups = Lookups::default();
        let asks = [("ann", 1), ("ann", 2), ("ann", 3), ("bob", 4), ("cid", 5), ("bob", 6)];
        for (user, job) in asks {
            let ask = Ask::Wait { job: forebay_grid::vocabulary::JobId(job) };
            let question = Question::Ask { ask, reply: channel().0 };
            lookups.add(Lookup { user: user.parse().unwrap(), connection: 1, question });
        }
        let mut order = Vec::new();
        while let Some(lookup) = lookups.next() {
            if let Question::Ask { ask: Ask::Wait { job }, .. } = lookup.question {
                order.push(job.0);
            }
        }
        assert_eq!(order, [1, 4, 5, 2, 6, 3]);
        assert!(lookups.is_empty());
    }
}
