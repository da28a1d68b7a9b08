//! States of jobs and hosts in Slurm's words.

use forebay_engine::protocol::{HostState, HostView};
use forebay_grid::grid::Reason;
use forebay_grid::journal::HostSwitch;
use forebay_grid::spec::Exit;
use forebay_grid::state::JobState;

use super::super::row::Row;

/// The words of a state: two letters, and the whole.
pub type Words = (&'static str, &'static str);

/// What Slurm calls the state of a task.
pub fn words(state: JobState, exit: Option<&Exit>) -> Words {
    match (state, exit) {
        (JobState::Pending | JobState::Held, _) => ("PD", "PENDING"),
        // sacct of Slurm never says CONFIGURING, and submitit takes it for an end. An unknown one may run where nobody can
        // look.
        (JobState::Starting | JobState::Running | JobState::Unknown, _) => ("R", "RUNNING"),
        (JobState::Suspended, _) => ("S", "SUSPENDED"),
        (JobState::Done, _) => ("CD", "COMPLETED"),
        (JobState::Exited, Some(Exit::MemoryLimit(_))) => ("OOM", "OUT_OF_MEMORY"),
        (
            JobState::Exited,
            Some(Exit::Code(_) | Exit::Signal(_) | Exit::NotStarted(_) | Exit::ProcessLimit { .. })
            | None,
        )
        | (JobState::AttemptsMax | JobState::AreaLimit, _) => ("F", "FAILED"),
        (JobState::Killed | JobState::DependencyNever | JobState::Skipped, _) => {
            ("CA", "CANCELLED")
        }
        (JobState::TimeLimit, _) => ("TO", "TIMEOUT"),
        (JobState::Deadline, _) => ("DL", "DEADLINE"),
        (JobState::HostLost, _) => ("NF", "NODE_FAIL"),
    }
}

/// What Slurm calls the state of a row.
pub fn of(row: &Row) -> Words {
    words(row.view.state, row.view.exit.as_ref())
}

/// In which order squeue lists states: as Slurm counts them.
pub fn order(state: JobState) -> u8 {
    match state {
        JobState::Pending | JobState::Held => 0,
        JobState::Starting | JobState::Running | JobState::Unknown => 1,
        JobState::Suspended => 2,
        _ => 3,
    }
}

/// Whether a state is called so: by its letters or its whole word, in any case.
pub fn is_called((short, long): Words, name: &str) -> bool {
    name.eq_ignore_ascii_case(short) || name.eq_ignore_ascii_case(long)
}

/// Every state that Slurm has, so that a misspelt one is refused and one that never occurs here is not.
const KNOWN: &[Words] = &[
    ("PD", "PENDING"),
    ("R", "RUNNING"),
    ("S", "SUSPENDED"),
    ("CF", "CONFIGURING"),
    ("CG", "COMPLETING"),
    ("CD", "COMPLETED"),
    ("CA", "CANCELLED"),
    ("F", "FAILED"),
    ("TO", "TIMEOUT"),
    ("PR", "PREEMPTED"),
    ("NF", "NODE_FAIL"),
    ("BF", "BOOT_FAIL"),
    ("DL", "DEADLINE"),
    ("OOM", "OUT_OF_MEMORY"),
    ("RF", "REQUEUE_FED"),
    ("RH", "REQUEUE_HOLD"),
    ("RQ", "REQUEUED"),
    ("RS", "RESIZING"),
    ("RV", "REVOKED"),
    ("SE", "SPECIAL_EXIT"),
    ("SI", "SIGNALING"),
    ("SO", "STAGE_OUT"),
    ("ST", "STOPPED"),
];

/// Whether Slurm has a state of this name.
pub fn is_known(name: &str) -> bool {
    KNOWN.iter().any(|words| is_called(*words, name))
}

/// The exit value and the signal, as sacct has them.
pub fn exit_code(exit: Option<&Exit>) -> String {
    let (value, signal) = match exit {
        Some(Exit::Code(value) | Exit::ProcessLimit { value, .. }) => (*value, 0),
        Some(Exit::Signal(signal)) => (0, *signal),
        Some(Exit::NotStarted(_)) => (127, 0),
        Some(Exit::MemoryLimit(_)) => (0, 9),
        None => (0, 0),
    };
    format!("{value}:{signal}")
}

