//! Disks over other disks: files come and go there as on any disk, whatever programs do meanwhile and wherever the power is cut,
//! and the disks below stay as long as they are needed.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_base::seed::Dice;
use forebay_base::{DiskId, FailPoints, Ino};
use forebay_disk::memory::MemoryDisk;
use forebay_disk::{Disk, Sync};
use forebay_fs::fsck::{NamedDisk, Outcome, Repair};
use forebay_fs::policy::Policy;
use forebay_fs::record::{DEFAULT_POOL, DiskRecord, Striping};
use forebay_fs::snapshot::CloneBytes;
use forebay_fs::{Migrated, NewDisk, Parts, Result, SetAttributes};
use support::files::{Files, assert_holds, fill, refused};
use support::snapshots::{seen, take, tree_of};
use support::{
    Nobody, READ, READ_WRITE, Rig, Shorthand as _, TestDisk, User, WRITE, fsck_of, striped_over,
};

const FIRST: &str = "disk-one";
const SECOND: &str = "disk-two";
const WIDE: &str = "disk-wide";
const WIDE_POOL: &str = "wide";

/// A file system on two disks, and one that is striped over three places.
struct Wide {
    rig: Rig,
    second: MemoryDisk,
    below: Vec<MemoryDisk>,
}

fn new_disk(uuid: &str, location: &str, pool: &str) -> NewDisk {
    let (uuid, location, pool) = (uuid.to_owned(), location.to_owned(), pool.to_owned());
    NewDisk { uuid, location, pool, group: String::new() }
}

fn over(members: &[u16]) -> String {
    let members: Vec<DiskId> = members.iter().copied().map(DiskId).collect();
    DiskRecord::striped_location(512, &members)
}

impl Wide {
    fn new() -> Wide {
        let rig = Rig::in_memory();
        let memory = || MemoryDisk::new(1 << 40, Arc::clone(&rig.clock) as Arc<_>);
        let (second, below) = (memory(), vec![memory(), memory(), memory()]);
        let wide = Wide { rig, second, below };
        let fs = wide.rig.open();
        fs.add_disk(&new_disk(SECOND, "there", DEFAULT_POOL), Arc::new(wide.second.clone()))
            .unwrap();
        let disk = striped_over(&wide.below, &FailPoints::none());
        fs.add_disk(&new_disk(WIDE, &over(&[0, 1]), WIDE_POOL), disk).unwrap();
        fs.close().unwrap();
        wide
    }

    fn first(&self) -> &MemoryDisk {
        let TestDisk::Memory(first) = &self.rig.disk else { panic!("it is in memory") };
        first
    }

    fn parts(&self, points: &FailPoints) -> Parts {
        let store = self.rig.store.reopen_with_fail_points(points.clone());
        let first = Arc::new(self.first().reopen_with_fail_points(points.clone()));
        let mut parts = self.rig.parts_with(Arc::new(store), first, points.clone());
        let second = Arc::new(self.second.reopen_with_fail_points(points.clone()));
        parts.disks.push((SECOND.to_owned(), second));
        parts.disks.push((WIDE.to_owned(), striped_over(&self.below, points)));
        parts
    }

    fn try_open(&self, points: &FailPoints) -> Result<User> {
        self.rig.try_open_parts(self.parts(points))
    }

    fn open(&self) -> User {
        self.try_open(&FailPoints::none()).unwrap()
    }

    fn wide(&self) -> Arc<dyn Disk> {
        striped_over(&self.below, &FailPoints::none())
    }

    fn objects(&self) -> usize {
        let mut count = 0;
        let mut visit = |_| {
            count += 1;
            true
        };
        self.wide().list(&mut visit).unwrap();
        count
    }

    fn assert_clean(&self) {
        let names = support::check::name_problems(&self.rig.stores());
        assert!(names.is_empty(), "{names:#?}");
        let second: Arc<dyn Disk> = Arc::new(self.second.clone());
        let disks: Vec<NamedDisk> = vec![
            (FIRST.to_owned(), self.rig.disk.as_disk()),
            (SECOND.to_owned(), second),
            (WIDE.to_owned(), self.wide()),
        ];
        let report = fsck_of(&self.rig.stores(), &disks, Repair::Never, false);
        assert_eq!(report.outcome(), Outcome::Clean, "{:#?}", report.findings);
    }

    fn close(&self, fs: User) {
        fs.close().unwrap();
        drop(fs);
        self.assert_clean();
    }

