//! What all users of one remote disk share: the channel, what waits to be closed, and what a crash of the other machine
//! may have taken.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_base::channel::{CallError, Message};
use forebay_base::in_flight::{self, WaitsFor};
use forebay_base::{Channel, ObjectId};
use parking_lot::Mutex;

use super::wire::{Answer, Answered, Asked, Handle, Machine, Request, VERSION};
use crate::{DiskError, Result};

/// Handles that wait to be closed before a request of their own takes them along.
const CLOSING_MAX: usize = 64;
/// Objects that are remembered one by one as written and not synced; with more, all objects count as such.
const UNSYNCED_MAX: usize = 1 << 20;

/// What was written or published and not synced, by the life of the machine at that time.
#[derive(Default)]
struct Unsynced {
    /// Closed objects.
    objects: HashMap<ObjectId, Machine>,
    /// Objects that found no room in `objects`.
    others: Option<Machine>,
    /// Anything on the disk.
    anything: Option<Machine>,
}

/// Why there is no answer.
enum Unanswered {
    Evicted(String),
    Failed(DiskError),
}

/// The way to one disk of another node.
pub(super) struct Link {
    channel: Arc<dyn Channel>,
    /// Uuid of the disk.
    pub disk: String,
    /// Where it lies, for people.
    pub location: String,
    /// Both, for people.
    shown: Arc<str>,
    closing: Mutex<Vec<Handle>>,
    unsynced: Mutex<Unsynced>,
    /// The life of the machine that gave the latest answer.
    latest: Mutex<Option<Machine>>,
}

/// An answer: which life of the machine gave it, what it says, and bytes.
pub(super) struct Told {
    pub machine: Machine,
    pub answer: Answer,
    pub payload: Vec<u8>,
}

impl Link {
    pub fn new(channel: Arc<dyn Channel>, disk: &str, location: &str) -> Link {
        Link {
            channel,
            disk: disk.to_owned(),
            location: location.to_owned(),
            shown: format!("disk {disk} ({location})").into(),
            closing: Mutex::default(),
            unsynced: Mutex::default(),
            latest: Mutex::default(),
        }
    }

    /// The life of the machine in which the disk was asked last, if it was.
    pub fn machine(&self) -> Option<Machine> {
        *self.latest.lock()
    }

    /// Asks the node. [`Answer::Failed`] becomes the error that it holds. A node that has dropped this client knows none of
    /// its handles any more: [`Answer::NoHandle`] for a request that names one, and any other is sent once more.
    pub fn ask(&self, request: Request, payload: Vec<u8>) -> Result<Told> {
        let names_a_handle = request.names_a_handle();
        // What names no handle carries no bytes either.
        let again = (!names_a_handle).then(|| request.clone());
        match (self.ask_once(request, payload), again) {
            (Err(Unanswered::Evicted(_)), Some(request)) => self.ask_once(request, Vec::new()),
            (Err(Unanswered::Evicted(_)), None) => Ok(Told {
                machine: Machine::UNKNOWN,
                answer: Answer::NoHandle,
                payload: Vec::new(),
            }),
            (once, _) => once,
        }
        .map_err(|unanswered| match unanswered {
            Unanswered::Evicted(why) => self.away(&why),
            Unanswered::Failed(error) => error,
        })
    }

