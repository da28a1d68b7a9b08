//! Keys, ranges and transactions.

use etcd_client::{CompareOp, DeleteOptions, GetOptions, PutOptions, TxnOp, TxnOpResponse};

use crate::Result;
use crate::connection::{Connection, Effect};
use crate::lease::LeaseId;

/// A key with its value and history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The key.
    pub key: Vec<u8>,
    /// The value; empty where only keys were asked for.
    pub value: Vec<u8>,
    /// The revision that created the key.
    pub create_revision: i64,
    /// The revision of its last change.
    pub mod_revision: i64,
    /// Changes since it was created, counted from 1.
    pub version: i64,
    /// The lease with which it ends.
    pub lease: Option<LeaseId>,
}

impl From<etcd_client::KeyValue> for Pair {
    fn from(pair: etcd_client::KeyValue) -> Pair {
        let (create_revision, mod_revision) = (pair.create_revision(), pair.mod_revision());
        let (version, lease) = (pair.version(), pair.lease());
        let (key, value) = pair.into_key_value();
        let lease = (lease != 0).then_some(LeaseId(lease));
        Pair { key, value, create_revision, mod_revision, version, lease }
    }
}

/// Which keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keys {
    /// One key.
    One(Vec<u8>),
    /// All that begin with this.
    Prefix(Vec<u8>),
    /// From the first (included) to the second (excluded).
    Between(Vec<u8>, Vec<u8>),
}

impl Keys {
    /// One key.
    pub fn one(key: impl Into<Vec<u8>>) -> Keys {
        Keys::One(key.into())
    }

    /// All keys that begin with `prefix`.
    pub fn prefix(prefix: impl Into<Vec<u8>>) -> Keys {
        Keys::Prefix(prefix.into())
    }

    fn get(&self, options: &RangeOptions) -> (Vec<u8>, GetOptions) {
        let mut wire = GetOptions::new();
        if options.limit > 0 {
            wire = wire.with_limit(i64::try_from(options.limit).unwrap_or(i64::MAX));
        }
        if options.keys_only {
            wire = wire.with_keys_only();
        }
        if options.count_only {
            wire = wire.with_count_only();
        }
        if options.revision > 0 {
            wire = wire.with_revision(options.revision);
        }
        match self {
            Keys::One(key) => (key.clone(), wire),
            Keys::Prefix(prefix) => (prefix.clone(), wire.with_prefix()),
            Keys::Between(from, to) => (from.clone(), wire.with_range(to.clone())),
        }
    }

    fn delete(&self) -> (Vec<u8>, DeleteOptions) {
        match self {
            Keys::One(key) => (key.clone(), DeleteOptions::new()),
            Keys::Prefix(prefix) => (prefix.clone(), DeleteOptions::new().with_prefix()),
            Keys::Between(from, to) => (from.clone(), DeleteOptions::new().with_range(to.clone())),
        }
    }
}

/// What of a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeOptions {
    /// At most so many pairs, in key order; 0 for all.
    pub limit: usize,
    /// Without values.
    pub keys_only: bool,
    /// No pairs, only how many there are.
    pub count_only: bool,
    /// As it was at this revision; 0 for now.
    pub revision: i64,
}

/// What a range holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Its pairs, in key order.
    pub pairs: Vec<Pair>,
    /// How many there are without the limit.
    pub count: u64,
    /// The revision of the database that was read.
    pub revision: i64,
}

impl From<etcd_client::GetResponse> for Found {
    fn from(mut found: etcd_client::GetResponse) -> Found {
        Found {
            revision: found.header().map_or(0, etcd_client::ResponseHeader::revision),
            count: u64::try_from(found.count()).unwrap_or(0),
            pairs: found.take_kvs().into_iter().map(Pair::from).collect(),
        }
    }
}

/// A condition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The key does not exist.
    Absent(Vec<u8>),
    /// The key exists.
    Present(Vec<u8>),
    /// The key has this value.
    Value(Vec<u8>, Vec<u8>),
    /// The key was last changed by this revision.
    ModRevision(Vec<u8>, i64),
    /// The key was created by this revision.
    CreateRevision(Vec<u8>, i64),
    /// The key ends with this lease.
    Lease(Vec<u8>, LeaseId),
    /// None of the keys was created or changed after this revision. Keys that were deleted since are not noticed.
    Unchanged(Keys, i64),
}

impl From<Compare> for etcd_client::Compare {
    fn from(compare: Compare) -> etcd_client::Compare {
        use etcd_client::Compare as Wire;
        match compare {
            Compare::Absent(key) => Wire::create_revision(key, CompareOp::Equal, 0),
            Compare::Present(key) => Wire::create_revision(key, CompareOp::Greater, 0),
            Compare::Value(key, value) => Wire::value(key, CompareOp::Equal, value),
            Compare::ModRevision(key, revision) => {
                Wire::mod_revision(key, CompareOp::Equal, revision)
            }
            Compare::CreateRevision(key, revision) => {
                Wire::create_revision(key, CompareOp::Equal, revision)
            }
            Compare::Lease(key, lease) => Wire::lease(key, CompareOp::Equal, lease.0),
            Compare::Unchanged(keys, revision) => {
                let of = |key| Wire::mod_revision(key, CompareOp::Less, revision.saturating_add(1));
                match keys {
                    Keys::One(key) => of(key),
                    Keys::Prefix(prefix) => of(prefix).with_prefix(),
                    Keys::Between(from, to) => of(from).with_range(to),
                }
            }
        }
    }
}

/// One operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sets a key.
    Put {
        /// The key.
        key: Vec<u8>,
        /// Its new value.
        value: Vec<u8>,
        /// The lease with which it ends.
        lease: Option<LeaseId>,
    },
    /// Deletes keys.
    Delete(Keys),
    /// Reads keys.
    Get(Keys),
}

