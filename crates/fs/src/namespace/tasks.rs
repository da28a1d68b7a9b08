//! Tasks of the background: which there are, what people order of them, and the thread that works on them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_base::{DiskId, FilesetId};
use parking_lot::{Condvar, Mutex};

use super::Namespace;
use super::scrub_archives::Reached;
use crate::error::{FsError, Result};
use crate::key::{self, Key};
use crate::partition::Partition;
use crate::policy::Policy;
use crate::record::{DiskUse, decode, encode};
use crate::recovery::scan_prefix;
use crate::remote::disk_orders::{DiskAnswer, DiskOrder, TaskChange, TaskTold};
use crate::tasks::{
    Order, Pace, Progress, StoredWork, TaskRecord, TaskState, TaskStatus, Work, seconds_left,
};

/// Tasks that have ended are remembered, the latest so many.
const ENDED_MAX: usize = 20;
/// How long a task rests that waits for programs, or could do nothing.
pub(super) const REST: Duration = Duration::from_secs(2);
/// How many times as long as it looked in vain it rests, so that millions of names are not looked at all the time.
const REST_FACTOR: u32 = 5;
const REST_MAX: Duration = Duration::from_secs(300);
/// How often its progress is written to the store.
const SAVE_INTERVAL: Duration = Duration::from_secs(10);

/// A task of the running process.
pub(super) struct Task {
    pub work: Work,
    pub pace: Pace,
    pub at_work: Mutex<AtWork>,
    /// Filesets that a policy has been through.
    pub been_through: Mutex<BTreeSet<FilesetId>>,
    /// Where a scrub of archives continues that had to wait.
    pub reached: Mutex<Reached>,
    /// In a cluster, what the fill of pools was found to ask for when the task began, as a policy: what one owner moves must not
    /// have the next one believe that the pool was never that full.
    pub decided: Mutex<Option<Policy>>,
    /// When the root's owner asked for it last, if that is another node.
    pub asked: Mutex<Option<Instant>>,
}

impl Task {
    pub fn new(record: TaskRecord) -> Task {
        Task {
            work: record.work.clone().into(),
            pace: Pace::default(),
            at_work: Mutex::new(AtWork {
                record,
                elsewhere: 0,
                note: None,
                rests_until: None,
                saved: None,
            }),
            been_through: Mutex::default(),
            reached: Mutex::default(),
            decided: Mutex::default(),
            asked: Mutex::default(),
        }
    }
}

/// What changes while a task runs.
pub(super) struct AtWork {
    pub record: TaskRecord,
    /// Files that remain in filesets of other nodes, as far as they have said.
    pub elsewhere: u64,
    /// What it waits for, or what went wrong last.
    pub note: Option<String>,
    /// When it may have its next turn.
    pub rests_until: Option<Instant>,
    saved: Option<Instant>,
}

/// All tasks.
#[derive(Default)]
pub(super) struct Tasks {
    list: Mutex<BTreeMap<u64, Arc<Task>>>,
    lock: Mutex<()>,
    changed: Condvar,
}

/// What came of one turn of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// There may be more to do at once.
    More,
    /// It waits, for the reason given.
    Waits(String),
    /// Nothing remains to be done.
    Done,
}

impl Tasks {
    fn get(&self, number: u64) -> Result<Arc<Task>> {
        self.list.lock().get(&number).cloned().ok_or_else(|| {
            FsError::Refused(format!("there is no task {number}: `forebay tasks list` shows them"))
        })
    }

    fn wake(&self) {
        drop(self.lock.lock());
        self.changed.notify_all();
    }
}

impl Namespace {
    /// Takes the tasks up that the store of the root has.
    pub(super) fn take_up_tasks(&self, root: &Partition) -> Result<()> {
        let mut found = Vec::new();
        scan_prefix(root.store(), &[key::TASK], &mut |key, value| {
            if let Some(Key::Task(number)) = key::parse(key) {
                found.push((number, decode::<TaskRecord>("task", value)?));
            }
            Ok(())
        })?;
        self.drop_tasks();
        found.into_iter().for_each(|(number, record)| self.add_task(number, record));
        Ok(())
    }

