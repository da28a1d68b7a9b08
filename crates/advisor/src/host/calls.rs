//! What only system calls tell of this host.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use forebay_process::mounts::{self, Mount};
use rustix::process::{Resource, getrlimit};

use super::{Place, Told, Unreadable, Xfs};

/// A directory with the mount that it lies on.
pub(super) fn place(path: &Path, mounts: &[Mount]) -> Result<Place, Unreadable> {
    let unreadable = |source| Unreadable { path: path.to_owned(), source };
    let real = path.canonicalize().map_err(unreadable)?;
    let space = rustix::fs::statvfs(&real).map_err(|error| unreadable(error.into()))?;
    let mount = mounts::of(mounts, &real, None).cloned().unwrap_or_default();
    let xfs = (mount.file_system == "xfs").then(|| geometry(&real)).flatten();
    Ok(Place {
        mount,
        xfs,
        path: real,
        total_bytes: space.f_blocks.saturating_mul(space.f_frsize),
        free_bytes: space.f_bavail.saturating_mul(space.f_frsize),
        inodes: space.f_files,
        free_inodes: space.f_ffree,
    })
}

/// How an XFS was made: XFS_IOC_FSGEOMETRY_V4 of xfs/xfs_fs.h, which all kernels since 2.6 answer.
fn geometry(path: &Path) -> Option<Xfs> {
    /// `_IOR('X', 124, struct xfs_fsop_geom_v4)`.
    const XFS_IOC_FSGEOMETRY_V4: libc::c_ulong = 0x8070_587c;
    const REFLINK: u32 = 1 << 20;
    #[repr(C)]
    #[derive(Default)]
    struct Geometry {
        block_bytes: u32,
        realtime_extent_blocks: u32,
        group_blocks: u32,
        groups: u32,
        log_blocks: u32,
        sector_bytes: u32,
        inode_bytes: u32,
        inodes_percent: u32,
        blocks: u64,
        realtime_blocks: u64,
        realtime_extents: u64,
        log_start: u64,
        uuid: [u8; 16],
        stripe_unit_blocks: u32,
        stripe_width_blocks: u32,
        version: i32,
        flags: u32,
        log_sector_bytes: u32,
        realtime_sector_bytes: u32,
        directory_block_bytes: u32,
        log_stripe_unit_bytes: u32,
    }
    const { assert!(size_of::<Geometry>() == 112) };
    let folder = std::fs::File::open(path).ok()?;
    let mut found = Geometry::default();
    // SAFETY: the kernel writes a structure of this layout and size through the pointer, which outlives the call.
    let result = unsafe { libc::ioctl(folder.as_raw_fd(), XFS_IOC_FSGEOMETRY_V4, &raw mut found) };
    (result == 0).then_some(Xfs {
        has_reflinks: found.flags & REFLINK != 0,
        groups: found.groups,
        has_stripes: found.stripe_unit_blocks > 0,
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
