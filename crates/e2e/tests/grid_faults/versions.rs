//! What an agent does with orders of a controller, which is the test: one of a later version, and one that sends a warning again.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use forebay_e2e::mounted::scratch_folder;
use forebay_e2e::need::forebay;
use forebay_e2e::wait_until;
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

/// Where the controller of an agent listens, which is the test.
fn listen(root: &Path) -> UnixListener {
    std::fs::create_dir_all(root.join("grid")).expect("makes ROOT");
    UnixListener::bind(root.join("grid/controller.sock")).expect("listens")
}

fn start_agent(root: &Path) -> Agent {
    let mut command = Command::new(forebay());
    command.arg("agent").arg(root).args(["--name", "h1", "--slots", "2", "--cgroup", "none"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Agent(command.spawn().expect("starts an agent"))
}

/// The next connection of an agent, over which it has joined.
fn joined(listener: &UnixListener) -> Lines {
    let mut lines = Lines::over(listener.accept().expect("the agent connects").0);
    assert_eq!(lines.read()["ask"], "join");
    lines
}

#[test]
fn an_agent_that_does_not_know_an_option_reports_the_job_as_not_started_and_stays() {
    let folder = scratch_folder();
    let root = folder.path().join("g");
    let listener = listen(&root);
    let _agent = start_agent(&root);
    // What a controller of a later version says.
    let mut lines = joined(&listener);
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

#[test]
fn a_warning_that_is_sent_again_reaches_a_job_that_did_not_get_it_and_no_other() {
    const SCRIPT: &str = "trap 'echo warned >>$0' USR1; trap 'echo last >>$0' USR2; echo ready >>$0; while :; do sleep 0.02; done";
    let folder = scratch_folder();
    let root = folder.path().join("g");
    let listener = listen(&root);
    let agent = start_agent(&root);
    let user = Command::new("id").arg("-un").output().expect("asks for the user");
    let user = String::from_utf8(user.stdout).expect("a name").trim().to_owned();
    let grant = json!({"order": "grant", "lease": "10 min"});
    let order = |order: &str, job: u64| json!({"order": order, "task": {"job": job, "index": 0}, "attempt": 1});
    let file = |job: u64| folder.path().join(format!("said-{job}"));
    let said = |job: u64| std::fs::read_to_string(file(job)).unwrap_or_default();
    let mut lines = joined(&listener);
    lines.send(&grant);
    for job in [7, 8] {
        let mut launch = order("launch", job);
        launch["requeues"] = json!(0);
        launch["user"] = json!(user);
        launch["slots"] = json!(1);
        launch["time_limit"] = json!("10 min");
        let path = file(job).display().to_string();
        let command = ["bash", "-c", SCRIPT, &path];
        launch["spec"] = json!({
            "command": command, "warning": "program:USR1@1 min", "directory": "/", "output": "/dev/null"
        });
        lines.send(&launch);
        lines.report("started");
        wait_until("the job is ready", LIMIT, || said(job) == "ready\n");
    }
    lines.send(&order("warn", 7));
    wait_until("the first job is warned", LIMIT, || said(7) == "ready\nwarned\n");
    // The warning of the other one was lost with the connection. The controller does not know which one was.
    drop(lines);
    let mut lines = joined(&listener);
    for job in [7, 8] {
        lines.send(&order("warn", job));
    }
    lines.send(&grant);
    for job in [7, 8] {
        // A shim passes signals on in their order, and so does the shell.
        wait_until("the job is warned", LIMIT, || said(job).starts_with("ready\nwarned\n"));
        let mut signal = order("signal", job);
        signal["signal"] = json!("usr2");
        lines.send(&signal);
        wait_until("the job has had both", LIMIT, || said(job).ends_with("last\n"));
        assert_eq!(said(job), "ready\nwarned\nlast\n");
    }
    // Of another end it is warned as ever.
    lines.send(&order("warn", 7));
    wait_until("the job is warned again", LIMIT, || said(7).ends_with("last\nwarned\n"));
    // The agent is killed and the controller replaced, which sends all warnings again: the next agent knows of them.
    drop(agent);
    drop(lines);
    let _agent = start_agent(&root);
    let mut lines = joined(&listener);
    for job in [7, 8] {
        lines.send(&order("warn", job));
    }
    lines.send(&grant);
    for (job, before) in [(7, "ready\nwarned\nlast\nwarned\n"), (8, "ready\nwarned\nlast\n")] {
        let mut signal = order("signal", job);
        signal["signal"] = json!("usr2");
        lines.send(&signal);
        let expected = format!("{before}last\n");
        wait_until("the job has had a signal", LIMIT, || said(job).len() >= expected.len());
        assert_eq!(said(job), expected);
    }
    for job in [7, 8] {
        let mut kill = order("kill", job);
        kill["why"] = json!("asked");
        lines.send(&kill);
        lines.report("exited");
    }
}
