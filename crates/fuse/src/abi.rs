//! The FUSE protocol as structures: what the kernel sends and expects, in the machine's byte order.
//!
//! Source: `include/uapi/linux/fuse.h` of Linux 6.18 (protocol 7.45), of which protocol 7.31 is the
//! least that is understood here. Field names follow that file.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Protocol version spoken here.
pub const MAJOR: u32 = 7;
/// Newest minor version spoken here.
pub const MINOR: u32 = 45;
/// Oldest minor version understood: the kernel of Debian 11 speaks 7.32.
pub const MINOR_LEAST: u32 = 31;

/// Request codes.
pub mod opcode {
    macro_rules! opcodes {
        ($($name:ident = $code:literal,)*) => {
            $(#[allow(missing_docs)] pub const $name: u32 = $code;)*

            /// Every code with its name.
            pub const ALL: &[(u32, &str)] = &[$(($code, stringify!($name)),)*];

            /// The name of a code.
            #[must_use]
            pub fn name(code: u32) -> &'static &'static str {
                match code {
                    $($code => &stringify!($name),)*
                    _ => &"UNKNOWN",
                }
            }
        };
    }
    opcodes! {
        LOOKUP = 1, FORGET = 2, GETATTR = 3, SETATTR = 4, READLINK = 5, SYMLINK = 6, MKNOD = 8,
        MKDIR = 9, UNLINK = 10, RMDIR = 11, RENAME = 12, LINK = 13, OPEN = 14, READ = 15, WRITE = 16,
        STATFS = 17, RELEASE = 18, FSYNC = 20, SETXATTR = 21, GETXATTR = 22, LISTXATTR = 23,
        REMOVEXATTR = 24, FLUSH = 25, INIT = 26, OPENDIR = 27, READDIR = 28, RELEASEDIR = 29,
        FSYNCDIR = 30, GETLK = 31, SETLK = 32, SETLKW = 33, ACCESS = 34, CREATE = 35, INTERRUPT = 36, DESTROY = 38, IOCTL = 39, BATCH_FORGET = 42,
        FALLOCATE = 43, READDIRPLUS = 44, RENAME2 = 45, LSEEK = 46, COPY_FILE_RANGE = 47, SYNCFS = 50,
        TMPFILE = 51, STATX = 52, COPY_FILE_RANGE_64 = 53,
    }
}

/// Feature bits of INIT.
pub mod feature {
    macro_rules! features {
        ($($name:ident = $bit:literal,)*) => { $(#[allow(missing_docs)] pub const $name: u64 = 1 << $bit;)* };
    }
    features! {
        ASYNC_READ = 0, POSIX_LOCKS = 1, ATOMIC_O_TRUNC = 3, EXPORT_SUPPORT = 4, BIG_WRITES = 5, DONT_MASK = 6, FLOCK_LOCKS = 10,
        DO_READDIRPLUS = 13, READDIRPLUS_AUTO = 14, ASYNC_DIO = 15, PARALLEL_DIROPS = 18,
        POSIX_ACL = 20, MAX_PAGES = 22, CACHE_SYMLINKS = 23, NO_OPENDIR_SUPPORT = 24, HANDLE_KILLPRIV_V2 = 28,
        SETXATTR_EXT = 29, INIT_EXT = 30, DIRECT_IO_ALLOW_MMAP = 36, PASSTHROUGH = 37,
        OVER_IO_URING = 41,
    }
}

/// Answer to an open: what the kernel may do with the file.
pub mod open_flag {
    /// Pages are not cached: each read and write asks.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// Cached pages stay valid.
    pub const KEEP_CACHE: u32 = 1 << 1;
    /// No FLUSH at close.
    pub const NOFLUSH: u32 = 1 << 5;
    /// The kernel reads and writes the registered file itself.
    pub const PASSTHROUGH: u32 = 1 << 7;
}

/// Which fields of [`SetattrIn`] count.
pub mod setattr {
    macro_rules! bits {
        ($($name:ident = $bit:literal,)*) => { $(#[allow(missing_docs)] pub const $name: u32 = 1 << $bit;)* };
    }
    bits! {
        MODE = 0, UID = 1, GID = 2, SIZE = 3, ATIME = 4, MTIME = 5, ATIME_NOW = 7, MTIME_NOW = 8,
        KILL_SUIDGID = 11,
    }
    /// All that change something that is kept.
    pub const ANY: u32 =
        MODE | UID | GID | SIZE | ATIME | MTIME | ATIME_NOW | MTIME_NOW | KILL_SUIDGID;
}

/// WRITE: pages of the kernel's cache, as of a mapping, not the data of a write(2).
pub const WRITE_CACHE: u32 = 1 << 0;
/// WRITE: the writer may not keep set-id bits alive.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// SETXATTR: setting an access control list takes set-group-id away.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// FSYNC: data only.
pub const FSYNC_FDATASYNC: u32 = 1 << 0;
/// RELEASE: the descriptor had a lock of flock(2); its holder is in `lock_owner`.
pub const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
/// GETLK, SETLK, SETLKW: a lock of flock(2).
pub const LK_FLOCK: u32 = 1 << 0;
/// Notification: forget attributes (and pages) of an inode.
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// Notification: forget a name.
pub const NOTIFY_INVAL_ENTRY: i32 = 3;
/// The name is to be asked for again, not dropped.
pub const EXPIRE_ONLY: u32 = 1 << 0;
/// STATX: the basic fields and the time of creation.
pub const STATX_BASIC_AND_BTIME: u32 = 0x7ff | 0x800;

macro_rules! received {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
        #[repr(C)]
        #[allow(missing_docs)]
        pub struct $name { $(pub $field: $type,)* }
    };
}

received! {
    /// In front of every request.
    InHeader { len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16, }
}
received! {
    /// In front of every answer; `error` is a negative errno.
    OutHeader { len: u32, error: i32, unique: u64, }
}
received! {
    /// Attributes of an inode.
    Attr { ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32,
        mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        blksize: u32, flags: u32, }
}
received! {
    /// Answer to whatever finds or makes an inode.
    EntryOut { nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: Attr, }
}
received! {
    /// Answer to GETATTR and SETATTR.
    AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr, }
}
received! {
    /// Start of the session, from the kernel. Kernels may send more or less after `flags`.
    InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32, }
}
received! {
    /// Start of the session, our side.
    InitOut { major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16,
        flags2: u32, max_stack_depth: u32, request_timeout: u16, unused: [u16; 11], }
}
received! { #[doc = "FORGET."] ForgetIn { nlookup: u64, } }
received! { #[doc = "BATCH_FORGET; followed by `count` of [`ForgetOne`]."] BatchForgetIn { count: u32, dummy: u32, } }
received! { #[doc = "One of BATCH_FORGET."] ForgetOne { nodeid: u64, nlookup: u64, } }
received! { #[doc = "GETATTR."] GetattrIn { getattr_flags: u32, dummy: u32, fh: u64, } }
received! {
    /// SETATTR.
    SetattrIn { valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64,
        ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32,
        gid: u32, unused5: u32, }
}
received! { #[doc = "MKNOD."] MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32, } }
received! { #[doc = "MKDIR."] MkdirIn { mode: u32, umask: u32, } }
received! { #[doc = "RENAME."] RenameIn { newdir: u64, } }
received! { #[doc = "RENAME2."] Rename2In { newdir: u64, flags: u32, padding: u32, } }
received! { #[doc = "LINK."] LinkIn { oldnodeid: u64, } }
received! { #[doc = "OPEN, OPENDIR."] OpenIn { flags: u32, open_flags: u32, } }
received! { #[doc = "CREATE, TMPFILE."] CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32, } }
received! { #[doc = "Answer to OPEN, OPENDIR; second part of that to CREATE."] OpenOut { fh: u64, open_flags: u32, backing_id: u32, } }
received! { #[doc = "RELEASE."] ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, } }
received! {
    /// READ, READDIR, READDIRPLUS.
    ReadIn { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
}
received! {
    /// WRITE; followed by the data.
    WriteIn { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32,
        padding: u32, }
}
received! { #[doc = "Answer to WRITE, COPY_FILE_RANGE."] WriteOut { size: u32, padding: u32, } }
received! {
    /// Answer to STATFS.
    StatfsOut { blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32,
        frsize: u32, padding: u32, spare: [u32; 6], }
}
received! { #[doc = "A lock: both ends belong to it."] FileLock { start: u64, end: u64, r#type: u32, pid: u32, } }
received! { #[doc = "GETLK, SETLK, SETLKW."] LkIn { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, padding: u32, } }
received! { #[doc = "FLUSH."] FlushIn { fh: u64, unused: u32, padding: u32, lock_owner: u64, } }
received! { #[doc = "INTERRUPT: the request that is to end."] InterruptIn { unique: u64, } }
received! { #[doc = "FSYNC, FSYNCDIR."] FsyncIn { fh: u64, fsync_flags: u32, padding: u32, } }
received! { #[doc = "SETXATTR with the extension; followed by name and value."] SetxattrIn { size: u32, flags: u32, setxattr_flags: u32, padding: u32, } }
received! { #[doc = "GETXATTR (followed by the name), LISTXATTR."] GetxattrIn { size: u32, padding: u32, } }
received! { #[doc = "Answer to GETXATTR, LISTXATTR that ask for the length."] GetxattrOut { size: u32, padding: u32, } }
received! { #[doc = "FALLOCATE."] FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, } }
received! { #[doc = "LSEEK."] LseekIn { fh: u64, offset: u64, whence: u32, padding: u32, } }
received! { #[doc = "Answer to LSEEK."] LseekOut { offset: u64, } }
received! {
    /// COPY_FILE_RANGE and COPY_FILE_RANGE_64.
    CopyFileRangeIn { fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64,
        flags: u64, }
}
received! { #[doc = "Answer to COPY_FILE_RANGE_64."] CopyFileRangeOut { bytes_copied: u64, } }
received! { #[doc = "One entry of READDIR; followed by the name, padded to 8 bytes."] Dirent { ino: u64, off: u64, namelen: u32, r#type: u32, } }
received! { #[doc = "IOCTL; followed by `in_size` bytes."] IoctlIn { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32, } }
received! { #[doc = "Answer to IOCTL; followed by the bytes asked for."] IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32, } }
received! { #[doc = "STATX."] StatxIn { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32, } }
received! { #[doc = "A time of STATX."] StatxTime { tv_sec: i64, tv_nsec: u32, reserved: i32, } }
received! {
    /// Answer to STATX.
    StatxOut { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], mask: u32,
        blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16,
        ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: StatxTime, btime: StatxTime,
        ctime: StatxTime, mtime: StatxTime, rdev_major: u32, rdev_minor: u32, dev_major: u32,
        dev_minor: u32, spare2: [u64; 14], }
}
received! { #[doc = "Notification to forget an inode's attributes."] NotifyInvalInode { ino: u64, off: i64, len: i64, } }
received! { #[doc = "Notification to forget a name; followed by it and a NUL."] NotifyInvalEntry { parent: u64, namelen: u32, flags: u32, } }
received! { #[doc = "Registration of a file for passthrough (FUSE_DEV_IOC_BACKING_OPEN)."] BackingMap { fd: i32, flags: u32, padding: u64, } }

/// io_uring command: gives the kernel the memory of an entry, and asks for a request in it.
pub const RING_REGISTER: u32 = 1;
/// io_uring command: gives the answer to the request in an entry, and asks for the next one in it.
pub const RING_COMMIT_AND_FETCH: u32 = 2;
/// Least room for the payload of an entry, in bytes (FUSE_MIN_READ_BUFFER).
pub const RING_PAYLOAD_LEAST: usize = 8192;

received! {
    /// Fate of an entry of a ring: which request it holds, and how long the payload is, either way.
    RingEntry { flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64, }
}
received! {
    /// In a submission for a ring: which request is answered (0 with RING_REGISTER), on which queue.
    RingCommand { flags: u64, commit_id: u64, qid: u16, padding: [u8; 6], }
}

/// What stands in front of an entry of a ring. The payload lies elsewhere.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct RingHeader {
    /// [`InHeader`], and then [`OutHeader`].
    pub in_out: [u8; 128],
    /// The first structure of the request, if it has one.
    pub op_in: [u8; 128],
    /// The rest.
    pub entry: RingEntry,
}

const _: () = {
    assert!(size_of::<RingEntry>() == 32);
    assert!(size_of::<RingCommand>() == 24);
    assert!(size_of::<RingHeader>() == 288);
    assert!(size_of::<InHeader>() == 40);
    assert!(size_of::<Attr>() == 88);
    assert!(size_of::<EntryOut>() == 128);
    assert!(size_of::<InitOut>() == 64);
    assert!(size_of::<SetattrIn>() == 88);
    assert!(size_of::<StatfsOut>() == 80);
    assert!(size_of::<StatxOut>() == 32 + 256);
};
