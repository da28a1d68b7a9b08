//! Which filesets are caches.
//!
//! The settings of a cache lie in its store, so it is known for certain once the fileset is opened or looked at. The root directory
//! notes their numbers besides: whether requests may have to wait for a home is to be known before any fileset is opened.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::ArcSwap;
use forebay_base::{FilesetId, Ino};
use parking_lot::Mutex;

use super::Namespace;
use crate::caching::visits::Cache;
use crate::caching::{self, CacheSettings, CacheStatus};
use crate::error::Result;
use crate::key;
use crate::namespace::catalogue::Fileset;
use crate::ops::{SetMode, SetXattr};
use crate::partition::Partition;
use crate::record::Placement;

/// Caches by the number of their fileset; none for a fileset that is not one.
type Table = Vec<Option<Arc<Cache>>>;

/// The caches that are known. The table is replaced as a whole, as that of the owners: every request looks into it, and takes no
/// lock for that.
#[derive(Default)]
pub(in crate::namespace) struct Caches {
    /// There may be some.
    any: AtomicBool,
    known: ArcSwap<Table>,
    /// Filesets of which it is known whether they are caches.
    looked: Mutex<HashSet<FilesetId>>,
    /// For the threads.
    pub(super) namespace: OnceLock<Weak<Namespace>>,
}

impl Caches {
    /// What `look` says of the cache that a fileset is.
    fn with<T>(&self, fileset: FilesetId, look: impl FnOnce(Option<&Arc<Cache>>) -> T) -> T {
        if !self.any.load(Ordering::Acquire) {
            return look(None);
        }
        let known = self.known.load();
        look(known.get(usize::from(fileset.0)).and_then(Option::as_ref))
    }

    /// All that are known.
    pub(super) fn all(&self) -> Vec<Arc<Cache>> {
        self.known.load().iter().flatten().cloned().collect()
    }

    /// Has a fileset be a cache from now on, unless it is one, or no cache.
    fn set(&self, fileset: FilesetId, cache: Option<&Arc<Cache>>) {
        let place = usize::from(fileset.0);
        self.known.rcu(|known| {
            let mut known = Table::clone(known);
            if known.len() <= place {
                known.resize(place + 1, None);
            }
            known[place] = cache.map(|cache| Arc::clone(known[place].as_ref().unwrap_or(cache)));
            known
        });
    }
}

impl Namespace {
    /// Whether any fileset may be a cache.
    #[must_use]
    pub fn has_caches(&self) -> bool {
        self.caches.any.load(Ordering::Acquire)
    }

    /// The cache that a fileset is.
    pub(in crate::namespace) fn cache_of(&self, fileset: FilesetId) -> Option<Arc<Cache>> {
        self.caches.with(fileset, |cache| cache.cloned())
    }

    /// Whether a fileset is a cache.
    pub(in crate::namespace) fn is_cache(&self, fileset: FilesetId) -> bool {
        self.caches.with(fileset, |cache| cache.is_some())
    }

    /// The file system is opened: some filesets may be caches.
    ///
    /// # Errors
    /// What the store says.
    pub(in crate::namespace) fn expect_caches(&self, root: &Partition) -> Result<()> {
        self.caches.any.store(!noted(root)?.is_empty(), Ordering::Release);
        Ok(())
    }

    /// Has the root directory say that a fileset that is about to be made is a cache.
    ///
    /// # Errors
    /// What the store says.
    pub(in crate::namespace) fn note_in_root(&self, id: FilesetId) -> Result<()> {
        let root = self.root()?;
        let mut caches = noted(&root)?;
        caches.insert(id.0);
        note(&root, &caches)
    }

    /// A fileset that is opened may be a cache.
    pub(in crate::namespace) fn learn_cache(&self, partition: &Partition) -> Result<()> {
        if self.cluster.is_none() && partition.number() != FilesetId::ROOT {
            self.note_cache(partition.number(), partition.cache_settings()?)?;
            if let Some(cache) = self.cache_of(partition.number()) {
                partition.note_cache();
                if cache.writes_back() {
                    let settings = cache.settings.write_back.unwrap_or_default();
                    let write_back = partition.start_write_back(settings.changes_max)?;
                    cache.write_back.store(Some(write_back));
                    if let Some(fileset) = self.catalogue.get(partition.number()) {
                        self.begin_write_back(&fileset.settings().name);
                    }
                }
            }
        }
        Ok(())
    }

    fn note_cache(&self, id: FilesetId, settings: Option<Vec<u8>>) -> Result<()> {
        if let Some(settings) = settings {
            let settings = CacheSettings::parse(&settings)?;
            self.caches.set(id, Some(&Arc::new(Cache::new(settings))));
            self.caches.any.store(true, Ordering::Release);
        }
        self.caches.looked.lock().insert(id);
        Ok(())
    }

    /// A fileset is gone.
    pub(in crate::namespace) fn forget_cache(&self, id: FilesetId) {
        self.caches.looked.lock().remove(&id);
        if let Some(cache) = self.cache_of(id) {
            self.caches.set(id, None);
            cache.stop();
        }
        if let Err(error) = self.strike_in_root(id) {
            tracing::warn!(fileset = %id, %error, "the root directory still names a fileset that is gone as a cache, which does no harm");
        }
    }

    fn strike_in_root(&self, id: FilesetId) -> Result<()> {
        let root = self.root()?;
        let mut caches = noted(&root)?;
        if caches.remove(&id.0) { note(&root, &caches) } else { Ok(()) }
    }

    /// What people are told of a fileset that is a cache; it is not opened for that.
    pub(in crate::namespace) fn cache_status(&self, fileset: &Fileset) -> Option<CacheStatus> {
        let is_native = fileset.settings().placement == Placement::Native;
        if self.cluster.is_some() || is_native || fileset.id == FilesetId::ROOT {
            return None;
        }
        if !self.caches.looked.lock().contains(&fileset.id) {
            // Whoever opens it meanwhile would find the store in use.
            let _not_opened = fileset.opening.lock();
            if self.shared.owners.find(fileset.id).is_none() {
                let store = self.stores.look(fileset.id).ok()?;
                let key = key::xattr(Ino::top_of(fileset.id), caching::SETTINGS);
                self.note_cache(fileset.id, store.get(&key).ok()?).ok()?;
            }
        }
        let cache = self.cache_of(fileset.id)?;
        let write_back = cache.write_back_status(self.shared.clock.now());
        Some(CacheStatus { write_back, ..cache.status() })
    }
}

/// The numbers of filesets that are caches, as the root directory notes them. One too many does no harm.
fn noted(root: &Partition) -> Result<BTreeSet<u16>> {
    let value = root.read_key(&key::xattr(Ino::ROOT, caching::CACHES))?.unwrap_or_default();
    let text = String::from_utf8_lossy(&value);
    Ok(text.split_whitespace().filter_map(|number| number.parse().ok()).collect())
}

fn note(root: &Partition, caches: &BTreeSet<u16>) -> Result<()> {
    if caches.is_empty() {
        return root.remove_xattr(Ino::ROOT, caching::CACHES);
    }
    let numbers: Vec<String> = caches.iter().map(u16::to_string).collect();
    let (name, value) = (caching::CACHES, numbers.join(" "));
    let mode = SetMode::Any;
    root.set_xattr(Ino::ROOT, SetXattr { name, value: value.as_bytes(), mode, kill_set_gid: false })
}
