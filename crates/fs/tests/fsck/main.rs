//! The offline checker: every kind of damage is found and named, repaired, and gone afterwards.

mod random;
#[path = "../support/mod.rs"]
mod support;
mod tree;

use std::sync::Arc;

use forebay_base::{DiskId, Epoch, FilesetId, Ino, ObjectId};
use forebay_disk::memory::MemoryDisk;
use forebay_fs::FsError;
use forebay_fs::fsck::{self, Damage, Options, Outcome, Repair};
use forebay_fs::key::{self, Key};
use forebay_fs::record::{
    DiskRecord, DiskUsage, Durability, EntryRecord, FilesetRecord, InodeRecord, Kind, Layout,
    ObjectRef, Stage, Superblock, Usage, decode, encode,
};
use forebay_store::{Batch, Store as _, Stores as _};
use support::Shorthand as _;
use tree::{DATA, Tree, add_file, contents, damages_of};

/// Damages a file system in one way and follows it through check and repair. Paths in `lost` may be
/// gone afterwards, all others must be as they were.
fn follow(damage: impl FnOnce(&Tree), expected: Damage, names: &str, lost: &[&str]) -> Tree {
    let tree = Tree::make();
    let before = tree.listing();
    assert_eq!(tree.check(Repair::Never).outcome(), Outcome::Clean);
    damage(&tree);
    let rows = tree.rows();
    let found = tree.check(Repair::Never);
    assert_eq!(found.outcome(), Outcome::Left, "{expected:?} is found");
    assert_eq!(tree.rows(), rows, "a check changes nothing");
    assert!(
        found.findings.iter().any(|finding| finding.damage == expected
            && finding.detail.contains(names)
            && !finding.repaired),
        "{expected:?} naming {names}: {found:#?}"
    );
    let repaired = tree.check(Repair::Found);
    assert_eq!(repaired.outcome(), Outcome::Repaired, "{repaired:#?}");
    assert!(repaired.findings.iter().all(|finding| finding.repaired));
    let again = tree.check(Repair::Never);
    assert_eq!(again.outcome(), Outcome::Clean, "{expected:?}: {again:#?}");
    tree.rig.assert_clean();
    let after = tree.listing();
    for (path, contents) in &before {
        let is_lost = lost.iter().any(|lost| path.starts_with(lost));
        assert!(is_lost || after.get(path) == Some(contents), "{expected:?}: {path} is intact");
    }
    assert_eq!(tree.check(Repair::Never).outcome(), Outcome::Clean, "after another mount");
    tree
}

#[test]
fn a_closed_file_system_is_clean_and_counted() {
    let tree = Tree::make();
    let report = tree.check(Repair::Found);
    assert_eq!(report.findings, []);
    assert_eq!(report.notes, [""; 0]);
    assert_eq!((report.counts.filesets, report.counts.directories), (4, 6));
    assert_eq!((report.counts.inodes, report.counts.objects), (32, 24));
    assert_eq!((report.counts.entries, report.counts.xattrs), (32, 3));
    assert_eq!(report.passes, 1);
}

#[test]
fn records_that_cannot_be_read_go_and_what_hung_on_them_is_kept() {
    let garbage = || Some(vec![2, 0xff, 0xff]);
    let damage = |tree: &Tree| tree.set(key::inode(tree.file), garbage());
    let tree = follow(damage, Damage::Record, "inode", &["/data/a/b/file"]);
    let kept = tree.listing();
    let rescued =
        kept.iter().find(|(path, _)| path.starts_with("/data/lost+found/#object-")).unwrap();
    assert_eq!(*rescued.1, contents("file"), "the bytes are still there");

    let damage = |tree: &Tree| tree.set(key::inode(tree.b), garbage());
    follow(damage, Damage::Record, "inode", &[]);
    let damage = |tree: &Tree| tree.set(key::inode(Ino::ROOT), garbage());
    follow(damage, Damage::Record, "inode 1", &[]);
    let damage = |tree: &Tree| tree.set(key::inode(tree.work), garbage());
    follow(damage, Damage::Record, "inode", &[]);
    let damage = |tree: &Tree| tree.set(tree.entry(tree.b, "file").0, garbage());
    let tree = follow(damage, Damage::Record, "entry", &["/data/a/b/file"]);
    assert_eq!(tree.listing()[&format!("/data/lost+found/#{}", tree.file)], contents("file"));
    let damage = |tree: &Tree| tree.set(tree.entry(Ino::ROOT, "work").0, garbage());
    follow(damage, Damage::Record, "entry", &[]);
    let damage = |tree: &Tree| tree.set(key::fileset(FilesetId(1)), garbage());
    follow(damage, Damage::Record, "fileset 1", &[]);
    let damage = |tree: &Tree| tree.set(key::fileset(FilesetId::ROOT), garbage());
    follow(damage, Damage::Record, "fileset 0", &[]);
    let damage = |tree: &Tree| tree.set(key::USAGE.to_vec(), garbage());
    follow(damage, Damage::Usage, "usage", &[]);
    let damage = |tree: &Tree| tree.set(key::disk_usage(DiskId(0)), garbage());
    follow(damage, Damage::DiskUsage, "disk 0", &[]);
}

