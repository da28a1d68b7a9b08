//! Flows with real processes.

use std::time::Duration;

use forebay_e2e::wait_until;

use super::{Fixture, LIMIT};

/// Two branches, one of them an array, and what puts them together. Element 3 fails until there is a file
/// named mended.
const DIAMOND: &str = r#"
[flow]
name = "diamond"
environment = { WORD = "said" }

[[job]]
name = "reduce"
command = "cat part.* >sum; echo reduce >>ran"
after = ["load", "ended(side)"]

[[job]]
name = "side"
command = "echo $WORD >side; echo side >>ran"
after = "extract"

[[job]]
name = "load"
command = "echo load$FOREBAY_INDEX >>ran; echo $FOREBAY_INDEX >part.$FOREBAY_INDEX; test $FOREBAY_INDEX != 3 || test -e mended"
array = "1-5%2"
after = "extract"

[[job]]
name = "extract"
command = ["sh", "-c", "echo extract >>ran"]
"#;

impl Fixture {
    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.jobs.join(name), text).unwrap();
    }

    fn show(&self, flow: &str) -> serde_json::Value {
        let json = self.forebay(&["flow", "show", flow, "--json"], &[]).output();
        serde_json::from_str(&json).unwrap()
    }

    fn step_states(&self, flow: &str) -> Vec<(String, String)> {
        let view = self.show(flow);
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let step = |step: &serde_json::Value| (text(&step["name"]), text(&step["state"]));
        view["steps"].as_array().unwrap().iter().map(step).collect()
    }

    fn wait_for_flow(&self, flow: &str, state: &str) {
        wait_until(&format!("flow {flow} is {state}"), LIMIT, || self.show(flow)["state"] == state);
    }
}

#[test]
fn a_flow_that_failed_is_run_again_where_it_failed() {
    let grid = Fixture::start();
    grid.write("diamond.toml", DIAMOND);
    let checked = grid.forebay(&["flow", "check", "diamond.toml"], &[]).output();
    assert!(checked.find("load").unwrap() < checked.find("reduce").unwrap(), "{checked}");
    let ended = grid.forebay(&["flow", "run", "diamond.toml", "--wait"], &[]).expect_code(1);
    assert_eq!(ended.stdout, "1\n");
    assert!(ended.stderr.contains("flow 1 failed: load"), "{}", ended.stderr);
    let states = grid.step_states("1");
    let word = |name: &str| states.iter().find(|(step, _)| step == name).unwrap().1.as_str();
    let words = ["extract", "side", "load", "reduce"].map(word);
    assert_eq!(words, ["done", "done", "failed", "skipped"]);
    let before = ["extract", "load1", "load2", "load3", "load4", "load5", "side"];
    assert_eq!(grid.lines("ran"), before);
    assert!(grid.forebay(&["flow", "list"], &[]).output().lines().count() == 1);
    assert!(grid.forebay(&["flow", "list", "--all"], &[]).output().contains("diamond"));
    grid.write("mended", "");
    grid.forebay(&["flow", "rerun", "1", "--wait"], &[]).succeeds();
    let after = ["extract", "load1", "load2", "load3", "load3", "load4", "load5", "reduce", "side"];
    assert_eq!(grid.lines("ran"), after);
    assert_eq!(grid.lines("sum"), ["1", "2", "3", "4", "5"]);
    assert_eq!(grid.lines("side"), ["said"]);
    let said = grid.forebay(&["flow", "rerun", "1"], &[]).refused();
    assert!(said.contains("flow 1 succeeded"), "{said}");
    wait_until("the work areas are gone", LIMIT, || grid.is_without_work());
}

