//! Who may go next: tasks that wait for nothing but a place, by queue, user and shape.
//!
//! A shape is what decides on which hosts a task fits: slots, memory, resources, features, whether it shares its host, host list,
//! time limit, excluded hosts, its reservation, its job group and where its inputs lie.
//! Tasks of one shape fit or fail together, so a round looks at each shape once and not at each task.
//! An array is one entry, whatever its size.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use rustc_hash::FxHashMap;

use crate::group::JobGroup;
use crate::parse::features::Features;
use crate::parse::hosts::HostList;
use crate::parse::period::Period;
use crate::parse::resources::Resources;
use crate::spec::{JobSpec, Sharing};
use crate::vocabulary::{HostId, HostName, JobId, QueueId, ReservationName, UserId};

/// What decides on which hosts a task fits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub slots: u32,
    pub memory_bytes: u64,
    pub hosts: HostList,
    /// That of the job: whether it can end before a reserved job starts.
    pub time_limit: Option<Period>,
    pub excluded: Vec<HostId>,
    pub resources: Resources,
    /// What must hold of the features of its host.
    pub features: Option<Features>,
    pub sharing: Sharing,
    pub io_heavy: bool,
    /// Whether it is an interactive job, which only agents can connect with its client, or a service, which only they watch.
    pub needs_agent: bool,
    pub reservation: Option<ReservationName>,
    /// The job group, whose limit may let none of it start.
    pub group: Option<JobGroup>,
    /// Hosts on which its inputs lie, each with how many, in the order of their names.
    pub near: Vec<(HostName, u32)>,
}

impl Shape {
    /// That of a job, for a task that may not run on some hosts.
    pub fn of(spec: &JobSpec, excluded: Vec<HostId>) -> Shape {
        Shape {
            slots: spec.slots(),
            memory_bytes: spec.memory_bytes(),
            hosts: spec.hosts.clone(),
            time_limit: spec.time_limit,
            excluded,
            resources: spec.resources.clone(),
            features: spec.features.clone(),
            sharing: spec.sharing,
            io_heavy: spec.io_heavy,
            needs_agent: spec.interactive.is_some() || spec.service.is_some(),
            reservation: spec.reservation.clone(),
            group: spec.group.clone(),
            near: spec.homes(),
        }
    }
}

/// Number of a shape; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ShapeId(u64);

/// Shapes in use, each once.
#[derive(Debug, Default)]
pub(crate) struct Shapes {
    known: FxHashMap<Shape, ShapeId>,
    /// With how many uses.
    by_id: FxHashMap<ShapeId, (Shape, u32)>,
    ever: u64,
}

impl Shapes {
    /// The number of a shape, for one more use.
    pub fn take(&mut self, shape: Shape) -> ShapeId {
        let id = *self.known.entry(shape.clone()).or_insert_with(|| {
            self.ever += 1;
            ShapeId(self.ever)
        });
        self.by_id.entry(id).or_insert((shape, 0)).1 += 1;
        id
    }

    /// Ends one use; whether it was the last.
    pub fn give_back(&mut self, id: ShapeId) -> bool {
        let Some((shape, uses)) = self.by_id.get_mut(&id) else { return false };
        *uses -= 1;
        if *uses > 0 {
            return false;
        }
        self.known.remove(shape);
        self.by_id.remove(&id);
        true
    }

    /// Whether one that is in use is like that. Takes as long as there are shapes.
    pub fn any(&self, is_like: impl Fn(&Shape) -> bool) -> bool {
        self.known.keys().any(is_like)
    }

    pub fn get(&self, id: ShapeId) -> &Shape {
        &self.by_id[&id].0
    }
}

/// One entry: a job, or one task of it that has a shape of its own. The order is that in which a user's
/// jobs go: by priority, then first come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub priority: Reverse<i32>,
    pub job: JobId,
    /// Place of the task; none stands for any task that has no excluded hosts.
    pub place: Option<u32>,
}

type ByShape = BTreeMap<ShapeId, BTreeSet<Entry>>;

/// Entries of one queue.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    users: Vec<BTreeMap<UserId, ByShape>>,
}

impl Ready {
    pub fn insert(&mut self, queue: QueueId, user: UserId, shape: ShapeId, entry: Entry) {
        let place = queue.0 as usize;
        if self.users.len() <= place {
            self.users.resize_with(place + 1, BTreeMap::new);
        }
        self.users[place].entry(user).or_default().entry(shape).or_default().insert(entry);
    }

