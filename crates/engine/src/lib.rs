//! The grid at work: the controller around an engine, the agents that run its jobs, and what they say to each
//! other and to commands.
//!
//! - [`engine`] is all that the controller asks of what decides which job runs where: the seam, and what a crash
//!   may do. `local/` puts `forebay_grid::Grid` behind it.
//! - [`controller`] drives it: it makes records durable in the store, then carries their effects out. It knows
//!   no socket: inputs come in by a channel, so tests drive it without processes.
//! - [`server`] puts it behind the unix socket of ROOT/grid; the kernel says who asks. [`settings`] are in a file there.
//! - [`agent`] is one host. It gives each job to a process of its own, the [`shim`], which keeps the job
//!   when the agent dies, ends it when the lease is over, and writes down how it ended. The job has a control group
//!   of its own ([`cgroup`]); the [`watchdog`] ends it when neither shim nor agent does.
//! - [`arrival`] looks for files that flows wait for, with the rights of their owners; [`flow`] is what is
//!   asked and answered about flows.
//! - [`usage`] sums up what was used.
//! - [`terminal`] carries the streams of interactive jobs between their clients and their shims.
//! - [`trust`] says which folders and which processes a grid's daemons and commands listen to.
//! - [`message`] holds every message; docs/formats/grid-protocol.md describes them.
//!
//! What it does not do: talk to other machines. The socket is local, and its peers are known by the
//! kernel's word alone.

pub mod agent;
mod area;
pub mod arrival;
mod beginning;
mod budget;
pub mod causes;
pub mod cgroup;
pub mod client;
mod connections;
pub mod controller;
pub mod engine;
mod fence;
pub mod flow;
mod history;
pub mod home;
mod input;
pub mod journal;
mod listeners;
mod load;
mod local;
mod lookups;
pub mod message;
pub mod nursery;
mod outboxes;
mod pages;
mod place;
mod progress;
mod request;
pub mod reserve;
mod runs;
mod sampler;
mod script;
pub mod server;
mod sessions;
pub mod settings;
pub mod shim;
mod snapshot;
mod socket;
mod steady;
pub mod terminal;
mod tree;
pub mod trust;
pub mod usage;
pub mod user;
mod using;
mod watch;
pub mod watchdog;
mod watcher;
