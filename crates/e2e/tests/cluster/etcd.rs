//! Clusters that run their etcd themselves (`forebay cluster init --start-etcd`), on hosts of their own network.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use forebay_e2e::mounted::{is_mounted, scratch_folder};
use forebay_e2e::{Ended, Hosts, need, run, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(120);

/// Hosts with nothing but Forebay and an etcd that is installed and does not run.
struct Machines {
    hosts: Hosts,
    count: usize,
    folder: TempDir,
}

impl Machines {
    fn make(count: usize) -> Machines {
        need::root();
        need::fuse();
        let machines = Machines { hosts: Hosts::make(count), count, folder: scratch_folder() };
        for node in 0..count {
            for kind in ["m", "d"] {
                fs::create_dir(machines.folder.path().join(format!("{kind}{node}")))
                    .expect("makes a folder");
            }
        }
        machines
    }

    fn base(&self, node: usize) -> PathBuf {
        self.folder.path().join(format!("n{node}"))
    }

    fn mountpoint(&self, node: usize) -> PathBuf {
        self.folder.path().join(format!("m{node}"))
    }

    fn forebay(&self, node: usize, arguments: &[&str]) -> Ended {
        let mut command = Command::new(need::forebay());
        command.args(arguments).env("FOREBAY_CLUSTER_HOME", self.base(node));
        run(&mut self.hosts.command(node, &command), LIMIT)
    }

    /// `init` or `join`, with what this machine says about itself.
    fn enter(&self, node: usize, arguments: &[&str]) -> Ended {
        let address = self.hosts.address(node);
        let (name, disk) = (format!("n{node}"), self.folder.path().join(format!("d{node}")));
        let own = ["--node", &name, "--address", &address, "--disk", path(&disk)];
        self.forebay(node, &[&["cluster"], arguments, &own].concat())
    }

    fn mount(&self, node: usize) {
        self.forebay(node, &["mount", "g", path(&self.mountpoint(node))]).succeeds();
    }

    fn status(&self, node: usize) -> Option<Value> {
        let ended = self.forebay(node, &["cluster", "status", "--json"]);
        serde_json::from_str(&ended.stdout).ok().filter(|_| ended.status.success())
    }

    /// Waits until all of these nodes are up, as `asked` sees them.
    fn wait_until_up(&self, asked: usize, nodes: &[usize]) {
        wait_until("all nodes are up", LIMIT, || {
            let Some(status) = self.status(asked) else { return false };
            let is_up = |node: &usize| status["nodes"][*node]["state"] == "up";
            nodes.iter().all(is_up)
        });
    }

    /// Processes whose command line begins with a program of this name and names the folder of a node.
    fn processes(&self, node: usize, program: &str) -> Vec<Pid> {
        let home = self.base(node);
        let of = |entry: fs::DirEntry| {
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).into_owned();
            let first = line.split('\0').next()?.rsplit('/').next()?.to_owned();
            let is_it = first == program && line.contains(path(&home));
            is_it.then(|| entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw))?
        };
        fs::read_dir("/proc").expect("lists processes").flatten().filter_map(of).collect()
    }

    fn etcd(&self, node: usize) -> Option<Pid> {
        self.processes(node, "etcd").first().copied()
    }

    /// What etcd answers a client with this certificate.
    fn ask_etcd(&self, certificate: &Path, key: &Path) -> Ended {
        let mut curl = need::program("curl");
        let authority = self.base(0).join("g/authority.pem");
        curl.args(["--silent", "--show-error", "--max-time", "30", "--cacert", path(&authority)]);
        curl.args(["--cert", path(certificate), "--key", path(key)]);
        curl.arg(format!("https://{}:2379/version", self.hosts.address(0)));
        run(&mut self.hosts.command(0, &curl), LIMIT)
    }

    fn endpoints(&self, node: usize) -> usize {
        let text = fs::read_to_string(self.base(node).join("g/node.json")).expect("reads");
        let file: Value = serde_json::from_str(&text).expect("is JSON");
        file["etcd"]["endpoints"].as_array().expect("a list").len()
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for node in 0..self.count {
                for log in ["etcd.log", "node.log", "fs/forebay.log"] {
                    let text = fs::read_to_string(self.base(node).join("g").join(log));
                    let text = text.unwrap_or_default();
                    let start = text.lines().count().saturating_sub(12);
                    text.lines().skip(start).for_each(|line| eprintln!("{node} {log}: {line}"));
                }
            }
        }
        for node in 0..self.count {
            let place = self.mountpoint(node);
            // The supervisor first: it would start etcd again.
            for pid in
                self.processes(node, "forebay").into_iter().chain(self.processes(node, "etcd"))
            {
                let _ = kill_process(pid, Signal::KILL);
            }
            if is_mounted(&place) {
                let _ = run(need::program("umount").arg("-l").arg(place), LIMIT);
            }
        }
    }
}

