//! What only system calls tell of this host.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use forebay_process::mounts::{self, Mount};
use rustix::process::{Resource, getrlimit};

use super::{Place, Told, Unreadable};

/// A directory with the mount that it lies on.
pub(super) fn place(path: &Path, mounts: &[Mount]) -> Result<Place, Unreadable> {
    let unreadable = |source| Unreadable { path: path.to_owned(), source };
    let real = path.canonicalize().map_err(unreadable)?;
    let space = rustix::fs::statvfs(&real).map_err(|error| unreadable(error.into()))?;
    Ok(Place {
        mount: mounts::of(mounts, &real, None).cloned().unwrap_or_default(),
        path: real,
        total_bytes: space.f_blocks.saturating_mul(space.f_frsize),
        free_bytes: space.f_bavail.saturating_mul(space.f_frsize),
        inodes: space.f_files,
        free_inodes: space.f_ffree,
    })
}

/// What the system says of limits, the clock and the rings of `interfaces`.
pub(super) fn told(interfaces: &[String]) -> Told {
    let rings = interfaces.iter().filter_map(|name| Some((name.clone(), ring(name)?)));
    Told {
        open_files_max: Some(getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)),
        locked_bytes_max: getrlimit(Resource::Memlock).current,
        clock_synchronised: clock_synchronised(),
        rings: rings.collect::<BTreeMap<_, _>>(),
    }
}

/// Whether the kernel takes its clock for kept by a time server: it clears STA_UNSYNC then (adjtimex(2)).
fn clock_synchronised() -> Option<bool> {
    // SAFETY: all zeroes is a valid timex, and modes of 0 changes nothing.
    let (state, status) = unsafe {
        let mut now: libc::timex = std::mem::zeroed();
        (libc::adjtimex(&raw mut now), now.status)
    };
    (state >= 0).then_some(status & libc::STA_UNSYNC == 0)
}

/// The receive ring of a network interface and its maximum: ETHTOOL_GRINGPARAM of linux/ethtool.h.
fn ring(name: &str) -> Option<(u32, u32)> {
    const ETHTOOL_GRINGPARAM: u32 = 0x10;
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    #[repr(C)]
    struct RingParam {
        command: u32,
        rx_max: u32,
        rx_mini_max: u32,
        rx_jumbo_max: u32,
        tx_max: u32,
        rx: u32,
        rx_mini: u32,
        rx_jumbo: u32,
        tx: u32,
    }
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").ok()?;
    let mut answer = RingParam {
        command: ETHTOOL_GRINGPARAM,
        rx_max: 0,
        rx_mini_max: 0,
        rx_jumbo_max: 0,
        tx_max: 0,
        rx: 0,
        rx_mini: 0,
        rx_jumbo: 0,
        tx: 0,
    };
    // SAFETY: all zeroes is a valid ifreq; the name is copied with its end inside; the kernel writes an ethtool_ringparam
    // through the pointer, which outlives the call.
    let result = unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        if name.len() >= request.ifr_name.len() {
            return None;
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from.cast_signed();
        }
        request.ifr_ifru.ifru_data = (&raw mut answer).cast();
        libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request)
    };
    (result == 0 && answer.rx_max > 0).then_some((answer.rx, answer.rx_max))
}
