//! The mount table: which Forebay file systems are mounted where.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use forebay_fuse::mount::FS_TYPE;
use forebay_study::environment::unescape;

use crate::home::Home;

/// A mounted Forebay file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// Its home folder.
    pub home: PathBuf,
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// Number of its device, as the kernel writes it: `major:minor`.
    pub device: String,
}

/// All mounted Forebay file systems, the latest last.
pub fn all() -> Vec<Mounted> {
    seen_by("self")
}

/// All that a process sees: it may have a mount table of its own.
fn seen_by(process: &str) -> Vec<Mounted> {
    let table = std::fs::read_to_string(format!("/proc/{process}/mountinfo")).unwrap_or_default();
    table.lines().filter_map(parse).collect()
}

/// One line of mountinfo (proc_pid_mountinfo(5)), if it is a Forebay file system.
fn parse(line: &str) -> Option<Mounted> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ');
    let device = left.nth(2)?.to_owned();
    let mountpoint = unescape(left.nth(1)?);
    let mut right = right.split(' ');
    (right.next()? == FS_TYPE).then(|| right.next()).flatten().map(|source| Mounted {
        home: unescape(source),
        mountpoint,
        device,
    })
}

/// The mount of a home folder.
pub fn of_home(home: &Home) -> Option<Mounted> {
    all().into_iter().rev().find(|mount| mount.home == home.root())
}

/// The mount of a home folder that a process sees.
pub fn of_home_as_seen_by(process: u32, home: &Home) -> Option<Mounted> {
    let seen = seen_by(&process.to_string());
    seen.into_iter().rev().find(|mount| mount.home == home.root())
}

/// The file system mounted at `mountpoint`.
///
/// # Errors
/// If none is.
pub fn at(mountpoint: &Path) -> Result<Mounted> {
    // A mount whose daemon died cannot be asked for its canonical path.
    let absolute = std::path::absolute(mountpoint)?;
    let canonical = mountpoint.canonicalize().unwrap_or_else(|_| absolute.clone());
    let found = all()
        .into_iter()
        .rev()
        .find(|mount| mount.mountpoint == canonical || mount.mountpoint == absolute);
    match found {
        Some(mount) => Ok(mount),
        None => bail!("no Forebay file system is mounted at {}", mountpoint.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_mount_table_is_taken_apart() {
        let line = "36 35 0:52 / /mnt/a\\040b rw,noatime shared:1 - fuse.forebay /srv/h\\134x rw";
        let mount = parse(line).unwrap();
        assert_eq!(mount.mountpoint, Path::new("/mnt/a b"));
        assert_eq!(mount.home, Path::new("/srv/h\\x"));
        assert_eq!(mount.device, "0:52");
        assert_eq!(parse("36 35 0:52 / /mnt rw - ext4 /dev/vda rw"), None);
        assert_eq!(parse("nonsense"), None);
    }
}
