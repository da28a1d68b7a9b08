//! Clones: filesets that begin as a snapshot.
//!
//! A clone is made as any fileset is (see `namespace/filesets.rs`): it is noted, its store is written, and it gets its name. Others make and
//! change filesets meanwhile: only the first and the last step have them wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_base::FilesetId;
use forebay_store::Store;

use crate::error::{FsError, Result};
use crate::namespace::Namespace;
use crate::namespace::lost::remove_objects;
use crate::ops::check_fileset_name;
use crate::partition::snapshots::cloning::{NewClone, Pinned, Written};
use crate::quota::{LimitChange, QuotaChange};
use crate::record::{FilesetRecord, FilesetSettings, Stage};
use crate::snapshot::{CloneBytes, CloneStatus};

/// Numbers of objects that a clone takes, at most, for each inode: attempts that come to nothing take some, too.
const NUMBERS_PER_INODE: u64 = 8;

/// Clones that are being made.
#[derive(Default)]
pub(in crate::namespace) struct Clones(AtomicUsize);

impl Clones {
    fn begin(&self) -> CloneBegun<'_> {
        self.0.fetch_add(1, Ordering::SeqCst);
        CloneBegun(self)
    }

    /// Whether a fileset that no list has yet may have objects on any disk.
    pub fn are_being_made(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }
}

struct CloneBegun<'a>(&'a Clones);

impl Drop for CloneBegun<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A clone that is noted, and has an empty store.
struct Noted {
    id: FilesetId,
    making: FilesetRecord,
    /// The least numbers that it may use.
    first: (u64, u64),
    store: Arc<dyn Store>,
}

impl Namespace {
    /// Makes a fileset that begins as a snapshot of another one.
    ///
    /// # Errors
    /// As [`Namespace::create_snapshot`]; [`FsError::Refused`] if there is no such snapshot, the name is taken or is none, or bytes
    /// would have to be copied and are not to be; [`FsError::NoSpace`]. Nothing is left of it then.
    pub fn clone_snapshot(
        &self,
        (fileset, snapshot): (&str, &str),
        name: &str,
        bytes: CloneBytes,
    ) -> Result<CloneStatus> {
        let partition = self.partition_with_snapshots(fileset)?;
        check_fileset_name(name)?;
        let pinned = partition.pin_snapshot(snapshot)?;
        let _begun = self.views.clones.begin();
        let settings = self.fileset_named(fileset)?.settings();
        let settings = FilesetSettings { name: name.to_owned(), ..settings };
        let Noted { id, making, first, store } = self.begin_clone(settings, &pinned)?;
        let new =
            NewClone { snapshot: &pinned, id, settings: making.settings.clone(), first, bytes };
        let written = partition.write_clone(&new, &*store);
        let closed = store.close().map_err(FsError::from);
        let named = written.and_then(|written| {
            closed?;
            self.name_clone(id, &making)?;
            Ok(written)
        });
        let Written { usage, copied } = named.inspect_err(|_| self.unmake_clone(id, &making))?;
        self.commit_change()?;
        self.shared.fail_points.reach("clone.made")?;
        tracing::info!(fileset, snapshot, clone = name, copied, "a snapshot was cloned");
        let (inodes, bytes) = (usage.inodes, usage.bytes);
        Ok(CloneStatus { fileset: name.to_owned(), inodes, bytes, copied })
    }

    /// Takes a whole fileset back to a snapshot at one moment: a clone of the snapshot gets its name, and the fileset as it was is called
    /// `aside` from then on, with its snapshots. Programs that use files of it keep them. The clone gets the quotas of the fileset.
    ///
    /// # Errors
    /// As [`Namespace::clone_snapshot`]; [`FsError::Refused`] for the root fileset.
    pub fn restore_fileset(
        &self,
        (name, snapshot): (&str, &str),
        aside: &str,
        bytes: CloneBytes,
    ) -> Result<CloneStatus> {
        if self.fileset_named(name)?.id == FilesetId::ROOT {
            return Err(FsError::Refused(
                "the root fileset cannot be replaced as a whole: restore its files and directories by name".to_owned(),
            ));
        }
        let made = self.clone_snapshot((name, snapshot), aside, bytes)?;
        self.take_quotas_along(name, aside)?;
        self.shared.fail_points.reach("restore.cloned")?;
        self.exchange_names(name, aside)?;
        self.shared.fail_points.reach("restore.exchanged")?;
        tracing::info!(fileset = name, snapshot, aside, "a fileset was taken back to a snapshot");
        Ok(CloneStatus { fileset: name.to_owned(), ..made })
    }

