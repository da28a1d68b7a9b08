//! Many threads and processes in the same trees: no deadlock, nothing lost, a clean file system.
#![allow(clippy::disallowed_methods, reason = "time limits of tests need the machine's clock")]

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_e2e::content::{assert_same, pattern, read_at};
use forebay_e2e::mounted::EVERY_WAY;
use forebay_e2e::{Mounted, Peer, on_every_way, seed, wait_until};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

on_every_way!(
    everything_at_once_in_the_same_trees_neither_hangs_nor_breaks,
    entries_made_at_once_in_one_directory_are_all_there,
    writers_of_one_file_do_not_disturb_each_other,
    a_directory_moved_back_and_forth_never_makes_a_loop,
);

/// Settings under which everything that happens in the background happens all the time: commits, the
/// eviction of inodes, the closing of objects, questions of the kernel.
const HURRIED: &str = "commit_interval = \"10 ms\"
uncommitted_max = 1000
inode_cache_max = \"1 MiB\"
open_objects_max = 64
spare_objects = 2
kernel_ttl = \"0 s\"
fuse_readers = 4";

#[test]
fn everything_at_once_survives_constant_eviction_and_commits() {
    for (placement, transport) in EVERY_WAY {
        let grid = Mounted::make_over(placement, transport);
        grid.add_settings(HURRIED);
        grid.mount();
        // More inodes than the cache holds, so that those in use are evicted and loaded again.
        for number in 0..4000 {
            fs::write(grid.work().join(format!("ballast-{number}")), b"ballast").expect("writes");
        }
        everything_at_once_in_the_same_trees_neither_hangs_nor_breaks(&grid);
        entries_made_at_once_in_one_directory_are_all_there(&grid);
        for number in 0..4000 {
            let content = fs::read(grid.work().join(format!("ballast-{number}"))).expect("reads");
            assert_eq!(content, b"ballast");
        }
    }
}

const RUN_TIME: Duration = Duration::from_secs(10);
/// Longest time for one operation, on a machine that does much else.
const STEP_LIMIT: Duration = Duration::from_secs(30);
const THREADS: usize = 6;
const PROCESSES: usize = 2;

/// What operations in a tree that others change may answer.
const ANSWERS: [Errno; 11] = [
    Errno::NOENT,
    Errno::EXIST,
    Errno::NOTEMPTY,
    Errno::ISDIR,
    Errno::NOTDIR,
    Errno::INVAL,
    Errno::BUSY,
    Errno::PERM,
    Errno::NAMETOOLONG,
    Errno::LOOP,
    Errno::STALE,
];

/// A path of one to three names out of a few, so that all meet in the same places.
fn some_path(random: &mut StdRng, folder: &Path) -> PathBuf {
    let mut path = folder.to_path_buf();
    for _ in 0..random.random_range(1..=3) {
        path.push(format!("n{}", random.random_range(0..6)));
    }
    path
}

/// Removes all below one of the first names. Directories that are moved into each other nest ever
/// deeper, and only this ends it, so that paths stay within what the kernel takes; `rm` goes down
/// without recursion.
fn remove_some_tree(random: &mut StdRng, folder: &Path) {
    let tree = folder.join(format!("n{}", random.random_range(0..6)));
    // What it answers is of no use: others make names in the tree meanwhile.
    let _ = Command::new("rm").arg("-rf").arg(tree).stderr(Stdio::null()).status();
}

fn one_operation(random: &mut StdRng, folder: &Path) -> std::io::Result<()> {
    if random.random_ratio(1, 500) {
        remove_some_tree(random, folder);
        return Ok(());
    }
    let path = some_path(random, folder);
    let other = some_path(random, folder);
    match random.random_range(0..14) {
        0..=1 => fs::create_dir(&path),
        2..=3 => File::create(&path)?.write_all(&[1; 3000]),
        4..=5 => fs::rename(&path, &other),
        6 => renameat_with(CWD, &path, CWD, &other, RenameFlags::EXCHANGE).map_err(Into::into),
        7 => renameat_with(CWD, &path, CWD, &other, RenameFlags::NOREPLACE).map_err(Into::into),
        8 => fs::hard_link(&path, &other),
        9 => fs::remove_file(&path),
        10 => fs::remove_dir(&path),
        11 => fs::read_dir(&path)?.try_for_each(|entry| entry.map(drop)),
        12 => fs::read(&path).map(drop),
        _ => OpenOptions::new().append(true).open(&path)?.write_all(b"more"),
    }
}

