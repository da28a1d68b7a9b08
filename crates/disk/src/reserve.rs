//! Space kept aside in a file, to be given up piece by piece to whoever must not be refused.
//!
//! Between giving a piece up and using it others may take it. So it goes in small pieces, each just before it
//! is needed, and whoever needs one tries again with the next.
//!
//! What survives a crash: the file, and with it the space.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

/// Bytes by which a reserve grows: as much is found even if not all that is wanted is free.
const PIECE: u64 = 1 << 20;

/// A file that takes up space, and nothing else.
#[derive(Debug)]
pub struct ReserveFile {
    path: PathBuf,
    held: u64,
}

impl ReserveFile {
    /// The reserve at `path`, with what it holds already; nothing is made.
    #[must_use]
    pub fn at(path: &Path) -> ReserveFile {
        let found = std::fs::symlink_metadata(path).ok().filter(std::fs::Metadata::is_file);
        // A copy of it may be full of holes.
        let held = found.map_or(0, |found| found.len().min(found.blocks() * 512));
        ReserveFile { path: path.to_owned(), held }
    }

    /// Bytes that it holds.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Holds `target` bytes, or as many as are free. Returns how many it holds.
    ///
    /// # Errors
    /// If the file cannot be made, or its file system cannot allocate space ahead of need.
    pub fn hold(&mut self, target: u64) -> io::Result<u64> {
        if self.held > target {
            self.give(self.held - target);
        }
        if self.held >= target {
            return Ok(self.held);
        }
        let file = match self.open() {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => return Ok(self.held),
            opened => opened?,
        };
        while self.held < target {
            let piece = PIECE.min(target - self.held);
            match rustix::fs::fallocate(&file, FallocateFlags::empty(), self.held, piece) {
                Ok(()) => self.held += piece,
                Err(Errno::INTR) => {}
                Err(Errno::NOSPC | Errno::DQUOT) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.held)
    }

    /// Gives up to `bytes` back. Returns how many.
    pub fn give(&mut self, bytes: u64) -> u64 {
        let given = bytes.min(self.held);
        if given == 0 {
            return 0;
        }
        let left = self.held - given;
        // A file that cannot be cut goes as a whole: space that nobody can have would be worse.
        let cut = self.open().and_then(|file| file.set_len(left));
        if cut.is_ok() {
            self.held = left;
            return given;
        }
        let whole = std::mem::take(&mut self.held);
        std::fs::remove_file(&self.path).map_or(0, |()| whole)
    }

    fn open(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        options.custom_flags(libc::O_NOFOLLOW).open(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_is_held_given_up_in_pieces_and_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reserve");
        let mut reserve = ReserveFile::at(&path);
        assert_eq!((reserve.held(), reserve.give(1), path.exists()), (0, 0, false));
        assert_eq!(reserve.hold(3 * PIECE + 4096).unwrap(), 3 * PIECE + 4096);
        assert!(std::fs::metadata(&path).unwrap().blocks() * 512 >= 3 * PIECE);
        assert_eq!((reserve.give(PIECE), reserve.held()), (PIECE, 2 * PIECE + 4096));
        assert_eq!(ReserveFile::at(&path).held(), 2 * PIECE + 4096);
        assert_eq!((reserve.give(u64::MAX), reserve.give(1)), (2 * PIECE + 4096, 0));
        assert!(std::fs::metadata(&path).unwrap().blocks() == 0);
        // A setting that was lowered gives the rest back.
        assert_eq!((reserve.hold(PIECE).unwrap(), reserve.hold(4096).unwrap()), (PIECE, 4096));
    }

    #[test]
    fn a_file_of_holes_holds_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reserve");
        File::create(&path).unwrap().set_len(PIECE).unwrap();
        let mut reserve = ReserveFile::at(&path);
        assert_eq!(reserve.held(), 0);
        reserve.hold(PIECE).unwrap();
        assert!(std::fs::metadata(&path).unwrap().blocks() * 512 >= PIECE);
    }
}
