//! Clones of snapshots: they begin as the snapshot, change alone, and what a crash leaves of one is all of it or nothing.

mod support;

use std::collections::BTreeMap;

use forebay_base::{FailPoints, Ino};
use forebay_disk::Sync;
use forebay_fs::fsck::{Outcome, Repair};
use forebay_fs::quota::{LimitChange, QuotaChange, Subject};
use forebay_fs::record::{Durability, Kind, Placement};
use forebay_fs::snapshot::{CloneBytes, CloneStatus};
use forebay_fs::{FsError, New, Result, SetAttributes, SetMode, SetXattr};
use support::files::refused;
use support::snapshots::{Tree, World, seen, take, tree_of};
use support::{Handle, READ, READ_WRITE, ROOT, Rig, Shorthand as _, User, file};

fn clone(fs: &User, snapshot: &str, name: &str) -> Result<CloneStatus> {
    fs.at_owner().clone_snapshot(("data", snapshot), name, CloneBytes::Copy)
}

fn holds(fs: &User, fileset: &str) -> Tree {
    tree_of(fs, fs.fileset(fileset))
}

/// Removes all files of a fileset, and the fileset.
fn remove(fs: &User, fileset: &str) {
    let top = fs.fileset(fileset);
    for path in holds(fs, fileset).keys().rev() {
        let (above, name) = path.rsplit_once('/').unwrap();
        let parent = above.split('/').filter(|name| !name.is_empty());
        let parent = parent.fold(top, |at, name| fs.find(at, name).unwrap());
        let removed = fs.unlink(parent, name.as_bytes());
        removed.or_else(|_| fs.remove_directory(parent, name.as_bytes())).unwrap();
    }
    fs.commit().unwrap();
    fs.at_owner().remove_fileset(fileset).unwrap();
}

/// Files of a fileset and a snapshot of them; the fileset changes afterwards.
fn fill(fs: &User) {
    let data = fs.fileset("data");
    let dir = fs.make_directory(data, "dir");
    let inner = fs.make_directory(dir, "inner");
    for (parent, name) in [(data, "same"), (data, "rewritten"), (dir, "removed"), (inner, "cut")] {
        let ino = fs.make_file(parent, name);
        fs.write_file(ino, 0, format!("the bytes of {name}").as_bytes());
    }
    fs.make_file(data, "empty");
    let open = fs.open(fs.make_file(data, "open"), READ_WRITE);
    open.write(0, b"before");
    take(fs, "one");
    open.write(3, b"AFTER-and-longer");
    open.close();
    fs.write_file(fs.find(data, "rewritten").unwrap(), 0, b"changed");
    fs.unlink(dir, b"removed").unwrap();
    let size = SetAttributes { size: Some(3), ..Default::default() };
    fs.set_attributes(fs.find(inner, "cut").unwrap(), size).unwrap();
    fs.commit().unwrap();
}

#[test]
fn a_clone_begins_as_the_snapshot_and_each_changes_alone() {
    support::at_the_owner(|rig| {
        let fs = rig.open();
        fill(&fs);
        let (snapshot, data) = (seen(&fs, "one"), holds(&fs, "data"));
        let made = clone(&fs, "one", "trial").unwrap();
        assert_eq!((made.inodes, made.fileset.as_str()), (9, "trial"));
        assert_eq!(holds(&fs, "trial"), snapshot);
        let trial = fs.fileset("trial");
        fs.write_file(fs.find(trial, "same").unwrap(), 0, b"THE");
        fs.unlink(trial, b"rewritten").unwrap();
        let ino = fs.make_file(fs.find(trial, "dir").unwrap(), "new");
        fs.write_file(ino, 0, b"of the clone");
        fs.commit().unwrap();
        let changed = holds(&fs, "trial");
        assert_eq!(changed["/same"].as_deref(), Some(&b"THE bytes of same"[..]));
        assert_eq!((seen(&fs, "one"), holds(&fs, "data")), (snapshot.clone(), data.clone()));
        fs.write_file(fs.find(fs.fileset("data"), "same").unwrap(), 0, b"___");
        assert_eq!(holds(&fs, "trial"), changed);
        // A clone has snapshots of its own, and can be cloned.
        fs.at_owner().create_snapshot("trial", "two").unwrap();
        let again = ("trial", "two");
        fs.at_owner().clone_snapshot(again, "second", CloneBytes::Copy).unwrap();
        assert_eq!(holds(&fs, "second"), changed);
        rig.close(fs);
        let fs = rig.open();
        assert_eq!((holds(&fs, "trial"), holds(&fs, "second")), (changed.clone(), changed));
        assert_eq!(seen(&fs, "one"), snapshot);
        rig.close(fs);
    });
}

