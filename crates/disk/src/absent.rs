//! A disk that is not there: everything is refused with the reason.
//!
//! It takes the place of a disk that could not be opened, so that files on other disks stay reachable. Nothing is
//! ever made, changed or removed here.

use std::sync::Arc;

use forebay_base::ObjectId;

use crate::{Capacity, Description, Disk, DiskError, Object, ObjectAttributes, Result};

/// What such a disk is made of, as [`Disk::describe`] tells.
pub const KIND: &str = "absent";

/// A disk that is not there.
#[derive(Clone, Debug)]
pub struct AbsentDisk {
    location: String,
    why: String,
}

impl AbsentDisk {
    /// The disk `uuid`, last seen at `location`, which is not there for the reason `why`.
    #[must_use]
    pub fn new(uuid: &str, location: &str, why: &str) -> AbsentDisk {
        let why = format!("disk {uuid} ({location}) is not there: {why}");
        AbsentDisk { location: location.to_owned(), why }
    }

    fn refusal<T>(&self) -> Result<T> {
        Err(DiskError::Absent(self.why.clone()))
    }
}

impl Disk for AbsentDisk {
    fn create_fresh(&self) -> Result<Arc<dyn Object>> {
        self.refusal()
    }

    fn publish(&self, _id: ObjectId, _object: &dyn Object) -> Result<()> {
        self.refusal()
    }

    fn open(&self, _id: ObjectId) -> Result<Arc<dyn Object>> {
        self.refusal()
    }

    fn remove(&self, _id: ObjectId) -> Result<()> {
        self.refusal()
    }

    fn attributes(&self, _id: ObjectId) -> Result<Option<ObjectAttributes>> {
        self.refusal()
    }

    fn list(&self, _visit: &mut dyn FnMut(ObjectId) -> bool) -> Result<()> {
        self.refusal()
    }

    fn sync(&self) -> Result<()> {
        self.refusal()
    }

    fn capacity(&self) -> Result<Capacity> {
        self.refusal()
    }

    fn keep_reserve(&self, _bytes: u64) -> Result<u64> {
        self.refusal()
    }

    fn give_reserve(&self, _bytes: u64) -> u64 {
        0
    }

    fn describe(&self) -> Description {
        Description {
            location: self.location.clone(),
            kind: KIND.to_owned(),
            advice: vec![format!(
                "{}; its files cannot be opened until the disk is back and the file system is mounted again",
                self.why
            )],
        }
    }
}
