//! The side that has the disks: carries out what other nodes ask of them.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_base::channel::{CallError, Message, Service};
use forebay_base::{ClientId, FilesetId, ObjectId};
use parking_lot::{Condvar, Mutex};

use super::wire::{
    Answer, Answered, Asked, Handle, Life, Machine, ObjectRequest, Request, TRANSFER_MAX, VERSION,
};
use crate::{Disk, DiskError, Object, Result};

/// Objects that one client may have open on all disks together, unless the node's settings say otherwise.
pub const HANDLES_MAX: usize = 65_536;

/// Numbers of objects in one answer to a list.
const LISTED_MAX: usize = TRANSFER_MAX / size_of::<u64>();

/// How long a request waits for a disk that is not offered: the daemon of a node answers before it has opened its disks.
const OFFER_PATIENCE: Duration = Duration::from_secs(5);

/// The disks of a service.
#[derive(Default)]
struct Disks {
    offered: HashMap<String, Arc<dyn Disk>>,
    withdrawn: HashSet<String>,
}

impl Disks {
    /// Whether a disk may be offered soon.
    fn may_come(&self, uuid: &str) -> bool {
        !self.offered.contains_key(uuid) && !self.withdrawn.contains(uuid)
    }
}

/// Objects that one client has open.
#[derive(Default)]
struct Handles {
    open: HashMap<Handle, Arc<dyn Object>>,
    /// Those among them that were made here and published since.
    published: HashMap<Handle, ObjectId>,
}

/// Finds a disk of another node by its uuid.
type Elsewhere = dyn Fn(&str) -> Option<Arc<dyn Disk>> + Send + Sync;

/// Answers requests for the disks of this node.
pub struct DiskService {
    machine: Machine,
    life: Life,
    /// Number of the newest handle.
    last: AtomicU64,
    handles_max: usize,
    disks: Mutex<Disks>,
    /// Notified when a disk is offered.
    news: Condvar,
    clients: Mutex<HashMap<ClientId, Handles>>,
    elsewhere: OnceLock<Box<Elsewhere>>,
}

/// Answer and payload of one request.
type Outcome = Result<(Answer, Vec<u8>)>;

fn just(answer: Answer) -> Outcome {
    Ok((answer, Vec::new()))
}

impl DiskService {
    /// A service without disks on `machine`, in a life of its own; a client may have `handles_max` objects open.
    #[must_use]
    pub fn new(machine: Machine, life: Life, handles_max: usize) -> DiskService {
        DiskService {
            machine,
            life,
            last: AtomicU64::new(0),
            handles_max,
            disks: Mutex::default(),
            news: Condvar::new(),
            clients: Mutex::default(),
            elsewhere: OnceLock::new(),
        }
    }

    /// From now on objects of other nodes' disks, which `find` finds, can be fetched to disks of this one.
    pub fn reach_others(
        &self,
        find: impl Fn(&str) -> Option<Arc<dyn Disk>> + Send + Sync + 'static,
    ) {
        let _ = self.elsewhere.set(Box::new(find));
    }

    /// Copies bytes of an object of any disk to the same place of an object of this node.
    fn fetch(
        &self,
        target: &dyn Object,
        disk: &str,
        id: ObjectId,
        range: (u64, u64),
    ) -> Result<u64> {
        let own = self.disks.lock().offered.get(disk).map(Arc::clone);
        let found = own.or_else(|| self.elsewhere.get().and_then(|find| find(disk)));
        let source = found.ok_or(DiskError::Unsupported)?.open(id)?;
        let (offset, length) = range;
        let mut buffer = vec![0; TRANSFER_MAX];
        let mut copied = 0;
        while copied < length {
            let part =
                usize::try_from(length - copied).map_or(TRANSFER_MAX, |l| l.min(TRANSFER_MAX));
            let at = offset.checked_add(copied).ok_or(DiskError::TooLarge)?;
            let read = source.read_at(at, &mut buffer[..part])?;
            let mut written = 0;
            while written < read {
                match target.write_at(at + written as u64, &buffer[written..read])? {
                    0 => return Err(DiskError::Full),
                    more => written += more,
                }
            }
            copied += read as u64;
            if read == 0 {
                break;
            }
        }
        Ok(copied)
    }

    /// Offers a disk by its uuid, or one that takes the place of an earlier one.
    pub fn offer(&self, uuid: &str, disk: Arc<dyn Disk>) {
        let mut disks = self.disks.lock();
        disks.withdrawn.remove(uuid);
        disks.offered.insert(uuid.to_owned(), disk);
        self.news.notify_all();
    }

