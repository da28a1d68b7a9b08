//! A store or a disk that does not answer keeps nobody waiting but those who need that very answer.

mod support;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use forebay_base::{FailPoints, Ino};
use forebay_fs::key::{ENTRY, INODE, XATTR};
use forebay_fs::{FsError, Replace, SetAttributes, SetMode, SetXattr};
use parking_lot::Mutex;
use support::held::{HeldStore, When};
use support::tapped::{Step, TappedDisk};
use support::{READ, ROOT, Rig, Shorthand as _, User, directory, file};

/// For what must not wait.
const LIMIT: Duration = Duration::from_secs(30);

fn xattr(name: &'static [u8], value: &'static [u8]) -> SetXattr<'static> {
    SetXattr { name, value, mode: SetMode::Any, kill_set_gid: false }
}

/// A directory with the files "known", "other" and "slow", each with an attribute; and a directory "below" with a file.
struct Scene {
    rig: Rig,
    store: Arc<HeldStore>,
    fs: User,
    work: Ino,
    dir: Ino,
}

impl Scene {
    /// Nothing of it is in memory; directories of more than `load_max` entries are never cached whole.
    fn new(load_max: u64) -> Scene {
        let rig = Rig::in_memory();
        let fs = rig.open();
        let work = fs.fileset("data");
        let dir = fs.make_directory(work, "dir");
        for name in ["known", "other", "slow"] {
            let ino = fs.make_file(dir, name);
            fs.set_xattr(ino, xattr(b"user.a", b"value")).unwrap();
            fs.write_file(ino, 0, name.as_bytes());
        }
        let below = fs.make_directory(dir, "below");
        fs.make_file(below, "deep");
        fs.make_directory(work, "elsewhere");
        fs.set_xattr(dir, xattr(b"user.d", b"directory")).unwrap();
        rig.close(fs);
        rig.settings_mut(|settings| settings.directory_load_max = load_max);
        let store = Arc::new(HeldStore::new(rig.store.clone()));
        let parts = rig.parts_with(Arc::clone(&store) as _, rig.disk.as_disk(), FailPoints::none());
        let fs = rig.open_parts(parts);
        let work = fs.fileset("data");
        let dir = fs.find(work, "dir").unwrap();
        assert!(fs.find(dir, "known").is_some() && fs.find(dir, "other").is_some());
        Scene { rig, store, fs, work, dir }
    }

    /// Does `slow` while its first read of this kind is held up and `meanwhile` is done, which must not wait.
    fn during<T: Send>(
        &self,
        kind: u8,
        when: When,
        slow: impl FnOnce(&User) -> T + Send,
        meanwhile: impl FnOnce(&User) + Send,
    ) -> T {
        self.store.hold(kind, when);
        std::thread::scope(|scope| {
            let slow = scope.spawn(|| slow(&self.fs));
            self.store.wait_until_held(LIMIT);
            let (done, is_done) = mpsc::channel();
            let meanwhile = scope.spawn(move || {
                meanwhile(&self.fs);
                done.send(()).unwrap();
            });
            let waited = is_done.recv_timeout(LIMIT);
            self.store.let_go();
            meanwhile.join().unwrap();
            waited.expect("nobody waits for the read that is held up");
            slow.join().unwrap()
        })
    }

