//! A real Prometheus with the example's configuration, rules and dashboard.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Stdio};

use forebay_e2e::command::run;
use forebay_e2e::need::{self, workspace};
use forebay_e2e::wait_until;
use serde_json::Value;

use crate::fixture::{LIMIT, Watched, free_ports, get};

/// Parts of expressions that have no data on one machine without trouble, an archive, a web server that is scraped, or limits.
const MAY_BE_EMPTY: [&str; 18] = [
    "forebay_archive_",
    "forebay_cached_answers_",
    "forebay_certificate_",
    "forebay_client_",
    "forebay_cluster_nodes",
    "forebay_commit_age_seconds and",
    "forebay_copies_waiting",
    "forebay_delegated_directories",
    "forebay_filesets_owned",
    "forebay_grant",
    "forebay_job_io_pressure_",
    "forebay_lease_",
    "forebay_oldest_request_",
    "forebay_queue_slots_max",
    "forebay_recalled_grants_",
    "forebay_session_",
    "forebay_web_",
    "forebay_host_job_memory_used_bytes /",
];

/// Metrics with neither a panel nor a rule: what does not change while a daemon runs, and what others say better.
const NOT_SHOWN: [&str; 46] = [
    "forebay_agent_connected",
    "forebay_agent_slots",
    "forebay_archive_files_total",
    "forebay_archive_partial_frames_total",
    "forebay_archive_partial_hits_total",
    "forebay_archive_partial_ranges_total",
    "forebay_archive_premigrated_bytes",
    "forebay_archive_premigrated_files",
    "forebay_archive_premigrated_stored_bytes",
    "forebay_archive_received_bytes_total",
    "forebay_archive_requests_total",
    "forebay_archive_sent_bytes_total",
    "forebay_build",
    "forebay_commit_failures_total",
    "forebay_committed_records_total",
    "forebay_disk_files_bytes",
    "forebay_disk_objects",
    "forebay_filesets",
    "forebay_filesets_open",
    "forebay_host_memory_available_bytes",
    "forebay_host_processor_use",
    "forebay_job_device_written_bytes",
    "forebay_job_operation_time_seconds_total",
    "forebay_job_read_bytes_total",
    "forebay_journal_records_total",
    "forebay_machine_load",
    "forebay_machine_memory_bytes",
    "forebay_machine_processors",
    "forebay_mount",
    "forebay_open_objects_max",
    "forebay_operations_total",
    "forebay_queue_active",
    "forebay_queue_open",
    "forebay_session_served_total",
    "forebay_user_operations_total",
    "forebay_user_tasks",
    "forebay_web_reaches_controller",
    "forebay_web_request_seconds_total",
    "forebay_web_sees_files",
    "forebay_web_sessions",
    "forebay_web_streams",
    "forebay_web_tokens",
    "process_max_fds",
    "process_start_time_seconds",
    "process_threads",
    "process_virtual_memory_bytes",
];

/// A Prometheus that ends when it is dropped.
struct Prometheus {
    process: Child,
    port: u16,
}