#[test]
fn a_record_of_another_version_is_refused_and_nothing_beside_it_is_changed() {
    let records: [fn(&Tree) -> Vec<u8>; 6] = [
        |_| key::SUPERBLOCK.to_vec(),
        |_| key::USAGE.to_vec(),
        |tree| key::inode(tree.file),
        |tree| tree.entry(tree.b, "twin").0,
        |_| key::disk_usage(DiskId(0)),
        |_| key::fileset(FilesetId(2)),
    ];
    for version in [0_u8, 1, 6, 200] {
        for record in records {
            let tree = Tree::make();
            let key = record(&tree);
            let hit = tree.store_of(&key);
            let hit = u16::from(hit.get(&key::inode(tree.data)).unwrap().is_some());
            tree.change_inode(tree.b, |inode| inode.nlink = 9);
            let mut value = tree.get(&key);
            value[0] = version;
            tree.set(key, Some(value));
            let of = |tree: &Tree, id: u16| -> Vec<(Vec<u8>, Vec<u8>)> {
                let rows = tree.rows().into_iter();
                rows.filter(|(key, _)| key[..2] == id.to_be_bytes()).collect()
            };
            let before = tree.rows();
            let report = tree.check(Repair::Found);
            assert_eq!(report.outcome(), Outcome::Left);
            let found = report.findings.iter().find(|it| it.damage == Damage::Version);
            let detail = &found.expect("it is told").detail;
            assert!(detail.contains(&format!("version {version}")), "{detail}");
            // The fileset with the record is left alone; what is damaged in another one is repaired.
            let own = before.into_iter().filter(|(key, _)| key[..2] == u16::to_be_bytes(hit));
            assert_eq!(of(&tree, hit), own.collect::<Vec<_>>());
            let repaired = tree.rig.record(tree.b).is_some_and(|inode| inode.nlink == 2);
            assert_eq!(repaired, hit == 0);
        }
    }
}

#[test]
fn keys_of_no_kind_go() {
    for unknown in [
        &b"?"[..],
        b"A",
        b"Tt",
        b"S\0",
        b"I123",
        b"X12345678",
        b"Z",
        b"Oabc",
        b"Ux",
        b"F1",
        b"\xff",
    ] {
        let damage = |tree: &Tree| tree.set(unknown.to_vec(), Some(vec![1]));
        follow(damage, Damage::UnknownKey, "key", &[]);
    }
}

#[test]
fn entries_are_found_where_they_are_looked_for() {
    let damage = |tree: &Tree| {
        let (key, entry) = tree.entry(tree.b, "file");
        tree.set(key, None);
        tree.set(key::entry(tree.b, 1 << 20), Some(encode(&entry)));
    };
    follow(damage, Damage::EntryPlace, "\"file\"", &[]);
    let damage = |tree: &Tree| {
        let (key, entry) = tree.entry(tree.b, "file");
        let Some(Key::Entry(_, cookie)) = key::parse(&key) else { panic!("an entry") };
        tree.set(key::entry(tree.b, cookie + 1), Some(encode(&entry)));
    };
    follow(damage, Damage::EntryTwice, "\"file\"", &[]);
    // A damaged name: it is found where it lies, and goes where it is looked for.
    let damage = |tree: &Tree| tree.change_entry(tree.b, "file", |entry| entry.name[0] = b'p');
    let tree = follow(damage, Damage::EntryPlace, "\"pile\"", &["/data/a/b/file"]);
    assert_eq!(tree.listing()["/data/a/b/pile"], contents("file"));
    // Another secret: all names move.
    let damage = |tree: &Tree| tree.change_superblock(|superblock| superblock.hash_key[3] ^= 1);
    follow(damage, Damage::EntryPlace, "\"file\"", &[]);
    let bad = |tree: &Tree| tree.change_entry(tree.b, "file", |entry| entry.name[0] = b'/');
    let tree = follow(bad, Damage::EntryName, "\"/ile\"", &["/data/a/b/file"]);
    assert_eq!(tree.listing()[&format!("/data/lost+found/#{}", tree.file)], contents("file"));
}

