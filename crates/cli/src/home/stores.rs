//! The stores of a file system as a whole: copied, checked, and put back.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use forebay_base::FilesetId;
use forebay_fs::FsError;
use forebay_fs::fsck::file::{back_up, check_file, restore};
use forebay_fs::fsck::whole::{CheckedFileset, StoredFileset, check_all, merged, stored_filesets};
use forebay_fs::fsck::{NamedDisk, Options, Repair, Report};
use forebay_fs::record::Superblock;
use forebay_fs::recovery::read_superblock;
use forebay_store::Stores;
use forebay_store::redb::RedbOptions;
use forebay_store::redb::folder::RedbFolder;

use super::{Home, access, open_disk};
use crate::member::offline;

/// What came of a check of a file system.
pub struct Checked {
    /// What was found, in all filesets that were checked.
    pub report: Report,
    /// Where stores lie as they were before they were repaired.
    pub kept: Vec<PathBuf>,
}

/// What a copy of a store tells: records copied, and all there are.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

impl Home {
    /// Copies the stores of the file system, or of one fileset, into a new folder; the caller holds the lock. Returns
    /// how many records there are.
    ///
    /// # Errors
    /// If a store cannot be read, or the folder is there.
    pub fn back_up(&self, to: &Path, name: Option<&str>, progress: Progress<'_>) -> Result<u64> {
        let stores = self.stores(&self.settings()?)?;
        let root = stores.look(FilesetId::ROOT)?;
        let filesets = forebay_fs::offline::filesets(&*root)?;
        let filesets = filesets.into_iter().map(|(id, record)| (id, record.settings.name));
        let chosen = choose(filesets.collect(), name)?;
        drop(root);
        back_up_into(to, &chosen, |id, file| Ok(back_up(&*stores.look(id)?, file, &mut *progress)?))
    }

    /// Checks the file system, or one of its filesets, which must not be mounted, and repairs it if asked to.
    ///
    /// # Errors
    /// If it is mounted, the settings are bad, or a disk is not there.
    pub fn check(&self, name: Option<&str>, how: &mut Options<'_>) -> Result<Checked> {
        if let Some(node) = self.node() {
            return offline::check(self, node, name, how);
        }
        let _lock = self.lock()?;
        let stores = self.stores(&self.settings()?)?;
        // Whoever held the lock may be about to end and close it.
        drop(self.superblock(&stores));
        let disks = find_all_disks(&self.root, &stores)?;
        let chosen = choose(names_of(&stores)?, name)?;
        let mut kept = Vec::new();
        let mut check = |id, how: &mut Options<'_>| -> Result<Report> {
            if chosen.iter().all(|(chosen, _)| *chosen != id) {
                return Ok(Report::default());
            }
            let (path, find) = (stores.file_of(id), |_: &Superblock| Ok(disks.clone()));
            let checked = check_file(&path, stores.options(), &find, how)?;
            kept.extend(checked.kept);
            Ok(checked.report)
        };
        let checked = check_all(&stores, how, &mut check)?;
        Ok(Checked { report: merged(&checked), kept })
    }

    /// Has the stores in a backup take the place of those of the file system, which must not be mounted: all of them,
    /// or that of one fileset.
    ///
    /// # Errors
    /// If it is mounted, the backup is damaged or not of this file system, or a disk is not there.
    pub fn restore(
        &self,
        backup: &Path,
        name: Option<&str>,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Checked> {
        if let Some(node) = self.node() {
            return offline::restore(self, node, backup, name, progress);
        }
        let _lock = self.lock()?;
        let stores = self.stores(&self.settings()?)?;
        let copies = RedbFolder::at(backup, stores.options().clone());
        let chosen = choose(stored_names(&copies, backup)?, name)?;
        for (id, name) in &chosen {
            if !stores.list_frozen(*id)?.is_empty() {
                let shown = if name.is_empty() { "/" } else { name };
                bail!(
                    "fileset \"{shown}\" has snapshots, which a backup does not include, and would lose them: delete them \
                     first (`forebay snapshot delete`), or read what is needed from {shown}/.snapshots"
                );
            }
        }
        let disks = find_all_disks(&self.root, &copies)?;
        self.make_names_folder()?;
        let (mut reports, mut kept) = (Vec::new(), Vec::new());
        // The root fileset names the others: it comes last, and is checked even if it is not restored.
        let others = chosen.iter().map(|(id, _)| *id).filter(|id| *id != FilesetId::ROOT);
        for id in others.chain([FilesetId::ROOT]) {
            let (path, find) = (stores.file_of(id), |_: &Superblock| Ok(disks.clone()));
            let is_chosen = chosen.iter().any(|(chosen, _)| *chosen == id);
            let mut stored = stored_filesets(&stores)?;
            if is_chosen && !stored.iter().any(|stored| stored.id == id) {
                stored.push(StoredFileset { id, settings: None, uuid: None });
            }
            let filesets = Some(stored.as_slice());
            let mut how = Options {
                repair: Repair::Found,
                records_lost: is_chosen,
                archives: forebay_fs::fsck::Archives::Trusted,
                fileset: Some(id),
                disks: None,
                stores: Some(&stores),
                filesets,
                progress,
            };
            let checked = if is_chosen {
                restore(&path, &copies.file_of(id), stores.options(), &find, &mut how)
                    .with_context(|| {
                        format!("{} was not restored; nothing was changed", backup.display())
                    })?
            } else {
                check_file(&path, stores.options(), &find, &mut how)?
            };
            kept.extend(checked.kept);
            reports.push(CheckedFileset { id, name: String::new(), report: checked.report });
        }
        Ok(Checked { report: merged(&reports), kept })
    }

    pub(super) fn make_names_folder(&self) -> Result<()> {
        let path = self.names_path();
        if !path.exists() {
            std::fs::create_dir(&path)
                .with_context(|| format!("cannot create {}", path.display()))?;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(access::FOLDER))?;
        }
        Ok(())
    }
}

