//! Native filesets of a cluster: a directory for each node, on its own disk, which all nodes see.

mod support;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_base::time::StepClock;
use forebay_base::{ClientId, DiskId, FailPoints, Ino, NodeId};
use forebay_disk::Disk;
use forebay_disk::directory::{DirectoryDisk, Label};
use forebay_fs::mkfs::{self, Identity};
use forebay_fs::record::{DiskRecord, Durability, Placement};
use forebay_fs::reserve::Reserve;
use forebay_fs::{FsError, KeepName, Namespace, Parts, Replace, Settings};
use forebay_store::memory::MemoryStores;
use parking_lot::Mutex;
use support::{Nodes, READ, READ_WRITE, ROOT, Shorthand as _, WRITE, directory, file};

const ONE: NodeId = NodeId(1);
const TWO: NodeId = NodeId(2);

/// Nodes with a directory each as their disk; the first owns every fileset with a store.
struct Site {
    folder: tempfile::TempDir,
    stores: Arc<MemoryStores>,
    clock: Arc<StepClock>,
    nodes: Arc<Nodes>,
    owner_wait: Duration,
    /// Disks outlive the daemons of their nodes here, as all nodes share their handles.
    opened: Mutex<HashMap<NodeId, Arc<dyn Disk>>>,
}

impl Site {
    fn new() -> Site {
        let clock = Arc::new(StepClock::new(1_000_000));
        let stores = Arc::new(MemoryStores::default());
        let nodes = Nodes::with_owner(ONE);
        let (folder, opened) = (tempfile::tempdir().unwrap(), Mutex::default());
        let owner_wait = Duration::from_secs(2);
        let site = Site { owner_wait, folder, stores, clock, nodes, opened };
        let location = site.disk(ONE).display().to_string();
        let record = DiskRecord::new(DiskId(0), "disk-1", &location);
        let identity = Identity {
            uuid: "whole".to_owned(),
            hash_key: [7; 16],
            disks: vec![record],
            owner: (0, 0),
            scratch: Placement::Native,
        };
        mkfs::make_for_cluster(&*site.stores, &identity, &*site.clock).unwrap();
        site
    }

    fn disk(&self, node: NodeId) -> PathBuf {
        self.folder.path().join(format!("d{node}"))
    }

    /// The directory of a node in a native fileset, as the disk has it.
    fn tree(&self, node: NodeId, fileset: &str) -> PathBuf {
        self.disk(node).join(format!("native/{fileset}/n{node}/tree"))
    }

    fn parts(&self, node: NodeId) -> Parts {
        let (uuid, place) = (format!("disk-{node}"), self.disk(node));
        let label = Label { file_system: "whole".to_owned(), disk: uuid.clone() };
        if !place.exists() {
            std::fs::create_dir(&place).unwrap();
            DirectoryDisk::format(&place, &label).unwrap();
        }
        let open = || Arc::new(DirectoryDisk::open(&place, &label).unwrap()) as Arc<dyn Disk>;
        let disk = Arc::clone(self.opened.lock().entry(node).or_insert_with(open));
        Parts {
            stores: Arc::clone(&self.stores) as _,
            disks: vec![(uuid, disk)],
            settings: Settings { owner_wait: self.owner_wait, ..Settings::default() },
            clock: Arc::clone(&self.clock) as _,
            fail_points: FailPoints::none(),
            reserve: Reserve::none(),
        }
    }

    fn join(&self, node: NodeId) -> Arc<Namespace> {
        let fs = self.nodes.join(node, self.parts(node));
        fs.make_node_directories().unwrap();
        fs
    }

    fn calls(&self) -> u64 {
        self.nodes.calls.load(Ordering::Relaxed)
    }
}

fn write(fs: &Namespace, ino: Ino, data: &[u8]) {
    fs.open_file(ino, WRITE, ROOT).unwrap();
    assert_eq!(fs.write(ino, 0, data).unwrap(), data.len());
    fs.close_file(ino, WRITE).unwrap();
}

fn read(fs: &Namespace, ino: Ino) -> Vec<u8> {
    fs.open_file(ino, READ, ROOT).unwrap();
    let mut buffer = vec![0; 100];
    let read = fs.read(ino, 0, &mut buffer).unwrap();
    fs.close_file(ino, READ).unwrap();
    buffer.truncate(read);
    buffer
}

fn says(error: &FsError, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{text:?} does not say {part:?}");
    }
}

