//! Scrubbing archives: what lies there is read, and damaged or missing objects are found before somebody needs them.

use forebay_base::Ino;
use forebay_fs::{Migrated, Residence};

use crate::cold::{Cold, archive};
use crate::support::files::{bytes_up_to, refused};
use crate::support::{READ, Rig, Shorthand as _, User};

/// Premigrates files; returns the names of their objects in the order of the files.
fn premigrate(cold: &Cold, fs: &User, files: &[Ino]) -> Vec<String> {
    let mut names = Vec::new();
    for ino in files {
        let before = cold.objects();
        let outcome = fs.premigrate_files("archive", &[*ino]).unwrap();
        assert!(matches!(outcome[..], [Migrated::Premigrated { .. }]), "{outcome:?}");
        names.extend(cold.objects().into_iter().filter(|name| !before.contains(name)));
    }
    names
}

fn spoil(cold: &Cold, name: &str) {
    cold.bucket.change(name, |bytes| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    });
}

/// Files that were read.
fn scrub(fs: &User) -> u64 {
    let number = fs.scrub_archives(None).unwrap();
    fs.work_through(number, &mut |_| {}).unwrap();
    fs.task_status().into_iter().find(|task| task.id == number).unwrap().progress.files
}

fn state(fs: &User, ino: Ino) -> Residence {
    fs.place_of(ino).unwrap().state
}

fn damaged(fs: &User) -> Vec<u64> {
    fs.fileset_status().into_iter().flat_map(|it| it.damaged).map(|file| file.ino).collect()
}

#[test]
fn damaged_and_missing_objects_of_an_archive_are_found_and_only_their_files_are_concerned() {
    let cold = Cold::new();
    let fs = cold.open();
    let content = |number: u64| bytes_up_to(3_000_000, number + 1);
    let files: Vec<Ino> = (0..7)
        .map(|number| {
            let ino = fs.make_file(Ino::ROOT, &format!("file-{number}"));
            fs.write_file(ino, 0, &content(number));
            ino
        })
        .collect();
    // The last one is not in the archive.
    let names = premigrate(&cold, &fs, &files[..6]);
    files[..3].iter().for_each(|ino| drop(fs.migrate_files("archive", &[*ino]).unwrap()));
    assert_eq!((scrub(&fs), damaged(&fs)), (6, Vec::new()));
    spoil(&cold, &names[1]);
    cold.bucket.lose(&names[2]);
    spoil(&cold, &names[4]);
    cold.bucket.lose(&names[5]);
    assert_eq!(scrub(&fs), 6);
    let mut lost = vec![files[1].0, files[2].0];
    lost.sort_unstable();
    let mut found = damaged(&fs);
    found.sort_unstable();
    assert_eq!(found, lost);
    let states: Vec<Residence> = files.iter().map(|ino| state(&fs, *ino)).collect();
    let [r, p, m] = [Residence::Resident, Residence::Premigrated, Residence::Migrated];
    assert_eq!(states, [m, m, m, p, r, r, r]);
    // What was damaged of a file that is here is removed, by a thread of the archive.
    while cold.objects().contains(&names[4]) {
        std::thread::yield_now();
    }
    // They go to the archive anew.
    premigrate(&cold, &fs, &files[4..6]);
    for ino in &files[3..6] {
        assert!(matches!(
            fs.migrate_files("archive", &[*ino]).unwrap()[..],
            [Migrated::Evicted { .. }]
        ));
    }
    for number in [0, 3, 4, 5, 6] {
        assert!(fs.contents(files[number]) == content(number as u64), "file {number}");
    }
    fs.close().unwrap();
}

#[test]
fn a_damaged_object_of_a_premigrated_file_in_use_is_not_what_the_file_becomes() {
    let cold = Cold::new();
    let fs = cold.open();
    let ino = fs.make_file(Ino::ROOT, "file");
    fs.write_file(ino, 0, b"content");
    let names = premigrate(&cold, &fs, &[ino]);
    spoil(&cold, &names[0]);
    let handle = fs.open(ino, READ);
    scrub(&fs);
    assert_eq!(state(&fs, ino), Residence::Resident);
    assert_eq!(cold.objects(), names, "it goes when the file is at rest");
    handle.close();
    // Before anybody has looked at it again.
    archive(&fs, ino);
    fs.make_copies().unwrap();
    assert_eq!(fs.contents(ino), b"content");
    cold.close(fs);
    assert_eq!(cold.objects(), Vec::<String>::new());
}

#[test]
fn an_object_with_other_bytes_than_were_premigrated_is_damaged() {
    let cold = Cold::new();
    let fs = cold.open();
    let [one, other] = ["one", "other"].map(|name| {
        let ino = fs.make_file(Ino::ROOT, name);
        fs.write_file(ino, 0, name.as_bytes());
        ino
    });
    let names = premigrate(&cold, &fs, &[one, other]);
    // The store answers with another object.
    let mut wrong = Vec::new();
    cold.bucket.change(&names[1], |bytes| wrong.clone_from(bytes));
    cold.bucket.change(&names[0], |bytes| *bytes = wrong);
    scrub(&fs);
    assert_eq!((state(&fs, one), state(&fs, other)), (Residence::Resident, Residence::Premigrated));
    cold.close(fs);
}

#[test]
fn a_scrub_waits_for_an_archive_that_does_not_answer_and_condemns_nothing() {
    let cold = Cold::new();
    let fs = cold.open();
    let ino = fs.make_file(Ino::ROOT, "file");
    fs.write_file(ino, 0, b"content");
    premigrate(&cold, &fs, &[ino]);
    cold.bucket.set_away(true);
    let number = fs.scrub_archives(Some("/")).unwrap();
    let why = refused(fs.work_through(number, &mut |_| {}));
    assert!(why.contains("bucket") && why.contains("does not answer"), "{why}");
    let why = refused(fs.scrub_archives(Some("/")));
    assert!(why.contains("does that already"), "{why}");
    assert_eq!((state(&fs, ino), damaged(&fs)), (Residence::Premigrated, Vec::new()));
    cold.bucket.set_away(false);
    cold.close(fs);
    // It goes on after a mount.
    let fs = cold.open();
    fs.work_through(number, &mut |_| {}).unwrap();
    let task = fs.task_status().remove(0);
    assert_eq!((task.title.as_str(), task.progress.files), ("scrub archives of /", 1));
    cold.close(fs);
}

#[test]
fn a_file_system_without_archives_has_nothing_to_scrub_there() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let why = refused(fs.scrub_archives(None));
    assert!(why.contains("no archives") && why.contains("forebay disk list"), "{why}");
    fs.close().unwrap();
}
