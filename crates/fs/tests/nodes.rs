//! Several nodes on one file system: what one does, the others see; what happens when nodes and owners change.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use forebay_base::{ClientId, FailPoints, FilesetId, Ino, NodeId};
use forebay_disk::Sync;
use forebay_disk::memory::MemoryDisk;
use forebay_fs::locks::{Kind, Range, Sort};
use forebay_fs::record::{Durability, Placement};
use forebay_fs::reserve::Reserve;
use forebay_fs::{
    FsError, HandOver, Interruption, KernelCache, LockRequest, Namespace, Parts, Replace,
    SetAttributes, Settings,
};
use forebay_store::memory::MemoryStores;
use forebay_store::{Store, StoreError, Stores};
use parking_lot::Mutex;
use support::{
    Nodes, READ, READ_WRITE, ROOT, Shorthand as _, SteppedTimes, TRUNCATE, WRITE, Weather,
    directory, file, new_stores,
};

const ONE: NodeId = NodeId(1);
const TWO: NodeId = NodeId(2);
const THREE: NodeId = NodeId(3);
const DATA: FilesetId = FilesetId(1);

/// A file system whose stores all nodes reach, as they would an object store.
struct Site {
    stores: Arc<MemoryStores>,
    clock: Arc<SteppedTimes>,
    nodes: Arc<Nodes>,
}

impl Site {
    /// Node 1 owns everything that is given to nobody else. Its disk is the first.
    fn new() -> Site {
        let clock = Arc::new(SteppedTimes::new(1_000_000));
        let stores = new_stores("whole", "memory", &*clock);
        Site { stores, clock, nodes: Nodes::with_owner(ONE) }
    }

    fn parts(&self, node: NodeId, has_disk: bool) -> Parts {
        let disk = MemoryDisk::new(1 << 40, Arc::clone(&self.clock) as _);
        let settings = Settings { owner_wait: Duration::from_secs(20), ..Settings::default() };
        Parts {
            stores: Arc::clone(&self.stores) as _,
            disks: if has_disk {
                vec![(format!("disk-{node}"), Arc::new(disk))]
            } else {
                Vec::new()
            },
            settings,
            clock: Arc::clone(&self.clock) as _,
            fail_points: FailPoints::none(),
            reserve: Reserve::none(),
        }
    }

    fn join(&self, node: NodeId) -> Arc<Namespace> {
        self.nodes.join(node, self.parts(node, true))
    }

    /// Moves a fileset in order.
    fn hand_over(&self, from: &Namespace, all: &[&Arc<Namespace>], to: NodeId, epoch: u64) {
        from.hand_over(DATA, HandOver::Refuse).unwrap();
        self.give(all, to, epoch);
    }

    /// Names the owner of a fileset, and everybody hears of it.
    fn give(&self, all: &[&Arc<Namespace>], to: NodeId, epoch: u64) {
        self.nodes.give(DATA, to, epoch);
        all.iter().for_each(|node| node.owner_changed(DATA).unwrap());
    }
}

/// Stores of a node that loses the root fileset to node 2 as soon as it opens it.
struct Overtaken {
    stores: Arc<MemoryStores>,
    nodes: Arc<Nodes>,
}

impl Stores for Overtaken {
    fn create(&self, fileset: FilesetId) -> forebay_store::Result<Arc<dyn Store>> {
        self.stores.create(fileset)
    }

    fn open(&self, _fileset: FilesetId) -> forebay_store::Result<Arc<dyn Store>> {
        self.nodes.give(FilesetId::ROOT, TWO, 7);
        Err(StoreError::Conflict)
    }

    fn look(&self, fileset: FilesetId) -> forebay_store::Result<Arc<dyn Store>> {
        self.stores.look(fileset)
    }

    fn remove(&self, fileset: FilesetId) -> forebay_store::Result<()> {
        self.stores.remove(fileset)
    }

    fn size_of(&self, fileset: FilesetId) -> forebay_store::Result<u64> {
        self.stores.size_of(fileset)
    }

    fn list(&self) -> forebay_store::Result<Vec<FilesetId>> {
        self.stores.list()
    }
}