#[test]
fn each_node_has_a_directory_on_its_own_disk_which_all_nodes_see() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let (work, of_one) = (two.fileset("work"), two.find(two.fileset("work"), "n1").unwrap());
    assert_eq!(one.fileset("work"), work);
    for fs in [&one, &two] {
        let mut names = fs.names(work);
        names.sort();
        assert_eq!(names, ["n1", "n2"]);
    }
    let made = two.create(of_one, b"file", file(0o644), ROOT).unwrap();
    write(&two, made.ino, b"from two");
    assert_eq!(std::fs::read(site.tree(ONE, "work").join("file")).unwrap(), b"from two");
    // Programs of its node change it without a word: nothing may be kept.
    assert!(!made.cacheable && made.name == KeepName::Never && !two.keeps_names(of_one));
    std::fs::write(site.tree(ONE, "work").join("file"), "changed natively").unwrap();
    assert_eq!(read(&two, made.ino), b"changed natively");
    assert_eq!(two.attributes(made.ino).unwrap().size, 16);
    std::fs::rename(site.tree(ONE, "work").join("file"), site.tree(ONE, "work").join("moved"))
        .unwrap();
    assert_eq!((two.find(of_one, "file"), two.find(of_one, "moved")), (None, Some(made.ino)));
    // What a node does in its own directory costs no call, and the owner of the root may be gone.
    let of_two = two.find(work, "n2").unwrap();
    let before = site.calls();
    site.nodes.kill(ONE);
    let own = two.create(of_two, b"own", file(0o644), ROOT).unwrap();
    write(&two, own.ino, b"bytes");
    assert_eq!(two.find(work, "n2"), Some(of_two));
    two.unlink(of_two, b"own").unwrap();
    assert_eq!(site.calls(), before);
}

#[test]
fn nothing_can_be_made_beside_node_directories_and_names_do_not_cross_them() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let work = one.fileset("work");
    let refused = [
        one.create(work, b"file", file(0o644), ROOT).map(drop),
        one.create(work, b"n3", directory(0o755), ROOT).map(drop),
        one.remove_directory(work, b"n2"),
        one.rename(work, b"n2", work, b"n3", Replace::Allowed),
    ];
    for error in refused {
        assert!(matches!(error, Err(FsError::NotPermitted)), "{error:?}");
    }
    let top = one.attributes(work).unwrap();
    assert!(top.cacheable && top.name == KeepName::Lasting && top.mode == 0o755);
    let (of_one, of_two) = (two.find(work, "n1").unwrap(), two.find(work, "n2").unwrap());
    two.make_file(of_one, "file");
    let crossed = two.rename(of_one, b"file", of_two, b"file", Replace::Allowed);
    assert!(matches!(crossed, Err(FsError::CrossFileset)), "{crossed:?}");
}

#[test]
fn a_node_that_has_just_come_is_found_and_one_that_does_not_run_is_named() {
    let site = Site::new();
    let one = site.join(ONE);
    let work = one.fileset("work");
    assert_eq!(one.find(work, "n2"), None);
    let two = site.join(TWO);
    let of_two = one.find(work, "n2").expect("the node has come");
    assert_eq!(one.names(work).len(), 2);
    one.make_file(of_two, "file");
    site.nodes.lost.lock().insert(TWO);
    for error in [one.lookup(work, b"n2").unwrap_err(), one.attributes(of_two).unwrap_err()] {
        assert!(matches!(error, FsError::Io(_)));
        says(&error, &["node 2", "does not run"]);
    }
    let status = one.fileset_status();
    let problem = status.iter().find(|found| found.name == "work/n2").unwrap().problem.clone();
    assert!(problem.unwrap().contains("does not run"));
    // Its own programs go on.
    two.make_file(two.find(work, "n2").unwrap(), "more");
    site.nodes.lost.lock().remove(&TWO);
    assert_eq!(one.names(of_two).len(), 2);
}

#[test]
fn a_node_that_does_not_answer_is_named_once_owner_wait_is_over() {
    // The clock of these tests stands still.
    let site = Site { owner_wait: Duration::ZERO, ..Site::new() };
    let (one, _two) = (site.join(ONE), site.join(TWO));
    let of_two = one.find(one.fileset("work"), "n2").unwrap();
    site.nodes.kill(TWO);
    let error = one.attributes(of_two).unwrap_err();
    assert!(matches!(error, FsError::Io(_)));
    says(&error, &["work/n2", "does not answer"]);
}

