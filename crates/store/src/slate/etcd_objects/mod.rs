//! Objects in etcd: an [`ObjectStore`] over its keys, for sites that have no object store.
//!
//! **Keys**, below a prefix (`format.rs` draws the record):
//!
//! | Key | Holds |
//! |---|---|
//! | `m/PATH` | the record of an object: size, time, attributes, parts, and an id that no other object ever has |
//! | `i/PATH` | its bytes, if they fit into one value |
//! | `c/ID/PART.CHUNK` | its bytes otherwise, at most 1 MiB in each chunk |
//! | `u/ID` | an upload under way: its chunks belong to no object yet |
//! | `p/ID` | the chunks belong to the object whose path this holds |
//!
//! **Whole or not at all.** An object appears, is replaced and is removed by one transaction, which compares the revision of
//! its record. A chunk is only ever written while its `u/ID` is there, and the deciding transaction removes that. So a
//! request that arrives late changes nothing, and chunks without an object always have a `u/ID`: [`garbage`] removes both.
//!
//! **Open outcomes.** A transaction whose answer was lost is sent again; if its condition no longer holds, the id in the
//! record tells whether the first one was carried out.
//!
//! **Limits.** A value of 1 MiB at most, below etcd's 1.5 MiB for a request. Conditional puts, ranges, lists and attributes
//! are there; versions and tags are not.

mod format;
pub mod garbage;
mod list;
mod read;
pub(super) mod together;
mod upload;
mod write;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use forebay_etcd::{Connection, Error};
use futures::stream::{BoxStream, StreamExt as _};
use object_store::path::Path;
use object_store::{
    CopyMode, CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt as _, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};

/// Bytes in one value of etcd, at most.
pub const VALUE_BYTES_MAX: usize = 1 << 20;
/// Requests for chunks of one object that are under way at once.
const CHUNKS_AT_ONCE: usize = 4;
/// Deletions that are under way at once.
const DELETIONS_AT_ONCE: usize = 8;
/// Pause before a request whose outcome is open is sent again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// How often it is sent again before the caller hears of it.
const ATTEMPTS_MAX: u32 = 5;

/// Told of every byte that is written, so that somebody looks after the quota in time.
pub trait Written: Send + Sync {
    /// So many bytes were written.
    fn wrote(&self, bytes: usize);
    /// etcd refused bytes because its quota is reached.
    fn refused(&self);
}

/// Nobody listens.
impl Written for () {
    fn wrote(&self, _bytes: usize) {}
    fn refused(&self) {}
}

/// Objects in etcd.
#[derive(Clone)]
pub struct EtcdObjects {
    connection: Connection,
    /// Ends with a slash.
    prefix: String,
    written: Arc<dyn Written>,
}

impl EtcdObjects {
    /// The objects below `prefix` (for example `forebay/grid1/names`).
    #[must_use]
    pub fn new(connection: &Connection, prefix: &str, written: Arc<dyn Written>) -> EtcdObjects {
        let prefix = format!("{}/", prefix.trim_end_matches('/'));
        EtcdObjects { connection: connection.clone(), prefix, written }
    }

    fn key(&self, kind: char, rest: &str) -> Vec<u8> {
        format!("{}{kind}/{rest}", self.prefix).into_bytes()
    }

    /// What etcd said, for the caller of an object operation.
    fn failed(&self, error: Error) -> object_store::Error {
        if matches!(error, Error::NoSpace { .. }) {
            self.written.refused();
        }
        generic(error)
    }
}

fn generic(
    source: impl Into<Box<dyn std::error::Error + Send + Sync + 'static>>,
) -> object_store::Error {
    object_store::Error::Generic { store: "etcd", source: source.into() }
}

fn not_found(path: &Path) -> object_store::Error {
    object_store::Error::NotFound {
        path: path.to_string(),
        source: "no such object in etcd".into(),
    }
}

/// Whether the same request may bring more if it is sent again.
fn passing(error: &Error) -> bool {
    match error {
        Error::Unknown { .. } | Error::Unreachable { .. } => true,
        Error::NoSpace { .. } | Error::Compacted { .. } | Error::Refused { .. } => false,
    }
}

#[async_trait]
impl ObjectStore for EtcdObjects {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.put(location, &payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let upload = upload::Upload::begin(self, location, options.attributes).await?;
        Ok(Box::new(upload))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.read(location, options).await
    }

    async fn get_ranges(
        &self,
        location: &Path,
        ranges: &[Range<u64>],
    ) -> Result<Vec<bytes::Bytes>> {
        // Neighbours are one read: a chunk is fetched whole in any case.
        object_store::coalesce_ranges(
            ranges,
            |range| self.get_range(location, range),
            VALUE_BYTES_MAX as u64,
        )
        .await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let objects = self.clone();
        let remove = move |location: Result<Path>| {
            let objects = objects.clone();
            async move {
                let location = location?;
                objects.remove(&location).await?;
                Ok(location)
            }
        };
        locations.map(remove).buffered(DELETIONS_AT_ONCE).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.clone().list_from(prefix, None)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.clone().list_from(prefix, Some(offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.list_level(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let source = self.read(from, GetOptions::default()).await?;
        let attributes = source.attributes.clone();
        let mode = match options.mode {
            CopyMode::Overwrite => PutMode::Overwrite,
            CopyMode::Create => PutMode::Create,
        };
        let payload = source.bytes().await?.into();
        let options = PutOptions { mode, attributes, ..PutOptions::default() };
        self.put(to, &payload, options).await.map(drop)
    }
}

impl fmt::Display for EtcdObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd:{}", self.prefix)
    }
}

impl fmt::Debug for EtcdObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
