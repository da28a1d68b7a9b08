//! Random sequences of commands, agents' messages, losses, restarts, settings and time, against what must
//! always hold.
//!
//! `FOREBAY_SEED` (a number) and `PROPTEST_CASES` choose other and more sequences than the usual ones; a
//! failure prints both, and the shortest sequence that fails.

#[path = "model/agent.rs"]
mod agent;
#[path = "model/check.rs"]
mod check;
#[path = "model/op.rs"]
mod op;
#[path = "support/pieces.rs"]
mod pieces;
#[path = "model/world.rs"]
mod world;

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

/// Sequences per test, unless `PROPTEST_CASES` says otherwise.
const CASES: u32 = 100;

fn number_from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

fn run(test: &str, first_config: usize) {
    let cases = number_from_environment("PROPTEST_CASES", u64::from(CASES));
    let seed = number_from_environment("FOREBAY_SEED", 1);
    let config = Config {
        cases: u32::try_from(cases).expect("a number of cases"),
        max_shrink_iters: 3000,
        failure_persistence: None,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let outcome = TestRunner::new_with_rng(config, rng).run(&op::sequences(), |ops| {
        world::World::new(first_config).run(&ops);
        Ok::<(), TestCaseError>(())
    });
    if let Err(failure) = outcome {
        panic!(
            "{failure}\nTo repeat: FOREBAY_SEED={seed} PROPTEST_CASES={cases} \
             cargo test -p forebay-grid --test model {test}"
        );
    }
}

#[test]
fn a_grid_that_starts_jobs_with_events_keeps_its_rules() {
    run("a_grid_that_starts_jobs_with_events", 0);
}

#[test]
fn a_grid_with_windows_and_limits_keeps_its_rules() {
    run("a_grid_with_windows_and_limits", 1);
}

#[test]
fn a_grid_that_starts_jobs_at_intervals_keeps_its_rules() {
    run("a_grid_that_starts_jobs_at_intervals", 2);
}
