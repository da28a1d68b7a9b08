//! Studies side by side.
//!
//! The sides are the subjects of one study, whose rounds are interleaved, or several studies. Interleaved
//! rounds are paired: a ratio is taken in each round and its median and range are given, so that what
//! changes on the machine from round to round falls out. Other rounds are not: the ratio is that of the
//! medians, and its range goes from the least by the greatest to the greatest by the least. A difference
//! is only claimed if the range does not hold 1 and there are at least [`ROUNDS_MIN`] rounds on both
//! sides. Different workloads are refused; anything else that differs is a loud warning.

mod difference;
mod tables;

pub use difference::{Difference, Outcome};

use serde::Serialize;

use crate::error::{Error, Result};
use crate::record::{Exit, Record, State};
use crate::statistics::Spread;
use crate::summary::{Better, Figure, Level, RunSummary, SubjectSummary, Summary, Verdict};

/// Rounds on each side without which no difference is claimed.
pub const ROUNDS_MIN: usize = 3;

/// Studies side by side; the first is what the others are compared with.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// What is compared.
    pub sides: Vec<Side>,
    /// How rounds belong together.
    pub pairing: Pairing,
    /// What makes the comparison doubtful, then what it comes to.
    pub verdicts: Vec<Verdict>,
    /// The figures that any side has.
    pub figures: Vec<Compared>,
}

/// One side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Side {
    /// What it is called in tables.
    pub label: String,
    /// Where its data lie, for people.
    pub storage: String,
    /// When its study began.
    pub started: String,
    /// Version of Forebay.
    pub version: String,
    /// How many rounds count.
    pub rounds: usize,
}

/// How the rounds of two sides belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pairing {
    /// They were run in turn in one study: ratios are taken round by round.
    ByRound,
    /// They were run apart: ratios are those of medians.
    Unpaired,
}

/// A figure on all sides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// What it is; without value.
    pub figure: Figure,
    /// Median and spread of each side; `None` if it has no such figure.
    pub spreads: Vec<Option<Spread>>,
    /// Each side after the first against the first.
    pub differences: Vec<Option<Difference>>,
}

/// A side while it is compared.
struct Compare<'a> {
    side: Side,
    record: &'a Record,
    subject: SubjectSummary,
    /// The runs of the rounds that count.
    runs: Vec<RunSummary>,
}

impl Comparison {
    /// The subjects of one study.
    ///
    /// # Errors
    /// [`Error::Incomparable`] if it has fewer than two with a run.
    pub fn of_subjects(record: &Record) -> Result<Comparison> {
        Comparison::of(&sides("", record), Pairing::ByRound)
    }

    /// Studies, each with a name; every subject is a side.
    ///
    /// # Errors
    /// [`Error::Incomparable`] if there are fewer than two sides or workloads differ.
    pub fn of_studies(studies: &[(&str, &Record)]) -> Result<Comparison> {
        if let [first, others @ ..] = studies {
            let name = |study: &(&str, &Record)| study.1.workload.name.clone();
            if let Some(other) = others.iter().find(|other| name(other) != name(first)) {
                return Err(Error::Incomparable {
                    reason: format!(
                        "{} is of the workload \"{}\" and {} of \"{}\"",
                        first.0,
                        name(first),
                        other.0,
                        name(other)
                    ),
                });
            }
        }
        let all: Vec<Compare<'_>> =
            studies.iter().flat_map(|(name, record)| sides(name, record)).collect();
        Comparison::of(&all, Pairing::Unpaired)
    }

    fn of(sides: &[Compare<'_>], pairing: Pairing) -> Result<Comparison> {
        let [first, others @ ..] = sides else {
            return Err(Error::Incomparable { reason: "there is nothing to compare".to_owned() });
        };
        if others.is_empty() {
            let reason = format!("{} is the only side", first.side.label);
            return Err(Error::Incomparable { reason });
        }
        let figures = figures(sides, pairing);
        let mut verdicts = warnings(first, others);
        let labels: Vec<&str> = sides.iter().map(|side| side.side.label.as_str()).collect();
        verdicts.extend(difference::verdicts(&labels, &figures, pairing));
        let sides = sides.iter().map(|side| side.side.clone()).collect();
        Ok(Comparison { sides, pairing, verdicts, figures })
    }
}

/// A side for every subject of a study that has a run.
fn sides<'a>(name: &str, record: &'a Record) -> Vec<Compare<'a>> {
    let summary = Summary::of(record);
    let several = summary.subjects.len() > 1;
    let side = |subject: &SubjectSummary| {
        let label = match (name.is_empty(), several) {
            (true, _) => subject.label.clone(),
            (false, false) => name.to_owned(),
            (false, true) => format!("{name} {}", subject.label),
        };
        let counts = |run: &&RunSummary| {
            run.subject == subject.subject && subject.rounds.contains(&run.round)
        };
        Compare {
            side: Side {
                label,
                storage: subject.storage.clone(),
                started: record.started.clone(),
                version: record.version.clone(),
                rounds: subject.rounds.len(),
            },
            record,
            subject: subject.clone(),
            runs: summary.runs.iter().filter(counts).cloned().collect(),
        }
    };
    summary.subjects.iter().map(side).collect()
}

