//! Copies of files in other failure groups: how many there are to be, the thread that makes them, and looking at the bytes.

use std::sync::Arc;
use std::time::Duration;

use forebay_base::{DiskId, Ino};

use super::Namespace;
use super::tasks::{Task, Turn};
use crate::error::{FsError, Result};
use crate::native::NewFileset;
use crate::object::FsDisk;
use crate::ops::shown_name;
use crate::partition::Partition;
use crate::partition::copies::{Settled, Verified};
use crate::partition::relocate::Pace;
use crate::record::{COPIES_MAX, DEFAULT_POOL, DiskUse, FilesetRecord, Kind, Placement, Stage};
use crate::tasks::{Pace as TaskPace, Work};

/// Records that are looked at together.
const CHUNK: usize = 1024;
/// Files whose copies were replaced before the former ones are removed.
const BATCH: usize = 256;
/// The least time between two looks whether there is something to copy.
const PAUSE_MIN: Duration = Duration::from_millis(100);

impl Namespace {
    /// Has each file of a fileset lie in so many failure groups, in the background.
    ///
    /// # Errors
    /// [`FsError::Refused`] in a cluster, for a native fileset, for a number that is not 1 to 3, or where the pool has fewer
    /// failure groups; what the store says.
    pub fn set_fileset_copies(&self, name: &str, copies: u8) -> Result<()> {
        self.alone("a second copy of files")?;
        let _one_at_a_time = self.fileset_changes.lock();
        let fileset = self.fileset_named(name)?;
        let mut settings = fileset.settings();
        if settings.placement == Placement::Native && copies != 1 {
            return Err(FsError::Refused(format!(
                "fileset \"{name}\" is native: its files lie on one disk, which alone knows them; copies are for direct and served \
                 filesets"
            )));
        }
        if copies != 1 && settings.placement != Placement::Native {
            let partition = self.open_fileset(fileset.id)?;
            self.refuse_cache(&partition, "a second copy", "the bytes are at home")?;
        }
        self.check_copies(copies, &settings.pool)?;
        settings.copies = copies;
        fileset.set_settings(settings.clone());
        let record = FilesetRecord {
            settings: settings.clone(),
            stage: Stage::Made,
            first_ino: 0,
            first_object: 0,
        };
        self.root()?.put_fileset(fileset.id, &record);
        self.commit_change()?;
        self.apply_at_owner(&fileset, &settings);
        if settings.placement != Placement::Native {
            self.open_fileset(fileset.id)?.copies().look_at_all();
        }
        Ok(())
    }

    /// Makes a fileset of which each file is to lie in so many failure groups.
    ///
    /// # Errors
    /// As [`Namespace::add_fileset`] and [`Namespace::set_fileset_copies`]: nothing is made then.
    pub fn add_fileset_with_copies(&self, new: &NewFileset, copies: u8) -> Result<()> {
        if copies != 1 && new.placement == Placement::Native {
            return Err(FsError::Refused(
                "--copies is not for a native fileset, whose files lie on one disk".to_owned(),
            ));
        }
        self.check_copies(copies, new.pool.as_deref().unwrap_or(DEFAULT_POOL))?;
        self.add_fileset(new)?;
        if copies == 1 { Ok(()) } else { self.set_fileset_copies(&new.name, copies) }
    }

    /// Refuses a number of copies that a pool cannot take.
    pub(super) fn check_copies(&self, copies: u8, pool: &str) -> Result<()> {
        if copies == 1 {
            return Ok(());
        }
        self.alone("a second copy of files")?;
        if !(1..=COPIES_MAX).contains(&copies) {
            return Err(FsError::Refused(format!("{copies} copies: choose 1, 2 or {COPIES_MAX}")));
        }
        let mut groups: Vec<&FsDisk> = Vec::new();
        for record in self.disks.read().iter() {
            if record.pool == pool && record.used == DiskUse::Normal {
                let disk = self.shared.objects.disk(record.id)?;
                if groups.iter().all(|other| !other.fails_with(disk)) {
                    groups.push(disk);
                }
            }
        }
        if groups.len() < usize::from(copies) {
            return Err(FsError::Refused(format!(
                "{copies} copies need {copies} failure groups, and pool \"{pool}\" has {}: add disks of other failure groups first \
                 (forebay disk add --pool {pool} --group NAME)",
                groups.len()
            )));
        }
        Ok(())
    }

    /// Has the copies of all files looked at: the disks have changed.
    pub(super) fn look_at_all_copies(&self) {
        if self.cluster.is_some() {
            return;
        }
        // One that rests is opened for it.
        for partition in self.partitions() {
            // Files of others may lie in an archive too.
            partition.copies().look_at_all();
        }
        for fileset in self.catalogue.list() {
            let settings = fileset.settings();
            if settings.copies < 2 {
                continue;
            }
            match self.open_fileset(fileset.id) {
                Ok(partition) => partition.copies().look_at_all(),
                Err(error) => {
                    tracing::warn!(fileset = settings.name, %error, "copies are not looked at");
                }
            }
        }
    }

