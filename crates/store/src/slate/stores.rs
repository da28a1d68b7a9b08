//! The databases of a cluster.

use std::collections::HashMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_base::{Epoch, FilesetId};
use forebay_etcd::{Client, Runtime};
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};
use parking_lot::Mutex;
use slatedb::admin::AdminBuilder;
use slatedb::config::{DbReaderOptions, ObjectStoreCacheOptions};
use slatedb::{CompactorBuilder, Db, DbReader, DbReaderMode, PathResolver, VersionedManifest};
use tokio::time::timeout;

use super::blocks::Blocks;
use super::compaction::Compaction;
use super::config::SlateConfig;
use super::entrance::Entrance;
use super::errors::{of_objects, plain};
use super::place::{self, Objects};
use super::reader::SlateReader;
use super::settings::{compactor, settings};
use super::store::{Instance, SlateStore, abandon};
use super::term::{self, Claim};
use super::upkeep::{EtcdState, Space, Upkeep};
use crate::{Result, Store, StoreError, Stores};

/// Opening reads the log since the last sorted table, and may meet an object store that is slow.
const OPENING_FACTOR: u32 = 4;
/// Bytes that the cache on disk reads and keeps together.
const CACHE_PART_BYTES: usize = 1 << 20;
/// How often a claim is tried again that an older owner came before.
const CLAIMS_MAX: u32 = 10;

/// The databases of a cluster, one for each fileset. Dropping it ends the looking after etcd, not the stores that are open.
pub struct SlateStores {
    shared: Arc<Shared>,
    upkeep: Option<Upkeep>,
}

/// What the stores have in common.
pub(super) struct Shared {
    pub runtime: Runtime,
    pub timeout: Duration,
    pub space: Arc<Space>,
    place: String,
    objects: Objects,
    /// The objects, through the cache on disk if there is one.
    cached: Cached,
    cache_bytes_max: usize,
    blocks: Arc<Blocks>,
    next_cache_id: AtomicU64,
    /// The writer epochs of databases that are about to be opened here, as they were found beforehand.
    expected: Mutex<HashMap<FilesetId, u64>>,
}

#[allow(deprecated, reason = "what follows it keeps whole databases; this one has a limit")]
type DiskCache = slatedb::cached_object_store::CachedObjectStore;

enum Cached {
    No,
    OnDisk(Arc<DiskCache>),
}

impl SlateStores {
    /// The stores that `config` describes, in `etcd` if that is their place.
    pub(super) fn open(
        config: &SlateConfig,
        runtime: &Runtime,
        etcd: Option<&Client>,
    ) -> Result<Arc<SlateStores>> {
        let space = Arc::new(Space::default());
        let objects = place::open(config, etcd, Arc::clone(&space) as Arc<_>)?;
        let cached = match &config.cache {
            None => Cached::No,
            Some(folder) => {
                Cached::OnDisk(disk_cache(runtime, &objects.store, folder.clone(), config)?)
            }
        };
        let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let upkeep = etcd
            .zip(objects.in_etcd.as_ref())
            .map(|(client, objects)| Upkeep::start(client, objects, config, Arc::clone(&space)));
        let shared = Shared {
            runtime: runtime.clone(),
            timeout: config.timeout(),
            space,
            place: objects.store.to_string(),
            objects,
            cached,
            cache_bytes_max: bytes(config.cache_bytes_max),
            blocks: Arc::new(Blocks::new(bytes(config.memory_bytes_max))),
            next_cache_id: AtomicU64::new(0),
            expected: Mutex::default(),
        };
        Ok(Arc::new(SlateStores { shared: Arc::new(shared), upkeep }))
    }

    /// How etcd is, as of the last round of looking after it; `None` if the stores are elsewhere.
    #[must_use]
    pub fn etcd(&self) -> Option<EtcdState> {
        self.upkeep.as_ref().map(Upkeep::state)
    }
}

#[allow(deprecated, reason = "see `DiskCache`")]
fn disk_cache(
    runtime: &Runtime,
    objects: &Arc<dyn ObjectStore>,
    folder: PathBuf,
    config: &SlateConfig,
) -> Result<Arc<DiskCache>> {
    std::fs::create_dir_all(&folder).map_err(|error| {
        StoreError::Io(format!("cannot create the cache {}: {error}", folder.display()))
    })?;
    let cache = DiskCache::builder(folder, Arc::clone(objects))
        .with_max_cache_size_bytes(usize::try_from(config.cache_bytes_max).ok())
        .with_part_size_bytes(CACHE_PART_BYTES)
        .with_cache_on_flush(true)
        .with_cache_on_compaction(true)
        .build();
    runtime.block_on(cache).map_err(|error| plain("cache", &error))
}

