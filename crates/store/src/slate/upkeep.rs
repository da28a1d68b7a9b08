//! Looking after etcd: its history is compacted, its files are defragmented, and its quota is watched, so that it never refuses
//! a change. One node at a time does the work; all of them know the state.
//!
//! **Space.** From [`SHORT_PERCENT`] of the quota on, commits that make a store larger end with
//! [`StoreError::Full`](crate::StoreError::Full), and nothing of them is applied; the rest of the quota is for deletions, which
//! write a little before they free more. If etcd refuses all the same (somebody else filled it), room is made at once, and the
//! alarm is disarmed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_etcd::{Alarm, Client, Compare, Connection, MemberStatus, Op, Txn};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::config::{Place, QuotaOf, SlateConfig};
use super::etcd_objects::garbage::Garbage;
use super::etcd_objects::{EtcdObjects, Written};

/// From this part of the quota on, stores must not grow.
const SHORT_PERCENT: u64 = 75;
/// From this part of the quota on, a member's file is defragmented if that helps.
const DEFRAGMENT_PERCENT: u64 = 50;
/// Below this part of the quota, the alarm of a member whose file was made smaller is disarmed.
const DISARM_PERCENT: u64 = 95;
/// etcd's own default.
const QUOTA_DEFAULT: u64 = 2 << 30;
/// Part of the quota after whose writing the state is looked at anew.
const LOOK_AFTER_PERCENT: u64 = 2;
/// After so many rounds a member is asked for its quota again: it may have been started with another one.
const QUOTA_ROUNDS: u64 = 30;
/// Longest time between two rounds where space is short.
const SHORT_INTERVAL: Duration = Duration::from_secs(2);
/// Time that a member's defragmentation may take.
const DEFRAGMENT_TIMEOUT: Duration = Duration::from_secs(120);

/// How etcd is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdState {
    /// Each member.
    pub members: Vec<MemberState>,
    /// Bytes that a member's file may have.
    pub quota_bytes: u64,
    /// Why stores must not grow; `None` while there is space.
    pub shortage: Option<String>,
    /// What failed in the last round.
    pub fault: Option<String>,
    /// Rounds of looking after it so far.
    pub rounds: u64,
    /// Uploads without an end that were removed so far.
    pub uploads_removed: u64,
    /// Files of members that were defragmented so far.
    pub defragmented: u64,
}

/// How a member is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberState {
    /// Where it is reached.
    pub endpoint: String,
    /// What it says of itself, or why it does not.
    pub status: Result<MemberStatus, String>,
}

/// What commits must know of the space in etcd.
#[derive(Default)]
pub(super) struct Space {
    shortage: Mutex<Option<String>>,
    look: Notify,
    /// Bytes written since the last look.
    written: AtomicU64,
    /// After how many the next look is due; 0 while nobody looks.
    look_after: AtomicU64,
}

impl Space {
    /// Why stores must not grow.
    pub fn shortage(&self) -> Option<String> {
        self.shortage.lock().clone()
    }
}

impl Written for Space {
    fn wrote(&self, bytes: usize) {
        let look_after = self.look_after.load(Ordering::Relaxed);
        let written = self.written.fetch_add(bytes as u64, Ordering::Relaxed);
        if look_after > 0 && written > look_after {
            self.look.notify_one();
        }
    }

    fn refused(&self) {
        self.look.notify_one();
    }
}

/// The task that looks after etcd; it ends when this is dropped.
pub(super) struct Upkeep {
    state: Arc<Mutex<EtcdState>>,
    task: JoinHandle<()>,
}

