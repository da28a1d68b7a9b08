//! What a node caches of a fileset of another node: it asks once, and never shows anything old.

mod support;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_base::time::SystemClock;
use forebay_base::{ClientId, Clock as _, FailPoints, FilesetId, Ino, NodeId};
use forebay_disk::memory::MemoryDisk;
use forebay_fs::grants::recall_wait_max;
use forebay_fs::record::Placement;
use forebay_fs::reserve::Reserve;
use forebay_fs::{
    FsError, HandOver, Namespace, Parts, Replace, SetAttributes, SetMode, SetXattr, Settings,
};
use forebay_store::memory::MemoryStores;
use support::{
    Nodes, READ, READ_WRITE, ROOT, Shorthand as _, SteppedTimes, WRITE, directory, file, new_stores,
};

const ONE: NodeId = NodeId(1);
const TWO: NodeId = NodeId(2);
const THREE: NodeId = NodeId(3);
const DATA: FilesetId = FilesetId(1);

/// Nodes of one file system; node 1 owns everything at first.
struct Site {
    stores: Arc<MemoryStores>,
    clock: Arc<SteppedTimes>,
    nodes: Arc<Nodes>,
}

impl Site {
    fn new() -> Site {
        let clock = Arc::new(SteppedTimes::new(1_000_000));
        let stores = new_stores("whole", "memory", &*clock);
        Site { stores, clock, nodes: Nodes::with_owner(ONE) }
    }

    fn join(&self, node: NodeId) -> Arc<Namespace> {
        let disk = MemoryDisk::new(1 << 40, Arc::clone(&self.clock) as _);
        let settings = Settings { owner_wait: Duration::from_secs(2), ..Settings::default() };
        let parts = Parts {
            stores: Arc::clone(&self.stores) as _,
            disks: vec![(format!("disk-{node}"), Arc::new(disk))],
            settings,
            clock: Arc::clone(&self.clock) as _,
            fail_points: FailPoints::none(),
            reserve: Reserve::none(),
        };
        self.nodes.join(node, parts)
    }

    /// Requests that `work` sends to other nodes.
    fn calls<T>(&self, work: impl FnOnce() -> T) -> (u64, T) {
        let before = self.nodes.calls.load(Ordering::Relaxed);
        let done = work();
        (self.nodes.calls.load(Ordering::Relaxed) - before, done)
    }

    fn recalls(&self) -> u64 {
        self.nodes.recalls.load(Ordering::Relaxed)
    }

    fn give(&self, all: &[&Arc<Namespace>], to: NodeId, epoch: u64) {
        self.nodes.give(DATA, to, epoch);
        all.iter().for_each(|node| node.owner_changed(DATA).unwrap());
    }
}

fn chmod(mode: u16) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

/// Everything that `ls -l` of a directory asks for.
fn list(fs: &Namespace, directory: Ino) -> Vec<(String, u64)> {
    fs.getattr(directory).unwrap();
    let mut names = Vec::new();
    fs.read_directory(directory, 0, &mut |item| {
        names.push(item.name.clone());
        ControlFlow::Continue(())
    })
    .unwrap();
    let mut found = Vec::new();
    for name in names.iter().filter(|name| !name.starts_with(b".")) {
        let attributes = fs.lookup(directory, name).unwrap();
        assert!(matches!(fs.xattr(attributes.ino, b"user.a"), Err(FsError::NoAttribute)));
        found.push((String::from_utf8(name.clone()).unwrap(), attributes.size));
    }
    found.sort();
    found
}

