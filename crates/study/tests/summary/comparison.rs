//! Studies side by side.

use forebay_base::ByteSize;
use forebay_study::Error;
use forebay_study::compare::{Compared, Comparison, Outcome, Pairing, conditions};
use forebay_study::record::{Record, State};
use forebay_study::summary::Level;

use crate::builder::{job, record, run, stage, step};

/// Rounds of these lengths of A, and of B in turn if there are any.
fn study(a: &[f64], b: &[f64]) -> Record {
    let mut runs = Vec::new();
    for (subject, lengths) in [a, b].into_iter().enumerate() {
        for (round, &seconds) in lengths.iter().enumerate() {
            let mut run = run(vec![stage("all", vec![job("a", 0.0, seconds)])], Vec::new());
            (run.subject, run.round) = (subject, round as u32);
            runs.push(run);
        }
    }
    record(runs)
}

fn wall(comparison: &Comparison) -> &Compared {
    comparison.figures.iter().find(|figure| figure.figure.key == "wall_seconds").unwrap()
}

#[test]
fn interleaved_rounds_are_paired() {
    // The machine got slower and slower; B always took twice as long.
    let comparison = Comparison::of_subjects(&study(&[1.0, 2.0, 4.0], &[2.0, 4.0, 8.0])).unwrap();
    assert_eq!(comparison.pairing, Pairing::ByRound);
    let wall = wall(&comparison);
    assert_eq!(wall.spreads[0].unwrap().median, 2.0);
    let difference = wall.differences[0].unwrap();
    assert_eq!((difference.ratio, difference.low, difference.high), (2.0, 2.0, 2.0));
    assert_eq!((difference.rounds, difference.outcome), (3, Outcome::Worse));
}

#[test]
fn studies_made_apart_are_not_paired() {
    let (a, b) = (study(&[1.0, 2.0, 4.0], &[]), study(&[2.0, 4.0, 8.0], &[]));
    let comparison = Comparison::of_studies(&[("a", &a), ("b", &b)]).unwrap();
    assert_eq!(comparison.pairing, Pairing::Unpaired);
    let difference = wall(&comparison).differences[0].unwrap();
    // 4/2, 2/4 and 8/1.
    assert_eq!((difference.ratio, difference.low, difference.high), (2.0, 0.5, 8.0));
    assert_eq!(difference.outcome, Outcome::WithinSpread);
    let (fast, slow) = (study(&[1.0, 1.1, 1.2], &[]), study(&[2.0, 2.1, 2.2], &[]));
    let comparison = Comparison::of_studies(&[("slow", &slow), ("fast", &fast)]).unwrap();
    assert_eq!(wall(&comparison).differences[0].unwrap().outcome, Outcome::Better);
}

#[test]
fn few_rounds_make_no_claim() {
    let comparison = Comparison::of_subjects(&study(&[1.0, 1.0], &[9.0, 9.0])).unwrap();
    let difference = wall(&comparison).differences[0].unwrap();
    assert_eq!((difference.rounds, difference.outcome), (2, Outcome::TooFewRounds));
    // A round that only one of them has is no pair.
    let comparison = Comparison::of_subjects(&study(&[1.0; 3], &[9.0; 2])).unwrap();
    assert_eq!(wall(&comparison).differences[0].unwrap().rounds, 2);
}

#[test]
fn a_mixed_result_is_within_the_spread() {
    let comparison = Comparison::of_subjects(&study(&[1.0; 3], &[2.0, 2.0, 0.5])).unwrap();
    assert_eq!(wall(&comparison).differences[0].unwrap().outcome, Outcome::WithinSpread);
}

#[test]
fn a_ratio_that_is_shown_as_one_is_no_difference() {
    // Always a little lower, by less than is shown.
    let comparison = Comparison::of_subjects(&study(&[100.0; 3], &[99.9, 99.8, 99.95])).unwrap();
    let difference = wall(&comparison).differences[0].unwrap();
    assert_eq!(difference.outcome, Outcome::WithinSpread);
    assert_eq!(difference.outcome.describe(), "equal within the spread");
}

