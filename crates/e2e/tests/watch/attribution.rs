//! Who causes what: users, jobs, filesets; `forebay top`.

use std::path::Path;
use std::process::Child;

use forebay_e2e::command::run;
use forebay_e2e::mounted::{Mounted, Placement};
use forebay_e2e::need;
use serde_json::Value;

use crate::fixture::{LIMIT, Watched, get, value};

/// The rows of `forebay stat --by`.
fn rows(mountpoint: &Path, by: &str) -> Vec<Value> {
    let mut command = std::process::Command::new(need::forebay());
    let json =
        run(command.arg("stat").arg(mountpoint).args(["--by", by, "--json"]), LIMIT).output();
    let report: Value = serde_json::from_str(&json).unwrap();
    report["rows"].as_array().unwrap().clone()
}

/// The sum of a field over the rows with these values.
fn sum(rows: &[Value], wanted: &[(&str, &str)], field: &str) -> u64 {
    let fits = |row: &&Value| wanted.iter().all(|(key, value)| row[*key] == *value);
    rows.iter().filter(fits).map(|row| row[field].as_u64().unwrap()).sum()
}

/// A program that becomes an ordinary user and makes a file, waits for another one outside, then writes and reads so many bytes.
const PROGRAM: &str = "
import os, sys, time
path, go, size, user = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
os.setgid(user)
os.setuid(user)
file = os.open(path, os.O_RDWR | os.O_CREAT)
while not os.path.exists(go):
    time.sleep(0.01)
os.write(file, bytes(size))
os.fsync(file)
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
assert len(os.pread(file, size, 0)) == size
os.close(file)
";

/// An ordinary user's program in a job, or in none.
fn start(grid: &Mounted, uid: &str, name: &str, size: u32, variables: &[(&str, &str)]) -> Child {
    let mut command = need::program("python3");
    command.args(["-c", PROGRAM]).arg(grid.data().join(name)).arg(grid.outside().join("go"));
    command.args([&size.to_string(), uid]);
    command.envs(variables.iter().copied()).spawn().unwrap()
}

#[test]
fn work_is_attributed_to_users_and_jobs() {
    const KIB: u32 = 1024;
    for placement in [Placement::Direct, Placement::Served] {
        let grid = Mounted::start(placement);
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(grid.data(), everybody).unwrap();
        let children = [
            start(&grid, "4321", "a", 400 * KIB, &[]),
            start(&grid, "4321", "b", 800 * KIB, &[("FOREBAY_JOB", "17"), ("FOREBAY_INDEX", "0")]),
            start(&grid, "4322", "c", 1600 * KIB, &[("SLURM_JOB_ID", "5")]),
        ];
        forebay_e2e::wait_until("all three are known", LIMIT, || {
            let found = rows(&grid.mountpoint(), "job");
            let who = [("-", "4321"), ("17", "4321"), ("slurm-5", "4322")];
            who.iter()
                .all(|(job, user)| sum(&found, &[("job", job), ("user", user)], "operations") > 0)
        });
        std::fs::write(grid.outside().join("go"), "").unwrap();
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
        let by_user = rows(&grid.mountpoint(), "user");
        let written = |user: &str| sum(&by_user, &[("user", user)], "written_bytes");
        assert_eq!((written("4321"), written("4322")), (1200 << 10, 1600 << 10), "{by_user:#?}");
        let by_job = rows(&grid.mountpoint(), "job");
        for (job, user, bytes) in
            [("-", "4321", 400 << 10), ("17", "4321", 800 << 10), ("slurm-5", "4322", 1600 << 10)]
        {
            let of_job = |field: &str| sum(&by_job, &[("job", job), ("user", user)], field);
            assert_eq!(of_job("written_bytes"), bytes, "{job}: {by_job:#?}");
            // On the direct path the kernel reads: nothing is known of it, and nothing is made up.
            let read = if placement == Placement::Direct { 0 } else { bytes };
            assert_eq!(of_job("read_bytes"), read, "{job}: {by_job:#?}");
        }
        let by_fileset = rows(&grid.mountpoint(), "fileset");
        let written = sum(&by_fileset, &[("fileset", "data")], "written_bytes");
        assert_eq!(written, 2800 << 10, "{by_fileset:#?}");
        let table =
            grid.run(&["stat", &grid.mountpoint().display().to_string(), "--by", "job"]).output();
        assert!(table.contains("slurm-5") && table.contains("OPERATIONS"), "{table}");
    }
}

