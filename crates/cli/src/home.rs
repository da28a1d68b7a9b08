//! A file system's home folder: settings, store, reserve, log, pid, control socket and default disk.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use forebay_base::time::SystemClock;
use forebay_base::{Clock, FailPoints};
use forebay_disk::Disk;
use forebay_disk::directory::{DirectoryDisk, Label};
use forebay_engine::home::GridHome;
use forebay_fs::mkfs::Identity;
use forebay_fs::record::{DiskRecord, MountState, Superblock};
use forebay_fs::recovery::read_superblock;
use forebay_fs::reserve::Reserve;
use forebay_fs::{FileSystem, Parts, Settings};
use forebay_store::StoreError;
use forebay_store::redb::{RedbOptions, RedbStore};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// A home folder that exists.
#[derive(Clone, Debug)]
pub struct Home {
    root: PathBuf,
}

/// The right to work on a file system: held by its daemon, or by a command on an unmounted one.
pub struct Lock {
    _file: File,
}

/// The open parts of an unmounted file system.
pub struct OpenHome {
    /// Keeps others out.
    pub lock: Lock,
    /// Settings in force.
    pub settings: Settings,
    /// The store.
    pub store: Arc<RedbStore>,
    /// Disks by identity.
    pub disks: Vec<(String, Arc<dyn Disk>)>,
}