/// The same kind of load from another process, until it is told to stop.
const CHURN: &str = r#"
import errno, os, random, select, subprocess, sys
top, seed = sys.argv[1], int(sys.argv[2])
random.seed(seed)
def path():
    return os.path.join(top, *("n%d" % random.randrange(6) for _ in range(random.randint(1, 3))))
def make(p):
    with open(p, "ab") as f: f.write(b"x" * 5000)
def remove(p):
    subprocess.run(["rm", "-rf", p], stderr=subprocess.DEVNULL)
verbs = [lambda: os.mkdir(path()), lambda: make(path()), lambda: os.rename(path(), path()),
         lambda: os.link(path(), path()), lambda: os.unlink(path()), lambda: os.rmdir(path()),
         lambda: os.listdir(path()), lambda: os.symlink("n1", path()),
         lambda: remove(path()) if random.random() < 0.05 else None]
print("ready")
while not select.select([sys.stdin], [], [], 0)[0]:
    try:
        random.choice(verbs)()
    except OSError as error:
        if error.errno in (errno.EIO, errno.ENOTCONN, errno.EBADF, errno.ENOSPC):
            print("unexpected answer:", error)
            sys.exit(1)
print("stopped")
"#;

fn everything_at_once_in_the_same_trees_neither_hangs_nor_breaks(grid: &Mounted) {
    let seed = seed("concurrency");
    let folder = grid.work().join("shared");
    fs::create_dir(&folder).expect("makes a directory");
    let top = folder.to_str().expect("plain path");
    let mut peers: Vec<Peer> =
        (0..PROCESSES).map(|number| Peer::start(CHURN, &[top, &number.to_string()])).collect();
    for peer in &mut peers {
        peer.expect("ready");
    }
    let start = Instant::now();
    // Milliseconds since the start at which each thread last finished an operation.
    let last_steps: Vec<AtomicU64> = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
    let operations = AtomicU64::new(0);
    let since_start = || u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
    std::thread::scope(|scope| {
        for (number, last_step) in last_steps.iter().enumerate() {
            let (folder, operations) = (&folder, &operations);
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed + number as u64);
                while start.elapsed() < RUN_TIME {
                    if let Err(error) = one_operation(&mut random, folder) {
                        let errno = Errno::from_io_error(&error).expect("a system error");
                        assert!(ANSWERS.contains(&errno), "unexpected answer: {error}");
                    }
                    operations.fetch_add(1, Ordering::Relaxed);
                    last_step.store(since_start(), Ordering::Relaxed);
                }
            });
        }
        watch(&last_steps, since_start);
    });
    for peer in &mut peers {
        peer.tell("stop");
        assert_eq!(peer.hear_within(STEP_LIMIT), "stopped");
    }
    println!("{} operations by threads", operations.into_inner());
    check_tree(&folder);
    grid.remount();
    check_tree(&folder);
}

/// Ends the test process when a thread hangs: a thread in the kernel cannot be ended from here.
fn watch(last_steps: &[AtomicU64], since_start: impl Fn() -> u64) {
    let limit = u64::try_from(STEP_LIMIT.as_millis()).expect("small");
    let end = u64::try_from(RUN_TIME.as_millis()).expect("small");
    loop {
        std::thread::sleep(Duration::from_millis(200));
        let now = since_start();
        let oldest = last_steps.iter().map(|step| step.load(Ordering::Relaxed)).min().unwrap_or(0);
        if oldest + 200 >= end || (now > end && oldest + 1000 > end) {
            return;
        }
        assert!(now < oldest + limit, "an operation has not ended for {} ms", now - oldest);
    }
}