/// Every figure that any side has, in the order of the first that has it.
fn figures(sides: &[Compare<'_>], pairing: Pairing) -> Vec<Compared> {
    let mut figures: Vec<Compared> = Vec::new();
    let values: Vec<Vec<(u32, Vec<Figure>)>> = sides
        .iter()
        .map(|side| side.runs.iter().map(|run| (run.round, run.figures())).collect())
        .collect();
    for spread in sides.iter().flat_map(|side| &side.subject.figures) {
        let key = &spread.figure.key;
        if figures.iter().any(|known| known.figure.key == *key) {
            continue;
        }
        let of_side = |place: usize| -> Vec<(u32, f64)> {
            let rounds = values[place].iter();
            let value = |figures: &[Figure]| figures.iter().find(|one| one.key == *key)?.value;
            rounds.filter_map(|(round, figures)| Some((*round, value(figures)?))).collect()
        };
        let first = of_side(0);
        figures.push(Compared {
            figure: Figure { value: None, ..spread.figure.clone() },
            spreads: sides.iter().map(|side| side.spread(key)).collect(),
            differences: (1..sides.len())
                .map(|place| Difference::of(&first, &of_side(place), pairing, spread.figure.better))
                .collect(),
        });
    }
    figures.retain(|compared| compared.spreads.iter().any(Option::is_some));
    figures
}

impl Compare<'_> {
    /// Median and spread of a figure: over rounds, and of the real time of a class over all its jobs.
    fn spread(&self, key: &str) -> Option<Spread> {
        let Some(class) = class_of(key) else { return self.subject.spread(key) };
        let counts = |run: &&crate::record::Run| {
            run.subject == self.subject.subject && self.subject.rounds.contains(&run.round)
        };
        let jobs = self.record.runs.iter().filter(counts).flat_map(crate::record::Run::jobs);
        let ran = jobs.filter(|job| job.class == class && job.exit != Exit::NotStarted);
        Spread::of(ran.map(|job| job.usage.real_seconds))
    }
}

/// The class whose real time a figure is.
fn class_of(key: &str) -> Option<&str> {
    key.strip_prefix("class/")?.strip_suffix("/real_seconds")
}

/// What makes the comparison doubtful.
fn warnings(first: &Compare<'_>, others: &[Compare<'_>]) -> Vec<Verdict> {
    let mut warnings = Vec::new();
    for other in others {
        let (ours, theirs) = (described(first.record), described(other.record));
        for (level, what, value) in theirs {
            let before = ours.iter().find(|(_, same, _)| *same == what).map(|(_, _, value)| value);
            if before.is_some_and(|before| *before != value) {
                let text = format!(
                    "{what} differs: {} for {}, {value} for {}.",
                    before.map_or("", String::as_str),
                    first.side.label,
                    other.side.label
                );
                warnings.push(Verdict { level, topic: "Not comparable", text });
            }
        }
    }
    for side in std::iter::once(first).chain(others) {
        warnings.extend(doubts(side));
    }
    warnings
}

