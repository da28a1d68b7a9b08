//! The web server on a node of a cluster, where the leading controller, the hosts and the filesets are on other nodes too.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use forebay_e2e::command::{Ended, run};
use forebay_e2e::{need, wait_until};
use rustix::process::Signal;
use serde_json::Value;

use crate::fixture::{ANN, LIMIT, Nodes, SHORT, text};

/// Prints status and body of a request: method, URL, cookie, token, body.
const ASK: &str = "import sys, urllib.request as u, urllib.error as e
method, url, cookie, token, body = sys.argv[1:]
class Stay(u.HTTPRedirectHandler):
    def redirect_request(self, *_): return None
request = u.Request(url, method=method, data=body.encode() or None)
if cookie: request.add_header('Cookie', cookie)
if token: request.add_header('Authorization', 'Bearer ' + token)
try: answer = u.build_opener(u.ProxyHandler({}), Stay).open(request, timeout=60)
except e.HTTPError as error: answer = error
print(answer.status, (answer.headers.get('Set-Cookie') or '-').split(';')[0])
print(answer.read().decode())";

/// A web server on a node.
struct Site<'a> {
    grid: &'a Nodes,
    node: usize,
    server: Child,
}

impl Site<'_> {
    fn start<'a>(grid: &'a Nodes, node: usize, options: &[&str]) -> Site<'a> {
        let settings = "[history]\ninterval = \"1 s\"\n[alerts]\npersist = \"1 s\"\n";
        std::fs::write(grid.root(node).join("grid/web.toml"), settings)
            .expect("writes the settings");
        let mut command = std::process::Command::new(need::forebay());
        command.args(["web", "serve", &text(&grid.root(node))]).args(options);
        let mut command = grid.cluster.hosts().command(node, &command);
        command.stdout(Stdio::piped());
        let mut server = command.spawn().expect("starts the server");
        let mut line = String::new();
        let output = server.stdout.take().expect("has an output");
        BufReader::new(output).read_line(&mut line).expect("reads");
        assert_eq!(line.trim(), "http://127.0.0.1:8787");
        Site { grid, node, server }
    }

    fn send(
        &self,
        method: &str,
        url: &str,
        cookie: &str,
        token: &str,
        body: &str,
    ) -> (u16, String, String) {
        let url = if url.starts_with("http") {
            url.to_owned()
        } else {
            format!("http://127.0.0.1:8787{url}")
        };
        let mut python = need::program("python3");
        python.args(["-c", ASK, method, &url, cookie, token, body]);
        let said: Ended = run(&mut self.grid.cluster.hosts().command(self.node, &python), LIMIT);
        let said = said.output();
        let (head, body) = said.split_once('\n').expect("a head and a body");
        let (status, cookie) = head.split_once(' ').expect("a status and a cookie");
        (status.parse().expect("a status"), cookie.to_owned(), body.to_owned())
    }

    /// The cookie of a browser in which a user of the node has logged in.
    fn log_in(&self, user: u32) -> String {
        let link = self.grid.as_user(self.node, user, &["web", "login"]).output().trim().to_owned();
        let (status, cookie, _) = self.send("GET", &link, "", "", "");
        assert_eq!(status, 303);
        cookie
    }

    fn page(&self, cookie: &str, path: &str) -> String {
        let (status, _, body) = self.send("GET", path, cookie, "", "");
        assert_eq!(status, 200, "{path}: {body}");
        body
    }
}

impl Drop for Site<'_> {
    fn drop(&mut self) {
        if let Some(process) = rustix::process::Pid::from_raw(self.server.id().cast_signed()) {
            let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
        }
        let _ = self.server.wait();
    }
}

