//! The slice of processor time that threads of the ring ask of the scheduler.
//!
//! Linux's scheduler (EEVDF) runs whose deadline comes first, and a deadline is as far away as the slice that was asked
//! for. A thread that needs microseconds and asks for little runs before programs that compute, and one that it wakes
//! does not take its core in the middle of a request. It gets no larger part of the processors by that, so
//! that everybody may ask (Linux 6.12; older ones ignore it).

use std::io;
use std::time::Duration;

/// Asks for slices of this length for the thread that calls; zero leaves it as it is.
pub(crate) fn ask_for(slice: Duration) {
    if slice.is_zero() {
        return;
    }
    if let Err(error) = ask(slice) {
        tracing::debug!(?slice, %error, "the scheduler does not accept slices of this length");
    }
}

fn ask(slice: Duration) -> io::Result<()> {
    let mut attributes = look()?;
    // A thread of another class, into which somebody has put the daemon, keeps what it has there.
    if !matches!(attributes.sched_policy.cast_signed(), libc::SCHED_OTHER | libc::SCHED_BATCH) {
        return Ok(());
    }
    attributes.sched_runtime = u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX);
    // SAFETY: the structure is valid and says how long it is.
    let done = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// How the thread that calls is scheduled.
fn look() -> io::Result<libc::sched_attr> {
    let length = size_of::<libc::sched_attr>();
    let mut attributes = libc::sched_attr {
        size: u32::try_from(length).map_err(io::Error::other)?,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel writes at most as many bytes as the structure has.
    let done = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, length, 0) };
    if done == 0 { Ok(attributes) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_taken_and_nothing_else_changes() {
        let on_a_thread = |slice| {
            std::thread::spawn(move || {
                let before = look().unwrap();
                ask(slice).unwrap();
                (before, look().unwrap())
            })
            .join()
            .unwrap()
        };
        let (before, after) = on_a_thread(Duration::from_micros(300));
        let same = |attributes: &libc::sched_attr| {
            (attributes.sched_policy, attributes.sched_nice, attributes.sched_flags)
        };
        assert_eq!(same(&before), same(&after));
        // Kernels before Linux 6.12 say 0 for both.
        if before.sched_runtime != 0 {
            assert_eq!(after.sched_runtime, 300_000);
        }
    }

    #[test]
    fn no_slice_changes_nothing() {
        let runtime = || look().unwrap().sched_runtime;
        let before = runtime();
        ask_for(Duration::ZERO);
        assert_eq!(runtime(), before);
    }
}