/// The filesets called `name`, or all of them.
pub fn choose(
    filesets: Vec<(FilesetId, String)>,
    name: Option<&str>,
) -> Result<Vec<(FilesetId, String)>> {
    let Some(name) = name else { return Ok(filesets) };
    let wanted = if name == "/" { "" } else { name };
    let names: Vec<String> = filesets
        .iter()
        .map(|(_, name)| if name.is_empty() { "/" } else { name }.to_owned())
        .collect();
    let chosen: Vec<_> = filesets.into_iter().filter(|(_, name)| name == wanted).collect();
    if chosen.is_empty() {
        bail!("there is no fileset \"{name}\"; choose from {}", names.join(", "));
    }
    Ok(chosen)
}

/// The filesets that have a store, with their names; a number where that cannot be read.
pub fn names_of(stores: &dyn Stores) -> Result<Vec<(FilesetId, String)>> {
    let named = |stored: StoredFileset| match stored.settings {
        Some(settings) => (stored.id, settings.name),
        None if stored.id == FilesetId::ROOT => (stored.id, String::new()),
        None => (stored.id, format!("fileset-{}", stored.id)),
    };
    Ok(stored_filesets(stores)?.into_iter().map(named).collect())
}

/// Copies stores into a new folder: whole, or not at all.
pub fn back_up_into(
    to: &Path,
    filesets: &[(FilesetId, String)],
    mut copy: impl FnMut(FilesetId, &Path) -> Result<u64>,
) -> Result<u64> {
    if to.symlink_metadata().is_ok() {
        bail!("{} already exists: choose a new name", to.display());
    }
    let mut unfinished = to.as_os_str().to_owned();
    unfinished.push(".unfinished");
    let unfinished = PathBuf::from(unfinished);
    let copied = (|| {
        if unfinished.exists() {
            std::fs::remove_dir_all(&unfinished)?;
        }
        std::fs::create_dir(&unfinished)
            .with_context(|| format!("cannot create {}", unfinished.display()))?;
        let mode = std::fs::Permissions::from_mode(access::FOLDER);
        std::fs::set_permissions(&unfinished, mode)?;
        let copies = RedbFolder::at(&unfinished, RedbOptions::default());
        let mut records = 0;
        for (id, _) in filesets {
            records += copy(*id, &copies.file_of(*id))?;
        }
        std::fs::rename(&unfinished, to)
            .with_context(|| format!("cannot create {}", to.display()))?;
        let above = to.parent().filter(|above| !above.as_os_str().is_empty());
        std::fs::File::open(above.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(records)
    })();
    if copied.is_err() {
        let _ = std::fs::remove_dir_all(&unfinished);
    }
    copied
}

/// The filesets in a backup with their names.
pub fn stored_names(copies: &RedbFolder, backup: &Path) -> Result<Vec<(FilesetId, String)>> {
    let ids = copies.list().unwrap_or_default();
    if ids.is_empty() {
        bail!(
            "{} is not a backup: name the folder that `forebay store backup` made",
            backup.display()
        );
    }
    let named = |id| -> Result<(FilesetId, String)> {
        let superblock = read_superblock(&*copies.look(id)?)?;
        Ok((id, superblock.settings.name))
    };
    ids.into_iter()
        .map(|id| named(id).with_context(|| format!("{} is damaged", copies.file_of(id).display())))
        .collect()
}

/// All disks of a file system, as the first store that can be read tells: those of the root fileset's, if it can.
fn find_all_disks(root: &Path, stores: &RedbFolder) -> Result<Vec<NamedDisk>> {
    for id in stores.list()? {
        let superblock = stores.look(id).map_err(FsError::from);
        let Ok(superblock) = superblock.and_then(|store| read_superblock(&*store)) else {
            continue;
        };
        let disks = superblock.disks.iter().filter(|record| record.is_expected());
        return disks
            .map(|record| Ok((record.uuid.clone(), open_disk(root, &superblock, record)?)))
            .collect();
    }
    Ok(Vec::new())
}
