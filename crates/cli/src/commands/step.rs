//! `forebay step`: runs a program of analytics steps.

mod resume;

use std::fs::File;
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use forebay_analytics::amount::Scale;
use forebay_analytics::dataset::{PAGE_BYTES_MAX, PAGE_BYTES_MIN, format_datetime};
use forebay_analytics::scratch::ScratchDir;
use forebay_base::time::SystemClock;
use forebay_base::{ByteSize, Clock as _};
use forebay_study::fullstimer;
use forebay_workload::lakehouse::packages::Python;
use forebay_workload::program::{
    Buffers, Context, Job, NamedStep, Outcome, Places, Program, Step as Kind, StepRecord,
};
use forebay_workload::resource::ResourceRecord;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use self::resume::Resume;
use crate::output::{put, put_json};

/// Run a program: a file of analytics steps, one after another.
///
/// Paths in a program start with data, work or util. Files in data are kept; in work and util the program gets
/// its own directory, which is removed at its end. Every job of `forebay bench` is one such process.
///
/// With --checkpoint, and always in a grid job that was submitted with --checkpoint, an interrupted program
/// resumes where it left off: finished steps are skipped, unless the program or its settings have changed.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay step report.toml --data /mnt/forebay/data --work /mnt/forebay/work
  forebay step report.toml --data . --sort-memory '64 MiB' --json
  forebay step report.toml --data /mnt/forebay/data --work /mnt/forebay/work --checkpoint
  forebay step --kinds   list the kinds of steps (docs/formats/steps)

A program:
  name = \"regions\"
  [[step]]
  [step.do.import]
  csv = \"data/sales.csv\"
  output = \"work/sales\"
  [[step]]
  table = \"data/regions.csv\"
  [step.do.summary]
  input = \"work/sales\"
  class = [\"region\"]
  analysis = [\"amount\"]")]
pub struct Step {
    /// TOML file of the program.
    #[arg(required_unless_present = "kinds")]
    program: Option<PathBuf>,
    /// List the kinds of steps.
    #[arg(long, exclusive = true)]
    kinds: bool,
    /// Directory of the files that are kept.
    #[arg(long, value_name = "DIR", default_value = ".")]
    data: PathBuf,
    /// Directory for temporary data sets [default: WORK of the grid job, or that of --data].
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// Directory for utility files [default: UTIL of the grid job, or that of --work].
    #[arg(long, value_name = "DIR")]
    util: Option<PathBuf>,
    /// Name of the job, for {job} in paths and for the names of directories.
    #[arg(long, value_name = "NAME", default_value = "job")]
    job: String,
    /// Class of the job, for {class} in paths.
    #[arg(long, value_name = "NAME", default_value = "job")]
    class: String,
    /// Number of the job in its class, from 0; steps that read a part of their input read a different part in each job.
    #[arg(long, value_name = "N", default_value_t = 0)]
    number: u64,
    /// Number of jobs in the class.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// Seed of the random numbers.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Scale of amounts that depend on it.
    #[arg(long, value_name = "X", default_value = "1")]
    scale: Scale,
    #[command(flatten)]
    buffers: BufferArguments,
    /// Record finished steps in --work, and skip those that an earlier, interrupted run finished.
    #[arg(long)]
    checkpoint: bool,
    /// Write one line of JSON per finished step to this file, without its table.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Print the records as JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// Print nothing.
    #[arg(long, conflicts_with = "json")]
    quiet: bool,
}

/// Page size and memory of steps.
#[derive(clap::Args, Clone, Copy, Default)]
pub struct BufferArguments {
    /// Page size of data sets (BUFSIZE): a multiple of 4 KiB up to 16 MiB [default: 256 KiB].
    #[arg(long, value_name = "SIZE", value_parser = page_size)]
    pub page_size: Option<ByteSize>,
    /// Memory for a sort or join (SORTSIZE).
    #[arg(long, value_name = "SIZE")]
    pub sort_memory: Option<ByteSize>,
    /// Memory for other steps (MEMSIZE).
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<ByteSize>,
}

