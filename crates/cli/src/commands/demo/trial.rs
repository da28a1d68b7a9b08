//! A cluster on this machine alone: an etcd and some nodes, each on a host of its own ([`Network`]), mounted side by side.
//!
//! Commands and daemons are this very program, as a user would run it. At a signal whatever runs is ended, and the caller
//! clears up: nothing is left but what it names itself.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_process::network::{Network, find_program};
use forebay_process::{small, stat};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Name of the cluster.
const NAME: &str = "demo";
/// How often something is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// How long etcd, a command, or the end of a daemon may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a child may take to end after a signal.
const END_MAX: Duration = Duration::from_secs(30);

/// A cluster that is tried.
pub struct Trial {
    pub folder: PathBuf,
    pub nodes: usize,
    network: Network,
    etcd: Option<Child>,
    interrupted: Arc<AtomicBool>,
}

impl Trial {
    /// Makes the hosts and starts etcd.
    pub fn begin(folder: PathBuf, nodes: usize) -> Result<Trial> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for number in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(number, Arc::clone(&interrupted))?;
        }
        let etcd =
            find_program("etcd").context("a cluster needs etcd (apt-get install etcd-server)")?;
        let network = Network::make(&format!("fbdemo-{}", std::process::id()), nodes + 1)?;
        let mut trial = Trial { folder, nodes, network, etcd: None, interrupted };
        trial.start_etcd(&etcd)?;
        Ok(trial)
    }

    fn start_etcd(&mut self, program: &Path) -> Result<()> {
        let address = self.network.address(self.nodes);
        let (client, peer) = (format!("http://{address}:2379"), format!("http://{address}:2380"));
        let log = File::create(self.folder.join("etcd.log"))?;
        let mut etcd = self.network.command(self.nodes, program);
        etcd.arg("--data-dir").arg(self.folder.join("etcd"));
        for (option, url) in [
            ("listen-client-urls", &client),
            ("advertise-client-urls", &client),
            ("listen-peer-urls", &peer),
            ("initial-advertise-peer-urls", &peer),
        ] {
            etcd.arg(format!("--{option}={url}"));
        }
        etcd.arg(format!("--initial-cluster=default={peer}"));
        etcd.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        self.etcd = Some(etcd.spawn().context("cannot start etcd")?);
        let connect = format!("exec 3<>/dev/tcp/{address}/2379");
        self.until("etcd answers", PATIENCE, || {
            let mut bash = self.network.command(0, "bash");
            bash.args(["-c", &connect]).stderr(Stdio::null());
            Ok(bash.status()?.success())
        })
    }

    /// Fails after a signal.
    pub fn check(&self) -> Result<()> {
        ensure!(!self.interrupted.load(Ordering::SeqCst), "interrupted");
        Ok(())
    }

    /// Looks again and again until something holds.
    pub fn until(
        &self,
        what: &str,
        patience: Duration,
        mut holds: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let start = SystemClock.instant();
        while !holds()? {
            self.check()?;
            ensure!(start.elapsed() < patience, "waited {} s: {what}", patience.as_secs());
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Time since a moment.
    pub fn since(&self, start: Instant) -> Duration {
        SystemClock.instant().saturating_duration_since(start)
    }

    fn base(&self, node: usize) -> PathBuf {
        self.folder.join(format!("node{node}"))
    }

    fn home(&self, node: usize) -> PathBuf {
        self.base(node).join(NAME)
    }

    /// Where a node mounts the file system.
    pub fn mount_of(&self, node: usize) -> PathBuf {
        self.folder.join(format!("grid{node}"))
    }

    /// A forebay command on a node.
    pub fn command(&self, node: usize, arguments: &[&str]) -> Result<Command> {
        let mut command = self.network.command(node, std::env::current_exe()?);
        command.args(arguments).env("FOREBAY_CLUSTER_HOME", self.base(node)).stdin(Stdio::null());
        Ok(command)
    }

    /// Runs a forebay command on a node to its end, out of reach of Ctrl-C, and returns what it printed.
    pub fn forebay(&self, node: usize, arguments: &[&str]) -> Result<String> {
        self.check()?;
        self.run(node, arguments)
    }

    fn run(&self, node: usize, arguments: &[&str]) -> Result<String> {
        let output = self.command(node, arguments)?.process_group(0).output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("forebay {} failed on n{node}: {}", arguments.join(" "), said.trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Makes the cluster, or has a node join it, and mounts it there.
    pub fn enter(&self, node: usize) -> Result<()> {
        let (name, address) = (format!("n{node}"), format!("{}:7440", self.network.address(node)));
        let (disk, mount) = (self.folder.join(format!("disk{node}")), self.mount_of(node));
        for folder in [&disk, &mount] {
            std::fs::create_dir(folder).with_context(|| folder.display().to_string())?;
        }
        let etcd = format!("http://{}:2379", self.network.address(self.nodes));
        let token = match node {
            0 => String::new(),
            _ => self.forebay(0, &["cluster", "token"])?,
        };
        let own = ["--node", &name, "--address", &address, "--disk", text(&disk)?];
        let enter = match node {
            // What the demonstration shows is that names of filesets outlive their node.
            0 => vec![
                "cluster",
                "init",
                "--name",
                NAME,
                "--work-placement",
                "direct",
                "--etcd",
                &etcd,
            ],
            _ => vec!["cluster", "join", token.trim()],
        };
        self.forebay(node, &[&enter[..], &own].concat())?;
        self.mount(node)
    }

    /// Mounts the file system on a node.
    pub fn mount(&self, node: usize) -> Result<()> {
        let (home, mount) = (self.home(node), self.mount_of(node));
        self.forebay(node, &["mount", text(&home)?, text(&mount)?]).map(drop)
    }

    /// What `forebay cluster status` says.
    pub fn status(&self) -> Result<Value> {
        let text = self.forebay(0, &["cluster", "status", "--json"])?;
        serde_json::from_str(&text).context("the status of the cluster")
    }

    /// Waits for a child; a signal is passed on to it.
    pub fn wait(
        &self,
        child: &mut Child,
        mut while_it_runs: impl FnMut() -> Result<()>,
    ) -> Result<ExitStatus> {
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if let Err(error) = self.check().and_then(|()| while_it_runs()) {
                end(child);
                return Err(error);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Kills the daemon of a node by force. Its mount is dead then.
    pub fn kill(&self, node: usize) -> Result<()> {
        let file = self.home(node).join("fs/forebay.pid");
        let pid = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let pid = pid.trim().parse().ok().and_then(Pid::from_raw).context("no process id")?;
        kill_process(pid, Signal::KILL).context("cannot kill the daemon")?;
        self.until("the daemon ends", END_MAX, || Ok(stat::is_zombie(pid)))
    }

    /// Takes the dead mount of a node away.
    pub fn detach(&self, node: usize) {
        // Where nothing is mounted there is nothing to do.
        let _ = rustix::mount::unmount(self.mount_of(node), UnmountFlags::DETACH);
    }

    /// Unmounts all nodes in order and stops their daemons.
    pub fn stop(&self) -> Result<()> {
        for node in (0..self.nodes).rev() {
            self.run(node, &["umount", text(&self.mount_of(node))?])?;
            self.run(node, &["cluster", "stop"])?;
        }
        Ok(())
    }

    /// Ends everything by force that still runs, and removes the folder.
    pub fn clear(mut self) -> Result<()> {
        for pid in stat::all().filter(|pid| self.is_daemon(*pid)) {
            // One that ends meanwhile needs no signal.
            let _ = kill_process(pid, Signal::KILL);
            let _ = self.gone(pid);
        }
        for node in 0..self.nodes {
            self.detach(node);
        }
        if let Some(etcd) = &mut self.etcd {
            let _ = etcd.kill();
            let _ = etcd.wait();
        }
        let removed = std::fs::remove_dir_all(&self.folder);
        removed.with_context(|| format!("cannot remove {}", self.folder.display()))
    }

    /// Whether a process is a daemon of this trial: this very program, with the trial's folder in its command line, which
    /// nobody else uses.
    fn is_daemon(&self, pid: Pid) -> bool {
        let own = pid.as_raw_nonzero().get().cast_unsigned() == std::process::id();
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).ok();
        if own || program.is_none() || program != std::env::current_exe().ok() {
            return false;
        }
        let line = small::read(&*format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let folder = format!("{}/", self.folder.display());
        line.windows(folder.len()).any(|part| part == folder.as_bytes())
    }

    fn gone(&self, pid: Pid) -> Result<()> {
        let start = SystemClock.instant();
        while !stat::is_zombie(pid) {
            ensure!(self.since(start) < END_MAX, "process {pid} does not end");
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}

/// Ends a child: gently first, so that it removes what it made.
fn end(child: &mut Child) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        let _ = kill_process(pid, Signal::TERM);
    }
    let start = SystemClock.instant();
    while child.try_wait().is_ok_and(|status| status.is_none()) {
        if SystemClock.instant().saturating_duration_since(start) > END_MAX {
            let _ = child.kill();
        }
        std::thread::sleep(LOOK);
    }
}

/// A path as an argument.
pub fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}
