//! Disks that all nodes reach themselves: what one writes the others read there, whoever dies, and a node that was fenced
//! changes nothing of what others write.

mod support;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_base::{ClientId, FailPoints, FilesetId, Ino, NodeId, ObjectId};
use forebay_disk::absent::AbsentDisk;
use forebay_disk::directory::{DirectoryDisk, Label};
use forebay_disk::memory::MemoryDisk;
use forebay_disk::{Allocate, Capacity, Description, Disk, Object, ObjectAttributes, Seek, Sync};
use forebay_fs::record::DiskRecord;
use forebay_fs::reserve::Reserve;
use forebay_fs::{FsError, HandOver, Namespace, NewDisk, Parts, SetAttributes, Settings};
use forebay_store::memory::MemoryStores;
use support::{
    Handle, Kernel, Nodes, READ, READ_WRITE, Shorthand as _, SteppedTimes, User, WRITE, new_stores,
};

const ONE: NodeId = NodeId(1);
const TWO: NodeId = NodeId(2);
const THREE: NodeId = NodeId(3);
const DATA: FilesetId = FilesetId(1);
const SITE: &str = "whole";
const BOTH: &str = "both";

/// Three nodes; the first owns everything and has the only disk of its own. The files of `data` lie on a disk that all reach.
struct Site {
    stores: Arc<MemoryStores>,
    clock: Arc<SteppedTimes>,
    nodes: Arc<Nodes>,
    own: MemoryDisk,
    folder: tempfile::TempDir,
}

fn label() -> Label {
    Label { file_system: SITE.to_owned(), disk: BOTH.to_owned() }
}

fn client(node: NodeId) -> ClientId {
    ClientId { node, incarnation: 1 }
}

fn size(fs: &Namespace, ino: Ino) -> u64 {
    fs.attributes(ino).unwrap().size
}

impl Site {
    fn new() -> Site {
        let clock = Arc::new(SteppedTimes::new(1_000_000));
        let stores = new_stores(SITE, "there", &*clock);
        let nodes = Nodes::with_owner(ONE);
        nodes.keep_disks_apart();
        let own = MemoryDisk::new(1 << 40, Arc::clone(&clock) as _);
        let folder = tempfile::tempdir().unwrap();
        DirectoryDisk::format(folder.path(), &label()).unwrap();
        Site { stores, clock, nodes, own, folder }
    }

    fn join(&self, node: NodeId) -> User {
        self.join_with(node, FailPoints::none())
    }

    fn join_with(&self, node: NodeId, fail_points: FailPoints) -> User {
        let disk = (node == ONE).then(|| ("disk-1".to_owned(), Arc::new(self.own.clone()) as _));
        let parts = Parts {
            stores: Arc::clone(&self.stores) as _,
            disks: disk.into_iter().collect(),
            settings: Settings {
                owner_wait: Duration::from_secs(20),
                away_timeout: Duration::ZERO,
                ..Settings::default()
            },
            clock: Arc::clone(&self.clock) as _,
            fail_points,
            reserve: Reserve::none(),
        };
        let fs = self.nodes.join(node, parts);
        let kernel = Arc::<Kernel>::default();
        fs.objects().set_direct_access(Arc::clone(&kernel) as _);
        User { fs, kernel, owner: None, taker: None, nodes: None }
    }

    fn new_disk(&self) -> NewDisk {
        NewDisk {
            uuid: BOTH.to_owned(),
            location: DiskRecord::shared_location(self.folder.path().to_str().unwrap()),
            pool: "shared".to_owned(),
            group: String::new(),
        }
    }

    fn add(&self, by: &User) -> forebay_fs::Result<()> {
        let disk = DirectoryDisk::open_shared(self.folder.path(), &label(), "adds").unwrap();
        by.fs.add_disk(&self.new_disk(), Arc::new(disk))
    }

    /// All nodes, with the disk that they share.
    fn three(&self) -> (User, User, User) {
        self.three_with(FailPoints::none())
    }

    /// As [`Site::three`]; the power of the third node is cut at a fail point.
    fn three_with(&self, fail_points: FailPoints) -> (User, User, User) {
        let (one, two) = (self.join(ONE), self.join(TWO));
        self.add(&two).unwrap();
        one.fs.set_fileset_pool("data", "shared").unwrap();
        // This one comes later.
        (one, two, self.join_with(THREE, fail_points))
    }

    fn give(&self, all: &[&User], to: NodeId, epoch: u64) {
        self.nodes.give(DATA, to, epoch);
        all.iter().for_each(|node| node.fs.owner_changed(DATA).unwrap());
    }

