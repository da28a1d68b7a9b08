//! Tasks of a cluster: the root's owner has them, and every owner of filesets takes part.
//!
//! The root's owner asks each node again and again how far it is. For a while after each question a node works on its own
//! filesets; so it stops by itself when the task is paused, or the root has another owner, which asks anew. A node holds no plan:
//! what remains follows from its records. A disk is empty when every fileset has an owner that has just said so, and nobody
//! has an object of it open.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_base::FilesetId;
use parking_lot::Mutex;

use super::Namespace;
use super::tasks::{REST, Task, Turn};
use crate::error::{FsError, Result};
use crate::ops::shown_name;
use crate::record::{DiskRecord, DiskUse, Placement};
use crate::remote::disk_orders::{HelpOrder, HelpReport};
use crate::remote::{Answer, Request, ask_node};
use crate::tasks::{Order, Progress, StoredWork, TaskRecord, TaskState, Work};

/// For how long a node works after it was asked.
const ASKED_LASTS: Duration = Duration::from_secs(60);

/// The tasks that this node takes part in.
#[derive(Default)]
pub(super) struct Helping(Mutex<Vec<Arc<Task>>>);

/// What the nodes say of a task together.
#[derive(Default)]
pub(super) struct Reports {
    /// Files that remain in filesets of other nodes.
    pub left: u64,
    /// What is in the way of an end, if anything.
    pub waits: Option<String>,
}

fn is_same(task: &Task, order: &HelpOrder) -> bool {
    let at_work = task.at_work.lock();
    at_work.record.begun == order.begun && at_work.record.work == order.work
}

/// Whether a node works on a task while the others wait: what each may move depends on the fill of disks, which the one before
/// has changed.
fn is_its_turn(order: &HelpOrder, report: &HelpReport) -> bool {
    let work = Work::from(order.work.clone());
    order.goes_on && work.goes_by_turns() && report.left.iter().any(|(_, left)| *left > 0)
}

/// At the root's owner.
impl Namespace {
    fn order_for(&self, task: &Task, goes_on: bool) -> HelpOrder {
        let record = task.at_work.lock().record.clone();
        let speed = record.speed.unwrap_or(self.shared.settings.task_speed.0);
        let goes_on = goes_on && record.state == TaskState::Running;
        let decided = task.decided.lock().clone();
        let work = decided.map_or(record.work, |policy| StoredWork::from(&Work::Policy { policy }));
        HelpOrder { work, begun: record.begun, speed, goes_on }
    }

    /// Has the owners of the other filesets take part in a task; returns what they say.
    pub(super) fn ask_helpers(&self, task: &Task) -> Reports {
        let order = self.order_for(task, true);
        let (reports, progress) = self.reports(&order);
        task.did(progress.files, progress.bytes, Duration::from_millis(progress.worked_ms));
        task.at_work.lock().elsewhere = reports.left;
        reports
    }

    /// Tells the other nodes at once that a task was changed.
    pub(super) fn order_helpers(&self, task: &Task) {
        if self.cluster.is_some() && self.root().is_ok() {
            let order = self.order_for(task, true);
            let (_, progress) = self.reports(&order);
            task.did(progress.files, progress.bytes, Duration::from_millis(progress.worked_ms));
        }
    }

    /// What other nodes still have on a disk, or why that is not known; nothing is moved.
    pub(super) fn rest_on(&self, record: &DiskRecord) -> Result<Option<String>> {
        if self.cluster.is_none() {
            return Ok(None);
        }
        let order = HelpOrder {
            work: StoredWork::Drain(record.uuid.clone(), None),
            begun: self.shared.clock.now(),
            speed: 0,
            goes_on: false,
        };
        if let Some(name) = self.natives_on(record).first() {
            return Ok(Some(format!("the directory {name} lies on it")));
        }
        Ok(self.reports(&order).0.waits)
    }