#[test]
fn a_node_joins_although_the_root_is_handed_over_while_it_opens_it() {
    let site = Site::new();
    site.nodes.give(FilesetId::ROOT, TWO, 5);
    site.nodes.give(DATA, TWO, 5);
    let two = site.join(TWO);
    two.make_file(two.fileset("data"), "file");
    // The cluster still names node 1 when that begins.
    site.nodes.give(FilesetId::ROOT, ONE, 6);
    let (stores, nodes) = (Arc::clone(&site.stores), Arc::clone(&site.nodes));
    let overtaken =
        Parts { stores: Arc::new(Overtaken { stores, nodes }), ..site.parts(ONE, true) };
    let one = site.nodes.join(ONE, overtaken);
    assert_eq!(one.names(one.fileset("data")), ["file"]);
}

fn write(fs: &Namespace, ino: Ino, offset: u64, data: &[u8]) {
    fs.open_file(ino, WRITE, ROOT).unwrap();
    assert_eq!(fs.write(ino, offset, data).unwrap(), data.len());
    fs.close_file(ino, WRITE).unwrap();
}

fn contents(fs: &Namespace, ino: Ino) -> Vec<u8> {
    fs.open_file(ino, READ, ROOT).unwrap();
    let mut buffer = vec![0; 1 << 16];
    let read = fs.read(ino, 0, &mut buffer).unwrap();
    fs.close_file(ino, READ).unwrap();
    assert_eq!(fs.attributes(ino).unwrap().size, read as u64);
    buffer.truncate(read);
    buffer
}

fn client(node: NodeId) -> ClientId {
    ClientId { node, incarnation: 1 }
}

#[test]
fn what_one_node_does_every_other_sees_at_once() {
    let site = Site::new();
    let (one, two, three) = (site.join(ONE), site.join(TWO), site.join(THREE));
    let data = one.fileset("data");
    assert_eq!(two.fileset("data"), data);
    let ino = two.make_file(data, "file");
    assert_eq!((one.find(data, "file"), three.find(data, "file")), (Some(ino), Some(ino)));
    write(&three, ino, 0, b"from three");
    write(&one, ino, 5, b"one!!");
    assert_eq!(contents(&two, ino), b"from one!!");
    two.set_attributes(ino, SetAttributes { mode: Some(0o600), ..SetAttributes::default() })
        .unwrap();
    assert_eq!(one.attributes(ino).unwrap().mode, 0o600);
    three.rename(data, b"file", data, b"moved", Replace::Allowed).unwrap();
    assert_eq!(one.names(data), ["moved"]);
    one.unlink(data, b"moved").unwrap();
    assert!(matches!(two.lookup(data, b"moved"), Err(FsError::NotFound)));
    assert!(two.lookup(data, b"moved").is_err() && three.names(data).is_empty());
}

#[test]
fn nothing_that_another_node_answers_may_be_kept() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let data = two.fileset("data");
    let made = two.create(data, b"file", file(0o644), ROOT).unwrap();
    assert!(!made.cacheable && !two.keeps_names(data) && one.keeps_names(data));
    let opened = two.open_file(made.ino, READ_WRITE, ROOT).unwrap();
    assert!(opened.uncached && opened.registration.is_none());
    // What the owner serves itself, its kernel does not cache either.
    assert!(one.open_file(made.ino, READ, ROOT).unwrap().uncached);
}

#[test]
fn appends_of_all_nodes_neither_tear_nor_overwrite_each_other() {
    let site = Site::new();
    let fss = [site.join(ONE), site.join(TWO), site.join(THREE)];
    let data = fss[0].fileset("data");
    let ino = fss[0].make_file(data, "log");
    const RECORDS: u8 = 100;
    std::thread::scope(|scope| {
        for (number, fs) in fss.iter().enumerate() {
            scope.spawn(move || {
                fs.open_file(ino, WRITE, ROOT).unwrap();
                for record in 0..RECORDS {
                    let bytes = [u8::try_from(number).unwrap(), record, record, 0xff];
                    // The kernel of each takes another offset for the end.
                    assert_eq!(fs.append(ino, 0, &bytes).unwrap(), bytes.len());
                }
                fs.close_file(ino, WRITE).unwrap();
            });
        }
    });
    let all = contents(&fss[1], ino);
    let mut next = [0; 3];
    for record in all.chunks(4) {
        let node = usize::from(record[0]);
        assert_eq!(record[1..], [next[node], next[node], 0xff]);
        next[node] += 1;
    }
    assert_eq!(next, [RECORDS; 3]);
}

