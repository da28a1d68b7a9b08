//! Interactive jobs of other users than root.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use forebay_e2e::actor::{User, as_user};
use forebay_e2e::need::{self, forebay};

use crate::Fixture;
use crate::terminal::Desk;

const ANN: u32 = 4101;

/// A grid whose socket other users reach, with a folder for everybody's files.
fn open_grid() -> Fixture {
    need::root();
    let grid = Fixture::start();
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(grid.root.parent().unwrap(), 0o755);
    mode(&grid.jobs, 0o777);
    grid
}

#[test]
fn an_interactive_job_runs_as_its_user_who_owns_its_streams() {
    let grid = open_grid();
    let script = "id -u; cat /dev/stdin >/dev/stdout; stat -L -c %u /dev/stdin /dev/stdout";
    let said = grid.as_user(ANN, &["run", "--", "sh", "-c", script]).output();
    assert_eq!(said, "4101\n4101\n4101\n");
    let mut run = Command::new(forebay());
    run.args(["run", "--", "sh", "-c", "id -u; stat -c %u \"$(tty)\"; echo to >/dev/tty; exit 3"]);
    run.uid(ANN).gid(ANN);
    let desk = Desk::start(&grid, run);
    desk.see("4101\r\n4101\r\nto\r\n");
    assert_eq!(desk.leave(), 3);
}

#[test]
fn the_socket_of_another_user_is_not_talked_to() {
    let grid = open_grid();
    // One that everybody can connect to, and one that only root can.
    let (open, closed) = (grid.jobs.join("open"), grid.root.join("closed"));
    let listeners = [&open, &closed].map(|path| {
        let listener = UnixListener::bind(path).unwrap();
        let mode = if path == &open { 0o777 } else { 0o700 };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        listener
    });
    let mut job = 0;
    for (path, reason) in [(&open, "not the user of the job"), (&closed, "ermission denied")] {
        let spec = serde_json::json!({
            "command": ["true"],
            "directory": "/",
            "interactive": { "socket": path, "streams": "pipes" },
        });
        let ask = serde_json::json!({ "ask": "submit", "spec": spec });
        let answer = as_user(&User::new(ANN, &[ANN]), || {
            let controller = grid.root.join("grid/controller.sock");
            let mut stream = UnixStream::connect(controller).unwrap();
            writeln!(stream, "{ask}").unwrap();
            let mut line = String::new();
            BufReader::new(stream).read_line(&mut line).unwrap();
            line
        });
        job += 1;
        assert!(answer.contains("accepted"), "{answer}");
        grid.wait_for(&job.to_string(), "exited");
        let listed = grid.forebay(&["jobs", &job.to_string(), "--json"], &[]).output();
        assert!(listed.contains(reason), "{listed}");
    }
    drop(listeners);
    // What is no path of a socket is not taken.
    let long = format!("/{}", "x".repeat(107));
    for socket in ["relative", "", &long] {
        let interactive = serde_json::json!({ "socket": socket, "streams": "pipes" });
        let spec = serde_json::json!({ "command": ["true"], "interactive": interactive });
        let mut stream = UnixStream::connect(grid.root.join("grid/controller.sock")).unwrap();
        writeln!(stream, "{}", serde_json::json!({ "ask": "submit", "spec": spec })).unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        assert!(line.contains("refused") && line.contains("107 bytes"), "{line}");
    }
}

#[test]
fn a_controller_that_does_not_know_a_field_says_what_to_do() {
    let grid = crate::Fixture::start();
    let ask = |ask: &str| {
        let mut stream = UnixStream::connect(grid.root.join("grid/controller.sock")).unwrap();
        writeln!(stream, "{ask}").unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line
    };
    for newer in [
        r#"{"ask":"submit","spec":{"command":["true"],"zone":"a"}}"#,
        r#"{"ask":"modify","job":1,"changes":{"zone":"a"}}"#,
        r#"{"ask":"zone","name":"a"}"#,
        r#"{"ask":"command","target":{"job":1,"index":null},"verb":"zone"}"#,
        r#"{"ask":"jobs","target":null,"ended":true,"page":{"zone":"a"}}"#,
    ] {
        let said = ask(newer);
        assert!(said.contains("does not know \\\"zone\\\""), "{said}");
        assert!(said.contains("restart the controller"), "{said}");
    }
    assert!(ask(r#"{"ask":"submit","spec":{"command":["true"]}}"#).contains("accepted"));
}
