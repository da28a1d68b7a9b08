//! The inodes of a cache fileset: made, changed and dropped as their home says, their bytes fetched and evicted.
//!
//! A file that was not fetched has a size and no object. A fetch copies its bytes into an object to which nothing refers, publishes
//! and syncs it, and turns the record to it; eviction turns the record back, and the object goes after the commit. So after a
//! crash a file is fetched as a whole or not at all, and an object without a record is removed by the sweep.

use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_base::{DiskId, Ino, Timestamp};
use forebay_disk::Sync;
use rustix::fs::SeekFrom;

use crate::attributes::{SetAttributes, SetTime};
use crate::caching::home::{Entry, look_again};
use crate::caching::queue::{Change, Place, Print};
use crate::caching::{HomePath, PATH, SETTINGS};
use crate::directory::{Child, Directory, check_name};
use crate::error::{FsError, Result};
use crate::inode::{Body, FileBody, Inode, State};
use crate::key::{self, Key};
use crate::object::{FsDisk, LiveObject};
use crate::ops::{SetMode, SetXattr};
use crate::partition::Partition;
use crate::partition::quota::settle;
use crate::partition::relocate::TheCopies;
use crate::partition::writing_back::Tell;
use crate::record::{InodeRecord, Kind, decode};
use crate::recovery::scan_prefix;
use crate::writeset::Known;

/// Bytes that are copied at a time.
const CHUNK: usize = 1 << 20;

/// A file that was not fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unfetched {
    /// Its path at home; none if it is not known, so that it cannot be fetched.
    pub path: Option<Vec<u8>>,
    pub size: u64,
    pub modified: Timestamp,
    /// What it is at home, as far as that is known: in a single-writer cache times may be set here that the home does not know yet.
    pub seen: Print,
}

/// What of an inode of a cache is at home alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lacking {
    /// The bytes of a file.
    Bytes,
    /// The names of a directory.
    Names,
}

/// What became of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fetch {
    Done(u64),
    /// The file has changed at home since it was listed, or while it was copied.
    Changed,
}

/// A file whose bytes were fetched, in the order in which they are given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Fetched {
    pub at: Timestamp,
    pub ino: Ino,
    pub disk: DiskId,
    /// Bytes that it takes there.
    pub bytes: u64,
}

/// A name that is being dropped.
struct Dropping {
    parent: Ino,
    name: Vec<u8>,
    ino: Ino,
    /// What is below it and not looked at yet.
    below: Vec<(Vec<u8>, Ino)>,
    /// It, or something below it, does not follow the home.
    stays: bool,
}

/// Says before and after each step at home whether it goes on.
pub(crate) trait FetchPace {
    /// The next step is the home's.
    fn at_home(&self) -> Result<()>;
    /// The home has answered with so many bytes.
    fn fetched(&self, bytes: u64) -> Result<()>;
}

/// Owners and permissions as they are at home.
fn permissions_of(entry: &Entry) -> SetAttributes {
    SetAttributes {
        mode: Some(entry.mode),
        uid: Some(entry.uid),
        gid: Some(entry.gid),
        ..SetAttributes::default()
    }
}

impl Partition {
    /// The settings of a cache, if the fileset is one.
    ///
    /// # Errors
    /// [`FsError::Damaged`]; what the store says.
    pub(crate) fn cache_settings(&self) -> Result<Option<Vec<u8>>> {
        self.read_key(&key::xattr(self.top(), SETTINGS))
    }

    /// From now on files without an object may have a size.
    pub(crate) fn note_cache(&self) {
        self.is_cache.store(true, Ordering::Release);
    }

    /// Whether the fileset is a cache.
    pub(crate) fn is_cache(&self) -> bool {
        self.is_cache.load(Ordering::Acquire)
    }

    /// Whether a file lies at home alone.
    pub(crate) fn is_unfetched(&self, state: &State) -> bool {
        let has_none = state.file().is_some_and(|file| file.object.is_none());
        has_none && state.size > 0 && self.is_cache()
    }

