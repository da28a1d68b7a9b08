//! Single-writer caches: what is changed in them reaches the home, in its order and once, whatever happens in between; and what
//! somebody else has changed there is kept.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use forebay_base::seed::Dice;
use forebay_base::{FailPoints, Ino, Timestamp};
use forebay_disk::Sync;
use forebay_fs::fsck::{Outcome, Repair};
use forebay_fs::record::Kind;
use forebay_fs::{
    CacheMode, FsError, New, Replace, Result, SetAttributes, SetMode, SetTime, SetXattr,
};

use crate::site::{CACHE, Site, Tree};
use crate::support::files::{bytes_up_to, refused};
use crate::support::{self, ROOT, Shorthand as _, TestDisk, User, WRITE, directory, file};

fn site() -> Site {
    Site::with(CacheMode::SingleWriter, 0)
}

/// The inode at a path of the cache, whose directories are listed on the way.
fn at(site: &Site, fs: &User, path: &str) -> Ino {
    let top = fs.fileset(CACHE);
    site.names(fs, top).unwrap();
    let parts = path.split('/').filter(|part| !part.is_empty());
    parts.fold(top, |at, name| {
        let found = site.lookup(fs, at, name).unwrap();
        if found.kind == Kind::Directory {
            site.names(fs, found.ino).unwrap();
        }
        found.ino
    })
}

fn make(site: &Site, fs: &User, path: &str, bytes: &[u8]) -> Ino {
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    let ino = fs.make_file(at(site, fs, above), name);
    fs.overwrite(ino, bytes);
    ino
}

fn rename(site: &Site, fs: &User, from: &str, to: &str) {
    let split = |path: &str| {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        (at(site, fs, above), name.as_bytes().to_vec())
    };
    let (from, to) = (split(from), split(to));
    fs.rename(from.0, &from.1, to.0, &to.1, Replace::Allowed).unwrap();
}

