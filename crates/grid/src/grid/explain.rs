//! Why a task waits, or why it ran where it ran.
//!
//! Reasons come from the very checks that dispatch makes, so they are true now. A task that waits has
//! one at least.

use serde::{Deserialize, Serialize};

use crate::config::{AreaExceeded, Exceeded};
use crate::depend::{self, Verdict};
use crate::grid::Grid;
use crate::grid::dispatch::SlotLimit;
use crate::group::JobGroup;
use crate::ledger::Job;
use crate::parse::dependency::Condition;
use crate::parse::period::Period;
use crate::ready::{Entry, Shape};
use crate::service::ServiceState;
use crate::task::{Cause, Excluded, Finish, Task, Waiting, Why};
use crate::vocabulary::{
    HostId, HostName, JobId, Moment, QueueName, ReservationName, ResourceName, Target, TaskId,
};
use crate::warning::Warning;

/// Why a task is how it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Explanation {
    /// It waits.
    Waits {
        /// What concerns it as a whole.
        reasons: Vec<Reason>,
        /// What each host says.
        hosts: Vec<HostVerdict>,
    },
    /// It runs, or ran last, here.
    Placed(Placement),
    /// It ended without having run.
    NeverRan {
        /// Why, if nobody cancelled it.
        reasons: Vec<Reason>,
    },
}

/// Why a task waits, as far as no single host is concerned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It is held.
    Held,
    /// These conditions are not met yet.
    Dependency(Vec<String>),
    /// These conditions can no longer be met.
    DependencyNever(Vec<String>),
    /// It may not begin yet.
    Begin {
        /// When it may.
        at: Moment,
    },
    /// It is a service that has failed, and pauses before its next start.
    Pause {
        /// When it may start again.
        at: Moment,
        /// How often it has failed in a row.
        failures: u32,
    },
    /// Jobs on the grid hold too much of a resource that all hosts share.
    Resource {
        /// Which.
        name: ResourceName,
        /// How much it needs.
        needed: u32,
        /// How much is in use.
        used: u32,
        /// How much there is.
        most: u32,
    },
    /// What is free of a resource that all hosts share is kept for a job before it, which needs more.
    ResourceKept {
        /// Which.
        name: ResourceName,
        /// For which job.
        job: JobId,
    },
    /// As many tasks of its array are on hosts as may be at once.
    Throttle {
        /// So many.
        active: u32,
    },
    /// As many tasks of its job group, or of one in which that lies, are on hosts as may be at once.
    GroupFull {
        /// Which group.
        group: JobGroup,
        /// So many.
        used: u32,
        /// The most.
        most: u32,
    },
    /// Its queue is no longer in the settings.
    QueueGone(QueueName),
    /// Its queue starts nothing.
    QueueInactive,
    /// The dispatch window of its queue is closed.
    DispatchWindow,
    /// The run window of its queue is closed.
    RunWindow,
    /// Its queue uses as many slots as it may.
    QueueSlots {
        /// Slots in use.
        used: u64,
        /// The most.
        most: u32,
    },
    /// Its user uses as many slots in this queue as he may.
    UserSlotsInQueue {
        /// Slots in use.
        used: u64,
        /// The most.
        most: u32,
    },
    /// Its user uses as many slots on the grid as he may.
    UserSlots {
        /// Slots in use.
        used: u64,
        /// The most.
        most: u32,
    },
    /// No host of the grid can ever take it, as hosts and settings are.
    NoHostSuits,
    /// No host can take it now.
    NoHostFits,
    /// A host is kept for it.
    Reserved {
        /// Which.
        host: HostName,
        /// How many slots it will get there.
        slots: u32,
        /// In which time it starts at the latest; none if jobs there have no time limit.
        within: Option<Period>,
    },
    /// Jobs that fit may pass it for a while.
    Passed {
        /// How long still.
        left: Period,
    },
    /// Jobs are started at intervals.
    NextRound {
        /// When next.
        at: Moment,
    },
    /// It was started, and its user or an admin holds it.
    StoppedByUser,
    /// It was started, and the run window of its queue has closed.
    StoppedByWindow,
    /// It was started, and its host is loaded beyond a stop value.
    StoppedByLoad,
    /// It was started, and its work areas held too much when they were last measured.
    StoppedByArea,
    /// Its work areas hold too much.
    Area {
        /// Bytes that they hold.
        bytes: u64,
        /// Bytes that they may hold.
        limit: u64,
        /// What the queue wants then.
        exceeded: AreaExceeded,
    },
    /// The settings limit what it may use on its host.
    Limits {
        /// Processors; none if they are shared.
        processors: Option<u32>,
        /// Processes and threads; none if there is no limit.
        processes: Option<u32>,
    },
    /// It gets a signal before it is ended.
    Warning {
        /// Which, to whom, and how long before.
        warning: Warning,
        /// When; none if nothing limits how long it runs, or it is suspended.
        at: Option<Moment>,
        /// Whether it has got it.
        sent: bool,
    },
    /// What Slurm says of it.
    Slurm(String),
    /// Its reservation is not there.
    ReservationGone(ReservationName),
    /// Its reservation is not for its user.
    ReservationOfOthers(ReservationName),
    /// Its reservation has not begun.
    ReservationStarts {
        /// Which.
        name: ReservationName,
        /// When it begins.
        at: Moment,
    },
    /// It is suspended while a job of a queue that preempts its own has its slots.
    Preempted {
        /// That job.
        by: JobId,
    },
    /// It is being ended and starts again later, to make room for a job of a queue that preempts its own.
    Requeued {
        /// That job.
        by: JobId,
    },
    /// It has the slots of these jobs, which are suspended meanwhile.
    Preempts {
        /// Those jobs.
        tasks: Vec<TaskId>,
    },
    /// These jobs are being ended to make room for it.
    Awaits {
        /// Those jobs.
        tasks: Vec<TaskId>,
    },
}

