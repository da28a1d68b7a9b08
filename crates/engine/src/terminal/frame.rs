//! What client and shim say to each other: a byte for the kind, four for the length (little end first),
//! then bytes of a stream or one JSON value.

use std::io::{Error, ErrorKind, Read, Result, Write};

use forebay_grid::spec::Exit;
use forebay_grid::vocabulary::{HostName, TaskId};
use serde::{Deserialize, Serialize};

/// The most bytes of a frame behind its head.
pub const FRAME_BYTES_MAX: usize = 64 << 10;

/// One of the standard streams of a job. A terminal has input and output only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard input, from the client to the job.
    Input,
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}

/// The size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Lines.
    pub rows: u16,
    /// Characters of a line.
    pub columns: u16,
}

/// How a terminal treats what goes through it: the fields of termios(3), with the control characters in
/// the order of [`crate::terminal::link::CONTROL_CHARACTERS`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Modes {
    /// `c_iflag`.
    pub input: u32,
    /// `c_oflag`.
    pub output: u32,
    /// `c_lflag`.
    pub local: u32,
    /// Control characters.
    pub characters: Vec<u8>,
}

/// The terminal of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terminal {
    /// Its size.
    pub size: Size,
    /// Its modes.
    pub modes: Modes,
}

/// What is no part of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "said", rename_all = "snake_case")]
pub enum Word {
    /// The shim begins: here is the job, not yet started.
    Hello {
        /// Which.
        task: TaskId,
        /// Where.
        host: HostName,
    },
    /// The client answers: the job may start.
    Begin {
        /// The client's terminal, if the job has one.
        terminal: Option<Terminal>,
    },
    /// The client's terminal has another size.
    Resize {
        /// The new one.
        size: Size,
    },
    /// The job is to have a signal.
    Signal {
        /// Its number.
        number: i32,
    },
    /// A stream has ended.
    End {
        /// Which.
        stream: Stream,
    },
    /// Bytes of a stream were passed on: as many more may be sent.
    Taken {
        /// Of which.
        stream: Stream,
        /// How many.
        bytes: u32,
    },
    /// Nobody reads a stream any more.
    Closed {
        /// Which.
        stream: Stream,
    },
    /// The job has ended, and all its output was sent.
    Exit {
        /// How.
        exit: Exit,
    },
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Bytes of a stream.
    Data(Stream, Vec<u8>),
    /// Anything else.
    Said(Word),
}

impl Stream {
    fn kind(self) -> u8 {
        match self {
            Stream::Input => 1,
            Stream::Output => 2,
            Stream::Error => 3,
        }
    }
}

/// Writes a message of one kind; at most [`FRAME_BYTES_MAX`] bytes.
fn write(to: &mut impl Write, kind: u8, bytes: &[u8]) -> Result<()> {
    let length = u32::try_from(bytes.len()).map_err(Error::other)?;
    let mut whole = Vec::with_capacity(5 + bytes.len());
    whole.push(kind);
    whole.extend(length.to_le_bytes());
    whole.extend(bytes);
    to.write_all(&whole)
}

/// Writes bytes of a stream, at most [`FRAME_BYTES_MAX`].
///
/// # Errors
/// If the other side is gone.
pub fn write_data(to: &mut impl Write, stream: Stream, bytes: &[u8]) -> Result<()> {
    write(to, stream.kind(), bytes)
}

/// Writes a word.
///
/// # Errors
/// If the other side is gone.
pub fn write_word(to: &mut impl Write, word: &Word) -> Result<()> {
    write(to, 0, &serde_json::to_vec(word)?)
}

/// Reads a message; none at the end.
///
/// # Errors
/// If the other side is gone in the middle of a message, or what it says is none.
pub fn read(from: &mut impl Read) -> Result<Option<Frame>> {
    let mut head = [0; 5];
    if from.read(&mut head[..1])? == 0 {
        return Ok(None);
    }
    from.read_exact(&mut head[1..])?;
    let [kind, length @ ..] = head;
    let length = u32::from_le_bytes(length) as usize;
    if length > FRAME_BYTES_MAX {
        let reason = format!("a frame of {length} bytes: {FRAME_BYTES_MAX} are the most");
        return Err(Error::new(ErrorKind::InvalidData, reason));
    }
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes)?;
    let stream = match kind {
        0 => return Ok(Some(Frame::Said(serde_json::from_slice(&bytes)?))),
        1 => Stream::Input,
        2 => Stream::Output,
        3 => Stream::Error,
        _ => return Err(Error::new(ErrorKind::InvalidData, format!("a frame of kind {kind}"))),
    };
    Ok(Some(Frame::Data(stream, bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_read_back_as_they_were_written() {
        let mut wire = Vec::new();
        let word = Word::Exit { exit: Exit::Signal(9) };
        write_data(&mut wire, Stream::Error, b"oh\n").unwrap();
        write_word(&mut wire, &word).unwrap();
        let mut rest = &wire[..];
        assert_eq!(read(&mut rest).unwrap(), Some(Frame::Data(Stream::Error, b"oh\n".to_vec())));
        assert_eq!(read(&mut rest).unwrap(), Some(Frame::Said(word)));
        assert_eq!(read(&mut rest).unwrap(), None);
    }

    #[test]
    fn what_is_no_frame_is_refused_and_never_panics() {
        for wire in [
            &[9, 0, 0, 0, 0][..],
            &[1, 0xff, 0xff, 0xff, 0xff],
            &[0, 1, 0, 0, 0, b'{'],
            &[1, 4, 0, 0, 0, 1],
            &[2, 0],
        ] {
            assert!(read(&mut &*wire).is_err(), "{wire:?}");
        }
    }
}
