//! Space kept aside so that a full disk can be emptied again.
//!
//! Removing files on a full disk needs a commit, and a commit needs space. The reserve is a file of
//! `store_reserve` bytes beside the store; when a commit finds no space, the file is removed, and made
//! again once there is space.

use std::path::{Path, PathBuf};

use forebay_base::ByteSize;
use parking_lot::Mutex;

/// A file that takes up space.
pub struct Reserve {
    path: Option<PathBuf>,
    size: ByteSize,
    held: Mutex<bool>,
}

impl Reserve {
    /// No space is kept aside.
    #[must_use]
    pub fn none() -> Reserve {
        Reserve { path: None, size: ByteSize(0), held: Mutex::new(false) }
    }

    /// Keeps `size` bytes aside in the file at `path`, as soon as there is that much space.
    #[must_use]
    pub fn at(path: &Path, size: ByteSize) -> Reserve {
        let reserve = Reserve { path: Some(path.to_owned()), size, held: Mutex::new(false) };
        reserve.hold();
        reserve
    }

    /// Takes the space again if it was given away and there is enough.
    pub fn hold(&self) {
        let mut held = self.held.lock();
        let Some(path) = &self.path else { return };
        if *held || self.size.0 == 0 {
            return;
        }
        match take(path, self.size.0) {
            Ok(()) => *held = true,
            Err(error) => {
                tracing::debug!(%error, "no space for the reserve now");
                let _ = std::fs::remove_file(path);
            }
        }
    }

    /// Gives the space away. Returns whether there was any.
    pub fn release(&self) -> bool {
        let mut held = self.held.lock();
        let Some(path) = &self.path else { return false };
        if !*held {
            return false;
        }
        *held = false;
        std::fs::remove_file(path).is_ok()
    }

    /// Whether space is kept aside now.
    #[must_use]
    pub fn is_held(&self) -> bool {
        *self.held.lock()
    }
}

fn take(path: &Path, bytes: u64) -> std::io::Result<()> {
    let file = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)?;
    // Leave as much again for others: a reserve that fills the disk would be worse than none.
    let space = rustix::fs::fstatvfs(&file)?;
    if space.f_bavail * space.f_frsize < bytes {
        return Err(std::io::ErrorKind::StorageFull.into());
    }
    Ok(())
}
