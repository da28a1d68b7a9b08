//! What the kernels of nodes keep: a model of a kernel's caches on each node, which believes an answer for as long as it may.
#![allow(clippy::disallowed_methods, reason = "a kernel keeps things by the real clock")]

mod support;

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_base::{Clock as _, FailPoints, FilesetId, Ino, NodeId};
use forebay_disk::memory::MemoryDisk;
use forebay_fs::reserve::Reserve;
use forebay_fs::{
    Attributes, FsError, HandOver, KeepName, KernelCache, KernelTimes, NameKept, Namespace, Parts,
    Replace, SetAttributes, Settings,
};
use forebay_store::memory::MemoryStores;
use parking_lot::{Condvar, Mutex};
use support::{Nodes, ROOT, Shorthand as _, SteppedTimes, directory, file, new_stores};

const ONE: NodeId = NodeId(1);
const TWO: NodeId = NodeId(2);

/// Nodes of one file system with a kernel each; node 1 owns everything.
struct Site {
    stores: Arc<MemoryStores>,
    clock: Arc<SteppedTimes>,
    nodes: Arc<Nodes>,
}

type Name = (Ino, Vec<u8>);

/// What a kernel believes, and until when.
#[derive(Default)]
struct Caches {
    names: HashMap<Name, (Option<Ino>, Instant)>,
    attributes: HashMap<Ino, (Attributes, Instant)>,
    /// Directories that a request holds.
    held: HashSet<Ino>,
}

/// The caches of a kernel. It forgets a name only while no request holds the directory.
#[derive(Default)]
struct Memory {
    caches: Mutex<Caches>,
    /// Names that it was to ask for again.
    released: Mutex<Vec<Name>>,
    let_go: Condvar,
}

impl KernelCache for Memory {
    fn forget_attributes(&self, ino: Ino) {
        self.caches.lock().attributes.remove(&ino);
    }

    fn forget_entry(&self, parent: Ino, name: &[u8]) {
        let mut caches = self.caches.lock();
        while caches.held.contains(&parent) {
            self.let_go.wait(&mut caches);
        }
        caches.names.remove(&(parent, name.to_vec()));
        caches.attributes.remove(&parent);
    }

    fn ask_again_for_entry(&self, parent: Ino, name: &[u8]) {
        self.released.lock().push((parent, name.to_vec()));
        self.forget_entry(parent, name);
    }

    fn forget_listing(&self, ino: Ino) {
        self.forget_attributes(ino);
    }

    fn is_mounted(&self) -> bool {
        true
    }
}

/// A node with its kernel.
struct Mounted {
    fs: Arc<Namespace>,
    memory: Arc<Memory>,
    ttl: Duration,
    requests: AtomicU64,
}

impl Site {
    fn new() -> Site {
        let clock = Arc::new(SteppedTimes::new(1_000_000));
        let stores = new_stores("whole", "memory", &*clock);
        Site { stores, clock, nodes: Nodes::with_owner(ONE) }
    }

    fn mount(&self, node: NodeId, ttl: Duration) -> Mounted {
        self.mount_with(node, ttl.into())
    }

    fn mount_with(&self, node: NodeId, times: KernelTimes) -> Mounted {
        let disk = MemoryDisk::new(1 << 40, Arc::clone(&self.clock) as _);
        let settings = Settings { owner_wait: Duration::from_secs(20), ..Settings::default() };
        let parts = Parts {
            stores: Arc::clone(&self.stores) as _,
            disks: vec![(format!("disk-{node}"), Arc::new(disk) as _)],
            settings,
            clock: Arc::clone(&self.clock) as _,
            fail_points: FailPoints::none(),
            reserve: Reserve::none(),
        };
        let fs = self.nodes.join(node, parts);
        let memory = Arc::<Memory>::default();
        fs.set_kernel_cache(Arc::clone(&memory) as _, times);
        Mounted { fs, memory, ttl: times.lent, requests: AtomicU64::new(0) }
    }

