//! Samples of the past.

use std::time::Duration;

use forebay_e2e::wait_until;
use serde_json::Value;

use crate::fixture::{LIMIT, Site};

#[test]
fn samples_survive_kill_9_of_the_web_server() {
    let mut site = Site::start("[history]\ninterval = \"1 s\"\n");
    let authorization = format!("Bearer {}", site.token());
    let times = |site: &Site| -> Vec<u64> {
        let path = "/api/v1/samples?subject=grid&seconds=600";
        let samples = site.send("GET", path, &[("Authorization", &authorization)], "").json();
        samples["times"].as_array().unwrap().iter().map(|time| time.as_u64().unwrap()).collect()
    };
    wait_until("there are samples", LIMIT, || times(&site).len() >= 3);
    let before = times(&site);
    site.kill_server();
    std::thread::sleep(Duration::from_secs(2));
    site.serve();
    let after = times(&site);
    assert!(before.iter().all(|time| after.contains(time)), "{before:?} {after:?}");
    // The token is good still, and samples go on.
    wait_until("there are more samples", LIMIT, || times(&site).last() > before.last());
    let host: Value = serde_json::from_str(&site.forebay(&["hosts", "--json"]).output()).unwrap();
    let path =
        format!("/api/v1/samples?subject=host/{}&seconds=600", host[0]["name"].as_str().unwrap());
    let of_host = site.send("GET", &path, &[("Authorization", &authorization)], "").json();
    assert_eq!(of_host["values"]["slots"][0], 2.0);
}

#[test]
fn the_chart_of_a_job_survives_kill_9_of_the_web_server_and_the_end_of_the_job() {
    let mut site = Site::start("[history]\ninterval = \"1 s\"\nruns_max = 4\n");
    let busy = "while sleep 0.1; do head -c 1000000 /dev/zero >\"$WORK/x\"; done";
    let job = site.forebay(&["submit", "--", "sh", "-c", busy]).output().trim().to_owned();
    let link = |site: &Site| site.forebay(&["web", "login"]).output().trim().to_owned();
    let page = |site: &Site, cookie: &str| {
        site.send("GET", &format!("/jobs/{job}"), &[("Cookie", cookie)], "").body
    };
    let login = |site: &Site| {
        let link = link(site);
        let path = link.strip_prefix(&site.url()).expect("the link leads to the server");
        let answer = site.send("GET", path, &[], "");
        answer.header("set-cookie").unwrap().split(';').next().unwrap().to_owned()
    };
    let cookie = login(&site);
    wait_until("there is a chart", LIMIT, || {
        page(&site, &cookie).contains("Bytes by system calls")
    });
    site.kill_server();
    site.forebay(&["kill", &job]).succeeds();
    wait_until("the job is over", LIMIT, || {
        !site.forebay(&["jobs", "--json"]).stdout.contains("running")
    });
    site.serve();
    // Nothing of the job runs that a new server could see.
    let cookie = login(&site);
    assert!(page(&site, &cookie).contains("Bytes by system calls"));
}
