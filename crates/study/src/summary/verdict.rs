//! Verdicts: what a run comes to, in plain sentences that claim no more than the record carries.

use std::collections::BTreeSet;

use forebay_analytics::Cell;
use serde::Serialize;

use super::{Flow, RunSummary, SubjectSummary, Totals};
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
/// Part of the jobs' real time, running or waiting for a processor, from which cores count as fed.
const FED: f64 = 0.9;
/// Part below which they count as starved.
const STARVED: f64 = 0.7;
/// Part of the processors' time from which what other programs use is named.
const FOREIGN: f64 = 0.15;
/// Largest by smallest sum of a node up to which nodes are alike.
const ALIKE: f64 = 1.1;
/// Largest by smallest sustained rate of rounds up to which rounds are alike.
const STEADY: f64 = 1.2;
/// Jobs that are named in a verdict.
const NAMED_MAX: usize = 3;
/// Stages whose rates are named in a verdict.
const STAGES_MAX: usize = 3;
/// Seconds of measuring below which a rate is said to be of a short time.
const BRIEF_SECONDS: f64 = 1.0;

impl Flow {
    /// Samples of about a second in busy periods without which nothing is judged.
    pub const SAMPLES_MIN: usize = 10;
}

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
            [
                subject.cores().or_else(|| subject.foreign_load()),
                subject.throughput(),
                subject.nodes(),
                subject.rounds(),
            ]
            .into_iter()
            .flatten(),
        );
    }
    if record.state != State::Complete {
        verdicts.iter_mut().for_each(no_good_news);
    }
    verdicts
}

