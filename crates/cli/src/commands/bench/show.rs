//! `forebay bench show`.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Result;
use forebay_workload::mix::{JobKind, Mix, Plan, PlannedStage, SpaceNeed};
use serde::Serialize;

use super::workload::WorkloadArguments;
use crate::output::{Table, bytes};

/// Show a workload: its jobs, sizes and plan at a scale.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay bench show mixed
  forebay bench show sessions --scale 1 --sessions 80
  forebay bench show calibration --scale 0.01 --plan
  forebay bench show mixed --text > mine.toml        write the workload to a file, to change it")]
pub struct Show {
    #[command(flatten)]
    workload: WorkloadArguments,
    /// Print every job with its node, session and time.
    #[arg(long)]
    plan: bool,
    /// Print the workload's file, for a workload that comes with Forebay.
    #[arg(long, conflicts_with_all = ["plan", "json"])]
    text: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A workload at a scale.
#[derive(Serialize)]
struct Shown<'a> {
    name: &'a str,
    title: &'a str,
    study: &'a str,
    notes: &'a [String],
    scale: f64,
    seed: u64,
    page_bytes: u64,
    sort_memory_bytes: u64,
    memory_bytes: u64,
    parameters: BTreeMap<&'a str, ShownParameter<'a>>,
    inputs: BTreeMap<String, u64>,
    space: ShownSpace,
    stages: Vec<ShownStage<'a>>,
}

#[derive(Serialize)]
struct ShownParameter<'a> {
    value: String,
    help: &'a str,
}

#[derive(Serialize)]
struct ShownSpace {
    data_bytes: u64,
    work_bytes: u64,
    util_bytes: u64,
}

#[derive(Serialize)]
struct ShownStage<'a> {
    name: &'a str,
    nodes: u32,
    sessions: Option<u32>,
    concurrent: u32,
    classes: Vec<ShownClass<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    jobs: Vec<ShownJob<'a>>,
}

#[derive(Serialize)]
struct ShownClass<'a> {
    name: &'a str,
    title: &'a str,
    kind: JobKind,
    jobs: usize,
    steps: Vec<&'a str>,
    space: ShownSpace,
}

#[derive(Serialize)]
struct ShownJob<'a> {
    name: &'a str,
    node: u32,
    session: Option<u32>,
    due_seconds: f64,
    after: Option<&'a str>,
}

impl From<SpaceNeed> for ShownSpace {
    fn from(need: SpaceNeed) -> ShownSpace {
        ShownSpace { data_bytes: need.data, work_bytes: need.work, util_bytes: need.util }
    }
}

