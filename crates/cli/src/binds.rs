//! Native filesets at their places in the namespace: bind mounts on the directories of the same name.
//!
//! A bind mount of root's shows the tree of a native fileset itself, so that nothing of ours is in the way of the
//! programs that use it. The daemon never asks its own mount for anything (see `daemon`), and finding a mountpoint
//! asks it for names: so other processes bind and unbind, the command `native` of this program.
//!
//! - A bind mount is complete when it appears: `nosuid`, `nodev` and the options of the mount below hold from its
//!   first moment (mount_setattr(2) on the detached mount, Linux 5.12).
//! - Binding twice binds once.
//! - When a daemon is killed, its bind mounts stay, on a mount that no longer answers. Whoever works in them continues.
//!   The next mount takes all of it out of the tree and binds anew; who still works in an old one works on the same
//!   files.
//! - A kernel that unbinds a name because the daemon forgot it (d_invalidate) does so by itself.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use forebay_fs::native::{FOLDER, TREE};
use forebay_fuse::mount::{By, WhenBusy, unmount};
use forebay_process::mounts::{self, Mount};
use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use crate::control::{self, Ask};
use crate::mounts::Mounted;

/// The access control list of an inode, as an extended attribute.
const ACCESS_LIST: &str = "system.posix_acl_access";

/// A native fileset and the directory that is to be seen in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// Name of the fileset, and of its directory at the top of the mount.
    pub name: String,
    /// The directory on its disk.
    pub tree: PathBuf,
}

/// The mount itself, and all that is mounted within it, in the order in which they were made.
fn with_inner(mount: &Mounted) -> Option<(Mount, Vec<Mount>)> {
    let mut all = mounts::all();
    let is_it =
        |entry: &Mount| entry.mountpoint == mount.mountpoint && entry.device == mount.device;
    let own = all.iter().rposition(is_it)?;
    let own = all.remove(own);
    let mut ids = vec![own.id];
    let mut inner = Vec::new();
    // A mount may stand in the table before the one that it is mounted on.
    loop {
        let found = all.iter().position(|entry| ids.contains(&entry.parent));
        let Some(found) = found else { return Some((own, inner)) };
        let entry = all.remove(found);
        ids.push(entry.id);
        inner.push(entry);
    }
}

/// Binds native filesets within a mount. Those that are bound already stay as they are.
///
/// # Errors
/// The first that cannot be bound, and why; the others are bound all the same.
pub fn bind(mount: &Mounted, binds: &[Bind]) -> Result<()> {
    let (own, inner) = with_inner(mount)
        .with_context(|| format!("{} is no longer mounted", mount.mountpoint.display()))?;
    let mut failed = None;
    for bind in binds {
        let target = mount.mountpoint.join(&bind.name);
        let there = inner.iter().rev().find(|entry| entry.mountpoint == target);
        let bound = match there {
            Some(entry) if is_of(entry, bind) => Ok(()),
            Some(_) => Err(anyhow::anyhow!("something else is mounted at {}", target.display())),
            None => bind_one(bind, &target, &own.own_options),
        };
        if let Err(error) = bound {
            let error = error.context(format!("cannot bind the native fileset \"{}\"", bind.name));
            failed = failed.or(Some(error));
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Whether programs reach the tree of a native fileset itself within a mount.
pub fn is_bound(mount: &Mounted, bind: &Bind) -> bool {
    let inner = with_inner(mount).map(|(_, inner)| inner).unwrap_or_default();
    let target = mount.mountpoint.join(&bind.name);
    inner.iter().any(|entry| entry.mountpoint == target && is_of(entry, bind))
}

/// Whether a mount shows the tree of a native fileset. The table has the path within the file system of the disk,
/// which may be mounted anywhere: its end is compared.
fn is_of(entry: &Mount, bind: &Bind) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let device = std::fs::symlink_metadata(&bind.tree).ok().map(|about| about.dev());
    let same_device = device.is_some_and(|device| {
        entry.device == format!("{}:{}", libc::major(device), libc::minor(device))
    });
    same_device && entry.root.ends_with(end_of_tree(&bind.name))
}

fn bind_one(bind: &Bind, target: &Path, options: &str) -> Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    let tree = open_tree(CWD, &bind.tree, flags)
        .with_context(|| format!("cannot open {}", bind.tree.display()))?;
    set_options(&tree, options).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOSYS) => anyhow::anyhow!("this kernel has no mount_setattr (Linux 5.12)"),
        _ => anyhow::Error::new(error).context("cannot set the options of a bind mount"),
    })?;
    if bind.name.contains('/') {
        // The kernel keeps it, so that a daemon that is killed is not asked on the way.
        let list = target.parent().unwrap_or(target);
        let _ = rustix::fs::lgetxattr(list, ACCESS_LIST, &mut [0_u8; 0]);
    }
    let moved = move_mount(tree.as_fd(), "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH);
    moved.with_context(|| format!("cannot mount at {}", target.display()))
}