/// Of a study that was interrupted or failed nothing is good news: what did not run cannot be judged.
fn no_good_news(verdict: &mut Verdict) {
    if verdict.level == Level::Good {
        verdict.level = Level::Warning;
        verdict.text += " The study is partial: this covers only the part that ran.";
    }
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

/// A share in percent.
fn share(part: f64) -> String {
    format!("{} %", short(part * 100.0))
}

/// A storage with its label, unless that is its path, with which it begins anyway.
fn named(label: &str, storage: &str) -> String {
    let is_path = storage.strip_prefix(label).is_some_and(|rest| rest.starts_with(" ("));
    if is_path { storage.to_owned() } else { format!("{label}: {storage}") }
}

fn what_was_run(record: &Record, runs: &[RunSummary]) -> Verdict {
    let workload = &record.workload;
    let storages: Vec<String> = record
        .subjects
        .iter()
        .enumerate()
        .map(|(place, subject)| named(&subject.label, &super::storage(record, place)))
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
                " It is partial ({reason}): figures cover only the part that ran and are not comparable \
                 with those of a complete run."
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
            "The job succeeded.".to_owned()
        } else {
            format!("All {} succeeded.", count(all, "job"))
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
            " {} of the bytes that jobs read came from the monitored devices{}",
            match 1.0 - ratio {
                none if none < 0.001 => "None".to_owned(),
                all if all > 0.999 => "All".to_owned(),
                part => share(part),
            },
            if ratio < 0.001 { "." } else { "; the page cache or a daemon supplied the rest." }
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

    /// Jobs at once at the plateau.
    fn plateau(&self) -> usize {
        let periods = self.counted().flat_map(|run| &run.busy);
        periods.map(|period| period.plateau_jobs).max().unwrap_or(0)
    }

    /// Samples of the busy periods, in the round that has fewest.
    fn samples(&self) -> usize {
        let of_run = |run: &RunSummary| run.stages.iter().map(|stage| stage.file.samples).sum();
        self.counted().map(of_run).min().unwrap_or(0)
    }

    /// What is said instead of a verdict on a run that was too short for one.
    fn too_short(&self, topic: &'static str) -> Option<Verdict> {
        let samples = self.samples();
        let text = format!(
            "No verdict: {} of the busy period are too few; at least {} are needed. Run at a larger \
             --scale.",
            count(samples, "sample"),
            Flow::SAMPLES_MIN
        );
        (samples < Flow::SAMPLES_MIN).then(|| verdict(Level::Warning, topic, self.about(&text)))
    }

    /// Whether cores had work or waited, by the jobs' own time: what others did with the processors feeds no
    /// job. Nothing is said of workloads that do nothing but I/O.
    fn cores(&self) -> Option<Verdict> {
        let kinds = self.counted().flat_map(|run| &run.kinds);
        if kinds.map(|kind| kind.kind).all(|kind| kind == Some(JobKind::Io)) {
            return None;
        }
        let ran = self.median("cpu_per_real_of_sums")?;
        if let Some(too_short) = self.too_short("Cores") {
            return Some(too_short);
        }
        let waited = self.share("processor_wait_percent");
        let mut text = format!("The jobs ran on a processor for {} of their real time", share(ran));
        if let Some(mean) = self.median("cpu_per_real_mean_of_jobs") {
            text += &format!(" ({} as the mean of the jobs)", share(mean));
        }
        if let Some(waited) = waited {
            text += &format!(" and waited for one for {} of it", share(waited));
        }
        let foreign = self.foreign();
        let level = if ran + waited.unwrap_or(0.0) >= FED {
            text += ": the cores were fed.";
            if waited.is_some_and(|waited| waited >= 1.0 - FED) {
                text += &self.shared();
            }
            if foreign.is_some() { Level::Warning } else { Level::Good }
        } else {
            text += &self.starving(ran, waited);
            let starved = waited.is_some_and(|waited| ran + waited < STARVED);
            if starved { Level::Bad } else { Level::Warning }
        };
        text += &foreign.unwrap_or_default();
        Some(verdict(level, "Cores", self.about(&text)))
    }

    /// A figure in percent as a share.
    fn share(&self, key: &str) -> Option<f64> {
        self.median(key).map(|percent| percent / 100.0)
    }

    /// What is said of programs other than the jobs, if they used much of the processors.
    fn foreign(&self) -> Option<String> {
        let used = self.share("foreign_cpu_percent").filter(|used| *used >= FOREIGN)?;
        Some(format!(
            " Foreign load: programs other than the jobs used {} of the processors (daemons and the kernel's \
             own threads included).",
            share(used)
        ))
    }

    /// A verdict on programs other than the jobs, where there is none on cores that names them.
    fn foreign_load(&self) -> Option<Verdict> {
        let text = self.foreign().filter(|_| self.counted().any(|run| run.jobs.ran() > 0))?;
        Some(verdict(Level::Warning, "Other load", self.about(text.trim_start())))
    }

    fn shared(&self) -> String {
        let (plateau, cpus) = (self.plateau(), self.record.cpus() as usize);
        if plateau > cpus {
            format!(" {plateau} jobs at once shared {}.", count(cpus, "processor"))
        } else {
            String::new()
        }
    }

    /// What jobs did that neither ran nor waited for a processor.
    fn starving(&self, ran: f64, waited: Option<f64>) -> String {
        let Some(waited) = waited else {
            return ": whether they waited for processors or for storage is not known, because the kernel does \
                    not measure waiting for processors."
                .to_owned();
        };
        let degree = if ran + waited < STARVED { "starved" } else { "not always fed" };
        let off = self.share("off_processor_percent").unwrap_or(0.0);
        let Some(io) = self.share("io_wait_percent") else {
            return format!(
                ": the cores were {degree}. The remaining {} the jobs were not on a processor: they waited for \
                 I/O, a daemon, locks or each other. How much of this was I/O is not known ({}).",
                share(off),
                self.record.machine.io_wait_source
            );
        };
        let rest = if io >= off / 2.0 {
            "most of the time in which they were not on a processor"
        } else {
            "the rest they waited for something else: locks, each other, or storage behind a network or a \
             daemon, whose time does not count as I/O wait"
        };
        format!(": the cores were {degree}. They waited for I/O {} of the time; {rest}.", share(io))
    }

    /// The rule of MB/s for each core.
    fn throughput(&self) -> Option<Verdict> {
        if !self.counted().any(|run| run.jobs.ran() > 0) {
            return None;
        }
        if self.counted().any(|run| !run.stages_alike) {
            return self.stage_rates();
        }
        if let Some(too_short) = self.too_short("Throughput") {
            return Some(too_short);
        }
        let sustained = self.median("file_sustained_mb_per_second")?;
        let Some(rate) = self.median("mb_per_second_per_core") else {
            let text = "No verdict: the number of physical cores is not known.";
            return Some(verdict(Level::Warning, "Throughput", self.about(text)));
        };
        let cores = self.record.cores() as usize;
        let per_core = match cores {
            1 => "on the one physical core".to_owned(),
            _ => format!("or {} MB/s per physical core", short(rate)),
        };
        let mut text =
            format!("Sustained file-level throughput was {} MB/s, {per_core}: ", short(sustained));
        let mut level = Level::Good;
        if rate >= GUIDANCE_MB_PER_SECOND {
            text += "above the 100 MB/s rule and the newer guidance of 150.";
        } else if rate >= RULE_MB_PER_SECOND {
            text += "above the 100 MB/s rule, below the newer guidance of 150.";
        } else {
            let (below, why) = self.below_the_rule();
            level = below;
            text += &format!("below the 100 MB/s rule.{why}");
        }
        if let Some(devices) = self.median("device_sustained_mb_per_second") {
            let all = self.of_record().any(|run| run.device_scope == DeviceScope::AllDisks);
            let who = if all { "All disks of the machine" } else { "The devices" };
            text += &format!(" {who} moved {} MB/s.", short(devices));
        }
        Some(verdict(self.or_cache(level, &mut text), "Throughput", self.about(&text)))
    }

    /// A warning for good news of a working set that fits in memory.
    fn or_cache(&self, level: Level, text: &mut String) -> Level {
        let fits = self.of_record().any(|run| run.cache.fits_in_memory());
        if !fits || level != Level::Good {
            return level;
        }
        *text +=
            " The working set fits in memory, so this may measure the page cache, not the storage.";
        Level::Warning
    }

    /// The rates of stages that do different things: one of each, none of all.
    fn stage_rates(&self) -> Option<Verdict> {
        let first = self.counted().next()?;
        let rates: Vec<String> = first
            .stages
            .iter()
            .filter_map(|stage| {
                let rate = stage.rate.as_ref()?;
                let key = format!("{}/rate", stage.name);
                let value = self.median(&key).unwrap_or(rate.value);
                Some(format!("{} {} {}", stage.name, short(value), rate.unit))
            })
            .collect();
        if rates.is_empty() {
            let text =
                "No verdict: no stage was long enough to measure a rate. Run at a larger --scale.";
            return Some(verdict(Level::Warning, "Throughput", self.about(text)));
        }
        let named = rates.iter().take(STAGES_MAX).cloned().collect::<Vec<_>>().join(", ");
        let more = match rates.len().saturating_sub(STAGES_MAX) {
            0 => String::new(),
            more => format!(", and {} in the table", count(more, "more stage")),
        };
        let mut text =
            format!("The stages do different things, each at its own rate: {named}{more}.");
        let level = match self.still_cached() {
            Some((stage, part)) if part >= RunSummary::CACHED => {
                text += &format!(
                    " Up to {} of the files were still in memory when the stage {stage} began to read, \
                     although they had been dropped from the page cache: run with --drop-caches as root, or \
                     with files larger than memory.",
                    share(part)
                );
                Level::Warning
            }
            Some(_) => Level::Good,
            None => self.or_cache(Level::Good, &mut text),
        };
        let level = level.max(self.brief(&mut text));
        Some(verdict(level, "Throughput", self.about(&text)))
    }

    /// A warning if streams of some stages measured for a moment only.
    fn brief(&self, text: &mut String) -> Level {
        let figures = self.counted().flat_map(|run| &run.step_figures);
        let brief =
            figures.filter(|one| one.name == "seconds" && one.spread.median < BRIEF_SECONDS);
        let stages = brief.map(|one| one.stage.as_str()).collect::<BTreeSet<_>>().len();
        if stages == 0 {
            return Level::Good;
        }
        *text += &format!(
            " The streams of {} measured less than a second, which says little: run at a larger --scale.",
            count(stages, "stage")
        );
        Level::Warning
    }

    /// The stage in whose streams the page cache still held most of a file that was to be cold.
    fn still_cached(&self) -> Option<(String, f64)> {
        let of = |run: &RunSummary| run.still_cached(self.record);
        self.counted().filter_map(of).max_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn below_the_rule(&self) -> (Level, &'static str) {
        let ran = self.median("cpu_per_real_of_sums").unwrap_or(0.0);
        if ran >= FED {
            (
                Level::Warning,
                " The jobs were computing nearly all the time, so they requested no more: the storage may not \
                 be at fault.",
            )
        } else if ran + self.share("processor_wait_percent").unwrap_or(0.0) >= FED {
            (
                Level::Warning,
                " The jobs ran or waited for a processor nearly all the time, so they could hardly request \
                 more: the storage may not be at fault.",
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
            "The {nodes} logical nodes, {}, were {alike}: the largest sum of real times in a \
             stage is {} times the smallest.",
            match (self.record.hosts.len(), self.record.machines().count()) {
                (0, _) => "all on this machine".to_owned(),
                (hosts, 1) => format!("on {hosts} hosts of one machine"),
                (hosts, _) => format!("on {hosts} hosts"),
            },
            short(ratio)
        );
        Some(verdict(level, "Nodes", self.about(&text)))
    }

    fn rounds(&self) -> Option<Verdict> {
        let spread = self.subject.spread("file_sustained_mb_per_second")?;
        if spread.count < 2 || spread.min <= 0.0 || self.samples() < Flow::SAMPLES_MIN {
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
