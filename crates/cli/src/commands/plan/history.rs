//! Jobs of a grid's history as the simulation takes them: what each used, and when it could have started.
//!
//! A job that waited for a condition, a time or its release is due when the grid gave it to a host, as nothing says how long it would have
//! waited otherwise; all others are due when they were submitted. The last start of a task counts. Services are left out: they last.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use forebay_advisor::plan::simulation::{JOBS_MAX, Job, Storage};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_engine::home::GridHome;
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer, Ask, Detail, JobView};
use forebay_grid::account::AttemptRecord;
use forebay_grid::parse::period::Period;
use forebay_grid::vocabulary::{JobId, Moment, Target};

use super::recorded::demand;

/// The most lines of jobs that are read.
const LINES_MAX: u32 = 50_000;

/// What a grid did in its busiest hour, or in all of its history if that is shorter.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Busiest {
    /// Length in seconds.
    pub seconds: f64,
    /// Jobs that ran at once, the mean.
    pub jobs_at_once: f64,
    /// What they read and wrote by system calls, in MB/s.
    pub mb_s: f64,
}

/// The length of a window of the busiest hour, in minutes, and the longest history of which one is looked for.
const HOUR: usize = 60;
const MINUTES_MAX: u64 = 400 * 24 * 60;

/// One finished task.
pub struct Task {
    record: AttemptRecord,
    /// Whether it waited for more than slots.
    waited_for_others: bool,
}

/// What a grid knows of its finished jobs.
pub struct History {
    tasks: Vec<Task>,
    /// Slots of its largest host.
    pub slots: u32,
    /// Lines of jobs that were not read, as there are too many.
    pub unread: u64,
}

impl History {
    /// Asks the controller for tasks that ended within `since`.
    pub fn read(home: &GridHome, since: Option<Period>) -> Result<History> {
        let mut client = Client::connect(home)?;
        let (lines, total) = client.jobs_in(Detail::Asked, None, true, Some(LINES_MAX))?;
        let unread = total.saturating_sub(lines.len() as u64);
        let Answer::Hosts { hosts, .. } = client.ask(&Ask::Hosts)? else {
            bail!("the controller's answer lacks hosts; is it a different version?");
        };
        let slots = hosts.iter().map(|host| host.slots).max().unwrap_or(0);
        let now = Moment::from(SystemClock.now());
        let from = since.map_or(0, |period| now.0.saturating_sub(period.as_ms()));
        let mut tasks = BTreeMap::new();
        for (job, waited_for_others) in jobs_of(&lines, from) {
            for record in client.history(job.into())? {
                if record.usage.is_some() && record.ended.0 >= from {
                    // Those of a task come in the order of its starts.
                    tasks.insert(record.task, Task { record, waited_for_others });
                }
            }
        }
        let history = History { tasks: tasks.into_values().collect(), slots: slots.max(1), unread };
        if history.tasks.is_empty() {
            let within = since.map_or(String::new(), |period| format!(" within {period}"));
            bail!(
                "no job of this grid has finished{within}: run jobs first, or give --since a longer time"
            );
        }
        Ok(history)
    }

    /// The tasks, on whichever host has room, counted from the first that was due; none takes more than `concurrent` slots.
    pub fn jobs(&self, concurrent: u32, storage: Option<Storage>) -> Vec<Job> {
        let begin = self.tasks.iter().map(Task::due).min().unwrap_or_default();
        let job = |task: &Task| Job {
            node: None,
            slots: task.record.slots.clamp(1, concurrent),
            due_seconds: seconds(task.due().since(begin)),
            demand: demand(&task.record.usage.unwrap_or_default(), storage),
        };
        self.tasks.iter().take(JOBS_MAX).map(job).collect()
    }

    /// Seconds from the first that was due to the last end, as it was.
    pub fn seconds(&self) -> f64 {
        let begin = self.tasks.iter().map(Task::due).min().unwrap_or_default();
        let end = self.tasks.iter().map(|task| task.record.ended).max().unwrap_or_default();
        seconds(end.since(begin))
    }

    /// Seconds that a task waited for slots, as it was: the mean.
    pub fn slot_wait_seconds(&self) -> f64 {
        let waited = |task: &Task| seconds(task.record.launched.since(task.due()));
        self.tasks.iter().map(waited).sum::<f64>() / self.tasks.len() as f64
    }

