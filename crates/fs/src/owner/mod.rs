//! Who answers for each fileset: the table that every request goes by.
//!
//! It is replaced as a whole when a fileset is opened, comes or goes: a request takes no lock and allocates nothing on
//! its way to its owner.

use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use forebay_base::{FilesetId, Ino};
use parking_lot::Mutex;

use crate::grants::Changing;
use crate::native::NativeOwner;
use crate::partition::Partition;
use crate::record::ObjectRef;
use crate::remote::RemoteOwner;

mod operations;

pub(crate) use operations::{At, Source, Visit};

/// Who answers for a fileset.
#[derive(Clone)]
pub enum Owner {
    /// A partition of this process.
    Local(Arc<Partition>),
    /// A directory of a local disk, served.
    Native(Arc<NativeOwner>),
    /// Another node.
    Remote(Arc<RemoteOwner>),
}

/// A file whose bytes lie in an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InArchive {
    pub ino: Ino,
    /// Its object there.
    pub at: ObjectRef,
    /// Its bytes, as its record says; none of a file of a snapshot.
    pub size: Option<u64>,
}

/// How long [`Owners::drain`] rests between looks.
const DRAIN_PAUSE: Duration = Duration::from_micros(200);

/// The owners by the number of their fileset; none for one that is not open.
type Table = Vec<Option<Owner>>;

/// All owners, and earlier tables by which requests may still be on their way.
#[derive(Default)]
pub(crate) struct Owners(ArcSwap<Table>, Mutex<Vec<Weak<Table>>>);

/// The owner that a request goes to; it stays reachable until this is dropped.
pub(crate) struct Route {
    table: Guard<Arc<Table>>,
    fileset: FilesetId,
}

fn at(table: &Table, fileset: FilesetId) -> Option<&Owner> {
    table.get(usize::from(fileset.0))?.as_ref()
}

impl Deref for Route {
    type Target = Owner;

    fn deref(&self) -> &Owner {
        at(&self.table, self.fileset).expect("a route leads to an owner")
    }
}

impl Owner {
    /// The partition that a change must wait at for recalls, unless it has done so.
    pub(crate) fn waits_for_recalls(&self, changing: Option<&Changing>) -> Option<Arc<Partition>> {
        let Owner::Local(partition) = self else { return None };
        let granting = partition.granting()?;
        let has_waited = changing.is_some_and(|changing| changing.is_at(granting));
        (granting.is_on() && !has_waited).then(|| Arc::clone(partition))
    }
}

impl Owners {
    /// The way to the owner of a fileset, if it has one.
    pub fn find(&self, fileset: FilesetId) -> Option<Route> {
        let table = self.0.load();
        at(&table, fileset)?;
        Some(Route { table, fileset })
    }

    /// Has the requests of a fileset go to `owner` from now on, or to nobody.
    pub fn set(&self, fileset: FilesetId, owner: Option<&Owner>) {
        self.replace(|table| {
            let place = usize::from(fileset.0);
            let mut table = Table::clone(table);
            if table.len() <= place {
                table.resize(place + 1, None);
            }
            table[place] = owner.cloned();
            table
        });
    }

    fn replace(&self, change: impl Fn(&Table) -> Table) {
        let mut earlier = self.1.lock();
        let before = self.0.rcu(|table| change(table));
        earlier.retain(|table| table.strong_count() > 0);
        earlier.push(Arc::downgrade(&before));
    }

    /// Waits until every request has ended that was on its way to an owner. Nothing that goes on for long may hold a
    /// [`Route`] meanwhile: calls to other nodes and waiting at a gate do not.
    pub fn drain(&self) {
        let earlier = self.earlier_tables();
        while earlier.iter().any(|table| table.strong_count() > 0) {
            std::thread::sleep(DRAIN_PAUSE);
        }
    }

    /// As [`Owners::drain`], but for about so long at most. Whether all those requests have ended.
    pub fn drain_within(&self, limit: Duration) -> bool {
        let earlier = self.earlier_tables();
        let mut waited = Duration::ZERO;
        while earlier.iter().any(|table| table.strong_count() > 0) {
            if waited >= limit {
                return false;
            }
            std::thread::sleep(DRAIN_PAUSE);
            waited += DRAIN_PAUSE;
        }
        true
    }

    /// The tables by which requests found their way that are under way.
    fn earlier_tables(&self) -> Vec<Weak<Table>> {
        // Each route holds the table by which it was found, and so do others that look: those end at once.
        self.replace(Table::clone);
        self.1.lock().clone()
    }

    /// The filesets of another node, with the owner of each.
    pub fn remote(&self) -> Vec<Arc<RemoteOwner>> {
        let remote = |owner: &Option<Owner>| match owner {
            Some(Owner::Remote(remote)) => Some(Arc::clone(remote)),
            Some(Owner::Local(_) | Owner::Native(_)) | None => None,
        };
        self.0.load().iter().filter_map(remote).collect()
    }

    /// The partitions of this process, in order of their numbers.
    pub fn partitions(&self) -> Vec<Arc<Partition>> {
        let local = |owner: &Option<Owner>| match owner {
            Some(Owner::Local(partition)) => Some(Arc::clone(partition)),
            Some(Owner::Native(_) | Owner::Remote(_)) | None => None,
        };
        self.0.load().iter().filter_map(local).collect()
    }

    /// The native filesets that are served by this process.
    pub fn native(&self) -> Vec<Arc<NativeOwner>> {
        let native = |owner: &Option<Owner>| match owner {
            Some(Owner::Native(native)) => Some(Arc::clone(native)),
            Some(Owner::Local(_) | Owner::Remote(_)) | None => None,
        };
        self.0.load().iter().filter_map(native).collect()
    }

    /// Forgets all owners.
    pub fn clear(&self) {
        self.replace(|_| Table::default());
    }
}