    /// What ties an inode to its home; none for one that does not follow it.
    pub(crate) fn home_path(&self, ino: Ino) -> Result<Option<HomePath>> {
        if self.write_back().is_some() {
            return self.path_at_home(ino);
        }
        let inode = self.inode(ino)?;
        let (_inode, value) = self.lock_with_xattr(&inode, PATH)?;
        Ok(value.map(|value| HomePath::parse(&value)))
    }

    /// Whether an inode is a directory.
    pub(crate) fn is_directory(&self, ino: Ino) -> Result<bool> {
        Ok(self.inode(ino)?.lock().is_directory())
    }

    /// Notes whether the names of a directory were fetched.
    pub(crate) fn set_listed(&self, ino: Ino, path: &HomePath, is_listed: bool) -> Result<()> {
        if self.write_back().is_some() {
            return self.set_place_listed(ino, is_listed);
        }
        let value = HomePath { is_listed, path: path.path.clone() }.to_bytes();
        self.set_xattr(
            ino,
            SetXattr { name: PATH, value: &value, mode: SetMode::Any, kill_set_gid: false },
        )
    }

    /// The names of a directory with what they lead to.
    pub(crate) fn listed_names(&self, directory: Ino) -> Result<Vec<(Vec<u8>, Ino)>> {
        let mut found = Vec::new();
        self.read_directory(directory, 0, &mut |item| {
            if !matches!(item.name.as_slice(), b"." | b"..") {
                found.push((item.name.clone(), item.ino));
            }
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }

    /// Makes what lies at home under a name that is not taken here.
    ///
    /// # Errors
    /// [`FsError::Exists`], [`FsError::NotFound`] if the directory was dropped, [`FsError::QuotaExceeded`].
    pub(crate) fn make_as_at_home(
        &self,
        parent: Ino,
        name: &[u8],
        entry: &Entry,
        path: Vec<u8>,
    ) -> Result<()> {
        check_name(name)?;
        self.admit()?;
        let directory = self.inode(parent)?;
        let (mut above, found) = self.lock_and_find(&directory, name)?;
        if above.nlink == 0 {
            return Err(FsError::NotFound);
        }
        if found.is_some() {
            return Err(FsError::Exists);
        }
        let ino = self.take_ino()?;
        let mut state = self.state_as_at_home(parent, entry);
        let writes_back = self.write_back().is_some();
        state.xattrs = u32::from(!writes_back);
        let admitted = self.admit_inode(&state, 0)?;
        {
            let mut writes = self.writes.lock();
            let child = Child { ino, kind: entry.kind, name: name.into() };
            self.add_entry(&mut writes, parent, &mut above, child)?;
            if entry.kind == Kind::Directory {
                above.nlink += 1;
            }
            if writes_back {
                self.put_place(
                    &mut writes,
                    ino,
                    Some(&Partition::place_found(parent, name, entry)),
                );
            } else {
                self.put_xattr(&mut writes, ino, &mut state, (PATH, path), Known::Absent);
            }
            self.put_inode(&mut writes, parent, &mut above);
            self.put_inode(&mut writes, ino, &mut state);
            settle(admitted, &mut writes);
        }
        self.shared.inodes.insert(&Arc::new(Inode::new(ino, state)));
        drop(above);
        self.shared.inodes.shrink();
        Ok(())
    }

    fn state_as_at_home(&self, parent: Ino, entry: &Entry) -> State {
        let is_directory = entry.kind == Kind::Directory;
        let now = self.now();
        State {
            kind: entry.kind,
            mode: entry.mode,
            uid: entry.uid,
            gid: entry.gid,
            nlink: if is_directory { 2 } else { 1 },
            size: if is_directory { 0 } else { entry.size },
            allocated_bytes: 0,
            accessed: entry.modified,
            modified: entry.modified,
            changed: now,
            created: now,
            rdev: 0,
            xattrs: 0,
            xattr_bytes: None,
            xattr_changes: 0,
            nameless_xattrs: None,
            body: match entry.kind {
                Kind::Directory => Body::Directory(Box::new(Directory::empty(parent))),
                Kind::Symlink => Body::Symlink(entry.target.as_slice().into()),
                _ => Body::File(FileBody::default()),
            },
            counted: None,
            recorded: false,
        }
    }

    /// What of an inode is at home alone, if anything.
    pub(crate) fn lacking(&self, ino: Ino) -> Result<Option<Lacking>> {
        if self.is_directory(ino)? {
            let is_unlisted = self.home_path(ino)?.is_some_and(|home| !home.is_listed);
            return Ok(is_unlisted.then_some(Lacking::Names));
        }
        Ok(self.unfetched(ino)?.map(|_| Lacking::Bytes))
    }

    /// Refuses an inode that follows its home, and is not here as a whole.
    ///
    /// # Errors
    /// [`FsError::Archived`] for a file whose bytes, and a directory whose names, are to be fetched first.
    pub(crate) fn check_fetched(&self, ino: Ino) -> Result<()> {
        let follows = self.home_path(ino)?.is_some();
        if follows && self.lacking(ino)?.is_some() { Err(FsError::Archived) } else { Ok(()) }
    }

    /// The directory that a name leads to, if it leads to one.
    pub(crate) fn named_directory(&self, parent: Ino, name: &[u8]) -> Option<Ino> {
        self.named(parent, name).filter(|ino| self.is_directory(*ino).unwrap_or(false))
    }

    /// As [`Partition::check_fetched`], of the directory that a name leads to, if it does.
    pub(crate) fn check_named_fetched(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.named_directory(parent, name).map_or(Ok(()), |ino| self.check_fetched(ino))
    }

    /// An inode does not follow its home any more: it is about to be changed here.
    ///
    /// # Errors
    /// As [`Partition::check_fetched`].
    pub(crate) fn part_from_home(&self, ino: Ino) -> Result<()> {
        if self.write_back().is_some() {
            return Ok(());
        }
        self.check_fetched(ino)?;
        match self.remove_xattr(ino, PATH) {
            Err(FsError::NoAttribute) => Ok(()),
            removed => removed,
        }
    }

    /// A file is about to be truncated: one that was not fetched is not fetched for that.
    pub(crate) fn truncate_unfetched(&self, ino: Ino) -> Result<()> {
        let inode = self.inode(ino)?;
        {
            let mut state = inode.lock();
            if !self.is_unfetched(&state) {
                return Ok(());
            }
            state.size = 0;
            state.touch(self.now());
            let mut writes = self.writes.lock();
            self.put_inode(&mut writes, ino, &mut state);
            self.queue_change(&mut writes, || Change::Bytes(ino));
        }
        self.part_from_home(ino)
    }

    /// Takes the attributes of what has stayed what it was at home. Whether it has: otherwise it is to be dropped and made anew.
    pub(crate) fn take_attributes_of_home(&self, ino: Ino, entry: &Entry) -> Result<bool> {
        let inode = self.inode(ino)?;
        let (is_same, differs) = {
            let mut state = inode.lock();
            let is_same = state.kind == entry.kind
                && match &state.body {
                    Body::Symlink(target) => **target == *entry.target,
                    Body::File(_) => self.take_size_of_home(ino, &mut state, entry),
                    Body::Directory(_) | Body::Special => true,
                };
            let owners = (state.uid, state.gid, state.mode);
            (is_same, owners != (entry.uid, entry.gid, entry.mode))
        };
        if is_same && differs && entry.kind != Kind::Symlink {
            self.take_attributes(ino, permissions_of(entry))?;
        }
        Ok(is_same)
    }

    /// A file of a single-writer cache was not fetched, and has changed at home: it takes its size, and its time unless a change
    /// waits here.
    pub(crate) fn take_file_of_home(&self, ino: Ino, entry: &Entry) -> Result<()> {
        let inode = self.inode(ino)?;
        let place = self.home_place(ino)?;
        let mut state = inode.lock();
        if !self.is_unfetched(&state) {
            return Ok(());
        }
        state.size = entry.size;
        if !self.write_back().is_some_and(|it| it.queue.lock().concerns(ino)) {
            state.modified = entry.modified;
        }
        state.changed = self.now();
        let mut writes = self.writes.lock();
        self.put_inode(&mut writes, ino, &mut state);
        if let Some(place) = place {
            let seen = vec![(entry.size, entry.modified)];
            self.put_place(&mut writes, ino, Some(&Place { seen, ..place }));
        }
        Ok(())
    }

    /// Whether the bytes of a file are those of its home; one that was not fetched takes the new size and time.
    fn take_size_of_home(&self, ino: Ino, state: &mut State, entry: &Entry) -> bool {
        if (state.size, state.modified) == (entry.size, entry.modified) {
            return true;
        }
        let is_here = state.file().is_none_or(|file| file.object.is_some());
        if is_here || state.handles() > 0 {
            return false;
        }
        (state.size, state.modified, state.changed) = (entry.size, entry.modified, self.now());
        self.put_inode(&mut self.writes.lock(), ino, state);
        true
    }

    /// A directory has the attributes that it has at home.
    pub(crate) fn take_directory_of_home(&self, ino: Ino, entry: &Entry) -> Result<()> {
        {
            let inode = self.inode(ino)?;
            let state = inode.lock();
            let now = (state.mode, state.uid, state.gid, state.modified);
            if now == (entry.mode, entry.uid, entry.gid, entry.modified) {
                return Ok(());
            }
        }
        let modified = Some(SetTime::To(entry.modified));
        self.take_attributes(ino, SetAttributes { modified, ..permissions_of(entry) })
    }

    /// Drops a name that is gone at home, with all that is below it. Files that are open stay with those who have them open. What
    /// does not follow the home stays, and what holds it; whether nothing has.
    pub(crate) fn drop_as_at_home(&self, parent: Ino, name: &[u8], ino: Ino) -> Result<bool> {
        let mut way = vec![self.dropping(parent, name.to_vec(), ino)?];
        loop {
            let Some(top) = way.last_mut() else { return Ok(true) };
            if let Some((name, child)) = top.below.pop() {
                let above = top.ino;
                way.push(self.dropping(above, name, child)?);
                continue;
            }
            let Some(done) = way.pop() else { return Ok(true) };
            if !done.stays {
                match self.remove_as((done.parent, &done.name), |_, _| Ok(()), Tell::Nobody) {
                    Ok(()) | Err(FsError::NotFound) => {}
                    Err(error) => return Err(error),
                }
            }
            match way.last_mut() {
                Some(above) => above.stays |= done.stays,
                None => return Ok(!done.stays),
            }
        }
    }

    fn dropping(&self, parent: Ino, name: Vec<u8>, ino: Ino) -> Result<Dropping> {
        // What a single-writer cache has goes only with the cache.
        let stays = match self.write_back() {
            Some(write_back) => !write_back.is_ending.load(Ordering::Acquire),
            None => self.home_path(ino)?.is_none(),
        };
        let is_followed = !stays && self.is_directory(ino)?;
        let below = if is_followed { self.listed_names(ino)? } else { Vec::new() };
        Ok(Dropping { parent, name, ino, below, stays })
    }

    /// Committed inodes that do not follow the home, besides the top directory.
    pub(crate) fn own_inodes(&self) -> Result<u64> {
        if self.write_back().is_some() {
            return Ok(0);
        }
        let top = self.top();
        let mut following = 0_u64;
        scan_prefix(self.store(), &[key::XATTR], &mut |key, _| {
            if let Some(Key::Xattr(ino, name)) = key::parse(key) {
                following += u64::from(name == PATH && ino != top);
            }
            Ok(())
        })?;
        Ok(self.usage().inodes.saturating_sub(1).saturating_sub(following))
    }

    // --- bytes ---

    /// What there is to fetch of a file, if it was not fetched.
    pub(crate) fn unfetched(&self, ino: Ino) -> Result<Option<Unfetched>> {
        let inode = self.inode(ino)?;
        let (size, modified) = {
            let state = inode.lock();
            if !self.is_unfetched(&state) {
                return Ok(None);
            }
            (state.size, state.modified)
        };
        let path = self.home_path(ino)?.map(|home| home.path);
        let place = if self.write_back().is_some() { self.home_place(ino)? } else { None };
        let seen = place.and_then(|place| place.seen.last().copied()).unwrap_or((size, modified));
        Ok(Some(Unfetched { path, size, modified, seen }))
    }

    /// Copies an open file of the home into an object, on a certain disk if one is given, and turns the record to it, unless file or record
    /// have changed.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::HomeAway`], [`FsError::Io`], what `pace` says: nothing is left of the copy then.
    pub(crate) fn fetch_from_home(
        &self,
        ino: Ino,
        (wanted, file, entry): (&Unfetched, &File, &Entry),
        on: Option<DiskId>,
        pace: &dyn FetchPace,
    ) -> Result<Fetch> {
        if (entry.size, entry.modified) != wanted.seen {
            return Ok(Fetch::Changed);
        }
        let own = self.pool();
        let suits = |disk: &FsDisk| {
            disk.pool() == own && !disk.is_archive() && on.is_none_or(|on| disk.id == on)
        };
        let objects = &self.shared.objects;
        let new = objects.make_for_fetch(suits, || self.take_object_id())?;
        if !self.copy_from_home((file, wanted.size), &new, pace)? {
            return Ok(Fetch::Changed);
        }
        pace.at_home()?;
        let now = look_again(file)?;
        pace.fetched(0)?;
        if (now.size, now.modified) != wanted.seen {
            return Ok(Fetch::Changed);
        }
        objects.set_size(&new, wanted.size)?;
        let timed = new.object.set_modified(wanted.modified);
        objects.observe(new.at.disk, timed)?;
        self.shared.fail_points.reach("fetch.copied")?;
        objects.publish(&new).inspect_err(|_| self.give_up_copy(&new))?;
        let synced = objects.sync(&new, Sync::All).and_then(|()| {
            self.shared.fail_points.reach("fetch.synced")?;
            Ok(())
        });
        synced.inspect_err(|_| self.give_up_copy(&new))?;
        let turned = self.turn_to_fetched(ino, wanted, &new);
        if !matches!(turned, Ok(Fetch::Done(_))) {
            self.give_up_copy(&new);
        }
        objects.drop_handle(new);
        self.shared.fail_points.reach("fetch.turned")?;
        turned
    }

    /// Copies the bytes of a file of the home, its holes excepted. Whether it was as long as it should be.
    fn copy_from_home(
        &self,
        (file, size): (&File, u64),
        new: &LiveObject,
        pace: &dyn FetchPace,
    ) -> Result<bool> {
        let away = |error: std::io::Error| FsError::HomeAway(error.to_string());
        let mut buffer = vec![0; CHUNK.min(usize::try_from(size).unwrap_or(CHUNK))];
        let mut at = 0;
        while at < size {
            pace.at_home()?;
            // Where the home's file system does not know its holes, all is data.
            at = match rustix::fs::seek(file, SeekFrom::Data(at)) {
                Ok(data) => data.min(size),
                Err(rustix::io::Errno::NXIO) => size,
                Err(_) => at,
            };
            let wanted = usize::try_from(size - at).unwrap_or(CHUNK).min(buffer.len());
            let read = file.read_at(&mut buffer[..wanted], at).map_err(away)?;
            pace.fetched(read as u64)?;
            if read == 0 && at < size {
                return Ok(false);
            }
            self.write_all(new, at, &buffer[..read])?;
            at += read as u64;
        }
        Ok(true)
    }

    fn turn_to_fetched(&self, ino: Ino, wanted: &Unfetched, new: &LiveObject) -> Result<Fetch> {
        let inode = self.inode(ino)?;
        let found = self.shared.objects.observe(new.at.disk, new.object.attributes())?;
        let mut state = inode.lock();
        let is_here = state.file().is_none_or(|file| file.object.is_some());
        let is_same = (state.size, state.modified) == (wanted.size, wanted.modified);
        if is_here || !is_same || state.nlink == 0 {
            return Ok(Fetch::Changed);
        }
        state.accessed = state.accessed.max(self.now());
        self.exchange_object(ino, &mut state, (new.at, found), TheCopies::Unknown);
        Ok(Fetch::Done(wanted.size))
    }

    /// Gives back the bytes of a file that can be fetched again, unless somebody has it open. How many bytes it took, if so. What is
    /// mapped for reading stays: nobody writes such a file.
    ///
    /// # Errors
    /// What the store or the disk says.
    pub(crate) fn evict_to_home(&self, ino: Ino) -> Result<Option<u64>> {
        if self.home_path(ino)?.is_none() {
            return Ok(None);
        }
        if self.write_back().is_some() && self.home_place(ino)?.is_some_and(|it| it.seen.is_empty())
        {
            // Its bytes could not be read when they were to be written to the home.
            return Ok(None);
        }
        let inode = self.inode(ino)?;
        let mut state = inode.lock();
        if self.write_back().is_some_and(|it| it.queue.lock().concerns(ino)) {
            // The home does not have it as it is here.
            return Ok(None);
        }
        let (size, bytes) = (state.size, state.allocated_bytes);
        let is_named = state.nlink > 0;
        let Some(file) = state.file_mut() else { return Ok(None) };
        if !is_named || size == 0 || file.object.is_none() || file.opens.handles > 0 {
            return Ok(None);
        }
        let mut writes = self.writes.lock();
        let dropped = self.drop_object(&mut writes, file, bytes);
        file.settle();
        state.allocated_bytes = 0;
        self.put_inode(&mut writes, ino, &mut state);
        drop(writes);
        dropped.into_iter().for_each(|live| self.shared.objects.drop_handle(live));
        self.shared.fail_points.reach("evict.turned")?;
        Ok(Some(bytes))
    }

    /// Committed files whose bytes were fetched.
    pub(crate) fn fetched(&self) -> Result<Vec<Fetched>> {
        let mut found = Vec::new();
        scan_prefix(self.store(), &[key::INODE], &mut |key, value| {
            if let Some(Key::Inode(ino)) = key::parse(key) {
                let record: InodeRecord = decode("inode", value)?;
                let is_file = record.kind == Kind::File && record.size > 0;
                if let Some(object) = record.layout.object().filter(|_| is_file) {
                    let (at, bytes) = (record.accessed, record.allocated_bytes);
                    found.push(Fetched { at, ino, disk: object.disk, bytes });
                }
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// The disk for a file that can hold so many bytes once those are given back that were fetched to it; of several, the one that
    /// has the most free, with that.
    pub(crate) fn disk_that_could_hold(
        &self,
        bytes: u64,
        evictable: &[Fetched],
    ) -> Option<(DiskId, u64)> {
        let own = self.pool();
        let suits = |disk: &FsDisk| {
            disk.pool() == own && !disk.is_archive() && disk.is_near && disk.takes_new()
        };
        let free = |disk: &FsDisk| disk.disk.capacity().map_or(0, |it| it.available_bytes);
        let has_room = |(id, free): &(DiskId, u64)| {
            let on_it = evictable.iter().filter(|file| file.disk == *id);
            on_it.map(|file| file.bytes).fold(*free, u64::saturating_add) >= bytes
        };
        let disks = self.shared.objects.numbered_disks().filter(|(_, disk)| suits(disk));
        let roomy = disks.map(|(id, disk)| (id, free(disk))).filter(has_room);
        roomy.max_by_key(|(_, free)| *free)
    }
}
