//! `forebay plan verify`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use forebay_advisor::plan::shown;
use forebay_analytics::amount::Scale;
use forebay_base::time::SystemClock;
use forebay_process::Accounting;
use forebay_study::Error;
use forebay_study::record::Record;
use forebay_study::run::{
    self as study, Areas, Caches, Leftovers, Observer as _, Order, Scratch, Slots,
};
use forebay_workload::mix::{Concurrent, Mix, Options, Plan, StageSpec};

use super::accuracy::{Accuracy, BASE};
use super::recorded;
use crate::commands::bench::watch::{INTERRUPTED, Watch};
use crate::commands::bench::{clean, result};
use crate::commands::step::install_engines;
use crate::output::{put_json, put_text};

/// The workload, without the stages that are predicted.
const WORKLOAD: &str = include_str!("verify.toml");
/// The stage that shows how much two runs of the same differ.
const AGAIN: &str = "1 node again";
/// Exit code if a prediction is further off than is aimed at.
const TOO_FAR_OFF: u8 = 1;

/// Measure how far the predictions of `forebay plan simulate` are off on this machine.
///
/// Runs sorts, regressions and streams of I/O below DIR: first on one logical node with one job at once, then on more nodes and with
/// more jobs at once. Predicts the latter from the former, and prints both with the errors. Before that it measures what the
/// processors and the storage give, because logical nodes share those of this machine. A run takes about 3 minutes on 2 processors, and
/// at most 8 GB below DIR. All files there are removed at the end, and at Ctrl-C. Other programs spoil the comparison: run it on an
/// idle machine. Exit codes: 0 all errors are within --within, 1 some are not, 2 refused or jobs failed, 130 interrupted.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay plan verify /mnt/forebay/data
  forebay plan verify /mnt/forebay/data --nodes 2,3,4,8 --concurrent 2,4
  forebay plan verify /mnt/xfs --scale 0.2               quicker, and less exact
  forebay plan verify --result plan-verify-20260102-030405     the table again
  forebay plan verify /mnt/xfs --json | jq '.lines[] | {stage, error}'")]
pub struct VerifyCommand {
    /// Directory on the storage to measure.
    #[arg(value_name = "DIR", required_unless_present = "result")]
    on: Option<PathBuf>,
    /// Numbers of logical nodes to measure and predict, with one job at once on each.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "2,3,4", value_parser = clap::value_parser!(u32).range(2..=64))]
    nodes: Vec<u32>,
    /// Numbers of jobs at once to measure and predict, on one node.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "2,3", value_parser = clap::value_parser!(u32).range(2..=64))]
    concurrent: Vec<u32>,
    /// Size of the jobs: 1 takes about 3 minutes on 2 processors.
    #[arg(long, value_name = "X", default_value = "1")]
    scale: Scale,
    /// Largest error that is accepted, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1000))]
    within: u32,
    /// Folder for the result [default: plan-verify-TIME].
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Show the result of an earlier run instead of measuring.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["on", "nodes", "concurrent", "scale", "out"])]
    result: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What was run, and where it is written down.
struct Ran {
    record: Record,
    folder: PathBuf,
}

impl VerifyCommand {
    pub fn run(self) -> Result<ExitCode> {
        let ran = match (&self.result, &self.on) {
            (Some(folder), _) => {
                Some(Ran { record: Record::read(folder)?, folder: folder.clone() })
            }
            (None, on) => self.measure(on.as_deref().context("no directory is given")?)?,
        };
        let Some(Ran { record, folder }) = ran else {
            note!("forebay: interrupted: nothing is left of the run");
            return Ok(ExitCode::from(INTERRUPTED));
        };
        let accuracy = Accuracy::of(&record).with_context(|| folder.display().to_string())?;
        let aim = f64::from(self.within) / 100.0;
        let is_within = accuracy.worst_error <= aim;
        if self.json {
            let mut value = serde_json::to_value(&accuracy)?;
            value["predicted_from"] = BASE.into();
            value["within"] = aim.into();
            value["is_within"] = is_within.into();
            value["disturbance"] = accuracy.machine.disturbance().into();
            value["result"] = folder.display().to_string().into();
            put_json(&value)?;
        } else {
            put_text(&text(&accuracy, &folder, self.within))?;
        }
        Ok(if is_within { ExitCode::SUCCESS } else { ExitCode::from(TOO_FAR_OFF) })
    }

