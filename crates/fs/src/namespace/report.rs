//! What commands are told of this node: names of filesets, its own disks, paths of files. Asks no other node.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use forebay_base::{FilesetId, Ino};
use forebay_disk::Disk;

use super::Namespace;
use crate::ops::shown_name;

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

    /// The clock of this file system, for measuring.
    #[must_use]
    pub fn instant(&self) -> Instant {
        self.shared.clock.instant()
    }

    /// The disks of this node by their identities.
    #[must_use]
    pub fn near_disks(&self) -> Vec<(String, Arc<dyn Disk>)> {
        let near = self.shared.objects.disks.iter().filter(|disk| disk.is_near);
        near.map(|disk| (disk.uuid.clone(), Arc::clone(&disk.disk))).collect()
    }
}