    fn crash(&self, fs: User, machine: Option<u64>) {
        drop(fs);
        let all = [self.first(), &self.second].into_iter().chain(&self.below);
        for (place, disk) in (0..).zip(all) {
            match machine {
                Some(seed) => disk.crash_machine(seed + place),
                None => disk.crash_process(),
            }
        }
    }
}

fn fill_data(fs: &User, count: u64) -> Files {
    let files = fill(fs, fs.fileset("data"), count);
    fs.sync_all().unwrap();
    files
}

fn move_all(fs: &User, pool: &str, files: &Files) {
    let inos: Vec<Ino> = files.keys().copied().collect();
    let outcomes = fs.migrate_files(pool, &inos).unwrap();
    let moved = outcomes.iter().filter(|outcome| matches!(outcome, Migrated::Moved { .. }));
    assert_eq!(moved.count(), files.len(), "{outcomes:?}");
    fs.sync_all().unwrap();
}

#[test]
fn a_file_that_is_striped_reads_as_before_is_written_in_place_and_comes_back() {
    let wide = Wide::new();
    let fs = wide.open();
    let mut files = fill_data(&fs, 12);
    let about = |ino: &Ino| {
        let found = fs.attributes(*ino).unwrap();
        (found.size, found.modified, found.mode, found.nlink)
    };
    let before: Vec<_> = files.keys().map(about).collect();
    move_all(&fs, WIDE_POOL, &files);
    assert_eq!(wide.objects(), 12);
    assert_eq!(files.keys().map(about).collect::<Vec<_>>(), before);
    assert_holds(&fs, &files);
    let ino = *files.keys().last().unwrap();
    let place = fs.place_of(ino).unwrap();
    assert_eq!(place.location.as_deref(), Some("striped over here, there"));
    assert_eq!(place.stripe_unit_bytes, Some(512));
    assert_eq!(
        (place.stripes, place.pool),
        (vec!["here".to_owned(), "there".to_owned()], WIDE_POOL.to_owned())
    );

    let handle = fs.open(ino, READ_WRITE);
    assert!(!handle.is_direct());
    handle.write(1000, &[7; 5000]);
    fs.sync_file(ino, Sync::All).unwrap();
    handle.close();
    let bytes = files.get_mut(&ino).unwrap();
    bytes.resize(bytes.len().max(6000), 0);
    bytes[1000..6000].fill(7);
    fs.set_attributes(ino, SetAttributes { size: Some(9000), ..Default::default() }).unwrap();
    bytes.resize(9000, 0);
    assert_eq!(fs.place_of(ino).unwrap().pool, WIDE_POOL);
    assert_holds(&fs, &files);
    wide.close(fs);

    let fs = wide.open();
    assert_holds(&fs, &files);
    move_all(&fs, DEFAULT_POOL, &files);
    assert_eq!(wide.objects(), 0);
    assert_holds(&fs, &files);
    wide.close(fs);
}

#[test]
fn the_space_of_a_striped_disk_is_counted_once() {
    let wide = Wide::new();
    let fs = wide.open();
    assert_eq!(fs.statistics().unwrap().capacity.total_bytes, 2 << 40);
    assert_eq!(fs.disk_status().len(), 3);
    wide.close(fs);
}

#[test]
fn a_policy_stripes_large_files_and_a_drain_brings_them_back() {
    let wide = Wide::new();
    let fs = wide.open();
    let files = fill_data(&fs, 20);
    let large = files.values().filter(|bytes| bytes.len() > 4096).count();
    assert!((1..20).contains(&large));
    let rules = "[[migrate]]\nname = 'wide'\nfrom = 'default'\nto = 'wide'\nlarger = '4 KiB'";
    let number = fs.run_policy(&Policy::parse(rules, &Nobody).unwrap()).unwrap();
    fs.work_through(number, &mut |_| {}).unwrap();
    fs.sync_all().unwrap();
    assert_eq!(wide.objects(), large);
    assert_holds(&fs, &files);
    let number = fs.drain_disk(WIDE, Some(DEFAULT_POOL)).unwrap();
    fs.work_through(number, &mut |_| {}).unwrap();
    assert_holds(&fs, &files);
    fs.remove_disk(WIDE).unwrap();
    assert_eq!(fs.disk_status().len(), 2);
    // Now what lay below may go.
    let number = fs.drain_disk(SECOND, None).unwrap();
    fs.work_through(number, &mut |_| {}).unwrap();
    fs.remove_disk(SECOND).unwrap();
    assert_holds(&fs, &files);
    fs.close().unwrap();
}