/// What must be alike in two studies, and how bad it is if it is not.
fn described(record: &Record) -> Vec<(Level, &'static str, String)> {
    let (workload, machine) = (&record.workload, &record.machine);
    let dropped = record.runs.iter().all(|run| run.cache.dropped);
    vec![
        (Level::Bad, "The scale", workload.scale.to_string()),
        (Level::Bad, "The page size", workload.buffers.page_bytes.to_string()),
        (Level::Bad, "The sort memory", workload.buffers.sort_memory.to_string()),
        (Level::Bad, "The memory of programs", workload.buffers.memory.to_string()),
        (Level::Bad, "The workload's parameters", listed(&workload.parameters)),
        (Level::Bad, "How many jobs ran at once", at_once(record)),
        (Level::Bad, "The processor", machine.processor.clone()),
        (Level::Bad, "The number of physical cores", machine.cores.to_string()),
        (Level::Bad, "The number of logical processors", machine.cpus.to_string()),
        (Level::Bad, "The machine's memory", format!("{} bytes", machine.memory_bytes)),
        (Level::Warning, "The host", machine.host.clone()),
        (Level::Warning, "The seed", workload.seed.to_string()),
        (Level::Warning, "The kernel", machine.kernel.clone()),
        (Level::Warning, "A host setting", listed(&machine.settings)),
        (Level::Warning, "The version", record.version.clone()),
        (
            Level::Warning,
            "The state of the page cache",
            if dropped { "emptied before each run" } else { "not emptied" }.to_owned(),
        ),
    ]
}

/// How the workload of a study ran: names and values. Only studies in which all of them are the same have figures that can be drawn as one
/// line over time, on a machine and a storage that may change meanwhile.
#[must_use]
pub fn conditions(record: &Record) -> Vec<(String, String)> {
    let (workload, own) = (&record.workload, |name: &str, value| (name.to_owned(), value));
    let stages = record.runs.first().map_or(&[][..], |run| &run.stages);
    let nodes: Vec<String> = stages.iter().map(|stage| stage.nodes.to_string()).collect();
    let dropped = record.runs.iter().all(|run| run.cache.dropped);
    let caches = if dropped { "emptied" } else { "not emptied" };
    let mut all = vec![
        own("scale", workload.scale.to_string()),
        own("jobs at once", at_once(record)),
        own("logical nodes", nodes.join(", ")),
        own("page cache", caches.to_owned()),
        own("page size", workload.buffers.page_bytes.to_string()),
        own("sort memory", workload.buffers.sort_memory.to_string()),
        own("memory of programs", workload.buffers.memory.to_string()),
    ];
    all.extend(workload.parameters.iter().map(|(name, value)| own(name, value.clone())));
    all
}

/// The most jobs at once of each stage, on all nodes together.
fn at_once(record: &Record) -> String {
    let stages = record.runs.first().map_or(&[][..], |run| &run.stages);
    let most = stages
        .iter()
        .map(|stage| (u64::from(stage.concurrent) * u64::from(stage.nodes)).to_string());
    most.collect::<Vec<_>>().join(", ")
}

/// `name=value` of all, or "none".
fn listed(values: &std::collections::BTreeMap<String, String>) -> String {
    if values.is_empty() {
        return "none".to_owned();
    }
    values.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// What makes one side doubtful by itself.
fn doubts(side: &Compare<'_>) -> Vec<Verdict> {
    let mut doubts = Vec::new();
    let mut push = |level, topic, text| doubts.push(Verdict { level, topic, text });
    let label = &side.side.label;
    if let State::Partial { reason } = &side.record.state {
        push(Level::Bad, "Partial", format!("{label} is of a partial study: {reason}."));
    }
    let failed: usize = side.runs.iter().map(|run| run.jobs.jobs - run.jobs.succeeded()).sum();
    if failed > 0 {
        push(Level::Bad, "Jobs", format!("{label}: {failed} jobs did not succeed."));
    }
    let mut caches = side.record.runs.iter().filter(|run| run.subject == side.subject.subject);
    if caches.any(|run| run.cache.fits_in_memory()) {
        let text = format!(
            "{label}: the working set fits in memory, so this may compare page caches, not storages."
        );
        push(Level::Warning, "Cache", text);
    }
    let cached = side.runs.iter().filter_map(|run| run.still_cached(side.record));
    if let Some((stage, part)) = cached.max_by(|a, b| a.1.total_cmp(&b.1))
        && part >= RunSummary::CACHED
    {
        let text = format!(
            "{label}: up to {:.0} % of the files were still in memory when the stage {stage} began to read, \
             although they should have been cold.",
            part * 100.0
        );
        push(Level::Bad, "Cache", text);
    }
    doubts
}

impl Better {
    /// What a figure that grew means.
    fn grown(self) -> Outcome {
        match self {
            Better::Higher => Outcome::Better,
            Better::Lower => Outcome::Worse,
            Better::Neither => Outcome::Higher,
        }
    }

    /// What a figure that shrank means.
    fn shrunk(self) -> Outcome {
        match self {
            Better::Higher => Outcome::Worse,
            Better::Lower => Outcome::Better,
            Better::Neither => Outcome::Lower,
        }
    }
}
