//! Watches one host for a study on another machine: describes it, and writes a line a second.
//!
//! The jobs of the study are found by their command lines: those that write their records below a folder that the study names.
//! Only processes of the same user are looked at. What a job did after the last look at it is not known here; the
//! study knows it from the grid.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_base::Clock;
use forebay_process::disks::Selection;
use forebay_process::family::Family;
use forebay_process::stat::{all, start_of};
use rustix::process::Pid;

use super::message::{Introduction, Line, Orders, Row, Second, lines_path};
use crate::environment;
use crate::error::{Error, Result};
use crate::record::{DeviceScope, Host, Subject};
use crate::run::Areas;
use crate::sampler::snapshot::{JobCounts, Snapshot, Traffic};
use crate::sampler::{look, network_interfaces, selection_of};

/// Seconds between two lines.
const INTERVAL: Duration = Duration::from_secs(1);
/// How often orders are looked for.
const TURN: Duration = Duration::from_millis(250);
/// How long files of the study may take until they show on this host: attribute caches of network file systems.
const SHOW_MAX: Duration = Duration::from_secs(15);
/// How long the study may give no sign of life.
const SILENCE_MAX: Duration = Duration::from_secs(120);

/// What to watch.
pub struct Watch<'a> {
    /// The folder that the study and its watchers share.
    pub folder: &'a Path,
    /// Name of this host.
    pub host: &'a str,
    /// The storages.
    pub subjects: &'a [Areas],
    /// Files of the study on the storages, which this host must see.
    pub seen: &'a [PathBuf],
    /// Jobs of the study write their records below this folder.
    pub records: &'a Path,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

/// Watches until the study says that it is over.
///
/// # Errors
/// [`Error::Io`] if the folder or a storage cannot be used; [`Error::Launcher`] if the study is gone.
pub fn run(watch: &Watch<'_>) -> Result<()> {
    let path = lines_path(watch.folder, watch.host);
    let file = File::create(&path).map_err(Error::io("write", &path))?;
    let mut lines = Lines { file, path };
    let introduction = introduce(watch)?;
    let mut selection = selection_of(&introduction.device_scope);
    lines.write(&Line::Host(Box::new(introduction)))?;
    let mut state = State::begin(watch, &mut selection);
    loop {
        std::thread::sleep(TURN);
        let orders = state.obey(watch, &mut lines)?;
        if state.due(&*watch.clock) {
            let second = state.second(watch, &mut selection);
            lines.write(&Line::Second(Box::new(second)))?;
        }
        if orders.is_some_and(|orders| orders.end) {
            return lines.write(&Line::End);
        }
    }
}

struct Lines {
    file: File,
    path: PathBuf,
}

impl Lines {
    fn write(&mut self, line: &Line) -> Result<()> {
        let refuse = |error: serde_json::Error| Error::Record {
            path: self.path.clone(),
            reason: error.to_string(),
        };
        let mut text = serde_json::to_vec(line).map_err(refuse)?;
        text.push(b'\n');
        self.file.write_all(&text).map_err(Error::io("write", &self.path))
    }
}

/// Describes the host.
fn introduce(watch: &Watch<'_>) -> Result<Introduction> {
    let missing = missing(watch.seen, &*watch.clock);
    // Without its files the storage is another one, or none.
    let scope = if missing.is_empty() { scope(watch.subjects)? } else { DeviceScope::None };
    let interfaces = network_interfaces();
    let speed = |name: &String| {
        let text = fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok()?;
        text.trim().parse::<u64>().ok().filter(|speed| *speed > 0)
    };
    Ok(Introduction {
        host: Host {
            name: watch.host.to_owned(),
            machine: environment::machine(),
            boot: forebay_process::machine::boot_id().unwrap_or_default(),
            interfaces: interfaces.into_iter().map(|name| (name.clone(), speed(&name))).collect(),
        },
        network: fs::metadata("/proc/self/ns/net").map_or(0, |namespace| namespace.ino()),
        device_scope: scope,
        missing,
    })
}

