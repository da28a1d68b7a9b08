//! `forebay plan verify`: measures how far the predictions of `plan simulate` are off on this machine.
//!
//! The folder keeps one result of `bench run` for each run and `verify.json` with the settings, so that an interrupted
//! verification continues. A result counts only if it is complete; anything else is made again.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, bail};
use forebay_advisor::plan::shown;
use forebay_study::record::{Record, Run, State};
use forebay_study::report;
use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::accuracy::{accuracy_page, largest_error, signed_percent, table};
use super::recorded::{self, Checked, Model};
use crate::output::{put_json, put_text};

/// Name of the file with the settings.
const SETTINGS: &str = "verify.json";
/// Exit code if a prediction is farther off than allowed.
const OFF: u8 = 1;
/// Exit code after a signal: 128 and SIGINT's number, as shells have it.
const INTERRUPTED: u8 = 130;
/// Part of the processors that others may use before that is reported.
const OTHERS_MAX: f64 = 0.1;
const WORKLOAD: &str = "mixed";
const SCALE: f64 = 0.001;
const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];
const NODES: [u32; 3] = [2, 3, 4];

/// Measure how far predictions are off: run a workload, predict other runs of it, compare.
///
/// Runs the workload on one logical node twice: with one job at a time and with twice as many jobs as processors. From these two
/// runs alone it derives what each class of jobs needs, how much busy processors slow each other down, and what the storage
/// delivers, and predicts more logical nodes (which share this machine) and other numbers of concurrent jobs. Then it
/// measures those as well and prints both with the error. DIR keeps every run, the settings and a report: a second start with the
/// same DIR continues where the first one stopped. Exit codes: 0 every error is within the limit, 1 not, 2 refused,
/// 130 interrupted. Run it on a machine that does nothing else.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay plan verify accuracy/ --on /mnt/forebay/data          about ten minutes on two processors
  forebay plan verify accuracy/                                 continue after an interruption, or show the table again
  forebay plan verify quick/ --on /mnt/nfs --scale 0.0002 --nodes 2
  forebay plan verify mine/ --on /mnt/nfs --file mine.toml --scale 1
  forebay plan verify accuracy/ --json")]
pub struct VerifyCommand {
    /// Folder for the runs and the report; created if it does not exist.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Directory on the storage to run on; needed at the first start.
    #[arg(long, value_name = "PATH")]
    on: Option<PathBuf>,
    /// Directory for temporary and utility files [default: that of --on].
    #[arg(long, value_name = "PATH")]
    work: Option<PathBuf>,
    /// Workload whose jobs do not come in sessions; `forebay bench list` lists them [default: mixed].
    #[arg(long, value_name = "NAME")]
    workload: Option<String>,
    /// File of your own workload (docs/formats/mix.md) instead. Do not change it between the runs.
    #[arg(long, value_name = "FILE", conflicts_with = "workload")]
    file: Option<PathBuf>,
    /// Size relative to the published study [default: 0.001].
    #[arg(long, value_name = "X")]
    scale: Option<f64>,
    /// Numbers of logical nodes to predict [default: 2,3,4].
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(2..=64))]
    nodes: Vec<u32>,
    /// Concurrent jobs on each of those nodes; also predicted on one node, as is four times as many [default: the number of
    /// processors, at least 2].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1000))]
    concurrent: Option<u32>,
    /// Error of the predicted run times that is allowed, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 15.0)]
    within: f64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What a verification runs: written at its first start, in force for all others.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    on: PathBuf,
    work: PathBuf,
    /// Its name, or that of its file.
    workload: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
    scale: f64,
    nodes: Vec<u32>,
    concurrent: u32,
}

/// A run on logical nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SetUp {
    nodes: u32,
    concurrent: u32,
}

impl SetUp {
    fn folder(self) -> String {
        format!("nodes-{}-at-once-{}", self.nodes, self.concurrent)
    }
}

impl Settings {
    /// The run with one job at a time, and the one with all processors busy, which predictions are made from.
    fn calibration(&self) -> [SetUp; 2] {
        [1, 2 * self.concurrent].map(|concurrent| SetUp { nodes: 1, concurrent })
    }

