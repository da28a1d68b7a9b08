//! What the tests of the core share: a file system without a kernel, over a store and a disk that
//! outlive it, so that it can be closed, crashed and opened again.

#![allow(dead_code, unused_imports, missing_docs, reason = "each test file uses a part of it")]

use std::ops::ControlFlow;
use std::sync::Arc;

use forebay_base::time::StepClock;
use forebay_base::{DiskId, FailPoints, FilesetId, Ino, NodeId, ObjectId};
use forebay_disk::Disk;
use forebay_disk::archive::ArchiveDisk;
use forebay_disk::archive::memory::MemoryBucket;
use forebay_disk::directory::{DirectoryDisk, Label};
use forebay_disk::memory::MemoryDisk;
use forebay_disk::striped::{Part, StripedDisk};
use forebay_fs::fsck;
use forebay_fs::key;
use forebay_fs::mkfs::{self, Identity};
use forebay_fs::policy::Accounts;
use forebay_fs::record::{DEFAULT_POOL, DiskRecord, InodeRecord, Kind, decode};
use forebay_fs::reserve::Reserve;
use forebay_fs::{Caller, DirectoryItem, Namespace, New, NewDisk, Parts, Settings};
use forebay_store::memory::{MemoryStore, MemoryStores};
use forebay_store::{Store, Stores};
use parking_lot::Mutex;

pub mod check;
pub mod files;
pub mod held;
pub mod kernel;
pub mod nodes;
pub mod snapshots;
pub mod tapped;
pub mod watched;
pub mod whole;

pub use self::whole::WholeStores;
pub use kernel::{Handle, Kernel, READ, READ_WRITE, TRUNCATE, User, WRITE};
pub use nodes::{Nodes, SteppedTimes, Weather, new_stores};

/// Accounts for rules of policies: nobody has a name.
pub struct Nobody;

impl Accounts for Nobody {
    fn user(&self, _: &str) -> Option<u32> {
        None
    }

    fn group(&self, _: &str) -> Option<u32> {
        None
    }
}

/// The superuser.
pub const ROOT: Caller = Caller { uid: 0, gid: 0 };
/// `count` seeds of a random test, from a fresh one on; `FOREBAY_SEED` picks the first. `test` is the file and
/// the name of the test.
pub fn seeds(count: u64, test: &str) -> std::ops::Range<u64> {
    forebay_base::seed::several(count, &format!("cargo test -p forebay-fs --test {test}"))
}

/// Anybody else.
pub const USER: Caller = Caller { uid: 1000, gid: 1000 };

/// Where there are several nodes: the one that owns everything at first, the one that is used, and the one that takes
/// over.
pub const OWNER: NodeId = NodeId(1);
pub const USED: NodeId = NodeId(2);
pub const TAKER: NodeId = NodeId(3);

const DISK: &str = "disk-one";
const ARCHIVE: &str = "archive-one";
const COPIES: &str = "disk-two";
const FILE_SYSTEM: &str = "file-system-one";
const CAPACITY_BYTES: u64 = 1 << 40;

fn archive_label() -> Label {
    Label { file_system: FILE_SYSTEM.to_owned(), disk: ARCHIVE.to_owned() }
}

/// A disk that outlives the file system.
pub enum TestDisk {
    Memory(MemoryDisk),
    Directory(Arc<DirectoryDisk>, tempfile::TempDir),
    /// One over these, with small units.
    Striped(Vec<MemoryDisk>),
}

/// Bytes of a unit of striped disks: files of tests are small.
const UNIT_BYTES: u64 = 512;

/// A disk over these in memory, with its power on the switch of `points`.
pub fn striped_over(below: &[MemoryDisk], points: &FailPoints) -> Arc<dyn Disk> {
    let part = |disk: &MemoryDisk| Part {
        name: "below".to_owned(),
        disk: Arc::new(disk.reopen_with_fail_points(points.clone())),
    };
    Arc::new(StripedDisk::over(below.iter().map(part).collect(), UNIT_BYTES).unwrap())
}

