//! Snapshots: what they hold whatever happens to the fileset, what they cost, and what a crash leaves of them.

mod support;

use forebay_base::{FailPoints, Ino};
use forebay_disk::Allocate;
use forebay_fs::fsck::{Damage, Outcome, Repair};
use forebay_fs::key;
use forebay_fs::record::{Durability, Placement};
use forebay_fs::snapshot::Change;
use forebay_fs::{FsError, Replace, Result, SetAttributes};
use forebay_store::{Batch, Store as _, Stores as _};
use support::snapshots::{Tree, World, list, seen, snapshot, take, tree_of};
use support::{Handle, READ, READ_WRITE, ROOT, Rig, Shorthand as _, TRUNCATE, User, WRITE, file};

fn refused<T: std::fmt::Debug>(done: Result<T>) -> String {
    match done {
        Err(FsError::Refused(why)) => why,
        other => panic!("not refused: {other:?}"),
    }
}

fn is_read_only<T>(done: &Result<T>) -> bool {
    matches!(done, Err(FsError::ReadOnly))
}

#[test]
fn a_snapshot_holds_names_and_bytes_whatever_happens_to_the_files() {
    support::at_the_owner(|rig| {
        let fs = rig.open();
        let data = fs.fileset("data");
        let below = fs.make_directory(data, "dir");
        for (parent, name) in [(data, "a"), (data, "b"), (below, "c"), (below, "d"), (below, "e")] {
            let ino = fs.make_file(parent, name);
            fs.write_file(ino, 0, format!("first bytes of {name}").as_bytes());
        }
        let find = |name: &str| fs.find(below, name).or_else(|| fs.find(data, name)).unwrap();
        let before = tree_of(&fs, data);
        take(&fs, "one");
        assert_eq!(seen(&fs, "one"), before);
        fs.write_file(find("a"), 6, b"CHANGED");
        fs.overwrite(find("b"), b"all new");
        fs.unlink(below, b"c").unwrap();
        let cut = SetAttributes { size: Some(3), ..Default::default() };
        fs.set_attributes(find("d"), cut).unwrap();
        fs.rename(below, b"e", data, b"moved", Replace::Allowed).unwrap();
        fs.make_file(data, "new");
        fs.commit().unwrap();
        assert_eq!(seen(&fs, "one"), before);
        let after = tree_of(&fs, data);
        take(&fs, "two");
        fs.write_file(fs.find(data, "a").unwrap(), 0, b"third");
        fs.unlink(data, b"moved").unwrap();
        fs.commit().unwrap();
        assert_eq!((seen(&fs, "one"), seen(&fs, "two")), (before.clone(), after.clone()));
        rig.close(fs);
        let fs = rig.open();
        assert_eq!((seen(&fs, "one"), seen(&fs, "two")), (before, after));
        rig.close(fs);
    });
}

#[test]
fn a_file_that_is_open_for_writing_is_kept_as_it_is_at_the_moment() {
    support::at_the_owner(|rig| {
        let fs = rig.open();
        let data = fs.fileset("data");
        let ino = fs.make_file(data, "log");
        let handle = fs.open(ino, READ_WRITE);
        handle.write(0, b"before");
        take(&fs, "one");
        handle.write(3, b"AFTER-and-longer");
        let wanted: Tree = [("/log".to_owned(), Some(b"before".to_vec()))].into();
        assert_eq!(seen(&fs, "one"), wanted);
        take(&fs, "two");
        handle.write(0, b"x");
        handle.close();
        let later: Tree = [("/log".to_owned(), Some(b"befAFTER-and-longer".to_vec()))].into();
        fs.write_file(ino, 1, b"y");
        assert_eq!((seen(&fs, "one"), seen(&fs, "two")), (wanted, later));
        fs.unlink(data, b"log").unwrap();
        fs.commit().unwrap();
        rig.close(fs);
    });
}

