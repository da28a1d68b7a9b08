//! A session: threads that read requests from the device and answer them.
//!
//! Quick requests are handled by the thread that read them, one after the other: waking another thread
//! costs more than the work. A thread that is about to handle a slow request (a sync, served bytes)
//! first lets another one read. So `fuse_readers` threads wait for requests at any one time, and
//! `fuse_threads` requests can be under way.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use forebay_fs::object::DirectAccess;
use forebay_fs::{FileSystem, Stale};
use parking_lot::Mutex;

use crate::adapter::{Adapter, Outcome};
use crate::device::{Device, Received};
use crate::reply::Reply;
use crate::request::Body;

/// Room in a request buffer beside the data of a write, in bytes.
const REQUEST_OVERHEAD: usize = 64 << 10;

/// A running session.
pub struct Session {
    device: Arc<Device>,
    adapter: Arc<Adapter>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// How the bytes of files can go in this session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectPath {
    /// The kernel reads and writes objects itself.
    Open,
    /// It does not, for this reason.
    Closed(String),
}

/// A session that has begun but answers no requests yet.
pub struct Opening {
    device: Arc<Device>,
    adapter: Arc<Adapter>,
}

impl Opening {
    /// Waits for the kernel's INIT and answers it; opens the direct path if there is one.
    ///
    /// # Errors
    /// What the device says; a kernel that speaks another protocol.
    pub fn begin(device: Device, adapter: Adapter) -> io::Result<(Opening, DirectPath)> {
        let opening = Opening { device: Arc::new(device), adapter: Arc::new(adapter) };
        let mut seat = Seat::new(&opening.adapter.fs);
        while opening.adapter.protocol_minor() == 0 {
            let Received::Request(length) = opening.device.receive(&mut seat.request)? else {
                return Err(io::Error::other("unmounted before the session began"));
            };
            seat.answer(length, &opening.adapter, &opening.device)?;
        }
        let direct = opening.open_direct_path();
        Ok((opening, direct))
    }

    fn open_direct_path(&self) -> DirectPath {
        if !self.adapter.fs.settings().direct {
            return DirectPath::Closed("the setting \"direct\" is false".to_owned());
        }
        if !self.adapter.passthrough_agreed() {
            return DirectPath::Closed(
                "this kernel has no FUSE passthrough (Linux 6.9)".to_owned(),
            );
        }
        match self.probe() {
            Ok(()) => {
                self.adapter.fs.objects().set_direct_access(Arc::clone(&self.device) as _);
                DirectPath::Open
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                DirectPath::Closed("FUSE passthrough needs root (CAP_SYS_ADMIN)".to_owned())
            }
            Err(error) => DirectPath::Closed(format!("FUSE passthrough was refused: {error}")),
        }
    }

    /// Registers a file of memory, to see whether the kernel lets us.
    fn probe(&self) -> io::Result<()> {
        let file = rustix::fs::memfd_create("probe", rustix::fs::MemfdFlags::CLOEXEC)?;
        let registration = self.device.register(std::os::fd::AsFd::as_fd(&file))?;
        self.device.unregister(registration);
        Ok(())
    }

    /// Starts answering requests.
    ///
    /// # Errors
    /// If the system gives no threads.
    pub fn start(self) -> io::Result<Session> {
        let settings = self.adapter.fs.settings();
        let readers: Arc<Vec<Mutex<()>>> =
            Arc::new((0..settings.fuse_readers).map(|_| Mutex::new(())).collect());
        let count = settings.fuse_threads.max(settings.fuse_readers + 1);
        let mut threads = Vec::with_capacity(count);
        for index in 0..count {
            let (device, adapter) = (Arc::clone(&self.device), Arc::clone(&self.adapter));
            let readers = Arc::clone(&readers);
            let body = move || answer_requests(&device, &adapter, &readers[index % readers.len()]);
            threads.push(std::thread::Builder::new().name(format!("fuse-{index}")).spawn(body)?);
        }
        Ok(Session { device: self.device, adapter: self.adapter, threads: Mutex::new(threads) })
    }
}

impl Session {
    /// Tells the kernel what changed behind its back, after a change that did not come through it.
    pub fn tell_kernel(&self) {
        tell_kernel(&self.adapter.fs, &self.device);
    }

    /// Minor version of the FUSE protocol that the kernel speaks.
    #[must_use]
    pub fn protocol_minor(&self) -> u32 {
        self.adapter.protocol_minor()
    }

    /// Waits until the file system is unmounted.
    pub fn wait(&self) {
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a request thread panicked");
            }
        }
    }
}

/// A thread's buffers.
struct Seat {
    request: Vec<u8>,
    reply: Reply,
}

impl Seat {
    fn new(fs: &FileSystem) -> Seat {
        let data = fs.settings().request_max.as_usize().max(128 << 10);
        Seat { request: vec![0; data + REQUEST_OVERHEAD], reply: Reply::with_capacity(data) }
    }

    fn answer(&mut self, length: usize, adapter: &Adapter, device: &Device) -> io::Result<()> {
        let Some((header, body)) = Body::parse(&self.request[..length]) else {
            tracing::error!(length, "the kernel sent a request that is cut short");
            return Ok(());
        };
        self.reply.clear();
        let reply = &mut self.reply;
        let handled = catch_unwind(AssertUnwindSafe(|| adapter.handle(&header, body, reply)));
        let outcome = handled.unwrap_or_else(|_| {
            tracing::error!(opcode = header.opcode, "a request hit a broken invariant");
            Outcome::Reply(libc::EIO)
        });
        if let Outcome::Reply(errno) = outcome {
            device.send(self.reply.finish(header.unique, errno))?;
        }
        Ok(())
    }
}

fn answer_requests(device: &Device, adapter: &Adapter, reader: &Mutex<()>) {
    let mut seat = Seat::new(&adapter.fs);
    let mut reading = None;
    loop {
        let turn = reading.take().unwrap_or_else(|| reader.lock());
        let length = match device.receive(&mut seat.request) {
            Ok(Received::Request(length)) => length,
            Ok(Received::Unmounted) => return,
            Err(error) => {
                tracing::error!(%error, "reading from the FUSE device failed");
                return;
            }
        };
        if !is_slow(&seat.request[..length]) {
            reading = Some(turn);
        } else {
            drop(turn);
        }
        if let Err(error) = seat.answer(length, adapter, device) {
            tracing::error!(%error, "an answer was refused by the FUSE device");
        }
        tell_kernel(&adapter.fs, device);
        adapter.fs.after_request();
    }
}

fn is_slow(request: &[u8]) -> bool {
    Body::parse(request).is_some_and(|(header, body)| Adapter::is_slow(&header, body))
}

fn tell_kernel(fs: &FileSystem, device: &Device) {
    for stale in fs.take_stale() {
        let told = match &stale {
            Stale::Attributes(ino) => device.forget_attributes(*ino),
            Stale::Entry(parent, name) => device.forget_entry(*parent, name),
        };
        if let Err(error) = told {
            tracing::warn!(?stale, %error, "the kernel was not told of a change");
        }
    }
}
