//! Where a native fileset lies on its disk, and the mark that says whose it is.
//!
//! ```text
//! native/NAME/forebay-fileset.toml   the mark: which fileset of which file system
//! native/NAME/tree/                  its top directory, which users see
//! ```
//!
//! The directory of a node in a native fileset of a cluster is a fileset called `NAME/NODE`.
//!
//! `native` and `native/NAME` are closed to others (mode 0700), so users reach the tree only where it is mounted and
//! cannot touch the mark. Creating ends with the mark, removing begins with the tree: what a crash leaves between the
//! steps has no files in it, and the same command, given again, completes it.

use std::fs::{DirBuilder, File, Permissions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::{FsError, Result};

/// Folder of a disk that holds its native filesets.
pub const FOLDER: &str = "native";
/// Folder of a native fileset that holds its files.
pub const TREE: &str = "tree";
/// File beside it that says whose it is.
pub const MARK: &str = "forebay-fileset.toml";

/// The most bytes that are read of a mark.
const MARK_BYTES_MAX: u64 = 4096;

/// Which fileset a tree belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// Identity of the file system.
    pub file_system: String,
    /// Name of the fileset.
    pub fileset: String,
}

/// A native fileset on a disk.
#[derive(Clone, Debug)]
pub struct NativePlace {
    disk: PathBuf,
    folder: PathBuf,
    mark: Mark,
}

impl NativePlace {
    /// The place of the fileset that `mark` names, on the disk in the directory `disk`. Nothing is read or made.
    #[must_use]
    pub fn on(disk: &Path, mark: Mark) -> NativePlace {
        NativePlace { disk: disk.to_owned(), folder: disk.join(FOLDER).join(&mark.fileset), mark }
    }

    /// The top directory.
    #[must_use]
    pub fn tree(&self) -> PathBuf {
        self.folder.join(TREE)
    }

    fn mark_path(&self) -> PathBuf {
        self.folder.join(MARK)
    }