#[test]
fn what_was_asked_once_is_answered_without_the_owner() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let data = one.fileset("data");
    let top = one.make_directory(data, "directory");
    for name in ["a", "b", "c"] {
        let ino = one.make_file(top, name);
        one.open_file(ino, WRITE, ROOT).unwrap();
        one.write(ino, 0, b"bytes").unwrap();
        one.close_file(ino, WRITE).unwrap();
    }
    let path = || {
        let data = two.lookup(Ino::ROOT, b"data").unwrap().ino;
        let top = two.lookup(data, b"directory").unwrap().ino;
        assert!(matches!(two.lookup(top, b"nothing"), Err(FsError::NotFound)));
        list(&two, top)
    };
    let (calls, first) = site.calls(path);
    assert!(calls > 5, "{calls}");
    let (calls, second) = site.calls(path);
    assert_eq!((calls, &second), (0, &first), "no call for what was granted");
    assert_eq!(first, [("a", 5), ("b", 5), ("c", 5)].map(|(name, size)| (name.to_owned(), size)));
    let [(_, figures)] = one.grant_figures()[..] else { panic!("one client") };
    assert!(figures.grants > 8 && figures.recalls == 0, "{figures:?}");
    let [(node, sent, kept)] = two.remote_traffic()[..] else { panic!("one owner") };
    assert!(node == ONE && sent > 5 && kept > 8);
}

#[test]
fn a_change_by_any_node_is_seen_by_all_in_the_next_instant() {
    let site = Site::new();
    let all = [site.join(ONE), site.join(TWO), site.join(THREE)];
    let data = all[0].fileset("data");
    for round in 0..300_u16 {
        let by = &all[usize::from(round) % 3];
        let name = format!("{}", round % 7);
        let ino = match by.find(data, &name) {
            Some(ino) => ino,
            None => by.make_file(data, &name),
        };
        by.set_attributes(ino, chmod(0o400 + round % 64)).unwrap();
        let value = [round.to_le_bytes()[0]; 3];
        let set =
            SetXattr { name: b"user.x", value: &value, mode: SetMode::Any, kill_set_gid: false };
        by.set_xattr(ino, set).unwrap();
        for fs in &all {
            assert_eq!(fs.lookup(data, name.as_bytes()).unwrap().mode, 0o400 + round % 64);
            assert_eq!(fs.getattr(ino).unwrap().mode, 0o400 + round % 64);
            assert_eq!(fs.xattr(ino, b"user.x").unwrap(), value);
            assert!(fs.names(data).contains(&name));
        }
        let other = &all[usize::from(round / 3) % 3];
        match round % 4 {
            0 => other.unlink(data, name.as_bytes()).unwrap(),
            1 => {
                other.rename(data, name.as_bytes(), data, b"moved", Replace::Allowed).unwrap();
                for fs in &all {
                    assert_eq!(fs.lookup(data, b"moved").unwrap().ino, ino);
                }
            }
            2 => {
                other.link(ino, data, b"second").unwrap();
                for fs in &all {
                    assert_eq!(fs.getattr(ino).unwrap().nlink, 2);
                }
                by.unlink(data, b"second").unwrap();
                for fs in &all {
                    assert_eq!(fs.lookup(data, name.as_bytes()).unwrap().nlink, 1);
                }
                continue;
            }
            _ => {
                other.open_file(ino, READ_WRITE, ROOT).unwrap();
                other.write(ino, u64::from(round), b"x").unwrap();
                for fs in &all {
                    assert_eq!(
                        fs.getattr(ino).unwrap().size,
                        u64::from(round) + 1,
                        "while it is open"
                    );
                }
                other.close_file(ino, READ_WRITE).unwrap();
                for fs in &all {
                    assert_eq!(
                        fs.lookup(data, name.as_bytes()).unwrap().size,
                        u64::from(round) + 1
                    );
                }
                other.unlink(data, name.as_bytes()).unwrap();
            }
        }
        for fs in &all {
            assert!(matches!(fs.lookup(data, name.as_bytes()), Err(FsError::NotFound)));
            assert!(!fs.names(data).contains(&name));
        }
    }
    assert!(site.recalls() > 100);
}