    fn calls<T>(&self, work: impl FnOnce() -> T) -> (u64, T) {
        let before = self.nodes.calls.load(Ordering::Relaxed);
        let done = work();
        (self.nodes.calls.load(Ordering::Relaxed) - before, done)
    }
}

impl Mounted {
    /// A request of the kernel: `arrive` takes the answer into its caches.
    fn request<T>(&self, ask: impl FnOnce() -> T, arrive: impl FnOnce(&mut Caches, &T)) -> T {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.fs.begin_answer();
        let answer = ask();
        arrive(&mut self.memory.caches.lock(), &answer);
        self.fs.end_answer();
        answer
    }

    /// Until when it keeps what an answer says.
    fn until(&self, ino: Ino, name: Option<(Ino, &str)>) -> Instant {
        let name = name.map(|(parent, name)| (parent, name.as_bytes()));
        Instant::now() + self.fs.keeps_own(ino, name).unwrap_or(self.ttl)
    }

    /// Attributes that come with a name.
    fn keep_attributes(&self, caches: &mut Caches, found: &Attributes) {
        if found.cacheable {
            caches.attributes.insert(found.ino, (*found, Instant::now() + self.ttl));
        }
    }

    /// FUSE LOOKUP.
    fn ask_for(&self, parent: Ino, name: &str) -> Option<Ino> {
        let ask = || self.fs.lookup(parent, name.as_bytes());
        let found = self.request(ask, |caches, found| {
            let key = (parent, name.as_bytes().to_vec());
            match found {
                Ok(found) => {
                    self.keep_attributes(caches, found);
                    let kept = match found.name {
                        KeepName::AsSet => self.fs.keeps_name((parent, name.as_bytes()), found.ino),
                        KeepName::Never | KeepName::Lasting => NameKept::Never,
                    };
                    let time = match kept {
                        NameKept::Never => None,
                        NameKept::AsLent => Some(self.ttl),
                        NameKept::For(time) => Some(time),
                    };
                    match time {
                        Some(time) => {
                            let until = Instant::now() + time;
                            caches.names.insert(key, (Some(found.ino), until));
                        }
                        None => drop(caches.names.remove(&key)),
                    }
                }
                Err(_) if self.fs.may_keep_absence(parent) || self.fs.answer_lends_absence() => {
                    caches.names.insert(key, (None, self.until(parent, Some((parent, name)))));
                }
                Err(_) => drop(caches.names.remove(&key)),
            }
        });
        match found {
            Ok(found) => Some(found.ino),
            Err(FsError::NotFound) => None,
            Err(error) => panic!("{name}: {error}"),
        }
    }

    fn look_up(&self, parent: Ino, name: &str) -> Option<Ino> {
        let known = self.memory.caches.lock().names.get(&(parent, name.into())).copied();
        match known {
            Some((ino, until)) if Instant::now() < until => ino,
            _ => self.ask_for(parent, name),
        }
    }

    fn attributes(&self, ino: Ino) -> Result<Attributes, FsError> {
        let known = self.memory.caches.lock().attributes.get(&ino).copied();
        match known {
            Some((found, until)) if Instant::now() < until => Ok(found),
            _ => self.request(
                || self.fs.getattr(ino),
                |caches, found| {
                    if let Ok(found) = found
                        && found.cacheable
                    {
                        caches.attributes.insert(ino, (*found, self.until(ino, None)));
                    }
                },
            ),
        }
    }

    fn stat(&self, parent: Ino, name: &str) -> Option<Attributes> {
        let ino = self.look_up(parent, name)?;
        match self.attributes(ino) {
            Ok(found) => Some(found),
            Err(FsError::Stale) => None,
            Err(error) => panic!("{name}: {error}"),
        }
    }

    fn hold(&self, directory: Ino) {
        assert!(self.memory.caches.lock().held.insert(directory));
    }

