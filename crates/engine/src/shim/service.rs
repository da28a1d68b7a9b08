//! Watching a service while it runs: whether it is ready, which its host tells the controller and a file tells its clients.
//!
//! A service is ready if its check command succeeds; without one, if its port accepts a connection; without a port, as long
//! as it runs. One that is not ready for `service_unready_max` is ended gently, as by a signal from outside, so that it
//! starts again. The time in which it is suspended does not count.

use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use forebay_process::user::{Account, is_root};
use rustix::process::Signal;
use signal_hook::consts::{SIGUSR1, SIGUSR2};

use super::program::environment;
use crate::files;
use crate::protocol::{Health, ServiceWatch};
use crate::run::request::Word;
use crate::run::{Run, Task, uptime_ms};

/// Time between two checks of a service that has not been ready yet.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// How long a connection to the port may take.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// How long a check command may take.
const CHECK_SECONDS_MAX: u64 = 30;

/// Refuses a port on which somebody else listens here.
///
/// # Errors
/// Names the port.
pub fn check_port(watch: &ServiceWatch) -> Result<()> {
    let Some(port) = watch.port else { return Ok(()) };
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
        .map(drop)
        .with_context(|| format!("port {port} is not free on this host"))
}

/// A service that is being watched.
pub struct Watched(Arc<Shared>);

struct Shared {
    task: Task,
    watch: ServiceWatch,
    account: Account,
    run: Run,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_over: bool,
    is_suspended: bool,
    told: Option<Health>,
    /// What was written into the address file.
    address: Option<Vec<u8>>,
}

impl Watched {
    /// Begins to watch a service that runs; none if the job is not one.
    ///
    /// # Errors
    /// If there is no thread left.
    pub fn begin(task: &Task, run: &Path, account: &Account) -> Result<Option<Watched>> {
        let Some(watch) = task.launch.watch else { return Ok(None) };
        let name = run.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let shared = Arc::new(Shared {
            task: task.clone(),
            watch,
            account: account.clone(),
            run: Run::named(&task.agent, name),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let own = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("service".to_owned())
            .spawn(move || own.work())
            .context("no thread can be started")?;
        Ok(Some(Watched(shared)))
    }

    /// Takes note of a signal for the shim.
    pub fn note(&self, signal: i32) {
        match signal {
            SIGUSR1 => self.0.lock().is_suspended = true,
            SIGUSR2 => self.0.lock().is_suspended = false,
            _ => {}
        }
    }
}

impl Drop for Watched {
    /// The service has ended: nothing is said of it from now on.
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_over = true;
        self.0.changed.notify_all();
        self.0.run.forget_health();
        self.0.withdraw_address(&mut state);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut was_ready = false;
        let mut unready_ms = None;
        loop {
            let checked = self.check();
            let now_ms = uptime_ms();
            was_ready |= checked.is_ok();
            let mut state = self.lock();
            if state.is_over {
                return;
            }
            if !state.is_suspended {
                match &checked {
                    Ok(()) => unready_ms = None,
                    Err(_) => _ = unready_ms.get_or_insert(now_ms),
                }
                self.say(&mut state, checked.err());
            } else if unready_ms.is_some() {
                unready_ms = Some(now_ms);
            }
            if unready_ms.is_some_and(|since| now_ms - since >= self.watch.unready_max.as_ms()) {
                tracing::warn!(task = %self.task.launch.task, "a service was not ready for too long and is started again");
                let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::TERM);
                return;
            }
            let interval = Duration::from_millis(self.watch.interval.as_ms());
            let pause = if was_ready { interval } else { interval.min(FIRST_PAUSE) };
            let wait = self.changed.wait_timeout_while(state, pause, |state| !state.is_over);
            if wait.unwrap_or_else(PoisonError::into_inner).0.is_over {
                return;
            }
        }
    }

    /// Whether it is ready; why not.
    fn check(&self) -> Result<(), String> {
        let service = self.task.launch.spec.service.as_ref();
        if let Some(check) = service.and_then(|service| service.check.as_ref()) {
            return self.run_check(check).unwrap_or_else(|error| Err(format!("{error:#}")));
        }
        let Some(port) = self.watch.port else { return Ok(()) };
        let own = self.task.address.parse::<IpAddr>().ok();
        let hosts = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        let accepts = |host: IpAddr| {
            TcpStream::connect_timeout(&SocketAddr::new(host, port), CONNECT_MAX).is_ok()
        };
        if own.into_iter().chain(hosts).any(accepts) {
            return Ok(());
        }
        Err(format!("nothing accepts connections on port {port}"))
    }

