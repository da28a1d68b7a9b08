//! The grid's decisions: which job runs where and when, and what becomes of it.
//!
//! One state machine, [`Grid`]: [`Event`]s go in with the time, an [`Outcome`] of journal records and
//! [`Effect`]s comes out. Nothing here does I/O, asks a clock, starts a thread or draws a random number.
//!
//! # Driving it
//! A controller owns one `Grid` and a journal in the store.
//! 1. At start: read the latest snapshot (the pieces of a [`Ledger`], or its default) and the records after it, and call
//!    [`Grid::restore`]. Then apply [`Event::Configured`] with the settings of the file.
//! 2. For each command, message of an agent or timer: [`Grid::apply`]. Several events may be applied to
//!    one [`Outcome`].
//! 3. Make the records durable, all together. Only then carry the effects out, in order: answers to
//!    users, messages to agents, entries of the history. An answer belongs to the event that is applied:
//!    a command gives exactly one `Accepted`, `Obeyed` or `Rejected`.
//! 4. Apply [`Event::Tick`] at [`Grid::next_wake`] at the latest.
//! 5. Now and then write the pieces of [`Grid::ledger`] that changed ([`snapshot`]) in place of the records so far.
//!
//! If the process dies between 3 and the end of the effects, messages to agents are lost: when an agent
//! joins it is told again what matters, from the difference between what it runs and what the ledger says.
//!
//! # What an agent promises
//! - It begins each connection with [`Event::HostJoined`] and reports everything that it was told to
//!   start and of whose end it has not been told that it was taken note of (the effects of `Exited` were
//!   carried out). It obeys messages of its latest connection only. It remembers across its own restarts,
//!   or says [`event::Memory::Lost`].
//! - It sends [`Event::HostLoad`] several times within a lease. Each is answered by a grant, which counts
//!   from when the message was sent. Once a lease is over it ends all its jobs by force and starts nothing
//!   until the next grant.
//! - It launches an attempt at most once, and answers [`Effect::Kill`] of what it does not have with
//!   nothing.
//!
//! # What holds
//! - A task is on one host at most. It starts elsewhere only after it ended, after its agent came back
//!   without it, or after the lease of its host was over and `host_timeout` had passed.
//! - A submission that is repeated with its key is answered with the job that it made, and makes no other, as long as
//!   the key is known (an hour, the latest 4096 of each user).
//! - What was accepted is known until it has ended and is forgotten for its age or number; the journal
//!   alone gives the same [`Ledger`].
//! - No slot, memory or limit is given out twice; nothing is started outside windows, before its
//!   dependency holds, or over a throttle. Limits that are lowered hold for what starts from then on.
//! - Nothing that could start waits, unless jobs start at intervals or a host is reserved for a job before it. No job
//!   delays the start of one that a host is reserved for. Whatever waits has a reason
//!   ([`Grid::explain`]), which comes from the checks of dispatch itself.
//! - A stale message (another attempt, another host) changes nothing.
//!
//! # What it does not do
//! It places all slots of a job on one host. It preempts nothing but jobs of queues that the queue of a job says it
//! preempts: any other job for which a host is reserved waits for those that run there.
//!
//! # Memory and time
//! A job is its specification and a few hundred bytes, a waiting task of an array 24 bytes; see
//! `examples/rates.rs` (about 1 KiB for each waiting single job). No event looks at all jobs. A dispatch round costs `O(users + (started + shapes) *
//! hosts)`, where jobs with the same slots, memory, host list, time limit and excluded hosts are of one shape. While
//! jobs pass others that do not fit, each of up to `reserved_jobs_max` such jobs adds `O(hosts + running jobs)`.
//!
//! Reading order: [`vocabulary`], [`parse`], [`spec`], [`config`], [`task`] (states), [`journal`],
//! `ledger` (what lasts), `index` and `ready` (what follows from it), [`grid`] (events), [`flow`] (jobs that
//! belong together).

pub mod account;
pub mod advance;
pub mod config;
pub mod depend;
pub mod dialect;
pub mod environment;
pub mod event;
mod fairshare;
mod finished;
pub mod flow;
mod footprint;
pub mod grid;
pub mod group;
pub mod hosts;
mod index;
pub mod journal;
mod keys;
mod ledger;
pub mod modify;
mod names;
pub mod notify;
mod open;
mod output;
mod pairs;
pub mod parse;
mod ready;
mod reserve;
pub mod service;
pub mod slurm;
pub mod snapshot;
pub mod spans;
pub mod sparse;
pub mod spec;
pub mod state;
pub mod task;
mod times;
pub mod vocabulary;
mod waits;
pub mod warning;
pub mod wrap;

pub use event::{Effect, Event, Outcome};
pub use grid::Grid;
pub use ledger::{Job, Ledger};
