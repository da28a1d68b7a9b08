//! Which lines of `/proc/diskstats` count, so that no byte counts twice.
//!
//! Of all disks: whole disks on their own. Not partitions, which their disk counts; not devices that are
//! stacked on others (device mapper, software RAID); not memory (`ram`, `zram`) and not files (`loop`)
//! that pose as devices, nor `zd` (ZFS volumes), whose disks count. Of chosen devices: those, whatever
//! they are.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

/// Devices without a disk of their own.
const POSING: [&str; 5] = ["loop", "ram", "zram", "zd", "fd"];

/// The devices that are watched.
#[derive(Debug)]
pub enum Selection {
    /// None.
    None,
    /// Those with these names.
    These(BTreeSet<String>),
    /// All disks.
    Disks {
        /// `/sys/block`.
        blocks: PathBuf,
        /// What was found of each name so far.
        known: HashMap<String, bool>,
    },
}

impl Selection {
    /// All disks of this machine.
    #[must_use]
    pub fn all_disks() -> Selection {
        Selection::Disks { blocks: "/sys/block".into(), known: HashMap::new() }
    }

    /// Whether a device is watched.
    pub fn has(&mut self, name: &str) -> bool {
        match self {
            Selection::None => false,
            Selection::These(names) => names.contains(name),
            Selection::Disks { blocks, known } => match known.get(name) {
                Some(&counts) => counts,
                None => {
                    let counts = stands_alone(blocks, name);
                    known.insert(name.to_owned(), counts);
                    counts
                }
            },
        }
    }
}

/// Whether a device is a whole disk that lies on no other device.
fn stands_alone(blocks: &Path, name: &str) -> bool {
    let posing = POSING.iter().any(|kind| {
        name.strip_prefix(kind).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    });
    // The names of /sys have no slashes.
    let block = blocks.join(name.replace('/', "!"));
    let stacked = fs::read_dir(block.join("slaves")).is_ok_and(|mut below| below.next().is_some());
    // The paths of a device that has several are hidden; the device itself counts.
    let hidden = fs::read_to_string(block.join("hidden")).is_ok_and(|text| text.trim() == "1");
    !posing && block.exists() && !stacked && !hidden
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_all_disks_no_byte_counts_twice() {
        let blocks = tempfile::tempdir().unwrap();
        for path in [
            "sda/sda1",
            "nvme0n1",
            "nvme0c0n1",
            "dm-0/slaves/sda1",
            "dm-1/slaves",
            "md0/slaves/sda",
            "loop0",
            "zram0",
            "ram3",
            "cciss!c0d0",
            "rampart",
        ] {
            fs::create_dir_all(blocks.path().join(path)).unwrap();
        }
        fs::write(blocks.path().join("nvme0c0n1/hidden"), "1\n").unwrap();
        fs::write(blocks.path().join("nvme0n1/hidden"), "0\n").unwrap();
        let mut disks =
            Selection::Disks { blocks: blocks.path().to_owned(), known: HashMap::new() };
        for _ in 0..2 {
            for name in ["sda", "nvme0n1", "dm-1", "cciss/c0d0", "rampart"] {
                assert!(disks.has(name), "{name}");
            }
            for name in ["sda1", "nvme0c0n1", "dm-0", "md0", "loop0", "zram0", "ram3", "absent"] {
                assert!(!disks.has(name), "{name}");
            }
        }
    }

    #[test]
    fn a_chosen_device_counts_whatever_it_is_and_nothing_else_does() {
        let mut chosen = Selection::These(BTreeSet::from(["loop0".to_owned()]));
        assert!(chosen.has("loop0") && !chosen.has("sda"));
        assert!(!Selection::None.has("sda"));
    }
}
