//! Where etcd is and how it is spoken to.

use std::time::Duration;

/// Largest answer that is taken from etcd, in bytes: a range of its largest values that somebody asked for at once.
pub(crate) const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Where etcd is and how it is spoken to.
#[derive(Clone, Debug)]
pub struct Options {
    /// `http://HOST:PORT` or `https://HOST:PORT` of each member.
    pub endpoints: Vec<String>,
    /// Certificates; needed for `https`.
    pub tls: Option<Tls>,
    /// A call ends after this time, whatever happens.
    pub timeout: Duration,
    /// A member that has not answered a request that may be repeated for this time is passed over.
    pub attempt_timeout: Duration,
    /// A member that has not accepted a connection for this time is passed over.
    pub connect_timeout: Duration,
    /// A connection on which nothing came for this time is probed, and given up after the same time again.
    pub ping_interval: Duration,
}

impl Options {
    /// Options for these endpoints: calls end after 8 s, an attempt after 2 s, a connection attempt after 1 s, a silent
    /// connection after twice 2 s.
    #[must_use]
    pub fn new<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> Options {
        Options {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            tls: None,
            timeout: Duration::from_secs(8),
            attempt_timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(1),
            ping_interval: Duration::from_secs(2),
        }
    }

    /// The same with certificates.
    #[must_use]
    pub fn with_tls(mut self, tls: Tls) -> Options {
        self.tls = Some(tls);
        self
    }
}

/// Certificates in PEM.
#[derive(Clone)]
pub struct Tls {
    /// The authorities that may have signed the server's certificate.
    pub authority_pem: Vec<u8>,
    /// This client's certificate with its key, if the server wants one.
    pub identity_pem: Option<(Vec<u8>, Vec<u8>)>,
    /// The name in the server's certificate where it is not the host of the endpoint.
    pub server_name: Option<String>,
}

/// Without the key.
impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}