    /// Stops offering a disk. Objects that are open stay so.
    pub fn withdraw(&self, uuid: &str) {
        let mut disks = self.disks.lock();
        disks.offered.remove(uuid);
        disks.withdrawn.insert(uuid.to_owned());
        self.news.notify_all();
    }

    /// Objects that other nodes have open, over all clients.
    #[must_use]
    pub fn open_objects(&self) -> usize {
        self.clients.lock().values().map(|handles| handles.open.len()).sum()
    }

    fn disk(&self, uuid: &str) -> Result<Arc<dyn Disk>> {
        let mut disks = self.disks.lock();
        let _ = self.news.wait_while_for(&mut disks, |disks| disks.may_come(uuid), OFFER_PATIENCE);
        let found = disks.offered.get(uuid).map(Arc::clone);
        found.ok_or_else(|| DiskError::Absent(format!("this node has no disk {uuid}")))
    }

    /// The life of the machine, and of a disk in it.
    fn machine_of(&self, disk: &dyn Disk) -> Machine {
        Machine(self.machine.0 ^ u128::from(disk.life()) << 64)
    }

    /// Answers a request, and says in which life of its disk it did so.
    fn answer(&self, client: ClientId, asked: Asked, payload: &[u8]) -> (Machine, Outcome) {
        if matches!(asked.request, Request::Close) {
            return (Machine::UNKNOWN, just(Answer::Done));
        }
        match self.disk(&asked.disk) {
            Ok(disk) => {
                // Before the request is carried out: a disk that takes this one's place meanwhile knows nothing of it.
                let machine = self.machine_of(&*disk);
                (machine, self.carry_out(client, &*disk, asked.request, payload))
            }
            Err(error) => (Machine::UNKNOWN, Err(error)),
        }
    }

    fn keep(&self, client: ClientId, object: Arc<dyn Object>) -> Outcome {
        let mut clients = self.clients.lock();
        let handles = clients.entry(client).or_default();
        if handles.open.len() >= self.handles_max {
            let why = format!("node {} has {} objects open here", client.node, self.handles_max);
            return Err(DiskError::TooManyFiles(why));
        }
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let handle = Handle { life: self.life, number };
        handles.open.insert(handle, object);
        just(Answer::Handle(handle))
    }

    fn opened(&self, client: ClientId, handle: Handle) -> Option<Arc<dyn Object>> {
        self.clients.lock().get(&client)?.open.get(&handle).map(Arc::clone)
    }

    fn close(&self, client: ClientId, closed: &[Handle]) {
        if closed.is_empty() {
            return;
        }
        // Dropped outside the lock: the last handle of an object frees its space.
        let _objects: Vec<_> = {
            let mut clients = self.clients.lock();
            let Some(handles) = clients.get_mut(&client) else { return };
            let mut close = |handle: &Handle| {
                handles.published.remove(handle);
                handles.open.remove(handle)
            };
            closed.iter().filter_map(&mut close).collect()
        };
    }

    fn carry_out(
        &self,
        client: ClientId,
        disk: &dyn Disk,
        request: Request,
        payload: &[u8],
    ) -> Outcome {
        match request {
            Request::Close => just(Answer::Done),
            Request::CreateFresh => self.keep(client, disk.create_fresh()?),
            Request::CreateNamed(id) => match disk.create_named(id) {
                // Numbers are never used twice: it was made by a request whose answer was lost.
                Err(DiskError::Exists(_)) => self.keep(client, disk.open(id)?),
                made => self.keep(client, made?),
            },
            Request::Open(id) => self.keep(client, disk.open(id)?),
            Request::Publish { id, handle } => self.publish(client, disk, id, handle),
            Request::Remove(id) => disk.remove(id).and_then(|()| just(Answer::Done)),
            Request::RemoveAll(ids) => just(Answer::Kept(disk.remove_all(&ids))),
            Request::Attributes(id) => just(Answer::Attributes(disk.attributes(id)?)),
            Request::List { fileset, after } => Ok((Answer::Done, list(disk, fileset, after)?)),
            Request::Sync => disk.sync().and_then(|()| just(Answer::Done)),
            Request::Capacity => just(Answer::Capacity(disk.capacity()?)),
            Request::KeepReserve(bytes) => just(Answer::Number(disk.keep_reserve(bytes)?)),
            Request::GiveReserve(bytes) => just(Answer::Number(disk.give_reserve(bytes))),
            Request::Describe => just(Answer::Description(disk.describe())),
            Request::Object { handle, what } => self.object(client, handle, &what, payload),
        }
    }

