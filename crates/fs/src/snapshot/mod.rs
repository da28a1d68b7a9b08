//! Snapshots of a fileset: its names and bytes as they were at one moment, to be read under `.snapshots/NAME`.
//!
//! A snapshot is a frozen copy of the fileset's store, whose records refer to the same objects, and a record of its own
//! (`docs/adr/0054`). An object with a number below that of the newest snapshot may be shared with it. Before anybody may write to
//! such an object, the snapshots get a copy of it (`KeptCopies`); the fileset keeps the object. A shared object is not removed
//! with its file.
//!
//! What survives a crash: a snapshot whose record is committed, with all its bytes.
//!
//! Reading order: here, `partition/snapshots/` (making, sharing, removing), `view` (reading), `namespace/snapshots`.

mod diff;
mod view;

use std::collections::BTreeMap;

use forebay_base::{DiskId, ObjectId, Timestamp};
use serde::{Deserialize, Serialize};

pub(crate) use self::diff::Moment;
pub use self::diff::{Change, ChangeKind, SnapshotDiff};
pub(crate) use self::view::CopyOfSnapshot;
pub use self::view::{SnapshotList, SnapshotView};
use crate::error::{FsError, Result};
use crate::key::{self, Key};
use crate::record::{ObjectRef, Record, Usage, decode, decode_body};

/// Name of the directory at the top of a fileset in which its snapshots are. Listings do not show it.
pub const DIRECTORY: &[u8] = b".snapshots";

/// Longest name of a snapshot in bytes.
const NAME_MAX: usize = 128;

/// How far a snapshot has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SnapshotStage {
    /// It can be read.
    Made,
    /// It is being removed: objects that only it refers to go.
    Removing,
}

/// A snapshot, as the store of its fileset has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRecord {
    /// Its name.
    pub name: String,
    /// When it was made.
    pub created: Timestamp,
    /// How far it has come.
    pub stage: SnapshotStage,
    /// Its objects have lower numbers within the fileset.
    pub below: u64,
    /// What the fileset held.
    pub usage: Usage,
    /// Disks on which its objects lie.
    pub disks: Vec<DiskId>,
}

impl Record for SnapshotRecord {
    const KIND: &str = "snapshot";
    const VERSION: u8 = 1;
}

/// What snapshots have instead of an object that was written since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptCopy {
    /// The copy.
    pub at: ObjectRef,
    /// The number of the first copy: another one than that of `at` once the copy was moved to another disk. It tells whether
    /// the copy was made at the moment of the snapshot, or later.
    pub made: ObjectId,
}

impl KeptCopy {
    /// A copy that was never moved.
    pub(crate) fn new(at: ObjectRef) -> KeptCopy {
        KeptCopy { at, made: at.id }
    }
}

impl Record for KeptCopy {
    const KIND: &str = "kept copy";
    const VERSION: u8 = 2;

    /// Copies of version 1 were never moved.
    fn upgrade(what: &str, version: u8, body: &[u8]) -> Option<Result<KeptCopy>> {
        (version == 1).then(|| decode_body(what, body).map(KeptCopy::new))
    }
}

/// An object that a file took after a snapshot was made, although its number is lower than the bound of that one: it was made
/// before as a copy, and the file turned to it later. No snapshot up to `through` refers to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LateObject {
    /// The newest snapshot when the file took it.
    pub through: u64,
}

impl Record for LateObject {
    const KIND: &str = "late object";
    const VERSION: u8 = 1;
}

/// A snapshot as commands show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotStatus {
    /// Name of its fileset; `/` for the root fileset.
    pub fileset: String,
    /// Its name.
    pub name: String,
    /// When it was made, in seconds since 1970.
    pub created_seconds: i64,
    /// Files and directories in it.
    pub inodes: u64,
    /// Sum of the sizes of its files.
    pub bytes: u64,
    /// It is being removed: an interruption left it so; `forebay snapshot delete` goes on.
    pub is_being_removed: bool,
}

/// What deleting snapshots would give back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Freed {
    /// Objects that would be removed.
    pub objects: u64,
    /// Bytes that they take on their disks. Blocks that the disk shares with other files are counted, and would not be free.
    pub bytes: u64,
}

impl Freed {
    pub(crate) fn add(&mut self, other: Freed) {
        self.objects += other.objects;
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// What deleting one snapshot would give back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotSpace {
    /// Its name.
    pub name: String,
    /// What would go if it alone were deleted.
    pub freed: Freed,
}

/// What deleting the snapshots of a fileset would give back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotsSpace {
    /// Name of the fileset; `/` for the root fileset.
    pub fileset: String,
    /// What would go if all were deleted: more than the sum, where several share what the fileset no longer has.
    pub all: Freed,
    /// Each of them, the oldest first.
    pub snapshots: Vec<SnapshotSpace>,
}

/// What a clone does with bytes whose blocks cannot be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CloneBytes {
    /// It is refused.
    Share,
    /// It copies them.
    Copy,
}

