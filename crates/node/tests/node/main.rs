//! Nodes on loopback.
#![allow(clippy::disallowed_methods, reason = "time limits of tests need the machine's clock")]

mod members;
mod monitors;
mod reading;
mod releases;
mod sessions;
mod strangers;
mod support;
