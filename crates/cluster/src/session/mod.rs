//! Calls that are carried out once, over connections that break.
//!
//! A session joins one life of a client's daemon with one life of a server's. It outlives connections; both ends call:
//! the client asks for operations, the server recalls what the client caches.
//!
//! - **Once.** A call takes a slot and the slot's next sequence number (as in NFSv4.1, RFC 8881, section 2.10.6). The other
//!   end keeps the answer of each slot's latest call; a call that arrives again gets that answer. The next call in
//!   a slot acknowledges the former one, so that kept answers are bounded by the slots (`calls_max`). Calls beyond that wait.
//! - **Nobody in the way.** A call may wait within the other end until a third node has made a call. Those that others wait for
//!   ([`Room::Release`]) have slots of their own (`releases_max`), and wait for nobody's call.
//! - **Not later.** A call with a deadline carries the latest moment, by the server's clock, at which it may take effect.
//!   When its caller gives up, that moment is over at the server, whatever became of the connection. A service that waits
//!   within a call (for a lock, for recalls) checks the moment again before anything takes effect.
//! - **Connections.** Frames count only if they come over the session's latest connection. On a new one, each end sends again
//!   what has no answer. Within a connection frames stay in order.
//! - **Keepalive.** The client pings. The answer carries the server's clock, and for how long the server *vouches* for what the
//!   client caches, counted from when the ping was sent ([`crate::grants`]).
//! - **Eviction.** The server ends a session that had no connection for `session_grace`, or whose client is to be dropped (a
//!   recall was not acknowledged, its node's lease ended). The client's opens, locks and grants are dropped once nothing
//!   that was vouched for can be in use any more, or once the client or its next life begins a new session.
//! - **Lost.** A client that learns that its session is over completes its calls with [`Failure::Unreachable`], drops everything
//!   it cached and held, and only then begins a new session, with the next number.
//!
//! A session survives no crash of either end: the next life is another client.

use forebay_base::ClientId;
use serde::{Deserialize, Serialize};

use std::time::Duration;

use crate::time::Moment;

mod callee;
mod caller;
pub mod client;
pub mod server;
#[cfg(test)]
mod tests;

pub use client::ClientEnd;
pub use server::ServerEnd;

forebay_base::id! {
    /// A connection, as the daemon at this end numbers it; never used again in its life.
    Connection(u64)
}
forebay_base::id! {
    /// A call, as its caller's daemon numbers it.
    Call(u64)
}
forebay_base::id! {
    /// Number of a session between two lives of daemons; grows with each.
    Number(u64)
}

/// Which call of a session: the slot and its sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Operation {
    /// Below `calls_max` for ordinary calls, and from there on for releases.
    pub slot: u32,
    /// Grows with each call in the slot. The upper 32 bits are the session's number, so that an answer that a thread gives
    /// late, to a call of a former session, is not taken for one of this session.
    pub sequence: u64,
}

/// Which slots a call takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// It may wait at the other end for what others do.
    Ordinary,
    /// Others may wait for it.
    Release,
}

/// Whether a call may be carried out twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Repeat {
    /// It changes something: its answer is kept.
    Once,
    /// It reads: one that arrives again is carried out again, and no answer is kept.
    Harmless,
}

/// What goes over a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Frame<T> {
    /// Client to server, first on each connection.
    Hello {
        /// Who connects.
        from: ClientId,
        /// The session.
        number: Number,
        /// Whether the client had an answer to a hello of this session already.
        resume: bool,
        /// The client's clock.
        sent: Duration,
    },
    /// Server to client: the session goes on, or begins.
    Welcome {
        /// Which life of the server.
        from: ClientId,
        /// Of the hello.
        sent: Duration,
        /// The server's clock.
        clock: Duration,
    },
    /// The session is over; nothing more comes.
    Over,
    /// A call.
    Request {
        /// Slot and sequence.
        operation: Operation,
        /// When it may no longer take effect, by the receiver's clock; none: always.
        not_after: Option<Duration>,
        /// Whether it may be carried out twice.
        repeat: Repeat,
        /// What is asked.
        body: T,
    },
    /// The answer to a call.
    Answer {
        /// Of the request.
        operation: Operation,
        /// What was answered.
        body: T,
    },
    /// The call came too late and was not carried out.
    Late {
        /// Of the request.
        operation: Operation,
    },
    /// Client to server: are you there?
    Ping {
        /// The client's clock.
        sent: Duration,
    },
    /// Server to client.
    Pong {
        /// Of the ping.
        sent: Duration,
        /// The server's clock.
        clock: Duration,
        /// For how long the server vouches for what the client caches.
        vouch: Duration,
    },
}

/// Why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It was carried out once or not at all, and will not be carried out any more.
    Unreachable,
    /// The session is over; it was not carried out.
    Evicted,
}

/// What either end asks its daemon to do, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect<T> {
    /// Send a frame.
    Send(Connection, Frame<T>),
    /// Close a connection.
    Close(Connection),
    /// Carry a call out; report its answer with the same operation. Several are carried out at once.
    Deliver {
        /// Of the request.
        operation: Operation,
        /// When it may no longer take effect, by this node's clock; checked once here, and again by who waits.
        not_after: Option<Moment>,
        /// What is asked.
        body: T,
    },
    /// A call of this end is over.
    Complete(Call, Result<T, Failure>),
}
