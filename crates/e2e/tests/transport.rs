//! How requests reach the daemon: what is taken when, what is refused, and what happens to requests under
//! way when processes, the daemon or the mount go.
#![allow(clippy::disallowed_methods, reason = "time limits of tests need the machine's clock")]

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forebay_e2e::actor::User;
use forebay_e2e::mounted::{Daemon, EVERY_WAY, is_mounted};
use forebay_e2e::{Mounted, Placement, Transport, as_user, need, run, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

/// What `forebay status` says about the mount.
#[track_caller]
fn mount_status(grid: &Mounted) -> Value {
    let text = grid.run_on_root(&["status"], &["--json"]).output();
    let status: Value = serde_json::from_str(&text).expect("status is JSON");
    status["mount"].clone()
}

fn pid(grid: &Mounted) -> u64 {
    mount_status(grid)["pid"].as_u64().expect("is a number")
}

fn threads_named(grid: &Mounted, name: &str) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", pid(grid))).expect("lists threads");
    let names = tasks.flat_map(|task| fs::read_to_string(task.expect("reads").path().join("comm")));
    names.filter(|found| found.starts_with(name)).count()
}

/// A folder with a file, and the number of uses that worked: lookups, lists, bytes, syncs, renames.
fn use_it(folder: &Path) -> std::io::Result<()> {
    let path = folder.join(format!("file-{:?}", std::thread::current().id()));
    let mut file = File::create(&path)?;
    file.write_all(&[7; 100_000])?;
    file.sync_all()?;
    let mut bytes = [0; 10];
    File::open(&path)?.read_exact_at(&mut bytes, 99_990)?;
    assert_eq!(bytes, [7; 10]);
    fs::rename(&path, path.with_extension("renamed"))?;
    assert!(fs::read_dir(folder)?.count() >= 1);
    fs::remove_file(path.with_extension("renamed"))
}

/// One instruction of a system call filter: what it does, where it goes on if so and if not, and its operand.
fn instruction(code: u32, (jt, jf): (u8, u8), k: u32) -> libc::sock_filter {
    libc::sock_filter { code: u16::try_from(code).expect("is short"), jt, jf, k }
}

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const GIVE: u32 = libc::BPF_RET | libc::BPF_K;

/// Gives a command and all that it starts a system call filter (seccomp(2)), as a container has one.
fn filter_calls(command: &mut Command, mut filter: Vec<libc::sock_filter>) {
    let length = libc::c_ushort::try_from(filter.len()).expect("is short");
    let set = move || {
        let program = libc::sock_fprog { len: length, filter: filter.as_mut_ptr() };
        // SAFETY: plain system calls on valid memory, which is all that is done after fork.
        let done = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const program) == 0
        };
        if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: `set` allocates nothing and takes no lock.
    unsafe { command.pre_exec(set) };
}

fn number_of(call: i64) -> u32 {
    u32::try_from(call).expect("is short")
}

fn errno_answer(errno: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | u32::try_from(errno).expect("is positive")
}

/// Refuses io_uring to a command and all that it starts.
fn forbid_io_uring(command: &mut Command, errno: i32) {
    // The number of the system call stands first in struct seccomp_data.
    let filter = vec![
        instruction(LOAD, (0, 0), 0),
        instruction(EQUAL, (0, 1), number_of(libc::SYS_io_uring_setup)),
        instruction(GIVE, (0, 0), errno_answer(errno)),
        instruction(GIVE, (0, 0), libc::SECCOMP_RET_ALLOW),
    ];
    filter_calls(command, filter);
}

/// IORING_ENTER_NO_IOWAIT of io_uring_enter(2).
const NO_IOWAIT: u32 = 1 << 7;

