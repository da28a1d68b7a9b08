//! How many calls between nodes an operation of a node takes that does not own the fileset. A number that rises here makes
//! programs on all such nodes slower.

mod support;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_base::{FailPoints, Ino, NodeId};
use forebay_disk::Disk;
use forebay_disk::directory::{DirectoryDisk, Label};
use forebay_fs::reserve::Reserve;
use forebay_fs::{FsError, Parts, Settings};
use forebay_store::memory::MemoryStores;
use parking_lot::Mutex;
use support::{
    Kernel, Nodes, READ, READ_WRITE, Shorthand as _, SteppedTimes, User, WRITE, new_stores,
};

const ONE: NodeId = NodeId(1);
const TWO: NodeId = NodeId(2);
const THREE: NodeId = NodeId(3);
const SITE: &str = "whole";

/// Nodes of one file system, each with a disk in a directory; node 1 owns everything.
struct Site {
    stores: Arc<MemoryStores>,
    clock: Arc<SteppedTimes>,
    nodes: Arc<Nodes>,
    directories: Vec<tempfile::TempDir>,
    disks: Mutex<HashMap<NodeId, Arc<dyn Disk>>>,
}

/// What went between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cost {
    /// Requests to owners.
    calls: u64,
    /// Requests to disks of other nodes.
    disks: u64,
    recalls: u64,
}

const fn cost(calls: u64) -> Cost {
    Cost { calls, disks: 0, recalls: 0 }
}

impl Site {
    fn new() -> Site {
        let clock = Arc::new(SteppedTimes::new(1_000_000));
        let stores = new_stores(SITE, "there", &*clock);
        let nodes = Nodes::with_owner(ONE);
        nodes.keep_disks_apart();
        let directories = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
        Site { stores, clock, nodes, directories, disks: Mutex::default() }
    }

    fn join(&self, node: NodeId) -> User {
        let directory = self.directories[node.0 as usize - 1].path();
        let label = Label { file_system: SITE.to_owned(), disk: format!("disk-{node}") };
        DirectoryDisk::format(directory, &label).unwrap();
        let disk: Arc<dyn Disk> = Arc::new(DirectoryDisk::open(directory, &label).unwrap());
        self.disks.lock().insert(node, Arc::clone(&disk));
        let settings = Settings {
            owner_wait: Duration::from_secs(20),
            away_timeout: Duration::ZERO,
            ..Settings::default()
        };
        let parts = Parts {
            stores: Arc::clone(&self.stores) as _,
            disks: vec![(format!("disk-{node}"), disk)],
            settings,
            clock: Arc::clone(&self.clock) as _,
            fail_points: FailPoints::none(),
            reserve: Reserve::none(),
        };
        let fs = self.nodes.join(node, parts);
        let kernel = Arc::<Kernel>::default();
        fs.objects().set_direct_access(Arc::clone(&kernel) as _);
        User { fs, kernel, owner: None, taker: None, nodes: None }
    }

    fn now(&self) -> Cost {
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let disks = load(&self.nodes.disk_calls);
        Cost { calls: load(&self.nodes.calls) - disks, disks, recalls: load(&self.nodes.recalls) }
    }

    /// What `work` sends between nodes.
    fn cost<T>(&self, work: impl FnOnce() -> T) -> (Cost, T) {
        let before = self.now();
        let done = work();
        let after = self.now();
        let cost = Cost {
            calls: after.calls - before.calls,
            disks: after.disks - before.disks,
            recalls: after.recalls - before.recalls,
        };
        (cost, done)
    }
}

/// Looks a path up as a kernel does that may keep nothing.
fn walk(user: &User, path: &[&str]) -> Result<Ino, FsError> {
    let mut at = Ino::ROOT;
    for name in path {
        at = user.fs.lookup(at, name.as_bytes())?.ino;
    }
    Ok(at)
}

