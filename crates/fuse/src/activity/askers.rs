//! Who causes what, by user and job: what the ledger of requests has, put together with what /proc says of the processes.
//!
//! A thread of its own takes the ledger every `INTERVAL`, and looks at a process as soon as it makes its first request, but not
//! more often than every `PAUSE`. A process that is gone by then belongs to its user, and to no job that is known. A number
//! is taken for the same process as long as it was started at the same time.
//!
//! Bounds: `ROWS_MAX` rows, `KNOWN_MAX` processes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_base::{Clock, FilesetId};
use forebay_process::job;
use parking_lot::Mutex;

use super::ledger::{Ledger, Tally, Who};

/// How often the ledger is taken.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long new processes wait to be looked at, at most, after others were.
const PAUSE: Duration = Duration::from_millis(5);
/// Most rows; what comes beyond has neither user nor job.
const ROWS_MAX: usize = 20_000;
/// Most processes that are remembered.
const KNOWN_MAX: usize = 100_000;
/// How long a process is remembered that makes no requests.
const KNOWN_TIME: Duration = Duration::from_secs(60);

/// The job of a process.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum JobOf {
    /// It belongs to none.
    None,
    /// It was gone before anybody could look, or nobody knows who asked.
    Unknown,
    /// It belongs to this one.
    Job(Arc<str>),
}

/// Who caused something, and where.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cause {
    /// Number of the user; none for the kernel itself.
    pub uid: Option<u32>,
    /// The job.
    pub job: JobOf,
    /// In which fileset.
    pub fileset: FilesetId,
}

struct Known {
    started: u64,
    job: JobOf,
    seen: Instant,
}

/// The jobs of processes. Its lock is never held while a process is looked at, which may take as long as that process is stuck.
#[derive(Default)]
struct Jobs(Mutex<HashMap<u32, Known>>);

#[derive(Default)]
struct Book {
    rows: HashMap<Cause, Tally>,
    /// When the ledger was taken last.
    taken: Option<Instant>,
}

/// Who causes what, since the session began.
pub struct Askers {
    ledger: Arc<Ledger>,
    clock: Arc<dyn Clock>,
    jobs: Jobs,
    book: Mutex<Book>,
    stopping: AtomicBool,
    thread: OnceLock<std::thread::JoinHandle<()>>,
}

impl Askers {
    pub(crate) fn new(ledger: Arc<Ledger>, clock: Arc<dyn Clock>) -> Askers {
        Askers {
            ledger,
            clock,
            jobs: Jobs::default(),
            book: Mutex::default(),
            stopping: AtomicBool::new(false),
            thread: OnceLock::new(),
        }
    }

    /// Starts the thread that looks.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub(crate) fn start(self: &Arc<Askers>) -> std::io::Result<()> {
        let (askers, ledger) = (Arc::downgrade(self), Arc::clone(&self.ledger));
        let work = move || {
            while let Some(askers) =
                askers.upgrade().filter(|askers| !askers.stopping.load(Ordering::Relaxed))
            {
                let next = askers.look();
                drop(askers);
                std::thread::sleep(PAUSE);
                std::thread::park_timeout(next);
            }
        };
        let thread = std::thread::Builder::new().name("askers".to_owned()).spawn(work)?;
        ledger.set_reader(thread.thread().clone());
        let _ = self.thread.set(thread);
        Ok(())
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.get() {
            thread.thread().unpark();
        }
    }

    /// Looks at processes that are new, and takes the ledger if it is time to. How long to wait for more.
    fn look(&self) -> Duration {
        let now = self.clock.instant();
        for pid in self.ledger.take_fresh() {
            self.jobs.of(pid, now);
        }
        let mut book = self.book.lock();
        let next = book.taken.map_or(now, |taken| taken + INTERVAL);
        if next <= now {
            book.take(&self.ledger, &self.jobs, now);
            return INTERVAL;
        }
        next.saturating_duration_since(now)
    }

    /// Who has caused what so far.
    #[must_use]
    pub fn read(&self) -> Vec<(Cause, Tally)> {
        let mut book = self.book.lock();
        book.take(&self.ledger, &self.jobs, self.clock.instant());
        let mut rows: Vec<(Cause, Tally)> =
            book.rows.iter().map(|(cause, tally)| (cause.clone(), *tally)).collect();
        rows.sort_by(|one, other| one.0.cmp(&other.0));
        rows
    }

    /// The job of a process, as far as it is known without waiting for anything: that of its control group, or what was found at its
    /// first request.
    #[must_use]
    pub fn job_at_once(&self, pid: u32) -> Option<String> {
        job::by_group(pid).or_else(|| self.jobs.known(pid))
    }
}

