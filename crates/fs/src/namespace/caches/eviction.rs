//! Giving back the bytes of a cache that can be fetched again: those that were fetched longest ago first.

use std::sync::atomic::Ordering;

use forebay_base::{DiskId, FilesetId};
use serde::{Deserialize, Serialize};

use super::{Namespace, PIECE};
use crate::caching::home::Entry;
use crate::caching::visits::Cache;
use crate::error::{FsError, Result};
use crate::namespace::catalogue::Fileset;
use crate::partition::Partition;
use crate::partition::caching::Fetched;
use crate::record::Placement;

/// Of what a cache holds, this part is given back when there is no room for a file, besides the size of the file.
const ROOM_PART: u64 = 16;

/// Files whose bytes were fetched, those first that were fetched longest ago.
fn evictable(partition: &Partition) -> Result<Vec<Fetched>> {
    // What was fetched lately is found among what is committed.
    partition.commit()?;
    let mut fetched = partition.fetched()?;
    fetched.sort_unstable();
    Ok(fetched)
}

/// What was given back of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evicted {
    /// Files whose bytes were given back.
    pub files: u64,
    /// Bytes that they took here.
    pub bytes: u64,
    /// Files that somebody has open.
    pub in_use: u64,
}

impl Namespace {
    /// Gives back the bytes of files of a cache that nobody has open, those that were fetched longest ago first, until no more than
    /// `keep_bytes` are taken. They are fetched again when somebody opens them.
    ///
    /// # Errors
    /// [`FsError::Refused`] if the fileset is not a cache; what the store says.
    pub fn evict_cache(&self, name: &str, keep_bytes: u64) -> Result<Evicted> {
        self.alone("`forebay fileset evict`")?;
        let fileset = self.fileset_named(name)?;
        let partition = self.open_fileset(fileset.id)?;
        let Some(cache) = self.cache_of(fileset.id) else {
            return Err(FsError::Refused(format!(
                "fileset \"{name}\" is not a cache: its files have no other place; `forebay migrate` moves files into an archive"
            )));
        };
        self.evict_until(&cache, &partition, &evictable(&partition)?, |taken| taken > keep_bytes)
    }

    /// Makes room for a file at home, on one disk. Which one; nothing is given back where even all that was fetched to a disk would not
    /// be enough, nor on a disk that has room and was not `tried`.
    pub(super) fn make_room(
        &self,
        cache: &Cache,
        partition: &Partition,
        entry: &Entry,
        tried: Option<DiskId>,
    ) -> Result<Option<DiskId>> {
        let mut fetched = evictable(partition)?;
        fetched.retain(|file| {
            !self.is_open(file.ino) && partition.home_path(file.ino).is_ok_and(|it| it.is_some())
        });
        let bytes = entry.stored_bytes;
        let Some((disk, free)) = partition.disk_that_could_hold(bytes, &fetched) else {
            return Ok(None);
        };
        if free >= bytes && tried != Some(disk) {
            return Ok(Some(disk));
        }
        fetched.retain(|file| file.disk == disk);
        let mut enough = None;
        let evicted = self.evict_until(cache, partition, &fetched, |taken| {
            let room = entry.size.saturating_add(taken / ROOM_PART);
            taken > *enough.get_or_insert(taken.saturating_sub(room))
        })?;
        if evicted.files > 0 {
            let (home, files, bytes) = (&cache.settings.home, evicted.files, evicted.bytes);
            tracing::info!(home, files, bytes, "a cache has made room for a file");
        }
        Ok(Some(disk))
    }

    /// Gives back bytes of fetched files in turn while there is too much of what they take.
    fn evict_until(
        &self,
        cache: &Cache,
        partition: &Partition,
        fetched: &[Fetched],
        mut is_too_much: impl FnMut(u64) -> bool,
    ) -> Result<Evicted> {
        let mut taken: u64 = fetched.iter().map(|file| file.bytes).sum();
        let mut evicted = Evicted::default();
        for piece in fetched.chunks(PIECE) {
            let _one_at_a_time = cache.applying.lock();
            for Fetched { ino, .. } in piece {
                if !is_too_much(taken) {
                    break;
                }
                match partition.evict_to_home(*ino) {
                    Ok(Some(bytes)) => {
                        taken = taken.saturating_sub(bytes);
                        evicted.files += 1;
                        evicted.bytes += bytes;
                    }
                    Ok(None) => evicted.in_use += u64::from(self.is_open(*ino)),
                    // It is gone meanwhile.
                    Err(FsError::Stale) => {}
                    Err(error) => return Err(error),
                }
            }
            self.after_request();
        }
        // What was given back is free when this returns.
        partition.commit()?;
        self.shared.objects.finish_reclaim();
        Ok(evicted)
    }

    /// Has a cache that is about to be removed hold nothing, unless something else would keep it from being removed.
    pub(in crate::namespace) fn empty_cache(&self, fileset: &Fileset, name: &str) -> Result<()> {
        if self.cluster.is_some() || fileset.settings().placement == Placement::Native {
            return Ok(());
        }
        let partition = self.open_fileset(fileset.id)?;
        let Some(cache) = self.cache_of(fileset.id) else { return Ok(()) };
        let refused = |why: String| Err(FsError::Refused(format!("fileset \"{name}\" {why}")));
        if partition.has_open_files() {
            return refused("has open files: close them first".to_owned());
        }
        partition.sweep()?;
        if !partition.is_swept() {
            return refused(
                "may have objects on a missing disk: bring the disk back first".to_owned(),
            );
        }
        let Some(write_back) = partition.write_back() else {
            return self.drop_what_follows(&cache, &partition, name);
        };
        // Nothing is changed from now on.
        write_back.is_ending.store(true, Ordering::Release);
        let waiting = write_back.queue.lock().len();
        let emptied = match waiting {
            0 => self.drop_what_follows(&cache, &partition, name),
            waiting => refused(format!(
                "has {waiting} changes that its home does not have yet: `forebay fileset flush` waits until all are written back"
            )),
        };
        if emptied.is_err() {
            write_back.is_ending.store(false, Ordering::Release);
        }
        emptied
    }

    /// A single-writer cache that was to be removed stays: it can be changed again.
    pub(in crate::namespace) fn keep_cache(&self, id: FilesetId) {
        let write_back = self.cache_of(id).and_then(|cache| cache.write_back.load_full());
        write_back.iter().for_each(|it| it.is_ending.store(false, Ordering::Release));
    }

    /// Drops all that a cache has of its home, unless it has more than that.
    fn drop_what_follows(&self, cache: &Cache, partition: &Partition, name: &str) -> Result<()> {
        let refused = |why: String| Err(FsError::Refused(format!("fileset \"{name}\" {why}")));
        let _one_at_a_time = cache.applying.lock();
        partition.commit()?;
        let own = partition.own_inodes()?;
        if own > 0 {
            return refused(format!(
                "holds {own} files and directories that were made or changed here: remove them first"
            ));
        }
        let top = partition.top();
        if let Some(home) = partition.home_path(top)? {
            partition.set_listed(top, &home, false)?;
        }
        cache.forget_fresh();
        for (name, ino) in partition.listed_names(top)? {
            partition.drop_as_at_home(top, &name, ino)?;
            self.after_request();
        }
        Ok(())
    }
}
