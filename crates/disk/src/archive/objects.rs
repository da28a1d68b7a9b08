//! An archive in an object store: an S3-compatible service.
//!
//! A large object comes in parts. The number of such an upload is kept as an object of its own (`uploads/`) until it is complete, so
//! that [`Bucket::clear_uploads`] can give up the parts of one that was interrupted. One that was interrupted before its number
//! was written is left to the rules of the bucket (`AbortIncompleteMultipartUpload`).

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_etcd::Runtime;
use futures::StreamExt as _;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, MultipartId, ObjectStore, ObjectStoreExt as _};

use super::bucket::{Bucket, BucketError, Part, Result, Tail};

/// Longest time for a request that moves few bytes, with all its repetitions.
const SHORT: Duration = Duration::from_secs(20);
/// The same for one that moves a part of an object.
const LONG: Duration = Duration::from_secs(180);
/// Bytes of a request that count as few.
const SMALL: u64 = 1 << 20;
/// What the names of uploads begin with that are under way.
const UPLOADS: &str = "uploads/";

/// A place in an object store.
pub struct ObjectBucket<S>(Arc<Inner<S>>);

struct Inner<S> {
    store: S,
    /// What is put before all names; empty, or with a slash at its end.
    prefix: String,
    runtime: Runtime,
}

impl<S: ObjectStore + MultipartStore> ObjectBucket<S> {
    /// What lies below `prefix` in a store. The threads of `runtime` do the work; callers block.
    #[must_use]
    pub fn new(store: S, prefix: &str, runtime: Runtime) -> ObjectBucket<S> {
        let prefix = match prefix.trim_matches('/') {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        };
        ObjectBucket(Arc::new(Inner { store, prefix, runtime }))
    }
}

/// What an error of the store means.
fn meaning(error: &Error) -> BucketError {
    match error {
        Error::NotFound { .. } => BucketError::NotFound,
        Error::NotSupported { .. } | Error::NotImplemented { .. } | Error::InvalidPath { .. } => {
            BucketError::Refused(error.to_string())
        }
        // Whatever it is, somebody can put it right: credentials, a bucket that is missing, a server that is down.
        _ => BucketError::Away(brief(error)),
    }
}

/// The innermost reasons, in one line.
fn brief(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        let more = inner.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = inner.source();
    }
    text.replace('\n', " ").chars().take(600).collect()
}

impl<S: ObjectStore + MultipartStore> Inner<S> {
    fn path(&self, name: &str) -> Path {
        Path::from(format!("{}{name}", self.prefix))
    }

    fn run<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T> {
        let done = self.runtime.block_on(async { tokio::time::timeout(limit, work).await });
        match done {
            Ok(done) => done.map_err(|error| meaning(&error)),
            Err(_) => Err(BucketError::Away(format!("it has not answered for {limit:?}"))),
        }
    }

    fn get(&self, name: &str, range: Option<GetRange>) -> Result<(Bytes, u64)> {
        let path = self.path(name);
        let is_large =
            matches!(&range, Some(GetRange::Bounded(range)) if range.end - range.start > SMALL);
        let options = GetOptions { range, ..GetOptions::default() };
        self.run(if is_large { LONG } else { SHORT }, async {
            let found = self.store.get_opts(&path, options).await?;
            let size = found.meta.size;
            Ok((found.bytes().await?, size))
        })
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path(name);
        let limit = if bytes.len() as u64 > SMALL { LONG } else { SHORT };
        let bytes = Bytes::copy_from_slice(bytes);
        self.run(limit, async { self.store.put(&path, bytes.into()).await.map(drop) })
    }

    fn remove(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        match self.run(SHORT, async { self.store.delete(&path).await }) {
            Err(BucketError::NotFound) => Ok(()),
            removed => removed,
        }
    }
}

/// The object that stands for an upload of `name`.
fn upload_of(name: &str) -> String {
    format!("{UPLOADS}{}", name.replace('/', "+"))
}

