//! Services on many nodes: reached from other nodes, and started elsewhere when their node is cut off.

use std::process::Command;

use forebay_e2e::command::run;
use forebay_e2e::wait_until;

use crate::fixture::{ANN, BOB, LIMIT, Nodes, SHORT};

const SERVER: &str = "cd \"$WORK\" && echo \"on $FOREBAY_HOST\" >host && \
                      exec python3 -m http.server \"$FOREBAY_PORT\" --bind 0.0.0.0";

/// What a service says of its host, asked from a node.
fn asked_from(grid: &Nodes, node: usize, address: &str) -> String {
    let script = format!(
        "import urllib.request as u; print(u.urlopen('http://{address}/host', timeout=10).read().decode().strip())"
    );
    let mut python = Command::new("python3");
    python.args(["-c", &script]);
    run(&mut grid.cluster.hosts().command(node, &python), LIMIT).output().trim().to_owned()
}

#[test]
fn a_service_is_reached_from_other_nodes_and_starts_elsewhere_when_its_node_is_cut_off() {
    let grid = Nodes::start(3, 1, SHORT);
    let words = ["service", "start", "web", "--port", "auto", "-m", "n1+1 n2", "--", "sh", "-c"];
    grid.as_user(2, ANN, &[&words[..], &[SERVER]].concat()).succeeds();
    let show = ["service", "show", "web", "--address", "--wait"];
    let first = grid.as_user(0, ANN, &show).output().trim().to_owned();
    assert!(first.starts_with(&format!("{}:", grid.cluster.hosts().address(1))), "{first}");
    assert_eq!(asked_from(&grid, 2, &first), "on n1");
    // A name is its user's.
    assert!(grid.as_user(1, BOB, &show).refused().contains("there is no service web"));

    grid.cluster.hosts().unplug(1);
    wait_until("the service is ready on another node", LIMIT, || {
        let shown = grid.json(0, ANN, &["service", "show", "web"]);
        shown["host"] == "n2" && shown["ready"] == true
    });
    let second = grid.as_user(0, ANN, &show).output().trim().to_owned();
    assert!(second.starts_with(&format!("{}:", grid.cluster.hosts().address(2))), "{second}");
    assert_eq!(asked_from(&grid, 0, &second), "on n2");
    assert_eq!(first.rsplit(':').next(), second.rsplit(':').next(), "under the same port");
    grid.cluster.hosts().plug_in(1);
}
