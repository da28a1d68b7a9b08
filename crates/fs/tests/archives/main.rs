//! Archives: files that were moved to an object store read as before, whatever happens meanwhile and wherever the power is cut;
//! and nothing that a store does wrong is served, or loses what was acknowledged.

mod cold;
mod counts;
mod partial;
mod premigrated;
mod scrub;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeMap;

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_base::seed::Dice;
use forebay_base::{FailPoints, Ino, Timestamp};

use forebay_disk::archive::memory::Lie;

use cold::{Cold, archive, new_disk, with_archived_file};
use forebay_fs::fsck::{Outcome, Repair};
use forebay_fs::policy::Policy;
use forebay_fs::record::Durability;
use forebay_fs::{FsError, Migrated, NewDisk, Replace, SetAttributes, SetMode, SetTime, SetXattr};
use support::files::{bytes_up_to, refused};
use support::{Nobody, READ, READ_WRITE, Rig, Shorthand as _, TRUNCATE, User};

fn bytes_of(number: u64) -> Vec<u8> {
    bytes_up_to(3_000_000, number)
}

#[test]
fn a_file_that_was_archived_reads_as_before_and_lies_here_again() {
    let cold = Cold::new();
    let fs = cold.open();
    let mut files = BTreeMap::new();
    for number in 0..12 {
        let ino = fs.make_file(Ino::ROOT, &format!("file-{number}"));
        fs.write_file(ino, 0, &bytes_of(number));
        files.insert(ino, bytes_of(number));
    }
    let before: Vec<_> = files.keys().map(|ino| fs.attributes(*ino).unwrap()).collect();
    files.keys().for_each(|ino| archive(&fs, *ino));
    fs.commit().unwrap();
    assert_eq!(cold.objects().len(), files.len());
    for (before, ino) in before.iter().zip(files.keys()) {
        let now = fs.attributes(*ino).unwrap();
        assert_eq!((now.size, now.modified, now.mode), (before.size, before.modified, before.mode));
    }
    cold.close(fs);
    // Names and attributes do not ask the store.
    let fs = cold.open();
    let gets = cold.bucket.gets();
    for ino in files.keys() {
        fs.attributes(*ino).unwrap();
    }
    assert_eq!(cold.bucket.gets(), gets);
    for (ino, bytes) in &files {
        assert_eq!(fs.contents(*ino), *bytes);
        assert!(!fs.place_of(*ino).unwrap().is_archived);
    }
    let gets = cold.bucket.gets();
    files.iter().for_each(|(ino, bytes)| assert_eq!(fs.contents(*ino), *bytes));
    assert_eq!(cold.bucket.gets(), gets, "the next reads are local");
    cold.close(fs);
    assert_eq!(cold.objects(), Vec::<String>::new(), "what was brought back is removed there");
}

#[test]
fn a_file_is_brought_back_before_it_is_written_or_cut_and_not_when_it_is_replaced() {
    let cold = Cold::new();
    let fs = cold.open();
    let make = |name: &str| {
        let ino = fs.make_file(Ino::ROOT, name);
        fs.write_file(ino, 0, b"0123456789");
        archive(&fs, ino);
        ino
    };
    let (written, cut, replaced) = (make("written"), make("cut"), make("replaced"));
    fs.write_file(written, 4, b"xy");
    assert_eq!(fs.contents(written), b"0123xy6789");
    fs.set_attributes(cut, SetAttributes { size: Some(3), ..SetAttributes::default() }).unwrap();
    assert_eq!(fs.contents(cut), b"012");
    let gets = cold.bucket.gets();
    fs.open(replaced, TRUNCATE).close();
    fs.write_file(replaced, 0, b"new");
    assert_eq!((fs.contents(replaced), cold.bucket.gets()), (b"new".to_vec(), gets));
    let read_write = make("both");
    let handle = fs.open(read_write, READ_WRITE);
    handle.write(10, b"!");
    handle.close();
    assert_eq!(fs.contents(read_write), b"0123456789!");
    cold.close(fs);
    assert_eq!(cold.objects(), Vec::<String>::new());
}

#[test]
fn an_archived_file_replaces_another_one_and_stays_there() {
    let (cold, fs, ino) = with_archived_file();
    // Of a strict fileset, what replaces a file has to be durable first.
    fs.set_fileset("", Some(Durability::Strict), None).unwrap();
    let other = fs.make_file(Ino::ROOT, "other");
    fs.write_file(other, 0, b"replaced");
    fs.rename(Ino::ROOT, b"file", Ino::ROOT, b"other", Replace::Allowed).unwrap();
    assert!(fs.place_of(ino).unwrap().is_archived);
    assert_eq!(fs.lookup(Ino::ROOT, b"other").unwrap().ino, ino);
    assert_eq!(fs.contents(ino), b"content");
    cold.close(fs);
}

