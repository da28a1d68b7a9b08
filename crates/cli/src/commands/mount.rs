//! `forebay mount`.

use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, bail};

use forebay_fs::settings::TransportChoice;

use crate::daemon::{self, Order};
use crate::home::Home;

/// Environment variable that tells the daemon where to say that it is ready.
const READY_FD: &str = "FOREBAY_READY_FD";

/// Mount a file system.
///
/// Returns when the mount is usable; the daemon goes on in the background, with its log in
/// ROOT/forebay.log and its process id in ROOT/forebay.pid. As root the kernel reads and writes files
/// of direct filesets itself, at the speed of the disk; as an ordinary user (through fusermount3) the
/// daemon moves all bytes.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay mount /srv/grid /grid
  forebay mount /srv/grid /grid --foreground       log to the terminal, Ctrl-C unmounts
  forebay mount /srv/grid /grid --served           for comparison: without the direct path
  forebay mount /srv/grid /grid --transport dev    for comparison: without io_uring")]
pub struct Mount {
    /// Home folder of the file system.
    root: PathBuf,
    /// Directory to mount it at.
    mountpoint: PathBuf,
    /// Stay in the foreground and log to standard error.
    #[arg(long, short)]
    foreground: bool,
    /// Have the daemon move all bytes, also those of direct filesets.
    #[arg(long)]
    served: bool,
    /// How requests arrive: over io_uring (uring), over /dev/fuse (dev), or over io_uring if that can be
    /// had (auto) [default: the setting "transport", which is auto].
    #[arg(long, value_name = "auto|dev|uring")]
    transport: Option<TransportChoice>,
}

impl Mount {
    pub fn run(self) -> Result<ExitCode> {
        let home = Home::at(&self.root)?;
        if self.foreground {
            self.serve(home)
        } else {
            // What can be refused is refused here, where the user reads it.
            drop(home.lock()?);
            home.settings()?;
            self.start_daemon(&home)
        }
    }

    /// The daemon itself.
    fn serve(self, home: Home) -> Result<ExitCode> {
        let filter = std::env::var("FOREBAY_LOG").unwrap_or_else(|_| "info".to_owned());
        tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::try_new(filter)?)
            .with_writer(std::io::stderr)
            .with_ansi(false)
            .with_target(false)
            .init();
        let order = Order {
            home,
            mountpoint: self.mountpoint,
            direct: !self.served,
            transport: self.transport,
        };
        daemon::run(&order, |loss| {
            let Ok(fd) = std::env::var(READY_FD) else {
                if let Some(loss) = loss {
                    eprintln!("forebay: {loss}");
                }
                return Ok(());
            };
            let fd = fd.parse().context(READY_FD)?;
            // SAFETY: the parent process passed this descriptor to us alone, for this purpose.
            let mut pipe = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(fd) });
            pipe.write_all(format!("ready\n{}", loss.unwrap_or_default()).as_bytes())?;
            Ok(())
        })?;
        Ok(ExitCode::SUCCESS)
    }

    /// Starts the daemon in the background and waits until it says that it is ready.
    fn start_daemon(&self, home: &Home) -> Result<ExitCode> {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(home.log_path())?;
        let log_start = log.metadata()?.len();
        let (reader, writer) = rustix::pipe::pipe()?;
        rustix::io::fcntl_setfd(&reader, rustix::io::FdFlags::CLOEXEC)?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("mount")
            .arg(home.root())
            .arg(std::path::absolute(&self.mountpoint)?)
            .arg("--foreground")
            .args(self.served.then_some("--served"))
            .args(self.transport.map(|choice| format!("--transport={choice}")))
            .env(READY_FD, writer.as_raw_fd().to_string())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        // SAFETY: setsid is safe to call between fork and exec.
        unsafe {
            command.pre_exec(|| {
                rustix::process::setsid()?;
                Ok(())
            });
        }
        let mut child = command.spawn().context("cannot start the daemon")?;
        drop(writer);
        let mut said = String::new();
        std::fs::File::from(reader).read_to_string(&mut said)?;
        if let Some(loss) = said.strip_prefix("ready\n") {
            if !loss.is_empty() {
                eprintln!("forebay: {loss}");
            }
            return Ok(ExitCode::SUCCESS);
        }
        let status = child.wait()?;
        let text = std::fs::read(home.log_path()).unwrap_or_default();
        let start = usize::try_from(log_start).unwrap_or(0).min(text.len());
        let text = String::from_utf8_lossy(&text[start..]).into_owned();
        let reason = text.lines().rev().find_map(|line| line.strip_prefix("forebay: "));
        match reason {
            Some(reason) => bail!("{reason}"),
            None => bail!("the daemon ended ({status}); see {}", home.log_path().display()),
        }
    }
}
