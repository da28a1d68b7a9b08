//! Native filesets among the others: opened at their first use, made and removed with their trees.
//!
//! They have no store. Where others have theirs made or removed between the two steps of coming and going, these have
//! their tree.

use std::path::Path;
use std::sync::Arc;

use forebay_base::Ino;

use super::Namespace;
use super::catalogue::Fileset;
use super::filesets::finish_removal;
use crate::error::{FsError, Result};
use crate::native::{
    FIRST_SPARE, Mark, NativeFileset, NativeOwner, NativePlace, NativeTree, suits,
};
use crate::object::FsDisk;
use crate::owner::Owner;
use crate::record::{DiskUse, FilesetRecord, FilesetSettings, Placement, Stage};
use crate::shared::Shared;

/// Where a native fileset lies.
fn place_of(shared: &Shared, uuid: &str, settings: &FilesetSettings) -> Result<NativePlace> {
    let disks = shared.objects.disks.all().map(|disk: &FsDisk| (disk.uuid.as_str(), &*disk.disk));
    NativePlace::find(uuid, disks, settings)
}

/// Removes the tree of a native fileset that is to go, and its mark; for others does nothing.
pub(super) fn remove_tree(shared: &Shared, uuid: &str, settings: &FilesetSettings) -> Result<()> {
    if settings.placement != Placement::Native {
        return Ok(());
    }
    let place = place_of(shared, uuid, settings)?;
    place.remove_tree()?;
    place.forget()
}

impl Namespace {
    /// Where a native fileset lies.
    pub(super) fn native_place(&self, settings: &FilesetSettings) -> Result<NativePlace> {
        place_of(&self.shared, &self.uuid, settings)
    }

    /// Makes the tree of a native fileset; it belongs to whoever runs this.
    pub(super) fn make_native_tree(&self, settings: &FilesetSettings, mode: u16) -> Result<()> {
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        self.native_place(settings)?.create(mode, owner)
    }

    /// Removes the tree of a native fileset that could not be made.
    pub(super) fn remove_native_tree(&self, settings: &FilesetSettings) -> Result<()> {
        remove_tree(&self.shared, &self.uuid, settings)
    }

    /// Opens a native fileset, unless it is open. One that cannot be reached answers with the reason.
    pub(super) fn open_native(&self, fileset: &Fileset) {
        let _one_at_a_time = fileset.opening.lock();
        if self.shared.owners.find(fileset.id).is_some() {
            return;
        }
        let (settings, top) = (fileset.settings(), Ino::top_of(fileset.id));
        if self.is_list(fileset) {
            let owner = NativeOwner::Nodes(self.node_directories(fileset));
            self.shared.owners.set(fileset.id, Some(&Owner::Native(Arc::new(owner))));
            return;
        }
        let descriptors_max = self.shared.settings.native_handles_max;
        let tree = self.native_place(&settings).and_then(|place| {
            let base = Ino::of(fileset.id, 0).0;
            let tree = NativeTree::open(place.open()?, base, top, descriptors_max)?;
            Ok(match &self.cluster {
                Some(membership) => tree.in_life(membership.cluster().life()),
                None => tree,
            })
        });
        match (&tree, self.direct.get()) {
            (Ok(tree), Some(direct)) => tree.set_direct_access(Arc::clone(direct)),
            (Ok(_), None) => {}
            (Err(error), _) => {
                let name = &settings.name;
                tracing::error!(fileset = name, %error, "a native fileset cannot be reached");
            }
        }
        let owner = Owner::Native(Arc::new(NativeOwner::of(tree)));
        self.shared.owners.set(fileset.id, Some(&owner));
    }

    /// Has the kernel read and write files of the native filesets that are open.
    pub(super) fn give_direct_access_to_native(&self) {
        let Some(direct) = self.direct.get() else { return };
        for native in self.shared.owners.native() {
            if let Ok(tree) = native.tree() {
                tree.set_direct_access(Arc::clone(direct));
            }
        }
    }