impl Op {
    /// Sets a key that stays until it is deleted.
    pub fn put(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Op {
        Op::Put { key: key.into(), value: value.into(), lease: None }
    }

    fn changes(&self) -> bool {
        match self {
            Op::Put { .. } | Op::Delete(_) => true,
            Op::Get(_) => false,
        }
    }
}

impl From<Op> for TxnOp {
    fn from(op: Op) -> TxnOp {
        match op {
            Op::Put { key, value, lease } => TxnOp::put(key, value, put_options(lease)),
            Op::Delete(keys) => {
                let (key, options) = keys.delete();
                TxnOp::delete(key, Some(options))
            }
            Op::Get(keys) => {
                let (key, options) = keys.get(&RangeOptions::default());
                TxnOp::get(key, Some(options))
            }
        }
    }
}

fn put_options(lease: Option<LeaseId>) -> Option<PutOptions> {
    lease.map(|lease| PutOptions::new().with_lease(lease.0))
}

/// Operations that are carried out together: those in `then` if every condition in `when` holds, otherwise those in
/// `otherwise`. etcd takes at most 128 of each, and 1.5 MiB altogether, unless it was set otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// The conditions.
    pub when: Vec<Compare>,
    /// What is done if all hold.
    pub then: Vec<Op>,
    /// What is done if not.
    pub otherwise: Vec<Op>,
}

impl Txn {
    fn changes(&self) -> bool {
        self.then.iter().chain(&self.otherwise).any(Op::changes)
    }
}

impl From<Txn> for etcd_client::Txn {
    fn from(txn: Txn) -> etcd_client::Txn {
        let when: Vec<_> = txn.when.into_iter().map(Into::into).collect();
        let then: Vec<_> = txn.then.into_iter().map(Into::into).collect();
        let otherwise: Vec<_> = txn.otherwise.into_iter().map(Into::into).collect();
        etcd_client::Txn::new().when(when).and_then(then).or_else(otherwise)
    }
}

/// What one operation of a transaction did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The key was set.
    Put,
    /// So many keys were deleted.
    Deleted(u64),
    /// What was read.
    Found(Found),
}

/// What a transaction did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxnOutcome {
    /// Whether all conditions held.
    pub held: bool,
    /// The revision of the database afterwards: the one that all its changes have.
    pub revision: i64,
    /// What each operation did, in order.
    pub changes: Vec<Change>,
}

impl From<etcd_client::TxnResponse> for TxnOutcome {
    fn from(answer: etcd_client::TxnResponse) -> TxnOutcome {
        let one = |response| match response {
            TxnOpResponse::Put(_) => Change::Put,
            TxnOpResponse::Get(found) => Change::Found(found.into()),
            TxnOpResponse::Delete(deleted) => {
                Change::Deleted(u64::try_from(deleted.deleted()).unwrap_or(0))
            }
            // None is ever sent.
            TxnOpResponse::Txn(_) => Change::Found(Found::default()),
        };
        TxnOutcome {
            held: answer.succeeded(),
            revision: answer.header().map_or(0, etcd_client::ResponseHeader::revision),
            changes: answer.op_responses().into_iter().map(one).collect(),
        }
    }
}

impl Connection {
    /// The pair of a key, if it exists.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn get(&self, key: impl Into<Vec<u8>>) -> Result<Option<Pair>> {
        let found = self.range(Keys::One(key.into()), RangeOptions::default()).await?;
        Ok(found.pairs.into_iter().next())
    }

    /// The pairs of a range.
    ///
    /// # Errors
    /// See [`Error`](crate::Error); [`Error::Refused`](crate::Error::Refused) if the answer would be larger than 64 MiB.
    pub async fn range(&self, keys: Keys, options: RangeOptions) -> Result<Found> {
        let (key, wire) = keys.get(&options);
        let found = self.call(Effect::Repeatable, options.revision, |member| {
            let (mut kv, key, wire) = (member.keys(), key.clone(), wire.clone());
            async move { kv.get(key, Some(wire)).await }
        });
        Ok(found.await?.into())
    }

    /// Sets a key. Returns the revision that did.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn put(
        &self,
        key: impl Into<Vec<u8>>,
        value: impl Into<Vec<u8>>,
        lease: Option<LeaseId>,
    ) -> Result<i64> {
        let (key, value) = (key.into(), value.into());
        let put = self.call(Effect::Once, 0, |member| {
            let (mut kv, key, value) = (member.keys(), key.clone(), value.clone());
            async move { kv.put(key, value, put_options(lease)).await }
        });
        Ok(put.await?.header().map_or(0, etcd_client::ResponseHeader::revision))
    }

    /// Deletes keys. Returns how many there were.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn delete(&self, keys: Keys) -> Result<u64> {
        let deleted = self.call(Effect::Once, 0, |member| {
            let (mut kv, (key, options)) = (member.keys(), keys.delete());
            async move { kv.delete(key, Some(options)).await }
        });
        Ok(u64::try_from(deleted.await?.deleted()).unwrap_or(0))
    }

    /// Carries out a transaction.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn txn(&self, txn: Txn) -> Result<TxnOutcome> {
        let effect = if txn.changes() { Effect::Once } else { Effect::Repeatable };
        let answer = self.call(effect, 0, |member| {
            let (mut kv, txn) = (member.keys(), txn.clone());
            async move { kv.txn(txn.into()).await }
        });
        Ok(answer.await?.into())
    }

    /// The present revision of the database.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn revision(&self) -> Result<i64> {
        let options = RangeOptions { count_only: true, ..RangeOptions::default() };
        Ok(self.range(Keys::one(b"\0".to_vec()), options).await?.revision)
    }
}
