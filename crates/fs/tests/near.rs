//! Bytes near their writer: what a node writes to a fileset of another node goes to a disk of its own.

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_base::time::StepClock;
use forebay_base::{ClientId, FailPoints, FilesetId, Ino, NodeId};
use forebay_disk::directory::{DirectoryDisk, Label};
use forebay_disk::memory::MemoryDisk;
use forebay_disk::{Allocate, Disk, Sync};
use forebay_fs::reserve::Reserve;
use forebay_fs::{FsError, HandOver, Namespace, Parts, SetAttributes, Settings};
use forebay_store::memory::MemoryStores;
use support::{
    Handle, Kernel, Nodes, READ, READ_WRITE, ROOT, Shorthand as _, TRUNCATE, User, WRITE, file,
    new_stores,
};

const ONE: NodeId = NodeId(1);
const TWO: NodeId = NodeId(2);
const THREE: NodeId = NodeId(3);
const DATA: FilesetId = FilesetId(1);
const SITE: &str = "whole";

/// Three nodes, each with a disk; the first owns everything. Disks are reached by way of their nodes.
struct Site {
    stores: Arc<MemoryStores>,
    clock: Arc<StepClock>,
    nodes: Arc<Nodes>,
    disks: Vec<Arc<dyn Disk>>,
    /// The disks in memory, if they are.
    in_memory: Vec<MemoryDisk>,
    _directories: Vec<tempfile::TempDir>,
}

impl Site {
    fn over(disks: Vec<Arc<dyn Disk>>, clock: Arc<StepClock>) -> Site {
        let stores = new_stores(SITE, "there", &*clock);
        let nodes = Nodes::with_owner(ONE);
        nodes.keep_disks_apart();
        let (in_memory, _directories) = (Vec::new(), Vec::new());
        Site { stores, clock, nodes, disks, in_memory, _directories }
    }

    /// On disks in directories, which kernels read and write themselves.
    fn direct() -> Site {
        let clock = Arc::new(StepClock::new(1_000_000));
        let mut directories = Vec::new();
        let mut disks: Vec<Arc<dyn Disk>> = Vec::new();
        for number in 1..=3 {
            let directory = tempfile::tempdir().unwrap();
            let label = Label { file_system: SITE.to_owned(), disk: format!("disk-{number}") };
            DirectoryDisk::format(directory.path(), &label).unwrap();
            disks.push(Arc::new(DirectoryDisk::open(directory.path(), &label).unwrap()));
            directories.push(directory);
        }
        Site { _directories: directories, ..Site::over(disks, clock) }
    }

    /// On disks in memory of so many bytes, which no kernel knows.
    fn served(capacity_bytes: [u64; 3]) -> Site {
        let clock = Arc::new(StepClock::new(1_000_000));
        let in_memory: Vec<_> = capacity_bytes
            .into_iter()
            .map(|bytes| MemoryDisk::new(bytes, Arc::clone(&clock) as _))
            .collect();
        let disks = in_memory.iter().map(|disk| Arc::new(disk.clone()) as Arc<dyn Disk>);
        Site { in_memory: in_memory.clone(), ..Site::over(disks.collect(), clock) }
    }

    fn parts(&self, node: NodeId) -> Parts {
        let disk = Arc::clone(&self.disks[node.0 as usize - 1]);
        Parts {
            stores: Arc::clone(&self.stores) as _,
            disks: vec![(format!("disk-{node}"), disk)],
            settings: Settings {
                owner_wait: Duration::from_secs(20),
                // The clock of these tests hardly moves.
                away_timeout: Duration::ZERO,
                ..Settings::default()
            },
            clock: Arc::clone(&self.clock) as _,
            fail_points: FailPoints::none(),
            reserve: Reserve::none(),
        }
    }

    fn join(&self, node: NodeId) -> User {
        let fs = self.nodes.join(node, self.parts(node));
        let kernel = Arc::<Kernel>::default();
        fs.objects().set_direct_access(Arc::clone(&kernel) as _);
        User { fs, kernel, owner: None, taker: None, nodes: None }
    }