    /// All that can be done in and around the directory without the answer that is awaited.
    fn work_around(&self, fs: &User) {
        let (work, dir) = (self.work, self.dir);
        assert!(fs.find(dir, "known").is_some());
        assert_eq!(fs.find(dir, "missing"), None);
        fs.attributes(dir).unwrap();
        fs.open_directory(dir).unwrap();
        assert_eq!(fs.names(dir).len(), 4);
        fs.make_file(dir, "new");
        let found = fs.lookup(dir, b"new").unwrap();
        fs.link(found.ino, dir, b"linked").unwrap();
        fs.forget(found.ino, 2);
        fs.rename(dir, b"linked", dir, b"renamed", Replace::Allowed).unwrap();
        fs.rename(dir, b"renamed", work, b"moved", Replace::Allowed).unwrap();
        fs.unlink(work, b"moved").unwrap();
        fs.make_directory(dir, "inner");
        fs.rename(dir, b"inner", work, b"inner", Replace::Allowed).unwrap();
        fs.remove_directory(work, b"inner").unwrap();
        let mode = SetAttributes { mode: Some(0o750), ..SetAttributes::default() };
        fs.set_attributes(dir, mode).unwrap();
        fs.set_xattr(dir, xattr(b"user.n", b"new")).unwrap();
        fs.list_xattrs(dir).unwrap();
        fs.remove_xattr(dir, b"user.n").unwrap();
        let unnamed = fs.create_unnamed(dir, file(0o600), ROOT).unwrap();
        fs.forget(unnamed.ino, 1);
        assert_eq!(fs.contents(fs.find(dir, "other").unwrap()), b"other");
        fs.sync_directory(dir).unwrap();
        fs.commit().unwrap();
        fs.unlink(dir, b"new").unwrap();
        fs.make_file(work, "beside");
        fs.unlink(work, b"beside").unwrap();
    }

    fn end(self) {
        let Scene { rig, store, fs, .. } = self;
        drop(store);
        rig.close(fs);
    }
}

/// Once with directories that are cached whole, once with such that never are; reads held up before and after.
fn in_each_case(test: impl Fn(&Scene, When)) {
    for load_max in [0, 65_536] {
        for when in [When::Before, When::After] {
            println!("directories of up to {load_max} entries are cached; held {when:?}");
            let scene = Scene::new(load_max);
            test(&scene, when);
            scene.end();
        }
    }
}

impl Scene {
    /// Has the directory know nothing but the inodes that the test uses.
    fn forget_names(&self) {
        self.fs.drop_caches();
        self.fs.drop_caches();
    }
}

#[test]
fn a_lookup_that_waits_for_the_store_stops_nobody_else() {
    in_each_case(|scene, when| {
        scene.forget_names();
        let slow = |fs: &User| fs.find(scene.dir, "slow");
        let found = scene.during(ENTRY, when, slow, |fs| scene.work_around(fs));
        assert!(found.is_some());
        assert_eq!(scene.fs.names(scene.dir), ["below", "known", "other", "slow"]);
    });
}

#[test]
fn names_that_change_while_the_store_is_asked_for_them_are_seen_as_they_are_then() {
    in_each_case(|scene, when| {
        let (fs, dir) = (&scene.fs, scene.dir);
        scene.forget_names();
        // A name that is removed meanwhile.
        let found = scene.during(
            ENTRY,
            when,
            |fs| fs.find(dir, "slow"),
            |fs| {
                fs.unlink(dir, b"slow").unwrap();
                fs.commit().unwrap();
            },
        );
        assert_eq!((found, fs.find(dir, "slow")), (None, None));
        // One that is made meanwhile, and one that leads elsewhere.
        scene.forget_names();
        let made = Mutex::new(None);
        let found = scene.during(
            ENTRY,
            when,
            |fs| fs.find(dir, "slow"),
            |fs| {
                *made.lock() = Some(fs.make_file(dir, "slow"));
                fs.commit().unwrap();
            },
        );
        let made = *made.lock();
        assert_eq!((found, fs.find(dir, "slow")), (made, made));
        scene.forget_names();
        let other = fs.find(dir, "other");
        scene.forget_names();
        let found = scene.during(
            ENTRY,
            when,
            |fs| fs.find(dir, "slow"),
            |fs| {
                fs.rename(dir, b"other", dir, b"slow", Replace::Allowed).unwrap();
                fs.drop_caches();
                fs.drop_caches();
            },
        );
        assert_eq!((found, fs.find(dir, "slow"), fs.find(dir, "other")), (other, other, None));
        assert_eq!(fs.names(dir), ["below", "known", "slow"]);
        // Nobody makes a name twice.
        fs.unlink(dir, b"slow").unwrap();
        scene.forget_names();
        let create = |fs: &User| fs.create(dir, b"slow", file(0o644), ROOT).map(|made| made.ino);
        let refused = scene.during(ENTRY, when, create, |fs| {
            fs.make_file(dir, "slow");
        });
        assert!(matches!(refused, Err(FsError::Exists)));
    });
}

