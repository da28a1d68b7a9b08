//! What the API sends, from what the controller answers.

use forebay_engine::protocol::{
    AreaView, Asked, FlowView, GroupView, HostView, JobView, QueueView, StepView, UsageRow, explain,
};
use forebay_grid::account::AttemptRecord;
use forebay_grid::advance::AdvanceReservation;
use forebay_grid::grid::Explanation;
use forebay_grid::spec::{Exit, Input, Usage};

use super::shape::Time;
use super::views::{
    Attempt, Flow, Host, HostReason, Job, JobGroup, JobInput, JobOptions, Queue, Reasons,
    Reservation, Service, Step, UsageSum, Used, WorkArea,
};

/// The number at the beginning of `12` or `12[3]`.
fn number(id: &str) -> u64 {
    id.split('[').next().and_then(|text| text.parse().ok()).unwrap_or(0)
}

impl From<JobView> for Job {
    fn from(view: JobView) -> Job {
        Job {
            job: number(&view.id),
            id: view.id,
            name: view.name,
            user: view.user.to_string(),
            queue: view.queue.to_string(),
            state: view.state.word().to_owned(),
            tasks: view.tasks,
            host: view.host.map(|host| host.to_string()),
            attempts: view.attempts,
            slots: view.slots,
            exit_code: view.exit.as_ref().map(Exit::value),
            exit: view.exit.map(|exit| exit.to_string()),
            submitted: view.submitted.into(),
            started: view.started.map(Time::from),
            ended: view.ended.map(Time::from),
            command: view.command,
            output: view.output,
            error: view.error,
            group: view.group.map(|group| group.to_string()),
            used: view.usage.map(Used::from),
            options: view.asked.map(|asked| JobOptions::from(*asked)),
        }
    }
}

impl Service {
    /// A job as a service; none if it is not one.
    #[must_use]
    pub fn of(view: JobView) -> Option<Service> {
        let service = view.service?;
        Some(Service {
            service: service.name.to_string(),
            user: view.user.to_string(),
            job: number(&view.id),
            queue: view.queue.to_string(),
            state: view.state.word().to_owned(),
            ready: service.ready,
            why: service.why,
            host: view.host.map(|host| host.to_string()),
            address: service.address,
            port: service.port.map(u32::from),
            starts: view.attempts,
            failures: service.failures,
            started: view.started.map(Time::from),
            next_start: service.next_start.map(Time::from),
        })
    }
}

impl From<Usage> for Used {
    fn from(usage: Usage) -> Used {
        Used {
            real_seconds: usage.real_seconds,
            cpu_seconds: usage.cpu_seconds(),
            io_wait_seconds: usage.io_wait_seconds.or(usage.io_pressure_seconds),
            peak_memory_bytes: usage.peak_memory_bytes,
            read_bytes: usage.read_bytes,
            written_bytes: usage.written_bytes,
            work_bytes: usage.work_bytes,
        }
    }
}

impl From<Asked> for JobOptions {
    fn from(asked: Asked) -> JobOptions {
        JobOptions {
            memory_bytes: asked.memory_bytes,
            hosts: asked.hosts,
            depends: asked.depends,
            priority: asked.priority,
            project: asked.project,
            time_limit_seconds: asked.time_limit_seconds,
            requeue_exits: asked.requeue_exits,
            checkpoint: asked.checkpoint,
            directory: asked.directory,
            array: asked.array,
            reservation: asked.reservation,
            resources: asked.resources,
            exclusive: asked.exclusive,
            begin: asked.begin.map(Time::from),
            deadline: asked.deadline.map(Time::from),
            warning: asked.warning,
            features: asked.features,
            inputs: asked.inputs.into_iter().map(JobInput::from).collect(),
        }
    }
}

impl From<Input> for JobInput {
    fn from(input: Input) -> JobInput {
        JobInput { path: input.path, home: input.home.map(|home| home.to_string()) }
    }
}

impl From<GroupView> for JobGroup {
    fn from(of: GroupView) -> JobGroup {
        JobGroup {
            group: of.group.to_string(),
            limit: of.limit,
            used: of.used,
            pending: of.pending,
            running: of.running,
            suspended: of.suspended,
            ended: of.ended,
        }
    }
}

impl From<AdvanceReservation> for Reservation {
    fn from(of: AdvanceReservation) -> Reservation {
        Reservation {
            name: of.name.to_string(),
            users: of.users.iter().map(ToString::to_string).collect(),
            hosts: of.hosts.iter().map(ToString::to_string).collect(),
            slots: of.slots,
            start: of.start.into(),
            end: of.end.into(),
        }
    }
}