/// Has the kernel not know a flag of io_uring_enter, as before Linux 6.15.
fn forbid_no_iowait(command: &mut Command) {
    // The fourth argument lies behind the number, the architecture, the address and three arguments.
    let filter = vec![
        instruction(LOAD, (0, 0), 0),
        instruction(EQUAL, (0, 3), number_of(libc::SYS_io_uring_enter)),
        instruction(LOAD, (0, 0), 16 + 3 * 8),
        instruction(ANY_BIT, (0, 1), NO_IOWAIT),
        instruction(GIVE, (0, 0), errno_answer(libc::EINVAL)),
        instruction(GIVE, (0, 0), libc::SECCOMP_RET_ALLOW),
    ];
    filter_calls(command, filter);
}

#[test]
fn io_uring_is_taken_unasked_and_its_memory_is_told() {
    let grid = Mounted::start(Placement::Direct);
    let status = mount_status(&grid);
    assert_eq!(status["transport"], "uring", "{status:#}");
    assert_eq!(status["transport_why"], Value::Null);
    let number = |key: &str| status["ring"][key].as_u64().expect("is a number");
    let cores = u64::try_from(std::thread::available_parallelism().expect("counts").get());
    assert!(number("queues") >= cores.expect("is short"));
    assert_eq!(threads_named(&grid, "ring-") as u64, number("threads"));
    let each = number("memory_max_bytes") / number("threads");
    assert!((1 << 20..2 << 20).contains(&each), "{each} bytes for a request");
    let text = grid.run_on_root(&["status"], &[]).output();
    assert!(text.contains("io_uring"), "{text}");
    assert!(grid.log().contains("transport=io_uring"), "{}", grid.log());
}

#[test]
fn the_setting_chooses_and_the_option_overrides_it() {
    let grid = Mounted::make(Placement::Direct);
    let line = grid.add_settings("transport = \"dev\"\nring_depth = 3");
    grid.mount();
    let status = mount_status(&grid);
    assert_eq!(status["transport"], "dev");
    assert!(status["transport_why"].as_str().is_some_and(|why| why.contains("as requested")));
    assert_eq!(threads_named(&grid, "ring-"), 0);
    grid.umount();
    let mut command = grid.mount_command();
    run(command.args(["--transport", "uring"]), LIMIT).succeeds();
    let status = mount_status(&grid);
    assert_eq!((&status["transport"], &status["ring"]["depth"]), (&"uring".into(), &3.into()));
    use_it(&grid.data()).expect("works");
    grid.umount();
    let message = run(grid.mount_command().args(["--transport", "pipe"]), LIMIT).refused();
    assert!(message.contains("auto, dev or uring"), "{message}");

    let settings = grid.root().join("forebay.toml");
    let text = fs::read_to_string(&settings).expect("reads");
    fs::write(&settings, text.replace("\"dev\"", "\"pipe\"")).expect("writes");
    let message = run(&mut grid.mount_command(), LIMIT).refused();
    for part in [format!("line {line}").as_str(), "transport", "pipe", "\"uring\""] {
        assert!(message.contains(part), "{message:?} lacks {part:?}");
    }
    fs::write(&settings, text).expect("writes");
}

#[test]
fn where_io_uring_is_refused_the_device_is_taken_and_the_reason_told() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        let grid = Mounted::make(Placement::Direct);
        let mut command = grid.mount_command();
        forbid_io_uring(&mut command, errno);
        run(&mut command, LIMIT).succeeds();
        let status = mount_status(&grid);
        assert_eq!(status["transport"], "dev");
        let why = status["transport_why"].as_str().expect("there is a reason");
        assert!(why.contains("refused") && why.contains("allow io_uring_setup"), "{why}");
        assert_eq!(grid.log().matches(why).count(), 1, "one line says why: {}", grid.log());
        use_it(&grid.data()).expect("works");
        grid.umount();

        let mut command = grid.mount_command();
        forbid_io_uring(command.args(["--transport", "uring"]), errno);
        let message = run(&mut command, LIMIT).refused();
        assert!(
            message.contains("\"uring\" is not available") && message.contains(why),
            "{message}"
        );
        assert!(!is_mounted(&grid.mountpoint()), "nothing is left mounted");
        assert!(grid.daemon().is_none(), "no daemon is left");
    }
}

