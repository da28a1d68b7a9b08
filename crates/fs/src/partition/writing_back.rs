//! The queue of a single-writer cache: changes that its home does not have yet (docs/adr/0105).
//!
//! A change and its place in the queue are in one batch: what fsync has acknowledged reaches the home after any crash, and what a crash has
//! undone does not. Before a file that is at home is opened for writing, its change is committed: its bytes may be on the disk before
//! any commit. It is carried out once more after it was closed.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_base::{Ino, Timestamp};
use parking_lot::{Mutex, RwLock};

use crate::caching::HomePath;
use crate::caching::home::Entry;
use crate::caching::queue::{
    Change, ConflictRecord, Edit, Place, Queue, QueueRecord, RoundRecord, Taken,
};
use crate::caching::writing;
use crate::error::{FsError, Result};
use crate::inode::{Body, State};
use crate::key::{self, Key};
use crate::object::LiveObject;
use crate::partition::Partition;
use crate::partition::caching::FetchPace;
use crate::record::{Kind, Record as _, decode, encode};
use crate::recovery::scan_prefix;
use crate::writeset::{Known, Uncommitted, WriteSet};

/// Bytes that are copied at a time.
const CHUNK: usize = 1 << 20;
/// Directories within each other of which it is believed that they end at the top.
const DEPTH_MAX: usize = 1 << 16;
/// Conflicts that are remembered.
const CONFLICTS_MAX: u64 = 10_000;

/// The queue of a single-writer cache, and what came of it since the mount.
pub(crate) struct WriteBack {
    pub queue: Mutex<Queue>,
    /// Held while a round is carried out.
    pub round: Mutex<()>,
    /// Held for writing while names change at home and it is noted which have, and for reading while something is read there by its
    /// name.
    pub names: RwLock<()>,
    /// The changes below this number are being carried out, or were when that was interrupted: it is not known which of them the home
    /// has.
    pub unfinished: Mutex<Option<u64>>,
    /// Changes below this number are carried out at once.
    pub hurried_below: AtomicU64,
    changes_max: u64,
    /// Nothing may be changed any more: the fileset is being removed.
    pub is_ending: AtomicBool,
    pub conflicts: AtomicU64,
    next_conflict: AtomicU64,
    pub written_files: AtomicU64,
    pub written_bytes: AtomicU64,
    /// Why the changes wait that should have been carried out.
    pub problem: Mutex<Option<String>>,
}

/// Whether the home is to learn of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tell {
    Home,
    /// It came from there.
    Nobody,
}

/// An inode on its way to the home.
pub(crate) struct Leaving {
    pub kind: Kind,
    pub attributes: writing::Attributes,
    /// Its time of change.
    pub changed: Timestamp,
    /// Target of a symlink.
    pub target: Vec<u8>,
    /// Programs have the file open for writing.
    pub is_written: bool,
    /// Its bytes are at home alone.
    pub is_unfetched: bool,
    live: Option<Arc<LiveObject>>,
    size: u64,
}

impl WriteBack {
    fn puts(&self, writes: &mut WriteSet, edits: impl IntoIterator<Item = Edit>) {
        for Edit { number, record } in edits {
            match record {
                Some(record) => writes.put(key::queued(number), encode(&record), Known::MayExist),
                None => writes.delete(key::queued(number)),
            }
        }
    }
}

impl Partition {
    /// From now on the home learns of changes. Reads those that wait.
    ///
    /// # Errors
    /// [`FsError::Damaged`]; what the store says.
    pub(crate) fn start_write_back(&self, changes_max: u64) -> Result<Arc<WriteBack>> {
        let (mut records, mut conflicts, mut last) = (Vec::new(), 0, 0);
        let mut places = std::collections::HashSet::new();
        let mut unfinished = None;
        scan_prefix(self.store(), &[key::WRITE_BACK], &mut |key, value| {
            match key::parse(key) {
                Some(Key::Queued(number)) => {
                    records.push((number, decode::<QueueRecord>("change for the home", value)?));
                }
                Some(Key::Place(ino)) => drop(places.insert(ino)),
                Some(Key::Conflict(number)) => (conflicts, last) = (conflicts + 1, number + 1),
                Some(Key::Round(_)) => {
                    let round: RoundRecord = decode(RoundRecord::KIND, value)?;
                    unfinished = Some(round.through);
                }
                _ => {}
            }
            Ok(())
        })?;
        let mut queue = Queue::of(records, |ino| places.contains(&ino));
        queue.begin_at(unfinished.unwrap_or(0));
        let write_back = Arc::new(WriteBack {
            queue: Mutex::new(queue),
            round: Mutex::default(),
            names: RwLock::default(),
            unfinished: Mutex::new(unfinished),
            hurried_below: AtomicU64::new(0),
            changes_max,
            is_ending: AtomicBool::new(false),
            conflicts: AtomicU64::new(conflicts),
            next_conflict: AtomicU64::new(last),
            written_files: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            problem: Mutex::default(),
        });
        let _ = self.write_back.set(Arc::clone(&write_back));
        Ok(write_back)
    }

