//! The way into a database whose objects are in etcd: what its new writer has to write before it may begin is one transaction.
//!
//! The engine claims the manifest, then the log, each with a write that it waits for; before both this program writes down the
//! owner's term. Here the engine's first write, the manifest, is held back until the second one comes, an empty object of the log
//! that keeps former writers out. Both then appear together with the term, if both names are free and no newer term is there.
//! Nobody else sees the database before the engine says that it is open, so a manifest that is held back is nobody's knowledge.
//! If the names are not free, nothing was written, and the database is opened one step after the other.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;

use super::etcd_objects::EtcdObjects;
use super::etcd_objects::together::{SmallObject, Together};

/// The objects of a database, for a writer that comes in.
pub(super) struct Entrance {
    /// All but the first two writes go there.
    objects: Arc<dyn ObjectStore>,
    in_etcd: EtcdObjects,
    manifests: Path,
    log: Path,
    term: Path,
    stage: Mutex<Stage>,
}

/// How far the writer has come.
enum Stage {
    /// It has written nothing.
    Outside,
    /// Its manifest is held back.
    AtTheDoor(SmallObject),
    /// It is the writer.
    Inside,
    /// It is not, and nothing was written.
    Refused { is_late: bool },
}

fn refused(why: &str) -> Error {
    // Nothing that is tried again.
    Error::NotSupported { source: why.into() }
}

impl Entrance {
    /// Leads to `objects`, which are those of `in_etcd`, for the writer of `database` that the object `term` stands for.
    pub fn new(
        objects: Arc<dyn ObjectStore>,
        in_etcd: &EtcdObjects,
        database: &Path,
        term: Path,
    ) -> Entrance {
        Entrance {
            objects,
            in_etcd: in_etcd.clone(),
            manifests: database.clone().join("manifest"),
            log: database.clone().join("wal"),
            term,
            stage: Mutex::new(Stage::Outside),
        }
    }

    /// Whether nothing was written because a name was taken, or a newer term was there.
    pub fn is_refused(&self) -> bool {
        matches!(&*self.stage.lock(), Stage::Refused { .. })
    }

    /// Whether a newer term was there.
    pub fn is_late(&self) -> bool {
        matches!(&*self.stage.lock(), Stage::Refused { is_late: true })
    }

    /// Both writes at once.
    async fn enter(&self, manifest: SmallObject, fence: SmallObject) -> Result<PutResult> {
        let term = SmallObject::new(&self.term, PutPayload::default(), &Default::default())?;
        let entered = self.in_etcd.put_together(&[manifest, fence], &term).await?;
        let (stage, answer) = match entered {
            Together::Done => (Stage::Inside, Ok(done())),
            Together::Taken | Together::Later => (
                Stage::Refused { is_late: entered == Together::Later },
                Err(refused("another writer came in between")),
            ),
        };
        *self.stage.lock() = stage;
        answer
    }
}

/// Nobody looks at the tag of these objects: they are never replaced.
fn done() -> PutResult {
    PutResult { e_tag: None, version: None, extensions: Default::default() }
}

#[async_trait]
impl ObjectStore for Entrance {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let manifest = {
            let mut stage = self.stage.lock();
            let creates =
                |folder: &Path| options.mode == PutMode::Create && location.prefix_matches(folder);
            match std::mem::replace(&mut *stage, Stage::Refused { is_late: false }) {
                Stage::Inside => {
                    *stage = Stage::Inside;
                    None
                }
                Stage::Outside if creates(&self.manifests) => {
                    let manifest = SmallObject::new(location, payload, &options.attributes)?;
                    *stage = Stage::AtTheDoor(manifest);
                    return Ok(done());
                }
                Stage::AtTheDoor(manifest) if creates(&self.log) => Some(manifest),
                Stage::Outside | Stage::AtTheDoor(_) => {
                    return Err(refused("the engine writes something unexpected at its opening"));
                }
                Stage::Refused { is_late } => {
                    *stage = Stage::Refused { is_late };
                    return Err(refused("another writer came in between"));
                }
            }
        };
        match manifest {
            Some(manifest) => {
                let fence = SmallObject::new(location, payload, &options.attributes)?;
                self.enter(manifest, fence).await
            }
            None => self.objects.put_opts(location, payload, options).await,
        }
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.objects.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.objects.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.objects.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}

impl fmt::Display for Entrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.objects, f)
    }
}

impl fmt::Debug for Entrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
