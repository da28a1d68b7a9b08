//! What users do, with jobs that Slurm runs.

use forebay_e2e::wait_until;

use crate::fixture::{ANN, Fixture, LIMIT};

#[test]
fn jobs_run_through_slurm_with_the_same_commands() {
    let grid = Fixture::start("");
    // A job of a user who is not root: as that user, in its areas, on a node of Slurm.
    let script = "id -u; echo $FOREBAY_HOST $SLURMD_NODENAME; test -n \"$SLURM_JOB_ID\"; test -O \"$WORK\"; \
                  touch \"$WORK/file\"; echo $A; exit 3";
    let submitted =
        grid.as_ann(&["submit", "--env", "A=a b", "--name", "mine", "--", "sh", "-c", script]);
    let job = submitted.output().trim().to_owned();
    assert_eq!(grid.exit_of(&job), 3);
    let said = grid.as_ann(&["output", &job]).output();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], ANN.to_string(), "{said}");
    assert!(matches!(lines[1], "n1 n1" | "n2 n2"), "{said}");
    assert_eq!(lines[2], "a b");
    let history = grid.history(&job);
    assert_eq!(history.len(), 1);
    assert_eq!(history[0]["host"], "slurm");
    assert!(history[0]["usage"]["real_seconds"].as_f64().expect("a time") > 0.0);

    // An array, what depends on it, and a flow.
    let array = grid.submit(&["--name", "a[1-3]"], "echo $FOREBAY_INDEX >> array");
    let after = grid.submit(&["--depends", &format!("done({array})")], "sort array > sorted");
    assert_eq!(grid.exit_of(&after), 0);
    assert_eq!(grid.read("sorted"), "1\n2\n3\n");
    let flow = "[flow]\nname = \"f\"\n[[job]]\nname = \"a\"\ncommand = \"echo a >>flow\"\n\
                [[job]]\nname = \"b\"\ncommand = \"echo b >>flow\"\nafter = \"done(a)\"\n";
    std::fs::write(grid.jobs.join("f.toml"), flow).expect("writes a flow");
    grid.forebay(&["flow", "run", "f.toml", "--wait"]).succeeds();
    assert_eq!(grid.read("flow"), "a\nb\n");
    grid.wait_for_nothing_left();
    grid.down();
}

