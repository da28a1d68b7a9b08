//! What holds for every record.

use std::sync::LazyLock;

use forebay_study::record::{Exit, JobKind, JobRecord, Record, Sample};
use forebay_study::statistics::{Spread, median, quantile, weighted_median};
use forebay_study::summary::{Group, Summary};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use crate::builder::{job, job_not_started, record, run, samples, stage};

/// Start, seconds, node, class, exit, bytes.
type Drawn = (f64, f64, u32, usize, u8, [Option<u32>; 2]);

/// From a fresh seed, printed when a test fails; `FOREBAY_SEED` repeats one, `PROPTEST_CASES` sets how many.
fn config() -> ProptestConfig {
    static SEED: LazyLock<u64> = LazyLock::new(forebay_base::seed::pick);
    // Shown with the output of a test that fails.
    println!("To repeat: FOREBAY_SEED={} cargo test -p forebay-study --test summary", *SEED);
    ProptestConfig {
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(*SEED),
        ..ProptestConfig::default()
    }
}

#[test]
fn the_seed_of_random_tests_is_fresh_unless_it_is_given() {
    let seed = |given: Option<&str>| {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "properties::quantiles_are_ordered", "--nocapture"]);
        command.env("PROPTEST_CASES", "1").env_remove("FOREBAY_SEED");
        command.envs(given.map(|seed| ("FOREBAY_SEED", seed)));
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        let said = text.split_once("FOREBAY_SEED=").expect("the seed is printed").1;
        said.split(' ').next().unwrap().to_owned()
    };
    assert_ne!(seed(None), seed(None));
    assert_eq!(seed(Some("7")), "7");
}

fn jobs() -> impl Strategy<Value = Vec<JobRecord>> {
    let one = (0.0..50.0, 0.0..20.0, 0_u32..3, 0_usize..3, 0_u8..8, any::<[Option<u32>; 2]>());
    prop::collection::vec(one, 0..25).prop_map(|jobs| {
        let job = |(number, drawn): (usize, Drawn)| {
            let (start, seconds, node, class, exit, [read, written]) = drawn;
            let name = format!("j{number}");
            let mut job =
                if exit == 0 { job_not_started(&name) } else { job(&name, start, start + seconds) };
            job.exit = match exit {
                0 => Exit::NotStarted,
                1 => Exit::Signal { signal: 15 },
                _ => Exit::Success,
            };
            job.node = node;
            job.class = ["sort", "join", "focus"][class].to_owned();
            job.kind = [JobKind::Io, JobKind::Memory, JobKind::Computation][class];
            if exit != 0 {
                job.usage.read_bytes = read.map(u64::from);
                job.usage.written_bytes = written.map(u64::from);
            }
            job
        };
        jobs.into_iter().enumerate().map(job).collect()
    })
}

fn seconds() -> impl Strategy<Value = Vec<Sample>> {
    prop::collection::vec((0_u64..2000, 0_u64..2000), 0..70).prop_map(|rates| samples(&rates))
}

fn study(jobs: Vec<JobRecord>, samples: Vec<Sample>) -> Record {
    record(vec![run(vec![stage("all", jobs)], samples)])
}

/// Counts and bytes add up exactly, seconds but for rounding.
fn assert_adds_up(groups: &[Group], all: &forebay_study::summary::Totals) {
    let sum = |part: fn(&Group) -> usize| groups.iter().map(part).sum::<usize>();
    assert_eq!(sum(|group| group.totals.jobs), all.jobs);
    assert_eq!(sum(|group| group.totals.failed), all.failed);
    assert_eq!(sum(|group| group.totals.not_started), all.not_started);
    assert_eq!(sum(|group| group.totals.bytes_unknown), all.bytes_unknown);
    let read: Vec<u64> = groups.iter().filter_map(|group| group.totals.read_bytes).collect();
    assert_eq!(all.read_bytes, (!read.is_empty()).then(|| read.iter().sum()));
    let real: f64 = groups.iter().map(|group| group.totals.real_seconds).sum();
    assert!((real - all.real_seconds).abs() <= 1e-9 * all.real_seconds.max(1.0));
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn groups_add_up_to_all_jobs(jobs in jobs()) {
        let run = Summary::of(&study(jobs, Vec::new())).runs.remove(0);
        for groups in [&run.classes, &run.kinds, &run.nodes] {
            assert_adds_up(groups, &run.jobs);
        }
        prop_assert_eq!(run.jobs.succeeded() + run.jobs.failed + run.jobs.not_started, run.jobs.jobs);
    }

    #[test]
    fn the_order_of_jobs_changes_nothing(
        (jobs, shuffled) in jobs().prop_flat_map(|jobs| (Just(jobs.clone()), Just(jobs).prop_shuffle())),
        samples in seconds(),
    ) {
        let one = Summary::of(&study(jobs, samples.clone()));
        prop_assert_eq!(one, Summary::of(&study(shuffled, samples)));
    }

    #[test]
    fn rates_lie_between_the_least_and_the_best_second(jobs in jobs(), samples in seconds()) {
        let run = Summary::of(&study(jobs, samples)).runs.remove(0);
        let (file, best) = (&run.file, run.file.best_1_second);
        if let Some(sustained) = file.sustained_mb_per_second {
            prop_assert!(sustained <= best.unwrap());
            let busy = file.busy.unwrap();
            prop_assert!(busy.min <= sustained && sustained <= busy.max);
        }
        if let Some(ten) = file.best_10_seconds {
            prop_assert!(ten <= best.unwrap() * (1.0 + 1e-12));
        }
        for period in &run.busy {
            prop_assert!(period.start_seconds < period.end_seconds && period.plateau_jobs > 0);
            prop_assert!(period.start_seconds >= run.stages[0].busy.unwrap().start_seconds);
        }
        for share in [run.file.read_share, run.cache_hit_ratio].into_iter().flatten() {
            prop_assert!((0.0..=1.0).contains(&share));
        }
    }

    #[test]
    fn quantiles_are_ordered(values in prop::collection::vec(-1e6..1e6, 1..60), a in 0.0..1.0, b in 0.0..1.0) {
        let spread = Spread::of(values.iter().copied()).unwrap();
        let ascending =
            [spread.min, spread.lower_quartile, spread.median, spread.upper_quartile, spread.max];
        prop_assert!(ascending.is_sorted());
        prop_assert!(spread.mad >= 0.0 && spread.mad <= spread.max - spread.min);
        let at = |part| quantile(values.iter().copied(), part).unwrap();
        prop_assert!(at(f64::min(a, b)) <= at(f64::max(a, b)));
    }

    #[test]
    fn a_median_with_equal_weights_is_the_median(
        values in prop::collection::vec(-1e6..1e6, 0..60),
        weight in 0.001..1000.0,
    ) {
        let weighted = weighted_median(values.iter().map(|&value| (value, weight)));
        prop_assert_eq!(weighted, median(values));
    }

    #[test]
    fn a_whole_weight_is_as_good_as_repeating(
        values in prop::collection::vec((-1e6..1e6, 1_u32..5), 1..30),
    ) {
        let weighted = weighted_median(values.iter().map(|&(value, count)| (value, f64::from(count))));
        let repeated = values.iter().flat_map(|&(value, count)| vec![value; count as usize]);
        prop_assert_eq!(weighted, median(repeated));
    }
}
