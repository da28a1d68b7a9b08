//! What comes in: commands, what agents say, files that have arrived, settings; and what each means: an event for
//! the engine, and what is left to do once its decision is durable.

use std::sync::mpsc::Sender;

use forebay_grid::Event;
use forebay_grid::config::Config;
use forebay_grid::event::{AreaSize, Joined, RunStatus};
use forebay_grid::flow::ScheduleId;
use forebay_grid::flow::event::{FlowEvent, Found};
use forebay_grid::vocabulary::{Attempt, HostName, JobId, Moment, TaskId, UserName};

use crate::controller::lookups::{Lookup, Question};
use crate::controller::outboxes::Outboxes;
use crate::engine::Watch;
use crate::protocol::flow;
use crate::protocol::{Answer, Ask, Containment, Missing, Order, Report, Using};

/// Something for the controller.
pub enum Input {
    /// A command.
    Ask {
        /// Number of the connection on which it came.
        connection: u64,
        /// Who asks, as the kernel says.
        user: UserName,
        /// What.
        ask: Ask,
        /// Where the answer goes.
        reply: Sender<Answer>,
    },
    /// A connection has ended on which somebody may wait for an answer.
    Closed {
        /// Its number.
        connection: u64,
        /// Who asked there.
        user: UserName,
    },
    /// An agent has connected.
    Joined {
        /// Number of the connection; later ones are greater.
        connection: u64,
        /// What it says.
        joined: Box<Joined>,
        /// Where its orders go.
        outbox: Sender<Order>,
    },
    /// An agent reports.
    Report {
        /// Which.
        host: HostName,
        /// By which connection.
        connection: u64,
        /// What.
        report: Report,
    },
    /// A connection to an agent broke.
    Left {
        /// Which.
        host: HostName,
        /// Which connection.
        connection: u64,
    },
    /// Which files do flows wait for?
    Watches {
        /// Where the answer goes.
        reply: Sender<Vec<Watch>>,
    },
    /// Somebody has looked for files.
    Looked {
        /// For which schedule.
        schedule: ScheduleId,
        /// What is there.
        files: Vec<Found>,
        /// What could not be looked at.
        trouble: Option<String>,
    },
    /// Those were told whom a job notifies of its end, or it was tried in vain.
    Told {
        /// The job.
        job: JobId,
        /// When it ended.
        ended: Moment,
    },
    /// Settings were read anew.
    Configured(Box<Config>),
    /// The controller shall end.
    Stop,
}

/// What is to be done for one input once its records are durable.
pub(crate) enum Follow {
    Nothing,
    Reply(Sender<Answer>),
    Lookup(Lookup),
    Connected {
        host: HostName,
        connection: u64,
        outbox: Sender<Order>,
        ended: Vec<(TaskId, Attempt)>,
    },
    Started {
        task: TaskId,
        attempt: Attempt,
        pid: Option<u32>,
    },
    Areas {
        host: HostName,
        report: Report,
    },
    Using {
        host: HostName,
        containment: Containment,
        runs: Vec<Using>,
        missing: Missing,
    },
    Noted {
        host: HostName,
        ended: Vec<(TaskId, Attempt)>,
    },
    Disconnected {
        host: HostName,
        connection: u64,
    },
    Watches(Sender<Vec<Watch>>),
}

