//! Keeps the counters of a child readable until it is reaped.
//!
//! `/proc/PID/io` of a process that ended belongs to root, so that its parent, if it is another user,
//! must have opened it before; and a child may end before its parent gets to it. So the child opens the
//! file itself, between fork and exec, and hands it over.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// The parent's end.
#[derive(Debug)]
pub struct Receiver(OwnedFd);

/// The child's end.
#[derive(Debug)]
pub struct Sender(OwnedFd);

/// Both ends; they do not survive exec.
pub fn pair() -> std::io::Result<(Receiver, Sender)> {
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    Ok((Receiver(ours), Sender(theirs)))
}

impl Sender {
    /// In the child: opens its counters and hands them over. Allocates nothing.
    pub fn send(&self) -> rustix::io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let counters = rustix::fs::open(c"/proc/self/io", flags, Mode::empty())?;
        let files = [counters.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
        rustix::net::sendmsg(&self.0, &[IoSlice::new(b"i")], &mut ancillary, SendFlags::empty())?;
        Ok(())
    }
}

impl Receiver {
    /// In the parent, once the child runs its program: the file, if the child could open it.
    pub fn receive(self) -> Option<File> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        rustix::net::recvmsg(&self.0, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags)
            .ok()?;
        ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next().map(File::from),
            _ => None,
        })
    }
}