    /// A node does not answer any more, and everybody else drops it. Its programs go on.
    fn lose(&self, node: NodeId) {
        self.nodes.kill(node);
        self.nodes.drop_client(client(node));
    }

    fn sent(&self) -> u64 {
        self.nodes.payload.load(Ordering::Relaxed)
    }

    fn objects(&self) -> usize {
        let disk = DirectoryDisk::open_shared(self.folder.path(), &label(), "counts").unwrap();
        let mut count = 0;
        let mut visit = |_| {
            count += 1;
            true
        };
        disk.list(&mut visit).unwrap();
        count
    }
}

/// Makes a file, open for reading and writing.
fn make(user: &User, name: &str) -> Handle {
    let data = user.fs.fileset("data");
    let ino = user.fs.make_file(data, name);
    user.open(ino, READ_WRITE)
}

#[test]
fn every_node_reads_and_writes_files_of_a_shared_disk_itself() {
    let site = Site::new();
    let (one, two, three) = site.three();
    let all = [&one, &two, &three];
    let calls = || site.nodes.disk_calls.load(Ordering::Relaxed);
    let before = calls();
    for (number, writer) in all.into_iter().enumerate() {
        let handle = make(writer, &format!("file-{number}"));
        assert!(handle.is_direct(), "node {number} writes past the daemon");
        assert_eq!(handle.is_at_home(), number > 0);
        let block: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
        (0..8).for_each(|turn| handle.write(turn << 20, &block));
        let ino = handle.ino;
        for reader in all {
            let other = reader.open(ino, READ);
            assert!(other.is_direct());
            assert_eq!(other.read(5 << 20, 1 << 20), block);
            assert_eq!(size(&reader.fs, ino), 8 << 20);
            other.close();
        }
        writer.fs.sync_file(ino, Sync::All).unwrap();
        handle.close();
    }
    let made = two.create_file(two.fs.fileset("data"), "in one step", WRITE).unwrap();
    assert!(made.is_at_home() && made.is_direct());
    made.close();
    assert_eq!(site.sent(), 0, "no byte went between nodes");
    assert_eq!(calls(), before, "no node was asked for a disk");
    let status = three.fs.all_disk_status();
    let both = status.iter().find(|disk| disk.uuid == BOTH).unwrap();
    assert!(both.is_shared && both.problem.is_none() && both.node.is_none());
    assert_eq!(both.objects_in_use, 4);
}

#[test]
fn what_one_node_writes_to_a_shared_disk_the_others_read_in_the_next_instant() {
    let site = Site::new();
    let (one, two, three) = site.three();
    let all = [&one, &two, &three];
    let handles = {
        let first = make(&two, "file");
        let ino = first.ino;
        [one.open(ino, READ_WRITE), first, three.open(ino, READ_WRITE)]
    };
    let ino = handles[0].ino;
    let mut end = 0;
    for round in 0..300_u64 {
        let record = round.to_le_bytes();
        handles[(round % 3) as usize].write(end, &record);
        end += 8;
        for (user, handle) in all.into_iter().zip(&handles) {
            assert_eq!(size(&user.fs, ino), end, "round {round}");
            assert_eq!(handle.read(end - 8, 100), record);
        }
    }
    handles.into_iter().for_each(Handle::close);
    // Written, closed, opened and read: each round by others, and never old.
    for round in 0..1000_usize {
        let text = format!("{round}").repeat(1 + round % 7);
        all[round % 3].overwrite(ino, text.as_bytes());
        assert_eq!(all[(round + 1) % 3].contents(ino), text.as_bytes());
        assert_eq!(size(&all[(round + 2) % 3].fs, ino), text.len() as u64);
    }
}

#[test]
fn files_of_a_node_that_is_gone_are_there_at_once() {
    let site = Site::new();
    let (one, two, three) = site.three();
    let (synced, written) = (make(&two, "synced"), make(&two, "written"));
    synced.write(0, b"on stable storage");
    two.fs.sync_file(synced.ino, Sync::All).unwrap();
    written.write(0, b"not synced");
    site.lose(TWO);
    for user in [&one, &three] {
        assert_eq!(user.contents(synced.ino), b"on stable storage");
        assert_eq!(user.contents(written.ino), b"not synced");
    }
    assert!(two.fs.sync_file(synced.ino, Sync::All).is_err(), "it was dropped");
}

