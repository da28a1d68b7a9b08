//! The signals with which an agent orders a shim about: blocked while there is no job that they could mean.

use std::mem::MaybeUninit;

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

/// Signals with which the agent orders a shim about.
pub const ORDERS: [i32; 4] = [SIGTERM, SIGINT, SIGUSR1, SIGUSR2];

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