    fn reports(&self, order: &HelpOrder) -> (Reports, Progress) {
        let (mut reports, mut progress) = (Reports::default(), Progress::default());
        let Some(membership) = &self.cluster else { return (reports, progress) };
        let own = self.filesets_here();
        let mut left: BTreeMap<FilesetId, u64> = own.iter().map(|own| (own.id, 0)).collect();
        for (node, channel) in membership.cluster().members() {
            match ask_node(&*channel, Request::Help(order.clone())) {
                Ok(Answer::Helped(report)) if is_its_turn(order, &report) => {
                    progress.add(&report.progress);
                    reports.left = report.left.iter().map(|(_, left)| left).sum();
                    let note = report.note.unwrap_or_else(|| "it moves its files now".to_owned());
                    reports.waits = Some(format!("node {node}: {note}"));
                    return (reports, progress);
                }
                Ok(Answer::Helped(report)) => {
                    progress.add(&report.progress);
                    left.extend(report.left);
                    let note = report.note.map(|note| format!("node {node}: {note}"));
                    let open = report.has_open.then(|| format!("node {node} has files of it open"));
                    reports.waits = reports.waits.or(note).or(open);
                }
                Ok(other) => {
                    reports.waits.get_or_insert(format!("node {node}: not an answer: {other:?}"));
                }
                Err(why) => {
                    reports.waits.get_or_insert(format!("node {node} does not answer: {why}"));
                }
            }
        }
        reports.left = left.values().sum();
        if reports.left > 0 {
            let why =
                format!("{} files of filesets of other nodes are still to be moved", reports.left);
            reports.waits.get_or_insert(why);
        }
        for fileset in self.catalogue.list() {
            let settings = fileset.settings();
            if settings.placement != Placement::Native && !left.contains_key(&fileset.id) {
                let name = shown_name(&settings.name).to_owned();
                reports
                    .waits
                    .get_or_insert(format!("fileset \"{name}\" has no owner that answers"));
            }
        }
        (reports, progress)
    }

    /// Names of the native directories on a disk.
    fn natives_on(&self, record: &DiskRecord) -> Vec<String> {
        let on_it = |fileset: Arc<super::Fileset>| {
            let settings = fileset.settings();
            (settings.disk.as_deref() == Some(record.uuid.as_str())).then_some(settings.name)
        };
        self.catalogue.list().into_iter().filter_map(on_it).collect()
    }

    /// The native directories on a disk went with it.
    pub(super) fn forget_natives(&self, record: &DiskRecord) -> Result<()> {
        if self.cluster.is_none() {
            return Ok(());
        }
        let names = self.natives_on(record);
        for name in &names {
            let fileset = self.fileset_named(name)?;
            self.forget_fileset(&fileset)?;
        }
        if names.is_empty() {
            return Ok(());
        }
        self.commit_change()?;
        self.tell_of_native();
        Ok(())
    }

    /// Removes the directories of a node on a disk that is to be empty, if nothing is in them: the node makes them anew on another
    /// disk, if it has a suitable one. Why that is not possible.
    pub(super) fn empty_natives(&self, record: &DiskRecord) -> Option<String> {
        let (mut refusal, mut removed) = (None, false);
        for name in self.natives_on(record) {
            let outcome = {
                let _one_at_a_time = self.fileset_changes.lock();
                self.fileset_named(&name).and_then(|fileset| self.remove_node_directory(&fileset))
            };
            match outcome {
                Ok(()) => removed = true,
                Err(error) => {
                    refusal.get_or_insert(format!(
                        "the native directory {name} lies on the disk, and only people can move its files ({error})"
                    ));
                }
            }
        }
        if removed {
            self.tell_of_native();
        }
        refusal
    }
}

/// At another owner.
impl Namespace {
    /// Takes part in a task of the root's owner, and says how far it is.
    pub(crate) fn help(&self, order: &HelpOrder) -> Result<HelpReport> {
        // Before anything is looked at: from now on nothing new comes to a disk that is being emptied.
        self.refresh()?;
        let task = self.task_for(order);
        let mut report = match &order.work {
            StoredWork::Drain(uuid, _) => self.report_on_drain(uuid, order)?,
            StoredWork::Policy(_)
            | StoredWork::Premigrate(..)
            | StoredWork::Rebalance(_)
            | StoredWork::Scrub(_)
            | StoredWork::ScrubArchives(_)
            | StoredWork::WriteBack(_) => {
                let been = task.as_ref().map(|task| task.been_through.lock().clone());
                let left = |id: &FilesetId| {
                    u64::from(!been.as_ref().is_some_and(|been| been.contains(id)))
                };
                let own = self.filesets_here();
                let left = own.iter().map(|own| (own.id, left(&own.id))).collect();
                HelpReport { left, ..HelpReport::default() }
            }
        };
        if let Some(task) = task {
            let mut at_work = task.at_work.lock();
            report.note = at_work.note.clone();
            report.progress = std::mem::take(&mut at_work.record.progress);
        }
        if order.goes_on && report.left.iter().any(|(_, left)| *left > 0) {
            self.wake_tasks();
        }
        Ok(report)
    }

