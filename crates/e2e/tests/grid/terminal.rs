//! `forebay run` at a terminal.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use forebay_e2e::need::forebay;
use forebay_e2e::wait_until;
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::{Fixture, LIMIT};

/// A terminal at which a user runs a command; what appears on it is kept.
pub(crate) struct Desk {
    keys: File,
    /// The terminal itself, to look at its settings.
    terminal: OwnedFd,
    screen: Arc<Mutex<String>>,
    client: Child,
}

impl Desk {
    fn sit(grid: &Fixture, options: &[&str], command: &[&str]) -> Desk {
        let mut run = Command::new(forebay());
        run.arg("run").args(options).arg("--").args(command);
        Desk::start(grid, run)
    }

    /// Starts a client at a new terminal.
    pub(crate) fn start(grid: &Fixture, mut run: Command) -> Desk {
        let (mut ours, mut theirs) = (0, 0);
        let null = std::ptr::null_mut();
        // SAFETY: both numbers live; no name, settings or size are wanted.
        let made = unsafe {
            libc::openpty(&raw mut ours, &raw mut theirs, null, null.cast(), null.cast())
        };
        assert_eq!(made, 0, "makes a terminal");
        // SAFETY: the descriptors are new.
        let (keys, terminal) = unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
        for descriptor in [ours, theirs] {
            // SAFETY: it is open.
            unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
        let desk = size(33, 101);
        tcsetwinsize(&terminal, desk).unwrap();
        let stream = || Stdio::from(terminal.try_clone().unwrap());
        run.env("FOREBAY_GRID", &grid.root).env("TERM", "xterm").current_dir(&grid.jobs);
        run.stdin(stream()).stdout(stream()).stderr(stream());
        // SAFETY: system calls only.
        unsafe {
            run.pre_exec(|| {
                rustix::process::setsid()?;
                match libc::ioctl(0, libc::TIOCSCTTY, 0) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        let client = run.spawn().unwrap();
        let screen = Arc::new(Mutex::new(String::new()));
        let (seen, mut from) = (Arc::clone(&screen), keys.try_clone().unwrap());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                seen.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        Desk { keys, terminal, screen, client }
    }

    fn screen(&self) -> String {
        self.screen.lock().unwrap().clone()
    }

    /// Waits for a text, and clears the screen behind it.
    #[track_caller]
    pub(crate) fn see(&self, text: &str) {
        wait_until(&format!("{text:?} appears; there is {:?}", self.screen()), LIMIT, || {
            let mut screen = self.screen.lock().unwrap();
            let found = screen.find(text);
            if let Some(at) = found {
                *screen = screen.split_off(at + text.len());
            }
            found.is_some()
        });
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.terminal).unwrap().local_modes.contains(LocalModes::ICANON)
    }

    fn signal(&self, signal: i32) {
        // SAFETY: the client is not waited for yet, so the number is its own.
        unsafe { libc::kill(i32::try_from(self.client.id()).unwrap(), signal) };
    }

    /// The exit code; afterwards the terminal has to be as it was.
    #[track_caller]
    pub(crate) fn leave(mut self) -> i32 {
        let mut status = None;
        wait_until("the client ends", LIMIT, || {
            status = self.client.try_wait().unwrap();
            status.is_some()
        });
        assert!(!self.is_raw(), "the terminal is left in raw mode");
        let status = status.unwrap();
        status.code().unwrap_or_else(|| 1000 + status.signal().unwrap())
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = self.client.kill();
        let _ = self.client.wait();
    }
}

fn size(rows: u16, columns: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

#[test]
fn a_job_at_a_terminal_has_one_of_its_own_that_follows_its_size() {
    let grid = Fixture::start();
    // Shells that wait: dash loses a signal that comes while it starts a program.
    let script = "tty; stty size; trap 'stty size; exit 3' WINCH; sleep 605 & echo ready; wait";
    let desk = Desk::sit(&grid, &[], &["sh", "-c", script]);
    desk.see("/dev/pts/");
    desk.see("33 101");
    desk.see("ready");
    assert!(desk.is_raw());
    tcsetwinsize(&desk.terminal, size(44, 55)).unwrap();
    desk.see("44 55");
    assert_eq!(desk.leave(), 3);
    assert_eq!(grid.state("1"), "exited");
    assert_eq!(grid.attempts("1"), 1);
    wait_until("the work area is gone", LIMIT, || grid.is_without_work());
}

#[test]
fn keys_reach_the_program_and_the_terminal_has_the_modes_of_the_users() {
    let grid = Fixture::start();
    let mut desk = Desk::sit(&grid, &[], &["sh", "-c", "stty -a; read line; echo got:$line"]);
    desk.see("isig icanon");
    desk.press("a word\x7f\n");
    desk.see("got:a wor");
    assert_eq!(desk.leave(), 0);
}

#[test]
fn control_c_is_for_the_program_alone() {
    let grid = Fixture::start();
    let script = "trap 'echo caught; exit 7' INT; sleep 605 & echo ready; wait";
    let mut desk = Desk::sit(&grid, &[], &["sh", "-c", script]);
    desk.see("ready");
    desk.press("\x03");
    desk.see("caught");
    assert_eq!(desk.leave(), 7);
    let mut desk = Desk::sit(&grid, &[], &["sh", "-c", "echo ready; exec sleep 600"]);
    desk.see("ready");
    desk.press("\x03");
    assert_eq!(desk.leave(), 130);
}

#[test]
fn a_shell_in_a_job_has_job_control() {
    let grid = Fixture::start();
    let mut desk = Desk::sit(&grid, &[], &["bash", "--norc", "-i"]);
    desk.press("PS1='ready''> '\n");
    desk.see("ready> ");
    // No other test has one of so many seconds.
    desk.press("sleep 606\n");
    desk.see("sleep 606\r\n");
    wait_until("sleep runs in the foreground", LIMIT, || {
        grid.processes("sleep 606").iter().any(|stat| stat.contains('+'))
    });
    desk.press("\x1a");
    desk.see("Stopped");
    desk.press("kill %1; jobs -l; fg\n");
    desk.see("ready> ");
    desk.press("exit 5\n");
    assert_eq!(desk.leave(), 5);
}

#[test]
fn what_a_shell_leaves_behind_ends_with_it() {
    let grid = Fixture::start();
    let mut desk = Desk::sit(&grid, &[], &["bash", "--norc", "-i"]);
    desk.press("nohup sleep 601 >/dev/null 2>&1 &\n");
    desk.press("disown; echo le''ft; exit\n");
    desk.see("left");
    assert_eq!(desk.leave(), 0);
    wait_until("nothing is left", LIMIT, || grid.processes("sleep 601").is_empty());
}

#[test]
fn a_killed_job_tells_its_client_and_the_terminal_is_as_it_was() {
    let grid = Fixture::start();
    let mut desk = Desk::sit(&grid, &[], &["bash", "--norc", "-i"]);
    desk.press("PS1='ready''> '\n");
    desk.see("ready> ");
    grid.forebay(&["kill", "1"], &[]).succeeds();
    desk.see("job 1 was killed");
    let code = desk.leave();
    assert!(code > 128, "{code}");
    assert_eq!(grid.state("1"), "killed");
}

#[test]
fn a_job_that_reaches_its_time_limit_says_so() {
    let grid = Fixture::start();
    let desk = Desk::sit(&grid, &["--time-limit", "1 s"], &["sleep", "600"]);
    desk.see("job 1 reached its time limit");
    assert_eq!(desk.leave(), 124);
}

#[test]
fn signals_that_end_the_client_leave_the_terminal_as_it_was_and_end_the_job() {
    let grid = Fixture::start();
    for (number, signal) in [(1, libc::SIGTERM), (2, libc::SIGHUP), (3, libc::SIGQUIT)] {
        let desk = Desk::sit(&grid, &[], &["sh", "-c", "echo ready; exec sleep 602"]);
        desk.see("ready");
        assert!(desk.is_raw());
        desk.signal(signal);
        assert_eq!(desk.leave(), 128 + signal);
        grid.wait_for(&number.to_string(), "exited");
    }
    assert!(grid.processes("sleep 602").is_empty());
}

#[test]
fn a_client_that_is_killed_takes_its_job_along() {
    let grid = Fixture::start();
    let script = "trap 'echo hung >hangup; exit 1' HUP; sleep 605 & echo ready; wait";
    let desk = Desk::sit(&grid, &[], &["sh", "-c", script]);
    desk.see("ready");
    desk.signal(libc::SIGKILL);
    grid.wait_for("1", "exited");
    assert_eq!(grid.lines("hangup"), ["hung"]);
    // What does not end by SIGHUP is ended by force.
    let desk = Desk::sit(&grid, &[], &["sh", "-c", "trap '' HUP; echo ready; exec sleep 603"]);
    desk.see("ready");
    desk.signal(libc::SIGKILL);
    grid.wait_for("2", "exited");
    assert!(grid.processes("sleep 603").is_empty());
}

#[test]
fn an_interactive_job_outlives_its_agent() {
    let mut grid = Fixture::start();
    let mut desk =
        Desk::sit(&grid, &[], &["sh", "-c", "echo ready; read line; echo $line; exit 4"]);
    desk.see("ready");
    grid.kill_daemon(1);
    desk.press("after\n");
    desk.see("after\r\nafter");
    assert_eq!(desk.leave(), 4);
    grid.start_agent();
    grid.wait_for("1", "exited");
    assert_eq!(grid.attempts("1"), 1);
}

#[test]
fn a_client_that_loses_the_shim_of_its_job_says_what_became_of_it() {
    let grid = Fixture::start();
    let desk = Desk::sit(&grid, &[], &["sh", "-c", "echo ready; sleep 604 & exec sleep 604"]);
    desk.see("ready");
    grid.signal_shims(libc::SIGKILL);
    // How it would have ended nobody can say.
    desk.see("job 1 was lost");
    assert_eq!(desk.leave(), 125);
    grid.wait_for("1", "host_lost");
    wait_until("nothing is left", LIMIT, || grid.processes("sleep 604").is_empty());
}

#[test]
fn waiting_for_a_slot_is_explained_and_control_c_takes_the_job_back() {
    let grid = Fixture::start();
    let long = grid.submit(&["-n", "4"], "sleep 600");
    grid.wait_for(&long, "running");
    let mut desk = Desk::sit(&grid, &[], &["echo", "never"]);
    desk.see("forebay: job 2 waits: ");
    desk.see("h1");
    desk.press("\x03");
    desk.see("job 2 is cancelled");
    assert_eq!(desk.leave(), 130);
    assert_eq!(grid.state("2"), "killed");
    // The next one starts as soon as there is room.
    let desk = Desk::sit(&grid, &[], &["echo", "at last"]);
    desk.see("job 3 waits");
    grid.forebay(&["kill", &long], &[]).succeeds();
    desk.see("at last");
    assert_eq!(desk.leave(), 0);
}
