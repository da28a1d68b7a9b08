//! A file system in memory with a cache, and a directory that is its home.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use forebay_base::time::StepClock;
use forebay_base::{Clock, FailPoints, Ino, Timestamp};
use forebay_disk::Disk;
use forebay_fs::caching::{CacheSettings, HomeIdentity};
use forebay_fs::record::{Durability, Kind, Placement};
use forebay_fs::{
    Attributes, CacheMode, CacheStatus, FsError, HomeNeed, NewFileset, Parts, Result,
    WriteBackSettings, WriteBackStatus,
};

use crate::support::{Rig, Shorthand as _, TestDisk, User};

pub(crate) const CACHE: &str = "inputs";

/// What a path leads to: the bytes of a file, the target of a link, nothing for a directory.
pub(crate) type Tree = BTreeMap<String, Option<Vec<u8>>>;

/// A clock that goes on when it is told to.
#[derive(Debug)]
pub(crate) struct HandClock {
    steps: StepClock,
    seconds: AtomicU64,
}

impl HandClock {
    pub(crate) fn advance(&self, seconds: u64) {
        self.seconds.fetch_add(seconds, Ordering::Relaxed);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        self.steps.now()
    }

    fn instant(&self) -> Instant {
        self.steps.instant() + Duration::from_secs(self.seconds.load(Ordering::Relaxed))
    }
}

pub(crate) struct Site {
    pub(crate) rig: Rig,
    pub(crate) clock: Arc<HandClock>,
    folder: tempfile::TempDir,
    pub(crate) home: PathBuf,
    /// Seconds that are given to files at home: no two writes have the same time.
    written: AtomicU64,
    pub(crate) mode: CacheMode,
}

impl Site {
    pub(crate) fn new() -> Site {
        Site::with_refresh(0)
    }

    pub(crate) fn with_refresh(refresh_seconds: u64) -> Site {
        Site::with(CacheMode::ReadOnly, refresh_seconds)
    }

    pub(crate) fn with(mode: CacheMode, refresh_seconds: u64) -> Site {
        Site::on(Rig::in_memory(), mode, refresh_seconds)
    }

    pub(crate) fn on(rig: Rig, mode: CacheMode, refresh_seconds: u64) -> Site {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("home");
        std::fs::create_dir(&home).unwrap();
        let steps = StepClock::new(1_000_000);
        let clock = Arc::new(HandClock { steps, seconds: AtomicU64::new(0) });
        let site = Site { rig, clock, folder, home, written: AtomicU64::new(1), mode };
        let fs = site.open();
        let new = NewFileset {
            name: CACHE.to_owned(),
            durability: Durability::Strict,
            placement: Placement::Direct,
            disk: None,
            pool: None,
            mode: 0o755,
        };
        let home = site.home.to_str().unwrap();
        let settings = CacheSettings {
            home: home.to_owned(),
            mode,
            refresh_seconds,
            timeout_seconds: 10,
            identity: HomeIdentity::of(home).unwrap(),
            write_back: (mode == CacheMode::SingleWriter)
                .then_some(WriteBackSettings { delay_seconds: 0, changes_max: 1000 }),
        };
        fs.add_cache(&new, &settings).unwrap();
        site.close(fs);
        site
    }

    pub(crate) fn open(&self) -> User {
        self.try_open(&FailPoints::none()).unwrap()
    }

    pub(crate) fn try_open(&self, points: &FailPoints) -> Result<User> {
        let store = self.rig.store.reopen_with_fail_points(points.clone());
        let TestDisk::Memory(disk) = &self.rig.disk else { panic!("it is in memory") };
        let disk: Arc<dyn Disk> = Arc::new(disk.reopen_with_fail_points(points.clone()));
        let parts = self.rig.parts_with(Arc::new(store), disk, points.clone());
        self.rig.try_open_parts(Parts { clock: Arc::clone(&self.clock) as _, ..parts })
    }

    pub(crate) fn close(&self, fs: User) {
        self.rig.close(fs);
    }

    pub(crate) fn status(&self, fs: &User) -> CacheStatus {
        let all = fs.fileset_status();
        all.into_iter().find(|it| it.name == CACHE).unwrap().cache.unwrap()
    }

    /// What waits to be written back.
    pub(crate) fn waiting(&self, fs: &User) -> WriteBackStatus {
        self.status(fs).write_back.unwrap()
    }

