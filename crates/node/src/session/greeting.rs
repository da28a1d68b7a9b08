//! What both sides say before the first frame: who calls, which cluster and version, and whether that is accepted.
//!
//! The refusal and the numbers before it have the same form in every version, so that nodes of different versions can tell
//! each other that they are. docs/formats/session.md draws the bytes.

use std::fmt;
use std::io::{self, Read, Write};

use forebay_base::{ClientId, NodeId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::settings::{ANSWER_BYTES_MAX, GREETING_BYTES_MAX};

/// Every connection begins with this.
const MAGIC: [u8; 8] = *b"forebayN";

/// The version of sessions that this program speaks, and the oldest one that it still does.
pub const VERSION: u16 = 1;
const VERSION_MIN: u16 = 1;

/// What somebody who connects wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hello {
    /// A connection of a session.
    Session {
        /// The cluster.
        cluster: Uuid,
        /// Who calls.
        client: ClientId,
        /// Who is called.
        server: NodeId,
        /// The session to go on with; 0 for a new one.
        session: u64,
        /// 0 for the first connection, which makes the session; further ones carry large payloads.
        lane: u8,
        /// The caller's `session_grace`, in milliseconds.
        grace_ms: u64,
        /// The caller's clock of sessions, in milliseconds.
        clock_ms: u64,
    },
    /// One question without a session: commands ask so, and nodes that join.
    Visit {
        /// The cluster.
        cluster: Uuid,
        /// The question.
        question: Vec<u8>,
    },
}

/// The answer to a hello that is accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Welcome {
    /// The connection belongs to a session.
    Session {
        /// The session.
        session: u64,
        /// Who answers.
        server: ClientId,
        /// The shorter of both sides' `session_grace`, in milliseconds.
        grace_ms: u64,
        /// The clock of sessions of the node that answers, in milliseconds.
        clock_ms: u64,
    },
    /// The answer to a visitor's question.
    Visit {
        /// The answer.
        answer: Vec<u8>,
    },
}

/// Why a hello is refused. A kind exists only where the caller acts differently. On the wire it is its number, and a number that
/// this version does not know is read as [`RefusalKind::Unknown`]: its reason is for people in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "u32", into = "u32")]
pub enum RefusalKind {
    /// The nodes have no version in common.
    Version,
    /// The caller belongs to another cluster, or wanted another node.
    Cluster,
    /// The caller has shown no certificate, or another node's.
    Certificate,
    /// The caller was removed from the cluster.
    NotMember,
    /// A later life of the caller's daemon has been here.
    Superseded,
    /// The session of this connection is over.
    NoSession,
    /// Not now: try again.
    Busy,
    /// The question cannot be answered; the text says why.
    Question,
    /// A kind of a later version.
    Unknown,
}

impl RefusalKind {
    /// The kinds that have a number, in the order of their numbers.
    const NUMBERED: [RefusalKind; 8] = [
        RefusalKind::Version,
        RefusalKind::Cluster,
        RefusalKind::Certificate,
        RefusalKind::NotMember,
        RefusalKind::Superseded,
        RefusalKind::NoSession,
        RefusalKind::Busy,
        RefusalKind::Question,
    ];
}

impl From<u32> for RefusalKind {
    fn from(number: u32) -> RefusalKind {
        let kind = usize::try_from(number).ok().and_then(|place| RefusalKind::NUMBERED.get(place));
        kind.copied().unwrap_or(RefusalKind::Unknown)
    }
}

impl From<RefusalKind> for u32 {
    fn from(kind: RefusalKind) -> u32 {
        let number = RefusalKind::NUMBERED.iter().zip(0..).find(|(known, _)| **known == kind);
        number.map_or(u32::MAX, |(_, number)| number)
    }
}

/// A refusal: kind, and a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// What a program makes of it.
    pub kind: RefusalKind,
    /// What people read.
    pub reason: String,
}

impl Refusal {
    /// A refusal.
    pub fn new(kind: RefusalKind, reason: impl Into<String>) -> Refusal {
        Refusal { kind, reason: reason.into() }
    }

