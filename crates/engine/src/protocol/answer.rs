//! What the controller answers, and why it refuses.

use forebay_grid::account::AttemptRecord;
use forebay_grid::advance::AdvanceReservation;
use forebay_grid::flow::FlowId;
use forebay_grid::grid::Explanation;
use forebay_grid::spec::Usage;
use forebay_grid::vocabulary::{HostName, JobId, Moment, QueueName, Target, TaskId};
use serde::de::IntoDeserializer as _;
use serde::de::value::StrDeserializer;
use serde::{Deserialize, Deserializer, Serialize};

#[cfg(doc)]
use super::Ask;
use super::{
    AreaView, FlowAnswer, GroupView, HostView, JobView, LimitsView, Notice, QueueView,
    ResourceView, Start, UsageRow,
};

/// What the controller answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// The job was taken.
    Accepted {
        /// Its number.
        job: JobId,
    },
    /// Done, on so many tasks.
    Obeyed {
        /// How many.
        tasks: u32,
    },
    /// There are too many connections for this one, and nothing was heard: ask again later.
    Busy {
        /// Whose there are.
        reason: String,
    },
    /// Refused or failed; nothing was changed.
    Refused(Refusal),
    /// To [`Ask::Jobs`].
    Jobs {
        /// In the order of their numbers.
        jobs: Vec<JobView>,
        /// Where the next page begins; none after the last one.
        #[serde(default)]
        next: Option<TaskId>,
        /// How many lines all pages have together; said with the first one.
        #[serde(default)]
        total: Option<u64>,
    },
    /// To [`Ask::Hosts`].
    Hosts {
        /// In the order in which they came.
        hosts: Vec<HostView>,
        /// What is wrong with the journal, if anything is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        trouble: Option<String>,
    },
    /// To [`Ask::Queues`].
    Queues {
        /// In the order of the settings.
        queues: Vec<QueueView>,
        /// What is wrong with the journal, if anything is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        trouble: Option<String>,
    },
    /// To [`Ask::Resources`].
    Resources {
        /// First those that all hosts share.
        resources: Vec<ResourceView>,
    },
    /// To [`Ask::Limits`].
    Limits {
        /// They.
        limits: LimitsView,
    },
    /// To [`Ask::Try`].
    Tried {
        /// The queue of the job.
        queue: QueueName,
        /// The host on which it would start, as far as that is known.
        host: Option<HostName>,
        /// The latest start time, assuming that no job with higher precedence arrives; none if it is unknown.
        start: Option<Moment>,
    },
    /// To [`Ask::Reservations`].
    Reservations {
        /// In the order of their names.
        reservations: Vec<AdvanceReservation>,
    },
    /// To [`Ask::Groups`].
    Groups {
        /// In the order of their paths.
        groups: Vec<GroupView>,
    },
    /// To [`Ask::History`].
    History {
        /// In the order of element and attempt.
        attempts: Vec<AttemptRecord>,
        /// Where the next page begins; none after the last one.
        #[serde(default)]
        next: Option<Start>,
    },
    /// To [`Ask::Explain`].
    Explained {
        /// Why it waits, or ran where it ran.
        explanation: Explanation,
        /// What its last start used that has ended, if the history knows it.
        #[serde(default)]
        used: Option<Box<Usage>>,
    },
    /// To [`Ask::Wait`] and [`Ask::WaitElement`].
    Ended {
        /// The exit value of the job or the element; of a job 0, or the first that is not 0 of its tasks.
        value: u8,
    },
    /// To [`Ask::Flow`], unless it is obeyed or refused.
    Flow {
        /// What.
        flow: FlowAnswer,
    },
    /// To [`Ask::Watch`], many times.
    Noticed {
        /// What happened.
        notice: Notice,
    },
    /// To [`Ask::Sessions`].
    Sessions {
        /// What there is; that which was removed is not among them.
        areas: Vec<AreaView>,
        /// What was removed.
        removed: Vec<AreaView>,
        /// Hosts that are away: what lies on them only is not among the areas.
        unknown: Vec<HostName>,
        /// What could not be removed or seen on hosts that are up, and why.
        faults: Vec<String>,
    },
    /// To [`Ask::Usage`].
    Usage {
        /// In the order of what they are summed up by.
        rows: Vec<UsageRow>,
    },
    /// To [`Ask::Ping`] and [`Ask::Reload`].
    Here,
}

