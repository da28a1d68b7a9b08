//! Loads as processes of their own.
//!
//! A worker is this program again (`forebay-bench worker`). It reads its job from standard input as one
//! line of JSON, says `ready`, waits for another line, works, and answers with one line of JSON. Only
//! workers touch what is measured, so that an interrupted benchmark has nothing open there.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use forebay_analytics::amount::Scale;
use forebay_base::time::SystemClock;
use forebay_base::{ByteSize, Clock as _};
use forebay_workload::load::Stream;
use forebay_workload::load::{Calibration, Metadata, Sequential, Storm};
use forebay_workload::program::{self, Action as _, Buffers, Context as StepContext, Places};
use serde::{Deserialize, Serialize};

use crate::figure::{Figure, Figures};
use crate::interrupt::Interrupt;
use crate::machine::drop_caches;
use crate::peer::{Cell, Chore};

/// What a worker is to do in a directory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Job {
    /// Make a directory.
    Make,
    /// Write to so many bytes of memory and give them back: a virtual machine may have to fetch
    /// memory from its host first, which would be measured otherwise.
    TouchMemory(ByteSize),
    /// Write a file and read it back, hot and cold.
    Sequential(Sequential),
    /// Temporary files; the figure says of how many workers.
    Storm(Figure, Storm),
    /// Many empty files.
    Metadata(Metadata),
    /// Make the shared table.
    Table(Calibration),
    /// Be worker `.1` of a calibration load.
    Calibration(Calibration, u32),
    /// Make `directories` directories with `files` empty files each, and leave them.
    Fill {
        /// How many directories.
        directories: u64,
        /// How many files in each.
        files: u64,
    },
    /// Be a stream of several on files in `data`, which is the directory.
    Stream {
        /// What it does.
        stream: Box<Stream>,
        /// Which one it is, from 0.
        number: u64,
        /// How many there are.
        count: u64,
    },
    /// Make and remove a file again and again for so many seconds, to find the longest time without an answer.
    Pulse {
        /// How long.
        seconds: f64,
    },
    /// Have other programs do something.
    Chore(Chore),
    /// Remove the directory and everything in it.
    Remove,
}

/// A job and its place.
#[derive(Serialize, Deserialize)]
struct Order {
    directory: PathBuf,
    job: Job,
}

/// What a worker answers.
#[derive(Serialize, Deserialize)]
enum Report {
    Done(Figures),
    Streamed(Streamed),
    Failed(String),
}

/// What a stream did.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Streamed {
    /// Bytes read and written.
    pub bytes: f64,
    /// Seconds from its first call to the end of its last.
    pub seconds: f64,
}

