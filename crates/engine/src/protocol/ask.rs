//! What commands ask the controller.

use forebay_grid::advance::AdvanceReservation;
use forebay_grid::event::{Joined, QueueVerb, Verb};
use forebay_grid::group::{GroupVerb, JobGroup};
use forebay_grid::journal::HostSwitch;
use forebay_grid::modify::Changes;
use forebay_grid::spec::JobSpec;
use forebay_grid::vocabulary::{
    Attempt, HostName, JobId, QueueName, ReservationName, Target, TaskId,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

#[cfg(doc)]
use super::{Answer, Order, Report};
use super::{FlowAsk, Orphans, UsageQuery};
use crate::checkpoint::Number;

/// What is asked of the controller. Each line gets one [`Answer`], but for [`Ask::Join`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// Take a job.
    Submit {
        /// The job.
        spec: Box<JobSpec>,
        /// What the client knows this submission by: drawn at random, for this one alone. One that was taken before is
        /// answered with its job again, so a client whose answer was lost may ask again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<Uuid>,
    },
    /// Say what would become of a job if it was submitted now.
    Try {
        /// The job.
        spec: Box<JobSpec>,
    },
    /// Do something to jobs.
    Command {
        /// Which.
        target: Target,
        /// What.
        verb: Verb,
    },
    /// Change a job that has not ended.
    Modify {
        /// Which.
        job: JobId,
        /// What.
        changes: Box<Changes>,
    },
    /// Switch a queue.
    Queue {
        /// Which.
        queue: QueueName,
        /// How.
        verb: QueueVerb,
    },
    /// Open or close a host.
    Host {
        /// Which.
        host: HostName,
        /// How it shall be.
        state: HostSwitch,
    },
    /// List jobs: the asker's own, or everybody's for an admin.
    Jobs {
        /// One job or element only.
        target: Option<Target>,
        /// Also those that have ended.
        ended: bool,
        /// Which part of the list.
        #[serde(default)]
        page: Page,
    },
    /// List services: the asker's own, or everybody's for an admin; answered with [`Answer::Jobs`].
    Services {
        /// Also those that were stopped or have failed, as far as they are known.
        #[serde(default)]
        ended: bool,
    },
    /// Reserve slots of hosts in advance.
    Reserve {
        /// What.
        reservation: Box<AdvanceReservation>,
    },
    /// Give a reservation up.
    Unreserve {
        /// Which.
        name: ReservationName,
    },
    /// List reservations that are not over.
    Reservations,
    /// Change a job group of the asker.
    Group {
        /// Which.
        group: JobGroup,
        /// How.
        verb: GroupVerb,
    },
    /// List the job groups of the asker.
    Groups,
    /// List hosts.
    Hosts,
    /// List queues.
    Queues,
    /// List counted resources.
    Resources,
    /// Return limits and times of the settings that concern users.
    Limits,
    /// Attempts of a job that ended.
    History {
        /// Which.
        target: Target,
        /// The first that is wanted, as an answer named it; from the beginning if none.
        #[serde(default)]
        from: Option<Start>,
    },
    /// Why a task waits, or ran where it ran.
    Explain {
        /// Which.
        target: Target,
    },
    /// Answer when every task of a job has ended.
    Wait {
        /// Which.
        job: JobId,
    },
    /// Answer with [`Answer::Ended`] when one element of an array has ended.
    WaitElement {
        /// Which.
        task: TaskId,
    },
    /// Something about flows.
    Flow {
        /// What.
        flow: FlowAsk,
    },
    /// Say what happens to a job, from how it is now until all its tasks have ended; the connection
    /// carries [`Answer::Noticed`] from here on, and may be used to watch more jobs.
    Watch {
        /// Which.
        job: JobId,
    },
    /// List work areas: of the asker's own jobs, or everybody's for an admin.
    Sessions {
        /// Whether orphans are removed.
        orphans: Orphans,
    },
    /// Have another host copy a checkpoint of a job that runs; answered with [`Answer::Here`] once it has.
    KeepCheckpoint {
        /// Which task.
        target: Target,
        /// Which checkpoint.
        number: Number,
    },
    /// What was used: by the asker, or by everybody for an admin.
    Usage {
        /// Of which days, by what.
        query: UsageQuery,
    },
    /// Carry out what follows on this connection for another user. For root and the user whose grid it is, once on a
    /// connection; answered with [`Answer::Here`].
    For {
        /// Number of the user where the controller runs.
        uid: u32,
    },
    /// Say whether the controller is there.
    Ping,
    /// Read the settings again; answered with [`Answer::Here`] once they count. For root and the user whose grid it is.
    Reload,
    /// An agent begins; from here on the connection carries [`Report`]s and [`Order`]s.
    Join {
        /// What it says.
        joined: Box<Joined>,
    },
}

/// One start of one task.
pub type Start = (TaskId, Attempt);

/// A part of a long list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Page {
    /// Where it begins, as the page before it said; at the beginning if none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<TaskId>,
    /// Begin with the job from which on at most so many lines are left; at the beginning of the list if none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest: Option<u32>,
    /// The most lines; as many as the controller gives at once if none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most: Option<u32>,
    /// How much is told of each job.
    #[serde(skip_serializing_if = "Detail::is_usual")]
    pub detail: Detail,
}

/// How much a list tells of each job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Detail {
    /// A line.
    #[default]
    Line,
    /// Also all that was asked for.
    Asked,
}

impl Detail {
    fn is_usual(&self) -> bool {
        *self == Detail::Line
    }
}

impl Ask {
    /// As it was asked on a node; none on a grid of one machine. The client of an interactive job is where it was submitted.
    #[must_use]
    pub(crate) fn asked_on(mut self, node: Option<&HostName>) -> Ask {
        if let Ask::Submit { spec, .. } = &mut self
            && let Some(interactive) = &mut spec.interactive
        {
            interactive.node = node.cloned();
        }
        self
    }

    /// Whether it changes nothing, so that it can be asked again.
    pub(crate) fn only_looks(&self) -> bool {
        match self {
            Ask::Jobs { .. }
            | Ask::Services { .. }
            | Ask::Hosts
            | Ask::Queues
            | Ask::Resources
            | Ask::Limits
            | Ask::Try { .. }
            | Ask::Reservations
            | Ask::Groups
            | Ask::History { .. }
            | Ask::Explain { .. }
            | Ask::Wait { .. }
            | Ask::WaitElement { .. }
            | Ask::Usage { .. }
            | Ask::Ping => true,
            Ask::Submit { .. }
            | Ask::Command { .. }
            | Ask::Modify { .. }
            | Ask::Queue { .. }
            | Ask::Host { .. }
            | Ask::Reserve { .. }
            | Ask::Unreserve { .. }
            | Ask::Group { .. }
            | Ask::Flow { .. }
            | Ask::Watch { .. }
            | Ask::Sessions { .. }
            | Ask::For { .. }
            | Ask::KeepCheckpoint { .. }
            | Ask::Reload
            | Ask::Join { .. } => false,
        }
    }

    /// Takes a job, and takes it again if this is said twice.
    #[must_use]
    pub fn submit(spec: JobSpec) -> Ask {
        Ask::Submit { spec: Box::new(spec), key: None }
    }
}
