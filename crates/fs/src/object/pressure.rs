//! Space of the disks that objects lie on: looks at it, its reserves, and how urgently it is wanted.

use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_base::DiskId;

use super::{FsDisk, Objects, Pool};
use crate::space::Urgency;
use crate::writeset::Removal;

impl Objects {
    /// An object is to be removed after the next commit.
    pub(crate) fn await_removal(&self, removal: Removal) {
        if let Ok(disk) = self.disk(removal.at.disk) {
            disk.space.wait(removal.bytes);
        }
    }

    /// How urgently the bytes are wanted that an object is about to give up.
    pub(crate) fn urgency_with(&self, removal: Removal) -> Urgency {
        // An archive does not fill up.
        let Some(disk) = self.disk(removal.at.disk).ok().filter(|disk| !disk.is_archive()) else {
            return Urgency::None;
        };
        let urgency = disk.space.urgency_with(removal.bytes, &*disk.disk, self.time());
        self.note_pressure();
        urgency
    }

    /// Whether space of some disk is short, so that what was given up is wanted back. Only a flag is read.
    pub(crate) fn is_pressed(&self) -> bool {
        self.pressed.load(Ordering::Relaxed)
    }

    fn note_pressure(&self) {
        let is_pressed =
            |disk: &FsDisk| disk.space.is_short() || disk.space.urgency() != Urgency::None;
        self.pressed.store(self.disks.all().any(is_pressed), Ordering::Relaxed);
    }

    /// Whether space is not short, with `bytes` more, on some disk of this node in a pool that takes new files.
    pub(crate) fn has_room_in(&self, pool: Pool, bytes: u64) -> bool {
        let has_room = |disk: &FsDisk| {
            let takes_new = disk.is_near && disk.takes_new() && !disk.is_archive();
            takes_new && disk.pool() == pool && disk.space.has_room_for(bytes)
        };
        self.disks.all().any(has_room)
    }

    /// The pool of a disk where space is short, if another disk of the pool has room for `bytes`.
    pub(crate) fn pool_to_leave(&self, disk: DiskId, bytes: u64) -> Option<Pool> {
        let of = self.disk(disk).ok().filter(|of| of.space.is_short() && !of.is_archive())?;
        Some(of.pool()).filter(|pool| self.has_room_in(*pool, bytes))
    }

    /// Looks how much is left on each disk, unless that was just done.
    pub(crate) fn look_at_space(&self) {
        for disk in self.disks.all().filter(|disk| !disk.is_archive()) {
            disk.space.look(&*disk.disk, self.time());
        }
        self.note_pressure();
        self.give_up_spares();
    }

    /// Gives fresh objects back where space is short: others need it more.
    pub(crate) fn give_up_spares(&self) {
        if self.is_pressed() {
            drop(self.stock.give_up(|live| self.is_short_on(live.at.disk)));
        }
    }

    /// Begins to keep `bytes` aside on each disk.
    pub(crate) fn begin_reserves(&self, bytes: u64) {
        for disk in self.disks.all().filter(|disk| disk.keeps_reserve()) {
            disk.space.begin_reserve(&*disk.disk, bytes);
        }
    }

    /// Fills up what was given away of the reserves.
    pub(crate) fn restore_reserves(&self) {
        for disk in self.disks.all().filter(|disk| !disk.is_archive()) {
            if disk.space.restore_reserve(&*disk.disk) && disk.space.is_short() {
                disk.space.look_now(&*disk.disk, self.time());
            }
        }
        self.note_pressure();
    }

    fn time(&self) -> Duration {
        self.clock.instant().saturating_duration_since(self.begun)
    }

    fn is_short_on(&self, disk: DiskId) -> bool {
        self.disk(disk).is_ok_and(|disk| disk.space.is_short())
    }
}