#[test]
fn a_removed_file_lives_as_long_as_any_node_has_it_open() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let data = one.fileset("data");
    let ino = one.make_file(data, "file");
    write(&one, ino, 0, b"bytes");
    two.open_file(ino, READ_WRITE, ROOT).unwrap();
    one.unlink(data, b"file").unwrap();
    one.commit().unwrap();
    one.drop_caches();
    assert_eq!(two.write(ino, 5, b" and more").unwrap(), 9);
    let mut buffer = [0; 14];
    assert_eq!(two.read(ino, 0, &mut buffer).unwrap(), 14);
    assert_eq!(&buffer, b"bytes and more");
    assert_eq!(one.attributes(ino).unwrap().nlink, 0);
    two.close_file(ino, READ_WRITE).unwrap();
    assert!(matches!(one.attributes(ino), Err(FsError::Stale)));
}

#[test]
fn what_a_dead_node_held_is_released() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let data = one.fileset("data");
    let ino = two.create(data, b"file", file(0o644), ROOT).unwrap().ino;
    two.open_file(ino, READ_WRITE, ROOT).unwrap();
    two.write(ino, 0, b"bytes").unwrap();
    two.unlink(data, b"file").unwrap();
    assert_eq!(one.attributes(ino).unwrap().nlink, 0);
    assert_eq!(one.client_usage(), [(client(TWO), 1, 1)]);
    two.lock(range_lock(ino, 7, 0, 9), Kind::Write, None).unwrap();
    site.nodes.drop_client(client(TWO));
    assert!(matches!(one.attributes(ino), Err(FsError::Stale)), "nobody holds it any more");
    assert!(one.client_usage().is_empty());
    // It is not dead after all: what it had open is stale, for good.
    assert!(matches!(two.sync_file(ino, Sync::All), Err(FsError::Stale)));
    assert!(matches!(two.read(ino, 0, &mut [0; 4]), Err(FsError::Stale)));
    assert!(matches!(two.lookup(data, b"file"), Err(FsError::Stale)));
    one.commit().unwrap();
}

#[test]
fn a_node_holds_no_more_than_it_may() {
    let site = Site::new();
    let mut parts = site.parts(ONE, true);
    parts.settings.client_holds_max = 1000;
    let one = site.nodes.join(ONE, parts);
    let two = site.join(TWO);
    let data = one.fileset("data");
    let inos: Vec<Ino> =
        (0..1200).map(|number| one.make_file(data, &format!("{number}"))).collect();
    let looked = |number: usize| two.lookup(data, format!("{number}").as_bytes());
    let refused = (0..1200).find(|number| looked(*number).is_err()).unwrap();
    assert!((990..=1000).contains(&refused), "{refused}");
    assert!(matches!(looked(refused), Err(FsError::TooManyFiles(_))));
    // What the kernel has forgotten is held no longer than there is room.
    inos[..100].iter().for_each(|ino| two.forget(*ino, 1));
    assert!(matches!(looked(refused), Err(FsError::TooManyFiles(_))));
    looked(refused).unwrap();
}

// --- locks ---

fn range_lock(ino: Ino, owner: u64, start: u64, end: u64) -> LockRequest {
    LockRequest { ino, sort: Sort::Fcntl, owner, pid: 77, range: Range { start, end } }
}

#[test]
fn locks_exclude_programs_of_all_nodes_and_waits_end_when_a_node_dies() {
    let site = Site::new();
    let (one, two, three) = (site.join(ONE), site.join(TWO), site.join(THREE));
    let data = one.fileset("data");
    let ino = one.make_file(data, "file");
    for fs in [&one, &two, &three] {
        fs.open_file(ino, READ_WRITE, ROOT).unwrap();
    }
    two.lock(range_lock(ino, 1, 0, 9), Kind::Write, None).unwrap();
    for fs in [&one, &three] {
        let locked = fs.lock(range_lock(ino, 1, 5, 5), Kind::Read, None);
        assert!(matches!(locked, Err(FsError::Locked)));
        fs.lock(range_lock(ino, 1, 10, 19), Kind::Read, None).unwrap();
    }
    let (range, kind, pid) =
        three.test_lock(range_lock(ino, 1, 0, 99), Kind::Read).unwrap().unwrap();
    assert_eq!((range, kind, pid), (Range { start: 0, end: 9 }, Kind::Write, 0));
    let interruption = Interruption::default();
    std::thread::scope(|scope| {
        let waiting = [&one, &three].map(|fs| {
            let interruption = &interruption;
            scope.spawn(move || {
                let lock = fs.lock(range_lock(ino, 2, 3, 3), Kind::Write, Some(interruption));
                if lock.is_ok() {
                    fs.unlock(range_lock(ino, 2, 3, 3)).unwrap();
                }
                lock
            })
        });
        std::thread::sleep(Duration::from_millis(20));
        site.nodes.kill(TWO);
        site.nodes.drop_client(client(TWO));
        for waited in waiting {
            waited.join().unwrap().unwrap();
        }
    });
}

