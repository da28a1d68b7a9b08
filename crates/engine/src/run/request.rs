//! Messages between an agent and the processes that hold jobs for it.
//!
//! A request is the path of a run's file with descriptors: the file, locked by the agent until the shim has
//! it, and for a nursery the shim's end of the line. On that line a shim says that its job was started, and that it
//! is free, and hears the next request. Every message is whole, or not there.

use std::ffi::OsStr;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use forebay_base::Usage;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// Longest path of a run's file in bytes; Linux takes no longer ones.
const PATH_MAX: usize = 4096;

/// What a job has used up to now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    pub real_ms: u64,
    pub user_ms: u64,
    pub system_ms: u64,
    /// The most up to now.
    pub memory_bytes: u64,
    /// Read and written by system calls, if that is known.
    pub bytes: Option<(u64, u64)>,
    /// In which something of it waited for I/O, if the kernel counts that.
    pub io_ms: Option<u64>,
    /// Read calls and write calls, likewise.
    pub calls: Option<(u64, u64)>,
    /// Read from devices and dirtied for them, likewise.
    pub device_bytes: Option<(u64, u64)>,
}

impl Now {
    /// As a text without line ends.
    pub fn words(self) -> String {
        let (read, written) = self.bytes.unzip();
        let (read_calls, write_calls) = self.calls.unzip();
        let (device_read, device_written) = self.device_bytes.unzip();
        let numbers = [
            Some(self.real_ms),
            Some(self.user_ms),
            Some(self.system_ms),
            Some(self.memory_bytes),
            read,
            written,
            self.io_ms,
            read_calls,
            write_calls,
            device_read,
            device_written,
        ];
        numbers.map(|number| number.map_or("-".to_owned(), |it| it.to_string())).join(" ")
    }

    /// What [`Now::words`] made; that of earlier versions lacks the last seven, or the last four.
    pub fn of_words(text: &str) -> Option<Now> {
        let mut numbers = text.split(' ').map(|word| word.parse().ok());
        let mut next = || numbers.next().flatten();
        let (real_ms, user_ms, system_ms, memory_bytes) = (next()?, next()?, next()?, next()?);
        let (bytes, io_ms) = (next().zip(next()), next());
        let (calls, device_bytes) = (next().zip(next()), next().zip(next()));
        Some(Now { real_ms, user_ms, system_ms, memory_bytes, bytes, io_ms, calls, device_bytes })
    }

    /// As part of what a job will have used.
    pub fn usage(self) -> Usage {
        let seconds = |ms: u64| ms as f64 / 1000.0;
        Usage {
            real_seconds: seconds(self.real_ms),
            user_seconds: seconds(self.user_ms),
            system_seconds: seconds(self.system_ms),
            peak_memory_bytes: Some(self.memory_bytes),
            read_bytes: self.bytes.map(|(read, _)| read),
            written_bytes: self.bytes.map(|(_, written)| written),
            read_calls: self.calls.map(|(read, _)| read),
            write_calls: self.calls.map(|(_, write)| write),
            device_read_bytes: self.device_bytes.map(|(read, _)| read),
            device_written_bytes: self.device_bytes.map(|(_, written)| written),
            io_pressure_seconds: self.io_ms.map(seconds),
            ..Usage::default()
        }
    }
}

/// The two ends of a line.
///
/// # Errors
/// If there are no descriptors left.
pub fn line() -> Result<(OwnedFd, OwnedFd)> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None)?)
}

/// Asks for a run to be held.
///
/// # Errors
/// If nobody is at the other end.
pub fn ask(line: &OwnedFd, run: &Path, files: &[BorrowedFd<'_>]) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(files));
    let bytes = [IoSlice::new(run.as_os_str().as_bytes())];
    let sent = rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(line, &bytes, &mut ancillary, SendFlags::NOSIGNAL)
    });
    sent.map(|_| ()).map_err(Into::into)
}

/// The next request with its descriptors; none when the agent is gone.
///
/// # Errors
/// The kernel's.
pub fn take<const FILES: usize>(line: impl AsFd) -> Result<Option<(PathBuf, [OwnedFd; FILES])>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut buffer = [0; PATH_MAX];
    let mut bytes = [IoSliceMut::new(&mut buffer)];
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(&line, &mut bytes, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut files = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(given) = message {
            files.extend(given);
        }
    }
    let Ok(files) = files.try_into() else { return Ok(None) };
    Ok(Some((PathBuf::from(OsStr::from_bytes(&buffer[..received.bytes])), files)))
}

