//! The workload: data sets, analytics steps, whole programs and loads.
//!
//! A data set is a file of fixed-width rows in pages ([`dataset`]). A step ([`step`]) reads data sets
//! and writes data sets or tables; its settings are a plain struct, so that a workload mix can be
//! read from a file. A program such as [`flights`] runs steps one after another and records the
//! resources of each ([`resource`]). A load ([`load`]) does I/O of a known shape without analytics.
//!
//! Nothing here knows how the file system below works: programs take three directories, `data` for
//! what stays, `work` for the session, `util` for the files of sorts. Nothing here prints; time comes
//! in through a [`forebay_base::Clock`]. Every step reads and writes in pages and has a stated bound
//! on its memory.

pub mod amount;
pub mod dataset;
pub mod error;
pub mod expression;
pub mod flights;
pub mod histogram;
pub mod key;
pub mod linear;
pub mod load;
pub mod mix;
pub mod program;
pub mod resource;
pub mod scratch;
pub mod series;
pub mod source;
pub mod step;
pub mod table;
pub mod temporary;

pub use error::{Error, Result};
pub use table::{Cell, Table};
