//! The grid at work: the controller around an engine, the agents that run its jobs, and what they say to each
//! other and to commands.
//!
//! Rooms, in reading order; each knows only those before it:
//! - [`home`] is the folder of a grid, [`files`] its locks; [`trust`] says which folders and which processes daemons and
//!   commands listen to; [`user`] is who they act for.
//! - [`protocol`] holds every message, the socket that carries them and the client; docs/formats/grid-protocol.md
//!   describes them.
//! - [`engine`] is all that the controller asks of what decides which job runs where: the seam, and what a crash
//!   may do. `engine/local/` puts `forebay_grid::Grid` behind it.
//! - [`journal`] keeps its records, the history and the sums of what was used.
//! - [`controller`] drives them: it makes records durable in the store, then carries their effects out. It knows
//!   no socket: inputs come in by a channel, so tests drive it without processes.
//! - [`server`] puts it behind the unix socket of ROOT/grid; the kernel says who asks. It reads the settings, and looks for
//!   files that flows wait for.
//! - [`cluster`] is what controllers of several nodes share in etcd; [`relay`] makes the one that leads reachable on each
//!   node.
//! - `area` makes and removes work areas; [`cgroup`] makes control groups of jobs.
//! - [`checkpoint`] copies work areas to where another host finds them, and brings them back.
//! - `run` is what an agent and the processes of its jobs keep on disk and say to each other, and the end of a run from
//!   outside.
//! - [`terminal`] carries the streams of interactive jobs between their clients and their shims.
//! - [`shim`] is the process that holds a job: it keeps the job when the agent dies, ends it when the lease is over, and
//!   writes down how it ended.
//! - [`agent`] is one host. It gives each job to a shim; its watchdog ends the job when neither shim nor agent does.
//!
//! Only `relay` talks to other machines. All other sockets are local, and their peers are known by the kernel's word.

pub mod agent;
mod area;
pub mod causes;
pub mod cgroup;
pub mod checkpoint;
pub mod cluster;
pub mod controller;
pub mod engine;
pub mod files;
pub mod home;
pub mod inputs;
pub mod journal;
pub mod notify;
pub mod protocol;
pub mod relay;
mod run;
pub mod server;
pub mod shim;
pub mod terminal;
pub mod trust;
pub mod user;

pub use run::jobs_that_run;
