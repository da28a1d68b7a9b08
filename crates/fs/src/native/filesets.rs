//! Native filesets of a file system: making and removing them, and where they lie.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{FsError, Result};
use crate::filesystem::FileSystem;
use crate::native::{Mark, NativePlace, suits};
use crate::record::{Durability, FilesetRecord, Placement};

/// A fileset that is to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewFileset {
    /// Name of the fileset and its top directory.
    pub name: String,
    /// Durability class; a native fileset has that of its disk.
    pub durability: Durability,
    /// Who reads and writes its files.
    pub placement: Placement,
    /// Disk of a native fileset, by its identity; `None`: the suitable one with the most space.
    pub disk: Option<String>,
    /// Permission bits of its top directory.
    pub mode: u16,
}

/// A native fileset of a file system.
#[derive(Clone, Debug)]
pub struct NativeFileset {
    /// Name.
    pub name: String,
    /// Its directory on its disk, or why it cannot be reached.
    pub tree: std::result::Result<PathBuf, String>,
}

impl FileSystem {
    /// Makes a fileset with a top-level directory of the same name.
    ///
    /// # Errors
    /// [`FsError::Refused`] for a bad name or one that is taken, and for a native fileset without a suitable disk.
    pub fn add_fileset(&self, new: &NewFileset) -> Result<()> {
        if new.placement != Placement::Native {
            return self.create_fileset(&new.name, new.durability, new.placement, new.mode);
        }
        self.check_new_fileset(&new.name)?;
        let (disk, location) = self.disk_for_native(new.disk.as_deref())?;
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let place = self.native_place_on(Path::new(&location), &new.name);
        place.create(new.mode, owner)?;
        let made = self.create_fileset_on(&new.name, Durability::Scratch, new.placement, new.mode, Some(disk));
        if made.is_err() {
            // Nobody can have used it yet.
            let _ = place.remove_tree().and_then(|()| place.forget());
        }
        made
    }

    /// All native filesets, with their directories.
    #[must_use]
    pub fn native_filesets(&self) -> Vec<NativeFileset> {
        let native = |record: &FilesetRecord| {
            let tree = self.native_place(record).and_then(|place| {
                place.open()?;
                Ok(place.tree())
            });
            NativeFileset { name: record.name.clone(), tree: tree.map_err(|error| error.to_string()) }
        };
        let all = self.filesets.list();
        let is_native = |record: &&FilesetRecord| record.placement == Placement::Native;
        all.iter().map(|fileset| &fileset.record).filter(is_native).map(native).collect()
    }

    /// Where a native fileset lies.
    pub(crate) fn native_place(&self, record: &FilesetRecord) -> Result<NativePlace> {
        let uuid = record.disk.as_deref().unwrap_or_default();
        let (_, location) = self.disk_for_native(Some(uuid))?;
        Ok(self.native_place_on(Path::new(&location), &record.name))
    }

    fn native_place_on(&self, disk: &Path, name: &str) -> NativePlace {
        NativePlace::on(disk, Mark { file_system: self.uuid(), fileset: name.to_owned() })
    }

    /// Identity and directory of the disk for a native fileset.
    fn disk_for_native(&self, wanted: Option<&str>) -> Result<(String, String)> {
        let disks = self.disk_status();
        let fits = |uuid: &str| wanted.is_none_or(|wanted| wanted == uuid);
        let candidates: Vec<_> = disks.iter().filter(|disk| fits(&disk.uuid)).collect();
        let suitable = candidates.iter().filter(|disk| suits(&disk.kind));
        match (suitable.max_by_key(|disk| disk.available_bytes), candidates.first(), wanted) {
            (Some(disk), _, _) => Ok((disk.uuid.clone(), disk.location.clone())),
            (None, Some(disk), Some(_)) => Err(FsError::Refused(format!(
                "the disk {} ({}) cannot hold a native fileset: {} is not a local file system",
                disk.uuid, disk.location, disk.kind
            ))),
            (None, None, Some(wanted)) => Err(FsError::Refused(format!(
                "there is no disk \"{wanted}\"; choose from {}",
                disks.iter().map(|disk| disk.uuid.as_str()).collect::<Vec<_>>().join(", ")
            ))),
            (None, _, None) => Err(FsError::Refused(
                "no disk of this file system is local, as a native fileset needs".to_owned(),
            )),
        }
    }
}
