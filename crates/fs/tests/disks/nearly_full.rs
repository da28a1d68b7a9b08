//! Disks that are nearly full: new files go elsewhere, and small ones leave before they grow.

use std::collections::BTreeSet;

use forebay_base::{ByteSize, FailPoints, Ino};
use forebay_fs::policy::Policy;
use forebay_fs::record::DEFAULT_POOL;

use crate::Pair;
use crate::support::files::{assert_holds, fill};
use crate::support::{self, Nobody, READ, ROOT, Shorthand as _, User, WRITE};

/// Two small disks, which are nearly full with less than 32 MiB free.
fn small_pair() -> Pair {
    let pair = Pair::of_capacity(64 << 20);
    pair.rig.settings_mut(|settings| settings.disk_reserve = ByteSize::mib(8));
    pair
}

/// A file that says where it lies.
fn write_somewhere(fs: &User, name: &str, bytes: usize) -> (Ino, String) {
    let ino = fs.make_file(fs.fileset("data"), name);
    fs.write_file(ino, 0, &vec![1; bytes]);
    (ino, fs.place_of(ino).unwrap().location.unwrap())
}

/// Fills a disk until less than four times its reserve is free.
fn nearly_fill(fs: &User, location: &str) {
    let mut large = 0;
    for number in 0.. {
        let name = format!("{location}-{number}").replace('/', "-");
        let (ino, found) = write_somewhere(fs, &name, 1 << 10);
        if found == location {
            large += 1;
            let bytes = if large == 1 { 26 << 20 } else { 2 << 20 };
            fs.write_file(ino, 0, &vec![1; bytes]);
            fs.commit().unwrap();
        }
        if large == 2 {
            // The removal looks how much is left.
            return fs.unlink(fs.fileset("data"), name.as_bytes()).unwrap();
        }
    }
}

#[test]
fn new_files_avoid_disks_that_are_nearly_full_as_long_as_there_is_another_one() {
    let pair = small_pair();
    let fs = pair.open_with_both(DEFAULT_POOL);
    let places = |round: &str| -> BTreeSet<String> {
        (0..6).map(|number| write_somewhere(&fs, &format!("{round}-{number}"), 9).1).collect()
    };
    let both = places("empty");
    assert_eq!(both.len(), 2, "{both:?}");
    nearly_fill(&fs, "there");
    let roomy = places("one is full");
    assert!(roomy.len() == 1 && !roomy.contains("there"), "{roomy:?}");
    nearly_fill(&fs, roomy.first().unwrap());
    assert_eq!(places("both are full"), both);
    fs.commit().unwrap();
    pair.close(fs);
}

#[test]
fn a_small_file_on_a_disk_that_is_nearly_full_leaves_it_when_it_is_opened_for_writing() {
    let pair = small_pair();
    let fs = pair.open_with_both(DEFAULT_POOL);
    let data = fs.fileset("data");
    let files = fill(&fs, data, 8);
    fs.commit().unwrap();
    nearly_fill(&fs, "there");
    let place = |ino: Ino| fs.place_of(ino).unwrap().location.unwrap();
    let large = (0..).map(|number| fs.find(data, &format!("there-{number}")));
    let large = large.flatten().find(|ino| fs.getattr(*ino).unwrap().size > 16 << 20).unwrap();
    let there: Vec<Ino> = files.keys().copied().filter(|ino| place(*ino) == "there").collect();
    let [small, read, open] = there[..3] else { panic!("{there:?}") };
    fs.open(read, READ).close();
    let handle = fs.open(open, READ);
    for ino in [small, large, open] {
        let size = fs.getattr(ino).unwrap().size;
        fs.write_file(ino, size, b"more");
        assert_eq!(fs.getattr(ino).unwrap().size, size + 4);
    }
    handle.close();
    assert_ne!(place(small), "there");
    assert_eq!([read, open, large].map(place), ["there"; 3]);
    let mut expected = files.clone();
    for ino in [small, open] {
        expected.get_mut(&ino).unwrap().extend(b"more");
    }
    assert_holds(&fs, &expected);
    fs.commit().unwrap();
    pair.close(fs);
    let fs = pair.open();
    assert_holds(&fs, &expected);
    pair.close(fs);
}

#[test]
fn a_crash_while_a_file_leaves_a_disk_that_is_nearly_full_loses_nothing() {
    let first = support::seeds(1, "disks a_crash_while_a_file_leaves_a_disk").start;
    for point in ["move.copied", "disk.publish", "move.synced", "move.turned"] {
        for machine in [None, Some(first)] {
            println!("cut at {point}, machine {machine:?}");
            let pair = small_pair();
            let fs = pair.open_with_both(DEFAULT_POOL);
            let data = fs.fileset("data");
            let mut files = fill(&fs, data, 8);
            nearly_fill(&fs, "there");
            let is_there = |ino: &Ino| fs.place_of(*ino).unwrap().location.unwrap() == "there";
            let there: Vec<Ino> = files.keys().copied().filter(is_there).collect();
            let ([leaves, removed], number) = ([there[0], there[1]], |ino| {
                (0..8).find(|number| fs.find(data, &format!("file-{number}")) == Some(ino))
            });
            let removed_name = format!("file-{}", number(removed).unwrap());
            files.remove(&removed);
            pair.close(fs);
            let points = FailPoints::cut_at(point, 0);
            let fs = pair.rig.open_parts(pair.parts(&points));
            fs.contents(leaves);
            // The removal looks how much is left.
            fs.unlink(data, removed_name.as_bytes()).unwrap();
            assert!(!points.is_cut());
            drop(fs.open_as(leaves, WRITE, ROOT));
            assert!(points.is_cut(), "{point} was not reached");
            pair.crash(fs, machine);
            let fs = pair.open();
            assert_holds(&fs, &files);
            fs.sweep().unwrap();
            pair.close(fs);
        }
    }
}

#[test]
fn a_pool_of_a_rule_that_is_nearly_full_leaves_new_files_to_the_pool_of_their_fileset() {
    let pair = small_pair();
    let fs = pair.open_with_both("logs");
    let rules = "[[place]]\nname = 'logs'\nto = 'logs'\nfiles = '*'";
    let rules = Policy::parse(rules, &Nobody).unwrap();
    assert_eq!(fs.place_files(&rules.place), Vec::<String>::new());
    assert_eq!(write_somewhere(&fs, "before", 9).1, "there");
    nearly_fill(&fs, "there");
    let (_, elsewhere) = write_somewhere(&fs, "after", 9);
    assert_ne!(elsewhere, "there");
    nearly_fill(&fs, &elsewhere);
    assert_eq!(write_somewhere(&fs, "both are full", 9).1, "there");
    fs.commit().unwrap();
    pair.close(fs);
}
