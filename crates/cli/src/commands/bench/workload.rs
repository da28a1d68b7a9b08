//! Which workload, at which size: options that several commands share.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use forebay_analytics::amount::Scale;
use forebay_study::environment::machine;
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
    /// Number of concurrent jobs on each node, or `cores`: the physical cores of this machine, divided by the largest number of logical
    /// nodes of a stage.
    #[arg(long, value_name = "N", value_parser = concurrent)]
    concurrent: Option<Concurrent>,
    /// Seed of the random numbers; the same seed gives the same data and the same plan.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Set a parameter of the workload; `forebay bench show` lists them.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = setting)]
    settings: Vec<(String, String)>,
    #[command(flatten)]
    buffers: BufferArguments,
}

/// How many jobs run at once on each node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Concurrent {
    /// This number of jobs.
    Jobs(u32),
    /// As many as there are physical cores.
    Cores,
}

fn concurrent(text: &str) -> Result<Concurrent, String> {
    if text == "cores" {
        return Ok(Concurrent::Cores);
    }
    let jobs = text.parse().ok().filter(|jobs| (1..=10_000).contains(jobs));
    jobs.map(Concurrent::Jobs).ok_or_else(|| "expected 1 to 10000, or cores".to_owned())
}

/// The jobs of each logical node of a machine with this number of cores.
fn jobs_of_node(cores: u32, plan: &Plan) -> u32 {
    let nodes = plan.stages.iter().map(|stage| stage.nodes).max().unwrap_or(1);
    (cores / nodes.max(1)).max(1)
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
        let jobs = match self.concurrent {
            Some(Concurrent::Jobs(jobs)) => Some(jobs),
            // The plan knows how many nodes there are.
            Some(Concurrent::Cores) => {
                Some(jobs_of_node(machine().cores, &self.planned(&mix, None)?))
            }
            None => concurrent,
        };
        let plan = self.planned(&mix, jobs)?;
        Ok((mix, plan))
    }

    fn planned(&self, mix: &Mix, concurrent: Option<u32>) -> Result<Plan> {
        if self.sessions.is_some() && mix.sessions.is_none() {
            bail!("--sessions: {} has no sessions; use --concurrent instead", mix.name);
        }
        let plan = mix.plan(&Options {
            scale: self.scale,
            nodes: self.nodes,
            concurrent,
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
        match plan {
            Err(error) if !self.settings.is_empty() => {
                Err(anyhow::Error::from(error).context(set()))
            }
            plan => Ok(plan?),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrent_jobs_are_a_number_or_the_cores_which_logical_nodes_share() {
        assert_eq!(concurrent("20"), Ok(Concurrent::Jobs(20)));
        assert_eq!(concurrent("cores"), Ok(Concurrent::Cores));
        for bad in ["0", "10001", "core", "-1", ""] {
            assert!(concurrent(bad).unwrap_err().contains("1 to 10000, or cores"), "{bad}");
        }
        let mix = Mix::parse("mixed", Mix::built_in("mixed").unwrap(), &[]).unwrap();
        let plan = |nodes| mix.plan(&Options { nodes: Some(nodes), ..Options::default() }).unwrap();
        assert_eq!(jobs_of_node(20, &plan(1)), 20);
        assert_eq!(jobs_of_node(20, &plan(4)), 5);
        assert_eq!(jobs_of_node(2, &plan(4)), 1);
    }
}
