//! Several nodes on one file system: what one does, the others see; what happens when nodes and owners change.

mod blocks;
mod locks;
mod owners;
mod site;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeMap;

use forebay_base::{FilesetId, Ino, NodeId};
use forebay_disk::Sync;
use forebay_fs::locks::Kind;
use forebay_fs::record::{Durability, Placement};
use forebay_fs::{FsError, HandOver, Namespace, Replace, SetAttributes};
use locks::range_lock;
use site::{Site, client, contents, write};
use support::{READ, READ_WRITE, ROOT, Shorthand as _, TRUNCATE, WRITE, Weather, directory, file};

pub(crate) const ONE: NodeId = NodeId(1);
pub(crate) const TWO: NodeId = NodeId(2);
pub(crate) const THREE: NodeId = NodeId(3);
pub(crate) const DATA: FilesetId = FilesetId(1);

#[test]
fn what_one_node_does_every_other_sees_at_once() {
    let site = Site::new();
    let (one, two, three) = (site.join(ONE), site.join(TWO), site.join(THREE));
    let data = one.fileset("data");
    assert_eq!(two.fileset("data"), data);
    let ino = two.make_file(data, "file");
    assert_eq!((one.find(data, "file"), three.find(data, "file")), (Some(ino), Some(ino)));
    write(&three, ino, 0, b"from three");
    write(&one, ino, 5, b"one!!");
    assert_eq!(contents(&two, ino), b"from one!!");
    two.set_attributes(ino, SetAttributes { mode: Some(0o600), ..SetAttributes::default() })
        .unwrap();
    assert_eq!(one.attributes(ino).unwrap().mode, 0o600);
    three.rename(data, b"file", data, b"moved", Replace::Allowed).unwrap();
    assert_eq!(one.names(data), ["moved"]);
    one.unlink(data, b"moved").unwrap();
    assert!(matches!(two.lookup(data, b"moved"), Err(FsError::NotFound)));
    assert!(two.lookup(data, b"moved").is_err() && three.names(data).is_empty());
}

#[test]
fn nothing_that_another_node_answers_may_be_kept() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let data = two.fileset("data");
    let made = two.create(data, b"file", file(0o644), ROOT).unwrap();
    assert!(!made.cacheable && !two.keeps_names(data) && one.keeps_names(data));
    let opened = two.open_file(made.ino, READ_WRITE, ROOT).unwrap();
    assert!(opened.uncached && opened.registration.is_none());
    // What the owner serves itself, its kernel does not cache either.
    assert!(one.open_file(made.ino, READ, ROOT).unwrap().uncached);
}

#[test]
fn appends_of_all_nodes_neither_tear_nor_overwrite_each_other() {
    let site = Site::new();
    let fss = [site.join(ONE), site.join(TWO), site.join(THREE)];
    let data = fss[0].fileset("data");
    let ino = fss[0].make_file(data, "log");
    const RECORDS: u8 = 100;
    std::thread::scope(|scope| {
        for (number, fs) in fss.iter().enumerate() {
            scope.spawn(move || {
                fs.open_file(ino, WRITE, ROOT).unwrap();
                for record in 0..RECORDS {
                    let bytes = [u8::try_from(number).unwrap(), record, record, 0xff];
                    // The kernel of each takes another offset for the end.
                    assert_eq!(fs.append(ino, 0, &bytes).unwrap(), bytes.len());
                }
                fs.close_file(ino, WRITE).unwrap();
            });
        }
    });
    let all = contents(&fss[1], ino);
    let mut next = [0; 3];
    for record in all.chunks(4) {
        let node = usize::from(record[0]);
        assert_eq!(record[1..], [next[node], next[node], 0xff]);
        next[node] += 1;
    }
    assert_eq!(next, [RECORDS; 3]);
}

#[test]
fn a_removed_file_lives_as_long_as_any_node_has_it_open() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let data = one.fileset("data");
    let ino = one.make_file(data, "file");
    write(&one, ino, 0, b"bytes");
    two.open_file(ino, READ_WRITE, ROOT).unwrap();
    one.unlink(data, b"file").unwrap();
    one.commit().unwrap();
    one.drop_caches();
    assert_eq!(two.write(ino, 5, b" and more").unwrap(), 9);
    let mut buffer = [0; 14];
    assert_eq!(two.read(ino, 0, &mut buffer).unwrap(), 14);
    assert_eq!(&buffer, b"bytes and more");
    assert_eq!(one.attributes(ino).unwrap().nlink, 0);
    two.close_file(ino, READ_WRITE).unwrap();
    assert!(matches!(one.attributes(ino), Err(FsError::Stale)));
}

