//! Whose word counts: which folders a grid may lie in, which processes a daemon or a command listens to, and which
//! process a lock file means.
//!
//! A controller's orders run programs, with every user's rights if it is root's. So all that a daemon or a command of
//! a grid acts on has to come from root or from its own user: the folder with everything above it, the process at the
//! other end of the socket, the process that a file names. Whoever could change one of them could have orders of their
//! own carried out.
//!
//! What is checked stays true: in folders that only root and this user may write to, nobody else can replace
//! anything later. In a folder with the sticky bit, as /tmp, others can only add names, and none that is there
//! already.

use std::fs::Metadata;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, PidfdFlags, Signal, Uid};

const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Whether what this user says counts as one's own word: root's and this process's user's does.
#[must_use]
pub fn is_trusted(uid: Uid) -> bool {
    uid.is_root() || uid == rustix::process::geteuid()
}

/// Refuses a folder that anybody else than root and this user can change, or replace by changing one above it.
///
/// # Errors
/// Names the first such folder, its owner and mode, and what to do.
pub fn check_folder(folder: &Path) -> Result<()> {
    check_parts(folder, false)
}

/// As [`check_folder`], for the folder in which one will be made: it may be one to which others can only add, as /tmp.
///
/// # Errors
/// As [`check_folder`].
pub fn check_above(folder: &Path) -> Result<()> {
    check_parts(folder, true)
}

fn check_parts(folder: &Path, may_be_sticky: bool) -> Result<()> {
    // As the kernel walks it: a link is of no interest once it is known where it leads.
    let folder = folder.canonicalize().with_context(|| folder.display().to_string())?;
    for part in folder.ancestors().collect::<Vec<&Path>>().into_iter().rev() {
        check_owner(part)?;
        let mode = about(part)?.mode();
        let others_only_add = (may_be_sticky || part != folder) && mode & STICKY != 0;
        ensure!(
            mode & WRITABLE_BY_OTHERS == 0 || others_only_add,
            "{0} cannot be trusted with a grid: {1} is writable by others (mode {2:o}), who could give the grid orders; \
             use another folder, or: chmod go-w {1}",
            folder.display(),
            part.display(),
            mode & 0o7777
        );
    }
    Ok(())
}

/// Refuses a file or folder of somebody else than root and this user. A link is not followed.
///
/// # Errors
/// Names it with its owner.
pub fn check_owner(path: &Path) -> Result<()> {
    let owner = about(path)?.uid();
    let own = rustix::process::geteuid().as_raw();
    ensure!(
        is_trusted(Uid::from_raw(owner)),
        "{} belongs to user {owner}, from whom user {own} does not accept orders: use a folder of user {own}, or \
         act as user {owner}",
        path.display()
    );
    Ok(())
}

fn about(path: &Path) -> Result<Metadata> {
    std::fs::symlink_metadata(path).with_context(|| path.display().to_string())
}

/// Refuses the process at the other end of a socket unless it is root's or this user's own. What the kernel says is
/// the process that listened or connected, whatever became of the name of the socket.
///
/// # Errors
/// Names the user.
pub fn check_peer(stream: impl AsFd) -> Result<()> {
    let peer = rustix::net::sockopt::socket_peercred(stream.as_fd())?;
    ensure!(
        is_trusted(peer.uid),
        "process {} of user {} answers there, but user {} accepts no orders and no answers from it",
        peer.pid.as_raw_nonzero(),
        peer.uid.as_raw(),
        rustix::process::geteuid().as_raw()
    );
    Ok(())
}

/// Signals the process that holds a lock and has written its number into it. Whether there was one to signal.
///
/// The number is only a word in a file. The process is signalled only if it has the file open with the lock on it, so
/// that neither an old number nor one that somebody wrote meets another process.
///
/// # Errors
/// If the file is not this user's or root's, the number is that of a process without the lock, or it cannot be
/// signalled.
pub fn signal_holder(lock: &Path, signal: Signal) -> Result<bool> {
    let Some(pid) = crate::files::holder(lock) else { return Ok(false) };
    check_owner(lock)?;
    // Stands for the very process from here on, whatever becomes of its number.
    let process = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(rustix::io::Errno::SRCH) => return Ok(false),
        Err(error) => return Err(error).with_context(|| format!("process {pid:?}")),
    };
    if !holds(pid, lock)? {
        // It may have ended since, with the lock.
        if crate::files::holder(lock).is_none() {
            return Ok(false);
        }
        bail!(
            "{} names process {}, which does not hold the lock: it is not signalled; end the process that holds it \
             (lslocks shows which)",
            lock.display(),
            pid.as_raw_nonzero()
        );
    }
    match rustix::process::pidfd_send_signal(&process, signal) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::SRCH) => Ok(false),
        Err(error) => Err(error).with_context(|| format!("process {}", pid.as_raw_nonzero())),
    }
}

/// What statfs(2) calls a FUSE file system.
const FUSE: rustix::fs::FsWord = 0x6573_5546;