#[test]
fn a_limit_of_locked_memory_binds_ordinary_users_alone() {
    let under_limit = |grid: &Mounted| {
        grid.mkfs();
        let mount = grid.mount_command();
        let mut command = need::program("prlimit");
        command.args(["--memlock=0:0", "--"]).arg(mount.get_program()).args(mount.get_args());
        run(command.current_dir(grid.outside()), LIMIT).succeeds();
        mount_status(grid)
    };
    assert_eq!(under_limit(&Mounted::plan(Placement::Direct, None, None))["transport"], "uring");
    // The system counts the rings of an ordinary user as locked memory.
    let user = User::new(65534, &[65534]);
    let grid = Mounted::plan_for(&user);
    let status = under_limit(&grid);
    as_user(&user, || use_it(&grid.data()).expect("works"));
    assert_eq!(status["transport"], "dev");
    let why = status["transport_why"].as_str().expect("there is a reason");
    assert!(why.contains("RLIMIT_MEMLOCK"), "{why}");
}

#[test]
fn an_ordinary_user_has_io_uring_too() {
    need::fuse_for_users();
    let user = User::new(65534, &[65534]);
    let grid = Mounted::plan_for(&user);
    grid.mkfs();
    run(&mut grid.mount_command(), LIMIT).succeeds();
    assert_eq!(mount_status(&grid)["transport"], "uring");
    as_user(&user, || use_it(&grid.data()).expect("works"));
}

#[test]
fn an_idle_daemon_uses_no_processor() {
    for (placement, transport) in EVERY_WAY {
        let grid = Mounted::start_over(placement, transport);
        use_it(&grid.data()).expect("works");
        let pid = pid(&grid);
        let ticks = || -> u64 {
            let text = fs::read_to_string(format!("/proc/{pid}/stat")).expect("reads");
            let fields = text.rsplit_once(") ").expect("has a name").1.split(' ');
            // User and system time (proc_pid_stat(5)), in hundredths of seconds.
            fields.skip(11).take(2).map(|field| field.parse::<u64>().expect("is a number")).sum()
        };
        std::thread::sleep(Duration::from_millis(300));
        let before = ticks();
        std::thread::sleep(Duration::from_secs(1));
        // A commit may fall in between; one spinning thread would use a hundred.
        assert!(ticks() - before < 10, "{} ticks in a second", ticks() - before);
    }
}

#[test]
fn the_daemon_comes_before_the_programs_that_wait_for_it() {
    for (settings, wanted) in [("", -10), ("daemon_nice = -3", -3), ("daemon_nice = 0", 0)] {
        let grid = Mounted::make(Placement::Direct);
        grid.add_settings(settings);
        grid.mount();
        let pid = pid(&grid);
        for task in fs::read_dir(format!("/proc/{pid}/task")).expect("lists threads") {
            // A thread that has ended meanwhile has no priority.
            let text = fs::read_to_string(task.expect("reads").path().join("stat"));
            let Ok(text) = text else { continue };
            let fields = text.rsplit_once(") ").expect("has a name").1;
            assert_eq!(fields.split(' ').nth(16), Some(wanted.to_string().as_str()), "{text}");
        }
        // Where sessions share processors as one, their own priority is what counts.
        if let Ok(group) = fs::read_to_string(format!("/proc/{pid}/autogroup")) {
            assert!(group.trim().ends_with(&format!("nice {wanted}")), "{group}");
        }
    }
}

