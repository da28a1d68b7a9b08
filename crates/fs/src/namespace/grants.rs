//! Changes of this node's own filesets that other nodes may have cached, and what there is to count of all that.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_base::{ClientId, FilesetId, Ino, NodeId};

use super::Namespace;
use crate::attributes::{Attributes, KeepName};
use crate::error::Result;
use crate::grants::{Changer, Changing, GrantFigures, Granting, Item, Touched, Why};
use crate::owner::Owner;
use crate::record::Kind;
use crate::remote::RemoteOwner;

impl Namespace {
    /// Carries out a change by this node, as [`Namespace::at`] does, once no other node caches any more what it touches.
    pub(super) fn change<'a, T>(
        &self,
        ino: Ino,
        touched: impl Fn() -> Touched<'a>,
        mut operation: impl FnMut(&Owner) -> Result<T>,
    ) -> Result<T> {
        if self.is_cache(ino.fileset()) {
            self.before_change(ino.fileset(), &touched().inodes)?;
        }
        let mut changing: Option<Changing> = None;
        loop {
            let mut waits = None;
            let done = self.at(ino, |owner| {
                waits = owner.waits_for_recalls(changing.as_ref());
                // Whoever changes owners must not wait for clients: not here.
                if waits.is_some() { Ok(None) } else { operation(owner).map(Some) }
            })?;
            match (done, waits) {
                (Some(done), _) => return Ok(done),
                (None, Some(partition)) => {
                    changing = partition.begin_change(Changer::LOCAL, &touched());
                }
                (None, None) => {}
            }
        }
    }

    /// As [`Namespace::change`], for what needs the bytes of a file, as [`Namespace::at_bytes`] does.
    pub(super) fn change_bytes<'a, T>(
        &self,
        ino: Ino,
        touched: impl Fn() -> Touched<'a>,
        mut operation: impl FnMut(&Owner) -> Result<T>,
    ) -> Result<T> {
        self.waiting_for_disks(|| self.change(ino, &touched, &mut operation))
    }

    /// Whether an inode is a directory of this node's that is delegated to another node.
    pub(super) fn is_delegated(&self, found: &Attributes) -> bool {
        let granting = self.granting_of_directory(found);
        granting.is_some_and(|granting| granting.is_delegated(ClientId::LOCAL, found.ino))
    }

    /// What other nodes were granted of the fileset of a directory of this node.
    fn granting_of_directory(&self, found: &Attributes) -> Option<Arc<Granting>> {
        if found.kind != Kind::Directory || self.cluster.is_none() {
            return None;
        }
        match self.shared.owners.find(found.ino.fileset()).as_deref() {
            Some(Owner::Local(partition)) => partition.granting().map(Arc::clone),
            Some(Owner::Native(_) | Owner::Remote(_)) | None => None,
        }
    }

    /// The kernel of this node is told of an inode. If it is a directory that is delegated to another node, that is taken back first.
    pub(super) fn told_of(&self, found: Attributes) -> Result<Attributes> {
        let granting = self.granting_of_directory(&found);
        if !granting.is_some_and(|it| it.take_directory_back(ClientId::LOCAL, found.ino)) {
            return Ok(found);
        }
        let again = self.at(found.ino, |owner| owner.attributes(found.ino));
        if again.is_err() {
            self.forget(found.ino, 1);
        }
        again
    }

    /// How often kernels were told of an inode of this node's and did not forget it yet.
    pub(crate) fn references(&self, ino: Ino) -> u64 {
        self.shared.inodes.references(ino)
    }

    /// Recalls what a change of the root directory touches, where it does not go through [`Namespace::change`]. Nothing is granted
    /// of it until what is returned is dropped.
    pub(super) fn recall_name_of_root(&self, name: &str) -> Result<Option<Changing>> {
        let root = self.root()?;
        // Also if nobody was granted anything yet: that may change meanwhile.
        Ok(root.begin_change(Changer::LOCAL, &Touched::names([(Ino::ROOT, name.as_bytes())])))
    }

    /// Where requests of a fileset go, if that is this node.
    pub(crate) fn remote_owner_at(
        &self,
        fileset: FilesetId,
        node: NodeId,
    ) -> Option<Arc<RemoteOwner>> {
        match self.shared.owners.find(fileset).as_deref() {
            Some(Owner::Remote(remote)) if remote.node() == node => Some(Arc::clone(remote)),
            Some(Owner::Local(_) | Owner::Native(_) | Owner::Remote(_)) | None => None,
        }
    }

    /// What a name of `parent` leads to, in another fileset: if that is another node's, it is not for its owner to say how long the
    /// name may be kept. Names that lead to native filesets are never taken from the kernel, so they are not lent.
    pub(super) fn named_elsewhere(
        &self,
        (parent, name): (Ino, &[u8]),
        found: Attributes,
    ) -> Attributes {
        let fileset = found.ino.fileset();
        let target = self.shared.owners.find(fileset);
        if !matches!(target.as_deref(), Some(Owner::Remote(_))) || self.is_native(fileset) {
            return found;
        }
        let may_keep = match self.shared.owners.find(parent.fileset()).as_deref() {
            Some(Owner::Local(partition)) => !partition.names_lapse(),
            Some(Owner::Remote(remote)) => remote.lend_name(parent, name),
            Some(Owner::Native(_)) | None => false,
        };
        if may_keep { Attributes { name: KeepName::AsSet, ..found } } else { found }
    }

    /// This thread prepares an answer for the kernel of this node. Only then what another node has granted is lent to the kernel
    /// with it.
    pub fn begin_answer(&self) {
        if let Some(membership) = &self.cluster {
            membership.lent.begin_answer();
        }
    }

    /// Whether something is lent with the answer that this thread prepares: it must reach the kernel at once.
    #[must_use]
    pub fn answer_lends(&self) -> bool {
        self.cluster.as_ref().is_some_and(|membership| membership.lent.answer_lends())
    }

    /// Whether it is lent with it that there is nothing under the name that was looked up.
    #[must_use]
    pub fn answer_lends_absence(&self) -> bool {
        self.cluster.as_ref().is_some_and(|membership| membership.lent.lends_absence())
    }

    /// The kernel has the answer that this thread has prepared.
    pub fn end_answer(&self) {
        let Some(membership) = &self.cluster else { return };
        if let Some(given) = membership.lent.end_answer() {
            let lent = Arc::clone(&membership.lent);
            let take_back = move || lent.take_all_back(given);
            if let Err(error) = std::thread::Builder::new().name("lent".to_owned()).spawn(take_back)
            {
                tracing::warn!(%error, "the kernel keeps for a moment what nobody vouches for");
            }
        }
    }

    /// Has the kernel of this node forget what was lent to it.
    pub(crate) fn take_back(&self, items: &[Item], why: Why) {
        if let Some(membership) = &self.cluster {
            membership.lent.take_back(items, why);
        }
    }

    /// Waits until every request has ended that was on its way to an owner.
    pub(crate) fn drain_owners(&self) {
        self.shared.owners.drain();
    }

    /// A client was dropped: what it was granted is void as soon as it cannot use it any more.
    pub(crate) fn end_grants_of(&self, client: ClientId) {
        for partition in self.partitions() {
            if let Some(granting) = partition.granting() {
                granting.leave(client);
            }
        }
    }

    /// A client was dropped: it makes no more objects for filesets of this node.
    pub(crate) fn end_numbers_of(&self, client: ClientId) {
        for partition in self.partitions() {
            partition.numbers_lost(client);
            partition.fence_mapper(client);
        }
    }

    /// What other nodes may cache of the filesets of this one, and what was recalled.
    #[must_use]
    pub fn grant_figures(&self) -> Vec<(ClientId, GrantFigures)> {
        let mut all: BTreeMap<ClientId, GrantFigures> = BTreeMap::new();
        for partition in self.partitions() {
            let found = partition.granting().map(|granting| granting.figures());
            for (client, one) in found.unwrap_or_default() {
                let sum = all.entry(client).or_default();
                sum.grants += one.grants;
                sum.directories += one.directories;
                sum.recalls += one.recalls;
                sum.evictions += one.evictions;
            }
        }
        all.into_iter().collect()
    }

    /// Requests to each other node for files, and those that were answered from what this node caches of it.
    #[must_use]
    pub fn remote_traffic(&self) -> Vec<(NodeId, u64, u64)> {
        let Some(membership) = &self.cluster else { return Vec::new() };
        let traffic = membership.traffic.lock();
        traffic.iter().map(|(node, one)| (*node, one.calls(), one.hits())).collect()
    }
}
