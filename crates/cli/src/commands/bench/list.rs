//! `forebay bench list`.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use forebay_workload::mix::{Mix, Options};
use serde::Serialize;

use crate::output::{Table, bytes};

/// List the workloads.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay bench list
  forebay bench list --json")]
pub struct List {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A workload, at its default scale.
#[derive(Serialize)]
struct Line {
    name: &'static str,
    title: String,
    study: String,
    scale: f64,
    jobs: usize,
    input_bytes: u64,
    space_bytes: u64,
}

impl List {
    pub fn run(self) -> Result<ExitCode> {
        let lines = Mix::names().map(line).collect::<Result<Vec<Line>>>()?;
        if self.json {
            crate::output::put_json(&lines)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut table =
            Table::new(&["workload", "scale", "jobs", "inputs", "space", "description"]);
        for line in lines {
            table.row(vec![
                line.name.to_owned(),
                line.scale.to_string(),
                line.jobs.to_string(),
                bytes(line.input_bytes),
                bytes(line.space_bytes),
                line.title,
            ]);
        }
        out!("{}", table.render());
        outln!("\nSizes are at the default scale; scale 1 is the size of the published study.");
        Ok(ExitCode::SUCCESS)
    }
}

fn line(name: &'static str) -> Result<Line> {
    let text = Mix::built_in(name).context("a workload has a text")?;
    let mix = Mix::parse(name, text, &[])?;
    let plan = mix.plan(&Options::default())?;
    Ok(Line {
        name,
        scale: plan.scale.get(),
        jobs: plan.job_count(),
        input_bytes: plan.input_bytes(),
        space_bytes: plan.space().total(),
        title: mix.title,
        study: mix.study,
    })
}
