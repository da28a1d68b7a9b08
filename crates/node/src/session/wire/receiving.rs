//! Who reads a connection: one thread at a time, and as few wake-ups as possible.
//!
//! The connection's own threads wait for events of an epoll set. Each event of the socket is its only one until the socket is
//! *armed* again, so it wakes one thread, which takes the receiving side ([`Incoming`]), reads, hands the frames to the [`Sink`],
//! gives the receiving side back and arms the socket. Two exceptions save wake-ups:
//!
//! - **A thread that serves.** If the last frame that arrived is a call, the own thread carries it out itself, after it has armed the
//!   socket: no thread of the crew has to be woken. At most one of the two own threads of a connection serves, so the other one
//!   always reads, however long the call takes. The second thread is started with the first call. The kernel wakes the one
//!   that began to wait last, so the second sleeps unless the first is busy.
//! - **A caller that waits for its answer** may take the receiving side and read itself ([`Wire::read_while`]): the own threads are not
//!   woken, because the socket is not armed. It never serves a call, and gives the receiving side back as soon as it has its answer.
//!
//! No event is lost: everyone who holds the receiving side arms the socket *after* giving it back, and arming reports what
//! arrived before. A thread that finds the receiving side taken can therefore wait for the next event.
//! Writing what the kernel did not take at once, keepalives and the end of a connection are left to the own threads in any case.

use std::io::{self, Read as _};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::super::frame::{Decoder, Frame, Kind, Malformed};
use super::super::tls;
use super::{Serving, Sink, Wire, Work};

/// Bytes that are read from the socket at a time.
const READ_BYTES: usize = 128 << 10;

/// What an event is about.
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
const CLOSED: u64 = 3;

/// What one thread at a time has of a connection.
#[derive(Default)]
struct Incoming {
    decoder: Decoder,
    sealed: Vec<u8>,
    plain: Vec<u8>,
    /// What arrived together with the greeting was handed on.
    has_started: bool,
    /// The sink was told that the connection is over, or is about to be: no further frame reaches it.
    is_over: bool,
    /// Why a caller that read has ended the connection.
    fault: Option<String>,
}

/// The receiving side of a connection.
pub(super) struct Receiving {
    epoll: OwnedFd,
    /// The socket under another descriptor, so that writing is awaited apart from reading.
    writing: TcpStream,
    incoming: Mutex<Incoming>,
    /// Readable once the connection is closed.
    closing: OwnedFd,
    /// Wakes a caller that reads.
    caller: OwnedFd,
    has_second: AtomicBool,
    /// One of the own threads carries out a call.
    is_serving: AtomicBool,
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

fn bell() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

fn ring(bell: &OwnedFd) {
    // Full or interrupted: it was rung already.
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

fn explained(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        "the other side closed the connection".to_owned()
    } else {
        tls::explained(error)
    }
}

impl Receiving {
    pub(super) fn new(socket: &TcpStream) -> io::Result<Receiving> {
        let (epoll, closing) = (epoll::create(CreateFlags::CLOEXEC)?, bell()?);
        let writing = socket.try_clone()?;
        let unarmed = EventFlags::ONESHOT;
        epoll::add(&epoll, socket, EventData::new_u64(READABLE), unarmed)?;
        epoll::add(&epoll, &writing, EventData::new_u64(WRITABLE), unarmed)?;
        epoll::add(&epoll, &closing, EventData::new_u64(CLOSED), EventFlags::IN)?;
        Ok(Receiving {
            epoll,
            writing,
            incoming: Mutex::default(),
            closing,
            caller: bell()?,
            has_second: AtomicBool::new(false),
            is_serving: AtomicBool::new(false),
        })
    }

    /// Every own thread finds that the connection is closed.
    pub(super) fn wake_all(&self) {
        ring(&self.closing);
    }

