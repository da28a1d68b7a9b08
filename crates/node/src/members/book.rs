//! The cluster's records in etcd, read and changed.
//!
//! Every change is one transaction that compares what it relies on, so two commands at once cannot both believe that they
//! succeeded, and one that is interrupted leaves nothing half done.

use std::time::Duration;

use forebay_base::{ClientId, FilesetId, NodeId};
use forebay_cluster::ownership::{Record, View};
use forebay_etcd::{Client, Compare, Keys, Op, Options, RangeOptions, Runtime, Tls, Txn};

use super::record::{
    ClusterRecord, DiskRecord, FORMAT, Key, Names, NodeRecord, decode, encode, new_owner,
};
use super::roster::{self, Sight};
use crate::authority::token::{Token, TokenRecord, hexadecimal};
use crate::error::{Error, Result};
use crate::home::EtcdAccess;

/// Attempts of a change that others may make at the same time.
pub(super) const TRIES: u32 = 20;

/// The first node of a cluster.
pub const FIRST: NodeId = NodeId(1);

/// The cluster's records.
#[derive(Clone, Debug)]
pub struct Book {
    client: Client,
    names: Names,
}

impl From<forebay_etcd::Error> for Error {
    fn from(error: forebay_etcd::Error) -> Error {
        Error::Etcd(error.to_string())
    }
}

pub(super) fn contended() -> Error {
    Error::Etcd("other nodes keep changing the same records: try again".to_owned())
}

impl Book {
    /// The records of `cluster`, reached with `access`.
    ///
    /// # Errors
    /// If an endpoint or certificate is not one.
    pub fn open(runtime: &Runtime, access: &EtcdAccess, cluster: &str) -> Result<Book> {
        let mut options = Options::new(access.endpoints.iter().cloned());
        if let Some(authority) = &access.authority {
            options = options.with_tls(Tls {
                authority_pem: authority.clone().into_bytes(),
                identity_pem: access
                    .identity
                    .as_ref()
                    .map(|(certificate, key)| (certificate.clone().into(), key.clone().into())),
                server_name: None,
            });
        }
        Ok(Book { client: Client::connect(runtime, options)?, names: Names::of(cluster)? })
    }

    /// The client of etcd.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The keys.
    #[must_use]
    pub fn names(&self) -> &Names {
        &self.names
    }

    fn key(&self, key: Key<'_>) -> Vec<u8> {
        self.names.key(key)
    }

    /// The cluster's own record; none if there is no such cluster.
    ///
    /// # Errors
    /// If etcd does not answer, or a newer version wrote it.
    pub fn cluster(&self) -> Result<Option<ClusterRecord>> {
        let Some(pair) = self.client.get(self.key(Key::Cluster))? else { return Ok(None) };
        let record: ClusterRecord = decode(&pair.key, &pair.value)?;
        if record.format > FORMAT {
            return Err(Error::Etcd(format!(
                "the records of cluster {} have format {}, but this version supports at most {FORMAT}: upgrade Forebay on this machine",
                record.name, record.format
            )));
        }
        Ok(Some(record))
    }

