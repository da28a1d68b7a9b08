//! What moves files beneath programs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_e2e::{Ended, Mounted, Placement};
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde_json::Value;

/// Snapshots that are kept at a time.
const SNAPSHOTS: usize = 2;

/// A file system with two disks in each of two pools, a striped disk over two others, and an archive.
pub struct Site {
    pub grid: Mounted,
    /// The added one of the default pool, and those of the slow one.
    disks: Vec<PathBuf>,
}

fn text(path: &Path) -> &str {
    path.to_str().expect("is UTF-8")
}

impl Site {
    pub fn make(placement: Placement) -> Site {
        let grid = Mounted::make(placement);
        grid.add_settings("task_speed = \"1 GiB\"\nrecall_mode = \"partial\"");
        // Two copies in a pool one of whose two disks is being emptied, or of a file on stripes.
        grid.expect_log("files have fewer copies than they are to have");
        grid.mount();
        let folder = |name: &str| {
            let folder = grid.outside().join(name);
            fs::create_dir(&folder).expect("makes a folder");
            folder
        };
        let add = |name: &str, pool: &str| {
            let folder = folder(name);
            grid.run_on_root(&["disk", "add"], &[text(&folder), "--pool", pool]).succeeds();
            folder
        };
        let disks = vec![add("second", "default"), add("third", "slow"), add("fourth", "slow")];
        for name in ["fifth", "sixth"] {
            add(name, "below");
        }
        let stripe = ["--over", "below", "--unit", "64KiB", "--pool", "wide"];
        grid.run_on_root(&["disk", "stripe"], &stripe).succeeds();
        let archive = format!("file://{}", folder("cold").display());
        grid.run_on_root(&["disk", "add"], &[&archive, "--pool", "cold"]).succeeds();
        Site { grid, disks }
    }

    /// Nothing is wrong at the end, here or in the archive.
    pub fn end(self) {
        self.grid.umount();
        let _ = self.grid.run_on_root(&["fsck"], &["--archive"]).expect_code(0);
        let found = self.grid.unexpected_log_lines();
        assert!(found.is_empty(), "{found:#?}");
    }
}

/// What was done beneath, and how often.
pub type Done = BTreeMap<&'static str, u64>;

/// Moves the files of a fileset.
pub struct Mover<'a> {
    site: &'a Site,
    fileset: &'a str,
    with_snapshots: bool,
    is_dying: AtomicBool,
}