#[test]
fn the_real_time_of_each_class_stands_side_by_side_with_its_spread() {
    let with_jobs = |lengths: [f64; 3]| {
        let jobs = lengths.iter().enumerate().map(|(i, &seconds)| {
            let mut job = job(&format!("j{i}"), 0.0, seconds);
            job.class = "large-sort".to_owned();
            job
        });
        record(vec![run(vec![stage("all", jobs.collect())], Vec::new())])
    };
    let (a, b) = (with_jobs([1.0, 2.0, 6.0]), with_jobs([2.0, 4.0, 5.0]));
    let comparison = Comparison::of_studies(&[("a", &a), ("b", &b)]).unwrap();
    let key = "class/large-sort/real_seconds";
    let class = comparison.figures.iter().find(|one| one.figure.key == key).unwrap();
    let [Some(of_a), Some(of_b)] = class.spreads[..] else { panic!("{class:?}") };
    assert_eq!((of_a.min, of_a.median, of_a.max), (1.0, 2.0, 6.0));
    assert_eq!((of_b.count, of_b.median), (3, 4.0));
    assert_eq!(class.differences[0].unwrap().ratio, 2.0);
    let sheets = comparison.sheets();
    let sheet = sheets.iter().find(|sheet| sheet.name == "comparison_classes").unwrap();
    assert_eq!(sheet.table.rows.len(), 1);
    let directory = tempfile::tempdir().unwrap();
    let paths = forebay_study::csv::write_comparison(&comparison, directory.path()).unwrap();
    assert_eq!(paths.len(), sheets.len());
    let text = std::fs::read_to_string(directory.path().join("comparison_classes.csv")).unwrap();
    assert!(text.contains("large-sort: real time of a job,s,2,1,6,4,2,5,2"), "{text}");
}

#[test]
fn streams_are_compared_by_rates_and_not_by_the_time_of_a_fixed_number_of_bytes() {
    let probe = |rate: f64, seconds: f64| {
        let stage_of = |name: &str, start: f64| {
            let outcome = forebay_workload::program::Outcome::rows(1)
                .with("read_mb_per_second", rate)
                .with("write_mb_per_second", 0.0);
            let mut job = job("a", start, start + seconds);
            job.class = name.to_owned();
            job.steps = vec![step("stream", seconds, outcome)];
            stage(name, vec![job])
        };
        record(vec![run(vec![stage_of("read", 0.0), stage_of("read 4 MiB", seconds)], Vec::new())])
    };
    let (a, b) = (probe(100.0, 4.0), probe(300.0, 3.0));
    let comparison = Comparison::of_studies(&[("a", &a), ("b", &b)]).unwrap();
    let has = |key: &str| comparison.figures.iter().any(|one| one.figure.key == key);
    assert!(has("read/rate") && !has("read/wall_seconds"), "{:?}", comparison.figures);
    let said: Vec<&str> = comparison.verdicts.iter().map(|one| one.text.as_str()).collect();
    assert!(
        said.iter().any(|text| text.starts_with("b/a, read: read by all streams: 3 ")),
        "{said:?}"
    );
    assert!(said.iter().all(|text| !text.contains("wall time")), "{said:?}");
}

#[test]
fn other_workloads_are_refused() {
    let a = study(&[1.0], &[]);
    let mut b = a.clone();
    b.workload.name = "probe".to_owned();
    let refused = Comparison::of_studies(&[("a", &a), ("b", &b)]).unwrap_err();
    assert!(matches!(refused, Error::Incomparable { .. }));
    assert!(
        refused.to_string().contains("a is of the workload \"mixed\" and b of \"probe\""),
        "{refused}"
    );
    for nothing in [&[][..], &[("a", &a)][..]] {
        assert!(matches!(Comparison::of_studies(nothing), Err(Error::Incomparable { .. })));
    }
    assert!(matches!(Comparison::of_subjects(&a), Err(Error::Incomparable { .. })));
}

