//! Jobs that have not ended: which of their tasks wait for a place, and what the others wait for. Kept up with each change.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::depend::{self, Verdict, look};
use crate::index::{Index, shape_of};
use crate::ledger::{Job, Ledger};
use crate::names;
use crate::parse::dependency::{Condition, Test};
use crate::ready::{Entry, Shape, ShapeId};
use crate::spans::Spans;
use crate::task::Task;
use crate::vocabulary::{JobId, Moment, TaskId};
use crate::waits::{Turn, Waits};

/// A job with tasks that have not ended.
#[derive(Debug)]
pub(crate) struct Open {
    pub shape: ShapeId,
    /// Places that wait and have no excluded hosts.
    pub fresh: Spans,
    /// Places that wait and have, with their shapes.
    pub excluded: BTreeMap<u32, ShapeId>,
    pub waits: Waits,
    /// What each of its elements waits for: something about the element of another job with the same index.
    pairs: Vec<(Test, JobId)>,
    /// Places that wait for that, and are not among the others.
    barred: Spans,
    /// Whether it waits for the time at which it may begin.
    pub waits_for_time: bool,
    /// Whether a task of it is on a host, as its namesakes know it.
    pub active: bool,
    /// Whether its entries are among the ready ones.
    pub entered: bool,
    pub entered_fresh: bool,
}

impl Open {
    /// Whether a task of it waits for nothing but a place.
    pub fn is_ready(&self) -> bool {
        self.entered && (self.entered_fresh || !self.excluded.is_empty())
    }

    /// Whether its elements wait for elements of other jobs with the same index.
    pub fn is_paired(&self) -> bool {
        !self.pairs.is_empty()
    }
}

impl Index {
    /// Takes in what a job waits for, as a whole.
    pub(crate) fn open_job(&mut self, ledger: &Ledger, id: JobId, job: &Job) {
        self.rename(ledger, id, job);
        let turn = self.turn_of(id, job);
        let (now, mut dues) = (self.clock, Vec::new());
        let waits = job.condition.as_ref().map_or_else(Waits::default, |condition| {
            Waits::new(condition, turn, |test, target, due| {
                look(ledger, now, (test, target), due, &mut dues)
            })
        });
        self.delays.extend(dues.into_iter().map(|(at, other)| (at, id, other)));
        let shape = Shape { excluded: Vec::new(), ..shape_of(job, &job.tasks[0]) };
        let open = Open {
            shape: self.shapes.take(shape),
            fresh: Spans::default(),
            excluded: BTreeMap::new(),
            waits,
            pairs: job.condition.as_ref().map(Condition::pairs).unwrap_or_default(),
            barred: Spans::default(),
            waits_for_time: self.times.open(id, job),
            active: job.tally.active > 0,
            entered: false,
            entered_fresh: false,
        };
        if open.waits.verdict() == Verdict::Never && !self.flow_of.contains_key(&id) {
            self.vain.insert(id);
        }
        self.open.insert(id, open);
    }

    /// Brings a job up to date among those with its name.
    pub(crate) fn rename(&mut self, ledger: &Ledger, id: JobId, job: &Job) {
        let turn = self.names.note(id, job);
        self.pass_turn(ledger, turn);
    }

    fn turn_of(&self, id: JobId, job: &Job) -> Turn {
        if self.names.in_the_way_of(id, job).is_none() { Turn::Now } else { Turn::Later }
    }

    /// Looks again at the jobs whose turn among those with their name has passed or come.
    pub(crate) fn pass_turn(&mut self, ledger: &Ledger, (before, now): names::Turn) {
        if before == now {
            return;
        }
        for id in [before, now].into_iter().flatten() {
            let Some(job) = ledger.jobs.get(&id) else { continue };
            let turn = self.turn_of(id, job);
            let Some(open) = self.open.get_mut(&id) else { continue };
            if open.waits.take_turn(turn) {
                self.refresh(id, job);
            }
        }
    }

