//! HTTP/1.1 over TCP, or over TLS: connections, requests with their bounds, answers.
//!
//! One asynchronous runtime carries connections; each request is answered by a thread of its own, of which there are
//! `requests_max`. A request is read within [`READ_MAX`] and `request_bytes_max`; its answer may be a stream of events.

mod message;
mod server;
mod tls;

pub use message::{Body, Events, Reply, Request, decoded};
pub use server::{Bounds, HANDSHAKE_MAX, HEAD_MAX, Http, READ_MAX, Serve};
pub use tls::{Certificate, read as read_tls};