    fn three(&self) -> (User, User, User) {
        (self.join(ONE), self.join(TWO), self.join(THREE))
    }

    /// Names the owner of the fileset, and everybody hears of it.
    fn give(&self, all: &[&User], to: NodeId, epoch: u64) {
        self.nodes.give(DATA, to, epoch);
        all.iter().for_each(|node| node.fs.owner_changed(DATA).unwrap());
    }

    /// Bytes of files that went between nodes so far.
    fn sent(&self) -> u64 {
        self.nodes.payload.load(Ordering::Relaxed)
    }

    fn objects_on(&self, node: NodeId) -> usize {
        let mut count = 0;
        let mut visit = |_| {
            count += 1;
            true
        };
        self.disks[node.0 as usize - 1].list(&mut visit).unwrap();
        count
    }
}

fn client(node: NodeId) -> ClientId {
    ClientId { node, incarnation: 1 }
}

fn both_ways(test: impl Fn(&Site)) {
    println!("direct");
    test(&Site::direct());
    println!("served");
    test(&Site::served([1 << 40; 3]));
}

/// Makes a file on `user`, open.
fn make(user: &User, name: &str) -> Handle {
    let data = user.fs.fileset("data");
    let ino = user.fs.make_file(data, name);
    user.open(ino, READ_WRITE)
}

fn size(fs: &Namespace, ino: Ino) -> u64 {
    fs.attributes(ino).unwrap().size
}

#[test]
fn bytes_that_a_node_writes_go_to_its_own_disk_whoever_owns_the_fileset() {
    both_ways(|site| {
        let (one, two, three) = site.three();
        let handle = make(&two, "file");
        assert!(handle.is_at_home());
        let block: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
        for turn in 0..64 {
            handle.write(turn << 20, &block);
        }
        assert_eq!(handle.read(5 << 20, 1 << 20), block);
        two.fs.sync_file(handle.ino, Sync::All).unwrap();
        let ino = handle.ino;
        handle.close();
        assert_eq!(two.contents(ino).len(), 64 << 20);
        assert_eq!(site.sent(), 0, "no byte of it went between nodes");
        assert_eq!((site.objects_on(ONE), site.objects_on(TWO)), (0, 1));
        for reader in [&one, &three] {
            let handle = reader.open(ino, READ);
            assert!(!handle.is_at_home());
            assert_eq!(handle.read(7 << 20, 1 << 20), block);
            handle.close();
        }
        assert!(site.sent() > 0);
    });
}

#[test]
fn what_a_node_writes_on_its_own_disk_every_other_sees_at_once() {
    both_ways(|site| {
        let (one, two, three) = site.three();
        let writer = make(&two, "file");
        let ino = writer.ino;
        let others = [one.open(ino, READ_WRITE), three.open(ino, READ_WRITE)];
        let mut end = 0;
        for round in 0..200_u64 {
            let record = round.to_le_bytes();
            let by = [&writer, &others[0], &others[1]][(round % 3) as usize];
            by.write(end, &record);
            end += 8;
            for (user, handle) in [(&one, &others[0]), (&two, &writer), (&three, &others[1])] {
                assert_eq!(size(&user.fs, ino), end);
                assert_eq!(handle.read(end - 8, 100), record);
            }
        }
        let found = one.fs.attributes(ino).unwrap();
        assert!(!found.cacheable, "it can change without a word to the owner's kernel");
        writer.close();
        others.into_iter().for_each(Handle::close);
        assert!(one.fs.attributes(ino).unwrap().cacheable);
        assert_eq!(one.contents(ino).len() as u64, end);
    });
}