#[test]
fn a_temporary_file_of_another_node_costs_no_more_calls_than_these() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let data = one.fs.fileset("data");
    let top = one.fs.make_directory(data, "tmp");
    let bytes = vec![7; 64 << 10];
    // What is asked once: the owner's word, the path, numbers for objects.
    for round in 0..3 {
        let name = format!("file-{round}");
        let mut steps = Vec::new();
        let mut step = |what: &'static str, cost: Cost| steps.push((what, cost));
        let (cost_of, found) = site.cost(|| walk(&two, &["data", "tmp", &name]));
        assert!(matches!(found, Err(FsError::NotFound)));
        step("look up a name that is not there", cost_of);
        let (cost_of, handle) = site.cost(|| two.create_file(top, &name, WRITE).unwrap());
        step("create", cost_of);
        assert!(handle.is_at_home() && handle.is_direct());
        let ino = handle.ino;
        let (cost_of, ()) = site.cost(|| {
            // The kernel asks for that at the first write.
            let capability = two.fs.xattr(ino, b"security.capability");
            assert!(matches!(capability, Err(FsError::NoAttribute)));
            handle.write(0, &bytes);
        });
        step("write", cost_of);
        let (cost_of, ()) = site.cost(|| handle.close());
        step("close", cost_of);
        let (cost_of, found) = site.cost(|| walk(&two, &["data", "tmp", &name]));
        assert_eq!(found.unwrap(), ino);
        step("look it up", cost_of);
        let (cost_of, handle) = site.cost(|| two.open(ino, READ));
        step("open", cost_of);
        assert!(handle.is_direct());
        let (cost_of, content) = site.cost(|| handle.contents());
        assert!(content == bytes);
        step("stat and read", cost_of);
        let (cost_of, ()) = site.cost(|| handle.close());
        step("close", cost_of);
        let (cost_of, ()) = site.cost(|| two.fs.unlink(top, name.as_bytes()).unwrap());
        step("unlink", cost_of);
        // Once for its creation and for each look.
        two.fs.forget(ino, 2);
        println!("round {round}");
        for (what, cost) in &steps {
            println!("  {what}: {cost:?}");
        }
        if round > 0 {
            let costs: Vec<_> = steps.iter().map(|(_, cost)| *cost).collect();
            let most = [0, 1, 0, 1, 0, 0, 0, 0, 1].map(cost);
            assert_eq!(costs, most, "round {round}: {steps:?}");
        }
    }
    assert!(one.fs.names(top).is_empty() && two.fs.names(top).is_empty());
}

#[test]
fn looking_again_at_a_tree_costs_no_call_nor_do_access_lists_after_changes_of_the_node_itself() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let data = one.fs.fileset("data");
    let top = one.fs.make_directory(data, "top");
    let files: Vec<Ino> =
        (0..50).map(|number| write_file(&one, top, &format!("file-{number}"), b"bytes")).collect();
    one.fs.commit().unwrap();
    let acl = |ino: Ino| {
        let found = two.fs.xattr(ino, b"system.posix_acl_access");
        assert!(matches!(found, Err(FsError::NoAttribute)));
    };
    // What `ls -l`, `git status` and an import of Python ask for.
    let look = || {
        assert_eq!(walk(&two, &["data", "top"]).unwrap(), top);
        acl(top);
        assert_eq!(two.fs.names(top).len(), files.len());
        for (number, ino) in files.iter().enumerate() {
            assert_eq!(walk(&two, &["data", "top", &format!("file-{number}")]).unwrap(), *ino);
            assert_eq!(two.fs.getattr(*ino).unwrap().size, 5);
            acl(*ino);
        }
        assert!(walk(&two, &["data", "top", "absent"]).is_err());
    };
    look();
    assert_eq!(site.cost(look).0, cost(0));
    // Access lists of a directory stay known whatever names this node changes in it, and until somebody changes them.
    let ino = write_file(&two, top, "new", b"new");
    assert_eq!(site.cost(|| acl(top)).0, cost(0));
    two.fs.unlink(top, b"new").unwrap();
    assert_eq!(site.cost(|| acl(top)).0, cost(0));
    two.fs.forget(ino, 1);
    let set = |user: &User, value: &[u8]| {
        let (name, mode) = (b"user.a".as_slice(), forebay_fs::SetMode::Any);
        user.fs
            .set_xattr(top, forebay_fs::SetXattr { name, value, mode, kill_set_gid: false })
            .unwrap();
    };
    for user in [&one, &two, &one] {
        let value = format!("{}", site.now().calls);
        set(user, value.as_bytes());
        for round in 0..2 {
            assert_eq!(two.fs.xattr(top, b"user.a").unwrap(), value.as_bytes());
            write_file(&two, top, &format!("made-{value}-{round}"), b"new");
        }
        assert_eq!(two.fs.xattr(top, b"user.a").unwrap(), value.as_bytes());
    }
}

