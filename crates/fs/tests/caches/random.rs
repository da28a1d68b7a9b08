//! Random changes at home, lookups, reads, evictions, restarts and crashes: in the end the cache shows what lies at home.

use std::path::PathBuf;

use forebay_base::seed::Dice;
use forebay_fs::FsError;

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
        let Ok(found) = std::fs::symlink_metadata(&at) else { continue };
        if found.is_dir() && is_last {
            std::fs::remove_dir_all(&at).unwrap();
        } else if !found.is_dir() && !is_last {
            std::fs::remove_file(&at).unwrap();
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
            let _ = std::fs::remove_file(&at);
            std::os::unix::fs::symlink(format!("to-{}", dice.index(3)), at).unwrap();
        }
        _ => {
            let at = clear(site, &path);
            if std::fs::symlink_metadata(&at).is_ok_and(|found| found.is_symlink()) {
                std::fs::remove_file(&at).unwrap();
            }
            let length = dice.index(5000);
            site.write(&path, &vec![u8::try_from(dice.index(256)).unwrap(); length]);
        }
    }
}

/// Walks down a path as far as it leads, and reads what is there.
fn visit(site: &Site, fs: &User, path: &str) {
    let mut at = fs.fileset(CACHE);
    for name in path.split('/') {
        match site.lookup(fs, at, name) {
            Ok(found) => at = found.ino,
            Err(FsError::NotFound | FsError::NotDirectory) => return,
            Err(error) => panic!("{path}: {error}"),
        }
    }
    match fs.open_as(at, support::READ, support::ROOT) {
        Ok(handle) => handle.close(),
        Err(FsError::Invalid | FsError::IsDirectory) => {}
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
                10 => drop(fs.evict_cache(CACHE).unwrap()),
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