#[test]
fn entries_name_what_exists() {
    let lost = &["/data/a/b/file"];
    let to = |ino: Ino| move |tree: &Tree| tree.change_entry(tree.b, "file", |e| e.ino = ino);
    let tree = follow(to(Ino::of(DATA, 9_999_999)), Damage::EntryTarget, "does not exist", lost);
    assert_eq!(tree.listing()[&format!("/data/lost+found/#{}", tree.file)], contents("file"));
    follow(to(Ino::top_of(DATA)), Damage::EntryTarget, "top", lost);
    for other in [Ino::ROOT, Ino::top_of(FilesetId(2)), Ino::of(FilesetId(2), 5), Ino(u64::MAX)] {
        follow(to(other), Damage::EntryTarget, "none of this fileset", lost);
    }
    let damage = |tree: &Tree| tree.change_entry(tree.b, "file", |entry| entry.ino = tree.twin);
    follow(damage, Damage::Orphan, "inode", lost);
    let damage = |tree: &Tree| tree.change_entry(tree.b, "file", |entry| entry.ino = tree.symlink);
    follow(damage, Damage::EntryKind, "Symlink", lost);
    let damage = |tree: &Tree| tree.change_entry(tree.b, "file", |e| e.kind = Kind::Directory);
    follow(damage, Damage::EntryKind, "Directory", &[]);
    let damage = |tree: &Tree| tree.change_entry(tree.data, "a", |entry| entry.kind = Kind::File);
    follow(damage, Damage::EntryKind, "File", &[]);
    let damage = |tree: &Tree| tree.change_entry(tree.b, "file", |entry| entry.ino = Ino(u64::MAX));
    follow(damage, Damage::EntryTarget, "file", lost);
}

#[test]
fn entries_lie_in_directories() {
    let moved = |parent: fn(&Tree) -> Ino| {
        move |tree: &Tree| {
            let (key, entry) = tree.entry(tree.b, "file");
            let Some(Key::Entry(_, cookie)) = key::parse(&key) else { panic!("an entry") };
            tree.set(key, None);
            tree.set(key::entry(parent(tree), cookie), Some(encode(&entry)));
        }
    };
    let lost = &["/data/a/b/file"];
    follow(moved(|tree| tree.twin), Damage::EntryParent, "\"file\"", lost);
    follow(moved(|_| Ino(0)), Damage::EntryParent, "\"file\"", lost);
    follow(moved(|_| Ino(u64::MAX)), Damage::EntryParent, "\"file\"", lost);
    let tree = follow(moved(|_| Ino::of(DATA, 777)), Damage::DirectoryMissing, "no inode", lost);
    let path = format!("/data/lost+found/#{}/file", Ino::of(DATA, 777));
    assert_eq!(tree.listing()[&path], contents("file"));
}

#[test]
fn kinds_follow_the_other_fields() {
    for kind in [Kind::Directory, Kind::Symlink, Kind::Fifo, Kind::BlockDevice] {
        let damage = |tree: &Tree| tree.change_inode(tree.file, |inode| inode.kind = kind);
        follow(damage, Damage::EntryKind, "\"file\"", &[]);
    }
    for kind in [Kind::File, Kind::Symlink, Kind::Socket] {
        let damage = |tree: &Tree| tree.change_inode(tree.b, |inode| inode.kind = kind);
        follow(damage, Damage::EntryKind, "\"b\"", &[]);
        let damage = |tree: &Tree| tree.change_inode(Ino::ROOT, |inode| inode.kind = kind);
        follow(damage, Damage::InodeFields, "top", &[]);
        let damage = |tree: &Tree| tree.change_inode(tree.data, |inode| inode.kind = kind);
        follow(damage, Damage::InodeFields, "top", &[]);
    }
    let damage = |tree: &Tree| tree.change_inode(tree.symlink, |inode| inode.kind = Kind::File);
    follow(damage, Damage::EntryKind, "\"symlink\"", &[]);
}

