//! One file system with its mount, as a fixture.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tempfile::TempDir;

use crate::actor::User;
use crate::command::{Ended, copy_program, run};
use crate::need;

/// Longest time for one command.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);
/// Longest time in which a killed daemon must be gone.
const END_LIMIT: Duration = Duration::from_secs(120);
/// File system type of tmpfs, from `linux/magic.h`.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// How the bytes of the files travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The kernel reads and writes the objects itself (FUSE passthrough).
    Direct,
    /// The daemon reads and writes the objects.
    Served,
}

/// How the requests of the kernel reach the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Over /dev/fuse.
    Dev,
    /// Over io_uring.
    Uring,
}

/// How a native fileset is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Native {
    /// Its directory itself is bound in place.
    Bound,
    /// The daemon serves it, and moves all bytes.
    Served,
    /// The daemon serves it, and the kernel reads and writes its files itself.
    Passthrough,
}

/// Every way to a native fileset.
pub const EVERY_NATIVE_WAY: [Native; 3] = [Native::Bound, Native::Served, Native::Passthrough];

/// Every data path over every transport.
pub const EVERY_WAY: [(Placement, Transport); 4] = [
    (Placement::Direct, Transport::Uring),
    (Placement::Served, Transport::Dev),
    (Placement::Served, Transport::Uring),
    (Placement::Direct, Transport::Dev),
];

/// A file system in a folder of its own, and its mount point.
///
/// When dropped, it is unmounted, checked and removed.
#[derive(Debug)]
pub struct Mounted {
    /// Holds the mount point, and ROOT if it has no other place.
    scratch: TempDir,
    root: PathBuf,
    placement: Placement,
    /// What `forebay mount` is told, if it is.
    transport: Option<Transport>,
    /// How the filesets work and util are reached, if they are native.
    native: Option<Native>,
    user: Option<User>,
    allowed_log_lines: Mutex<Vec<String>>,
}

/// A running daemon. The descriptor makes sure that no other process is meant.
#[derive(Debug)]
pub struct Daemon {
    pidfd: OwnedFd,
}

impl Mounted {
    /// Makes a file system and mounts it.
    #[track_caller]
    #[must_use]
    pub fn start(placement: Placement) -> Mounted {
        let grid = Mounted::make(placement);
        grid.mount();
        grid
    }

    /// Makes a file system and mounts it with a transport, without which the test fails.
    #[track_caller]
    #[must_use]
    pub fn start_over(placement: Placement, transport: Transport) -> Mounted {
        let grid = Mounted::make_over(placement, transport);
        grid.mount();
        grid
    }

    /// Makes a file system whose filesets `work` and `util` are native, and mounts it. Its [`Mounted::data`] is `work`.
    #[track_caller]
    #[must_use]
    pub fn start_native(native: Native) -> Mounted {
        let grid = Mounted::make_native(native);
        grid.mount();
        grid
    }

    /// As [`Mounted::start_native`], without mounting it.
    #[track_caller]
    #[must_use]
    pub fn make_native(native: Native) -> Mounted {
        Mounted::make_native_in(native, None)
    }

    /// As [`Mounted::make_native`], with ROOT in a folder of the test's.
    #[track_caller]
    #[must_use]
    pub fn make_native_in(native: Native, folder: Option<&Path>) -> Mounted {
        let placement = match native {
            Native::Bound | Native::Passthrough => Placement::Direct,
            Native::Served => Placement::Served,
        };
        let mut grid = Mounted::plan(placement, folder, None);
        grid.native = Some(native);
        grid.mkfs();
        grid
    }

    /// Makes a file system that will be mounted with a transport.
    #[track_caller]
    #[must_use]
    pub fn make_over(placement: Placement, transport: Transport) -> Mounted {
        let mut grid = Mounted::plan(placement, None, None);
        grid.transport = Some(transport);
        grid.mkfs();
        grid
    }

    /// Makes a file system, without mounting it.
    #[track_caller]
    #[must_use]
    pub fn make(placement: Placement) -> Mounted {
        let grid = Mounted::plan(placement, None, None);
        grid.mkfs();
        grid
    }

    /// Makes a file system with lines of settings, and mounts it.
    #[track_caller]
    #[must_use]
    pub fn start_with(placement: Placement, settings: &str) -> Mounted {
        let grid = Mounted::make(placement);
        grid.add_settings(settings);
        grid.mount();
        grid
    }

