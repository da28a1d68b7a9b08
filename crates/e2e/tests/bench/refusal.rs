//! Bad input: a clear message, exit code 2, and nothing left behind.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use forebay_e2e::actor::User;
use forebay_e2e::{LoopDisk, as_user, copy_program, need, run};

use crate::fixture::{Bench, HEAD, LIMIT, assert_says, names_in, quick, streams};

/// Runs `forebay ARGUMENTS` and checks that it is refused with `parts`, and leaves nothing anywhere.
#[track_caller]
fn refused(bench: &Bench, arguments: &[&str], parts: &[&str]) {
    refused_command(bench, &mut bench.forebay(arguments), parts);
}

#[track_caller]
fn refused_command(bench: &Bench, command: &mut Command, parts: &[&str]) {
    let ended = run(command, LIMIT).expect_code(2);
    assert_eq!(ended.stdout, "", "a refusal goes to standard error");
    assert_says(&ended.refused(), parts);
    bench.leaves_nothing();
    assert_eq!(names_in(&bench.place()), Vec::<String>::new(), "left in the working folder");
}

#[test]
fn a_storage_that_cannot_be_used_is_named() {
    let bench = Bench::new();
    let file = bench.file("plain", "x").display().to_string();
    let gone = format!("{file}.gone");
    let on = bench.storage().display().to_string();
    refused(&bench, &["bench", "run", "probe", "--on", &gone], &[&gone, "No such file"]);
    refused(&bench, &["bench", "run", "probe", "--on", &file], &[&file, "Not a directory"]);
    let plain = run(&mut bench.forebay(&["bench", "run", "probe", "--on", &file]), LIMIT);
    let said = plain.expect_code(2).refused();
    assert!(!said.contains("does not fit"), "a file is no question of size: {said}");
    for area in ["--work", "--util", "--against"] {
        let with =
            |path: &str| ["bench", "run", "probe", "--on", &on, area, path].map(String::from);
        let arguments = with(&gone);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        refused(&bench, &arguments, &[&gone, "No such file"]);
        let arguments = with(&file);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        refused(&bench, &arguments, &[&file, "Not a directory"]);
    }
    refused(&bench, &["bench", "run", "probe"], &["--on"]);
}

#[test]
fn an_ordinary_user_is_told_what_is_not_allowed() {
    let bench = Bench::new();
    let forebay = bench.place().with_file_name("forebay");
    copy_program(&need::forebay(), &forebay);
    fs::set_permissions(bench.place(), fs::Permissions::from_mode(0o777)).expect("opens a folder");
    let mix = bench.file("mix.toml", &quick());
    let refused = |more: &[&str], parts: &[&str]| {
        let mut command = Command::new(&forebay);
        command.current_dir(bench.place()).args(["bench", "run", "--file"]).arg(&mix);
        command.arg("--on").arg(bench.storage()).args(more);
        as_user(&User::new(4711, &[4711]), || refused_command(&bench, &mut command, parts));
    };
    refused(&[], &["cannot create directory", "storage", "Permission denied"]);
    refused(&["--drop-caches"], &["--drop-caches", "root"]);
    fs::set_permissions(bench.storage(), fs::Permissions::from_mode(0o777)).expect("opens it");
    refused(&["--drop-caches"], &["--drop-caches", "root"]);
    refused(&["--out", "/proc/result"], &["cannot create", "/proc/result"]);
}

#[test]
fn too_little_space_is_told_before_anything_is_made() {
    let disk = LoopDisk::make("ext4", 64);
    let before = names_in(&disk.path());
    let bench = Bench::new();
    let on = disk.path().display().to_string();
    let parts = ["mixed", "scale 1", "too little space", &on, "needs", "GiB", "has", "--scale"];
    refused(&bench, &["bench", "run", "mixed", "--on", &on, "--scale", "1"], &parts);
    // Only one area lacks space.
    let good = bench.storage().display().to_string();
    let mix = format!("{HEAD}{}", streams("a", 1, "file_bytes = \"8 MiB\"\npattern = \"write\""))
        .replace("space = { data_meanwhile = \"8 MiB\" }", "space = { util = \"80 MiB\" }");
    let mix = bench.file("mix.toml", &mix).display().to_string();
    let arguments = ["bench", "run", "--file", &mix, "--on", &good, "--util", &on];
    refused(&bench, &arguments, &["too little space", &on, "needs 80 MiB"]);
    assert_eq!(names_in(&disk.path()), before);
}