    /// Another node owns the root from now on, and works on the tasks.
    pub(super) fn drop_tasks(&self) {
        let tasks = std::mem::take(&mut *self.tasks.list.lock());
        tasks.values().for_each(|task| task.pace.order(Order::Stop));
    }

    /// A task with a number of its own, which nobody knows yet.
    pub(super) fn new_task(&self, work: &Work) -> (u64, TaskRecord) {
        let number = self.tasks.list.lock().keys().next_back().map_or(1, |last| last + 1);
        let record = TaskRecord {
            work: StoredWork::from(work),
            state: TaskState::Running,
            speed: None,
            begun: self.shared.clock.now(),
            ended: None,
            progress: Progress::default(),
        };
        (number, record)
    }

    /// A task that the store has is known from now on.
    pub(super) fn add_task(&self, number: u64, record: TaskRecord) {
        let task = Task::new(record);
        self.set_pace(&task);
        self.tasks.list.lock().insert(number, Arc::new(task));
        self.tasks.wake();
    }

    /// Begins a task; returns its number.
    ///
    /// # Errors
    /// [`FsError::Refused`] if one that does the same has not ended; what the store says.
    pub(super) fn begin_task(&self, work: &Work) -> Result<u64> {
        if let Some(number) = self.unfinished_task(work) {
            return Err(FsError::Refused(format!("task {number} does that already")));
        }
        let (number, task) = self.new_task(work);
        let changes = [(key::task(number), Some(encode(&task)))].into();
        self.root()?.change_disks(changes, |_| Ok(()))?;
        self.add_task(number, task);
        Ok(number)
    }

    /// The task of a number.
    pub(super) fn task_of(&self, number: u64) -> Option<Arc<Task>> {
        self.tasks.get(number).ok()
    }

    fn set_pace(&self, task: &Task) {
        let record = task.at_work.lock().record.clone();
        task.pace.set_speed(record.speed.unwrap_or(self.shared.settings.task_speed.0));
        let goes_on = record.state == TaskState::Running;
        task.pace.order(if goes_on { Order::GoOn } else { Order::Stop });
    }

    /// The number of a task that does this and has not ended.
    pub(super) fn unfinished_task(&self, work: &Work) -> Option<u64> {
        let same = |other: &Work| match (work, other) {
            (Work::Drain { disk, .. }, Work::Drain { disk: other, .. }) => disk == other,
            (one, other) => one == other,
        };
        let list = self.tasks.list.lock();
        let mut all = list.iter();
        let found =
            all.find(|(_, task)| same(&task.work) && !task.at_work.lock().record.state.has_ended());
        found.map(|(number, _)| *number)
    }

    /// A task as it is when it is done.
    pub(super) fn task_as_done(&self, number: u64) -> Option<(u64, TaskRecord)> {
        let task = self.tasks.get(number).ok()?;
        let record = task.at_work.lock().record.clone();
        let ended = Some(self.shared.clock.now());
        Some((number, TaskRecord { state: TaskState::Done, ended, ..record }))
    }

    /// The store says that a task is done.
    pub(super) fn end_task(&self, number: u64) {
        let (Some((_, record)), Ok(task)) = (self.task_as_done(number), self.tasks.get(number))
        else {
            return;
        };
        let mut at_work = task.at_work.lock();
        at_work.record = record;
        at_work.note = None;
        task.pace.order(Order::Stop);
    }

