//! Terminals of jobs: a pair of descriptors, of which the shim has one and the job the other.

use std::io::{Error, Result};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use rustix::termios::{OptionalActions, tcgetattr, tcsetattr, tcsetwinsize};

use super::frame::Terminal;
use super::link::{set_modes, winsize};

/// Makes a terminal like the client's; the shim's end and the job's end. No process has it as its
/// controlling terminal yet.
pub fn open(like: &Terminal) -> Result<(OwnedFd, OwnedFd)> {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: it takes numbers only; the descriptor is new and nobody else's.
    let ours = unsafe { owned(libc::posix_openpt(flags))? };
    // SAFETY: it takes a descriptor that is open.
    if unsafe { libc::unlockpt(ours.as_raw_fd()) } != 0 {
        return Err(Error::last_os_error());
    }
    // By the descriptor and not by its name, which may mean another terminal where /dev/pts is another.
    // SAFETY: TIOCGPTPEER takes a number, and its result is a new descriptor.
    let theirs = unsafe { owned(libc::ioctl(ours.as_raw_fd(), libc::TIOCGPTPEER, flags))? };
    let mut settings = tcgetattr(&theirs)?;
    set_modes(&mut settings, &like.modes);
    tcsetattr(&theirs, OptionalActions::Now, &settings)?;
    tcsetwinsize(&theirs, winsize(like.size))?;
    Ok((ours, theirs))
}

/// # Safety
/// The number is that of a new descriptor, or less than 0 after a failed system call.
unsafe fn owned(number: i32) -> Result<OwnedFd> {
    if number < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the caller says so.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
