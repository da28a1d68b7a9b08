//! Premigrated files: they lie in the archive too, are read here, and are evicted without asking the archive.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_base::seed::Dice;
use forebay_base::{ByteSize, FailPoints, Ino};
use forebay_fs::fsck::{Outcome, Repair};
use forebay_fs::policy::Policy;
use forebay_fs::{Migrated, Replace, Residence, SetAttributes};

use crate::cold::{Cold, archive};
use crate::support::files::{bytes_up_to, refused};
use crate::support::{Nobody, READ, READ_WRITE, Rig, Shorthand as _, TRUNCATE, User};

const POOL: &str = "archive";

fn premigrate(fs: &User, ino: Ino) {
    let bytes = fs.attributes(ino).unwrap().size;
    let outcome = fs.premigrate_files(POOL, &[ino]).unwrap();
    assert_eq!(outcome, [Migrated::Premigrated { bytes }]);
    assert_eq!(state(fs, ino), Residence::Premigrated);
}

fn evict(fs: &User, ino: Ino) {
    let bytes = fs.attributes(ino).unwrap().size;
    assert_eq!(fs.migrate_files(POOL, &[ino]).unwrap(), [Migrated::Evicted { bytes }]);
    assert_eq!(state(fs, ino), Residence::Migrated);
}

fn state(fs: &User, ino: Ino) -> Residence {
    fs.place_of(ino).unwrap().state
}

fn make(fs: &User, name: &str, bytes: &[u8]) -> Ino {
    let ino = fs.make_file(Ino::ROOT, name);
    fs.write_file(ino, 0, bytes);
    ino
}

/// What the thread for copies does.
fn settle(fs: &User) {
    fs.make_copies().unwrap();
}

#[test]
fn a_premigrated_file_is_read_here_and_evicted_without_asking_the_archive() {
    let cold = Cold::new();
    let fs = cold.open();
    let content = bytes_up_to(3_000_000, 7);
    let ino = make(&fs, "file", &content);
    premigrate(&fs, ino);
    assert_eq!(cold.objects().len(), 1);
    let census = fs.census().archives.remove(0);
    assert_eq!((census.files, census.premigrated_files), (0, 1));
    assert_eq!(census.premigrated_bytes, content.len() as u64);
    assert!(census.premigrated_stored_bytes > 0);
    cold.close(fs);
    let fs = cold.open();
    let gets = cold.bucket.gets();
    assert_eq!(fs.contents(ino), content);
    assert_eq!(fs.premigrate_files(POOL, &[ino]).unwrap(), [Migrated::Nothing]);
    assert_eq!(state(&fs, ino), Residence::Premigrated, "to read it changes nothing");
    cold.bucket.set_away(true);
    evict(&fs, ino);
    cold.bucket.set_away(false);
    assert_eq!(cold.bucket.gets(), gets, "the archive was not asked");
    let place = fs.place_of(ino).unwrap();
    assert_eq!(
        (place.size, place.stored_bytes),
        (census.premigrated_bytes, census.premigrated_stored_bytes)
    );
    assert_eq!(fs.census().archives[0].files, 1);
    cold.close(fs);
    let fs = cold.open();
    assert_eq!(cold.objects().len(), 1);
    assert_eq!(fs.contents(ino), content);
    cold.close(fs);
    assert_eq!(cold.objects(), Vec::<String>::new());
}

