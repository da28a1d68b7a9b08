//! What is counted of processes, against what they are known to do.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use forebay_base::time::SystemClock;
use forebay_process::{Accounting, Child, Ended, end_all, wait_any};

const MIB: u64 = 1 << 20;

fn accounting() -> Arc<Accounting> {
    Accounting::find(Arc::new(SystemClock))
}

/// A shell that runs `script`; the test's directory is its working directory.
fn shell(script: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]).stdin(Stdio::null()).stderr(Stdio::null());
    command
}

fn spawn(script: &str) -> Child {
    Child::spawn(shell(script), &accounting()).unwrap()
}

fn run(command: Command) -> Ended {
    Child::spawn(command, &accounting()).unwrap().wait().unwrap().clone()
}

/// Whether a process is there that is no zombie.
fn runs(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit_once(") ").unwrap().1.starts_with(['Z', 'X']))
}

fn wait_until(what: &str, mut there: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if there() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("a minute passed without {what}");
}

#[test]
fn bytes_and_calls_are_those_that_a_process_made() {
    let folder = tempfile::tempdir().unwrap();
    let mut dd = Command::new("dd");
    dd.args(["if=/dev/zero", "of=file", "bs=64k", "count=512"]);
    dd.current_dir(folder.path()).stdin(Stdio::null()).stderr(Stdio::null());
    let ended = run(dd);
    assert!(ended.status.success());
    // Its own 32 MiB each way; loading the program and its libraries, and its report, are the slack.
    let (read, written) = (ended.usage.read_bytes.unwrap(), ended.usage.written_bytes.unwrap());
    assert!((32 * MIB..32 * MIB + 256 * 1024).contains(&read), "{read}");
    assert!((32 * MIB..32 * MIB + 4096).contains(&written), "{written}");
    let (reads, writes) = (ended.usage.read_calls.unwrap(), ended.usage.write_calls.unwrap());
    assert!((512..612).contains(&reads) && (512..522).contains(&writes), "{reads} {writes}");
}

/// Runs `test` as a user without rights, if this one has them: credentials belong to threads.
fn without_rights(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        const NOBODY: libc::uid_t = 65534;
        // SAFETY: the system calls take numbers only. Through libc's own setresuid they would be made
        // in all threads.
        unsafe {
            if libc::geteuid() == 0 {
                assert_eq!(libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY), 0);
                // Changing the user hid this program's files in /proc.
                assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0), 0);
            }
        }
        test();
    });
    thread.join().unwrap();
}

#[test]
fn without_rights_a_process_is_counted_to_its_end_as_well() {
    without_rights(|| {
        for _ in 0..20 {
            let ended = run(shell("echo 0123456789 > /dev/null"));
            assert_eq!(ended.usage.written_bytes, Some(11));
        }
        let killed = run(shell("head -c 100000 /dev/zero > /dev/null; kill -KILL $$"));
        assert!(killed.usage.written_bytes.is_some_and(|bytes| bytes >= 100_000), "{killed:?}");
        let accounting = accounting();
        assert!(!accounting.io_wait_source().starts_with("the kernel's delay accounting of all"));
    });
}

#[test]
fn a_spinner_uses_user_time_of_about_its_real_time_and_a_sleeper_none() {
    let spinner = run(shell("i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done"));
    let used = spinner.usage.user_seconds + spinner.usage.system_seconds;
    // On a busy machine real time is longer, never shorter; the clock ticks make the slack.
    assert!(used > 0.01 && used <= spinner.usage.real_seconds + 0.02, "{:?}", spinner.usage);
    assert!(spinner.usage.user_seconds > spinner.usage.system_seconds, "{:?}", spinner.usage);

    let sleeper = run(shell("exec sleep 1"));
    assert!(sleeper.usage.real_seconds >= 1.0, "{:?}", sleeper.usage);
    let used = sleeper.usage.user_seconds + sleeper.usage.system_seconds;
    assert!(used < 0.2 * sleeper.usage.real_seconds, "{:?}", sleeper.usage);
    assert!(sleeper.usage.voluntary_switches >= 1, "{:?}", sleeper.usage);
}

#[test]
fn children_that_were_waited_for_belong_to_their_parent() {
    let folder = tempfile::tempdir().unwrap();
    let mut family = shell(
        "dd if=/dev/zero of=a bs=1M count=8; (dd if=/dev/zero of=b bs=1M count=16); \
         i=0; while [ $i -lt 1000 ]; do i=$((i+1)); done",
    );
    family.current_dir(folder.path());
    let usage = run(family).usage;
    let written = usage.written_bytes.unwrap();
    assert!((24 * MIB..24 * MIB + 8192).contains(&written), "{written}");
    // A buffer of 1 MiB in each dd, in pages of at most 2 MiB.
    assert!(usage.minor_faults > 100 && usage.peak_memory_bytes > Some(MIB), "{usage:?}");
    // What they waited for nobody has counted.
    let waits = [usage.io_wait_seconds, usage.memory_wait_seconds, usage.processor_wait_seconds];
    assert_eq!(waits, [None; 3], "{usage:?}");
}