/// Writes everything back, and finds at home what the cache has.
fn flush_and_compare(site: &Site, fs: &User, what: &str) {
    fs.write_back_now(CACHE).unwrap();
    let top = fs.fileset(CACHE);
    let (here, there) = (site.read_all(fs, top), site.tree());
    let mut names: Vec<&String> = here.keys().chain(there.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let brief = |tree: &Tree, name: &str| {
        tree.get(name).map(|bytes| {
            bytes.as_ref().map(|it| (it.len(), it.iter().copied().take(9).collect::<Vec<u8>>()))
        })
    };
    let differing: Vec<_> = names
        .into_iter()
        .filter(|name| here.get(*name) != there.get(*name))
        .map(|name| (name, brief(&here, name), brief(&there, name)))
        .collect();
    assert!(differing.is_empty(), "{what}: name, here, at home: {differing:?}");
    assert_eq!(site.waiting(fs).changes, 0, "{what}");
}

#[test]
fn what_is_changed_in_the_cache_is_changed_at_home() {
    let site = site();
    for name in ["kept", "changed", "removed", "moved", "d/inner", "d/deeper/x", "replaced"] {
        site.write(name, b"first");
    }
    let fs = site.open();
    let top = at(&site, &fs, "");
    make(&site, &fs, "new", b"new bytes");
    let made = fs.make_directory(top, "made");
    make(&site, &fs, "made/inner", b"inner");
    let link = New { kind: Kind::Symlink, target: b"made/inner", ..file(0o777) };
    fs.forget(fs.create(top, b"link", link, ROOT).unwrap().ino, 1);
    let changed = at(&site, &fs, "changed");
    let handle = site.recalled(&fs, changed, || fs.open_as(changed, WRITE, ROOT));
    handle.write(2, b"RST and more");
    handle.close();
    fs.unlink(top, b"removed").unwrap();
    rename(&site, &fs, "moved", "made/moved");
    rename(&site, &fs, "new", "replaced");
    // A directory whose files were not fetched, and one of them after it.
    rename(&site, &fs, "d", "e");
    assert_eq!(fs.contents(at(&site, &fs, "e/deeper/x")), b"first");
    let set = SetAttributes {
        mode: Some(0o640),
        modified: Some(SetTime::To(Timestamp::new(77, 5))),
        ..SetAttributes::default()
    };
    let kept = at(&site, &fs, "kept");
    fs.set_attributes(kept, set).unwrap();
    fs.set_attributes(made, SetAttributes { mode: Some(0o711), ..SetAttributes::default() })
        .unwrap();
    assert!(site.waiting(&fs).changes > 0);
    assert!(!site.tree().contains_key("made"), "nothing is written before its time");
    flush_and_compare(&site, &fs, "all");
    let there = std::fs::metadata(site.at("kept")).unwrap();
    assert_eq!(
        (there.permissions().mode() & 0o7777, there.mtime(), there.mtime_nsec()),
        (0o640, 77, 5)
    );
    assert_eq!(std::fs::metadata(site.at("made")).unwrap().permissions().mode() & 0o777, 0o711);
    assert_eq!(std::fs::read(site.at("replaced")).unwrap(), b"new bytes");
    assert_eq!(fs.contents(kept), b"first", "it is found at home although its time is another");
    // What is written back can be evicted, and is fetched again.
    assert!(fs.evict_cache(CACHE, 0).unwrap().files > 0);
    flush_and_compare(&site, &fs, "fetched again");
    assert_eq!(fs.cache_conflicts(CACHE, false).unwrap(), []);
    site.close(fs);
    assert_eq!(site.rig.fsck(Repair::Never, false).outcome(), Outcome::Clean);
}

#[test]
fn changes_wait_while_the_home_is_away_and_survive_a_restart() {
    let site = site();
    site.write("a", b"first");
    let fs = site.open();
    at(&site, &fs, "");
    site.take_away();
    let new = make(&site, &fs, "new", b"new bytes");
    fs.sync_file(new, Sync::All).unwrap();
    assert!(matches!(fs.write_back_now(CACHE), Err(FsError::HomeAway(_))));
    let waiting = site.waiting(&fs);
    assert!(waiting.changes > 0 && waiting.problem.is_some(), "{waiting:?}");
    // What is not written back is not given back.
    fs.evict_cache(CACHE, 0).unwrap();
    assert_eq!(fs.contents(new), b"new bytes");
    assert!(refused(fs.remove_fileset(CACHE)).contains("does not have yet"));
    assert_eq!(fs.contents(new), b"new bytes", "nothing is dropped if the fileset stays");
    drop(fs);
    let TestDisk::Memory(disk) = &site.rig.disk else { unreachable!() };
    disk.crash_machine(7);
    let fs = site.open();
    assert_eq!(fs.contents(fs.find(fs.fileset(CACHE), "new").unwrap()), b"new bytes");
    assert!(site.waiting(&fs).changes > 0);
    site.bring_back();
    site.clock.advance(2);
    let _ = fs.write_back_now(CACHE);
    flush_and_compare(&site, &fs, "after the restart");
    fs.remove_fileset(CACHE).unwrap();
    assert_eq!(site.tree().len(), 2, "the home keeps its files");
    site.close(fs);
}

#[test]
fn what_was_made_and_removed_before_its_turn_costs_nothing_and_a_file_is_written_once() {
    let site = site();
    let fs = site.open();
    let top = at(&site, &fs, "");
    for number in 0..20 {
        let name = format!("temporary-{number}");
        make(&site, &fs, &name, b"x");
        fs.unlink(top, name.as_bytes()).unwrap();
    }
    let ino = make(&site, &fs, "often", b"0");
    for number in 1..20 {
        fs.overwrite(ino, &[number; 100]);
    }
    assert_eq!(site.waiting(&fs).changes, 1);
    flush_and_compare(&site, &fs, "one file");
    let waiting = site.waiting(&fs);
    assert_eq!((waiting.done_changes, waiting.written_bytes), (1, 100));
    site.close(fs);
}

#[test]
fn a_file_that_is_open_for_writing_is_written_back_once_more_after_it_was_closed() {
    let site = site();
    let fs = site.open();
    at(&site, &fs, "");
    let ino = make(&site, &fs, "log", b"one");
    let handle = fs.open(ino, WRITE);
    fs.write_back_now(CACHE).unwrap();
    assert_eq!(std::fs::read(site.at("log")).unwrap(), b"one");
    handle.write(3, b" two");
    drop(fs.write_back_now(CACHE));
    handle.write(7, b" three");
    handle.close();
    flush_and_compare(&site, &fs, "after the close");
    assert_eq!(std::fs::read(site.at("log")).unwrap(), b"one two three");
    site.close(fs);
}

#[test]
fn what_somebody_else_changed_at_home_is_kept_and_listed() {
    let site = site();
    for name in ["changed", "removed", "gone", "d/x"] {
        site.write(name, b"first");
    }
    let fs = site.open();
    let top = at(&site, &fs, "");
    let (changed, d) = (at(&site, &fs, "changed"), at(&site, &fs, "d"));
    fs.overwrite(changed, b"ours");
    let gone = at(&site, &fs, "gone");
    fs.overwrite(gone, b"ours, too");
    fs.unlink(top, b"removed").unwrap();
    make(&site, &fs, "taken", b"made here");
    fs.unlink(d, b"x").unwrap();
    fs.remove_directory(top, b"d").unwrap();
    site.write("changed", b"theirs");
    site.write("removed", b"their change");
    site.write("taken", b"made there");
    site.write("d/more", b"more");
    std::fs::remove_file(site.at("gone")).unwrap();
    fs.write_back_now(CACHE).unwrap();
    let conflicts = fs.cache_conflicts(CACHE, true).unwrap();
    let mut found: Vec<(&str, Option<Vec<u8>>)> = conflicts
        .iter()
        .map(|it| {
            let kept = it.kept.as_ref().filter(|_| it.path != "d");
            (&*it.path, kept.map(|kept| std::fs::read(site.at(kept)).unwrap()))
        })
        .collect();
    found.sort_unstable();
    let kept = |bytes: &[u8]| Some(bytes.to_vec());
    let expected = [
        ("changed", kept(b"theirs")),
        ("d", None),
        ("gone", None),
        ("removed", kept(b"their change")),
        ("taken", kept(b"made there")),
    ];
    assert_eq!(found, expected);
    for (name, bytes) in
        [("changed", &b"ours"[..]), ("gone", b"ours, too"), ("taken", b"made here")]
    {
        assert_eq!(std::fs::read(site.at(name)).unwrap(), bytes, "{name}");
    }
    assert!(!site.at("removed").exists() && site.at("d/more").exists());
    assert_eq!(fs.cache_conflicts(CACHE, false).unwrap(), []);
    site.close(fs);
}

#[test]
fn what_cannot_be_written_back_is_refused() {
    let site = site();
    site.write("a", b"first");
    let fs = site.open();
    let (top, a) = (at(&site, &fs, ""), at(&site, &fs, "a"));
    let unsupported = |done: Result<()>| assert!(matches!(done, Err(FsError::Unsupported)));
    unsupported(fs.link(a, top, b"b").map(drop));
    unsupported(fs.create_unnamed(top, file(0o600), ROOT).map(drop));
    let fifo = New { kind: Kind::Fifo, ..file(0o600) };
    unsupported(fs.create(top, b"fifo", fifo, ROOT).map(drop));
    let set = SetXattr { name: b"user.a", value: b"1", mode: SetMode::Any, kill_set_gid: false };
    unsupported(fs.set_xattr(a, set));
    make(&site, &fs, "b", b"b");
    let exchanged = fs.rename(top, b"a", top, b"b", Replace::Exchange);
    assert!(matches!(exchanged, Err(FsError::Invalid)));
    let placed = fs.set_fileset(CACHE, None, Some(forebay_fs::record::Placement::Direct));
    assert!(refused(placed).contains("stays served"));
    // No more changes than may wait.
    let mut made = 0;
    let full = loop {
        match fs.create(top, format!("file-{made}").as_bytes(), file(0o644), ROOT) {
            Ok(found) => fs.forget(found.ino, 1),
            Err(error) => break error,
        }
        made += 1;
        assert!(made <= 1000);
    };
    assert!(matches!(full, FsError::NoSpace), "{full:?}");
    flush_and_compare(&site, &fs, "there is room again");
    fs.make_directory(top, "more");
    site.close(fs);
}

/// Carries out changes of many kinds, and writes them back now and then, until the power goes.
fn work(site: &Site, fs: &User) -> Result<()> {
    let top = site.lookup(fs, Ino::ROOT, CACHE)?.ino;
    site.names(fs, top)?;
    for round in 0..3_u8 {
        let (d, e) = (format!("d-{round}"), format!("e-{round}"));
        let made = fs.create(top, d.as_bytes(), directory(0o755), ROOT)?.ino;
        let written = fs.create(made, b"new", file(0o644), ROOT)?.ino;
        let handle = fs.open_as(written, WRITE, ROOT)?;
        handle.write(0, &[round + 1; 5000]);
        handle.close();
        fs.write_back_now(CACHE)?;
        fs.rename(made, b"new", top, b"replaced", Replace::Allowed)?;
        fs.rename(top, d.as_bytes(), top, e.as_bytes(), Replace::Allowed)?;
        let again = fs.create(made, b"new", file(0o600), ROOT)?.ino;
        let handle = fs.open_as(written, WRITE, ROOT)?;
        handle.write(1, b"more");
        handle.close();
        fs.write_back_now(CACHE)?;
        let set = SetAttributes { mode: Some(0o640), ..SetAttributes::default() };
        fs.set_attributes(again, set)?;
        fs.rename(made, b"new", made, b"other", Replace::Allowed)?;
        if round > 0 {
            let before = format!("e-{}", round - 1);
            let below = site.lookup(fs, top, &before)?.ino;
            fs.unlink(below, b"other")?;
            fs.remove_directory(top, before.as_bytes())?;
        }
        fs.write_back_now(CACHE)?;
    }
    Ok(())
}

/// Whether the power went at `points`.
fn cut_at(points: &FailPoints, machine: Option<u64>, what: &str) -> bool {
    let site = site();
    site.write("replaced", b"first");
    let worked = site.try_open(points).map(|fs| {
        let done = work(&site, &fs);
        drop(fs);
        done
    });
    let is_cut = points.is_cut();
    assert!(is_cut || matches!(worked, Ok(Ok(()))), "{what}: {worked:?}");
    let TestDisk::Memory(disk) = &site.rig.disk else { panic!("it is in memory") };
    machine.map_or_else(|| disk.crash_process(), |seed| disk.crash_machine(seed));
    let fs = site.open();
    fs.sweep().unwrap();
    at(&site, &fs, "");
    flush_and_compare(&site, &fs, what);
    assert_eq!(fs.cache_conflicts(CACHE, false).unwrap(), [], "{what}");
    assert!(fs.evict_cache(CACHE, 0).is_ok());
    flush_and_compare(&site, &fs, what);
    site.close(fs);
    assert_eq!(site.rig.fsck(Repair::Never, false).outcome(), Outcome::Clean, "{what}");
    is_cut
}

#[test]
fn wherever_the_power_goes_the_home_gets_what_the_cache_has_and_nothing_twice() {
    let points = [
        ("writeback.taken", 9),
        ("writeback.staged", 9),
        ("writeback.expected", 9),
        ("writeback.settled", 24),
        ("writeback.synced", 9),
        ("writeback.noted", 9),
        ("store.commit.before", 24),
        ("store.commit.after", 24),
    ];
    for (point, most) in points {
        let mut was_cut = false;
        for passes in 0..most {
            for machine in [None, Some(passes)] {
                let what = format!("{point} {passes} {machine:?}");
                was_cut |= cut_at(&FailPoints::cut_at(point, passes), machine, &what);
            }
        }
        assert!(was_cut, "{point} was never reached");
    }
}

/// Names of a directory of the cache.
fn pick(
    site: &Site,
    fs: &User,
    dice: &mut Dice,
    directory: Ino,
) -> Result<Option<(String, Ino, Kind)>> {
    let names = site.names(fs, directory)?;
    if names.is_empty() {
        return Ok(None);
    }
    let name = names[dice.index(names.len())].clone();
    let found = site.lookup(fs, directory, &name)?;
    Ok(Some((name, found.ino, found.kind)))
}

fn some_directory(site: &Site, fs: &User, dice: &mut Dice) -> Result<Ino> {
    let mut here = fs.fileset(CACHE);
    site.names(fs, here)?;
    for _ in 0..dice.index(3) {
        match pick(site, fs, dice, here)? {
            Some((_, ino, Kind::Directory)) => {
                site.names(fs, ino)?;
                here = ino;
            }
            _ => break,
        }
    }
    Ok(here)
}

/// One change of the cache, which may be refused.
///
/// # Errors
/// What was said where the home was needed before.
fn change(site: &Site, fs: &User, dice: &mut Dice) -> Result<()> {
    let here = some_directory(site, fs, dice)?;
    let name = format!("n{}", dice.index(5));
    match dice.index(8) {
        0 => drop(
            fs.create(here, name.as_bytes(), directory(0o755), ROOT).map(|it| fs.forget(it.ino, 1)),
        ),
        1 | 2 => {
            if let Ok(made) = fs.create(here, name.as_bytes(), file(0o644), ROOT) {
                fs.forget(made.ino, 1);
                fs.overwrite(made.ino, &bytes_up_to(20_000, dice.any()));
            }
        }
        3 => {
            if let Some((_, ino, Kind::File)) = pick(site, fs, dice, here)? {
                let handle = site.try_recalled(fs, ino, || fs.open_as(ino, WRITE, ROOT))?;
                handle.write(dice.index(3000) as u64, &[dice.index(256) as u8; 700]);
                handle.close();
            }
        }
        4 | 5 => {
            let there = some_directory(site, fs, dice)?;
            if let Some((old, ..)) = pick(site, fs, dice, here)? {
                // Whether the target is empty is to be known.
                fs.recall_named(there, name.as_bytes(), None)?;
                let replace = Replace::Allowed;
                let _ = fs.rename(here, old.as_bytes(), there, name.as_bytes(), replace);
            }
        }
        6 => {
            if let Some((old, _, kind)) = pick(site, fs, dice, here)? {
                fs.recall_named(here, old.as_bytes(), None)?;
                let _ = match kind {
                    Kind::Directory => fs.remove_directory(here, old.as_bytes()),
                    _ => fs.unlink(here, old.as_bytes()),
                };
            }
        }
        _ => {
            if let Some((_, ino, kind)) = pick(site, fs, dice, here)? {
                let mode = if kind == Kind::Directory { 0o700 } else { 0o600 };
                let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
                fs.set_attributes(ino, set)?;
            }
        }
    }
    Ok(())
}

/// Sequences of changes that are tried, each with crashes.
const SEEDS: u64 = 24;

/// Ends a life of the file system by a crash of process or machine, and begins the next, in which the power may go while changes
/// are written back.
fn crash(site: &Site, fs: User, dice: &mut Dice) -> (User, FailPoints) {
    drop(fs);
    let TestDisk::Memory(disk) = &site.rig.disk else { unreachable!() };
    if dice.toss() {
        disk.crash_process();
    } else {
        disk.crash_machine(dice.any());
    }
    let names = ["taken", "staged", "expected", "settled", "settled", "synced", "noted"];
    let name = format!("writeback.{}", names[dice.index(names.len())]);
    let points = match dice.index(3) {
        0 => FailPoints::none(),
        _ => FailPoints::cut_at(&name, dice.below(6)),
    };
    (site.try_open(&points).unwrap(), points)
}

#[test]
fn whatever_happens_here_the_home_has_it_in_the_end() {
    for seed in support::seeds(SEEDS, "caches -- whatever_happens_here") {
        let mut dice = Dice::of(seed);
        let site = site();
        for name in ["n0/n1/n2", "n0/n3", "n1", "n2/n0"] {
            site.write(name, &bytes_up_to(20_000, seed));
        }
        let mut life = (site.open(), FailPoints::none());
        let mut is_away = false;
        for _ in 0..100 {
            let (fs, points) = &life;
            let choice = dice.index(16);
            let done = match choice {
                0..=8 => change(&site, fs, &mut dice),
                9 | 10 => fs.write_back_now(CACHE),
                11 => fs.evict_cache(CACHE, 0).map(drop),
                12 => fs.commit(),
                _ => Ok(()),
            };
            match (done, choice) {
                _ if points.is_cut() => life = crash(&site, life.0, &mut dice),
                (Err(FsError::HomeAway(_)), _) if is_away => {}
                (Err(error), _) => panic!("seed {seed}: {error}"),
                (Ok(()), 13) if dice.toss() => {
                    site.close(life.0);
                    life = (site.open(), FailPoints::none());
                }
                (Ok(()), 14) => life = crash(&site, life.0, &mut dice),
                (Ok(()), 15) => {
                    is_away = !is_away;
                    if is_away {
                        site.take_away();
                    } else {
                        site.bring_back();
                    }
                    // Whoever needs it looks whether it is back.
                    site.clock.advance(2);
                }
                (Ok(()), _) => {}
            }
        }
        if is_away {
            site.bring_back();
            site.clock.advance(2);
        }
        let (fs, _) = crash(&site, life.0, &mut dice);
        site.close(fs);
        let fs = site.open();
        flush_and_compare(&site, &fs, &format!("seed {seed}"));
        let conflicts = fs.cache_conflicts(CACHE, false).unwrap();
        assert_eq!(conflicts, [], "seed {seed}");
        fs.sweep().unwrap();
        site.close(fs);
        assert_eq!(site.rig.fsck(Repair::Never, false).outcome(), Outcome::Clean, "seed {seed}");
    }
}
