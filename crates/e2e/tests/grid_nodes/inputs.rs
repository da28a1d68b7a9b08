//! A job that names its inputs starts on the node that is their home, if it can.

use crate::fixture::{ANN, LIMIT, Nodes, text};
use forebay_e2e::wait_until;

#[test]
fn a_job_prefers_the_node_that_is_the_home_of_its_inputs() {
    let grid = Nodes::start(2, 1, "");
    let mount = grid.cluster.mountpoint(0);
    // The folder of a node in native scratch; the file need not be there yet.
    for node in ["n0", "n1", "n1"] {
        let input = text(&mount.join("work").join(node).join("some/file"));
        let job = grid.submit(0, ANN, &["--input", &input], "true");
        grid.wait_for(0, &job, "done");
        let told = grid.json(0, ANN, &["jobs", &job]);
        assert_eq!(told[0]["host"], node, "{told}");
        assert_eq!(told[0]["asked"]["inputs"][0]["home"], node, "{told}");
        let why = grid.as_user(0, ANN, &["explain", &job]).output();
        assert!(why.contains("home of 1 input"), "{why}");
    }
    // Other files belong to the node that owns their fileset. One that was moved by hand stays there.
    grid.cluster.forebay(0, &["fileset", "owner", "/", "--move", "n0"]).succeeds();
    // For so long a controller may remember who it was before.
    std::thread::sleep(std::time::Duration::from_secs(3));
    let owner = grid.cluster.forebay(0, &["fileset", "owner", "/", "--json"]).output();
    let owner: serde_json::Value = serde_json::from_str(&owner).expect("JSON");
    let owner = owner["owner"].clone();
    let file = grid.shared(0).join("file");
    std::fs::write(&file, "x").expect("writes");
    let job = grid.submit(1, ANN, &["--input", &text(&file)], "true");
    grid.wait_for(0, &job, "done");
    let told = grid.json(0, ANN, &["jobs", &job]);
    assert_eq!(told[0]["host"], owner, "{told}");
    // It is a preference: a job does not wait for a host that is full.
    let full = grid.submit(0, ANN, &["-m", "n1", "-n", "4"], "sleep 605 & wait");
    grid.wait_for(0, &full, "running");
    let input = text(&mount.join("work/n1/some/file"));
    let job = grid.submit(0, ANN, &["--input", &input], "true");
    grid.wait_for(0, &job, "done");
    assert_eq!(grid.json(0, ANN, &["jobs", &job])[0]["host"], "n0");
    grid.as_user(0, ANN, &["kill", &full]).succeeds();
    wait_until("it ends", LIMIT, || grid.state(0, &full).as_deref() == Some("killed"));
}