#[test]
fn fields_go_together() {
    let damages: [fn(&mut InodeRecord); 6] = [
        |inode| inode.mode |= 0o100_000,
        |inode| inode.parent = Ino(5),
        |inode| inode.target = b"x".to_vec(),
        |inode| inode.epoch = Epoch(99),
        |inode| inode.modified.nanoseconds = u32::MAX,
        |inode| inode.created.nanoseconds = 1_000_000_000,
    ];
    for change in damages {
        let damage = |tree: &Tree| tree.change_inode(tree.file, change);
        follow(damage, Damage::InodeFields, "inode", &[]);
    }
    let object = ObjectRef { disk: DiskId(0), id: ObjectId::of(DATA, 2) };
    let damage =
        |tree: &Tree| tree.change_inode(tree.b, |inode| inode.layout = Layout::Whole(object));
    follow(damage, Damage::InodeFields, "Directory", &[]);
    let damage = |tree: &Tree| tree.change_inode(tree.symlink, |inode| inode.target.clear());
    follow(damage, Damage::InodeFields, "symbolic link", &["/data/symlink"]);
    let damage = |tree: &Tree| tree.change_inode(tree.symlink, |inode| inode.size = 2);
    follow(damage, Damage::InodeFields, "Symlink", &[]);
}

#[test]
fn inodes_without_a_name_are_attached() {
    let damage = |tree: &Tree| tree.remove_entry(tree.data, "a");
    let tree = follow(damage, Damage::Orphan, "Directory", &["/data/a"]);
    let listing = tree.listing();
    assert_eq!(listing[&format!("/data/lost+found/#{}/b/file", tree.a)], contents("file"));
    assert_eq!(listing[&format!("/data/lost+found/#{}/linked", tree.a)], contents("linked"));

    let damage = |tree: &Tree| {
        tree.remove_entry(tree.data, "symlink");
        tree.remove_entry(tree.b, "file");
    };
    let tree = follow(damage, Damage::Orphan, "Symlink", &["/data/symlink", "/data/a/b/file"]);
    assert_eq!(tree.listing()[&format!("/data/lost+found/#{}", tree.symlink)], b"a/b/file");
    // The directory is used again, and a name that is taken is not replaced.
    tree.remove_entry(tree.b, "twin");
    let fs = tree.rig.open();
    let found = fs.find(fs.fileset("data"), "lost+found").unwrap();
    fs.make_file(found, &format!("#{}", tree.twin));
    fs.fs.close().unwrap();
    assert_eq!(tree.check(Repair::Found).outcome(), Outcome::Repaired);
    assert_eq!(tree.listing()[&format!("/data/lost+found/#{}.1", tree.twin)], contents("twin"));
}

#[test]
fn a_circle_of_directories_is_opened() {
    let damage = |tree: &Tree| {
        let (key, entry) = tree.entry(tree.data, "a");
        let Some(Key::Entry(_, cookie)) = key::parse(&key) else { panic!("an entry") };
        tree.set(key, None);
        tree.set(key::entry(tree.b, cookie), Some(encode(&entry)));
    };
    let found = {
        let tree = Tree::make();
        damage(&tree);
        tree.check(Repair::Never)
    };
    for path in found.findings.iter().filter_map(|finding| finding.path.as_ref()) {
        assert!(path.matches("/a").count() <= 1, "each name of the cycle is shown once: {path}");
    }
    let tree = follow(damage, Damage::Orphan, "cycle", &["/data/a"]);
    assert_eq!(tree.listing()[&format!("/data/lost+found/#{}/b/file", tree.a)], contents("file"));
}

#[test]
fn a_directory_has_one_name_and_the_parent_that_holds_it() {
    let damage = |tree: &Tree| {
        let (key, entry) = tree.entry(tree.a, "b");
        let Some(Key::Entry(_, cookie)) = key::parse(&key) else { panic!("an entry") };
        tree.set(key::entry(tree.data, cookie), Some(encode(&entry)));
    };
    follow(damage, Damage::DirectoryNames, "directory", &[]);
    let damage = |tree: &Tree| tree.change_inode(tree.b, |inode| inode.parent = Ino(2));
    follow(damage, Damage::DirectoryParent, "parent is 2", &[]);
    let damage = |tree: &Tree| tree.change_inode(Ino::ROOT, |inode| inode.parent = Ino(2));
    follow(damage, Damage::DirectoryParent, "directory 1", &[]);
}

