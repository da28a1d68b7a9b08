//! Moving names.

use std::sync::Arc;

use forebay_base::{Ino, Timestamp};

use crate::caching::queue::Change;
use crate::directory::{Child, check_name};
use crate::error::{FsError, Result};
use crate::inode::{Inode, Locked, State};
use crate::object::LiveObject;
use crate::ops::unlink::{Found, LastXattrs};
use crate::partition::entries::Look;
use crate::partition::{Caller, Partition, Row};
use crate::record::{Kind, ObjectRef};
use crate::shortage::Left;
use crate::stale::Stale;
use crate::stats::Operation;

/// Directories within each other of which it is believed that they end at the root.
const DEPTH_MAX: u32 = 1 << 20;

/// What happens to an entry that already has the new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Replace {
    /// It goes, as rename(2) says.
    Allowed,
    /// The rename is refused.
    Refused,
    /// It gets the old name.
    Exchange,
}

/// One end of a rename.
#[derive(Clone, Copy)]
struct Place<'a> {
    parent: &'a Arc<Inode>,
    name: &'a [u8],
}

/// An end of a rename that was looked for: what was found, if anything.
struct End<'a> {
    place: Place<'a>,
    look: Look<'a>,
    found: Option<Found>,
}

/// What is asked of a rename.
#[derive(Clone, Copy)]
struct How {
    replace: Replace,
    /// Who leaves a whiteout at the old name, if anybody does.
    whiteout_of: Option<Caller>,
    /// When a node has renamed it already, in a directory that is delegated to it.
    reported: Option<Timestamp>,
}

/// What a rename needs of stores and disks, which it asks without a lock.
#[derive(Default)]
struct Ahead {
    /// Extended attributes of what is replaced.
    xattrs: LastXattrs,
    /// The object of what is moved.
    object: Option<Arc<LiveObject>>,
}

/// What is to be done under the locks of a rename.
struct Move<'l> {
    source: &'l Found,
    target: Option<&'l Found>,
    /// Cookies of the old entry, and of the one that is replaced.
    cookies: (u64, Option<u64>),
    /// Extended attributes of what is replaced.
    xattrs: Vec<Row>,
    /// The object whose bytes must be durable before the replacement is.
    sync_first: Option<Arc<LiveObject>>,
    /// What stays at the old name.
    whiteout: Option<(Child, State)>,
    /// When a node has renamed it already.
    reported: Option<Timestamp>,
}

impl Partition {
    /// Moves the entry `name` of `parent` to `new_name` of `new_parent`.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::Exists`], [`FsError::NotEmpty`], [`FsError::IsDirectory`],
    /// [`FsError::NotDirectory`], [`FsError::Busy`] for the root of a
    /// fileset, [`FsError::Invalid`] for a directory that would move below itself.
    pub fn rename(
        &self,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        replace: Replace,
    ) -> Result<()> {
        let how = How { replace, whiteout_of: None, reported: None };
        self.rename_and_leave((parent, name), (new_parent, new_name), how)
    }

    /// As [`Partition::rename`], and leaves a whiteout of `caller` at the old name: a character device 0/0, which
    /// hides the name in the layers below for a union of file systems (overlayfs). Not for [`Replace::Exchange`].
    ///
    /// # Errors
    /// As [`Partition::rename`]; [`FsError::Invalid`] for an exchange.
    pub fn rename_with_whiteout(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        replace: Replace,
        caller: Caller,
    ) -> Result<()> {
        if replace == Replace::Exchange {
            return Err(FsError::Invalid);
        }
        self.rename_and_leave(from, to, How { replace, whiteout_of: Some(caller), reported: None })
    }

    /// As [`Partition::rename`] within one directory, of a file that a node has renamed already: the file has the time of that.
    pub(crate) fn rename_reported(
        &self,
        directory: Ino,
        (old, new): (&[u8], &[u8]),
        time: Timestamp,
    ) -> Result<()> {
        let (replace, whiteout_of) = (Replace::Allowed, None);
        let how = How { replace, whiteout_of, reported: Some(time) };
        self.rename_and_leave((directory, old), (directory, new), how)
    }

    fn rename_and_leave(
        &self,
        (parent, name): (Ino, &[u8]),
        (new_parent, new_name): (Ino, &[u8]),
        how: How,
    ) -> Result<()> {
        for dots in [name, new_name] {
            if dots == b"." || dots == b".." {
                return Err(FsError::Busy);
            }
        }
        check_name(new_name)?;
        self.admit()?;
        let (from, to) = (self.inode(parent)?, self.inode(new_parent)?);
        let from = Place { parent: &from, name };
        let to = Place { parent: &to, name: new_name };
        let mut ahead = Ahead::default();
        while !self.rename_once(from, to, how, &mut ahead)? {}
        Ok(())
    }

