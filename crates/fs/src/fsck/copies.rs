//! Copies of files in other failure groups: that each belongs to an object in use, and is there in its size.

use std::collections::{BTreeMap, HashSet};

use forebay_base::{DiskId, ObjectId};
use forebay_store::Store;

use super::image::Image;
use super::plan::{Fix, Ledger, Tier};
use super::report::Damage;
use super::scan::{Read, read, unknown_key};
use crate::error::Result;
use crate::key::{self, Key};
use crate::record::{CopiesRecord, ObjectRef, encode};
use crate::recovery::scan_prefix;

/// The copies of the files of a fileset, as its store has them.
#[derive(Default)]
pub(super) struct Copies {
    records: BTreeMap<ObjectId, CopiesRecord>,
    held: HashSet<ObjectRef>,
}

impl Copies {
    /// Reads what the store has of them.
    pub fn read_all(store: &dyn Store, image: &mut Image, ledger: &mut Ledger) -> Result<()> {
        scan_prefix(store, &[key::COPIES], &mut |key, value| {
            let Some(Key::Copies(object)) = key::parse(key) else {
                unknown_key(key, ledger);
                return Ok(());
            };
            match read::<CopiesRecord>(&format!("the copies of object {object}"), value)? {
                Read::Fine(record) => {
                    image.copies.held.extend(&record.copies);
                    image.copies.records.insert(object, record);
                }
                // They can be made again.
                Read::Bad(why) => {
                    let fix = Fix::Set(key.to_vec(), None);
                    ledger.found_with(Damage::Record, why, Tier::Records, fix);
                }
            }
            Ok(())
        })
    }

    /// Whether an object is the copy of another one.
    pub fn hold(&self, at: ObjectRef) -> bool {
        self.held.contains(&at)
    }

    /// All copies.
    pub fn all(&self) -> impl Iterator<Item = ObjectRef> {
        self.records.values().flat_map(|record| record.copies.iter().copied())
    }

    /// The copies of an object.
    pub fn of(&self, object: ObjectId) -> &[ObjectRef] {
        self.records.get(&object).map_or(&[], |record| &record.copies)
    }

    /// Compares them with the objects that there are. `is_needed` tells whether anything refers to an object; `size` that of a copy of an
    /// object, `None` if it is missing, and `Some(None)` where that cannot be told; `is_archive` knows the disks.
    pub fn check(
        &self,
        is_needed: impl Fn(ObjectId) -> bool,
        size: impl Fn(ObjectId, ObjectRef) -> Result<Option<Option<u64>>>,
        is_archive: impl Fn(DiskId) -> bool,
        mounted: bool,
        ledger: &mut Ledger,
    ) -> Result<()> {
        for (object, record) in &self.records {
            if !is_needed(*object) {
                let text = format!("copies of object {object}, to which nothing refers");
                if mounted {
                    ledger.report.note(format!("{text}: the next mount removes them"));
                } else {
                    let fix = Fix::Set(key::copies(*object), None);
                    ledger.found_with(Damage::Copies, text, Tier::Contents, fix);
                }
                continue;
            }
            let mut good = Vec::new();
            for at in &record.copies {
                if size(*object, *at)?
                    .is_some_and(|size| size.is_none_or(|size| size == record.size))
                {
                    good.push(*at);
                    continue;
                }
                let (copy, disk, ino) = (at.id, at.disk, record.ino);
                let outcome = match is_archive(disk) {
                    true => "the file is not premigrated any more",
                    false => "it is made again",
                };
                let text = format!(
                    "inode {ino}: the copy {copy} of its object {object} on disk {disk} is missing or has another size; \
                     {outcome}"
                );
                ledger.found_of(Damage::Copies, ino, text);
            }
            if good.len() < record.copies.len() {
                // Copies that its fileset wants are made again without a record, too.
                let next = (!good.is_empty())
                    .then(|| encode(&CopiesRecord { copies: good, ..record.clone() }));
                ledger.fix(Tier::Contents, Fix::Set(key::copies(*object), next));
            }
        }
        Ok(())
    }
}