#[test]
fn what_a_dead_node_held_is_released() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let data = one.fileset("data");
    let ino = two.create(data, b"file", file(0o644), ROOT).unwrap().ino;
    two.open_file(ino, READ_WRITE, ROOT).unwrap();
    two.write(ino, 0, b"bytes").unwrap();
    two.unlink(data, b"file").unwrap();
    assert_eq!(one.attributes(ino).unwrap().nlink, 0);
    assert_eq!(one.client_usage(), [(client(TWO), 1, 1)]);
    two.lock(range_lock(ino, 7, 0, 9), Kind::Write, None).unwrap();
    site.nodes.drop_client(client(TWO));
    assert!(matches!(one.attributes(ino), Err(FsError::Stale)), "nobody holds it any more");
    assert!(one.client_usage().is_empty());
    // It is not dead after all: what it had open is stale, for good.
    assert!(matches!(two.sync_file(ino, Sync::All), Err(FsError::Stale)));
    assert!(matches!(two.read(ino, 0, &mut [0; 4]), Err(FsError::Stale)));
    assert!(matches!(two.lookup(data, b"file"), Err(FsError::Stale)));
    one.commit().unwrap();
}

#[test]
fn a_node_holds_no_more_than_it_may() {
    let site = Site::new();
    let mut parts = site.parts(ONE, true);
    parts.settings.client_holds_max = 1000;
    let one = site.nodes.join(ONE, parts);
    let two = site.join(TWO);
    let data = one.fileset("data");
    let inos: Vec<Ino> =
        (0..1200).map(|number| one.make_file(data, &format!("{number}"))).collect();
    let looked = |number: usize| two.lookup(data, format!("{number}").as_bytes());
    let refused = (0..1200).find(|number| looked(*number).is_err()).unwrap();
    assert!((990..=1000).contains(&refused), "{refused}");
    assert!(matches!(looked(refused), Err(FsError::TooManyFiles(_))));
    // What the kernel has forgotten is held no longer than there is room.
    inos[..100].iter().for_each(|ino| two.forget(*ino, 1));
    assert!(matches!(looked(refused), Err(FsError::TooManyFiles(_))));
    looked(refused).unwrap();
}

// --- locks ---

#[test]
fn filesets_are_made_changed_and_removed_from_any_node() {
    let site = Site::new();
    let (one, two, three) = (site.join(ONE), site.join(TWO), site.join(THREE));
    two.create_fileset("new", Durability::Strict, Placement::Direct, 0o777).unwrap();
    let new = three.fileset("new");
    assert_eq!(one.fileset("new"), new);
    let number = new.fileset();
    three.make_file(new, "file");
    three.set_fileset("new", Some(Durability::Scratch), None).unwrap();
    assert!(one.fileset_status().iter().any(|known| {
        known.name == "new" && known.durability == Durability::Scratch && known.files == Some(2)
    }));
    // It lives elsewhere when it is removed.
    one.hand_over(number, HandOver::Refuse).unwrap();
    site.nodes.give(number, THREE, 9);
    [&one, &two, &three].iter().for_each(|fs| fs.owner_changed(number).unwrap());
    let refused = two.remove_fileset("new").unwrap_err().to_string();
    assert!(refused.contains("holds 1 files"), "{refused}");
    two.unlink(new, b"file").unwrap();
    two.remove_fileset("new").unwrap();
    assert_eq!(three.find(Ino::ROOT, "new"), None);
    assert!(matches!(three.attributes(new), Err(FsError::Stale)));
}

