//! Policies: what rules choose, and moving it, wherever the power is cut.

mod placement;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_base::{FailPoints, Ino};
use forebay_disk::Disk;
use forebay_disk::memory::MemoryDisk;
use forebay_fs::fsck::{NamedDisk, Outcome, Repair};
use forebay_fs::policy::Policy;
use forebay_fs::tasks::TaskState;
use forebay_fs::{FsError, NewDisk, Parts, Result};
use support::{Nobody, READ, Rig, Shorthand as _, User, fsck_of};

pub(crate) const SECOND: &str = "disk-two";

fn policy(filter: &str) -> Policy {
    let rule = format!("[[migrate]]\nname = 'rule'\nfrom = 'default'\nto = 'archive'\n{filter}");
    Policy::parse(&rule, &Nobody).unwrap()
}

/// A file system with a disk in each of two pools.
pub(crate) struct Pools {
    pub(crate) rig: Rig,
    pub(crate) archive: MemoryDisk,
}

impl Pools {
    pub(crate) fn of_capacity(bytes: u64) -> Pools {
        let rig = Rig::of_capacity(bytes);
        let archive = MemoryDisk::new(1 << 40, Arc::clone(&rig.clock) as Arc<_>);
        let pools = Pools { rig, archive };
        let fs = pools.open(&FailPoints::none()).unwrap();
        let new = NewDisk {
            uuid: SECOND.to_owned(),
            location: "there".to_owned(),
            pool: "archive".to_owned(),
            group: String::new(),
        };
        fs.add_disk(&new, Arc::new(pools.archive.clone())).unwrap();
        fs.close().unwrap();
        pools
    }

    pub(crate) fn parts(&self, points: &FailPoints) -> Parts {
        let store = self.rig.store.reopen_with_fail_points(points.clone());
        let support::TestDisk::Memory(first) = &self.rig.disk else { panic!("it is in memory") };
        let first = Arc::new(first.reopen_with_fail_points(points.clone()));
        let mut parts = self.rig.parts_with(Arc::new(store), first, points.clone());
        let second = Arc::new(self.archive.reopen_with_fail_points(points.clone()));
        parts.disks.push((SECOND.to_owned(), second));
        parts
    }

    pub(crate) fn open(&self, points: &FailPoints) -> Result<User> {
        self.rig.try_open_parts(self.parts(points))
    }

    pub(crate) fn crash(&self, fs: User, machine: Option<u64>) {
        drop(fs);
        let support::TestDisk::Memory(first) = &self.rig.disk else { panic!("it is in memory") };
        for disk in [first, &self.archive] {
            machine.map_or_else(|| disk.crash_process(), |seed| disk.crash_machine(seed));
        }
    }

    pub(crate) fn close(&self, fs: User) {
        fs.close().unwrap();
        drop(fs);
        let second: Arc<dyn Disk> = Arc::new(self.archive.clone());
        let disks: Vec<NamedDisk> =
            vec![("disk-one".to_owned(), self.rig.disk.as_disk()), (SECOND.to_owned(), second)];
        let report = fsck_of(&self.rig.stores(), &disks, Repair::Never, false);
        assert_eq!(report.outcome(), Outcome::Clean, "{:#?}", report.findings);
    }

    pub(crate) fn archived(&self) -> usize {
        let mut count = 0;
        let mut visit = |_| {
            count += 1;
            true
        };
        self.archive.list(&mut visit).unwrap();
        count
    }
}

fn fill(fs: &User, count: u64) -> BTreeMap<Ino, Vec<u8>> {
    let mut files = BTreeMap::new();
    for number in 0..count {
        let ino = fs.make_file(fs.fileset("data"), &format!("file-{number}"));
        let bytes = vec![number as u8 + 1; 10_000 + number as usize];
        fs.write_file(ino, 0, &bytes);
        files.insert(ino, bytes);
    }
    fs.sync_all().unwrap();
    files
}

fn run(fs: &User, policy: &Policy) -> Result<u64> {
    let number = fs.run_policy(policy)?;
    fs.work_through(number, &mut |_| {})?;
    Ok(number)
}

fn assert_holds(fs: &User, files: &BTreeMap<Ino, Vec<u8>>) {
    for (ino, bytes) in files {
        assert!(fs.contents(*ino) == *bytes, "inode {ino} has changed");
    }
}

