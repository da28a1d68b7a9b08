//! Metrics over TLS with the certificates of the cluster, asked for by curl.

use std::path::Path;
use std::time::Duration;

use forebay_e2e::cluster::Cluster;
use forebay_e2e::mounted::scratch_folder;
use forebay_e2e::{Ended, need, run, wait_until};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);
const TOKEN: &str = "0123456789abcdef";

fn path(path: &Path) -> &str {
    path.to_str().expect("paths of tests are UTF-8")
}

/// What curl gets of a page, with these further options; the status is the last line.
fn curl(cluster: &Cluster, url: &str, options: &[&str]) -> Ended {
    let mut command = need::program("curl");
    command.args(["--silent", "--show-error", "--max-time", "30", "--write-out", "%{http_code}"]);
    command.args(options).arg(url);
    run(&mut cluster.hosts().command(0, &command), LIMIT)
}

#[test]
fn metrics_of_a_node_are_served_over_tls_to_monitors_of_its_cluster() {
    let cluster = Cluster::start(1);
    cluster.umount(0);
    let folder = scratch_folder();
    let at = |name: &str| path(&folder.path().join(name)).to_owned();
    let made = cluster.forebay(0, &["cluster", "monitor", "prom", path(folder.path()), "--json"]);
    let made: Value = serde_json::from_str(&made.output()).expect("is JSON");
    assert_eq!(made["certificate"], at("prom.pem"));
    assert!(made["expires"].as_i64().is_some_and(|end| end > 1_700_000_000), "{made}");
    let again = cluster.forebay(0, &["cluster", "monitor", "prom", path(folder.path())]).refused();
    assert!(again.contains("prom.pem exists"), "{again}");

    let address = format!("{}:9464", cluster.hosts().address(0));
    std::fs::write(folder.path().join("token"), TOKEN).expect("writes");
    need::program("chmod").args(["600", &at("token")]).status().expect("runs chmod");
    let (home, place) = (cluster.home(0), cluster.mountpoint(0));
    let mount = ["mount", path(&home), path(&place), "--metrics", &address];
    let mount = |more: &[&str]| cluster.forebay(0, &[&mount[..], more].concat());
    let refused = mount(&[]).refused();
    assert!(refused.contains("--metrics-tls"), "{refused}");
    let elsewhere = mount(&["--metrics-tls=nowhere"]).refused();
    assert!(elsewhere.contains("not a node of a cluster nowhere"), "{elsewhere}");
    let pem = home.join("node.pem");
    let kept = std::fs::read(&pem).expect("reads");
    std::fs::remove_file(&pem).expect("removes");
    let missing = mount(&["--metrics-tls"]).refused();
    assert!(missing.contains("node.pem: the file is missing"), "{missing}");
    std::fs::write(&pem, kept).expect("writes");

    mount(&["--metrics-tls"]).succeeds();
    let url = format!("https://{address}/metrics");
    let (ca, cert, key) = (at("ca.pem"), at("prom.pem"), at("prom.key"));
    let trusting = ["--cacert", &ca];
    let shown = [&trusting[..], &["--cert", &cert, "--key", &key]].concat();
    let page = curl(&cluster, &url, &shown).output();
    assert!(page.contains("forebay_build{") && page.ends_with("# EOF\n200"), "{page}");
    let nobody = curl(&cluster, &url, &trusting).output();
    assert!(nobody.contains("needs a certificate") && nobody.ends_with("401"), "{nobody}");
    // A client that does not know the authority, the certificate of a node, and a client without TLS get no answer.
    let node = [path(&pem), path(&home.join("node.key"))].map(str::to_owned);
    let of_node = [&trusting[..], &["--cert", &node[0], "--key", &node[1]]].concat();
    for options in [&[][..], &of_node] {
        assert!(!curl(&cluster, &url, options).status.success(), "{options:?}");
    }
    assert!(!curl(&cluster, &url.replace("https", "http"), &[]).status.success());

    cluster.umount(0);
    mount(&["--metrics-tls", "--metrics-token", &at("token")]).succeeds();
    let known = format!("Authorization: Bearer {TOKEN}");
    let page = curl(&cluster, &url, &[&trusting[..], &["--header", &known]].concat()).output();
    assert!(page.ends_with("200"), "{page}");
    assert!(curl(&cluster, &url, &shown).output().ends_with("200"));
    assert!(curl(&cluster, &url, &trusting).output().ends_with("401"));

    // What was issued is known, and a monitor that is removed is refused.
    let soon = ["cluster", "monitor", "soon", path(folder.path()), "--for", "5 d"];
    cluster.forebay(0, &soon).succeeds();
    let doctor = cluster.forebay(0, &["doctor", "--cluster", "--json"]).stdout;
    assert!(doctor.contains("the certificate of monitor soon expires in "), "{doctor}");
    let ends = "forebay_certificate_expires_seconds{kind=\"monitor\",name=\"soon\"} ";
    wait_until("the end is a metric", LIMIT, || {
        let page = curl(&cluster, &url, &shown).output();
        let all = ["kind=\"node\",name=\"n0\"", "kind=\"authority\",name=\"\""];
        page.contains(ends) && all.iter().all(|labels| page.contains(labels))
    });
    let states = || -> Vec<(String, bool)> {
        let status = cluster.forebay(0, &["cluster", "status", "--json"]).output();
        let status: Value = serde_json::from_str(&status).expect("is JSON");
        let monitors = status["monitors"].as_object().expect("is an object").values();
        let state = |one: &Value| (one["name"].as_str().unwrap().into(), one["removed"].is_i64());
        monitors.map(state).collect()
    };
    let listed = states();
    assert!(listed.len() == 2 && listed.contains(&("prom".into(), false)), "{listed:?}");
    cluster.forebay(0, &["cluster", "monitor", "prom", "--remove"]).succeeds();
    assert!(states().contains(&("prom".into(), true)));
    wait_until("the node refuses the monitor", LIMIT, || {
        curl(&cluster, &url, &shown).stderr.contains("revoked")
    });
    let again = cluster.forebay(0, &["cluster", "monitor", "prom", "--remove"]).refused();
    assert!(again.contains("has no monitor"), "{again}");
    let (cert, key) = (at("soon.pem"), at("soon.key"));
    let other = [&trusting[..], &["--cert", &cert, "--key", &key]].concat();
    assert!(curl(&cluster, &url, &other).output().ends_with("200"), "others are not refused");
}

#[test]
fn the_example_for_a_cluster_is_one_of_prometheus() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/prometheus");
    let folder = scratch_folder();
    let text = std::fs::read_to_string(examples.join("cluster.yml")).expect("reads");
    for name in ["ca.pem", "prometheus.pem", "prometheus.key"] {
        assert!(text.contains(&format!("/etc/prometheus/forebay/{name}")), "{text}");
        std::fs::write(folder.path().join(name), "").expect("writes");
    }
    let text = text.replace("/etc/prometheus/forebay", path(folder.path()));
    std::fs::write(folder.path().join("cluster.yml"), text).expect("writes");
    std::fs::copy(examples.join("rules.yml"), folder.path().join("rules.yml")).expect("copies");
    let mut check = need::program("promtool");
    check.args(["check", "config"]).arg(folder.path().join("cluster.yml"));
    run(&mut check, LIMIT).succeeds();
}
