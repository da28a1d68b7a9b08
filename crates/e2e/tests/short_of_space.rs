//! Disks that are nearly full: commits go on, what was given up is there for the next writer, and a home folder
//! without space can be mounted.
#![allow(clippy::disallowed_methods, reason = "time limits of tests need the machine's clock")]

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_e2e::command::run;
use forebay_e2e::{LoopDisk, Mounted, Placement, wait_until};

const MIB: usize = 1 << 20;
const LIMIT: Duration = Duration::from_secs(120);
/// No commit comes by itself while a test runs.
const NO_COMMITS: &str = "commit_interval = \"60 s\"";

/// Tests of this file run one at a time: a child that one has just forked would hold open what another removes.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes `mib` MiB to a file that `options` opens. Returns how many fitted.
fn write_mib(path: &Path, options: &OpenOptions, mib: usize) -> usize {
    let mut file = match options.open(path) {
        Ok(file) => file,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::StorageFull, "{}: {error}", path.display());
            return 0;
        }
    };
    let piece = vec![0xa5; MIB];
    for done in 0..mib {
        if let Err(error) = file.write_all(&piece) {
            assert_eq!(error.kind(), ErrorKind::StorageFull, "after {done} MiB: {error}");
            return done;
        }
    }
    mib
}

fn new_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    options
}

fn cut_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).truncate(true);
    options
}

/// Fills what is left of a disk, to the last block.
fn fill(path: &Path) {
    // Where not even a name fits, it is full.
    let Ok(mut file) = File::create(path) else { return };
    for piece in [MIB, 4096, 4096, 4096, 1] {
        while file.write_all(&vec![1; piece]).is_ok() {}
        // What was set aside for records of what is not written yet is free then.
        let _ = file.sync_all();
    }
}

