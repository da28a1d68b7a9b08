//! The power goes at every named point, and what is found afterwards is what was promised: a consistent
//! tree that is one of those committed, every acknowledged sync with its bytes, no byte of another
//! file, no object that belongs to none, and no number given out twice.

mod support;

#[allow(dead_code, reason = "shared with the model test")]
#[path = "model/tree.rs"]
mod tree;
#[path = "crash/workload.rs"]
mod workload;

use std::collections::BTreeMap;

use forebay_base::{FailPoints, FilesetId, Ino};
use forebay_disk::Sync;
use forebay_fs::FsError;
use forebay_fs::record::Kind;
use support::{Rig, Shorthand as _, User};
use tree::Tree;
use workload::{Workload, byte_of};

/// Points of the file system at which the power can go while it works.
const POINTS: [&str; 10] = [
    "commit.start",
    "commit.published",
    "commit.stored",
    "commit.done",
    "supply.created",
    "reclaim.removed",
    "rename.changed",
    "unlink.changed",
    "quota.counted",
    "quota.set",
];
/// Points of the store and the disk.
const POINTS_BELOW: [&str; 9] = [
    "store.commit.before",
    "store.commit.after",
    "disk.create",
    "disk.write",
    "disk.set_size",
    "disk.sync",
    "disk.publish",
    "disk.remove",
    "disk.sync_all",
];
/// How often a point is passed before the power goes.
const PASSES: [u64; 9] = [0, 1, 2, 3, 5, 8, 13, 30, 100];
/// Steps of a workload.
const STEPS: usize = 200;

#[derive(Clone, Copy, Debug)]
enum Crash {
    Process,
    Machine(u64),
}

impl Crash {
    fn strike(self, rig: &Rig, user: User) {
        match self {
            Crash::Process => rig.crash_process(user),
            Crash::Machine(seed) => rig.crash_machine(user, seed),
        }
    }
}

/// Names of all entries with what they name.
type Names = BTreeMap<Vec<u8>, (Ino, Kind)>;

fn names_of_tree(tree: &Tree) -> Names {
    fn gather(tree: &Tree, ino: Ino, above: &[u8], names: &mut Names) {
        for (name, child) in tree.node(ino).entries().into_iter().flatten() {
            let path = [above, b"/", name].concat();
            names.insert(path.clone(), (*child, tree.node(*child).kind));
            gather(tree, *child, &path, names);
        }
    }
    let mut names = Names::new();
    gather(tree, Ino::ROOT, b"", &mut names);
    names
}

fn names_found(fs: &User) -> Names {
    fn gather(fs: &User, ino: Ino, above: &[u8], names: &mut Names) {
        for item in fs.items(ino) {
            if item.name == b"." || item.name == b".." {
                continue;
            }
            let path = [above, b"/", &item.name[..]].concat();
            names.insert(path.clone(), (item.ino, item.kind));
            if item.kind == Kind::Directory {
                gather(fs, item.ino, &path, names);
            }
        }
    }
    let mut names = Names::new();
    gather(fs, Ino::ROOT, b"", &mut names);
    names
}

fn check_contents(fs: &User, done: &Workload, ino: Ino, crash: Crash) {
    let found = fs.contents(ino);
    let length = found.len() as u64;
    let longest = done.longest.get(&ino).copied().unwrap_or(0);
    assert!(length <= longest, "inode {ino} is longer than it ever was");
    let synced = done.synced.get(&ino).copied().unwrap_or(0);
    assert!(length >= synced, "inode {ino} lost bytes that were synced: {length} of {synced}");
    for (offset, byte) in (0_u64..).zip(&found) {
        let may_be_lost = matches!(crash, Crash::Machine(_)) && offset >= synced;
        let fine = *byte == byte_of(ino, offset) || (*byte == 0 && may_be_lost);
        assert!(fine, "inode {ino} holds a wrong byte at {offset}, synced up to {synced}");
    }
}