    /// Everything, and as of which revision.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub fn read(&self) -> Result<(Sight, View)> {
        let found = self.client.range(Keys::prefix(self.names.root()), RangeOptions::default())?;
        Ok(roster::read(&self.names, &found))
    }

    /// Writes the records of a new cluster with its first node, unless it exists. Returns the record that is there
    /// afterwards.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub fn create(
        &self,
        cluster: &ClusterRecord,
        first: &NodeRecord,
        disks: &[(String, DiskRecord)],
    ) -> Result<ClusterRecord> {
        let mut then = vec![
            Op::put(self.key(Key::Cluster), encode(cluster)),
            Op::put(self.key(Key::NextNode), encode(&(FIRST.0 + 1))),
            Op::put(self.key(Key::Node(FIRST)), encode(first)),
            Op::put(self.key(Key::Name(&first.name)), encode(&FIRST)),
        ];
        then.extend(self.puts_of(FIRST, disks));
        let when = vec![Compare::Absent(self.key(Key::Cluster))];
        // Whatever became of it is read.
        let outcome = self.client.txn(Txn { when, then, otherwise: Vec::new() });
        match self.cluster()? {
            Some(record) => Ok(record),
            None => Err(outcome.err().map_or_else(contended, Error::from)),
        }
    }

    fn puts_of(&self, node: NodeId, disks: &[(String, DiskRecord)]) -> Vec<Op> {
        let put = |(uuid, disk): &(String, DiskRecord)| {
            Op::put(self.key(Key::Disk(uuid)), encode(&DiskRecord { node, ..disk.clone() }))
        };
        disks.iter().map(put).collect()
    }

    /// A member's record, and the revision of its last change.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub fn node(&self, node: NodeId) -> Result<Option<(NodeRecord, i64)>> {
        let Some(pair) = self.client.get(self.key(Key::Node(node)))? else { return Ok(None) };
        Ok(Some((decode(&pair.key, &pair.value)?, pair.mod_revision)))
    }

    /// Changes a member's record.
    ///
    /// # Errors
    /// If the node is not a member (any more), or etcd does not answer.
    pub fn change_node(
        &self,
        node: NodeId,
        change: impl Fn(&mut NodeRecord),
    ) -> Result<NodeRecord> {
        for _ in 0..TRIES {
            let (mut record, revision) = self.node(node)?.ok_or_else(|| not_a_member(node))?;
            change(&mut record);
            let key = self.key(Key::Node(node));
            let when = vec![Compare::ModRevision(key.clone(), revision)];
            let then = vec![Op::put(key, encode(&record))];
            if self.client.txn(Txn { when, then, otherwise: Vec::new() })?.held {
                return Ok(record);
            }
        }
        Err(contended())
    }

    /// Which member has this name.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub fn named(&self, name: &str) -> Result<Option<NodeId>> {
        let pair = self.client.get(self.key(Key::Name(name)))?;
        pair.map(|pair| decode(&pair.key, &pair.value)).transpose()
    }

    /// The member that a user means: by name, or by number.
    ///
    /// # Errors
    /// If there is none.
    pub fn find(&self, text: &str) -> Result<(NodeId, NodeRecord)> {
        let node = match self.named(text)? {
            Some(node) => Some(node),
            None => text.parse().ok().map(NodeId),
        };
        let record = node.map(|node| self.node(node)).transpose()?.flatten();
        match (node, record) {
            (Some(node), Some((record, _))) => Ok((node, record)),
            _ => Err(Error::Invalid(format!(
                "the cluster has no node {text:?}: forebay cluster status lists its nodes"
            ))),
        }
    }

    /// Adds a member, with disks. One with the same name and key that was added before is left as it is: the node's earlier
    /// attempt did not hear of it.
    ///
    /// # Errors
    /// If the name belongs to another node, or etcd does not answer.
    pub fn add_node(&self, record: &NodeRecord, disks: &[(String, DiskRecord)]) -> Result<NodeId> {
        for _ in 0..TRIES {
            if let Some(node) = self.named(&record.name)? {
                let known = self.node(node)?;
                if known.is_some_and(|(known, _)| known.key == record.key) {
                    return Ok(node);
                }
                return Err(Error::Invalid(format!(
                    "the name {:?} belongs to node {node} of the cluster: choose another with --node, or remove that node first \
                     (forebay cluster remove {})",
                    record.name, record.name
                )));
            }
            let next_key = self.key(Key::NextNode);
            let Some(next) = self.client.get(next_key.clone())? else {
                return Err(Error::Etcd("the cluster's records are incomplete".to_owned()));
            };
            let node = NodeId(decode(&next.key, &next.value)?);
            let mut then = vec![
                Op::put(next_key.clone(), encode(&(node.0 + 1))),
                Op::put(self.key(Key::Node(node)), encode(record)),
                Op::put(self.key(Key::Name(&record.name)), encode(&node)),
            ];
            then.extend(self.puts_of(node, disks));
            let when = vec![
                Compare::ModRevision(next_key, next.mod_revision),
                Compare::Absent(self.key(Key::Name(&record.name))),
            ];
            if self.client.txn(Txn { when, then, otherwise: Vec::new() })?.held {
                return Ok(node);
            }
        }
        Err(contended())
    }

    /// Removes a member: its certificate is accepted nowhere from now on, and its lease counts for nothing.
    ///
    /// # Errors
    /// If it owns filesets, or etcd does not answer.
    pub fn remove_node(&self, node: NodeId) -> Result<()> {
        for _ in 0..TRIES {
            let Some((record, revision)) = self.node(node)? else { return Ok(()) };
            let (sight, _) = self.read()?;
            let mut then = vec![
                Op::Delete(Keys::one(self.key(Key::Node(node)))),
                Op::Delete(Keys::one(self.key(Key::Name(&record.name)))),
                Op::Delete(Keys::one(self.key(Key::Alive(node)))),
                Op::Delete(Keys::one(self.key(Key::Draining(node)))),
            ];
            let disks = sight.disks.iter().filter(|(_, disk)| disk.node == node);
            then.extend(disks.map(|(uuid, _)| Op::Delete(Keys::one(self.key(Key::Disk(uuid))))));
            let when = vec![Compare::ModRevision(self.key(Key::Node(node)), revision)];
            if self.client.txn(Txn { when, then, otherwise: Vec::new() })?.held {
                return Ok(());
            }
        }
        Err(contended())
    }

    /// Notes that a member has one more disk.
    ///
    /// # Errors
    /// If the node is not a member any more, or etcd does not answer.
    pub fn add_disk(&self, node: NodeId, uuid: &str, location: &str) -> Result<()> {
        let record = DiskRecord { node, location: location.to_owned(), shared: false };
        let when = vec![Compare::Present(self.key(Key::Node(node)))];
        let then = vec![Op::put(self.key(Key::Disk(uuid)), encode(&record))];
        let outcome = self.client.txn(Txn { when, then, otherwise: Vec::new() })?;
        if outcome.held { Ok(()) } else { Err(not_a_member(node)) }
    }

    /// No member has a disk any more.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub fn remove_disk(&self, uuid: &str) -> Result<()> {
        self.client.delete(Keys::one(self.key(Key::Disk(uuid))))?;
        Ok(())
    }

    /// Removes all records of the cluster: it is over.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub fn erase(&self) -> Result<()> {
        self.client.delete(Keys::prefix(self.names.root()))?;
        Ok(())
    }

    /// Has a node hand over what it owns and own nothing further, or lets it own again.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub fn set_draining(&self, node: NodeId, draining: bool) -> Result<()> {
        let key = self.key(Key::Draining(node));
        if draining {
            self.client.put(key, "true", None)?;
        } else {
            self.client.delete(Keys::one(key))?;
        }
        Ok(())
    }

    /// Has a fileset owned by one node as long as it can, or by any.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub fn pin(&self, fileset: FilesetId, node: Option<NodeId>) -> Result<()> {
        let key = self.key(Key::Pinned(fileset));
        match node {
            Some(node) => self.client.put(key, encode(&node), None).map(drop)?,
            None => self.client.delete(Keys::one(key)).map(drop)?,
        }
        Ok(())
    }

    /// Makes a fileset known: the nodes choose an owner for it. One that is known already is left as it is.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub fn add_fileset(&self, fileset: FilesetId) -> Result<()> {
        let key = self.key(Key::Owner(fileset));
        let when = vec![Compare::Absent(key.clone())];
        let then = vec![Op::put(key, encode(&new_owner()))];
        self.client.txn(Txn { when, then, otherwise: Vec::new() })?;
        Ok(())
    }

    /// Forgets a fileset that was removed, if `owner` still owns it as it says.
    ///
    /// # Errors
    /// If it has another owner by now, or etcd does not answer.
    pub fn remove_fileset(&self, fileset: FilesetId, owner: Record) -> Result<()> {
        let key = self.key(Key::Owner(fileset));
        let when = vec![Compare::Value(key.clone(), encode(&owner))];
        let then =
            vec![Op::Delete(Keys::one(key)), Op::Delete(Keys::one(self.key(Key::Pinned(fileset))))];
        let outcome = self.client.txn(Txn { when, then, otherwise: Vec::new() })?;
        if outcome.held {
            return Ok(());
        }
        Err(Error::Invalid(format!("fileset {fileset} has another owner now")))
    }

    /// Keeps a join token until it expires; etcd removes it then.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub fn add_token(&self, token: &Token, record: &TokenRecord, life: Duration) -> Result<()> {
        let seconds = u32::try_from(life.as_secs()).unwrap_or(u32::MAX);
        let lease = self.client.lease_grant(seconds)?;
        let key = self.key(Key::Token(&hexadecimal(&token.id)));
        self.client.put(key, encode(record), Some(lease))?;
        Ok(())
    }

    /// Checks a token, and takes one of its uses.
    ///
    /// # Errors
    /// [`Error::Token`] if there is no such token, or the secret is wrong.
    pub fn use_token(&self, id: &[u8], secret: &[u8], now_seconds: i64) -> Result<TokenRecord> {
        let unknown = || {
            Error::Token(
                "the join token is unknown, used up or expired: create another one (forebay cluster token)".to_owned(),
            )
        };
        let key = self.key(Key::Token(&hexadecimal(id)));
        for _ in 0..TRIES {
            let Some(pair) = self.client.get(key.clone())? else { return Err(unknown()) };
            let record: TokenRecord = decode(&pair.key, &pair.value)?;
            if !record.is_proven_by(secret) || record.expires <= now_seconds {
                return Err(unknown());
            }
            let Some(uses) = record.uses else { return Ok(record) };
            let op = match uses {
                0 => return Err(unknown()),
                1 => Op::Delete(Keys::one(key.clone())),
                _ => Op::Put {
                    key: key.clone(),
                    value: encode(&TokenRecord { uses: Some(uses - 1), ..record.clone() }),
                    lease: pair.lease,
                },
            };
            let when = vec![Compare::ModRevision(key.clone(), pair.mod_revision)];
            if self.client.txn(Txn { when, then: vec![op], otherwise: Vec::new() })?.held {
                return Ok(record);
            }
        }
        Err(contended())
    }

    /// Begins a life of a node's daemon.
    ///
    /// # Errors
    /// If the node is not a member any more, or etcd does not answer.
    pub fn begin_life(&self, node: NodeId, address: &str) -> Result<ClientId> {
        let record = self.change_node(node, |record| {
            record.incarnation += 1;
            record.address = address.to_owned();
            record.version = env!("CARGO_PKG_VERSION").to_owned();
        })?;
        Ok(ClientId { node, incarnation: record.incarnation })
    }
}

fn not_a_member(node: NodeId) -> Error {
    Error::Invalid(format!(
        "node {node} is not a member of the cluster: it was removed. To join again, run `forebay cluster leave` here, and \
         then `forebay cluster join` with a new token"
    ))
}
