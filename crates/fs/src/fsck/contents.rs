//! Objects: that every file has its own, of its size, and that the disks hold no others.
//!
//! After a crash the next mount reconciles sizes, forgets objects that were never synced, and removes
//! those that no record refers to. All that is noted, and left to it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use forebay_base::{DiskId, Epoch, Ino, ObjectId};
use forebay_disk::{Disk, DiskError};

use super::image::{Claim, Image, NUMBER_MAX};
use super::plan::{Edit, Fix, Ledger, Tier};
use super::report::Damage;
use super::{Archives, NamedDisk};
use crate::error::{FsError, Result};
use crate::key;
use crate::partition::signed;
use crate::record::{
    DiskRecord, DiskUsage, DiskUse, MountState, ObjectRef, Occupancy, Superblock, encode,
};

/// The disks by their numbers; `None` for those that were not given.
pub(super) fn in_order<'a>(superblock: &Superblock, disks: &'a [NamedDisk]) -> Disks<'a> {
    let given: HashMap<&str, &Arc<dyn Disk>> =
        disks.iter().map(|(uuid, disk)| (uuid.as_str(), disk)).collect();
    let found = |record: &DiskRecord| (record.id, given.get(record.uuid.as_str()).copied());
    superblock.disks.iter().map(found).collect()
}

fn removed(superblock: &Superblock) -> HashSet<DiskId> {
    let gone = superblock.disks.iter().filter(|record| record.used == DiskUse::Removed);
    gone.map(|record| record.id).collect()
}

/// Disks by number.
pub(super) type Disks<'a> = BTreeMap<DiskId, Option<&'a Arc<dyn Disk>>>;

/// What the disks hold, against what the inodes claim.
struct Contents<'a> {
    disks: Disks<'a>,
    /// Archives that are not asked.
    trusted: HashSet<DiskId>,
    /// Disks that were taken away: nothing can lie there.
    removed: HashSet<DiskId>,
    /// Objects of the fileset on each disk, sorted.
    listed: BTreeMap<DiskId, Vec<ObjectId>>,
    /// Records of this epoch or before are reconciled by the next mount.
    suspect: Epoch,
    /// The next mount removes what nobody claims.
    is_swept_next: bool,
    object_limit: u64,
    /// Objects that a file claims on the wrong disk.
    adopted: HashSet<ObjectRef>,
    /// Objects that nobody claims may be all that is left of a file.
    keep_unclaimed: bool,
}