    /// The runs that are predicted.
    fn predicted(&self) -> Vec<SetUp> {
        let one = [self.concurrent, 4 * self.concurrent];
        let mut all: Vec<SetUp> =
            one.iter().map(|&concurrent| SetUp { nodes: 1, concurrent }).collect();
        all.extend(self.nodes.iter().map(|&nodes| SetUp { nodes, concurrent: self.concurrent }));
        all
    }
}

impl VerifyCommand {
    pub fn run(self) -> Result<ExitCode> {
        if !(0.0..=1000.0).contains(&self.within) {
            bail!("--within {}: must be a number from 0 to 1000 (percent)", self.within);
        }
        let started = self.folder.join(SETTINGS).exists();
        if !started && self.on.is_none() {
            bail!(
                "{} holds no verification to continue: name a directory on the storage with --on",
                self.folder.display()
            );
        }
        fs::create_dir_all(&self.folder)
            .with_context(|| format!("cannot create {}", self.folder.display()))?;
        let _lock = lock(&self.folder)?;
        let settings = self.settings(started)?;
        let [alone, busy] = settings.calibration();
        let wanted = settings.predicted();
        let all: Vec<SetUp> = [alone, busy].into_iter().chain(wanted.iter().copied()).collect();
        let stop = Arc::new(AtomicBool::new(false));
        for number in SIGNALS {
            signal_hook::flag::register(number, Arc::clone(&stop))?;
        }
        let mut records = Vec::new();
        for (at, set_up) in all.iter().enumerate() {
            let Some(record) = self.measured(&settings, *set_up, (at + 1, all.len()), &stop)?
            else {
                note!("interrupted: forebay plan verify {} continues", self.folder.display());
                return Ok(ExitCode::from(INTERRUPTED));
            };
            records.push(record);
        }
        let model = model(&records[0], &records[1])?;
        let mut checked = Vec::new();
        for record in &records[2..] {
            checked.extend(recorded::check(&model, record)?);
        }
        let others = records.iter().filter_map(used_by_others).fold(0.0, f64::max);
        self.show(&settings, &model, &checked, others)
    }

    /// The settings of the folder, which those that are given must not contradict.
    fn settings(&self, started: bool) -> Result<Settings> {
        let path = self.folder.join(SETTINGS);
        if started {
            let text = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            let kept: Settings = serde_json::from_str(&text)
                .with_context(|| format!("{} has no settings of plan verify", path.display()))?;
            if self.given(kept.clone())? != kept {
                bail!(
                    "{} was started with other settings ({SETTINGS}): continue it without options, or name another folder",
                    self.folder.display()
                );
            }
            return Ok(kept);
        }
        let processors = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        let on = self.on.clone().unwrap_or_default();
        let settings = self.given(Settings {
            work: on.clone(),
            on,
            workload: WORKLOAD.to_owned(),
            file: None,
            scale: SCALE,
            nodes: NODES.to_vec(),
            concurrent: u32::try_from(processors).unwrap_or(2).clamp(2, 1000),
        })?;
        let draft = self.folder.join(".verify.json.draft");
        fs::write(&draft, serde_json::to_vec_pretty(&settings)?)
            .and_then(|()| fs::rename(&draft, &path))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(settings)
    }

    /// `settings` with what is given on the command line.
    fn given(&self, mut settings: Settings) -> Result<Settings> {
        let absolute = |path: &Path| {
            path.canonicalize()
                .with_context(|| format!("cannot use {} as a storage", path.display()))
        };
        if let Some(on) = &self.on {
            let same_work = settings.work == settings.on;
            settings.on = absolute(on)?;
            if same_work {
                settings.work.clone_from(&settings.on);
            }
        }
        if let Some(work) = &self.work {
            settings.work = absolute(work)?;
        }
        if let Some(workload) = &self.workload {
            settings.workload.clone_from(workload);
        }
        if let Some(file) = &self.file {
            let file = file
                .canonicalize()
                .with_context(|| format!("cannot read the workload {}", file.display()))?;
            settings.workload = file.display().to_string();
            settings.file = Some(file);
        }
        settings.scale = self.scale.unwrap_or(settings.scale);
        settings.concurrent = self.concurrent.unwrap_or(settings.concurrent);
        if !self.nodes.is_empty() {
            settings.nodes.clone_from(&self.nodes);
            settings.nodes.sort_unstable();
            settings.nodes.dedup();
        }
        Ok(settings)
    }

