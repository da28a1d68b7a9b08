//! Runs the jobs of a study on the grid: a [`Launcher`] whose slots are those of the hosts.
//!
//! Each job becomes a job of the grid, durable before the launcher goes on. Nothing is polled: one
//! connection submits, another is told of starts and ends. When the controller goes away, the jobs go on;
//! the launcher connects again and is told what happened meanwhile. A submission whose answer was lost is made
//! again with the same key, so that no job runs twice. What a job used is what the grid has
//! recorded of its last start.
//!
//! Logical nodes are hosts: the jobs of the first node run on the first host by name, those of the next on the next, and so
//! on again where there are more nodes than hosts. How many jobs run at once is up to the slots of the hosts. On a grid of a
//! cluster each host has a watcher as well ([`forebay_study::hosts`]), which is a job too; numbers of processes are not
//! told then, because they are those of other machines.
//!
//! What it does not do: start jobs again that were lost with their host. Memory: one entry for each job
//! that has not ended.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use forebay_base::{Clock, Usage};
use forebay_engine::home::GridHome;
use forebay_engine::protocol::client::{Client, Notices, Watching};
use forebay_engine::protocol::{Answer, Ask, Notice};
use forebay_grid::account::AttemptRecord;
use forebay_grid::event::Verb;
use forebay_grid::parse::hosts::HostList;
use forebay_grid::spec::{Exit, JobSpec, Rerun};
use forebay_grid::vocabulary::{HostName, JobId, Moment};
use forebay_process::accounting::Counters;
use forebay_study::error::{Error, Result};
use forebay_study::record::Exit as StudyExit;
use forebay_study::run::{Event, Launch, Launcher};
use uuid::Uuid;

/// How long the controller may be away.
const AWAY_MAX: Duration = Duration::from_secs(60);

/// How long jobs have to end that were killed: a little longer than the grid gives them.
const END_MAX: Duration = Duration::from_secs(30);

const PAUSE: Duration = Duration::from_millis(50);

/// Starts jobs by submitting them.
pub struct GridLauncher {
    home: GridHome,
    clock: Arc<dyn Clock>,
    /// What all jobs have in common; its name is the beginning of theirs.
    template: JobSpec,
    /// The hosts on which the jobs may run, by name.
    hosts: Vec<HostName>,
    /// Whether the hosts are machines of their own, each with a watcher.
    sight: Sight,
    /// Jobs that are watchers.
    watchers: Vec<JobId>,
    client: Option<Client>,
    watching: Option<Watching>,
    /// Number of the connection that watches; what an older one still says is not heard.
    connection: u64,
    heard: (Sender<Heard>, Receiver<Heard>),
    jobs: BTreeMap<JobId, Tracked>,
    ready: Vec<Event>,
    lost_since: Option<Instant>,
}

/// Where the processes of jobs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// On this machine.
    Here,
    /// On the hosts of a cluster.
    Hosts,
}

/// A job that has not ended.
struct Tracked {
    number: usize,
    host: Option<HostName>,
    output: PathBuf,
    started: bool,
    last: Option<Box<AttemptRecord>>,
}

struct Heard {
    connection: u64,
    /// None at the end of the connection.
    answer: Option<Answer>,
}

fn refuse(reason: impl std::fmt::Display) -> Error {
    Error::Launcher { reason: format!("grid: {reason}") }
}

impl GridLauncher {
    /// A launcher on a grid with these hosts.
    ///
    /// # Errors
    /// If its controller does not answer.
    pub fn connect(
        home: GridHome,
        mut hosts: Vec<HostName>,
        sight: Sight,
        template: JobSpec,
        clock: Arc<dyn Clock>,
    ) -> Result<GridLauncher> {
        hosts.sort();
        let mut launcher = GridLauncher {
            home,
            clock,
            template,
            hosts,
            sight,
            watchers: Vec::new(),
            client: None,
            watching: None,
            connection: 0,
            heard: channel(),
            jobs: BTreeMap::new(),
            ready: Vec::new(),
            lost_since: None,
        };
        launcher.reconnect().map_err(refuse)?;
        Ok(launcher)
    }

