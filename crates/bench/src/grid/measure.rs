//! The measurements on a grid of our own.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer, Ask};
use forebay_grid::event::Verb;
use forebay_grid::parse::array::name_and_array;
use forebay_grid::spec::JobSpec;
use forebay_grid::vocabulary::JobId;

use super::own::Running;
use super::stand_in::{self, StandIn};
use crate::statistics::Summary;

/// Settings under which jobs start at intervals: LSF's way, with a tenth of its default of 10 s.
pub const INTERVAL: &str = "[general]\ndispatch = { interval = { sleep = \"1 s\", accept = 0 } }\n";

/// What a job says when it starts: nanoseconds since the epoch.
pub const STAMP: [&str; 2] = ["date", "+%s%N"];

/// One sample of one figure, or why there is none.
pub struct Figure {
    pub name: String,
    pub digits: usize,
    pub value: Result<f64, String>,
}

impl Figure {
    pub fn new(name: impl Into<String>, digits: usize, value: f64) -> Figure {
        Figure { name: name.into(), digits, value: Ok(value) }
    }

    pub fn absent(name: &str, reason: &str) -> Figure {
        Figure { name: name.to_owned(), digits: 0, value: Err(reason.to_owned()) }
    }
}

/// The time as [`STAMP`] says it, in milliseconds.
pub fn wall_ms() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    now.tv_sec as f64 * 1e3 + now.tv_nsec as f64 / 1e6
}

/// What a job wrote that ran [`STAMP`], in milliseconds.
pub fn stamp_of(text: &str) -> Result<f64> {
    let nanoseconds: u64 = text.trim().parse().with_context(|| format!("{text:?} is no time"))?;
    Ok(nanoseconds as f64 / 1e6)
}

/// Milliseconds that starting [`STAMP`] takes without a grid: the median of some.
pub fn process_start_ms() -> Result<f64> {
    let samples: Result<Vec<f64>> = (0..50)
        .map(|_| {
            let before = wall_ms();
            let output = Command::new(STAMP[0]).arg(STAMP[1]).stdin(Stdio::null()).output()?;
            Ok(stamp_of(&String::from_utf8_lossy(&output.stdout))? - before)
        })
        .collect();
    Ok(Summary::of(&samples?).context("samples were taken")?.median)
}

fn spec(running: &Running, command: &[&str]) -> Result<JobSpec> {
    spec_in(running.folder(), command)
}

/// Submissions of so many jobs that wait until they are released.
///
/// # Errors
/// If the folder in which they would run is not UTF-8.
pub fn held_jobs(folder: &Path, count: u32) -> Result<Vec<Ask>> {
    let spec = JobSpec { held: true, ..spec_in(folder, &["true"])? };
    Ok((0..count).map(|_| Ask::submit(spec.clone())).collect())
}

fn spec_in(folder: &Path, command: &[&str]) -> Result<JobSpec> {
    let directory = folder.to_str().context("the path of the scratch directory is not UTF-8")?;
    let path = ("PATH".to_owned(), std::env::var("PATH").unwrap_or_default());
    Ok(JobSpec {
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        directory: directory.to_owned(),
        output: Some("/dev/null".to_owned()),
        environment: vec![path].into(),
        umask: 0o022,
        ..JobSpec::default()
    })
}

fn submit(client: &mut Client, spec: JobSpec) -> Result<JobId> {
    match client.ask(&Ask::submit(spec))? {
        Answer::Accepted { job } => Ok(job),
        answer => bail!("not taken: {answer:?}"),
    }
}

/// Waits for the ends of jobs, all of which must be good.
fn wait(client: &mut Client, jobs: &[JobId]) -> Result<()> {
    let asks: Vec<Ask> = jobs.iter().map(|job| Ask::Wait { job: *job }).collect();
    client.ask_all(&asks, |_, answer| match answer {
        Answer::Ended { value: 0 } => Ok(()),
        answer => bail!("a job did not end well: {answer:?}"),
    })
}

/// The q-quantile of at least one sample.
pub fn quantile(samples: &mut [f64], q: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[((samples.len() - 1) as f64 * q).round() as usize]
}