impl Input {
    /// What it means to the engine, and what comes after. What an agent says on a connection that was replaced
    /// means nothing.
    pub(crate) fn meaning(self, outboxes: &mut Outboxes) -> (Option<Event>, Follow) {
        match self {
            Input::Stop => (None, Follow::Nothing),
            Input::Told { job, ended } => (Some(Event::Told { job, ended }), Follow::Nothing),
            Input::Configured(config) => (Some(Event::Configured(config)), Follow::Nothing),
            Input::Ask { connection, user, ask, reply } => match ask_event(&user, ask) {
                Ok(event) => (Some(event), Follow::Reply(reply)),
                Err(ask) => {
                    let question = Question::Ask { ask, reply };
                    (None, Follow::Lookup(Lookup { user, connection, question }))
                }
            },
            Input::Closed { connection, user } => {
                let question = Question::Closed;
                (None, Follow::Lookup(Lookup { user, connection, question }))
            }
            Input::Watches { reply } => (None, Follow::Watches(reply)),
            Input::Looked { schedule, files, trouble } => {
                let event = FlowEvent::Looked { schedule, files, trouble };
                (Some(Event::Flow(event)), Follow::Nothing)
            }
            Input::Joined { connection, joined, outbox } => {
                let host = joined.host.clone();
                let ended = joined.runs.iter().filter_map(|run| match run.status {
                    RunStatus::Exited(..) | RunStatus::Lost(_) => Some((run.task, run.attempt)),
                    RunStatus::Waiting | RunStatus::Running | RunStatus::Stopped => None,
                });
                let ended = ended.collect();
                outboxes.announce(&host, connection);
                let follow = Follow::Connected { host, connection, outbox, ended };
                (Some(Event::HostJoined(joined)), follow)
            }
            Input::Left { host, connection } => {
                let latest = outboxes.is_latest(&host, connection);
                let event = latest.then(|| Event::HostLost { host: host.clone() });
                (event, Follow::Disconnected { host, connection })
            }
            Input::Report { host, connection, report } => {
                if outboxes.is_latest(&host, connection) {
                    report_event(host, report)
                } else {
                    (None, Follow::Nothing)
                }
            }
        }
    }
}

/// The event that carries a command out, or the question that only looks.
fn ask_event(user: &UserName, ask: Ask) -> Result<Event, Ask> {
    let by = user.clone();
    Ok(match ask {
        Ask::Submit { spec, key } => Event::Submit { user: by, spec, key },
        Ask::Command { target, verb } => Event::Command { by, target, verb },
        Ask::Modify { job, changes } => Event::Modify { by, job, changes },
        Ask::Queue { queue, verb } => Event::Queue { by, queue, verb },
        Ask::Host { host, state } => Event::Host { by, host, state },
        Ask::Reserve { reservation } => Event::Reserve { by, reservation },
        Ask::Unreserve { name } => Event::Unreserve { by, name },
        Ask::Group { group, verb } => Event::Group { by, group, verb },
        Ask::Flow { flow } => flow::event_of(user, &flow).ok_or(Ask::Flow { flow })?,
        ask => return Err(ask),
    })
}

fn report_event(host: HostName, report: Report) -> (Option<Event>, Follow) {
    let event = match report {
        Report::Load { load } => Event::HostLoad { host, load },
        Report::Started { task, attempt, pid } => {
            let follow = Follow::Started { task, attempt, pid };
            return (Some(Event::Started { host, task, attempt }), follow);
        }
        Report::Using { containment, runs, missing } => {
            let measured = runs.iter().filter_map(|run| {
                let &Using { task, attempt, area_bytes, .. } = run;
                Some(AreaSize { task, attempt, bytes: area_bytes? })
            });
            let sizes: Vec<AreaSize> = measured.collect();
            let event = (!sizes.is_empty()).then(|| Event::AreaSizes { host: host.clone(), sizes });
            return (event, Follow::Using { host, containment, runs, missing });
        }
        Report::Areas { .. } | Report::Reaped { .. } | Report::CheckpointKept { .. } => {
            return (None, Follow::Areas { host, report });
        }
        Report::Exited { task, attempt, exit, usage } => {
            let follow = Follow::Noted { host: host.clone(), ended: vec![(task, attempt)] };
            return (Some(Event::Exited { host, task, attempt, exit, usage }), follow);
        }
        Report::Lost { task, attempt, loss } => {
            tracing::warn!(%host, %task, %attempt, ?loss, "a host lost a job or could not start it");
            let follow = Follow::Noted { host: host.clone(), ended: vec![(task, attempt)] };
            return (Some(Event::Lost { host, task, attempt, loss }), follow);
        }
        Report::WorkReleased { task, requeues, result } => {
            Event::WorkReleased { task, requeues, result }
        }
    };
    (Some(event), Follow::Nothing)
}