    /// Connects, and asks for what happens to all jobs that have not ended.
    fn reconnect(&mut self) -> anyhow::Result<()> {
        self.disconnect();
        let client = Client::connect(&self.home)?;
        let (watching, notices) = Client::connect(&self.home)?.into_watch();
        self.connection += 1;
        let (connection, heard) = (self.connection, self.heard.0.clone());
        std::thread::Builder::new()
            .name("notices".to_owned())
            .spawn(move || listen(connection, notices, &heard))?;
        // While its answers are read: no more is taken from one who does not read.
        for &job in self.jobs.keys() {
            watching.watch(job)?;
        }
        (self.client, self.watching) = (Some(client), Some(watching));
        self.lost_since = None;
        Ok(())
    }

    fn disconnect(&mut self) {
        self.client = None;
        self.watching = None;
    }

    /// Connects again if the connection is lost; an error once that takes too long.
    fn stay_connected(&mut self) -> Result<()> {
        if self.client.is_some() && self.watching.is_some() {
            return Ok(());
        }
        // Also a controller that is there may be busy, and end each connection at once.
        std::thread::sleep(PAUSE);
        let now = self.clock.instant();
        let since = *self.lost_since.get_or_insert(now);
        match self.reconnect() {
            Ok(()) => Ok(()),
            Err(error) if now.saturating_duration_since(since) > AWAY_MAX => {
                Err(refuse(format!("{error:#}")))
            }
            Err(_) => Ok(()),
        }
    }

    /// Asks until there is an answer, however often the controller goes away meanwhile.
    fn ask(&mut self, ask: &Ask) -> Result<Answer> {
        loop {
            match self.client.as_mut().map(|client| client.exchange(ask)) {
                Some(Ok(answer)) => return Ok(answer),
                Some(Err(_)) => self.disconnect(),
                None => {}
            }
            self.stay_connected()?;
        }
    }

    /// The host of a logical node; none on a grid of one host, which takes what it gets.
    fn host_of(&self, node: u32) -> Option<&HostName> {
        let several = self.hosts.len() > 1 || self.sight == Sight::Hosts;
        several.then(|| &self.hosts[node as usize % self.hosts.len()])
    }

    fn spec(&self, launch: &Launch) -> Result<JobSpec> {
        let text = |word: &std::ffi::OsString| match word.to_str() {
            Some(word) => Ok(word.to_owned()),
            None => Err(refuse(format!("the path {} is not UTF-8", word.display()))),
        };
        let output = launch.output.clone().into_os_string();
        let hosts = match self.host_of(launch.node) {
            Some(host) => only(host)?,
            None => self.template.hosts.clone(),
        };
        Ok(JobSpec {
            command: launch.command.iter().map(text).collect::<Result<_>>()?,
            name: format!("{}-{}", self.template.name, launch.name),
            output: Some(text(&output)?),
            hosts,
            // A second start would be measured with the first.
            rerun: Rerun::Once,
            ..self.template.clone()
        })
    }

    /// Submits a job; asked again with the same key as often as needed, so that no job runs twice.
    fn accepted(&mut self, spec: JobSpec) -> Result<JobId> {
        let spec = Box::new(spec);
        match self.ask(&Ask::Submit { spec, key: Some(Uuid::new_v4()) })? {
            Answer::Accepted { job } => Ok(job),
            Answer::Refused(refusal) => Err(refuse(refusal)),
            _ => Err(refuse("the controller's answer cannot be understood")),
        }
    }

    /// The hosts on which jobs may run, by name.
    pub fn hosts(&self) -> &[HostName] {
        &self.hosts
    }