#[test]
fn a_node_that_is_away_is_an_alert_until_it_is_back_and_certificates_are_shown() {
    let grid = Nodes::start(2, 1, SHORT);
    let site = Site::start(&grid, 1, &[]);
    let root = site.log_in(0);
    let token = grid.as_user(1, 0, &["web", "token"]).output().trim().to_owned();
    let firing = || {
        let (status, _, body) = site.send("GET", "/api/v1/alerts", "", &token, "");
        assert_eq!(status, 200, "{body}");
        let answer: Value = serde_json::from_str(&body).expect("is JSON");
        let alerts = answer["alerts"].as_array().expect("alerts").clone();
        let firing = alerts.into_iter().filter(|alert| alert["firing"] == true);
        firing.map(|alert| alert["code"].as_str().expect("a code").to_owned()).collect::<Vec<_>>()
    };
    wait_until("the nodes are shown", LIMIT, || {
        site.page(&root, "/health").contains("Certificate valid until")
    });
    grid.cluster.signal(0, Signal::STOP);
    let long = Duration::from_secs(120);
    wait_until("the node is an alert", long, || firing().contains(&"node_away/n0".to_owned()));
    assert!(site.page(&root, "/health").contains("away"));
    grid.cluster.signal(0, Signal::CONT);
    wait_until("the alert is over", long, || {
        !firing().iter().any(|code| code.starts_with("node_away"))
    });
}

#[test]
fn the_web_server_of_a_node_shows_and_changes_the_grid_and_the_files_of_all_nodes() {
    let grid = Nodes::start(2, 1, SHORT);
    // The server is on the node without a controller.
    let site = Site::start(&grid, 1, &["--metrics", "9470"]);
    let root = site.log_in(0);
    let wait_for = |cookie: &str, path: &str, what: &str| {
        let mut last = String::new();
        wait_until(&format!("{path} shows {what}"), LIMIT, || {
            last = site.page(cookie, path);
            last.contains(what)
        });
        last
    };
    let hosts = wait_for(&root, "/hosts", "n0");
    assert!(hosts.contains("n1") && hosts.contains("0 of 4"), "{hosts}");

    // A job of a user of the other node, on the other node.
    let out = grid.shared(0).join("log");
    let options = ["-m", "n0", "-o", &text(&out)];
    let job = grid.submit(0, ANN, &options, "echo said on $FOREBAY_HOST; sleep 605 & wait");
    grid.wait_for(0, &job, "running");
    let one = format!("/jobs/{job}");
    let shown = wait_for(&root, &one, "said on n0");
    assert!(shown.contains("n0"), "{shown}");
    let ann = site.log_in(ANN);
    let shown = site.page(&ann, &one);
    let key = shown.split_once("name=\"key\" value=\"").expect("a form").1;
    let form = format!("key={}", key.split('"').next().expect("the key"));
    let (status, _, said) = site.send("POST", &format!("{one}/kill"), &ann, "", &form);
    assert_eq!(status, 303, "{said}");
    grid.wait_for(0, &job, "killed");

    // Files: those of the cluster, found without --files, counted by their owner, which is the other node.
    let files = wait_for(&root, "/files", "Mounted at");
    assert!(files.contains(&text(&grid.cluster.mountpoint(1))), "{files}");
    wait_for(&root, "/files", "Content changed");

    // What is wrong on the other node is seen here.
    let token = grid.as_user(1, 0, &["web", "token"]).output().trim().to_owned();
    let (status, _, body) = site.send("GET", "/api/v1/hosts", "", &token, "");
    let listed: Value = serde_json::from_str(&body).expect("is JSON");
    assert_eq!((status, listed["hosts"].as_array().map(Vec::len)), (200, Some(2)), "{body}");
    let (_, _, metrics) = site.send("GET", "http://127.0.0.1:9470/metrics", "", "", "");
    assert!(metrics.contains("forebay_web_sees_files 1"), "{metrics}");
    assert!(
        metrics.contains("forebay_web_requests_total{part=\"api\",status=\"2xx\"} 1"),
        "{metrics}"
    );
    grid.cluster.hosts().unplug(1);
    let unreachable = |text: &str| text.contains("unreachable");
    wait_until("the controller is shown as unreachable", Duration::from_secs(180), || {
        let (_, _, page) = site.send("GET", "/", &root, "", "");
        unreachable(&page)
    });
    grid.cluster.hosts().plug_in(1);
    wait_until("the grid is shown again", Duration::from_secs(180), || {
        let (status, _, page) = site.send("GET", "/hosts", &root, "", "");
        status == 200 && page.contains("n0")
    });
}
