//! How long a process waited for a processor: `/proc/PID/schedstat`.
//!
//! Every kernel that keeps the times of tasks (`CONFIG_SCHED_INFO`) has it for everybody, without delay
//! accounting, also of a process that has ended and was not reaped. It is about the main thread, so it stands
//! for the process only if that did nearly all of its work ([`Schedule::of_process`]), and is not asked of one
//! that waited for children.
//! Documentation/scheduler/sched-stats.rst describes the file.

use rustix::process::Pid;

/// Part of the processor time of a process that its main thread must have for its waiting to stand for all.
const NEARLY_ALL: f64 = 0.9;
/// Below so many seconds of processor time the kernel's clocks differ too much to compare them.
const LITTLE_SECONDS: f64 = 0.02;

/// What the scheduler counted of one thread, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Schedule {
    /// On a processor.
    ran_seconds: f64,
    /// Ready to run, and waiting for a processor.
    waited_seconds: f64,
}

impl Schedule {
    /// Of the main thread of a process that was not reaped; `None` if the kernel does not count.
    pub fn of(pid: Pid) -> Option<Schedule> {
        let path = format!("/proc/{}/schedstat", pid.as_raw_nonzero());
        Schedule::parse(&crate::small::text(path).ok()?)
    }

    fn parse(text: &str) -> Option<Schedule> {
        let mut numbers = text.split_ascii_whitespace().map(str::parse::<u64>);
        let mut next = || numbers.next()?.ok();
        let (ran, waited, times) = (next()?, next()?, next()?);
        // A thread that was never on a processor does not exist: the kernel does not count.
        (times > 0).then_some(Schedule {
            ran_seconds: ran as f64 / 1e9,
            waited_seconds: waited as f64 / 1e9,
        })
    }

    /// How long the process waited, which used `processor_seconds` with all its threads; `None` if others
    /// than the main one did a part of the work.
    pub fn of_process(self, processor_seconds: f64) -> Option<f64> {
        let all = self.ran_seconds >= processor_seconds * NEARLY_ALL;
        (all || processor_seconds < LITTLE_SECONDS).then_some(self.waited_seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_stands_for_a_process_only_if_its_main_thread_did_the_work() {
        let schedule = Schedule::parse("2000000000 500000000 7\n").unwrap();
        assert_eq!(schedule.of_process(2.1), Some(0.5));
        assert_eq!(schedule.of_process(4.0), None);
        assert_eq!(Schedule::parse("0 0 0\n"), None);
        assert_eq!(Schedule::parse("12 x"), None);
    }
}
