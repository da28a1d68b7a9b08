//! The packed form of an object (docs/formats/archive.md). Pure.
//!
//! A head, the frames one after the other, an index with an entry for each frame, and a foot. A frame holds the bytes
//! of one piece of the file, compressed by itself; a piece of zeros has none. The foot lies at the end, names the index and
//! says how long the whole is: an object that was cut off has none, or one that does not fit.

use forebay_base::{ObjectId, Timestamp};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// Bytes of the file in one frame.
pub const FRAME_BYTES: usize = 1 << 20;
/// Bytes of the head.
pub const HEAD_BYTES: usize = 48;
/// Bytes of the foot.
pub const FOOT_BYTES: usize = 80;
/// Bytes of an entry of the index.
pub const ENTRY_BYTES: usize = 32;
/// Frames of one object: the index is held in memory (512 MiB for the largest, of 16 TiB).
pub const FRAMES_MAX: u64 = 1 << 24;
/// How hard frames are compressed.
const LEVEL: i32 = 3;

const HEAD_MAGIC: &[u8; 8] = b"FBARCHIV";
const FOOT_MAGIC: &[u8; 8] = b"FBARCEND";
const VERSION: u32 = 1;

/// Which disk of which file system an object belongs to, in 16 bytes.
#[must_use]
pub fn identity(file_system: &str, disk: &str) -> u128 {
    xxh3_128(format!("{file_system}/{disk}").as_bytes())
}

/// One frame, as the index has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Which piece of the file it holds: that at `frame` times [`FRAME_BYTES`].
    pub frame: u64,
    /// Bytes in the store.
    pub stored: u32,
    /// Bytes of the file.
    pub length: u32,
    /// XXH3 of the stored bytes.
    pub stored_hash: u64,
    /// XXH3 of the bytes of the file.
    pub hash: u64,
}

/// What the foot says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foot {
    /// Which object it is.
    pub id: ObjectId,
    /// Disk and file system.
    pub identity: u128,
    /// Bytes of the file.
    pub size: u64,
    /// Last change of its content.
    pub modified: Timestamp,
    /// Entries of the index.
    pub entries: u64,
    /// Where the index begins.
    pub index_at: u64,
    /// XXH3 of the index.
    pub index_hash: u64,
}

/// Compresses one piece of a file.
///
/// # Errors
/// What the compressor says.
pub fn pack(frame: u64, bytes: &[u8]) -> std::result::Result<(Entry, Vec<u8>), String> {
    let stored = zstd::bulk::compress(bytes, LEVEL).map_err(|error| error.to_string())?;
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let entry = Entry {
        frame,
        stored: length(&stored),
        length: length(bytes),
        stored_hash: xxh3_64(&stored),
        hash: xxh3_64(bytes),
    };
    Ok((entry, stored))
}

/// The piece of a file that a frame holds.
///
/// # Errors
/// Why it is not the one that was packed.
pub fn unpack(entry: &Entry, stored: &[u8]) -> std::result::Result<Vec<u8>, String> {
    let wrong = |what: &str| Err(format!("frame {}: {what}", entry.frame));
    if stored.len() as u64 != u64::from(entry.stored) {
        return wrong("bytes are missing");
    }
    if xxh3_64(stored) != entry.stored_hash {
        return wrong("its bytes are not those that were written");
    }
    let length = entry.length as usize;
    match zstd::bulk::decompress(stored, length) {
        Ok(bytes) if bytes.len() == length && xxh3_64(&bytes) == entry.hash => Ok(bytes),
        Ok(_) => wrong("it does not unpack to the bytes that were packed"),
        Err(error) => wrong(&format!("it cannot be unpacked: {error}")),
    }
}

/// The head of an object.
#[must_use]
pub fn head(identity: u128, id: ObjectId) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD_BYTES);
    bytes.extend(HEAD_MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((FRAME_BYTES as u32).to_le_bytes());
    bytes.extend(identity.to_le_bytes());
    bytes.extend(id.0.to_le_bytes());
    let hash = xxh3_64(&bytes);
    bytes.extend(hash.to_le_bytes());
    bytes
}

