//! Who can get at a home folder: the owner alone.
//!
//! The store has the names, link targets and attributes of all users, and whoever can open `lock` or the label of a
//! disk can hold up a mount for ever. So all files in the folder have mode 0600, its stores' folder and its disk 0700. It has
//! 0700 too, but for root's: 0711 lets users pass through it, by name, to a grid's own folder in it, which says itself
//! what they reach.

use std::fs::{Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use forebay_process::user::is_root;

use super::Home;

/// Mode of a file in a home folder.
pub(super) const FILE: u32 = 0o600;
/// Mode of a folder in it.
pub(super) const FOLDER: u32 = 0o700;
/// Mode of root's home folder.
const PASSAGE: u32 = 0o711;
/// All bits but the owner's own: a socket has 0700 until the daemon that makes it has set its mode.
const OTHERS: u32 = 0o7077;

/// Something that others could get at.
pub struct Opened {
    /// The file or folder.
    pub path: PathBuf,
    /// The mode that it had.
    pub mode: u32,
    /// Whether it is closed now.
    pub closed: io::Result<()>,
}

/// The mode of a home folder that belongs to this user.
pub(super) fn folder_mode(owner: u32) -> u32 {
    if owner == 0 { PASSAGE } else { FOLDER }
}

impl Home {
    /// Refuses, as root, a home folder of somebody else. Whoever can write to the store and the disk decides who owns a file
    /// and whether it is a program that runs as root, and a mount of root's obeys that for everybody.
    ///
    /// # Errors
    /// Names the folder and its owner, and what to do.
    pub fn check_owner(&self) -> Result<()> {
        let owner =
            std::fs::metadata(&self.root).with_context(|| self.root.display().to_string())?.uid();
        ensure!(
            owner == 0 || !is_root(),
            "{0} belongs to user {owner}, who could create programs in it that run as root: mount it as that user, or, \
             if you trust everything in it, give it to root: chown -R root: {0}",
            self.root.display()
        );
        Ok(())
    }

    /// Closes to others what is open to them, and says what was.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn close_to_others(&self) -> io::Result<Vec<Opened>> {
        let about = std::fs::metadata(&self.root)?;
        let mut opened = Vec::new();
        opened.extend(close(&self.root, &about, folder_mode(about.uid())));
        for entry in std::fs::read_dir(&self.root)? {
            let entry = entry?;
            // That of an entry itself: links are not followed.
            let about = match entry.metadata() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                about => about?,
            };
            let name = entry.file_name();
            let is_own = about.is_dir() && (name == Home::DISK || name == Home::NAMES);
            if is_own {
                opened.extend(close(&entry.path(), &about, FOLDER));
            } else if !about.is_dir() && !about.is_symlink() {
                opened.extend(close(&entry.path(), &about, FILE));
            }
        }
        Ok(opened)
    }
}

/// Takes away from others all bits that `most` does not have.
fn close(path: &Path, about: &Metadata, most: u32) -> Option<Opened> {
    let mode = about.permissions().mode() & 0o7777;
    if mode & !most & OTHERS == 0 {
        return None;
    }
    let closed = std::fs::set_permissions(path, Permissions::from_mode(mode & most));
    Some(Opened { path: path.to_owned(), mode, closed })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    fn set(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn what_is_open_to_others_is_closed_and_nothing_else_is_touched() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        let outside = folder.path().join("outside");
        std::fs::write(&outside, "not ours").unwrap();
        set(&outside, 0o644);
        for name in ["", "disk", "grid"] {
            std::fs::create_dir(root.join(name)).unwrap();
            set(&root.join(name), 0o755);
        }
        for (name, mode) in
            [("names.txt", 0o644), ("lock", 0o666), ("forebay.log", 0o400), ("sock", 0o700)]
        {
            std::fs::write(root.join(name), "content").unwrap();
            set(&root.join(name), mode);
        }
        std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
        let home = Home { root: root.clone(), node: None };
        let mut opened = home.close_to_others().unwrap();
        opened.sort_by_key(|one| one.path.clone());
        let found: Vec<_> = opened.iter().map(|one| (one.path.clone(), one.mode)).collect();
        let expected = [("", 0o755), ("disk", 0o755), ("lock", 0o666), ("names.txt", 0o644)];
        assert_eq!(found, expected.map(|(name, mode)| (root.join(name), mode)));
        assert!(opened.iter().all(|one| one.closed.is_ok()));
        let own = std::fs::metadata(&root).unwrap().uid();
        assert_eq!(mode(&root), if own == 0 { 0o711 } else { 0o700 });
        for (name, expected) in [
            ("disk", 0o700),
            ("grid", 0o755),
            ("lock", 0o600),
            ("names.txt", 0o600),
            ("forebay.log", 0o400),
            ("sock", 0o700),
        ] {
            assert_eq!(mode(&root.join(name)), expected, "{name}");
        }
        assert_eq!(mode(&outside), 0o644);
        assert!(home.close_to_others().unwrap().is_empty());
    }
}