#[test]
fn fileset_snapshot_and_clone_go_in_any_order_and_lose_nothing_of_each_other() {
    let orders = [[0, 1, 2], [0, 2, 1], [2, 0, 1]];
    for order in orders {
        let rig = Rig::in_memory();
        let fs = rig.open();
        fs.create_fileset("origin", Durability::Strict, Placement::Direct, 0o755).unwrap();
        for name in ["a", "b"] {
            let ino = fs.make_file(fs.fileset("origin"), name);
            fs.write_file(ino, 0, name.as_bytes());
        }
        fs.create_snapshot("origin", "one").unwrap();
        fs.write_file(fs.find(fs.fileset("origin"), "a").unwrap(), 0, b"x");
        fs.clone_snapshot(("origin", "one"), "trial", CloneBytes::Copy).unwrap();
        let wanted = holds(&fs, "trial");
        for (step, what) in order.into_iter().enumerate() {
            match what {
                0 => drop(fs.delete_snapshot("origin", "one").unwrap()),
                1 => remove(&fs, "origin"),
                _ => remove(&fs, "trial"),
            }
            if !order[..=step].contains(&2) {
                assert_eq!(holds(&fs, "trial"), wanted);
            }
        }
        rig.close(fs);
        assert!(rig.objects().is_empty(), "all space is given back");
    }
}

#[test]
fn a_clone_has_links_attributes_and_holes_of_the_snapshot() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let data = fs.fileset("data");
    let ino = fs.make_file(data, "file");
    fs.write_file(ino, 1 << 20, b"after a hole");
    fs.link(ino, data, b"second").unwrap();
    let value = SetXattr { name: b"user.a", value: b"1", mode: SetMode::Any, kill_set_gid: false };
    fs.set_xattr(ino, value).unwrap();
    let owner =
        SetAttributes { uid: Some(7), gid: Some(8), mode: Some(0o640), ..Default::default() };
    fs.set_attributes(ino, owner).unwrap();
    let link = New { kind: Kind::Symlink, target: b"file", ..file(0o777) };
    fs.create(data, b"link", link, ROOT).unwrap();
    let before = fs.attributes(ino).unwrap();
    take(&fs, "one");
    clone(&fs, "one", "trial").unwrap();
    let trial = fs.fileset("trial");
    let found = fs.find(trial, "file").unwrap();
    assert_eq!(fs.find(trial, "second"), Some(found));
    let after = fs.attributes(found).unwrap();
    let shown = |of: &forebay_fs::Attributes| {
        (of.size, of.mode, of.uid, of.gid, of.nlink, of.modified, of.changed, of.created)
    };
    assert_eq!(shown(&after), shown(&before));
    assert_eq!(fs.xattr(found, b"user.a").unwrap(), b"1");
    assert_eq!(fs.read_link(fs.find(trial, "link").unwrap()).unwrap(), b"file");
    assert_eq!(fs.contents(found), fs.contents(ino));
    rig.close(fs);
}

#[test]
fn the_root_fileset_is_cloned_without_the_other_filesets() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let ino = fs.make_file(fs.make_directory(Ino::ROOT, "dir"), "file");
    fs.write_file(ino, 0, b"bytes");
    fs.create_snapshot("/", "one").unwrap();
    fs.clone_snapshot(("/", "one"), "trial", CloneBytes::Copy).unwrap();
    let wanted: Tree =
        [("/dir".to_owned(), None), ("/dir/file".to_owned(), Some(b"bytes".to_vec()))].into();
    assert_eq!(holds(&fs, "trial"), wanted);
    rig.close(fs);
}

