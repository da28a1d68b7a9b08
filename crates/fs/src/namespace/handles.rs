//! What programs of this node have open of filesets that other nodes own: which handles are stale, and which go on at the next
//! owner.

use std::sync::Arc;

use forebay_base::{DiskId, FilesetId, Ino, NodeId};

use super::Namespace;
use super::cluster::Whose;
use crate::error::{FsError, Result};
use crate::object::SeenObject;
use crate::ops::Access;
use crate::owner::Owner;

impl Namespace {
    /// The lineage of handles that are opened now; 0 where owners do not change.
    pub(super) fn lineage(&self, fileset: FilesetId) -> u32 {
        self.cluster.as_ref().map_or(0, |membership| membership.open_files(fileset).lineage())
    }

    pub(super) fn tell_of_lost_names(&self, directory: Ino) -> Result<()> {
        let Some(membership) = &self.cluster else { return Ok(()) };
        let open_files = membership.open_files(directory.fileset());
        if open_files.unsynced().tell(directory) { Err(FsError::Stale) } else { Ok(()) }
    }

    pub(super) fn tell_of_lost_attributes(&self, ino: Ino) -> Result<()> {
        let Some(membership) = &self.cluster else { return Ok(()) };
        let open_files = membership.open_files(ino.fileset());
        if open_files.unsynced().tell_of_attributes(ino) { Err(FsError::Stale) } else { Ok(()) }
    }

    /// A handle has ended whose file this node reads and writes on a disk of its own, although another node owned it.
    /// Returns how it has left its object, for [`Namespace::close_left`].
    pub fn let_go_of(&self, ino: Ino) -> Option<SeenObject> {
        self.cluster.as_ref()?.near.let_go_of(ino)
    }

    pub(super) fn let_go_of_all(&self) {
        if let Some(membership) = &self.cluster {
            membership.near.clear();
        }
    }

    /// The disks that another node reaches itself, as far as they are known here.
    pub(crate) fn disks_of(&self, node: NodeId) -> Vec<DiskId> {
        let Some(membership) = &self.cluster else { return Vec::new() };
        let theirs = membership.cluster().disks_of(node);
        let all = self.shared.objects.disks.all();
        all.filter(|disk| disk.is_shared || theirs.contains(&disk.uuid))
            .map(|disk| disk.id)
            .collect()
    }

    /// Whether a handle is still one: it is stale once its fileset has lost changes, or its owner has dropped this node.
    ///
    /// # Errors
    /// [`FsError::Stale`].
    pub fn check_lineage(&self, ino: Ino, lineage: u32) -> Result<()> {
        if lineage == 0 || lineage == self.lineage(ino.fileset()) {
            return Ok(());
        }
        Err(FsError::Stale)
    }

    pub(super) fn close_in_cluster(
        &self,
        ino: Ino,
        access: Access,
        left: Option<SeenObject>,
    ) -> Result<()> {
        let Some(membership) = &self.cluster else { return Ok(()) };
        for _ in 0..3 {
            let Some(route) = self.shared.owners.find(ino.fileset()) else {
                // Whoever is just handing it over sees to it, or it is noted for the next owner.
                let known = self.catalogue.get(ino.fileset());
                let _settled = known.as_ref().map(|known| known.opening.lock());
                if self.shared.owners.find(ino.fileset()).is_none() {
                    membership.open_files(ino.fileset()).closed(ino, access);
                    return Ok(());
                }
                continue;
            };
            let done = match &*route {
                Owner::Remote(remote) => {
                    let remote = Arc::clone(remote);
                    drop(route);
                    let done = remote.close_file(ino, access, left);
                    if matches!(done, Err(FsError::Moved)) {
                        self.leave_remote(ino.fileset(), &remote);
                    }
                    done
                }
                owner => owner.close_file(ino, access),
            };
            match done {
                Err(FsError::Moved) => {}
                done => return done,
            }
        }
        membership.open_files(ino.fileset()).closed(ino, access);
        Ok(())
    }

    /// Has each fileset that went to another owner in order know what is open of it here, also if no request says so: programs may go
    /// on writing files on a disk of this node without any.
    /// What is open by grants is told to its owner, too.
    pub(super) fn open_again_at_new_owners(&self) {
        let Some(membership) = &self.cluster else { return };
        self.shared.owners.remote().iter().for_each(|remote| remote.register_all());
        for fileset in membership.filesets_with_open_files() {
            let Whose::There(node, _) = membership.whose(fileset) else { continue };
            let knows = match self.shared.owners.find(fileset).as_deref() {
                Some(Owner::Remote(remote)) => remote.node() == node && remote.is_asserted(),
                Some(Owner::Local(_) | Owner::Native(_)) | None => false,
            };
            let asserted = || {
                self.at(Ino::top_of(fileset), |owner| match owner {
                    Owner::Remote(remote) => remote.assert_open_files(),
                    Owner::Local(_) | Owner::Native(_) => Ok(()),
                })
            };
            if !knows && let Err(error) = asserted() {
                tracing::debug!(%fileset, %error, "what is open is not open yet at the new owner");
            }
        }
    }
}