impl Jobs {
    /// The job of a thread.
    fn of(&self, pid: u32, now: Instant) -> JobOf {
        let started = job::start_of(pid);
        if let Some(known) = self.0.lock().get_mut(&pid)
            && started.is_none_or(|started| started == known.started)
        {
            known.seen = now;
            return known.job.clone();
        }
        let Some(seen) = job::look(pid) else { return JobOf::Unknown };
        let job = seen.job.map_or(JobOf::None, |job| JobOf::Job(job.into()));
        let mut known = self.0.lock();
        if known.len() < KNOWN_MAX {
            known.insert(pid, Known { started: seen.started, job: job.clone(), seen: now });
        }
        job
    }

    /// The job of a process that was looked at before.
    fn known(&self, pid: u32) -> Option<String> {
        let started = job::start_of(pid)?;
        let known = self.0.lock();
        match &known.get(&pid).filter(|known| known.started == started)?.job {
            JobOf::Job(job) => Some(job.to_string()),
            JobOf::None | JobOf::Unknown => None,
        }
    }

    /// Forgets processes that make no requests any more.
    fn forget(&self, now: Instant) {
        let is_busy = |known: &Known| now.saturating_duration_since(known.seen) < KNOWN_TIME;
        self.0.lock().retain(|_, known| is_busy(known));
    }
}

impl Book {
    /// Takes what was booked.
    fn take(&mut self, ledger: &Ledger, jobs: &Jobs, now: Instant) {
        self.taken = Some(now);
        for (who, fileset, tally) in ledger.take() {
            let uid = (who != Who::KERNEL).then_some(who.uid);
            let job = if uid.is_some() { jobs.of(who.pid, now) } else { JobOf::Unknown };
            self.add(Cause { uid, job, fileset }, tally);
        }
        jobs.forget(now);
    }

    fn add(&mut self, cause: Cause, tally: Tally) {
        let is_full = self.rows.len() >= ROWS_MAX && !self.rows.contains_key(&cause);
        let cause = if is_full { Cause { uid: None, job: JobOf::Unknown, ..cause } } else { cause };
        self.rows.entry(cause).or_default().add(tally);
    }
}

#[cfg(test)]
mod tests {
    use forebay_base::time::SystemClock;

    use super::*;

    const WORK: FilesetId = FilesetId(3);

    fn askers() -> (Arc<Ledger>, Arc<Askers>) {
        let ledger = Arc::new(Ledger::default());
        let askers = Askers::new(Arc::clone(&ledger), Arc::new(SystemClock));
        (ledger, Arc::new(askers))
    }

    #[test]
    fn work_of_a_process_is_that_of_its_job_also_when_it_is_gone() {
        let (ledger, askers) = askers();
        let mut child =
            std::process::Command::new("sleep").arg("60").env("FOREBAY_JOB", "12").spawn().unwrap();
        let who = Who::of(child.id(), 1000);
        let is_in_job = |job: Option<job::Seen>| job.is_some_and(|seen| seen.job.is_some());
        while !is_in_job(job::look(child.id())) {
            std::thread::sleep(Duration::from_millis(5));
        }
        // What is said at once does not look at the environment, which would wait for a process that is stuck.
        assert_eq!(askers.job_at_once(child.id()), None);
        ledger.operation(who, WORK, Duration::from_nanos(5));
        askers.look();
        assert_eq!(askers.job_at_once(child.id()).as_deref(), Some("12"));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(askers.job_at_once(child.id()), None, "its number may be another process's");
        ledger.bytes(who, WORK, 0, 100);
        let cause = Cause { uid: Some(1000), job: JobOf::Job("12".into()), fileset: WORK };
        let tally = Tally { operations: 1, nanoseconds: 5, read: 0, written: 100 };
        assert_eq!(askers.read(), [(cause, tally)]);
    }

    #[test]
    fn work_of_a_process_that_nobody_saw_and_of_the_kernel_is_nobodys() {
        let (ledger, askers) = askers();
        ledger.operation(Who::of(u32::MAX - 1, 5), WORK, Duration::ZERO);
        ledger.operation(Who::of(0, 0), WORK, Duration::ZERO);
        let causes: Vec<Cause> = askers.read().into_iter().map(|(cause, _)| cause).collect();
        let unknown = |uid| Cause { uid, job: JobOf::Unknown, fileset: WORK };
        assert_eq!(causes, [unknown(None), unknown(Some(5))]);
    }

    #[test]
    fn rows_are_bounded_and_nothing_is_lost() {
        let mut book = Book::default();
        for uid in 0..u32::try_from(ROWS_MAX).unwrap() + 50 {
            let tally = Tally { operations: 1, ..Tally::default() };
            book.add(Cause { uid: Some(uid), job: JobOf::None, fileset: WORK }, tally);
        }
        assert_eq!(book.rows.len(), ROWS_MAX + 1);
        let nobody = Cause { uid: None, job: JobOf::Unknown, fileset: WORK };
        assert_eq!(book.rows[&nobody].operations, 50);
    }
}
