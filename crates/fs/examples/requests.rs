//! What the core takes for the requests of temporary files, without a kernel: nanoseconds and
//! allocations of each operation, its slowest ones, and how often a request thread had to wait.
//!
//! Each thread makes files as the kernel asks for them (a lookup that finds nothing, create, open, write
//! to the object, release, getattr, open, release; a rename of every fourth), keeps some, and removes the
//! oldest (unlink, forget). Background threads run as in the daemon. The store and the disk lie in a new
//! folder of the directory that is given: the file system there is the one that is measured.
//!
//! ```text
//! cargo run --release -p forebay-fs --example requests -- --in /mnt/xfs --threads 4 --shared
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::path::PathBuf;
use std::sync::{Arc, Barrier};
use std::time::Instant;

use forebay_base::time::SystemClock;
use forebay_base::{Clock as _, DiskId, FailPoints, Ino};
use forebay_disk::directory::{DirectoryDisk, Label};
use forebay_fs::mkfs::{self, Identity};
use forebay_fs::object::DirectAccess;
use forebay_fs::record::{DiskRecord, Kind};
use forebay_fs::reserve::Reserve;
use forebay_fs::stats::Operation;
use forebay_fs::{Access, Caller, FsError, Namespace, New, Parts, Replace, Settings};
use forebay_store::redb::RedbOptions;
use forebay_store::redb::folder::RedbFolder;

const CALLER: Caller = Caller { uid: 0, gid: 0 };
const WRITE: Access =
    Access { read: false, write: true, truncate: false, execute: false, synchronous: false };
const READ: Access = Access { read: true, write: false, ..WRITE };
/// Files that a thread keeps before it removes the oldest.
const LIVE: u64 = 20;

/// What is timed.
const STEPS: [&str; 12] = [
    "lookup of nothing",
    "create",
    "open to write",
    "write",
    "release",
    "getattr",
    "open to read",
    "release of a reader",
    "rename",
    "unlink",
    "forget",
    "all of a file",
];

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts the allocations of each thread.
struct Counting;

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Stands for the kernel's passthrough: the registration is the number of the descriptor.
struct Descriptors;

impl DirectAccess for Descriptors {
    fn register(&self, file: BorrowedFd<'_>) -> std::io::Result<u32> {
        u32::try_from(file.as_raw_fd()).map_err(std::io::Error::other)
    }

    fn unregister(&self, _: u32) {}
}

/// What is asked for on the command line.
struct Order {
    place: PathBuf,
    threads: usize,
    files: u64,
    bytes: usize,
    shared: bool,
    commit_milliseconds: u64,
}

