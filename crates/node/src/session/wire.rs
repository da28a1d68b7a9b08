//! One connection of a session: TLS over TCP that many threads write to and one at a time reads from.
//!
//! A frame is written by the thread that sends it as far as the kernel takes it at once; what is left is written by a thread
//! of the connection. So nobody waits for a slow receiver here: how much can be left is bounded by the windows of the
//! session. Who reads, decrypts, and hands frames to the [`Sink`]: `receiving.rs`.

mod receiving;

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustls::Connection;

use self::receiving::Receiving;
use super::frame::{Decoder, Frame, Outgoing};

/// Bytes of a payload that are encrypted at a time.
const PIECE_BYTES: usize = 128 << 10;

/// What hears of a connection.
pub trait Sink: Send + Sync {
    /// A frame has arrived. An error ends the connection. Work is only returned if the thread that reads [may do it](Serving).
    fn frame(
        &self,
        wire: &Arc<Wire>,
        frame: Frame,
        serving: Serving,
    ) -> Result<Option<Work>, String>;
    /// Some time has passed.
    fn tick(&self, wire: &Arc<Wire>);
    /// The connection is over.
    fn closed(&self, wire: &Arc<Wire>, reason: &str);
}

/// A call that the thread that received it carries out.
pub type Work = Box<dyn FnOnce() + Send>;

/// Which thread may carry out a call that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving {
    /// The one that received it: another thread of the connection reads meanwhile.
    Here,
    /// One of the crew.
    Crew,
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
    receiving: Receiving,
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
        let receiving = Receiving::new(&socket)?;
        let tls = Tls { connection, queue: VecDeque::new(), sending: None };
        Ok(Arc::new(Wire {
            lane,
            socket,
            tls: Mutex::new(tls),
            receiving,
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
        // Otherwise a thread of the connection waits for the kernel to take more.
        let outcome = if was_idle { tls.pump(&self.socket) } else { Ok(true) };
        drop(tls);
        match outcome {
            Ok(true) => {}
            Ok(false) => self.await_room(),
            Err(_) => self.close(),
        }
    }

    /// Ends the connection; one of its threads calls [`Sink::closed`].
    pub fn close(&self) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            let _ = self.socket.shutdown(std::net::Shutdown::Both);
            self.receiving.wake_all();
        }
    }

    /// Whether it was ended.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}
