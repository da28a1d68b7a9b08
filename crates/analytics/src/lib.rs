//! Analytics: data sets, expressions, series, and the steps that work on them.
//!
//! A data set is a file of fixed-width rows in pages ([`dataset`]). A step ([`step`]) reads data sets
//! and writes data sets or tables; its settings are a plain struct.
//!
//! Nothing here knows how the file system below works: steps take the paths of files and of three
//! directories, `data` for what stays, `work` for the session, `util` for the files of sorts. Nothing
//! here prints; time comes in through a [`forebay_base::Clock`]. Every step reads and writes in pages
//! and has a stated bound on its memory.

pub mod amount;
pub mod dataset;
pub mod error;
pub mod expression;
pub mod histogram;
pub mod key;
pub mod linear;
pub mod scratch;
pub mod series;
pub mod source;
pub mod step;
pub mod table;
pub mod temporary;

pub use error::{Error, Result};
pub use table::{Cell, Table};