impl Home {
    /// The home folder at `root`.
    ///
    /// # Errors
    /// If there is none.
    pub fn at(root: &Path) -> Result<Home> {
        let home = Home {
            root: root
                .canonicalize()
                .with_context(|| format!("{} is no file system", root.display()))?,
        };
        if !home.settings_path().is_file() || !home.store_path().exists() {
            bail!(
                "{} is no home folder of a Forebay file system: it has no forebay.toml and store; \
                 `forebay mkfs` makes one",
                root.display()
            );
        }
        Ok(home)
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn settings_path(&self) -> PathBuf {
        self.root.join("forebay.toml")
    }

    fn store_path(&self) -> PathBuf {
        self.root.join("store.redb")
    }

    fn lock_path(&self) -> PathBuf {
        self.root.join("lock")
    }

    /// Log of the daemon.
    pub fn log_path(&self) -> PathBuf {
        self.root.join("forebay.log")
    }

    /// Process id of the daemon.
    pub fn pid_path(&self) -> PathBuf {
        self.root.join("forebay.pid")
    }

    /// Name of the control socket within the folder.
    pub const CONTROL: &str = "control.sock";

    /// Process id of the daemon, if one has written it.
    pub fn daemon_pid(&self) -> Option<u32> {
        std::fs::read_to_string(self.pid_path()).ok()?.trim().parse().ok()
    }

    /// Reads and checks `forebay.toml`.
    ///
    /// # Errors
    /// Names file, line, key, value and what is allowed.
    pub fn settings(&self) -> Result<Settings> {
        let path = self.settings_path();
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        Settings::parse(&path.display().to_string(), &text).map_err(anyhow::Error::msg)
    }

    /// Takes the right to work on the file system; `None` if it is taken.
    ///
    /// # Errors
    /// If the lock file cannot be opened.
    pub fn try_lock(&self) -> Result<Option<Lock>> {
        let path = self.lock_path();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Lock { _file: file })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
        }
    }

    /// As [`Home::try_lock`], with an error that says who holds it.
    ///
    /// # Errors
    /// If it is mounted or otherwise in use.
    pub fn lock(&self) -> Result<Lock> {
        if let Some(lock) = self.try_lock()? {
            return Ok(lock);
        }
        let who = self.daemon_pid().map_or_else(String::new, |pid| format!(" by process {pid}"));
        let place = crate::mounts::of_home(self).map_or_else(
            || "in use".to_owned(),
            |mount| format!("mounted at {}", mount.mountpoint.display()),
        );
        bail!("{} is {place}{who}", self.root.display())
    }

    /// Opens the parts of the file system, which must not be mounted.
    ///
    /// # Errors
    /// If it is mounted, the settings are bad, the store is damaged, or a disk is not there.
    pub fn open(&self) -> Result<OpenHome> {
        let lock = self.lock()?;
        let settings = self.settings()?;
        let options = RedbOptions { cache_bytes: settings.store_cache.as_usize() };
        let store = self.open_store(&options)?;
        let superblock = read_superblock(&store)?;
        let disks = open_disks(&superblock)?;
        Ok(OpenHome { lock, settings, store: Arc::new(store), disks })
    }

    /// Whether the last owner left in order; `None` if somebody works on the file system already.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn is_clean(&self) -> Result<Option<bool>> {
        let Some(_lock) = self.try_lock()? else { return Ok(None) };
        let options = RedbOptions { cache_bytes: self.settings()?.store_cache.as_usize() };
        let superblock = read_superblock(&self.open_store(&options)?)?;
        Ok(Some(superblock.state == MountState::Clean))
    }

    /// Opens the store. Whoever held the lock may be about to end and close it.
    fn open_store(&self, options: &RedbOptions) -> Result<RedbStore> {
        let mut patience = 100;
        loop {
            match RedbStore::open_with(self.store_path(), options) {
                Err(StoreError::InUse(_)) if patience > 0 => patience -= 1,
                other => return Ok(other?),
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    /// Makes a file system with this identity in an empty folder.
    fn make(root: &Path, identity: Identity) -> Result<()> {
        let home = Home { root: root.to_owned() };
        std::fs::write(home.settings_path(), Settings::template())?;
        let store = RedbStore::create(home.store_path())?;
        forebay_fs::mkfs::make(&store, identity, &SystemClock)?;
        Ok(())
    }

    /// What stands in the reserve.
    pub fn reserve(&self, settings: &Settings) -> Reserve {
        Reserve::at(&self.root.join("reserve"), settings.store_reserve)
    }
}

impl OpenHome {
    /// Opens the file system as its owner, without a kernel.
    ///
    /// # Errors
    /// What [`FileSystem::open`] says.
    pub fn into_file_system(self, home: &Home) -> Result<(Arc<FileSystem>, Lock)> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let reserve = home.reserve(&self.settings);
        let fs = FileSystem::open(Parts {
            store: self.store,
            disks: self.disks,
            settings: self.settings,
            clock,
            fail_points: fail_points_of_environment()?,
            reserve,
        })?;
        Ok((fs, self.lock))
    }
}

/// `FOREBAY_FAIL_POINT=name[:passes]`: the daemon aborts there, for crash tests.
fn fail_points_of_environment() -> Result<FailPoints> {
    let Ok(text) = std::env::var("FOREBAY_FAIL_POINT") else { return Ok(FailPoints::none()) };
    let (name, passes) = text.split_once(':').unwrap_or((&text, "0"));
    let passes = passes.parse().with_context(|| {
        format!("FOREBAY_FAIL_POINT={text}: after the colon comes a number of passes")
    })?;
    Ok(FailPoints::abort_at(name, passes))
}

fn open_disks(superblock: &Superblock) -> Result<Vec<(String, Arc<dyn Disk>)>> {
    superblock
        .disks
        .iter()
        .map(|record| {
            let label = Label { file_system: superblock.uuid.clone(), disk: record.uuid.clone() };
            let disk = DirectoryDisk::open(&record.location, &label)
                .with_context(|| format!("disk {}", record.location))?;
            Ok((record.uuid.clone(), Arc::new(disk) as Arc<dyn Disk>))
        })
        .collect()
}

/// Random bytes of the kernel.
fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .context("no random numbers")?;
    Ok(bytes)
}

