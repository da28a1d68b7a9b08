//! Crashes at every step of copying, and disks that are lost at any moment.

use std::collections::BTreeMap;

use forebay_base::seed::Dice;
use forebay_base::{FailPoints, Ino};
use forebay_disk::Sync;

use crate::array::{Array, NAMES, assert_have_copies, copy_all};
use crate::support::files::{Files, assert_holds, bytes_of, fill};
use crate::support::{self, READ, Shorthand as _, WRITE};

/// Fills and copies until the power is cut at a point; the contents that each file may have.
fn copy_until_cut(array: &Array, point: &str, passes: u64) -> BTreeMap<Ino, Vec<Vec<u8>>> {
    let fs = array.open();
    let data = fs.fileset("data");
    let files = fill(&fs, data, 6);
    copy_all(&fs);
    fs.sync_all().unwrap();
    let mut may_be: BTreeMap<Ino, Vec<Vec<u8>>> =
        files.into_iter().map(|(ino, bytes)| (ino, vec![bytes])).collect();
    array.close(fs);
    let points = FailPoints::cut_at(point, passes);
    let fs = array.rig.open_parts(array.parts(&points, &[]));
    let inos: Vec<Ino> = may_be.keys().copied().collect();
    let mut change = || -> forebay_fs::Result<()> {
        for (number, ino) in (50..).zip(&inos) {
            let bytes = bytes_of(number);
            let known = may_be.get_mut(ino).unwrap();
            let handle = fs.open_as(*ino, support::WRITE, support::ROOT)?;
            // Any part of it may be there.
            let mut mixed = known[0].clone();
            mixed.resize(mixed.len().max(bytes.len()), 0);
            mixed[..bytes.len()].copy_from_slice(&bytes);
            let written = handle.try_write(0, &bytes);
            let synced = written.and_then(|()| fs.sync_file(*ino, Sync::All));
            if synced.is_ok() {
                *known = vec![mixed];
            } else {
                known.push(mixed);
            }
            let closed = fs.close_file(*ino, support::WRITE);
            synced.and(closed)?;
        }
        fs.commit()?;
        fs.make_copies()?;
        let number = fs.scrub(None)?;
        fs.work_through(number, &mut |_| {})?;
        fs.unlink(data, b"file-0")?;
        fs.commit()?;
        fs.make_copies()?;
        Ok(())
    };
    let done = change();
    assert!(done.is_ok() || points.is_cut(), "{done:?}");
    assert!(points.is_cut() || point == "never", "{point} was not reached");
    points.cut_now();
    let gone = fs.find(data, "file-0").is_none();
    if gone {
        may_be.remove(&inos[0]);
    }
    drop(fs);
    may_be
}

#[test]
fn a_crash_at_any_step_of_copying_loses_nothing_and_leaves_nothing() {
    let first = support::seeds(1, "copies a_crash_at_any_step_of_copying").start;
    let points = [
        ("copy.written", 0),
        ("copy.written", 4),
        ("copy.synced", 0),
        ("copy.synced", 4),
        ("copy.noted", 0),
        ("copy.noted", 4),
        ("copy.replaced", 0),
        ("commit.start", 2),
        ("commit.published", 2),
        ("commit.stored", 2),
        ("commit.done", 2),
        ("reclaim.removed", 0),
        ("reclaim.removed", 3),
        ("disk.write", 9),
        ("disk.publish", 2),
        ("disk.sync", 3),
        ("disk.sync", 6),
        ("disk.remove", 1),
        ("store.commit.before", 5),
        ("store.commit.after", 5),
        ("never", 0),
    ];
    for (point, passes) in points {
        for seed in first..first + 4 {
            println!("cut at {point} after {passes} passes, seed {seed}");
            let array = Array::new(3);
            let may_be = copy_until_cut(&array, point, passes);
            let machine = (seed % 2 == 1).then_some(seed);
            for number in 0..3 {
                match machine {
                    Some(seed) => array.memory(number).crash_machine(seed),
                    None => array.memory(number).crash_process(),
                }
            }
            // With a disk lost as well, or with all of them.
            let lost: Vec<usize> =
                (seed % 4 >= 2).then_some((seed % 3) as usize).into_iter().collect();
            let fs = array.open_without(&lost);
            lost.iter().for_each(|number| drop(fs.give_up_disk(NAMES[*number], 5).unwrap()));
            let mut files = Files::new();
            for (ino, known) in may_be {
                if fs.attributes(ino).is_err() {
                    // It was removed, and nobody was told.
                    continue;
                }
                let found = fs.contents(ino);
                let is_fine = known.contains(&found) || (machine.is_some() && known.len() > 1);
                assert!(is_fine, "inode {ino} is neither what it was nor what it was to be");
                files.insert(ino, found);
            }
            fs.sweep().unwrap();
            copy_all(&fs);
            assert_holds(&fs, &files);
            assert_have_copies(&array, &files, 1);
            fs.close().unwrap();
            drop(fs);
            array.assert_clean_without(&lost);
        }
    }
}