#[test]
fn what_changes_a_premigrated_file_removes_its_object_in_the_archive() {
    let cold = Cold::new();
    let fs = cold.open();
    let [written, cut, emptied, _removed, _replaced, opened] =
        ["written", "cut", "emptied", "removed", "replaced", "opened"].map(|name| {
            let ino = make(&fs, name, b"0123456789");
            premigrate(&fs, ino);
            ino
        });
    assert_eq!(cold.objects().len(), 6);
    fs.write_file(written, 4, b"xy");
    assert_eq!(state(&fs, written), Residence::Resident);
    fs.set_attributes(cut, SetAttributes { size: Some(3), ..SetAttributes::default() }).unwrap();
    fs.open(emptied, TRUNCATE).close();
    fs.unlink(Ino::ROOT, b"removed").unwrap();
    let other = make(&fs, "other", b"new");
    fs.rename(Ino::ROOT, b"other", Ino::ROOT, b"replaced", Replace::Allowed).unwrap();
    // Opened for writing, and not written: it is found to be the same when it is at rest again.
    let handle = fs.open(opened, READ_WRITE);
    assert_eq!(fs.migrate_files(POOL, &[opened]).unwrap(), [Migrated::InUse]);
    assert_eq!(state(&fs, opened), Residence::Resident);
    handle.close();
    fs.commit().unwrap();
    settle(&fs);
    assert_eq!(state(&fs, opened), Residence::Premigrated);
    cold.close(fs);
    assert_eq!(cold.objects().len(), 1, "what was changed has no object there");
    let fs = cold.open();
    evict(&fs, opened);
    // Those that were changed go there anew.
    archive(&fs, written);
    archive(&fs, cut);
    assert_eq!((fs.contents(written), fs.contents(cut)), (b"0123xy6789".to_vec(), b"012".to_vec()));
    assert_eq!(
        (fs.contents(other), fs.contents(opened)),
        (b"new".to_vec(), b"0123456789".to_vec())
    );
    cold.close(fs);
    assert_eq!(cold.objects(), Vec::<String>::new());
}

#[test]
fn a_file_that_was_written_is_archived_anew_and_not_evicted_to_what_it_was() {
    let cold = Cold::new();
    let fs = cold.open();
    let ino = make(&fs, "file", b"before");
    premigrate(&fs, ino);
    fs.write_file(ino, 0, b"after!");
    // Nobody has looked at it since.
    archive(&fs, ino);
    assert_eq!(fs.contents(ino), b"after!");
    premigrate(&fs, ino);
    fs.write_file(ino, 0, b"before");
    premigrate(&fs, ino);
    evict(&fs, ino);
    assert_eq!(fs.contents(ino), b"before");
    cold.close(fs);
    assert_eq!(cold.objects(), Vec::<String>::new());
}

#[test]
fn a_premigrated_file_that_a_snapshot_shares_stays_until_the_snapshot_is_gone() {
    let cold = Cold::new();
    let fs = cold.open();
    let data = fs.fileset("data");
    let ino = fs.make_file(data, "file");
    fs.write_file(ino, 0, b"content");
    fs.create_snapshot("data", "one").unwrap();
    assert_eq!(fs.premigrate_files(POOL, &[ino]).unwrap(), [Migrated::Shared]);
    fs.delete_snapshot("data", "one").unwrap();
    premigrate(&fs, ino);
    fs.create_snapshot("data", "two").unwrap();
    assert_eq!(fs.migrate_files(POOL, &[ino]).unwrap(), [Migrated::Shared]);
    assert_eq!(fs.contents(ino), b"content");
    cold.close(fs);
    let fs = cold.open();
    fs.write_file(ino, 0, b"CONTENT");
    let list = fs.find(fs.fileset("data"), ".snapshots").unwrap();
    let before = fs.find(fs.find(list, "two").unwrap(), "file").unwrap();
    assert_eq!((fs.contents(ino), fs.contents(before)), (b"CONTENT".to_vec(), b"content".to_vec()));
    fs.delete_snapshot("data", "two").unwrap();
    premigrate(&fs, ino);
    fs.create_snapshot("data", "three").unwrap();
    fs.unlink(fs.fileset("data"), b"file").unwrap();
    fs.delete_snapshot("data", "three").unwrap();
    cold.close(fs);
    assert_eq!(cold.objects(), Vec::<String>::new());
}

#[test]
fn copies_on_disks_and_the_one_in_an_archive_are_kept_side_by_side() {
    let cold = Cold::beside(Rig::in_memory().with_copies());
    let fs = cold.open();
    let ino = make(&fs, "file", b"content");
    let settled = || {
        fs.commit().unwrap();
        settle(&fs);
        let place = fs.place_of(ino).unwrap();
        (place.copies.len(), place.state)
    };
    assert_eq!(settled(), (1, Residence::Resident));
    premigrate(&fs, ino);
    assert_eq!(settled(), (1, Residence::Premigrated));
    let number = fs.scrub(None).unwrap();
    fs.work_through(number, &mut |_| {}).unwrap();
    assert_eq!(settled(), (1, Residence::Premigrated));
    fs.write_file(ino, 0, b"CONTENT");
    assert_eq!(settled(), (1, Residence::Resident));
    premigrate(&fs, ino);
    for (copies, others) in [(1, 0), (2, 1)] {
        fs.set_fileset_copies("/", copies).unwrap();
        assert_eq!(settled(), (others, Residence::Premigrated));
    }
    evict(&fs, ino);
    assert_eq!(settled(), (0, Residence::Migrated));
    assert_eq!(fs.contents(ino), b"CONTENT");
    assert_eq!(settled(), (1, Residence::Resident));
    cold.close(fs);
    assert_eq!(cold.objects(), Vec::<String>::new());
}

