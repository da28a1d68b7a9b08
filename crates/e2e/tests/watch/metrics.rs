//! Pages of metrics of a mount, a controller and agents.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use forebay_e2e::command::run;
use forebay_e2e::mounted::{Mounted, Placement, is_mounted};
use forebay_e2e::need;

use crate::fixture::{LIMIT, Watched, free_ports, get, value};

/// Has the checker of Prometheus look at a page.
fn is_fine(port: u16, path: &str) {
    let (status, page) = get(port, path, "Accept: text/plain\r\n");
    assert_eq!(status, 200, "{page}");
    let mut check = need::program("promtool");
    let mut child = check
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let found = child.wait_with_output().unwrap();
    let said = [found.stdout, found.stderr].concat();
    assert!(
        found.status.success() && said.is_empty(),
        "{path}: {}",
        String::from_utf8_lossy(&said)
    );
}

#[test]
fn every_daemon_counts_what_happens() {
    let watched = Watched::start();
    watched.use_files();
    watched.run_jobs(3, "head -c 300000 /dev/zero > $WORK/file; cat $WORK/file > /dev/null");
    watched.run_jobs(1, "exit 3");
    let (status, page) = get(watched.mount(), "/metrics", "");
    assert_eq!(status, 200);
    assert!(page.ends_with("# EOF\n"), "{page}");
    let of_data = |name: &str, operation: &str| {
        value(&page, &format!("{name}{{fileset=\"data\",operation=\"{operation}\"}}"))
    };
    for (operation, least) in [("create", 20.0), ("rename", 20.0), ("open", 20.0), ("sync", 1.0)] {
        assert!(of_data("forebay_operations_total", operation) >= least, "{operation}: {page}");
        let took = of_data("forebay_operation_duration_seconds_count", operation);
        assert!(took >= least, "{operation}: {page}");
        assert!(
            of_data("forebay_operation_duration_seconds_sum", operation) > 0.0,
            "{operation}: {page}"
        );
    }
    let written = value(&page, "forebay_written_bytes_total{fileset=\"data\"}");
    assert!((2_000_000.0..4_000_000.0).contains(&written), "{written}");
    let errors =
        "forebay_operation_errors_total{fileset=\"data\",operation=\"unlink\",error=\"ENOTEMPTY\"}";
    assert_eq!(value(&page, errors), 1.0, "{page}");
    assert!(
        value(&page, "forebay_commit_duration_seconds_count{fileset=\"data\"}") >= 1.0,
        "{page}"
    );
    assert!(value(&page, "forebay_committed_records_total{fileset=\"data\"}") >= 1.0, "{page}");
    assert!(page.contains("forebay_disk_available_bytes{disk="), "{page}");
    assert!(value(&page, "forebay_fileset_inodes{fileset=\"data\"}") >= 3.0, "{page}");
    assert!(value(&page, "process_resident_memory_bytes") > 1e6, "{page}");
    let (_, page) = get(watched.controller(), "/metrics", "");
    let queue = |name: &str| value(&page, &format!("{name}{{queue=\"normal\"}}"));
    assert_eq!(queue("forebay_tasks_submitted_total"), 4.0, "{page}");
    assert_eq!(queue("forebay_tasks_started_total"), 4.0, "{page}");
    assert_eq!(
        value(&page, "forebay_tasks_ended_total{queue=\"normal\",state=\"done\"}"),
        3.0,
        "{page}"
    );
    assert_eq!(
        value(&page, "forebay_tasks_ended_total{queue=\"normal\",state=\"exited\"}"),
        1.0,
        "{page}"
    );
    assert!(queue("forebay_ended_written_bytes_total") >= 900_000.0, "{page}");
    assert_eq!(queue("forebay_task_wait_seconds_count"), 4.0, "{page}");
    assert_eq!(queue("forebay_dispatch_seconds_count"), 4.0, "{page}");
    assert_eq!(value(&page, "forebay_host_up{host=\"host2\"}"), 1.0, "{page}");
    assert_eq!(value(&page, "forebay_host_slots{host=\"host1\"}"), 2.0, "{page}");
    assert!(value(&page, "forebay_journal_records_total") >= 8.0, "{page}");
    let (_, page) = get(watched.host(1), "/metrics", "");
    assert_eq!(value(&page, "forebay_agent_connected{host=\"host1\"}"), 1.0, "{page}");
    assert!(value(&page, "forebay_machine_processors{host=\"host1\"}") >= 1.0, "{page}");
    for (port, path) in [
        (watched.mount(), "/metrics"),
        (watched.controller(), "/metrics"),
        (watched.controller(), "/metrics/jobs"),
        (watched.controller(), "/metrics/users"),
        (watched.host(2), "/metrics"),
    ] {
        is_fine(port, path);
    }
}