/// The files that do not show, even after some time.
fn missing(seen: &[PathBuf], clock: &dyn Clock) -> Vec<PathBuf> {
    let begin = clock.instant();
    loop {
        let missing: Vec<PathBuf> = seen.iter().filter(|path| !path.exists()).cloned().collect();
        if missing.is_empty() || clock.instant().saturating_duration_since(begin) > SHOW_MAX {
            return missing;
        }
        std::thread::sleep(TURN);
    }
}

/// The devices below all storages.
fn scope(subjects: &[Areas]) -> Result<DeviceScope> {
    let (mut names, mut all) = (Vec::new(), false);
    for areas in subjects {
        let subject = Subject {
            label: areas.label.clone(),
            data: environment::storage(&areas.data)?,
            work: environment::storage(&areas.work)?,
            util: environment::storage(&areas.util)?,
        };
        match environment::device_scope(&subject) {
            DeviceScope::AllDisks => all = true,
            DeviceScope::Devices(more) => names.extend(more),
            DeviceScope::None => {}
        }
    }
    names.sort();
    names.dedup();
    Ok(match (all, names.is_empty()) {
        (true, _) => DeviceScope::AllDisks,
        (false, true) => DeviceScope::None,
        (false, false) => DeviceScope::Devices(names),
    })
}

/// What is known from one turn to the next.
struct State {
    /// Seconds since the epoch at `begin`: a clock that is set meanwhile moves nothing.
    origin_seconds: f64,
    begin: Instant,
    before: Snapshot,
    due: Instant,
    /// The jobs that run, by process and its start.
    jobs: HashMap<(i32, u64), Job>,
    orders: Orders,
    heard: Instant,
}

struct Job {
    record: String,
    family: Family,
}

impl State {
    fn begin(watch: &Watch<'_>, selection: &mut Selection) -> State {
        let now = watch.clock.now();
        let begin = watch.clock.instant();
        let origin_seconds = now.seconds as f64 + f64::from(now.nanoseconds) / 1e9;
        State {
            origin_seconds,
            begin,
            before: look(origin_seconds, selection),
            due: begin + INTERVAL,
            jobs: HashMap::new(),
            orders: Orders::default(),
            heard: begin,
        }
    }

    /// Reads the orders and does what is new in them; nothing if there are none to be read.
    fn obey(&mut self, watch: &Watch<'_>, lines: &mut Lines) -> Result<Option<Orders>> {
        let now = watch.clock.instant();
        let Some(orders) =
            Orders::read(watch.folder).ok().filter(|new| new.beat > self.orders.beat)
        else {
            if now.saturating_duration_since(self.heard) > SILENCE_MAX {
                let seconds = SILENCE_MAX.as_secs();
                let reason = format!("the study has given no sign of life for {seconds} s");
                return Err(Error::Launcher { reason });
            }
            return Ok(None);
        };
        self.heard = now;
        if orders.settle > self.orders.settle {
            let fault = settle(watch.subjects, orders.drop_caches).err();
            let fault = fault.map(|error| error.to_string());
            lines.write(&Line::Settled { settle: orders.settle, fault })?;
        }
        self.orders = orders.clone();
        Ok(Some(orders))
    }

    fn due(&mut self, clock: &dyn Clock) -> bool {
        let now = clock.instant();
        let due = now >= self.due;
        while self.due <= now {
            self.due += INTERVAL;
        }
        due
    }

    fn second(&mut self, watch: &Watch<'_>, selection: &mut Selection) -> Second {
        let jobs = self.observe(watch.records);
        let passed = watch.clock.instant().saturating_duration_since(self.begin);
        let now = look(self.origin_seconds + passed.as_secs_f64(), selection);
        let sample = now.since(&self.before, Traffic::default(), JobCounts::default());
        self.before = now;
        Second { sample, jobs }
    }