/// A clone that was made: a fileset that begins as a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloneStatus {
    /// Name of the new fileset.
    pub fileset: String,
    /// Files and directories in it.
    pub inodes: u64,
    /// Sum of the sizes of its files.
    pub bytes: u64,
    /// Files whose bytes were copied, because their blocks could not be shared.
    pub copied: u64,
}

/// Whether a snapshot can have that name.
///
/// # Errors
/// [`FsError::Refused`] with what is allowed.
pub fn check_name(name: &str) -> Result<()> {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:+@".contains(&byte);
    let is_name = !name.is_empty() && name.len() <= NAME_MAX && name.bytes().all(is_fine);
    if is_name && !name.starts_with(['.', '-']) {
        return Ok(());
    }
    Err(FsError::Refused(format!(
        "\"{name}\" cannot be the name of a snapshot: use 1 to {NAME_MAX} letters, digits or -_.:+@, beginning with neither \
         \".\" nor \"-\""
    )))
}

/// What a store says of objects that snapshots do not have, although they are older by their numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeptCopies {
    /// Copies that snapshots have instead of objects: by the object and the newest snapshot that has the copy. Earlier snapshots
    /// have the same one, down to the next entry of that object.
    copies: BTreeMap<(ObjectId, u64), KeptCopy>,
    late: BTreeMap<ObjectId, LateObject>,
}

impl KeptCopies {
    /// Adds what a pair of the store says.
    ///
    /// # Errors
    /// [`FsError::Damaged`], [`FsError::UnknownVersion`].
    pub fn add(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        match key::parse(key) {
            Some(Key::Kept(object, snapshot)) => {
                let copy = decode("a copy that a snapshot keeps", value)?;
                self.copies.insert((object, snapshot), copy);
            }
            Some(Key::Late(object)) => {
                self.late.insert(object, decode("since when a file has an object", value)?);
            }
            _ => {}
        }
        Ok(())
    }

    /// Where a snapshot finds the bytes of an object that its records refer to.
    pub fn resolve(&self, at: ObjectRef, snapshot: u64) -> ObjectRef {
        let later = (at.id, snapshot)..=(at.id, u64::MAX);
        self.copies.range(later).next().map_or(at, |(_, copy)| copy.at)
    }

    /// All copies.
    pub fn copies(&self) -> impl Iterator<Item = ObjectRef> {
        self.copies.values().map(|copy| copy.at)
    }

    /// Copies on a disk: the object and the newest snapshot that has the copy, and the copy.
    pub fn on(&self, disk: DiskId) -> impl Iterator<Item = (ObjectId, u64, KeptCopy)> {
        let there = move |(_, copy): &(&(ObjectId, u64), &KeptCopy)| copy.at.disk == disk;
        self.copies.iter().filter(there).map(|((object, through), copy)| (*object, *through, *copy))
    }

    /// Objects, by their numbers within the fileset, that neither `snapshot` nor an earlier one refers to any more.
    pub fn apart_from(&self, snapshot: u64) -> impl Iterator<Item = u64> {
        let copied = self.copies.keys().map(|(object, through)| (*object, *through));
        let late = self.late.iter().map(|(object, late)| (*object, late.through));
        let apart = copied.chain(late).filter(move |(_, through)| *through >= snapshot);
        apart.map(|(object, _)| object.local())
    }

    /// The highest number of a snapshot that any entry names.
    pub fn highest(&self) -> u64 {
        let copied = self.copies.keys().map(|(_, snapshot)| *snapshot);
        copied.chain(self.late.values().map(|late| late.through)).max().unwrap_or(0)
    }

    /// Entries that no snapshot needs; `below` gives the number of each snapshot and the bound of its objects.
    pub fn unneeded(&self, below: &BTreeMap<u64, u64>) -> Vec<(ObjectId, u64, ObjectRef)> {
        let mut unneeded = Vec::new();
        self.each(below, |entry, having| {
            if having.next().is_none() {
                unneeded.push(entry);
            }
        });
        unneeded
    }

    /// Late objects of which no snapshot takes notice any more; `below` as above.
    pub fn no_longer_late(&self, below: &BTreeMap<u64, u64>) -> impl Iterator<Item = ObjectId> {
        let oldest = below.keys().next().copied();
        let is_over = move |late: &LateObject| oldest.is_none_or(|oldest| oldest > late.through);
        self.late.iter().filter(move |(_, late)| is_over(late)).map(|(object, _)| *object)
    }

    /// Copies that one snapshot alone needs, with its number.
    pub fn needed_by_one(&self, below: &BTreeMap<u64, u64>) -> Vec<(u64, ObjectRef)> {
        let mut found = Vec::new();
        self.each(below, |(_, _, copy), having| {
            if let (Some(first), None) = (having.next(), having.next()) {
                found.push((first, copy));
            }
        });
        found
    }

