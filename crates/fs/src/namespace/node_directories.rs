//! Native filesets of a cluster: a directory for each node, which lies on a disk of that node.
//!
//! `work` has a directory `work/NODE` for each node with a suitable disk. Each of them is a native fileset of its own, so that
//! its number leads to its node; who that is stands with its disk and never with an owner. Its node makes it: when it mounts
//! the file system, and when it hears of a new native fileset. `work` itself is no more than their list (`native/nodes.rs`).
//!
//! A directory is made before the catalogue names it, and removed before the catalogue forgets it: what a crash leaves in
//! between is an empty tree that nobody sees, or a name whose removal can be repeated.

use std::sync::Arc;

use forebay_base::{FilesetId, Ino};

use super::Namespace;
use super::catalogue::{Catalogue, Fileset, Seat};
use super::cluster::{Membership, Whose};
use super::filesets::finish_removal;
use crate::error::{FsError, Result};
use crate::mkfs::SCRATCH_MODE;
use crate::native::{FIRST_SPARE, Listing, NewFileset, NodeDirectories, suits};
use crate::ops::{DiskStatus, check_fileset_name};
use crate::owner::Owner;
use crate::record::{
    DEFAULT_POOL, DiskUse, Durability, FilesetRecord, FilesetSettings, Placement, Stage,
};
use crate::remote::{Answer, Request, tell};
use crate::stale::Stale;

/// The fileset and the node of a node directory's name.
pub(super) fn parts_of(name: &str) -> Option<(&str, &str)> {
    name.split_once('/')
}

/// The node directories of a fileset that has them.
pub(super) fn directories_of(catalogue: &Catalogue, name: &str) -> Vec<(String, FilesetId)> {
    let node = |fileset: Arc<Fileset>| {
        let settings = fileset.settings();
        let (of, node) = parts_of(&settings.name)?;
        (of == name).then(|| (node.to_owned(), fileset.id))
    };
    catalogue.list().into_iter().filter_map(node).collect()
}

fn settings(name: &str, disk: Option<String>) -> FilesetSettings {
    let (durability, placement) = (Durability::Scratch, Placement::Native);
    let pool = DEFAULT_POOL.to_owned();
    FilesetSettings { name: name.to_owned(), durability, placement, disk, pool, copies: 1 }
}

fn record(settings: FilesetSettings, stage: Stage, first_ino: u64) -> FilesetRecord {
    FilesetRecord { settings, stage, first_ino, first_object: 0 }
}

/// The settings of a new native fileset, if it can be made.
fn new_list(new: &NewFileset) -> Result<FilesetSettings> {
    if new.disk.is_some() {
        return Err(FsError::Refused(
            "in a cluster a native fileset has a directory on a disk of each node: omit --disk"
                .to_owned(),
        ));
    }
    if new.mode != SCRATCH_MODE {
        return Err(FsError::Refused(format!(
            "the node directories of a native fileset have mode {SCRATCH_MODE:o}, not {:o}: omit --mode, and change the mode \
             of one afterwards if it is to have another",
            new.mode
        )));
    }
    Ok(settings(&new.name, None))
}

/// Whose place is where, for the requests of native filesets.
impl Namespace {
    /// The owner of a fileset: of a native one the node of its disk.
    pub(super) fn whose(&self, membership: &Membership, fileset: FilesetId) -> Whose {
        let known = self.catalogue.get(fileset);
        match known.as_ref().and_then(|known| known.seat()) {
            None => membership.whose(fileset),
            Some(Seat::Nodes) => Whose::Here(None),
            Some(Seat::Disk(disk)) => membership.cluster().home_of(disk),
        }
    }

    /// Whether a fileset is native.
    pub(super) fn is_native(&self, fileset: FilesetId) -> bool {
        self.catalogue.get(fileset).is_some_and(|known| known.seat().is_some())
    }

    /// Whether a fileset is a list of node directories.
    pub(super) fn is_list(&self, fileset: &Fileset) -> bool {
        self.cluster.is_some() && fileset.seat() == Some(&Seat::Nodes)
    }