#[test]
fn filesets_that_come_and_go_are_seen_at_once() {
    use forebay_fs::record::Durability;
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    for round in 0..5 {
        assert!(matches!(two.lookup(Ino::ROOT, b"new"), Err(FsError::NotFound)), "{round}");
        one.create_fileset("new", Durability::Scratch, Placement::Served, 0o755).unwrap();
        let top = two.lookup(Ino::ROOT, b"new").unwrap().ino;
        two.make_file(top, "file");
        assert!(two.names(Ino::ROOT).contains(&"new".to_owned()));
        two.unlink(top, b"file").unwrap();
        two.remove_fileset("new").unwrap();
        assert!(!one.names(Ino::ROOT).contains(&"new".to_owned()));
        assert!(!two.names(Ino::ROOT).contains(&"new".to_owned()));
    }
}

#[test]
fn a_change_waits_for_a_node_that_does_not_answer_only_as_long_as_it_is_vouched_for() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let data = one.fileset("data");
    let ino = one.make_file(data, "file");
    let kept = two.open_file(ino, READ, ROOT).unwrap().lineage;
    assert_eq!(two.lookup(data, b"file").unwrap().mode, 0o644);
    // Frozen: no call reaches it, and it makes none.
    site.nodes.kill(TWO);
    let begun = SystemClock.instant();
    one.set_attributes(ino, chmod(0o600)).unwrap();
    let waited = begun.elapsed();
    let most = recall_wait_max() + Duration::from_secs(2);
    assert!(waited > Duration::from_secs(3) && waited < most, "{waited:?}");
    let [(_, figures)] = one.grant_figures()[..] else { panic!("one client") };
    assert_eq!((figures.evictions, figures.grants), (1, 0));
    // The next one waits for nobody.
    let begun = SystemClock.instant();
    one.set_attributes(ino, chmod(0o640)).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(3));
    site.nodes.thaw(TWO);
    assert_eq!(two.getattr(ino).unwrap().mode, 0o640, "what it cached is void");
    assert!(two.check_lineage(ino, kept).is_ok(), "it keeps its files");
    two.close_file(ino, READ).unwrap();
    // What is recalled is not granted again for a moment.
    std::thread::sleep(Duration::from_millis(50));
    let (calls, _) = site.calls(|| (two.getattr(ino).unwrap(), two.getattr(ino).unwrap()));
    assert!(calls <= 3);
    let (calls, _) = site.calls(|| two.getattr(ino).unwrap());
    assert_eq!(calls, 0, "it is granted anew");
}

#[test]
fn a_client_whose_owner_does_not_answer_uses_nothing_beyond_the_owners_word() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let data = one.fileset("data");
    let ino = one.make_file(data, "file");
    assert_eq!(two.lookup(data, b"file").unwrap().ino, ino);
    two.getattr(ino).unwrap();
    let (calls, _) = site.calls(|| two.getattr(ino).unwrap());
    assert_eq!(calls, 0);
    let pause = Duration::from_millis(5200);
    std::thread::sleep(pause);
    let (calls, _) = site.calls(|| two.getattr(ino).unwrap());
    assert_eq!(calls, 1, "the owner is asked for its word, not for the attributes");
    // The owner is sure of its lease for less.
    let left = Duration::from_secs(2);
    std::thread::sleep(pause);
    one.answer_until(Some(site.clock.boottime() + left));
    two.getattr(ino).unwrap();
    std::thread::sleep(left);
    site.nodes.kill(ONE);
    assert!(two.getattr(ino).is_err(), "nobody vouches for it any more");
}

