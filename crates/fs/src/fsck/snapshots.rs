//! Snapshots: that their stores are there, and the objects that they share with the fileset or keep.
//!
//! What a snapshot refers to belongs to nobody else once the fileset has let go of it. So where a snapshot cannot be read, no object
//! is removed.

use std::collections::BTreeMap;

use forebay_store::{Store, StoreError, Stores};

use super::image::Image;
use super::plan::{Fix, Ledger, Tier};
use super::report::Damage;
use super::scan::{Read, read, unknown_key};
use crate::error::Result;
use crate::key::{self, Key};
use crate::record::{InodeRecord, ObjectRef, decode};
use crate::recovery::scan_prefix;
use crate::snapshot::{KeptCopies, KeptCopy, LateObject, SnapshotRecord, SnapshotStage};

/// No snapshot has this number.
const NONE: u64 = 0;

/// The snapshots of a fileset, as its store has them.
#[derive(Default)]
pub(super) struct Snapshots {
    records: BTreeMap<u64, SnapshotRecord>,
    kept: KeptCopies,
    /// What they refer to, in order.
    pub held: Vec<(ObjectRef, u64)>,
}

impl Snapshots {
    /// Whether a snapshot refers to an object.
    pub fn hold(&self, at: ObjectRef) -> bool {
        self.held.binary_search_by_key(&at, |(held, _)| *held).is_ok()
    }

    /// Reads what the store has of them.
    pub fn read_all(store: &dyn Store, image: &mut Image, ledger: &mut Ledger) -> Result<()> {
        scan_prefix(store, &[key::SNAPSHOT], &mut |key, value| {
            let Some(Key::Snapshot(number)) = key::parse(key) else {
                unknown_key(key, ledger);
                return Ok(());
            };
            match read::<SnapshotRecord>(&format!("snapshot {number}"), value)? {
                Read::Fine(record) => drop(image.snapshots.records.insert(number, record)),
                Read::Bad(why) => {
                    ledger.lossy = true;
                    let fix = Fix::Set(key.to_vec(), None);
                    ledger.found_with(Damage::Record, why, Tier::Records, fix);
                }
            }
            Ok(())
        })?;
        scan_prefix(store, &[key::KEPT], &mut |key, value| {
            let Some(Key::Kept(object, _)) = key::parse(key) else {
                unknown_key(key, ledger);
                return Ok(());
            };
            let what = format!("the copy that snapshots keep of object {object}");
            match read::<KeptCopy>(&what, value)? {
                Read::Fine(_) => image.snapshots.kept.add(key, value)?,
                Read::Bad(why) => {
                    ledger.lossy = true;
                    let fix = Fix::Set(key.to_vec(), None);
                    ledger.found_with(Damage::Record, why, Tier::Records, fix);
                }
            }
            Ok(())
        })?;
        read_late(store, image, ledger)
    }

    /// Reads the stores of the snapshots.
    pub fn look(image: &mut Image, stores: Option<&dyn Stores>, ledger: &mut Ledger) -> Result<()> {
        let fileset = image.fileset();
        let snapshots = &mut image.snapshots;
        for (number, record) in &snapshots.records {
            let name = &record.name;
            let Some(stores) = stores else {
                ledger.refuse(
                    Damage::Snapshot,
                    format!("the store of snapshot \"{name}\" was not given"),
                );
                continue;
            };
            let store = match stores.frozen(fileset, *number) {
                Ok(store) => store,
                Err(StoreError::Missing(_)) if record.stage == SnapshotStage::Removing => continue,
                Err(StoreError::Missing(why)) => {
                    let text = format!("snapshot \"{name}\" is lost: {why}");
                    let fix = Fix::Set(key::snapshot(*number), None);
                    ledger.found_with(Damage::Snapshot, text, Tier::Records, fix);
                    continue;
                }
                Err(error) => {
                    let text = format!(
                        "snapshot \"{name}\" cannot be read: {error}; delete it (`forebay snapshot delete`)"
                    );
                    ledger.refuse(Damage::Snapshot, text);
                    continue;
                }
            };
            let (kept, held) = (&snapshots.kept, &mut snapshots.held);
            scan_prefix(&*store, &[key::INODE], &mut |_, value| {
                let object =
                    decode::<InodeRecord>("an inode of a snapshot", value)?.layout.object();
                held.extend(object.map(|at| (kept.resolve(at, *number), *number)));
                Ok(())
            })?;
        }
        // A file that was open at the moment of a snapshot, and had no byte yet, has a copy that its record does not name.
        snapshots.held.extend(snapshots.kept.copies().map(|at| (at, NONE)));
        snapshots.held.sort_unstable();
        Ok(())
    }

    /// Compares what they refer to with the objects that there are.
    pub fn check(&self, is_there: impl Fn(ObjectRef) -> bool, ledger: &mut Ledger) {
        let mut missing: BTreeMap<u64, u64> = BTreeMap::new();
        let of_one = self.held.iter().filter(|(_, number)| *number != NONE);
        for (_, number) in of_one.filter(|(at, _)| !is_there(*at)) {
            *missing.entry(*number).or_default() += 1;
        }
        for (number, files) in missing {
            let name = self.records.get(&number).map_or("", |record| record.name.as_str());
            ledger.found(
                Damage::Snapshot,
                format!(
                    "snapshot \"{name}\": {files} of its files have lost their objects; nothing can bring them back: delete the \
                     snapshot (`forebay snapshot delete`)"
                ),
            );
        }
    }

    /// Copies that snapshots keep.
    pub fn copies(&self) -> impl Iterator<Item = ObjectRef> {
        self.kept.copies()
    }
}

/// Reads which objects files took later than their numbers tell. Without such a record a snapshot is taken to have the object: one that
/// is damaged can go.
fn read_late(store: &dyn Store, image: &mut Image, ledger: &mut Ledger) -> Result<()> {
    scan_prefix(store, &[key::LATE], &mut |key, value| {
        let Some(Key::Late(object)) = key::parse(key) else {
            unknown_key(key, ledger);
            return Ok(());
        };
        match read::<LateObject>(&format!("since when a file has object {object}"), value)? {
            Read::Fine(_) => image.snapshots.kept.add(key, value)?,
            Read::Bad(why) => {
                let fix = Fix::Set(key.to_vec(), None);
                ledger.found_with(Damage::Record, why, Tier::Records, fix);
            }
        }
        Ok(())
    })
}
