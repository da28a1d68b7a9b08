//! Making copies: of files at rest, and of those that are synced in a strict fileset.

use std::sync::Arc;
use std::time::Duration;

use forebay_base::Ino;
use forebay_disk::{DiskError, ObjectAttributes, Sync};

use crate::checksum::Checksum;
use crate::error::{FsError, Result};
use crate::inode::State;
use crate::object::{FsDisk, LiveObject};
use crate::partition::Partition;
use crate::partition::relocate::{Moved, Pace, Resting};
use crate::record::{CopiesRecord, DiskUse, ObjectRef};

/// How long it is waited for those who are about to write to files.
pub(super) const TURN_MAX: Duration = Duration::from_millis(100);

/// What became of the copies of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// They are as they are to be; so many bytes were copied.
    Fine(u64),
    /// As far as failure groups have room; so many bytes were copied.
    Short(u64),
    /// A program uses the file, or has used it meanwhile.
    InUse,
    /// It has no bytes here, or does not exist any more.
    Nothing,
}

/// Copies that were made of an object, and the checksum of its bytes.
struct Made {
    copies: Vec<Arc<LiveObject>>,
    checksum: u64,
}

impl Made {
    fn places(&self) -> impl Iterator<Item = ObjectRef> {
        self.copies.iter().map(|copy| copy.at)
    }
}

impl Partition {
    /// Gives a file that nobody uses the copies that it is to have.
    ///
    /// # Errors
    /// [`FsError::Io`] if its bytes are not what they were when nobody has written them; what the store or `pace` says.
    pub(crate) fn settle_copies(&self, ino: Ino, pace: &Pace<'_>) -> Result<Settled> {
        let Some(at) = self.object_of_stored(ino)? else { return Ok(Settled::Nothing) };
        let disk = self.shared.objects.disk(at.disk)?;
        if disk.is_archive() {
            return Ok(Settled::Nothing);
        }
        if self.copies.wanted() < 2 && disk.is_sound() && self.copies_of(at.id)?.is_none() {
            return Ok(Settled::Fine(0));
        }
        if !disk.is_sound() {
            let has_turned = self.take_over(ino)?;
            let has_copies = self.copies_of(at.id)?.is_some();
            return match (has_turned, has_copies) {
                (true, _) => self.settle_copies(ino, pace),
                (false, true) => Ok(Settled::InUse),
                (false, false) => Ok(Settled::Nothing),
            };
        }
        let resting = match self.begin_move(ino, at.disk)? {
            Ok(resting) => resting,
            Err(Moved::InUse) => return Ok(Settled::InUse),
            Err(_) => return Ok(Settled::Nothing),
        };
        let settled = self.settle_resting(&resting, pace);
        self.give_up_move(&resting);
        settled
    }

    fn settle_resting(&self, resting: &Resting, pace: &Pace<'_>) -> Result<Settled> {
        let (old, seen) = (&resting.old, resting.seen);
        let record = self.copies_of(old.at.id)?;
        let is_same = match &record {
            Some(record) => self.is_as_copied(record, (old, seen), pace)?,
            None => false,
        };
        let wanted = usize::from(self.copies.wanted().max(1)) - 1;
        if record.is_none() && wanted == 0 {
            return Ok(Settled::Fine(0));
        }
        let mut kept = Vec::new();
        if let Some(record) = record.as_ref().filter(|_| is_same) {
            kept = self.good_copies(old.at, record);
        }
        kept.truncate(wanted);
        let made = self.make_copies((old, seen), &kept, wanted, pace)?;
        let is_short = kept.len() + made.copies.len() < wanted;
        if is_short && made.copies.is_empty() && !is_same {
            return Ok(Settled::Short(0));
        }
        let is_damaged = is_same
            && !made.copies.is_empty()
            && record.as_ref().is_some_and(|record| record.checksum != made.checksum);
        if is_damaged {
            made.copies.iter().for_each(|copy| self.give_up_copy(copy));
            let object = old.at.id;
            return Err(FsError::Io(format!(
                "inode {}: the bytes of object {object} have changed although nobody wrote them: run `forebay scrub`",
                resting.ino
            )));
        }
        if is_short && let Some(record) = record.as_ref().filter(|_| is_same) {
            // One on a disk that is not there counts again with it, unless somebody has said that it is lost.
            let may_come = |at: &&ObjectRef| {
                let disk = self.shared.objects.disk(at.disk);
                let comes = |disk: &FsDisk| disk.is_expected() && !disk.is_archive();
                !kept.contains(at) && disk.is_ok_and(comes)
            };
            let others: Vec<ObjectRef> = record.copies.iter().filter(may_come).copied().collect();
            kept.extend(others.into_iter().take(wanted - kept.len() - made.copies.len()));
        }
        let bytes = seen.size.saturating_mul(made.copies.len() as u64);
        let checksum = match record.as_ref().filter(|_| made.copies.is_empty()) {
            Some(record) => record.checksum,
            None => made.checksum,
        };
        let mut copies: Vec<ObjectRef> = kept.into_iter().chain(made.places()).collect();
        let mut archived_bytes = 0;
        if let Some(record) = record.as_ref().filter(|_| is_same) {
            copies.extend(self.good_archived(record));
            archived_bytes = record.archived_bytes;
        }
        let next = self.record_of(resting.ino, seen, checksum, (copies, archived_bytes));
        let is_as_before =
            record.as_ref().is_some_and(|record| !record.is_behind && record.copies == next.copies);
        if !is_as_before && !self.note_copies(resting, record.as_ref(), next)? {
            made.copies.iter().for_each(|copy| self.give_up_copy(copy));
            return Ok(Settled::InUse);
        }
        made.copies.into_iter().for_each(|copy| self.shared.objects.drop_handle(copy));
        Ok(if is_short { Settled::Short(bytes) } else { Settled::Fine(bytes) })
    }

