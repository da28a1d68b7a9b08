//! Which controllers of a cluster's grid there are: each keeps a key in etcd below a lease of its own while its process runs, whether it
//! leads or stands by. Nothing is decided by it: it is for people who want to know.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use forebay_base::NodeId;
use forebay_etcd::{Client, Keys, LeaseId, RangeOptions, Renewal};
use forebay_node::members::Book;
use forebay_node::members::record::{Key, decode, encode};
use serde::Serialize;

use super::Seat;
use super::leader::LeaderRecord;

/// How long a controller is listed after it was killed, in seconds.
const LEASE_SECONDS: u32 = 5;

/// Time between two renewals.
const RENEWAL: Duration = Duration::from_secs(1);

/// A controller, for people and scripts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ControllerView {
    /// Its node.
    pub node: NodeId,
    /// The name of the node.
    pub name: String,
    /// Folder of the grid there.
    pub root: std::path::PathBuf,
    /// Whether it leads; the others stand by.
    pub leads: bool,
}

/// Says that this controller runs, until it is dropped.
pub struct Presence {
    is_over: Arc<AtomicBool>,
}

impl Presence {
    /// Begins to say so, as soon as etcd answers.
    ///
    /// # Errors
    /// If there are no threads left.
    pub fn begin(seat: &Seat) -> Result<Presence> {
        let is_over = Arc::new(AtomicBool::new(false));
        let client = seat.book.client().with_timeout(RENEWAL);
        let key = seat.book.names().key(Key::GridController(seat.node.node));
        let record = encode(&LeaderRecord {
            node: seat.node.node,
            name: seat.node.name.clone(),
            root: seat.root.clone(),
        });
        let ends = Arc::clone(&is_over);
        std::thread::Builder::new()
            .name("presence".to_owned())
            .spawn(move || keep(&client, &key, &record, &ends))
            .context("no thread can be started")?;
        Ok(Presence { is_over })
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
    }
}

fn keep(client: &Client, key: &[u8], record: &[u8], is_over: &AtomicBool) {
    let mut held: Option<LeaseId> = None;
    while !is_over.load(Ordering::SeqCst) {
        match held.map(|lease| client.lease_renew(lease)) {
            Some(Ok(Renewal::Renewed)) => {}
            Some(Ok(Renewal::Over)) | None => held = enter(client, key, record),
            // It is listed again when etcd is back.
            Some(Err(_)) => {}
        }
        std::thread::sleep(RENEWAL);
    }
    if let Some(lease) = held {
        let _ = client.lease_revoke(lease);
    }
}

/// Writes the key below a new lease.
fn enter(client: &Client, key: &[u8], record: &[u8]) -> Option<LeaseId> {
    let lease = client.lease_grant(LEASE_SECONDS).ok()?;
    match client.put(key, record, Some(lease)) {
        Ok(_) => Some(lease),
        Err(_) => {
            let _ = client.lease_revoke(lease);
            None
        }
    }
}

/// The controllers that run, in the order of their nodes' numbers.
///
/// # Errors
/// If etcd does not answer.
pub fn all(book: &Book) -> Result<Vec<ControllerView>> {
    let key = book.names().key(Key::GridLeader);
    let leader = book.client().get(key)?;
    let leader: Option<LeaderRecord> =
        leader.map(|pair| decode(&pair.key, &pair.value)).transpose()?;
    let mut prefix = book.names().root();
    prefix.extend(b"grid/controller-");
    let found = book.client().range(Keys::Prefix(prefix), RangeOptions::default())?;
    let mut views = Vec::new();
    for pair in found.pairs {
        let record: LeaderRecord = decode(&pair.key, &pair.value)?;
        let leads = leader.as_ref() == Some(&record);
        let LeaderRecord { node, name, root } = record;
        views.push(ControllerView { node, name, root, leads });
    }
    views.sort_by_key(|view| view.node);
    Ok(views)
}
