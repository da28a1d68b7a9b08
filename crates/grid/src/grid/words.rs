//! What is said to people of jobs that wait or run, in words.

use std::fmt;

use forebay_base::ByteSize;

use crate::config::{AreaExceeded, Exceeded};
use crate::grid::explain::{HostObstacle, Placement, Reason};
use crate::task::Why;
use crate::vocabulary::{Moment, TaskId};

/// A moment for people, in UTC.
fn utc(at: Moment) -> String {
    let time = i64::try_from(at.0 / 1000).ok().and_then(|s| jiff::Timestamp::from_second(s).ok());
    time.map_or_else(|| "the end of time".to_owned(), |time| time.to_string())
}

/// Tasks for people: the first of them, and how many there are besides.
fn listed(tasks: &[TaskId]) -> String {
    const SHOWN_MAX: usize = 10;
    let mut shown: Vec<String> = tasks.iter().take(SHOWN_MAX).map(TaskId::to_string).collect();
    if tasks.len() > SHOWN_MAX {
        shown.push(format!("{} more", tasks.len() - SHOWN_MAX));
    }
    let plural = if tasks.len() == 1 { "job" } else { "jobs" };
    format!("{plural} {}", shown.join(", "))
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Held => f.write_str("it is held; forebay release lets it start"),
            Reason::Dependency(parts) => write!(f, "it waits for {}", parts.join(", ")),
            Reason::DependencyNever(parts) => {
                write!(f, "it can never start: {}", parts.join(", "))
            }
            Reason::Begin { at } => write!(f, "it may not begin before {}", utc(*at)),
            Reason::Pause { at, failures } => write!(
                f,
                "the service ended {failures} times in a row; it starts again at {}, or at once after forebay service restart",
                utc(*at)
            ),
            Reason::Resource { .. }
            | Reason::ResourceKept { .. }
            | Reason::Throttle { .. }
            | Reason::GroupFull { .. }
            | Reason::QueueGone(_)
            | Reason::QueueInactive
            | Reason::DispatchWindow
            | Reason::RunWindow
            | Reason::QueueSlots { .. }
            | Reason::UserSlotsInQueue { .. }
            | Reason::UserSlots { .. } => self.fmt_limit(f),
            Reason::NoHostSuits
            | Reason::NoHostFits
            | Reason::NextRound { .. }
            | Reason::Reserved { .. }
            | Reason::Passed { .. }
            | Reason::Awaits { .. }
            | Reason::ReservationGone(_)
            | Reason::ReservationOfOthers(_)
            | Reason::ReservationStarts { .. } => self.fmt_place(f),
            Reason::StoppedByUser
            | Reason::StoppedByWindow
            | Reason::StoppedByLoad
            | Reason::StoppedByArea
            | Reason::Area { .. }
            | Reason::Limits { .. }
            | Reason::Preempted { .. }
            | Reason::Requeued { .. }
            | Reason::Preempts { .. }
            | Reason::Warning { .. }
            | Reason::Slurm(_) => self.fmt_start(f),
        }
    }
}