#[test]
fn a_wait_for_a_lock_can_be_interrupted_and_a_circle_over_nodes_is_found() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let data = one.fileset("data");
    let ino = one.make_file(data, "file");
    for fs in [&one, &two] {
        fs.open_file(ino, READ_WRITE, ROOT).unwrap();
    }
    one.lock(range_lock(ino, 1, 0, 0), Kind::Write, None).unwrap();
    two.lock(range_lock(ino, 2, 1, 1), Kind::Write, None).unwrap();
    let interruption = Interruption::default();
    std::thread::scope(|scope| {
        let waits = || two.lock(range_lock(ino, 2, 0, 0), Kind::Write, Some(&interruption));
        let waiting = scope.spawn(waits);
        // Until it waits, nothing is wrong with waiting for it.
        let found = (0..2000).any(|_| {
            let other = Interruption::default();
            one.interrupt(&other);
            let asked = one.lock(range_lock(ino, 1, 1, 1), Kind::Write, Some(&other));
            std::thread::sleep(Duration::from_millis(1));
            matches!(asked, Err(FsError::Deadlock))
        });
        assert!(found, "each waits for the other");
        two.interrupt(&interruption);
        assert!(matches!(waiting.join().unwrap(), Err(FsError::Interrupted)));
    });
    one.unlock(range_lock(ino, 1, 0, 0)).unwrap();
    two.lock(range_lock(ino, 2, 0, 0), Kind::Write, None).unwrap();
    two.release_locks(ino, Sort::Fcntl, 2).unwrap();
    one.lock(range_lock(ino, 1, 0, 9), Kind::Write, None).unwrap();
}

// --- owners that change ---

#[test]
fn a_fileset_moves_in_order_and_open_files_go_on() {
    let site = Site::new();
    let (one, two, three) = (site.join(ONE), site.join(TWO), site.join(THREE));
    let all = [&one, &two, &three];
    let data = one.fileset("data");
    let ino = one.make_file(data, "file");
    let lineages: Vec<u32> =
        all.iter().map(|fs| fs.open_file(ino, READ_WRITE, ROOT).unwrap().lineage).collect();
    one.write(ino, 0, b"at one").unwrap();
    site.hand_over(&one, &all, TWO, 50);
    assert_eq!(three.write(ino, 6, b", at two").unwrap(), 8);
    assert_eq!((one.own_filesets().contains(&DATA), two.own_filesets()), (false, vec![DATA]));
    one.make_file(data, "made from one");
    site.hand_over(&two, &all, THREE, 51);
    for (fs, lineage) in all.iter().zip(lineages) {
        fs.check_lineage(ino, lineage).unwrap();
        let mut buffer = [0; 20];
        assert_eq!(fs.read(ino, 0, &mut buffer).unwrap(), 14);
        assert_eq!(&buffer[..14], b"at one, at two");
        fs.sync_file(ino, Sync::All).unwrap();
        fs.close_file(ino, READ_WRITE).unwrap();
    }
    assert_eq!(two.names(data), ["file", "made from one"]);
    three.unlink(data, b"file").unwrap();
    assert!(matches!(one.attributes(ino), Err(FsError::Stale)));
}

#[test]
fn a_fileset_with_what_cannot_be_taken_along_stays_unless_it_is_forced() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let all = [&one, &two];
    let data = one.fileset("data");
    let ino = one.make_file(data, "file");
    let lineage = two.open_file(ino, READ_WRITE, ROOT).unwrap().lineage;
    two.write(ino, 0, b"bytes").unwrap();
    two.lock(range_lock(ino, 1, 0, 0), Kind::Write, None).unwrap();
    let refused = one.hand_over(DATA, HandOver::Refuse).unwrap_err().to_string();
    assert!(refused.contains("locks are held"), "{refused}");
    two.unlock(range_lock(ino, 1, 0, 0)).unwrap();
    two.unlink(data, b"file").unwrap();
    let refused = one.hand_over(DATA, HandOver::Refuse).unwrap_err().to_string();
    assert!(refused.contains("1 removed files"), "{refused}");
    let kept = one.make_file(data, "kept");
    write(&two, kept, 0, b"kept bytes");
    one.hand_over(DATA, HandOver::Abandon).unwrap();
    site.give(&all, TWO, 60);
    assert!(matches!(two.check_lineage(ino, lineage), Err(FsError::Stale)));
    assert!(matches!(one.attributes(ino), Err(FsError::Stale)));
    assert_eq!(contents(&one, kept), b"kept bytes");
    two.sweep().unwrap();
}