    fn let_go(&self, directory: Ino) {
        self.memory.caches.lock().held.remove(&directory);
        self.memory.let_go.notify_all();
    }

    /// rename(2) within a directory that is held: the kernel moves what it believes the old name to lead to, and repeats it once
    /// after ESTALE, with LOOKUP_REVAL.
    fn rename_held(&self, parent: Ino, old: &str, new: &str) -> Result<(), FsError> {
        let rename =
            || self.fs.rename(parent, old.as_bytes(), parent, new.as_bytes(), Replace::Allowed);
        self.look_up(parent, old);
        let mut renamed = self.request(rename, |_, _| {});
        if matches!(renamed, Err(FsError::Stale)) {
            self.ask_for(parent, old);
            renamed = self.request(rename, |_, _| {});
        }
        renamed?;
        let mut caches = self.memory.caches.lock();
        caches.names.remove(&(parent, new.into()));
        if let Some(moved) = caches.names.remove(&(parent, old.into())) {
            caches.names.insert((parent, new.into()), moved);
        }
        Ok(())
    }

    fn requests<T>(&self, work: impl FnOnce() -> T) -> (u64, T) {
        let before = self.requests.load(Ordering::Relaxed);
        let done = work();
        (self.requests.load(Ordering::Relaxed) - before, done)
    }
}

fn chmod(mode: u16) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

