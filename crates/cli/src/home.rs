//! A file system's home folder: settings, store, reserve, log, pid, control socket and default disk.

mod access;
mod lock;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use forebay_base::time::SystemClock;
use forebay_base::{Clock, FailPoints};
use forebay_disk::Disk;
use forebay_disk::directory::{DirectoryDisk, Label};
use forebay_engine::home::GridHome;
use forebay_fs::fsck::file::{Checked, check_file, restore};
use forebay_fs::fsck::{NamedDisk, Options};
use forebay_fs::mkfs::Identity;
use forebay_fs::native::{Mark, NativePlace};
use forebay_fs::record::{DiskRecord, MountState, Placement, Superblock};
use forebay_fs::recovery::read_superblock;
use forebay_fs::reserve::Reserve;
use forebay_fs::{FsError, Namespace, Parts, Settings};
use forebay_store::StoreError;
use forebay_store::redb::{RedbOptions, RedbStore};

pub use self::lock::Lock;

/// A home folder that exists.
#[derive(Clone, Debug)]
pub struct Home {
    root: PathBuf,
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
    /// Space kept aside, as the last mount left it.
    reserve: Reserve,
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
                .with_context(|| format!("{} is not a Forebay file system", root.display()))?,
        };
        if home.settings_path().is_file() && !home.store_path().exists() {
            bail!(
                "the file system {0} has lost its store, {0}/store.redb: bring a backup back with `forebay \
                 store restore {0} FILE`; without one, the contents of files can be read from the \
                 folder \"objects\" of each disk",
                root.display()
            );
        }
        if !home.settings_path().is_file() {
            bail!(
                "{} is not the home folder of a Forebay file system: it has no forebay.toml and no store; \
                 `forebay mkfs` creates one",
                root.display()
            );
        }
        Ok(home)
    }

    /// The home folder at `root`, whose store may be lost or damaged.
    ///
    /// # Errors
    /// If there is none.
    pub fn with_any_store(root: &Path) -> Result<Home> {
        let canonical = root.canonicalize().ok();
        match canonical.map(|root| Home { root }).filter(|home| home.settings_path().is_file()) {
            Some(home) => Ok(home),
            None => Home::at(root),
        }
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
    /// Name of the folder of its own disk.
    const DISK: &str = "disk";

    /// Writes down the process id of this daemon, over that of one that died: that takes no space.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_pid(&self) -> std::io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(false).open(self.pid_path())?;
        let line = format!("{}\n", std::process::id());
        file.write_all(line.as_bytes())?;
        file.set_len(line.len() as u64)
    }

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
        if text.trim().is_empty() {
            bail!(
                "{} is empty, as a full disk or a crash may leave a file: put the settings back, or write a \
                 line that begins with # into it to have the defaults",
                path.display()
            );
        }
        Settings::parse(&path.display().to_string(), &text).map_err(anyhow::Error::msg)
    }

    /// Opens the parts of the file system, which must not be mounted.
    ///
    /// # Errors
    /// If it is mounted, the settings are bad, the store is damaged, or a disk is not there.
    pub fn open(&self) -> Result<OpenHome> {
        self.open_with(RedbStore::open_with)
    }

    /// As [`Home::open`], without changing or verifying anything: nothing can be committed.
    ///
    /// # Errors
    /// As [`Home::open`].
    pub fn open_to_look(&self) -> Result<OpenHome> {
        self.open_with(RedbStore::look)
    }

    fn open_with(&self, open: OpenStore) -> Result<OpenHome> {
        let lock = self.lock()?;
        let settings = self.settings()?;
        let reserve = self.reserve(&settings);
        let store = self.open_store(open, &store_options(&settings), &reserve)?;
        let superblock = read_superblock(&store)?;
        let disks = open_disks(&superblock)?;
        Ok(OpenHome { lock, settings, store: Arc::new(store), disks, reserve })
    }

    /// The store alone, to read; the caller holds the lock.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn look(&self) -> Result<Arc<RedbStore>> {
        let settings = self.settings()?;
        let reserve = self.reserve(&settings);
        Ok(Arc::new(self.open_store(RedbStore::look, &store_options(&settings), &reserve)?))
    }

    /// Checks the file system, which must not be mounted, and repairs it if asked to.
    ///
    /// # Errors
    /// If it is mounted, the settings are bad, or a disk is not there.
    pub fn check(&self, how: &mut Options<'_>) -> Result<Checked> {
        let _lock = self.lock()?;
        let options = store_options(&self.settings()?);
        // Whoever held the lock may be about to end and close it.
        drop(self.look());
        Ok(check_file(&self.store_path(), &options, &find_disks, how)?)
    }

    /// Has a backup take the place of the store of the file system, which must not be mounted.
    ///
    /// # Errors
    /// If it is mounted, the backup is damaged or not of this file system, or a disk is not there.
    pub fn restore(&self, backup: &Path, progress: &mut dyn FnMut(&str)) -> Result<Checked> {
        let _lock = self.lock()?;
        let options = store_options(&self.settings()?);
        let restored = restore(&self.store_path(), backup, &options, &find_disks, progress);
        restored
            .with_context(|| format!("{} was not restored; nothing was changed", backup.display()))
    }

    /// Whether the last owner left in order; `None` if somebody works on the file system already.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn is_clean(&self) -> Result<Option<bool>> {
        let Some(_lock) = self.try_lock()? else { return Ok(None) };
        let superblock = read_superblock(&self.look()?)?;
        Ok(Some(superblock.state == MountState::Clean))
    }

    /// Opens the store. Whoever held the lock may be about to end and close it. What a crash left is mended, which can
    /// take space.
    fn open_store(
        &self,
        open: OpenStore,
        options: &RedbOptions,
        reserve: &Reserve,
    ) -> Result<RedbStore> {
        let open = || open(self.store_path(), options);
        let is_full = |error: &StoreError| matches!(error, StoreError::Full(_));
        let mut patience = 100;
        loop {
            match reserve.spend(open, is_full) {
                Err(StoreError::InUse(_)) if patience > 0 => patience -= 1,
                Err(StoreError::Damaged(why)) => bail!(
                    "the store is damaged: {why}. Nothing was changed. `forebay fsck {0}` shows what is wrong, \
                     `forebay fsck {0} --repair` saves what can be read, and `forebay store restore {0} FILE` \
                     brings back a backup",
                    self.root.display()
                ),
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
    fn reserve(&self, settings: &Settings) -> Reserve {
        Reserve::at(&self.root.join("reserve"), settings.store_reserve)
    }
}

impl OpenHome {
    /// Opens the file system as its owner, without a kernel.
    ///
    /// # Errors
    /// What [`Namespace::open`] says.
    pub fn into_file_system(self) -> Result<(Arc<Namespace>, Lock)> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let fs = Namespace::open(Parts {
            store: self.store,
            disks: self.disks,
            settings: self.settings,
            clock,
            fail_points: fail_points_of_environment()?,
            reserve: self.reserve,
        })?;
        Ok((fs, self.lock))
    }
}

/// `FOREBAY_FAIL_POINT=name[:passes]`: the daemon aborts there, for crash tests.
fn fail_points_of_environment() -> Result<FailPoints> {
    let Ok(text) = std::env::var("FOREBAY_FAIL_POINT") else { return Ok(FailPoints::none()) };
    let (name, passes) = text.split_once(':').unwrap_or((&text, "0"));
    let passes = passes.parse().with_context(|| {
        format!("FOREBAY_FAIL_POINT={text}: expected a number of passes after the colon")
    })?;
    Ok(FailPoints::abort_at(name, passes))
}

/// How a store is opened.
type OpenStore = fn(PathBuf, &RedbOptions) -> forebay_store::Result<RedbStore>;

fn store_options(settings: &Settings) -> RedbOptions {
    RedbOptions { cache_bytes: settings.store_cache.as_usize() }
}

fn find_disks(superblock: &Superblock) -> forebay_fs::Result<Vec<NamedDisk>> {
    open_disks(superblock).map_err(|error| FsError::Refused(crate::output::chain(&error)))
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
        .context("the kernel gives no random numbers")?;
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
            std::fs::create_dir(path)
                .with_context(|| format!("cannot create {}", path.display()))?;
            self.0.push(path.to_owned());
        }
        Ok(())
    }

    /// Makes a home folder that users can pass through if it is root's.
    fn home(&mut self, path: &Path) -> Result<()> {
        let is_new = !path.exists();
        self.folder(path)?;
        if is_new {
            let mode = access::folder_mode(std::fs::metadata(path)?.uid());
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
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
    Home::DISK,
];

/// Makes a file system: checks everything first, and takes everything back if a step fails. `work` is the placement of
/// the filesets work and util, if it is not to be chosen here; the one that they have is returned.
///
/// # Errors
/// Names what stands in the way; nothing is changed then.
pub fn mkfs(root: &Path, disks: &[PathBuf], work: Option<Placement>) -> Result<(Home, Placement)> {
    check_root(root)?;
    let mut locations = Vec::new();
    for disk in disks {
        // It is not made: a disk that is not mounted would go unnoticed.
        let path = disk.canonicalize().with_context(|| {
            format!("disk {}: name an existing, empty directory on the disk", disk.display())
        })?;
        if locations.contains(&path) {
            bail!("disk {} is given twice", disk.display());
        }
        locations.push(path);
    }
    let mut made = Made::default();
    // All that is made belongs to its owner alone.
    // SAFETY: umask always succeeds; no other thread makes files.
    let before = unsafe { libc::umask(0o077) };
    let home = make(root, &locations, work, &mut made);
    // SAFETY: as above.
    unsafe { libc::umask(before) };
    match home {
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
                "cannot create {}: {} must exist and be writable",
                root.display(),
                parent.display()
            )
        });
    }
    if !root.is_dir() {
        bail!("{} is not a directory", root.display());
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
            "{} already holds a Forebay file system: if it is not needed, remove the folder first",
            root.display()
        );
    }
    bail!(
        "{} is not empty (it holds {}): name an empty folder, or one that does not exist",
        root.display(),
        names[0]
    )
}