#[test]
fn a_fileset_that_is_handed_over_leaves_no_grants_behind() {
    let site = Site::new();
    let (one, two, three) = (site.join(ONE), site.join(TWO), site.join(THREE));
    let data = one.fileset("data");
    let ino = one.make_file(data, "file");
    for round in 0..6_u64 {
        for fs in [&one, &two, &three] {
            fs.getattr(ino).unwrap();
            fs.getattr(ino).unwrap();
            fs.names(data);
        }
        let (from, to) = if round % 2 == 0 { (&one, TWO) } else { (&two, ONE) };
        from.hand_over(DATA, HandOver::Refuse).unwrap();
        site.give(&[&one, &two, &three], to, 10 + round);
        let mode = 0o600 + u16::try_from(round).unwrap();
        let owner = if to == TWO { &two } else { &one };
        owner.set_attributes(ino, chmod(mode)).unwrap();
        for fs in [&one, &two, &three] {
            assert_eq!(fs.getattr(ino).unwrap().mode, mode);
        }
    }
}

#[test]
fn a_session_that_is_lost_takes_its_grants_along() {
    let site = Site::new();
    let (one, two, three) = (site.join(ONE), site.join(TWO), site.join(THREE));
    let data = one.fileset("data");
    let ino = one.make_file(data, "file");
    two.getattr(ino).unwrap();
    three.getattr(ino).unwrap();
    site.nodes.drop_client(ClientId { node: TWO, incarnation: 1 });
    let begun = SystemClock.instant();
    one.set_attributes(ino, chmod(0o600)).unwrap();
    assert!(begun.elapsed() < recall_wait_max() + Duration::from_secs(2));
    assert_eq!(three.getattr(ino).unwrap().mode, 0o600);
    assert!(matches!(two.getattr(ino), Err(FsError::Stale)) || two.getattr(ino).is_err());
}

#[test]
fn nodes_that_change_one_directory_at_once_wait_for_nobody_long() {
    let site = Site::new();
    let all = [site.join(ONE), site.join(TWO), site.join(THREE)];
    let data = all[0].fileset("data");
    let top = all[0].make_directory(data, "shared");
    site.nodes.weather.lock().delay_us = 300;
    let begun = SystemClock.instant();
    std::thread::scope(|scope| {
        for (number, fs) in all.iter().enumerate() {
            scope.spawn(move || {
                for round in 0..60 {
                    let own = format!("{number}-{round}");
                    fs.create(top, own.as_bytes(), file(0o644), ROOT).unwrap();
                    let common = format!("common-{}", round % 3);
                    let _ = fs.create(top, common.as_bytes(), directory(0o755), ROOT);
                    assert!(fs.names(top).contains(&own));
                    let _ = fs.lookup(top, common.as_bytes());
                    let _ = fs.remove_directory(top, common.as_bytes());
                    let to = format!("moved-{number}");
                    fs.rename(top, own.as_bytes(), top, to.as_bytes(), Replace::Allowed).unwrap();
                    assert!(matches!(fs.lookup(top, own.as_bytes()), Err(FsError::NotFound)));
                }
            });
        }
    });
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    for (_, figures) in all[0].grant_figures() {
        assert_eq!(figures.evictions, 0);
    }
    let names = all[0].names(top);
    assert!(all.iter().all(|fs| fs.names(top) == names));
}

/// Says that it is over when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_reader_never_sees_a_value_go_back() {
    let site = Site::new();
    let (one, two, three) = (site.join(ONE), site.join(TWO), site.join(THREE));
    let data = one.fileset("data");
    let ino = one.make_file(data, "counter");
    site.nodes.weather.lock().delay_us = 200;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = [&two, &three, &two]
            .into_iter()
            .map(|fs| {
                let is_over = &is_over;
                scope.spawn(move || {
                    let mut last = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        let seen = fs.lookup(data, b"counter").unwrap().uid;
                        assert!(seen >= last, "{seen} after {last}");
                        last = fs.getattr(ino).unwrap().uid;
                        assert!(last >= seen, "{last} after {seen}");
                    }
                })
            })
            .collect();
        // Also if this thread fails: the readers would go on for ever.
        let over = Over(&is_over);
        for round in 1..=300_u32 {
            let by = [&one, &two, &three][(round % 3) as usize];
            by.set_attributes(ino, SetAttributes { uid: Some(round), ..SetAttributes::default() })
                .unwrap();
            for (node, fs) in [&one, &two, &three].into_iter().enumerate() {
                assert_eq!(fs.getattr(ino).unwrap().uid, round, "on node {node}");
            }
        }
        drop(over);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

