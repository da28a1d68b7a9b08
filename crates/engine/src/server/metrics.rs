//! What a controller reports to monitors. Lists are asked of it as any command asks, when a monitor asks: nothing is kept for it.

use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use forebay_grid::config::Load;
use forebay_grid::vocabulary::UserName;
use forebay_metrics::{Metric, Page, Render, Table, own};

use crate::controller::Input;
use crate::controller::figures::{Counted, Figures};
use crate::protocol::{Answer, Ask, HostState, HostView, JobView, Page as Part, QueueView};

static TASKS: Metric = Metric::gauge(
    "forebay_queue_tasks",
    &["queue", "state"],
    "Unfinished tasks: pending (for dependencies too), held, or active on hosts",
);
static QUEUE_SLOTS: Metric =
    Metric::gauge("forebay_queue_used_slots", &["queue"], "Slots that tasks of a queue use");
static QUEUE_SLOTS_MAX: Metric = Metric::gauge(
    "forebay_queue_slots_max",
    &["queue"],
    "Maximum number of slots that a queue may use, if there is a limit",
);
static QUEUE_OPEN: Metric =
    Metric::gauge("forebay_queue_open", &["queue"], "1 if a queue accepts jobs");
static QUEUE_ACTIVE: Metric = Metric::gauge(
    "forebay_queue_active",
    &["queue"],
    "1 if a queue starts jobs: it is active, and its windows are open",
);
static SUBMITTED: Metric =
    Metric::counter("forebay_tasks_submitted", &["queue"], "Tasks of jobs that were submitted");
static LAUNCHED: Metric =
    Metric::counter("forebay_tasks_started", &["queue"], "Starts of tasks on hosts");
static ENDED: Metric = Metric::counter(
    "forebay_tasks_ended",
    &["queue", "state"],
    "Finished attempts, by the outcome for the task (again: it starts once more)",
);
static ENDED_PROCESSOR: Metric = Metric::counter(
    "forebay_ended_processor",
    &["queue"],
    "Processor time of attempts, added when they end",
)
.seconds();
static ENDED_READ: Metric = Metric::counter(
    "forebay_ended_read",
    &["queue"],
    "Bytes that attempts read by system calls from any file system, added when they end",
)
.bytes();
static ENDED_WRITTEN: Metric = Metric::counter(
    "forebay_ended_written",
    &["queue"],
    "Bytes that attempts wrote by system calls to any file system, added when they end",
)
.bytes();
static ENDED_IO_WAIT: Metric = Metric::counter(
    "forebay_ended_io_wait",
    &["queue"],
    "Time that threads of attempts waited for block devices, added when they end; 0 without kernel.task_delayacct",
)
.seconds();
static WAITED: Metric = Metric::durations(
    "forebay_task_wait",
    &["queue"],
    "Time from the submission of a job to the first start of its task",
);
static DISPATCH: Metric = Metric::durations(
    "forebay_dispatch",
    &["queue"],
    "Time from the decision to start a task to the host's report that it runs",
);
static COMMIT: Metric =
    Metric::durations("forebay_journal_commit", &[], "Time of a commit of the journal");
static RECORDS: Metric =
    Metric::counter("forebay_journal_records", &[], "Records that were committed to the journal");
static TROUBLE: Metric = Metric::gauge(
    "forebay_journal_trouble",
    &[],
    "1 while the journal cannot be written, for example for lack of space",
);
static HOST_UP: Metric =
    Metric::gauge("forebay_host_up", &["host"], "1 if the agent of a host is connected");
static HOST_OPEN: Metric =
    Metric::gauge("forebay_host_open", &["host"], "1 if jobs may be started on a host");
static HOST_SLOTS: Metric = Metric::gauge("forebay_host_slots", &["host"], "Slots of a host");
static HOST_USED: Metric =
    Metric::gauge("forebay_host_used_slots", &["host"], "Slots of a host in use");
static HOST_MEMORY: Metric =
    Metric::gauge("forebay_host_job_memory", &["host"], "Memory of a host for jobs").bytes();