#[test]
fn files_open_on_another_node_are_stale_when_its_daemon_was_started_again() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let of_two = one.find(one.fileset("work"), "n2").unwrap();
    let ino = one.create(of_two, b"file", file(0o644), ROOT).unwrap().ino;
    write(&one, ino, b"kept");
    let opened = one.open_file(ino, READ_WRITE, ROOT).unwrap();
    site.nodes.leave(TWO);
    two.close().unwrap();
    drop(two);
    let parts = site.parts(TWO);
    let _two = site.nodes.join_again(TWO, 2, parts);
    // The daemon does not know what it was asked for before: it may be another file by now.
    let mut buffer = [0; 4];
    let stale = one.read(ino, 0, &mut buffer);
    assert!(matches!(stale, Err(FsError::Stale)), "{stale:?}");
    assert!(one.check_lineage(ino, opened.lineage).is_err());
    let _ = one.close_file(ino, READ_WRITE);
    let again = one.lookup(of_two, b"file").unwrap().ino;
    assert_eq!(read(&one, again), b"kept");
}

#[test]
fn a_native_fileset_comes_and_goes_on_all_nodes() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let bound = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&bound);
    one.set_binder(Box::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
    }));
    let create =
        |name: &str, mode| two.create_fileset(name, Durability::Scratch, Placement::Native, mode);
    says(&create("scratch", 0o755).unwrap_err(), &["mode 1777"]);
    says(&create("work", 0o1777).unwrap_err(), &["already exists"]);
    create("scratch", 0o1777).unwrap();
    assert_eq!(bound.load(Ordering::Relaxed), 1);
    let scratch = one.fileset("scratch");
    assert_eq!((one.names(scratch).len(), two.names(scratch).len()), (2, 2));
    let of_one = two.find(scratch, "n1").unwrap();
    two.make_file(of_one, "file");
    for name in ["scratch", "scratch/n1"] {
        says(&two.remove_fileset(name).unwrap_err(), &["scratch/n1", "holds files"]);
    }
    assert_eq!(one.names(scratch).len(), 2, "what was removed before the refusal is made again");
    two.unlink(of_one, b"file").unwrap();
    let _ = one.take_stale();
    two.remove_fileset("scratch").unwrap();
    for (fs, node) in [(&one, ONE), (&two, TWO)] {
        assert!(matches!(fs.lookup(Ino::ROOT, b"scratch"), Err(FsError::NotFound)));
        assert!(!site.tree(node, "scratch").exists());
        assert!(fs.fileset_status().iter().all(|found| !found.name.starts_with("scratch")));
    }
    // Another one under the name is another one.
    create("scratch", 0o1777).unwrap();
    assert!(
        matches!(two.attributes(of_one), Err(FsError::Stale | FsError::NotFound))
            || one.fileset("scratch") != scratch
    );
    assert!(two.names(two.find(two.fileset("scratch"), "n1").unwrap()).is_empty());
}

#[test]
fn the_directory_of_a_node_that_left_is_removed_as_lost_or_made_anew_when_it_comes_back() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let work = one.fileset("work");
    says(&one.remove_lost_fileset("work/n2").unwrap_err(), &["not lost"]);
    says(&one.remove_lost_fileset("work/n1").unwrap_err(), &["not lost"]);
    says(&one.remove_lost_fileset("work").unwrap_err(), &["not lost"]);
    site.nodes.leave(TWO);
    two.close().unwrap();
    drop(two);
    site.nodes.drop_client(ClientId { node: TWO, incarnation: 1 });
    site.nodes.take_disk_away("disk-2");
    says(&one.lookup(work, b"n2").unwrap_err(), &["no node has disk disk-2"]);
    says(&one.remove_fileset("work/n2").unwrap_err(), &["no node has disk disk-2", "--lost"]);
    one.remove_lost_fileset("work/n2").unwrap();
    assert_eq!(one.names(work), ["n1"]);
    // util/n2 is still known; a node of that name with another disk takes its place.
    let parts = Parts { disks: Vec::new(), ..site.parts(TWO) };
    let label = Label { file_system: "whole".to_owned(), disk: "disk-2b".to_owned() };
    let place = site.folder.path().join("other");
    std::fs::create_dir(&place).unwrap();
    DirectoryDisk::format(&place, &label).unwrap();
    let disk: Arc<dyn Disk> = Arc::new(DirectoryDisk::open(&place, &label).unwrap());
    site.nodes.bring(TWO, "disk-2b", &disk);
    let parts = Parts { disks: vec![("disk-2b".to_owned(), disk)], ..parts };
    let two = site.nodes.join_again(TWO, 2, parts);
    two.make_node_directories().unwrap();
    for fileset in ["work", "util"] {
        let of_two = one.find(one.fileset(fileset), "n2").unwrap();
        one.make_file(of_two, "file");
        assert!(place.join(format!("native/{fileset}/n2/tree/file")).exists());
    }
}
