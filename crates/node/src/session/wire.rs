//! One connection of a session: TLS over TCP that many threads write to and one reads from.
//!
//! A frame is written by the thread that sends it as far as the kernel takes it at once; what is left is written by the
//! connection's own thread. So nobody waits for a slow receiver here: how much can be left is bounded by the windows of the
//! session. The own thread reads, decrypts, and hands frames to the [`Sink`].

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustls::Connection;

use super::frame::{Decoder, Frame, Outgoing};

/// Bytes that are read from the socket at a time.
const READ_BYTES: usize = 128 << 10;

/// Bytes of a payload that are encrypted at a time.
const PIECE_BYTES: usize = 128 << 10;

/// What hears of a connection.
pub trait Sink: Send + Sync {
    /// A frame has arrived. An error ends the connection.
    fn frame(&self, wire: &Arc<Wire>, frame: Frame) -> Result<(), String>;
    /// Some time has passed.
    fn tick(&self, wire: &Arc<Wire>);
    /// The connection is over.
    fn closed(&self, wire: &Arc<Wire>, reason: &str);
}

/// A frame of which a part has been encrypted.
struct Sending {
    frame: Outgoing,
    /// Bytes of the payload that are done.
    done: usize,
}

struct Tls {
    connection: Connection,
    queue: VecDeque<Outgoing>,
    sending: Option<Sending>,
}

/// A connection.
pub struct Wire {
    /// Which connection of the session it is.
    pub lane: u8,
    socket: TcpStream,
    tls: Mutex<Tls>,
    /// Wakes the own thread.
    bell: OwnedFd,
    closed: AtomicBool,
}

