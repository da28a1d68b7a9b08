//! Filesets that get another owner: in order, after a death, and by force.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use forebay_base::{FailPoints, FilesetId, Ino};
use forebay_disk::Sync;
use forebay_fs::locks::Kind;
use forebay_fs::record::{Durability, Placement};
use forebay_fs::{FsError, HandOver, KernelCache, NameKept, Namespace, Parts, Replace};
use forebay_store::memory::MemoryStores;
use forebay_store::{Store, StoreError, Stores};
use parking_lot::Mutex;

use crate::locks::range_lock;
use crate::site::{Site, contents, write};
use crate::support::{Nodes, READ, READ_WRITE, ROOT, Shorthand as _, directory, file};
use crate::{DATA, ONE, THREE, TWO};

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
fn a_crash_in_the_middle_of_a_handover_loses_nothing_that_was_synced() {
    for point in ["handover.expected", "handover.closed", "ahead.opened"] {
        let site = Site::new();
        let cut =
            |node| Parts { fail_points: FailPoints::cut_at(point, 0), ..site.parts(node, true) };
        let (one, _two) = (site.nodes.join(ONE, cut(ONE)), site.nodes.join(TWO, cut(TWO)));
        let three = site.join(THREE);
        let data = one.fileset("data");
        let ino = three.make_file(data, "file");
        three.open_file(ino, READ_WRITE, ROOT).unwrap();
        three.write(ino, 0, b"synced").unwrap();
        three.sync_file(ino, Sync::All).unwrap();
        three.close_file(ino, READ_WRITE).unwrap();
        let handed = one.hand_over_to(DATA, HandOver::Refuse, Some(TWO));
        assert_eq!(handed.is_ok(), point == "ahead.opened", "{point}");
        // Neither of the two becomes the owner.
        site.give(&[&three], THREE, 60);
        assert_eq!(contents(&three, ino), b"synced", "{point}");
        assert_eq!(three.names(data), ["file"], "{point}");
        three.sweep().unwrap();
        assert_eq!(contents(&three, ino), b"synced", "{point}");
    }
}

#[test]
fn a_fileset_moves_whether_or_not_its_store_was_opened_ahead() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    site.nodes.give(DATA, ONE, 40);
    let data = one.fileset("data");
    for (epoch, from, to) in [(41, &one, TWO), (42, &two, ONE), (43, &one, TWO)] {
        from.make_file(data, &format!("{epoch}"));
        site.hand_over(from, &[&one, &two], to, epoch);
    }
    assert_eq!(two.names(data), ["41", "42", "43"]);
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
    one.set_kernel_cache(Arc::clone(&kernel) as _, Duration::from_secs(2));
    let data = one.fileset("data");
    let known = one.make_file(data, "known");
    let may_keep_name = || one.keeps_name((data, b"known"), known) != NameKept::Never;
    assert!(may_keep_name() && one.may_keep_absence(data));
    std::thread::scope(|scope| {
        let handing = scope.spawn(|| one.hand_over(DATA, HandOver::Abandon));
        while may_keep_name() && !handing.is_finished() {
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
fn a_new_owner_keeps_the_promises_of_settings_that_it_has_not_heard_of() {
    let site = Site::new();
    site.nodes.give(DATA, TWO, 5);
    let (one, two) = (site.join(ONE), site.join(TWO));
    let mut parts = site.parts(THREE, true);
    parts.settings.owner_wait = Duration::ZERO;
    let set = |durability| {
        ["/", "data"].map(|name| one.set_fileset(name, Some(durability), None).unwrap())
    };
    set(Durability::Scratch);
    let three = site.nodes.join(THREE, parts);
    set(Durability::Strict);
    [ONE, TWO].into_iter().for_each(|node| site.nodes.kill(node));
    // The root's owner does not answer, and its own store has what the fileset was set to.
    for (fileset, epoch) in [(DATA, 7), (FilesetId::ROOT, 8)] {
        site.nodes.give(fileset, THREE, epoch);
        three.owner_changed(fileset).unwrap();
        let top = if fileset == DATA { Ino::top_of(DATA) } else { Ino::ROOT };
        let made = three.create(top, b"file", file(0o644), ROOT).unwrap();
        assert_ne!(three.commit_health_of(fileset).unwrap().pending, 0);
        three.sync_file(made.ino, Sync::All).unwrap();
        assert_eq!(three.commit_health_of(fileset).unwrap().pending, 0, "{fileset} is strict");
    }
    drop((one, two));
}

#[test]
fn settings_reach_an_owner_that_did_not_answer_and_whoever_follows_it() {
    let site = Site::new();
    site.nodes.give(DATA, TWO, 5);
    let (one, two) = (site.join(ONE), site.join(TWO));
    one.set_fileset("data", Some(Durability::Scratch), None).unwrap();
    let mut parts = site.parts(THREE, true);
    parts.settings.owner_wait = Duration::ZERO;
    let three = site.nodes.join(THREE, parts);
    let is_durable = |fs: &Namespace, name: &[u8]| {
        let made = fs.create(Ino::top_of(DATA), name, file(0o644), ROOT).unwrap();
        fs.sync_file(made.ino, Sync::All).unwrap();
        fs.commit_health_of(DATA).unwrap().pending == 0
    };
    assert!(!is_durable(&two, b"scratch"));
    site.nodes.kill(TWO);
    one.set_fileset("data", Some(Durability::Strict), None).unwrap();
    site.nodes.thaw(TWO);
    assert!(!is_durable(&two, b"not heard yet"));
    two.refresh().unwrap();
    assert!(is_durable(&two, b"heard"));
    [ONE, TWO].into_iter().for_each(|node| site.nodes.kill(node));
    site.give(&[&three], THREE, 7);
    assert!(is_durable(&three, b"followed"));
    drop((one, two));
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
