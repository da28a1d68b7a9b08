//! Work on the names of a cluster without a mount: backups, and checks, repairs and restores while no node has mounted it.
//!
//! A backup only reads the stores, and can be made at any time on any node. Everything else needs all disks, and that nobody
//! changes anything meanwhile. So this process takes the place of the node's daemon without a mount, reaches the disks of other
//! nodes through theirs, and looks at the end whether a node has mounted the file system meanwhile. A store that is
//! repaired or restored is opened as a new owner would open it, so that a node which mounts it keeps this process out.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use forebay_base::channel::ServiceId;
use forebay_base::time::{SystemClock, look_until};
use forebay_base::{Epoch, FilesetId, NodeId};
use forebay_disk::remote::RemoteDisk;
use forebay_etcd::Runtime;
use forebay_fs::fsck::file::back_up as copy_store;
use forebay_fs::fsck::whole::{CheckedFileset, StoredFileset, check_all, merged, stored_filesets};
use forebay_fs::fsck::{self, NamedDisk, Options, Outcome, Repair, Report};
use forebay_fs::record::Superblock;
use forebay_fs::recovery::read_superblock;
use forebay_node::members::visit::{Answer, Question};
use forebay_node::members::{Book, NoFilesets};
use forebay_node::setup::Tools;
use forebay_node::{Member, MemberStart, NodeHome, Settings};
use forebay_store::redb::RedbOptions;
use forebay_store::redb::folder::RedbFolder;
use forebay_store::slate::SlateStores;
use forebay_store::{Batch, Store, Stores as _};

use super::names::{self, Cache};
use super::{LEAVING_MAX, RUNTIME_THREADS, start_without_mount};
use crate::commands::cluster::{daemon, etcd};
use crate::home::{
    Checked, Home, Lock, Progress, back_up_into, choose, names_of, open_own_disk, shared_disk,
    stored_names,
};

/// How long a node may commit before a backup.
const COMMIT_PATIENCE: Duration = Duration::from_mins(2);
/// Pairs that are read from a store, and written to one, at a time.
const PAIRS: usize = 4096;
/// Names of folders with kept stores before they run out.
const KEPT_MAX: u32 = 1000;

/// How often it is looked whether nodes that seem to have mounted the file system have left, and the pause between.
const LEFT_LOOKS: u32 = 50;
/// See [`LEFT_LOOKS`].
const LEFT_PAUSE: Duration = Duration::from_millis(100);

/// The nodes that have mounted the file system, with their names.
fn mounted(book: &Book) -> Result<Vec<String>> {
    let (sight, _) = book.read()?;
    let alive = sight.alive.iter().filter(|(_, member)| member.weight > 0);
    let name =
        |node: &NodeId| sight.nodes.get(node).map_or(node.to_string(), |node| node.name.clone());
    Ok(alive.map(|(node, _)| name(node)).collect())
}

fn refuse_mounted(book: &Book) -> Result<()> {
    let mut found = Ok(Vec::new());
    // A node that has just unmounted says so when its daemon without a mount has come up.
    look_until(LEFT_LOOKS, LEFT_PAUSE, || {
        found = mounted(book);
        found.as_ref().is_ok_and(Vec::is_empty)
    });
    let mounted = found?;
    ensure!(
        mounted.is_empty(),
        "the file system is mounted on {}, and changes all the time: unmount it on every node first (forebay umount), or list \
         the files that cannot be reached (forebay fsck NAME --unreachable)",
        mounted.join(", ")
    );
    Ok(())
}

/// The epochs of all owners: they change with each owner.
fn epochs(book: &Book) -> Result<BTreeMap<FilesetId, Epoch>> {
    let (_, view) = book.read()?;
    Ok(view.owners.into_iter().map(|(fileset, record)| (fileset, record.epoch)).collect())
}

/// Copies the names of the cluster's file system, or of one fileset, into a new folder; returns how many records there are.
/// Nodes that have mounted it commit first.
///
/// # Errors
/// If etcd or such a node does not answer, or the folder is there.
pub fn back_up(
    home: &Home,
    node: &NodeHome,
    to: &Path,
    name: Option<&str>,
    progress: Progress<'_>,
) -> Result<u64> {
    let file = node.existing()?;
    let runtime = Runtime::start(RUNTIME_THREADS).context("no threads for the stores")?;
    let book = Book::open(&runtime, &file.etcd, &file.cluster_name)?;
    commit_everywhere(node, &book)?;
    let stores = names::open(&file, home, &book, &runtime, Cache::None)?;
    let root = stores.look(FilesetId::ROOT).context("the cluster has no file system yet")?;
    let there = stores.list()?;
    let filesets = forebay_fs::offline::filesets(&*root)?.into_iter();
    let filesets = filesets
        .filter(|(id, _)| there.contains(id))
        .map(|(id, record)| (id, record.settings.name));
    let chosen = choose(filesets.collect(), name)?;
    drop(root);
    back_up_into(to, &chosen, |id, copy| Ok(copy_store(&*stores.look(id)?, copy, &mut *progress)?))
}