    /// Makes the run; none if it was interrupted, of which nothing is left then.
    fn measure(&self, on: &Path) -> Result<Option<Ran>> {
        // SAFETY: ignoring a signal is always sound. A reader that is gone must not end the run before its files are removed.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        let cpus = std::thread::available_parallelism()?.get();
        let mix = mix(cpus, &self.nodes, &self.concurrent)?;
        let plan = mix.plan(&Options { scale: Some(self.scale), seed: 1, ..Options::default() })?;
        let subjects = [subject(on)?];
        Areas::check(&subjects, &plan.space()).map_err(|error| match error {
            Error::Space { .. } => anyhow::Error::from(error).context("try a smaller --scale"),
            other => other.into(),
        })?;
        clean::mention(&subjects);
        install_engines(plan.inputs.iter().flat_map(|input| &input.program.steps))?;
        let (out, made) = result::folder(self.out.as_deref(), "plan-verify")?;
        let mut watch = Watch::start()?;
        let ran = run(&mix, &plan, &subjects, &out, &mut watch);
        watch.end();
        let interrupted = watch.interrupted().is_some();
        if made && (interrupted || ran.is_err()) {
            std::fs::remove_dir_all(&out)
                .with_context(|| format!("cannot remove {}", out.display()))?;
        }
        if interrupted {
            return Ok(None);
        }
        let record = ran?;
        result::write(&record, &out)?;
        Ok(Some(Ran { record, folder: out }))
    }
}

fn subject(on: &Path) -> Result<Areas> {
    let data =
        on.canonicalize().with_context(|| format!("cannot use {} as a storage", on.display()))?;
    let label = on.display().to_string();
    Ok(Areas { label, data: data.clone(), work: data.clone(), util: data })
}

fn run(
    mix: &Mix,
    plan: &Plan,
    subjects: &[Areas],
    out: &Path,
    watch: &mut Watch,
) -> Result<Record> {
    let clock: Arc<dyn forebay_base::Clock> = Arc::new(SystemClock);
    let mut slots = Slots::new(Arc::clone(&clock), Accounting::find(Arc::clone(&clock)));
    let order = Order {
        mix,
        plan,
        subjects,
        rounds: 1,
        caches: Caches::AsTheyAre,
        scratch: Scratch::OfSubjects,
        leftovers: Leftovers::Remove,
        out,
        program: &std::env::current_exe()?,
        command: &std::env::args().collect::<Vec<String>>(),
        version: env!("CARGO_PKG_VERSION"),
        clock,
        hosts: None,
    };
    Ok(study::run(&order, &mut slots, watch)?)
}

/// The workload with a stage for each prediction, and the first stage again.
fn mix(cpus: usize, nodes: &[u32], concurrent: &[u32]) -> Result<Mix> {
    let mut mix = Mix::parse("verify", WORKLOAD, &[("cpus".to_owned(), cpus.to_string())])?;
    let stage = |name: String, nodes: u32, concurrent: u32| StageSpec {
        name,
        nodes: Some(nodes),
        sessions: None,
        concurrent: Some(Concurrent::Number(concurrent)),
    };
    let mut stages = vec![stage(AGAIN.to_owned(), 1, 1)];
    for &count in &in_order(nodes) {
        stages.push(stage(format!("{count} nodes"), count, 1));
    }
    for &count in &in_order(concurrent) {
        stages.push(stage(format!("{count} at once"), 1, count));
    }
    for class in &mut mix.classes {
        if let Some(names) =
            class.stages.as_mut().filter(|names| names.iter().any(|name| name == BASE))
        {
            names.extend(stages.iter().map(|stage| stage.name.clone()));
        }
    }
    mix.stages.extend(stages);
    Ok(mix)
}

/// Each number once, the smallest first.
fn in_order(numbers: &[u32]) -> Vec<u32> {
    let mut numbers = numbers.to_vec();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

fn text(accuracy: &Accuracy, folder: &Path, within: u32) -> String {
    let machine = &accuracy.machine;
    let mut text = format!(
        "Machine: {} processors, worth {} when all are in use; ",
        machine.processors,
        shown(machine.effective_processors)
    );
    text += &match machine.storage_bytes_per_second {
        Some(rate) => format!("storage {} MB/s\n", shown(rate / 1e6)),
        None => "storage without limit: a daemon moves the bytes, and its limit is not known\n"
            .to_owned(),
    };
    if let Some(why) = machine.disturbance() {
        text += &format!("{why}\n");
    }
    text += &format!(
        "Predicted from stage {BASE:?}; all nodes share the processors and the storage of this machine.\n\n{}\n",
        recorded::table(accuracy.lines.iter().map(|line| &line.checked))
    );
    let worst = accuracy.worst_error * 100.0;
    let verdict = if worst <= f64::from(within) { "within" } else { "beyond" };
    text += &format!(
        "The largest error is {worst:.1} %: {verdict} the {within} % that are accepted.\nresult: {}\n",
        folder.display()
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_prediction_has_a_stage_with_the_jobs_of_the_first() {
        let mix = mix(6, &[4, 2, 4], &[3]).unwrap();
        let plan = mix.plan(&Options { seed: 1, ..Options::default() }).unwrap();
        let stages: Vec<(&str, u32, u32, usize)> = plan
            .stages
            .iter()
            .map(|one| (&*one.name, one.nodes, one.concurrent, one.jobs.len()))
            .collect();
        assert_eq!(
            stages,
            [
                ("one processor", 1, 1, 1),
                ("all processors", 1, 6, 6),
                ("storage", 1, 4, 4),
                ("1 node", 1, 1, 15),
                ("1 node again", 1, 1, 15),
                ("2 nodes", 2, 1, 30),
                ("4 nodes", 4, 1, 60),
                ("3 at once", 1, 3, 15),
            ]
        );
    }
}
