//! Which workload, at which size: options that several commands share.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use forebay_analytics::amount::Scale;
use forebay_workload::mix::{Mix, Options, Plan};

use crate::commands::step::BufferArguments;

/// A workload and its size.
#[derive(clap::Args)]
pub struct WorkloadArguments {
    /// Name of the workload; `forebay bench list` lists them.
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    workload: Option<String>,
    /// File of your own workload (docs/formats/mix.md).
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Size relative to the published study, which is 1; 0.01 is a hundredth of it.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    scale: Option<Scale>,
    /// Number of sessions, for workloads that have sessions.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    sessions: Option<u32>,
    /// Number of logical nodes: jobs are counted and placed as on that many machines.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    nodes: Option<u32>,
    /// Number of concurrent jobs on each node.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    concurrent: Option<u32>,
    /// Seed of the random numbers; the same seed gives the same data and the same plan.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Set a parameter of the workload; `forebay bench show` lists them.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = setting)]
    settings: Vec<(String, String)>,
    #[command(flatten)]
    buffers: BufferArguments,
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (name, value) =
        text.split_once('=').ok_or_else(|| "expected NAME=VALUE, such as block=1MiB".to_owned())?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

impl WorkloadArguments {
    /// Reads the workload and plans it; `concurrent` stands for --concurrent where it is not given.
    pub fn plan(&self, concurrent: Option<u32>) -> Result<(Mix, Plan)> {
        let mix = self.mix()?;
        if self.sessions.is_some() && mix.sessions.is_none() {
            bail!("--sessions: {} has no sessions; use --concurrent instead", mix.name);
        }
        let plan = mix.plan(&Options {
            scale: self.scale,
            nodes: self.nodes,
            concurrent: self.concurrent.or(concurrent),
            sessions: self.sessions,
            page_bytes: self.buffers.page_size,
            sort_memory: self.buffers.sort_memory,
            memory: self.buffers.memory,
            seed: self.seed,
        });
        // What was set may be the cause.
        let set = || {
            let each = self.settings.iter().map(|(name, value)| format!("--set {name}={value}"));
            each.collect::<Vec<_>>().join(" ")
        };
        let plan = match plan {
            Err(error) if !self.settings.is_empty() => {
                return Err(anyhow::Error::from(error).context(set()));
            }
            plan => plan?,
        };
        Ok((mix, plan))
    }

    /// The text of a workload that comes with Forebay.
    pub fn text(&self) -> Result<&'static str> {
        let name = self.workload.as_deref().context("name a workload that comes with Forebay")?;
        let Some(text) = Mix::built_in(name) else {
            let known: Vec<&str> = Mix::names().collect();
            bail!("there is no workload \"{name}\"; choose from {}", known.join(", "));
        };
        Ok(text)
    }

    fn mix(&self) -> Result<Mix> {
        if let Some(path) = &self.file {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read the workload {}", path.display()))?;
            return Ok(Mix::parse(&path.display().to_string(), &text, &self.settings)?);
        }
        let name = self.workload.as_deref().unwrap_or_default();
        Ok(Mix::parse(name, self.text()?, &self.settings)?)
    }
}