impl<'a> Mover<'a> {
    /// Files that a snapshot holds are not archived: now and then there have to be none.
    pub fn new(site: &'a Site, fileset: &'a str, with_snapshots: bool) -> Mover<'a> {
        Mover { site, fileset, with_snapshots, is_dying: AtomicBool::new(false) }
    }

    /// From now on commands may fail.
    pub fn expect_death(&self) {
        self.is_dying.store(true, Ordering::SeqCst);
    }

    /// Moves files until it is stopped; what it did, and how often.
    pub fn run(&self, seed: u64, stop: &AtomicBool) -> Done {
        let mut random = StdRng::seed_from_u64(seed ^ 0x6d6f_7665);
        let mut done = Done::new();
        let mut snapshots = Vec::new();
        // What was being emptied when the daemon died goes on being emptied.
        std::thread::sleep(Duration::from_millis(random.random_range(0..300)));
        self.clear_up();
        while !stop.load(Ordering::Relaxed) && !self.is_dying.load(Ordering::Relaxed) {
            let what = match random.random_range(0..11) {
                0..=3 => {
                    self.migrate(&mut random, &mut done);
                    "migrations"
                }
                4 => self.recall(),
                5..=6 if self.with_snapshots => self.snapshot(&mut random, &mut snapshots),
                7 => self.drain(&mut random),
                8 => self.scrub(),
                9 => self.set(&mut random),
                _ => continue,
            };
            *done.entry(what).or_insert(0) += 1;
            std::thread::sleep(Duration::from_millis(random.random_range(0..50)));
        }
        self.clear_up();
        done
    }

    /// All disks take files, and no snapshot of this one is left.
    fn clear_up(&self) {
        self.site.disks.iter().for_each(|disk| self.use_again(text(disk)));
        for snapshot in self.list(&["snapshot", "list"], &[self.fileset]) {
            let name = snapshot["name"].as_str().unwrap_or_default();
            if name.starts_with("beneath-") {
                self.expect(&["snapshot", "delete"], &[self.fileset, name], &[0]);
            }
        }
    }

    fn expect(&self, verb: &[&str], arguments: &[&str], codes: &[i32]) {
        self.check(&self.site.grid.run_on_root(verb, arguments), codes);
    }

    fn check(&self, ended: &Ended, codes: &[i32]) {
        if !self.is_dying.load(Ordering::SeqCst) {
            assert!(codes.contains(&ended.code()), "{ended:#?}");
        }
    }

    fn folder(&self) -> PathBuf {
        self.site.grid.mountpoint().join(self.fileset)
    }

    fn migrate(&self, random: &mut StdRng, done: &mut Done) {
        let pools = ["default", "slow", "wide", "cold", "cold"];
        let pool = *pools.choose(random).expect("is not empty");
        let folder = self.folder();
        let mut words = vec!["migrate", text(&folder), "--to", pool, "--json"];
        if pool == "cold" && random.random_bool(0.5) {
            words.push("--premigrate");
        }
        // What is open stays, and so does what vanishes meanwhile.
        let ended = self.site.grid.run(&words);
        self.check(&ended, &[0, 1]);
        let found: Value = serde_json::from_str(&ended.stdout).unwrap_or_default();
        for (key, name) in [
            ("moved", if pool == "cold" { "files archived" } else { "files moved" }),
            ("evicted", "files evicted"),
            ("premigrated", "files premigrated"),
        ] {
            *done.entry(name).or_insert(0) += found[key].as_u64().unwrap_or(0);
        }
    }

    fn recall(&self) -> &'static str {
        self.check(&self.site.grid.run(&["recall", text(&self.folder())]), &[0, 1]);
        "recalled"
    }

    fn snapshot(&self, random: &mut StdRng, snapshots: &mut Vec<String>) -> &'static str {
        if snapshots.len() == SNAPSHOTS {
            let oldest = snapshots.remove(0);
            self.expect(&["snapshot", "delete"], &[self.fileset, &oldest], &[0]);
            return "snapshots deleted";
        }
        let name = format!("beneath-{}", random.random::<u32>());
        self.expect(&["snapshot", "create"], &[self.fileset, &name], &[0]);
        snapshots.push(name);
        "snapshots"
    }

    /// Begins to empty a disk, and has it take files again after a moment.
    fn drain(&self, random: &mut StdRng) -> &'static str {
        let disk = text(self.site.disks.choose(random).expect("is not empty"));
        self.expect(&["disk", "drain"], &[disk], &[0]);
        std::thread::sleep(Duration::from_millis(random.random_range(0..300)));
        self.use_again(disk);
        "drains"
    }

    /// Has a disk take files again, whether it is empty by now or not.
    fn use_again(&self, disk: &str) {
        while !self.is_dying.load(Ordering::SeqCst) && !self.takes_files(disk) {
            // Either may come too late, when a task is done just now.
            for task in self.list(&["tasks", "list"], &[]) {
                let number = task["number"].to_string();
                let _ = self.site.grid.run_on_root(&["tasks", "cancel"], &[&number]);
            }
            let _ = self.site.grid.run_on_root(&["disk", "use"], &[disk]);
        }
    }

    fn takes_files(&self, disk: &str) -> bool {
        let disks = self.list(&["disk", "list"], &[]);
        disks.iter().any(|it| it["location"] == disk && it["used"] == "normal")
    }

    /// What a command lists; nothing if the daemon dies.
    fn list(&self, verb: &[&str], arguments: &[&str]) -> Vec<Value> {
        let found = self.site.grid.run_on_root(verb, &[arguments, &["--json"]].concat());
        self.check(&found, &[0]);
        serde_json::from_str(&found.stdout).unwrap_or_default()
    }

    /// From now on files have another number of copies, or new ones lie in another pool.
    fn set(&self, random: &mut StdRng) -> &'static str {
        let settings =
            [["--copies", "1"], ["--copies", "2"], ["--pool", "slow"], ["--pool", "default"]];
        let [option, value] = *settings.choose(random).expect("is not empty");
        self.expect(&["fileset", "set"], &[self.fileset, option, value], &[0]);
        "settings"
    }

    fn scrub(&self) -> &'static str {
        self.expect(&["scrub"], &["--archives", "--wait"], &[0]);
        "scrubs"
    }
}
