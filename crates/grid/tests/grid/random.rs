//! Random tests: a fresh seed each time, unless one is given, and how to repeat a run.

use std::fmt::Debug;

use forebay_base::seed;
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

fn number_from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} = {text}: must be a number")))
}

/// Runs `check` on random values, `cases` times unless `PROPTEST_CASES` says otherwise. The seed is a fresh one unless
/// `FOREBAY_SEED` gives it; it is printed, and so is the command that repeats the run.
pub fn check<S: Strategy<Value: Debug>>(
    (file, test): (&str, &str),
    cases: u32,
    values: &S,
    check: impl Fn(S::Value),
) {
    let cases = number_from_environment("PROPTEST_CASES").unwrap_or(u64::from(cases));
    let command = format!("PROPTEST_CASES={cases} cargo test -p forebay-grid {file}::{test}");
    let seed = seed::announce(&command);
    let config = Config {
        cases: u32::try_from(cases).expect("a number of cases"),
        max_shrink_iters: 3000,
        failure_persistence: None,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let outcome = TestRunner::new_with_rng(config, rng).run(values, |value| {
        check(value);
        Ok::<(), TestCaseError>(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}\nto repeat: {}={seed} {command}", seed::VARIABLE);
    }
}