/// Why something was refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{reason}")]
pub struct Refusal {
    /// What kind of reason it is, for programs. A kind that only later versions know is read as [`RefusalKind::Failed`].
    #[serde(deserialize_with = "kind_or_failed")]
    pub kind: RefusalKind,
    /// The reason, for people.
    pub reason: String,
}

/// What kind of reason a refusal has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// There is no such job, it is no longer known, or the asker may not see it.
    NoJob,
    /// There is no such run of a flow, or the asker may not see it.
    NoFlow,
    /// There is no such queue.
    NoQueue,
    /// There is no such host.
    NoHost,
    /// The asker may not do this.
    NotAllowed,
    /// The queue takes no jobs.
    QueueClosed,
    /// What was asked for cannot be, whoever asks and whenever.
    Invalid,
    /// There are too many, or too much, of it now.
    TooMany,
    /// It is in no state to which this applies.
    WrongState,
    /// The journal has no space for it now: ask again later.
    NoSpace,
    /// The message was not understood, or does not belong here.
    NotUnderstood,
    /// It failed.
    Failed,
}

fn kind_or_failed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RefusalKind, D::Error> {
    let word = String::deserialize(deserializer)?;
    let known: StrDeserializer<'_, serde::de::value::Error> = word.as_str().into_deserializer();
    Ok(RefusalKind::deserialize(known).unwrap_or(RefusalKind::Failed))
}

impl Refusal {
    /// A refusal of a kind with its reason.
    pub fn new(kind: RefusalKind, reason: impl Into<String>) -> Refusal {
        Refusal { kind, reason: reason.into() }
    }

    /// A message was not understood, for this reason. One that has a word that only later versions know gets a reason that
    /// says what to do.
    pub(crate) fn not_understood(reason: String) -> Refusal {
        Refusal::new(RefusalKind::NotUnderstood, older_than_asker(&reason).unwrap_or(reason))
    }

    /// As it came from a controller, which may be of a version that does not say what to do.
    pub(crate) fn explained(self) -> Refusal {
        match self.kind {
            RefusalKind::NotUnderstood => Refusal::not_understood(self.reason),
            _ => self,
        }
    }

    /// There is no such job for the asker.
    #[must_use]
    pub fn no_job(target: Target) -> Refusal {
        forebay_grid::event::Refusal::NoSuchJob(target).into()
    }
}

/// The field or the variant that a message has and its reader does not know, if its reader says that.
#[must_use]
pub fn unknown_word(reason: &str) -> Option<&str> {
    let after = |what| reason.split_once(what).map(|(_, rest)| rest);
    let rest = after("unknown field `").or_else(|| after("unknown variant `"))?;
    rest.split_once('`').map(|(word, _)| word)
}

fn older_than_asker(reason: &str) -> Option<String> {
    let word = unknown_word(reason)?;
    Some(format!(
        "the controller does not know \"{word}\", so it is probably older than the program that asked: install the same version \
         of Forebay on both sides and restart the controller, or omit what needs \"{word}\""
    ))
}

impl From<forebay_grid::event::Refusal> for Refusal {
    fn from(refusal: forebay_grid::event::Refusal) -> Refusal {
        use forebay_grid::event::Refusal as Of;
        let kind = match &refusal {
            Of::NoSuchJob(_) => RefusalKind::NoJob,
            Of::NoSuchFlow(_) => RefusalKind::NoFlow,
            Of::NoSuchQueue(_) => RefusalKind::NoQueue,
            Of::NoSuchHost(_) => RefusalKind::NoHost,
            Of::NotAllowed { .. } => RefusalKind::NotAllowed,
            Of::QueueClosed(_) => RefusalKind::QueueClosed,
            Of::Invalid(_) | Of::NoSuchReservation(_) => RefusalKind::Invalid,
            Of::TooMany(_) => RefusalKind::TooMany,
            Of::WrongState { .. } | Of::FlowInWrongState(_) => RefusalKind::WrongState,
        };
        Refusal::new(kind, refusal.to_string())
    }
}

impl Answer {
    /// A refusal of a kind with its reason.
    pub fn refused(kind: RefusalKind, reason: impl Into<String>) -> Answer {
        Answer::Refused(Refusal::new(kind, reason))
    }

    pub(crate) fn no_job(target: Target) -> Answer {
        Answer::Refused(Refusal::no_job(target))
    }

    pub(crate) fn no_flow(flow: FlowId) -> Answer {
        Answer::Refused(forebay_grid::event::Refusal::NoSuchFlow(flow).into())
    }
}