    /// Puts a waiting task into its job's set.
    pub(crate) fn wait(&mut self, ledger: &Ledger, id: JobId, job: &Job, place: u32) {
        if self.bars(ledger, id, job, place) {
            self.open.get_mut(&id).expect("a job with a waiting task is open").barred.insert(place);
            return;
        }
        let task = &job.tasks[place as usize];
        let shape = shape_of(job, task);
        let excluded = !shape.excluded.is_empty();
        let own = excluded.then(|| self.shapes.take(shape));
        let open = self.open.get_mut(&id).expect("a job with a waiting task is open");
        match own {
            None => {
                open.fresh.insert(place);
            }
            Some(shape) => {
                open.excluded.insert(place, shape);
                if open.entered {
                    self.ready.insert(job.queue, job.user, shape, entry(id, job, Some(place)));
                    self.queues[job.queue.0 as usize].stirred = true;
                }
            }
        }
    }

    /// Takes a task out of its job's set.
    pub(crate) fn unwait(&mut self, id: JobId, job: &Job, place: u32) {
        let open = self.open.get_mut(&id).expect("a job with a waiting task is open");
        if open.fresh.remove(place) || open.barred.remove(place) {
            return;
        }
        if let Some(shape) = open.excluded.remove(&place) {
            if open.entered {
                self.ready.remove(job.queue, job.user, shape, &entry(id, job, Some(place)));
            }
            self.give_back(shape);
        }
    }

    pub(crate) fn give_back(&mut self, shape: ShapeId) {
        if self.shapes.give_back(shape) {
            self.candidates.remove(&shape);
        }
    }

    /// Whether a task that waits does so for the element of another job with the same index. If that can never be as it has to be, the task
    /// is to be looked at.
    fn bars(&mut self, ledger: &Ledger, id: JobId, job: &Job, place: u32) -> bool {
        let open = self.open.get(&id).expect("a job with a waiting task is open");
        if !open.is_paired() {
            return false;
        }
        let verdict = depend::verdict_of_pairs(ledger, &open.pairs, (job, place));
        if verdict == Verdict::Never {
            let task = TaskId { job: id, index: job.index_at(place) };
            let is_step = self.flow_of.contains_key(&id);
            let vain = if is_step { &mut self.vain_elements } else { &mut self.vain_tasks };
            vain.insert(task);
        }
        verdict != Verdict::Met
    }

    /// Looks at a held task: if its partner can never be as required, it is to be ended.
    pub(crate) fn look_at_held(&mut self, ledger: &Ledger, id: JobId, job: &Job, place: u32) {
        if matches!(job.tasks[place as usize], Task::Held(_)) && self.open.contains_key(&id) {
            self.bars(ledger, id, job, place);
        }
    }

    /// Looks again at all elements that wait for partners: what becomes of those that do so in vain has changed.
    pub(crate) fn look_at_pairs(&mut self, ledger: &Ledger) {
        let paired = self.open.iter().filter(|(_, open)| open.is_paired());
        let paired: Vec<JobId> = paired.map(|(id, _)| *id).collect();
        for id in paired {
            let job = &ledger.jobs[&id];
            for (place, task) in job.tasks.iter().enumerate() {
                if matches!(task, Task::Pending(_) | Task::Held(_)) {
                    self.bars(ledger, id, job, place as u32);
                }
            }
        }
    }

    /// Looks again at the elements of `id` whose partners, at `places` of `other`, have changed.
    fn pair_again(&mut self, ledger: &Ledger, id: JobId, other: &Job, places: &[u32]) {
        let job = &ledger.jobs[&id];
        for place in places {
            let Some(place) = job.partner_of(other, *place) else { continue };
            match job.tasks[place as usize] {
                Task::Pending(_) => {
                    self.unwait(id, job, place);
                    self.wait(ledger, id, job, place);
                }
                Task::Held(_) => self.look_at_held(ledger, id, job, place),
                Task::Active(_) | Task::Finished(_) => {}
            }
        }
        self.refresh(id, job);
    }