    /// Submits the watcher of a host; what it prints goes to `output`. Its job.
    ///
    /// # Errors
    /// If the grid refuses it.
    pub fn watch_host(
        &mut self,
        place: usize,
        command: Vec<String>,
        output: String,
    ) -> Result<JobId> {
        let host = &self.hosts[place];
        let spec = JobSpec {
            command,
            name: format!("{}-watch-{host}", self.template.name),
            output: Some(output),
            hosts: only(host)?,
            slots: 1,
            rerun: Rerun::Once,
            ..self.template.clone()
        };
        let job = self.accepted(spec)?;
        self.watchers.push(job);
        Ok(job)
    }

    /// The grid.
    pub fn home(&self) -> &GridHome {
        &self.home
    }

    /// Ends watchers by force: those that wait for their start, and those that do not listen. One that has ended is left alone.
    pub fn end_watchers(&mut self) {
        for job in std::mem::take(&mut self.watchers) {
            // One that has ended refuses; without a controller nobody can be told.
            let _ = self.ask(&Ask::Command { target: job.into(), verb: Verb::Kill });
        }
    }

    /// The moment that the controller told, on the clock of the study.
    fn instant_of(&self, at: Moment) -> Instant {
        let (now, instant) = (Moment::from(self.clock.now()), self.clock.instant());
        instant.checked_sub(Duration::from_millis(now.since(at))).unwrap_or(instant)
    }

    fn take(&mut self, heard: Heard) -> Result<()> {
        if heard.connection != self.connection {
            return Ok(());
        }
        match heard.answer {
            None | Some(Answer::Busy { .. }) => self.disconnect(),
            Some(Answer::Noticed { notice }) => self.notice(notice),
            Some(Answer::Refused(refusal)) => return Err(refuse(refusal)),
            Some(_) => return Err(refuse("the controller's answer cannot be understood")),
        }
        Ok(())
    }

    fn notice(&mut self, notice: Notice) {
        match notice {
            Notice::Started { task, at, pid, .. } => self.start(task.job, at, pid),
            Notice::Ended { record } => {
                if let Some(job) = self.jobs.get_mut(&record.task.job) {
                    job.last = Some(record);
                }
            }
            Notice::Finished { job, at, .. } => self.end(job, at),
        }
    }

    fn start(&mut self, job: JobId, at: Moment, pid: Option<u32>) {
        let at = self.instant_of(at);
        let pid = pid.filter(|_| self.sight == Sight::Here);
        // It may be told twice, and be started twice if its user wants it.
        if let Some(job) = self.jobs.get_mut(&job).filter(|job| !job.started) {
            job.started = true;
            self.ready.push(Event::Started { number: job.number, at, pid });
        }
    }

    fn end(&mut self, job: JobId, at: Moment) {
        // A job that was quick is told of when it has ended.
        let known = self.jobs.get(&job).and_then(|job| job.last.as_ref());
        if let Some(started) = known.and_then(|last| last.started) {
            self.start(job, started, None);
        }
        let Some(job) = self.jobs.remove(&job) else { return };
        let (number, at) = (job.number, self.instant_of(at));
        let host = job.host.as_ref().map(ToString::to_string);
        let usage = job.last.as_ref().and_then(|last| last.usage);
        let exit = match job.last.and_then(|last| last.exit) {
            Some(Exit::Code(0)) => StudyExit::Success,
            Some(Exit::Code(code)) => {
                StudyExit::Failure { code: code.into(), message: String::new() }
            }
            Some(Exit::Signal(signal)) => StudyExit::Signal { signal: signal.into() },
            Some(exit @ (Exit::MemoryLimit(_) | Exit::ProcessLimit { .. })) => {
                StudyExit::Failure { code: exit.value().into(), message: exit.to_string() }
            }
            Some(Exit::NotStarted(reason)) => {
                tell(&job.output, &reason);
                StudyExit::Failure { code: 127, message: reason }
            }
            None => StudyExit::NotStarted,
        };
        self.ready.push(Event::Ended {
            number,
            at,
            exit,
            host,
            last: usage.as_ref().and_then(counters_of),
            usage: Box::new(usage.unwrap_or_default()),
        });
    }
}

/// A list of one host.
fn only(host: &HostName) -> Result<HostList> {
    host.to_string().parse().map_err(refuse)
}

