//! Rules that place new files: where their bytes lie, whatever happens to them later.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_base::seed::Dice;
use forebay_base::{FailPoints, Ino};
use forebay_disk::Sync;
use forebay_disk::faulty::{Fault, FaultyDisk};
use forebay_fs::policy::Policy;
use forebay_fs::record::DEFAULT_POOL;
use forebay_fs::{Caller, Replace};

use crate::support::files::{bytes_of, refused};
use crate::support::{self, Nobody, Shorthand as _, User, file};
use crate::{Pools, SECOND};

const RULES: &str = "
    [[place]]
    name = 'logs'
    to = 'archive'
    fileset = 'data'
    files = ['*.log', 'core.?']

    [[place]]
    name = 'tables stay'
    to = 'default'
    files = '*.csv'

    [[place]]
    name = 'of user 7'
    to = 'archive'
    user = 7
";

fn rules(text: &str) -> Policy {
    Policy::parse(text, &Nobody).unwrap()
}

/// With the rules in force.
fn open(pools: &Pools, points: &FailPoints) -> User {
    let fs = pools.open(points).unwrap();
    assert_eq!(fs.place_files(&rules(RULES).place), Vec::<String>::new());
    fs
}

fn make(fs: &User, fileset: &str, name: &str, uid: u32) -> Ino {
    let parent = if fileset == "/" { Ino::ROOT } else { fs.fileset(fileset) };
    let caller = Caller { uid, gid: uid };
    let ino = fs.create(parent, name.as_bytes(), file(0o644), caller).unwrap().ino;
    fs.forget(ino, 1);
    ino
}

fn pool_of(fs: &User, ino: Ino) -> String {
    fs.place_of(ino).unwrap().pool
}

#[test]
fn new_files_lie_where_the_first_rule_that_matches_says() {
    let pools = Pools::of_capacity(1 << 40);
    let fs = open(&pools, &FailPoints::none());
    let cases = [
        ("data", "a.log", 0, "archive"),
        ("data", "core.1", 0, "archive"),
        ("data", "core.12", 0, DEFAULT_POOL),
        ("work", "a.log", 0, DEFAULT_POOL),
        ("work", "a.h5", 7, "archive"),
        ("data", "a.csv", 7, DEFAULT_POOL),
        ("/", "a.log", 0, DEFAULT_POOL),
        ("/", "of seven", 7, "archive"),
    ];
    let mut files = BTreeMap::new();
    for (fileset, name, uid, pool) in cases {
        let ino = make(&fs, fileset, name, uid);
        fs.write_file(ino, 0, name.as_bytes());
        assert_eq!(pool_of(&fs, ino), pool, "{fileset} {name} {uid}");
        files.insert(ino, (name, pool));
    }
    pools.close(fs);
    let fs = pools.open(&FailPoints::none()).unwrap();
    for (ino, (name, pool)) in files {
        assert_eq!((fs.contents(ino), pool_of(&fs, ino).as_str()), (name.into(), pool));
    }
    // Nothing is in force that was not set since the mount.
    let ino = make(&fs, "data", "b.log", 0);
    fs.write_file(ino, 0, b"b");
    assert_eq!(pool_of(&fs, ino), DEFAULT_POOL);
    pools.close(fs);
}

#[test]
fn a_placed_file_stays_in_its_pool_when_it_is_written_anew_or_gets_another_name() {
    let pools = Pools::of_capacity(1 << 40);
    let fs = open(&pools, &FailPoints::none());
    let [log, table, other] = ["a.log", "a.csv", "a.h5"].map(|name| make(&fs, "data", name, 0));
    [log, table, other].iter().for_each(|ino| fs.write_file(*ino, 0, b"first"));
    let data = fs.fileset("data");
    fs.rename(data, b"a.h5", data, b"b.log", Replace::Allowed).unwrap();
    fs.rename(data, b"a.log", data, b"b.csv", Replace::Allowed).unwrap();
    pools.close(fs);
    let fs = open(&pools, &FailPoints::none());
    for (ino, pool) in [(log, "archive"), (table, DEFAULT_POOL), (other, DEFAULT_POOL)] {
        fs.overwrite(ino, b"second");
        assert_eq!((fs.contents(ino), pool_of(&fs, ino).as_str()), (b"second".to_vec(), pool));
    }
    // Without rules a file that is written anew lies in the pool of its fileset.
    assert!(fs.place_files(&[]).is_empty());
    fs.overwrite(log, b"third");
    assert_eq!(pool_of(&fs, log), DEFAULT_POOL);
    pools.close(fs);
}

