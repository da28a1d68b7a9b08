//! `forebay cluster`: nodes that join, show themselves, die, are removed and leave. Each node has a folder and a port of its own on
//! this machine, and the installed etcd coordinates them.
#![allow(clippy::disallowed_methods, reason = "time limits of tests need the machine's clock")]

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_e2e::{Ended, need, run, wait_until};
use forebay_etcd::testing::EtcdServer;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(120);

/// A machine: a folder for its node, and an address.
struct Machine {
    home: PathBuf,
    name: String,
    address: String,
}

impl Machine {
    fn new(folder: &Path, number: u32) -> Machine {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        Machine {
            home: folder.join(format!("machine{number}")),
            name: format!("host{number}"),
            address: format!("127.0.0.1:{}", port.expect("a free port").port()),
        }
    }

    fn cluster(&self, arguments: &[&str]) -> Ended {
        let mut command = std::process::Command::new(need::forebay());
        command.arg("cluster").args(arguments).env("FOREBAY_CLUSTER_HOME", &self.home);
        run(&mut command, LIMIT)
    }

    /// `init` or `join`, with what this machine says about itself.
    fn enter(&self, arguments: &[&str]) -> Ended {
        let own = ["--node", &self.name, "--address", &self.address];
        self.cluster(&[arguments, &own].concat())
    }

    fn token(&self) -> String {
        self.cluster(&["token"]).output().trim().to_owned()
    }

    fn status(&self) -> Value {
        let text = self.cluster(&["status", "--json"]).output();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// The states of all nodes, in order.
    fn states(&self) -> Vec<String> {
        let status = self.status();
        let nodes = status["nodes"].as_array().expect("a list of nodes");
        let state = |node: &Value| format!("{} {}", text(&node["name"]), text(&node["state"]));
        nodes.iter().map(state).collect()
    }

    fn node_folder(&self) -> PathBuf {
        self.home.join("grid1")
    }

    fn daemon(&self) -> Option<Pid> {
        let number = fs::read_to_string(self.node_folder().join("lock")).ok()?;
        let pid = number.trim().parse().ok()?;
        // The number of a daemon that has ended may be another process's.
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let home = self.home.as_os_str().as_encoded_bytes();
        line.windows(home.len()).any(|part| part == home).then(|| Pid::from_raw(pid)).flatten()
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.daemon().expect("the daemon runs"), signal).expect("signals");
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(pid) = self.daemon() {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

#[track_caller]
fn assert_says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
}

/// Which nodes run: the one that asks is up, whatever the others are.
fn wait_for_states(machine: &Machine, expected: &[&str]) {
    let mut last = Vec::new();
    let start = std::time::Instant::now();
    while start.elapsed() < LIMIT {
        last = machine.states();
        if last == expected {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("the nodes are {last:?}, not {expected:?}");
}

#[test]
fn machines_become_a_cluster_and_stop_being_one() {
    let etcd = EtcdServer::single();
    let urls = etcd.endpoints().join(",");
    let folder = tempfile::tempdir().expect("makes a folder");
    let [one, two, three] = [1, 2, 3].map(|number| Machine::new(folder.path(), number));
    let init = ["init", "--name", "grid1", "--etcd", &urls];
    assert_says(&one.enter(&init).output(), &["made cluster grid1", "node 1, host1"]);
    assert_says(&one.enter(&init).output(), &["already"]);
    wait_for_states(&one, &["host1 up"]);
    assert_says(&two.enter(&init).refused(), &["the name grid1 is taken", "join"]);

    // Two more join, one with a disk.
    let token = one.token();
    assert_says(&two.enter(&["join", &token]).output(), &["joined cluster grid1", "node 2"]);
    let disk = folder.path().join("disk");
    fs::create_dir(&disk).expect("makes a folder");
    let disk = disk.to_str().expect("a plain path");
    three.enter(&["join", &token, "--disk", disk]).succeeds();
    for machine in [&one, &two, &three] {
        wait_for_states(machine, &["host1 up", "host2 up", "host3 up"]);
    }
    let status = one.status();
    let disks = status["disks"].as_object().expect("disks by identity");
    // The first node brought a folder of its own.
    assert_eq!(disks.len(), 2);
    assert!(disks.values().any(|found| found["location"] == disk && found["node"] == 3));
    let table = one.cluster(&["status"]).output();
    assert_says(&table, &["host2", &two.address, "up", "authority", disk]);
    assert_says(&two.cluster(&["token"]).refused(), &["does not hold the key", "status"]);
    assert_says(&three.enter(&["join", &token[..30]]).refused(), &["incomplete", "copy"]);

    // A frozen node and a dead one are seen, and come back.
    two.signal(Signal::STOP);
    wait_for_states(&one, &["host1 up", "host2 down", "host3 up"]);
    two.signal(Signal::CONT);
    wait_for_states(&one, &["host1 up", "host2 up", "host3 up"]);
    three.signal(Signal::KILL);
    wait_until("the daemon is gone", LIMIT, || three.daemon().is_none());
    assert_says(&one.cluster(&["remove", "host3"]).refused(), &["host3 is running", "lease"]);
    wait_for_states(&one, &["host1 up", "host2 up", "host3 down"]);

    // Removed, it gets nowhere although its certificate is valid.
    assert_says(&one.cluster(&["remove", "host3"]).refused(), &[disk, "--with-disks"]);
    one.cluster(&["remove", "host3", "--with-disks"]).succeeds();
    assert_says(&three.cluster(&["start"]).refused(), &["removed", "forebay cluster leave"]);
    three.cluster(&["leave"]).succeeds();

    // Maintenance, and the end.
    one.cluster(&["drain", "host2"]).succeeds();
    assert_eq!(one.status()["nodes"][1]["draining"], true);
    one.cluster(&["drain", "host2", "--undo"]).succeeds();
    assert_eq!(one.status()["nodes"][1]["draining"], false);
    two.cluster(&["stop"]).succeeds();
    assert!(two.daemon().is_none());
    two.cluster(&["start"]).succeeds();
    let leave = ["leave", "--with-disks"];
    assert_says(&one.cluster(&leave).refused(), &["only one", "--with-authority"]);
    wait_for_states(&one, &["host1 up", "host2 up"]);
    two.cluster(&["leave"]).succeeds();
    wait_for_states(&one, &["host1 up"]);
    assert_says(&one.cluster(&leave).refused(), &["--last"]);
    one.cluster(&["leave", "--with-disks", "--last"]).succeeds();
    assert_says(&one.cluster(&["status"]).refused(), &["not a node of a cluster", "init"]);
    // The name is free.
    one.enter(&init).succeeds();
}

#[test]
fn commands_and_nodes_survive_an_etcd_that_is_killed() {
    let mut etcd = EtcdServer::single();
    let urls = etcd.endpoints().join(",");
    let folder = tempfile::tempdir().expect("makes a folder");
    let one = Machine::new(folder.path(), 1);
    one.enter(&["init", "--name", "grid1", "--etcd", &urls]).succeeds();
    wait_for_states(&one, &["host1 up"]);
    etcd.kill(0);
    let refused = one.cluster(&["status"]).refused();
    assert_says(&refused, &["cannot be reached", "this node, host1, is"]);
    // Long enough for the lease to be over: the node waits.
    wait_until("the node waits", LIMIT, || {
        one.cluster(&["status"]).refused().contains("host1, is waiting")
    });
    etcd.restart(0);
    wait_for_states(&one, &["host1 up"]);
}
