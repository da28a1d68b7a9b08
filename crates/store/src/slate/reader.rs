//! A database that is read while another may write it.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use forebay_base::FilesetId;
use slatedb::DbReader;
use tokio::time::timeout;

use super::copy;
use super::errors::plain;
use super::store::{durable, scanning, stored, take};
use super::stores::Shared;
use crate::{Batch, Bytes, Result, Store, StoreError};

/// A database, opened to read a little of it: it is as it was when it was opened, or newer.
pub(super) struct SlateReader {
    shared: Arc<Shared>,
    fileset: FilesetId,
    name: String,
    reader: Option<DbReader>,
}

impl SlateReader {
    pub fn new(shared: &Arc<Shared>, fileset: FilesetId, reader: DbReader) -> SlateReader {
        let name = shared.name_of(fileset);
        SlateReader { shared: Arc::clone(shared), fileset, name, reader: Some(reader) }
    }

    fn read<'a, T, F>(&'a self, work: impl FnOnce(&'a DbReader) -> F) -> Result<T>
    where
        F: Future<Output = std::result::Result<T, slatedb::Error>>,
    {
        let Some(reader) = &self.reader else { unreachable!("it is there until the drop") };
        let limited = async { timeout(self.shared.timeout, work(reader)).await };
        match self.shared.runtime.block_on(limited) {
            Ok(outcome) => outcome.map_err(|error| plain(&self.name, &error)),
            Err(_) => Err(StoreError::Io(format!(
                "names {}: no answer within {:?}",
                self.name, self.shared.timeout
            ))),
        }
    }
}

impl Store for SlateReader {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let key = stored(key);
        let value =
            self.read(|reader| async move { reader.get_with_options(&key, &durable()).await })?;
        Ok(value.map(|value| value.to_vec()))
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>> {
        if from >= to || limit == 0 {
            return Ok(Vec::new());
        }
        let range = stored(from)..stored(to);
        self.read(|reader| async move {
            let mut pairs = reader.scan_with_options(range, &scanning(limit)).await?;
            take(&mut pairs, limit).await
        })
    }

    fn commit(&self, _batch: &Batch) -> Result<()> {
        Err(StoreError::Io(format!("names {} were opened read-only", self.name)))
    }

    fn copy_to(&self, path: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<u64> {
        let Some(reader) = &self.reader else { unreachable!("it is there until the drop") };
        let failed = |error: &slatedb::Error| plain(&self.name, error);
        copy::to_file(&self.shared.runtime, reader, path, progress, &failed)
    }

    fn size_bytes(&self) -> Result<u64> {
        self.shared.size_of(self.fileset)
    }
}

impl Drop for SlateReader {
    fn drop(&mut self) {
        if let Some(reader) = self.reader.take() {
            self.shared.runtime.handle().spawn(async move {
                // Nobody is left to be told.
                let _ = reader.close().await;
            });
        }
    }
}
