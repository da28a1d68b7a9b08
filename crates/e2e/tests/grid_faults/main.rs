//! The grid under faults: killed daemons and jobs, reboots, other users, bad input.

mod beginning;
mod ends;
mod fixture;
mod hosts;
mod refusals;
mod shims;
mod storm;
mod users;