#[test]
fn a_dry_run_says_what_a_run_then_moves_and_files_in_use_stay() {
    let pools = Pools::of_capacity(1 << 40);
    let fs = pools.open(&FailPoints::none()).unwrap();
    let files = fill(&fs, 6);
    let open = fs.open(*files.keys().next().unwrap(), READ);
    let rules = policy("fileset = 'data'\nfiles = ['nothing', 'file-?']\nsmaller = '10003 B'");
    let report = fs.look_at_policy(&rules).unwrap();
    let rule = &report.rules[0];
    assert_eq!((rule.files, rule.bytes), (3, 30_003));
    assert_eq!(rule.paths, ["/data/file-0", "/data/file-1", "/data/file-2"]);
    assert!(report.inodes > 6);
    assert_eq!(pools.archived(), 0, "nothing has moved");
    let task = run(&fs, &rules).unwrap();
    let status = fs.task_status().into_iter().find(|status| status.id == task).unwrap();
    assert_eq!((status.state, status.progress.files), (TaskState::Done, 2));
    assert_eq!(status.title, "policy: rule");
    assert_eq!(pools.archived(), 2);
    open.close();
    run(&fs, &rules).unwrap();
    assert_eq!(pools.archived(), 3);
    assert_eq!(fs.look_at_policy(&rules).unwrap().rules[0].files, 0);
    assert_holds(&fs, &files);
    pools.close(fs);
}

#[test]
fn a_pool_that_is_too_full_gives_its_oldest_files_until_it_is_full_enough() {
    let pools = Pools::of_capacity(200_000);
    pools.rig.settings_mut(|settings| settings.disk_reserve = forebay_base::ByteSize(0));
    let fs = pools.open(&FailPoints::none()).unwrap();
    let files = fill(&fs, 10);
    let rules = policy("above = 40\nuntil = 30");
    let rule = fs.look_at_policy(&rules).unwrap().rules.remove(0);
    assert!(rule.reason.contains("above 40 %; until it is 30 %"), "{}", rule.reason);
    assert!((2..10).contains(&rule.files), "{rule:?}");
    assert_eq!(rule.paths[0], "/data/file-0", "the oldest first");
    run(&fs, &rules).unwrap();
    assert_eq!(pools.archived() as u64, rule.files);
    let rule = fs.look_at_policy(&rules).unwrap().rules.remove(0);
    assert!(rule.reason.contains("not above 40 %"), "{}", rule.reason);
    assert_holds(&fs, &files);
    pools.close(fs);
}

#[test]
fn rules_of_a_pool_that_is_full_are_found_and_make_room_by_themselves() {
    let pools = Pools::of_capacity(200_000);
    pools.rig.settings_mut(|settings| settings.disk_reserve = forebay_base::ByteSize(0));
    let fs = pools.open(&FailPoints::none()).unwrap();
    fill(&fs, 10);
    assert_eq!(
        fs.rules_of_full_pools(&policy("")),
        None,
        "a rule without a fill waits for its turn"
    );
    assert_eq!(fs.rules_of_full_pools(&policy("above = 90\nuntil = 30")), None);
    let rules = "files = 'file-0'\n[[migrate]]\nname = 'full'\nfrom = 'default'\nto = 'archive'\n\
         above = 40\nuntil = 30\n[[migrate]]\nname = 'fuller'\nfrom = 'default'\nto = 'archive'\n\
         above = 90\nuntil = 30\n[[delete]]\nname = 'old'\nfileset = 'data'\nolder = '0 s'\n\
         [run]\nwhen_full = true";
    let full = fs.rules_of_full_pools(&policy(rules)).expect("the pool is above 40 %");
    let report = fs.look_at_policy(&full).unwrap();
    let of = |number: usize| report.rules[number].files;
    assert!(report.rules.len() == 3 && of(0) == 0 && of(1) > 0 && of(2) == 0, "{report:?}");
    assert_eq!(report.rules[1].paths[0], "/data/file-1", "file-0 is of the first rule");
    run(&fs, &full).unwrap();
    assert!(pools.archived() > 0);
    assert_eq!(fs.names(fs.fileset("data")).len(), 10, "nothing is removed for that");
    assert_eq!(fs.rules_of_full_pools(&policy(rules)), None);
    pools.close(fs);
}