    /// The queue of changes for the home, of a single-writer cache.
    pub(crate) fn write_back(&self) -> Option<&Arc<WriteBack>> {
        self.write_back.get()
    }

    /// Has the home learn of a change that `writes` gets under the same lock.
    pub(crate) fn queue_change(&self, writes: &mut WriteSet, change: impl FnOnce() -> Change) {
        if let Some(write_back) = self.write_back.get() {
            let edits = write_back.queue.lock().add(change(), self.now());
            write_back.puts(writes, edits);
        }
    }

    /// As [`Partition::queue_change`], of a change that comes with no other.
    pub(crate) fn queue_now(&self, change: Change) {
        self.queue_change(&mut self.writes.lock(), || change);
    }

    /// Refuses a change for which there is no room in the queue.
    ///
    /// # Errors
    /// [`FsError::NoSpace`]; [`FsError::Busy`] while the fileset is being removed.
    pub(crate) fn admit_change(&self) -> Result<()> {
        let Some(write_back) = self.write_back.get() else { return Ok(()) };
        if write_back.is_ending.load(Ordering::Acquire) {
            return Err(FsError::Busy);
        }
        let waiting = write_back.queue.lock().len() as u64;
        if waiting >= write_back.changes_max { Err(FsError::NoSpace) } else { Ok(()) }
    }

    /// As [`Partition::admit_change`], of a file, unless a change that writes it waits already.
    ///
    /// # Errors
    /// As [`Partition::admit_change`].
    pub(crate) fn admit_change_of(&self, ino: Ino) -> Result<()> {
        let waits = self.write_back().is_some_and(|it| it.queue.lock().will_write(ino).is_some());
        if waits { Ok(()) } else { self.admit_change() }
    }

    /// Before bytes of a file that is at home may change, and once more when programs can write them: a change that writes it back
    /// waits, and is committed.
    ///
    /// # Errors
    /// As [`Partition::commit`].
    pub(crate) fn queue_bytes(&self, ino: Ino) -> Result<()> {
        let Some(write_back) = self.write_back.get() else { return Ok(()) };
        self.admit_change_of(ino)?;
        let is_pending = {
            let mut writes = self.writes.lock();
            let mut queue = write_back.queue.lock();
            let edits = queue.add(Change::Bytes(ino), self.now());
            let number = queue.will_write(ino).filter(|number| !queue.makes(*number));
            drop(queue);
            write_back.puts(&mut writes, edits);
            // One that makes the file is in one batch with the file itself, which is new.
            number.is_some_and(|number| {
                matches!(writes.get(&key::queued(number)), Uncommitted::Changed(_))
            })
        };
        if is_pending { self.commit() } else { Ok(()) }
    }

    // --- places at home ---

    /// Where an inode lies at home, or is about to.
    pub(crate) fn home_place(&self, ino: Ino) -> Result<Option<Place>> {
        let found = self.read_key(&key::place(ino))?;
        found.map(|bytes| decode("place at home", &bytes)).transpose()
    }

    /// Notes in `writes` where an inode lies at home.
    pub(crate) fn put_place(&self, writes: &mut WriteSet, ino: Ino, place: Option<&Place>) {
        match place {
            Some(place) => writes.put(key::place(ino), encode(place), Known::MayExist),
            None => writes.delete(key::place(ino)),
        }
    }

    /// As [`Partition::put_place`], by itself.
    pub(crate) fn note_place(&self, ino: Ino, place: Option<&Place>) {
        self.put_place(&mut self.writes.lock(), ino, place);
    }

