//! The inodes of a native fileset that the kernel was told of: their numbers, and what stands for them.
//!
//! An inode is known from its first answer until the kernel forgets it and nobody has it open. Its number is the disk's
//! own, as long as no known inode has that already: the disk may use a number again as soon as a file is removed, and
//! another program may have removed it. In a cluster all numbers are shifted by an amount that each life of the daemon has for
//! itself: what other nodes know of an earlier life is stale then, and never another file.
//!
//! A known inode has a descriptor that stands for it. There are at most `native_handles_max` of them: beyond that the
//! longest unused ones are closed, and opened again when they are needed, by their file handle where this process may
//! do that (`CAP_DAC_READ_SEARCH`), else by the name at which they were last seen. What is found by name counts only if
//! it is the same inode; otherwise the inode is stale, and the kernel looks its name up again.

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::error::{FsError, Result};
use crate::native::opens::Opens;
use crate::native::system::{Handle, Identity};
use crate::record::Kind;

/// Bits of a number within its fileset.
pub(super) const NUMBER_BITS: u32 = 48;
/// Numbers from here on are given to inodes whose own number is taken or too large; a later fileset of the same number
/// begins here.
pub(crate) const FIRST_SPARE: u64 = 1 << 47;
/// Number of a top directory; disks do not use it for files that people see.
pub(super) const TOP_NUMBER: u64 = 1;
/// Descriptors that are looked at to find one to close.
const LOOKS: usize = 64;

/// Where an inode was last seen: the number of its directory, and its name there.
pub(super) type SeenAt = (u64, Box<[u8]>);

/// An inode that the kernel was told of.
pub(super) struct Known {
    /// Its number here.
    pub number: u64,
    /// What it is on its disk.
    pub identity: Identity,
    /// Kind; it never changes.
    pub kind: Kind,
    /// Who has it open.
    pub opens: Mutex<Opens>,
    place: Mutex<Place>,
    /// It was used since its descriptor was last considered for closing.
    is_used: AtomicBool,
}

/// What finds an inode.
struct Place {
    descriptor: Option<Arc<OwnedFd>>,
    handle: Option<Handle>,
    seen_at: Option<SeenAt>,
}

/// How an inode is reached.
pub(super) enum Way {
    /// By its descriptor.
    Descriptor(Arc<OwnedFd>),
    /// By its handle.
    Handle(Handle),
    /// By the name at which it was last seen.
    Name(SeenAt),
}

impl Known {
    fn new(number: u64, identity: Identity, kind: Kind, place: Place) -> Known {
        Known {
            number,
            identity,
            kind,
            opens: Mutex::default(),
            place: Mutex::new(place),
            is_used: AtomicBool::new(true),
        }
    }

    /// How to reach it.
    ///
    /// # Errors
    /// [`FsError::Stale`] if there is no way.
    pub fn way(&self) -> Result<Way> {
        self.is_used.store(true, Ordering::Relaxed);
        let place = self.place.lock();
        let by_descriptor =
            place.descriptor.as_ref().map(|there| Way::Descriptor(Arc::clone(there)));
        let by_handle = || place.handle.clone().map(Way::Handle);
        let by_name = || place.seen_at.clone().map(Way::Name);
        by_descriptor.or_else(by_handle).or_else(by_name).ok_or(FsError::Stale)
    }

    /// Notes where it is seen now; `None` if it has no name there any more.
    pub fn see_at(&self, seen_at: Option<SeenAt>) {
        self.place.lock().seen_at = seen_at;
    }

    /// Closes the descriptor if the inode can be found again without it. Whether it was closed.
    fn close(&self, finds_by_handle: bool) -> bool {
        // Whoever holds the lock is about to use it.
        if self.opens.try_lock().is_none_or(|opens| opens.is_in_use()) {
            return false;
        }
        let mut place = self.place.lock();
        let Some(descriptor) = &place.descriptor else { return false };
        if finds_by_handle && place.handle.is_none() {
            place.handle = Handle::of(descriptor.as_fd());
        }
        if place.handle.is_none() && place.seen_at.is_none() {
            return false;
        }
        place.descriptor = None;
        true
    }
}

/// A known inode, and how often the kernel was told of it.
struct Slot {
    known: Arc<Known>,
    told: u64,
}

/// All known inodes of a native fileset.
pub(super) struct Table {
    slots: FxHashMap<u64, Slot>,
    by_identity: FxHashMap<Identity, u64>,
    /// Numbers of inodes with a descriptor, in the order in which they were opened; some may have none any more.
    with_descriptor: VecDeque<u64>,
    descriptors: usize,
    descriptors_max: usize,
    next_spare: u64,
    finds_by_handle: bool,
    /// Added to the disk's own numbers.
    shift: u64,
}

/// Number of an inode that has `own` on its disk, where those of this life are shifted. None if there is none.
pub(super) fn shifted(own: u64, shift: u64) -> Option<u64> {
    let first = TOP_NUMBER + 1;
    (own >= first && own < FIRST_SPARE)
        .then(|| first + (own - first + shift % (FIRST_SPARE - first)) % (FIRST_SPARE - first))
}