#[test]
fn files_of_an_owner_that_is_gone_are_there_for_the_next_one() {
    let site = Site::new();
    let (one, two, three) = site.three();
    site.give(&[&one, &two, &three], THREE, 5);
    let (own, far) = (make(&three, "own"), make(&two, "far"));
    own.write(0, b"by the owner");
    far.write(0, b"by another node");
    three.fs.sync_file(own.ino, Sync::All).unwrap();
    two.fs.sync_file(far.ino, Sync::All).unwrap();
    far.write(15, b", and more");
    site.lose(THREE);
    site.give(&[&one, &two], ONE, 6);
    for user in [&one, &two] {
        assert_eq!(user.contents(own.ino), b"by the owner");
        assert_eq!(user.contents(far.ino), b"by another node, and more");
    }
    one.fs.sweep_fileset(DATA).unwrap();
    assert_eq!(site.objects(), 2);
}

/// What a program does that writes to a file.
type Write = fn(&User, Ino) -> Vec<u8>;

const WRITES: [(&str, Write); 4] = [
    ("write", |user, ino| {
        user.write_file(ino, 5, b", others");
        b"first, others".to_vec()
    }),
    ("truncate", |user, ino| {
        user.overwrite(ino, b"new");
        b"new".to_vec()
    }),
    ("set size", |user, ino| {
        let size = SetAttributes { size: Some(3), ..SetAttributes::default() };
        user.fs.set_attributes(ino, size).unwrap();
        b"fir".to_vec()
    }),
    ("map", |user, ino| {
        let handle = user.open(ino, READ_WRITE);
        handle.write(0, b"F");
        handle.close();
        b"First".to_vec()
    }),
];

#[test]
fn a_dropped_node_changes_nothing_of_what_others_write() {
    for (name, write) in WRITES {
        println!("{name}");
        let site = Site::new();
        let (one, two, three) = site.three();
        let handle = make(&two, "file");
        let ino = handle.ino;
        handle.write(0, b"first");
        two.fs.sync_file(ino, Sync::All).unwrap();
        site.lose(TWO);
        // Its kernel still has the object open.
        assert!(handle.is_direct());
        let expected = write(&three, ino);
        handle.write(0, b"what must not be seen");
        for user in [&one, &three] {
            assert_eq!(user.contents(ino), expected, "{name}");
        }
        one.fs.commit().unwrap();
        // The next write finds an object of its own already.
        three.write_file(ino, 0, b"AGAIN");
        handle.write(0, b"what must not be seen");
        assert!(one.contents(ino).starts_with(b"AGAIN"));
        one.fs.commit().unwrap();
        assert_eq!(site.objects(), 1, "{name}: the former object is removed");
    }
}

#[test]
fn an_owner_that_was_replaced_changes_nothing_of_what_others_write() {
    for (name, write) in WRITES {
        println!("{name}");
        let site = Site::new();
        let (one, two, three) = site.three();
        site.give(&[&one, &two, &three], THREE, 5);
        // One of its own, and one that it served for another node; both write past their daemons.
        let handles = [make(&three, "own"), make(&two, "far")];
        for handle in &handles {
            assert!(handle.is_direct());
            handle.write(0, b"first");
        }
        three.fs.commit().unwrap();
        site.nodes.kill(THREE);
        site.lose(TWO);
        site.nodes.drop_client(client(THREE));
        site.give(&[&one], ONE, 6);
        for handle in &handles {
            // A change of the record in between does not hide the object.
            let mode = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
            one.fs.set_attributes(handle.ino, mode).unwrap();
            one.fs.commit().unwrap();
            let expected = write(&one, handle.ino);
            handle.write(0, b"what must not be seen");
            assert_eq!(one.contents(handle.ino), expected, "{name}");
        }
    }
}

#[test]
fn a_fence_outlives_the_owner_that_dropped_the_node() {
    let site = Site::new();
    let (one, two, three) = site.three();
    site.give(&[&one, &two, &three], ONE, 5);
    let (dropped, open) = (make(&two, "dropped"), make(&two, "open"));
    dropped.write(0, b"first");
    open.write(0, b"first");
    let closed = {
        let handle = make(&two, "mapped");
        handle.write(0, b"first");
        let mapping = handle.kept_by_the_kernel();
        let ino = handle.ino;
        handle.close();
        (ino, mapping)
    };
    site.lose(TWO);
    one.fs.hand_over(DATA, HandOver::Refuse).unwrap();
    site.give(&[&one, &three], THREE, 6);
    for ino in [dropped.ino, open.ino, closed.0] {
        three.write_file(ino, 0, b"FIRST");
    }
    for handle in [&dropped, &open] {
        handle.write(0, b"what must not be seen");
        assert_eq!(one.contents(handle.ino), b"FIRST");
    }
    std::io::Write::write_all(&mut &closed.1, b"what must not be seen").unwrap();
    assert_eq!(one.contents(closed.0), b"FIRST");
}