#[test]
fn a_bad_workload_is_told_with_its_line() {
    let bench = Bench::new();
    let on = bench.storage().display().to_string();
    refused(&bench, &["bench", "run", "mixd", "--on", &on], &["mixd", "choose", "mixed", "probe"]);
    refused(&bench, &["bench", "show", "mixd"], &["mixd", "choose", "mixed"]);
    refused(&bench, &["bench", "run", "--file", "gone.toml", "--on", &on], &["gone.toml"]);
    let class = streams("a", 1, "file_bytes = \"8 MiB\"\npattern = \"write\"");
    let lines = HEAD.lines().count();
    for (text, line, parts) in [
        (format!("{HEAD}{class}").replace("study", "studi"), 3, vec!["studi"]),
        (format!("{HEAD}concurrent = = 3\n"), lines + 1, vec![]),
        (format!("{HEAD}{class}").replace("stream]", "strem]"), lines + 8, vec!["strem"]),
        (
            format!("{HEAD}{class}").replace("\"8 MiB\"\np", "\"8 Mip\"\np"),
            lines + 10,
            vec!["8 Mip"],
        ),
        (format!("{HEAD}{class}bogus = 3\n"), lines + 12, vec!["bogus"]),
    ] {
        let mix = bench.file("mix.toml", &text).display().to_string();
        let line = format!("line {line}");
        let parts: Vec<&str> = ["mix.toml", &line].into_iter().chain(parts).collect();
        refused(&bench, &["bench", "run", "--file", &mix, "--on", &on], &parts);
        refused(&bench, &["bench", "show", "--file", &mix], &parts);
    }
    let mix = bench.file("mix.toml", HEAD).display().to_string();
    refused(&bench, &["bench", "run", "--file", &mix, "--on", &on], &["mix.toml", "class"]);
}

#[test]
fn bad_options_are_told_with_what_is_allowed() {
    let bench = Bench::new();
    let on = bench.storage().display().to_string();
    let refused = |workload: &str, more: &[&str], parts: &[&str]| {
        let mut arguments = vec!["bench", "run", workload, "--on", &on];
        arguments.extend(more);
        refused(&bench, &arguments, parts);
    };
    refused("probe", &["--scale", "-1"], &["--scale", "-1"]);
    refused("probe", &["--scale", "0"], &["--scale", "0"]);
    refused("probe", &["--scale", "nan"], &["--scale", "nan"]);
    refused("probe", &["--scale", "much"], &["--scale", "much"]);
    refused("probe", &["--set", "blok=1MiB"], &["--set blok=1MiB: unknown parameter", "block"]);
    refused("probe", &["--set", "block"], &["block", "NAME=VALUE"]);
    refused("probe", &["--set", "block=many"], &["--set block=many: ", "not a size"]);
    refused("mixed", &["--set", "page=7KiB"], &["--set page=7KiB: ", "a multiple of 4 KiB"]);
    refused("probe", &["--sessions", "40"], &["--sessions", "probe", "--concurrent"]);
    refused("probe", &["--concurrent", "0"], &["--concurrent", "0", "1 to 10000, or cores"]);
    refused("probe", &["--nodes", "0"], &["--nodes", "0"]);
    refused("probe", &["--rounds", "0"], &["--rounds", "0"]);
    refused("probe", &["--page-size", "3"], &["--page-size", "4 KiB", "16 MiB"]);
    refused("probe", &["--page-size", "6 KiB"], &["--page-size", "multiple"]);
    refused("probe", &["--page-size", "32 MiB"], &["--page-size", "multiple"]);
    refused("probe", &["--file", "x.toml"], &["--file"]);
}

#[test]
fn a_storage_is_not_compared_with_itself() {
    let bench = Bench::new();
    let on = bench.storage().display().to_string();
    let other = format!("{on}/../storage");
    let link = bench.storage().with_file_name("link");
    std::os::unix::fs::symlink(bench.storage(), &link).expect("makes a link");
    for same in [&on, &other, &link.display().to_string()] {
        let arguments = ["bench", "run", "probe", "--on", &on, "--against", same];
        refused(&bench, &arguments, &["--against", "is given twice"]);
    }
}

#[test]
fn a_result_that_is_none_is_refused() {
    let bench = Bench::new();
    let said = bench.call(&["bench", "report", "nothing"]).expect_code(2).refused();
    assert_says(&said, &["nothing"]);
    let folder = bench.out();
    fs::create_dir(&folder).expect("makes a folder");
    for (text, part) in [("{", "line 1"), ("{\"schema\": 99}", "99"), ("{\"schema\": 1}", "field")]
    {
        fs::write(folder.join("result.json"), text).expect("writes");
        let said = bench.call(&["bench", "report", "result"]).expect_code(2).refused();
        assert_says(&said, &["result.json", part]);
        assert_eq!(names_in(&folder), ["result.json"]);
    }
}