/// Checks link counts against the names that a walk finds, and that every file can be read.
fn check_tree(folder: &Path) {
    let mut names_of_file = std::collections::BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let mut children = 0;
        for entry in fs::read_dir(&folder).expect("lists") {
            let path = entry.expect("lists").path();
            let stat = fs::symlink_metadata(&path).expect("a listed name is there");
            if stat.is_dir() {
                children += 1;
                folders.push(path);
            } else {
                if stat.is_file() {
                    assert_eq!(fs::read(&path).expect("reads").len() as u64, stat.len());
                }
                names_of_file.entry((stat.ino(), stat.nlink())).or_insert_with(Vec::new).push(path);
            }
        }
        let links = fs::metadata(&folder).expect("stats").nlink();
        assert_eq!(links, 2 + children, "links of {}", folder.display());
    }
    for ((_, links), names) in names_of_file {
        assert_eq!(links, names.len() as u64, "links of {names:?}");
    }
}

fn entries_made_at_once_in_one_directory_are_all_there(grid: &Mounted) {
    const FILES: usize = 400;
    let folder = grid.data().join("folder");
    fs::create_dir(&folder).expect("makes a directory");
    let in_threads = |act: &(dyn Fn(PathBuf) + Sync)| {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let folder = &folder;
                scope.spawn(move || {
                    for file in 0..FILES {
                        act(folder.join(format!("{thread}-{file}")));
                    }
                });
            }
        });
    };
    in_threads(&|path| fs::write(&path, path.as_os_str().as_encoded_bytes()).expect("writes"));
    let found: BTreeSet<String> = fs::read_dir(&folder)
        .expect("lists")
        .map(|entry| entry.expect("lists").file_name().into_string().expect("plain name"))
        .collect();
    assert_eq!(found.len(), THREADS * FILES);
    grid.remount();
    in_threads(&|path| {
        assert_eq!(fs::read(&path).expect("reads"), path.as_os_str().as_encoded_bytes());
    });
    in_threads(&|path| fs::remove_file(path).expect("removes"));
    fs::remove_dir(&folder).expect("the directory is empty");
}

fn writers_of_one_file_do_not_disturb_each_other(grid: &Mounted) {
    const BLOCK: usize = 5000;
    const BLOCKS: u64 = 300;
    let path = grid.work().join("file");
    File::create(&path).expect("creates");
    std::thread::scope(|scope| {
        for thread in 0..THREADS as u64 {
            let path = &path;
            scope.spawn(move || {
                let file = OpenOptions::new().read(true).write(true).open(path).expect("opens");
                for block in (thread..BLOCKS).step_by(THREADS) {
                    let place = block * BLOCK as u64;
                    file.write_all_at(&pattern(block, BLOCK), place).expect("writes");
                    assert_same(&read_at(&file, place, BLOCK), &pattern(block, BLOCK), "just now");
                }
            });
        }
    });
    grid.remount();
    let file = File::open(&path).expect("opens");
    assert_eq!(file.metadata().expect("stats").len(), BLOCKS * BLOCK as u64);
    for block in 0..BLOCKS {
        let bytes = read_at(&file, block * BLOCK as u64, BLOCK);
        assert_same(&bytes, &pattern(block, BLOCK), &format!("block {block}"));
    }
}

fn a_directory_moved_back_and_forth_never_makes_a_loop(grid: &Mounted) {
    let top = grid.work().join("top");
    for name in ["a/x", "b/y"] {
        fs::create_dir_all(top.join(name)).expect("makes directories");
    }
    // Each thread tries to put one directory below the other: both at once would make a loop.
    std::thread::scope(|scope| {
        for (from, to, back) in [("a", "b/y/a", "a"), ("b", "a/x/b", "b")] {
            let top = &top;
            scope.spawn(move || {
                for _ in 0..500 {
                    if fs::rename(top.join(from), top.join(to)).is_ok() {
                        wait_until("the way back is free", STEP_LIMIT, || {
                            fs::rename(top.join(to), top.join(back)).is_ok()
                        });
                    }
                }
            });
        }
    });
    check_tree(&top);
    let names: BTreeSet<_> =
        fs::read_dir(&top).expect("lists").map(|entry| entry.expect("lists").file_name()).collect();
    assert_eq!(names, BTreeSet::from(["a".into(), "b".into()]));
}