#[test]
fn a_file_that_is_open_for_reading_in_a_snapshot_never_changes_under_its_reader() {
    support::at_the_owner(|rig| {
        let fs = rig.open();
        let ino = fs.make_file(fs.fileset("data"), "file");
        fs.write_file(ino, 0, b"old old old");
        take(&fs, "one");
        let kept = fs.find(snapshot(&fs, "one").unwrap(), "file").unwrap();
        let reader = fs.open(kept, READ);
        let live = fs.open(ino, READ);
        assert_eq!(reader.read(0, 3), b"old");
        fs.write_file(ino, 0, b"new new new");
        assert_eq!(reader.read(0, 20), b"old old old");
        assert_eq!(live.read(0, 20), b"new new new", "the file keeps its object");
        reader.close();
        live.close();
        rig.close(fs);
    });
}

#[test]
fn nothing_in_a_snapshot_can_be_changed() {
    support::at_the_owner(|rig| {
        let fs = rig.open();
        let data = fs.fileset("data");
        let ino = fs.make_file(data, "file");
        fs.write_file(ino, 0, b"bytes");
        take(&fs, "one");
        let top = snapshot(&fs, "one").unwrap();
        let kept = fs.find(top, "file").unwrap();
        for parent in [top, list(&fs)] {
            assert!(is_read_only(&fs.create(parent, b"new", file(0o644), ROOT)));
            assert!(is_read_only(&fs.unlink(parent, b"file")));
            assert!(is_read_only(&fs.remove_directory(parent, b"one")));
            assert!(is_read_only(&fs.rename(parent, b"file", parent, b"x", Replace::Allowed)));
        }
        assert!(is_read_only(&fs.link(kept, top, b"second")));
        assert!(is_read_only(&fs.set_attributes(kept, SetAttributes::default())));
        for access in [WRITE, READ_WRITE, TRUNCATE] {
            assert!(is_read_only(&fs.open_file(kept, access, ROOT)));
        }
        assert!(is_read_only(&fs.write(kept, 0, b"x")));
        assert!(is_read_only(&fs.allocate(kept, Allocate::Extend, 0, 9)));
        assert!(matches!(fs.link(kept, data, b"out"), Err(FsError::CrossFileset)));
        assert_eq!(fs.names(list(&fs)), ["one"]);
        assert!(fs.names(data).iter().all(|name| name != ".snapshots"), "listings do not show it");
        assert!(fs.find(top, ".snapshots").is_none());
        rig.close(fs);
    });
}

#[test]
fn a_deleted_snapshot_gives_its_space_back_and_others_keep_theirs() {
    support::at_the_owner(|rig| {
        let fs = rig.open();
        let data = fs.fileset("data");
        let names = ["a", "b", "c", "d"];
        let inos = names.map(|name| fs.make_file(data, name));
        inos.iter().for_each(|ino| fs.write_file(*ino, 0, b"one"));
        let mut states = Vec::new();
        for (number, name) in ["s1", "s2", "s3"].into_iter().enumerate() {
            states.push(tree_of(&fs, data));
            take(&fs, name);
            fs.write_file(inos[number], 0, name.as_bytes());
            fs.overwrite(inos[3], name.as_bytes());
        }
        fs.unlink(data, b"a").unwrap();
        fs.commit().unwrap();
        for (gone, left) in [("s2", vec!["s1", "s3"]), ("s3", vec!["s1"]), ("s1", vec![])] {
            assert!(fs.at_owner().delete_snapshot("data", gone).unwrap() > 0);
            assert!(snapshot(&fs, gone).is_none());
            for name in left {
                let number = usize::from(name.as_bytes()[1] - b'1');
                assert_eq!(seen(&fs, name), states[number], "{name} after {gone} is gone");
            }
            fs.commit().unwrap();
        }
        rig.close(fs);
        assert_eq!(rig.objects().len(), 3);
    });
}

#[test]
fn an_unchanged_file_costs_no_object_and_a_young_one_nothing_at_all() {
    support::at_the_owner(|rig| {
        let fs = rig.open();
        let data = fs.fileset("data");
        let ino = fs.make_file(data, "old");
        fs.write_file(ino, 0, b"old");
        fs.commit().unwrap();
        take(&fs, "one");
        take(&fs, "two");
        fs.write_file(ino, 0, b"new");
        fs.write_file(ino, 0, b"newer");
        fs.commit().unwrap();
        assert_eq!(rig.objects().len(), 2, "two snapshots share one copy");
        for _ in 0..3 {
            let ino = fs.make_file(data, "young");
            fs.write_file(ino, 0, b"young");
            fs.commit().unwrap();
            fs.overwrite(ino, b"again");
            fs.unlink(data, b"young").unwrap();
            fs.commit().unwrap();
        }
        rig.close(fs);
        assert_eq!(rig.objects().len(), 2);
    });
}

