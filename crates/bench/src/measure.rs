//! Rounds: every figure on every subject, again and again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use forebay_process::memory;
use rustix::process::Pid;
use serde::Serialize;

use crate::disk::Disk;
use crate::figure::{Figure, Figures, Group, Subject};
use crate::interrupt::Interrupt;
use crate::load::{Job, Jobs, Sizes};
use crate::machine::settle;
use crate::mount::{Home, Mount, Transport, Way};
use crate::peer::Chore;
use crate::processor::{DISTURBED_CORES, Span, Usage, wait_for_quiet};

/// Empty files per directory when memory is measured.
const FILES_PER_DIRECTORY: u64 = 1000;
/// What the store caches is not what inodes take: when memory is measured, it caches next to nothing.
const SMALL_STORE_CACHE: &str = "store_cache = \"1 MiB\"";
/// Fileset in which the loads run.
const FILESET: &str = "work";
/// Strict fileset, for loads that sync.
const STRICT_FILESET: &str = "data";
/// Native fileset in which they run.
const NATIVE_FILESET: &str = "native";

/// What to measure.
#[derive(Debug)]
pub struct Plan {
    /// How often.
    pub rounds: usize,
    /// What.
    pub groups: Vec<Group>,
    /// On what.
    pub subjects: Vec<Subject>,
    /// How much.
    pub sizes: Sizes,
    /// Calm between two measurements, once the disk is idle.
    pub pause: Duration,
    /// How often a measurement is repeated if other programs disturb it.
    pub retries: u16,
    /// Lines for `forebay.toml`.
    pub settings: Vec<String>,
}

/// All samples of a disk.
#[derive(Debug, Default)]
pub struct Samples {
    /// One figure per round.
    pub figures: BTreeMap<(Figure, Subject), Vec<f64>>,
    /// Processor use per round.
    pub usage: BTreeMap<(Group, Subject), Vec<Usage>>,
    /// Memory of a daemon.
    pub memory: Option<Memory>,
}

/// Memory of the daemon with many inodes cached.
#[derive(Clone, Debug, Serialize)]
pub struct Memory {
    /// Inodes cached beyond those at the start.
    pub inodes: u64,
    /// Growth of its proportional set size, in bytes.
    pub pss_bytes: u64,
    /// Growth of its resident set size, in bytes.
    pub rss_bytes: u64,
    /// Greatest resident set size while the files were made, in bytes, beyond that at the start.
    pub rss_peak_bytes: u64,
    /// What it reckons its inode cache takes, in bytes.
    pub cache_bytes: u64,
    /// Files made per second on the way.
    pub creates_per_second: f64,
}

impl Memory {
    /// `bytes` per million inodes, in million bytes.
    #[must_use]
    pub fn mb_per_million(&self, bytes: u64) -> f64 {
        bytes as f64 / self.inodes.max(1) as f64
    }
}

/// A disk under measurement.
pub struct Bench<'a> {
    /// What to do.
    pub plan: &'a Plan,
    /// Where.
    pub disk: &'a Disk,
    /// The `forebay` command.
    pub program: &'a Path,
    /// Stops it.
    pub interrupt: &'a Interrupt,
    /// The source tree, if one is to be unpacked.
    pub archive: Option<PathBuf>,
}

