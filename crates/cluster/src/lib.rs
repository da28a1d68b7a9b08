//! The protocol of many machines, as state machines without I/O: `step(event, now)` returns effects.
//!
//! Nothing here does I/O, asks a clock, starts a thread or draws a random number. Times are readings of the node's own
//! clock ([`time::Moment`]); what travels between nodes are durations.
//!
//! Reading order: [`time`], [`settings`], [`membership`] (may this node answer?), [`ownership`] (which node owns which fileset),
//! [`node`] (both together), [`session`] (calls that are carried out once), [`grants`] (what clients may cache).
//!
//! # What holds
//! - At most one node answers for a fileset at a time, and commits of a node that was superseded fail.
//! - A grant does not outlive its recall, the word of its owner, or the owner's lease.
//! - A call is carried out once or not at all, and not after its caller was told that it failed.
//!
//! The simulation (`simulation/`, tests only) runs all of it with up to 16 nodes under faults and checks this after each step.

mod fault;
pub mod grants;
pub mod membership;
pub mod node;
pub mod ownership;
pub mod session;
pub mod settings;
#[cfg(test)]
mod simulation;
pub mod time;

pub use node::Node;
pub use settings::Settings;
pub use time::Moment;