fn page_size(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse()?;
    let fits = (PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&size.0);
    if fits && size.0.is_multiple_of(PAGE_BYTES_MIN) {
        Ok(size)
    } else {
        let (least, most) = (ByteSize(PAGE_BYTES_MIN), ByteSize(PAGE_BYTES_MAX));
        Err(format!("must be a multiple of {least} up to {most}"))
    }
}

/// Installs DuckDB and Polars if one of the steps needs them and they are not there yet, and says so.
pub fn install_engines<'a>(steps: impl IntoIterator<Item = &'a NamedStep>) -> Result<()> {
    if steps.into_iter().any(|named| named.step.needs_python()) {
        Python::find_or_install(&mut |folder| {
            note!("forebay: installing DuckDB and Polars into {} (once)", folder.display());
        })?;
    }
    Ok(())
}

impl Step {
    pub fn run(self) -> Result<ExitCode> {
        let Some(path) = &self.program else {
            for kind in Kind::KINDS {
                outln!("{kind}");
            }
            return Ok(ExitCode::SUCCESS);
        };
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the program {}", path.display()))?;
        let program: Program = toml::from_str(&text).map_err(|error| {
            anyhow::anyhow!("{}: {}", path.display(), error.to_string().trim_end())
        })?;
        install_engines(&program.steps)?;
        let (areas, finished) = self.areas(path, &program)?;
        areas.remove_at_signal()?;
        let context = self.context(&areas);
        let mut record = match &self.record {
            Some(path) => Some(
                File::create(path).with_context(|| format!("cannot write {}", path.display()))?,
            ),
            None => None,
        };
        let log = FullstimerLog::of_job();
        let mut lost = None;
        let show = Show::new(&self, program.steps.len());
        let skipped = finished.len();
        for (number, (step, done)) in program.steps.iter().zip(&finished).enumerate() {
            show.skipped(number, step);
            if let Some(file) = &mut record {
                lost = lost.take().or(write_line(file, done).err());
            }
        }
        let mut records = finished;
        let ran = program.run_from(
            skipped,
            &context,
            &mut |number, step| show.started(number, step),
            &mut |done| {
                show.ended(&done);
                lost = lost.take().or(log.add(&done, records.len() + 1).err());
                if let Some(file) = &mut record {
                    lost = lost.take().or(write_line(file, &done).err());
                }
                records.push(done);
                lost = lost.take().or(areas.record(records.len(), records.last()).err());
            },
            &mut |rows| show.progress(rows),
        );
        let cleared = areas.remove(ran.is_ok() && lost.is_none());
        ran?;
        cleared?;
        if let Some(error) = lost {
            bail!("cannot write the record: {}", crate::output::chain(&error));
        }
        show.summary(&program, &records)?;
        Ok(ExitCode::SUCCESS)
    }

    /// The directories of the program, and the steps that need not be done again.
    fn areas(&self, path: &Path, program: &Program) -> Result<(Areas, Vec<StepRecord>)> {
        let job = crate::checkpoint::Job::present();
        if !self.checkpoint && !job.as_ref().is_some_and(|job| job.keeps_steps) {
            return Ok((Areas::make(self)?, Vec::new()));
        }
        let [data, work, util] = self.places()?;
        let data = data.canonicalize().context("--data")?;
        let path = std::path::absolute(path)?;
        let key = format!("{}\0{}\0{}\0{}", path.display(), self.job, self.class, self.number);
        let settings = (
            (env!("CARGO_PKG_VERSION"), program, &data),
            (&self.job, &self.class, self.number, self.count),
            (self.seed, self.scale, self.page_and_memory()),
        );
        let digest = resume::digest(&serde_json::to_string(&settings)?);
        let work = work.canonicalize().context("--work")?;
        let (resume, found) = Resume::open([&work, &util, &data], &key, digest)?;
        if found.changed && !self.quiet {
            note!("forebay: the program or its settings have changed: starting at the first step");
        }
        Ok((Areas::Kept(Box::new(resume), data), found.records))
    }

