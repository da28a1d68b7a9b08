//! `forebay bench` and `forebay step`: what they do, what they record of it, what they refuse, and that
//! nothing of them is left behind.
#![allow(clippy::disallowed_methods, reason = "time limits of tests need the machine's clock")]

mod accounting;
mod browser;
mod comparison;
mod failure;
mod fixture;
mod leftover;
mod on_grid;
mod page;
mod refusal;
mod run;
mod signal;
mod step;
mod workloads;
