//! Others that use a mount beside the test itself: other users and other processes.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::need;

/// Time that another process has for one step.
const STEP_LIMIT: Duration = Duration::from_secs(20);

/// A user and its groups; the first group is the effective one.
#[derive(Clone, Debug)]
pub struct User {
    /// Number of the user.
    pub uid: u32,
    /// Numbers of its groups.
    pub groups: Vec<u32>,
}

impl User {
    /// The user with number `uid` and `groups`, which need no names on the machine.
    #[must_use]
    pub fn new(uid: u32, groups: &[u32]) -> User {
        User { uid, groups: groups.to_vec() }
    }
}

/// Runs `act` as another user, in a thread of its own: on Linux identity belongs to the thread.
///
/// # Panics
/// If the test does not run as root, or if `act` panics.
pub fn as_user<T: Send>(user: &User, act: impl FnOnce() -> T + Send) -> T {
    need::root();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let groups: Vec<Gid> = user.groups.iter().map(|&gid| Gid::from_raw(gid)).collect();
            let uid = Uid::from_raw(user.uid);
            set_thread_groups(&groups).expect("sets the groups");
            set_thread_res_gid(groups[0], groups[0], groups[0]).expect("sets the group");
            set_thread_res_uid(uid, uid, uid).expect("sets the user");
            act()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Another process that runs a Python program step by step: it says `print(...)` lines, and waits for
/// lines with `input()`. Killed when dropped.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Peer {
    /// Starts `program` with `arguments` in `sys.argv[1:]`.
    ///
    /// # Panics
    /// If Python is missing.
    #[track_caller]
    #[must_use]
    pub fn start(program: &str, arguments: &[&str]) -> Peer {
        let mut child = need::program("python3")
            .args(["-u", "-c", program])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts python3");
        let input = child.stdin.take().expect("has a pipe");
        let output = BufReader::new(child.stdout.take().expect("has a pipe"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Peer { child, input, lines }
    }

    /// Lets the other process go on from its `input()`, which returns `line`.
    ///
    /// # Panics
    /// If the process has ended.
    #[track_caller]
    pub fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("the other process listens");
    }

    /// The next line that the other process prints.
    ///
    /// # Panics
    /// If it prints none in time.
    #[track_caller]
    #[must_use]
    pub fn hear(&mut self) -> String {
        self.hear_within(STEP_LIMIT)
    }

    /// The next line that the other process prints within `limit`.
    ///
    /// # Panics
    /// If it prints none in time.
    #[track_caller]
    #[must_use]
    pub fn hear_within(&mut self, limit: Duration) -> String {
        self.lines
            .recv_timeout(limit)
            .unwrap_or_else(|error| panic!("the other process says nothing: {error}"))
    }

    /// Checks the next line that the other process prints.
    ///
    /// # Panics
    /// If it is another one, or none in time.
    #[track_caller]
    pub fn expect(&mut self, line: &str) {
        assert_eq!(self.hear(), line);
    }

    /// All lines that are still to come from a process that ends by itself.
    ///
    /// # Panics
    /// If it does not end in time.
    #[track_caller]
    #[must_use]
    pub fn rest_of_lines(&mut self) -> Vec<String> {
        let start = Instant::now();
        let mut lines = Vec::new();
        loop {
            match self.lines.recv_timeout(STEP_LIMIT.saturating_sub(start.elapsed())) {
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Disconnected) => return lines,
                Err(RecvTimeoutError::Timeout) => panic!("the other process does not end"),
            }
            assert!(start.elapsed() < STEP_LIMIT, "the other process goes on and on");
        }
    }

    /// The signal that ends the other process, if one does in time.
    ///
    /// # Panics
    /// If it does not end in time.
    #[track_caller]
    pub fn end_signal(&mut self) -> Option<i32> {
        let mut status = None;
        crate::wait_until("the other process ends", STEP_LIMIT, || {
            status = self.child.try_wait().expect("waits for a child");
            status.is_some()
        });
        status.and_then(|status| status.signal())
    }

    /// Whether the other process has printed nothing for `time`.
    #[must_use]
    pub fn is_silent_for(&mut self, time: Duration) -> bool {
        self.lines.recv_timeout(time).is_err()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
