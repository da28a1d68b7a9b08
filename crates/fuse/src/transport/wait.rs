//! How a thread waits on its ring.
//!
//! Linux takes a thread that waits in `io_uring_enter` for one that waits for a disk: it counts as blocked
//! (`procs_blocked`), its core as waiting for I/O, and the pressure of the machine as high, although it waits for
//! nothing but a request. Since Linux 6.15 such a thread can say that it does not. Before that it waits on an event
//! that the ring signals instead, which costs up to four more system calls for a request: what a monitor shows is
//! wrong otherwise.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use io_uring::cqueue::EntryMarker as Completion;
use io_uring::squeue::EntryMarker as Submission;
use io_uring::{EnterFlags, IoUring};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// A way to wait on a ring that is not taken for waiting for a disk.
pub(crate) enum Waiting {
    /// In `io_uring_enter`, with the word that it is none.
    InRing,
    /// On an event that the ring signals.
    OnEvent(OwnedFd),
}

impl Waiting {
    /// The way to wait on `ring`: the quicker one if the kernel has it.
    ///
    /// # Errors
    /// What the system says.
    pub fn on<S: Submission, C: Completion>(ring: &IoUring<S, C>) -> io::Result<Waiting> {
        // Trying it also finds a system call filter that does not know it.
        match enter(ring, 0, 0, EnterFlags::NO_IOWAIT) {
            Ok(_) => Ok(Waiting::InRing),
            Err(_) => Waiting::on_event(ring),
        }
    }

    fn on_event<S: Submission, C: Completion>(ring: &IoUring<S, C>) -> io::Result<Waiting> {
        let event = eventfd(0, EventfdFlags::CLOEXEC)?;
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        Ok(Waiting::OnEvent(event))
    }

    /// Submits what there is and waits until a submission has completed; a signal may end the wait before.
    ///
    /// # Errors
    /// What the system says.
    pub fn submit_and_wait<S: Submission, C: Completion>(
        &self,
        ring: &mut IoUring<S, C>,
    ) -> io::Result<()> {
        let submissions = u32::try_from(ring.submission().len()).unwrap_or(u32::MAX);
        match self {
            Waiting::InRing => {
                enter(ring, submissions, 1, EnterFlags::GETEVENTS | EnterFlags::NO_IOWAIT)
            }
            Waiting::OnEvent(event) => {
                // Work for this thread is signalled as well, and done in here.
                enter(ring, submissions, 0, EnterFlags::GETEVENTS)?;
                while ring.completion().is_empty() {
                    match rustix::io::read(event, &mut [0; 8]) {
                        Ok(_) => {}
                        Err(Errno::INTR) => return Ok(()),
                        Err(error) => return Err(error.into()),
                    }
                    enter(ring, 0, 0, EnterFlags::GETEVENTS)?;
                }
                Ok(())
            }
        }
    }
}

fn enter<S: Submission, C: Completion>(
    ring: &IoUring<S, C>,
    submissions: u32,
    wait_for: u32,
    flags: EnterFlags,
) -> io::Result<()> {
    // SAFETY: whoever pushed a submission vouches for it; there is no further argument.
    let entered =
        unsafe { ring.submitter().enter::<()>(submissions, wait_for, flags.bits(), None) };
    match entered {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        entered => entered.map(drop),
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a time limit of a test needs the machine's clock")]
mod tests {
    use std::os::fd::{AsFd as _, BorrowedFd};
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    use io_uring::{cqueue, opcode, squeue, types};

    use super::*;

    /// More than wait for disks at any one time, whatever else the machine does.
    const THREADS: usize = 200;
    const LIMIT: Duration = Duration::from_secs(120);

    type Ring = IoUring<squeue::Entry, cqueue::Entry>;
    type Way = fn(&Ring) -> io::Result<Waiting>;

    /// Waits with a ring of its own for the other end of a pipe to be closed.
    fn wait_for_the_end_of(pipe: BorrowedFd<'_>, way: Way, waits: impl FnOnce()) -> io::Result<()> {
        let mut ring: Ring =
            IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(2)?;
        let waiting = way(&ring)?;
        let poll = opcode::PollAdd::new(types::Fd(pipe.as_raw_fd()), libc::POLLIN as u32).build();
        // SAFETY: the submission refers to no memory.
        unsafe { ring.submission().push(&poll) }.map_err(io::Error::other)?;
        waits();
        while ring.completion().is_empty() {
            waiting.submit_and_wait(&mut ring)?;
        }
        Ok(())
    }

    /// Processes that wait for disks, as the kernel counts them (proc_stat(5)).
    fn blocked() -> usize {
        let stat = std::fs::read_to_string("/proc/stat").unwrap();
        let line = stat.lines().find_map(|line| line.strip_prefix("procs_blocked ")).unwrap();
        line.parse().unwrap()
    }

    /// Starts many threads that wait, and looks until `found` holds of those that count as blocked.
    fn with_threads_that_wait(way: Way, found: impl Fn(usize) -> bool) -> bool {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let (reader, start) = (reader.as_fd(), Instant::now());
        // The writer goes with what is done in the scope, also by a panic: the threads end with it.
        std::thread::scope(move |scope| {
            let (say, said) = channel();
            for _ in 0..THREADS {
                let say = say.clone();
                scope.spawn(move || {
                    wait_for_the_end_of(reader, way, || say.send(()).unwrap()).unwrap();
                });
            }
            drop(say);
            (0..THREADS).for_each(|_| said.recv().unwrap());
            // The last ones are only about to wait.
            std::thread::sleep(Duration::from_millis(200));
            let mut holds = found(blocked());
            while !holds && start.elapsed() < LIMIT {
                std::thread::sleep(Duration::from_millis(20));
                holds = found(blocked());
            }
            drop(writer);
            holds
        })
    }

    #[test]
    fn threads_that_wait_for_requests_do_not_count_as_waiting_for_disks() {
        for way in [Waiting::on, Waiting::on_event] {
            assert!(with_threads_that_wait(way, |blocked| blocked < THREADS / 2));
        }
    }

    #[test]
    fn what_completed_before_the_wait_ends_it_at_once() {
        for way in [Waiting::on::<squeue::Entry, cqueue::Entry>, Waiting::on_event] {
            let mut ring: Ring =
                IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(2).unwrap();
            let waiting = way(&ring).unwrap();
            for _ in 0..100 {
                // SAFETY: the submission does nothing.
                unsafe { ring.submission().push(&opcode::Nop::new().build()) }.unwrap();
                waiting.submit_and_wait(&mut ring).unwrap();
                assert_eq!(ring.completion().count(), 1);
            }
        }
    }
}