#[test]
fn what_cannot_be_done_is_refused_with_the_reason() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    take(&fs, "one");
    assert!(refused(fs.create_snapshot("data", "one")).contains("already"));
    assert!(refused(fs.create_snapshot("data", "a/b")).contains("cannot be the name"));
    assert!(refused(fs.create_snapshot("nothing", "one")).contains("no fileset"));
    assert!(refused(fs.delete_snapshot("data", "two")).contains("its snapshots: one"));
    assert!(refused(fs.remove_fileset("data")).contains("has snapshots"));
    fs.create_fileset("more", Durability::Strict, Placement::Served, 0o755).unwrap();
    fs.create_snapshot("more", "one").unwrap();
    fs.delete_snapshot("more", "one").unwrap();
    fs.remove_fileset("more").unwrap();
    let all = fs.snapshots(None).unwrap();
    assert_eq!(all.iter().map(|one| one.fileset.as_str()).collect::<Vec<_>>(), ["data"]);
    rig.close(fs);
    let other = Rig::of_another_node();
    let fs = other.open();
    assert!(refused(fs.at_owner().create_snapshot("data", "one")).contains("cluster"));
    other.close(fs);
}

#[test]
fn the_root_fileset_has_snapshots_without_the_other_filesets() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let ino = fs.make_file(Ino::ROOT, "at-the-top");
    fs.write_file(ino, 0, b"bytes");
    fs.create_snapshot("/", "one").unwrap();
    fs.unlink(Ino::ROOT, b"at-the-top").unwrap();
    let list = fs.find(Ino::ROOT, ".snapshots").unwrap();
    let wanted: Tree = [("/at-the-top".to_owned(), Some(b"bytes".to_vec()))].into();
    assert_eq!(tree_of(&fs, fs.find(list, "one").unwrap()), wanted);
    rig.close(fs);
}

#[test]
fn fsck_finds_lost_stores_and_objects_of_snapshots_and_touches_nothing_that_they_hold() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let data = fs.fileset("data");
    let inos = ["rewritten", "removed", "same"].map(|name| fs.make_file(data, name));
    inos.iter().for_each(|ino| fs.write_file(*ino, 0, b"bytes"));
    fs.commit().unwrap();
    let removed = rig.object_of(inos[1]).unwrap();
    take(&fs, "one");
    let before = seen(&fs, "one");
    fs.write_file(inos[0], 0, b"BYTES");
    fs.unlink(data, b"removed").unwrap();
    rig.close(fs);
    // A repair of something else leaves what the snapshot holds.
    let store = rig.store_of(data.fileset());
    let changes = [(key::USAGE.to_vec(), None)].into();
    store.commit(&Batch { requires: Vec::new(), changes }).unwrap();
    assert_eq!(rig.fsck(Repair::Found, true).outcome(), Outcome::Repaired);
    let fs = rig.open();
    assert_eq!(seen(&fs, "one"), before);
    rig.close(fs);

    rig.disk.as_disk().remove(removed).unwrap();
    let report = rig.fsck(Repair::Found, false);
    assert_eq!(report.outcome(), Outcome::Left);
    assert!(report.findings[0].detail.contains("1 of its files have lost their objects"));
    rig.stores().remove_frozen(data.fileset(), 1).unwrap();
    let report = rig.fsck(Repair::Found, false);
    assert_eq!(report.outcome(), Outcome::Repaired, "{:#?}", report.findings);
    assert!(report.findings.iter().any(|found| found.damage == Damage::Snapshot));
    let fs = rig.open();
    assert!(fs.names(list(&fs)).is_empty());
    assert_eq!(fs.contents(inos[0]), b"BYTES");
    assert_eq!(fs.contents(inos[2]), b"bytes");
    fs.close().unwrap();
}

