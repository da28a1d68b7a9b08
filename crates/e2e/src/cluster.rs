//! A cluster on one machine: members of etcd and some nodes, each on a host of its own ([`Hosts`]), each with its mount.
//!
//! All mounts are seen by the test. What it makes is gone when it is dropped, also when the test panics.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::command::{Ended, run};
use crate::etcd::Etcd;
use crate::hosts::Hosts;
use crate::mounted::{is_mounted, scratch_folder, scratch_folder_in};
use crate::s3::S3;
use crate::{need, wait_until};

/// Commands that wait for other nodes may take as long as a lease and more.
const LIMIT: Duration = Duration::from_secs(120);

/// Name of the cluster.
const NAME: &str = "g";

/// What a cluster is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many nodes.
    pub nodes: usize,
    /// How many members of etcd.
    pub etcd_members: usize,
    /// Where everything is, in a folder of its own; `FOREBAY_E2E_DIR` if nothing is said.
    pub base: Option<PathBuf>,
    /// Empty directories that nodes bring as disks, instead of directories of the cluster's folder.
    pub disks: BTreeMap<usize, PathBuf>,
    /// The `forebay` command, instead of that of the tests.
    pub forebay: Option<PathBuf>,
    /// Placement of the filesets work and util; native if nothing is said.
    pub work_placement: Option<&'static str>,
    /// The names of files lie in a bucket of an S3 server on the first host of etcd.
    pub names_in_s3: bool,
    /// More options of `cluster init`.
    pub init: Vec<String>,
}

impl Plan {
    /// So many nodes and one etcd.
    #[must_use]
    pub fn of(nodes: usize) -> Plan {
        Plan {
            nodes,
            etcd_members: 1,
            base: None,
            disks: BTreeMap::new(),
            forebay: None,
            work_placement: None,
            names_in_s3: false,
            init: Vec::new(),
        }
    }
}

/// A cluster whose nodes are mounted.
pub struct Cluster {
    hosts: Hosts,
    etcd: Etcd,
    nodes: usize,
    folder: TempDir,
    forebay: PathBuf,
    /// Goes last.
    s3: Option<S3>,
}

impl Cluster {
    /// Makes a cluster of so many nodes, and mounts it on each.
    ///
    /// # Panics
    /// If the test does not run as root, or etcd is missing.
    #[must_use]
    pub fn start(nodes: usize) -> Cluster {
        Cluster::make(&Plan::of(nodes))
    }

    /// Makes a cluster, and mounts it on each node.
    ///
    /// # Panics
    /// If the test does not run as root, or etcd is missing.
    #[must_use]
    pub fn make(plan: &Plan) -> Cluster {
        need::root();
        need::fuse();
        let nodes = plan.nodes;
        // The last hosts have etcd.
        let hosts = Hosts::make(nodes + plan.etcd_members);
        let folder = plan.base.as_deref().map_or_else(scratch_folder, scratch_folder_in);
        let etcd = Etcd::start(&hosts, nodes..nodes + plan.etcd_members, folder.path());
        let forebay = plan.forebay.clone().unwrap_or_else(need::forebay);
        let s3 = plan.names_in_s3.then(|| S3::start(&hosts, nodes, folder.path()));
        let cluster = Cluster { hosts, etcd, nodes, folder, forebay, s3 };
        cluster.etcd.wait_until_reached(&cluster.hosts, 0);
        for node in 0..nodes {
            std::fs::create_dir(cluster.mountpoint(node)).expect("makes a mount point");
            cluster.enter(node, plan);
            cluster.mount(node);
        }
        cluster
    }