#[test]
fn where_a_pool_takes_no_files_they_lie_in_that_of_their_fileset() {
    let pools = Pools::of_capacity(1 << 40);
    let fs = open(&pools, &FailPoints::none());
    let before = make(&fs, "data", "before.log", 0);
    fs.write_file(before, 0, b"before");
    fs.drain_disk(SECOND, Some(DEFAULT_POOL)).unwrap();
    let during = make(&fs, "data", "during.log", 0);
    fs.write_file(during, 0, b"during");
    assert_eq!(
        (pool_of(&fs, before), pool_of(&fs, during)),
        ("archive".into(), DEFAULT_POOL.into())
    );
    pools.close(fs);
}

#[test]
fn where_the_disks_of_a_pool_fail_files_lie_in_the_pool_of_their_fileset() {
    let pools = Pools::of_capacity(1 << 40);
    let mut parts = pools.parts(&FailPoints::none());
    let failing = FaultyDisk::new(Arc::clone(&parts.disks[1].1));
    parts.disks[1].1 = Arc::new(failing.clone());
    let fs = pools.rig.open_parts(parts);
    assert_eq!(fs.place_files(&rules(RULES).place), Vec::<String>::new());
    for fault in [Fault::CreateIo, Fault::CreateFull] {
        failing.fail(fault);
        let during = make(&fs, "data", &format!("{fault:?}.log"), 0);
        fs.write_file(during, 0, b"during");
        assert_eq!(pool_of(&fs, during), DEFAULT_POOL, "{fault:?}");
        failing.heal();
        let after = make(&fs, "data", &format!("after {fault:?}.log"), 0);
        fs.write_file(after, 0, b"after");
        assert_eq!(pool_of(&fs, after), "archive", "{fault:?}");
    }
    fs.commit().unwrap();
    pools.close(fs);
}

#[test]
fn rules_that_cannot_be_in_force_are_refused_or_ignored_with_the_reason() {
    let pools = Pools::of_capacity(1 << 40);
    let fs = pools.open(&FailPoints::none()).unwrap();
    let wrong = rules(
        "[[place]]\nname = 'nowhere'\nto = 'tape'\n[[place]]\nname = 'of none'\nto = 'archive'\nfileset = 'nothing'\n\
         [[place]]\nname = 'good'\nto = 'archive'\nfiles = '*.log'",
    );
    let why = refused(fs.look_at_policy(&wrong));
    assert!(why.contains("tape"), "{why}");
    let faults = fs.place_files(&wrong.place);
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(faults[0].contains("\"nowhere\"") && faults[0].contains("tape"), "{faults:?}");
    assert!(faults[1].contains("\"of none\"") && faults[1].contains("nothing"), "{faults:?}");
    let ino = make(&fs, "work", "a.log", 0);
    fs.write_file(ino, 0, b"a");
    assert_eq!(pool_of(&fs, ino), "archive");
    pools.close(fs);
}

#[test]
fn a_dry_run_says_which_files_rules_would_place_and_a_run_needs_others() {
    let pools = Pools::of_capacity(1 << 40);
    let fs = pools.open(&FailPoints::none()).unwrap();
    for (name, uid) in [("a.log", 7), ("b.log", 0), ("c.csv", 7), ("d.h5", 7)] {
        fs.write_file(make(&fs, "data", name, uid), 0, b"four");
    }
    let report = fs.look_at_policy(&rules(RULES)).unwrap();
    let found: Vec<(&str, u64, u64)> =
        report.rules.iter().map(|rule| (rule.kind.as_str(), rule.files, rule.bytes)).collect();
    assert_eq!(found, [("place", 2, 8), ("place", 1, 4), ("place", 1, 4)]);
    assert_eq!(report.rules[2].paths, ["/data/d.h5"]);
    assert!(report.rules[0].reason.contains("pool archive"), "{}", report.rules[0].reason);
    refused(fs.run_policy(&rules(RULES)));
    pools.close(fs);
}