impl Upkeep {
    pub fn start(
        client: &Client,
        objects: &EtcdObjects,
        config: &SlateConfig,
        space: Arc<Space>,
    ) -> Upkeep {
        let quota_bytes = match &config.place {
            Place::Etcd(place) if place.quota_bytes > 0 => place.quota_bytes,
            Place::Etcd(_) | Place::S3(_) | Place::Directory(_) | Place::Memory => QUOTA_DEFAULT,
        };
        let quota_of = match &config.place {
            Place::Etcd(place) => place.quota_of.clone(),
            Place::S3(_) | Place::Directory(_) | Place::Memory => None,
        };
        let state = Arc::new(Mutex::new(EtcdState { quota_bytes, ..EtcdState::default() }));
        let keeper = Keeper {
            connection: client.connection().clone(),
            claim: format!("{}/upkeep", config.prefix.trim_end_matches('/')),
            interval: Duration::from_secs(config.upkeep_seconds.max(1)),
            garbage: Garbage::new(objects, Duration::from_secs(config.upload_age_max_seconds)),
            space,
            state: Arc::clone(&state),
            quota_of,
            quotas: HashMap::new(),
            seen_revision: 0,
            forced_revision: 0,
        };
        let task = client.runtime().handle().spawn(keeper.run());
        Upkeep { state, task }
    }

