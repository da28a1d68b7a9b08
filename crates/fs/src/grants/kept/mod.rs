//! The client's side: what this node caches of one fileset of another node.
//!
//! All of it is in the daemon, bounded by [`COST_MAX`]. What was granted is used while the owner vouches for it; the word is
//! asked for when something is wanted that it has lapsed for.

mod asking;
mod delegated;
mod learning;
mod making;
mod references;
mod reporting;
mod setting;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use forebay_base::{Clock, Ino};
use forebay_cluster::Moment;
use forebay_cluster::grants::{Cache, GrantNumber, RecallNumber};
use forebay_cluster::time::Drift;
use forebay_disk::ObjectAttributes;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

pub(crate) use self::asking::OwnChange;
pub(crate) use self::making::MakeHere;
use self::references::References;
pub(crate) use self::reporting::{Lost, Report};
use super::heard::Heard;
use super::inode::{COST_OF_ONE, KeptInode, as_written};
use super::journal::Journal;
use super::names::{AllNames, Misses, NAMES_MAX};
use super::{Item, Traffic, settings};
use crate::attributes::{Attributes, KeepName};
use crate::ops::DirectoryItem;
use crate::record::{Kind, ObjectRef};
use crate::remote::changes::LossOf;
use crate::remote::{Lent, NearFiles, ReportBell};

/// Memory that all this may take for one fileset, as it is reckoned here, in bytes. Beyond it everything is forgotten.
const COST_MAX: usize = 64 << 20;
/// Size of the largest file whose content is kept, in bytes.
const BYTES_MAX: usize = 64 << 10;
/// How long an owner that does not vouch now is not asked again, and one that grants nothing at all.
const REFUSED_PAUSE: Duration = Duration::from_millis(500);
const NEVER_PAUSE: Duration = Duration::from_secs(10);

/// What a name leads to, as far as the kernel may keep it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// Nothing.
    Absent,
    /// An inode of this fileset.
    Here(Attributes),
    /// An inode of another one.
    Elsewhere(Ino),
}

/// What became of a look.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Looked<T> {
    /// It is kept, and may be used.
    Kept(T),
    /// It is kept, but nobody vouches for it now.
    Lapsed,
    /// It is not kept.
    Unknown,
}

/// What is kept of the content of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum KeptContent {
    /// All of it: it is small.
    Whole(Arc<[u8]>),
    /// Blocks that were read while the file had this size and stamp, as far as there are any.
    Blocks { size: u64, stamp: u64 },
}

#[derive(Default)]
struct State {
    cache: Cache,
    term: u64,
    heard: Heard,
    /// Before then the owner is not asked to vouch.
    rests_until: Moment,
    inodes: FxHashMap<Ino, KeptInode>,
    names: FxHashMap<Ino, FxHashMap<Box<[u8]>, Option<Ino>>>,
    cost: usize,
    misses: Misses,
    references: References,
    next_stamp: u64,
    /// What was changed here in directories that are delegated to this node.
    journal: Journal,
    /// What is lost of that, by what the directories and files are called.
    lost: BTreeMap<LossOf, String>,
}

/// What this node caches of a fileset of another node.
pub(crate) struct Kept {
    clock: Arc<dyn Clock>,
    drift: Drift,
    state: Mutex<State>,
    /// Some directory was delegated to this node.
    has_delegations: AtomicBool,
    /// Objects that are open here.
    near: Arc<NearFiles>,
    /// What the kernel may keep of all this.
    pub lent: Arc<Lent>,
    /// Held by whoever asks the owner to vouch.
    pub asking: Mutex<()>,
    traffic: Arc<Traffic>,
    /// Rung when there is something to report.
    bell: Arc<ReportBell>,
}

impl Kept {
    pub fn new(
        clock: &Arc<dyn Clock>,
        traffic: &Arc<Traffic>,
        near: &Arc<NearFiles>,
        (lent, bell): (&Arc<Lent>, &Arc<ReportBell>),
    ) -> Kept {
        // No other journal of this life of the node comes so far.
        let first = u64::try_from(clock.boottime().as_nanos()).unwrap_or(0);
        Kept {
            clock: Arc::clone(clock),
            drift: settings().clock_drift,
            state: Mutex::new(State { journal: Journal::from(first), ..State::default() }),
            has_delegations: AtomicBool::new(false),
            near: Arc::clone(near),
            lent: Arc::clone(lent),
            asking: Mutex::default(),
            traffic: Arc::clone(traffic),
            bell: Arc::clone(bell),
        }
    }

