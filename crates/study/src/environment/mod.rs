//! The machine and the storage of a study, as far as figures depend on them.
//!
//! Read from `/proc`, `/sys` and the file systems themselves, without other programs and without root.
//! What cannot be read is left empty: describing never fails a study, except for an area that is not
//! there. Says what is; changes nothing but in [`drop_caches`].

mod blocks;
mod home;
mod machine;
mod settings;
mod storage;
mod virtualization;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

pub use machine::machine;
pub use storage::{device_scope, storage};

/// Where the kernel's files are; elsewhere in tests.
#[derive(Clone, Debug)]
struct Kernel {
    proc: PathBuf,
    sys: PathBuf,
}

impl Kernel {
    fn running() -> Kernel {
        Kernel { proc: "/proc".into(), sys: "/sys".into() }
    }

    fn proc(&self, path: &str) -> Option<String> {
        text(&self.proc.join(path))
    }

    fn sys(&self, path: &str) -> Option<String> {
        text(&self.sys.join(path))
    }
}

/// A small file of the kernel without the blanks around it; `None` if it cannot be read or is empty.
fn text(path: &Path) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// The numbers of a list such as `0-3,8`.
fn list(text: &str) -> Vec<u32> {
    let ranges = text.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<u32>().ok()?..=last.parse().ok()?)
    });
    ranges.flatten().collect()
}

/// Writes everything out and empties the page, inode and directory entry caches of the machine.
///
/// # Errors
/// [`Error::Io`] if this process may not: it takes root of the machine itself.
pub fn drop_caches() -> Result<()> {
    empty_caches(Path::new("/proc/sys/vm/drop_caches"))
}

fn empty_caches(switch: &Path) -> Result<()> {
    rustix::fs::sync();
    fs::write(switch, "3").map_err(|error| {
        let reason = format!("emptying the caches takes root of the machine itself: {error}");
        Error::io("write", switch)(io::Error::new(error.kind(), reason))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(list("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(list("5"), [5]);
        assert_eq!(list(""), [0_u32; 0]);
        assert_eq!(list("a,2-x,7"), [7]);
    }

    #[test]
    fn without_the_right_the_caches_stay_and_the_error_says_what_it_takes() {
        let folder = tempfile::tempdir().unwrap();
        let error = empty_caches(&folder.path().join("no/such/switch")).unwrap_err().to_string();
        assert!(error.contains("takes root"), "{error}");
        assert!(error.contains("no/such/switch"), "{error}");
    }
}
