//! Job files and the scripts in them.

use crate::{Fixture, LIMIT};
use forebay_e2e::wait_until;

#[test]
fn a_script_brings_its_options_and_is_kept_with_its_job() {
    let grid = Fixture::start();
    let blocker = grid.submit(&["-n", "4"], "while test ! -e go; do sleep 0.05; done");
    grid.wait_for(&blocker, "running");
    let path = grid.jobs.join("month.sh");
    let script = "#!/bin/bash\n#FOREBAY -J month -n 2\n#FOREBAY -o 'out of %J' --env \"A=b c\"\n\n\
                  echo \"$BASH_VERSION\" | grep -c . ; echo \"$1|$2|$A|$FOREBAY_SLOTS|${0##*/}\"; exit 6\n";
    std::fs::write(&path, script).unwrap();
    let job = grid.forebay(&["submit", "month.sh"], &["--", "x", "y z"]).output();
    let job = job.trim();
    // The job waits with the script as it was.
    std::fs::write(&path, "#!/bin/bash\necho other\n").unwrap();
    std::fs::write(grid.jobs.join("go"), "").unwrap();
    grid.wait_for(job, "exited");
    let said = grid.forebay(&["output", job], &[]).output();
    assert_eq!(said, "1\nx|y z|b c|2|script\n");
    assert!(grid.jobs.join(format!("out of {job}")).exists());
    let listed = grid.forebay(&["jobs", job, "--json"], &[]).output();
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed[0]["name"], "month");
    assert_eq!(listed[0]["command"], serde_json::json!(["month.sh", "x", "y z"]));
    wait_until("the work area is gone", LIMIT, || grid.is_without_work());
}

#[test]
fn the_command_line_wins_over_a_file() {
    let grid = Fixture::start();
    std::fs::write(
        grid.jobs.join("job.toml"),
        "name = 'night'\nslots = 3\noutput = 'toml.out'\nscript = '''\n#!/bin/sh\n#FOREBAY -n 4 --hold\n\
         echo $FOREBAY_SLOTS $A\n'''\n[env]\nA = 'file'\n",
    )
    .unwrap();
    let options = ["submit", "--file", "job.toml", "-n", "1", "--env", "A=line"];
    let job = grid.forebay(&options, &[]).output();
    let job = job.trim();
    assert_eq!(grid.state(job), "held");
    grid.forebay(&["release", job], &[]).succeeds();
    grid.wait_for(job, "done");
    assert_eq!(grid.lines("toml.out"), ["1 line"]);
    std::fs::write(grid.jobs.join("command.toml"), "command = ['sh', '-c', 'exit 8']\n").unwrap();
    let _ = grid.forebay(&["submit", "--wait", "command.toml"], &[]).expect_code(8);
}

#[test]
fn a_script_without_a_program_is_run_by_the_shell() {
    let grid = Fixture::start();
    std::fs::write(grid.jobs.join("plain"), "echo plain; exit 5\n").unwrap();
    let _ = grid.forebay(&["submit", "--wait", "plain"], &[]).expect_code(5);
    std::fs::write(grid.jobs.join("none"), "#!/does/not/exist\n").unwrap();
    let _ = grid.forebay(&["submit", "--wait", "none"], &[]).expect_code(127);
}

#[test]
fn bad_job_files_are_refused_with_their_line() {
    let grid = Fixture::start();
    let write = |name: &str, text: &[u8]| std::fs::write(grid.jobs.join(name), text).unwrap();
    write("slots.sh", b"#!/bin/sh\n\n#FOREBAY -n x\n");
    write("late.sh", b"#!/bin/sh\ntrue\n#FOREBAY -n 1\n");
    write("binary", b"\x7fELF\xff\0");
    write("key.toml", b"slots = 1\nno_such = 2\n");
    write("broken.toml", b"slots = \n");
    write("empty.toml", b"slots = 1\n");
    write("long.sh", &[b"#".repeat(100), b"\n".to_vec()].concat().repeat(20_000));
    write("huge.sh", &b"#\n".repeat(3 << 20));
    for (file, reason) in [
        ("slots.sh", "slots.sh: line 3"),
        ("late.sh", "line 3: #FOREBAY after the first command"),
        ("binary", "is not UTF-8"),
        ("key.toml", "line 2"),
        ("broken.toml", "line 1"),
        ("empty.toml", "add a command or a script"),
        ("long.sh", "script_bytes_max"),
        ("huge.sh", "at most"),
        ("missing", "missing"),
        (".", "."),
    ] {
        let said = grid.forebay(&["submit", file], &[]).refused();
        assert!(said.contains(reason), "{file}: {said}");
    }
    let said = grid.forebay(&["submit"], &[]).refused();
    assert!(said.contains("FILE"), "{said}");
    let said = grid.forebay(&["submit", "slots.sh", "--file", "slots.sh"], &[]).refused();
    assert!(said.contains("cannot be used with"), "{said}");
    let large = "x".repeat(130_000);
    let said = grid.forebay(
        &["submit", "--env", &format!("A={large}"), "--env", &format!("B={large}")],
        &["--", "true"],
    );
    assert!(said.refused().contains("environment_bytes_max"));
    assert_eq!(grid.forebay(&["jobs", "--all", "--json"], &[]).output().trim(), "[]");
}