/// Checks all objects.
pub(super) fn check(
    image: &mut Image,
    (disks, archives): (&[NamedDisk], Archives),
    ledger: &mut Ledger,
) -> Result<()> {
    let superblock = &image.superblock;
    let mounted = superblock.state == MountState::Mounted;
    let mut contents = Contents {
        disks: in_order(superblock, disks),
        trusted: HashSet::new(),
        removed: removed(superblock),
        listed: BTreeMap::new(),
        suspect: if mounted { superblock.epoch } else { superblock.crashed_epoch },
        is_swept_next: mounted || superblock.sweep_due,
        object_limit: superblock.object_limit,
        adopted: HashSet::new(),
        keep_unclaimed: false,
    };
    let fileset = superblock.fileset;
    let is_archive =
        |(_, disk): &(&DiskId, &Option<&Arc<dyn Disk>>)| disk.is_some_and(|disk| disk.is_archive());
    let all: HashSet<DiskId> =
        contents.disks.iter().filter(is_archive).map(|(number, _)| *number).collect();
    let archived = image.claims.iter().filter(|claim| all.contains(&claim.at.disk)).count();
    ledger.report.counts.archived += archived as u64;
    if archives == Archives::Trusted {
        contents.trusted = all;
    }
    for (number, disk) in &contents.disks {
        let mut ids = Vec::new();
        if let Some(disk) = disk.filter(|_| !contents.trusted.contains(number)) {
            disk.list_of(fileset, &mut |id| {
                ids.push(id);
                true
            })?;
        }
        ids.sort_unstable();
        ledger.report.counts.objects += ids.len() as u64;
        contents.listed.insert(*number, ids);
    }
    image.claims.sort_unstable_by_key(|claim| (claim.at, claim.ino));
    for claims in image.claims.chunk_by(|a, b| a.at == b.at) {
        contents.check_claims(claims, image, ledger)?;
    }
    contents.check_usage(image, ledger);
    let is_there = |at| contents.holds(at) || contents.is_away(at);
    image.snapshots.check(is_there, ledger);
    let claimed: HashSet<ObjectId> = image.claims.iter().map(|claim| claim.at.id).collect();
    let held: HashSet<ObjectId> = image.snapshots.held.iter().map(|(at, _)| at.id).collect();
    let is_needed = |id: ObjectId| claimed.contains(&id) || held.contains(&id);
    let is_whole =
        |claim: &Claim| contents.size(claim.at).is_ok_and(|size| size == Some(claim.size));
    let size = |object: ObjectId, at: ObjectRef| match contents.is_away(at) {
        true => Ok(Some(None)),
        // One in an archive that cannot be read is given up only where the file is here, whole.
        false if contents.archive(at.disk).is_some() => match contents.size(at) {
            Err(FsError::Io(_)) => {
                let own = image.claims.iter().find(|claim| claim.at.id == object);
                Ok(if own.is_some_and(is_whole) { None } else { Some(None) })
            }
            size => Ok(size?.map(Some)),
        },
        false => Ok(contents.size(at)?.map(Some)),
    };
    let is_archive = |disk| contents.archive(disk).is_some();
    image.copies.check(is_needed, size, is_archive, mounted, ledger)?;
    // The record that claimed an object may be what is damaged. After a crash, objects that nobody
    // claims are to be expected, so there it takes a sign of a lost record.
    // Numbers that were not to be used yet are one: the store is older than the disks.
    let lost = ledger.lossy || contents.has_unknown_numbers(image);
    contents.keep_unclaimed = lost || (!mounted && ledger.report.findings_total > 0);
    contents.check_unclaimed(image, ledger)
}

