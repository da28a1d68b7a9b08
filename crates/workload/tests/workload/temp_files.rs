//! Temporary files as a step of a program.

use forebay_analytics::amount::Scale;
use forebay_base::time::SystemClock;
use forebay_workload::load::TempFiles;
use forebay_workload::program::{Buffers, Context, Job, Places, Program, StepRecord};

use crate::common;

#[test]
fn temporary_files_follow_the_scale_and_leave_nothing() {
    let root = tempfile::tempdir().unwrap();
    let [data, work, util] = ["data", "work", "util"].map(|area| root.path().join(area));
    let context = Context {
        places: Places { data, work, util },
        job: Job { name: "model-1".into(), class: "model".into(), number: 1, count: 2 },
        seed: 1,
        scale: "0.002".parse().unwrap(),
        buffers: Buffers::default(),
        clock: &SystemClock,
    };
    let text = "name = 'p'\n[[step]]\n[step.do.temp_files]\ntemp_files = { full = 5000 }\n";
    let program: Program = toml::from_str(text).unwrap();
    let mut outcomes = Vec::new();
    let mut ended = |record: StepRecord| outcomes.push(record.outcome);
    program.run(&context, &mut |_, _| {}, &mut ended, &mut |_| {}).unwrap();
    assert_eq!((outcomes[0].rows, outcomes[0].figures["temp_files"]), (10, 10.0));
    assert!(common::names(&context.places.work).is_empty());
}

#[test]
fn temporary_files_follow_their_seed() {
    let root = tempfile::tempdir().unwrap();
    let step = |seed| {
        let work = root.path().to_owned();
        let step =
            TempFiles { work, temp_files: 12.into(), seed: Some(seed), ..TempFiles::default() };
        step.run(Scale::FULL, &mut |_| {}).unwrap()
    };
    assert_eq!(step(1), step(1));
    assert_ne!(step(1), step(2));
    assert!(common::names(root.path()).is_empty());
}