    /// The record of a run, which is made unless it is there; none after a signal.
    fn measured(
        &self,
        settings: &Settings,
        set_up: SetUp,
        (number, of): (usize, usize),
        stop: &Arc<AtomicBool>,
    ) -> Result<Option<Record>> {
        let out = self.folder.join(set_up.folder());
        if let Ok(record) = Record::read(&out)
            && record.state == State::Complete
        {
            return Ok(Some(fitting(record, settings, set_up, &out)?));
        }
        if out.exists() {
            fs::remove_dir_all(&out)
                .with_context(|| format!("cannot remove the incomplete run {}", out.display()))?;
        }
        note!(
            "run {number} of {of}: logical nodes: {}, jobs at once on each: {}",
            set_up.nodes,
            set_up.concurrent
        );
        let succeeded = !stop.load(Ordering::SeqCst) && bench(settings, set_up, &out)?;
        if stop.load(Ordering::SeqCst) {
            return Ok(None);
        }
        if !succeeded {
            bail!(
                "run {number} of {of} failed (above, and in {}): run the command again to continue from there",
                out.display()
            );
        }
        let record = Record::read(&out)?;
        Ok(Some(fitting(record, settings, set_up, &out)?))
    }

    fn show(
        &self,
        settings: &Settings,
        model: &Model,
        checked: &[Checked],
        others: f64,
    ) -> Result<ExitCode> {
        let title = format!("{} at scale {}", settings.workload, settings.scale);
        let largest = largest_error(checked);
        let within = largest * 100.0 <= self.within;
        let mut lines = lines(settings, model, largest, self.within);
        if others > OTHERS_MAX {
            lines.push(format!(
                "Other programs used up to {:.0} % of the processors in a run: the errors say little. Repeat this on a quiet machine, \
                 with another DIR.",
                others * 100.0
            ));
        }
        let page = self.folder.join(report::FILE);
        report::save(&page, &accuracy_page(&title, lines.clone(), checked))?;
        if self.json {
            put_json(&serde_json::json!({
                "settings": settings, "cores": model.cores, "contention": model.contention, "storage": model.storage,
                "predictions": checked, "largest_error": largest, "within_percent": self.within, "within": within,
                "used_by_others": others,
                "report": page,
            }))?;
        } else {
            let table = table(checked).render();
            put_text(&format!(
                "{title}\n{}\n\n{table}\nreport: {}\n",
                lines.join("\n"),
                page.display()
            ))?;
        }
        Ok(if within { ExitCode::SUCCESS } else { ExitCode::from(OFF) })
    }
}

/// Part of all processor time in the first run of a study that was used, but not by its jobs; none if it has no samples.
fn used_by_others(record: &Record) -> Option<f64> {
    let run = record.runs.first()?;
    let seconds: f64 = run.samples.iter().map(|one| one.seconds).sum();
    let busy: f64 = run
        .samples
        .iter()
        .map(|one| (one.cpu_user + one.cpu_system + one.cpu_steal) * one.seconds)
        .sum();
    let available = seconds * f64::from(record.machine.cpus.max(1));
    let own: f64 = run.jobs().map(|job| job.usage.cpu_seconds()).sum();
    (available > 0.0).then(|| (busy / seconds - own / available).max(0.0))
}

/// How the predictions were made, and how good they are.
fn lines(settings: &Settings, model: &Model, largest: f64, within: f64) -> Vec<String> {
    let [alone, busy] = settings.calibration();
    let storage = model.storage.map_or("never reached its limit".to_owned(), |storage| {
        format!("reached its limit at {} MB/s", shown(storage.bytes_per_second / 1e6))
    });
    let verdict = if largest * 100.0 <= within { "within" } else { "beyond" };
    vec![
        format!(
            "Predicted from 1 node with {} and with {} jobs at once: {} processors, which slow each other down by {} when all \
             are busy; the storage {storage}.",
            alone.concurrent,
            busy.concurrent,
            shown(model.cores),
            signed_percent(model.contention).trim_start_matches('+')
        ),
        format!(
            "Largest error of a predicted run time: {:.0} %, {verdict} the limit of {} %.",
            largest * 100.0,
            shown(within)
        ),
    ]
}

