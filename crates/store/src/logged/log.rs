//! The file of a log: a header, then records one after the other, each from the beginning of a page.
//!
//! ```text
//! page 0   "FBLOG001" | id (16) | checksum of both (16)
//! record   "FBR1" | bytes of the changes (4) | number (8) | checksum (16) | changes | up to the end of the page: anything
//! changes  for each key: text: key | text: empty if it is deleted, otherwise 1 | text: value, unless it is deleted
//! text     bytes (4) | the bytes
//! ```
//! Numbers are little-endian. A checksum (XXH3, 128 bits) of a record covers the id, what stands before it and the changes.
//! Records have consecutive numbers. When the log starts over, records of the last round stay behind the new ones, with
//! smaller numbers. So the first record that is not whole, or does not have the next number, ends the log. If a later one
//! has that number or a greater one, the record was not torn by a crash, as only one is written at a time: then it was damaged.
//!
//! The file has its full length, written with zeros, from the beginning: a record changes neither its length nor the map of its
//! blocks, so that a sync writes nothing else.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

use crate::Bytes;

/// Changes by key; none deletes.
pub(super) type Changes = BTreeMap<Bytes, Option<Bytes>>;

/// What tells the log of one store from others.
pub(super) type Id = [u8; 16];

/// Bytes of the file.
pub(super) const LOG_BYTES: usize = 2 << 20;
/// The largest changes that are written to a log; larger ones cost a store no more.
pub(super) const CHANGES_BYTES_MAX: usize = 256 << 10;

const PAGE: usize = 4096;
const HEADER_MAGIC: &[u8; 8] = b"FBLOG001";
const RECORD_MAGIC: &[u8; 4] = b"FBR1";
/// Bytes of a record before its changes.
const RECORD_HEAD: usize = 32;

/// A file that holds a log.
pub(super) trait LogFile: Send {
    /// All of it.
    fn read(&self) -> io::Result<Bytes>;

    /// Writes these bytes there. They are durable after the next [`LogFile::sync`]; until then a crash may keep any of their sectors.
    fn write(&self, bytes: &[u8], offset: usize) -> io::Result<()>;

    /// Makes durable what was written. After an error any of it may be lost.
    fn sync(&self) -> io::Result<()>;
}

impl LogFile for File {
    fn read(&self) -> io::Result<Bytes> {
        let mut bytes = vec![0; LOG_BYTES];
        self.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    fn write(&self, bytes: &[u8], offset: usize) -> io::Result<()> {
        self.write_all_at(bytes, offset as u64)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// Makes the file of an empty log at `path`, in place of one that is there.
///
/// # Errors
/// If it cannot be written as a whole: then it is no log.
pub(super) fn create(path: &Path, id: Id) -> io::Result<File> {
    let mut options = File::options();
    // The keys and values of a store are nobody's business but its owner's.
    let file = options.read(true).write(true).create(true).truncate(true).mode(0o600).open(path)?;
    let mut bytes = vec![0; LOG_BYTES];
    bytes[..8].copy_from_slice(HEADER_MAGIC);
    bytes[8..24].copy_from_slice(&id);
    let checksum = xxh3_128(&bytes[..24]);
    bytes[24..40].copy_from_slice(&checksum.to_le_bytes());
    file.write_all_at(&bytes, 0)?;
    file.sync_all()?;
    super::sync_directory_of(path)?;
    Ok(file)
}

/// Why a log cannot be used.
#[derive(Debug)]
pub(super) enum Flaw {
    /// It is not the log of this store, or not a log.
    Other,
    /// A record that was acknowledged is damaged or missing.
    Lost(u64),
    /// It cannot be read.
    Io(io::Error),
}

/// Why a record was not added.
#[derive(Debug)]
pub(super) enum Failure {
    /// Nothing of it is left.
    Before(io::Error),
    /// It may be there: [`Log::settle`] removes it.
    Unknown(io::Error),
}

/// A log that is written.
pub(super) struct Log {
    file: Box<dyn LogFile>,
    id: Id,
    /// The number of the next record, and where it goes.
    next: u64,
    at: usize,
    /// Whether a record of which nobody knows may lie there.
    is_unsettled: bool,
}

impl Log {
    /// A log without records.
    pub fn empty(file: Box<dyn LogFile>, id: Id, next: u64) -> Log {
        Log { file, id, next, at: PAGE, is_unsettled: false }
    }

    /// The log of the store with this id, and what it holds from the record with the number `from` on.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn open(file: Box<dyn LogFile>, id: Id, from: u64) -> Result<(Log, Changes), Flaw> {
        let bytes = file.read().map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Flaw::Other,
            _ => Flaw::Io(error),
        })?;
        let is_own = bytes.len() == LOG_BYTES
            && bytes.starts_with(HEADER_MAGIC)
            && bytes[8..24] == id
            && bytes[24..40] == xxh3_128(&bytes[..24]).to_le_bytes();
        if !is_own {
            return Err(Flaw::Other);
        }
        let first = record(&bytes, &id, PAGE).map_or(from, |(number, _)| number);
        let (mut changes, mut next, mut at) = (Changes::new(), first.min(from), PAGE);
        while let Some((number, payload)) = record(&bytes, &id, at)
            && number == next
        {
            if number >= from {
                changes.extend(decode(payload).ok_or(Flaw::Lost(number))?);
            }
            next += 1;
            at += pages_of(payload.len());
        }
        // What a sound log has behind its end is older.
        let next = next.max(from);
        let is_later = |page: &usize| record(&bytes, &id, *page).is_some_and(|it| it.0 >= next);
        if (at..LOG_BYTES).step_by(PAGE).any(|page| is_later(&page)) {
            return Err(Flaw::Lost(next));
        }
        Ok((Log { file, id, next, at, is_unsettled: false }, changes))
    }