#[test]
fn counts_are_exact() {
    let damage = |tree: &Tree| tree.change_inode(tree.linked, |inode| inode.nlink = 7);
    follow(damage, Damage::LinkCount, "is 7, not 2", &[]);
    let damage = |tree: &Tree| tree.change_inode(tree.a, |inode| inode.nlink = 2);
    follow(damage, Damage::LinkCount, "is 2, not 3", &[]);
    let damage = |tree: &Tree| tree.change_inode(tree.b, |inode| inode.size = 0);
    follow(damage, Damage::EntryCount, "is 0, but it has 3", &[]);
    let damage = |tree: &Tree| tree.change_inode(tree.listed, |inode| inode.xattrs = 9);
    follow(damage, Damage::XattrCount, "should have 9 attributes, but has 3", &[]);
    let usage = Usage { inodes: 3, bytes: u64::MAX };
    let damage = |tree: &Tree| tree.set(key::USAGE.to_vec(), Some(encode(&usage)));
    follow(damage, Damage::Usage, "3 inodes", &[]);
    let damage = |tree: &Tree| tree.set(key::USAGE.to_vec(), None);
    follow(damage, Damage::Usage, "usage", &[]);
    let in_use = DiskUsage { objects: 7, ..DiskUsage::default() };
    let damage = |tree: &Tree| tree.set(key::disk_usage(DiskId(0)), Some(encode(&in_use)));
    follow(damage, Damage::DiskUsage, "says 7 objects, but there are 3", &[]);
    let damage = |tree: &Tree| tree.set(key::disk_usage(DiskId(0)), None);
    follow(damage, Damage::DiskUsage, "disk 0", &[]);
    let damage = |tree: &Tree| tree.set(key::disk_usage(DiskId(8)), Some(encode(&in_use)));
    follow(damage, Damage::DiskUsage, "disk 8", &[]);
}

#[test]
fn attributes_have_an_owner_and_lists_can_be_read() {
    let stray = key::xattr(Ino(123_456), b"user.x");
    let damage = |tree: &Tree| tree.set(stray, Some(b"value".to_vec()));
    follow(damage, Damage::XattrOwner, "\"user.x\" of inode 123456", &[]);
    let list = |tree: &Tree| key::xattr(tree.listed, b"system.posix_acl_access");
    let damage = |tree: &Tree| tree.set(list(tree), Some(b"no list".to_vec()));
    let tree = follow(damage, Damage::AccessList, "posix_acl_access", &[]);
    let mode = tree.rig.record(tree.listed).unwrap().mode;
    assert_eq!(mode & 0o070, 0, "nobody gains access");
}

/// The record of `data`.
fn record_of_data(tree: &Tree) -> FilesetRecord {
    decode("fileset", &tree.get(&key::fileset(DATA))).unwrap()
}

#[test]
fn filesets_have_a_record_and_a_name_for_each_store() {
    let change =
        |change: fn(&mut FilesetRecord)| move |tree: &Tree| tree.change(key::fileset(DATA), change);
    for damage in [
        change(|record| record.settings.name = "other".to_owned()),
        change(|record| record.settings.name = "a/b".to_owned()),
    ] {
        let tree = follow(damage, Damage::FilesetRecord, "fileset 1", &[]);
        assert_eq!(record_of_data(&tree).settings.name, "data");
    }
    let lost = |tree: &Tree| tree.set(key::fileset(DATA), None);
    let tree = follow(lost, Damage::FilesetRecord, "fileset 1", &[]);
    assert_eq!(record_of_data(&tree).settings.durability, Durability::Strict);
    let nameless = |tree: &Tree| tree.remove_entry(Ino::ROOT, "data");
    follow(nameless, Damage::FilesetRecord, "has no name", &[]);
    let both = |tree: &Tree| {
        lost(tree);
        nameless(tree);
    };
    let tree = follow(both, Damage::FilesetRecord, "fileset 1", &[]);
    assert_eq!(record_of_data(&tree).settings.name, "data", "the store knows it");
    let twice = |tree: &Tree| {
        let (key, entry) = tree.entry(Ino::ROOT, "data");
        let Some(Key::Entry(_, cookie)) = key::parse(&key) else { panic!("an entry") };
        let entry = EntryRecord { name: b"twice".to_vec(), ..entry };
        tree.set(key::entry(Ino::ROOT, cookie + 1), Some(encode(&entry)));
    };
    follow(twice, Damage::DirectoryNames, "twice", &[]);
    let root = |record: &mut FilesetRecord| record.settings.name = "root".to_owned();
    let damage = |tree: &Tree| tree.change(key::fileset(FilesetId::ROOT), root);
    follow(damage, Damage::FilesetRecord, "root fileset", &[]);
    let damage = |tree: &Tree| tree.set(key::fileset(FilesetId::ROOT), None);
    follow(damage, Damage::FilesetRecord, "root fileset", &[]);
    let unfinished = |record: &mut FilesetRecord| record.stage = Stage::Removed;
    let damage = |tree: &Tree| {
        tree.rig.stores().remove(DATA).unwrap();
        tree.rig.objects().into_iter().filter(|id| id.fileset() == DATA).for_each(|id| {
            tree.rig.disk.as_disk().remove(id).unwrap();
        });
        tree.change(key::fileset(DATA), unfinished);
    };
    follow(damage, Damage::EntryTarget, "not complete", &["/data"]);
}

