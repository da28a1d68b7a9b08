//! Native filesets of a file system: making and removing them, and where they lie.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_base::{FilesetId, Ino};
use serde::{Deserialize, Serialize};

use crate::error::{FsError, Result};
use crate::namespace::{Namespace, Owner};
use crate::native::{Mark, NativePlace, NativeTree, suits};
use crate::object::DirectAccess;
use crate::partition::Partition;
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

/// Who answers for a native fileset: its tree, or the reason why it cannot be reached.
pub struct NativeOwner {
    name: String,
    tree: Result<NativeTree>,
}

impl NativeOwner {
    /// The tree.
    ///
    /// # Errors
    /// [`FsError::Io`] with the reason, if it cannot be reached.
    pub fn tree(&self) -> Result<&NativeTree> {
        self.tree.as_ref().map_err(|error| FsError::Io(error.to_string()))
    }

    /// The kernel forgets `count` of the times it was told of an inode.
    pub fn forget(&self, ino: Ino, count: u64) {
        if let Ok(tree) = &self.tree {
            tree.forget(ino, count);
        }
    }
}

impl Namespace {
    /// Makes a fileset with a top-level directory of the same name.
    ///
    /// # Errors
    /// [`FsError::Refused`] for a bad name or one that is taken, and for a native fileset without a suitable disk.
    pub fn add_fileset(&self, new: &NewFileset) -> Result<()> {
        if new.placement != Placement::Native {
            return self.create_fileset(&new.name, new.durability, new.placement, new.mode);
        }
        let root = self.root();
        root.check_new_fileset(&new.name)?;
        let (disk, location) = root.disk_for_native(new.disk.as_deref())?;
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let place = root.native_place_on(Path::new(&location), &new.name);
        place.create(new.mode, owner)?;
        let made = root.create_fileset_on(
            &new.name,
            Durability::Scratch,
            new.placement,
            new.mode,
            Some(disk),
        );
        if made.is_err() && root.check_new_fileset(&new.name).is_ok() {
            // There is no record of it: nobody can have used it yet.
            let _ = place.remove_tree().and_then(|()| place.forget());
        }
        self.open_native_filesets();
        made
    }

    /// Opens the native filesets that are not open.
    pub(crate) fn open_native_filesets(&self) {
        for (id, record) in self.root().native_records() {
            let top = Ino::top_of(id);
            if self.native_tops.load().iter().any(|(_, open)| *open == top) {
                continue;
            }
            let descriptors_max = self.settings().native_handles_max;
            let tree = self.root().native_place(&record).and_then(|place| {
                NativeTree::open(place.open()?, Ino::of(id, 0).0, top, descriptors_max)
            });
            match (&tree, self.direct.get()) {
                (Err(error), _) => {
                    tracing::error!(fileset = record.name, %error, "a native fileset cannot be reached");
                }
                (Ok(tree), Some(direct)) => tree.set_direct_access(Arc::clone(direct)),
                (Ok(_), None) => {}
            }
            let owner = NativeOwner { name: record.name.clone(), tree };
            self.set_owner(id, Some(Owner::Native(Arc::new(owner))));
            self.native_tops.rcu(|tops| {
                let mut tops = Vec::clone(tops);
                tops.push((record.root, top));
                tops
            });
        }
    }

    /// Forgets a native fileset that was removed.
    pub(crate) fn drop_native(&self, name: &str) {
        let is_it = |owner: &Owner| matches!(owner, Owner::Native(native) if native.name == name);
        let tops = self.native_tops.load_full();
        for (_, top) in tops.iter() {
            if self.owners_of(*top).is_some_and(|owner| is_it(&owner)) {
                self.set_owner(top.fileset(), None);
                self.native_tops.rcu(|tops| {
                    tops.iter().filter(|(_, other)| other != top).copied().collect::<Vec<_>>()
                });
            }
        }
    }

    /// The top directory of the native fileset that an inode of the root fileset stands for, if it does.
    pub(crate) fn native_top_at(&self, ino: Ino) -> Option<Ino> {
        self.native_tops.load().iter().find(|(stand_in, _)| *stand_in == ino).map(|(_, top)| *top)
    }

    pub(crate) fn give_direct_access_to_native(&self, direct: &Arc<dyn DirectAccess>) {
        for owner in self.owners() {
            if let Owner::Native(native) = owner
                && let Ok(tree) = native.tree()
            {
                tree.set_direct_access(Arc::clone(direct));
            }
        }
    }

    /// All native filesets, with their directories.
    #[must_use]
    pub fn native_filesets(&self) -> Vec<NativeFileset> {
        let native = |(_, record): (FilesetId, FilesetRecord)| {
            let tree = self.root().native_place(&record).and_then(|place| {
                place.open()?;
                Ok(place.tree())
            });
            NativeFileset { name: record.name, tree: tree.map_err(|error| error.to_string()) }
        };
        self.root().native_records().into_iter().map(native).collect()
    }
}

impl Partition {
    /// Records of native filesets.
    fn native_records(&self) -> Vec<(FilesetId, FilesetRecord)> {
        let all = self.filesets.list();
        let native = all.iter().filter(|fileset| fileset.record.placement == Placement::Native);
        native.map(|fileset| (fileset.id, fileset.record.clone())).collect()
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
