//! Which controller of a cluster's grid leads: the one that has written its name into etcd, below a lease that it renews.
//!
//! The revision of that write is the leader's term: later leaders have greater ones. A leader counts its lease from before it
//! asked for each renewal, and stops a margin early, so it has stopped by itself before another one can begin. One that was
//! frozen finds its lease over when it goes on: [`Lead::holds`] is asked before anything is carried out, and the journal
//! refuses what it writes under an earlier term.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use forebay_base::{Epoch, NodeId};
use forebay_etcd::{Client, Compare, Event, Keys, LeaseId, Op, Pair, Renewal, Txn, Watch};
use forebay_node::members::boottime;
use forebay_node::members::record::{Key, decode, encode};
use serde::{Deserialize, Serialize};

use super::Seat;

/// How long a leader leads without renewing.
pub const LEADER_LEASE: Duration = Duration::from_secs(5);

/// How much earlier than its lease ends a leader stops: clocks of two machines run at slightly different speeds.
const MARGIN: Duration = Duration::from_millis(500);

/// Time between two renewals, and how long one may take.
const RENEWAL: Duration = Duration::from_secs(1);

/// How long who waits for something waits without looking whether it is needed still.
const LOOK: Duration = Duration::from_millis(200);

/// `grid/leader` in etcd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderRecord {
    /// The node of the controller that leads.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// Folder of the grid on that node.
    pub root: PathBuf,
}

/// What a leader holds. It ends with its process, or when it resigns.
pub struct Lead {
    client: Client,
    lease: LeaseId,
    /// Its term.
    pub term: Epoch,
    /// Until when it leads, by the clock of [`boottime`], in milliseconds.
    until_ms: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The end of a lease that was asked for, or renewed, at a moment.
fn end_of(asked: Duration) -> u64 {
    ms(asked + LEADER_LEASE - MARGIN)
}

/// What became of an attempt to lead.
enum Attempt {
    Leads(Lead),
    /// Somebody else does.
    Other(LeaderRecord, i64),
    /// Something changed meanwhile.
    Again,
}

/// Waits until this controller leads, or until `is_told_to_end`. Etcd may be away meanwhile. `stands_by` is called each time
/// another controller is found to lead.
pub fn campaign(
    seat: &Seat,
    mut is_told_to_end: impl FnMut() -> bool,
    mut stands_by: impl FnMut(),
) -> Option<Lead> {
    let mut said = String::new();
    let mut say = |text: String| {
        if text != said {
            tracing::info!("{text}");
            said = text;
        }
    };
    while !is_told_to_end() {
        match attempt(seat) {
            Ok(Attempt::Leads(lead)) => return Some(lead),
            Ok(Attempt::Again) => {}
            Ok(Attempt::Other(leader, revision)) => {
                say(format!("the controller of {} leads; this one stands by", leader.name));
                stands_by();
                let key = seat.book.names().key(Key::GridLeader);
                let watch = seat.book.client().watch(Keys::one(key), revision + 1);
                while !is_told_to_end() && !is_ended(&watch) {}
            }
            Err(error) => {
                say(format!("no controller can be elected: {error:#}"));
                std::thread::sleep(LOOK);
            }
        }
    }
    None
}

/// Whether the watched leader is gone, or may be.
fn is_ended(watch: &Watch) -> bool {
    match watch.next(LOOK) {
        Some(Event::Deleted { .. } | Event::Gap { .. }) => true,
        Some(Event::Put(_)) | None => false,
    }
}

fn attempt(seat: &Seat) -> Result<Attempt> {
    let client = seat.book.client();
    let key = seat.book.names().key(Key::GridLeader);
    if let Some(pair) = client.get(key.clone())? {
        return other(seat, &pair);
    }
    let asked = boottime().0;
    let seconds = u32::try_from(LEADER_LEASE.as_secs())?;
    let lease = client.lease_grant(seconds)?;
    let record = LeaderRecord {
        node: seat.node.node,
        name: seat.node.name.clone(),
        root: seat.root.clone(),
    };
    // A node that was removed leads nothing.
    let own = seat.book.names().key(Key::Node(seat.node.node));
    let txn = Txn {
        when: vec![Compare::Absent(key.clone()), Compare::Present(own.clone())],
        then: vec![Op::Put { key, value: encode(&record), lease: Some(lease) }],
        otherwise: Vec::new(),
    };
    let outcome = client.txn(txn);
    if let Ok(outcome) = &outcome
        && outcome.held
    {
        let term = Epoch(u64::try_from(outcome.revision)?);
        return Ok(Attempt::Leads(Lead::begin(client, lease, term, end_of(asked))?));
    }
    // Whatever became of it: with the lease its key goes.
    let _ = client.lease_revoke(lease);
    outcome?;
    if client.get(own)?.is_none() {
        anyhow::bail!("node {} was removed from the cluster", seat.node.name);
    }
    Ok(Attempt::Again)
}

/// Somebody leads: another controller, or an earlier life of this one, which is gone as this one has its lock.
fn other(seat: &Seat, pair: &Pair) -> Result<Attempt> {
    let leader: LeaderRecord = decode(&pair.key, &pair.value)?;
    if leader.node != seat.node.node || leader.root != seat.root {
        return Ok(Attempt::Other(leader, pair.mod_revision));
    }
    if let Some(lease) = pair.lease {
        seat.book.client().lease_revoke(lease)?;
    }
    Ok(Attempt::Again)
}

impl Lead {
    fn begin(client: &Client, lease: LeaseId, term: Epoch, until_ms: u64) -> Result<Lead> {
        let until_ms = Arc::new(AtomicU64::new(until_ms));
        let is_over = Arc::new(AtomicBool::new(false));
        let lead = Lead {
            client: client.clone(),
            lease,
            term,
            until_ms: Arc::clone(&until_ms),
            is_over: Arc::clone(&is_over),
        };
        let client = client.with_timeout(RENEWAL);
        std::thread::Builder::new()
            .name("leader".to_owned())
            .spawn(move || keep(&client, lease, &until_ms, &is_over))?;
        tracing::info!(term = term.0, "this controller leads");
        Ok(lead)
    }