fn path(path: &Path) -> &str {
    path.to_str().expect("paths of tests are UTF-8")
}

#[test]
fn a_cluster_runs_its_own_etcd_and_survives_the_loss_of_a_node_once_there_are_three() {
    let machines = Machines::make(3);
    let init = ["init", "--name", "g", "--start-etcd"];
    machines.enter(0, &init).succeeds();
    // Again: nothing changes.
    assert!(machines.enter(0, &init).output().contains("already"));
    machines.wait_until_up(0, &[0]);

    // Killed, it is started again, and the node goes on.
    let first = machines.etcd(0).expect("etcd runs");
    kill_process(first, Signal::KILL).expect("kills etcd");
    wait_until("etcd runs again", LIMIT, || machines.etcd(0).is_some_and(|pid| pid != first));
    machines.wait_until_up(0, &[0]);

    for node in [1, 2] {
        let token = machines.forebay(0, &["cluster", "token"]).output();
        machines.enter(node, &["join", token.trim()]).succeeds();
        assert!(machines.etcd(node).is_some(), "node {node} runs no member of etcd");
        assert_eq!(machines.endpoints(node), node + 1);
    }
    for node in 0..3 {
        machines.mount(node);
    }
    machines.wait_until_up(2, &[0, 1, 2]);
    // The authority is etcd's too: the certificate of a monitor must not open it.
    machines.forebay(0, &["cluster", "monitor", "prom", path(machines.folder.path())]).succeeds();
    let home = machines.base(0).join("g");
    let own = machines.ask_etcd(&home.join("etcd.pem"), &home.join("etcd.key"));
    assert!(own.output().contains("etcdserver"));
    let shown = |name: &str| machines.folder.path().join(name);
    assert!(!machines.ask_etcd(&shown("prom.pem"), &shown("prom.key")).status.success());
    // The doctor on a node that knows all members reads the metrics of each, with the certificates of the node.
    let found = machines.forebay(2, &["doctor", "--cluster", "--json"]).stdout;
    let found: Value = serde_json::from_str(&found).expect("is JSON");
    let of_code = |code: &str| -> Vec<String> {
        let kinds = ["fine", "findings", "unknown"].map(|it| found[it].as_array().expect("a list"));
        let lines = kinds.into_iter().flatten().filter(|line| line["code"] == code);
        lines.map(Value::to_string).collect()
    };
    let of_space = of_code("etcd/space");
    let is_known = |line: &String| line.contains(" used of 8192 MiB, ");
    assert!(of_space.len() == 3 && of_space.iter().all(is_known), "{of_space:?}");
    let of_disks = of_code("etcd/disk-time");
    assert!(
        of_disks.len() == 3 && of_disks.iter().all(|line| crate::doctor::says_how_it_does(line)),
        "{of_disks:?}"
    );
    fs::write(machines.mountpoint(0).join("data/f"), b"kept").expect("writes");

    // A whole node stops, its member with it: the others go on, and it comes back.
    machines.forebay(0, &["umount", path(&machines.mountpoint(0))]).succeeds();
    machines.forebay(0, &["cluster", "stop"]).succeeds();
    assert!(machines.etcd(0).is_none(), "etcd outlives cluster stop");
    machines.wait_until_up(1, &[1, 2]);
    wait_until("the others write", LIMIT, || {
        fs::write(machines.mountpoint(1).join("data/g"), b"later").is_ok()
    });
    assert_eq!(fs::read(machines.mountpoint(2).join("data/g")).expect("reads"), b"later");
    machines.mount(0);
    assert!(machines.etcd(0).is_some());
    machines.wait_until_up(0, &[0, 1, 2]);
    assert_eq!(fs::read(machines.mountpoint(0).join("data/f")).expect("reads"), b"kept");

    // A node that leaves takes its member along.
    machines.forebay(2, &["umount", path(&machines.mountpoint(2))]).succeeds();
    wait_until("the node has handed over and left", LIMIT, || {
        machines.forebay(2, &["cluster", "leave", "--with-disks"]).status.success()
    });
    assert!(machines.etcd(2).is_none(), "etcd outlives cluster leave");
    machines.wait_until_up(0, &[0, 1]);
    fs::write(machines.mountpoint(1).join("data/h"), b"two members").expect("writes");
}

#[test]
fn without_an_installed_etcd_the_error_says_how_to_install_it() {
    let folder = scratch_folder();
    let mut command = Command::new(need::forebay());
    let init = ["cluster", "init", "--name", "g", "--start-etcd", "--address", "127.0.0.1"];
    command.args(init).env("FOREBAY_CLUSTER_HOME", folder.path()).env("PATH", "/nowhere");
    let refused = run(&mut command, LIMIT).refused();
    for part in ["etcd is not installed", "apt-get install etcd-server", "--etcd"] {
        assert!(refused.contains(part), "{refused:?} does not say {part:?}");
    }
    assert!(!folder.path().join("g/node.json").exists());
}
