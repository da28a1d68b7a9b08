//! Alerts: raised, sent, muted, over.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};

use forebay_e2e::wait_until;
use serde_json::Value;

use crate::fixture::{LIMIT, Site, free_port};

/// A webhook: what it was told.
pub fn webhook(port: u16) -> Receiver<Value> {
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let (sender, told) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut request, mut part) = (stream.unwrap(), Vec::new(), [0; 4096]);
            let body = loop {
                let length = stream.read(&mut part).unwrap();
                request.extend_from_slice(&part[..length]);
                let text = String::from_utf8_lossy(&request).into_owned();
                let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
                if let Ok(value) = serde_json::from_str::<Value>(body) {
                    break value;
                }
            };
            let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n");
            if sender.send(body).is_err() {
                return;
            }
        }
    });
    told
}

/// The alert with this code, if it fires.
pub fn fires(site: &Site, code: &str) -> Option<Value> {
    let shown = site.forebay(&["alerts", "--json"]).stdout;
    let alerts: Value = serde_json::from_str(&shown).expect("JSON");
    let firing = |alert: &&Value| alert["firing"] == true && alert["code"] == code;
    alerts.as_array().expect("a list").iter().find(firing).cloned()
}

#[test]
fn an_alert_is_raised_sent_muted_and_says_when_it_is_over() {
    let port = free_port();
    let told = webhook(port);
    let site = Site::start(&format!(
        "[history]\ninterval = \"1 s\"\n[alerts]\npersist = \"1 s\"\nfailed_jobs = 2\nfailed_jobs_within = \"30 s\"\n\
         webhook = \"http://127.0.0.1:{port}/alerts\"\n"
    ));
    // The first look has nothing to compare with.
    std::thread::sleep(std::time::Duration::from_secs(5));
    let calm = site.forebay(&["alerts"]);
    assert_eq!((calm.code(), &*calm.stdout), (0, "no alerts\n"));
    for _ in 0..3 {
        let _ = site.forebay(&["submit", "--wait", "--", "false"]).expect_code(1);
    }
    wait_until("the alert is raised", LIMIT, || site.forebay(&["alerts"]).code() == 1);
    let shown = site.forebay(&["alerts"]).stdout;
    assert!(shown.contains("failed_jobs") && shown.contains("jobs failed within 30 s"), "{shown}");
    let raised = told.recv_timeout(LIMIT).unwrap();
    assert_eq!((&raised["code"], &raised["state"]), (&"failed_jobs".into(), &"firing".into()));
    wait_until("it is over", LIMIT, || site.forebay(&["alerts"]).code() == 0);
    let over = told.recv_timeout(LIMIT).unwrap();
    assert_eq!((&over["code"], &over["state"]), (&"failed_jobs".into(), &"resolved".into()));
    assert!(over["resolved"].is_string(), "{over}");
    let all = site.forebay(&["alerts", "--all"]).output();
    assert!(all.contains("over since"), "{all}");

    site.forebay(&["alerts", "--mute", "failed_jobs", "--for", "1 h"]).succeeds();
    for _ in 0..3 {
        let _ = site.forebay(&["submit", "--wait", "--", "false"]).expect_code(1);
    }
    wait_until("it fires muted", LIMIT, || {
        site.forebay(&["alerts"]).stdout.contains("muted until")
    });
    assert_eq!(site.forebay(&["alerts"]).code(), 0, "a muted alert is not a fault");
    assert!(told.try_recv().is_err(), "nobody is notified of a muted alert");
    site.forebay(&["alerts", "--unmute", "failed_jobs"]).succeeds();
    let refused = site.forebay(&["alerts", "--unmute", "failed_jobs"]).refused();
    assert!(refused.contains("is not muted"), "{refused}");
}

