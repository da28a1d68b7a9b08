//! A grid whose hosts exist in virtual time: the pure core decides, everything that agents and users would do is an entry of an agenda.
//!
//! Jobs take as long as the scenario says. Nothing is written and nothing runs, so what is measured is the core alone.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_grid::config::{Config, HostEngine, Load};
use forebay_grid::event::{Joined, Memory};
use forebay_grid::hosts::Facts;
use forebay_grid::spec::{Exit, JobSpec};
use forebay_grid::vocabulary::{Attempt, HostName, JobId, Moment, TaskId, UserName};
use forebay_grid::{Effect, Event, Grid, Ledger, Outcome};

/// How long after its order a job starts on its host, in milliseconds.
const START_MS: u64 = 5;

/// Time between two reports of a host: a quarter of the default lease, as agents do.
const REPORT_MS: u64 = 15_000;

/// A job to be submitted.
#[derive(Clone, Debug)]
pub struct Submission {
    /// Number of its user.
    pub user: u32,
    /// Its slots.
    pub slots: u32,
    /// How long it runs, in milliseconds.
    pub runs_ms: u64,
    /// Whom its end is reported to.
    pub session: Option<usize>,
}

/// What is known of a job.
#[derive(Clone, Debug)]
pub struct Known {
    /// As it was submitted.
    pub submission: Submission,
    /// When it was submitted, in milliseconds.
    pub submitted_ms: u64,
    /// When it was given to a host.
    pub launched_ms: Option<u64>,
    /// When it ended.
    pub ended_ms: Option<u64>,
}

impl Known {
    /// How long it waited for a slot.
    pub fn waited_ms(&self) -> Option<u64> {
        Some(self.launched_ms? - self.submitted_ms)
    }
}

/// What comes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Entry {
    Report(usize),
    Started(usize, JobId, Attempt),
    Exited(usize, JobId, Attempt),
    Session(usize),
}

/// What the core did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// Events that it took.
    pub events: u64,
    /// Records that would have been made durable.
    pub records: u64,
    /// Time in the core.
    pub time: Duration,
    /// The longest event.
    pub longest: Duration,
}

/// The grid with its hosts.
pub struct VirtualHosts {
    grid: Grid,
    out: Outcome,
    now_ms: u64,
    hosts: Vec<HostName>,
    numbers: BTreeMap<HostName, usize>,
    slots: u32,
    /// Slots in use on each host: the simulation's own count.
    used: Vec<u32>,
    users: Vec<UserName>,
    agenda: BinaryHeap<Reverse<(u64, Entry)>>,
    /// By number; the first one is 1.
    pub jobs: Vec<Known>,
    /// Jobs that have not ended.
    open: usize,
    /// Sessions whose job has ended.
    idle: Vec<usize>,
    /// What the core did.
    pub work: Work,
}

impl VirtualHosts {
    /// Hosts with so many slots each, under these settings.
    ///
    /// # Errors
    /// If the settings are not valid.
    pub fn new(settings: &str, hosts: usize, slots: u32, users: u32) -> Result<VirtualHosts> {
        let config = Config::read(settings).map_err(|error| anyhow::anyhow!("{error}"))?;
        let grid = Grid::restore(Ledger::default(), [], Moment(0))
            .map_err(|error| anyhow::anyhow!("{error:?}"))?;
        let name = |number: usize| format!("host{number}").parse::<HostName>();
        let hosts = (0..hosts).map(name).collect::<Result<Vec<_>, _>>();
        let hosts = hosts.map_err(|error| anyhow::anyhow!("{error}"))?;
        let users = (0..users).map(|number| format!("user{number}").parse::<UserName>());
        let users =
            users.collect::<Result<Vec<_>, _>>().map_err(|error| anyhow::anyhow!("{error}"))?;
        let numbers = hosts.iter().cloned().zip(0..).collect();
        let mut own = VirtualHosts {
            grid,
            out: Outcome::default(),
            now_ms: 1,
            used: vec![0; hosts.len()],
            hosts,
            numbers,
            slots,
            users,
            agenda: BinaryHeap::new(),
            jobs: Vec::new(),
            open: 0,
            idle: Vec::new(),
            work: Work::default(),
        };
        own.send(Event::Configured(Box::new(config)))?;
        Ok(own)
    }

    /// All hosts join, spread over the time between two reports.
    ///
    /// # Errors
    /// If the grid does what it must not.
    pub fn join_all(&mut self) -> Result<()> {
        for host in 0..self.hosts.len() {
            let joined = Joined {
                host: self.hosts[host].clone(),
                facts: Facts { cores: self.slots, memory_bytes: 256 << 30 },
                memory: Memory::Kept,
                engine: HostEngine::Agent,
                runs: Vec::new(),
            };
            self.send(Event::HostJoined(Box::new(joined)))?;
            let first = self.now_ms + 1 + (host as u64 * REPORT_MS) / self.hosts.len() as u64;
            self.agenda.push(Reverse((first, Entry::Report(host))));
        }
        Ok(())
    }

