//! Block devices: which lie below which, what they are, how their queues are set.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::environment::text;
use crate::record::Device;

/// Settings of a queue that are worth telling.
const QUEUE: [&str; 8] = [
    "scheduler",
    "read_ahead_kb",
    "nr_requests",
    "max_sectors_kb",
    "rq_affinity",
    "nomerges",
    "write_cache",
    "wbt_lat_usec",
];
/// Devices stacked deeper than this are not followed.
const DEPTH_MAX: usize = 16;

/// The block devices below something.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Below {
    /// All, from the top down, each once.
    pub devices: Vec<Device>,
    /// Names of those whose I/O is to be counted: the lowest, so that requests are those that disks get;
    /// but of a `loop` device itself, since the disk of its file does other things too.
    pub counted: Vec<String>,
    /// Files that `loop` devices pose from.
    pub backing_files: Vec<PathBuf>,
}

impl Below {
    /// The devices below the device `number` (`major:minor`); nothing if it is no block device.
    pub fn number(sys: &Path, number: &str) -> Below {
        let mut below = Below::default();
        if let Some(block) = disk(&sys.join("dev/block").join(number)) {
            below.follow(&block, 0);
        }
        below
    }

    /// Adds what another holds that is not here yet. Its devices are only told of, not counted.
    pub fn describe_also(&mut self, other: Below) {
        for device in other.devices {
            if self.devices.iter().all(|known| known.name != device.name) {
                self.devices.push(device);
            }
        }
    }

    /// Adds what another holds that is not here yet.
    pub fn add(&mut self, mut other: Below) {
        for name in std::mem::take(&mut other.counted) {
            if !self.counted.contains(&name) {
                self.counted.push(name);
            }
        }
        self.backing_files.append(&mut other.backing_files);
        self.describe_also(other);
    }

    fn follow(&mut self, block: &Path, depth: usize) {
        let device = describe(block);
        if depth > DEPTH_MAX || self.devices.iter().any(|known| known.name == device.name) {
            return;
        }
        let name = device.name.clone();
        self.devices.push(device);
        let slaves = slaves(block);
        if slaves.is_empty() {
            self.counted.push(name);
            self.backing_files.extend(text(&block.join("loop/backing_file")).map(PathBuf::from));
        }
        for slave in slaves {
            self.follow(&slave, depth + 1);
        }
    }
}

/// The folder of the whole disk of a device of `/sys`, which may be a partition.
fn disk(device: &Path) -> Option<PathBuf> {
    let block = device.canonicalize().ok()?;
    if block.join("partition").exists() {
        return block.parent().map(Path::to_owned);
    }
    Some(block)
}

/// The disks on which a device is stacked, in the order of their names.
fn slaves(block: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(block.join("slaves")).into_iter().flatten().flatten();
    let mut slaves: Vec<PathBuf> = entries.filter_map(|entry| disk(&entry.path())).collect();
    slaves.sort();
    slaves.dedup();
    slaves
}

fn describe(block: &Path) -> Device {
    let name = block.file_name().unwrap_or_default().to_string_lossy().replace('!', "/");
    let queue = block.join("queue");
    let mut settings: BTreeMap<String, String> = QUEUE
        .iter()
        .filter_map(|&name| {
            let value = text(&queue.join(name))?;
            Some((name.to_owned(), chosen(&value).to_owned()))
        })
        .collect();
    let mut also = |name: &str, path: &str| {
        settings.extend(text(&block.join(path)).map(|value| (name.to_owned(), value)));
    };
    also("backing_file", "loop/backing_file");
    also("direct_io", "loop/dio");
    also("raid_level", "md/level");
    also("mapper_name", "dm/name");
    Device {
        name,
        model: text(&block.join("device/model")),
        rotational: text(&queue.join("rotational")).map(|text| text == "1"),
        size_bytes: text(&block.join("size"))
            .and_then(|text| text.parse::<u64>().ok()?.checked_mul(512)),
        queue: settings,
    }
}

