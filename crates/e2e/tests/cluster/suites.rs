//! The suites that a mount of one machine passes, on a node that does not own the files.

use std::fs;
use std::time::Duration;

use forebay_e2e::suite::{self, FSX_COMMON, FSX_RARE};
use forebay_e2e::{Cluster, seed, setting};

const LIMIT: Duration = Duration::from_secs(400);

#[test]
fn every_pjdfstest_case_passes_on_a_node_that_does_not_own_the_files() {
    let cluster = Cluster::start(2);
    suite::passes_pjdfstest(&cluster.mountpoint(1).join("data"), LIMIT);
}

#[test]
fn fsx_finds_every_byte_on_every_node() {
    let cluster = Cluster::start(2);
    let seed = seed("cluster");
    let operations = setting("FOREBAY_E2E_FSX_OPERATIONS", 100_000) / 10;
    let configuration = cluster.home(0).join("fsx.toml");
    fs::write(&configuration, format!("{FSX_COMMON}{FSX_RARE}")).expect("writes the configuration");
    for node in 0..2 {
        let file = cluster.mountpoint(node).join(format!("data/fsx-{node}"));
        suite::exercise(&configuration, &cluster.home(0), &file, operations, seed, LIMIT);
    }
}