    /// Visits each entry with the snapshots that need it.
    fn each(
        &self,
        below: &BTreeMap<u64, u64>,
        mut visit: impl FnMut((ObjectId, u64, ObjectRef), &mut dyn Iterator<Item = u64>),
    ) {
        let mut before: Option<(ObjectId, u64)> = None;
        for ((object, through), copy) in &self.copies {
            let after = before.filter(|(other, _)| other == object).map_or(0, |(_, last)| last + 1);
            let range = below.range(after..=*through);
            let mut having =
                range.filter(|(_, below)| object.local() < **below).map(|(number, _)| *number);
            visit((*object, *through, copy.at), &mut having);
            before = Some((*object, *through));
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_base::FilesetId;

    use super::*;
    use crate::record::encode;

    fn object(number: u64) -> ObjectRef {
        ObjectRef { disk: DiskId(0), id: ObjectId::of(FilesetId(1), number) }
    }

    fn kept(entries: &[(u64, u64, u64)]) -> KeptCopies {
        let entry = |(of, through, copy): &(u64, u64, u64)| {
            ((object(*of).id, *through), KeptCopy::new(object(*copy)))
        };
        KeptCopies { copies: entries.iter().map(entry).collect(), late: BTreeMap::new() }
    }

    #[test]
    fn a_snapshot_finds_the_copy_that_was_made_first_after_it() {
        let kept = kept(&[(5, 2, 20), (5, 4, 40), (6, 1, 60)]);
        let found: Vec<u64> = (1..=5).map(|s| kept.resolve(object(5), s).id.local()).collect();
        assert_eq!(found, [20, 20, 40, 40, 5]);
        assert_eq!(kept.resolve(object(6), 2), object(6));
        assert_eq!(kept.apart_from(2).collect::<Vec<_>>(), [5, 5]);
        assert_eq!((kept.highest(), kept.apart_from(5).count()), (4, 0));
    }

    #[test]
    fn an_object_that_a_file_took_late_is_apart_until_no_snapshot_is_left_that_was_made_before() {
        let mut kept = kept(&[(5, 2, 20)]);
        kept.add(&key::late(object(7).id), &encode(&LateObject { through: 3 })).unwrap();
        assert_eq!(kept.apart_from(3).collect::<Vec<_>>(), [7]);
        assert_eq!((kept.highest(), kept.apart_from(4).count()), (3, 0));
        assert_eq!(kept.resolve(object(7), 3), object(7));
        let over =
            |below: &[(u64, u64)]| kept.no_longer_late(&below.iter().copied().collect()).count();
        assert_eq!([over(&[(2, 9), (4, 30)]), over(&[(4, 30)]), over(&[])], [0, 1, 1]);
    }

    #[test]
    fn a_copy_is_kept_while_a_snapshot_that_had_the_object_needs_it() {
        let kept = kept(&[(5, 2, 20), (5, 4, 40)]);
        let unneeded = |below: &[(u64, u64)]| {
            let below = below.iter().copied().collect();
            let found = kept.unneeded(&below);
            found.into_iter().map(|(_, through, _)| through).collect::<Vec<_>>()
        };
        assert_eq!(unneeded(&[(1, 9), (3, 12)]), [0_u64; 0]);
        assert_eq!(unneeded(&[(1, 9)]), [4]);
        assert_eq!(unneeded(&[(4, 9)]), [2]);
        // Snapshot 1 was made before the object.
        assert_eq!(unneeded(&[(1, 5), (3, 12)]), [2]);
        let of_one = |below: &[(u64, u64)]| {
            let found = kept.needed_by_one(&below.iter().copied().collect());
            found.into_iter().map(|(snapshot, at)| (snapshot, at.id.local())).collect::<Vec<_>>()
        };
        assert_eq!(of_one(&[(1, 9), (2, 9), (3, 12)]), [(3, 40)]);
        assert_eq!(of_one(&[(1, 9), (4, 9)]), [(1, 20), (4, 40)]);
        assert_eq!(unneeded(&[]), [2, 4]);
    }

    #[test]
    fn a_copy_of_the_first_version_was_never_moved() {
        let copy = KeptCopy { at: object(9), made: object(7).id };
        assert_eq!(decode::<KeptCopy>("copy", &crate::record::encode(&copy)).unwrap(), copy);
        let mut first = crate::record::encode(&EntryAt(object(9)));
        first[0] = 1;
        assert_eq!(decode::<KeptCopy>("copy", &first).unwrap(), KeptCopy::new(object(9)));
    }

    /// What a kept copy of version 1 holds.
    #[derive(Serialize, Deserialize)]
    struct EntryAt(ObjectRef);

    impl Record for EntryAt {
        const KIND: &str = "kept copy";
        const VERSION: u8 = 1;
    }

    #[test]
    fn names_that_could_be_mistaken_are_refused() {
        for name in ["monday", "2026-11-25T08:00", "a.b_c+1@x"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        let long = "x".repeat(NAME_MAX + 1);
        for name in ["", ".", "..", ".x", "-x", "a/b", "a b", "ü", long.as_str()] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