#[test]
fn only_pools_of_archives_take_premigrated_files() {
    let cold = Cold::new();
    let fs = cold.open();
    let ino = make(&fs, "file", b"content");
    let why = refused(fs.premigrate_files("default", &[ino]));
    assert!(why.contains("not made of archives"), "{why}");
    let open = fs.open(ino, READ);
    assert_eq!(fs.premigrate_files(POOL, &[ino]).unwrap(), [Migrated::InUse]);
    open.close();
    let rule = "[[premigrate]]\nname = 'a'\nfrom = 'archive'\nto = 'default'";
    let why = refused(fs.run_policy(&Policy::parse(rule, &Nobody).unwrap()));
    assert!(why.contains("not made of archives"), "{why}");
    let rule = "[[premigrate]]\nname = 'a'\nfrom = 'default'\nto = 'archive'\nabove = 1\nuntil = 1";
    let why = Policy::parse(rule, &Nobody).unwrap_err();
    assert!(why.contains("above is for [[migrate]] rules"), "{why}");
    cold.close(fs);
}

#[test]
fn a_policy_premigrates_and_evicts_those_files_first_when_the_pool_is_full() {
    let cold = Cold::of_capacity(400_000);
    cold.rig.settings_mut(|settings| settings.disk_reserve = ByteSize(0));
    let fs = cold.open();
    let rules = "
        [[migrate]]
        name = 'full'
        from = 'default'
        to = 'archive'
        above = 40
        until = 32
        [[premigrate]]
        name = 'cold'
        from = 'default'
        to = 'archive'
        files = 'cold-*'";
    let rules = Policy::parse(rules, &Nobody).unwrap();
    let run = || {
        let number = fs.run_policy(&rules).unwrap();
        fs.work_through(number, &mut |_| {}).unwrap();
    };
    // The others are older.
    let hot: Vec<Ino> = (0..4).map(|n| make(&fs, &format!("hot-{n}"), &[n; 20_000])).collect();
    let cold_ones: Vec<Ino> =
        (0..3).map(|n| make(&fs, &format!("cold-{n}"), &[n; 20_000])).collect();
    fs.sync_all().unwrap();
    let report = fs.look_at_policy(&rules).unwrap().rules;
    assert_eq!((report[1].kind.as_str(), report[1].files), ("premigrate", 3));
    run();
    let states = |inos: &[Ino]| -> Vec<Residence> { inos.iter().map(|i| state(&fs, *i)).collect() };
    assert_eq!(states(&cold_ones), [Residence::Premigrated; 3]);
    assert_eq!(states(&hot), [Residence::Resident; 4]);
    assert_eq!(fs.look_at_policy(&rules).unwrap().rules[1].files, 0, "once is enough");
    let filler = make(&fs, "filler", &[9; 30_000]);
    fs.sync_all().unwrap();
    let puts = cold.objects().len();
    run();
    let evicted = states(&cold_ones).iter().filter(|it| **it == Residence::Migrated).count();
    assert!(evicted > 0, "{:?}", states(&cold_ones));
    assert_eq!(states(&hot), [Residence::Resident; 4], "premigrated files go first");
    assert_eq!(cold.objects().len(), puts, "nothing was written for it");
    assert_eq!(state(&fs, filler), Residence::Resident);
    for (n, ino) in cold_ones.iter().enumerate() {
        assert_eq!(fs.contents(*ino), [n as u8; 20_000]);
    }
    cold.close(fs);
}