    /// Whether the same hello can be accepted a moment later.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self.kind {
            RefusalKind::Busy => true,
            RefusalKind::Version
            | RefusalKind::Cluster
            | RefusalKind::Certificate
            | RefusalKind::NotMember
            | RefusalKind::Superseded
            | RefusalKind::NoSession
            | RefusalKind::Question
            | RefusalKind::Unknown => false,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

/// Why a greeting came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum GreetingError {
    /// The connection broke, or TLS refused it.
    #[error("{0}")]
    Broken(#[from] io::Error),
    /// What arrived is not a greeting.
    #[error("{0}")]
    Malformed(&'static str),
    /// The other side has refused, or this side does.
    #[error("{0}")]
    Refused(Refusal),
}

fn put(stream: &mut impl Write, versions: [u16; 2], body: &impl Serialize) -> io::Result<()> {
    let body = postcard::to_stdvec(body).map_err(io::Error::other)?;
    let mut bytes = MAGIC.to_vec();
    bytes.extend(versions[0].to_le_bytes());
    bytes.extend(versions[1].to_le_bytes());
    bytes.extend(u32::try_from(body.len()).map_err(io::Error::other)?.to_le_bytes());
    bytes.extend(body);
    stream.write_all(&bytes)?;
    stream.flush()
}

/// The two version numbers and the bytes behind them.
fn get(stream: &mut impl Read, bytes_max: usize) -> Result<([u16; 2], Vec<u8>), GreetingError> {
    let mut fixed = [0; 16];
    stream.read_exact(&mut fixed)?;
    if fixed[..8] != MAGIC {
        return Err(GreetingError::Malformed("the other side is not a Forebay node"));
    }
    let versions =
        [u16::from_le_bytes([fixed[8], fixed[9]]), u16::from_le_bytes([fixed[10], fixed[11]])];
    let length = u32::from_le_bytes([fixed[12], fixed[13], fixed[14], fixed[15]]) as usize;
    if length > bytes_max {
        return Err(GreetingError::Malformed("the other side sent a greeting that is too long"));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok((versions, body))
}

fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, GreetingError> {
    postcard::from_bytes(body).map_err(|_| {
        GreetingError::Malformed("the other side sent a greeting that cannot be understood")
    })
}

/// Sends a hello and reads the answer.
///
/// # Errors
/// See [`GreetingError`].
pub fn greet(stream: &mut (impl Read + Write), hello: &Hello) -> Result<Welcome, GreetingError> {
    put(stream, [VERSION_MIN, VERSION], hello)?;
    match get(stream, ANSWER_BYTES_MAX)? {
        // The first number is the version that both speak, or 0 for a refusal.
        ([0, theirs], body) => {
            let mut refusal: Refusal = decode(&body)?;
            if refusal.kind == RefusalKind::Version {
                refusal.reason = version_reason(theirs);
            }
            Err(GreetingError::Refused(refusal))
        }
        ([VERSION, _], body) => decode(&body),
        ([_, theirs], _) => {
            Err(GreetingError::Refused(Refusal::new(RefusalKind::Version, version_reason(theirs))))
        }
    }
}

fn version_reason(theirs: u16) -> String {
    let upgrade = if theirs > VERSION { "this node" } else { "the other node" };
    format!(
        "the nodes use different versions of the protocol (this node {VERSION}, the other node {theirs}): upgrade Forebay on \
         {upgrade}"
    )
}

/// Reads a hello. A version that this program does not speak is answered and refused.
///
/// # Errors
/// See [`GreetingError`].
pub fn hear(stream: &mut (impl Read + Write)) -> Result<Hello, GreetingError> {
    let ([lowest, highest], body) = get(stream, GREETING_BYTES_MAX)?;
    if lowest > VERSION || highest < VERSION_MIN {
        let refusal = Refusal::new(RefusalKind::Version, version_reason(highest));
        refuse(stream, &refusal)?;
        return Err(GreetingError::Refused(refusal));
    }
    decode(&body)
}

/// Accepts a hello.
///
/// # Errors
/// If the connection broke.
pub fn accept(stream: &mut impl Write, welcome: &Welcome) -> io::Result<()> {
    put(stream, [VERSION, VERSION], welcome)
}

/// Refuses a hello.
///
/// # Errors
/// If the connection broke.
pub fn refuse(stream: &mut impl Write, refusal: &Refusal) -> io::Result<()> {
    put(stream, [0, VERSION], refusal)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use forebay_base::seed;
    use rand::{Rng as _, SeedableRng as _};

    use super::*;

    /// Reads what was put in, and keeps what is written.
    #[derive(Default)]
    struct Wire {
        incoming: VecDeque<u8>,
        written: Vec<u8>,
    }

    impl Read for Wire {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.incoming.read(into)
        }
    }

    impl Write for Wire {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.written.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn hello() -> Hello {
        let client = ClientId { node: NodeId(3), incarnation: 9 };
        let cluster = Uuid::from_u128(1);
        Hello::Session {
            cluster,
            client,
            server: NodeId(1),
            session: 4,
            lane: 0,
            grace_ms: 5,
            clock_ms: 6,
        }
    }

    fn said(versions: [u16; 2], body: &impl Serialize) -> VecDeque<u8> {
        let mut wire = Wire::default();
        put(&mut wire, versions, body).unwrap();
        wire.written.into()
    }

    #[test]
    fn kinds_of_refusals_keep_their_numbers_and_one_of_a_later_version_is_read_with_its_reason() {
        for (kind, number) in RefusalKind::NUMBERED.into_iter().zip(0_u8..) {
            let bytes = postcard::to_stdvec(&Refusal::new(kind, "why")).unwrap();
            assert_eq!(bytes, [number, 3, b'w', b'h', b'y'], "{kind:?}");
            assert_eq!(postcard::from_bytes::<Refusal>(&bytes).unwrap().kind, kind);
        }
        let later = Wire { incoming: said([0, VERSION], &(8_u32, "why")), ..Wire::default() };
        let Err(GreetingError::Refused(refusal)) = greet(&mut { later }, &hello()) else {
            panic!("a refusal is not read as one")
        };
        assert_eq!((refusal.kind, &refusal.reason[..]), (RefusalKind::Unknown, "why"));
        assert!(!refusal.may_pass());
    }

    #[test]
    fn a_hello_arrives_and_is_answered() {
        let mut server = Wire { incoming: said([1, 1], &hello()), ..Wire::default() };
        assert_eq!(hear(&mut server).unwrap(), hello());
        let welcome = Welcome::Visit { answer: vec![1, 2] };
        accept(&mut server, &welcome).unwrap();
        let mut client = Wire { incoming: server.written.into(), ..Wire::default() };
        assert_eq!(greet(&mut client, &hello()).unwrap(), welcome);
    }

    #[test]
    fn another_version_is_refused_by_both_sides_and_the_older_node_is_named() {
        let mut server = Wire { incoming: said([7, 8], &[1_u8; 30]), ..Wire::default() };
        let GreetingError::Refused(refusal) = hear(&mut server).unwrap_err() else { panic!() };
        assert_eq!(refusal.kind, RefusalKind::Version);
        assert!(refusal.reason.ends_with("upgrade Forebay on this node"), "{refusal}");
        let mut client = Wire { incoming: server.written.into(), ..Wire::default() };
        let GreetingError::Refused(refusal) = greet(&mut client, &hello()).unwrap_err() else {
            panic!()
        };
        assert_eq!(refusal.kind, RefusalKind::Version);
    }

    #[test]
    fn hostile_greetings_never_panic() {
        let mut random =
            rand::rngs::StdRng::seed_from_u64(seed::announce("cargo test -p forebay-node"));
        for _ in 0..20_000 {
            let mut bytes: Vec<u8> = said([1, 1], &hello()).into();
            for _ in 0..random.random_range(1..5) {
                let at = random.random_range(0..bytes.len());
                bytes[at] = random.random();
            }
            bytes.truncate(random.random_range(0..=bytes.len()));
            let _ = hear(&mut Wire { incoming: bytes.clone().into(), ..Wire::default() });
            let _ = greet(&mut Wire { incoming: bytes.into(), ..Wire::default() }, &hello());
        }
    }
}
