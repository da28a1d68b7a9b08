//! Connecting to another node, and asking one question without a session.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_base::Clock;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Stream};
use uuid::Uuid;

use super::greeting::{GreetingError, Hello, Refusal, Welcome, greet};
use super::tls::explained;
use crate::error::{Error, Result};

/// A socket whose operations all end by one moment.
pub struct Timed<'a> {
    socket: &'a TcpStream,
    clock: &'a dyn Clock,
    until: Instant,
}

impl<'a> Timed<'a> {
    /// Gives everything that follows `time` in all. Greetings are short messages that wait for answers: none is held back for the
    /// acknowledgement of the one before, which the kernel of the other side delays by up to 40 ms.
    pub fn new(socket: &'a TcpStream, clock: &'a dyn Clock, time: Duration) -> Timed<'a> {
        // Without it they arrive all the same, later.
        let _ = socket.set_nodelay(true);
        Timed { socket, clock, until: clock.instant() + time }
    }

    /// Gives what follows from now on `time`.
    pub fn again(&mut self, time: Duration) {
        self.until = self.clock.instant() + time;
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(self.clock.instant());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

fn in_time<T>(outcome: io::Result<T>) -> io::Result<T> {
    outcome.map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::from(io::ErrorKind::TimedOut),
        _ => error,
    })
}

impl Read for Timed<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(self.left()?))?;
        in_time((&mut &*self.socket).read(into))
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(self.left()?))?;
        in_time((&mut &*self.socket).write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A hello that was accepted.
pub struct Connected {
    /// The connection, for frames or to be dropped.
    pub socket: TcpStream,
    /// Its TLS.
    pub tls: ClientConnection,
    /// The answer.
    pub welcome: Welcome,
    /// When the hello was sent.
    pub asked: Instant,
    /// How long the answer took.
    pub round_trip: Duration,
}

/// Why nobody was reached.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// Nobody answers, or TLS failed.
    #[error("{0}")]
    Broken(String),
    /// The other node refuses.
    #[error("{0}")]
    Refused(Refusal),
}

/// How a node is reached.
pub struct Target<'a> {
    /// HOST:PORT.
    pub address: &'a str,
    /// The name that its certificate must have.
    pub name: ServerName<'static>,
    /// This side's certificates.
    pub config: Arc<ClientConfig>,
    /// How long all of it may take.
    pub timeout: Duration,
}

/// Connects to the first address that takes a connection.
pub(crate) fn connect(target: &Target<'_>) -> std::result::Result<TcpStream, String> {
    let address = target.address;
    let found = address.to_socket_addrs().map_err(|error| {
        format!("{address}: the name cannot be resolved ({error}): check DNS or /etc/hosts")
    })?;
    match connect_any(found, target.timeout) {
        None => Err(format!("{address}: the name has no address")),
        Some(Ok(socket)) => Ok(socket),
        Some(Err(error)) => Err(match error.kind() {
            io::ErrorKind::ConnectionRefused => format!(
                "{address}: nothing listens on this port: start the node there (forebay cluster start), or open the port"
            ),
            io::ErrorKind::TimedOut => format!(
                "{address}: no answer within {:?}: is the machine up, and the port open in its firewall?",
                target.timeout
            ),
            _ => format!("{address}: {error}"),
        }),
    }
}

/// Connects to the first address that takes a connection within `timeout`, or says what the last one said; `None` if there is no
/// address.
pub(crate) fn connect_any(
    addresses: impl Iterator<Item = SocketAddr>,
    timeout: Duration,
) -> Option<io::Result<TcpStream>> {
    let mut latest = None;
    for address in addresses {
        let outcome = TcpStream::connect_timeout(&address, timeout);
        let is_done = outcome.is_ok();
        latest = Some(outcome);
        if is_done {
            break;
        }
    }
    latest
}

/// Connects and says hello.
///
/// # Errors
/// See [`DialError`].
pub fn dial(
    target: &Target<'_>,
    clock: &dyn Clock,
    hello: &Hello,
) -> std::result::Result<Connected, DialError> {
    let socket = connect(target).map_err(DialError::Broken)?;
    let broken = |reason: String| DialError::Broken(format!("{}: {reason}", target.address));
    let mut tls = ClientConnection::new(Arc::clone(&target.config), target.name.clone())
        .map_err(|error| broken(error.to_string()))?;
    let mut timed = Timed::new(&socket, clock, target.timeout);
    let mut stream = Stream::new(&mut tls, &mut timed);
    // Before the question, so that its time is no later than the other side's look at its clock.
    let asked = clock.instant();
    let welcome = greet(&mut stream, hello).map_err(|error| match error {
        GreetingError::Refused(refusal) => DialError::Refused(refusal),
        GreetingError::Malformed(reason) => broken(reason.to_owned()),
        GreetingError::Broken(error) if error.kind() == io::ErrorKind::TimedOut => broken(format!(
            "no answer within {:?}: the node there may be frozen or overloaded",
            target.timeout
        )),
        GreetingError::Broken(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            broken("the other side closed the connection".to_owned())
        }
        GreetingError::Broken(error) => broken(explained(&error)),
    })?;
    let round_trip = clock.instant().saturating_duration_since(asked);
    Ok(Connected { socket, tls, welcome, asked, round_trip })
}

/// Asks one question.
///
/// # Errors
/// If nobody answers, or refuses.
pub fn visit(
    target: &Target<'_>,
    clock: &dyn Clock,
    cluster: Uuid,
    question: Vec<u8>,
) -> Result<Vec<u8>> {
    match dial(target, clock, &Hello::Visit { cluster, question }) {
        Ok(Connected { welcome: Welcome::Visit { answer }, .. }) => Ok(answer),
        Ok(Connected { welcome: Welcome::Session { .. }, .. }) => Err(Error::Unreachable(format!(
            "{}: the answer cannot be understood; is it a different version?",
            target.address
        ))),
        Err(DialError::Broken(reason)) => Err(Error::Unreachable(reason)),
        Err(DialError::Refused(refusal)) => Err(Error::Refused(refusal)),
    }
}
