//! An agent of an earlier version than its controller.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};

use forebay_e2e::mounted::scratch_folder;
use forebay_e2e::need::forebay;
use serde_json::{Value, json};

use crate::fixture::LIMIT;

/// A connection with lines of JSON.
struct Lines {
    stream: UnixStream,
    reader: BufReader<UnixStream>,
}

impl Lines {
    fn over(stream: UnixStream) -> Lines {
        stream.set_read_timeout(Some(LIMIT)).expect("sets a timeout");
        let reader = BufReader::new(stream.try_clone().expect("has a descriptor"));
        Lines { stream, reader }
    }

    fn send(&mut self, value: &Value) {
        writeln!(self.stream, "{value}").expect("writes");
    }

    fn read(&mut self) -> Value {
        let mut line = String::new();
        self.reader.read_line(&mut line).expect("reads");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    /// The next report of this kind.
    fn report(&mut self, kind: &str) -> Value {
        loop {
            let report = self.read();
            if report["report"] == kind {
                return report;
            }
        }
    }
}

/// An agent, which is killed at the end of the test.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_agent_that_does_not_know_an_option_reports_the_job_as_not_started_and_stays() {
    let folder = scratch_folder();
    let root = folder.path().join("g");
    std::fs::create_dir_all(root.join("grid")).expect("makes ROOT");
    let listener = UnixListener::bind(root.join("grid/controller.sock")).expect("listens");
    let mut command = Command::new(forebay());
    command.arg("agent").arg(&root).args(["--name", "h1", "--slots", "1", "--cgroup", "none"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let _agent = Agent(command.spawn().expect("starts an agent"));
    // What a controller of a later version says.
    let mut lines = Lines::over(listener.accept().expect("the agent connects").0);
    assert_eq!(lines.read()["ask"], "join");
    let grant = json!({"order": "grant", "lease": "60 s"});
    lines.send(&grant);
    lines.send(&json!({"order": "dance", "tempo": 3}));
    let launch = json!({
        "order": "launch", "task": {"job": 7, "index": 0}, "attempt": 1, "requeues": 0, "user": "root", "slots": 1, "time_limit": null,
        "spec": {"command": ["true"], "zone": "a"},
    });
    lines.send(&launch);
    let lost = lines.report("lost");
    assert_eq!((&lost["task"], &lost["attempt"]), (&launch["task"], &launch["attempt"]));
    let loss = lost["loss"].to_string();
    assert!(loss.contains("unable") && loss.contains("zone") && loss.contains("restart"), "{loss}");
    lines.send(&json!({"order": "noted", "task": launch["task"], "attempt": 1}));
    // On the same connection.
    lines.send(&grant);
    lines.report("load");
}