#[test]
fn peak_memory_holds_what_a_process_touched() {
    let large = run(shell("exec dd if=/dev/zero of=/dev/null bs=96M count=1")).usage;
    let small = run(shell("exec dd if=/dev/zero of=/dev/null bs=1k count=1")).usage;
    let (most, least) = (large.peak_memory_bytes.unwrap(), small.peak_memory_bytes.unwrap());
    assert!(most >= 96 * MIB, "{large:?}");
    assert!(most - least >= 80 * MIB, "{small:?}");
}

#[test]
fn codes_and_signals_are_told_apart() {
    let failed = run(shell("exit 7"));
    assert_eq!((failed.status.code(), failed.status.signal()), (Some(7), None));
    let killed = run(shell("kill -TERM $$"));
    assert_eq!((killed.status.code(), killed.status.signal()), (None, Some(libc::SIGTERM)));
}

#[test]
fn a_program_that_is_not_there_is_an_error_that_names_it() {
    let error = Child::spawn(Command::new("/no/such/program"), &accounting()).unwrap_err();
    assert!(error.to_string().contains("cannot start /no/such/program"), "{error}");
}

#[test]
fn an_end_is_seen_without_waiting_and_told_as_often_as_asked() {
    let mut child = spawn("exec sleep 30");
    assert!(child.try_wait().unwrap().is_none());
    child.signal(rustix::process::Signal::TERM);
    while child.try_wait().unwrap().is_none() {
        wait_any([&child], Duration::from_secs(60)).unwrap();
    }
    let first = child.wait().unwrap().clone();
    assert_eq!(first.status.signal(), Some(libc::SIGTERM));
    assert_eq!(child.try_wait().unwrap(), Some(&first));
    // Its number may be another's now: this must do nothing.
    child.signal(rustix::process::Signal::KILL);
}

#[test]
fn ending_all_ends_the_willing_the_deaf_and_the_stopped_with_their_children() {
    let folder = tempfile::tempdir().unwrap();
    let scripts = [
        "sleep 600 & echo $! > willing; touch willing.up; wait",
        "trap '' TERM; sleep 600 & echo $! > deaf; touch deaf.up; wait; wait; sleep 600",
        "echo $$ > stopped; touch stopped.up; kill -STOP $$; sleep 600",
    ];
    let mut children: Vec<Child> = scripts
        .iter()
        .map(|script| {
            let mut command = shell(script);
            command.current_dir(folder.path());
            Child::spawn(command, &accounting()).unwrap()
        })
        .collect();
    let up = |name: &str| folder.path().join(format!("{name}.up")).exists();
    wait_until("all children", || up("willing") && up("deaf") && up("stopped"));
    end_all(&mut children, Duration::from_secs(5)).unwrap();
    let signals: Vec<Option<i32>> =
        children.iter_mut().map(|child| child.wait().unwrap().status.signal()).collect();
    assert_eq!(signals, [libc::SIGTERM, libc::SIGKILL, libc::SIGTERM].map(Some));
    for name in ["willing", "deaf"] {
        let pid = std::fs::read_to_string(folder.path().join(name)).unwrap();
        let pid = pid.trim().parse().unwrap();
        wait_until("the end of the grandchild", || !runs(pid));
    }
}

#[test]
fn what_a_process_leaves_behind_and_what_is_dropped_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = shell("sleep 600 & echo $! > left");
    command.current_dir(folder.path());
    assert!(run(command).status.success());
    let left = std::fs::read_to_string(folder.path().join("left")).unwrap();
    let left = left.trim().parse().unwrap();
    wait_until("the end of what was left", || !runs(left));

    let dropped = spawn("exec sleep 600");
    let pid = dropped.id();
    assert!(runs(pid));
    drop(dropped);
    assert!(!runs(pid));
}

#[test]
fn a_process_dies_with_the_thread_that_started_it() {
    let child = std::thread::spawn(|| spawn("exec sleep 600")).join().unwrap();
    let mut child = child;
    assert_eq!(child.wait().unwrap().status.signal(), Some(libc::SIGKILL));
}

#[test]
fn waiting_for_devices_is_known_or_said_not_to_be() {
    let accounting = accounting();
    let source = accounting.io_wait_source();
    let usage = Child::spawn(shell("exec true"), &accounting).unwrap().wait().unwrap().usage;
    if source.starts_with("not known: ") {
        assert_eq!(usage.io_wait_seconds, None, "{source}");
    }
    assert!(usage.io_wait_seconds.is_none_or(|seconds| seconds <= usage.real_seconds), "{usage:?}");
}

#[test]
fn waiting_for_a_processor_is_known_without_delay_accounting() {
    if !std::path::Path::new("/proc/self/schedstat").exists() {
        return;
    }
    let processors = std::thread::available_parallelism().unwrap().get();
    // Twice as many busy loops as processors: each waits for one about half of its time.
    let busy = "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done";
    let children: Vec<Child> = (0..processors * 2).map(|_| spawn(busy)).collect();
    let waits: Vec<f64> = children
        .into_iter()
        .map(|mut child| child.wait().unwrap().usage.processor_wait_seconds.unwrap())
        .collect();
    assert!(waits.iter().sum::<f64>() > 0.0, "{waits:?}");
}