    /// Publishes an object. One that was published already, by a request whose answer was lost, is left as it is.
    fn publish(&self, client: ClientId, disk: &dyn Disk, id: ObjectId, handle: Handle) -> Outcome {
        let Some(object) = self.opened(client, handle) else { return just(Answer::NoHandle) };
        let published = |handles: &mut Handles| handles.published.get(&handle) == Some(&id);
        if self.clients.lock().get_mut(&client).is_some_and(published) {
            return just(Answer::Done);
        }
        object.number(id);
        disk.publish(id, &*object)?;
        if let Some(handles) = self.clients.lock().get_mut(&client) {
            handles.published.insert(handle, id);
        }
        just(Answer::Done)
    }

    fn object(
        &self,
        client: ClientId,
        handle: Handle,
        what: &ObjectRequest,
        payload: &[u8],
    ) -> Outcome {
        let Some(object) = self.opened(client, handle) else { return just(Answer::NoHandle) };
        match *what {
            ObjectRequest::Read { offset, length } => {
                let length = usize::try_from(length).map_or(TRANSFER_MAX, |l| l.min(TRANSFER_MAX));
                let mut bytes = vec![0; length];
                let read = object.read_at(offset, &mut bytes)?;
                bytes.truncate(read);
                Ok((Answer::Done, bytes))
            }
            ObjectRequest::Write { offset } => {
                just(Answer::Number(object.write_at(offset, payload)? as u64))
            }
            ObjectRequest::Append => just(Answer::Number(object.append(payload)? as u64)),
            ObjectRequest::SetSize(size) => object.set_size(size).and_then(|()| just(Answer::Done)),
            ObjectRequest::Allocate { what, offset, length } => {
                object.allocate(what, offset, length).and_then(|()| just(Answer::Done))
            }
            ObjectRequest::Seek { target, offset } => {
                just(Answer::Number(object.seek(target, offset)?))
            }
            ObjectRequest::CopyFrom { source, source_offset, offset, length } => {
                let Some(source) = self.opened(client, source) else {
                    return just(Answer::NoHandle);
                };
                just(Answer::Number(object.copy_from(&*source, source_offset, offset, length)?))
            }
            ObjectRequest::Fetch { ref disk, source, offset, length } => {
                just(Answer::Number(self.fetch(&*object, disk, source, (offset, length))?))
            }
            ObjectRequest::Sync(what) => object.sync(what).and_then(|()| just(Answer::Done)),
            ObjectRequest::Attributes => just(Answer::Attributes(Some(object.attributes()?))),
            ObjectRequest::HasOtherWriters => {
                just(Answer::OtherWriters(object.has_other_writers()))
            }
            ObjectRequest::SetModified(modified) => {
                object.set_modified(modified).and_then(|()| just(Answer::Done))
            }
        }
    }
}

/// The lowest numbers above `after`, as many as an answer holds.
fn list(disk: &dyn Disk, fileset: Option<FilesetId>, after: Option<ObjectId>) -> Result<Vec<u8>> {
    let mut lowest = std::collections::BinaryHeap::new();
    let mut visit = |id: ObjectId| {
        if after.is_none_or(|after| id > after) {
            lowest.push(id);
            if lowest.len() > LISTED_MAX {
                lowest.pop();
            }
        }
        true
    };
    match fileset {
        Some(fileset) => disk.list_of(fileset, &mut visit)?,
        None => disk.list(&mut visit)?,
    }
    Ok(lowest.into_sorted_vec().into_iter().flat_map(|id| id.0.to_le_bytes()).collect())
}

impl Service for DiskService {
    fn serve(&self, from: ClientId, request: Message) -> std::result::Result<Message, CallError> {
        let asked: Asked = postcard::from_bytes(&request.head).map_err(|error| {
            CallError::Refused(format!("a request for a disk cannot be read: {error}"))
        })?;
        if asked.version != VERSION {
            return Err(CallError::Refused(format!(
                "requests for disks have version {VERSION} here, not {}: run the same version of forebay on all nodes",
                asked.version
            )));
        }
        self.close(from, &asked.closed);
        let (machine, outcome) = self.answer(from, asked, &request.payload);
        let (answer, payload) = outcome.unwrap_or_else(|error| (Answer::Failed(error), Vec::new()));
        let answered = Answered { machine, answer };
        let head = postcard::to_stdvec(&answered).expect("answers hold only plain data");
        Ok(Message { head, payload })
    }

    fn drop_client(&self, client: ClientId) {
        let dropped = self.clients.lock().remove(&client);
        drop(dropped);
    }
}
