//! Workloads: programs of analytics steps, mixes of programs, and loads.
//!
//! A program ([`program`]) runs steps of [`forebay_analytics`] one after another and records the resources
//! of each ([`resource`]); [`flights`] is one on real data. A mix ([`mix`]) is a file that says how many jobs
//! run which programs at a scale. A load ([`load`]) does I/O of a known shape without analytics; some are
//! steps of programs as well. Steps of a [`lakehouse`] are done by DuckDB and Polars.
//!
//! Nothing here prints; time comes in through a [`forebay_base::Clock`].

pub mod error;
pub mod flights;
pub mod lakehouse;
pub mod load;
pub mod mix;
pub mod program;
pub mod resource;

pub use error::{Error, Result};