/// The slice that the scheduler gives a thread, in nanoseconds; 0 before Linux 6.12, none if it has ended.
fn slice_nanos(thread: &str) -> Option<u64> {
    // struct sched_attr of sched_setattr(2): its length, and where sched_runtime lies.
    const LENGTH: usize = 48;
    let mut attributes = [0_u64; LENGTH / 8];
    let thread: libc::pid_t = thread.parse().expect("is a number");
    // SAFETY: the kernel writes at most as many bytes as it is told.
    let done = unsafe {
        libc::syscall(libc::SYS_sched_getattr, thread, attributes.as_mut_ptr(), LENGTH, 0)
    };
    let error = std::io::Error::last_os_error();
    if done != 0 && error.raw_os_error() == Some(libc::ESRCH) {
        return None;
    }
    assert_eq!(done, 0, "sched_getattr of {thread}: {error}");
    Some(attributes[3])
}

#[test]
fn threads_of_the_ring_ask_for_short_slices() {
    let own = slice_nanos("0").expect("it runs");
    for (placement, transport) in EVERY_WAY {
        for (settings, wanted) in
            [("", 100_000), ("ring_slice = \"3 ms\"", 3_000_000), ("ring_slice = \"0 s\"", own)]
        {
            let grid = Mounted::make_over(placement, transport);
            grid.add_settings(settings);
            grid.mount();
            use_it(&grid.data()).expect("works");
            let mut seen = 0;
            for task in fs::read_dir(format!("/proc/{}/task", pid(&grid))).expect("lists threads") {
                let task = task.expect("reads");
                let name = fs::read_to_string(task.path().join("comm"));
                let slice = slice_nanos(task.file_name().to_str().expect("is text"));
                let (Ok(name), Some(slice)) = (name, slice) else { continue };
                let in_ring = name.starts_with("ring-");
                // A kernel that knows no slices says 0 of all.
                let expected = if own == 0 || !in_ring { own } else { wanted };
                assert_eq!(slice, expected, "{settings:?}: {name}");
                seen += usize::from(in_ring);
            }
            assert_eq!(seen > 0, transport == Transport::Uring);
        }
    }
}

/// The system calls that the threads of the ring wait in, with their arguments (proc_pid_syscall(5)).
fn calls_of_ring(grid: &Mounted) -> Vec<Vec<u64>> {
    let tasks = fs::read_dir(format!("/proc/{}/task", pid(grid))).expect("lists threads");
    let tasks = tasks.map(|task| task.expect("reads").path());
    let in_ring = |task: &std::path::PathBuf| {
        fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("ring-"))
    };
    let parse = |field: &str| match field.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => field.parse(),
    };
    let call = |task: std::path::PathBuf| {
        let text = fs::read_to_string(task.join("syscall")).unwrap_or_default();
        text.split_whitespace().map_while(|field| parse(field).ok()).collect()
    };
    tasks.filter(in_ring).map(call).collect()
}

#[test]
fn an_idle_mount_is_not_taken_for_one_that_waits_for_disks() {
    let number = |call: i64| u64::try_from(call).expect("is positive");
    // A thread in io_uring_enter counts as waiting for a disk unless it says that it does not.
    let enters = |call: &[u64]| call.first() == Some(&number(libc::SYS_io_uring_enter));
    for (placement, knows_the_flag) in
        [(Placement::Direct, true), (Placement::Direct, false), (Placement::Served, false)]
    {
        let grid = Mounted::make_over(placement, Transport::Uring);
        let mut command = grid.mount_command();
        if !knows_the_flag {
            forbid_no_iowait(&mut command);
        }
        run(&mut command, LIMIT).succeeds();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..20).for_each(|_| use_it(&grid.data()).expect("works")));
            }
        });
        let mut calls = Vec::new();
        let is_idle = |call: &Vec<u64>| {
            if !enters(call) {
                return call.first() == Some(&number(libc::SYS_read));
            }
            knows_the_flag && call[4] & u64::from(NO_IOWAIT) != 0
        };
        wait_until("all threads wait as they should", LIMIT, || {
            calls = calls_of_ring(&grid);
            !calls.is_empty() && calls.iter().all(is_idle)
        });
        assert_eq!(calls.iter().all(|call| enters(call)), knows_the_flag, "{calls:?}");
        grid.umount();
    }
}

