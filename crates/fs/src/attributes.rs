//! Attributes as they are shown to callers, and changes that callers ask for.

use forebay_base::{Ino, Timestamp};

use crate::inode::State;
use crate::record::Kind;

/// Attributes of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Attributes {
    /// Inode number.
    pub ino: Ino,
    /// Kind.
    pub kind: Kind,
    /// Permission, set-id and sticky bits.
    pub mode: u16,
    /// Number of links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device.
    pub rdev: u32,
    /// Size in bytes; of a directory, its number of entries.
    pub size: u64,
    /// Bytes allocated on disk.
    pub allocated_bytes: u64,
    /// Last access.
    pub accessed: Timestamp,
    /// Last change of the content.
    pub modified: Timestamp,
    /// Last change of the inode.
    pub changed: Timestamp,
    /// Creation.
    pub created: Timestamp,
    /// The kernel may keep these attributes: it sees every change to them.
    pub cacheable: bool,
    /// How long the kernel may keep the name under which it found the inode.
    pub name: KeepName,
}

/// How long the kernel may keep a name without asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum KeepName {
    /// Not at all: other programs change it.
    Never,
    /// As the settings say: it sees every change.
    AsSet,
    /// As long as the mount lives. Where something is mounted on it, an answer that it is gone, or none from a daemon
    /// that was killed, would take that mount away (d_invalidate of the kernel).
    Lasting,
}

impl Attributes {
    pub(crate) fn of(ino: Ino, state: &State) -> Attributes {
        Attributes {
            ino,
            kind: state.kind,
            mode: state.mode,
            nlink: state.nlink,
            uid: state.uid,
            gid: state.gid,
            rdev: state.rdev,
            size: state.size,
            allocated_bytes: state.allocated_bytes,
            accessed: state.accessed,
            modified: state.modified,
            changed: state.changed,
            created: state.created,
            // A shared mapping of a direct file changes it without a word to the kernel's FUSE inode. What runs as
            // its owner or group must not do so for longer than it may: some kernels leave it to this side alone to
            // take the bits away (fallocate before Linux 6.2). Nor does another node that writes the object itself say so.
            cacheable: !state.is_privileged()
                && state.file().is_none_or(|file| {
                    file.opens.mappers == 0
                        && file.live.as_ref().is_none_or(|live| !live.is_written_at_home())
                }),
            name: KeepName::AsSet,
        }
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum SetTime {
    /// The present.
    Now,
    /// That time.
    To(Timestamp),
}

/// Changes of attributes; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SetAttributes {
    /// Permission, set-id and sticky bits.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub accessed: Option<SetTime>,
    /// Last change of the content.
    pub modified: Option<SetTime>,
    /// What becomes of the set-id bits with this change.
    pub set_id: SetId,
}

/// What a change does to the set-id bits of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum SetId {
    /// Nothing.
    #[default]
    Keep,
    /// It takes them away.
    Kill,
    /// It takes them away if somebody has the file open for writing: only who has may have it so. Set-group-id goes also
    /// without execution under the group, unless the writer's group is the file's.
    KillIfWritten {
        /// Group of the writer.
        gid: u32,
    },
}