    /// Puts lines at the end of the settings file; they take effect at the next mount. Returns the
    /// number of the first of them.
    #[track_caller]
    pub fn add_settings(&self, lines: &str) -> usize {
        let path = self.root.join("forebay.toml");
        let before = fs::read_to_string(&path).expect("reads the settings");
        fs::write(&path, format!("{before}{lines}\n")).expect("writes the settings");
        before.lines().count() + 1
    }

    /// Makes a file system whose ROOT is the folder `root` in `folder`.
    #[track_caller]
    #[must_use]
    pub fn make_in(folder: &Path, placement: Placement) -> Mounted {
        let grid = Mounted::plan(placement, Some(folder), None);
        grid.mkfs();
        grid
    }

    /// Prepares ROOT and mount point of a file system that belongs to an ordinary user.
    #[track_caller]
    #[must_use]
    pub fn plan_for(user: &User) -> Mounted {
        Mounted::plan(Placement::Served, None, Some(user.clone()))
    }

    /// Prepares ROOT and mount point, without making the file system.
    #[track_caller]
    #[must_use]
    pub fn plan(placement: Placement, folder: Option<&Path>, user: Option<User>) -> Mounted {
        need::root();
        need::fuse();
        let scratch = scratch_folder();
        let root = folder.unwrap_or(scratch.path()).join("root");
        fs::create_dir(&root).expect("makes ROOT");
        let grid = Mounted {
            scratch,
            root,
            placement,
            transport: None,
            native: None,
            user,
            allowed_log_lines: Mutex::default(),
        };
        fs::create_dir(grid.mountpoint()).expect("makes the mount point");
        if let Some(user) = &grid.user {
            for folder in [grid.scratch.path(), grid.root(), &grid.mountpoint()] {
                std::os::unix::fs::chown(folder, Some(user.uid), Some(user.groups[0]))
                    .expect("gives the folder to the user");
            }
            copy_program(&need::forebay(), &grid.scratch.path().join("forebay"));
        }
        grid
    }

    /// The folder ROOT.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder in which the file system is mounted.
    #[must_use]
    pub fn mountpoint(&self) -> PathBuf {
        self.scratch.path().join("mnt")
    }

    /// A folder of the test's own outside the mount, for records of what must be true.
    #[must_use]
    pub fn outside(&self) -> &Path {
        self.scratch.path()
    }