/// Has every node that has mounted the file system commit what it has of it.
fn commit_everywhere(node: &NodeHome, book: &Book) -> Result<()> {
    let file = node.existing()?;
    let settings = Settings { connect_timeout: COMMIT_PATIENCE, ..Settings::default() };
    let tools = Tools::new(settings, Arc::new(SystemClock))?;
    let (sight, _) = book.read()?;
    for (id, _) in sight.alive.iter().filter(|(_, member)| member.weight > 0) {
        let Some(record) = sight.nodes.get(id) else { continue };
        match tools.ask(node, &file, (*id, record.address.as_str()), &Question::Commit) {
            Ok(Answer::Done) => {}
            Ok(_) => {
                bail!("node {}: its answer cannot be understood (another version?)", record.name)
            }
            Err(error) => {
                return Err(error).with_context(|| {
                    format!(
                        "node {} did not commit, so its latest changes would be missing from the backup: try again when it \
                         answers, or when it is not running any more (forebay cluster status)",
                        record.name
                    )
                });
            }
        }
    }
    Ok(())
}

/// The node while this process takes the place of its daemon.
struct Offline {
    stores: Arc<SlateStores>,
    member: Option<Member>,
    node: NodeHome,
    runtime: Option<Runtime>,
    /// The disks of this machine.
    own: Vec<NamedDisk>,
    epochs: BTreeMap<FilesetId, Epoch>,
    had_daemon: bool,
    _lock: Lock,
}

impl Offline {
    fn open(home: &Home, node: &NodeHome) -> Result<Offline> {
        let file = node.existing()?;
        etcd::ensure(node, &file)?;
        let runtime = Runtime::start(RUNTIME_THREADS).context("no threads for the stores")?;
        refuse_mounted(&Book::open(&runtime, &file.etcd, &file.cluster_name)?)?;
        let lock = home.lock()?;
        let had_daemon = daemon::stop(node)?;
        let started = Offline::start(home, node, &runtime);
        if started.is_err() && had_daemon {
            start_without_mount(node)?;
        }
        let (member, stores) = started?;
        let mut offline = Offline {
            stores,
            epochs: BTreeMap::new(),
            own: Vec::new(),
            member: Some(member),
            node: node.clone(),
            runtime: Some(runtime),
            had_daemon,
            _lock: lock,
        };
        offline.epochs = epochs(offline.member().book())?;
        offline.own = offline.own_disks()?;
        Ok(offline)
    }

    fn start(
        home: &Home,
        node: &NodeHome,
        runtime: &Runtime,
    ) -> Result<(Member, Arc<SlateStores>)> {
        let member = Member::start(MemberStart {
            home: node.clone(),
            services: Vec::new(),
            ownership: Arc::new(NoFilesets::default()),
            weight: None,
            settings: Settings::default(),
            protocol: forebay_node::protocol_settings(),
            clock: Arc::new(SystemClock),
        })?;
        let stores = names::open(member.file(), home, member.book(), runtime, Cache::Kept)?;
        Ok((member, stores))
    }

    fn member(&self) -> &Member {
        self.member.as_ref().expect("it is there until the drop")
    }

    fn own_disks(&self) -> Result<Vec<NamedDisk>> {
        let uuid = self.member().file().cluster.to_string();
        let own = super::own_places(self.member()).into_iter();
        own.map(|(disk, location)| {
            let opened = open_own_disk(&uuid, &disk, &location)
                .with_context(|| format!("the disk {location} of this node cannot be opened"))?;
            Ok((disk, opened))
        })
        .collect()
    }