#[test]
fn a_removal_and_a_rename_that_wait_for_the_store_stop_nobody_else() {
    in_each_case(|scene, when| {
        let dir = scene.dir;
        let names = |scene: &Scene| scene.fs.names(dir);
        scene.forget_names();
        let unlink = |fs: &User| fs.unlink(dir, b"slow").unwrap();
        scene.during(ENTRY, when, unlink, |fs| scene.work_around_three(fs));
        assert_eq!(names(scene), ["below", "known", "other"]);
        // Its attributes go with it: they are read.
        scene.fs.make_file(dir, "slow");
        let slow = scene.fs.find(dir, "slow").unwrap();
        scene.fs.set_xattr(slow, xattr(b"user.a", b"again")).unwrap();
        scene.fs.commit().unwrap();
        scene.during(XATTR, when, unlink, |fs| scene.work_around_three(fs));
        assert_eq!(names(scene), ["below", "known", "other"]);
        // To another directory, over a file there.
        scene.fs.make_file(dir, "slow");
        let elsewhere = scene.fs.find(scene.work, "elsewhere").unwrap();
        scene.fs.make_file(elsewhere, "target");
        scene.fs.commit().unwrap();
        scene.forget_names();
        let rename =
            |fs: &User| fs.rename(dir, b"slow", elsewhere, b"target", Replace::Allowed).unwrap();
        scene.during(ENTRY, when, rename, |fs| scene.work_around_three(fs));
        assert_eq!(scene.fs.names(elsewhere), ["target"]);
        // A directory, whose inode is read. Another one moves meanwhile.
        scene.forget_names();
        for ino in [scene.work, dir, elsewhere] {
            scene.fs.attributes(ino).unwrap();
        }
        let rename =
            |fs: &User| fs.rename(dir, b"below", elsewhere, b"below", Replace::Refused).unwrap();
        scene.during(INODE, when, rename, |fs| {
            assert!(fs.find(dir, "known").is_some());
            fs.make_directory(dir, "one");
            fs.rename(dir, b"one", scene.work, b"one", Replace::Refused).unwrap();
        });
        assert_eq!(scene.fs.names(elsewhere), ["below", "target"]);
        assert_eq!(names(scene), ["known", "other"]);
    });
}

impl Scene {
    /// As [`Scene::work_around`], once "slow" may be gone already.
    fn work_around_three(&self, fs: &User) {
        assert!(fs.find(self.dir, "known").is_some());
        fs.make_file(self.dir, "new");
        fs.rename(self.dir, b"new", self.dir, b"newer", Replace::Allowed).unwrap();
        fs.unlink(self.dir, b"newer").unwrap();
        fs.make_directory(self.dir, "inner");
        fs.rename(self.dir, b"inner", self.work, b"inner", Replace::Allowed).unwrap();
        fs.remove_directory(self.work, b"inner").unwrap();
        fs.commit().unwrap();
    }
}

#[test]
fn a_listing_that_waits_for_the_store_stops_nobody_else() {
    in_each_case(|scene, when| {
        scene.forget_names();
        let list = |fs: &User| {
            let mut names = 0;
            let mut count = |_: &forebay_fs::DirectoryItem| {
                names += 1;
                ControlFlow::Continue(())
            };
            fs.read_directory(scene.dir, 0, &mut count).unwrap();
            names
        };
        let listed = scene.during(ENTRY, when, list, |fs| scene.work_around(fs));
        assert_eq!(listed, 6, "what is there all the time is seen once");
        assert_eq!(scene.fs.names(scene.dir), ["below", "known", "other", "slow"]);
    });
}

