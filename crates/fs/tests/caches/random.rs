//! Random changes at home, lookups, reads, evictions, restarts and crashes: in the end the cache shows what lies at home.

use std::collections::BTreeMap;
use std::path::PathBuf;

use forebay_base::Ino;
use forebay_base::seed::Dice;
use forebay_disk::Sync;
use forebay_fs::record::Kind;
use forebay_fs::{Attributes, CacheMode, FsError};

use crate::site::{CACHE, Site};
use crate::support::{self, Shorthand as _, TestDisk, User};

const STEPS: usize = 60;
const SEEDS: u64 = 12;

fn path(dice: &mut Dice) -> String {
    let names = ["a", "b", "c"];
    let depth = dice.index(3);
    let parts: Vec<&str> = (0..=depth).map(|_| names[dice.index(names.len())]).collect();
    parts.join("/")
}

/// Removes whatever is in the way of a path at home.
fn clear(site: &Site, path: &str) -> PathBuf {
    let mut at = site.home.clone();
    let parts: Vec<&str> = path.split('/').collect();
    for (number, part) in parts.iter().enumerate() {
        at.push(part);
        let is_last = number + 1 == parts.len();
        match std::fs::symlink_metadata(&at) {
            Ok(found) if found.is_dir() && is_last => std::fs::remove_dir_all(&at).unwrap(),
            Ok(found) if !found.is_dir() => std::fs::remove_file(&at).unwrap(),
            _ => {}
        }
    }
    at
}

fn change_home(site: &Site, dice: &mut Dice) {
    let path = path(dice);
    match dice.index(5) {
        0 => drop(clear(site, &path)),
        1 => {
            let at = clear(site, &path);
            std::fs::create_dir_all(at).unwrap();
        }
        2 => {
            let at = clear(site, &path);
            std::fs::create_dir_all(at.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(format!("to-{}", dice.index(3)), at).unwrap();
        }
        _ => {
            let was_file = std::fs::symlink_metadata(site.at(&path)).is_ok_and(|it| it.is_file());
            // In place, or in the place of something else.
            if !was_file {
                clear(site, &path);
            }
            let length = dice.index(5000);
            site.write(&path, &vec![u8::try_from(dice.index(256)).unwrap(); length]);
        }
    }
}

/// Walks down a path as far as it leads.
fn walk(site: &Site, fs: &User, path: &str) -> Option<Attributes> {
    let mut at = site.lookup(fs, Ino::ROOT, CACHE).unwrap();
    for name in path.split('/') {
        match site.lookup(fs, at.ino, name) {
            Ok(found) => at = found,
            Err(FsError::NotFound | FsError::NotDirectory) => return None,
            Err(error) => panic!("{path}: {error}"),
        }
    }
    Some(at)
}

/// Reads what is at a path.
fn visit(site: &Site, fs: &User, path: &str) {
    let Some(Attributes { ino: at, .. }) = walk(site, fs, path) else { return };
    match fs.open_as(at, support::READ, support::ROOT) {
        Ok(handle) => handle.close(),
        Err(FsError::Invalid | FsError::IsDirectory) => {}
        // It was not fetched, its directory is compared no more, and it is gone at home.
        Err(FsError::Stale) if site.mode == CacheMode::LocalUpdate => {}
        Err(error) => panic!("{path}: {error}"),
    }
}

#[test]
fn whatever_happens_at_home_and_here_the_cache_shows_the_home() {
    for seed in support::seeds(SEEDS, "caches -- whatever_happens") {
        let mut dice = Dice::of(seed);
        let site = Site::new();
        let mut fs = site.open();
        for _ in 0..STEPS {
            match dice.index(12) {
                0..=4 => change_home(&site, &mut dice),
                5..=8 => visit(&site, &fs, &path(&mut dice)),
                9 => fs.commit().unwrap(),
                10 => drop(fs.evict_cache(CACHE, 0).unwrap()),
                _ => {
                    if dice.index(2) == 0 {
                        site.close(fs);
                    } else {
                        drop(fs);
                        let TestDisk::Memory(disk) = &site.rig.disk else { unreachable!() };
                        disk.crash_machine(seed);
                    }
                    fs = site.open();
                }
            }
        }
        let top = fs.fileset(CACHE);
        assert_eq!(site.read_all(&fs, top), site.tree(), "seed {seed}");
        fs.sweep().unwrap();
        site.close(fs);
    }
}

/// Writes a file of the cache: one that is there, or a new one beside it.
fn change_here(site: &Site, fs: &User, dice: &mut Dice, written: &mut BTreeMap<Ino, Vec<u8>>) {
    let Some(found) = walk(site, fs, &path(dice)) else { return };
    let bytes = vec![u8::try_from(dice.index(256)).unwrap(); 1 + dice.index(3000)];
    let ino = match found.kind {
        Kind::File => found.ino,
        Kind::Directory => {
            let name = format!("new-{}", written.len());
            let new = support::file(0o644);
            let create = || fs.create(found.ino, name.as_bytes(), new, support::ROOT);
            let made = site.recalled(fs, found.ino, create);
            fs.forget(made.ino, 1);
            made.ino
        }
        _ => return,
    };
    fs.overwrite(ino, &bytes);
    // A crash may lose what is not synced.
    fs.sync_file(ino, Sync::All).unwrap();
    written.insert(ino, bytes);
}

#[test]
fn whatever_happens_at_home_what_was_written_here_stays() {
    for seed in support::seeds(SEEDS, "caches -- whatever_happens_at_home_what") {
        let mut dice = Dice::of(seed);
        let site = Site::with(CacheMode::LocalUpdate, 0);
        let mut fs = site.open();
        let mut written = BTreeMap::new();
        for _ in 0..STEPS {
            match dice.index(13) {
                0..=3 => change_home(&site, &mut dice),
                4..=6 => visit(&site, &fs, &path(&mut dice)),
                7..=9 => change_here(&site, &fs, &mut dice, &mut written),
                10 => fs.commit().unwrap(),
                11 => drop(fs.evict_cache(CACHE, 0).unwrap()),
                _ => {
                    drop(fs);
                    let TestDisk::Memory(disk) = &site.rig.disk else { unreachable!() };
                    disk.crash_machine(seed);
                    fs = site.open();
                }
            }
        }
        for (ino, bytes) in written {
            assert_eq!(fs.contents(ino), bytes, "seed {seed}, inode {ino}");
        }
        fs.sweep().unwrap();
        site.close(fs);
    }
}