/// Somebody who takes whatever is free on a disk, until dropped.
struct Greedy {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Greedy {
    fn start(path: &Path) -> Greedy {
        let file = File::create(path).expect("creates");
        let ended = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            let mut offset = 0;
            while !told.load(Ordering::Relaxed) {
                match file.write_at(&[7; 65536], offset) {
                    Ok(written) => offset += written as u64,
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        Greedy { ended, thread: Some(thread) }
    }
}

impl Drop for Greedy {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn commit_error(grid: &Mounted) -> Option<String> {
    let status = grid.run_on_root(&["status"], &["--json"]).output();
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    status["mount"]["commit_error"].as_str().map(str::to_owned)
}

/// Fills a disk with large files and small ones while somebody keeps writing whatever fits; then makes room.
fn a_full_disk_never_stops_commits(kind: &str, placement: Placement) {
    let _alone = alone();
    let disk = LoopDisk::make(kind, 300);
    let grid = Mounted::make_in(&disk.path(), placement);
    grid.expect_log("the reserve was used");
    grid.add_settings("commit_interval = \"200 ms\"");
    grid.mount();
    let big = grid.data().join("big");
    write_mib(&big, &new_file(), 100);
    File::open(&big).expect("opens").sync_all().expect("syncs");
    let greedy = Greedy::start(&grid.data().join("greedy"));
    fill(&grid.data().join("filler"));
    for number in 0..2000 {
        let path = grid.data().join(format!("small-{number}"));
        let _ = fs::write(&path, [3; 4096]);
    }
    // Several commits: each must succeed.
    for round in 0..5 {
        let name = grid.data().join(format!("name-{round}"));
        fs::create_dir(&name).expect("names still go");
        File::open(&name).expect("opens").sync_all().expect("a full disk commits");
        assert_eq!(commit_error(&grid), None);
    }
    drop(greedy);
    fs::remove_file(grid.data().join("greedy")).expect("removes");
    fs::remove_file(&big).expect("removes");
    wait_until("the space of the removed file is free again", LIMIT, || {
        disk.free_bytes() >= 50 << 20
    });
    assert_eq!(commit_error(&grid), None);
    wait_until("the reserves are whole again", LIMIT, || {
        let status = grid.run_on_root(&["status"], &[]).output();
        !status.contains("reserve")
    });
    write_mib(&grid.data().join("again"), &new_file(), 20);
    grid.umount();
    grid.is_clean();
}

#[test]
fn a_full_xfs_disk_never_stops_commits_on_the_direct_path() {
    a_full_disk_never_stops_commits("xfs", Placement::Direct);
}

#[test]
fn a_full_xfs_disk_never_stops_commits_on_the_served_path() {
    a_full_disk_never_stops_commits("xfs", Placement::Served);
}

#[test]
fn a_full_ext4_disk_never_stops_commits_on_the_direct_path() {
    a_full_disk_never_stops_commits("ext4", Placement::Direct);
}

fn space_given_up_is_there_for_the_next_writer(kind: &str, placement: Placement) {
    let _alone = alone();
    let disk = LoopDisk::make(kind, 320);
    let grid = Mounted::make_in(&disk.path(), placement);
    grid.add_settings(NO_COMMITS);
    grid.mount();
    let free = usize::try_from(disk.free_bytes()).expect("fits") / MIB;
    let most = free * 3 / 5;
    let file = grid.data().join("file");
    for round in 0..6 {
        assert_eq!(write_mib(&file, &new_file(), most), most, "removed and written, round {round}");
        File::open(&file).expect("opens").sync_all().expect("syncs");
        fs::remove_file(&file).expect("removes");
    }
    // A synced file is replaced by another, which needs room beside it, but not beside its predecessor too.
    let part = free * 2 / 5;
    for round in 0..6 {
        let next = grid.data().join("next");
        assert_eq!(write_mib(&next, &new_file(), part), part, "replaced, round {round}");
        File::open(&next).expect("opens").sync_all().expect("syncs");
        fs::rename(&next, &file).expect("renames");
    }
    fs::remove_file(&file).expect("removes");
    // Space that is reserved, synced and given up.
    for round in 0..10 {
        let file = File::create_new(&file).expect("creates");
        let length = most as u64 * MIB as u64;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, length)
            .unwrap_or_else(|error| panic!("allocates, round {round}: {error}"));
        file.sync_all().expect("syncs");
        fs::remove_file(grid.data().join("file")).expect("removes");
    }
    grid.umount();
    grid.is_clean();
}

#[test]
fn space_given_up_is_there_for_the_next_writer_on_the_direct_path_on_xfs() {
    space_given_up_is_there_for_the_next_writer("xfs", Placement::Direct);
}

#[test]
fn space_given_up_is_there_for_the_next_writer_on_the_served_path_on_xfs() {
    space_given_up_is_there_for_the_next_writer("xfs", Placement::Served);
}

#[test]
fn space_given_up_is_there_for_the_next_writer_on_the_direct_path_on_ext4() {
    space_given_up_is_there_for_the_next_writer("ext4", Placement::Direct);
}

#[test]
fn a_file_is_cut_and_written_again_on_a_full_disk() {
    let _alone = alone();
    for placement in [Placement::Direct, Placement::Served] {
        let disk = LoopDisk::make("xfs", 320);
        let grid = Mounted::make_in(&disk.path(), placement);
        // The store of a fileset is small, and grows for the records of the changes.
        grid.expect_log("the reserve was used");
        grid.add_settings(NO_COMMITS);
        grid.mount();
        let file = grid.data().join("file");
        write_mib(&file, &new_file(), 40);
        File::open(&file).expect("opens").sync_all().expect("syncs");
        fill(&grid.data().join("filler"));
        for round in 0..5 {
            // A little goes to the records of the change itself.
            assert_eq!(write_mib(&file, &cut_file(), 36), 36, "{placement:?}, round {round}");
            File::open(&file).expect("opens").sync_all().expect("syncs");
        }
    }
}

#[test]
fn a_full_home_is_mounted_after_a_crash_and_after_an_orderly_end() {
    let _alone = alone();
    for kind in ["ext4", "xfs"] {
        let disk = LoopDisk::make(kind, 300);
        let grid = Mounted::make_in(&disk.path(), Placement::Direct);
        grid.expect_log("the reserve was used");
        grid.mount();
        let kept = grid.data().join("kept");
        fs::write(&kept, "kept").expect("writes");
        File::open(&kept).expect("opens").sync_all().expect("syncs");
        let filler = disk.path().join("filler");
        fill(&filler);
        grid.kill();
        // Whatever the crash left of space is gone too.
        fill(&disk.path().join("filler-2"));
        grid.mount();
        assert_eq!(fs::read(&kept).expect("reads"), b"kept");
        grid.umount();
        fill(&disk.path().join("filler-3"));
        grid.mount();
        assert_eq!(fs::read(&kept).expect("reads"), b"kept");
        assert!(grid.daemon().is_some(), "the process id is written down");
        fs::remove_file(&kept).expect("removes");
        grid.umount();
        grid.is_clean();
    }
}

#[test]
fn a_mount_that_fails_says_why_also_where_its_log_cannot_grow() {
    let _alone = alone();
    let disk = LoopDisk::make("ext4", 100);
    let grid = Mounted::make_in(&disk.path(), Placement::Direct);
    grid.add_settings("store_reserve = \"0 B\"");
    grid.mount();
    grid.umount();
    let log = grid.root().join("forebay.log");
    let length = fs::metadata(&log).expect("looks").len();
    let to_the_end_of_its_block =
        usize::try_from(length.next_multiple_of(4096) - length).expect("fits");
    let mut open = OpenOptions::new();
    let mut log = open.append(true).open(&log).expect("opens the log");
    log.write_all(&vec![b'\n'; to_the_end_of_its_block]).expect("fills the block of the log");
    fill(&disk.path().join("filler"));
    let nowhere = grid.outside().join("nowhere");
    let mut command = grid.forebay(&["mount"]);
    let message = run(command.arg(grid.root()).arg(&nowhere), LIMIT).refused();
    assert!(message.contains("cannot mount at") && message.contains("nowhere"), "{message}");
}
