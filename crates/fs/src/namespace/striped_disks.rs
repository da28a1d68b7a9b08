//! Disks over other disks: each of their files lies on all of these.
//!
//! To everything else such a disk is one like others: files lie on it, are moved there and away, it has a pool, is drained and
//! removed. Here is what is different: which disks it may lie over, and that those stay as long as it is there.

use forebay_base::DiskId;

use super::{Namespace, NewDisk};
use crate::error::{FsError, Result};
use crate::object::FsDisk;
use crate::record::{DiskRecord, DiskUse, Striping};

/// How a disk is about to go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Departure {
    /// Its files are moved elsewhere.
    Emptied,
    /// It is taken away.
    TakenAway,
    /// It is lost, and given up with its files.
    GivenUp,
}

/// Has striped disks know those below, by their records.
pub(super) fn over_members<'a>(
    records: impl Iterator<Item = &'a DiskRecord>,
    mut disks: Vec<FsDisk>,
) -> Vec<FsDisk> {
    for record in records {
        let Some(Striping { members, .. }) = record.striping() else { continue };
        let Some(place) = disks.iter().position(|disk| disk.id == record.id) else { continue };
        let striped = disks.remove(place);
        let striped = striped.over(disks.iter().filter(|disk| members.contains(&disk.id)));
        disks.insert(place, striped);
    }
    disks
}

impl NewDisk {
    /// How it is to lie over others, if it is a striped disk.
    pub(super) fn striping(&self) -> Option<Striping> {
        DiskRecord::new(DiskId(0), &self.uuid, &self.location).striping()
    }
}

impl Namespace {
    /// The disks that a new striped disk is to lie over: those that are named, or, of a pool, all that take new files.
    ///
    /// # Errors
    /// [`FsError::Refused`] if they cannot be below one.
    pub fn disks_to_stripe(&self, named: &[String], pool: Option<&str>) -> Result<Vec<DiskRecord>> {
        self.alone("a striped disk")?;
        let mut members = Vec::new();
        for which in named {
            members.push(self.disk_named(which)?);
        }
        if let Some(pool) = pool {
            self.check_pool(pool)?;
            let disks = self.disks.read();
            let takes = |disk: &&DiskRecord| disk.pool == pool && disk.used == DiskUse::Normal;
            members.extend(disks.iter().filter(takes).cloned());
        }
        self.check_members(&members.iter().map(|disk| disk.id).collect::<Vec<_>>())?;
        Ok(members)
    }

    /// The records of all disks, those that were taken away included.
    #[must_use]
    pub fn disk_records(&self) -> Vec<DiskRecord> {
        self.disks.read().clone()
    }

    fn check_members(&self, members: &[DiskId]) -> Result<()> {
        let disks = self.disks.read();
        for (place, id) in members.iter().enumerate() {
            let found = disks.iter().find(|disk| disk.id == *id);
            let record = found.ok_or(FsError::Stale)?;
            let disk = self.shared.objects.disk(*id)?;
            let why = if members[..place].contains(id) {
                "it is named twice"
            } else if record.used != DiskUse::Normal {
                "it does not take new files"
            } else if disk.is_archive() {
                "it is an archive"
            } else if disk.is_striped {
                "it is a striped disk itself"
            } else if disk.disk.describe().kind == forebay_disk::absent::KIND {
                "it is not there"
            } else {
                continue;
            };
            return Err(FsError::Refused(format!(
                "disk {} cannot be below a striped disk: {why}; name other disks",
                record.location
            )));
        }
        Ok(())
    }

    /// Refuses a new striped disk over disks that cannot be below one.
    pub(super) fn check_striping(&self, new: &NewDisk) -> Result<()> {
        let Some(Striping { unit_bytes, members }) = new.striping() else { return Ok(()) };
        forebay_disk::striped::check(members.len(), unit_bytes)?;
        self.check_members(&members)
    }

    /// The disks that a new disk lies over.
    pub(super) fn members_of(&self, record: &DiskRecord) -> Vec<&FsDisk> {
        let members = record.striping().map(|striping| striping.members).unwrap_or_default();
        members.iter().filter_map(|id| self.shared.objects.disk(*id).ok()).collect()
    }

    /// Makes sure that no striped disk with files lies over a disk that is about to go.
    ///
    /// # Errors
    /// [`FsError::Refused`] if one does.
    pub(super) fn check_not_below(&self, record: &DiskRecord, departure: Departure) -> Result<()> {
        let is_lost = departure == Departure::GivenUp;
        let disks = self.disks.read();
        let above = disks.iter().find(|disk| {
            let is_there = disk.is_expected() || disk.used == DiskUse::Lost && !is_lost;
            is_there && disk.striping().is_some_and(|it| it.members.contains(&record.id))
        });
        let Some(above) = above else { return Ok(()) };
        let what = match departure {
            Departure::Emptied => "empty",
            Departure::TakenAway => "take away",
            Departure::GivenUp => "give up",
        };
        let first = if is_lost {
            "give that one up first (forebay disk remove --lost)"
        } else {
            "drain and remove that one first"
        };
        Err(FsError::Refused(format!(
            "to {what} disk {} is not possible: the striped disk {} ({}) lies over it; {first}",
            record.location,
            &above.uuid.chars().take(8).collect::<String>(),
            above.shown_location(&disks)
        )))
    }
}
