//! The subcommands. Exit codes: 0 done, 2 refused or failed; fsck has codes of its own.

pub mod bench;
pub mod cluster;
pub mod compat;
pub mod demo;
pub mod disk;
pub mod doctor;
pub mod fileset;
pub mod fsck;
pub mod grid;
pub mod mkfs;
pub mod mount;
pub mod plan;
pub mod policy;
pub mod quota;
pub mod shell;
pub mod snapshot;
pub mod space;
pub mod stat;
pub mod status;
pub mod step;
pub mod store;
pub mod tasks;
pub mod top;
pub mod umount;
pub mod waiters;
pub mod web;