impl Reason {
    /// What limits and switches keep a job from starting.
    fn fmt_limit(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Resource { name, needed, used, most } => {
                write!(f, "it needs {needed} of {name}, and jobs use {used} of {most} on the grid")
            }
            Reason::ResourceKept { name, job } => {
                write!(f, "what is free of {name} is kept for job {job}, which needs more of it")
            }
            Reason::Throttle { active } => {
                write!(f, "{active} elements of the array are running, the limit of the array")
            }
            Reason::GroupFull { group, used, most } => {
                write!(f, "job group {group} has {used} of at most {most} tasks on hosts")
            }
            Reason::QueueGone(name) => write!(f, "queue {name} is no longer in the settings"),
            Reason::QueueInactive => f.write_str("the queue is inactive"),
            Reason::DispatchWindow => f.write_str("the dispatch window of the queue is closed"),
            Reason::RunWindow => f.write_str("the run window of the queue is closed"),
            Reason::QueueSlots { used, most } => {
                write!(f, "the queue uses {used} of at most {most} slots")
            }
            Reason::UserSlotsInQueue { used, most } => {
                write!(f, "the user uses {used} of at most {most} slots in this queue")
            }
            Reason::UserSlots { used, most } => {
                write!(f, "the user uses {used} of at most {most} slots on the grid")
            }
            _ => Ok(()),
        }
    }

    /// Why there is no place for a job, and when there will be one.
    fn fmt_place(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NoHostSuits => {
                f.write_str("no host can ever take it, with the current hosts and settings")
            }
            Reason::NoHostFits => f.write_str("no host can take it now"),
            Reason::NextRound { .. } => {
                f.write_str("jobs are started at intervals; it waits for the next one")
            }
            Reason::Reserved { host, slots, within: Some(within) } => write!(
                f,
                "{slots} slots on {host} are reserved for it and will be free in {within} at the latest"
            ),
            Reason::Reserved { host, slots, within: None } => {
                write!(f, "{slots} slots on {host} are reserved for it as soon as they become free")
            }
            Reason::Passed { left } => {
                write!(f, "jobs that fit may start before it for another {left} (reserve_after)")
            }
            Reason::Awaits { tasks } => {
                write!(f, "it preempts {}: it starts when they have ended", listed(tasks))
            }
            Reason::ReservationGone(name) => write!(
                f,
                "there is no reservation {name} any more; forebay modify --reservation none lets it start without one"
            ),
            Reason::ReservationOfOthers(name) => {
                write!(f, "reservation {name} is not for its user")
            }
            Reason::ReservationStarts { name, at } => {
                write!(f, "reservation {name} begins at {}", utc(*at))
            }
            _ => Ok(()),
        }
    }

    /// What is to be said of a job that was started.
    fn fmt_start(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::StoppedByUser => {
                f.write_str("it is suspended; forebay release lets it continue")
            }
            Reason::StoppedByWindow => {
                f.write_str("it is suspended: the run window of the queue is closed")
            }
            Reason::StoppedByLoad => {
                f.write_str("it is suspended: its host is loaded beyond a stop value")
            }
            Reason::StoppedByArea => f.write_str(
                "it is suspended: its work areas held more than area_limit of the queue; it continues when the next \
                 measurement shows less",
            ),
            Reason::Area { bytes, limit, exceeded } => {
                let (bytes, limit) = (ByteSize(*bytes), ByteSize(*limit));
                let then = match exceeded {
                    AreaExceeded::Warn => "",
                    AreaExceeded::Hold => {
                        ": it is suspended until they hold less; remove files, or kill it"
                    }
                    AreaExceeded::End => ": it is being killed",
                };
                write!(f, "its work areas hold {bytes}, more than the {limit} of area_limit{then}")
            }
            Reason::Limits { processors, processes } => {
                let processors = processors.map(|most| format!("{most} processors"));
                let processes = processes.map(|most| format!("{most} processes and threads"));
                let all: Vec<String> = processors.into_iter().chain(processes).collect();
                write!(f, "the settings limit it to {}", all.join(" and "))
            }
            Reason::Preempted { by } => write!(
                f,
                "it is suspended: job {by} of a queue that preempts its queue has its slots; it continues when they are free"
            ),
            Reason::Requeued { by } => write!(
                f,
                "it is being ended and will start again: job {by} of a queue that preempts its queue gets its slots"
            ),
            Reason::Preempts { tasks } => {
                write!(f, "it preempts {}, suspended until it ends", listed(tasks))
            }
            Reason::Warning { warning, sent: true, .. } => {
                write!(f, "it was warned that its end is near ({warning})")
            }
            Reason::Warning { warning, at: Some(at), .. } => {
                write!(f, "it is warned at {} that its end is near ({warning})", utc(*at))
            }
            Reason::Warning { warning, at: None, .. } => write!(
                f,
                "it is not warned ({warning}): it is suspended, or neither a time limit nor a deadline ends it"
            ),
            Reason::Slurm(said) => f.write_str(said),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for HostObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostObstacle::Gone => f.write_str("has not joined, or was lost"),
            HostObstacle::Away => f.write_str("is unreachable"),
            HostObstacle::Silent => f.write_str("has not reported for a while"),
            HostObstacle::Unlisted => f.write_str("is not listed in the settings"),
            HostObstacle::Control => f.write_str("runs no jobs (role = \"control\")"),
            HostObstacle::Closed => f.write_str("is closed"),
            HostObstacle::NoAgent => f.write_str(
                "runs jobs through Slurm, which neither connects terminals nor watches services",
            ),
            HostObstacle::NoFeature => f.write_str("does not have the features that the job needs"),
            HostObstacle::NoConstraint => f.write_str(
                "runs jobs through Slurm, which cannot be told the features that the job needs",
            ),
            HostObstacle::NotInQueue => f.write_str("is not used by the queue"),
            HostObstacle::NotInJob => f.write_str("is not in the job's host list"),
            HostObstacle::Excluded => f.write_str("is excluded by an earlier exit code of the job"),
            HostObstacle::TooSmall { slots } => write!(f, "has only {slots} slots"),
            HostObstacle::Slots { free } => write!(f, "has {free} free slots"),
            HostObstacle::QueueSlots { used, most } => {
                write!(f, "the queue uses {used} of at most {most} of its slots")
            }
            HostObstacle::MemoryTooSmall { bytes } => {
                write!(f, "has only {} of memory", ByteSize(*bytes))
            }
            HostObstacle::Memory { free } => {
                write!(f, "has only {} of free memory", ByteSize(*free))
            }
            HostObstacle::ResourceTooSmall { total } => write!(f, "has only {total} of it"),
            HostObstacle::Resource { free } => write!(f, "has only {free} of it free"),
            HostObstacle::Busy { jobs } => {
                write!(f, "runs {jobs} other jobs, and this one wants the host for itself")
            }
            HostObstacle::Exclusive { job } => write!(f, "is exclusive to job {job}"),
            HostObstacle::NoLoad => f.write_str("has not reported its load yet"),
            HostObstacle::Load(Exceeded { index, value, limit }) => {
                write!(f, "{} is {value}, beyond its threshold {limit}", index.name())
            }
            HostObstacle::Reserved { job } => write!(f, "is reserved for job {job}"),
            HostObstacle::NotInReservation => f.write_str("is not in the reservation of the job"),
            HostObstacle::ReservationSlots { used, most } => {
                write!(f, "the reservation of the job uses {used} of its {most} slots there")
            }
            HostObstacle::SetAside { from, until } => {
                write!(f, "is reserved from {} to {}", utc(*from), utc(*until))
            }
            HostObstacle::Rests { .. } => f.write_str("a job was started there just now"),
            HostObstacle::Unable { .. } => {
                f.write_str("could not start a job, and is not used for a while")
            }
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Why { allowed, fitting, preference, load_milli, near, second } = self.why;
        let load = |milli: u32| f64::from(milli) / 1000.0;
        write!(f, "{}: {fitting} of {allowed} allowed hosts could take it", self.host)?;
        if near > 0 {
            let plural = if near == 1 { "input that is" } else { "inputs that are" };
            write!(f, "; it is the home of {near} {plural} named with --input")?;
        }
        let (Some(second), Some(name)) = (second, &self.second) else { return Ok(()) };
        if second.preference >= preference && near > 0 {
            return Ok(());
        }
        if second.preference < preference {
            write!(f, "; preferred ({preference}) to {name} ({})", second.preference)
        } else {
            let (here, there) = (load(load_milli), load(second.load_milli));
            write!(f, "; least loaded ({here} per slot, {name} {there})")
        }
    }
}