static HOST_MEMORY_USED: Metric = Metric::gauge(
    "forebay_host_job_memory_used",
    &["host"],
    "Memory of a host that is reserved for jobs",
)
.bytes();
static HOST_QUEUE: Metric = Metric::gauge(
    "forebay_host_run_queue",
    &["host"],
    "Processes that want a processor, over 15 seconds, for each slot",
);
static HOST_BUSY: Metric = Metric::gauge(
    "forebay_host_processor_use",
    &["host"],
    "Used fraction of the processor time of a host, 0 to 1, over a minute",
);
static HOST_DISK: Metric = Metric::gauge(
    "forebay_host_disk_rate",
    &["host"],
    "Bytes a second from and to the disks of a host, over a minute",
)
.bytes();
static HOST_FREE: Metric =
    Metric::gauge("forebay_host_memory_available", &["host"], "Memory of a host that is available")
        .bytes();
static HOST_AREAS: Metric = Metric::gauge(
    "forebay_host_work_available",
    &["host"],
    "Free space in the place where a host creates work areas",
)
.bytes();

/// What a controller reports.
pub static TABLE: Table = Table {
    title: "Controller",
    page: "/metrics",
    about: "Counters begin with the process of the controller. A task is a job, or an element of an array.",
    metrics: &[
        &TASKS,
        &QUEUE_SLOTS,
        &QUEUE_SLOTS_MAX,
        &QUEUE_OPEN,
        &QUEUE_ACTIVE,
        &SUBMITTED,
        &LAUNCHED,
        &ENDED,
        &ENDED_PROCESSOR,
        &ENDED_READ,
        &ENDED_WRITTEN,
        &ENDED_IO_WAIT,
        &WAITED,
        &DISPATCH,
        &COMMIT,
        &RECORDS,
        &TROUBLE,
        &HOST_UP,
        &HOST_OPEN,
        &HOST_SLOTS,
        &HOST_USED,
        &HOST_MEMORY,
        &HOST_MEMORY_USED,
        &HOST_QUEUE,
        &HOST_BUSY,
        &HOST_DISK,
        &HOST_FREE,
        &HOST_AREAS,
    ],
};

static JOB_PROCESSOR: Metric = Metric::gauge(
    "forebay_job_processor",
    &["job", "user", "queue"],
    "Processor time that a running job has used",
)
.seconds();
static JOB_MEMORY: Metric = Metric::gauge(
    "forebay_job_peak_memory",
    &["job", "user", "queue"],
    "Peak memory of a running job",
)
.bytes();
static JOB_READ: Metric = Metric::gauge(
    "forebay_job_called_read",
    &["job", "user", "queue"],
    "Bytes that a running job has read by system calls from any file system",
)
.bytes();
static JOB_WRITTEN: Metric = Metric::gauge(
    "forebay_job_called_written",
    &["job", "user", "queue"],
    "Bytes that a running job has written by system calls to any file system",
)
.bytes();
static JOB_IO: Metric = Metric::gauge(
    "forebay_job_io_pressure",
    &["job", "user", "queue"],
    "Time in which something of a running job waited for I/O, if its host measures that",
)
.seconds();
static JOB_READ_CALLS: Metric = Metric::gauge(
    "forebay_job_read_calls",
    &["job", "user", "queue"],
    "Read calls of a running job to any file system",
);
static JOB_WRITE_CALLS: Metric = Metric::gauge(
    "forebay_job_write_calls",
    &["job", "user", "queue"],
    "Write calls of a running job to any file system",
);
static JOB_DEVICE_READ: Metric = Metric::gauge(
    "forebay_job_device_read",
    &["job", "user", "queue"],
    "Bytes that a running job made local disks read, in native areas and on the direct path too; the rest of what it read came from memory or through a daemon",
)
.bytes();
static JOB_DEVICE_WRITTEN: Metric = Metric::gauge(
    "forebay_job_device_written",
    &["job", "user", "queue"],
    "Bytes that a running job has left to be written to local disks, in native areas and on the direct path too",
)
.bytes();
/// What a controller reports of jobs.
pub static JOBS: Table = Table {
    title: "Controller: running jobs",
    page: "/metrics/jobs",
    about: "As last reported by their hosts. They are gauges, because a job that starts again begins at 0. No kernel counter shows what \
            jobs create, open or remove in native areas.",
    metrics: &[
        &JOB_PROCESSOR,
        &JOB_MEMORY,
        &JOB_READ,
        &JOB_WRITTEN,
        &JOB_IO,
        &JOB_READ_CALLS,
        &JOB_WRITE_CALLS,
        &JOB_DEVICE_READ,
        &JOB_DEVICE_WRITTEN,
    ],
};

