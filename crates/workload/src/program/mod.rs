//! Programs: chains of steps, read from a file and run one after another.
//!
//! ```toml
//! name = "sort and summarise"
//!
//! [[step]]
//! name = "sort by region"             # the kind of the step if left out
//! [step.do.sort]
//! input = "data/sales"
//! output = "work/sorted"
//! util = "util"
//! by = [{ column = "region" }]
//!
//! [[step]]
//! table = "data/regions-{job}.csv"    # where its table goes, if it makes one
//! [step.do.summary]
//! input = "work/sorted"
//! class = ["region"]
//! analysis = ["amount"]
//! ```
//!
//! Paths start with the name of an area: `data` for what stays, `work` for the session, `util` for
//! utility files. `{job}` in a path is the name of the job, so that jobs of one program do not meet,
//! `{class}` and `{number}` are the name of its class and its number in it. What a step leaves open
//! (page size, sort memory) the [`Context`] says for all of them.

mod step;

pub use forebay_analytics::step::{Action, Buffers, Context, Job, Outcome, Places};
pub use step::Step;

use std::path::PathBuf;

use forebay_analytics::step::Progress;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::resource::{Meter, ResourceRecord};

/// A chain of steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// What it is called.
    pub name: String,
    /// The steps in order.
    #[serde(rename = "step")]
    pub steps: Vec<NamedStep>,
}

/// One step of a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedStep {
    /// What it is called; its kind if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Where the step's table is written as CSV, if it makes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<PathBuf>,
    /// What it does.
    #[serde(rename = "do")]
    pub step: Step,
}

/// What a step did and used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// The kind of the step, such as `sort`.
    pub kind: String,
    /// Seconds from the start of the program to the start of the step.
    pub start_seconds: f64,
    /// What it used.
    pub resources: ResourceRecord,
    /// What it found or measured.
    pub outcome: Outcome,
}

impl NamedStep {
    /// What the step is called.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(self.step.kind())
    }
}

impl Program {
    /// Runs the steps in order; `started` hears of each before it runs and `ended` after.
    ///
    /// # Errors
    /// The first error of a step, with the step's name; later steps do not run.
    pub fn run(
        &self,
        context: &Context<'_>,
        started: &mut dyn FnMut(usize, &NamedStep),
        ended: &mut dyn FnMut(StepRecord),
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        self.run_from(0, context, started, ended, progress)
    }

    /// [`Program::run`] without the first steps, which have run before. What is left of them is all that
    /// later steps see of them: random numbers depend on the seed and the purpose alone.
    ///
    /// # Errors
    /// As [`Program::run`].
    pub fn run_from(
        &self,
        first: usize,
        context: &Context<'_>,
        started: &mut dyn FnMut(usize, &NamedStep),
        ended: &mut dyn FnMut(StepRecord),
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        let begin = context.clock.instant();
        for (number, named) in self.steps.iter().enumerate().skip(first) {
            started(number, named);
            let start = context.clock.instant().saturating_duration_since(begin);
            let failed =
                |source| Error::Step { number: number + 1, name: named.name().to_owned(), source };
            let meter = Meter::start(context.clock);
            let outcome = named.run(context, progress).map_err(failed)?;
            ended(StepRecord {
                kind: named.step.kind().to_owned(),
                start_seconds: start.as_secs_f64(),
                resources: meter.finish(named.name(), outcome.rows),
                outcome,
            });
        }
        Ok(())
    }
}

impl NamedStep {
    fn run(
        &self,
        context: &Context<'_>,
        progress: &mut Progress<'_>,
    ) -> forebay_analytics::Result<Outcome> {
        let mut step = self.step.clone();
        step.action_mut().prepare(context)?;
        let outcome = step.action().perform(context, progress)?;
        if let (Some(path), Some(table)) = (&self.table, &outcome.table) {
            let mut path = path.clone();
            context.resolve(&mut path)?;
            table.write_csv(&path)?;
        }
        Ok(outcome)
    }
}