    /// The number of the next record.
    pub fn next(&self) -> u64 {
        self.next
    }

    pub fn id(&self) -> Id {
        self.id
    }

    pub fn is_unsettled(&self) -> bool {
        self.is_unsettled
    }

    /// Whether there is room for changes of so many bytes.
    pub fn has_room(&self, changes: usize) -> bool {
        self.at + pages_of(changes) <= LOG_BYTES
    }

    /// Adds a record, which is durable then. There must be room, and nothing unsettled.
    pub fn append(&mut self, changes: &[u8]) -> Result<(), Failure> {
        assert!(self.has_room(changes.len()) && !self.is_unsettled, "a log that takes a record");
        let bytes = encode_record(&self.id, self.next, changes);
        match self.file.write(&bytes, self.at).and_then(|()| self.file.sync()) {
            Ok(()) => {
                self.next += 1;
                self.at += pages_of(changes.len());
                Ok(())
            }
            Err(error) => {
                self.is_unsettled = true;
                match self.settle() {
                    Ok(()) => Err(Failure::Before(error)),
                    Err(_) => Err(Failure::Unknown(error)),
                }
            }
        }
    }

    /// Removes what a record has left that could not be added.
    pub fn settle(&mut self) -> io::Result<()> {
        if self.is_unsettled {
            self.file.write(&[0; PAGE], self.at)?;
            self.file.sync()?;
            self.is_unsettled = false;
        }
        Ok(())
    }

    /// Starts over: what was logged is in the store.
    pub fn restart(&mut self) {
        self.at = PAGE;
    }
}

/// Bytes of a record in the file.
fn pages_of(changes: usize) -> usize {
    (RECORD_HEAD + changes).next_multiple_of(PAGE)
}

fn checksum_of(id: &Id, head: &[u8], changes: &[u8]) -> [u8; 16] {
    xxh3_128(&[id, head, changes].concat()).to_le_bytes()
}

fn encode_record(id: &Id, number: u64, changes: &[u8]) -> Bytes {
    let length = u32::try_from(changes.len()).expect("fewer bytes than a log has");
    let mut bytes = RECORD_MAGIC.to_vec();
    bytes.extend(length.to_le_bytes());
    bytes.extend(number.to_le_bytes());
    bytes.extend(checksum_of(id, &bytes, changes));
    bytes.extend(changes);
    bytes
}

/// The number and the changes of the record at a place, if there is a whole one.
fn record<'a>(bytes: &'a [u8], id: &Id, at: usize) -> Option<(u64, &'a [u8])> {
    let head = bytes.get(at..at + RECORD_HEAD)?;
    let number = u64::from_le_bytes(*head[8..].first_chunk()?);
    let length = usize::try_from(u32::from_le_bytes(*head[4..].first_chunk()?)).ok()?;
    let changes = bytes.get(at + RECORD_HEAD..)?.get(..length)?;
    let is_whole = head.starts_with(RECORD_MAGIC)
        && length <= CHANGES_BYTES_MAX
        && head[16..] == checksum_of(id, &head[..16], changes);
    is_whole.then_some((number, changes))
}

/// The changes of a batch as a record has them.
pub(super) fn encode(changes: &Changes) -> Bytes {
    let mut bytes = Vec::new();
    let mut put = |text: &[u8]| {
        let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
        bytes.extend(length.to_le_bytes());
        bytes.extend(text);
    };
    for (key, value) in changes {
        put(key);
        match value {
            None => put(&[]),
            Some(value) => {
                put(&[1]);
                put(value);
            }
        }
    }
    bytes
}

fn decode(mut bytes: &[u8]) -> Option<Changes> {
    let mut changes = Changes::new();
    while !bytes.is_empty() {
        let mut next = || {
            let (length, rest) = bytes.split_first_chunk::<4>()?;
            let (text, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            bytes = rest;
            Some(text.to_vec())
        };
        let (key, mark) = (next()?, next()?);
        let value = if mark.is_empty() { None } else { Some(next()?) };
        changes.insert(key, value);
    }
    Some(changes)
}
