//! Quotas, as commands set and list them; and space as a fileset with a quota shows it.

use std::sync::Arc;

use super::Namespace;
use super::catalogue::Fileset;
use crate::error::{FsError, Result};
use crate::ops::{Statistics, shown_name};
use crate::owner::Owner;
use crate::partition::Partition;
use crate::partition::quota::{grace_left, read_quotas};
use crate::quota::{Limited, Quota, QuotaChange, QuotaRecord, QuotaStatus, Subject};
use crate::record::Placement;

impl Namespace {
    /// Changes the quota of a fileset, or of an owner of files in it, or sets a first one.
    ///
    /// # Errors
    /// [`FsError::Refused`] for a native fileset, one of another node, and limits that make no sense; what the store says.
    pub fn set_quota(&self, fileset: &str, subject: Subject, change: &QuotaChange) -> Result<()> {
        let partition = self.partition_with_quotas(fileset)?;
        let (known, _) = partition.quotas();
        let known = known.into_iter().find(|known| known.subject == subject && !known.by_default);
        let before = known.map(|known| known.record.quota);
        let quota = change.apply(
            before.unwrap_or(Quota { grace_seconds: Quota::GRACE_SECONDS, ..Quota::default() }),
        );
        if let Some(fault) = quota.fault() {
            return Err(FsError::Refused(fault));
        }
        if quota.is_empty() {
            return Err(FsError::Refused(
                "the quota would limit nothing: `forebay quota remove` removes it".to_owned(),
            ));
        }
        partition.set_quota(subject, quota)
    }

    /// Removes a quota.
    ///
    /// # Errors
    /// As [`Namespace::set_quota`]; [`FsError::Refused`] if there is none.
    pub fn remove_quota(&self, fileset: &str, subject: Subject) -> Result<()> {
        if self.partition_with_quotas(fileset)?.remove_quota(subject)? {
            return Ok(());
        }
        Err(FsError::Refused(format!(
            "{subject} has no quota of its own in fileset \"{fileset}\": `forebay quota list` shows those that there are"
        )))
    }

    /// The quotas of a fileset, or of all that this node owns, with what is held of each.
    ///
    /// # Errors
    /// As [`Namespace::set_quota`].
    pub fn quotas(&self, fileset: Option<&str>) -> Result<Vec<QuotaStatus>> {
        if let Some(name) = fileset {
            let partition = self.partition_with_quotas(name)?;
            return Ok(self.shown_quotas(name, partition.quotas().0));
        }
        let mut all = Vec::new();
        for fileset in self.catalogue.list() {
            let settings = fileset.settings();
            if settings.placement != Placement::Native {
                all.extend(self.shown_quotas(&settings.name, self.known_quotas(&fileset)?));
            }
        }
        Ok(all)
    }

    /// The quotas of a fileset of this node; it is not opened for that.
    fn known_quotas(&self, fileset: &Fileset) -> Result<Vec<Limited>> {
        let open = |route: &Owner| match route {
            Owner::Local(partition) => partition.quotas().0,
            Owner::Native(_) | Owner::Remote(_) => Vec::new(),
        };
        if let Some(route) = self.shared.owners.find(fileset.id) {
            return Ok(open(&route));
        }
        if self.cluster.is_some() {
            return Ok(Vec::new());
        }
        // Whoever opens it meanwhile would find the store in use.
        let _not_opened = fileset.opening.lock();
        if let Some(route) = self.shared.owners.find(fileset.id) {
            return Ok(open(&route));
        }
        stored_quotas(&*self.stores.look(fileset.id)?)
    }

    fn shown_quotas(&self, fileset: &str, found: Vec<Limited>) -> Vec<QuotaStatus> {
        let now = self.shared.clock.now();
        found.into_iter().map(|limited| status(fileset, &limited, now)).collect()
    }

    fn partition_with_quotas(&self, name: &str) -> Result<Arc<Partition>> {
        let fileset = self.fileset_named(name)?;
        if fileset.settings().placement == Placement::Native {
            return Err(FsError::Refused(format!(
                "fileset \"{name}\" is native, so its disk's own file system would have to limit it: quotas are for \
                 direct and served filesets"
            )));
        }
        self.open_fileset(fileset.id)
    }

    /// Space as a fileset shows it: no more than its quota leaves.
    pub(super) fn statistics_within(&self, partition: &Partition) -> Result<Statistics> {
        let mut all = self.statistics()?;
        if !partition.has_quotas() {
            return Ok(all);
        }
        let (quotas, usage) = partition.quotas();
        let whole = quotas.into_iter().find(|limited| limited.subject == Subject::Fileset);
        let Some(Limited { record, .. }) = whole else { return Ok(all) };
        let least = |limits: crate::quota::Limits| limits.soft.into_iter().chain(limits.hard).min();
        if let Some(limit) = least(record.quota.bytes) {
            let left = limit.saturating_sub(usage.bytes);
            let space = &mut all.capacity;
            space.free_bytes = space.free_bytes.min(left);
            space.available_bytes = space.available_bytes.min(left);
            // The size is what is used and what is left, as `df` expects.
            space.total_bytes = usage.bytes.saturating_add(space.free_bytes);
        }
        if let Some(limit) = least(record.quota.inodes) {
            all.inodes = usage.inodes;
            let left = limit.saturating_sub(usage.inodes);
            all.capacity.free_objects = all.capacity.free_objects.min(left);
        }
        Ok(all)
    }
}

/// The quotas of a store.
///
/// # Errors
/// What the store says; [`FsError::Damaged`].
pub(crate) fn stored_quotas(store: &dyn forebay_store::Store) -> Result<Vec<Limited>> {
    let Some(quotas) = read_quotas(store)? else { return Ok(Vec::new()) };
    let (all, _) = crate::recovery::read_usage(store)?;
    Ok(quotas.limited(all))
}

/// A quota as people see it.
pub(crate) fn status(
    fileset: &str,
    limited: &Limited,
    now: forebay_base::Timestamp,
) -> QuotaStatus {
    let Limited { subject, record, usage, by_default } = *limited;
    let QuotaRecord { quota, bytes_over, inodes_over } = record;
    QuotaStatus {
        fileset: shown_name(fileset).to_owned(),
        subject,
        quota,
        usage,
        by_default,
        bytes_grace_left: grace_left(bytes_over, quota.grace_seconds, now),
        inodes_grace_left: grace_left(inodes_over, quota.grace_seconds, now),
    }
}
