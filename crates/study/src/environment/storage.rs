//! What lies below an area of a study.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use forebay_process::mounts::{self, Mount};
use rustix::fs::{AtFlags, CWD, StatxFlags};

use crate::environment::blocks::Below;
use crate::environment::{Kernel, home, text};
use crate::error::{Error, Result};
use crate::record::{DeviceScope, Storage, Subject};

/// Finds the directories that are the disks of the Forebay file system with this home folder; `None` if
/// that is not known.
type Homes<'a> = &'a dyn Fn(&Path) -> Option<Vec<PathBuf>>;

/// File systems that keep their files in memory or on other machines.
const WITHOUT_DEVICES: [&str; 15] = [
    "tmpfs",
    "ramfs",
    "devtmpfs",
    "hugetlbfs",
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "lustre",
    "ceph",
    "9p",
    "virtiofs",
    "afs",
    "fuse.sshfs",
    "fuse.glusterfs",
];
/// Type of mounted Forebay file systems.
const FOREBAY: &str = "fuse.forebay";
/// File systems on file systems are followed this far.
const DEPTH_MAX: usize = 8;

/// Looks at what lies below `path`.
///
/// # Errors
/// [`Error::Io`] if it is not there.
pub fn storage(path: &Path) -> Result<Storage> {
    look(path, &home::disks)
}

fn look(path: &Path, homes: Homes<'_>) -> Result<Storage> {
    let place = path.canonicalize().map_err(Error::io("look at", path))?;
    let statvfs =
        rustix::fs::statvfs(&place).map_err(|error| Error::io("look at", path)(error.into()))?;
    let kernel = Kernel::running();
    let mounts = mounts::parse_all(kernel.proc("self/mountinfo").unwrap_or_default().as_bytes());
    let mount = mount_of(&mounts, &place).cloned().unwrap_or_default();
    let read_ahead = kernel.sys(&format!("class/bdi/{}/read_ahead_kb", mount.device));
    let found = Search { kernel: &kernel, mounts: &mounts, homes }.below(&place, 0);
    let (devices, device_scope) = match found {
        Found::Devices(below) => (below.devices, DeviceScope::Devices(below.counted)),
        Found::None => (Vec::new(), DeviceScope::None),
        Found::Unknown => (Vec::new(), DeviceScope::AllDisks),
    };
    Ok(Storage {
        path: path.to_owned(),
        source: mount.describe_source(),
        file_system: mount.file_system,
        mountpoint: mount.mountpoint,
        options: mount.options,
        size_bytes: statvfs.f_blocks.saturating_mul(statvfs.f_frsize),
        free_bytes: statvfs.f_bavail.saturating_mul(statvfs.f_frsize),
        read_ahead_bytes: read_ahead.and_then(|kib| kib.parse::<u64>().ok()?.checked_mul(1024)),
        devices,
        device_scope,
    })
}

/// The devices to watch for all areas of a subject: all disks if those of one are not known.
#[must_use]
pub fn device_scope(subject: &Subject) -> DeviceScope {
    let mut names: Vec<String> = Vec::new();
    for area in [&subject.data, &subject.work, &subject.util] {
        match &area.device_scope {
            DeviceScope::AllDisks => return DeviceScope::AllDisks,
            DeviceScope::None => {}
            DeviceScope::Devices(more) => names.extend(more.iter().cloned()),
        }
    }
    names.sort();
    names.dedup();
    if names.is_empty() { DeviceScope::None } else { DeviceScope::Devices(names) }
}

/// What is known of the devices below something.
#[derive(Debug, PartialEq)]
enum Found {
    /// These.
    Devices(Below),
    /// There are none on this machine.
    None,
    /// Nothing is known.
    Unknown,
}

struct Search<'a> {
    kernel: &'a Kernel,
    mounts: &'a [Mount],
    homes: Homes<'a>,
}

impl Search<'_> {
    /// The devices below a path without links.
    fn below(&self, place: &Path, depth: usize) -> Found {
        let Ok(metadata) = fs::metadata(place) else { return Found::Unknown };
        let number = number(metadata.dev());
        let mount = mount_of(self.mounts, place);
        let kind = mount.map_or("", |mount| mount.file_system.as_str());
        let mut below = Below::number(&self.kernel.sys, &number);
        if below.devices.is_empty() {
            if WITHOUT_DEVICES.contains(&kind) {
                return Found::None;
            }
            match mount {
                Some(mount) if kind == FOREBAY => return self.below_home(&mount.source, depth),
                Some(mount) if kind == "overlay" => return self.below_overlay(mount, depth),
                Some(mount) => below = self.below_source(mount),
                None => {}
            }
        }
        if below.devices.is_empty() {
            return Found::Unknown;
        }
        self.follow_files(below, depth)
    }

    /// Tells also what is below the files from which loop devices pose.
    fn follow_files(&self, mut below: Below, depth: usize) -> Found {
        for file in below.backing_files.clone() {
            if depth < DEPTH_MAX
                && let Found::Devices(more) = self.below(&file, depth + 1)
            {
                below.describe_also(more);
            }
        }
        Found::Devices(below)
    }

    /// A file system without a device of its own in `st_dev`, such as btrfs, names its devices as its
    /// source.
    fn below_source(&self, mount: &Mount) -> Below {
        let mut below = Below::default();
        let source = mount.source.to_string_lossy();
        for device in source.split(':').filter(|device| device.starts_with("/dev/")) {
            if let Ok(metadata) = fs::metadata(device) {
                let number = number(metadata.rdev());
                for number in siblings(self.kernel, &number).unwrap_or(vec![number]) {
                    below.add(Below::number(&self.kernel.sys, &number));
                }
            }
        }
        below
    }

    /// The home folder of a Forebay file system holds its store; its disks are directories.
    fn below_home(&self, home: &Path, depth: usize) -> Found {
        let disks = (self.homes)(home);
        let Some(disks) = disks.filter(|_| depth < DEPTH_MAX) else { return Found::Unknown };
        let places = std::iter::once(home).chain(disks.iter().map(PathBuf::as_path));
        let (mut below, mut any) = (Below::default(), false);
        for place in places {
            match self.below(place, depth + 1) {
                Found::Devices(more) => {
                    below.add(more);
                    any = true;
                }
                Found::None => {}
                Found::Unknown => return Found::Unknown,
            }
        }
        if any { Found::Devices(below) } else { Found::None }
    }

    /// An overlay writes to its upper directory, which may be out of sight.
    fn below_overlay(&self, mount: &Mount, depth: usize) -> Found {
        let upper = mount.options.split(',').find_map(|option| option.strip_prefix("upperdir="));
        match upper.and_then(|upper| Path::new(upper).canonicalize().ok()) {
            Some(upper) if depth < DEPTH_MAX => self.below(&upper, depth + 1),
            Some(_) | None => Found::Unknown,
        }
    }
}