#[test]
fn a_listing_of_thousands_of_names_takes_few_calls_and_misses_none() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let data = one.fs.fileset("data");
    // Names, their length, and the parts that a listing has: 4,096 entries or 256 KiB of names each. Whether anything follows a
    // full part takes one more.
    for (number, (names, bytes, parts)) in
        [(0, 10, 1), (500, 10, 1), (4000, 10, 1), (4094, 10, 2), (4100, 10, 2), (1500, 250, 2)]
            .into_iter()
            .enumerate()
    {
        let top = one.fs.make_directory(data, &format!("top-{number}"));
        let mut expected: Vec<String> = (0..names).map(|name| format!("{name:0>bytes$}")).collect();
        for name in &expected {
            one.fs.make_directory(top, name);
        }
        // The owner vouches from now on.
        two.fs.names(data);
        let (cost_of, mut found) = site.cost(|| two.fs.names(top));
        // The owner's word of 5 s may end meanwhile, and takes one more call then.
        assert!(cost_of.calls <= parts + 1, "{names} names of {bytes} bytes: {cost_of:?}");
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
        // It is kept.
        let is_free = || {
            let (cost_of, again) = site.cost(|| two.fs.names(top));
            assert_eq!(again.len(), expected.len());
            cost_of == cost(0)
        };
        assert!((0..3).any(|_| is_free()), "{names} names of {bytes} bytes are not kept");
    }
}

#[test]
fn a_small_file_of_the_owners_disk_that_was_read_is_read_again_without_a_call_until_somebody_changes_it()
 {
    let site = Site::new();
    let (one, two, three) = (site.join(ONE), site.join(TWO), site.join(THREE));
    let data = one.fs.fileset("data");
    let ino = write_file(&one, data, "file", b"first");
    assert_eq!(two.fs.lookup(data, b"file").unwrap().ino, ino);
    let read = || {
        let handle = two.open(ino, READ);
        let (bytes, size) = (handle.read(0, 100), two.fs.getattr(ino).unwrap().size);
        assert_eq!((handle.read(bytes.len() as u64, 100).len(), size), (0, bytes.len() as u64));
        assert_eq!(handle.read(1, 2), bytes[1..3]);
        handle.close();
        bytes
    };
    assert_eq!(read(), b"first");
    for (number, writer) in [&one, &three, &two, &one, &three].into_iter().enumerate() {
        // What is changed again and again is not granted for a while.
        let mut looks = 0;
        let before = loop {
            let (cost_of, bytes) = site.cost(read);
            if cost_of == cost(0) {
                break bytes;
            }
            looks += 1;
            assert!(looks < 500, "change {number}: {cost_of:?}");
            std::thread::sleep(Duration::from_millis(10));
        };
        let held = two.open(ino, READ);
        assert_eq!(held.read(0, 100), before);
        let bytes = format!("content {number}");
        writer.overwrite(ino, bytes.as_bytes());
        assert_eq!(held.read(0, 100), bytes.as_bytes());
        assert_eq!(read(), bytes.as_bytes());
        writer.write_file(ino, 0, b"C");
        assert_eq!((held.read(0, 1), read()[0]), (b"C".to_vec(), b'C'));
        let size = Some(4);
        let set = forebay_fs::SetAttributes { size, ..Default::default() };
        writer.fs.set_attributes(ino, set).unwrap();
        assert_eq!((held.read(0, 100), read()), (b"Cont".to_vec(), b"Cont".to_vec()));
        held.close();
    }
    // It outlives its removal.
    read();
    let held = two.open(ino, READ);
    one.fs.unlink(data, b"file").unwrap();
    one.fs.commit().unwrap();
    assert_eq!(held.read(0, 100), b"Cont");
    held.close();
}

impl Site {
    fn objects_on(&self, node: NodeId) -> usize {
        let mut count = 0;
        let disk = Arc::clone(&self.disks.lock()[&node]);
        let mut visit = |_| {
            count += 1;
            true
        };
        disk.list(&mut visit).unwrap();
        count
    }
}

fn write_file(user: &User, parent: Ino, name: &str, bytes: &[u8]) -> Ino {
    let handle = user.create_file(parent, name, READ_WRITE).unwrap();
    handle.write(0, bytes);
    let ino = handle.ino;
    handle.close();
    ino
}