#[test]
fn operations_go_on_while_a_fileset_moves_to_and_fro() {
    let site = Site::new();
    let fss = [site.join(ONE), site.join(TWO), site.join(THREE)];
    let all: Vec<&Arc<Namespace>> = fss.iter().collect();
    let data = fss[0].fileset("data");
    let (over, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let workers: Vec<_> = fss
            .iter()
            .enumerate()
            .map(|(number, fs)| {
                let (over, done) = (&over, &done);
                scope.spawn(move || {
                    let mut made = BTreeMap::new();
                    for round in 0_u64.. {
                        if over.load(Ordering::Acquire) {
                            return made;
                        }
                        // Asks for the owner's word: from then on changes wait for recalls.
                        fs.getattr(data).unwrap();
                        let name = format!("{number}-{}", round % 20);
                        if made.remove(&name).is_some() {
                            fs.unlink(data, name.as_bytes()).unwrap();
                        }
                        let ino = fs.make_file(data, &name);
                        let text = format!("round {round}").into_bytes();
                        fs.open_file(ino, READ_WRITE, ROOT).unwrap();
                        fs.append(ino, 0, &text[..3]).unwrap();
                        fs.write(ino, 3, &text[3..]).unwrap();
                        let mut buffer = vec![0; text.len() + 1];
                        assert_eq!(fs.read(ino, 0, &mut buffer).unwrap(), text.len());
                        fs.close_file(ino, READ_WRITE).unwrap();
                        made.insert(name, text);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    made
                })
            })
            .collect();
        let mut owner = 0;
        for epoch in 100..130 {
            let before = done.load(Ordering::Relaxed);
            while done.load(Ordering::Relaxed) < before + 20
                && !workers.iter().any(std::thread::ScopedJoinHandle::is_finished)
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            let next = (owner + 1) % 3;
            // A file that was removed while it was open keeps it for a moment.
            while let Err(error) = fss[owner].hand_over(DATA, HandOver::Refuse) {
                assert!(matches!(error, FsError::Refused(_)), "{error}");
            }
            site.give(&all, [ONE, TWO, THREE][next], epoch);
            owner = next;
        }
        over.store(true, Ordering::Release);
        let mut expected = BTreeMap::new();
        for worker in workers {
            expected.append(&mut worker.join().unwrap());
        }
        for fs in &fss {
            assert_eq!(fs.names(data), expected.keys().cloned().collect::<Vec<_>>());
            for (name, text) in &expected {
                let ino = fs.find(data, name).unwrap();
                assert_eq!(contents(fs, ino), *text, "{name}");
            }
        }
    });
}

#[test]
fn a_dead_owner_is_followed_by_another_and_its_handles_are_stale() {
    let site = Site::new();
    let (one, two, three) = (site.join(ONE), site.join(TWO), site.join(THREE));
    let data = one.fileset("data");
    site.hand_over(&one, &[&one, &two, &three], TWO, 10);
    let kept = three.make_file(data, "kept");
    write(&three, kept, 0, b"kept");
    three.open_file(kept, READ_WRITE, ROOT).unwrap();
    three.sync_file(kept, Sync::All).unwrap();
    let lineage = three.open_file(kept, READ, ROOT).unwrap().lineage;
    three.make_file(data, "lost");
    site.nodes.kill(TWO);
    // What did not reach it is carried out by the next owner.
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| three.lookup(data, b"kept"));
        let making = scope.spawn(|| three.make_file(data, "late"));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!reading.is_finished() && !making.is_finished());
        site.give(&[&one, &three], ONE, 11);
        reading.join().unwrap().unwrap();
        making.join().unwrap();
    });
    assert_eq!(
        three.names(data),
        ["kept", "late"],
        "what was not committed is lost, what was synced is not"
    );
    assert!(matches!(three.check_lineage(kept, lineage), Err(FsError::Stale)));
    assert_eq!(contents(&three, kept), b"kept");
    // The old owner wakes up: it finds out by its next commit at the latest, and answers nothing wrong.
    two.make_file(data, "of a ghost");
    assert!(two.commit().is_err());
    assert!(matches!(two.lookup(data, b"kept"), Err(FsError::Fenced)));
    assert_eq!(one.names(data), ["kept", "late"]);
}

