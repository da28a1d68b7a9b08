//! The streams of interactive jobs, between the client at which a user sits and the shim of the job.
//!
//! The client listens on a unix socket in a folder of its own and names it in the job. The shim connects
//! with the rights of the job's user, makes sure that the same user listens, and both sides exchange
//! [`frame`]s over a [`link`]; the controller and the agent have no part in it. docs/formats/terminal.md
//! describes what goes over the wire: nothing in it depends on both being on one machine, but for how they
//! find each other: the relays of two nodes connect them (`far.rs`) where they are not.
//!
//! Memory: [`link::WINDOW`] bytes for each of three streams on each side. A stream that nobody reads stops
//! its writer, and nothing else.

pub(crate) mod far;
pub mod frame;
pub(crate) mod job;
pub mod link;
mod pty;