    /// The virtual time, in milliseconds.
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Jobs that have not ended.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Submits a job now.
    ///
    /// # Errors
    /// If the grid refuses it.
    pub fn submit(&mut self, submission: Submission) -> Result<()> {
        let spec = JobSpec {
            command: vec!["program".to_owned()],
            directory: "/home".to_owned(),
            slots: submission.slots,
            ..JobSpec::default()
        };
        let user = self.users[submission.user as usize].clone();
        let submitted_ms = self.now_ms;
        self.jobs.push(Known { submission, submitted_ms, launched_ms: None, ended_ms: None });
        self.open += 1;
        self.send(Event::Submit { user, spec: Box::new(spec), key: None })
    }

    /// Wakes a session at a time: [`VirtualHosts::step`] returns it then.
    pub fn wake_session(&mut self, session: usize, at_ms: u64) {
        self.agenda.push(Reverse((at_ms, Entry::Session(session))));
    }

    /// Goes to the next entry of the agenda. Sessions whose job has ended, or that are to begin.
    ///
    /// # Errors
    /// If the grid does what it must not, or nothing is left to happen while jobs wait.
    pub fn step(&mut self) -> Result<Vec<usize>> {
        let Some(Reverse((at_ms, _))) = self.agenda.peek() else {
            bail!("nothing happens any more, and {} jobs have not ended", self.open);
        };
        let wake = self.grid.next_wake().0;
        if wake < *at_ms {
            self.now_ms = self.now_ms.max(wake);
            self.send(Event::Tick)?;
            return Ok(std::mem::take(&mut self.idle));
        }
        let Some(Reverse((at_ms, entry))) = self.agenda.pop() else { return Ok(Vec::new()) };
        self.now_ms = self.now_ms.max(at_ms);
        match entry {
            Entry::Report(host) => {
                let name = self.hosts[host].clone();
                self.send(Event::HostLoad { host: name, load: Load::default() })?;
                self.agenda.push(Reverse((self.now_ms + REPORT_MS, Entry::Report(host))));
            }
            Entry::Started(host, job, attempt) => {
                let host = self.hosts[host].clone();
                self.send(Event::Started { host, task: TaskId::only(job), attempt })?;
            }
            Entry::Exited(host, job, attempt) => self.end(host, job, attempt)?,
            Entry::Session(session) => self.idle.push(session),
        }
        Ok(std::mem::take(&mut self.idle))
    }

    fn end(&mut self, host: usize, job: JobId, attempt: Attempt) -> Result<()> {
        let known = &mut self.jobs[job.0 as usize - 1];
        known.ended_ms = Some(self.now_ms);
        self.used[host] -= known.submission.slots;
        self.idle.extend(known.submission.session);
        self.open -= 1;
        let (host, task) = (self.hosts[host].clone(), TaskId::only(job));
        let exit = Exit::Code(0);
        self.send(Event::Exited { host, task, attempt, exit, usage: None })
    }

    fn send(&mut self, event: Event) -> Result<()> {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            self.out.clear();
            let begun = SystemClock.instant();
            self.grid.apply(Moment(self.now_ms), event, &mut self.out);
            let took = SystemClock.instant().saturating_duration_since(begun);
            self.work.events += 1;
            self.work.records += self.out.records.len() as u64;
            self.work.time += took;
            self.work.longest = self.work.longest.max(took);
            next = self.carry_out()?;
        }
        Ok(())
    }

    /// Does what agents would do. An answer that they give at once is the next event.
    fn carry_out(&mut self) -> Result<Option<Event>> {
        let mut answer = None;
        for effect in &self.out.effects {
            match effect {
                Effect::Launch { task, attempt, host, slots, .. } => {
                    let number = *self.numbers.get(host).context("a host that never joined")?;
                    let known = &mut self.jobs[task.job.0 as usize - 1];
                    anyhow::ensure!(known.launched_ms.is_none(), "job {} started twice", task.job);
                    known.launched_ms = Some(self.now_ms);
                    self.used[number] += slots;
                    anyhow::ensure!(
                        self.used[number] <= self.slots,
                        "{host} was given more than its {} slots",
                        self.slots
                    );
                    let (start, end) =
                        (self.now_ms + START_MS, known.submission.runs_ms.max(START_MS + 1));
                    self.agenda.push(Reverse((start, Entry::Started(number, task.job, *attempt))));
                    let entry = Entry::Exited(number, task.job, *attempt);
                    self.agenda.push(Reverse((self.now_ms + end, entry)));
                }
                Effect::ReleaseWork { task, requeues, .. } => {
                    let released =
                        Event::WorkReleased { task: *task, requeues: *requeues, result: Ok(()) };
                    anyhow::ensure!(answer.replace(released).is_none(), "two areas at a time");
                }
                Effect::Rejected(refusal) => bail!("a job was refused: {refusal}"),
                _ => {}
            }
        }
        Ok(answer)
    }
}
