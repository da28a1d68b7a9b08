//! Moving files between disks: off one that is to be empty, and between those of a pool that are not filled alike.
//!
//! A fileset may be closed between the steps of a move, because nobody uses it. So each step finds the owner anew, and a
//! copy that was begun for another owner is given up.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_base::{DiskId, FilesetId, Ino};

use super::Namespace;
use super::tasks::{Task, Turn};
use crate::error::{FsError, Result};
use crate::grants::{Changer, Touched};
use crate::object::FsDisk;
use crate::owner::{Owner, Route};
use crate::partition::Partition;
use crate::partition::relocate::{Moved, Pace};
use crate::record::{DiskRecord, DiskUse};
use crate::stale::Stale;
use crate::tasks::balance::{Fill, plan};

/// Records that are looked at together.
const CHUNK: usize = 4096;

/// What one pass over the files of a disk came to.
#[derive(Default)]
pub(super) struct Pass {
    pub moved: u64,
    bytes: u64,
    in_use: u64,
    /// A file that is in use, for people.
    example: Option<Ino>,
    /// The first thing that went wrong, and how often something did.
    pub failure: Option<FsError>,
    failures: u64,
}

/// Size of the largest file that leaves a disk which is nearly full when it is opened for writing: the open waits for its copy.
const LEAVES_MAX: u64 = 16 << 20;

/// Where the files of a pass come from, and where they go.
pub(super) struct Course<'a> {
    pub from: DiskId,
    pub suits: &'a dyn Fn(&FsDisk) -> bool,
    /// No more than so many bytes.
    pub most: u64,
    /// What becomes of snapshots that share the object of a file.
    pub snapshots: Snapshots,
}

/// What becomes of the snapshots that share the object of a file that is moved.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Snapshots {
    /// They keep the object.
    Stay,
    /// They get a copy beside that of the file, if that takes no space.
    Follow,
}

impl Namespace {
    /// One turn of emptying a disk.
    pub(super) fn drain(&self, task: &Task, uuid: &str, to: Option<&str>) -> Result<Turn> {
        let record = self.disk_named(uuid)?;
        if record.used != DiskUse::Draining {
            return Ok(Turn::Done);
        }
        if self.cluster.is_none() {
            return self.drain_own(task, &record, to);
        }
        // The others work meanwhile.
        self.ask_helpers(task);
        let own = self.drain_own(task, &record, to)?;
        if own != Turn::Done {
            return Ok(own);
        }
        if let Some(why) = self.empty_natives(&record) {
            return Ok(Turn::Waits(why));
        }
        let others = self.ask_helpers(task);
        Ok(others.waits.map_or(Turn::Done, Turn::Waits))
    }

    /// As [`Namespace::drain`], of the filesets of this node.
    pub(super) fn drain_own(
        &self,
        task: &Task,
        record: &DiskRecord,
        to: Option<&str>,
    ) -> Result<Turn> {
        self.shared.objects.give_up_stock_of(record.id);
        self.open_all()?;
        self.commit()?;
        let pool = self.shared.objects.pools.named(to.unwrap_or(&record.pool))?;
        let suits = |disk: &FsDisk| disk.id != record.id && disk.pool() == pool;
        let course =
            Course { from: record.id, suits: &suits, most: u64::MAX, snapshots: Snapshots::Follow };
        let mut pass = self.pass(task, &course)?;
        self.commit()?;
        let (copies, hindrance) = self.move_copies_off(task, record.id)?;
        pass.moved += copies;
        pass.failure = pass.failure.or(hindrance.map(FsError::Refused));
        self.pass_of_snapshots(task, record, to, &mut pass)?;
        self.shared.objects.finish_reclaim();
        if self.is_empty(record)? {
            // Nothing of what was moved may be lost with the disk.
            self.sync_all()?;
            return Ok(Turn::Done);
        }
        Ok(self.turn_after(pass))
    }

