//! What commands ask of disks, pools, tasks and quotas.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use forebay_fs::Namespace;

use crate::commands::disk::LOST_MAX;
use crate::commands::snapshot::CHANGES_MAX;
use crate::control::{Answer, Ask};
use crate::home::disks::{self, Wanted, WantedStriped};

/// Whether the answer may take long: files are synced, or all of them looked at.
pub fn takes_long(ask: &Ask) -> bool {
    matches!(
        ask,
        Ask::AddDisk { .. }
            | Ask::StripeDisks { .. }
            | Ask::DrainDisk { .. }
            | Ask::Rebalance { .. }
            | Ask::RemoveDisk { .. }
            | Ask::GiveUpDisk { .. }
            | Ask::SetQuota { .. }
            | Ask::CreateSnapshot { .. }
            | Ask::CloneSnapshot { .. }
            | Ask::RestoreFileset { .. }
            | Ask::DeleteSnapshot { .. }
            | Ask::DiffSnapshots { .. }
            | Ask::SnapshotSpace { .. }
            | Ask::SetSchedules { .. }
            | Ask::Census
            | Ask::Disks
            | Ask::LabelDisk { .. }
            | Ask::UseDisk { .. }
            | Ask::SetPool { .. }
            | Ask::SetCopies { .. }
            | Ask::Scrub { .. }
            | Ask::ScrubArchives { .. }
            | Ask::Tasks
            | Ask::OrderTask { .. }
            | Ask::LookAtPolicy { .. }
            | Ask::RunPolicy { .. }
            | Ask::MigrateFiles { .. }
            | Ask::PremigrateFiles { .. }
            | Ask::EvictCache { .. }
            | Ask::FlushCache { .. }
            | Ask::CacheConflicts { .. }
    )
}

/// Answers a command.
pub fn answer(fs: &Namespace, root: &Path, ask: Ask) -> Answer {
    carry_out(fs, root, ask)
        .unwrap_or_else(|error| Answer::Refused { reason: crate::output::chain(&error) })
}

fn carry_out(fs: &Namespace, root: &Path, ask: Ask) -> Result<Answer> {
    match ask {
        Ask::SetPool { name, pool } => fs.set_fileset_pool(&name, &pool)?,
        Ask::AddDisk { directory, pool, group, shared } => {
            let wanted = Wanted { path: &directory, pool: &pool, group: &group, is_shared: shared };
            disks::add(fs, root, &wanted)?;
        }
        Ask::StripeDisks { disks, over, unit_bytes, pool, group } => {
            let over = over.as_deref();
            let (pool, group) = (pool.as_str(), group.as_str());
            disks::stripe(fs, &WantedStriped { disks: &disks, over, unit_bytes, pool, group })?;
        }
        Ask::EvictCache { name, keep_bytes } => {
            return Ok(Answer::Evicted(fs.evict_cache(&name, keep_bytes)?));
        }
        Ask::FlushCache { name, begun } => {
            return Ok(Answer::Flushing(fs.flush_cache(&name, begun)?));
        }
        Ask::CacheConflicts { name, forget } => {
            let conflicts = fs.cache_conflicts(&name, forget)?;
            return Ok(Answer::CacheConflicts { conflicts });
        }
        Ask::SetCopies { name, copies } => fs.set_fileset_copies(&name, copies)?,
        Ask::Scrub { fileset } => return begun(fs, fs.scrub(fileset.as_deref())?),
        Ask::ScrubArchives { fileset } => {
            return begun(fs, fs.scrub_archives(fileset.as_deref())?);
        }
        Ask::LabelDisk { disk, pool, group } => {
            fs.label_disk(&disk, pool.as_deref(), group.as_deref())?;
        }
        Ask::DrainDisk { disk, to } => return begun(fs, fs.drain_disk(&disk, to.as_deref())?),
        Ask::Rebalance { pool } => return begun(fs, fs.rebalance(&pool)?),
        Ask::UseDisk { disk } => fs.use_disk_again(&disk)?,
        Ask::RemoveDisk { disk } => disks::remove(fs, root, &disk)?,
        Ask::GiveUpDisk { disk } => {
            return Ok(Answer::LostDisk(fs.give_up_disk(&disk, LOST_MAX)?));
        }
        Ask::LookAtPolicy { place, policy } => {
            let policy = forebay_fs::policy::Policy { place, ..policy };
            return Ok(Answer::Policy(fs.look_at_policy(&policy)?));
        }
        Ask::RunPolicy { policy } => return begun(fs, fs.run_policy(&policy)?),
        Ask::SetQuota { fileset, subject, change } => {
            fs.set_quota(&fileset, subject, &change)?;
        }
        Ask::RemoveQuota { fileset, subject } => fs.remove_quota(&fileset, subject)?,
        Ask::Quotas { fileset } => {
            return Ok(Answer::Quotas { quotas: fs.quotas(fileset.as_deref())? });
        }
        Ask::CreateSnapshot { fileset, name } => {
            let snapshots = vec![fs.create_snapshot(&fileset, &name)?];
            return Ok(Answer::Snapshots { snapshots });
        }
        Ask::CloneSnapshot { fileset, name, clone, bytes } => {
            let made = fs.clone_snapshot((&fileset, &name), &clone, bytes)?;
            return Ok(Answer::SnapshotCloned(made));
        }
        Ask::RestoreFileset { fileset, name, aside, bytes } => {
            let made = fs.restore_fileset((&fileset, &name), &aside, bytes)?;
            return Ok(Answer::SnapshotCloned(made));
        }
        Ask::DeleteSnapshot { fileset, name } => {
            let objects = fs.delete_snapshot(&fileset, &name)?;
            return Ok(Answer::SnapshotDeleted { objects });
        }
        Ask::DiffSnapshots { fileset, from, to } => {
            let found = fs.diff_snapshots(&fileset, (&from, to.as_deref()), CHANGES_MAX)?;
            return Ok(Answer::SnapshotDiff(found));
        }
        Ask::Snapshots { fileset } => {
            return Ok(Answer::Snapshots { snapshots: fs.snapshots(fileset.as_deref())? });
        }
        Ask::SnapshotSpace { fileset } => {
            let filesets = fs.space_of_snapshots(fileset.as_deref())?;
            return Ok(Answer::SnapshotSpace { filesets });
        }
        Ask::MigrateFiles { pool, files } => {
            return Ok(Answer::Migrated { outcomes: fs.migrate_files(&pool, &files)? });
        }
        Ask::PremigrateFiles { pool, files } => {
            return Ok(Answer::Migrated { outcomes: fs.premigrate_files(&pool, &files)? });
        }
        Ask::Places { files } => {
            let places = files.iter().map(|ino| fs.place_of(*ino).ok()).collect();
            return Ok(Answer::Places { places });
        }
        Ask::Census => return Ok(Answer::Census(fs.census())),
        Ask::Tasks => return Ok(Answer::Tasks { tasks: fs.all_tasks()? }),
        Ask::Disks => return Ok(Answer::Disks { disks: fs.all_disk_status() }),
        Ask::OrderTask { task, order } => order.give(fs, task)?,
        other => bail!("not something that is asked of disks: {other:?}"),
    }
    Ok(Answer::Done)
}

fn begun(fs: &Namespace, number: u64) -> Result<Answer> {
    let found = fs.all_tasks()?.into_iter().find(|task| task.id == number);
    Ok(Answer::Task(Box::new(found.context("the task has ended already")?)))
}