/// The body of `forebay-bench worker`.
///
/// # Errors
/// If nobody is listening; a job that fails is reported.
pub fn work() -> Result<()> {
    // Ctrl-C is for the benchmark, not for its workers. And the kernel shares processors out by
    // session (sched(7), autogroup): fio's workers have sessions too.
    rustix::process::setsid()?;
    let mut input = std::io::stdin().lock();
    let mut line = String::new();
    input.read_line(&mut line)?;
    let order: Order = serde_json::from_str(&line).context("give a job as a line of JSON")?;
    println!("ready");
    line.clear();
    if input.read_line(&mut line)? == 0 {
        return Ok(());
    }
    let report = match &order.job {
        Job::Stream { stream, number, count } => {
            run_stream(&order.directory, stream, *number, *count).map(Report::Streamed)
        }
        _ => carry_out(&order).map(Report::Done),
    };
    let report = report.unwrap_or_else(|error| Report::Failed(format!("{error:#}")));
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

fn carry_out(order: &Order) -> Result<Figures> {
    let (directory, clock) = (order.directory.as_path(), SystemClock);
    let mut figures = Figures::new();
    match &order.job {
        Job::Stream { .. } => bail!("a stream has no figures"),
        Job::Make => fs::create_dir(directory).with_context(|| directory.display().to_string())?,
        Job::Remove => fs::remove_dir_all(directory)?,
        Job::TouchMemory(bytes) => {
            std::hint::black_box(vec![1_u8; bytes.as_usize()]);
        }
        Job::Sequential(load) => {
            let result = load.run(directory, &clock, Some(&mut drop_caches))?;
            figures.insert(Figure::SequentialWrite, result.write.mb_per_second);
            figures.insert(Figure::ReadHot, result.read_hot.mb_per_second);
            if let Some(cold) = result.read_cold {
                figures.insert(Figure::ReadCold, cold.mb_per_second);
            }
        }
        Job::Storm(figure, load) => {
            let result = load.run(directory, &clock)?;
            figures.insert(*figure, result.files.per_second);
            if *figure == Figure::StormFour {
                figures.insert(Figure::SlowCreate, result.create_p999_seconds * 1e3);
            }
        }
        Job::Metadata(load) => {
            let result = load.run(directory, &clock, Some(&mut drop_caches))?;
            figures.insert(Figure::Create, result.create.per_second);
            figures.insert(Figure::StatCached, result.stat_cached.per_second);
            if let Some(cold) = result.stat_cold {
                figures.insert(Figure::StatCold, cold.per_second);
            }
            figures.insert(Figure::Readdir, result.readdir.per_second);
            figures.insert(Figure::Unlink, result.unlink.per_second);
        }
        Job::Table(load) => {
            load.prepare(directory)?;
        }
        Job::Calibration(load, number) => {
            load.work(&directory.join("table"), directory, *number)?;
        }
        Job::Chore(chore) => figures = chore.carry_out(directory)?,
        Job::Pulse { seconds } => {
            let silence = pulse(directory, *seconds)?;
            figures.insert(Figure::Silence, silence * 1e3);
        }
        Job::Fill { directories, files } => {
            let start = clock.instant();
            fill(directory, *directories, *files)?;
            let seconds = (clock.instant() - start).as_secs_f64();
            figures.insert(Figure::Create, (directories * files) as f64 / seconds);
        }
    }
    Ok(figures)
}

/// Runs a stream as a program does.
fn run_stream(directory: &Path, stream: &Stream, number: u64, count: u64) -> Result<Streamed> {
    let place = || directory.to_owned();
    let context = StepContext {
        places: Places { data: place(), work: place(), util: place() },
        job: program::Job { name: number.to_string(), class: "probe".to_owned(), number, count },
        seed: 1,
        scale: Scale::FULL,
        buffers: Buffers::default(),
        clock: &SystemClock,
    };
    let mut stream = stream.clone();
    stream.prepare(&context)?;
    let figures = stream.perform(&context, &mut |_| {})?.figures;
    let figure = |name: &str| figures.get(name).copied().with_context(|| format!("no {name}"));
    Ok(Streamed { bytes: figure("bytes")?, seconds: figure("seconds")? })
}

/// Makes and removes a file for so many seconds; returns the longest time between two answers. A call that fails is no
/// answer.
fn pulse(directory: &Path, seconds: f64) -> Result<f64> {
    let (clock, path) = (SystemClock, directory.join(format!("pulse-{}", std::process::id())));
    let begin = clock.instant();
    let since = |start: std::time::Instant| (clock.instant() - start).as_secs_f64();
    let (mut answered, mut longest, mut answers) = (begin, 0.0_f64, 0_u64);
    while since(begin) < seconds {
        // A call that was cut off may have made it.
        let _ = fs::remove_file(&path);
        if File::create_new(&path).and_then(|_| fs::remove_file(&path)).is_ok() {
            (longest, answered, answers) =
                (longest.max(since(answered)), clock.instant(), answers + 1);
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    if answers == 0 || since(answered) > longest.max(1.0) {
        bail!("no answer at the end of {seconds} s");
    }
    Ok(longest)
}

fn fill(directory: &Path, directories: u64, files: u64) -> Result<()> {
    for number in 0..directories {
        let inner = directory.join(format!("directory-{number:05}"));
        fs::create_dir(&inner).with_context(|| inner.display().to_string())?;
        for file in 0..files {
            let path = inner.join(format!("file-{file:08}"));
            File::create_new(&path).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

/// A process that has a job. Dropped, it has ended: by itself if it has answered, otherwise killed.
struct Worker {
    child: Child,
    /// Whether it has nothing more to do than to end.
    answered: bool,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    _cover: Arc<OwnedFd>,
}

impl Worker {
    /// Starts one and waits until it is ready.
    fn start(jobs: Jobs<'_>, directory: &Path, job: &Job) -> Result<Worker> {
        jobs.interrupt.check()?;
        let program = std::env::current_exe()?;
        let mut command = match jobs.within {
            Some(cell) => cell.command(&program),
            None => Command::new(program),
        };
        let mut child = command
            .arg("worker")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a worker")?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.context("a worker has no pipes")?;
        let cover = jobs.interrupt.cover(&child)?;
        let output = BufReader::new(output);
        let mut worker = Worker { child, answered: false, input, output, _cover: cover };
        let order = Order { directory: directory.to_owned(), job: job.clone() };
        worker.say(&serde_json::to_string(&order)?)?;
        if worker.hear()? != "ready" {
            bail!("a worker does not get ready");
        }
        Ok(worker)
    }

    fn say(&mut self, line: &str) -> Result<()> {
        writeln!(self.input, "{line}").context("a worker is gone")
    }

    fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            bail!("a worker ended early ({})", self.child.wait()?);
        }
        Ok(line.trim_end().to_owned())
    }

    fn answer(&mut self) -> Result<Report> {
        let line = self.hear()?;
        self.answered = true;
        Ok(serde_json::from_str(&line)?)
    }

    fn result(&mut self) -> Result<Figures> {
        match self.answer()? {
            Report::Done(figures) => Ok(figures),
            Report::Streamed(_) => bail!("a worker streamed that was not to"),
            Report::Failed(why) => bail!("{why}"),
        }
    }

    fn streamed(&mut self) -> Result<Streamed> {
        match self.answer()? {
            Report::Streamed(streamed) => Ok(streamed),
            Report::Done(_) => bail!("a worker did not stream"),
            Report::Failed(why) => bail!("{why}"),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // In a cell the child is nsenter(1), which has to outlive the worker: otherwise the time that
        // the worker took is told to nobody.
        if !self.answered {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// Runs jobs, each in a process of its own.
#[derive(Clone, Copy)]
pub struct Jobs<'a> {
    /// Ends them.
    pub interrupt: &'a Interrupt,
    /// Where they run, if not beside this process. Jobs that a signal cut off end with the cell.
    pub within: Option<&'a Cell>,
}

impl Jobs<'_> {
    /// Runs one job in `directory`.
    ///
    /// # Errors
    /// If it fails; after a signal.
    pub fn run(self, directory: &Path, job: &Job) -> Result<Figures> {
        let done = self.run_uncovered(directory, job);
        // A worker that was killed says less than why it was.
        self.interrupt.check()?;
        done
    }

    fn run_uncovered(self, directory: &Path, job: &Job) -> Result<Figures> {
        let mut worker = Worker::start(self, directory, job)?;
        worker.say("go")?;
        worker.result()
    }

    /// Runs `count` times the same stream on files in `directory`, each in a process of its own.
    ///
    /// # Errors
    /// If one fails; after a signal.
    pub fn stream(self, directory: &Path, stream: &Stream, count: u64) -> Result<Vec<Streamed>> {
        let done = self.stream_uncovered(directory, stream, count);
        self.interrupt.check()?;
        done
    }

    fn stream_uncovered(
        self,
        directory: &Path,
        stream: &Stream,
        count: u64,
    ) -> Result<Vec<Streamed>> {
        let jobs = (0..count).map(|number| {
            let stream = Box::new(stream.clone());
            Job::Stream { stream, number, count }
        });
        let mut workers = self.ready(directory, jobs)?;
        go(&mut workers)?;
        workers.iter_mut().map(Worker::streamed).collect()
    }

    /// Starts a worker for each job, all of them ready to go.
    fn ready(self, directory: &Path, jobs: impl Iterator<Item = Job>) -> Result<Vec<Worker>> {
        jobs.map(|job| Worker::start(self, directory, &job)).collect()
    }

    /// Runs a calibration load in `directory` with a process per worker; its outcome is `figure`.
    ///
    /// # Errors
    /// If one fails; after a signal.
    pub fn calibrate(
        self,
        directory: &Path,
        load: &Calibration,
        figure: Figure,
    ) -> Result<Figures> {
        self.run(directory, &Job::Table(load.clone()))?;
        let jobs = (0..load.workers).map(|number| Job::Calibration(load.clone(), number));
        let (seconds, _) = self.race(directory, jobs)?;
        let files = load.temp_files_per_worker * u64::from(load.workers);
        Ok(Figures::from([(figure, files as f64 / seconds)]))
    }

    /// Runs jobs at once in `directory`, and returns the seconds until the last has ended, and what each
    /// measured.
    ///
    /// # Errors
    /// If one fails; after a signal.
    pub fn race(
        self,
        directory: &Path,
        jobs: impl Iterator<Item = Job>,
    ) -> Result<(f64, Vec<Figures>)> {
        self.race_in(jobs.map(|job| (directory.to_owned(), job)))
    }

    /// As [`Jobs::race`], each job in a directory of its own.
    ///
    /// # Errors
    /// If one fails; after a signal.
    pub fn race_in(
        self,
        jobs: impl Iterator<Item = (PathBuf, Job)>,
    ) -> Result<(f64, Vec<Figures>)> {
        let done = self.race_uncovered(jobs);
        self.interrupt.check()?;
        done
    }

    fn race_uncovered(
        self,
        jobs: impl Iterator<Item = (PathBuf, Job)>,
    ) -> Result<(f64, Vec<Figures>)> {
        let ready = jobs.map(|(directory, job)| Worker::start(self, &directory, &job));
        let mut workers = ready.collect::<Result<Vec<Worker>>>()?;
        let start = SystemClock.instant();
        go(&mut workers)?;
        let figures = workers.iter_mut().map(Worker::result).collect::<Result<_>>()?;
        Ok(((SystemClock.instant() - start).as_secs_f64(), figures))
    }
}

fn go(workers: &mut [Worker]) -> Result<()> {
    workers.iter_mut().try_for_each(|worker| worker.say("go"))
}

/// The size of every load.
#[derive(Clone, Debug, Serialize)]
pub struct Sizes {
    /// Writing and reading.
    pub sequential: Sequential,
    /// Temporary files, one worker.
    pub storm_one: Storm,
    /// Temporary files, four workers.
    pub storm_four: Storm,
    /// Calibration mix.
    pub calibration: Calibration,
    /// Calibration mix of small files.
    pub calibration_small: Calibration,
    /// Empty files in one directory.
    pub metadata: Metadata,
    /// Files of the source tree.
    pub tree_files: u64,
    /// Rows of the database.
    pub rows: u64,
    /// Directories of 1,000 empty files in which the memory is measured.
    pub memory_directories: u64,
}

impl Sizes {
    /// The standard sizes times `scale`.
    #[must_use]
    pub fn scaled(scale: f64) -> Sizes {
        let of = |number: u64| ((number as f64 * scale) as u64).max(1);
        let mib = |number: u64| ByteSize::mib(of(number));
        let calibration = Calibration {
            temp_files_per_worker: of(2500),
            table_bytes: mib(256),
            extract_bytes: mib(64),
            ..Calibration::default()
        };
        Sizes {
            sequential: Sequential { total_bytes: mib(2048), ..Sequential::default() },
            storm_one: Storm { workers: 1, files_per_worker: of(10_000), ..Storm::default() },
            storm_four: Storm { workers: 4, files_per_worker: of(5_000), ..Storm::default() },
            calibration_small: Calibration {
                temp_median: ByteSize::kib(64),
                ..calibration.clone()
            },
            calibration,
            metadata: Metadata { files: of(100_000) },
            tree_files: of(3000),
            rows: of(1000),
            memory_directories: of(1000),
        }
    }

    /// Memory that the caches of one load take, in bytes.
    #[must_use]
    pub fn cached(&self) -> ByteSize {
        ByteSize(self.sequential.total_bytes.0 + (512 << 20))
    }

    /// Space that a disk needs for these loads, one at a time: what is there at once, and what may
    /// be under way to the disk of files that are deleted.
    #[must_use]
    pub fn space(&self) -> ByteSize {
        let temp_files =
            self.calibration.temp_files_per_worker * u64::from(self.calibration.workers);
        let calibration = self.calibration.table_bytes.0 + (temp_files << 19);
        ByteSize(self.sequential.total_bytes.0.max(calibration) + (2 << 30))
    }
}