impl Show {
    pub fn run(self) -> Result<ExitCode> {
        if self.text {
            out!("{}", self.workload.text()?);
            return Ok(ExitCode::SUCCESS);
        }
        let (mix, plan) = self.workload.plan(None)?;
        let shown = self.shown(&mix, &plan);
        if self.json {
            crate::output::put_json(&shown)?;
        } else {
            shown.print()?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn shown<'a>(&self, mix: &'a Mix, plan: &'a Plan) -> Shown<'a> {
        let parameter = |(name, parameter): (&'a String, &'a forebay_workload::mix::Parameter)| {
            (name.as_str(), ShownParameter { value: parameter.text(), help: &parameter.help })
        };
        Shown {
            name: &mix.name,
            title: &mix.title,
            study: &mix.study,
            notes: &mix.notes,
            scale: plan.scale.get(),
            seed: plan.seed,
            page_bytes: plan.buffers.page_bytes.0,
            sort_memory_bytes: plan.buffers.sort_memory.0,
            memory_bytes: plan.buffers.memory.0,
            parameters: mix.parameters.iter().map(parameter).collect(),
            inputs: plan.inputs.iter().map(|input| (input.name(), input.bytes)).collect(),
            space: plan.space().into(),
            stages: plan.stages.iter().map(|stage| self.shown_stage(mix, stage)).collect(),
        }
    }

    fn shown_stage<'a>(&self, mix: &'a Mix, stage: &'a PlannedStage) -> ShownStage<'a> {
        let classes = mix.classes.iter().filter_map(|class| {
            let jobs = stage.jobs.iter().filter(|job| job.job.class == class.name);
            let space = jobs.clone().next()?.space;
            Some(ShownClass {
                name: &class.name,
                title: &class.title,
                kind: class.kind,
                jobs: jobs.count(),
                steps: class.steps.iter().map(|step| step.step.kind()).collect(),
                space: space.into(),
            })
        });
        let job = |job: &'a forebay_workload::mix::PlannedJob| ShownJob {
            name: &job.job.name,
            node: job.node,
            session: job.session,
            due_seconds: job.due_seconds,
            after: job.after.map(|before| stage.jobs[before].job.name.as_str()),
        };
        ShownStage {
            name: &stage.name,
            nodes: stage.nodes,
            sessions: stage.sessions,
            concurrent: stage.concurrent,
            classes: classes.collect(),
            jobs: if self.plan { stage.jobs.iter().map(job).collect() } else { Vec::new() },
        }
    }
}

impl Shown<'_> {
    fn print(&self) -> Result<()> {
        outln!("{}: {}\n{}", self.name, self.title, self.study);
        for note in self.notes {
            outln!("Note: {note}");
        }
        outln!(
            "\nscale {}, seed {}; pages of {}, {} for a sort, {} for the rest",
            self.scale,
            self.seed,
            bytes(self.page_bytes),
            bytes(self.sort_memory_bytes),
            bytes(self.memory_bytes)
        );
        outln!(
            "space needed: {} in data, {} in work, {} in util",
            bytes(self.space.data_bytes),
            bytes(self.space.work_bytes),
            bytes(self.space.util_bytes)
        );
        if !self.parameters.is_empty() {
            let mut table = Table::new(&["parameter", "value", "meaning"]);
            for (name, parameter) in &self.parameters {
                let help = parameter.help.to_owned();
                table.row(vec![(*name).to_owned(), parameter.value.clone(), help]);
            }
            out!("\n{}", table.render());
        }
        if !self.inputs.is_empty() {
            let mut table = Table::new(&["input", "bytes"]);
            for (name, size) in &self.inputs {
                table.row(vec![name.clone(), bytes(*size)]);
            }
            out!("\n{}", table.render());
        }
        self.stages.iter().try_for_each(ShownStage::print)
    }
}

impl ShownStage<'_> {
    fn print(&self) -> Result<()> {
        let sessions = self.sessions.map(|n| format!(", {n} sessions")).unwrap_or_default();
        outln!(
            "\nstage {}: {} node{}{sessions}, up to {} jobs at once on each",
            self.name,
            self.nodes,
            if self.nodes == 1 { "" } else { "s" },
            self.concurrent
        );
        let mut table = Table::new(&["class", "jobs", "kind", "steps", "description"]);
        for class in &self.classes {
            table.row(vec![
                class.name.to_owned(),
                class.jobs.to_string(),
                kind(class.kind).to_owned(),
                class.steps.join(" "),
                class.title.to_owned(),
            ]);
        }
        out!("{}", table.render());
        if !self.jobs.is_empty() {
            let mut table = Table::new(&["due s", "job", "node", "session", "after"]);
            for job in &self.jobs {
                table.row(vec![
                    format!("{:.1}", job.due_seconds),
                    job.name.to_owned(),
                    job.node.to_string(),
                    job.session.map(|n| n.to_string()).unwrap_or_default(),
                    job.after.unwrap_or_default().to_owned(),
                ]);
            }
            out!("\n{}", table.render());
        }
        Ok(())
    }
}

fn kind(kind: JobKind) -> &'static str {
    match kind {
        JobKind::Io => "I/O",
        JobKind::Computation => "computation",
        JobKind::Memory => "memory",
    }
}