impl TestDisk {
    pub fn as_disk(&self) -> Arc<dyn Disk> {
        match self {
            TestDisk::Memory(disk) => Arc::new(disk.clone()),
            TestDisk::Directory(disk, _) => Arc::clone(disk) as Arc<dyn Disk>,
            TestDisk::Striped(below) => striped_over(below, &FailPoints::none()),
        }
    }
}

/// All that a file system stands on.
pub struct Rig {
    pub store: MemoryStore,
    /// Where the stores are instead, as the store of one fileset.
    elsewhere: Option<Arc<dyn Stores>>,
    pub disk: TestDisk,
    pub clock: Arc<StepClock>,
    settings: Mutex<Settings>,
    pub kernel: Arc<Kernel>,
    used: Used,
    /// The store of its archive, if it has one.
    pub archive: Option<MemoryBucket>,
    /// A second disk, on which the files of the first have copies, and those of the first on it.
    pub copies: Option<MemoryDisk>,
    /// A third node is there to take filesets over.
    has_taker: bool,
}

/// From where a file system is used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Used {
    /// On the node that owns it.
    AtOwner,
    /// From another node. The owner has the disk.
    Elsewhere,
    /// From another node, which has the disk: the owner reaches it by way of that node.
    OnItsDisk,
}

impl Rig {
    /// An empty file system that is used from another node.
    pub fn of_another_node() -> Rig {
        Rig { used: Used::Elsewhere, ..Rig::in_memory() }
    }

    /// As `self`, used from another node, on whose disk the bytes are.
    pub fn on_its_disk(self) -> Rig {
        Rig { used: Used::OnItsDisk, ..self }
    }

    /// As `self`, with an archive.
    pub fn with_archive(self) -> Rig {
        let bucket = MemoryBucket::default();
        ArchiveDisk::format(&bucket, &archive_label(), "bucket").unwrap();
        let fs = self.open();
        let rig = Rig { archive: Some(bucket), ..self };
        let new = NewDisk {
            uuid: ARCHIVE.to_owned(),
            location: "bucket".to_owned(),
            pool: "archive".to_owned(),
            group: String::new(),
        };
        fs.add_disk(&new, rig.archive_disk(&FailPoints::none()).unwrap()).unwrap();
        fs.close().unwrap();
        rig
    }

    /// As `self`, with a second disk and two copies of each file.
    pub fn with_copies(self) -> Rig {
        let rig = self.with_second_disk(CAPACITY_BYTES);
        let fs = rig.open();
        for fileset in ["/", "data", "work", "util"] {
            fs.set_fileset_copies(fileset, 2).unwrap();
        }
        fs.close().unwrap();
        rig
    }

    /// With a second disk, of `capacity_bytes`, in the same pool.
    pub fn with_second_disk(self, capacity_bytes: u64) -> Rig {
        let fs = self.open();
        let second = MemoryDisk::new(capacity_bytes, Arc::clone(&self.clock) as _);
        let new = NewDisk {
            uuid: COPIES.to_owned(),
            location: "beside".to_owned(),
            pool: DEFAULT_POOL.to_owned(),
            group: String::new(),
        };
        fs.add_disk(&new, Arc::new(second.clone())).unwrap();
        fs.close().unwrap();
        Rig { copies: Some(second), ..self }
    }

    /// The second disk, if there is one.
    pub fn second_disk(&self, points: &FailPoints) -> Option<Arc<dyn Disk>> {
        let disk = self.copies.as_ref()?.reopen_with_fail_points(points.clone());
        Some(Arc::new(disk))
    }

    pub fn has_archive(&self) -> bool {
        self.archive.is_some()
    }

    fn archive_disk(&self, points: &FailPoints) -> Option<Arc<dyn Disk>> {
        let bucket = Box::new(self.archive.as_ref()?.with_fail_points(points.clone()));
        Some(Arc::new(ArchiveDisk::open(bucket, archive_label(), "bucket")))
    }

    /// As [`Rig::of_another_node`], with a third node that can take filesets over.
    pub fn of_three_nodes() -> Rig {
        Rig { has_taker: true, ..Rig::of_another_node() }
    }

