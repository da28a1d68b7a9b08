//! A database beside scratch: SQLite commits row by row in the strict fileset `data` while the calibration mix runs in
//! `work`, and each alone.
//!
//! Filesets are partitions: a sync in one must neither publish young files of another nor cost it anything. So two things are
//! reported. Objects of `work` that have a name on the disk at the end: commits by time are put off, so none has one unless a
//! sync in `data` gave it one. And processor time, of the daemon and of the loads: what both took apart, divided by what they take
//! together.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use forebay_base::ByteSize;
use forebay_workload::load::Calibration;

use crate::figure::{Figure, Figures};
use crate::ground::Ground;
use crate::interrupt::Interrupt;
use crate::load::{Job, Jobs};
use crate::machine::Machine;
use crate::mount::{Home, Mount, Transport, Way};
use crate::peer::Chore;
use crate::processor::Times;
use crate::report::aligned;
use crate::statistics::Summary;

/// Longer than a round: what is committed meanwhile is committed because of a sync.
const SETTINGS: &str = "commit_interval = \"60 s\"";

/// Bits of an object's and an inode's number below those of its fileset.
const FILESET_SHIFT: u32 = 48;
/// Bits of an object's number that the name of its folder does not have.
const FOLDER_SHIFT: u32 = 12;

/// How much of it.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  forebay-bench beside
  forebay-bench beside --rounds 1 --rows 300 --files 100")]
pub struct Beside {
    /// Rounds; each figure is the median of as many samples.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Rows that are inserted, each in a transaction of its own.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rows: u64,
    /// Temporary files of each of the four processes of the mix.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    files: u64,
    #[command(flatten)]
    ground: Ground,
}

/// What runs at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Database,
    Mix,
    Both,
}

const PARTS: [Part; 3] = [Part::Database, Part::Mix, Part::Both];

/// What one part came to.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    processor_seconds: f64,
    rows_per_second: f64,
    files_per_second: f64,
    published: u64,
}

impl Beside {
    /// Measures and prints a table.
    ///
    /// # Errors
    /// If something cannot be mounted or a load fails, and if young files of `work` were published.
    pub fn run(&self) -> Result<()> {
        if !rustix::process::geteuid().is_root() {
            bail!("needs root: it mounts with the direct path");
        }
        let (program, machine) = (self.ground.program()?, Machine::look()?);
        let interrupt = Interrupt::watch()?;
        let scratch = self.ground.directory("fbb-")?;
        let mut rounds: Vec<[Sample; 3]> = Vec::new();
        for round in 0..usize::from(self.rounds) {
            let mut samples = [Sample::default(); 3];
            for turn in 0..PARTS.len() {
                let which = (round + turn) % PARTS.len();
                samples[which] = self.sample(PARTS[which], &program, scratch.path(), &interrupt)?;
                eprintln!("round {}: {:?} {:?}", round + 1, PARTS[which], samples[which]);
            }
            rounds.push(samples);
        }
        println!("{}\n\n{}", machine.describe(), table(&rounds));
        scratch.close().context("cannot remove the scratch directory")?;
        let published: u64 = rounds.iter().map(|[_, _, both]| both.published).sum();
        ensure!(published == 0, "syncs in data published {published} files of work");
        Ok(())
    }

    /// Runs one part on a fresh file system.
    fn sample(
        &self,
        part: Part,
        program: &Path,
        scratch: &Path,
        interrupt: &Interrupt,
    ) -> Result<Sample> {
        let folder = tempfile::Builder::new().prefix("fs").tempdir_in(scratch)?;
        let root = folder.path().join("root");
        let home = Home::make(program, root.clone(), &[SETTINGS.to_owned()])?;
        let mount = home.mount(&folder.path().join("mount"), Way::Direct, Transport::Uring)?;
        let done = self.measure(part, &mount, &root, interrupt);
        mount.unmount()?;
        done
    }