/// What one host says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub struct HostVerdict {
    /// Which.
    pub host: HostName,
    /// Why not; none if it could take the task.
    pub obstacle: Option<HostObstacle>,
    /// Why it could not start a job of the same user, if that is the obstacle.
    pub unable: Option<String>,
    /// The resource that is short, if that is the obstacle.
    #[serde(default)]
    pub resource: Option<ResourceName>,
    /// The reservation that has its slots, if that is the obstacle.
    #[serde(default)]
    pub reservation: Option<ReservationName>,
    /// How many inputs of the job lie there.
    #[serde(default)]
    pub near: u32,
}

/// Why a host cannot take a task.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostObstacle {
    /// It has not joined, or was lost.
    Gone,
    /// It cannot be reached, and its jobs are not given up yet.
    Away,
    /// Its lease is over: it was not heard of for so long.
    Silent,
    /// It is not listed in the settings, and only such are used.
    Unlisted,
    /// It is kept free of jobs.
    Control,
    /// It is closed.
    Closed,
    /// It runs jobs through Slurm, and the job is interactive or a service.
    NoAgent,
    /// It does not have the features that the job needs.
    NoFeature,
    /// It runs jobs through Slurm, which cannot be told the features that the job needs.
    NoConstraint,
    /// The queue does not use it.
    NotInQueue,
    /// The job does not want it.
    NotInJob,
    /// The task ended there with an exit value that excludes the host.
    Excluded,
    /// It has fewer slots than the job needs.
    TooSmall {
        /// Its slots.
        slots: u32,
    },
    /// Too few of its slots are free.
    Slots {
        /// Free slots.
        free: u32,
    },
    /// The queue uses as many of its slots as it may.
    QueueSlots {
        /// Slots in use.
        used: u32,
        /// The most.
        most: u32,
    },
    /// It has less memory than the job needs.
    MemoryTooSmall {
        /// Its memory.
        bytes: u64,
    },
    /// Too little of its memory is free.
    Memory {
        /// Free bytes.
        free: u64,
    },
    /// It has less of a resource than the job needs.
    ResourceTooSmall {
        /// How much it has.
        total: u32,
    },
    /// Too little of a resource is free.
    Resource {
        /// How much is free.
        free: u32,
    },
    /// Jobs run there, and the job wants no other one beside it.
    Busy {
        /// How many.
        jobs: u32,
    },
    /// A job runs there that wants no other one beside it.
    Exclusive {
        /// Which.
        job: JobId,
    },
    /// There are thresholds and it has not reported its load.
    NoLoad,
    /// It is loaded beyond a threshold.
    Load(Exceeded),
    /// It is kept for a job before this one, whose start it could delay.
    Reserved {
        /// For which.
        job: JobId,
    },
    /// The reservation of the job has no slots there.
    NotInReservation,
    /// Too few slots that the reservation of the job has there are free.
    ReservationSlots {
        /// How many its jobs use.
        used: u32,
        /// How many it has.
        most: u32,
    },
    /// Its slots are reserved in advance, before the job would have ended.
    SetAside {
        /// From when on.
        from: Moment,
        /// Until when.
        until: Moment,
    },
    /// A job was started there just now.
    Rests {
        /// Until when it is left alone.
        until: Moment,
    },
    /// It could not start the last job that it was given.
    Unable {
        /// Until when it is left alone.
        until: Moment,
    },
}

