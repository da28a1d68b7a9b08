//! The listener: HTTP/1.1, one request a connection, which is closed after the answer.
//!
//! A request is read within [`HEAD_MAX`] bytes and answered within [`TIME_MAX`]; [`WORKERS`] threads do so, and further
//! connections wait in the kernel. A page is put together when it is asked for, by the thread that was asked. The threads end with
//! the process.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use rustls::{ServerConnection, StreamOwned};

use crate::listen::{Listen, Tls, Token};
use crate::page::Page;

/// Most bytes of a request.
pub const HEAD_MAX: usize = 8 << 10;
/// Longest time of a request, from the connection to the end of the answer.
pub const TIME_MAX: Duration = Duration::from_secs(10);
/// Requests that are answered at the same time.
pub const WORKERS: usize = 2;

/// Most header lines of a request.
const HEADERS_MAX: usize = 64;
/// Longest time until the request is there.
const HEAD_TIME_MAX: Duration = Duration::from_secs(2);
/// The same with what TLS exchanges first.
const TLS_HEAD_TIME_MAX: Duration = Duration::from_secs(5);

/// Puts a page together; none if there is nothing to say any more.
pub type Render = Box<dyn Fn() -> Option<Page> + Send + Sync>;

/// Pages that are served.
pub struct Server {
    address: SocketAddr,
}

struct Served {
    pages: Vec<(&'static str, Render)>,
    token: Option<Token>,
    tls: Option<Tls>,
    /// Why TLS was not possible last: the log has each reason once.
    refused: Mutex<String>,
}

/// A connection whose reads and writes all end in time, however little comes at once.
struct Timed {
    stream: TcpStream,
    begun: Instant,
    most: Duration,
}

/// An answer.
struct Reply {
    status: &'static str,
    kind: &'static str,
    /// A header line that says how to ask with success.
    challenge: &'static str,
    body: String,
}

/// Which text the asker understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    OpenMetrics,
    Plain,
}

/// What was asked.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    method: String,
    path: String,
    authorization: Vec<u8>,
    format: Format,
}

impl Server {
    /// Serves pages, each under its path.
    ///
    /// # Errors
    /// If nothing can be served at the address, such as when another program does.
    pub fn start(listen: Listen, pages: Vec<(&'static str, Render)>) -> io::Result<Server> {
        let listener = TcpListener::bind(listen.address).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("cannot serve metrics at {}: {error}", listen.address),
            )
        })?;
        let address = listener.local_addr()?;
        let served = Arc::new(Served {
            pages,
            token: listen.token,
            tls: listen.tls,
            refused: Mutex::default(),
        });
        for _ in 0..WORKERS {
            let (listener, served) = (listener.try_clone()?, Arc::clone(&served));
            let work = move || serve(&listener, &served);
            std::thread::Builder::new().name("metrics".to_owned()).spawn(work)?;
        }
        tracing::info!(%address, "metrics are served");
        Ok(Server { address })
    }

    /// Where pages are served.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn serve(listener: &TcpListener, served: &Served) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // Out of descriptors: others may close theirs.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        if let Err(error) = converse(stream, served) {
            tracing::debug!(%error, "a monitor was not answered");
        }
    }
}

fn converse(stream: TcpStream, served: &Served) -> io::Result<()> {
    let mut stream = Timed { stream, begun: SystemClock.instant(), most: HEAD_TIME_MAX };
    let Some(tls) = &served.tls else {
        let reply = match read_head(&mut stream)? {
            Ok(request) => served.answer(&request, false),
            Err(refusal) => refusal,
        };
        stream.most = TIME_MAX;
        stream.write_all(&reply.bytes())?;
        return stream.stream.shutdown(Shutdown::Write);
    };
    let config = tls().map_err(|reason| {
        let mut refused = served.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if *refused != reason {
            tracing::warn!("metrics cannot be served over TLS: {reason}");
            refused.clone_from(&reason);
        }
        io::Error::other(reason)
    })?;
    stream.most = TLS_HEAD_TIME_MAX;
    let connection = ServerConnection::new(config).map_err(io::Error::other)?;
    let mut secured = StreamOwned::new(connection, stream);
    let reply = match read_head(&mut secured)? {
        Ok(request) => served.answer(&request, secured.conn.peer_certificates().is_some()),
        Err(refusal) => refusal,
    };
    secured.sock.most = TIME_MAX;
    secured.write_all(&reply.bytes())?;
    secured.conn.send_close_notify();
    secured.flush()?;
    secured.sock.stream.shutdown(Shutdown::Write)
}

