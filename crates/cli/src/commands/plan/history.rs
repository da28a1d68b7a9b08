//! Jobs of a grid's history as the simulation takes them: what each used, and when it could have started.
//!
//! A job that waited for a condition, a time or its release is due when the grid gave it to a host, as nothing says how long it would have
//! waited otherwise; all others are due when they were submitted. The last start of a task counts. Services are left out: they last.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use forebay_advisor::plan::simulation::{JOBS_MAX, Job, Queue, Storage};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_engine::home::GridHome;
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer, Ask, Detail, JobView, QueueView};
use forebay_grid::account::AttemptRecord;
use forebay_grid::parse::period::Period;
use forebay_grid::vocabulary::{JobId, Moment, Target};

use super::recorded::demand;

/// The most lines of jobs that are read.
const LINES_MAX: u32 = 50_000;

/// What a grid did in its busiest hour, or in all of its history if that is shorter.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Busiest {
    /// Length in seconds.
    pub seconds: f64,
    /// Jobs that ran at once, the mean.
    pub jobs_at_once: f64,
    /// What they read and wrote by system calls, in MB/s.
    pub mb_s: f64,
    /// The same of each queue, with what its jobs waited for slots in all of the history.
    pub queues: Vec<BusyQueue>,
}

/// A queue in the busiest hour.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct BusyQueue {
    pub queue: String,
    pub jobs_at_once: f64,
    pub mb_s: f64,
    #[serde(flatten)]
    pub demand: QueueDemand,
}

/// What the jobs of a queue needed in all of the history.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct QueueDemand {
    pub jobs: usize,
    /// Slots by the time for which they were in use.
    pub slot_hours: f64,
    /// Time on processors.
    pub processor_hours: f64,
    #[serde(flatten)]
    pub waits: Waits,
}

/// How long jobs waited for slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Waits {
    pub slot_wait_seconds_mean: f64,
    /// 95 of 100 jobs waited no longer.
    pub slot_wait_seconds_p95: f64,
}

impl Waits {
    pub fn of(mut seconds: Vec<f64>) -> Waits {
        seconds.sort_by(f64::total_cmp);
        let Some(last) = seconds.len().checked_sub(1) else { return Waits::default() };
        let place = (seconds.len() * 95).div_ceil(100).saturating_sub(1).min(last);
        Waits {
            slot_wait_seconds_mean: seconds.iter().sum::<f64>() / seconds.len() as f64,
            slot_wait_seconds_p95: seconds[place],
        }
    }
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
    /// The queues of the tasks, by name.
    pub queues: Vec<TaskQueue>,
    /// Slots of its largest host.
    pub slots: u32,
    /// Lines of jobs that were not read, as there are too many.
    pub unread: u64,
    span: Span,
}

/// A queue of which there are tasks, as the grid's settings describe it now.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct TaskQueue {
    pub queue: String,
    #[serde(flatten)]
    pub rule: Queue,
}

/// From when to when a history goes.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    /// When the first task was due.
    due: Moment,
    /// When the first one was given to a host.
    launched: Moment,
    /// When the last one ended.
    ended: Moment,
}

impl Span {
    fn of(tasks: &[Task]) -> Span {
        let first = |of: fn(&Task) -> Moment| tasks.iter().map(of).min().unwrap_or_default();
        Span {
            due: first(Task::due),
            launched: first(|task| task.record.launched),
            ended: tasks.iter().map(|task| task.record.ended).max().unwrap_or_default(),
        }
    }
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
        let Answer::Queues { queues, .. } = client.ask(&Ask::Queues)? else {
            bail!("the controller's answer lacks queues; is it a different version?");
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
        if tasks.is_empty() {
            let within = since.map_or(String::new(), |period| format!(" within {period}"));
            bail!(
                "no job of this grid has finished{within}: run jobs first, or give --since a longer time"
            );
        }
        Ok(History::of(tasks.into_values().collect(), &queues, (slots.max(1), unread)))
    }