fn database(fileset: FilesetId) -> Path {
    Path::from(format!("{:05}", fileset.0))
}

fn parse_database(path: &Path) -> Option<FilesetId> {
    let fileset = FilesetId(path.filename()?.parse().ok()?);
    (database(fileset) == *path).then_some(fileset)
}

impl Shared {
    pub fn name_of(&self, fileset: FilesetId) -> String {
        format!("{:05} in {}", fileset.0, self.place)
    }

    fn main(&self) -> Arc<dyn ObjectStore> {
        match &self.cached {
            Cached::No => Arc::clone(&self.objects.store),
            Cached::OnDisk(cache) => Arc::clone(cache) as Arc<dyn ObjectStore>,
        }
    }

    fn wait<T>(&self, fileset: FilesetId, work: impl Future<Output = T>) -> Result<T> {
        let patience = self.timeout * OPENING_FACTOR;
        let outcome = self.runtime.block_on(async { timeout(patience, work).await });
        outcome.map_err(|_| {
            let name = self.name_of(fileset);
            StoreError::Io(format!("names {name}: no answer within {patience:?}"))
        })
    }

    /// Opens a database, or makes it; with `epoch` only if no other writer came after that one.
    pub fn build(&self, fileset: FilesetId, epoch: Option<u64>) -> Result<Instance> {
        self.build_over(fileset, epoch, self.main())
    }

    /// As [`Shared::build`], over these objects.
    fn build_over(
        &self,
        fileset: FilesetId,
        epoch: Option<u64>,
        objects: Arc<dyn ObjectStore>,
    ) -> Result<Instance> {
        let cache_id = self.next_cache_id.fetch_add(1, Ordering::Relaxed);
        let mut builder = Db::builder(database(fileset), objects)
            .with_settings(settings(self.objects.conditional_replace))
            .with_db_cache(Arc::clone(&self.blocks) as Arc<_>, cache_id);
        if let Some(epoch) = epoch {
            builder = builder.with_expected_epoch(epoch);
        }
        // It must be built on one of the runtime's threads: its tasks go on there.
        let built = self.runtime.handle().spawn(builder.build());
        let built =
            self.wait(fileset, built)?.map_err(|error| StoreError::Io(error.to_string()))?;
        let db = built.map_err(|error| plain(&self.name_of(fileset), &error))?;
        self.runtime.handle().spawn(self.fill_cache(fileset, &db.manifest()));
        let compaction = self.compact(fileset, &db);
        Ok(Instance { db, compaction })
    }

    fn compact(&self, fileset: FilesetId, db: &Db) -> Compaction {
        let (handle, objects) = (self.runtime.handle().clone(), self.main());
        let make = {
            let handle = handle.clone();
            move || {
                CompactorBuilder::new(database(fileset), Arc::clone(&objects))
                    .with_options(compactor())
                    .with_runtime(handle.clone())
                    .build()
            }
        };
        Compaction::start(&handle, db.clone(), self.name_of(fileset), make)
    }

    /// Brings the database's objects into the cache on disk.
    fn fill_cache(
        &self,
        fileset: FilesetId,
        manifest: &VersionedManifest,
    ) -> impl Future<Output = ()> + Send + use<> {
        let resolver = PathResolver::new(database(fileset), manifest);
        let paths: Vec<Path> =
            manifest.all_sst_views().map(|view| resolver.sst_path(&view.sst.id)).collect();
        let cache = match &self.cached {
            Cached::No => None,
            Cached::OnDisk(cache) => Some(Arc::clone(cache)),
        };
        let (bytes_max, name) = (self.cache_bytes_max, self.name_of(fileset));
        async move {
            let Some(cache) = cache else { return };
            if let Err(error) = cache.load_files_to_cache(paths, bytes_max).await {
                tracing::debug!(name, %error, "the cache on disk could not be filled");
            }
        }
    }

    /// Removes older terms in the background: whoever waits for the store needs nothing of it.
    fn forget_terms(&self, fileset: FilesetId, term: Epoch) {
        let (objects, name) = (Arc::clone(&self.objects.store), self.name_of(fileset));
        self.runtime.handle().spawn(async move {
            if let Err(error) = term::forget_older(&*objects, &database(fileset), term).await {
                // The next owner tries again.
                tracing::debug!(name, %error, "the terms of former owners could not be removed");
            }
        });
    }

    /// Ends an instance in the background, writing nothing more.
    pub fn abandon(&self, instance: Instance) {
        self.runtime.handle().spawn(abandon(instance));
    }

