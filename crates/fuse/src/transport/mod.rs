//! How requests arrive and answers leave: `dev` reads and writes /dev/fuse, `ring` shares memory with the
//! kernel through io_uring, one queue for each core.
//!
//! Both hand requests to the same [`Adapter`] with the same rules: a request is answered exactly once,
//! also if it hit a broken invariant; what the kernel must be told of comes after the answer.

pub(crate) mod dev;
mod host;
pub(crate) mod ring;
mod seat;
mod slice;
mod wait;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use forebay_base::Ino;
use forebay_fs::Namespace;

use crate::abi::InHeader;
use crate::adapter::{Adapter, Outcome};
use crate::device::Device;
use crate::reply::Reply;
use crate::request::Body;

pub use host::{Switch, switch_on};
pub use ring::{Plan, files_of_rings};

/// How the requests of a session arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Over /dev/fuse, for this reason.
    Dev(String),
    /// Over io_uring. Interrupts, forgets and notifications still go over /dev/fuse.
    Uring(Plan),
}

/// What transport is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// /dev/fuse, for this reason.
    Dev(String),
    /// io_uring if that can be had, else /dev/fuse.
    Uring,
    /// io_uring, or no session.
    UringOnly,
}

/// How a thread that answers requests ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The file system was unmounted.
    Unmounted,
    /// It cannot go on: requests may be without an answer for ever.
    Failed,
}

/// Says how a thread ended, also when it panics.
pub(crate) struct Farewell {
    end: End,
    to: Sender<End>,
}

impl Farewell {
    /// A farewell that will say that the thread failed, unless [`Farewell::unmounted`] is called.
    pub fn new(to: Sender<End>) -> Farewell {
        Farewell { end: End::Failed, to }
    }

    /// The thread ends in order.
    pub fn unmounted(mut self) {
        self.end = End::Unmounted;
    }
}

impl Drop for Farewell {
    fn drop(&mut self) {
        // Nobody waits any more if the session is over.
        let _ = self.to.send(self.end);
    }
}

/// Handles a request; a broken invariant is EIO for the asker.
pub(crate) fn carry_out(
    adapter: &Adapter,
    header: &InHeader,
    body: Body<'_>,
    reply: &mut Reply<'_>,
) -> Outcome {
    let handled = catch_unwind(AssertUnwindSafe(|| adapter.handle(header, body, reply)));
    handled.unwrap_or_else(|_| {
        tracing::error!(opcode = header.opcode, "a request hit a broken invariant");
        Outcome::Reply(libc::EIO)
    })
}

/// Tells the kernel of what changed behind its back. Takes no lock of the kernel that an asker could hold, so that a
/// thread that answers requests may call it: a thread of its own tells of directories that were moved, as that may
/// wait for an asker, who may wait for an answer. Names are left to those who changed them.
pub(crate) fn tell_of_changes(fs: &Namespace, device: &Arc<Device>) {
    let warn = |ino: Ino, told: io::Result<()>| {
        if let Err(error) = told {
            tracing::warn!(%ino, %error, "the kernel could not be notified of a change");
        }
    };
    for ino in fs.take_stale_attributes() {
        warn(ino, device.forget_attributes(ino));
    }
    let (moved, passed) = (fs.take_stale_listings(), fs.take_stale_pages());
    if moved.is_empty() && passed.is_empty() {
        return;
    }
    let device = Arc::clone(device);
    let tell = move || {
        moved.into_iter().for_each(|ino| warn(ino, device.forget_listing(ino)));
        for (ino, from, until) in passed {
            warn(ino, device.forget_pages(ino, from, until));
        }
    };
    if let Err(error) = std::thread::Builder::new().name("listings".to_owned()).spawn(tell) {
        tracing::warn!(%error, "the kernel could not be notified of directories that were moved");
    }
}
