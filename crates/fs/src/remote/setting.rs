//! Attributes that this node sets of what another one owns.

use forebay_base::Ino;

use super::RemoteOwner;
use super::wire::Request;
use crate::attributes::{Attributes, SetAttributes};
use crate::error::Result;
use crate::grants::Touched;
use crate::ops::SetXattr;

impl RemoteOwner {
    pub(crate) fn set_attributes(&self, ino: Ino, set: SetAttributes) -> Result<Attributes> {
        if let Some(attributes) = self.set_here(ino, &set) {
            return Ok(attributes);
        }
        let _own = self.changing(&Touched::inode(ino))?;
        let seen = self.seen(ino);
        self.setting(ino, || self.ask_attributes(Request::SetAttributes { ino, set, seen }))
    }

    /// As [`RemoteOwner::changing_names`], of attributes.
    fn setting<T>(&self, ino: Ino, set: impl FnOnce() -> Result<T>) -> Result<T> {
        self.open_files.unsynced().note_set(ino);
        let done = set();
        if done.is_ok() {
            self.open_files.unsynced().note_set(ino);
        }
        done
    }

    pub(crate) fn kill_set_id(&self, ino: Ino) -> Result<()> {
        let _own = self.changing(&Touched::inode(ino))?;
        self.do_it(Request::KillSetId { ino })
    }

    pub(crate) fn set_xattr(&self, ino: Ino, set: SetXattr<'_>) -> Result<()> {
        // Of a directory it may be what new files inherit.
        self.kept.end_delegation(ino);
        let _own = self.changing(&Touched::inode(ino))?;
        let SetXattr { name, value, mode, kill_set_gid } = set;
        let (name, value) = (name.to_vec(), value.to_vec());
        let request = Request::SetXattr { ino, name, value, mode, kill_set_gid };
        self.setting(ino, || self.do_it(request))
    }

    pub(crate) fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        let _own = self.changing(&Touched::inode(ino))?;
        let request = Request::RemoveXattr { ino, name: name.to_vec() };
        self.setting(ino, || self.do_it(request))
    }
}
