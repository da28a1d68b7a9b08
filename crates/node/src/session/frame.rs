//! Frames: what goes over a connection once both sides have greeted each other. docs/formats/session.md draws the bytes.
//!
//! Nothing that arrives makes the decoder panic or allocate more than one frame may hold.

use std::sync::Arc;

use crate::settings::{HEAD_BYTES_MAX, PAYLOAD_BYTES_MAX};

/// Bytes of a frame before its head: the length, and the fields of [`Header`].
pub const HEADER_BYTES: usize = 36;

/// Longest value of the length field, which does not count itself.
const LENGTH_MAX: usize = HEADER_BYTES - 4 + HEAD_BYTES_MAX + PAYLOAD_BYTES_MAX;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A call of a service.
    Request = 1,
    /// Its answer.
    Answer = 2,
    /// The service did not understand the call; the head is the reason.
    Refused = 3,
    /// The call came too late and was not begun: it may be sent again.
    Late = 4,
    /// Answers that have arrived; the head is a list of operations, eight bytes each.
    Received = 5,
    /// Is the other side there?
    Ping = 6,
    /// It is: the answer to the ping with the same operation.
    Pong = 7,
    /// The session is over; the head is the reason.
    Over = 8,
    /// The answers of all operations below this frame's have arrived, but for those that the head lists: sent when a connection
    /// was lost, and acknowledgements perhaps with it.
    Waiting = 9,
    /// A call of a service that others wait for: it has room of its own.
    Release = 10,
}

impl Kind {
    fn of(number: u8) -> Option<Kind> {
        Some(match number {
            1 => Kind::Request,
            2 => Kind::Answer,
            3 => Kind::Refused,
            4 => Kind::Late,
            5 => Kind::Received,
            6 => Kind::Ping,
            7 => Kind::Pong,
            8 => Kind::Over,
            9 => Kind::Waiting,
            10 => Kind::Release,
            _ => return None,
        })
    }
}

/// The fixed part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the frame is.
    pub kind: Kind,
    /// The service that is called; 0 otherwise.
    pub service: u8,
    /// The operation, counted by the side that calls.
    pub operation: u64,
    /// The sender's clock, in milliseconds since a moment of its own.
    pub clock: u64,
    /// When the receiver may no longer begin the call, by the receiver's clock; 0 in other frames.
    pub not_after: u64,
}

/// What a frame carries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Body {
    /// The encoded part.
    pub head: Vec<u8>,
    /// Bytes as they are.
    pub payload: Vec<u8>,
}

impl Body {
    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.head.len() + self.payload.len()
    }

    /// Whether a frame can carry it.
    pub fn fits(&self) -> bool {
        self.head.len() <= HEAD_BYTES_MAX && self.payload.len() <= PAYLOAD_BYTES_MAX
    }
}

/// A frame to be sent. What it carries may be sent again.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The fixed part.
    pub header: Header,
    /// What it carries.
    pub body: Arc<Body>,
}

impl Outgoing {
    /// The bytes before the head.
    pub fn header_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let length = HEADER_BYTES - 4 + self.body.bytes();
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        // Both are below LENGTH_MAX, as `Body::fits` is checked when a frame is made.
        put(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
        put(&[self.header.kind as u8, self.header.service, 0, 0]);
        put(&self.header.operation.to_le_bytes());
        put(&self.header.clock.to_le_bytes());
        put(&self.header.not_after.to_le_bytes());
        put(&u32::try_from(self.body.head.len()).unwrap_or(u32::MAX).to_le_bytes());
        bytes
    }
}

/// A frame that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The fixed part.
    pub header: Header,
    /// What it carries.
    pub body: Body,
}

