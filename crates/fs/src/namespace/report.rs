//! What commands are told of this node: names of filesets, its own disks, paths of files. Asks no other node.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use forebay_base::{DiskId, FilesetId, Ino};
use forebay_disk::{Disk, DiskError};
use serde::{Deserialize, Serialize};

use super::{Fileset, Namespace};
use crate::error::{FsError, Result};
use crate::object::FsDisk;
use crate::ops::{Statistics, shown_name};

/// A file whose bytes cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreachableFile {
    /// Its number.
    pub ino: Ino,
    /// Its path from the top of the file system; none if no name leads to it.
    pub path: Option<String>,
    /// Which disk it lies on, and why that cannot be reached.
    pub why: String,
    /// Whether no node has that disk; otherwise it is there again when its node is.
    pub is_lost: bool,
}

impl Namespace {
    /// All filesets as this node knows them, native ones included, in order of their numbers; `/` is the root fileset.
    #[must_use]
    pub fn fileset_names(&self) -> Vec<(FilesetId, String)> {
        let all = self.catalogue.list().into_iter();
        all.map(|fileset| (fileset.id, shown_name(&fileset.settings().name).to_owned())).collect()
    }

    /// Paths of inodes of filesets that this node owns, from the top of the file system. Goes through all entries of each of
    /// these filesets: for people who ask, not for programs.
    #[must_use]
    pub fn paths_of(&self, inos: &[Ino]) -> HashMap<Ino, String> {
        let mut paths = HashMap::new();
        for partition in self.partitions() {
            let of_it = |ino: &&Ino| ino.fileset() == partition.number();
            let wanted: HashSet<Ino> = inos.iter().filter(of_it).copied().collect();
            let known = self.catalogue.get(partition.number());
            let (false, Some(known)) = (wanted.is_empty(), known) else { continue };
            match partition.paths_of(&known.settings().name, &wanted) {
                Ok(found) => paths.extend(found),
                Err(error) => tracing::warn!(%error, "paths cannot be looked for"),
            }
        }
        paths
    }

    /// Files of filesets that this node owns whose bytes cannot be reached, with their disks: at most `most`, and how many there
    /// are. Asks all disks, and reads all inodes if one does not answer.
    ///
    /// # Errors
    /// [`FsError::Io`](crate::FsError::Io), [`FsError::Damaged`](crate::FsError::Damaged).
    pub fn unreachable_files(&self, most: usize) -> Result<(Vec<UnreachableFile>, u64)> {
        let mut disks = HashMap::new();
        for disk in self.shared.objects.disks.all() {
            if let Err(error @ (DiskError::Away { .. } | DiskError::Absent(_))) =
                disk.disk.capacity()
            {
                let is_lost = matches!(error, DiskError::Absent(_));
                disks.insert(disk.id, (error.to_string(), is_lost));
            }
        }
        let (mut files, mut total) = (Vec::new(), 0);
        if disks.is_empty() {
            return Ok((files, total));
        }
        let wanted: HashSet<DiskId> = disks.keys().copied().collect();
        for partition in self.partitions() {
            let (found, count) = partition.files_on(&wanted, most.saturating_sub(files.len()))?;
            total += count;
            let inos: Vec<Ino> = found.iter().map(|(ino, _)| *ino).collect();
            let mut paths = self.paths_of(&inos);
            files.extend(found.into_iter().map(|(ino, disk)| {
                let (why, is_lost) = disks[&disk].clone();
                UnreachableFile { ino, path: paths.remove(&ino), why, is_lost }
            }));
        }
        Ok((files, total))
    }

    /// Space of all disks together, and inodes in use.
    ///
    /// # Errors
    /// [`FsError::Io`].
    pub fn statistics(&self) -> Result<Statistics> {
        let mut all = Statistics::default();
        // A striped disk has the space of those below.
        let own = |(_, disk): &(DiskId, &FsDisk)| !disk.is_archive() && !disk.is_striped;
        for (id, disk) in self.shared.objects.numbered_disks().filter(own) {
            let one = match self.shared.objects.observe(id, disk.disk.capacity()) {
                Err(FsError::Absent(_) | FsError::Away { .. }) => continue,
                one => one?,
            };
            let sum = &mut all.capacity;
            sum.total_bytes = sum.total_bytes.saturating_add(one.total_bytes);
            sum.free_bytes = sum.free_bytes.saturating_add(one.free_bytes);
            sum.available_bytes = sum.available_bytes.saturating_add(one.available_bytes);
            sum.total_objects = sum.total_objects.saturating_add(one.total_objects);
            sum.free_objects = sum.free_objects.saturating_add(one.free_objects);
        }
        let inodes = |fileset: Arc<Fileset>| self.usage_of(&fileset).unwrap_or_default().inodes;
        all.inodes = self.catalogue.list().into_iter().map(inodes).sum();
        Ok(all)
    }

    /// The clock of this file system, for measuring.
    #[must_use]
    pub fn instant(&self) -> Instant {
        self.shared.clock.instant()
    }

    /// The disks of this node by their identities.
    #[must_use]
    pub fn near_disks(&self) -> Vec<(String, Arc<dyn Disk>)> {
        let near = self.shared.objects.disks.all().filter(|disk| disk.is_near);
        near.map(|disk| (disk.uuid.clone(), Arc::clone(&disk.disk))).collect()
    }
}