    /// Brings the entries of a job up to date.
    pub(crate) fn refresh(&mut self, id: JobId, job: &Job) {
        let Some(open) = self.open.get_mut(&id) else { return };
        let throttled = job.throttled();
        let enters = open.waits.verdict() == Verdict::Met && !open.waits_for_time && !throttled;
        let fresh = enters && !open.fresh.is_empty();
        let (queue, user) = (job.queue, job.user);
        if fresh != open.entered_fresh {
            open.entered_fresh = fresh;
            if fresh {
                self.ready.insert(queue, user, open.shape, entry(id, job, None));
                self.queues[queue.0 as usize].stirred = true;
            } else {
                self.ready.remove(queue, user, open.shape, &entry(id, job, None));
            }
        }
        if enters != open.entered {
            open.entered = enters;
            for (place, shape) in &open.excluded {
                if enters {
                    self.ready.insert(queue, user, *shape, entry(id, job, Some(*place)));
                    self.queues[queue.0 as usize].stirred = true;
                } else {
                    self.ready.remove(queue, user, *shape, &entry(id, job, Some(*place)));
                }
            }
        }
    }

    /// Lets jobs start whose time has come.
    pub fn let_begin(&mut self, ledger: &Ledger, now: Moment) {
        while let Some(id) = self.times.take_begun(now) {
            let Some(open) = self.open.get_mut(&id) else { continue };
            open.waits_for_time = false;
            self.refresh(id, &ledger.jobs[&id]);
        }
    }

    /// Looks again at the jobs that wait for `id`, of which the tasks at `places` have changed.
    pub fn wake(&mut self, ledger: &Ledger, id: JobId, places: &[u32]) {
        let Some(dependents) = self.dependents.get(&id) else { return };
        let all: Vec<JobId> = dependents.iter().copied().collect();
        self.look_again(ledger, id, &all);
        for dependent in all {
            let is_paired = |open: &Open| open.pairs.iter().any(|(_, other)| *other == id);
            if self.open.get(&dependent).is_some_and(is_paired) {
                self.pair_again(ledger, dependent, &ledger.jobs[&id], places);
            }
        }
    }

    /// Looks again at the jobs that wait until some time after the start of others.
    pub fn pass_delays(&mut self, ledger: &Ledger) {
        while let Some((at, dependent, other)) = self.delays.first().copied()
            && at <= self.clock
        {
            self.delays.pop_first();
            self.look_again(ledger, other, &[dependent]);
        }
    }

    /// Looks again at what dependents wait for of `id`.
    fn look_again(&mut self, ledger: &Ledger, id: JobId, dependents: &[JobId]) {
        let now = self.clock;
        let mut changed = Vec::new();
        for dependent in dependents {
            let Some(open) = self.open.get_mut(dependent) else { continue };
            let mut dues = Vec::new();
            let of = |test, target, due: &mut Option<Moment>| {
                look(ledger, now, (test, target), due, &mut dues)
            };
            let is_other = open.waits.look_again(id, of);
            self.delays.extend(dues.into_iter().map(|(at, other)| (at, *dependent, other)));
            if is_other {
                changed.push(*dependent);
                match self.flow_of.get(dependent) {
                    Some(flow) => drop(self.flows_stirred.insert(*flow)),
                    None if open.waits.verdict() == Verdict::Never => {
                        self.vain.insert(*dependent);
                    }
                    None => {}
                }
            }
        }
        for dependent in changed {
            self.refresh(dependent, &ledger.jobs[&dependent]);
        }
    }
}

pub(crate) fn entry(id: JobId, job: &Job, place: Option<u32>) -> Entry {
    Entry { priority: Reverse(job.spec.priority), job: id, place }
}

impl Job {
    /// Whether as many of its tasks are on hosts as may be at once.
    pub(crate) fn throttled(&self) -> bool {
        let most = self.spec.array.as_ref().and_then(|array| array.running_max);
        most.is_some_and(|most| self.tally.active >= most)
    }

    /// The place of its element that has the index, as its user wrote it, of the element at a place of another job.
    pub(crate) fn partner_of(&self, other: &Job, place: u32) -> Option<u32> {
        let index = other.index_at(place).checked_sub(other.spec.index_shift())?;
        self.spec.place_as_written(index)
    }
}