#[test]
fn a_drained_archive_leaves_premigrated_files_here() {
    let cold = Cold::new();
    let fs = cold.open();
    let ino = make(&fs, "file", b"content");
    premigrate(&fs, ino);
    let number = fs.drain_disk("bucket", Some("default")).unwrap();
    fs.work_through(number, &mut |_| {}).unwrap();
    assert_eq!(state(&fs, ino), Residence::Resident);
    fs.remove_disk("bucket").unwrap();
    assert_eq!(cold.objects(), Vec::<String>::new());
    assert_eq!(fs.contents(ino), b"content");
    fs.close().unwrap();
}

#[test]
fn a_premigrated_file_whose_object_is_lost_is_recalled_from_the_archive() {
    let cold = Cold::new();
    let fs = cold.open();
    let ino = make(&fs, "file", b"content");
    premigrate(&fs, ino);
    cold.close(fs);
    let at = cold.rig.record(ino).unwrap().layout.object().unwrap();
    cold.rig.disk.as_disk().remove(at.id).unwrap();
    let fs = cold.open();
    assert_eq!(fs.contents(ino), b"content");
    cold.close(fs);
}

#[test]
fn fsck_forgets_a_premigrated_object_that_the_archive_does_not_have() {
    let cold = Cold::new();
    let fs = cold.open();
    let ino = make(&fs, "file", b"content");
    let other = make(&fs, "other", b"other content");
    premigrate(&fs, ino);
    premigrate(&fs, other);
    cold.close(fs);
    let names = cold.objects();
    cold.bucket.lose(&names[0]);
    cold.bucket.change(&names[1], |bytes| {
        bytes.pop();
    });
    let report = cold.fsck(Repair::Found);
    // What is left of the second one belongs to nothing then.
    let details: Vec<&str> = report.findings.iter().map(|it| it.detail.as_str()).collect();
    let counts = ["the file is not premigrated any more", "no file claims object"]
        .map(|text| details.iter().filter(|detail| detail.contains(text)).count());
    assert_eq!((counts, details.len()), ([2, 1], 3), "{details:#?}");
    assert_ne!(report.outcome(), Outcome::Left, "{:#?}", report.findings);
    let fs = cold.open();
    assert_eq!((state(&fs, ino), state(&fs, other)), (Residence::Resident, Residence::Resident));
    assert_eq!(fs.contents(ino), b"content");
    premigrate(&fs, ino);
    evict(&fs, ino);
    assert_eq!(fs.contents(ino), b"content");
    fs.close().unwrap();
}

#[test]
fn an_archive_that_does_not_answer_premigrates_nothing_and_loses_nothing() {
    let cold = Cold::new();
    let fs = cold.open();
    let ino = make(&fs, "file", b"content");
    cold.bucket.set_away(true);
    let outcome = fs.premigrate_files(POOL, &[ino]).unwrap();
    assert!(
        matches!(&outcome[..], [Migrated::Failed { reason }] if reason.contains("bucket")),
        "{outcome:?}"
    );
    cold.bucket.set_away(false);
    assert_eq!(state(&fs, ino), Residence::Resident);
    drop(fs.open_as(ino, READ_WRITE, crate::support::ROOT).unwrap());
    assert_eq!(fs.contents(ino), b"content");
    cold.close(fs);
}

/// Some rounds of premigrating, evicting, recalling, writing and settling.
fn work(fs: &User, files: &mut BTreeMap<Ino, Vec<u8>>, may_write: bool, dice: &mut Dice) {
    let inos: Vec<Ino> = files.keys().copied().collect();
    for step in 0..10 {
        let ino = inos[dice.index(inos.len())];
        match dice.index(8) {
            0..=2 => drop(fs.premigrate_files(POOL, &[ino])),
            3 | 4 => drop(fs.migrate_files(POOL, &[ino])),
            5 => drop(fs.recall(ino, None)),
            6 => drop(fs.make_copies()),
            _ if may_write => {
                let bytes = bytes_up_to(200_000, step);
                fs.overwrite(ino, &bytes);
                fs.sync_all().unwrap();
                files.insert(ino, bytes);
            }
            _ => drop(fs.commit()),
        }
    }
}