#[test]
fn a_clone_that_cannot_be_made_is_refused_with_the_reason_and_leaves_nothing() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    fill(&fs);
    let objects = rig.objects().len();
    let shared = fs.clone_snapshot(("data", "one"), "trial", CloneBytes::Share);
    assert!(refused(shared).contains("--copy"));
    assert!(refused(clone(&fs, "one", "work")).contains("already exists"));
    assert!(refused(clone(&fs, "two", "trial")).contains("its snapshots: one"));
    assert!(refused(clone(&fs, "one", ".trial")).contains("not a valid name"));
    assert_eq!(rig.objects().len(), objects);
    assert!(fs.find(Ino::ROOT, "trial").is_none());
    clone(&fs, "one", "trial").unwrap();
    rig.close(fs);
}

#[test]
fn a_clone_counts_against_the_quota_of_its_own_fileset_alone() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    fill(&fs);
    clone(&fs, "one", "trial").unwrap();
    let usage = |name: &str| {
        let all = fs.fileset_status();
        let found = all.iter().find(|status| status.name == name).unwrap();
        (found.files, found.bytes)
    };
    let bytes = |tree: Tree| tree.values().flatten().map(|bytes| bytes.len() as u64).sum::<u64>();
    assert_eq!(usage("trial"), (Some(9), Some(bytes(seen(&fs, "one")))));
    assert_eq!(usage("data").1, Some(bytes(holds(&fs, "data"))));
    rig.close(fs);
}

#[test]
fn a_clone_does_not_use_numbers_again_that_an_earlier_fileset_had() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    fill(&fs);
    fs.create_fileset("gone", Durability::Strict, Placement::Direct, 0o755).unwrap();
    let top = fs.fileset("gone");
    let used: Vec<Ino> = (0..5).map(|number| fs.make_file(top, &number.to_string())).collect();
    remove(&fs, "gone");
    clone(&fs, "one", "trial").unwrap();
    let trial = fs.fileset("trial");
    assert_eq!(trial, top, "the number of the fileset is used again");
    let same = fs.find(trial, "same").unwrap();
    assert!(used.iter().all(|ino| ino.local() < same.local()));
    assert_eq!(holds(&fs, "trial"), seen(&fs, "one"));
    rig.close(fs);
}

#[test]
fn a_program_that_writes_while_a_clone_is_made_changes_nothing_of_it() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    let data = fs.fileset("data");
    let inos: Vec<Ino> = (0..200)
        .map(|number| {
            let ino = fs.make_file(data, &format!("file-{number}"));
            fs.write_file(ino, 0, &vec![b'o'; 5000]);
            ino
        })
        .collect();
    take(&fs, "one");
    std::thread::scope(|scope| {
        let writer =
            scope.spawn(|| inos.iter().for_each(|ino| fs.write_file(*ino, 0, &[b'n'; 5000])));
        clone(&fs, "one", "trial").unwrap();
        writer.join().unwrap();
    });
    assert!(holds(&fs, "trial").values().flatten().all(|bytes| *bytes == vec![b'o'; 5000]));
    rig.close(fs);
}

