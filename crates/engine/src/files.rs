//! Folders, locks and files of daemons: made with the mode that they shall have, held by one process at a time, written
//! as a whole.

use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, bail};

/// Makes a folder with a mode, whatever the umask is. One that is there must belong to this user, and is
/// closed to those whom the mode shuts out.
///
/// # Errors
/// If it cannot be made, or belongs to somebody else.
pub fn folder(path: &Path, mode: u32) -> Result<()> {
    let shown = || format!("cannot create {}", path.display());
    let set = |mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode));
    match std::fs::DirBuilder::new().mode(mode).create(path) {
        Ok(()) => return set(mode).with_context(shown),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error).with_context(shown),
    }
    let about = std::fs::symlink_metadata(path).with_context(shown)?;
    if !about.is_dir() {
        bail!("{} exists, but is not a directory", path.display());
    }
    let own = rustix::process::geteuid().as_raw();
    if about.uid() != own {
        let (path, owner) = (path.display(), about.uid());
        bail!(
            "{path} belongs to user {owner}, not to user {own} who runs this command: use another folder"
        );
    }
    let now = about.mode() & 0o7777;
    if now & !mode == 0 { Ok(()) } else { set(now & mode).with_context(shown) }
}

/// Takes a lock that lasts until the file is closed; `None` if another process has it.
pub(crate) fn try_lock(path: &Path) -> Result<Option<std::fs::File>> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = std::fs::OpenOptions::new();
    let file = options.create(true).truncate(false).read(true).write(true).mode(0o600).open(path);
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
    }
}

/// Takes the lock of a daemon and says in it whose it is.
pub(crate) fn claim(path: &Path) -> Result<Option<std::fs::File>> {
    let Some(lock) = try_lock(path)? else { return Ok(None) };
    let number = std::process::id().to_string();
    // Over the one before, so that it needs no space on a full disk and is never missing.
    std::os::unix::fs::FileExt::write_all_at(&lock, number.as_bytes(), 0)?;
    lock.set_len(number.len() as u64)?;
    Ok(Some(lock))
}

/// As `claim`, waiting a moment: a process that is just being killed, one that it was about to start, and somebody who
/// looks who has the lock all hold it a moment longer.
///
/// # Errors
/// If the lock cannot be opened or written.
pub fn claim_soon(path: &Path) -> Result<Option<std::fs::File>> {
    const TRIES: u32 = 200;
    for _ in 1..TRIES {
        if let Some(lock) = claim(path)? {
            return Ok(Some(lock));
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    claim(path)
}

/// The daemon that holds a lock, if one does, as the file says: [`signal_holder`](crate::trust::signal_holder) finds out whether that is so.
#[must_use]
pub fn holder(path: &Path) -> Option<rustix::process::Pid> {
    let file = std::fs::File::open(path).ok()?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockShared) {
        Err(rustix::io::Errno::WOULDBLOCK) => {
            rustix::process::Pid::from_raw(std::fs::read_to_string(path).ok()?.trim().parse().ok()?)
        }
        Ok(()) | Err(_) => None,
    }
}

/// Whether a lock is there and no process holds it. While it looks nobody else can take it.
#[must_use]
pub fn is_unheld(path: &Path) -> bool {
    let Ok(file) = std::fs::File::open(path) else { return false };
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockShared).is_ok()
}

/// Writes a file as a whole: whoever reads it finds the old one or the new one. Several daemons may replace it at the same time.
///
/// # Errors
/// If it cannot be written or replaced.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    static DRAFTS: AtomicU64 = AtomicU64::new(0);
    let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
    let draft = path.with_extension(format!("draft-{}-{number}", std::process::id()));
    let written = std::fs::write(&draft, bytes).and_then(|()| std::fs::rename(&draft, path));
    written.with_context(|| {
        let _ = std::fs::remove_file(&draft);
        path.display().to_string()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_unheld_once_its_holder_is_gone_and_not_while_it_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        assert!(!is_unheld(&path), "nobody has begun yet");
        let held = claim(&path).unwrap().expect("nobody has it");
        assert!(!is_unheld(&path));
        drop(held);
        assert!(is_unheld(&path));
        assert!(claim(&path).unwrap().is_some(), "looking takes it from nobody for good");
    }

    #[test]
    fn a_file_is_replaced_by_several_at_the_same_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoints");
        std::thread::scope(|scope| {
            for text in ["one", "two"] {
                let path = &path;
                scope.spawn(move || (0..300).for_each(|_| replace(path, text.as_bytes()).unwrap()));
            }
        });
        assert_eq!(std::fs::read(&path).unwrap().len(), 3);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no drafts are left");
    }
}