    /// An empty file system on a disk in memory: every byte goes the served way.
    pub fn in_memory() -> Rig {
        let clock = Arc::new(StepClock::new(1_000_000));
        let disk = MemoryDisk::new(CAPACITY_BYTES, Arc::clone(&clock) as _);
        Rig::on(TestDisk::Memory(disk), clock, [7; 16])
    }

    /// An empty file system on a disk over three others in memory.
    pub fn striped() -> Rig {
        let clock = Arc::new(StepClock::new(1_000_000));
        let below = || MemoryDisk::new(CAPACITY_BYTES, Arc::clone(&clock) as _);
        let below = vec![below(), below(), below()];
        Rig::on(TestDisk::Striped(below), clock, [7; 16])
    }

    /// An empty file system on a disk in a directory: its files can go the direct way.
    pub fn in_directory() -> Rig {
        let clock = Arc::new(StepClock::new(1_000_000));
        let directory = tempfile::tempdir().unwrap();
        let label = Label { file_system: FILE_SYSTEM.to_owned(), disk: DISK.to_owned() };
        DirectoryDisk::format(directory.path(), &label).unwrap();
        let disk = DirectoryDisk::open(directory.path(), &label).unwrap();
        Rig::on(TestDisk::Directory(Arc::new(disk), directory), clock, [7; 16])
    }

    /// An empty file system in memory whose names are hashed with `hash_key`.
    pub fn with_hash_key(hash_key: [u8; 16]) -> Rig {
        let clock = Arc::new(StepClock::new(1_000_000));
        let disk = MemoryDisk::new(CAPACITY_BYTES, Arc::clone(&clock) as _);
        Rig::on(TestDisk::Memory(disk), clock, hash_key)
    }

    /// An empty file system on a disk of `capacity_bytes` in memory.
    pub fn of_capacity(capacity_bytes: u64) -> Rig {
        let clock = Arc::new(StepClock::new(1_000_000));
        let disk = MemoryDisk::new(capacity_bytes, Arc::clone(&clock) as _);
        Rig::on(TestDisk::Memory(disk), clock, [7; 16])
    }

    /// An empty file system whose stores are in `stores`, on a disk in memory.
    pub fn with_stores(stores: Arc<dyn Stores>) -> Rig {
        let clock = Arc::new(StepClock::new(1_000_000));
        let disk = MemoryDisk::new(CAPACITY_BYTES, Arc::clone(&clock) as _);
        let whole = stores.create(FilesetId::ROOT).unwrap();
        Rig { elsewhere: Some(stores), ..Rig::over(whole, TestDisk::Memory(disk), clock, [7; 16]) }
    }

    fn on(disk: TestDisk, clock: Arc<StepClock>, hash_key: [u8; 16]) -> Rig {
        let store = MemoryStore::new();
        Rig { store: store.clone(), ..Rig::over(Arc::new(store), disk, clock, hash_key) }
    }

    fn over(
        whole: Arc<dyn Store>,
        disk: TestDisk,
        clock: Arc<StepClock>,
        hash_key: [u8; 16],
    ) -> Rig {
        let location = "here".to_owned();
        let disks = vec![DiskRecord::new(DiskId(0), DISK, &location)];
        let identity = Identity {
            uuid: FILE_SYSTEM.to_owned(),
            hash_key,
            disks,
            owner: (0, 0),
            scratch: forebay_fs::record::Placement::Direct,
        };
        mkfs::make(&WholeStores(whole), &identity, &*clock).unwrap();
        let (store, elsewhere) = (MemoryStore::new(), None);
        let (settings, kernel) = (Mutex::default(), Arc::default());
        let (used, has_taker) = (Used::AtOwner, false);
        let (archive, copies) = (None, None);
        Rig { store, elsewhere, disk, clock, settings, kernel, used, archive, copies, has_taker }
    }

