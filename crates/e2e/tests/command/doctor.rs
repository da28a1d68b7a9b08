//! `forebay doctor`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::Duration;

use forebay_e2e::need::forebay;
use forebay_e2e::run;
use serde_json::Value;

use crate::{assert_says, json};

const LIMIT: Duration = Duration::from_secs(120);

fn doctor(arguments: &[&str]) -> Command {
    let mut command = Command::new(forebay());
    command.arg("doctor").args(arguments);
    command
}

/// Codes of the findings of an answer as JSON.
fn codes(answer: &Value) -> Vec<&str> {
    let findings = answer["findings"].as_array().expect("has findings");
    findings.iter().filter_map(|finding| finding["code"].as_str()).collect()
}

#[test]
fn every_finding_has_evidence_a_reason_and_a_fix_and_nothing_is_changed() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let before = fs::read_to_string("/proc/sys/vm/dirty_ratio").expect("reads");
    let ended = run(&mut doctor(&["--json", folder.path().to_str().expect("UTF-8")]), LIMIT);
    assert!([0, 1].contains(&ended.code()), "{ended:?}");
    let answer = json(&ended.stdout);
    for finding in answer["findings"].as_array().expect("has findings") {
        for key in ["code", "evidence", "why", "severity"] {
            assert!(finding[key].as_str().is_some_and(|text| !text.is_empty()), "{finding}");
        }
        assert!(finding["fix"]["kind"].is_string(), "{finding}");
    }
    let fine = answer["fine"].as_array().expect("is a list");
    assert!(fine.iter().any(|line| line["code"] == "fuse/device"), "{answer}");
    assert_eq!(fs::read_to_string("/proc/sys/vm/dirty_ratio").expect("reads"), before);
}

#[test]
fn the_script_of_fixes_is_one_that_sh_understands() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let script = folder.path().join("fix.sh");
    let path = script.to_str().expect("UTF-8");
    let ended = run(&mut doctor(&["--fix-script", path]), LIMIT);
    assert!([0, 1].contains(&ended.code()), "{ended:?}");
    run(Command::new("sh").args(["-n", path]), LIMIT).succeeds();
}

#[test]
fn a_muted_finding_is_not_shown_and_comes_back_when_it_is_unmuted() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let mutes = folder.path().join("mutes.toml");
    let mutes = mutes.to_str().expect("UTF-8");
    let all = run(&mut doctor(&["--json", "--mutes", mutes]), LIMIT);
    let answer = json(&all.stdout);
    let code = *codes(&answer).first().expect("a host of tests is not tuned");
    let mute = ["--mutes", mutes, "--mute", code, "--until", "2099-12-31", "--reason", "a test"];
    run(&mut doctor(&mute), LIMIT).succeeds();
    let muted = json(&run(&mut doctor(&["--json", "--mutes", mutes]), LIMIT).stdout);
    assert!(!codes(&muted).contains(&code), "{muted}");
    assert!(muted["muted"].to_string().contains(code), "{muted}");
    run(&mut doctor(&["--mutes", mutes, "--unmute", code]), LIMIT).succeeds();
    let back = json(&run(&mut doctor(&["--json", "--mutes", mutes]), LIMIT).stdout);
    assert!(codes(&back).contains(&code), "{back}");
}

#[test]
fn bad_codes_and_days_are_refused_by_name() {
    let said = run(&mut doctor(&["--explain", "memory/nothing"]), LIMIT).refused();
    assert_says(&said, &["memory/nothing", "memory/dirty"]);
    let folder = tempfile::tempdir().expect("makes a folder");
    let mutes = folder.path().join("mutes.toml");
    let mutes = mutes.to_str().expect("UTF-8");
    let past = ["--mutes", mutes, "--mute", "memory/dirty", "--until", "2020-01-01"];
    assert_says(&run(&mut doctor(&past), LIMIT).refused(), &["2020-01-01", "past"]);
    let said = run(&mut doctor(&["/nonexistent"]), LIMIT).refused();
    assert_says(&said, &["/nonexistent"]);
}

#[test]
fn a_storage_is_examined_through_two_directories_and_left_as_it_was() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let path = folder.path().to_str().expect("UTF-8");
    let ended = run(&mut doctor(&["--shared", path, "--with", path, "--json"]), LIMIT);
    assert!([0, 1].contains(&ended.code()), "{ended:?}");
    let answer = json(&ended.stdout);
    assert_eq!(answer["tests"].as_array().map(Vec::len), Some(12), "{answer}");
    assert_eq!(fs::read_dir(folder.path()).expect("lists").count(), 0);
    let other = tempfile::tempdir().expect("makes a folder");
    let other = other.path().to_str().expect("UTF-8");
    let apart = ["--shared", path, "--with", other, "--patience", "1"];
    assert_says(&run(&mut doctor(&apart), LIMIT).refused(), &["does not show what was made in"]);
}

#[test]
fn a_storage_is_examined_from_two_hosts_by_a_command_that_runs_on_the_other() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let shared = folder.path().join("a shared directory");
    fs::create_dir(&shared).expect("makes a directory");
    let path = shared.to_str().expect("UTF-8");
    // Runs the words on this host, through a shell as ssh does.
    let rsh = folder.path().join("rsh");
    let program = forebay();
    let bin = program.parent().expect("a folder").display();
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = host2 ] || exit 7\nshift\nPATH={bin}:$PATH exec sh -c \"$*\"\n"
    );
    fs::write(&rsh, script).expect("writes");
    fs::set_permissions(&rsh, fs::Permissions::from_mode(0o755)).expect("makes it a program");
    let rsh = rsh.to_str().expect("UTF-8");
    let with = format!("host2:{path}");
    let words = ["--shared", path, "--with", &with, "--rsh", rsh, "--json"];
    let ended = run(&mut doctor(&words), LIMIT);
    assert!([0, 1].contains(&ended.code()), "{ended:?}");
    let answer = json(&ended.stdout);
    let tests = answer["tests"].as_array().expect("tests");
    assert_eq!(tests.len(), 12, "{answer}");
    let coherent = |test: &&Value| test["test"] != "bytes/sync";
    let fine = |test: &Value| test["severity"].is_null();
    assert!(tests.iter().filter(coherent).all(fine), "{answer}");
    assert_eq!(fs::read_dir(&shared).expect("lists").count(), 0);
    let nowhere = format!("host2:{path}/nowhere");
    let wrong = ["--shared", path, "--with", &nowhere, "--rsh", rsh];
    let said = run(&mut doctor(&wrong), LIMIT).refused();
    assert_says(&said, &["nowhere is not a directory"]);
    let relative = ["--shared", path, "--with", "host2:nfs", "--rsh", rsh];
    let said = run(&mut doctor(&relative), LIMIT).refused();
    assert_says(&said, &["must be followed by an absolute path"]);
    let other = format!("host3:{path}");
    let gone = ["--shared", path, "--with", &other, "--rsh", rsh];
    let said = run(&mut doctor(&gone), LIMIT).refused();
    assert_says(&said, &["host3", "does not answer"]);
    assert_eq!(fs::read_dir(&shared).expect("lists").count(), 0, "what was made is removed");
}
