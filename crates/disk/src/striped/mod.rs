//! A disk over several others: the bytes of each object lie on all of them, unit after unit, so that one file is read and
//! written at the speed of all.
//!
//! An object has one *part* on each disk below, an object with the same number. Parts lie in a place of their own there
//! ([`place`]), where nobody else looks for objects. The kernel cannot read or write such an object itself: every byte passes
//! through this process, which reads ahead of streams on all parts at the same time.
//!
//! **Size.** An object reaches up to the first byte that one of its parts does not have. Whoever makes it longer writes in its
//! order, and whoever makes it shorter may cut the parts in any: whatever a crash leaves of it, the object holds no byte that
//! was never in it, and ends somewhere between its former and its new size. What parts have beyond that is cut before the
//! object grows again.
//!
//! **Names.** Parts get their names one after the other, and lose them so. An object counts as published once all have them:
//! one of which some are missing does not exist, but is listed, so that it can be removed.
//!
//! What survives a crash is what the disks below keep: a sync covers all parts. If one of them is lost, so is every object.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use forebay_base::{FilesetId, ObjectId};
use parking_lot::{Mutex, RwLock};

use self::object::of_parts;
use crate::{Capacity, Description, Disk, DiskError, Object, ObjectAttributes, Result};

mod ahead;
mod object;
pub mod place;
mod stripes;

pub use self::object::StripedObject;
pub use self::stripes::Stripes;

/// What such a disk is made of, as [`Disk::describe`] tells.
pub const KIND: &str = "striped";
/// Disks below one, at least and at most.
pub const WIDTH_MIN: usize = 2;
/// See [`WIDTH_MIN`].
pub const WIDTH_MAX: usize = 64;
/// Bytes of a unit, at least and at most; it is a multiple of the least.
pub const UNIT_MIN: u64 = 512;
/// See [`UNIT_MIN`].
pub const UNIT_MAX: u64 = 64 << 20;

/// A disk below a striped one.
#[derive(Clone)]
pub struct Part {
    /// What people call it.
    pub name: String,
    /// Its objects are the parts.
    pub disk: Arc<dyn Disk>,
}

/// Disks keep space aside in pages.
const PAGE_BYTES: u64 = 4096;
/// Objects that are locked apart.
const LOCKS: usize = 32;

/// Locks of objects, by their numbers: several handles of one object share one.
#[derive(Default)]
struct Locks([RwLock<()>; LOCKS]);

impl Locks {
    fn of(&self, id: Option<ObjectId>) -> &RwLock<()> {
        let place = id.map_or(0, |id| usize::try_from(id.0 % LOCKS as u64).unwrap_or(0));
        &self.0[place]
    }
}

/// A disk over several others.
pub struct StripedDisk {
    parts: Arc<[Part]>,
    stripes: Stripes,
    locks: Arc<Locks>,
}

impl StripedDisk {
    /// A disk over `parts`, in an order that stays, with units of `unit_bytes`.
    ///
    /// # Errors
    /// [`DiskError::Refused`] for too few or too many parts, or a bad unit.
    pub fn over(parts: Vec<Part>, unit_bytes: u64) -> Result<StripedDisk> {
        check(parts.len(), unit_bytes)?;
        let stripes = Stripes::new(unit_bytes, parts.len());
        Ok(StripedDisk { parts: parts.into(), stripes, locks: Arc::default() })
    }

    fn object(
        &self,
        id: OnceLock<ObjectId>,
        parts: Vec<Arc<dyn Object>>,
        named: usize,
    ) -> Arc<dyn Object> {
        Arc::new(StripedObject {
            id,
            parts: parts.into(),
            stripes: self.stripes,
            locks: Arc::clone(&self.locks),
            named: Mutex::new(named),
            disks: Arc::clone(&self.parts),
            ahead: Default::default(),
        })
    }

    fn disks(&self) -> impl Iterator<Item = &dyn Disk> {
        self.parts.iter().map(|part| &*part.disk)
    }

    /// Bytes of `bytes` that fall to a part: whole pages, but for the last one.
    fn part_of(&self, place: usize, bytes: u64) -> u64 {
        let (width, pages) = (self.parts.len() as u64, bytes / PAGE_BYTES);
        let below = |place: u64| pages / width * place + pages % width * place / width;
        let rest = if place + 1 == self.parts.len() { bytes % PAGE_BYTES } else { 0 };
        (below(place as u64 + 1) - below(place as u64)) * PAGE_BYTES + rest
    }

    /// Calls `visit` once for each number that `list` finds on any part.
    fn list_all(
        &self,
        list: impl Fn(&dyn Disk, &mut dyn FnMut(ObjectId) -> bool) -> Result<()>,
        visit: &mut dyn FnMut(ObjectId) -> bool,
    ) -> Result<()> {
        let mut seen = HashSet::new();
        let mut goes_on = true;
        for disk in self.disks() {
            list(disk, &mut |id| {
                if seen.insert(id) {
                    goes_on = visit(id);
                }
                goes_on
            })?;
            if !goes_on {
                break;
            }
        }
        Ok(())
    }
}

/// Refuses what cannot be a striped disk.
///
/// # Errors
/// [`DiskError::Refused`].
pub fn check(width: usize, unit_bytes: u64) -> Result<()> {
    if !(WIDTH_MIN..=WIDTH_MAX).contains(&width) {
        return Err(DiskError::Refused(format!(
            "a striped disk lies over {WIDTH_MIN} to {WIDTH_MAX} disks, not {width}: name others"
        )));
    }
    if !(UNIT_MIN..=UNIT_MAX).contains(&unit_bytes) || !unit_bytes.is_multiple_of(UNIT_MIN) {
        return Err(DiskError::Refused(format!(
            "a stripe unit of {unit_bytes} bytes is not possible: choose a multiple of {UNIT_MIN} up to {UNIT_MAX}"
        )));
    }
    Ok(())
}