/// Whether the kernel says which process has a lock on a file: not on a FUSE file system, whose daemon keeps the locks.
fn shows_locks(lock: &Path) -> Result<bool> {
    let found = rustix::fs::statfs(lock).with_context(|| lock.display().to_string())?;
    Ok(found.f_type != FUSE)
}

/// Whether a process has a file open with a flock(2) on it. Where the kernel does not show locks, a process that has the file open
/// for writing is taken for the one: nobody but root and this user may write to it.
fn holds(pid: Pid, lock: &Path) -> Result<bool> {
    let file = about(lock)?;
    let shows_locks = shows_locks(lock)?;
    let folder = format!("/proc/{}/fd", pid.as_raw_nonzero());
    let Ok(descriptors) = std::fs::read_dir(&folder) else { return Ok(false) };
    for descriptor in descriptors.flatten() {
        let is_file = std::fs::metadata(descriptor.path())
            .is_ok_and(|other| (other.dev(), other.ino()) == (file.dev(), file.ino()));
        if !is_file {
            continue;
        }
        let number = descriptor.file_name();
        let info = Path::new("/proc").join(pid.as_raw_nonzero().to_string());
        let info = std::fs::read_to_string(info.join("fdinfo").join(number)).unwrap_or_default();
        // `lock: 1: FLOCK  ADVISORY  WRITE 12345 08:01:4711 0 EOF`, see proc_pid_fdinfo(5).
        let has_lock = |line: &str| line.starts_with("lock:") && line.contains("FLOCK");
        if info.lines().any(|line| has_lock(line) || (!shows_locks && is_writable(line))) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a line of a descriptor's information says that it is open for writing, as in `flags: 0100002`.
fn is_writable(line: &str) -> bool {
    let flags =
        line.strip_prefix("flags:").and_then(|text| u32::from_str_radix(text.trim(), 8).ok());
    flags.is_some_and(|flags| flags & 3 != 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;

    use super::*;

    #[test]
    fn descriptors_for_writing_are_told_by_their_flags() {
        assert!(is_writable("flags:\t0100002") && is_writable("flags:\t01"));
        assert!(
            !is_writable("flags:\t0100000") && !is_writable("pos:\t2") && !is_writable("flags:")
        );
        // Where the kernel keeps the locks itself it shows them.
        assert!(shows_locks(Path::new("/proc/self/status")).unwrap());
    }

    fn mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_grid_lies_where_nobody_else_can_write() {
        let folder = tempfile::tempdir().unwrap();
        let above = folder.path().join("above");
        let root = above.join("root");
        std::fs::create_dir_all(&root).unwrap();
        let refused = |what: &Path| {
            let reason = check_folder(&root).unwrap_err().to_string();
            assert!(reason.contains(&format!("{} is writable", what.display())), "{reason}");
            assert!(reason.contains("chmod go-w"), "{reason}");
        };
        check_folder(&root).unwrap();
        for open in [0o777, 0o770, 0o757] {
            mode(&above, open);
            refused(&above);
        }
        // As /tmp: others can add names, and cannot take away this one.
        mode(&above, 0o1777);
        check_folder(&root).unwrap();
        for open in [0o777, 0o775, 0o1777] {
            mode(&root, open);
            refused(&root);
        }
        mode(&root, 0o755);
        check_folder(&root).unwrap();
        assert!(check_folder(&above.join("nothing")).is_err());
    }

    #[test]
    fn only_root_and_the_own_user_are_trusted() {
        let own = rustix::process::geteuid();
        assert!(is_trusted(own) && is_trusted(Uid::ROOT));
        assert!(!is_trusted(Uid::from_raw(own.as_raw() + 1)));
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        check_peer(&ours).unwrap();
    }

    #[test]
    fn a_number_in_a_lock_file_is_signalled_only_if_its_process_holds_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let lock = folder.path().join("lock");
        let mut victim = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        std::fs::write(&lock, victim.id().to_string()).unwrap();
        assert!(!signal_holder(&lock, Signal::KILL).unwrap(), "nobody holds it");
        let held = crate::files::try_lock(&lock).unwrap().unwrap();
        let reason = signal_holder(&lock, Signal::KILL).unwrap_err().to_string();
        assert!(reason.contains(&victim.id().to_string()), "{reason}");
        assert!(victim.try_wait().unwrap().is_none(), "the victim was signalled");
        drop(held);
        victim.kill().unwrap();
        victim.wait().unwrap();
        // The one that does hold it is met.
        let words = format!("exec 9<>{0}; flock 9; echo $$ > {0}; exec sleep 600", lock.display());
        let mut holder = std::process::Command::new("sh");
        let mut holder = holder.args(["-c", &words]).process_group(0).spawn().unwrap();
        let is_held = || {
            std::fs::read_to_string(&lock).is_ok_and(|pid| pid.trim() == holder.id().to_string())
        };
        while !is_held() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(signal_holder(&lock, Signal::KILL).unwrap());
        assert!(!holder.wait().unwrap().success());
    }
}
