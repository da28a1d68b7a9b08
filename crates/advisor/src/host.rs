//! What is read of a host: files below /proc, /sys and /etc, and what only system calls tell.
//!
//! Tests give a folder of their own in place of `/`, with the files that matter to them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use forebay_process::mounts::{self, Mount};
use serde::Serialize;

mod calls;

/// A host as the checks see it.
#[derive(Debug, Default)]
pub struct Host {
    root: PathBuf,
    /// What is mounted.
    pub mounts: Vec<Mount>,
    /// The directories that were asked about, and the mounts they lie on.
    pub places: Vec<Place>,
    /// What only system calls tell.
    pub told: Told,
}

/// A directory in which programs read or write, and what it lies on.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// The directory.
    pub path: PathBuf,
    /// The mount that it lies on.
    pub mount: Mount,
    /// Size of the file system, bytes.
    pub total_bytes: u64,
    /// What ordinary users may still write, bytes.
    pub free_bytes: u64,
    /// Inodes of the file system; 0 if it makes them as needed.
    pub inodes: u64,
    /// Inodes that are not used.
    pub free_inodes: u64,
    /// How its file system was made, if that is XFS.
    pub xfs: Option<Xfs>,
}

/// How an XFS was made (XFS_IOC_FSGEOMETRY).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Xfs {
    /// Whether files can share blocks.
    pub has_reflinks: bool,
    /// Number of allocation groups.
    pub groups: u32,
    /// Whether it is laid out for the stripes of an array.
    pub has_stripes: bool,
}

/// What only system calls tell.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Told {
    /// Files that a process may open (RLIMIT_NOFILE, hard).
    pub open_files_max: Option<u64>,
    /// Bytes that a process may lock in memory (RLIMIT_MEMLOCK, soft); `None` without a limit.
    pub locked_bytes_max: Option<u64>,
    /// Whether the clock is kept by a time server (adjtimex(2)); `None` if that cannot be seen.
    pub clock_synchronised: Option<bool>,
    /// For each network interface the receive ring's size and its maximum (ethtool(8) `-g`).
    pub rings: BTreeMap<String, (u32, u32)>,
}

impl Host {
    /// This host, with the directories to look at.
    ///
    /// # Errors
    /// If one of the directories cannot be looked at; the message names it.
    pub fn here(paths: &[PathBuf]) -> Result<Host, Unreadable> {
        let mut host = Host { root: "/".into(), mounts: mounts::all(), ..Host::default() };
        for path in paths {
            host.places.push(calls::place(path, &host.mounts)?);
        }
        host.told = calls::told(&host.list("sys/class/net"));
        Ok(host)
    }

    /// A host of files below `root`.
    #[must_use]
    pub fn below(root: &Path) -> Host {
        let mounts = fs::read(root.join("proc/self/mountinfo")).unwrap_or_default();
        let mounts = mounts::parse_all(&mounts);
        Host { root: root.to_owned(), mounts, ..Host::default() }
    }

    /// The text of a file without its end of line, if it can be read. `path` has no slash at its start.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<String> {
        let bytes = fs::read(self.root.join(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// A file that holds one number.
    #[must_use]
    pub fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// The names in a directory, sorted; none if it cannot be read.
    #[must_use]
    pub fn list(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Whether there is such a file or directory.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// Memory of the machine, bytes (proc_meminfo(5)).
    #[must_use]
    pub fn memory_bytes(&self) -> Option<u64> {
        let table = self.text("proc/meminfo")?;
        let line = table.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib * 1024)
    }

    /// Version of the kernel: major and minor.
    #[must_use]
    pub fn kernel(&self) -> Option<(u32, u32)> {
        let release = self.text("proc/sys/kernel/osrelease")?;
        let mut parts = release.split(|c: char| !c.is_ascii_digit());
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }

    /// Whether this is a virtual machine, as its processors say (`hypervisor` in proc_cpuinfo(5)).
    #[must_use]
    pub fn is_virtual(&self) -> bool {
        let table = self.text("proc/cpuinfo").unwrap_or_default();
        let flags = table.lines().find(|line| line.starts_with("flags"));
        flags.is_some_and(|line| line.split_whitespace().any(|flag| flag == "hypervisor"))
    }

    /// Names of the whole disks below the places, or of all disks of the machine if no place was given.
    #[must_use]
    pub fn disks(&self) -> Vec<String> {
        let mut disks: Vec<String> = Vec::new();
        if self.places.is_empty() {
            disks.extend(self.list("sys/block").into_iter().filter(|name| self.is_a_disk(name)));
        }
        for place in &self.places {
            disks.extend(self.disks_below(&place.mount.device));
        }
        disks.sort();
        disks.dedup();
        disks
    }

    /// The disks below a device, named `major:minor`: through partitions, device mapper and RAID.
    fn disks_below(&self, device: &str) -> Vec<String> {
        let blocks = self.list("sys/block");
        let numbered = |path: &str| self.text(&format!("{path}/dev")).as_deref() == Some(device);
        for block in &blocks {
            let folder = format!("sys/block/{block}");
            let whole = numbered(&folder);
            if !whole
                && !self.list(&folder).iter().any(|part| numbered(&format!("{folder}/{part}")))
            {
                continue;
            }
            let slaves = self.list(&format!("{folder}/slaves"));
            if slaves.is_empty() {
                return vec![block.clone()];
            }
            let number = |slave: &String| self.text(&format!("{folder}/slaves/{slave}/dev"));
            return slaves
                .iter()
                .filter_map(number)
                .flat_map(|dev| self.disks_below(&dev))
                .collect();
        }
        Vec::new()
    }

    /// Whether a block device is a whole disk and not one that poses as such.
    fn is_a_disk(&self, name: &str) -> bool {
        const POSING: [&str; 6] = ["loop", "ram", "zram", "zd", "fd", "sr"];
        let poses = POSING.iter().any(|kind| name.starts_with(kind));
        let size = self.number(&format!("sys/block/{name}/size"));
        !poses && size != Some(0) && self.list(&format!("sys/block/{name}/slaves")).is_empty()
    }

    /// Network interfaces that lead somewhere and are up.
    #[must_use]
    pub fn interfaces(&self) -> Vec<String> {
        let is_up = |name: &String| {
            let folder = format!("sys/class/net/{name}");
            name != "lo"
                && self.has(&format!("{folder}/device"))
                && self.text(&format!("{folder}/operstate")).as_deref() == Some("up")
        };
        self.list("sys/class/net").into_iter().filter(is_up).collect()
    }
}

/// A directory that was asked about cannot be looked at.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct Unreadable {
    /// The directory.
    pub path: PathBuf,
    /// What the system says.
    pub source: std::io::Error,
}
