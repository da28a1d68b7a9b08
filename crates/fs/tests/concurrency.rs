//! Many threads at work in the same trees, with the background threads running: nobody waits for ever,
//! and what is left is a file system.

#![allow(clippy::disallowed_methods, reason = "the time limit is one of the real clock")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use forebay_base::seed::Dice;
use forebay_base::{ByteSize, FailPoints, Ino};
use forebay_disk::Sync;
use forebay_fs::record::Kind;
use forebay_fs::{FsError, Replace, Result, SetAttributes, SetMode, SetXattr};
use support::held::HeldStore;
use support::{READ_WRITE, ROOT, Rig, Shorthand as _, TRUNCATE, User, directory, file};

/// Threads at work.
const THREADS: u64 = 8;
/// How long they work.
const WORK: Duration = Duration::from_secs(4);
/// When they count as waiting for ever.
const LIMIT: Duration = Duration::from_secs(90);

/// What a race may bring about. Anything else is a fault.
fn is_a_lost_race(error: &FsError) -> bool {
    matches!(
        error,
        FsError::NotFound
            | FsError::Exists
            | FsError::NotEmpty
            | FsError::IsDirectory
            | FsError::NotDirectory
            | FsError::Invalid
            | FsError::Busy
            | FsError::Stale
            | FsError::NotPermitted
            | FsError::NoAttribute
    )
}

struct Worker {
    fs: User,
    dice: Dice,
    root: Ino,
}

impl Worker {
    fn name(&mut self) -> Vec<u8> {
        format!("name-{}", self.dice.below(8)).into_bytes()
    }

    /// A directory somewhere below the root, which is remembered and must be forgotten.
    fn somewhere(&mut self) -> Ino {
        let mut at = self.root;
        let mut depth = self.dice.below(4);
        while depth > 0 {
            let name = self.name();
            let Ok(found) = self.fs.lookup(at, &name) else { break };
            if found.kind != Kind::Directory {
                self.fs.forget(found.ino, 1);
                break;
            }
            if at != self.root {
                self.fs.forget(at, 1);
            }
            at = found.ino;
            depth -= 1;
        }
        at
    }

    fn leave(&self, ino: Ino) {
        if ino != self.root {
            self.fs.forget(ino, 1);
        }
    }

    fn step(&mut self) -> Result<()> {
        let (one, other) = (self.somewhere(), self.somewhere());
        let outcome = self.step_in(one, other);
        self.leave(one);
        self.leave(other);
        self.fs.after_request();
        outcome
    }

    fn step_in(&mut self, one: Ino, other: Ino) -> Result<()> {
        let (name, new_name) = (self.name(), self.name());
        match self.dice.below(20) {
            0..4 => self.make_file(one, &name),
            4..7 => {
                let made = self.fs.create(one, &name, directory(0o755), ROOT)?;
                self.fs.forget(made.ino, 1);
                Ok(())
            }
            7..12 => {
                let replace = match self.dice.below(4) {
                    0 => Replace::Exchange,
                    1 => Replace::Refused,
                    _ => Replace::Allowed,
                };
                self.fs.rename(one, &name, other, &new_name, replace)
            }
            12 | 13 => self.fs.unlink(one, &name),
            14 => self.fs.remove_directory(one, &name),
            15 => self.link(one, &name, other, &new_name),
            16 => self.rewrite(one, &name),
            17 => {
                self.fs.items(one);
                Ok(())
            }
            18 => self.change(one, &name),
            _ => self.fs.sync_directory(one),
        }
    }

    fn make_file(&mut self, parent: Ino, name: &[u8]) -> Result<()> {
        let made = self.fs.create(parent, name, file(0o644), ROOT)?;
        let outcome = self.write(made.ino);
        self.fs.forget(made.ino, 1);
        outcome
    }

