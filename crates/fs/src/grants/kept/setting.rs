//! Attributes that this node sets by itself: of what it has made in directories that are delegated to it, and of such directories.

use forebay_base::Ino;

use super::{Kept, State};
use crate::attributes::{Attributes, SetAttributes, SetTime};
use crate::grants::Item;
use crate::grants::inode::as_written;
use crate::inode::{MODE_BITS, SET_GID, SET_UID};
use crate::object::SeenObject;
use crate::record::Kind;
use crate::remote::changes::Change;

impl Kept {
    /// Sets attributes. `see` looks at the object of an open file of this node. `None` if the owner is to do that.
    pub fn set_here(
        &self,
        ino: Ino,
        set: &SetAttributes,
        see: impl FnOnce() -> Option<SeenObject>,
    ) -> Option<Attributes> {
        let mut state = self.state.lock();
        let now = self.now();
        let found = state.settable(ino, now)?;
        let runs_as = |mode: u16| found.kind == Kind::File && mode & (SET_UID | SET_GID) != 0;
        if set.size.is_some() || runs_as(found.mode) || set.mode.is_some_and(runs_as) {
            return None;
        }
        let time = self.clock.now();
        let kept = state.inodes.get_mut(&ino)?;
        // What is written from now on changes the times again.
        let seen = match kept.own {
            Some(_) => Some(see()?),
            None => None,
        };
        if let (Some(seen), Some(before)) = (seen, kept.own) {
            kept.attributes = Some(as_written(found, before, seen.attributes));
            kept.own = Some(seen.attributes);
        }
        let attributes = kept.attributes.as_mut()?;
        let at = |asked: SetTime| match asked {
            SetTime::Now => time,
            SetTime::To(time) => time,
        };
        attributes.mode = set.mode.map_or(attributes.mode, |mode| mode & MODE_BITS);
        attributes.uid = set.uid.unwrap_or(attributes.uid);
        attributes.gid = set.gid.unwrap_or(attributes.gid);
        attributes.accessed = set.accessed.map_or(attributes.accessed, at);
        attributes.modified = set.modified.map_or(attributes.modified, at);
        attributes.changed = time;
        let attributes = *attributes;
        state.cache.change_here([Item::Attributes(ino)]);
        let was_empty = state.journal.is_empty();
        let set = SetAttributes {
            accessed: set.accessed.map(|asked| SetTime::To(at(asked))),
            modified: set.modified.map(|asked| SetTime::To(at(asked))),
            ..*set
        };
        state.journal.set(ino, Change::Set { ino, set, seen, time });
        drop(state);
        self.traffic.hit();
        self.lent.changing(std::iter::empty(), &[ino]);
        if was_empty {
            self.bell.ring();
        }
        Some(attributes)
    }
}

impl State {
    /// The attributes of something of which nobody else knows, if this node may change them.
    fn settable(&self, ino: Ino, now: forebay_cluster::Moment) -> Option<Attributes> {
        let found = self.settled(ino, now)?;
        let made_in = self.inodes.get(&ino)?.made_in;
        let is_alone = match found.kind {
            Kind::Directory => self.is_delegated(ino, now),
            _ => found.nlink == 1 && made_in.is_some_and(|above| self.is_delegated(above, now)),
        };
        (is_alone && !self.journal.is_full()).then_some(found)
    }
}
