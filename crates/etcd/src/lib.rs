//! etcd, for code that is synchronous: keys, transactions, leases, watches and its upkeep.
//!
//! [`Client`] blocks the calling thread; [`Connection`] is the same for asynchronous code. Both are cheap to clone. Their
//! work is done by the threads of one [`Runtime`].
//!
//! **Members.** A call goes to the member that answered last. If that one does not answer, the next is asked. A call that may
//! be repeated (reads, renewals) is; one that changes something is repeated only when the first request certainly changed
//! nothing; otherwise it ends with [`Error::Unknown`]. The request may then still be on its way, so a read cannot settle it:
//! send the same transaction again, with a condition that the first one, once carried out, makes false.
//!
//! **Time.** Every call ends within [`Options::timeout`]. A member that is suspended is noticed by pings, its calls end and its
//! watches move to another member.
//!
//! **Order.** Reads are linearizable: they see every change that was answered before they began, whichever member they
//! ask.
//!
//! What it does not do: decide. It knows no cluster of ours, no node and no fileset.

mod client;
mod connection;
mod error;
mod kv;
mod lease;
mod maintenance;
mod options;
mod runtime;
#[cfg(feature = "testing")]
pub mod testing;
mod watch;

pub use client::Client;
pub use connection::Connection;
pub use error::{Error, Result};
pub use kv::{Change, Compare, Found, Keys, Op, Pair, RangeOptions, Txn, TxnOutcome};
pub use lease::{LeaseId, Renewal};
pub use maintenance::{Alarm, Member, MemberStatus};
pub use options::{Options, Tls};
pub use runtime::Runtime;
pub use watch::{Event, Watch};