#[test]
fn a_copy_from_a_snapshot_has_the_bytes_of_the_snapshot() {
    support::at_the_owner(|rig| {
        let fs = rig.open();
        let data = fs.fileset("data");
        let ino = fs.make_file(data, "file");
        fs.write_file(ino, 0, b"as it was");
        take(&fs, "one");
        let kept = fs.find(snapshot(&fs, "one").unwrap(), "file").unwrap();
        let source = fs.open(kept, READ);
        for (number, written) in [None, Some(b"as it is!")].into_iter().enumerate() {
            written.into_iter().for_each(|bytes| fs.write_file(ino, 0, bytes));
            let target = fs.open(fs.make_file(data, &format!("copy-{number}")), READ_WRITE);
            assert_eq!(fs.copy_range((kept, 0), (target.ino, 0), 100).unwrap(), 9);
            assert_eq!(fs.copy_range((kept, 9), (target.ino, 9), 100).unwrap(), 0);
            target.close();
            let copy = fs.find(data, &format!("copy-{number}")).unwrap();
            assert_eq!(fs.contents(copy), b"as it was");
        }
        // The copy shares no object with the snapshot.
        let copy = fs.find(data, "copy-0").unwrap();
        fs.write_file(copy, 0, b"x");
        assert_eq!(source.read(0, 9), b"as it was");
        source.close();
        rig.close(fs);
    });
}

fn changes(fs: &User, from: &str, to: Option<&str>) -> Vec<String> {
    let found = fs.diff_snapshots("data", (from, to), 100).unwrap();
    assert_eq!(found.total, found.changes.len() as u64);
    let shown = |one: Change| match one.from {
        Some(from) => format!("{:?} {} from {from}", one.change, one.path),
        None => format!("{:?} {}", one.change, one.path),
    };
    found.changes.into_iter().map(shown).collect()
}

#[test]
fn a_diff_names_what_was_created_removed_renamed_and_modified() {
    support::at_the_owner(|rig| {
        let fs = rig.open();
        let data = fs.fileset("data");
        let dir = fs.make_directory(data, "dir");
        let write = |parent, name: &str| {
            let ino = fs.make_file(parent, name);
            fs.write_file(ino, 0, b"first");
            ino
        };
        for name in ["same", "gone", "moved", "replaced", "new-owner"] {
            write(data, name);
        }
        let written = write(dir, "written");
        write(dir, "cut");
        let open = fs.open(write(dir, "open"), READ_WRITE);
        take(&fs, "one");
        assert_eq!(changes(&fs, "one", None), [""; 0], "an open file alone is no change");
        fs.unlink(data, b"gone").unwrap();
        fs.rename(data, b"moved", dir, b"here", Replace::Allowed).unwrap();
        write(data, "draft");
        fs.rename(data, b"draft", data, b"replaced", Replace::Allowed).unwrap();
        let owner = SetAttributes { uid: Some(7), ..Default::default() };
        fs.set_attributes(fs.find(data, "new-owner").unwrap(), owner).unwrap();
        fs.write_file(written, 0, b"other");
        let cut = SetAttributes { size: Some(2), ..Default::default() };
        fs.set_attributes(fs.find(dir, "cut").unwrap(), cut).unwrap();
        open.write(0, b"longer than before");
        fs.rename(data, b"dir", data, b"folder", Replace::Allowed).unwrap();
        let below = fs.make_directory(data, "below");
        write(below, "created");
        let wanted = [
            "Created below",
            "Created below/created",
            "Renamed folder from dir",
            "Modified folder/cut",
            "Renamed folder/here from moved",
            "Modified folder/open",
            "Modified folder/written",
            "Removed gone",
            "Attributes new-owner",
            "Modified replaced",
        ];
        assert_eq!(changes(&fs, "one", None), wanted);
        take(&fs, "two");
        assert_eq!(changes(&fs, "one", Some("two")), wanted);
        assert_eq!(changes(&fs, "two", None), [""; 0]);
        let back = changes(&fs, "two", Some("one"));
        assert!(back.contains(&"Created gone".to_owned()), "{back:?}");
        let some = fs.diff_snapshots("data", ("one", None), 3).unwrap();
        assert_eq!((some.changes.len(), some.total), (3, wanted.len() as u64));
        assert!(refused(fs.diff_snapshots("data", ("none", None), 3)).contains("one, two"));
        open.close();
        rig.close(fs);
    });
}

