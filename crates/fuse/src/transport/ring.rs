//! Requests over io_uring (Linux 6.14): one queue for each core that there can be, answered on the core
//! that asked.
//!
//! An entry is a piece of memory in which the kernel puts one request and takes its answer. Each entry
//! belongs to a thread with an io_uring of its own, pinned to the core of the queue: so a request has one
//! owner from fetch to commit, no two threads share anything here, a slow request keeps nobody waiting
//! but its own thread, and answering one request and waiting for the next is one system call. The kernel
//! gives a request to the entry that was used last, so that without slow requests one warm thread of a
//! core answers everything. There is no spinning: the asker needs the core that would spin.
//!
//! Bounds: [`Plan::memory_bytes`] of buffers, of which the system gives only the pages that were used;
//! requests beyond the entries of a queue wait in the kernel.
//!
//! Forgets, interrupts and notifications go over /dev/fuse: the kernel has them so.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::thread::CpuSet;

use crate::adapter::{Adapter, Lane, PLACES_WITH_LOCKS, payload_max};
use crate::device::Device;
use crate::settings::Settings;
use crate::transport::host::{Cores, explain_refusal};
use crate::transport::seat::{SCRATCH_BYTES, Seat, header_bytes};
use crate::transport::{End, Farewell, slice};

/// Most entries of all queues: beyond 128 cores the queues get shallower.
const ENTRIES_MAX: usize = 1024;
/// Stack of a thread, in bytes: as others have it, and never all used.
const STACK_BYTES: usize = 2 << 20;

/// How many entries there are, and how large.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Entries of each queue. A queue of a core that does not run has but one.
    depths: Vec<usize>,
    /// Bytes of the payload of an entry.
    payload_bytes: usize,
}

impl Plan {
    fn of(cores: &Cores, depth: usize, payload_bytes: usize) -> Plan {
        let shallow = ENTRIES_MAX / cores.possible.max(1);
        let depth = depth.min(shallow).max(1);
        let depth_of = |core| if cores.online.contains(&core) { depth } else { 1 };
        Plan { depths: (0..cores.possible).map(depth_of).collect(), payload_bytes }
    }

    /// Queues: one for each core that there can be.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.depths.len()
    }

    /// Entries of the deepest queue.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.depths.iter().copied().max().unwrap_or(0)
    }

    /// Entries of all queues, and threads that serve them.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.depths.iter().sum()
    }

    /// Most memory that the entries take, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.entries() * (header_bytes() + self.payload_bytes + SCRATCH_BYTES)
    }
}

/// Entries of a queue: a request that waits for a lock of somebody else takes one up.
fn depth_of(settings: &Settings, keeps_locks: bool) -> usize {
    settings.ring_depth.max(if keeps_locks { PLACES_WITH_LOCKS } else { 1 })
}

/// File descriptors that the entries take, if requests come over io_uring: a ring, and an event where it takes one
/// to wait. `keeps_locks` if programs wait for locks there.
#[must_use]
pub fn files_of_rings(settings: &Settings, keeps_locks: bool) -> usize {
    let plan = |cores| Plan::of(&cores, depth_of(settings, keeps_locks), payload_max(settings));
    Cores::look().map_or(0, |cores| 2 * plan(cores).entries())
}

/// What a thread says on the way to its first request.
type Said = (usize, io::Result<Offer>);

/// What became of an entry that was offered to the kernel.
pub(crate) enum Offer {
    /// It is used.
    Taken,
    /// FUSE does not want it, and does without the ring.
    Refused(io::Error),
}

/// Threads with their rings, which wait to be let in or sent home.
pub(crate) struct Prepared {
    plan: Plan,
    /// Dropped, the threads end.
    go: Vec<Sender<()>>,
    said: Receiver<Said>,
}

/// How registering went.
pub(crate) enum Registered {
    /// All queues have entries: the kernel uses them from now on.
    All(Plan),
    /// A queue has none, for this reason: the kernel goes on with the device.
    TooFew(String),
}