    /// Renames, unless something came in between or is not known yet: it is to be tried again then. Whether it is done.
    fn rename_once(
        &self,
        from: Place<'_>,
        to: Place<'_>,
        how: How,
        ahead: &mut Ahead,
    ) -> Result<bool> {
        let moves = *self.directory_moves.lock();
        let (from, to) = match self.find_ends(from, to, how.replace) {
            // While directories moved, it may have seen a tree that never was.
            Err(_) if *self.directory_moves.lock() != moves => return Ok(false),
            ends => ends?,
        };
        let source = from.found.as_ref().ok_or(FsError::NotFound)?;
        let target = to.found.as_ref();
        let mut inodes = vec![from.place.parent, to.place.parent, &source.inode];
        inodes.extend(target.map(|target| &target.inode));
        let mut locked = Locked::all(&inodes);
        let Some(old) = self.unchanged(&mut locked, &from)? else { return Ok(false) };
        let Some(new) = self.unchanged(&mut locked, &to)? else { return Ok(false) };
        check(&mut locked, source, to.place, target, how.replace)?;
        if target.is_some_and(|target| target.child.ino == source.child.ino) {
            self.count(Operation::Rename);
            return Ok(true);
        }
        let replaced = target.filter(|_| how.replace != Replace::Exchange);
        let Some((xattrs, sync_first)) = self.have_ahead(&mut locked, ahead, source, replaced)
        else {
            drop(locked);
            *ahead = self.ask_ahead(source, replaced)?;
            return Ok(false);
        };
        // What was checked of the tree above holds as long as no directory moves to another one.
        let goes_elsewhere = from.place.parent.ino != to.place.parent.ino;
        let mut tree = (goes_elsewhere && moves_a_directory(source, target, how.replace))
            .then(|| self.directory_moves.lock());
        if let Some(tree) = &mut tree {
            if **tree != moves {
                return Ok(false);
            }
            **tree += 1;
        }
        self.count(Operation::Rename);
        let old = old.ok_or(FsError::NotFound)?;
        let left = match (target, new) {
            (Some(target), Some(new)) if how.replace == Replace::Exchange => {
                self.exchange(&mut locked, from.place, source, to.place, target, [old, new])?;
                None
            }
            _ => {
                let new_whiteout = |caller| self.new_whiteout(&mut locked, from.place, caller);
                let whiteout = how.whiteout_of.map(new_whiteout).transpose()?;
                let cookies = (old, new);
                let reported = how.reported;
                let what = Move { source, target, cookies, xattrs, sync_first, whiteout, reported };
                self.move_entry(&mut locked, from.place, to.place, what)?
            }
        };
        drop(tree);
        drop(locked);
        if let Some(target) = target {
            self.after_removal(&target.inode, left);
        }
        Ok(true)
    }