#[test]
fn appends_of_the_home_and_of_others_are_all_kept() {
    let site = Site::served([1 << 40; 3]);
    let (one, two, three) = site.three();
    let handle = make(&two, "log");
    let ino = handle.ino;
    std::thread::scope(|scope| {
        for (number, user) in [&one, &two, &three].into_iter().enumerate() {
            scope.spawn(move || {
                let handle = user.open(ino, WRITE);
                for record in 0..100 {
                    let bytes = [u8::try_from(number).unwrap(), record, 0xfe, 0xff];
                    // The kernel of each takes another offset for the end.
                    assert_eq!(user.fs.append(ino, 0, &bytes).unwrap(), 4);
                }
                handle.close();
            });
        }
    });
    handle.close();
    let all = three.contents(ino);
    let mut next = [0; 3];
    for record in all.chunks(4) {
        let node = usize::from(record[0]);
        assert_eq!(record[1..], [next[node], 0xfe, 0xff]);
        next[node] += 1;
    }
    assert_eq!(next, [100; 3]);
}

#[test]
fn truncation_allocation_and_copies_happen_where_the_bytes_are() {
    both_ways(|site| {
        let (one, two, _three) = site.three();
        let handle = make(&two, "file");
        let (ino, data) = (handle.ino, two.fs.fileset("data"));
        handle.write(0, &[7; 100_000]);
        let size_to = |size| SetAttributes { size: Some(size), ..SetAttributes::default() };
        two.fs.set_attributes(ino, size_to(60_000)).unwrap();
        one.fs.set_attributes(ino, size_to(50_000)).unwrap();
        assert_eq!((size(&two.fs, ino), handle.read(49_999, 9)), (50_000, vec![7]));
        two.fs.allocate(ino, Allocate::Extend, 0, 80_000).unwrap();
        two.fs.allocate(ino, Allocate::PunchHole, 0, 8192).unwrap();
        assert_eq!((size(&one.fs, ino), handle.read(8190, 4)), (80_000, vec![0, 0, 7, 7]));
        let copy = two.open(two.fs.make_file(data, "copy"), READ_WRITE);
        assert!(copy.is_at_home());
        assert_eq!(two.fs.copy_range((ino, 8192), (copy.ino, 0), 20_000).unwrap(), 20_000);
        assert_eq!(copy.read(0, 20_001), [7; 20_000]);
        assert_eq!(site.sent(), 0);
        handle.close();
        copy.close();
        // Nobody has it open: the bytes of the next writer are new, and near that.
        one.overwrite(ino, b"of one");
        assert_eq!(two.contents(ino), b"of one");
        let again = two.open(ino, TRUNCATE);
        assert!(again.is_at_home());
        again.write(0, b"of two");
        again.close();
        assert_eq!(one.contents(ino), b"of two");
        one.fs.commit().unwrap();
        assert_eq!((site.objects_on(ONE), site.objects_on(TWO)), (0, 2));
    });
}

#[test]
fn a_file_that_is_removed_or_stays_empty_leaves_nothing_on_the_disk_of_its_writer() {
    both_ways(|site| {
        let (one, two, _three) = site.three();
        let data = two.fs.fileset("data");
        let handle = make(&two, "file");
        let ino = handle.ino;
        handle.write(0, b"bytes");
        one.fs.unlink(data, b"file").unwrap();
        one.fs.commit().unwrap();
        handle.write(5, b" and more");
        assert_eq!(handle.read(0, 99), b"bytes and more");
        assert_eq!(one.fs.attributes(ino).unwrap().nlink, 0);
        handle.close();
        make(&two, "empty").close();
        two.fs.unlink(data, b"empty").unwrap();
        let unnamed = two.fs.create_unnamed(data, file(0o600), ROOT).unwrap().ino;
        let handle = two.open(unnamed, READ_WRITE);
        assert!(handle.is_at_home());
        handle.write(0, b"unnamed");
        handle.close();
        two.fs.forget(unnamed, 1);
        // The owner hears of it with the next request.
        assert_eq!(two.fs.find(data, "unnamed"), None);
        one.fs.commit().unwrap();
        assert_eq!(site.objects_on(TWO), 0);
        assert_eq!(two.kernel.registrations(), 0);
    });
}