impl Prometheus {
    /// Starts one that scrapes the daemons of `watched` as the example says, but every second.
    fn start(watched: &Watched) -> Prometheus {
        let folder = watched.folder().join("prometheus");
        std::fs::create_dir(&folder).unwrap();
        let examples = workspace().join("examples/prometheus");
        std::fs::copy(examples.join("rules.yml"), folder.join("rules.yml")).unwrap();
        let mut config = std::fs::read_to_string(examples.join("prometheus.yml")).unwrap();
        for (of_example, port) in
            [(9464, watched.controller()), (9465, watched.mount()), (9466, watched.host(1))]
        {
            assert!(config.contains(&format!("127.0.0.1:{of_example}")));
            config =
                config.replace(&format!("127.0.0.1:{of_example}"), &format!("127.0.0.1:{port}"));
        }
        let config = config.replace("_interval: 15s", "_interval: 1s");
        std::fs::write(folder.join("prometheus.yml"), config).unwrap();
        let port = free_ports(1);
        let log = File::create(folder.join("log")).unwrap();
        let process = need::program("prometheus")
            .arg(format!("--config.file={}", folder.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let prometheus = Prometheus { process, port };
        wait_until("prometheus is ready", LIMIT, || {
            let listens = std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
            listens && get(port, "/-/ready", "").0 == 200
        });
        prometheus
    }

    fn api(&self, path: &str) -> Value {
        let (status, body) = get(self.port, path, "");
        let answer: Value =
            serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"));
        assert!(status == 200 && answer["status"] == "success", "{path}: {body}");
        answer["data"].clone()
    }

    /// What an expression gives now.
    fn query(&self, expression: &str) -> Vec<Value> {
        let quoted: String = expression.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let data = self.api(&format!("/api/v1/query?query={quoted}"));
        data["result"].as_array().unwrap_or_else(|| panic!("{expression}: {data}")).clone()
    }

    /// Waits until every target was scraped without a complaint. A busy machine may answer too late once.
    fn wait_for_targets(&self) {
        wait_until("all targets are scraped without a complaint", LIMIT, || {
            let data = self.api("/api/v1/targets?state=active");
            let targets = data["activeTargets"].as_array().unwrap();
            let faults: Vec<&str> = targets
                .iter()
                .filter_map(|target| target["lastError"].as_str())
                .filter(|error| !error.is_empty())
                .collect();
            if !faults.is_empty() {
                println!("{faults:?}");
            }
            faults.is_empty()
                && targets.len() == 7
                && targets.iter().all(|target| target["health"] == "up")
        });
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Every expression of the dashboard, as Grafana would ask it.
fn expressions() -> Vec<String> {
    let file = workspace().join("examples/prometheus/dashboard.json");
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let all: Vec<String> = targets
        .map(|target| target["expr"].as_str().unwrap().replace("$__rate_interval", "1m"))
        .collect();
    assert!(all.len() > 30 && all.iter().all(|text| !text.contains('$')), "{all:#?}");
    all
}

/// Names of all metrics that daemons serve.
fn metrics() -> Vec<String> {
    let text = std::fs::read_to_string(workspace().join("docs/metrics.md")).unwrap();
    let name = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
    let names: Vec<String> = text.lines().filter_map(name).collect();
    assert!(names.len() > 100, "{names:?}");
    names
}

/// Whether a text has a metric, or a part of a histogram of this name.
fn has(text: &str, metric: &str) -> bool {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut words = text.split(|c: char| !is_of_name(c));
    words.any(|word| {
        let rest = word.strip_prefix(metric);
        rest.is_some_and(|rest| ["", "_bucket", "_count", "_sum"].contains(&rest))
    })
}

#[test]
fn every_metric_that_matters_has_a_panel_or_a_rule() {
    let rules = std::fs::read_to_string(workspace().join("examples/prometheus/rules.yml")).unwrap();
    let all = [expressions().join("\n"), rules].join("\n");
    for metric in metrics() {
        let is_left_out = NOT_SHOWN.contains(&&*metric);
        assert_ne!(has(&all, &metric), is_left_out, "{metric}: a panel, a rule, or NOT_SHOWN");
    }
}

#[test]
fn every_rule_is_silent_while_all_is_well_and_fires_when_it_should() {
    let examples = workspace().join("examples/prometheus");
    check(&["test", "rules"], &examples.join("rules_test.yml"));
    let read = |name: &str| std::fs::read_to_string(examples.join(name)).unwrap();
    let (rules, tests) = (read("rules.yml"), read("rules_test.yml"));
    let names: Vec<&str> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(names.len() >= 26, "{names:?}");
    for name in names {
        assert!(tests.contains(&format!("alertname: {name}\n")), "{name} is not shown to fire");
        assert!(tests.contains(&format!("{{alertname: {name}, ")), "{name} is not shown silent");
    }
}

fn check(arguments: &[&str], file: &Path) {
    run(need::program("promtool").args(arguments).arg(file), LIMIT).succeeds();
}

#[test]
fn the_examples_work_with_a_real_prometheus() {
    let examples = workspace().join("examples/prometheus");
    check(&["check", "config"], &examples.join("prometheus.yml"));
    check(&["check", "rules"], &examples.join("rules.yml"));
    let watched = Watched::start();
    watched.use_files();
    watched.run_jobs(2, "true");
    let (root, home) = (watched.root(), watched.folder().join("home"));
    std::fs::create_dir(&home).unwrap();
    let (root, home) = (root.to_str().unwrap(), home.to_str().unwrap());
    let cache = ["--cache", home, "--cache-mode", "single-writer"];
    watched.forebay(&[&["fileset", "create", root, "out"][..], &cache].concat()).succeeds();
    let prometheus = Prometheus::start(&watched);
    prometheus.wait_for_targets();
    let job = watched.forebay(&[
        "submit",
        "--",
        "sh",
        "-c",
        "while :; do echo > $WORK/file; sleep 0.1; done",
    ]);
    let job = job.output().trim().to_owned();
    let mut left = expressions();
    left.retain(|text| !MAY_BE_EMPTY.iter().any(|name| text.contains(name)));
    wait_until("every panel of the dashboard has data", LIMIT, || {
        watched.use_more_files();
        left.retain(|text| prometheus.query(text).is_empty());
        println!("without data: {left:?}");
        left.is_empty()
    });
    // Those that may be empty are questions that Prometheus understands all the same.
    expressions().iter().for_each(|text| drop(prometheus.query(text)));
    watched.forebay(&["kill", &job]).succeeds();
    let mut firing = Vec::new();
    wait_until("all rules were evaluated", LIMIT, || {
        let groups = prometheus.api("/api/v1/rules")["groups"].clone();
        let rules: Vec<&Value> = groups
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|group| group["rules"].as_array().unwrap())
            .collect();
        let faults: Vec<_> = rules.iter().filter(|rule| rule["health"] == "err").collect();
        assert!(faults.is_empty(), "{faults:#?}");
        let name = |rule: &&&Value| rule["state"] == "firing";
        firing = rules.iter().filter(name).map(|rule| rule["name"].to_string()).collect();
        rules.len() >= 26 && rules.iter().all(|rule| rule["health"] == "ok")
    });
    assert!(firing.is_empty(), "a healthy system raises alerts: {firing:?}");
}

#[test]
fn a_daemon_that_is_gone_and_a_host_that_is_unreachable_show() {
    let watched = Watched::start();
    let prometheus = Prometheus::start(&watched);
    prometheus.wait_for_targets();
    let root = watched.root().display().to_string();
    let pid = std::fs::read_to_string(watched.root().join("grid/hosts/host2/lock")).unwrap();
    let pid = rustix::process::Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    wait_until("the host is not up", LIMIT, || {
        !prometheus.query("forebay_host_up{host=\"host2\"} == 0").is_empty()
    });
    wait_until("the other one is", LIMIT, || {
        !prometheus.query("forebay_host_up{host=\"host1\"} == 1").is_empty()
    });
    watched.forebay(&["down", &root, "--now"]).succeeds();
    wait_until("nothing answers", LIMIT, || prometheus.query("up == 0").len() == 7);
    watched.up(&[]).succeeds();
}