    /// Finds both ends of a rename, and checks that no directory would lie within itself after it.
    fn find_ends<'a>(
        &self,
        from: Place<'a>,
        to: Place<'a>,
        replace: Replace,
    ) -> Result<(End<'a>, End<'a>)> {
        let from = self.find_end(from)?;
        let source = from.found.as_ref().ok_or(FsError::NotFound)?;
        let to = match self.find_end(to) {
            Err(FsError::Busy) if replace == Replace::Refused => Err(FsError::Exists),
            to => to,
        }?;
        let (parent, new_parent) = (from.place.parent.ino, to.place.parent.ino);
        if parent != new_parent {
            self.check_not_below(source, new_parent)?;
            if let (Replace::Exchange, Some(target)) = (replace, &to.found) {
                self.check_not_below(target, parent)?;
            }
        }
        Ok((from, to))
    }

    /// Checks that what `name` names in `parent` could leave this fileset by being copied: another fileset cannot.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::Busy`].
    pub fn check_leaves(&self, parent: Ino, name: &[u8]) -> Result<()> {
        if matches!(name, b"." | b"..") {
            return Err(FsError::Busy);
        }
        let directory = self.inode(parent)?;
        let (_directory, found) = self.lock_and_find(&directory, name)?;
        let (_, child) = found.ok_or(FsError::NotFound)?;
        if self.owns(child.ino) { Ok(()) } else { Err(FsError::Busy) }
    }

    fn find_end<'a>(&self, place: Place<'a>) -> Result<End<'a>> {
        let (look, found) = self.find_named(place.parent, place.name)?;
        Ok(End { place, look, found })
    }

    /// The cookie of an end that was found, if anything was, and names the same inode as then; the outer `None` if it
    /// is to be looked for again.
    fn unchanged(&self, locked: &mut Locked<'_>, end: &End<'_>) -> Result<Option<Option<u64>>> {
        let Some(now) = end.look.again(self, locked.state(end.place.parent.ino))? else {
            return Ok(None);
        };
        let was = end.found.as_ref().map(|found| found.child.ino);
        let is_same = now.as_ref().map(|(_, child)| child.ino) == was;
        Ok(is_same.then(|| now.map(|(cookie, _)| cookie)))
    }

    /// What a rename needs of stores and disks; `None` if they have to be asked (again).
    fn have_ahead(
        &self,
        locked: &mut Locked<'_>,
        ahead: &mut Ahead,
        source: &Found,
        target: Option<&Found>,
    ) -> Option<(Vec<Row>, Option<Arc<LiveObject>>)> {
        let Some(target) = target else { return Some((Vec::new(), None)) };
        let xattrs = ahead.xattrs.of(target.child.ino, locked.state(target.child.ino))?;
        let file = locked.state(source.child.ino).file();
        let Some((file, at)) = file.and_then(|file| Some((file, file.object?))) else {
            return Some((xattrs, None));
        };
        if !self.is_synced_first(at) {
            return Some((xattrs, None));
        }
        let opened = ahead.object.take().filter(|live| live.at == at);
        let live = file.live.clone().or(opened)?;
        Some((xattrs, Some(live)))
    }

    /// Asks stores and disks for what a rename needs of them; only the file that is moved is locked meanwhile.
    fn ask_ahead(&self, source: &Found, target: Option<&Found>) -> Result<Ahead> {
        let xattrs = target.map(|target| self.read_last_xattrs(&target.inode)).transpose()?;
        let mut state = source.inode.lock();
        let is_synced_first = |at| self.is_synced_first(at);
        let file = state.file_mut().filter(|file| file.object.is_some_and(is_synced_first));
        let object = match file {
            Some(file) => {
                let live = self.make_live(file)?;
                if file.opens.handles == 0 {
                    self.shared.idle.closed(source.child.ino, file);
                }
                Some(live)
            }
            None => None,
        };
        Ok(Ahead { xattrs: xattrs.unwrap_or_default(), object })
    }

    /// Whether the bytes of a file must be durable before it replaces another. Those in an archive are.
    fn is_synced_first(&self, at: ObjectRef) -> bool {
        self.is_strict() && !self.shared.objects.is_archive(at.disk)
    }

    /// Refuses to move a directory into its own subtree.
    fn check_not_below(&self, moved: &Found, new_parent: Ino) -> Result<()> {
        if moved.child.kind != Kind::Directory {
            return Ok(());
        }
        let mut above = new_parent;
        let mut depth = 0_u32;
        while above != self.top() {
            depth += 1;
            if depth > DEPTH_MAX {
                return Err(FsError::Damaged(format!("directory {new_parent} lies within itself")));
            }
            if above == moved.child.ino {
                return Err(FsError::Invalid);
            }
            above = match self.inode(above) {
                // The new parent was removed, and what it lay in as well.
                Err(FsError::Stale) => return Err(FsError::NotFound),
                inode => inode?.lock().parent(),
            };
        }
        Ok(())
    }

    /// What stays at `place` after a rename that leaves a whiteout.
    fn new_whiteout(
        &self,
        locked: &mut Locked<'_>,
        place: Place<'_>,
        caller: Caller,
    ) -> Result<(Child, State)> {
        let ino = self.take_ino()?;
        let above = locked.state(place.parent.ino);
        let state = self.whiteout_state(place.parent.ino, above, caller)?;
        Ok((Child { ino, kind: state.kind, name: place.name.into() }, state))
    }

    fn move_entry(
        &self,
        locked: &mut Locked<'_>,
        from: Place<'_>,
        to: Place<'_>,
        what: Move<'_>,
    ) -> Result<Option<Left>> {
        let Move { source, target, cookies, xattrs, sync_first, whiteout, reported } = what;
        let (old_cookie, new_cookie) = cookies;
        let now = self.now();
        let (old, new) = (from.parent.ino, to.parent.ino);
        let moved = source.child.ino;
        let is_directory = locked.state(moved).is_directory();
        let child = Child { name: to.name.into(), ..source.child.clone() };
        {
            let mut writes = self.writes.lock();
            match new_cookie {
                Some(at) => self.replace_entry(&mut writes, new, locked.state(new), at, child)?,
                None => self.add_entry(&mut writes, new, locked.state(new), child)?,
            }
            if let Some((child, mut state)) = whiteout {
                self.put_inode(&mut writes, child.ino, &mut state);
                self.replace_entry(&mut writes, old, locked.state(old), old_cookie, child)?;
            } else {
                self.remove_entry(&mut writes, old, locked.state(old), old_cookie)?;
            }
            if is_directory {
                locked.state(old).lose_subdirectory();
                self.set_parent(moved, locked.state(moved), new)?;
                // The link of a directory that is replaced becomes that of the moved one.
                if target.is_none() {
                    locked.state(new).nlink += 1;
                }
            }
            for ino in [old, new] {
                locked.state(ino).touch(now);
                self.put_inode(&mut writes, ino, locked.state(ino));
            }
            locked.state(moved).changed = reported.unwrap_or(now);
            self.put_inode(&mut writes, moved, locked.state(moved));
            let replaced = target.map(|target| target.child.ino);
            if let Some(ino) = replaced {
                self.drop_link(&mut writes, ino, locked.state(ino), xattrs);
            }
            self.queue_change(&mut writes, || {
                let (ino, parent, name) = (moved, new, to.name.into());
                let from = (old, from.name.into());
                Change::Rename { ino, parent, name, replaced, from, is_directory }
            });
            sync_first.into_iter().for_each(|live| writes.sync_first(live));
        }
        self.shared.fail_points.reach("rename.changed")?;
        let Some(target) = target else { return Ok(None) };
        let left = Left::by(locked.state(target.child.ino));
        self.dispose_if_dead(target.child.ino, locked.state(target.child.ino));
        Ok(left)
    }

    /// Notes which directory holds a moved one. The kernel may keep its listing, in which that is `..`.
    fn set_parent(&self, moved: Ino, state: &mut State, parent: Ino) -> Result<()> {
        let directory = state.directory_mut()?;
        if std::mem::replace(&mut directory.parent, parent) != parent {
            self.shared.stale.add([Stale::Listing(moved)]);
        }
        Ok(())
    }

    fn exchange(
        &self,
        locked: &mut Locked<'_>,
        from: Place<'_>,
        source: &Found,
        to: Place<'_>,
        target: &Found,
        cookies: [u64; 2],
    ) -> Result<()> {
        let now = self.now();
        let (one, other) = (from.parent.ino, to.parent.ino);
        let mut writes = self.writes.lock();
        for ((place, found), cookie) in [(from, target), (to, source)].into_iter().zip(cookies) {
            let child = Child { name: place.name.into(), ..found.child.clone() };
            let ino = place.parent.ino;
            self.replace_entry(&mut writes, ino, locked.state(ino), cookie, child)?;
            if locked.state(found.child.ino).is_directory() {
                let moved = found.child.ino;
                self.set_parent(moved, locked.state(moved), ino)?;
                locked.state(ino).nlink += 1;
            }
        }
        for (ino, left) in [(one, source), (other, target)] {
            if locked.state(left.child.ino).is_directory() {
                locked.state(ino).lose_subdirectory();
            }
        }
        for ino in [one, other] {
            locked.state(ino).touch(now);
            self.put_inode(&mut writes, ino, locked.state(ino));
        }
        for ino in [source.child.ino, target.child.ino] {
            locked.state(ino).changed = now;
            self.put_inode(&mut writes, ino, locked.state(ino));
        }
        drop(writes);
        self.shared.fail_points.reach("rename.changed")?;
        Ok(())
    }
}

