//! The FUSE device: reading requests, writing answers, notifications, and registering files.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use forebay_base::Ino;
use forebay_fs::KernelCache;
use forebay_fs::object::DirectAccess;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::abi::{
    BackingMap, EXPIRE_ONLY, NOTIFY_INVAL_ENTRY, NOTIFY_INVAL_INODE, NotifyInvalEntry,
    NotifyInvalInode, OutHeader,
};
use crate::top::Top;

/// `FUSE_DEV_IOC_BACKING_OPEN`: _IOW(229, 1, struct fuse_backing_map).
const BACKING_OPEN: libc::Ioctl = 0x4010_e501;
/// `FUSE_DEV_IOC_BACKING_CLOSE`: _IOW(229, 2, uint32_t).
const BACKING_CLOSE: libc::Ioctl = 0x4004_e502;

/// Parts of a message: header and body.
const PARTS_MAX: usize = 2;

/// An open /dev/fuse that belongs to a mount.
pub struct Device {
    file: OwnedFd,
    top: Arc<Top>,
}

/// What reading a request gave.
pub(crate) enum Received {
    /// A request of so many bytes.
    Request(usize),
    /// The file system was unmounted.
    Unmounted,
}

impl Device {
    /// The device behind an open file descriptor.
    #[must_use]
    pub fn new(fd: OwnedFd) -> Device {
        Device { file: fd, top: Arc::default() }
    }

    /// As it is, with what the adapter of its session knows of the root.
    pub(crate) fn with_top(self, top: &Arc<Top>) -> Device {
        Device { top: Arc::clone(top), ..self }
    }

    /// Waits for a request.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        loop {
            match rustix::io::read(&self.file, &mut *buffer) {
                Ok(length) => return Ok(Received::Request(length)),
                // ENOENT: the request was interrupted before it was read.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                // ECONNABORTED: the connection ended while a request was being taken for this read.
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(Received::Unmounted),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends an answer or a notification, given in parts.
    pub(crate) fn send(&self, parts: &[&[u8]]) -> io::Result<()> {
        let mut slices = [IoSlice::new(&[]); PARTS_MAX];
        for (slice, part) in slices.iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
        }
        match rustix::io::writev(&self.file, &slices[..parts.len()]) {
            // The asker is gone, or nobody had the thing that the notification is about.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn notify(&self, code: i32, parts: &[&[u8]]) -> io::Result<()> {
        let body = parts.concat();
        let len = u32::try_from(size_of::<OutHeader>() + body.len()).unwrap_or(u32::MAX);
        let header = OutHeader { len, error: code, unique: 0 };
        self.send(&[header.as_bytes(), &body])
    }

    /// Whether the file system is still mounted.
    pub(crate) fn is_connected(&self) -> bool {
        let mut asked = [PollFd::new(&self.file, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        loop {
            match poll(&mut asked, Some(&now)) {
                Err(rustix::io::Errno::INTR) => {}
                polled => return polled.is_ok() && !asked[0].revents().contains(PollFlags::ERR),
            }
        }
    }

    /// Whether the file system is unmounted, or is so within a moment: the kernel says so to the device
    /// only after it has ended the requests of the rings (fuse_abort_conn).
    pub(crate) fn is_disconnected_soon(&self) -> bool {
        let look = || {
            let gone = !self.is_connected();
            if !gone {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            gone
        };
        std::iter::repeat_with(look).take(10).any(|gone| gone)
    }

    /// Has the kernel forget an inode's attributes; its pages stay.
    ///
    /// # Errors
    /// What the device says.
    pub fn forget_attributes(&self, ino: Ino) -> io::Result<()> {
        let what = NotifyInvalInode { ino: self.top.number_of(ino), off: -1, len: 0 };
        self.notify(NOTIFY_INVAL_INODE, &[what.as_bytes()])
    }

    /// Has the kernel drop pages of a file, from the first byte to the second, and its attributes. Waits for requests that are to
    /// fill such pages, or to write them.
    ///
    /// # Errors
    /// What the device says.
    pub fn forget_pages(&self, ino: Ino, from: u64, until: u64) -> io::Result<()> {
        let (off, len) = (from.cast_signed(), until.saturating_sub(from).cast_signed());
        let what = NotifyInvalInode { ino: self.top.number_of(ino), off, len };
        self.notify(NOTIFY_INVAL_INODE, &[what.as_bytes()])
    }

    /// Has the kernel forget a directory's attributes and its listing. May wait for an asker that reads that listing
    /// into memory which is a file of ours.
    ///
    /// # Errors
    /// What the device says.
    pub fn forget_listing(&self, ino: Ino) -> io::Result<()> {
        let what = NotifyInvalInode { ino: self.top.number_of(ino), off: 0, len: 0 };
        self.notify(NOTIFY_INVAL_INODE, &[what.as_bytes()])
    }

    /// Has the kernel forget what it knows of a name.
    ///
    /// # Errors
    /// What the device says.
    pub fn forget_entry(&self, parent: Ino, name: &[u8]) -> io::Result<()> {
        let namelen = u32::try_from(name.len()).unwrap_or(0);
        let what = NotifyInvalEntry { parent: self.top.number_of(parent), namelen, flags: 0 };
        self.notify(NOTIFY_INVAL_ENTRY, &[what.as_bytes(), name, b"\0"])
    }

    /// Has the kernel ask again for a name before it uses it (Linux 6.2; earlier ones forget it).
    ///
    /// # Errors
    /// What the device says.
    pub fn expire_entry(&self, parent: Ino, name: &[u8]) -> io::Result<()> {
        let namelen = u32::try_from(name.len()).unwrap_or(0);
        let (parent, flags) = (self.top.number_of(parent), EXPIRE_ONLY);
        let what = NotifyInvalEntry { parent, namelen, flags };
        self.notify(NOTIFY_INVAL_ENTRY, &[what.as_bytes(), name, b"\0"])
    }
}

impl KernelCache for Device {
    fn forget_attributes(&self, ino: Ino) {
        told(Device::forget_attributes(self, ino));
    }

    fn forget_entry(&self, parent: Ino, name: &[u8]) {
        // The kernel drops a listing for a name only where it knows that name.
        told(Device::forget_entry(self, parent, name));
        told(Device::forget_listing(self, parent));
    }

    fn ask_again_for_entry(&self, parent: Ino, name: &[u8]) {
        told(self.expire_entry(parent, name));
    }

    fn forget_listing(&self, ino: Ino) {
        told(Device::forget_listing(self, ino));
    }

    fn is_mounted(&self) -> bool {
        self.is_connected()
    }
}

fn told(outcome: io::Result<()>) {
    if let Err(error) = outcome {
        tracing::warn!(%error, "the kernel could not be notified of a change by another node");
    }
}

impl AsRawFd for Device {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

impl DirectAccess for Device {
    fn register(&self, file: BorrowedFd<'_>) -> io::Result<u32> {
        let map = BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: the device is open and `map` is the structure that this ioctl reads.
        let number =
            unsafe { libc::ioctl(self.file.as_fd().as_raw_fd(), BACKING_OPEN, &raw const map) };
        u32::try_from(number).map_err(|_| io::Error::last_os_error())
    }

    fn unregister(&self, registration: u32) {
        // SAFETY: the device is open and the ioctl reads one u32.
        let done = unsafe {
            libc::ioctl(self.file.as_fd().as_raw_fd(), BACKING_CLOSE, &raw const registration)
        };
        if done < 0 {
            tracing::debug!(error = %io::Error::last_os_error(), "a registration was gone already");
        }
    }
}
