//! The mount table: which Forebay file systems are mounted where.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use forebay_fuse::mount::FS_TYPE;
use forebay_process::mounts::{self, Mount};
use forebay_process::stat;
use rustix::process::Pid;

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
    of_forebay(mounts::all())
}

fn of_forebay(mounts: Vec<Mount>) -> Vec<Mounted> {
    let ours = mounts.into_iter().filter(|mount| mount.file_system == FS_TYPE);
    ours.map(|Mount { source: home, mountpoint, device, .. }| Mounted { home, mountpoint, device })
        .collect()
}

/// The mount of a home folder.
pub fn of_home(home: &Home) -> Option<Mounted> {
    all().into_iter().rev().find(|mount| mount.home == home.root())
}

/// The mount of a home folder that a process sees.
pub fn of_home_as_seen_by(process: u32, home: &Home) -> Option<Mounted> {
    let process = Pid::from_raw(i32::try_from(process).ok()?)?;
    of_forebay(mounts::seen_by(process)).into_iter().rev().find(|mount| mount.home == home.root())
}

/// A process of each mount namespace in which a device is mounted: `python3 (123)`.
pub fn processes_with(device: &str) -> Vec<String> {
    let mut namespaces = BTreeMap::new();
    for process in stat::all() {
        let folder = Path::new("/proc").join(process.to_string());
        let Ok(namespace) = std::fs::read_link(folder.join("ns/mnt")) else { continue };
        namespaces.entry(namespace).or_insert((process, folder));
    }
    let has_it = |process| mounts::seen_by(process).iter().any(|mount| mount.device == device);
    let named = |(process, folder): (Pid, PathBuf)| {
        let name = std::fs::read_to_string(folder.join("comm")).unwrap_or_default();
        format!("{} ({process})", name.trim())
    };
    namespaces.into_values().filter(|(process, _)| has_it(*process)).map(named).collect()
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
    fn of_the_mount_table_only_forebay_counts() {
        let table =
            b"36 35 0:52 / /mnt/a\\040b rw,noatime shared:1 - fuse.forebay /srv/h\\134x rw\n\
                      37 35 0:52 / /mnt rw - ext4 /dev/vda rw\n";
        let mounted = Mounted {
            home: "/srv/h\\x".into(),
            mountpoint: "/mnt/a b".into(),
            device: "0:52".to_owned(),
        };
        assert_eq!(of_forebay(mounts::parse_all(table)), [mounted]);
    }
}
