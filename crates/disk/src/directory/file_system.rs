//! The kinds of file system that a directory may lie on, and what to know of each.

/// What the kernel's `statfs` calls the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    /// Its name.
    pub name: &'static str,
    /// Whether fsync of a file covers the name it was just given, as on journaling file systems that
    /// write their changes in order. Elsewhere its directory is synced too.
    pub file_sync_covers_name: bool,
    /// What makes it slower or weaker, with the remedy.
    advice: Option<&'static str>,
}

const REMOTE: &str = "a network file system: speed, locks and durability are those of its server; \
                      use disks of the machine itself";
const VOLATILE: &str = "contents are lost at reboot; use it for tests and scratch data only";

const fn kind(name: &'static str, covers: bool, advice: Option<&'static str>) -> Kind {
    Kind { name, file_sync_covers_name: covers, advice }
}

/// Kinds by `f_type`, from the kernel's `include/uapi/linux/magic.h` and statfs(2).
const KINDS: [(u64, Kind); 18] = [
    (0x5846_5342, kind("xfs", true, None)),
    (
        0xef53,
        kind(
            "ext4",
            true,
            Some(
                "ext4 does not reuse inodes deleted in the last minutes, creates slow down after \
                 mass deletes; XFS is the recommended disk",
            ),
        ),
    ),
    (
        0x9123_683e,
        kind(
            "btrfs",
            true,
            Some("small random writes fragment files; XFS is the recommended disk"),
        ),
    ),
    (0xf2f5_2010, kind("f2fs", false, None)),
    (0x2fc1_2fc1, kind("zfs", false, None)),
    (0xca45_1a4e, kind("bcachefs", false, None)),
    (0x0102_1994, kind("tmpfs", true, Some(VOLATILE))),
    (0x8584_58f6, kind("ramfs", true, Some(VOLATILE))),
    (
        0x794c_7630,
        kind(
            "overlayfs",
            false,
            Some(
                "the layer of a container, which is removed with the container; mount a volume for the disk",
            ),
        ),
    ),
    (0x6969, kind("nfs", false, Some(REMOTE))),
    (0xff53_4d42, kind("cifs", false, Some(REMOTE))),
    (0xfe53_4d42, kind("smb2", false, Some(REMOTE))),
    (0x00c3_6400, kind("ceph", false, Some(REMOTE))),
    (0x0bd0_0bd0, kind("lustre", false, Some(REMOTE))),
    (0x4750_4653, kind("gpfs", false, Some(REMOTE))),
    (0x0102_1997, kind("9p", false, Some(REMOTE))),
    (
        0x6573_5546,
        kind("fuse", false, Some("each operation passes through another program; use XFS itself")),
    ),
    (
        0x4d44,
        kind("vfat", false, Some("it has no holes and no files above 4 GiB; format it as XFS")),
    ),
];

const UNKNOWN: Kind = kind("unknown", false, Some("an unknown file system; XFS is recommended"));

impl Kind {
    /// The kind of a file system by its `f_type`.
    pub(super) fn from_magic(magic: u64) -> Kind {
        KINDS.iter().find(|(known, _)| *known == magic).map_or(UNKNOWN, |(_, kind)| *kind)
    }

    /// What makes it slower or weaker, with the remedy.
    pub(super) fn advice(self) -> Vec<String> {
        self.advice.iter().map(|advice| (*advice).to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_by_their_magic_numbers() {
        for (magic, name) in
            [(0x5846_5342, "xfs"), (0xef53, "ext4"), (0x0102_1994, "tmpfs"), (7, "unknown")]
        {
            assert_eq!(Kind::from_magic(magic).name, name);
        }
        assert!(Kind::from_magic(0x5846_5342).advice().is_empty());
        assert!(Kind::from_magic(0xef53).advice()[0].contains("XFS is the recommended disk"));
    }
}