#[test]
fn placed_files_hold_what_was_synced_wherever_the_power_goes() {
    let first = support::seeds(1, "policies placed_files_hold_what_was_synced").start;
    let points = [
        ("disk.create", 3),
        ("disk.write", 5),
        ("disk.publish", 2),
        ("disk.sync", 2),
        ("commit.start", 2),
        ("commit.published", 1),
        ("commit.stored", 2),
        ("reclaim.removed", 1),
        ("never", 0),
    ];
    for (point, passes) in points {
        for seed in first..first + 4 {
            println!("cut at {point} after {passes} passes, seed {seed}");
            let pools = Pools::of_capacity(1 << 40);
            let cut = FailPoints::cut_at(point, passes);
            let fs = open(&pools, &cut);
            let mut synced = BTreeMap::new();
            let mut work = |number: u64| -> forebay_fs::Result<()> {
                let name = format!("{number}.{}", ["log", "csv", "h5"][number as usize % 3]);
                let (data, bytes) = (fs.fileset("data"), bytes_of(seed + number));
                let caller = Caller { uid: 7 * (number as u32 % 2), gid: 0 };
                let ino = fs.create(data, name.as_bytes(), file(0o644), caller)?.ino;
                let handle = fs.open_as(ino, support::WRITE, support::ROOT)?;
                let done = handle.try_write(0, &bytes).and_then(|()| fs.sync_file(ino, Sync::All));
                fs.close_file(ino, support::WRITE).and(done)?;
                synced.insert(ino, bytes);
                Ok(())
            };
            let done = (0..9).try_for_each(&mut work);
            assert!(done.is_ok() || cut.is_cut(), "{done:?}");
            assert!(cut.is_cut() || point == "never" || point == "reclaim.removed", "{point}");
            cut.cut_now();
            pools.crash(fs, (seed % 2 == 1).then_some(seed));
            let fs = open(&pools, &FailPoints::none());
            for (ino, bytes) in &synced {
                assert!(fs.contents(*ino) == *bytes, "inode {ino} has changed");
            }
            fs.sweep().unwrap();
            pools.close(fs);
        }
    }
}

/// What a file is to be: its name, owner, contents and pool.
struct Wanted {
    name: String,
    uid: u32,
    bytes: Vec<u8>,
    pool: &'static str,
}

fn placed(name: &str, uid: u32) -> &'static str {
    let is_log = name.ends_with(".log");
    if is_log || (uid == 7 && !name.ends_with(".csv")) { "archive" } else { DEFAULT_POOL }
}

#[test]
fn files_lie_where_rules_say_whatever_is_done_with_them() {
    for seed in support::seeds(8, "policies files_lie_where_rules_say") {
        let mut dice = Dice::of(seed);
        let pools = Pools::of_capacity(1 << 40);
        let mut fs = open(&pools, &FailPoints::none());
        let data = fs.fileset("data");
        let mut files: BTreeMap<Ino, Wanted> = BTreeMap::new();
        for step in 0..200_u64 {
            let inos: Vec<Ino> = files.keys().copied().collect();
            let some = (!inos.is_empty()).then(|| inos[dice.index(inos.len().max(1))]);
            let name = format!("{step}.{}", ["log", "csv", "h5"][dice.index(3)]);
            match (dice.index(8), some) {
                (0 | 1, _) | (_, None) => {
                    let uid = [0, 7][dice.index(2)];
                    let ino = make(&fs, "data", &name, uid);
                    let bytes = bytes_of(seed + step);
                    fs.write_file(ino, 0, &bytes);
                    let pool = placed(&name, uid);
                    files.insert(ino, Wanted { name, uid, bytes, pool });
                }
                (2 | 3, Some(ino)) => {
                    let bytes = bytes_of(seed + step);
                    fs.overwrite(ino, &bytes);
                    files.get_mut(&ino).unwrap().bytes = bytes;
                }
                (4, Some(ino)) => {
                    let wanted = files.get_mut(&ino).unwrap();
                    fs.rename(
                        data,
                        wanted.name.as_bytes(),
                        data,
                        name.as_bytes(),
                        Replace::Allowed,
                    )
                    .unwrap();
                    wanted.name = name;
                }
                (5, Some(ino)) => {
                    let Wanted { name, uid, .. } = files.remove(&ino).unwrap();
                    assert!(uid == 0 || uid == 7);
                    fs.unlink(data, name.as_bytes()).unwrap();
                }
                (6, _) => fs.commit().unwrap(),
                _ => {
                    fs.sync_all().unwrap();
                    if dice.toss() {
                        pools.close(fs);
                    } else {
                        pools.crash(fs, dice.toss().then_some(step));
                    }
                    fs = open(&pools, &FailPoints::none());
                }
            }
            for (ino, wanted) in &files {
                assert!(fs.contents(*ino) == wanted.bytes, "seed {seed}, step {step}, {ino}");
                assert_eq!(pool_of(&fs, *ino), wanted.pool, "seed {seed}, step {step}, {ino}");
            }
        }
        pools.close(fs);
    }
}