#[test]
fn a_node_that_dies_before_it_can_tell_the_next_owner_what_it_has_open_is_fenced_as_well() {
    let site = Site::new();
    let (one, two, three) = site.three();
    site.give(&[&one, &two, &three], ONE, 5);
    let handle = make(&two, "file");
    handle.write(0, b"first");
    one.fs.hand_over(DATA, HandOver::Refuse).unwrap();
    site.lose(TWO);
    site.give(&[&one, &three], THREE, 6);
    three.write_file(handle.ino, 0, b"FIRST");
    handle.write(0, b"what must not be seen");
    assert_eq!(one.contents(handle.ino), b"FIRST");
}

#[test]
fn a_file_that_others_have_open_keeps_its_object_until_they_close_it() {
    let site = Site::new();
    let (one, two, three) = site.three();
    let handle = make(&two, "file");
    let ino = handle.ino;
    handle.write(0, b"first");
    let reader = one.open(ino, READ);
    site.lose(TWO);
    three.write_file(ino, 0, b"FIRST");
    assert_eq!(reader.read(0, 9), b"FIRST", "whoever has it open sees what is written");
    reader.close();
    three.write_file(ino, 0, b"Again");
    handle.write(0, b"what must not be seen");
    assert_eq!(one.contents(ino), b"Again");
}

#[test]
fn an_owner_that_dies_while_it_replaces_an_object_loses_nothing() {
    for (point, is_synced) in [("fenced.copied", false), ("never", false), ("never", true)] {
        println!("{point}, synced {is_synced}");
        let site = Site::new();
        let (one, two, three) = site.three_with(FailPoints::cut_at(point, 0));
        site.give(&[&one, &two, &three], THREE, 5);
        let handle = make(&two, "file");
        let ino = handle.ino;
        handle.write(0, b"first");
        two.fs.sync_file(ino, Sync::All).unwrap();
        site.lose(TWO);
        let opened = three.open_as(ino, WRITE, support::ROOT);
        assert_eq!(opened.is_ok(), point == "never");
        if let Ok(writer) = opened {
            writer.write(0, b"FIRST");
            if is_synced {
                three.fs.sync_file(ino, Sync::Data).unwrap();
            }
            writer.let_go();
        }
        site.lose(THREE);
        site.give(&[&one], ONE, 6);
        let expected: &[u8] = if is_synced { b"FIRST" } else { b"first" };
        assert_eq!(one.contents(ino), expected);
        one.fs.sweep_fileset(DATA).unwrap();
        assert_eq!(site.objects(), 1, "what was copied for nothing is swept");
        one.write_file(ino, 0, b"again");
        handle.write(0, b"what must not be seen");
        assert_eq!(one.contents(ino), b"again");
    }
}

#[test]
fn a_sync_of_a_node_covers_what_its_programs_wrote_and_the_name() {
    let site = Site::new();
    let (one, two, three) = site.three();
    site.give(&[&one, &two, &three], ONE, 5);
    let handle = make(&two, "file");
    let ino = handle.ino;
    handle.write(0, b"synced");
    two.fs.sync_file(ino, Sync::Data).unwrap();
    // The owner and the writer die, and nothing was committed since.
    site.lose(TWO);
    site.lose(ONE);
    site.give(&[&three], THREE, 6);
    assert_eq!(three.fs.find(Ino::top_of(DATA), "file"), Some(ino));
    assert_eq!(three.contents(ino), b"synced");
}

