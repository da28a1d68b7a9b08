//! Random sequences of commands, agents' messages, losses, restarts, settings and time, against what must
//! always hold.
//!
//! `FOREBAY_SEED` (a number) and `PROPTEST_CASES` repeat a run and choose more of them; both are printed, and at a
//! failure the shortest sequence that fails.

mod agent;
mod check;
mod op;
mod world;

use crate::random;
/// Sequences per test, unless `PROPTEST_CASES` says otherwise.
const CASES: u32 = 100;

fn run(test: &str, first_config: usize) {
    random::check(("model", test), CASES, &op::sequences(), |ops| {
        world::World::new(first_config).run(&ops);
    });
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
