//! Every bound and time of a node, with its default.

use std::time::Duration;

/// Times and bounds of sessions and of membership.
///
/// All nodes of a cluster should use the same `session_grace` and `node_lease`; a node states its own in the hello of a
/// session, and the shorter one applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How often a side that has heard nothing asks whether the other is there.
    pub keepalive: Duration,
    /// How long a connection may be silent before it is given up. Longer than `keepalive`.
    pub silence_max: Duration,
    /// How long a session outlives its last connection; afterwards its client is dropped.
    pub session_grace: Duration,
    /// How long TCP and TLS may take to connect, and a stranger to say who it is.
    pub connect_timeout: Duration,
    /// The longest pause between two attempts to connect.
    pub reconnect_pause_max: Duration,
    /// Calls of one session, in one direction, that may be unanswered at a time, and as many to disks. A further one waits.
    pub calls_max: usize,
    /// Bytes of these calls, and of those to disks. A single call may always be sent.
    pub calls_bytes_max: usize,
    /// Calls of one session, in one direction, that others wait for ([`Channel::release`](forebay_base::Channel::release)) and that may be
    /// unanswered at a time, beside `calls_max`; as many are carried out at a time. A further one waits.
    pub releases_max: usize,
    /// Bytes of answers of one session that are kept until they are acknowledged; beyond it no further call is begun
    /// that nobody waits for.
    pub kept_bytes_max: usize,
    /// Calls of one session that are carried out at a time, and as many to disks; the others wait in arrival order.
    pub served_per_session_max: usize,
    /// Threads that carry out calls of all sessions together, and as many for disks, besides those that received them: one of each
    /// session at most.
    pub serving_threads_max: usize,
    /// Threads that answer recalls of all sessions together, and as many that carry out what others wait for.
    pub release_threads_max: usize,
    /// Connections that may be greeting at a time. Those of sessions are bounded by the number of members.
    pub greetings_max: usize,
    /// Connections of one session besides the first, for payloads of at least `bulk_bytes`.
    pub bulk_lanes: u8,
    /// From this size on a payload goes over the connections for bulk.
    pub bulk_bytes: usize,
    /// Life of a node's lease in etcd. When it is over without renewal, the others take the node for dead.
    pub node_lease: Duration,
    /// How long the certificate of a node is valid.
    pub certificate_life: Duration,
    /// How long a join token is valid.
    pub token_life: Duration,
    /// The largest difference between the clocks of a joining node and of the node that admits it.
    pub clock_difference_max: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            keepalive: Duration::from_secs(1),
            silence_max: Duration::from_secs(5),
            session_grace: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(5),
            reconnect_pause_max: Duration::from_secs(1),
            calls_max: 256,
            releases_max: 16,
            calls_bytes_max: 32 << 20,
            kept_bytes_max: 32 << 20,
            served_per_session_max: 64,
            serving_threads_max: 512,
            release_threads_max: 128,
            greetings_max: 256,
            bulk_lanes: 2,
            bulk_bytes: 64 << 10,
            node_lease: Duration::from_secs(10),
            certificate_life: Duration::from_hours(90 * 24),
            token_life: Duration::from_hours(1),
            clock_difference_max: Duration::from_secs(30),
        }
    }
}

/// Largest encoded part of a message.
pub const HEAD_BYTES_MAX: usize = 1 << 20;

/// Largest payload of a message.
pub const PAYLOAD_BYTES_MAX: usize = 8 << 20;

/// Largest hello, with the question of a visitor.
pub const GREETING_BYTES_MAX: usize = 64 << 10;

/// Largest answer to a hello, with the answer to a visitor.
pub const ANSWER_BYTES_MAX: usize = 4 << 20;