    /// The hour with most jobs at once. What a task read and wrote is spread over its time.
    pub fn busiest(&self) -> Busiest {
        let begin = self.tasks.iter().map(|task| task.record.launched).min().unwrap_or_default();
        let minute = |at: Moment| at.since(begin) / 60_000;
        let last = self.tasks.iter().map(|task| minute(task.record.ended)).max().unwrap_or(0);
        let mut minutes = vec![(0.0, 0.0); last.min(MINUTES_MAX) as usize + 1];
        for Task { record, .. } in &self.tasks {
            let usage = record.usage.unwrap_or_default();
            let bytes = usage.read_bytes.unwrap_or(0) + usage.written_bytes.unwrap_or(0);
            let (from, to) = (record.launched.since(begin), record.ended.since(begin));
            let all = seconds(to.saturating_sub(from)).max(0.001);
            for number in from / 60_000..=(to / 60_000).min(MINUTES_MAX) {
                let (start, end) = (number * 60_000, (number + 1) * 60_000);
                let part = seconds(to.min(end).saturating_sub(from.max(start)));
                let cell = &mut minutes[number as usize];
                *cell = (cell.0 + part, cell.1 + bytes as f64 * part / all);
            }
        }
        let sum = |some: &[(f64, f64)]| {
            some.iter().fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
        };
        let busiest = minutes
            .windows(HOUR.min(minutes.len()))
            .map(sum)
            .max_by(|one, other| one.0.total_cmp(&other.0))
            .unwrap_or_default();
        let end = self.tasks.iter().map(|task| task.record.ended).max().unwrap_or_default();
        let length = seconds(end.since(begin)).clamp(0.001, 60.0 * HOUR as f64);
        Busiest {
            seconds: length,
            jobs_at_once: busiest.0 / length,
            mb_s: busiest.1 / length / 1e6,
        }
    }

    /// How many tasks there are.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// The hosts on which they ran.
    pub fn hosts(&self) -> usize {
        let hosts: std::collections::BTreeSet<_> =
            self.tasks.iter().map(|task| &task.record.host).collect();
        hosts.len()
    }
}

impl Task {
    fn due(&self) -> Moment {
        if self.waited_for_others { self.record.launched } else { self.record.submitted }
    }
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

/// The jobs with a line that ended since `from`, and whether they waited for more than slots.
fn jobs_of(lines: &[JobView], from: u64) -> BTreeMap<JobId, bool> {
    let mut jobs = BTreeMap::new();
    for line in lines {
        let Ok(target) = line.id.parse::<Target>() else { continue };
        if line.service.is_some() || line.ended.is_none_or(|ended| ended.0 < from) {
            continue;
        }
        let waited = line.asked.as_ref().is_some_and(|asked| {
            asked.depends.is_some() || asked.begin.is_some() || asked.reservation.is_some()
        });
        *jobs.entry(target.job).or_insert(false) |= waited;
    }
    jobs
}

#[cfg(test)]
mod tests {
    use forebay_base::Usage;
    use forebay_grid::task::Fate;
    use forebay_grid::vocabulary::{Attempt, TaskId};

    use super::*;

    fn task(number: u64, submitted: u64, launched: u64, waited_for_others: bool) -> Task {
        let usage = Usage { real_seconds: 4.0, user_seconds: 3.0, ..Usage::default() };
        let record = AttemptRecord {
            task: TaskId { job: JobId(number), index: 0 },
            name: String::new(),
            user: "ann".parse().unwrap(),
            queue: "normal".parse().unwrap(),
            project: String::new(),
            host: "h1".parse().unwrap(),
            attempt: Attempt(1),
            slots: 8,
            submitted: Moment(submitted),
            launched: Moment(launched),
            started: None,
            ended: Moment(launched + 4000),
            exit: None,
            loss: None,
            usage: Some(usage),
            fate: Fate::Again,
        };
        Task { record, waited_for_others }
    }

    #[test]
    fn jobs_are_due_when_they_were_submitted_and_those_with_conditions_when_they_were_launched() {
        let tasks = vec![task(1, 1000, 3000, false), task(2, 1000, 9000, true)];
        let history = History { tasks, slots: 4, unread: 0 };
        let jobs = history.jobs(4, None);
        assert_eq!(jobs.iter().map(|job| job.due_seconds).collect::<Vec<_>>(), [0.0, 8.0]);
        assert_eq!((jobs[0].node, jobs[0].slots), (None, 4));
        assert_eq!(jobs[0].demand.processor_seconds, 3.0);
        assert_eq!((history.seconds(), history.slot_wait_seconds()), (12.0, 1.0));
        assert_eq!(history.hosts(), 1);
    }

    #[test]
    fn the_busiest_hour_has_most_jobs_at_once_and_the_bytes_of_its_time() {
        // One job for two hours, and two more in the second of them, each with 36 GB in its time.
        let hour = 3_600_000;
        let long = |launched: u64, hours: u64, gb: u64| {
            let mut task = task(1, launched, launched, false);
            task.record.ended = Moment(launched + hours * hour);
            let usage = task.record.usage.as_mut().unwrap();
            (usage.read_bytes, usage.written_bytes) = (Some(gb * 1_000_000_000), None);
            task
        };
        let tasks = vec![long(0, 2, 72), long(hour, 1, 36), long(hour, 1, 0)];
        let found = History { tasks, slots: 4, unread: 0 }.busiest();
        assert_eq!((found.seconds, found.jobs_at_once), (3600.0, 3.0));
        assert!((found.mb_s - 20.0).abs() < 1e-6, "{found:?}");
        // A history of a quarter of an hour is taken as a whole.
        let mut short = long(0, 1, 9);
        short.record.ended = Moment(hour / 4);
        let found = History { tasks: vec![short], slots: 4, unread: 0 }.busiest();
        assert_eq!((found.seconds, found.jobs_at_once), (900.0, 1.0));
        assert!((found.mb_s - 10.0).abs() < 1e-6, "{found:?}");
    }
}
