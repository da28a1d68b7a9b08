//! The stored record of schema 1: it is read for ever.

use std::path::{Path, PathBuf};

use forebay_study::record::{Record, State};
use forebay_study::summary::Summary;

use crate::synthetic;

const SEED: u64 = 1;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/mixed")
}

#[test]
fn a_record_of_schema_1_still_reads() {
    let record = Record::read(&directory()).unwrap();
    assert_eq!((record.schema, &record.state), (1, &State::Complete));
    let run = &record.runs[0];
    assert_eq!((run.jobs().count(), run.stages[0].nodes, run.samples.len()), (77, 2, 120));
    // Through text on both sides: numbers in a file may differ in the last bit.
    let made = serde_json::to_string(&synthetic::study(SEED)).unwrap();
    assert_eq!(record, serde_json::from_str::<Record>(&made).unwrap());
}

#[test]
fn the_stored_record_has_every_table_of_a_plain_run() {
    let record = Record::read(&directory()).unwrap();
    let names: Vec<&str> =
        Summary::of(&record).sheets(&record).iter().map(|sheet| sheet.name).collect();
    assert_eq!(
        names,
        [
            "overview",
            "published",
            "job_totals",
            "classes",
            "kinds",
            "nodes",
            "throughput",
            "step_figures",
            "call_latencies",
            "devices",
            "request_sizes",
            "processor",
            "environment"
        ]
    );
}

/// Makes the stored record again: `cargo test -p forebay-study --test summary -- --ignored`. Only for a
/// new schema, under a new name; records of old ones stay as they are.
#[test]
#[ignore = "writes into the source tree"]
fn make_the_stored_record() {
    synthetic::study(SEED).write(&directory()).unwrap();
}
