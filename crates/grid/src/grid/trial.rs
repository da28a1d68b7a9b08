//! What would become of a job if it was submitted now, without submitting it.

use std::cmp::Reverse;

use crate::depend::{Verdict, look};
use crate::event::Refusal;
use crate::grid::Grid;
use crate::parse::dependency::Condition;
use crate::ready::Shape;
use crate::reserve::Fit;
use crate::spec::JobSpec;
use crate::vocabulary::{HostId, HostName, Moment, QueueId, QueueName, Target, UserId, UserName};
use crate::waits::{Turn, Waits};

/// What would become of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trial {
    /// Its queue.
    pub queue: QueueName,
    /// The host on which it would start, as far as that is known.
    pub host: Option<HostName>,
    /// The latest start time, assuming that no job with higher precedence arrives; none if it is unknown.
    pub start: Option<Moment>,
}

impl Grid {
    /// When and where a job of a user would start, as jobs and time limits are now. Changes nothing.
    ///
    /// # Errors
    /// If the job would be refused.
    pub fn try_out(&self, user: &UserName, mut spec: JobSpec) -> Result<Trial, Refusal> {
        let condition = self.admit(user, &mut spec)?;
        let queue = spec.queue.clone().expect("a job that is admitted has a queue");
        let id = QueueId(self.ledger.queues.find(&queue).expect("a queue of the settings"));
        let unknown = Trial { queue: queue.clone(), host: None, start: None };
        let waits = condition.is_some_and(|condition| self.waits_for_now(user, &spec, &condition));
        if spec.held || waits || self.is_held_up(id, user, &spec) {
            return Ok(unknown);
        }
        let Some((start, host)) = self.first_fit(id, &Shape::of(&spec, Vec::new())) else {
            return Ok(unknown);
        };
        let start = start.max(spec.begin.unwrap_or_default());
        // What is free later may go to a job that waits in front.
        if start > self.now && self.is_behind(id, user, spec.priority) {
            return Ok(unknown);
        }
        Ok(Trial { queue, host: Some(self.host_name(host)), start: Some(start) })
    }

    /// Whether a new job has to wait for what its condition says.
    fn waits_for_now(
        &self,
        user: &UserName,
        spec: &JobSpec,
        condition: &Condition<Target>,
    ) -> bool {
        let user = self.ledger.users.find(user).map(UserId);
        let names = &self.index.names;
        let is_second = user.is_some_and(|user| names.any_unfinished(user, &spec.name));
        let turn = if is_second { Turn::Later } else { Turn::Now };
        let of = |test, target, due: &mut Option<Moment>| {
            look(&self.ledger, self.now, (test, target), due, &mut Vec::new())
        };
        // Elements that wait for others start one by one.
        !condition.pairs().is_empty() || Waits::new(condition, turn, of).verdict() != Verdict::Met
    }

    /// Whether something else than room on hosts keeps a job from starting.
    fn is_held_up(&self, queue: QueueId, user: &UserName, spec: &JobSpec) -> bool {
        let known = self.ledger.users.find(user).map(UserId);
        let slots = u64::from(spec.slots());
        let queue_max = self.queue_config(queue).and_then(|config| config.slots_max);
        let in_queue = u64::from(self.index.queues[queue.0 as usize].used_slots);
        let over = |user| {
            let limits = self.slot_limits(queue, user).into_iter().flatten();
            limits.into_iter().any(|(_, used, most)| used + slots > u64::from(most))
        };
        self.queue_obstacle(queue).is_some()
            || queue_max.is_some_and(|most| in_queue + slots > u64::from(most))
            || self.reservation_obstacle(spec.reservation.as_ref(), user).is_some()
            || known.is_some_and(|user| {
                over(user) || self.full_group(user, spec.group.as_ref()).is_some()
            })
            || self.grid_short(&Shape::of(spec, Vec::new())).is_some()
    }

    /// Whether a job that waits for room goes before a new one.
    fn is_behind(&self, queue: QueueId, user: &UserName, priority: i32) -> bool {
        let goes_before = |other: QueueId| {
            self.queue_order(other) < self.queue_order(queue)
                && self.queue_obstacle(other).is_none()
                && self.index.ready.users(other).next().is_some()
        };
        let user = self.ledger.users.find(user).map(UserId);
        self.index.ready.is_before(queue, user, priority) || self.queue_ids().any(goes_before)
    }

    /// The host that has room for a job first, as far as time limits say it, and when.
    fn first_fit(&self, queue: QueueId, shape: &Shape) -> Option<(Moment, HostId)> {
        let hosts = (0..self.index.hosts.len() as u32).map(HostId);
        let mut all: Vec<(Moment, Reverse<u32>, HostId)> = Vec::new();
        let list = self.list_of(queue, shape);
        for host in hosts.filter(|host| self.is_listed(*host)) {
            let Ok(preference) = list(host) else { continue };
            let is_free = self.obstacle_now(queue, shape, host).is_none()
                && self.kept_from(queue, shape, host).is_none();
            let at = match is_free {
                true => Some(self.now),
                false => match self.fit_on(queue, shape, host) {
                    Some(Fit::By(at, _)) => Some(at),
                    Some(Fit::Now | Fit::Unknown { .. }) | None => None,
                },
            };
            all.extend(at.map(|at| (at, Reverse(preference), host)));
        }
        all.into_iter().min().map(|(at, _, host)| (at, host))
    }
}