    /// The directories that were given for data, work and util.
    fn places(&self) -> Result<[PathBuf; 3]> {
        let of_job = |name: &str| {
            let job = crate::checkpoint::Job::present()?;
            let given = std::env::var_os(name).map_or(job.work, PathBuf::from);
            Some(given)
        };
        let work = self.work.clone().or_else(|| of_job("WORK"));
        let util =
            self.util.clone().or_else(|| if self.work.is_some() { None } else { of_job("UTIL") });
        let work = work.unwrap_or_else(|| self.data.clone());
        let util = util.unwrap_or_else(|| work.clone());
        for (name, path) in [("data", &self.data), ("work", &work), ("util", &util)] {
            if !path.is_dir() {
                bail!("--{name} {} is not a directory", path.display());
            }
        }
        Ok([self.data.clone(), work, util])
    }

    fn page_and_memory(&self) -> Buffers {
        let default = Buffers::default();
        Buffers {
            page_bytes: self.buffers.page_size.unwrap_or(default.page_bytes),
            sort_memory: self.buffers.sort_memory.unwrap_or(default.sort_memory),
            memory: self.buffers.memory.unwrap_or(default.memory),
        }
    }

    fn context(&self, areas: &Areas) -> Context<'static> {
        Context {
            places: areas.places(),
            job: Job {
                name: self.job.clone(),
                class: self.class.clone(),
                number: self.number,
                count: self.count,
            },
            seed: self.seed,
            scale: self.scale,
            buffers: self.page_and_memory(),
            clock: &SystemClock,
        }
    }
}

/// The log beside the output of a grid job, if its queue wants one.
struct FullstimerLog(Option<PathBuf>);

impl FullstimerLog {
    fn of_job() -> FullstimerLog {
        FullstimerLog(std::env::var_os("FOREBAY_FULLSTIMER").map(PathBuf::from))
    }

    /// Adds what a step used that has just ended.
    fn add(&self, step: &StepRecord, number: usize) -> Result<()> {
        let Some(path) = &self.0 else { return Ok(()) };
        let now = format_datetime(SystemClock.now().seconds as f64);
        let text = fullstimer::of_step(step, number, Some(now));
        let file = File::options().append(true).create(true).open(path);
        file.and_then(|mut file| file.write_all(text.as_bytes()))
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Writes a record without its table, which may be long and is not a measurement.
fn write_line(file: &mut File, record: &StepRecord) -> Result<()> {
    let outcome = Outcome { table: None, ..record.outcome.clone() };
    let mut line = serde_json::to_vec(&StepRecord { outcome, ..record.clone() })?;
    line.push(b'\n');
    file.write_all(&line)?;
    Ok(())
}

/// The directories of a program.
enum Areas {
    /// Its own ones in work and util are gone with it.
    Own { data: PathBuf, work: ScratchDir, util: ScratchDir },
    /// Its own ones are kept until it has finished; with the directory of what stays.
    Kept(Box<Resume>, PathBuf),
}

impl Areas {
    fn make(step: &Step) -> Result<Areas> {
        let [data, work, util] = step.places()?;
        Ok(Areas::Own {
            data,
            work: ScratchDir::create(&work, &format!("work-{}", step.job))?,
            util: ScratchDir::create(&util, &format!("util-{}", step.job))?,
        })
    }

    fn places(&self) -> Places {
        match self {
            Areas::Own { data, work, util } => Places {
                data: data.clone(),
                work: work.path().to_owned(),
                util: util.path().to_owned(),
            },
            Areas::Kept(resume, data) => {
                Places { data: data.clone(), work: resume.work(), util: resume.util() }
            }
        }
    }

    /// Records that step `number` has finished, where that is wanted.
    fn record(&self, number: usize, record: Option<&StepRecord>) -> Result<()> {
        match (self, record) {
            (Areas::Kept(resume, _), Some(record)) => resume.done(number, record),
            _ => Ok(()),
        }
    }

    /// Removes the program's own directories when it is interrupted, but what it needs to go on.
    fn remove_at_signal(&self) -> Result<()> {
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let own = match self {
            Areas::Own { work, util, .. } => vec![work.path().to_owned(), util.path().to_owned()],
            Areas::Kept(resume, _) => vec![resume.util()],
        };
        std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                own.iter().for_each(|path| remove_while_written(path));
                std::process::exit(128 + signal);
            }
        });
        Ok(())
    }

    fn remove(self, finished: bool) -> Result<()> {
        match self {
            Areas::Own { work, util, .. } => {
                work.remove()?;
                util.remove()?;
            }
            Areas::Kept(resume, _) if finished => resume.finish()?,
            Areas::Kept(..) => {}
        }
        Ok(())
    }
}