fn order() -> Result<Order, String> {
    let mut order = Order {
        place: std::env::temp_dir(),
        threads: 1,
        files: 100_000,
        bytes: 4096,
        shared: false,
        commit_milliseconds: 1000,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(flag) = arguments.next() {
        if flag == "--shared" {
            order.shared = true;
            continue;
        }
        let value = arguments.next().ok_or_else(|| format!("{flag} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|error| format!("{flag} {value}: {error}"));
        match flag.as_str() {
            "--in" => order.place = PathBuf::from(&value),
            "--threads" => order.threads = usize::try_from(number()?).unwrap_or(1).clamp(1, 64),
            "--files" => order.files = number()?.max(LIVE + 1),
            "--bytes" => order.bytes = usize::try_from(number()?).unwrap_or(0),
            "--commit" => order.commit_milliseconds = number()?.max(10),
            _ => {
                return Err(format!(
                    "{flag}: give --in DIRECTORY, --threads N, --files N (of each thread), --bytes N, \
                     --commit MILLISECONDS, --shared (one directory for all threads)"
                ));
            }
        }
    }
    Ok(order)
}

/// What one thread measured: nanoseconds of each call by step, allocations by step.
struct Measured {
    nanoseconds: Vec<Vec<u32>>,
    allocations: Vec<u64>,
    waits: i64,
}

struct Meter {
    clock: SystemClock,
    measured: Measured,
}

impl Meter {
    fn new(files: u64) -> Meter {
        let room = usize::try_from(files).unwrap_or(0);
        Meter {
            clock: SystemClock,
            measured: Measured {
                nanoseconds: STEPS.iter().map(|_| Vec::with_capacity(room)).collect(),
                allocations: vec![0; STEPS.len()],
                waits: 0,
            },
        }
    }

    fn add(&mut self, step: usize, started: Instant, allocations: u64) {
        let took = self.clock.instant().saturating_duration_since(started);
        self.measured.nanoseconds[step].push(u32::try_from(took.as_nanos()).unwrap_or(u32::MAX));
        self.measured.allocations[step] += ALLOCATIONS.with(Cell::get) - allocations;
    }

    /// Times one request with what a transport does after each.
    fn request<T>(
        &mut self,
        fs: &Namespace,
        step: usize,
        work: impl FnOnce() -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        let (allocations, started) = (ALLOCATIONS.with(Cell::get), self.clock.instant());
        let done = work();
        drop(fs.take_stale());
        fs.after_request();
        self.add(step, started, allocations);
        done
    }
}

fn first_name(thread: usize, file: u64) -> String {
    format!("t{thread}-{file}")
}

/// The name that a file ends with.
fn last_name(thread: usize, file: u64) -> String {
    if is_renamed(file) { format!("r{thread}-{file}") } else { first_name(thread, file) }
}

fn is_renamed(file: u64) -> bool {
    file.is_multiple_of(4)
}

fn make_files(
    fs: &Namespace,
    order: &Order,
    parent: Ino,
    thread: usize,
) -> Result<Measured, FsError> {
    let mut meter = Meter::new(order.files);
    let data = vec![7_u8; order.bytes];
    let new = New { kind: Kind::File, mode: 0o644, umask: 0o022, rdev: 0, target: b"" };
    let mut inos = std::collections::VecDeque::new();
    let waits = voluntary_waits();
    for file in 0..order.files {
        let (before, began) = (ALLOCATIONS.with(Cell::get), meter.clock.instant());
        let name = first_name(thread, file);
        match meter.request(fs, 0, || fs.lookup(parent, name.as_bytes())) {
            Err(FsError::NotFound) => {}
            other => drop(other?),
        }
        let ino = meter.request(fs, 1, || fs.create(parent, name.as_bytes(), new, CALLER))?.ino;
        let opened = meter.request(fs, 2, || fs.open_file(ino, WRITE, CALLER))?;
        meter.request(fs, 3, || {
            // SAFETY: the file is open, and so its object's descriptor, until it is released below.
            let object = opened.registration.map(|number| unsafe {
                BorrowedFd::borrow_raw(i32::try_from(number).unwrap_or(-1))
            });
            let written = object.map(|object| rustix::io::pwrite(object, &data, 0));
            written.transpose().map_err(|error| FsError::Io(error.to_string()))
        })?;
        meter.request(fs, 4, || fs.close_file(ino, WRITE))?;
        meter.request(fs, 5, || fs.getattr(ino))?;
        meter.request(fs, 6, || fs.open_file(ino, READ, CALLER))?;
        meter.request(fs, 7, || fs.close_file(ino, READ))?;
        if is_renamed(file) {
            let to = last_name(thread, file);
            let (from, to) = (name.as_bytes(), to.as_bytes());
            meter.request(fs, 8, || fs.rename(parent, from, parent, to, Replace::Allowed))?;
        }
        inos.push_back((file, ino));
        if inos.len() as u64 > LIVE
            && let Some((oldest, ino)) = inos.pop_front()
        {
            let name = last_name(thread, oldest);
            meter.request(fs, 9, || fs.unlink(parent, name.as_bytes()))?;
            meter.request(fs, 10, || {
                fs.forget(ino, 1);
                Ok(())
            })?;
        }
        meter.add(11, began, before);
    }
    meter.measured.waits = voluntary_waits() - waits;
    Ok(meter.measured)
}

/// How often this thread gave its core away because it had to wait.
fn voluntary_waits() -> i64 {
    // SAFETY: the structure is plain numbers, and the call fills it.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage.ru_nvcsw
    }
}

fn open(order: &Order, folder: &std::path::Path) -> Result<Arc<Namespace>, FsError> {
    let label = Label { file_system: "measured".to_owned(), disk: "disk".to_owned() };
    let disk = folder.join("disk");
    std::fs::create_dir(&disk).map_err(|error| FsError::Io(error.to_string()))?;
    DirectoryDisk::format(&disk, &label)?;
    let names = folder.join("names");
    std::fs::create_dir(&names).map_err(|error| FsError::Io(error.to_string()))?;
    let stores = RedbFolder::at(&names, RedbOptions::default());
    let (uuid, location) = ("disk".to_owned(), String::new());
    let disks = vec![DiskRecord::new(DiskId(0), &uuid, &location)];
    let identity = Identity {
        uuid: "measured".to_owned(),
        hash_key: [7; 16],
        disks,
        owner: (0, 0),
        scratch: forebay_fs::record::Placement::Direct,
    };
    mkfs::make(&stores, &identity, &SystemClock)?;
    let commit_interval = std::time::Duration::from_millis(order.commit_milliseconds);
    let fs = Namespace::open(Parts {
        stores: Arc::new(stores),
        disks: vec![("disk".to_owned(), Arc::new(DirectoryDisk::open(&disk, &label)?) as _)],
        settings: Settings { commit_interval, ..Settings::default() },
        clock: Arc::new(SystemClock),
        fail_points: FailPoints::none(),
        reserve: Reserve::none(),
    })?;
    fs.objects().set_direct_access(Arc::new(Descriptors));
    Ok(fs)
}

fn parents(fs: &Namespace, order: &Order) -> Result<Vec<Ino>, FsError> {
    let work = fs.lookup(Ino::ROOT, b"work")?.ino;
    let new = New { kind: Kind::Directory, mode: 0o755, umask: 0, rdev: 0, target: b"" };
    (0..order.threads)
        .map(|thread| {
            if order.shared {
                return Ok(work);
            }
            Ok(fs.create(work, format!("of-{thread}").as_bytes(), new, CALLER)?.ino)
        })
        .collect()
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn print(order: &Order, measured: &[Measured], seconds: f64, commits: u64) {
    let files = order.files * order.threads as u64;
    println!(
        "{} threads, {} directory, {} files each: {:.0} files/s, {commits} commits, {} waits",
        order.threads,
        if order.shared { "one" } else { "own" },
        order.files,
        files as f64 / seconds,
        measured.iter().map(|one| one.waits).sum::<i64>()
    );
    println!(
        "{:22} {:>9} {:>9} {:>9} {:>9} {:>9} {:>12}",
        "", "mean ns", "p50 ns", "p99 us", "p99.9 us", "max us", "allocations"
    );
    for (step, name) in STEPS.iter().enumerate() {
        let mut all: Vec<u32> =
            measured.iter().flat_map(|one| one.nanoseconds[step].iter().copied()).collect();
        if all.is_empty() {
            continue;
        }
        all.sort_unstable();
        let sum: u64 = all.iter().map(|&nanos| u64::from(nanos)).sum();
        let at = |per_mille: usize| f64::from(all[(all.len() - 1) * per_mille / 1000]);
        let allocations: u64 = measured.iter().map(|one| one.allocations[step]).sum();
        println!(
            "{name:22} {:>9.0} {:>9.0} {:>9.1} {:>9.1} {:>9.1} {:>12.2}",
            sum as f64 / all.len() as f64,
            at(500),
            at(990) / 1000.0,
            at(999) / 1000.0,
            at(1000) / 1000.0,
            allocations as f64 / all.len() as f64
        );
    }
}

fn run(order: &Order) -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::Builder::new().prefix("forebay-requests-").tempdir_in(&order.place)?;
    let fs = open(order, folder.path())?;
    let background = fs.start_background()?;
    let parents = parents(&fs, order)?;
    let commits = || -> u64 {
        fs.counters().iter().map(|(_, counts)| counts[Operation::Commit as usize]).sum()
    };
    let before = commits();
    let barrier = Barrier::new(order.threads + 1);
    let clock = SystemClock;
    let (measured, seconds) = std::thread::scope(|scope| {
        let threads: Vec<_> = parents
            .iter()
            .enumerate()
            .map(|(thread, &parent)| {
                let (fs, barrier) = (&fs, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    make_files(fs, order, parent, thread)
                })
            })
            .collect();
        barrier.wait();
        let started = clock.instant();
        let measured: Vec<_> =
            threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        (measured, started.elapsed().as_secs_f64())
    });
    let done = commits() - before;
    background.stop();
    fs.close()?;
    let measured: Result<Vec<Measured>, FsError> =
        measured.into_iter().map(|one| one.expect("a thread panicked")).collect();
    print(order, &measured?, seconds, done);
    Ok(folder.close()?)
}

fn main() -> std::process::ExitCode {
    match order().map_err(Into::into).and_then(|order| run(&order)) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("requests: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