/// What is known of one file in the random test.
#[derive(Clone, Default)]
struct Known {
    now: Vec<u8>,
    /// What it may hold once its disk is lost: its latest acknowledged content and all since.
    may_be: Vec<Vec<u8>>,
}

#[test]
fn files_hold_what_was_acknowledged_whatever_disk_is_lost_at_whatever_moment() {
    for seed in support::seeds(12, "copies files_hold_what_was_acknowledged") {
        let mut dice = Dice::of(seed);
        let array = Array::new(4);
        let mut lost: Vec<usize> = Vec::new();
        let mut fs = array.open();
        let mut known: BTreeMap<Ino, Known> = BTreeMap::new();
        let data = fs.fileset("data");
        for step in 0..150_u64 {
            let inos: Vec<Ino> = known.keys().copied().collect();
            let some = (!inos.is_empty()).then(|| inos[dice.index(inos.len().max(1))]);
            match (dice.index(12), some) {
                (0 | 1, _) | (_, None) => {
                    let ino = fs.make_file(data, &format!("new-{step}"));
                    fs.write_file(ino, 0, &bytes_of(step));
                    let now = bytes_of(step);
                    known.insert(ino, Known { may_be: vec![Vec::new(), now.clone()], now });
                }
                (2 | 3, Some(ino)) => {
                    let of = known.get_mut(&ino).unwrap();
                    let (bytes, at) = (bytes_of(seed + step), dice.index(of.now.len() + 10));
                    fs.write_file(ino, at as u64, &bytes);
                    of.now.resize(of.now.len().max(at + bytes.len()), 0);
                    of.now[at..at + bytes.len()].copy_from_slice(&bytes);
                    of.may_be.push(of.now.clone());
                }
                (4, Some(ino)) => {
                    fs.overwrite(ino, &bytes_of(step));
                    let now = bytes_of(step);
                    let of = known.get_mut(&ino).unwrap();
                    // A new object, of which nothing is acknowledged: it may be lost as a whole.
                    *of = Known { may_be: vec![Vec::new(), now.clone()], now };
                }
                (5 | 6, Some(ino)) => {
                    let handle = fs.open(ino, WRITE);
                    fs.sync_file(ino, Sync::Data).unwrap();
                    handle.close();
                    let of = known.get_mut(&ino).unwrap();
                    of.may_be = vec![of.now.clone()];
                }
                (7 | 8, _) => {
                    copy_all(&fs);
                    known.values_mut().for_each(|of| of.may_be = vec![of.now.clone()]);
                }
                (9, Some(ino)) => {
                    let name =
                        fs.names(data).into_iter().find(|name| fs.find(data, name) == Some(ino));
                    fs.unlink(data, name.unwrap().as_bytes()).unwrap();
                    known.remove(&ino);
                }
                (10, _) => {
                    let number = fs.scrub(None).unwrap();
                    fs.commit().unwrap();
                    fs.work_through(number, &mut |_| {}).unwrap();
                }
                (_, _) => {
                    fs.sync_all().unwrap();
                    let machine = dice.toss().then_some(seed + step);
                    array.crash(fs, machine);
                    if lost.len() < 2 && dice.toss() {
                        let number = (0..4).find(|number| !lost.contains(number)).unwrap();
                        lost.push(number);
                    }
                    fs = array.open_without(&lost);
                    for number in &lost {
                        fs.give_up_disk(NAMES[*number], 5).unwrap();
                    }
                    known.retain(|ino, of| match fs.open_as(*ino, READ, support::ROOT) {
                        Ok(handle) => {
                            let found = handle.contents();
                            handle.close();
                            assert!(of.may_be.contains(&found), "seed {seed}, step {step}, {ino}");
                            of.now.clone_from(&found);
                            of.may_be = vec![found];
                            true
                        }
                        Err(_) => {
                            assert!(of.may_be[0].is_empty(), "seed {seed}, step {step}, {ino}");
                            false
                        }
                    });
                    fs.sweep().unwrap();
                    // Before the next one is lost.
                    copy_all(&fs);
                    known.values_mut().for_each(|of| of.may_be = vec![of.now.clone()]);
                }
            }
            for (ino, of) in &known {
                assert!(fs.contents(*ino) == of.now, "seed {seed}, step {step}, inode {ino}");
            }
        }
        fs.close().unwrap();
        drop(fs);
        array.assert_clean_without(&lost);
    }
}