    // --- the thread ---

    /// Body of the thread that makes copies, until the file system is closed.
    pub(super) fn run_copies(&self) {
        if self.cluster.is_some() {
            return;
        }
        let interval = self.shared.settings.commit_interval;
        self.look_at_all_copies();
        let mut last = self.shared.clock.instant();
        while !self.shared.bell.is_stopping() {
            self.shared.bell.wait_for_stop(interval.max(PAUSE_MIN));
            let now = self.shared.clock.instant();
            if now.saturating_duration_since(last) < interval {
                continue;
            }
            last = now;
            if let Err(error) = self.make_copies()
                && !matches!(error, FsError::Busy)
            {
                tracing::warn!(%error, "copies of files were not made");
            }
        }
    }

    /// Makes the copies that are due of files that nobody uses, in all filesets that are open; returns how many bytes.
    ///
    /// # Errors
    /// [`FsError::Busy`] if the file system is being closed; what a store says.
    pub fn make_copies(&self) -> Result<u64> {
        let in_use = || self.partitions().into_iter().filter(|it| it.copies().is_in_use());
        if in_use().next().is_none() {
            return Ok(0);
        }
        if in_use().any(|it| it.copies().wanted() > 1) {
            self.look_for_failing_disks();
        }
        let pace = TaskPace::default();
        let speed = self.shared.settings.task_speed.0;
        pace.set_speed(speed);
        // In pieces of a second at most: nobody waits longer for the end.
        let piece_max = if speed == 0 { u64::MAX } else { speed };
        let goes_on = |bytes: u64| {
            let mut left = bytes;
            loop {
                if self.shared.bell.is_stopping() {
                    return Err(FsError::Busy);
                }
                let piece = left.min(piece_max);
                pace.after(piece)?;
                left -= piece;
                if left == 0 {
                    return Ok(());
                }
            }
        };
        let mut copied = 0;
        for partition in in_use() {
            copied += self.make_copies_in(&partition, &goes_on)?;
        }
        Ok(copied)
    }

    fn look_for_failing_disks(&self) {
        let objects = &self.shared.objects;
        let failing = objects.disks.all().filter(|disk| objects.finds_failing(disk)).count();
        if failing > 0 {
            self.look_at_all_copies();
        }
    }

    fn make_copies_in(&self, partition: &Arc<Partition>, pace: &Pace<'_>) -> Result<u64> {
        let copies = partition.copies();
        if copies.take_look() {
            // Only an object that has its name is copied.
            partition.commit()?;
            partition.look_for_missing_copies().inspect_err(|_| copies.look_at_all())?;
            copies.note_shortage(None);
        }
        let (mut copied, mut since) = (0, 0);
        let mut left = copies.take_changed();
        while let Some(ino) = left.pop_first() {
            match partition.settle_copies(ino, pace) {
                Ok(Settled::Fine(bytes)) => copied += bytes,
                Ok(Settled::Short(bytes)) => {
                    copied += bytes;
                    copies.note_shortage(Some(partition.shortage()));
                }
                Ok(Settled::InUse) => copies.may_need(ino),
                Ok(Settled::Nothing) => {}
                Err(stop @ FsError::Busy) => {
                    copies.may_need(ino);
                    left.into_iter().for_each(|ino| copies.may_need(ino));
                    return Err(stop);
                }
                Err(error) => {
                    let name = self.paths_of(&[ino]).remove(&ino);
                    let name = name.unwrap_or_else(|| format!("inode {ino}"));
                    copies.note_shortage(Some(format!("{name}: {error}")));
                }
            }
            since += 1;
            if since % BATCH == 0 {
                partition.remove_unneeded_copies_of_files()?;
            }
        }
        partition.remove_unneeded_copies_of_files()?;
        Ok(copied)
    }

    /// Moves the copies of files off a disk that is being emptied; how many, and what hinders that.
    pub(super) fn move_copies_off(
        &self,
        task: &Task,
        disk: DiskId,
    ) -> Result<(u64, Option<String>)> {
        let (mut moved, mut hindrance) = (0, None);
        for fileset in self.filesets_here() {
            let partition = self.open_fileset(fileset.id)?;
            if !partition.copies().is_in_use() {
                continue;
            }
            let mut next = None;
            loop {
                let (found, more) = partition.all_copies(next, CHUNK)?;
                for (id, record) in found {
                    if record.copies.iter().all(|at| at.disk != disk) {
                        continue;
                    }
                    let begun = self.shared.clock.instant();
                    if partition.object_of_stored(record.ino)?.is_none_or(|at| at.id != id) {
                        partition.copies().dropped(id);
                        moved += 1;
                        continue;
                    }
                    match partition.settle_copies(record.ino, &|bytes| task.pace.after(bytes))? {
                        Settled::Fine(bytes) => {
                            moved += 1;
                            task.did(1, bytes, self.since(begun));
                        }
                        Settled::Short(_) => {
                            hindrance.get_or_insert_with(|| partition.shortage());
                        }
                        Settled::InUse | Settled::Nothing => {}
                    }
                }
                next = more;
                if next.is_none() {
                    break;
                }
            }
            partition.remove_unneeded_copies_of_files()?;
        }
        Ok((moved, hindrance))
    }