    fn now(&self) -> Moment {
        Moment(self.clock.boottime())
    }

    /// A request is sent to the owner. Returns the latest grant that it may say to know of.
    pub fn sending(&self) -> GrantNumber {
        self.traffic.called();
        self.state.lock().heard.at_sending()
    }

    // --- looking ---

    fn look<T>(
        &self,
        item: &Item,
        find: impl FnOnce(&mut State, Moment) -> Looked<T>,
    ) -> Looked<T> {
        let _look = self.lent.look();
        let mut state = self.state.lock();
        let now = self.now();
        let looked = match find(&mut state, now) {
            Looked::Kept(_) if !state.cache.may_use(item, now) => Looked::Lapsed,
            looked => looked,
        };
        if matches!(looked, Looked::Kept(_)) {
            self.traffic.hit();
        }
        looked
    }

    fn look_at_inode<T>(&self, ino: Ino, find: impl FnOnce(&KeptInode) -> Option<T>) -> Looked<T> {
        self.look(&Item::Attributes(ino), |state, _| {
            let found = state.inodes.get(&ino).and_then(find);
            found.map_or(Looked::Unknown, Looked::Kept)
        })
    }

    /// What a name leads to. The kernel is told of an inode of this fileset.
    pub fn name(&self, parent: Ino, name: &[u8]) -> Looked<Named> {
        let entry = Item::Entry(parent, name.into());
        let is_absent = self.look(&Item::Attributes(parent), |state, _| state.lacks(parent, name));
        if matches!(is_absent, Looked::Kept(())) {
            return Looked::Kept(Named::Absent);
        }
        self.look(&entry, |state, now| {
            let known = state.names.get(&parent).and_then(|names| names.get(name)).copied();
            let Some(leads_to) = known else { return Looked::Unknown };
            if !state.cache.may_use(&entry, now) {
                // Nothing is counted then.
                return Looked::Lapsed;
            }
            let until = state.cache.vouched_until();
            let Some(ino) = leads_to else {
                self.lent.lend_absence(&entry, until, now);
                return Looked::Kept(Named::Absent);
            };
            if ino.fileset() != parent.fileset() {
                return Looked::Kept(Named::Elsewhere(ino));
            }
            match state.told(ino, now, self) {
                Looked::Kept(attributes) => {
                    let is_lent = self.lent.lend(&entry, until, now);
                    let name = if is_lent { KeepName::AsSet } else { KeepName::Never };
                    Looked::Kept(Named::Here(Attributes { name, ..attributes }))
                }
                Looked::Lapsed => Looked::Lapsed,
                Looked::Unknown => Looked::Unknown,
            }
        })
    }

    /// Lends a name that leads into another fileset, if it is kept and may be used.
    pub fn lend_name(&self, parent: Ino, name: &[u8]) -> bool {
        let entry = Item::Entry(parent, name.into());
        let looked = self.look(&entry, |state, now| {
            let is_known = state.names.get(&parent).is_some_and(|names| names.contains_key(name));
            let may_use = is_known && state.cache.may_use(&entry, now);
            let until = state.cache.vouched_until();
            Looked::Kept(may_use && self.lent.lend(&entry, until, now))
        });
        looked == Looked::Kept(true)
    }

    /// Attributes, for a kernel that knows the inode.
    pub fn attributes(&self, ino: Ino) -> Looked<Attributes> {
        self.look(&Item::Attributes(ino), |state, now| {
            let found = state.attributes(ino, now, &self.near);
            if let Some(kept) = state.inodes.get_mut(&ino) {
                kept.is_told = true;
            }
            state.lend(found, now, &self.lent)
        })
    }

    /// As [`Kept::attributes`], of an inode that a name leads to. The kernel is told of it.
    pub fn told_attributes(&self, ino: Ino) -> Looked<Attributes> {
        self.look(&Item::Attributes(ino), |state, now| state.told(ino, now, self))
    }