/// What a shim tells its agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Its job was started, with this process first.
    Started { pid: u32 },
    /// Its job has used so much up to now.
    Using { now: Now },
    /// Its job is a service, and what its file says of that has changed.
    Health,
    /// Its job has ended, its end is written down, and the run's file is let go: it waits for another one.
    Free,
}

impl Word {
    /// Says it. The agent may be gone; the next one reads the file of the run.
    pub fn say(self, line: impl AsFd) -> rustix::io::Result<()> {
        let mut flags = SendFlags::NOSIGNAL;
        let text = match self {
            Word::Started { pid } => format!("started {pid}"),
            Word::Using { now } => {
                // What an agent that does not listen misses is said again.
                flags |= SendFlags::DONTWAIT;
                format!("using {}", now.words())
            }
            Word::Health => {
                // The agent also looks from time to time.
                flags |= SendFlags::DONTWAIT;
                "health".to_owned()
            }
            Word::Free => "free".to_owned(),
        };
        let say = || rustix::net::send(&line, text.as_bytes(), flags);
        rustix::io::retry_on_intr(say).map(|_| ())
    }

    /// What was said; none when the shim is gone, or says what nobody knows.
    pub fn hear(line: &OwnedFd) -> Option<Word> {
        let mut text = [0; 256];
        // It does not wait, so no signal comes between.
        let (length, _) = rustix::net::recv(line, &mut text[..], RecvFlags::DONTWAIT).ok()?;
        match std::str::from_utf8(&text[..length]).ok()?.split_once(' ') {
            Some(("started", pid)) => Some(Word::Started { pid: pid.parse().ok()? }),
            Some(("using", words)) => Some(Word::Using { now: Now::of_words(words)? }),
            None if text[..length] == *b"free" => Some(Word::Free),
            None if text[..length] == *b"health" => Some(Word::Health),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn a_request_arrives_with_its_files_and_the_end_of_the_line_is_seen() {
        let (ours, theirs) = line().unwrap();
        let (file, other) = (std::fs::File::open("/dev/null").unwrap(), line().unwrap().0);
        ask(&ours, Path::new("/runs/7.0.1"), &[file.as_fd(), other.as_fd()]).unwrap();
        let (path, [_, _]) = take::<2>(&theirs).unwrap().unwrap();
        assert_eq!(path, Path::new("/runs/7.0.1"));
        drop(ours);
        assert!(take::<2>(&theirs).unwrap().is_none());
        assert!(ask(&theirs, Path::new("/runs/8.0.1"), &[file.as_fd()]).is_err());
    }

    #[test]
    fn what_a_job_has_used_may_lack_what_is_not_known_or_an_earlier_version_does_not_say() {
        let now = Now { real_ms: 7, user_ms: 2, ..Now::default() };
        assert_eq!(Now::of_words(&now.words()), Some(now));
        assert_eq!(Now::of_words("7 2 0 0"), Some(now));
        let some = Now { bytes: Some((5, 0)), io_ms: Some(1), ..now };
        assert_eq!(Now::of_words("7 2 0 0 5 0 1"), Some(some));
        let full = Now { calls: Some((3, 4)), device_bytes: Some((0, 4096)), ..some };
        assert_eq!(Now::of_words(&full.words()), Some(full));
        let usage = full.usage();
        assert_eq!((usage.read_bytes, usage.write_calls), (Some(5), Some(4)));
        assert_eq!(usage.device_written_bytes, Some(4096));
        for bad in ["", "7 2 0", "7 2 0 x"] {
            assert_eq!(Now::of_words(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_a_shim_says_is_heard_in_order_and_its_end_last() {
        let (ours, theirs) = line().unwrap();
        let now = Now {
            real_ms: u64::MAX,
            user_ms: u64::MAX,
            system_ms: u64::MAX,
            memory_bytes: u64::MAX,
            bytes: Some((u64::MAX, u64::MAX)),
            io_ms: Some(u64::MAX),
            calls: Some((u64::MAX, u64::MAX)),
            device_bytes: Some((u64::MAX, u64::MAX)),
        };
        for word in
            [Word::Started { pid: 4_000_000 }, Word::Using { now }, Word::Health, Word::Free]
        {
            word.say(&theirs).unwrap();
        }
        assert_eq!(Word::hear(&ours), Some(Word::Started { pid: 4_000_000 }));
        assert_eq!(Word::hear(&ours), Some(Word::Using { now }));
        assert_eq!(Word::hear(&ours), Some(Word::Health));
        assert_eq!(Word::hear(&ours), Some(Word::Free));
        drop(theirs);
        assert_eq!(Word::hear(&ours), None);
    }
}