    // --- looking at the bytes ---

    /// Begins to compare files at rest and their copies with their checksums, in one fileset or in all; returns the number of
    /// the task.
    ///
    /// # Errors
    /// [`FsError::Refused`] in a cluster, if there is no such fileset, or none of them has copies; what the store says.
    pub fn scrub(&self, fileset: Option<&str>) -> Result<u64> {
        self.alone("`forebay scrub`")?;
        let _one_at_a_time = self.fileset_changes.lock();
        let filesets = match fileset {
            Some(name) => vec![self.fileset_named(name)?],
            None => self.catalogue.list(),
        };
        if filesets.iter().all(|fileset| fileset.settings().copies < 2) {
            let names: Vec<String> = filesets
                .iter()
                .map(|fileset| shown_name(&fileset.settings().name).to_owned())
                .collect();
            return Err(FsError::Refused(format!(
                "checksums are taken of files with copies, and there are none in {}: forebay fileset set NAME --copies 2",
                names.join(", ")
            )));
        }
        let work = Work::Scrub { fileset: fileset.map(str::to_owned) };
        self.begin_task(&work)
    }

    /// One turn of comparing bytes with their checksums: all of it.
    pub(super) fn scrub_files(&self, task: &Task, name: Option<&str>) -> Result<Turn> {
        let (mut repaired, mut damaged) = (0_u64, 0_u64);
        for fileset in self.filesets_here() {
            let settings = fileset.settings();
            let is_meant = name.is_none_or(|name| shown_name(&settings.name) == name);
            if !is_meant || settings.copies < 2 || task.been_through.lock().contains(&fileset.id) {
                continue;
            }
            let partition = self.open_fileset(fileset.id)?;
            partition.commit()?;
            self.scrub_fileset(task, &partition, (&mut repaired, &mut damaged))?;
            partition.remove_unneeded_copies_of_files()?;
            task.been_through.lock().insert(fileset.id);
            if repaired + damaged > 0 {
                tracing::warn!(fileset = settings.name, repaired, damaged, "scrubbed");
            }
        }
        Ok(Turn::Done)
    }

    fn scrub_fileset(
        &self,
        task: &Task,
        partition: &Arc<Partition>,
        (repaired, damaged): (&mut u64, &mut u64),
    ) -> Result<()> {
        let mut next = None;
        loop {
            let (files, more) = partition.stored_files(next, CHUNK)?;
            for ino in files {
                let begun = self.shared.clock.instant();
                let pace = |bytes| task.pace.after(bytes);
                pace(0)?;
                match partition.verify_copies(ino, &pace)? {
                    Verified::Sound(bytes) => task.did(1, bytes, self.since(begun)),
                    Verified::Repaired(bytes) => {
                        *repaired += 1;
                        task.did(1, bytes, self.since(begun));
                    }
                    Verified::Damaged => {
                        *damaged += 1;
                        task.did(1, 0, self.since(begun));
                    }
                    Verified::InUse | Verified::Nothing => {}
                }
            }
            next = more;
            if next.is_none() {
                return Ok(());
            }
        }
    }
}

impl Partition {
    /// Files with bytes, in order of their numbers from `from` on: about `most`, and where to go on.
    fn stored_files(
        &self,
        from: Option<Vec<u8>>,
        most: usize,
    ) -> Result<(Vec<Ino>, Option<Vec<u8>>)> {
        self.stored_inodes(from, most, |record| {
            record.kind == Kind::File && record.layout.object().is_some()
        })
    }

    /// Notes all files that have not the copies that they are to have. Reads all inodes, unless only some files have copies.
    fn look_for_missing_copies(&self) -> Result<()> {
        let mut next = None;
        while self.copies().wanted() < 2 {
            let (found, more) = self.all_copies(next, CHUNK)?;
            for (_, record) in found {
                if !self.is_settled(&record) {
                    self.copies().may_need(record.ino);
                }
            }
            next = more;
            if next.is_none() {
                return Ok(());
            }
        }
        next = None;
        loop {
            let (files, more) = self.stored_files(next, CHUNK)?;
            for ino in files {
                if self.needs_copies(ino)? {
                    self.copies().may_need(ino);
                }
            }
            next = more;
            if next.is_none() {
                return Ok(());
            }
        }
    }
}