/// From submitting to the start of the job, without what starting a process takes anyway.
fn start_latencies(running: &Running, count: u32) -> Result<Vec<f64>> {
    let mut client = running.client()?;
    let output = running.folder().join("stamp");
    let mut samples = Vec::new();
    for _ in 0..count {
        let mut spec = spec(running, &STAMP)?;
        spec.output = Some("stamp".to_owned());
        let before = wall_ms();
        let job = submit(&mut client, spec)?;
        wait(&mut client, &[job])?;
        samples.push(stamp_of(&std::fs::read_to_string(&output)?)? - before);
        // An idle grid: the last job is cleared away.
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(samples)
}

pub fn latency(running: &Running, count: u32) -> Result<Vec<Figure>> {
    let plain = process_start_ms()?;
    let mut beyond: Vec<f64> =
        start_latencies(running, count)?.into_iter().map(|sample| sample - plain).collect();
    let mut commands = Vec::new();
    for _ in 0..count.min(50) {
        let before = wall_ms();
        let output = running
            .command(&["submit", "--wait", "-o", "stamp", "--", STAMP[0], STAMP[1]])
            .output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        commands
            .push(stamp_of(&std::fs::read_to_string(running.folder().join("stamp"))?)? - before);
    }
    Ok(vec![
        Figure::new("start of a process without a grid, ms", 2, plain),
        Figure::new("submit to start beyond that, ms", 2, quantile(&mut beyond, 0.5)),
        Figure::new("submit to start beyond that, 99 of 100, ms", 2, quantile(&mut beyond, 0.99)),
        Figure::new(
            "`forebay submit`, the command started, to start, ms",
            2,
            quantile(&mut commands, 0.5),
        ),
    ])
}

/// Submits jobs, a thousand at a time as `forebay submit --batch` does.
pub fn submit_all(client: &mut Client, asks: &[Ask]) -> Result<Vec<JobId>> {
    let mut jobs = Vec::new();
    for asks in asks.chunks(1024) {
        client.ask_all(asks, |_, answer| match answer {
            Answer::Accepted { job } => {
                jobs.push(job);
                Ok(())
            }
            answer => bail!("not taken: {answer:?}"),
        })?;
    }
    Ok(jobs)
}

pub fn single(running: &Running, count: u32) -> Result<Vec<Figure>> {
    let mut client = running.client()?;
    let spec = spec(running, &["true"])?;
    let asks: Vec<Ask> = (0..count).map(|_| Ask::submit(spec.clone())).collect();
    let start = SystemClock.instant();
    let jobs = submit_all(&mut client, &asks)?;
    let accepted = start.elapsed().as_secs_f64();
    wait(&mut client, &jobs)?;
    let ended = start.elapsed().as_secs_f64();
    let count = f64::from(count);
    Ok(vec![
        Figure::new("single jobs of `true`: accepted durably, /s", 0, count / accepted),
        Figure::new("single jobs of `true`: submitted and run, /s", 0, count / ended),
    ])
}

pub fn array(running: &Running, count: u32) -> Result<Vec<Figure>> {
    let mut client = running.client()?;
    let mut spec = spec(running, &["true"])?;
    spec.array = name_and_array(&format!("a[1-{count}]"))?.1;
    let start = SystemClock.instant();
    let job = submit(&mut client, spec)?;
    let accepted = start.elapsed().as_secs_f64();
    wait(&mut client, &[job])?;
    let ended = start.elapsed().as_secs_f64();
    Ok(vec![
        Figure::new("an array of `true`: accepted durably, ms", 2, accepted * 1e3),
        Figure::new("an array of `true`: submitted and run, /s", 0, f64::from(count) / ended),
    ])
}

/// Milliseconds of a whole command: the median of some.
fn command_ms(running: &Running, arguments: &[&str]) -> Result<f64> {
    let samples: Result<Vec<f64>> = (0..9)
        .map(|_| {
            let start = SystemClock.instant();
            let mut command = running.command(arguments);
            let output = command.stdin(Stdio::null()).output()?;
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Ok(start.elapsed().as_secs_f64() * 1e3)
        })
        .collect();
    Ok(Summary::of(&samples?).context("samples were taken")?.median)
}

pub fn known(running: &Running, count: u32) -> Result<Vec<Figure>> {
    let mut client = running.client()?;
    let before = running.controller_memory()?;
    let mut jobs = submit_all(&mut client, &held_jobs(running.folder(), count)?)?;
    let waiting = running.controller_memory()?.saturating_sub(before);
    let middle = jobs[jobs.len() / 2].to_string();
    let mut figures = vec![
        Figure::new(
            "controller memory for each 100,000 jobs that wait, MiB",
            0,
            waiting as f64 / f64::from(count) * 100_000.0 / 1_048_576.0,
        ),
        Figure::new(
            format!("`forebay explain ID`, {count} jobs waiting, ms"),
            1,
            command_ms(running, &["explain", &middle])?,
        ),
        Figure::new(
            format!("`forebay jobs ID`, {count} jobs waiting, ms"),
            1,
            command_ms(running, &["jobs", &middle])?,
        ),
        Figure::new(
            format!("`forebay jobs`, listing all {count}, ms"),
            0,
            command_ms(running, &["jobs"])?,
        ),
    ];
    // Ended without having run, but for a few.
    let ends = jobs.split_off(10);
    let asks: Vec<Ask> =
        ends.iter().map(|job| Ask::Command { target: (*job).into(), verb: Verb::Kill }).collect();
    for asks in asks.chunks(1024) {
        client.ask_all(asks, |_, answer| match answer {
            Answer::Obeyed { .. } => Ok(()),
            answer => bail!("not killed: {answer:?}"),
        })?;
    }
    for (name, arguments) in [
        ("`forebay jobs`, 10 jobs waiting, all others ended, ms", &["jobs"][..]),
        ("`forebay explain ID`, the same, ms", &["explain", "1"]),
        ("`forebay history ID`, the same, ms", &["history", "1"]),
    ] {
        figures.push(Figure::new(name, 1, command_ms(running, arguments)?));
    }
    figures.push(Figure::new(
        "`forebay queues`, for comparison, ms",
        1,
        command_ms(running, &["queues"])?,
    ));
    Ok(figures)
}

/// Projects to which the jobs are charged: each has a row of its own in the sums of what was used.
const PROJECTS: u32 = 1000;

/// Commands when so many jobs have run, which a host that runs nothing says of them.
pub fn ended(running: &Running, count: u32) -> Result<Vec<Figure>> {
    let stand_in = StandIn::join(running, 1000)?;
    let mut client = running.client()?;
    let mut spec = spec(running, &["true"])?;
    spec.hosts = stand_in::NAME.parse().map_err(anyhow::Error::msg)?;
    let ask = |number: u32| {
        let project = format!("p{}", number % PROJECTS);
        Ask::submit(JobSpec { project, ..spec.clone() })
    };
    let asks: Vec<Ask> = (0..count).map(ask).collect();
    let start = SystemClock.instant();
    let jobs = submit_all(&mut client, &asks)?;
    wait(&mut client, &jobs)?;
    let seconds = start.elapsed().as_secs_f64();
    stand_in.leave()?;
    let mut figures = vec![Figure::new(
        "jobs through the controller without processes, /s",
        0,
        f64::from(count) / seconds,
    )];
    let middle = jobs[jobs.len() / 2].to_string();
    for (name, arguments) in [
        ("`forebay usage`", &["usage"][..]),
        ("`forebay usage --by day,user,queue`", &["usage", "--by", "day,user,queue"]),
        ("`forebay usage --by project,host`", &["usage", "--by", "project,host"]),
        ("`forebay jobs ID`", &["jobs", &middle]),
        ("`forebay explain ID`", &["explain", &middle]),
        ("`forebay history ID`", &["history", &middle]),
    ] {
        let name = format!("{name}, {count} attempts of {PROJECTS} projects ended, ms");
        figures.push(Figure::new(name, 1, command_ms(running, arguments)?));
    }
    Ok(figures)
}

pub fn interval(running: &Running, count: u32) -> Result<Vec<Figure>> {
    let plain = process_start_ms()?;
    let mut samples = start_latencies(running, count)?;
    Ok(vec![Figure::new(
        "submit to start beyond that, started at intervals of 1 s, ms",
        0,
        quantile(&mut samples, 0.5) - plain,
    )])
}