impl HostObstacle {
    /// Whether it lasts as long as nobody changes hosts or settings.
    #[must_use]
    pub fn lasts(self) -> bool {
        match self {
            HostObstacle::Unlisted
            | HostObstacle::Control
            | HostObstacle::NoAgent
            | HostObstacle::NoFeature
            | HostObstacle::NoConstraint
            | HostObstacle::NotInQueue
            | HostObstacle::NotInJob
            | HostObstacle::Excluded
            | HostObstacle::TooSmall { .. }
            | HostObstacle::ResourceTooSmall { .. }
            | HostObstacle::MemoryTooSmall { .. } => true,
            HostObstacle::Gone
            | HostObstacle::Away
            | HostObstacle::Silent
            | HostObstacle::Closed
            | HostObstacle::Slots { .. }
            | HostObstacle::QueueSlots { .. }
            | HostObstacle::Memory { .. }
            | HostObstacle::Resource { .. }
            | HostObstacle::Busy { .. }
            | HostObstacle::Exclusive { .. }
            | HostObstacle::NoLoad
            | HostObstacle::Load(_)
            | HostObstacle::Reserved { .. }
            | HostObstacle::NotInReservation
            | HostObstacle::ReservationSlots { .. }
            | HostObstacle::SetAside { .. }
            | HostObstacle::Rests { .. }
            | HostObstacle::Unable { .. } => false,
        }
    }
}

/// Why a task was given to its host, as it was then.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub struct Placement {
    /// Where.
    pub host: HostName,
    /// What was known.
    pub why: Why,
    /// The next best host, if there was another.
    pub second: Option<HostName>,
    /// What is to be said of it while it is there.
    #[serde(default)]
    pub reasons: Vec<Reason>,
}

impl Grid {
    /// Why a task waits, or ran where it ran; none if it is not known. Takes as long as there are hosts
    /// and conditions.
    #[must_use]
    pub fn explain(&self, id: TaskId) -> Option<Explanation> {
        let job = self.ledger.jobs.get(&id.job)?;
        let placed = |host: HostId, why: Why, reasons: Vec<Reason>| {
            Explanation::Placed(Placement {
                host: self.host_name(host),
                why,
                second: why.second.map(|second| self.host_name(second.host)),
                reasons,
            })
        };
        match job.task(id.index)? {
            Task::Active(run) => {
                let reasons = self.explain_run(id, run);
                Some(placed(run.host, run.why, reasons))
            }
            Task::Finished(finish) => Some(match finish.last {
                Some(last) => placed(last.host, last.why, Vec::new()),
                None => Explanation::NeverRan { reasons: self.explain_end(id, job, finish) },
            }),
            Task::Held(waiting) => Some(self.explain_wait(id, job, waiting, vec![Reason::Held])),
            Task::Pending(waiting) => Some(self.explain_wait(id, job, waiting, Vec::new())),
        }
    }

