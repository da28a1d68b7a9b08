//! The members of etcd: one connection to each, and which of them is asked.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{Channel, ConnectOptions};
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::error::{Verdict, judge};
use crate::options::{ANSWER_BYTES_MAX, Options, Tls};
use crate::{Error, Result};

/// Pause after all members were asked in vain.
const ROUND_PAUSE: Duration = Duration::from_millis(50);

/// Whether a request may be sent a second time when the outcome of the first is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Twice does what once does.
    Repeatable,
    /// The second would do something else.
    Once,
}

/// A client of etcd for asynchronous code. Clones share the connections.
#[derive(Clone)]
pub struct Connection {
    shared: Arc<Shared>,
    timeout: Duration,
}

struct Shared {
    options: Options,
    members: Vec<Reached>,
    /// The member that answered last.
    preferred: AtomicUsize,
}

/// A member as it is reached: a connection that is made when it is needed.
#[derive(Clone)]
pub(crate) struct Reached {
    pub endpoint: String,
    pub client: etcd_client::Client,
}

impl Reached {
    pub fn keys(&self) -> etcd_client::KvClient {
        self.client.kv_client().max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    pub fn watches(&self) -> etcd_client::WatchClient {
        self.client.watch_client().max_decoding_message_size(ANSWER_BYTES_MAX)
    }
}

impl Connection {
    /// Prepares connections to all members; no request is sent yet. Must be called on a thread of a runtime.
    ///
    /// # Errors
    /// [`Error::Refused`]: an endpoint or a certificate is not well-formed.
    pub async fn open(options: Options) -> Result<Connection> {
        let refused = |endpoint: &str, reason: String| Error::Refused {
            endpoint: endpoint.to_owned(),
            reason,
        };
        if options.endpoints.is_empty() {
            return Err(refused("no endpoint", "name at least one member".to_owned()));
        }
        let mut members = Vec::new();
        for endpoint in &options.endpoints {
            let channel = reach(endpoint, &options).map_err(|why| refused(endpoint, why))?;
            let client = etcd_client::Client::from_channel(
                Channel::Tonic(channel.connect_lazy()),
                Some(ConnectOptions::new().with_require_leader(true)),
            );
            let client = client.await.map_err(|error| refused(endpoint, error.to_string()))?;
            members.push(Reached { endpoint: endpoint.clone(), client });
        }
        let timeout = options.timeout;
        let shared = Shared { options, members, preferred: AtomicUsize::new(0) };
        Ok(Connection { shared: Arc::new(shared), timeout })
    }

    /// The same connections, with another limit for each call.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Connection {
        Connection { shared: Arc::clone(&self.shared), timeout }
    }

    /// The endpoints in the order of the options.
    #[must_use]
    pub fn endpoints(&self) -> &[String] {
        &self.shared.options.endpoints
    }

    pub(crate) fn ping_interval(&self) -> Duration {
        self.shared.options.ping_interval
    }

    /// The limit of each call.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The member to ask first.
    pub(crate) fn preferred(&self) -> &Reached {
        let members = &self.shared.members;
        &members[self.shared.preferred.load(Ordering::Relaxed) % members.len()]
    }

    /// The preferred member did not answer: the next one is.
    pub(crate) fn pass_over(&self, endpoint: &str) {
        if self.preferred().endpoint == endpoint {
            self.shared.preferred.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Asks the members in turn until one has answered or the time is over. `revision` is what the request is about.
    pub(crate) async fn call<T, F>(
        &self,
        effect: Effect,
        revision: i64,
        request: impl Fn(&Reached) -> F,
    ) -> Result<T>
    where
        F: Future<Output = std::result::Result<T, etcd_client::Error>>,
    {
        let end = Instant::now() + self.timeout;
        let mut reason = "no answer".to_owned();
        for attempt in 1.. {
            let member = self.preferred();
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let patience = match effect {
                Effect::Repeatable => left.min(self.shared.options.attempt_timeout),
                Effect::Once => left,
            };
            let verdict = match timeout(patience, request(member)).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => judge(&member.endpoint, revision, &error),
                Err(_) => Verdict::Open(format!("no answer within {patience:?}")),
            };
            self.pass_over(&member.endpoint);
            reason = match (verdict, effect) {
                (Verdict::Final(error), _) => return Err(error),
                (Verdict::Open(reason), Effect::Once) => {
                    return Err(Error::Unknown { endpoint: member.endpoint.clone(), reason });
                }
                (Verdict::Open(reason), Effect::Repeatable) | (Verdict::NextMember(reason), _) => {
                    reason
                }
            };
            if attempt % self.shared.members.len() == 0 {
                sleep(ROUND_PAUSE.min(end.saturating_duration_since(Instant::now()))).await;
            }
        }
        Err(Error::Unreachable { endpoints: self.endpoints().join(", "), reason })
    }

    /// Asks one member only, once.
    pub(crate) async fn call_member<T, F>(
        &self,
        endpoint: &str,
        request: impl Fn(&Reached) -> F,
    ) -> Result<T>
    where
        F: Future<Output = std::result::Result<T, etcd_client::Error>>,
    {
        let members = &self.shared.members;
        let member = members.iter().find(|member| member.endpoint == endpoint);
        let unreachable =
            |reason: String| Error::Unreachable { endpoints: endpoint.to_owned(), reason };
        let Some(member) = member else {
            return Err(unreachable("it is not one of the endpoints in use".to_owned()));
        };
        match timeout(self.timeout, request(member)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(match judge(endpoint, 0, &error) {
                Verdict::Final(error) => error,
                Verdict::NextMember(reason) | Verdict::Open(reason) => unreachable(reason),
            }),
            Err(_) => Err(unreachable(format!("no answer within {:?}", self.timeout))),
        }
    }
}

/// The way to one member; the error says what is wrong with its name or the certificates.
fn reach(endpoint: &str, options: &Options) -> std::result::Result<Endpoint, String> {
    let way = Endpoint::from_shared(endpoint.to_owned()).map_err(|error| error.to_string())?;
    let way = match (endpoint.split_once("://"), &options.tls) {
        (Some(("http", _)), None) => way,
        (Some(("https", _)), Some(tls)) => way.tls_config(certificates(tls)).map_err(|error| {
            match std::error::Error::source(&error) {
                Some(cause) => format!("{error}: {cause}"),
                None => error.to_string(),
            }
        })?,
        (Some(("http", _)), Some(_)) => {
            return Err("certificates were given: use https://".to_owned());
        }
        (Some(("https", _)), None) => {
            return Err(
                "no certificates were given: name at least the authority's, or use http://"
                    .to_owned(),
            );
        }
        (Some(_) | None, _) => {
            return Err("not an endpoint (example: https://etcd1:2379)".to_owned());
        }
    };
    Ok(way
        .connect_timeout(options.connect_timeout)
        .http2_keep_alive_interval(options.ping_interval)
        .keep_alive_timeout(options.ping_interval)
        .keep_alive_while_idle(true)
        .tcp_nodelay(true))
}

fn certificates(tls: &Tls) -> ClientTlsConfig {
    let mut config =
        ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&tls.authority_pem));
    if let Some((certificate, key)) = &tls.identity_pem {
        config = config.identity(Identity::from_pem(certificate, key));
    }
    if let Some(name) = &tls.server_name {
        config = config.domain_name(name);
    }
    config
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Connection").field(&self.endpoints()).finish()
    }
}