    /// What is noted of copies that were just made; the inode's part comes when it is noted.
    pub(super) fn record_of(
        &self,
        ino: Ino,
        seen: ObjectAttributes,
        checksum: u64,
        (copies, archived_bytes): (Vec<ObjectRef>, u64),
    ) -> CopiesRecord {
        CopiesRecord {
            ino,
            size: seen.size,
            modified: seen.modified,
            checksum,
            changed: seen.modified,
            made: self.now(),
            epoch: self.epoch,
            is_behind: false,
            copies,
            archived_bytes,
        }
    }

    /// Whether an object holds what it held when its copies were made.
    pub(super) fn is_as_copied(
        &self,
        record: &CopiesRecord,
        (old, seen): (&LiveObject, ObjectAttributes),
        pace: &Pace<'_>,
    ) -> Result<bool> {
        if !record.is_behind {
            return Ok(true);
        }
        if record.size != seen.size {
            return Ok(false);
        }
        if record.modified == seen.modified && record.tells_later_changes() {
            return Ok(true);
        }
        Ok(self.checksum_of((old, seen.size), pace)? == record.checksum)
    }

    /// The checksum of the first `size` bytes of an object.
    pub(super) fn checksum_of(&self, of: (&LiveObject, u64), pace: &Pace<'_>) -> Result<u64> {
        let mut checksum = Checksum::default();
        self.read_through(of, pace, &mut |at, bytes| {
            checksum.add(at, bytes);
            Ok(())
        })?;
        Ok(checksum.finish(of.1))
    }

    /// The copies that are there, in the pool of the object, each in a failure group of its own.
    pub(super) fn good_copies(&self, of: ObjectRef, record: &CopiesRecord) -> Vec<ObjectRef> {
        let objects = &self.shared.objects;
        let Ok(home) = objects.disk(of.disk) else { return Vec::new() };
        let mut taken = vec![home];
        let mut good = Vec::new();
        for at in &record.copies {
            let Ok(disk) = objects.disk(at.disk) else { continue };
            let is_good =
                disk.takes_new() && disk.disk.describe().kind != forebay_disk::absent::KIND;
            let is_apart = taken.iter().all(|other| !other.fails_with(disk));
            if is_good && is_apart && disk.pool() == home.pool() {
                taken.push(disk);
                good.push(*at);
            }
        }
        good
    }

    /// The copy in an archive, if there is one and it may stay: not one that was found to be damaged.
    pub(super) fn good_archived(&self, record: &CopiesRecord) -> Option<ObjectRef> {
        let objects = &self.shared.objects;
        let at = record.archived(|disk| objects.is_archive(disk))?;
        // Of one that does not answer too.
        let stays = objects.disk(at.disk).is_ok_and(|disk| disk.used() == DiskUse::Normal);
        (stays && !self.copies.is_distrusted(at)).then_some(at)
    }

