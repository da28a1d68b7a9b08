//! The file of a stream: opened, filled, and removed again.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use forebay_base::ByteSize;

use super::{Access, Cache, Fill, Io, Stream, refuse};
use crate::error::{Error, Result};
use crate::load::pattern::Pattern;

/// Bytes per call of filling.
const FILL_CALL_BYTES: u64 = 1 << 20;

/// A file that is ready to be measured.
#[derive(Debug)]
pub(super) struct Ready {
    pub file: File,
    pub path: PathBuf,
    /// Content for what is written.
    pub pattern: Pattern,
    /// Whether the file goes away with this value.
    owned: bool,
}

impl Ready {
    /// Removes the file unless it is to be kept.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn end(mut self, keep: bool) -> Result<()> {
        self.owned = false;
        if keep {
            Ok(())
        } else {
            fs::remove_file(&self.path).map_err(Error::io("remove", &self.path))
        }
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        if self.owned {
            // The error that led here is the one to report.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Opens the file of `stream`, which is to have `bytes` bytes, and fills it if it must be.
pub(super) fn prepare(stream: &Stream, bytes: u64) -> Result<Ready> {
    let path = &stream.file;
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(Error::io("create directory", parent))?;
    }
    let there = match fs::metadata(path) {
        Ok(metadata) => Some(metadata.len()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(Error::io("stat", path)(error)),
    };
    let grows = stream.pattern == Access::Write;
    let short = there.is_none_or(|there| there < bytes);
    if short && !grows && stream.fill == Fill::Never {
        let allowed = format!("missing or always: {} is not there in full", path.display());
        return refuse("fill", "never".to_owned(), allowed);
    }
    let fills = !grows && (short || stream.fill == Fill::Always);
    let file = open(stream, grows || fills)?;
    let call_bytes = stream.block_bytes_most().max(if fills { FILL_CALL_BYTES } else { 0 });
    let pattern = Pattern::new(ByteSize(call_bytes).as_usize(), stream.content_seed());
    let mut ready = Ready { file, path: path.clone(), pattern, owned: grows || fills };
    if fills {
        let Ready { file, pattern, .. } = &mut ready;
        pattern
            .write_file(file, path, bytes, ByteSize(FILL_CALL_BYTES).as_usize())
            .map_err(|error| refused_direct(stream, error))?;
        // What the filling left to be written back would be measured otherwise.
        file.sync_all().map_err(Error::io("sync", path))?;
    }
    if stream.cache == Cache::Cold && !grows {
        drop_pages(&ready.file, path)?;
    }
    Ok(ready)
}

fn open(stream: &Stream, anew: bool) -> Result<File> {
    let reads = matches!(stream.pattern, Access::Read | Access::RandomRead);
    let mut options = OpenOptions::new();
    options.read(true).write(anew || !reads).create(anew).truncate(anew);
    if stream.io == Io::Direct {
        options.custom_flags(libc::O_DIRECT);
    }
    let action = if anew { "create" } else { "open" };
    let existed = stream.file.exists();
    options.open(&stream.file).map_err(Error::io(action, &stream.file)).map_err(|error| {
        // Some file systems refuse O_DIRECT once the file is made.
        if anew && !existed {
            let _ = fs::remove_file(&stream.file);
        }
        refused_direct(stream, error)
    })
}

/// Empties the page cache of what it holds of a file.
fn drop_pages(file: &File, path: &Path) -> Result<()> {
    // Only pages that are written back can go.
    file.sync_all().map_err(Error::io("sync", path))?;
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)
        .map_err(|error| Error::io("drop the cached pages of", path)(error.into()))
}

/// Tells a refusal of direct I/O (EINVAL, open(2)) from other errors.
pub(super) fn refused_direct(stream: &Stream, error: Error) -> Error {
    match &error {
        Error::Io { source, path, .. }
            if stream.io == Io::Direct && source.raw_os_error() == Some(libc::EINVAL) =>
        {
            Error::Setting {
                setting: "io",
                value: "direct".to_owned(),
                allowed: format!(
                    "buffered: the file system of {} refuses direct I/O in blocks of {}",
                    path.display(),
                    stream.block_bytes
                ),
            }
        }
        _ => error,
    }
}