#[test]
fn a_fileset_whose_store_is_missing_is_told_and_its_name_is_kept() {
    let tree = Tree::make();
    tree.rig.stores().remove(DATA).unwrap();
    let report = tree.check(Repair::Found);
    assert_eq!(report.outcome(), Outcome::Left);
    assert!(report.findings[0].detail.contains("\"data\""), "{report:#?}");
    let fs = tree.rig.open();
    assert_eq!(fs.names(Ino::ROOT), ["data", "util", "work"]);
}

#[test]
fn records_and_objects_of_another_fileset_are_never_touched() {
    let work = FilesetId(2);
    let tree = Tree::make();
    let others = |tree: &Tree| -> Vec<(Vec<u8>, Vec<u8>)> {
        tree.rows().into_iter().filter(|(key, _)| key[..2] == work.0.to_be_bytes()).collect()
    };
    let before = (others(&tree), tree.rig.objects());
    // A record of `data` claims an object of `work`, and one of `work` lies in the store of `data`.
    let claimed = tree.rig.record(tree.listed).unwrap().layout;
    tree.change_inode(tree.file, |inode| inode.layout = claimed);
    let stray = tree.get(&key::inode(tree.listed));
    let changes = [(key::inode(tree.listed), Some(stray))].into();
    tree.rig.store_of(DATA).commit(&Batch { requires: vec![], changes }).unwrap();
    let report = tree.check(Repair::Found);
    assert_eq!(report.outcome(), Outcome::Repaired, "{report:#?}");
    assert_eq!(others(&tree), before.0);
    let listing = tree.listing();
    assert_eq!(listing[&format!("/{}/listed", "work")], contents("listed"));
    assert!(before.1.iter().all(|id| tree.rig.objects().contains(id)), "no object is removed");
    tree.rig.assert_clean();
}

#[test]
fn numbers_are_below_their_limits() {
    let damage = |tree: &Tree| tree.change_superblock(|superblock| superblock.ino_limit = 3);
    follow(damage, Damage::Limit, "inode", &[]);
    let damage = |tree: &Tree| tree.change_superblock(|superblock| superblock.object_limit = 3);
    follow(damage, Damage::Limit, "object", &[]);
    let damage = |tree: &Tree| tree.change_superblock(|block| block.ino_limit = u64::MAX);
    follow(damage, Damage::Limit, "inode", &[]);
    let damage = |tree: &Tree| tree.change_superblock(|block| block.crashed_epoch = Epoch(50));
    follow(damage, Damage::Superblock, "epoch 50", &[]);
    for ino in [0, u64::MAX] {
        let damage = |tree: &Tree| {
            let record = tree.get(&key::inode(tree.symlink));
            tree.set(key::inode(Ino(ino)), Some(record));
        };
        follow(damage, Damage::InodeNumber, "number", &[]);
    }
}

/// The object of a file, on another disk.
fn on_disk(inode: &InodeRecord, disk: DiskId) -> Layout {
    Layout::Whole(ObjectRef { disk, ..inode.layout.object().unwrap() })
}

#[test]
fn every_file_has_its_own_object_of_its_size() {
    let object = |tree: &Tree, ino| tree.rig.object_of(ino).unwrap();
    let lost = &["/data/a/b/file"];
    let damage = |tree: &Tree| tree.rig.disk.as_disk().remove(object(tree, tree.file)).unwrap();
    let tree = follow(damage, Damage::ObjectMissing, "object", lost);
    assert_eq!(tree.listing()["/data/a/b/file"], b"");
    let damage = |tree: &Tree| {
        let id = object(tree, tree.file);
        tree.rig.disk.as_disk().open(id).unwrap().set_size(10).unwrap();
    };
    let tree = follow(damage, Damage::ObjectSize, "object", lost);
    assert_eq!(tree.listing()["/data/a/b/file"], contents("file")[..10]);
    let damage = |tree: &Tree| tree.change_inode(tree.file, |inode| inode.size = u64::MAX);
    follow(damage, Damage::ObjectSize, "object", &[]);
    // A wrong number: whose object it is stays, and the lost one becomes a file of its own.
    let damage = |tree: &Tree| {
        let twin = tree.rig.record(tree.twin).unwrap().layout;
        tree.change_inode(tree.file, |inode| inode.layout = twin);
        tree.change_inode(tree.file, |inode| inode.size = 1);
    };
    let tree = follow(damage, Damage::ObjectShared, "claims object", lost);
    let listing = tree.listing();
    let rescued = listing.iter().find(|(path, _)| path.starts_with("/data/lost+found/#object-"));
    assert_eq!(*rescued.unwrap().1, contents("file"));
    let far = ObjectRef { disk: DiskId(9), id: ObjectId::of(DATA, 1) };
    let damage =
        |tree: &Tree| tree.change_inode(tree.file, |inode| inode.layout = Layout::Whole(far));
    follow(damage, Damage::ObjectMissing, "on disk 9", lost);
    // The disk alone is wrong: the number tells where the object is.
    let disk = |inode: &mut InodeRecord| inode.layout = on_disk(inode, DiskId(9));
    let damage = |tree: &Tree| tree.change_inode(tree.file, disk);
    follow(damage, Damage::ObjectMissing, "but on disk 0", &[]);
}

