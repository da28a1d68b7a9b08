//! Requests in flight: what each thread that carries one out is doing, since when, and what it waits for.
//!
//! A thread notes its request in a slot of its own: a few stores, no lock and no call of the system. Only where it waits
//! anyway it also says what for, under a lock of the slot. Whoever lists the requests leaves out a slot that changes at that very
//! moment. Slots belong to the process, and disappear with their threads.

use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::{FilesetId, Ino, NodeId};

/// Who made a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// A process of this machine, by its number (a thread's, as the kernel says).
    Process(u32),
    /// Another node.
    Node(NodeId),
}

/// What a request waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// An answer of another node.
    Node(NodeId),
    /// A node that gives back what it caches of the file or directory.
    Recall(NodeId),
    /// A report of another node of what it has done in a directory that is delegated to it.
    Report(NodeId, Ino),
    /// A node that owns the fileset.
    Owner(FilesetId),
    /// The lease of this node, which is renewed with etcd.
    Lease,
    /// The fileset is being opened here, or handed over.
    Handover,
    /// A lock that another program holds.
    Lock,
    /// A commit of the fileset to its store.
    Commit,
    /// Space on a disk.
    Space,
    /// A disk of another node; the text names both.
    Disk(Arc<str>),
    /// A recall from an archive; the text says how far it is.
    Archive(Arc<str>),
}

/// A request that a thread begins to carry out.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Its name.
    pub operation: &'static &'static str,
    /// The file or directory that it names.
    pub ino: Ino,
    /// Who made it.
    pub asker: Asker,
    /// When it arrived.
    pub arrived: Instant,
}

/// A request in flight.
#[derive(Clone, Debug)]
pub struct InFlight {
    /// Its name.
    pub operation: &'static str,
    /// The file or directory that it names.
    pub ino: Ino,
    /// Who made it.
    pub asker: Asker,
    /// How long ago it arrived.
    pub age: Duration,
    /// What it waits for; none if it is being carried out.
    pub waits_for: Option<WaitsFor>,
}

/// What one thread is doing.
#[derive(Debug, Default)]
struct Slot {
    /// Odd while the fields below change.
    version: AtomicU64,
    /// When the request arrived, in nanoseconds since the first of this process, plus 1; 0 if there is none.
    arrived: AtomicU64,
    /// Points to its name, which lives as long as the program.
    operation: AtomicPtr<&'static str>,
    ino: AtomicU64,
    /// A process or a node.
    asker: AtomicU32,
    /// 1 for a node.
    is_node: AtomicU32,
    waits_for: Mutex<Option<WaitsFor>>,
}

#[derive(Clone, Copy)]
struct Fields {
    arrived: u64,
    operation: *mut &'static str,
    ino: u64,
    asker: u32,
    is_node: u32,
}

impl Slot {
    fn read(&self) -> Fields {
        Fields {
            arrived: self.arrived.load(Ordering::Relaxed),
            operation: self.operation.load(Ordering::Relaxed),
            ino: self.ino.load(Ordering::Relaxed),
            asker: self.asker.load(Ordering::Relaxed),
            is_node: self.is_node.load(Ordering::Relaxed),
        }
    }

    /// Only the slot's own thread writes.
    fn write(&self, fields: Fields) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.arrived.store(fields.arrived, Ordering::Relaxed);
        self.operation.store(fields.operation, Ordering::Relaxed);
        self.ino.store(fields.ino, Ordering::Relaxed);
        self.asker.store(fields.asker, Ordering::Relaxed);
        self.is_node.store(fields.is_node, Ordering::Relaxed);
        self.version.store(version + 2, Ordering::Release);
    }

    /// The request as another thread sees it; none if there is none, or it changes just now.
    fn look(&self, now: u64) -> Option<InFlight> {
        let version = self.version.load(Ordering::Acquire);
        let fields = self.read();
        let waits_for = self.waits_for.lock().unwrap_or_else(PoisonError::into_inner).clone();
        fence(Ordering::Acquire);
        if version % 2 == 1 || self.version.load(Ordering::Relaxed) != version {
            return None;
        }
        let arrived = fields.arrived.checked_sub(1)?;
        let asker = match fields.is_node {
            0 => Asker::Process(fields.asker),
            _ => Asker::Node(NodeId(fields.asker)),
        };
        // SAFETY: only references that live as long as the program are ever stored, and a slot with a request has one.
        let operation = unsafe { fields.operation.as_ref() }?;
        Some(InFlight {
            operation,
            ino: Ino(fields.ino),
            asker,
            age: Duration::from_nanos(now.saturating_sub(arrived)),
            waits_for,
        })
    }
}

/// Slots of all threads.
static SLOTS: Mutex<Vec<Weak<Slot>>> = Mutex::new(Vec::new());

thread_local! {
    static SLOT: Arc<Slot> = {
        let slot = Arc::<Slot>::default();
        let mut slots = SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
        slots.retain(|slot| slot.strong_count() > 0);
        slots.push(Arc::downgrade(&slot));
        slot
    };
    /// Whether this thread has said what it waits for.
    static WAITS: Cell<bool> = const { Cell::new(false) };
}

fn nanoseconds(at: Instant) -> u64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    let first = *FIRST.get_or_init(|| at);
    u64::try_from(at.saturating_duration_since(first).as_nanos()).unwrap_or(u64::MAX - 1)
}

/// A request is in flight until this is dropped, by the thread that began it.
#[must_use]
pub struct Begun {
    before: Fields,
}

