//! Services: started under a name, found by it, started again after failures, moved, stopped.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use forebay_e2e::wait_until;
use serde_json::Value;

use crate::{Fixture, LIMIT};

/// A web server on the port that the grid has chosen, which says on which host it is.
const SERVER: &str = "echo \"start $FOREBAY_ATTEMPT\" >>starts; mkdir -p \"$WORK/www\" && cd \"$WORK/www\" && \
                      echo \"$FOREBAY_SERVICE on $FOREBAY_HOST\" >host && \
                      exec python3 -m http.server \"$FOREBAY_PORT\" --bind 127.0.0.1";

/// Ports per grid.
const PORTS: u32 = 60;

/// Ports that no other grid of these tests chooses, nor is any other grid of this machine likely to: a start that finds its
/// port in use counts as a failure, and the next one has another port.
fn settings(more: &str) -> String {
    static GRIDS: AtomicU32 = AtomicU32::new(0);
    let own = GRIDS.fetch_add(1, Ordering::Relaxed) * PORTS;
    let first = 20_000 + std::process::id() % 9_000 + own;
    let last = first + PORTS - 1;
    format!("[general]\nservice_port_min = {first}\nservice_port_max = {last}\n{more}")
}

fn started(more: &str) -> Fixture {
    let grid = Fixture::start();
    std::fs::write(grid.root.join("grid/grid.toml"), settings(more)).unwrap();
    grid.forebay(&["reload"], &[]).succeeds();
    grid
}

fn show(grid: &Fixture, name: &str) -> Value {
    let json = grid.forebay(&["service", "show", name, "--json"], &[]).output();
    serde_json::from_str(&json).unwrap()
}

