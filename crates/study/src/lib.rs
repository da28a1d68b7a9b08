//! Studies: a workload is run on storage, recorded second by second, summed up and reported.
//!
//! [`record`] is what is written down, and all that a report is made from. [`run`] makes it:
//! [`forebay_process`] runs jobs and accounts for them, [`sampler`] watches the machine, [`hosts`] several
//! machines, [`environment`] describes them.
//! [`summary`] computes what people look at and [`compare`] what they compare, purely from records;
//! [`report`] shows it as a page with [`chart`]s, [`terminal`] on the terminal, [`csv`](mod@csv) as files, [`xlsx`] as a workbook,
//! [`fullstimer`] as a log for each job.

pub mod chart;
pub mod compare;
pub mod csv;
pub mod environment;
pub mod error;
pub mod fullstimer;
pub mod hosts;
pub mod record;
pub mod report;
pub mod run;
pub mod sampler;
pub mod statistics;
pub mod summary;
pub mod terminal;
pub mod xlsx;

pub use error::{Error, Result};
