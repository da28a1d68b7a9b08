//! Space for the journal that nobody else can take: blocks of its own file beyond what it holds.
//!
//! Work areas may lie on the same file system, and any user's job can fill them. A file put aside and given up when
//! space is short would go to whoever fills the disk; blocks of the journal's own file cannot. The journal is a
//! copy-on-write tree, so what it writes while the disk is full comes from blocks that it has (fallocate(2) with
//! `FALLOC_FL_KEEP_SIZE`: writing to them and growing into them needs no more space).
//!
//! What it does not do: keep space on file systems that copy on write or do not know fallocate; there is none then.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use forebay_base::full::is_full;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

/// So much of the reserve is lent first: a socket on XFS needs 64 inodes and blocks for the trees that name them.
const LENT_BYTES: u64 = 1 << 20;

/// Whether an error says that there is no space.
fn is_no_space(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(is_full)
}

/// The space of one journal.
#[derive(Debug, Default)]
pub struct Reserve {
    /// None where there is none to keep.
    file: Option<File>,
    /// Length of the file and size of the reserve when all of it was last there.
    held: Option<(u64, u64)>,
}

impl Reserve {
    /// That of the journal in a file; it takes no space yet.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn of(path: &Path) -> Result<Reserve> {
        let mut options = std::fs::OpenOptions::new();
        let file = options.read(true).write(true).open(path);
        let file = file.with_context(|| path.display().to_string())?;
        Ok(Reserve { file: Some(file), held: None })
    }

    /// Takes what is missing of so many bytes, as far as it can be had. Whether all of them are there and the disk has
    /// an eighth as much for others: one that has less counts as full before the reserve is needed.
    pub fn hold(&mut self, bytes: u64) -> bool {
        self.take(bytes) && self.free_bytes().is_none_or(|free| free >= bytes / 8)
    }

    /// Whether the file has another length than when all of the reserve was last there. A file that was cut has lost it.
    pub fn has_moved(&self) -> bool {
        let (Some(file), Some((length, _))) = (&self.file, self.held) else { return false };
        file.metadata().is_ok_and(|about| about.len() != length)
    }

    /// Does something that may need a little space on the disk of the journal: if there is none, it gets some of the reserve,
    /// and then all of it. What is left is taken again by the next [`Reserve::hold`].
    ///
    /// # Errors
    /// What `act` says at last.
    pub fn lend<T>(&mut self, mut act: impl FnMut() -> Result<T>) -> Result<T> {
        let mut done = act();
        for give in [Reserve::give_some, Reserve::give_all] {
            if !matches!(&done, Err(error) if is_no_space(error)) || self.file.is_none() {
                break;
            }
            // A reserve that cannot be given helps nobody: what was asked for says what is missing.
            let given = give(self).and_then(|()| self.file.as_ref().map_or(Ok(()), File::sync_all));
            if let Err(error) = given {
                tracing::warn!(%error, "the reserve of the journal cannot be used");
            }
            self.held = None;
            done = act();
        }
        done
    }

    /// Gives the end of the reserve back to the disk. ext4 leaves it as it is.
    fn give_some(&self) -> std::io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let about = file.metadata()?;
        let end = about.blocks() * 512;
        let from = end.saturating_sub(LENT_BYTES).max(about.len());
        if from < end {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(file, flags, from, end - from)?;
        }
        Ok(())
    }

    /// Gives all blocks behind the end of the journal back to the disk.
    fn give_all(&self) -> std::io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        file.set_len(file.metadata()?.len())
    }

    /// What is free on the disk for users: what some file systems keep for root and for themselves is no space for jobs.
    fn free_bytes(&self) -> Option<u64> {
        let space = rustix::fs::fstatvfs(self.file.as_ref()?).ok()?;
        Some(space.f_bavail.saturating_mul(space.f_frsize))
    }

    fn take(&mut self, bytes: u64) -> bool {
        let Some(file) = &self.file else { return true };
        let Ok(about) = file.metadata() else { return true };
        if self.held == Some((about.len(), bytes)) {
            return true;
        }
        let kept = if bytes == 0 {
            Ok(())
        } else {
            fallocate(file, FallocateFlags::KEEP_SIZE, 0, about.len().saturating_add(bytes))
        };
        match kept {
            Ok(()) => self.held = Some((about.len(), bytes)),
            Err(Errno::NOSPC | Errno::DQUOT) => self.held = None,
            Err(Errno::INTR) => {}
            Err(error) => {
                tracing::warn!(%error, "no space can be reserved for the journal on this file system");
                self.file = None;
            }
        }
        self.file.is_none() || self.held.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_has_its_space_and_the_length_that_it_had() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        std::fs::write(&path, "something").unwrap();
        let mut reserve = Reserve::of(&path).unwrap();
        assert!(reserve.hold(1 << 20));
        let about = std::fs::metadata(&path).unwrap();
        assert_eq!(about.len(), 9);
        assert!(about.blocks() * 512 >= 1 << 20, "{} blocks", about.blocks());
        assert!(reserve.hold(1 << 20) && Reserve::default().hold(1 << 20));
        assert!(!reserve.has_moved());
        std::fs::write(&path, "shorter").unwrap();
        assert!(reserve.has_moved() && reserve.hold(1 << 20) && !reserve.has_moved());
        std::fs::write(&path, "something").unwrap();
        let no_space = || Err::<(), _>(std::io::Error::from(Errno::NOSPC).into());
        assert!(reserve.lend(no_space).is_err());
        let about = std::fs::metadata(&path).unwrap();
        assert!(about.len() == 9 && about.blocks() * 512 < 1 << 20, "{} blocks", about.blocks());
        assert!(
            reserve.hold(1 << 20) && std::fs::metadata(&path).unwrap().blocks() * 512 >= 1 << 20
        );
        // More than any disk has: what is asked for is not there.
        assert!(!reserve.hold(1 << 52) || reserve.file.is_none());
    }
}