/// Starts a process that asks the file system for something.
fn asker(grid: &Mounted, program: &str) -> Child {
    let mut command = need::program("python3");
    command.args(["-c", program]).arg(grid.data());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("starts python3")
}

fn state_of(child: &Child) -> char {
    let text = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    text.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('X')
}

struct Stopped<'a>(&'a Daemon);

impl<'a> Stopped<'a> {
    fn stop(daemon: &'a Daemon) -> Stopped<'a> {
        daemon.signal(Signal::STOP);
        Stopped(daemon)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.signal(Signal::CONT);
    }
}

#[test]
fn processes_killed_while_their_requests_are_under_way_cost_no_entry() {
    for (placement, transport) in EVERY_WAY {
        let grid = Mounted::make_over(placement, transport);
        grid.add_settings("ring_depth = 2\nfuse_threads = 2\nkernel_ttl = \"0 s\"");
        grid.mount();
        fs::write(grid.data().join("file"), [1; 10_000]).expect("writes");
        let daemon = grid.daemon().expect("the daemon runs");
        // More than there are entries, so that a lost one shows; some wait in the kernel.
        for round in 0..4 {
            let stopped = Stopped::stop(&daemon);
            let mut askers: Vec<Child> = (0..8)
                .map(|number| {
                    let program = [
                        "import os, sys; os.stat(sys.argv[1] + '/file')",
                        "import os, sys; os.listdir(sys.argv[1])",
                        "import os, sys; open(sys.argv[1] + '/new', 'w').write('x' * 100000)",
                        "import os, sys; open(sys.argv[1] + '/file').read()",
                    ][(number + round) % 4];
                    asker(&grid, program)
                })
                .collect();
            let sleeps = |child: &Child| matches!(state_of(child), 'D' | 'S');
            wait_until("the askers wait", LIMIT, || askers.iter().all(sleeps));
            std::thread::sleep(Duration::from_millis(100));
            for child in &mut askers {
                let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
                kill_process(pid.expect("has a pid"), Signal::KILL).expect("kills");
            }
            drop(stopped);
            for mut child in askers {
                wait_until("a killed asker ends", LIMIT, || {
                    child.try_wait().expect("waits for a child").is_some()
                });
            }
        }
        use_it(&grid.data()).expect("works");
    }
}

/// Uses the mount in many threads while `meanwhile` runs; returns how many uses worked, and fails if one
/// did not.
fn under_load(grid: &Mounted, threads: usize, meanwhile: impl FnOnce(&AtomicU64)) -> u64 {
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for number in 0..threads {
            let folder = if number % 2 == 0 { grid.data() } else { grid.work() };
            let (stop, done) = (&stop, &done);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if let Err(error) = use_it(&folder) {
                        stop.store(true, Ordering::Relaxed);
                        panic!("under load: {error}");
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        meanwhile(&done);
        stop.store(true, Ordering::Relaxed);
    });
    done.into_inner()
}

#[test]
fn a_suspended_daemon_goes_on_where_it_was() {
    for (placement, transport) in EVERY_WAY {
        let grid = Mounted::start_over(placement, transport);
        let daemon = grid.daemon().expect("the daemon runs");
        let uses = under_load(&grid, 6, |done| {
            for _ in 0..10 {
                let before = done.load(Ordering::Relaxed);
                wait_until("the load runs", LIMIT, || done.load(Ordering::Relaxed) > before + 5);
                let stopped = Stopped::stop(&daemon);
                std::thread::sleep(Duration::from_millis(30));
                drop(stopped);
            }
        });
        assert!(uses > 50, "{uses} uses");
    }
}

#[test]
fn slow_requests_beyond_all_entries_keep_nothing_waiting_for_ever() {
    for placement in [Placement::Direct, Placement::Served] {
        let grid = Mounted::make_over(placement, Transport::Uring);
        grid.add_settings("ring_depth = 1\ncommit_interval = \"10 ms\"\nkernel_ttl = \"0 s\"");
        grid.mount();
        assert_eq!(mount_status(&grid)["ring"]["depth"], 1);
        let uses = under_load(&grid, 16, |done| {
            wait_until("the load runs", LIMIT, || done.load(Ordering::Relaxed) > 300);
        });
        assert!(uses > 300, "{uses} uses");
    }
}

#[test]
fn a_lazy_unmount_under_load_ends_with_the_last_user() {
    for (placement, transport) in EVERY_WAY {
        let grid = Mounted::start_over(placement, transport);
        let daemon = grid.daemon().expect("the daemon runs");
        let file = File::create(grid.work().join("open")).expect("creates");
        let mountpoint = grid.mountpoint();
        let refused = grid.run(&["umount", mountpoint.to_str().expect("plain path")]).refused();
        assert!(refused.contains("open") || refused.contains("use"), "{refused}");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for number in 0..4_u64 {
                let (file, stop) = (&file, &stop);
                scope.spawn(move || {
                    // Once at least: what they have written is looked at below.
                    loop {
                        file.write_all_at(&[1; 50_000], number * 50_000).expect("writes");
                        file.sync_data().expect("syncs");
                        file.metadata().expect("stats");
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                });
            }
            let path = mountpoint.to_str().expect("plain path");
            grid.run(&["umount", "--lazy", path]).succeeds();
            assert!(!is_mounted(&mountpoint), "it is out of the tree");
            std::thread::sleep(Duration::from_millis(300));
            stop.store(true, Ordering::Relaxed);
        });
        assert!(!daemon.ends_within(Duration::from_millis(100)), "a file is open yet");
        assert_eq!(file.metadata().expect("stats").len(), 200_000);
        drop(file);
        assert!(daemon.ends_within(LIMIT), "the daemon ends with the last user");
        grid.is_clean();
        grid.mount();
        assert_eq!(fs::read(grid.work().join("open")).expect("reads"), [1; 200_000]);
    }
}

