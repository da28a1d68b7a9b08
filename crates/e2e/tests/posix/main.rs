//! What POSIX and Linux promise to programs, rule by rule, on both paths.
#![allow(clippy::disallowed_methods, reason = "time limits of tests need the machine's clock")]

mod attributes;
mod listing;
mod locks;
mod mapping;
mod names;
mod open;
mod page_cache;
mod placement;
mod privilege;
mod range;
mod rename;
mod xattr;

use std::fs::{File, OpenOptions};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// A handle for reading and writing on a file that is made if it is missing.
fn open_rw(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .expect("opens a file")
}

/// Opens with flags that the standard library does not know.
fn open_with(path: &Path, flags: OFlags) -> rustix::io::Result<File> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o644)).map(File::from)
}