impl<S: ObjectStore + MultipartStore> Bucket for ObjectBucket<S> {
    fn kind(&self) -> &'static str {
        "s3"
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.0.put(name, bytes)
    }

    fn begin(&self, name: &str) -> Result<Box<dyn Part>> {
        let inner = Arc::clone(&self.0);
        let path = inner.path(name);
        let id = inner.run(SHORT, async { inner.store.create_multipart(&path).await })?;
        let part =
            ObjectPart { inner, name: name.to_owned(), path, id, parts: Vec::new(), done: false };
        // To drop it gives the upload up.
        part.inner.put(&upload_of(name), part.id.as_bytes())?;
        Ok(Box::new(part))
    }

    fn get(&self, name: &str, range: Option<Range<u64>>) -> Result<Vec<u8>> {
        let (bytes, _) = self.0.get(name, range.map(GetRange::Bounded))?;
        Ok(bytes.to_vec())
    }

    fn tail(&self, name: &str, length: u64) -> Result<Tail> {
        let (bytes, size) = self.0.get(name, Some(GetRange::Suffix(length)))?;
        Ok(Tail { bytes: bytes.to_vec(), size })
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.0.remove(name)
    }

    fn list(&self, prefix: &str, visit: &mut dyn FnMut(&str, u64) -> bool) -> Result<()> {
        let inner = &self.0;
        let below = inner.path(prefix.trim_end_matches('/'));
        let below = (!below.as_ref().is_empty()).then_some(below);
        let mut listing = inner.store.list(below.as_ref());
        loop {
            let next = inner.run(LONG, async { listing.next().await.transpose() });
            match next {
                Err(BucketError::NotFound) => return Ok(()),
                next => {
                    let Some(found) = next? else { return Ok(()) };
                    let name = found.location.as_ref().strip_prefix(&inner.prefix).unwrap_or("");
                    if name.starts_with(prefix) && !visit(name, found.size) {
                        return Ok(());
                    }
                }
            }
        }
    }

    fn clear_uploads(&self) -> Result<()> {
        let mut names = Vec::new();
        self.list(UPLOADS, &mut |name, _| {
            names.push(name.to_owned());
            true
        })?;
        for marker in names {
            let id: MultipartId = String::from_utf8_lossy(&self.get(&marker, None)?).into_owned();
            let name = marker.strip_prefix(UPLOADS).unwrap_or_default().replace('+', "/");
            let path = self.0.path(&name);
            // One that is over by now is not known any more.
            let aborted =
                self.0.run(SHORT, async { self.0.store.abort_multipart(&path, &id).await });
            if let Err(error @ BucketError::Away(_)) = aborted {
                // Some stores say so in a way of their own; an upload that is gone need not be given up.
                tracing::info!(name, %error, "an interrupted upload was not given up");
            }
            self.remove(&marker)?;
        }
        Ok(())
    }
}

/// A large object that is being put.
struct ObjectPart<S: ObjectStore + MultipartStore> {
    inner: Arc<Inner<S>>,
    name: String,
    path: Path,
    id: MultipartId,
    parts: Vec<PartId>,
    done: bool,
}

impl<S: ObjectStore + MultipartStore> Part for ObjectPart<S> {
    fn put(&mut self, bytes: Vec<u8>) -> Result<()> {
        let number = self.parts.len();
        let put = self.inner.store.put_part(&self.path, &self.id, number, bytes.into());
        let part = self.inner.run(LONG, put)?;
        self.parts.push(part);
        Ok(())
    }

    fn complete(mut self: Box<Self>) -> Result<()> {
        let parts = std::mem::take(&mut self.parts);
        let done = self.inner.store.complete_multipart(&self.path, &self.id, parts);
        self.inner.run(LONG, done)?;
        self.done = true;
        // One that stays is for nothing, and goes with the next opening.
        let _ = self.inner.remove(&upload_of(&self.name));
        Ok(())
    }
}

impl<S: ObjectStore + MultipartStore> Drop for ObjectPart<S> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let given_up = self.inner.store.abort_multipart(&self.path, &self.id);
        // The number stays where the store does not answer: the next opening tries again.
        if self.inner.run(SHORT, given_up).is_ok() {
            let _ = self.inner.remove(&upload_of(&self.name));
        }
    }
}
