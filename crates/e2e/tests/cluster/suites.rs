//! The suites that a mount of one machine passes, on a node that does not own the files.

use std::fs;
use std::path::Path;
use std::time::Duration;

use forebay_e2e::mounted::scratch_folder;
use forebay_e2e::suite::{self, FSX_COMMON, FSX_RARE, pjdfstest_configuration};
use forebay_e2e::{Cluster, need, run, seed, setting};

const LIMIT: Duration = Duration::from_secs(400);

/// Version 0.2.2 has 398 cases; 13 of them remount, and one is skipped everywhere (docs/semantics.md).
const CASES_MIN: usize = 384;

/// Runs pjdfstest in a directory: every case passes.
pub fn passes_pjdfstest(place: &Path, limit: Duration) {
    let folder = scratch_folder();
    let outside = folder.path();
    let configuration = outside.join("pjdfstest.toml");
    fs::write(&configuration, pjdfstest_configuration(false)).expect("writes the configuration");
    let ended = run(
        need::program("pjdfstest")
            .env("NO_COLOR", "1")
            .arg("--configuration-file")
            .arg(&configuration)
            .arg("--path")
            .arg(place)
            .arg("--secondary-fs")
            .arg(outside),
        limit,
    );
    let failed: Vec<&str> =
        ended.stdout.lines().filter(|line| line.trim_end().ends_with(" FAILED")).collect();
    assert!(failed.is_empty(), "{failed:#?}\n{}", ended.stdout);
    let passed = ended.stdout.lines().filter(|line| line.trim_end().ends_with(" ok")).count();
    assert!(passed >= CASES_MIN, "only {passed} cases passed: {ended:#?}");
}

#[test]
fn every_pjdfstest_case_passes_on_a_node_that_does_not_own_the_files() {
    let cluster = Cluster::start(2);
    passes_pjdfstest(&cluster.mountpoint(1).join("data"), LIMIT);
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