    /// Changes the settings of the next opening.
    pub fn settings_mut(&self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.settings.lock());
    }

    pub fn parts(&self) -> Parts {
        let whole: Arc<dyn Store> = match &self.elsewhere {
            Some(stores) => stores.open(FilesetId::ROOT).unwrap(),
            None => Arc::new(self.store.clone()),
        };
        self.parts_with(whole, self.disk.as_disk(), FailPoints::none())
    }

    pub fn parts_with(
        &self,
        store: Arc<dyn Store>,
        disk: Arc<dyn Disk>,
        fail_points: FailPoints,
    ) -> Parts {
        Parts {
            stores: Arc::new(WholeStores(store)),
            disks: [(DISK.to_owned(), disk)]
                .into_iter()
                .chain(self.archive_disk(&fail_points).map(|disk| (ARCHIVE.to_owned(), disk)))
                .chain(self.second_disk(&fail_points).map(|disk| (COPIES.to_owned(), disk)))
                .collect(),
            settings: self.settings.lock().clone(),
            clock: Arc::clone(&self.clock) as _,
            fail_points,
            reserve: Reserve::none(),
        }
    }

    pub fn open(&self) -> User {
        self.open_parts(self.parts())
    }

    pub fn open_parts(&self, parts: Parts) -> User {
        self.try_open_parts(parts).unwrap()
    }

    pub fn try_open_parts(&self, parts: Parts) -> forebay_fs::Result<User> {
        let kernel = Arc::clone(&self.kernel);
        if self.used != Used::AtOwner {
            let nodes = Nodes::with_owner(OWNER);
            let mut parts = parts;
            let mut disks = Vec::new();
            if self.used == Used::OnItsDisk {
                nodes.keep_disks_apart();
                disks = std::mem::take(&mut parts.disks);
                disks.iter().for_each(|(uuid, disk)| nodes.bring(USED, uuid, disk));
            }
            let with = |stores: Arc<dyn Stores>, disks| Parts {
                stores,
                disks,
                settings: parts.settings.clone(),
                clock: Arc::clone(&parts.clock),
                fail_points: FailPoints::none(),
                reserve: Reserve::none(),
            };
            let used = with(Arc::new(MemoryStores::default()), disks);
            let taking = self.has_taker.then(|| with(Arc::clone(&parts.stores), Vec::new()));
            let owner = nodes.try_join(OWNER, parts)?;
            owner.objects().set_direct_access(Arc::clone(&self.kernel) as _);
            let fs = nodes.try_join(USED, used)?;
            fs.objects().set_direct_access(Arc::clone(&self.kernel) as _);
            let taker = taking.map(|parts| nodes.try_join(TAKER, parts)).transpose()?;
            return Ok(User { fs, kernel, owner: Some(owner), taker, nodes: Some(nodes) });
        }
        let fs = Namespace::open(parts)?;
        fs.objects().set_direct_access(Arc::clone(&self.kernel) as _);
        Ok(User { fs, kernel, owner: None, taker: None, nodes: None })
    }

    /// Opens with the store, and the disk if it is one in memory, on the power switch of `points`.
    pub fn open_armed(&self, points: &FailPoints) -> forebay_fs::Result<User> {
        let store = self.store.reopen_with_fail_points(points.clone());
        let disk: Arc<dyn Disk> = match &self.disk {
            TestDisk::Memory(disk) => Arc::new(disk.reopen_with_fail_points(points.clone())),
            TestDisk::Directory(..) => self.disk.as_disk(),
            TestDisk::Striped(below) => striped_over(below, points),
        };
        self.try_open_parts(self.parts_with(Arc::new(store), disk, points.clone()))
    }

    /// Opens with the store wrapped in one that remembers every commit.
    pub fn open_watched(&self) -> (User, Arc<watched::WatchedStore>) {
        let store = Arc::new(watched::WatchedStore::new(self.store.clone()));
        let parts =
            self.parts_with(Arc::clone(&store) as _, self.disk.as_disk(), FailPoints::none());
        (self.open_parts(parts), store)
    }

    /// Ends the process in an orderly way: the store must then be clean.
    pub fn close(&self, user: User) {
        user.close().unwrap();
        drop(user);
        self.assert_clean();
    }

    /// Ends the process without a word.
    pub fn crash_process(&self, user: User) {
        drop(user);
        self.copies.iter().for_each(MemoryDisk::crash_process);
        match &self.disk {
            TestDisk::Memory(disk) => disk.crash_process(),
            TestDisk::Striped(below) => below.iter().for_each(MemoryDisk::crash_process),
            TestDisk::Directory(..) => {}
        }
    }

    /// Cuts the power of the machine.
    pub fn crash_machine(&self, user: User, seed: u64) {
        drop(user);
        self.copies.iter().for_each(|disk| disk.crash_machine(seed + 9));
        match &self.disk {
            TestDisk::Memory(disk) => disk.crash_machine(seed),
            TestDisk::Striped(below) => {
                (seed..).zip(below).for_each(|(seed, disk)| disk.crash_machine(seed));
            }
            TestDisk::Directory(..) => panic!("the machine of a directory disk is this one"),
        }
    }

    /// All stores; to be read only, where they are elsewhere.
    pub fn stores(&self) -> WholeStores {
        WholeStores(match &self.elsewhere {
            Some(stores) => stores.look(FilesetId::ROOT).unwrap(),
            None => Arc::new(self.store.clone()),
        })
    }

    /// The store of a fileset.
    pub fn store_of(&self, fileset: FilesetId) -> whole::PartOfStore {
        self.stores().of(fileset)
    }

    /// What fsck finds in all filesets.
    pub fn fsck(&self, repair: fsck::Repair, records_lost: bool) -> fsck::Report {
        // Not `parts()`, which would open the stores to write.
        let mut disks = vec![(DISK.to_owned(), self.disk.as_disk())];
        disks.extend(self.archive_disk(&FailPoints::none()).map(|disk| (ARCHIVE.to_owned(), disk)));
        disks.extend(self.second_disk(&FailPoints::none()).map(|disk| (COPIES.to_owned(), disk)));
        fsck_with(&self.stores(), &disks, (repair, records_lost), fsck::Archives::Checked)
    }

    /// The record of an inode as it was last committed.
    pub fn record(&self, ino: Ino) -> Option<InodeRecord> {
        let bytes = self.store_of(ino.fileset()).get(&key::inode(ino)).unwrap()?;
        Some(decode("inode", &bytes).unwrap())
    }

    /// The object of a file as it was last committed.
    pub fn object_of(&self, ino: Ino) -> Option<ObjectId> {
        self.record(ino)?.layout.object().map(|at| at.id)
    }

    /// The published objects, in order.
    pub fn objects(&self) -> Vec<ObjectId> {
        let mut ids = Vec::new();
        let mut visit = |id| {
            ids.push(id);
            true
        };
        self.disk.as_disk().list(&mut visit).unwrap();
        ids.sort_unstable();
        ids
    }

    /// Ends the process without a word while a file is open.
    pub fn crash_process_under(&self, user: User, handle: Handle) {
        drop(handle);
        self.crash_process(user);
    }

    /// Cuts the power of the machine while a file is open.
    pub fn crash_machine_under(&self, user: User, seed: u64, handle: Handle) {
        drop(handle);
        self.crash_machine(user, seed);
    }

    /// Checks the store and the disk of a file system that is closed, or was just swept.
    pub fn assert_clean(&self) {
        let others =
            [self.archive_disk(&FailPoints::none()), self.second_disk(&FailPoints::none())];
        let near = self.disk.as_disk();
        let disks: Vec<&dyn Disk> =
            [&near].into_iter().chain(others.iter().flatten()).map(|disk| &**disk).collect();
        let problems = check::problems(&self.stores(), &disks);
        assert!(problems.is_empty(), "not clean:\n{}", problems.join("\n"));
        let report = self.fsck(fsck::Repair::Never, false);
        assert_eq!(report.outcome(), fsck::Outcome::Clean, "fsck found {:#?}", report.findings);
    }
}

