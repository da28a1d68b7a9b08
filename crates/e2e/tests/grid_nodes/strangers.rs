//! Who is not a node gets nowhere.

use forebay_e2e::command::run;
use forebay_e2e::{need, wait_until};

use crate::fixture::{ANN, LIMIT, Nodes};

/// Greets the relay of a node as one without a certificate, and prints what it answers.
const STRANGER: &str = r#"
import json, socket, ssl, struct, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname = False
context.verify_mode = ssl.CERT_NONE
plain = socket.create_connection((sys.argv[1], 7441), timeout=10)
stream = context.wrap_socket(plain)
identity = {"uid": 0, "user": "root", "gid": 0, "group": "root"}
words = {"version": 1, "cluster": sys.argv[2], "wanted": "controller", "identity": identity}
body = json.dumps(words).encode()
stream.sendall(struct.pack("<I", len(body)) + body)
print(stream.recv(4096)[4:].decode())
"#;

#[test]
fn a_stranger_and_a_node_that_was_removed_are_served_by_nobody() {
    let grid = Nodes::start(2, 1, "");
    let file = std::fs::read(grid.cluster.home(0).join("node.json")).expect("reads");
    let node: serde_json::Value = serde_json::from_slice(&file).expect("is JSON");
    let id = node["cluster"].as_str().expect("an id").to_owned();
    let mut python = need::program("python3");
    python.args(["-c", STRANGER, &grid.cluster.hosts().address(0), &id]);
    // The host of etcd is no node.
    let answer = run(&mut grid.cluster.hosts().command(2, &python), LIMIT).output();
    assert!(answer.contains("no certificate"), "{answer}");

    let job = grid.submit(1, ANN, &["-m", "n0"], "sleep 600");
    grid.wait_for(1, &job, "running");
    // Its agent and its relay go on without the file system.
    grid.cluster.kill(1);
    let remove = ["cluster", "remove", "n1", "--with-disks"];
    wait_until("its lease is over", LIMIT, || grid.cluster.forebay(0, &remove).status.success());
    wait_until("its agent is cut off", LIMIT, || {
        let hosts = grid.json(0, 0, &["hosts"]);
        hosts.as_array().is_some_and(|hosts| {
            hosts.iter().any(|host| host["name"] == "n1" && host["state"] != "up")
        })
    });
    let refused = grid.as_user(1, ANN, &["kill", &job]).refused();
    assert!(refused.contains("removed"), "{refused}");
    assert_eq!(grid.state(0, &job).as_deref(), Some("running"));
}

#[test]
fn users_with_other_numbers_on_another_node_are_refused_with_both_numbers() {
    let grid = Nodes::start(2, 1, "");
    grid.down(1).succeeds();
    let file = grid.root(1).with_file_name("passwd");
    let here = std::fs::read_to_string("/etc/passwd").expect("reads");
    let others = here.lines().filter(|line| !line.starts_with("daemon:"));
    let mut there: Vec<&str> = others.collect();
    there.push("mallory:x:1:1::/:/bin/sh");
    there.push("daemon:x:4242:1::/:/bin/sh");
    std::fs::write(&file, there.join("\n") + "\n").expect("writes");
    grid.up_with_users(1, &file).succeeds();
    // Number 1 is somebody else there.
    wait_until("the grid answers there", LIMIT, || {
        !grid.as_user(1, ANN, &["jobs"]).stderr.contains("does not answer")
    });
    // Each time: the refusal is on its way before the controller is asked anything.
    for _ in 0..20 {
        let refused = grid.as_user(1, ANN, &["jobs"]).refused();
        for word in ["mallory has number 1 on node n1", "no user mallory", "same numbers"] {
            assert!(refused.contains(word), "{word}: {refused}");
        }
    }
    // And a job of this one's user would run as another one there.
    let job = grid.submit(0, ANN, &["-m", "n1"], "true");
    grid.wait_for(0, &job, "exited");
    let explained = grid.as_user(0, ANN, &["history", &job]).output()
        + &grid.as_user(0, ANN, &["explain", &job]).output();
    assert!(explained.contains("4242"), "{explained}");
}
