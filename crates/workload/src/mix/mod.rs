//! Mixes: workloads of many jobs, read from a file.
//!
//! A mix says which data sets are made first ([`Input`]), which classes of jobs there are ([`Class`]),
//! each a program and how many of them, and how they are spread over time: in stages, one after another
//! ([`StageSpec`]), and there all at once as far as slots allow, or as sessions ([`Sessions`]). It is
//! written down at the size of the study that it comes from; [`Plan`] takes it at a scale. The format
//! is described in `docs/formats/mix.md`.
//!
//! The mixes of the published studies are part of the program: [`Mix::names`], [`Mix::built_in`].

mod parameters;
mod plan;

pub use parameters::Parameter;
pub use plan::{Options, Plan, PlannedInput, PlannedJob, PlannedStage, SpaceNeed};

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::program::NamedStep;
use forebay_analytics::amount::{Count, Scale, Size};

/// The mixes that are part of the program, by name.
const BUILT_IN: &[(&str, &str)] = &[
    ("mixed", include_str!("../../mixes/mixed.toml")),
    ("calibration", include_str!("../../mixes/calibration.toml")),
    ("sessions", include_str!("../../mixes/sessions.toml")),
    ("scaling", include_str!("../../mixes/scaling.toml")),
    ("probe", include_str!("../../mixes/probe.toml")),
    ("random", include_str!("../../mixes/random.toml")),
    ("lakehouse", include_str!("../../mixes/lakehouse.toml")),
];

/// A workload of many jobs.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mix {
    /// What it is called.
    pub name: String,
    /// A line about it.
    pub title: String,
    /// Where it comes from, with the figures published there.
    pub study: String,
    /// What a reader of results must know: choices, disagreements in the source.
    #[serde(default)]
    pub notes: Vec<String>,
    /// What a run takes that does not say otherwise.
    pub defaults: Defaults,
    /// What may be set for a run besides scale and numbers; see [`Parameter`].
    #[serde(default)]
    pub parameters: BTreeMap<String, Parameter>,
    /// Page sizes and memory of all programs.
    #[serde(default)]
    pub buffers: BufferSizes,
    /// Data sets made before the jobs start.
    #[serde(default, rename = "input")]
    pub inputs: Vec<Input>,
    /// How jobs are dealt to sessions; without it every job is due at the start of its stage.
    #[serde(default)]
    pub sessions: Option<Sessions>,
    /// The stages; a single one if there are none.
    #[serde(default, rename = "stage")]
    pub stages: Vec<StageSpec>,
    /// The classes of jobs.
    #[serde(rename = "class")]
    pub classes: Vec<Class>,
}

/// What a run takes that does not say otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Defaults {
    /// The scale.
    pub scale: Scale,
    /// Logical nodes.
    #[serde(default = "one")]
    pub nodes: u32,
    /// Jobs at once on each node; as many as there are sessions on it if left out.
    #[serde(default)]
    pub concurrent: Option<u32>,
    /// Sessions.
    #[serde(default)]
    pub sessions: Option<u32>,
}

fn one() -> u32 {
    1
}

/// Page sizes and memory of all programs of a mix.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BufferSizes {
    /// Page size of data sets (BUFSIZE).
    pub page_bytes: Size,
    /// Memory of a sort or join (SORTSIZE).
    pub sort_memory: Size,
    /// Memory of everything else (MEMSIZE).
    pub memory: Size,
}

impl Default for BufferSizes {
    fn default() -> BufferSizes {
        let buffers = crate::program::Buffers::default();
        BufferSizes {
            page_bytes: buffers.page_bytes.into(),
            sort_memory: buffers.sort_memory.into(),
            memory: buffers.memory.into(),
        }
    }
}

/// A data set, or several, made before the jobs start; the jobs only read it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// What it is called.
    pub name: String,
    /// How often it is made.
    #[serde(default)]
    pub for_each: ForEach,
    /// How it is made.
    #[serde(rename = "step")]
    pub steps: Vec<NamedStep>,
}

/// How often an input is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ForEach {
    /// Once, for all jobs.
    #[default]
    Run,
    /// For each job that may run at once in the largest stage; `{number}` in a path tells them apart, and is
    /// that of the jobs of a class with one job for each slot.
    Slot,
}

/// Jobs at once on each node in a stage.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Concurrent {
    /// So many.
    Number(u32),
    /// A part of those of the run, rounded, and at least one.
    Part {
        /// Above 0 to 1.
        part: f64,
    },
}

impl Concurrent {
    /// How many, of a run with `all`.
    fn of(self, all: u32) -> u32 {
        match self {
            Concurrent::Number(number) => number,
            // A part of a small number is one.
            Concurrent::Part { part } => ((f64::from(all) * part).round() as u32).max(1),
        }
    }
}

/// How jobs are dealt to sessions: each session runs its jobs one after another.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sessions {
    /// Jobs of all classes together...
    pub jobs: u64,
    /// ...at this number of sessions; other numbers of sessions have proportionally many.
    pub at: u32,
    /// The sessions start evenly spread over so many seconds.
    pub start_over_seconds: Count,
}

/// A stage: its jobs run at once, and the next begins when all have ended.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageSpec {
    /// What it is called.
    pub name: String,
    /// Logical nodes, instead of the run's.
    #[serde(default)]
    pub nodes: Option<u32>,
    /// Sessions, instead of the run's.
    #[serde(default)]
    pub sessions: Option<u32>,
    /// Jobs at once on each node, instead of the run's.
    #[serde(default)]
    pub concurrent: Option<Concurrent>,
}

