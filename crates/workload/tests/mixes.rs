//! The mixes that come with Forebay are what they say they are.

use forebay_workload::mix::{JobKind, Mix, Options, Plan};

fn mix(name: &str) -> Mix {
    Mix::parse(name, Mix::built_in(name).unwrap(), &[]).unwrap()
}

fn plan(name: &str, options: &Options) -> Plan {
    mix(name).plan(options).unwrap()
}

#[test]
fn every_mix_can_be_read_and_planned_at_any_scale() {
    for name in Mix::names() {
        assert_eq!(mix(name).name, name);
        for scale in ["0.00001", "0.01", "1"] {
            let options = Options { scale: Some(scale.parse().unwrap()), ..Options::default() };
            let plan = plan(name, &options);
            assert!(plan.job_count() > 0, "{name} at {scale}");
            assert!(plan.space().total() > 0, "{name} at {scale} says what space it needs");
        }
    }
}

#[test]
fn mixed_has_the_tests_and_launches_of_its_study() {
    let mix = mix("mixed");
    let tests = |kind| mix.classes.iter().filter(|class| class.kind == kind).count();
    let kinds = [JobKind::Io, JobKind::Memory, JobKind::Computation].map(tests);
    assert_eq!(kinds, [7, 2, 10], "19 tests: 7 I/O, 2 memory, 10 computation");
    for nodes in [1, 4] {
        let plan = plan("mixed", &Options { nodes: Some(nodes), ..Options::default() });
        assert_eq!(plan.stages[0].concurrent, 20);
        for node in 0..nodes {
            let launches = plan.stages[0].jobs.iter().filter(|job| job.node == node).count();
            assert_eq!(launches, 77, "node {node} of {nodes}");
        }
    }
}

#[test]
fn mixed_inputs_are_as_large_as_those_of_its_study() {
    let full = Options { scale: Some("1".parse().unwrap()), ..Options::default() };
    let input_bytes = plan("mixed", &full).input_bytes();
    assert!((290_000_000_000..310_000_000_000).contains(&input_bytes), "{input_bytes}");
}

#[test]
fn calibration_has_750_models_at_full_scale() {
    let full = Options { scale: Some("1".parse().unwrap()), ..Options::default() };
    assert_eq!(plan("calibration", &full).job_count(), 750);
    let tenth = Options { scale: Some("0.01".parse().unwrap()), ..Options::default() };
    assert_eq!(plan("calibration", &tenth).job_count(), 75);
}

#[test]
fn sessions_and_scaling_have_the_jobs_of_their_study() {
    assert_eq!(plan("sessions", &Options::default()).job_count(), 144);
    let eighty = Options { sessions: Some(80), ..Options::default() };
    assert_eq!(plan("sessions", &eighty).job_count(), 288);
    let scaling = plan("scaling", &Options::default());
    let stages: Vec<_> = scaling
        .stages
        .iter()
        .map(|stage| (stage.nodes, stage.sessions.unwrap(), stage.jobs.len()))
        .collect();
    assert_eq!(stages, [(1, 10, 36), (2, 20, 72), (3, 30, 108), (4, 40, 144)]);
}