    /// All tasks that there are, and the latest that have ended, in order of their numbers: the root's owner has them.
    ///
    /// # Errors
    /// [`FsError::Io`] if that cannot be reached.
    pub fn all_tasks(&self) -> Result<Vec<TaskStatus>> {
        let tasks = match self.order_at_root(&DiskOrder::Tasks)? {
            None => return Ok(self.task_status()),
            Some(DiskAnswer::Tasks(tasks)) => tasks,
            Some(other) => return other.done().and(Err(FsError::Invalid)),
        };
        let (disks, speed) = (self.disks.read().clone(), self.shared.settings.task_speed.0);
        let status = |told: TaskTold| {
            let progress = told.record.progress;
            TaskStatus {
                files_left: told.files_left,
                seconds_left: told.files_left.and_then(|left| seconds_left(progress, left)),
                note: told.note,
                ..TaskStatus::of(told.number, told.record, &disks, speed)
            }
        };
        Ok(tasks.into_iter().map(status).collect())
    }

    /// The tasks for another node.
    pub(super) fn tasks_told(&self) -> Vec<TaskTold> {
        let records: BTreeMap<u64, TaskRecord> = {
            let list = self.tasks.list.lock();
            list.iter()
                .map(|(number, task)| (*number, task.at_work.lock().record.clone()))
                .collect()
        };
        let told = |status: TaskStatus| {
            Some(TaskTold {
                number: status.id,
                record: records.get(&status.id)?.clone(),
                files_left: status.files_left,
                note: status.note,
            })
        };
        self.task_status().into_iter().filter_map(told).collect()
    }

    /// The tasks of this node, if it owns the root.
    #[must_use]
    pub fn task_status(&self) -> Vec<TaskStatus> {
        let tasks: Vec<(u64, Arc<Task>)> = self
            .tasks
            .list
            .lock()
            .iter()
            .map(|(number, task)| (*number, Arc::clone(task)))
            .collect();
        tasks.into_iter().map(|(number, task)| self.status_of(number, &task)).collect()
    }

    fn status_of(&self, id: u64, task: &Task) -> TaskStatus {
        let (record, note, elsewhere) = {
            let at_work = task.at_work.lock();
            (at_work.record.clone(), at_work.note.clone(), at_work.elsewhere)
        };
        let disks = self.disks.read().clone();
        let left = match &task.work {
            Work::Drain { disk, .. } if !record.state.has_ended() => {
                let found = disks.iter().find(|known| known.uuid == *disk);
                found.map(|disk| self.objects_on(disk.id) + elsewhere)
            }
            Work::Drain { .. }
            | Work::Rebalance { .. }
            | Work::Policy { .. }
            | Work::Scrub { .. }
            | Work::ScrubArchives { .. } => None,
            Work::WriteBack { fileset } => self.changes_of(fileset),
        };
        let progress = record.progress;
        let speed = self.shared.settings.task_speed.0;
        TaskStatus {
            files_left: left,
            seconds_left: left.and_then(|left| seconds_left(progress, left)),
            note,
            ..TaskStatus::of(id, record, &disks, speed)
        }
    }

    /// Objects that records refer to on a disk, in filesets that are open or were.
    fn objects_on(&self, disk: DiskId) -> u64 {
        let open = self.partitions().into_iter().map(|partition| partition.objects_on(disk));
        let at_rest =
            self.catalogue.list().into_iter().map(|fileset| fileset.usage_at_rest(disk).objects);
        open.chain(at_rest).sum()
    }

    // --- what people order ---

    /// Has a task stop until it is resumed.
    ///
    /// # Errors
    /// [`FsError::Refused`] if there is none, or it has ended; what the store says.
    pub fn pause_task(&self, number: u64) -> Result<()> {
        if let Some(answer) = self.order_of_task(number, TaskChange::Pause)? {
            return answer.done();
        }
        self.change_task(number, |record| record.state = TaskState::Paused)
    }

    /// Has a task go on that was paused.
    ///
    /// # Errors
    /// As [`Namespace::pause_task`].
    pub fn resume_task(&self, number: u64) -> Result<()> {
        if let Some(answer) = self.order_of_task(number, TaskChange::Resume)? {
            return answer.done();
        }
        self.change_task(number, |record| record.state = TaskState::Running)
    }

