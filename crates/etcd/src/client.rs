//! The client for synchronous code.

use std::time::Duration;

use crate::Result;
use crate::connection::Connection;
use crate::kv::{Found, Keys, Pair, RangeOptions, Txn, TxnOutcome};
use crate::lease::{LeaseId, Renewal};
use crate::maintenance::{Alarm, Member, MemberStatus};
use crate::options::Options;
use crate::runtime::Runtime;
use crate::watch::Watch;

/// A client of etcd that blocks the calling thread. Clones share the connections. Every method but [`Client::connect`]
/// and [`Client::watch`] does what the method of [`Connection`] with its name does, and panics if one of the runtime's own
/// threads calls it.
#[derive(Clone, Debug)]
pub struct Client {
    runtime: Runtime,
    connection: Connection,
}

impl Client {
    /// Prepares connections to all members; the first call makes them.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused): an endpoint or a certificate is not well-formed.
    pub fn connect(runtime: &Runtime, options: Options) -> Result<Client> {
        let connection = runtime.block_on(Connection::open(options))?;
        Ok(Client { runtime: runtime.clone(), connection })
    }

    /// The same connections, with another limit for each call.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Client {
        let connection = self.connection.with_timeout(timeout);
        Client { runtime: self.runtime.clone(), connection }
    }

    /// For asynchronous code.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The threads that do the work.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// The endpoints in the order of the options.
    #[must_use]
    pub fn endpoints(&self) -> &[String] {
        self.connection.endpoints()
    }

    /// Tells what happens to `keys` from `from_revision` on: the revision of a read and 1, or 0 for "from now".
    #[must_use]
    pub fn watch(&self, keys: Keys, from_revision: i64) -> Watch {
        Watch::start(&self.runtime, &self.connection, keys, from_revision)
    }

    /// The pair of a key, if it exists.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn get(&self, key: impl Into<Vec<u8>>) -> Result<Option<Pair>> {
        self.runtime.block_on(self.connection.get(key))
    }

    /// The pairs of a range.
    ///
    /// # Errors
    /// As [`Connection::range`].
    pub fn range(&self, keys: Keys, options: RangeOptions) -> Result<Found> {
        self.runtime.block_on(self.connection.range(keys, options))
    }

    /// Sets a key. Returns the revision that did.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn put(
        &self,
        key: impl Into<Vec<u8>>,
        value: impl Into<Vec<u8>>,
        lease: Option<LeaseId>,
    ) -> Result<i64> {
        self.runtime.block_on(self.connection.put(key, value, lease))
    }

    /// Deletes keys. Returns how many there were.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn delete(&self, keys: Keys) -> Result<u64> {
        self.runtime.block_on(self.connection.delete(keys))
    }

    /// Carries out a transaction.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn txn(&self, txn: Txn) -> Result<TxnOutcome> {
        self.runtime.block_on(self.connection.txn(txn))
    }

    /// The present revision of the database.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn revision(&self) -> Result<i64> {
        self.runtime.block_on(self.connection.revision())
    }

    /// Asks for a lease.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn lease_grant(&self, seconds: u32) -> Result<LeaseId> {
        self.runtime.block_on(self.connection.lease_grant(seconds))
    }

    /// Renews a lease once. Count its time from when you called, not from the answer.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn lease_renew(&self, lease: LeaseId) -> Result<Renewal> {
        self.runtime.block_on(self.connection.lease_renew(lease))
    }

    /// Ends a lease with its keys.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn lease_revoke(&self, lease: LeaseId) -> Result<()> {
        self.runtime.block_on(self.connection.lease_revoke(lease))
    }

    /// The registered members.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn member_list(&self) -> Result<Vec<Member>> {
        self.runtime.block_on(self.connection.member_list())
    }

    /// Registers a further member. Returns its number.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn member_add(&self, peer_urls: Vec<String>) -> Result<u64> {
        self.runtime.block_on(self.connection.member_add(peer_urls))
    }

    /// Registers a further member that only follows until it is promoted. Returns its number.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn member_add_learner(&self, peer_urls: Vec<String>) -> Result<u64> {
        self.runtime.block_on(self.connection.member_add_learner(peer_urls))
    }

    /// Makes a full member of one that only follows.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn member_promote(&self, id: u64) -> Result<()> {
        self.runtime.block_on(self.connection.member_promote(id))
    }

    /// Removes a member for good.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn member_remove(&self, id: u64) -> Result<()> {
        self.runtime.block_on(self.connection.member_remove(id))
    }

    /// What one member says of itself.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn status(&self, endpoint: &str) -> Result<MemberStatus> {
        self.runtime.block_on(self.connection.status(endpoint))
    }

    /// Forgets the history before `revision`.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn compact(&self, revision: i64) -> Result<()> {
        self.runtime.block_on(self.connection.compact(revision))
    }

    /// Gives the unused space of one member's file back to its file system.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn defragment(&self, endpoint: &str) -> Result<()> {
        self.runtime.block_on(self.connection.defragment(endpoint))
    }

    /// The alarms that are raised.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn alarms(&self) -> Result<Vec<Alarm>> {
        self.runtime.block_on(self.connection.alarms())
    }

    /// Ends the alarm NOSPACE of all members.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub fn disarm_no_space(&self) -> Result<()> {
        self.runtime.block_on(self.connection.disarm_no_space())
    }
}