    /// Opens a file by what was granted of it: `note` is told where its object lies, unless its content is kept, and no recall comes
    /// in between.
    pub fn open_granted<T>(
        &self,
        ino: Ino,
        note: impl FnOnce(Option<ObjectRef>) -> Option<T>,
    ) -> Looked<T> {
        self.look(&Item::Attributes(ino), |state, now| {
            let kept = state.inodes.get(&ino).filter(|kept| kept.attributes.is_some());
            let is_reached = |kept: &&KeptInode| kept.home.is_some() || kept.bytes.is_some();
            let Some(at) = kept.filter(is_reached).map(|kept| kept.home) else {
                return Looked::Unknown;
            };
            if !state.cache.may_use(&Item::Attributes(ino), now) {
                return Looked::Lapsed;
            }
            note(at).map_or(Looked::Unknown, Looked::Kept)
        })
    }

    /// The size of a file whose whole content is worth keeping, and what [`Kept::keep_bytes`] is to be told.
    pub fn wants_bytes(&self, ino: Ino) -> Option<(usize, u64)> {
        let state = self.state.lock();
        let kept = state.inodes.get(&ino)?;
        let size = usize::try_from(kept.attributes?.size).ok()?;
        let is_small = size > 0 && size <= BYTES_MAX && kept.bytes.is_none() && kept.own.is_none();
        let may_use = state.cache.may_use(&Item::Attributes(ino), self.now());
        (is_small && may_use).then_some((size, kept.stamp))
    }

    /// Keeps the content of a file that was read, unless anything of it was taken back since.
    pub fn keep_bytes(&self, ino: Ino, stamp: u64, bytes: &[u8]) {
        let mut state = self.state.lock();
        let is_same = |kept: &&KeptInode| kept.stamp == stamp && kept.bytes.is_none();
        let is_granted = state.cache.holds(&Item::Attributes(ino));
        if is_granted && state.inodes.get(&ino).filter(is_same).is_some() {
            state.keep(ino, bytes.len(), |kept| kept.bytes = Some(bytes.into()));
            state.bound();
        }
    }

    /// What is kept of the content of a file, or may be; of a larger one only if its bytes lie elsewhere (`is_far`).
    pub fn content(&self, ino: Ino, is_far: bool) -> Looked<KeptContent> {
        self.look_at_inode(ino, |kept| {
            if let Some(bytes) = &kept.bytes {
                return Some(KeptContent::Whole(Arc::clone(bytes)));
            }
            let attributes = kept.attributes.filter(|_| kept.own.is_none())?;
            let is_large = attributes.kind == Kind::File && attributes.size > BYTES_MAX as u64;
            let (size, stamp) = (attributes.size, kept.stamp);
            (is_far && is_large).then_some(KeptContent::Blocks { size, stamp })
        })
    }

    /// Whether nothing of a file was taken back since it had this stamp.
    pub fn has_content(&self, ino: Ino, stamp: u64) -> bool {
        let state = self.state.lock();
        let is_same = |kept: &&KeptInode| kept.stamp == stamp && kept.own.is_none();
        state.cache.holds(&Item::Attributes(ino))
            && state.inodes.get(&ino).filter(is_same).is_some()
    }

    /// A name was missing. Whether the directory is to be listed, so that nobody need ask for others.
    pub fn missed(&self, parent: Ino) -> bool {
        let mut state = self.state.lock();
        let attributes = state.inodes.get(&parent).and_then(|kept| kept.attributes);
        let is_small = attributes.is_some_and(|found| found.size <= NAMES_MAX as u64 / 4);
        is_small && state.misses.note(parent)
    }

    /// This node has written a file alone, and has closed it: it stays as it was `left`.
    pub fn written(&self, ino: Ino, left: Option<ObjectAttributes>) {
        let mut state = self.state.lock();
        let Some(kept) = state.inodes.get_mut(&ino) else { return };
        let Some(before) = kept.own.take() else { return };
        let written = |attributes| Some(as_written(attributes, before, left?));
        kept.attributes = kept.attributes.and_then(written);
    }

    /// What a name leads to, whether or not that may be used.
    pub fn leads_to(&self, parent: Ino, name: &[u8]) -> Option<Ino> {
        let state = self.state.lock();
        state.names.get(&parent)?.get(name).copied().flatten()
    }

    /// The value of an extended attribute; `None` if there is none.
    pub fn xattr(&self, ino: Ino, name: &[u8]) -> Looked<Option<Vec<u8>>> {
        self.look_at_inode(ino, |kept| kept.xattrs.values.get(name).cloned())
    }

