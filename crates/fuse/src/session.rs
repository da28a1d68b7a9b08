//! A session: from the kernel's INIT to the unmount.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use forebay_fs::object::DirectAccess;
use forebay_fs::{KernelTimes, Namespace, Stale};
use parking_lot::Mutex;

use crate::activity::Activities;
use crate::activity::askers::Askers;
use crate::adapter::Adapter;
use crate::device::{Device, Received};
use crate::transport::dev::{Crew, Seat};
use crate::transport::ring::{Prepared, Registered};
use crate::transport::{End, Transport, Wish};

/// A running session.
pub struct Session {
    device: Arc<Device>,
    adapter: Arc<Adapter>,
    transport: Transport,
    askers: Arc<Askers>,
    ends: Mutex<Receiver<End>>,
}

/// How the bytes of files can go in this session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectPath {
    /// The kernel reads and writes objects itself.
    Open,
    /// It does not, for this reason.
    Closed(String),
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The file system was unmounted.
    Unmounted,
    /// A thread could not go on, so that requests may wait for ever: unmount, and end the process.
    Broken,
}

/// A session that has begun but answers no requests yet.
pub struct Opening {
    device: Arc<Device>,
    adapter: Arc<Adapter>,
    ring: Result<Prepared, String>,
    ends: (Sender<End>, Receiver<End>),
}

impl Opening {
    /// Waits for the kernel's INIT and answers it; opens the direct path if there is one.
    ///
    /// # Errors
    /// What the device says; a kernel that speaks another protocol; a transport that is insisted on and
    /// cannot be had, with the reason and what helps.
    pub fn begin(
        device: Device,
        adapter: Adapter,
        wish: Wish,
    ) -> io::Result<(Opening, DirectPath)> {
        let device = Arc::new(device.with_top(adapter.top()));
        let adapter = Arc::new(adapter);
        let ends = channel();
        let insists = wish == Wish::UringOnly;
        let mut ring = match wish {
            Wish::Dev(why) => Err(why),
            Wish::Uring | Wish::UringOnly => Prepared::make(&device, &adapter, &ends.0),
        };
        if ring.is_ok() {
            adapter.offer_ring();
        }
        let mut seat = Seat::new(&adapter.settings);
        while adapter.protocol_minor() == 0 {
            let Received::Request(length) = seat.receive(&device)? else {
                return Err(io::Error::other("unmounted before the session began"));
            };
            seat.answer(length, &adapter, &device)?;
            if adapter.is_refused() {
                return Err(io::Error::other(
                    "the kernel uses a different FUSE protocol: Linux 5.10 or later is needed",
                ));
            }
        }
        if ring.is_ok() && !adapter.ring_agreed() {
            ring = Err("the kernel did not offer FUSE over io_uring to this mount".to_owned());
        }
        if let Err(why) = &ring
            && insists
        {
            return Err(io::Error::other(format!(
                "the transport \"uring\" is not available: {why}"
            )));
        }
        let times =
            KernelTimes { lent: adapter.settings.kernel_ttl, own: adapter.settings.own_kernel_ttl };
        adapter.fs.set_kernel_cache(Arc::clone(&device) as _, times);
        let opening = Opening { device, adapter, ring, ends };
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
                self.adapter.fs.set_direct_access(Arc::clone(&self.device) as _);
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
    /// If the system gives no threads, or a ring was agreed on and cannot be had, nor done without.
    pub fn start(self) -> io::Result<Session> {
        let transport = match self.ring {
            Err(why) => Transport::Dev(why),
            Ok(prepared) => match prepared.register()? {
                Registered::All(plan) => Transport::Uring(plan),
                // The kernel uses the device then.
                Registered::TooFew(why) => Transport::Dev(why),
            },
        };
        let crew = match &transport {
            Transport::Dev(_) => Crew::alone(&self.adapter.settings, self.adapter.waits_long()),
            Transport::Uring(_) => Crew::beside_ring(),
        };
        crew.start(&self.device, &self.adapter, &self.ends.0)?;
        let askers = Arc::new(self.adapter.askers());
        askers.start()?;
        Ok(Session {
            device: self.device,
            adapter: self.adapter,
            transport,
            askers,
            ends: Mutex::new(self.ends.1),
        })
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

    /// Raises the mount (see [`crate::top`]): `raise` has another process put a clone of it, which begins at
    /// [`crate::top::NAME`], in its place. Nobody may use the mount before this returns.
    ///
    /// # Errors
    /// What `raise` says; the mount then is as it was.
    pub fn raise<E>(&self, raise: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let top = self.adapter.top();
        top.begin();
        let raised = raise();
        top.end(raised.is_ok());
        raised
    }

    /// Requests since the session began, as [`Adapter::requests`].
    #[must_use]
    pub fn requests(&self) -> Vec<(&'static str, u64)> {
        self.adapter.requests()
    }

    /// What the kernel asks of each fileset, since the session began.
    #[must_use]
    pub fn activities(&self) -> &Activities {
        self.adapter.activities()
    }

    /// Who causes what, since the session began.
    #[must_use]
    pub fn askers(&self) -> &Askers {
        &self.askers
    }

    /// How requests arrive.
    #[must_use]
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    /// Waits until the file system is unmounted, or a thread cannot go on.
    pub fn wait(&self) -> Ending {
        // The channel closes when the last thread has gone.
        for end in self.ends.lock().iter() {
            if end == End::Failed {
                return Ending::Broken;
            }
        }
        Ending::Unmounted
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.askers.stop();
    }
}

/// Waits for locks that an asker may hold: not for threads that answer requests.
fn tell_kernel(fs: &Namespace, device: &Device) {
    for stale in fs.take_stale() {
        let told = match &stale {
            Stale::Attributes(ino) => device.forget_attributes(*ino),
            Stale::Listing(ino) => device.forget_listing(*ino),
            Stale::Pages(ino, from, until) => device.forget_pages(*ino, *from, *until),
            // The kernel drops a listing for a name only where it knows that name.
            Stale::Entry(parent, name) => {
                device.forget_entry(*parent, name).and_then(|()| device.forget_listing(*parent))
            }
        };
        if let Err(error) = told {
            tracing::warn!(?stale, %error, "the kernel could not be notified of a change");
        }
    }
}
