//! The signals with which an agent orders a shim about: blocked while there is no job that they could mean.

use std::mem::MaybeUninit;

use forebay_grid::event::JobSignal;
use rustix::process::Signal;
use signal_hook::consts::{
    SIGHUP, SIGINT, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGWINCH, SIGXCPU,
};

/// Signals with which the agent orders a shim about.
pub const ORDERS: [i32; 10] =
    [SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP, SIGQUIT, SIGVTALRM, SIGPROF, SIGWINCH, SIGXCPU];

/// The signal by which a shim is told to warn its job, as the job wants it.
pub const WARN: Signal = Signal::XCPU;

/// The signal by which a shim is told to send one to its job: two of them are orders themselves.
#[must_use]
pub fn relayed(signal: JobSignal) -> Signal {
    match signal {
        JobSignal::Hup => Signal::HUP,
        JobSignal::Quit => Signal::QUIT,
        JobSignal::Usr1 => Signal::VTALARM,
        JobSignal::Usr2 => Signal::PROF,
        JobSignal::Winch => Signal::WINCH,
    }
}

/// What the job gets for a signal of [`relayed`].
pub fn meant(order: i32) -> Option<Signal> {
    Some(match order {
        SIGHUP => Signal::HUP,
        SIGQUIT => Signal::QUIT,
        SIGVTALRM => Signal::USR1,
        SIGPROF => Signal::USR2,
        SIGWINCH => Signal::WINCH,
        _ => return None,
    })
}

/// The set of [`ORDERS`].
pub fn orders() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: it is filled with numbers of signals before it is taken for a set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in ORDERS {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

/// Blocks or unblocks [`ORDERS`] for this thread and those that it starts.
pub fn block_orders(how: i32) {
    let set = orders();
    // SAFETY: a set, and nobody asks for the one before.
    unsafe { libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut()) };
}
