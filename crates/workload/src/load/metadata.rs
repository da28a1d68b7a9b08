//! Metadata: operations on many empty files in one directory.

use std::fs::{self, File};
use std::path::Path;

use forebay_base::Clock;
use serde::{Deserialize, Serialize};

use super::numbered::{Numbered, stat};
use super::{DropCaches, Operations, check_count, drop_caches, timed};
use forebay_analytics::error::{Error, Result};
use forebay_analytics::scratch::ScratchDir;

/// Creates empty files in one directory, stats them, lists the directory, and unlinks them, in one
/// thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Metadata {
    /// How many files.
    pub files: u64,
}

impl Default for Metadata {
    /// 100,000 files.
    fn default() -> Metadata {
        Metadata { files: 100_000 }
    }
}

/// What a metadata load measured; an operation is one file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetadataResult {
    /// Creating.
    pub create: Operations,
    /// Stat of files just created.
    pub stat_cached: Operations,
    /// Stat after caches were dropped.
    pub stat_cold: Option<Operations>,
    /// Listing the directory, per entry.
    pub readdir: Operations,
    /// Unlinking.
    pub unlink: Operations,
}

impl Metadata {
    /// Runs the load in `target`.
    ///
    /// # Errors
    /// [`Error::Setting`] if there are no files; [`Error::WrongContent`] if the listing has another number
    /// of entries than there are files; [`Error::Io`].
    pub fn run(
        &self,
        target: &Path,
        clock: &dyn Clock,
        drop: Option<&mut DropCaches<'_>>,
    ) -> Result<MetadataResult> {
        check_count("files", self.files)?;
        let scratch = ScratchDir::create(target, "metadata")?;
        let mut files = Numbered::new(scratch.path(), "file-");
        let mut measure = |action, work: fn(&Path) -> std::io::Result<()>| {
            let ((), seconds) = timed(clock, || files.each(self.files, action, work, |_| {}))?;
            Ok::<_, Error>(Operations::new(self.files, seconds))
        };
        let create = measure("create", |path| File::create_new(path).map(|_| ()))?;
        let stat_cached = measure("stat", stat)?;
        let stat_cold = match drop {
            None => None,
            Some(drop) => {
                drop_caches(drop, target)?;
                Some(measure("stat", stat)?)
            }
        };
        let listing = Numbered::new(scratch.path(), "file-");
        let ((), seconds) = timed(clock, || listing.list(self.files))?;
        let readdir = Operations::new(self.files, seconds);
        let unlink = measure("remove", |path| fs::remove_file(path))?;
        scratch.remove()?;
        Ok(MetadataResult { create, stat_cached, stat_cold, readdir, unlink })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::time::SystemClock;

    #[test]
    fn every_operation_is_measured_and_nothing_is_left() {
        let target = tempfile::tempdir().unwrap();
        let load = Metadata { files: 100 };
        let result = load.run(target.path(), &SystemClock, Some(&mut || Ok(()))).unwrap();
        let measured = [result.create, result.stat_cached, result.readdir, result.unlink];
        for operations in measured.into_iter().chain(result.stat_cold) {
            assert_eq!(operations.count, 100);
            assert!(operations.per_second > 0.0);
        }
        assert!(load.run(target.path(), &SystemClock, None).unwrap().stat_cold.is_none());
        assert_eq!(fs::read_dir(target.path()).unwrap().count(), 0);
    }
}
