//! All operations.

use super::changes::{JobChanges, NewSignal};
use super::operation::{Operation, Parameter, Schema};
use super::shape::Shape;
use super::views::{
    Accepted, AlertList, AttemptList, Flow, FlowAccepted, FlowList, GroupLimit, HostList,
    JobGroupList, JobList, Me, NewFlow, NewJob, NewReservation, Obeyed, Output, QueueList, Reasons,
    Reservation, ReservationList, Samples, ServiceList, TokenList, UsageList, WorkAreaList,
};
use super::{grid, jobs};
use crate::http::Reply;
use crate::problem::Problem;

type Run = fn(&super::operation::Call<'_>) -> Result<Reply, Problem>;

const ENDED: Parameter = Parameter {
    name: "ended",
    text: "Whether those that have ended are listed too.",
    schema: bool::schema,
};

const LIST: &[Parameter] = &[
    ENDED,
    Parameter {
        name: "limit",
        text: "Most lines of the page, 1 to 1000; 100 if omitted. Elements of an array that wait may add two more lines.",
        schema: u32::schema,
    },
    Parameter {
        name: "page",
        text: "Where the page begins, as next of the page before says.",
        schema: String::schema,
    },
    Parameter {
        name: "group",
        text: "Only jobs in this job group or in one below it.",
        schema: String::schema,
    },
    Parameter { name: "queue", text: "Only jobs of this queue.", schema: String::schema },
    Parameter { name: "user", text: "Only jobs of this user.", schema: String::schema },
    Parameter {
        name: "name",
        text: "Only jobs with this name; a trailing * matches anything.",
        schema: String::schema,
    },
    Parameter {
        name: "state",
        text: "Only jobs in these states, with commas between them.",
        schema: String::schema,
    },
];

const OUTPUT: &[Parameter] = &[
    Parameter { name: "stream", text: "output or errors.", schema: String::schema },
    Parameter {
        name: "offset",
        text: "Where to begin, in bytes; the end of the file is read if omitted.",
        schema: u64::schema,
    },
    Parameter { name: "bytes", text: "Most bytes, 1 to 1048576.", schema: u64::schema },
];

const USAGE: &[Parameter] = &[
    Parameter {
        name: "by",
        text: "What is summed up by: user, queue, day, host, project, with commas between them.",
        schema: String::schema,
    },
    Parameter { name: "since", text: "First day, as 2026-10-01.", schema: String::schema },
    Parameter { name: "until", text: "Last day.", schema: String::schema },
];

const SAMPLES: &[Parameter] = &[
    Parameter {
        name: "subject",
        text: "What they are of: grid, files, host/NAME, queue/NAME, fileset/NAME.",
        schema: String::schema,
    },
    Parameter { name: "seconds", text: "How far to look back.", schema: u64::schema },
];

const fn get(
    tag: &'static str,
    id: &'static str,
    path: &'static str,
    summary: &'static str,
    (answer, run): (Schema, Run),
) -> Operation {
    Operation {
        method: "GET",
        path,
        id,
        tag,
        summary,
        query: &[],
        body: None,
        answer: (200, Some(answer)),
        problems: &[],
        run,
    }
}

const fn post(
    tag: &'static str,
    id: &'static str,
    path: &'static str,
    summary: &'static str,
    run: Run,
) -> Operation {
    Operation { method: "POST", ..get(tag, id, path, summary, (Obeyed::schema, run)) }
}

const NO_JOB: &[&str] = &["no_job"];
const OF_JOB: &[&str] = &["no_job", "wrong_state", "no_space"];
const OF_FLOW: &[&str] = &["no_flow", "invalid", "wrong_state", "no_space"];
const OF_HOST: &[&str] = &["no_host", "not_allowed", "wrong_state", "no_space"];
const OF_QUEUE: &[&str] = &["no_queue", "not_allowed", "wrong_state", "no_space"];

const fn with(operation: Operation, problems: &'static [&'static str]) -> Operation {
    Operation { problems, ..operation }
}

