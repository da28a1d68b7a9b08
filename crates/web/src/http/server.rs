//! The listener.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::message::{Body, Reply, Request, parameters};
use crate::problem::Problem;

/// Longest time until a request is there.
pub const READ_MAX: Duration = Duration::from_secs(30);
/// Longest time until the head of a request is there; also how long an idle connection is kept.
pub const HEAD_MAX: Duration = Duration::from_secs(60);
/// Longest time of a TLS handshake.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Most bytes of the head of a request.
const HEAD_BYTES: usize = 16 << 10;
/// How long a request waits for a thread.
const QUEUE_MAX: Duration = Duration::from_secs(10);

/// Bounds of the server.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Connections.
    pub connections: usize,
    /// Requests that are answered at the same time.
    pub requests: usize,
    /// Bytes of a body.
    pub body_bytes: usize,
    /// Time until the head of a request is there.
    pub head: Duration,
    /// Time of a TLS handshake.
    pub handshake: Duration,
}

/// Answers requests, each on a thread that may block.
pub trait Serve: Send + Sync + 'static {
    /// The answer.
    fn serve(&self, request: Request) -> Reply;
}

/// A server that listens.
pub struct Http {
    listener: std::net::TcpListener,
    tls: Option<Arc<ServerConfig>>,
    bounds: Bounds,
}

type Sent = hyper::Response<UnsyncBoxBody<Bytes, Infallible>>;

struct Shared {
    serve: Arc<dyn Serve>,
    tls: Option<TlsAcceptor>,
    bounds: Bounds,
    threads: Semaphore,
}

impl Http {
    /// Listens at an address.
    ///
    /// # Errors
    /// If nothing can be served there, such as when another program does.
    pub fn listen(
        address: SocketAddr,
        tls: Option<Arc<ServerConfig>>,
        bounds: Bounds,
    ) -> io::Result<Http> {
        let listener = std::net::TcpListener::bind(address).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot serve at {address}: {error}"))
        })?;
        listener.set_nonblocking(true)?;
        Ok(Http { listener, tls, bounds })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system's.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves in threads of its own, until the process ends.
    ///
    /// # Errors
    /// If they cannot be started.
    pub fn start(self, serve: Arc<dyn Serve>) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(self.bounds.requests + 4)
            .thread_name("web")
            .enable_all()
            .build()?;
        std::thread::Builder::new().name("web-accept".to_owned()).spawn(move || {
            runtime.block_on(self.accept(serve));
        })?;
        Ok(())
    }

    async fn accept(self, serve: Arc<dyn Serve>) {
        let listener = match TcpListener::from_std(self.listener) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::error!("HTTP is not served: {error}");
                return;
            }
        };
        let connections = Arc::new(Semaphore::new(self.bounds.connections));
        let shared = Arc::new(Shared {
            serve,
            tls: self.tls.map(TlsAcceptor::from),
            bounds: self.bounds,
            threads: Semaphore::new(self.bounds.requests),
        });
        loop {
            // Further connections wait in the kernel.
            let Ok(place) = Arc::clone(&connections).acquire_owned().await else { return };
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(_) => {
                    // Out of descriptors: others may close theirs.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let shared = Arc::clone(&shared);
            tokio::spawn(async move {
                shared.converse(stream).await;
                drop(place);
            });
        }
    }
}

impl Shared {
    async fn converse(self: Arc<Shared>, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        match &self.tls {
            None => Arc::clone(&self).exchange(stream).await,
            Some(acceptor) => match timeout(self.bounds.handshake, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => Arc::clone(&self).exchange(stream).await,
                Ok(Err(error)) => tracing::debug!("TLS: {error}"),
                Err(_) => tracing::debug!("TLS: the peer was silent"),
            },
        }
    }

    async fn exchange(
        self: Arc<Shared>,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) {
        let head = self.bounds.head;
        let service = service_fn(move |request| {
            let shared = Arc::clone(&self);
            async move { Ok::<Sent, Infallible>(shared.answer(request).await) }
        });
        let served = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(head)
            .max_buf_size(HEAD_BYTES)
            .max_headers(64)
            .serve_connection(TokioIo::new(stream), service)
            .await;
        if let Err(error) = served {
            tracing::debug!("a connection: {error}");
        }
    }

    async fn answer(&self, request: hyper::Request<Incoming>) -> Sent {
        let reply = match self.read(request).await {
            Ok(request) => self.carry_out(request).await,
            Err(problem) => Reply::problem(&problem).with("connection", "close"),
        };
        sent(reply)
    }

