//! Space kept aside in the home folder, so that the store can commit what empties a full disk.
//!
//! Removing files on a full disk needs a commit, and a commit needs space. When the store finds none, a piece of the
//! reserve is given up and the store tries again, with twice as much each time: whoever else writes to the disk takes
//! what the store leaves, and may be quicker than it. A commit takes little, so that the reserve lasts for many.
//! It is filled up again as soon as there is space.
//!
//! What survives a crash: the file, and with it the space. So a mount after a crash has it too.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_base::ByteSize;
use forebay_disk::reserve::ReserveFile;
use parking_lot::Mutex;

/// The reserve is at most this part of its disk.
const PART_OF_DISK: u64 = 8;
/// Bytes that are given up first.
const PIECE: u64 = 1 << 20;

/// Space kept aside in a file. Clones stand for the same file.
#[derive(Clone)]
pub struct Reserve {
    place: Option<Arc<Place>>,
}

struct Place {
    folder: PathBuf,
    size: ByteSize,
    file: Mutex<ReserveFile>,
}

impl Reserve {
    /// No space is kept aside.
    #[must_use]
    pub fn none() -> Reserve {
        Reserve { place: None }
    }

    /// The reserve in the file at `path`, with what it holds already; [`Reserve::hold`] makes it `size` bytes.
    #[must_use]
    pub fn at(path: &Path, size: ByteSize) -> Reserve {
        let folder = path.parent().unwrap_or(Path::new("/")).to_owned();
        let file = Mutex::new(ReserveFile::at(path));
        Reserve { place: Some(Arc::new(Place { folder, size, file })) }
    }

    /// Keeps as much aside as there is to be and there is space for.
    pub fn hold(&self) {
        let Some(place) = &self.place else { return };
        let mut file = place.file.lock();
        if file.held() == place.target() {
            return;
        }
        if let Err(error) = file.hold(place.target()) {
            tracing::debug!(%error, "no space can be reserved in the home folder");
        }
    }

    /// Gives up `bytes` of what is kept aside, or the rest. Returns whether there was any.
    fn give(&self, bytes: u64) -> bool {
        self.place.as_ref().is_some_and(|place| place.file.lock().give(bytes) > 0)
    }

    /// Carries `operation` out; if it finds no space, again with more and more of what is kept aside.
    ///
    /// # Errors
    /// That of `operation`.
    pub fn spend<T, E>(
        &self,
        mut operation: impl FnMut() -> std::result::Result<T, E>,
        is_full: impl Fn(&E) -> bool,
    ) -> std::result::Result<T, E> {
        let mut done = operation();
        let mut piece = PIECE;
        while done.as_ref().is_err_and(&is_full) && self.give(piece) {
            piece *= 2;
            done = operation();
        }
        if piece > PIECE {
            tracing::warn!(
                "the disk of the home folder is full: the reserve was used, or a part of it"
            );
        }
        done
    }

    /// Whether all of the space is kept aside now.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.place.as_ref().is_some_and(|place| place.file.lock().held() >= place.target())
    }
}

impl Place {
    fn target(&self) -> u64 {
        let total = rustix::fs::statvfs(&self.folder)
            .map_or(u64::MAX, |found| found.f_blocks.saturating_mul(found.f_frsize));
        self.size.0.min(total / PART_OF_DISK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Carries out what finds no space `times` times. Returns whether it succeeded in the end.
    fn spend(reserve: &Reserve, times: usize) -> bool {
        let mut refusals = 0..times;
        reserve.spend(|| refusals.next().map_or(Ok(()), |_| Err(())), |()| true).is_ok()
    }

    #[test]
    fn a_reserve_lasts_for_as_many_commits_as_it_has_pieces() {
        let folder = tempfile::tempdir().unwrap();
        let reserve = Reserve::at(&folder.path().join("reserve"), ByteSize::mib(8));
        reserve.hold();
        assert!(reserve.is_held());
        for commit in 0..8 {
            assert!(spend(&reserve, 1), "commit {commit}");
        }
        assert!(!reserve.is_held() && !spend(&reserve, 1), "the reserve is used up");
        // Others take what is given up: it becomes more each time.
        reserve.hold();
        assert!(spend(&reserve, 3), "1, 2 and 4 MiB");
        assert!(spend(&reserve, 1) && !spend(&reserve, 1), "1 MiB is left");
    }
}