#[test]
fn a_file_that_is_in_use_is_not_archived_and_one_that_is_removed_goes_there_too() {
    let cold = Cold::new();
    let fs = cold.open();
    let ino = fs.make_file(Ino::ROOT, "file");
    fs.write_file(ino, 0, b"content");
    let handle = fs.open(ino, READ);
    assert_eq!(fs.migrate_files("archive", &[ino]).unwrap(), [Migrated::InUse]);
    handle.close();
    archive(&fs, ino);
    assert_eq!(fs.migrate_files("archive", &[ino]).unwrap(), [Migrated::Nothing]);
    fs.unlink(Ino::ROOT, b"file").unwrap();
    cold.close(fs);
    assert_eq!(cold.objects(), Vec::<String>::new());
}

#[test]
fn one_fetch_serves_all_who_wait() {
    let cold = Cold::new();
    let fs = cold.open();
    let ino = fs.make_file(Ino::ROOT, "file");
    let content: Vec<u8> = (0..3 << 20).map(|at: u32| (at / 5) as u8).collect();
    fs.write_file(ino, 0, &content);
    archive(&fs, ino);
    let gets = cold.bucket.gets();
    fs.recall(ino, None).unwrap();
    let of_one = cold.bucket.gets() - gets;
    archive(&fs, ino);
    let background = fs.at_owner().start_background().unwrap();
    let gets = cold.bucket.gets();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| fs.recall(ino, None).unwrap());
        }
    });
    assert_eq!(fs.contents(ino), content);
    // One that came when all was over finds the file here.
    assert_eq!(cold.bucket.gets() - gets, of_one);
    background.stop();
    cold.close(fs);
}

#[test]
fn an_archive_that_does_not_answer_gives_an_error_that_names_it_and_works_again_afterwards() {
    let (cold, fs, ino) = with_archived_file();
    cold.bucket.set_away(true);
    let Err(FsError::Io(why)) = fs.open_file(ino, READ, support::ROOT) else {
        panic!("it was opened")
    };
    assert!(
        why.contains("bucket") && why.contains("objects/") && why.contains("away_timeout"),
        "{why}"
    );
    assert_eq!(fs.attributes(ino).unwrap().size, 7);
    let other = fs.make_file(Ino::ROOT, "other");
    fs.write_file(other, 0, b"here");
    let failed = fs.migrate_files("archive", &[other]).unwrap();
    assert!(
        matches!(&failed[..], [Migrated::Failed { reason }] if reason.contains("bucket")),
        "{failed:?}"
    );
    assert_eq!(fs.contents(other), b"here");
    cold.bucket.set_away(false);
    assert_eq!(fs.contents(ino), b"content");
    cold.close(fs);
}

#[test]
fn what_is_removed_while_the_archive_does_not_answer_goes_with_a_later_mount() {
    let (cold, fs, _) = with_archived_file();
    cold.bucket.set_away(true);
    fs.unlink(Ino::ROOT, b"file").unwrap();
    fs.close().unwrap();
    drop(fs);
    cold.bucket.set_away(false);
    assert_eq!(cold.objects().len(), 1);
    let report = cold.fsck(Repair::Never);
    assert_eq!(report.outcome(), Outcome::Clean, "{:#?}", report.findings);
    assert!(report.notes.iter().any(|note| note.contains("next mount removes")), "{report:#?}");
    let fs = cold.open();
    fs.sweep().unwrap();
    cold.close(fs);
    assert_eq!(cold.objects(), Vec::<String>::new());
}

#[test]
fn nothing_is_given_up_here_for_a_store_that_lies() {
    for lie in [Lie::LosesPuts, Lie::CutsPuts, Lie::SpoilsPuts] {
        let cold = Cold::new();
        let fs = cold.open();
        let ino = fs.make_file(Ino::ROOT, "file");
        fs.write_file(ino, 0, &bytes_of(2));
        cold.bucket.set_lie(lie);
        let outcome = fs.migrate_files("archive", &[ino]).unwrap();
        assert!(matches!(outcome[..], [Migrated::Failed { .. }]), "{lie:?}: {outcome:?}");
        cold.bucket.set_lie(Lie::None);
        assert_eq!(fs.contents(ino), bytes_of(2));
        cold.close(fs);
    }
}