impl Prepared {
    /// Starts the threads, each with its ring and memory. Nothing of that is bound to the mount yet.
    ///
    /// # Errors
    /// A text with the reason and what helps, if io_uring cannot be had.
    pub fn make(
        device: &Arc<Device>,
        adapter: &Arc<Adapter>,
        ends: &Sender<End>,
    ) -> Result<Prepared, String> {
        let depth = depth_of(&adapter.settings, adapter.waits_long());
        let plan = Plan::of(&Cores::look()?, depth, payload_max(&adapter.settings));
        let (say, said) = channel();
        let mut prepared = Prepared { plan, go: Vec::new(), said };
        for queue in 0..prepared.plan.queues() {
            let lane = Lane::of(prepared.plan.depths[queue]);
            for _ in 0..prepared.plan.depths[queue] {
                let (go, gone) = channel();
                let thread = Thread {
                    queue,
                    payload_bytes: prepared.plan.payload_bytes,
                    device: Arc::clone(device),
                    adapter: Arc::clone(adapter),
                    lane: lane.clone(),
                    say: say.clone(),
                };
                let ends = ends.clone();
                std::thread::Builder::new()
                    .name(format!("ring-{queue}"))
                    .stack_size(STACK_BYTES)
                    .spawn(move || thread.run(&gone, ends))
                    .map_err(|error| format!("no thread could be started: {error}"))?;
                prepared.go.push(go);
            }
        }
        // Only the threads speak from here on: if all were gone, waiting would end.
        drop(say);
        for _ in 0..prepared.plan.entries() {
            let (_, made) = prepared.said.recv().map_err(|_| "a thread died".to_owned())?;
            made.map_err(|error| explain_refusal(&error))?;
        }
        Ok(prepared)
    }

    /// Gives all entries to the kernel. INIT must be answered.
    ///
    /// # Errors
    /// If the entries could not even be offered: then the kernel keeps requests waiting, and the file
    /// system must be unmounted.
    pub fn register(self) -> io::Result<Registered> {
        for go in &self.go {
            // A thread that died says nothing below either.
            let _ = go.send(());
        }
        let mut registered = vec![0_usize; self.plan.queues()];
        let mut refusal = None;
        // A refused registration has the kernel do without the ring (fuse_uring_cmd).
        let mut does_without = false;
        for _ in 0..self.plan.entries() {
            let (queue, done) =
                self.said.recv().map_err(|_| io::Error::other("a thread of the ring died"))?;
            match done {
                Ok(Offer::Taken) => registered[queue] += 1,
                Ok(Offer::Refused(error)) => {
                    does_without = true;
                    refusal = Some(error);
                }
                Err(error) => refusal = Some(error),
            }
        }
        let Some(refusal) = refusal else { return Ok(Registered::All(self.plan)) };
        if registered.contains(&0) {
            if !does_without {
                return Err(refusal);
            }
            return Ok(Registered::TooFew(format!("the kernel refused an entry: {refusal}")));
        }
        tracing::warn!(error = %refusal, "the kernel refused some entries of the ring");
        Ok(Registered::All(Plan { depths: registered, ..self.plan }))
    }
}

/// A thread to be.
struct Thread {
    queue: usize,
    payload_bytes: usize,
    device: Arc<Device>,
    adapter: Arc<Adapter>,
    lane: Lane,
    say: Sender<Said>,
}

impl Thread {
    fn run(self, go: &Receiver<()>, ends: Sender<End>) {
        self.pin();
        self.lane.enter();
        slice::ask_for(self.adapter.settings.ring_slice);
        let mut seat = match Seat::make(self.queue, self.payload_bytes, &self.device) {
            Ok(seat) => seat,
            Err(error) => return self.tell(Err(error)),
        };
        self.tell(Ok(Offer::Taken));
        if go.recv().is_err() {
            return;
        }
        let offered = seat.register();
        let taken = matches!(offered, Ok(Offer::Taken));
        self.tell(offered);
        if !taken {
            return;
        }
        let Thread { device, adapter, say, .. } = self;
        drop(say);
        let farewell = Farewell::new(ends);
        match seat.answer_requests(&adapter, &device) {
            Ok(()) => farewell.unmounted(),
            Err(error) => tracing::error!(%error, "a thread of the ring cannot continue"),
        }
    }

    fn tell(&self, what: io::Result<Offer>) {
        // Nobody listens if the ring is not wanted after all.
        let _ = self.say.send((self.queue, what));
    }

    /// Keeps the thread on its core: there the asker is, and it sleeps. Where that is not allowed, or the
    /// core does not run, the thread runs anywhere: slower, not wrong.
    fn pin(&self) {
        if self.queue < CpuSet::MAX_CPU {
            let mut core = CpuSet::new();
            core.set(self.queue);
            let _ = rustix::thread::sched_setaffinity(None, &core);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_however_many_cores_there_are() {
        let plan = |possible, online, depth| {
            Plan::of(&Cores { possible, online: (0..online).collect() }, depth, 1 << 20)
        };
        let small = plan(2, 2, 8);
        assert_eq!((small.queues(), small.depth(), small.entries()), (2, 8, 16));
        assert!(small.memory_bytes() > 16 << 20 && small.memory_bytes() < 18 << 20);
        // Cores that may be plugged in later get the least that works.
        let hollow = plan(240, 4, 64);
        assert_eq!((hollow.queues(), hollow.depth(), hollow.entries()), (240, 4, 4 * 4 + 236));
        assert_eq!(plan(256, 256, 64).entries(), ENTRIES_MAX);
        assert_eq!(plan(5000, 5000, 64).entries(), 5000);
    }
}
