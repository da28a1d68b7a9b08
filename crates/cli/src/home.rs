//! A file system's home folder: settings, stores, reserve, log, pid, control socket and default disk.

mod access;
pub mod archive;
pub mod disks;
mod lock;
mod member;
pub use member::node_at;
mod native;
mod settings;
mod stores;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use forebay_base::time::SystemClock;
use forebay_base::{Clock, DiskId, FailPoints, FilesetId};
use forebay_disk::Disk;
use forebay_disk::absent::AbsentDisk;
use forebay_disk::directory::{DirectoryDisk, Label};
use forebay_engine::home::GridHome;
use forebay_fs::fsck::NamedDisk;
use forebay_fs::mkfs::Identity;
use forebay_fs::record::{DiskRecord, MountState, Placement, Superblock};
use forebay_fs::recovery::read_superblock;
use forebay_fs::reserve::Reserve;
use forebay_fs::{FsError, Namespace, Parts};
use forebay_node::home::NodeHome;
use forebay_store::redb::RedbOptions;
use forebay_store::redb::folder::RedbFolder;
use forebay_store::{StoreError, Stores as _};

pub use self::archive::{s3_access, s3_access_in};
pub use self::lock::Lock;
pub use self::member::{OpenMember, open_own_disk, own_disk, shared_disk, unlabel};
pub use self::native::placement_on;
pub use self::settings::Settings;
pub use self::stores::{Checked, Progress, back_up_into, choose, names_of, stored_names};

/// A home folder that exists.
#[derive(Clone, Debug)]
pub struct Home {
    root: PathBuf,
    /// The node that it belongs to, if its names are a cluster's.
    node: Option<NodeHome>,
}

/// The open parts of an unmounted file system of this machine alone.
pub struct OpenHome {
    /// Keeps others out.
    pub lock: Lock,
    /// Settings in force.
    pub settings: Settings,
    /// The stores: one for each fileset.
    pub stores: RedbFolder,
    /// The disks by identity.
    pub disks: Vec<NamedDisk>,
    /// Space kept aside, as the last mount left it.
    reserve: Reserve,
}

impl Home {
    /// The home folder at `root`.
    ///
    /// # Errors
    /// If there is none.
    pub fn at(root: &Path) -> Result<Home> {
        if let Some(home) = Home::member_at(root) {
            return Ok(home);
        }
        let home = Home {
            root: root
                .canonicalize()
                .with_context(|| format!("{} is not a Forebay file system", root.display()))?,
            node: None,
        };
        if home.settings_path().is_file() && home.root.join(OLD_STORE).exists() {
            bail!(
                "{0} was created by an earlier version of Forebay, which kept all names in {0}/{OLD_STORE}: \
                 this version cannot read it; copy the files into a new file system with the version that created it",
                root.display()
            );
        }
        let store = home.root_store_path();
        if home.settings_path().is_file() && !store.exists() {
            bail!(
                "the file system {0} has lost its store, {1}: restore a backup with `forebay store restore \
                 {0} FOLDER`; without one, the contents of files can be read from the folder \"objects\" of each \
                 disk",
                root.display(),
                store.display()
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
        let alone = |root| Home { root, node: None };
        let canonical = canonical.filter(|root| node_at(root).is_none());
        match canonical.map(alone).filter(|home| home.settings_path().is_file()) {
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

    /// The folder with the stores.
    fn names_path(&self) -> PathBuf {
        self.root.join(Home::NAMES)
    }

    fn root_store_path(&self) -> PathBuf {
        RedbFolder::at(&self.names_path(), RedbOptions::default()).file_of(FilesetId::ROOT)
    }

    /// The stores of the file system.
    fn stores(&self, settings: &Settings) -> Result<RedbFolder> {
        self.alone()?;
        let cache_bytes = settings.fs.store_cache.as_usize();
        Ok(RedbFolder::at(&self.names_path(), RedbOptions { cache_bytes }))
    }

    /// Log of the daemon.
    pub fn log_path(&self) -> PathBuf {
        self.root.join("forebay.log")
    }

    /// Process id of the daemon.
    pub fn pid_path(&self) -> PathBuf {
        self.root.join("forebay.pid")
    }

    /// Name of the policy within the folder.
    pub const POLICY: &str = "policy.toml";
    /// Name of the control socket within the folder.
    pub const CONTROL: &str = "control.sock";
    /// Name of the folder of its own disk.
    const DISK: &str = "disk";
    /// Name of the folder of its stores.
    const NAMES: &str = "names";

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
                "{} is empty, possibly because of a full disk or a crash: restore the settings, or write a \
                 line that begins with # into it to use the defaults",
                path.display()
            );
        }
        Settings::parse(&path.display().to_string(), &text).map_err(anyhow::Error::msg)
    }

    /// Opens the parts of the file system, which must not be mounted, without changing or verifying anything. A disk
    /// that is not there has a stand-in that says why.
    ///
    /// # Errors
    /// If it is mounted, the settings are bad, or the store of the root fileset is damaged.
    pub fn open(&self) -> Result<OpenHome> {
        self.alone()?;
        let lock = self.lock()?;
        let settings = self.settings()?;
        let stores = self.stores(&settings)?;
        let superblock = self.superblock(&stores)?;
        let mut disks = Vec::new();
        for record in superblock.disks.iter().filter(|record| record.is_expected()) {
            let disk = open_disk(&self.root, &superblock, record).unwrap_or_else(|error| {
                let why = crate::output::chain(&error);
                Arc::new(AbsentDisk::new(&record.uuid, &record.location, &why))
            });
            disks.push((record.uuid.clone(), disk));
        }
        let reserve = self.reserve(&settings);
        Ok(OpenHome { lock, settings, stores, disks, reserve })
    }

    /// Whether the last owner left in order; `None` if somebody works on the file system already.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn is_clean(&self) -> Result<Option<bool>> {
        let Some(_lock) = self.try_lock()? else { return Ok(None) };
        if self.node.is_some() {
            // Whoever owns its filesets closes them.
            return Ok(Some(true));
        }
        let superblock = self.superblock(&self.stores(&self.settings()?)?)?;
        Ok(Some(superblock.state == MountState::Clean))
    }

