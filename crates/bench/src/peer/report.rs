//! Tables of medians, spread, ratios and costs; the section of a Markdown file that holds them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::Serialize;

use super::amount::Load;
use super::measure::{Outcome, Plan};
use super::subject::{Kind, Peer};
use crate::figure::Figure;
use crate::machine::Machine;
use crate::report::{aligned, grouped, without_command};
use crate::statistics::Summary;

/// Name of the section of a file.
pub const SECTION: &str = "bench-peers";
/// In a cell without a figure.
const NONE: &str = "-";

/// What is aimed at, as ratios of one round or as a rate.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Aim {
    /// So much of plain XFS.
    OfXfs(f64),
    /// So many times the best networked peer.
    OfNetworked(f64),
    /// So many per second.
    Rate(f64),
    /// No more than so much.
    AtMost(f64),
}

const AIMS: [(Figure, Aim); 8] = [
    (Figure::SequentialWrite, Aim::OfXfs(0.97)),
    (Figure::ReadHot, Aim::OfXfs(0.97)),
    (Figure::ReadCold, Aim::OfXfs(1.5)),
    (Figure::Calibration, Aim::OfXfs(0.5)),
    (Figure::Calibration, Aim::OfNetworked(10.0)),
    (Figure::Create, Aim::Rate(10_000.0)),
    (Figure::Unlink, Aim::Rate(10_000.0)),
    (Figure::SlowCreate, Aim::AtMost(5.0)),
];

/// One value per round.
type Rounds = BTreeMap<usize, f64>;

/// Everything that was measured, and how.
#[derive(Debug, Serialize)]
pub struct Report {
    command: String,
    machine: Machine,
    /// File system of the machine, under the loop files.
    below: String,
    rounds: usize,
    budget_seconds: f64,
    scale: f64,
    peers: Vec<Peer>,
    #[serde(flatten)]
    outcome: Outcome,
    #[serde(skip)]
    values: BTreeMap<(Figure, Peer), Rounds>,
}

impl Report {
    /// Puts together what was measured.
    #[must_use]
    pub fn new(machine: Machine, below: &str, plan: &Plan, outcome: Outcome) -> Report {
        let mut values: BTreeMap<(Figure, Peer), Rounds> = BTreeMap::new();
        for sample in &outcome.samples {
            for (figure, value) in &sample.figures {
                values.entry((*figure, sample.peer)).or_default().insert(sample.round, *value);
            }
        }
        Report {
            command: plan.command.clone(),
            machine,
            below: below.to_owned(),
            rounds: plan.rounds,
            budget_seconds: plan.budget.as_secs_f64(),
            scale: plan.scale,
            peers: plan.peers.clone(),
            outcome,
            values,
        }
    }