#[test]
fn a_node_brings_its_disk_and_everybody_reaches_what_lies_on_it() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let bare = site.nodes.join(THREE, site.parts(THREE, false));
    assert_eq!(one.disk_status().len(), 2);
    // Each node names the nodes of all disks, and counts what others have room for.
    let placed = |fs: &Namespace| -> Vec<(String, Option<String>)> {
        let all = fs.placed_disk_status().into_iter();
        all.inspect(|disk| assert!(disk.free_inodes > 0 && disk.free_inodes <= disk.total_inodes))
            .map(|disk| (disk.uuid, disk.node))
            .collect()
    };
    let node = |disk: &str, node: NodeId| (disk.to_owned(), Some(format!("n{node}")));
    for fs in [&one, &two, &bare] {
        let mut placed = placed(fs);
        placed.sort();
        assert_eq!(placed, [node("disk-1", ONE), node("disk-2", TWO)]);
    }
    let data = one.fileset("data");
    site.hand_over(&one, &[&one, &two, &bare], TWO, 20);
    // The writer uses its own disk.
    let ino = one.make_file(data, "file");
    write(&two, ino, 0, b"on the disk of two");
    two.commit().unwrap();
    let used = |fs: &Namespace, disk: &str| {
        let status = fs.disk_status();
        status.iter().find(|found| found.uuid == disk).unwrap().objects_in_use
    };
    assert_eq!((used(&two, "disk-2"), used(&two, "disk-1")), (1, 0));
    // One without a disk of its own can own the fileset, too.
    site.hand_over(&two, &[&one, &two, &bare], THREE, 21);
    assert_eq!(contents(&one, ino), b"on the disk of two");
    write(&two, ino, 0, b"ON");
    assert_eq!(contents(&bare, ino), b"ON the disk of two");
    let other = bare.make_file(data, "other");
    write(&bare, other, 0, b"somewhere");
    assert_eq!(contents(&one, other), b"somewhere");
}

#[test]
fn calls_that_get_no_answer_are_errors_that_name_the_node_and_break_nothing() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let data = one.fileset("data");
    two.fileset("data");
    *site.nodes.weather.lock() = Weather { lost: 5, delay_us: 200 };
    let mut failed = 0;
    let mut sure = BTreeMap::new();
    for round in 0..400 {
        let name = format!("{}", round % 50);
        // `Some`: it is there; `None`: it is not; missing: nobody knows.
        let made = two.create(data, name.as_bytes(), directory(0o755), ROOT);
        match made {
            Ok(_) => drop(sure.insert(name.clone(), true)),
            Err(FsError::Exists) => assert_ne!(sure.get(&name), Some(&false)),
            Err(FsError::Io(why)) => {
                assert!(why.contains("node 1"), "{why}");
                failed += 1;
                sure.remove(&name);
            }
            Err(other) => panic!("{other}"),
        }
        if round % 3 == 0 {
            match two.remove_directory(data, name.as_bytes()) {
                Ok(()) => drop(sure.insert(name, false)),
                Err(FsError::NotFound) => assert_ne!(sure.get(&name), Some(&true)),
                Err(FsError::Io(_)) => drop(sure.remove(&name)),
                Err(other) => panic!("{other}"),
            }
        }
    }
    assert!(failed > 0);
    *site.nodes.weather.lock() = Weather::default();
    for (name, is_there) in sure {
        assert_eq!(two.find(data, &name).is_some(), is_there, "{name}");
        assert_eq!(one.find(data, &name).is_some(), is_there, "{name}");
    }
    site.nodes.drop_client(client(TWO));
    assert!(one.client_usage().is_empty());
}

#[test]
fn files_that_are_cut_open_and_executed_elsewhere_follow_the_same_rules() {
    let site = Site::new();
    let (one, two) = (site.join(ONE), site.join(TWO));
    let data = one.fileset("data");
    let ino = one.make_file(data, "file");
    write(&one, ino, 0, b"a longer content");
    two.open_file(ino, READ, ROOT).unwrap();
    one.open_file(ino, TRUNCATE, ROOT).unwrap();
    one.write(ino, 0, b"new").unwrap();
    one.close_file(ino, TRUNCATE).unwrap();
    let mut buffer = [0; 20];
    assert_eq!(two.read(ino, 0, &mut buffer).unwrap(), 3, "it is the same file");
    two.close_file(ino, READ).unwrap();
    assert!(matches!(two.read(ino, 0, &mut buffer), Err(FsError::Stale)), "it is closed");
}
