//! Flags of inodes (ioctl_iflags(2), chattr(1)): there are none. A program that looks is told so, one that sets
//! none as well, and one that sets any is refused.

use crate::abi::{IoctlIn, IoctlOut};
use crate::adapter::{Adapter, Request};
use crate::reply::Reply;
use crate::request::{Answer, Body, Errno};

/// FS_IOC_GETFLAGS and FS_IOC_SETFLAGS of `include/uapi/linux/fs.h`, as programs of 64 and of 32 bits say them.
const GET_FLAGS: [u32; 2] = [0x8008_6601, 0x8004_6601];
const SET_FLAGS: [u32; 2] = [0x4008_6602, 0x4004_6602];
/// FS_IOC_FSGETXATTR and FS_IOC_FSSETXATTR: flags and project in a structure of 28 bytes.
const GET_EXTENDED: u32 = 0x801c_581f;
const SET_EXTENDED: u32 = 0x401c_5820;
const FLAGS_BYTES: usize = 4;
const EXTENDED_BYTES: usize = 28;

impl Adapter {
    pub(crate) fn ioctl(
        &self,
        request: Request,
        mut body: Body<'_>,
        reply: &mut Reply,
    ) -> Answer<()> {
        let asked: IoctlIn = body.take()?;
        let (length, sets) = match asked.cmd {
            command if GET_FLAGS.contains(&command) => (FLAGS_BYTES, false),
            command if SET_FLAGS.contains(&command) => (FLAGS_BYTES, true),
            GET_EXTENDED => (EXTENDED_BYTES, false),
            SET_EXTENDED => (EXTENDED_BYTES, true),
            _ => return Err(Errno(libc::ENOTTY)),
        };
        self.fs.getattr(request.ino)?;
        if sets {
            let given = body.bytes(asked.in_size)?;
            if given.iter().any(|byte| *byte != 0) {
                return Err(Errno(libc::EOPNOTSUPP));
            }
        }
        reply.push(&IoctlOut::default());
        if !sets {
            let room = usize::try_from(asked.out_size).unwrap_or(0);
            reply.push_bytes(&[0; EXTENDED_BYTES][..length.min(room)]);
        }
        Ok(())
    }
}