static USER_TASKS: Metric = Metric::gauge(
    "forebay_user_tasks",
    &["user", "state"],
    "Unfinished tasks of a user, by their state",
);
static USER_SLOTS: Metric =
    Metric::gauge("forebay_user_slots", &["user"], "Slots that tasks of a user hold");

/// What a controller reports of users.
pub static USERS: Table = Table {
    title: "Controller: users",
    page: "/metrics/users",
    about: "",
    metrics: &[&USER_TASKS, &USER_SLOTS],
};

/// How long the controller may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most parts of the list of jobs that one page takes.
const PARTS_MAX: usize = 20;
const MIB: f64 = 1024.0 * 1024.0;

/// Asks the controller for what a page shows.
#[derive(Clone)]
struct Asker {
    inputs: Sender<Input>,
    user: UserName,
}

impl Asker {
    fn ask(&self, ask: Ask) -> Option<Answer> {
        let (reply, answer) = channel();
        // No connection has this number: they are counted from 1.
        let input = Input::Ask { connection: 0, user: self.user.clone(), ask, reply };
        self.inputs.send(input).ok()?;
        answer.recv_timeout(PATIENCE).ok()
    }

    /// Jobs that have not ended, as many as a page takes.
    fn jobs(&self) -> Option<Vec<JobView>> {
        let (mut all, mut from) = (Vec::new(), None);
        for _ in 0..PARTS_MAX {
            let page = Part { from, ..Part::default() };
            let asked = Ask::Jobs { target: None, ended: false, page };
            let Answer::Jobs { jobs, next, .. } = self.ask(asked)? else { return None };
            all.extend(jobs);
            from = next;
            if from.is_none() {
                break;
            }
        }
        Some(all)
    }
}

/// The pages of a controller. `user` is who runs it, and sees everybody's jobs.
pub(super) fn pages(
    inputs: &Sender<Input>,
    user: &UserName,
    figures: &Figures,
) -> Vec<(&'static str, Render)> {
    let asker = Asker { inputs: inputs.clone(), user: user.clone() };
    let (for_jobs, for_users, figures) = (asker.clone(), asker.clone(), figures.clone());
    vec![
        ("/metrics", Box::new(move || of_grid(&asker, &figures.read())) as Render),
        ("/metrics/jobs", Box::new(move || Some(of_jobs(&for_jobs.jobs()?)))),
        ("/metrics/users", Box::new(move || Some(of_users(&for_users.jobs()?)))),
    ]
}

fn of_grid(asker: &Asker, counted: &Counted) -> Option<Page> {
    let Answer::Queues { queues, trouble } = asker.ask(Ask::Queues)? else { return None };
    let Answer::Hosts { hosts, .. } = asker.ask(Ask::Hosts)? else { return None };
    let mut page = Page::new();
    own::gather(&mut page, "controller");
    queues.iter().for_each(|queue| put_queue(&mut page, queue));
    put_counted(&mut page, counted);
    page.set_whole(&TROUBLE, &[], u64::from(trouble.is_some()));
    hosts.iter().for_each(|host| put_host(&mut page, host));
    Some(page)
}

fn put_queue(page: &mut Page, queue: &QueueView) {
    let name = queue.name.as_str();
    for (state, tasks) in [
        ("pending", queue.pending_tasks),
        ("held", queue.held_tasks),
        ("active", queue.active_tasks),
    ] {
        page.set_whole(&TASKS, &[name, state], tasks);
    }
    page.set_whole(&QUEUE_SLOTS, &[name], queue.used_slots.into());
    if let Some(most) = queue.slots_max {
        page.set_whole(&QUEUE_SLOTS_MAX, &[name], most.into());
    }
    page.set_whole(&QUEUE_OPEN, &[name], queue.open.into());
    page.set_whole(&QUEUE_ACTIVE, &[name], (queue.active && queue.windows_open).into());
}

