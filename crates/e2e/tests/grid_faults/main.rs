//! The grid under faults: killed daemons and jobs, reboots, other users, bad input.

mod beginning;
mod checkpoints;
mod ends;
mod fixture;
mod frozen;
mod groups;
mod hosts;
mod refusals;
mod shims;
mod space;
mod storm;
mod supervision;
mod trust;
mod users;
mod versions;