/// Whether a rename between two directories moves a directory.
fn moves_a_directory(source: &Found, target: Option<&Found>, replace: Replace) -> bool {
    let exchanged = target.filter(|_| replace == Replace::Exchange);
    [Some(source), exchanged].into_iter().flatten().any(|end| end.child.kind == Kind::Directory)
}

/// What rename(2) refuses.
fn check(
    locked: &mut Locked<'_>,
    source: &Found,
    to: Place<'_>,
    target: Option<&Found>,
    replace: Replace,
) -> Result<()> {
    if locked.state(to.parent.ino).nlink == 0 {
        return Err(FsError::NotFound);
    }
    let source_is_directory = locked.state(source.child.ino).is_directory();
    let Some(target) = target else {
        if replace == Replace::Exchange {
            return Err(FsError::NotFound);
        }
        return Ok(());
    };
    if replace == Replace::Refused {
        return Err(FsError::Exists);
    }
    let state = locked.state(target.child.ino);
    if replace == Replace::Exchange || target.child.ino == source.child.ino {
        return Ok(());
    }
    match (source_is_directory, state.is_directory()) {
        (true, false) => Err(FsError::NotDirectory),
        (false, true) => Err(FsError::IsDirectory),
        (true, true) if state.size > 0 => Err(FsError::NotEmpty),
        (true, true) | (false, false) => Ok(()),
    }
}