impl Contents<'_> {
    fn holds(&self, at: ObjectRef) -> bool {
        let listed = self.listed.get(&at.disk);
        listed.is_some_and(|ids| ids.binary_search(&at.id).is_ok())
    }

    /// Whether the disk of an object was not given.
    fn is_away(&self, at: ObjectRef) -> bool {
        let is_absent = matches!(self.disks.get(&at.disk), Some(None));
        self.trusted.contains(&at.disk) || is_absent && !self.removed.contains(&at.disk)
    }

    fn size(&self, at: ObjectRef) -> Result<Option<u64>> {
        let disk = self.disks.get(&at.disk).copied().flatten();
        match disk {
            Some(disk) if self.holds(at) => Ok(disk.attributes(at.id)?.map(|found| found.size)),
            _ => Ok(None),
        }
    }

    fn archive(&self, disk: DiskId) -> Option<&Arc<dyn Disk>> {
        self.disks.get(&disk).copied().flatten().filter(|disk| disk.is_archive())
    }

    /// Checks the claims on one object: there should be one.
    fn check_claims(&mut self, claims: &[Claim], image: &Image, ledger: &mut Ledger) -> Result<()> {
        let at = claims[0].at;
        if self.is_away(at) {
            return Ok(());
        }
        if let Some(archive) = self.archive(at.disk) {
            return check_archived(archive, claims, ledger);
        }
        let size = self.size(at)?;
        let fits = |claim: &&Claim| (size == Some(claim.size), Reverse(claim.ino));
        let Some(owner) = claims.iter().max_by_key(fits) else { return Ok(()) };
        for claim in claims.iter().filter(|claim| claim.ino != owner.ino) {
            ledger.lossy = true;
            let text =
                format!("inode {} claims object {} of inode {}", claim.ino, at.id, owner.ino);
            let fix = Fix::Inode(claim.ino, Edit::NoObject);
            ledger.found_with(Damage::ObjectShared, text, Tier::Contents, fix);
        }
        match size {
            Some(size) if size == owner.size => {}
            Some(size) => self.other_size(owner, size, ledger),
            None => self.missing(owner, image, ledger),
        }
        Ok(())
    }

    fn other_size(&self, claim: &Claim, size: u64, ledger: &mut Ledger) {
        let Claim { at, ino, .. } = claim;
        let text =
            format!("inode {ino}: its size is {}, that of its object {} {size}", claim.size, at.id);
        if claim.epoch <= self.suspect {
            let text = format!("{text}; it is taken from there when the inode is loaded");
            ledger.note_of(*ino, text);
            return;
        }
        let fix = Fix::Inode(*ino, Edit::Size(size));
        ledger.found_with(Damage::ObjectSize, text, Tier::Contents, fix);
    }

    fn missing(&mut self, claim: &Claim, image: &Image, ledger: &mut Ledger) {
        let Claim { at, ino, .. } = *claim;
        if image.copies.of(at.id).iter().any(|copy| self.holds(*copy) || self.is_away(*copy)) {
            let (id, disk) = (at.id, at.disk);
            ledger.note_of(
                ino,
                format!("inode {ino}: object {id} on disk {disk} does not exist: the next open goes on with a copy"),
            );
            return;
        }
        let text = format!("inode {ino}: object {} on disk {} does not exist", at.id, at.disk);
        if let Some(found) = self.elsewhere(at, image) {
            let text = format!("{text}, but on disk {}", found.disk);
            self.adopted.insert(found);
            let fix = Fix::Inode(ino, Edit::Object(found));
            ledger.found_with(Damage::ObjectMissing, text, Tier::Contents, fix);
            return;
        }
        let can_be = self.disks.contains_key(&at.disk) && image.can_be_object(at.id);
        if can_be && claim.epoch <= self.suspect {
            ledger.note_of(ino, format!("{text}: it was not synced before a crash"));
            return;
        }
        ledger.lossy = true;
        let fix = Fix::Inode(ino, Edit::NoObject);
        ledger.found_with(Damage::ObjectMissing, text, Tier::Contents, fix);
        if self.holds(at) {
            // Parts of it, on a striped disk.
            ledger.fix(Tier::Contents, Fix::Remove(at));
        }
    }

    /// The object of that number that nobody claims on another disk: numbers are used only once.
    fn elsewhere(&self, at: ObjectRef, image: &Image) -> Option<ObjectRef> {
        let all = self.disks.keys();
        all.map(|disk| ObjectRef { disk: *disk, id: at.id })
            .filter(|other| self.holds(*other) && !is_claimed(image, *other))
            .filter(|other| !image.copies.hold(*other))
            .find(|other| !self.adopted.contains(other))
    }

    /// Compares the usage records of the disks with the claims.
    fn check_usage(&self, image: &Image, ledger: &mut Ledger) {
        let mut counted: BTreeMap<DiskId, DiskUsage> = BTreeMap::new();
        for claim in &image.claims {
            let usage = counted.entry(claim.at.disk).or_default();
            usage.add(1, signed(claim.size), signed(claim.stored_bytes));
        }
        for copy in image.copies.all() {
            counted.entry(copy.disk).or_default().add(1, 0, 0);
        }
        for disk in self.disks.keys().copied() {
            let found = counted.get(&disk).copied().unwrap_or_default();
            let stored = image.disk_usage.get(&disk).copied().unwrap_or(Some(DiskUsage::default()));
            // An earlier version counted objects alone.
            let is_same = |stored: DiskUsage| {
                stored.objects == found.objects
                    && stored.files.is_none_or(|it| Some(it) == found.files)
            };
            if stored.is_some_and(is_same) {
                continue;
            }
            let objects = found.objects;
            ledger.lossy |= stored.is_none_or(|stored| stored.objects > objects);
            let text = match stored {
                Some(stored) if stored.objects != objects => {
                    format!(
                        "the usage record of disk {disk} says {} objects, but there are {objects}",
                        stored.objects
                    )
                }
                Some(stored) => format!(
                    "the usage record of disk {disk} says {}, but it is {}",
                    shown(stored.files),
                    shown(found.files)
                ),
                None => format!("the usage record of disk {disk} cannot be read"),
            };
            let value = Some(encode(&found));
            let fix = Fix::Set(key::disk_usage(disk), value);
            ledger.found_with(Damage::DiskUsage, text, Tier::Counts, fix);
        }
        for disk in image.disk_usage.keys().filter(|disk| !self.disks.contains_key(disk)) {
            let text = format!("a usage record of disk {disk}, which does not exist");
            let fix = Fix::Set(key::disk_usage(*disk), None);
            ledger.found_with(Damage::DiskUsage, text, Tier::Counts, fix);
        }
    }

    /// Whether there are objects of numbers that the superblock says have never been used.
    fn has_unknown_numbers(&self, image: &Image) -> bool {
        let numbers = image.superblock.object_limit..NUMBER_MAX;
        self.listed.values().flatten().any(|id| numbers.contains(&id.local()))
    }

    fn check_unclaimed(&self, image: &Image, ledger: &mut Ledger) -> Result<()> {
        let foreign: HashMap<ObjectRef, Ino> =
            image.foreign.iter().map(|(ino, at)| (*at, *ino)).collect();
        for (disk, ids) in &self.listed {
            for id in ids {
                let at = ObjectRef { disk: *disk, id: *id };
                let is_held = image.snapshots.hold(at) || image.copies.hold(at);
                if is_claimed(image, at) || is_held || self.adopted.contains(&at) {
                    continue;
                }
                match foreign.get(&at).and_then(|ino| image.nodes.get(ino)) {
                    // An inode that may turn out to be a file.
                    Some(node) if node.doubted => {}
                    Some(_) => self.rescue(at, ledger)?,
                    None => self.unclaimed(at, ledger)?,
                }
            }
        }
        Ok(())
    }

    fn unclaimed(&self, at: ObjectRef, ledger: &mut Ledger) -> Result<()> {
        let text = format!("no file claims object {} on disk {}", at.id, at.disk);
        let in_archive = self.archive(at.disk).is_some();
        let is_kept =
            !in_archive && self.keep_unclaimed && self.size(at)?.is_some_and(|size| size > 0);
        if self.is_swept_next && at.id.local() < self.object_limit && !is_kept {
            ledger.report.note(format!("{text}: the next mount removes it"));
        } else {
            ledger.found_with(Damage::ObjectUnclaimed, text, Tier::Contents, Fix::Remove(at));
        }
        if is_kept {
            self.rescue(at, ledger)?;
        }
        Ok(())
    }

    /// Has an object kept as a file, if it holds anything.
    fn rescue(&self, at: ObjectRef, ledger: &mut Ledger) -> Result<()> {
        if self.archive(at.disk).is_none()
            && let Some(size) = self.size(at)?.filter(|size| *size > 0)
            && at.id.local() < NUMBER_MAX
        {
            ledger.fix(Tier::Rescue, Fix::Rescue { at, size });
        }
        Ok(())
    }
}

