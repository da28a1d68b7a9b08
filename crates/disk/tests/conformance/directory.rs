//! What only a disk in a directory promises: its label, its layout, and the kernel's view of a file.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_base::ObjectId;
use forebay_disk::directory::{DirectoryDisk, Label};
use forebay_disk::{Disk, DiskError, Object};
use rustix::mm::{MapFlags, ProtFlags};

use super::{label, listed, memory_disk, published, read};

fn formatted() -> (tempfile::TempDir, DirectoryDisk) {
    let folder = tempfile::tempdir().unwrap();
    DirectoryDisk::format(folder.path(), &label()).unwrap();
    let disk = DirectoryDisk::open(folder.path(), &label()).unwrap();
    (folder, disk)
}

/// Every path below `folder`, with the content of files.
fn tree(folder: &Path) -> BTreeSet<(PathBuf, Vec<u8>)> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(tree(&path));
            found.insert((path, Vec::new()));
        } else {
            let content = fs::read(&path).unwrap();
            found.insert((path, content));
        }
    }
    found
}

/// The words of a refusal, which must hold each of `expected`.
fn refused<T>(outcome: Result<T, DiskError>, expected: &[&str]) {
    match outcome {
        Err(DiskError::Refused(text)) => {
            for words in expected {
                assert!(text.contains(words), "\"{text}\" does not say \"{words}\"");
            }
        }
        Err(error) => panic!("expected {expected:?}, not {error:?}"),
        Ok(_) => panic!("expected a refusal that says {expected:?}"),
    }
}

#[test]
fn a_label_reads_back() {
    let folder = tempfile::tempdir().unwrap();
    DirectoryDisk::format(folder.path(), &label()).unwrap();
    assert_eq!(DirectoryDisk::read_label(folder.path()), Ok(label()));
    let odd = Label { file_system: "a \"quoted\"\nname".to_owned(), disk: "ä = 1".to_owned() };
    let other = tempfile::tempdir().unwrap();
    DirectoryDisk::format(other.path(), &odd).unwrap();
    assert_eq!(DirectoryDisk::read_label(other.path()), Ok(odd));
}

#[test]
fn format_refuses_what_is_no_empty_directory_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let format = |name: &str| DirectoryDisk::format(folder.path().join(name), &label());
    fs::write(folder.path().join("file"), b"text").unwrap();
    fs::create_dir(folder.path().join("used")).unwrap();
    fs::write(folder.path().join("used/thesis.txt"), b"text").unwrap();
    let before = tree(folder.path());
    refused(format("missing"), &["missing", "no such directory", "create it"]);
    refused(format("file"), &["file", "not a directory"]);
    refused(format("used"), &["used", "thesis.txt", "empty it"]);
    assert_eq!(tree(folder.path()), before);
}

#[test]
fn format_refuses_a_disk_and_names_its_file_system() {
    let folder = tempfile::tempdir().unwrap();
    DirectoryDisk::format(folder.path(), &label()).unwrap();
    let before = tree(folder.path());
    let other = Label { file_system: "another".to_owned(), disk: "d2".to_owned() };
    refused(DirectoryDisk::format(folder.path(), &other), &[&label().file_system, "disk d1"]);
    assert_eq!(tree(folder.path()), before);
    fs::write(folder.path().join("forebay-disk.toml"), b"garbage").unwrap();
    refused(DirectoryDisk::format(folder.path(), &other), &["cannot be read"]);
}

#[test]
fn format_refuses_what_the_user_may_not_write() {
    let folder = tempfile::tempdir().unwrap();
    let nobody = 65_534;
    let path = folder.path().to_owned();
    let outcome = std::thread::spawn(move || {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o555);
        fs::set_permissions(&path, permissions).unwrap();
        // The superuser may write everywhere, so this thread stops to be it.
        // SAFETY: takes an integer, and concerns this thread's access to files only.
        unsafe { libc::setfsuid(nobody) };
        DirectoryDisk::format(&path, &label())
    })
    .join()
    .unwrap();
    refused(outcome, &["may not write", "permissions"]);
    assert_eq!(tree(folder.path()), BTreeSet::new());
}