    fn turn_after(&self, pass: Pass) -> Turn {
        if pass.moved > 0 {
            return Turn::More;
        }
        if let Some(failure) = pass.failure {
            let more = match pass.failures {
                1 => String::new(),
                count => format!(" ({count} files could not be moved)"),
            };
            return Turn::Waits(format!("{failure}{more}"));
        }
        let name = pass.example.map(|ino| self.shown(ino)).unwrap_or_default();
        match pass.in_use {
            0 => Turn::Waits(
                "files that are open, also in snapshots, or about to be removed".to_owned(),
            ),
            1 => Turn::Waits(format!("1 file is in use, and is moved when it is closed: {name}")),
            count => Turn::Waits(format!(
                "{count} files are in use, and are moved when they are closed: {name}, ..."
            )),
        }
    }

    fn shown(&self, ino: Ino) -> String {
        self.paths_of(&[ino]).remove(&ino).unwrap_or_else(|| format!("inode {ino}"))
    }

    /// One turn of evening out the fill of a pool: in a cluster each node does so with the files of its filesets, one node after
    /// the other.
    pub(super) fn rebalance_by_turns(&self, task: &Task, pool: &str) -> Result<Turn> {
        if self.cluster.is_none() {
            return self.even_out(task, pool);
        }
        let own = self.even_out_own(task, pool)?;
        if own != Turn::Done {
            return Ok(own);
        }
        let others = self.ask_helpers(task);
        Ok(others.waits.map_or(Turn::Done, Turn::Waits))
    }

    /// As [`Namespace::even_out`], unless this task has been through all filesets of this node.
    pub(super) fn even_out_own(&self, task: &Task, pool: &str) -> Result<Turn> {
        let own: Vec<FilesetId> = self.filesets_here().iter().map(|fileset| fileset.id).collect();
        if own.iter().all(|id| task.been_through.lock().contains(id)) {
            return Ok(Turn::Done);
        }
        let turn = self.even_out(task, pool)?;
        if turn == Turn::Done {
            task.been_through.lock().extend(own);
        }
        Ok(turn)
    }

    /// One turn of evening out the fill of a pool, with the files of this node's filesets.
    pub(super) fn even_out(&self, task: &Task, name: &str) -> Result<Turn> {
        self.open_all()?;
        self.commit()?;
        let pool = self.shared.objects.pools.named(name)?;
        let mut fills = Vec::new();
        for disk in self.shared.objects.disks.all() {
            if disk.pool() != pool || !disk.takes_new() {
                continue;
            }
            let capacity = match self.shared.objects.observe(disk.id, disk.disk.capacity()) {
                // Its node does not answer: nothing goes there.
                Err(_) if self.cluster.is_some() => continue,
                capacity => capacity?,
            };
            fills.push(Fill {
                disk: disk.id,
                total_bytes: capacity.total_bytes,
                used_bytes: capacity.total_bytes.saturating_sub(capacity.available_bytes),
            });
        }
        let mut all = Pass::default();
        for shift in plan(&fills) {
            tracing::info!(pool = name, from = %shift.from, bytes = shift.bytes, reason = shift.reason, "rebalancing");
            let to: BTreeSet<DiskId> = shift.to.into_iter().collect();
            let suits = |disk: &FsDisk| disk.pool() == pool && to.contains(&disk.id);
            let snapshots = Snapshots::Stay;
            let course = Course { from: shift.from, suits: &suits, most: shift.bytes, snapshots };
            let pass = self.pass(task, &course)?;
            all.moved += pass.moved;
            all.failures += pass.failures;
            all.failure = all.failure.or(pass.failure);
        }
        self.commit()?;
        self.shared.objects.finish_reclaim();
        match all.failure {
            Some(failure) if all.moved == 0 => Ok(Turn::Waits(failure.to_string())),
            _ if all.moved > 0 => Ok(Turn::More),
            // What is left is as even as it gets: the rest is in use, or not ours.
            _ => Ok(Turn::Done),
        }
    }

    /// Whether nothing of an open fileset lies on a disk, or may yet. All filesets are open.
    ///
    /// # Errors
    /// What a commit says.
    pub(super) fn is_empty(&self, record: &DiskRecord) -> Result<bool> {
        let disk = self.shared.objects.disk(record.id)?;
        self.shared.objects.give_up_stock_of(record.id);
        if self.views.clones.are_being_made() {
            return Ok(false);
        }
        // In this order: an object that is open for a file that has no record yet is counted as open, until its record
        // counts it.
        if disk.has_open_objects() {
            return Ok(false);
        }
        // Files without a name are in no record of an inode.
        let lies_there = |partition: &Arc<Partition>| partition.left_on(record.id) > 0;
        if self.partitions().iter().any(lies_there) {
            return Ok(false);
        }
        if self.is_held_by_snapshots(record)? {
            return Ok(false);
        }
        // What the records say is also what the stores say.
        self.commit()?;
        Ok(true)
    }