#[test]
fn disks_below_a_striped_one_stay_as_long_as_it_is_there() {
    let wide = Wide::new();
    let fs = wide.open();
    for done in [fs.drain_disk(SECOND, None).map(drop), fs.give_up_disk(SECOND, 9).map(drop)] {
        let why = refused(done);
        assert!(why.contains("disk there") && why.contains("striped over here, there"), "{why}");
    }
    for (location, why) in [
        (over(&[0, 0]), "named twice"),
        (over(&[0, 2]), "striped disk itself"),
        (over(&[0]), "2 to 64 disks"),
        ("striped:100:0,1".to_owned(), "unit of 100 bytes"),
    ] {
        let disk = striped_over(&wide.below, &FailPoints::none());
        let added = refused_or_invalid(fs.add_disk(&new_disk("other", &location, WIDE_POOL), disk));
        assert!(added.contains(why), "{location}: {added}");
    }
    let mixed =
        fs.add_disk(&new_disk("other", "elsewhere", WIDE_POOL), Arc::new(wide.second.clone()));
    assert!(refused(mixed).contains("striped over here, there"));
    let mixed = refused(fs.label_disk(WIDE, Some(DEFAULT_POOL), None));
    assert!(mixed.contains("a pool is made of"), "{mixed}");
    assert_eq!(fs.disks_to_stripe(&[], Some(DEFAULT_POOL)).unwrap().len(), 2);
    assert!(refused(fs.disks_to_stripe(&[], Some(WIDE_POOL))).contains("striped disk itself"));
    assert!(refused(fs.disks_to_stripe(&["nowhere".to_owned()], None)).contains("no disk"));
    wide.close(fs);
}

fn refused_or_invalid(done: Result<()>) -> String {
    done.expect_err("it is refused").to_string()
}

#[test]
fn a_striped_disk_without_one_of_its_parts_takes_its_files_along_and_no_others() {
    let wide = Wide::new();
    let fs = wide.open();
    let files = fill_data(&fs, 8);
    let (striped, near): (BTreeMap<_, _>, BTreeMap<_, _>) =
        files.into_iter().enumerate().partition_map();
    move_all(&fs, WIDE_POOL, &striped);
    wide.close(fs);
    let mut parts = wide.parts(&FailPoints::none());
    parts.disks.retain(|(uuid, _)| uuid != WIDE);
    let fs = wide.rig.open_parts(parts);
    assert_holds(&fs, &near);
    for ino in striped.keys() {
        assert!(fs.open_as(*ino, READ, support::ROOT).is_err(), "inode {ino}");
    }
    let lost = fs.give_up_disk(WIDE, 100).unwrap();
    assert_eq!(lost.total, striped.len() as u64);
    assert_holds(&fs, &near);
    fs.close().unwrap();
}

/// Every second file.
trait PartitionMap {
    fn partition_map(self) -> (BTreeMap<Ino, Vec<u8>>, BTreeMap<Ino, Vec<u8>>);
}

impl<I: Iterator<Item = (usize, (Ino, Vec<u8>))>> PartitionMap for I {
    fn partition_map(self) -> (BTreeMap<Ino, Vec<u8>>, BTreeMap<Ino, Vec<u8>>) {
        let (even, odd): (Vec<_>, Vec<_>) = self.partition(|(place, _)| place % 2 == 0);
        let map = |of: Vec<(usize, (Ino, Vec<u8>))>| of.into_iter().map(|(_, file)| file).collect();
        (map(even), map(odd))
    }
}