#[test]
fn a_whole_fileset_is_taken_back_at_one_moment_and_stays_beside_as_it_was() {
    support::at_the_owner(|rig| {
        let fs = rig.open();
        fill(&fs);
        let limit = QuotaChange { hard_inodes: LimitChange::To(10), ..QuotaChange::default() };
        fs.at_owner().set_quota("data", Subject::Fileset, &limit).unwrap();
        let (snapshot, before) = (seen(&fs, "one"), holds(&fs, "data"));
        let reader = fs.open(fs.find(fs.fileset("data"), "rewritten").unwrap(), READ);
        let restore =
            |aside: &str| fs.at_owner().restore_fileset(("data", "one"), aside, CloneBytes::Copy);
        assert!(refused(restore("work")).contains("already exists"));
        assert_eq!(restore("data.aside").unwrap().fileset, "data");
        assert_eq!(
            (holds(&fs, "data"), holds(&fs, "data.aside")),
            (snapshot.clone(), before.clone())
        );
        assert_eq!(reader.read(0, 7), b"changed", "who has it open keeps it");
        reader.close();
        let of_aside = fs.at_owner().snapshots(Some("data.aside")).unwrap();
        assert_eq!(of_aside.len(), 1, "snapshots stay with what they are of");
        assert!(fs.at_owner().snapshots(Some("data")).unwrap().is_empty());
        let data = fs.fileset("data");
        fs.make_file(data, "tenth");
        assert!(matches!(fs.create(data, b"more", file(0o644), ROOT), Err(FsError::QuotaExceeded)));
        fs.unlink(data, b"tenth").unwrap();
        rig.close(fs);
        let fs = rig.open();
        assert_eq!((holds(&fs, "data"), holds(&fs, "data.aside")), (snapshot, before));
        let root = fs.at_owner().restore_fileset(("/", "one"), "aside", CloneBytes::Copy);
        assert!(refused(root).contains("root fileset"));
        rig.close(fs);
    });
}

// --- crashes ---

#[test]
fn a_fileset_that_is_taken_back_is_as_before_or_as_the_snapshot_wherever_the_power_goes() {
    let points = [
        ("clone.written", 0, false),
        ("clone.made", 0, false),
        ("restore.cloned", 0, false),
        ("restore.exchanged", 0, true),
    ];
    for (point, passes, is_restored) in points {
        for machine in [None, Some(7)] {
            println!("cut at {point}, machine {machine:?}");
            let rig = Rig::in_memory();
            let fs = rig.open();
            fill(&fs);
            let (snapshot, before) = (seen(&fs, "one"), holds(&fs, "data"));
            rig.close(fs);
            let points = FailPoints::cut_at(point, passes);
            let fs = rig.open_armed(&points).unwrap();
            fs.restore_fileset(("data", "one"), "aside", CloneBytes::Copy).unwrap_err();
            assert!(points.is_cut());
            match machine {
                Some(seed) => rig.crash_machine(fs, seed),
                None => rig.crash_process(fs),
            }
            let fs = rig.open();
            fs.sweep().unwrap();
            assert_eq!(holds(&fs, "data"), if is_restored { snapshot } else { before.clone() });
            if is_restored {
                assert_eq!(holds(&fs, "aside"), before);
            }
            rig.close(fs);
        }
    }
}

const POINTS: [&str; 17] = [
    "clone.noted",
    "clone.named",
    "clone.copied",
    "clone.written",
    "clone.made",
    "commit.start",
    "commit.stored",
    "commit.done",
    "store.commit.before",
    "store.commit.after",
    "disk.write",
    "disk.publish",
    "disk.set_modified",
    "disk.sync",
    "disk.sync_all",
    "snapshot.move.turned",
    "never",
];

#[test]
fn a_clone_is_there_as_a_whole_or_not_at_all_wherever_the_power_goes() {
    let first = support::seeds(1, "clones a_clone_is_there_as_a_whole").start;
    for point in POINTS {
        for (passes, machine) in [(0, None), (1, Some(first)), (2, None), (4, Some(first + 1))] {
            println!("cut at {point} after {passes} passes, machine {machine:?}");
            let rig = Rig::in_memory();
            let fs = rig.open();
            fill(&fs);
            let (snapshot, data) = (seen(&fs, "one"), holds(&fs, "data"));
            rig.close(fs);
            let points = FailPoints::cut_at(point, passes);
            let Ok(fs) = rig.open_armed(&points) else { continue };
            let made = clone(&fs, "one", "trial");
            assert!(made.is_ok() || points.is_cut(), "{made:?}");
            points.cut_now();
            match machine {
                Some(seed) => rig.crash_machine(fs, seed),
                None => rig.crash_process(fs),
            }
            let report = rig.fsck(Repair::Never, false);
            assert!(
                matches!(report.outcome(), Outcome::Clean | Outcome::Repaired),
                "{:#?}",
                report.findings
            );
            let fs = rig.open();
            fs.sweep().unwrap();
            let is_there = fs.find(Ino::ROOT, "trial").is_some();
            assert!(is_there || made.is_err(), "a clone that was made is gone");
            if !is_there {
                clone(&fs, "one", "trial").unwrap();
            }
            assert_eq!(holds(&fs, "trial"), snapshot);
            assert_eq!((seen(&fs, "one"), holds(&fs, "data")), (snapshot, data));
            rig.close(fs);
        }
    }
}