    /// The disks that a superblock names, each by way of its node. One that no node has is omitted.
    fn disks(&self, superblock: &Superblock) -> Result<Vec<NamedDisk>> {
        let sight = self.member().sight();
        let mut disks = Vec::new();
        for record in superblock.disks.iter().filter(|record| record.is_expected()) {
            if let Some((uuid, disk)) = self.own.iter().find(|(uuid, _)| *uuid == record.uuid) {
                disks.push((uuid.clone(), Arc::clone(disk)));
                continue;
            }
            if let Some(directory) = record.shared_directory() {
                let file = self.member().file();
                let cluster = file.cluster.to_string();
                let disk = shared_disk(&cluster, &record.uuid, directory, &file.name);
                disks.push((record.uuid.clone(), disk));
                continue;
            }
            let Some(place) = sight.disks.get(&record.uuid) else { continue };
            let named = sight.nodes.get(&place.node);
            let name = named.map_or_else(|| place.node.to_string(), |node| node.name.clone());
            ensure!(
                sight.alive.contains_key(&place.node),
                "the disk {} cannot be reached, because node {name} does not run: run `forebay cluster start` there first",
                place.location
            );
            let location = format!("node {} ({name}), {}", place.node, place.location);
            let channel = self.member().channel(place.node, ServiceId::Disks);
            let disk = RemoteDisk::new(channel, &record.uuid, &location);
            disks.push((record.uuid.clone(), Arc::new(disk) as _));
        }
        Ok(disks)
    }

    /// The disks of the file system, as its root fileset has them.
    fn all_disks(&self) -> Result<Vec<NamedDisk>> {
        let root =
            self.stores.look(FilesetId::ROOT).context("the cluster has no file system yet")?;
        let superblock = read_superblock(&*root).context(
            "the root fileset is damaged: restore it from a backup (forebay store restore)",
        )?;
        self.disks(&superblock)
    }

    /// Refuses what was found if a node has mounted the file system meanwhile.
    fn check_undisturbed(&self) -> Result<()> {
        let book = self.member().book();
        ensure!(
            mounted(book)?.is_empty() && epochs(book)? == self.epochs,
            "a node has mounted the file system meanwhile: unmount it and try again"
        );
        Ok(())
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        if let Some(member) = self.member.take() {
            member.stop(LEAVING_MAX);
        }
        self.own.clear();
        drop(self.runtime.take());
        if self.had_daemon
            && let Err(error) = start_without_mount(&self.node)
        {
            note!("forebay: {}; run `forebay cluster start`", crate::output::chain(&error));
        }
    }
}

/// Checks the file system of a cluster, or one of its filesets, while no node has mounted it, and repairs it if asked to. The
/// names are copied into the home folder before they are repaired.
///
/// # Errors
/// If a node has mounted it, or one with a disk of it does not run.
pub fn check(
    home: &Home,
    node: &NodeHome,
    name: Option<&str>,
    how: &mut Options<'_>,
) -> Result<Checked> {
    let offline = Offline::open(home, node)?;
    let disks = offline.all_disks()?;
    let chosen = choose(names_of(&*offline.stores)?, name)?;
    let mut kept = Vec::new();
    let mut check = |id: FilesetId, how: &mut Options<'_>| -> Result<Report> {
        if chosen.iter().all(|(chosen, _)| *chosen != id) {
            return Ok(Report::default());
        }
        let repair = std::mem::replace(&mut how.repair, Repair::Never);
        let found = fsck::check(&*offline.stores.look(id)?, &disks, how)?;
        if repair == Repair::Never || found.findings_total == 0 {
            return Ok(found);
        }
        offline.check_undisturbed()?;
        kept.push(keep(home, &offline.stores, id)?);
        how.repair = Repair::Found;
        repair_in_place(&offline.stores, id, &disks, how)
    };
    let checked = check_all(&*offline.stores, how, &mut check)?;
    offline.check_undisturbed()?;
    Ok(Checked { report: merged(&checked), kept })
}

fn repair_in_place(
    stores: &SlateStores,
    id: FilesetId,
    disks: &[NamedDisk],
    how: &mut Options<'_>,
) -> Result<Report> {
    let store = stores.open(id)?;
    let repaired = fsck::check(&*store, disks, how);
    store.close()?;
    Ok(repaired?)
}

/// Copies the store of a fileset into a new folder within the home folder.
fn keep(home: &Home, stores: &SlateStores, id: FilesetId) -> Result<PathBuf> {
    for number in 1..=KEPT_MAX {
        let folder = home.root().join(format!("kept-{number}"));
        if folder.exists() {
            continue;
        }
        let copied = back_up_into(&folder, &[(id, String::new())], |id, copy| {
            Ok(copy_store(&*stores.look(id)?, copy, &mut |_, _| {})?)
        });
        copied.context("the names cannot be kept before they are changed: nothing was changed")?;
        return Ok(folder);
    }
    bail!("there are {KEPT_MAX} kept stores in {}: remove some", home.root().display())
}