    /// Whether this controller leads at this moment. It may be asked at any time, by any thread.
    pub fn holds(&self) -> impl Fn() -> bool + Send + use<> {
        let until_ms = Arc::clone(&self.until_ms);
        move || is_before(&until_ms)
    }

    /// Ends it at once, so that nobody waits for the end of the lease.
    pub fn resign(self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.until_ms.store(0, Ordering::SeqCst);
        if let Err(error) = self.client.with_timeout(RENEWAL).lease_revoke(self.lease) {
            tracing::warn!("the next controller starts when the lease of this one ends: {error}");
        }
    }
}

fn is_before(until_ms: &AtomicU64) -> bool {
    ms(boottime().0) < until_ms.load(Ordering::SeqCst)
}

/// Renews the lease. If that does not succeed in time the process ends: whatever its other threads wait for, another
/// controller leads now.
fn keep(client: &Client, lease: LeaseId, until_ms: &AtomicU64, is_over: &AtomicBool) {
    loop {
        std::thread::sleep(RENEWAL);
        let asked = boottime().0;
        if is_over.load(Ordering::SeqCst) {
            return;
        }
        if is_before(until_ms) {
            match client.lease_renew(lease) {
                Ok(Renewal::Renewed) => until_ms.store(end_of(asked), Ordering::SeqCst),
                Ok(Renewal::Over) => until_ms.store(0, Ordering::SeqCst),
                Err(error) => {
                    tracing::warn!("the lease of this controller is not renewed: {error}");
                }
            }
        }
        if !is_before(until_ms) && !is_over.load(Ordering::SeqCst) {
            tracing::error!(
                "this controller no longer leads: it exits, and stands by when it is restarted"
            );
            std::process::exit(1);
        }
    }
}