    pub fn remove(&mut self, queue: QueueId, user: UserId, shape: ShapeId, entry: &Entry) {
        let Some(users) = self.users.get_mut(queue.0 as usize) else { return };
        let Some(shapes) = users.get_mut(&user) else { return };
        let Some(entries) = shapes.get_mut(&shape) else { return };
        entries.remove(entry);
        if entries.is_empty() {
            shapes.remove(&shape);
            if shapes.is_empty() {
                users.remove(&user);
            }
        }
    }

    /// Users with an entry in a queue.
    pub fn users(&self, queue: QueueId) -> impl Iterator<Item = UserId> {
        self.users.get(queue.0 as usize).into_iter().flat_map(BTreeMap::keys).copied()
    }

    /// Whether an entry of a queue may go before a new job of a user, who may be new: one of somebody else, or one that the user
    /// does not want less.
    pub fn is_before(&self, queue: QueueId, user: Option<UserId>, priority: i32) -> bool {
        let mut users = self.users.get(queue.0 as usize).into_iter().flatten();
        users.any(|(other, shapes)| {
            let wanted = |entry: &Entry| entry.priority.0 >= priority;
            Some(*other) != user || shapes.values().flatten().any(wanted)
        })
    }

    /// The entry of a shape that goes first.
    fn first(&self, queue: QueueId, user: UserId, shape: ShapeId) -> Option<Entry> {
        self.users.get(queue.0 as usize)?.get(&user)?.get(&shape)?.first().copied()
    }

    /// The entries of a shape in their order.
    pub fn entries(
        &self,
        queue: QueueId,
        user: UserId,
        shape: ShapeId,
    ) -> impl Iterator<Item = Entry> {
        let shapes = self.users.get(queue.0 as usize).and_then(|users| users.get(&user));
        shapes.and_then(|shapes| shapes.get(&shape)).into_iter().flatten().copied()
    }

    /// What a user has in a queue, for one round.
    pub fn line(&self, queue: QueueId, user: UserId) -> Line {
        let shapes = self.users.get(queue.0 as usize).and_then(|users| users.get(&user));
        let firsts = shapes.into_iter().flatten().filter_map(|(shape, entries)| {
            let entry = *entries.first()?;
            Some(Reverse((entry, *shape)))
        });
        Line { queue, user, firsts: firsts.collect() }
    }
}

/// What a user has in a queue, for one round: the first entry of each shape that may still fit. A shape
/// that was found not to fit does not come again, so a round looks at each once.
#[derive(Debug)]
pub(crate) struct Line {
    queue: QueueId,
    user: UserId,
    firsts: BinaryHeap<Reverse<(Entry, ShapeId)>>,
}

impl Line {
    /// The entry that goes first among the shapes that `open` lets pass. A shape that it does not let
    /// pass is not asked about again.
    pub fn first(
        &mut self,
        ready: &Ready,
        mut open: impl FnMut(ShapeId) -> bool,
    ) -> Option<(ShapeId, Entry)> {
        loop {
            let Reverse((entry, shape)) = *self.firsts.peek()?;
            let now = ready.first(self.queue, self.user, shape);
            if now == Some(entry) && open(shape) {
                return Some((shape, entry));
            }
            self.firsts.pop();
            if now != Some(entry) {
                // It was started since, and may have been the last of its shape.
                self.firsts.extend(now.map(|now| Reverse((now, shape))));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPES: u64 = 2000;

    fn filled() -> (Ready, QueueId, UserId) {
        let (mut ready, queue, user) = (Ready::default(), QueueId(0), UserId(0));
        for job in 0..2 * SHAPES {
            let shape = ShapeId(job * 7 % SHAPES);
            let entry = Entry { priority: Reverse(0), job: JobId(job), place: None };
            ready.insert(queue, user, shape, entry);
        }
        (ready, queue, user)
    }

    #[test]
    fn a_round_asks_about_a_shape_that_does_not_fit_a_few_times_and_not_again_for_each_other() {
        let (ready, queue, user) = filled();
        let mut line = ready.line(queue, user);
        let (mut asked, mut tried) = (0, std::collections::BTreeSet::new());
        while let Some((shape, _)) = line.first(&ready, |shape| {
            asked += 1;
            !tried.contains(&shape)
        }) {
            assert!(tried.insert(shape), "tried twice");
        }
        assert_eq!(tried.len() as u64, SHAPES);
        assert!(asked <= 2 * SHAPES, "{asked}");
    }

    #[test]
    fn entries_go_in_their_order_over_all_shapes() {
        let (mut ready, queue, user) = filled();
        let mut line = ready.line(queue, user);
        for job in 0..2 * SHAPES {
            let (shape, entry) = line.first(&ready, |_| true).unwrap();
            assert_eq!(entry.job, JobId(job));
            ready.remove(queue, user, shape, &entry);
        }
        assert_eq!(line.first(&ready, |_| true), None);
    }
}
