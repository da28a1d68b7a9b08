//! One entry of a ring: its memory, its io_uring, and the thread's loop.
//!
//! The kernel reads and writes the memory only while this thread is in `io_uring_enter`
//! (`DEFER_TASKRUN`), so references into it that end before that call are sound. After a request has been
//! fetched the entry is ours until it is committed; every fetched request is committed exactly once.

use std::io;
use std::os::fd::AsRawFd as _;
use std::ptr::NonNull;
use std::sync::Arc;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use zerocopy::IntoBytes as _;

use crate::abi::{
    OutHeader, RING_COMMIT_AND_FETCH, RING_REGISTER, RingCommand, RingEntry, RingHeader,
};
use crate::adapter::{Adapter, Outcome};
use crate::device::Device;
use crate::reply::Reply;
use crate::request::Body;
use crate::transport::ring::Offer;
use crate::transport::wait::Waiting;
use crate::transport::{carry_out, tell_of_changes};

/// Room for the header of an entry, in bytes: a page, so that the payload begins on one.
pub(crate) fn header_bytes() -> usize {
    rustix::param::page_size()
}

/// Room for answers to requests with a payload, in bytes. Such answers are attributes or an extended
/// attribute's value, which Linux limits to 64 KiB.
pub(crate) const SCRATCH_BYTES: usize = 72 << 10;
/// Submissions under way: an entry has one.
const SUBMISSIONS: u32 = 2;
/// Where `len` lies in a submission (struct io_uring_sqe of `include/uapi/linux/io_uring.h`).
const SQE_LEN_OFFSET: usize = 24;
/// Requests of a thread after which it looks at the file system's limits, which leave room for so few.
const REQUESTS_BETWEEN_CHECKS: u32 = 16;

const _: () = assert!(size_of::<squeue::Entry128>() == 128);
const _: () = assert!(size_of::<RingHeader>() <= 4096);

/// Memory of an entry: header, payload.
struct Memory {
    start: NonNull<u8>,
    payload_bytes: usize,
}

// SAFETY: the memory belongs to this value alone.
unsafe impl Send for Memory {}

impl Memory {
    fn make(payload_bytes: usize) -> io::Result<Memory> {
        // SAFETY: a new mapping, anywhere.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                header_bytes() + payload_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        Ok(Memory { start, payload_bytes })
    }

    fn header(&mut self) -> &mut RingHeader {
        // SAFETY: the mapping is at least that long, on a page boundary, and any bytes are a header.
        unsafe { self.start.cast().as_mut() }
    }