#[test]
fn a_file_that_another_node_writes_costs_its_owner_no_question_about_its_size() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let data = one.fs.fileset("data");
    // Asks for the owner's word, and for numbers.
    two.fs.getattr(data).unwrap();
    write_file(&two, data, "first", b"first");
    let (cost_of, handle) = site.cost(|| two.create_file(data, "file", READ_WRITE).unwrap());
    assert_eq!(cost_of, cost(1));
    handle.write(0, &[1; 5000]);
    let mode = Some(0o600);
    let set = forebay_fs::SetAttributes { mode, ..Default::default() };
    let (cost_of, found) = site.cost(|| two.fs.set_attributes(handle.ino, set).unwrap());
    assert_eq!((cost_of, found.size), (cost(1), 5000));
    handle.write(5000, &[2; 5000]);
    let (cost_of, found) = site.cost(|| two.fs.getattr(handle.ino).unwrap());
    assert_eq!((cost_of, found.size), (cost(1), 10_000));
    let (ino, _) = (handle.ino, handle.write(10_000, b"more"));
    let (cost_of, ()) = site.cost(|| handle.close());
    assert_eq!(cost_of, cost(1));
    assert_eq!(one.fs.getattr(ino).unwrap().size, 10_004);
    // Renamed, and replaced.
    let rename = |from: &[u8], to: &[u8]| {
        two.fs.rename(data, from, data, to, forebay_fs::Replace::Allowed).unwrap();
    };
    let (cost_of, ()) = site.cost(|| rename(b"file", b"renamed"));
    assert_eq!(cost_of, cost(1));
    assert!(matches!(two.fs.lookup(data, b"file"), Err(FsError::NotFound)));
    assert_eq!(two.fs.lookup(data, b"renamed").unwrap().size, 10_004);
    rename(b"renamed", b"file");
    // One that stays empty leaves no object, and costs no more.
    let (cost_of, handle) = site.cost(|| two.create_file(data, "empty", WRITE).unwrap());
    assert_eq!(cost_of, cost(1));
    let (cost_of, ()) = site.cost(|| handle.close());
    assert_eq!((cost_of.calls, cost_of.recalls), (1, 0));
    one.fs.commit().unwrap();
    assert_eq!(site.objects_on(TWO), 2);
}

#[test]
fn a_node_that_alone_writes_a_file_looks_at_it_without_a_call_until_another_one_writes_it() {
    let site = Site::new();
    let (one, two, three) = (site.join(ONE), site.join(TWO), site.join(THREE));
    let data = one.fs.fileset("data");
    // Asks for the owner's word, and for numbers.
    two.fs.getattr(data).unwrap();
    write_file(&two, data, "first", b"first");
    let handle = two.create_file(data, "file", READ_WRITE).unwrap();
    let ino = handle.ino;
    let mut end = 0;
    for round in 0..5_u64 {
        handle.write(end, &[1; 1000]);
        end += 1000;
        let (cost_of, sizes) = site.cost(|| {
            let reader = two.open(ino, READ);
            let bytes = reader.contents().len() as u64;
            reader.close();
            let found = two.fs.lookup(data, b"file").unwrap();
            [bytes, two.fs.getattr(ino).unwrap().size, found.size]
        });
        assert_eq!((cost_of, sizes), (cost(0), [end; 3]), "round {round}");
        let all = [&one, &two, &three].map(|user| of_owner(user.fs.getattr(ino).unwrap()));
        assert!(all.iter().all(|found| *found == all[0]), "round {round}: {all:#?}");
    }
    // Another one writes it.
    let other = three.open(ino, WRITE);
    other.write(end, b"more");
    assert_eq!(two.fs.getattr(ino).unwrap().size, end + 4);
    handle.write(end + 4, b" and more");
    other.close();
    handle.close();
    for user in [&one, &two, &three] {
        assert_eq!(user.fs.lookup(data, b"file").unwrap().size, end + 13);
    }
    // Closed, and looked at before anything else was asked.
    let handle = two.create_file(data, "second", WRITE).unwrap();
    handle.write(0, b"bytes");
    let ino = handle.ino;
    handle.close();
    let (cost_of, found) = site.cost(|| two.fs.lookup(data, b"second").unwrap());
    assert_eq!((cost_of, found.size), (cost(0), 5));
    assert_eq!(of_owner(found), of_owner(one.fs.getattr(ino).unwrap()));
}

