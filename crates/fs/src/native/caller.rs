//! Making inodes as the caller.
//!
//! A new inode belongs to whoever asks for it from its first moment, and the disk's own file system decides on its
//! group, mode and access control list. So a daemon of root's takes the caller's user and group for file systems
//! (setfsuid(2)) for the one step, and the caller's umask. It keeps its capabilities meanwhile: whether the caller may
//! do it, the kernel has checked before it asked us, with groups of the caller that are not known here.
//!
//! User, group and capabilities are a thread's own. The umask is shared by the threads of a process until one takes a
//! copy of its own, which each thread does at its first step here.

use std::cell::Cell;

use rustix::fs::Mode;
use rustix::thread::{CapabilitySets, UnshareFlags};

use crate::error::{FsError, Result};
use crate::native::system::said;
use crate::partition::Caller;

thread_local! {
    /// Whether this thread has an own umask.
    static HAS_OWN_UMASK: Cell<bool> = const { Cell::new(false) };
}

/// The caller's identity, taken on; dropped, the thread is itself again.
struct Acting {
    umask: Mode,
    is_other: bool,
}

/// Carries out `work` as the caller, with this umask.
///
/// # Errors
/// [`FsError::NotPermitted`] if the daemon cannot act as others; what `work` says.
pub(super) fn act_as<T>(caller: Caller, umask: u16, work: impl FnOnce() -> Result<T>) -> Result<T> {
    own_umask()?;
    let is_other = rustix::process::geteuid().is_root() && (caller.uid != 0 || caller.gid != 0);
    let capabilities =
        if is_other { Some(rustix::thread::capabilities(None).map_err(said)?) } else { None };
    let acting = Acting {
        umask: rustix::process::umask(Mode::from_raw_mode(u32::from(umask & 0o777))),
        is_other,
    };
    if let Some(capabilities) = capabilities {
        take_on(caller, capabilities)?;
    }
    let done = work();
    drop(acting);
    done
}

fn take_on(caller: Caller, capabilities: CapabilitySets) -> Result<()> {
    set_user_and_group(caller.uid, caller.gid);
    // SAFETY: an impossible user changes nothing; the call returns the present one.
    let now = unsafe { libc::setfsuid(u32::MAX) };
    if now.cast_unsigned() != caller.uid {
        return Err(FsError::NotPermitted);
    }
    // Leaving user 0 took those for files away (capabilities(7)).
    rustix::thread::set_capabilities(None, capabilities).map_err(said)
}

/// Sets user and group for file systems, of this thread.
fn set_user_and_group(uid: u32, gid: u32) {
    // SAFETY: both only change the identity of this thread towards file systems. The group goes first: as another
    // user it could not be changed any more.
    unsafe {
        libc::setfsgid(gid);
        libc::setfsuid(uid);
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        if self.is_other {
            // SAFETY: as above, the other way round; becoming user 0 gives the capabilities for files back.
            unsafe {
                libc::setfsuid(0);
                libc::setfsgid(0);
            }
        }
        rustix::process::umask(self.umask);
    }
}

fn own_umask() -> Result<()> {
    if HAS_OWN_UMASK.get() {
        return Ok(());
    }
    // SAFETY: it concerns current directory, root directory and umask alone, which this thread then has for itself.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }.map_err(said)?;
    HAS_OWN_UMASK.set(true);
    Ok(())
}