#[test]
fn a_file_that_is_removed_while_it_is_open_stays_in_earlier_snapshots() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let data = fs.fileset("data");
    // Removed while a program has it open: the snapshot before it still has the bytes.
    let ino = fs.make_file(data, "file");
    fs.write_file(ino, 0, b"bytes");
    take(&fs, "one");
    let handle = fs.open(ino, READ);
    fs.unlink(data, b"file").unwrap();
    take(&fs, "two");
    handle.close();
    fs.commit().unwrap();
    assert_eq!(seen(&fs, "one")["/file"].as_deref(), Some(&b"bytes"[..]));
    assert!(seen(&fs, "two").is_empty());
    fs.delete_snapshot("data", "two").unwrap();
    assert_eq!(seen(&fs, "one")["/file"].as_deref(), Some(&b"bytes"[..]));
    fs.delete_snapshot("data", "one").unwrap();
    rig.close(fs);
    assert!(rig.objects().is_empty());
}

// --- crashes ---

fn live_through(rig: &Rig, seed: u64, point: &str, machine: bool) {
    println!("cut at {point}, seed {seed}, machine {machine}");
    let mut world = World::of(rig.open(), seed);
    for life in 0..4 {
        let points = FailPoints::cut_at(
            point,
            world.dice.index(3) as u64 + u64::from(point.starts_with("store.")) * 3,
        );
        if life > 0 {
            world.fs = Some(rig.open_armed(&points).unwrap());
        } else {
            rig.close(world.fs.take().unwrap());
            world.fs = Some(rig.open_armed(&points).unwrap());
        }
        for _ in 0..150 {
            if world.step().is_err() {
                assert!(points.is_cut(), "an operation failed although the power is on");
            }
            if points.is_cut() {
                break;
            }
        }
        if !points.is_cut() {
            world.check();
            points.cut_now();
        }
        world.handles.clear();
        let fs = world.fs.take().unwrap();
        if machine {
            rig.crash_machine(fs, seed);
        } else {
            rig.crash_process(fs);
        }
        world.fs = Some(rig.open());
        world.settle();
        for _ in 0..40 {
            world.step().unwrap();
        }
        world.check();
        world.handles.drain(..).for_each(Handle::close);
        rig.close(world.fs.take().unwrap());
    }
}

const POINTS: [&str; 16] = [
    "snapshot.begun",
    "snapshot.frozen",
    "snapshot.made",
    "snapshot.copied",
    "snapshot.parted",
    "snapshot.removing",
    "snapshot.emptied",
    "snapshot.unfrozen",
    "commit.start",
    "commit.published",
    "commit.stored",
    "commit.done",
    "reclaim.removed",
    "store.commit.before",
    "store.commit.after",
    "never",
];

#[test]
fn snapshots_survive_a_process_that_dies_at_any_point() {
    let seeds = support::seeds(12, "snapshots snapshots_survive_a_process");
    for point in POINTS {
        for seed in seeds.clone() {
            live_through(&Rig::in_memory(), seed, point, false);
        }
    }
}

#[test]
fn snapshots_of_files_on_the_direct_way_survive_a_process_that_dies_at_any_point() {
    let seeds = support::seeds(4, "snapshots snapshots_of_files_on_the_direct_way");
    for point in POINTS {
        for seed in seeds.clone() {
            live_through(&Rig::in_directory(), seed, point, false);
        }
    }
}

#[test]
fn snapshots_survive_a_machine_that_loses_its_power_at_any_point() {
    let seeds = support::seeds(12, "snapshots snapshots_survive_a_machine");
    for point in
        POINTS.into_iter().chain(["disk.sync", "disk.publish", "disk.remove", "disk.sync_all"])
    {
        for seed in seeds.clone() {
            live_through(&Rig::in_memory(), seed, point, true);
        }
    }
}

#[test]
fn snapshots_of_striped_files_survive_crashes_at_any_point() {
    let seeds = support::seeds(4, "snapshots snapshots_of_striped_files");
    for point in
        POINTS.into_iter().chain(["disk.write", "disk.sync", "disk.publish", "disk.remove"])
    {
        for seed in seeds.clone() {
            live_through(&Rig::striped(), seed, point, false);
            live_through(&Rig::striped(), seed, point, true);
        }
    }
}