    pub fn state(&self) -> EtcdState {
        self.state.lock().clone()
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Keeper {
    connection: Connection,
    /// The key of the node that does the work.
    claim: String,
    interval: Duration,
    garbage: Garbage,
    space: Arc<Space>,
    state: Arc<Mutex<EtcdState>>,
    /// Who knows the quota of members that do not say it.
    quota_of: Option<QuotaOf>,
    /// What it has said, by endpoint.
    quotas: HashMap<String, u64>,
    /// The revision at the last round: watches may need the history since then.
    seen_revision: i64,
    /// The revision at which files were last defragmented because etcd refused changes.
    forced_revision: i64,
}

impl Keeper {
    async fn run(mut self) {
        loop {
            let fault = self.round().await.err();
            if let Some(fault) = &fault {
                tracing::debug!(fault, "the maintenance of etcd failed");
            }
            let short = {
                let mut state = self.state.lock();
                state.fault = fault;
                state.rounds += 1;
                state.shortage.is_some()
            };
            let pause = if short { self.interval.min(SHORT_INTERVAL) } else { self.interval };
            tokio::select! {
                () = sleep(pause) => {}
                // Not again and again while etcd refuses.
                () = async { self.space.look.notified().await; sleep(SHORT_INTERVAL.min(pause) / 4).await } => {}
            }
        }
    }

    async fn round(&mut self) -> Result<(), String> {
        let text = |error: forebay_etcd::Error| error.to_string();
        self.space.written.store(0, Ordering::Relaxed);
        let mut members = self.look().await;
        let alarm = self.connection.alarms().await.map_err(text)?;
        let alarm = alarm.iter().any(|alarm| matches!(alarm, Alarm::NoSpace { .. }));
        self.judge(&members, alarm);
        if !self.claimed(alarm).await.map_err(text)? {
            return Ok(());
        }
        let removed = self.garbage.collect().await.map_err(|error| error.to_string())?;
        self.state.lock().uploads_removed += removed as u64;
        self.compact().await.map_err(text)?;
        if self.defragment(&members, alarm).await.map_err(text)? {
            members = self.look().await;
        }
        let quota = self.quota(&members);
        let largest =
            members.iter().filter_map(|member| Some(member.status.as_ref().ok()?.file_bytes));
        let largest = largest.max().unwrap_or(u64::MAX);
        // Stores do not grow in what is left then, but take deletions.
        if alarm && largest < quota / 100 * DISARM_PERCENT {
            self.connection.disarm_no_space().await.map_err(text)?;
            self.judge(&members, false);
        } else {
            self.judge(&members, alarm);
        }
        Ok(())
    }

    async fn look(&mut self) -> Vec<MemberState> {
        if self.state.lock().rounds.is_multiple_of(QUOTA_ROUNDS) {
            self.quotas.clear();
        }
        let mut members = Vec::new();
        for endpoint in self.connection.clone().endpoints() {
            let status = self.connection.status(endpoint).await.map_err(|error| error.to_string());
            let status = match status {
                Ok(status) if status.quota_bytes.is_none() => {
                    Ok(MemberStatus { quota_bytes: self.ask_quota(endpoint).await, ..status })
                }
                status => status,
            };
            members.push(MemberState { endpoint: endpoint.clone(), status });
        }
        members
    }

    /// The quota of a member that does not say it (before etcd 3.6), if it can be known.
    async fn ask_quota(&mut self, endpoint: &str) -> Option<u64> {
        if let Some(known) = self.quotas.get(endpoint) {
            return Some(*known);
        }
        let (quota_of, asked) = (self.quota_of.clone()?, endpoint.to_owned());
        let said = tokio::task::spawn_blocking(move || (quota_of.0)(&asked)).await.ok()??;
        self.quotas.insert(endpoint.to_owned(), said);
        Some(said)
    }

    fn quota(&self, members: &[MemberState]) -> u64 {
        let said = members.iter().filter_map(|member| member.status.as_ref().ok()?.quota_bytes);
        said.min().unwrap_or(self.state.lock().quota_bytes)
    }

    /// Decides whether stores may grow.
    fn judge(&self, members: &[MemberState], alarm: bool) {
        let quota = self.quota(members);
        self.space.look_after.store(quota / 100 * LOOK_AFTER_PERCENT, Ordering::Relaxed);
        let statuses = members.iter().filter_map(|member| member.status.as_ref().ok());
        let used = statuses.map(|status| status.used_bytes).max().unwrap_or(0);
        let shortage = (alarm || used > quota / 100 * SHORT_PERCENT).then(|| {
            format!(
                "etcd holds {used} of {quota} bytes, its quota: filesets must not grow. Remove files, or raise \
                 --quota-backend-bytes of its members (8 GiB at most)"
            )
        });
        self.space.shortage.lock().clone_from(&shortage);
        let mut state = self.state.lock();
        match (&state.shortage, &shortage) {
            (None, Some(reason)) => tracing::warn!(reason, "etcd is nearly full"),
            (Some(_), None) => tracing::info!("etcd has space again"),
            _ => {}
        }
        state.members = members.to_vec();
        state.quota_bytes = quota;
        state.shortage = shortage;
    }

    /// Whether this node does the work of this round: no other has done it within the interval. Where etcd is full
    /// nobody can claim it, and everybody may do it.
    async fn claimed(&self, full: bool) -> forebay_etcd::Result<bool> {
        if full {
            return Ok(true);
        }
        let seconds = u32::try_from(self.interval.as_secs()).unwrap_or(u32::MAX).max(2) - 1;
        let lease = self.connection.lease_grant(seconds).await?;
        let key = self.claim.clone().into_bytes();
        let txn = Txn {
            when: vec![Compare::Absent(key.clone())],
            then: vec![Op::Put { key, value: Vec::new(), lease: Some(lease) }],
            otherwise: Vec::new(),
        };
        let claimed = self.connection.txn(txn).await?.held;
        let short = self.space.shortage().is_some();
        if !claimed {
            self.connection.lease_revoke(lease).await?;
        }
        Ok(claimed || short)
    }

    /// Forgets the history before the last round; all of it where space is short.
    async fn compact(&mut self) -> forebay_etcd::Result<()> {
        let now = self.connection.revision().await?;
        let until = if self.space.shortage().is_some() { now } else { self.seen_revision };
        if until > 0 {
            self.connection.compact(until).await?;
        }
        self.seen_revision = now;
        Ok(())
    }

    /// Gives back what is unused of members' files, one after the other, where a file is large and mostly unused. A member
    /// that refuses changes does not count what was compacted as unused: there it is tried after each change.
    async fn defragment(
        &mut self,
        members: &[MemberState],
        alarm: bool,
    ) -> forebay_etcd::Result<bool> {
        let forced = alarm && self.forced_revision != self.seen_revision;
        self.forced_revision = self.seen_revision;
        let quota = self.quota(members);
        let patient = self.connection.with_timeout(DEFRAGMENT_TIMEOUT);
        let mut any = false;
        for member in members {
            // As it is after the compaction.
            let Ok(status) = self.connection.status(&member.endpoint).await else { continue };
            let large = status.file_bytes > quota / 100 * DEFRAGMENT_PERCENT;
            if large && (forced || status.used_bytes < status.file_bytes / 2) {
                patient.defragment(&member.endpoint).await?;
                self.state.lock().defragmented += 1;
                any = true;
            }
        }
        Ok(any)
    }
}