/// Removes a directory in which another thread may still make files.
fn remove_while_written(path: &Path) {
    const TRIES: u32 = 100;
    for _ in 0..TRIES {
        match std::fs::remove_dir_all(path) {
            Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty => {}
            _ => return,
        }
    }
}

/// What is shown of a running program.
struct Show {
    steps: usize,
    lines: bool,
    json: bool,
    terminal: bool,
    shown_at: std::cell::Cell<Option<std::time::Instant>>,
    /// Why a line could not be printed.
    unprinted: std::cell::Cell<Option<anyhow::Error>>,
}

impl Show {
    fn new(step: &Step, steps: usize) -> Show {
        let lines = !step.quiet && !step.json;
        Show {
            steps,
            lines,
            json: step.json,
            terminal: lines && std::io::stderr().is_terminal(),
            shown_at: std::cell::Cell::new(None),
            unprinted: std::cell::Cell::new(None),
        }
    }

    /// Prints a line. The program goes on where that fails: [`Show::summary`] tells it.
    fn say(&self, line: &str) {
        let failed = self.unprinted.take();
        self.unprinted.set(failed.or_else(|| put(format!("{line}\n").as_bytes()).err()));
    }

    fn started(&self, number: usize, step: &NamedStep) {
        if self.lines {
            self.say(&format!(
                "== step {} of {}: {} ({})",
                number + 1,
                self.steps,
                step.name(),
                step.step.kind()
            ));
        }
    }

    fn skipped(&self, number: usize, step: &NamedStep) {
        if self.lines {
            let (number, steps, name) = (number + 1, self.steps, step.name());
            self.say(&format!(
                "== step {number} of {steps}: {name} ({}) skipped: already finished",
                step.step.kind()
            ));
        }
    }

    /// On a terminal, the rows so far, a few times a second.
    fn progress(&self, rows: u64) {
        const EVERY: std::time::Duration = std::time::Duration::from_millis(200);
        if !self.terminal {
            return;
        }
        let now = SystemClock.instant();
        if self.shown_at.get().is_none_or(|at| now.saturating_duration_since(at) >= EVERY) {
            self.shown_at.set(Some(now));
            crate::output::put_aside(&format!("\r   {rows} rows\x1b[K"));
        }
    }

    fn ended(&self, record: &StepRecord) {
        if self.terminal && self.shown_at.take().is_some() {
            crate::output::put_aside("\r\x1b[K");
        }
        if self.lines {
            let used = &record.resources;
            self.say(&format!(
                "   {} rows, {:.2} s, {:.0} MB/s",
                used.rows,
                used.real_seconds,
                used.mb_per_second()
            ));
        }
    }

    fn summary(&self, program: &Program, records: &[StepRecord]) -> Result<()> {
        if let Some(error) = self.unprinted.take() {
            return Err(error);
        }
        if self.json {
            put_json(&records)?;
        }
        if !self.lines {
            return Ok(());
        }
        let mut out = Vec::new();
        for (step, record) in program.steps.iter().zip(records) {
            match (&record.outcome.table, &step.table) {
                (Some(table), None) => {
                    writeln!(out, "\n{}", step.name())?;
                    table.print(&mut out)?;
                }
                (Some(_), Some(path)) => writeln!(out, "\n{}: in {}", step.name(), path.display())?,
                (None, _) => {}
            }
        }
        writeln!(out)?;
        let used: Vec<ResourceRecord> = records.iter().map(|r| r.resources.clone()).collect();
        ResourceRecord::table(&used).print(&mut out)?;
        put(&out)
    }
}
