//! `forebay plan`, and what shells and man(1) get of the commands.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use forebay_e2e::need::forebay;
use forebay_e2e::{Ended, run, wait_until};

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
fn predictions_are_compared_with_runs_that_are_measured() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let (on, out) = (folder.path().join("on"), folder.path().join("out"));
    fs::create_dir(&on).expect("makes a folder");
    let words = ["plan", "verify", text(&on), "--out", text(&out), "--scale", "0.004"];
    let small = ["--nodes", "2,3", "--concurrent", "2", "--within", "1000", "--json"];
    let ended = ask(&[&words[..], &small].concat());
    let found = json(&ended.stdout);
    // A busy machine is hard to predict; what is said of it must agree with itself.
    let is_within = found["is_within"].as_bool().expect("says whether it is near enough");
    assert_eq!(ended.code(), i32::from(!is_within), "{}", ended.stderr);
    let lines = found["lines"].as_array().expect("has lines");
    let stages: Vec<_> = lines.iter().map(|line| line["stage"].as_str().unwrap_or("")).collect();
    assert_eq!(stages, ["1 node", "1 node again", "2 nodes", "3 nodes", "2 at once"]);
    for line in lines {
        let number = |key: &str| line[key].as_f64().expect("is a number");
        let error = number("predicted_seconds") / number("measured_seconds") - 1.0;
        assert!((number("error") - error).abs() < 1e-9 && number("predicted_seconds") > 0.0);
        assert!(error.abs() <= found["worst_error"].as_f64().expect("is a number"), "{line}");
    }
    assert!(found["machine"]["effective_processors"].as_f64() > Some(0.0), "{found}");
    assert_says(&ended.stderr, &["1 node again", "3 nodes"]);
    assert_eq!(fs::read_dir(&on).expect("lists").count(), 0, "the storage is as before");
    assert!(out.join("report.html").is_file());
    // The same from the recorded result, for people.
    let again = ask(&["plan", "verify", "--result", text(&out), "--within", "1000"]);
    assert_says(&again.stdout, &["2 nodes", "job s predicted", "The largest error is", "worth"]);
    // A plan shows it beside what it plans.
    let (site, page) = (folder.path().join("site.toml"), folder.path().join("plan.html"));
    fs::write(&site, ask(&["plan", "--template"]).output()).expect("writes");
    let plan = ask(&["plan", text(&site), "--verified", text(&out), "--out", text(&page)]).output();
    assert_says(&plan, &["Predictions on this hardware were off by at most"]);
    let page = fs::read_to_string(&page).expect("reads the page");
    assert_says(
        &page,
        &["How far predictions are off", "3 nodes", "predicted s", "off by at most"],
    );
    let refused = ask(&["plan", text(&site), "--verified", text(&on)]).refused();
    assert_says(&refused, &["result.json"]);
    let twice = ask(&[&words[..], &small].concat()).refused();
    assert_says(&twice, &["already holds a result", "--out"]);
    let few = ask(&["plan", "verify", text(&on), "--nodes", "1"]).refused();
    assert_says(&few, &["--nodes", "2..=64"]);
}

#[test]
fn ctrl_c_while_predictions_are_verified_leaves_nothing() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let (on, out) = (folder.path().join("on"), folder.path().join("out"));
    fs::create_dir(&on).expect("makes a folder");
    let words = ["plan", "verify", text(&on), "--out", text(&out), "--scale", "0.02"];
    let mut started = Command::new(forebay()).args(words).spawn().expect("starts");
    let has_begun = || fs::read_dir(&on).is_ok_and(|mut entries| entries.next().is_some());
    wait_until("files are on the storage", LIMIT, has_begun);
    let id = rustix::process::Pid::from_child(&started);
    rustix::process::kill_process(id, rustix::process::Signal::INT).expect("sends a signal");
    assert_eq!(started.wait().expect("ends").code(), Some(130));
    assert_eq!(fs::read_dir(&on).expect("lists").count(), 0, "the storage is as before");
    assert!(!out.exists(), "no result of a half");
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
