//! Files that are opened and closed for other nodes, those that are made included.

use std::sync::Arc;

use forebay_base::{FilesetId, Ino};

use super::service::Work;
use super::wire::{Answer, NewInode};
use crate::attributes::Attributes;
use crate::error::{FsError, Result};
use crate::grants::{Item, Touched};
use crate::object::SeenObject;
use crate::ops::{Access, Closer, NodeOpener, Reported};
use crate::owner::Owner;
use crate::partition::{Caller, NumbersForNode, Partition};
use crate::record::{Kind, ObjectRef};

impl Work<'_> {
    /// Makes an inode at its owner; a file that the client has made already gets the number that it has there.
    fn create_at(
        &self,
        owner: &Owner,
        (parent, name): (Ino, &[u8]),
        new: &NewInode,
        caller: Caller,
        reported: Option<Reported>,
    ) -> Result<Attributes> {
        match (owner, reported) {
            (_, None) => owner.create(parent, name, new.as_new(), caller),
            (Owner::Local(partition), Some(Reported { ino, .. }))
                if self.reports
                    && matches!(new.kind, Kind::File | Kind::Directory | Kind::Symlink) =>
            {
                partition.use_ino(ino, self.client)?;
                partition.create_reported(parent, name, new.as_new(), caller, reported)
            }
            _ => Err(FsError::Invalid),
        }
    }

    /// Makes an inode.
    pub(super) fn create(
        &mut self,
        (parent, name): (Ino, &[u8]),
        new: &NewInode,
        caller: Caller,
        reported: Option<Reported>,
    ) -> Result<Answer> {
        let touched = Touched::new_name(parent, name);
        let made = self.change(parent, &touched, |work, owner| {
            work.tell(work.create_at(owner, (parent, name), new, caller, reported)?)
        })?;
        if let Answer::Attributes(made) = made {
            self.grant_new(parent, name, made.ino);
            self.delegate(&made);
            if reported.is_some() {
                self.read_attributes(made.ino, |owner| owner.attributes(made.ino))?;
            }
        }
        Ok(made)
    }

    /// Makes a file and opens it; where that cannot be, there is no such file.
    pub(super) fn create_file(
        &mut self,
        (parent, name): (Ino, &[u8]),
        new: &NewInode,
        access: Access,
        (caller, made, reported): (Caller, Option<SeenObject>, Option<Reported>),
    ) -> Result<Answer> {
        let disks = self.fs.disks_of(self.client.node);
        let by =
            NodeOpener { client: self.client, disks: &disks, made, reports: reported.is_some() };
        let touched = Touched::new_name(parent, name);
        let (attributes, home, uses_made) = self.change(parent, &touched, |work, owner| {
            let attributes = work.create_at(owner, (parent, name), new, caller, reported)?;
            let ino = attributes.ino;
            let opened = work.tell(attributes).and_then(|_| {
                let opened = work.open_at(owner, ino, access, caller, by);
                opened.inspect_err(|_| {
                    let known = work.fs.clients().forget(work.client, ino, 1);
                    work.fs.forget(ino, known);
                })
            });
            let home = opened.inspect_err(|_| {
                if let Err(error) = owner.unlink(parent, name) {
                    tracing::warn!(%ino, %error, "a file that could not be opened was not removed");
                }
            })?;
            let lies_at = match owner {
                Owner::Local(partition) => partition.object_of(ino),
                Owner::Native(_) | Owner::Remote(_) => None,
            };
            let uses_made = made.is_some_and(|made| lies_at == Some(made.at));
            Ok((attributes, home, uses_made))
        })?;
        self.grant_new(parent, name, attributes.ino);
        let own = made.filter(|_| uses_made).and_then(|made| self.grant_own(attributes.ino, made));
        let attributes = own.unwrap_or(attributes);
        Ok(Answer::Created {
            attributes,
            crash: self.fs.crash_of(parent.fileset()),
            home,
            uses_made,
        })
    }

    /// Grants the attributes of a file that the client has just made and alone may write: it sees itself how the object on its
    /// disk is. Whoever else opens the file for writing recalls them.
    pub(super) fn grant_own(&mut self, ino: Ino, made: SeenObject) -> Option<Attributes> {
        let partition = self.partition(ino)?;
        let granted = partition.granting()?.grant(self.client, &Item::Attributes(ino))?;
        let attributes = partition.attributes_of_maker(ino, made)?;
        self.granted.attributes = Some(granted);
        self.granted.home = Some(made.at);
        Some(attributes)
    }

    /// Opens a file at its owner, and notes that, before the fileset can go anywhere.
    pub(super) fn open_at(
        &self,
        owner: &Owner,
        ino: Ino,
        access: Access,
        caller: Caller,
        by: NodeOpener<'_>,
    ) -> Result<Option<ObjectRef>> {
        let home = owner.open_for_node(ino, access, caller, by)?;
        let held = self.fs.clients().open(self.client, ino, access, self.most());
        held.or_else(|why| {
            owner.close_for_node(ino, access, Closer::Node(None))?;
            self.not_held(why)
        })?;
        Ok(home)
    }

    /// Closes a file. Of one that was written the client learns how it is now, if nobody writes it any more. Passes no gate, and
    /// waits for none.
    pub(super) fn close(
        &mut self,
        ino: Ino,
        access: Access,
        left: Option<SeenObject>,
    ) -> Result<Answer> {
        let owner = self.fs.owner_without_gate(ino).ok_or(FsError::Moved)?;
        self.check_epoch(&owner)?;
        if !self.fs.clients().close(self.client, ino, access) {
            return Ok(Answer::Done);
        }
        owner.close_for_node(ino, access, Closer::Node(self.its_own(left)))?;
        match &*owner {
            Owner::Local(partition) if access.write => {
                let partition = Arc::clone(partition);
                drop(owner);
                Ok(self.grant_closed(&partition, ino))
            }
            Owner::Local(_) | Owner::Native(_) | Owner::Remote(_) => Ok(Answer::Done),
        }
    }

    /// What the client says of an object, if that is on a disk of its own.
    pub(super) fn its_own(&self, seen: Option<SeenObject>) -> Option<SeenObject> {
        seen.filter(|seen| self.fs.disks_of(self.client.node).contains(&seen.at.disk))
    }

    fn grant_closed(&mut self, partition: &Partition, ino: Ino) -> Answer {
        let Some(granting) = partition.granting() else { return Answer::Done };
        self.granted.term = granting.term(self.client);
        let granted = granting.grant(self.client, &Item::Attributes(ino));
        let may_keep = granted.is_some() && partition.is_quiet(ino) && partition.gate().is_open();
        if !may_keep {
            return Answer::Done;
        }
        match partition.while_routed(|it| it.attributes(ino)).unwrap_or(Err(FsError::Moved)) {
            Ok(found) if found.nlink > 0 && found.cacheable && partition.knows_writers(ino) => {
                self.granted.attributes = granted;
                self.granted.home = partition.home_of(ino);
                Answer::Attributes(found)
            }
            Ok(_) | Err(_) => Answer::Done,
        }
    }

    /// Gives the client numbers for objects, or takes back all that it has.
    pub(super) fn numbers(&self, fileset: FilesetId, returned: bool) -> Result<Answer> {
        let at = |work: &Work<'_>| match &*work.route(Ino::top_of(fileset))? {
            Owner::Local(partition) => Ok(Arc::clone(partition)),
            Owner::Native(_) | Owner::Remote(_) => Err(FsError::Invalid),
        };
        if returned {
            at(self)?.numbers_returned(self.client);
            return Ok(Answer::Done);
        }
        let theirs = self.fs.disks_of(self.client.node);
        // They are asked: nobody who changes owners must wait for that.
        let disks = at(self)?.disks_for_node(&theirs);
        let issued = self.at(Ino::top_of(fileset), |owner| match owner {
            Owner::Local(partition) => partition.issue_numbers(self.client),
            Owner::Native(_) | Owner::Remote(_) => Err(FsError::Invalid),
        })?;
        let NumbersForNode { first, first_ino, count } = issued;
        Ok(Answer::Numbers { first, first_ino, count, disks })
    }
}
