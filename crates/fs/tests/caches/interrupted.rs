//! A round of changes of a single-writer cache that was interrupted: what is read at home, and changed here, before it is repeated.

use forebay_base::{FailPoints, Ino};
use forebay_fs::{CacheMode, FsError, Replace, SetAttributes};

use crate::site::{CACHE, Site};
use crate::support::{ROOT, Shorthand as _, TestDisk, User, file};

fn site_with(names: &[&str]) -> Site {
    let site = Site::with(CacheMode::SingleWriter, 0);
    names.iter().for_each(|name| site.write(name, name.as_bytes()));
    site
}

/// The top directory of the cache, whose names are fetched.
fn top(site: &Site, fs: &User) -> Ino {
    let top = fs.fileset(CACHE);
    site.names(fs, top).unwrap();
    top
}

fn move_to(fs: &User, from: (Ino, &str), to: (Ino, &str)) {
    let replace = Replace::Allowed;
    fs.rename(from.0, from.1.as_bytes(), to.0, to.1.as_bytes(), replace).unwrap();
}

/// Carries out `work` and what it has to be written back for, until the power goes at a point; and opens the file system again, with
/// what it has on its disk.
fn cut_at(site: &Site, point: &str, passes: u64, work: impl Fn(&User, Ino)) -> User {
    let points = FailPoints::cut_at(point, passes);
    let fs = site.try_open(&points).unwrap();
    let top = top(site, &fs);
    work(&fs, top);
    assert!(fs.write_back_now(CACHE).is_err() && points.is_cut(), "{point} {passes}");
    drop(fs);
    let TestDisk::Memory(disk) = &site.rig.disk else { unreachable!() };
    disk.crash_process();
    site.open()
}

/// All is at home as it is here, and nobody else has done anything there.
fn check(site: &Site, fs: &User) {
    fs.write_back_now(CACHE).unwrap();
    assert_eq!(site.read_all(fs, fs.fileset(CACHE)), site.tree());
    assert_eq!(fs.cache_conflicts(CACHE, false).unwrap(), []);
}

#[test]
fn a_directory_is_listed_and_a_file_fetched_where_an_interrupted_round_has_moved_them() {
    let site = site_with(&["d/x", "a"]);
    let fs = cut_at(&site, "writeback.settled", 0, |fs, top| move_to(fs, (top, "d"), (top, "e")));
    let top = top(&site, &fs);
    let e = site.lookup(&fs, top, "e").unwrap().ino;
    assert_eq!(site.names(&fs, e).unwrap(), ["x"]);
    assert_eq!(fs.contents(site.lookup(&fs, e, "x").unwrap().ino), b"d/x");
    check(&site, &fs);
    site.close(fs);

    let fs = cut_at(&site, "writeback.settled", 0, |fs, top| move_to(fs, (top, "a"), (top, "b")));
    let b = site.lookup(&fs, fs.fileset(CACHE), "b").unwrap().ino;
    assert_eq!(fs.contents(b), b"a");
    check(&site, &fs);
    site.close(fs);
}

#[test]
fn names_at_home_are_not_read_until_an_interrupted_round_can_be_repeated() {
    let site = site_with(&["d/x"]);
    let fs = cut_at(&site, "writeback.settled", 0, |fs, top| move_to(fs, (top, "d"), (top, "e")));
    let top = top(&site, &fs);
    let e = site.lookup(&fs, top, "e").unwrap().ino;
    site.take_away();
    assert!(matches!(site.names(&fs, e), Err(FsError::HomeAway(_))));
    site.bring_back();
    site.clock.advance(2);
    assert_eq!(site.names(&fs, e).unwrap(), ["x"]);
    check(&site, &fs);
    site.close(fs);
}

#[test]
fn what_is_moved_and_removed_here_before_it_was_ever_made_at_home_is_no_conflict() {
    let site = site_with(&["replaced"]);
    let make = |fs: &User, top| fs.forget(fs.create(top, b"a", file(0o644), ROOT).unwrap().ino, 1);
    let fs = cut_at(&site, "writeback.expected", 0, make);
    let top = top(&site, &fs);
    move_to(&fs, (top, "a"), (top, "replaced"));
    fs.unlink(top, b"replaced").unwrap();
    check(&site, &fs);
    assert!(site.tree().is_empty());
    site.close(fs);
}

#[test]
fn a_file_that_an_interrupted_round_has_made_and_moved_is_known_though_it_has_changed_here() {
    let site = site_with(&[]);
    let make_and_move = |fs: &User, top| {
        fs.overwrite(fs.make_file(top, "a"), b"first");
        move_to(fs, (top, "a"), (top, "b"));
    };
    let fs = cut_at(&site, "writeback.settled", 1, make_and_move);
    assert!(site.at("b").exists(), "the home has it already");
    let b = fs.find(fs.fileset(CACHE), "b").unwrap();
    fs.overwrite(b, b"second");
    fs.set_attributes(b, SetAttributes { mode: Some(0o600), ..SetAttributes::default() }).unwrap();
    check(&site, &fs);
    assert_eq!(std::fs::read(site.at("b")).unwrap(), b"second");
    site.close(fs);
}

#[test]
fn names_are_read_at_home_while_changes_are_carried_out_there() {
    let site = site_with(&[]);
    for number in 0..40 {
        site.write(&format!("d-{number}/x"), b"x");
        site.write(&format!("f-{number}"), b"f");
    }
    let fs = site.open();
    let top = top(&site, &fs);
    let inode = |name: String| site.lookup(&fs, top, &name).unwrap().ino;
    let directories: Vec<Ino> = (0..40).map(|number| inode(format!("d-{number}"))).collect();
    let files: Vec<Ino> = (0..40).map(|number| inode(format!("f-{number}"))).collect();
    for number in 0..40 {
        for kind in ["d", "f"] {
            move_to(
                &fs,
                (top, &format!("{kind}-{number}")),
                (top, &format!("{kind}-new-{number}")),
            );
        }
    }
    std::thread::scope(|scope| {
        scope.spawn(|| fs.write_back_now(CACHE).unwrap());
        for (directory, file) in directories.iter().zip(&files).rev() {
            assert_eq!(site.names(&fs, *directory).unwrap(), ["x"]);
            assert_eq!(fs.contents(*file), b"f");
        }
    });
    check(&site, &fs);
    site.close(fs);
}