/// What a class of jobs asks most of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// Input and output.
    Io,
    /// Processor time.
    Computation,
    /// Memory.
    Memory,
}

/// Jobs that run the same program.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// What it is called.
    pub name: String,
    /// A line about it.
    #[serde(default)]
    pub title: String,
    /// What it asks most of.
    pub kind: JobKind,
    /// How many there are.
    pub jobs: Jobs,
    /// The stages in which they run; all if left out.
    #[serde(default)]
    pub stages: Option<Vec<String>>,
    /// Space that each job needs besides the inputs.
    #[serde(default)]
    pub space: Space,
    /// What each job does.
    #[serde(rename = "step")]
    pub steps: Vec<NamedStep>,
}

/// How many jobs a class has in a stage.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Jobs {
    /// So many on each node.
    PerNode(Count),
    /// So many in all.
    PerRun(Count),
    /// One for each job that may run at once.
    PerSlot,
    /// A share of the jobs of all sessions: this number over that of all classes.
    Share(u64),
}

/// Space that a job needs at most, besides the inputs.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Space {
    /// What stays after the job.
    pub data: Size,
    /// What is in data only while the job runs.
    pub data_meanwhile: Size,
    /// Temporary data sets.
    pub work: Size,
    /// Utility files.
    pub util: Size,
}

impl Default for Space {
    fn default() -> Space {
        let nothing = Size::Fixed(forebay_base::ByteSize(0));
        Space { data: nothing, data_meanwhile: nothing, work: nothing, util: nothing }
    }
}

impl Mix {
    /// Names of the mixes that are part of the program.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// The text of a mix that is part of the program.
    #[must_use]
    pub fn built_in(name: &str) -> Option<&'static str> {
        BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
    }

    /// Reads a mix; `settings` are parameters that take another value than the default. `source` is the
    /// file's name, for messages.
    ///
    /// # Errors
    /// [`Error::Mix`] with the line if the text is no mix; [`Error::Parameter`] if a parameter does not
    /// exist or cannot have its value.
    pub fn parse(source: &str, text: &str, settings: &[(String, String)]) -> Result<Mix> {
        let whole = parameters::substitute(source, text, settings)?;
        let parsed: std::result::Result<Mix, _> = toml::from_str(&whole);
        let mut mix = parsed.map_err(|error| {
            blamed(source, text, settings).unwrap_or_else(|| refuse(source, &error))
        })?;
        for (name, value) in settings {
            if let Some(parameter) = mix.parameters.get_mut(name) {
                parameter.default = parameters::value(value);
            }
        }
        mix.check().map_err(|reason| Error::Mix { file: source.to_owned(), reason })?;
        Ok(mix)
    }

    fn check(&self) -> std::result::Result<(), String> {
        if self.classes.is_empty() {
            return Err("has no class of jobs".to_owned());
        }
        unique("class", self.classes.iter().map(|class| &class.name))?;
        unique("input", self.inputs.iter().map(|input| &input.name))?;
        unique("stage", self.stages.iter().map(|stage| &stage.name))?;
        for stage in &self.stages {
            if let Some(Concurrent::Part { part }) = stage.concurrent
                && !(part > 0.0 && part <= 1.0)
            {
                return Err(format!(
                    "stage {}: concurrent.part = {part} is not above 0 and up to 1",
                    stage.name
                ));
            }
        }
        for class in &self.classes {
            for wanted in class.stages.iter().flatten() {
                if !self.stages.iter().any(|stage| stage.name == *wanted) {
                    return Err(format!("class {}: there is no stage \"{wanted}\"", class.name));
                }
            }
            let shared = matches!(class.jobs, Jobs::Share(_));
            if shared != self.sessions.is_some() {
                return Err(format!(
                    "class {}: jobs are a share if, and only if, the mix has sessions",
                    class.name
                ));
            }
        }
        match (&self.sessions, self.defaults.sessions, self.defaults.concurrent) {
            (Some(sessions), _, _) if sessions.at == 0 => Err("sessions.at is 0".to_owned()),
            (Some(_), None, _) => Err("defaults.sessions is missing".to_owned()),
            (None, _, None) => Err("defaults.concurrent is missing".to_owned()),
            _ => Ok(()),
        }
    }
}

/// The parameter with which the mix cannot be read, if it can be read without any: a line of the mix tells
/// nothing to who has set a parameter.
fn blamed(source: &str, text: &str, settings: &[(String, String)]) -> Option<Error> {
    let fault = |settings: &[(String, String)]| {
        let text = parameters::substitute(source, text, settings).ok()?;
        toml::from_str::<Mix>(&text).err()
    };
    if fault(&[]).is_some() {
        return None;
    }
    settings.iter().find_map(|setting| {
        let reason = fault(std::slice::from_ref(setting))?.message().to_owned();
        let (name, value) = setting.clone();
        Some(Error::Parameter { name, value, reason })
    })
}

fn refuse(source: &str, error: &toml::de::Error) -> Error {
    Error::Mix { file: source.to_owned(), reason: error.to_string() }
}

/// Names are part of file names and of job names.
fn unique<'a>(
    what: &str,
    names: impl Iterator<Item = &'a String>,
) -> std::result::Result<(), String> {
    let mut seen = HashSet::new();
    for name in names {
        let fit = |c: char| c.is_ascii_alphanumeric() || "-_. ".contains(c);
        if name.is_empty() || name.starts_with('.') || !name.chars().all(fit) {
            return Err(format!("{what} \"{name}\": use letters, digits and -_. for names"));
        }
        if !seen.insert(name) {
            return Err(format!("{what} \"{name}\" is defined twice"));
        }
    }
    Ok(())
}
