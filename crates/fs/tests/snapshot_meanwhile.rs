//! What happens to a file just while a snapshot is made, or gets a copy of the file: no object is left behind that nobody refers to.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use forebay_base::{FailPoints, Ino};
use forebay_disk::Disk;
use forebay_disk::memory::MemoryDisk;
use forebay_fs::fsck::{self, Outcome, Repair};
use forebay_fs::record::DEFAULT_POOL;
use forebay_fs::{Migrated, NewDisk, key};
use forebay_store::{Store as _, Stores as _};
use parking_lot::Mutex;
use support::snapshots::{seen, take};
use support::tapped::{Step, TappedDisk, TappedStore};
use support::{READ_WRITE, ROOT, Rig, Shorthand as _, TestDisk, User, WRITE, fsck_of};

const FIRST: &str = "disk-one";
const SECOND: &str = "disk-two";
/// The pool of the second disk.
const OTHER: &str = "other";
/// Longest time that something is waited for.
const LIMIT: Duration = Duration::from_secs(60);

/// Holds up the next one who comes by, once it is armed.
struct Barrier {
    armed: AtomicBool,
    came: Mutex<mpsc::Sender<()>>,
    has_come: Mutex<mpsc::Receiver<()>>,
    lets_go: Mutex<mpsc::Sender<()>>,
    may_go_on: Mutex<mpsc::Receiver<()>>,
}

impl Barrier {
    fn new() -> Arc<Barrier> {
        let ((came, has_come), (lets_go, may_go_on)) = (mpsc::channel(), mpsc::channel());
        let armed = AtomicBool::new(false);
        let [has_come, may_go_on] = [has_come, may_go_on].map(Mutex::new);
        let [came, lets_go] = [came, lets_go].map(Mutex::new);
        Arc::new(Barrier { armed, came, has_come, lets_go, may_go_on })
    }

    fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    fn pass(&self) {
        if self.armed.swap(false, Ordering::SeqCst) {
            self.came.lock().send(()).unwrap();
            self.may_go_on.lock().recv_timeout(LIMIT).expect("somebody lets it go on");
        }
    }

    /// Does something while the next one who comes by is held up, and the next thing while the one after that is.
    fn while_held_up(&self, who: impl FnOnce() + Send, things: &[&dyn Fn()]) {
        self.arm();
        std::thread::scope(|scope| {
            let who = scope.spawn(who);
            for (number, thing) in things.iter().enumerate() {
                self.has_come.lock().recv_timeout(LIMIT).expect("somebody comes by");
                thing();
                if number + 1 < things.len() {
                    self.arm();
                }
                self.lets_go.lock().send(()).unwrap();
            }
            who.join().unwrap();
        });
    }
}

/// A file system with two disks, each in a pool of its own, and a file on the first one.
struct Scene {
    rig: Rig,
    second: MemoryDisk,
    /// Those who sync an object of the first disk, and those who write to one of the second.
    syncs_first: Arc<Barrier>,
    writes_second: Arc<Barrier>,
    fs: User,
    ino: Ino,
}

impl Scene {
    fn new() -> Scene {
        let rig = Rig::in_memory();
        let second = MemoryDisk::new(1 << 40, Arc::clone(&rig.clock) as Arc<_>);
        let [syncs_first, writes_second] = [Barrier::new(), Barrier::new()];
        let first = tapped(rig.disk.as_disk(), Step::Sync, &syncs_first);
        let fs =
            rig.open_parts(rig.parts_with(Arc::new(rig.store.clone()), first, FailPoints::none()));
        let ino = fs.make_file(fs.fileset("data"), "file");
        fs.write_file(ino, 0, b"first");
        let new = NewDisk {
            uuid: SECOND.to_owned(),
            location: "there".to_owned(),
            pool: OTHER.to_owned(),
            group: String::new(),
        };
        fs.add_disk(&new, tapped(Arc::new(second.clone()), Step::Write, &writes_second)).unwrap();
        Scene { rig, second, syncs_first, writes_second, fs, ino }
    }

    fn move_to(&self, pool: &str) {
        let moved = self.fs.migrate_files(pool, &[self.ino]).unwrap();
        assert!(matches!(moved[..], [Migrated::Moved { .. }]), "{moved:?}");
    }

    fn unlink(&self) {
        self.fs.unlink(self.fs.fileset("data"), b"file").unwrap();
        self.fs.commit().unwrap();
    }

    fn in_snapshot(&self, name: &str) -> Option<Vec<u8>> {
        seen(&self.fs, name).remove("/file").flatten()
    }

    /// Objects of which the store says that a file took them later than their numbers tell.
    fn late_objects(&self) -> usize {
        let store = self.rig.stores().open(self.ino.fileset()).unwrap();
        let (from, to) = key::prefix_range(&[key::LATE]);
        store.scan(&from, &to, 10).unwrap().len()
    }