    fn ask_once(
        &self,
        request: Request,
        payload: Vec<u8>,
    ) -> std::result::Result<Told, Unanswered> {
        let closed = std::mem::take(&mut *self.closing.lock());
        let waits_for_others = request.waits_for_others();
        let asked = Asked { version: VERSION, disk: self.disk.clone(), closed, request };
        let head = postcard::to_stdvec(&asked).expect("requests hold only plain data");
        let _waits = in_flight::waits_for(|| WaitsFor::Disk(Arc::clone(&self.shown)));
        let message = Message { head, payload };
        let answered = match waits_for_others {
            true => self.channel.call(message),
            false => self.channel.release(message),
        };
        let message = match answered {
            Ok(message) => message,
            Err(CallError::Evicted(why)) => return Err(Unanswered::Evicted(why)),
            Err(CallError::Unreachable(why) | CallError::Unsent(why)) => {
                // Closing twice does no harm, and not closing keeps space.
                self.closing.lock().extend(asked.closed);
                return Err(Unanswered::Failed(self.away(&why)));
            }
            Err(CallError::Refused(why)) => {
                return Err(Unanswered::Failed(DiskError::Refused(why)));
            }
        };
        let Answered { machine, answer } =
            postcard::from_bytes(&message.head).map_err(|error| {
                Unanswered::Failed(self.confused(&format!("its answer cannot be read: {error}")))
            })?;
        if machine != Machine::UNKNOWN {
            *self.latest.lock() = Some(machine);
        }
        match answer {
            Answer::Failed(error) => Err(Unanswered::Failed(error)),
            answer => Ok(Told { machine, answer, payload: message.payload }),
        }
    }

    fn away(&self, why: &str) -> DiskError {
        DiskError::Away {
            disk: self.disk.clone(),
            location: self.location.clone(),
            why: why.to_owned(),
        }
    }

    /// The node said something that does not answer the request.
    pub fn confused(&self, what: &str) -> DiskError {
        DiskError::Io(format!("disk {} ({}): {what}", self.disk, self.location))
    }

    pub fn unexpected(&self, answer: &Answer) -> DiskError {
        self.confused(&format!("its node answered {answer:?} to another question"))
    }

    /// Closes a handle with one of the next requests.
    pub fn close(&self, handle: Handle) {
        if handle == Handle::NONE {
            return;
        }
        let mut closing = self.closing.lock();
        closing.push(handle);
        let many = closing.len() >= CLOSING_MAX;
        drop(closing);
        if many {
            // What could not be closed now waits for the next request.
            let _ = self.ask(Request::Close, Vec::new());
        }
    }

    // --- what a crash of the other machine may have taken ---

    /// Something on the disk was changed in this life of the machine.
    pub fn changed(&self, machine: Machine) {
        self.unsynced.lock().anything.get_or_insert(machine);
    }

    /// An object was closed whose bytes were not synced since they were written.
    pub fn closed_unsynced(&self, id: ObjectId, machine: Machine) {
        let mut unsynced = self.unsynced.lock();
        if unsynced.objects.len() < UNSYNCED_MAX || unsynced.objects.contains_key(&id) {
            unsynced.objects.entry(id).or_insert(machine);
        } else {
            unsynced.others.get_or_insert(machine);
        }
    }

    /// The life of the machine in which a closed object was written and not synced.
    pub fn unsynced_since(&self, id: ObjectId) -> Option<Machine> {
        let unsynced = self.unsynced.lock();
        unsynced.objects.get(&id).copied().or(unsynced.others)
    }

    /// An object was synced or removed: nothing of it can be lost any more.
    pub fn settled(&self, id: ObjectId) {
        self.unsynced.lock().objects.remove(&id);
    }

    /// Syncs the whole disk. Fails if the machine died since something was changed that no sync covered.
    pub fn sync(&self) -> Result<()> {
        let before = std::mem::take(&mut *self.unsynced.lock());
        let told = match self.ask(Request::Sync, Vec::new()) {
            Ok(told) => told,
            Err(error) => {
                self.put_back(before);
                return Err(error);
            }
        };
        match before.anything {
            Some(machine) if machine != told.machine => {
                // Each object says so once more when it is synced by itself.
                let objects = Unsynced { anything: None, ..before };
                self.put_back(objects);
                Err(self.confused("its machine was restarted, and unsynced data may be lost"))
            }
            _ => Ok(()),
        }
    }

    fn put_back(&self, before: Unsynced) {
        let mut unsynced = self.unsynced.lock();
        for (id, machine) in before.objects {
            unsynced.objects.insert(id, machine);
        }
        unsynced.others = before.others.or(unsynced.others);
        unsynced.anything = before.anything.or(unsynced.anything);
    }
}
