//! Daemons of this program that go on in the background: in a session of their own, with a log file.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result, anyhow};
use forebay_process::descriptors::close_others_on_exec;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

/// What is logged unless FOREBAY_LOG says otherwise: not each request to an object store that is tried again.
const DEFAULT_LOG: &str = "info,object_store=warn";

/// Has this program, as a daemon, log to standard error, as much as the variable FOREBAY_LOG says.
pub fn log_to_standard_error() -> Result<()> {
    let filter = std::env::var("FOREBAY_LOG").unwrap_or_else(|_| DEFAULT_LOG.to_owned());
    let filter: Targets = filter.parse().with_context(|| {
        format!("FOREBAY_LOG={filter}: write a level such as debug, or TARGET=LEVEL,...")
    })?;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        // A terminal that is gone is no reason to end out of order.
        .log_internal_errors(false);
    tracing_subscriber::registry().with(lines.with_filter(filter)).init();
    Ok(())
}

/// A command of this very program, also if its file has been replaced or removed since it began.
pub fn this_program() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("forebay");
    command
}

/// A daemon that was started and may not be ready yet.
pub struct Background {
    child: Child,
    log: PathBuf,
    /// Where in its log its own lines begin.
    log_start: u64,
}

impl Background {
    /// Starts this program with these arguments; what it logs is added to `log`. Of what is open here it has nothing.
    pub fn start<A: AsRef<OsStr>>(arguments: &[A], log: &Path) -> Result<Background> {
        Background::start_with(arguments, None, log)
    }

    /// Starts this program with these arguments and the descriptor of a pipe, whose number a variable tells it.
    pub fn start_with<A: AsRef<OsStr>>(
        arguments: &[A],
        pipe: Option<(&str, &OwnedFd)>,
        log: &Path,
    ) -> Result<Background> {
        let file = std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(log);
        let file = file.with_context(|| format!("cannot write {}", log.display()))?;
        let log_start = file.metadata()?.len();
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments);
        let kept = pipe.map(|(variable, descriptor)| {
            command.env(variable, descriptor.as_raw_fd().to_string());
            descriptor.as_raw_fd()
        });
        command.current_dir("/").stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        // SAFETY: all are safe to call between fork and exec; the pipe lives until then.
        unsafe {
            command.pre_exec(move || {
                rustix::process::setsid()?;
                // A lock or a pipe of whoever started this is not the daemon's to hold.
                close_others_on_exec();
                if let Some(kept) = kept
                    && libc::fcntl(kept, libc::F_SETFD, 0) < 0
                {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = command.spawn().context("cannot start a daemon")?;
        Ok(Background { child, log: log.to_owned(), log_start })
    }

    /// An error if it has ended: with what it said last, as nobody else will tell.
    pub fn check(&mut self) -> Result<()> {
        self.child.try_wait()?.map_or(Ok(()), |status| Err(self.reason(status)))
    }

    /// Waits for the end of a daemon that should go on; why it has ended.
    pub fn wait(mut self) -> anyhow::Error {
        self.child.wait().map_or_else(anyhow::Error::new, |status| self.reason(status))
    }

    /// The file to which it logs.
    pub fn log(&self) -> &Path {
        &self.log
    }

    fn reason(&self, status: ExitStatus) -> anyhow::Error {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let start = usize::try_from(self.log_start).unwrap_or(0).min(text.len());
        let text = String::from_utf8_lossy(&text[start..]).into_owned();
        match text.lines().rev().find_map(|line| line.strip_prefix("forebay: ")) {
            Some(reason) => anyhow!("{reason}"),
            None => anyhow!("the daemon exited ({status}); see {}", self.log.display()),
        }
    }
}