/// A random identity (RFC 9562, version 4).
fn uuid() -> Result<String> {
    let mut bytes: [u8; 16] = random()?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok([&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-"))
}

/// What mkfs made, to be taken back if a later step fails.
#[derive(Default)]
struct Made(Vec<PathBuf>);

impl Made {
    fn folder(&mut self, path: &Path) -> Result<()> {
        if !path.exists() {
            std::fs::create_dir(path).with_context(|| format!("cannot make {}", path.display()))?;
            self.0.push(path.to_owned());
        }
        Ok(())
    }

    fn undo(self) {
        for path in self.0.into_iter().rev() {
            let _ = if path.is_dir() && !path.is_symlink() {
                std::fs::remove_dir_all(&path)
            } else {
                std::fs::remove_file(&path)
            };
        }
    }
}

/// Files that a home folder may hold.
const OWN: [&str; 8] = [
    "forebay.toml",
    "store.redb",
    "lock",
    "reserve",
    "forebay.log",
    "forebay.pid",
    Home::CONTROL,
    "disk",
];

/// Makes a file system: checks everything first, and takes everything back if a step fails.
///
/// # Errors
/// Names what stands in the way; nothing is changed then.
pub fn mkfs(root: &Path, disks: &[PathBuf]) -> Result<Home> {
    check_root(root)?;
    let mut locations = Vec::new();
    for disk in disks {
        // It is not made: a disk that is not mounted would go unnoticed.
        let path = disk.canonicalize().with_context(|| {
            format!("disk {}: give a directory that is there, empty, on the disk", disk.display())
        })?;
        if locations.contains(&path) {
            bail!("disk {} is given twice", disk.display());
        }
        locations.push(path);
    }
    let mut made = Made::default();
    match make(root, &locations, &mut made) {
        Ok(home) => Ok(home),
        Err(error) => {
            made.undo();
            Err(error)
        }
    }
}

/// Whether the folder `grid` in it is that of a grid, which a file system may join.
fn holds_grid(root: &Path) -> bool {
    GridHome::of(root).is_ok_and(|grid| grid.lock().is_file())
}

fn check_root(root: &Path) -> Result<()> {
    let parent = match root.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if !root.exists() {
        let writable = rustix::fs::access(parent, rustix::fs::Access::WRITE_OK);
        return writable.with_context(|| {
            format!(
                "cannot make {}: {} must exist and be writable",
                root.display(),
                parent.display()
            )
        });
    }
    if !root.is_dir() {
        bail!("{} is no directory", root.display());
    }
    rustix::fs::access(root, rustix::fs::Access::WRITE_OK)
        .with_context(|| format!("{} is not writable", root.display()))?;
    let entries = std::fs::read_dir(root).with_context(|| root.display().to_string())?;
    let names: Vec<String> = entries
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .filter(|name| name != "lost+found" && !(name == "grid" && holds_grid(root)))
        .collect();
    if names.is_empty() {
        return Ok(());
    }
    if names.iter().all(|name| OWN.contains(&name.as_str())) && names.iter().any(|n| n == OWN[1]) {
        bail!(
            "{} holds a Forebay file system already: remove the folder first if it is not needed",
            root.display()
        );
    }
    bail!(
        "{} is not empty (it holds {}): give an empty folder or a new name",
        root.display(),
        names[0]
    )
}

fn make(root: &Path, given: &[PathBuf], made: &mut Made) -> Result<Home> {
    made.folder(root)?;
    let root = root.canonicalize()?;
    let file_system = uuid()?;
    let mut locations = given.to_vec();
    if locations.is_empty() {
        locations.push(root.join("disk"));
        made.folder(&locations[0])?;
    }
    let mut disks = Vec::new();
    for location in locations {
        let disk = uuid()?;
        let label = Label { file_system: file_system.clone(), disk: disk.clone() };
        DirectoryDisk::format(&location, &label)?;
        for name in ["forebay-disk.toml", "objects"] {
            made.0.push(location.join(name));
        }
        disks.push(DiskRecord { uuid: disk, location: location.display().to_string() });
    }
    for name in ["forebay.toml", "store.redb"] {
        made.0.push(root.join(name));
    }
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Home::make(&root, Identity { uuid: file_system, hash_key: random()?, disks, owner })?;
    Home::at(&root)
}
