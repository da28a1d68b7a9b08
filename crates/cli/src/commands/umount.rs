//! `forebay umount`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_fuse::mount::{By, WhenBusy, unmount};

use crate::home::Home;
use crate::mounts;

/// Commit everything and unmount.
///
/// Returns when the daemon has ended and the file system is clean.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay umount /grid
  forebay umount --lazy /grid      also if it is in use: it ends when the last user is gone")]
pub struct Umount {
    /// Where the file system is mounted.
    mountpoint: PathBuf,
    /// Take it out of the tree now, also if it is in use; do not wait.
    #[arg(long, short)]
    lazy: bool,
    /// How long to wait for the daemon to end, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,
}

impl Umount {
    pub fn run(self) -> Result<ExitCode> {
        let mount = mounts::at(&self.mountpoint)?;
        let when_busy = if self.lazy { WhenBusy::Detach } else { WhenBusy::Refuse };
        let daemon_lives = Home::at(&mount.home)
            .is_ok_and(|home| home.try_lock().is_ok_and(|lock| lock.is_none()));
        let when_busy = if daemon_lives { when_busy } else { WhenBusy::Detach };
        if let Err(error) = unmount(&mount.mountpoint, when_busy, By::this_process()) {
            if error.kind() == std::io::ErrorKind::ResourceBusy {
                bail!(
                    "{} is in use{}; end them, or use --lazy",
                    mount.mountpoint.display(),
                    users(&mount.mountpoint)
                );
            }
            return Err(error)
                .with_context(|| format!("cannot unmount {}", mount.mountpoint.display()));
        }
        if !daemon_lives {
            eprintln!(
                "forebay: the daemon had died; the next mount recovers {}",
                mount.home.display()
            );
            return Ok(ExitCode::SUCCESS);
        }
        if !self.lazy {
            self.wait(&Home::at(&mount.home)?)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Waits until the daemon has let go of the file system.
    fn wait(&self, home: &Home) -> Result<()> {
        let clock = SystemClock;
        let started = clock.instant();
        let mut told = false;
        while home.try_lock()?.is_none() {
            let waited = clock.instant() - started;
            if waited > Duration::from_secs(self.timeout) {
                bail!(
                    "unmounted, but the daemon is still at work after {} s; see {}",
                    self.timeout,
                    home.log_path().display()
                );
            }
            if waited > Duration::from_secs(3) && !told {
                eprintln!("forebay: waiting for the daemon to write everything out");
                told = true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
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
