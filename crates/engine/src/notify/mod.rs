//! Notifying people: of what happens to jobs (`jobs.rs`), and by which means ([`send`]), which alerts use as well.

pub(crate) mod jobs;
pub mod send;