    /// Sets how many bytes per second a task may copy; 0 for no bound.
    ///
    /// # Errors
    /// As [`Namespace::pause_task`].
    pub fn set_task_speed(&self, number: u64, bytes_per_second: u64) -> Result<()> {
        if let Some(answer) = self.order_of_task(number, TaskChange::Speed(bytes_per_second))? {
            return answer.done();
        }
        self.change_task(number, |record| record.speed = Some(bytes_per_second))
    }

    /// Ends a task before it is done. What it has done stays; a disk that was being emptied takes new files again.
    ///
    /// # Errors
    /// As [`Namespace::pause_task`].
    pub fn cancel_task(&self, number: u64) -> Result<()> {
        if let Some(answer) = self.order_of_task(number, TaskChange::Cancel)? {
            return answer.done();
        }
        let _one_at_a_time = self.fileset_changes.lock();
        let task = self.tasks.get(number)?;
        let ended = self.shared.clock.now();
        let mut record = unfinished(number, &task)?;
        (record.state, record.ended) = (TaskState::Cancelled, Some(ended));
        let changes = [(key::task(number), Some(encode(&record)))].into();
        match &task.work {
            Work::Drain { disk, .. } => {
                let disk = self.disk_named(disk)?;
                self.change_disk(&disk, changes, |disk| disk.used = DiskUse::Normal)?;
                self.shared.objects.disk(disk.id)?.set_use(DiskUse::Normal);
            }
            Work::Rebalance { .. }
            | Work::Policy { .. }
            | Work::Scrub { .. }
            | Work::ScrubArchives { .. } => {
                self.root()?.change_disks(changes, |_| Ok(()))?;
            }
            Work::WriteBack { fileset } => {
                return Err(FsError::Refused(format!(
                    "task {number} belongs to the cache \"{fileset}\" and ends with it: `forebay tasks pause` has its changes wait"
                )));
            }
        }
        self.adopt(&task, record);
        Ok(())
    }

    fn order_of_task(&self, number: u64, change: TaskChange) -> Result<Option<DiskAnswer>> {
        self.order_at_root(&DiskOrder::ChangeTask(number, change))
    }

    fn change_task(&self, number: u64, change: impl FnOnce(&mut TaskRecord)) -> Result<()> {
        let _one_at_a_time = self.fileset_changes.lock();
        let task = self.tasks.get(number)?;
        let mut record = unfinished(number, &task)?;
        change(&mut record);
        self.store_task(number, &record)?;
        self.adopt(&task, record);
        Ok(())
    }

    fn adopt(&self, task: &Task, record: TaskRecord) {
        {
            let mut at_work = task.at_work.lock();
            let progress = at_work.record.progress;
            at_work.record = TaskRecord { progress, ..record };
            (at_work.note, at_work.rests_until) = (None, None);
        }
        self.set_pace(task);
        self.order_helpers(task);
        self.tasks.wake();
    }

    fn store_task(&self, number: u64, record: &TaskRecord) -> Result<()> {
        let changes = [(key::task(number), Some(encode(record)))].into();
        self.root()?.change_disks(changes, |_| Ok(()))
    }

    // --- the work ---

    /// Body of the thread that works on tasks, until [`Namespace::stop_tasks`].
    pub(super) fn run_tasks(&self) {
        let mut last = 0;
        while !self.shared.bell.is_stopping() {
            let helped = self.help_others();
            let all_heard = self.tell_of_disks();
            let soon = (helped || !all_heard).then_some(REST);
            match self.next_task(last) {
                Ok((number, task)) => {
                    last = number;
                    self.take_turn(number, &task);
                }
                Err(wait) => {
                    let mut guard = self.tasks.lock.lock();
                    if !self.shared.bell.is_stopping() {
                        match wait.into_iter().chain(soon).min() {
                            Some(wait) => {
                                self.tasks.changed.wait_for(&mut guard, wait);
                            }
                            // One that comes between the look and here is found a little later.
                            None => {
                                self.tasks.changed.wait_for(&mut guard, Duration::from_secs(60));
                            }
                        }
                    }
                }
            }
        }
    }