    pub fn xattr_names(&self, ino: Ino) -> Looked<Vec<u8>> {
        self.look_at_inode(ino, |kept| kept.xattrs.names.clone())
    }

    pub fn link(&self, ino: Ino) -> Looked<Vec<u8>> {
        self.look_at_inode(ino, |kept| kept.link.clone())
    }

    pub fn listing(&self, ino: Ino) -> Looked<Arc<Vec<DirectoryItem>>> {
        self.look_at_inode(ino, |kept| kept.listing.clone())
    }

    // --- the owner's word ---

    /// Whether the owner is to be asked to vouch: somebody needs it, or nobody has asked yet.
    pub fn needs_word(&self) -> bool {
        let state = self.state.lock();
        let now = self.now();
        now >= state.cache.vouched_until() && now >= state.rests_until
    }

    /// Whether the owner vouches for what is kept.
    pub fn is_vouched(&self) -> bool {
        let state = self.state.lock();
        self.now() < state.cache.vouched_until()
    }

    /// The present moment, to be taken before the owner is asked.
    pub fn moment(&self) -> Moment {
        self.now()
    }

    /// The owner vouches for so long from `asked` on.
    pub fn vouched(&self, asked: Moment, word: Duration, term: u64) {
        let mut state = self.state.lock();
        if !state.is_of_term(term) {
            return;
        }
        if word.is_zero() {
            let pause = if term == 0 { NEVER_PAUSE } else { REFUSED_PAUSE };
            state.rests_until = self.now() + pause;
        } else {
            state.cache.vouched(asked + self.drift.at_least(word));
        }
    }

    /// The owner takes items back. They are not used here from now on, nor lent to the kernel; what is lent already is to be
    /// taken back ([`Lent::take_back`]) before the recall is answered.
    pub fn recalled(&self, recall: RecallNumber, items: Vec<Item>) {
        let mut state = self.state.lock();
        state.drop_values(&items);
        let _ = state.cache.recall(recall, items);
        let _ = state.cache.invalidated(recall);
    }

    /// Nothing that was granted counts any more.
    pub fn lose(&self) {
        self.state.lock().lose();
    }

    /// The kernel forgets `count` of the times it was told of an inode. Returns those that the owner is to forget; what is kept of
    /// the inode is given to the kernel again only if the owner holds the inode for this node.
    pub fn forget(&self, ino: Ino, count: u64) -> u64 {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let is_granted = state.cache.holds(&Item::Attributes(ino));
        let kept =
            state.inodes.get_mut(&ino).filter(|kept| is_granted && kept.attributes.is_some());
        let told = kept.map(|kept| {
            // The next answer about it makes the inode anew.
            kept.is_told = false;
            &mut kept.told
        });
        let forgotten = state.references.forget(ino, count, told);
        if !forgotten.stays {
            let item = [Item::Attributes(ino)];
            state.drop_values(&item);
            let _ = state.cache.forget(item);
        }
        forgotten.at_owner
    }

    /// Forgets what is kept of inodes that the kernel does not know.
    pub fn let_go_of_retained(&self) {
        let mut state = self.state.lock();
        let inodes = state.references.retained_alone();
        let items: Vec<Item> = inodes.into_iter().map(Item::Attributes).collect();
        state.drop_values(&items);
        let _ = state.cache.forget(items);
    }

    /// Inodes of which the owner is to forget one reference each.
    pub fn take_released(&self) -> Vec<Ino> {
        self.state.lock().references.take_released()
    }

    /// Whether there are such.
    pub fn has_released(&self) -> bool {
        self.state.lock().references.has_released()
    }
}

impl State {
    fn lose(&mut self) {
        self.cache.lost();
        self.heard.lose();
        let lost = self.journal.lose();
        self.note_lost(&lost);
        self.clear();
    }

    /// Whether an answer is of the present term; a later one ends it.
    fn is_of_term(&mut self, term: u64) -> bool {
        if term > self.term {
            self.lose();
            self.term = term;
        }
        term == self.term
    }

    fn attributes(&self, ino: Ino, now: Moment, near: &NearFiles) -> Looked<Attributes> {
        let shown = self.inodes.get(&ino).and_then(|kept| kept.shown(ino, near));
        let Some(attributes) = shown else {
            return Looked::Unknown;
        };
        let may_use = self.cache.may_use(&Item::Attributes(ino), now);
        if may_use { Looked::Kept(attributes) } else { Looked::Lapsed }
    }