    fn of(tasks: Vec<Task>, views: &[QueueView], (slots, unread): (u32, u64)) -> History {
        let mut names: Vec<String> =
            tasks.iter().map(|task| task.record.queue.to_string()).collect();
        names.sort();
        names.dedup();
        let queue = |name: String| {
            let view = views.iter().find(|view| view.name.as_str() == name);
            // A limit that was lowered since holds no job back for ever.
            let widest = tasks.iter().filter(|task| task.record.queue.as_str() == name);
            let widest = widest.map(|task| task.record.slots).max().unwrap_or(1);
            let rule = Queue {
                priority: view.and_then(|view| view.priority).unwrap_or(0),
                slots_max: view.and_then(|view| view.slots_max).map(|most| most.max(widest)),
            };
            TaskQueue { queue: name, rule }
        };
        let queues = names.into_iter().map(queue).collect();
        let span = Span::of(&tasks);
        History { tasks, queues, slots, unread, span }
    }

    /// The place of a task's queue among those of the history.
    fn queue_of(&self, task: &Task) -> usize {
        let name = task.record.queue.as_str();
        self.queues.iter().position(|queue| queue.queue == name).unwrap_or(0)
    }

    /// The tasks, on whichever host has room, counted from the first that was due; none takes more than `concurrent` slots.
    pub fn jobs(&self, concurrent: u32, storage: Option<Storage>) -> Vec<Job> {
        let job = |task: &Task| Job {
            node: None,
            slots: task.record.slots.clamp(1, concurrent),
            due_seconds: seconds(task.due().since(self.span.due)),
            demand: demand(&task.record.usage.unwrap_or_default(), storage),
            queue: self.queue_of(task),
        };
        self.tasks.iter().take(JOBS_MAX).map(job).collect()
    }

    /// Seconds from the first that was due to the last end, as it was.
    pub fn seconds(&self) -> f64 {
        seconds(self.span.ended.since(self.span.due))
    }

    /// Seconds that a task waited for slots, as it was: the mean.
    pub fn slot_wait_seconds(&self) -> f64 {
        self.tasks.iter().map(Task::waited).sum::<f64>() / self.tasks.len() as f64
    }

    /// What the jobs of each queue needed, in the order of the queues.
    pub fn demands(&self) -> Vec<QueueDemand> {
        let of = |place: usize| {
            let tasks: Vec<&Task> =
                self.tasks.iter().filter(|task| self.queue_of(task) == place).collect();
            let hours = |of: &dyn Fn(&AttemptRecord) -> f64| {
                tasks.iter().map(|task| of(&task.record)).sum::<f64>() / 3600.0
            };
            QueueDemand {
                jobs: tasks.len(),
                slot_hours: hours(&|record| {
                    f64::from(record.slots) * seconds(record.ended.since(record.launched))
                }),
                processor_hours: hours(&|record| {
                    record.usage.map_or(0.0, |usage| usage.cpu_seconds())
                }),
                waits: Waits::of(tasks.iter().map(|task| task.waited()).collect()),
            }
        };
        (0..self.queues.len()).map(of).collect()
    }

    /// The hour with most jobs at once. What a task read and wrote is spread over its time.
    pub fn busiest(&self) -> Busiest {
        let minutes = self.minutes();
        let length = HOUR.min(minutes.len());
        let all = |some: &[Vec<Cell>]| Cell::sum(some.iter().flatten());
        let busiest = minutes
            .windows(length)
            .max_by(|one, other| all(one).jobs.total_cmp(&all(other).jobs))
            .unwrap_or_default();
        let history = seconds(self.span.ended.since(self.span.launched));
        let length = history.clamp(0.001, 60.0 * HOUR as f64);
        let queue = |(place, demand): (usize, QueueDemand)| {
            let of = Cell::sum(busiest.iter().filter_map(|cells| cells.get(place)));
            BusyQueue {
                queue: self.queues[place].queue.clone(),
                jobs_at_once: of.jobs / length,
                mb_s: of.bytes / length / 1e6,
                demand,
            }
        };
        let sum = all(busiest);
        Busiest {
            seconds: length,
            jobs_at_once: sum.jobs / length,
            mb_s: sum.bytes / length / 1e6,
            queues: self.demands().into_iter().enumerate().map(queue).collect(),
        }
    }