    /// Has the thread look at once what there is to do.
    pub(super) fn wake_tasks(&self) {
        self.tasks.wake();
    }

    /// Has the thread end. What is being copied is given up.
    pub(super) fn stop_tasks(&self) {
        self.stop_helping();
        for task in self.tasks.list.lock().values() {
            task.pace.order(Order::Stop);
        }
        self.tasks.wake();
    }

    /// The next task that has something to do, after the one of number `last`; otherwise how long to wait for one.
    fn next_task(&self, last: u64) -> std::result::Result<(u64, Arc<Task>), Option<Duration>> {
        let now = self.shared.clock.instant();
        let list = self.tasks.list.lock();
        let mut wait: Option<Duration> = None;
        let after = list.range(last + 1..).chain(list.range(..=last));
        for (number, task) in after {
            let at_work = task.at_work.lock();
            if at_work.record.state != TaskState::Running {
                continue;
            }
            match at_work.rests_until.filter(|until| *until > now) {
                None => return Ok((*number, Arc::clone(task))),
                Some(until) => {
                    let left = until.saturating_duration_since(now);
                    wait = Some(wait.map_or(left, |wait| wait.min(left)));
                }
            }
        }
        Err(wait)
    }

    /// Works on a task once.
    fn take_turn(&self, number: u64, task: &Task) {
        let begun = self.instant();
        let turn = self.work_on(task);
        let ended = matches!(turn, Ok(Turn::Done));
        let saved = if ended { self.finish_task(number, task) } else { self.save(number, task) };
        let rest = match self.waits_for_others(task) {
            true => REST,
            false => rest_after(self.since(begun)),
        };
        let mut at_work = task.at_work.lock();
        let note = match (turn, saved) {
            (Ok(Turn::Waits(why)), _) => Some(why),
            // It was told to stop.
            (Err(FsError::Busy), _) => at_work.note.take(),
            (Err(error), _) | (Ok(_), Err(error)) => Some(error.to_string()),
            (Ok(Turn::More | Turn::Done), Ok(())) => None,
        };
        // Those who write back report by themselves.
        let is_told = matches!(task.work, Work::WriteBack { .. });
        if note.is_some() && note != at_work.note && !is_told {
            tracing::info!(number, note, "a task waits");
        }
        if note.is_some() {
            at_work.rests_until = Some(self.instant() + rest);
        }
        at_work.note = note;
    }

    /// Whether what a task waits for may be on other machines. Other nodes take part only as long as they are asked now and then;
    /// a home or an archive answers late while it is away, and is to be noticed when it is back.
    fn waits_for_others(&self, task: &Task) -> bool {
        self.cluster.is_some()
            || matches!(task.work, Work::WriteBack { .. } | Work::ScrubArchives { .. })
    }

    /// One turn of a task: what there is to do now is done as far as possible.
    fn work_on(&self, task: &Task) -> Result<Turn> {
        match &task.work {
            Work::Drain { disk, to } => self.drain(task, disk, to.as_deref()),
            Work::Rebalance { pool } => self.rebalance_by_turns(task, pool),
            Work::Policy { policy } => self.carry_out(task, policy),
            Work::Scrub { fileset } => self.scrub_files(task, fileset.as_deref()),
            Work::ScrubArchives { fileset } => self.scrub_archived(task, fileset.as_deref()),
            Work::WriteBack { fileset } => self.write_back_by_task(fileset),
        }
    }

