//! Copying files: by a clone where the file system can, otherwise bytes, without the holes of sparse files.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::SeekFrom;

const PIECE_BYTES: usize = 1 << 20;

/// How the bytes came into a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Shared with the original until one of them changes.
    Cloned,
    /// Read and written.
    Copied,
}

/// Opens a file to read it; never what a link leads to, and never one that could let this wait.
pub fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

/// Makes a new file that only its user can use.
pub fn create(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o600).open(path)
}

/// Copies what is in a file; how, and how many bytes it has.
pub fn fill(to: &File, from: &File) -> io::Result<(How, u64)> {
    if rustix::fs::ioctl_ficlone(to, from).is_ok() {
        return Ok((How::Cloned, to.metadata()?.len()));
    }
    let mut buffer = vec![0; PIECE_BYTES];
    let mut at = 0;
    loop {
        // A file system that knows no holes has one piece of data up to the end.
        let data = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => break,
            Err(rustix::io::Errno::INVAL) => at,
            Err(error) => return Err(error.into()),
        };
        let hole = rustix::fs::seek(from, SeekFrom::Hole(data)).unwrap_or(u64::MAX);
        at = copy_piece(to, from, (data, hole), &mut buffer)?;
        if at < hole || hole == u64::MAX {
            break;
        }
    }
    let bytes = from.metadata()?.len().max(at);
    to.set_len(bytes)?;
    Ok((How::Copied, bytes))
}

/// Copies from one offset to another, or to the end if that comes first; where it stopped.
fn copy_piece(
    to: &File,
    from: &File,
    (mut at, end): (u64, u64),
    buffer: &mut [u8],
) -> io::Result<u64> {
    while at < end {
        let most = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
        let count = match from.read_at(&mut buffer[..most], at) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        to.write_all_at(&buffer[..count], at)?;
        at += count as u64;
    }
    Ok(at)
}

/// Has later stores through mappings of a file change its times: those to pages that are dirty already do not.
pub fn settle(file: &File) {
    let flags = libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: it concerns an open file, and takes numbers.
    unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparse_file_is_copied_with_its_size_and_without_its_holes() {
        use std::os::unix::fs::MetadataExt as _;
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let file = File::create(&from).unwrap();
        file.write_all_at(b"begin", 0).unwrap();
        file.write_all_at(b"end", 64 << 20).unwrap();
        file.set_len(128 << 20).unwrap();
        let copy = create(&to).unwrap();
        let (_, bytes) = fill(&copy, &open(&from).unwrap()).unwrap();
        assert_eq!(bytes, 128 << 20);
        assert!(copy.metadata().unwrap().blocks() * 512 < 1 << 20, "holes were written");
        assert!(std::fs::read(&from).unwrap() == std::fs::read(&to).unwrap());
    }
}