/// This thread carries out a request. One that it carried out already is continued afterwards.
pub fn begin(request: Request) -> Begun {
    let (asker, is_node) = match request.asker {
        Asker::Process(process) => (process, 0),
        Asker::Node(node) => (node.0, 1),
    };
    let fields = Fields {
        arrived: nanoseconds(request.arrived) + 1,
        operation: std::ptr::from_ref(request.operation).cast_mut(),
        ino: request.ino.0,
        asker,
        is_node,
    };
    let before = SLOT.with(|slot| {
        let before = slot.read();
        slot.write(fields);
        before
    });
    Begun { before }
}

impl Drop for Begun {
    fn drop(&mut self) {
        // A thread that ends has no slot any more.
        let _ = SLOT.try_with(|slot| slot.write(self.before));
    }
}

/// Who made the request that this thread carries out, if it carries one out.
#[must_use]
pub fn asker() -> Option<Asker> {
    let fields = SLOT.try_with(|slot| slot.read()).ok().filter(|fields| fields.arrived != 0)?;
    Some(match fields.is_node {
        0 => Asker::Process(fields.asker),
        _ => Asker::Node(NodeId(fields.asker)),
    })
}

/// A wait that was noted, until this is dropped.
#[must_use]
pub struct Waiting {
    noted: bool,
}

/// The request of this thread waits for something. Of waits within each other the outermost is shown, as it is what the request
/// is about.
pub fn waits_for(what: impl FnOnce() -> WaitsFor) -> Waiting {
    let is_in_flight = SLOT.try_with(|slot| slot.arrived.load(Ordering::Relaxed) != 0);
    if is_in_flight != Ok(true) || WAITS.replace(true) {
        return Waiting { noted: false };
    }
    set(Some(what()));
    Waiting { noted: true }
}

fn set(waits_for: Option<WaitsFor>) {
    let _ = SLOT.try_with(|slot| {
        *slot.waits_for.lock().unwrap_or_else(PoisonError::into_inner) = waits_for;
    });
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.noted {
            set(None);
            WAITS.set(false);
        }
    }
}

/// Requests that arrived at least `min` before `now`, the oldest first.
#[must_use]
pub fn list(now: Instant, min: Duration) -> Vec<InFlight> {
    let now = nanoseconds(now);
    let slots: Vec<Arc<Slot>> = {
        let slots = SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
        slots.iter().filter_map(Weak::upgrade).collect()
    };
    let mut found: Vec<InFlight> = slots.iter().filter_map(|slot| slot.look(now)).collect();
    found.retain(|request| request.age >= min);
    found.sort_by_key(|request| std::cmp::Reverse(request.age));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Clock as _;
    use crate::time::SystemClock;

    fn of(ino: u64) -> Option<InFlight> {
        list(SystemClock.instant(), Duration::ZERO).into_iter().find(|it| it.ino == Ino(ino))
    }

    fn request(operation: &'static &'static str, ino: u64) -> Request {
        let arrived = SystemClock.instant();
        Request { operation, ino: Ino(ino), asker: Asker::Process(7), arrived }
    }

    #[test]
    fn a_request_is_listed_with_its_wait_until_it_ends() {
        assert!(of(71).is_none());
        assert_eq!(asker(), None);
        let begun = begin(request(&"read", 71));
        assert_eq!(asker(), Some(Asker::Process(7)));
        let found = of(71).unwrap();
        assert_eq!((found.operation, found.asker), ("read", Asker::Process(7)));
        assert_eq!(found.waits_for, None);
        let lock = waits_for(|| WaitsFor::Lock);
        let node = waits_for(|| WaitsFor::Node(NodeId(3)));
        assert_eq!(of(71).unwrap().waits_for, Some(WaitsFor::Lock));
        drop(node);
        assert_eq!(of(71).unwrap().waits_for, Some(WaitsFor::Lock));
        drop(lock);
        assert_eq!(of(71).unwrap().waits_for, None);
        drop(begun);
        assert!(of(71).is_none());
    }

    #[test]
    fn a_request_within_another_is_listed_in_its_place() {
        let outer = begin(request(&"copy_file_range", 72));
        let inner = begin(request(&"read", 73));
        assert!(of(72).is_none() && of(73).is_some());
        drop(inner);
        assert!(of(72).is_some() && of(73).is_none());
        drop(outer);
    }

    #[test]
    fn a_thread_without_a_request_notes_no_wait() {
        let waiting = waits_for(|| unreachable!("nobody asks what it waits for"));
        drop(waiting);
    }

    #[test]
    fn requests_of_all_threads_are_listed_the_oldest_first() {
        std::thread::scope(|scope| {
            // Dropped at the end, which ends the requests.
            let mut ends = Vec::new();
            for ino in [74, 75] {
                let (tell, told) = std::sync::mpsc::channel();
                let (end, ended) = std::sync::mpsc::channel::<()>();
                ends.push(end);
                scope.spawn(move || {
                    let _begun = begin(request(&"lookup", ino));
                    tell.send(()).unwrap();
                    let _ = ended.recv();
                });
                told.recv().unwrap();
            }
            let all = list(SystemClock.instant(), Duration::ZERO);
            let inos: Vec<u64> = all.iter().map(|it| it.ino.0).collect();
            let place = |ino| inos.iter().position(|it| *it == ino).unwrap();
            assert!(place(74) < place(75), "{inos:?}");
            let later = SystemClock.instant() + Duration::from_secs(9);
            assert!(list(later, Duration::from_secs(1)).len() >= 2);
            assert!(list(SystemClock.instant(), Duration::from_secs(100)).is_empty());
        });
    }
}