    /// The superblock of the root fileset. Whoever held the lock may be about to end and close its store.
    fn superblock(&self, stores: &RedbFolder) -> Result<Superblock> {
        let mut patience = 100;
        loop {
            let found = match stores.look(FilesetId::ROOT) {
                Err(StoreError::InUse(_)) if patience > 0 => {
                    patience -= 1;
                    std::thread::sleep(std::time::Duration::from_millis(10));
                    continue;
                }
                Err(error) => Err(FsError::from(error)),
                Ok(store) => read_superblock(&*store),
            };
            return found.map_err(|error| damaged_store(&self.root, error));
        }
    }

    /// Makes a file system with this identity in an empty folder.
    fn make(root: &Path, identity: &Identity) -> Result<()> {
        let home = Home { root: root.to_owned(), node: None };
        std::fs::write(home.settings_path(), Settings::template())?;
        home.make_names_folder()?;
        let stores = RedbFolder::at(&home.names_path(), RedbOptions::default());
        forebay_fs::mkfs::make(&stores, identity, &SystemClock)?;
        std::fs::File::open(&home.root)?.sync_all()?;
        Ok(())
    }

    /// What stands in the reserve.
    fn reserve(&self, settings: &Settings) -> Reserve {
        Reserve::at(&self.root.join("reserve"), settings.fs.store_reserve)
    }
}

impl OpenHome {
    /// Opens the file system as its owner, without a kernel.
    ///
    /// # Errors
    /// What [`Namespace::open`] says.
    pub fn into_file_system(self, home: &Home) -> Result<(Arc<Namespace>, Lock)> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let opened = Namespace::open(Parts {
            stores: Arc::new(self.stores),
            disks: self.disks,
            settings: self.settings.fs,
            clock,
            fail_points: fail_points_of_environment()?,
            reserve: self.reserve,
        });
        let fs = opened.map_err(|error| damaged_store(home.root(), error))?;
        Ok((fs, self.lock))
    }
}

/// `FOREBAY_FAIL_POINT=name[:passes]`: the daemon aborts there, for crash tests.
pub fn fail_points_of_environment() -> Result<FailPoints> {
    let Ok(text) = std::env::var("FOREBAY_FAIL_POINT") else { return Ok(FailPoints::none()) };
    let (name, passes) = text.split_once(':').unwrap_or((&text, "0"));
    let passes = passes.parse().with_context(|| {
        format!("FOREBAY_FAIL_POINT={text}: expected a number of passes after the colon")
    })?;
    Ok(FailPoints::abort_at(name, passes))
}

/// The file in which earlier versions kept all names.
const OLD_STORE: &str = "store.redb";

/// What to do about a store that is damaged.
fn damaged_store(root: &Path, error: FsError) -> anyhow::Error {
    match error {
        FsError::Damaged(why) => anyhow::anyhow!(
            "the store is damaged: {why}. Nothing was changed. `forebay fsck {0}` shows what is wrong, \
             `forebay fsck {0} --repair` saves what can be read, and `forebay store restore {0} FOLDER` \
             brings back a backup",
            root.display()
        ),
        other => other.into(),
    }
}

fn open_disk(root: &Path, superblock: &Superblock, record: &DiskRecord) -> Result<Arc<dyn Disk>> {
    let label = Label { file_system: superblock.uuid.clone(), disk: record.uuid.clone() };
    if archive::is_archive(&record.location) {
        return Ok(Arc::new(archive::open(root, &record.location, label)?));
    }
    if let Some(striping) = record.striping() {
        return disks::open_striped(&superblock.disks, &striping, &label)
            .with_context(|| format!("the striped disk {}", record.uuid));
    }
    let disk = DirectoryDisk::open(&record.location, &label)
        .with_context(|| format!("disk {}", record.location))?;
    Ok(Arc::new(disk))
}

/// Random bytes of the kernel.
pub fn random<const N: usize>() -> Result<[u8; N]> {
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
    Home::NAMES,
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
    for (number, location) in (0..).zip(locations) {
        let disk = uuid()?;
        let label = Label { file_system: file_system.clone(), disk: disk.clone() };
        DirectoryDisk::format(&location, &label)?;
        for name in ["forebay-disk.toml", "objects"] {
            made.0.push(location.join(name));
        }
        let location = location.display().to_string();
        disks.push(DiskRecord::new(DiskId(number), &disk, &location));
    }
    for name in ["forebay.toml", Home::NAMES] {
        made.0.push(root.join(name));
    }
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let first = PathBuf::from(&disks[0].location);
    let scratch = native::make(&file_system, &first, work, owner, &mut made.0)?;
    let identity = Identity { uuid: file_system, hash_key: random()?, disks, owner, scratch };
    Home::make(&root, &identity)?;
    let home = Home::at(&root)?;
    // The folder may have been there, open to others.
    for opened in home.close_to_others()? {
        opened
            .closed
            .with_context(|| format!("cannot close {} to others", opened.path.display()))?;
    }
    Ok((home, scratch))
}