#[test]
fn a_crash_while_files_are_striped_or_brought_back_loses_nothing() {
    let first = support::seeds(1, "striped a_crash_while_files_are_striped").start;
    let points = [
        ("policy.begun", 0),
        ("move.copied", 2),
        ("move.synced", 2),
        ("move.turned", 2),
        ("commit.stored", 1),
        ("reclaim.removed", 2),
        ("task.ending", 0),
        ("disk.create", 7),
        ("disk.write", 20),
        ("disk.set_size", 8),
        ("disk.sync", 7),
        ("disk.publish", 7),
        ("disk.publish", 8),
        ("disk.remove", 2),
    ];
    for (point, passes) in points {
        for (seed, goes_back) in
            [(first, false), (first + 1, false), (first, true), (first + 1, true)]
        {
            println!("cut at {point} after {passes} passes, seed {seed}, back: {goes_back}");
            let wide = Wide::new();
            let fs = wide.open();
            let files = fill_data(&fs, 8);
            if goes_back {
                move_all(&fs, WIDE_POOL, &files);
            }
            wide.close(fs);
            let (from, to) =
                if goes_back { (WIDE_POOL, DEFAULT_POOL) } else { (DEFAULT_POOL, WIDE_POOL) };
            let rules = format!("[[migrate]]\nname = 'rule'\nfrom = '{from}'\nto = '{to}'");
            let rules = Policy::parse(&rules, &Nobody).unwrap();
            let cut = FailPoints::cut_at(point, passes);
            let fs = wide.try_open(&cut).unwrap();
            let _ = fs.run_policy(&rules).and_then(|number| fs.work_through(number, &mut |_| {}));
            let _ = fs.sync_all();
            cut.cut_now();
            wide.crash(fs, (seed > first).then_some(seed));

            let fs = wide.open();
            assert_holds(&fs, &files);
            fs.sweep().unwrap();
            let left = fs.task_status().into_iter().find(|task| !task.state.has_ended());
            let number = left.map_or_else(|| fs.run_policy(&rules).unwrap(), |task| task.id);
            fs.work_through(number, &mut |_| {}).unwrap();
            assert_holds(&fs, &files);
            fs.sync_all().unwrap();
            wide.close(fs);
            assert_eq!(wide.objects(), if goes_back { 0 } else { 8 });
        }
    }
}

#[test]
fn files_that_programs_use_while_they_are_striped_and_brought_back_lose_and_tear_no_write() {
    let seed = support::seeds(1, "striped files_that_programs_use").start;
    let wide = Wide::new();
    let fs = wide.open();
    let background = fs.fs.start_background().unwrap();
    let data = fs.fileset("data");
    let inos: Vec<Ino> =
        (0..9).map(|number| fs.make_file(data, &format!("file-{number}"))).collect();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (fs, inos, ended) = (&fs, &inos, &ended);
        let write = |writer: usize| {
            let mut dice = Dice::of(seed * 10 + writer as u64);
            let own: Vec<Ino> = inos.iter().copied().skip(writer).step_by(3).collect();
            let mut truth: BTreeMap<Ino, Vec<u8>> =
                own.iter().map(|ino| (*ino, Vec::new())).collect();
            for _ in 0..300 {
                let ino = own[dice.index(own.len())];
                use_file(fs, ino, truth.get_mut(&ino).unwrap(), &mut dice);
            }
            truth
        };
        let writers: Vec<_> = (0..3).map(|writer| scope.spawn(move || write(writer))).collect();
        let mover = scope.spawn(move || {
            let mut moved = 0;
            while !ended.load(Ordering::Relaxed) {
                for pool in [WIDE_POOL, DEFAULT_POOL] {
                    let outcomes = fs.migrate_files(pool, inos).unwrap();
                    moved +=
                        outcomes.iter().filter(|it| matches!(it, Migrated::Moved { .. })).count();
                }
            }
            moved
        });
        let truths: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        ended.store(true, Ordering::Relaxed);
        println!("{} moves", mover.join().unwrap());
        truths.iter().for_each(|truth| assert_holds(fs, truth));
    });
    background.stop();
    wide.close(fs);
}

fn use_file(fs: &User, ino: Ino, truth: &mut Vec<u8>, dice: &mut Dice) {
    match dice.index(10) {
        0..5 => {
            let at = dice.index(truth.len() + 1000);
            let data = vec![1 + dice.index(255) as u8; 1 + dice.index(3000)];
            fs.write_file(ino, at as u64, &data);
            truth.resize(truth.len().max(at + data.len()), 0);
            truth[at..at + data.len()].copy_from_slice(&data);
        }
        5 => {
            let data = vec![1 + dice.index(255) as u8; dice.index(5000)];
            fs.overwrite(ino, &data);
            *truth = data;
        }
        6 => {
            let size = dice.index(truth.len() + 1);
            fs.set_attributes(ino, SetAttributes { size: Some(size as u64), ..Default::default() })
                .unwrap();
            truth.truncate(size);
        }
        7 => {
            let handle = fs.open(ino, WRITE);
            fs.sync_file(ino, Sync::All).unwrap();
            handle.close();
        }
        8 => fs.drop_caches(),
        _ => assert!(fs.contents(ino) == *truth, "inode {ino} has changed"),
    }
}