impl Timed {
    fn left(&self) -> io::Result<Duration> {
        let passed = SystemClock.instant().saturating_duration_since(self.begun);
        let left = self.most.checked_sub(passed).filter(|left| !left.is_zero());
        left.ok_or_else(|| io::Error::new(io::ErrorKind::TimedOut, "the monitor is too slow"))
    }
}

impl Read for Timed {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(bytes)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn read_head(stream: &mut impl Read) -> io::Result<Result<Request, Reply>> {
    let mut head = Vec::new();
    let mut part = [0; 1024];
    loop {
        let length = stream.read(&mut part)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&part[..length]);
        match parse(&head) {
            Ok(Some(request)) => return Ok(Ok(request)),
            Ok(None) if head.len() < HEAD_MAX => {}
            Ok(None) => {
                return Ok(Err(Reply::text(
                    "431 Request Header Fields Too Large",
                    "the request is too long\n",
                )));
            }
            Err(error) => return Ok(Err(Reply::text("400 Bad Request", &format!("{error}\n")))),
        }
    }
}

/// The request, once all of its head is there.
fn parse(head: &[u8]) -> Result<Option<Request>, httparse::Error> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    if request.parse(head)?.is_partial() {
        return Ok(None);
    }
    let header = |name: &str| {
        let found = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        found.map_or(&b""[..], |header| header.value)
    };
    let path = request.path.unwrap_or_default();
    Ok(Some(Request {
        method: request.method.unwrap_or_default().to_owned(),
        path: path.split('?').next().unwrap_or(path).to_owned(),
        authorization: header("authorization").to_vec(),
        format: format_of(&String::from_utf8_lossy(header("accept"))),
    }))
}

fn format_of(accept: &str) -> Format {
    let is_open = accept.contains("application/openmetrics-text") || !accept.contains("text/plain");
    if is_open { Format::OpenMetrics } else { Format::Plain }
}

impl Served {
    /// Why a monitor is not answered.
    fn refusal(&self, request: &Request, has_certificate: bool) -> Option<&'static str> {
        let knows_token =
            self.token.as_ref().is_some_and(|token| token.is_in(&request.authorization));
        match (&self.tls, &self.token) {
            _ if has_certificate || knows_token => None,
            (None, None) => None,
            (None, Some(_)) => Some("this address needs a token: Authorization: Bearer TOKEN\n"),
            (Some(_), None) => {
                Some("this address needs a certificate (made by forebay cluster monitor)\n")
            }
            (Some(_), Some(_)) => Some(
                "this address needs a token (Authorization: Bearer TOKEN) or a certificate (made by forebay cluster monitor)\n",
            ),
        }
    }

    fn answer(&self, request: &Request, has_certificate: bool) -> Reply {
        if let Some(reason) = self.refusal(request, has_certificate) {
            // Without a token, none would help.
            let challenge = self.token.as_ref().map_or("", |_| "WWW-Authenticate: Bearer\r\n");
            return Reply { challenge, ..Reply::text("401 Unauthorized", reason) };
        }
        if request.method != "GET" {
            return Reply::text("405 Method Not Allowed", "only GET is served\n");
        }
        let Some((_, render)) = self.pages.iter().find(|(path, _)| *path == request.path) else {
            let paths: Vec<&str> = self.pages.iter().map(|(path, _)| *path).collect();
            return Reply::text("404 Not Found", &format!("pages: {}\n", paths.join(" ")));
        };
        match (render(), request.format) {
            (None, _) => Reply::text("503 Service Unavailable", "the daemon is ending\n"),
            (Some(page), Format::OpenMetrics) => Reply {
                status: "200 OK",
                kind: "application/openmetrics-text; version=1.0.0; charset=utf-8",
                challenge: "",
                body: page.open_metrics(),
            },
            (Some(page), Format::Plain) => Reply {
                status: "200 OK",
                kind: "text/plain; version=0.0.4; charset=utf-8",
                challenge: "",
                body: page.plain_text(),
            },
        }
    }
}