#[test]
fn format_accepts_a_new_file_system_and_an_interrupted_formatting() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("lost+found")).unwrap();
    fs::write(folder.path().join("forebay-disk.toml.unfinished"), b"forma").unwrap();
    DirectoryDisk::format(folder.path(), &label()).unwrap();
    DirectoryDisk::open(folder.path(), &label()).unwrap();
    assert!(!folder.path().join("forebay-disk.toml.unfinished").exists());
}

#[test]
fn open_refuses_what_is_not_this_disk() {
    let folder = tempfile::tempdir().unwrap();
    let open = |label: &Label| DirectoryDisk::open(folder.path(), label);
    refused(open(&label()), &["not a disk", "format it"]);
    assert_eq!(tree(folder.path()), BTreeSet::new());
    DirectoryDisk::format(folder.path(), &label()).unwrap();
    let before = tree(folder.path());
    refused(open(&Label { file_system: "another".to_owned(), ..label() }), &["another", "mounted"]);
    refused(open(&Label { disk: "d2".to_owned(), ..label() }), &["disk d1", "disk d2"]);
    assert_eq!(tree(folder.path()), before);
    let newer = "format = 2\nfile_system = \"x\"\ndisk = \"d1\"\n";
    fs::write(folder.path().join("forebay-disk.toml"), newer).unwrap();
    refused(open(&label()), &["format is 2", "format 1"]);
    refused(DirectoryDisk::open(folder.path().join("nowhere"), &label()), &["no such directory"]);
}

#[test]
fn a_disk_in_use_is_refused() {
    let (folder, disk) = formatted();
    refused(DirectoryDisk::open(folder.path(), &label()), &["in use", "stop"]);
    assert_eq!(DirectoryDisk::read_label(folder.path()), Ok(label()));
    drop(disk);
    DirectoryDisk::open(folder.path(), &label()).unwrap();
}

#[test]
fn a_reopened_disk_keeps_everything_published() {
    let (folder, disk) = formatted();
    published(&disk, 7).write_at(0, b"kept").unwrap();
    let fresh = disk.create(ObjectId(8)).unwrap();
    fresh.write_at(0, b"lost").unwrap();
    drop(fresh);
    drop(disk);
    let disk = DirectoryDisk::open(folder.path(), &label()).unwrap();
    assert_eq!(listed(&disk), [7]);
    assert_eq!(read(&*disk.open(ObjectId(7)).unwrap(), 0, 9), b"kept");
}

#[test]
fn a_named_fresh_object_that_a_crash_left_is_swept_at_open() {
    let (folder, disk) = formatted();
    drop(disk);
    let disk = DirectoryDisk::open_with_named_fresh_objects(folder.path(), &label()).unwrap();
    published(&disk, 7).write_at(0, b"kept").unwrap();
    let fresh = disk.create(ObjectId(8)).unwrap();
    let mut names = fs::read_dir(folder.path().join("fresh")).unwrap();
    let left = names.next().expect("it has a name").unwrap().path();
    assert!(left.exists());
    drop(fresh);
    assert!(!left.exists(), "dropping the last handle removes it");
    fs::write(&left, b"as a crash leaves it").unwrap();
    drop(disk);
    let disk = DirectoryDisk::open(folder.path(), &label()).unwrap();
    assert!(!left.exists());
    assert_eq!(listed(&disk), [7]);
}

#[test]
fn foreign_files_are_passed_over() {
    let (folder, disk) = formatted();
    published(&disk, 0x1005);
    let objects = folder.path().join("objects");
    for foreign in ["readme", "0000000001/1", "0000000001/abc.txt", "0000000001/FFF"] {
        fs::write(objects.join(foreign), b"text").unwrap();
    }
    fs::create_dir(objects.join("0000000001/00a")).unwrap();
    fs::create_dir(objects.join("00000000zz")).unwrap();
    fs::write(objects.join("0000000002"), b"a file where a folder would be").unwrap();
    std::os::unix::fs::symlink("005", objects.join("0000000001/006")).unwrap();
    assert_eq!(listed(&disk), [0x1005]);
    assert_eq!(disk.attributes(ObjectId(0x1006)), Ok(None));
    assert_eq!(disk.attributes(ObjectId(0x100a)), Ok(None));
    assert!(disk.open(ObjectId(0x1006)).is_err(), "a link is not followed");
}