fn put_counted(page: &mut Page, counted: &Counted) {
    for (queue, figures) in &counted.queues {
        let name = queue.as_str();
        page.count(&SUBMITTED, &[name], figures.submitted);
        page.count(&LAUNCHED, &[name], figures.launched);
        for (state, count) in &figures.ended {
            page.count(&ENDED, &[name, state], *count);
        }
        page.set(&ENDED_PROCESSOR, &[name], figures.processor_seconds);
        page.count(&ENDED_READ, &[name], figures.read_bytes);
        page.count(&ENDED_WRITTEN, &[name], figures.written_bytes);
        page.set(&ENDED_IO_WAIT, &[name], figures.io_wait_seconds);
        page.spread(&WAITED, &[name], figures.waited.spread());
        page.spread(&DISPATCH, &[name], figures.dispatch.spread());
    }
    page.spread(&COMMIT, &[], counted.commits.spread());
    page.count(&RECORDS, &[], counted.records);
}

fn put_host(page: &mut Page, host: &HostView) {
    let name = &[host.name.as_str()];
    page.set_whole(&HOST_UP, name, (host.state == HostState::Up).into());
    let is_open = host.switch == forebay_grid::journal::HostSwitch::Open;
    page.set_whole(&HOST_OPEN, name, is_open.into());
    page.set_whole(&HOST_SLOTS, name, host.slots.into());
    page.set_whole(&HOST_USED, name, host.used_slots.into());
    if let Some(memory) = host.memory_bytes {
        page.set_whole(&HOST_MEMORY, name, memory);
    }
    page.set_whole(&HOST_MEMORY_USED, name, host.used_memory_bytes);
    let Some(Load { r15s, ut, io, mem, tmp, .. }) = host.load else { return };
    page.set(&HOST_QUEUE, name, r15s);
    page.set(&HOST_BUSY, name, ut);
    page.set(&HOST_DISK, name, io * 1024.0);
    page.set(&HOST_FREE, name, mem * MIB);
    page.set(&HOST_AREAS, name, tmp * MIB);
}

fn of_jobs(jobs: &[JobView]) -> Page {
    let mut page = Page::new();
    for job in jobs {
        let Some(usage) = &job.usage else { continue };
        let labels = [job.id.as_str(), job.user.as_str(), job.queue.as_str()];
        page.set(&JOB_PROCESSOR, &labels, usage.cpu_seconds());
        if let Some(memory) = usage.peak_memory_bytes {
            page.set_whole(&JOB_MEMORY, &labels, memory);
        }
        let counts = [
            (&JOB_READ, usage.read_bytes),
            (&JOB_WRITTEN, usage.written_bytes),
            (&JOB_READ_CALLS, usage.read_calls),
            (&JOB_WRITE_CALLS, usage.write_calls),
            (&JOB_DEVICE_READ, usage.device_read_bytes),
            (&JOB_DEVICE_WRITTEN, usage.device_written_bytes),
        ];
        for (metric, count) in counts {
            count.iter().for_each(|count| page.set_whole(metric, &labels, *count));
        }
        usage.io_pressure_seconds.iter().for_each(|seconds| page.set(&JOB_IO, &labels, *seconds));
    }
    page
}

fn of_users(jobs: &[JobView]) -> Page {
    let (mut tasks, mut slots) = (BTreeMap::new(), BTreeMap::new());
    for job in jobs {
        *tasks.entry((job.user.as_str(), job.state.word())).or_insert(0) += u64::from(job.tasks);
        let held = if job.host.is_some() { job.slots } else { 0 };
        *slots.entry(job.user.as_str()).or_insert(0) += u64::from(held);
    }
    let mut page = Page::new();
    for ((user, state), count) in tasks {
        page.set_whole(&USER_TASKS, &[user, state], count);
    }
    for (user, count) in slots {
        page.set_whole(&USER_SLOTS, &[user], count);
    }
    page
}