/// Attributes without what only concerns the kernel that asked.
fn of_owner(found: forebay_fs::Attributes) -> forebay_fs::Attributes {
    forebay_fs::Attributes { cacheable: false, name: forebay_fs::KeepName::Never, ..found }
}

#[test]
fn a_file_that_is_open_by_a_grant_outlives_its_removal_by_any_node() {
    for remover in [ONE, TWO, THREE] {
        let site = Site::new();
        let all = [site.join(ONE), site.join(TWO), site.join(THREE)];
        let data = all[0].fs.fileset("data");
        let ino = write_file(&all[1], data, "file", b"bytes");
        let names: Vec<_> = all.iter().map(|user| user.fs.lookup(data, b"file").unwrap()).collect();
        assert!(names.iter().all(|found| found.ino == ino && found.size == 5));
        // On the node of its disk, and on a third one.
        let (cost_of, handles) = site.cost(|| [all[1].open(ino, READ), all[2].open(ino, READ)]);
        assert_eq!(cost_of, cost(0));
        all[remover.0 as usize - 1].fs.unlink(data, b"file").unwrap();
        all[0].fs.commit().unwrap();
        for handle in &handles {
            assert_eq!(handle.read(0, 10), b"bytes", "removed by node {remover}");
        }
        assert!(all.iter().all(|user| user.fs.lookup(data, b"file").is_err()));
        handles.into_iter().for_each(|handle| handle.close());
        all.iter().for_each(|user| user.fs.forget(ino, 1));
        // It was made there.
        all[1].fs.forget(ino, 1);
        // What is forgotten goes with the next request.
        all[1].fs.make_file(data, "other");
        all[2].fs.make_file(data, "one more");
        all[0].fs.commit().unwrap();
        assert_eq!(site.objects_on(TWO), 0, "removed by node {remover}");
    }
}

#[test]
fn a_file_that_is_open_by_a_grant_shows_what_others_write_and_truncate() {
    let site = Site::new();
    let all = [site.join(ONE), site.join(TWO), site.join(THREE)];
    let data = all[0].fs.fileset("data");
    for writer in &all {
        let ino = write_file(&all[1], data, "file", b"before");
        let readers = [&all[1], &all[2]].map(|user| {
            user.fs.lookup(data, b"file").unwrap();
            user.open(ino, READ)
        });
        writer.overwrite(ino, b"new");
        for reader in &readers {
            assert_eq!(reader.read(0, 10), b"new");
        }
        writer.write_file(ino, 3, b" and more");
        for (reader, user) in readers.into_iter().zip([&all[1], &all[2]]) {
            assert_eq!(reader.read(0, 20), b"new and more");
            assert_eq!(user.fs.getattr(ino).unwrap().size, 12);
            reader.close();
        }
        writer.fs.unlink(data, b"file").unwrap();
    }
}

#[test]
fn an_object_that_was_made_for_a_file_that_is_not_is_removed() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let data = one.fs.fileset("data");
    one.fs.make_file(data, "there");
    for _ in 0..3 {
        let made = two.create_file(data, "there", READ_WRITE);
        assert!(matches!(made, Err(FsError::Exists)));
    }
    assert_eq!(site.objects_on(TWO), 0);
    let handle = two.create_file(data, "another", READ_WRITE).unwrap();
    assert_eq!(site.objects_on(TWO), 1);
    handle.close();
    // It stayed empty.
    one.fs.commit().unwrap();
    assert_eq!(site.objects_on(TWO), 0);
    assert_eq!(one.fs.names(data).len(), 2);
}

#[test]
fn the_size_after_a_close_is_right_whatever_others_did_meanwhile() {
    let site = Site::new();
    let all = [site.join(ONE), site.join(TWO), site.join(THREE)];
    let data = all[0].fs.fileset("data");
    for (round, other) in all.iter().cycle().take(12).enumerate() {
        let name = format!("file-{round}");
        let writer = all[1].create_file(data, &name, READ_WRITE).unwrap();
        let ino = writer.ino;
        writer.write(0, &[1; 1000]);
        let size = match round % 4 {
            0 => 1000,
            1 => {
                let size = Some(10);
                let set = forebay_fs::SetAttributes { size, ..Default::default() };
                other.fs.set_attributes(ino, set).unwrap();
                10
            }
            2 => {
                other.write_file(ino, 1000, &[2; 500]);
                1500
            }
            _ => {
                other.overwrite(ino, &[3; 7]);
                7
            }
        };
        let sizes =
            || all.each_ref().map(|user| user.fs.lookup(data, name.as_bytes()).unwrap().size);
        assert_eq!(sizes(), [size; 3], "open, round {round}");
        writer.close();
        assert_eq!(sizes(), [size; 3], "closed, round {round}");
        assert_eq!(all[2].contents(ino).len() as u64, size);
    }
}

