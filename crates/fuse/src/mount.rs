//! Mounting and unmounting: directly as root, through fusermount3 as an ordinary user.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};

use crate::device::Device;

/// Type of the file system in the mount table.
pub const FS_TYPE: &str = "fuse.forebay";

/// Who mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// mount(2) itself: root.
    Root,
    /// The fusermount3 helper: an ordinary user.
    Helper,
}

impl By {
    /// How this process can mount.
    #[must_use]
    pub fn this_process() -> By {
        if rustix::process::geteuid().is_root() { By::Root } else { By::Helper }
    }
}

/// Mounts `source` (a name for the mount table) at `mountpoint`.
///
/// # Errors
/// A text that names the mountpoint, the reason and, where there is one, the remedy.
pub fn mount(source: &str, mountpoint: &Path, by: By) -> Result<Device, String> {
    let mounted = match by {
        By::Root => mount_as_root(source, mountpoint),
        By::Helper => mount_by_helper(source, mountpoint),
    };
    mounted.map(Device::new).map_err(|error| {
        let remedy = match by {
            By::Root if error.kind() == io::ErrorKind::NotFound => "; is /dev/fuse there?",
            By::Helper if error.kind() == io::ErrorKind::NotFound => {
                "; install the package fuse3, which has fusermount3"
            }
            By::Root | By::Helper => "",
        };
        format!("cannot mount at {}: {error}{remedy}", mountpoint.display())
    })
}

fn mount_as_root(source: &str, mountpoint: &Path) -> io::Result<OwnedFd> {
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other",
        device.as_raw_fd()
    );
    let options = std::ffi::CString::new(options).map_err(io::Error::other)?;
    rustix::mount::mount(
        source,
        mountpoint,
        FS_TYPE,
        MountFlags::NOATIME,
        Some(options.as_c_str()),
    )?;
    Ok(device)
}

fn mount_by_helper(source: &str, mountpoint: &Path) -> io::Result<OwnedFd> {
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::empty(),
        None,
    )?;
    rustix::io::fcntl_setfd(&ours, rustix::io::FdFlags::CLOEXEC)?;
    let options = format!(
        "rw,nosuid,nodev,noatime,default_permissions,fsname={},subtype=forebay",
        source.replace('\\', "\\\\").replace(',', "\\,")
    );
    let mut child = Command::new("fusermount3")
        .arg("-o")
        .arg(options)
        .arg("--")
        .arg(mountpoint)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .spawn()?;
    drop(theirs);
    let received = receive_fd(&ours);
    let status = child.wait()?;
    if !status.success() {
        return Err(io::Error::other("fusermount3 refused (its message is above)"));
    }
    received
}

fn receive_fd(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0_u8; 4];
    rustix::net::recvmsg(
        socket.as_fd(),
        &mut [io::IoSliceMut::new(&mut byte)],
        &mut ancillary,
        RecvFlags::empty(),
    )?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message
            && let Some(fd) = fds.into_iter().next()
        {
            // SAFETY: the descriptor was received just now and is owned by nobody else.
            let fd = unsafe { OwnedFd::from_raw_fd(fd.into_raw_fd()) };
            rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
            return Ok(fd);
        }
    }
    Err(io::Error::other("fusermount3 sent no device"))
}

/// How an unmount goes about a file system that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenBusy {
    /// Refuse.
    Refuse,
    /// Take it out of the tree now; it ends when the last user is gone.
    Detach,
}

/// Unmounts what is mounted at `mountpoint`.
///
/// # Errors
/// What the system says; [`io::ErrorKind::ResourceBusy`] if it is in use.
pub fn unmount(mountpoint: &Path, when_busy: WhenBusy, by: By) -> io::Result<()> {
    match by {
        By::Root => {
            let flags = match when_busy {
                WhenBusy::Refuse => UnmountFlags::empty(),
                WhenBusy::Detach => UnmountFlags::DETACH,
            };
            Ok(rustix::mount::unmount(mountpoint, flags)?)
        }
        By::Helper => {
            let mut command = Command::new("fusermount3");
            command.arg("-u");
            if when_busy == WhenBusy::Detach {
                command.arg("-z");
            }
            let output = command.arg("--").arg(mountpoint).output()?;
            if output.status.success() {
                return Ok(());
            }
            let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            let busy = text.contains("busy");
            let kind =
                if busy { io::ErrorKind::ResourceBusy } else { io::ErrorKind::PermissionDenied };
            Err(io::Error::new(kind, text))
        }
    }
}
