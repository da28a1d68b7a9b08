//! Jobs that cannot begin: they can be ended, and hold no slot for ever.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};

use forebay_e2e::wait_until;
use serde_json::{Value, json};

use crate::fixture::{Fixture, LIMIT, SHORT};

impl Fixture {
    /// Sends a line to the controller; its answer.
    fn exchange(&self, line: &Value) -> Value {
        let socket = self.root.join("grid/controller.sock");
        let mut stream = UnixStream::connect(socket).expect("connects");
        writeln!(stream, "{line}").expect("asks");
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).expect("reads");
        serde_json::from_str(&answer).expect("an answer")
    }

    /// Submits an interactive job whose client listens at `socket`.
    fn submit_interactive(&self, socket: &str) -> String {
        let spec = json!({
            "command": ["touch", "began"],
            "directory": self.jobs,
            "umask": 18,
            "interactive": { "socket": socket, "streams": "pipes" },
        });
        self.exchange(&json!({ "ask": "submit", "spec": spec }))["job"].to_string()
    }
}

#[test]
fn a_job_whose_output_is_a_pipe_that_nobody_reads_is_not_started() {
    let grid = Fixture::start(1, "");
    let path = grid.jobs.join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .expect("makes a pipe");
    let job = grid.submit(&["-o", "pipe"], "true");
    grid.wait_for(&job, "exited");
    assert!(grid.history(&job)[0]["exit"]["not_started"].is_string());
    // With a reader it is.
    let reader = std::thread::spawn(move || std::fs::read_to_string(path).expect("reads"));
    wait_until("the job finds its reader", LIMIT, || {
        let words = ["submit", "--wait", "-o", "pipe", "--", "echo", "said"];
        grid.forebay(&words).status.success()
    });
    assert_eq!(reader.join().expect("reads"), "said\n");
}

#[test]
fn a_job_that_waits_for_its_client_can_be_killed() {
    let grid = Fixture::start(1, "");
    let socket = grid.jobs.join("client");
    // It takes the connection and says nothing.
    let listener = UnixListener::bind(&socket).expect("listens");
    let job = grid.submit_interactive(&socket.display().to_string());
    let (_client, _) = listener.accept().expect("accepts");
    grid.forebay(&["kill", &job]).succeeds();
    grid.wait_for(&job, "killed");
    let said = &grid.history(&job)[0]["loss"]["unable"];
    assert_eq!(said, "it was killed before it started");
    assert!(!grid.jobs.join("began").exists());
    wait_until("nothing is left", LIMIT, || grid.left_behind().is_empty());
}

#[test]
fn a_job_that_waits_for_its_client_ends_with_the_lease() {
    let mut grid = Fixture::start(1, SHORT);
    let socket = grid.jobs.join("client");
    let listener = UnixListener::bind(&socket).expect("listens");
    let job = grid.submit_interactive(&socket.display().to_string());
    let (_client, _) = listener.accept().expect("accepts");
    grid.kill_controller();
    wait_until("its shim has ended", LIMIT, || grid.shims().is_empty());
    grid.start_controller();
    wait_until("it was told", LIMIT, || !grid.history(&job).is_empty());
    let first = grid.history(&job)[0].clone();
    assert_eq!(first["loss"]["unable"], "the lease of the host has expired", "{first}");
    grid.forebay(&["kill", &job]).succeeds();
    wait_until("it has ended", LIMIT, || grid.state(&job) == "killed");
}
