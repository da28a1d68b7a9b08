//! The file system under test.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};
use serde::Deserialize;

use crate::external::run;
use crate::interrupt::process;

/// How long a daemon may take to end after it was told to.
const END_WAIT: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Through the kernel.
    Direct,
    /// Through the daemon.
    Served,
}

/// How requests reach the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Over /dev/fuse.
    Dev,
    /// Over io_uring.
    Uring,
}

/// A file system that can be mounted.
#[derive(Clone, Debug)]
pub struct Home {
    program: PathBuf,
    root: PathBuf,
}

/// What `forebay status --json` says about a mount, as far as it is used here.
#[derive(Clone, Debug, Deserialize)]
pub struct MountStatus {
    /// Process id of the daemon.
    pub pid: u32,
    /// Records that are not committed.
    pub uncommitted: u64,
    /// Whether the kernel reads and writes objects itself.
    pub passthrough: bool,
    /// Why not.
    pub passthrough_closed: Option<String>,
    /// Cached inodes.
    pub cached_inodes: u64,
    /// Memory reckoned for them.
    pub cache_bytes: u64,
}

#[derive(Deserialize)]
struct Status {
    mount: Option<MountStatus>,
}

/// A mounted file system. Dropped, it is unmounted and its daemon has ended.
#[derive(Debug)]
pub struct Mount {
    home: Home,
    mountpoint: PathBuf,
    /// Process id of the daemon.
    pub pid: u32,
    daemon: OwnedFd,
    mounted: bool,
}

impl Home {
    /// Makes a file system in `root` with `settings` (lines of `forebay.toml`).
    ///
    /// # Errors
    /// If the command refuses.
    pub fn make(program: &Path, root: PathBuf, settings: &[String]) -> Result<Home> {
        let shared = ["--work-placement".as_ref(), "direct".as_ref()];
        run(program, ["mkfs".as_ref(), root.as_os_str()].into_iter().chain(shared))?;
        let mut file = OpenOptions::new().append(true).open(root.join("forebay.toml"))?;
        for line in settings {
            writeln!(file, "{line}")?;
        }
        Ok(Home { program: program.to_owned(), root })
    }

    /// Creates a native fileset.
    ///
    /// # Errors
    /// If the command refuses.
    pub fn create_native_fileset(&self, name: &str) -> Result<()> {
        let create = ["fileset".as_ref(), "create".as_ref(), self.root.as_os_str(), name.as_ref()];
        run(&self.program, create.into_iter().chain(["--placement=native".as_ref()])).map(drop)
    }

    /// Mounts it at `mountpoint`, which is made if it does not exist.
    ///
    /// # Errors
    /// If the command refuses, or the way or the transport cannot be had.
    pub fn mount(&self, mountpoint: &Path, way: Way, transport: Transport) -> Result<Mount> {
        fs::create_dir_all(mountpoint)?;
        let mut arguments = vec!["mount".as_ref(), self.root.as_os_str(), mountpoint.as_os_str()];
        if way == Way::Served {
            arguments.push("--served".as_ref());
        }
        arguments.push(match transport {
            Transport::Dev => "--transport=dev".as_ref(),
            Transport::Uring => "--transport=uring".as_ref(),
        });
        run(&self.program, arguments)?;
        let found = self.status().and_then(|status| Ok((process(status.pid)?, status)));
        let (daemon, status) = match found {
            Ok(found) => found,
            Err(error) => {
                let _ = run(&self.program, ["umount".as_ref(), mountpoint.as_os_str()]);
                return Err(error);
            }
        };
        let mount = Mount {
            home: self.clone(),
            mountpoint: mountpoint.to_owned(),
            pid: status.pid,
            daemon,
            mounted: true,
        };
        if status.passthrough != (way == Way::Direct) {
            let why = status.passthrough_closed.unwrap_or_else(|| "it is open".to_owned());
            bail!("the mount is not {way:?}: {why}");
        }
        Ok(mount)
    }

    fn status(&self) -> Result<MountStatus> {
        let text =
            run(&self.program, ["status".as_ref(), self.root.as_os_str(), "--json".as_ref()])?;
        let status: Status = serde_json::from_str(&text).context("status --json")?;
        status.mount.context("the file system is not mounted")
    }
}

impl Mount {
    /// The directory of a fileset.
    #[must_use]
    pub fn fileset(&self, name: &str) -> PathBuf {
        self.mountpoint.join(name)
    }

    /// What the daemon says about itself.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn status(&self) -> Result<MountStatus> {
        self.home.status()
    }

    /// Unmounts and waits for the daemon to end.
    ///
    /// # Errors
    /// If the command fails; what is left over goes when the value is dropped.
    pub fn unmount(mut self) -> Result<()> {
        run(&self.home.program, ["umount".as_ref(), self.mountpoint.as_os_str()])?;
        self.wait_for_daemon()?;
        self.mounted = false;
        Ok(())
    }

    fn wait_for_daemon(&self) -> Result<()> {
        let mut ended = [PollFd::new(&self.daemon, PollFlags::IN)];
        if poll(&mut ended, Some(&END_WAIT))? == 0 {
            bail!("the daemon {} does not end", self.pid);
        }
        Ok(())
    }

    fn take_down(&self) {
        let umount = ["umount".as_ref(), self.mountpoint.as_os_str()];
        if run(&self.home.program, umount).is_err() {
            // Somebody still uses it: the daemon detaches it at a signal and ends with the last user.
            let _ = pidfd_send_signal(&self.daemon, Signal::TERM);
        }
        if let Err(error) = self.wait_for_daemon() {
            eprintln!("forebay-bench: {error}: killed");
            let _ = pidfd_send_signal(&self.daemon, Signal::KILL);
            std::thread::sleep(Duration::from_millis(200));
            let _ = rustix::mount::unmount(&self.mountpoint, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted {
            self.take_down();
        }
    }
}