#[test]
fn snapshots_and_clones_hold_what_striped_files_held() {
    let wide = Wide::new();
    let fs = wide.open();
    fs.set_fileset_pool("data", WIDE_POOL).unwrap();
    let mut files = fill_data(&fs, 6);
    assert_eq!(wide.objects(), 6);
    take(&fs, "one");
    let before = tree_of(&fs, fs.fileset("data"));
    let (ino, bytes) = files.iter_mut().next_back().unwrap();
    fs.write_file(*ino, 100, &[9; 3000]);
    bytes.resize(bytes.len().max(3100), 0);
    bytes[100..3100].fill(9);
    assert_eq!(seen(&fs, "one"), before);
    fs.at_owner().clone_snapshot(("data", "one"), "copy", CloneBytes::Copy).unwrap();
    assert_eq!(tree_of(&fs, fs.fileset("copy")), before);
    let number = fs.drain_disk(WIDE, Some(DEFAULT_POOL));
    assert!(refused(number).contains("last one of pool"));
    fs.set_fileset_pool("data", DEFAULT_POOL).unwrap();
    fs.set_fileset_pool("copy", DEFAULT_POOL).unwrap();
    let number = fs.drain_disk(WIDE, Some(DEFAULT_POOL)).unwrap();
    fs.work_through(number, &mut |_| {}).unwrap();
    assert_eq!(wide.objects(), 0);
    assert_eq!(seen(&fs, "one"), before);
    assert_holds(&fs, &files);
    fs.delete_snapshot("data", "one").unwrap();
    wide.close(fs);
}

#[test]
fn copies_never_lie_on_a_disk_that_fails_with_that_of_the_file() {
    let wide = Wide::new();
    let fs = wide.open();
    let memory = || MemoryDisk::new(1 << 40, Arc::clone(&wide.rig.clock) as Arc<_>);
    let another = vec![memory(), memory()];
    let disk = || striped_over(&another, &FailPoints::none());
    // Both lie over the first disk.
    fs.add_disk(&new_disk("beside", &over(&[0, 1]), WIDE_POOL), disk()).unwrap();
    fs.set_fileset_pool("data", WIDE_POOL).unwrap();
    let why = refused(fs.set_fileset_copies("data", 2));
    assert!(why.contains("has 1"), "{why}");
    fs.close().unwrap();
}

#[test]
fn fsck_names_a_file_of_which_a_part_is_missing_and_repairs_the_others() {
    let wide = Wide::new();
    let fs = wide.open();
    let files = fill_data(&fs, 5);
    move_all(&fs, WIDE_POOL, &files);
    wide.close(fs);
    let (broken, whole) = (*files.keys().next().unwrap(), files.iter().skip(1));
    let object = wide.rig.object_of(broken).unwrap();
    wide.below[1].remove(object).unwrap();
    let second: Arc<dyn Disk> = Arc::new(wide.second.clone());
    let disks: Vec<NamedDisk> = vec![
        (FIRST.to_owned(), wide.rig.disk.as_disk()),
        (SECOND.to_owned(), second),
        (WIDE.to_owned(), wide.wide()),
    ];
    let report = fsck_of(&wide.rig.stores(), &disks, Repair::Never, false);
    let found = format!("{:#?}", report.findings);
    assert!(found.contains(&format!("object {object} on disk 2 does not exist")), "{found}");
    fsck_of(&wide.rig.stores(), &disks, Repair::Found, false);
    wide.assert_clean();
    assert_eq!(wide.objects(), 4, "what was left of it is gone");
    let fs = wide.open();
    assert_holds(&fs, &whole.map(|(ino, bytes)| (*ino, bytes.clone())).collect());
    assert_eq!(fs.contents(broken), b"");
    wide.close(fs);
}

#[test]
fn the_location_of_a_striped_disk_says_how_it_lies_on_others() {
    let location = DiskRecord::striped_location(1 << 20, &[DiskId(3), DiskId(1)]);
    let record = |location: &str| DiskRecord::new(DiskId(4), "d", location);
    let found = record(&location).striping();
    assert_eq!(found, Some(Striping { unit_bytes: 1 << 20, members: vec![DiskId(3), DiskId(1)] }));
    for other in
        ["/mnt/a", "striped:", "striped:4096", "striped:4096:", "striped:x:1,2", "striped:4096:1,x"]
    {
        assert_eq!(record(other).striping(), None, "{other}");
    }
}