fn try_get(address: &str, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Waits until a service says where it runs: a connection of another program may have its port for a moment.
fn wait_for_answer(address: &str, wanted: &str) {
    wait_until(&format!("{wanted} answers"), LIMIT, || {
        try_get(address, "/host").is_ok_and(|text| text.contains(wanted))
    });
}

fn wait_for_ready(grid: &Fixture, name: &str) -> String {
    let shown = grid.forebay(&["service", "show", name, "--address", "--wait"], &[]).output();
    shown.trim().to_owned()
}

#[test]
fn a_service_is_found_by_its_name_and_starts_again_when_it_is_killed() {
    let mut grid = started("service_pause = \"200 ms\"\n");
    let file = grid.jobs.join("web.json");
    let more = ["--port", "auto", "--address-file", "web.json", "--wait", "--", "sh", "-c", SERVER];
    let address = grid.forebay(&["service", "start", "web"], &more).output();
    let address = address.trim();
    wait_for_answer(address, "web on h1");
    let shown = show(&grid, "web");
    assert_eq!((&shown["state"], &shown["host"]), (&"ready".into(), &"h1".into()));
    assert!(address.ends_with(&format!(":{}", shown["port"])), "{address} {shown}");
    let told: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!((&told["port"], &told["service"]), (&shown["port"], &"web".into()));
    let refused = grid.forebay(&["service", "start", "web", "--", "true"], &[]).refused();
    assert!(refused.contains("is already there"), "{refused}");

    // Its process is killed by somebody: it comes back under the same address.
    let job = shown["job"].as_str().unwrap().to_owned();
    grid.forebay(&["signal", "QUIT", &job], &[]).succeeds();
    let is_ready_again = |starts: u64| {
        let shown = show(&grid, "web");
        shown["starts"].as_u64().is_some_and(|now| now > starts) && shown["ready"] == true
    };
    // The controller may take the first start for ready a little longer.
    wait_until("it was started again", LIMIT, || is_ready_again(1));
    assert_eq!(wait_for_ready(&grid, "web"), address);
    // A connection of another program may have had its port for a moment.
    let starts = grid.lines("starts").len();
    // The controller and the agent are killed: it goes on, and is known to be ready.
    grid.kill_daemon(1);
    grid.kill_daemon(0);
    wait_for_answer(address, "web on h1");
    grid.start_controller();
    grid.start_agent();
    grid.wait_for_host();
    assert_eq!(wait_for_ready(&grid, "web"), address);
    assert_eq!(grid.lines("starts").len(), starts);

    let known = show(&grid, "web")["starts"].as_u64().unwrap();
    grid.forebay(&["service", "restart", "web"], &[]).succeeds();
    wait_until("it was restarted", LIMIT, || {
        let shown = show(&grid, "web");
        shown["starts"].as_u64().is_some_and(|now| now > known) && shown["ready"] == true
    });
    assert_eq!(wait_for_ready(&grid, "web"), address);
    assert!(grid.lines("starts").len() > starts);
    assert!(grid.forebay(&["service", "list"], &[]).output().contains("ready"));
    grid.forebay(&["service", "stop", "web"], &[]).succeeds();
    wait_until("it is stopped", LIMIT, || show(&grid, "web")["state"] == "stopped");
    assert!(TcpStream::connect(address).is_err());
    assert!(!file.exists(), "nobody finds an address that is not in use");
    let shown = grid.forebay(&["service", "show", "web", "--address"], &[]);
    let _ = shown.expect_code(1);
    let _ = grid.forebay(&["service", "restart", "web"], &[]).refused();
}

#[test]
fn a_check_command_says_whether_a_service_is_ready_and_one_that_is_not_is_started_again() {
    let grid = started(
        "service_check_interval = \"1 s\"\nservice_unready_max = \"6 s\"\nservice_pause = \"200 ms\"\n",
    );
    let script = "echo up >>starts; exec sleep 600";
    let more = ["--check", "test -e good -a -n \"$FOREBAY_SERVICE\"", "--", "sh", "-c", script];
    grid.forebay(&["service", "start", "loader"], &more).succeeds();
    wait_until("the check has failed", LIMIT, || {
        show(&grid, "loader")["why"].as_str().is_some_and(|why| why.contains("exited with 1"))
    });
    wait_until("it was started again", LIMIT, || grid.lines("starts").len() >= 2);
    std::fs::write(grid.jobs.join("good"), "").unwrap();
    grid.forebay(&["service", "show", "loader", "--wait"], &[]).succeeds();
    wait_until("it is shown as ready", LIMIT, || show(&grid, "loader")["state"] == "ready");
}

#[test]
fn a_service_that_fails_too_often_is_given_up_with_its_reason() {
    let grid = started("service_pause = \"100 ms\"\nservice_failures_max = 2\n");
    let more = ["--", "sh", "-c", "echo broken; exit 3"];
    grid.forebay(&["service", "start", "bad"], &more).succeeds();
    wait_until("it is given up", LIMIT, || show(&grid, "bad")["state"] == "failed");
    assert_eq!(show(&grid, "bad")["starts"], 3);
    let logs = grid.forebay(&["service", "logs", "bad"], &[]).output();
    assert_eq!(logs, "broken\n".repeat(3));
    let said = grid.forebay(&["service", "show", "bad", "--wait"], &[]).refused();
    assert!(said.contains("there is no service bad"), "{said}");
}

#[test]
fn a_service_moves_to_another_host_and_away_from_one_that_dies() {
    // Longer than a busy machine keeps an agent or the controller (which syncs its journal) from being heard: a service whose
    // host is lost for that goes to the other one, and stays there.
    let mut grid = started("lease = \"8 s\"\nhost_timeout = \"9 s\"\nservice_pause = \"200 ms\"\n");
    let root = grid.root.display().to_string();
    grid.spawn(&["agent", &root, "--name", "h2", "--slots", "4"]);
    wait_until("the second host is up", LIMIT, || {
        grid.forebay(&["hosts"], &[]).output().matches(" up ").count() == 2
    });
    let more = ["--port", "auto", "-m", "h1+1 others", "--wait", "--", "sh", "-c", SERVER];
    let address = grid.forebay(&["service", "start", "web"], &more).output();
    let address = address.trim();
    wait_for_answer(address, "web on h1");
    grid.forebay(&["service", "move", "web", "--to", "h2"], &[]).succeeds();
    wait_until("it is on the second host", LIMIT, || {
        let shown = show(&grid, "web");
        shown["host"] == "h2" && shown["ready"] == true
    });
    // Both hosts are this machine: what ends on the first one may answer for a moment more.
    wait_for_answer(address, "web on h2");
    // The second host dies with all that it runs.
    let mut agent = grid.daemons.remove(2);
    // SAFETY: it is not waited for yet, so the number is its own.
    unsafe { libc::kill(i32::try_from(agent.id()).unwrap(), libc::SIGINT) };
    agent.wait().unwrap();
    wait_until("it is on the first host", LIMIT, || {
        let shown = show(&grid, "web");
        shown["host"] == "h1" && shown["ready"] == true
    });
    wait_for_answer(address, "web on h1");
    assert_eq!(show(&grid, "web")["failures"], 0);
}