#[test]
fn objects_that_nobody_claims_are_removed() {
    let damage = |tree: &Tree| tree.add_object(ObjectId::of(DATA, 500), b"left over");
    let tree = follow(
        damage,
        Damage::ObjectUnclaimed,
        &format!("object {}", ObjectId::of(DATA, 500)),
        &[],
    );
    assert!(!tree.rig.objects().contains(&ObjectId::of(DATA, 500)));
    assert!(!tree.listing().contains_key("/data/lost+found"));
    let damage = |tree: &Tree| tree.add_object(ObjectId::of(DATA, 1 << 46), b"left over");
    follow(
        damage,
        Damage::ObjectUnclaimed,
        &format!("object {}", ObjectId::of(DATA, 1 << 46)),
        &[],
    );
}

#[test]
fn what_recovery_does_after_a_crash_is_no_damage() {
    let tree = Tree::make();
    let fs = tree.rig.open();
    let ino = add_file(&fs, tree.b, "new");
    fs.commit().unwrap();
    fs.write_file(ino, 0, &[1; 9000]);
    tree.rig.crash_process(fs);
    tree.add_object(ObjectId::of(DATA, 600), b"left over");
    tree.rig.disk.as_disk().remove(tree.rig.object_of(tree.twin).unwrap()).unwrap();
    let report = tree.check(Repair::Found);
    assert_eq!(report.findings, []);
    // The root fileset was open as well.
    assert_eq!(report.notes.len(), 5, "{:?}", report.notes);
    let left_over = format!("object {}", ObjectId::of(DATA, 600));
    for text in ["epoch 3", "its size is 3003, that of its object", "not synced", &left_over] {
        assert!(report.notes.iter().any(|note| note.contains(text)), "{text}: {:?}", report.notes);
    }
    let fs = tree.rig.open();
    fs.fs.close().unwrap();
    let report = tree.check(Repair::Found);
    assert_eq!(report.findings, []);
    assert_eq!(report.notes.len(), 2, "not loaded yet: {:?}", report.notes);
    let fs = tree.rig.open();
    assert_eq!(fs.contents(ino), [1; 9000]);
    assert_eq!(fs.contents(tree.twin), b"");
    fs.fs.close().unwrap();
    let report = tree.check(Repair::Found);
    assert_eq!((report.outcome(), report.notes.len()), (Outcome::Clean, 0), "{report:?}");
}

#[test]
fn damage_after_a_crash_is_repaired_and_recovery_still_works() {
    let tree = Tree::make();
    let before = tree.listing();
    tree.rig.crash_process(tree.rig.open());
    tree.change_inode(tree.b, |inode| inode.nlink = 9);
    tree.set(key::inode(tree.file), Some(vec![2, 7]));
    tree.add_object(ObjectId::of(DATA, 600), b"left over");
    let report = tree.check(Repair::Found);
    assert_eq!(report.outcome(), Outcome::Repaired, "{report:#?}");
    let after = tree.listing();
    let intact = before.iter().filter(|(path, _)| *path != "/data/a/b/file");
    intact.for_each(|(path, bytes)| assert_eq!(after.get(path), Some(bytes), "{path}"));
    assert!(after.values().any(|bytes| *bytes == contents("file")), "the sweep leaves it");
    assert_eq!(tree.check(Repair::Never).outcome(), Outcome::Clean);
}