/// Counts what the kernel is told to forget.
#[derive(Default)]
struct Forgotten {
    inodes: Mutex<Vec<Ino>>,
    names: Mutex<Vec<String>>,
}

impl KernelCache for Forgotten {
    fn forget_attributes(&self, ino: Ino) {
        self.inodes.lock().push(ino);
    }

    fn forget_entry(&self, _parent: Ino, name: &[u8]) {
        self.names.lock().push(String::from_utf8_lossy(name).into_owned());
    }

    fn ask_again_for_entry(&self, parent: Ino, name: &[u8]) {
        self.forget_entry(parent, name);
    }

    fn forget_listing(&self, ino: Ino) {
        self.inodes.lock().push(ino);
    }

    fn is_mounted(&self) -> bool {
        true
    }
}

#[test]
fn the_first_sync_of_a_directory_after_its_owner_lost_names_fails() {
    let site = Site::new();
    let (one, two, three) = (site.join(ONE), site.join(TWO), site.join(THREE));
    let data = one.fileset("data");
    let make = |fs: &Namespace, parent, name: &str| {
        fs.create(parent, name.as_bytes(), directory(0o755), ROOT).unwrap().ino
    };
    let [synced, changed, untouched] =
        ["synced", "changed", "untouched"].map(|name| make(&one, data, name));
    site.hand_over(&one, &[&one, &two, &three], TWO, 10);
    // Nothing is open on the node that makes them.
    make(&three, synced, "kept");
    three.sync_directory(synced).unwrap();
    make(&three, changed, "lost");
    site.nodes.kill(TWO);
    site.give(&[&one, &three], ONE, 11);
    for directory in [synced, untouched] {
        three.sync_directory(directory).unwrap();
    }
    assert!(matches!(three.sync_directory(changed), Err(FsError::Stale)));
    assert_eq!((three.names(synced), three.names(changed)), (vec!["kept".to_owned()], vec![]));
    three.sync_directory(changed).unwrap();
    // In order nothing is lost, nor told.
    make(&three, changed, "moved");
    site.hand_over(&one, &[&one, &three], THREE, 12);
    three.sync_directory(changed).unwrap();
    // What the owner itself has changed and not committed when it is fenced.
    make(&three, changed, "never committed");
    site.give(&[&one, &three], ONE, 13);
    assert!(matches!(three.sync_directory(changed), Err(FsError::Stale)));
    three.sync_directory(untouched).unwrap();
    assert_eq!(three.names(changed), ["moved"]);
}

#[test]
fn the_owners_kernel_forgets_what_another_node_changes_before_that_node_is_answered() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let kernel = Arc::new(Forgotten::default());
    one.set_kernel_cache(Arc::clone(&kernel) as _, Duration::ZERO);
    let data = one.fileset("data");
    let ino = two.make_file(data, "file");
    assert_eq!(std::mem::take(&mut *kernel.names.lock()), ["file"]);
    assert_eq!(std::mem::take(&mut *kernel.inodes.lock()), [data]);
    write(&two, ino, 0, b"bytes");
    assert_eq!(std::mem::take(&mut *kernel.inodes.lock()), [ino]);
    two.rename(data, b"file", data, b"moved", Replace::Allowed).unwrap();
    assert_eq!(std::mem::take(&mut *kernel.names.lock()), ["file", "moved"]);
    assert!(std::mem::take(&mut *kernel.inodes.lock()).contains(&ino));
    two.unlink(data, b"moved").unwrap();
    assert!(kernel.inodes.lock().contains(&ino), "the number of its links has changed");
    contents(&two, two.make_file(data, "read"));
    kernel.inodes.lock().clear();
    two.names(data);
    assert!(kernel.inodes.lock().is_empty(), "who only looks changes nothing");
}

