//! The grid.

pub mod account;
pub mod config;
pub mod depend;
pub mod event;
mod fairshare;
pub mod grid;
pub mod hosts;
mod index;
pub mod journal;
mod ledger;
pub mod parse;
mod ready;
pub mod spans;
pub mod spec;
pub mod task;
pub mod vocabulary;

pub use event::{Effect, Event, Outcome};
pub use grid::Grid;
pub use ledger::{Job, Ledger};