#[test]
fn a_file_system_of_another_term_is_not_touched() {
    let terms = [None, Some(vec![1]), Some(u64::MAX.to_be_bytes().to_vec())];
    for term in terms {
        let tree = Tree::make();
        tree.set(key::TERM.to_vec(), term);
        tree.change_inode(tree.b, |inode| inode.nlink = 9);
        let rows = tree.rows();
        let report = tree.check(Repair::Found);
        assert_eq!(report.outcome(), Outcome::Left);
        assert!(damages_of(&report).contains(&Damage::Term));
        assert!(damages_of(&report).contains(&Damage::LinkCount), "it is still checked");
        assert_eq!(tree.rows(), rows);
    }
}

#[test]
fn without_superblock_or_disk_nothing_is_changed() {
    let unreadable = [None, Some(vec![]), Some(vec![2, 2, 3]), Some(vec![2; 80])];
    for value in unreadable {
        let tree = Tree::make();
        tree.set(key::SUPERBLOCK.to_vec(), value);
        let rows = tree.rows();
        let report = tree.check(Repair::Found);
        assert_eq!(report.outcome(), Outcome::Left);
        assert_eq!(damages_of(&report), [Damage::Superblock]);
        assert_eq!(tree.rows(), rows);
    }
    let tree = Tree::make();
    let root = tree.rig.store_of(FilesetId::ROOT);
    let mut superblock: Superblock =
        decode("superblock", &root.get(key::SUPERBLOCK).unwrap().unwrap()).unwrap();
    superblock.disks[0].uuid = "another".to_owned();
    let changes = [(key::SUPERBLOCK.to_vec(), Some(encode(&superblock)))].into();
    root.commit(&Batch { requires: vec![], changes }).unwrap();
    tree.change_inode(tree.b, |inode| inode.nlink = 9);
    let rows = tree.rows();
    let report = tree.check(Repair::Found);
    assert_eq!(report.outcome(), Outcome::Left);
    let found = damages_of(&report);
    assert_eq!(found.iter().filter(|damage| **damage == Damage::DiskMissing).count(), 4);
    assert!(found.contains(&Damage::LinkCount), "{found:?}");
    assert_eq!(tree.rows(), rows);
}

#[test]
fn an_owner_that_comes_in_stops_the_repair() {
    let tree = Tree::make();
    tree.change_inode(tree.b, |inode| inode.nlink = 9);
    let disks = tree.rig.parts().disks;
    let mut passes = 0;
    let mut progress = |text: &str| {
        if text.starts_with("repairing") {
            passes += 1;
            tree.rig.open().fileset("data");
        }
    };
    let mut options = Options {
        repair: Repair::Found,
        records_lost: false,
        archives: forebay_fs::fsck::Archives::Trusted,
        stores: None,
        fileset: None,
        disks: None,
        filesets: None,
        progress: &mut progress,
    };
    let result = fsck::check(&tree.rig.store_of(DATA), &disks, &mut options);
    assert!(matches!(result, Err(FsError::Fenced)), "{result:?}");
    assert_eq!(passes, 1);
    assert_eq!(tree.rig.record(tree.b).unwrap().nlink, 9);
}

#[test]
fn an_object_on_another_disk_is_found_by_its_number() {
    let tree = Tree::make();
    let before = tree.listing();
    let (uuid, location) = ("disk-two".to_owned(), "there".to_owned());
    let second = DiskRecord::new(DiskId(1), &uuid, &location);
    tree.change_superblock(|superblock| superblock.disks.push(second));
    let other = MemoryDisk::new(1 << 30, Arc::clone(&tree.rig.clock) as _);
    let mut disks = tree.rig.parts().disks;
    let mut options = Options {
        repair: Repair::Found,
        records_lost: false,
        archives: forebay_fs::fsck::Archives::Trusted,
        stores: None,
        fileset: None,
        disks: None,
        filesets: None,
        progress: &mut |_| {},
    };
    let report = fsck::check(&tree.rig.store_of(DATA), &disks, &mut options).unwrap();
    assert_eq!(damages_of(&report), [Damage::DiskMissing]);

    disks.insert(0, ("disk-two".to_owned(), Arc::new(other)));
    assert!(
        fsck::check(&tree.rig.store_of(DATA), &disks, &mut options).unwrap().findings.is_empty()
    );
    let disk = |inode: &mut InodeRecord| inode.layout = on_disk(inode, DiskId(1));
    tree.change_inode(tree.file, disk);
    let report = fsck::check(&tree.rig.store_of(DATA), &disks, &mut options).unwrap();
    assert_eq!(report.outcome(), Outcome::Repaired, "{report:#?}");
    assert!(damages_of(&report).contains(&Damage::ObjectMissing));
    tree.change_superblock(|superblock| superblock.disks.truncate(1));
    assert_eq!(tree.listing(), before);
}
