//! After an orderly end every object on the disks belongs to a file, whatever was closed early.

mod support;

use forebay_fs::Settings;
use support::{READ_WRITE, Rig, Shorthand as _, User, WRITE};

/// Open objects from which on idle ones are closed, and published for it.
const OPEN_MAX: usize = 64;

fn rig_of_few_open_objects() -> Rig {
    let rig = Rig::in_directory();
    rig.settings_mut(|settings: &mut Settings| settings.open_objects_max = OPEN_MAX);
    rig
}

/// Opens and closes a file without writing, while somebody else has its object open, as the kernel has
/// for a moment after a close, and for longer by a mapping.
fn close_while_mapped(fs: &User, ino: forebay_base::Ino) -> std::fs::File {
    let handle = fs.open(ino, READ_WRITE);
    let mapping = handle.kept_by_the_kernel();
    handle.close();
    mapping
}

/// Has so many files in use that the objects of others are closed.
fn press_for_open_objects(fs: &User, round: usize) {
    let data = fs.fileset("data");
    for number in 0..2 * OPEN_MAX {
        let ino = fs.make_file(data, &format!("filler-{round}-{number}"));
        fs.write_file(ino, 0, b"filler");
        fs.after_request();
    }
}

#[test]
fn an_empty_file_whose_object_is_closed_early_leaves_no_object_behind() {
    let rig = rig_of_few_open_objects();
    let fs = rig.open();
    let data = fs.fileset("data");
    let files: Vec<_> = (0..5).map(|n| fs.make_file(data, &format!("empty-{n}"))).collect();
    fs.commit().unwrap();
    for ino in &files {
        drop(close_while_mapped(&fs, *ino));
    }
    press_for_open_objects(&fs, 0);
    fs.commit().unwrap();
    // Nothing about the files has changed since: no record would mention the objects.
    rig.close(fs);
}

#[test]
fn bytes_that_come_through_a_mapping_after_the_close_are_kept_when_the_object_is_closed_early() {
    let rig = rig_of_few_open_objects();
    let fs = rig.open();
    let ino = fs.make_file(fs.fileset("data"), "mapped");
    fs.commit().unwrap();
    let mapping = close_while_mapped(&fs, ino);
    press_for_open_objects(&fs, 0);
    std::io::Write::write_all(&mut &mapping, b"through the mapping").unwrap();
    drop(mapping);
    assert_eq!(fs.contents(ino), b"through the mapping");
    rig.close(fs);
    let fs = rig.open();
    assert_eq!(fs.contents(ino), b"through the mapping");
    rig.close(fs);
}

#[test]
fn threads_that_open_close_sync_and_remove_leave_no_object_behind() {
    const ROUNDS: usize = 300;
    const THREADS: usize = 4;
    let rig = rig_of_few_open_objects();
    rig.settings_mut(|settings| settings.commit_interval = std::time::Duration::from_millis(10));
    let fs = rig.open();
    let background = fs.fs.start_background().unwrap();
    let data = fs.fileset("data");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let fs = fs.clone();
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let name = format!("file-{thread}-{}", round % 50);
                    let ino = fs.find(data, &name).unwrap_or_else(|| fs.make_file(data, &name));
                    match round % 5 {
                        0 => drop(close_while_mapped(&fs, ino)),
                        1 => fs.overwrite(ino, b""),
                        2 => {
                            let handle = fs.open(ino, WRITE);
                            fs.sync_file(ino, forebay_disk::Sync::Data).unwrap();
                            handle.close();
                        }
                        3 => {
                            let handle = fs.open(ino, READ_WRITE);
                            fs.unlink(data, name.as_bytes()).unwrap();
                            handle.close();
                        }
                        _ => fs.write_file(ino, 0, b"content"),
                    }
                    fs.after_request();
                }
            });
        }
    });
    background.stop();
    rig.close(fs);
}
