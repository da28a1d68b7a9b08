//! Seeds of random tests: fresh each time, and printed so that a failure can be repeated.

use std::time::{SystemTime, UNIX_EPOCH};

/// The variable that picks a seed.
pub const VARIABLE: &str = "FOREBAY_SEED";

/// The seed of a random test: `FOREBAY_SEED` if it is set, otherwise a fresh one.
///
/// # Panics
/// If `FOREBAY_SEED` is not a number.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "a seed is to differ from run to run")]
pub fn pick() -> u64 {
    match std::env::var(VARIABLE) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{VARIABLE}={text} is not a number")),
        Err(_) => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            // Short enough to be read out.
            u64::from(now.subsec_nanos() ^ std::process::id().rotate_left(20)) % 1_000_000_007
        }
    }
}

/// Picks a seed and prints the command that repeats the run, which is `command` with the seed before it; the
/// test harness shows it when the test fails.
///
/// # Panics
/// If `FOREBAY_SEED` is not a number.
#[must_use]
pub fn announce(command: &str) -> u64 {
    let seed = pick();
    println!("to repeat: {VARIABLE}={seed} {command}");
    seed
}
