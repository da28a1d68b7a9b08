//! A file whose object is lost turns to a copy of it, and keeps its name, its number and all that was noted.
//!
//! What survives a crash: the file, with the lost object or with the copy; the next one that needs it turns to the copy again.

use std::sync::Arc;

use forebay_base::Ino;
use forebay_disk::ObjectAttributes;

use crate::error::Result;
use crate::inode::{State, Way};
use crate::object::LiveObject;
use crate::partition::Partition;
use crate::record::{CopiesRecord, ObjectRef};

/// What a file may turn to.
struct Standby {
    at: ObjectRef,
    found: ObjectAttributes,
    /// It is open, unless it lies in an archive.
    live: Option<Arc<LiveObject>>,
}

impl Partition {
    /// Has a file turn to a copy of its object, if one is there that may stand for it. Whether it has another object now.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn take_over(&self, ino: Ino) -> Result<bool> {
        let _nobody_begins_to_write = self.copies.turn.write();
        let inode = self.inode(ino)?;
        let at = inode.lock().file().and_then(|file| file.object);
        let Some(at) = at else { return Ok(false) };
        let Some(record) = self.copies_of(at.id)? else { return Ok(false) };
        // One that its disk does not have was never synced before a crash: it will not come back.
        let is_gone = matches!(self.shared.objects.attributes(at), Ok(None));
        let is_given_up = is_gone || !self.shared.objects.disk(at.disk)?.is_expected();
        let Some(copy) = self.standby(&record, is_given_up) else { return Ok(false) };
        let mut state = inode.lock();
        let is_same = state.file().is_some_and(|file| file.object == Some(at));
        // What lies in an archive is not open.
        let is_open = state.file().is_some_and(|file| file.opens.handles > 0);
        let can_be = copy.live.is_some() || !is_open;
        if !is_same || !can_be || !may_stand_for(&record, &state, is_given_up) {
            copy.live.into_iter().for_each(|live| self.shared.objects.drop_handle(live));
            return Ok(!is_same);
        }
        self.turn_to_other(ino, &mut state, (at, &record), &copy);
        drop(state);
        copy.live.into_iter().for_each(|live| self.shared.objects.drop_handle(live));
        self.copies.may_need(ino);
        self.shared.fail_points.reach("takeover.turned")?;
        Ok(true)
    }

    /// The first copy that is there and has its size. Without one, that in an archive, which is not asked: only for an object that will not
    /// come back, as it goes then.
    fn standby(&self, record: &CopiesRecord, is_given_up: bool) -> Option<Standby> {
        let objects = &self.shared.objects;
        let is_sound = |at: &&ObjectRef| objects.disk(at.disk).is_ok_and(|disk| disk.is_sound());
        let (archived, here): (Vec<&ObjectRef>, Vec<&ObjectRef>) =
            record.copies.iter().filter(is_sound).partition(|at| objects.is_archive(at.disk));
        let opened = here.into_iter().find_map(|at| {
            let live = objects.open(*at).ok()?;
            let is_whole = live.opened_attributes.size == record.size;
            is_whole.then(|| Standby { at: *at, found: live.opened_attributes, live: Some(live) })
        });
        opened.or_else(|| {
            let at = **archived.first().filter(|_| is_given_up)?;
            Some(Standby { at, found: record.attributes_in_archive(), live: None })
        })
    }

    fn turn_to_other(
        &self,
        ino: Ino,
        state: &mut State,
        (at, record): (ObjectRef, &CopiesRecord),
        copy: &Standby,
    ) {
        let is_older = state.size != record.size || state.changed != record.changed;
        if record.is_behind && is_older {
            tracing::error!(%ino, object = %at.id, "what was written since the latest copy is lost with its disk");
            self.damage.note(ino, "what was written since its latest copy is lost with a disk");
            (state.modified, state.changed) = (record.modified, self.now());
        } else {
            tracing::warn!(%ino, object = %at.id, copy = %copy.at.id, "a file goes on with a copy of its object");
        }
        let rest: Vec<ObjectRef> =
            record.copies.iter().copied().filter(|other| *other != copy.at).collect();
        // What lies in an archive has no copies.
        let unneeded = if copy.live.is_none() { rest.clone() } else { Vec::new() };
        let next = (!rest.is_empty() && copy.live.is_some()).then(|| CopiesRecord {
            copies: rest,
            is_behind: false,
            epoch: self.epoch,
            ..record.clone()
        });
        let allocated = state.allocated_bytes;
        let Some(file) = state.file_mut() else { return };
        let mut writes = self.writes.lock();
        let dropped = self.drop_object(&mut writes, file, allocated);
        file.object = Some(copy.at);
        file.see(copy.found);
        file.is_cut = false;
        file.pages_valid = false;
        if file.opens.handles > 0 {
            file.live.clone_from(&copy.live);
        } else {
            file.settle();
        }
        state.size = record.size;
        state.allocated_bytes = copy.found.allocated_bytes;
        self.take_late(&mut writes, copy.at.id);
        self.put_inode(&mut writes, ino, state);
        self.put_copies(&mut writes, at.id, Some(record), None);
        self.put_copies(&mut writes, copy.at.id, None, next.as_ref());
        drop(writes);
        self.copies.replaced.lock().extend(unneeded);
        dropped.into_iter().for_each(|live| self.shared.objects.drop_handle(live));
    }
}

/// Whether a copy may stand for a file whose object cannot be reached.
fn may_stand_for(record: &CopiesRecord, state: &State, is_given_up: bool) -> bool {
    let Some(file) = state.file() else { return false };
    // The kernel has the object itself, and whoever writes has the file open for that.
    let is_held = file.opens.way == Some(Way::Direct) || file.opens.is_written();
    if file.opens.handles > 0 && is_held {
        return false;
    }
    let is_as_copied = record.size == state.size
        && record.changed == state.changed
        && record.tells_later_changes();
    is_given_up || !record.is_behind || is_as_copied
}
