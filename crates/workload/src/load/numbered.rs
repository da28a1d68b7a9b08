//! Numbered files in one directory, and the operations on each of them.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use forebay_analytics::error::{Error, Result};

/// Files `<prefix><number>` in one directory, numbered from 0. Makes a name without allocating.
#[derive(Clone, Debug)]
pub(crate) struct Numbered {
    /// The directory, a slash and the prefix; then the number of the name that was made last.
    path: Vec<u8>,
    stem_bytes: usize,
    prefix_bytes: usize,
}

impl Numbered {
    /// Names that begin with `prefix` in `directory`.
    pub fn new(directory: &Path, prefix: &str) -> Numbered {
        let path = directory.join(prefix).into_os_string().into_vec();
        Numbered { stem_bytes: path.len(), prefix_bytes: prefix.len(), path }
    }

    /// Path of the file `number`.
    pub fn at(&mut self, number: u64) -> &Path {
        self.path.truncate(self.stem_bytes);
        // Writing to a vector does not fail.
        let _ = write!(self.path, "{number:08}");
        Path::new(OsStr::from_bytes(&self.path))
    }

    /// Does `work` with each of the first `count` files; `done` hears of each.
    ///
    /// # Errors
    /// [`Error::Io`] with `action` and the path.
    pub fn each(
        &mut self,
        count: u64,
        action: &'static str,
        mut work: impl FnMut(&Path) -> io::Result<()>,
        mut done: impl FnMut(u64),
    ) -> Result<()> {
        for number in 0..count {
            let path = self.at(number);
            work(path).map_err(Error::io(action, path))?;
            done(number);
        }
        Ok(())
    }

    /// Lists the directory and checks that it has `count` names of these.
    ///
    /// # Errors
    /// [`Error::WrongContent`] if it has another number; [`Error::Io`].
    pub fn list(&self, count: u64) -> Result<()> {
        let directory = self.directory();
        let prefix = &self.path[self.stem_bytes - self.prefix_bytes..self.stem_bytes];
        let failed = || Error::io("list", &directory);
        let mut there = 0;
        for entry in fs::read_dir(&directory).map_err(failed())? {
            let name = entry.map_err(failed())?.file_name();
            there += u64::from(name.as_bytes().starts_with(prefix));
        }
        if there == count {
            return Ok(());
        }
        let reason = format!("{there} entries listed of {count} files");
        Err(Error::WrongContent { path: directory, reason })
    }

    fn directory(&self) -> PathBuf {
        PathBuf::from(OsStr::from_bytes(&self.path[..self.stem_bytes - self.prefix_bytes]))
    }
}

/// Asks for the attributes of a file.
pub(crate) fn stat(path: &Path) -> io::Result<()> {
    fs::symlink_metadata(path).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_numbered_and_counted_apart_from_others() {
        let root = tempfile::tempdir().unwrap();
        let (mut one, mut two) =
            (Numbered::new(root.path(), "a-"), Numbered::new(root.path(), "b-"));
        assert_eq!(one.at(123_456_789), root.path().join("a-123456789"));
        assert_eq!(one.at(7), root.path().join("a-00000007"));
        let create = |path: &Path| fs::File::create_new(path).map(|_| ());
        let mut told = 0;
        one.each(3, "create", create, |_| told += 1).unwrap();
        two.each(2, "create", create, |_| {}).unwrap();
        assert_eq!(told, 3);
        one.list(3).unwrap();
        two.list(2).unwrap();
        let text = two.list(3).unwrap_err().to_string();
        assert!(text.ends_with("2 entries listed of 3 files"), "{text}");
        let text = two.each(1, "create", create, |_| {}).unwrap_err().to_string();
        assert!(text.starts_with("cannot create ") && text.contains("/b-00000000: "), "{text}");
    }
}