    /// Whether nothing was measured.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Everything as Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "Command: `forebay-bench {}`.\n{} {} round(s); every load takes about {} s on each subject, upper limits of amounts times \
             {}. All data is on XFS (of the subject ext4: on ext4) in a sparse loop file with direct I/O \
             on {}.\n\n",
            self.command,
            self.machine.describe(),
            self.rounds,
            self.budget_seconds,
            self.scale,
            self.below
        );
        for (peer, version) in &self.outcome.versions {
            let starts = self.outcome.start_seconds.get(peer).map_or(&[][..], Vec::as_slice);
            let seconds = Summary::of(starts).map_or(0.0, |summary| summary.median);
            let _ = writeln!(text, "- {}: {version}; up after {seconds:.1} s", peer.label());
        }
        let figures: BTreeSet<Figure> = self.values.keys().map(|(figure, _)| *figure).collect();
        let networked = |peer: &Peer| peer.kind() == Kind::Networked;
        let (far, near): (Vec<Peer>, Vec<Peer>) = self.peers.iter().copied().partition(networked);
        for peers in [near, far].iter().filter(|peers| !peers.is_empty()) {
            let _ = write!(text, "\n{}", self.medians(&figures, peers));
        }
        let _ = write!(text, "\nRatios to plain XFS: medians of those of each round.\n\n");
        text += &self.ratios(&figures);
        let aims = self.aims();
        if aims.len() > 1 {
            let _ = write!(text, "\nAgainst the aims:\n\n{}", aligned(&aims));
        }
        let _ = write!(
            text,
            "\nProcessor time of one unit in microseconds, medians: load + daemons + the rest of the \
             machine (kernel threads, other programs).\n\n{}\nAmounts, of each process:\n\n{}",
            self.costs(),
            self.amounts()
        );
        text + &self.refusals()
    }

    fn medians(&self, figures: &BTreeSet<Figure>, peers: &[Peer]) -> String {
        let mut rows = vec![heading("median (least - greatest)", peers)];
        for figure in figures {
            let cell = |peer: &Peer| self.summary(*figure, *peer).map_or(NONE.to_owned(), spread);
            rows.push(row(figure.label(), peers.iter().map(cell)));
        }
        aligned(&rows)
    }

    fn summary(&self, figure: Figure, peer: Peer) -> Option<Summary> {
        Summary::of(&self.values.get(&(figure, peer))?.values().copied().collect::<Vec<f64>>())
    }

    fn ratios(&self, figures: &BTreeSet<Figure>) -> String {
        let peers: Vec<Peer> =
            self.peers.iter().copied().filter(|peer| *peer != Peer::Xfs).collect();
        let own: Vec<Peer> =
            peers.iter().copied().filter(|peer| peer.kind() == Kind::Own).collect();
        let mut rows = vec![heading("of plain XFS", &peers)];
        rows[0].extend(own.iter().map(|peer| format!("{} / best networked", peer.label())));
        for figure in figures {
            let plain = self.values.get(&(*figure, Peer::Xfs));
            let best = self.best_networked(*figure);
            let of_plain = peers.iter().map(|peer| self.ratio(*figure, *peer, plain));
            let of_best = own.iter().map(|peer| self.ratio(*figure, *peer, Some(&best)));
            rows.push(row(figure.label(), of_plain.chain(of_best).map(factor)));
        }
        aligned(&rows)
    }

    /// The best of the networked peers, round by round.
    fn best_networked(&self, figure: Figure) -> Rounds {
        let mut best = Rounds::new();
        let networked = self.peers.iter().filter(|peer| peer.kind() == Kind::Networked);
        for values in networked.filter_map(|peer| self.values.get(&(figure, *peer))) {
            for (round, value) in values {
                let best = best.entry(*round).or_insert(*value);
                let better = if figure.smaller_is_better() { f64::min } else { f64::max };
                *best = better(*best, *value);
            }
        }
        best
    }

    /// The median of the ratios to `base`, of the rounds that have both.
    fn ratio(&self, figure: Figure, peer: Peer, base: Option<&Rounds>) -> Option<f64> {
        let values = self.values.get(&(figure, peer))?;
        let (values, bases): (Vec<f64>, Vec<f64>) =
            values.iter().filter_map(|(round, value)| Some((*value, *base?.get(round)?))).unzip();
        Summary::of_ratios(&values, &bases).map(|summary| summary.median)
    }

    fn aims(&self) -> Vec<Vec<String>> {
        let mut rows =
            vec![["aim", "subject", "wanted", "reached", ""].map(str::to_owned).to_vec()];
        for (figure, aim) in AIMS {
            for peer in self.peers.iter().copied().filter(|peer| peer.kind() == Kind::Own) {
                let (reached, wanted, what) = match aim {
                    Aim::OfXfs(least) => {
                        let plain = self.values.get(&(figure, Peer::Xfs));
                        (self.ratio(figure, peer, plain), least, "of plain XFS")
                    }
                    Aim::OfNetworked(least) => {
                        let best = self.best_networked(figure);
                        (self.ratio(figure, peer, Some(&best)), least, "of the best networked peer")
                    }
                    Aim::Rate(least) => {
                        let summary = self.summary(figure, peer);
                        (summary.map(|summary| summary.median), least, "per second")
                    }
                    Aim::AtMost(most) => {
                        let summary = self.summary(figure, peer);
                        (summary.map(|summary| summary.median), most, "at most")
                    }
                };
                let Some(reached) = reached else { continue };
                let met = match aim {
                    Aim::AtMost(_) => reached <= wanted,
                    Aim::OfXfs(_) | Aim::OfNetworked(_) | Aim::Rate(_) => reached >= wanted,
                };
                let name = figure.label().split(", ").next().unwrap_or_default();
                rows.push(vec![
                    format!("{name}, {what}"),
                    peer.label().to_owned(),
                    factor(Some(wanted)),
                    factor(Some(reached)),
                    if met { "met" } else { "missed" }.to_owned(),
                ]);
            }
        }
        rows
    }

    fn loads(&self) -> BTreeSet<Load> {
        self.outcome.samples.iter().map(|sample| sample.load).collect()
    }

    fn costs(&self) -> String {
        let mut rows = vec![heading("microseconds", &self.peers)];
        let runs = |load: &Load| matches!(load, Load::BenchCalibration | Load::BenchMixed);
        for load in self.loads().into_iter().filter(|load| !runs(load)) {
            let cell = |peer: &Peer| self.cost(load, *peer).unwrap_or_else(|| NONE.to_owned());
            let unit = match load.unit().split_once(" of each process") {
                Some((unit, _)) => unit,
                None => load.unit(),
            };
            let name = format!("{}, a {}", load.label(), unit.trim_end_matches('s'));
            rows.push(row(&name, self.peers.iter().map(cell)));
        }
        aligned(&rows)
    }

    fn cost(&self, load: Load, peer: Peer) -> Option<String> {
        let samples: Vec<_> = self
            .outcome
            .samples
            .iter()
            .filter(|sample| sample.load == load && sample.peer == peer)
            .collect();
        let median = |part: fn(&super::cost::Cost) -> f64| {
            let per_unit = samples.iter().map(|sample| {
                part(&sample.cost) * 1e6 / (sample.amount * load.processes()).max(1) as f64
            });
            Summary::of(&per_unit.collect::<Vec<f64>>()).map(|summary| grouped(summary.median))
        };
        Some(format!(
            "{} + {} + {}",
            median(|cost| cost.load_user_seconds + cost.load_system_seconds)?,
            median(|cost| cost.daemon_user_seconds + cost.daemon_system_seconds)?,
            median(|cost| cost.rest_seconds)?
        ))
    }

    fn amounts(&self) -> String {
        let mut rows = vec![heading("amount", &self.peers)];
        for load in self.loads() {
            let cell = |peer: &Peer| {
                let mut samples = self.outcome.samples.iter();
                let sample = samples.find(|sample| sample.load == load && sample.peer == *peer);
                sample.map_or(NONE.to_owned(), |sample| grouped(sample.amount as f64))
            };
            let unit = load.unit().trim_end_matches(" of each process");
            rows.push(row(&format!("{}, {unit}", load.label()), self.peers.iter().map(cell)));
        }
        aligned(&rows)
    }

    /// What could not be measured, and why: each reason once.
    fn refusals(&self) -> String {
        let mut text = String::new();
        let mut told = BTreeSet::new();
        for refusal in &self.outcome.refusals {
            if told.insert((refusal.peer, refusal.load)) {
                let what = refusal.load.map_or("nothing", Load::label);
                let reason = without_command(&refusal.reason);
                let (peer, round) = (refusal.peer.label(), refusal.round + 1);
                let _ = match refusal.load {
                    None => writeln!(text, "- {peer} did not start in round {round}: {reason}"),
                    Some(_) => {
                        writeln!(text, "- {peer}, {what}, failed in round {round}: {reason}")
                    }
                };
            }
        }
        if text.is_empty() { text } else { format!("\nNot measured:\n\n{text}") }
    }
}