/// All devices of the btrfs file system to which a device belongs.
fn siblings(kernel: &Kernel, number: &str) -> Option<Vec<String>> {
    for file_system in fs::read_dir(kernel.sys.join("fs/btrfs")).ok()?.flatten() {
        let Ok(devices) = fs::read_dir(file_system.path().join("devices")) else { continue };
        let numbers: Vec<String> =
            devices.flatten().filter_map(|device| text(&device.path().join("dev"))).collect();
        if numbers.iter().any(|known| known == number) {
            return Some(numbers);
        }
    }
    None
}

fn number(device: u64) -> String {
    format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device))
}

/// The mount in which a path lies: the kernel tells since Linux 5.8.
fn mount_of<'a>(mounts: &'a [Mount], place: &Path) -> Option<&'a Mount> {
    let statx = rustix::fs::statx(CWD, place, AtFlags::empty(), StatxFlags::MNT_ID).ok();
    let known = statx.filter(|statx| statx.stx_mask & StatxFlags::MNT_ID.bits() != 0);
    mounts::of(mounts, place, known.map(|statx| statx.stx_mnt_id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unknown(_: &Path) -> Option<Vec<PathBuf>> {
        None
    }

    #[test]
    fn an_area_is_described_as_statvfs_and_the_mount_table_do() {
        let folder = tempfile::tempdir().unwrap();
        let storage = storage(folder.path()).unwrap();
        let place = folder.path().canonicalize().unwrap();
        assert!(place.starts_with(&storage.mountpoint), "{storage:?}");
        assert!(!storage.file_system.is_empty() && storage.options.starts_with('r'), "{storage:?}");
        assert!(storage.free_bytes <= storage.size_bytes, "{storage:?}");
        if let DeviceScope::Devices(names) = &storage.device_scope {
            for name in names {
                assert!(storage.devices.iter().any(|device| &device.name == name), "{storage:?}");
            }
        }
    }

    #[test]
    fn memory_has_no_devices() {
        let storage = storage(Path::new("/dev/shm")).unwrap();
        assert_eq!(storage.file_system, "tmpfs");
        assert_eq!((storage.device_scope, storage.devices), (DeviceScope::None, Vec::new()));
    }

    #[test]
    fn an_area_that_is_not_there_is_an_error_that_names_it() {
        let error = storage(Path::new("/no/such/area")).unwrap_err();
        assert!(error.to_string().contains("cannot look at /no/such/area"), "{error}");
    }

    #[test]
    fn a_forebay_file_system_lies_on_what_its_home_and_disks_lie_on() {
        let folder = tempfile::tempdir().unwrap();
        let kernel = Kernel::running();
        let mounts = mounts::parse_all(kernel.proc("self/mountinfo").unwrap().as_bytes());
        let place = folder.path().canonicalize().unwrap();
        let search = |homes| Search { kernel: &kernel, mounts: &mounts, homes };
        let own = search(&unknown).below(&place, 0);
        assert_eq!(search(&unknown).below_home(&place, 0), Found::Unknown);
        let in_memory = |_: &Path| Some(vec![PathBuf::from("/dev/shm")]);
        assert_eq!(search(&in_memory).below_home(&place, 0), own);
        let all = search(&in_memory).below_home(Path::new("/dev/shm"), 0);
        assert_eq!(all, Found::None);
        let gone = |_: &Path| Some(vec![PathBuf::from("/no/such/disk")]);
        assert_eq!(search(&gone).below_home(&place, 0), Found::Unknown);
    }

    #[test]
    fn several_areas_are_watched_together_or_all_disks_are() {
        let on = |names: &[&str]| {
            DeviceScope::Devices(names.iter().map(|&name| name.to_owned()).collect())
        };
        let of = |scopes: [&DeviceScope; 3]| {
            let [data, work, util] =
                scopes.map(|scope| Storage { device_scope: scope.clone(), ..Storage::default() });
            device_scope(&Subject { label: "A".to_owned(), data, work, util })
        };
        let (none, all) = (DeviceScope::None, DeviceScope::AllDisks);
        assert_eq!(of([&on(&["sdb", "sda"]), &none, &on(&["sda"])]), on(&["sda", "sdb"]));
        assert_eq!(of([&none; 3]), none);
        assert_eq!(of([&on(&["sda"]), &none, &all]), all);
    }
}
