//! Verdicts: what a run comes to, in plain sentences that claim no more than the record carries.

use std::collections::BTreeSet;

use forebay_workload::Cell;
use serde::Serialize;

use super::{RunSummary, SubjectSummary, Totals};
use crate::record::{DeviceScope, Exit, JobKind, Record, Run, State};
use crate::statistics::median;

/// How good the news is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Nothing to worry about, or plain information.
    Good,
    /// The reader should know before he uses the figures.
    Warning,
    /// Something failed, or a rule is not met.
    Bad,
}

/// A sentence or two about a study.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// How good the news is.
    pub level: Level,
    /// What it is about, in a word or two: `Run`, `Jobs`, `Cache`, `Cores`, `Throughput`.
    pub topic: &'static str,
    /// The sentences.
    pub text: String,
}

/// The rule of thumb: MB/s for each physical core, at the file level, sustained.
pub const RULE_MB_PER_SECOND: f64 = 100.0;
/// The newer guidance.
pub const GUIDANCE_MB_PER_SECOND: f64 = 150.0;
/// CPU/real from which cores count as fed.
const FED: f64 = 0.9;
/// CPU/real below which they count as starved.
const STARVED: f64 = 0.7;
/// Part of the processors' time from which they count as busy.
const BUSY: f64 = 0.85;
/// Largest by smallest sum of a node up to which nodes are alike.
const ALIKE: f64 = 1.1;
/// Largest by smallest sustained rate of rounds up to which rounds are alike.
const STEADY: f64 = 1.2;
/// Jobs that are named in a verdict.
const NAMED_MAX: usize = 3;

/// The verdicts, those about the whole study first, then those about each subject.
pub(super) fn of(
    record: &Record,
    runs: &[RunSummary],
    subjects: &[SubjectSummary],
) -> Vec<Verdict> {
    let mut verdicts = vec![what_was_run(record, runs), jobs(record, runs)];
    verdicts.extend(cache(record, runs));
    for subject in subjects {
        let subject = Judged { record, runs, subject };
        verdicts.extend(
            [subject.cores(), subject.throughput(), subject.nodes(), subject.rounds()]
                .into_iter()
                .flatten(),
        );
    }
    verdicts
}

fn verdict(level: Level, topic: &'static str, text: String) -> Verdict {
    Verdict { level, topic, text }
}

/// "1 job", "2 jobs".
fn count(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// With three significant digits.
fn short(number: f64) -> String {
    Cell::from(number).show(3)
}

fn what_was_run(record: &Record, runs: &[RunSummary]) -> Verdict {
    let workload = &record.workload;
    let storages: Vec<String> = record
        .subjects
        .iter()
        .enumerate()
        .map(|(place, subject)| format!("{}: {}", subject.label, super::storage(record, place)))
        .collect();
    let rounds = runs.iter().map(|run| run.round).collect::<BTreeSet<_>>().len();
    let mut text = format!(
        "\"{}\" at scale {}, {}, on {}.",
        workload.name,
        short(workload.scale),
        count(rounds, "round"),
        if storages.is_empty() { "nothing".to_owned() } else { storages.join("; ") }
    );
    match &record.state {
        State::Complete => {
            text += " It ran to its end.";
            verdict(Level::Good, "Run", text)
        }
        State::Partial { reason } => {
            text += &format!(
                " It is partial ({reason}): figures are of what ran and are not comparable with those \
                 of a complete run."
            );
            verdict(Level::Bad, "Run", text)
        }
    }
}

fn jobs(record: &Record, runs: &[RunSummary]) -> Verdict {
    let sum = |part: fn(&Totals) -> usize| runs.iter().map(|run| part(&run.jobs)).sum::<usize>();
    let (all, failed) = (sum(|totals| totals.jobs), sum(|totals| totals.failed));
    let not_started = sum(|totals| totals.not_started);
    if all == 0 {
        return verdict(Level::Warning, "Jobs", "The record holds no jobs.".to_owned());
    }
    if failed == 0 && not_started == 0 {
        let text = if all == 1 {
            "The job ended well.".to_owned()
        } else {
            format!("All {} ended well.", count(all, "job"))
        };
        return verdict(Level::Good, "Jobs", text);
    }
    let mut text = String::new();
    if failed > 0 {
        let mut names: Vec<String> = record
            .runs
            .iter()
            .flat_map(Run::jobs)
            .filter_map(|job| Some(format!("{} ({})", job.name, describe_failure(&job.exit)?)))
            .collect();
        names.sort_unstable();
        names.truncate(NAMED_MAX);
        let more = if failed > names.len() { ", and others" } else { "" };
        text += &format!("{failed} of {} failed: {}{more}.", count(all, "job"), names.join(", "));
    }
    if not_started > 0 {
        let space = if text.is_empty() { "" } else { " " };
        text += &format!("{space}{not_started} of {} were never started.", count(all, "job"));
    }
    verdict(Level::Bad, "Jobs", text)
}

/// How a job failed; `None` if it did not.
pub(super) fn describe_failure(exit: &Exit) -> Option<String> {
    match exit {
        Exit::Success | Exit::NotStarted => None,
        Exit::Failure { code, message } if message.is_empty() => Some(format!("exit code {code}")),
        Exit::Failure { code, message } => Some(format!("exit code {code}: {message}")),
        Exit::Signal { signal } => Some(format!("signal {signal}")),
    }
}

fn cache(record: &Record, runs: &[RunSummary]) -> Option<Verdict> {
    let fitting = record.runs.iter().map(|run| &run.cache).find(|cache| cache.fits_in_memory());
    let warm = record.runs.iter().any(|run| !run.cache.dropped);
    let cache = fitting.or(record.runs.first().map(|run| &run.cache))?;
    let sizes = format!(
        "The working set of {} {{}} the machine's memory of {}",
        gigabytes(cache.working_set_bytes),
        gigabytes(cache.memory_bytes)
    );
    let (level, mut text) = if fitting.is_some() {
        let text = sizes.replace("{}", "fits in");
        (
            Level::Warning,
            format!(
                "{text}: reads may have been answered from memory, and writes may not have waited for the \
             storage. Figures at the file level then say little about the storage."
            ),
        )
    } else {
        (Level::Good, format!("{}.", sizes.replace("{}", "is larger than")))
    };
    text += if warm {
        " The page cache was not emptied before every run."
    } else {
        " The page cache was emptied before each run."
    };
    if let Some(ratio) = median(runs.iter().filter_map(|run| run.cache_hit_ratio)) {
        text += &format!(
            " {} % of the bytes that jobs read were not read from the watched devices meanwhile.",
            short(ratio * 100.0)
        );
    }
    Some(verdict(level, "Cache", text))
}

fn gigabytes(bytes: u64) -> String {
    format!("{} GB", short(bytes as f64 / 1e9))
}

/// A subject on which sentences are made.
struct Judged<'a> {
    record: &'a Record,
    runs: &'a [RunSummary],
    subject: &'a SubjectSummary,
}

