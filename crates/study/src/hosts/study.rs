//! The study's side: gives the watchers signs of life and orders, and makes a run of what they write.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_base::Clock;

use super::combine::{Series, combine, edges};
use super::follower::Follower;
use super::message::{Introduction, Orders, Row};
use crate::error::{Error, Result};
use crate::record::{DeviceScope, Host, HostRun, Sample};
use crate::sampler::{Seen, spread};

/// Seconds between two signs of life.
const BEAT: Duration = Duration::from_secs(5);
/// How often files are looked at while something is waited for.
const TURN: Duration = Duration::from_millis(50);
/// How long a host may take to settle while its watcher runs.
const SETTLE_MAX: Duration = Duration::from_secs(600);
/// How often to ask whether the watchers that do not answer still run.
const LOOK: Duration = Duration::from_secs(1);
/// How long to wait at the end of a run for the last seconds of a host.
const LAST_MAX: Duration = Duration::from_secs(5);

/// Says why the watcher of a host does not run any more, if it does not.
pub type Fate = Box<dyn FnMut(&str) -> Option<String>>;

/// The hosts of a study, each with a watcher.
pub struct Hosts {
    folder: PathBuf,
    followers: Vec<Follower>,
    clock: Arc<dyn Clock>,
    voice: Arc<Voice>,
    thread: Option<JoinHandle<()>>,
    settle: u64,
    fate: Option<Fate>,
    /// When that was asked last.
    asked: Option<Instant>,
}

/// What a job of a run was, as far as its bytes are to be found among those of its host.
#[derive(Clone, Debug, PartialEq)]
pub struct HostJob {
    /// The file of its records, below the result.
    pub record: String,
    /// Its host.
    pub host: String,
    /// From when to when it ran, in seconds of the run.
    pub start_seconds: f64,
    /// Its end.
    pub end_seconds: f64,
    /// How far it was at its end, if that is known.
    pub last: Option<Row>,
}

/// What the hosts did in a run.
pub struct Watched {
    /// All together.
    pub samples: Vec<Sample>,
    /// Each.
    pub hosts: Vec<HostRun>,
    /// Whose I/O the device columns are.
    pub device_scope: DeviceScope,
}

/// Says the orders over and over.
struct Voice {
    folder: PathBuf,
    orders: Mutex<Orders>,
    changed: Condvar,
}

impl Voice {
    /// Changes the orders and says them at once.
    fn say(&self, change: impl FnOnce(&mut Orders)) -> Result<()> {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut orders);
        orders.beat += 1;
        let written = orders.write(&self.folder);
        self.changed.notify_all();
        written
    }

    fn run(&self) {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        while !orders.end {
            let waited = self.changed.wait_timeout(orders, BEAT);
            orders = waited.unwrap_or_else(PoisonError::into_inner).0;
            orders.beat += 1;
            // A watcher bears minutes of silence.
            let _ = orders.write(&self.folder);
        }
    }
}