#[test]
fn attributes_of_a_directory_that_wait_for_the_store_keep_nobody_from_its_names() {
    in_each_case(|scene, when| {
        let (dir, names) = (scene.dir, |fs: &User| scene.work_around_three(fs));
        let value = |fs: &User| fs.xattr(dir, b"user.d").unwrap();
        assert_eq!(scene.during(XATTR, when, value, names), b"directory");
        let list = |fs: &User| fs.list_xattrs(dir).unwrap();
        assert_eq!(scene.during(XATTR, when, list, names), b"user.d\0");
        let set = |fs: &User| fs.set_xattr(dir, xattr(b"user.e", b"one more")).unwrap();
        scene.during(XATTR, when, set, names);
        let mode = SetAttributes { mode: Some(0o700), ..SetAttributes::default() };
        let chmod = |fs: &User| fs.set_attributes(dir, mode).unwrap().mode;
        assert_eq!(scene.during(XATTR, when, chmod, names), 0o700);
        let remove = |fs: &User| fs.remove_xattr(dir, b"user.d").unwrap();
        scene.during(XATTR, when, remove, names);
        assert_eq!(scene.fs.list_xattrs(dir).unwrap(), b"user.e\0");
        // What is made there asks for the default access control list.
        let create = |fs: &User| fs.create(dir, b"made", directory(0o755), ROOT).unwrap().ino;
        let made = scene.during(XATTR, when, create, names);
        scene.fs.forget(made, 1);
        // An attribute that changes while it is read.
        let changed = scene.during(
            XATTR,
            when,
            |fs| fs.xattr(dir, b"user.e").unwrap(),
            |fs| {
                fs.set_xattr(dir, xattr(b"user.e", b"changed")).unwrap();
                fs.commit().unwrap();
            },
        );
        assert_eq!(changed, b"changed");
    });
}

#[test]
fn a_disk_that_does_not_open_a_file_keeps_nobody_from_its_directory() {
    let scene = Scene::new(65_536);
    let (fs, rig) = (scene.fs.clone(), scene.rig);
    drop(scene.fs);
    rig.close(fs);
    let (begun, is_open_begun) = mpsc::channel();
    let (let_go, may_go_on) = mpsc::channel::<()>();
    let (armed, may_go_on) = (Arc::new(AtomicBool::new(false)), Mutex::new(may_go_on));
    let is_armed = Arc::clone(&armed);
    let disk = TappedDisk::new(rig.disk.as_disk(), move |step| {
        if step == Step::Open && is_armed.swap(false, Ordering::AcqRel) {
            begun.send(()).unwrap();
            may_go_on.lock().recv_timeout(LIMIT).expect("somebody lets the open go on");
        }
    });
    let parts = rig.parts_with(Arc::new(rig.store.clone()), Arc::new(disk), FailPoints::none());
    let fs = rig.open_parts(parts);
    let data = fs.fileset("data");
    let dir = fs.find(data, "dir").unwrap();
    let slow = fs.find(dir, "slow").unwrap();
    let around = |fs: &User| {
        fs.make_file(dir, "new");
        fs.unlink(dir, b"new").unwrap();
        assert!(fs.find(dir, "below").is_some());
    };
    let open = |fs: &User| fs.open(slow, READ).close();
    // The bytes of a file that takes another's place are synced before it does.
    let replace = |fs: &User| fs.rename(dir, b"known", dir, b"other", Replace::Allowed).unwrap();
    let calls: [&(dyn Fn(&User) + Sync); 2] = [&open, &replace];
    for call in calls {
        armed.store(true, Ordering::Release);
        std::thread::scope(|scope| {
            let calling = scope.spawn(|| call(&fs));
            is_open_begun.recv_timeout(LIMIT).expect("the disk is asked");
            // Whoever needs the locked file itself waits for it, and holds nothing meanwhile.
            let unlinking = scope.spawn(|| drop(fs.unlink(dir, b"slow")));
            std::thread::sleep(Duration::from_millis(20));
            let (done, is_done) = mpsc::channel();
            let fs = &fs;
            scope.spawn(move || {
                around(fs);
                done.send(()).unwrap();
            });
            let waited = is_done.recv_timeout(LIMIT);
            let_go.send(()).unwrap();
            calling.join().unwrap();
            unlinking.join().unwrap();
            waited.expect("nobody waits for the disk");
        });
        drop(fs.create(dir, b"slow", file(0o644), ROOT).map(|made| fs.forget(made.ino, 1)));
    }
    rig.close(fs);
}
