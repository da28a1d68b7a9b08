//! What the API sends and receives.

use std::collections::BTreeMap;

use super::shape::{Time, answers, requests};

answers! {
    /// The user who asks.
    Me {
        /// Name of the user.
        user: String,
        /// Whether the user is an admin of the grid, who sees and changes the jobs of all users.
        admin: bool,
    }

    /// A job, an element of an array, or waiting elements of one array together.
    Job {
        /// Number of the job, with the element of an array: `12`, `12[3]`.
        id: String,
        /// Number of the job.
        job: u64,
        /// Name.
        name: String,
        /// Name of its user.
        user: String,
        /// Name of its queue.
        queue: String,
        /// State: pending, held, starting, running, suspended, unknown (its host is unreachable), done, exited, killed,
        /// time_limit, deadline, host_lost, attempts_max, dependency_never, skipped or area_limit.
        state: String,
        /// Number of tasks for which this line stands.
        tasks: u32,
        /// Name of the host on which it runs, or ran last.
        host: Option<String>,
        /// Number of starts.
        attempts: u32,
        /// Number of slots that it needs.
        slots: u32,
        /// How it ended, in words.
        exit: Option<String>,
        /// Exit code, as a shell has it.
        exit_code: Option<u8>,
        /// Time of the submission.
        submitted: Time,
        /// Time of the latest start.
        started: Option<Time>,
        /// Time of the end.
        ended: Option<Time>,
        /// Program and arguments.
        command: Vec<String>,
        /// File of its output.
        output: String,
        /// File of its errors, if it is another one.
        error: Option<String>,
        /// Path of the job group in which it is.
        group: Option<String>,
        /// What it used so far, or in its last start.
        used: Option<Used>,
        /// Its other options; only where one job is requested.
        options: Option<JobOptions>,
    }

    /// What a start of a job used.
    Used {
        /// Seconds from start to end.
        real_seconds: f64,
        /// Processor seconds.
        cpu_seconds: f64,
        /// Seconds in which its threads waited for I/O.
        io_wait_seconds: Option<f64>,
        /// Most memory, in bytes.
        peak_memory_bytes: Option<u64>,
        /// Bytes read by system calls.
        read_bytes: Option<u64>,
        /// Bytes written by system calls.
        written_bytes: Option<u64>,
        /// Bytes in its work area at the end.
        work_bytes: Option<u64>,
    }

    /// Options of a job, besides those that every list shows.
    JobOptions {
        /// Memory that is reserved for it, in bytes.
        memory_bytes: Option<u64>,
        /// Hosts on which it may run.
        hosts: String,
        /// Condition that it waits for.
        depends: Option<String>,
        /// Priority among the jobs of its user.
        priority: i32,
        /// Project.
        project: String,
        /// Time limit, in seconds.
        time_limit_seconds: Option<f64>,
        /// Exit codes after which it starts again.
        requeue_exits: String,
        /// Whether its work area is kept for the next start.
        checkpoint: bool,
        /// Its working directory.
        directory: String,
        /// Elements of the array.
        array: Option<String>,
        /// Reservation in which it runs.
        reservation: Option<String>,
        /// Counted resources that it needs.
        resources: String,
        /// Whether no other job runs beside it.
        exclusive: bool,
        /// When it may start at the earliest.
        begin: Option<Time>,
        /// When it is ended at the latest.
        deadline: Option<Time>,
        /// Signal that it gets before it is ended, to whom, and how long before.
        warning: Option<String>,
        /// Features that its host must have.
        features: Option<String>,
        /// Files that it reads.
        inputs: Vec<JobInput>,
    }

    /// A file that a job reads.
    JobInput {
        /// Path.
        path: String,
        /// Host on which its bytes lay when the job was submitted; null if none was better than others.
        home: Option<String>,
    }

    /// Slots of hosts that are reserved for some users for a time.
    Reservation {
        /// Name, which jobs give.
        name: String,
        /// Users whose jobs may use it.
        users: Vec<String>,
        /// Hosts of which it has slots.
        hosts: Vec<String>,
        /// Number of slots of each host; null if all of them.
        slots: Option<u32>,
        /// When it starts.
        start: Time,
        /// When it ends; jobs in it end then.
        end: Time,
    }

    /// The reservations that are not over.
    ReservationList {
        /// The reservations.
        reservations: Vec<Reservation>,
    }

    /// A job group of the user who asks.
    JobGroup {
        /// Path.
        group: String,
        /// The most tasks of it and of groups below it that may be on hosts at once; null if there is no limit.
        limit: Option<u32>,
        /// How many are.
        used: u32,
        /// Number of its own tasks that wait.
        pending: u64,
        /// Number of its own tasks that run.
        running: u64,
        /// Number of its own tasks that are suspended.
        suspended: u64,
        /// Number of its own tasks that have ended, as far as they are known.
        ended: u64,
    }

    /// The job groups of the user who asks.
    JobGroupList {
        /// The groups.
        groups: Vec<JobGroup>,
    }

    /// A page of a list of jobs.
    JobList {
        /// The jobs.
        jobs: Vec<Job>,
        /// What to give as `page` for the next page; null after the last one.
        next: Option<String>,
        /// Number of lines of all pages together; only with the first one, and not if jobs are chosen.
        total: Option<u64>,
    }

    /// A job that was accepted.
    Accepted {
        /// Its number.
        job: u64,
    }

    /// What was done.
    Obeyed {
        /// Number of tasks that it was done to.
        tasks: u32,
    }

    /// Why a job waits, or ran where it ran.
    Reasons {
        /// Reasons that concern it as a whole, in words.
        reasons: Vec<String>,
        /// What each host says, if it waits.
        hosts: Vec<HostReason>,
    }

    /// What a host says of a job that waits.
    HostReason {
        /// Name of the host.
        host: String,
        /// Why it cannot take the job; null if it could.
        obstacle: Option<String>,
    }

    /// One finished start of a task.
    Attempt {
        /// Number of the job, with the element of an array.
        id: String,
        /// Number of the start, from 1.
        attempt: u32,
        /// Name of the host.
        host: String,
        /// State of the task after it; again or again_elsewhere if it starts again.
        state: String,
        /// How it ended, in words.
        outcome: Option<String>,
        /// Time at which it was given to the host.
        launched: Time,
        /// Time at which the host had started it.
        started: Option<Time>,
        /// Time of the end.
        ended: Time,
        /// What it used.
        used: Option<Used>,
    }

    /// Finished starts of a job.
    AttemptList {
        /// In the order of element and start.
        attempts: Vec<Attempt>,
    }

    /// The end of a file that a job writes.
    Output {
        /// Path of the file.
        path: String,
        /// Length of the file, in bytes.
        length: u64,
        /// Where the text begins, in bytes.
        offset: u64,
        /// The text; bytes that are not UTF-8 are replaced.
        text: String,
        /// Whether the job has ended.
        ended: bool,
    }

    /// A host.
    Host {
        /// Name.
        name: String,
        /// State: up, unreachable or gone.
        state: String,
        /// Whether jobs may be started on it.
        open: bool,
        /// Number of its slots.
        slots: u32,
        /// Number of slots in use.
        used_slots: u32,
        /// Memory for jobs, in bytes.
        memory_bytes: Option<u64>,
        /// Memory that is reserved by jobs, in bytes.
        used_memory_bytes: u64,
        /// Processes that run or wait for a processor, mean of a minute.
        load: Option<f64>,
        /// Share of the processors in use, 0 to 1.
        processors_used: Option<f64>,
        /// Numbers of the jobs that run there.
        jobs: Vec<String>,
        /// Features that it has.
        features: Vec<String>,
    }

    /// All hosts.
    HostList {
        /// In the order in which they joined.
        hosts: Vec<Host>,
        /// What is wrong with the journal, if anything is.
        trouble: Option<String>,
    }

    /// A queue.
    Queue {
        /// Name.
        name: String,
        /// Priority; null if it is no longer in the settings.
        priority: Option<u32>,
        /// Whether it takes jobs.
        open: bool,
        /// Whether it starts jobs.
        active: bool,
        /// Whether its windows are open.
        windows_open: bool,
        /// Number of slots in use.
        used_slots: u32,
        /// Most slots in use.
        slots_max: Option<u32>,
        /// Most slots of one user.
        user_slots_max: Option<u32>,
        /// Number of tasks that wait.
        pending_tasks: u64,
        /// Number of tasks that are held.
        held_tasks: u64,
        /// Number of tasks on hosts.
        active_tasks: u64,
        /// Whether jobs go here that name no queue.
        is_default: bool,
    }

    /// All queues.
    QueueList {
        /// In the order of the settings.
        queues: Vec<Queue>,
        /// What is wrong with the journal, if anything is.
        trouble: Option<String>,
    }

    /// A service: a job that is kept running under a name.
    Service {
        /// Its name, unique among those of its user.
        service: String,
        /// Whose.
        user: String,
        /// Number of its job, which is killed to stop it and requeued to restart it.
        job: u64,
        /// Its queue.
        queue: String,
        /// State of its job.
        state: String,
        /// Whether it is ready; null while it is on no host, or its host has not said.
        ready: Option<bool>,
        /// Why it is not ready.
        why: Option<String>,
        /// Where it runs or ran last.
        host: Option<String>,
        /// Name or number under which that host is reached.
        address: Option<String>,
        /// Its port.
        port: Option<u32>,
        /// How often it was started.
        starts: u32,
        /// How often it failed in a row.
        failures: u32,
        /// Since when it runs.
        started: Option<Time>,
        /// When it starts again, while it pauses after a failure.
        next_start: Option<Time>,
    }

    /// Services.
    ServiceList {
        /// In the order of their jobs.
        services: Vec<Service>,
    }

    /// A run of a flow.
    Flow {
        /// Number of the run.
        id: u64,
        /// Name of the flow.
        name: String,
        /// Name of its user.
        user: String,
        /// State: running, done, failed or killed.
        state: String,
        /// Names of the steps that failed or were skipped.
        failed: Vec<String>,
        /// Time at which it began.
        begun: Time,
        /// Time at which every job had ended.
        ended: Option<Time>,
        /// How often it was started again where it failed.
        reruns: u32,
        /// Number of steps.
        count: u64,
        /// Number of steps that are done.
        done: u64,
        /// Steps, each after those it depends on; empty in a list.
        steps: Vec<Step>,
    }

    /// A step of a flow.
    Step {
        /// Name.
        name: String,
        /// Number of its job.
        job: u64,
        /// State: pending, held, running, done, failed, killed or skipped.
        state: String,
        /// What it waits for.
        after: Option<String>,
        /// Number of elements, 1 if it is not an array.
        tasks: u32,
        /// Number of elements on hosts.
        running: u32,
        /// Number of elements that succeeded.
        done: u32,
        /// Number of elements that failed.
        failed: u32,
        /// Name of the host on which it runs, or ran last.
        host: Option<String>,
        /// Exit code.
        exit_code: Option<u8>,
        /// Time of the first start.
        started: Option<Time>,
        /// Time of the end.
        ended: Option<Time>,
    }

    /// Runs of flows.
    FlowList {
        /// In the order of their numbers.
        flows: Vec<Flow>,
    }

    /// A run that was started.
    FlowAccepted {
        /// Its number.
        flow: u64,
    }

    /// What was used, summed up.
    UsageSum {
        /// Day, as 2026-10-31.
        day: Option<String>,
        /// Name of the user.
        user: Option<String>,
        /// Name of the queue.
        queue: Option<String>,
        /// Name of the host.
        host: Option<String>,
        /// Project.
        project: Option<String>,
        /// Number of tasks that ended.
        jobs: u64,
        /// Number of those that failed.
        failed: u64,
        /// Number of starts.
        attempts: u64,
        /// Seconds on the clock.
        real_seconds: f64,
        /// Processor seconds.
        cpu_seconds: f64,
        /// Slots times seconds.
        slot_seconds: f64,
        /// Seconds in which jobs waited for I/O, as far as known.
        io_wait_seconds: Option<f64>,
        /// Bytes read by system calls.
        read_bytes: u64,
        /// Bytes written by system calls.
        written_bytes: u64,
        /// Most memory of one task, in bytes.
        peak_memory_bytes: u64,
        /// Half of the tasks waited no longer than this for their first start, in seconds.
        wait_median_seconds: Option<f64>,
    }

    /// Sums of what was used.
    UsageList {
        /// One for each group.
        rows: Vec<UsageSum>,
    }

    /// A work area.
    WorkArea {
        /// Number of the job.
        job: String,
        /// Name of its user.
        user: String,
        /// Name of the host on which it lies.
        host: String,
        /// State: running, kept, unknown, orphaned or being_removed.
        state: String,
        /// Bytes, if they were counted.
        bytes: Option<u64>,
        /// Time at which it was made.
        made: Time,
        /// Path.
        path: String,
    }

    /// Work areas.
    WorkAreaList {
        /// The areas.
        areas: Vec<WorkArea>,
        /// Names of hosts that are unreachable, whose areas are not listed.
        unknown: Vec<String>,
    }

    /// A token, without its secret.
    TokenView {
        /// Its number.
        id: u32,
        /// Its name.
        name: String,
        /// Time at which it was made.
        made: Time,
        /// Time at which it expires.
        expires: Time,
        /// Whether it is the one with which was asked.
        this: bool,
    }

    /// Tokens.
    TokenList {
        /// Those of the user.
        tokens: Vec<TokenView>,
    }

    /// Values over time.
    Samples {
        /// What they are of.
        subject: String,
        /// Seconds from one to the next.
        step_seconds: u64,
        /// Seconds since 1970 of each.
        times: Vec<u64>,
        /// Values by name, one for each time; null where one is not known.
        values: BTreeMap<String, Vec<Option<f64>>>,
    }

    /// An alert.
    AlertView {
        /// Its code, with what it is about: fill/data.
        code: String,
        /// What is wrong, in words.
        text: String,
        /// Whether it is still so.
        firing: bool,
        /// Time since when it has been so.
        since: Time,
        /// Time at which it was over.
        resolved: Option<Time>,
        /// Time until which nobody is notified of it.
        muted_until: Option<Time>,
    }

    /// Alerts.
    AlertList {
        /// Those that fire first, then the latest ones that are over.
        alerts: Vec<AlertView>,
    }
}