/// The index.
#[must_use]
pub fn index(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(entries.len() * ENTRY_BYTES);
    for entry in entries {
        bytes.extend(entry.frame.to_le_bytes());
        bytes.extend(entry.stored.to_le_bytes());
        bytes.extend(entry.length.to_le_bytes());
        bytes.extend(entry.stored_hash.to_le_bytes());
        bytes.extend(entry.hash.to_le_bytes());
    }
    bytes
}

impl Foot {
    /// As it is written.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FOOT_BYTES);
        bytes.extend(self.id.0.to_le_bytes());
        bytes.extend(self.size.to_le_bytes());
        bytes.extend(self.modified.seconds.to_le_bytes());
        bytes.extend(self.modified.nanoseconds.to_le_bytes());
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.entries.to_le_bytes());
        bytes.extend(self.index_at.to_le_bytes());
        bytes.extend(self.index_hash.to_le_bytes());
        // Of both the file system and the disk; the head has it whole.
        bytes.extend((self.identity as u64).to_le_bytes());
        let hash = xxh3_64(&bytes);
        bytes.extend(hash.to_le_bytes());
        bytes.extend(FOOT_MAGIC);
        bytes
    }

    /// Reads the foot of an object of `total` bytes that must be `id` of `identity`.
    ///
    /// # Errors
    /// Why it is not its foot.
    pub fn decode(
        bytes: &[u8],
        total: u64,
        id: ObjectId,
        identity: u128,
    ) -> std::result::Result<Foot, String> {
        let wrong = |what: &str| Err(what.to_owned());
        if bytes.len() != FOOT_BYTES || !bytes.ends_with(FOOT_MAGIC) {
            return wrong(
                "it does not end as an object of an archive does: it was cut off, or is something else",
            );
        }
        let number = |at: usize| {
            let field = bytes.get(at..at + 8).and_then(|field| field.try_into().ok());
            u64::from_le_bytes(field.unwrap_or_default())
        };
        let small = |at: usize| {
            let field = bytes.get(at..at + 4).and_then(|field| field.try_into().ok());
            u32::from_le_bytes(field.unwrap_or_default())
        };
        if xxh3_64(&bytes[..FOOT_BYTES - 16]) != number(FOOT_BYTES - 16) {
            return wrong("its foot is damaged");
        }
        let version = small(28);
        if version != VERSION {
            return Err(format!("its format is version {version}; this program knows {VERSION}"));
        }
        let foot = Foot {
            id: ObjectId(number(0)),
            identity,
            size: number(8),
            modified: Timestamp { seconds: number(16).cast_signed(), nanoseconds: small(24) },
            entries: number(32),
            index_at: number(40),
            index_hash: number(48),
        };
        if foot.id != id || number(56) != identity as u64 {
            return wrong("it is another object");
        }
        let fits = foot.entries <= FRAMES_MAX
            && foot.index_at >= HEAD_BYTES as u64
            && foot.index_at.checked_add(foot.entries * ENTRY_BYTES as u64 + FOOT_BYTES as u64)
                == Some(total);
        if !fits {
            return wrong("its foot does not fit its length: bytes are missing, or too many");
        }
        Ok(foot)
    }
}

