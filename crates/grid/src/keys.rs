//! Keys of submissions: one that is repeated, because its answer was lost, is answered again and not taken again.
//!
//! A key is the client's own, drawn at random. It is known for [`AGE_MS`], and of each user only the latest [`KEYS_MAX`]
//! are: a client that lost its connection asks again at once, and a controller that was away took nothing meanwhile.
//! Memory, and space in the head of a snapshot: about 100 and 33 bytes for each.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::vocabulary::{JobId, Moment, UserId};

/// How long a key is known, in milliseconds.
const AGE_MS: u64 = 60 * 60 * 1000;

/// How many keys of a user are known at most.
const KEYS_MAX: usize = 4096;

/// The keys of all users.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Keys(BTreeMap<UserId, OfUser>);

/// A submission that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Taken {
    at: Moment,
    key: Uuid,
    job: JobId,
}

/// The keys of one user.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "VecDeque<Taken>", into = "VecDeque<Taken>")]
struct OfUser {
    /// The oldest first.
    taken: VecDeque<Taken>,
    by_key: BTreeMap<Uuid, (Moment, JobId)>,
}

impl From<VecDeque<Taken>> for OfUser {
    fn from(taken: VecDeque<Taken>) -> OfUser {
        let by_key = taken.iter().map(|one| (one.key, (one.at, one.job))).collect();
        OfUser { taken, by_key }
    }
}

impl From<OfUser> for VecDeque<Taken> {
    fn from(keys: OfUser) -> VecDeque<Taken> {
        keys.taken
    }
}

fn is_known(at: Moment, now: Moment) -> bool {
    now.since(at) < AGE_MS
}

impl Keys {
    /// A submission was taken. What is too old or too many of its user is forgotten.
    pub fn add(&mut self, at: Moment, user: UserId, key: Uuid, job: JobId) {
        let of_user = self.0.entry(user).or_default();
        of_user.taken.push_back(Taken { at, key, job });
        of_user.by_key.insert(key, (at, job));
        while let Some(oldest) = of_user.taken.front().copied()
            && (of_user.taken.len() > KEYS_MAX || !is_known(oldest.at, at))
        {
            of_user.taken.pop_front();
            // A key that was taken again after it was forgotten is known by its later job.
            if of_user.by_key.get(&oldest.key) == Some(&(oldest.at, oldest.job)) {
                of_user.by_key.remove(&oldest.key);
            }
        }
    }

    /// The job of a submission, if it was taken and is still known.
    pub fn find(&self, now: Moment, user: UserId, key: Uuid) -> Option<JobId> {
        let (at, job) = self.0.get(&user)?.by_key.get(&key)?;
        is_known(*at, now).then_some(*job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> Uuid {
        Uuid::from_u128(number.into())
    }

    #[test]
    fn a_key_is_known_to_its_user_for_an_hour() {
        let mut keys = Keys::default();
        let (ann, bob, begin) = (UserId(0), UserId(1), Moment(1_000_000));
        keys.add(begin, ann, key(7), JobId(1));
        assert_eq!(keys.find(begin.after(AGE_MS - 1), ann, key(7)), Some(JobId(1)));
        assert_eq!(keys.find(begin.after(AGE_MS), ann, key(7)), None);
        assert_eq!(keys.find(begin, bob, key(7)), None);
        assert_eq!(keys.find(begin, ann, key(8)), None);
        // Taken again under the same key, it is the later one.
        let later = begin.after(AGE_MS);
        keys.add(later, ann, key(7), JobId(2));
        assert_eq!(keys.find(later, ann, key(7)), Some(JobId(2)));
    }

    #[test]
    fn only_the_latest_keys_of_a_user_are_kept_and_those_of_others_stay() {
        let mut keys = Keys::default();
        keys.add(Moment(5), UserId(1), key(0), JobId(1));
        for number in 1..=KEYS_MAX as u64 + 3 {
            keys.add(Moment(number), UserId(0), key(number), JobId(number + 1));
        }
        let now = Moment(KEYS_MAX as u64 + 9);
        let known = |number| keys.find(now, UserId(0), key(number)).is_some();
        assert!(!known(3) && known(4) && known(KEYS_MAX as u64 + 3));
        assert_eq!(keys.find(now, UserId(1), key(0)), Some(JobId(1)));
        assert_eq!(keys.0[&UserId(0)].by_key.len(), KEYS_MAX);
    }
}