    fn manifest(&self, fileset: FilesetId) -> Result<VersionedManifest> {
        let admin = AdminBuilder::new(database(fileset), Arc::clone(&self.objects.store)).build();
        let name = self.name_of(fileset);
        let found = self.wait(fileset, admin.read_manifest(None))?;
        found.map_err(|error| plain(&name, &error))?.ok_or_else(|| {
            StoreError::Missing(format!(
                "there are no names {name}: they were never created, or are lost"
            ))
        })
    }

    fn objects_of(&self, fileset: FilesetId) -> Result<Vec<ObjectMeta>> {
        let path = database(fileset);
        let listed = self.objects.store.list(Some(&path)).try_collect();
        let listed = self.wait(fileset, listed)?;
        listed.map_err(|error| of_objects(&self.name_of(fileset), &error))
    }

    pub fn size_of(&self, fileset: FilesetId) -> Result<u64> {
        Ok(self.objects_of(fileset)?.iter().map(|object| object.size).sum())
    }
}

impl SlateStores {
    /// As [`Stores::open_for`], and makes the store if there is none. Nothing that is there is removed.
    ///
    /// # Errors
    /// As [`Stores::open_for`].
    pub fn open_or_make_for(&self, fileset: FilesetId, term: Epoch) -> Result<Arc<dyn Store>> {
        self.claim(fileset, term, |found| match found {
            Ok(manifest) => Ok(Some(manifest.writer_epoch())),
            Err(StoreError::Missing(_)) => Ok(None),
            Err(error) => Err(error),
        })
    }

    /// As [`Stores::look`], for someone who keeps reading: what others commit is seen `poll` later at the latest, as long as the
    /// objects can be read. Each read is of one moment, two reads need not be of the same.
    ///
    /// # Errors
    /// As [`Stores::look`].
    pub fn follow(&self, fileset: FilesetId, poll: Duration) -> Result<Arc<dyn Store>> {
        let shared = &self.shared;
        shared.manifest(fileset)?;
        let options = DbReaderOptions {
            manifest_poll_interval: poll,
            object_store_cache_options: ObjectStoreCacheOptions::default(),
            ..DbReaderOptions::default()
        };
        let cache_id = shared.next_cache_id.fetch_add(1, Ordering::Relaxed);
        let builder = DbReader::builder(database(fileset), shared.main())
            .with_reader_mode(DbReaderMode::FollowLatest)
            .with_options(options)
            .with_db_cache(Arc::clone(&shared.blocks) as Arc<_>, cache_id);
        let opened = shared.runtime.handle().spawn(builder.build());
        let opened =
            shared.wait(fileset, opened)?.map_err(|error| StoreError::Io(error.to_string()))?;
        let reader = opened.map_err(|error| plain(&shared.name_of(fileset), &error))?;
        Ok(Arc::new(SlateReader::new(shared, fileset, reader)))
    }

    /// Claims a database for the owner of `term`, and opens it as the writer after the one whose epoch `found` makes of its
    /// manifest.
    fn claim(
        &self,
        fileset: FilesetId,
        term: Epoch,
        found: impl Fn(Result<VersionedManifest>) -> Result<Option<u64>>,
    ) -> Result<Arc<dyn Store>> {
        if let Some(store) = self.enter(fileset, term, &found)? {
            return Ok(store);
        }
        let shared = &self.shared;
        for _ in 0..CLAIMS_MAX {
            let epoch = found(shared.manifest(fileset))?;
            let path = database(fileset);
            let claimed = shared.wait(fileset, term::claim(&*shared.objects.store, &path, term))?;
            let claimed = claimed.map_err(|error| of_objects(&shared.name_of(fileset), &error))?;
            if claimed == Claim::Late {
                return Err(StoreError::Conflict);
            }
            match shared.build(fileset, epoch) {
                Ok(instance) => {
                    shared.forget_terms(fileset, term);
                    return Ok(self.store(fileset, instance));
                }
                // Somebody was quicker: an older owner, or a newer one, whose term is found then.
                Err(StoreError::Conflict) => {}
                Err(error) => return Err(error),
            }
        }
        Err(StoreError::InUse(format!(
            "names {}: another owner keeps opening them",
            shared.name_of(fileset)
        )))
    }

    /// As [`SlateStores::claim`], in one transaction with the engine's own first writes, where the objects are in etcd. `None` if that
    /// cannot be done, or somebody came in between: then nothing was changed.
    fn enter(
        &self,
        fileset: FilesetId,
        term: Epoch,
        found: impl Fn(Result<VersionedManifest>) -> Result<Option<u64>>,
    ) -> Result<Option<Arc<dyn Store>>> {
        let shared = &self.shared;
        if shared.objects.in_etcd.is_none() {
            return Ok(None);
        }
        let expected = shared.expected.lock().remove(&fileset);
        match expected.map_or_else(|| found(shared.manifest(fileset)), |epoch| Ok(Some(epoch)))? {
            Some(epoch) => self.enter_after(fileset, term, epoch),
            None => Ok(None),
        }
    }