    /// How far the jobs are that run now.
    fn observe(&mut self, records: &Path) -> BTreeMap<String, Row> {
        let own = rustix::process::geteuid().as_raw();
        let (mut met, mut text) = (HashMap::new(), String::new());
        for pid in all() {
            let number = pid.as_raw_nonzero().get();
            let is_own = fs::metadata(format!("/proc/{number}")).is_ok_and(|it| it.uid() == own);
            let Some(start) = is_own.then(|| start_of(pid)).flatten() else { continue };
            let known = self.jobs.remove(&(number, start));
            let job = known.or_else(|| {
                let record = record_of(pid, records)?;
                Some(Job { record, family: Family::of(pid)? })
            });
            if let Some(job) = job {
                met.insert((number, start), job);
            }
        }
        self.jobs = met;
        let looks = self.jobs.values().filter_map(|job| {
            let counters = job.family.look(&mut text)?;
            Some((job.record.clone(), crate::sampler::row(&counters)))
        });
        looks.collect()
    }
}

/// The file of the records of a job of the study below `records`, by its command line.
fn record_of(pid: Pid, records: &Path) -> Option<String> {
    let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).ok()?;
    let mut words = line.split(|byte| *byte == 0);
    words.find(|word| *word == b"--record")?;
    let path = Path::new(std::ffi::OsStr::from_bytes(words.next()?));
    Some(path.strip_prefix(records).ok()?.to_str()?.to_owned())
}

/// Writes the dirty pages of the storages back, and empties the caches if that is wanted.
fn settle(subjects: &[Areas], drop_caches: bool) -> Result<()> {
    for areas in subjects {
        for path in [&areas.data, &areas.work, &areas.util] {
            let directory = File::open(path).map_err(Error::io("open", path))?;
            rustix::fs::syncfs(&directory)
                .map_err(|error| Error::io("write back", path)(error.into()))?;
        }
    }
    if drop_caches { environment::drop_caches() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::time::SystemClock;

    #[test]
    fn jobs_are_found_by_the_file_of_their_records() {
        let own = Pid::from_raw(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert_eq!(record_of(own, Path::new("/")), None, "this test has no --record");
        let folder = tempfile::tempdir().unwrap();
        let record = folder.path().join("jobs/run-1-stage-1/a.steps");
        // A shell that waits for its input, with words of no meaning to it.
        let mut child = std::process::Command::new("sh")
            .args(["-c", "echo; read line", "step", "--record"])
            .arg(&record)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // Once it has written, it is the shell.
        let mut byte = [0];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut byte).unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        let key = "jobs/run-1-stage-1/a.steps";
        assert_eq!(record_of(pid, folder.path()).as_deref(), Some(key));
        assert_eq!(record_of(pid, Path::new("/elsewhere")), None);
        let subjects = [];
        let watch = Watch {
            folder: folder.path(),
            host: "n1",
            subjects: &subjects,
            seen: &[],
            records: folder.path(),
            clock: Arc::new(SystemClock),
        };
        let mut selection = Selection::None;
        let mut state = State::begin(&watch, &mut selection);
        let second = state.second(&watch, &mut selection);
        assert!(second.jobs.contains_key(key), "{second:?}");
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(state.second(&watch, &mut selection).jobs.is_empty());
    }

    #[test]
    fn a_watcher_says_who_it_is_settles_and_ends_when_told() {
        let folder = tempfile::tempdir().unwrap();
        let areas = Areas {
            label: "A".to_owned(),
            data: folder.path().to_owned(),
            work: folder.path().to_owned(),
            util: folder.path().to_owned(),
        };
        let orders = Orders { beat: 1, settle: 1, drop_caches: false, end: true };
        orders.write(folder.path()).unwrap();
        let watch = Watch {
            folder: folder.path(),
            host: "n1",
            subjects: &[areas],
            seen: &[folder.path().join("orders.json")],
            records: folder.path(),
            clock: Arc::new(SystemClock),
        };
        run(&watch).unwrap();
        let mut follower = super::super::follower::Follower::new(folder.path(), "n1");
        follower.read().unwrap();
        let introduction = follower.introduction.unwrap();
        assert_eq!(introduction.host.name, "n1");
        assert!(introduction.missing.is_empty() && introduction.host.machine.cpus > 0);
        assert_eq!(follower.settled, (1, None));
        assert!(follower.ended);
    }
}