    fn take_quotas_along(&self, from: &str, to: &str) -> Result<()> {
        let set = |limit: Option<u64>| limit.map_or(LimitChange::Clear, LimitChange::To);
        for status in self.quotas(Some(from))? {
            let quota = status.quota;
            if status.by_default || quota.is_empty() {
                continue;
            }
            let change = QuotaChange {
                soft_bytes: set(quota.bytes.soft),
                hard_bytes: set(quota.bytes.hard),
                soft_inodes: set(quota.inodes.soft),
                hard_inodes: set(quota.inodes.hard),
                grace_seconds: Some(quota.grace_seconds),
            };
            self.set_quota(to, status.subject, &change)?;
        }
        Ok(())
    }

    /// Has two filesets exchange their names, at one moment.
    fn exchange_names(&self, first: &str, second: &str) -> Result<()> {
        let _one_at_a_time = self.fileset_changes.lock();
        let (one, other) = (self.fileset_named(first)?, self.fileset_named(second)?);
        let renamed = |settings: FilesetSettings, name: &str| FilesetRecord {
            settings: FilesetSettings { name: name.to_owned(), ..settings },
            stage: Stage::Made,
            first_ino: 0,
            first_object: 0,
        };
        let records = [renamed(one.settings(), second), renamed(other.settings(), first)];
        self.root()?.exchange_filesets((one.id, &records[0]), (other.id, &records[1]))?;
        let [of_one, of_other] = records;
        one.set_settings(of_one.settings);
        other.set_settings(of_other.settings);
        self.commit_change()
    }

    /// Notes that a clone is being made, and makes its store: from then on nobody else gets its number.
    fn begin_clone(&self, settings: FilesetSettings, pinned: &Pinned<'_>) -> Result<Noted> {
        let _one_at_a_time = self.fileset_changes.lock();
        let root = self.root()?;
        self.check_free_name(&root, &settings.name)?;
        let (id, first) = self.free_number()?;
        // What it may have used by the time a crash comes.
        let objects =
            pinned.record.usage.inodes.saturating_add(1).saturating_mul(NUMBERS_PER_INODE);
        let first_object = first.1.saturating_add(objects);
        let making =
            FilesetRecord { settings, stage: Stage::Making, first_ino: first.0, first_object };
        root.put_fileset(id, &making);
        let noted = root.commit().and_then(|()| {
            self.shared.fail_points.reach("clone.noted")?;
            Ok(self.stores.create(id)?)
        });
        let store = noted.inspect_err(|_| self.unmake_clone(id, &making))?;
        Ok(Noted { id, making, first, store })
    }

    fn name_clone(&self, id: FilesetId, making: &FilesetRecord) -> Result<()> {
        let _one_at_a_time = self.fileset_changes.lock();
        let root = self.root()?;
        self.check_free_name(&root, &making.settings.name)?;
        self.catalogue.add(id, making.settings.clone());
        root.name_fileset(id, &FilesetRecord { stage: Stage::Made, ..making.clone() })
    }

    /// Takes back what was made of a clone. What cannot be taken back now is at the next opening.
    fn unmake_clone(&self, id: FilesetId, making: &FilesetRecord) {
        if let Err(error) = remove_objects(&self.shared, id) {
            tracing::warn!(%error, "a clone that could not be made left objects behind");
            return;
        }
        self.unmake(id, making);
    }
}
