//! `forebay umount`.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_fuse::mount::{By, WhenBusy, unmount};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::binds::{self, InTheWay};
use crate::control::{self, Ask};
use crate::home::Home;
use crate::mounts::{self, Mounted};

/// How often a mount that is in use is tried: a process that was killed, or is just being started by a user of
/// the mount, holds its files for a moment.
const TRIES_WHEN_BUSY: u32 = 20;
const PAUSE_WHEN_BUSY: Duration = Duration::from_millis(50);
/// After this time the command says what it waits for.
const TOLD_AFTER: Duration = Duration::from_secs(3);

/// Commit everything and unmount.
///
/// Fails, losing nothing, if some changes cannot be committed. Otherwise the command waits until the daemon has
/// exited, and fails if the file system is not clean then.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay umount /mnt/forebay
  forebay umount --lazy /mnt/forebay   even if it is in use: the daemon exits after the last user")]
pub struct Umount {
    /// Mount point of the file system.
    mountpoint: PathBuf,
    /// Detach it now, even if it is in use or cannot commit, and do not wait. Changes that cannot be committed later are
    /// lost; the log reports them.
    #[arg(long, short)]
    lazy: bool,
    /// How long to wait for the daemon to commit everything, and then for its exit.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,
}

impl Umount {
    pub fn run(self) -> Result<ExitCode> {
        let mount = mounts::at(&self.mountpoint)?;
        let when_busy = if self.lazy { WhenBusy::Detach } else { WhenBusy::Refuse };
        let daemon = Daemon::of(&mount.home);
        let when_busy = if daemon.is_some() { when_busy } else { WhenBusy::Detach };
        if let (Some(daemon), false) = (&daemon, self.lazy) {
            self.have_committed(daemon)?;
        }
        take_out(&mount, when_busy)?;
        match daemon {
            None => note!(
                "forebay: the daemon had already died; the next mount recovers {}",
                mount.home.display()
            ),
            Some(_) if self.lazy => {}
            Some(daemon) => self.wait(&daemon, &mount)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Has everything committed while that can still fail without loss.
    fn have_committed(&self, daemon: &Daemon) -> Result<()> {
        let limit = Duration::from_secs(self.timeout);
        let synced = control::ask_within(daemon.home.root(), &Ask::Sync, limit);
        synced.map(drop).with_context(|| {
            format!(
                "{} stays mounted because some changes cannot be committed; remove the cause and try again, \
                 or use --lazy and lose these changes",
                self.mountpoint.display()
            )
        })
    }

    /// Waits until the daemon has ended: only then has it let go of everything, and only then is it known
    /// what it has left.
    fn wait(&self, daemon: &Daemon, mount: &Mounted) -> Result<()> {
        let clock = SystemClock;
        let started = clock.instant();
        let mut told = false;
        while !daemon.has_ended()? {
            let waited = clock.instant() - started;
            if waited > Duration::from_secs(self.timeout) {
                bail!(
                    "unmounted, but the daemon is still running after {} s{}; see {}",
                    self.timeout,
                    elsewhere(mount).map_or(String::new(), |why| format!(": {why}")),
                    daemon.home.log_path().display()
                );
            }
            if waited > TOLD_AFTER && !told {
                match elsewhere(mount) {
                    None => note!("forebay: waiting for the daemon to commit everything"),
                    Some(why) => note!("forebay: waiting for the daemon to exit: {why}"),
                }
                told = true;
            }
        }
        if daemon.home.is_clean()? == Some(false) {
            bail!(
                "unmounted, but the daemon did not shut down cleanly: {} is not clean, and the next mount \
                 recovers it; see {}",
                daemon.home.root().display(),
                daemon.home.log_path().display()
            );
        }
        Ok(())
    }
}

/// Why a daemon goes on after its mount was taken out of the tree of this process.
fn elsewhere(mount: &Mounted) -> Option<String> {
    let processes = mounts::processes_with(&mount.device);
    (!processes.is_empty()).then(|| {
        format!(
            "the file system is still mounted in the mount namespace of {}; unmount {} there as well, or end the \
             processes of that namespace",
            processes.join(" and of "),
            mount.mountpoint.display()
        )
    })
}

/// Takes a mount out of the tree, its native filesets first. If it cannot be done, everything stays as it was.
fn take_out(mount: &Mounted, when_busy: WhenBusy) -> Result<()> {
    let busy = |place: &Path| {
        format!("{} is in use{}; end those processes, or use --lazy", place.display(), users(place))
    };
    // Detaching takes all that is mounted within along.
    let native = match when_busy {
        WhenBusy::Detach => None,
        WhenBusy::Refuse => {
            let unbound = binds::unbind_all(mount, &|place| unmount_soon(place, when_busy));
            Some(unbound.map_err(|found| match found {
                InTheWay::Busy(place) => anyhow!("{}", busy(&place)),
                InTheWay::Other(place) => anyhow!(
                    "{} is in use: something else is mounted at {}; unmount that first, or use --lazy",
                    mount.mountpoint.display(),
                    place.display()
                ),
                InTheWay::Failed(place, error) => {
                    anyhow::Error::new(error).context(format!("cannot unmount {}", place.display()))
                }
            })?)
        }
    };
    let Err(error) = unmount_soon(&mount.mountpoint, when_busy) else { return Ok(()) };
    if native.is_some_and(|unbound| unbound > 0) {
        binds::put_back(mount);
    }
    if is_busy(&error) {
        bail!("{}", busy(&mount.mountpoint));
    }
    Err(error).with_context(|| format!("cannot unmount {}", mount.mountpoint.display()))
}

fn is_busy(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::ResourceBusy
}

/// Unmounts; a user that is about to go is waited for.
fn unmount_soon(mountpoint: &Path, when_busy: WhenBusy) -> std::io::Result<()> {
    let mut tries = 0;
    loop {
        let unmounted = unmount(mountpoint, when_busy, By::this_process());
        tries += 1;
        if tries == TRIES_WHEN_BUSY || !unmounted.as_ref().is_err_and(is_busy) {
            return unmounted;
        }
        std::thread::sleep(PAUSE_WHEN_BUSY);
    }
}

/// The process behind a mount.
struct Daemon {
    home: Home,
    /// Stands for the very process, whatever becomes of its number.
    process: Option<OwnedFd>,
}

impl Daemon {
    /// The daemon of a home folder, if it lives.
    fn of(home: &Path) -> Option<Daemon> {
        let home = Home::at(home).ok()?;
        let pid = home.daemon_pid().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        // It holds the lock as long as it lives; a number without the lock belongs to somebody else.
        let lives = home.try_lock().is_ok_and(|lock| lock.is_none());
        lives.then_some(Daemon { home, process })
    }

    /// Whether it has ended; waits a little.
    fn has_ended(&self) -> Result<bool> {
        let Some(process) = &self.process else {
            std::thread::sleep(Duration::from_millis(5));
            return Ok(self.home.try_lock()?.is_some());
        };
        let mut events = [PollFd::new(process, PollFlags::IN)];
        let wait = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
        match poll(&mut events, Some(&wait)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Which processes use a mount: ` by cp (123), bash (45)`.
fn users(mountpoint: &Path) -> String {
    let mut found = Vec::new();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes {
        let path = process.path();
        let Some(pid) = path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok()) else {
            continue;
        };
        let mut links = vec![path.join("cwd"), path.join("root"), path.join("exe")];
        let files = std::fs::read_dir(path.join("fd")).into_iter().flatten().flatten();
        links.extend(files.map(|file| file.path()));
        let uses = |link: &PathBuf| {
            std::fs::read_link(link).is_ok_and(|target| target.starts_with(mountpoint))
        };
        if links.iter().any(uses) {
            let name = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
            found.push(format!("{} ({pid})", name.trim()));
        }
    }
    if found.is_empty() { String::new() } else { format!(" by {}", found.join(", ")) }
}
