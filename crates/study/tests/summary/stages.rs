//! Stages, scaling, and what steps measured.

use std::collections::BTreeMap;

use forebay_analytics::histogram::Bucket;
use forebay_study::record::{JobRecord, Stage};
use forebay_study::summary::{FigureSort, Level, RateSource, RunSummary, Summary};
use forebay_workload::program::Outcome;

use crate::builder::{job, record, run, samples, stage, step};

fn summed(stages: Vec<Stage>, megabytes: &[(u64, u64)]) -> RunSummary {
    Summary::of(&record(vec![run(stages, samples(megabytes))])).runs.remove(0)
}

fn nodes(stage: Stage, nodes: u32) -> Stage {
    Stage { nodes, ..stage }
}

#[test]
fn scaling_is_against_the_first_stage() {
    let first = stage("1 node", vec![job("a", 0.0, 4.0)]);
    let second = stage("2 nodes", vec![job("b", 4.0, 8.0), job("c", 4.0, 8.0)]);
    let rates: Vec<(u64, u64)> = (0..8).map(|s| (if s < 4 { 100 } else { 180 }, 0)).collect();
    let run = summed(vec![nodes(first, 1), nodes(second, 2)], &rates);
    assert_eq!(run.stages[0].file.sustained_mb_per_second, Some(100.0));
    assert_eq!(run.stages[0].jobs_per_minute, Some(15.0));
    let scaling = run.stages[1].scaling.unwrap();
    assert_eq!((scaling.size, scaling.throughput, scaling.jobs), (2.0, Some(1.8), Some(2.0)));
    assert_eq!((scaling.throughput_efficiency, scaling.jobs_efficiency), (Some(0.9), Some(1.0)));
    // Both stages' seconds are sustained seconds of the run.
    assert_eq!(run.file.sustained_mb_per_second, Some(140.0));
}

#[test]
fn stages_of_one_size_do_not_scale_and_sessions_do() {
    let of = |sessions: [u32; 2]| {
        let stages = sessions.iter().zip([0.0, 4.0]).map(|(&sessions, start)| Stage {
            sessions: Some(sessions),
            ..stage("s", vec![job("a", start, start + 4.0)])
        });
        let run = summed(stages.collect(), &[]);
        run.stages[1].scaling.map(|scaling| scaling.size)
    };
    assert_eq!(of([10, 10]), None);
    assert_eq!(of([10, 40]), Some(4.0));
    assert_eq!(of([0, 40]), None);
}

#[test]
fn stages_that_do_different_things_do_not_scale() {
    let write = JobRecord { class: "write".to_owned(), ..job("a", 0.0, 4.0) };
    let read = JobRecord { class: "read".to_owned(), ..job("b", 4.0, 8.0) };
    let stages = vec![stage("write", vec![write]), nodes(stage("read", vec![read]), 2)];
    assert!(summed(stages, &[]).stages.iter().all(|stage| stage.scaling.is_none()));
}

fn probing(name: &str, start: f64, end: f64, rate: f64, files: f64) -> JobRecord {
    let outcome = Outcome::rows(1).with("read_mb_per_second", rate).with("temp_files", files);
    let steps = vec![step("probe", end - start, outcome)];
    JobRecord { steps, ..job(name, start, end) }
}

#[test]
fn rates_of_streams_add_up_if_they_ran_together() {
    let together = vec![probing("a", 0.0, 10.0, 100.0, 30.0), probing("b", 1.0, 10.0, 50.0, 20.0)];
    let run = summed(vec![stage("read", together)], &[]);
    let [rate, files] = run.step_figures.as_slice() else { panic!("{:?}", run.step_figures) };
    assert_eq!(
        (rate.name.as_str(), rate.sort, rate.sum),
        ("read_mb_per_second", FigureSort::Rate, Some(150.0))
    );
    assert_eq!((rate.spread.median, rate.spread.count, rate.per_second), (75.0, 2, None));
    assert_eq!(
        (files.sort, files.sum, files.per_second),
        (FigureSort::Count, Some(50.0), Some(5.0))
    );
    let apart = vec![probing("a", 0.0, 5.0, 100.0, 30.0), probing("b", 5.0, 10.0, 50.0, 20.0)];
    let run = summed(vec![stage("read", apart)], &[]);
    assert_eq!(run.step_figures[0].sum, None);
    assert_eq!(run.step_figures[1].sum, Some(50.0));
}

