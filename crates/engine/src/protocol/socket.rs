//! Unix sockets with lines of JSON.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::protocol::budget::{FREE_BYTES, Share};

/// Longest line in bytes: a command with its environment, as JSON escapes it.
const LINE_MAX: u64 = 16 << 20;
/// Longest order in bytes: a job as it was submitted, as the controller writes it, and what it adds.
const ORDER_MAX: u64 = 2 * LINE_MAX;
/// Longest line in bytes of who may be an agent: how as many jobs ended as it has slots, with reasons.
const JOIN_MAX: u64 = 1 << 30;
/// Longest answer in bytes: a list of some million jobs.
const ANSWER_MAX: u64 = 1 << 30;

/// Calls `act` with a path to the socket that is short enough for a socket address.
fn with_short_path<T>(socket: &Path, act: impl FnOnce(&Path) -> std::io::Result<T>) -> Result<T> {
    let parent = socket.parent().context("a socket lies in a folder")?;
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
    let folder = rustix::fs::open(parent, flags, rustix::fs::Mode::empty())
        .with_context(|| parent.display().to_string())?;
    let name = socket.file_name().context("a socket has a name")?;
    let short = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name);
    act(&short).with_context(|| socket.display().to_string())
}

/// Connects.
///
/// # Errors
/// If nobody listens there.
pub fn connect(socket: &Path) -> Result<UnixStream> {
    with_short_path(socket, |short| UnixStream::connect(short))
}

/// Listens; `mode` says who may connect.
///
/// # Errors
/// If the socket cannot be made.
pub fn listen(socket: &Path, mode: u32) -> Result<UnixListener> {
    use std::os::unix::fs::PermissionsExt as _;
    let _ = std::fs::remove_file(socket);
    let listener = with_short_path(socket, |short| UnixListener::bind(short))?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(mode))?;
    Ok(listener)
}

/// Whether the peer has not closed its end. One that will write no more may still read.
pub fn is_there(stream: &UnixStream) -> bool {
    let mut looked = [PollFd::new(stream, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut looked, Some(&now)) {
        Ok(_) => !looked[0].revents().intersects(PollFlags::HUP | PollFlags::ERR),
        // Asked again later.
        Err(_) => true,
    }
}

/// Reads lines.
pub struct Reader {
    stream: BufReader<UnixStream>,
    line_max: u64,
    /// Bytes of the last line.
    length: u64,
    /// What long lines are counted by, if they are.
    share: Option<Share>,
}

/// Memory for lines that lie ready, where many may come at once.
const READY_BYTES: usize = 64 << 10;

impl Reader {
    /// One for short questions and answers.
    pub fn new(stream: UnixStream) -> Reader {
        Reader::over(BufReader::new(stream))
    }

    /// One for the answers of a controller, which may be long lists.
    pub fn of_answers(stream: UnixStream) -> Reader {
        Reader { line_max: ANSWER_MAX, ..Reader::of_many(stream) }
    }

    /// One for the orders of a controller: whatever it could read, its agent can.
    pub fn of_orders(stream: UnixStream) -> Reader {
        Reader { line_max: ORDER_MAX, ..Reader::new(stream) }
    }

    /// One for a peer that may send many lines before it reads an answer.
    pub fn of_many(stream: UnixStream) -> Reader {
        Reader::over(BufReader::with_capacity(READY_BYTES, stream))
    }

    fn over(stream: BufReader<UnixStream>) -> Reader {
        Reader { stream, line_max: LINE_MAX, length: 0, share: None }
    }

    /// As [`Reader::of_many`], for a peer whose long lines are counted.
    pub(crate) fn of_counted(stream: UnixStream, share: Share) -> Reader {
        Reader { share: Some(share), ..Reader::of_many(stream) }
    }

    /// Bytes of the line that was read last, and what it was counted by, to be kept as long as it is in memory.
    pub(crate) fn last_line(&mut self) -> (u64, Option<Share>) {
        (self.length, self.share.as_mut().and_then(Share::split_off))
    }

    /// One for a peer that may be an agent: what it says when it joins grows with its slots.
    pub fn of_agents(stream: UnixStream) -> Reader {
        Reader { line_max: JOIN_MAX, ..Reader::of_many(stream) }
    }

    /// Whether a whole line lies ready, so that reading it waits for nobody.
    pub fn has_line(&self) -> bool {
        self.stream.buffer().contains(&b'\n')
    }

    /// The next value; none at the end.
    pub fn read<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let Some(line) = self.line()? else { return Ok(None) };
        serde_json::from_slice(&line).context("not understood").map(Some)
    }

    /// The next value, from a peer that may be of a later version: a line that is JSON and not such a value is no error of the
    /// connection.
    pub(crate) fn read_or_unknown<T: DeserializeOwned>(
        &mut self,
    ) -> Result<Option<Result<T, Unknown>>> {
        let Some(line) = self.line()? else { return Ok(None) };
        let error = match serde_json::from_slice(&line) {
            Ok(value) => return Ok(Some(Ok(value))),
            Err(error) => error,
        };
        let value = serde_json::from_slice(&line).context("not understood")?;
        Ok(Some(Err(Unknown { value, reason: error.to_string() })))
    }

    /// The next line; none at the end.
    fn line(&mut self) -> Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        let mut room = FREE_BYTES.min(self.line_max);
        loop {
            let length = self.stream.by_ref().take(room).read_until(b'\n', &mut line)? as u64;
            self.length = line.len() as u64;
            if line.last() == Some(&b'\n') {
                return Ok(Some(line));
            }
            if self.length == 0 {
                return Ok(None);
            }
            if length < room || self.length >= self.line_max {
                bail!("a line has no end, or more than {} bytes", self.line_max);
            }
            // As much again, as memory for it grows.
            room = self.length.min(self.line_max - self.length);
            if let Some(share) = &mut self.share {
                share.grow_to(self.length + room)?;
            }
        }
    }
}