#[test]
fn attributes_are_granted_of_what_the_client_holds_alone() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let data = one.fileset("data");
    let ino = one.make_file(data, "file");
    // Its kernel was not told of the file: it could be told of it from the cache, and the file would end with its name.
    for _ in 0..2 {
        let (calls, _) = site.calls(|| two.getattr(ino).unwrap());
        assert!(calls > 0);
    }
    two.lookup(data, b"file").unwrap();
    let (calls, _) = site.calls(|| two.lookup(data, b"file").unwrap());
    assert_eq!(calls, 0);
    two.unlink(data, b"file").unwrap();
    assert_eq!(two.getattr(ino).unwrap().nlink, 0, "the kernel still holds it");
    two.forget(ino, 2);
    assert!(two.getattr(ino).is_err());
}

#[test]
fn a_file_that_is_open_for_writing_anywhere_is_not_granted() {
    let site = Site::new();
    let all = [site.join(ONE), site.join(TWO), site.join(THREE)];
    let (data, reader) = (all[0].fileset("data"), &all[2]);
    for (writer, name) in [(&all[0], "at the owner"), (&all[1], "near its writer")] {
        let ino = writer.make_file(data, name);
        assert_eq!(reader.lookup(data, name.as_bytes()).unwrap().ino, ino);
        reader.getattr(ino).unwrap();
        writer.open_file(ino, WRITE, ROOT).unwrap();
        for size in 1..5 {
            writer.write(ino, size - 1, b"x").unwrap();
            assert_eq!(reader.getattr(ino).unwrap().size, size, "{name}");
            let (calls, _) = site.calls(|| reader.getattr(ino).unwrap());
            assert!(calls > 0, "{name}: asked each time");
        }
        writer.close_file(ino, WRITE).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(reader.getattr(ino).unwrap().size, 4);
        let (calls, _) = site.calls(|| reader.getattr(ino).unwrap());
        assert_eq!(calls, 0, "{name}: granted when it is closed");
    }
    // A new owner does not know yet who else had an older file open before: for 15 seconds.
    let ino = all[0].lookup(data, b"near its writer").unwrap().ino;
    all[0].hand_over(DATA, HandOver::Refuse).unwrap();
    let begun = SystemClock.instant();
    site.give(&[&all[0], &all[1], &all[2]], THREE, 10);
    let reader = &all[0];
    let asked_again = || site.calls(|| reader.getattr(ino).unwrap()).0;
    asked_again();
    assert!(asked_again() > 0, "it is older than its owner");
    std::thread::sleep(Duration::from_secs(16).saturating_sub(begun.elapsed()));
    // Of what its kernel is told of by the new owner.
    reader.lookup(data, b"near its writer").unwrap();
    // The owner's word is asked for anew, perhaps.
    asked_again();
    assert_eq!(asked_again(), 0);
}

#[test]
fn a_change_that_comes_late_recalls_what_its_own_client_was_granted_since() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let data = one.fileset("data");
    let ino = one.make_file(data, "file");
    two.getattr(ino).unwrap();
    *site.nodes.late.lock() = Some(TWO);
    assert!(matches!(two.set_attributes(ino, chmod(0o600)), Err(FsError::Io(_))));
    assert!(matches!(two.create(data, b"new", file(0o644), ROOT), Err(FsError::Io(_))));
    *site.nodes.late.lock() = None;
    for _ in 0..2 {
        assert_eq!(two.getattr(ino).unwrap().mode, 0o644);
        assert!(matches!(two.lookup(data, b"new"), Err(FsError::NotFound)));
    }
    site.nodes.deliver();
    assert_eq!(two.getattr(ino).unwrap().mode, 0o600);
    assert!(two.lookup(data, b"new").is_ok());
}