/// Gives a detached mount the options of the mount that it will lie in, and `nosuid` and `nodev` in any case; what
/// is mounted below either later is not passed to the other.
fn set_options(tree: &OwnedFd, options: &str) -> io::Result<()> {
    let mut attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
        attr_clr: libc::MOUNT_ATTR__ATIME,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    let mut atime = libc::MOUNT_ATTR_STRICTATIME;
    for option in options.split(',') {
        match option {
            "ro" => attributes.attr_set |= libc::MOUNT_ATTR_RDONLY,
            "noexec" => attributes.attr_set |= libc::MOUNT_ATTR_NOEXEC,
            "nodiratime" => attributes.attr_set |= libc::MOUNT_ATTR_NODIRATIME,
            "nosymfollow" => attributes.attr_set |= libc::MOUNT_ATTR_NOSYMFOLLOW,
            "noatime" => atime = libc::MOUNT_ATTR_NOATIME,
            "relatime" => atime = libc::MOUNT_ATTR_RELATIME,
            _ => {}
        }
    }
    attributes.attr_set |= atime;
    // SAFETY: descriptor, path and structure live through the call, and the size is that of the structure.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw mut attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Raises the mount at `mountpoint`: a clone of it that begins at the second inode of its root takes its place. Nobody
/// uses it yet.
///
/// # Errors
/// What the system says. Unless it says so of the last step, for which only memory could be missing, the mount is as it
/// was.
fn raise(mountpoint: &Path) -> Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    let top = mountpoint.join(forebay_fuse::top::NAME);
    let clone = open_tree(CWD, &top, flags)
        .with_context(|| format!("cannot clone the mount at {}", mountpoint.display()))?;
    replace(mountpoint, clone.as_fd())?;
    // The kernel keeps what it is told, so that a daemon that is killed is not asked on the way to native filesets.
    let _ = rustix::fs::lgetxattr(mountpoint, ACCESS_LIST, &mut [0_u8; 0]);
    Ok(())
}

/// Of `include/uapi/linux/mount.h`; not every libc names it.
const MOVE_MOUNT_BENEATH: u32 = 0x200;

/// Puts a mount in the place of the one at `mountpoint`. It is mounted beneath that one first, so that programs which
/// already look see one of the two at any moment; kernels before Linux 6.5 have no such call, and show the bare
/// directory for a moment (move_mount(2), MOVE_MOUNT_BENEATH).
fn replace(mountpoint: &Path, mount: BorrowedFd<'_>) -> Result<()> {
    let place = |flags| {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | flags;
        move_mount(mount, "", CWD, mountpoint, flags)
    };
    let remove = || unmount(mountpoint, WhenBusy::Detach, By::this_process());
    let beneath = MoveMountFlags::from_bits_retain(MOVE_MOUNT_BENEATH);
    if place(beneath).is_ok() {
        return Ok(remove()?);
    }
    remove()?;
    place(MoveMountFlags::empty())
        .with_context(|| format!("cannot mount at {}", mountpoint.display()))
}

/// Takes the native fileset `name` out of a mount. One that is not bound is not an error.
///
/// # Errors
/// [`io::ErrorKind::ResourceBusy`] if somebody uses it and `when_busy` says to refuse; what the system says.
pub fn unbind(mount: &Mounted, name: &str, when_busy: WhenBusy) -> io::Result<()> {
    let target = mount.mountpoint.join(name);
    let is_bound = || {
        let inner = with_inner(mount).map(|(_, inner)| inner).unwrap_or_default();
        inner.iter().any(|entry| entry.mountpoint == target)
    };
    while is_bound() {
        unmount(&target, when_busy, By::this_process())?;
    }
    Ok(())
}

/// What is in the way of an unmount.
#[derive(Debug)]
pub enum InTheWay {
    /// The native fileset there is in use.
    Busy(PathBuf),
    /// Something is mounted there that is none of ours.
    Other(PathBuf),
    /// The native fileset there cannot be unmounted.
    Failed(PathBuf, io::Error),
}