    fn write(&mut self, ino: Ino) -> Result<()> {
        let handle = self.fs.open_as(ino, READ_WRITE, ROOT)?;
        let data = vec![7; usize::try_from(self.dice.below(3000)).unwrap()];
        handle.try_write(self.dice.below(3000), &data)?;
        if self.dice.below(8) == 0 {
            self.fs.sync_file(ino, Sync::Data)?;
        }
        self.fs.close_file(ino, handle.access)
    }

    fn link(&mut self, parent: Ino, name: &[u8], other: Ino, new_name: &[u8]) -> Result<()> {
        let found = self.fs.lookup(parent, name)?;
        let linked = self.fs.link(found.ino, other, new_name);
        if linked.is_ok() {
            self.fs.forget(found.ino, 1);
        }
        self.fs.forget(found.ino, 1);
        linked.map(drop)
    }

    fn rewrite(&mut self, parent: Ino, name: &[u8]) -> Result<()> {
        let found = self.fs.lookup(parent, name)?;
        let outcome = if found.kind == Kind::File {
            self.fs.open_as(found.ino, TRUNCATE, ROOT).and_then(|handle| {
                let written = handle.try_write(0, b"rewritten");
                handle.close();
                written
            })
        } else {
            Ok(())
        };
        self.fs.forget(found.ino, 1);
        outcome
    }

    fn change(&mut self, parent: Ino, name: &[u8]) -> Result<()> {
        let found = self.fs.lookup(parent, name)?;
        let mode = SetAttributes { mode: Some(0o700), ..SetAttributes::default() };
        let xattr =
            SetXattr { name: b"user.a", value: b"1", mode: SetMode::Any, kill_set_gid: false };
        let outcome = match self.dice.below(3) {
            0 => self.fs.set_attributes(found.ino, mode).map(drop),
            1 => self.fs.set_xattr(found.ino, xattr),
            _ => self.fs.remove_xattr(found.ino, b"user.a"),
        };
        self.fs.forget(found.ino, 1);
        outcome
    }
}

