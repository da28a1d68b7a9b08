//! A cluster on one machine: an etcd and some nodes, each on a host of its own ([`Hosts`]), each with its mount.
//!
//! All mounts are seen by the test. What it makes is gone when it is dropped, also when the test panics.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::command::{Ended, run};
use crate::grid::{is_mounted, scratch_folder};
use crate::hosts::Hosts;
use crate::{need, wait_until};

/// Commands that wait for other nodes may take as long as a lease and more.
const LIMIT: Duration = Duration::from_secs(120);

/// Name of the cluster.
const NAME: &str = "g";

/// A cluster whose nodes are mounted.
pub struct Cluster {
    hosts: Hosts,
    etcd: Child,
    nodes: usize,
    folder: TempDir,
}

impl Cluster {
    /// Makes a cluster of so many nodes, and mounts it on each.
    ///
    /// # Panics
    /// If the test does not run as root, or etcd is missing.
    #[must_use]
    pub fn start(nodes: usize) -> Cluster {
        need::root();
        need::fuse();
        // The last host has etcd.
        let hosts = Hosts::make(nodes + 1);
        let folder = scratch_folder();
        let etcd = start_etcd(&hosts, nodes, folder.path());
        let cluster = Cluster { hosts, etcd, nodes, folder };
        for node in 0..nodes {
            std::fs::create_dir(cluster.mountpoint(node)).expect("makes a mount point");
        }
        let etcd = format!("http://{}:2379", cluster.hosts.address(nodes));
        wait_until("etcd answers", LIMIT, || {
            let address = format!("{}/2379", cluster.hosts.address(nodes));
            let mut look = need::program("bash");
            look.args(["-c", &format!("exec 3<>/dev/tcp/{address}")]);
            run(&mut cluster.hosts.command(0, &look), LIMIT).status.success()
        });
        let listen = |node| format!("{}:7440", cluster.hosts.address(node));
        let init = ["cluster", "init", "--name", NAME, "--etcd", &etcd];
        cluster
            .forebay(0, &[&init[..], &["--node", "n0", "--address", &listen(0)]].concat())
            .succeeds();
        cluster.mount(0);
        for node in 1..nodes {
            let token = cluster.forebay(0, &["cluster", "token"]).output();
            let disk = cluster.folder.path().join(format!("d{node}"));
            std::fs::create_dir(&disk).expect("makes a disk");
            let (name, address) = (format!("n{node}"), listen(node));
            let join = ["cluster", "join", token.trim(), "--node", &name, "--address", &address];
            cluster.forebay(node, &[&join[..], &["--disk", path(&disk)]].concat()).succeeds();
            cluster.mount(node);
        }
        cluster
    }

    /// The hosts, to cut them off.
    #[must_use]
    pub fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    fn base(&self, node: usize) -> PathBuf {
        self.folder.path().join(format!("n{node}"))
    }

    /// The folder of a node.
    #[must_use]
    pub fn home(&self, node: usize) -> PathBuf {
        self.base(node).join(NAME)
    }

    /// Where a node has mounted the cluster.
    #[must_use]
    pub fn mountpoint(&self, node: usize) -> PathBuf {
        self.folder.path().join(format!("m{node}"))
    }

    /// Runs `forebay` on a node.
    ///
    /// # Panics
    /// If it takes too long.
    #[track_caller]
    pub fn forebay(&self, node: usize, arguments: &[&str]) -> Ended {
        let mut command = Command::new(need::forebay());
        command.args(arguments).env("FOREBAY_CLUSTER_HOME", self.base(node));
        run(&mut self.hosts.command(node, &command), LIMIT)
    }

    /// Mounts the cluster on a node.
    ///
    /// # Panics
    /// If it cannot be mounted.
    #[track_caller]
    pub fn mount(&self, node: usize) {
        let (home, place) = (self.home(node), self.mountpoint(node));
        self.forebay(node, &["mount", path(&home), path(&place)]).succeeds();
    }

    /// Unmounts the cluster on a node, and waits until its daemon has gone.
    ///
    /// # Panics
    /// If it cannot be unmounted.
    #[track_caller]
    pub fn umount(&self, node: usize) {
        let daemon = self.daemon(node);
        self.forebay(node, &["umount", path(&self.mountpoint(node))]).succeeds();
        wait_until("the daemon has gone", LIMIT, || !is_alive(daemon));
    }