    /// Goes once through all files that lie on a disk.
    fn pass(&self, task: &Task, course: &Course<'_>) -> Result<Pass> {
        let mut pass = Pass::default();
        for fileset in self.filesets_here() {
            let mut next = None;
            loop {
                let partition = match self.open_fileset(fileset.id) {
                    // It has another owner by now, which goes on.
                    Err(FsError::Refused(_) | FsError::Moved) if self.cluster.is_some() => break,
                    opened => opened?,
                };
                let (files, more) = partition.stored_on(course.from, next, CHUNK)?;
                drop(partition);
                for ino in files {
                    if pass.bytes >= course.most {
                        return Ok(pass);
                    }
                    self.move_and_note(task, ino, course, &mut pass)?;
                }
                self.check_goes_on(task)?;
                next = more;
                if next.is_none() {
                    break;
                }
            }
        }
        Ok(pass)
    }

    /// Whether a task is to go on; one of another node only while that asks for it.
    pub(super) fn check_goes_on(&self, task: &Task) -> Result<()> {
        let is_helping = task.asked.lock().is_some();
        if task.pace.goes_on() && (!is_helping || self.is_asked(task)) {
            return Ok(());
        }
        Err(FsError::Busy)
    }

    /// Moves a file, and notes what came of it.
    pub(super) fn move_and_note(
        &self,
        task: &Task,
        ino: Ino,
        course: &Course<'_>,
        pass: &mut Pass,
    ) -> Result<()> {
        self.check_goes_on(task)?;
        let begun = self.shared.clock.instant();
        let pace = |bytes| task.pace.after(bytes);
        let moved = self.move_file(ino, course, &pace);
        self.note(task, (ino, moved), begun, pass)
    }

    /// Notes what came of moving something of a file.
    pub(super) fn note(
        &self,
        task: &Task,
        (ino, moved): (Ino, Result<Moved>),
        begun: Instant,
        pass: &mut Pass,
    ) -> Result<()> {
        match moved {
            Ok(Moved::Whole(bytes)) => {
                pass.moved += 1;
                pass.bytes = pass.bytes.saturating_add(bytes);
                task.did(1, bytes, self.since(begun));
            }
            Ok(Moved::Evicted(bytes)) => {
                pass.moved += 1;
                pass.bytes = pass.bytes.saturating_add(bytes);
                task.did(1, 0, self.since(begun));
            }
            Ok(Moved::InUse) => {
                pass.in_use += 1;
                pass.example.get_or_insert(ino);
                task.did(0, 0, self.since(begun));
            }
            Ok(Moved::Gone | Moved::Shared | Moved::Pinned) => {}
            Err(stop @ FsError::Busy) => return Err(stop),
            Err(error) => {
                pass.failures += 1;
                pass.failure.get_or_insert(error);
            }
        }
        Ok(())
    }