    /// A place of what was found in a directory at home.
    pub(crate) fn place_found(parent: Ino, name: &[u8], entry: &Entry) -> Place {
        let is_file = entry.kind == Kind::File;
        let seen = is_file.then_some((entry.size, entry.modified)).into_iter().collect();
        Place { parent, name: name.to_vec(), kind: entry.kind, is_listed: false, seen }
    }

    /// The path of an inode at home; none if it is not there.
    pub(crate) fn path_at_home(&self, ino: Ino) -> Result<Option<HomePath>> {
        self.path_by(ino, &|ino| self.home_place(ino))
    }

    /// As [`Partition::path_at_home`], by what `place_of` says of each inode.
    pub(crate) fn path_by(
        &self,
        ino: Ino,
        place_of: &dyn Fn(Ino) -> Result<Option<Place>>,
    ) -> Result<Option<HomePath>> {
        let top = self.top();
        let Some(place) = place_of(ino)? else {
            let path = HomePath { path: Vec::new(), is_listed: false };
            return Ok((ino == top).then_some(path));
        };
        if ino == top {
            return Ok(Some(HomePath { path: Vec::new(), is_listed: place.is_listed }));
        }
        let is_listed = place.is_listed;
        let (mut names, mut above) = (vec![place.name], place.parent);
        while above != top {
            let Some(place) = place_of(above)? else { return Ok(None) };
            if names.len() >= DEPTH_MAX {
                return Err(FsError::Damaged(format!("inode {ino} lies within itself at home")));
            }
            names.push(place.name);
            above = place.parent;
        }
        names.reverse();
        Ok(Some(HomePath { path: names.join(&b'/'), is_listed }))
    }

    /// Notes that the names of a directory of a single-writer cache were fetched.
    pub(crate) fn set_place_listed(&self, ino: Ino, is_listed: bool) -> Result<()> {
        let top = || Place {
            parent: Ino(0),
            name: Vec::new(),
            kind: Kind::Directory,
            is_listed,
            seen: Vec::new(),
        };
        let place = match self.home_place(ino)? {
            Some(place) => Place { is_listed, ..place },
            None if ino == self.top() => top(),
            None => return Ok(()),
        };
        self.note_place(ino, Some(&place));
        Ok(())
    }

    // --- carrying changes out ---

    /// An inode as it is now, for the home; none if it is gone.
    ///
    /// # Errors
    /// [`FsError::Io`], if its disk cannot be asked.
    pub(crate) fn leaving(&self, ino: Ino, with_bytes: bool) -> Result<Option<Leaving>> {
        let inode = match self.inode(ino) {
            Err(FsError::Stale) => return Ok(None),
            inode => inode?,
        };
        let mut state = inode.lock();
        if state.nlink == 0 {
            return Ok(None);
        }
        self.refresh(ino, &mut state)?;
        let is_unfetched = self.is_unfetched(&state);
        let live = match state.file_mut() {
            Some(file) if with_bytes && file.object.is_some() => {
                let live = self.make_live(file)?;
                if file.opens.handles == 0 {
                    self.shared.idle.closed(ino, file);
                }
                Some(live)
            }
            _ => None,
        };
        let target = match &state.body {
            Body::Symlink(target) => target.to_vec(),
            _ => Vec::new(),
        };
        let times = (state.kind == Kind::File).then_some((state.accessed, state.modified));
        let attributes =
            writing::Attributes { mode: state.mode, uid: state.uid, gid: state.gid, times };
        Ok(Some(Leaving {
            kind: state.kind,
            attributes,
            changed: state.changed,
            target,
            is_written: is_written(&state),
            is_unfetched,
            live,
            size: state.size,
        }))
    }

    /// Copies the bytes of a file into a file of the home, which has none yet; how many it has then, none if they cannot be read here. The
    /// object is synced first: the home must not have what a crash here would undo.
    ///
    /// # Errors
    /// [`FsError::HomeAway`]; [`FsError::Io`] if the home is full; what `pace` says.
    pub(crate) fn copy_to_home(
        &self,
        leaving: &Leaving,
        file: &File,
        pace: &dyn FetchPace,
    ) -> Result<Option<u64>> {
        let failed = |error: std::io::Error| match error.raw_os_error() {
            Some(code) if code == libc::ENOSPC || code == libc::EDQUOT => {
                FsError::Io(format!("the home is full: {error}"))
            }
            _ => FsError::HomeAway(error.to_string()),
        };
        let Some(live) = &leaving.live else { return Ok(Some(0)) };
        if live.is_published() && self.shared.objects.sync_unasked(live).is_err() {
            return Ok(None);
        }
        let mut buffer = vec![0; CHUNK.min(usize::try_from(leaving.size).unwrap_or(CHUNK)).max(1)];
        let mut at = 0;
        loop {
            let read = live.object.read_at(at, &mut buffer);
            let Ok(read) = self.shared.objects.observe(live.at.disk, read) else {
                return Ok(None);
            };
            if read == 0 {
                break;
            }
            pace.at_home()?;
            // Holes stay holes.
            if buffer[..read].iter().any(|byte| *byte != 0) {
                file.write_all_at(&buffer[..read], at).map_err(failed)?;
            }
            pace.fetched(read as u64)?;
            at += read as u64;
        }
        pace.at_home()?;
        file.set_len(at).map_err(failed)?;
        pace.fetched(0)?;
        Ok(Some(at))
    }