impl Disk for StripedDisk {
    fn create_fresh(&self) -> Result<Arc<dyn Object>> {
        let parts: Result<Vec<_>> = self.disks().map(|disk| disk.create_fresh()).collect();
        Ok(self.object(OnceLock::new(), parts?, 0))
    }

    fn publish(&self, id: ObjectId, object: &dyn Object) -> Result<()> {
        let object = object.striped().ok_or(DiskError::Invalid)?;
        let mut named = object.named.lock();
        if *named == self.parts.len() {
            return Err(DiskError::Exists(id));
        }
        while *named < self.parts.len() {
            self.parts[*named].disk.publish(id, &*object.parts[*named])?;
            *named += 1;
        }
        Ok(())
    }

    fn open(&self, id: ObjectId) -> Result<Arc<dyn Object>> {
        let mut parts = Vec::with_capacity(self.parts.len());
        let mut missing = Vec::new();
        for part in self.parts.iter() {
            match part.disk.open(id) {
                Ok(object) => parts.push(object),
                Err(DiskError::NotFound(_)) => missing.push(part.name.as_str()),
                Err(error) => return Err(error),
            }
        }
        if missing.is_empty() {
            let named = parts.len();
            return Ok(self.object(OnceLock::from(id), parts, named));
        }
        if !parts.is_empty() {
            tracing::warn!(%id, missing = missing.join(", "), "parts of a striped object are missing");
        }
        Err(DiskError::NotFound(id))
    }

    fn remove(&self, id: ObjectId) -> Result<()> {
        // Those that can be removed are, so that the object is gone.
        self.disks().map(|disk| disk.remove(id)).fold(Ok(()), Result::and)
    }

    fn remove_all(&self, ids: &[ObjectId]) -> Vec<(ObjectId, DiskError)> {
        let mut failed: Vec<(ObjectId, DiskError)> =
            self.disks().flat_map(|disk| disk.remove_all(ids)).collect();
        failed.sort_by_key(|(id, _)| *id);
        failed.dedup_by_key(|(id, _)| *id);
        failed
    }

    fn has_removals(&self, fileset: FilesetId) -> bool {
        self.disks().any(|disk| disk.has_removals(fileset))
    }

    fn attributes(&self, id: ObjectId) -> Result<Option<ObjectAttributes>> {
        let parts: Result<Option<Vec<_>>> = self.disks().map(|disk| disk.attributes(id)).collect();
        Ok(parts?.map(|parts| of_parts(self.stripes, &parts)))
    }

    fn list(&self, visit: &mut dyn FnMut(ObjectId) -> bool) -> Result<()> {
        self.list_all(|disk, visit| disk.list(visit), visit)
    }

    fn list_of(&self, fileset: FilesetId, visit: &mut dyn FnMut(ObjectId) -> bool) -> Result<()> {
        self.list_all(|disk, visit| disk.list_of(fileset, visit), visit)
    }

    fn sync(&self) -> Result<()> {
        self.disks().map(|disk| disk.sync()).fold(Ok(()), Result::and)
    }

    /// The disk with the least room bounds all.
    fn capacity(&self) -> Result<Capacity> {
        let parts: Result<Vec<Capacity>> = self.disks().map(|disk| disk.capacity()).collect();
        let parts = parts?;
        let least = |of: fn(&Capacity) -> u64| parts.iter().map(of).min().unwrap_or(0);
        let times = |bytes: u64| bytes.saturating_mul(parts.len() as u64);
        Ok(Capacity {
            total_bytes: times(least(|part| part.total_bytes)),
            free_bytes: times(least(|part| part.free_bytes)),
            available_bytes: times(least(|part| part.available_bytes)),
            total_objects: least(|part| part.total_objects),
            free_objects: least(|part| part.free_objects),
        })
    }

    fn keep_reserve(&self, bytes: u64) -> Result<u64> {
        let each = self.disks().enumerate();
        each.map(|(place, disk)| disk.keep_reserve(self.part_of(place, bytes))).sum()
    }

    fn give_reserve(&self, bytes: u64) -> u64 {
        let each = self.disks().enumerate();
        let given = |(place, disk): (usize, &dyn Disk)| match bytes {
            u64::MAX => disk.give_reserve(bytes),
            _ => disk.give_reserve(self.part_of(place, bytes)),
        };
        each.map(given).fold(0, u64::saturating_add)
    }

    fn let_go(&self) {
        self.disks().for_each(|disk| disk.let_go());
    }

    fn describe(&self) -> Description {
        let names: Vec<&str> = self.parts.iter().map(|part| part.name.as_str()).collect();
        let mounts: Vec<u64> = self.disks().map(|disk| disk.life()).collect();
        let shares = |(place, mount): (usize, &u64)| *mount != 0 && mounts[..place].contains(mount);
        let advice = mounts.iter().enumerate().any(shares).then(|| {
            "several of its disks lie on one file system, so it is not faster and has less room than is shown: make it over \
             disks that lie apart"
                .to_owned()
        });
        Description {
            location: format!("striped over {}", names.join(", ")),
            kind: KIND.to_owned(),
            advice: advice.into_iter().collect(),
        }
    }

    fn life(&self) -> u64 {
        self.disks().fold(0, |sum, disk| sum.wrapping_mul(31).wrapping_add(disk.life()))
    }
}
