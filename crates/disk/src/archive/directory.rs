//! An archive in a directory, such as one of a mounted file server.
//!
//! An object is written to a file in `uploads`, synced, and renamed to its name; then the folders are synced.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::bucket::{Bucket, BucketError, Part, Result, Tail};

const UPLOADS: &str = "uploads";

/// A directory that holds an archive.
pub struct DirectoryBucket {
    path: PathBuf,
    next: AtomicU64,
}

impl DirectoryBucket {
    /// The archive in the directory at `path`, which must be there when it is used: it is never made, as a directory that
    /// is not mounted would go unnoticed.
    #[must_use]
    pub fn at(path: &Path) -> DirectoryBucket {
        DirectoryBucket { path: path.to_owned(), next: AtomicU64::new(0) }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

fn meaning(error: &std::io::Error) -> BucketError {
    match error.kind() {
        ErrorKind::NotFound => BucketError::NotFound,
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => BucketError::Full,
        ErrorKind::FileTooLarge => BucketError::TooLarge,
        _ => BucketError::Away(error.to_string()),
    }
}

fn sync_folder(path: &Path) -> std::io::Result<()> {
    File::open(path)?.sync_all()
}

impl Bucket for DirectoryBucket {
    fn kind(&self) -> &'static str {
        "directory"
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let mut part = self.begin(name)?;
        part.put(bytes.to_vec())?;
        part.complete()
    }

    fn begin(&self, name: &str) -> Result<Box<dyn Part>> {
        let begun = || {
            match std::fs::create_dir(self.path.join(UPLOADS)) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let unfinished = format!("{UPLOADS}/{}-{number}", std::process::id());
            let unfinished = self.path.join(unfinished);
            let file =
                OpenOptions::new().write(true).create(true).truncate(true).open(&unfinished)?;
            Ok((file, unfinished))
        };
        match begun() {
            Ok((file, unfinished)) => {
                let (root, target) = (self.path.clone(), self.file(name));
                Ok(Box::new(FilePart { file, unfinished, root, target, done: false }))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Err(BucketError::Away(format!(
                "the directory {} is not there: is it mounted?",
                self.path.display()
            ))),
            Err(error) => Err(meaning(&error)),
        }
    }

    fn get(&self, name: &str, range: Option<Range<u64>>) -> Result<Vec<u8>> {
        let read = || {
            let mut file = File::open(self.file(name))?;
            let mut bytes = Vec::new();
            match range {
                None => file.read_to_end(&mut bytes)?,
                Some(Range { start, end }) => {
                    file.seek(SeekFrom::Start(start))?;
                    file.take(end.saturating_sub(start)).read_to_end(&mut bytes)?
                }
            };
            Ok(bytes)
        };
        read().map_err(|error: std::io::Error| meaning(&error))
    }

    fn tail(&self, name: &str, length: u64) -> Result<Tail> {
        let read = || {
            let mut file = File::open(self.file(name))?;
            let size = file.metadata()?.len();
            file.seek(SeekFrom::Start(size.saturating_sub(length)))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(Tail { bytes, size })
        };
        read().map_err(|error: std::io::Error| meaning(&error))
    }

    fn remove(&self, name: &str) -> Result<()> {
        match std::fs::remove_file(self.file(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(meaning(&error)),
            _ => Ok(()),
        }
    }

    fn list(&self, prefix: &str, visit: &mut dyn FnMut(&str, u64) -> bool) -> Result<()> {
        let (folder, _) = prefix.rsplit_once('/').unwrap_or(("", prefix));
        let mut open = vec![folder.to_owned()];
        while let Some(folder) = open.pop() {
            let found = match std::fs::read_dir(self.file(&folder)) {
                // Nothing was ever put there.
                Err(error) if error.kind() == ErrorKind::NotFound && !folder.is_empty() => continue,
                found => found.map_err(|error| BucketError::Away(error.to_string()))?,
            };
            for entry in found {
                let entry = entry.map_err(|error| meaning(&error))?;
                let file_name = entry.file_name();
                let Some(own) = file_name.to_str() else { continue };
                let name =
                    if folder.is_empty() { own.to_owned() } else { format!("{folder}/{own}") };
                if name == UPLOADS || name == "lost+found" {
                    continue;
                }
                let about = match entry.metadata() {
                    // It was removed a moment ago.
                    Err(error) if error.kind() == ErrorKind::NotFound => continue,
                    about => about.map_err(|error| meaning(&error))?,
                };
                if about.is_dir() {
                    open.push(name);
                } else if name.starts_with(prefix) && !visit(&name, about.len()) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn clear_uploads(&self) -> Result<()> {
        let entries = match std::fs::read_dir(self.path.join(UPLOADS)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(|error| meaning(&error))?,
        };
        for entry in entries {
            let entry = entry.map_err(|error| meaning(&error))?;
            std::fs::remove_file(entry.path()).map_err(|error| meaning(&error))?;
        }
        Ok(())
    }
}

/// A file that is being written.
struct FilePart {
    file: File,
    unfinished: PathBuf,
    root: PathBuf,
    target: PathBuf,
    done: bool,
}

impl Part for FilePart {
    fn put(&mut self, bytes: Vec<u8>) -> Result<()> {
        self.file.write_all(&bytes).map_err(|error| meaning(&error))
    }

    fn complete(mut self: Box<Self>) -> Result<()> {
        let named = || {
            self.file.sync_all()?;
            let folder = self.target.parent().unwrap_or(&self.root);
            let mut is_new = Vec::new();
            let mut missing = folder;
            while !missing.exists() && missing.starts_with(&self.root) && missing != self.root {
                is_new.push(missing);
                missing = missing.parent().unwrap_or(&self.root);
            }
            for folder in is_new.into_iter().rev() {
                match std::fs::create_dir(folder) {
                    Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                    _ => {}
                }
                sync_folder(folder.parent().unwrap_or(&self.root))?;
            }
            std::fs::rename(&self.unfinished, &self.target)?;
            sync_folder(folder)
        };
        named().map_err(|error| meaning(&error))?;
        self.done = true;
        Ok(())
    }
}

impl Drop for FilePart {
    fn drop(&mut self) {
        if !self.done {
            let _ = std::fs::remove_file(&self.unfinished);
        }
    }
}