#[test]
fn what_was_synced_outlives_the_owner_and_what_was_not_is_what_the_disk_has() {
    both_ways(|site| {
        let (one, two, three) = site.three();
        site.give(&[&one, &two, &three], THREE, 5);
        let (synced, grown) = (make(&two, "synced"), make(&two, "grown"));
        synced.write(0, b"on stable storage");
        two.fs.sync_file(synced.ino, Sync::All).unwrap();
        two.fs.sync_file(grown.ino, Sync::All).unwrap();
        grown.write(0, b"not yet");
        // The owner dies; what it had in memory is gone.
        site.nodes.kill(THREE);
        site.give(&[&one, &two], ONE, 6);
        let expected: [&[u8]; 2] = [b"on stable storage", b"not yet"];
        for (handle, expected) in [synced, grown].into_iter().zip(expected) {
            let ino = handle.ino;
            assert!(two.fs.sync_file(ino, Sync::All).is_err(), "the handle is stale");
            assert_eq!(one.contents(ino), expected);
            assert_eq!(size(&two.fs, ino), expected.len() as u64);
            handle.let_go();
            assert_eq!(two.contents(ino), expected);
        }
    });
}

#[test]
fn a_writer_that_dies_keeps_what_it_wrote_and_the_size_is_right_when_it_is_back() {
    both_ways(|site| {
        let (one, two, three) = site.three();
        let handle = make(&two, "file");
        let ino = handle.ino;
        handle.write(0, b"first");
        assert_eq!(size(&one.fs, ino), 5);
        handle.write(5, b", then more");
        site.nodes.kill(TWO);
        // While it may still write, nobody is told an old size.
        assert!(matches!(one.fs.attributes(ino), Err(FsError::Io(_))));
        one.fs.commit().unwrap();
        site.nodes.drop_client(client(TWO));
        assert_eq!(size(&one.fs, ino), 5, "what is known, as its bytes cannot be reached");
        let reader = one.open(ino, READ);
        assert!(matches!(one.fs.read(ino, 0, &mut [0; 9]), Err(FsError::Io(_))));
        reader.close();
        // Its daemon starts again; the disk is the same.
        drop(handle);
        drop(two);
        site.nodes.forget_open_objects(TWO, 2);
        let two = site.nodes.join_again(TWO, 2, site.parts(TWO));
        assert_eq!(size(&one.fs, ino), 16);
        for fs in [&one.fs, &two, &three.fs] {
            let reader = User {
                fs: Arc::clone(fs),
                kernel: Arc::default(),
                owner: None,
                taker: None,
                nodes: None,
            };
            assert_eq!(reader.contents(ino), b"first, then more");
        }
    });
}

#[test]
fn files_of_a_writer_that_died_are_not_mistaken_for_each_other_when_it_is_back() {
    both_ways(|site| {
        let (one, two, three) = site.three();
        let names = ["first", "second", "third"];
        let handles = names.map(|name| {
            let handle = make(&two, name);
            handle.write(0, name.as_bytes());
            two.fs.sync_file(handle.ino, Sync::All).unwrap();
            handle
        });
        let inos = handles.each_ref().map(|handle| handle.ino);
        site.nodes.kill(TWO);
        site.nodes.drop_client(client(TWO));
        drop(handles);
        drop(two);
        site.nodes.forget_open_objects(TWO, TWO.0.into());
        let user = |fs: &Arc<Namespace>| User {
            fs: Arc::clone(fs),
            kernel: Arc::default(),
            owner: None,
            taker: None,
            nodes: None,
        };
        let two = user(&site.nodes.join_again(TWO, 2, site.parts(TWO)));
        // The node opens another object first, which stays empty.
        let empty = make(&two, "empty");
        for (ino, name) in inos.iter().zip(names).rev() {
            assert_eq!(size(&one.fs, *ino), name.len() as u64);
            let reader = three.open(*ino, READ);
            assert_eq!(two.contents(*ino), name.as_bytes());
            reader.close();
        }
        empty.close();
        one.fs.commit().unwrap();
        for (ino, name) in inos.iter().zip(names) {
            assert_eq!(user(&three.fs).contents(*ino), name.as_bytes());
        }
    });
}

