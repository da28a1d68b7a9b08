//! `forebay plan simulate`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use forebay_advisor::plan::shown;
use forebay_advisor::plan::simulation::{
    NODES_MAX, Prediction, Queue, Setup, Storage, StorageOf, simulate, simulate_queues,
};
use forebay_engine::home::GridHome;
use forebay_grid::parse::period::Period;
use forebay_study::record::{Record, Stage};

use super::history::{History, QueueDemand, TaskQueue, Waits};
use super::recorded::{self, Checked};
use crate::commands::grid::home_of;
use crate::output::{Table, put_json, put_text};

/// Predict how recorded jobs would run on more machines, or with other cores, slots or storage.
///
/// RESULT is the folder of a study (forebay bench run). Its jobs are run again by a model of processors, storage and slots, which
/// takes what each job needed from the record and adds the waiting that the new set-up causes. With --history the jobs are those that
/// a grid has finished, as far as it still lists them: each is due when it was submitted (with a condition or a time to wait for: when it
/// was started), and goes to the machine with most free slots, those of a queue of higher priority first and no more than the slots
/// of its queue; a second table says what each queue needed, how long its jobs waited, and would wait. --check shows how far the
/// model is off: it predicts another study of the same classes of jobs, or the other stages of this one, and prints both.
///
/// The model ignores: a page cache that is too small for more jobs, writers that are held back while too much is dirty, random order of
/// requests, the network, jobs that wait for each other, memory, and limits of users.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay plan simulate results/ --machines 1,2,4,8
  forebay plan simulate results/ --machines 4 --cores 32 --concurrent 40
  forebay plan simulate results/ --storage-rate 2000      one storage of 2000 MB/s for all
  forebay plan simulate results/ --spread                 the same jobs on more machines
  forebay plan simulate --history --since '7 d' --machines 1,2,4
  forebay plan simulate scaling/ --check scaling/         predicted beside measured")]