#[test]
fn names_are_not_kept_while_a_fileset_is_handed_over_and_requests_are_answered() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let kernel = Arc::new(Forgotten::default());
    one.set_kernel_cache(Arc::clone(&kernel) as _, Duration::from_millis(300));
    let data = one.fileset("data");
    let known = one.make_file(data, "known");
    assert!(one.may_keep_name(known) && one.may_keep_absence(data));
    std::thread::scope(|scope| {
        let handing = scope.spawn(|| one.hand_over(DATA, HandOver::Abandon));
        while one.may_keep_name(known) && !handing.is_finished() {
            std::thread::yield_now();
        }
        assert!(!handing.is_finished(), "it waits until the kernel keeps no name");
        assert!(!one.may_keep_absence(data));
        assert_eq!(one.find(data, "known"), Some(known));
        handing.join().unwrap().unwrap();
    });
    site.nodes.give(DATA, TWO, 71);
    [&one, &two].iter().for_each(|fs| fs.owner_changed(DATA).unwrap());
    two.unlink(data, b"known").unwrap();
    assert_eq!(one.find(data, "known"), None);
}

#[test]
fn a_fenced_owner_answers_nothing_old_and_its_kernel_forgets() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let kernel = Arc::new(Forgotten::default());
    one.set_kernel_cache(Arc::clone(&kernel) as _, Duration::ZERO);
    let data = one.fileset("data");
    let known = one.create(data, b"known", file(0o644), ROOT).unwrap().ino;
    let lineage = one.open_file(known, READ_WRITE, ROOT).unwrap().lineage;
    one.commit().unwrap();
    one.write(known, 0, b"never committed").unwrap();
    one.make_file(data, "never committed");
    one.hand_over(FilesetId::ROOT, HandOver::Refuse).unwrap();
    site.nodes.give(FilesetId::ROOT, TWO, 70);
    [&one, &two].iter().for_each(|fs| fs.owner_changed(FilesetId::ROOT).unwrap());
    one.pause();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| one.names(data));
        std::thread::sleep(Duration::from_millis(10));
        assert!(!waits.is_finished(), "it is not sure whether it may answer");
        // Another one took over meanwhile.
        site.nodes.give(DATA, TWO, 70);
        two.owner_changed(DATA).unwrap();
        assert_eq!(two.names(data), ["known"]);
        one.owner_changed(DATA).unwrap();
        assert_eq!(waits.join().unwrap(), ["known"], "the new owner has answered");
    });
    one.resume();
    assert!(kernel.inodes.lock().contains(&known));
    assert!(matches!(one.check_lineage(known, lineage), Err(FsError::Stale)));
    assert!(matches!(one.sync_file(known, Sync::All), Err(FsError::Stale)), "no lie from fsync");
    let again = one.make_file(data, "again");
    assert_eq!(two.find(data, "again"), Some(again));
}

#[test]
fn requests_wait_while_nobody_owns_a_fileset() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let data = one.fileset("data");
    one.make_file(data, "file");
    one.hand_over(DATA, HandOver::Refuse).unwrap();
    std::thread::scope(|scope| {
        let waiting = [&one, &two].map(|fs| scope.spawn(|| fs.names(data)));
        std::thread::sleep(Duration::from_millis(20));
        assert!(waiting.iter().all(|one| !one.is_finished()));
        site.give(&[&one, &two], TWO, 5);
        for names in waiting {
            assert_eq!(names.join().unwrap(), ["file"]);
        }
    });
}

// --- the whole ---

#[test]
fn filesets_are_made_changed_and_removed_from_any_node() {
    let site = Site::new();
    let (one, two, three) = (site.join(ONE), site.join(TWO), site.join(THREE));
    two.create_fileset("new", Durability::Strict, Placement::Direct, 0o777).unwrap();
    let new = three.fileset("new");
    assert_eq!(one.fileset("new"), new);
    let number = new.fileset();
    three.make_file(new, "file");
    three.set_fileset("new", Some(Durability::Scratch), None).unwrap();
    assert!(one.fileset_status().iter().any(|known| {
        known.name == "new" && known.durability == Durability::Scratch && known.files == Some(2)
    }));
    // It lives elsewhere when it is removed.
    one.hand_over(number, HandOver::Refuse).unwrap();
    site.nodes.give(number, THREE, 9);
    [&one, &two, &three].iter().for_each(|fs| fs.owner_changed(number).unwrap());
    let refused = two.remove_fileset("new").unwrap_err().to_string();
    assert!(refused.contains("holds 1 files"), "{refused}");
    two.unlink(new, b"file").unwrap();
    two.remove_fileset("new").unwrap();
    assert_eq!(three.find(Ino::ROOT, "new"), None);
    assert!(matches!(three.attributes(new), Err(FsError::Stale)));
}