    /// What the jobs of each queue did in each minute since the first was given to a host.
    fn minutes(&self) -> Vec<Vec<Cell>> {
        let begin = self.span.launched;
        let last = (self.span.ended.since(begin) / 60_000).min(MINUTES_MAX);
        let mut minutes = vec![vec![Cell::default(); self.queues.len()]; last as usize + 1];
        for task in &self.tasks {
            let record = &task.record;
            let usage = record.usage.unwrap_or_default();
            let bytes = usage.read_bytes.unwrap_or(0) + usage.written_bytes.unwrap_or(0);
            let (from, to) = (record.launched.since(begin), record.ended.since(begin));
            let all = seconds(to.saturating_sub(from)).max(0.001);
            for number in from / 60_000..=(to / 60_000).min(MINUTES_MAX) {
                let (start, end) = (number * 60_000, (number + 1) * 60_000);
                let part = seconds(to.min(end).saturating_sub(from.max(start)));
                let cell = &mut minutes[number as usize][self.queue_of(task)];
                cell.jobs += part;
                cell.bytes += bytes as f64 * part / all;
            }
        }
        minutes
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

    /// Seconds that it waited for slots.
    fn waited(&self) -> f64 {
        seconds(self.record.launched.since(self.due()))
    }
}

/// What jobs did in some time: seconds of jobs, and bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    jobs: f64,
    bytes: f64,
}

impl Cell {
    fn sum<'a>(cells: impl Iterator<Item = &'a Cell>) -> Cell {
        cells.fold(Cell::default(), |sum, one| Cell {
            jobs: sum.jobs + one.jobs,
            bytes: sum.bytes + one.bytes,
        })
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
            tasks: 1,
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
        let history = History::of(tasks, &[], (4, 0));
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
        let found = History::of(tasks, &[], (4, 0)).busiest();
        assert_eq!((found.seconds, found.jobs_at_once), (3600.0, 3.0));
        assert!((found.mb_s - 20.0).abs() < 1e-6, "{found:?}");
        // A history of a quarter of an hour is taken as a whole.
        let mut short = long(0, 1, 9);
        short.record.ended = Moment(hour / 4);
        let found = History::of(vec![short], &[], (4, 0)).busiest();
        assert_eq!((found.seconds, found.jobs_at_once), (900.0, 1.0));
        assert!((found.mb_s - 10.0).abs() < 1e-6, "{found:?}");
    }

    #[test]
    fn each_queue_has_its_demand_its_waits_and_its_part_of_the_busiest_hour() {
        let of = |queue: &str, number: u64, submitted: u64| {
            let mut task = task(number, submitted, submitted + number * 1000, false);
            task.record.queue = queue.parse().unwrap();
            task
        };
        let tasks = vec![of("night", 1, 0), of("day", 2, 0), of("day", 4, 0), of("day", 6, 9000)];
        let history = History::of(tasks, &[], (8, 0));
        let names: Vec<&str> = history.queues.iter().map(|queue| &*queue.queue).collect();
        assert_eq!(names, ["day", "night"]);
        let places: Vec<usize> = history.jobs(8, None).iter().map(|job| job.queue).collect();
        assert_eq!(places, [1, 0, 0, 0]);
        let day = history.demands()[0];
        assert_eq!((day.jobs, day.waits.slot_wait_seconds_mean), (3, 4.0));
        assert_eq!(day.waits.slot_wait_seconds_p95, 6.0);
        assert!((day.slot_hours - 3.0 * 8.0 * 4.0 / 3600.0).abs() < 1e-9);
        assert!((day.processor_hours - 9.0 / 3600.0).abs() < 1e-9);
        let busiest = history.busiest();
        let sum: f64 = busiest.queues.iter().map(|queue| queue.jobs_at_once).sum();
        assert!((sum - busiest.jobs_at_once).abs() < 1e-9);
        assert!((busiest.queues[1].jobs_at_once - 4.0 / busiest.seconds).abs() < 1e-9);
    }

    #[test]
    fn waits_of_nobody_are_none_and_those_of_many_have_their_tail() {
        assert_eq!(Waits::of(Vec::new()), Waits::default());
        let waits = Waits::of((1..=100).rev().map(f64::from).collect());
        assert_eq!((waits.slot_wait_seconds_mean, waits.slot_wait_seconds_p95), (50.5, 95.0));
    }
}