impl Hosts {
    /// Makes `folder` and begins to give signs of life; the watchers of `names` are to be started then.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn make(folder: &Path, names: &[String], clock: Arc<dyn Clock>) -> Result<Hosts> {
        fs::create_dir(folder).map_err(Error::io("make", folder))?;
        let voice = Arc::new(Voice {
            folder: folder.to_owned(),
            orders: Mutex::default(),
            changed: Condvar::new(),
        });
        voice.say(|_| {})?;
        let thread = std::thread::Builder::new().name("hosts".to_owned()).spawn({
            let voice = Arc::clone(&voice);
            move || voice.run()
        });
        let thread = thread.map_err(Error::io("start the thread of", folder))?;
        Ok(Hosts {
            folder: folder.to_owned(),
            followers: names.iter().map(|name| Follower::new(folder, name)).collect(),
            clock,
            voice,
            thread: Some(thread),
            settle: 0,
            fate: None,
            asked: None,
        })
    }

    /// From now on, whoever waits for an answer of a watcher asks `fate` from time to time whether it still runs.
    pub fn ask_for_fates(&mut self, fate: Fate) {
        self.fate = Some(fate);
    }

    /// Fails if one of the watchers that have not `answered` does not run any more. Asks at most once a second.
    fn check_fates(&mut self, answered: impl Fn(&Follower) -> bool) -> Result<()> {
        let now = self.clock.instant();
        if self.asked.is_some_and(|at| now.saturating_duration_since(at) < LOOK) {
            return Ok(());
        }
        self.asked = Some(now);
        let Some(fate) = &mut self.fate else { return Ok(()) };
        for one in self.followers.iter().filter(|one| !answered(one)) {
            if let Some(why) = fate(&one.name) {
                let reason = format!("host {}: {why}", one.name);
                return Err(Error::Launcher { reason });
            }
        }
        Ok(())
    }

    /// Takes what is new of all hosts.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn read(&mut self) -> Result<()> {
        self.followers.iter_mut().try_for_each(Follower::read)
    }

    /// The hosts whose watchers have not said anything yet.
    ///
    /// # Errors
    /// [`Error::Launcher`] if one of these does not run any more.
    pub fn silent(&mut self) -> Result<Vec<&str>> {
        self.check_fates(|one| one.introduction.is_some())?;
        let silent = self.followers.iter().filter(|one| one.introduction.is_none());
        Ok(silent.map(|one| one.name.as_str()).collect())
    }

    fn introductions(&self) -> impl Iterator<Item = &Introduction> {
        self.followers.iter().filter_map(|one| one.introduction.as_ref())
    }

    /// The hosts, as far as they have said who they are.
    ///
    /// # Errors
    /// [`Error::Launcher`] if one does not see the storage.
    pub fn known(&self) -> Result<Vec<Host>> {
        for Introduction { host, missing, .. } in self.introductions() {
            if let Some(path) = missing.first().and_then(|path| path.parent()) {
                let reason = format!(
                    "host {} does not see the storage at {}: mount it there on all hosts, or leave the host out with --hosts",
                    host.name,
                    path.display()
                );
                return Err(Error::Launcher { reason });
            }
        }
        Ok(self.introductions().map(|one| one.host.clone()).collect())
    }

    /// Has all hosts write dirty pages back, and empty their caches if that is wanted; then a run begins. Returns early if it
    /// is interrupted.
    ///
    /// # Errors
    /// [`Error::Launcher`] if a host cannot, or does not answer.
    pub fn settle(&mut self, drop_caches: bool, interrupted: &dyn Fn() -> bool) -> Result<()> {
        self.settle += 1;
        let wanted = self.settle;
        self.voice.say(|orders| (orders.settle, orders.drop_caches) = (wanted, drop_caches))?;
        let begin = self.clock.instant();
        loop {
            self.read()?;
            let mut waiting = self.followers.iter().filter(|one| one.settled.0 < wanted);
            let Some(first) = waiting.next() else { break };
            if interrupted() {
                return Ok(());
            }
            if self.clock.instant().saturating_duration_since(begin) > SETTLE_MAX {
                let reason =
                    format!("host {} does not answer; see its job of the grid", first.name);
                return Err(Error::Launcher { reason });
            }
            self.check_fates(|one| one.settled.0 >= wanted)?;
            std::thread::sleep(TURN);
        }
        for one in &mut self.followers {
            if let Some(fault) = &one.settled.1 {
                let reason = format!("host {}: {fault}", one.name);
                return Err(Error::Launcher { reason });
            }
            one.forget();
        }
        Ok(())
    }

    /// Each host with its seconds, those of hosts of one machine marked.
    fn series<'a>(&'a self, moved: &'a [Vec<Sample>]) -> Vec<Series<'a>> {
        let known: Vec<Option<&Introduction>> =
            self.followers.iter().map(|one| one.introduction.as_ref()).collect();
        let place = |place: usize| {
            let own = known[place];
            let before = || known[..place].iter().flatten();
            let (boot, network) =
                own.map_or((String::new(), 0), |own| (own.host.boot.clone(), own.network));
            let same_machine = before().any(|one| one.host.boot == boot);
            let same_network = before().any(|one| one.host.boot == boot && one.network == network);
            let cpus = own.map_or(1, |own| own.host.machine.cpus);
            Series { samples: &moved[place], cpus, same_machine, same_network }
        };
        (0..self.followers.len()).map(place).collect()
    }

    /// The latest second that is known of all hosts.
    #[must_use]
    pub fn latest(&self) -> Option<Sample> {
        let ends: Option<Vec<f64>> = self.followers.iter().map(Follower::latest_seconds).collect();
        let end = ends?.into_iter().fold(f64::INFINITY, f64::min);
        let moved: Vec<Vec<Sample>> = self
            .followers
            .iter()
            .map(|one| {
                let near = one.samples.iter().rev().take_while(|it| it.at_seconds > end - 1.0);
                let mut near: Vec<Sample> = near.map(|sample| shifted(sample, end - 1.0)).collect();
                near.reverse();
                near
            })
            .collect();
        let mut sample = combine(&self.series(&moved), &[1.0]).pop()?;
        for one in &self.followers {
            for looks in one.looks.values() {
                let mut samples = [std::mem::take(&mut sample)];
                let pairs = looks.windows(2).filter(|pair| pair[1].0 > end - 1.0);
                for pair in pairs {
                    let row = passed(pair[0].1, pair[1].1);
                    let share = ((end - pair[0].0) / (pair[1].0 - pair[0].0)).clamp(0.0, 1.0);
                    let row = row.map(|value| (value as f64 * share) as u64);
                    spread(&mut samples, &Seen { from: 0.0, to: 1.0, row });
                }
                [sample] = samples;
            }
        }
        Some(sample)
    }

    /// What the hosts did in a run that began at `origin_unix_seconds` and lasted `seconds`, its stages ending at `marks`.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn watched(
        &mut self,
        origin_unix_seconds: f64,
        seconds: f64,
        marks: &[f64],
        interval_seconds: f64,
        jobs: &[HostJob],
    ) -> Result<Watched> {
        self.wait_for(origin_unix_seconds + seconds)?;
        let moved: Vec<Vec<Sample>> = self
            .followers
            .iter()
            .map(|one| one.samples.iter().map(|it| shifted(it, origin_unix_seconds)).collect())
            .collect();
        let edges = edges(marks, seconds, interval_seconds);
        let series = self.series(&moved);
        let mut samples = combine(&series, &edges);
        let mut hosts = Vec::with_capacity(series.len());
        for (one, series) in self.followers.iter().zip(series) {
            let alone = Series { same_machine: false, same_network: false, ..series };
            let mut own = combine(&[alone], &edges);
            for job in jobs.iter().filter(|job| job.host == one.name) {
                let looks = one.looks.get(&job.record).map_or(&[][..], Vec::as_slice);
                for seen in parts(job, looks, origin_unix_seconds) {
                    spread(&mut own, &seen);
                    spread(&mut samples, &seen);
                }
            }
            for sample in &mut own {
                sample.jobs_running = running(jobs, &one.name, sample);
            }
            let inside = |sample: &Sample| {
                let start = (sample.at_seconds - sample.seconds).max(0.0);
                (sample.at_seconds.min(seconds) - start).max(0.0)
            };
            let watched_seconds = series.samples.iter().map(inside).sum();
            hosts.push(HostRun { host: one.name.clone(), samples: own, watched_seconds });
        }
        Ok(Watched { samples, hosts, device_scope: self.device_scope() })
    }

    /// Waits for the last seconds of all hosts; one that has gone has none.
    fn wait_for(&mut self, unix_seconds: f64) -> Result<()> {
        let begin = self.clock.instant();
        loop {
            self.read()?;
            let all = |one: &Follower| one.latest_seconds().is_some_and(|at| at >= unix_seconds);
            let too_late = self.clock.instant().saturating_duration_since(begin) > LAST_MAX;
            if too_late || self.followers.iter().all(all) {
                return Ok(());
            }
            std::thread::sleep(TURN);
        }
    }

    fn device_scope(&self) -> DeviceScope {
        let mut names = Vec::new();
        for (place, one) in self.introductions().enumerate() {
            if self.introductions().take(place).any(|before| before.host.boot == one.host.boot) {
                continue;
            }
            match &one.device_scope {
                DeviceScope::AllDisks => return DeviceScope::AllDisks,
                DeviceScope::None => {}
                DeviceScope::Devices(own) => {
                    names.extend(own.iter().map(|name| format!("{}:{name}", one.host.name)));
                }
            }
        }
        if names.is_empty() { DeviceScope::None } else { DeviceScope::Devices(names) }
    }

    /// Tells the watchers that it is over, waits until those that run have ended, and removes the folder.
    pub fn end(mut self) {
        self.tell_end();
        let begin: Instant = self.clock.instant();
        let waits = |one: &Follower| one.introduction.is_some() && !one.ended;
        while self.read().is_ok()
            && self.followers.iter().any(waits)
            && self.clock.instant().saturating_duration_since(begin) < LAST_MAX
        {
            std::thread::sleep(TURN);
        }
        // What is measured is in the record; a host that is gone may still hold its file.
        let _ = fs::remove_dir_all(&self.folder);
    }

    fn tell_end(&mut self) {
        let _ = self.voice.say(|orders| orders.end = true);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said why.
            let _ = thread.join();
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.tell_end();
        }
    }
}