fn wait_for(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_second_look_at_a_tree_of_another_node_takes_no_request_of_the_kernel() {
    let site = Site::new();
    // So long that a busy machine gets through.
    let (one, two) = (site.mount(ONE, Duration::ZERO), site.mount(TWO, Duration::from_secs(2)));
    let data = one.fs.fileset("data");
    let top = one.fs.make_directory(data, "top");
    for number in 0..20 {
        one.fs.make_file(top, &format!("file-{number}"));
    }
    let look = || {
        assert_eq!(two.look_up(Ino::ROOT, "data"), Some(data));
        assert_eq!(two.look_up(data, "top"), Some(top));
        let find = |number| two.stat(top, &format!("file-{number}")).unwrap().ino;
        let found: Vec<Ino> = (0..20).map(find).collect();
        assert_eq!(two.look_up(top, "absent"), None);
        found
    };
    // The word of the owner may be about to lapse, and the first answers tell the kernel of inodes.
    for round in 0_u32.. {
        let before = look();
        let (calls, (requests, again)) = site.calls(|| two.requests(look));
        assert_eq!(before, again);
        if (calls, requests) == (0, 0) {
            break;
        }
        assert!(round < 50, "{calls} calls, {requests} requests");
    }
}

#[test]
fn a_change_by_the_owner_is_answered_once_other_kernels_have_forgotten() {
    let site = Site::new();
    let (one, two) = (site.mount(ONE, Duration::ZERO), site.mount(TWO, Duration::from_secs(2)));
    let data = one.fs.fileset("data");
    for round in 0..20_u16 {
        let ino = one.fs.make_file(data, "file");
        let other = one.fs.make_file(data, "other");
        for _ in 0..3 {
            two.stat(data, "file").unwrap();
        }
        one.fs.set_attributes(ino, chmod(0o400 + round)).unwrap();
        assert_eq!(two.stat(data, "file").unwrap().mode, 0o400 + round);
        one.fs.rename(data, b"other", data, b"file", Replace::Allowed).unwrap();
        assert_eq!(two.stat(data, "file").unwrap().ino, other);
        one.fs.unlink(data, b"file").unwrap();
        assert_eq!(two.look_up(data, "file"), None);
    }
    for (_, figures) in one.fs.grant_figures() {
        assert_eq!(figures.evictions, 0);
    }
}

#[test]
fn a_name_whose_directory_is_held_delays_a_change_only_as_long_as_it_is_lent() {
    let site = Site::new();
    let (one, two) = (site.mount(ONE, Duration::ZERO), site.mount(TWO, Duration::from_millis(300)));
    let data = one.fs.fileset("data");
    one.fs.make_file(data, "file");
    wait_for(|| {
        two.stat(data, "file").unwrap();
        two.memory.caches.lock().names.contains_key(&(data, b"file".to_vec()))
    });
    two.hold(data);
    one.fs.unlink(data, b"file").unwrap();
    assert_eq!(two.look_up(data, "file"), None, "the kernel believes nothing old");
    two.let_go(data);
    for (_, figures) in one.fs.grant_figures() {
        assert_eq!(figures.evictions, 0);
    }
}

#[test]
fn names_are_not_lent_in_a_directory_in_which_programs_of_the_node_change_names() {
    let site = Site::new();
    let (one, two) = (site.mount(ONE, Duration::ZERO), site.mount(TWO, Duration::from_millis(300)));
    let data = one.fs.fileset("data");
    let (quiet, busy) = (one.fs.make_directory(data, "quiet"), one.fs.make_directory(data, "busy"));
    for parent in [quiet, busy] {
        one.fs.make_file(parent, "file");
    }
    let is_lent = |parent: Ino| {
        two.stat(parent, "file").unwrap();
        let caches = two.memory.caches.lock();
        let until = caches.names.get(&(parent, b"file".to_vec())).map(|(_, until)| *until);
        until.is_some_and(|until| until > Instant::now())
    };
    wait_for(|| is_lent(quiet) && is_lent(busy));
    let mut number = 0;
    let make = |number: u32| {
        two.fs.create(busy, format!("new-{number}").as_bytes(), file(0o644), ROOT).unwrap();
    };
    make(number);
    // What was lent before ends by itself.
    wait_for(|| {
        two.memory.caches.lock().names.remove(&(busy, b"file".to_vec()));
        !is_lent(busy)
    });
    for _ in 0..10 {
        number += 1;
        make(number);
        assert!(!is_lent(busy));
    }
}

#[test]
fn nothing_is_lent_outside_an_answer_to_the_kernel() {
    let site = Site::new();
    let (one, two) = (site.mount(ONE, Duration::ZERO), site.mount(TWO, Duration::from_millis(300)));
    let data = one.fs.fileset("data");
    let ino = one.fs.make_file(data, "file");
    for _ in 0..5 {
        let found = two.fs.lookup(data, b"file").unwrap();
        assert_eq!((found.ino, found.name, found.cacheable), (ino, KeepName::Never, false));
        assert!(!two.fs.getattr(ino).unwrap().cacheable && !two.fs.answer_lends());
    }
}

#[test]
fn names_that_do_not_change_stay_known_to_the_kernel_when_a_fileset_is_handed_over() {
    let site = Site::new();
    let (one, two) = (site.mount(ONE, Duration::ZERO), site.mount(TWO, Duration::from_secs(2)));
    let data = one.fs.fileset("data");
    one.fs.make_directory(data, "directory");
    let name = (data, b"directory".to_vec());
    wait_for(|| {
        two.stat(data, "directory").unwrap();
        let caches = two.memory.caches.lock();
        caches.names.get(&name).is_some_and(|(_, until)| *until > Instant::now() + two.ttl / 2)
    });
    let fileset = data.fileset();
    one.fs.hand_over(fileset, HandOver::Refuse).unwrap();
    assert!(two.memory.released.lock().contains(&name), "it is asked for again, not dropped");
    site.nodes.give(fileset, TWO, 7);
    [&one, &two].iter().for_each(|node| node.fs.owner_changed(fileset).unwrap());
    assert!(two.stat(data, "directory").is_some());
}

#[test]
fn nothing_that_a_kernel_keeps_is_ever_old() {
    let site = Site::new();
    let ttl = Duration::from_millis(200);
    let (one, two) = (site.mount(ONE, ttl), site.mount(TWO, ttl));
    site.nodes.weather.lock().delay_us = 100;
    let data = one.fs.fileset("data");
    let top = one.fs.make_directory(data, "top");
    let ino = one.fs.make_file(top, "file");
    // The mode is never less than `version`. There is a name "a" at stage 1 of 4, none at stage 3, and it changes at the others.
    let (version, stage) = (AtomicU16::new(0), AtomicU64::new(0));
    let is_over = AtomicBool::new(false);
    one.fs.set_attributes(ino, chmod(0)).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let least = version.load(Ordering::SeqCst);
                    let found = two.stat(top, "file").unwrap();
                    assert!(found.mode >= least, "{} after {least}", found.mode);
                    let before = stage.load(Ordering::SeqCst);
                    let is_found = two.look_up(top, "a").is_some();
                    let is_still = stage.load(Ordering::SeqCst) == before;
                    let is_right = match before % 4 {
                        1 => is_found,
                        3 => !is_found,
                        _ => true,
                    };
                    assert!(is_right || !is_still, "stage {before}: {is_found}");
                }
            });
        }
        scope.spawn(|| {
            for next in 1..300_u16 {
                one.fs.set_attributes(ino, chmod(next)).unwrap();
                version.store(next, Ordering::SeqCst);
                one.fs.make_file(top, "a");
                stage.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_micros(u64::from(next % 7) * 300));
                stage.fetch_add(1, Ordering::SeqCst);
                one.fs.unlink(top, b"a").unwrap();
                stage.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_micros(u64::from(next % 5) * 300));
                stage.fetch_add(1, Ordering::SeqCst);
            }
            is_over.store(true, Ordering::Relaxed);
        });
    });
    for (_, figures) in one.fs.grant_figures() {
        assert_eq!(figures.evictions, 0);
    }
}