#[test]
fn an_aborted_connection_ends_the_daemon_in_order() {
    for (placement, transport) in EVERY_WAY {
        let grid = Mounted::start_over(placement, transport);
        fs::write(grid.data().join("file"), "content").expect("writes");
        let daemon = grid.daemon().expect("the daemon runs");
        // A client may be inside a write that goes past the daemon: its file is not at rest when the daemon ends.
        grid.expect_log("programs are still writing");
        // Clients that are in the middle of something get errors, not silence.
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        if use_it(&grid.work()).is_err() {
                            return;
                        }
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(200));
            grid.abort_connection();
            assert!(daemon.ends_within(LIMIT), "the daemon ends");
            stop.store(true, Ordering::Relaxed);
        });
        grid.detach();
        grid.is_clean();
        grid.mount();
        assert_eq!(fs::read(grid.data().join("file")).expect("reads"), b"content");
    }
}

#[test]
fn readers_of_a_killed_daemon_get_errors_and_end() {
    for (placement, transport) in EVERY_WAY {
        let grid = Mounted::start_over(placement, transport);
        let path = grid.data().join("large");
        fs::write(&path, vec![5; 20 << 20]).expect("writes");
        File::open(&path).and_then(|file| file.sync_all()).expect("syncs");
        grid.remount();
        let daemon = grid.daemon().expect("the daemon runs");
        std::thread::scope(|scope| {
            let path = &path;
            for number in 0..6_u64 {
                scope.spawn(move || {
                    let mut bytes = vec![0; 100_000];
                    let mut at = (number * 3) << 20;
                    while let Ok(file) = File::open(path) {
                        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
                        if file.read_exact_at(&mut bytes, at % (19 << 20)).is_err() {
                            return;
                        }
                        assert!(bytes.iter().all(|byte| *byte == 5), "wrong bytes");
                        at += 1 << 20;
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(300));
            daemon.kill();
        });
        grid.detach();
        grid.mount();
        assert_eq!(fs::metadata(&path).expect("stats").len(), 20 << 20);
    }
}
