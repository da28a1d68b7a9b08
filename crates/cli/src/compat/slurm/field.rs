//! What squeue, sacct and scontrol show of a task: each field once, under the name that sacct or `squeue -O` has for it.

use forebay_grid::parse::features::Features;
use forebay_grid::state::JobState;
use forebay_grid::vocabulary::Moment;

use super::super::row::Row;
use super::state;
use super::units::{long_span, moment, short_span, whole_seconds};

/// The names of the fields, in lower case, with their heading in squeue and in sacct and their width in sacct; a width
/// below zero is one of cells on the left.
pub const FIELDS: &[(&str, &str, &str, i32)] = &[
    ("account", "ACCOUNT", "Account", 10),
    ("alloccpus", "CPUS", "AllocCPUS", 10),
    ("allocnodes", "NODES", "AllocNodes", 10),
    ("alloctres", "TRES_ALLOC", "AllocTRES", 10),
    ("arrayjobid", "ARRAY_JOB_ID", "ArrayJobID", 12),
    ("arraytaskid", "ARRAY_TASK_ID", "ArrayTaskID", 12),
    ("avecpu", "AVE_CPU", "AveCPU", 10),
    ("avediskread", "AVE_DISK_READ", "AveDiskRead", 14),
    ("avediskwrite", "AVE_DISK_WRITE", "AveDiskWrite", 14),
    ("averss", "AVERSS", "AveRSS", 10),
    ("avevmsize", "AVE_VMSIZE", "AveVMSize", 10),
    ("batchhost", "EXEC_HOST", "BatchHost", 10),
    ("cluster", "CLUSTER", "Cluster", 10),
    ("command", "COMMAND", "Command", 20),
    ("comment", "COMMENT", "Comment", 14),
    ("constraints", "CONSTRAINTS", "Constraints", 15),
    ("consumedenergy", "CONSUMED_ENERGY", "ConsumedEnergy", 14),
    ("consumedenergyraw", "CONSUMED_ENERGY_RAW", "ConsumedEnergyRaw", 17),
    ("cputime", "CPU_TIME", "CPUTime", 10),
    ("cputimeraw", "CPU_TIME_RAW", "CPUTimeRAW", 10),
    ("dependency", "DEPENDENCY", "Dependency", 14),
    ("derivedexitcode", "DERIVED_EXIT_CODE", "DerivedExitCode", 15),
    ("elapsed", "TIME", "Elapsed", 10),
    ("elapsedraw", "ELAPSED", "ElapsedRaw", 10),
    ("eligible", "ELIGIBLE", "Eligible", 19),
    ("end", "END_TIME", "End", 19),
    ("exitcode", "EXIT_CODE", "ExitCode", 8),
    ("flags", "FLAGS", "Flags", 20),
    ("gid", "GID", "GID", 6),
    ("group", "GROUP", "Group", 9),
    ("jobid", "JOBID", "JobID", -12),
    ("jobidraw", "JOBID", "JobIDRaw", -12),
    ("jobname", "NAME", "JobName", 10),
    ("layout", "LAYOUT", "Layout", 9),
    ("maxdiskread", "MAX_DISK_READ", "MaxDiskRead", 12),
    ("maxdiskwrite", "MAX_DISK_WRITE", "MaxDiskWrite", 12),
    ("maxpages", "MAX_PAGES", "MaxPages", 8),
    ("maxrss", "MAXRSS", "MaxRSS", 10),
    ("maxrssnode", "MAX_RSS_NODE", "MaxRSSNode", 10),
    ("maxrsstask", "MAX_RSS_TASK", "MaxRSSTask", 10),
    ("maxvmsize", "MAX_VMSIZE", "MaxVMSize", 10),
    ("mincpu", "MIN_CPU", "MinCPU", 10),
    ("ncpus", "CPUS", "NCPUS", 10),
    ("nnodes", "NODES", "NNodes", 8),
    ("nodelist", "NODELIST", "NodeList", 15),
    ("ntasks", "TASKS", "NTasks", 8),
    ("partition", "PARTITION", "Partition", 10),
    ("planned", "PLANNED", "Planned", 10),
    ("plannedcpu", "PLANNED_CPU", "PlannedCPU", 10),
    ("plannedcpuraw", "PLANNED_CPU_RAW", "PlannedCPURAW", 13),
    ("priority", "PRIORITY", "Priority", 10),
    ("qos", "QOS", "QOS", 10),
    ("reason", "REASON", "Reason", 22),
    ("reqcpus", "CPUS", "ReqCPUS", 8),
    ("reqmem", "MIN_MEMORY", "ReqMem", 10),
    ("reqnodes", "NODES", "ReqNodes", 8),
    ("reqtres", "TRES", "ReqTRES", 10),
    ("reservation", "RESERVATION", "Reservation", 20),
    ("reservationid", "RESERVATION_ID", "ReservationId", 15),
    ("restarts", "RESTARTS", "Restarts", 8),
    ("start", "START_TIME", "Start", 19),
    ("state", "STATE", "State", 10),
    ("stdout", "STDOUT", "StdOut", 20),
    ("stderr", "STDERR", "StdErr", 20),
    ("submit", "SUBMIT_TIME", "Submit", 19),
    ("submitline", "SUBMIT_LINE", "SubmitLine", 20),
    ("suspended", "SUSPENDED", "Suspended", 10),
    ("systemcpu", "SYSTEM_CPU", "SystemCPU", 10),
    ("timelimit", "TIME_LIMIT", "Timelimit", 10),
    ("timelimitraw", "TIME_LIMIT_RAW", "TimelimitRaw", 10),
    ("totalcpu", "TOTAL_CPU", "TotalCPU", 10),
    ("tresusageinave", "TRES_USAGE_IN_AVE", "TRESUsageInAve", 14),
    ("tresusageinmax", "TRES_USAGE_IN_MAX", "TRESUsageInMax", 14),
    ("tresusageintot", "TRES_USAGE_IN_TOT", "TRESUsageInTot", 14),
    ("tresusageouttot", "TRES_USAGE_OUT_TOT", "TRESUsageOutTot", 15),
    ("uid", "UID", "UID", 6),
    ("user", "USER", "User", 9),
    ("usercpu", "USER_CPU", "UserCPU", 10),
    ("wckey", "WCKEY", "WCKey", 10),
    ("workdir", "WORK_DIR", "WorkDir", 20),
];