    /// Runs a check command as the user of the job, in its directory and environment.
    ///
    /// The processes of a job are reaped as they end, also those of checks, so the exit code is printed.
    fn run_check(&self, check: &str) -> Result<Result<(), String>> {
        const SCRIPT: &str =
            "timeout -k 1 \"$2\" /bin/sh -c \"$1\" </dev/null >/dev/null 2>&1; echo $?";
        let seconds = (self.watch.interval.as_ms() / 1000).clamp(1, CHECK_SECONDS_MAX);
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SCRIPT, "sh", check, &seconds.to_string()]);
        let directory = &self.task.launch.spec.directory;
        command.current_dir(if directory.is_empty() { "/" } else { directory });
        command.env_clear().envs(environment(&self.task, &self.account));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        if is_root() {
            let rights = self.account.rights();
            // SAFETY: between fork and exec it makes system calls on memory that was prepared before.
            unsafe { command.pre_exec(move || rights.take()) };
        }
        let mut child = command.spawn().context("the check cannot be run")?;
        let mut printed = String::new();
        if let Some(mut stdout) = child.stdout.take() {
            stdout.read_to_string(&mut printed)?;
        }
        // It may have been reaped already.
        let _ = child.wait();
        Ok(match printed.trim() {
            "0" => Ok(()),
            "124" | "137" => Err(format!("the check took longer than {seconds} s")),
            "" => Err("the check was killed".to_owned()),
            code => Err(format!("the check exited with {code}")),
        })
    }

    fn say(&self, state: &mut State, why: Option<String>) {
        let health = Health { ready: why.is_none(), why, address: self.task.address.clone() };
        if state.told.as_ref() == Some(&health) {
            // What could not be written, or was lost with the node that had its name, is written again.
            if health.ready && self.is_address_missing() {
                self.publish_address(state);
            }
            return;
        }
        if let Err(error) = self.run.say_health(&health) {
            tracing::warn!(task = %self.task.launch.task, "{error:#}");
            return;
        }
        if health.ready {
            self.publish_address(state);
        } else {
            self.withdraw_address(state);
        }
        state.told = Some(health);
        let _ = Word::Health.say(rustix::stdio::stdout());
    }

    fn address_file(&self) -> Option<&Path> {
        self.task.launch.spec.service.as_ref()?.address_file.as_deref().map(Path::new)
    }

    /// Writes the address of the service where its user wants it, with the user's rights.
    fn publish_address(&self, state: &mut State) {
        let Some(path) = self.address_file() else { return };
        let text = serde_json::json!({
            "service": self.task.launch.spec.service.as_ref().map(|service| &service.name),
            "job": self.task.launch.task.to_string(),
            "start": self.task.launch.attempt,
            "host": self.task.host,
            "address": self.task.address,
            "port": self.watch.port,
        });
        let bytes = format!("{text}\n").into_bytes();
        let written = self.account.act(|| {
            files::replace(path, &bytes)?;
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
            std::fs::set_permissions(path, mode).context("its mode")
        });
        match written.map_err(anyhow::Error::from).flatten() {
            Ok(()) => state.address = Some(bytes),
            Err(error) => {
                let (task, path) = (self.task.launch.task, path.display());
                tracing::warn!(%task, "the address file {path} cannot be written: {error:#}");
            }
        }
    }

    /// Whether there is to be a file, and it is not there or empty.
    fn is_address_missing(&self) -> bool {
        let Some(path) = self.address_file() else { return false };
        let about = self.account.act(|| std::fs::metadata(path));
        about.is_ok_and(|about| match about {
            Ok(about) => about.len() == 0,
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        })
    }

    /// Removes the file again, if it is what was written here.
    fn withdraw_address(&self, state: &mut State) {
        let (Some(path), Some(bytes)) = (self.address_file(), state.address.take()) else { return };
        let removed = self.account.act(|| {
            if std::fs::read(path).is_ok_and(|there| there == bytes) {
                let _ = std::fs::remove_file(path);
            }
        });
        if let Err(error) = removed {
            tracing::warn!(task = %self.task.launch.task, "{}: {error}", path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_on_which_somebody_listens_is_not_given_to_a_service() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let period = forebay_grid::parse::period::Period::seconds(1);
        let watch = ServiceWatch { port: Some(port), interval: period, unready_max: period };
        let refused = check_port(&watch).unwrap_err().to_string();
        assert!(refused.contains(&port.to_string()), "{refused}");
        drop(taken);
        check_port(&watch).unwrap();
        check_port(&ServiceWatch { port: None, ..watch }).unwrap();
    }
}
