//! What there is to see: tasks, hosts, queues.

use crate::config::Load;
use crate::event::About;
use crate::grid::Grid;
use crate::hosts::Reach;
use crate::journal::{HostSwitch, Switch};
use crate::spec::Exit;
use crate::task::{Cause, Phase, Stops, Task};
use crate::vocabulary::{Attempt, HostId, HostName, JobId, Moment, QueueName, TaskId};

/// How a task is, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It waits for its turn.
    Pending {
        /// How often it was started before.
        attempts: u32,
    },
    /// It waits to be released.
    Held {
        /// How often it was started before.
        attempts: u32,
    },
    /// Its host was told to start it.
    Starting {
        /// Where.
        host: HostName,
        /// Which start.
        attempt: Attempt,
    },
    /// It runs.
    Running {
        /// Where.
        host: HostName,
        /// Which start.
        attempt: Attempt,
        /// Since when.
        started: Moment,
    },
    /// It is suspended.
    Suspended {
        /// Where.
        host: HostName,
        /// Which start.
        attempt: Attempt,
        /// Since when it ran.
        started: Moment,
        /// Why.
        stops: Stops,
    },
    /// Its host cannot be reached. It may run, or have ended.
    Unknown {
        /// Where.
        host: HostName,
        /// Which start.
        attempt: Attempt,
        /// When the host was last heard of.
        heard: Moment,
    },
    /// It has ended.
    Finished {
        /// How; none if nobody can say or it never ran.
        exit: Option<Exit>,
        /// What ended it.
        cause: Cause,
        /// How often it was started.
        attempts: u32,
        /// Where it ran last.
        host: Option<HostName>,
        /// Since when it ran last.
        started: Option<Moment>,
        /// When it ended.
        ended: Moment,
    },
}

/// The latest start of a task, as far as there was one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LastStart {
    /// How often it was started.
    pub attempts: u32,
    /// Where.
    pub host: Option<HostName>,
    /// Since when it runs, or ran; none if that is not known.
    pub started: Option<Moment>,
}

impl State {
    /// The latest start.
    #[must_use]
    pub fn last_start(&self) -> LastStart {
        let (attempts, host, started) = match self {
            State::Pending { attempts } | State::Held { attempts } => (*attempts, None, None),
            State::Starting { host, attempt } | State::Unknown { host, attempt, .. } => {
                (attempt.0, Some(host), None)
            }
            State::Running { host, attempt, started }
            | State::Suspended { host, attempt, started, .. } => {
                (attempt.0, Some(host), Some(*started))
            }
            State::Finished { attempts, host, started, .. } => (*attempts, host.as_ref(), *started),
        };
        LastStart { attempts, host: host.cloned(), started }
    }
}

/// One host, for people.
#[derive(Clone, Debug, PartialEq)]
pub struct HostView {
    /// Its name.
    pub name: HostName,
    /// Whether it can be reached.
    pub reach: Reach,
    /// When it was last heard of.
    pub heard: Moment,
    /// Whether it is open.
    pub switch: HostSwitch,
    /// Its slots.
    pub slots: u32,
    /// Slots in use.
    pub used_slots: u32,
    /// Memory for jobs.
    pub memory_bytes: Option<u64>,
    /// Memory that is set aside for jobs.
    pub used_memory_bytes: u64,
    /// Its load, as far as it was reported.
    pub load: Option<Load>,
    /// What runs there, as far as is known.
    pub tasks: Vec<TaskId>,
}

/// One queue, for people.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueView {
    /// Its name.
    pub name: QueueName,
    /// Its priority; none if it is no longer in the settings.
    pub priority: Option<u32>,
    /// What it does.
    pub switch: Switch,
    /// Whether its windows let it start jobs now.
    pub windows_open: bool,
    /// Slots in use.
    pub used_slots: u32,
}

impl Grid {
    /// How a task is; none if it is not known.
    #[must_use]
    pub fn state(&self, id: TaskId) -> Option<State> {
        Some(match self.ledger.task(id)? {
            Task::Pending(waiting) => State::Pending { attempts: waiting.attempts },
            Task::Held(waiting) => State::Held { attempts: waiting.attempts },
            Task::Active(run) => {
                let (host, attempt) = (self.host_name(run.host), run.attempt);
                let contact = self.index.hosts[run.host.0 as usize].contact;
                match (contact.state, run.phase) {
                    (Reach::Away | Reach::Gone, _) => {
                        State::Unknown { host, attempt, heard: contact.heard }
                    }
                    (Reach::Up, Phase::Starting) => State::Starting { host, attempt },
                    (Reach::Up, Phase::Running { started, .. }) => {
                        State::Running { host, attempt, started }
                    }
                    (Reach::Up, Phase::Suspended { started, stops, .. }) => {
                        State::Suspended { host, attempt, started, stops }
                    }
                }
            }
            Task::Finished(finish) => State::Finished {
                exit: finish.exit.clone(),
                cause: finish.cause,
                attempts: finish.attempts,
                host: finish.last.map(|last| self.host_name(last.host)),
                started: finish.last.and_then(|last| last.started),
                ended: finish.ended,
            },
        })
    }

    /// Whether a job is a step of a flow that could no longer start, so that the flow went on without it.
    #[must_use]
    pub fn is_skipped(&self, job: JobId) -> bool {
        let flow = self.index.flow_of.get(&job);
        let run = flow.and_then(|flow| self.ledger.flow(*flow));
        run.is_some_and(|run| run.steps().iter().any(|step| step.job == job && step.skipped))
    }

    /// Jobs that have ended and notify somebody, as far as nobody was told yet.
    pub fn untold(&self) -> impl Iterator<Item = JobId> {
        self.ledger.jobs().filter_map(|(id, job)| {
            let ended = job.ended().filter(|_| job.spec.notify.is_some())?;
            (job.told != Some(ended)).then_some(id)
        })
    }

    /// What messages say of a job.
    #[must_use]
    pub fn about(&self, job: JobId) -> Option<About> {
        let entry = self.ledger.jobs.get(&job)?;
        let state = self.state(TaskId::only(job));
        Some(About {
            user: self.ledger.user_of(entry).clone(),
            spec: (*entry.spec).clone(),
            submitted: entry.submitted(),
            host: state.and_then(|state| state.last_start().host),
        })
    }

    /// All hosts that are known and were not removed.
    pub fn hosts(&self) -> impl Iterator<Item = HostView> {
        let hosts = self.index.hosts.iter().zip(self.ledger.hosts.iter()).zip(0..);
        let hosts = hosts.filter(|(_, id)| self.is_listed(HostId(*id)));
        hosts.map(|((now, name), id)| HostView {
            name: name.clone(),
            reach: now.contact.state,
            heard: now.contact.heard,
            switch: self.ledger.host_switch(HostId(id)),
            slots: now.slots,
            used_slots: now.used_slots,
            memory_bytes: now.memory_bytes,
            used_memory_bytes: now.used_memory,
            load: now.load,
            tasks: now.runs.iter().copied().collect(),
        })
    }

    /// All queues ever known.
    pub fn queues(&self) -> impl Iterator<Item = QueueView> {
        self.queue_ids().map(|id| {
            let now = &self.index.queues[id.0 as usize];
            QueueView {
                name: self.ledger.queues.at(id.0).clone(),
                priority: self.queue_config(id).map(|config| config.priority),
                switch: self.ledger.switch(id),
                windows_open: now.dispatch_open && now.run_open,
                used_slots: now.used_slots,
            }
        })
    }
}
