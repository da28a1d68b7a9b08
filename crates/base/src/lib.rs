//! The vocabulary of the system: ids, time and its seam, byte sizes, settings in a file, what processes used, name hashing, requests in flight,
//! fail points, the seam of calls between nodes, work in several threads, what a full disk looks like, logs in the style of FULLSTIMER, and text and tables for terminals.
//!
//! Everything here is pure apart from [`time::SystemClock`] and the seeds of tests ([`seed`]); [`in_flight`] notes for the whole
//! process what its threads do. Nothing here knows of files, stores or
//! sockets; every other crate may depend on it.

pub mod channel;
pub mod columns;
pub mod failpoint;
pub mod full;
pub mod fullstimer;
pub mod hash;
pub mod id;
pub mod in_flight;
pub mod seed;
pub mod settings;
pub mod size;
pub mod text;
pub mod threads;
pub mod time;
pub mod usage;

pub use channel::{Channel, ClientId, NodeId};
pub use failpoint::{FailPoints, PowerCut};
pub use id::{DiskId, Epoch, FilesetId, Ino, ObjectId};
pub use size::ByteSize;
pub use time::{Clock, Timestamp};
pub use usage::Usage;