    /// A mount anew, without barriers.
    fn reopen(self) -> Scene {
        let Scene { rig, second, syncs_first, writes_second, fs, ino } = self;
        fs.close().unwrap();
        drop(fs);
        let mut parts = rig.parts();
        parts.disks.push((SECOND.to_owned(), Arc::new(second.clone())));
        let fs = rig.open_parts(parts);
        Scene { rig, second, syncs_first, writes_second, fs, ino }
    }

    fn close(self) {
        self.fs.close().unwrap();
        drop(self.fs);
        let TestDisk::Memory(first) = &self.rig.disk else { panic!("it is in memory") };
        let [first, second] =
            [first, &self.second].map(|disk| Arc::new(disk.clone()) as Arc<dyn Disk>);
        let disks: Vec<fsck::NamedDisk> =
            vec![(FIRST.to_owned(), first), (SECOND.to_owned(), second)];
        let report = fsck_of(&self.rig.stores(), &disks, Repair::Never, false);
        assert_eq!(report.outcome(), Outcome::Clean, "{:#?}", report.findings);
    }
}

fn tapped(disk: Arc<dyn Disk>, what: Step, barrier: &Arc<Barrier>) -> Arc<dyn Disk> {
    let barrier = Arc::clone(barrier);
    Arc::new(TappedDisk::new(disk, move |step| {
        if step == what {
            barrier.pass();
        }
    }))
}

#[test]
fn a_file_that_is_moved_away_or_removed_while_its_snapshots_get_a_copy_leaves_nothing_behind() {
    let ways: [&dyn Fn(&Scene); 2] = [&|scene| scene.move_to(OTHER), &Scene::unlink];
    for leave in ways {
        let scene = Scene::new();
        take(&scene.fs, "one");
        // It cannot be opened any more once it is removed.
        let write =
            || drop(scene.fs.open_as(scene.ino, WRITE, ROOT).map(|file| file.write(0, b"later")));
        let barrier = &scene.syncs_first;
        barrier.while_held_up(write, &[&|| leave(&scene)]);
        assert_eq!(scene.in_snapshot("one").as_deref(), Some(&b"first"[..]));
        scene.close();
    }
}

#[test]
fn a_file_that_a_snapshot_was_made_of_while_it_was_moved_leaves_nothing_behind_when_it_goes() {
    let ways: [&dyn Fn(&Scene); 3] =
        [&Scene::unlink, &|scene| scene.move_to(DEFAULT_POOL), &|scene| {
            scene.fs.write_file(scene.ino, 0, b"later");
            scene.unlink();
        }];
    for leave in ways {
        for is_reopened in [false, true] {
            for has_later in [false, true] {
                let mut scene = Scene::new();
                let moving = || scene.move_to(OTHER);
                scene.writes_second.while_held_up(moving, &[&|| take(&scene.fs, "one")]);
                if is_reopened {
                    scene = scene.reopen();
                }
                if has_later {
                    take(&scene.fs, "two");
                }
                leave(&scene);
                let names = if has_later { &["one", "two"][..] } else { &["one"] };
                for name in names {
                    assert_eq!(scene.in_snapshot(name).as_deref(), Some(&b"first"[..]), "{name}");
                }
                scene = scene.reopen();
                for name in names {
                    assert_eq!(scene.in_snapshot(name).as_deref(), Some(&b"first"[..]), "{name}");
                }
                assert_eq!(scene.late_objects(), 1);
                if has_later {
                    // It was the last one to which the object of the file was new.
                    scene.fs.delete_snapshot("data", "one").unwrap();
                    assert_eq!(scene.late_objects(), 0);
                }
                scene.close();
            }
        }
    }
}

#[test]
fn a_file_without_a_name_that_is_closed_while_a_snapshot_is_made_leaves_nothing_behind() {
    let rig = Rig::in_memory();
    let barrier = Barrier::new();
    let commits = Arc::clone(&barrier);
    let store = TappedStore::new(rig.store.clone(), move || commits.pass());
    let fs =
        rig.open_parts(rig.parts_with(Arc::new(store), rig.disk.as_disk(), FailPoints::none()));
    let data = fs.fileset("data");
    let ino = fs.make_file(data, "file");
    let open = fs.open(ino, READ_WRITE);
    open.write(0, b"content");
    fs.commit().unwrap();
    fs.unlink(data, b"file").unwrap();
    fs.commit().unwrap();
    // The snapshot commits twice: before requests wait, and while they do.
    fs.make_file(data, "first");
    let open = Mutex::new(Some(open));
    let make = || {
        fs.make_file(data, "second");
    };
    barrier.while_held_up(|| take(&fs, "one"), &[&make, &|| open.lock().take().unwrap().close()]);
    rig.close(fs);
}
