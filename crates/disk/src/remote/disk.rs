//! The disk as its users see it.

use std::sync::Arc;

use forebay_base::{Channel, FilesetId, ObjectId};

use super::RemoteObject;
use super::link::{Link, Told};
use super::wire::{Answer, Handle, Request};
use crate::{Capacity, Description, Disk, DiskError, Object, ObjectAttributes, Result};

/// What a disk is made of whose node does not answer, as [`Disk::describe`] tells.
const KIND: &str = "remote";

/// Objects that one request removes.
const REMOVED_AT_ONCE: usize = 1024;

/// A disk of another node.
pub struct RemoteDisk {
    link: Arc<Link>,
}

impl RemoteDisk {
    /// The disk `uuid`, which lies at `location` (for people), through the node that `channel` leads to. Nothing is
    /// asked yet.
    #[must_use]
    pub fn new(channel: Arc<dyn Channel>, uuid: &str, location: &str) -> RemoteDisk {
        RemoteDisk { link: Arc::new(Link::new(channel, uuid, location)) }
    }

    fn ask(&self, request: Request) -> Result<Told> {
        self.link.ask(request, Vec::new())
    }

    fn change(&self, request: Request) -> Result<Told> {
        let told = self.ask(request)?;
        self.link.changed(told.machine);
        Ok(told)
    }

    fn listed(
        &self,
        fileset: Option<FilesetId>,
        visit: &mut dyn FnMut(ObjectId) -> bool,
    ) -> Result<()> {
        let mut after = None;
        loop {
            let told = self.ask(Request::List { fileset, after })?;
            let (numbers, rest) = told.payload.as_chunks::<8>();
            if !rest.is_empty() {
                return Err(self.link.confused("its node sent a truncated list"));
            }
            if numbers.is_empty() {
                return Ok(());
            }
            for number in numbers {
                let id = ObjectId(u64::from_le_bytes(*number));
                if after.is_some_and(|after| id <= after) {
                    return Err(self.link.confused("its node sent an unordered list"));
                }
                after = Some(id);
                if !visit(id) {
                    return Ok(());
                }
            }
        }
    }
}

impl Disk for RemoteDisk {
    fn create_fresh(&self) -> Result<Arc<dyn Object>> {
        let told = self.ask(Request::CreateFresh)?;
        match told.answer {
            Answer::Handle(handle) => {
                Ok(Arc::new(RemoteObject::fresh(&self.link, handle, told.machine)))
            }
            ref other => Err(self.link.unexpected(other)),
        }
    }

    fn create_named(&self, id: ObjectId) -> Result<Arc<dyn Object>> {
        let told = self.change(Request::CreateNamed(id))?;
        match told.answer {
            Answer::Handle(handle) => {
                Ok(Arc::new(RemoteObject::named(&self.link, id, handle, told.machine)))
            }
            ref other => Err(self.link.unexpected(other)),
        }
    }

    fn made_at_home(&self, id: ObjectId) -> Option<Arc<dyn Object>> {
        let machine = self.link.machine()?;
        self.link.changed(machine);
        Some(Arc::new(RemoteObject::named(&self.link, id, Handle::NONE, machine)))
    }

    fn publish(&self, id: ObjectId, object: &dyn Object) -> Result<()> {
        object.remote().ok_or(DiskError::Invalid)?.publish(id)
    }

    fn open(&self, id: ObjectId) -> Result<Arc<dyn Object>> {
        let told = self.ask(Request::Open(id))?;
        match told.answer {
            Answer::Handle(handle) => {
                Ok(Arc::new(RemoteObject::opened(&self.link, id, handle, told.machine)))
            }
            ref other => Err(self.link.unexpected(other)),
        }
    }

    fn remove(&self, id: ObjectId) -> Result<()> {
        self.change(Request::Remove(id))?;
        self.link.settled(id);
        Ok(())
    }

    fn remove_all(&self, ids: &[ObjectId]) -> Vec<(ObjectId, DiskError)> {
        let mut kept = Vec::new();
        for part in ids.chunks(REMOVED_AT_ONCE) {
            let told = self.change(Request::RemoveAll(part.to_vec()));
            let refused = told.and_then(|told| match told.answer {
                Answer::Kept(refused) => Ok(refused),
                ref other => Err(self.link.unexpected(other)),
            });
            match refused {
                Ok(refused) => {
                    let is_kept = |id: &ObjectId| refused.iter().any(|(kept, _)| kept == id);
                    part.iter().filter(|id| !is_kept(id)).for_each(|id| self.link.settled(*id));
                    kept.extend(refused);
                }
                Err(error) => kept.extend(part.iter().map(|id| (*id, error.clone()))),
            }
        }
        kept
    }

    fn attributes(&self, id: ObjectId) -> Result<Option<ObjectAttributes>> {
        match self.ask(Request::Attributes(id))?.answer {
            Answer::Attributes(attributes) => Ok(attributes),
            ref other => Err(self.link.unexpected(other)),
        }
    }

    fn list(&self, visit: &mut dyn FnMut(ObjectId) -> bool) -> Result<()> {
        self.listed(None, visit)
    }

    fn list_of(&self, fileset: FilesetId, visit: &mut dyn FnMut(ObjectId) -> bool) -> Result<()> {
        self.listed(Some(fileset), visit)
    }

    fn sync(&self) -> Result<()> {
        self.link.sync()
    }

    fn capacity(&self) -> Result<Capacity> {
        match self.ask(Request::Capacity)?.answer {
            Answer::Capacity(capacity) => Ok(capacity),
            ref other => Err(self.link.unexpected(other)),
        }
    }

    fn keep_reserve(&self, bytes: u64) -> Result<u64> {
        match self.ask(Request::KeepReserve(bytes))?.answer {
            Answer::Number(kept) => Ok(kept),
            ref other => Err(self.link.unexpected(other)),
        }
    }

    fn give_reserve(&self, bytes: u64) -> u64 {
        match self.ask(Request::GiveReserve(bytes)) {
            Ok(Told { answer: Answer::Number(given), .. }) => given,
            Ok(_) | Err(_) => 0,
        }
    }

    fn describe(&self) -> Description {
        match self.ask(Request::Describe) {
            Ok(Told { answer: Answer::Description(description), .. }) => description,
            Ok(told) => self.described_by(&self.link.unexpected(&told.answer)),
            Err(error) => self.described_by(&error),
        }
    }
}

impl RemoteDisk {
    fn described_by(&self, error: &DiskError) -> Description {
        Description {
            location: self.link.location.clone(),
            kind: KIND.to_owned(),
            advice: vec![error.to_string()],
        }
    }
}
