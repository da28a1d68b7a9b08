//! `forebay mount`.

use std::ffi::{OsStr, OsString};
use std::io::{Read as _, Write as _};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow};

use forebay_fuse::settings::TransportChoice;

use crate::background::{Background, log_to_standard_error};
use crate::daemon::{self, Order};
use crate::home::Home;
use crate::monitors::Monitors;
use crate::output;

/// Environment variable that tells the daemon where to say that it is ready.
const READY_FD: &str = "FOREBAY_READY_FD";

/// Mount a file system.
///
/// Returns when the mount is usable. The daemon keeps running in the background: its log is
/// ROOT/forebay.log, its process id in ROOT/forebay.pid. If root mounts it, the kernel itself reads and
/// writes the files of direct filesets, at the speed of the disk, and native filesets are bound in place: programs use
/// the disk itself. If an ordinary user mounts it (through fusermount3), the daemon moves all bytes.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay mount /srv/forebay /mnt/forebay
  forebay mount grid1 /mnt/forebay                          a cluster's file system, on each node
  forebay mount /srv/forebay /mnt/forebay --foreground      log to the terminal, Ctrl-C unmounts
  forebay mount /srv/forebay /mnt/forebay --metrics 9464    metrics for Prometheus at port 9464
  forebay mount grid1 /mnt/forebay --metrics 10.0.0.1:9464 --metrics-tls
  forebay mount /srv/forebay /mnt/forebay --served          for comparison: without the direct path
  forebay mount /srv/forebay /mnt/forebay --transport dev   for comparison: without io_uring")]
pub struct Mount {
    /// Home folder of the file system, or name of a cluster to which this machine belongs.
    root: PathBuf,
    /// Directory at which to mount it.
    mountpoint: PathBuf,
    /// Stay in the foreground and log to standard error.
    #[arg(long, short)]
    foreground: bool,
    /// Make the daemon move all bytes, even in direct and native filesets.
    #[arg(long)]
    served: bool,
    /// How the kernel sends requests: over io_uring (uring), over /dev/fuse (dev), or over io_uring if it
    /// is available (auto) [default: the setting "transport", or auto].
    #[arg(long, value_name = "auto|dev|uring")]
    transport: Option<TransportChoice>,
    #[command(flatten)]
    monitors: Monitors,
}

impl Mount {
    pub fn run(self) -> Result<ExitCode> {
        let home = Home::at(&self.root)?;
        home.check_owner()?;
        if self.foreground {
            self.serve(home)
        } else {
            // What can be refused is refused here, where the user reads it.
            drop(home.lock()?);
            home.settings()?;
            self.monitors.listen()?;
            self.start_daemon(&home)
        }
    }

    /// The daemon itself.
    fn serve(self, home: Home) -> Result<ExitCode> {
        log_to_standard_error()?;
        let order = Order {
            home,
            mountpoint: self.mountpoint,
            direct: !self.served,
            transport: self.transport,
            monitors: self.monitors.listen()?,
        };
        let mut pipe = ready_pipe()?;
        let in_background = pipe.is_some();
        let served = daemon::run(&order, |loss| {
            if let Some(mut pipe) = pipe.take() {
                pipe.write_all(format!("ready\n{}", loss.unwrap_or_default()).as_bytes())?;
            } else if let (Some(loss), false) = (loss, in_background) {
                note!("forebay: {loss}");
            }
            Ok(())
        });
        if let (Err(error), Some(mut pipe)) = (&served, pipe) {
            // The log may not have it, if its disk is full.
            let _ = pipe.write_all(format!("failed\n{}", output::chain(error)).as_bytes());
        }
        served.map(|()| ExitCode::SUCCESS)
    }

    /// Starts the daemon in the background and waits until it says that it is ready.
    fn start_daemon(&self, home: &Home) -> Result<ExitCode> {
        let (reader, writer) = rustix::pipe::pipe()?;
        rustix::io::fcntl_setfd(&reader, rustix::io::FdFlags::CLOEXEC)?;
        let mountpoint = std::path::absolute(&self.mountpoint)?;
        let mut arguments: Vec<&OsStr> = vec!["mount".as_ref(), home.root().as_ref()];
        arguments.extend([mountpoint.as_os_str(), "--foreground".as_ref()]);
        arguments.extend(self.served.then_some(OsStr::new("--served")));
        let transport = self.transport.map(|choice| format!("--transport={choice}"));
        arguments.extend(transport.as_ref().map(OsStr::new));
        let monitors = self.monitors.arguments()?;
        arguments.extend(monitors.iter().map(OsString::as_os_str));
        let ready = Some((READY_FD, &writer));
        let daemon = Background::start_with(&arguments, ready, &home.log_path())?;
        drop(writer);
        let mut said = String::new();
        std::fs::File::from(reader).read_to_string(&mut said)?;
        if let Some(loss) = said.strip_prefix("ready\n") {
            if !loss.is_empty() {
                note!("forebay: {loss}");
            }
            return Ok(ExitCode::SUCCESS);
        }
        let ended = daemon.wait();
        Err(said.strip_prefix("failed\n").map_or(ended, |reason| anyhow!("{reason}")))
    }
}

/// The pipe to the process that started this daemon and waits for it to be ready.
fn ready_pipe() -> Result<Option<std::fs::File>> {
    let Ok(fd) = std::env::var(READY_FD) else { return Ok(None) };
    let fd = fd.parse().context(READY_FD)?;
    // SAFETY: the parent process passed this descriptor to us alone, for this purpose.
    Ok(Some(std::fs::File::from(unsafe { OwnedFd::from_raw_fd(fd) })))
}
