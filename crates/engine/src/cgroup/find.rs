//! Where this process may make groups, by what /proc says of its mounts and its own groups.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use forebay_process::mounts::{self, Mount};

use super::enable::{LEAF, Movable, enable};
use super::{Controller, Parent, Places, group};
use crate::protocol::{Limited, Missing};

/// Where groups of jobs are made, and what cannot be limited there.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    /// Where.
    pub places: Places,
    /// What, and why.
    pub missing: Missing,
}

/// Makes the folder for the groups of a host; `name` is its own. None where jobs shall have no groups.
///
/// # Errors
/// If there can be none: the reason.
pub fn find(parent: &Parent, name: &str) -> Result<Option<Found>> {
    const NOT_MOUNTED: &str = "no cgroup version 2 is mounted";
    let mounts = mounts::all();
    let own = fs::read_to_string("/proc/self/cgroup").context("/proc/self/cgroup")?;
    let (base, movable) = match parent {
        Parent::None => return Ok(None),
        Parent::Own => {
            let folder = own_folder(&mounts, &own, None).context(NOT_MOUNTED)?;
            (beside_leaf(folder), Movable::Own)
        }
        Parent::Folder(folder) => (folder.clone(), Movable::All),
        Parent::Below(path) => {
            let mount = mounts.iter().find(|mount| mount.file_system == "cgroup2");
            (mount.context(NOT_MOUNTED)?.mountpoint.join(path), Movable::All)
        }
    };
    let shown = || base.display().to_string();
    ensure!(base.join("cgroup.procs").exists(), "{} is not a cgroup folder", shown());
    let unified = base.join(name);
    make(&unified).with_context(shown)?;
    if !unified.join("cgroup.kill").exists() {
        group::remove(&unified);
        anyhow::bail!("{}: no cgroup.kill (version 2 of Linux 5.14 or later has it)", shown());
    }
    let mut missing = Missing::new();
    let mut find = |what, controller, file| {
        let reason = match enable(&base, &unified, controller, movable) {
            Ok(()) => return Controller::Unified,
            Err(reason) => reason,
        };
        let reason = match legacy(&mounts, &own, name, controller, file) {
            Some(Ok(folder)) => return Controller::Legacy(folder),
            Some(Err(reason)) => reason,
            None => reason,
        };
        missing.insert(what, reason);
        Controller::None
    };
    let memory = find(Limited::Memory, "memory", "memory.limit_in_bytes");
    let processors = find(Limited::Processors, "cpu", "cpu.shares");
    let processes = find(Limited::Processes, "pids", "pids.max");
    Ok(Some(Found { places: Places { unified, memory, processors, processes }, missing }))
}

/// The folder in which groups are made, if this process is in the one that keeps it out of the way of them.
fn beside_leaf(own: PathBuf) -> PathBuf {
    match own.parent() {
        Some(above) if own.ends_with(LEAF) => above.to_owned(),
        _ => own,
    }
}

fn make(folder: &Path) -> std::io::Result<()> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The folder for groups of version 1 with a controller, whose groups have this file, or why there can be none; none if
/// version 1 does not have the controller.
fn legacy(
    mounts: &[Mount],
    own: &str,
    name: &str,
    controller: &str,
    file: &str,
) -> Option<Result<PathBuf, String>> {
    let folder = own_folder(mounts, own, Some(controller))?.join(name);
    if let Err(error) = make(&folder) {
        return Some(Err(format!("{}: {error}", folder.display())));
    }
    if folder.join(file).exists() {
        return Some(Ok(folder));
    }
    group::remove(&folder);
    Some(Err(format!("{}: the kernel has no {file}", folder.display())))
}

/// The folder of this process's own group, of version 2 or of the hierarchy of version 1 with a controller: what
/// /proc/self/cgroup says, below the mount that shows it.
fn own_folder(mounts: &[Mount], own: &str, controller: Option<&str>) -> Option<PathBuf> {
    let has = |words: &str| words.split(',').any(|word| Some(word) == controller);
    let path = own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let is_it = match controller {
            None => number == "0" && controllers.is_empty(),
            Some(_) => has(controllers),
        };
        is_it.then_some(path)
    })?;
    mounts.iter().find_map(|mount| {
        let is_it = match (controller, mount.file_system.as_str()) {
            (None, "cgroup2") => true,
            (Some(_), "cgroup") => has(&mount.options),
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
    const CO_MOUNTED: &[u8] =
        b"32 20 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct";

    #[test]
    fn the_own_group_is_found_where_its_hierarchy_is_mounted() {
        let own = "4:memory:/a/b\n1:name=systemd:/x\n0::/c d";
        let find = |controller| own_folder(&parse_all(HYBRID), own, controller);
        assert_eq!(find(Some("memory")), Some("/sys/fs/cgroup/memory/a/b".into()));
        assert_eq!(find(None), Some("/sys/fs/cgroup/unified/c d".into()));
        assert_eq!(find(Some("cpu")), None);
        let both = own_folder(&parse_all(CO_MOUNTED), "3:cpu,cpuacct:/x", Some("cpu"));
        assert_eq!(both, Some("/sys/fs/cgroup/cpu,cpuacct/x".into()));
        let pure = b"25 1 0:22 /machine /sys/fs/cgroup rw - cgroup2 none rw";
        let pure = parse_all(pure);
        let find = |own| own_folder(&pure, own, None);
        assert_eq!(find("0::/machine/one"), Some("/sys/fs/cgroup/one".into()));
        assert_eq!(find("0::/other"), None);
        assert_eq!(own_folder(&pure, own, Some("memory")), None);
        assert_eq!(own_folder(&[], own, None), None);
    }

    #[test]
    fn an_agent_that_moved_finds_the_group_that_it_moved_from() {
        assert_eq!(beside_leaf("/c/x.scope/forebay-agent".into()), Path::new("/c/x.scope"));
        assert_eq!(beside_leaf("/c/x.scope".into()), Path::new("/c/x.scope"));
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