    /// The folder of the fileset `data`; where `work` is native, that is the one to look at.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.mountpoint().join(if self.native.is_some() { "work" } else { "data" })
    }

    /// How native filesets are reached, if there are any.
    #[must_use]
    pub fn native(&self) -> Option<Native> {
        self.native
    }

    /// The folder of the fileset `work`.
    #[must_use]
    pub fn work(&self) -> PathBuf {
        self.mountpoint().join("work")
    }

    /// How the bytes of the files travel.
    #[must_use]
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// How requests arrive, if the test has said it.
    #[must_use]
    pub fn transport(&self) -> Option<Transport> {
        self.transport
    }

    /// Lists a text: WARN and ERROR lines of the log that contain it are expected.
    pub fn expect_log(&self, text: &str) {
        self.allowed_log_lines.lock().expect("no panic under the lock").push(text.to_owned());
    }

    /// A command line of the `forebay` binary.
    #[must_use]
    pub fn forebay<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = match &self.user {
            None => Command::new(need::forebay()),
            Some(user) => {
                let mut command = need::program("setpriv");
                command
                    .arg(format!("--reuid={}", user.uid))
                    .arg(format!("--regid={}", user.groups[0]))
                    .arg("--clear-groups")
                    .arg(self.scratch.path().join("forebay"));
                command
            }
        };
        command.current_dir(self.scratch.path()).args(arguments);
        command
    }

    /// Runs the `forebay` binary.
    #[track_caller]
    pub fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Ended {
        run(&mut self.forebay(arguments), COMMAND_LIMIT)
    }

    /// Runs `forebay VERB ROOT ARGUMENTS...`.
    #[track_caller]
    pub fn run_on_root(&self, verb: &[&str], arguments: &[&str]) -> Ended {
        let mut command = self.forebay(verb);
        run(command.arg(&self.root).args(arguments), COMMAND_LIMIT)
    }

    /// `forebay mkfs ROOT`, with all filesets shared unless the test is about native ones.
    #[track_caller]
    pub fn mkfs(&self) {
        let work = if self.native.is_some() { "native" } else { "direct" };
        self.run_on_root(&["mkfs"], &["--work-placement", work]).succeeds();
    }

    /// The command line of `forebay mount ROOT MOUNTPOINT` for this placement.
    #[must_use]
    pub fn mount_command(&self) -> Command {
        let mut command = self.forebay(&["mount"]);
        // An ordinary user has the served path without asking for it.
        if self.placement == Placement::Served && self.user.is_none() {
            command.arg("--served");
        }
        match self.transport {
            None => {}
            Some(Transport::Dev) => drop(command.arg("--transport=dev")),
            Some(Transport::Uring) => drop(command.arg("--transport=uring")),
        }
        command.arg(&self.root).arg(self.mountpoint());
        command
    }

    /// Mounts the file system.
    #[track_caller]
    pub fn mount(&self) {
        run(&mut self.mount_command(), COMMAND_LIMIT).succeeds();
        if self.native == Some(Native::Passthrough) {
            // As in a mount namespace that does not have the bind mounts.
            for fileset in ["work", "util"] {
                let place = self.mountpoint().join(fileset);
                run(need::program("umount").arg(place), COMMAND_LIMIT).succeeds();
            }
        }
    }

    /// Mounts the file system with a daemon that aborts at a named fail point after `passes` passes.
    #[track_caller]
    pub fn mount_to_fail(&self, point: &str, passes: u64) -> Ended {
        let mut command = self.mount_command();
        run(command.env("FOREBAY_FAIL_POINT", format!("{point}:{passes}")), END_LIMIT)
    }

    /// Unmounts the file system.
    #[track_caller]
    pub fn umount(&self) {
        let mut command = self.forebay(&["umount"]);
        run(command.arg(self.mountpoint()), COMMAND_LIMIT).succeeds();
        assert!(!is_mounted(&self.mountpoint()), "still mounted after umount");
    }

    /// Unmounts and mounts again.
    #[track_caller]
    pub fn remount(&self) {
        self.umount();
        self.mount();
    }

    /// The daemon, if it runs.
    #[must_use]
    pub fn daemon(&self) -> Option<Daemon> {
        let pid: i32 =
            fs::read_to_string(self.root.join("forebay.pid")).ok()?.trim().parse().ok()?;
        let pidfd = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        // With the descriptor held, the command line is that of the process meant, or of none.
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let root = self.root.as_os_str().as_encoded_bytes();
        line.windows(root.len()).any(|part| part == root).then_some(Daemon { pidfd })
    }

    /// Ends the daemon as a loss of power would, and removes its dead mount.
    #[track_caller]
    pub fn kill(&self) {
        self.daemon().expect("the daemon runs").kill();
        self.detach();
    }

    /// Removes a mount whatever uses it, and waits until its daemon, if it has one, has ended.
    ///
    /// # Panics
    /// If the daemon does not end in time.
    #[track_caller]
    pub fn detach(&self) {
        let daemon = self.daemon();
        while is_mounted(&self.mountpoint()) {
            run(need::program("umount").arg("-l").arg(self.mountpoint()), COMMAND_LIMIT).succeeds();
        }
        if let Some(daemon) = daemon {
            assert!(
                daemon.ends_within(END_LIMIT),
                "the daemon outlives its mount by {END_LIMIT:?}"
            );
        }
    }

    /// Checks that `forebay fsck` finds an unmounted file system clean.
    #[track_caller]
    pub fn is_clean(&self) {
        let _ = self.run_on_root(&["fsck"], &[]).expect_code(0);
    }

    /// Lines of the log at WARN and ERROR that the test has not listed.
    #[must_use]
    pub fn unexpected_log_lines(&self) -> Vec<String> {
        let allowed = self.allowed_log_lines.lock().expect("no panic under the lock");
        self.log()
            .lines()
            .filter(|line| line.split_whitespace().any(|word| word == "WARN" || word == "ERROR"))
            .filter(|line| !allowed.iter().any(|text| line.contains(text.as_str())))
            .map(str::to_owned)
            .collect()
    }

    /// The log of the daemon.
    #[must_use]
    pub fn log(&self) -> String {
        let bytes = fs::read(self.root.join("forebay.log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Unmounts by all means, in the order of force.
    fn clear(&self) {
        if is_mounted(&self.mountpoint()) {
            let mut command = self.forebay(&["umount"]);
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                run(command.arg(self.mountpoint()), END_LIMIT)
            }));
        }
        self.abort_connection();
        if let Some(daemon) = self.daemon() {
            daemon.kill();
        }
        self.detach();
    }

    /// Ends the kernel's connection to the daemon, if there is one, as a stuck mount is ended. A daemon that waits for an answer
    /// to its own request cannot be killed before.
    pub fn abort_connection(&self) {
        let Some(minor) = device_minor(&self.mountpoint()) else { return };
        let control = self.scratch.path().join("fusectl");
        let _ = fs::create_dir(&control);
        let mounted = run(
            need::program("mount").args(["-t", "fusectl", "none"]).arg(&control),
            COMMAND_LIMIT,
        );
        if mounted.code() == 0 {
            let _ = fs::write(control.join(minor).join("abort"), "1");
            let _ = run(need::program("umount").arg(&control), COMMAND_LIMIT);
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let start = log.lines().count().saturating_sub(20);
            for line in log.lines().skip(start) {
                eprintln!("forebay.log: {line}");
            }
            self.clear();
            remove_folder(&self.root);
            return;
        }
        let checks = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            if is_mounted(&self.mountpoint()) {
                self.umount();
            }
            if self.root.join("forebay.toml").exists() {
                self.is_clean();
            }
            let lines = self.unexpected_log_lines();
            assert!(lines.is_empty(), "unexpected lines in the log: {lines:#?}");
        }));
        self.clear();
        remove_folder(&self.root);
        if let Err(panic) = checks {
            std::panic::resume_unwind(panic);
        }
    }
}