requests! {
    /// A job to submit. Texts have the forms that `forebay submit` takes.
    NewJob {
        /// Program and arguments.
        command: Vec<String>,
        /// Text of a script, which is run in place of the program that the command names.
        script: Option<String>,
        /// Name; load[1-100]%10 makes an array of 100 elements, ten at a time.
        name: Option<String>,
        /// Queue.
        queue: Option<String>,
        /// Number of slots, all on one host.
        slots: Option<u32>,
        /// Hosts it may run on, such as gridn1+1 others.
        hosts: Option<String>,
        /// Memory to reserve: 4G, 512M, or a number of MiB.
        memory: Option<String>,
        /// Condition to wait for, such as done(12).
        depends: Option<String>,
        /// Priority among your own jobs, higher first.
        priority: Option<i32>,
        /// Project.
        project: Option<String>,
        /// Time limit: 90 s, 2 h, 1:30:00, or a number of minutes.
        time_limit: Option<String>,
        /// Variables of its environment, besides HOME, USER, LOGNAME, SHELL, PATH and LANG.
        environment: Option<BTreeMap<String, String>>,
        /// Working directory; the home directory of the user if none.
        directory: Option<String>,
        /// File mode creation mask, in octal: 022.
        umask: Option<String>,
        /// File of its output, relative to the working directory.
        output: Option<String>,
        /// File of its errors.
        error: Option<String>,
        /// Whether it may start again after its host was lost.
        rerunnable: Option<bool>,
        /// Exit codes after which it starts again, such as 99 EXCLUDE(137).
        requeue_exit: Option<String>,
        /// Whether its work area is kept for the next start.
        checkpoint: Option<bool>,
        /// Whether it waits until it is released.
        hold: Option<bool>,
        /// Reservation in which it runs.
        reservation: Option<String>,
        /// Job group of yours in which it is, such as /risk/daily.
        group: Option<String>,
        /// Counted resources, such as gpu:2,sas:1.
        resources: Option<String>,
        /// Whether no other job may run beside it.
        exclusive: Option<bool>,
        /// When it may start at the earliest, such as 2027-01-31T18:00:00Z.
        begin: Option<String>,
        /// When it is ended at the latest, whether it runs or waits.
        deadline: Option<String>,
        /// Signal that it gets before it is ended, such as USR1@5min or program:TERM@90 s.
        warning: Option<String>,
        /// Features that its host must have, such as ssd && !slow.
        features: Option<String>,
        /// Files and directories that it reads, absolute or relative to the working directory; it prefers the host that
        /// has their bytes. At most 1000.
        inputs: Option<Vec<String>>,
        /// Whether it is ended (end) or waits on (keep) once its condition can no longer be met; as its queue says if omitted.
        dependency_never: Option<String>,
        /// Command of a shell that runs before it, on its host.
        pre: Option<String>,
        /// Command of a shell that runs after it.
        post: Option<String>,
        /// Application profile of the grid, which fills in what is not given.
        profile: Option<String>,
        /// Whether it is kept from hosts whose storage is busy.
        io_heavy: Option<bool>,
        /// Of what it notifies: begin, end, fail.
        notify: Option<Vec<String>>,
        /// Addresses of mail; its user's if neither these nor a webhook are given.
        mail: Option<Vec<String>>,
        /// URL to which notifications are posted.
        webhook: Option<String>,
    }

    /// The limit of a job group.
    GroupLimit {
        /// Path of the group, such as /risk/daily.
        group: String,
        /// The most tasks of it and of groups below it on hosts at once; no limit if omitted.
        limit: Option<u32>,
    }

    /// A reservation to create.
    NewReservation {
        /// Name, which jobs give.
        name: String,
        /// Users whose jobs may use it.
        users: Vec<String>,
        /// Hosts of which it has slots.
        hosts: Vec<String>,
        /// Number of slots of each host; all of them if omitted.
        slots: Option<u32>,
        /// When it starts, such as 2027-01-31T18:00:00Z; now if omitted.
        start: Option<String>,
        /// When it ends. Give this or the duration.
        end: Option<String>,
        /// How long it lasts from its start on, such as 8 h.
        duration: Option<String>,
    }

    /// A flow to start.
    NewFlow {
        /// Text of the file of the flow (TOML).
        file: String,
        /// Working directory; the home directory of the user if none.
        directory: Option<String>,
        /// Variables that each job gets.
        environment: Option<BTreeMap<String, String>>,
    }
}
