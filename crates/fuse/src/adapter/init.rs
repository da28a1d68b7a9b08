//! Start of the session: what the kernel offers and what is taken.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::abi::{self, InitIn, InitOut, feature};
use crate::adapter::Adapter;
use crate::reply::Reply;
use crate::request::{Answer, Body, Errno};
use crate::settings::Settings;

/// Requests that the kernel may keep waiting in the background.
const BACKGROUND_MAX: u16 = 256;
/// File systems stacked on the backing one: it may be one that is not stacked itself.
const STACK_DEPTH: u32 = 1;

const WANTED: u64 = feature::ASYNC_READ
    | feature::ATOMIC_O_TRUNC
    | feature::EXPORT_SUPPORT
    | feature::BIG_WRITES
    | feature::DONT_MASK
    | feature::DO_READDIRPLUS
    | feature::READDIRPLUS_AUTO
    | feature::ASYNC_DIO
    | feature::PARALLEL_DIROPS
    | feature::MAX_PAGES
    | feature::CACHE_SYMLINKS
    | feature::HANDLE_KILLPRIV_V2
    | feature::SETXATTR_EXT
    | feature::INIT_EXT
    | feature::DIRECT_IO_ALLOW_MMAP;

/// What was agreed on at INIT.
#[derive(Default)]
pub(crate) struct Session {
    minor: AtomicU32,
    passthrough: AtomicBool,
    long_setxattr: AtomicBool,
    ring_offered: AtomicBool,
    ring: AtomicBool,
    keeps_listings: AtomicBool,
    refused: AtomicBool,
}

impl Adapter {
    /// Whether the kernel can read and write objects itself, and the settings let it.
    pub fn passthrough_agreed(&self) -> bool {
        self.session.passthrough.load(Ordering::Acquire)
    }

    /// Lets INIT agree on requests over io_uring.
    pub(crate) fn offer_ring(&self) {
        self.session.ring_offered.store(true, Ordering::Release);
    }

    /// Whether requests over io_uring were agreed on. From then on the kernel keeps all requests but INIT
    /// waiting until every queue has an entry, or an entry was refused.
    pub(crate) fn ring_agreed(&self) -> bool {
        self.session.ring.load(Ordering::Acquire)
    }

    /// Whether the kernel keeps listings: it then opens directories without asking.
    pub(crate) fn keeps_listings(&self) -> bool {
        self.session.keeps_listings.load(Ordering::Acquire)
    }

    /// Minor version of the protocol that the kernel speaks; 0 before the session began.
    pub fn protocol_minor(&self) -> u32 {
        self.session.minor.load(Ordering::Acquire)
    }

    /// Whether the kernel speaks a protocol that is not spoken here.
    pub(crate) fn is_refused(&self) -> bool {
        self.session.refused.load(Ordering::Acquire)
    }

    /// Whether SETXATTR comes with its extension.
    pub(crate) fn has_long_setxattr(&self) -> bool {
        self.session.long_setxattr.load(Ordering::Acquire)
    }

    pub(crate) fn init(&self, mut body: Body<'_>, reply: &mut Reply) -> Answer<()> {
        let asked: InitIn = body.take()?;
        if asked.major != abi::MAJOR || asked.minor < abi::MINOR_LEAST {
            tracing::error!(
                major = asked.major,
                minor = asked.minor,
                "the kernel uses a different FUSE protocol: Linux 5.10 or later is needed"
            );
            self.session.refused.store(true, Ordering::Release);
            return Err(Errno(libc::EPROTO));
        }
        let mut offered = u64::from(asked.flags);
        if offered & feature::INIT_EXT != 0 {
            offered |= u64::from(body.take::<u32>()?) << 32;
        }
        let settings = &self.settings;
        let mut taken = offered & WANTED;
        if settings.extended_attributes {
            taken |= offered & feature::POSIX_ACL;
        }
        if self.fs.settings().direct {
            taken |= offered & feature::PASSTHROUGH;
        }
        if self.fs.keeps_locks() {
            taken |= offered & (feature::POSIX_LOCKS | feature::FLOCK_LOCKS);
        }
        if self.session.ring_offered.load(Ordering::Acquire) {
            taken |= offered & feature::OVER_IO_URING;
        }
        self.session.ring.store(taken & feature::OVER_IO_URING != 0, Ordering::Release);
        // Nothing is to be kept where every name is to be asked for.
        let keeps_listings = offered & feature::NO_OPENDIR_SUPPORT != 0 && !self.ttl.0.is_zero();
        self.session.keeps_listings.store(keeps_listings, Ordering::Release);
        let passthrough = taken & feature::PASSTHROUGH != 0;
        self.session.passthrough.store(passthrough, Ordering::Release);
        self.session.long_setxattr.store(taken & feature::SETXATTR_EXT != 0, Ordering::Release);
        self.session.minor.store(asked.minor, Ordering::Release);
        let max_write = max_write(settings);
        let read_ahead = u32::try_from(settings.read_ahead.0).unwrap_or(u32::MAX);
        reply.push(&InitOut {
            major: abi::MAJOR,
            minor: abi::MINOR.min(asked.minor),
            max_readahead: read_ahead.max(asked.max_readahead),
            flags: u32::try_from(taken & u64::from(u32::MAX)).unwrap_or(0),
            max_background: BACKGROUND_MAX,
            congestion_threshold: BACKGROUND_MAX / 4 * 3,
            max_write,
            time_gran: 1,
            max_pages: max_pages(max_write),
            flags2: u32::try_from(taken >> 32).unwrap_or(0),
            max_stack_depth: if passthrough { STACK_DEPTH } else { 0 },
            ..InitOut::default()
        });
        Ok(())
    }
}

/// Largest WRITE, in bytes.
fn max_write(settings: &Settings) -> u32 {
    u32::try_from(settings.request_max.0).unwrap_or(1 << 20)
}

/// Most pages of a request.
fn max_pages(max_write: u32) -> u16 {
    let page = u32::try_from(rustix::param::page_size()).unwrap_or(4096);
    u16::try_from(max_write.div_ceil(page)).unwrap_or(256)
}

/// Most bytes of a request or an answer beside its headers: what the kernel reckons from the answer to
/// INIT (fuse_uring_create of `fs/fuse/dev_uring.c`), and never less than it sends without `MAX_PAGES`.
pub(crate) fn payload_max(settings: &Settings) -> usize {
    const PAGES_UNASKED: usize = 32;
    let write = max_write(settings);
    let pages = usize::from(max_pages(write)).max(PAGES_UNASKED);
    (write as usize).max(pages * rustix::param::page_size()).max(abi::RING_PAYLOAD_LEAST)
}