/// A sample with its time counted from `origin_seconds`.
fn shifted(sample: &Sample, origin_seconds: f64) -> Sample {
    Sample { at_seconds: sample.at_seconds - origin_seconds, ..sample.clone() }
}

fn passed(before: Row, now: Row) -> Row {
    std::array::from_fn(|place| now[place].saturating_sub(before[place]))
}

/// What a job did from look to look and after the last: in all exactly what it had done at its end, where that is known.
fn parts(job: &HostJob, looks: &[(f64, Row)], origin_seconds: f64) -> Vec<Seen> {
    let mut parts = Vec::new();
    let (mut from, mut counted) = (job.start_seconds, Row::default());
    let ends = job.last.map(|last| (job.end_seconds, last));
    let looks = looks.iter().map(|(at, row)| (at - origin_seconds, *row));
    for (at, row) in looks.chain(ends) {
        let to = at.clamp(from, job.end_seconds.max(from));
        // A child that goes makes the sum of a look too small or, for a moment, too large.
        let row = job.last.map_or(row, |last| std::array::from_fn(|at| row[at].min(last[at])));
        let row: Row = std::array::from_fn(|at| row[at].max(counted[at]));
        let part = passed(counted, row);
        if part != Row::default() {
            parts.push(Seen { from, to, row: part });
        }
        (from, counted) = (to, row);
    }
    parts
}

/// How many jobs of a host ran in the middle of an interval.
fn running(jobs: &[HostJob], host: &str, sample: &Sample) -> u32 {
    let middle = sample.at_seconds - sample.seconds / 2.0;
    let runs =
        |job: &&HostJob| job.host == host && (job.start_seconds..job.end_seconds).contains(&middle);
    jobs.iter().filter(runs).count() as u32
}

#[cfg(test)]
mod tests;