impl Daemon {
    /// Sends a signal.
    ///
    /// # Panics
    /// If the process has ended.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        pidfd_send_signal(&self.pidfd, signal).expect("sends a signal");
    }

    /// Whether the process ends within `limit`.
    #[must_use]
    pub fn ends_within(&self, limit: Duration) -> bool {
        let limit = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        let mut wait = [PollFd::new(&self.pidfd, PollFlags::IN)];
        poll(&mut wait, Some(&limit)).is_ok_and(|ready| ready == 1)
    }

    /// Sends SIGKILL and waits until the process is gone.
    ///
    /// # Panics
    /// If it does not end in time.
    #[track_caller]
    pub fn kill(&self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        assert!(self.ends_within(END_LIMIT), "the daemon survives SIGKILL for {END_LIMIT:?}");
    }
}

/// A new folder for one fixture, which every user can enter.
///
/// # Panics
/// If the folder would lie in memory: the tests are about real disks.
#[track_caller]
#[must_use]
pub fn scratch_folder() -> TempDir {
    let base = std::env::var_os("FOREBAY_E2E_DIR").map_or("/var/tmp".into(), PathBuf::from);
    scratch_folder_in(&base)
}

/// As [`scratch_folder`], in another folder than that of all tests.
///
/// # Panics
/// If the folder would lie in memory.
#[track_caller]
#[must_use]
pub fn scratch_folder_in(base: &Path) -> TempDir {
    let kind = rustix::fs::statfs(base).expect("asks for the file system of the tests").f_type;
    assert!(
        kind != TMPFS_MAGIC,
        "{} lies in memory: set FOREBAY_E2E_DIR to a folder on a disk",
        base.display()
    );
    // Short, because the paths of sockets that tests make below it have 107 bytes at most.
    let folder = tempfile::Builder::new().prefix("forebay.").tempdir_in(base);
    let folder = folder.expect("makes a folder for the test");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))
        .expect("opens the folder");
    folder
}

/// Whether something is mounted at `path`; asks the kernel's table, so that a dead mount is no trouble.
#[must_use]
pub fn is_mounted(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("reads the table of mounts");
    table.lines().any(|line| line.split(' ').nth(4).is_some_and(|place| Path::new(place) == path))
}

/// Minor device number of the mount at `path`, by which the kernel names a FUSE connection.
fn device_minor(path: &Path) -> Option<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("reads the table of mounts");
    let line = table.lines().find(|line| {
        line.split(' ').nth(4).is_some_and(|place| Path::new(place) == path)
            && line.contains(" - fuse.")
    })?;
    let (_, minor) = line.split(' ').nth(2)?.split_once(':')?;
    Some(minor.to_owned())
}

/// Removes ROOT if it lies outside the fixture's own folder, which removes itself.
fn remove_folder(folder: &Path) {
    let _ = fs::remove_dir_all(folder);
}