    /// Makes the top directory, with this mode and owner (user, group), and the mark. An empty tree that an earlier
    /// attempt left is taken over.
    ///
    /// # Errors
    /// [`FsError::Refused`] if there is something else in its place, or it cannot be made.
    pub fn create(&self, mode: u16, owner: (u32, u32)) -> Result<()> {
        match self.read_mark()? {
            Some(found) if found != self.mark => return Err(self.belongs_to(&found)),
            Some(_) | None => {}
        }
        let mut folders = vec![self.disk.join(FOLDER)];
        for part in self.mark.fileset.split('/') {
            folders.push(folders[folders.len() - 1].join(part));
        }
        folders.iter().try_for_each(|folder| make_closed(folder))?;
        let tree = self.tree();
        match std::fs::create_dir(&tree) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => self.check_empty()?,
            Err(error) => return Err(cannot("create", &tree, &error)),
        }
        let failed = |error: std::io::Error| cannot("set owner and mode of", &tree, &error);
        std::os::unix::fs::chown(&tree, Some(owner.0), Some(owner.1)).map_err(failed)?;
        // After the owner: a change of owner takes set-id bits away.
        let permissions = Permissions::from_mode(u32::from(mode & 0o7777));
        std::fs::set_permissions(&tree, permissions).map_err(failed)?;
        self.write_mark()?;
        for folder in folders.iter().rev().chain([&self.disk]) {
            File::open(folder)
                .and_then(|opened| opened.sync_all())
                .map_err(|error| cannot("sync", folder, &error))?;
        }
        Ok(())
    }

    /// As [`NativePlace::create`]; a tree that is there stays as it is, with all that it holds.
    ///
    /// # Errors
    /// As [`NativePlace::create`].
    pub fn ensure(&self, mode: u16, owner: (u32, u32)) -> Result<()> {
        if self.open().is_ok() {
            return Ok(());
        }
        self.create(mode, owner)
    }

    /// Opens the top directory, after a look at the mark.
    ///
    /// # Errors
    /// [`FsError::Refused`] if tree or mark are missing, or the mark names another fileset: with what to do.
    pub fn open(&self) -> Result<OwnedFd> {
        match self.read_mark()? {
            None => {
                return Err(FsError::Refused(format!(
                    "the native fileset \"{}\" is not on its disk: {} is missing; check what is mounted there, or \
                     put the folder back",
                    self.mark.fileset,
                    self.mark_path().display()
                )));
            }
            Some(found) if found != self.mark => return Err(self.belongs_to(&found)),
            Some(_) => {}
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::open(self.tree(), flags, Mode::empty()).map_err(|errno| match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP => FsError::Refused(format!(
                "the native fileset \"{}\" has lost its files: {} is not a directory; put it back, or remove the \
                 fileset",
                self.mark.fileset,
                self.tree().display()
            )),
            other => cannot("open", &self.tree(), &other.into()),
        })
    }

    /// Removes the empty tree; the mark stays until [`NativePlace::forget`]. A tree that is gone is not an error.
    ///
    /// # Errors
    /// [`FsError::Refused`] if it holds files, or belongs to another fileset.
    pub fn remove_tree(&self) -> Result<()> {
        if let Some(found) = self.read_mark()?.filter(|found| *found != self.mark) {
            return Err(self.belongs_to(&found));
        }
        match std::fs::remove_dir(self.tree()) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => Err(FsError::Refused(
                format!("fileset \"{}\" holds files: remove them first", self.mark.fileset),
            )),
            Err(error) => Err(cannot("remove", &self.tree(), &error)),
        }
    }

    /// Removes the mark and the folder, once no record names the fileset any more.
    ///
    /// # Errors
    /// [`FsError::Refused`] if they cannot be removed.
    pub fn forget(&self) -> Result<()> {
        let absent = |error: &std::io::Error| error.kind() == ErrorKind::NotFound;
        let removed = std::fs::remove_file(self.mark_path());
        removed
            .or_else(|error| if absent(&error) { Ok(()) } else { Err(error) })
            .map_err(|error| cannot("remove", &self.mark_path(), &error))?;
        let removed = std::fs::remove_dir(&self.folder);
        removed
            .or_else(|error| if absent(&error) { Ok(()) } else { Err(error) })
            .map_err(|error| cannot("remove", &self.folder, &error))
    }

    fn check_empty(&self) -> Result<()> {
        let tree = self.tree();
        let mut entries =
            std::fs::read_dir(&tree).map_err(|error| cannot("list", &tree, &error))?;
        match entries.next() {
            None => Ok(()),
            Some(_) => Err(FsError::Refused(format!(
                "{} already holds files: move them away, or choose another name for the fileset",
                tree.display()
            ))),
        }
    }

    fn belongs_to(&self, found: &Mark) -> FsError {
        FsError::Refused(format!(
            "{} belongs to the fileset \"{}\" of file system {}, not to \"{}\" of {}: check what is mounted there",
            self.folder.display(),
            found.fileset,
            found.file_system,
            self.mark.fileset,
            self.mark.file_system
        ))
    }

    /// What the mark says; `None` if there is none.
    fn read_mark(&self) -> Result<Option<Mark>> {
        let path = self.mark_path();
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(errno) => return Err(cannot("open", &path, &errno.into())),
        };
        let mut text = String::new();
        file.take(MARK_BYTES_MAX)
            .read_to_string(&mut text)
            .map_err(|error| cannot("read", &path, &error))?;
        toml::from_str(&text).map(Some).map_err(|error| {
            FsError::Refused(format!(
                "{} does not say which fileset it belongs to ({}): put it back from a backup, or write the two \
                 lines file_system = \"{}\" and fileset = \"{}\" into it",
                path.display(),
                error.message(),
                self.mark.file_system,
                self.mark.fileset
            ))
        })
    }

    /// Writes the mark: whole, or not at all.
    fn write_mark(&self) -> Result<()> {
        let path = self.mark_path();
        let draft = self.folder.join(format!("{MARK}.new"));
        let text = toml::to_string(&self.mark).map_err(|error| FsError::Io(error.to_string()))?;
        let written = File::create(&draft)
            .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
            .and_then(|()| std::fs::rename(&draft, &path));
        written.map_err(|error| cannot("write", &path, &error))
    }
}

