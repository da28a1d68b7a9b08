//! Names.

use forebay_analytics::Error;
use forebay_base::time::SystemClock;
use forebay_workload::program::Step;

use super::places::{TickClock, context, files_below, run, run_in};

#[test]
fn every_operation_is_timed_for_every_file_and_nothing_is_left() {
    let root = tempfile::tempdir().unwrap();
    for bytes in ["0", "\"5 KiB\""] {
        let settings =
            format!("[names]\ndirectory = \"data/{{job}}\"\nfiles = 50\nfile_bytes = {bytes}");
        let step: Step = toml::from_str(&settings).unwrap();
        let outcome = run_in(&context(root.path(), 0, 1, &TickClock::new()), step).unwrap();
        assert_eq!(outcome.rows, 50);
        for name in ["create", "stat", "rename", "unlink"] {
            // One reading of the clock, and so 10 ms, per file.
            let rate = outcome.figures[&format!("{name}_per_second")];
            assert!((rate - 100.0).abs() < 1e-9, "{name}: {rate}");
            let [bucket] = outcome.latencies[name][..] else { panic!("{name}") };
            assert_eq!(bucket.count, 50, "{name}");
            assert!((10_000_000..10_100_000).contains(&bucket.upto), "{name}: {bucket:?}");
        }
        assert!((outcome.figures["readdir_per_second"] - 5000.0).abs() < 1e-9);
        assert_eq!(outcome.latencies["readdir"].iter().map(|b| b.count).sum::<u64>(), 1);
        assert!(!root.path().join("data/probe-0").exists());
    }
}

#[test]
fn jobs_share_a_directory_without_meeting_each_others_files() {
    let root = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for number in 0..3 {
            let root = root.path();
            scope.spawn(move || {
                let step: Step = toml::from_str(
                    "[names]\ndirectory = \"data/shared\"\nfiles = 300\nstart_together = \"class\"
                     start_limit_seconds = 60",
                )
                .unwrap();
                run_in(&context(root, number, 3, &SystemClock), step).unwrap();
            });
        }
    });
    assert!(files_below(root.path()).is_empty());
}

#[test]
fn a_failure_removes_the_files_and_leaves_those_of_others() {
    let root = tempfile::tempdir().unwrap();
    let shared = root.path().join("data/shared");
    // The eleventh file cannot be made: a directory of its name is there.
    std::fs::create_dir_all(shared.join("probe-0-file-00000010/inner")).unwrap();
    std::fs::write(shared.join("other"), "x").unwrap();
    let result = run(root.path(), "[names]\ndirectory = \"data/shared\"\nfiles = 20");
    match result {
        Err(Error::Io { action: "create", path, .. }) => {
            assert_eq!(path, shared.join("probe-0-file-00000010"));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(files_below(root.path()), ["other"]);
}

#[test]
fn settings_out_of_bounds_are_refused_by_name() {
    let root = tempfile::tempdir().unwrap();
    for (more, setting) in [("files = 0", "files"), ("file_bytes = \"65 MiB\"", "file_bytes")] {
        match run(root.path(), &format!("[names]\ndirectory = \"data/n\"\n{more}")) {
            Err(Error::Setting { setting: named, .. }) => assert_eq!(named, setting),
            other => panic!("{more}: {other:?}"),
        }
    }
    assert!(!root.path().join("data").exists());
}