    /// The next event, if there is one before the time has passed.
    fn event(&self, pace: Duration) -> io::Result<Option<u64>> {
        // One: the kernel wakes another thread for the next.
        let mut events = [MaybeUninit::uninit()];
        match epoll::wait(&self.epoll, &mut events, Some(&timespec(pace))) {
            Ok((events, _)) => Ok(events.first().map(|event| event.data.u64())),
            Err(rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Wire {
    /// Arms the socket: the own threads get one event when something can be read. Without flags it is disarmed.
    fn await_input(&self, flags: EventFlags) {
        let data = EventData::new_u64(READABLE);
        let flags = flags | EventFlags::ONESHOT;
        if let Err(error) = epoll::modify(&self.receiving.epoll, &self.socket, data, flags) {
            // Nobody would hear of the connection any more.
            tracing::warn!("a connection cannot be watched and is closed: {error}");
            self.close();
        }
    }

    fn arm(&self) {
        self.await_input(EventFlags::IN);
    }

    /// Has an own thread write the rest as soon as the kernel takes more.
    pub(super) fn await_room(&self) {
        let Receiving { epoll, writing, .. } = &self.receiving;
        let data = EventData::new_u64(WRITABLE);
        let flags = EventFlags::OUT | EventFlags::ONESHOT;
        if let Err(error) = epoll::modify(epoll, writing, data, flags) {
            tracing::warn!("a connection cannot be watched and is closed: {error}");
            self.close();
        }
    }

    /// Reads until the connection ends. `pace` is how often the sink hears that time passes.
    pub fn run(self: &Arc<Self>, sink: &Arc<dyn Sink>, pace: Duration) {
        let started = self.start(&**sink);
        self.arm();
        let outcome = started.and_then(|()| self.read_on(sink, pace));
        self.finish(&**sink, outcome.err());
    }

    /// Hands on what came in one piece with the greeting.
    fn start(self: &Arc<Self>, sink: &dyn Sink) -> Result<(), String> {
        let mut incoming = self.receiving.incoming.lock();
        let Incoming { decoder, sealed, plain, has_started, .. } = &mut *incoming;
        *sealed = vec![0; READ_BYTES];
        *plain = vec![0; READ_BYTES];
        *has_started = true;
        self.tls.lock().drain(decoder, plain).map_err(|error| explained(&error))?;
        while let Some(frame) = decoder.take().map_err(|error| error.to_string())? {
            sink.frame(self, frame, Serving::Crew)?;
        }
        Ok(())
    }

    fn read_on(self: &Arc<Self>, sink: &Arc<dyn Sink>, pace: Duration) -> Result<(), String> {
        loop {
            sink.tick(self);
            if self.is_closed() {
                return Ok(());
            }
            match self.receiving.event(pace).map_err(|error| error.to_string())? {
                Some(READABLE) => self.receive(sink, pace)?,
                Some(WRITABLE) => {
                    let is_written = self.tls.lock().pump(&self.socket);
                    if !is_written.map_err(|error| explained(&error))? {
                        self.await_room();
                    }
                }
                _ => {}
            }
        }
    }

    /// Reads what there is, and carries out the last of it if that is a call.
    fn receive(self: &Arc<Self>, sink: &Arc<dyn Sink>, pace: Duration) -> Result<(), String> {
        // A caller that reads arms the socket afterwards.
        let Some(mut incoming) = self.receiving.incoming.try_lock() else { return Ok(()) };
        let mut work: Option<Work> = None;
        let outcome = self.take_in(&mut incoming, |frame, is_last| {
            let is_call = frame.header.kind == Kind::Request;
            if !is_call || !is_last || !self.may_serve(sink, pace) {
                sink.frame(self, frame, Serving::Crew)?;
                return Ok(());
            }
            let taken = sink.frame(self, frame, Serving::Here);
            if !matches!(taken, Ok(Some(_))) {
                self.receiving.is_serving.store(false, Ordering::Release);
            }
            work = taken?;
            Ok(())
        });
        drop(incoming);
        self.arm();
        if let Some(work) = work {
            work();
            self.receiving.is_serving.store(false, Ordering::Release);
        }
        outcome
    }

    /// Whether this thread may carry out a call: the other one reads meanwhile. Then it is noted as serving.
    fn may_serve(self: &Arc<Self>, sink: &Arc<dyn Sink>, pace: Duration) -> bool {
        // What travels on the other connections is large, and takes long.
        self.lane == 0
            && self.start_second(sink, pace)
            && !self.receiving.is_serving.swap(true, Ordering::AcqRel)
    }

    /// Starts the second thread, with the receiving side held.
    fn start_second(self: &Arc<Self>, sink: &Arc<dyn Sink>, pace: Duration) -> bool {
        if self.receiving.has_second.load(Ordering::Relaxed) {
            return true;
        }
        let name = std::thread::current().name().unwrap_or("wire").to_owned();
        let (wire, sink) = (Arc::clone(self), Arc::clone(sink));
        let reading = move || {
            let outcome = wire.read_on(&sink, pace);
            wire.finish(&*sink, outcome.err());
        };
        // Without it, the crew carries out every call, and the next one tries again.
        let has_started = std::thread::Builder::new().name(name).spawn(reading).is_ok();
        self.receiving.has_second.store(has_started, Ordering::Relaxed);
        has_started
    }

    /// Reads in the place of the connection's own threads as long as the caller `waits` for its answer. Returns at once if another
    /// thread reads just now, and when the connection is closed. [`Wire::wake_caller`] has it look again whether it waits.
    pub fn read_while(self: &Arc<Self>, sink: &dyn Sink, waits: impl Fn() -> bool) {
        let Some(mut incoming) = self.receiving.incoming.try_lock() else { return };
        if incoming.has_started {
            self.await_input(EventFlags::empty());
            let outcome = self.read_for_caller(&mut incoming, sink, waits);
            if let Err(fault) = outcome {
                incoming.fault = Some(fault);
                self.close();
            }
        }
        drop(incoming);
        self.arm();
    }

    fn read_for_caller(
        self: &Arc<Self>,
        incoming: &mut MutexGuard<'_, Incoming>,
        sink: &dyn Sink,
        waits: impl Fn() -> bool,
    ) -> Result<(), String> {
        while waits() && !self.is_closed() {
            let caller = &self.receiving.caller;
            let mut files =
                [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(caller, PollFlags::IN)];
            match poll(&mut files, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.to_string()),
            }
            let [socket, woken] = files.map(|file| !file.revents().is_empty());
            if woken {
                let _ = rustix::io::read(caller, &mut [0; 8]);
            }
            if socket {
                self.take_in(incoming, |frame, _| {
                    sink.frame(self, frame, Serving::Crew).map(drop)
                })?;
            }
        }
        Ok(())
    }

    /// Has the caller that reads, if there is one, look whether it still waits.
    pub fn wake_caller(&self) {
        ring(&self.receiving.caller);
    }

    /// Reads all that there is, and hands on each frame; whether it is the last one.
    fn take_in(
        &self,
        incoming: &mut Incoming,
        mut hand_on: impl FnMut(Frame, bool) -> Result<(), String>,
    ) -> Result<(), String> {
        if incoming.is_over {
            return Ok(());
        }
        loop {
            let count = self.exchange(incoming).map_err(|error| explained(&error))?;
            let is_all = count < READ_BYTES;
            let malformed = |error: Malformed| error.to_string();
            let mut next = incoming.decoder.take().map_err(malformed)?;
            while let Some(frame) = next {
                next = incoming.decoder.take().map_err(malformed)?;
                hand_on(frame, is_all && next.is_none())?;
            }
            if is_all {
                return Ok(());
            }
        }
    }

    /// Reads what is there. How many bytes.
    fn exchange(&self, incoming: &mut Incoming) -> io::Result<usize> {
        let Incoming { decoder, sealed, plain, .. } = incoming;
        let count = match (&self.socket).read(sealed) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                return Ok(0);
            }
            Err(error) => return Err(error),
        };
        let mut left = &sealed[..count];
        let mut tls = self.tls.lock();
        while !left.is_empty() {
            tls.connection.read_tls(&mut left)?;
            tls.connection.process_new_packets().map_err(io::Error::other)?;
            tls.drain(decoder, plain)?;
        }
        // What TLS itself has to say.
        let is_written = !tls.connection.wants_write() || tls.pump(&self.socket)?;
        drop(tls);
        if !is_written {
            self.await_room();
        }
        Ok(count)
    }

    /// Ends the connection. The first thread to get here tells the sink, when no other one hands frames to it.
    fn finish(self: &Arc<Self>, sink: &dyn Sink, fault: Option<String>) {
        self.close();
        let fault = {
            let mut incoming = self.receiving.incoming.lock();
            if std::mem::replace(&mut incoming.is_over, true) {
                return;
            }
            incoming.fault.take().or(fault).unwrap_or_default()
        };
        sink.closed(self, &fault);
        let mut tls = self.tls.lock();
        tls.queue.clear();
        tls.sending = None;
    }
}