/// What another name of `squeue -O` or sacct stands for.
const ALIASES: &[(&str, &str)] = &[
    ("allocnode", "batchhost"),
    ("cpus_per_task", "reqcpus"),
    ("endtime", "end"),
    ("groupid", "group"),
    ("groupname", "group"),
    ("jobarrayid", "jobid"),
    ("maxcpus", "reqcpus"),
    ("mincpus", "reqcpus"),
    ("minmemory", "reqmem"),
    ("name", "jobname"),
    ("node", "nodelist"),
    ("numcpus", "reqcpus"),
    ("numnodes", "nnodes"),
    ("numtasks", "ntasks"),
    ("prioritylong", "priority"),
    ("reserved", "planned"),
    ("resvcpu", "plannedcpu"),
    ("resvcpuraw", "plannedcpuraw"),
    ("reasonlist", "nodelistreason"),
    ("restartcnt", "restarts"),
    ("starttime", "start"),
    ("statecompact", "statecompact"),
    ("submittime", "submit"),
    ("tres-alloc", "alloctres"),
    ("timeused", "timeused"),
    ("userid", "uid"),
    ("username", "user"),
];

/// The plain name of a field: in lower case, and without other names for it.
pub fn plain(name: &str) -> String {
    let lower = name.to_ascii_lowercase();
    let alias = ALIASES.iter().find(|(alias, _)| *alias == lower);
    alias.map_or(lower, |(_, name)| (*name).to_owned())
}

/// The id of a task as Slurm writes it: `12`, `12_3`, and `12_[0-4%2]` of elements that wait.
pub fn job_id(row: &Row) -> String {
    let job = row.target.job;
    match row.index() {
        Some(index) => format!("{job}_{index}"),
        None if row.is_several() => {
            let most = row.running_max().map(|most| format!("%{most}")).unwrap_or_default();
            format!("{job}_[{}{most}]", row.elements())
        }
        None => job.to_string(),
    }
}