/// What fsck finds in all filesets.
pub fn fsck_of(
    stores: &WholeStores,
    disks: &[fsck::NamedDisk],
    repair: fsck::Repair,
    records_lost: bool,
) -> fsck::Report {
    fsck_with(stores, disks, (repair, records_lost), fsck::Archives::Trusted)
}

/// As [`fsck_of`]; `archives` says whether archives are asked.
pub fn fsck_with(
    stores: &WholeStores,
    disks: &[fsck::NamedDisk],
    (repair, records_lost): (fsck::Repair, bool),
    archives: fsck::Archives,
) -> fsck::Report {
    let mut options = fsck::Options {
        repair,
        records_lost,
        archives,
        fileset: None,
        disks: None,
        stores: Some(stores),
        filesets: None,
        progress: &mut |_| {},
    };
    let mut check = |id, how: &mut fsck::Options<'_>| fsck::check(&stores.of(id), disks, how);
    let checked = fsck::whole::check_all::<forebay_fs::FsError>(stores, &mut options, &mut check);
    fsck::whole::merged(&checked.unwrap())
}

/// Runs a test on both ways: direct (a disk in a directory) and served (a disk in memory), and from another node.
pub fn on_both_ways(test: impl Fn(&Rig)) {
    on_disks_of_the_owner(&test);
    for (way, rig) in [("served", Rig::in_memory()), ("direct", Rig::in_directory())] {
        println!("from another node, on a disk of its own, the {way} way");
        test(&rig.on_its_disk());
    }
}

