//! Jobs that notify people.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};

use forebay_e2e::command::run;
use forebay_e2e::wait_until;
use serde_json::Value;

use crate::{Fixture, LIMIT};

/// A server that keeps what it is sent by POST; the first request of all is answered with an error.
fn webhook() -> (String, Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let (sender, received) = channel();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let (mut request, mut part) = (Vec::new(), [0; 4096]);
            let body = loop {
                let length = stream.read(&mut part).unwrap_or(0);
                request.extend_from_slice(&part[..length]);
                let text = String::from_utf8_lossy(&request).into_owned();
                let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
                let parsed = body.and_then(|body| serde_json::from_str::<Value>(&body).ok());
                if parsed.is_some() || length == 0 {
                    break parsed;
                }
            };
            let status = if number == 0 { "503 Service Unavailable" } else { "200 OK" };
            let _ = write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
            if let (Some(body), true) = (body, number > 0) {
                let _ = sender.send(body);
            }
        }
    });
    (url, received)
}

/// A grid that sends mail by a script, to which the folder of the jobs is `$1`.
fn with_sendmail(script: &str) -> Fixture {
    let grid = Fixture::start();
    let program = grid.jobs.join("sendmail");
    let script = format!("#!/bin/sh\nset -- {}\n{script}\n", grid.jobs.display());
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let settings = format!("[general]\nsendmail = \"{}\"\n", program.display());
    std::fs::write(grid.root.join("grid/grid.toml"), settings).unwrap();
    grid.forebay(&["reload"], &[]).succeeds();
    grid
}

#[test]
fn people_are_told_of_an_end_by_the_next_controller_if_the_former_one_could_not() {
    let mut grid = with_sendmail("echo >> $1/tries; test -e $1/works || exit 1; cat >> $1/letters");
    let letters = |grid: &Fixture, job: &str| {
        let all = std::fs::read_to_string(grid.jobs.join("letters")).unwrap_or_default();
        all.matches(&format!("job {job} succeeded\n")).count()
    };
    let job = grid.submit(&["--notify", "end"], "true");
    wait_until("it was tried", LIMIT, || grid.jobs.join("tries").exists());
    grid.kill_daemon(0);
    std::fs::write(grid.jobs.join("works"), "").unwrap();
    grid.start_controller();
    wait_until("the next one told it", LIMIT, || letters(&grid, &job) > 0);
    // Once told, it is not told again.
    let before = letters(&grid, &job);
    let other = grid.submit(&["--notify", "end"], "true");
    wait_until("another one is told", LIMIT, || letters(&grid, &other) > 0);
    grid.kill_daemon(grid.daemons.len() - 1);
    grid.start_controller();
    let third = grid.submit(&["--notify", "end"], "true");
    wait_until("and a third one", LIMIT, || letters(&grid, &third) > 0);
    assert_eq!(letters(&grid, &job), before);
}

#[test]
fn a_job_notifies_people_by_mail_and_by_a_webhook() {
    let grid = with_sendmail("cat >> $1/letters; echo >> $1/letters");
    let letters = || std::fs::read_to_string(grid.jobs.join("letters")).unwrap_or_default();

    let (url, received) = webhook();
    let failed = grid.submit(
        &["-J", "load", "--notify", "begin,fail", "--webhook", &url, "--mail", "ann@example.com"],
        "exit 3",
    );
    // The first call fails and is made again.
    let mut told: Vec<Value> = (0..2).map(|_| received.recv_timeout(LIMIT).unwrap()).collect();
    told.sort_by_key(|told| told["event"].to_string());
    assert_eq!((&told[0]["event"], &told[1]["event"]), (&"begin".into(), &"fail".into()));
    assert_eq!((&told[1]["exit_code"], &told[1]["name"]), (&3.into(), &"load".into()));
    assert_eq!(told[1]["job"].to_string(), failed);
    let subject = format!("Subject: [forebay] job {failed} (load) failed with exit code 3\n");
    wait_until("a letter was sent", LIMIT, || letters().contains(&subject));
    assert!(letters().contains("To: ann@example.com\n") && letters().contains("exit code: 3"));

    // Not of what it does not say; and a user by default.
    let fine = grid.submit(&["--notify", "fail"], "true");
    grid.wait_for(&fine, "done");
    let fine = grid.submit(&["--notify", "end"], "true");
    let subject = format!("Subject: [forebay] job {fine} succeeded\n");
    wait_until("the user got a letter", LIMIT, || letters().contains(&subject));
    let me = run(Command::new("id").arg("-un"), LIMIT);
    assert!(letters().contains(&format!("To: {}\n", me.output().trim())), "{}", letters());
    assert_eq!(letters().matches("Subject:").count(), 3, "{}", letters());

    for (options, reason) in [
        (&["--notify", "often"][..], "choose from begin, end and fail"),
        (&["--mail", "a b"], "mail address \"a b\""),
        (&["--webhook", "ftp://x"], "begins with https:// or http://"),
    ] {
        let arguments = [&["submit"], options].concat();
        let said = grid.forebay(&arguments, &["--", "true"]).refused();
        assert!(said.contains(reason), "{said}");
    }
}

#[test]
fn people_are_told_of_the_end_of_a_job_that_is_forgotten_with_it() {
    let grid = with_sendmail("cat >> $1/letters");
    let settings = grid.root.join("grid/grid.toml");
    let text = std::fs::read_to_string(&settings).unwrap() + "finished_max = 1\n";
    std::fs::write(&settings, text).unwrap();
    grid.forebay(&["reload"], &[]).succeeds();
    // An array of more elements than the grid keeps.
    let job = grid.submit(&["--notify", "end", "-J", "a[1-2]"], "exit $FOREBAY_INDEX");
    let letters = || std::fs::read_to_string(grid.jobs.join("letters")).unwrap_or_default();
    wait_until("its owner is told", LIMIT, || {
        letters().contains(&format!("job {job} (a) failed with exit code 1"))
    });
    let known = grid.forebay(&["jobs", &job], &[]);
    assert!(known.stderr.contains("only its history"), "{known:?}");
}