impl Reply {
    fn bytes(&self) -> Vec<u8> {
        let head = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n{}\
             Connection: close\r\n\r\n",
            self.status,
            self.kind,
            self.body.len(),
            self.challenge,
        );
        [head.as_bytes(), self.body.as_bytes()].concat()
    }

    fn text(status: &'static str, body: &str) -> Reply {
        Reply { status, kind: "text/plain; charset=utf-8", challenge: "", body: body.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Metric;

    static ANSWER: Metric = Metric::counter("forebay_answer", &[], "An answer");

    fn server(token: Option<Token>) -> Server {
        let render: Render = Box::new(|| {
            let mut page = Page::new();
            page.count(&ANSWER, &[], 42);
            Some(page)
        });
        let gone: Render = Box::new(|| None);
        let pages = vec![("/metrics", render), ("/metrics/gone", gone)];
        Server::start(Listen { address: "127.0.0.1:0".parse().unwrap(), token, tls: None }, pages)
            .unwrap()
    }

    fn ask(server: &Server, request: &str) -> String {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn a_page_comes_in_the_format_that_the_asker_knows() {
        let server = server(None);
        let open = ask(&server, "GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(
            open.starts_with("HTTP/1.1 200 OK\r\n")
                && open.ends_with("forebay_answer_total 42\n# EOF\n"),
            "{open}"
        );
        assert!(open.contains("Content-Type: application/openmetrics-text"), "{open}");
        let plain =
            ask(&server, "GET /metrics HTTP/1.1\r\naccept: text/plain;version=0.0.4\r\n\r\n");
        assert!(
            plain.contains("# TYPE forebay_answer_total counter") && !plain.contains("EOF"),
            "{plain}"
        );
        let both = "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n\r\n";
        assert!(ask(&server, both).ends_with("# EOF\n"));
    }

    #[test]
    fn whatever_else_is_asked_is_refused() {
        let server = server(None);
        let status = |request: &str| ask(&server, request).lines().next().unwrap().to_owned();
        assert_eq!(status("GET /nope HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found");
        assert_eq!(status("POST /metrics HTTP/1.1\r\n\r\n"), "HTTP/1.1 405 Method Not Allowed");
        assert_eq!(
            status("GET /metrics/gone HTTP/1.1\r\n\r\n"),
            "HTTP/1.1 503 Service Unavailable"
        );
        assert_eq!(status("\u{1}\u{2}\r\n\r\n"), "HTTP/1.1 400 Bad Request");
        let start = "GET /metrics HTTP/1.1\r\nA: ";
        let endless = format!("{start}{}", "x".repeat(HEAD_MAX - start.len()));
        assert_eq!(status(&endless), "HTTP/1.1 431 Request Header Fields Too Large");
    }

    #[test]
    fn without_the_token_nobody_is_answered() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "0123456789abcdef").unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
        let server = server(Some(Token::read(&file).unwrap()));
        let refused = ask(&server, "GET /metrics HTTP/1.1\r\n\r\n");
        assert!(
            refused.starts_with("HTTP/1.1 401 ") && refused.contains("WWW-Authenticate: Bearer"),
            "{refused}"
        );
        let known =
            ask(&server, "GET /metrics HTTP/1.1\r\nAuthorization: Bearer 0123456789abcdef\r\n\r\n");
        assert!(
            known.starts_with("HTTP/1.1 200 OK\r\n") && !known.contains("WWW-Authenticate"),
            "{known}"
        );
    }

    #[test]
    fn silent_monitors_do_not_keep_others_waiting_for_ever() {
        let server = server(None);
        let silent: Vec<TcpStream> =
            (0..WORKERS).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
        assert!(ask(&server, "GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 OK"));
        drop(silent);
    }
}