/// Has the names in a backup take the place of those of the cluster's file system, which no node must have mounted. Copies of
/// the names that were there are kept in the home folder.
///
/// # Errors
/// As [`check`]; if the backup is damaged, or not one of this file system.
pub fn restore(
    home: &Home,
    node: &NodeHome,
    backup: &Path,
    name: Option<&str>,
    progress: &mut dyn FnMut(&str),
) -> Result<Checked> {
    let copies = RedbFolder::at(backup, RedbOptions::default());
    let chosen = choose(stored_names(&copies, backup)?, name)?;
    let cluster = node.existing()?.cluster.to_string();
    for (id, _) in &chosen {
        let of = read_superblock(&*copies.look(*id)?)?.uuid;
        ensure!(of == cluster, "{} is a backup of another file system ({of})", backup.display());
    }
    let offline = Offline::open(home, node)?;
    let draft = draft_folder(home)?;
    let mut restoring =
        Restoring { offline: &offline, home, copies, draft: &draft, kept: Vec::new() };
    let mut reports = Vec::new();
    // The root fileset names the others: it comes last, and is checked even if it is not restored.
    let others = chosen.iter().map(|(id, _)| *id).filter(|id| *id != FilesetId::ROOT);
    for id in others.chain([FilesetId::ROOT]) {
        let is_chosen = chosen.iter().any(|(chosen, _)| *chosen == id);
        let report = restoring.restore_one(id, is_chosen, progress)?;
        reports.push(CheckedFileset { id, name: String::new(), report });
    }
    let kept = restoring.kept;
    std::fs::remove_dir_all(&draft)?;
    offline.check_undisturbed()?;
    Ok(Checked { report: merged(&reports), kept })
}

/// A restore at work.
struct Restoring<'a> {
    offline: &'a Offline,
    home: &'a Home,
    copies: RedbFolder,
    /// Where stores are made ready.
    draft: &'a Path,
    kept: Vec<PathBuf>,
}

impl Restoring<'_> {
    /// One fileset from the backup; or a repair of one that is not in it, with what is known now.
    fn restore_one(
        &mut self,
        id: FilesetId,
        is_chosen: bool,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Report> {
        let stores = &self.offline.stores;
        let mut stored = stored_filesets(&**stores)?;
        if is_chosen && !stored.iter().any(|stored| stored.id == id) {
            stored.push(StoredFileset { id, settings: None, uuid: None });
        }
        let mut how = Options {
            repair: Repair::Found,
            records_lost: is_chosen,
            archives: forebay_fs::fsck::Archives::Trusted,
            stores: None,
            fileset: Some(id),
            disks: None,
            filesets: Some(stored.as_slice()),
            progress,
        };
        if !is_chosen {
            return repair_in_place(stores, id, &self.offline.all_disks()?, &mut how);
        }
        let find = |superblock: &Superblock| {
            let disks = self.offline.disks(superblock);
            disks.map_err(|error| forebay_fs::FsError::Refused(crate::output::chain(&error)))
        };
        let options = RedbOptions::default();
        let drafts = RedbFolder::at(self.draft, options.clone());
        let (path, copy) = (drafts.file_of(id), self.copies.file_of(id));
        let made = fsck::file::restore(&path, &copy, &options, &find, &mut how)?;
        if made.report.outcome() == Outcome::Left {
            return Ok(made.report);
        }
        self.offline.check_undisturbed()?;
        if stores.list()?.contains(&id) {
            self.kept.push(keep(self.home, stores, id)?);
        }
        (how.progress)("writing the names");
        upload(stores, id, &*drafts.look(id)?)?;
        self.offline.member().book().add_fileset(id)?;
        Ok(made.report)
    }
}

/// An empty folder within the home folder.
fn draft_folder(home: &Home) -> Result<PathBuf> {
    let path = home.root().join("restoring");
    if path.exists() {
        std::fs::remove_dir_all(&path)?;
    }
    std::fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
    Ok(path)
}

/// Writes a store anew with all that another one holds. If this is interrupted, the restore must be repeated.
fn upload(stores: &SlateStores, id: FilesetId, from: &dyn Store) -> Result<()> {
    let to = stores.create(id)?;
    let mut next = Vec::new();
    loop {
        let pairs = from.scan(&next, &[u8::MAX; 64], PAIRS)?;
        let Some((last, _)) = pairs.last() else { break };
        next.clone_from(last);
        next.push(0);
        let changes = pairs.into_iter().map(|(key, value)| (key, Some(value))).collect();
        to.commit(&Batch { requires: Vec::new(), changes })?;
    }
    to.close()?;
    Ok(())
}