    fn explain_end(&self, id: TaskId, job: &Job, finish: &Finish) -> Vec<Reason> {
        let condition = job.condition.as_ref().filter(|_| finish.cause == Cause::DependencyNever);
        let place = job.place_of(id.index).expect("a task that is known has a place");
        let parts =
            condition.map(|condition| self.never_parts(&self.of_element(condition, job, place)));
        let parts = parts.filter(|parts| !parts.is_empty());
        parts.map(Reason::DependencyNever).into_iter().collect()
    }

    /// The first reason for which a task waits that has nothing to do with hosts; none if there is none, or it does not wait. Takes as
    /// long as it has conditions.
    #[must_use]
    pub fn reason(&self, id: TaskId) -> Option<Reason> {
        let job = self.ledger.jobs.get(&id.job)?;
        match job.task(id.index)? {
            Task::Held(_) => Some(Reason::Held),
            Task::Pending(waiting) => {
                let (reasons, _) = self.explain_as_a_whole(id, job, waiting, Vec::new());
                reasons.into_iter().next()
            }
            Task::Active(_) | Task::Finished(_) => None,
        }
    }

    /// Why a task waits as far as no host is concerned, besides these reasons, and what it needs of a host.
    fn explain_as_a_whole(
        &self,
        id: TaskId,
        job: &Job,
        waiting: &Waiting,
        mut reasons: Vec<Reason>,
    ) -> (Vec<Reason>, Shape) {
        self.explain_dependency(id, job, &mut reasons);
        if let Some(at) = job.spec.begin.filter(|at| *at > self.now) {
            reasons.push(Reason::Begin { at });
        }
        if let Some(ServiceState { failures, not_before: Some(at), .. }) = job.service
            && at > self.now
        {
            reasons.push(Reason::Pause { at, failures });
        }
        if job.throttled() {
            reasons.push(Reason::Throttle { active: job.tally.active });
        }
        let full = self.full_group(job.user, job.spec.group.as_ref());
        reasons.extend(full.map(|(group, used, most)| Reason::GroupFull { group, used, most }));
        reasons.extend(self.queue_obstacle(job.queue));
        let user = self.ledger.user_of(job);
        reasons.extend(self.reservation_obstacle(job.spec.reservation.as_ref(), user));
        let slots = u64::from(job.spec.slots());
        for (limit, used, most) in self.slot_limits(job.queue, job.user).into_iter().flatten() {
            if used + slots > u64::from(most) {
                reasons.push(match limit {
                    SlotLimit::Queue => Reason::QueueSlots { used, most },
                    SlotLimit::UserInQueue => Reason::UserSlotsInQueue { used, most },
                    SlotLimit::User => Reason::UserSlots { used, most },
                });
            }
        }
        let excluded = waiting.excluded.as_deref();
        let excluded = excluded.map(|Excluded(hosts)| hosts.clone()).unwrap_or_default();
        let shape = Shape::of(&job.spec, excluded);
        if let Some((name, used, most)) = self.grid_short(&shape) {
            let needed = shape.resources.of(name.as_str());
            reasons.push(Reason::Resource { name, needed, used, most });
        } else if reasons.is_empty() {
            reasons.extend(self.resource_kept_from(&shape, id.job));
        }
        (reasons, shape)
    }

    fn explain_wait(
        &self,
        id: TaskId,
        job: &Job,
        waiting: &Waiting,
        reasons: Vec<Reason>,
    ) -> Explanation {
        let (mut reasons, shape) = self.explain_as_a_whole(id, job, waiting, reasons);
        let list = self.list_of(job.queue, &shape);
        let hosts: Vec<HostVerdict> = (0..self.index.hosts.len() as u32)
            .map(HostId)
            .filter(|host| self.is_listed(*host))
            .map(|host| self.verdict_on(host, (id.job, job), &shape, list(host).err()))
            .collect();
        let obstacles = || hosts.iter().map(|verdict| verdict.obstacle);
        if obstacles().all(|obstacle| obstacle.is_some_and(HostObstacle::lasts)) {
            reasons.push(Reason::NoHostSuits);
        } else if obstacles().all(|obstacle| obstacle.is_some()) {
            let only_room = reasons.is_empty();
            reasons.push(Reason::NoHostFits);
            reasons.extend(self.explain_room_made(id.job));
            reasons.extend(self.explain_reservation(id.job).filter(|_| only_room));
        }
        if reasons.is_empty() {
            // Where jobs start with events, what could start has started.
            reasons.push(Reason::NextRound { at: self.next_round });
        }
        Explanation::Waits { reasons, hosts }
    }