#[test]
fn jobs_that_wait_or_run_in_slurm_are_held_killed_and_restarted() {
    let settings = "[[host]]\nname = \"slurm\"\nengine = \"slurm\"\nfeatures = [\"disk1\", \"disk2\", \"fast\"]\n\
                    [[queue]]\nname = \"normal\"\n\
                    [[queue]]\nname = \"second\"\nslurm = [\"--constraint=disk2\"]\n\
                    [[queue]]\nname = \"either\"\nslurm = [\"--constraint=[disk1|disk2]\"]\n\
                    [[queue]]\nname = \"long\"\nslurm = [\"--partition=long\"]\n\
                    [[queue]]\nname = \"wrong\"\nslurm = [\"--partition=nowhere\"]\n";
    let grid = Fixture::start(settings);
    // Four processors: two jobs fill them.
    let full: Vec<String> = (0..2)
        .map(|n| {
            grid.submit(
                &["--slots", "2"],
                &format!("echo x >> ran{n}; until test -e go; do sleep 0.1; done"),
            )
        })
        .collect();
    for job in &full {
        grid.wait_for(job, "running");
    }
    grid.wait_for_reason(&full[0], "runs on n");
    let waits = grid.submit(&["--queue", "long"], "echo waited >> waited");
    grid.wait_for_reason(&waits, "waits: ");
    let number = grid.number(&waits);
    let partition = grid.slurm.run("squeue", &["-h", "-j", &number, "-o", "%P"]).output();
    assert_eq!(partition.trim(), "long");
    // Held and released while it waits there.
    grid.forebay(&["hold", &waits]).succeeds();
    grid.wait_for_reason(&waits, "JobHeld");
    grid.forebay(&["release", &waits]).succeeds();
    wait_until("Slurm does not hold it any more", LIMIT, || {
        !grid.forebay(&["explain", &waits]).stdout.contains("JobHeld")
    });
    // One that waits is killed.
    let killed = grid.submit(&[], "echo killed >> waited");
    grid.wait_for_reason(&killed, "waits: ");
    grid.forebay(&["kill", &killed]).succeeds();
    grid.wait_for(&killed, "killed");
    // One that runs is suspended, goes on, and starts again.
    grid.forebay(&["hold", &full[0]]).succeeds();
    grid.wait_for(&full[0], "suspended");
    grid.forebay(&["release", &full[0]]).succeeds();
    grid.wait_for(&full[0], "running");
    grid.forebay(&["requeue", &full[0]]).succeeds();
    wait_until("it has started again", LIMIT, || grid.read("ran0") == "x\nx\n");
    grid.forebay(&["kill", &full[1]]).succeeds();
    grid.wait_for(&full[1], "killed");
    std::fs::write(grid.jobs.join("go"), "").expect("lets it go");
    assert_eq!(grid.exit_of(&full[0]), 0);
    assert_eq!(grid.exit_of(&waits), 0);
    assert_eq!(grid.read("waited"), "waited\n");

    choose_nodes_and_are_warned(&grid);

    // What Slurm refuses, and what cannot be through Slurm, is said.
    let wrong = grid.submit(&["--queue", "wrong"], "true");
    assert_eq!(grid.exit_of(&wrong), 127);
    let why = grid.json(&["history", &wrong])[0]["exit"].to_string();
    assert!(why.contains("Slurm refuses it") && why.contains("nowhere"), "{why}");
    let refused = grid.forebay(&["run", "--", "true"]).refused();
    assert!(refused.contains("srun --pty"), "{refused}");
    grid.wait_for_nothing_left();
    grid.down();
}

/// Features and the constraint of a queue, a warning of a step that Slurm's own srun has started, and jobs of one name.
fn choose_nodes_and_are_warned(grid: &Fixture) {
    let steps = "srun -n1 sh -c 'trap \"echo step >> got; exit\" USR1; : > ready; while :; do sleep 0.1; done'; \
                 echo over >> got";
    let warned = ["--slots", "2", "--name", "one", "--time-limit", "10 h"];
    let warned = grid.submit(&[&warned[..], &["--warn", "steps:USR1@1 h"]].concat(), steps);
    let after = grid.submit(&["--name", "one", "--depends", "singleton()"], "echo after >> got");
    let where_is = "echo $SLURMD_NODENAME > $FOREBAY_JOB";
    // Deeper than Slurm reads parentheses.
    let first = grid.submit(&["--feature", "disk1 && (disk2 || (fast && disk1))"], where_is);
    let second = grid.submit(&["--queue", "second", "--feature", "fast"], where_is);
    let refused = grid.forebay(&["submit", "--feature", "!disk1", "--", "true"]).refused();
    assert!(refused.contains("!disk1"), "{refused}");
    // What only Slurm understands goes with jobs that need nothing else.
    let either = grid.submit(&["--queue", "either"], where_is);
    let refused =
        grid.forebay(&["submit", "--queue", "either", "--feature", "fast", "--", "true"]).refused();
    assert!(refused.contains("--constraint=[disk1|disk2]"), "{refused}");
    wait_until("the step runs", LIMIT, || grid.jobs.join("ready").exists());
    grid.wait_for(&warned, "running");
    grid.forebay(&["modify", &warned, "--time-limit", "30 min"]).succeeds();
    assert_eq!(grid.exit_of(&after), 0);
    assert_eq!(grid.read("got"), "step\nover\nafter\n");
    for (job, node) in [(&first, "n1\n"), (&second, "n2\n")] {
        assert_eq!(grid.exit_of(job), 0);
        assert_eq!(grid.read(job), node);
    }
    assert_eq!(grid.exit_of(&either), 0);
}
