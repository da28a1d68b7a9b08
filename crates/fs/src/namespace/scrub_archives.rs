//! Scrubbing archives: a task that reads what lies there, fileset by fileset, and says which files have lost it.

use std::sync::Arc;

use forebay_base::{FilesetId, Ino};

use super::Namespace;
use super::tasks::{Task, Turn};
use crate::error::{FsError, Result};
use crate::ops::shown_name;
use crate::partition::Partition;
use crate::partition::copies::Archived;
use crate::record::{Kind, Placement};
use crate::tasks::Work;

/// Records that are looked at together.
const CHUNK: usize = 1024;

/// Where in a fileset a pass continues that had to wait.
pub(super) type Reached = Option<(FilesetId, Vec<u8>)>;

/// What was found in some files, and why.
#[derive(Default)]
struct Found {
    lost: Vec<(Ino, String)>,
    needless: Vec<(Ino, String)>,
}

impl Namespace {
    /// Begins to read the objects of files in archives, of premigrated ones too, in one fileset or in all; returns the number of
    /// the task.
    ///
    /// # Errors
    /// [`FsError::Refused`] in a cluster, without archives, or if there is no such fileset; what the store says.
    pub fn scrub_archives(&self, fileset: Option<&str>) -> Result<u64> {
        self.alone("`forebay scrub`")?;
        let _one_at_a_time = self.fileset_changes.lock();
        if let Some(name) = fileset {
            self.fileset_named(name)?;
        }
        if !self.has_archives() {
            return Err(FsError::Refused(
                "the file system has no archives: `forebay disk list` shows its disks, and `forebay scrub` without --archives \
                 compares copies on disks"
                    .to_owned(),
            ));
        }
        self.begin_task(&Work::ScrubArchives { fileset: fileset.map(str::to_owned) })
    }

    /// One turn of reading archives: all of it, unless one of them does not answer.
    pub(super) fn scrub_archived(&self, task: &Task, name: Option<&str>) -> Result<Turn> {
        for fileset in self.filesets_here() {
            let settings = fileset.settings();
            let is_meant = name.is_none_or(|name| shown_name(&settings.name) == name)
                && settings.placement != Placement::Native;
            if !is_meant || task.been_through.lock().contains(&fileset.id) {
                continue;
            }
            let partition = self.open_fileset(fileset.id)?;
            partition.commit()?;
            match self.scrub_archived_of(task, &partition) {
                Err(FsError::Away { location, why, .. }) => {
                    return Ok(Turn::Waits(format!("{location} does not answer: {why}")));
                }
                done => done?,
            }
            partition.remove_unneeded_copies_of_files()?;
            *task.reached.lock() = None;
            task.been_through.lock().insert(fileset.id);
        }
        Ok(Turn::Done)
    }

    fn scrub_archived_of(&self, task: &Task, partition: &Arc<Partition>) -> Result<()> {
        let number = partition.number();
        let mut next = task.reached.lock().clone();
        let mut from = next.take().filter(|(of, _)| *of == number).map(|(_, from)| from);
        loop {
            let (files, more) = partition.files_in_archives(from, CHUNK)?;
            let mut found = Found::default();
            let looked = self.look_at_archived(task, partition, &files, &mut found);
            self.tell_of_archived(&found);
            looked?;
            let Some(more) = more else { return Ok(()) };
            *task.reached.lock() = Some((number, more.clone()));
            from = Some(more);
        }
    }

    fn look_at_archived(
        &self,
        task: &Task,
        partition: &Partition,
        files: &[Ino],
        found: &mut Found,
    ) -> Result<()> {
        let pace = |bytes| task.pace.after(bytes);
        for ino in files {
            pace(0)?;
            let begun = self.shared.clock.instant();
            let read = match partition.verify_archived(*ino, &pace)? {
                Archived::Nothing => continue,
                Archived::Sound(bytes) => bytes,
                Archived::Lost(why) => {
                    found.lost.push((*ino, why));
                    0
                }
                Archived::Needless(why) => {
                    found.needless.push((*ino, why));
                    0
                }
            };
            task.did(1, read, self.since(begun));
        }
        Ok(())
    }

    /// Logs what was found, by the names of the files.
    fn tell_of_archived(&self, found: &Found) {
        let all: Vec<Ino> = found.lost.iter().chain(&found.needless).map(|(ino, _)| *ino).collect();
        if all.is_empty() {
            return;
        }
        let paths = self.paths_of(&all);
        let name = |ino: &Ino| paths.get(ino).cloned().unwrap_or_else(|| format!("inode {ino}"));
        for (ino, why) in &found.lost {
            tracing::error!(file = name(ino), why, "a file has lost its object in an archive");
        }
        for (ino, why) in &found.needless {
            tracing::warn!(
                file = name(ino),
                why,
                "the object of a premigrated file in an archive is damaged: the file is here, and is premigrated again by the next run"
            );
        }
    }
}

impl Partition {
    /// Files that lie in an archive, and those that may lie there too, in order of their numbers from `from` on: about `most`, and
    /// where to go on.
    fn files_in_archives(
        &self,
        from: Option<Vec<u8>>,
        most: usize,
    ) -> Result<(Vec<Ino>, Option<Vec<u8>>)> {
        let has_premigrated = !self.copies().premigrated().is_empty();
        self.stored_inodes(from, most, |record| {
            record.kind == Kind::File
                && record
                    .layout
                    .object()
                    .is_some_and(|at| has_premigrated || self.is_in_archive(at.disk))
        })
    }
}
