//! The stores of a file system in a folder: a file for each fileset, `NNNNN.redb`.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_base::FilesetId;
use forebay_base::full::is_full;

use super::pages::Pages;
use super::{RedbOptions, RedbStore};
use crate::{Result, Store, StoreError, Stores};

/// A folder with a file for each store.
#[derive(Clone, Debug)]
pub struct RedbFolder {
    path: PathBuf,
    options: RedbOptions,
    pages: Pages,
}

impl RedbFolder {
    /// The stores in the folder at `path`, opened with `options`. Those that are open at a time share its cache.
    #[must_use]
    pub fn at(path: &Path, options: RedbOptions) -> RedbFolder {
        let pages = Pages::new(options.cache_bytes);
        RedbFolder { path: path.to_owned(), options, pages }
    }

    /// Opens a store within its share of the memory for pages.
    fn within_share(
        &self,
        fileset: FilesetId,
        open: impl FnOnce(&RedbOptions) -> Result<RedbStore>,
    ) -> Result<Arc<dyn Store>> {
        let share = self.pages.share(fileset);
        let options = RedbOptions { cache_bytes: share.bytes() };
        Ok(Arc::new(open(&options)?.with_share(share)))
    }

    /// The file of a fileset's store: `00007.redb`.
    #[must_use]
    pub fn file_of(&self, fileset: FilesetId) -> PathBuf {
        self.path.join(file_name(fileset))
    }

    /// How each store is opened.
    #[must_use]
    pub fn options(&self) -> &RedbOptions {
        &self.options
    }

    fn existing(&self, fileset: FilesetId) -> Result<PathBuf> {
        let file = self.file_of(fileset);
        match file.symlink_metadata() {
            Ok(_) => Ok(file),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(StoreError::Missing(format!(
                "{} does not exist: the names of the fileset are lost; restore a backup with `forebay store \
                 restore`",
                file.display()
            ))),
            Err(error) => Err(failed("look at", &file, &error)),
        }
    }

    fn sync(&self) -> Result<()> {
        let synced = File::open(&self.path).and_then(|folder| folder.sync_all());
        synced.map_err(|error| failed("sync", &self.path, &error))
    }
}

fn file_name(fileset: FilesetId) -> String {
    format!("{:05}.redb", fileset.0)
}

fn parse_name(name: &str) -> Option<FilesetId> {
    let fileset = FilesetId(name.strip_suffix(".redb")?.parse().ok()?);
    (file_name(fileset) == name).then_some(fileset)
}

fn failed(operation: &str, path: &Path, error: &std::io::Error) -> StoreError {
    let text = format!("cannot {operation} {}: {error}", path.display());
    if is_full(error) { StoreError::Full(text) } else { StoreError::Io(text) }
}

impl Stores for RedbFolder {
    fn create(&self, fileset: FilesetId) -> Result<Arc<dyn Store>> {
        self.remove(fileset)?;
        self.within_share(fileset, |options| RedbStore::create_with(self.file_of(fileset), options))
    }

    fn open(&self, fileset: FilesetId) -> Result<Arc<dyn Store>> {
        let file = self.existing(fileset)?;
        self.within_share(fileset, |options| RedbStore::open_with(file, options))
    }

    fn look(&self, fileset: FilesetId) -> Result<Arc<dyn Store>> {
        let file = self.existing(fileset)?;
        self.within_share(fileset, |options| RedbStore::look(file, options))
    }

    fn size_of(&self, fileset: FilesetId) -> Result<u64> {
        let file = self.existing(fileset)?;
        let metadata =
            std::fs::metadata(&file).map_err(|error| failed("look at", &file, &error))?;
        Ok(metadata.blocks() * 512)
    }

    fn remove(&self, fileset: FilesetId) -> Result<()> {
        let file = self.file_of(fileset);
        match std::fs::remove_file(&file) {
            Ok(()) => self.sync(),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(failed("remove", &file, &error)),
        }
    }

    fn list(&self) -> Result<Vec<FilesetId>> {
        let io = |error| failed("list", &self.path, &error);
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(io)? {
            found.extend(entry.map_err(io)?.file_name().to_str().and_then(parse_name));
        }
        found.sort_unstable();
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_read_back_and_others_are_passed_over() {
        for fileset in [0, 7, 65_535].map(FilesetId) {
            assert_eq!(parse_name(&file_name(fileset)), Some(fileset));
        }
        for name in ["7.redb", "00007.redb.fresh", "65536.redb", "-0001.redb", "00007", "x.redb"] {
            assert_eq!(parse_name(name), None, "{name}");
        }
    }
}