#[test]
fn the_rate_of_a_stage_of_streams_is_what_they_measured() {
    let stream = |name: &str, read: f64, block: f64| {
        let outcome = Outcome::rows(1)
            .with("read_mb_per_second", read)
            .with("write_mb_per_second", 0.0)
            .with("sequential", 1.0)
            .with("block_kib", block);
        // Half of the job's time is making its file ready.
        let steps = vec![step("stream", 10.0, outcome)];
        JobRecord { steps, ..job(name, 0.0, 20.0) }
    };
    let one = stage("read", vec![stream("a", 1000.0, 64.0), stream("b", 1230.0, 64.0)]);
    // The samples saw the making of files: 1 MB/s.
    let run = summed(vec![one], &[(1, 0); 20]);
    let rate = run.stages[0].rate.clone().unwrap();
    assert_eq!((rate.value, rate.unit, rate.what), (2230.0, "MB/s", "read"));
    assert_eq!(rate.source, RateSource::Streams);
    let streams = run.stages[0].streams.unwrap();
    assert_eq!((streams.count, streams.block_bytes, streams.sequential), (2, Some(65_536), true));
    // Other stages have the rate of their samples, if there are enough.
    let short = summed(vec![stage("s", vec![job("a", 0.0, 5.0)])], &[(7, 0); 5]);
    assert_eq!(short.stages[0].rate, None);
    let long = summed(vec![stage("s", vec![job("a", 0.0, 12.0)])], &[(7, 0); 12]);
    assert_eq!(long.stages[0].rate.clone().unwrap().source, RateSource::Samples);
}

#[test]
fn a_file_that_stayed_in_memory_is_not_called_cold() {
    let verdict = |cached: f64| {
        let stream = |class: &str, start: f64| {
            let outcome = Outcome::rows(1)
                .with("read_mb_per_second", 500.0)
                .with("write_mb_per_second", 0.0)
                .with("cached_percent", cached);
            let steps = vec![step("stream", 10.0, outcome)];
            JobRecord { steps, class: class.to_owned(), ..job("a", start, start + 10.0) }
        };
        let stages =
            vec![stage("read", vec![stream("a", 0.0)]), stage("again", vec![stream("b", 10.0)])];
        let mut record = record(vec![run(stages, Vec::new())]);
        record.workload.parameters.insert("cache".to_owned(), "cold".to_owned());
        record.runs[0].cache.working_set_bytes = 1;
        let verdicts = Summary::of(&record).verdicts;
        verdicts.into_iter().find(|verdict| verdict.topic == "Throughput").unwrap()
    };
    let cold = verdict(1.0);
    assert_eq!(cold.level, Level::Good, "{}", cold.text);
    let warm = verdict(95.0);
    assert_eq!(warm.level, Level::Warning, "{}", warm.text);
    assert!(warm.text.contains("Up to 95 % of the files were still in memory"), "{}", warm.text);
}

#[test]
fn nodes_are_compared_within_a_stage() {
    let on =
        |name: &str, node: u32, start: f64| JobRecord { node, ..job(name, start, start + 4.0) };
    // Node 0 is in both stages and has twice the time of node 1: in neither stage do they differ.
    let first = stage("1 node", vec![on("a", 0, 0.0)]);
    let second = stage("2 nodes", vec![on("b", 0, 4.0), on("c", 1, 4.0)]);
    let run = summed(vec![nodes(first, 1), nodes(second, 2)], &[]);
    assert_eq!(run.uniformity.unwrap().max_per_min, Some(1.0));
}

#[test]
fn a_figure_is_known_by_its_name() {
    for (name, sort) in [
        ("iops", FigureSort::Rate),
        ("read_iops", FigureSort::Rate),
        ("creates_per_second", FigureSort::Rate),
        ("temp_files", FigureSort::Count),
        ("files", FigureSort::Count),
        ("profiles", FigureSort::Other),
        ("merge_passes", FigureSort::Other),
    ] {
        assert_eq!(FigureSort::of(name), sort, "{name}");
    }
}

#[test]
fn calls_of_all_jobs_make_one_distribution() {
    let timed = |name: &str, buckets: &[(u64, u64)]| {
        let buckets = buckets.iter().map(|&(upto, count)| Bucket { upto, count }).collect();
        let outcome = Outcome {
            latencies: BTreeMap::from([("read".to_owned(), buckets)]),
            ..Outcome::rows(1)
        };
        JobRecord { steps: vec![step("probe", 1.0, outcome)], ..job(name, 0.0, 1.0) }
    };
    let jobs = vec![
        timed("a", &[(1_000_000, 90), (2_000_000, 5)]),
        timed("b", &[(2_000_000, 3), (50_000_000, 2)]),
        timed("c", &[]),
    ];
    let run = summed(vec![stage("read", jobs)], &[]);
    let [calls] = run.call_latencies.as_slice() else { panic!("{:?}", run.call_latencies) };
    assert_eq!((calls.count, calls.call.as_str()), (100, "read"));
    assert_eq!(
        (calls.p50_ms, calls.p95_ms, calls.p99_ms, calls.p999_ms, calls.max_ms),
        (1.0, 2.0, 50.0, 50.0, 50.0)
    );
}
