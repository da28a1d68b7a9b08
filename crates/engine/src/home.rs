//! The folder of a grid: ROOT/grid with its settings, journal, socket, hosts and work areas.

use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::runs::Run;

/// The folder of a grid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GridHome {
    folder: PathBuf,
}

impl GridHome {
    /// The grid of `root`, which may still have to be made.
    ///
    /// # Errors
    /// If `root` is no directory.
    pub fn of(root: &Path) -> Result<GridHome> {
        let root = root.canonicalize().with_context(|| format!("{}", root.display()))?;
        if !root.is_dir() {
            bail!("{} is no directory", root.display());
        }
        Ok(GridHome { folder: root.join("grid") })
    }

    /// Makes the folders that are missing. Other users can reach the socket and their work areas only if
    /// this is root, who alone can start jobs as them.
    ///
    /// # Errors
    /// If a folder cannot be made.
    pub fn make(&self) -> Result<()> {
        let mode = if is_root() { 0o711 } else { 0o700 };
        folder(&self.folder, mode)?;
        folder(&self.hosts(), 0o700)
    }

    /// The file that tells this grid from all others.
    pub(crate) const ID: &str = "id";

    /// What tells this grid from all others; made when it is first asked for.
    ///
    /// # Errors
    /// If it can be neither read nor written.
    pub fn id(&self) -> Result<String> {
        let path = self.folder.join(GridHome::ID);
        let shown = || path.display().to_string();
        if !path.exists() {
            let id = std::fs::read("/proc/sys/kernel/random/uuid").context("no random number")?;
            let fresh = self.folder.join(format!("{}-{}", GridHome::ID, std::process::id()));
            std::fs::write(&fresh, id).with_context(shown)?;
            // Whole or not at all; of several agents that begin together one is first.
            let linked = std::fs::hard_link(&fresh, &path);
            std::fs::remove_file(&fresh).with_context(shown)?;
            match linked {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(error).with_context(shown);
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(std::fs::read_to_string(&path).with_context(shown)?.trim().to_owned())
    }

    /// ROOT/grid.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.join("controller.sock")
    }

    /// Its journal.
    #[must_use]
    pub fn journal(&self) -> PathBuf {
        self.folder.join("journal.redb")
    }

    /// Its settings; the defaults hold if there are none.
    #[must_use]
    pub fn settings(&self) -> PathBuf {
        self.folder.join("grid.toml")
    }

    /// What keeps a second controller out.
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.folder.join("lock")
    }

    /// Where agents keep what they must not forget.
    #[must_use]
    pub fn hosts(&self) -> PathBuf {
        self.folder.join("hosts")
    }

    /// How many jobs the processes of this grid hold, whether or not there is a controller or an agent.
    ///
    /// # Errors
    /// If the folders of its hosts cannot be read.
    pub fn jobs_that_run(&self) -> Result<usize> {
        let hosts = self.hosts();
        let shown = || hosts.display().to_string();
        let mut count = 0;
        if !hosts.exists() {
            return Ok(count);
        }
        for host in std::fs::read_dir(&hosts).with_context(shown)? {
            let host = host.with_context(shown)?.path();
            for (_, _, run) in Run::all(&host).with_context(|| host.display().to_string())? {
                count += usize::from(run.is_held()?);
            }
        }
        Ok(count)
    }

    /// Work areas, as long as no file system is mounted.
    #[must_use]
    pub fn work(&self) -> PathBuf {
        self.folder.join("work")
    }
}

/// Whether this process may act as other users.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Makes a folder with a mode, whatever the umask is. One that is there must belong to this user, and is
/// closed to those whom the mode shuts out.
///
/// # Errors
/// If it cannot be made, or belongs to somebody else.
pub fn folder(path: &Path, mode: u32) -> Result<()> {
    let shown = || format!("cannot make {}", path.display());
    let set = |mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode));
    match std::fs::DirBuilder::new().mode(mode).create(path) {
        Ok(()) => return set(mode).with_context(shown),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error).with_context(shown),
    }
    let about = std::fs::symlink_metadata(path).with_context(shown)?;
    if !about.is_dir() {
        bail!("{} is in the way: it is no directory", path.display());
    }
    let own = rustix::process::geteuid().as_raw();
    if about.uid() != own {
        let (path, owner) = (path.display(), about.uid());
        bail!(
            "{path} belongs to user {owner}, not to user {own} who starts this: use another folder"
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
    use std::io::Write as _;
    let Some(mut lock) = try_lock(path)? else { return Ok(None) };
    lock.set_len(0)?;
    lock.write_all(std::process::id().to_string().as_bytes())?;
    Ok(Some(lock))
}

/// The daemon that holds a lock, if one does.
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