    /// What one host says of a job that waits, if lists and settings do not rule it out.
    fn verdict_on(
        &self,
        host: HostId,
        (id, job): (JobId, &Job),
        shape: &Shape,
        unlisted: Option<HostObstacle>,
    ) -> HostVerdict {
        let priority = std::cmp::Reverse(job.spec.priority);
        let entry = Entry { priority, job: id, place: None };
        let kept = || {
            let hold = self.kept_from(job.queue, shape, host)?;
            let after = self.goes_after(hold, job.queue, job.user, entry);
            after.then_some(HostObstacle::Reserved { job: hold.entry.job })
        };
        let suspended = || {
            let kept = self.kept_for_suspended(job.queue);
            let (_, job) = kept.into_iter().find(|(of, _)| *of == host)?;
            Some(HostObstacle::Reserved { job })
        };
        let now = || self.obstacle_now(job.queue, shape, host);
        let obstacle = unlisted.or_else(now).or_else(kept).or_else(suspended);
        let unable = match (obstacle, &self.index.hosts[host.0 as usize].unable_why) {
            (Some(HostObstacle::Unable { .. }), Some((user, why))) if *user == job.user => {
                Some(why.clone())
            }
            _ => None,
        };
        let resource = match obstacle {
            Some(HostObstacle::Resource { .. } | HostObstacle::ResourceTooSmall { .. }) => {
                let now = &self.index.hosts[host.0 as usize];
                self.host_short(now, shape).map(|short| short.name)
            }
            _ => None,
        };
        let reservation = match obstacle {
            Some(HostObstacle::SetAside { from, .. }) => self.reservation_on(host, from),
            _ => None,
        };
        let host = self.host_name(host);
        let near = shape.near.iter().find(|(near, _)| *near == host).map_or(0, |(_, count)| *count);
        HostVerdict { host, obstacle, unable, resource, reservation, near }
    }

    /// What a condition says of the element at a place of a job.
    fn of_element(
        &self,
        condition: &Condition<Target>,
        job: &Job,
        place: u32,
    ) -> Condition<Target> {
        condition.of_element(&|other| {
            let partner = self.ledger.jobs.get(&other)?;
            partner.partner_of(job, place).map(|place| partner.index_at(place))
        })
    }

    fn explain_dependency(&self, id: TaskId, job: &Job, reasons: &mut Vec<Reason>) {
        let Some(condition) = &job.condition else { return };
        let place = job.place_of(id.index).expect("a task that is known has a place");
        let pairs = depend::verdict_of_pairs(&self.ledger, &condition.pairs(), (job, place));
        let condition = &self.of_element(condition, job, place);
        let whole = self.verdict_of(id.job).min(pairs);
        if whole == Verdict::Met {
            return;
        }
        if whole == Verdict::Never {
            reasons.push(Reason::DependencyNever(self.never_parts(condition)));
            return;
        }
        let mut unmet = Vec::new();
        condition.leaves(&mut |leaf| {
            if matches!(leaf, Condition::Singleton) {
                let other = self.index.names.in_the_way_of(id.job, job);
                unmet.extend(
                    other.map(|other| format!("the end of job {other} with the same name")),
                );
            } else if depend::verdict(&self.ledger, self.now, leaf) == Verdict::Unmet {
                unmet.push(leaf.to_string());
            }
        });
        unmet.extend(self.never_parts(condition));
        reasons.push(Reason::Dependency(unmet));
    }
}