    fn payload(&mut self) -> &mut [u8] {
        // SAFETY: the mapping reaches so far; it is borrowed as this value is.
        unsafe {
            let start = self.start.add(header_bytes());
            std::slice::from_raw_parts_mut(start.as_ptr(), self.payload_bytes)
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `make`, and the ring that knows of it is closed (order of `Seat`).
        let unmapped =
            unsafe { munmap(self.start.as_ptr().cast(), header_bytes() + self.payload_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// What became of a submission.
#[derive(Debug, PartialEq, Eq)]
enum Completed {
    /// There is a request in the entry.
    Request,
    /// To be submitted again.
    Again,
    /// The entry is lost with this errno.
    Lost(i32),
}

impl Completed {
    fn of(result: i32) -> Completed {
        match -result {
            0 => Completed::Request,
            libc::EAGAIN | libc::EINTR => Completed::Again,
            errno => Completed::Lost(errno),
        }
    }
}

/// An entry and its thread's ring. The ring is closed before the memory goes.
pub(crate) struct Seat {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    waiting: Waiting,
    memory: Memory,
    vectors: Box<[libc::iovec; 2]>,
    scratch: Vec<u8>,
    /// Result of the registration, if it was there at once.
    early: Option<i32>,
    queue: u16,
}

impl Seat {
    /// A ring and memory for an entry of `queue`; to be made by the thread that will use it.
    ///
    /// # Errors
    /// What the system says.
    pub fn make(queue: usize, payload_bytes: usize, device: &Device) -> io::Result<Seat> {
        let ring: IoUring<squeue::Entry128, cqueue::Entry> = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .dontfork()
            .build(SUBMISSIONS)?;
        ring.submitter().register_files(&[device.as_raw_fd()])?;
        let waiting = Waiting::on(&ring)?;
        let mut memory = Memory::make(payload_bytes)?;
        let vector = |bytes: &mut [u8]| libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        let vectors = Box::new([vector(memory.header().as_mut_bytes()), vector(memory.payload())]);
        let queue = u16::try_from(queue).map_err(io::Error::other)?;
        let scratch = vec![0; SCRATCH_BYTES];
        Ok(Seat { ring, waiting, memory, vectors, scratch, early: None, queue })
    }

    /// Offers the entry to the kernel.
    ///
    /// # Errors
    /// If FUSE was not reached.
    pub fn register(&mut self) -> io::Result<Offer> {
        self.push(RING_REGISTER, 0)?;
        self.ring.submit()?;
        // A refusal is there at once; an accepted entry completes with its first request.
        self.early = self.ring.completion().next().map(|completion| completion.result());
        match self.early.map(Completed::of) {
            // io_uring has no memory for the command: FUSE has never heard of it.
            Some(Completed::Lost(libc::ENOMEM)) => Err(io::Error::from_raw_os_error(libc::ENOMEM)),
            Some(Completed::Lost(errno)) => Ok(Offer::Refused(io::Error::from_raw_os_error(errno))),
            Some(Completed::Request | Completed::Again) | None => Ok(Offer::Taken),
        }
    }

    /// Answers requests until the file system is unmounted.
    ///
    /// # Errors
    /// What makes it impossible to go on while the file system is mounted.
    pub fn answer_requests(&mut self, adapter: &Adapter, device: &Arc<Device>) -> io::Result<()> {
        let mut since_check = 0;
        let mut last = (RING_REGISTER, 0);
        loop {
            let Some(result) = self.fetch()? else { continue };
            match Completed::of(result) {
                Completed::Request => last = (RING_COMMIT_AND_FETCH, self.answer(adapter)),
                Completed::Again => {}
                // Any errno can come when the file system goes.
                Completed::Lost(_) if device.is_disconnected_soon() => return Ok(()),
                Completed::Lost(errno) => return Err(io::Error::from_raw_os_error(errno)),
            }
            self.push(last.0, last.1)?;
            // Whoever takes back what is lent with an answer waits until the kernel has it.
            if adapter.fs.answer_lends() {
                self.submit()?;
            }
            adapter.fs.end_answer();
            // What is left to do comes after the answer, which otherwise goes with the next wait.
            if adapter.fs.has_stale() {
                self.submit()?;
                tell_of_changes(&adapter.fs, device);
            }
            since_check += 1;
            if since_check == REQUESTS_BETWEEN_CHECKS {
                since_check = 0;
                if adapter.fs.is_over_limits() {
                    self.submit()?;
                    adapter.fs.after_request();
                }
            }
        }
    }

    /// Submits what there is and waits; the result of a submission, if there is one.
    fn fetch(&mut self) -> io::Result<Option<i32>> {
        if let Some(result) = self.early.take() {
            return Ok(Some(result));
        }
        self.waiting.submit_and_wait(&mut self.ring)?;
        Ok(self.ring.completion().next().map(|completion| completion.result()))
    }

    fn submit(&mut self) -> io::Result<()> {
        match self.ring.submit() {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn push(&mut self, command: u32, commit_id: u64) -> io::Result<()> {
        let asked = RingCommand { commit_id, qid: self.queue, ..RingCommand::default() };
        let mut bytes = [0; 80];
        bytes[..size_of::<RingCommand>()].copy_from_slice(asked.as_bytes());
        let mut entry = opcode::UringCmd80::new(types::Fixed(0), command)
            .cmd(bytes)
            .addr(Some(self.vectors.as_ptr() as u64))
            .build();
        // SAFETY: an entry is the 128 bytes of the kernel's structure, and `len` lies there; io_uring's
        // builder has no setter for it.
        unsafe {
            let length = (&raw mut entry).cast::<u8>().add(SQE_LEN_OFFSET).cast::<u32>();
            length.write(2);
        }
        // SAFETY: vectors and memory live as long as the ring.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)
    }

    /// Handles the request in the entry and puts the answer there; returns what commits it.
    fn answer(&mut self, adapter: &Adapter) -> u64 {
        let header = *self.memory.header();
        let sent = usize::try_from(header.entry.payload_sz).unwrap_or(usize::MAX);
        let commit_id = header.entry.commit_id;
        let payload = self.memory.payload();
        let (out, body_bytes) = if sent == 0 {
            // Nothing of the request lies in the payload: the answer is made in its place.
            let mut reply = Reply::new(payload);
            let out = carry_out_entry(adapter, &header, Some(&[]), &mut reply);
            (out.0, out.1.len())
        } else {
            let mut reply = Reply::new(&mut self.scratch);
            let (out, body) = carry_out_entry(adapter, &header, payload.get(..sent), &mut reply);
            payload[..body.len()].copy_from_slice(body);
            (out, body.len())
        };
        let header = self.memory.header();
        header.in_out[..size_of::<OutHeader>()].copy_from_slice(out.as_bytes());
        header.entry = RingEntry {
            commit_id,
            payload_sz: u32::try_from(body_bytes).unwrap_or(u32::MAX),
            ..RingEntry::default()
        };
        commit_id
    }
}

/// Handles the request in an entry; the answer, which every request on a ring has, if only an empty one.
fn carry_out_entry<'a>(
    adapter: &Adapter,
    header: &RingHeader,
    payload: Option<&[u8]>,
    reply: &'a mut Reply<'_>,
) -> (OutHeader, &'a [u8]) {
    let Some((request, body)) = payload.and_then(|sent| Body::parse_entry(header, sent)) else {
        tracing::error!(entry = ?header.entry, "the kernel sent a truncated request");
        return reply.finish(header.entry.commit_id, libc::EIO);
    };
    match carry_out(adapter, &request, body, reply) {
        Outcome::Reply(errno) => reply.finish(request.unique, errno),
        Outcome::NoReply => reply.finish(request.unique, 0),
    }
}
