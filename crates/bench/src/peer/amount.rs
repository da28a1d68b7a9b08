//! How much a load does on a subject: as much as it gets done in about the same time.
//!
//! Peers differ by a factor of a hundred. A fixed amount would take the slow ones minutes or the fast
//! ones milliseconds, so amounts follow the speed: a pilot before the first round does little, then
//! more, until it lasts long enough to tell the speed; from that the amount follows that takes the
//! budget, within limits. It stays the same in all rounds, and figures are rates.

use clap::ValueEnum;
use serde::Serialize;

use crate::figure::Figures;

/// Files of the trees that there are, least first.
pub const TREES: [u64; 3] = [1_000, 3_000, 12_000];
/// A pilot lasts at least this part of the budget, unless it reaches the limit before.
const PILOT_PART: f64 = 0.25;
/// What a pilot grows by, at least.
const PILOT_GROWTH: u64 = 4;

/// A load: what is measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// One file written, read hot and cold.
    Sequential,
    /// Small temporary files, one process.
    StormOne,
    /// Small temporary files, four processes.
    StormFour,
    /// The calibration-like mix, four processes.
    CalibrationFour,
    /// The calibration-like mix, sixteen processes.
    CalibrationSixteen,
    /// Empty files in one directory.
    Metadata,
    /// A source tree unpacked, asked for its status, removed.
    Tree,
    /// Rows inserted into a database, each synced.
    Sqlite,
    /// `forebay bench run calibration`.
    BenchCalibration,
    /// `forebay bench run mixed`.
    BenchMixed,
}

/// The least and the most that a load does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// What a pilot begins with.
    pub least: u64,
    /// What is enough for anybody.
    pub most: u64,
}

impl Load {
    /// Name for people.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Load::Sequential => "sequential",
            Load::StormOne => "storm, 1 process",
            Load::StormFour => "storm, 4 processes",
            Load::CalibrationFour => "calibration mix, 4 processes",
            Load::CalibrationSixteen => "calibration mix, 16 processes",
            Load::Metadata => "metadata",
            Load::Tree => "source tree",
            Load::Sqlite => "SQLite",
            Load::BenchCalibration => "bench run calibration",
            Load::BenchMixed => "bench run mixed",
        }
    }

    /// What an amount counts.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Load::Sequential => "MiB",
            Load::StormOne | Load::Metadata | Load::Tree => "files",
            Load::StormFour => "files of each process",
            Load::CalibrationFour | Load::CalibrationSixteen => "temporary files of each process",
            Load::Sqlite => "rows",
            Load::BenchCalibration | Load::BenchMixed => "run",
        }
    }

    /// Processes at once.
    #[must_use]
    pub fn processes(self) -> u64 {
        match self {
            Load::StormFour | Load::CalibrationFour => 4,
            Load::CalibrationSixteen => 16,
            _ => 1,
        }
    }

    /// The limits of its amount, the upper ones times `scale`.
    #[must_use]
    pub fn limits(self, scale: f64) -> Limits {
        let (least, most) = match self {
            Load::Sequential => (32, 1024),
            Load::StormOne => (20, 30_000),
            Load::StormFour => (10, 10_000),
            Load::CalibrationFour => (4, 2_500),
            Load::CalibrationSixteen => (2, 600),
            Load::Metadata => (50, 50_000),
            Load::Tree => (TREES[0], TREES[TREES.len() - 1]),
            Load::Sqlite => (10, 10_000),
            Load::BenchCalibration | Load::BenchMixed => (1, 1),
        };
        Limits { least, most: ((most as f64 * scale) as u64).max(least) }
    }

    /// An amount that there is, near `amount`: trees come in a few sizes.
    #[must_use]
    pub fn available(self, amount: u64) -> u64 {
        match self {
            Load::Tree => {
                TREES.into_iter().filter(|files| *files <= amount).max().unwrap_or(TREES[0])
            }
            _ => amount,
        }
    }
}

/// Seconds that one unit took, all of what was measured about it together. A figure is units per
/// second, unless it is a time of its own.
#[must_use]
pub fn seconds_per_unit(figures: &Figures) -> f64 {
    let rates = figures.iter().filter(|(figure, rate)| !figure.smaller_is_better() && **rate > 0.0);
    rates.map(|(_, rate)| 1.0 / rate).sum()
}

/// What a pilot that did `done` units at `per_unit` seconds does next; `None` if it knows enough.
#[must_use]
pub fn next_pilot(done: u64, per_unit: f64, budget_seconds: f64, limits: Limits) -> Option<u64> {
    let lasted = done as f64 * per_unit;
    if lasted >= PILOT_PART * budget_seconds || done >= limits.most {
        return None;
    }
    let enough = (PILOT_PART * budget_seconds / per_unit.max(1e-9)) as u64;
    Some(enough.min(done * PILOT_GROWTH * PILOT_GROWTH).max(done * PILOT_GROWTH).min(limits.most))
}

/// The amount that takes the budget.
#[must_use]
pub fn amount(per_unit: f64, budget_seconds: f64, limits: Limits) -> u64 {
    ((budget_seconds / per_unit.max(1e-9)) as u64).clamp(limits.least, limits.most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Figure;

    const LIMITS: Limits = Limits { least: 10, most: 10_000 };

    #[test]
    fn the_time_of_a_unit_is_that_of_all_its_operations() {
        let figures = Figures::from([(Figure::Create, 100.0), (Figure::Unlink, 50.0)]);
        assert!((seconds_per_unit(&figures) - 0.03).abs() < 1e-12);
        let storm = Figures::from([(Figure::StormFour, 100.0), (Figure::SlowCreate, 0.2)]);
        assert!((seconds_per_unit(&storm) - 0.01).abs() < 1e-12);
        assert_eq!(seconds_per_unit(&Figures::new()), 0.0);
    }

    #[test]
    fn amounts_follow_the_speed_within_limits() {
        assert_eq!(amount(0.01, 3.0, LIMITS), 300);
        assert_eq!(amount(1.0, 3.0, LIMITS), 10);
        assert_eq!(amount(1e-6, 3.0, LIMITS), 10_000);
        assert_eq!(amount(0.0, 3.0, LIMITS), 10_000);
    }

    #[test]
    fn a_pilot_grows_until_it_lasts_or_meets_the_limit() {
        // A quarter of 4 seconds is enough.
        assert_eq!(next_pilot(10, 0.1, 4.0, LIMITS), None);
        assert_eq!(next_pilot(10, 0.02, 4.0, LIMITS), Some(50));
        // At least four times, at most sixteen times as much.
        assert_eq!(next_pilot(10, 0.09, 4.0, LIMITS), Some(40));
        assert_eq!(next_pilot(10, 1e-6, 4.0, LIMITS), Some(160));
        assert_eq!(next_pilot(5_000, 1e-6, 4.0, LIMITS), Some(10_000));
        assert_eq!(next_pilot(10_000, 1e-6, 4.0, LIMITS), None);
    }

    #[test]
    fn a_scale_lowers_the_upper_limit_only() {
        for load in Load::value_variants() {
            let (full, tiny) = (load.limits(1.0), load.limits(0.0001));
            assert_eq!(full.least, tiny.least);
            assert!(tiny.most <= full.most && tiny.most >= tiny.least, "{load:?}");
        }
    }

    #[test]
    fn trees_come_in_the_sizes_that_there_are() {
        assert_eq!(
            [10, 2_999, 3_000, 99_999].map(|files| Load::Tree.available(files)),
            [1_000, 1_000, 3_000, 12_000]
        );
        assert_eq!(Load::Sqlite.available(77), 77);
    }
}