#[test]
fn a_crash_between_any_two_steps_of_premigration_and_eviction_loses_nothing() {
    const POINTS: [&str; 14] = [
        "move.copied",
        "move.synced",
        "move.turned",
        "copy.noted",
        "copy.replaced",
        "evict.turned",
        "recall.turned",
        "archive.put",
        "archive.get",
        "archive.remove",
        "disk.remove",
        "commit.published",
        "commit.stored",
        "reclaim.removed",
    ];
    let reached = AtomicU64::new(0);
    for (round, point) in POINTS.iter().cycle().take(POINTS.len() * 6).enumerate() {
        let seed = round as u64;
        let cold = Cold::new();
        let fs = cold.open();
        let mut files = BTreeMap::new();
        for number in 0..4 {
            let bytes = bytes_up_to(200_000, number + seed);
            files.insert(make(&fs, &format!("file-{number}"), &bytes), bytes);
        }
        let mut dice = Dice::of(seed);
        work(&fs, &mut files, true, &mut dice);
        fs.close().unwrap();
        drop(fs);
        let points = FailPoints::cut_at(point, dice.index(4) as u64);
        if let Ok(fs) = cold.try_open(&points) {
            work(&fs, &mut files, false, &mut dice);
            reached.fetch_add(u64::from(points.is_cut()), Ordering::Relaxed);
            cold.crash(fs, (round % 2 == 0).then_some(seed));
        }
        let context = format!("round {round}, {point}");
        let check = |fs: &User, files: &BTreeMap<Ino, Vec<u8>>| {
            for (ino, bytes) in files {
                assert!(fs.contents(*ino) == *bytes, "{context}: inode {ino}");
            }
        };
        let fs = cold.open();
        fs.sweep().unwrap();
        work(&fs, &mut files, true, &mut dice);
        settle(&fs);
        let states: Vec<Residence> = files.keys().map(|ino| state(&fs, *ino)).collect();
        cold.close(fs);
        let here_alone = states.iter().filter(|it| **it == Residence::Resident).count();
        assert_eq!(
            cold.objects().len(),
            files.len() - here_alone,
            "{context}: objects that belong to nothing"
        );
        let fs = cold.open();
        check(&fs, &files);
        cold.close(fs);
    }
    assert!(reached.load(Ordering::Relaxed) > 20, "the power was hardly ever cut");
}

#[test]
fn premigrated_files_under_programs_hold_what_was_written() {
    const FILES: u64 = 3;
    const STEPS: u64 = 40;
    for cold in [Cold::new(), Cold::beside(Rig::in_directory())] {
        let fs = cold.open();
        let background = fs.at_owner().start_background().unwrap();
        let inos: Vec<Ino> =
            (0..FILES).map(|number| make(&fs, &format!("file-{number}"), b"begin")).collect();
        let working = AtomicU64::new(FILES);
        std::thread::scope(|scope| {
            for (number, ino) in inos.iter().copied().enumerate() {
                let (fs, working) = (&fs, &working);
                scope.spawn(move || {
                    let _works = super::Working(working);
                    let mut dice = Dice::of(number as u64);
                    let mut expected = b"begin".to_vec();
                    for step in 0..STEPS {
                        match dice.index(4) {
                            0 => {
                                expected = bytes_up_to(100_000, step);
                                fs.overwrite(ino, &expected);
                            }
                            1 => {
                                // Of the same size.
                                let at = dice.index(expected.len().max(1)) as u64;
                                fs.write_file(ino, at, &[step as u8]);
                                let at = at as usize;
                                expected.resize(expected.len().max(at + 1), 0);
                                expected[at] = step as u8;
                            }
                            _ => {}
                        }
                        assert!(fs.contents(ino) == expected, "file {number}, step {step}");
                    }
                });
            }
            scope.spawn(|| {
                let mut dice = Dice::of(7);
                while working.load(Ordering::Acquire) > 0 {
                    let outcomes = match dice.index(2) {
                        0 => fs.premigrate_files(POOL, &inos).unwrap(),
                        _ => fs.migrate_files(POOL, &inos).unwrap(),
                    };
                    for outcome in outcomes {
                        assert!(!matches!(outcome, Migrated::Failed { .. }), "{outcome:?}");
                    }
                }
            });
            scope.spawn(|| {
                while working.load(Ordering::Acquire) > 0 {
                    fs.make_copies().unwrap();
                    std::thread::yield_now();
                }
            });
        });
        background.stop();
        cold.close(fs);
    }
}