/// Checks everything that was promised of a file system after a crash.
fn check_recovered(rig: &Rig, fs: &User, done: &Workload, crash: Crash) {
    let found = names_found(fs);
    let committed = [Some(&done.acknowledged), done.attempted.as_ref()];
    // Each fileset is committed by itself.
    for fileset in (0..4).map(FilesetId) {
        let of = |names: &Names| -> Names {
            let own = names.iter().filter(|(_, (ino, _))| ino.fileset() == fileset);
            own.map(|(path, found)| (path.clone(), *found)).collect()
        };
        let found = of(&found);
        let mut committed = committed.into_iter().flatten();
        let is_committed = committed.any(|tree| of(&names_of_tree(tree)) == found);
        assert!(is_committed, "the names are not those of a commit: {found:#?}");
    }
    let is_file = |(ino, kind): &(Ino, Kind)| (*kind == Kind::File).then_some(*ino);
    let files: Vec<Ino> = found.values().filter_map(is_file).collect();
    for ino in &files {
        check_contents(fs, done, *ino, crash);
    }
    for ino in done.synced.keys() {
        assert!(files.contains(ino), "inode {ino}, which was synced, is gone");
    }
    fs.sweep().unwrap();
    fs.commit().unwrap();
    rig.assert_clean();
}

/// What is made after a crash has numbers that nothing had before.
fn check_new_numbers(rig: &Rig, fs: &User, done: &Workload) {
    let data = fs.fileset("data");
    for number in 0..3 {
        let name = format!("after-the-crash-{number}");
        let ino = fs.make_file(data, &name);
        assert!(!done.inos.contains(&ino), "inode number {ino} is given out again");
        let handle = fs.open(ino, support::WRITE);
        handle.write(0, b"new");
        fs.sync_file(ino, Sync::All).unwrap();
        let object = rig.object_of(ino).unwrap();
        assert!(!done.objects.contains(&object), "object number {object} is given out again");
        handle.close();
        fs.unlink(data, name.as_bytes()).unwrap();
    }
}

/// Works on a fresh file system until the power goes at `point`, and crashes.
fn work_until_cut(rig: &Rig, point: &str, passes: u64, crash: Crash, seed: u64) -> Workload {
    println!("cut at {point} after {passes} passes, {crash:?}, workload {seed}");
    // The first commit is that of the opening.
    let opening = u64::from(point.starts_with("store."));
    let points = FailPoints::cut_at(point, passes + opening);
    let user = rig.open_armed(&points).unwrap();
    let mut done = Workload::new(user, Tree::new(), seed);
    done.run(rig, STEPS);
    // A seldom point may take more.
    for _ in 0..10 {
        if points.is_cut() || passes > 0 {
            break;
        }
        done.run(rig, STEPS);
    }
    assert!(points.is_cut() || passes > 0, "the workload does not come by {point}");
    points.cut_now();
    crash.strike(rig, done.die());
    done
}

fn cut_and_check(rig: &Rig, point: &str, passes: u64, crash: Crash, seed: u64) {
    let done = work_until_cut(rig, point, passes, crash, seed);
    let fs = rig.open();
    check_recovered(rig, &fs, &done, crash);
    check_new_numbers(rig, &fs, &done);
    let found = names_found(&fs);
    rig.close(fs);
    let fs = rig.open();
    assert_eq!(names_found(&fs), found, "an orderly end changes no name");
    rig.close(fs);
}

#[test]
fn a_process_may_die_at_any_point() {
    let seeds = support::seeds(1000, "crash a_process_may_die_at_any_point");
    for point in POINTS.into_iter().chain(POINTS_BELOW) {
        for (seed, passes) in seeds.clone().zip(PASSES) {
            cut_and_check(&Rig::in_memory(), point, passes, Crash::Process, seed);
        }
    }
}

