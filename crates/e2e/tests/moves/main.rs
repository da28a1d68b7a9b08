//! Files keep their bytes while they are moved beneath programs: between disks, pools, stripes and archives, with snapshots made
//! and deleted meanwhile, and when the daemon is killed in the middle.
#![allow(clippy::disallowed_methods, reason = "time limits of tests need the machine's clock")]

mod mover;
mod programs;

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use forebay_e2e::suite::{self, FSX_COMMON, FSX_RARE};
use forebay_e2e::{Placement, StopOnDrop, seed, setting};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

use mover::{Done, Mover, Site};
use programs::{Program, Record};

/// Longest time for one run of a suite.
const LIMIT: Duration = Duration::from_secs(600);
/// Programs that work at the same time.
const PROGRAMS: u64 = 3;
/// Rounds that end with a death of the daemon, unless `FOREBAY_E2E_MOVE_ROUNDS` says otherwise.
const ROUNDS: u64 = 4;
/// Snapshots with a known content that are kept at a time.
const RECORDS: usize = 3;

/// Has the files of `data` moved while `work` runs; what was done beneath it.
fn while_moved(site: &Site, seed: u64, with_snapshots: bool, work: impl FnOnce(&Mover)) -> Done {
    let mover = Mover::new(site, "data", with_snapshots);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let moving = scope.spawn(|| mover.run(seed, &stop));
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&mover)));
        stop.store(true, Ordering::Relaxed);
        let done = moving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        println!("beneath: {done:?}");
        done
    })
}

#[test]
fn fsx_finds_every_byte_while_files_are_moved_beneath_it() {
    let seed = seed("moves");
    for placement in [Placement::Direct, Placement::Served] {
        let site = Site::make(placement);
        let operations = setting("FOREBAY_E2E_FSX_OPERATIONS", 25_000);
        // A file can be moved whenever it is closed.
        let often_closed = FSX_COMMON.replace("close_open = 1", "close_open = 20");
        while_moved(&site, seed, true, |_| {
            std::thread::scope(|scope| {
                for (name, rare) in [("common", ""), ("rare", FSX_RARE)] {
                    let configuration = site.grid.outside().join(format!("{name}.toml"));
                    fs::write(&configuration, format!("{often_closed}{rare}")).expect("writes");
                    let artifacts = site.grid.outside().join(name);
                    fs::create_dir(&artifacts).expect("makes a folder");
                    let file = site.grid.data().join(name);
                    scope.spawn(move || {
                        suite::exercise(&configuration, &artifacts, &file, operations, seed, LIMIT);
                    });
                }
            });
        });
        site.end();
    }
}

#[test]
fn every_pjdfstest_case_passes_while_files_are_moved_beneath_it() {
    let site = Site::make(Placement::Direct);
    while_moved(&site, seed("moves"), true, |_| {
        suite::passes_pjdfstest(&site.grid.data(), LIMIT);
    });
    site.end();
}

/// Programs on a site, and snapshots of what they had.
struct Keeper<'a> {
    site: &'a Site,
    random: StdRng,
    programs: Vec<Mutex<Program>>,
    records: Vec<Record>,
    snapshots: u64,
}

impl<'a> Keeper<'a> {
    fn new(site: &'a Site, seed: u64) -> Keeper<'a> {
        let program = |number| Mutex::new(Program::new(&site.grid.data(), number, seed));
        let programs = (0..PROGRAMS).map(program).collect();
        let random = StdRng::seed_from_u64(seed);
        Keeper { site, random, programs, records: Vec::new(), snapshots: 0 }
    }

    fn programs(&self) -> impl Iterator<Item = MutexGuard<'_, Program>> {
        self.programs.iter().map(|program| program.lock().expect("no panic under the lock"))
    }

    /// Makes a snapshot while nobody writes, so that its content is known.
    fn snapshot(&mut self) {
        self.snapshots += 1;
        let name = format!("known-{}", self.snapshots);
        let held: Vec<_> = self.programs().collect();
        self.site.grid.run_on_root(&["snapshot", "create"], &["data", &name]).succeeds();
        let record = Record::of(&name, held.iter().map(|program| &**program));
        drop(held);
        self.records.push(record);
    }

    /// Checks one of the snapshots, and deletes it.
    fn delete_snapshot(&mut self) {
        let record = self.records.remove(self.random.random_range(0..self.records.len()));
        record.check(&self.site.grid);
        let snapshot = ["data", record.name()];
        self.site.grid.run_on_root(&["snapshot", "delete"], &snapshot).succeeds();
    }

    /// Lets the programs work for some time, and looks at snapshots meanwhile.
    fn work(&mut self, time: Duration, with_snapshots: bool) {
        let stop = AtomicBool::new(false);
        let programs = std::mem::take(&mut self.programs);
        std::thread::scope(|scope| {
            let _stop = StopOnDrop(&stop);
            for program in &programs {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        program.lock().expect("no panic under the lock").step();
                        // Whoever waits for the lock gets it now and then.
                        std::thread::sleep(Duration::from_millis(1));
                    }
                });
            }
            let begun = Instant::now();
            while begun.elapsed() < time {
                std::thread::sleep(Duration::from_millis(self.random.random_range(50..400)));
                if with_snapshots {
                    self.snapshot();
                }
                if self.records.len() > RECORDS || !with_snapshots && !self.records.is_empty() {
                    self.delete_snapshot();
                }
            }
        });
        self.programs = programs;
    }

    /// Everything that was written, and every snapshot, is as it was.
    fn check(&self) {
        self.programs().for_each(|program| program.check());
        self.records.iter().for_each(|record| record.check(&self.site.grid));
    }

    /// Work, and the death of the daemon while files are moved.
    fn round(&mut self, seed: u64, with_snapshots: bool) -> Done {
        let time = Duration::from_millis(self.random.random_range(1000..4000));
        let site = self.site;
        let done = while_moved(site, seed, with_snapshots, |mover| {
            self.work(time, with_snapshots);
            self.programs().for_each(|mut program| program.sync());
            mover.expect_death();
            site.grid.daemon().expect("the daemon runs").kill();
        });
        site.grid.detach();
        site.grid.mount();
        self.check();
        done
    }
}

fn keeps_its_bytes(placement: Placement) {
    let seed = seed("moves");
    let site = Site::make(placement);
    let mut keeper = Keeper::new(&site, seed);
    let mut moved = 0;
    for round in 0..setting("FOREBAY_E2E_MOVE_ROUNDS", ROUNDS) {
        let done = keeper.round(seed.wrapping_add(round), round % 2 == 0);
        let files = done.iter().filter(|(what, _)| what.starts_with("files "));
        moved += files.map(|(_, count)| count).sum::<u64>();
    }
    let steps: u64 = keeper.programs().map(|program| program.steps).sum();
    println!("{placement:?}: {steps} steps, {} snapshots, {moved} moves", keeper.snapshots);
    assert!(steps > 100 && moved > 0, "{steps} steps of programs, {moved} moved files");
    site.end();
}

#[test]
fn files_and_snapshots_keep_their_bytes_on_the_direct_path_while_files_are_moved() {
    keeps_its_bytes(Placement::Direct);
}

#[test]
fn files_and_snapshots_keep_their_bytes_on_the_served_path_while_files_are_moved() {
    keeps_its_bytes(Placement::Served);
}
