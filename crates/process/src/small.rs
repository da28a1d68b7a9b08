//! Small files that the kernel makes when they are read, as those of `/proc` and of control groups, read whole.
//!
//! stat(2) says nothing of their length, and the standard library asks for it first and then reads 32 bytes, 64, and so on.
//! Short jobs feel that: what is known of one comes from a dozen such files.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::path::Arg;

/// Room for most of them: the kernel makes a page at a time.
const USUAL_BYTES: usize = 4096;

/// What a file says.
///
/// # Errors
/// If it is not there or cannot be read.
pub fn read(path: impl Arg) -> io::Result<Vec<u8>> {
    read_in(CWD, path)
}

/// What a file in a folder says.
///
/// # Errors
/// As [`read`].
pub fn read_in(folder: BorrowedFd<'_>, name: impl Arg) -> io::Result<Vec<u8>> {
    let file = rustix::fs::openat(folder, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    // An end in the middle of a page may be the end of a record.
    while rustix::io::retry_on_intr(|| {
        bytes.reserve(USUAL_BYTES / 4);
        rustix::io::read(&file, rustix::buffer::spare_capacity(&mut bytes))
    })? > 0
    {}
    Ok(bytes)
}

/// What a file that stays open says now.
///
/// # Errors
/// If it cannot be read.
pub fn read_again(file: impl AsFd) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(USUAL_BYTES);
    loop {
        bytes.reserve(USUAL_BYTES / 4);
        let (from, spare) = (bytes.len() as u64, rustix::buffer::spare_capacity(&mut bytes));
        match rustix::io::pread(&file, spare, from) {
            Ok(0) => return Ok(bytes),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// As [`read`], for a file of text.
///
/// # Errors
/// As [`read`], and if it is not UTF-8.
pub fn text(path: impl Arg) -> io::Result<String> {
    String::from_utf8(read(path)?)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// As [`read_in`], for a file of text.
///
/// # Errors
/// As [`text`].
pub fn text_in(folder: BorrowedFd<'_>, name: impl Arg) -> io::Result<String> {
    String::from_utf8(read_in(folder, name)?)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn a_file_of_any_length_is_read_whole_and_again() {
        let folder = tempfile::tempdir().unwrap();
        for length in [0, 1, USUAL_BYTES - 1, USUAL_BYTES, USUAL_BYTES + 1, 100_000] {
            let bytes: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let path = folder.path().join("file");
            std::fs::write(&path, &bytes).unwrap();
            assert!(read(&path).unwrap() == bytes, "{length}");
            let opened = std::fs::File::open(folder.path()).unwrap();
            assert!(read_in(opened.as_fd(), "file").unwrap() == bytes, "{length}");
            let file = std::fs::File::open(&path).unwrap();
            assert!(read_again(&file).unwrap() == bytes && read_again(&file).unwrap() == bytes);
        }
        assert_eq!(
            text("/proc/self/stat").unwrap().split(' ').next().unwrap(),
            std::process::id().to_string()
        );
        assert_eq!(read("/no/such/file").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
