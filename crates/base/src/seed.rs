//! Seeds of random tests: fresh each time, and printed so that a failure can be repeated; and numbers that follow from one.

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

/// `count` seeds of a random test, from a fresh one on, announced as [`announce`] does; `FOREBAY_SEED` picks the first.
///
/// # Panics
/// If `FOREBAY_SEED` is not a number.
#[must_use]
pub fn several(count: u64, command: &str) -> std::ops::Range<u64> {
    let first = announce(command);
    first..first.saturating_add(count)
}

/// Numbers that look random and repeat for the same seed: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom
/// number generators", 2014).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Those of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Dice {
        Dice(seed)
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `end`.
    ///
    /// # Panics
    /// If `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.any() % end
    }

    /// An index of `length` things.
    ///
    /// # Panics
    /// If there are none.
    pub fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).expect("below a length")
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.any() % (high - low).saturating_add(1)
    }

    /// Heads or tails.
    pub fn toss(&mut self) -> bool {
        self.any() >> 63 == 1
    }
}