#[test]
fn running_jobs_and_their_users_have_pages_of_their_own() {
    let watched = Watched::start();
    let job = watched.forebay(&[
        "submit",
        "--",
        "sh",
        "-c",
        "while :; do head -c 100000 /dev/zero | tail -c 1 > /dev/null; sleep 0.1; done",
    ]);
    let job = job.output().trim().to_owned();
    let user = "root";
    let read = || get(watched.controller(), "/metrics/jobs", "").1;
    let series =
        format!("forebay_job_processor_seconds{{job=\"{job}\",user=\"{user}\",queue=\"normal\"}}");
    forebay_e2e::wait_until("the host has said what the job uses", LIMIT, || {
        read().contains(&series)
    });
    let users = || get(watched.controller(), "/metrics/users", "").1;
    let running = format!("forebay_user_tasks{{user=\"{user}\",state=\"running\"}} 1");
    forebay_e2e::wait_until("the job counts as running", LIMIT, || users().contains(&running));
    let page = users();
    assert_eq!(value(&page, &format!("forebay_user_slots{{user=\"{user}\"}}")), 1.0);
    let (_, main) = get(watched.controller(), "/metrics", "");
    assert!(!main.contains("user=") && !main.contains("job="), "{main}");
    watched.forebay(&["kill", &job]).succeeds();
}

#[test]
fn metrics_are_off_unless_requested_and_other_machines_need_a_token() {
    let port = free_ports(1);
    let grid = Mounted::make(Placement::Direct);
    grid.mount();
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
    grid.umount();
    let mount = |options: &[&str]| run(grid.mount_command().args(options), LIMIT);
    let everywhere = format!("0.0.0.0:{port}");
    let refused = mount(&["--metrics", &everywhere]).refused();
    assert!(refused.contains("--metrics-token") && refused.contains(&everywhere), "{refused}");
    let file = grid.outside().join("token");
    std::fs::write(&file, "0123456789abcdef\n").unwrap();
    let token = file.display().to_string();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let refused = mount(&["--metrics", &everywhere, "--metrics-token", &token]).refused();
    assert!(refused.contains("chmod 600"), "{refused}");
    assert!(!is_mounted(&grid.mountpoint()));
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    mount(&["--metrics", &everywhere, "--metrics-token", &token]).succeeds();
    assert_eq!(get(port, "/metrics", "").0, 401);
    assert_eq!(get(port, "/metrics", "Authorization: Bearer 0123456789abcdeX\r\n").0, 401);
    let (status, page) = get(port, "/metrics", "Authorization: Bearer 0123456789abcdef\r\n");
    assert_eq!(status, 200, "{page}");
    assert_eq!(get(port, "/", "Authorization: Bearer 0123456789abcdef\r\n").0, 404);
}

#[test]
fn a_port_that_is_taken_fails_the_mount_and_leaves_nothing() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let grid = Mounted::make(Placement::Direct);
    grid.expect_log("mounted, but not usable");
    let refused = run(grid.mount_command().args(["--metrics", &address]), LIMIT).refused();
    assert!(refused.contains("cannot serve metrics") && refused.contains(&address), "{refused}");
    assert!(!is_mounted(&grid.mountpoint()), "{refused}");
}

#[test]
fn up_says_so_if_daemons_that_are_running_serve_no_metrics() {
    let watched = Watched::start();
    let mut command = Command::new(need::forebay());
    let other = free_ports(4).to_string();
    command.arg("up").arg(watched.root()).arg("--mount").arg(watched.mountpoint());
    let refused =
        run(command.args(["--hosts", "2", "--slots", "2", "--metrics", &other]), LIMIT).refused();
    assert!(refused.contains("serves no metrics at 127.0.0.1:"), "{refused}");
    watched.up(&[]).succeeds();
}
