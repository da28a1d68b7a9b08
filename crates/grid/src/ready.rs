//! Who may go next: tasks that wait for nothing but a place, by queue, user and shape.
//!
//! A shape is what decides on which hosts a task fits: slots, memory, host list and excluded hosts.
//! Tasks of one shape fit or fail together, so a round looks at each shape once and not at each task.
//! An array is one entry, whatever its size.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use crate::parse::hosts::HostList;
use crate::vocabulary::{HostId, JobId, QueueId, UserId};

/// What decides on which hosts a task fits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub slots: u32,
    pub memory_bytes: u64,
    pub hosts: HostList,
    pub excluded: Vec<HostId>,
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

    /// The entry of a user that goes first among the shapes that `open` lets pass.
    pub fn first(
        &self,
        queue: QueueId,
        user: UserId,
        open: impl Fn(ShapeId) -> bool,
    ) -> Option<(ShapeId, Entry)> {
        self.users
            .get(queue.0 as usize)?
            .get(&user)?
            .iter()
            .filter(|(shape, _)| open(**shape))
            .filter_map(|(shape, entries)| Some((*shape, *entries.first()?)))
            .min_by_key(|(_, entry)| *entry)
    }
}