#[test]
fn a_file_system_whose_daemon_dies_and_a_disk_that_fills_up_are_alerts_until_they_are_mended_or_unmounted_in_order()
 {
    let mut site = Site::start_mounted(
        "[history]\ninterval = \"1 s\"\n[alerts]\npersist = \"1 s\"\nfill = 0.0\nprocessors_used_min = 0.0\n",
    );
    let root = site.root().display().to_string();
    let disk = format!("fill/{root}/disk");
    wait_until("the disk is too full", LIMIT, || fires(&site, &disk).is_some());
    let status: Value =
        serde_json::from_str(&site.forebay(&["status", &root, "--json"]).output()).unwrap();
    let daemon = i32::try_from(status["mount"]["pid"].as_i64().expect("a process")).unwrap();
    let daemon = rustix::process::Pid::from_raw(daemon).unwrap();
    rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
    wait_until("the daemon is missed", LIMIT, || fires(&site, "file_system").is_some());
    let text = fires(&site, "file_system").unwrap()["text"].to_string();
    assert!(text.contains("its daemon does not answer"), "{text}");
    assert!(fires(&site, &disk).is_some(), "what nobody can say is not over");
    let place = site.mountpoint().display().to_string();
    site.forebay(&["umount", &place]).succeeds();
    wait_until("it is not mounted", LIMIT, || {
        let text = fires(&site, "file_system").map(|alert| alert["text"].to_string());
        text.is_some_and(|text| text.contains("not mounted any more"))
    });
    // A server that starts later finds out as well.
    site.kill_server();
    std::fs::remove_file(site.root().join("grid/web/alerts.json")).unwrap();
    site.serve();
    wait_until("another server misses it", LIMIT, || {
        let text = fires(&site, "file_system").map(|alert| alert["text"].to_string());
        text.is_some_and(|text| text.contains("did not end in order"))
    });
    site.forebay(&["mount", &root, &place]).succeeds();
    wait_until("it is over", LIMIT, || fires(&site, "file_system").is_none());
    wait_until("the disk is seen again", LIMIT, || fires(&site, &disk).is_some());
    // Unmounted in order, neither it nor anything in it is an alert, even if no server ran then.
    site.forebay(&["umount", &place]).succeeds();
    wait_until("the disk is no longer watched", LIMIT, || fires(&site, &disk).is_none());
    let over = site.forebay(&["alerts", "--all"]).output();
    assert!(over.contains(&format!("(no longer monitored: {root} was unmounted)")), "{over}");
    assert!(fires(&site, "file_system").is_none());
    site.forebay(&["mount", &root, &place]).succeeds();
    wait_until("the disk is watched again", LIMIT, || fires(&site, &disk).is_some());
    site.kill_server();
    site.forebay(&["umount", &place]).succeeds();
    site.serve();
    wait_until("another server does not watch it", LIMIT, || fires(&site, &disk).is_none());
    site.forebay(&["mount", &root, &place]).succeeds();
    wait_until("it watches it", LIMIT, || fires(&site, &disk).is_some());
    // With another threshold that alert is over as well.
    site.kill_server();
    let settings = "[history]\ninterval = \"1 s\"\n[alerts]\npersist = \"1 s\"\nfill = 1.0\n";
    std::fs::write(site.root().join("grid/web.toml"), settings).unwrap();
    site.serve();
    wait_until("the disk is no longer too full", LIMIT, || fires(&site, &disk).is_none());
}

/// Processors of a busy machine are seldom idle for a fifth of the time, so any idle moment counts here.
#[test]
fn a_host_whose_jobs_wait_for_io_starves_until_they_end() {
    let site = Site::start(
        "[history]\ninterval = \"1 s\"\n[alerts]\npersist = \"1 s\"\nprocessors_used_min = 1.0\n",
    );
    let data = site.folder().join("data");
    std::fs::write(&data, vec![1; 32 << 20]).unwrap();
    // Each read comes from the disk.
    let reader = format!(
        "while :; do dd if={} of=/dev/null bs=1M iflag=direct 2>/dev/null || sleep 0.1; done",
        data.display()
    );
    let readers = format!("for number in 1 2; do ({reader}) & done; wait");
    let submit = ["submit", "-J", "read", "-m", "host1", "-n", "2", "--", "sh", "-c", &readers];
    site.forebay(&submit).succeeds();
    wait_until("the host starves", LIMIT, || fires(&site, "starved/host1").is_some());
    assert!(fires(&site, "starved/host2").is_none(), "its slots are free");
    if std::path::Path::new("/proc/pressure/io").exists() {
        // How much depends on the disk and on what else this machine does.
        wait_until("the alert says how much they wait for I/O", LIMIT, || {
            let text = fires(&site, "starved/host1").map(|alert| alert["text"].to_string());
            text.is_some_and(|text| text.contains("I/O"))
        });
    }
    site.forebay(&["kill", "--name", "read"]).succeeds();
    wait_until("it is over", LIMIT, || fires(&site, "starved/host1").is_none());
}

#[test]
fn a_service_that_gave_up_is_an_alert_until_it_is_started_anew() {
    let site = Site::start("[history]\ninterval = \"1 s\"\n[alerts]\npersist = \"1 s\"\n");
    std::fs::write(
        site.root().join("grid/grid.toml"),
        "[general]\nservice_pause = \"100 ms\"\nservice_failures_max = 2\n",
    )
    .unwrap();
    site.forebay(&["reload"]).succeeds();
    site.forebay(&["service", "start", "db", "--", "false"]).succeeds();
    let shows = || site.forebay(&["alerts"]).stdout.contains("service/root/db");
    wait_until("the service has given up", LIMIT, shows);
    site.forebay(&["service", "start", "db", "--", "sleep", "600"]).succeeds();
    wait_until("it runs again", LIMIT, || !shows());
}
