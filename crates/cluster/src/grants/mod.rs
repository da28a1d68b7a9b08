//! What clients may cache, and how it is taken back before it becomes wrong.
//!
//! The owner of a fileset answers with *grants*: the client may cache this item, and let its kernel cache it, until the owner
//! recalls it. Before a change takes effect, the owner recalls the items that it touches from all other clients and waits for
//! their acknowledgements ([`owner::Grants`]). The client invalidates its kernel's caches before it acknowledges
//! ([`client::Cache`]).
//!
//! | Item | Covers |
//! |---|---|
//! | [`Item::Attributes`] | attributes, extended attributes and ACLs of an inode; the listing of a directory; bytes of a file that nobody has open for writing |
//! | [`Item::Entry`] | what a name of a directory refers to, or that it does not exist |
//! | [`Item::Directory`] | a directory with all its names, for one client alone, which may change names by itself and report later |
//!
//! - **Nothing outlives its word.** A grant may be used while its owner vouches for it: for `vouch` at the most after the client
//!   sent its latest answered ping, and no longer than the owner's own lease. Timeouts given to the kernel end then too:
//!   a frozen daemon's kernel stops using what it cached. So an owner that is dead, cut off or replaced leaves no
//!   grants behind, and a client that does not acknowledge can be evicted: `recall_timeout` after the recall nothing that was
//!   vouched for is in use any more, because the owner stops vouching early enough.
//! - **Crossing.** An answer to a request that was sent before a recall of its item arrived is not cached. No order is
//!   assumed between answers and recalls.
//! - **No waiting in circles.** Reads are answered at all times, without a grant while a change waits for recalls. The kernel may
//!   invalidate only after a READ in flight was answered, so a READ must never wait for a recall.
//! - **Own changes.** A client stops using its own grants on what it changes when it sends the change.
//! - **Delegations.** A directory is delegated ([`Item::Directory`]) to one client at a time. The owner recalls that before anybody else
//!   learns of the directory, or changes it. The client reports what it has done there before it acknowledges, and nothing else of
//!   the directory is kept without a grant of its own from then on ([`reports`]).
//! - **Quiet and contended.** While a client has a file open for writing, no other client is granted its attributes: every read
//!   there asks for time and size first. The open for writing waits for the recalls.
//! - **Ping-pong.** An item whose grants are recalled is not granted again for `cool_down_min`, twice as long each time that
//!   grants were of little use, up to `cool_down_max`. A change never waits for that: what is recalled are copies, so
//!   nobody needs time to finish with them.
//! - **Bounds.** A client has at most `grants_max` grants in a fileset. Beyond it the owner recalls those that were asked for
//!   longest ago, and grants nothing more until they are back.

use forebay_base::Ino;
use serde::{Deserialize, Serialize};

pub mod client;
pub mod owner;
pub mod reports;
#[cfg(test)]
mod tests;

pub use client::Cache;
pub use owner::Grants;

forebay_base::id! {
    /// A grant: tells one from an earlier one of the same item. Counted by the owner.
    GrantNumber(u64)
}
forebay_base::id! {
    /// A recall, counted by the owner.
    RecallNumber(u64)
}
forebay_base::id! {
    /// A change that waits for recalls, as its daemon numbers it.
    ChangeNumber(u64)
}

/// What a client may be granted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Item {
    /// Attributes of an inode, and what follows from them (see the module).
    Attributes(Ino),
    /// A name in a directory.
    Entry(Ino, Box<[u8]>),
    /// A directory that is delegated to the client: nobody else is told of it.
    Directory(Ino),
}

impl Item {
    /// The directory that is delegated with it.
    #[must_use]
    pub fn directory(&self) -> Option<Ino> {
        match self {
            Item::Directory(ino) => Some(*ino),
            Item::Attributes(_) | Item::Entry(..) => None,
        }
    }
}
