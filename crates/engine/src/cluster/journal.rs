//! The journal of a cluster's grid: a SlateDB database in etcd, opened under the leader's term, so that an earlier leader can
//! write nothing any more.

use std::sync::Arc;

use anyhow::{Result, bail};
use forebay_base::FilesetId;
use forebay_node::members::record::Key;
use forebay_store::slate::{EtcdPlace, Place, SlateConfig, SlateStores, open_stores};
use forebay_store::{Store, StoreError, Stores as _};

use super::Seat;
use super::leader::Lead;
use crate::home::Begin;

/// Memory for blocks of the journal.
const MEMORY_BYTES: u64 = 64 << 20;

/// Longest time of a commit or read: a leader without etcd does not lead any more by then.
const TIMEOUT_MS: u64 = 10_000;

/// Where the journal of the grid is.
fn config_of(seat: &Seat) -> SlateConfig {
    let prefix = format!("/forebay-grid/{}", seat.node.cluster);
    let mut config = SlateConfig::new(Place::Etcd(EtcdPlace::default()), prefix);
    config.memory_bytes_max = MEMORY_BYTES;
    config.timeout_milliseconds = TIMEOUT_MS;
    config
}

/// What the journal of the grid lies in. It also keeps the room in etcd in order.
///
/// # Errors
/// If there is no connection to etcd; it need not answer.
pub fn stores(seat: &Seat) -> Result<Arc<SlateStores>> {
    Ok(open_stores(&config_of(seat), &seat.runtime, Some(seat.book.client()))?)
}

/// Opens the journal of the grid for its leader; the first one makes it.
///
/// # Errors
/// If it cannot be read, is missing though there was a grid, or is there though a new one was wanted.
pub fn open(
    seat: &Seat,
    stores: &SlateStores,
    lead: &Lead,
    begin: Begin,
) -> Result<Arc<dyn Store>> {
    let client = seat.book.client();
    let begun = seat.book.names().key(Key::GridBegun);
    let has_begun = client.get(begun.clone())?.is_some();
    let store = if has_begun {
        match (stores.open_for(FilesetId::ROOT, lead.term), begin) {
            (Ok(store), Begin::First) => store,
            (Ok(_), Begin::Anew) => bail!(
                "--new starts an empty grid, but the cluster already has a grid: its journal is in etcd below {}",
                config_of(seat).prefix
            ),
            (Err(StoreError::Missing(_)), Begin::Anew) => {
                stores.open_or_make_for(FilesetId::ROOT, lead.term)?
            }
            (Err(StoreError::Missing(reason)), Begin::First) => bail!(
                "the journal of the grid is missing in etcd ({reason}), but the cluster had a grid: restore etcd from a snapshot, \
                 or give --new to start an empty grid, without the jobs, history and schedules of the former one"
            ),
            (Err(error), _) => return Err(error.into()),
        }
    } else {
        stores.open_or_make_for(FilesetId::ROOT, lead.term)?
    };
    if !has_begun {
        client.put(begun, "true", None)?;
    }
    Ok(store)
}
