//! The grid under faults: killed daemons and jobs, reboots, other users, bad input.

mod fixture;
mod storm;
