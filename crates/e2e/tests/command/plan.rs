//! `forebay plan`, and what shells and man(1) get of the commands.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use forebay_e2e::need::forebay;
use forebay_e2e::{Ended, run, wait_until};
use rustix::process::Signal;

use crate::{assert_says, json};

const LIMIT: Duration = Duration::from_secs(120);

fn ask(arguments: &[&str]) -> Ended {
    run(Command::new(forebay()).args(arguments), LIMIT)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn a_plan_for_the_template_shows_its_formulas_layouts_and_checklist() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let file = folder.path().join("site.toml");
    fs::write(&file, ask(&["plan", "--template"]).output()).expect("writes");
    let shown = ask(&["plan", text(&file)]).output();
    assert_says(
        &shown,
        &[
            "risk department",
            "(60 x 0.5 x 1 + 4 x 1 x 2) x 1",
            "all flash",
            "What if",
            "- count the jobs",
        ],
    );
    let page = folder.path().join("plan.html");
    ask(&["plan", text(&file), "--out", text(&page)]).succeeds();
    let page = fs::read_to_string(page).expect("reads the page");
    assert_says(
        &page,
        &["risk department", "all flash", "Before buying", "class=\"bars", "</html>"],
    );
    let nowhere = folder.path().join("none/plan.html");
    let refused = ask(&["plan", text(&file), "--out", text(&nowhere)]).refused();
    assert_says(&refused, &["none/plan.html", "No such file or directory"]);
    let answer = json(&ask(&["plan", text(&file), "--rate", "150", "--json"]).stdout);
    let lines = answer["lines"].as_array().expect("has lines");
    let rate = lines.iter().find(|line| line["key"] == "mb_s").expect("says MB/s");
    assert_eq!(rate["value"], 31.0 * 150.0);
    assert_eq!(answer["layouts"].as_array().map(Vec::len), Some(3));
    assert_says(&ask(&["plan", "--studies"]).output(), &["[4]", "3250"]);
}

#[test]
fn a_plan_refuses_a_study_that_says_nothing() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let (file, out) = (folder.path().join("site.toml"), folder.path().join("out"));
    fs::write(&file, ask(&["plan", "--template"]).output()).expect("writes");
    let refused = ask(&["plan", text(&file), "--record", text(folder.path())]).refused();
    assert_says(&refused, &["result.json"]);
    // Each of its stages does something else: there is no rate of the whole.
    let on = ["--on", text(folder.path()), "--scale", "0.0002", "--out", text(&out), "--brief"];
    ask(&[&["bench", "run", "probe"][..], &on[..]].concat()).succeeds();
    let refused = ask(&["plan", text(&file), "--record", text(&out)]).refused();
    assert_says(&refused, &["has no sustained rate", "--scale"]);
}

#[test]
fn a_bad_site_is_refused_with_its_line_and_what_is_allowed() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let file = folder.path().join("site.toml");
    fs::write(&file, "[[users]]\ntype = \"base\"\nnumber = 3\nworking = 7\n").expect("writes");
    let message = ask(&["plan", text(&file)]).refused();
    assert_says(&message, &["site.toml", "working = 7", "from 0 to 1"]);
    assert_says(&ask(&["plan"]).refused(), &["FILE"]);
}

#[test]
fn manual_pages_and_completions_are_made_of_every_command() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let pages = folder.path().join("man1");
    ask(&["man", text(&pages)]).succeeds();
    let page = fs::read_to_string(pages.join("forebay-fileset-create.1")).expect("has the page");
    assert!(page.starts_with(".ie") || page.starts_with(".TH"), "{page}");
    let script = folder.path().join("forebay.bash");
    fs::write(&script, ask(&["completions", "bash"]).output()).expect("writes");
    run(Command::new("bash").args(["-n", text(&script)]), LIMIT).succeeds();
    assert_says(&fs::read_to_string(&script).expect("reads"), &["_forebay", "umount"]);
}

/// Four jobs that write for two seconds each: long enough to be interrupted between two runs.
const STREAMS: &str = r#"
name = "small"
title = "Jobs that are known"
study = "none"
defaults = { scale = 1, concurrent = 2 }
[[class]]
name = "write"
title = "streams"
kind = "io"
jobs = { per_run = 4 }
space = { data_meanwhile = "8 MiB" }
[[class.step]]
[class.step.do.stream]
file = "data/{job}"
file_bytes = "1 MiB"
pattern = "write"
duration_seconds = 2
"#;

#[test]
fn a_verification_of_plans_continues_after_an_interruption_and_states_its_errors() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let (out, storage) = (folder.path().join("accuracy"), folder.path().join("storage"));
    fs::create_dir(&storage).expect("makes a folder");
    let verify = |more: &[&str]| ask(&[&["plan", "verify", text(&out)], more].concat());
    assert_says(&verify(&[]).refused(), &["accuracy", "--on"]);
    let mix = folder.path().join("mine.toml");
    fs::write(&mix, STREAMS).expect("writes");
    let settings = ["--file", text(&mix), "--scale", "1", "--nodes", "2"];
    let mut first = Command::new(forebay())
        .args(["plan", "verify", text(&out), "--on", text(&storage), "--concurrent", "2"])
        .args(settings)
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("starts");
    let done = out.join("nodes-1-at-once-1/report.html");
    wait_until("the first run is done", LIMIT, || done.exists());
    rustix::process::kill_process(rustix::process::Pid::from_child(&first), Signal::INT)
        .expect("interrupts");
    let ended = first.wait().expect("waits");
    assert_eq!(ended.code(), Some(130), "{ended}");
    assert!(!out.join("report.html").exists(), "a run is left");
    let changed = || {
        fs::metadata(out.join("nodes-1-at-once-1/result.json"))
            .expect("is there")
            .modified()
            .expect("has a time")
    };
    let before = changed();
    assert_says(&verify(&["--scale", "0.5"]).refused(), &["other settings"]);
    // It needs no options to go on, and makes no run again that was complete.
    let answer = verify(&["--within", "1000", "--json"]);
    assert_says(&answer.stderr, &["run 2 of 5"]);
    assert!(!answer.stderr.contains("run 1 of 5"), "{}", answer.stderr);
    assert_eq!(changed(), before);
    let answer = json(&answer.output());
    let predicted = answer["predictions"].as_array().expect("has predictions");
    let set_ups: Vec<_> =
        predicted.iter().map(|one| (one["nodes"].as_u64(), one["concurrent"].as_u64())).collect();
    assert_eq!(set_ups, [(1, 2), (1, 8), (2, 2)].map(|(a, b)| (Some(a), Some(b))));
    for one in predicted {
        let number = |key: &str| one[key].as_f64().expect("is a number");
        let error = number("predicted_seconds") / number("measured_seconds") - 1.0;
        assert!((number("error") - error).abs() < 1e-9, "{one}");
    }
    let page = fs::read_to_string(out.join("report.html")).expect("reads the page");
    assert_says(&page, &["Predicted and measured", "2 nodes, 2 at once on each", "</html>"]);
    // Nothing is left on the storage, and an error beyond the limit is a failure.
    assert_eq!(fs::read_dir(&storage).expect("lists").count(), 0);
    let shown = verify(&["--within", "0"]);
    assert_eq!(shown.status.code(), Some(1), "{}", shown.stderr);
    assert_says(&shown.stdout, &["beyond the limit of 0 %", "mine.toml at scale 1"]);
}
