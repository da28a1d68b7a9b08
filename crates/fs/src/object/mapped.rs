//! Which objects of a disk that every node reaches itself programs of this node may have mapped.
//!
//! A shared mapping outlives its file descriptor, and goes past the daemon. On a disk of one node the kernel tells whether
//! anybody still has the object's file open. On shared storage it knows of this machine alone, and often cannot tell (leases of
//! fcntl(2) are missing there). So every node remembers which objects its programs could have mapped for writing, and says
//! so when it is asked, before a file is moved. It survives no crash: programs that a daemon has left behind are fenced.

use std::sync::Arc;

use forebay_base::{DiskId, ObjectId};
use forebay_disk::DiskError;
use parking_lot::Mutex;
use rustc_hash::FxHashSet;

use super::{FsDisk, LiveObject, Objects, SeenObject};
use crate::record::ObjectRef;

/// Objects that are remembered at first; when there are more, those that cannot be mapped any more are looked for.
const LOOK_AT_FIRST: usize = 16_384;

/// Objects that were open for reading and writing on the direct path.
#[derive(Debug)]
pub(crate) struct MaybeMapped(Mutex<Remembered>);

#[derive(Debug)]
struct Remembered {
    objects: FxHashSet<ObjectId>,
    /// So many are looked through.
    look_at: usize,
}

impl Default for MaybeMapped {
    fn default() -> MaybeMapped {
        let objects = FxHashSet::default();
        MaybeMapped(Mutex::new(Remembered { objects, look_at: LOOK_AT_FIRST }))
    }
}

impl MaybeMapped {
    /// Remembers an object. `can_be_mapped` says of one whether that can still be so, if there are many.
    pub fn note(&self, id: ObjectId, can_be_mapped: impl Fn(ObjectId) -> bool) {
        let mut known = self.0.lock();
        if !known.objects.insert(id) || known.objects.len() < known.look_at {
            return;
        }
        known.objects.retain(|other| *other == id || can_be_mapped(*other));
        known.look_at = (known.objects.len() * 2).max(LOOK_AT_FIRST);
    }

    /// Whether an object may be mapped.
    pub fn holds(&self, id: ObjectId) -> bool {
        self.0.lock().objects.contains(&id)
    }

    /// Nobody has it mapped.
    pub fn forget(&self, id: ObjectId) {
        self.0.lock().objects.remove(&id);
    }
}

impl Objects {
    /// Whether any disk is one that all nodes reach themselves.
    pub(crate) fn has_shared(&self) -> bool {
        self.disks.all().any(|disk| disk.is_shared)
    }

    /// Whether all nodes reach a disk themselves.
    pub(crate) fn is_shared(&self, disk: DiskId) -> bool {
        self.disk(disk).is_ok_and(|disk| disk.is_shared)
    }

    /// Whether this node reaches a disk, and everybody else by way of it.
    pub(crate) fn is_own(&self, disk: DiskId) -> bool {
        self.disk(disk).is_ok_and(|disk| disk.is_near && !disk.is_shared)
    }

    /// An object that a node has just made and named itself, on a disk of its own or one that all reach: `None` if new ones are not
    /// to lie there. A record must refer to it soon.
    pub(crate) fn take_made(
        &self,
        made: SeenObject,
        suits: impl Fn(&FsDisk) -> bool,
    ) -> Option<Arc<LiveObject>> {
        let SeenObject { at, attributes, .. } = made;
        let of = self.disk(at.disk).ok()?;
        // As in `make_on`.
        let _about_to = of.hold();
        if self.is_own(at.disk) || !suits(of) {
            return None;
        }
        let object =
            if of.is_shared { of.disk.open(at.id).ok()? } else { of.disk.made_at_home(at.id)? };
        self.live_of((at, object), attributes, true).ok()
    }

    /// A program of this node has an object open for reading and writing on the direct path.
    pub(crate) fn may_be_mapped(&self, live: &LiveObject) {
        let (Some(mapped), Ok(of)) = (&live.health.mapped, self.disk(live.at.disk)) else { return };
        mapped.note(live.at.id, |other| has_users(of, other));
    }

    /// Whether a program of this node may have an object mapped, or has it open, of a disk that all nodes reach.
    pub(crate) fn is_mapped_here(&self, at: ObjectRef) -> bool {
        let Ok(of) = self.disk(at.disk) else { return false };
        let Some(mapped) = of.health.mapped.as_ref().filter(|mapped| mapped.holds(at.id)) else {
            return false;
        };
        let is_mapped = has_users(of, at.id);
        if !is_mapped {
            mapped.forget(at.id);
        }
        is_mapped
    }
}

/// Whether anybody of this machine has an object open; `true` if that cannot be told.
fn has_users(of: &FsDisk, id: ObjectId) -> bool {
    match of.disk.open(id) {
        Err(DiskError::NotFound(_)) => false,
        Err(_) => true,
        Ok(object) => object.has_other_writers(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_mapped_any_more_is_forgotten_when_there_is_much() {
        let mapped = MaybeMapped::default();
        for id in 0..10 * LOOK_AT_FIRST as u64 {
            mapped.note(ObjectId(id), |other| other.0 % 100 == 0);
        }
        let known = mapped.0.lock().objects.len();
        assert!(known <= 2 * LOOK_AT_FIRST, "{known}");
        let all_that_can = (0..9 * LOOK_AT_FIRST as u64).step_by(100);
        assert!(all_that_can.map(ObjectId).all(|id| mapped.holds(id)));
        mapped.forget(ObjectId(100));
        assert!(!mapped.holds(ObjectId(100)));
    }
}
