//! The header of a redb file (format 3, `docs/design.md` of redb 4): what the engine relies on without
//! a checksum, and where the trees begin.
//!
//! The engine verifies commit slots and pages, but takes on trust which of the two slots counts, and the
//! sizes of pages and regions. All files here are made with one geometry, so it is compared with that; and
//! after an orderly end the slot that counts is the newer one.

use xxhash_rust::xxh3::xxh3_128;

/// Bytes of the header.
pub(super) const HEADER_BYTES: usize = 320;
/// Bytes of a page.
pub(super) const PAGE_BYTES: u64 = 4096;
/// Pages of a region.
pub(super) const REGION_PAGES: u64 = 1 << 20;

const MAGIC: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";
pub(super) const FLAGS: usize = 9;
const SECOND_COUNTS: u8 = 1;
pub(super) const IN_USE: u8 = 2;
const TWO_PHASES: u8 = 4;
const SLOTS: [usize; 2] = [64, 192];
const SLOT_BYTES: usize = 128;
const SLOT_CHECKSUM: usize = 112;

/// The root of a tree, as its parent names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Root {
    /// Page number as it lies in the file.
    pub page: u64,
    /// Checksum of the page.
    pub checksum: u128,
}

impl Root {
    /// Reads a root of 24 bytes.
    pub fn parse(bytes: &[u8]) -> Option<Root> {
        Some(Root { page: number(bytes, 0)?, checksum: checksum(bytes, 8)? })
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

pub(super) fn checksum(bytes: &[u8], at: usize) -> Option<u128> {
    Some(u128::from_le_bytes(bytes.get(at..at + 16)?.try_into().ok()?))
}

fn word(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

/// A commit slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    /// Its checksum is right.
    pub is_whole: bool,
    /// Number of its transaction.
    pub transaction: u64,
    /// The tree of tables.
    pub tables: Option<Root>,
}

/// The header, taken apart.
pub(super) struct Header {
    bytes: [u8; HEADER_BYTES],
    pub slots: [Slot; 2],
}

impl Header {
    /// Takes a header apart. A slot in which one bit is wrong is put right.
    pub fn parse(bytes: [u8; HEADER_BYTES]) -> Header {
        let slots = SLOTS.map(|at| {
            let mut slot = [0; SLOT_BYTES];
            slot.copy_from_slice(&bytes[at..at + SLOT_BYTES]);
            let is_whole = is_whole(&slot);
            if !is_whole {
                correct(&mut slot);
            }
            Slot {
                is_whole,
                transaction: number(&slot, 104).unwrap_or(0),
                tables: Root::parse(&slot[8..]).filter(|_| slot[1] != 0),
            }
        });
        Header { bytes, slots }
    }

    /// Which slot the header says counts.
    pub fn counts(&self) -> usize {
        usize::from(self.bytes[FLAGS] & SECOND_COUNTS != 0)
    }

    fn is_in_use(&self) -> bool {
        self.bytes[FLAGS] & IN_USE != 0
    }

    /// What is wrong with the header of a file of `length` bytes.
    pub fn flaws(&self, length: u64) -> Vec<String> {
        let mut flaws = Vec::new();
        if self.bytes[..MAGIC.len()] != MAGIC {
            flaws.push("it does not begin with the mark of a redb file".to_owned());
        }
        let geometry = [
            ("page size", 12, PAGE_BYTES),
            ("size of region headers", 16, 0),
            ("size of regions", 20, REGION_PAGES),
        ];
        for (what, at, expected) in geometry {
            let found = word(&self.bytes, at);
            if u64::from(found) != expected {
                flaws.push(format!("the {what} in its header is {found}, not {expected}"));
            }
        }
        if self.is_in_use() {
            // What a crash may leave, the engine puts right.
            return flaws;
        }
        if self.bytes[FLAGS] & !SECOND_COUNTS != TWO_PHASES {
            let flags = self.bytes[FLAGS];
            flaws.push(format!("the flags in its header are {flags:#04x}"));
        }
        let regions = [24, 28].map(|at| u64::from(word(&self.bytes, at)));
        let pages = regions[0] * REGION_PAGES + regions[1];
        if (pages + 1) * PAGE_BYTES != length {
            let expected = (pages + 1) * PAGE_BYTES;
            flaws.push(format!("it has {length} bytes, but its header says {expected}"));
        }
        for (number, slot) in self.slots.iter().enumerate() {
            if !slot.is_whole {
                flaws.push(format!("the checksum of commit slot {number} is wrong"));
            }
        }
        let (counts, other) = (self.slots[self.counts()], self.slots[1 - self.counts()]);
        if counts.is_whole && other.is_whole && counts.transaction < other.transaction {
            flaws.push("its header names the older of its two commits".to_owned());
        }
        flaws
    }

    /// The slots in the order in which they are to be tried: the one that counts, if its checksum is
    /// right; after an orderly end the newer one.
    pub fn in_order(&self) -> [Slot; 2] {
        let [first, second] = self.slots;
        let second_first = if self.is_in_use() || !(first.is_whole && second.is_whole) {
            self.counts() == 1
        } else {
            second.transaction > first.transaction
        };
        if second_first { [second, first] } else { [first, second] }
    }
}

fn is_whole(slot: &[u8; SLOT_BYTES]) -> bool {
    checksum(slot, SLOT_CHECKSUM) == Some(xxh3_128(&slot[..SLOT_CHECKSUM]))
}

/// Flips the one bit that makes a slot whole, if there is one.
fn correct(slot: &mut [u8; SLOT_BYTES]) {
    for bit in 0..SLOT_BYTES * 8 {
        slot[bit / 8] ^= 1 << (bit % 8);
        if is_whole(slot) {
            return;
        }
        slot[bit / 8] ^= 1 << (bit % 8);
    }
}
