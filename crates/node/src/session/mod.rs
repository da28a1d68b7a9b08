//! Sessions between nodes: calls that travel over TLS and are carried out once.
//!
//! A [`Hub`] holds all sessions of a node. It hands out [`Channel`](forebay_base::Channel)s to the services of other nodes, and
//! lets its own services answer. A session belongs to one life of the daemon that made it (the client) and one of the daemon
//! that accepted it; both may call over it. Two nodes that serve each other have two sessions.
//!
//! - A call is sent again when a connection was lost, and carried out once: [`ledger`].
//! - A client that is silent for `session_grace`, dies or is removed is dropped: `Service::drop_client`. Its calls then end with
//!   `Unreachable` if they were sent (their fate is not known, but they will not be carried out later: [`end`]), otherwise
//!   with `Evicted`; and so does the first call afterwards of each channel that was used in that session, even if none was made
//!   meanwhile: what one user of a node hears of the end, the others do not.
//! - Everything is bounded: calls and bytes in flight, answers kept, threads, connections ([`Settings`](crate::settings::Settings)).
//!
//! What it does not do: order calls, or wait for a node longer than it is a member. A service should not keep a call for as
//! long as it waits for another call of the same client: `served_per_session_max` such calls would leave no thread for it.

pub mod crew;
pub mod dial;
pub mod end;
pub mod frame;
pub mod greeting;
pub mod hub;
pub mod ledger;
mod peer;
pub mod tls;
pub mod wire;

pub use dial::{Target, visit};
pub use greeting::{Refusal, RefusalKind};
pub use hub::{Hub, Reception, Roster, SessionStatus, Standing, Start};
pub use tls::{Credentials, Identity, stranger};