#[test]
fn a_rename_of_a_name_that_another_node_has_just_replaced_moves_the_new_file_in_the_kernel_too() {
    let site = Site::new();
    let (one, two) = (site.mount(ONE, Duration::from_secs(20)), site.mount(TWO, Duration::ZERO));
    let data = one.fs.fileset("data");
    for round in 0..5 {
        let [name, moved] = ["name", "moved"].map(|what| format!("{what}-{round}"));
        let former = one.fs.make_file(data, &name);
        assert_eq!(one.look_up(data, &name), Some(former));
        let new = two.fs.create(data, b"new", file(0o644), ROOT).unwrap().ino;
        // A program of the owner's node begins to rename.
        one.hold(data);
        std::thread::scope(|scope| {
            let replacing = scope.spawn(|| {
                two.fs.rename(data, b"new", data, name.as_bytes(), Replace::Allowed).unwrap();
            });
            wait_for(|| one.fs.find(data, &name) == Some(new));
            one.rename_held(data, &name, &moved).unwrap();
            assert_eq!(one.look_up(data, &moved), Some(new), "round {round}");
            one.let_go(data);
            replacing.join().unwrap();
        });
        assert_eq!(one.look_up(data, &moved), Some(new));
        assert_eq!((one.look_up(data, &name), two.look_up(data, &name)), (None, None));
    }
}