#[test]
fn a_damaged_or_missing_object_is_an_error_and_fsck_names_the_file() {
    let cold = Cold::new();
    let fs = cold.open();
    let files: Vec<Ino> = (0..3).map(|n| fs.make_file(Ino::ROOT, &format!("file-{n}"))).collect();
    for ino in &files {
        fs.write_file(*ino, 0, &bytes_of(2));
        archive(&fs, *ino);
    }
    fs.commit().unwrap();
    let names = cold.objects();
    cold.bucket.change(&names[0], |bytes| bytes[60] ^= 1);
    cold.bucket.change(&names[1], |bytes| {
        bytes.pop();
    });
    cold.bucket.lose(&names[2]);
    for ino in &files {
        assert!(matches!(fs.open_file(*ino, READ, support::ROOT), Err(FsError::Io(_))));
        assert!(fs.place_of(*ino).unwrap().is_archived);
    }
    fs.close().unwrap();
    drop(fs);
    let report = cold.fsck(Repair::Found);
    assert_eq!(report.outcome(), Outcome::Left);
    let named = |name: &str| {
        report
            .findings
            .iter()
            .any(|found| found.path.as_deref().is_some_and(|path| path.contains(name)))
    };
    // A byte within a frame shows when the file is read.
    assert!(named("file-1") && named("file-2"));
    assert!(!named("file-0") && report.findings.len() == 2, "{:#?}", report.findings);
    let fs = cold.open();
    // To replace a file needs nothing of what was lost.
    files.iter().for_each(|ino| fs.overwrite(*ino, b"new"));
    cold.close(fs);
}

#[test]
fn a_full_disk_refuses_to_bring_a_file_back_and_keeps_it_in_the_archive() {
    let cold = Cold::of_capacity(8 << 20);
    let fs = cold.open();
    let ino = fs.make_file(Ino::ROOT, "large");
    let content: Vec<u8> = (0..5 << 20).map(|at: u32| (at / 3) as u8).collect();
    fs.write_file(ino, 0, &content);
    archive(&fs, ino);
    let filler = fs.make_file(Ino::ROOT, "filler");
    fs.write_file(filler, 0, &vec![1; 6 << 20]);
    assert!(matches!(fs.open_file(ino, READ, support::ROOT), Err(FsError::NoSpace)));
    fs.unlink(Ino::ROOT, b"filler").unwrap();
    fs.commit().unwrap();
    assert_eq!(fs.contents(ino), content);
    cold.close(fs);
}

#[test]
fn a_pool_is_made_of_archives_or_of_other_disks_and_takes_no_new_files() {
    let cold = Cold::new();
    let fs = cold.open();
    let other = NewDisk { uuid: "other".to_owned(), ..new_disk("default") };
    let why = refused(fs.add_disk(&other, cold.archive(&FailPoints::none())));
    assert!(why.contains("made of archives, of striped disks, or of other disks"), "{why}");
    let why = refused(fs.label_disk("bucket", Some("default"), None));
    assert!(why.contains("made of archives, of striped disks, or of other disks"), "{why}");
    let why = refused(fs.rebalance("archive"));
    assert!(why.contains("fewer than two") || why.contains("archives"), "{why}");
    let why = refused(fs.set_fileset_pool("/", "archive"));
    assert!(why.contains("no new file can lie"), "{why}");
    cold.close(fs);
}

#[test]
fn a_policy_archives_old_files_and_leaves_those_that_were_recalled() {
    let cold = Cold::new();
    let fs = cold.open();
    let ino = fs.make_file(Ino::ROOT, "old");
    fs.write_file(ino, 0, b"content");
    let then = SetTime::To(Timestamp::new(-7_700_000, 0));
    let (accessed, modified) = (Some(then), Some(then));
    fs.set_attributes(ino, SetAttributes { accessed, modified, ..SetAttributes::default() })
        .unwrap();
    let young = fs.make_file(Ino::ROOT, "young");
    fs.write_file(young, 0, b"content");
    let rule = "[[migrate]]\nname = 'cold'\nfrom = 'default'\nto = 'archive'\nolder = '90 d'";
    let policy = Policy::parse(rule, &Nobody).unwrap();
    let run = || {
        let number = fs.run_policy(&policy).unwrap();
        fs.work_through(number, &mut |_| {}).unwrap();
    };
    run();
    let is_archived = |ino| fs.place_of(ino).unwrap().is_archived;
    assert_eq!((is_archived(ino), is_archived(young)), (true, false));
    assert_eq!(fs.contents(ino), b"content");
    run();
    assert!(!is_archived(ino), "it was used a moment ago");
    cold.close(fs);
}

