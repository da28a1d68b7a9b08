//! A consistent copy of a store, while it is in use or not.

use std::path::Path;

use redb::{ReadableDatabase as _, ReadableTable as _, ReadableTableMetadata as _};

use super::{PAIRS, RedbStore, translate};
use crate::{Batch, Result, Store as _};

/// Pairs that are committed together.
const BATCH_MAX: usize = 20_000;

impl RedbStore {
    /// As [`Store::copy_to`](crate::Store::copy_to): pairs that are committed meanwhile are not in the copy,
    /// and the file of this store grows by what they replace.
    pub(super) fn copy_all(&self, path: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<u64> {
        let copy = RedbStore::create(path)?;
        let copied = self.copy_pairs(&copy, progress).and_then(|pairs| {
            copy.close()?;
            Ok(pairs)
        });
        if copied.is_err() {
            drop(copy);
            // The error that matters is the one of the copy.
            let _ = std::fs::remove_file(path);
        }
        copied
    }

    fn copy_pairs(&self, copy: &RedbStore, progress: &mut dyn FnMut(u64, u64)) -> Result<u64> {
        // The snapshot lives on without the lock of the state, so that nobody waits for it.
        let reading = self.read(|database| Ok(database.begin_read()?))?;
        let failed = |error: redb::Error| translate(&self.path, &error);
        let table = reading.open_table(PAIRS).map_err(|error| failed(error.into()))?;
        let total = table.len().map_err(|error| failed(error.into()))?;
        let mut done = 0;
        let mut batch = Batch::default();
        for pair in table.iter().map_err(|error| failed(error.into()))? {
            let (key, value) = pair.map_err(|error| failed(error.into()))?;
            batch.changes.insert(key.value().to_vec(), Some(value.value().to_vec()));
            done += 1;
            if batch.changes.len() >= BATCH_MAX {
                copy.commit(&std::mem::take(&mut batch))?;
                progress(done, total);
            }
        }
        copy.commit(&batch)?;
        progress(done, total);
        Ok(done)
    }
}