/// A fileset with snapshots, and clones beside what they must be.
struct Clones {
    world: World,
    made: BTreeMap<String, Tree>,
    next: u32,
}

impl Clones {
    /// Makes a clone, writes to one, or removes one; an error says that the power is off.
    fn step(&mut self) -> Result<()> {
        let fs = self.world.fs().clone();
        let dice = &mut self.world.dice;
        let names: Vec<String> = self.made.keys().cloned().collect();
        let snapshots: Vec<String> = self.world.made.keys().cloned().collect();
        match dice.index(3) {
            0 if names.len() < 3 && !snapshots.is_empty() => {
                let of = &snapshots[dice.index(snapshots.len())];
                self.next += 1;
                let name = format!("clone-{}", self.next);
                clone(&fs, of, &name)?;
                self.made.insert(name, self.world.made[of].clone());
            }
            1 if !names.is_empty() => {
                let name = &names[dice.index(names.len())];
                let tree = self.made.get_mut(name).unwrap();
                let files: Vec<String> = tree.keys().cloned().collect();
                if files.is_empty() {
                    return Ok(());
                }
                let path = &files[dice.index(files.len())];
                let ino = fs.find(fs.fileset(name), &path[1..]).unwrap();
                let handle = fs.open_as(ino, READ_WRITE, ROOT)?;
                let written = handle.try_write(0, name.as_bytes());
                let synced = written.and_then(|()| fs.sync_file(ino, Sync::All));
                handle.close();
                synced?;
                let bytes = tree.get_mut(path).unwrap().as_mut().unwrap();
                bytes.resize(bytes.len().max(name.len()), 0);
                bytes[..name.len()].copy_from_slice(name.as_bytes());
            }
            2 if names.len() > 1 => {
                let name = &names[dice.index(names.len())];
                self.made.remove(name);
                remove(&fs, name);
            }
            _ => {}
        }
        Ok(())
    }

    fn check(&self) {
        self.world.check();
        for (name, tree) in &self.made {
            assert_eq!(&holds(self.world.fs(), name), tree, "{name}");
        }
    }
}

#[test]
fn clones_change_alone_whatever_happens_to_filesets_and_snapshots() {
    for seed in support::seeds(12, "clones clones_change_alone") {
        println!("seed {seed}");
        let rig = Rig::in_memory();
        let mut all = Clones { world: World::of(rig.open(), seed), made: BTreeMap::new(), next: 0 };
        for life in 0..3 {
            for _ in 0..120 {
                let is_clone = all.world.dice.index(5) == 0;
                if is_clone { all.step().unwrap() } else { all.world.step().unwrap() }
            }
            all.check();
            all.world.handles.drain(..).for_each(Handle::close);
            let fs = all.world.fs.take().unwrap();
            if life == 1 {
                fs.sync_all().unwrap();
                rig.crash_machine(fs, seed);
            } else {
                rig.close(fs);
            }
            all.world.fs = Some(rig.open());
            all.world.fs().sweep().unwrap();
            all.check();
        }
        rig.close(all.world.fs.take().unwrap());
    }
}

#[test]
fn a_clone_is_read_while_its_snapshot_is_deleted() {
    let rig = Rig::in_memory();
    let fs = rig.open();
    fill(&fs);
    clone(&fs, "one", "trial").unwrap();
    let reader = fs.open(fs.find(fs.fileset("trial"), "same").unwrap(), READ);
    fs.delete_snapshot("data", "one").unwrap();
    assert_eq!(reader.read(0, 100), b"the bytes of same");
    reader.close();
    rig.close(fs);
}