#[test]
fn a_rename_is_refused_only_once_however_often_another_node_replaces_the_name() {
    let site = Site::new();
    let (one, two) = (site.mount(ONE, Duration::from_secs(20)), site.mount(TWO, Duration::ZERO));
    let data = one.fs.fileset("data");
    let top = one.fs.create(data, b"top", directory(0o755), ROOT).unwrap().ino;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                two.fs.create(top, b"new", file(0o644), ROOT).unwrap();
                two.fs.rename(top, b"new", top, b"name", Replace::Allowed).unwrap();
            }
        });
        let mut renamed = 0;
        while renamed < 100 {
            one.hold(top);
            let done = one.rename_held(top, "name", "moved");
            one.let_go(top);
            match done {
                Ok(()) => renamed += 1,
                Err(FsError::NotFound) => {}
                Err(error) => panic!("{error}"),
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let mut names = Vec::new();
    let visit = &mut |item: &forebay_fs::DirectoryItem| {
        names.push(item.name.clone());
        ControlFlow::Continue(())
    };
    one.fs.read_directory(top, 0, visit).unwrap();
    assert!(names.contains(&b"moved".to_vec()));
}

/// As on a node: a short time for what is lent, a longer one for its own filesets.
const TIMES: KernelTimes =
    KernelTimes { lent: Duration::from_millis(300), own: Duration::from_secs(2) };

#[test]
fn the_owners_kernel_keeps_names_as_long_as_the_lease_lasts_and_others_do_not() {
    let site = Site::new();
    let (one, two) = (site.mount_with(ONE, TIMES), site.mount_with(TWO, TIMES));
    let data = one.fs.fileset("data");
    let known = one.fs.make_file(data, "known");
    let name = Some((data, b"known".as_slice()));
    let keeps = |node: &Mounted, ino: Ino, name| {
        node.fs.begin_answer();
        let kept = node.fs.keeps_own(ino, name);
        node.fs.end_answer();
        kept
    };
    assert_eq!(keeps(&one, known, name), Some(TIMES.own));
    assert_eq!(keeps(&one, known, None), Some(TIMES.own));
    assert_eq!(keeps(&two, known, name), None, "another node owns the fileset");
    let elsewhere = Some((Ino::ROOT, b"data".as_slice()));
    assert_eq!(keeps(&one, data, elsewhere), None, "the name is of another fileset");
    assert_eq!(one.fs.keeps_own(known, name), None, "no answer is prepared");
    let lease_left = |left: u64| {
        one.fs.answer_until(Some(site.clock.boottime() + Duration::from_millis(left)));
    };
    lease_left(2000);
    let kept = keeps(&one, known, name).unwrap();
    assert!(kept > TIMES.lent && kept <= Duration::from_millis(1500), "{kept:?}");
    lease_left(700);
    assert_eq!(keeps(&one, known, name), None, "the lease ends too soon");
    one.fs.answer_until(None);
    assert_eq!(keeps(&one, known, name), Some(TIMES.own));
}

#[test]
fn what_arrives_late_in_the_owners_kernel_is_taken_from_it() {
    let site = Site::new();
    let one = site.mount_with(ONE, TIMES);
    let data = one.fs.fileset("data");
    let known = one.fs.make_file(data, "known");
    let name = (data, b"known".to_vec());
    let answer = |takes: Duration| {
        one.fs.begin_answer();
        assert!(one.fs.keeps_own(known, Some((data, &name.1))).is_some());
        assert!(one.fs.keeps_own(known, None).is_some());
        std::thread::sleep(takes);
        one.fs.end_answer();
    };
    answer(Duration::ZERO);
    one.attributes(known).unwrap();
    assert!(one.memory.released.lock().is_empty());
    answer(Duration::from_millis(150));
    wait_for(|| one.memory.released.lock().contains(&name));
    assert!(!one.memory.caches.lock().attributes.contains_key(&known));
}

#[test]
fn a_handover_waits_until_the_owners_kernel_keeps_no_names() {
    let site = Site::new();
    let (one, two) = (site.mount_with(ONE, TIMES), site.mount_with(TWO, TIMES));
    let data = one.fs.fileset("data");
    one.fs.make_file(data, "name");
    let known = one.look_up(data, "name");
    let (looked, fileset) = (Instant::now(), FilesetId(1));
    one.fs.hand_over(fileset, HandOver::Refuse).unwrap();
    assert!(looked.elapsed() >= TIMES.own, "it was handed over before the name had lapsed");
    site.nodes.give(fileset, TWO, 71);
    [&one, &two].iter().for_each(|node| node.fs.owner_changed(fileset).unwrap());
    assert_eq!(two.look_up(data, "name"), known);
    two.fs.unlink(data, b"name").unwrap();
    assert_eq!(one.look_up(data, "name"), None);
}