#[test]
fn jobs_of_the_grid_are_known_by_their_control_group() {
    let watched = Watched::start();
    // A process without the variables of its job.
    let file = watched.mountpoint().join("data/file");
    let line = "while :; do echo x > $0; sleep 0.2; done";
    let script = format!("env -i PATH=$PATH sh -c '{line}' {}", file.display());
    let job = watched.forebay(&["submit", "--", "sh", "-c", &script]).output().trim().to_owned();
    let of_job = || {
        let found = rows(&watched.mountpoint(), "job");
        sum(&found, &[("job", &job)], "operations")
    };
    forebay_e2e::wait_until("the job is known by its operations", LIMIT, || of_job() > 5);
    let (_, page) = get(watched.mount(), "/metrics/jobs", "");
    assert!(
        value(&page, &format!("forebay_job_operations_total{{job=\"{job}\",user=\"root\"}}")) > 5.0,
        "{page}"
    );
    let (_, page) = get(watched.mount(), "/metrics/users", "");
    assert!(value(&page, "forebay_user_operations_total{user=\"root\"}") > 5.0, "{page}");
    let top = watched.forebay(&[
        "top",
        &watched.root().display().to_string(),
        "--once",
        "--interval",
        "2",
        "--json",
    ]);
    let top: Value = serde_json::from_str(&top.output()).unwrap();
    let causes = top["causes"].as_array().unwrap();
    assert!(sum(causes, &[("job", &job)], "operations") > 0, "{top:#}");
    assert!(
        top["operations"].as_array().unwrap().iter().any(|row| row["count"].as_u64() > Some(0)),
        "{top:#}"
    );
    assert!(top["jobs"].as_array().unwrap().iter().any(|row| row["job"] == *job), "{top:#}");
    assert_eq!(top["grid"]["slots"], 4, "{top:#}");
    let text = watched.forebay(&["top", "--once", "--interval", "0.5"]).output();
    for part in [
        "operations/s",
        "P99 us",
        "WRITTEN/s",
        "of 4 slots in use",
        "PROCESSORS",
        "I/O WAIT",
        "CALLS/s",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    watched.forebay(&["kill", &job]).succeeds();
}

/// What the list of running jobs says of a job, or of a user.
fn running(watched: &Watched, by: &str, whose: &str) -> Option<Value> {
    let place = watched.mountpoint().display().to_string();
    let report = watched.forebay(&["stat", &place, "--by", by, "--json"]).output();
    let report: Value = serde_json::from_str(&report).unwrap();
    report["running"].as_array().unwrap().iter().find(|row| row[by] == *whose).cloned()
}

#[test]
fn what_a_running_job_does_in_its_native_area_is_shown_beside_what_the_daemon_knows() {
    let watched = Watched::start();
    let script =
        "head -c 4000000 /dev/zero > $WORK/file; cat $WORK/file > /dev/null; sleep 600 & wait";
    let job = watched.forebay(&["submit", "--", "sh", "-c", script]).output().trim().to_owned();
    let number = |row: &Value, field: &str| row[field].as_u64().unwrap_or(0);
    forebay_e2e::wait_until("its host says what it read and wrote", LIMIT, || {
        running(&watched, "job", &job).is_some_and(|row| {
            let bytes = ["read_bytes", "written_bytes"].map(|field| number(&row, field));
            let calls = ["read_calls", "write_calls"].map(|field| number(&row, field));
            bytes.iter().all(|bytes| *bytes >= 4_000_000)
                && calls.iter().all(|calls| *calls > 0)
                && row["device_read_bytes"].is_u64()
        })
    });
    // The daemon has not seen any of it: the area is a directory of the local disk.
    let seen = rows(&watched.mountpoint(), "job");
    assert!(sum(&seen, &[("job", &job)], "written_bytes") < 4_000_000, "{seen:#?}");
    let user = running(&watched, "user", "root").expect("the user has a job");
    assert!(number(&user, "written_bytes") >= 4_000_000, "{user}");
    let place = watched.mountpoint().display().to_string();
    let text = watched.forebay(&["stat", &place, "--by", "job"]).output();
    for part in
        ["FROM DISK", "native filesets and the direct path included", "is not counted anywhere"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let by_fileset = watched.forebay(&["stat", &place, "--by", "fileset"]).output();
    assert!(by_fileset.contains("Not counted here") && !by_fileset.contains("FROM DISK"));
    let top = watched.forebay(&["top", "--once", "--interval", "0.2", "--json"]).output();
    let top: Value = serde_json::from_str(&top).unwrap();
    let row = top["jobs"].as_array().unwrap().iter().find(|row| row["job"] == *job).unwrap();
    for field in ["read_bytes_per_second", "calls_per_second", "device_read_bytes_per_second"] {
        assert!(row[field].is_f64(), "{field}: {row}");
    }
    let (_, page) = get(watched.controller(), "/metrics/jobs", "");
    let labels = format!("{{job=\"{job}\",user=\"root\",queue=\"normal\"}}");
    assert!(value(&page, &format!("forebay_job_write_calls{labels}")) > 0.0, "{page}");
    assert!(value(&page, &format!("forebay_job_device_read_bytes{labels}")) >= 0.0, "{page}");
    watched.forebay(&["kill", &job]).succeeds();
}