/// Reads an index, with the place of each frame in the object.
///
/// # Errors
/// Why it is not the index of that foot.
pub fn read_index(bytes: &[u8], foot: &Foot) -> std::result::Result<Vec<(Entry, u64)>, String> {
    if bytes.len() as u64 != foot.entries * ENTRY_BYTES as u64 || xxh3_64(bytes) != foot.index_hash
    {
        return Err("its index is damaged".to_owned());
    }
    let mut found = Vec::with_capacity(bytes.len() / ENTRY_BYTES);
    let (mut at, mut next) = (HEAD_BYTES as u64, 0);
    for bytes in bytes.chunks_exact(ENTRY_BYTES) {
        let number = |at: usize| {
            let field = bytes.get(at..at + 8).and_then(|field| field.try_into().ok());
            u64::from_le_bytes(field.unwrap_or_default())
        };
        let sizes = number(8);
        let entry = Entry {
            frame: number(0),
            stored: (sizes & u64::from(u32::MAX)) as u32,
            length: (sizes >> 32) as u32,
            stored_hash: number(16),
            hash: number(24),
        };
        let begins = entry.frame.saturating_mul(FRAME_BYTES as u64);
        let ends = begins.saturating_add(u64::from(entry.length));
        if entry.frame < next
            || entry.length as usize > FRAME_BYTES
            || entry.length == 0
            || ends > foot.size
        {
            return Err("its index cannot be understood".to_owned());
        }
        next = entry.frame + 1;
        found.push((entry, at));
        at += u64::from(entry.stored);
    }
    if at != foot.index_at {
        return Err("its frames and its index do not fit together".to_owned());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn foot() -> Foot {
        Foot {
            id: ObjectId(7),
            identity: identity("fs", "disk"),
            size: 3 * FRAME_BYTES as u64,
            modified: Timestamp::new(-5, 9),
            entries: 2,
            index_at: 0,
            index_hash: 0,
        }
    }

    #[test]
    fn a_frame_unpacks_to_what_was_packed_and_a_changed_one_is_refused() {
        let bytes: Vec<u8> = (0..100_000_u32).map(|n| (n / 7) as u8).collect();
        let (entry, stored) = pack(3, &bytes).unwrap();
        assert!(stored.len() < bytes.len() / 4);
        assert_eq!(unpack(&entry, &stored).unwrap(), bytes);
        for at in [0, stored.len() / 2, stored.len() - 1] {
            let mut changed = stored.clone();
            changed[at] ^= 1;
            assert!(unpack(&entry, &changed).unwrap_err().contains("not those that were written"));
        }
        assert!(unpack(&entry, &stored[1..]).is_err());
    }

    #[test]
    fn a_foot_and_an_index_read_back_and_any_cut_is_found() {
        let frames = [pack(0, &[1; 10]).unwrap(), pack(2, &[2; 20]).unwrap()];
        let entries: Vec<Entry> = frames.iter().map(|(entry, _)| *entry).collect();
        let stored: u64 = entries.iter().map(|entry| u64::from(entry.stored)).sum();
        let index = index(&entries);
        let index_at = HEAD_BYTES as u64 + stored;
        let foot = Foot { index_at, index_hash: xxh3_64(&index), ..foot() };
        let bytes = foot.encode();
        assert_eq!((bytes.len(), head(1, ObjectId(2)).len()), (FOOT_BYTES, HEAD_BYTES));
        let total = index_at + index.len() as u64 + FOOT_BYTES as u64;
        let decode =
            |bytes: &[u8], total, id| Foot::decode(bytes, total, ObjectId(id), foot.identity);
        assert_eq!(decode(&bytes, total, 7), Ok(foot));
        assert!(decode(&bytes, total - 1, 7).unwrap_err().contains("missing"));
        assert!(decode(&bytes, total, 8).unwrap_err().contains("another object"));
        assert!(Foot::decode(&bytes, total, ObjectId(7), foot.identity + 1).is_err());
        assert!(decode(&bytes[1..], total, 7).is_err());
        for at in 0..FOOT_BYTES {
            let mut changed = bytes.clone();
            changed[at] ^= 4;
            assert!(decode(&changed, total, 7).is_err(), "{at}");
        }
        let found = read_index(&index, &foot).unwrap();
        assert_eq!(found.iter().map(|(entry, _)| *entry).collect::<Vec<_>>(), entries);
        assert_eq!(found[1].1, HEAD_BYTES as u64 + u64::from(entries[0].stored));
        assert!(read_index(&index[ENTRY_BYTES..], &foot).is_err());
    }
}