#[test]
fn a_flow_goes_on_when_the_controller_is_killed_in_the_middle() {
    let mut grid = Fixture::start();
    let slow = DIAMOND.replace("echo load", "sleep 0.3; echo load");
    grid.write("mended", "");
    grid.write("slow.toml", &slow);
    for _ in 0..3 {
        grid.forebay(&["flow", "run", "slow.toml"], &[]).succeeds();
    }
    wait_until("some have run", LIMIT, || grid.lines("ran").len() > 4);
    for _ in 0..2 {
        grid.kill_daemon(0);
        std::thread::sleep(Duration::from_millis(300));
        grid.start_controller();
        // The agent comes first again.
        let controller = grid.daemons.pop().unwrap();
        grid.daemons.insert(0, controller);
    }
    for flow in ["1", "2", "3"] {
        grid.wait_for_flow(flow, "done");
    }
    let expected = ["extract", "load1", "load2", "load3", "load4", "load5", "reduce", "side"]
        .map(|line| [line; 3]);
    assert_eq!(grid.lines("ran"), expected.concat());
}

#[test]
fn a_killed_flow_ends_its_processes() {
    let grid = Fixture::start();
    let text = "[flow]\nname = \"long\"\n[[job]]\nname = \"a\"\ncommand = \"sleep 600\"\n\
                [[job]]\nname = \"b\"\ncommand = \"touch b\"\nafter = \"ended(a)\"\n";
    grid.write("long.toml", text);
    let flow = grid.forebay(&["flow", "run", "long.toml", "--json"], &[]).output();
    assert_eq!(flow.trim(), "{\"flow\":1}");
    wait_until("it runs", LIMIT, || grid.step_states("1")[0].1 == "running");
    let said = grid.forebay(&["flow", "rerun", "1"], &[]).refused();
    assert!(said.contains("is still running"), "{said}");
    grid.forebay(&["flow", "kill", "1"], &[]).succeeds();
    grid.wait_for_flow("1", "killed");
    let states: Vec<String> = grid.step_states("1").into_iter().map(|(_, state)| state).collect();
    assert_eq!(states, ["killed", "killed"]);
    assert!(!grid.jobs.join("b").exists());
}

#[test]
fn a_file_that_arrives_starts_a_run_once_also_after_a_restart() {
    let mut grid = Fixture::start();
    let text = format!(
        "[flow]\nname = \"take\"\n[[job]]\nname = \"a\"\ncommand = \"cat $FOREBAY_FILE >>taken\"\n\
         [schedule]\nfile = \"{}/in/*\"\n",
        grid.jobs.display()
    );
    grid.write("take.toml", &text);
    let schedule = grid.forebay(&["flow", "schedule", "add", "take.toml"], &[]).output();
    assert_eq!(schedule, "1\n");
    std::fs::create_dir(grid.jobs.join("in")).unwrap();
    grid.write("in/one", "one\n");
    wait_until("the first is taken", LIMIT, || grid.lines("taken") == ["one"]);
    grid.kill_daemon(0);
    grid.start_controller();
    grid.write("in/two", "two\n");
    wait_until("the second is taken", LIMIT, || grid.lines("taken").len() > 1);
    assert_eq!(grid.lines("taken"), ["one", "two"]);
    let list = grid.forebay(&["flow", "schedule", "list", "--json"], &[]).output();
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    assert_eq!((list[0]["fired"].as_u64(), list[0]["last"].as_u64()), (Some(2), Some(2)));
    grid.forebay(&["flow", "schedule", "remove", "1"], &[]).succeeds();
    let said = grid.forebay(&["flow", "schedule", "remove", "1"], &[]).refused();
    assert!(said.contains("there is no schedule 1"), "{said}");
}