/// Says in the file of its output why a job was not started; the grid could not.
fn tell(output: &std::path::Path, reason: &str) {
    let file = std::fs::OpenOptions::new().create(true).append(true).open(output);
    // The reason is told beside it.
    let _ = file.and_then(|mut file| writeln!(file, "{reason}"));
}

fn listen(connection: u64, mut notices: Notices, heard: &Sender<Heard>) {
    loop {
        let answer = notices.hear();
        let last = answer.is_none();
        if heard.send(Heard { connection, answer }).is_err() || last {
            return;
        }
    }
}

impl Launcher for GridLauncher {
    fn set_slots(&mut self, _nodes: u32, _concurrent: u32) {}

    fn submit(&mut self, launch: Launch) -> Result<()> {
        let host = self.host_of(launch.node).cloned().filter(|_| self.sight == Sight::Hosts);
        let spec = self.spec(&launch)?;
        let job = self.accepted(spec)?;
        let (number, output) = (launch.number, launch.output);
        self.jobs.insert(job, Tracked { number, host, output, started: false, last: None });
        if let Some(watching) = &self.watching
            && watching.watch(job).is_err()
        {
            self.disconnect();
        }
        Ok(())
    }

    fn wait(&mut self, limit: Duration) -> Result<Vec<Event>> {
        self.stay_connected()?;
        if self.ready.is_empty() {
            let limit = if self.watching.is_some() { limit } else { limit.min(PAUSE) };
            match self.heard.1.recv_timeout(limit) {
                Ok(heard) => self.take(heard)?,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
        while let Ok(heard) = self.heard.1.try_recv() {
            self.take(heard)?;
        }
        Ok(std::mem::take(&mut self.ready))
    }

    fn stop(&mut self) -> Vec<Event> {
        let begin = self.clock.instant();
        // Those that wait came last; none of them shall get the slot of one that ends.
        let jobs: Vec<JobId> = self.jobs.keys().rev().copied().collect();
        for job in jobs {
            let ask = Ask::Command { target: job.into(), verb: Verb::Kill };
            // One that is about to end refuses; without a controller nobody can be told.
            if self.ask(&ask).is_err() {
                break;
            }
        }
        let mut events = std::mem::take(&mut self.ready);
        while !self.jobs.is_empty()
            && self.clock.instant().saturating_duration_since(begin) < END_MAX
        {
            match self.wait(Duration::from_millis(100)) {
                Ok(more) => events.extend(more),
                Err(_) => break,
            }
        }
        let at = self.clock.instant();
        for (_, job) in std::mem::take(&mut self.jobs) {
            let (number, usage) = (job.number, Box::default());
            events.push(Event::Ended {
                number,
                at,
                exit: StudyExit::NotStarted,
                host: None,
                usage,
                last: None,
            });
        }
        events
    }
}

/// The counters of a process at its end, if they were known.
fn counters_of(used: &Usage) -> Option<Counters> {
    let device_written_bytes = used.device_written_bytes?;
    Some(Counters {
        read_bytes: used.read_bytes?,
        written_bytes: used.written_bytes?,
        read_calls: used.read_calls?,
        write_calls: used.write_calls?,
        device_read_bytes: used.device_read_bytes?,
        device_dirtied_bytes: device_written_bytes,
        device_cancelled_bytes: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_at_the_end_are_those_that_the_grid_has_recorded() {
        let used = Usage {
            read_bytes: Some(9),
            written_bytes: Some(10),
            read_calls: Some(11),
            write_calls: Some(12),
            device_read_bytes: Some(13),
            device_written_bytes: Some(14),
            ..Usage::default()
        };
        let counters = counters_of(&used).unwrap();
        assert_eq!((counters.read_bytes, counters.written_bytes), (9, 10));
        assert_eq!((counters.read_calls, counters.write_calls), (11, 12));
        assert_eq!((counters.device_read_bytes, counters.device_written_bytes()), (13, 14));
        assert!(counters_of(&Usage { read_calls: None, ..used }).is_none());
    }
}
