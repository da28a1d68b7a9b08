//! Which of the kernel's inodes is the root directory.
//!
//! The kernel makes the inode of a mount's root before INIT, and so never caches access control lists of it
//! (fuse_init_inode): whoever does not own it is checked with a request at each path over it, also on the way to native
//! filesets, and with a daemon that was killed the check fails. So a mount of root's is *raised*: a second inode, made
//! after INIT, stands for the same directory, and a clone of the mount that begins there takes the mount's place
//! (docs/adr/0031). Requests may come about either.

use std::sync::atomic::{AtomicU8, Ordering};

use forebay_base::Ino;

/// The kernel's number of a mount's root (FUSE_ROOT_ID).
const MOUNT_ROOT: u64 = 1;
/// The number of the second inode: that of no inode of ours, as it would be the last of the last fileset.
const RAISED_ROOT: u64 = u64::MAX;
/// Name under which the root has the second one while it is raised.
pub const NAME: &str = "top";

/// How far a mount is raised.
#[derive(Debug, Default)]
pub(crate) struct Top(AtomicU8);

const LOW: u8 = 0;
const RISING: u8 = 1;
const RAISED: u8 = 2;

impl Top {
    /// From now on the root has a second inode under [`NAME`]. Nobody else may use the mount yet.
    pub fn begin(&self) {
        self.0.store(RISING, Ordering::Release);
    }

    /// The mount is raised, or stays as it was.
    pub fn end(&self, raised: bool) {
        self.0.store(if raised { RAISED } else { LOW }, Ordering::Release);
    }

    /// Whether `name` in the directory of this number is the second inode.
    pub fn is_asked_for(&self, number: u64, name: &[u8]) -> bool {
        number == MOUNT_ROOT && name == NAME.as_bytes() && self.0.load(Ordering::Acquire) == RISING
    }

    /// The kernel's number of an inode, once others use the mount.
    pub fn number_of(&self, ino: Ino) -> u64 {
        let is_raised = self.0.load(Ordering::Acquire) != LOW;
        if ino == Ino::ROOT && is_raised { RAISED_ROOT } else { ino.0 }
    }
}

/// The inode that the kernel means by a number.
pub(crate) fn ino_of(number: u64) -> Ino {
    if number == RAISED_ROOT { Ino::ROOT } else { Ino(number) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_number_means_the_root_and_answers_name_the_one_in_use() {
        let top = Top::default();
        assert!(!top.is_asked_for(1, b"top"), "it is a name like any other");
        assert_eq!(top.number_of(Ino::ROOT), 1);
        top.begin();
        assert!(top.is_asked_for(1, b"top") && !top.is_asked_for(7, b"top"));
        assert!(!top.is_asked_for(1, b"other"));
        top.end(true);
        assert!(!top.is_asked_for(1, b"top"));
        assert_eq!((ino_of(1), ino_of(top.number_of(Ino::ROOT))), (Ino::ROOT, Ino::ROOT));
        assert_eq!(ino_of(top.number_of(Ino(7))), Ino(7));
        top.end(false);
        assert_eq!(top.number_of(Ino::ROOT), 1);
    }
}