    /// Refuses a native fileset of this node with open files, as far as the daemon serves it.
    pub(super) fn check_not_open(&self, fileset: &Fileset) -> Result<()> {
        let has_open_files =
            self.shared.owners.find(fileset.id).is_some_and(|route| match &*route {
                Owner::Native(native) => native.tree().is_ok_and(NativeTree::has_open_files),
                Owner::Local(_) | Owner::Remote(_) => false,
            });
        if has_open_files {
            return Err(FsError::Refused(format!(
                "fileset \"{}\" has open files: close them first",
                fileset.settings().name
            )));
        }
        Ok(())
    }

    /// Removes an empty native fileset.
    pub(super) fn remove_native(&self, fileset: &Fileset) -> Result<()> {
        let settings = fileset.settings();
        self.check_not_open(fileset)?;
        // First of all, in one step that fails if anything is in it. Until the end the same command can be repeated.
        let place = self.native_place(&settings)?;
        place.remove_tree()?;
        let root = self.root()?;
        let made = root.fileset_record(fileset.id)?;
        let first_ino = made.first_ino.max(FIRST_SPARE);
        let removing = FilesetRecord { stage: Stage::Removing, first_ino, ..made };
        root.unname_fileset(fileset.id, &removing)?;
        self.shared.owners.set(fileset.id, None);
        self.catalogue.remove(fileset.id, (removing.first_ino, removing.first_object));
        self.commit_change()?;
        self.shared.fail_points.reach("fileset.unnamed")?;
        place.forget()?;
        finish_removal(&*self.stores, &root, fileset.id, &removing)?;
        self.shared.fail_points.reach("fileset.removed")?;
        self.commit_change()
    }

    /// Identity and directory of the disk for a new native fileset: the one that is wanted, or the suitable one with
    /// the most space.
    pub(super) fn disk_for_native(&self, wanted: Option<&str>) -> Result<(String, String)> {
        let mut disks = self.disk_status();
        disks.retain(|disk| disk.used == DiskUse::Normal);
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

    /// All native filesets, with their directories.
    #[must_use]
    pub fn native_filesets(&self) -> Vec<NativeFileset> {
        let place_of = |settings: &FilesetSettings| {
            let place = self.native_place(settings)?;
            place.open()?;
            Ok(place.tree())
        };
        let native = |fileset: Arc<Fileset>| {
            let (seat, settings) = (fileset.seat()?, fileset.settings());
            if self.is_list(&fileset) {
                return None;
            }
            let tree = match self.check_reached(seat) {
                Ok(true) => Some(place_of(&settings)),
                Ok(false) => None,
                Err(error) => Some(Err(error)),
            };
            let tree = tree.map(|tree| tree.map_err(|error: FsError| error.to_string()));
            Some(NativeFileset { name: settings.name, tree })
        };
        self.catalogue.list().into_iter().filter_map(native).collect()
    }

    /// Whether names in a directory change through this file system alone.
    #[must_use]
    pub fn keeps_names(&self, directory: Ino) -> bool {
        let owner = self.shared.owners.find(directory.fileset());
        !matches!(owner.as_deref(), Some(Owner::Native(_) | Owner::Remote(_)))
            && !self.is_cache(directory.fileset())
    }
}

impl NativePlace {
    /// The place of a native fileset of the file system `uuid` among its disks.
    ///
    /// # Errors
    /// [`FsError::Refused`] if its disk is not there, or can hold none.
    pub(crate) fn find<'a>(
        uuid: &str,
        mut disks: impl Iterator<Item = (&'a str, &'a dyn forebay_disk::Disk)>,
        settings: &FilesetSettings,
    ) -> Result<NativePlace> {
        let (name, wanted) = (&settings.name, settings.disk.as_deref().unwrap_or_default());
        let Some((_, disk)) = disks.find(|(disk, _)| *disk == wanted) else {
            return Err(FsError::Refused(format!(
                "the disk {wanted} of the native fileset \"{name}\" is not there"
            )));
        };
        let about = disk.describe();
        if !suits(&about.kind) {
            return Err(FsError::Refused(format!(
                "the disk {wanted} ({}) of the native fileset \"{name}\" is {}, not a local file system",
                about.location, about.kind
            )));
        }
        let mark = Mark { file_system: uuid.to_owned(), fileset: name.clone() };
        Ok(NativePlace::on(Path::new(&about.location), mark))
    }
}