    fn daemon(&self, node: usize) -> Pid {
        let text = std::fs::read_to_string(self.home(node).join("fs/forebay.pid")).expect("a pid");
        Pid::from_raw(text.trim().parse().expect("is a number")).expect("a daemon runs")
    }

    /// Sends a signal to the daemon of a node.
    ///
    /// # Panics
    /// If there is none.
    #[track_caller]
    pub fn signal(&self, node: usize, signal: Signal) {
        kill_process(self.daemon(node), signal).expect("signals the daemon");
    }

    /// Kills the daemon of a node by force, and clears its mount away.
    ///
    /// # Panics
    /// If there is none.
    #[track_caller]
    pub fn kill(&self, node: usize) {
        let daemon = self.daemon(node);
        self.signal(node, Signal::KILL);
        wait_until("the daemon has gone", LIMIT, || !is_alive(daemon));
        let _ = run(need::program("umount").arg("-l").arg(self.mountpoint(node)), LIMIT);
    }

    /// Ends the daemon that a node has without a mount, if it runs.
    fn kill_node_without_mount(&self, node: usize) {
        let text = std::fs::read_to_string(self.home(node).join("lock"));
        let daemon = text.ok().and_then(|text| Pid::from_raw(text.trim().parse().ok()?));
        let Some(daemon) = daemon.filter(|daemon| is_alive(*daemon)) else { return };
        // The number of a daemon that has ended may be another process's.
        let line = std::fs::read(format!("/proc/{}/cmdline", daemon.as_raw_nonzero()));
        let line = String::from_utf8_lossy(&line.unwrap_or_default()).into_owned();
        if line.contains(path(&self.base(node))) {
            let _ = kill_process(daemon, Signal::KILL);
        }
    }

    /// The log of a node's daemon.
    #[must_use]
    pub fn log(&self, node: usize) -> String {
        std::fs::read_to_string(self.home(node).join("fs/forebay.log")).unwrap_or_default()
    }
}

fn path(path: &Path) -> &str {
    path.to_str().expect("paths of tests are UTF-8")
}

fn is_alive(process: Pid) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
    state.is_ok_and(|stat| !stat.contains(") Z "))
}

fn start_etcd(hosts: &Hosts, host: usize, folder: &Path) -> Child {
    let address = hosts.address(host);
    let mut etcd = need::program("etcd");
    etcd.arg("--data-dir").arg(folder.join("etcd"));
    for (option, port) in [("client", 2379), ("peer", 2380)] {
        etcd.arg(format!("--listen-{option}-urls=http://{address}:{port}"));
    }
    etcd.arg(format!("--advertise-client-urls=http://{address}:2379"))
        .arg(format!("--initial-advertise-peer-urls=http://{address}:2380"))
        .arg(format!("--initial-cluster=default=http://{address}:2380"));
    let log = std::fs::File::create(folder.join("etcd.log")).expect("makes a log");
    let mut command = hosts.command(host, &etcd);
    command.stdin(Stdio::null()).stdout(log.try_clone().expect("duplicates a file")).stderr(log);
    command.spawn().expect("starts etcd")
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for node in 0..self.nodes {
                let log = self.log(node);
                let start = log.lines().count().saturating_sub(15);
                for line in log.lines().skip(start) {
                    eprintln!("node {node}: {line}");
                }
            }
        }
        for node in 0..self.nodes {
            let text = std::fs::read_to_string(self.home(node).join("fs/forebay.pid"));
            let daemon = text.ok().and_then(|text| Pid::from_raw(text.trim().parse().ok()?));
            if let Some(daemon) = daemon.filter(|daemon| is_alive(*daemon)) {
                let _ = kill_process(daemon, Signal::KILL);
            }
            self.kill_node_without_mount(node);
            if is_mounted(&self.mountpoint(node)) {
                let _ = run(need::program("umount").arg("-l").arg(self.mountpoint(node)), LIMIT);
            }
        }
        let _ = self.etcd.kill();
        let _ = self.etcd.wait();
    }
}