#[test]
fn a_schedule_that_is_held_starts_nothing_until_it_is_released_also_after_a_restart() {
    let mut grid = Fixture::start();
    let job = "[[job]]\nname = \"a\"\ncommand = \"echo $FOREBAY_FILE >>$FLOW\"\n";
    for name in ["held", "free"] {
        let (head, file) = (format!("[flow]\nname = \"{name}\"\n"), grid.jobs.join("in/*"));
        let text = format!("{head}environment = {{ FLOW = \"{name}\" }}\n{job}[schedule]\n");
        grid.write("take.toml", &format!("{text}file = \"{}\"\n", file.display()));
        grid.forebay(&["flow", "schedule", "add", "take.toml"], &[]).succeeds();
    }
    let held = grid.forebay(&["flow", "schedule", "hold", "1", "--json"], &[]).output();
    assert_eq!(held, "{\"schedule\":1}\n");
    let said = grid.forebay(&["flow", "schedule", "hold", "1"], &[]).refused();
    assert!(said.contains("is already held"), "{said}");
    grid.kill_daemon(0);
    grid.start_controller();
    std::fs::create_dir(grid.jobs.join("in")).unwrap();
    grid.write("in/one", "");
    wait_until("the other has taken it", LIMIT, || !grid.lines("free").is_empty());
    let list = grid.forebay(&["flow", "schedule", "list", "--json"], &[]).output();
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    assert_eq!((list[0]["held"].is_u64(), list[0]["fired"].as_u64()), (true, Some(0)));
    assert!(list[1]["held"].is_null(), "{list}");
    let shown = grid.forebay(&["flow", "schedule", "list"], &[]).output();
    assert!(shown.contains(" held ") && shown.contains(" active "), "{shown}");
    grid.forebay(&["flow", "schedule", "release", "1"], &[]).succeeds();
    wait_until("it has taken what arrived meanwhile", LIMIT, || !grid.lines("held").is_empty());
    let said = grid.forebay(&["flow", "schedule", "release", "1"], &[]).refused();
    assert!(said.contains("is not held"), "{said}");
}

#[test]
fn a_time_starts_a_run() {
    let grid = Fixture::start();
    // Each minute: the longest that the test waits, besides its limit.
    let text = "[flow]\nname = \"often\"\n[[job]]\nname = \"a\"\ncommand = \"echo x >>often\"\n\
                [schedule]\ncron = \"* * * * *\"\n";
    grid.write("often.toml", text);
    grid.forebay(&["flow", "schedule", "add", "often.toml", "--json"], &[]).succeeds();
    wait_until("it has run", LIMIT * 3, || !grid.lines("often").is_empty());
}

#[test]
fn bad_input_of_flow_commands_is_refused_with_a_reason() {
    let grid = Fixture::start();
    let job = "[[job]]\nname = \"a\"\ncommand = \"true\"\n";
    grid.write("plain.toml", &format!("[flow]\nname = \"f\"\n{job}"));
    grid.write("cycle.toml", &format!("[flow]\nname = \"f\"\n{job}after = \"a\"\n"));
    grid.write("queue.toml", &format!("[flow]\nname = \"f\"\nqueue = \"none\"\n{job}"));
    let past = format!("[flow]\nname = \"f\"\n{job}[schedule]\nat = \"2001-01-01T00:00\"\n");
    grid.write("past.toml", &past);
    std::fs::write(grid.jobs.join("bytes.toml"), [0xff, 0xfe]).unwrap();
    for (arguments, reason) in [
        (&["flow", "check", "none.toml"][..], "none.toml"),
        (&["flow", "check", "bytes.toml"], "is not UTF-8"),
        (&["flow", "check", "cycle.toml"], "line 6"),
        (&["flow", "run", "cycle.toml"], "a after a"),
        (&["flow", "run", "none.toml"], "none.toml"),
        (&["flow", "run", "queue.toml"], "there is no queue none"),
        (&["flow", "run", "plain.toml", "--env", "=x"], "--env"),
        (&["flow", "show", "77"], "there is no flow 77"),
        (&["flow", "show", "0"], "is not a number"),
        (&["flow", "rerun", "77"], "there is no flow 77"),
        (&["flow", "kill", "77"], "there is no flow 77"),
        (&["flow", "kill", "x"], "is not a number"),
        (&["flow", "schedule", "add", "plain.toml"], "no [schedule]"),
        (&["flow", "schedule", "add", "past.toml"], "has passed"),
        (&["flow", "schedule", "remove", "77"], "there is no schedule 77"),
        (&["flow", "schedule", "hold", "77"], "there is no schedule 77"),
        (&["flow", "schedule", "release", "x"], "is not a number"),
        (&["flow", "list", "--grid", "/does/not/exist"], "/does/not/exist"),
        (&["flow", "schedule", "list", "--grid", "/does/not/exist"], "/does/not/exist"),
    ] {
        let said = grid.forebay(arguments, &[]).refused();
        assert!(said.contains(reason), "{arguments:?}: {said}");
    }
    assert!(grid.forebay(&["jobs", "--all"], &[]).output().lines().count() == 1);
}
