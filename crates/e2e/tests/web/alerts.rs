//! Alerts: raised, sent, muted, over.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};

use forebay_e2e::wait_until;
use serde_json::Value;

use crate::fixture::{LIMIT, Site, free_port};

/// A webhook: what it was told.
fn webhook(port: u16) -> Receiver<Value> {
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

#[test]
fn an_alert_is_raised_sent_muted_and_says_when_it_is_over() {
    let port = free_port();
    let told = webhook(port);
    let site = Site::start(&format!(
        "[history]\ninterval = \"1 s\"\n[alerts]\npersist = \"1 s\"\nfailed_jobs = 2\nfailed_jobs_within = \"10 s\"\n\
         webhook = \"http://127.0.0.1:{port}/alerts\"\n"
    ));
    // The first look has nothing to compare with.
    std::thread::sleep(std::time::Duration::from_secs(2));
    let calm = site.forebay(&["alerts"]);
    assert_eq!((calm.code(), &*calm.stdout), (0, "no alerts\n"));
    for _ in 0..3 {
        let _ = site.forebay(&["submit", "--wait", "--", "false"]).expect_code(1);
    }
    wait_until("the alert is raised", LIMIT, || site.forebay(&["alerts"]).code() == 1);
    let shown = site.forebay(&["alerts"]).stdout;
    assert!(shown.contains("failed_jobs") && shown.contains("jobs failed within 10 s"), "{shown}");
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