/// All of them.
pub static OPERATIONS: [Operation; 40] = [
    get("user", "me", "/api/v1/me", "Say who asks", (Me::schema, grid::me)),
    Operation {
        query: LIST,
        ..get(
            "jobs",
            "list_jobs",
            "/api/v1/jobs",
            "List jobs, a page at a time",
            (JobList::schema, jobs::list),
        )
    },
    Operation {
        body: Some(NewJob::schema),
        answer: (201, Some(Accepted::schema)),
        problems: &["invalid", "no_queue", "queue_closed", "not_allowed", "too_many", "no_space"],
        ..post("jobs", "submit_job", "/api/v1/jobs", "Submit a job", jobs::submit)
    },
    with(
        get(
            "jobs",
            "show_job",
            "/api/v1/jobs/{job}",
            "Show a job, or all elements of an array",
            (JobList::schema, jobs::show),
        ),
        NO_JOB,
    ),
    with(
        get(
            "jobs",
            "explain_job",
            "/api/v1/jobs/{job}/explanation",
            "Say why a job waits, or ran where it ran",
            (Reasons::schema, jobs::explain),
        ),
        NO_JOB,
    ),
    with(
        get(
            "jobs",
            "job_history",
            "/api/v1/jobs/{job}/history",
            "List finished starts of a job",
            (AttemptList::schema, jobs::history),
        ),
        NO_JOB,
    ),
    Operation {
        query: OUTPUT,
        problems: &["no_job", "no_output"],
        ..get(
            "jobs",
            "job_output",
            "/api/v1/jobs/{job}/output",
            "Read what a job has written",
            (Output::schema, jobs::output),
        )
    },
    with(
        post("jobs", "kill_job", "/api/v1/jobs/{job}/kill", "Terminate a job", jobs::kill),
        OF_JOB,
    ),
    with(
        post(
            "jobs",
            "hold_job",
            "/api/v1/jobs/{job}/hold",
            "Hold a job: it does not start, or is suspended",
            jobs::hold,
        ),
        OF_JOB,
    ),
    with(
        post(
            "jobs",
            "release_job",
            "/api/v1/jobs/{job}/release",
            "Release a job from a hold",
            jobs::release,
        ),
        OF_JOB,
    ),
    with(
        post(
            "jobs",
            "requeue_job",
            "/api/v1/jobs/{job}/requeue",
            "Restart a job, running or finished",
            jobs::requeue,
        ),
        OF_JOB,
    ),
    Operation {
        body: Some(NewSignal::schema),
        problems: &["invalid", "no_job", "wrong_state", "no_space"],
        ..post(
            "jobs",
            "signal_job",
            "/api/v1/jobs/{job}/signal",
            "Send the processes of a job a signal",
            jobs::signal,
        )
    },
    Operation {
        body: Some(JobChanges::schema),
        problems: &[
            "invalid",
            "no_job",
            "no_queue",
            "queue_closed",
            "not_allowed",
            "wrong_state",
            "no_space",
        ],
        ..post(
            "jobs",
            "modify_job",
            "/api/v1/jobs/{job}/modify",
            "Change a job that has not ended, or move it to another queue",
            jobs::modify,
        )
    },
    get("grid", "list_hosts", "/api/v1/hosts", "List hosts", (HostList::schema, grid::hosts)),
    with(
        post(
            "grid",
            "open_host",
            "/api/v1/hosts/{host}/open",
            "Let jobs start on a host",
            grid::open_host,
        ),
        OF_HOST,
    ),
    with(
        post(
            "grid",
            "close_host",
            "/api/v1/hosts/{host}/close",
            "Let no job start on a host",
            grid::close_host,
        ),
        OF_HOST,
    ),
    Operation {
        query: &[ENDED],
        ..get(
            "services",
            "list_services",
            "/api/v1/services",
            "List services",
            (ServiceList::schema, grid::services),
        )
    },
    get("grid", "list_queues", "/api/v1/queues", "List queues", (QueueList::schema, grid::queues)),
    with(
        post(
            "grid",
            "open_queue",
            "/api/v1/queues/{queue}/open",
            "Let a queue take jobs",
            grid::open_queue,
        ),
        OF_QUEUE,
    ),
    with(
        post(
            "grid",
            "close_queue",
            "/api/v1/queues/{queue}/close",
            "Let a queue take no jobs",
            grid::close_queue,
        ),
        OF_QUEUE,
    ),
    with(
        post(
            "grid",
            "activate_queue",
            "/api/v1/queues/{queue}/activate",
            "Let a queue start jobs",
            grid::activate_queue,
        ),
        OF_QUEUE,
    ),
    with(
        post(
            "grid",
            "inactivate_queue",
            "/api/v1/queues/{queue}/inactivate",
            "Let a queue start no jobs",
            grid::inactivate_queue,
        ),
        OF_QUEUE,
    ),
    get(
        "groups",
        "list_groups",
        "/api/v1/groups",
        "List your job groups",
        (JobGroupList::schema, grid::groups),
    ),
    Operation {
        body: Some(GroupLimit::schema),
        problems: &["invalid", "too_many", "no_space"],
        ..post(
            "groups",
            "limit_group",
            "/api/v1/groups",
            "Limit how many tasks of a job group of yours are on hosts at once",
            grid::limit_group,
        )
    },
    Operation {
        method: "DELETE",
        query: &[Parameter { name: "group", text: "Path of the group.", schema: String::schema }],
        answer: (204, None),
        problems: &["invalid", "wrong_state", "no_space"],
        ..get(
            "groups",
            "delete_group",
            "/api/v1/groups",
            "Delete a job group of yours and those below it, with their limits",
            (Me::schema, grid::delete_group),
        )
    },
    get(
        "grid",
        "list_reservations",
        "/api/v1/reservations",
        "List the reservations that are not over",
        (ReservationList::schema, grid::reservations),
    ),
    Operation {
        body: Some(NewReservation::schema),
        answer: (201, Some(Reservation::schema)),
        problems: &["invalid", "no_host", "not_allowed", "too_many", "no_space"],
        ..post(
            "grid",
            "create_reservation",
            "/api/v1/reservations",
            "Reserve slots of hosts in advance, as an admin",
            grid::reserve,
        )
    },
    Operation {
        method: "DELETE",
        answer: (204, None),
        problems: &["invalid", "not_allowed", "no_space"],
        ..get(
            "grid",
            "delete_reservation",
            "/api/v1/reservations/{reservation}",
            "Delete a reservation, as an admin",
            (Me::schema, grid::unreserve),
        )
    },
    Operation {
        query: USAGE,
        ..get(
            "grid",
            "usage",
            "/api/v1/usage",
            "Sum up what was used",
            (UsageList::schema, grid::usage),
        )
    },
    get(
        "grid",
        "list_areas",
        "/api/v1/areas",
        "List work areas",
        (WorkAreaList::schema, grid::areas),
    ),
    Operation {
        query: &[ENDED],
        ..get(
            "flows",
            "list_flows",
            "/api/v1/flows",
            "List runs of flows",
            (FlowList::schema, grid::flows),
        )
    },
    Operation {
        body: Some(NewFlow::schema),
        answer: (201, Some(FlowAccepted::schema)),
        problems: &["invalid", "no_queue", "queue_closed", "too_many", "no_space"],
        ..post("flows", "run_flow", "/api/v1/flows", "Start a flow", grid::run_flow)
    },
    with(
        get(
            "flows",
            "show_flow",
            "/api/v1/flows/{flow}",
            "Show a run with its steps",
            (Flow::schema, grid::show_flow),
        ),
        &["no_flow"],
    ),
    with(
        post(
            "flows",
            "kill_flow",
            "/api/v1/flows/{flow}/kill",
            "Terminate a run with all its jobs",
            grid::kill_flow,
        ),
        OF_FLOW,
    ),
    with(
        post(
            "flows",
            "rerun_flow",
            "/api/v1/flows/{flow}/rerun",
            "Start a run again where it failed",
            grid::rerun_flow,
        ),
        OF_FLOW,
    ),
    get(
        "user",
        "list_tokens",
        "/api/v1/tokens",
        "List your tokens",
        (TokenList::schema, grid::tokens),
    ),
    Operation {
        method: "DELETE",
        answer: (204, None),
        problems: &["no_token"],
        ..get(
            "user",
            "revoke_token",
            "/api/v1/tokens/{token}",
            "Revoke a token of yours",
            (Me::schema, grid::revoke),
        )
    },
    Operation {
        query: SAMPLES,
        problems: &["not_found"],
        ..get(
            "watch",
            "samples",
            "/api/v1/samples",
            "Read values of the past",
            (Samples::schema, grid::samples),
        )
    },
    get("watch", "list_alerts", "/api/v1/alerts", "List alerts", (AlertList::schema, grid::alerts)),
    Operation {
        answer: (200, None),
        problems: &["busy"],
        ..get(
            "watch",
            "events",
            "/api/v1/events",
            "Follow changes of jobs and hosts, as server-sent events",
            (Me::schema, grid::events),
        )
    },
];