    /// Changes below a number are about to be carried out together. Until [`Partition::end_round`] it is not known which the home has.
    pub(crate) fn begin_round(&self, through: u64) {
        if let Some(write_back) = self.write_back.get() {
            *write_back.unfinished.lock() = Some(through);
            let record = encode(&RoundRecord { through });
            self.writes.lock().put(key::round(), record, Known::MayExist);
        }
    }

    /// It is known which changes of the round the home has.
    pub(crate) fn end_round(&self) {
        if let Some(write_back) = self.write_back.get() {
            *write_back.unfinished.lock() = None;
            self.writes.lock().delete(key::round());
        }
    }

    /// A change was carried out: it leaves the queue. A file that programs could write meanwhile is written back once more.
    pub(crate) fn change_is_done(&self, taken: &Taken, was: Option<&Leaving>) {
        let Some(write_back) = self.write_back.get() else { return };
        let ino = taken.change.ino();
        // Nobody opens or cuts the file meanwhile.
        let inode = self.inode(ino).ok();
        let state = inode.as_ref().map(|inode| inode.lock());
        let again = match (&state, was) {
            (Some(state), Some(was)) if state.kind == Kind::File && state.nlink > 0 => {
                was.is_written || is_written(state) || state.changed != was.changed
            }
            _ => false,
        };
        let mut writes = self.writes.lock();
        let mut queue = write_back.queue.lock();
        let mut edits: Vec<Edit> = queue.done(taken.number).into_iter().collect();
        if let (true, Some(was)) = (again, was) {
            edits.extend(queue.again(ino, self.now(), was.changed));
        }
        drop(queue);
        write_back.puts(&mut writes, edits);
    }

    /// Notes what somebody else did at home where this cache writes.
    pub(crate) fn note_conflict(&self, record: &ConflictRecord) {
        let Some(write_back) = self.write_back.get() else { return };
        let number = write_back.next_conflict.fetch_add(1, Ordering::AcqRel);
        if write_back.conflicts.load(Ordering::Acquire) >= CONFLICTS_MAX {
            return;
        }
        write_back.conflicts.fetch_add(1, Ordering::AcqRel);
        self.writes.lock().put(key::conflict(number), encode(record), Known::Absent);
    }

    /// The number that the next conflict gets.
    pub(crate) fn next_conflict(&self) -> u64 {
        self.write_back.get().map_or(0, |it| it.next_conflict.load(Ordering::Acquire))
    }

    /// The conflicts that are remembered, the oldest first.
    ///
    /// # Errors
    /// [`FsError::Damaged`]; what the store says.
    pub(crate) fn conflicts(&self) -> Result<Vec<(u64, ConflictRecord)>> {
        self.commit()?;
        let mut found = Vec::new();
        scan_prefix(self.store(), &key::conflict(0)[..2], &mut |key, value| {
            if let Some(Key::Conflict(number)) = key::parse(key) {
                found.push((number, decode("conflict at home", value)?));
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Forgets conflicts.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn forget_conflicts(&self, numbers: &[u64]) -> Result<()> {
        let Some(write_back) = self.write_back.get() else { return Ok(()) };
        {
            let mut writes = self.writes.lock();
            numbers.iter().for_each(|number| writes.delete(key::conflict(*number)));
        }
        write_back.conflicts.fetch_sub(numbers.len() as u64, Ordering::AcqRel);
        self.commit()
    }
}

/// Whether programs may write a file.
fn is_written(state: &State) -> bool {
    state.file().is_some_and(|file| file.opens.is_written())
}