#[test]
fn a_node_brings_its_disk_and_everybody_reaches_what_lies_on_it() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let bare = site.nodes.join(THREE, site.parts(THREE, false));
    assert_eq!(one.disk_status().len(), 2);
    let data = one.fileset("data");
    site.hand_over(&one, &[&one, &two, &bare], TWO, 20);
    // The writer uses its own disk.
    let ino = one.make_file(data, "file");
    write(&two, ino, 0, b"on the disk of two");
    two.commit().unwrap();
    let used = |fs: &Namespace, disk: &str| {
        let status = fs.disk_status();
        status.iter().find(|found| found.uuid == disk).unwrap().objects_in_use
    };
    assert_eq!((used(&two, "disk-2"), used(&two, "disk-1")), (1, 0));
    // One without a disk of its own can own the fileset, too.
    site.hand_over(&two, &[&one, &two, &bare], THREE, 21);
    assert_eq!(contents(&one, ino), b"on the disk of two");
    write(&two, ino, 0, b"ON");
    assert_eq!(contents(&bare, ino), b"ON the disk of two");
    let other = bare.make_file(data, "other");
    write(&bare, other, 0, b"somewhere");
    assert_eq!(contents(&one, other), b"somewhere");
}

#[test]
fn the_root_moves_like_any_other_fileset() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    one.make_directory(Ino::ROOT, "top");
    one.hand_over(FilesetId::ROOT, HandOver::Refuse).unwrap();
    site.nodes.give(FilesetId::ROOT, TWO, 30);
    [&one, &two].iter().for_each(|fs| fs.owner_changed(FilesetId::ROOT).unwrap());
    assert!(one.find(Ino::ROOT, "top").is_some());
    one.create_fileset("new", Durability::Strict, Placement::Direct, 0o755).unwrap();
    assert!(two.fileset_status().iter().any(|known| known.name == "new"));
    assert!(
        matches!(two.find(Ino::ROOT, "new"), Some(ino) if one.find(Ino::ROOT, "new") == Some(ino))
    );
    let three = site.join(THREE);
    assert_eq!(three.disk_status().len(), 3);
    assert!(three.find(Ino::ROOT, "new").is_some());
}

// --- bad weather ---

#[test]
fn calls_that_get_no_answer_are_errors_that_name_the_node_and_break_nothing() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let data = one.fileset("data");
    two.fileset("data");
    *site.nodes.weather.lock() = Weather { lost: 5, delay_us: 200 };
    let mut failed = 0;
    let mut sure = BTreeMap::new();
    for round in 0..400 {
        let name = format!("{}", round % 50);
        // `Some`: it is there; `None`: it is not; missing: nobody knows.
        let made = two.create(data, name.as_bytes(), directory(0o755), ROOT);
        match made {
            Ok(_) => drop(sure.insert(name.clone(), true)),
            Err(FsError::Exists) => assert_ne!(sure.get(&name), Some(&false)),
            Err(FsError::Io(why)) => {
                assert!(why.contains("node 1"), "{why}");
                failed += 1;
                sure.remove(&name);
            }
            Err(other) => panic!("{other}"),
        }
        if round % 3 == 0 {
            match two.remove_directory(data, name.as_bytes()) {
                Ok(()) => drop(sure.insert(name, false)),
                Err(FsError::NotFound) => assert_ne!(sure.get(&name), Some(&true)),
                Err(FsError::Io(_)) => drop(sure.remove(&name)),
                Err(other) => panic!("{other}"),
            }
        }
    }
    assert!(failed > 0);
    *site.nodes.weather.lock() = Weather::default();
    for (name, is_there) in sure {
        assert_eq!(two.find(data, &name).is_some(), is_there, "{name}");
        assert_eq!(one.find(data, &name).is_some(), is_there, "{name}");
    }
    site.nodes.drop_client(client(TWO));
    assert!(one.client_usage().is_empty());
}

#[test]
fn files_that_are_cut_open_and_executed_elsewhere_follow_the_same_rules() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let data = one.fileset("data");
    let ino = one.make_file(data, "file");
    write(&one, ino, 0, b"a longer content");
    two.open_file(ino, READ, ROOT).unwrap();
    one.open_file(ino, TRUNCATE, ROOT).unwrap();
    one.write(ino, 0, b"new").unwrap();
    one.close_file(ino, TRUNCATE).unwrap();
    let mut buffer = [0; 20];
    assert_eq!(two.read(ino, 0, &mut buffer).unwrap(), 3, "it is the same file");
    two.close_file(ino, READ).unwrap();
    assert!(matches!(two.read(ino, 0, &mut buffer), Err(FsError::Stale)), "it is closed");
}