impl Judged<'_> {
    fn median(&self, key: &str) -> Option<f64> {
        self.subject.spread(key).map(|spread| spread.median)
    }

    /// The text after the subject's label, if there are several.
    fn about(&self, text: &str) -> String {
        if self.record.subjects.len() > 1 {
            format!("{}: {text}", self.subject.label)
        } else {
            text.to_owned()
        }
    }

    fn counted(&self) -> impl Iterator<Item = &RunSummary> {
        let of_subject = |run: &&RunSummary| {
            run.subject == self.subject.subject && self.subject.rounds.contains(&run.round)
        };
        self.runs.iter().filter(of_subject)
    }

    fn of_record(&self) -> impl Iterator<Item = &Run> {
        self.record.runs.iter().filter(|run| run.subject == self.subject.subject)
    }

    /// Part of the processors' time in which they worked, in the busy periods.
    fn processors_busy(&self) -> Option<f64> {
        median(self.counted().filter_map(|run| run.processor).map(|processor| processor.busy()))
    }

    /// Jobs at once at the plateau.
    fn plateau(&self) -> usize {
        let periods = self.counted().flat_map(|run| &run.busy);
        periods.map(|period| period.plateau_jobs).max().unwrap_or(0)
    }

    /// Whether cores had work or waited. Nothing is said of workloads that do nothing but I/O.
    fn cores(&self) -> Option<Verdict> {
        let kinds = self.counted().flat_map(|run| &run.kinds);
        if kinds.map(|kind| kind.kind).all(|kind| kind == Some(JobKind::Io)) {
            return None;
        }
        let per_real = self.median("cpu_per_real_of_sums")?;
        let busy = self.processors_busy();
        let mut text = format!("CPU/real is {} from the sums", short(per_real));
        if let Some(mean) = self.median("cpu_per_real_mean_of_jobs") {
            text += &format!(" ({} as the mean over jobs)", short(mean));
        }
        if let Some(busy) = busy {
            text +=
                &format!(", the processors worked {} % of the busy period", short(busy * 100.0));
        }
        let level = if per_real >= FED {
            text += ": the cores were fed, jobs seldom waited.";
            Level::Good
        } else if busy.is_some_and(|busy| busy >= BUSY) {
            text += &self.busy_but_waiting();
            Level::Good
        } else {
            text += &self.waiting(per_real);
            if per_real < STARVED { Level::Bad } else { Level::Warning }
        };
        Some(verdict(level, "Cores", self.about(&text)))
    }

    fn busy_but_waiting(&self) -> String {
        let (plateau, cpus) = (self.plateau(), self.record.machine.cpus as usize);
        if plateau > cpus {
            format!(
                ": the cores were fed. {plateau} jobs at once shared {}, so each had to wait for one.",
                count(cpus, "processor")
            )
        } else {
            ": the cores were fed although jobs had to wait.".to_owned()
        }
    }

    fn waiting(&self, per_real: f64) -> String {
        let degree = if per_real < STARVED { "starved" } else { "not always fed" };
        let Some(percent) = self.median("io_wait_percent") else {
            return format!(
                ": the cores were {degree}. What jobs waited for is not known ({}).",
                self.record.machine.io_wait_source
            );
        };
        let mostly = percent / 100.0 >= (1.0 - per_real) / 2.0;
        let rest = if mostly {
            "most of the time in which they did not compute"
        } else {
            "the rest they waited for something else: processors, locks, or storage behind a network or a \
             daemon, whose time is not counted as I/O wait"
        };
        let percent = short(percent);
        format!(
            ": the cores were {degree}. Jobs waited for I/O {percent} % of their real time; {rest}."
        )
    }

    /// The rule of MB/s for each core.
    fn throughput(&self) -> Option<Verdict> {
        if !self.counted().any(|run| run.jobs.ran() > 0) {
            return None;
        }
        let sustained = self.median("file_sustained_mb_per_second");
        let rate = self.median("mb_per_second_per_core");
        let (Some(sustained), Some(rate)) = (sustained, rate) else {
            let why = match sustained {
                None => "there are no samples of a busy period",
                Some(_) => "the number of physical cores is not known",
            };
            let text = self.about(&format!("No sustained throughput for each core: {why}."));
            return Some(verdict(Level::Warning, "Throughput", text));
        };
        let mut text = format!(
            "{} MB/s sustained at the file level, {} MB/s for each of {}, ",
            short(sustained),
            short(rate),
            count(self.record.machine.cores as usize, "physical core")
        );
        let mut level = Level::Good;
        if rate >= GUIDANCE_MB_PER_SECOND {
            text += "meet the rule of 100 and the newer guidance of 150.";
        } else if rate >= RULE_MB_PER_SECOND {
            text += "meet the rule of 100 but not the newer guidance of 150.";
        } else {
            let (below, why) = self.below_the_rule();
            level = below;
            text += &format!("are below the rule of 100.{why}");
        }
        if let Some(devices) = self.median("device_sustained_mb_per_second") {
            let all = self.of_record().any(|run| run.device_scope == DeviceScope::AllDisks);
            let who = if all { "All disks of the machine" } else { "The devices" };
            text += &format!(" {who} moved {} MB/s.", short(devices));
        }
        let fits = self.of_record().any(|run| run.cache.fits_in_memory());
        if fits && level == Level::Good {
            level = Level::Warning;
            text += " The working set fits in memory, so this need not be the storage's doing.";
        }
        Some(verdict(level, "Throughput", self.about(&text)))
    }

    fn below_the_rule(&self) -> (Level, &'static str) {
        if self.processors_busy().is_some_and(|busy| busy >= BUSY) {
            (
                Level::Warning,
                " The processors were busy, so the jobs could hardly ask for more: CPU/real says more here.",
            )
        } else if self.median("cpu_per_real_of_sums").is_some_and(|ratio| ratio >= FED) {
            (
                Level::Warning,
                " CPU/real is near 1, so the jobs asked for no more: this need not be the storage's doing.",
            )
        } else {
            (Level::Bad, "")
        }
    }

    fn nodes(&self) -> Option<Verdict> {
        let ratio = self.median("node_max_per_min")?;
        let nodes = self.counted().map(|run| run.nodes.len()).max()?;
        let (level, alike) =
            if ratio <= ALIKE { (Level::Good, "alike") } else { (Level::Warning, "not alike") };
        let text = format!(
            "The {nodes} logical nodes, all on this machine, were {alike}: the largest sum of real times is \
             {} times the smallest.",
            short(ratio)
        );
        Some(verdict(level, "Nodes", self.about(&text)))
    }

    fn rounds(&self) -> Option<Verdict> {
        let spread = self.subject.spread("file_sustained_mb_per_second")?;
        if spread.count < 2 || spread.min <= 0.0 {
            return None;
        }
        let level = if spread.max / spread.min <= STEADY { Level::Good } else { Level::Warning };
        let text = format!(
            "Over {} rounds the sustained throughput was between {} and {} MB/s.",
            spread.count,
            short(spread.min),
            short(spread.max)
        );
        Some(verdict(level, "Rounds", self.about(&text)))
    }
}