impl Bench<'_> {
    /// Runs all rounds; `samples` holds what was measured also after an error.
    ///
    /// # Errors
    /// If a load fails; after a signal.
    pub fn run(&self, samples: &mut Samples) -> Result<()> {
        let folder = &self.disk.folder;
        let home = Home::make(self.program, folder.join("home"), &self.plan.settings)?;
        home.create_native_fileset(NATIVE_FILESET)?;
        if self.plan.groups.contains(&Group::Memory) {
            samples.memory = Some(self.measure_memory().context("memory")?);
        }
        for round in 0..self.plan.rounds {
            for (place, group) in self.plan.groups.iter().enumerate() {
                // The order turns from group to group and from round to round.
                for turn in 0..self.plan.subjects.len() {
                    let at = (round + place + turn) % self.plan.subjects.len();
                    let subject = self.plan.subjects[at];
                    self.measure(&home, *group, subject, round, samples).with_context(|| {
                        format!("{} on {}, {}", group.label(), self.disk.name, subject.label())
                    })?;
                }
            }
        }
        Ok(())
    }

    fn measure(
        &self,
        home: &Home,
        group: Group,
        subject: Subject,
        round: usize,
        samples: &mut Samples,
    ) -> Result<()> {
        if group == Group::Memory {
            return Ok(());
        }
        let (figures, usage) = match subject {
            Subject::Plain => {
                self.measure_undisturbed(&self.disk.folder.join("plain"), group, None)?
            }
            Subject::Native
            | Subject::Direct
            | Subject::Served
            | Subject::DirectDev
            | Subject::ServedDev => {
                let (way, transport) = match subject {
                    Subject::Native | Subject::Direct | Subject::Plain => {
                        (Way::Direct, Transport::Uring)
                    }
                    Subject::Served => (Way::Served, Transport::Uring),
                    Subject::DirectDev => (Way::Direct, Transport::Dev),
                    Subject::ServedDev => (Way::Served, Transport::Dev),
                };
                // A mount of its own: nothing else runs, and the disk's read-ahead is raised only now.
                let mount = home.mount(&self.disk.folder.join("mount"), way, transport)?;
                let parent = mount.fileset(match (subject, group) {
                    (Subject::Native, _) => NATIVE_FILESET,
                    // There a sync is durable, as on the plain directory.
                    (_, Group::Sqlite) => STRICT_FILESET,
                    _ => FILESET,
                });
                let measured = self.measure_undisturbed(&parent, group, Some(&mount))?;
                mount.unmount()?;
                measured
            }
        };
        self.note(round, group, subject, &figures, usage);
        for (figure, value) in figures {
            samples.figures.entry((figure, subject)).or_default().push(value);
        }
        samples.usage.entry((group, subject)).or_default().push(usage);
        Ok(())
    }

    /// Measures, and again if other programs were busy meanwhile, as often as the plan says.
    fn measure_undisturbed(
        &self,
        parent: &Path,
        group: Group,
        mount: Option<&Mount>,
    ) -> Result<(Figures, Usage)> {
        if mount.is_none() {
            std::fs::create_dir_all(parent)?;
        }
        let mut tries_left = self.plan.retries;
        loop {
            if self.plan.retries > 0 {
                wait_for_quiet(self.interrupt)?;
            }
            let (figures, usage) = self.measure_in(&parent.join("load"), group, mount)?;
            if usage.other_cores <= DISTURBED_CORES || tries_left == 0 {
                return Ok((figures, usage));
            }
            tries_left -= 1;
            eprintln!("{}: disturbed by other programs, again", group.label());
        }
    }

    /// Measures in a fresh directory.
    fn measure_in(
        &self,
        directory: &Path,
        group: Group,
        mount: Option<&Mount>,
    ) -> Result<(Figures, Usage)> {
        let jobs = Jobs { interrupt: self.interrupt, within: None };
        let sizes = &self.plan.sizes;
        jobs.run(directory, &Job::Make)?;
        settle(self.interrupt, self.plan.pause)?;
        jobs.run(directory, &Job::TouchMemory(sizes.cached()))?;
        let span = Span::begin(mount.map(|mount| mount.pid))?;
        let figures = match group {
            Group::Sequential => jobs.run(directory, &Job::Sequential(sizes.sequential.clone()))?,
            Group::StormOne => {
                jobs.run(directory, &Job::Storm(Figure::StormOne, sizes.storm_one.clone()))?
            }
            Group::StormFour => {
                jobs.run(directory, &Job::Storm(Figure::StormFour, sizes.storm_four.clone()))?
            }
            Group::Calibration => {
                jobs.calibrate(directory, &sizes.calibration, Figure::Calibration)?
            }
            Group::CalibrationSmall => {
                jobs.calibrate(directory, &sizes.calibration_small, Figure::CalibrationSmall)?
            }
            Group::Metadata => jobs.run(directory, &Job::Metadata(sizes.metadata.clone()))?,
            Group::Tree => {
                let archive = self.archive.clone().context("no source tree was made")?;
                jobs.run(directory, &Job::Chore(Chore::Tree { archive, files: sizes.tree_files }))?
            }
            Group::Sqlite => {
                jobs.run(directory, &Job::Chore(Chore::Insert { rows: sizes.rows }))?
            }
            Group::Memory => Figures::new(),
        };
        let usage = span.end()?;
        jobs.run(directory, &Job::Remove)?;
        Ok((figures, usage))
    }

    fn measure_memory(&self) -> Result<Memory> {
        let mut settings = self.plan.settings.clone();
        settings.retain(|line| !line.starts_with("store_cache"));
        settings.push(SMALL_STORE_CACHE.to_owned());
        let home = Home::make(self.program, self.disk.folder.join("memory"), &settings)?;
        let mount = home.mount(&self.disk.folder.join("mount"), Way::Direct, Transport::Uring)?;
        let directory = mount.fileset(FILESET).join("memory");
        let jobs = Jobs { interrupt: self.interrupt, within: None };
        jobs.run(&directory, &Job::Make)?;
        settle(self.interrupt, self.plan.pause)?;
        let (before, inodes_before) = (resident(mount.pid)?, mount.status()?.cached_inodes);
        let directories = self.plan.sizes.memory_directories;
        eprintln!("{}: memory of {} inodes", self.disk.name, directories * FILES_PER_DIRECTORY);
        let fill = Job::Fill { directories, files: FILES_PER_DIRECTORY };
        let figures = jobs.run(&directory, &fill)?;
        let peak = resident(mount.pid)?.peak;
        let mut status = mount.status()?;
        while status.uncommitted > 0 {
            self.interrupt.sleep(Duration::from_millis(500))?;
            status = mount.status()?;
        }
        let after = resident(mount.pid)?;
        let memory = Memory {
            inodes: status.cached_inodes.saturating_sub(inodes_before),
            pss_bytes: after.pss.saturating_sub(before.pss),
            rss_bytes: after.rss.saturating_sub(before.rss),
            rss_peak_bytes: peak.saturating_sub(before.rss),
            cache_bytes: status.cache_bytes,
            creates_per_second: figures.get(&Figure::Create).copied().unwrap_or(0.0),
        };
        jobs.run(&directory, &Job::Remove)?;
        mount.unmount()?;
        Ok(memory)
    }

    fn note(&self, round: usize, group: Group, subject: Subject, figures: &Figures, used: Usage) {
        let figures: Vec<String> = figures
            .iter()
            .map(|(figure, value)| format!("{} {value:.0}", figure.label()))
            .collect();
        eprintln!(
            "{} round {}/{} {}, {}: {} (cores busy: {:.2}, by the daemon {:.2}, by others {:.2})",
            self.disk.name,
            round + 1,
            self.plan.rounds,
            group.label(),
            subject.label(),
            figures.join("; "),
            used.busy_cores,
            used.daemon_cores,
            used.other_cores,
        );
    }
}

/// Resident memory of a process, in bytes.
struct Resident {
    rss: u64,
    pss: u64,
    peak: u64,
}

fn resident(pid: u32) -> Result<Resident> {
    let found = Pid::from_raw(i32::try_from(pid)?).and_then(|pid| {
        let (rss, pss) = (memory::rollup(pid, "Rss")?, memory::share(pid)?);
        Some(Resident { rss, pss, peak: memory::peak(pid)? })
    });
    found.with_context(|| format!("the memory of process {pid} cannot be read"))
}
