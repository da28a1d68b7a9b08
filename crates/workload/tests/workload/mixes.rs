//! The mixes that come with Forebay are what they say they are.

use forebay_analytics::amount::Scale;
use forebay_analytics::dataset::Reader;
use forebay_analytics::step::extract::Mode;
use forebay_base::ByteSize;
use forebay_base::time::SystemClock;
use forebay_workload::load::stream::{Access, Fill};
use forebay_workload::mix::{JobKind, Mix, Options, Plan};
use forebay_workload::program::{Buffers, Context, Job, Places, Program, Step};

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

#[test]
fn the_census_extract_of_mixed_is_that_of_its_study() {
    // Runs of rows as short against this small census as those of the mix against the whole.
    let text = Mix::built_in("mixed").unwrap().replace("run_rows = 10000", "run_rows = 20");
    let mix = Mix::parse("mixed", &text, &[]).unwrap();
    let scale: f64 = 0.0004;
    let root = tempfile::tempdir().unwrap();
    let place = |name: &str| {
        let path = root.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    };
    let job = Job { name: "c".into(), class: "census-extract".into(), number: 0, count: 2 };
    let context = Context {
        places: Places { data: place("data"), work: place("work"), util: place("util") },
        job,
        seed: 1,
        scale: Scale::try_from(scale).unwrap(),
        buffers: Buffers { page_bytes: ByteSize::kib(128), ..Buffers::default() },
        clock: &SystemClock,
    };
    let census = mix.inputs.iter().find(|input| input.name == "census").unwrap();
    let class = mix.classes.iter().find(|class| class.name == "census-extract").unwrap();
    for steps in [&census.steps, &class.steps] {
        let program = Program { name: "p".to_owned(), steps: steps.clone() };
        program.run(&context, &mut |_, _| {}, &mut |_| {}, &mut |_| {}).unwrap();
    }
    for (name, columns, rows) in [("extract-115", 115, 5.5e6), ("extract-128", 128, 12.5e6)] {
        let reader = Reader::open(&root.path().join("work").join(name)).unwrap();
        assert_eq!(reader.schema().columns().len(), columns, "{name}");
        let of_full = reader.rows() as f64 / scale;
        assert!((of_full / rows - 1.0).abs() < 0.04, "{name}: {of_full} rows at scale 1");
    }
    // What both read of the 45 GB.
    let parts: f64 = class
        .steps
        .iter()
        .map(|step| match &step.step {
            Step::Extract(extract) => match extract.mode {
                Mode::SkipSequential { part, .. } => part,
                other => panic!("{other:?}"),
            },
            other => panic!("{} reads too", other.kind()),
        })
        .sum();
    assert!((parts * 45.0 - 37.0).abs() < 0.5, "{} GB", parts * 45.0);
}

#[test]
fn the_tests_of_mixed_keep_their_part_of_the_work_at_every_scale() {
    let bytes = |name: &str, scale: &str| {
        // In small pages, so that the last one does not count.
        let page_bytes = Some(ByteSize::kib(8));
        let scale = Some(scale.parse().unwrap());
        let plan = plan("mixed", &Options { scale, page_bytes, ..Options::default() });
        let input = plan.inputs.iter().find(|input| input.program.name == name).unwrap();
        input.bytes as f64
    };
    for computation in ["claims", "panel"] {
        let part = |scale| bytes(computation, scale) / bytes("ledger", scale);
        for scale in ["0.1", "0.01", "0.003"] {
            let grown = part(scale) / part("1");
            assert!((0.8..1.25).contains(&grown), "{computation} at {scale}: {grown}");
        }
    }
}

#[test]
fn the_probe_reads_files_that_were_made_before_its_stages() {
    for (concurrent, nodes) in [(1, 1), (5, 2)] {
        let options =
            Options { concurrent: Some(concurrent), nodes: Some(nodes), ..Options::default() };
        let plan = plan("probe", &options);
        let slots = u64::from(concurrent * nodes);
        assert_eq!(plan.inputs.len() as u64, slots);
        let names: std::collections::BTreeSet<String> =
            plan.inputs.iter().map(forebay_workload::mix::PlannedInput::name).collect();
        assert_eq!(names.len() as u64, slots);
        assert!(plan.inputs.iter().all(|input| input.bytes > 0));
        for job in plan.stages.iter().flat_map(|stage| &stage.jobs) {
            let Step::Stream(stream) = &job.program.steps[0].step else { continue };
            if stream.pattern == Access::Write {
                continue;
            }
            assert_eq!(stream.fill, Fill::Never, "{} must not write its file", job.job.name);
            assert!(job.job.number < slots);
        }
    }
}

#[test]
fn the_probe_has_stages_for_one_half_and_all_of_the_streams() {
    let plan = plan("probe", &Options { concurrent: Some(6), ..Options::default() });
    let jobs = |name: &str| {
        plan.stages.iter().find(|stage| stage.name == name).map(|stage| stage.jobs.len())
    };
    let found = ["read 1 stream", "read half the streams", "read"].map(jobs);
    assert_eq!(found, [Some(1), Some(3), Some(6)]);
}

#[test]
fn a_parameter_that_cannot_have_its_value_is_named_with_the_reason() {
    let set = |name: &str, settings: &[(&str, &str)]| {
        let settings: Vec<(String, String)> = settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        Mix::parse(name, Mix::built_in(name).unwrap(), &settings)
    };
    let said = set("probe", &[("io", "direct"), ("block", "banana")]).unwrap_err().to_string();
    assert!(said.starts_with("--set block=banana: \"banana\" is not a size"), "{said}");
    let said = set("probe", &[("blok", "1")]).unwrap_err().to_string();
    let expected = "--set blok=1: unknown parameter \"blok\"; choose from block, cache,";
    assert!(said.starts_with(expected), "{said}");
    let odd = set("mixed", &[("page", "7KiB")]).unwrap();
    let said = odd.plan(&Options::default()).unwrap_err().to_string();
    assert_eq!(said, "page_bytes = 7 KiB: must be a multiple of 4 KiB from 4 KiB to 16 MiB");
}
