//! Stores of a cluster: for each fileset one SlateDB database, an LSM tree over an object store.
//!
//! **What survives.** A commit is one object of the write-ahead log, put on condition that no object has its number. When
//! that put is answered, the batch is durable as a whole.
//!
//! **One writer.** Opening claims the next writer epoch of the database by a conditional put, and puts an empty object where
//! the former writer's next one would go. So a former writer's next commit fails: it gets
//! [`StoreError::Conflict`](crate::StoreError::Conflict) from then on, and nothing of that commit is ever seen.
//! [`Stores::open_for`](crate::Stores::open_for) also compares the term of the owner, so a late one cannot displace a newer
//! one.
//!
//! **Open outcomes.** If a put is not answered in time, the commit ends with
//! [`StoreError::Unknown`](crate::StoreError::Unknown) while the engine keeps trying. Nothing is read or committed until
//! the outcome is settled.
//!
//! **Places** (`place.rs`): etcd (`etcd_objects/`), S3-compatible object stores, directories of shared file systems, and memory
//! for tests. Blocks that were read or written lie in a cache in memory and one on a local disk, both bounded, filled in
//! the background after a takeover.
//!
//! The threads of a [`Runtime`](forebay_etcd::Runtime) do the work; callers block.

mod blocks;
mod compaction;
mod config;
mod copy;
mod entrance;
mod errors;
pub mod etcd_objects;
mod place;
mod reader;
mod settings;
mod store;
mod stores;
mod term;
mod upkeep;

pub use config::{EtcdPlace, Place, QuotaOf, S3Place, SlateConfig, open_stores};
pub use place::s3_bucket;
pub use store::SlateStore;
pub use stores::SlateStores;
pub use upkeep::{EtcdState, MemberState};
