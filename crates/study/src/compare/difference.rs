//! How a figure of one side differs from that of another.

use forebay_analytics::Cell;
use serde::Serialize;

use super::{Compared, Pairing, ROUNDS_MIN};
use crate::statistics::{Spread, ratio};
use crate::summary::{Better, Level, Verdict};

/// One side by the other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The ratio: the median of the rounds' ratios, or the ratio of the medians.
    pub ratio: f64,
    /// The least that it may be.
    pub low: f64,
    /// The greatest that it may be.
    pub high: f64,
    /// Rounds that it is made from: pairs, or the smaller number of both sides.
    pub rounds: usize,
    /// What it means.
    pub outcome: Outcome,
}

/// What a difference means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Better than the first, by more than the spread.
    Better,
    /// Worse than the first, by more than the spread.
    Worse,
    /// Higher, by more than the spread, where that is neither good nor bad.
    Higher,
    /// Lower, by more than the spread, where that is neither good nor bad.
    Lower,
    /// The spread holds "no difference", or the ratio is 1 as it is shown.
    WithinSpread,
    /// There are too few rounds to know the spread.
    TooFewRounds,
}

impl Outcome {
    /// For people.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Outcome::Better => "better",
            Outcome::Worse => "worse",
            Outcome::Higher => "higher",
            Outcome::Lower => "lower",
            Outcome::WithinSpread => "equal within the spread",
            Outcome::TooFewRounds => "too few rounds",
        }
    }
}

/// A ratio nearer to 1 than this is shown as 1.00: no difference is claimed of it.
const SHOWN: f64 = 0.005;

impl Difference {
    /// `other` by `first`, each by round; `None` if no ratio can be taken.
    pub(super) fn of(
        first: &[(u32, f64)],
        other: &[(u32, f64)],
        pairing: Pairing,
        better: Better,
    ) -> Option<Difference> {
        let (ratio, low, high, rounds) = match pairing {
            Pairing::ByRound => by_round(first, other)?,
            Pairing::Unpaired => unpaired(first, other)?,
        };
        let outcome = if rounds < ROUNDS_MIN {
            Outcome::TooFewRounds
        } else if (ratio - 1.0).abs() < SHOWN {
            Outcome::WithinSpread
        } else if low > 1.0 {
            better.grown()
        } else if high < 1.0 {
            better.shrunk()
        } else {
            Outcome::WithinSpread
        };
        Some(Difference { ratio, low, high, rounds, outcome })
    }
}

fn by_round(first: &[(u32, f64)], other: &[(u32, f64)]) -> Option<(f64, f64, f64, usize)> {
    let ratios = other.iter().filter_map(|(round, value)| {
        let base = first.iter().find(|(same, _)| same == round)?.1;
        ratio(*value, base)
    });
    let spread = Spread::of(ratios)?;
    Some((spread.median, spread.min, spread.max, spread.count))
}

fn unpaired(first: &[(u32, f64)], other: &[(u32, f64)]) -> Option<(f64, f64, f64, usize)> {
    let spread = |values: &[(u32, f64)]| Spread::of(values.iter().map(|value| value.1));
    let (base, other) = (spread(first)?, spread(other)?);
    Some((
        ratio(other.median, base.median)?,
        ratio(other.min, base.max)?,
        // Of a base that was zero once, any ratio may be true.
        ratio(other.max, base.min).unwrap_or(f64::INFINITY),
        base.count.min(other.count),
    ))
}

/// Figures of whole runs that sentences are made of, as far as both sides have them.
const HEADLINES: [&str; 4] =
    ["file_sustained_mb_per_second", "jobs_per_minute", "real_minutes", "cpu_per_real_of_sums"];
/// Figures that say nothing of runs whose streams move a fixed number of bytes: these have rates.
const NOT_OF_STREAMS: [&str; 3] = ["jobs_per_minute", "real_minutes", "cpu_per_real_of_sums"];
/// Rates of stages that sentences are made of.
const RATES_MAX: usize = 6;

fn headlines(figures: &[Compared]) -> Vec<&Compared> {
    let rates: Vec<&Compared> =
        figures.iter().filter(|one| one.figure.key.ends_with("/rate")).take(RATES_MAX).collect();
    let whole = HEADLINES.iter().filter(|key| rates.is_empty() || !NOT_OF_STREAMS.contains(key));
    let whole = whole.filter_map(|key| figures.iter().find(|one| one.figure.key == *key));
    whole.chain(rates.iter().copied()).collect()
}

/// What the comparison comes to, a sentence for each headline figure and side.
pub(super) fn verdicts(labels: &[&str], figures: &[Compared], pairing: Pairing) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for compared in headlines(figures) {
        for (difference, label) in compared.differences.iter().zip(&labels[1..]) {
            let Some(difference) = difference else { continue };
            let level = match difference.outcome {
                Outcome::Worse => Level::Bad,
                Outcome::TooFewRounds => Level::Warning,
                Outcome::Better | Outcome::Higher | Outcome::Lower | Outcome::WithinSpread => {
                    Level::Good
                }
            };
            let text = sentence(compared, difference, [labels[0], label], pairing);
            verdicts.push(Verdict { level, topic: "Difference", text });
        }
    }
    verdicts
}

fn sentence(
    compared: &Compared,
    difference: &Difference,
    [first, other]: [&str; 2],
    pairing: Pairing,
) -> String {
    let short = |number: f64| Cell::from(number).show(3);
    let rounds = match (difference.rounds, pairing) {
        (1, _) => "one round".to_owned(),
        (rounds, Pairing::ByRound) => format!("{rounds} alternating rounds"),
        (rounds, Pairing::Unpaired) => format!("{rounds} rounds each, not paired"),
    };
    let claim = match difference.outcome {
        Outcome::TooFewRounds => "too few rounds for a conclusion",
        outcome => outcome.describe(),
    };
    format!(
        "{other}/{first}, {}: {} ({} to {}, {rounds}): {claim}.",
        compared.figure.label,
        short(difference.ratio),
        short(difference.low),
        short(difference.high)
    )
}