#[test]
fn an_archive_is_drained_and_taken_away() {
    let cold = Cold::new();
    let fs = cold.open();
    let ino = fs.make_file(Ino::ROOT, "file");
    fs.write_file(ino, 0, &bytes_of(5));
    archive(&fs, ino);
    let number = fs.drain_disk("bucket", Some("default")).unwrap();
    fs.work_through(number, &mut |_| {}).unwrap();
    assert!(!fs.place_of(ino).unwrap().is_archived);
    fs.remove_disk("bucket").unwrap();
    assert_eq!(cold.objects(), Vec::<String>::new());
    assert_eq!(fs.contents(ino), bytes_of(5));
    fs.close().unwrap();
}

/// What files hold, whatever the power did.
fn check_all(fs: &User, files: &BTreeMap<Ino, Vec<u8>>, context: &str) {
    for (ino, bytes) in files {
        assert_eq!(fs.contents(*ino), *bytes, "{context}");
    }
}

/// One round of work: archives and recalls files in some order.
fn work(fs: &User, files: &BTreeMap<Ino, Vec<u8>>, dice: &mut Dice) {
    let inos: Vec<Ino> = files.keys().copied().collect();
    for _ in 0..8 {
        let ino = inos[dice.index(inos.len())];
        match dice.index(4) {
            0 | 1 => drop(fs.migrate_files("archive", &[ino])),
            2 => drop(fs.recall(ino, None)),
            _ => drop(fs.commit()),
        }
    }
}

#[test]
fn a_crash_between_any_two_steps_loses_nothing_and_leaves_nothing() {
    const POINTS: [&str; 17] = [
        "move.copied",
        "move.synced",
        "move.turned",
        "recall.copied",
        "recall.turned",
        "archive.put",
        "archive.get",
        "archive.remove",
        "disk.create",
        "disk.write",
        "disk.publish",
        "disk.sync",
        "disk.remove",
        "reclaim.removed",
        "commit.published",
        "commit.stored",
        "recovery.swept",
    ];
    let reached = AtomicU64::new(0);
    for (round, point) in POINTS.iter().cycle().take(POINTS.len() * 6).enumerate() {
        let seed = round as u64;
        let cold = Cold::new();
        let fs = cold.open();
        let mut files = BTreeMap::new();
        for number in 0..4 {
            let ino = fs.make_file(Ino::ROOT, &format!("file-{number}"));
            fs.write_file(ino, 0, &bytes_of(number + seed));
            files.insert(ino, bytes_of(number + seed));
        }
        fs.close().unwrap();
        drop(fs);
        let mut dice = Dice::of(seed);
        let points = FailPoints::cut_at(point, dice.index(6) as u64);
        if let Ok(fs) = cold.try_open(&points) {
            work(&fs, &files, &mut dice);
            reached.fetch_add(u64::from(points.is_cut()), Ordering::Relaxed);
            cold.crash(fs, (round % 2 == 0).then_some(seed));
        }
        let context = format!("round {round}, {point}");
        let fs = cold.open();
        fs.sweep().unwrap();
        check_all(&fs, &files, &context);
        work(&fs, &files, &mut dice);
        check_all(&fs, &files, &context);
        cold.close(fs);
        let archived = cold.objects().len();
        let fs = cold.open();
        let of_files = files.keys().filter(|ino| fs.place_of(**ino).unwrap().is_archived).count();
        assert_eq!(archived, of_files, "{context}: objects that belong to nothing");
        cold.close(fs);
    }
    assert!(reached.load(Ordering::Relaxed) > 20, "the power was hardly ever cut");
}

#[test]
fn a_snapshot_reads_an_archived_file_in_place_and_keeps_its_object() {
    let cold = Cold::new();
    let fs = cold.open();
    let data = fs.fileset("data");
    let ino = fs.make_file(data, "file");
    fs.write_file(ino, 0, b"content");
    archive(&fs, ino);
    fs.create_snapshot("data", "one").unwrap();
    let in_snapshot = |name: &str, file: &str| {
        let list = fs.find(data, ".snapshots").unwrap();
        fs.find(fs.find(list, name).unwrap(), file).unwrap()
    };
    assert_eq!(fs.contents(in_snapshot("one", "file")), b"content");
    assert!(fs.place_of(ino).unwrap().is_archived, "a snapshot is read in place");
    fs.write_file(ino, 0, b"CONTENT");
    assert_eq!(fs.contents(ino), b"CONTENT");
    assert_eq!(fs.contents(in_snapshot("one", "file")), b"content");
    assert_eq!(cold.objects().len(), 1);
    let shared = fs.make_file(data, "shared");
    fs.write_file(shared, 0, b"both");
    fs.create_snapshot("data", "two").unwrap();
    assert_eq!(fs.migrate_files("archive", &[shared]).unwrap(), [Migrated::Shared]);
    fs.delete_snapshot("data", "two").unwrap();
    archive(&fs, shared);
    cold.close(fs);
    let fs = cold.open();
    assert_eq!((cold.objects().len(), fs.contents(shared)), (2, b"both".to_vec()));
    fs.delete_snapshot("data", "one").unwrap();
    cold.close(fs);
    assert_eq!(cold.objects(), Vec::<String>::new());
}

