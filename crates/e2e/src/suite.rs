//! What the suites are told that several tests run: pjdfstest and fsx.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::mounted::scratch_folder;
use crate::{Ended, need, run};

/// `naptime` is longer than the tick of the kernel's coarse clock, also where the machine below keeps the processor that
/// ticks from running for a while (20 ms were too short once). The users are those that every
/// Debian machine has.
const CONFIGURATION: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}

[settings]
naptime = 0.1
allow_remount = ALLOW_REMOUNT

[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// The configuration of pjdfstest, with the cases that remount or without them.
#[must_use]
pub fn pjdfstest_configuration(allow_remount: bool) -> String {
    CONFIGURATION.replace("ALLOW_REMOUNT", &allow_remount.to_string())
}

/// Version 0.2.2 has 398 cases; 13 of them remount, and one is skipped everywhere (docs/semantics.md).
const CASES_MIN: usize = 384;

/// What every program does: read, write, map, truncate, reopen, sync.
pub const FSX_COMMON: &str = "
flen = 262144

[weights]
close_open = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 1
truncate = 5
fsync = 0.1
fdatasync = 0.1
";

/// What makes holes, moves bytes within the kernel and plays with its caches.
pub const FSX_RARE: &str = "
posix_fallocate = 3
punch_hole = 5
sendfile = 5
posix_fadvise = 2
copy_file_range = 5
";

/// Runs fsx with one configuration on one file; its records go to `artifacts`.
///
/// fsx 0.3.2 draws a `posix_fallocate` of no bytes now and then, which every file system has to refuse (posix_fallocate(3):
/// EINVAL), and ends with an error. What it did before that was right, so the run begins again with the next seed.
///
/// # Panics
/// If fsx finds a fault, or is not over within `limit`.
#[track_caller]
pub fn exercise(
    configuration: &Path,
    artifacts: &Path,
    file: &Path,
    operations: u64,
    seed: u64,
    limit: Duration,
) {
    for seed in seed.. {
        let ended = run(
            need::program("fsx")
                .arg("-f")
                .arg(configuration)
                .args(["-N", &operations.to_string(), "-S", &seed.to_string()])
                .arg("-P")
                .arg(artifacts)
                .arg(file),
            limit,
        );
        if allocated_nothing(&ended) {
            println!(
                "fsx with seed {seed} asked for an allocation of no bytes: once more with the next seed"
            );
            continue;
        }
        assert_eq!(ended.code(), 0, "fsx with seed {seed}: {ended:#?}");
        assert!(ended.stdout.contains("A-OK") || ended.stderr.contains("A-OK"), "{ended:#?}");
        return;
    }
}

/// Whether fsx ended because its last operation was a `posix_fallocate` of no bytes.
fn allocated_nothing(ended: &Ended) -> bool {
    let last = ended.stderr.lines().rfind(|line| line.starts_with("[ERROR fsx]"));
    ended.stderr.contains("does not support posix_fallocate")
        && last
            .is_some_and(|line| line.contains("POSIX_FALLOCATE") && line.ends_with(" 0x0 bytes)"))
}

/// Runs pjdfstest in a directory, without the cases that remount.
///
/// # Panics
/// If a case fails, or the suite is not over within `limit`.
#[track_caller]
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

#[cfg(test)]
mod tests {
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn only_an_allocation_of_no_bytes_is_the_tools_own_fault() {
        let said = |last: &str| Ended {
            line: String::new(),
            status: ExitStatus::default(),
            stdout: String::new(),
            stderr: format!(
                "Test file system does not support posix_fallocate.\n[ERROR fsx] {last}\n"
            ),
        };
        assert!(allocated_nothing(&said(
            "18548 POSIX_FALLOCATE 0x3be9c => 0x3be9b (    0x0 bytes)"
        )));
        assert!(!allocated_nothing(&said(
            "18548 POSIX_FALLOCATE 0x3be9c => 0x3be9c (    0x1 bytes)"
        )));
        assert!(!allocated_nothing(&said("18547 READ      0x7196 => 0x13678 ( 0xc4e2 bytes)")));
    }
}
