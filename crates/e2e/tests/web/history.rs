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