    pub(super) fn move_file(
        &self,
        ino: Ino,
        course: &Course<'_>,
        pace: &Pace<'_>,
    ) -> Result<Moved> {
        if self.shared.objects.is_archive(course.from) {
            return self.bring_back(ino, Some(course.suits), pace, &|_| ());
        }
        let Some((partition, route)) = self.local_owner(ino)? else { return Ok(Moved::Gone) };
        let resting = match partition.begin_move(ino, course.from)? {
            Ok(resting) => resting,
            Err(outcome) => return Ok(outcome),
        };
        drop(route);
        let archive = self.archive_of(course);
        let settled = match self.hindrance(&partition, &resting, archive) {
            Ok(None) if archive.is_some() => self.evict(&partition, &resting, course),
            hindrance => hindrance,
        };
        match settled {
            Ok(None) => {}
            Ok(Some(Moved::Evicted(bytes))) => return Ok(Moved::Evicted(bytes)),
            // It stays here.
            Ok(Some(why)) => {
                partition.give_up_move(&resting);
                return Ok(why);
            }
            Err(error) => {
                partition.give_up_move(&resting);
                return Err(error);
            }
        }
        let new = match partition.copy_resting(&resting, course.suits, pace) {
            Ok(new) => new,
            Err(error) => {
                let was_used = partition.is_disturbed(&resting);
                partition.give_up_move(&resting);
                return uncopied(error, was_used, archive);
            }
        };
        if course.snapshots == Snapshots::Follow
            && let Err(error) = self.take_snapshots_along(&partition, &resting, &new)
        {
            // They keep the object for now, and it is copied for them later.
            tracing::warn!(%ino, %error, "the snapshots that share a file were not moved with it");
        }
        let same = |found: &Arc<Partition>| Arc::ptr_eq(found, &partition);
        // Other nodes may have it open by a grant: they say so first.
        let _nobody_caches = partition.begin_change(Changer::LOCAL, &Touched::inode(ino));
        match self.local_owner(ino) {
            Ok(Some((found, _route))) if same(&found) => {
                let moved = partition.finish_move(&resting, &new);
                self.shared.objects.drop_handle(new);
                if let (Some(archive), Ok(Moved::Whole(bytes))) = (archive, &moved) {
                    archive.traffic.archived.moved(*bytes);
                    // It takes less there.
                    self.tell_own_kernel(&[Stale::Attributes(ino)]);
                }
                moved
            }
            _ => {
                partition.give_up_copy(&new);
                Ok(Moved::InUse)
            }
        }
    }

    /// Before a file at rest is opened for writing: one that is not large leaves a disk that is nearly full for another one of its pool, as it
    /// may grow. On the direct path the kernel would refuse its writer without asking. Holds no lock when called.
    pub(super) fn leave_full_disk(&self, ino: Ino) {
        let objects = &self.shared.objects;
        if self.cluster.is_some() || !objects.is_pressed() {
            return;
        }
        let Ok(Some((partition, route))) = self.local_owner(ino) else { return };
        // A copy of it may lie where it would go.
        let is_alone = !partition.copies().is_in_use() || partition.copies().wanted() < 2;
        let found = partition.place_and_size(ino).filter(|(_, size)| *size <= LEAVES_MAX);
        drop((partition, route));
        let Some((at, size)) = found.filter(|_| is_alone) else { return };
        // Where it goes must not be nearly full by that: it would come back.
        let Some(pool) = objects.pool_to_leave(at.disk, size) else { return };
        let suits = |disk: &FsDisk| disk.pool() == pool && disk.space.has_room_for(size);
        let snapshots = Snapshots::Stay;
        let course = Course { from: at.disk, suits: &suits, most: LEAVES_MAX, snapshots };
        match self.move_file(ino, &course, &|_| Ok(())) {
            Ok(moved) => tracing::debug!(%ino, ?moved, "a file leaves a disk that is nearly full"),
            // It is opened where it is.
            Err(error) => {
                tracing::debug!(%ino, %error, "a file stays on a disk that is nearly full");
            }
        }
    }

    pub(super) fn since(&self, then: Instant) -> Duration {
        self.shared.clock.instant().saturating_duration_since(then)
    }

    /// The owner of a fileset of this node. While the route is held it stays so.
    pub(super) fn local_owner(&self, ino: Ino) -> Result<Option<(Arc<Partition>, Route)>> {
        let route = self.owner(ino)?;
        let local = match &*route {
            Owner::Local(partition) => Some(Arc::clone(partition)),
            Owner::Native(_) | Owner::Remote(_) => None,
        };
        Ok(local.map(|partition| (partition, route)))
    }
}

/// What became of a file that was not copied to where it was to go, an archive perhaps.
pub(super) fn uncopied(error: FsError, was_used: bool, archive: Option<&FsDisk>) -> Result<Moved> {
    match error {
        // It was truncated beneath the copy.
        FsError::Io(_) if was_used => Ok(Moved::InUse),
        // The task is to stop.
        FsError::Busy => Err(FsError::Busy),
        error => {
            archive.into_iter().for_each(|disk| disk.traffic.archived.failed());
            Err(error)
        }
    }
}