#[test]
fn a_process_with_files_on_the_direct_way_may_die_at_any_point() {
    let seeds = support::seeds(1000, "crash a_process_with_files_on_the_direct_way");
    for point in POINTS.into_iter().chain(["store.commit.before", "store.commit.after"]) {
        for (seed, passes) in seeds.clone().zip([0, 2, 7, 30]) {
            cut_and_check(&Rig::in_directory(), point, passes, Crash::Process, seed);
        }
    }
}

#[test]
fn a_machine_may_lose_its_power_at_any_point() {
    let first = support::seeds(1, "crash a_machine_may_lose_its_power_at_any_point").start;
    for point in POINTS.into_iter().chain(POINTS_BELOW) {
        for (number, passes) in (0..).zip(PASSES) {
            for seed in first + number * 1000..first + number * 1000 + 3 {
                let crash = Crash::Machine(seed);
                cut_and_check(&Rig::in_memory(), point, passes, crash, 200 + seed);
            }
        }
    }
}

/// Some parts of an object have what others lost.
#[test]
fn a_process_or_machine_with_striped_files_may_die_at_any_point() {
    let first = support::seeds(2000, "crash a_process_or_machine_with_striped_files").start;
    for point in POINTS.into_iter().chain(POINTS_BELOW) {
        for (number, passes) in (0..).zip(PASSES) {
            let seed = first + number;
            cut_and_check(&Rig::striped(), point, passes, Crash::Process, seed);
            let crash = Crash::Machine(seed);
            cut_and_check(&Rig::striped(), point, passes, crash, 1000 + seed);
        }
    }
}

/// Opens and sweeps until the power goes.
fn recover_until_cut(rig: &Rig, point: &str, passes: u64, crash: Crash) {
    let points = FailPoints::cut_at(point, passes);
    match rig.open_armed(&points) {
        Ok(user) => {
            let recovered = user.sweep().and_then(|()| user.close());
            points.cut_now();
            assert!(recovered.is_ok() || points.is_cut());
            crash.strike(rig, user);
        }
        Err(error) => assert!(matches!(error, FsError::Io(_)), "{error}"),
    }
}

#[test]
fn a_crash_during_recovery_is_recovered_from() {
    let points = [
        ("recovery.start", 0),
        ("recovery.swept", 0),
        ("store.commit.before", 0),
        ("store.commit.after", 0),
        ("store.commit.before", 1),
        ("store.commit.after", 1),
        ("disk.remove", 0),
        ("disk.remove", 2),
        ("disk.sync_all", 0),
        ("commit.start", 0),
        ("commit.stored", 0),
        ("close.synced", 0),
    ];
    let first = support::seeds(1, "crash a_crash_during_recovery_is_recovered_from").start;
    for (point, passes) in points {
        for seed in first..first + 6 {
            let crash = if seed == first { Crash::Process } else { Crash::Machine(seed) };
            let rig = Rig::in_memory();
            let first = ["commit.stored", "commit.published", "reclaim.removed"];
            let done = work_until_cut(&rig, first[(seed % 3) as usize], 8, crash, 300 + seed);
            println!("then at {point} after {passes} passes");
            recover_until_cut(&rig, point, passes, crash);
            let fs = rig.open();
            check_recovered(&rig, &fs, &done, crash);
            check_new_numbers(&rig, &fs, &done);
            rig.close(fs);
        }
    }
}

#[test]
fn a_file_system_that_is_never_swept_is_swept_in_the_end() {
    let rig = Rig::in_memory();
    for life in 0..5 {
        let fs = rig.open();
        let work = fs.fileset("work");
        for number in 0..10 {
            let ino = fs.make_file(work, &format!("life-{life}-{number}"));
            fs.write_file(ino, 0, b"committed");
            fs.commit().unwrap();
            fs.unlink(work, format!("life-{life}-{number}").as_bytes()).unwrap();
        }
        rig.crash_process(fs);
    }
    assert!(rig.objects().len() >= 5, "each life leaves its last object");
    let fs = rig.open();
    rig.close(fs);
    assert_eq!(rig.objects().len(), 5, "the last file of each life is there again");
}