#[test]
fn a_name_that_another_node_makes_is_found_where_all_names_were_known() {
    let site = Site::new();
    let all = [site.join(ONE), site.join(TWO), site.join(THREE)];
    let data = all[0].fs.fileset("data");
    let top = all[1].fs.make_directory(data, "top");
    let is_there = |user: &User, name: &str| match user.fs.lookup(top, name.as_bytes()) {
        Ok(found) => {
            user.fs.forget(found.ino, 1);
            true
        }
        Err(FsError::NotFound) => false,
        Err(error) => panic!("{error}"),
    };
    for round in 0..60 {
        let name = format!("name-{}", round % 5);
        let by = &all[round % 3];
        let before = all.each_ref().map(|user| is_there(user, &name));
        assert_eq!(before, [false; 3], "round {round}");
        // Changes of the node's own keep what it knows.
        let own = format!("own-{round}");
        write_file(&all[1], top, &own, b"own");
        let missing = format!("missing-{round}");
        assert!(is_there(&all[1], &own) && !is_there(&all[1], &missing));
        write_file(by, top, &name, b"x");
        assert_eq!(all.each_ref().map(|user| is_there(user, &name)), [true; 3], "round {round}");
        let remover = &all[(round / 3) % 3];
        remover.fs.unlink(top, name.as_bytes()).unwrap();
        assert_eq!(all.each_ref().map(|user| is_there(user, &name)), [false; 3], "round {round}");
        all[1].fs.unlink(top, own.as_bytes()).unwrap();
        assert!(!is_there(&all[1], &own));
    }
    assert!(all.iter().all(|user| user.fs.names(top).is_empty()));
}

#[test]
fn nodes_that_make_and_remove_files_in_one_directory_at_once_never_see_anything_old() {
    let site = Site::new();
    let all = [site.join(ONE), site.join(TWO), site.join(THREE)];
    let data = all[0].fs.fileset("data");
    let top = all[0].fs.make_directory(data, "top");
    site.nodes.weather.lock().delay_us = 200;
    std::thread::scope(|scope| {
        for (number, user) in all.iter().enumerate() {
            let others = [&all[(number + 1) % 3], &all[(number + 2) % 3]];
            scope.spawn(move || {
                for round in 0..60 {
                    let name = format!("{number}-{round}");
                    let missing = user.fs.lookup(top, name.as_bytes());
                    assert!(matches!(missing, Err(FsError::NotFound)));
                    let ino = write_file(user, top, &name, name.as_bytes());
                    for other in others {
                        let found = other.fs.lookup(top, name.as_bytes()).unwrap();
                        assert_eq!((found.ino, found.size), (ino, name.len() as u64));
                        let handle = other.open(ino, READ);
                        assert_eq!(handle.read(0, 100), name.as_bytes());
                        if round % 2 == 0 {
                            user.fs.unlink(top, name.as_bytes()).unwrap();
                            assert_eq!(handle.read(0, 100), name.as_bytes());
                        }
                        handle.close();
                        other.fs.forget(ino, 1);
                        if round % 2 == 0 {
                            let gone = other.fs.lookup(top, name.as_bytes());
                            assert!(matches!(gone, Err(FsError::NotFound)));
                            break;
                        }
                    }
                    if round % 2 == 1 {
                        others[0].fs.unlink(top, name.as_bytes()).unwrap();
                    }
                    user.fs.forget(ino, 1);
                    let gone = user.fs.lookup(top, name.as_bytes());
                    assert!(matches!(gone, Err(FsError::NotFound)), "{name}");
                }
            });
        }
    });
    assert!(all.iter().all(|user| user.fs.names(top).is_empty()));
    for (_, figures) in all[0].fs.grant_figures() {
        assert_eq!(figures.evictions, 0);
    }
}