/// Makes the trees of the filesets work and util on the first disk, if they are to be native.
fn make_native(
    file_system: &str,
    disk: &Path,
    wanted: Option<Placement>,
    owner: (u32, u32),
    made: &mut Made,
) -> Result<Placement> {
    let kind = forebay_disk::directory::kind_of_file_system(disk)?;
    let suits = forebay_fs::native::suits(kind);
    let placement = match wanted {
        Some(wanted) => wanted,
        None if suits && owner.0 == 0 => Placement::Native,
        None => Placement::Direct,
    };
    if placement != Placement::Native {
        return Ok(placement);
    }
    if !suits {
        bail!(
            "the filesets work and util cannot be native: {} lies on {kind}, which is not a local file system; name \
             a local disk first, or use --work-placement direct",
            disk.display()
        );
    }
    made.0.push(disk.join(forebay_fs::native::FOLDER));
    for name in forebay_fs::mkfs::SCRATCH {
        let mark = Mark { file_system: file_system.to_owned(), fileset: name.to_owned() };
        NativePlace::on(disk, mark).create(forebay_fs::mkfs::SCRATCH_MODE, owner)?;
    }
    Ok(placement)
}

fn make(
    root: &Path,
    given: &[PathBuf],
    work: Option<Placement>,
    made: &mut Made,
) -> Result<(Home, Placement)> {
    made.home(root)?;
    let root = root.canonicalize()?;
    let file_system = uuid()?;
    let mut locations = given.to_vec();
    if locations.is_empty() {
        locations.push(root.join(Home::DISK));
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
    let first = PathBuf::from(&disks[0].location);
    let scratch = make_native(&file_system, &first, work, owner, made)?;
    let identity = Identity { uuid: file_system, hash_key: random()?, disks, owner, scratch };
    Home::make(&root, identity)?;
    let home = Home::at(&root)?;
    // The folder may have been there, open to others.
    for opened in home.close_to_others()? {
        opened
            .closed
            .with_context(|| format!("cannot close {} to others", opened.path.display()))?;
    }
    Ok((home, scratch))
}
