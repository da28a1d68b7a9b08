//! Metrics of daemons: what there is ([`Table`]), what it is now ([`Page`]), and how a monitor gets it ([`Server`]).
//!
//! A crate that has something to report states it in one table of [`Metric`]s and fills a page from counters that it has
//! anyway. Nothing is gathered before a monitor asks, and nothing here is on the way of a request. docs/metrics.md is
//! generated from the tables.
//!
//! Bounds: requests of [`server::HEAD_MAX`] bytes, [`server::WORKERS`] at once, each for [`server::TIME_MAX`]. Labels have
//! few values (filesets, operations, disks, queues, states, hosts); users and jobs have pages of their own, with at most
//! [`page::SAMPLES_MAX`] lines of a metric.

pub mod histogram;
pub mod listen;
pub mod own;
pub mod page;
pub mod server;
pub mod table;

pub use histogram::Histogram;
pub use listen::{Listen, ListenError, Tls};
pub use page::{Page, Spread};
pub use server::{Render, Server};
pub use table::{Kind, Metric, Table};