/// A line that is JSON, but not what its reader understands.
#[derive(Clone, Debug)]
pub(crate) struct Unknown {
    /// The line.
    pub value: Value,
    /// Why it was not understood.
    pub reason: String,
}

/// The longest message of [`write_framed`].
const FRAMED_BYTES_MAX: u32 = 64 << 10;

/// Writes one value with its length before it, for what comes before the lines of a connection: who reads it reads no more.
pub fn write_framed<T: Serialize>(mut stream: &UnixStream, value: &T) -> Result<()> {
    let body = serde_json::to_vec(value)?;
    let mut bytes = u32::try_from(body.len())?.to_le_bytes().to_vec();
    bytes.extend(body);
    Ok(stream.write_all(&bytes)?)
}

/// Reads what [`write_framed`] has written, and nothing behind it.
pub fn read_framed<T: DeserializeOwned>(mut stream: &UnixStream) -> Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > FRAMED_BYTES_MAX {
        bail!("a message of {length} bytes; at most {FRAMED_BYTES_MAX} are allowed");
    }
    let mut body = vec![0; length as usize];
    stream.read_exact(&mut body)?;
    serde_json::from_slice(&body).context("not understood")
}

/// Writes one value as a line.
pub fn write<T: Serialize>(stream: &UnixStream, value: &T) -> Result<()> {
    write_all(stream, std::iter::once(value))
}

/// Writes values as lines, with one call.
pub fn write_all<'a, T: Serialize + 'a>(
    mut stream: &UnixStream,
    values: impl IntoIterator<Item = &'a T>,
) -> Result<()> {
    let mut lines = Vec::new();
    for value in values {
        serde_json::to_writer(&mut lines, value)?;
        lines.push(b'\n');
    }
    stream.write_all(&lines)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_controller_can_read_its_agent_can_read_with_what_is_added() {
        let send = |bytes: usize, reader: fn(UnixStream) -> Reader| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let written = std::thread::spawn(move || write(&ours, &"x".repeat(bytes)));
            let read = reader(theirs).read::<String>();
            let _ = written.join();
            read.map(|text| text.map_or(0, |text| text.len())).map_err(|error| error.to_string())
        };
        let longest = LINE_MAX as usize - 3;
        assert_eq!(send(longest, Reader::of_many), Ok(longest));
        assert!(send(longest + 1, Reader::of_many).unwrap_err().contains("more than"));
        assert_eq!(send(longest + 1_000_000, Reader::of_orders), Ok(longest + 1_000_000));
    }
}