/// Takes all native filesets out of a mount with `unmount`, the latest first; returns how many. If that fails, those
/// that were taken out are put back.
///
/// # Errors
/// What is in the way.
pub fn unbind_all(
    mount: &Mounted,
    unmount: &dyn Fn(&Path) -> io::Result<()>,
) -> std::result::Result<usize, InTheWay> {
    let inner = with_inner(mount).map(|(_, inner)| inner).unwrap_or_default();
    if let Some(other) = inner.iter().rev().find(|entry| !is_native(entry, mount)) {
        return Err(InTheWay::Other(other.mountpoint.clone()));
    }
    for (done, entry) in inner.iter().rev().enumerate() {
        if let Err(error) = unmount(&entry.mountpoint) {
            if done > 0 {
                put_back(mount);
            }
            let place = entry.mountpoint.clone();
            return Err(if error.kind() == io::ErrorKind::ResourceBusy {
                InTheWay::Busy(place)
            } else {
                InTheWay::Failed(place, error)
            });
        }
    }
    Ok(inner.len())
}

/// Has the daemon bind its native filesets again, as an unmount did not come to its end.
pub fn put_back(mount: &Mounted) {
    if let Err(error) = control::ask(&mount.home, &Ask::Bind) {
        note!(
            "forebay: the native filesets were not bound again: {}",
            crate::output::chain(&error)
        );
    }
}

/// Whether a mount within ours shows the native fileset of its name.
fn is_native(entry: &Mount, mount: &Mounted) -> bool {
    let name = entry.mountpoint.strip_prefix(&mount.mountpoint).ok().and_then(Path::to_str);
    // A name, or that of a node within it.
    name.is_some_and(|name| name.split('/').count() <= 2 && entry.root.ends_with(end_of_tree(name)))
}

/// How the path of a native fileset's tree ends, wherever its disk is mounted.
fn end_of_tree(name: &str) -> PathBuf {
    Path::new(FOLDER).join(name).join(TREE)
}

/// `forebay native bind MOUNTPOINT NAME TREE...`, `forebay native unbind MOUNTPOINT NAME`: how a daemon has its native
/// filesets bound; `forebay native raise MOUNTPOINT`: how it has its mount raised.
#[derive(clap::Args)]
pub struct Native {
    /// What to do: bind, unbind or raise.
    action: String,
    /// Where the file system is mounted.
    mountpoint: PathBuf,
    /// Names, each followed by its tree for bind.
    rest: Vec<OsString>,
}

impl Native {
    /// Carries it out.
    ///
    /// # Errors
    /// What could not be bound, unbound or raised.
    pub fn run(self) -> Result<std::process::ExitCode> {
        let mut found = crate::mounts::all().into_iter().rev();
        let mount = found.find(|mount| mount.mountpoint == self.mountpoint);
        let mount = mount
            .with_context(|| format!("nothing is mounted at {}", self.mountpoint.display()))?;
        match self.action.as_str() {
            "bind" => {
                let pairs = self.rest.chunks_exact(2).map(|pair| Bind {
                    name: pair[0].to_string_lossy().into_owned(),
                    tree: PathBuf::from(&pair[1]),
                });
                bind(&mount, &pairs.collect::<Vec<_>>())?;
            }
            "unbind" => {
                for name in &self.rest {
                    unbind(&mount, &name.to_string_lossy(), WhenBusy::Detach)?;
                }
            }
            "raise" => raise(&mount.mountpoint)?,
            other => bail!("unknown action \"{other}\": expected bind, unbind or raise"),
        }
        Ok(std::process::ExitCode::SUCCESS)
    }
}

/// Has another process bind or unbind within the mount at `mountpoint`, and waits for it.
///
/// # Errors
/// What that process says.
pub fn have(action: &str, mountpoint: &Path, rest: &[OsString]) -> Result<()> {
    let mut command = crate::background::this_program();
    let output = command
        .args(["native", action])
        .arg(mountpoint)
        .args(rest)
        .output()
        .context("cannot start the process that changes the mount")?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let reason = said.lines().find_map(|line| line.strip_prefix("forebay: ")).unwrap_or("");
    match reason {
        "" => bail!("the process that changes the mount exited with {}", output.status),
        reason => bail!("{reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_native_filesets_of_a_mount_are_told_from_other_mounts_in_it() {
        let mount = Mounted {
            home: PathBuf::from("/srv/forebay"),
            mountpoint: PathBuf::from("/grid"),
            device: "0:52".to_owned(),
        };
        let native = |paths: &str| {
            let line = format!("61 52 254:0 {paths} rw,nosuid - xfs /dev/vdb rw");
            is_native(&mounts::parse_all(line.as_bytes())[0], &mount)
        };
        assert!(native("/disk/native/work/tree /grid/work"));
        for other in
            ["/ /grid/work", "/disk/native/util/tree /grid/work", "/native/a/tree /grid/a/b"]
        {
            assert!(!native(other), "{other}");
        }
    }
}