/// Checks an object of an archive. What is wrong there cannot be repaired from here: the file stays as it is, as the object may
/// come back.
fn check_archived(archive: &Arc<dyn Disk>, claims: &[Claim], ledger: &mut Ledger) -> Result<()> {
    let Claim { at, ino, size, .. } = claims[0];
    let location = archive.describe().location;
    if let Some(other) = claims.get(1) {
        let text = format!("inode {} claims object {} of inode {ino}", other.ino, at.id);
        ledger.found_of(Damage::ObjectShared, other.ino, text);
    }
    let remedy = "restore the object in the store, or remove the file";
    match archive.attributes(at.id) {
        Ok(Some(found)) if found.size == size => {}
        Ok(Some(found)) => {
            let (id, there) = (at.id, found.size);
            ledger.found_of(
                Damage::ObjectSize,
                ino,
                format!("inode {ino}: its size is {size}, that of its object {id} in {location} {there}; {remedy}"),
            );
        }
        Ok(None) => {
            let id = at.id;
            ledger.found_of(
                Damage::ObjectMissing,
                ino,
                format!("inode {ino}: object {id} does not exist in {location}; {remedy}"),
            );
        }
        Err(DiskError::Io(why)) => {
            let text = format!("inode {ino}: {why}; {remedy}");
            ledger.found_of(Damage::ObjectMissing, ino, text);
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

fn is_claimed(image: &Image, at: ObjectRef) -> bool {
    image.claims.binary_search_by_key(&at, |claim| claim.at).is_ok()
}

fn shown(files: Option<Occupancy>) -> String {
    let Occupancy { bytes, stored_bytes } = files.unwrap_or_default();
    format!("{bytes} bytes of files in {stored_bytes}")
}