#[test]
fn a_crash_at_any_step_of_a_policy_loses_nothing_and_the_next_mount_goes_on() {
    let first = support::seeds(1, "policies a_crash_at_any_step_of_a_policy").start;
    let points = [
        ("policy.begun", 0),
        ("move.copied", 3),
        ("move.synced", 3),
        ("move.turned", 3),
        ("commit.stored", 1),
        ("reclaim.removed", 2),
        ("task.ending", 0),
        ("disk.publish", 14),
    ];
    for (point, passes) in points {
        for seed in first..first + 2 {
            println!("cut at {point} after {passes} passes, seed {seed}");
            let pools = Pools::of_capacity(1 << 40);
            let fs = pools.open(&FailPoints::none()).unwrap();
            let files = fill(&fs, 8);
            pools.close(fs);
            let cut = FailPoints::cut_at(point, passes);
            let fs = pools.open(&cut).unwrap();
            let rules = policy("fileset = 'data'");
            let _ = run(&fs, &rules);
            cut.cut_now();
            pools.crash(fs, (seed > first).then_some(seed));
            let fs = pools.open(&FailPoints::none()).unwrap();
            assert_holds(&fs, &files);
            fs.sweep().unwrap();
            let left = fs.task_status().into_iter().find(|task| !task.state.has_ended());
            match left {
                Some(task) => fs.work_through(task.id, &mut |_| {}).unwrap(),
                None => drop(run(&fs, &rules).unwrap()),
            }
            assert_holds(&fs, &files);
            fs.sync_all().unwrap();
            assert_eq!(fs.look_at_policy(&rules).unwrap().rules[0].files, 0);
            pools.close(fs);
            assert_eq!(pools.archived(), 8);
        }
    }
}

#[test]
fn only_old_files_that_nobody_uses_and_that_have_one_name_are_removed() {
    let pools = Pools::of_capacity(1 << 40);
    let fs = pools.open(&FailPoints::none()).unwrap();
    let data = fs.fileset("data");
    let files = fill(&fs, 6);
    let inos: Vec<Ino> = files.keys().copied().collect();
    let old = forebay_fs::SetTime::To(forebay_base::Timestamp::default());
    for ino in &inos[..5] {
        let set = forebay_fs::SetAttributes { modified: Some(old), ..Default::default() };
        fs.set_attributes(*ino, set).unwrap();
    }
    fs.link(inos[1], data, b"another-name").unwrap();
    fs.forget(inos[1], 1);
    let open = fs.open(inos[2], READ);
    let rules = "[[delete]]\nname = 'sweep'\nfileset = 'data'\nolder = '2 d'\nsmaller = '10004 B'";
    let rules = Policy::parse(rules, &Nobody).unwrap();
    let report = fs.look_at_policy(&rules).unwrap().rules.remove(0);
    assert_eq!((report.kind.as_str(), report.files), ("delete", 4));
    run(&fs, &rules).unwrap();
    let left = ["another-name", "file-1", "file-2", "file-4", "file-5"];
    assert_eq!(fs.names(data), left, "0 and 3 are gone");
    open.close();
    run(&fs, &rules).unwrap();
    assert_eq!(fs.names(data), ["another-name", "file-1", "file-4", "file-5"]);
    pools.close(fs);
}

#[test]
fn a_policy_with_unknown_pools_or_filesets_is_refused() {
    let pools = Pools::of_capacity(1 << 40);
    let fs = pools.open(&FailPoints::none()).unwrap();
    let refused = |rules: &Policy| match fs.run_policy(rules) {
        Err(FsError::Refused(why)) => why,
        other => panic!("not refused: {other:?}"),
    };
    assert!(refused(&policy("fileset = 'nowhere'")).contains("no fileset \"nowhere\""));
    let native = forebay_fs::NewFileset {
        name: "native".to_owned(),
        durability: forebay_fs::record::Durability::Scratch,
        placement: forebay_fs::record::Placement::Native,
        disk: None,
        pool: None,
        mode: 0o755,
    };
    let made = fs.add_fileset(&native);
    assert!(made.is_err() || refused(&policy("fileset = 'native'")).contains("is native"));
    let tape = "[[migrate]]\nname = 'a'\nfrom = 'default'\nto = 'tape'";
    assert!(refused(&Policy::parse(tape, &Nobody).unwrap()).contains("pool \"tape\""));
    let list = Policy::parse("[[list]]\nname = 'a'", &Nobody).unwrap();
    assert!(refused(&list).contains("no rules that move or remove files"));
    let number = fs.run_policy(&policy("")).unwrap();
    assert!(refused(&policy("")).contains(&format!("task {number}")));
    // What the task does not keep makes no other policy of it.
    let more = "[[place]]\nname = 'logs'\nto = 'archive'\nfiles = '*.log'\n[run]\nevery = '1 d'";
    assert!(refused(&policy(more)).contains(&format!("task {number}")));
    fs.cancel_task(number).unwrap();
    pools.close(fs);
}
