//! Runs a planned workload and records it.
//!
//! For every subject the inputs are made once; then each round runs the workload on every subject, the
//! order turning from round to round. Jobs are processes of their own, started through a
//! [`Launcher`]. However a run ends, no process and, unless asked, no file on the storage is left; what
//! was recorded until then is a record marked as partial. Only a run that is killed leaves its directories:
//! [`Leftover`] finds and removes them.

mod eye;
mod folders;
mod ground;
mod launcher;
mod leftover;
mod slots;
mod stage;
mod study;

pub use ground::{Areas, Ground};
pub use launcher::{Event, Launch, Launcher};
pub use leftover::{Leftover, Mark, Runner};
pub use slots::Slots;
pub use stage::{JobCounts, Listener};
pub use study::{Caches, Leftovers, Observer, Order, Progress, Scratch, run};