    /// Works on a task until it has ended or waits for something, without a thread of the background. `progress` is
    /// called after each turn.
    ///
    /// # Errors
    /// [`FsError::Refused`] if it waits, with what it waits for; what a store or disk says.
    pub fn work_through(&self, number: u64, progress: &mut dyn FnMut(&TaskStatus)) -> Result<()> {
        let task = self.tasks.get(number)?;
        loop {
            let turn = self.work_on(&task)?;
            match turn {
                Turn::Done => self.finish_task(number, &task)?,
                Turn::More => self.save(number, &task)?,
                Turn::Waits(why) => {
                    self.save(number, &task)?;
                    return Err(FsError::Refused(format!("task {number} waits: {why}")));
                }
            }
            progress(&self.status_of(number, &task));
            if turn == Turn::Done {
                return Ok(());
            }
        }
    }

    /// Writes the progress of a task to the store, if it was not just done.
    fn save(&self, number: u64, task: &Task) -> Result<()> {
        let _one_at_a_time = self.fileset_changes.lock();
        let now = self.shared.clock.instant();
        let record = {
            let mut at_work = task.at_work.lock();
            let is_recent = |at: Instant| now.saturating_duration_since(at) < SAVE_INTERVAL;
            if at_work.saved.is_some_and(is_recent) {
                return Ok(());
            }
            at_work.saved = Some(now);
            at_work.record.clone()
        };
        self.store_task(number, &record)
    }

    fn finish_task(&self, number: u64, task: &Task) -> Result<()> {
        let _one_at_a_time = self.fileset_changes.lock();
        if task.at_work.lock().record.state != TaskState::Running {
            // Somebody ended it otherwise.
            return Ok(());
        }
        let Some((_, record)) = self.task_as_done(number) else { return Ok(()) };
        self.shared.fail_points.reach("task.ending")?;
        self.store_task(number, &record)?;
        self.end_task(number);
        self.forget_old_tasks()
    }

    /// Forgets tasks that ended long ago.
    fn forget_old_tasks(&self) -> Result<()> {
        let mut changes = BTreeMap::new();
        let mut list = self.tasks.list.lock();
        let has_ended = |task: &Task| task.at_work.lock().record.state.has_ended();
        let ended: Vec<u64> =
            list.iter().filter(|(_, task)| has_ended(task)).map(|(number, _)| *number).collect();
        for number in ended.iter().take(ended.len().saturating_sub(ENDED_MAX)) {
            list.remove(number);
            changes.insert(key::task(*number), None);
        }
        drop(list);
        if changes.is_empty() {
            return Ok(());
        }
        self.root()?.change_disks(changes, |_| Ok(()))
    }

    /// Opens every fileset that has a store, in a cluster those of this node: only then it is known what lies where.
    ///
    /// # Errors
    /// What the first one says that cannot be opened.
    pub(super) fn open_all(&self) -> Result<()> {
        for fileset in self.filesets_here() {
            self.open_fileset(fileset.id).map_err(|error| {
                let name = fileset.settings().name;
                FsError::Refused(format!("fileset \"{name}\" cannot be looked at: {error}"))
            })?;
        }
        Ok(())
    }
}

fn unfinished(number: u64, task: &Task) -> Result<TaskRecord> {
    let record = task.at_work.lock().record.clone();
    if record.state.has_ended() {
        return Err(FsError::Refused(format!("task {number} has ended")));
    }
    Ok(record)
}

/// For those who wait until nothing of a task is at work any more.
impl Task {
    /// Adds to what is done.
    pub fn did(&self, files: u64, bytes: u64, took: Duration) {
        let mut at_work = self.at_work.lock();
        let progress = &mut at_work.record.progress;
        progress.files += files;
        progress.bytes += bytes;
        let took = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        progress.worked_ms = progress.worked_ms.saturating_add(took);
    }
}

/// How long a task rests after a turn of this length in which it could do nothing.
fn rest_after(turn: Duration) -> Duration {
    (turn * REST_FACTOR).clamp(REST, REST_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_looks_in_vain_rests_for_much_longer_than_it_looks() {
        let seconds = Duration::from_secs;
        assert_eq!(rest_after(Duration::from_millis(3)), seconds(2));
        assert_eq!(rest_after(seconds(10)), seconds(50));
        assert_eq!(rest_after(seconds(3600)), seconds(300));
    }
}