/// Runs `work` on its own thread, which must end in time.
fn within_the_limit(work: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    match ended.recv_timeout(LIMIT) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("some threads wait for ever"),
        Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

fn storm(rig: &Rig, fileset: &str) {
    storm_in(rig, rig.open(), fileset);
}

fn storm_in(rig: &Rig, fs: User, fileset: &str) {
    let seed = support::seeds(1, "concurrency many_threads").start;
    let background = fs.fs.start_background().unwrap();
    let root = fs.fileset(fileset);
    let until = Instant::now() + WORK;
    let steps = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|number| {
                let mut worker = Worker { fs: fs.clone(), dice: Dice::of(seed + number), root };
                let steps = &steps;
                scope.spawn(move || {
                    while Instant::now() < until {
                        match worker.step() {
                            Err(error) if !is_a_lost_race(&error) => panic!("{error}"),
                            _ => steps.fetch_add(1, Ordering::Relaxed),
                        };
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                fs.drop_caches();
                fs.commit().unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let outcomes: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        stop.store(true, Ordering::Relaxed);
        outcomes.into_iter().for_each(|outcome| outcome.unwrap());
    });
    println!("{} steps", steps.load(Ordering::Relaxed));
    background.stop();
    rig.close(fs);
    check_every_file(rig);
}

/// Every file can be opened and read, and holds as much as it says.
fn check_every_file(rig: &Rig) {
    let fs = rig.open();
    let mut left = vec![Ino::ROOT];
    while let Some(ino) = left.pop() {
        for item in fs.items(ino) {
            match item.kind {
                Kind::Directory if item.name != b"." && item.name != b".." => left.push(item.ino),
                Kind::File => drop(fs.contents(item.ino)),
                _ => {}
            }
        }
    }
    rig.close(fs);
}

#[test]
fn many_threads_in_one_tree_of_served_files_leave_a_clean_file_system() {
    within_the_limit(|| storm(&Rig::in_memory(), "data"));
}

#[test]
fn many_threads_in_one_tree_of_direct_files_leave_a_clean_file_system() {
    within_the_limit(|| {
        let rig = Rig::in_directory();
        rig.settings_mut(|settings| {
            settings.commit_interval = Duration::from_millis(10);
            settings.spare_objects = 16;
            // As many again may be open for a commit, as the daemon of a mount reckons too: below the limit of the process.
            settings.open_objects_max = 2048;
        });
        storm(&rig, "work");
    });
}

#[test]
fn many_threads_with_little_memory_leave_a_clean_file_system() {
    within_the_limit(|| {
        let rig = Rig::in_memory();
        rig.settings_mut(|settings| {
            settings.inode_cache_max = ByteSize::kib(16);
            settings.directory_load_max = 2;
            settings.open_objects_max = 4;
            settings.uncommitted_max = 50;
            settings.commit_interval = Duration::from_millis(10);
        });
        storm(&rig, "work");
    });
}

#[test]
fn many_threads_on_a_store_that_takes_its_time_leave_a_clean_file_system() {
    for load_max in [0, 2, 65_536] {
        within_the_limit(move || {
            let rig = Rig::in_memory();
            rig.settings_mut(|settings| {
                settings.inode_cache_max = ByteSize::kib(16);
                settings.directory_load_max = load_max;
                settings.open_objects_max = 4;
                settings.commit_interval = Duration::from_millis(10);
            });
            let store = Arc::new(HeldStore::slow(rig.store.clone(), 300));
            let parts = rig.parts_with(store, rig.disk.as_disk(), FailPoints::none());
            let fs = rig.open_parts(parts);
            storm_in(&rig, fs, "data");
        });
    }
}

#[test]
fn many_syncs_share_their_commits() {
    within_the_limit(|| {
        let rig = Rig::in_memory();
        let (fs, store) = rig.open_watched();
        let data = fs.fileset("data");
        let inos: Vec<Ino> =
            (0..16).map(|number| fs.make_file(data, &format!("file-{number}"))).collect();
        store.take();
        std::thread::scope(|scope| {
            for ino in &inos {
                let fs = &fs;
                scope.spawn(move || {
                    for round in 0..50 {
                        let handle = fs.open(*ino, READ_WRITE);
                        handle.write(round * 10, b"some bytes");
                        fs.sync_file(*ino, Sync::All).unwrap();
                        handle.close();
                    }
                });
            }
        });
        let commits = store.take().len();
        assert!((1..=16 * 50).contains(&commits), "{commits} commits");
        for ino in inos {
            assert_eq!(fs.contents(ino).len(), 500);
        }
        rig.close(fs);
    });
}

#[test]
fn a_process_may_die_in_the_middle_of_the_work_of_many_threads() {
    let test = "concurrency a_process_may_die_in_the_middle_of_the_work_of_many_threads";
    let seed = support::seeds(1, test).start;
    within_the_limit(move || {
        for round in 0..5_u64 {
            let rig = Arc::new(Rig::in_memory());
            let points = forebay_base::FailPoints::cut_at("commit.stored", 3 + round);
            let fs = rig.open_armed(&points).unwrap();
            let root = fs.fileset("data");
            std::thread::scope(|scope| {
                for number in 0..4 {
                    let dice = Dice::of(seed + round * 100 + number);
                    let mut worker = Worker { fs: fs.clone(), dice, root };
                    let points = &points;
                    scope.spawn(move || {
                        while !points.is_cut() {
                            match worker.step() {
                                Err(FsError::Io(_)) => return,
                                Err(error) if !is_a_lost_race(&error) => panic!("{error}"),
                                _ => {}
                            }
                        }
                    });
                }
            });
            rig.crash_process(fs);
            let fs = rig.open();
            fs.sweep().unwrap();
            rig.close(fs);
            check_every_file(&rig);
        }
    });
}