fn model(alone: &Record, busy: &Record) -> Result<Model> {
    let first = |record: &Record| -> Result<Run> {
        record.runs.first().cloned().context("the study has no run")
    };
    let cores = f64::from(alone.machine.cpus.max(1));
    let (alone, busy) = (first(alone)?, first(busy)?);
    let limit = [&alone, &busy].into_iter().filter_map(recorded::storage_limit);
    let storage = limit.max_by(f64::total_cmp).map(recorded::of_each_machine);
    Model::calibrated(&alone, &busy, cores, storage)
}

/// Refuses a record that is not of this run.
fn fitting(record: Record, settings: &Settings, set_up: SetUp, folder: &Path) -> Result<Record> {
    let stages = record.runs.first().map_or(&[][..], |run| &run.stages);
    let fits = (settings.file.is_some() || record.workload.name == settings.workload)
        && record.workload.scale.to_bits() == settings.scale.to_bits()
        && !stages.is_empty()
        && stages
            .iter()
            .all(|stage| (stage.nodes, stage.concurrent) == (set_up.nodes, set_up.concurrent));
    if !fits {
        bail!(
            "{}: the run is not {} at scale {} on {} nodes with {} jobs at once on each; a workload whose stages or sessions have \
             their own numbers cannot be used (try --workload mixed in another folder)",
            folder.display(),
            settings.workload,
            settings.scale,
            set_up.nodes,
            set_up.concurrent
        );
    }
    Ok(record)
}

/// Runs the workload; false if that failed.
fn bench(settings: &Settings, set_up: SetUp, out: &Path) -> Result<bool> {
    // A signal ends the run, which removes its files, and this process only after it.
    let mut signals = Signals::new(SIGNALS)?;
    let handle = signals.handle();
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["bench", "run", "--brief"]);
    match &settings.file {
        Some(file) => command.arg("--file").arg(file),
        None => command.arg(&settings.workload),
    };
    let mut child = command
        .arg("--on")
        .arg(&settings.on)
        .arg("--work")
        .arg(&settings.work)
        .args(["--scale", &settings.scale.to_string()])
        .args(["--nodes", &set_up.nodes.to_string()])
        .args(["--concurrent", &set_up.concurrent.to_string()])
        .arg("--out")
        .arg(out)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .context("cannot start forebay bench run")?;
    let pid = Pid::from_child(&child);
    let forward = std::thread::spawn(move || {
        for _ in signals.forever() {
            // It may have ended already.
            let _ = kill_process(pid, Signal::INT);
        }
    });
    let ended = child.wait();
    handle.close();
    let _ = forward.join();
    Ok(ended.context("cannot wait for forebay bench run")?.success())
}

/// One verification at a time works in a folder.
fn lock(folder: &Path) -> Result<File> {
    let file = File::open(folder).with_context(|| format!("cannot open {}", folder.display()))?;
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        bail!("{} is in use by another forebay plan verify", folder.display());
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_other_programs_used_is_what_the_jobs_did_not() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../study/tests/data/mixed");
        let mut record = Record::read(&folder).unwrap();
        record.machine.cpus = 4;
        let run = &mut record.runs[0];
        let sample = forebay_study::record::Sample {
            seconds: 10.0,
            cpu_user: 0.4,
            cpu_system: 0.1,
            ..Default::default()
        };
        run.samples = vec![sample; 2];
        let mut job = run.stages[0].jobs.swap_remove(0);
        (job.usage.user_seconds, job.usage.system_seconds) = (10.0, 6.0);
        run.stages.truncate(1);
        run.stages[0].jobs = vec![job];
        // Half of 80 s was used, 16 s of it by the job.
        let found = used_by_others(&record).unwrap();
        assert!((found - 0.3).abs() < 1e-9, "{found}");
        record.runs[0].samples.clear();
        assert_eq!(used_by_others(&record), None);
    }

    #[test]
    fn the_predicted_runs_are_none_of_those_predicted_from() {
        for concurrent in [2, 3, 64] {
            let settings = Settings {
                on: PathBuf::new(),
                work: PathBuf::new(),
                workload: WORKLOAD.to_owned(),
                file: None,
                scale: SCALE,
                nodes: NODES.to_vec(),
                concurrent,
            };
            let (from, to) = (settings.calibration(), settings.predicted());
            assert!(to.iter().all(|one| !from.contains(one)), "{to:?}");
            assert_eq!(to.iter().map(|one| one.nodes).collect::<Vec<_>>(), [1, 1, 2, 3, 4]);
        }
    }
}