pub struct SimulateCommand {
    /// Result of a study.
    #[arg(value_name = "RESULT", required_unless_present = "history")]
    record: Option<PathBuf>,
    /// Take the finished jobs of the grid in ROOT, or in FOREBAY_GRID if ROOT is omitted: yours, or as an admin those of all users.
    #[arg(long, value_name = "ROOT", num_args = 0..=1, conflicts_with_all = ["record", "stage", "check", "spread"])]
    history: Option<Option<PathBuf>>,
    /// With --history: only jobs that ended within this time, such as '7 d'.
    #[arg(long, value_name = "TIME", requires = "history", value_parser = |text: &str| text.parse::<Period>())]
    since: Option<Period>,
    /// Numbers of machines, each like the recorded one.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2,4,8,16")]
    machines: Vec<u32>,
    /// Processors of each machine [default: those of the recorded machine; with --history the slots of the largest host].
    #[arg(long, value_name = "N")]
    cores: Option<f64>,
    /// Slots of each node, which a job takes one of [default: as recorded; with --history those of the largest host].
    #[arg(long, value_name = "N")]
    concurrent: Option<u32>,
    /// MB/s that the storage delivers [default: the recorded rate at its limit; unlimited if it never reached its limit].
    #[arg(long, value_name = "MB/s")]
    storage_rate: Option<f64>,
    /// Whether each machine has that rate, or all machines share it [default: shared with --storage-rate, otherwise each].
    #[arg(long, value_name = "WHO")]
    storage_of: Option<Who>,
    /// Spread the recorded jobs over the machines, instead of running all of them on each.
    #[arg(long)]
    spread: bool,
    /// Stage to predict from [default: the first].
    #[arg(long, value_name = "NAME")]
    stage: Option<String>,
    /// Predict the stages of this study, and compare with what was measured. Its nodes are parts of one machine, or the hosts of a grid.
    #[arg(long, value_name = "RESULT", conflicts_with_all = ["machines", "concurrent", "spread"])]
    check: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Who {
    /// Each machine has storage of that rate.
    Machine,
    /// All machines share one storage of that rate.
    All,
}

/// A prediction for a number of machines.
#[derive(serde::Serialize)]
struct Row {
    machines: u32,
    jobs: usize,
    #[serde(flatten)]
    prediction: Prediction,
    cpu_per_real: f64,
    jobs_per_hour: f64,
    bound_by: &'static str,
}

/// A queue of a history, with what it would wait for.
#[derive(serde::Serialize)]
struct QueueRow {
    #[serde(flatten)]
    queue: TaskQueue,
    #[serde(flatten)]
    demand: QueueDemand,
    predictions: Vec<QueuePrediction>,
}

/// The waits of a queue on a number of machines.
#[derive(serde::Serialize)]
struct QueuePrediction {
    machines: u32,
    #[serde(flatten)]
    waits: Waits,
}

impl SimulateCommand {
    pub fn run(self) -> Result<ExitCode> {
        if let Some(root) = &self.history {
            return self.of_history(&home_of(root.clone())?);
        }
        let folder = self.record.as_deref().context("no result is given")?;
        let record = read(folder)?;
        let (run, stage) = recorded::stage(&record, self.stage.as_deref())
            .with_context(|| folder.display().to_string())?;
        let storage = self.storage(recorded::storage_limit(run))?;
        let machines = record.machines().count();
        let each = f64::from(record.cpus().max(1)) / machines.max(1) as f64;
        let cores = self.cores.unwrap_or(each);
        if let Some(other) = &self.check {
            let checked = recorded::check(stage, &read(other)?, cores, storage)
                .with_context(|| other.display().to_string())?;
            return self.show_check(stage, &checked);
        }
        if machines > 1 {
            bail!(
                "{} ran on {machines} machines; more machines are predicted from a study on one of them (bench run --grid -m HOST)",
                folder.display()
            );
        }
        let rows = self
            .machines
            .iter()
            .map(|machines| self.row(stage, *machines, cores, storage))
            .collect::<Result<Vec<Row>>>()?;
        if self.json {
            put_json(&serde_json::json!({
                "stage": stage.name, "cores": cores, "storage": storage, "spread": self.spread, "predictions": rows,
            }))?;
        } else {
            let how = if self.spread { "spread over the machines" } else { "on each machine" };
            let what = format!("{} jobs of stage {:?} {how}", stage.jobs.len(), stage.name);
            put_text(&text(&what, cores, storage, &rows))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The same with the jobs that a grid has finished.
    fn of_history(&self, home: &GridHome) -> Result<ExitCode> {
        let history = History::read(home, self.since)?;
        let storage = self.storage(None)?;
        let concurrent = self.concurrent.unwrap_or(history.slots);
        let cores = self.cores.unwrap_or(f64::from(history.slots));
        let jobs = history.jobs(concurrent, storage);
        let rules: Vec<Queue> = history.queues.iter().map(|queue| queue.rule).collect();
        let queue_row = |(queue, demand): (&TaskQueue, QueueDemand)| {
            let (queue, predictions) = (queue.clone(), Vec::new());
            QueueRow { queue, demand, predictions }
        };
        let mut queues: Vec<QueueRow> =
            history.queues.iter().zip(history.demands()).map(queue_row).collect();
        let mut rows = Vec::new();
        for &machines in &self.machines {
            if !(1..=NODES_MAX).contains(&machines) {
                bail!("--machines {machines}: must be 1 to {NODES_MAX}");
            }
            let (nodes, nodes_per_machine) = (machines, 1);
            let machine_cores = cores;
            let setup = Setup { nodes, nodes_per_machine, machine_cores, concurrent, storage };
            let found = simulate_queues(&jobs, &setup, &rules)?;
            for (row, waits) in queues.iter_mut().zip(found.waits) {
                row.predictions.push(QueuePrediction { machines, waits: Waits::of(waits) });
            }
            rows.push(Row::of(machines, jobs.len(), found.prediction));
        }
        let (seconds, waited) = (history.seconds(), history.slot_wait_seconds());
        if history.unread > 0 {
            note!("forebay: {} lines of jobs were not read: there are too many", history.unread);
        }
        if self.json {
            put_json(&serde_json::json!({
                "jobs": jobs.len(), "hosts": history.hosts(), "seconds": seconds, "slot_wait_seconds": waited, "cores": cores,
                "concurrent": concurrent, "storage": storage, "predictions": rows, "queues": queues,
            }))?;
        } else {
            let what = format!(
                "{} finished jobs, which took {} s in all on {} hosts and waited {} s for slots on average; {concurrent} slots a machine",
                jobs.len(),
                shown(seconds),
                history.hosts(),
                shown(waited)
            );
            let all = text(&what, cores, storage, &rows);
            put_text(&format!("{all}\n{}", queue_text(&queues, &self.machines)))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn storage(&self, measured: Option<f64>) -> Result<Option<Storage>> {
        if let Some(rate) = self.storage_rate.filter(|rate| !(0.1..=1e7).contains(rate)) {
            bail!("--storage-rate {rate}: must be a number from 0.1 to 10000000 (MB/s)");
        }
        let default = if self.storage_rate.is_some() { Who::All } else { Who::Machine };
        let of = match self.storage_of.unwrap_or(default) {
            Who::Machine => StorageOf::Machine,
            Who::All => StorageOf::All,
        };
        let rate = self.storage_rate.map(|rate| rate * 1e6).or(measured);
        Ok(rate.map(|bytes_per_second| Storage { bytes_per_second, of }))
    }

    fn row(
        &self,
        stage: &Stage,
        machines: u32,
        cores: f64,
        storage: Option<Storage>,
    ) -> Result<Row> {
        let nodes =
            machines.checked_mul(stage.nodes).filter(|nodes| (1..=NODES_MAX).contains(nodes));
        let nodes = nodes.with_context(|| {
            format!("--machines {machines}: must be 1 to {}", NODES_MAX / stage.nodes.max(1))
        })?;
        let jobs = recorded::on_machines(stage, machines, self.spread, storage);
        let setup = Setup {
            nodes,
            nodes_per_machine: stage.nodes,
            machine_cores: cores,
            concurrent: self.concurrent.unwrap_or(stage.concurrent),
            storage,
        };
        Ok(Row::of(machines, jobs.len(), simulate(&jobs, &setup)?))
    }

    fn show_check(&self, stage: &Stage, checked: &[Checked]) -> Result<ExitCode> {
        if self.json {
            put_json(&serde_json::json!({ "stage": stage.name, "checked": checked }))?;
            return Ok(ExitCode::SUCCESS);
        }
        let table = recorded::table(checked);
        put_text(&format!("Predicted from stage {:?}\n\n{table}", stage.name))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Row {
    fn of(machines: u32, jobs: usize, prediction: Prediction) -> Row {
        Row {
            machines,
            jobs,
            cpu_per_real: prediction.cpu_per_real(),
            jobs_per_hour: jobs as f64 / prediction.seconds * 3600.0,
            bound_by: bound(&prediction),
            prediction,
        }
    }
}

/// Predictions for people; `what` says of which jobs.
fn text(what: &str, cores: f64, storage: Option<Storage>, rows: &[Row]) -> String {
    let limit = storage.map_or("a storage without limit".to_owned(), |storage| {
        let of = match storage.of {
            StorageOf::All => "one storage for all",
            StorageOf::Machine => "a storage for each machine",
        };
        format!("{of}, {} MB/s", shown(storage.bytes_per_second / 1e6))
    });
    let mut text = format!("{what}; {} processors a machine; {limit}\n\n", shown(cores));
    let mut table = Table::new(&[
        "machines",
        "jobs",
        "seconds",
        "jobs/h",
        "CPU/real",
        "MB/s",
        "slot wait s",
        "cores full",
        "storage full",
        "bound by",
    ]);
    for row in rows {
        let found = &row.prediction;
        table.row(vec![
            row.machines.to_string(),
            row.jobs.to_string(),
            shown(found.seconds),
            shown(row.jobs_per_hour),
            format!("{:.2}", row.cpu_per_real),
            shown(found.storage_bytes_per_second() / 1e6),
            shown(found.slot_wait_seconds / row.jobs.max(1) as f64),
            percent(found.cores_full),
            percent(found.storage_full),
            row.bound_by.to_owned(),
        ]);
    }
    text += &table.render();
    text
}

/// What each queue needed and how long its jobs waited and would wait: the mean, and what 95 of 100 stay below.
fn queue_text(queues: &[QueueRow], machines: &[u32]) -> String {
    let mut heading: Vec<String> =
        ["queue", "priority", "limit", "jobs", "slot h", "CPU h", "waited s"]
            .map(str::to_owned)
            .into();
    heading.extend(machines.iter().map(|number| format!("on {number}")));
    let mut table = Table::new(&heading.iter().map(String::as_str).collect::<Vec<_>>());
    let shown_waits = |waits: &Waits| {
        format!("{} / {}", shown(waits.slot_wait_seconds_mean), shown(waits.slot_wait_seconds_p95))
    };
    for row in queues {
        let (rule, demand) = (row.queue.rule, &row.demand);
        let mut cells = vec![
            row.queue.queue.clone(),
            rule.priority.to_string(),
            rule.slots_max.map_or_else(|| "-".to_owned(), |most| most.to_string()),
            demand.jobs.to_string(),
            shown(demand.slot_hours),
            shown(demand.processor_hours),
            shown_waits(&demand.waits),
        ];
        cells.extend(row.predictions.iter().map(|one| shown_waits(&one.waits)));
        table.row(cells);
    }
    format!(
        "Seconds that jobs of each queue waited for slots, and would wait on N machines: mean / 95th percentile\n\n{}",
        table.render()
    )
}

fn read(folder: &Path) -> Result<Record> {
    Ok(Record::read(folder)?)
}

/// What keeps the jobs from ending sooner.
fn bound(prediction: &Prediction) -> &'static str {
    // Used to the limit for most of the time.
    const MOST: f64 = 0.5;
    match (prediction.cores_full > MOST, prediction.storage_full > MOST) {
        (true, true) => "cores and storage",
        (true, false) => "cores",
        (false, true) => "storage",
        (false, false) if prediction.slot_wait_seconds > 0.1 * prediction.real_seconds => "slots",
        (false, false) => "the jobs themselves",
    }
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}
