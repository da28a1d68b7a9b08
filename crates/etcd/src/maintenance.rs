//! The upkeep of etcd itself: its members, its size, its history.

use etcd_client::{AlarmAction, AlarmOptions, AlarmType, CompactionOptions, MemberAddOptions};

use crate::Result;
use crate::connection::{Connection, Effect};

/// A member of etcd, as it is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub id: u64,
    /// Its name; empty until it has started for the first time.
    pub name: String,
    /// Where the other members reach it.
    pub peer_urls: Vec<String>,
    /// Where clients reach it.
    pub client_urls: Vec<String>,
    /// Whether it only follows the others, until it is promoted.
    pub is_learner: bool,
}

impl From<&etcd_client::Member> for Member {
    fn from(member: &etcd_client::Member) -> Member {
        Member {
            id: member.id(),
            name: member.name().to_owned(),
            peer_urls: member.peer_urls().to_vec(),
            client_urls: member.client_urls().to_vec(),
            is_learner: member.is_learner(),
        }
    }
}

/// What a member says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its number.
    pub id: u64,
    /// The version of its program.
    pub version: String,
    /// The member that leads; 0 if none does.
    pub leader: u64,
    /// Bytes of its database file.
    pub file_bytes: u64,
    /// Bytes of that file that hold something; the rest is given back by defragmenting.
    pub used_bytes: u64,
    /// The quota of the database, where the member says it (etcd 3.6).
    pub quota_bytes: Option<u64>,
    /// What it complains of.
    pub errors: Vec<String>,
}

/// An alarm that a member has raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alarm {
    /// The member's database has reached its quota.
    NoSpace {
        /// Its number.
        member: u64,
    },
    /// The member's database differs from the others'.
    Corrupt {
        /// Its number.
        member: u64,
    },
}

impl Connection {
    /// The registered members.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn member_list(&self) -> Result<Vec<Member>> {
        let listed = self.call(Effect::Repeatable, 0, |member| {
            let mut cluster = member.client.cluster_client();
            async move { cluster.member_list().await }
        });
        Ok(listed.await?.members().iter().map(Member::from).collect())
    }

    /// Registers a further member, before it is started with `--initial-cluster-state existing`. Returns its number.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn member_add(&self, peer_urls: Vec<String>) -> Result<u64> {
        let added = self.call(Effect::Once, 0, |member| {
            let (mut cluster, urls) = (member.client.cluster_client(), peer_urls.clone());
            async move { cluster.member_add(urls, None::<MemberAddOptions>).await }
        });
        Ok(added.await?.member().map_or(0, etcd_client::Member::id))
    }

    /// As [`Connection::member_add`], of one that only follows the others until it is promoted: should it never start, the others
    /// go on as before.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn member_add_learner(&self, peer_urls: Vec<String>) -> Result<u64> {
        let added = self.call(Effect::Once, 0, |member| {
            let (mut cluster, urls) = (member.client.cluster_client(), peer_urls.clone());
            let options = MemberAddOptions::new().with_is_learner();
            async move { cluster.member_add(urls, Some(options)).await }
        });
        Ok(added.await?.member().map_or(0, etcd_client::Member::id))
    }

    /// Makes a full member of one that only follows. Refused until it has what the others have.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn member_promote(&self, id: u64) -> Result<()> {
        let promoted = self.call(Effect::Once, 0, |member| {
            let mut cluster = member.client.cluster_client();
            async move { cluster.member_promote(id).await }
        });
        promoted.await.map(drop)
    }

    /// Removes a member for good.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn member_remove(&self, id: u64) -> Result<()> {
        let removed = self.call(Effect::Once, 0, |member| {
            let mut cluster = member.client.cluster_client();
            async move { cluster.member_remove(id).await }
        });
        removed.await.map(drop)
    }

    /// What one member says of itself.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn status(&self, endpoint: &str) -> Result<MemberStatus> {
        let status = self.call_member(endpoint, |member| {
            let mut maintenance = member.client.maintenance_client();
            async move { maintenance.status().await }
        });
        let status = status.await?;
        let bytes = |count: i64| u64::try_from(count).unwrap_or(0);
        Ok(MemberStatus {
            id: status.header().map_or(0, etcd_client::ResponseHeader::member_id),
            version: status.version().to_owned(),
            leader: status.leader(),
            file_bytes: bytes(status.db_size()),
            used_bytes: bytes(status.raft_used_db_size()),
            quota_bytes: Some(bytes(status.db_size_quota())).filter(|quota| *quota > 0),
            errors: status.errors().to_vec(),
        })
    }

    /// Forgets the history before `revision`. It is not an error if it was forgotten already.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn compact(&self, revision: i64) -> Result<()> {
        let compacted = self.call(Effect::Repeatable, revision, |member| {
            let mut kv = member.keys();
            async move {
                kv.compact(revision, Some(CompactionOptions::new().with_physical())).await
            }
        });
        match compacted.await {
            Ok(_) | Err(crate::Error::Compacted { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Gives the unused space of one member's file back to its file system. That member answers nothing meanwhile, for about
    /// a second per 100 MB.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn defragment(&self, endpoint: &str) -> Result<()> {
        let defragmented = self.call_member(endpoint, |member| {
            let mut maintenance = member.client.maintenance_client();
            async move { maintenance.defragment().await }
        });
        defragmented.await.map(drop)
    }

    /// The alarms that are raised.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn alarms(&self) -> Result<Vec<Alarm>> {
        let raised = self.call(Effect::Repeatable, 0, |member| {
            let mut maintenance = member.client.maintenance_client();
            async move { maintenance.alarm(AlarmAction::Get, AlarmType::None, None).await }
        });
        let raised = raised.await?;
        let alarms = raised.alarms().iter().filter_map(|alarm| {
            let member = alarm.member_id();
            match alarm.alarm() {
                AlarmType::None => None,
                AlarmType::Nospace => Some(Alarm::NoSpace { member }),
                AlarmType::Corrupt => Some(Alarm::Corrupt { member }),
            }
        });
        Ok(alarms.collect())
    }

    /// Ends the alarm NOSPACE of all members, after space was made. A member whose database is still beyond its quota raises
    /// it again with the next change.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn disarm_no_space(&self) -> Result<()> {
        for alarm in self.alarms().await? {
            let Alarm::NoSpace { member: raised_by } = alarm else { continue };
            let mut options = AlarmOptions::new();
            options.with_member(raised_by);
            let disarmed = self.call(Effect::Repeatable, 0, |member| {
                let (mut maintenance, options) =
                    (member.client.maintenance_client(), options.clone());
                async move {
                    let (action, kind) = (AlarmAction::Deactivate, AlarmType::Nospace);
                    maintenance.alarm(action, kind, Some(options)).await
                }
            });
            disarmed.await?;
        }
        Ok(())
    }
}
