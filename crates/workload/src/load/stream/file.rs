//! The file of a stream: opened, filled, and removed again.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use forebay_base::ByteSize;

use super::{Access, Cache, Fill, Io, Stream, refuse};
use crate::load::pattern::Pattern;
use forebay_analytics::error::{Error, Result};

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
    if stream.pattern.reads() && stream.io == Io::Buffered {
        drop_pages(&ready.file, path)?;
        match stream.cache {
            Cache::Cold => {}
            Cache::Warm => read_once(&ready.file, path, bytes)?,
        }
    }
    Ok(ready)
}

/// Reads all of a file, so that the page cache holds what it keeps of such a pass.
fn read_once(file: &File, path: &Path, bytes: u64) -> Result<()> {
    let mut buffer = vec![0; ByteSize(FILL_CALL_BYTES.min(bytes)).as_usize()];
    let mut offset = 0;
    while offset < bytes {
        let length = ByteSize((bytes - offset).min(FILL_CALL_BYTES)).as_usize();
        file.read_exact_at(&mut buffer[..length], offset).map_err(Error::io("read", path))?;
        offset += length as u64;
    }
    Ok(())
}

/// Part of the first `bytes` bytes of a file that lies in the page cache, also in one below a FUSE mount that
/// lets the kernel read the file beneath it; `None` where the system does not say (mincore(2)).
pub(super) fn cached_part(file: &File, bytes: u64) -> Option<f64> {
    let length = usize::try_from(bytes).ok().filter(|length| *length > 0)?;
    let pages = length.div_ceil(rustix::param::page_size());
    let mut held = vec![0_u8; pages];
    // SAFETY: a mapping of its own at a place that the kernel chooses, never read or written here, is asked
    // about, with a byte for each of its pages, and given back.
    unsafe {
        let map = map(file, length)?;
        let asked = libc::mincore(map, length, held.as_mut_ptr());
        let _ = rustix::mm::munmap(map, length);
        (asked == 0)
            .then(|| held.iter().filter(|page| **page & 1 == 1).count() as f64 / pages as f64)
    }
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
    let drop = |file: &File| rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
    drop(file).map_err(|error| Error::io("drop the cached pages of", path)(error.into()))?;
    if let Some(beneath) = file_beneath(file) {
        // What it leaves is measured.
        let _ = drop(&beneath);
    }
    Ok(())
}

/// The file whose pages a mapping of `file` shows: on a FUSE mount with passthrough it is the one beneath,
/// whose pages advice about `file` does not reach. `None` unless the system lets this process open it, which
/// it does for root (proc_pid_map_files(5)).
fn file_beneath(file: &File) -> Option<File> {
    let length = rustix::param::page_size();
    // SAFETY: a mapping of its own at a place that the kernel chooses, never read or written, and given back.
    unsafe {
        let map = map(file, length)?;
        let start = map as usize;
        let beneath =
            File::open(format!("/proc/self/map_files/{start:x}-{:x}", start + length)).ok();
        let _ = rustix::mm::munmap(map, length);
        beneath
    }
}

/// Maps the first `length` bytes of a file to be looked at.
///
/// # Safety
/// The caller gives the mapping back and does not touch its memory.
unsafe fn map(file: &File, length: usize) -> Option<*mut std::ffi::c_void> {
    let (read, shared) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
    // SAFETY: the kernel chooses a free place.
    unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, read, shared, file, 0) }.ok()
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