    /// As [`SlateStores::enter`], as the writer after the one of `epoch`: which was seen before the term is looked at, as `term`
    /// demands.
    fn enter_after(
        &self,
        fileset: FilesetId,
        term: Epoch,
        epoch: u64,
    ) -> Result<Option<Arc<dyn Store>>> {
        let shared = &self.shared;
        let Some(in_etcd) = &shared.objects.in_etcd else { return Ok(None) };
        let path = database(fileset);
        let written = term::path(&path, term);
        let entrance = Arc::new(Entrance::new(shared.main(), in_etcd, &path, written));
        match shared.build_over(fileset, Some(epoch), Arc::clone(&entrance) as Arc<_>) {
            Ok(instance) => {
                shared.forget_terms(fileset, term);
                Ok(Some(self.store(fileset, instance)))
            }
            Err(_) if entrance.is_late() => Err(StoreError::Conflict),
            Err(StoreError::Conflict) => Ok(None),
            Err(_) if entrance.is_refused() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn store(&self, fileset: FilesetId, instance: Instance) -> Arc<dyn Store> {
        Arc::new(SlateStore::new(&self.shared, fileset, instance))
    }
}

impl Stores for SlateStores {
    fn create(&self, fileset: FilesetId) -> Result<Arc<dyn Store>> {
        self.remove(fileset)?;
        Ok(self.store(fileset, self.shared.build(fileset, None)?))
    }

    fn open(&self, fileset: FilesetId) -> Result<Arc<dyn Store>> {
        self.shared.manifest(fileset)?;
        Ok(self.store(fileset, self.shared.build(fileset, None)?))
    }

    fn open_for(&self, fileset: FilesetId, term: Epoch) -> Result<Arc<dyn Store>> {
        self.claim(fileset, term, |found| Ok(Some(found?.writer_epoch())))
    }

    fn expect(&self, fileset: FilesetId) -> Result<()> {
        let shared = &self.shared;
        let manifest = shared.manifest(fileset)?;
        shared.expected.lock().insert(fileset, manifest.writer_epoch());
        shared.wait(fileset, shared.fill_cache(fileset, &manifest))
    }

    fn open_ahead(&self, fileset: FilesetId, term: Epoch) -> Result<Option<Arc<dyn Store>>> {
        // Never after another writer than the one that was there at that time: a term that another node has by now would not
        // keep this one out.
        let expected = self.shared.expected.lock().remove(&fileset);
        expected.map_or(Ok(None), |epoch| self.enter_after(fileset, term, epoch))
    }

    fn look(&self, fileset: FilesetId) -> Result<Arc<dyn Store>> {
        self.follow(fileset, DbReaderOptions::default().manifest_poll_interval)
    }

    fn remove(&self, fileset: FilesetId) -> Result<()> {
        let shared = &self.shared;
        let mut objects = shared.objects_of(fileset)?;
        // Without a manifest it cannot be opened any more, whatever of it is left by a crash.
        let manifests = database(fileset).join("manifest");
        objects.sort_by_key(|object| !object.location.prefix_matches(&manifests));
        let paths = objects.into_iter().map(|object| Ok(object.location));
        let paths = futures::stream::iter(paths.collect::<Vec<_>>()).boxed();
        let removed = shared.objects.store.delete_stream(paths).try_for_each(|_| async { Ok(()) });
        let removed = shared.wait(fileset, removed)?;
        removed.map_err(|error| of_objects(&shared.name_of(fileset), &error))
    }

    fn size_of(&self, fileset: FilesetId) -> Result<u64> {
        self.shared.manifest(fileset)?;
        self.shared.size_of(fileset)
    }

    fn list(&self) -> Result<Vec<FilesetId>> {
        let shared = &self.shared;
        let listed =
            shared.wait(FilesetId::ROOT, shared.objects.store.list_with_delimiter(None))?;
        let listed = listed.map_err(|error| of_objects(&shared.place, &error))?;
        let mut found: Vec<FilesetId> =
            listed.common_prefixes.iter().filter_map(parse_database).collect();
        found.sort_unstable();
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_databases_read_back_and_others_are_passed_over() {
        for fileset in [0, 7, 65_535].map(FilesetId) {
            assert_eq!(parse_database(&database(fileset)), Some(fileset));
        }
        for path in ["7", "65536", "00007/wal", "x", ""] {
            assert_eq!(parse_database(&Path::from(path)), None, "{path}");
        }
    }
}
