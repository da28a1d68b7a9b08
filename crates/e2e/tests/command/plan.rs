//! `forebay plan`, and what shells and man(1) get of the commands.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use forebay_e2e::need::forebay;
use forebay_e2e::{Ended, run};

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
