//! Membership and ownership at work: the state machines of `forebay-cluster`, driven with etcd.
//!
//! | File | What |
//! |---|---|
//! | `record.rs`, `book.rs` | the cluster's records and keys; reading and changing them |
//! | `roster.rs` | the cluster as this node sees it |
//! | `etcd.rs`, `driver.rs` | requests of the state machines, and what is reported to them; the thread that drives them |
//! | `ownership.rs` | what the daemon does with filesets that its node owns |
//! | `member.rs`, `visit.rs`, `renewal.rs` | a node at work; questions of commands and of nodes that join; its certificate |

pub mod book;
mod driver;
mod etcd;
pub mod member;
mod monitors;
pub mod ownership;
pub mod record;
pub mod renewal;
pub mod roster;
pub mod visit;

use std::time::Duration;

pub use forebay_cluster::ownership::View;

use forebay_cluster::Moment;

pub use book::Book;
pub use driver::Phase;
pub use member::{Member, MemberStart};
pub(crate) use monitors::removed as removed_monitors;
pub use ownership::{InUse, NoFilesets, Ownership};

/// The clock of membership: it never goes back, and goes on while the machine is suspended.
#[must_use]
pub fn boottime() -> Moment {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Moment(Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0)))
}
