//! Commands with a time limit and captured output.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::need::program;

/// Time to copy a binary on a machine that does much else.
const COPY_LIMIT: Duration = Duration::from_secs(60);

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    /// The command line, for messages.
    pub line: String,
    /// How the process ended.
    pub status: ExitStatus,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
}

impl Ended {
    /// The exit code; a signal counts as 128 plus its number.
    #[must_use]
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    /// The standard output of a command that must have succeeded.
    ///
    /// # Panics
    /// If the exit code is not 0.
    #[track_caller]
    #[must_use]
    pub fn output(self) -> String {
        self.expect_code(0).stdout
    }

    /// Checks that the command succeeded.
    ///
    /// # Panics
    /// If the exit code is not 0.
    #[track_caller]
    pub fn succeeds(self) {
        let _ = self.expect_code(0);
    }

    /// Checks that the command was refused, and returns what it said about it.
    ///
    /// # Panics
    /// If the exit code is 0, if a signal ended the command or if it said nothing.
    #[track_caller]
    #[must_use]
    pub fn refused(self) -> String {
        let code = self.status.code();
        assert!(code.is_some_and(|code| code != 0), "expected a refusal: {self:#?}");
        assert!(!self.stderr.trim().is_empty(), "a refusal without a reason: {self:#?}");
        assert!(!self.stderr.contains("panicked at"), "a panic is no refusal: {self:#?}");
        self.stderr
    }

    /// Checks the exit code.
    ///
    /// # Panics
    /// If it is another one.
    #[track_caller]
    #[must_use]
    pub fn expect_code(self, code: i32) -> Ended {
        assert_eq!(self.code(), code, "unexpected exit code of {self:#?}");
        self
    }
}

/// Copies a program to where it shall be run, and makes it runnable for everybody.
///
/// Another program does it: a file that this process writes stays open in the children that other threads of it have just forked,
/// and cannot be executed until they have executed something themselves (`ETXTBSY`, execve(2)).
///
/// # Panics
/// If it cannot be copied.
#[track_caller]
pub fn copy_program(from: &Path, to: &Path) {
    run(program("install").args(["-m", "755", "--"]).arg(from).arg(to), COPY_LIMIT).succeeds();
}

/// Runs a command with no standard input and waits for it. Its output goes to files, not pipes, so a
/// daemon that it leaves behind holds nothing up.
///
/// # Panics
/// If the command cannot be started, or does not end within `limit` (it is killed then).
#[track_caller]
pub fn run(command: &mut Command, limit: Duration) -> Ended {
    let line = format!("{command:?}");
    let (mut stdout, mut stderr) = (scratch_file(), scratch_file());
    let mut child = command
        .stdin(Stdio::null())
        .stdout(stdout.try_clone().expect("duplicates a file"))
        .stderr(stderr.try_clone().expect("duplicates a file"))
        .process_group(0)
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {line}: {error}"));
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    let status = loop {
        if let Some(status) = child.try_wait().expect("waits for a child") {
            break status;
        }
        if start.elapsed() > limit {
            let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            let _ = kill_process_group(group.expect("a child has a pid"), Signal::KILL);
            let _ = child.wait();
            panic!(
                "{line} did not end within {limit:?}\nstdout: {}\nstderr: {}",
                text_of(&mut stdout),
                text_of(&mut stderr)
            );
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    };
    Ended { line, status, stdout: text_of(&mut stdout), stderr: text_of(&mut stderr) }
}

fn scratch_file() -> File {
    tempfile::tempfile().expect("makes a temporary file")
}

fn text_of(file: &mut File) -> String {
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("reads a temporary file");
    String::from_utf8_lossy(&bytes).into_owned()
}