impl Reasons {
    /// In words.
    #[must_use]
    pub fn of(explanation: &Explanation, used: Option<&Usage>) -> Reasons {
        let hosts = explain::hosts(explanation).into_iter();
        Reasons {
            reasons: explain::reasons(explanation, used),
            hosts: hosts.map(|(host, obstacle)| HostReason { host, obstacle }).collect(),
        }
    }
}

impl From<AttemptRecord> for Attempt {
    fn from(record: AttemptRecord) -> Attempt {
        Attempt {
            id: record.task.to_string(),
            attempt: record.attempt.0,
            state: record.state().to_owned(),
            outcome: record.outcome(),
            host: record.host.to_string(),
            launched: record.launched.into(),
            started: record.started.map(Time::from),
            ended: record.ended.into(),
            used: record.usage.map(Used::from),
        }
    }
}

impl From<HostView> for Host {
    fn from(view: HostView) -> Host {
        Host {
            name: view.name.to_string(),
            state: view.state.word().to_owned(),
            open: view.switch == forebay_grid::journal::HostSwitch::Open,
            slots: view.slots,
            used_slots: view.used_slots,
            memory_bytes: view.memory_bytes,
            used_memory_bytes: view.used_memory_bytes,
            load: view.load.map(|load| load.r1m),
            processors_used: view.load.map(|load| load.ut),
            jobs: view.tasks,
            features: view.features,
        }
    }
}

impl From<QueueView> for Queue {
    fn from(view: QueueView) -> Queue {
        Queue {
            name: view.name.to_string(),
            priority: view.priority,
            open: view.open,
            active: view.active,
            windows_open: view.windows_open,
            used_slots: view.used_slots,
            slots_max: view.slots_max,
            user_slots_max: view.user_slots_max,
            pending_tasks: view.pending_tasks,
            held_tasks: view.held_tasks,
            active_tasks: view.active_tasks,
            is_default: view.is_default,
        }
    }
}

impl From<FlowView> for Flow {
    fn from(view: FlowView) -> Flow {
        Flow {
            id: view.id.0,
            name: view.name,
            user: view.user.to_string(),
            state: view.state.word().to_owned(),
            failed: view.failed,
            begun: view.begun.into(),
            ended: view.ended.map(Time::from),
            reruns: view.reruns,
            count: view.count as u64,
            done: view.done as u64,
            steps: view.steps.into_iter().map(Step::from).collect(),
        }
    }
}

impl From<StepView> for Step {
    fn from(view: StepView) -> Step {
        Step {
            name: view.name,
            job: view.job.0,
            state: view.state.word().to_owned(),
            after: view.after,
            tasks: view.tasks,
            running: view.running,
            done: view.done,
            failed: view.failed,
            host: view.host.map(|host| host.to_string()),
            exit_code: view.exit,
            started: view.started.map(Time::from),
            ended: view.ended.map(Time::from),
        }
    }
}

impl From<UsageRow> for UsageSum {
    fn from(row: UsageRow) -> UsageSum {
        UsageSum {
            day: row.day.map(|day| day.to_string()),
            user: row.user.map(|user| user.to_string()),
            queue: row.queue.map(|queue| queue.to_string()),
            host: row.host.map(|host| host.to_string()),
            project: row.project,
            jobs: row.jobs,
            failed: row.failed,
            attempts: row.attempts,
            real_seconds: row.real_seconds,
            cpu_seconds: row.user_seconds + row.system_seconds,
            slot_seconds: row.slot_seconds,
            io_wait_seconds: row.io_wait_seconds,
            read_bytes: row.read_bytes,
            written_bytes: row.written_bytes,
            peak_memory_bytes: row.peak_memory_bytes,
            wait_median_seconds: row.wait_median_seconds,
        }
    }
}

impl From<AreaView> for WorkArea {
    fn from(view: AreaView) -> WorkArea {
        use forebay_engine::protocol::AreaState;
        let state = match view.state {
            AreaState::Running => "running",
            AreaState::Kept => "kept",
            AreaState::Unknown => "unknown",
            AreaState::Orphaned => "orphaned",
            AreaState::BeingRemoved => "being_removed",
        };
        WorkArea {
            job: view.job,
            user: view.user.to_string(),
            host: view.host.to_string(),
            state: state.to_owned(),
            bytes: view.bytes,
            made: view.made.into(),
            path: view.path.display().to_string(),
        }
    }
}
