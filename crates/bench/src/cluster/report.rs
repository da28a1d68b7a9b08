//! Tables of medians, spread and ratios.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use crate::figure::{Figure, Figures};
use crate::machine::Machine;
use crate::report::{aligned, grouped, without_command};
use crate::statistics::Summary;

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    machine: Machine,
    rounds: usize,
    command: Vec<String>,
    pub sections: Vec<Section>,
}

/// A table.
#[derive(Debug, Serialize)]
pub struct Section {
    title: String,
    /// What ratios are taken to; of peers, what is divided by the best of them.
    base: String,
    /// Subjects that compete, if any do.
    pub peers: Vec<String>,
    /// What runs, by peer.
    pub versions: BTreeMap<String, String>,
    /// In the order in which they were first measured.
    subjects: Vec<String>,
    /// Values by round.
    samples: BTreeMap<Figure, BTreeMap<String, BTreeMap<usize, f64>>>,
    refusals: Vec<String>,
    /// Tables and sentences below it.
    pub remarks: Vec<String>,
}

impl Section {
    /// Begins a table.
    pub fn begin<'a>(sections: &'a mut Vec<Section>, title: &str, base: &str) -> &'a mut Section {
        eprintln!("{title}");
        sections.push(Section {
            title: title.to_owned(),
            base: base.to_owned(),
            peers: Vec::new(),
            versions: BTreeMap::new(),
            subjects: Vec::new(),
            samples: BTreeMap::new(),
            refusals: Vec::new(),
            remarks: Vec::new(),
        });
        sections.last_mut().expect("one was added")
    }

    /// Adds what was measured on a subject in a round.
    pub fn note(&mut self, round: usize, subject: &str, figures: &Figures) {
        if !self.subjects.iter().any(|known| known == subject) {
            self.subjects.push(subject.to_owned());
        }
        let shown: Vec<String> = figures
            .iter()
            .map(|(figure, value)| format!("{} {value:.1}", figure.label()))
            .collect();
        eprintln!("  round {}, {subject}: {}", round + 1, shown.join("; "));
        for (figure, value) in figures {
            let subjects = self.samples.entry(*figure).or_default();
            subjects.entry(subject.to_owned()).or_default().insert(round, *value);
        }
    }

    /// Adds what could not be measured.
    pub fn refuse(&mut self, round: usize, subject: &str, reason: &str) {
        eprintln!("  round {}, {subject}: {reason}", round + 1);
        let reason = without_command(reason);
        self.refusals.push(format!("{subject}, round {}: {reason}", round + 1));
    }

    /// The ratios of a subject to the base, or of the base to the best peer, round by round.
    fn ratio(&self, figure: Figure, subject: &str) -> Option<Summary> {
        let samples = &self.samples[&figure];
        let of = |subject: &str| samples.get(subject);
        let base = of(&self.base)?;
        if !self.peers.is_empty() {
            if subject != self.base {
                return None;
            }
            let best = |round: &usize| {
                let rates = self.peers.iter().filter_map(|peer| of(peer)?.get(round).copied());
                rates.reduce(f64::max)
            };
            let ratios = base.iter().filter_map(|(round, value)| Some(value / best(round)?));
            return Summary::of(&ratios.collect::<Vec<f64>>());
        }
        if subject == self.base {
            return None;
        }
        let ratios = of(subject)?.iter().filter_map(|(round, value)| {
            let base = base.get(round).filter(|base| **base > 0.0)?;
            Some(value / base)
        });
        Summary::of(&ratios.collect::<Vec<f64>>())
    }

    fn markdown(&self) -> String {
        let mut head = vec!["Figure".to_owned()];
        for subject in &self.subjects {
            head.push(subject.clone());
            if self.has_ratio(subject) {
                let to = if self.peers.is_empty() { "ratio" } else { "to the best peer" };
                head.push(to.to_owned());
            }
        }
        let mut rows = vec![head];
        for (figure, values) in &self.samples {
            let mut row = vec![figure.label().to_owned()];
            for subject in &self.subjects {
                let all: Vec<f64> =
                    values.get(subject).into_iter().flat_map(BTreeMap::values).copied().collect();
                row.push(Summary::of(&all).map_or("-".to_owned(), spread));
                if self.has_ratio(subject) {
                    let ratio = self.ratio(*figure, subject);
                    row.push(ratio.map_or("-".to_owned(), |ratio| format!("{:.2}", ratio.median)));
                }
            }
            rows.push(row);
        }
        let mut text = format!("**{}**\n\n{}", self.title, aligned(&rows));
        for (peer, version) in &self.versions {
            let _ = write!(text, "\n{peer}: {version}.");
        }
        for refusal in &self.refusals {
            let _ = write!(text, "\nNot measured: {refusal}.");
        }
        for remark in &self.remarks {
            let _ = write!(text, "\n{remark}");
        }
        text
    }

    fn has_ratio(&self, subject: &str) -> bool {
        (subject == self.base) != self.peers.is_empty()
    }
}

/// Median, least and greatest, with decimals where they matter.
pub fn spread(of: Summary) -> String {
    let show = |value: f64| if value < 10.0 { format!("{value:.2}") } else { grouped(value) };
    format!("{} ({} - {})", show(of.median), show(of.min), show(of.max))
}

impl Report {
    /// Nothing measured yet.
    pub fn new(machine: Machine, rounds: usize, command: Vec<String>) -> Report {
        Report { machine, rounds, command, sections: Vec::new() }
    }

    /// For people.
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "{} `forebay-bench {}`: {} rounds, medians (least - greatest), ratios within a round.\n",
            self.machine.describe(),
            self.command.join(" "),
            self.rounds
        );
        for section in self.sections.iter().filter(|section| !section.samples.is_empty()) {
            let _ = write!(text, "\n{}\n", section.markdown().trim_end());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_to_the_base_or_to_the_best_peer() {
        let mut sections = Vec::new();
        let section = Section::begin(&mut sections, "One", "a");
        for (round, factor) in [(0, 1.0), (1, 10.0)] {
            section.note(round, "a", &Figures::from([(Figure::Create, 100.0 * factor)]));
            section.note(round, "b", &Figures::from([(Figure::Create, 97.0 * factor)]));
        }
        assert_eq!(section.ratio(Figure::Create, "b").unwrap().median, 0.97);
        assert!(section.ratio(Figure::Create, "a").is_none());
        let text = section.markdown();
        assert!(text.contains("| 0.97 |") || text.contains("0.97 |"), "{text}");
        section.peers = vec!["b".to_owned(), "c".to_owned()];
        section.note(0, "c", &Figures::from([(Figure::Create, 50.0)]));
        section.note(1, "c", &Figures::from([(Figure::Create, 500.0)]));
        let best = section.ratio(Figure::Create, "a").unwrap();
        assert!((best.median - 100.0 / 97.0).abs() < 1e-9 && best.min == best.max);
        assert!(section.ratio(Figure::Create, "c").is_none());
    }
}