/// Its name; Slurm calls a job that has none by its program.
pub fn name(row: &Row) -> String {
    let program =
        || row.view.command.first().map(|program| program.rsplit('/').next().unwrap_or(program));
    if row.view.name.is_empty() {
        program().unwrap_or_default().to_owned()
    } else {
        row.view.name.clone()
    }
}

fn memory(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "0".to_owned(), |bytes| format!("{}M", bytes >> 20))
}

/// A value of `nodelist(reason)`: where it runs or ran, else why it does not.
pub fn place(row: &Row) -> String {
    match (row.view.state, &row.view.host) {
        (JobState::Pending | JobState::Held, _) => format!("({})", state::reason(row)),
        (_, Some(host)) => host.to_string(),
        (_, None) => String::new(),
    }
}

fn host(row: &Row, without: &str) -> String {
    row.view.host.as_ref().map_or_else(|| without.to_owned(), ToString::to_string)
}

fn resources(row: &Row) -> String {
    let memory = row.asked.memory_bytes.map(|bytes| format!("mem={}M,", bytes >> 20));
    let cpus = row.view.slots;
    format!("billing={cpus},cpu={cpus},{}node=1", memory.unwrap_or_default())
}

/// Whether it was ever given to a host.
fn is_allocated(row: &Row) -> bool {
    row.view.host.is_some() && !matches!(row.view.state, JobState::Pending | JobState::Held)
}

/// Processor seconds: in user mode, in the kernel.
fn processor(row: &Row) -> (f64, f64) {
    row.view.usage.as_ref().map_or((0.0, 0.0), |usage| (usage.user_seconds, usage.system_seconds))
}

fn seconds(seconds: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "of a sum that is not negative"
    )]
    let whole = seconds.max(0.0) as u64;
    long_span(whole)
}

/// The features that its host must have, as Slurm writes them if it can.
fn constraints(row: &Row) -> String {
    let said = row.asked.features.clone().unwrap_or_default();
    said.parse::<Features>().ok().and_then(|features| features.in_slurm()).unwrap_or(said)
}

/// The uid of a user, as far as the system knows it.
fn uid(user: &str) -> String {
    let number = forebay_process::user::number_of(user).ok().flatten();
    number.map_or_else(|| user.to_owned(), |number| number.to_string())
}

