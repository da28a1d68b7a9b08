//! Requests over /dev/fuse.
//!
//! Quick requests are handled by the thread that read them, one after the other: waking another thread
//! costs more than the work. A thread that is about to handle a slow request (a sync, served bytes)
//! first lets another one read. So `readers` threads wait for requests at any one time, and `threads`
//! requests can be under way. Memory: one request and one answer of [`payload_max`] for each thread, of
//! which the system gives only what is used.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use parking_lot::Mutex;
use zerocopy::{FromBytes as _, IntoBytes};

use crate::abi::InHeader;
use crate::adapter::{Adapter, Lane, Outcome, PLACES_WITH_LOCKS, payload_max};
use crate::device::{Device, Received};
use crate::reply::Reply;
use crate::request::Body;
use crate::settings::Settings;
use crate::transport::{End, Farewell, carry_out, tell_of_changes};

/// Room in a request buffer beside the data of a write, in bytes.
const REQUEST_OVERHEAD: usize = 64 << 10;
/// Threads beside a ring: forgets and interrupts are all that comes.
const THREADS_BESIDE_RING: usize = 2;
/// How long forgets are left to gather beside a ring: the kernel then sends them as one, and a removed file
/// wakes nobody.
const PAUSE_BESIDE_RING: Duration = Duration::from_millis(2);

/// Threads on the device.
pub(crate) struct Crew {
    /// Threads that wait for requests at once.
    pub readers: usize,
    /// All threads.
    pub threads: usize,
    /// How long a thread rests after each request.
    pause: Duration,
}

impl Crew {
    /// The threads if all requests come over the device; `keeps_locks` if programs wait for locks there.
    pub fn alone(settings: &Settings, keeps_locks: bool) -> Crew {
        let readers = settings.fuse_readers;
        // A request that waits for a lock of somebody else takes a thread up.
        let least = readers + if keeps_locks { PLACES_WITH_LOCKS } else { 1 };
        Crew { readers, threads: settings.fuse_threads.max(least), pause: Duration::ZERO }
    }

    /// The threads if a ring carries most requests.
    pub fn beside_ring() -> Crew {
        Crew { readers: 1, threads: THREADS_BESIDE_RING, pause: PAUSE_BESIDE_RING }
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// If the system gives no threads.
    pub fn start(
        &self,
        device: &Arc<Device>,
        adapter: &Arc<Adapter>,
        ends: &Sender<End>,
    ) -> io::Result<()> {
        let readers: Arc<Vec<Mutex<()>>> =
            Arc::new((0..self.readers).map(|_| Mutex::new(())).collect());
        let lane = Lane::of(self.threads - self.readers);
        for index in 0..self.threads {
            let lane = lane.clone();
            let (device, adapter) = (Arc::clone(device), Arc::clone(adapter));
            let readers = Arc::clone(&readers);
            let farewell = Farewell::new(ends.clone());
            let pause = self.pause;
            let body = move || {
                lane.enter();
                let reader = &readers[index % readers.len()];
                answer_requests(&device, &adapter, reader, pause, farewell);
            };
            std::thread::Builder::new().name(format!("fuse-{index}")).spawn(body)?;
        }
        Ok(())
    }
}

/// A thread's buffers.
pub(crate) struct Seat {
    request: Vec<u8>,
    room: Vec<u8>,
}

impl Seat {
    /// Buffers for the largest request and answer.
    pub fn new(settings: &Settings) -> Seat {
        let data = payload_max(settings);
        Seat { request: vec![0; data + REQUEST_OVERHEAD], room: vec![0; data] }
    }

    /// Waits for a request.
    pub fn receive(&mut self, device: &Device) -> io::Result<Received> {
        device.receive(&mut self.request)
    }

    /// Handles the request of `length` bytes and sends the answer.
    pub fn answer(&mut self, length: usize, adapter: &Adapter, device: &Device) -> io::Result<()> {
        let Some((header, body)) = Body::parse(&self.request[..length]) else {
            tracing::error!(length, "the kernel sent a truncated request");
            let sent = &self.request[..length];
            return match InHeader::read_from_prefix(sent) {
                Ok((header, _)) => {
                    let reply = Reply::new(&mut self.room);
                    let (answer, body) = reply.finish(header.unique, libc::EIO);
                    device.send(&[answer.as_bytes(), body])
                }
                Err(_) => Ok(()),
            };
        };
        let mut reply = Reply::new(&mut self.room);
        match carry_out(adapter, &header, body, &mut reply) {
            Outcome::Reply(errno) => {
                let (header, body) = reply.finish(header.unique, errno);
                device.send(&[header.as_bytes(), body])
            }
            Outcome::NoReply => Ok(()),
        }
    }

    fn is_slow(&self, length: usize, adapter: &Adapter) -> bool {
        Body::parse(&self.request[..length]).is_some_and(|(header, body)| {
            Adapter::is_slow(&header, body)
                || adapter.may_wait_for_space(&header)
                || adapter.may_wait_for_disk(&header)
        })
    }
}

fn answer_requests(
    device: &Arc<Device>,
    adapter: &Adapter,
    reader: &Mutex<()>,
    pause: Duration,
    farewell: Farewell,
) {
    let mut seat = Seat::new(&adapter.settings);
    let mut reading = None;
    loop {
        let turn = reading.take().unwrap_or_else(|| reader.lock());
        let length = match seat.receive(device) {
            Ok(Received::Request(length)) => length,
            Ok(Received::Unmounted) => return farewell.unmounted(),
            Err(error) => {
                tracing::error!(%error, "reading from the FUSE device failed");
                return;
            }
        };
        if seat.is_slow(length, adapter) {
            drop(turn);
        } else {
            reading = Some(turn);
        }
        if let Err(error) = seat.answer(length, adapter, device) {
            tracing::error!(%error, "an answer was refused by the FUSE device");
        }
        adapter.fs.end_answer();
        tell_of_changes(&adapter.fs, device);
        adapter.fs.after_request();
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }
}