    /// The task of an order; none if it is not known here and nothing is to be done.
    fn task_for(&self, order: &HelpOrder) -> Option<Arc<Task>> {
        let mut all = self.helping.0.lock();
        let known = all.iter().find(|task| is_same(task, order)).cloned();
        if known.is_none() && !order.goes_on {
            return None;
        }
        let task = known.unwrap_or_else(|| {
            let record = TaskRecord {
                work: order.work.clone(),
                state: TaskState::Running,
                speed: Some(order.speed),
                begun: order.begun,
                ended: None,
                progress: Progress::default(),
            };
            let task = Arc::new(Task::new(record));
            all.push(Arc::clone(&task));
            task
        });
        task.pace.set_speed(order.speed);
        task.pace.order(if order.goes_on { Order::GoOn } else { Order::Stop });
        *task.asked.lock() = order.goes_on.then(|| self.instant());
        Some(task)
    }

    fn report_on_drain(&self, uuid: &str, order: &HelpOrder) -> Result<HelpReport> {
        let record = self.disk_named(uuid)?;
        if record.used == DiskUse::Normal {
            return Err(FsError::Refused(format!("disk {} is in use here", record.location)));
        }
        self.shared.objects.give_up_stock_of(record.id);
        self.open_all()?;
        // What the records say is also what the stores say.
        self.commit()?;
        self.shared.objects.finish_reclaim();
        let disk = self.shared.objects.disk(record.id)?;
        // In this order, as in `is_empty`.
        let has_open = disk.has_open_objects();
        let mut left = Vec::new();
        for fileset in self.filesets_here() {
            let partition = self.open_fileset(fileset.id)?;
            left.push((fileset.id, partition.left_on(record.id)));
        }
        if !order.goes_on && left.iter().all(|(_, left)| *left == 0) {
            // The disk is about to be removed: nothing of what was moved may be lost with it.
            self.sync_all()?;
        }
        Ok(HelpReport { left, has_open, ..HelpReport::default() })
    }

    /// Works once on each task that this node takes part in. Whether there may be more to do soon.
    pub(super) fn help_others(&self) -> bool {
        let now = self.instant();
        let tasks: Vec<Arc<Task>> = {
            let mut all = self.helping.0.lock();
            all.retain(|task| self.is_asked(task));
            let rests =
                |task: &Task| task.at_work.lock().rests_until.is_some_and(|until| until > now);
            all.iter().filter(|task| !rests(task)).cloned().collect()
        };
        for task in &tasks {
            let turn = match &task.work {
                Work::Drain { disk, to } => {
                    self.disk_named(disk).and_then(|record| match record.used {
                        DiskUse::Draining => self.drain_own(task, &record, to.as_deref()),
                        DiskUse::Normal | DiskUse::Lost | DiskUse::Removed => Ok(Turn::Done),
                    })
                }
                Work::Policy { policy } => self.carry_out_own(task, policy),
                Work::Rebalance { pool } => self.even_out_own(task, pool),
                Work::Scrub { .. } | Work::ScrubArchives { .. } | Work::WriteBack { .. } => {
                    Ok(Turn::Done)
                }
            };
            let mut at_work = task.at_work.lock();
            at_work.note = match turn {
                Ok(Turn::Waits(why)) => Some(why),
                Ok(Turn::More | Turn::Done) | Err(FsError::Busy) => None,
                Err(error) => Some(error.to_string()),
            };
            at_work.rests_until = Some(self.instant() + REST);
        }
        !self.helping.0.lock().is_empty()
    }

    /// Whether a task is one of this node, or was asked for a short while ago.
    pub(super) fn is_asked(&self, task: &Task) -> bool {
        let asked = *task.asked.lock();
        asked.is_some_and(|asked| self.since(asked) < ASKED_LASTS)
    }

    pub(super) fn stop_helping(&self) {
        self.helping.0.lock().iter().for_each(|task| task.pace.order(Order::Stop));
    }
}