/// The other side does not speak this protocol. The connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other node sent {0}")]
pub struct Malformed(pub &'static str);

/// Collects bytes into frames.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    /// Where the next frame begins.
    start: usize,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<usize> {
    let field = bytes.get(at..at + 4)?;
    usize::try_from(u32::from_le_bytes(field.try_into().ok()?)).ok()
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

impl Decoder {
    /// Adds bytes that arrived.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.start > 0 && self.start >= self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next frame, if all of it has arrived.
    pub fn take(&mut self) -> Result<Option<Frame>, Malformed> {
        let bytes = &self.bytes[self.start..];
        let Some(length) = u32_at(bytes, 0) else { return Ok(None) };
        if !(HEADER_BYTES - 4..=LENGTH_MAX).contains(&length) {
            return Err(Malformed("a frame of an impossible length"));
        }
        // Refused before the rest of it is awaited.
        if bytes.get(4).is_some_and(|kind| Kind::of(*kind).is_none()) {
            return Err(Malformed("a frame of an unknown kind"));
        }
        let Some(frame) = bytes.get(4..4 + length) else { return Ok(None) };
        let taken = parse(frame)?;
        self.start += 4 + length;
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.start = 0;
            // A large frame does not keep its memory for ever.
            self.bytes.shrink_to(256 << 10);
        }
        Ok(Some(taken))
    }
}

/// Reads a frame without its length.
fn parse(frame: &[u8]) -> Result<Frame, Malformed> {
    const SHORT: Malformed = Malformed("a frame that ends in its header");
    let kind = frame.first().and_then(|kind| Kind::of(*kind));
    let kind = kind.ok_or(Malformed("a frame of an unknown kind"))?;
    let header = Header {
        kind,
        service: *frame.get(1).ok_or(SHORT)?,
        operation: u64_at(frame, 4).ok_or(SHORT)?,
        clock: u64_at(frame, 12).ok_or(SHORT)?,
        not_after: u64_at(frame, 20).ok_or(SHORT)?,
    };
    let head_bytes = u32_at(frame, 28).ok_or(SHORT)?;
    let rest = frame.get(HEADER_BYTES - 4..).ok_or(SHORT)?;
    if head_bytes > HEAD_BYTES_MAX || head_bytes > rest.len() {
        return Err(Malformed("a frame whose head is longer than the frame"));
    }
    let (head, payload) = rest.split_at(head_bytes);
    if payload.len() > PAYLOAD_BYTES_MAX {
        return Err(Malformed("a frame with too large a payload"));
    }
    Ok(Frame { header, body: Body { head: head.to_vec(), payload: payload.to_vec() } })
}

/// The operations in a frame of [`Kind::Received`].
pub fn operations(head: &[u8]) -> Result<impl Iterator<Item = u64>, Malformed> {
    if !head.len().is_multiple_of(8) {
        return Err(Malformed("a list that is not one of operations"));
    }
    Ok(head.chunks_exact(8).filter_map(|chunk| u64_at(chunk, 0)))
}

#[cfg(test)]
mod tests {
    use forebay_base::seed;
    use rand::{Rng as _, SeedableRng as _};

    use super::*;

    fn bytes_of(frame: &Frame) -> Vec<u8> {
        let outgoing = Outgoing { header: frame.header, body: Arc::new(frame.body.clone()) };
        let mut bytes = outgoing.header_bytes().to_vec();
        bytes.extend(&frame.body.head);
        bytes.extend(&frame.body.payload);
        bytes
    }

    fn random_frame(random: &mut impl rand::Rng) -> Frame {
        let kind = Kind::of(random.random_range(1..=9)).unwrap();
        let bytes = |random: &mut dyn rand::RngCore, max: usize| {
            let mut bytes = vec![0; random.random_range(0..=max)];
            random.fill_bytes(&mut bytes);
            bytes
        };
        Frame {
            header: Header {
                kind,
                service: random.random(),
                operation: random.random(),
                clock: random.random(),
                not_after: random.random(),
            },
            body: Body { head: bytes(random, 40), payload: bytes(random, 3000) },
        }
    }

    #[test]
    fn frames_arrive_as_they_were_sent_however_they_are_cut() {
        let mut random =
            rand::rngs::StdRng::seed_from_u64(seed::announce("cargo test -p forebay-node"));
        for _ in 0..200 {
            let frames: Vec<Frame> =
                (0..random.random_range(1..6)).map(|_| random_frame(&mut random)).collect();
            let bytes: Vec<u8> = frames.iter().flat_map(bytes_of).collect();
            let (mut decoder, mut found, mut at) = (Decoder::default(), Vec::new(), 0);
            while at < bytes.len() {
                let end = (at + random.random_range(1..2000)).min(bytes.len());
                decoder.feed(&bytes[at..end]);
                at = end;
                while let Some(frame) = decoder.take().unwrap() {
                    found.push(frame);
                }
            }
            assert_eq!(found, frames);
        }
    }

    #[test]
    fn random_and_mutated_bytes_are_refused_or_decoded_but_never_panic() {
        let mut random =
            rand::rngs::StdRng::seed_from_u64(seed::announce("cargo test -p forebay-node"));
        for round in 0..20_000 {
            let mut bytes = if round % 2 == 0 {
                bytes_of(&random_frame(&mut random))
            } else {
                (0..random.random_range(0..200)).map(|_| random.random()).collect()
            };
            for _ in 0..random.random_range(0..6) {
                let at = random.random_range(0..bytes.len().max(1));
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = random.random();
                }
            }
            let mut decoder = Decoder::default();
            decoder.feed(&bytes);
            while let Ok(Some(frame)) = decoder.take() {
                assert!(frame.body.fits());
                let _ = operations(&frame.body.head).map(Iterator::count);
            }
            assert!(decoder.bytes.len() <= bytes.len());
        }
    }

    #[test]
    fn a_frame_that_could_not_be_held_is_refused_at_its_length() {
        let mut decoder = Decoder::default();
        decoder.feed(&u32::MAX.to_le_bytes());
        assert!(decoder.take().is_err());
        let mut decoder = Decoder::default();
        decoder.feed(&u32::try_from(LENGTH_MAX).unwrap().to_le_bytes());
        assert_eq!(decoder.take(), Ok(None));
        decoder.feed(&[99]);
        assert!(decoder.take().is_err());
    }
}