/// As [`on_both_ways`], but not on a disk of the node that does not own the files: there new objects have their names at
/// once, and commits do not ask for the size of files that are being written.
pub fn on_disks_of_the_owner(test: impl Fn(&Rig)) {
    at_the_owner(&test);
    println!("from another node");
    test(&Rig::of_another_node());
}

/// Runs a test on both ways, where the owner is.
pub fn at_the_owner(test: impl Fn(&Rig)) {
    for (way, rig) in [("served", Rig::in_memory()), ("direct", Rig::in_directory())] {
        println!("the {way} way");
        test(&rig);
    }
}

/// A regular file that is to be made.
pub fn file(mode: u16) -> New<'static> {
    New { kind: Kind::File, mode, umask: 0o022, rdev: 0, target: b"" }
}

/// A directory that is to be made.
pub fn directory(mode: u16) -> New<'static> {
    New { kind: Kind::Directory, ..file(mode) }
}

/// Shorthands for operations after which the kernel keeps nothing.
pub trait Shorthand {
    fn make_file(&self, parent: Ino, name: &str) -> Ino;
    fn make_directory(&self, parent: Ino, name: &str) -> Ino;
    fn find(&self, parent: Ino, name: &str) -> Option<Ino>;
    fn items(&self, ino: Ino) -> Vec<DirectoryItem>;
    fn names(&self, ino: Ino) -> Vec<String>;
    fn fileset(&self, name: &str) -> Ino {
        self.find(Ino::ROOT, name).expect("the fileset is there")
    }
}

impl Shorthand for Namespace {
    fn make_file(&self, parent: Ino, name: &str) -> Ino {
        let ino = self.create(parent, name.as_bytes(), file(0o644), ROOT).unwrap().ino;
        self.forget(ino, 1);
        ino
    }

    fn make_directory(&self, parent: Ino, name: &str) -> Ino {
        let ino = self.create(parent, name.as_bytes(), directory(0o755), ROOT).unwrap().ino;
        self.forget(ino, 1);
        ino
    }

    fn find(&self, parent: Ino, name: &str) -> Option<Ino> {
        match self.lookup(parent, name.as_bytes()) {
            Ok(found) => {
                self.forget(found.ino, 1);
                Some(found.ino)
            }
            Err(forebay_fs::FsError::NotFound) => None,
            Err(error) => panic!("lookup of {name}: {error}"),
        }
    }

    fn items(&self, ino: Ino) -> Vec<DirectoryItem> {
        let mut items = Vec::new();
        self.read_directory(ino, 0, &mut |item| {
            items.push(item.clone());
            ControlFlow::Continue(())
        })
        .unwrap();
        items
    }

    /// Names of the entries, without `.` and `..`, sorted.
    fn names(&self, ino: Ino) -> Vec<String> {
        let mut names: Vec<String> = self
            .items(ino)
            .into_iter()
            .map(|item| String::from_utf8(item.name).unwrap())
            .filter(|name| name != "." && name != "..")
            .collect();
        names.sort();
        names
    }
}
