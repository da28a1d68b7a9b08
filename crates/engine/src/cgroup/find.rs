//! Where this process may make groups, by what /proc says of its mounts and its own groups.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use forebay_process::mounts::{self, Mount};

use super::group;
use super::{Memory, Parent, Places};

/// Makes the folder for the groups of a host; `name` is its own. None where jobs shall have no groups.
///
/// # Errors
/// If there can be none: the reason.
pub fn find(parent: &Parent, name: &str) -> Result<Option<Places>> {
    let mounts = mounts::all();
    let own = fs::read_to_string("/proc/self/cgroup").context("/proc/self/cgroup")?;
    let base = match parent {
        Parent::None => return Ok(None),
        Parent::Own => {
            let base = own_folder(&mounts, &own, Hierarchy::Unified);
            base.context("no cgroup version 2 is mounted")?
        }
        Parent::Folder(folder) => folder.clone(),
    };
    let shown = || base.display().to_string();
    ensure!(base.join("cgroup.procs").exists(), "{} is not a cgroup folder", shown());
    let unified = base.join(name);
    make(&unified).with_context(shown)?;
    if !unified.join("cgroup.kill").exists() {
        group::remove(&unified);
        anyhow::bail!("{}: no cgroup.kill (version 2 of Linux 5.14 or later has it)", shown());
    }
    let memory = if has_memory(&base, &unified) {
        Memory::Unified
    } else {
        legacy(&mounts, &own, name).map_or(Memory::None, Memory::Legacy)
    };
    Ok(Some(Places { unified, memory }))
}

fn make(folder: &Path) -> std::io::Result<()> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Whether groups below this folder have the memory controller of version 2. It is asked for; a group with processes
/// of its own, but for the root, cannot give it.
fn has_memory(base: &Path, unified: &Path) -> bool {
    let has = |folder: &Path, file: &str| {
        let words = fs::read_to_string(folder.join(file)).unwrap_or_default();
        words.split_whitespace().any(|word| word == "memory")
    };
    for folder in [base, unified] {
        let given = "cgroup.subtree_control";
        if !has(folder, given)
            && (!has(folder, "cgroup.controllers")
                || fs::write(folder.join(given), "+memory").is_err())
        {
            return false;
        }
    }
    true
}

/// The folder for groups of version 1 that limit memory, if there can be one.
fn legacy(mounts: &[Mount], own: &str, name: &str) -> Option<PathBuf> {
    let folder = own_folder(mounts, own, Hierarchy::Memory)?.join(name);
    make(&folder).ok()?;
    if folder.join("memory.limit_in_bytes").exists() {
        return Some(folder);
    }
    group::remove(&folder);
    None
}

/// Hierarchies of groups.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hierarchy {
    /// Version 2.
    Unified,
    /// The one of version 1 that has the memory controller.
    Memory,
}

/// The folder of this process's own group: what /proc/self/cgroup says, below the mount that shows it.
fn own_folder(mounts: &[Mount], own: &str, hierarchy: Hierarchy) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let is_it = match hierarchy {
            Hierarchy::Unified => number == "0" && controllers.is_empty(),
            Hierarchy::Memory => controllers.split(',').any(|word| word == "memory"),
        };
        is_it.then_some(path)
    })?;
    mounts.iter().find_map(|mount| {
        let is_it = match (hierarchy, mount.file_system.as_str()) {
            (Hierarchy::Unified, "cgroup2") => true,
            (Hierarchy::Memory, "cgroup") => {
                mount.options.split(',').any(|option| option == "memory")
            }
            _ => false,
        };
        // A mount of a part shows only what is below that.
        let below = Path::new(path).strip_prefix(&mount.root).ok().filter(|_| is_it)?;
        Some(mount.mountpoint.join(below))
    })
}

#[cfg(test)]
mod tests {
    use forebay_process::mounts::parse_all;

    use super::*;

    const HYBRID: &[u8] = b"\
30 20 0:26 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
31 20 0:27 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate";

    #[test]
    fn the_own_group_is_found_where_its_hierarchy_is_mounted() {
        let own = "4:memory:/a/b\n1:name=systemd:/x\n0::/c d";
        let find = |hierarchy| own_folder(&parse_all(HYBRID), own, hierarchy);
        assert_eq!(find(Hierarchy::Memory), Some("/sys/fs/cgroup/memory/a/b".into()));
        assert_eq!(find(Hierarchy::Unified), Some("/sys/fs/cgroup/unified/c d".into()));
        let pure = b"25 1 0:22 /machine /sys/fs/cgroup rw - cgroup2 none rw";
        let pure = parse_all(pure);
        let find = |own| own_folder(&pure, own, Hierarchy::Unified);
        assert_eq!(find("0::/machine/one"), Some("/sys/fs/cgroup/one".into()));
        assert_eq!(find("0::/other"), None);
        assert_eq!(own_folder(&pure, own, Hierarchy::Memory), None);
        assert_eq!(own_folder(&[], own, Hierarchy::Unified), None);
    }

    #[test]
    fn a_folder_that_is_not_a_group_is_refused_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let parent = Parent::Folder(folder.path().to_owned());
        let refused = find(&parent, "host").unwrap_err().to_string();
        assert_eq!(refused, format!("{} is not a cgroup folder", folder.path().display()));
        assert_eq!(find(&Parent::None, "host").unwrap(), None);
    }
}