    /// Makes a host a node: the first makes the cluster, the others join it.
    fn enter(&self, node: usize, plan: &Plan) {
        let (name, address) = (format!("n{node}"), format!("{}:7440", self.hosts.address(node)));
        let etcd = self.etcd.endpoints(&self.hosts);
        let token =
            if node == 0 { String::new() } else { self.forebay(0, &["cluster", "token"]).output() };
        let mut arguments = match node {
            0 => vec!["cluster", "init", "--name", NAME, "--etcd", &etcd],
            _ => vec!["cluster", "join", token.trim()],
        };
        arguments.extend(["--node", &name, "--address", &address]);
        let own = self.folder.path().join(format!("d{node}"));
        let disk = plan.disks.get(&node).unwrap_or(&own);
        std::fs::create_dir_all(disk).expect("makes a disk");
        arguments.extend(["--disk", path(disk)]);
        if let (0, Some(placement)) = (node, plan.work_placement) {
            arguments.extend(["--work-placement", placement]);
        }
        if let (0, Some(s3)) = (node, &self.s3) {
            arguments.extend(["--names", "s3://names/g", "--names-access", path(&s3.access)]);
        }
        if node == 0 {
            arguments.extend(plan.init.iter().map(String::as_str));
        }
        self.forebay(node, &arguments).succeeds();
    }

    /// How many nodes it has.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// The members of etcd.
    #[must_use]
    pub fn etcd(&self) -> &Etcd {
        &self.etcd
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
        let mut command = Command::new(&self.forebay);
        command.args(arguments).env("FOREBAY_CLUSTER_HOME", self.base(node));
        run(&mut self.hosts.command(node, &command), LIMIT)
    }

    /// Mounts the cluster on a node.
    ///
    /// # Panics
    /// If it cannot be mounted.
    #[track_caller]
    pub fn mount(&self, node: usize) {
        self.try_mount(node).succeeds();
    }

    /// Mounts the cluster on a node, if that is possible now.
    pub fn try_mount(&self, node: usize) -> Ended {
        let (home, place) = (self.home(node), self.mountpoint(node));
        self.forebay(node, &["mount", path(&home), path(&place)])
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

    /// The process of a node's daemon.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn daemon(&self, node: usize) -> Pid {
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
        self.signal(node, Signal::KILL);
        self.wait_until_gone(node);
        self.detach(node);
    }

    /// Waits until a daemon that was killed is gone.
    ///
    /// # Panics
    /// If it stays.
    #[track_caller]
    pub fn wait_until_gone(&self, node: usize) {
        let daemon = self.daemon(node);
        wait_until("the daemon has gone", LIMIT, || !is_alive(daemon));
    }

    /// Takes the dead mount of a node away; programs that use it keep what they have open.
    pub fn detach(&self, node: usize) {
        let _ = run(need::program("umount").arg("-l").arg(self.mountpoint(node)), LIMIT);
    }

    /// The node that owns a fileset, as another one says; none if nobody does, or it is not known.
    #[must_use]
    pub fn owner(&self, asked: usize, fileset: &str) -> Option<usize> {
        // The upper 16 bits of an inode number are those of its fileset.
        let number = std::fs::metadata(self.mountpoint(asked).join(fileset)).ok()?.ino() >> 48;
        let ended = self.forebay(asked, &["cluster", "status", "--json"]);
        let status: Value = serde_json::from_str(&ended.stdout).ok()?;
        let filesets = status["filesets"].as_array()?;
        let found = filesets.iter().find(|found| found["fileset"] == number)?;
        // Nodes are numbered from 1 in the order in which they came.
        usize::try_from(found["owner"].as_u64()?.checked_sub(1)?).ok()
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

/// The daemons that work in a folder, those of nodes without a mount included.
fn daemons_in(folder: &Path) -> Vec<Pid> {
    let own = format!("{}/", folder.display());
    let works_there = |process: &Pid| {
        let at = |file: &str| format!("/proc/{}/{file}", process.as_raw_nonzero());
        let program = std::fs::read_link(at("exe")).unwrap_or_default();
        let line = std::fs::read(at("cmdline")).unwrap_or_default();
        let is_ours =
            program.file_name().is_some_and(|name| name.to_string_lossy().starts_with("forebay"));
        is_ours && String::from_utf8_lossy(&line).contains(&own)
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter_map(Pid::from_raw).filter(works_there).collect()
}

fn is_alive(process: Pid) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
    state.is_ok_and(|stat| !stat.contains(") Z "))
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
        for daemon in daemons_in(self.folder.path()) {
            let _ = kill_process(daemon, Signal::KILL);
        }
        for node in 0..self.nodes {
            if is_mounted(&self.mountpoint(node)) {
                let _ = run(need::program("umount").arg("-l").arg(self.mountpoint(node)), LIMIT);
            }
        }
    }
}