    async fn read(&self, request: hyper::Request<Incoming>) -> Result<Request, Problem> {
        let (head, body) = request.into_parts();
        let most = self.bounds.body_bytes;
        let collected = timeout(READ_MAX, Limited::new(body, most).collect()).await;
        let body = match collected {
            Ok(Ok(body)) => body.to_bytes().to_vec(),
            Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
                let reason = format!("the body of a request has at most {most} bytes");
                return Err(Problem::own("too_large", reason));
            }
            Ok(Err(error)) => return Err(Problem::not_understood(error.to_string())),
            Err(_) => return Err(Problem::not_understood("the body did not come in time")),
        };
        let text = |value: &hyper::header::HeaderValue| {
            String::from_utf8_lossy(value.as_bytes()).into_owned()
        };
        Ok(Request {
            method: head.method.as_str().to_owned(),
            path: head.uri.path().to_owned(),
            query: parameters(head.uri.query().unwrap_or_default()),
            headers: head.headers.iter().map(|(k, v)| (k.as_str().to_owned(), text(v))).collect(),
            body,
        })
    }

    async fn carry_out(&self, request: Request) -> Reply {
        let busy = || Reply::problem(&Problem::own("busy", "too many requests: try again later"));
        let Ok(Ok(place)) = timeout(QUEUE_MAX, self.threads.acquire()).await else { return busy() };
        let serve = Arc::clone(&self.serve);
        let served = tokio::task::spawn_blocking(move || serve.serve(request)).await;
        drop(place);
        served.unwrap_or_else(|error| {
            tracing::error!("a request failed: {error}");
            Reply::problem(&Problem::own(
                "internal",
                "the request failed: see the log of the server",
            ))
        })
    }
}

fn sent(reply: Reply) -> Sent {
    let body = match reply.body {
        Body::Whole(bytes) => Full::new(Bytes::from(bytes)).boxed_unsync(),
        Body::Events(events) => {
            let next = |mut events: super::Events| async move {
                let bytes = events.recv().await?;
                Some((Ok::<_, Infallible>(Frame::data(bytes)), events))
            };
            StreamBody::new(stream::unfold(events, next)).boxed_unsync()
        }
    };
    let mut response = hyper::Response::new(body);
    *response.status_mut() = hyper::StatusCode::from_u16(reply.status)
        .unwrap_or(hyper::StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in reply.headers {
        // A value that cannot be one of a header is not sent.
        if let Ok(value) = hyper::header::HeaderValue::from_str(&value) {
            response.headers_mut().append(name, value);
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    struct Echo;

    impl Serve for Echo {
        fn serve(&self, request: Request) -> Reply {
            assert!(request.path != "/panic", "it was told to");
            Reply::new(200, "text/plain", format!("{} {}", request.path, request.body.len()))
        }
    }

    fn server(connections: usize, head: Duration, tls: Option<Arc<ServerConfig>>) -> SocketAddr {
        let bounds = Bounds { connections, requests: 2, body_bytes: 1000, head, handshake: head };
        let http = Http::listen("127.0.0.1:0".parse().unwrap(), tls, bounds).unwrap();
        let address = http.address().unwrap();
        http.start(Arc::new(Echo)).unwrap();
        address
    }

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        // A server that closes early may reset the connection.
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[test]
    fn bodies_are_bounded_and_a_failed_request_ends_no_server() {
        let address = server(8, HEAD_MAX, None);
        let post = |path: &str, length: usize| {
            let body = "x".repeat(length);
            let head = format!(
                "POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
            );
            ask(address, &(head + &body))
        };
        assert!(post("/a", 1000).ends_with("/a 1000"));
        let long = post("/a", 1001);
        assert!(long.starts_with("HTTP/1.1 413 ") && long.contains("too_large"), "{long}");
        let failed = post("/panic", 1);
        assert!(failed.starts_with("HTTP/1.1 500 ") && failed.contains("internal"), "{failed}");
        assert!(post("/b", 0).ends_with("/b 0"));
        assert!(ask(address, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
    }

    /// It has one place for connections, which the silent peer holds.
    #[test]
    fn a_silent_peer_does_not_keep_its_place_for_ever() {
        #[derive(Debug)]
        struct NoCertificate;
        impl rustls::server::ResolvesServerCert for NoCertificate {
            fn resolve(
                &self,
                _: rustls::server::ClientHello<'_>,
            ) -> Option<Arc<rustls::sign::CertifiedKey>> {
                None
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(NoCertificate));
        let short = Duration::from_millis(100);
        for tls in [None, Some(Arc::new(tls))] {
            let (is_plain, address) = (tls.is_none(), server(1, short, tls));
            let mut silent = std::net::TcpStream::connect(address).unwrap();
            let answer = ask(address, "GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
            assert!(!is_plain || answer.ends_with("/a 0"), "{answer}");
            silent.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let mut last = Vec::new();
            silent.read_to_end(&mut last).unwrap();
        }
    }
}
