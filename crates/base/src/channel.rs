//! Calls between nodes: the seam between what is asked and how it travels.
//!
//! A [`Channel`] leads to one service of one other node. It sends a request again after a connection was lost, and the
//! other node answers a repeated request with the answer that it kept, so a request is carried out at most once. Both ends
//! of a session may call: a node that serves files calls its clients to recall what they cache.

use std::sync::Arc;

crate::id! {
    /// Number of a node of a cluster; never used again after the node has left. 0 is the only node of a file system
    /// without a cluster.
    NodeId(u32)
}

/// One life of a node's daemon, as others know it: a daemon that starts again is another client.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct ClientId {
    /// The node.
    pub node: NodeId,
    /// Which life of its daemon: grows with every start.
    pub incarnation: u64,
}

impl ClientId {
    /// The kernel of the node that owns a fileset: it calls without a channel.
    pub const LOCAL: ClientId = ClientId { node: NodeId(0), incarnation: 0 };
}

/// What a request is addressed to on the other node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ServiceId {
    /// Membership and ownership.
    Cluster = 0,
    /// The filesets that the node owns.
    Files = 1,
    /// The objects on its disks.
    Disks = 2,
    /// What the node's kernel caches: recalls.
    Cache = 3,
}

/// A request or an answer: what is encoded, and bytes of files, which are never encoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The encoded part.
    pub head: Vec<u8>,
    /// Bytes as they are; often empty.
    pub payload: Vec<u8>,
}

/// Why a call has no answer. A kind exists only where the caller would act differently.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No answer in time. The request was carried out once or not at all; it will not be carried out later.
    #[error("{0}")]
    Unreachable(String),
    /// No answer in time, and the request has not left this node: it was not carried out, and will not be.
    #[error("{0}")]
    Unsent(String),
    /// The other node has dropped this client with its opens and locks. Nothing was carried out.
    #[error("{0}")]
    Evicted(String),
    /// The other node understands neither the request nor the version of it. Nothing was carried out.
    #[error("{0}")]
    Refused(String),
}

/// The way to one service of another node. Calls may be made from many threads at once and are not ordered.
pub trait Channel: Send + Sync {
    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// See [`CallError`].
    fn call(&self, request: Message) -> Result<Message, CallError>;

    /// As [`Channel::call`], for a request that others wait for: a report of what this node has done by itself, a lock that is released.
    /// It has room of its own at both ends, so it gets through although all other calls wait. Carrying it out may wait for releases of
    /// [`ServiceId::Disks`] alone, which have room of their own too, and wait for no call.
    ///
    /// # Errors
    /// See [`CallError`].
    fn release(&self, request: Message) -> Result<Message, CallError> {
        self.call(request)
    }
}

impl<C: Channel + ?Sized> Channel for Arc<C> {
    fn call(&self, request: Message) -> Result<Message, CallError> {
        (**self).call(request)
    }

    fn release(&self, request: Message) -> Result<Message, CallError> {
        (**self).release(request)
    }
}

/// What answers the calls of other nodes. It must not panic whatever bytes arrive, and may be called from many threads.
pub trait Service: Send + Sync {
    /// Carries out one request of `from`.
    ///
    /// # Errors
    /// [`CallError::Refused`] for bytes that it does not understand.
    fn serve(&self, from: ClientId, request: Message) -> Result<Message, CallError>;

    /// `client` begins a session. What it held in an earlier one was dropped, and no request of that is carried out any more.
    fn welcome(&self, client: ClientId) {
        let _ = client;
    }

    /// `client` is gone with everything it held: its opens, locks and grants are released.
    fn drop_client(&self, client: ClientId) {
        let _ = client;
    }
}