#[test]
fn a_fileset_moves_while_a_node_writes_on_its_own_disk() {
    both_ways(|site| {
        let (one, two, three) = site.three();
        let all = [&one, &two, &three];
        site.give(&all, ONE, 5);
        let handle = make(&two, "file");
        let ino = handle.ino;
        handle.write(0, b"at one,");
        one.fs.hand_over(DATA, HandOver::Refuse).unwrap();
        site.give(&all, THREE, 6);
        handle.write(7, b" at three,");
        two.fs.sync_file(ino, Sync::All).unwrap();
        assert_eq!((size(&one.fs, ino), size(&three.fs, ino)), (17, 17));
        three.fs.hand_over(DATA, HandOver::Refuse).unwrap();
        // Now the writer's own node owns it.
        site.give(&all, TWO, 7);
        handle.write(17, b" at two");
        two.fs.sync_file(ino, Sync::All).unwrap();
        assert_eq!((size(&one.fs, ino), size(&two.fs, ino)), (24, 24));
        assert_eq!(one.contents(ino), b"at one, at three, at two");
        handle.close();
        assert_eq!(two.contents(ino), b"at one, at three, at two");
        two.fs.hand_over(DATA, HandOver::Refuse).unwrap();
        site.give(&all, ONE, 8);
        assert_eq!(three.contents(ino), b"at one, at three, at two");
        assert_eq!(two.kernel.registrations(), 0, "nothing of it is held any more");
    });
}

#[test]
fn a_sync_fails_if_the_machine_of_the_writer_crashed() {
    let site = Site::served([1 << 40; 3]);
    let (one, two, three) = site.three();
    let handle = make(&two, "file");
    let ino = handle.ino;
    handle.write(0, b"synced");
    two.fs.sync_file(ino, Sync::All).unwrap();
    let other = three.open(ino, READ_WRITE);
    handle.write(6, b", and lost");
    // The machine of the writer loses its power; another node has the file open, too.
    site.in_memory[1].crash_machine(7);
    site.nodes.forget_open_objects(TWO, 99);
    assert!(matches!(three.fs.sync_file(ino, Sync::All), Err(FsError::Io(_))));
    site.nodes.drop_client(client(TWO));
    other.close();
    assert!(one.contents(ino).starts_with(b"synced"));
}

#[test]
fn a_full_disk_of_the_writer_has_new_files_lie_elsewhere() {
    let site = Site::served([1 << 40, 0, 1 << 40]);
    let (one, two, _three) = site.three();
    let handle = make(&two, "file");
    assert!(!handle.is_at_home());
    handle.write(0, b"at the owner");
    let ino = handle.ino;
    handle.close();
    assert_eq!(one.contents(ino), b"at the owner");
}

#[test]
fn a_write_of_an_ordinary_user_on_its_own_disk_takes_the_set_id_bits() {
    let site = Site::served([1 << 40; 3]);
    let (one, two, _three) = site.three();
    let handle = make(&two, "file");
    let mode = SetAttributes { mode: Some(0o6755), ..SetAttributes::default() };
    one.fs.set_attributes(handle.ino, mode).unwrap();
    handle.write(0, b"as root");
    assert_eq!(one.fs.attributes(handle.ino).unwrap().mode, 0o6755);
    assert_eq!(two.fs.write_unprivileged(handle.ino, 7, b", as a user").unwrap(), 11);
    assert_eq!(one.fs.attributes(handle.ino).unwrap().mode, 0o755);
    assert_eq!(site.sent(), 0);
    handle.close();
}

#[test]
fn what_must_be_on_stable_storage_at_each_write_goes_by_way_of_the_owner() {
    let site = Site::direct();
    let (_one, two, _three) = site.three();
    let data = two.fs.fileset("data");
    let ino = two.fs.make_file(data, "file");
    let synchronous = forebay_fs::Access { synchronous: true, ..WRITE };
    let handle = two.open(ino, synchronous);
    assert!(!handle.is_at_home() && !handle.is_direct());
    handle.write(0, b"bytes");
    // The kernel allows no mixture: as long as it is open, all others go that way.
    let reader = two.open(ino, READ);
    assert!(!reader.is_at_home());
    reader.close();
    handle.close();
    let reader = two.open(ino, READ);
    assert!(reader.is_at_home() && reader.is_direct());
    reader.close();
}