    /// Whether an inode is a list of node directories.
    pub(super) fn lists_nodes(&self, ino: Ino) -> bool {
        self.cluster.is_some()
            && ino == Ino::top_of(ino.fileset())
            && self.catalogue.get(ino.fileset()).is_some_and(|known| self.is_list(&known))
    }

    /// The list of the node directories of a fileset.
    pub(super) fn node_directories(&self, fileset: &Fileset) -> NodeDirectories {
        let (catalogue, name) = (Arc::clone(&self.catalogue), fileset.settings().name);
        let listing: Arc<Listing> = Arc::new(move || directories_of(&catalogue, &name));
        NodeDirectories::new(Ino::top_of(fileset.id), self.shared.clock.now(), listing)
    }

    /// Whether a native fileset is one of this node.
    ///
    /// # Errors
    /// [`FsError::Refused`] if it is one of a node that cannot be reached, or of none.
    pub(super) fn check_reached(&self, seat: &Seat) -> Result<bool> {
        let (Some(membership), Seat::Disk(disk)) = (&self.cluster, seat) else { return Ok(true) };
        match membership.cluster().home_of(disk) {
            Whose::Here(_) => Ok(true),
            Whose::There(..) => Ok(false),
            Whose::Lost(why) => Err(FsError::Refused(why)),
            Whose::Nobody => Err(FsError::Refused(
                "the node of its disk is not known yet: try again in a moment".to_owned(),
            )),
        }
    }
}