impl Table {
    /// A table with the top directory alone, which stays known.
    pub fn new(
        identity: Identity,
        top: OwnedFd,
        descriptors_max: usize,
        finds_by_handle: bool,
    ) -> Table {
        let place = Place { descriptor: Some(Arc::new(top)), handle: None, seen_at: None };
        let known = Arc::new(Known::new(TOP_NUMBER, identity, Kind::Directory, place));
        Table {
            slots: FxHashMap::from_iter([(TOP_NUMBER, Slot { known, told: 1 })]),
            by_identity: FxHashMap::from_iter([(identity, TOP_NUMBER)]),
            with_descriptor: VecDeque::new(),
            descriptors: 0,
            descriptors_max,
            next_spare: FIRST_SPARE,
            finds_by_handle,
            shift: 0,
        }
    }

    /// Shifts the numbers of inodes that are known from now on, so that those of an earlier life mean nothing.
    pub fn shift(&mut self, shift: u64) {
        self.shift = shift;
        self.next_spare = FIRST_SPARE + shift % FIRST_SPARE;
    }

    /// The inode of a number.
    ///
    /// # Errors
    /// [`FsError::Stale`] if it is not known.
    pub fn get(&self, number: u64) -> Result<Arc<Known>> {
        self.slots.get(&number).map(|slot| Arc::clone(&slot.known)).ok_or(FsError::Stale)
    }

    /// The known inode with this identity.
    pub fn find(&self, identity: Identity) -> Option<Arc<Known>> {
        let number = self.by_identity.get(&identity)?;
        self.slots.get(number).map(|slot| Arc::clone(&slot.known))
    }

    /// Makes an inode known, or more so: the kernel is told of it once more.
    pub fn tell(
        &mut self,
        identity: Identity,
        kind: Kind,
        descriptor: OwnedFd,
        seen_at: Option<SeenAt>,
    ) -> Arc<Known> {
        if let Some(slot) = self.by_identity.get(&identity).and_then(|n| self.slots.get_mut(n)) {
            slot.told += 1;
            let known = Arc::clone(&slot.known);
            if seen_at.is_some() {
                known.see_at(seen_at);
            }
            self.adopt(&known, descriptor);
            return known;
        }
        let number = self.number_for(identity);
        let place = Place { descriptor: Some(Arc::new(descriptor)), handle: None, seen_at };
        let known = Arc::new(Known::new(number, identity, kind, place));
        self.slots.insert(number, Slot { known: Arc::clone(&known), told: 1 });
        self.by_identity.insert(identity, number);
        self.note_descriptor(number);
        known
    }

    /// Gives a known inode a descriptor, if it has none; the one that stands for it now.
    pub fn adopt(&mut self, known: &Known, descriptor: OwnedFd) -> Arc<OwnedFd> {
        let mut place = known.place.lock();
        if let Some(there) = &place.descriptor {
            return Arc::clone(there);
        }
        let descriptor = Arc::new(descriptor);
        place.descriptor = Some(Arc::clone(&descriptor));
        drop(place);
        self.note_descriptor(known.number);
        descriptor
    }

    /// The kernel forgets `count` of the times it was told of an inode.
    pub fn forget(&mut self, number: u64, count: u64) {
        if number == TOP_NUMBER {
            return;
        }
        if let Some(slot) = self.slots.get_mut(&number) {
            slot.told = slot.told.saturating_sub(count);
        }
        self.drop_if_unused(number);
    }

    /// Drops an inode that the kernel has forgotten and nobody has open.
    pub fn drop_if_unused(&mut self, number: u64) {
        let unused = |slot: &Slot| slot.told == 0 && !slot.known.opens.lock().has_handles();
        if number == TOP_NUMBER || !self.slots.get(&number).is_some_and(unused) {
            return;
        }
        if let Some(slot) = self.slots.remove(&number) {
            self.by_identity.remove(&slot.known.identity);
            if slot.known.place.lock().descriptor.is_some() {
                self.descriptors = self.descriptors.saturating_sub(1);
            }
        }
    }

    /// Known inodes, and descriptors that stand for them.
    pub fn usage(&self) -> (usize, usize) {
        (self.slots.len(), self.descriptors)
    }

    /// Whether any known inode is open.
    pub fn has_open_files(&self) -> bool {
        self.slots.values().any(|slot| slot.known.opens.lock().has_handles())
    }

    fn number_for(&mut self, identity: Identity) -> u64 {
        let own = shifted(identity.number, self.shift);
        if let Some(own) = own.filter(|own| !self.slots.contains_key(own)) {
            return own;
        }
        loop {
            let spare = self.next_spare;
            // Within the 48 bits of a number of a fileset; what comes round is taken, or free by then.
            self.next_spare = if spare + 1 == 1 << NUMBER_BITS { FIRST_SPARE } else { spare + 1 };
            if !self.slots.contains_key(&spare) {
                return spare;
            }
        }
    }

    fn note_descriptor(&mut self, number: u64) {
        self.descriptors += 1;
        self.with_descriptor.push_back(number);
        let mut looks = LOOKS;
        while self.descriptors > self.descriptors_max && looks > 0 {
            looks -= 1;
            let Some(number) = self.with_descriptor.pop_front() else { return };
            let Some(slot) = self.slots.get(&number) else { continue };
            if slot.known.is_used.swap(false, Ordering::Relaxed) {
                self.with_descriptor.push_back(number);
            } else if slot.known.close(self.finds_by_handle) {
                self.descriptors -= 1;
            } else if slot.known.place.lock().descriptor.is_some() {
                self.with_descriptor.push_back(number);
            }
        }
    }
}