    // --- the home ---

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.home.join(path)
    }

    /// Writes a file at home, in place, and makes the directories above it.
    pub(crate) fn write(&self, path: &str, bytes: &[u8]) {
        let path = self.at(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        let seconds = self.written.fetch_add(1, Ordering::Relaxed);
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds);
        std::fs::File::options().append(true).open(&path).unwrap().set_modified(time).unwrap();
    }

    pub(crate) fn take_away(&self) {
        std::fs::rename(&self.home, self.folder.path().join("away")).unwrap();
    }

    pub(crate) fn bring_back(&self) {
        std::fs::rename(self.folder.path().join("away"), &self.home).unwrap();
    }

    /// All that lies at home.
    pub(crate) fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        gather(&self.home, "", &mut tree);
        tree
    }

    // --- what the kernel does ---

    pub(crate) fn lookup(&self, fs: &User, parent: Ino, name: &str) -> Result<Attributes> {
        let need = HomeNeed::Name(name.as_bytes());
        if fs.home_is_due(parent, need) {
            fs.ask_home(parent, need, None)?;
        }
        let found = fs.lookup(parent, name.as_bytes())?;
        fs.forget(found.ino, 1);
        Ok(found)
    }

    pub(crate) fn names(&self, fs: &User, directory: Ino) -> Result<Vec<String>> {
        if fs.home_is_due(directory, HomeNeed::Names) {
            fs.ask_home(directory, HomeNeed::Names, None)?;
        }
        Ok(fs.names(directory))
    }

    /// What the front end does where bytes are elsewhere.
    pub(crate) fn recalled<T>(&self, fs: &User, ino: Ino, operation: impl Fn() -> Result<T>) -> T {
        self.try_recalled(fs, ino, operation).unwrap()
    }

    /// As [`Site::recalled`], where the home may be away.
    pub(crate) fn try_recalled<T>(
        &self,
        fs: &User,
        ino: Ino,
        operation: impl Fn() -> Result<T>,
    ) -> Result<T> {
        loop {
            match operation() {
                Err(FsError::Archived) => fs.recall(ino, None)?,
                done => return done,
            }
        }
    }

    /// All that a cache shows.
    pub(crate) fn read_all(&self, fs: &User, top: Ino) -> Tree {
        let mut tree = Tree::new();
        self.read_below(fs, top, "", &mut tree);
        tree
    }

    fn read_below(&self, fs: &User, directory: Ino, above: &str, tree: &mut Tree) {
        for name in self.names(fs, directory).unwrap() {
            let found = self.lookup(fs, directory, &name).unwrap();
            let path = format!("{above}{name}");
            match found.kind {
                Kind::Directory => {
                    self.read_below(fs, found.ino, &format!("{path}/"), tree);
                    tree.insert(path, None);
                }
                Kind::Symlink => {
                    tree.insert(path, Some(fs.read_link(found.ino).unwrap()));
                }
                _ => {
                    let bytes = fs.contents(found.ino);
                    assert_eq!(bytes.len() as u64, fs.attributes(found.ino).unwrap().size);
                    tree.insert(path, Some(bytes));
                }
            }
        }
    }
}

fn gather(directory: &Path, above: &str, tree: &mut Tree) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{above}{}", entry.file_name().to_str().unwrap());
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            gather(&entry.path(), &format!("{path}/"), tree);
            tree.insert(path, None);
        } else if kind.is_symlink() {
            let target = std::fs::read_link(entry.path()).unwrap();
            tree.insert(path, Some(target.into_os_string().into_encoded_bytes()));
        } else {
            tree.insert(path, Some(std::fs::read(entry.path()).unwrap()));
        }
    }
}

/// Lists, fetches, commits and evicts until the power goes at `points`, and then finds everything as it is at home, and no
/// object that belongs to nothing. Whether it went.
pub(crate) fn cut_at(points: &FailPoints, machine: Option<u64>) -> bool {
    let site = Site::new();
    for number in 0..3 {
        site.write(&format!("d/file-{number}"), &crate::bytes_of(number));
    }
    let worked = site.try_open(points).map(|fs| {
        let done = work(&site, &fs);
        drop(fs);
        done
    });
    let is_cut = points.is_cut();
    assert!(is_cut || matches!(worked, Ok(Ok(()))), "{worked:?}");
    let TestDisk::Memory(disk) = &site.rig.disk else { panic!("it is in memory") };
    machine.map_or_else(|| disk.crash_process(), |seed| disk.crash_machine(seed));
    let fs = site.open();
    fs.sweep().unwrap();
    let top = fs.fileset(CACHE);
    assert_eq!(site.read_all(&fs, top), site.tree());
    site.close(fs);
    // Each file has its object, and there is no other.
    assert_eq!(site.rig.objects().len(), 3);
    is_cut
}

fn work(site: &Site, fs: &User) -> Result<()> {
    let top = site.lookup(fs, Ino::ROOT, CACHE)?.ino;
    for round in 0..2 {
        site.names(fs, top)?;
        let below = site.lookup(fs, top, "d")?.ino;
        for number in 0..3 {
            let ino = site.lookup(fs, below, &format!("file-{number}"))?.ino;
            let opened = fs.open_as(ino, crate::READ, crate::ROOT)?;
            assert_eq!(opened.contents(), crate::bytes_of(number), "round {round}");
            opened.close();
            fs.commit()?;
        }
        fs.evict_cache(CACHE, 0)?;
    }
    Ok(())
}