/// Why a task waits, in one word.
fn wait(reason: &Reason) -> &'static str {
    match reason {
        Reason::Held => "JobHeldUser",
        Reason::Dependency(_) => "Dependency",
        Reason::DependencyNever(_) => "DependencyNeverSatisfied",
        Reason::Begin { .. } | Reason::Pause { .. } => "BeginTime",
        Reason::Resource { .. } | Reason::ResourceKept { .. } => "Licenses",
        Reason::Throttle { .. } => "JobArrayTaskLimit",
        Reason::GroupFull { .. } => "AssocGrpJobsLimit",
        Reason::QueueGone(_)
        | Reason::QueueInactive
        | Reason::DispatchWindow
        | Reason::RunWindow => "PartitionDown",
        Reason::QueueSlots { .. } => "QOSGrpCpuLimit",
        Reason::UserSlotsInQueue { .. } => "QOSMaxCpuPerUserLimit",
        Reason::UserSlots { .. } => "AssocGrpCpuLimit",
        Reason::ReservationGone(_) => "ReservationDeleted",
        Reason::ReservationOfOthers(_) | Reason::ReservationStarts { .. } => "Reservation",
        Reason::NoHostSuits => "BadConstraints",
        Reason::NoHostFits
        | Reason::Reserved { .. }
        | Reason::Passed { .. }
        | Reason::NextRound { .. }
        | Reason::StoppedByUser
        | Reason::StoppedByWindow
        | Reason::StoppedByLoad
        | Reason::StoppedByArea
        | Reason::Area { .. }
        | Reason::Limits { .. }
        | Reason::Warning { .. }
        | Reason::Slurm(_)
        | Reason::Preempted { .. }
        | Reason::Requeued { .. }
        | Reason::Preempts { .. }
        | Reason::Awaits { .. } => "Resources",
    }
}

/// Why a task waits or how it failed, in one word.
pub fn reason(row: &Row) -> &'static str {
    match (row.view.state, &row.view.exit) {
        (JobState::Held, _) => "JobHeldUser",
        (JobState::Pending, _) => row.asked.waits.as_ref().map_or("Resources", wait),
        (JobState::DependencyNever, _) => "DependencyNeverSatisfied",
        (JobState::TimeLimit, _) => "TimeLimit",
        (JobState::Deadline, _) => "DeadLine",
        (JobState::HostLost, _) => "NodeDown",
        (JobState::AttemptsMax, _) => "JobHoldMaxRequeue",
        (JobState::Exited, Some(Exit::NotStarted(_))) => "JobLaunchFailure",
        (JobState::Exited, Some(Exit::MemoryLimit(_))) => "OutOfMemory",
        (JobState::Exited, Some(Exit::Signal(_))) => "RaisedSignal",
        (JobState::Exited, Some(Exit::Code(_) | Exit::ProcessLimit { .. }) | None) => {
            "NonZeroExitCode"
        }
        (
            JobState::Starting
            | JobState::Running
            | JobState::Suspended
            | JobState::Unknown
            | JobState::Done
            | JobState::Killed
            | JobState::Skipped
            | JobState::AreaLimit,
            _,
        ) => "None",
    }
}

/// Why no job starts on a host, if none does.
pub fn reason_of_host(host: &HostView) -> Option<&'static str> {
    match (host.state, host.switch) {
        (HostState::Unreachable | HostState::Gone, _) => Some("Not responding"),
        (HostState::Up, HostSwitch::Open) => None,
        (HostState::Up, HostSwitch::Closed | HostSwitch::Removed) => Some("Closed"),
    }
}

/// What Slurm calls the state of a host: in short, and whole.
pub fn of_host(host: &HostView) -> Words {
    let is_closed = host.switch != HostSwitch::Open;
    match (host.state, is_closed, host.used_slots) {
        (HostState::Gone | HostState::Unreachable, ..) => ("down*", "down*"),
        (HostState::Up, true, 0) => ("drain", "drained"),
        (HostState::Up, true, _) => ("drng", "draining"),
        (HostState::Up, false, 0) => ("idle", "idle"),
        (HostState::Up, false, used) if used >= host.slots => ("alloc", "allocated"),
        (HostState::Up, false, _) => ("mix", "mixed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_of_a_task_is_one_of_slurm() {
        for state in JobState::ALL {
            for exit in [None, Some(Exit::Code(1)), Some(Exit::MemoryLimit(1))] {
                let (short, long) = words(state, exit.as_ref());
                assert!(KNOWN.contains(&(short, long)), "{state}: {short} {long}");
            }
        }
        assert!(is_known("pd") && is_known("Completed") && !is_known("RUNING"));
    }

    #[test]
    fn exits_are_a_value_and_a_signal() {
        for (exit, text) in [
            (None, "0:0"),
            (Some(Exit::Code(3)), "3:0"),
            (Some(Exit::Signal(15)), "0:15"),
            (Some(Exit::MemoryLimit(1)), "0:9"),
        ] {
            assert_eq!(exit_code(exit.as_ref()), text);
        }
    }
}
