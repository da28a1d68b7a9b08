//! The stores of a file system in a folder: a file for each fileset, `NNNNN.redb`.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_base::FilesetId;
use forebay_base::full::is_full;
use rustix::io::Errno;

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

    /// The file of a frozen copy of a fileset's store: `00007@000003.redb`.
    fn frozen_file(&self, fileset: FilesetId, number: u64) -> PathBuf {
        self.path.join(frozen_name(fileset, number))
    }

    /// The file of one that is being made.
    fn draft_file(&self, fileset: FilesetId, number: u64) -> PathBuf {
        self.path.join(frozen_name(fileset, number) + DRAFT)
    }

    /// An empty file for a frozen copy, in the place of what an earlier attempt left.
    fn new_draft(&self, fileset: FilesetId, number: u64) -> Result<(PathBuf, File)> {
        let path = self.draft_file(fileset, number);
        self.remove_file(&path)?;
        let made = File::options().write(true).create_new(true).mode(0o600).open(&path);
        Ok((path.clone(), made.map_err(|error| failed("create", &path, &error))?))
    }

    fn remove_file(&self, file: &Path) -> Result<()> {
        match std::fs::remove_file(file) {
            Ok(()) => self.sync(),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(failed("remove", file, &error)),
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

/// Ending of the name of a frozen copy that is being made.
const DRAFT: &str = ".draft";

/// Memory for pages of a frozen copy, in bytes.
const FROZEN_CACHE: usize = 8 << 20;

fn frozen_name(fileset: FilesetId, number: u64) -> String {
    format!("{:05}@{number:06}.redb", fileset.0)
}

/// The number of a frozen copy of a fileset's store, finished or not, by the name of its file.
fn parse_frozen(fileset: FilesetId, name: &str) -> Option<u64> {
    let name = name.strip_suffix(DRAFT).unwrap_or(name);
    let number = name.strip_suffix(".redb")?.split_once('@')?.1.parse().ok()?;
    (frozen_name(fileset, number) == name).then_some(number)
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
        for number in self.list_frozen(fileset)? {
            self.remove_frozen(fileset, number)?;
        }
        self.remove_file(&self.file_of(fileset))
    }

    fn freeze_shared(&self, fileset: FilesetId, number: u64) -> Result<bool> {
        let source = self.file_of(fileset);
        let from = File::open(&source).map_err(|error| failed("open", &source, &error))?;
        let (path, draft) = self.new_draft(fileset, number)?;
        match rustix::fs::ioctl_ficlone(&draft, &from) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL | Errno::XDEV | Errno::NOSYS) => {
                self.remove_file(&path)?;
                Ok(false)
            }
            Err(errno) => {
                self.remove_file(&path)?;
                Err(failed("copy", &source, &errno.into()))
            }
        }
    }

    fn freeze_copied(&self, fileset: FilesetId, number: u64, store: &dyn Store) -> Result<()> {
        let path = self.draft_file(fileset, number);
        self.remove_file(&path)?;
        store.copy_to(&path, &mut |_, _| {}).map(drop)
    }

    fn finish_frozen(&self, fileset: FilesetId, number: u64) -> Result<()> {
        let draft = self.draft_file(fileset, number);
        let options = RedbOptions { cache_bytes: FROZEN_CACHE };
        // The file is as a crash would leave that of the open store: this opening verifies it, and puts it right.
        let finished = RedbStore::open_with(&draft, &options).and_then(|store| store.close());
        let renamed = finished.and_then(|()| {
            let file = File::open(&draft).and_then(|file| file.sync_all());
            file.map_err(|error| failed("sync", &draft, &error))?;
            std::fs::rename(&draft, self.frozen_file(fileset, number))
                .map_err(|error| failed("rename", &draft, &error))?;
            self.sync()
        });
        renamed.inspect_err(|_| {
            // The error that matters is the one before.
            let _ = self.remove_frozen(fileset, number);
        })
    }

    fn frozen(&self, fileset: FilesetId, number: u64) -> Result<Arc<dyn Store>> {
        let file = self.frozen_file(fileset, number);
        match file.symlink_metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(StoreError::Missing(format!("{} does not exist", file.display())));
            }
            Err(error) => return Err(failed("look at", &file, &error)),
            Ok(_) => {}
        }
        Ok(Arc::new(RedbStore::look(file, &RedbOptions { cache_bytes: FROZEN_CACHE })?))
    }

    fn remove_frozen(&self, fileset: FilesetId, number: u64) -> Result<()> {
        self.remove_file(&self.draft_file(fileset, number))?;
        self.remove_file(&self.frozen_file(fileset, number))
    }

    fn list_frozen(&self, fileset: FilesetId) -> Result<Vec<u64>> {
        let io = |error| failed("list", &self.path, &error);
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(io)? {
            let name = entry.map_err(io)?.file_name();
            found.extend(name.to_str().and_then(|name| parse_frozen(fileset, name)));
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
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

    #[test]
    fn names_of_frozen_copies_tell_their_fileset_and_are_not_those_of_stores() {
        let name = frozen_name(FilesetId(7), 12);
        assert_eq!((name.as_str(), parse_name(&name)), ("00007@000012.redb", None));
        for shown in [name.clone(), name + DRAFT] {
            assert_eq!(parse_frozen(FilesetId(7), &shown), Some(12));
            assert_eq!(parse_frozen(FilesetId(8), &shown), None);
        }
        assert_eq!(parse_frozen(FilesetId(7), "00007@12.redb"), None);
    }
}