#[test]
fn a_pinned_file_stays_out_of_archives() {
    let cold = Cold::new();
    let fs = cold.open();
    let ino = fs.make_file(Ino::ROOT, "file");
    fs.write_file(ino, 0, b"content");
    let pin = SetXattr {
        name: b"user.forebay.pin",
        value: b"1",
        mode: SetMode::Any,
        kill_set_gid: false,
    };
    fs.set_xattr(ino, pin).unwrap();
    assert_eq!(fs.migrate_files("archive", &[ino]).unwrap(), [Migrated::Pinned]);
    fs.remove_xattr(ino, b"user.forebay.pin").unwrap();
    archive(&fs, ino);
    cold.close(fs);
}

/// One that works, until it ends or fails.
struct Working<'a>(&'a AtomicU64);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Programs that write, cut, replace and read files of their own while others archive and recall them.
fn under_programs(cold: &Cold, seed: u64) {
    const FILES: u64 = 4;
    const STEPS: usize = 60;
    let fs = cold.open();
    let background = fs.at_owner().start_background().unwrap();
    let inos: Vec<Ino> =
        (0..FILES).map(|number| fs.make_file(Ino::ROOT, &format!("file-{number}"))).collect();
    let (working, moved) = (AtomicU64::new(FILES), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for (number, ino) in inos.iter().copied().enumerate() {
            let (fs, working) = (&fs, &working);
            scope.spawn(move || {
                let _works = Working(working);
                let mut dice = Dice::of(seed + number as u64);
                let mut expected: Vec<u8> = Vec::new();
                for step in 0..STEPS {
                    match dice.index(6) {
                        0 => {
                            expected = bytes_of(seed + step as u64);
                            fs.overwrite(ino, &expected);
                        }
                        1 => {
                            let size = dice.index(expected.len() + 5000);
                            let set = SetAttributes {
                                size: Some(size as u64),
                                ..SetAttributes::default()
                            };
                            fs.set_attributes(ino, set).unwrap();
                            expected.resize(size, 0);
                        }
                        2 | 3 => {
                            let (at, bytes) =
                                (dice.index(expected.len() + 3000), bytes_of(step as u64));
                            fs.write_file(ino, at as u64, &bytes);
                            expected.resize(expected.len().max(at + bytes.len()), 0);
                            expected[at..at + bytes.len()].copy_from_slice(&bytes);
                        }
                        _ => {}
                    }
                    assert_eq!(fs.attributes(ino).unwrap().size, expected.len() as u64);
                    assert!(
                        fs.contents(ino) == expected,
                        "seed {seed}, file {number}, step {step}"
                    );
                }
            });
        }
        scope.spawn(|| {
            while working.load(Ordering::Acquire) > 0 {
                for outcome in fs.migrate_files("archive", &inos).unwrap() {
                    let is_moved = matches!(outcome, Migrated::Moved { .. });
                    moved.fetch_add(u64::from(is_moved), Ordering::Relaxed);
                    assert!(!matches!(outcome, Migrated::Failed { .. }), "{outcome:?}");
                }
            }
        });
        scope.spawn(|| {
            let mut dice = Dice::of(seed);
            while working.load(Ordering::Acquire) > 0 {
                fs.recall(inos[dice.index(inos.len())], None).unwrap();
                std::thread::yield_now();
            }
        });
    });
    println!("{} moves", moved.load(Ordering::Relaxed));
    background.stop();
    cold.close(fs);
}

#[test]
fn files_that_are_archived_under_programs_hold_what_was_written() {
    for seed in
        support::seeds(3, "archives files_that_are_archived_under_programs_hold_what_was_written")
    {
        under_programs(&Cold::new(), seed);
        under_programs(&Cold::beside(Rig::in_directory()), seed);
    }
}

#[test]
fn files_that_are_read_in_an_archive_under_programs_hold_what_was_written() {
    let test = "archives files_that_are_read_in_an_archive_under_programs_hold_what_was_written";
    for seed in support::seeds(3, test) {
        under_programs(&partial::of(Cold::new()), seed);
        under_programs(&partial::of(Cold::beside(Rig::in_directory())), seed);
    }
}