#[test]
fn what_is_unlike_is_told_loudly() {
    let a = study(&[1.0], &[]);
    let mut b = a.clone();
    let quiet = Comparison::of_studies(&[("a", &a), ("b", &b)]).unwrap();
    assert!(
        quiet.verdicts.iter().all(|verdict| verdict.topic == "Difference"),
        "{:?}",
        quiet.verdicts
    );
    b.workload.scale = 0.02;
    b.machine.cores = 8;
    b.machine.kernel = "7.0".to_owned();
    b.state = State::Partial { reason: "no space".to_owned() };
    let loud = Comparison::of_studies(&[("a", &a), ("b", &b)]).unwrap();
    let said: Vec<(Level, &str)> =
        loud.verdicts.iter().map(|verdict| (verdict.level, verdict.text.as_str())).collect();
    for expected in [
        (Level::Bad, "The scale differs: 0.01 for a, 0.02 for b."),
        (Level::Bad, "The number of physical cores differs: 4 for a, 8 for b."),
        (Level::Bad, "b is of a partial study: no space."),
    ] {
        assert!(said.contains(&expected), "{said:?}");
    }
    assert!(said.iter().any(|(level, text)| *level == Level::Warning && text.contains("kernel")));
}

#[test]
fn three_sides_are_each_compared_with_the_first() {
    let studies = [study(&[1.0], &[]), study(&[2.0], &[]), study(&[3.0], &[])];
    let comparison =
        Comparison::of_studies(&[("a", &studies[0]), ("b", &studies[1]), ("c", &studies[2])])
            .unwrap();
    let ratios: Vec<f64> =
        wall(&comparison).differences.iter().map(|difference| difference.unwrap().ratio).collect();
    assert_eq!(ratios, [2.0, 3.0]);
    let sheets = comparison.sheets();
    assert_eq!(sheets[0].table.columns[..5], ["figure", "unit", "a", "b", "c"]);
    assert_eq!(
        sheets.iter().map(|sheet| sheet.name).collect::<Vec<_>>(),
        ["comparison", "comparison_classes", "sides"]
    );
}

#[test]
fn conditions_name_everything_that_a_line_over_time_must_have_alike() {
    let before = study(&[1.0], &[]);
    let mut later = before.clone();
    later.started = "2026-02-01T00:00:00Z".to_owned();
    later.version = "0.2.0".to_owned();
    later.workload.seed = 2;
    later.machine.memory_bytes *= 2;
    assert_eq!(conditions(&later), conditions(&before), "what may change over time");
    let changes: [(&str, fn(&mut Record)); 7] = [
        ("scale", |record| record.workload.scale = 0.02),
        ("jobs at once", |record| record.runs[0].stages[0].concurrent += 1),
        ("page cache", |record| record.runs[0].cache.dropped = false),
        ("page size", |record| record.workload.buffers.page_bytes = ByteSize::kib(4)),
        ("sort memory", |record| record.workload.buffers.sort_memory = ByteSize::kib(4)),
        ("memory of programs", |record| record.workload.buffers.memory = ByteSize::kib(4)),
        ("concurrent", |record| {
            record.workload.parameters.insert("concurrent".to_owned(), "3".to_owned());
        }),
    ];
    let all = conditions(&before);
    for (name, change) in changes {
        let mut other = before.clone();
        change(&mut other);
        let found = conditions(&other);
        let differs = found.iter().filter(|one| !all.contains(one)).map(|(name, _)| &**name);
        assert_eq!(differs.collect::<Vec<_>>(), [name]);
    }
    // Twice the nodes, each with half of the jobs.
    let mut wider = before.clone();
    let stage = &mut wider.runs[0].stages[0];
    (stage.nodes, stage.concurrent) = (stage.nodes * 2, stage.concurrent / 2);
    assert_ne!(conditions(&wider), all);
}
