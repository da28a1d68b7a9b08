//! A real Prometheus with the example's configuration, rules and dashboard.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Stdio};

use forebay_e2e::command::run;
use forebay_e2e::need::{self, workspace};
use forebay_e2e::wait_until;
use serde_json::Value;

use crate::fixture::{LIMIT, Watched, free_ports, get};

/// Expressions that have no data on one machine without trouble.
const MAY_BE_EMPTY: [&str; 4] = [
    "forebay_cluster_nodes",
    "forebay_copies_waiting",
    "forebay_session_calls_total",
    "forebay_session_round_trip_seconds",
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

    /// Waits until every target was scraped without a complaint.
    fn wait_for_targets(&self) {
        wait_until("all targets are scraped", LIMIT, || {
            let data = self.api("/api/v1/targets?state=active");
            let targets = data["activeTargets"].as_array().unwrap();
            let faults: Vec<&str> = targets
                .iter()
                .filter_map(|target| target["lastError"].as_str())
                .filter(|error| !error.is_empty())
                .collect();
            assert!(faults.is_empty(), "{faults:?}");
            targets.len() == 7 && targets.iter().all(|target| target["health"] == "up")
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
        rules.len() >= 22 && rules.iter().all(|rule| rule["health"] == "ok")
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
    assert!(!prometheus.query("forebay_host_up{host=\"host1\"} == 1").is_empty());
    watched.forebay(&["down", &root, "--now"]).succeeds();
    wait_until("nothing answers", LIMIT, || prometheus.query("up == 0").len() == 7);
    watched.up(&[]).succeeds();
}