    fn measure(
        &self,
        part: Part,
        mount: &Mount,
        root: &Path,
        interrupt: &Interrupt,
    ) -> Result<Sample> {
        let (data, work) = (mount.fileset("data").join("rows"), mount.fileset("work").join("mix"));
        let mix = Calibration {
            temp_files_per_worker: self.files,
            table_bytes: ByteSize::mib(32),
            extract_bytes: ByteSize::mib(8),
            ..Calibration::default()
        };
        let jobs = Jobs { interrupt, within: None };
        for directory in [&data, &work] {
            jobs.run(directory, &Job::Make)?;
        }
        let before = processor_seconds(mount.pid)?;
        let insert = || match part {
            Part::Mix => Ok(Figures::new()),
            Part::Database | Part::Both => {
                let jobs = Jobs { interrupt, within: None };
                jobs.run(&data, &Job::Chore(Chore::Insert { rows: self.rows }))
            }
        };
        let calibrate = || match part {
            Part::Database => Ok(Figures::new()),
            Part::Mix | Part::Both => jobs.calibrate(&work, &mix, Figure::Calibration),
        };
        let (inserted, mixed) = std::thread::scope(|scope| {
            let inserting = scope.spawn(insert);
            let mixed = calibrate();
            (inserting.join().expect("it does not panic"), mixed)
        });
        let figure = |figures: &Figures, which| figures.get(&which).copied().unwrap_or(0.0);
        Ok(Sample {
            rows_per_second: figure(&inserted?, Figure::Sqlite),
            files_per_second: figure(&mixed?, Figure::Calibration),
            processor_seconds: processor_seconds(mount.pid)? - before,
            published: published(root, fs::metadata(mount.fileset("work"))?.ino())?,
        })
    }
}

/// Processor time of the daemon and of all loads that have ended, up to now.
fn processor_seconds(daemon: u32) -> Result<f64> {
    let own = Times::own().context("/proc/self/stat")?;
    let daemon = Times::of(daemon).context("the daemon is gone")?;
    let ticks = own.children_user + own.children_system + daemon.user + daemon.system;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Objects with a name on the disk of the fileset whose top directory has this inode number.
fn published(root: &Path, top: u64) -> Result<u64> {
    let mut count = 0;
    for folder in fs::read_dir(root.join("disk/objects"))? {
        let folder = folder?;
        let name = folder.file_name();
        let number = name.to_str().and_then(|name| u64::from_str_radix(name, 16).ok());
        if number
            .is_some_and(|number| number >> (FILESET_SHIFT - FOLDER_SHIFT) == top >> FILESET_SHIFT)
        {
            count += fs::read_dir(folder.path())?.count() as u64;
        }
    }
    Ok(count)
}

fn table(rounds: &[[Sample; 3]]) -> String {
    let each = |of: &dyn Fn(&[Sample; 3]) -> f64, digits: usize| {
        let samples: Vec<f64> = rounds.iter().map(of).collect();
        let Summary { median, min, max } = Summary::of(&samples).expect("a round");
        format!("{median:.digits$} ({min:.digits$} - {max:.digits$})")
    };
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    aligned(&[
        row("Figure", "median (least - greatest)".to_owned()),
        row("processor time of the database alone, s", each(&|[one, ..]| one.processor_seconds, 2)),
        row("of the mix alone, s", each(&|[_, one, _]| one.processor_seconds, 2)),
        row("of both together, s", each(&|[.., both]| both.processor_seconds, 2)),
        row(
            "both apart, divided by both together",
            each(
                &|[one, two, both]| {
                    (one.processor_seconds + two.processor_seconds) / both.processor_seconds
                },
                2,
            ),
        ),
        row("rows/s alone", each(&|[one, ..]| one.rows_per_second, 0)),
        row("rows/s beside the mix", each(&|[.., both]| both.rows_per_second, 0)),
        row("temporary files/s alone", each(&|[_, one, _]| one.files_per_second, 0)),
        row("temporary files/s beside the database", each(&|[.., both]| both.files_per_second, 0)),
        row("files of work published, mix alone", each(&|[_, one, _]| one.published as f64, 0)),
        row(
            "files of work published by syncs in data",
            each(&|[.., both]| both.published as f64, 0),
        ),
    ])
}
