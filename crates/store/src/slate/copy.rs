//! Copies of a database in a file of its own.

use std::path::Path;

use forebay_etcd::Runtime;
use slatedb::DbReadOps;

use super::store::{scanning, stored, take};
use crate::redb::RedbStore;
use crate::{Batch, Result, Store as _, StoreError};

/// Pairs in one batch of the copy.
const BATCH_MAX: usize = 10_000;

/// Copies all pairs of a database, as `source` shows it, into a new file; see [`Store::copy_to`](crate::Store::copy_to).
pub(super) fn to_file(
    runtime: &Runtime,
    source: &(impl DbReadOps + Sync),
    path: &Path,
    progress: &mut dyn FnMut(u64, u64),
    failed: &dyn Fn(&slatedb::Error) -> StoreError,
) -> Result<u64> {
    let total = for_each_batch(runtime, source, failed, &mut |_| Ok(()))?;
    let copy = RedbStore::create(path)?;
    let mut done = 0;
    let copied = for_each_batch(runtime, source, failed, &mut |pairs| {
        done += pairs.len() as u64;
        let changes = pairs.into_iter().map(|(key, value)| (key, Some(value))).collect();
        copy.commit(&Batch { requires: Vec::new(), changes })?;
        // What is read while another writes it may have grown.
        progress(done, total.max(done));
        Ok(())
    });
    let closed = copied.and_then(|count| copy.close().map(|()| count));
    if closed.is_err() {
        // The error that matters is the one before.
        let _ = std::fs::remove_file(path);
    }
    closed
}

type Pairs = Vec<(crate::Bytes, crate::Bytes)>;

/// Gives all pairs to `visit`, some at a time; returns how many there were.
fn for_each_batch(
    runtime: &Runtime,
    source: &(impl DbReadOps + Sync),
    failed: &dyn Fn(&slatedb::Error) -> StoreError,
    visit: &mut dyn FnMut(Pairs) -> Result<()>,
) -> Result<u64> {
    let range = stored(b"")..;
    let options = scanning(usize::MAX);
    let pairs = runtime.block_on(source.scan_with_options(range, &options));
    let mut pairs = pairs.map_err(|error| failed(&error))?;
    let mut count = 0;
    loop {
        let taken =
            runtime.block_on(take(&mut pairs, BATCH_MAX)).map_err(|error| failed(&error))?;
        if taken.is_empty() {
            return Ok(count);
        }
        count += taken.len() as u64;
        visit(taken)?;
    }
}