    /// Attributes as the kernel is told them, which may keep them for a while.
    fn lend(&self, found: Looked<Attributes>, now: Moment, lent: &Lent) -> Looked<Attributes> {
        let Looked::Kept(found) = found else { return found };
        // A mapping changes a file that is written here without a word to the kernel.
        let is_written = self.inodes.get(&found.ino).is_some_and(|kept| kept.own.is_some());
        let item = Item::Attributes(found.ino);
        let may_lend = found.cacheable && !is_written;
        let cacheable = may_lend && lent.lend(&item, self.cache.vouched_until(), now);
        Looked::Kept(Attributes { cacheable, name: KeepName::Never, ..found })
    }

    /// As [`State::lend`], of an inode of which the kernel is told. It may keep the attributes if it knew the inode already.
    fn told(&mut self, ino: Ino, now: Moment, kept: &Kept) -> Looked<Attributes> {
        let found = self.attributes(ino, now, &kept.near);
        if !matches!(found, Looked::Kept(_)) {
            return found;
        }
        self.references.tell(ino);
        let was_told =
            self.inodes.get_mut(&ino).is_some_and(|it| std::mem::replace(&mut it.is_told, true));
        match found {
            Looked::Kept(found) if !was_told => {
                Looked::Kept(Attributes { cacheable: false, name: KeepName::Never, ..found })
            }
            found => self.lend(found, now, &kept.lent),
        }
    }

    /// Whether all names of a directory are known, and this is none of them.
    fn lacks(&mut self, parent: Ino, name: &[u8]) -> Looked<()> {
        let Some(kept) = self.inodes.get_mut(&parent) else { return Looked::Unknown };
        if kept.names.is_none()
            && let Some(listing) = &kept.listing
        {
            let all = AllNames::of(listing);
            kept.cost += all.cost();
            self.cost += all.cost();
            kept.names = Some(all);
        }
        let is_absent = kept.names.as_ref().is_some_and(|all| !all.contains(name));
        if is_absent { Looked::Kept(()) } else { Looked::Unknown }
    }

    fn drop_values(&mut self, items: &[Item]) {
        for item in items {
            match item {
                Item::Attributes(ino) => {
                    let gone = self.inodes.remove(ino);
                    self.cost = self.cost.saturating_sub(gone.map_or(0, |kept| kept.cost));
                    self.references.let_go(*ino);
                }
                Item::Entry(parent, name) => {
                    let Some(names) = self.names.get_mut(parent) else { continue };
                    if names.remove(name).is_some() {
                        self.cost = self.cost.saturating_sub(COST_OF_ONE + name.len());
                    }
                    if names.is_empty() {
                        self.names.remove(parent);
                    }
                }
                // What is kept because of it stays until all changes there are reported (`Kept::return_directories`).
                Item::Directory(_) => {}
            }
        }
    }

    /// Forgets everything if it takes too much memory.
    fn bound(&mut self) {
        if self.cost > COST_MAX {
            let held: Vec<Item> = self.inodes.keys().map(|ino| Item::Attributes(*ino)).collect();
            let _ = self.cache.forget(held);
            self.clear();
        }
    }

    fn clear(&mut self) {
        self.inodes.clear();
        self.names.clear();
        self.cost = 0;
        self.references.let_go_of_all();
    }

    fn keep_attributes(&mut self, attributes: Attributes, home: Option<ObjectRef>) {
        self.keep(attributes.ino, 0, |kept| {
            (kept.attributes, kept.home, kept.own) = (Some(attributes), home, None);
            if attributes.kind == Kind::Directory && attributes.size == 0 {
                // It is empty.
                kept.names.get_or_insert_default();
            }
        });
    }

    fn keep(&mut self, ino: Ino, cost: usize, put: impl FnOnce(&mut KeptInode)) {
        let is_new = !self.inodes.contains_key(&ino);
        let cost = cost + if is_new { COST_OF_ONE } else { 0 };
        let kept = self.inodes.entry(ino).or_default();
        if is_new {
            self.next_stamp += 1;
            kept.stamp = self.next_stamp;
        }
        put(kept);
        kept.cost += cost;
        self.cost += cost;
    }
}