/// The value of a field, by its plain name; none if there is no such field.
pub fn value(row: &Row, name: &str, now: Moment) -> Option<String> {
    let (short, long) = state::of(row);
    let ran = row.ran(now);
    let limit = whole_seconds(row.asked.time_limit_seconds);
    let of_cpu = || ran.unwrap_or(0) * u64::from(row.view.slots);
    let text = match name {
        "account" => row.asked.project.clone(),
        "alloccpus" | "ncpus" if !is_allocated(row) => "0".to_owned(),
        "alloccpus" | "ncpus" | "reqcpus" => row.view.slots.to_string(),
        "allocnodes" => u32::from(is_allocated(row)).to_string(),
        "nnodes" | "reqnodes" => "1".to_owned(),
        "alloctres" if !is_allocated(row) => String::new(),
        "alloctres" | "reqtres" => resources(row),
        "arrayjobid" => row.target.job.to_string(),
        "arraytaskid" => match row.index() {
            Some(index) => index.to_string(),
            None if row.is_several() => row.elements(),
            None => "N/A".to_owned(),
        },
        "batchhost" => host(row, "n/a"),
        "nodelist" => host(row, ""),
        "nodelistreason" => place(row),
        "cluster" => super::CLUSTER.to_owned(),
        "command" | "submitline" => row.view.command.join(" "),
        "comment" => row.asked.dialect.as_ref().map(|of| of.comment.clone()).unwrap_or_default(),
        "cputime" => long_span(of_cpu()),
        "cputimeraw" => of_cpu().to_string(),
        "constraints" => constraints(row),
        "dependency" => row.asked.depends.clone().unwrap_or_default(),
        "exitcode" | "derivedexitcode" => state::exit_code(row.view.exit.as_ref()),
        "elapsed" => long_span(ran.unwrap_or(0)),
        "elapsedraw" => ran.unwrap_or(0).to_string(),
        "timeused" => short_span(ran.unwrap_or(0)),
        "timeleft" => match limit {
            Some(limit) => short_span(limit.saturating_sub(ran.unwrap_or(0))),
            None => "UNLIMITED".to_owned(),
        },
        "submit" => moment(Some(row.view.submitted), "Unknown"),
        "eligible" => {
            moment(Some(row.view.submitted.max(row.asked.begin.unwrap_or_default())), "Unknown")
        }
        "start" => moment(row.view.started, "Unknown"),
        "end" => moment(row.view.ended, "Unknown"),
        "jobid" => job_id(row),
        "jobidraw" => row.number().to_string(),
        "jobname" => self::name(row),
        "averss" | "maxrss" => {
            match row.view.usage.as_ref().and_then(|usage| usage.peak_memory_bytes) {
                Some(bytes) => format!("{}K", bytes >> 10),
                None => String::new(),
            }
        }
        "ntasks" => "1".to_owned(),
        "partition" => row.view.queue.to_string(),
        "priority" => row.asked.priority.to_string(),
        "qos" => row.asked.profile.clone().unwrap_or_else(|| "normal".to_owned()),
        "reason" => state::reason(row).to_owned(),
        "reqmem" => memory(row.asked.memory_bytes),
        "restarts" => row.view.attempts.saturating_sub(1).to_string(),
        "state" => long.to_owned(),
        "statecompact" => short.to_owned(),
        "stdout" => row.view.output.clone(),
        "stderr" => row.view.error.clone().unwrap_or_else(|| row.view.output.clone()),
        "suspended" => long_span(0),
        "systemcpu" => seconds(processor(row).1),
        "usercpu" => seconds(processor(row).0),
        "totalcpu" => seconds(processor(row).0 + processor(row).1),
        "timelimit" => limit.map_or_else(|| "UNLIMITED".to_owned(), long_span),
        "timelimitraw" => limit.map_or_else(String::new, |limit| limit.div_ceil(60).to_string()),
        "uid" => uid(row.view.user.as_str()),
        "user" => row.view.user.to_string(),
        "workdir" => row.asked.directory.clone(),
        _ => return measured(row, name, now),
    };
    Some(text)
}

/// The value of a field that few ask for: what was measured, and what no job here has.
fn measured(row: &Row, name: &str, now: Moment) -> Option<String> {
    let usage = row.view.usage.as_ref();
    let waited =
        row.view.started.or(row.view.ended).unwrap_or(now).since(row.view.submitted) / 1000;
    let waited_cpu = waited * u64::from(row.view.slots);
    Some(match name {
        "avecpu" | "mincpu" => usage.map(|usage| seconds(usage.cpu_seconds())).unwrap_or_default(),
        "maxpages" => usage.map(|usage| usage.major_faults.to_string()).unwrap_or_default(),
        "avediskread" | "maxdiskread" => {
            usage.and_then(|usage| usage.read_bytes).map(megabytes).unwrap_or_default()
        }
        "avediskwrite" | "maxdiskwrite" => {
            usage.and_then(|usage| usage.written_bytes).map(megabytes).unwrap_or_default()
        }
        "maxrssnode" if usage.is_some() => host(row, ""),
        "maxrsstask" if usage.is_some() => "0".to_owned(),
        "planned" => long_span(waited),
        "plannedcpu" => long_span(waited_cpu),
        "plannedcpuraw" => waited_cpu.to_string(),
        "reservation" => row.asked.reservation.clone().unwrap_or_default(),
        "avevmsize" | "consumedenergy" | "consumedenergyraw" | "flags" | "gid" | "group"
        | "layout" | "maxrssnode" | "maxrsstask" | "maxvmsize" | "reservationid"
        | "tresusageinave" | "tresusageinmax" | "tresusageintot" | "tresusageouttot" | "wckey" => {
            String::new()
        }
        _ => return None,
    })
}

/// Bytes of I/O as Slurm writes them.
pub fn megabytes(bytes: u64) -> String {
    let hundredths = bytes.saturating_mul(100) >> 20;
    format!("{}.{:02}M", hundredths / 100, hundredths % 100)
}