impl Tls {
    /// Writes as much as the kernel takes. Whether all is written.
    fn pump(&mut self, mut socket: &TcpStream) -> io::Result<bool> {
        loop {
            while self.connection.wants_write() {
                match self.connection.write_tls(&mut socket) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            if !self.encrypt_piece()? {
                return Ok(true);
            }
        }
    }

    /// Encrypts small frames together, or a piece of a large one. Whether there was anything.
    fn encrypt_piece(&mut self) -> io::Result<bool> {
        let mut budget = PIECE_BYTES;
        let mut some = false;
        while budget > 0 {
            if self.sending.is_none() {
                let Some(frame) = self.queue.pop_front() else { break };
                let mut writer = self.connection.writer();
                writer.write_all(&frame.header_bytes())?;
                writer.write_all(&frame.body.head)?;
                budget = budget.saturating_sub(frame.body.head.len() + 64);
                self.sending = Some(Sending { frame, done: 0 });
            }
            some = true;
            let Some(sending) = &mut self.sending else { break };
            let payload = &sending.frame.body.payload[sending.done..];
            let piece = &payload[..payload.len().min(budget)];
            self.connection.writer().write_all(piece)?;
            budget -= piece.len();
            sending.done += piece.len();
            if sending.done == sending.frame.body.payload.len() {
                self.sending = None;
            } else {
                break;
            }
        }
        Ok(some)
    }

    /// Hands the bytes that TLS has decrypted to the decoder.
    fn drain(&mut self, decoder: &mut Decoder, plain: &mut [u8]) -> io::Result<()> {
        loop {
            match self.connection.reader().read(plain) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => decoder.feed(&plain[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

impl Wire {
    /// A connection whose greeting is over.
    ///
    /// # Errors
    /// If the socket cannot be set up.
    pub fn new(lane: u8, socket: TcpStream, mut connection: Connection) -> io::Result<Arc<Wire>> {
        socket.set_read_timeout(None)?;
        socket.set_write_timeout(None)?;
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        // What is written is bounded by the windows.
        connection.set_buffer_limit(None);
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let tls = Tls { connection, queue: VecDeque::new(), sending: None };
        Ok(Arc::new(Wire {
            lane,
            socket,
            tls: Mutex::new(tls),
            bell,
            closed: AtomicBool::new(false),
        }))
    }

    /// Sends frames in this order. If the connection is over, they go nowhere, and [`Sink::closed`] is called or was.
    pub fn send(&self, frames: impl IntoIterator<Item = Outgoing>) {
        if self.closed.load(Ordering::Acquire) {
            return;
        }
        let mut tls = self.tls.lock();
        let was_idle = tls.queue.is_empty() && tls.sending.is_none();
        tls.queue.extend(frames);
        // Otherwise the own thread waits for the kernel to take more.
        let outcome = if was_idle { tls.pump(&self.socket) } else { Ok(true) };
        drop(tls);
        match outcome {
            Ok(true) => {}
            Ok(false) => self.ring(),
            Err(_) => self.close(),
        }
    }

    fn ring(&self) {
        // Full or interrupted: the thread is awake.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Ends the connection; its thread calls [`Sink::closed`].
    pub fn close(&self) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            let _ = self.socket.shutdown(std::net::Shutdown::Both);
            self.ring();
        }
    }

    /// Whether it was ended.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Reads until the connection ends. `pace` is how often the sink hears that time passes.
    pub fn run(self: &Arc<Self>, sink: &dyn Sink, pace: Duration) {
        let reason = self.read_on(sink, pace).err().unwrap_or_default();
        self.close();
        sink.closed(self, &reason);
        let mut tls = self.tls.lock();
        tls.queue.clear();
        tls.sending = None;
    }

    fn read_on(self: &Arc<Self>, sink: &dyn Sink, pace: Duration) -> Result<(), String> {
        let mut buffers = Buffers { sealed: vec![0; READ_BYTES], plain: vec![0; READ_BYTES] };
        let mut decoder = Decoder::default();
        // What came in one piece with the greeting.
        let early = self.tls.lock().drain(&mut decoder, &mut buffers.plain);
        early.map_err(|error| error.to_string())?;
        loop {
            while let Some(frame) = decoder.take().map_err(|error| error.to_string())? {
                sink.frame(self, frame)?;
            }
            sink.tick(self);
            if self.is_closed() {
                return Ok(());
            }
            self.wait(pace).map_err(|error| error.to_string())?;
            self.exchange(&mut decoder, &mut buffers).map_err(|error| {
                if error.kind() == io::ErrorKind::UnexpectedEof {
                    "the other side closed the connection".to_owned()
                } else {
                    super::tls::explained(&error)
                }
            })?;
        }
    }

    /// Waits until there is something to read or, if something is left to be written, room to write.
    fn wait(&self, pace: Duration) -> io::Result<()> {
        let left = {
            let mut tls = self.tls.lock();
            !tls.pump(&self.socket)?
        };
        let mut interest = PollFlags::IN;
        if left {
            interest |= PollFlags::OUT;
        }
        let mut files =
            [PollFd::new(&self.socket, interest), PollFd::new(&self.bell, PollFlags::IN)];
        let timeout = rustix::event::Timespec {
            tv_sec: i64::try_from(pace.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: pace.subsec_nanos().into(),
        };
        match poll(&mut files, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if files[1].revents().contains(PollFlags::IN) {
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.bell, &mut count);
        }
        Ok(())
    }

    /// Reads what is there.
    fn exchange(&self, decoder: &mut Decoder, buffers: &mut Buffers) -> io::Result<()> {
        let count = match (&self.socket).read(&mut buffers.sealed) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let mut sealed = &buffers.sealed[..count];
        let mut tls = self.tls.lock();
        while !sealed.is_empty() {
            tls.connection.read_tls(&mut sealed)?;
            tls.connection.process_new_packets().map_err(io::Error::other)?;
            tls.drain(decoder, &mut buffers.plain)?;
        }
        Ok(())
    }
}

struct Buffers {
    sealed: Vec<u8>,
    plain: Vec<u8>,
}