#[test]
fn emptied_folders_go_but_the_newest_stays() {
    let (folder, disk) = formatted();
    let folders = || fs::read_dir(folder.path().join("objects")).unwrap().count();
    for id in (0..20).map(|i| i * 0x1000) {
        drop(published(&disk, id));
    }
    assert_eq!(folders(), 20);
    for id in (0..20).filter(|i| *i != 5).map(|i| i * 0x1000) {
        disk.remove(ObjectId(id)).unwrap();
    }
    listed(&disk);
    assert_eq!(folders(), 2, "the one in use and the newest");
    drop(published(&disk, 0x3007));
    assert_eq!(listed(&disk), [0x3007, 0x5000]);
}

#[test]
fn removals_alone_empty_folders_in_time() {
    let (folder, disk) = formatted();
    for id in 0..6000 {
        drop(published(&disk, id));
    }
    for id in 0..4096 {
        disk.remove(ObjectId(id)).unwrap();
    }
    let first = folder.path().join("objects/0000000000");
    assert!(!first.exists());
    drop(published(&disk, 1));
    assert!(first.exists());
}

#[test]
fn copies_from_another_kind_of_disk_are_not_supported() {
    let (_folder, disk) = formatted();
    let memory = memory_disk(1 << 20);
    let (ours, theirs) = (published(&disk, 1), published(&memory, 1));
    theirs.write_at(0, b"bytes").unwrap();
    assert_eq!(ours.copy_from(&*theirs, 0, 0, 5), Err(DiskError::Unsupported));
    ours.write_at(0, b"ours!").unwrap();
    assert_eq!(theirs.copy_from(&*ours, 0, 0, 5), Ok(5), "memory takes from anywhere");
}

#[test]
fn the_kind_of_file_system_is_told() {
    let (folder, disk) = formatted();
    let description = disk.describe();
    assert_eq!(description.location, folder.path().display().to_string());
    assert_ne!(description.kind, "unknown");
    let named = |disk: &DirectoryDisk| {
        disk.describe().advice.iter().any(|advice| advice.contains("unnamed files"))
    };
    drop(disk);
    let disk = DirectoryDisk::open_with_named_fresh_objects(folder.path(), &label()).unwrap();
    assert!(named(&disk));
}

/// Whether the file system has leases; where it has none, every answer is "it cannot be told".
fn has_leases(disk: &DirectoryDisk) -> bool {
    let has = !disk.create(ObjectId(99)).unwrap().has_other_writers();
    if !has {
        println!("skipped: {} has no leases", disk.describe().kind);
    }
    has
}

#[test]
fn another_descriptor_is_another_writer() {
    let (folder, disk) = formatted();
    if !has_leases(&disk) {
        return;
    }
    let object = published(&disk, 1);
    assert!(!object.has_other_writers());
    let second = disk.open(ObjectId(1)).unwrap();
    assert!(object.has_other_writers());
    drop(second);
    assert!(!object.has_other_writers());
    let path = folder.path().join("objects/0000000000/001");
    let other = fs::OpenOptions::new().write(true).open(&path).unwrap();
    assert!(object.has_other_writers());
    drop(other);
    assert!(!object.has_other_writers());
}

fn map(file: impl AsFd) -> *mut std::ffi::c_void {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses an unused address, and nothing refers to it before.
    unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, protection, MapFlags::SHARED, file, 0) }
        .unwrap()
}

#[test]
fn a_mapping_that_outlived_its_descriptor_is_another_writer() {
    let (folder, disk) = formatted();
    if !has_leases(&disk) {
        return;
    }
    let object: &dyn Object = &*published(&disk, 1);
    object.set_size(4096).unwrap();
    let path = folder.path().join("objects/0000000000/001");
    let other = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mapping = map(&other);
    drop(other);
    assert!(object.has_other_writers());
    // SAFETY: the mapping is as long as this, and nothing refers into it.
    unsafe { rustix::mm::munmap(mapping, 4096) }.unwrap();
    assert!(!object.has_other_writers());
}

/// Opening a file breaks the lease that the question takes, of which the kernel tells by a signal.
#[test]
fn asking_for_other_writers_harms_nobody() {
    let (_folder, disk) = formatted();
    let object = published(&disk, 1);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                disk.open(ObjectId(1)).unwrap();
            }
        });
        for _ in 0..20_000 {
            object.has_other_writers();
        }
        done.store(true, Ordering::Relaxed);
    });
}
