//! Carries bytes between a local socket and a TLS connection, both ways, in one thread that waits for whichever is ready.
//!
//! At most a TLS record's worth of bytes lies here in each direction: whoever reads slowly holds up the sender, and nobody else.
//! A side that writes no more ends its direction only (close_notify there, shutdown here). A side that is gone ends both, once what it said
//! last has been passed on.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt;
use rustls::Connection;

/// Bytes that are read from the local socket at a time.
const READ_BYTES: usize = 32 << 10;

/// How often the rest of what a far side sends is read, at most.
const LINGER_READS: u32 = 256;

/// A peer whose machine or network is gone is noticed within about twice this time.
const SILENCE: Duration = Duration::from_secs(5);

struct Pump<'a> {
    tls: Connection,
    far: TcpStream,
    near: &'a UnixStream,
    /// What the far side has said and the near side has not taken.
    out: Vec<u8>,
    /// The near side writes no more.
    near_ended: bool,
    /// The near side takes nothing more.
    near_deaf: bool,
    /// The far side writes no more.
    far_ended: bool,
    /// The far side is gone.
    far_gone: bool,
    /// The near side was told that nothing more comes.
    near_told: bool,
    buffer: Vec<u8>,
}

/// Carries until it is over.
///
/// # Errors
/// Why the connection broke.
pub fn carry(mut tls: Connection, mut far: TcpStream, near: &UnixStream) -> io::Result<()> {
    // A near side that ends before the far side is known would take its last words along.
    if tls.is_handshaking() {
        tls.complete_io(&mut far)?;
    }
    far.set_read_timeout(None)?;
    far.set_write_timeout(None)?;
    far.set_nonblocking(true)?;
    far.set_nodelay(true)?;
    sockopt::set_socket_keepalive(&far, true)?;
    sockopt::set_tcp_keepidle(&far, SILENCE)?;
    sockopt::set_tcp_keepintvl(&far, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(&far, 5)?;
    let silence_ms = u32::try_from(2 * SILENCE.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(&far, silence_ms)?;
    near.set_nonblocking(true)?;
    let mut pump = Pump {
        tls,
        far,
        near,
        out: Vec::new(),
        near_ended: false,
        near_deaf: false,
        far_ended: false,
        far_gone: false,
        near_told: false,
        buffer: vec![0; READ_BYTES],
    };
    let ended = pump.run();
    // Whoever is left finds out, and a late word of ours does not keep the other side waiting.
    let _ = near.shutdown(Shutdown::Both);
    let _ = pump.far.shutdown(Shutdown::Write);
    linger(&mut pump.far);
    ended
}

/// Takes what the far side still sends, until it ends too. Bytes that nobody has read when a socket is closed make the kernel
/// reset the connection, and the far side then loses what it has not read yet.
fn linger(far: &mut TcpStream) {
    let mut rest = vec![0; READ_BYTES];
    let pause = rustix::event::Timespec { tv_sec: 2, tv_nsec: 0 };
    for _ in 0..LINGER_READS {
        let mut only = [PollFd::new(&*far, PollFlags::IN)];
        if !poll(&mut only, Some(&pause)).is_ok_and(|ready| ready > 0) {
            return;
        }
        if !matches!(done(far.read(&mut rest)), Ok(None | Some(1..))) {
            return;
        }
    }
}

/// Whether a call failed because the other end is closed.
fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}

/// What a call without waiting has done.
fn done<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Ok(done) => Ok(Some(done)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

impl Pump<'_> {
    fn run(&mut self) -> io::Result<()> {
        // What came together with the greeting.
        self.decrypt()?;
        loop {
            let moved = self.receive()? | self.deliver()? | self.take()? | self.send()?;
            if self.far_ended && self.out.is_empty() && !self.near_told {
                self.near_told = true;
                let _ = self.near.shutdown(Shutdown::Write);
            }
            let is_said = self.near_ended && !self.tls.wants_write();
            let is_heard = (self.far_ended || self.far_gone) && self.out.is_empty();
            if is_heard && (is_said || self.far_gone) {
                return Ok(());
            }
            if !moved && !self.wait()? {
                return Ok(());
            }
        }
    }

    /// Reads from the far side, once the near side has taken what came before.
    fn receive(&mut self) -> io::Result<bool> {
        if !self.out.is_empty() || self.far_ended || self.far_gone {
            return Ok(false);
        }
        match done(self.tls.read_tls(&mut self.far))? {
            None => Ok(false),
            Some(0) => {
                self.far_gone = true;
                Ok(true)
            }
            Some(_) => {
                self.decrypt()?;
                Ok(true)
            }
        }
    }

    fn decrypt(&mut self) -> io::Result<()> {
        let state = self.tls.process_new_packets().map_err(io::Error::other)?;
        let start = self.out.len();
        self.out.resize(start + state.plaintext_bytes_to_read(), 0);
        if state.plaintext_bytes_to_read() > 0 {
            self.tls.reader().read_exact(&mut self.out[start..])?;
        }
        self.far_ended |= state.peer_has_closed();
        Ok(())
    }

    /// Hands on to the near side. One that takes nothing more may have said why before it closed, such as a controller that serves nobody
    /// here: what comes for it is dropped, and what it said is still read.
    fn deliver(&mut self) -> io::Result<bool> {
        if self.out.is_empty() {
            return Ok(false);
        }
        let count = match (&mut &*self.near).write(&self.out) {
            _ if self.near_deaf => self.out.len(),
            Err(error) if is_closed(&error) => {
                self.near_deaf = true;
                self.out.len()
            }
            written => match done(written)? {
                Some(count) => count,
                None => return Ok(false),
            },
        };
        self.out.drain(..count);
        Ok(true)
    }

    /// Reads from the near side, once the far side has taken what came before.
    fn take(&mut self) -> io::Result<bool> {
        if self.near_ended || self.tls.wants_write() {
            return Ok(false);
        }
        let read = match (&mut &*self.near).read(&mut self.buffer) {
            // It closed before it took all; what it said was read before.
            Err(error) if is_closed(&error) => Ok(0),
            read => read,
        };
        match done(read)? {
            None => Ok(false),
            Some(0) => {
                self.near_ended = true;
                self.tls.send_close_notify();
                Ok(true)
            }
            Some(count) => {
                self.tls.writer().write_all(&self.buffer[..count])?;
                Ok(true)
            }
        }
    }

    fn send(&mut self) -> io::Result<bool> {
        let mut moved = false;
        while self.tls.wants_write() {
            if done(self.tls.write_tls(&mut self.far))?.is_none() {
                break;
            }
            moved = true;
        }
        Ok(moved)
    }

    /// Waits until something can move; false if the near side is gone and nothing is left to be sent.
    fn wait(&mut self) -> io::Result<bool> {
        let mut near = PollFlags::empty();
        near.set(PollFlags::IN, !self.near_ended && !self.tls.wants_write());
        near.set(PollFlags::OUT, !self.out.is_empty());
        let mut far = PollFlags::empty();
        far.set(PollFlags::IN, self.out.is_empty() && !self.far_ended && !self.far_gone);
        // After its last word only its end can come.
        far.set(PollFlags::RDHUP, self.far_ended);
        far.set(PollFlags::OUT, self.tls.wants_write());
        let (far, is_near_gone) = {
            let mut both = [PollFd::new(self.near, near), PollFd::new(&self.far, far)];
            match poll(&mut both, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let gone = PollFlags::HUP | PollFlags::ERR;
            (both[1].revents(), both[0].revents().intersects(gone) && self.near_ended)
        };
        let is_over = PollFlags::ERR | PollFlags::RDHUP | PollFlags::HUP;
        if far.intersects(is_over) && !far.contains(PollFlags::IN) {
            self.far_gone = true;
        }
        // What it said last is on its way, unless the far side takes nothing.
        if is_near_gone && self.tls.wants_write() && !far.contains(PollFlags::OUT) {
            let mut only = [PollFd::new(&self.far, PollFlags::OUT)];
            let limit = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
            return Ok(poll(&mut only, Some(&limit)).is_ok_and(|ready| ready > 0));
        }
        Ok(!is_near_gone || self.tls.wants_write())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread::{JoinHandle, spawn};

    use forebay_base::{NodeId, Timestamp};
    use rustls::{ClientConnection, ServerConnection};
    use uuid::Uuid;

    use super::*;
    use crate::authority::{Authority, Subject, new_key};
    use crate::session::{Credentials, Identity};

    fn credentials(authority: &Authority, node: u32) -> Credentials {
        let subject = Subject { cluster: Uuid::from_u128(1), node: NodeId(node) };
        let key = new_key().unwrap();
        let now = Timestamp { seconds: 1_700_000_000, nanoseconds: 0 };
        let life = Duration::from_hours(24 * 365 * 20);
        let issued = authority.issue(subject, key.public_key_raw(), &[], life, now).unwrap();
        let identity = Identity {
            subject,
            certificate: issued.certificate,
            key: key.serialize_pem(),
            authority: authority.certificate().to_owned(),
        };
        identity.credentials().unwrap()
    }

    type Carried = JoinHandle<io::Result<()>>;

    /// Both ends of a TLS connection: the client's and the server's.
    fn ends() -> (Connection, Connection) {
        let now = Timestamp { seconds: 1_700_000_000, nanoseconds: 0 };
        let authority = Authority::make(Uuid::from_u128(1), now).unwrap();
        let (caller, callee) = (credentials(&authority, 1), credentials(&authority, 2));
        let name = callee.subject.server_name().unwrap();
        let client = ClientConnection::new(caller.client, name).unwrap();
        (client.into(), ServerConnection::new(callee.server).unwrap().into())
    }

    /// Two sockets that are connected.
    fn sockets() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (socket, listener.accept().unwrap().0)
    }

    /// Two sockets that two pumps connect, and the threads of the pumps.
    fn connected() -> (UnixStream, UnixStream, [Carried; 2]) {
        let ((client, server), (socket, accepted)) = (ends(), sockets());
        let (ours, near) = UnixStream::pair().unwrap();
        let (theirs, far) = UnixStream::pair().unwrap();
        let threads = [
            spawn(move || carry(client, socket, &near)),
            spawn(move || carry(server, accepted, &far)),
        ];
        (ours, theirs, threads)
    }

    fn bytes(seed: u8) -> Vec<u8> {
        (0..3_000_000_u32).map(|at| (at % 251) as u8 ^ seed).collect()
    }

    #[test]
    fn bytes_travel_both_ways_at_once_and_the_end_of_one_way_ends_no_other() {
        let (mut ours, mut theirs, threads) = connected();
        let mut sending = [ours.try_clone().unwrap(), theirs.try_clone().unwrap()];
        let senders: Vec<_> = [7, 9]
            .into_iter()
            .zip(sending.each_mut().map(|stream| stream.try_clone().unwrap()))
            .map(|(seed, mut stream)| spawn(move || stream.write_all(&bytes(seed)).unwrap()))
            .collect();
        let mut heard = vec![0; 3_000_000];
        theirs.read_exact(&mut heard).unwrap();
        assert!(heard == bytes(7));
        ours.read_exact(&mut heard).unwrap();
        assert!(heard == bytes(9));
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        // One side says no more, and still hears.
        ours.shutdown(Shutdown::Write).unwrap();
        assert_eq!(theirs.read(&mut heard).unwrap(), 0);
        theirs.write_all(b"late").unwrap();
        ours.read_exact(&mut heard[..4]).unwrap();
        assert_eq!(&heard[..4], b"late");
        drop(sending);
        drop(theirs);
        assert_eq!(ours.read(&mut heard).unwrap(), 0);
        for thread in threads {
            let _ = thread.join().unwrap();
        }
    }

    /// Exchanges the greetings of TLS, and has the client say something that the server has not read yet.
    fn greeted(words: &[u8]) -> (Connection, TcpStream, Connection, TcpStream) {
        let (mut client, mut server) = ends();
        let (mut socket, mut accepted) = sockets();
        let hands = spawn(move || {
            client.complete_io(&mut socket).unwrap();
            (client, socket)
        });
        server.complete_io(&mut accepted).unwrap();
        let (mut client, mut socket) = hands.join().unwrap();
        client.writer().write_all(words).unwrap();
        while client.wants_write() {
            client.write_tls(&mut socket).unwrap();
        }
        accepted.peek(&mut [0]).unwrap();
        (client, socket, server, accepted)
    }

    #[test]
    fn what_a_side_says_before_it_closes_arrives_although_it_did_not_listen() {
        let (client, socket, server, accepted) = greeted(b"question");
        let (mut ours, near) = UnixStream::pair().unwrap();
        let (mut theirs, far) = UnixStream::pair().unwrap();
        theirs.write_all(b"refused").unwrap();
        drop(theirs);
        let threads = [
            spawn(move || carry(client, socket, &near)),
            spawn(move || carry(server, accepted, &far)),
        ];
        let mut heard = Vec::new();
        ours.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, b"refused");
        drop(ours);
        for thread in threads {
            let _ = thread.join().unwrap();
        }
    }

    #[test]
    fn a_side_that_goes_away_ends_both() {
        let (ours, mut theirs, threads) = connected();
        (&ours).write_all(b"last").unwrap();
        drop(ours);
        let mut heard = Vec::new();
        theirs.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, b"last");
        for thread in threads {
            let _ = thread.join().unwrap();
        }
        // Nobody takes it any more.
        assert!((0..100).any(|_| theirs.write_all(b"x").is_err()));
    }
}