fn heading(first: &str, peers: &[Peer]) -> Vec<String> {
    row(first, peers.iter().map(|peer| peer.label().to_owned()))
}

fn row(first: &str, cells: impl Iterator<Item = String>) -> Vec<String> {
    std::iter::once(first.to_owned()).chain(cells).collect()
}

fn spread(of: Summary) -> String {
    format!("{} ({} - {})", grouped(of.median), grouped(of.min), grouped(of.max))
}

/// A ratio or a rate with as many digits as say something.
fn factor(value: Option<f64>) -> String {
    match value {
        None => NONE.to_owned(),
        Some(value) if value >= 100.0 => grouped(value),
        Some(value) if value >= 10.0 => format!("{value:.1}"),
        Some(value) if value >= 0.1 => format!("{value:.2}"),
        Some(value) => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::super::cost::Cost;
    use super::super::measure::{Refusal, Sample};
    use super::*;
    use crate::figure::Figures;

    fn report() -> Report {
        let sample = |round, peer, rate: f64| Sample {
            round,
            peer,
            load: Load::CalibrationFour,
            amount: 100,
            figures: Figures::from([(Figure::Calibration, rate)]),
            cost: Cost { load_user_seconds: 0.4, daemon_user_seconds: 0.2, ..Cost::default() },
        };
        let outcome = Outcome {
            samples: vec![
                sample(0, Peer::Xfs, 8_000.0),
                sample(0, Peer::Forebay, 6_000.0),
                sample(0, Peer::Moosefs, 250.0),
                sample(0, Peer::Cephfs, 300.0),
                // The machine is half as fast in this round.
                sample(1, Peer::Xfs, 4_000.0),
                sample(1, Peer::Forebay, 3_000.0),
                sample(1, Peer::Moosefs, 150.0),
            ],
            refusals: vec![Refusal {
                round: 1,
                peer: Peer::Cephfs,
                load: None,
                reason: "the program ceph-mon\nis missing".to_owned(),
            }],
            ..Outcome::default()
        };
        let plan = Plan {
            command: "peers --rounds 2".to_owned(),
            rounds: 2,
            peers: vec![Peer::Xfs, Peer::Forebay, Peer::Moosefs, Peer::Cephfs],
            loads: vec![Load::CalibrationFour],
            budget: Duration::from_secs(2),
            scale: 1.0,
            pause: Duration::ZERO,
            forebay: PathBuf::new(),
        };
        Report::new(Machine::look().unwrap(), "ext4", &plan, outcome)
    }

    #[test]
    fn ratios_are_those_of_one_round_and_the_best_peer_is_that_of_the_round() {
        let report = report();
        let plain = report.values.get(&(Figure::Calibration, Peer::Xfs));
        assert_eq!(report.ratio(Figure::Calibration, Peer::Forebay, plain), Some(0.75));
        let best = report.best_networked(Figure::Calibration);
        assert_eq!(best, Rounds::from([(0, 300.0), (1, 150.0)]));
        assert_eq!(report.ratio(Figure::Calibration, Peer::Forebay, Some(&best)), Some(20.0));
        assert_eq!(report.ratio(Figure::Create, Peer::Forebay, plain), None);
    }

    #[test]
    fn the_report_tells_figures_aims_costs_and_what_is_missing() {
        let text = report().markdown();
        for part in [
            "Command: `forebay-bench peers --rounds 2`.",
            "6,000 - 6,000",
            "4,500 (3,000 - 6,000)",
            "1,000 + 500 + 0",
            "- CephFS (fuse) did not start in round 2: the program ceph-mon is missing",
        ] {
            assert_eq!(text.contains(part), part != "6,000 - 6,000", "{part} in {text}");
        }
        let aims = report().aims();
        let last: Vec<&str> = aims.iter().map(|row| row[4].as_str()).collect();
        assert_eq!(last, ["", "met", "met"]);
        assert_eq!(
            aims[2][..4],
            ["calibration, of the best networked peer", "Forebay", "10.0", "20.0"]
        );
    }

    #[test]
    fn digits_say_something() {
        let shown = [12_345.6, 12.34, 1.234, 0.1234, 0.01234].map(|value| factor(Some(value)));
        assert_eq!(shown, ["12,346", "12.3", "1.23", "0.12", "0.012"]);
        assert_eq!(factor(None), "-");
    }
}
