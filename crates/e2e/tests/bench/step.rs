//! `forebay step`: one program by hand.

use std::fs;

use rustix::process::Signal;

use crate::fixture::{Bench, Started, assert_says, json, names_in};
use forebay_e2e::{run, wait_until};

const PROGRAM: &str = r#"
name = "chain"
[[step]]
name = "make"
[step.do.generate]
output = "data/facts"
rows = 1000
columns = [{ name = "x", value = { sequence = {} } }, { name = "y", value = { uniform = { min = 0, max = 1 } } }]
[[step]]
[step.do.sort]
input = "data/facts"
output = "work/sorted"
util = "util"
by = [{ column = "y" }]
[[step]]
table = "data/{job}.csv"
[step.do.summary]
input = "work/sorted"
analysis = ["x"]
"#;

/// `forebay step PROGRAM --data STORAGE ARGUMENTS...`
fn step(bench: &Bench, program: &str, arguments: &[&str]) -> std::process::Command {
    let mut command = bench.forebay(&["step"]);
    command.arg(bench.file("program.toml", program)).arg("--data").arg(bench.storage());
    command.args(arguments);
    command
}

#[test]
fn a_program_leaves_what_is_in_data_and_nothing_of_work_and_util() {
    let bench = Bench::new();
    let arguments = ["--job", "mine", "--record", "record.jsonl"];
    let said = run(&mut step(&bench, PROGRAM, &arguments), crate::fixture::LIMIT).output();
    assert_says(&said, &["step 1 of 3: make (generate)", "step 2 of 3: sort", "1000 rows"]);
    assert_eq!(names_in(&bench.storage()), ["facts", "mine.csv"]);
    let record = fs::read_to_string(bench.place().join("record.jsonl")).expect("reads the record");
    let lines: Vec<_> = record.lines().map(json).collect();
    let kinds: Vec<&str> = lines.iter().filter_map(|line| line["kind"].as_str()).collect();
    assert_eq!(kinds, ["generate", "sort", "summary"]);
    let named: Vec<&str> =
        lines.iter().filter_map(|line| line["resources"]["step"].as_str()).collect();
    assert_eq!(named, ["make", "sort", "summary"]);
    assert!(lines.iter().all(|line| line["outcome"]["rows"].is_u64()), "{lines:#?}");
    let table = fs::read_to_string(bench.storage().join("mine.csv")).expect("reads the table");
    // The numbers 0 to 999, or 1 to 1000: as many as rows.
    assert!(table.lines().count() >= 2 && table.contains("1000"), "{table}");
}

#[test]
fn json_and_quiet_print_what_they_say() {
    let bench = Bench::new();
    let printed = run(&mut step(&bench, PROGRAM, &["--json"]), crate::fixture::LIMIT).output();
    assert_eq!(json(&printed).as_array().map(Vec::len), Some(3));
    let quiet = run(&mut step(&bench, PROGRAM, &["--quiet"]), crate::fixture::LIMIT);
    assert_eq!((quiet.code(), quiet.stdout.as_str(), quiet.stderr.as_str()), (0, "", ""));
}

#[test]
fn every_kind_is_listed_once() {
    let bench = Bench::new();
    let said = bench.call(&["step", "--kinds"]).output();
    let kinds: Vec<&str> = said.lines().collect();
    for kind in ["generate", "sort", "join", "summary", "stream", "names", "forecast", "mixed"] {
        assert_eq!(kinds.iter().filter(|known| **known == kind).count(), 1, "{kind}: {said}");
    }
}

#[test]
fn an_error_names_the_step_and_earlier_steps_stay_on_record() {
    let bench = Bench::new();
    let program = PROGRAM.replace("column = \"y\"", "column = \"z\"");
    let mut command = step(&bench, &program, &["--record", "record.jsonl", "--quiet"]);
    let ended = run(&mut command, crate::fixture::LIMIT).expect_code(2);
    assert_says(&ended.refused(), &["step 2, sort", "\"z\""]);
    assert_eq!(names_in(&bench.storage()), ["facts"]);
    let record = fs::read_to_string(bench.place().join("record.jsonl")).expect("reads the record");
    assert_eq!(record.lines().count(), 1, "{record}");
}

#[test]
fn ctrl_c_and_sigterm_remove_what_is_the_programs_own() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let bench = Bench::new();
        let program = "name = \"endless\"\n[[step]]\n[step.do.stream]\nfile = \"work/file\"\n\
            file_bytes = \"8 MiB\"\npattern = \"write\"\nduration_seconds = 600\n";
        let said = bench.place().join("said");
        let started = Started::new(&mut step(&bench, program, &[]), &said);
        wait_until("the step writes", crate::fixture::LIMIT, || {
            names_in(&bench.storage())
                .iter()
                .any(|name| bench.storage().join(name).join("file").exists())
        });
        started.signal(signal);
        assert_eq!(started.ends().0, Some(code));
        bench.leaves_nothing();
    }
}

#[test]
fn a_bad_program_or_place_is_refused_before_it_starts() {
    let bench = Bench::new();
    let refused = |program: &str, arguments: &[&str], parts: &[&str]| {
        let ended = run(&mut step(&bench, program, arguments), crate::fixture::LIMIT);
        assert_says(&ended.expect_code(2).refused(), parts);
        bench.leaves_nothing();
    };
    refused(&PROGRAM.replace("do.sort", "do.sorrt"), &[], &["program.toml", "line 10", "sorrt"]);
    refused(&PROGRAM.replace("rows = 1000", "rowz = 1000"), &[], &["line 7", "rowz"]);
    refused(PROGRAM, &["--work", "gone"], &["--work", "gone"]);
    refused(PROGRAM, &["--record", "gone/record"], &["cannot write", "gone/record"]);
    refused(PROGRAM, &["--scale", "0"], &["--scale"]);
    refused(PROGRAM, &["--count", "0"], &["--count"]);
    let outside = PROGRAM.replace("data/facts", "data/../facts");
    refused(&outside, &[], &["step 1, make", "facts"]);
    let said = bench.call(&["step", "gone.toml"]).expect_code(2).refused();
    assert_says(&said, &["gone.toml", "No such file"]);
}