fn refused(outcome: forebay_fs::Result<()>) -> String {
    match outcome {
        Err(FsError::Refused(why)) => why,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn storage_that_is_not_the_same_or_not_coherent_is_no_shared_disk() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let instead = |disk: Arc<dyn Disk>| site.nodes.instead_of_shared.lock().insert(ONE, disk);
    instead(Arc::new(AbsentDisk::new(BOTH, "/mnt/x", "it is not mounted")));
    let why = refused(site.add(&two));
    assert!(why.contains("node 1: ") && why.contains("it is not mounted"), "{why}");
    assert!(why.contains("mount the storage there under the same path"), "{why}");

    let elsewhere = tempfile::tempdir().unwrap();
    DirectoryDisk::format(elsewhere.path(), &label()).unwrap();
    instead(Arc::new(DirectoryDisk::open(elsewhere.path(), &label()).unwrap()));
    let why = refused(site.add(&two));
    assert!(why.contains("does not exist"), "{why}");

    let disk = DirectoryDisk::open_shared(site.folder.path(), &label(), "n1").unwrap();
    instead(Arc::new(Cached(Arc::new(disk))));
    let why = refused(site.add(&two));
    assert!(why.contains("old bytes") && why.contains("noac"), "{why}");
    assert!(one.fs.disk_named(BOTH).is_err(), "nothing is added");
    assert_eq!(site.objects(), 0, "nothing is left");

    site.nodes.instead_of_shared.lock().clear();
    site.add(&two).unwrap();
    assert!(one.fs.disk_named(site.folder.path().to_str().unwrap()).is_ok());
    assert_eq!(site.objects(), 0, "nothing is left");
}

/// Storage that shows each object as it was when it was first read.
struct Cached(Arc<dyn Disk>);

struct CachedObject(Arc<dyn Object>, parking_lot::Mutex<Option<Vec<u8>>>);

impl Disk for Cached {
    fn create_fresh(&self) -> forebay_disk::Result<Arc<dyn Object>> {
        self.0.create_fresh()
    }
    fn publish(&self, id: ObjectId, object: &dyn Object) -> forebay_disk::Result<()> {
        self.0.publish(id, object)
    }
    fn open(&self, id: ObjectId) -> forebay_disk::Result<Arc<dyn Object>> {
        Ok(Arc::new(CachedObject(self.0.open(id)?, parking_lot::Mutex::default())))
    }
    fn remove(&self, id: ObjectId) -> forebay_disk::Result<()> {
        self.0.remove(id)
    }
    fn attributes(&self, id: ObjectId) -> forebay_disk::Result<Option<ObjectAttributes>> {
        self.0.attributes(id)
    }
    fn list(&self, visit: &mut dyn FnMut(ObjectId) -> bool) -> forebay_disk::Result<()> {
        self.0.list(visit)
    }
    fn sync(&self) -> forebay_disk::Result<()> {
        self.0.sync()
    }
    fn capacity(&self) -> forebay_disk::Result<Capacity> {
        self.0.capacity()
    }
    fn keep_reserve(&self, bytes: u64) -> forebay_disk::Result<u64> {
        self.0.keep_reserve(bytes)
    }
    fn give_reserve(&self, bytes: u64) -> u64 {
        self.0.give_reserve(bytes)
    }
    fn describe(&self) -> Description {
        self.0.describe()
    }
}

impl Object for CachedObject {
    fn number(&self, id: ObjectId) {
        self.0.number(id);
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> forebay_disk::Result<usize> {
        let mut cached = self.1.lock();
        if cached.is_none() {
            let mut all = vec![0; 4096];
            let read = self.0.read_at(0, &mut all)?;
            all.truncate(read);
            *cached = Some(all);
        }
        let all = cached.as_ref().unwrap();
        let from = (offset as usize).min(all.len());
        let read = buffer.len().min(all.len() - from);
        buffer[..read].copy_from_slice(&all[from..from + read]);
        Ok(read)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> forebay_disk::Result<usize> {
        self.0.write_at(offset, data)
    }
    fn append(&self, data: &[u8]) -> forebay_disk::Result<usize> {
        self.0.append(data)
    }
    fn set_size(&self, size: u64) -> forebay_disk::Result<()> {
        self.0.set_size(size)
    }
    fn allocate(&self, what: Allocate, offset: u64, length: u64) -> forebay_disk::Result<()> {
        self.0.allocate(what, offset, length)
    }
    fn seek(&self, target: Seek, offset: u64) -> forebay_disk::Result<u64> {
        self.0.seek(target, offset)
    }
    fn copy_from(
        &self,
        source: &dyn Object,
        source_offset: u64,
        offset: u64,
        length: u64,
    ) -> forebay_disk::Result<u64> {
        self.0.copy_from(source, source_offset, offset, length)
    }
    fn sync(&self, what: Sync) -> forebay_disk::Result<()> {
        self.0.sync(what)
    }
    fn attributes(&self) -> forebay_disk::Result<ObjectAttributes> {
        self.0.attributes()
    }
    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.0.file()
    }
    fn has_other_writers(&self) -> bool {
        self.0.has_other_writers()
    }
}