/// Of a choice such as `none [mq-deadline] kyber`, what is chosen; other texts as they are.
pub fn chosen(text: &str) -> &str {
    let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or(text, |(chosen, _)| chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A `/sys` with a disk of two partitions, another disk, LVM on a RAID of both, and a loop device.
    fn sys() -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        let root = sys.path();
        for folder in [
            "devices/pci/block/sda/sda1",
            "devices/pci/block/sda/sda2",
            "devices/pci/block/sda/queue",
            "devices/pci/block/sda/device",
            "devices/pci/block/cciss!c0d0",
            "devices/virtual/block/md0/slaves",
            "devices/virtual/block/md0/md",
            "devices/virtual/block/dm-0/slaves",
            "devices/virtual/block/loop0/loop",
            "devices/virtual/block/loop0/slaves",
            "dev/block",
        ] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        let block = root.join("devices/pci/block");
        let stacked = root.join("devices/virtual/block");
        for (path, text) in [
            ("sda/sda1/partition", "1\n"),
            ("sda/sda2/partition", "2\n"),
            ("sda/queue/scheduler", "none [mq-deadline] kyber\n"),
            ("sda/queue/read_ahead_kb", "128\n"),
            ("sda/queue/rotational", "1\n"),
            ("sda/device/model", "SPINNER 9000   \n"),
            ("sda/size", "2048\n"),
        ] {
            fs::write(block.join(path), text).unwrap();
        }
        fs::write(stacked.join("loop0/loop/backing_file"), "/var/image\n").unwrap();
        fs::write(stacked.join("md0/md/level"), "raid1\n").unwrap();
        symlink(block.join("sda/sda2"), stacked.join("md0/slaves/sda2")).unwrap();
        symlink(block.join("cciss!c0d0"), stacked.join("md0/slaves/cciss!c0d0")).unwrap();
        symlink(stacked.join("md0"), stacked.join("dm-0/slaves/md0")).unwrap();
        for (number, target) in [
            ("8:0", block.join("sda")),
            ("8:1", block.join("sda/sda1")),
            ("253:0", stacked.join("dm-0")),
            ("7:0", stacked.join("loop0")),
        ] {
            symlink(target, root.join("dev/block").join(number)).unwrap();
        }
        sys
    }

    fn names(below: &Below) -> Vec<&str> {
        below.devices.iter().map(|device| device.name.as_str()).collect()
    }

    #[test]
    fn a_partition_lies_on_its_disk_which_is_described() {
        let sys = sys();
        let below = Below::number(sys.path(), "8:1");
        assert_eq!(below, Below::number(sys.path(), "8:0"));
        assert_eq!((names(&below), &below.counted[..]), (vec!["sda"], &["sda".to_owned()][..]));
        let sda = &below.devices[0];
        assert_eq!((sda.model.as_deref(), sda.rotational), (Some("SPINNER 9000"), Some(true)));
        assert_eq!(sda.size_bytes, Some(1 << 20));
        assert_eq!(sda.queue["scheduler"], "mq-deadline");
        assert_eq!(sda.queue["read_ahead_kb"], "128");
    }

    #[test]
    fn stacked_devices_are_all_told_and_the_lowest_counted() {
        let sys = sys();
        let below = Below::number(sys.path(), "253:0");
        assert_eq!(names(&below), ["dm-0", "md0", "cciss/c0d0", "sda"]);
        assert_eq!(below.counted, ["cciss/c0d0", "sda"]);
        assert_eq!(below.devices[1].queue["raid_level"], "raid1");
    }

    #[test]
    fn a_loop_device_counts_itself_and_names_its_file() {
        let sys = sys();
        let mut below = Below::number(sys.path(), "7:0");
        assert_eq!(below.counted, ["loop0"]);
        assert_eq!(below.backing_files, [Path::new("/var/image")]);
        below.describe_also(Below::number(sys.path(), "8:0"));
        assert_eq!((names(&below), below.counted.len()), (vec!["loop0", "sda"], 1));
        below.add(Below::number(sys.path(), "253:0"));
        assert_eq!(below.counted, ["loop0", "cciss/c0d0", "sda"]);
        assert_eq!(names(&below), ["loop0", "sda", "dm-0", "md0", "cciss/c0d0"]);
    }

    #[test]
    fn what_is_no_block_device_has_none_below() {
        assert_eq!(Below::number(sys().path(), "0:42"), Below::default());
    }

    #[test]
    fn of_a_choice_the_chosen_is_told() {
        assert_eq!(chosen("none [mq-deadline] kyber"), "mq-deadline");
        assert_eq!(chosen("[none]"), "none");
        assert_eq!(chosen("128"), "128");
    }
}
