//! The POSIX suite `pjdfstest` on a real mount, as root.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::time::Duration;

use forebay_e2e::suite::pjdfstest_configuration;
use forebay_e2e::{LoopDisk, Mounted, Native, copy_program, need, on_every_way, on_native, run};

/// Cases that do not run, each with the reason. docs/semantics.md shows the same list.
const EXPECTED_SKIPS: [(&str, &str); 1] = [(
    "link::link_count_max",
    "the C library knows no limit of links for FUSE file systems (nor for XFS), so the suite skips it",
)];

/// Fewer cases than this mean that the suite did not do its work; version 0.2.2 has 398 on Linux.
const CASES_MIN: usize = 398;

/// The suite remounts with mount(8). For a FUSE file system that would look for a program to mount
/// with; `-i` asks the kernel alone.
const MOUNT_BY_THE_KERNEL: &str = "#!/bin/sh\nexec /bin/mount -i \"$@\"\n";

/// A bind mount alone is to be remounted, not the disk beneath it.
const MOUNT_BOUND: &str = "#!/bin/sh\nexec /bin/mount -i -o bind \"$@\"\n";

on_every_way!(every_pjdfstest_case_passes);

on_native!(every_pjdfstest_case_passes);

/// Another file system than that of most tests, whose own limits must not show through.
#[test]
fn every_pjdfstest_case_passes_on_a_native_fileset_that_is_served_from_xfs() {
    let disk = LoopDisk::make("xfs", 400);
    let grid = Mounted::make_native_in(Native::Served, Some(&disk.path()));
    grid.mount();
    every_pjdfstest_case_passes(&grid);
}

fn every_pjdfstest_case_passes(grid: &Mounted) {
    // Version 0.2.2 leaves files open for writing, which makes later remounts fail on any file system:
    // the cases that remount have a process of their own.
    let without_remounts = run_suite(grid, false, &[]);
    let with_remounts = run_suite(grid, true, &["erofs"]);
    let mut verdicts = verdicts(&without_remounts);
    verdicts.extend(self::verdicts(&with_remounts));

    let with = |verdict: &str| -> BTreeSet<&str> {
        verdicts.iter().filter(|(_, found)| **found == verdict).map(|(name, _)| *name).collect()
    };
    let failures = failures(&without_remounts) + &failures(&with_remounts);
    assert!(with("FAILED").is_empty(), "{failures}");
    for (name, reason) in EXPECTED_SKIPS {
        // Past the capture of the test runner: a summary shows what was skipped.
        let _ = writeln!(std::io::stderr(), "pjdfstest expected skip: {name}: {reason}");
    }
    let skipped = with("skipped");
    let expected: BTreeSet<&str> = EXPECTED_SKIPS.iter().map(|(name, _)| *name).collect();
    // On a native fileset that is bound the suite sees the disk's own file system, and may know its limit.
    let is_bound = grid.native() == Some(Native::Bound);
    let is_right = skipped == expected || is_bound && skipped.is_empty();
    assert!(is_right, "other cases are skipped than those listed: {skipped:?}");
    assert!(verdicts.len() >= CASES_MIN, "only {} cases", verdicts.len());
}

/// Runs the cases whose names contain one of the patterns, or all; returns what the suite prints.
fn run_suite(grid: &Mounted, allow_remount: bool, patterns: &[&str]) -> String {
    let configuration = grid.outside().join("pjdfstest.toml");
    fs::write(&configuration, pjdfstest_configuration(allow_remount))
        .expect("writes the configuration");
    let programs = grid.outside().join("bin");
    let mount = programs.join("mount");
    fs::create_dir_all(&programs).expect("makes a folder");
    let script = grid.outside().join("mount.sh");
    let is_bound = grid.native() == Some(Native::Bound);
    let program = if is_bound { MOUNT_BOUND } else { MOUNT_BY_THE_KERNEL };
    fs::write(&script, program).expect("writes a program");
    copy_program(&script, &mount);
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    let ended = run(
        need::program("pjdfstest")
            .env("PATH", path)
            .env("NO_COLOR", "1")
            .env("RUST_BACKTRACE", "0")
            .arg("--configuration-file")
            .arg(&configuration)
            .arg("--path")
            .arg(grid.work())
            .arg("--secondary-fs")
            .arg(grid.outside())
            .args(patterns),
        Duration::from_secs(300),
    );
    assert!(ended.stdout.contains("Summary"), "the suite did not come to its end: {ended:#?}");
    ended.stdout
}

/// Name and verdict of every case in the output of the suite.
fn verdicts(output: &str) -> BTreeMap<&str, &str> {
    output
        .lines()
        .filter(|line| !line.starts_with(char::is_whitespace))
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (name, verdict) = (words.next()?, words.next()?);
            ["ok", "FAILED", "skipped"].contains(&verdict).then_some((name, verdict))
        })
        .collect()
}

/// The lines of the failed cases, each with the reason that follows it.
fn failures(output: &str) -> String {
    let mut failed = false;
    let mut lines = String::new();
    for line in output.lines() {
        if !line.starts_with(char::is_whitespace) {
            failed = line.ends_with("FAILED");
        }
        if failed {
            lines = lines + line + "\n";
        }
    }
    lines
}
