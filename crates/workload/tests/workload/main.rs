//! The crate's tests of programs, mixes and loads, in one program: it is linked once.

#[path = "../../../analytics/tests/analytics/common/mod.rs"]
mod common;

mod flights;
mod mix;
mod mixes;
mod probe;
mod program;
mod settings;
mod temp_files;