/// Making them.
impl Namespace {
    /// Makes the directory of this node in each native fileset of the cluster, unless it is there, or the node has no suitable
    /// disk. Those that are new are bound.
    ///
    /// # Errors
    /// What the first that could not be made says; the others are made all the same.
    pub fn make_node_directories(&self) -> Result<()> {
        let Some(membership) = &self.cluster else { return Ok(()) };
        let node = membership.cluster().node_name();
        let all = self.catalogue.list().into_iter();
        let lists = all.filter(|fileset| fileset.seat() == Some(&Seat::Nodes));
        let (mut failed, mut is_new) = (Ok(()), false);
        for fileset in lists {
            match self.make_node_directory(&format!("{}/{node}", fileset.settings().name)) {
                Ok(made) => is_new |= made,
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        if is_new && let Some(binder) = self.binder.get() {
            binder();
        }
        failed
    }

    /// As [`Namespace::make_node_directories`], of one of them. Whether it is new.
    fn make_node_directory(&self, name: &str) -> Result<bool> {
        if let Some(there) = self.catalogue.named(name)
            && there.seat().is_some_and(|seat| self.check_reached(seat).is_ok())
        {
            return Ok(false);
        }
        let near = self.disk_status_of(|disk| disk.is_near && !disk.is_shared);
        let takes_new = |disk: &DiskStatus| suits(&disk.kind) && disk.used == DiskUse::Normal;
        let suitable = near.into_iter().filter(takes_new);
        let Some(disk) = suitable.max_by_key(|disk| disk.available_bytes) else {
            return Ok(false);
        };
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let new = settings(name, Some(disk.uuid.clone()));
        self.native_place(&new)?.ensure(SCRATCH_MODE, owner)?;
        self.add_fileset(&NewFileset {
            name: name.to_owned(),
            durability: new.durability,
            placement: new.placement,
            disk: Some(disk.uuid),
            pool: None,
            mode: SCRATCH_MODE,
        })?;
        Ok(true)
    }

    /// Has new node directories bound where this mount shows them, with `binder`.
    pub fn set_binder(&self, binder: Box<dyn Fn() + Send + Sync>) {
        let _ = self.binder.set(binder);
    }

    /// Makes a native fileset of a cluster, or notes the directory of a node in one.
    pub(super) fn add_native_somewhere(&self, new: &NewFileset) -> Result<()> {
        match self.remote_root()? {
            Some(root) => self.done_by_root(root.ask(Request::AddFileset(new.clone())))?,
            None => {
                self.add_native(new)?;
                if parts_of(&new.name).is_none() {
                    self.tell_of_native();
                }
            }
        }
        Ok(())
    }

    /// As [`Namespace::add_native_somewhere`], where this node owns the root.
    fn add_native(&self, new: &NewFileset) -> Result<()> {
        let Some(membership) = &self.cluster else { return Err(FsError::Invalid) };
        let _one_at_a_time = self.fileset_changes.lock();
        let root = self.root()?;
        let made = match parts_of(&new.name) {
            None => {
                check_fileset_name(&new.name)?;
                self.check_free_name(&root, &new.name)?;
                new_list(new)?
            }
            Some((of, node)) => {
                check_fileset_name(node)?;
                let Some(disk) = &new.disk else { return Err(FsError::Invalid) };
                if !self.catalogue.named(of).is_some_and(|list| list.seat() == Some(&Seat::Nodes)) {
                    return Err(FsError::Refused(format!("there is no native fileset \"{of}\"")));
                }
                if let Some(before) = self.catalogue.named(&new.name) {
                    if before.seat() == Some(&Seat::Disk(disk.clone())) {
                        return Ok(());
                    }
                    self.check_replaced(membership, &before)?;
                    self.forget_fileset(&before)?;
                }
                settings(&new.name, Some(disk.clone()))
            }
        };
        let (id, first) = self.free_number()?;
        let record = record(made.clone(), Stage::Made, first.0);
        match parts_of(&new.name) {
            None => root.name_fileset(id, &record)?,
            Some(_) => root.put_fileset(id, &record),
        }
        self.catalogue.add(id, made);
        self.commit_change()
    }

    /// A node has come back under its name with another disk: its directory on the former one is forgotten if no node has that.
    fn check_replaced(&self, membership: &Membership, before: &Fileset) -> Result<()> {
        let settings = before.settings();
        let disk = settings.disk.unwrap_or_default();
        if membership.cluster().has_disk(&disk) {
            return Err(FsError::Refused(format!(
                "\"{}\" exists, on disk {disk}: forebay fileset remove it first",
                settings.name
            )));
        }
        Ok(())
    }
}

/// Removing them, and hearing of changes.
impl Namespace {
    /// Removes a native fileset of a cluster, at the root's owner: of a list all its directories first.
    pub(super) fn remove_native_somewhere(&self, name: &str) -> Result<()> {
        let removed = {
            let _one_at_a_time = self.fileset_changes.lock();
            self.fileset_named(name).and_then(|fileset| self.remove_native_in_cluster(&fileset))
        };
        // Also if it was refused: some directories may be gone, and are made again.
        self.tell_of_native();
        removed
    }

    fn remove_native_in_cluster(&self, fileset: &Arc<Fileset>) -> Result<()> {
        let name = fileset.settings().name;
        if self.is_list(fileset) {
            for (node, id) in directories_of(&self.catalogue, &name) {
                let Some(directory) = self.catalogue.get(id) else { continue };
                self.remove_node_directory(&directory).map_err(|error| match error {
                    FsError::Refused(why) => FsError::Refused(why),
                    other => FsError::Refused(format!("the directory of node {node}: {other}")),
                })?;
            }
            self.forget_fileset(fileset)?;
            return self.commit_change();
        }
        self.remove_node_directory(fileset)
    }

    pub(super) fn remove_node_directory(&self, fileset: &Fileset) -> Result<()> {
        let name = fileset.settings().name;
        let (id, top) = (fileset.id, Ino::top_of(fileset.id));
        self.at(top, |owner| match owner {
            Owner::Remote(remote) => {
                match remote.ask(Request::Retire { fileset: id, name: name.clone() })? {
                    Answer::Retired { .. } => Ok(()),
                    other => Err(FsError::Io(format!("not an answer: {other:?}"))),
                }
            }
            Owner::Native(_) => self.retire_native(fileset),
            Owner::Local(_) => Err(FsError::Invalid),
        })
        .map_err(|error| match error {
            FsError::Io(why) => FsError::Refused(format!(
                "\"{name}\" cannot be removed now: {why}; if the node does not come back, add --lost"
            )),
            other => other,
        })?;
        self.forget_fileset(fileset)?;
        self.commit_change()
    }

    /// Removes the empty tree of a node directory of this node.
    pub(super) fn retire_native(&self, fileset: &Fileset) -> Result<()> {
        self.check_not_open(fileset)?;
        let place = self.native_place(&fileset.settings())?;
        place.remove_tree()?;
        place.forget()?;
        self.shared.owners.set(fileset.id, None);
        Ok(())
    }

    /// The catalogue has a fileset no more; the root's owner commits that. The number goes on where it was, as those of inodes
    /// of its disk are not known.
    pub(super) fn forget_fileset(&self, fileset: &Fileset) -> Result<()> {
        let settings = fileset.settings();
        let (root, id) = (self.root()?, fileset.id);
        let is_named = parts_of(&settings.name).is_none();
        let gone = record(settings, Stage::Removed, FIRST_SPARE);
        if is_named {
            root.unname_fileset(id, &record(gone.settings.clone(), Stage::Removing, FIRST_SPARE))?;
            finish_removal(&*self.stores, &root, id, &gone)?;
        } else {
            root.put_fileset(id, &gone);
        }
        let stale = self.let_go(fileset);
        self.catalogue.remove(id, (gone.first_ino, gone.first_object));
        self.shared.stale.add(stale);
        Ok(())
    }

    /// Sends requests of a native fileset that is gone to nobody. What the kernel of this node must forget.
    fn let_go(&self, fileset: &Fileset) -> [Stale; 1] {
        self.shared.owners.set(fileset.id, None);
        let name = fileset.settings().name;
        let list = parts_of(&name).and_then(|(of, node)| {
            Some((Ino::top_of(self.catalogue.named(of)?.id), node.as_bytes().to_vec()))
        });
        let (parent, name) = list.unwrap_or_else(|| (Ino::ROOT, name.into_bytes()));
        [Stale::Entry(parent, name)]
    }

    /// Takes over which filesets there are; what is gone of native ones the kernel is told.
    pub(super) fn adopt_filesets(&self, told: Vec<(FilesetId, FilesetSettings)>) {
        for known in self.catalogue.list() {
            if known.seat().is_some() && !told.iter().any(|(id, _)| *id == known.id) {
                self.shared.stale.add(self.let_go(&known));
            }
        }
        self.catalogue.adopt(told);
    }

    /// Another node has made or removed native filesets: learns of them, and makes the directories of this node. Returns what
    /// the kernel must forget.
    pub(crate) fn hear_of_native(&self) -> Result<Vec<Stale>> {
        self.refresh()?;
        self.make_node_directories()?;
        Ok(self.shared.stale.take())
    }

    /// Tells all nodes that native filesets have come or gone, this one first. Those that do not answer find out when they are
    /// asked for them, or mount the file system again.
    pub fn tell_of_native(&self) {
        let Some(membership) = &self.cluster else { return };
        self.tell_own_kernel(&self.shared.stale.take());
        if let Err(error) = self.make_node_directories() {
            tracing::warn!(%error, "this node has no directory in a native fileset");
        }
        for (node, channel) in membership.cluster().members() {
            if let Err(error) = tell(&*channel, Request::Native) {
                tracing::warn!(%node, %error, "a node does not know yet of a change of native filesets");
            }
        }
    }

    /// Removes a node directory whose disk no node has any more, at the root's owner.
    pub(super) fn remove_lost_native(&self, fileset: &Fileset) -> Result<()> {
        if self.remote_root()?.is_some() {
            return Err(FsError::Refused(
                "give the command on the node that owns the root fileset: see forebay cluster status".to_owned(),
            ));
        }
        let _one_at_a_time = self.fileset_changes.lock();
        let name = fileset.settings().name;
        let is_there =
            |why: &str| Err(FsError::Refused(format!("fileset \"{name}\" is not lost: {why}")));
        match fileset.seat() {
            None | Some(Seat::Nodes) => return is_there("its names are with the cluster"),
            Some(seat) => match self.check_reached(seat) {
                Ok(false) => {
                    return is_there(
                        "its node has it; remove its files, then remove it without --lost",
                    );
                }
                Ok(true) if self.native_place(&fileset.settings())?.open().is_ok() => {
                    return is_there("remove its files, then remove it without --lost");
                }
                Ok(true) | Err(_) => {}
            },
        }
        tracing::warn!(fileset = name, "removed as lost");
        self.forget_fileset(fileset)?;
        self.commit_change()
    }
}