    /// Makes copies of an object, published and synced, until there are `wanted` with those that are `kept`, or no other
    /// failure group takes one. Nothing refers to them yet. Holds no lock.
    fn make_copies(
        &self,
        (old, seen): (&LiveObject, ObjectAttributes),
        kept: &[ObjectRef],
        wanted: usize,
        pace: &Pace<'_>,
    ) -> Result<Made> {
        let mut made = Made { copies: Vec::new(), checksum: 0 };
        let outcome = self
            .begin_copies(old.at, kept, wanted, &mut made.copies)
            .and_then(|()| self.fill_copies((old, seen), pace, &mut made));
        if outcome.is_err() {
            made.copies.iter().for_each(|copy| self.give_up_copy(copy));
        }
        outcome.map(|()| made)
    }

    /// Makes empty objects in other failure groups.
    fn begin_copies(
        &self,
        of: ObjectRef,
        kept: &[ObjectRef],
        wanted: usize,
        copies: &mut Vec<Arc<LiveObject>>,
    ) -> Result<()> {
        let objects = &self.shared.objects;
        let home = objects.disk(of.disk)?;
        let mut taken = vec![home];
        for at in kept {
            taken.push(objects.disk(at.disk)?);
        }
        while kept.len() + copies.len() < wanted {
            let suits = |disk: &FsDisk| {
                let is_apart = taken.iter().all(|other| !other.fails_with(disk));
                is_apart && disk.is_near && disk.pool() == home.pool()
            };
            match objects.make_for_copy(of.disk, suits, || self.take_object_id()) {
                Ok(copy) => {
                    taken.push(objects.disk(copy.at.disk)?);
                    copies.push(copy);
                }
                Err(FsError::NoSpace | FsError::Absent(_) | FsError::Io(_)) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Fills copies, and gives those up whose disk does not take them.
    fn fill_copies(
        &self,
        (old, seen): (&LiveObject, ObjectAttributes),
        pace: &Pace<'_>,
        made: &mut Made,
    ) -> Result<()> {
        if made.copies.is_empty() {
            return Ok(());
        }
        let mut checksum = Checksum::default();
        let mut refused = vec![false; made.copies.len()];
        let copies = &made.copies;
        self.read_through((old, seen.size), pace, &mut |at, bytes| {
            checksum.add(at, bytes);
            for (copy, refused) in copies.iter().zip(&mut refused) {
                *refused = *refused || self.write_all(copy, at, bytes).is_err();
            }
            Ok(())
        })?;
        made.checksum = checksum.finish(seen.size);
        self.shared.fail_points.reach("copy.written")?;
        for (copy, refused) in copies.iter().zip(&mut refused) {
            *refused = *refused || self.end_copy(copy, seen).is_err();
        }
        self.shared.fail_points.reach("copy.synced")?;
        let mut refused = refused.into_iter();
        made.copies.retain(|copy| {
            let is_refused = refused.next().unwrap_or(true);
            if is_refused {
                tracing::error!(disk = %copy.at.disk, "a copy of a file could not be written");
                self.give_up_copy(copy);
                self.shared.objects.leave_behind(self.number());
            }
            !is_refused
        });
        Ok(())
    }

    /// Gives a copy its size, time and name, and makes it durable.
    fn end_copy(&self, copy: &LiveObject, seen: ObjectAttributes) -> Result<()> {
        let objects = &self.shared.objects;
        objects.set_size(copy, seen.size)?;
        match copy.object.set_modified(seen.modified) {
            Err(DiskError::Unsupported) => {}
            timed => objects.observe(copy.at.disk, timed)?,
        }
        objects.publish(copy)?;
        objects.sync(copy, Sync::All)
    }

    /// Notes the copies of a file that was at rest, unless anybody has used it meanwhile. Whether that is done.
    pub(super) fn note_copies(
        &self,
        resting: &Resting,
        before: Option<&CopiesRecord>,
        next: CopiesRecord,
    ) -> Result<bool> {
        {
            let Some(_turn) = self.copies.turn.try_write_for(TURN_MAX) else { return Ok(false) };
            let Some(inode) = self.shared.inodes.peek(resting.ino) else { return Ok(false) };
            let state = inode.lock();
            if !self.rests_still(&state, resting)? {
                return Ok(false);
            }
            let next = CopiesRecord { changed: state.changed, ..next };
            self.put_next_copies(resting.old.at, before, &next);
        }
        self.shared.fail_points.reach("copy.noted")?;
        Ok(true)
    }

    fn put_next_copies(&self, at: ObjectRef, before: Option<&CopiesRecord>, next: &CopiesRecord) {
        let is_gone = |copy: &&ObjectRef| !next.copies.contains(copy);
        let gone = before.into_iter().flat_map(|record| &record.copies).filter(is_gone);
        let gone: Vec<ObjectRef> = gone.copied().collect();
        // Without copies there is nothing to remember but the checksum, which goes with the wish for copies.
        let is_wanted = !next.copies.is_empty() || self.copies.wanted() > 1;
        let now = is_wanted.then_some(next);
        self.put_copies(&mut self.writes.lock(), at.id, before, now);
        self.copies.replaced.lock().extend(gone);
    }

    /// Whether a file is at rest since its copy was begun.
    pub(super) fn rests_still(&self, state: &State, resting: &Resting) -> Result<bool> {
        let (old, seen) = (&resting.old, resting.seen);
        let Some(file) = state.file().filter(|_| state.nlink > 0) else { return Ok(false) };
        let is_undisturbed =
            file.copy == resting.copy && file.opens.handles == 0 && file.object == Some(old.at);
        if !is_undisturbed || old.is_open_elsewhere() {
            return Ok(false);
        }
        let now = self.shared.objects.observe(old.at.disk, old.object.attributes())?;
        Ok((now.size, now.modified) == (seen.size, seen.modified))
    }

    // --- fsync ---

    /// Whether what is synced is to have copies.
    pub(crate) fn syncs_copies(&self) -> bool {
        self.copies.is_in_use() && self.copies.wanted() > 1
    }

    /// Makes the copies of a file durable as it is, with the batch that is committed next. Its own object was just synced.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::Io`].
    pub(crate) fn sync_copies(&self, ino: Ino, live: &Arc<LiveObject>) -> Result<()> {
        let place = usize::try_from(ino.local()).unwrap_or(0) % self.copies.syncing.len();
        let _one_for_each = self.copies.syncing[place].lock();
        let seen = self.shared.objects.observe(live.at.disk, live.object.attributes())?;
        let record = self.copies_of(live.at.id)?;
        let wanted = usize::from(self.copies.wanted().max(1)) - 1;
        let no_pace = |_: u64| -> Result<()> { Ok(()) };
        let (mut kept, mut archived, mut archived_bytes) = (Vec::new(), None, 0);
        if let Some(record) = &record
            && self.is_as_copied(
                &CopiesRecord { is_behind: true, ..record.clone() },
                (live, seen),
                &no_pace,
            )?
        {
            kept = self.good_copies(live.at, record);
            kept.truncate(wanted);
            (archived, archived_bytes) = (self.good_archived(record), record.archived_bytes);
        }
        let made = self.make_copies((live, seen), &kept, wanted, &no_pace)?;
        let is_short = kept.len() + made.copies.len() < wanted;
        if is_short {
            self.copies.note_shortage(Some(self.shortage()));
        }
        if made.copies.is_empty() {
            return Ok(());
        }
        let copies = kept.into_iter().chain(made.places()).chain(archived).collect();
        let next = self.record_of(ino, seen, made.checksum, (copies, archived_bytes));
        let is_noted = self.note_synced(ino, live, next)?;
        for copy in made.copies {
            if is_noted {
                self.shared.objects.drop_handle(copy);
            } else {
                self.give_up_copy(&copy);
            }
        }
        self.shared.fail_points.reach("copy.noted")?;
        Ok(())
    }

    fn note_synced(&self, ino: Ino, live: &LiveObject, next: CopiesRecord) -> Result<bool> {
        let _turn = self.copies.turn.write();
        let before = self.copies_of(live.at.id)?;
        let inode = self.inode(ino)?;
        let state = inode.lock();
        let Some(file) = state.file().filter(|_| state.nlink > 0) else { return Ok(false) };
        if file.object != Some(live.at) {
            return Ok(false);
        }
        let is_behind = file.opens.is_written() || file.was_mappable || file.opens.handles == 0;
        let next = CopiesRecord { changed: state.changed, is_behind, ..next };
        self.put_next_copies(live.at, before.as_ref(), &next);
        self.copies.may_need(ino);
        Ok(true)
    }

    /// Why files have fewer copies than they are to have.
    pub(crate) fn shortage(&self) -> String {
        let wanted = self.copies.wanted();
        format!(
            "the pool has fewer than {wanted} failure groups with room: add a disk of another failure group (forebay disk add --group)"
        )
    }
}
