//! Processes of this machine: starting, finding, ending and accounting for them, and what /proc says beside that.
//!
//! - [`child`] starts a process, waits for its end and says what it used; [`accounting`] is where the figures come from.
//! - [`stat`], [`descendants`], [`session`] and [`family`] find processes and what they belong to.
//! - [`last_resort`] ends processes that stand still.
//! - [`mounts`] is the mount table, [`disks`] says which lines of `/proc/diskstats` count, [`memory`] is that of one process, [`machine`] names this run of
//!   this machine, [`user`] asks the user database.
//! - [`network`] makes several hosts of this machine, for demonstrations and tests.
//!
//! Files of `/proc` are taken apart by the crate `procfs-core` where it can. What is read here by hand, and why:
//! `/proc/PID/io` and `/proc/PID/task` of running jobs, from descriptors that stay open, many times a second
//! ([`accounting::Counters`], [`family`]); `mountinfo`, whose escapes and names that are not UTF-8 that crate does not know
//! ([`mounts`]).
//!
//! What it does not do: decide what runs. It knows no job, no host and no study.

pub mod accounting;
pub mod child;
pub mod descendants;
pub mod descriptors;
pub mod disks;
mod error;
pub mod family;
pub mod job;
pub mod last_resort;
pub mod machine;
pub mod memory;
pub mod mounts;
pub mod network;
pub mod session;
pub mod small;
pub mod stat;
pub mod user;

pub use accounting::{Accounting, io_wait_source};
pub use child::{Child, Ended, end_all, wait_any};
pub use error::{Error, Result};