/// Makes a folder that is closed to others, or closes the one that is there.
fn make_closed(folder: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let is_folder =
                std::fs::symlink_metadata(folder).is_ok_and(|about| about.file_type().is_dir());
            if !is_folder {
                return Err(cannot("create", folder, &error));
            }
            std::fs::set_permissions(folder, Permissions::from_mode(0o700))
                .map_err(|error| cannot("close", folder, &error))
        }
        Err(error) => Err(cannot("create", folder, &error)),
    }
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> FsError {
    FsError::Refused(format!("cannot {what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    fn mark(file_system: &str, fileset: &str) -> Mark {
        Mark { file_system: file_system.to_owned(), fileset: fileset.to_owned() }
    }

    fn own() -> (u32, u32) {
        (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
    }

    #[test]
    fn a_native_fileset_has_a_tree_and_a_mark_and_its_folders_are_closed() {
        let disk = tempfile::tempdir().unwrap();
        let place = NativePlace::on(disk.path(), mark("one", "work"));
        place.create(0o1777, own()).unwrap();
        drop(place.open().unwrap());
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!(mode(&place.tree()), 0o1777);
        assert_eq!(mode(&disk.path().join("native")), 0o700);
        assert_eq!(mode(&disk.path().join("native/work")), 0o700);
    }

    #[test]
    fn a_tree_without_its_mark_or_with_that_of_another_is_refused() {
        let disk = tempfile::tempdir().unwrap();
        let place = NativePlace::on(disk.path(), mark("one", "work"));
        assert!(place.open().unwrap_err().to_string().contains("is missing"));
        place.create(0o755, own()).unwrap();
        let other = NativePlace::on(disk.path(), mark("two", "work"));
        for refused in [other.open().map(drop), other.create(0o755, own()), other.remove_tree()] {
            assert!(refused.unwrap_err().to_string().contains("belongs to"));
        }
        std::fs::write(place.mark_path(), "").unwrap();
        assert!(place.open().unwrap_err().to_string().contains("file_system = \"one\""));
        std::fs::remove_file(place.mark_path()).unwrap();
        assert!(place.open().is_err());
        place.create(0o755, own()).unwrap();
        std::fs::remove_dir(place.tree()).unwrap();
        assert!(place.open().unwrap_err().to_string().contains("has lost its files"));
    }

    #[test]
    fn only_an_empty_tree_is_removed_or_taken_over() {
        let disk = tempfile::tempdir().unwrap();
        let place = NativePlace::on(disk.path(), mark("one", "work"));
        place.create(0o755, own()).unwrap();
        std::fs::write(place.tree().join("file"), "kept").unwrap();
        assert!(place.remove_tree().unwrap_err().to_string().contains("holds files"));
        assert!(place.create(0o755, own()).unwrap_err().to_string().contains("already holds"));
        std::fs::remove_file(place.tree().join("file")).unwrap();
        place.create(0o700, own()).unwrap();
        place.remove_tree().unwrap();
        // As after a crash: the same step again.
        place.remove_tree().unwrap();
        place.forget().unwrap();
        place.forget().unwrap();
        assert!(!disk.path().join("native/work").exists());
    }

    #[test]
    fn a_link_in_the_place_of_a_tree_is_not_followed() {
        let disk = tempfile::tempdir().unwrap();
        let place = NativePlace::on(disk.path(), mark("one", "work"));
        place.create(0o755, own()).unwrap();
        std::fs::remove_dir(place.tree()).unwrap();
        std::os::unix::fs::symlink("/", place.tree()).unwrap();
        assert!(place.open().is_err());
    }
}
