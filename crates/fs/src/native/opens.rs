//! Who has a native file open, and the descriptors through which bytes move.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use rustix::fs::OFlags;

use crate::error::{FsError, Result};
use crate::native::known::Known;
use crate::native::system::reopen;
use crate::object::DirectAccess;
use crate::ops::{Access, Opened};

/// Handles of a file, and what they share.
#[derive(Default)]
pub(super) struct Opens {
    handles: u32,
    writers: u32,
    readable: Option<Arc<OwnedFd>>,
    writable: Option<Arc<OwnedFd>>,
    /// A descriptor for reading and writing of a file that was just made: its mode may forbid to open it again.
    made_with: Option<Arc<OwnedFd>>,
    /// The kernel's registration of the file, where it reads and writes it itself.
    registration: Option<Registration>,
}

/// A file that the kernel reads and writes itself; dropped, it is taken back.
struct Registration {
    number: u32,
    kernel: Arc<dyn DirectAccess>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.kernel.unregister(self.number);
    }
}

impl Opens {
    /// Whether anybody has it open.
    pub fn has_handles(&self) -> bool {
        self.handles > 0
    }

    /// Whether somebody has it open for writing.
    pub fn is_written(&self) -> bool {
        self.writers > 0
    }

    /// Whether its inode must not be lost sight of.
    pub fn is_in_use(&self) -> bool {
        self.handles > 0 || self.made_with.is_some()
    }

    /// Keeps the descriptor with which a file was made, for the open that follows.
    pub fn keep(&mut self, made_with: OwnedFd) {
        self.made_with = Some(Arc::new(made_with));
    }

    /// Closes the descriptor with which the file was made, if nobody has opened it since.
    pub fn give_up(&mut self) {
        if self.handles == 0 {
            self.made_with = None;
        }
    }

    /// A descriptor for reading.
    pub fn for_reading(&self) -> Result<Arc<OwnedFd>> {
        self.readable.clone().or_else(|| self.made_with.clone()).ok_or(FsError::Invalid)
    }

    /// A descriptor for writing.
    pub fn for_writing(&self) -> Result<Arc<OwnedFd>> {
        self.writable.clone().or_else(|| self.made_with.clone()).ok_or(FsError::Invalid)
    }

    /// Any descriptor of the open file.
    pub fn any(&self) -> Option<Arc<OwnedFd>> {
        self.writable.clone().or_else(|| self.readable.clone()).or_else(|| self.made_with.clone())
    }

    /// Adds a handle. All handles of a file at one time go the same way: by the kernel itself if the first can.
    pub fn add(
        &mut self,
        known: &Known,
        stand_in: &OwnedFd,
        access: Access,
        kernel: Option<&Arc<dyn DirectAccess>>,
    ) -> Result<Opened> {
        debug_assert_eq!(known.kind, crate::record::Kind::File);
        let first = self.handles == 0;
        if first && let Some(kernel) = kernel {
            self.open_both(stand_in);
            self.register(kernel);
        }
        if access.read && self.readable.is_none() {
            self.readable = Some(self.descriptor(stand_in, OFlags::RDONLY)?);
        }
        if access.write && self.writable.is_none() {
            self.writable = Some(self.open_writable(stand_in)?);
        }
        self.handles += 1;
        self.writers += u32::from(access.write);
        let registration = self.registration.as_ref().map(|registration| registration.number);
        let uncached = registration.is_none();
        Ok(Opened { registration, keep_pages: false, uncached, lineage: 0, home: None })
    }

    /// Takes a handle away; the last one closes everything.
    pub fn remove(&mut self, access: Access) {
        self.handles = self.handles.saturating_sub(1);
        self.writers = self.writers.saturating_sub(u32::from(access.write));
        if self.handles == 0 {
            *self = Opens::default();
        }
    }

    /// One descriptor for both, as the kernel wants it to read and write the file itself. A program that runs, or a
    /// file on a disk that is read-only, cannot be had so.
    fn open_both(&mut self, stand_in: &OwnedFd) {
        let made_with = self.made_with.clone();
        let opened = made_with
            .map_or_else(|| reopen(stand_in.as_fd(), OFlags::RDWR).map(Arc::new), Ok::<_, FsError>);
        if let Ok(both) = opened {
            self.readable = Some(Arc::clone(&both));
            self.writable = Some(both);
        }
    }

    fn register(&mut self, kernel: &Arc<dyn DirectAccess>) {
        let Some(both) = self.writable.clone().filter(|_| self.readable.is_some()) else { return };
        match kernel.register(both.as_fd()) {
            Ok(number) => {
                self.registration = Some(Registration { number, kernel: Arc::clone(kernel) });
            }
            Err(error) => tracing::debug!(%error, "the kernel does not take a native file"),
        }
    }

    fn descriptor(&self, stand_in: &OwnedFd, flags: OFlags) -> Result<Arc<OwnedFd>> {
        match &self.made_with {
            Some(made_with) => Ok(Arc::clone(made_with)),
            None => reopen(stand_in.as_fd(), flags).map(Arc::new),
        }
    }

    /// For writing, and reading where that is allowed: parts of pages are read before they are written.
    fn open_writable(&self, stand_in: &OwnedFd) -> Result<Arc<OwnedFd>> {
        let both = self.descriptor(stand_in, OFlags::RDWR);
        both.or_else(|_| self.descriptor(stand_in, OFlags::WRONLY))
    }
}
